"""What the index should have of a shard, as checksums made while the shard is scanned.

The offsets of all records would take 8 bytes each; their CRC tells as well whether an index has
them, and only where it does not are they found out one by one.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.formats.tfrecord import FRAME_BYTES


class IndexSums(NamedTuple):
    """CRCs of a shard's entries in an index, as little-endian uint64.

    Attributes:
        ends: Of the offset behind each frame, or of a gzip file behind each member.
        records: Of the records up to the end of each member; 0 of a plain file.
    """

    ends: int
    records: int


def index_sums(rows: NDArray[np.uint64]) -> IndexSums:
    """Return the checksums of a shard's entries: uint64[1, n], or uint64[2, n] if compressed."""
    crcs = [_extend(0, row) for row in rows]
    return IndexSums(crcs[0], crcs[1] if len(crcs) > 1 else 0)


class IndexSummer:
    """Makes the checksums of a shard from its records' sizes and its members, as they are read."""

    def __init__(self, *, is_plain: bool) -> None:
        self._is_plain = is_plain
        self._ends_crc = self._records_crc = 0
        self._num_records = 0
        self._end = 0  # of the last record in the uncompressed stream
        self._members: deque[tuple[int, int]] = deque()  # that end behind it

    def add_member(self, file_end: int, stream_end: int) -> None:
        """Note where a gzip member ends, in the file and in the uncompressed stream."""
        self._members.append((file_end, stream_end))

    def add_records(self, sizes: NDArray[np.uint64]) -> None:
        """Note uint64[n]: bytes of the next records' payloads."""
        ends = np.cumsum(sizes + np.uint64(FRAME_BYTES), dtype=np.uint64) + np.uint64(self._end)
        if self._is_plain:
            self._ends_crc = _extend(self._ends_crc, ends)
        elif len(ends):
            self._take_members(ends)
        self._num_records += len(ends)
        self._end = int(ends[-1]) if len(ends) else self._end

    def sums(self) -> IndexSums:
        """Return the checksums, once everything was read."""
        self._take_members(np.zeros(0, np.uint64))
        return IndexSums(self._ends_crc, self._records_crc)

    def _take_members(self, ends: NDArray[np.uint64]) -> None:
        """Take the members that end with one of these records, or with those before them."""
        last = int(ends[-1]) if len(ends) else self._end
        found = []
        while self._members and self._members[0][1] <= last:
            found.append(self._members.popleft())
        if found:
            file_ends, stream_ends = np.array(found, np.uint64).T
            records = np.searchsorted(ends, stream_ends, side="right") + self._num_records
            self._ends_crc = _extend(self._ends_crc, file_ends)
            self._records_crc = _extend(self._records_crc, records)


def _extend(crc: int, numbers: NDArray[np.integer]) -> int:
    return extend_crc32c(crc, np.ascontiguousarray(numbers, "<u8").view(np.uint8))
