"""Any file system that Apache Beam knows, by the scheme of its URLs.

Some of Beam's calls take patterns and others paths. A path may have characters that mean something
in a pattern, so it is quoted for the former. It needs the ``beam`` extra.
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
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, NoReturn, Protocol, cast
from weakref import WeakSet

from shardwriter.errors import (
    MissingExtra,
    OptionError,
    ShardwriterError,
    SourceError,
    StorageError,
)
from shardwriter.storage.inputs import Entry, InputChanged, OpenInput, Stat, Tree, split

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


# Beam's file systems, with one client for each store, and what they raise as an OSError.

EXTRAS: Final = {
    "gs": "shardwriter[gcp]",
    "s3": "apache-beam[aws]",
    "azfs": "apache-beam[azure]",
    "hdfs": "apache-beam[hadoop]",
}
"""What has Beam's file system for a scheme."""

_PACKAGES: Final = {"s3": "boto3", "azfs": "azure.storage.blob", "hdfs": "hdfs"}
"""What Beam's file system of a scheme imports; without it Beam fails at the first request."""

_WEB: Final = ("http", "https", "ftp")

# What the clients that Beam uses raise, beside OSError. They are not imported for that.
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
        OptionError: No file system can read such URLs.
        MissingExtra: It is not installed.
        SourceError: It wants to be told more, as Hadoop's where the servers are.
    """
    scheme = path.partition("://")[0]
    if scheme in _WEB:
        raise OptionError(
            f"{scheme}:// can not be read",
            path=path,
            hint=f"download it, and give the file: curl -LO {shlex.quote(path)}",
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
            else "URLs that can be read begin with gs://, s3://, hdfs:// or azfs://",
        ) from error
    # Amazon's and Microsoft's want some outside of pipelines too.
    options = "_pipeline_options" if scheme == "azfs" else "_options"
    if getattr(system, options, system) is None:
        from apache_beam.options.pipeline_options import PipelineOptions

        system = type(system)(pipeline_options=PipelineOptions([]))
    _share_client(system)
    return system


def _share_client(system: Any) -> None:
    """Let one client make all requests to Google's store.

    Beam makes a client, and with it a connection, for each.
    """
    make = getattr(system, "_gcsIO", None)
    if make is None:
        return
    options = getattr(system, "_pipeline_options", None)
    key = os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST")
    held = _clients.get(key)
    if held is None or held[0] is not options:
        held = _clients[key] = options, make()
    client = held[1]
    system._gcsIO = lambda: client


# -- errors ----------------------------------------------------------------------------------------


@contextmanager
def answered(path: str) -> Iterator[None]:
    """Turn an OSError into a SourceError, where a question was asked."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"can not be looked for: {error.strerror}", path=path) from error


@contextmanager
def told(path: str) -> Iterator[None]:
    """Turn what Beam and its clients raise into an OSError with a reason."""
    try:
        yield
    except ShardwriterError:
        raise
    except _raised() as error:
        if isinstance(error, InputChanged) or getattr(error, "filename", None) == path:
            raise  # it was told already
        found = _os_error(error, path)
        raise (_missing_package(path) if found.errno is None else None) or found from error


def _missing_package(path: str) -> MissingExtra | None:
    """Return the error for a package that Beam needs for a URL; None where it is there."""
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


def _raised() -> tuple[type[BaseException], ...]:
    loaded = [getattr(sys.modules.get(name), kind, None) for name, kind in _CLIENT_ERRORS]
    return (OSError, ValueError, NotImplementedError, *filter(None, loaded))


def _innermost(error: BaseException) -> BaseException:
    """Return what stands at the bottom of Beam's errors, which hold those that they come from."""
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
    """Tell whether an error says that there is nothing of the name."""
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
    told = OSError(text)
    told.strerror = text
    return told


# A file that is read by ranges, where every range is a request.
#
# A request takes as long as some megabytes take to come, so a range is read with what follows it: a
# little at first and wherever reading jumps, and twice as much each time that it goes on nearby.

_FIRST_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 8 << 20
_NEAR_BYTES: Final = 1 << 20  # to skip these costs about as much as a request
_ALL_BYTES: Final = 64 << 20  # of all files that are open


class RangedFile(io.RawIOBase):
    """An object, read by ranges.

    Args:
        path: Its URL.
        size: Its bytes.
        fetch: Returns the bytes of a range, by its first byte and length.
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
        """Return the bytes from ``begin`` on, fewer at the end.

        Raises:
            OSError: The range can not be read.
        """
        end = min(begin + num_bytes, self.size)
        if begin >= end:
            return b""
        stop = self._start + len(self._window)
        if begin < self._start or stop < end:
            self._move(begin, end, stop)
        return self._window[begin - self._start : end - self._start]

    def _move(self, begin: int, end: int, stop: int) -> None:
        """Have the window begin at ``begin`` and reach to ``end`` at least."""
        is_near = self._start <= begin <= stop + max(self._ahead, _NEAR_BYTES)
        most = max(_FIRST_BYTES, min(_MOST_BYTES, _ALL_BYTES // len(self._open)))
        self._ahead = min(2 * self._ahead, most) if is_near else _FIRST_BYTES
        kept = self._window[begin - self._start :] if self._start <= begin < stop else b""
        first = begin + len(kept)
        num_bytes = min(max(end - first, self._ahead), self.size - first)
        data = self._fetch(first, num_bytes)
        if len(data) != num_bytes:
            raise changed(self.name)
        self._window, self._start = kept + data, begin

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        left = max(0, self.size - self._at)
        data = self.read_at(self._at, left if size is None or size < 0 else size)
        self._at += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the next bytes into a buffer and return how many."""
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def close(self) -> None:
        """Give the window and the connection back."""
        if not self.closed:
            self._window = b""
            self._open.discard(self)
            self._release()
        super().close()


