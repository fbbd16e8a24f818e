"""The smallest image files that a header can be read from, made without an image library."""

from __future__ import annotations

import struct
import zlib

GIF = b"GIF89a" + struct.pack("<HH", 7, 5) + b"\0\0\0;"


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def png(width=3, height=2):
    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(width) for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    )


def write_images(folder, names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gif(number + 1, 2 * number + 1))
