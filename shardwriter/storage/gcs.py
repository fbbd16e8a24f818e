"""Google Cloud Storage, by the client that Beam makes: its credentials and its options.

An object appears when its upload ends, whole. So files are written under their final names, and
what keeps two attempts apart is a precondition: of several that upload a new object one wins, and
the others find that it holds what they have written. It needs the ``gcp`` extra.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final, cast

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.fileio import BlobWriter
from google.cloud.storage.retry import DEFAULT_RETRY
from google.resumable_media import InvalidResponse
from requests.exceptions import RequestException

from shardwriter.errors import MissingExtra, StorageError
from shardwriter.formats import extend_crc32c
from shardwriter.storage.beam import FileSystemStorage, Growing, storage_errors

# Uploads to Google Cloud Storage that end when they are told to, and only then.

CHUNK_BYTES: Final = 16 << 20  # of an upload: so much of a growing file is in memory
MIME_TYPE: Final = "application/octet-stream"


def upload(blob: Any, data: bytes, *, new: bool) -> None:
    """Upload a small object; the server holds it against its checksum."""
    blob.upload_from_string(
        data,
        content_type=MIME_TYPE,
        if_generation_match=0 if new else None,
        checksum="crc32c",
        retry=DEFAULT_RETRY,
    )


def found(blob: Any) -> Any:
    """Return an object with its properties as they are now; None where it is not there."""
    return blob.bucket.get_blob(blob.name, retry=DEFAULT_RETRY)


def crc32c_of(blob: Any) -> int:
    """Return the CRC-32C that the server keeps of an object."""
    return int.from_bytes(base64.b64decode(blob.crc32c), "big")


def _is(blob: Any, num_bytes: int, crc: int) -> bool:
    return blob is not None and int(blob.size) == num_bytes and crc32c_of(blob) == crc


def compare(there: Any, path: str, num_bytes: int, crc: int, refusal: Exception) -> None:
    """Take an object that is there for the work of another attempt, if it has the same bytes."""
    if there is None:
        raise refusal
    if not _is(there, num_bytes, crc):
        raise StorageError(
            "it was there already, and has other bytes",
            path=path,
            hint="another job writes under this name: wait for it to end, or choose another",
        ) from refusal


def prove(made: Any, path: str, num_bytes: int, crc: int, *, is_ours: bool = True) -> None:
    """Refuse an object that is not what it should be, and delete it if nobody else made it."""
    if not _is(made, num_bytes, crc):
        if made is not None and is_ours:
            with suppress(NotFound, PreconditionFailed):
                made.delete(if_generation_match=made.generation, retry=DEFAULT_RETRY)
        raise StorageError(
            f"what has arrived is not {num_bytes:,} bytes of the right checksum", path=path
        )


class _Upload(BlobWriter):  # type: ignore[misc]
    """An upload that ends when it is told to.

    Google's own would end with what it has when it is closed, and that is also what Python does
    with one that nobody has any more.
    """

    def finish(self) -> None:
        """End the upload: the object appears."""
        super().close()

    def close(self) -> None:
        """Give the upload up, unless it has ended."""
        if not self.closed:
            # One that can not be told so ends by itself, in a week.
            with suppress(RequestException, GoogleAuthError, OSError):
                self.terminate()
            self._buffer.close()


class UploadFile:
    """An object that is being written.

    A small one goes up in one request when it is complete. Where a new one is refused, as it is
    there already, what would have been in it is counted on, and compared at the end.
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
                checksum=None,  # it is compared below
                if_generation_match=0 if self._new else None,
            )
            data = b"".join(self._head)
            self._head.clear()
        with self._refused():
            self._upload.write(data)

    def finish(self) -> None:
        """Complete the object, and hold it against what was written."""
        if not self._is_open:
            return
        if self._refusal is None:
            with self._refused():
                if self._upload is None:
                    upload(self._blob, b"".join(self._head), new=self._new)
                else:
                    self._upload.finish()
        if self._refusal is not None:
            there = found(self._blob)
            compare(there, self._path, self._num_bytes, self._crc, self._refusal)
        else:
            made = self._blob if self._upload is None else found(self._blob)
            is_ours = self._new or self._upload is None
            prove(made, self._path, self._num_bytes, self._crc, is_ours=is_ours)
        self._is_open = False
        self._head.clear()

    def close(self) -> None:
        """Give the upload up, unless the object is complete."""
        self._is_open = False
        self._head.clear()
        if self._upload is not None:
            self._upload.close()

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Note that the object is there already."""
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


try:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.io.gcp.gcsio import parse_gcs_path
    from google.api_core.exceptions import NotFound, PreconditionFailed
    from google.cloud.storage.fileio import BlobReader
    from google.cloud.storage.retry import DEFAULT_RETRY

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
        return UploadFile(self._blob(path), path, new=new)

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
