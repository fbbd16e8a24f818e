"""Encode and decode varints, protobuf's variable-length integers: one at a time or as arrays.

A varint stores 7 bits per byte, lowest first; the high bit marks that another byte follows.
protobuf writes an int64 as the varint of its two's complement, so a negative number takes 10 bytes.

==================  =====  =================================
value               bytes  wire
==================  =====  =================================
0 .. 127            1      ``0vvvvvvv``
128 .. 16,383       2      ``1vvvvvvv 0vvvvvvv``
2**14 .. 2**21 - 1  3      ``1vvvvvvv 1vvvvvvv 0vvvvvvv``
negative            10     nine bytes with the high bit, then 1
==================  =====  =================================
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import WireError

MAX_VARINT_BYTES: Final = 10

_MASK_64: Final = (1 << 64) - 1
_TABLE_SIZE: Final = 1 << 16
_WORD_BYTES: Final = 8
# Indexed by the size of a varint: a mask for the low 7 bits of each of its bytes.
_WORD_MASKS: Final = np.array(
    [int.from_bytes(b"\x7f" * size, "little") for size in range(_WORD_BYTES + 1)], np.uint64
)
_SHORT_MASKS: Final = _WORD_MASKS[:5].astype(np.uint32)
_WORD_STEPS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
# Values encoded at a time: the temporary arrays fit the L2 cache.
_CHUNK: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 15  # the same for decoding


def encode_varint(value: int) -> bytes:
    """Return one integer as a varint.

    Args:
        value: An int64, or a length; negative numbers take 10 bytes.

    Returns:
        1 to 10 bytes.
    """
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    if 0 <= value < 1 << 14:  # most sizes; three times as fast as the loop
        return bytes((value & 0x7F | 0x80, value >> 7))
    value &= _MASK_64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return one varint, truncated to 64 bits as protobuf does, and the position after it.

    Args:
        data: The buffer.
        start: Position of the varint.
        end: End of the message; bytes from here on are not read.

    Returns:
        The value as an unsigned 64-bit number, and the end position.

    Raises:
        WireError: It is cut off at ``end``, or longer than 10 bytes.
    """
    value = shift = 0
    for at in range(start, min(end, start + MAX_VARINT_BYTES)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK_64, at + 1
        shift += 7
    if end - start >= MAX_VARINT_BYTES:
        raise WireError("a varint is longer than 10 bytes", offset=start)
    raise WireError("a varint is cut off", offset=start)


def encode_varints(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return integers as consecutive varints, each encoded as an int64.

    Args:
        values: ``(u)int*[n]`` or ``bool[n]`` in native byte order. A uint64 over 2**63 - 1 is
            written as the varint of its 64 bits; the caller decides whether that is valid.

    Returns:
        ``uint8[m]``. It may share memory with ``values``.
    """
    if values.size == 0:
        return np.empty(0, np.uint8)
    # Viewed as unsigned, a negative value is huge: one pass checks both ends of the range.
    if _unsigned(values).max() < 0x80:
        return values.astype(np.uint8, copy=False)
    if values.size <= _CHUNK:
        return _encode_chunk(values)
    chunks = [values[at : at + _CHUNK] for at in range(0, values.size, _CHUNK)]
    return np.concatenate([_encode_chunk(chunk) for chunk in chunks])


def varint_sizes(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of bytes that each value takes as a varint.

    Args:
        values: ``(u)int*[...]`` or ``bool[...]`` in native byte order.

    Returns:
        ``int64[...]`` of 1 to 10.
    """
    words = _as_uint64(values)
    sizes = np.ones(words.shape, np.int64)
    limit, largest = 0x80, int(words.max(initial=0))
    while limit <= largest:
        sizes += words >= np.uint64(limit)
        limit <<= 7
    return sizes


def decode_varints(data: NDArray[np.uint8], *, offset: int = 0) -> NDArray[np.int64]:
    """Return the integers of consecutive varints; the inverse of `encode_varints`.

    Args:
        data: ``uint8[m]`` of varints only.
        offset: Position of ``data`` in its payload, for errors.

    Returns:
        ``int64[n]`` in memory of its own. Overlong varints are truncated to 64 bits.

    Raises:
        WireError: The last varint is cut off, or one is longer than 10 bytes.
    """
    if data.size <= _CHUNK_BYTES:
        return _decode_chunk(data, offset)
    chunks, at = [], 0
    while at < data.size:
        end = min(at + _CHUNK_BYTES, data.size)
        if end < data.size:  # extend to the end of the varint
            lasts = data[end - 1 : end + MAX_VARINT_BYTES] < 0x80
            end += int(np.argmax(lasts)) if lasts.any() else lasts.size - 1
        chunks.append(_decode_chunk(data[at:end], offset + at))
        at = end
    return np.concatenate(chunks)


def _decode_chunk(data: NDArray[np.uint8], offset: int) -> NDArray[np.int64]:
    ends = np.flatnonzero(data < 0x80)
    if ends.size == data.size:
        return data.astype(np.int64)
    if ends.size == 0 or ends[-1] != data.size - 1:
        start = int(ends[-1]) + 1 if ends.size else 0
        if data.size - start > MAX_VARINT_BYTES:
            raise WireError("a varint is longer than 10 bytes", offset=offset + start)
        raise WireError("a varint is cut off", offset=offset + start)
    starts = np.empty_like(ends)
    starts[0] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    sizes = ends - starts + 1
    largest = int(sizes.max())
    if largest > MAX_VARINT_BYTES:
        start = int(starts[np.argmax(sizes > MAX_VARINT_BYTES)])
        raise WireError("a varint is longer than 10 bytes", offset=offset + start)
    padded = np.zeros(data.size + _WORD_BYTES, np.uint8)
    padded[: data.size] = data
    values = _read_words(padded, starts, sizes, largest).astype(np.uint64, copy=False)
    for nth in range(_WORD_BYTES, largest):
        rows = np.flatnonzero(sizes > nth)
        bits = (data[starts[rows] + nth] & 0x7F).astype(np.uint64)
        values[rows] |= bits << np.uint64(7 * nth)
    return values.view(np.int64)


def _read_words(
    padded: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], largest: int
) -> NDArray[np.uint32] | NDArray[np.uint64]:
    """Return varints from up to 8 of their bytes, loaded as one word each.

    The groups of 7 bits are joined in pairs, then fours, then eights.
    """
    num_positions = padded.size - _WORD_BYTES
    if largest <= 4:
        # `take` is several times as fast as indexing; the words may be unaligned.
        shorts = np.ndarray((num_positions,), "<u4", padded, strides=(1,)).take(starts)
        short: NDArray[np.uint32] = shorts.astype(np.uint32, copy=False)
        short &= _SHORT_MASKS.take(sizes)
        short = (short & np.uint32(0x007F007F)) | ((short & np.uint32(0x7F007F00)) >> np.uint32(1))
        return np.asarray((short & np.uint32(0x3FFF)) | ((short >> np.uint32(16)) << np.uint32(14)))
    found = np.ndarray((num_positions,), "<u8", padded, strides=(1,)).take(starts)
    words: NDArray[np.uint64] = found.astype(np.uint64, copy=False)
    words &= _WORD_MASKS.take(np.minimum(sizes, _WORD_BYTES))
    for low, high, shift in _WORD_STEPS:
        words = (words & low) | ((words & high) >> shift)
    return words


def _unsigned(values: NDArray[Any]) -> NDArray[Any]:
    kind = values.dtype.kind
    if kind == "u":
        return values
    return values.view(np.uint8) if kind == "b" else values.view(f"u{values.itemsize}")


def _as_uint64(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the two's complement in 64 bits: an int8 of -1 becomes 2**64 - 1."""
    if values.dtype == np.uint64:
        return values
    return values.astype(np.int64).view(np.uint64)


def _encode_chunk(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype.kind == "i" and values.itemsize < 4:
        values = values.astype(np.int32)  # so that -1, viewed as unsigned, is outside the table
    largest = _unsigned(values).max()
    if largest < 0x80:
        return values.astype(np.uint8, copy=False)
    if largest < _TABLE_SIZE:
        return _squeeze(_table().take(values).view(np.uint8), width=4)
    return _squeeze(_lanes(_as_uint64(values)).reshape(-1), width=MAX_VARINT_BYTES)


@cache
def _table() -> NDArray[np.uint32]:
    """Return ``uint32[65536]``: the 1 to 3 bytes of each varint, padded with zeros to 4."""
    lanes = _lanes(np.arange(_TABLE_SIZE, dtype=np.uint64))
    return np.ascontiguousarray(lanes[:, :4]).view(np.uint32).reshape(-1)


def _lanes(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return ``uint8[n, 10]``: each varint, padded with zeros."""
    lanes = np.zeros((words.size, MAX_VARINT_BYTES), np.uint8)
    rest, largest = words, int(words.max(initial=0))
    for nth in range(max(1, (largest.bit_length() + 6) // 7)):
        more = rest >= np.uint64(0x80)
        lanes[:, nth] = (rest & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))
        rest = rest >> np.uint64(7)
    return lanes


def _squeeze(lanes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Return the bytes of lanes of ``width`` bytes without their padding."""
    # A shortest-form varint has no zero byte, except for the number 0: its first.
    keep = lanes != 0
    keep[::width] = True
    # `compress` is about twice as fast here as `lanes[keep]`.
    return lanes.compress(keep)
