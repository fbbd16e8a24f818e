"""Reading TFRecord frames (:mod:`shardwriter.tfrecord` has their layout), and proving them.

The reader trusts nothing: the length's CRC comes first, then the length is held against what is
left of the file and against a limit, and only then is memory taken. (A length of 2^62 with a right
CRC makes other readers crash.)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol, get_args

from shardwriter.crc32c import MASK_DELTA, crc32c
from shardwriter.errors import CorruptFile, OptionError
from shardwriter.tfrecord import (
    FOOTER_BYTES,
    HEADER_BYTES,
    HEADER_CACHE_SIZE,
    MAX_PAYLOAD_BYTES,
    frame_header,
)

Check = Literal["none", "length", "crc"]
"""How much a reader proves: nothing but plausible lengths, the length CRCs, or all CRCs."""

_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")
_READ_BYTES = 1 << 20


class ByteStream(Protocol):
    """What a reader needs of a file: up to ``size`` bytes, none of them at the end."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; b"" at the end of the stream."""


class Defect(NamedTuple):
    """One thing wrong with a file.

    Attributes:
        kind: The broken rule: ``length-crc``, ``payload-crc``, ``no-crc``, ``truncated``,
            ``impossible-length``, ``torn-tail``, or a kind of :mod:`shardwriter.compression`.
        record_index: Index in the file of the (first) record concerned.
        offset: Byte offset of its frame in the uncompressed stream.
        detail: What was found, in words.
        num_records: How many records the defect covers.
    """

    kind: str
    record_index: int
    offset: int
    detail: str
    num_records: int = 1


def _raise(path: str | None) -> Callable[[Defect], None]:
    def on_defect(defect: Defect) -> None:
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
        stream: Uncompressed bytes (see :func:`shardwriter.compression.open_stream`).
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
    report = on_defect or _raise(path)
    known_headers: dict[int, int] = {}  # length -> its masked CRC
    unproven: _Unproven | None = None
    zeros_left = False  # the stream ends in zeros that are no whole frame
    buffer = b""
    start = 0  # of the current frame, in buffer
    base = 0  # offset of buffer[0] in the stream
    record_index = 0
    verify_payload = check == "crc"
    verify_length = check != "none"
    broken: CorruptFile | None = None  # the stream itself can not go on

    def read(size: int) -> bytes:
        nonlocal broken
        try:
            return stream.read(size)
        except CorruptFile as error:
            if on_defect is None:
                error.record_index, error.offset = record_index, base + start
                raise
            broken = error
            return b""

    def tell(kind: str, detail: str) -> None:
        nonlocal unproven
        if unproven is not None:
            report(unproven.defect(record_index))
            unproven = None
        report(Defect(kind, record_index, base + start, detail))

    while True:
        left = len(buffer) - start
        if left < HEADER_BYTES:
            more = read(_READ_BYTES)
            buffer, base, start = buffer[start:] + more, base + start, 0
            if more:
                continue
            if left and broken is None:
                zeros_left = unproven is not None and unproven.ends_in_zeros and not any(buffer)
                if not zeros_left:
                    tell("truncated", f"file ends after {left} bytes of a 12-byte header")
            break
        length, length_crc = _HEADER.unpack_from(buffer, start)
        expected = known_headers.get(length)
        if expected is None:
            expected = _HEADER.unpack(frame_header(length))[1]
            if len(known_headers) < HEADER_CACHE_SIZE:
                known_headers[length] = expected
        no_crc = verify_length and length_crc == 0 and length_crc != expected
        if verify_length and length_crc != expected and not no_crc:
            detail = f"length CRC is {length_crc:08x}, should be {expected:08x}"
            if record_index == 0:
                detail += " (is this a TFRecord file?)"
            tell("length-crc", detail)
            break
        if length > max_payload_bytes:
            detail = f"length of {length:,} bytes is over the limit of {max_payload_bytes:,}"
            tell("impossible-length", detail)
            break
        end = start + HEADER_BYTES + length + FOOTER_BYTES
        if end > len(buffer):
            buffer, base, start, end = _read_rest(read, buffer, base, start, end)
            if end > len(buffer):
                if broken is not None:
                    break
                have = len(buffer) - start - HEADER_BYTES
                zeros_left = no_crc and length == 0 and not any(buffer[start:])
                if zeros_left:
                    break
                detail = f"{min(have, length):,} of {length:,} payload bytes"
                if have >= length:
                    detail = f"{have - length} of 4 bytes of the payload's CRC"
                tell("truncated", f"file ends after {detail}")
                break
        payload = buffer[start + HEADER_BYTES : end - FOOTER_BYTES]
        if verify_payload or no_crc:
            (stored,) = _U32.unpack_from(buffer, end - FOOTER_BYTES)
            crc = crc32c(payload)
            right = stored == ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF
            if no_crc:
                if stored == 0:
                    if unproven is None:
                        unproven = _Unproven(record_index, base + start)
                    unproven.add(record_index, base + start, length)
                    record_index += 1
                    start = end
                    continue
                tell("length-crc", f"length CRC is 00000000, should be {expected:08x}")
                break
            if not right:
                detail = f"payload of {length:,} bytes does not have its CRC {stored:08x}"
                tell("payload-crc", detail)
                record_index += 1
                start = end
                continue
        if unproven is not None:
            report(unproven.defect(record_index))
            unproven = None
        record_index += 1
        start = end
        yield payload

    if broken is not None:
        tell(broken.kind, broken.message)
    elif unproven is not None or zeros_left:
        unproven = unproven or _Unproven(record_index, base + start)
        for defect in unproven.defects_at_end(record_index, base + start, base + len(buffer)):
            report(defect)


