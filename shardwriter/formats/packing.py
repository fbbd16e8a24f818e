"""How shards are compressed: the type, the library, and where a member ends.

A gzip shard is cut into members and a zlib shard into blocks. Both end with the record that brings
their uncompressed bytes to ``member_bytes`` or more, so they are a function of the records and of
the number of shards. Each is compressed in one call, since what isal makes of some bytes depends on
the pieces in which it is given them.

What it makes of them also depends on where its own state lies in memory. At the beginning of a
stream its loop for levels 1 and 2 takes a hash that should be that of the third byte from the
register which still holds the address of the stream (``igzip_icf_body_h1_gr_bt.asm``,
``.write_first_byte``), and so notes the third byte in a slot of the table that depends on this
address. A match at these bytes is then found or not: of small members a few in a thousand came out
otherwise in another process. So a stream begins with four bytes of ours, that are flushed and
thrown away: they are too few for that loop, and it starts behind them with hashes that are right.
They must not occur in what follows, or a match could reach back to them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, Protocol, get_args

from isal import isal_zlib

from shardwriter.errors import OptionError
from shardwriter.formats.compression import RAW_WBITS, Compression

Deflate = Literal["isal-2", "zlib-6"]
"""A library and its level. It is recorded and never chosen by what can be imported."""

MEMBER_BYTES: Final = 1 << 20
_MIN_MEMBER_BYTES: Final = 1 << 16
_ALL_MEMBERS_BYTES: Final = 64 << 20  # growing, of all shards together
_REACH_BYTES: Final = (1 << 15) + 4  # further back no match of deflate can reach
_FIRST_CANDIDATE: Final = 0x81E53C9A  # as good as any


class _Compressor(Protocol):
    """What is used of a compression object of zlib or isal."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self, mode: int = ..., /) -> bytes: ...


def _new_compressor(data: bytes, deflate: Deflate) -> _Compressor:
    """Return what compresses ``data``, and nothing else."""
    if deflate == "zlib-6":
        return zlib.compressobj(6, zlib.DEFLATED, RAW_WBITS)
    compressor: _Compressor = isal_zlib.compressobj(2, isal_zlib.DEFLATED, RAW_WBITS)
    compressor.compress(_absent_from(data[:_REACH_BYTES]))
    compressor.flush(zlib.Z_SYNC_FLUSH)  # keeps what it has seen, and ends at a byte
    return compressor


def _absent_from(data: bytes) -> bytes:
    """Return four bytes that do not follow each other anywhere in ``data``: a function of it."""
    candidates = (number.to_bytes(4, "little") for number in count(_FIRST_CANDIDATE))
    return next(candidate for candidate in candidates if candidate not in data)


def deflate_member(data: bytes, deflate: Deflate) -> bytes:
    """Return the deflate data of a whole gzip member."""
    compressor = _new_compressor(data, deflate)
    return compressor.compress(data) + compressor.flush()


def deflate_block(data: bytes, deflate: Deflate) -> bytes:
    """Return one block of a zlib stream: it ends at a byte and needs nothing in front of it."""
    compressor = _new_compressor(data, deflate)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


@dataclass(frozen=True)
class Packing:
    """What a shard's frames are packed into.

    Attributes:
        compression: The type.
        deflate: Who compresses.
        member_bytes: Uncompressed bytes at which a gzip member or a zlib block ends.
    """

    compression: Compression = "none"
    deflate: Deflate = "isal-2"
    member_bytes: int = MEMBER_BYTES

    @classmethod
    def of(cls, compression: Compression, deflate: Deflate, num_shards: int) -> Packing:
        """Return the packing of N shards: many that grow together have smaller members."""
        shared = _ALL_MEMBERS_BYTES // num_shards
        return cls(compression, deflate, max(_MIN_MEMBER_BYTES, min(MEMBER_BYTES, shared)))

    @property
    def is_plain(self) -> bool:
        """Whether shards are frames and nothing else."""
        return self.compression == "none"

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's ``compression``."""
        if self.is_plain:
            return {"type": "none"}
        return {
            "deflate": self.deflate,
            "member_bytes": self.member_bytes,
            "type": self.compression,
        }


PLAIN: Final = Packing()


def check_packing(compression: Compression, deflate: Deflate) -> None:
    """Refuse what there is not.

    Raises:
        OptionError: There is no such compression or library, or the library has nothing to do.
    """
    if compression not in get_args(Compression):
        raise OptionError(f"compression is {compression!r}", hint="none, gzip or zlib")
    if deflate not in get_args(Deflate):
        raise OptionError(f"deflate is {deflate!r}", hint="isal-2 or zlib-6")
    if compression == "none" and deflate != "isal-2":
        raise OptionError(
            f"deflate is {deflate!r}, and shards are not compressed",
            hint="add --compression gzip, or leave --deflate off",
        )


def lost_readers(compression: Compression) -> list[str]:
    """Return what a person should know who compresses shards, a line each."""
    if compression == "none":
        return []
    lines = [
        f"{compression} shards can not be read by DALI, grain's own reader and whatever needs .idx "
        f"files; shardwriter.open reads them, TensorFlow needs compression_type="
        f"{compression.upper()!r}"
    ]
    if compression == "zlib":
        lines.append(
            "a zlib shard is one stream, so writing can not be resumed inside of it; gzip can"
        )
    return lines
