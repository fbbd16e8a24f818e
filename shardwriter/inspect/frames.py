"""Frames of a damaged or large file: bulk verification, and resynchronization behind breaks.

Good frames are passed in bulk. Any other frame goes to
:func:`shardwriter.formats.tfrecord_reader.scan_frames`, the only place that decides what is wrong.

Behind a break, `next_frame` finds the next good frame. A frame has no marker, but a length below
2^31 has five zero bits and four zero bytes, and the CRC of the length matches by chance once in
2^32. Both are tested for all offsets of a block at once; the payload's CRC confirms the few
candidates.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats import (
    BREAKS,
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    HEADER_CACHE_SIZE,
    MASK_DELTA,
    MAX_PAYLOAD_BYTES,
    Check,
    Cursor,
    Defect,
    extend_crc32c,
    frame_header,
    mask_crc32c,
    scan_frames,
)
from shardwriter.formats.crc32c import crc32c
from shardwriter.storage import inputs_for, open_stream, storage_errors

_FREE_BYTES: Final = 64 << 20
_VERIFY_FACTOR: Final = 4


def next_frame(
    cursor: Cursor,
    *,
    ends: NDArray[np.uint64] | None = None,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> bool:
    """Move a cursor to the next complete frame with right CRCs; return whether there is one.

    The search begins one byte behind the cursor. Memory holds a block of the stream, or the longest
    candidate. The cursor's record index does not change.

    Args:
        cursor: Where to begin; at the end of the stream afterwards if there is no frame.
        ends: uint64[n], ascending: known frame ends; frames begin only there.
        max_payload_bytes: Maximum payload of a frame.
    """
    first = cursor.offset
    wasted_bytes = 0  # bytes hashed for false candidates
    if cursor.ensure(1):
        cursor.start += 1
    while cursor.ensure(HEADER_BYTES):
        block, start, base = cursor.buffer, cursor.start, cursor.base
        found = header_offsets(block[start:], max_payload_bytes) + start
        if ends is not None:
            found = found[np.isin((found + base).astype(np.uint64), ends)]
        for begin in found.tolist():
            offset = base + begin
            # Avoids quadratic time for data full of headers of long frames.
            if wasted_bytes > _FREE_BYTES + _VERIFY_FACTOR * (offset - first):
                break
            length = int.from_bytes(block[begin : begin + 8], "little")
            frame_bytes = length + FRAME_BYTES
            if cursor.size is not None and offset + frame_bytes > cursor.size:
                continue
            cursor.start = offset - cursor.base
            if not cursor.ensure(frame_bytes):
                continue
            if _has_right_payload(cursor.buffer, cursor.start, length):
                return True
            wasted_bytes += frame_bytes
        # A header may reach over the end of the block.
        cursor.start = base + max(start + 1, len(block) - HEADER_BYTES + 1) - cursor.base
    cursor.start = len(cursor.buffer)
    return False


def _has_right_payload(buffer: bytes, start: int, length: int) -> bool:
    end = start + HEADER_BYTES + length
    payload = np.frombuffer(buffer, np.uint8, length, start + HEADER_BYTES)
    stored = int.from_bytes(buffer[end : end + FOOTER_BYTES], "little")
    return stored == mask_crc32c(extend_crc32c(0, payload))


def header_offsets(data: bytes, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> NDArray[np.int64]:
    """Return int64[n], ascending: offsets of lengths below 2^31 with the right CRC."""
    num_offsets = len(data) - HEADER_BYTES + 1
    if num_offsets <= 0:
        return np.empty(0, np.int64)
    octets = np.frombuffer(data, np.uint8)
    # zero[i]: the four bytes from i on are zero.
    zero = octets == 0
    zero = zero[:-1] & zero[1:]
    zero = zero[:-2] & zero[2:]
    high = zero[4 : 4 + num_offsets]
    # All zeros is a length of 0 with a wrong CRC, which is common in files.
    all_zero = zero[:num_offsets] & zero[8 : 8 + num_offsets]
    offsets = np.flatnonzero(high & ~all_zero & (octets[3 : 3 + num_offsets] < 0x80))
    if not len(offsets):
        return offsets
    lengths = _u32(octets, offsets)
    is_right = masked_length_crcs(lengths) == _u32(octets, offsets + 8)
    found: NDArray[np.int64] = offsets[is_right & (lengths <= max_payload_bytes)]
    return found


def _u32(octets: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    values: NDArray[np.uint32] = octets[offsets[:, None] + np.arange(4)].view("<u4")[:, 0]
    return values


def masked_length_crcs(lengths: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint32]:
    """Return uint32[n]: the masked CRCs of u64 lengths, which are below 2^32."""
    tables, crc_of_zeros = _tables()
    crcs = np.full(len(lengths), crc_of_zeros, np.uint32)
    for byte, table in enumerate(tables):
        octets = lengths >> lengths.dtype.type(8 * byte) & lengths.dtype.type(0xFF)
        crcs ^= table[octets.astype(np.uint8)]
    return mask_crcs(crcs)


def mask_crcs(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return uint32[n]: CRCs with the mask of TFRecord frames."""
    rotated: NDArray[np.uint32] = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    rotated += np.uint32(MASK_DELTA)
    return rotated


