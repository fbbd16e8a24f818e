"""Where inputs lie: the one seam between sources and a place that files are read from.

A path is read by the local file system, as it always was. Anything with ``scheme://`` in front is a
URL and is read through Beam (:mod:`shardwriter.storage.beam`). What a place says of a file
looks alike: what ``os.stat`` calls the time of the last change is for an object whatever its store
tells of changes, and is only ever compared.

Questions (``exists``, ``is_file``, ``is_directory``, ``glob``) are answered; where a store does not
answer, that is a SourceError. Everything else raises OSError, with ``strerror`` set. A URL whose
file system is not installed is a MissingExtra.
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
    """What is known of a file, under the names of ``os.stat_result``."""

    @property
    def st_mode(self) -> int:
        """Return whether it is a regular file."""

    @property
    def st_size(self) -> int:
        """Return its bytes."""

    @property
    def st_mtime_ns(self) -> int:
        """Return another number once it has changed; of a local file the time."""

    @property
    def st_ino(self) -> int:
        """Return which file it is; 0 for an object."""

    @property
    def st_dev(self) -> int:
        """Return where that number counts."""


class Entry(Protocol):
    """A file or folder in a folder; an ``os.DirEntry`` is one."""

    @property
    def name(self) -> str:
        """Return the last name of the path."""

    @property
    def path(self) -> str:
        """Return the path."""

    def is_dir(self) -> bool:
        """Tell whether it is a folder."""

    def is_file(self) -> bool:
        """Tell whether it is a file."""

    def stat(self) -> Stat:
        """Return what is known of the file."""


class Tree(Protocol):
    """A folder with all that lies below it."""

    def scan(self, directory: str) -> Sequence[Entry]:
        """Return what lies in the folder, or in one below it; in any order."""

    def identity(self, directory: str) -> tuple[int, int] | None:
        """Return what two ways to one folder have in common; None where there are no links."""

    @property
    def is_whole(self) -> bool:
        """Whether no file was left out."""


class OpenInput(io.BufferedReader):
    """An open file: a stream that can also be read by position, and tells when it has changed."""

    def stat(self) -> Stat:
        """Return what the open file is now."""
        return os.fstat(self.fileno())

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return the bytes from ``begin`` on, fewer at the end; the stream stays where it is."""
        return os.pread(self.fileno(), num_bytes, begin)


class RawInput(Protocol):
    """An open file without a buffer, to be read front to back in large pieces."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""

    def seek(self, offset: int, /) -> int:
        """Go to a place."""

    def seekable(self) -> bool:
        """Say yes."""

    def tell(self) -> int:
        """Return the place."""

    def close(self) -> None:
        """Close it."""


class Inputs(Protocol):
    """A place that files are read from. It holds nothing open and can be pickled."""

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or folder of this name."""

    def is_directory(self, path: str) -> bool:
        """Tell whether it is a folder; in an object store: whether objects lie below it."""

    def is_file(self, path: str) -> bool:
        """Tell whether it is a file."""

    def stat(self, path: str) -> Stat:
        """Return what is known of a file."""

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return the same of many files, with as few requests as it takes."""

    def listing(self, directory: str, prefix: str = "") -> Sequence[Entry]:
        """Return what lies in a folder, in any order.

        Args:
            directory: The folder.
            prefix: Names that do not begin so are not wanted, and may be left out.
        """

    def tree(self, root: str, limit: int | None = None) -> Tree:
        """Return a folder with all that lies below it.

        Args:
            root: The folder.
            limit: Where the place lists all files at once: after how many to stop.
        """

    def glob(self, pattern: str) -> list[str]:
        """Return the files and folders that match, sorted."""

    def open(self, path: str) -> OpenInput:
        """Open a file."""

    def open_raw(self, path: str) -> RawInput:
        """Open a file without a buffer."""

    def read(self, path: str) -> tuple[Stat, bytes]:
        """Return what a file is, and all of its bytes."""


class _LostLink:
    """A link that leads nowhere; an ``os.DirEntry`` may raise when it is only asked what it is."""

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
        return [_LostLink(e) if e.is_symlink() and _is_lost(e) else e for e in entries]


def _is_lost(link: os.DirEntry[str]) -> bool:
    try:
        link.is_dir()
    except OSError:  # a circle of links, or one into a folder that is closed
        return True
    return False


class _LocalTree:
    """A local folder: each folder in it is read when it is asked for."""

    is_whole = True

    def scan(self, directory: str) -> Sequence[Entry]:
        return _local_entries(directory)

    def identity(self, directory: str) -> tuple[int, int]:
        found = os.stat(directory)
        return found.st_dev, found.st_ino


def _no_nul(path: str) -> str:
    """Return a path that a file may have.

    Raises:
        OSError: It has a NUL, of which Python itself says ValueError.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "the name has a NUL, as no file's has", path)
    return path


