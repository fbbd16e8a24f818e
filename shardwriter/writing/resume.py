"""Resume: going on with a run that was stopped, or trying items again that failed."""

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
from shardwriter.sources import RecordSource, read_piece
from shardwriter.storage import inputs_for, storage_errors
from shardwriter.writing.engine import ErrorBudget
from shardwriter.writing.job import Job
from shardwriter.writing.journal import Base, Retry, RunFacts, Snapshot, read_facts
from shardwriter.writing.options import RunOptions
from shardwriter.writing.publication import begin_run, check_output, finished_manifest
from shardwriter.writing.resume_state import CountedItems, FinishedRecords, ResumeState
from shardwriter.writing.run_directory import RunDirectory

# Recovery: what of a run that was stopped can be gone on with.
#
# Of each worker the newest snapshot counts whose journal is there. It says what was learnt, and
# what each shard should hold. A shard is held against that: bytes behind the last checkpoint are
# read and their CRC compared. Where the file is not what a snapshot says (its end was never
# written, or zeros stand there) an older one is asked, and at last the shard is begun again. What
# was counted stays counted either way: :class:`shardwriter.writing.resume_state.CountedItems` tells
# which items that are.
#
# What is kept is brought to the disk and noted as the base of the next attempt, before that one
# adds anything. So attempts do not build on what a power cut can still take away.

_READ_BYTES: Final = 1 << 22
_ALL: Final = 2**62  # in front of it are all items


def recover(
    run: RunDirectory,
    pattern: ShardPattern,
    compression: Compression,
    *,
    label: str,
    num_items: int | None = None,
    retry_errors: bool = False,
    can_continue: bool = True,
) -> ResumeState:
    """Find out what can be kept, cut off the rest, and note it as the base of a new attempt.

    Args:
        run: The claimed run directory.
        pattern: The files' final names, and with them N.
        compression: Of the shards.
        label: The feature whose values are counted.
        num_items: T; None where only the end of the source tells.
        retry_errors: Whether items that gave an error are to be tried again.
        can_continue: Whether the new attempt can go on inside of a shard. What it begins again
            must not count as being on the disk.

    Raises:
        SchemaConflict: Two workers have seen a feature with types that do not go together.
        StorageError: The directory can not be read, or what is kept can not be synced.
    """
    base = _read(run, pattern, compression, label, _ALL if num_items is None else num_items)
    if retry_errors:
        base = without_errors(base, pattern.num_shards)
    if not can_continue:
        base = replace(base, open_shards={})
    base = replace(base, attempt=base.attempt + 1)
    run.write_base(base)
    return state_from_base(base, pattern.num_shards)


def state_from_base(base: Base, num_shards: int) -> ResumeState:
    """Return where an attempt starts from that begins with a base."""
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


def without_errors(base: Base, num_shards: int) -> Base:
    """Have the items tried again that gave an error: their shards are begun again.

    Their other records are not counted again.
    """
    again = frozenset(base.errors)
    shards = {item % num_shards for item in again}
    counted_to = dict(base.counted_to)
    for shard in shards & set(base.sealed):
        counted_to[shard] = _ALL
    return replace(
        base,
        open_shards={s: w for s, w in base.open_shards.items() if s not in shards},
        sealed={s: w for s, w in base.sealed.items() if s not in shards},
        counted_to=counted_to,
        uncounted=base.uncounted | again,
        gaps=to_runs(gap for gap in base.gap_items if gap not in again),
        errors={},
    )


class _Told(NamedTuple):
    """What a snapshot says of a shard, and whether that was brought to the disk."""

    entry: Written | SealedShard
    is_synced: bool


def _tell(
    told: dict[int, list[_Told]],
    shards: Mapping[int, Written] | Mapping[int, SealedShard],
    *,
    is_synced: bool,
) -> None:
    for shard, entry in shards.items():
        told.setdefault(shard, []).append(_Told(entry, is_synced))


