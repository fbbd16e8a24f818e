"""What an image file says of itself in its first bytes: format and size.

Formats are those that ``tf.io.decode_image`` and the common loaders read. A file is taken by its
content, never by its name. The sizes are of the stored pixels, so an EXIF
rotation does not swap them (decoders do not rotate either).

JPEG, WebP and BMP are read here: the first since it is quick, the others since imagesize takes the
scaling bits of a WebP frame for its size, and knows one of two BMP headers.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final, NamedTuple

EXTENSIONS: Final = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
)


# Start of a frame: all of C0 to CF but tables (C4, CC) and an extension (C8).
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class ImageHeader(NamedTuple):
    """Format, and size in pixels."""

    format: str
    height: int
    width: int


def image_format(head: bytes) -> str | None:
    """Tell the format from the first 12 bytes; None where it is no known image."""
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith(b"BM"):
        return "bmp"
    if head[:4] in (b"II*\0", b"MM\0*"):
        return "tiff"
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Read height and width of a JPEG whose segments follow each other, as nearly all do.

    Segments are ``ff <marker> <size, 2 bytes>``; a frame's (ITU T.81, B.2.2) goes on with its
    precision, height and width. None is for a more patient reader.
    """
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            return (height, width) if height and width else None
        if not 0xC0 <= marker <= 0xFE or 0xD0 <= marker <= 0xDA:
            return None
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Read height and width of a WebP file (RFC 9649): of its canvas, or its only frame."""
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return _uint(data, 27, 3) + 1, _uint(data, 24, 3) + 1
    if chunk == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        sides = _uint(data, 21, 4)
        return (sides >> 14 & 0x3FFF) + 1, (sides & 0x3FFF) + 1
    if chunk == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        return _uint(data, 28, 2) & 0x3FFF, _uint(data, 26, 2) & 0x3FFF  # the other 2 bits scale
    return None


def _bmp_size(data: bytes) -> tuple[int, int] | None:
    """Read height and width of a BMP file; a negative height says that the top row comes first."""
    header_bytes = _uint(data, 14, 4)
    if header_bytes == 12 and len(data) >= 22:  # of OS/2
        return _uint(data, 20, 2), _uint(data, 18, 2)
    if header_bytes < 16 or len(data) < 26:
        return None
    height = int.from_bytes(data[22:26], "little", signed=True)
    return abs(height), int.from_bytes(data[18:22], "little", signed=True)


def _uint(data: bytes, at: int, num_bytes: int) -> int:
    return int.from_bytes(data[at : at + num_bytes], "little")


_SIZES: Final = {"jpeg": _jpeg_size, "webp": _webp_size, "bmp": _bmp_size}


def read_header(data: bytes) -> ImageHeader:
    """Read the header of an image file.

    Args:
        data: The whole file.

    Raises:
        ValueError: It is empty, no known image, or broken before its size; says which.
    """
    if not data:
        raise ValueError("the file is empty")
    found = image_format(data[:16])
    if found is None:
        raise ValueError(f"no image that is known begins with {data[:8]!r}")
    size = _SIZES[found](data) if found in _SIZES else None
    if size is None and found not in ("webp", "bmp"):
        import imagesize  # brings an HTTP client along: 40 ms that only images should cost

        size = imagesize.get(BytesIO(data), exif_rotation=False)[::-1]
    if size is None or min(size) <= 0:
        raise ValueError(f"the {found} header is broken or cut off: it gives no size")
    return ImageHeader(found, *size)
