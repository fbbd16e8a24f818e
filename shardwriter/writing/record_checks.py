"""Making records again that stand already, to find out whether anything has changed.

Neither run.json nor a manifest can know all that decides bytes: a library, a function that the map
calls, what is in a list that was handed over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.assignment import Gaps
from shardwriter.dataset.index import Index
from shardwriter.dataset.naming import ShardPattern
from shardwriter.errors import CorruptFile, OptionError
from shardwriter.formats.compressed_writer import ZLIB_HEAD
from shardwriter.formats.compression import Compression
from shardwriter.formats.crc32c import crc32c
from shardwriter.sources.pieces import read_piece
from shardwriter.storage.inputs import inputs_for
from shardwriter.storage.local import storage_errors
from shardwriter.writing.job import Job
from shardwriter.writing.run_directory import RunDirectory

_CHECKED_SHARDS: Final = 64


def check_stable(job: Job) -> None:
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
            begin, end = last_piece(run.index_columns(shard, compression)[0], compression)
        else:
            path, begin, end = _last_in_place(run, job.pattern, shard)
        record = last_record(path, begin, end, compression)
        index = known.item_index(shard, num_records[shard] - 1)
        found[index] = len(record), crc32c(record)
    return found


def last_piece(ends: NDArray[np.uint64], compression: Compression) -> tuple[int, int]:
    """Return where the last frame, member or block of a shard begins and ends.

    Args:
        ends: uint64[n]: where each of them ends; there is one at least.
        compression: What the shard is compressed with.
    """
    first = len(ZLIB_HEAD) if compression == "zlib" else 0
    return int(ends[-2]) if len(ends) > 1 else first, int(ends[-1])


def last_record(path: str, begin: int, end: int, compression: Compression) -> bytes:
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
    place = index.place(shard, index.num_records(shard) - 1)
    return os.path.join(run.directory, pattern.shard_file(shard)), place.begin, place.end


def check_now(job: Job, records: Mapping[int, tuple[int, int]]) -> None:
    """Make records again, of a source of which any item is at hand.

    Raises:
        RunChanged: One is another now.
    """
    indices = np.array(sorted(records), np.int64)
    for index, item in job.selection.items_at(indices):
        job.check_record(index, item, records[index])
