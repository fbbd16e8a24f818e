"""A file that is read by ranges, where every range is a request.

A request takes as long as some megabytes take to come, so a range is read with what follows it: a
little at first and wherever reading jumps, and twice as much each time that it goes on nearby.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from shardwriter.storage.inputs import InputChanged, OpenInput, Stat

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_FIRST_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 8 << 20
_NEAR_BYTES: Final = 1 << 20  # to skip these costs about as much as a request
_ALL_BYTES: Final = 64 << 20  # of all files that are open


class RangedFile(io.RawIOBase):
    """An object, read by ranges.

    Args:
        path: Its URL.
        size: Its bytes.
        fetch: Returns the bytes of a range, by its first byte and length.
        release: Called when the file is closed.
    """

    _open: Final[WeakSet[RangedFile]] = WeakSet()

    def __init__(
        self,
        path: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        release: Callable[[], None],
    ) -> None:
        super().__init__()
        self.name = path
        self.size = size
        self._fetch = fetch
        self._release = release
        self._at = 0
        self._window, self._start = b"", 0
        self._ahead = _FIRST_BYTES
        self._open.add(self)

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return the bytes from ``begin`` on, fewer at the end.

        Raises:
            OSError: The range can not be read.
        """
        end = min(begin + num_bytes, self.size)
        if begin >= end:
            return b""
        stop = self._start + len(self._window)
        if begin < self._start or stop < end:
            self._move(begin, end, stop)
        return self._window[begin - self._start : end - self._start]

    def _move(self, begin: int, end: int, stop: int) -> None:
        """Have the window begin at ``begin`` and reach to ``end`` at least."""
        is_near = self._start <= begin <= stop + max(self._ahead, _NEAR_BYTES)
        most = max(_FIRST_BYTES, min(_MOST_BYTES, _ALL_BYTES // len(self._open)))
        self._ahead = min(2 * self._ahead, most) if is_near else _FIRST_BYTES
        kept = self._window[begin - self._start :] if self._start <= begin < stop else b""
        first = begin + len(kept)
        num_bytes = min(max(end - first, self._ahead), self.size - first)
        data = self._fetch(first, num_bytes)
        if len(data) != num_bytes:
            raise changed(self.name)
        self._window, self._start = kept + data, begin

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        left = max(0, self.size - self._at)
        data = self.read_at(self._at, left if size is None or size < 0 else size)
        self._at += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the next bytes into a buffer and return how many."""
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def close(self) -> None:
        """Give the window and the connection back."""
        if not self.closed:
            self._window = b""
            self._open.discard(self)
            self._release()
        super().close()


class RangedInput(OpenInput):
    """An open object.

    Args:
        file: The object.
        stat: Returns what it is now.
    """

    def __init__(self, file: RangedFile, stat: Callable[[], Stat]) -> None:
        super().__init__(file, _FIRST_BYTES)
        self._ranges = file
        self._ask = stat

    def stat(self) -> Stat:
        """Return what the object is now."""
        return self._ask()

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return the bytes from ``begin`` on, fewer at the end; the stream stays where it is."""
        return self._ranges.read_at(begin, num_bytes)


def changed(path: str) -> InputChanged:
    """Return the error for an object that is not what it was when it was opened."""
    error = InputChanged(f"{path} was replaced or deleted while it was read")
    error.strerror = "it was replaced or deleted while it was read"
    return error