def _read(
    run: RunDirectory, pattern: ShardPattern, compression: Compression, label: str, max_items: int
) -> Base:
    num_shards = pattern.num_shards
    base = run.read_base()
    if not base.fits_job(num_shards, max_items):
        raise run.broken("base")
    if run.adopted:
        raise run.broken("files.json", "it is there before all shards are finished")
    gaps, errors = set(base.gap_items), dict(base.errors)
    growing: dict[int, Written] = {}
    sealed: dict[int, SealedShard] = {}
    counted_to = dict(base.counted_to)
    uncounted = set(base.uncounted)
    learnt = RecordStats.of(label, num_shards)
    if base.stats is not None:
        learnt.merge(RecordStats.from_state(base.stats, num_shards))
    num_items = base.num_items
    told: dict[int, list[_Told]] = {}  # by shard, the newest first
    for worker in run.workers(base.attempt):
        facts = read_facts(run.read(f"journal-{base.attempt}-{worker}"), max_items)
        for fact in facts.facts:
            _take_fact(fact, gaps, errors, learnt)
        found = [
            snapshot
            for snapshot in run.read_snapshots(base.attempt, worker)
            if snapshot.journal_bytes <= facts.num_bytes
            and snapshot.fits_job(num_shards, max_items)
        ]
        if not found:
            continue
        newest = found[0]
        learnt.merge(RecordStats.from_state(newest.stats, num_shards))
        num_items = newest.num_items if num_items is None else num_items
        for shard in newest.open_shards:
            counted_to[shard] = max(counted_to.get(shard, 0), newest.counted_to)
        for shard in newest.sealed:
            counted_to[shard] = _ALL
        uncounted -= {i for i in uncounted if _was_counted(i, newest, num_shards)}
        for snapshot in found:
            _tell(told, snapshot.open_shards, is_synced=snapshot.is_synced)
            _tell(told, snapshot.sealed, is_synced=True)
    _tell(told, base.open_shards, is_synced=True)
    _tell(told, base.sealed, is_synced=True)
    counted_to |= dict.fromkeys(base.sealed, _ALL)
    for shard, entries in told.items():
        most = num_shard_items(max_items, num_shards, shard)
        stands = _standing_shards(
            run,
            shard,
            [each for each in entries if each.entry.num_records <= most],
            pattern,
            compression,
            in_place=base.in_place and shard in base.sealed,
        )
        if isinstance(stands, SealedShard):
            sealed[shard] = stands
            counted_to.pop(shard, None)
        elif stands.num_pieces:
            growing[shard] = stands
    return Base(
        base.attempt,
        growing,
        sealed,
        base.in_place,
        base.dali_index,
        counted_to,
        frozenset(uncounted),
        to_runs(sorted(gaps)),
        errors,
        learnt.to_state(),
        num_items,
    )


def _take_fact(
    fact: Mapping[str, Any],
    gaps: set[int],
    errors: dict[int, Mapping[str, Any]],
    learnt: RecordStats,
) -> None:
    if "skip" in fact:
        gaps.add(fact["skip"])
        if fact["reason"] == "error":
            errors[fact["skip"]] = fact["error"]
    elif "types" in fact:
        features = {name: FeatureSummary.from_json(e) for name, e in fact["types"].items()}
        learnt.merge_types(features)


def _was_counted(item_index: int, snapshot: Snapshot, num_shards: int) -> bool:
    shard = item_index % num_shards
    grows = shard in snapshot.open_shards and item_index < snapshot.counted_to
    return grows or shard in snapshot.sealed


def _standing_shards(
    run: RunDirectory,
    shard: int,
    told: Iterable[_Told],
    pattern: ShardPattern,
    compression: Compression,
    *,
    in_place: bool,
) -> Written | SealedShard:
    """Return the first entry that the shard's files bear out."""
    growing: list[tuple[Written, bool]] = []
    for entry, is_synced in told:
        if isinstance(entry, Written):
            growing.append((entry, is_synced))
        elif _is_whole(run, shard, entry, pattern, compression, in_place=in_place):
            return entry
    for place, (entry, is_synced) in enumerate(growing):
        older = (w for w, synced in growing[place + 1 :] if synced)
        before = next((w for w in older if w.file_bytes <= entry.file_bytes), NOTHING_WRITTEN)
        if _bears_out(run, shard, entry, entry if is_synced else before, compression):
            return entry
    return NOTHING_WRITTEN


