"""Recovery: what of a run that was stopped can be gone on with.

Of each worker the newest snapshot counts whose journal is there. It says what was learnt, and what
each shard should hold. A shard is held against that: bytes behind the last checkpoint are read and
their CRC compared. Where the file is not what a snapshot says (its end was never written, or zeros
stand there) an older one is asked, and at last the shard is begun again. What was counted stays
counted either way: :class:`shardwriter.writing.resume_state.Counted` tells which items that are.

What is kept is brought to the disk and noted as the base of the next attempt, before that one adds
anything. So attempts do not build on what a power cut can still take away.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.assignment import num_shard_items, to_runs
from shardwriter.dataset.index import columns
from shardwriter.dataset.manifest import SealedShard
from shardwriter.dataset.naming import ShardPattern
from shardwriter.errors import StorageError
from shardwriter.formats.compression import Compression
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.formats.tfrecord import FRAME_BYTES, NOTHING_WRITTEN, Written
from shardwriter.schema.record_stats import Learnt
from shardwriter.schema.schema import FeatureSummary
from shardwriter.storage.local import storage_errors
from shardwriter.writing.journal import read_facts
from shardwriter.writing.resume_state import Counted, Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.snapshot import Base, Snapshot

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
) -> Kept:
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
        base = replace(base, growing={})
    base = replace(base, attempt=base.attempt + 1)
    run.write_base(base)
    return kept_of(base, pattern.num_shards)


def kept_of(base: Base, num_shards: int) -> Kept:
    """Return where an attempt starts from that begins with a base."""
    return Kept(
        num_shards,
        base.attempt,
        base.growing,
        base.sealed,
        np.array(base.gap_items, np.int64),
        base.errors,
        Counted(num_shards, base.counted_to, base.uncounted),
        base.learnt,
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
        growing={s: w for s, w in base.growing.items() if s not in shards},
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
    if not base.is_of(num_shards, max_items):
        raise run.broken("base")
    if run.adopted:
        raise run.broken("files.json", "it is there before all shards are finished")
    gaps, errors = set(base.gap_items), dict(base.errors)
    growing: dict[int, Written] = {}
    sealed: dict[int, SealedShard] = {}
    counted_to = dict(base.counted_to)
    uncounted = set(base.uncounted)
    learnt = Learnt.of(label, num_shards)
    if base.learnt is not None:
        learnt.merge(Learnt.from_state(base.learnt, num_shards))
    num_items = base.num_items
    told: dict[int, list[_Told]] = {}  # by shard, the newest first
    for worker in run.workers(base.attempt):
        facts = read_facts(run.read(f"journal-{base.attempt}-{worker}"), max_items)
        for fact in facts.facts:
            _take_fact(fact, gaps, errors, learnt)
        found = [
            snapshot
            for snapshot in run.read_snapshots(base.attempt, worker)
            if snapshot.journal_bytes <= facts.num_bytes and snapshot.is_of(num_shards, max_items)
        ]
        if not found:
            continue
        newest = found[0]
        learnt.merge(Learnt.from_state(newest.learnt, num_shards))
        num_items = newest.num_items if num_items is None else num_items
        for shard in newest.growing:
            counted_to[shard] = max(counted_to.get(shard, 0), newest.counted_to)
        for shard in newest.sealed:
            counted_to[shard] = _ALL
        uncounted -= {i for i in uncounted if _was_counted(i, newest, num_shards)}
        for snapshot in found:
            _tell(told, snapshot.growing, is_synced=snapshot.is_synced)
            _tell(told, snapshot.sealed, is_synced=True)
    _tell(told, base.growing, is_synced=True)
    _tell(told, base.sealed, is_synced=True)
    counted_to |= dict.fromkeys(base.sealed, _ALL)
    for shard, entries in told.items():
        most = num_shard_items(max_items, num_shards, shard)
        stands = _standing(
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
    learnt: Learnt,
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
    grows = shard in snapshot.growing and item_index < snapshot.counted_to
    return grows or shard in snapshot.sealed


def _standing(
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
