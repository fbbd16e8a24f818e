"""Going over the frames of a file: all that are good, also behind breaks in the framing.

What is provably right is passed over in bulk. The first frame that is anything else goes to
:func:`shardwriter.formats.tfrecord_reader.scan_frames`, which alone says what is wrong, and which
goes on until a frame is right again.
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

# Finding the next frame behind a break: the first whose two checksums are right.
#
# A frame has no mark to look for, but a length below 2^31 is five bits and four bytes of zeros, and
# the CRC behind it is right by chance once in 2^32. Both are looked at for all offsets of a stretch
# at once; what is left is all but certainly a frame, and its payload's CRC settles it.

_FREE_BYTES: Final = 64 << 20
_PROVING_FACTOR: Final = 4


def next_frame(
    cursor: Cursor,
    *,
    ends: NDArray[np.uint64] | None = None,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> bool:
    """Move a cursor forwards to the next frame that is whole and has both CRCs right.

    The place itself is passed over. Memory is taken for a stretch of the stream, or for the
    longest frame that looks right.

    Args:
        cursor: Where to look; at the end of the stream afterwards if there is no frame.
        ends: uint64[n], ascending: where frames end as a table says; no frame begins elsewhere.
        max_payload_bytes: No frame is longer.

    Returns:
        Whether there is one. The record's index is not known and stays.
    """
    first = cursor.offset
    wasted_bytes = 0  # hashed for frames that turned out to be none
    if cursor.ensure(1):
        cursor.start += 1
    while cursor.ensure(HEADER_BYTES):
        stretch, start, base = cursor.buffer, cursor.start, cursor.base
        found = header_offsets(stretch[start:], max_payload_bytes) + start
        if ends is not None:
            found = found[np.isin((found + base).astype(np.uint64), ends)]
        for place in found.tolist():
            offset = base + place
            # Data made up of headers, each of a long frame, must not take time that is quadratic.
            if wasted_bytes > _FREE_BYTES + _PROVING_FACTOR * (offset - first):
                break
            length = int.from_bytes(stretch[place : place + 8], "little")
            frame_bytes = length + FRAME_BYTES
            if cursor.size is not None and offset + frame_bytes > cursor.size:
                continue
            cursor.start = offset - cursor.base
            if not cursor.ensure(frame_bytes):
                continue
            if _has_right_payload(cursor.buffer, cursor.start, length):
                return True
            wasted_bytes += frame_bytes
        # A header may reach over the end of what was looked through.
        cursor.start = base + max(start + 1, len(stretch) - HEADER_BYTES + 1) - cursor.base
    cursor.start = len(cursor.buffer)
    return False


def _has_right_payload(buffer: bytes, start: int, length: int) -> bool:
    end = start + HEADER_BYTES + length
    payload = np.frombuffer(buffer, np.uint8, length, start + HEADER_BYTES)
    stored = int.from_bytes(buffer[end : end + FOOTER_BYTES], "little")
    return stored == mask_crc32c(extend_crc32c(0, payload))


def header_offsets(data: bytes, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> NDArray[np.int64]:
    """Return int64[n], ascending: where a length of fewer than 2^31 bytes has its right CRC."""
    num_places = len(data) - HEADER_BYTES + 1
    if num_places <= 0:
        return np.empty(0, np.int64)
    octets = np.frombuffer(data, np.uint8)
    # One bool for each run of four zero bytes, by where it begins.
    zero = octets == 0
    zero = zero[:-1] & zero[1:]
    zero = zero[:-2] & zero[2:]
    high = zero[4 : 4 + num_places]
    # All zeros is a length of 0 whose CRC is wrong; files are full of it.
    nothing = zero[:num_places] & zero[8 : 8 + num_places]
    places = np.flatnonzero(high & ~nothing & (octets[3 : 3 + num_places] < 0x80))
    if not len(places):
        return places
    lengths = _u32(octets, places)
    is_right = masked_length_crcs(lengths) == _u32(octets, places + 8)
    kept: NDArray[np.int64] = places[is_right & (lengths <= max_payload_bytes)]
    return kept


def _u32(octets: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint32]:
    values: NDArray[np.uint32] = octets[places[:, None] + np.arange(4)].view("<u4")[:, 0]
    return values


def masked_length_crcs(lengths: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint32]:
    """Return uint32[n]: what stands behind u64 lengths, which are below 2^32."""
    tables, nothing = _tables()
    crcs = np.full(len(lengths), nothing, np.uint32)
    for place, table in enumerate(tables):
        octets = lengths >> lengths.dtype.type(8 * place) & lengths.dtype.type(0xFF)
        crcs ^= table[octets.astype(np.uint8)]
    return mask_crcs(crcs)


def mask_crcs(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return uint32[n]: the form in which frames store CRCs."""
    rotated: NDArray[np.uint32] = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    rotated += np.uint32(MASK_DELTA)
    return rotated


@cache
def _tables() -> tuple[NDArray[np.uint32], int]:
    """Return uint32[4, 256], what each low byte of a length adds to the CRC of 8 zeros; and that.

    A CRC is linear over GF(2), so what the bytes add is joined by exclusive or.
    """
    nothing = int(crc32c(bytes(8)))
    rows = [
        [int(crc32c((octet << 8 * place).to_bytes(8, "little"))) ^ nothing for octet in range(256)]
        for place in range(4)
    ]
    return np.array(rows, np.uint32), nothing


_COPIED_BYTES: Final = 4096  # a copy of a short payload is cheaper than a view of it
_HOP_BYTES: Final = 1 << 14  # what costs more to read than the next read costs
_AT_ONCE: Final = 1 << 14
_FEW: Final = 32
_BORDER: Final = struct.Struct("<4xQI")  # the end of one frame, and the header of the next


