"""Any file system that Apache Beam knows, by the scheme of its URLs.

Some of Beam's calls take patterns and others paths. A path may have characters that mean something
in a pattern, so it is quoted for the former. It needs the ``beam`` extra.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final, NoReturn, Protocol, cast

from shardwriter.errors import MissingExtra, ShardwriterError, StorageError
from shardwriter.storage.beam_system import EXTRAS

try:
    from apache_beam.io.filesystem import BeamIOError, CompressionTypes
    from apache_beam.io.filesystems import FileSystems
except ImportError as error:
    raise MissingExtra(
        f"a URL needs Apache Beam: {error}", hint='pip install "shardwriter[beam]"'
    ) from error

_MIME_TYPE: Final = "application/octet-stream"


class Growing(Protocol):
    """A file that is being written, and ends whole or not at all."""

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""

    def finish(self) -> None:
        """Complete the file; doing it again does nothing."""

    def close(self) -> None:
        """Abandon the file, unless it is complete."""


class FileSystemStorage:
    """Files of whatever Beam's ``FileSystems`` finds for a URL.

    A file is complete once it is synced, and can not grow afterwards. Names of folders are among
    those listed where Beam lists them (HDFS).

    Attributes:
        appears_whole: False: some of these places show a file while it grows.
        num_at_once: 32, as most of the time is waiting.
    """

    @property
    def num_at_once(self) -> int:
        """How many calls may be made at once."""
        return 32

    @property
    def appears_whole(self) -> bool:
        """Whether a file is seen only once it is complete."""
        return False

    def __init__(self) -> None:
        self._growing: dict[str, Growing] = {}

    def __reduce__(self) -> tuple[type[FileSystemStorage], tuple[()]]:
        return type(self), ()  # another process opens its own

    # -- writing -----------------------------------------------------------------------------------

    def create(self, path: str, *, new: bool = False) -> Growing:
        """Create a file, or replace it. Whether a ``new`` one is there is looked at beforehand."""
        with storage_errors(path):
            file = self._open_new(path, new=new)
        self._growing[path] = file
        return _Tracked(self._growing, path, file)

    def _open_new(self, path: str, *, new: bool) -> Growing:
        system = _file_system(path)
        if new and system.exists(path):
            raise StorageError("it is there already", path=path)
        return _SystemFile(system, path)

    def append(self, path: str, num_bytes: int) -> NoReturn:
        """Refuse: these places can not append."""
        raise StorageError(
            "files of this place can not be appended to", path=path, hint="write it from the start"
        )

    def sync(self, path: str) -> None:
        """Complete the file; one that was completed before has to be there."""
        growing = self._growing.get(path)
        if growing is not None:
            with storage_errors(path):
                growing.finish()
        elif self.size(path) is None:
            raise StorageError("no such file", path=path)

    def complete(self, path: str) -> None:
        """Do what sync does."""
        self.sync(path)

    def sync_directory(self, directory: str) -> None:
        """Do nothing: names last as soon as they are given."""

    # -- names -------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        """Make a directory, and those it lies in, where the place has any."""
        with storage_errors(path):
            system = _file_system(path)
            if system.has_dirs() and not system.exists(path):
                try:
                    system.mkdirs(path)
                except OSError:
                    if not system.exists(path):  # not made by another process meanwhile
                        raise

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; one that has files, or is not there, is left as it is."""
        with suppress(StorageError), storage_errors(path):
            system = _file_system(path)
            if system.has_dirs() and not _match(system, f"{_quoted(system, path)}/**"):
                system.delete([_quoted(system, path)])

    def is_directory(self, path: str) -> bool:
        """Tell whether a directory of this name is there, where the place has any."""
        with storage_errors(path):
            system = _file_system(path)
            # A local file has no name with a slash behind it; a file of HDFS can not be listed.
            if not system.has_dirs() or not system.exists(f"{path}/"):
                return False
            try:
                _match(system, f"{_quoted(system, path)}/*")
            except BeamIOError:
                return False
            return True

    def publish(self, source: str, target: str) -> None:
        """Rename a file; where a file of the new name is in the way it is deleted before."""
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
        """Delete a file; a file that is not there is no error."""
        with storage_errors(path):
            system = _file_system(path)
            if system.exists(path):
                try:
                    system.delete([_quoted(system, path)])
                except BeamIOError:
                    if system.exists(path):
                        raise

    def list(self, directory: str) -> list[str]:
        """Return the file names in a directory, sorted."""
        folder = os.path.join(directory, "")
        with storage_errors(directory):
            system = _file_system(directory)
            if system.has_dirs() and not system.exists(directory):
                return []
            paths = _match(system, f"{_quoted(system, folder)}*")
        names = {path[len(folder) :] for path in paths if path.startswith(folder)}
        return sorted(name for name in names if name and "/" not in name)

    # -- reading -----------------------------------------------------------------------------------

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None where there is no file."""
        with storage_errors(path):
            system = _file_system(path)
            return int(system.size(path)) if system.exists(path) else None

    def crc32c(self, path: str) -> int | None:
        """Return None: what checksums there are differ from place to place."""
        return None

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file; None where there is no file."""
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


class _Tracked:
    """A growing file whose storage knows it by its path until it is closed."""

    def __init__(self, growing: dict[str, Growing], path: str, file: Growing) -> None:
        self._growing = growing
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
        if self._growing.get(self._path) is self._file:
            del self._growing[self._path]
        with storage_errors(self._path):
            self._file.close()


class _SystemFile:
    """A growing file of a file system: closed when it is complete, and then, if not, deleted."""

    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self._path = path
        # Beam would compress by the name.
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
    """Return the pattern that means just this path."""
    # With no NUL, which is in no path, the set would begin with a bracket: Python warns of that.
    pattern = re.sub(r"([*?[])", "[\0\\1]", path)
    if pattern != path and system.scheme() == "hdfs":  # it deletes paths, and lists no patterns
        raise StorageError("the name has a character that Beam takes for a pattern", path=path)
    return pattern


def _match(system: Any, pattern: str) -> list[str]:
    return [found.path for found in system.match([pattern])[0].metadata_list]


def _open(system: Any, path: str) -> BinaryIO:
    # Beam would unpack by the name.
    return cast(BinaryIO, system.open(path, _MIME_TYPE, CompressionTypes.UNCOMPRESSED))


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn what a file system raises, which can be of any class, into a StorageError."""
    try:
        yield
    except ShardwriterError:
        raise
    except Exception as error:  # each file system, and the libraries behind it, have their own
        raise StorageError(_reason(error), path=path, hint=_hint(error, path)) from error


def _reason(error: BaseException) -> str:
    """Say what went wrong, by the innermost error that Beam tells of."""
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
        needs = f'pip install "{extra}", and the credentials and options that Beam'
        return f"check the address; {scheme}:// needs {needs} has for it"
    if isinstance(error, ValueError) and "required dependency" in str(error):
        return f"Beam has no file system for {scheme}://"
    return f"check the address, and what Beam needs for {scheme}://"
