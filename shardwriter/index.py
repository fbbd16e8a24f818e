"""The index ``<name>.index``: where every record ends, for random access.

Little-endian, one file a dataset::

    "SWINDEX1" | u64 N | u64 kind | u64 num_gaps | u64 count[N]
    per shard, kind 0 (plain):       u64 end[count]              offset behind each frame
    per shard, kind 1 (gzip):        u64 end[count], u64 records_cum[count]     of each member
    u64 gaps[num_gaps]

8 bytes a record, mapped at once. It is never trusted: what is read through it must have the right
length and length CRC. Beside it, on request, ``<shard>.idx`` holds a line ``offset size`` for each
frame, as DALI's ``tfrecord2idx`` writes it and the PyPI ``tfrecord`` loader reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardwriter.compression import Compression
from shardwriter.errors import ManifestError

MAGIC: Final = b"SWINDEX1"
KINDS: Final[dict[Compression, int]] = {"none": 0, "gzip": 1, "zlib": 2}


def index_head(counts: Sequence[int], kind: int, num_gaps: int) -> bytes:
    """Return everything in front of the per-shard arrays.

    Args:
        counts: Records (plain) or members (gzip) of each shard.
        kind: A value of :data:`KINDS`.
        num_gaps: Length of the gap list at the end.
    """
    numbers = np.array([len(counts), kind, num_gaps, *counts], dtype="<u8")
    return MAGIC + numbers.tobytes()


def index_chunks(
    ends: Iterable[NDArray[np.uint64]], head: bytes, gaps: Sequence[int]
) -> Iterator[bytes]:
    """Yield the bytes of an index file, a shard at a time."""
    yield head
    for shard_ends in ends:
        yield shard_ends.astype("<u8", copy=False).tobytes()
    yield np.asarray(gaps, dtype="<u8").tobytes()


class Index:
    """A mapped index of plain shards.

    Attributes:
        counts: int64[N] records of each shard.
        gaps: uint64[g] items without a record.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map an index file.

        Raises:
            ManifestError: It is no index of plain shards, or its size is not what its head says.
            OSError: It can not be read.
        """
        self._path = os.fspath(path)
        size = Path(path).stat().st_size
        with open(path, "rb") as file:
            head = file.read(32)
        if len(head) < 32 or head[:8] != MAGIC:
            self._refuse("it does not begin with SWINDEX1")
        num_shards, kind, num_gaps = (int(n) for n in np.frombuffer(head, "<u8", 3, 8))
        if kind != 0:
            self._refuse(f"it is of kind {kind}, and only plain shards are read by record")
        if size % 8 or size < 32 + 8 * num_shards:
            self._refuse(f"{size} bytes do not hold {num_shards} counts")
        numbers = np.memmap(path, dtype="<u8", mode="r", offset=8)
        self.counts = numbers[3 : 3 + num_shards].astype(np.int64)
        if num_shards and not 0 <= self.counts.min() <= self.counts.max() <= len(numbers):
            self._refuse(f"{size} bytes do not hold the records of a shard")
        starts = 3 + num_shards + np.concatenate(([0], np.cumsum(self.counts)))
        if int(starts[-1]) + num_gaps != len(numbers):
            self._refuse(f"{size} bytes do not hold {int(self.counts.sum())} offsets")
        self._numbers = numbers
        self._starts = starts
        self.gaps = np.asarray(numbers[int(starts[-1]) :])

    def _refuse(self, why: str) -> NoReturn:
        raise ManifestError(
            f"not an index that can be used: {why}",
            path=self._path,
            hint="`shardwriter index` makes it anew from the shards",
        )

    def ends(self, shard: int) -> NDArray[np.uint64]:
        """Return uint64[count]: the offset behind each frame of a shard.

        Raises:
            ManifestError: The index has no such shard.
        """
        if not 0 <= shard < len(self.counts):
            self._refuse(f"it has {len(self.counts)} shards, and no shard {shard}")
        return self._numbers[int(self._starts[shard]) : int(self._starts[shard + 1])]

    def frame_span(self, shard: int, position: int) -> tuple[int, int]:
        """Return the start and end offset of one frame.

        Raises:
            ManifestError: The index has no such record.
        """
        ends = self.ends(shard)
        if not 0 <= position < len(ends):
            self._refuse(f"it has {len(ends)} records of shard {shard}, and no record {position}")
        return (int(ends[position - 1]) if position else 0), int(ends[position])


def dali_index(ends: NDArray[np.uint64]) -> bytes:
    """Return the text of a ``.idx`` file: a line ``offset size`` for each whole frame."""
    starts = np.concatenate((np.zeros(1, np.uint64), ends[:-1])) if len(ends) else ends
    sizes = ends - starts
    lines = (f"{o} {s}\n" for o, s in zip(starts.tolist(), sizes.tolist(), strict=True))
    return "".join(lines).encode("ascii")
