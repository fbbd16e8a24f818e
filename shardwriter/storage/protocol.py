"""Where bytes go: the one seam between shardwriter and a place that keeps files.

A file is created under a working name, grows, is complete with ``sync``, and is published under
its final name in one step. Nothing here knows what the bytes mean. Paths are joined with ``/``:
those of the local file system, or URLs. :func:`storage_for` returns the storage of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, Protocol, TypeVar, runtime_checkable

from shardwriter.dataset import URL
from shardwriter.storage.local import LocalStorage

__all__ = ["ComposingStorage", "OutputFile", "LocalStorage", "Storage"]


class OutputFile(Protocol):
    """A file that is being written."""

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""

    def close(self) -> None:
        """Give the file back. What was not synced before may stay, or be gone as a whole."""


class Storage(Protocol):
    """What a place to put datasets must be able to do.

    A file is complete with :meth:`sync`, and not with the file's ``close``: object stores show an
    object when its upload ends, and closing one that was never synced abandons the upload, so that
    nothing partial appears. Where ``append`` works a file can grow on after a sync; elsewhere it
    can not.

    Every method raises StorageError with the path when the place says no.
    """

    @property
    def appears_whole(self) -> bool:
        """Whether a file is seen only once it is complete: then it needs no working name."""

    @property
    def num_at_once(self) -> int:
        """How many calls may be made at once, from several threads: 1 where none is slow."""

    def create(self, path: str, *, new: bool = False) -> OutputFile:
        """Create a file, in place of one that is there, and return it for appending.

        Args:
            path: The file.
            new: It must not be there. The place says no now, or when the file is complete. One that
                keeps checksums takes a file with the very same bytes for the work of another
                attempt, and does not say no.
        """

    def append(self, path: str, num_bytes: int) -> OutputFile:
        """Open a file to append behind its first ``num_bytes``; what follows them is cut off.

        It is an error that the file has fewer, or that the place can not append.
        """

    def sync(self, path: str) -> None:
        """Return once the file's bytes would survive a power cut."""

    def complete(self, path: str) -> None:
        """Return once others can read all of the file; a power cut may still take it.

        For files that are made again when they are gone.
        """

    def sync_directory(self, directory: str) -> None:
        """Return once the directory's names would survive a power cut."""

    def make_directory(self, path: str) -> None:
        """Make a directory, and those it lies in; one that is there is no error."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; one that has files, or is not there, is left as it is."""

    def is_directory(self, path: str) -> bool:
        """Tell whether a directory of this name is in the way of a file."""

    def publish(self, source: str, target: str) -> None:
        """Give a file its final name in one step, replacing a file of that name.

        Doing it again after it was done is no error, and a file is published onto itself by doing
        nothing.
        """

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None where there is no file."""

    def crc32c(self, path: str) -> int | None:
        """Return the CRC-32C that the place itself keeps of a file; None where it keeps none."""

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file; None where there is no file."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading and seeking; it is an error that there is none."""

    def delete(self, path: str) -> None:
        """Delete a file; a file that is not there is no error."""

    def list(self, directory: str) -> list[str]:
        """Return the file names in a directory, sorted; none where there is no directory."""


@runtime_checkable
class ComposingStorage(Protocol):
    """A place that can join files without their bytes going through this machine."""

    def compose(
        self, sources: Sequence[str], target: str, *, num_bytes: int, crc32c: int, new: bool
    ) -> None:
        """Join files, which stay, into one.

        The target appears whole. Doing it again after it was done is no error, also when the
        sources are gone since.

        Args:
            sources: The files, in order; any number of them.
            target: The file to make.
            num_bytes: What its size must be.
            crc32c: What its CRC-32C must be.
            new: It must not be there, unless with the very same bytes.

        Raises:
            StorageError: What came out, or is there, is something else; or a source is not there.
        """


# Whose a path is: the local file system's, Google Cloud Storage's, or one that Beam knows.


def storage_for(path: str) -> Storage:
    """Return the storage of a path, by its scheme.

    Raises:
        MissingExtra: It is a URL, and Apache Beam, or its part for Google Cloud, is not installed.
    """
    found = URL.match(path)
    if found is None:
        return LocalStorage()
    if found[1] == "gs":
        from shardwriter.storage.gcs import GcsStorage

        return GcsStorage()
    from shardwriter.storage.beam import FileSystemStorage

    return FileSystemStorage()


# Doing something to many files: one after the other, or at a place far away several at once.

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    storage: Storage, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> list[_Result]:
    """Call a function for every item, and return what it returns, in order.

    Raises:
        Exception: What the function raised; some items may not have had their turn then.
    """
    return list(each_in_turn(storage, function, items))


def each_in_turn(
    storage: Storage, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Do the same, and have no more results at hand than calls are made at once."""
    if storage.num_at_once == 1:
        yield from map(function, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    rest = iter(items)
    with ThreadPoolExecutor(storage.num_at_once) as pool:
        while some := list(islice(rest, storage.num_at_once)):
            yield from pool.map(function, some)
