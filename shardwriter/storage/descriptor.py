"""Open files that can be sent to another process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import NoReturn

from shardwriter.errors import StorageError


class Descriptor:
    """A file descriptor that this object owns.

    It is closed when nobody holds it. A pool of processes sends it to its workers as what it is, an
    open file, over their sockets. Anything else that pickles is refused: a number means nothing in
    another process.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        """Return the number; -1 once it is closed."""
        return self._number

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file; closing twice does nothing."""
        if self._number >= 0:  # `os` may be gone when the program ends
            number, self._number = self._number, -1
            close(number)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file can only be sent to a process of the pool")


class Scratch:
    """A temporary file without a name: it ends with the last process that has it open.

    It is written by one process, and read by position by any.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            self._descriptor = Descriptor(os.dup(file.fileno()))
        self.num_bytes = 0

    def fileno(self) -> int:
        """Return the descriptor's number."""
        return self._descriptor.fileno()

    def append(self, data: bytes) -> None:
        """Append all of ``data``."""
        rest = memoryview(data)
        while rest:
            try:
                written = os.pwrite(self.fileno(), rest, self.num_bytes)
            except OSError as error:
                raise StorageError(
                    f"a temporary file can not grow: {error.strerror}",
                    path=tempfile.gettempdir(),
                    hint="set TMPDIR to a folder with more space",
                ) from error
            self.num_bytes += written
            rest = rest[written:]

    def read(self, begin: int, num_bytes: int) -> bytes:
        """Return the bytes from ``begin`` on; fewer at the end of the file."""
        return os.pread(self.fileno(), num_bytes, begin)

    def close(self) -> None:
        """Close the file; what is in it is gone when nobody else has it open."""
        self._descriptor.close()
