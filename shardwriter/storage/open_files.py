"""Open files: descriptors that can be sent to workers, scratch files, and pools of input files.

A :class:`FilePool` has a limited number of files open for reading by position from many threads. A
file that is dropped from the pool is closed when the last thread that reads it releases it, so no
thread reads from a descriptor number that was reused. A forked child starts with an empty pool.
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


class Descriptor:
    """A file descriptor that this object owns.

    The descriptor is closed with the last reference. A pool of processes sends it to workers as an
    open file, over sockets. Pickling it in any other way is refused, as the number means nothing in
    another process.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        """Return the number; -1 after close."""
        return self._number

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file; closing twice does nothing."""
        if self._number >= 0:  # `os` may be gone when the program ends
            number, self._number = self._number, -1
            close(number)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file can only be sent to a worker process of the pool")


class Scratch:
    """A temporary file without a name: it is deleted when the last process closes it.

    One process writes it, and any process reads it by position.
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
                    f"cannot write a temporary file: {error.strerror}",
                    path=tempfile.gettempdir(),
                    hint="set TMPDIR to a folder with more space",
                ) from error
            self.num_bytes += written
            rest = rest[written:]

    def read(self, begin: int, num_bytes: int) -> bytes:
        """Return bytes starting at ``begin``; fewer at the end of the file."""
        return os.pread(self.fileno(), num_bytes, begin)

    def close(self) -> None:
        """Close the file; its bytes are lost when no other process has it open."""
        self._descriptor.close()


_MAX_OPEN: Final = 128
_READ_BYTES: Final = 1 << 30  # the most that one system call reads


class FileState(NamedTuple):
    """The state of a file when it was listed.

    Attributes:
        num_bytes: Its size.
        changed_ns: Its modification time, or another number that differs after a change.
    """

    num_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, stat: Stat) -> FileState:
        """Return the state from a file's ``stat``."""
        return cls(stat.st_size, stat.st_mtime_ns)


class PooledFile(Protocol):
    """An open file that any thread may read."""

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return bytes starting at ``begin``; fewer at the end of the file."""

    def stat(self) -> Stat:
        """Return the current state of the open file."""


class _LocalFile:
    """A local file; it is closed with the last reference."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptor = Descriptor(self._number)

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        data = os.pread(self._number, num_bytes, begin)
        if len(data) == num_bytes or not data:
            return data
        parts, num_read = [data], len(data)  # a large read, or one that a signal cut short
        while num_read < num_bytes:
            part = os.pread(self._number, min(num_bytes - num_read, _READ_BYTES), begin + num_read)
            if not part:
                break
            parts.append(part)
            num_read += len(part)
        return b"".join(parts)

    def stat(self) -> Stat:
        return os.fstat(self._number)


class _RemoteFile:
    """An object; threads take turns, as it has one read-ahead window."""

    def __init__(self, file: OpenInput) -> None:
        self._file = file
        self._lock = threading.Lock()

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        with self._lock:
            return self._file.read_at(begin, num_bytes)

    def stat(self) -> Stat:
        return self._file.stat()


def max_open_files(requested: int | None) -> int:
    """Return how many files a pool may have open: 128, or half of the process's limit if lower.

    Raises:
        OptionError: The requested number is less than 1.
    """
    if requested is not None:
        if requested < 1:
            raise OptionError(f"max_open_files is {requested}", hint="give a number of 1 or more")
        return requested
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN, soft // 2))


def max_source_files() -> int:
    """Return how many files a source may have open while shards are written, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN, soft // 4))


class FilePool:
    """The files of a dataset by number; each is opened when it is first read.

    Args:
        paths: The files.
        states: Their states when they were listed.
        max_open: The limit of open files; by default :func:`max_open_files`.
    """

    def __init__(
        self, paths: Sequence[str], states: Sequence[FileState], max_open: int | None = None
    ) -> None:
        self.paths = paths
        self.states = states
        self._absolute = [absolute(path) for path in paths]
        self._requested = max_open
        self._start()

    def _start(self) -> None:
        self._max_open = max_open_files(self._requested)
        self._lock = threading.Lock()
        self._open: dict[int, PooledFile] = {}  # oldest first
        self._closed = False
        self._pid = os.getpid()  # last, so no reader sees it with a lock from before the fork

    def __getstate__(self) -> dict[str, Any]:
        return {
            "paths": self.paths,
            "states": self.states,
            "_absolute": self._absolute,
            "_requested": self._requested,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def file(self, number: int) -> PooledFile:
        """Return a file; open it if it is not open.

        Raises:
            SourceChanged: The file has changed since it was listed.
            StorageError: It cannot be opened.
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
                # The rest of the program uses up the descriptors: lower the limit from here on.
                self._max_open = max(1, len(self._open) // 2)
                self._open.clear()
                file = _open(path)
            if FileState.of(file.stat()) != self.states[number]:
                raise self._changed(number)
        return file

    def check(self, number: int) -> None:
        """Compare a file with its state when it was listed.

        Raises:
            SourceChanged: It has changed or is missing.
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
            hint="open the dataset again after its writer has finished",
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
        """Close all files; a file that a thread is reading is closed after that."""
        with self._lock:
            self._closed = True
            self._open.clear()


def _open(path: str) -> PooledFile:
    if is_url(path):
        return _RemoteFile(inputs_for(path).open(path))
    return _LocalFile(path)
