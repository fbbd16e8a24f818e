"""The blocks of a zlib shard: the places where inflating can begin in its middle.

Nothing in the file tells where they are but the empty stored block ``00 00 ff ff`` in which a full
flush ends. Compressed data may hold these four bytes too, so each of them is tried: where a block
ends, the empty last block ``03 00`` would end the stream.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from typing import Final

from shardwriter.errors import CorruptFile
from shardwriter.formats.compressed_writer import EMPTY_DEFLATE, ZLIB_HEAD, ZLIB_TAIL_BYTES
from shardwriter.formats.compression import RAW_WBITS

_FLUSH: Final = b"\x00\x00\xff\xff"
_FEED_BYTES: Final = 1 << 16  # inflated at a time, so that a bomb takes little memory


def zlib_blocks(path: str | os.PathLike[str]) -> Iterator[tuple[int, int]]:
    """Yield where each block of a zlib file ends.

    The checksums are not looked at; :func:`shardwriter.formats.tfrecord_reader.read_records` proves
    them.

    Args:
        path: A zlib file that is whole.

    Yields:
        The offset behind the block in the file, and the offset in the uncompressed stream.

    Raises:
        CorruptFile: It has none: it is not cut into blocks, as other writers' files are not.
        OSError: The file can not be read.
    """
    file_bytes = os.path.getsize(path)
    if file_bytes <= len(ZLIB_HEAD) + ZLIB_TAIL_BYTES:
        return
    stop = file_bytes - ZLIB_TAIL_BYTES
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin, stream_end = len(ZLIB_HEAD), 0
        while begin < stop:
            found = block_at(data, begin)
            if found is None or found[0] > stop:
                raise CorruptFile(
                    f"a zlib stream that can not be entered at byte {begin:,} of the file",
                    kind="no-blocks",
                    path=os.fspath(path),
                    hint="write the records again: zlib shards of ours are cut into blocks",
                )
            begin, stream_end = found[0], stream_end + found[1]
            yield begin, stream_end


def block_at(data: bytes | mmap.mmap, begin: int) -> tuple[int, int] | None:
    """Return the end of the block that begins there, and its uncompressed bytes."""
    inflater = zlib.decompressobj(wbits=RAW_WBITS)
    inflated_bytes, fed = 0, begin
    # Two of these marks can not overlap, so the next one is looked for behind the last.
    while (mark := data.find(_FLUSH, fed)) >= 0:
        for start in range(fed, mark + len(_FLUSH), _FEED_BYTES):
            piece = data[start : min(start + _FEED_BYTES, mark + len(_FLUSH))]
            try:
                inflated_bytes += len(inflater.decompress(piece))
            except zlib.error:
                return None
            if inflater.eof:
                return None
        fed = mark + len(_FLUSH)
        if _could_end(inflater):
            return fed, inflated_bytes
    return None


def _could_end(inflater: zlib._Decompress) -> bool:
    """Whether the empty last block would end the stream here."""
    probe = inflater.copy()
    try:
        rest = probe.decompress(EMPTY_DEFLATE)
    except zlib.error:
        return False
    return probe.eof and not rest and not probe.unused_data