class LocalInputs:
    """Files of the local file system."""

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or folder of this name."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Tell whether it is a folder."""
        return os.path.isdir(path)

    def is_file(self, path: str) -> bool:
        """Tell whether it is a regular file."""
        return os.path.isfile(path)

    def stat(self, path: str) -> Stat:
        """Return what is known of a file."""
        return os.stat(_no_nul(path))

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return the same of many files."""
        return [self.stat(path) for path in paths]

    def listing(self, directory: str, prefix: str = "") -> Sequence[Entry]:
        """Return all that lies in a folder."""
        return _local_entries(_no_nul(directory))

    def tree(self, root: str, limit: int | None = None) -> Tree:
        """Return a folder with all that lies below it."""
        return _LocalTree()

    def glob(self, pattern: str) -> list[str]:
        """Return the files and folders that match, sorted."""
        return sorted(glob.glob(pattern))

    def open(self, path: str) -> OpenInput:
        """Open a file."""
        return OpenInput(io.FileIO(_no_nul(path)))

    def open_raw(self, path: str) -> RawInput:
        """Open a file without a buffer."""
        return io.FileIO(_no_nul(path))

    def read(self, path: str) -> tuple[Stat, bytes]:
        """Return what a file is, and all of its bytes."""
        with open(_no_nul(path), "rb", buffering=0) as file:
            return os.fstat(file.fileno()), file.readall()


LOCAL: Final = LocalInputs()


def inputs_for(path: str) -> Inputs:
    """Return the place that a path or URL lies in."""
    if not is_url(path):
        return LOCAL
    from shardwriter.storage.beam import BeamInputs

    return BeamInputs()


def open_stream(path: str) -> OpenStream:
    """Open a file anywhere for reading its uncompressed bytes, whatever it is compressed with."""
    if is_url(path):
        return OpenStream(path, inputs_for(path).open_raw(path))
    return compression.open_stream(path)


# -- names -----------------------------------------------------------------------------------------


def absolute(path: str) -> str:
    """Return an absolute path; a URL is one."""
    return path if is_url(path) else os.path.abspath(path)


def real(path: str) -> str:
    """Return an absolute path without links; a URL without slashes at its end."""
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def split(path: str) -> tuple[str, str]:
    """Cut the last name off; what is left of a URL is never less than its bucket or host."""
    found = URL.match(path)
    if found is None:
        return os.path.split(path)
    head, slash, tail = path[found.end() :].rpartition("/")
    if not slash:
        return path, ""
    return found.group() + head.rstrip("/"), tail


def common_folder(paths: Sequence[str]) -> str:
    """Return the deepest folder that holds all files; they are absolute, or URLs of one scheme."""
    found = URL.match(paths[0])
    if found is None:
        return os.path.commonpath([os.path.dirname(path) for path in paths])
    folders = [split(path)[0][found.end() :] for path in paths]
    return found.group() + posixpath.commonpath(folders)


def relative(path: str, folder: str) -> str:
    """Return how a file is called as seen from a folder above it."""
    if is_url(path):
        return path[len(folder) :].lstrip("/")
    return os.path.relpath(path, folder)


def printable(name: str) -> str:
    """Return a name with bytes that are no UTF-8 written out."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
