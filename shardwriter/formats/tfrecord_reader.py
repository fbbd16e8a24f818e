"""Reading TFRecord frames (:mod:`shardwriter.formats.tfrecord` has their layout), and proving them.

The reader trusts nothing: the length's CRC comes first, then the length is held against what is
left of the file and against a limit, and only then is memory taken. (A length of 2^62 with a right
CRC makes other readers crash.)
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

# A place in a stream of frames, and what was read around it.

READ_BYTES: Final = 1 << 20  # stays in a core's cache between the copy and the two checksums
_MOST_BYTES: Final = 64 << 20
MEMORY_HINT: Final = "give the process more memory; `shard-stats` checks records of any size"


class ByteStream(Protocol):
    """What a reader needs of a file: up to ``size`` bytes, none of them at the end."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; b"" at the end of the stream."""


class Cursor:
    """Reads a stream forwards and knows the place at which reading stands.

    Args:
        stream: Uncompressed bytes; read in large pieces.
        read_at: Returns the bytes of a plain file by number and offset. With it a tail that was
            read too early is read again, which is cheaper than joining it to what follows, and
            payloads can be hopped over.
        size: Bytes of the stream, where they are known.
        with_crc: Keep the CRC of all that was passed.
        on_read: Called when something was read.

    Attributes:
        buffer: What was read and is not yet given up.
        start: The place, in ``buffer``.
        base: Offset of ``buffer[0]`` in the stream.
        record_index: Of the frame at the place.
        broken: Why the stream can not go on; None while it can.
        crc32c: Of all that was passed and given up; None once something was hopped over.
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
        """Offset of the place in the stream."""
        return self.base + self.start

    def ensure(self, num_bytes: int) -> bool:
        """Have that many bytes behind the place in ``buffer``; False where the stream ends before.

        No memory is taken that the stream does not fill, whatever is asked for.

        Raises:
            OutOfMemory: There is not enough for a record that is asked for.
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
        pieces = [self.buffer] if self.buffer else []
        have = sum(map(len, pieces))
        while have < num_bytes:
            piece = self._read(have, min(max(num_bytes - have, READ_BYTES), _MOST_BYTES))
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        if self._on_read is not None:
            self._on_read()
        self.buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
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
        """Return what ``buffer`` has of the next bytes."""
        return self.buffer[self.start : self.start + num_bytes]

    def drop_consumed(self, *, keep_rest: bool = True) -> None:
        """Drop what was passed, and the rest of what was read too where it is read again."""
        if self.crc32c is not None and self.start:
            self.crc32c = extend_crc32c(
                self.crc32c, np.frombuffer(self.buffer, np.uint8, self.start)
            )
        self.buffer = self.buffer[self.start :] if keep_rest else b""
        self.base += self.start
        self.start = 0

    def seek(self, offset: int, buffer: bytes) -> None:
        """Hop over what lies between; ``buffer`` is what stands at ``offset``."""
        self.crc32c = None
        self.buffer, self.base, self.start = buffer, offset, 0


Check = Literal["none", "length", "crc"]
"""How much a reader proves: nothing but plausible lengths, the length CRCs, or all CRCs."""

_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ZEROS = re.compile(b"\0*")
_ZEROS_KEPT: Final = 9  # a length of 0 is eight; the search for a frame begins one byte further on


class Defect(NamedTuple):
    """One thing wrong with a file.

    Attributes:
        kind: The broken rule: ``length-crc``, ``payload-crc``, ``no-crc``, ``unmasked-crc``,
            ``truncated``, ``impossible-length``, ``torn-tail``, or a kind of
            :mod:`shardwriter.formats.compression`.
        record_index: Index in the file of the (first) record concerned; None where that is not
            known, behind a break in the framing.
        offset: Byte offset of its frame in the uncompressed stream.
        detail: What was found, in words.
        num_records: How many records are lost with it; None where that is not known.
        resync_offset: Where the next frame begins that is provably good, behind a break.
        num_recoverable: Good records that ordinary readers do not reach because of the defect.
    """

    kind: str
    record_index: int | None
    offset: int
    detail: str
    num_records: int | None = 1
    resync_offset: int | None = None
    num_recoverable: int = 0


