"""Any file system that Apache Beam has for a URL, as an output. Needs the ``beam`` extra.

Some of Beam's calls take patterns, others paths; paths are escaped for the former.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final, NoReturn, Protocol, cast

from shardwriter.errors import MissingExtra, ShardwriterError, StorageError
from shardwriter.storage.beam_inputs import EXTRAS

try:
    from apache_beam.io.filesystem import BeamIOError, CompressionTypes
    from apache_beam.io.filesystems import FileSystems
except ImportError as error:
    raise MissingExtra(
        f"a URL needs Apache Beam: {error}", hint='pip install "shardwriter[beam]"'
    ) from error

_MIME_TYPE: Final = "application/octet-stream"


class BeamFile(Protocol):
    """A file that is open for appending, and is completed or abandoned as a whole."""

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""

    def finish(self) -> None:
        """Complete the file; doing it again does nothing."""

    def close(self) -> None:
        """Abandon the file, unless it is complete."""


class BeamStorage:
    """Files of any file system that Beam has for a URL.

    A file is complete once it is synced, and cannot be appended to afterwards. Listings include the
    names of folders where Beam lists these (HDFS).

    Attributes:
        appears_whole: False: some of these file systems show a file while it is written.
        num_at_once: 32, as most of the time is waiting.
    """

    @property
    def num_at_once(self) -> int:
        """How many calls may run in parallel, each in a thread."""
        return 32

    @property
    def appears_whole(self) -> bool:
        """Whether a file is visible only once it is complete."""
        return False

    def __init__(self) -> None:
        self._files: dict[str, BeamFile] = {}

    def __reduce__(self) -> tuple[type[BeamStorage], tuple[()]]:
        return type(self), ()  # another process opens its own

    def create(self, path: str, *, new: bool = False) -> BeamFile:
        """Create or replace a file. Whether a ``new`` one exists is checked beforehand."""
        with storage_errors(path):
            file = self._open_new(path, new=new)
        self._files[path] = file
        return _TrackedFile(self._files, path, file)

    def _open_new(self, path: str, *, new: bool) -> BeamFile:
        system = _file_system(path)
        if new and system.exists(path):
            raise StorageError("the file exists already", path=path)
        return _SystemFile(system, path)

    def append(self, path: str, num_bytes: int) -> NoReturn:
        """Raise: these file systems cannot append."""
        raise StorageError("this storage can not append to files", path=path)

    def sync(self, path: str) -> None:
        """Complete the file; one that is not open here must exist."""
        file = self._files.get(path)
        if file is not None:
            with storage_errors(path):
                file.finish()
        elif self.size(path) is None:
            raise StorageError("no such file", path=path)

    def complete(self, path: str) -> None:
        """Do the same as ``sync``."""
        self.sync(path)

    def sync_directory(self, directory: str) -> None:
        """Do nothing: names are durable at once."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, where the file system has directories."""
        with storage_errors(path):
            system = _file_system(path)
            if system.has_dirs() and not system.exists(path):
                try:
                    system.mkdirs(path)
                except OSError:
                    if not system.exists(path):  # not made by another process meanwhile
                        raise

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; leave one with files, and ignore one that does not exist."""
        with suppress(StorageError), storage_errors(path):
            system = _file_system(path)
            if system.has_dirs() and not _match(system, f"{_quoted(system, path)}/**"):
                system.delete([_quoted(system, path)])

    def is_directory(self, path: str) -> bool:
        """Return whether the path is a directory, where the file system has directories."""
        with storage_errors(path):
            system = _file_system(path)
            # No local file has a name that ends with a slash; a file of HDFS cannot be listed.
            if not system.has_dirs() or not system.exists(f"{path}/"):
                return False
            try:
                _match(system, f"{_quoted(system, path)}/*")
            except BeamIOError:
                return False
            return True

    def publish(self, source: str, target: str) -> None:
        """Rename a file; an existing file of the new name is deleted first."""
        if source == target:
            return
        with storage_errors(target):
            system = _file_system(target)
            if not system.exists(source):
                if not system.exists(target):
                    raise StorageError("no such file", path=source)
                return
            try:
                system.rename([source], [target])
            except BeamIOError:
                if not system.exists(target):
                    raise
                if system.exists(source):
                    system.delete([_quoted(system, target)])
                    system.rename([source], [target])

    def delete(self, path: str) -> None:
        """Delete a file; a missing file is no error."""
        with storage_errors(path):
            system = _file_system(path)
            if system.exists(path):
                try:
                    system.delete([_quoted(system, path)])
                except BeamIOError:
                    if system.exists(path):
                        raise

    def list(self, directory: str) -> list[str]:
        """Return the names of the files in a directory, sorted."""
        folder = os.path.join(directory, "")
        with storage_errors(directory):
            system = _file_system(directory)
            if system.has_dirs() and not system.exists(directory):
                return []
            paths = _match(system, f"{_quoted(system, folder)}*")
        names = {path[len(folder) :] for path in paths if path.startswith(folder)}
        return sorted(name for name in names if name and "/" not in name)

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None if there is no file."""
        with storage_errors(path):
            system = _file_system(path)
            return int(system.size(path)) if system.exists(path) else None

    def crc32c(self, path: str) -> int | None:
        """Return None: each file system has another checksum, or none."""
        return None

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file; None if there is no file."""
        with storage_errors(path):
            system = _file_system(path)
            if not system.exists(path):
                return None
            with _open(system, path) as file:
                return file.read()

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading and seeking."""
        with storage_errors(path):
            system = _file_system(path)
            if not system.exists(path):
                raise StorageError("no such file", path=path)
            return _open(system, path)


