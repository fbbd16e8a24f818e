"""Writing PNG: the few lines that pictures of raw pixels need.

The format is that of https://www.w3.org/TR/png-3/: a signature, then chunks of length, type, data
and CRC-32. Rows are stored unfiltered, so files are larger than an image tool would make them.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}  # grey, grey with alpha, RGB, RGBA


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels as a PNG file.

    Args:
        pixels: uint8[h, w] or uint8[h, w, c] with c of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4
            (RGBA).

    Raises:
        ValueError: The array has another shape or type, or no pixels.
    """
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES:
        raise ValueError(f"no picture is {pixels.dtype}{list(pixels.shape)}")
    height, width, channels = pixels.shape
    if not height or not width:
        raise ValueError("a picture without pixels")
    # In front of each row stands its filter; 0 is none.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(rows.tobytes())),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
