"""Google Cloud Storage, by the client that Beam makes: its credentials and its options.

An object appears when its upload ends, whole. So files are written under their final names, and
what keeps two attempts apart is a precondition: of several that upload a new object one wins, and
the others find that it holds what they have written. It needs the ``gcp`` extra.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final, cast

from shardwriter.errors import MissingExtra, StorageError
from shardwriter.storage.beam import FileSystemStorage, Growing, storage_errors

try:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.io.gcp.gcsio import parse_gcs_path
    from google.api_core.exceptions import NotFound, PreconditionFailed
    from google.cloud.storage.fileio import BlobReader
    from google.cloud.storage.retry import DEFAULT_RETRY

    from shardwriter.storage.gcs_upload import (
        CHUNK_BYTES,
        MIME_TYPE,
        GrowingObject,
        compare,
        crc32c_of,
        found,
        prove,
        upload,
    )
except ImportError as error:
    raise MissingExtra(
        f"gs:// needs Google's client: {error}", hint='pip install "shardwriter[gcp]"'
    ) from error

_MOST_SOURCES: Final = 32  # that one request joins


class GcsStorage(FileSystemStorage):
    """Objects of Google Cloud Storage; a folder is what their names have in common.

    Attributes:
        appears_whole: True.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: Any = None

    @property
    def appears_whole(self) -> bool:
        """Whether a file is seen only once it is complete."""
        return True

    def _client(self) -> Any:
        if self._made is None:
            self._made = FileSystems.get_filesystem("gs://")._gcsIO().client
        return self._made

    def _blob(self, path: str) -> Any:
        """Return a handle of an object, which need not be there."""
        bucket, name = parse_gcs_path(path)
        return self._client().bucket(bucket).blob(name)

    def _find(self, path: str) -> Any:
        """Return an object with its properties; None where there is none."""
        return found(self._blob(path))

    # -- writing -----------------------------------------------------------------------------------

    def _open_new(self, path: str, *, new: bool) -> Growing:
        return GrowingObject(self._blob(path), path, new=new)

    def publish(self, source: str, target: str) -> None:
        """Copy an object on the server, and delete the old one."""
        if source == target:
            return
        with storage_errors(target):
            old, there = self._find(source), self._find(target)
            if old is None:
                if there is None:
                    raise StorageError("no such file", path=source)
                return
            try:
                _rewrite(old, self._blob(target), 0 if there is None else there.generation)
            except (NotFound, PreconditionFailed) as error:  # another process does the same
                compare(self._find(target), target, old.size, crc32c_of(old), error)
            with suppress(NotFound, PreconditionFailed):
                old.delete(if_generation_match=old.generation, retry=DEFAULT_RETRY)

    def delete(self, path: str) -> None:
        """Delete an object; one that is not there is no error."""
        with storage_errors(path), suppress(NotFound):
            self._blob(path).delete(retry=DEFAULT_RETRY)

    def compose(
        self, sources: Sequence[str], target: str, *, num_bytes: int, crc32c: int, new: bool
    ) -> None:
        """Join objects of one bucket on the server; see ``ComposingStorage``.

        Many are joined by way of objects that lie beside the first of them meanwhile.
        """
        blob, between = self._blob(target), list[Any]()
        with storage_errors(target):
            try:
                if sources:
                    rest = self._join(list(map(self._blob, sources)), sources[0], between)
                    blob.content_type = MIME_TYPE
                    blob.compose(rest, if_generation_match=0 if new else None, retry=DEFAULT_RETRY)
                else:
                    upload(blob, b"", new=new)
            except (NotFound, PreconditionFailed) as error:  # done before, by another attempt
                compare(found(blob), target, num_bytes, crc32c, error)
            else:
                prove(blob, target, num_bytes, crc32c)
            finally:
                for part in between:
                    with suppress(NotFound):
                        part.delete(retry=DEFAULT_RETRY)

    def _join(self, blobs: list[Any], first: str, between: list[Any]) -> list[Any]:
        """Join objects until they are few enough for one request."""
        while len(blobs) > _MOST_SOURCES:
            joined = []
            for begin in range(0, len(blobs), _MOST_SOURCES):
                group = blobs[begin : begin + _MOST_SOURCES]
                if len(group) > 1:
                    name = f"joined-{uuid.uuid4().hex}"
                    part = self._blob(os.path.join(os.path.dirname(first), name))
                    between.append(part)
                    part.content_type = MIME_TYPE
                    part.compose(group, retry=DEFAULT_RETRY)
                    group = [part]
                joined += group
            blobs = joined
        return blobs

    # -- names: there are no folders ---------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        """Do nothing."""

    def remove_directory(self, path: str) -> None:
        """Do nothing."""

    def is_directory(self, path: str) -> bool:
        """Return False: an object can have the name of a folder."""
        return False

    def list(self, directory: str) -> list[str]:
        """Return the names of the objects directly in a folder, sorted."""
        with storage_errors(directory):
            bucket, prefix = parse_gcs_path(os.path.join(directory, ""), object_optional=True)
            found = self._client().list_blobs(
                bucket, prefix=prefix or None, delimiter="/", retry=DEFAULT_RETRY
            )
            names = [blob.name[len(prefix) :] for blob in found]
        return sorted(name for name in names if name)

    # -- reading -----------------------------------------------------------------------------------

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes; None where there is none."""
        with storage_errors(path):
            found = self._find(path)
            return None if found is None else int(found.size)

    def crc32c(self, path: str) -> int | None:
        """Return the CRC-32C that the server keeps of an object; None where there is none."""
        with storage_errors(path):
            found = self._find(path)
            return None if found is None else crc32c_of(found)

    def read(self, path: str) -> bytes | None:
        """Return all bytes of an object; None where there is none."""
        with storage_errors(path):
            try:
                data = self._blob(path).download_as_bytes(checksum="crc32c", retry=DEFAULT_RETRY)
            except NotFound:
                return None
            return bytes(data)

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading and seeking; it is an error that it is replaced meanwhile."""
        with storage_errors(path):
            found = self._find(path)
            if found is None:
                raise StorageError("no such file", path=path)
            reader = BlobReader(
                found,
                chunk_size=CHUNK_BYTES,
                retry=DEFAULT_RETRY,
                if_generation_match=found.generation,
            )
            return cast(BinaryIO, reader)


def _rewrite(old: Any, blob: Any, generation: int) -> None:
    token = None
    while True:
        token, _, _ = blob.rewrite(
            old,
            token=token,
            if_generation_match=generation,
            if_source_generation_match=old.generation,
            retry=DEFAULT_RETRY,
        )
        if token is None:
            return