def _is_whole(
    run: RunDirectory,
    shard: int,
    sealed: SealedShard,
    pattern: ShardPattern,
    compression: Compression,
    *,
    in_place: bool,
) -> bool:
    """Tell whether a finished shard is there; all of it was brought to the disk before."""
    found = run.storage.size(run.shard_path(shard))
    if found is None and in_place:
        found = run.storage.size(os.path.join(run.directory, pattern.shard_file(shard)))
    if found != sealed.file_bytes:
        return False
    ends = _rows(run.index_path(shard), compression)
    if ends is None:
        return False
    if compression != "none":
        return (int(ends[-1, 1]) if len(ends) else 0) == sealed.num_records
    payload_bytes = sealed.file_bytes - FRAME_BYTES * len(ends)
    last = int(ends[-1, 0]) if len(ends) else 0
    told = sealed.num_records, sealed.payload_bytes, sealed.file_bytes
    return told == (len(ends), payload_bytes, last)


def _rows(
    index_path: str, compression: Compression, num_rows: int | None = None
) -> NDArray[np.uint64] | None:
    """Return the first rows of a shard's index, or all of them; None where they can not be true.

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
    signed = rows.astype(np.int64)  # what is no offset is below 0
    ascends = (signed[:1] >= 0).all() and (np.diff(signed, axis=0) > 0).all()
    return rows if bool(ascends) else None


def _bears_out(
    run: RunDirectory, shard: int, entry: Written, before: Written, compression: Compression
) -> bool:
    """Tell whether a growing shard and its index hold what an entry says, and cut off the rest.

    Args:
        run: Where they are.
        shard: Its number.
        entry: What they should hold.
        before: What of it is known to be on the disk.
        compression: Of the shard.
    """
    path, index_path = run.shard_path(shard), run.index_path(shard)
    row_bytes = 8 * columns(compression)
    index_bytes = row_bytes * entry.num_pieces
    if not entry.num_pieces:
        return True
    if _has_another_name(path) or _has_another_name(index_path):
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
    ends = _rows(index_path, compression, entry.num_pieces)
    if ends is None or ends[-1].tolist() != expected_row:
        return False
    if entry != before:
        known = before.crc32c if compression == "none" else before.file_crc32c or 0
        wanted = entry.crc32c if compression == "none" else entry.file_crc32c
        try:
            if _extended_crc(path, known, before.file_bytes, entry.file_bytes) != wanted:
                return False
        except StorageError:
            return False  # bytes that can not be read can be written again
    for each, num_bytes in ((path, entry.file_bytes), (index_path, index_bytes)):
        run.storage.append(each, num_bytes).close()
        run.storage.sync(each)
    return True


def _has_another_name(path: str) -> bool:
    """Return whether a file has a hard link: what is appended to it would change another file."""
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


# Making records again that stand already, to find out whether anything has changed.
#
# Neither run.json nor a manifest can know all that decides bytes: a library, a function that the
# map calls, what is in a list that was handed over.

_CHECKED_SHARDS: Final = 64


def check_resumable(job: Job) -> None:
    """Refuse to go on with a source that can be read once.

    Raises:
        OptionError: It is one.
    """
    if not job.source.stable:
        what = "the source comes in another order each time"
        if not job.source.notes:
            what = "an iterator can be read once"
        raise OptionError(
            f"{what}, so nobody knows where a run with it has stopped",
            hint="give a function that makes it, or something that can be indexed",
        )


def some_records(
    job: Job,
    run: RunDirectory,
    num_records: Mapping[int, int],
    gaps: Sequence[int] | NDArray[np.int64],
    *,
    is_finished: bool = False,
) -> dict[int, tuple[int, int]]:
    """Return size and CRC-32C of the last record of some shards, by item.

    Args:
        job: The job.
        run: Where the shards are; those that are not stand under their final names.
        num_records: Of each shard.
        gaps: Sorted items that give no record.
        is_finished: Whether all of them do: what is in the run directory is of no account.
    """
    compression = job.packing.compression
    known = Gaps(gaps, job.num_shards)
    shards = sorted(shard for shard, count in num_records.items() if count)
    step = max(1, len(shards) // _CHECKED_SHARDS)
    found = {}
    for shard in shards[::step][:_CHECKED_SHARDS]:
        path = run.shard_path(shard)
        if not is_finished and os.path.exists(path):
            begin, end = last_block_range(run.index_columns(shard, compression)[0], compression)
        else:
            path, begin, end = _last_in_place(run, job.pattern, shard)
        record = read_last_record(path, begin, end, compression)
        index = known.item_index(shard, num_records[shard] - 1)
        found[index] = len(record), crc32c(record)
    return found


def last_block_range(ends: NDArray[np.uint64], compression: Compression) -> tuple[int, int]:
    """Return where the last frame, member or block of a shard begins and ends.

    Args:
        ends: uint64[n]: where each of them ends; there is one at least.
        compression: What the shard is compressed with.
    """
    first = len(ZLIB_HEAD) if compression == "zlib" else 0
    return int(ends[-2]) if len(ends) > 1 else first, int(ends[-1])


def read_last_record(path: str, begin: int, end: int, compression: Compression) -> bytes:
    """Return the last record of a piece of a shard.

    Args:
        path: The shard.
        begin: Offset of the piece.
        end: Offset behind it.
        compression: What the shard is compressed with.

    Raises:
        CorruptFile: There is none, or it is damaged.
        StorageError: The file can not be read.
    """
    with storage_errors(path):
        file_bytes = inputs_for(path).stat(path).st_size
    records = []
    if 0 <= begin < end <= file_bytes:
        records = read_piece(path, begin, end, compression)
    if not records:
        raise CorruptFile(
            f"the index says that its last record is in bytes {begin:,} to {end:,}, and there is "
            "none",
            kind="index",
            path=path,
            offset=begin,
            hint="write the dataset again (--overwrite)",
        )
    return records[-1]


def _last_in_place(run: RunDirectory, pattern: ShardPattern, shard: int) -> tuple[str, int, int]:
    index = Index(os.path.join(run.directory, pattern.index_file))
    place = index.locate(shard, index.num_records(shard) - 1)
    return os.path.join(run.directory, pattern.shard_file(shard)), place.begin, place.end


def check_records(job: Job, records: Mapping[int, tuple[int, int]]) -> None:
    """Make records again, of a source of which any item is at hand.

    Raises:
        RunChanged: One is another now.
    """
    indices = np.array(sorted(records), np.int64)
    for index, item in job.selection.items_at(indices):
        job.check_record(index, item, records[index])


# What run.json keeps of a run.


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


# A finished dataset: whether it is of the same job, and how items that failed are tried again.

_CODE: Final = "an option that decides bytes, or code,"


def resume_finished(
    job: Job,
    run: RunDirectory,
    manifest: Manifest,
    run_options: RunOptions,
    notify: Callable[[str], None],
) -> ResumeState | Manifest:
    """Find out what is still to be done of a finished dataset.

    Returns:
        The manifest where that is nothing; else where to begin.

    Raises:
        OutputExists: It is of another job.
        RunChanged: It has other records than the job gives now.
        TooManyErrors: More of its items gave an error than may.
    """
    check_resumable(job)
    errors = read_ledger(run)
    is_changed = _check_job(job, run, manifest, run_options, has_errors=bool(errors))
    _check_files(run, manifest)
    retry = run_options.retry_errors
    if strange := [index for index in errors if index not in manifest.gaps]:
        raise ManifestError(
            f"it lists item {strange[0]:,}, which the manifest does not know to have failed",
            path=_ledger_path(run),
            hint="restore the list that came with the dataset, or delete it",
        )
    retries = retries_of(manifest)
    checks = {}
    if not (is_changed or retries):  # else records stand that other code has made
        num_records = {shard: sealed.num_records for shard, sealed in enumerate(manifest.shards)}
        checks = some_records(job, run, num_records, manifest.gaps, is_finished=True)
        if job.selection.random_access:
            check_records(job, checks)
    if not retry or not errors:
        if is_changed:
            notify("no item of it gave an error, so nothing is made with the changed map")
        ErrorBudget(run_options, ResumeState(job.num_shards, errors=errors)).check()
        if retry and manifest.gaps and not os.path.exists(_ledger_path(run)):
            notify(f"there is no {error_log_file(run.name)}, so no item is known to have failed")
        if run_options.dali_index and not has_dali(run, manifest):
            notify("`shardwriter index --idx` makes the .idx files of a dataset that is finished")
        return manifest
    if is_changed:
        retries.append({"items": to_runs(sorted(errors)), "job": manifest.job})
    # Before anything is changed: it refuses what the files do not account for.
    standing = FinishedRecords(run.directory, manifest, errors)
    told = {"retries": retries} if retries else {}
    begin_run(run, {**run_facts(job), "standing_job": manifest.job, **told})
    shards = {index % job.num_shards for index in errors}
    notify(
        f"{len(errors):,} items are tried again; {len(shards):,} of {job.num_shards:,} shards are "
        "written again"
    )
    kept = replace(
        _try_again(job, run, manifest, errors),
        finished_records=standing,
        retries=retries,
    )
    return kept if job.selection.random_access else replace(kept, checks=checks)


def find_job_change(job: Job, manifest: Manifest) -> str | None:
    """Name what a job has otherwise than the job of a manifest had; None where it is the same."""
    if manifest.job == job.digest():
        return None
    now = {
        "the number of shards, or the names of the files,": job.pattern.template,
        "the compression": job.packing.to_json(),
        "--order, --key, --split, --shuffle or --seed": job.order_json(),
        "the source": job.source_json(),
    }
    before = [manifest.pattern.template, manifest.compression, manifest.order, manifest.source]
    differs = [what for (what, new), old in zip(now.items(), before, strict=True) if new != old]
    return differs[0] if differs else _CODE


def retries_of(manifest: Manifest) -> list[Retry]:
    """Return what a manifest tells of items that other code has made again."""
    try:
        return list(json_shape.check(manifest.metadata.get("retries", []), list[Retry]))
    except ValueError:
        return []


def _check_job(
    job: Job,
    run: RunDirectory,
    manifest: Manifest,
    run_options: RunOptions,
    *,
    has_errors: bool,
) -> bool:
    """Refuse the dataset of another job; return whether it is accepted that its map was changed."""
    what = find_job_change(job, manifest)
    if what is None:
        return False
    accept = "--retry-errors --accept-changed-map"
    can_accept = what == _CODE and job.options.map is not None
    if can_accept and run_options.accept_changed_map:
        if job.num_items in (None, manifest.num_items):
            return True
        raise OutputExists(
            f"a dataset {run.name!r} is there already, of {manifest.num_items:,} items, and there "
            f"are {job.num_items:,} now: more than the map was changed",
            path=os.path.join(run.directory, manifest.pattern.manifest_file),
            hint="give the options that it was written with; or --overwrite replaces it",
        )
    raise OutputExists(
        f"a dataset {run.name!r} is there already, and it is of another job: {what} is not what it "
        "was",
        path=os.path.join(run.directory, manifest.pattern.manifest_file),
        hint="--overwrite replaces it once the new one is whole"
        + ("; a source that was mended is another source" if what == "the source" else "")
        + (
            f"; where only the code of --map was changed, {accept} keeps its records and makes the "
            "items that gave an error"
            if can_accept and has_errors
            else ""
        ),
    )


def has_dali(run: RunDirectory, manifest: Manifest) -> bool:
    """Tell whether a finished dataset has .idx files."""
    path = os.path.join(run.directory, manifest.pattern.shard_file(0))
    return os.path.exists(path + DALI_INDEX_SUFFIX)


def _ledger_path(run: RunDirectory) -> str:
    return os.path.join(run.directory, error_log_file(run.name))


class _LedgerEntry(TypedDict):
    """A line of ``<name>.errors.jsonl``."""

    index: Count


def read_ledger(run: RunDirectory) -> dict[int, dict[str, Any]]:
    """Return the entries of a finished dataset's ledger, by item; none where it has no ledger.

    Raises:
        ManifestError: It is no ledger.
        StorageError: It can not be read.
    """
    path = _ledger_path(run)
    try:
        lines = (run.storage.read(path) or b"").decode("ascii").splitlines()
        entries = [json_shape.read(line, _LedgerEntry) for line in lines]
        return {entry["index"]: dict(entry) for entry in entries}
    except ValueError as error:
        raise ManifestError(
            f"not a list of errors that can be used: {error}",
            path=path,
            hint="restore the list that came with the dataset, or delete it",
        ) from None


def _try_again(
    job: Job, run: RunDirectory, manifest: Manifest, errors: Mapping[int, Mapping[str, Any]]
) -> ResumeState:
    """Have the items of a finished dataset made again that gave an error.

    Shards without any of them stay where they are.
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


