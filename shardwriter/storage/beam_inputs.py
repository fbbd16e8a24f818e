"""Inputs at URLs, read through Beam's file systems (gs://, s3://, hdfs:// and others).

Beam is imported for the first URL. Files are not decompressed by their names. Needs the ``beam``
extra.

    file_system    Beam's file system of a URL, with one client for each store
    os_errors      what Beam and its clients raise, as OSError
    RangedFile     an object that is read by ranges, with read-ahead
    BeamInputs     listing, stat and open
"""

from __future__ import annotations

import errno
import glob
import importlib
import io
import os
import re
import shlex
import stat
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from shardwriter.errors import (
    MissingExtra,
    OptionError,
    ShardwriterError,
    SourceError,
)
from shardwriter.storage.inputs import Entry, InputChanged, OpenInput, Stat, Tree, split

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


EXTRAS: Final = {
    "gs": "shardwriter[gcp]",
    "s3": "apache-beam[aws]",
    "azfs": "apache-beam[azure]",
    "hdfs": "apache-beam[hadoop]",
}
"""The package with Beam's file system of a scheme."""

_PACKAGES: Final = {"s3": "boto3", "azfs": "azure.storage.blob", "hdfs": "hdfs"}
"""What Beam's file system of a scheme imports; without it Beam fails at the first request."""

_WEB: Final = ("http", "https", "ftp")