@cache
def _tables() -> tuple[NDArray[np.uint32], int]:
    """Return uint32[4, 256]: the XOR of each low byte with the CRC of 8 zeros; and that CRC.

    A CRC is linear over GF(2), so the contributions of the bytes are combined by XOR.
    """
    crc_of_zeros = int(crc32c(bytes(8)))
    rows = [
        [
            int(crc32c((octet << 8 * byte).to_bytes(8, "little"))) ^ crc_of_zeros
            for octet in range(256)
        ]
        for byte in range(4)
    ]
    return np.array(rows, np.uint32), crc_of_zeros


_COPIED_BYTES: Final = 4096  # a copy of a short payload is cheaper than a view of it
_SKIP_BYTES: Final = 1 << 14  # longer payloads cost more to read than another read call
_MAX_SKIPPED: Final = 1 << 14
_FEW: Final = 32
_BORDER: Final = struct.Struct("<4xQI")  # the end of one frame, and the header of the next


class GoodRecord(NamedTuple):
    """A record with right CRCs.

    Attributes:
        offset: Offset of its frame in the uncompressed stream.
        record_index: Index in the file; None if unknown, behind a break.
        payload: Its bytes.
    """

    offset: int
    record_index: int | None
    payload: bytes


class Walk:
    """Reads a file frame by frame, and continues behind breaks.

    Args:
        cursor: At the start of the file.
        check: What to verify.
        on_defect: Called with each defect; for a break after the next good frame was searched.
        ends: uint64[n]: where the frames end, according to an index. With it, the indices of
            records behind a break are known.
        yield_unmasked: Also return records with unmasked CRCs.

    Attributes:
        is_behind_break: Whether ordinary readers do not reach the current frame.
        is_index_known: Whether the cursor's record index is right.
    """

    def __init__(
        self,
        cursor: Cursor,
        check: Check,
        on_defect: Callable[[Defect], None],
        *,
        ends: NDArray[np.uint64] | None = None,
        yield_unmasked: bool = False,
    ) -> None:
        self.is_behind_break = False
        self.is_index_known = True
        self._cursor = cursor
        self._check: Check = check
        self._on_defect = on_defect
        self._ends = ends
        self._yield_unmasked = yield_unmasked
        self._break: Defect | None = None
        # Continues at the cursor, which callers may move in between.
        self._judged = self._judge()

    def next(self) -> bytes | None:
        """Return the next good payload; None at the end of the file."""
        while True:
            for payload in self._judged:
                return payload
            if self._break is None or not self._resume(self._break):
                return None
            self._judged = self._judge()

    def _judge(self) -> Iterator[bytes]:
        return scan_frames(
            self._cursor, self._check, self._note, yield_unmasked=self._yield_unmasked
        )

    def _note(self, defect: Defect) -> None:
        if not self.is_index_known:
            defect = defect._replace(record_index=None)
        # A truncated frame may be followed by appended data.
        is_cut = defect.kind == "truncated" and self._cursor.size is not None
        if defect.kind in BREAKS or is_cut:
            self._break = defect  # reported by _resume
            return
        if defect.kind == "torn-tail" and self._is_at_frame(defect):
            assert self._ends is not None
            assert defect.record_index is not None
            defect = defect._replace(num_records=len(self._ends) - defect.record_index)
        self._on_defect(defect)

    def _is_at_frame(self, defect: Defect) -> bool:
        """Return whether a frame of the table begins at the defect."""
        ends, index = self._ends, defect.record_index
        if ends is None or index is None or index >= len(ends):
            return False
        return defect.offset == (int(ends[index - 1]) if index else 0)

    def _num_left(self) -> int:
        return 0 if self._ends is None else len(self._ends) - self._cursor.record_index

    def _resume(self, defect: Defect) -> bool:
        """Find the next good frame and report the break; return whether there is one."""
        cursor = self._cursor
        self._break = None
        self.is_behind_break = True
        ends = self._ends if self._is_at_frame(defect) else None
        if not next_frame(cursor, ends=ends):
            lost = None if ends is None else self._num_left()
            self._on_defect(defect._replace(num_records=lost))
            if cursor.broken is not None:
                self._note(
                    Defect(
                        cursor.broken.kind,
                        None,
                        cursor.offset,
                        cursor.broken.message,
                        num_records=None,
                    )
                )
            return False
        lost = None
        if ends is None:
            self.is_index_known = False
            cursor.record_index += 1
        else:
            index = int(np.searchsorted(ends, np.uint64(cursor.offset))) + 1
            lost = index - cursor.record_index
            cursor.record_index = index
        self._on_defect(defect._replace(num_records=lost, resync_offset=cursor.offset))
        return True


