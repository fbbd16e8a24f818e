"""Write TFRecord files, and parse many frames at once.

One frame, little-endian (TensorFlow ``tsl/lib/io/record_writer.h``)::

    offset  size    field
    0       8       u64 length of the payload
    8       4       u32 masked CRC-32C of the 8 length bytes
    12      length  payload
    +0      4       u32 masked CRC-32C of the payload

A file consists of frames only; an empty file has no records. Files of :class:`TFRecordWriter` are
byte-identical with those of ``tf.io.TFRecordWriter``, also with its ``options``: then the file is
one gzip or zlib stream. (Compressed shards of a dataset differ: they are cut at records, see
:mod:`shardwriter.formats.compressed_writer`.)

:func:`parse_frames` returns many payloads of a buffer, given where the frames are in it; it
compares headers as bytes, since a header is a function of the length. :class:`FrameBlock` copies
frames without parsing them.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import OptionError, RecordTooLarge
from shardwriter.formats.crc32c import MASK_DELTA, crc32c, extend_crc32c, masked_crc32c

HEADER_BYTES: Final = 12
FOOTER_BYTES: Final = 4
FRAME_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
MAX_PAYLOAD_BYTES: Final = 2**31 - 1  # the limit of protobuf's parsers
HEADER_CACHE_SIZE: Final = 1 << 14  # lengths whose headers are cached

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_GZIP_WBITS: Final = 15 + 16
_ZLIB_WBITS: Final = 15
_MEM_LEVEL: Final = 9  # TensorFlow's default
_MAX_SIZES: Final = 64  # up to so many distinct frame sizes, frames are copied size by size
_MIN_ARRAY_FRAMES: Final = 32  # for fewer frames, numpy costs more than it saves

_WBITS: Final[Mapping[Any, int | None]] = {
    # The names, and the numbers of tf.compat.v1's TFRecordCompressionType.
    None: None,
    "": None,
    "NONE": None,
    0: None,
    "ZLIB": _ZLIB_WBITS,
    1: _ZLIB_WBITS,
    "GZIP": _GZIP_WBITS,
    2: _GZIP_WBITS,
}


def compressor_of(options: Any) -> Any:
    """Return a ``zlib.compressobj`` for a file, or None for no compression.

    Args:
        options: ``"GZIP"``, ``"ZLIB"``, ``""``, None, or an object with the attributes of
            ``tf.io.TFRecordOptions``.

    Raises:
        OptionError: It is anything else.
    """
    kind = getattr(options, "compression_type", options)
    if kind is not options and hasattr(kind, "compression_type"):
        return compressor_of(kind)  # options that wrap other options
    name = kind.upper() if isinstance(kind, str) else kind
    if not (name is None or isinstance(name, (str, int))) or name not in _WBITS:
        raise OptionError(
            f"{kind!r} is not a compression of TFRecord files",
            hint='give "GZIP", "ZLIB", "" for none, or a tf.io.TFRecordOptions',
        )
    wbits = _WBITS[name]
    if wbits is None:
        return None

    def option(attribute: str, default: int) -> int:
        value = getattr(options, attribute, None)
        return default if value is None else int(value)

    return zlib.compressobj(
        option("compression_level", zlib.Z_DEFAULT_COMPRESSION),
        zlib.DEFLATED,
        option("window_bits", wbits),
        option("mem_level", _MEM_LEVEL),
        option("compression_strategy", zlib.Z_DEFAULT_STRATEGY),
    )


class BinarySink(Protocol):
    """The methods of a file that a writer uses."""

    def write(self, data: bytes, /) -> object:
        """Write all of ``data``."""

    def close(self) -> None:
        """Close the file."""


class Written(NamedTuple):
    """The part of a shard that is in its file: enough to append to it after a restart.

    Attributes:
        num_records: Records in the file.
        stream_bytes: Bytes of their uncompressed frames.
        crc32c: CRC-32C of those frames.
        file_bytes: Size of the file.
        file_crc32c: CRC-32C of the file; None if it is not compressed.
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
    """Return a sink; a path is opened for writing, and created or truncated."""
    if isinstance(file, (str, os.PathLike)):
        return open(file, "wb", buffering=0)
    return file


def write_all(sink: BinarySink, data: bytes) -> None:
    """Write all of ``data``."""
    if isinstance(sink, io.RawIOBase):
        # A raw file may write less: up to the end of the disk, or 2 GiB minus a page.
        rest = memoryview(data)
        while rest:
            rest = rest[sink.write(rest) or 0 :]
    else:
        sink.write(data)