BREAKS: Final = frozenset(["length-crc", "impossible-length"])
"""Kinds behind which it is not known where the next frame begins."""


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
            hint="`shard-stats` lists all that is wrong with the file",
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
    """Yield the payloads of an uncompressed stream, proving each before it is handed out.

    After a wrong payload CRC the next frame is still known, so reading goes on; after a wrong
    length nothing that follows can be trusted, and it ends.

    Args:
        stream: Uncompressed bytes (see :func:`shardwriter.formats.compression.open_stream`).
        check: What to prove.
        on_defect: Told of each defect; records that it concerns are not yielded. Without it the
            first defect is raised.
        path: Named in errors.
        max_payload_bytes: A longer length is a defect, before any memory is taken.

    Raises:
        CorruptFile: A frame is broken and there is no ``on_defect``.
        OptionError: There is no such check.
    """
    if check not in get_args(Check):
        raise OptionError(f"check is {check!r}", hint="none, length or crc")
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
    """Yield payloads from where a cursor stands: the one place that says what is wrong.

    The cursor stands behind the frame whose payload was yielded, so that another can go on there;
    where a break was told it stands at the broken frame.

    Args:
        cursor: Where to read.
        check: What to prove.
        report: Told of each defect.
        max_payload_bytes: A longer length is a defect.
        yield_unmasked: Yield the records too whose checksums are right but for the mask.
    """
    known_headers: dict[int, int] = {}  # length -> its masked CRC
    run: _Run | None = None
    verify_payload = check == "crc"
    verify_length = check != "none"
    buffer, start = cursor.buffer, cursor.start

    def tell(kind: str, detail: str, num_records: int | None = None) -> None:
        nonlocal run
        offset = end_of_zeros = cursor.offset
        if run is not None:
            zeros = run.tail if num_records is None else None
            if zeros is not None:
                # They may stand where any number of records was, and the last of them may be the
                # first bytes of a frame: it is looked for from there.
                cursor.record_index, offset = zeros
                num_bytes = end_of_zeros - offset
                detail = f"{num_bytes:,} zero bytes, and no frame behind them: {detail}"
                cursor.start -= min(cursor.start, _ZEROS_KEPT)
            if run.first < cursor.record_index:
                report(run.defect(cursor.record_index))
            run = None
        report(Defect(kind, cursor.record_index, offset, detail, num_records))

    def fetch(num_bytes: int) -> bool:
        nonlocal buffer, start
        kept = 0 if run is None or run.tail is None else min(start, _ZEROS_KEPT)
        cursor.start = start - kept
        is_whole = cursor.ensure(kept + num_bytes)
        cursor.start += kept
        buffer, start = cursor.buffer, cursor.start
        return is_whole

    while True:
        if len(buffer) - start < HEADER_BYTES and not fetch(HEADER_BYTES):
            break
        length, length_crc = _HEADER.unpack_from(buffer, start)
        expected = known_headers.get(length)
        if expected is None:
            expected = _HEADER.unpack(frame_header(length))[1]
            if len(known_headers) < HEADER_CACHE_SIZE:
                known_headers[length] = expected
        odd: str | None = None  # how the frame's checksums are wrong, if they are so on purpose
        if verify_length and length_crc != expected:
            cursor.start = start
            odd = _odd_kind(length, length_crc)
            if odd is None:
                tell("length-crc", _wrong_length_crc(length_crc, expected, cursor.record_index))
                return
        if length > max_payload_bytes:
            cursor.start = start
            detail = f"length of {length:,} bytes is over the limit of {max_payload_bytes:,}"
            tell("impossible-length", detail)
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
                    tell("length-crc", _wrong_length_crc(length_crc, expected, cursor.record_index))
                    return
                if run is not None and run.kind != odd:
                    report(run.defect(cursor.record_index))
                    run = None
                if run is None:
                    run = _Run(odd, cursor.record_index, cursor.base + start)
                run.add(cursor.record_index, cursor.base + start, length)
                count = 1
                if odd == "no-crc" and not length:  # zeros come by the gigabyte
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
                detail = f"payload of {length:,} bytes does not have its CRC {stored:08x}"
                tell("payload-crc", detail, 1)
                cursor.record_index += 1
                frame_bytes = end - start
                fetch(frame_bytes + HEADER_BYTES)
                end = start + frame_bytes
                wrong = None
                if cursor.size is not None:  # broken deflate data repeats frames inside of others
                    wrong = _wrong_header(buffer[end : end + HEADER_BYTES])
                if verify_length and wrong is not None:
                    # The frame may have been cut, and others written behind it: they are looked
                    # for from its beginning.
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
        tell(cursor.broken.kind, cursor.broken.message)
    elif rest and not ends_in_zeros:
        tell("truncated", _how_cut(rest))
    elif run is not None or rest:
        run = run or _Run("no-crc", cursor.record_index, cursor.offset)
        stop = cursor.offset + len(rest)
        for defect in run.defects_at_end(cursor.record_index, cursor.offset, stop):
            report(defect)


