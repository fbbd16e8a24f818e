"""Reading records from where an index says that they are, proven like any other record.

The index is not trusted: a frame has to have the length that follows from it, and the header that
goes with that length. Files are read by position and not mapped, so that one that is cut while it
is read is an error and no signal.
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

# Members and blocks of compressed shards, inflated: what a record is read out of.
#
# Records that are neighbours in reading order come from the same N members again and again, so
# those that were used last are kept.

_READ_BYTES: Final = 1 << 20
MAX_CACHED_BYTES: Final = 128 << 20  # members of our shards are 64 MiB together


@dataclass(frozen=True)
class Piece:
    """What a member or block holds.

    Attributes:
        data: As much as can be inflated.
        ends: int64[k]: where the whole frames in it end.
        rest_bytes: What follows them.
        broken: Why there is no more; None where that is all.
    """

    data: bytes
    ends: NDArray[np.int64]
    rest_bytes: int
    broken: CorruptFile | None

    def begin(self, number: int) -> int:
        """Return where a frame begins; where one that is not whole would."""
        return int(self.ends[:number][-1:].sum())

    def stream(self, begin: int = 0) -> ByteStream:
        """Return what it holds from an offset on; why there is no more is raised at the end."""
        return _Stream(self.data[begin:], self.broken)


class _Stream:
    def __init__(self, data: bytes, broken: CorruptFile | None) -> None:
        self._data = BytesIO(data)
        self._broken = broken

    def read(self, size: int, /) -> bytes:
        data = self._data.read(size)
        if not data and self._broken is not None:
            raise self._broken
        return data


def read_piece(path: str, begin: int, end: int, compression: Compression) -> list[bytes]:
    """Return the records of the frames, the member or the block between two offsets of a file.

    Raises:
        CorruptFile: They are damaged.
        StorageError: The file can not be read.
    """
    with storage_errors(path), inputs_for(path).open(path) as file:
        data = file.read_at(begin, end - begin)
    stream: ByteStream = BytesIO(data)
    if compression != "none":
        stream = _Stream(*_inflated(data, compression, path))
    return list(read_frames(stream, path=path))


def inflate_piece(data: bytes, compression: Compression, path: str) -> Piece:
    """Inflate a member or block, as far as that can be done, and find its frames."""
    inflated, broken = _inflated(data, compression, path)
    ends = []
    at, stop = 0, len(inflated)
    while at + FRAME_BYTES <= stop:
        # What the header's CRC says of the length is looked at when the record is read.
        end = at + FRAME_BYTES + int.from_bytes(inflated[at : at + 8], "little")
        if end > stop:
            break
        ends.append(end)
        at = end
    return Piece(inflated, np.array(ends, np.int64), stop - at, broken)


def _inflated(data: bytes, compression: Compression, path: str) -> tuple[bytes, CorruptFile | None]:
    if compression == "gzip":
        parts: list[bytes] = []
        try:
            stream = InflateStream(BytesIO(data), "gzip", path)
            while part := stream.read(_READ_BYTES):
                parts.append(part)
        except CorruptFile as error:
            return b"".join(parts), error
        return b"".join(parts), None
    # Behind a whole block, and nowhere else, the empty last block ends the stream.
    inflater = isal_zlib.decompressobj(wbits=RAW_WBITS)
    why = "it is no whole block"
    try:
        inflated = inflater.decompress(data + EMPTY_DEFLATE)
        if inflater.eof and not inflater.unused_data:
            return inflated, None
    except DEFLATE_ERROR as error:
        why = str(error)
    message = f"compressed data is broken: {why}"
    return b"", CorruptFile(message, kind="bad-deflate", path=path)


class BlockCache:
    """The pieces that were used last.

    Args:
        most_bytes: How much to keep.
    """

    def __init__(self, most_bytes: int = MAX_CACHED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[int, int], Piece] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, shard: int, begin: int, load: Callable[[], Piece]) -> Piece:
        """Return the piece of a shard that begins there, loaded where it is not known."""
        key = shard, begin
        with self._lock:
            piece = self._kept.get(key)
            if piece is not None:
                self._kept.move_to_end(key)
                return piece
        piece = load()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = piece
                self._bytes += _size_of(piece)
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= _size_of(dropped)
        return piece

    def clear(self) -> None:
        """Drop all of them."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0


def _size_of(piece: Piece) -> int:
    return len(piece.data) + piece.ends.nbytes


# Where the frames of a plain shard end, found by going from header to header.

_LEAST_BYTES: Final = 1 << 12
_MOST_BYTES: Final = 1 << 20
_INDEX_HINT: Final = "`shard-stats` lists all defects of the file"


