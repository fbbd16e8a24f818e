"""Whose a path is: the local file system's, Google Cloud Storage's, or one that Beam knows."""

from __future__ import annotations

from shardwriter.dataset.naming import URL
from shardwriter.storage.protocol import LocalStorage, Storage


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
