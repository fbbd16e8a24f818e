"""Standard streams that stop no command: closed ones, pipes that nobody reads, odd characters.

A file that a program opens takes the lowest free descriptor: with stderr closed, the first shard
would be descriptor 2, and what a library prints would go into it. So closed streams are opened on
the null device before anything else is.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Final

_NUMBERS: Final = (0, 1, 2)


def prepare_streams() -> None:
    """Make stdin, stdout and stderr safe to use, whatever the command was started with.

    - A closed one is the null device.
    - What is written after the reader of a pipe has gone (``| head -1``) is dropped, so that a
      command does its work and its exit code says what the data says.
    - Characters that the encoding lacks are escaped.
    """
    for number in _NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            _use_null_device(number)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it stays open
    sys.stdout = _output(sys.stdout, 1)
    sys.stderr = _output(sys.stderr, 2)


def has_reader() -> bool:
    """Return False once the reader of stdout has gone: a command that only prints can stop."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, _Output) and raw.is_dropped)


class _Output(io.FileIO):
    """stdout or stderr; what is written to a broken pipe is dropped.

    Attributes:
        is_dropped: Whether a write has failed: the descriptor is the null device from then on.
    """

    is_dropped = False

    def write(self, data: Any, /) -> int:
        """Return how many bytes were written or dropped.

        Raises:
            OSError: They can not be written, as on a full disk: once, the rest is dropped too.
        """
        try:
            return super().write(data)
        except OSError as error:
            self.is_dropped = True
            number = self.fileno()
            _use_null_device(number)
            if isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            error.filename = "stdout" if number == 1 else "stderr"
            raise


def _is_of(stream: Any, number: int) -> bool:
    """Whether a stream writes to a descriptor itself; one that a program captures with does not."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except OSError:
        return False


def _output(stream: Any, number: int) -> Any:
    """Return a stream in the place of the interpreter's; a program's own stays."""
    if stream is not None and not _is_of(stream, number):
        return stream
    file = io.BufferedWriter(_Output(number, "w", closefd=False))
    if stream is None:
        return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)
    is_by_line = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=is_by_line)


def _use_null_device(number: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)  # workers have it too
