"""Where bytes go: the one seam between shardwriter and a file system.

A file is created under a working name, grows, and is published under its final name in one atomic
step. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

from typing import Protocol

from shardwriter.storage.local import LocalStorage

__all__ = ["GrowingFile", "LocalStorage", "Storage"]


class GrowingFile(Protocol):
    """A file that is being written."""

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""

    def close(self) -> None:
        """Give the file back; what was written stays."""


class Storage(Protocol):
    """What a place to put datasets must be able to do.

    Every method raises StorageError with the path when the place says no.
    """

    def create(self, path: str) -> GrowingFile:
        """Create a file, or empty it, and return it for appending."""

    def append(self, path: str, num_bytes: int) -> GrowingFile:
        """Open a file to append behind its first ``num_bytes``; what follows them is cut off.

        It is an error that the file has fewer.
        """

    def sync(self, path: str) -> None:
        """Return once the file's bytes would survive a power cut."""

    def sync_directory(self, directory: str) -> None:
        """Return once the directory's names would survive a power cut."""

    def publish(self, source: str, target: str) -> None:
        """Give a file its final name in one step, replacing a file of that name.

        Doing it again after it was done is no error.
        """

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None where there is no file."""

    def list(self, directory: str) -> list[str]:
        """Return the file names in a directory, sorted; none where there is no directory."""

    def delete(self, path: str) -> None:
        """Delete a file; a file that is not there is no error."""
