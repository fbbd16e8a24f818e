"""Life of a write: look at the output, fix the plan, let an engine work, publish.

::

    options checked -> output looked at and locked -> plan fixed, or the one that is there found
    to be the same -> engine fills the run directory -> counts held against the law -> commit
    -> final names, the manifest last
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import EllipsisType
from typing import Any

from shardwriter.dataset.layout import law_breach
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import Output, parse_output
from shardwriter.engines import Notify, Outcome, Progress
from shardwriter.engines.budget import ErrorBudget
from shardwriter.engines.choose import open_engine
from shardwriter.engines.gather import gather
from shardwriter.errors import LawViolation, StorageError
from shardwriter.features.feature_types import FeatureType, parse_schema_option
from shardwriter.formats import canonical
from shardwriter.formats.compression import Compression
from shardwriter.formats.packing import PLAIN, Deflate, Packing, lost_readers
from shardwriter.items.keys import key_notes
from shardwriter.items.selection import Selection
from shardwriter.job import Job, check_compression, choose_num_shards
from shardwriter.options import DatasetOptions, OnError, Order, RunOptions
from shardwriter.plan import check
from shardwriter.runs.kept import Kept
from shardwriter.runs.publication import (
    begin,
    check_output,
    is_committed,
    publish,
    write_index,
)
from shardwriter.runs.resume import take_up
from shardwriter.runs.run_facts import run_facts
from shardwriter.runs.rundir import RunDirectory
from shardwriter.sources import Source
from shardwriter.sources.find import open_source
from shardwriter.storage import LocalStorage, Storage
from shardwriter.storage.tensorflow import require_tensorflow
from shardwriter.tfds.features import tfds_features
from shardwriter.tfds.folder import check_folder


def write(
    source: Any,
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    format: str = "auto",
    map: Callable[[dict[str, Any]], Any] | None = None,
    filter: Callable[[Any], Any] | None = None,
    limit: int | None = None,
    shuffle_seed: int | None = None,
    order: Order = "source",
    key: str | None = None,
    order_seed: int = 0,
    label: str | None = None,
    schema: Mapping[str, FeatureType] | str | None = None,
    compression: Compression | None = None,
    tfds: str | None = None,
    deflate: Deflate = "isal-2",
    world: int = 1,
    loader_workers: int = 1,
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    on_error: OnError | EllipsisType = ...,
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
        format: ``image-folder``, ``image-mask``, ``coco``, ``voc``, ``csv``, ``jsonl``,
            ``parquet``, ``numpy``, ``tfrecord``, ``webdataset``, ``audio``,
            ``python``, or ``auto``.
        map: Applied to every item's features; returns features, or SKIP.
        filter: Asked of every item as the source lists it (an ImageItem, a row's number, what an
            iterator gives) whether it is to be written at all.
        limit: Only the first so many items.
        shuffle_seed: Write in the order of a permutation of this seed.
        order: ``source``, or ``key``: by a hash of the items' keys, so that the order in which they
            come decides nothing; two items of one key are refused.
        key: For ``key``: the feature of the source's items that is the key; without it what the
            source calls an item (an image's path).
        order_seed: For ``key``: the salt, which chooses another order.
        label: Feature whose values are counted in the manifest.
        schema: Types fixed before the first item: ``"id=string,price=float"``, or a FeatureType by
            feature.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip where ``out`` ends in ``.gz``.
        tfds: NAME:VERSION: write a TFDS dataset, for ``tfds.load`` and timm. ``out`` is then
            ``data_dir/split@16``, or ``data_dir`` alone for the split ``train``.
        deflate: ``isal-2``, or ``zlib-6`` for smaller shards that take many times as long.
        world: For a chosen N: how many ranks will read.
        loader_workers: For a chosen N: how many loader workers a rank has.
        workers: Processes that load, map, encode and write; 1 for none but this one, None for as
            many as there are cores that may be used. Left off: as ``run`` says, which says 1.
        overwrite: Replace a dataset of this name once the new one is whole.
        resume: Go on with a run of the same job that was stopped; begin where there is none.
        on_error: ``raise``, or ``skip`` to leave items out that give an error, and list them in
            ``<name>.errors.jsonl``.
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
    output = parse_output(out, num_shards, compression, tfds=tfds)
    given = {
        "workers": workers,
        "overwrite": overwrite,
        "resume": resume,
        "on_error": on_error,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not ...}
    run_options = replace(run or RunOptions(), **changes)
    if isinstance(schema, str):
        schema = parse_schema_option(schema)
    options = DatasetOptions(
        map,
        filter,
        limit,
        shuffle_seed,
        label,
        schema or {},
        world=world,
        loader_workers=loader_workers,
        compression=output.compression,
        deflate=deflate,
        order=order,
        key=key,
        order_seed=order_seed,
        tfds=output.tfds,
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
    storage: Storage | None = None,
) -> Manifest:
    """Write the items of a source; see :func:`write`.

    The output is looked at and locked before the source is opened, which can take a while: a table
    is read once for its types.

    Args:
        open_source: Opens the source.
        output: What OUT says.
        options: What decides the bytes.
        run_options: What does not.
        progress: Told now and then how far the write has come.
        notify: Called with hints.
        storage: Where the dataset goes; None for the local file system.
    """
    check_compression(output, options, run_options)
    if run_options.backend == "tensorflow":
        require_tensorflow()
    notify = notify or _ignore
    for note in lost_readers(options.compression):
        notify(note)
    resume = run_options.resume or run_options.retry_errors
    with (
        claimed(output, run_options, storage) as run,
        open_engine(run_options, output.num_shards) as engine,
    ):
        source = open_source()
        for note in [*source.notes, *key_notes(source, options)]:
            notify(note)
        selection = Selection(source, options)
        check(source, options, output)
        skip_errors = run_options.on_error == "skip"
        n = choose_num_shards(selection, output, skip_errors=skip_errors)
        job = Job(selection, output.pattern(n))
        kept = take_up(job, run, run_options, notify) if resume else None
        if isinstance(kept, Manifest):
            notify(f"nothing to do: {output.name!r} is finished, and of this job")
            run.discard()
            return kept
        if kept is None:
            begin(run, run_facts(job))
            kept = Kept(n)
            if not source.stable:
                notify("an iterator can be read once: should this run be stopped, it is lost")
        ErrorBudget(run_options, kept).check()
        if kept.is_everything:
            outcome = gather(job, kept, [], kept.num_items or 0)
        else:
            outcome = engine(job, run, kept, progress, notify)
        manifest = finish(
            run,
            outcome,
            output,
            job=job.digest(),
            source=job.source_json(),
            order=job.order_json(),
            packing=job.packing,
            dali=run_options.dali_index or kept.dali_index,
        )
    _hints(manifest, outcome, options, run_options, notify)
    return manifest


@contextmanager
def claimed(
    output: Output, run_options: RunOptions, storage: Storage | None = None
) -> Iterator[RunDirectory]:
    """Hold the run directory of an output while a dataset is made in it.

    After an error what a worker has marked stays, and can be gone on with. A run that came to no
    mark has nothing worth keeping, and leaves nothing.
    """
    resume = run_options.resume or run_options.retry_errors
    with RunDirectory.claim(output.directory, output.name, storage or LocalStorage()) as run:
        check_output(run, overwrite=run_options.overwrite or resume, pattern=output.pattern(1))
        try:
            if output.tfds is not None:
                check_folder(run.storage, run.directory, output.tfds)
            yield run
        except BaseException:  # Ctrl-C and SIGTERM are tidied up too
            with suppress(StorageError):  # it would hide what has happened
                if not is_committed(run) and not run.is_worth_keeping:
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
    hint: str | None = None,
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
            hint=hint,
        )
    pattern = output.pattern(len(counts))
    index = write_index(
        run, pattern, outcome.shards, outcome.gaps, compression=packing.compression, dali=dali
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
        {} if output.tfds is None else {"tfds": output.tfds.to_json()},
    )
    ledger = "".join(map(canonical.dumps, outcome.errors))
    publish(run, manifest, ledger.encode("ascii"))
    return manifest


def _hints(
    manifest: Manifest,
    outcome: Outcome,
    options: DatasetOptions,
    run_options: RunOptions,
    notify: Notify,
) -> None:
    for note in outcome.notes:
        notify(note)
    if options.tfds is not None:
        for note in tfds_features(manifest)[1]:
            notify(note)
    if outcome.labels_sorted and options.shuffle_seed is None and options.order == "source":
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
