"""Write gzip and zlib shards that are cut at records and that TensorFlow reads to the end.

A gzip shard is a sequence of members (RFC 1952), little-endian::

    offset  size  field
    0       10    1f 8b 08 04 00000000 00 ff     deflate, FEXTRA, no time, no system
    10      2     u16 length of the extra field: 16 + pad
    12      4     "SW" | u16 12 + pad            shardwriter's subfield
    16      8     u64 size of this member in the file
    24      4     u32 records in it
    28      pad   zeros
    28+pad  ...   deflate data, compressed in one call (:mod:`shardwriter.formats.compression`)
    ...     8     u32 crc32 | u32 uncompressed bytes mod 2^32

so a reader can skip members without inflating them. A member ends with the record that brings its
uncompressed bytes to ``member_bytes`` or more.

TensorFlow's reader silently stops (a) after an empty member and (b) where a member ends just past a
multiple of its buffer of 262,144 bytes, with all its data in one buffer and its trailer in the
next. So a shard with records has no empty member, and a member whose end E has 1 <= E mod 4096 <=
63 is padded to E mod 4096 = 64, unless it is the last. Such a member is written only when the next
member or the end of the shard is known.

A zlib shard (RFC 1950) is one stream, as TensorFlow reads only the first of several::

    78 9c | blocks, cut like members, each ending in a full flush | 03 00 | u32 adler32, big-endian

A shard without records is one empty member, or a stream without blocks. Inflating can start at
each block; :func:`zlib_blocks` finds them.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, NamedTuple

from isal import isal_zlib

from shardwriter.errors import CorruptFile
from shardwriter.formats.compression import RAW_WBITS, Packing, deflate_block, deflate_member
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.formats.tfrecord import (
    NOTHING_WRITTEN,
    BinarySink,
    TFRecordWriter,
    Written,
    open_sink,
    write_all,
)

EMPTY_DEFLATE: Final = b"\x03\x00"
"""The deflate data of no bytes: an empty last block."""
ZLIB_HEAD: Final = b"\x78\x9c"
ZLIB_TAIL_BYTES: Final = 6  # the empty last block, and adler32
HAZARD_BYTES: Final = 64
"""TensorFlow reads on after a member that ends at least so many bytes into a buffer."""

_GZIP_HEAD = struct.Struct("<10sH2sHQI")
_GZIP_MAGIC: Final = bytes.fromhex("1f8b08040000000000ff")
_GZIP_TRAILER = struct.Struct("<II")
_SUBFIELD_HEAD_BYTES: Final = 4
_SUBFIELD_BYTES: Final = 12
_PAGE_BYTES: Final = 4096


class _Member(NamedTuple):
    """The compressed data and the trailer of a gzip member, without its header."""

    deflated: bytes
    trailer: bytes
    num_records: int
    stream_bytes: int  # uncompressed bytes of all frames up to its end
    crc32c: int  # CRC-32C of those frames


class _Frames:
    """The sink of the inner writer: it holds the frames of one member; closes the real file."""

    def __init__(self, sink: BinarySink) -> None:
        self._sink = sink
        self.data = b""

    def write(self, data: bytes, /) -> None:
        """Store the frames until ``on_flush`` reports their number."""
        self.data = data

    def close(self) -> None:
        """Close the file."""
        self._sink.close()


class CompressedWriter:
    """A writer of one gzip or zlib shard, with the interface of :class:`TFRecordWriter`.

    An inner :class:`TFRecordWriter` buffers the frames of a member, so until a member is full a
    record costs the same as in a plain shard.

    Args:
        file: A path (the file is created or truncated) or an open binary sink.
        packing: Type, library and size of members.
        on_flush: Called with ``[end, records]`` after each member: its end offset in the file, and
            the number of records up to there.
        written: What a gzip file contains already; members are appended to it. A zlib stream can
            not be continued, as its checksum covers the whole stream.

    Attributes:
        write: Append one record, given as bytes.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | BinarySink,
        packing: Packing,
        *,
        on_flush: Callable[[list[int]], None] | None = None,
        written: Written = NOTHING_WRITTEN,
    ) -> None:
        assert not written.num_pieces or packing.compression == "gzip"
        self._sink = open_sink(file)
        self._deflate = packing.deflate
        self._is_gzip = packing.compression == "gzip"
        self._on_flush = on_flush
        self._frames = _Frames(self._sink)
        self._inner = TFRecordWriter(
            self._frames,
            buffer_bytes=packing.member_bytes,
            on_flush=self._pack,
            written=written,
        )
        # The method itself: a wrapper would cost as much as framing a short record.
        self.write: Callable[[bytes], None] = self._inner.write
        self._packed_records = written.num_records
        self._pending: _Member | None = None
        self._adler32 = 1
        self._written = written._replace(file_crc32c=written.file_crc32c or 0)
        self._finished = False
        self._failure: BaseException | None = None  # then the end of the file is undefined
        self._failed_at: TracebackType | None = None

    @property
    def num_records(self) -> int:
        """Records so far, including those that are not in a member yet."""
        return self._inner.num_records

    @property
    def stream_bytes(self) -> int:
        """Uncompressed bytes of all frames so far."""
        return self._inner.stream_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads so far."""
        return self._inner.payload_bytes

    @property
    def written(self) -> Written:
        """The content of the file: whole members."""
        return self._written

    def flush(self) -> None:
        """Do nothing: the records decide where a member ends, and whole members are written."""

    def finish(self) -> None:
        """Write the remaining records and the trailer; no record may follow."""
        if self._failure is not None:
            raise self._failure.with_traceback(self._failed_at)
        if self._finished:
            return
        try:
            self._inner.flush()
            self._write_rest()
        except BaseException as error:
            self._failure, self._failed_at = error, error.__traceback__
            raise
        self._finished = True

    def _write_rest(self) -> None:
        if self._is_gzip:
            if self._pending is not None:
                self._write_member(self._pending, is_last=True)
            elif not self._packed_records:
                self._write_member(_Member(EMPTY_DEFLATE, bytes(8), 0, 0, 0), is_last=True)
        else:
            head = b"" if self._packed_records else ZLIB_HEAD
            tail = EMPTY_DEFLATE + struct.pack(">I", self._adler32)
            before = self._written
            self._put(
                head + tail, before.num_records, before.stream_bytes, before.crc32c, num_pieces=0
            )

    def close(self) -> None:
        """Finish and close the file. Closing twice does nothing."""
        try:
            self.finish()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the file without writing records that are not in a member yet."""
        self._finished = True
        self._failure = None
        self._pending = None
        self._inner.discard()

    def __enter__(self) -> CompressedWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _pack(self, payload_sizes: list[int]) -> None:
        """Compress the frames that the inner writer has just flushed."""
        data, self._frames.data = self._frames.data, b""
        self._packed_records += len(payload_sizes)
        if self._is_gzip:
            trailer = _GZIP_TRAILER.pack(isal_zlib.crc32(data), len(data) & 0xFFFFFFFF)
            member = _Member(
                deflate_member(data, self._deflate),
                trailer,
                len(payload_sizes),
                self._inner.written.stream_bytes,
                self._inner.crc32c,
            )
            self._add_member(member)
            return
        head = b"" if self._written.file_bytes else ZLIB_HEAD
        self._adler32 = isal_zlib.adler32(data, self._adler32)
        block = head + deflate_block(data, self._deflate)
        stream_bytes = self._inner.written.stream_bytes
        self._put(block, self._packed_records, stream_bytes, self._inner.crc32c)
        self._report_flush()

    def _add_member(self, member: _Member) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._write_member(pending, is_last=False)
        size = _GZIP_HEAD.size + len(member.deflated) + len(member.trailer)
        if _padding(self._written.file_bytes + size):
            self._pending = member
        else:
            self._write_member(member, is_last=False)

    def _write_member(self, member: _Member, *, is_last: bool) -> None:
        size = _GZIP_HEAD.size + len(member.deflated) + len(member.trailer)
        pad = 0 if is_last else _padding(self._written.file_bytes + size)
        head = _GZIP_HEAD.pack(
            _GZIP_MAGIC,
            _SUBFIELD_HEAD_BYTES + _SUBFIELD_BYTES + pad,
            b"SW",
            _SUBFIELD_BYTES + pad,
            size + pad,
            member.num_records,
        )
        records = self._written.num_records + member.num_records
        data = b"".join((head, bytes(pad), member.deflated, member.trailer))
        self._put(data, records, member.stream_bytes, member.crc32c)
        self._report_flush()

    def _put(
        self, data: bytes, num_records: int, stream_bytes: int, crc32c: int, num_pieces: int = 1
    ) -> None:
        """Write whole members; the numbers are those of the file afterwards."""
        write_all(self._sink, data)
        before = self._written
        self._written = Written(
            num_records,
            stream_bytes,
            crc32c,
            before.file_bytes + len(data),
            extend_crc32c(before.file_crc32c or 0, data),
            before.num_pieces + num_pieces,
        )

    def _report_flush(self) -> None:
        if self._on_flush is not None:
            self._on_flush([self._written.file_bytes, self._written.num_records])