class CompressingSink:
    """A sink that writes one compressed stream to another sink.

    Args:
        sink: The sink of the compressed bytes.
        compressor: A ``zlib.compressobj``.
    """

    def __init__(self, sink: BinarySink, compressor: Any) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes, /) -> None:
        """Write data and flush it, so a reader of the file finds all of it."""
        compressor, self._compressor = self._compressor, None  # unusable if an error follows
        write_all(self._sink, compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH))
        self._compressor = compressor

    def close(self) -> None:
        """End the stream, unless a write has failed, and close the file."""
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
    """A writer of one TFRecord file, with the interface of ``tf.io.TFRecordWriter``.

    In addition it counts: ``num_records``, ``payload_bytes``, ``stream_bytes`` and the running
    ``crc32c`` of all frames, before compression. Closing does not fsync.

    Args:
        file: A path (the file is created or truncated) or an open binary sink.
        options: ``"GZIP"``, ``"ZLIB"``, ``""`` or None for a plain file, or a
            ``tf.io.TFRecordOptions``. A compressed file is one stream, as from TensorFlow.
        buffer_bytes: Frames are buffered up to this size and written together.
        on_flush: Called with the payload sizes of the frames of each flush.
        written: What the sink contains already; records are appended to it.

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
        self._failure: BaseException | None = None  # then the end of the file is undefined
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
        # mask_crc32c inlined: a call costs as much as the CRC of a short record.
        footer = _U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)
        self._parts += (header, record, footer)
        self._pending_bytes += size + FRAME_BYTES
        if self._pending_bytes >= self._buffer_bytes:
            self.flush()

    def _new_header(self, payload_bytes: int) -> bytes:
        if payload_bytes > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(
                f"a record of {payload_bytes:,} bytes exceeds protobuf's limit of 2 GiB",
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
        """Records so far, including buffered ones."""
        return self._flushed_records + len(self._parts) // 3

    @property
    def stream_bytes(self) -> int:
        """Bytes of all frames so far, including buffered ones."""
        return self._written_bytes + self._pending_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads so far, including buffered ones."""
        return self.stream_bytes - FRAME_BYTES * self.num_records

    @property
    def crc32c(self) -> int:
        """CRC-32C of all flushed frames."""
        return self._crc32c

    @property
    def written(self) -> Written:
        """The content of the file: all flushed frames."""
        size, count = self._written_bytes, self._flushed_records
        return Written(count, size, self._crc32c, size, None, count)

    def flush(self) -> None:
        """Write the buffered frames.

        Raises:
            ValueError: The writer is closed.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(self._failed_at)
        if self._closed:
            raise _closed()
        if not self._parts:
            return
        with self._remember_failure():
            self._write_frames(b"".join(self._parts), len(self._parts) // 3)
            sizes = list(map(len, self._parts[1::3]))
            self._parts.clear()
            self._pending_bytes = 0
            if self._on_flush is not None:
                self._on_flush(sizes)

    def write_frames(self, frames: bytes, num_records: int) -> None:
        """Append complete frames that have been checked already, unchanged.

        ``on_flush`` is not called for them.

        Args:
            frames: The bytes of whole frames, in order.
            num_records: Number of frames.
        """
        self.flush()
        with self._remember_failure():
            self._write_frames(frames, num_records)

    @contextmanager
    def _remember_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failure, self._failed_at = error, error.__traceback__
            self._headers.clear()  # so write() takes the slow path and raises it
            raise

    def _write_frames(self, frames: bytes, num_records: int) -> None:
        write_all(self._sink, frames)
        self._crc32c = extend_crc32c(self._crc32c, frames)
        self._written_bytes += len(frames)
        self._flushed_records += num_records

    def finish(self) -> None:
        """Write all buffered records; a plain file needs no trailer."""
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
        """Close the file without writing buffered records."""
        self._closed = True
        self._parts.clear()
        self._pending_bytes = 0
        self._headers.clear()  # so write() takes the slow path and raises
        self._sink.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _closed() -> ValueError:
    return ValueError("the TFRecordWriter is closed")


class _Headers(dict[int, bytes]):
    """A cache of frame headers, by the length of the payload."""

    def __missing__(self, payload_bytes: int) -> bytes:
        header = frame_header(payload_bytes)
        if len(self) >= HEADER_CACHE_SIZE:
            self.clear()
        self[payload_bytes] = header
        return header


_headers: Final = _Headers()


def is_frame(header: bytes, payload: bytes, footer: bytes, *, check: bool) -> bool:
    """Return whether three byte strings form a frame; ``check`` verifies the payload CRC too."""
    if header != _headers[len(payload)]:
        return False
    if not check:
        return len(footer) == FOOTER_BYTES
    crc = crc32c(payload)
    return footer == _U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)


def is_valid_frame(frame: bytes) -> bool:
    """Return whether bytes are exactly one frame with correct header and payload CRC."""
    payload_bytes = len(frame) - FRAME_BYTES
    if payload_bytes < 0 or not frame.startswith(_headers[payload_bytes]):
        return False
    # A view of the payload: copying a large one would cost as much as its CRC.
    crc = crc32c(np.frombuffer(frame, np.uint8, payload_bytes, HEADER_BYTES))
    return frame.endswith(_U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF))


def parse_frame(frame: bytes, *, check: bool) -> bytes | None:
    """Return the payload of a frame, or None if the bytes are not exactly one frame."""
    payload = frame[HEADER_BYTES:-FOOTER_BYTES]
    if not frame.startswith(_headers[len(payload)]):
        return None
    if check:
        crc = crc32c(payload)
        if not frame.endswith(_U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)):
            return None
    return payload


def parse_frames(
    data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], *, check: bool
) -> list[bytes] | None:
    """Return the payloads of frames, or None if one of them is not a frame.

    Args:
        data: A buffer that contains the frames, in any order.
        begins: int64[k]: offset of each frame in it.
        ends: int64[k]: end offset of each frame.
        check: Verify the payload CRCs too, not only the headers.
    """
    if not len(begins):
        return []
    if int(begins.min()) < 0 or int(ends.max()) > len(data):
        return None
    if int((ends - begins).min()) < FRAME_BYTES:
        return None
    if len(begins) < _MIN_ARRAY_FRAMES:
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        parsed = [parse_frame(data[begin:end], check=check) for begin, end in spans]
        payloads = [payload for payload in parsed if payload is not None]
        return payloads if len(payloads) == len(parsed) else None
    payload_ends = ends - FOOTER_BYTES
    spans = zip((begins + HEADER_BYTES).tolist(), payload_ends.tolist(), strict=True)
    payloads = [data[begin:end] for begin, end in spans]
    expected = b"".join([_headers[len(payload)] for payload in payloads])
    # A view with one element per byte offset; indexing it copies the headers.
    headers = np.ndarray((len(data) - HEADER_BYTES + 1,), "V12", data, strides=(1,))
    if headers[begins].tobytes() != expected:
        return None
    if check:
        crcs = np.fromiter(map(crc32c, payloads), np.uint32, len(payloads))
        masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(MASK_DELTA)
        footers = np.ndarray((len(data) - FOOTER_BYTES + 1,), "<u4", data, strides=(1,))
        if not np.array_equal(footers[payload_ends], masked):
            return None
    return payloads


class FrameBlock:
    """Frames to be copied unchanged.

    Args:
        pieces: One buffer that contains all frames, or one byte string per frame.
        begins: int64[k]: offset of each frame in the one buffer; empty for one string per frame.
        sizes: int64[k]: size of each frame.
    """

    def __init__(
        self, pieces: list[bytes], begins: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        self._pieces = pieces
        self._begins = begins
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return selected frames as byte strings to concatenate.

        Args:
            rows: int64[n] numbers of frames, in output order.
        """
        if not len(self._begins):
            return [self._pieces[row] for row in rows.tolist()]
        data, begins, sizes = self._pieces[0], self._begins[rows], self.sizes[rows]
        if len(rows) >= _MIN_ARRAY_FRAMES:
            distinct = np.unique(sizes)
            if len(distinct) == 1:
                return [_take(data, begins, int(distinct[0])).tobytes()]
            if len(distinct) <= min(_MAX_SIZES, len(rows) // _MIN_ARRAY_FRAMES):
                return [_take_by_size(data, begins, sizes, distinct)]
        spans = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return [data[begin:end] for begin, end in spans]


def _take(data: bytes, begins: NDArray[np.int64], size: int) -> NDArray[np.void]:
    """Return frames of one size, copied from a view with one element per byte offset."""
    at_any_byte = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    taken: NDArray[np.void] = at_any_byte[begins]
    return taken


def _take_by_size(
    data: bytes,
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    distinct: NDArray[np.int64],
) -> bytes:
    """Return frames of a few sizes, in order."""
    ends = np.cumsum(sizes)
    taken = bytearray(int(ends[-1]))
    for size in distinct.tolist():
        rows = np.flatnonzero(sizes == size)
        at_any_byte = np.ndarray((len(taken) - size + 1,), f"V{size}", taken, strides=(1,))
        at_any_byte[ends[rows] - size] = _take(data, begins[rows], size)
    return bytes(taken)
