"""CRC-32C (Castagnoli) and the masked form that TFRecord stores.

Sources: RFC 3720 appendix B.4 for the polynomial; the mask is that of LevelDB's log format, which
TensorFlow's ``tsl/lib/hash/crc32c.h`` took over. The checksum itself is google-crc32c's, which uses
the processor's CRC instructions. It wants ``bytes`` (or a read-only numpy array), no memoryview.
"""

from __future__ import annotations

from google_crc32c import extend as _extend
from google_crc32c import value as crc32c

__all__ = ["MASK_DELTA", "crc32c", "extend_crc32c", "mask_crc32c", "masked_crc32c"]

MASK_DELTA = 0xA282EAD8


def extend_crc32c(crc: int, data: bytes) -> int:
    """Return the CRC of a stream that had ``crc`` so far and goes on with ``data``."""
    return int(_extend(crc, data))


def mask_crc32c(crc: int) -> int:
    """Rotate right by 15 bits and add a constant.

    A CRC over bytes that hold their own CRC is weak; the mask keeps stored CRCs apart from those.
    """
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C of ``data``, as a frame stores it."""
    return mask_crc32c(crc32c(data))
