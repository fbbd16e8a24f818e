"""TFRecord framing: the bytes between records.

One frame, little-endian (TensorFlow ``tsl/lib/io/record_writer.h``)::

    offset  size    field
    0       8       u64 length of the payload
    8       4       u32 masked CRC-32C of the 8 length bytes
    12      length  payload
    +0      4       u32 masked CRC-32C of the payload

A file is frames and nothing else; an empty file holds no records. Files written here are
byte-identical with those of ``tf.io.TFRecordWriter``.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from shardwriter.errors import RecordTooLarge
from shardwriter.formats.crc32c import MASK_DELTA, crc32c, extend_crc32c, masked_crc32c
from shardwriter.formats.tfrecord_options import compressor_of

HEADER_BYTES: Final = 12
FOOTER_BYTES: Final = 4
FRAME_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
MAX_PAYLOAD_BYTES: Final = 2**31 - 1  # protobuf parses no more

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
HEADER_CACHE_SIZE: Final = 1 << 14  # lengths whose headers are remembered


class BinarySink(Protocol):
    """What a writer needs of a file."""

    def write(self, data: bytes, /) -> object:
        """Take all of ``data``."""

    def close(self) -> None:
        """Give the file back."""


class Written(NamedTuple):
    """What of a shard stands in its file: enough to go on behind it.

    Attributes:
        num_records: Its records.
        stream_bytes: Bytes of their uncompressed frames.
        crc32c: Of those frames.
        file_bytes: Bytes of the file.
        file_crc32c: Of the file's bytes, where it is compressed.
        num_pieces: Frames of a plain shard; members or blocks of a compressed one.
    """

    num_records: int
    stream_bytes: int
    crc32c: int
    file_bytes: int
    file_crc32c: int | None
    num_pieces: int


NOTHING_WRITTEN: Final = Written(0, 0, 0, 0, None, 0)


def open_sink(file: str | os.PathLike[str] | BinarySink) -> BinarySink:
    """Return a sink: a path is opened, created or emptied."""
    if isinstance(file, (str, os.PathLike)):
        return open(file, "wb", buffering=0)
    return file


def write_all(sink: BinarySink, data: bytes) -> None:
    """Write all of ``data``."""
    if isinstance(sink, io.RawIOBase):
        # A raw file may take a part: what is left of the disk, or 2 GiB less a page.
        rest = memoryview(data)
        while rest:
            rest = rest[sink.write(rest) or 0 :]
    else:
        sink.write(data)


class CompressingSink:
    """A sink in front of another one, which gets what it is given compressed, as one stream.

    Args:
        sink: Takes the bytes of the file.
        compressor: As ``zlib.compressobj`` makes it.
    """

    def __init__(self, sink: BinarySink, compressor: Any) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes, /) -> None:
        """Write data so that a reader of the file finds all of it."""
        compressor, self._compressor = self._compressor, None  # after an error the stream is torn
        write_all(self._sink, compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH))
        self._compressor = compressor

    def close(self) -> None:
        """End the stream, unless it is torn, and close the file."""
        try:
            if self._compressor is not None:
                write_all(self._sink, self._compressor.flush(zlib.Z_FINISH))
        finally:
            self._sink.close()


def frame_header(payload_bytes: int) -> bytes:
    """Return the 12 header bytes of a frame whose payload has ``payload_bytes`` bytes."""
    length = _U64.pack(payload_bytes)
    return length + _U32.pack(masked_crc32c(length))


def frame(payload: bytes) -> bytes:
    """Return the whole frame of one payload."""
    return frame_header(len(payload)) + payload + _U32.pack(masked_crc32c(payload))


class TFRecordWriter:
    """Writes records to one TFRecord file, like ``tf.io.TFRecordWriter``.

    It has that class's name, arguments and methods, so that code written for it works, and it knows
    what it wrote: ``num_records``, ``payload_bytes``, ``stream_bytes`` and the running ``crc32c``
    of all frames, before compression. Closing a writer says nothing about the disk: it does not
    fsync.

    Args:
        file: A path (the file is created or emptied) or an open binary sink.
        options: ``"GZIP"``, ``"ZLIB"``, ``""`` or None for a plain file, or a
            ``tf.io.TFRecordOptions``. A compressed file is one stream, as TensorFlow makes it.
        buffer_bytes: Frames are gathered up to this size and handed on in one piece.
        on_flush: Told of the payload sizes of the frames that were handed on.
        written: What the sink holds already; records go behind it.

    Example:
        >>> with TFRecordWriter("train.tfrecord") as writer:  # doctest: +SKIP
        ...     writer.write(encode_example({"label": 3}))
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | BinarySink,
        options: Any = None,
        *,
        buffer_bytes: int = 1 << 18,
        on_flush: Callable[[list[int]], None] | None = None,
        written: Written = NOTHING_WRITTEN,
    ) -> None:
        compressor = compressor_of(options)
        sink = open_sink(file)
        self._sink = sink if compressor is None else CompressingSink(sink, compressor)
        self._buffer_bytes = buffer_bytes
        self._on_flush = on_flush
        self._parts: list[bytes] = []  # header, payload, footer of each frame
        self._pending_bytes = 0
        self._headers: dict[int, bytes] = {}
        self._crc32c = written.crc32c
        self._written_bytes = written.stream_bytes
        self._flushed_records = written.num_records
        self._closed = False
        self._failure: BaseException | None = None  # nobody knows how much the sink took then
        self._failed_at: TracebackType | None = None

    def write(self, record: bytes) -> None:
        """Append one record.

        Raises:
            RecordTooLarge: The record has 2 GiB or more.
            TypeError: The record is not bytes-like.
            ValueError: The writer is closed.
        """
        if type(record) is not bytes:
            try:
                view = memoryview(record)
            except TypeError:
                raise TypeError(f"a record is bytes, not {type(record).__name__}") from None
            if view.nbytes > MAX_PAYLOAD_BYTES:
                self._new_header(view.nbytes)  # raises, before anything is copied
            record = view.tobytes()
        size = len(record)
        header = self._headers.get(size)
        if header is None:
            header = self._new_header(size)
        crc = crc32c(record)
        # The mask written out: a call costs as much as the CRC of a short record.
        footer = _U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)
        self._parts += (header, record, footer)
        self._pending_bytes += size + FRAME_BYTES
        if self._pending_bytes >= self._buffer_bytes:
            self.flush()

    def _new_header(self, payload_bytes: int) -> bytes:
        if payload_bytes > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(
                f"a record of {payload_bytes:,} bytes is over protobuf's limit of 2 GiB",
                hint="store large arrays in several records, or compressed",
                record_index=self.num_records,
            )
        if self._closed:
            raise _closed()
        if self._failure is not None:
            raise self._failure.with_traceback(self._failed_at)
        if len(self._headers) >= HEADER_CACHE_SIZE:
            self._headers.clear()
        header = self._headers[payload_bytes] = frame_header(payload_bytes)
        return header

    @property
    def num_records(self) -> int:
        """Records so far, the buffered ones included."""
        return self._flushed_records + len(self._parts) // 3

    @property
    def stream_bytes(self) -> int:
        """Bytes of all frames so far, the buffered ones included."""
        return self._written_bytes + self._pending_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads so far, the buffered ones included."""
        return self.stream_bytes - FRAME_BYTES * self.num_records

    @property
    def crc32c(self) -> int:
        """CRC-32C of all frames that were flushed."""
        return self._crc32c

    @property
    def written(self) -> Written:
        """What stands in the file: all that was flushed."""
        size, count = self._written_bytes, self._flushed_records
        return Written(count, size, self._crc32c, size, None, count)

    def flush(self) -> None:
        """Hand the buffered frames on.

        Raises:
            ValueError: The writer is closed.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(self._failed_at)
        if self._closed:
            raise _closed()
        if not self._parts:
            return
        with self._handing_on():
            self._hand_on(b"".join(self._parts), len(self._parts) // 3)
            sizes = list(map(len, self._parts[1::3]))
            self._parts.clear()
            self._pending_bytes = 0
            if self._on_flush is not None:
                self._on_flush(sizes)

    def write_frames(self, frames: bytes, num_records: int) -> None:
        """Append frames that are whole and proven already, as they are.

        ``on_flush`` is not told of them: whoever has frames knows their sizes.

        Args:
            frames: Nothing but frames, in order.
            num_records: How many.
        """
        self.flush()
        with self._handing_on():
            self._hand_on(frames, num_records)

    @contextmanager
    def _handing_on(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failure, self._failed_at = error, error.__traceback__
            self._headers.clear()  # so that write() meets it
            raise

    def _hand_on(self, frames: bytes, num_records: int) -> None:
        write_all(self._sink, frames)
        self._crc32c = extend_crc32c(self._crc32c, frames)
        self._written_bytes += len(frames)
        self._flushed_records += num_records

    def finish(self) -> None:
        """Write all that is left; a plain file has nothing behind its frames."""
        self.flush()

    def close(self) -> None:
        """Flush and close the file. Closing twice does nothing."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the file without writing what is buffered."""
        self._closed = True
        self._parts.clear()
        self._pending_bytes = 0
        self._headers.clear()  # so that write() meets the check for closed
        self._sink.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _closed() -> ValueError:
    return ValueError("the TFRecordWriter is closed")
