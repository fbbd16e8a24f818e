"""Gzip members and zlib blocks of ours: told by their looks, and inflated by themselves.

:mod:`shardwriter.formats.compressed_writer` has their layout.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from contextlib import suppress
from io import BytesIO
from typing import Final

from shardwriter.formats.compressed_writer import EMPTY_DEFLATE, ZLIB_HEAD
from shardwriter.formats.compression import RAW_WBITS, InflateStream

GZIP_MAGIC: Final = b"\x1f\x8b\x08"
FLUSH: Final = b"\x00\x00\xff\xff"
"""What a full flush ends in, and so a zlib block."""

_MEMBER_HEAD: Final = struct.Struct("<10sH2sHQI")
_HEAD_BEGIN: Final = bytes.fromhex("1f8b08040000000000ff")
_MIN_MEMBER_BYTES: Final = _MEMBER_HEAD.size + len(EMPTY_DEFLATE) + 8


def is_member(data: mmap.mmap, offset: int) -> bool:
    """Tell whether a gzip member of ours begins at an offset."""
    if offset + _MIN_MEMBER_BYTES > len(data):
        return False
    magic, extra, name, field, size, _ = _MEMBER_HEAD.unpack_from(data, offset)
    if magic != _HEAD_BEGIN or name != b"SW" or extra != field + 4 or field < 12:
        return False
    return int(size) >= _MIN_MEMBER_BYTES


def member_head(data: mmap.mmap, offset: int) -> tuple[int, int]:
    """Return the size of a member in the file, and its records."""
    *_, size, num_records = _MEMBER_HEAD.unpack_from(data, offset)
    return int(size), int(num_records)


def next_member(data: mmap.mmap, offset: int) -> int | None:
    """Return where the next member of ours begins, from an offset on."""
    while (offset := data.find(_HEAD_BEGIN, offset)) >= 0:
        if is_member(data, offset):
            return offset
        offset += 1
    return None


def block_stream(piece: bytes, path: str) -> BytesIO | InflateStream:
    """Return the uncompressed bytes of a zlib block, as far as it can be inflated."""
    inflater = zlib.decompressobj(wbits=RAW_WBITS)
    with suppress(zlib.error):
        data = inflater.decompress(piece + EMPTY_DEFLATE)
        if inflater.eof and not inflater.unused_data:
            return BytesIO(data)
    return InflateStream(BytesIO(ZLIB_HEAD + piece), "zlib", path)
