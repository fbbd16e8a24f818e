"""Uploads to Google Cloud Storage that end when they are told to, and only then."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.fileio import BlobWriter
from google.cloud.storage.retry import DEFAULT_RETRY
from google.resumable_media import InvalidResponse
from requests.exceptions import RequestException

from shardwriter.errors import StorageError
from shardwriter.formats.crc32c import extend_crc32c

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


class GrowingObject:
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
