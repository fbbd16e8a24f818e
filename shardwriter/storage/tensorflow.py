"""``tf.io.TFRecordWriter`` behind the face of our own writer (``--backend tensorflow``).

For proof, not for speed: the same records go through TensorFlow's code and must give the same
bytes. It needs the ``tensorflow`` extra.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shardwriter.errors import MissingExtra, StorageError
from shardwriter.formats import TFRecordWriter, Written


class _Nowhere:
    """Takes bytes and keeps none."""

    def write(self, data: bytes, /) -> None:
        """Drop ``data``."""

    def close(self) -> None:
        """Do nothing."""


class TensorFlowRecordWriter:
    """Writes records with ``tf.io.TFRecordWriter`` and knows what was written.

    TensorFlow's writer tells no counts or checksums; our own runs beside it, into nothing.

    Args:
        path: The file, created or emptied.
        on_flush: Told of the payload sizes of the frames that were handed on.

    Raises:
        MissingExtra: TensorFlow is not installed.
    """

    def __init__(self, path: str, on_flush: Callable[[list[int]], None] | None = None) -> None:
        self._path = path
        with self._errors():
            self._writer: Any = require_tensorflow().io.TFRecordWriter(path)
        self._account = TFRecordWriter(_Nowhere(), on_flush=on_flush)

    def write(self, record: bytes) -> None:
        """Append one record."""
        self._account.write(record)
        with self._errors():
            self._writer.write(record)

    def flush(self) -> None:
        """Hand the buffered frames on."""
        self._account.flush()
        with self._errors():
            self._writer.flush()

    def finish(self) -> None:
        """Write all that is left."""
        self.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._account.close()
        with self._errors():
            self._writer.close()

    def discard(self) -> None:
        """Close the file. TensorFlow can not close one without writing what is buffered."""
        self.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except require_tensorflow().errors.OpError as error:
            raise StorageError(error.message, path=self._path) from error

    @property
    def num_records(self) -> int:
        """Records so far."""
        return self._account.num_records

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads so far."""
        return self._account.payload_bytes

    @property
    def stream_bytes(self) -> int:
        """Bytes of all frames so far."""
        return self._account.stream_bytes

    @property
    def written(self) -> Written:
        """What stands in the file: all that was flushed."""
        return self._account.written

    @property
    def crc32c(self) -> int:
        """CRC-32C of all frames that were flushed."""
        return self._account.crc32c


def require_tensorflow() -> Any:
    """Import TensorFlow, with its GPUs left alone.

    Raises:
        MissingExtra: It is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtra(
            f"--backend tensorflow needs TensorFlow: {error}",
            hint='pip install "shardwriter[tensorflow]"',
        ) from error
    # Writing records needs no accelerator, and TensorFlow would take all of its memory.
    tf.config.set_visible_devices([], "GPU")
    return tf