def _check_files(run: RunDirectory, manifest: Manifest) -> None:
    """Hold what is there against the manifest: sizes, and the index."""
    files = {manifest.pattern.index_file: manifest.index.file_bytes}
    for shard, sealed in enumerate(manifest.shards):
        files[manifest.pattern.shard_file(shard)] = sealed.file_bytes
    for file_name, file_bytes in files.items():
        path = os.path.join(run.directory, file_name)
        found = run.storage.size(path)
        if found != file_bytes:
            raise ManifestError(
                f"it has {'no' if found is None else f'{found:,}'} bytes, and the manifest says "
                f"{file_bytes:,}",
                path=path,
                hint="--overwrite writes the dataset again",
            )


def stats_from_manifest(job: Job, manifest: Manifest) -> RecordStats:
    """Return what a manifest tells of the records that a job has made."""
    labels = job.record_encoder().labels
    warnings = DataWarnings(from_manifest(manifest.metadata))
    if isinstance(job.source, RecordSource) and job.options.map is None:
        return RecordStats({}, labels, warnings)  # nothing looked into them
    features = manifest.features
    if manifest.labels is not None:
        name = manifest.labels["feature"]
        kind = features[name].type.kind if name in features else None
        labels = LabelCounts.from_json(manifest.labels, job.num_shards, kind)
    elif labels.feature in features and features[labels.feature].present:
        labels.too_many = True  # or they could not be told apart
    return RecordStats(record_stats_from_json(manifest.schema), labels, warnings)