class GoodRecord(NamedTuple):
    """A record that is proven.

    Attributes:
        offset: Of its frame, in the uncompressed stream.
        record_index: In the file; None where that is not known, behind a break.
        payload: Its bytes.
    """

    offset: int
    record_index: int | None
    payload: bytes


class Walk:
    """A way over a file by single frames, which goes on behind breaks.

    Args:
        cursor: At the start of the file.
        check: What to prove.
        on_defect: Told of each defect; of a break once it is known where reading goes on.
        ends: uint64[n]: where the frames end, as an index says. Records behind a break are then
            known by their index.
        yield_unmasked: Yield the records too whose checksums are right but for the mask.

    Attributes:
        is_behind_break: Ordinary readers do not come here.
        is_index_known: The cursor's record index is right.
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
        self._take_unmasked = yield_unmasked
        self._break: Defect | None = None
        # It goes on from where the cursor stands, whoever has moved that meanwhile.
        self._judged = self._judge()

    def next(self) -> bytes | None:
        """Return the next good payload; None at the end."""
        while True:
            for payload in self._judged:
                return payload
            if self._break is None or not self._resume(self._break):
                return None
            self._judged = self._judge()

    def _judge(self) -> Iterator[bytes]:
        return scan_frames(
            self._cursor, self._check, self._take, yield_unmasked=self._take_unmasked
        )

    def _take(self, defect: Defect) -> None:
        if not self.is_index_known:
            defect = defect._replace(record_index=None)
        # A frame may be cut off by what was appended to it, and not by the end of the file.
        is_cut = defect.kind == "truncated" and self._cursor.size is not None
        if defect.kind in BREAKS or is_cut:
            self._break = defect  # told once it is known what follows
            return
        if defect.kind == "torn-tail" and self._knows(defect):
            assert self._ends is not None
            assert defect.record_index is not None
            defect = defect._replace(num_records=len(self._ends) - defect.record_index)
        self._on_defect(defect)

    def _knows(self, defect: Defect) -> bool:
        """Whether the table has a frame that begins where the defect is."""
        ends, index = self._ends, defect.record_index
        if ends is None or index is None or index >= len(ends):
            return False
        return defect.offset == (int(ends[index - 1]) if index else 0)

    def _num_left(self) -> int:
        return 0 if self._ends is None else len(self._ends) - self._cursor.record_index

    def _resume(self, defect: Defect) -> bool:
        """Find the next good frame, and tell of the break with what is known then."""
        cursor = self._cursor
        self._break = None
        self.is_behind_break = True
        ends = self._ends if self._knows(defect) else None
        if not next_frame(cursor, ends=ends):
            lost = None if ends is None else self._num_left()
            self._on_defect(defect._replace(num_records=lost))
            if cursor.broken is not None:
                self._take(
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
    """Yield every record of a file that is provably good, in order, also behind breaks.

    Records whose CRCs are right but for the mask are among them.

    Args:
        path: The file, compressed or not.
        ends: uint64[n]: where the frames of a plain file end, as an index says.
        on_defect: Told of each defect before the records behind it.

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
    """The payload length of each frame header, where it is one.

    Args:
        verify: Whether the header's CRC must be right.
    """

    def __init__(self, *, verify: bool) -> None:
        super().__init__()
        self._verify = verify

    def __missing__(self, header: bytes) -> int:
        """Return the length, or -1 where that is for the judge."""
        if len(header) < HEADER_BYTES:
            return -1
        length = int.from_bytes(header[:8], "little")
        if length > MAX_PAYLOAD_BYTES or (self._verify and frame_header(length) != header):
            return -1
        if len(self) < HEADER_CACHE_SIZE:
            self[header] = length
        return length


def prove_buffered(
    cursor: Cursor, headers: Headers, keep: list[bytes] | None = None
) -> NDArray[np.uint64]:
    """Pass over the frames in a cursor's buffer that are proven.

    It stops in front of the first one that is not whole or not right.

    Args:
        cursor: Where to begin.
        headers: What is known of headers.
        keep: Takes the payloads, where they are wanted.

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
    """Hold CRCs against those that stand behind the payloads; pass the frames that are right."""
    if len(ends) < _FEW:  # then numpy's calls cost more than what they do
        wrong = _first_wrong(cursor.buffer, ends, crcs)
    else:
        places = np.array(ends, np.int64)[:, None] + np.arange(FOOTER_BYTES)
        stored = octets[places].view("<u4")[:, 0]
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
    for place, (end, crc) in enumerate(zip(ends, crcs, strict=True)):
        if int.from_bytes(buffer[end : end + FOOTER_BYTES], "little") != mask_crc32c(crc):
            return place
    return len(ends)


def pass_long(cursor: Cursor, length: int, *, verify: bool) -> Defect | None:
    """Pass over one frame a piece at a time, so that it takes no memory for its payload.

    Args:
        cursor: At a frame whose header is right.
        length: Bytes of its payload, as the header says.
        verify: Whether the payload's CRC must be right.

    Returns:
        What is wrong; None where nothing is. The cursor stands behind the frame, or at the end of
        a stream that ends before.
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


def hop_buffered(cursor: Cursor, headers: Headers) -> NDArray[np.uint64]:
    """Pass over the frames in a cursor's buffer by their headers; see :func:`prove_buffered`."""
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


def hop_far(cursor: Cursor, *, verify: bool) -> NDArray[np.uint64]:
    """Hop from header to header without reading the payloads in between.

    It stops in front of the first frame that is short, not whole or not right, and now and then.

    Args:
        cursor: At a frame; it must be able to read by offset.
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
    while _HOP_BYTES <= length <= MAX_PAYLOAD_BYTES and len(sizes) < _AT_ONCE:
        # The frame is whole if its last bytes are there; the next header comes with them.
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