def good_records(
    path: str | os.PathLike[str],
    *,
    ends: NDArray[np.uint64] | None = None,
    on_defect: Callable[[Defect], None],
) -> Iterator[GoodRecord]:
    """Yield every record with right CRCs, masked or not, in order, also behind breaks.

    Args:
        path: The file, compressed or not.
        ends: uint64[n]: where the frames of a plain file end, according to an index.
        on_defect: Called with each defect before the records behind it.

    Raises:
        StorageError: The file can not be opened or read.
    """
    path = os.fspath(path)
    with storage_errors(path), open_stream(path) as stream:
        is_plain = stream.compression == "none"
        cursor = Cursor(stream, size=inputs_for(path).stat(path).st_size if is_plain else None)
        walk = Walk(cursor, "crc", on_defect, ends=ends if is_plain else None, yield_unmasked=True)
        while (payload := walk.next()) is not None:
            index = cursor.record_index - 1 if walk.is_index_known else None
            yield GoodRecord(cursor.offset - len(payload) - FRAME_BYTES, index, payload)


class Headers(dict[bytes, int]):
    """A cache of payload lengths by frame header.

    Args:
        verify: Whether a header's CRC must be right.
    """

    def __init__(self, *, verify: bool) -> None:
        super().__init__()
        self._verify = verify

    def __missing__(self, header: bytes) -> int:
        """Return the length; -1 for a header that is not good."""
        if len(header) < HEADER_BYTES:
            return -1
        length = int.from_bytes(header[:8], "little")
        if length > MAX_PAYLOAD_BYTES or (self._verify and frame_header(length) != header):
            return -1
        if len(self) < HEADER_CACHE_SIZE:
            self[header] = length
        return length


def verify_buffered(
    cursor: Cursor, headers: Headers, keep: list[bytes] | None = None
) -> NDArray[np.uint64]:
    """Pass over the frames in a cursor's buffer that have right CRCs.

    Stops in front of the first frame that is incomplete or wrong.

    Args:
        cursor: Where to begin.
        headers: The cache of headers.
        keep: A list to which payloads are added; None if they are not needed.

    Returns:
        uint64[n]: the bytes of each payload.
    """
    buffer, start = cursor.buffer, cursor.start
    last = len(buffer) - FOOTER_BYTES
    octets = np.frombuffer(buffer, np.uint8)
    crcs: list[int] = []
    ends: list[int] = []
    add_crc, add_end = crcs.append, ends.append
    while True:
        begin = start + HEADER_BYTES
        length = headers[buffer[start:begin]]
        if length < 0:
            break
        end = begin + length
        if end > last:
            break
        if keep is not None or length < _COPIED_BYTES:
            payload = buffer[begin:end]
            add_crc(crc32c(payload))
            if keep is not None:
                keep.append(payload)
        else:
            add_crc(crc32c(octets[begin:end]))
        add_end(end)
        start = end + FOOTER_BYTES
    sizes = _right_ones(cursor, octets, ends, crcs)
    if keep is not None:
        del keep[len(sizes) :]
    return sizes


def _right_ones(
    cursor: Cursor, octets: NDArray[np.uint8], ends: list[int], crcs: list[int]
) -> NDArray[np.uint64]:
    """Pass over the frames up to the first wrong payload CRC, and return their payload sizes."""
    if len(ends) < _FEW:  # numpy's calls would cost more
        wrong = _first_wrong(cursor.buffer, ends, crcs)
    else:
        footers = np.array(ends, np.int64)[:, None] + np.arange(FOOTER_BYTES)
        stored = octets[footers].view("<u4")[:, 0]
        found = np.flatnonzero(mask_crcs(np.array(crcs, np.uint32)) != stored)
        wrong = int(found[0]) if len(found) else len(ends)
    if not wrong:
        return np.empty(0, np.uint64)
    payload_ends = np.array(ends[:wrong], np.int64)
    sizes = np.diff(payload_ends, prepend=cursor.start - FOOTER_BYTES) - FRAME_BYTES
    cursor.start = ends[wrong - 1] + FOOTER_BYTES
    cursor.record_index += wrong
    return sizes.astype(np.uint64)