# An unfinished run: whether it is of the same job, and how it is gone on with.
#
# The bytes at the end are those of a run that was never stopped. So everything that decides them
# must be what it was: run.json has the options, the source and the code of callables as they were,
# and a difference is refused with its name.

_NAMES: Final = {
    "compression": "the compression",
    "files": "the number of shards, or the names of the files,",
    "filter": "--filter",
    "indices": "--indices",
    "label": "--label",
    "limit": "--limit",
    "map": "--map",
    "names": "--names",
    "num_shards": "the number of shards",
    "order": "--order, --key, --split, --shuffle or --seed",
    "schema": "--schema",
}
_HASH: Final = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
_OLD_FLOAT: Final = ("float", "float64")  # what lists of float32 were called
_OVERWRITE: Final = "--overwrite discards the run and starts again"
_START_AGAIN: Final = f"put it back as it was, or {_OVERWRITE}"


def go_on(
    job: Job,
    run: RunDirectory,
    facts: Mapping[str, Any],
    run_options: RunOptions,
    notify: Callable[[str], None],
) -> ResumeState:
    """Take up an unfinished run.

    Args:
        job: The same job as that of the run.
        run: Its directory.
        facts: What run.json would say now.
        run_options: Whether items that gave an error are tried again, and who writes.
        notify: Told how much is kept.

    Raises:
        RunChanged: The job is another, or gives other records.
        SchemaConflict: Two workers have written records whose types do not go together.
    """
    check_resumable(job)
    if run.is_beam_run:
        raise RunChanged(
            f"the unfinished run of {run.name!r} is a Beam job's",
            path=run.path,
            hint=f"resume it with Beam; or {_OVERWRITE}",
        )
    before = run.facts()
    check_same(before, facts)
    label = job.record_encoder().labels.feature
    try:
        kept = recover(
            run,
            job.pattern,
            job.packing.compression,
            label=label,
            num_items=job.num_items if job.selection.random_access else None,
            retry_errors=run_options.retry_errors,
            can_continue=run_options.backend == "native",
        )
    except SchemaConflict as error:
        # A map that is mended does not mend the records that stand in the shards.
        error.hint = f"what the run has written so far has both: {_OVERWRITE}"
        raise
    kept = replace(kept, finished_records=_standing(run, before), retries=before.get("retries", []))
    checks = {}
    if not kept.retries:  # else records stand that other code has made
        num_records = {shard: sealed.num_records for shard, sealed in kept.sealed.items()}
        num_records |= {shard: written.num_records for shard, written in kept.open_shards.items()}
        checks = some_records(job, run, num_records, kept.gaps)
    if job.selection.random_access:
        check_records(job, checks)
    else:
        kept = replace(kept, checks=checks)
    for note in _told(job, kept):
        notify(note)
    return kept


