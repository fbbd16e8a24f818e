"""The ``Storage`` protocol: how output files are created, completed, published, read and deleted.

A file is created under a working name, appended to, completed with ``sync``, and published under
its final name in one step. A storage does not interpret the bytes. Paths are joined with ``/``:
local paths or URLs. :func:`storage_for` returns the storage of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, Protocol, TypeVar, runtime_checkable

from shardwriter.dataset import URL
from shardwriter.storage.local import LocalStorage


class OutputFile(Protocol):
    """An output file that is open for appending."""

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""

    def close(self) -> None:
        """Close the file. Bytes that were not synced may stay, or the whole file may be gone."""


class Storage(Protocol):
    """A file system or object store that datasets are written to.

    A file is complete after :meth:`sync`, not after the file's ``close``: object stores show an
    object when its upload ends, and closing an object that was never synced abandons its upload, so
    no partial object appears. A file can be appended to after a sync only where ``append`` works.

    Every method raises StorageError with the path when the storage refuses or fails.
    """

    @property
    def appears_whole(self) -> bool:
        """Whether a file is visible only once it is complete, so that it needs no working name."""

    @property
    def num_at_once(self) -> int:
        """How many calls may run in parallel, each in a thread; 1 where calls are fast."""

    def create(self, path: str, *, new: bool = False) -> OutputFile:
        """Create or replace a file and return it for appending.

        Args:
            path: The file.
            new: Refuse to replace a file, now or when the new one is complete. A storage with
                checksums accepts an existing file with the same bytes: it is the work of another
                attempt.
        """

    def append(self, path: str, num_bytes: int) -> OutputFile:
        """Open a file to append after its first ``num_bytes``; the bytes after these are cut off.

        A shorter file is an error, and so is a storage that cannot append.
        """

    def sync(self, path: str) -> None:
        """Return once the file's bytes would survive a power cut."""

    def complete(self, path: str) -> None:
        """Return once other processes can read the whole file; a power cut may still lose it.

        Meant for files that are written again when they are missing.
        """

    def sync_directory(self, directory: str) -> None:
        """Return once the directory's names would survive a power cut."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; an existing directory is no error."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; leave one with files, and ignore one that does not exist."""

    def is_directory(self, path: str) -> bool:
        """Return whether the path is a directory, so no file can have this name."""

    def publish(self, source: str, target: str) -> None:
        """Rename a file to its final name in one step, replacing a file of that name.

        Publishing a file a second time, or onto itself, does nothing.
        """

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None if there is no file."""

    def crc32c(self, path: str) -> int | None:
        """Return the CRC-32C that the storage has for a file; None if it has none."""

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file; None if there is no file."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading and seeking; a missing file is an error."""

    def delete(self, path: str) -> None:
        """Delete a file; a missing file is no error."""

    def list(self, directory: str) -> list[str]:
        """Return the names of the files in a directory, sorted; none if there is no directory."""


@runtime_checkable
class ComposingStorage(Protocol):
    """A storage that can concatenate files without transferring their bytes to this machine."""

    def compose(
        self, sources: Sequence[str], target: str, *, num_bytes: int, crc32c: int, new: bool
    ) -> None:
        """Concatenate files into one; the source files stay.

        The target becomes visible only when complete. Repeating the call is no error, even if the
        sources have been deleted since.

        Args:
            sources: The files, in order; any number of them.
            target: The file to write.
            num_bytes: The expected size of the target.
            crc32c: The expected CRC-32C of the target.
            new: Refuse to replace a target with other bytes.

        Raises:
            StorageError: The target has other bytes than expected, or a source is missing.
        """


def storage_for(path: str) -> Storage:
    """Return the storage of a path: local, Google Cloud Storage, or any other known to Beam.

    Raises:
        MissingExtra: The path is a URL, and Apache Beam or its extra for Google is not installed.
    """
    found = URL.match(path)
    if found is None:
        return LocalStorage()
    if found[1] == "gs":
        from shardwriter.storage.gcs import GcsStorage

        return GcsStorage()
    from shardwriter.storage.beam import BeamStorage

    return BeamStorage()


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    storage: Storage, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> list[_Result]:
    """Call a function for every item, in parallel on slow storages; return the results in order.

    Raises:
        Exception: The function raised it; other items may not have been processed then.
    """
    return list(each_in_turn(storage, function, items))


def each_in_turn(
    storage: Storage, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Do the same as :func:`each`, but hold at most ``num_at_once`` results at a time."""
    if storage.num_at_once == 1:
        yield from map(function, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    rest = iter(items)
    with ThreadPoolExecutor(storage.num_at_once) as pool:
        while block := list(islice(rest, storage.num_at_once)):
            yield from pool.map(function, block)
