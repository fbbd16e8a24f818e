"""TFRecord files that are read through: compressed ones, many of them in turn."""

from __future__ import annotations

from shardwriter.errors import SourceError
from shardwriter.formats.compression import OpenStream
from shardwriter.storage.file_pool import FilePool
from shardwriter.storage.inputs import inputs_for, open_stream


class Throttled:
    """A stream that is read in small pieces, as many are open at once."""

    def __init__(self, stream: OpenStream, most_bytes: int) -> None:
        self._stream = stream
        self._most_bytes = most_bytes

    def read(self, size: int, /) -> bytes:
        """Read less than is asked for, where that is much."""
        return self._stream.read(min(size, self._most_bytes))


class PooledFile:
    """A file that is read on where it stood, and may be closed in between."""

    def __init__(self, pool: FilePool, number: int) -> None:
        self._pool = pool
        self._number = number
        self._at = 0

    def read(self, size: int, /) -> bytes:
        """Read on."""
        data = self._pool.file(self._number).read_at(self._at, size)
        self._at += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        """Go to an offset from the beginning."""
        self._at = offset
        return offset

    def seekable(self) -> bool:
        """Tell that one can go anywhere."""
        return True

    def tell(self) -> int:
        """Return the offset."""
        return self._at

    def close(self) -> None:
        """Leave it to the pool."""


def opened(path: str, file: PooledFile | None) -> OpenStream:
    """Return a file's content, unpacked; of one in a pool where that is given."""
    return open_stream(path) if file is None else OpenStream(path, file)


def is_plain(path: str) -> bool:
    """Tell whether a file is not compressed.

    Raises:
        SourceError: It can not be read.
    """
    try:
        with open_stream(path) as stream:
            return stream.compression == "none"
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error


def tail(path: str) -> str:
    """Return the last 8 bytes in hex: of a compressed file the checksum of its content."""
    with inputs_for(path).open(path) as file:
        return file.read_at(max(0, file.stat().st_size - 8), 8).hex()
