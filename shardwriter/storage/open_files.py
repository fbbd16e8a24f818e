"""Files that are open for reading by position, no more at a time than allowed, for many threads.

A file that is dropped from the pool is closed when the last thread that reads it lets go of it, so
nobody reads from a number that has become another file's. A child of a fork has a pool of its own.
"""

from __future__ import annotations

import errno
import os
import resource
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from shardwriter.dataset import is_url
from shardwriter.errors import OptionError, SourceChanged, StorageError
from shardwriter.storage.inputs import InputChanged, OpenInput, Stat, absolute, inputs_for
from shardwriter.storage.local import storage_errors

# Open files that can be sent to another process.


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


_MAX_OPEN: Final = 128
_READ_BYTES: Final = 1 << 30  # what a system call reads at most


class FileState(NamedTuple):
    """What a file was when it was listed.

    Attributes:
        num_bytes: Its size.
        changed_ns: When it was changed last, or another number that tells.
    """

    num_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, stat: Stat) -> FileState:
        """Take what a place says of a file."""
        return cls(stat.st_size, stat.st_mtime_ns)


class PooledFile(Protocol):
    """An open file that any thread may read."""

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return the bytes from ``begin`` on, fewer at the end of the file."""

    def stat(self) -> Stat:
        """Return what the open file is now."""


class _LocalFile:
    """A local file; it is closed when nobody holds it."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptor = Descriptor(self._number)

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        data = os.pread(self._number, num_bytes, begin)
        if len(data) == num_bytes or not data:
            return data
        pieces, have = [data], len(data)  # a large read, or one that a signal has cut short
        while have < num_bytes:
            piece = os.pread(self._number, min(num_bytes - have, _READ_BYTES), begin + have)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)

    def stat(self) -> Stat:
        return os.fstat(self._number)


class _RemoteFile:
    """An object; it keeps a window of what it has read, so threads take turns."""

    def __init__(self, file: OpenInput) -> None:
        self._file = file
        self._lock = threading.Lock()

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        with self._lock:
            return self._file.read_at(begin, num_bytes)

    def stat(self) -> Stat:
        return self._file.stat()


def max_open_files(asked: int | None) -> int:
    """Return how many files a pool may have open: 128, or half of what the process may have.

    Raises:
        OptionError: A number that was asked for is not 1 or more.
    """
    if asked is not None:
        if asked < 1:
            raise OptionError(f"max_open_files is {asked}", hint="give a number from 1 on")
        return asked
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN, soft // 2))


def max_source_files() -> int:
    """Return how many files a source may have open while shards are written, which need more."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN, soft // 4))


class FilePool:
    """The files of a dataset, by their numbers; opened when they are read.

    Args:
        paths: The files.
        states: What they were when they were listed.
        max_open: How many may be open.
    """

    def __init__(
        self, paths: Sequence[str], states: Sequence[FileState], max_open: int | None = None
    ) -> None:
        self.paths = paths
        self.states = states
        self._absolute = [absolute(path) for path in paths]
        self._asked = max_open
        self._start()

    def _start(self) -> None:
        self._max_open = max_open_files(self._asked)
        self._lock = threading.Lock()
        self._open: dict[int, PooledFile] = {}  # opened longest ago first
        self._closed = False
        self._pid = os.getpid()  # last: who sees it must not find a lock that was held at the fork

    def __getstate__(self) -> dict[str, Any]:
        return {
            "paths": self.paths,
            "states": self.states,
            "_absolute": self._absolute,
            "_asked": self._asked,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def file(self, number: int) -> PooledFile:
        """Return a file, opened where it was not.

        Raises:
            SourceChanged: It is not what it was when it was listed.
            StorageError: It can not be opened.
            ValueError: The pool is closed.
        """
        if self._pid != os.getpid():
            self._after_fork()
        return self._open.get(number) or self._admit(number)

    def _after_fork(self) -> None:
        closed = self._closed
        self._start()
        self._closed = closed

    def _admit(self, number: int) -> PooledFile:
        with self._lock:
            if self._closed:
                raise ValueError("the dataset is closed")
            file = self._open.get(number)
            if file is None:
                while len(self._open) >= self._max_open:
                    del self._open[next(iter(self._open))]
                file = self._open_file(number)
                self._open[number] = file
            return file

    def _open_file(self, number: int) -> PooledFile:
        path = self._absolute[number]
        with storage_errors(self.paths[number]):
            try:
                file = _open(path)
            except (InputChanged, FileNotFoundError):
                raise self._changed(number) from None
            except OSError as error:
                if error.errno != errno.EMFILE or not self._open:
                    raise
                # The rest of the program has taken the numbers: fewer have to do from here on.
                self._max_open = max(1, len(self._open) // 2)
                self._open.clear()
                file = _open(path)
            if FileState.of(file.stat()) != self.states[number]:
                raise self._changed(number)
        return file

    def check(self, number: int) -> None:
        """Hold a file against what it was when it was listed.

        Raises:
            SourceChanged: It has changed, or is gone.
        """
        path = self._absolute[number]
        try:
            state = FileState.of(inputs_for(path).stat(path))
        except FileNotFoundError:
            raise self._changed(number) from None
        except OSError:
            return
        if state != self.states[number]:
            raise self._changed(number)

    def _changed(self, number: int) -> SourceChanged:
        return SourceChanged(
            "the file has changed since the dataset was opened",
            path=self.paths[number],
            hint="open the dataset again, when nothing writes to it",
        )

    @property
    def max_open(self) -> int:
        """How many files may be open."""
        return self._max_open

    @property
    def num_open(self) -> int:
        """How many files are open."""
        return len(self._open)

    def close(self) -> None:
        """Close all files; those that a thread reads, when it has done so."""
        with self._lock:
            self._closed = True
            self._open.clear()


def _open(path: str) -> PooledFile:
    if is_url(path):
        return _RemoteFile(inputs_for(path).open(path))
    return _LocalFile(path)
