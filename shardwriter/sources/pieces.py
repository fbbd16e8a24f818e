"""Members and blocks of compressed shards, inflated: what a record is read out of.

Records that are neighbours in reading order come from the same N members again and again, so those
that were used last are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from shardwriter.errors import CorruptFile
from shardwriter.formats.compressed_writer import EMPTY_DEFLATE
from shardwriter.formats.compression import DEFLATE_ERROR, RAW_WBITS, Compression, InflateStream
from shardwriter.formats.cursor import ByteStream
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.storage.inputs import inputs_for
from shardwriter.storage.local import storage_errors

_READ_BYTES: Final = 1 << 20
MOST_KEPT_BYTES: Final = 128 << 20  # members of our shards are 64 MiB together


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


class PieceCache:
    """The pieces that were used last.

    Args:
        most_bytes: How much to keep.
    """

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
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
