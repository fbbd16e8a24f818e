"""CRC-32C (Castagnoli) and the masked form that TFRecord stores.

Sources: RFC 3720 appendix B.4 for the polynomial; the mask is that of LevelDB's log format, which
TensorFlow's ``tsl/lib/hash/crc32c.h`` took over. The checksum itself is google-crc32c's, which uses
the processor's CRC instructions. It wants ``bytes`` (or a read-only numpy array), no memoryview.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from google_crc32c import extend as _extend
from google_crc32c import value as crc32c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MASK_DELTA",
    "combine_crc32c",
    "crc32c",
    "extend_crc32c",
    "mask_crc32c",
    "masked_crc32c",
]

MASK_DELTA = 0xA282EAD8


def extend_crc32c(crc: int, data: bytes | NDArray[np.uint8]) -> int:
    """Return the CRC of a stream that had ``crc`` so far and goes on with ``data``."""
    return int(_extend(crc, data))


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC of two streams joined, from theirs and the length of the second.

    Bytes that follow act on a CRC like zeros, and the effect of a zero is linear over GF(2): that
    of 2^k zeros is a 32 x 32 matrix, and a number of bytes needs one for each of its binary digits.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            first = _times(_zeros(power), first)
        second_bytes >>= 1
        power += 1
    return first ^ second


def _times(matrix: tuple[int, ...], vector: int) -> int:
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
    return total


@cache
def _zeros(power: int) -> tuple[int, ...]:
    """Return the columns of the matrix of 2^power zero bytes."""
    if power:
        half = _zeros(power - 1)
        return tuple(_times(half, column) for column in half)
    # The CRC of the empty stream is 0 on both sides of the inversion, which drops out.
    nothing = int(_extend(0, b"\0"))
    return tuple(int(_extend(1 << bit, b"\0")) ^ nothing for bit in range(32))


def mask_crc32c(crc: int) -> int:
    """Rotate right by 15 bits and add a constant.

    A CRC over bytes that hold their own CRC is weak; the mask keeps stored CRCs apart from those.
    """
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C of ``data``, as a frame stores it."""
    return mask_crc32c(crc32c(data))