def _standing(run: RunDirectory, facts: RunFacts) -> FinishedRecords | None:
    """Return the records that a run keeps of the dataset that it replaces; None for other runs.

    Raises:
        RunChanged: That dataset is no longer there.
    """
    if "standing_job" not in facts:
        return None
    manifest = finished_manifest(run)
    if manifest is None or manifest.job != facts["standing_job"]:
        raise RunChanged(
            f"the dataset {run.name!r}, whose failed items were tried again, is no longer there",
            path=run.path,
            hint=_OVERWRITE,
        )
    return FinishedRecords(run.directory, manifest, read_ledger(run))


def check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with the run of another job.

    Args:
        before: What run.json says.
        now: What it would say.

    Raises:
        RunChanged: Names the first field that differs.
    """
    # As both come out of a file.
    now = canonical.loads(canonical.dumps(dict(now)))
    before = _with_types_of_today(before)
    for part in ("options", "source", "plan", "job"):
        for field, old, new in _differences(before.get(part), now.get(part), (part,)):
            hint = _START_AGAIN
            if field[:2] == ("options", "map") and old and new:
                hint = (
                    "put it back and finish the run; then --retry-errors --accept-changed-map "
                    f"makes the items that gave an error with the changed map. Or {_OVERWRITE}"
                )
            raise RunChanged(f"{_what(field)}: {_phrase(old)} then, {_phrase(new)} now", hint=hint)


def _with_types_of_today(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a run with its types as they are called now: float32, not float64."""
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


