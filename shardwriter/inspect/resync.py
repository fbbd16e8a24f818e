"""Finding the next frame behind a break: the first whose two checksums are right.

A frame has no mark to look for, but a length below 2^31 is five bits and four bytes of zeros, and
the CRC behind it is right by chance once in 2^32. Both are looked at for all offsets of a stretch
at once; what is left is all but certainly a frame, and its payload's CRC settles it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.crc32c import MASK_DELTA, crc32c, extend_crc32c, mask_crc32c
from shardwriter.formats.cursor import Cursor
from shardwriter.formats.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, MAX_PAYLOAD_BYTES

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
