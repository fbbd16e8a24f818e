"""Reading records from where an index says that they are, proven like any other record.

The index is not trusted: a frame has to have the length that follows from it, and the header that
goes with that length. Files are read by position and not mapped, so that one that is cut while it
is read is an error and no signal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BytesIO
from time import perf_counter
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.index import Index, Place
from shardwriter.errors import CorruptFile
from shardwriter.formats.frame_block import cut_frame, cut_frames, is_frame
from shardwriter.formats.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, frame_header
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.sources.pieces import MOST_KEPT_BYTES, Piece, PieceCache, inflate_piece
from shardwriter.storage.file_pool import FilePool
from shardwriter.storage.local import storage_errors

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
        most = min(max(MOST_KEPT_BYTES, needed), _MOST_PIECES_BYTES)
        self._pieces = PieceCache() if most == MOST_KEPT_BYTES else PieceCache(most)
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
        payload = cut_frame(frame, check=self.check)
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
            payloads = cut_frames(data, begins + shift, ends + shift, check=self.check)
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

    def _load_piece(self, shard: int, place: Place) -> Piece:
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
            place = self.index.place(shard, position)
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

    def _of_piece(self, shard: int, place: Place, first: int, wanted: list[int]) -> list[bytes]:
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
            payloads = cut_frames(piece.data, begins, ends, check=self.check)
        if self.seconds:
            self.seconds["read"] += read - started
            self.seconds["check"] += perf_counter() - read
        if payloads is not None:
            return payloads
        return [self._of_broken(shard, piece, position, position - first) for position in wanted]

    def _of_broken(self, shard: int, piece: Piece, position: int, number: int) -> bytes:
        begin = piece.begin(number)
        if number < len(piece.ends) and (self.check or piece.broken is None):
            payload = cut_frame(piece.data[begin : int(piece.ends[number])], check=self.check)
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
