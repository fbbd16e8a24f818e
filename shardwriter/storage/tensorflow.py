"""``tf.io.TFRecordWriter`` with the interface of ``TFRecordWriter`` (``--backend tensorflow``).

A check, and slower: TensorFlow writes the same records, and must write the same bytes. Needs the
``tensorflow`` extra.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shardwriter.errors import MissingExtra, StorageError
from shardwriter.formats import TFRecordWriter, Written


class _NullFile:
    """An output file that discards its bytes."""

    def write(self, data: bytes, /) -> None:
        """Discard ``data``."""

    def close(self) -> None:
        """Do nothing."""


class TensorFlowRecordWriter:
    """Writes records with ``tf.io.TFRecordWriter``, and counts them.

    TensorFlow's writer reports no counts or checksums. They come from a ``TFRecordWriter`` that
    writes the same records to a null file.

    Args:
        path: The file; created or emptied.
        on_flush: Called with the payload sizes of the frames that were flushed.

    Raises:
        MissingExtra: TensorFlow is not installed.
    """

    def __init__(self, path: str, on_flush: Callable[[list[int]], None] | None = None) -> None:
        self._path = path
        with self._errors():
            self._writer: Any = require_tensorflow().io.TFRecordWriter(path)
        self._counter = TFRecordWriter(_NullFile(), on_flush=on_flush)

    def write(self, record: bytes) -> None:
        """Append one record."""
        self._counter.write(record)
        with self._errors():
            self._writer.write(record)

    def flush(self) -> None:
        """Flush the buffered frames."""
        self._counter.flush()
        with self._errors():
            self._writer.flush()

    def finish(self) -> None:
        """Write all buffered frames."""
        self.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._counter.close()
        with self._errors():
            self._writer.close()

    def discard(self) -> None:
        """Close the file. TensorFlow cannot close a file without writing what is buffered."""
        self.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except require_tensorflow().errors.OpError as error:
            raise StorageError(error.message, path=self._path) from error

    @property
    def num_records(self) -> int:
        """The number of records so far."""
        return self._counter.num_records

    @property
    def payload_bytes(self) -> int:
        """The bytes of all payloads so far."""
        return self._counter.payload_bytes

    @property
    def stream_bytes(self) -> int:
        """The bytes of all frames so far."""
        return self._counter.stream_bytes

    @property
    def written(self) -> Written:
        """The counts of all frames that were flushed."""
        return self._counter.written

    @property
    def crc32c(self) -> int:
        """The CRC-32C of all frames that were flushed."""
        return self._counter.crc32c


def require_tensorflow() -> Any:
    """Import and return TensorFlow, without GPUs.

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
    # Writing records needs no GPU, and TensorFlow would allocate all of its memory.
    tf.config.set_visible_devices([], "GPU")
    return tf
