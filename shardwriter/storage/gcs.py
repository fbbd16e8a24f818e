"""Google Cloud Storage as an output, through the client, credentials and options of Beam.

An object becomes visible when its upload ends. So files are written under their final names, and
preconditions separate two attempts: of several uploads of a new object one succeeds, and the others
compare the object with what they have written. Needs the ``gcp`` extra.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final, cast

from shardwriter.errors import MissingExtra, StorageError
from shardwriter.formats import extend_crc32c
from shardwriter.storage.beam import BeamFile, BeamStorage, storage_errors

try:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.io.gcp.gcsio import parse_gcs_path
    from google.api_core.exceptions import NotFound, PreconditionFailed
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage.fileio import BlobReader, BlobWriter
    from google.cloud.storage.retry import DEFAULT_RETRY
    from google.resumable_media import InvalidResponse
    from requests.exceptions import RequestException
except ImportError as error:
    raise MissingExtra(
        f"gs:// needs Google's client: {error}", hint='pip install "shardwriter[gcp]"'
    ) from error


CHUNK_BYTES: Final = 16 << 20  # of an upload: this much of each open file is in memory
MIME_TYPE: Final = "application/octet-stream"
_MAX_SOURCES: Final = 32  # that one request composes


def upload(blob: Any, data: bytes, *, new: bool) -> None:
    """Upload a small object; the server checks its checksum."""
    blob.upload_from_string(
        data,
        content_type=MIME_TYPE,
        if_generation_match=0 if new else None,
        checksum="crc32c",
        retry=DEFAULT_RETRY,
    )


def find_object(blob: Any) -> Any:
    """Return an object with its current properties; None if it does not exist."""
    return blob.bucket.get_blob(blob.name, retry=DEFAULT_RETRY)


def crc32c_of(blob: Any) -> int:
    """Return the CRC-32C that the server has for an object."""
    return int.from_bytes(base64.b64decode(blob.crc32c), "big")


def _matches(blob: Any, num_bytes: int, crc: int) -> bool:
    return blob is not None and int(blob.size) == num_bytes and crc32c_of(blob) == crc


def check_existing(found: Any, path: str, num_bytes: int, crc: int, refusal: Exception) -> None:
    """Raise unless an existing object has the expected bytes, as the work of another attempt."""
    if found is None:
        raise refusal
    if not _matches(found, num_bytes, crc):
        raise StorageError(
            "the object exists already, with other bytes",
            path=path,
            hint="another job writes under this name: wait for it to end, or choose another name",
        ) from refusal


def check_upload(made: Any, path: str, num_bytes: int, crc: int, *, delete: bool = True) -> None:
    """Raise if an uploaded object has not the expected bytes; delete it if this upload made it."""
    if not _matches(made, num_bytes, crc):
        if made is not None and delete:
            with suppress(NotFound, PreconditionFailed):
                made.delete(if_generation_match=made.generation, retry=DEFAULT_RETRY)
        raise StorageError(
            f"the uploaded object has not {num_bytes:,} bytes of the expected checksum", path=path
        )


class _Upload(BlobWriter):  # type: ignore[misc]
    """An upload that makes an object only when it is finished.

    A plain ``BlobWriter`` that is closed, or garbage-collected, makes an object of the bytes so
    far.
    """

    def finish(self) -> None:
        """End the upload: the object becomes visible."""
        super().close()

    def close(self) -> None:
        """Abort the upload, unless it has ended."""
        if not self.closed:
            # The server drops an upload that cannot be aborted after a week.
            with suppress(RequestException, GoogleAuthError, OSError):
                self.terminate()
            self._buffer.close()


class UploadFile:
    """An object that is open for appending.

    A small object is uploaded in one request when it is complete. When the server refuses a new
    object because one exists, the bytes are only checksummed, and compared at the end.
    """

    def __init__(self, blob: Any, path: str, *, new: bool) -> None:
        self._blob = blob
        self._path = path
        self._new = new
        self._head: list[bytes] = []
        self._upload: _Upload | None = None
        self._num_bytes = self._crc = 0
        self._refusal: Exception | None = None
        self._is_open = True

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""
        if not self._is_open:
            raise StorageError("the file is complete and can not grow", path=self._path)
        self._num_bytes += len(data)
        self._crc = extend_crc32c(self._crc, data)
        if self._refusal is not None:
            return
        if self._upload is None:
            self._head.append(data)
            if self._num_bytes < CHUNK_BYTES:
                return
            self._upload = _Upload(
                self._blob,
                chunk_size=CHUNK_BYTES,
                retry=DEFAULT_RETRY,
                content_type=MIME_TYPE,
                checksum=None,  # finish() compares it
                if_generation_match=0 if self._new else None,
            )
            data = b"".join(self._head)
            self._head.clear()
        with self._note_refusal():
            self._upload.write(data)

    def finish(self) -> None:
        """Complete the object, and compare its checksum with the bytes written."""
        if not self._is_open:
            return
        if self._refusal is None:
            with self._note_refusal():
                if self._upload is None:
                    upload(self._blob, b"".join(self._head), new=self._new)
                else:
                    self._upload.finish()
        if self._refusal is not None:
            existing = find_object(self._blob)
            check_existing(existing, self._path, self._num_bytes, self._crc, self._refusal)
        else:
            made = self._blob if self._upload is None else find_object(self._blob)
            is_own = self._new or self._upload is None
            check_upload(made, self._path, self._num_bytes, self._crc, delete=is_own)
        self._is_open = False
        self._head.clear()

    def close(self) -> None:
        """Abort the upload, unless the object is complete."""
        self._is_open = False
        self._head.clear()
        if self._upload is not None:
            self._upload.close()

    @contextmanager
    def _note_refusal(self) -> Iterator[None]:
        """Remember that the server refused a new object because one exists."""
        try:
            yield
        except (PreconditionFailed, InvalidResponse) as error:
            status = 412 if isinstance(error, PreconditionFailed) else error.response.status_code
            if status != 412:
                raise
            self._refusal = error
            self._head.clear()
            if self._upload is not None:
                self._upload.close()


class GcsStorage(BeamStorage):
    """Objects of Google Cloud Storage; folders exist only as prefixes of their names.

    Attributes:
        appears_whole: True.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cached_client: Any = None

    @property
    def appears_whole(self) -> bool:
        """Whether a file is visible only once it is complete."""
        return True

    def _client(self) -> Any:
        if self._cached_client is None:
            self._cached_client = FileSystems.get_filesystem("gs://")._gcsIO().client
        return self._cached_client

    def _blob(self, path: str) -> Any:
        """Return a handle of an object, which need not exist."""
        bucket, name = parse_gcs_path(path)
        return self._client().bucket(bucket).blob(name)

    def _find(self, path: str) -> Any:
        """Return an object with its properties; None if it does not exist."""
        return find_object(self._blob(path))

    # -- writing -----------------------------------------------------------------------------------

    def _open_new(self, path: str, *, new: bool) -> BeamFile:
        return UploadFile(self._blob(path), path, new=new)

    def publish(self, source: str, target: str) -> None:
        """Copy an object on the server, then delete the source."""
        if source == target:
            return
        with storage_errors(target):
            old, existing = self._find(source), self._find(target)
            if old is None:
                if existing is None:
                    raise StorageError("no such file", path=source)
                return
            try:
                _rewrite(old, self._blob(target), 0 if existing is None else existing.generation)
            except (NotFound, PreconditionFailed) as error:  # another process does the same
                check_existing(self._find(target), target, old.size, crc32c_of(old), error)
            with suppress(NotFound, PreconditionFailed):
                old.delete(if_generation_match=old.generation, retry=DEFAULT_RETRY)

    def delete(self, path: str) -> None:
        """Delete an object; a missing object is no error."""
        with storage_errors(path), suppress(NotFound):
            self._blob(path).delete(retry=DEFAULT_RETRY)

    def compose(
        self, sources: Sequence[str], target: str, *, num_bytes: int, crc32c: int, new: bool
    ) -> None:
        """Concatenate objects of one bucket on the server; see ``ComposingStorage``.

        More than 32 are first composed into temporary objects beside the first source.
        """
        blob, temporary = self._blob(target), list[Any]()
        with storage_errors(target):
            try:
                if sources:
                    rest = self._join(list(map(self._blob, sources)), sources[0], temporary)
                    blob.content_type = MIME_TYPE
                    blob.compose(rest, if_generation_match=0 if new else None, retry=DEFAULT_RETRY)
                else:
                    upload(blob, b"", new=new)
            except (NotFound, PreconditionFailed) as error:  # done before, by another attempt
                check_existing(find_object(blob), target, num_bytes, crc32c, error)
            else:
                check_upload(blob, target, num_bytes, crc32c)
            finally:
                for part in temporary:
                    with suppress(NotFound):
                        part.delete(retry=DEFAULT_RETRY)

    def _join(self, blobs: list[Any], first: str, temporary: list[Any]) -> list[Any]:
        """Compose objects into temporary ones until one request can take them all."""
        while len(blobs) > _MAX_SOURCES:
            joined = []
            for begin in range(0, len(blobs), _MAX_SOURCES):
                group = blobs[begin : begin + _MAX_SOURCES]
                if len(group) > 1:
                    name = f"joined-{uuid.uuid4().hex}"
                    part = self._blob(os.path.join(os.path.dirname(first), name))
                    temporary.append(part)
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
        """Return an object's size in bytes; None if it does not exist."""
        with storage_errors(path):
            found = self._find(path)
            return None if found is None else int(found.size)

    def crc32c(self, path: str) -> int | None:
        """Return the CRC-32C that the server has for an object; None if it does not exist."""
        with storage_errors(path):
            found = self._find(path)
            return None if found is None else crc32c_of(found)

    def read(self, path: str) -> bytes | None:
        """Return all bytes of an object; None if it does not exist."""
        with storage_errors(path):
            try:
                data = self._blob(path).download_as_bytes(checksum="crc32c", retry=DEFAULT_RETRY)
            except NotFound:
                return None
            return bytes(data)

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading and seeking; reading raises once the object is replaced."""
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
