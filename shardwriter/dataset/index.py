"""The index ``<name>.index``: where every record ends, for random access.

Little-endian, one file a dataset::

    "SWINDEX1" | u64 N | u64 kind | u64 num_gaps | u64 count[N]
    per shard, kind 0 (plain):       u64 end[count]              offset behind each frame
    per shard, kind 1 (gzip):        u64 end[count], u64 records_cum[count]     of each member
    per shard, kind 2 (zlib):        the same of each block
    u64 gaps[num_gaps]

``end`` is the offset in the file, ``records_cum`` the records of the shard up to there. A gzip
shard without records has one member, a zlib shard without records no block.

8 bytes a record, or 16 a member, mapped at once. It is never trusted: what is read through it must
have the right length and length CRC. Beside it, on request, ``<shard>.idx`` holds a line
``offset size`` for each frame, as DALI's ``tfrecord2idx`` writes it and the PyPI ``tfrecord``
loader reads it.
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
_CHECK_ENTRIES: Final = 1 << 15  # what a core's cache holds
_MOST_RECORDS: Final = 1 << 62
_COMPRESSIONS: Final[dict[int, Compression]] = {kind: name for name, kind in KINDS.items()}


def index_head(counts: Sequence[int], kind: int, num_gaps: int) -> bytes:
    """Return everything in front of the per-shard arrays.

    Args:
        counts: Records (plain), members (gzip) or blocks (zlib) of each shard.
        kind: A value of :data:`KINDS`.
        num_gaps: Length of the gap list at the end.
    """
    numbers = np.array([len(counts), kind, num_gaps, *counts], dtype="<u8")
    return MAGIC + numbers.tobytes()


def columns(compression: Compression) -> int:
    """Return how many numbers the index has for a frame (1) or a member (2)."""
    return 1 if compression == "none" else 2


def index_chunks(
    shards: Iterable[NDArray[np.uint64]], head: bytes, gaps: Sequence[int]
) -> Iterator[bytes]:
    """Yield the bytes of an index file, a shard at a time.

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
    """Return uint64[n]: the offset behind each frame.

    Args:
        payload_sizes: Bytes of each payload.
        start: Where the first frame begins.
    """
    ends = np.cumsum(payload_sizes.astype(np.uint64) + np.uint64(FRAME_BYTES))
    ends += np.uint64(start)
    return ends


class RecordSpan(NamedTuple):
    """Where one record is.

    Attributes:
        begin: Offset in the file of the piece to read: its frame, or the member that it is in.
        end: Offset behind that piece.
        skip: Records in front of it in that piece.
        num_records: Records in that piece.
    """

    begin: int
    end: int
    skip: int
    num_records: int


