"""The ``Inputs`` protocol: how sources list, stat and read files, local or at URLs.

Local paths use the local file system. A path with ``scheme://`` is a URL and is read through Beam
(:mod:`shardwriter.storage.beam_inputs`). Both describe a file by the attributes of ``os.stat``. The
modification time of an object is whatever number its store changes with the object; compare it, but
do not show it.

``exists``, ``is_file``, ``is_directory`` and ``glob`` raise SourceError if the store does not
answer. Everything else raises OSError, with ``strerror`` set. A URL whose file system is not
installed raises MissingExtra.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import posixpath
from collections.abc import Sequence
from typing import Final, Protocol

from shardwriter.dataset import URL, is_url
from shardwriter.formats import OpenStream, compression


class InputChanged(OSError):
    """An object was replaced or deleted while it was read."""


class Stat(Protocol):
    """The state of a file, with the attributes of ``os.stat_result``."""

    @property
    def st_mode(self) -> int:
        """The file type and permissions."""

    @property
    def st_size(self) -> int:
        """The size in bytes."""

    @property
    def st_mtime_ns(self) -> int:
        """The modification time in ns; of an object, a number that differs once it has changed."""

    @property
    def st_ino(self) -> int:
        """The inode number; 0 for an object."""

    @property
    def st_dev(self) -> int:
        """The device of the inode number."""


class Entry(Protocol):
    """A file or folder in a folder, as ``os.DirEntry`` is."""

    @property
    def name(self) -> str:
        """The last component of the path."""

    @property
    def path(self) -> str:
        """The path."""

    def is_dir(self) -> bool:
        """Return whether it is a folder."""

    def is_file(self) -> bool:
        """Return whether it is a file."""

    def stat(self) -> Stat:
        """Return the state of the file."""


class Tree(Protocol):
    """A folder with everything below it."""

    def scan(self, directory: str) -> Sequence[Entry]:
        """Return the entries of the folder, or of a folder below it, in any order."""

    def identity(self, directory: str) -> tuple[int, int] | None:
        """Return an identity that is equal for all paths of one folder; None without links."""

    @property
    def is_whole(self) -> bool:
        """Whether the tree lists all files; False after it has stopped at its limit."""


class OpenInput(io.BufferedReader):
    """An open file: a buffered stream that is also read by position, and reports its state."""

    def stat(self) -> Stat:
        """Return the current state of the open file."""
        return os.fstat(self.fileno())

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return bytes starting at ``begin``, fewer at the end; the stream position stays."""
        return os.pread(self.fileno(), num_bytes, begin)


class RawInput(Protocol):
    """An open file without a buffer, to be read from front to back in large blocks."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""

    def seek(self, offset: int, /) -> int:
        """Set the position."""

    def seekable(self) -> bool:
        """Return True."""

    def tell(self) -> int:
        """Return the position."""

    def close(self) -> None:
        """Close the file."""


class Inputs(Protocol):
    """A file system or object store that files are read from. It has no state; it pickles."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder of this name."""

    def is_directory(self, path: str) -> bool:
        """Return whether it is a folder; in an object store, whether objects are below it."""

    def is_file(self, path: str) -> bool:
        """Return whether it is a file."""

    def stat(self, path: str) -> Stat:
        """Return the state of a file."""

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return the states of many files, with as few requests as possible."""

    def listing(self, directory: str, prefix: str = "") -> Sequence[Entry]:
        """Return the entries of a folder, in any order.

        Args:
            directory: The folder.
            prefix: The storage may omit entries whose names do not begin with it.
        """

    def tree(self, root: str, limit: int | None = None) -> Tree:
        """Return a folder with everything below it.

        Args:
            root: The folder.
            limit: Stop after this many files, in a storage that lists all files at once.
        """

    def glob(self, pattern: str) -> list[str]:
        """Return the matching files and folders, sorted."""

    def open(self, path: str) -> OpenInput:
        """Open a file."""

    def open_raw(self, path: str) -> RawInput:
        """Open a file without a buffer."""

    def read(self, path: str) -> tuple[Stat, bytes]:
        """Return the state of a file and all of its bytes."""


class _BrokenLink:
    """A broken symbolic link, for which an ``os.DirEntry`` may raise in ``is_dir``."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name, self.path = entry.name, entry.path

    def is_dir(self) -> bool:
        return False

    def is_file(self) -> bool:
        return False

    def stat(self) -> Stat:
        return os.stat(self.path)


