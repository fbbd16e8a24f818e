"""The index file ``<name>.index``: the end of every record, for random access.

Little-endian, one file per dataset::

    "SWINDEX1" | u64 N | u64 kind | u64 num_gaps | u64 count[N]
    per shard, kind 0 (plain):       u64 end[count]              end offset of each frame
    per shard, kind 1 (gzip):        u64 end[count], u64 records_cum[count]     of each member
    per shard, kind 2 (zlib):        the same of each block
    u64 gaps[num_gaps]

``end`` is an offset in the shard file, ``records_cum`` the number of records up to there. A gzip
shard without records has one member, a zlib shard without records no block.

The file has 8 bytes per record, or 16 per member, and is memory-mapped. It is not trusted: frames
read through it must have the right length and length CRC. Optional files ``<shard>.idx`` have a
line ``offset size`` per frame, as written by DALI's ``tfrecord2idx`` and read by the PyPI package
``tfrecord``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.assignment import GapRuns
from shardwriter.errors import ManifestError, SourceChanged
from shardwriter.formats import FRAME_BYTES, MEMBER_BYTES, ZLIB_HEAD, Compression

MAGIC: Final = b"SWINDEX1"
KINDS: Final[dict[Compression, int]] = {"none": 0, "gzip": 1, "zlib": 2}
_CHECK_ENTRIES: Final = 1 << 15  # checked at a time; fits the cache
_MAX_RECORDS: Final = 1 << 62
_COMPRESSIONS: Final[dict[int, Compression]] = {kind: name for name, kind in KINDS.items()}


def index_head(counts: Sequence[int], kind: int, num_gaps: int) -> bytes:
    """Return the bytes before the per-shard arrays.

    Args:
        counts: Records (plain), members (gzip) or blocks (zlib) of each shard.
        kind: A value of :data:`KINDS`.
        num_gaps: Length of the gap list at the end.
    """
    numbers = np.array([len(counts), kind, num_gaps, *counts], dtype="<u8")
    return MAGIC + numbers.tobytes()


def columns(compression: Compression) -> int:
    """Return the number of values per entry: 1 for a frame, 2 for a member or block."""
    return 1 if compression == "none" else 2


def index_chunks(
    shards: Iterable[NDArray[np.uint64]], head: bytes, gaps: Sequence[int]
) -> Iterator[bytes]:
    """Yield the bytes of an index file, one shard at a time.

    Args:
        shards: uint64[n] or uint64[1, n] ends of each plain shard; uint64[2, n] ends and
            cumulative records of each compressed one.
        head: From :func:`index_head`.
        gaps: Items without a record.
    """
    yield head
    for numbers in shards:
        yield numbers.astype("<u8", copy=False).tobytes()
    for block in gaps.blocks() if isinstance(gaps, GapRuns) else [np.asarray(gaps)]:
        yield block.astype("<u8", copy=False).tobytes()


def frame_ends(
    payload_sizes: NDArray[np.unsignedinteger[Any]], start: int = 0
) -> NDArray[np.uint64]:
    """Return uint64[n]: the end offset of each frame.

    Args:
        payload_sizes: Size of each payload.
        start: Offset of the first frame.
    """
    ends = np.cumsum(payload_sizes.astype(np.uint64) + np.uint64(FRAME_BYTES))
    ends += np.uint64(start)
    return ends


class RecordSpan(NamedTuple):
    """The bytes to read for one record: its frame, or the member or block that contains it.

    Attributes:
        begin: Start offset in the file.
        end: End offset in the file.
        skip: Number of records before it in the member or block.
        num_records: Number of records in the member or block; 1 for a frame.
    """

    begin: int
    end: int
    skip: int
    num_records: int


class Index:
    """An index, memory-mapped from its file or in memory.

    It can be pickled; a mapped one is pickled as its path.

    Attributes:
        compression: Compression of the shards.
        counts: int64[N]: number of frames, members or blocks of each shard.
        gaps: uint64[g]: items without a record.
        piece_bytes: Estimated uncompressed size of the largest member or block.
    """

    piece_bytes: int = MEMBER_BYTES
    compression: Compression
    counts: NDArray[np.int64]
    gaps: NDArray[np.uint64]

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Map an index file.

        Args:
            path: The file; it may be deleted while it is mapped.
            name: Its name in errors.

        Raises:
            ManifestError: It is not an index, or its size contradicts its header.
            OSError: It can not be read.
        """
        self._path = name or os.fspath(path)
        found = Path(path).stat()
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):  # reading a FIFO would block
            self._refuse("it is not a regular file")
        with open(path, "rb") as file:
            head = file.read(32)
        if len(head) < 32 or head[:8] != MAGIC:
            self._refuse("it does not begin with SWINDEX1")
        num_shards = int.from_bytes(head[8:16], "little")
        if size % 8 or size < 32 + 8 * num_shards:
            self._refuse(f"{size} bytes do not hold {num_shards} counts")
        self._take(np.asarray(np.memmap(path, dtype="<u8", mode="r", offset=8)))
        self._file: str | None = os.path.abspath(path)
        self._state = _file_state(self._file)

    def _take(self, numbers: NDArray[np.uint64]) -> None:
        """Set the attributes from the numbers after the magic bytes."""
        num_shards, kind, num_gaps = (int(n) for n in numbers[:3])
        if kind not in _COMPRESSIONS:
            self._refuse(f"its kind {kind} is unknown")
        self.compression = _COMPRESSIONS[kind]
        self._columns = columns(self.compression)
        size = 8 + numbers.nbytes
        self.counts = numbers[3 : 3 + num_shards].astype(np.int64)
        if num_shards and not 0 <= self.counts.min() <= self.counts.max() <= len(numbers):
            self._refuse(f"{size} bytes do not hold the offsets of a shard")
        starts = 3 + num_shards + np.concatenate(([0], np.cumsum(self._columns * self.counts)))
        if int(starts[-1]) + num_gaps != len(numbers):
            self._refuse(f"{size} bytes do not hold {int(self.counts.sum())} offsets")
        self._numbers = numbers
        self._starts = starts
        self._fast_numbers = numbers.data  # indexing an array takes longer
        self._fast_starts = starts.data
        self.gaps = numbers[int(starts[-1]) :]

    @classmethod
    def of_shards(
        cls,
        shards: Sequence[NDArray[np.uint64]],
        compression: Compression,
        gaps: Sequence[int] = (),
        name: str = "an index in memory",
        piece_bytes: int = MEMBER_BYTES,
    ) -> Index:
        """Return an index in memory.

        Args:
            shards: As for :func:`index_chunks`.
            compression: Compression of the shards.
            gaps: Items without a record.
            name: Its name in errors.
            piece_bytes: Uncompressed size of the largest member or block.
        """
        index = cls.__new__(cls)
        index._path, index._file, index.piece_bytes = name, None, piece_bytes
        counts = [numbers.shape[-1] for numbers in shards]
        head = np.array([len(counts), KINDS[compression], len(gaps), *counts], np.uint64)
        parts = [head, *(np.ravel(numbers) for numbers in shards), np.asarray(gaps, np.uint64)]
        index._take(np.concatenate(parts).astype("<u8", copy=False))
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is not None and _file_state(self._file) == self._state:
            return _mapped, (self._file, self._path, self._state)
        return _in_memory, (self._numbers, self._path, self.piece_bytes)

    @property
    def name(self) -> str:
        """The file's path, or another name of the index in errors."""
        return self._path

    def _refuse(self, why: str, **where: int) -> NoReturn:
        raise ManifestError(
            f"the index can not be used: {why}",
            path=self._path,
            hint="`shardwriter index` rebuilds it from the shards",
            record_index=where.get("record_index"),
            shard=where.get("shard"),
        )

    def check_order(self, shard: int, file_bytes: int) -> None:
        """Check that a shard's entries ascend and stay inside its file.

        This takes about as long as the index's CRC.

        Args:
            shard: The shard.
            file_bytes: Size of its file.

        Raises:
            ManifestError: They do not; the message names the first such record or member.
        """
        rows = self._shard(shard)
        is_plain = self._columns == 1
        self._check_row(shard, rows[0], FRAME_BYTES if is_plain else 1, file_bytes)
        is_empty = rows.shape[1] == 1 and not rows[-1, 0]  # a gzip member without records
        if not is_plain and not is_empty:
            self._check_row(shard, rows[1], 1, _MAX_RECORDS)

    def _check_row(self, shard: int, row: NDArray[np.uint64], min_step: int, end: int) -> None:
        step, limit = np.uint64(min_step), np.uint64(end)
        last = np.zeros(1, np.uint64)
        for start in range(0, len(row), _CHECK_ENTRIES):
            block = np.asarray(row[start : start + _CHECK_ENTRIES])
            before = np.concatenate((last, block[:-1]))
            wrong = np.flatnonzero((block > limit) | (block < before + step))
            if len(wrong):
                at = int(wrong[0])
                what = "record" if self._columns == 1 else "member"
                self._refuse(
                    f"{what} {start + at:,} of shard {shard} ends at {int(block[at]):,}, but the "
                    f"previous one ends at {int(before[at]):,} and the limit is {end:,}",
                    **({"record_index": start + at} if self._columns == 1 else {}),
                    shard=shard,
                )
            last = block[-1:]

    def entries(self, shard: int) -> NDArray[np.uint64]:
        """Return a shard's entries: uint64[1, n] ends; for compressed shards uint64[2, n].

        Raises:
            ManifestError: The index has no such shard.
        """
        return self._shard(shard)

    def _shard(self, shard: int) -> NDArray[np.uint64]:
        if not 0 <= shard < len(self.counts):
            self._refuse(f"it has {len(self.counts)} shards, but no shard {shard}")
        numbers = self._numbers[int(self._starts[shard]) : int(self._starts[shard + 1])]
        rows: NDArray[np.uint64] = numbers.reshape(self._columns, -1)
        return rows

    def ends(self, shard: int) -> NDArray[np.uint64]:
        """Return uint64[count]: the end offset of each frame, member or block of a shard.

        Raises:
            ManifestError: The index has no such shard.
        """
        ends: NDArray[np.uint64] = self._shard(shard)[0]
        return ends

    def records(self, shard: int) -> NDArray[np.uint64]:
        """Return uint64[count]: the number of records up to the end of each member or block.

        Raises:
            ManifestError: The index has no such shard.
        """
        records: NDArray[np.uint64] = self._shard(shard)[-1]
        return records

    def rows(self, shard: int) -> bytes:
        """Return a shard's entries as bytes, as in the file beside an open shard.

        Raises:
            ManifestError: The index has no such shard.
        """
        return bytes(np.ascontiguousarray(self._shard(shard).T).astype("<u8").tobytes())

    def num_records(self, shard: int) -> int:
        """Return the number of records of a shard.

        Raises:
            ManifestError: The index has no such shard.
        """
        numbers = self._shard(shard)
        if self._columns == 1:
            return len(numbers[0])
        return int(numbers[1, -1]) if numbers.shape[1] else 0

    def span(self, shard: int, position: int) -> tuple[int, int]:
        """Return start and end of the frame of a record of a plain shard; it must exist."""
        at = self._fast_starts[shard] + position
        numbers = self._fast_numbers
        return (numbers[at - 1] if position else 0), numbers[at]

    def spans(
        self, shards: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and ends of the frames of many records, int64[k] each."""
        at = self._starts[shards] + positions
        # The number before the first record belongs to another shard, or to the header.
        begins = np.where(positions > 0, self._numbers[at - 1], np.uint64(0))
        return begins.astype(np.int64), self._numbers[at].astype(np.int64)

    def inflated_bytes(self, shards: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        """Return the estimated uncompressed bytes of records: their parts of members or blocks.

        Args:
            shards: int64[k].
            positions: int64[k].
        """
        total = 0
        order = np.argsort(shards, kind="stable")
        found, firsts = np.unique(shards[order], return_index=True)
        for shard, rows in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
            numbers = self._shard(shard)
            pieces = np.searchsorted(numbers[1], positions[rows].astype(np.uint64), side="right")
            here = numbers[:, pieces].astype(np.int64)
            before = np.where(pieces > 0, numbers[:, pieces - 1].astype(np.int64), 0)
            file_bytes, num_records = here - before
            sizes = np.maximum(file_bytes, self.piece_bytes) // np.maximum(num_records, 1)
            total += int(sizes.sum())
        return total

    def locate(self, shard: int, position: int) -> RecordSpan:
        """Return the bytes to read for record ``position`` of a shard.

        Raises:
            ManifestError: The index has no such record.
        """
        ends = self.ends(shard)
        num_records = self.num_records(shard)
        if not 0 <= position < num_records:
            self._refuse(f"it has {num_records} records of shard {shard}, but no record {position}")
        piece, before, num_records = position, position, 1
        if self._columns == 2:
            records = self._shard(shard)[1]
            # In the array's own dtype: for any other, numpy copies the whole array.
            piece = int(np.searchsorted(records, np.uint64(position), side="right"))
            if piece == len(records):
                self._refuse(f"its record counts of shard {shard} decrease")
            before = int(records[piece - 1]) if piece else 0
            num_records = int(records[piece]) - before
        first = len(ZLIB_HEAD) if self.compression == "zlib" else 0
        begin = int(ends[piece - 1]) if piece else first
        end = int(ends[piece])
        if not begin < end or num_records < 1:
            self._refuse(f"its offsets of shard {shard} decrease at record {position}")
        return RecordSpan(begin, end, position - before, num_records)


def _file_state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _mapped(path: str, name: str, state: tuple[int, int]) -> Index:
    if _file_state(path) != state:
        raise SourceChanged(
            "the index has changed since the dataset was opened",
            path=name,
            hint="open the dataset again after writing has ended",
        )
    return Index(path, name)


def _in_memory(numbers: NDArray[np.uint64], name: str, piece_bytes: int) -> Index:
    index = Index.__new__(Index)
    index._path, index._file, index.piece_bytes = name, None, piece_bytes
    index._take(numbers)
    return index


def dali_index(ends: NDArray[np.uint64]) -> bytes:
    """Return the text of a ``.idx`` file: a line ``offset size`` per frame."""
    starts = np.concatenate((np.zeros(1, np.uint64), ends[:-1])) if len(ends) else ends
    sizes = ends - starts
    lines = (f"{o} {s}\n" for o, s in zip(starts.tolist(), sizes.tolist(), strict=True))
    return "".join(lines).encode("ascii")