def _odd_kind(length: int, length_crc: int) -> str | None:
    """Name what some writers do on purpose, or out of ignorance of the mask."""
    if length_crc == 0:
        return "no-crc"
    return "unmasked-crc" if length_crc == crc32c(_U64.pack(length)) else None


def _wrong_header(header: bytes) -> tuple[int, int] | None:
    """Return the length CRC of a header that nobody writes, and what it should be."""
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
    return detail + " (is this a TFRecord file?)" * (record_index == 0)


def _how_cut(rest: bytes) -> str:
    if len(rest) < HEADER_BYTES:
        return f"file ends after {len(rest)} bytes of a 12-byte header"
    (length,) = _U64.unpack_from(rest)
    have = len(rest) - HEADER_BYTES
    if have < length:
        return f"file ends after {have:,} of {length:,} payload bytes"
    return f"file ends after {have - length} of 4 bytes of the payload's CRC"


class _Run:
    """Frames in a row whose checksums are zero, or not masked.

    Of those that are zero it knows the all-zero frames that it ends in: nobody may have written
    them.
    """

    def __init__(self, kind: str, record_index: int, offset: int) -> None:
        self.kind = kind
        self.first = record_index
        self.tail: tuple[int, int] | None = None  # record index and offset
        self._offset = offset

    def add(self, record_index: int, offset: int, payload_bytes: int) -> None:
        if payload_bytes or self.kind != "no-crc":
            self.tail = None
        elif self.tail is None:
            self.tail = record_index, offset

    def defect(self, stop: int) -> Defect:
        count = stop - self.first
        if self.kind == "no-crc":
            detail = f"{count:,} record(s) whose CRC fields are zero: nothing proves them"
            return Defect(self.kind, self.first, self._offset, detail, count)
        detail = (
            f"{count:,} record(s) whose CRCs are right, but not masked: their writer left out the "
            "mask, and TensorFlow refuses them"
        )
        return Defect(self.kind, self.first, self._offset, detail, count, num_recoverable=count)

    def defects_at_end(self, stop: int, offset: int, stream_bytes: int) -> Iterator[Defect]:
        """Split what a writer left unproven from zeros that nobody wrote."""
        tail, tail_offset = self.tail or (stop, offset)
        if tail > self.first:
            yield self.defect(tail)
        if tail_offset < stream_bytes:
            zeros = stream_bytes - tail_offset
            detail = f"{zeros:,} zero bytes at the end: a tail that was never written"
            yield Defect("torn-tail", tail, tail_offset, detail, 0)


def read_records(path: str | os.PathLike[str], *, check: Check = "crc") -> Iterator[bytes]:
    """Yield the records of one TFRecord file, compressed or not (found by content).

    Args:
        path: The file.
        check: ``"crc"`` proves every byte; ``"length"`` the framing only; ``"none"`` nothing.

    Raises:
        CorruptFile: With the file, the record's index and its offset.
        OSError: The file can not be opened or read.
    """
    from shardwriter.formats.compression import open_stream

    with open_stream(path) as stream:
        yield from read_frames(stream, check=check, path=os.fspath(path))
