"""Resume an unfinished run, or retry the failed items of a finished dataset.

The bytes must be those of a run that was never stopped, so anything that decides bytes must be
what it was. Why resume refuses, in the order of the checks. First, for every run
(:mod:`~shardwriter.writing.publication`, :mod:`~shardwriter.storage.lock`): another process has
the lock; the folder is not a run directory; a begun publication can not be completed. An
unfinished run:

===================================  ===========================================================
:func:`check_resumable`              the source can be read only once, or changes its order
:func:`resume_unfinished`            the run is a Beam job's; run.json is missing or invalid
:func:`check_same_job`               run.json differs from the job: options, source, plan, code
:func:`recover`                      ``base`` or ``files.json`` is invalid, or types conflict
:func:`_reused_records`              the dataset whose failed items are retried is gone
:func:`check_records`                a record made again differs: a library or other data changed
===================================  ===========================================================

A finished dataset:

===================================  ===========================================================
:func:`_check_job`                   its manifest is of another job
:func:`_check_file_sizes`            files are missing or of another size
:func:`check_records`                a record made again differs
===================================  ===========================================================

A source that is read from its start is compared while it is read (:class:`.job.Listing`). A run
that was stopped before its first snapshot has nothing to resume: it starts over.

Recovery reads, of each worker, the newest snapshot whose journal is complete. Each shard is
compared with it: the bytes after the last checkpoint are read and their CRC is compared. If the
file does not match (its end was never written, or has zeros), an older snapshot is tried, and at
last the shard is started over. Records that were counted in the statistics stay counted
(:class:`~shardwriter.writing.resume_state.CountedItems`). The result is synced as the base of the
next attempt before that one adds anything, so no attempt builds on what a power cut can take away.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    Gaps,
    Index,
    Manifest,
    SealedShard,
    ShardPattern,
    columns,
    error_log_file,
    num_shard_items,
    to_runs,
)
from shardwriter.errors import (
    CorruptFile,
    ManifestError,
    OptionError,
    OutputExists,
    RunChanged,
    SchemaConflict,
    StorageError,
)
from shardwriter.formats import (
    FRAME_BYTES,
    NOTHING_WRITTEN,
    ZLIB_HEAD,
    Compression,
    Count,
    Written,
    canonical,
    clean,
    extend_crc32c,
    json_shape,
)
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema import (
    DataWarnings,
    FeatureSummary,
    LabelCounts,
    RecordStats,
    from_manifest,
    record_stats_from_json,
)
from shardwriter.sources import RecordSource, read_record_span
from shardwriter.storage import inputs_for, storage_errors
from shardwriter.writing.engine import ErrorBudget
from shardwriter.writing.job import Job
from shardwriter.writing.journal import Base, Retry, RunFacts, Snapshot, read_facts
from shardwriter.writing.options import RunOptions
from shardwriter.writing.publication import begin_run, check_output, finished_manifest
from shardwriter.writing.resume_state import CountedItems, FinishedRecords, ResumeState
from shardwriter.writing.run_directory import RunDirectory

_READ_BYTES: Final = 1 << 22
_ALL_ITEMS: Final = 2**62  # greater than any item
_CHECKED_SHARDS: Final = 64  # of which the last record is made again
_OTHER_CHANGE: Final = "an option or the code of the map"
_OPTION_NAMES: Final = {
    "compression": "--compression or --deflate",
    "files": "the file names",
    "filter": "--filter",
    "images": "--resize, --max-side or --quality",
    "images.max_side": "--max-side",
    "images.quality": "--quality",
    "images.resize": "--resize",
    "indices": "--indices",
    "label": "--label",
    "limit": "--limit",
    "map": "--map",
    "names": "--names",
    "num_shards": "the number of shards",
    "order": "--order, --key, --split, --shuffle or --seed",
    "schema": "--schema",
    "table": "--no-header, --names, --na, --encoding, --columns or --drop-columns",
    "tfds": "--tfds",
    "vocabularies": "the class names of --schema",
}
_HASH: Final = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
_OLD_FLOAT: Final = ("float", "float64")  # what earlier versions wrote for float32 lists
_OVERWRITE: Final = "use --overwrite to discard the run and start over"
_RESTORE: Final = f"restore it as it was, or {_OVERWRITE}"


def find_resume_state(
    job: Job, run: RunDirectory, run_options: RunOptions, notify: Callable[[str], None]
) -> ResumeState | Manifest | None:
    """Return where to resume a job.

    Returns:
        The resume state of an unfinished run, or of a finished dataset with failed items to retry;
        the manifest if nothing is left to do; None if there is nothing to resume.

    Raises:
        OutputExists: The finished dataset is of another job.
        RunChanged: The unfinished run is of another job.
    """
    if run.is_resumable:
        return resume_unfinished(job, run, run_facts(job), run_options, notify)
    manifest = finished_manifest(run)
    if manifest is None:
        check_output(run, overwrite=False, pattern=job.pattern)
        return None
    if manifest.job != job.digest() and _may_overwrite(run, job):
        return None
    return resume_finished(job, run, manifest, run_options, notify)


def _may_overwrite(run: RunDirectory, job: Job) -> bool:
    """Return whether a run of this job was to replace the dataset, and was stopped early."""
    try:
        facts = run.facts()
    except StorageError:
        return False
    if "standing_job" in facts:
        return False  # it retries failed items of the dataset
    return facts.get("replaces") is not None and facts.get("job") == job.digest()


def resume_unfinished(
    job: Job,
    run: RunDirectory,
    facts: Mapping[str, Any],
    run_options: RunOptions,
    notify: Callable[[str], None],
) -> ResumeState:
    """Return the resume state of an unfinished run.

    Args:
        job: The job.
        run: Its run directory.
        facts: The run.json of the job now.
        run_options: ``retry_errors`` and ``backend`` decide what is resumed.
        notify: Called with lines about what is resumed.

    Raises:
        RunChanged: The job has changed, or makes other records.
        SchemaConflict: The types of a feature in two workers' records cannot be merged.
    """
    check_resumable(job)
    if run.is_beam_run:
        raise RunChanged(
            f"the unfinished run of {run.name!r} is a Beam job's",
            path=run.path,
            hint=f"resume it with Beam, or {_OVERWRITE}",
        )
    before = run.facts()
    check_same_job(before, facts)
    label = job.record_encoder().labels.feature
    try:
        resume_state = recover(
            run,
            job.pattern,
            job.packing.compression,
            label=label,
            num_items=job.num_items if job.selection.random_access else None,
            retry_errors=run_options.retry_errors,
            can_resume_shards=run_options.backend == "native",
        )
    except SchemaConflict as error:
        # A fixed map does not fix the records already written.
        error.hint = f"records with both types are written already: {_OVERWRITE}"
        raise
    resume_state = replace(
        resume_state,
        finished_records=_reused_records(run, before),
        retries=before.get("retries", []),
    )
    checks = {}
    if not resume_state.retries:  # else other code has made some records
        num_records = {shard: sealed.num_records for shard, sealed in resume_state.sealed.items()}
        num_records |= {
            shard: written.num_records for shard, written in resume_state.open_shards.items()
        }
        checks = last_record_checksums(job, run, num_records, resume_state.gaps)
    if job.selection.random_access:
        check_records(job, checks)
    else:
        resume_state = replace(resume_state, checks=checks)
    for note in _resume_notes(job, resume_state):
        notify(note)
    return resume_state


def _resume_notes(job: Job, resume_state: ResumeState) -> list[str]:
    total = "" if not job.num_items else f" of {job.num_items:,}"
    lines = [
        f"resuming: {resume_state.num_done:,}{total} items already done "
        f"({resume_state.num_records:,} records, {resume_state.payload_bytes:,} bytes), "
        f"{len(resume_state.sealed):,} of {job.num_shards:,} shards complete"
    ]
    if not job.selection.random_access and resume_state.num_done and not resume_state.is_complete:
        lines.append(
            "the source can only be read from its start: items already done are read again and "
            "skipped"
        )
    return lines


def _reused_records(run: RunDirectory, facts: RunFacts) -> FinishedRecords | None:
    """Return the dataset whose failed items a run retries; None for other runs.

    Raises:
        RunChanged: That dataset does not exist any more.
    """
    if "standing_job" not in facts:
        return None
    manifest = finished_manifest(run)
    if manifest is None or manifest.job != facts["standing_job"]:
        raise RunChanged(
            f"the dataset {run.name!r}, whose failed items were retried, does not exist any more",
            path=run.path,
            hint=_OVERWRITE,
        )
    return FinishedRecords(run.directory, manifest, read_error_log(run))


def resume_finished(
    job: Job,
    run: RunDirectory,
    manifest: Manifest,
    run_options: RunOptions,
    notify: Callable[[str], None],
) -> ResumeState | Manifest:
    """Return what to retry of a finished dataset.

    Returns:
        The manifest if nothing is to be retried, else the resume state.

    Raises:
        OutputExists: The dataset is of another job.
        RunChanged: The job makes other records now.
        TooManyErrors: More of its items failed than ``max_errors``.
    """
    check_resumable(job)
    errors = read_error_log(run)
    is_changed = _check_job(job, run, manifest, run_options, has_errors=bool(errors))
    _check_file_sizes(run, manifest)
    retry = run_options.retry_errors
    if unknown := [index for index in errors if index not in manifest.gaps]:
        raise ManifestError(
            f"the error log has item {unknown[0]:,}, which is no gap in the manifest",
            path=_error_log_path(run),
            hint="restore the error log of the dataset, or delete it",
        )
    retries = read_retries(manifest)
    checks = {}
    if not (is_changed or retries):  # else other code has made some records
        num_records = {shard: sealed.num_records for shard, sealed in enumerate(manifest.shards)}
        checks = last_record_checksums(job, run, num_records, manifest.gaps, in_place_only=True)
        if job.selection.random_access:
            check_records(job, checks)
    if not retry or not errors:
        if is_changed:
            notify("no item of the dataset has failed, so the changed map is not used")
        ErrorBudget(run_options, ResumeState(job.num_shards, errors=errors)).check()
        if retry and manifest.gaps and not os.path.exists(_error_log_path(run)):
            notify(f"nothing to retry: there is no {error_log_file(run.name)}")
        if run_options.dali_index and not has_dali(run, manifest):
            notify("the dataset is complete: `shardwriter index --idx` makes its .idx files")
        return manifest
    if is_changed:
        retries.append({"items": to_runs(sorted(errors)), "job": manifest.job})
    # Before anything changes, as it raises if the files do not fit the manifest.
    finished_records = FinishedRecords(run.directory, manifest, errors)
    retry_facts = {"retries": retries} if retries else {}
    begin_run(run, {**run_facts(job), "standing_job": manifest.job, **retry_facts})
    shards = {index % job.num_shards for index in errors}
    notify(
        f"retrying {len(errors):,} failed items; {len(shards):,} of {job.num_shards:,} shards are "
        "written again"
    )
    resume_state = replace(
        _retry_failed(job, run, manifest, errors),
        finished_records=finished_records,
        retries=retries,
    )
    return resume_state if job.selection.random_access else replace(resume_state, checks=checks)


# -- is it the same job? ---------------------------------------------------------------------------


def check_resumable(job: Job) -> None:
    """Raise OptionError if the source does not give the same items in the same order again."""
    if not job.source.resumable:
        what = "the source has another order each time"
        if not job.source.notes:
            what = "an iterator can be read only once"
        raise OptionError(
            f"{what}, so a run with it can not be resumed",
            hint="pass a function that returns the iterator, or a sequence",
        )


def check_same_job(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunChanged, with the first field that differs, if a run is of another job.

    Args:
        before: The content of run.json.
        now: What it would be now.
    """
    # Through JSON, as ``before`` was read from a file.
    now = canonical.loads(canonical.dumps(dict(now)))
    before = _upgrade_types(before)
    for part in ("options", "source", "plan", "job"):
        for field, old, new in _differences(before.get(part), now.get(part), (part,)):
            hint = _RESTORE
            if field[:2] == ("options", "map") and old and new:
                hint = (
                    "restore the map and finish the run; then --retry-errors --accept-changed-map "
                    f"retries the failed items with the changed map. Or {_OVERWRITE}"
                )
            raise RunChanged(
                f"can not resume: {_describe_field(field)}: it was {_format_value(old)}, now "
                f"{_format_value(new)}",
                hint=hint,
            )


