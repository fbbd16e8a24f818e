"""Records of shards, read at the positions of an index and checked.

    scan_frame_ends      the frame offsets of an uncompressed shard, from its headers
    read_record_span         the records between two offsets of a file
    RecordReader         records by shard and position
    BlockCache           the decompressed members or blocks that were used last

The index is not trusted: a frame must have the length that the index implies, and a header with
this length. Files are read by position, not mapped, so truncation during a read is an error and not
a signal.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from time import perf_counter
from typing import Any, Final, NoReturn

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from shardwriter.dataset import Index, RecordSpan
from shardwriter.errors import CorruptFile
from shardwriter.formats import (
    DEFLATE_ERROR,
    EMPTY_DEFLATE,
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    HEADER_CACHE_SIZE,
    MAX_PAYLOAD_BYTES,
    RAW_WBITS,
    ByteStream,
    Compression,
    InflateStream,
    frame_header,
    is_frame,
    parse_frame,
    parse_frames,
    read_frames,
)
from shardwriter.storage import FilePool, OpenInput, inputs_for, storage_errors

_READ_BYTES: Final = 1 << 20
MAX_CACHED_BYTES: Final = 128 << 20  # twice the members of a dataset's shards


@dataclass(frozen=True)
class Block:
    """A decompressed gzip member or deflate block.

    Attributes:
        data: As much as could be decompressed.
        ends: int64[k]: the ends of its complete frames.
        rest_bytes: The number of bytes after these.
        error: Why decompression stopped; None if it is complete.
    """

    data: bytes
    ends: NDArray[np.int64]
    rest_bytes: int
    error: CorruptFile | None

    def begin(self, number: int) -> int:
        """Return the offset of a frame; also of the incomplete one after the last."""
        return int(self.ends[:number][-1:].sum())

    def stream(self, begin: int = 0) -> ByteStream:
        """Return a stream of the data from an offset; it ends with ``error``, if there is one."""
        return _Stream(self.data[begin:], self.error)


class _Stream:
    def __init__(self, data: bytes, error: CorruptFile | None) -> None:
        self._data = BytesIO(data)
        self._error = error

    def read(self, size: int, /) -> bytes:
        data = self._data.read(size)
        if not data and self._error is not None:
            raise self._error
        return data


def read_record_span(path: str, begin: int, end: int, compression: Compression) -> list[bytes]:
    """Return the records of the frames, the member or the block between two offsets of a file.

    Raises:
        CorruptFile: They are damaged.
        StorageError: The file cannot be read.
    """
    with storage_errors(path), inputs_for(path).open(path) as file:
        data = file.read_at(begin, end - begin)
    stream: ByteStream = BytesIO(data)
    if compression != "none":
        stream = _Stream(*_inflate(data, compression, path))
    return list(read_frames(stream, path=path))


def inflate_block(data: bytes, compression: Compression, path: str) -> Block:
    """Decompress a member or block as far as possible, and find its frames."""
    inflated, error = _inflate(data, compression, path)
    ends = []
    at, stop = 0, len(inflated)
    while at + FRAME_BYTES <= stop:
        # The CRC of the length is checked when the record is read.
        end = at + FRAME_BYTES + int.from_bytes(inflated[at : at + 8], "little")
        if end > stop:
            break
        ends.append(end)
        at = end
    return Block(inflated, np.array(ends, np.int64), stop - at, error)


def _inflate(data: bytes, compression: Compression, path: str) -> tuple[bytes, CorruptFile | None]:
    if compression == "gzip":
        parts: list[bytes] = []
        try:
            stream = InflateStream(BytesIO(data), "gzip", path)
            while part := stream.read(_READ_BYTES):
                parts.append(part)
        except CorruptFile as error:
            return b"".join(parts), error
        return b"".join(parts), None
    # The empty last block ends the stream after a complete block, but not elsewhere.
    inflater = isal_zlib.decompressobj(wbits=RAW_WBITS)
    why = "the block is incomplete"
    try:
        inflated = inflater.decompress(data + EMPTY_DEFLATE)
        if inflater.eof and not inflater.unused_data:
            return inflated, None
    except DEFLATE_ERROR as error:
        why = str(error)
    message = f"compressed data is broken: {why}"
    return b"", CorruptFile(message, kind="bad-deflate", path=path)


class BlockCache:
    """The blocks that were used last: neighbouring records come from the same few blocks.

    Args:
        max_bytes: The capacity.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, shard: int, begin: int, load: Callable[[], Block]) -> Block:
        """Return the block of a shard at an offset; load it if it is not cached."""
        key = shard, begin
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
                return block
        block = load()
        with self._lock:
            if key not in self._blocks:
                self._blocks[key] = block
                self._bytes += _size_of(block)
            while self._bytes > self._max_bytes and len(self._blocks) > 1:
                _, dropped = self._blocks.popitem(last=False)
                self._bytes -= _size_of(dropped)
        return block

    def clear(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._blocks.clear()
            self._bytes = 0


def _size_of(block: Block) -> int:
    return len(block.data) + block.ends.nbytes


_MIN_WINDOW_BYTES: Final = 1 << 12
_MAX_WINDOW_BYTES: Final = 1 << 20
_SCAN_HINT: Final = "`shard-stats` lists all defects of the file"


def scan_frame_ends(path: str) -> NDArray[np.uint64]:
    """Return uint64[n]: the end of each frame of an uncompressed shard, from its headers.

    Payloads are skipped, unless reading them is cheaper.

    Raises:
        CorruptFile: A header is wrong, or the file ends inside a frame.
        StorageError: The file cannot be read.
    """
    with storage_errors(path), inputs_for(path).open(path) as file:
        return _scan_headers(file, file.stat().st_size, path)


def _scan_headers(file: OpenInput, file_bytes: int, path: str) -> NDArray[np.uint64]:
    ends = array("Q")
    known: dict[bytes, int] = {}  # header -> size of its frame
    at = window_start = 0
    window, window_bytes = b"", _MIN_WINDOW_BYTES
    while at < file_bytes:
        begin = at - window_start
        if begin + HEADER_BYTES > len(window):
            # Enlarge the window after many frames in it; shrink it after a frame larger than it.
            is_dense = begin <= 2 * len(window)
            larger = min(4 * window_bytes, _MAX_WINDOW_BYTES)
            window_bytes = larger if is_dense else _MIN_WINDOW_BYTES
            window, window_start, begin = file.read_at(at, window_bytes), at, 0
        header = window[begin : begin + HEADER_BYTES]
        frame_bytes = known.get(header)
        if frame_bytes is None:
            frame_bytes = _frame_bytes(header, path, len(ends), at)
            if len(known) < HEADER_CACHE_SIZE:
                known[header] = frame_bytes
        at += frame_bytes
        ends.append(at)
    if at > file_bytes:
        begin = ends[-2] if len(ends) > 1 else 0
        raise _damaged(
            f"file ends after {file_bytes - begin:,} of a frame's {at - begin:,} bytes",
            "truncated",
            path,
            len(ends) - 1,
            begin,
        )
    return np.frombuffer(ends, np.uint64)


def _frame_bytes(header: bytes, path: str, record_index: int, offset: int) -> int:
    if len(header) < HEADER_BYTES:
        what = f"file ends after {len(header)} bytes of a 12-byte header"
        raise _damaged(what, "truncated", path, record_index, offset)
    length = int.from_bytes(header[:8], "little")
    if frame_header(length) != header:
        what = "length CRC is wrong" + " (is this a TFRecord file?)" * (record_index == 0)
        raise _damaged(what, "length-crc", path, record_index, offset)
    if length > MAX_PAYLOAD_BYTES:
        what = f"length of {length:,} bytes exceeds the limit of {MAX_PAYLOAD_BYTES:,}"
        raise _damaged(what, "impossible-length", path, record_index, offset)
    return FRAME_BYTES + length


def _damaged(what: str, kind: str, path: str, record_index: int, offset: int) -> CorruptFile:
    return CorruptFile(
        what, kind=kind, path=path, record_index=record_index, offset=offset, hint=_SCAN_HINT
    )


_Int64s = NDArray[np.int64]

_BATCH_BYTES: Final = 4 << 20  # read before it is parsed; about the size of a core's cache
LARGE_BYTES: Final = 1 << 15  # frames that are cheaper to read in three parts than to copy
_HOLE_BYTES: Final = 1 << 10  # a gap that is cheaper to read than to skip by another read
_MAX_RADIX: Final = 1 << 16
_MEMBER_BYTES: Final = 128 << 10  # for many shards: the current member of each, and the next one
_MAX_BLOCKS_BYTES: Final = 512 << 20
_HINT: Final = "run `shardwriter verify` for the damage of the shard"


class RecordReader:
    """Reads records by shard and position; threads may share it.

    It can be pickled, and a forked child can use it: each process has its own open files.

    Args:
        index: The index of the shards.
        pool: The shards.
        check: Check the CRCs of payloads; headers are always compared with the index.
        timings: Measure the seconds of each stage.

    Attributes:
        seconds: Seconds of the stages ``read`` and ``check``; empty without ``timings``.
    """

    def __init__(
        self, index: Index, pool: FilePool, *, check: bool = True, timings: bool = False
    ) -> None:
        self.index = index
        self.pool = pool
        self.check = check
        self.seconds: dict[str, float] = {"read": 0.0, "check": 0.0} if timings else {}
        self._start()

    def _start(self) -> None:
        self._is_plain = self.index.compression == "none"
        needed = _MEMBER_BYTES * len(self.index.counts)  # for records in reading order
        max_bytes = min(max(MAX_CACHED_BYTES, needed), _MAX_BLOCKS_BYTES)
        self._blocks = BlockCache(max_bytes)
        self._pid = os.getpid()  # last, so no reader sees it with a lock from before the fork

    def __getstate__(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "pool": self.pool,
            "check": self.check,
            "seconds": dict.fromkeys(self.seconds, 0.0),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def close(self) -> None:
        """Close all files."""
        self.pool.close()
        self._blocks.clear()

    def payload(self, shard: int, position: int) -> bytes:
        """Return one record of the index.

        Raises:
            CorruptFile: It is damaged, or the index is of another file.
            ManifestError: The index is inconsistent.
            SourceChanged: The file has changed since the dataset was opened.
            StorageError: The shard cannot be read.
        """
        if self.seconds or not self._is_plain:
            return self.payloads(np.array([shard]), np.array([position]))[0]
        begin, end = self.index.span(shard, position)
        num_bytes = end - begin
        if not FRAME_BYTES <= num_bytes < LARGE_BYTES:
            return self._large(shard, position, begin, end)
        try:
            frame = self.pool.file(shard).read_at(begin, num_bytes)
        except OSError:
            frame = self._read(shard, begin, end)
        payload = parse_frame(frame, check=self.check)
        if payload is None or len(frame) != num_bytes:
            self._raise_damage(shard, position, begin, end)
        return payload

    def payloads(self, shards: _Int64s, positions: _Int64s) -> list[bytes]:
        """Return records in the given order; they are read in file order, neighbours together.

        Args:
            shards: int64[k].
            positions: int64[k], of records in the index.

        Raises:
            CorruptFile: One is damaged; if several are, any of them.
            ManifestError: The index is inconsistent.
            SourceChanged: A file has changed since the dataset was opened.
            StorageError: A shard cannot be read.
        """
        order = _file_order(shards, positions, len(self.index.counts))
        if order is None:
            return self._in_order(shards, positions)
        read = self._in_order(shards[order], positions[order])
        payloads: list[bytes] = [b""] * len(read)
        for number, payload in zip(order.tolist(), read, strict=True):
            payloads[number] = payload
        return payloads

    def _in_order(self, shards: _Int64s, positions: _Int64s) -> list[bytes]:
        if not len(shards):
            return []
        if not self._is_plain:
            return self._from_blocks(shards, positions)
        begins, ends = self.index.spans(shards, positions)
        num_bytes = ends - begins
        if int(num_bytes.min()) < FRAME_BYTES:
            at = int(num_bytes.argmin())
            self._raise_damage(int(shards[at]), int(positions[at]), int(begins[at]), int(ends[at]))
        if int(num_bytes.sum()) >= LARGE_BYTES * len(shards):
            spans = zip(*(part.tolist() for part in (shards, positions, begins, ends)), strict=True)
            return [self._large(*span) for span in spans]
        payloads: list[bytes] = []
        stops = np.searchsorted(
            np.cumsum(num_bytes), np.arange(_BATCH_BYTES, int(num_bytes.sum()), _BATCH_BYTES)
        )
        first = 0
        for stop in [*np.unique(stops).tolist(), len(shards)]:
            if stop > first:
                some = slice(first, stop)
                payloads += self._batch(shards[some], positions[some], begins[some], ends[some])
            first = stop
        return payloads

    def _batch(
        self, shards: _Int64s, positions: _Int64s, begins: _Int64s, ends: _Int64s
    ) -> list[bytes]:
        """Return records in file order, read in runs of neighbours."""
        started = perf_counter()
        is_new = np.empty(len(shards), np.bool_)
        is_new[0] = True
        near = np.maximum(_HOLE_BYTES, ends[:-1] - begins[:-1])
        is_new[1:] = (shards[1:] != shards[:-1]) | (begins[1:] - ends[:-1] > near)
        firsts = np.flatnonzero(is_new)
        lasts = np.append(firsts[1:], len(shards)) - 1
        run_begins, run_ends = begins[firsts], ends[lasts]
        runs = zip(shards[firsts].tolist(), run_begins.tolist(), run_ends.tolist(), strict=True)
        parts = self._read_runs(runs)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        run_bytes = run_ends - run_begins
        shifts = np.cumsum(run_bytes) - run_bytes - run_begins
        shift = shifts[np.cumsum(is_new) - 1] if len(firsts) > 1 else shifts
        read = perf_counter()
        payloads = None
        if len(data) == int(run_bytes.sum()):
            payloads = parse_frames(data, begins + shift, ends + shift, check=self.check)
        if self.seconds:
            self.seconds["read"] += read - started
            self.seconds["check"] += perf_counter() - read
        if payloads is not None:
            return payloads
        # One is damaged: reading them one by one finds it.
        spans = zip(*(part.tolist() for part in (shards, positions, begins, ends)), strict=True)
        return [self._large(*span) for span in spans]

    def _read_runs(self, runs: Iterable[tuple[int, int, int]]) -> list[bytes]:
        parts: list[bytes] = []
        shard_open = -1
        shard = 0
        try:
            for shard, begin, end in runs:
                if shard != shard_open:
                    read_at = self.pool.file(shard).read_at
                    shard_open = shard
                parts.append(read_at(begin, end - begin))
        except (OSError, MemoryError) as error:
            with storage_errors(self.pool.paths[shard]):
                raise error
        return parts

    def _large(self, shard: int, position: int, begin: int, end: int) -> bytes:
        """Return a record whose payload is read separately, as copying it would cost more."""
        started = perf_counter()
        if end - begin < FRAME_BYTES:
            self._raise_damage(shard, position, begin, end)
        inner = begin + HEADER_BYTES, end - FOOTER_BYTES
        parts = ((shard, begin, inner[0]), (shard, *inner), (shard, inner[1], end))
        header, payload, footer = self._read_runs(parts)
        read = perf_counter()
        fits = is_frame(header, payload, footer, check=self.check)
        if self.seconds:
            self.seconds["read"] += read - started
            self.seconds["check"] += perf_counter() - read
        if not fits or len(payload) != end - begin - FRAME_BYTES:
            self._raise_damage(shard, position, begin, end)
        return payload

    def _read(self, shard: int, begin: int, end: int) -> bytes:
        return self._read_runs([(shard, begin, end)])[0]

    def _raise_damage(self, shard: int, position: int, begin: int, end: int) -> NoReturn:
        """Raise the error for a damaged frame of an uncompressed shard."""
        self.pool.check(shard)
        path = self.pool.paths[shard]
        header = self._read(shard, begin, begin + HEADER_BYTES)
        length = int.from_bytes(header[:8], "little")
        is_frame_of_index = length + FRAME_BYTES == end - begin
        if not is_frame_of_index and frame_header(length) == header:
            raise self._not_indexed(shard, position, begin)  # a valid frame of another length
        frame = self._read(shard, begin, end)
        try:
            list(read_frames(BytesIO(frame), path=path))
        except CorruptFile as error:
            error.record_index, error.offset, error.hint = position, begin, _HINT
            raise
        raise self._not_indexed(shard, position, begin)

    def _not_indexed(self, shard: int, position: int, offset: int | None) -> CorruptFile:
        return CorruptFile(
            f"the shard does not match its index {self.index.name}",
            kind="index",
            path=self.pool.paths[shard],
            record_index=position,
            offset=offset,
            hint=_HINT,
        )

    # -- compressed shards -------------------------------------------------------------------------

    def _load_block(self, shard: int, span: RecordSpan) -> Block:
        path = self.pool.paths[shard]
        data = self._read(shard, span.begin, span.end)
        with storage_errors(path):
            return inflate_block(data, self.index.compression, path)

    def _from_blocks(self, shards: _Int64s, positions: _Int64s) -> list[bytes]:
        if self._pid != os.getpid():
            self._start()
        payloads: list[bytes] = []
        places = list(zip(shards.tolist(), positions.tolist(), strict=True))
        done = 0
        while done < len(places):
            shard, position = places[done]
            place = self.index.locate(shard, position)
            first = position - place.skip
            stop = done
            while stop < len(places) and places[stop][0] == shard:
                if not first <= places[stop][1] < first + place.num_records:
                    break
                stop += 1
            wanted = [place for _, place in places[done:stop]]
            payloads += self._from_block(shard, place, first, wanted)
            done = stop
        return payloads

    def _from_block(
        self, shard: int, span: RecordSpan, first: int, wanted: list[int]
    ) -> list[bytes]:
        """Return records of one block, given in order."""
        started = perf_counter()
        block = self._blocks.get(shard, span.begin, lambda: self._load_block(shard, span))
        read = perf_counter()
        is_complete = block.error is None and not block.rest_bytes
        if is_complete and len(block.ends) != span.num_records:
            self.pool.check(shard)
            raise self._not_indexed(shard, wanted[0], None)
        # A record of a damaged block is still good if its own CRC is right.
        is_checked = self.check or block.error is None
        numbers = np.array(wanted, np.int64) - first
        payloads = None
        if is_checked and int(numbers[-1]) < len(block.ends):
            ends = block.ends[numbers]
            begins = np.where(numbers > 0, block.ends[numbers - 1], 0)
            payloads = parse_frames(block.data, begins, ends, check=self.check)
        if self.seconds:
            self.seconds["read"] += read - started
            self.seconds["check"] += perf_counter() - read
        if payloads is not None:
            return payloads
        return [self._from_damaged(shard, block, position, position - first) for position in wanted]

    def _from_damaged(self, shard: int, block: Block, position: int, number: int) -> bytes:
        begin = block.begin(number)
        if number < len(block.ends) and (self.check or block.error is None):
            payload = parse_frame(block.data[begin : int(block.ends[number])], check=self.check)
            if payload is not None:
                return payload
        self.pool.check(shard)
        path = self.pool.paths[shard]
        found = block.error
        try:
            next(read_frames(block.stream(begin), path=path), None)
        except CorruptFile as error:
            found = error
        if found is None:
            raise self._not_indexed(shard, position, None)
        # A new error each time, as the block is cached. The offset in the uncompressed stream is
        # unknown.
        raise CorruptFile(
            found.message, kind=found.kind, path=path, record_index=position, hint=_HINT
        )


def _file_order(shards: _Int64s, positions: _Int64s, num_shards: int) -> _Int64s | None:
    """Return the indices that sort records in file order; None if they are in this order."""
    if len(shards) < 2:
        return None
    up = np.diff(shards)
    if bool(((up > 0) | ((up == 0) & (positions[1:] >= positions[:-1]))).all()):
        return None
    if num_shards <= _MAX_RADIX:  # linear time, if positions are already in order
        order = np.argsort(shards.astype(np.uint16), kind="stable")
        s, p = shards[order], positions[order]
        if bool(((s[1:] != s[:-1]) | (p[1:] >= p[:-1])).all()):
            return order
    return np.lexsort((positions, shards))