class _TrackedFile:
    """A file that its storage finds by path until it is closed."""

    def __init__(self, files: dict[str, BeamFile], path: str, file: BeamFile) -> None:
        self._files = files
        self._path = path
        self._file = file

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""
        with storage_errors(self._path):
            self._file.write(data)

    def finish(self) -> None:
        """Complete the file."""
        with storage_errors(self._path):
            self._file.finish()

    def close(self) -> None:
        """Abandon the file, unless it is complete."""
        if self._files.get(self._path) is self._file:
            del self._files[self._path]
        with storage_errors(self._path):
            self._file.close()


class _SystemFile:
    """A file of a file system: closing it completes it, so an abandoned one is deleted then."""

    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self._path = path
        # Without this, Beam would compress files by their names.
        self._file: Any = system.create(path, _MIME_TYPE, CompressionTypes.UNCOMPRESSED)
        self._is_open = True

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""
        if not self._is_open:
            raise StorageError("the file is complete and can not grow", path=self._path)
        self._file.write(data)

    def finish(self) -> None:
        """Complete the file."""
        if self._is_open:
            self._file.close()
            self._is_open = False

    def close(self) -> None:
        """Abandon the file, unless it is complete."""
        if self._is_open:
            self._is_open = False
            try:
                self._file.close()
            finally:
                if self._system.exists(self._path):
                    self._system.delete([_quoted(self._system, self._path)])


def _file_system(path: str) -> Any:
    return FileSystems.get_filesystem(path)


def _quoted(system: Any, path: str) -> str:
    """Return a pattern that matches only this path."""
    # The NUL, which is in no path, avoids a set that begins with a bracket: Python warns of that.
    pattern = re.sub(r"([*?[])", "[\0\\1]", path)
    if pattern != path and system.scheme() == "hdfs":  # it deletes by path, and matches no patterns
        raise StorageError("the name has a character of Beam's patterns (*, ? or [)", path=path)
    return pattern


def _match(system: Any, pattern: str) -> list[str]:
    return [found.path for found in system.match([pattern])[0].metadata_list]


def _open(system: Any, path: str) -> BinaryIO:
    # Without this, Beam would decompress files by their names.
    return cast(BinaryIO, system.open(path, _MIME_TYPE, CompressionTypes.UNCOMPRESSED))


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn any error of a file system into a StorageError."""
    try:
        yield
    except ShardwriterError:
        raise
    except Exception as error:  # each file system, and the libraries behind it, have their own
        raise StorageError(_reason(error), path=path, hint=_hint(error, path)) from error


def _reason(error: BaseException) -> str:
    """Return the message of the innermost of Beam's errors."""
    details = getattr(error, "exception_details", None)
    while isinstance(details, dict) and details:
        inner = next(iter(details.values()))
        if not isinstance(inner, BaseException):
            return f"{error} ({inner})"
        error, details = inner, getattr(inner, "exception_details", None)
    if isinstance(error, OSError) and error.errno:
        reason = os.strerror(error.errno)
        return f"{reason[:1].lower()}{reason[1:]}"
    return str(error) or type(error).__name__


def _hint(error: BaseException, path: str) -> str | None:
    scheme = FileSystems.get_scheme(path)
    if scheme is None or (isinstance(error, OSError) and error.errno):
        return None
    extra = EXTRAS.get(scheme)
    if extra is not None:
        package = f'pip install "{extra}"'
        return f"check the URL; {scheme}:// needs {package}, and credentials and options for Beam"
    if isinstance(error, ValueError) and "required dependency" in str(error):
        return f"Beam has no file system for {scheme}://"
    return f"check the URL, and the configuration that Beam needs for {scheme}://"