def _differences(
    old: Any, new: Any, field: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        # N first, as file names and member sizes follow from it; the digest last, as it covers
        # the other fields.
        rank = {"num_shards": -1, "digest": 1}
        for key in sorted(old.keys() | new.keys(), key=lambda key: (rank.get(key, 0), key)):
            yield from _differences(old.get(key), new.get(key), (*field, key))
    elif old != new:
        yield field, old, new


def _upgrade_types(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a run with today's type names: float32 instead of float64."""
    plan = facts.get("plan")
    if not isinstance(plan, dict) or not isinstance(plan.get("schema"), dict):
        return facts
    features = plan["schema"].get("features")
    if not isinstance(features, dict):
        return facts
    types = {
        name: {**entry, "dtype": "float32"}
        if isinstance(entry, dict) and (entry.get("kind"), entry.get("dtype")) == _OLD_FLOAT
        else entry
        for name, entry in features.items()
    }
    return {**facts, "plan": {**plan, "schema": {**plan["schema"], "features": types}}}


def _describe_field(field: tuple[str, ...]) -> str:
    """Return the name of a field for a message: as an option, and as in run.json."""
    part, *rest = field
    path = clean(".".join(field))
    if part == "source":
        return f"the source has changed since the run began ({path})"
    if part == "options" and rest and rest[0] in _OPTION_NAMES:
        code = "the code of " if rest[-1] == "sha256" else ""
        name = _OPTION_NAMES.get(".".join(rest[:2]), _OPTION_NAMES[rest[0]])
        return f"{code}{name} has changed since the run began ({path})"
    return f"the unfinished run is of another job ({path})"


def _format_value(value: Any) -> str:
    text = _HASH.sub(r"\1...", canonical.dumps(value).strip())
    return text if len(text) <= 80 else f"{text[:77]}..."


def find_job_change(job: Job, manifest: Manifest) -> str | None:
    """Return what differs from the job of a manifest, as a noun phrase; None for the same job."""
    if manifest.job == job.digest():
        return None
    now = {
        "the number of shards, or the file names": job.pattern.template,
        "the compression": job.packing.to_json(),
        "--order, --key, --split, --shuffle or --seed": job.order_json(),
        "the source": job.source_json(),
    }
    before = [manifest.pattern.template, manifest.compression, manifest.order, manifest.source]
    differs = [what for (what, new), old in zip(now.items(), before, strict=True) if new != old]
    return differs[0] if differs else _OTHER_CHANGE


def _check_job(
    job: Job,
    run: RunDirectory,
    manifest: Manifest,
    run_options: RunOptions,
    *,
    has_errors: bool,
) -> bool:
    """Raise if the dataset is of another job; return whether a changed map is accepted."""
    what = find_job_change(job, manifest)
    if what is None:
        return False
    accept = "--retry-errors --accept-changed-map"
    can_accept = what == _OTHER_CHANGE and job.options.map is not None
    if can_accept and run_options.accept_changed_map:
        if job.num_items in (None, manifest.num_items):
            return True
        raise OutputExists(
            f"a dataset {run.name!r} exists already, of {manifest.num_items:,} items, and there "
            f"are {job.num_items:,} now: not only the map has changed",
            path=os.path.join(run.directory, manifest.pattern.manifest_file),
            hint="use the options that it was written with, or replace it with --overwrite",
        )
    raise OutputExists(
        f"a dataset {run.name!r} exists already, and it is of another job: {what} has changed",
        path=os.path.join(run.directory, manifest.pattern.manifest_file),
        hint="--overwrite replaces it once the new one is complete"
        + ("; a repaired source counts as another one" if what == "the source" else "")
        + (
            f"; if only the code of --map has changed, {accept} keeps its records and retries the "
            "failed items"
            if can_accept and has_errors
            else ""
        ),
    )


def run_facts(job: Job) -> dict[str, Any]:
    """Return the content of run.json for a job."""
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
    """Return what identifies this machine, boot and attempt."""
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


# -- are the records the same? ---------------------------------------------------------------------


def last_record_checksums(
    job: Job,
    run: RunDirectory,
    num_records: Mapping[int, int],
    gaps: Sequence[int] | NDArray[np.int64],
    *,
    in_place_only: bool = False,
) -> dict[int, tuple[int, int]]:
    """Return size and CRC-32C of the last record of up to 64 shards, by item.

    Args:
        job: The job.
        run: The run directory; shards that are not there have their final names.
        num_records: Number of records of each shard.
        gaps: Sorted indices of the items without a record.
        in_place_only: Whether all shards have their final names.
    """
    compression = job.packing.compression
    gap_positions = Gaps(gaps, job.num_shards)
    shards = sorted(shard for shard, count in num_records.items() if count)
    step = max(1, len(shards) // _CHECKED_SHARDS)
    found = {}
    for shard in shards[::step][:_CHECKED_SHARDS]:
        path = run.shard_path(shard)
        if not in_place_only and os.path.exists(path):
            begin, end = last_block_range(run.index_columns(shard, compression)[0], compression)
        else:
            path, begin, end = _last_block_in_place(run, job.pattern, shard)
        record = read_last_record(path, begin, end, compression)
        index = gap_positions.item_index(shard, num_records[shard] - 1)
        found[index] = len(record), crc32c(record)
    return found


def last_block_range(ends: NDArray[np.uint64], compression: Compression) -> tuple[int, int]:
    """Return the begin and end offset of the last frame, member or block of a shard.

    Args:
        ends: uint64[n], n > 0: the end offset of each.
        compression: Compression of the shard.
    """
    first = len(ZLIB_HEAD) if compression == "zlib" else 0
    return int(ends[-2]) if len(ends) > 1 else first, int(ends[-1])


def read_last_record(path: str, begin: int, end: int, compression: Compression) -> bytes:
    """Return the last record of a shard.

    Args:
        path: The shard.
        begin: Begin offset of its last frame, member or block; see :func:`last_block_range`.
        end: End offset.
        compression: Compression of the shard.

    Raises:
        CorruptFile: There is no record, or it is damaged.
        StorageError: The file cannot be read.
    """
    with storage_errors(path):
        file_bytes = inputs_for(path).stat(path).st_size
    records = []
    if 0 <= begin < end <= file_bytes:
        records = read_record_span(path, begin, end, compression)
    if not records:
        raise CorruptFile(
            f"no record in bytes {begin:,} to {end:,}, where the index has the last one",
            kind="index",
            path=path,
            offset=begin,
            hint="write the dataset again (--overwrite)",
        )
    return records[-1]


def _last_block_in_place(
    run: RunDirectory, pattern: ShardPattern, shard: int
) -> tuple[str, int, int]:
    index = Index(os.path.join(run.directory, pattern.index_file))
    place = index.locate(shard, index.num_records(shard) - 1)
    return os.path.join(run.directory, pattern.shard_file(shard)), place.begin, place.end


def check_records(job: Job, records: Mapping[int, tuple[int, int]]) -> None:
    """Make records again, from a source with random access, and raise if one differs.

    run.json and the manifest cannot cover all that decides bytes: libraries, functions that the
    map calls, the content of a list.

    Raises:
        RunChanged: A record differs.
    """
    indices = np.array(sorted(records), np.int64)
    for index, item in job.selection.items_at(indices):
        job.check_record(index, item, records[index])


# -- what can be recovered of an unfinished run? ---------------------------------------------------


def recover(
    run: RunDirectory,
    pattern: ShardPattern,
    compression: Compression,
    *,
    label: str,
    num_items: int | None = None,
    retry_errors: bool = False,
    can_resume_shards: bool = True,
) -> ResumeState:
    """Return the resume state of an unfinished run, and write it as the base of a new attempt.

    Bytes of shards that cannot be recovered are cut off.

    Args:
        run: The claimed run directory.
        pattern: The final file names, and the number of shards, N.
        compression: Compression of the shards.
        label: The feature whose values are counted.
        num_items: Number of items, T; None if unknown before the end of the source.
        retry_errors: Whether failed items are to be retried.
        can_resume_shards: Whether the new attempt can append to open shards; if not, they are
            started over.

    Raises:
        SchemaConflict: The types of a feature in two workers cannot be merged.
        StorageError: The directory cannot be read, or the recovered files cannot be synced.
    """
    base = _read_attempt(
        run, pattern, compression, label, _ALL_ITEMS if num_items is None else num_items
    )
    if retry_errors:
        base = without_errors(base, pattern.num_shards)
    if not can_resume_shards:
        base = replace(base, open_shards={})
    base = replace(base, attempt=base.attempt + 1)
    run.write_base(base)
    return state_from_base(base, pattern.num_shards)


class _ShardEntry(NamedTuple):
    """The state of a shard as in a snapshot, and whether it was synced."""

    entry: Written | SealedShard
    is_synced: bool


def _read_attempt(
    run: RunDirectory, pattern: ShardPattern, compression: Compression, label: str, max_items: int
) -> Base:
    """Return all that the last attempt and earlier ones have written, as a base."""
    num_shards = pattern.num_shards
    base = run.read_base()
    if not base.fits_job(num_shards, max_items):
        raise run.broken("base")
    if run.adopted:
        raise run.broken("files.json", "it exists before all shards are finished")
    gaps, errors = set(base.gap_items), dict(base.errors)
    open_shards: dict[int, Written] = {}
    sealed: dict[int, SealedShard] = {}
    counted_to = dict(base.counted_to)
    uncounted = set(base.uncounted)
    stats = RecordStats.of(label, num_shards)
    if base.stats is not None:
        stats.merge(RecordStats.from_state(base.stats, num_shards))
    num_items = base.num_items
    entries: dict[int, list[_ShardEntry]] = {}  # by shard, the newest first
    for worker in run.workers(base.attempt):
        facts = read_facts(run.read(f"journal-{base.attempt}-{worker}"), max_items)
        for fact in facts.facts:
            _apply_fact(fact, gaps, errors, stats)
        snapshots = [
            snapshot
            for snapshot in run.read_snapshots(base.attempt, worker)
            if snapshot.journal_bytes <= facts.num_bytes
            and snapshot.fits_job(num_shards, max_items)
        ]
        if not snapshots:
            continue
        newest = snapshots[0]
        stats.merge(RecordStats.from_state(newest.stats, num_shards))
        num_items = newest.num_items if num_items is None else num_items
        for shard in newest.open_shards:
            counted_to[shard] = max(counted_to.get(shard, 0), newest.counted_to)
        for shard in newest.sealed:
            counted_to[shard] = _ALL_ITEMS
        uncounted -= {i for i in uncounted if _is_counted(i, newest, num_shards)}
        for snapshot in snapshots:
            _add_entries(entries, snapshot.open_shards, is_synced=snapshot.is_synced)
            _add_entries(entries, snapshot.sealed, is_synced=True)
    _add_entries(entries, base.open_shards, is_synced=True)
    _add_entries(entries, base.sealed, is_synced=True)
    counted_to |= dict.fromkeys(base.sealed, _ALL_ITEMS)
    for shard, candidates in entries.items():
        max_records = num_shard_items(max_items, num_shards, shard)
        valid = _find_valid_entry(
            run,
            shard,
            [each for each in candidates if each.entry.num_records <= max_records],
            pattern,
            compression,
            in_place=base.in_place and shard in base.sealed,
        )
        if isinstance(valid, SealedShard):
            sealed[shard] = valid
            counted_to.pop(shard, None)
        elif valid.num_pieces:
            open_shards[shard] = valid
    return Base(
        base.attempt,
        open_shards,
        sealed,
        base.in_place,
        base.dali_index,
        counted_to,
        frozenset(uncounted),
        to_runs(sorted(gaps)),
        errors,
        stats.to_state(),
        num_items,
    )


def _add_entries(
    entries: dict[int, list[_ShardEntry]],
    shards: Mapping[int, Written] | Mapping[int, SealedShard],
    *,
    is_synced: bool,
) -> None:
    for shard, entry in shards.items():
        entries.setdefault(shard, []).append(_ShardEntry(entry, is_synced))


def _apply_fact(
    fact: Mapping[str, Any],
    gaps: set[int],
    errors: dict[int, Mapping[str, Any]],
    stats: RecordStats,
) -> None:
    if "skip" in fact:
        gaps.add(fact["skip"])
        if fact["reason"] == "error":
            errors[fact["skip"]] = fact["error"]
    elif "types" in fact:
        features = {name: FeatureSummary.from_json(e) for name, e in fact["types"].items()}
        stats.merge_types(features)


def _is_counted(item_index: int, snapshot: Snapshot, num_shards: int) -> bool:
    shard = item_index % num_shards
    in_open_shard = shard in snapshot.open_shards and item_index < snapshot.counted_to
    return in_open_shard or shard in snapshot.sealed


def _find_valid_entry(
    run: RunDirectory,
    shard: int,
    entries: Iterable[_ShardEntry],
    pattern: ShardPattern,
    compression: Compression,
    *,
    in_place: bool,
) -> Written | SealedShard:
    """Return the newest entry that the files of a shard match; NOTHING_WRITTEN for none."""
    open_entries: list[tuple[Written, bool]] = []
    for entry, is_synced in entries:
        if isinstance(entry, Written):
            open_entries.append((entry, is_synced))
        elif _check_sealed_shard(run, shard, entry, pattern, compression, in_place=in_place):
            return entry
    for at, (entry, is_synced) in enumerate(open_entries):
        older = (w for w, synced in open_entries[at + 1 :] if synced)
        before = next((w for w in older if w.file_bytes <= entry.file_bytes), NOTHING_WRITTEN)
        if _check_open_shard(run, shard, entry, entry if is_synced else before, compression):
            return entry
    return NOTHING_WRITTEN


def _check_sealed_shard(
    run: RunDirectory,
    shard: int,
    sealed: SealedShard,
    pattern: ShardPattern,
    compression: Compression,
    *,
    in_place: bool,
) -> bool:
    """Return whether a sealed shard has the right sizes; its content was synced before."""
    found = run.storage.size(run.shard_path(shard))
    if found is None and in_place:
        found = run.storage.size(os.path.join(run.directory, pattern.shard_file(shard)))
    if found != sealed.file_bytes:
        return False
    ends = _read_index_rows(run.index_path(shard), compression)
    if ends is None:
        return False
    if compression != "none":
        return (int(ends[-1, 1]) if len(ends) else 0) == sealed.num_records
    payload_bytes = sealed.file_bytes - FRAME_BYTES * len(ends)
    last = int(ends[-1, 0]) if len(ends) else 0
    expected = sealed.num_records, sealed.payload_bytes, sealed.file_bytes
    return expected == (len(ends), payload_bytes, last)


def _check_open_shard(
    run: RunDirectory, shard: int, entry: Written, before: Written, compression: Compression
) -> bool:
    """Return whether an open shard and its index match an entry; if so, cut off the rest.

    Args:
        run: The run directory.
        shard: Number of the shard.
        entry: What the files should contain.
        before: What of it was synced, and need not be read.
        compression: Compression of the shard.
    """
    path, index_path = run.shard_path(shard), run.index_path(shard)
    row_bytes = 8 * columns(compression)
    index_bytes = row_bytes * entry.num_pieces
    if not entry.num_pieces:
        return True
    if _has_hard_link(path) or _has_hard_link(index_path):
        return False
    if (run.storage.size(path) or 0) < entry.file_bytes:
        return False
    if (run.storage.size(index_path) or 0) < index_bytes:
        return False
    expected_row = [entry.file_bytes]
    if compression != "none":
        expected_row.append(entry.num_records)
    elif (entry.num_records, entry.stream_bytes) != (entry.num_pieces, entry.file_bytes):
        return False
    ends = _read_index_rows(index_path, compression, entry.num_pieces)
    if ends is None or ends[-1].tolist() != expected_row:
        return False
    if entry != before:
        crc_before = before.crc32c if compression == "none" else before.file_crc32c or 0
        wanted = entry.crc32c if compression == "none" else entry.file_crc32c
        try:
            if _extended_crc(path, crc_before, before.file_bytes, entry.file_bytes) != wanted:
                return False
        except StorageError:
            return False  # unreadable bytes are written again
    for each, num_bytes in ((path, entry.file_bytes), (index_path, index_bytes)):
        run.storage.append(each, num_bytes).close()
        run.storage.sync(each)
    return True


def _read_index_rows(
    index_path: str, compression: Compression, num_rows: int | None = None
) -> NDArray[np.uint64] | None:
    """Return the first rows of a shard's index, or all of them; None if they are invalid.

    Returns:
        uint64[n, 1], or uint64[n, 2] for a compressed shard: see
        :meth:`shardwriter.writing.run_directory.RunDirectory.index_columns`.
    """
    width = columns(compression)
    count = -1 if num_rows is None else num_rows * width
    with storage_errors(index_path):
        try:
            with open(index_path, "rb") as file:
                numbers = np.fromfile(file, "<u8", count)
        except FileNotFoundError:
            return None
    if len(numbers) % width or (num_rows is not None and len(numbers) != count):
        return None
    rows: NDArray[np.uint64] = numbers.reshape(-1, width)
    signed = rows.astype(np.int64)  # invalid offsets are negative
    ascends = (signed[:1] >= 0).all() and (np.diff(signed, axis=0) > 0).all()
    return rows if bool(ascends) else None


def _has_hard_link(path: str) -> bool:
    """Return whether a file has a second hard link, so that appending changes another file."""
    try:
        return os.stat(path, follow_symlinks=False).st_nlink > 1
    except OSError:
        return False


def _extended_crc(path: str, crc: int, begin: int, end: int) -> int:
    with storage_errors(path), open(path, "rb", buffering=0) as file:
        file.seek(begin)
        while begin < end:
            data = file.read(min(_READ_BYTES, end - begin))
            if not data:
                return -1
            crc = extend_crc32c(crc, data)
            begin += len(data)
    return crc


# -- retry the failed items ------------------------------------------------------------------------


def _retry_failed(
    job: Job, run: RunDirectory, manifest: Manifest, errors: Mapping[int, Mapping[str, Any]]
) -> ResumeState:
    """Write the base for retrying the failed items of a finished dataset; return its state.

    Shards without failed items stay in place.
    """
    num_shards = job.num_shards
    base = Base(
        0,
        sealed=dict(enumerate(manifest.shards)),
        in_place=True,
        dali_index=has_dali(run, manifest),
        gaps=to_runs(manifest.gaps),
        errors=errors,
        stats=stats_from_manifest(job, manifest).to_state(),
        num_items=manifest.num_items,
    )
    base = replace(without_errors(base, num_shards), attempt=1)
    index = Index(os.path.join(run.directory, manifest.pattern.index_file))
    for shard in base.sealed:
        path = run.index_path(shard)
        file = run.storage.create(path)
        file.write(index.rows(shard))
        run.storage.sync(path)
        file.close()
    run.write_base(base)
    return state_from_base(base, num_shards)


def without_errors(base: Base, num_shards: int) -> Base:
    """Return a base without errors, in which the shards of the failed items start over.

    Other records of these shards are not counted again.
    """
    again = frozenset(base.errors)
    shards = {item % num_shards for item in again}
    counted_to = dict(base.counted_to)
    for shard in shards & set(base.sealed):
        counted_to[shard] = _ALL_ITEMS
    return replace(
        base,
        open_shards={s: w for s, w in base.open_shards.items() if s not in shards},
        sealed={s: w for s, w in base.sealed.items() if s not in shards},
        counted_to=counted_to,
        uncounted=base.uncounted | again,
        gaps=to_runs(gap for gap in base.gap_items if gap not in again),
        errors={},
    )


def state_from_base(base: Base, num_shards: int) -> ResumeState:
    """Return the resume state of a base."""
    return ResumeState(
        num_shards,
        base.attempt,
        base.open_shards,
        base.sealed,
        np.array(base.gap_items, np.int64),
        base.errors,
        CountedItems(num_shards, base.counted_to, base.uncounted),
        base.stats,
        base.num_items,
        base.dali_index,
    )


def _check_file_sizes(run: RunDirectory, manifest: Manifest) -> None:
    """Raise ManifestError if the index or a shard has not the size in the manifest."""
    files = {manifest.pattern.index_file: manifest.index.file_bytes}
    for shard, sealed in enumerate(manifest.shards):
        files[manifest.pattern.shard_file(shard)] = sealed.file_bytes
    for file_name, file_bytes in files.items():
        path = os.path.join(run.directory, file_name)
        found = run.storage.size(path)
        if found != file_bytes:
            raise ManifestError(
                f"the file has {'no' if found is None else f'{found:,}'} bytes; the manifest says "
                f"{file_bytes:,}",
                path=path,
                hint="--overwrite writes the dataset again",
            )


def stats_from_manifest(job: Job, manifest: Manifest) -> RecordStats:
    """Return the record statistics of a manifest."""
    labels = job.record_encoder().labels
    warnings = DataWarnings(from_manifest(manifest.metadata))
    if isinstance(job.source, RecordSource) and job.options.map is None:
        return RecordStats({}, labels, warnings)  # records are copied unread
    features = manifest.features
    if manifest.labels is not None:
        name = manifest.labels["feature"]
        kind = features[name].type.kind if name in features else None
        labels = LabelCounts.from_json(manifest.labels, job.num_shards, kind)
    elif labels.feature in features and features[labels.feature].present:
        labels.too_many = True  # no counts in the manifest though records have the label
    return RecordStats(record_stats_from_json(manifest.schema), labels, warnings)


def read_retries(manifest: Manifest) -> list[Retry]:
    """Return the manifest's entries of items that were retried with other code."""
    try:
        return list(json_shape.check(manifest.metadata.get("retries", []), list[Retry]))
    except ValueError:
        return []


def has_dali(run: RunDirectory, manifest: Manifest) -> bool:
    """Return whether a finished dataset has .idx files."""
    path = os.path.join(run.directory, manifest.pattern.shard_file(0))
    return os.path.exists(path + DALI_INDEX_SUFFIX)


def read_error_log(run: RunDirectory) -> dict[int, dict[str, Any]]:
    """Return the error log of a finished dataset, by item; empty if there is none.

    Raises:
        ManifestError: It is invalid.
        StorageError: It cannot be read.
    """
    path = _error_log_path(run)
    try:
        lines = (run.storage.read(path) or b"").decode("ascii").splitlines()
        entries = [json_shape.read(line, _ErrorLogEntry) for line in lines]
        return {entry["index"]: dict(entry) for entry in entries}
    except ValueError as error:
        raise ManifestError(
            f"not a valid error log: {error}",
            path=path,
            hint="restore the error log of the dataset, or delete it",
        ) from None


class _ErrorLogEntry(TypedDict):
    """A line of the error log, ``<name>.errors.jsonl``."""

    index: Count


def _error_log_path(run: RunDirectory) -> str:
    return os.path.join(run.directory, error_log_file(run.name))