class RangedInput(OpenInput):
    """An open object.

    Args:
        file: The object.
        stat: Returns what it is now.
    """

    def __init__(self, file: RangedFile, stat: Callable[[], Stat]) -> None:
        super().__init__(file, _FIRST_BYTES)
        self._ranges = file
        self._ask = stat

    def stat(self) -> Stat:
        """Return what the object is now."""
        return self._ask()

    def read_at(self, begin: int, num_bytes: int) -> bytes:
        """Return the bytes from ``begin`` on, fewer at the end; the stream stays where it is."""
        return self._ranges.read_at(begin, num_bytes)


def changed(path: str) -> InputChanged:
    """Return the error for an object that is not what it was when it was opened."""
    error = InputChanged(f"{path} was replaced or deleted while it was read")
    error.strerror = "it was replaced or deleted while it was read"
    return error


# Inputs at URLs, read through Beam's ``FileSystems``: gs://, s3://, hdfs:// and others.
#
# Beam is imported when the first URL is asked for. Nothing is ever decompressed by its name.
#
# What tells a change is the time of the last one, as Beam tells it. Beam takes a time in UTC for a
# local one, so that machines of two time zones tell times that are hours apart (apache-beam 2.60 to
# 2.77): only what is left of a time after whole half hours is compared.

_HALF_HOUR_US: Final = 1_800_000_000
_FILE_MODE: Final = stat.S_IFREG | 0o444
_MAX_SINGLE: Final = 4  # files of one folder that are asked for one by one


class ObjectStat(NamedTuple):
    """What a store tells of an object."""

    st_size: int
    st_mtime_ns: int
    st_mode: int = _FILE_MODE
    st_ino: int = 0
    st_dev: int = 0


class ObjectEntry(NamedTuple):
    """An object, or a folder as the names of objects make it."""

    name: str
    path: str
    facts: ObjectStat | None  # None: a folder

    def is_dir(self) -> bool:
        """Tell whether it is a folder."""
        return self.facts is None

    def is_file(self) -> bool:
        """Tell whether it is an object."""
        return self.facts is not None

    def stat(self) -> Stat:
        """Return what the listing said."""
        assert self.facts is not None
        return self.facts


