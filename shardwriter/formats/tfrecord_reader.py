"""Read and check TFRecord frames; :mod:`shardwriter.formats.tfrecord` describes their layout.

A `Cursor` reads a stream forwards; :func:`scan_frames` yields payloads from it and reports each
`Defect`. No field is trusted: the length CRC is checked first, then the length against a limit, and
memory is allocated only for bytes that the stream has. (A length of 2^62 with a correct CRC makes
other readers crash.)
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, Protocol, get_args

import numpy as np

from shardwriter.errors import CorruptFile, OptionError, OutOfMemory
from shardwriter.formats.crc32c import MASK_DELTA, crc32c, extend_crc32c
from shardwriter.formats.tfrecord import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    HEADER_CACHE_SIZE,
    MAX_PAYLOAD_BYTES,
    frame_header,
)

READ_BYTES: Final = 1 << 20  # stays in the cache between the copy and the two checksums
_MAX_READ_BYTES: Final = 64 << 20
MEMORY_HINT: Final = "give the process more memory; `shard-stats` checks records of any size"


class ByteStream(Protocol):
    """The method of a file that a reader uses."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; b"" at the end of the stream."""


class Cursor:
    """A position in a stream of frames, with a buffer of the bytes around it.

    Args:
        stream: Uncompressed bytes; read in large blocks.
        read_at: Reads a number of bytes of a plain file at an offset. With it, an incomplete frame
            at the end of the buffer is read again, which is cheaper than joining buffers, and
            payloads can be skipped.
        size: Bytes of the stream, if known.
        with_crc: Compute the CRC of all consumed bytes.
        on_read: Called after each read.

    Attributes:
        buffer: Bytes that were read and not yet dropped.
        start: The position in ``buffer``.
        base: Offset of ``buffer[0]`` in the stream.
        record_index: Index of the frame at the position.
        broken: The error at which the stream ended; None if there was none.
        crc32c: CRC of all dropped bytes; None after :meth:`seek`.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        read_at: Callable[[int, int], bytes] | None = None,
        size: int | None = None,
        with_crc: bool = False,
        on_read: Callable[[], None] | None = None,
    ) -> None:
        self.buffer = b""
        self.start = 0
        self.base = 0
        self.record_index = 0
        self.broken: CorruptFile | None = None
        self.crc32c: int | None = 0 if with_crc else None
        self.read_at = read_at
        self.size = size
        self._stream = stream
        self._on_read = on_read

    @property
    def offset(self) -> int:
        """Offset of the position in the stream."""
        return self.base + self.start

    def ensure(self, num_bytes: int) -> bool:
        """Fill the buffer with ``num_bytes`` from the position; return False if the stream ends.

        Memory is allocated only as the stream delivers bytes.

        Raises:
            OutOfMemory: The bytes do not fit into memory.
        """
        if len(self.buffer) - self.start >= num_bytes:
            return True
        try:
            return self._fill(num_bytes)
        except MemoryError:
            self.buffer = b""
            raise OutOfMemory(
                f"a record of {num_bytes:,} bytes does not fit into memory",
                record_index=self.record_index,
                offset=self.offset,
                hint=MEMORY_HINT,
            ) from None

    def _fill(self, num_bytes: int) -> bool:
        rereads = self.read_at is not None and num_bytes <= READ_BYTES
        self.drop_consumed(keep_rest=not rereads)
        blocks = [self.buffer] if self.buffer else []
        have = sum(map(len, blocks))
        while have < num_bytes:
            block = self._read(have, min(max(num_bytes - have, READ_BYTES), _MAX_READ_BYTES))
            if not block:
                break
            blocks.append(block)
            have += len(block)
        if self._on_read is not None:
            self._on_read()
        self.buffer = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return have >= num_bytes

    def _read(self, have: int, num_bytes: int) -> bytes:
        if self.broken is not None:
            return b""
        try:
            if self.read_at is not None:
                return self.read_at(num_bytes, self.base + have)
            return self._stream.read(num_bytes)
        except CorruptFile as error:
            self.broken = error
            return b""

    def peek(self, num_bytes: int) -> bytes:
        """Return the next ``num_bytes`` bytes, as far as ``buffer`` has them."""
        return self.buffer[self.start : self.start + num_bytes]

    def drop_consumed(self, *, keep_rest: bool = True) -> None:
        """Drop the bytes before the position, and unless ``keep_rest`` those after it too."""
        if self.crc32c is not None and self.start:
            self.crc32c = extend_crc32c(
                self.crc32c, np.frombuffer(self.buffer, np.uint8, self.start)
            )
        self.buffer = self.buffer[self.start :] if keep_rest else b""
        self.base += self.start
        self.start = 0

    def seek(self, offset: int, buffer: bytes) -> None:
        """Move the position to ``offset``, where the stream has the bytes ``buffer``."""
        self.crc32c = None
        self.buffer, self.base, self.start = buffer, offset, 0


Check = Literal["none", "length", "crc"]
"""What a reader checks: plausible lengths only, also the length CRCs, or all CRCs."""

_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ZEROS = re.compile(b"\0*")
# Zeros that stay in the buffer: a length of 0 has eight, and the search for the next frame starts
# one byte after the position.
_BUFFERED_ZEROS: Final = 9


class Defect(NamedTuple):
    """One defect of a file.

    Attributes:
        kind: The broken rule: ``length-crc``, ``payload-crc``, ``no-crc``, ``unmasked-crc``,
            ``truncated``, ``impossible-length``, ``torn-tail``, or a kind of
            :mod:`shardwriter.formats.compression`.
        record_index: Index in the file of the (first) record concerned; None if not known, after
            a break in the framing.
        offset: Byte offset of its frame in the uncompressed stream.
        detail: Description for people.
        num_records: Number of records lost; None if not known.
        resync_offset: Offset of the next valid frame after a break.
        num_recoverable: Valid records that ordinary readers do not reach because of the defect.
    """

    kind: str
    record_index: int | None
    offset: int
    detail: str
    num_records: int | None = 1
    resync_offset: int | None = None
    num_recoverable: int = 0


BREAKS: Final = frozenset(["length-crc", "impossible-length"])
"""Kinds of defects after which the start of the next frame is not known."""


def _raise(cursor: Cursor, path: str | None) -> Callable[[Defect], None]:
    def on_defect(defect: Defect) -> None:
        if cursor.broken is not None and defect.kind == cursor.broken.kind:
            cursor.broken.record_index, cursor.broken.offset = defect.record_index, defect.offset
            raise cursor.broken
        raise CorruptFile(
            defect.detail,
            kind=defect.kind,
            path=path,
            record_index=defect.record_index,
            offset=defect.offset,
            hint="`shard-stats` lists all defects of the file",
        )

    return on_defect


def read_frames(
    stream: ByteStream,
    *,
    check: Check = "crc",
    on_defect: Callable[[Defect], None] | None = None,
    path: str | None = None,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> Iterator[bytes]:
    """Yield the payloads of an uncompressed stream, each after its check.

    After a wrong payload CRC the next frame is still known, and reading continues; after a wrong
    length it is not, and reading ends.

    Args:
        stream: Uncompressed bytes (see :func:`shardwriter.formats.compression.open_stream`).
        check: What to check.
        on_defect: Called with each defect; the records concerned are not yielded. Without it the
            first defect is raised.
        path: The file, for errors.
        max_payload_bytes: A longer length is a defect.

    Raises:
        CorruptFile: A frame is broken and there is no ``on_defect``.
        OptionError: ``check`` is not one of the values.
    """
    if check not in get_args(Check):
        raise OptionError(f"check is {check!r}", hint="give 'none', 'length' or 'crc'")
    cursor = Cursor(stream)
    yield from scan_frames(
        cursor, check, on_defect or _raise(cursor, path), max_payload_bytes=max_payload_bytes
    )


def scan_frames(
    cursor: Cursor,
    check: Check,
    report: Callable[[Defect], None],
    *,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    yield_unmasked: bool = False,
) -> Iterator[bytes]:
    """Yield the payloads from the position of a cursor, and report each defect.

    During each yield the cursor is after the frame of that payload; after a break in the framing
    it stays at the broken frame.

    Args:
        cursor: The position to read from.
        check: What to check.
        report: Called with each defect.
        max_payload_bytes: A longer length is a defect.
        yield_unmasked: Also yield records whose CRCs are correct but not masked.
    """
    header_crcs: dict[int, int] = {}  # length -> its masked CRC
    run: _Run | None = None
    verify_payload = check == "crc"
    verify_length = check != "none"
    buffer, start = cursor.buffer, cursor.start

    def report_at_cursor(kind: str, detail: str, num_records: int | None = None) -> None:
        nonlocal run
        offset = end_of_zeros = cursor.offset
        if run is not None:
            zeros = run.tail if num_records is None else None
            if zeros is not None:
                # They may have replaced any number of records, and the last zeros may be the first
                # bytes of a frame: the search for the next frame starts there.
                cursor.record_index, offset = zeros
                num_bytes = end_of_zeros - offset
                detail = f"{num_bytes:,} zero bytes, and no frame after them: {detail}"
                cursor.start -= min(cursor.start, _BUFFERED_ZEROS)
            if run.first < cursor.record_index:
                report(run.defect(cursor.record_index))
            run = None
        report(Defect(kind, cursor.record_index, offset, detail, num_records))

    def fetch(num_bytes: int) -> bool:
        nonlocal buffer, start
        num_zeros = 0 if run is None or run.tail is None else min(start, _BUFFERED_ZEROS)
        cursor.start = start - num_zeros
        is_whole = cursor.ensure(num_zeros + num_bytes)
        cursor.start += num_zeros
        buffer, start = cursor.buffer, cursor.start
        return is_whole

    while True:
        if len(buffer) - start < HEADER_BYTES and not fetch(HEADER_BYTES):
            break
        length, length_crc = _HEADER.unpack_from(buffer, start)
        expected = header_crcs.get(length)
        if expected is None:
            expected = _HEADER.unpack(frame_header(length))[1]
            if len(header_crcs) < HEADER_CACHE_SIZE:
                header_crcs[length] = expected
        odd: str | None = None  # no-crc or unmasked-crc: a known deviation of other writers
        if verify_length and length_crc != expected:
            cursor.start = start
            odd = _odd_kind(length, length_crc)
            if odd is None:
                detail = _wrong_length_crc(length_crc, expected, cursor.record_index)
                report_at_cursor("length-crc", detail)
                return
        if length > max_payload_bytes:
            cursor.start = start
            detail = f"length of {length:,} bytes exceeds the limit of {max_payload_bytes:,}"
            report_at_cursor("impossible-length", detail)
            return
        end = start + HEADER_BYTES + length + FOOTER_BYTES
        if end > len(buffer):
            frame_bytes = end - start
            if not fetch(frame_bytes):
                break
            end = start + frame_bytes
        payload = buffer[start + HEADER_BYTES : end - FOOTER_BYTES]
        if verify_payload or odd is not None:
            (stored,) = _U32.unpack_from(buffer, end - FOOTER_BYTES)
            crc = crc32c(payload)
            if odd is not None:
                if stored != (0 if odd == "no-crc" else crc):
                    detail = _wrong_length_crc(length_crc, expected, cursor.record_index)
                    report_at_cursor("length-crc", detail)
                    return
                if run is not None and run.kind != odd:
                    report(run.defect(cursor.record_index))
                    run = None
                if run is None:
                    run = _Run(odd, cursor.record_index, cursor.base + start)
                run.add(cursor.record_index, cursor.base + start, length)
                count = 1
                if odd == "no-crc" and not length:  # runs of zeros can be gigabytes long
                    zeros = _ZEROS.match(buffer, start)
                    assert zeros is not None
                    count = (zeros.end() - start) // FRAME_BYTES
                    end = start + count * FRAME_BYTES
                cursor.record_index += count
                cursor.start = start = end
                if yield_unmasked and odd == "unmasked-crc":
                    yield payload
                    buffer, start = cursor.buffer, cursor.start
                continue
            if stored != ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF:
                cursor.start = start
                detail = f"payload of {length:,} bytes does not match its CRC {stored:08x}"
                report_at_cursor("payload-crc", detail, 1)
                cursor.record_index += 1
                frame_bytes = end - start
                fetch(frame_bytes + HEADER_BYTES)
                end = start + frame_bytes
                wrong = None
                if cursor.size is not None:  # broken deflate data repeats frames inside others
                    wrong = _wrong_header(buffer[end : end + HEADER_BYTES])
                if verify_length and wrong is not None:
                    # The frame may be cut off and followed by others: the search for the next
                    # frame starts at the beginning of this one.
                    detail = _wrong_length_crc(*wrong, cursor.record_index)
                    at = cursor.base + end
                    report(Defect("length-crc", cursor.record_index, at, detail, None))
                    return
                cursor.start = start = end
                continue
        if run is not None:
            report(run.defect(cursor.record_index))
            run = None
        cursor.record_index += 1
        cursor.start = start = end
        yield payload
        buffer, start = cursor.buffer, cursor.start

    cursor.start = start
    rest = buffer[start:]
    ends_in_zeros = not any(rest) and (
        (run is not None and run.tail is not None)
        if len(rest) < HEADER_BYTES
        else verify_length and len(rest) < FRAME_BYTES
    )
    if cursor.broken is not None:
        report_at_cursor(cursor.broken.kind, cursor.broken.message)
    elif rest and not ends_in_zeros:
        report_at_cursor("truncated", _describe_cut(rest))
    elif run is not None or rest:
        run = run or _Run("no-crc", cursor.record_index, cursor.offset)
        stop = cursor.offset + len(rest)
        for defect in run.defects_at_end(cursor.record_index, cursor.offset, stop):
            report(defect)


def _odd_kind(length: int, length_crc: int) -> str | None:
    """Return the kind of a CRC that some writers store: zero or unmasked; None for any other."""
    if length_crc == 0:
        return "no-crc"
    return "unmasked-crc" if length_crc == crc32c(_U64.pack(length)) else None


def _wrong_header(header: bytes) -> tuple[int, int] | None:
    """Return the stored and the expected length CRC of a header that no writer produces."""
    if len(header) < HEADER_BYTES:
        return None
    length, length_crc = _HEADER.unpack(header)
    expected = _HEADER.unpack(frame_header(length))[1]
    is_odd = length <= MAX_PAYLOAD_BYTES and _odd_kind(length, length_crc) is not None
    if length_crc == expected or is_odd:
        return None
    return length_crc, expected


def _wrong_length_crc(found: int, expected: int, record_index: int) -> str:
    detail = f"length CRC is {found:08x}, should be {expected:08x}"
    return f"{detail} (is this a TFRecord file?)" if record_index == 0 else detail


def _describe_cut(rest: bytes) -> str:
    if len(rest) < HEADER_BYTES:
        return f"file ends after {len(rest)} bytes of a 12-byte header"
    (length,) = _U64.unpack_from(rest)
    have = len(rest) - HEADER_BYTES
    if have < length:
        return f"file ends after {have:,} of {length:,} payload bytes"
    return f"file ends after {have - length} of 4 bytes of the payload's CRC"


class _Run:
    """Consecutive frames whose CRCs are all zero, or all unmasked.

    Attributes:
        kind: ``no-crc`` or ``unmasked-crc``.
        first: Index of the first record.
        tail: Record index and offset of the all-zero frames at the end of the run, which may be
            unwritten space; None if it does not end in such frames.
    """

    def __init__(self, kind: str, record_index: int, offset: int) -> None:
        self.kind = kind
        self.first = record_index
        self.tail: tuple[int, int] | None = None
        self._offset = offset

    def add(self, record_index: int, offset: int, payload_bytes: int) -> None:
        if payload_bytes or self.kind != "no-crc":
            self.tail = None
        elif self.tail is None:
            self.tail = record_index, offset

    def defect(self, stop: int) -> Defect:
        count = stop - self.first
        if self.kind == "no-crc":
            detail = f"{count:,} record(s) whose CRC fields are zero: they can not be verified"
            return Defect(self.kind, self.first, self._offset, detail, count)
        detail = (
            f"{count:,} record(s) whose CRCs are correct but not masked: their writer omitted the "
            "mask, and TensorFlow rejects them"
        )
        return Defect(self.kind, self.first, self._offset, detail, count, num_recoverable=count)

    def defects_at_end(self, stop: int, offset: int, stream_bytes: int) -> Iterator[Defect]:
        """Yield the defect of written records without CRCs, then that of unwritten zeros."""
        tail, tail_offset = self.tail or (stop, offset)
        if tail > self.first:
            yield self.defect(tail)
        if tail_offset < stream_bytes:
            zeros = stream_bytes - tail_offset
            detail = f"{zeros:,} zero bytes at the end, which were never written"
            yield Defect("torn-tail", tail, tail_offset, detail, 0)


def read_records(path: str | os.PathLike[str], *, check: Check = "crc") -> Iterator[bytes]:
    """Yield the records of one TFRecord file; its compression is detected from its content.

    Args:
        path: The file.
        check: ``"crc"`` checks every byte; ``"length"`` the framing only; ``"none"`` nothing.

    Raises:
        CorruptFile: A frame is broken; has the file, the record's index and its offset.
        OSError: The file can not be opened or read.
    """
    from shardwriter.formats.compression import open_stream

    with open_stream(path) as stream:
        yield from read_frames(stream, check=check, path=os.fspath(path))