def hop_frames(path: str) -> NDArray[np.uint64]:
    """Return uint64[n]: the offset behind each frame of a plain shard.

    Payloads are not read, unless it costs less than not to.

    Raises:
        CorruptFile: A header is wrong, or the file ends inside of a frame.
        StorageError: The file can not be read.
    """
    with storage_errors(path), inputs_for(path).open(path) as file:
        return _hop(file, file.stat().st_size, path)


def _hop(file: OpenInput, file_bytes: int, path: str) -> NDArray[np.uint64]:
    ends = array("Q")
    known: dict[bytes, int] = {}  # header -> bytes of its frame
    at = window_start = 0
    window, window_bytes = b"", _LEAST_BYTES
    while at < file_bytes:
        begin = at - window_start
        if begin + HEADER_BYTES > len(window):
            # Many frames in one window: the next one is larger. None: it was too large.
            is_dense = begin <= 2 * len(window)
            window_bytes = min(4 * window_bytes, _MOST_BYTES) if is_dense else _LEAST_BYTES
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
        what, kind=kind, path=path, record_index=record_index, offset=offset, hint=_INDEX_HINT
    )


_Int64s = NDArray[np.int64]

_BATCH_BYTES: Final = 4 << 20  # read before it is cut; about what a core's cache holds
LARGE_BYTES: Final = 1 << 15  # frames whose copy costs more than two more reads
_HOLE_BYTES: Final = 1 << 10  # not wanted, and cheaper to read than another read
_MAX_RADIX: Final = 1 << 16
_MEMBER_BYTES: Final = 128 << 10  # of many shards: the member that ends, and the next one
_MOST_PIECES_BYTES: Final = 512 << 20
_HINT: Final = "`shardwriter verify` says what is wrong with the shard"