class Index:
    """An index, mapped from its file or made in memory.

    It can be pickled: a mapped one by its path.

    Attributes:
        compression: What the shards are compressed with.
        counts: int64[N] frames, members or blocks of each shard.
        gaps: uint64[g] items without a record.
        piece_bytes: What the largest member or block has, uncompressed, by all that is known.
    """

    piece_bytes: int = MEMBER_BYTES
    compression: Compression
    counts: NDArray[np.int64]
    gaps: NDArray[np.uint64]

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Map an index file.

        Args:
            path: The file; what is mapped stays when it is deleted.
            name: What errors call it.

        Raises:
            ManifestError: It is no index, or its size is not what its head says.
            OSError: It can not be read.
        """
        self._path = name or os.fspath(path)
        found = Path(path).stat()
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):  # a FIFO would make the program wait
            self._refuse("it is no plain file")
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
        """Take the numbers behind the magic ones."""
        num_shards, kind, num_gaps = (int(n) for n in numbers[:3])
        if kind not in _COMPRESSIONS:
            self._refuse(f"it is of kind {kind}, which is not known")
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
        self._fast_numbers = numbers.data  # a number out of an array takes longer
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
        """Make an index in memory.

        Args:
            shards: What :func:`index_chunks` takes.
            compression: What they are compressed with.
            gaps: Items without a record.
            name: What errors call it.
            piece_bytes: What the largest member or block has, uncompressed.
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
        """The file's path, or what else errors call the index."""
        return self._path

    def _refuse(self, why: str, **where: int) -> NoReturn:
        raise ManifestError(
            f"not an index that can be used: {why}",
            path=self._path,
            hint="`shardwriter index` makes it anew from the shards",
            record_index=where.get("record_index"),
            shard=where.get("shard"),
        )

    def check_order(self, shard: int, file_bytes: int) -> None:
        """Check that a shard's entries ascend and lead to no place behind its file.

        Takes about as long as the index's CRC.

        Args:
            shard: The shard.
            file_bytes: Size of its file.

        Raises:
            ManifestError: They do not; names the first record or member that is wrong.
        """
        rows = self._shard(shard)
        is_plain = self._columns == 1
        self._check_row(shard, rows[0], FRAME_BYTES if is_plain else 1, file_bytes)
        is_empty = rows.shape[1] == 1 and not rows[-1, 0]  # a gzip member without records
        if not is_plain and not is_empty:
            self._check_row(shard, rows[1], 1, _MOST_RECORDS)

    def _check_row(self, shard: int, row: NDArray[np.uint64], least: int, most: int) -> None:
        step, limit = np.uint64(least), np.uint64(most)
        last = np.zeros(1, np.uint64)
        for start in range(0, len(row), _CHECK_ENTRIES):
            block = np.asarray(row[start : start + _CHECK_ENTRIES])
            before = np.concatenate((last, block[:-1]))
            wrong = np.flatnonzero((block > limit) | (block < before + step))
            if len(wrong):
                at = int(wrong[0])
                what = "record" if self._columns == 1 else "member"
                self._refuse(
                    f"{what} {start + at:,} of shard {shard} ends at {int(block[at]):,}, where the "
                    f"one before ends at {int(before[at]):,} of at most {most:,}",
                    **({"record_index": start + at} if self._columns == 1 else {}),
                    shard=shard,
                )
            last = block[-1:]

    def entries(self, shard: int) -> NDArray[np.uint64]:
        """Return what a shard has: uint64[1, n] ends, or uint64[2, n] if it is compressed.

        Raises:
            ManifestError: The index has no such shard.
        """
        return self._shard(shard)

    def _shard(self, shard: int) -> NDArray[np.uint64]:
        if not 0 <= shard < len(self.counts):
            self._refuse(f"it has {len(self.counts)} shards, and no shard {shard}")
        numbers = self._numbers[int(self._starts[shard]) : int(self._starts[shard + 1])]
        rows: NDArray[np.uint64] = numbers.reshape(self._columns, -1)
        return rows

    def ends(self, shard: int) -> NDArray[np.uint64]:
        """Return uint64[count]: the offset behind each frame, member or block of a shard.

        Raises:
            ManifestError: The index has no such shard.
        """
        ends: NDArray[np.uint64] = self._shard(shard)[0]
        return ends

    def records(self, shard: int) -> NDArray[np.uint64]:
        """Return uint64[count]: the records up to the end of each member or block of a shard.

        Raises:
            ManifestError: The index has no such shard.
        """
        records: NDArray[np.uint64] = self._shard(shard)[-1]
        return records

    def rows(self, shard: int) -> bytes:
        """Return what stands in the file beside a growing shard: its entries, one after the other.

        Raises:
            ManifestError: The index has no such shard.
        """
        return bytes(np.ascontiguousarray(self._shard(shard).T).astype("<u8").tobytes())

    def num_records(self, shard: int) -> int:
        """Return how many records a shard has.

        Raises:
            ManifestError: The index has no such shard.
        """
        numbers = self._shard(shard)
        if self._columns == 1:
            return len(numbers[0])
        return int(numbers[1, -1]) if numbers.shape[1] else 0

    def span(self, shard: int, position: int) -> tuple[int, int]:
        """Return where the frame of a record of a plain shard begins and ends; it has to exist."""
        at = self._fast_starts[shard] + position
        numbers = self._fast_numbers
        return (numbers[at - 1] if position else 0), numbers[at]

    def spans(
        self, shards: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the same of many, int64[k] each."""
        at = self._starts[shards] + positions
        # With no record in front, what stands there is of another shard, or of the head.
        begins = np.where(positions > 0, self._numbers[at - 1], np.uint64(0))
        return begins.astype(np.int64), self._numbers[at].astype(np.int64)

    def inflated_bytes(self, shards: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        """Estimate what records of compressed shards take: each its part of its member or block.

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
        """Return where record ``position`` of a shard is.

        Raises:
            ManifestError: The index has no such record.
        """
        ends = self.ends(shard)
        num_records = self.num_records(shard)
        if not 0 <= position < num_records:
            self._refuse(f"it has {num_records} records of shard {shard}, and no record {position}")
        piece, before, num_records = position, position, 1
        if self._columns == 2:
            records = self._shard(shard)[1]
            # In the array's own type: any other makes numpy copy the whole of it.
            piece = int(np.searchsorted(records, np.uint64(position), side="right"))
            if piece == len(records):
                self._refuse(f"its records of shard {shard} go back")
            before = int(records[piece - 1]) if piece else 0
            num_records = int(records[piece]) - before
        first = len(ZLIB_HEAD) if self.compression == "zlib" else 0
        begin = int(ends[piece - 1]) if piece else first
        end = int(ends[piece])
        if not begin < end or num_records < 1:
            self._refuse(f"its offsets of shard {shard} go back at record {position}")
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
            hint="open the dataset again, when nothing writes to it",
        )
    return Index(path, name)


def _in_memory(numbers: NDArray[np.uint64], name: str, piece_bytes: int) -> Index:
    index = Index.__new__(Index)
    index._path, index._file, index.piece_bytes = name, None, piece_bytes
    index._take(numbers)
    return index


def dali_index(ends: NDArray[np.uint64]) -> bytes:
    """Return the text of a ``.idx`` file: a line ``offset size`` for each whole frame."""
    starts = np.concatenate((np.zeros(1, np.uint64), ends[:-1])) if len(ends) else ends
    sizes = ends - starts
    lines = (f"{o} {s}\n" for o, s in zip(starts.tolist(), sizes.tolist(), strict=True))
    return "".join(lines).encode("ascii")