def _padding(end: int) -> int:
    """Return the padding that moves a member's end out of the range where TensorFlow stops."""
    past = end % _PAGE_BYTES
    return HAZARD_BYTES - past if 1 <= past < HAZARD_BYTES else 0


# The blocks of a zlib shard are marked only by the empty stored block ``00 00 ff ff`` at the end of
# a full flush. Compressed data may contain these bytes too, so each occurrence is tried: at the end
# of a block, the empty last block ``03 00`` would end the stream.

_FLUSH: Final = b"\x00\x00\xff\xff"
_FEED_BYTES: Final = 1 << 16  # inflated at a time, which bounds the memory for a zip bomb


def zlib_blocks(path: str | os.PathLike[str]) -> Iterator[tuple[int, int]]:
    """Yield the end of each block of a zlib file.

    Checksums are not checked; :func:`shardwriter.formats.tfrecord_reader.read_records` does that.

    Args:
        path: A complete zlib file.

    Yields:
        The end offset of the block in the file, and in the uncompressed stream.

    Raises:
        CorruptFile: The file is not cut into blocks, like those of other writers.
        OSError: The file can not be read.
    """
    file_bytes = os.path.getsize(path)
    if file_bytes <= len(ZLIB_HEAD) + ZLIB_TAIL_BYTES:
        return
    stop = file_bytes - ZLIB_TAIL_BYTES
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin, stream_end = len(ZLIB_HEAD), 0
        while begin < stop:
            found = block_at(data, begin)
            if found is None or found[0] > stop:
                raise CorruptFile(
                    f"no block of the zlib stream starts at byte {begin:,} of the file",
                    kind="no-blocks",
                    path=os.fspath(path),
                    hint="`shardwriter write` writes zlib shards with blocks",
                )
            begin, stream_end = found[0], stream_end + found[1]
            yield begin, stream_end


def block_at(data: bytes | mmap.mmap, begin: int) -> tuple[int, int] | None:
    """Return the end of the block at ``begin`` and its uncompressed size; None if there is none."""
    inflater = zlib.decompressobj(wbits=RAW_WBITS)
    inflated_bytes, fed = 0, begin
    # Two of these marks can not overlap, so the search continues after the last one.
    while (mark := data.find(_FLUSH, fed)) >= 0:
        for start in range(fed, mark + len(_FLUSH), _FEED_BYTES):
            block = data[start : min(start + _FEED_BYTES, mark + len(_FLUSH))]
            try:
                inflated_bytes += len(inflater.decompress(block))
            except zlib.error:
                return None
            if inflater.eof:
                return None
        fed = mark + len(_FLUSH)
        if _could_end(inflater):
            return fed, inflated_bytes
    return None


def _could_end(inflater: zlib._Decompress) -> bool:
    """Return whether the empty last block would end the stream here."""
    probe = inflater.copy()
    try:
        rest = probe.decompress(EMPTY_DEFLATE)
    except zlib.error:
        return False
    return probe.eof and not rest and not probe.unused_data
