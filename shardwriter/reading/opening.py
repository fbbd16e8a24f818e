"""`open_dataset`: open a path for reading, after comparing its files with the manifest.

What record i is, and where, comes from the first of these that can be used:

    manifest + index file            sizes of all shards are compared with the manifest
    manifest, no usable index        an index is built in memory from the shards
    index file alone                 if it fits the shards
    shards alone                     records are counted, and read one of each shard in turn
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    AssignedLocations,
    Index,
    InterleavedLocations,
    Manifest,
    RecordLocations,
    assignment_error,
    check_value,
    is_url,
)
from shardwriter.errors import CorruptFile, ManifestError, SourceError, StorageError
from shardwriter.formats import FRAME_BYTES, ZLIB_TAIL_BYTES, Compression, frame_header
from shardwriter.reading.dataset import Core, Dataset
from shardwriter.sources import MAX_CACHED_BYTES, RecordReader, ShardSet, find_one, scan_frame_ends
from shardwriter.storage import FilePool, FileState, inputs_for, max_open_files, storage_errors
from shardwriter.writing import open_index, read_rows, shard_compression

_MAX_DEFLATE_RATIO: Final = 1032
_SLOW_OPEN_S: Final = 2.0  # opening that takes longer is noted
_VERIFY: Final = "`shardwriter verify` shows what is wrong"


def open_dataset(
    path: str | os.PathLike[str],
    *,
    decode: bool = True,
    check: bool = True,
    max_open_files: int | None = None,
    timings: bool = False,
    notify: Callable[[str], None] | None = None,
) -> Dataset:
    """Open a dataset for reading: a sequence of its records in source order.

    All shards must be there, with the sizes in the manifest. If the index file is missing or can
    not be used, an index is built in memory. Without a manifest, records are counted by the headers
    of their frames, and read one of each shard in turn.

    Args:
        path: The dataset: a folder with one dataset, ``dir/train``, ``dir/train@16``, a manifest, a
            glob of shards, one file, or a URL.
        decode: Return examples as dicts with the types of the schema; False: payloads, as bytes.
        check: Verify the CRC of every payload that is read.
        max_open_files: Shards that may be open at the same time; None: 128, or half of the
            process's limit of open files.
        timings: Measure the seconds of reading, checking and decoding; see ``Dataset.timings``.
        notify: Called with each note, a line of text; see ``Dataset.notes``.

    Raises:
        OptionError: The path matches nothing, or several datasets.
        SourceError: Shards are missing.
        ManifestError: The shards differ from the manifest.
        CorruptFile: There is no usable index, and a shard is damaged.
        StorageError: A file can not be read.
    """
    for name, value in (("decode", decode), ("check", check), ("timings", timings)):
        check_value(name, value, bool)
    started = monotonic()
    shard_set = find_one(os.fspath(path))
    shard_set.require_whole()
    paths = [shard for _, shard in shard_set.shards]
    if not paths:
        raise SourceError("there are no shards", path=os.fspath(path))
    manifest = shard_set.manifest if shard_set.is_complete else None
    notes = [*shard_set.notes, *_generations(shard_set)]
    with storage_errors(shard_set.directory):
        states = [FileState.of(stat) for stat in inputs_for(paths[0]).stats(paths)]
    if manifest is not None:
        _check_sizes(manifest, paths, states)
    pool = FilePool(paths, states, _checked_limit(max_open_files))
    index, places = _index_and_places(shard_set, manifest, states, notes)
    took_s = monotonic() - started
    if took_s > _SLOW_OPEN_S:
        notes.append(f"opening took {took_s:.0f} s")
    reader = RecordReader(index, pool, check=check, timings=timings)
    for note in notes if notify is not None else ():
        assert notify is not None
        notify(note)
    core = Core(
        os.fspath(path),
        shard_set.name,
        reader,
        places,
        manifest,
        tuple(notes),
        features={} if shard_set.manifest is None else shard_set.manifest.features,
        feature_lists=None if shard_set.manifest is None else shard_set.manifest.feature_lists,
        shard_numbers=[number for number, _ in shard_set.shards],
    )
    return Dataset(core, decode=decode)


def _checked_limit(asked: int | None) -> int | None:
    max_open_files(asked)
    return asked


def _generations(shard_set: ShardSet) -> list[str]:
    """Return a note for each other set of shards of the same name in the folder."""
    return [
        f"{len(shards):,} other shards of this name are not read ({pattern.template}); they are "
        "from an earlier write"
        for pattern, shards in shard_set.others.items()
    ]


def _check_sizes(manifest: Manifest, paths: Sequence[str], states: Sequence[FileState]) -> None:
    sizes = np.array([state.num_bytes for state in states], np.int64)
    expected = np.array([shard.file_bytes for shard in manifest.shards], np.int64)
    wrong = np.flatnonzero(sizes != expected)
    if len(wrong):
        first = int(wrong[0])
        others = f"; {len(wrong):,} shards differ" if len(wrong) > 1 else ""
        raise ManifestError(
            f"it has {sizes[first]:,} bytes, and the manifest says {expected[first]:,}{others}",
            path=paths[first],
            hint=f"{_VERIFY}, `shardwriter repair` recovers intact records",
        )


def _index_and_places(
    shard_set: ShardSet, manifest: Manifest | None, states: Sequence[FileState], notes: list[str]
) -> tuple[Index, RecordLocations]:
    if manifest is not None:
        index = _index_of(shard_set, manifest, notes)
        return index, AssignedLocations(manifest.num_shards, manifest.gaps, manifest.num_records)
    own = _lone_index(shard_set, states)
    index = own if own is not None else _counted(shard_set)
    counts = [index.num_records(shard) for shard in range(len(shard_set.shards))]
    num_records = sum(counts)
    if own is not None:
        notes.append("there is no manifest: the order of records is taken from the index file")
    elif shard_set.manifest is None:
        how = "counted by their headers" if index.compression == "none" else "read through"
        notes.append(f"there is no manifest, so the records were {how} first")
    # Counts that do not fit the assignment with the gaps may fit without them.
    for gaps in (index.gaps.astype(np.int64), np.zeros(0, np.int64)):
        num_items = num_records + len(gaps)
        are_items = bool(((gaps >= 0) & (gaps < num_items)).all())
        if are_items and assignment_error(counts, num_items, gaps.tolist()) is None:
            return index, AssignedLocations(len(counts), gaps, num_records)
    notes.append(
        f"shards hold {min(counts):,} to {max(counts):,} records: one record of each is read in "
        "turn until it ends, which may not be the order in which they were written"
    )
    return index, InterleavedLocations(counts)


def _index_of(shard_set: ShardSet, manifest: Manifest, notes: list[str]) -> Index:
    try:
        return open_index(shard_set.directory, manifest)
    except (ManifestError, StorageError) as error:
        why = error.message
    try:
        index = _counted(shard_set, manifest)
    except CorruptFile as error:
        error.message += f"; and the index can not be used ({why})"
        raise
    notes.append(
        f"the index file can not be used ({why}), so an index was built in memory; "
        "`shardwriter index` writes the file again"
    )
    for shard, entry in enumerate(manifest.shards):
        if index.num_records(shard) != entry.num_records:
            raise ManifestError(
                f"it has {index.num_records(shard):,} records, and the manifest says "
                f"{entry.num_records:,}",
                path=shard_set.shards[shard][1],
                hint=_VERIFY,
            )
    return index


def _lone_index(shard_set: ShardSet, states: Sequence[FileState]) -> Index | None:
    """Return the index file of a set without a manifest, if it fits the shards."""
    if shard_set.pattern is None or not shard_set.is_complete or is_url(shard_set.directory):
        return None
    path = os.path.join(shard_set.directory, shard_set.pattern.index_file)
    if not os.path.isfile(path):
        return None
    try:
        index = Index(path)
    except (ManifestError, OSError):
        return None
    if len(index.counts) != len(states) or index.compression != shard_compression(shard_set):
        return None
    tail_bytes = ZLIB_TAIL_BYTES if index.compression == "zlib" else 0
    for shard, state in enumerate(states):
        ends = index.ends(shard)
        last = int(ends[-1]) + tail_bytes if len(ends) else 0
        if last != state.num_bytes and (len(ends) or index.compression != "zlib"):
            return None
        is_in_order = _is_in_order(index, shard, state.num_bytes)
        if not is_in_order or not _has_frame(index, shard_set.shards[shard][1], ends):
            return None
    return index if bool((index.gaps[1:] > index.gaps[:-1]).all()) else None


def _has_frame(index: Index, path: str, ends: NDArray[np.uint64]) -> bool:
    """Return whether an uncompressed shard's last record begins at its offset in the index."""
    if index.compression != "none" or not len(ends):
        return True
    begin = int(ends[-2]) if len(ends) > 1 else 0
    header = frame_header(int(ends[-1]) - begin - FRAME_BYTES)
    with inputs_for(path).open(path) as file:
        return file.read_at(begin, len(header)) == header