def _differences(
    old: Any, new: Any, field: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        # A digest says less than what it was made of.
        for key in sorted(old.keys() | new.keys(), key=lambda key: (key == "digest", key)):
            yield from _differences(old.get(key), new.get(key), (*field, key))
    elif old != new:
        yield field, old, new


def _what(field: tuple[str, ...]) -> str:
    """Name a field of run.json as a person knows it, and as it stands there."""
    part, *rest = field
    path = clean(".".join(field))
    if part == "source":
        return f"the source is not what it was when the run began ({path})"
    if part == "options" and rest and rest[0] in _NAMES:
        code = "the code of " if rest[-1] == "sha256" else ""
        return f"{code}{_NAMES[rest[0]]} is not what it was when the run began ({path})"
    return f"the run that is there is of another job ({path})"


def _phrase(value: Any) -> str:
    text = _HASH.sub(r"\1...", canonical.dumps(value).strip())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _told(job: Job, kept: ResumeState) -> list[str]:
    share = "" if not job.num_items else f" of {job.num_items:,}"
    whole = len(kept.sealed)
    lines = [
        f"kept {kept.num_records:,} records ({kept.payload_bytes:,} bytes): {kept.num_done:,}"
        f"{share} items need not be done again, {whole:,} of {job.num_shards:,} shards are whole"
    ]
    if not job.selection.random_access and kept.num_done and not kept.is_complete:
        lines.append(
            "the source gives its items one after the other: those that are done are read again "
            "and dropped"
        )
    return lines


def find_resume_state(
    job: Job, run: RunDirectory, run_options: RunOptions, notify: Callable[[str], None]
) -> ResumeState | Manifest | None:
    """Find out where to go on.

    Returns:
        What is kept of an unfinished run; the manifest where all is done; None where nothing is.

    Raises:
        OutputExists: A dataset is there that is not of this job.
        RunChanged: So is an unfinished run.
    """
    if run.is_resumable:
        return go_on(job, run, run_facts(job), run_options, notify)
    manifest = finished_manifest(run)
    if manifest is None:
        check_output(run, overwrite=False, pattern=job.pattern)
        return None
    if manifest.job != job.digest() and _may_be_replaced(run, job):
        return None
    return resume_finished(job, run, manifest, run_options, notify)


def _may_be_replaced(run: RunDirectory, job: Job) -> bool:
    """Tell whether a run of this job had leave to overwrite, and came to nothing yet."""
    try:
        facts = run.facts()
    except StorageError:
        return False
    if "standing_job" in facts:
        return False  # it keeps the records that are there
    return facts.get("replaces") is not None and facts.get("job") == job.digest()