# Errors of the clients that Beam uses, beside OSError; looked up in the modules that are imported.
_CLIENT_ERRORS: Final = (
    ("google.api_core.exceptions", "GoogleAPIError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("apache_beam.io.aws.clients.s3.messages", "S3ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("hdfs.util", "HdfsError"),
)

_clients: dict[tuple[int, str | None], tuple[Any, Any]] = {}


def file_system(path: str) -> Any:
    """Return Beam's file system for a URL.

    Raises:
        OptionError: No file system reads such URLs.
        MissingExtra: Its package is not installed.
        SourceError: It needs configuration, such as the server of HDFS.
    """
    scheme = path.partition("://")[0]
    if scheme in _WEB:
        raise OptionError(
            f"{scheme}:// can not be read",
            path=path,
            hint=f"download it, then give the file: curl -LO {shlex.quote(path)}",
        )
    extra = EXTRAS.get(scheme)
    try:
        from apache_beam.io.filesystems import FileSystems
    except ImportError as error:
        raise MissingExtra(
            f"{scheme}:// is read through Apache Beam: {error}",
            hint=f'pip install "{"shardwriter[gcp]" if scheme == "gs" else "shardwriter[beam]"}"',
        ) from error
    try:
        system = FileSystems.get_filesystem(path)
    except (ValueError, OSError) as error:
        reason = _innermost(error)
        if isinstance(error, OSError) and not isinstance(reason, ImportError):
            raise SourceError(f"can not be reached: {reason}", path=path) from error
        raise MissingExtra(
            f"Apache Beam has no file system for {scheme}:// here",
            hint=f'pip install "{extra}"'
            if extra
            else "supported URLs begin with gs://, s3://, hdfs:// or azfs://",
        ) from error
    # The file systems of S3 and Azure need options outside of pipelines, too.
    options = "_pipeline_options" if scheme == "azfs" else "_options"
    if getattr(system, options, system) is None:
        from apache_beam.options.pipeline_options import PipelineOptions

        system = type(system)(pipeline_options=PipelineOptions([]))
    _share_client(system)
    return system


def _share_client(system: Any) -> None:
    """Use one client for all requests to Google Cloud Storage; Beam makes one per request."""
    make = getattr(system, "_gcsIO", None)
    if make is None:
        return
    options = getattr(system, "_pipeline_options", None)
    key = os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST")
    cached = _clients.get(key)
    if cached is None or cached[0] is not options:
        cached = _clients[key] = options, make()
    client = cached[1]
    system._gcsIO = lambda: client


# -- errors ----------------------------------------------------------------------------------------


@contextmanager
def source_errors(path: str) -> Iterator[None]:
    """Turn an OSError of a question (does it exist?) into a SourceError."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"can not be listed: {error.strerror}", path=path) from error


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Turn errors of Beam and its clients into an OSError with ``strerror``."""
    try:
        yield
    except ShardwriterError:
        raise
    except _error_types() as error:
        if isinstance(error, InputChanged) or getattr(error, "filename", None) == path:
            raise  # converted already
        found = _os_error(error, path)
        raise (_missing_package(path) if found.errno is None else None) or found from error


def _missing_package(path: str) -> MissingExtra | None:
    """Return the error for a package that Beam needs for a URL; None if it is installed."""
    scheme = path.partition("://")[0]
    package = _PACKAGES.get(scheme)
    if package is None:
        return None
    try:
        importlib.import_module(package)
    except ImportError:
        needed = package.partition(".")[0]
        return MissingExtra(
            f"{scheme}:// needs the package {needed}", hint=f'pip install "{EXTRAS[scheme]}"'
        )
    return None


def _error_types() -> tuple[type[BaseException], ...]:
    loaded = [getattr(sys.modules.get(name), kind, None) for name, kind in _CLIENT_ERRORS]
    return (OSError, ValueError, NotImplementedError, *filter(None, loaded))


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost of Beam's errors, which nest their causes in ``exception_details``."""
    details = getattr(error, "exception_details", None)
    while isinstance(details, dict) and details:
        inner = next(iter(details.values()))
        if not isinstance(inner, BaseException):
            break
        error, details = inner, getattr(inner, "exception_details", None)
    return error


def _status(error: BaseException) -> int:
    code = getattr(error, "code", None) or getattr(error, "status_code", None)
    return int(code) if isinstance(code, int) else 0


def is_missing(error: BaseException) -> bool:
    """Return whether an error means that no file has this name."""
    error = _innermost(error)
    return (
        isinstance(error, FileNotFoundError)
        or _status(error) == 404
        or "not found" in str(error).lower()
    )


def _os_error(error: BaseException, path: str) -> OSError:
    error = _innermost(error)
    if is_missing(error):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if _status(error) in (401, 403) or isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    if "not a directory" in str(error).lower() or isinstance(error, NotADirectoryError):
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    text = " ".join(str(error).split())[:300] or type(error).__name__
    result = OSError(text)
    result.strerror = text
    return result


# Ranges: a request takes as long as transferring some megabytes, so a range is read together with
# the bytes after it: few at first and after a jump, and twice as many on each sequential read.

_FIRST_BYTES: Final = 1 << 16
_MAX_AHEAD_BYTES: Final = 8 << 20
_NEAR_BYTES: Final = 1 << 20  # skipping this much costs about as much as a request
_TOTAL_BYTES: Final = 64 << 20  # of read-ahead, of all open files


class RangedFile(io.RawIOBase):
    """An object that is read by ranges, with read-ahead.

    Args:
        path: Its URL.
        size: Its size in bytes.
        fetch: Returns the bytes of a range, given its offset and length.
        release: Called when the file is closed.
    """

    _open: Final[WeakSet[RangedFile]] = WeakSet()

    def __init__(
        self,
        path: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        release: Callable[[], None],
    ) -> None:
        super().__init__()
        self.name = path
        self.size = size
        self._fetch = fetch
        self._release = release
        self._at = 0
        self._window, self._start = b"", 0
        self._ahead = _FIRST_BYTES
        self._open.add(self)

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return bytes starting at ``begin``; fewer at the end.

        Raises:
            OSError: The range cannot be read.
        """
        end = min(begin + num_bytes, self.size)
        if begin >= end:
            return b""
        stop = self._start + len(self._window)
        if begin < self._start or stop < end:
            self._move(begin, end, stop)
        return self._window[begin - self._start : end - self._start]

    def _move(self, begin: int, end: int, stop: int) -> None:
        """Move the window to begin at ``begin`` and to include ``end``."""
        is_near = self._start <= begin <= stop + max(self._ahead, _NEAR_BYTES)
        limit = max(_FIRST_BYTES, min(_MAX_AHEAD_BYTES, _TOTAL_BYTES // len(self._open)))
        self._ahead = min(2 * self._ahead, limit) if is_near else _FIRST_BYTES
        overlap = self._window[begin - self._start :] if self._start <= begin < stop else b""
        first = begin + len(overlap)
        num_bytes = min(max(end - first, self._ahead), self.size - first)
        data = self._fetch(first, num_bytes)
        if len(data) != num_bytes:
            raise changed(self.name)
        self._window, self._start = overlap + data, begin

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next ``size`` bytes, or the rest."""
        left = max(0, self.size - self._at)
        data = self.read_at(self._at, left if size is None or size < 0 else size)
        self._at += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the next bytes into a buffer and return their number."""
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Free the window and release the connection."""
        if not self.closed:
            self._window = b""
            self._open.discard(self)
            self._release()
        super().close()


class RangedInput(OpenInput):
    """An open object, buffered.

    Args:
        file: The object.
        stat: Returns its current state.
    """

    def __init__(self, file: RangedFile, stat: Callable[[], Stat]) -> None:
        super().__init__(file, _FIRST_BYTES)
        self._ranges = file
        self._current_stat = stat

    def stat(self) -> Stat:
        """Return the current state of the object."""
        return self._current_stat()

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return bytes starting at ``begin``, fewer at the end; the stream position stays."""
        return self._ranges.read_at(begin, num_bytes)


def changed(path: str) -> InputChanged:
    """Return the error for an object that has changed since it was opened."""
    error = InputChanged(f"{path} was replaced or deleted while it was read")
    error.strerror = "it was replaced or deleted while it was read"
    return error


# A change of an object shows in its modification time, as Beam reports it. Beam takes a time in UTC
# for a local one, so machines in two time zones report times that are hours apart (apache-beam 2.60
# to 2.77): only the remainder of a time modulo half an hour is compared.

_HALF_HOUR_US: Final = 1_800_000_000
_FILE_MODE: Final = stat.S_IFREG | 0o444
_MAX_SINGLE: Final = 4  # files of one folder to stat one by one; more are listed


class ObjectStat(NamedTuple):
    """The state of an object."""

    st_size: int
    st_mtime_ns: int
    st_mode: int = _FILE_MODE
    st_ino: int = 0
    st_dev: int = 0


class ObjectEntry(NamedTuple):
    """An object, or a folder that exists as a prefix of object names."""

    name: str
    path: str
    state: ObjectStat | None  # None: a folder

    def is_dir(self) -> bool:
        """Return whether it is a folder."""
        return self.state is None

    def is_file(self) -> bool:
        """Return whether it is an object."""
        return self.state is not None

    def stat(self) -> Stat:
        """Return the state from the listing."""
        assert self.state is not None
        return self.state


class _ObjectTree:
    """All objects below a root, from one listing, by folder."""

    def __init__(self, root: str, found: Sequence[Any], limit: int | None = None) -> None:
        self._folders: defaultdict[str, list[ObjectEntry]] = defaultdict(list)
        self._seen: set[str] = set()
        self._root = root
        self.is_whole = limit is None or len(found) < limit
        for metadata in found:
            folder, name = metadata.path.rsplit("/", 1)
            self._add_folder(folder)
            if name:  # without a name: the marker of an empty folder
                self._folders[folder].append(ObjectEntry(name, metadata.path, _state(metadata)))

    def _add_folder(self, path: str) -> None:
        while len(path) > len(self._root) and path not in self._seen:
            self._seen.add(path)
            above, name = path.rsplit("/", 1)
            self._folders[above].append(ObjectEntry(name, path, None))
            path = above

    def scan(self, directory: str) -> Sequence[Entry]:
        return self._folders.get(directory.rstrip("/"), [])

    def identity(self, directory: str) -> None:
        return None


class _Walk:
    """A tree of a file system with folders; they are listed on demand."""

    is_whole = True

    def __init__(self, inputs: BeamInputs) -> None:
        self._inputs = inputs

    def scan(self, directory: str) -> Sequence[Entry]:
        return self._inputs.listing(directory)

    def identity(self, directory: str) -> None:
        return None


class BeamInputs:
    """Files at URLs."""

    def exists(self, path: str) -> bool:
        """Return whether there is an object of this name, or any below it."""
        return self.is_file(path) or self.is_directory(path)

    def is_directory(self, path: str) -> bool:
        """Return whether it is a folder, or objects are below it."""
        with source_errors(path):
            try:
                return bool(_list(path, limit=1)) or _has_folder(path)
            except NotADirectoryError:
                return False

    def is_file(self, path: str) -> bool:
        """Return whether there is an object of this name."""
        if not split(path)[1]:
            return False
        with source_errors(path), os_errors(path):
            system = file_system(path)
            if not system.exists(path):
                return False
        return not system.has_dirs() or not self.is_directory(path)

    def stat(self, path: str) -> Stat:
        """Return the state of an object."""
        with os_errors(path):
            return _state(file_system(path).metadata(path))

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return the states of many objects; several of one folder are listed at once."""
        folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in paths:
            folders[split(path)[0]].append(path)
        known: dict[str, Stat] = {}
        for folder, inside in folders.items():
            if len(inside) > _MAX_SINGLE:
                names = [split(path)[1] for path in inside]
                listed = self.listing(folder, os.path.commonprefix(names))  # noqa: RUF071 - names
                known.update((entry.path, entry.stat()) for entry in listed if entry.is_file())
        return [known.get(path) or self.stat(path) for path in paths]

    def listing(self, directory: str, prefix: str = "") -> Sequence[Entry]:
        """Return the entries of a folder whose names begin with ``prefix``."""
        directory = directory.rstrip("/")
        if not _has_dirs(directory):
            return _ObjectTree(directory, _list(directory, prefix)).scan(directory)
        entries = []
        for found in _list(directory):
            # Folders are listed as files without bytes.
            state = None if _is_folder(found) else _state(found)
            path = found.path.rstrip("/")
            entries.append(ObjectEntry(path.rsplit("/", 1)[1], path, state))
        return entries

    def tree(self, root: str, limit: int | None = None) -> Tree:
        """Return a folder with everything below it; an object store lists it at once."""
        root = root.rstrip("/")
        if _has_dirs(root):
            return _Walk(self)
        return _ObjectTree(root, _list(root, limit=limit), limit)

    def glob(self, pattern: str) -> list[str]:
        """Return the matching objects and folders, sorted, as :func:`glob.glob` would."""
        plain, *parts = _split_pattern(pattern)
        if not parts:
            return [pattern] if self.exists(pattern) else []
        with source_errors(pattern):
            prefix = re.split(r"[*?[]", parts[0], maxsplit=1)[0]
            tree = _Walk(self) if _has_dirs(plain) else _ObjectTree(plain, _list(plain, prefix))
            found: list[Entry] = [ObjectEntry("", plain, None)]
            for part in parts:
                found = [
                    entry
                    for folder in found
                    if folder.is_dir()
                    for entry in tree.scan(folder.path)
                    if fnmatchcase(entry.name, part)
                    and (part.startswith(".") or not entry.name.startswith("."))
                ]
        return sorted(entry.path for entry in found)

    def open(self, path: str) -> OpenInput:
        """Open an object."""
        found = _Object(path)
        return RangedInput(found.ranged(), found.stat)

    def open_raw(self, path: str) -> RangedFile:
        """Open an object without a buffer."""
        return _Object(path).ranged()

    def read(self, path: str) -> tuple[Stat, bytes]:
        """Return the state of an object and all of its bytes."""
        found = _Object(path)
        try:
            return found.state, found.fetch(0, found.state.st_size)
        finally:
            found.close()


class _Object:
    """An open object.

    Google's store continues to serve the object that was opened, or fails, once it is replaced;
    other stores are asked after each read whether the object is still the same.
    """

    def __init__(self, path: str) -> None:
        from apache_beam.io.filesystem import CompressionTypes

        self.path = path
        with os_errors(path):
            self._system = file_system(path)
            file = self._system.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
            blob = getattr(file, "_blob", None)
            self._is_pinned = getattr(blob, "generation", None) is not None
            if self._is_pinned:
                seconds = blob.updated.timestamp()  # type: ignore[union-attr]
                self.state = ObjectStat(blob.size, _token(seconds))  # type: ignore[union-attr]
            else:
                self.state = _state(self._system.metadata(path))
        self._owner = file
        # Beam's buffers have 16 MiB, too much to read a single row.
        self._file = file.raw if isinstance(file, io.BufferedReader) else file
        if isinstance(getattr(file, "_chunk_size", None), int):
            file._chunk_size = 1
        self._is_current = True  # whether `state` was read after the last fetch

    def ranged(self) -> RangedFile:
        return RangedFile(self.path, self.state.st_size, self.fetch, self.close)

    def fetch(self, begin: int, num_bytes: int) -> bytes:
        self._is_current = False
        parts = []
        try:
            with os_errors(self.path):
                self._file.seek(begin)
                while num_bytes and (data := self._file.read(num_bytes)):
                    parts.append(data)
                    num_bytes -= len(data)
        except FileNotFoundError:
            raise changed(self.path) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def stat(self) -> Stat:
        if not self._is_pinned and not self._is_current:
            with os_errors(self.path):
                self.state = _state(self._system.metadata(self.path))
            self._is_current = True
        return self.state

    def close(self) -> None:
        self._owner.close()


def _has_dirs(path: str) -> bool:
    with os_errors(path):
        return bool(file_system(path).has_dirs())


def _list(directory: str, prefix: str = "", limit: int | None = None) -> list[Any]:
    """Return Beam's metadata of the files in a folder; none if it does not exist.

    An object store lists all objects below it that begin with ``prefix``; a file system with
    folders lists only the folder itself.
    """
    directory = directory.rstrip("/")
    with os_errors(directory):
        system = file_system(directory)
        try:
            if system.has_dirs():  # its match() fails on a folder with brackets in its name
                return list(islice(system._list(directory), limit))
            [result] = system.match([f"{glob.escape(f'{directory}/{prefix}')}**"], [limit])
        except OSError as error:
            if is_missing(error):
                return []
            raise
    return list(result.metadata_list)


def _has_folder(path: str) -> bool:
    """Return whether an empty folder exists; object stores have none."""
    if not _has_dirs(path):
        return False
    with os_errors(path):
        return bool(file_system(path).exists(path))


def _is_folder(metadata: Any) -> bool:
    if metadata.size_in_bytes:
        return False
    try:
        _list(metadata.path, limit=1)
    except NotADirectoryError:
        return False
    return True


def _state(metadata: Any) -> ObjectStat:
    return ObjectStat(metadata.size_in_bytes, _token(metadata.last_updated_in_seconds))


def _token(seconds: float) -> int:
    """Return a time as the number that identifies a version of an object on any machine."""
    return round(seconds * 1_000_000) % _HALF_HOUR_US * 1000


def _split_pattern(pattern: str) -> list[str]:
    """Split a pattern into the folder before its first wildcard, and the components after it."""
    scheme, _, rest = pattern.partition("://")
    names = rest.split("/")
    plain = next((n for n, name in enumerate(names) if glob.has_magic(name)), len(names))
    return [f"{scheme}://{'/'.join(names[:plain])}", *names[plain:]]