class _Names:
    """Names below a root that were listed at once, by the folder that they lie in."""

    def __init__(self, root: str, found: Sequence[Any], limit: int | None = None) -> None:
        self._folders: defaultdict[str, list[ObjectEntry]] = defaultdict(list)
        self._seen: set[str] = set()
        self._root = root
        self.is_whole = limit is None or len(found) < limit
        for metadata in found:
            folder, name = metadata.path.rsplit("/", 1)
            self._add_folder(folder)
            if name:  # else what a console puts there for an empty folder
                self._folders[folder].append(ObjectEntry(name, metadata.path, _facts(metadata)))

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
    """A tree of a file system that has folders: each is listed when it is asked for."""

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
        """Tell whether there is an object of this name, or any below it."""
        return self.is_file(path) or self.is_directory(path)

    def is_directory(self, path: str) -> bool:
        """Tell whether it is a folder, or objects lie below it."""
        with answered(path):
            try:
                return bool(_found(path, limit=1)) or _has_folder(path)
            except NotADirectoryError:
                return False

    def is_file(self, path: str) -> bool:
        """Tell whether there is an object of this name."""
        if not split(path)[1]:
            return False
        with answered(path), told(path):
            system = file_system(path)
            if not system.exists(path):
                return False
        return not system.has_dirs() or not self.is_directory(path)

    def stat(self, path: str) -> Stat:
        """Return what the store tells of an object."""
        with told(path):
            return _facts(file_system(path).metadata(path))

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return the same of many objects; those of one folder are listed."""
        folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in paths:
            folders[split(path)[0]].append(path)
        known: dict[str, Stat] = {}
        for folder, inside in folders.items():
            if len(inside) > _MAX_SINGLE:
                prefix = os.path.commonprefix([split(path)[1] for path in inside])  # noqa: RUF071 - of names
                listed = self.listing(folder, prefix)
                known.update((entry.path, entry.stat()) for entry in listed if entry.is_file())
        return [known.get(path) or self.stat(path) for path in paths]

    def listing(self, directory: str, prefix: str = "") -> Sequence[Entry]:
        """Return what lies in a folder and begins with ``prefix``."""
        directory = directory.rstrip("/")
        if not _has_dirs(directory):
            return _Names(directory, _found(directory, prefix)).scan(directory)
        entries = []
        for found in _found(directory):
            # Folders are listed as files without bytes.
            facts = None if _is_folder(found) else _facts(found)
            path = found.path.rstrip("/")
            entries.append(ObjectEntry(path.rsplit("/", 1)[1], path, facts))
        return entries

    def tree(self, root: str, limit: int | None = None) -> Tree:
        """Return a folder with all that lies below it; an object store lists it at once."""
        root = root.rstrip("/")
        if _has_dirs(root):
            return _Walk(self)
        return _Names(root, _found(root, limit=limit), limit)

    def glob(self, pattern: str) -> list[str]:
        """Return the objects and folders that match, sorted, as :func:`glob.glob` would."""
        plain, *parts = _at_first_magic(pattern)
        if not parts:
            return [pattern] if self.exists(pattern) else []
        with answered(pattern):
            prefix = re.split(r"[*?[]", parts[0], maxsplit=1)[0]
            tree = _Walk(self) if _has_dirs(plain) else _Names(plain, _found(plain, prefix))
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
        """Return what an object is, and all of its bytes."""
        found = _Object(path)
        try:
            return found.facts, found.fetch(0, found.facts.st_size)
        finally:
            found.close()


class _Object:
    """An object that is open.

    Google's store goes on giving the object that was opened, or nothing, once there is another of
    its name; of other stores it is asked anew whether it is still the same.
    """

    def __init__(self, path: str) -> None:
        from apache_beam.io.filesystem import CompressionTypes

        self.path = path
        with told(path):
            self._system = file_system(path)
            file = self._system.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
            blob = getattr(file, "_blob", None)
            self._is_pinned = getattr(blob, "generation", None) is not None
            if self._is_pinned:
                seconds = blob.updated.timestamp()  # type: ignore[union-attr]
                self.facts = ObjectStat(blob.size, _token(seconds))  # type: ignore[union-attr]
            else:
                self.facts = _facts(self._system.metadata(path))
        self._owner = file
        # Beam's buffers have 16 MiB, which is much where a row is wanted.
        self._file = file.raw if isinstance(file, io.BufferedReader) else file
        if isinstance(getattr(file, "_chunk_size", None), int):
            file._chunk_size = 1
        self._is_asked = True

    def ranged(self) -> RangedFile:
        return RangedFile(self.path, self.facts.st_size, self.fetch, self.close)

    def fetch(self, begin: int, num_bytes: int) -> bytes:
        self._is_asked = False
        pieces = []
        try:
            with told(self.path):
                self._file.seek(begin)
                while num_bytes and (data := self._file.read(num_bytes)):
                    pieces.append(data)
                    num_bytes -= len(data)
        except FileNotFoundError:
            raise changed(self.path) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stat(self) -> Stat:
        if not self._is_pinned and not self._is_asked:
            with told(self.path):
                self.facts = _facts(self._system.metadata(self.path))
            self._is_asked = True
        return self.facts

    def close(self) -> None:
        self._owner.close()


# -- what Beam tells -------------------------------------------------------------------------------


def _has_dirs(path: str) -> bool:
    with told(path):
        return bool(file_system(path).has_dirs())


def _found(directory: str, prefix: str = "", limit: int | None = None) -> list[Any]:
    """Return what Beam tells of a folder's files; none where it is not there.

    An object store lists all that lie below and begin with ``prefix``, a file system with folders
    the folder itself.
    """
    directory = directory.rstrip("/")
    with told(directory):
        system = file_system(directory)
        try:
            if system.has_dirs():  # its match() does not know a folder with brackets in its name
                return list(islice(system._list(directory), limit))
            [result] = system.match([f"{glob.escape(f'{directory}/{prefix}')}**"], [limit])
        except OSError as error:
            if is_missing(error):
                return []
            raise
    return list(result.metadata_list)


def _has_folder(path: str) -> bool:
    """Tell whether a folder without files is there; an object store has none."""
    if not _has_dirs(path):
        return False
    with told(path):
        return bool(file_system(path).exists(path))


def _is_folder(metadata: Any) -> bool:
    if metadata.size_in_bytes:
        return False
    try:
        _found(metadata.path, limit=1)
    except NotADirectoryError:
        return False
    return True


def _facts(metadata: Any) -> ObjectStat:
    return ObjectStat(metadata.size_in_bytes, _token(metadata.last_updated_in_seconds))


def _token(seconds: float) -> int:
    """Return what a time is compared by, on any machine."""
    return round(seconds * 1_000_000) % _HALF_HOUR_US * 1000


def _at_first_magic(pattern: str) -> list[str]:
    """Cut a pattern into the folder in front of its first wildcard, and the names from there on."""
    scheme, _, rest = pattern.partition("://")
    names = rest.split("/")
    plain = next((n for n, name in enumerate(names) if glob.has_magic(name)), len(names))
    return [f"{scheme}://{'/'.join(names[:plain])}", *names[plain:]]


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
