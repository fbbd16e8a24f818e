"""Output files of the local file system, and local errors as StorageError."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from shardwriter.errors import OutOfMemory, StorageError
from shardwriter.formats import MEMORY_HINT

# For sources, journals, the lock, and the program's own files: at least this many descriptors, and
# at most this many, as a source of many files may have more of them open.
_SPARE_DESCRIPTORS: Final = 64
_MOST_SPARE_DESCRIPTORS: Final = 192

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

# macOS has no fdatasync.
fdatasync: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)

_HINTS: Final[dict[int, str]] = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EACCES: "check the folder's permissions",
    errno.EPERM: "check the folder's permissions",
    errno.EROFS: "the file system is mounted read-only: write somewhere else",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EEXIST: "choose another name, or delete what is there",
    errno.ELOOP: "a symbolic link is in the way: remove it, or choose another name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn an OSError into a StorageError with the file and a hint, MemoryError into OutOfMemory.

    Args:
        path: The file of errors that name none.
    """
    try:
        yield
    except OutOfMemory as error:
        error.path = error.path or path
        raise
    except MemoryError:
        raise OutOfMemory(
            "there is not enough memory to read it", path=path, hint=MEMORY_HINT
        ) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        where = error.filename if isinstance(error.filename, str) else path
        raise StorageError(
            f"{reason[:1].lower()}{reason[1:]}", path=where, hint=_HINTS.get(error.errno or 0)
        ) from error


class LocalStorage:
    """Files of the local file system; any number of them can be open for appending.

    At most ``max_open`` descriptors are open. Beyond that, the least recently written file is
    closed and opened again for its next write, so the limit of open files does not bound the number
    of shards.

    Args:
        max_open: The limit of descriptors; by default the process's limit, less a reserve.

    Attributes:
        appears_whole: False: a file is visible while it is written.
        num_at_once: 1.
    """

    appears_whole: Final = False
    num_at_once: Final = 1

    def __init__(self, max_open: int | None = None) -> None:
        if max_open is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            spare = max(_SPARE_DESCRIPTORS, min(_MOST_SPARE_DESCRIPTORS, soft // 2))
            max_open = 4096 if soft == resource.RLIM_INFINITY else soft - spare
        self._max_open = max(1, max_open)
        self._open: OrderedDict[str, int] = OrderedDict()  # path -> descriptor, by last use

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[int]]:
        return LocalStorage, (self._max_open,)  # another process opens its own files

    def create(self, path: str, *, new: bool = False) -> LocalFile:
        """Create or replace a file and return it for appending.

        Nothing is written through a link: a symbolic link is refused, and other hard links of a
        replaced file keep its bytes. A ``new`` file must not exist.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with storage_errors(path):
            try:
                descriptor = os.open(path, flags, 0o666)
            except FileExistsError:
                if new:
                    raise
                self._replace(path)
                descriptor = os.open(path, flags, 0o666)
            self._admit(path, descriptor)
        return LocalFile(self, path)

    def _replace(self, path: str) -> None:
        """Delete a file so that it can be replaced."""
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder"}
            raise StorageError(
                f"{kind.get(stat.S_IFMT(mode), 'a special file')} is in the way",
                path=path,
                hint="remove it, or choose another name",
            )
        os.unlink(path)

    def append(self, path: str, num_bytes: int) -> LocalFile:
        """Open a file to append after its first ``num_bytes``; the rest is cut off."""
        with storage_errors(path):
            descriptor = os.open(path, _APPEND)
            self._admit(path, descriptor)
            found = os.fstat(descriptor).st_size
            if found > num_bytes:
                os.ftruncate(descriptor, num_bytes)
        if found < num_bytes:
            self._release(path)
            raise StorageError(f"it has {found:,} bytes and should have {num_bytes:,}", path=path)
        return LocalFile(self, path)

    def _descriptor(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = os.open(path, _APPEND)
            self._admit(path, descriptor)
        else:
            self._open.move_to_end(path)
        return descriptor

    def _admit(self, path: str, descriptor: int) -> None:
        self._release(path)
        while len(self._open) >= self._max_open:
            os.close(self._open.popitem(last=False)[1])
        self._open[path] = descriptor

    def _release(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def sync(self, path: str) -> None:
        """Return once the file's bytes would survive a power cut."""
        with storage_errors(path):
            fdatasync(self._descriptor(path))

    def complete(self, path: str) -> None:
        """Do nothing: written bytes are visible at once."""

    def sync_directory(self, directory: str) -> None:
        """Return once the directory's names would survive a power cut."""
        with storage_errors(directory):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        with storage_errors(path):
            os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; leave one with files, and ignore one that does not exist."""
        with suppress(OSError):
            os.rmdir(path)

    def is_directory(self, path: str) -> bool:
        """Return whether the path is a directory."""
        return os.path.isdir(path)

    def publish(self, source: str, target: str) -> None:
        """Rename a file to its final name; no error if that was done before."""
        self._release(source)
        with storage_errors(target):
            try:
                os.replace(source, target)
            except FileNotFoundError:
                if not os.path.lexists(target):
                    raise

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None if there is no file."""
        with storage_errors(path):
            try:
                return os.stat(path).st_size
            except FileNotFoundError:
                return None

    def crc32c(self, path: str) -> None:
        """Return None: the file system has no checksums."""

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file; None if there is no file."""
        with storage_errors(path):
            try:
                with open(path, "rb", opener=open_plain) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading and seeking."""
        with storage_errors(path):
            return open(path, "rb", opener=open_plain)

    def list(self, directory: str) -> list[str]:
        """Return the names of the files in a directory, sorted."""
        with storage_errors(directory):
            try:
                with os.scandir(directory) as entries:
                    return sorted(entry.name for entry in entries if not entry.is_dir())
            except FileNotFoundError:
                return []

    def delete(self, path: str) -> None:
        """Delete a file; a missing file is no error."""
        self._release(path)
        with storage_errors(path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return


def open_plain(path: str, flags: int) -> int:
    """Open a plain file for reading; an opener for ``open``. A FIFO would block the program.

    Raises:
        OSError: It cannot be opened.
        StorageError: It is not a plain file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder raises in the caller
        os.close(descriptor)
        raise StorageError("not a plain file", path=path, hint="remove it")
    return descriptor


class LocalFile:
    """A file of :class:`LocalStorage` that is open for appending."""

    def __init__(self, storage: LocalStorage, path: str) -> None:
        self._storage = storage
        self._path = path

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""
        with storage_errors(self._path):
            descriptor = self._storage._descriptor(self._path)
            written = os.write(descriptor, data)
            while written < len(data):  # the disk is nearly full, or a signal came
                written += os.write(descriptor, memoryview(data)[written:])

    def close(self) -> None:
        """Close the file."""
        with storage_errors(self._path):
            self._storage._release(self._path)