class _Unproven:
    """A run of frames whose two CRC fields are zero, and the all-zero frames that it ends in."""

    def __init__(self, record_index: int, offset: int) -> None:
        self._first = record_index
        self._offset = offset
        self._tail: tuple[int, int] | None = None  # record index and offset

    @property
    def ends_in_zeros(self) -> bool:
        return self._tail is not None

    def add(self, record_index: int, offset: int, payload_bytes: int) -> None:
        if payload_bytes:
            self._tail = None
        elif self._tail is None:
            self._tail = record_index, offset

    def defect(self, stop: int) -> Defect:
        count = stop - self._first
        detail = f"{count:,} record(s) whose CRC fields are zero: nothing proves them"
        return Defect("no-crc", self._first, self._offset, detail, count)

    def defects_at_end(self, stop: int, offset: int, stream_bytes: int) -> Iterator[Defect]:
        """Split what a writer left unproven from zeros that nobody wrote."""
        tail, tail_offset = self._tail or (stop, offset)
        if tail > self._first:
            yield self.defect(tail)
        if tail_offset < stream_bytes:
            zeros = stream_bytes - tail_offset
            detail = f"{zeros:,} zero bytes at the end: a tail that was never written"
            yield Defect("torn-tail", tail, tail_offset, detail, 0)


def _read_rest(
    read: Callable[[int], bytes], buffer: bytes, base: int, start: int, end: int
) -> tuple[bytes, int, int, int]:
    """Read on until the frame [start, end) of ``buffer`` is whole, or the stream ends."""
    pieces = [buffer[start:]]
    missing = end - len(buffer)
    while missing > 0:
        # Asking for no more than a block at a time: a wrong length takes no memory it does not use.
        piece = read(min(max(missing, _READ_BYTES), 64 << 20))
        if not piece:
            break
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces), base + start, 0, end - start


def read_records(path: str | os.PathLike[str], *, check: Check = "crc") -> Iterator[bytes]:
    """Yield the records of one TFRecord file, compressed or not (found by content).

    Args:
        path: The file.
        check: ``"crc"`` proves every byte; ``"length"`` the framing only; ``"none"`` nothing.

    Raises:
        CorruptFile: With the file, the record's index and its offset.
        OSError: The file can not be opened or read.
    """
    from shardwriter.compression import open_stream

    with open_stream(path) as stream:
        yield from read_frames(stream, check=check, path=os.fspath(path))