def _is_in_order(index: Index, shard: int, file_bytes: int) -> bool:
    """Return whether a shard's offsets are sorted and plausible for the size of its file."""
    try:
        index.check_order(shard, file_bytes)
    except ManifestError:
        return False
    # Each record has a frame, and deflate compresses by a factor of 1032 at most.
    ends = index.ends(shard)
    num_bytes = int(ends[-1]) if len(ends) else 0
    max_ratio = 1 if index.compression == "none" else _MAX_DEFLATE_RATIO
    return index.num_records(shard) <= num_bytes * max_ratio // FRAME_BYTES


def _counted(shard_set: ShardSet, manifest: Manifest | None = None) -> Index:
    """Return an index built in memory: from frame headers, or by reading compressed shards."""
    compression: Compression = shard_compression(shard_set)
    name = f"the index of {shard_set.name!r}"
    gaps = [] if manifest is None else manifest.gaps
    if compression == "none":
        rows = [scan_frame_ends(path) for _, path in shard_set.shards]
        return Index.of_shards(rows, compression, gaps, name)
    read = [read_rows(path, compression) for _, path in shard_set.shards]
    if manifest is None:  # shardwriter's own members are small
        _check_members(shard_set, compression, sum(num_bytes for _, num_bytes in read))
    largest_bytes = max((num_bytes for _, num_bytes in read), default=0)
    return Index.of_shards([rows for rows, _ in read], compression, gaps, name, largest_bytes)


def _check_members(shard_set: ShardSet, compression: Compression, num_bytes: int) -> None:
    """Raise if the compressed members are too large: one per shard is cached while reading.

    Raises:
        SourceError: Together they have more than `MAX_CACHED_BYTES`, uncompressed.
    """
    if num_bytes > MAX_CACHED_BYTES:
        raise SourceError(
            f"reading its shards in turn would hold {num_bytes:,} bytes in memory, the "
            f"uncompressed size of their largest {compression} members",
            path=os.path.join(shard_set.directory, shard_set.name),
            hint="copy it with `shardwriter reshard PATH OUT`, which writes shards that can be "
            "read from any record",
        )