class RecordReader:
    """Reads records by shard and position. Any number of threads may do so.

    It can be pickled, and a child of a fork can go on with it: each has its own open files.

    Args:
        index: Where the records of the shards are.
        pool: The shards.
        check: Prove the payloads' CRCs; headers are always held against the index.
        timings: Keep seconds by stage.

    Attributes:
        seconds: What the stages ``read`` and ``check`` took so far; empty without ``timings``.
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
        needed = _MEMBER_BYTES * len(self.index.counts)  # by records in their order
        most = min(max(MAX_CACHED_BYTES, needed), _MOST_PIECES_BYTES)
        self._pieces = BlockCache() if most == MAX_CACHED_BYTES else BlockCache(most)
        self._pid = os.getpid()  # last: who sees it must not find a lock that was held at the fork

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
        self._pieces.clear()

    def payload(self, shard: int, position: int) -> bytes:
        """Return one record, which the index has to have.

        Raises:
            CorruptFile: It is damaged, or the index is not that of this file.
            ManifestError: The index contradicts itself.
            SourceChanged: The file is another one now.
            StorageError: The shard can not be read.
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
            self._explain(shard, position, begin, end)
        return payload

    def payloads(self, shards: _Int64s, positions: _Int64s) -> list[bytes]:
        """Return records in the order in which they are asked for.

        They are read in the order in which they lie, neighbours together.

        Args:
            shards: int64[k].
            positions: int64[k], of records that the index has.

        Raises:
            CorruptFile: One is damaged; which one of several that are is not defined.
            ManifestError: The index contradicts itself.
            SourceChanged: A file is another one now.
            StorageError: A shard can not be read.
        """
        order = _in_files(shards, positions, len(self.index.counts))
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
            return self._from_pieces(shards, positions)
        begins, ends = self.index.spans(shards, positions)
        num_bytes = ends - begins
        if int(num_bytes.min()) < FRAME_BYTES:
            at = int(num_bytes.argmin())
            self._explain(int(shards[at]), int(positions[at]), int(begins[at]), int(ends[at]))
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
        """Return records that lie in this order, read in runs."""
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
        # One is damaged: by themselves they tell which.
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
        """Return a record whose payload is read by itself, as a copy would cost more."""
        started = perf_counter()
        if end - begin < FRAME_BYTES:
            self._explain(shard, position, begin, end)
        inner = begin + HEADER_BYTES, end - FOOTER_BYTES
        parts = ((shard, begin, inner[0]), (shard, *inner), (shard, inner[1], end))
        header, payload, footer = self._read_runs(parts)
        read = perf_counter()
        fits = is_frame(header, payload, footer, check=self.check)
        if self.seconds:
            self.seconds["read"] += read - started
            self.seconds["check"] += perf_counter() - read
        if not fits or len(payload) != end - begin - FRAME_BYTES:
            self._explain(shard, position, begin, end)
        return payload

    def _read(self, shard: int, begin: int, end: int) -> bytes:
        return self._read_runs([(shard, begin, end)])[0]

    def _explain(self, shard: int, position: int, begin: int, end: int) -> NoReturn:
        """Raise what is wrong with a plain frame."""
        self.pool.check(shard)
        path = self.pool.paths[shard]
        header = self._read(shard, begin, begin + HEADER_BYTES)
        length = int.from_bytes(header[:8], "little")
        is_frame_of_index = length + FRAME_BYTES == end - begin
        if not is_frame_of_index and frame_header(length) == header:
            raise self._not_indexed(shard, position, begin)  # a frame, and another one
        frame = self._read(shard, begin, end)
        try:
            list(read_frames(BytesIO(frame), path=path))
        except CorruptFile as error:
            error.record_index, error.offset, error.hint = position, begin, _HINT
            raise
        raise self._not_indexed(shard, position, begin)

    def _not_indexed(self, shard: int, position: int, offset: int | None) -> CorruptFile:
        return CorruptFile(
            f"what is here is not what the index says: {self.index.name}",
            kind="index",
            path=self.pool.paths[shard],
            record_index=position,
            offset=offset,
            hint=_HINT,
        )

    # -- compressed shards -------------------------------------------------------------------------

    def _load_piece(self, shard: int, place: RecordSpan) -> Piece:
        path = self.pool.paths[shard]
        data = self._read(shard, place.begin, place.end)
        with storage_errors(path):
            return inflate_piece(data, self.index.compression, path)

    def _from_pieces(self, shards: _Int64s, positions: _Int64s) -> list[bytes]:
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
            payloads += self._of_piece(shard, place, first, wanted)
            done = stop
        return payloads

    def _of_piece(
        self, shard: int, place: RecordSpan, first: int, wanted: list[int]
    ) -> list[bytes]:
        """Return records of one member, which are in order."""
        started = perf_counter()
        piece = self._pieces.get(shard, place.begin, lambda: self._load_piece(shard, place))
        read = perf_counter()
        is_whole = piece.broken is None and not piece.rest_bytes
        if is_whole and len(piece.ends) != place.num_records:
            self.pool.check(shard)
            raise self._not_indexed(shard, wanted[0], None)
        # Of a broken member what has its own CRC is proven all the same.
        is_known = self.check or piece.broken is None
        numbers = np.array(wanted, np.int64) - first
        payloads = None
        if is_known and int(numbers[-1]) < len(piece.ends):
            ends = piece.ends[numbers]
            begins = np.where(numbers > 0, piece.ends[numbers - 1], 0)
            payloads = parse_frames(piece.data, begins, ends, check=self.check)
        if self.seconds:
            self.seconds["read"] += read - started
            self.seconds["check"] += perf_counter() - read
        if payloads is not None:
            return payloads
        return [self._of_broken(shard, piece, position, position - first) for position in wanted]

    def _of_broken(self, shard: int, piece: Piece, position: int, number: int) -> bytes:
        begin = piece.begin(number)
        if number < len(piece.ends) and (self.check or piece.broken is None):
            payload = parse_frame(piece.data[begin : int(piece.ends[number])], check=self.check)
            if payload is not None:
                return payload
        self.pool.check(shard)
        path = self.pool.paths[shard]
        found = piece.broken
        try:
            next(read_frames(piece.stream(begin), path=path), None)
        except CorruptFile as error:
            found = error
        if found is None:
            raise self._not_indexed(shard, position, None)
        # Not the same error every time: the piece is kept. Of a member it is not known where in the
        # uncompressed stream it begins.
        raise CorruptFile(
            found.message, kind=found.kind, path=path, record_index=position, hint=_HINT
        )


def _in_files(shards: _Int64s, positions: _Int64s, num_shards: int) -> _Int64s | None:
    """Return the order in which records lie in their files; None where it is theirs."""
    if len(shards) < 2:
        return None
    up = np.diff(shards)
    if bool(((up > 0) | ((up == 0) & (positions[1:] >= positions[:-1]))).all()):
        return None
    if num_shards <= _MAX_RADIX:  # in linear time, where positions are in order already
        order = np.argsort(shards.astype(np.uint16), kind="stable")
        s, p = shards[order], positions[order]
        if bool(((s[1:] != s[:-1]) | (p[1:] >= p[:-1])).all()):
            return order
    return np.lexsort((positions, shards))
