"""Life of a write: look at the output, fix the plan, let an engine work, publish.

::

    options checked -> output looked at and locked -> plan fixed -> engine fills the run directory
    -> counts held against the law -> commit -> final names, the manifest last
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import EllipsisType
from typing import Any
from uuid import uuid4

from shardwriter.compression import Compression
from shardwriter.engines import Notify, Outcome, Progress
from shardwriter.engines.choose import open_engine
from shardwriter.errors import LawViolation, OptionError
from shardwriter.feature_types import FeatureType, parse_schema_option
from shardwriter.job import (
    Job,
    check_compression,
    check_shuffle,
    choose_num_shards,
    count_items,
    sample,
)
from shardwriter.layout import law_breach
from shardwriter.manifest import Manifest
from shardwriter.naming import Output, parse_output
from shardwriter.options import DatasetOptions, RunOptions
from shardwriter.packing import PLAIN, Deflate, Packing, lost_readers
from shardwriter.rundir import RunDirectory, taken_by
from shardwriter.sources import RecordSource, Source
from shardwriter.sources.find import open_source
from shardwriter.storage import LocalStorage
from shardwriter.storage.tensorflow import require_tensorflow


def write(
    source: Any,
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    format: str = "auto",
    map: Callable[[dict[str, Any]], Any] | None = None,
    limit: int | None = None,
    shuffle_seed: int | None = None,
    label: str | None = None,
    schema: Mapping[str, FeatureType] | str | None = None,
    compression: Compression | None = None,
    deflate: Deflate = "isal-2",
    world: int = 1,
    loader_workers: int = 1,
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Manifest:
    """Write a dataset as N TFRecord shards.

    Args:
        source: A path, a glob, ``module:callable``, an iterable, an object with ``__len__`` and
            ``__getitem__``, or a function that returns one. An item is a mapping from feature names
            to values, or the bytes of a finished record.
        out: ``dir/name@16``, or ``dir/name`` to have N chosen.
        num_shards: N, where ``out`` does not say it.
        format: ``image-folder``, ``csv``, ``jsonl``, ``tfrecord``, ``python``, or ``auto``.
        map: Applied to every item's features; returns features, or SKIP.
        limit: Only the first so many items.
        shuffle_seed: Write in the order of a permutation of this seed.
        label: Feature whose values are counted in the manifest.
        schema: Types fixed before the first item: ``"id=string,price=float"``, or a FeatureType by
            feature.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip where ``out`` ends in ``.gz``.
        deflate: ``isal-2``, or ``zlib-6`` for smaller shards that take many times as long.
        world: For a chosen N: how many ranks will read.
        loader_workers: For a chosen N: how many loader workers a rank has.
        workers: Processes that load, map, encode and write; 1 for none but this one, None for as
            many as there are cores that may be used. Left off: as ``run`` says, which says 1.
        overwrite: Replace a dataset of this name once the new one is whole.
        run: How else to carry it out; changes no byte.
        progress: Told now and then how far the write has come.
        notify: Called with hints.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the output exists.
        DataError: The input is at fault; nothing is published.
        RunError: The work could not be done; nothing is published.
    """
    output = parse_output(out, num_shards, compression)
    run_options = run or RunOptions()
    if workers is not ...:
        run_options = replace(run_options, workers=workers)
    if overwrite is not ...:
        run_options = replace(run_options, overwrite=overwrite)
    if isinstance(schema, str):
        schema = parse_schema_option(schema)
    options = DatasetOptions(
        map,
        limit,
        shuffle_seed,
        label,
        schema or {},
        world=world,
        loader_workers=loader_workers,
        compression=output.compression,
        deflate=deflate,
    )
    return write_dataset(
        lambda: open_source(source, format, options.schema),
        output,
        options,
        run_options,
        progress,
        notify,
    )


def write_dataset(
    open_source: Callable[[], Source],
    output: Output,
    options: DatasetOptions,
    run_options: RunOptions,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Manifest:
    """Write the items of a source; see :func:`write`.

    The output is looked at and locked before the source is opened, which can take a while: a table
    is read once for its types.
    """
    check_compression(output, options, run_options)
    if run_options.backend == "tensorflow":
        require_tensorflow()
    notify = notify or _ignore
    for note in lost_readers(options.compression):
        notify(note)
    with (
        claimed(output, overwrite=run_options.overwrite) as run,
        open_engine(run_options, output.num_shards) as engine,
    ):
        source = open_source()
        for note in source.notes:
            notify(note)
        check(source, options, output)
        n = choose_num_shards(source, options, output)
        job = Job(source, options, output.pattern(n))
        run.begin(run_facts(job))
        outcome = engine(job, run, progress, notify)
        manifest = finish(
            run,
            outcome,
            output,
            job=job.digest(),
            source=job.source_json(),
            order=job.order_json(),
            packing=job.packing,
            dali=run_options.dali_index,
        )
    _hints(manifest, outcome, options, run_options, notify)
    return manifest


def plan(
    source: Source,
    output: Output,
    options: DatasetOptions,
    run_options: RunOptions | None = None,
) -> dict[str, Any]:
    """Say what a write would make, from a sample of the items; writes nothing.

    Raises:
        UsageError: The write would be refused.
        DataError: A sampled item can not be encoded.
    """
    check_compression(output, options, run_options or RunOptions())
    check(source, options, output)
    num_items = count_items(source, options)
    n = choose_num_shards(source, options, output)
    seen = sample(source, options)
    taken = taken_by(LocalStorage().list(output.directory), output.name, output.pattern(n))
    return {
        "compression": Packing.of(options.compression, options.deflate, n).to_json(),
        "estimated_bytes": None if num_items is None else round(seen.mean_frame_bytes * num_items),
        "features": seen.features,
        "files": output.pattern(n).template,
        "format": source.kind,
        "num_items": num_items,
        "num_shards": n,
        "replaces": taken,
        "sampled_items": seen.num_records,
        "schema": "shardwriter.plan/1",
    }


def check(source: Source, options: DatasetOptions, output: Output) -> None:
    """Refuse early what can not work.

    Raises:
        OptionError: Says what.
    """
    check_shuffle(source, options)
    if isinstance(source, RecordSource):
        _check_copy(source, options, output)
    plan = {} if options.map else source.plan
    if options.label and plan and options.label not in plan:
        raise OptionError(
            f"--label {options.label}: there is no such feature",
            hint=f"the features are {', '.join(sorted(plan))}",
        )
    for name, wanted in options.schema.items():
        planned = plan.get(name)
        if planned is not None and planned.kind not in (None, wanted.kind):
            raise OptionError(
                f"the schema says {wanted.kind} for {name!r}, and a source of kind {source.kind} "
                f"gives {planned.kind}",
                hint="a map can change it",
            )


def _check_copy(source: RecordSource, options: DatasetOptions, output: Output) -> None:
    if source.reads(output.directory, output.name):
        raise OptionError(
            f"the output {output.name!r} is the dataset that is read",
            hint="write under another name, or into another folder",
        )
    for option, value in (("--label", options.label), ("--schema", options.schema)):
        if value and options.map is None:
            raise OptionError(
                f"{option}: finished records are copied, and nothing looks into them",
                hint="a map has them decoded; one that returns what it is given is enough",
            )


@contextmanager
def claimed(output: Output, *, overwrite: bool) -> Iterator[RunDirectory]:
    """Hold the run directory of an output while a dataset is made in it.

    After an error what was brought to the disk stays. A run that came to no checkpoint has nothing
    worth keeping, and leaves nothing.
    """
    with RunDirectory.claim(output.directory, output.name, LocalStorage()) as run:
        run.check_output(overwrite=overwrite, pattern=output.pattern(1))
        try:
            yield run
        except BaseException:  # Ctrl-C and SIGTERM are tidied up too
            if not run.is_committed and not run.has_checkpoint:
                run.discard()
            raise


def finish(
    run: RunDirectory,
    outcome: Outcome,
    output: Output,
    *,
    job: str,
    source: Mapping[str, Any],
    order: Mapping[str, Any],
    packing: Packing = PLAIN,
    dali: bool = False,
) -> Manifest:
    """Hold the counts against the law, write the index, publish, and return the manifest.

    Raises:
        LawViolation: The shards are not what the law gives; nothing is published.
    """
    counts = [shard.num_records for shard in outcome.shards]
    breach = law_breach(counts, outcome.num_items, outcome.gaps)
    if breach is not None:
        shard, expected, count = breach
        raise LawViolation(
            f"shard {shard} got {count:,} records, and the law gives it {expected:,} of "
            f"{outcome.num_items:,}",
            hint="record i belongs to shard i mod N; open_writer deals records by itself",
        )
    pattern = output.pattern(len(counts))
    index = run.write_index(
        pattern, outcome.shards, outcome.gaps, compression=packing.compression, dali=dali
    )
    manifest = Manifest(
        pattern,
        outcome.num_items,
        outcome.shards,
        outcome.gaps,
        packing.to_json(),
        index,
        job,
        source,
        order,
        outcome.schema,
        outcome.labels,
    )
    run.publish(manifest)
    return manifest


def run_facts(job: Job) -> dict[str, Any]:
    """Return what run.json keeps of a job, the facts of this machine included."""
    return {
        "job": job.digest(),
        "options": job.bytes_options(),
        "plan": {
            "label": job.record_encoder().labels.feature,
            "num_items": job.num_items,
            "num_shards": job.num_shards,
            "schema": job.record_encoder().schema.to_json(),
        },
        "source": {**job.source_json(), "fingerprint": job.source.fingerprint()},
        **machine_facts(),
    }


def machine_facts() -> dict[str, Any]:
    """Return what tells one machine, boot and attempt from another."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""
    return {
        "boot_id": boot_id,
        "host": socket.gethostname(),
        "nonce": uuid4().hex,
        "pid": os.getpid(),
    }


def _hints(
    manifest: Manifest,
    outcome: Outcome,
    options: DatasetOptions,
    run_options: RunOptions,
    notify: Notify,
) -> None:
    for note in outcome.notes:
        notify(note)
    if outcome.labels_sorted and options.shuffle_seed is None:
        notify(
            "labels came in sorted order, so neighbouring records are of one class: "
            "--shuffle --seed 0 writes them mixed"
        )
    if options.label and outcome.labels is None and manifest.num_records:
        notify(f"no record has the label {options.label!r}")
    empty = sum(shard.num_records == 0 for shard in outcome.shards)
    if not manifest.num_records:
        notify(f"the source gave no records: all {manifest.num_shards:,} shards are empty")
    elif empty:
        notify(f"{empty:,} of {manifest.num_shards:,} shards are empty: there are fewer records")
    if run_options.dali_index and any(shard.num_records < 2 for shard in outcome.shards):
        notify("the PyPI tfrecord loader fails on the .idx of a shard with fewer than 2 records")


def _ignore(_line: str) -> None:
    return