def _local_entries(directory: str) -> Sequence[Entry]:
    with os.scandir(directory) as entries:
        return [_BrokenLink(e) if e.is_symlink() and _is_broken(e) else e for e in entries]


def _is_broken(link: os.DirEntry[str]) -> bool:
    try:
        link.is_dir()
    except OSError:  # a cycle of links, or a target in a folder without permission
        return True
    return False


class _LocalTree:
    """A local folder; its folders are listed on demand."""

    is_whole = True

    def scan(self, directory: str) -> Sequence[Entry]:
        return _local_entries(directory)

    def identity(self, directory: str) -> tuple[int, int]:
        found = os.stat(directory)
        return found.st_dev, found.st_ino


def _no_nul(path: str) -> str:
    """Return the path; raise OSError, not Python's ValueError, if it has a NUL.

    Raises:
        OSError: The path has a NUL.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "file names cannot contain NUL", path)
    return path


class LocalInputs:
    """Files of the local file system."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder of this name."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Return whether it is a folder."""
        return os.path.isdir(path)

    def is_file(self, path: str) -> bool:
        """Return whether it is a regular file."""
        return os.path.isfile(path)

    def stat(self, path: str) -> Stat:
        """Return the state of a file."""
        return os.stat(_no_nul(path))

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return the states of many files."""
        return [self.stat(path) for path in paths]

    def listing(self, directory: str, prefix: str = "") -> Sequence[Entry]:
        """Return the entries of a folder."""
        return _local_entries(_no_nul(directory))

    def tree(self, root: str, limit: int | None = None) -> Tree:
        """Return a folder with everything below it."""
        return _LocalTree()

    def glob(self, pattern: str) -> list[str]:
        """Return the matching files and folders, sorted."""
        return sorted(glob.glob(pattern))

    def open(self, path: str) -> OpenInput:
        """Open a file."""
        return OpenInput(io.FileIO(_no_nul(path)))

    def open_raw(self, path: str) -> RawInput:
        """Open a file without a buffer."""
        return io.FileIO(_no_nul(path))

    def read(self, path: str) -> tuple[Stat, bytes]:
        """Return the state of a file and all of its bytes."""
        with open(_no_nul(path), "rb", buffering=0) as file:
            return os.fstat(file.fileno()), file.readall()


LOCAL: Final = LocalInputs()


def inputs_for(path: str) -> Inputs:
    """Return the inputs of a path or URL."""
    if not is_url(path):
        return LOCAL
    from shardwriter.storage.beam_inputs import BeamInputs

    return BeamInputs()


def open_stream(path: str) -> OpenStream:
    """Open a local or remote file and return a stream of its decompressed bytes."""
    if is_url(path):
        return OpenStream(path, inputs_for(path).open_raw(path))
    return compression.open_stream(path)


def absolute(path: str) -> str:
    """Return an absolute path; a URL is returned as it is."""
    return path if is_url(path) else os.path.abspath(path)


def real(path: str) -> str:
    """Return an absolute path with links resolved; a URL without trailing slashes."""
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def split(path: str) -> tuple[str, str]:
    """Return the folder and the last component of a path; a URL's folder includes its bucket."""
    found = URL.match(path)
    if found is None:
        return os.path.split(path)
    head, slash, tail = path[found.end() :].rpartition("/")
    if not slash:
        return path, ""
    return found.group() + head.rstrip("/"), tail


def common_folder(paths: Sequence[str]) -> str:
    """Return the deepest folder that contains all files (absolute paths, or URLs of one scheme)."""
    found = URL.match(paths[0])
    if found is None:
        return os.path.commonpath([os.path.dirname(path) for path in paths])
    folders = [split(path)[0][found.end() :] for path in paths]
    return found.group() + posixpath.commonpath(folders)


def relative(path: str, folder: str) -> str:
    """Return the path of a file relative to a folder above it."""
    if is_url(path):
        return path[len(folder) :].lstrip("/")
    return os.path.relpath(path, folder)


def printable(name: str) -> str:
    """Return a name with bytes that are not UTF-8 as escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