def _first_wrong(buffer: bytes, ends: list[int], crcs: list[int]) -> int:
    for frame, (end, crc) in enumerate(zip(ends, crcs, strict=True)):
        if int.from_bytes(buffer[end : end + FOOTER_BYTES], "little") != mask_crc32c(crc):
            return frame
    return len(ends)


def pass_long(cursor: Cursor, length: int, *, verify: bool) -> Defect | None:
    """Pass over one frame in blocks, without holding its payload in memory.

    Args:
        cursor: At a frame with a right header.
        length: Bytes of its payload, according to the header.
        verify: Whether the payload's CRC must be right.

    Returns:
        The defect, or None. The cursor is behind the frame, or at the end of the stream.
    """
    offset, index = cursor.offset, cursor.record_index
    cursor.start += HEADER_BYTES
    crc, left = 0, length
    while left and cursor.ensure(1):
        size = min(left, len(cursor.buffer) - cursor.start)
        if verify:
            crc = extend_crc32c(crc, np.frombuffer(cursor.buffer, np.uint8, size, cursor.start))
        cursor.start += size
        left -= size
    if left or not cursor.ensure(FOOTER_BYTES):
        detail = f"file ends after {length - left:,} of {length:,} payload bytes"
        if not left:
            have = len(cursor.peek(FOOTER_BYTES))
            detail = f"file ends after {have} of {FOOTER_BYTES} bytes of the payload's CRC"
        cursor.start = len(cursor.buffer)
        return Defect("truncated", index, offset, detail, None)
    stored = int.from_bytes(cursor.peek(FOOTER_BYTES), "little")
    cursor.start += FOOTER_BYTES
    cursor.record_index += 1
    if verify and stored != mask_crc32c(crc):
        detail = f"payload of {length:,} bytes does not match its CRC {stored:08x}"
        return Defect("payload-crc", index, offset, detail, 1)
    return None


def skip_buffered(cursor: Cursor, headers: Headers) -> NDArray[np.uint64]:
    """Pass over the frames in a cursor's buffer by headers alone; see :func:`verify_buffered`."""
    buffer, start = cursor.buffer, cursor.start
    stop = len(buffer)
    sizes: list[int] = []
    while (length := headers[buffer[start : start + HEADER_BYTES]]) >= 0:
        behind = start + length + FRAME_BYTES
        if behind > stop:
            break
        sizes.append(length)
        start = behind
    cursor.start = start
    cursor.record_index += len(sizes)
    return np.array(sizes, np.uint64)


def skip_far(cursor: Cursor, *, verify: bool) -> NDArray[np.uint64]:
    """Pass over frames by reading their headers and not their payloads.

    Stops in front of the first frame that is short, incomplete or wrong, and after `_MAX_SKIPPED`.

    Args:
        cursor: At a frame, with ``read_at``.
        verify: Whether the headers' CRCs must be right.

    Returns:
        uint64[n]: the bytes of each payload.
    """
    read_at, unpack = cursor.read_at, _BORDER.unpack
    header = cursor.peek(HEADER_BYTES)
    if read_at is None or len(header) < HEADER_BYTES:
        return np.empty(0, np.uint64)
    offset = first = cursor.offset
    sizes: list[int] = []
    crcs: list[int] = []
    length, crc = unpack(bytes(FOOTER_BYTES) + header)
    while _SKIP_BYTES <= length <= MAX_PAYLOAD_BYTES and len(sizes) < _MAX_SKIPPED:
        # One read returns the end of this frame and the next header.
        border = read_at(FRAME_BYTES, offset + HEADER_BYTES + length)
        if len(border) < FOOTER_BYTES:
            break
        sizes.append(length)
        crcs.append(crc)
        offset += length + FRAME_BYTES
        if len(border) < FRAME_BYTES:
            break
        length, crc = unpack(border)
    passed = np.array(sizes, np.uint64)
    if verify:
        wrong = np.flatnonzero(masked_length_crcs(passed) != np.array(crcs, np.uint32))
        if len(wrong):
            passed = passed[: wrong[0]]
            offset = first + int(passed.sum()) + FRAME_BYTES * len(passed)
    if len(passed):
        cursor.seek(offset, b"")
        cursor.record_index += len(passed)
    return passed
