"""CRC-32C (Castagnoli) and the masked form that TFRecord stores.

Sources: RFC 3720 appendix B.4 for the polynomial; the mask is that of LevelDB's log format, which
TensorFlow's ``tsl/lib/hash/crc32c.h`` adopted. google-crc32c computes the checksum with the
processor's CRC instructions; it takes ``bytes`` or a read-only numpy array, not a memoryview.
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
    """Return the CRC of a stream: ``crc`` is that of its bytes so far, ``data`` follows them."""
    return int(_extend(crc, data))


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC of two concatenated streams from their CRCs and the length of the second.

    Appending n bytes transforms the first CRC as n zero bytes do, which is linear over GF(2). The
    effect of 2^k zeros is a 32 x 32 matrix, and n needs one matrix per binary digit that is set.
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
    # The inversion before and after the CRC adds a constant, which XOR removes.
    constant = int(_extend(0, b"\0"))
    return tuple(int(_extend(1 << bit, b"\0")) ^ constant for bit in range(32))


def mask_crc32c(crc: int) -> int:
    """Return the masked CRC: rotated right by 15 bits, plus a constant.

    The CRC of data that contains its own CRC is weak; storing masked CRCs avoids that.
    """
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C of ``data``, as a frame stores it."""
    return mask_crc32c(crc32c(data))
