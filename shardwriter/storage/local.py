"""The local file system."""

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

# For sources, journals, the lock, and whatever the program has open: so many, and up to as many
# more as a source of many files may have open.
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
    """Turn an OSError into a StorageError that says which file and what to do.

    So does a MemoryError become an `OutOfMemory`.
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
    """Files of the local file system; any number of them can grow at once.

    At most ``max_open`` descriptors are held. Beyond that the file that was written longest ago is
    closed and opened again when its turn comes, so the limit of open files does not bound the
    number of shards.

    Args:
        max_open: Descriptors to hold; by default what the process may have, less a reserve.

    Attributes:
        appears_whole: False: a file is seen while it grows.
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
        self._open: OrderedDict[str, int] = OrderedDict()  # path -> descriptor, oldest first

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[int]]:
        return LocalStorage, (self._max_open,)  # another process opens its own

    def create(self, path: str, *, new: bool = False) -> LocalFile:
        """Create a file, in place of one that is there, and return it for appending.

        Nothing is written through a link: a symbolic link is refused, and another name of the file
        that is replaced keeps its bytes. A ``new`` file must not be there.
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
        """Delete a file that is to be replaced."""
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder"}
            raise StorageError(
                f"{kind.get(stat.S_IFMT(mode), 'no plain file')} is in the way",
                path=path,
                hint="remove it, or choose another name",
            )
        os.unlink(path)

    def append(self, path: str, num_bytes: int) -> LocalFile:
        """Open a file to append behind its first ``num_bytes``; what follows them is cut off."""
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
        """Do nothing: what was written is seen at once."""

    def sync_directory(self, directory: str) -> None:
        """Return once the directory's names would survive a power cut."""
        with storage_errors(directory):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def make_directory(self, path: str) -> None:
        """Make a directory, and those it lies in."""
        with storage_errors(path):
            os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; one that has files, or is not there, is left as it is."""
        with suppress(OSError):
            os.rmdir(path)

    def is_directory(self, path: str) -> bool:
        """Tell whether a directory of this name is there."""
        return os.path.isdir(path)

    def publish(self, source: str, target: str) -> None:
        """Give a file its final name; no error when that was done before."""
        self._release(source)
        with storage_errors(target):
            try:
                os.replace(source, target)
            except FileNotFoundError:
                if not os.path.lexists(target):
                    raise

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None where there is no file."""
        with storage_errors(path):
            try:
                return os.stat(path).st_size
            except FileNotFoundError:
                return None

    def crc32c(self, path: str) -> None:
        """Return None: the file system keeps no checksum."""

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file; None where there is no file."""
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
        """Return the file names in a directory, sorted."""
        with storage_errors(directory):
            try:
                with os.scandir(directory) as entries:
                    return sorted(entry.name for entry in entries if not entry.is_dir())
            except FileNotFoundError:
                return []

    def delete(self, path: str) -> None:
        """Delete a file; a file that is not there is no error."""
        self._release(path)
        with storage_errors(path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return


def open_plain(path: str, flags: int) -> int:
    """Open a file for reading that is no FIFO, which would make the program wait.

    Raises:
        OSError: It can not be opened.
        StorageError: It is no plain file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder is refused by who reads it
        os.close(descriptor)
        raise StorageError("it is no plain file", path=path, hint="remove it")
    return descriptor


class LocalFile:
    """A growing file of :class:`LocalStorage`."""

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
        """Give the file back."""
        with storage_errors(self._path):
            self._storage._release(self._path)
