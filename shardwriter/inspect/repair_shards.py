"""Repair from the source: only the shards that are damaged or missing are made again.

The job has to be that of the manifest. What the engine makes is held against the manifest before
anything is published, and the manifest, the index and the shards that were good are what they were:
the dataset ends byte-identical to the undamaged one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from shardwriter.dataset.manifest import Manifest, SealedShard
from shardwriter.dataset.names import tfds_split_of
from shardwriter.dataset.naming import Output, ledger_file
from shardwriter.dataset.splits import Split
from shardwriter.errors import ManifestError, OptionError, RunChanged
from shardwriter.inspect.copying import copy_shard, write_rows
from shardwriter.inspect.known import Known
from shardwriter.inspect.repair_report import Action, RepairReport, result_of
from shardwriter.inspect.survey import ShardSurvey
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.source import Source
from shardwriter.writing.engine import Engine, Notify, Progress
from shardwriter.writing.finished import what_differs
from shardwriter.writing.job import Job
from shardwriter.writing.keys import key_costs, key_notes
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.plan import check
from shardwriter.writing.publication import begin, publish, write_index
from shardwriter.writing.record_checks import check_stable
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.run_facts import machine_facts
from shardwriter.writing.selection import Selection

_NEVER_S: Final = float("inf")
_NEVER_BYTES: Final = 1 << 62


def required_manifest(known: Known) -> Manifest:
    """Return the manifest.

    Raises:
        ManifestError: There is none that can be used, so nobody knows what is to be made.
    """
    if known.manifest is None:
        raise ManifestError(
            f"{known.name!r} has no manifest that can be used, so single shards can not be made "
            "again: nothing says what they were",
            path=known.directory,
            hint="write the whole dataset again (`shardwriter write SOURCE OUT`), or leave "
            "--source off to bring back what is good",
        )
    if "repaired" in known.manifest.extra:
        raise ManifestError(
            f"{known.name!r} is what a repair has left of a dataset, and its manifest does not "
            "tell what that was",
            path=known.directory,
            hint="repair the dataset that it was made of, or write it again",
        )
    return known.manifest


def output_of(known: Known, out: str) -> Output:
    """Return what OUT would be to a write of the same files."""
    manifest = required_manifest(known)
    pattern, compression = manifest.pattern, manifest.compression["type"]
    ext = pattern.ext.removesuffix(".gz") if compression == "gzip" else pattern.ext
    return Output(out, pattern.stem, ext, pattern.num_shards, compression)


def options_of(manifest: Manifest, given: DatasetOptions) -> DatasetOptions:
    """Return the write's options: those given, and what the manifest says of the others.

    Raises:
        OptionError: An option contradicts the manifest.
    """
    compression = manifest.compression
    options = replace(
        given,
        compression=compression["type"],
        deflate=compression.get("deflate", "isal-2"),
        tfds=tfds_split_of(manifest.metadata),
    )
    written = manifest.features
    schema = {
        name: _as_written(found, written[name].type) if name in written else found
        for name, found in options.schema.items()
    }
    options = replace(options, schema=schema)
    split = manifest.order.get("split")
    if split is not None:
        key = options.key or split.get("feature")
        options = replace(options, split=Split.from_json(split), key=key)
    if options.order != "source" or options.shuffle_seed is not None:
        return options
    shuffle, key = manifest.order.get("shuffle"), manifest.order.get("key")
    if shuffle is not None:
        return replace(options, shuffle_seed=shuffle["seed"])
    if key is not None:
        return replace(options, order="key", key=key["feature"], order_seed=key["seed"])
    return options


def _as_written(declared: FeatureType, found: FeatureType) -> FeatureType:
    """Return a declared float64 as a list, where the dataset is of when it was stored as one."""
    if (declared.encoding, declared.dtype) != ("raw", "float64") or found.kind != "float":
        return declared
    return FeatureType("float", "float64", declared.shape)


def job_of(
    known: Known,
    out: str,
    options: DatasetOptions,
    open_source: Callable[[Split | None], Source],
    notify: Notify,
) -> Job:
    """Return the job of the source, once it is known to be that of the manifest.

    Raises:
        RunChanged: It is another; says what differs, as far as that is known.
        OptionError: The source can be read once, or the options do not go together.
    """
    manifest = required_manifest(known)
    options = options_of(manifest, options)
    source = open_source(options.split)
    for note in [*source.notes, *key_notes(source, options), *key_costs(source, options)]:
        notify(note)
    selection = Selection(source, options)
    check(source, options, output_of(known, out))
    job = Job(selection, manifest.pattern)
    check_stable(job)
    what = what_differs(job, manifest)
    if what is not None:
        raise RunChanged(
            f"this is not the job that wrote {known.name!r}: {what} is not what it was",
            path=os.path.join(known.directory, manifest.pattern.manifest_file),
            hint="give the source and the options (--map, --filter, --limit, --label, --schema) "
            "that it was written with; or leave --source off to bring back what is good",
        )
    return job


def report_of(
    known: Known,
    surveys: Sequence[ShardSurvey],
    out: str,
    *,
    in_place: bool,
    is_dry_run: bool = False,
) -> RepairReport:
    """Say what a repair from the source does."""
    good: Action = "kept" if in_place else "copied"
    results = [
        result_of(known, found, good if _stays(found, in_place=in_place) else "remade", [])
        for found in surveys
    ]
    return RepairReport(
        os.path.join(known.directory, known.name),
        out,
        known.name,
        known.num_items,
        results,
        [],
        True,
        is_dry_run,
        list(known.notes),
    )


def _stays(found: ShardSurvey, *, in_place: bool) -> bool:
    """Whether a shard need not be made again. One that is to be cut can not be cut in its place."""
    return found.state == "whole" or (found.state == "too-long" and not in_place)


def remake(
    known: Known,
    surveys: Sequence[ShardSurvey],
    run: RunDirectory,
    job: Job,
    engine: Engine,
    *,
    in_place: bool,
    progress: Progress | None = None,
    notify: Notify,
) -> None:
    """Make the damaged shards again in the run directory, and publish the dataset.

    Args:
        known: The dataset.
        surveys: What was found of each shard.
        run: The claimed run directory.
        job: What made it, and makes it.
        engine: Who does the work; its options are :func:`run_options_of`.
        in_place: Whether good shards stay where they are.
        progress: Told of the work.
        notify: Called with hints.

    Raises:
        RunChanged: What was made is not what the manifest says; nothing is published.
    """
    manifest = required_manifest(known)
    begin(run, {"repair": True, **machine_facts()})
    sealed: dict[int, SealedShard] = {}
    for found in surveys:
        if not _stays(found, in_place=in_place):
            continue
        if in_place:
            write_rows(known, found, run, known.path(found.shard))
            sealed[found.shard] = manifest.shards[found.shard]
        else:
            sealed[found.shard] = copy_shard(known, found, run)
    kept = Kept(
        manifest.num_shards,
        sealed=sealed,
        gaps=np.array(manifest.gaps, np.int64),
        num_items=manifest.num_items,
    )
    if not kept.is_everything:
        outcome = engine(job, run, kept, progress, notify)
        _check_made(manifest, outcome.shards, outcome.gaps, outcome.num_items)
    index = write_index(
        run,
        manifest.pattern,
        list(manifest.shards),
        list(manifest.gaps),
        compression=job.packing.compression,
        dali=known.has_dali_index and job.packing.is_plain,
    )
    if index != manifest.index:
        raise ManifestError(
            "the index of these shards is not the one that the manifest speaks of",
            path=os.path.join(known.directory, manifest.pattern.manifest_file),
            hint="the manifest was changed: write the dataset again",
        )
    errors = run.storage.read(os.path.join(known.directory, ledger_file(known.name))) or b""
    publish(run, manifest, errors)


def run_options_of(given: RunOptions) -> RunOptions:
    """Return how the remake is carried out: without marks, as a repair begins again.

    Raises:
        OptionError: What is asked for would not give the same bytes.
    """
    if given.resume or given.retry_errors:
        raise OptionError(
            "a repair is not resumed: it begins again, and leaves nothing half done",
            hint="leave --resume and --retry-errors off",
        )
    # An item that had a record and gives an error now is a change, and no gap.
    return replace(
        given, on_error="raise", max_errors=None, mark_s=_NEVER_S, checkpoint_bytes=_NEVER_BYTES
    )


def _check_made(
    manifest: Manifest, shards: Sequence[SealedShard], gaps: Sequence[int], num_items: int
) -> None:
    """Hold what was made against the manifest.

    Raises:
        RunChanged: It is something else.
    """
    hint = (
        "the source, a library, or code that the map calls has changed since; or the map is "
        "random. Leave --source off to bring back what is good, or write the dataset again"
    )
    if num_items != manifest.num_items or list(gaps) != list(manifest.gaps):
        new = sorted(set(gaps) - set(manifest.gaps))
        what = f"item {new[0]:,} gives no record now" if new else f"it gives {num_items:,} items"
        raise RunChanged(f"the source is not what it was: {what}", hint=hint)
    for shard, (made, told) in enumerate(zip(shards, manifest.shards, strict=True)):
        if made != told:
            raise RunChanged(
                f"what was made is not what the manifest says: {made.num_records:,} records with "
                f"CRC {made.crc32c:08x}, should be {told.num_records:,} with {told.crc32c:08x}",
                hint=hint,
                shard=shard,
            )
