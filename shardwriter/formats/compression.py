"""Compressed shards: what a file is, found by its content, and its uncompressed bytes.

Three types are known, named as TensorFlow names them in lower case: ``none``, ``gzip`` (RFC 1952, a
run of members) and ``zlib`` (RFC 1950, one stream).

The wrappers are parsed here and only the deflate data inside goes to the library. A library that
checks the trailer by itself raises instead of handing out the last bytes, and the records in them
would be lost to the reader of a damaged file.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Protocol, get_args

from isal import isal_zlib

from shardwriter.errors import CorruptFile, OptionError
from shardwriter.formats.crc32c import extend_crc32c, masked_crc32c

Compression = Literal["none", "gzip", "zlib"]

SUFFIXES: Final[dict[Compression, str]] = {"none": "", "gzip": ".gz", "zlib": ""}
"""What a shard's file name ends in (Beam's AUTO detection goes by the name of gzip files)."""

DEFLATE_ERROR: Final[type[Exception]] = isal_zlib.IsalError  # type: ignore[assignment] # stubs
RAW_WBITS: Final = -15
"""Deflate data alone, without a wrapper, with the full window of 32 KiB."""
_READ_BYTES: Final = 1 << 18
_OUTPUT_BYTES: Final = 1 << 20  # inflated at a time: a bomb of zeros takes no more than this
_GZIP_MAGIC: Final = b"\x1f\x8b"
_FHCRC, _FEXTRA, _FNAME, _FCOMMENT = 2, 4, 8, 16


def sniff(head: bytes) -> Compression:
    """Tell the compression of a file from its first bytes (12 are enough).

    A right length CRC comes before any magic number: a plain record of 35,615 bytes starts with
    gzip's magic. Where that CRC is wrong the zeros of a short length still tell it from a magic
    number: no gzip or zlib file has six of them there.
    """
    if len(head) >= 12 and struct.unpack("<I", head[8:12])[0] == masked_crc32c(head[:8]):
        return "none"
    if head[2:8] == bytes(6):
        return "none"
    if head[:2] == _GZIP_MAGIC:
        return "gzip"
    return "zlib" if _is_zlib_header(head[:2]) else "none"


def _is_zlib_header(head: bytes) -> bool:
    if len(head) < 2:
        return False
    method, flags = head
    # Deflate with a window of up to 32 KiB, no dictionary, and both bytes a multiple of 31.
    known = method & 0x0F == 8 and method >> 4 <= 7 and not flags & 0x20
    return known and (method << 8 | flags) % 31 == 0


class _Inflater(Protocol):
    """What is used of a decompression object of zlib or isal."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _ExactInflater:
    """Inflates up to the byte in front of that at which the data is broken.

    isal drops what it inflated in the call that fails. The objects of zlib can be copied, so a call
    that fails is made again, for the most output that does not.
    """

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(wbits=RAW_WBITS)

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflater.unused_data

    @property
    def unconsumed_tail(self) -> bytes:
        return self._inflater.unconsumed_tail

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        before = after = self._inflater.copy()
        try:
            return self._inflater.decompress(data, max_length)
        except zlib.error:
            most, too_many, found = 0, max_length, b""
            while too_many - most > 1:
                middle = (most + too_many) // 2
                attempt = before.copy()
                try:
                    found, after, most = attempt.decompress(data, middle), attempt, middle
                except zlib.error:
                    too_many = middle
            if not found:
                raise
            self._inflater = after
            return found


class _Input(Protocol):
    """What is used of a compressed file."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, /) -> int: ...
    def seekable(self) -> bool: ...
    def tell(self) -> int: ...


class _File(_Input, Protocol):
    """What is used of a file that is opened and closed here."""

    def close(self) -> None: ...


class InflateStream:
    """The uncompressed bytes of a gzip or zlib file, as a stream.

    Everything in front of a fault is handed out before the fault is raised.

    Args:
        file: The compressed file, at its start.
        compression: ``gzip`` or ``zlib``.
        path: Named in errors.

    Attributes:
        num_members: Members of a gzip file that were begun so far.
        on_member: Told at the end of every member of the offset behind it in the file, and of the
            offset behind it in the uncompressed stream.
    """

    def __init__(self, file: _Input, compression: Compression, path: str | None = None) -> None:
        self._file = file
        self._gzip = compression == "gzip"
        self._path = path
        self._input = b""
        self._consumed_bytes = 0  # of the file, in front of self._input
        self._member_start = 0  # where its deflate data begins
        self._inflater: _Inflater | None = None
        self._check = 0
        self._member_bytes = 0
        self._ended_bytes = 0  # uncompressed, of the members before this one
        self._pending: CorruptFile | None = None
        self.num_members = 0
        self.on_member: Callable[[int, int], None] | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, b"" at the end.

        Raises:
            CorruptFile: The compressed data is broken; ``offset`` is that in the file itself.
        """
        if self._pending is not None:
            raise self._pending
        try:
            return self._read(min(size, _OUTPUT_BYTES))
        except CorruptFile as error:
            self._pending = error
            raise

    def _read(self, size: int) -> bytes:
        while True:
            if self._inflater is None and not self._begin_member():
                return b""
            assert self._inflater is not None
            if not self._input:
                self._fill()
            ended = not self._input
            try:
                data = self._inflater.decompress(self._input, size)
            except (DEFLATE_ERROR, zlib.error) as error:
                if isinstance(self._inflater, _ExactInflater) or not self._file.seekable():
                    self._fail("bad-deflate", f"compressed data is broken: {error}")
                self._go_back()
                continue
            if self._inflater.eof:
                rest = self._inflater.unused_data
            else:
                rest = self._inflater.unconsumed_tail
            self._consumed_bytes += len(self._input) - len(rest)
            self._input = rest
            self._check = (zlib.crc32 if self._gzip else zlib.adler32)(data, self._check)
            self._member_bytes += len(data)
            if self._inflater.eof:
                self._inflater = None
                try:
                    self._end_member()
                except CorruptFile as error:
                    self._pending = error  # raised by the next read: the data comes first
                    if not data:
                        raise
            elif ended and not data:
                self._fail("truncated", "compressed data ends in the middle")
            if data:
                return data

    def _go_back(self) -> None:
        """Inflate the member once more, up to where reading stands, to come close to a fault."""
        self._file.seek(self._member_start)
        self._input = b""
        self._inflater = _ExactInflater()
        skip = self._member_bytes
        while skip:
            if not self._input:
                self._fill()
            try:
                data = self._inflater.decompress(self._input, min(skip, _OUTPUT_BYTES))
            except zlib.error as error:
                self._fail("bad-deflate", f"compressed data is broken: {error}")
            if not data and not self._input:
                self._fail("truncated", "compressed data ends earlier than it did a moment ago")
            self._input = self._inflater.unconsumed_tail
            skip -= len(data)
        self._consumed_bytes = self._file.tell() - len(self._input)

    def _begin_member(self) -> bool:
        """Parse the wrapper's head; False at the end of the file."""
        if self.num_members and not self._gzip:
            if self._peek(1):
                self._fail("trailing-data", "bytes follow the end of the zlib stream")
            return False
        if not self._peek(1):
            return False
        if self.num_members and self._peek(2) != _GZIP_MAGIC:
            self._fail("trailing-data", "bytes that are no gzip member follow a member")
        if self._gzip:
            self._skip_gzip_header()
        else:
            self._take(2)
        self.num_members += 1
        self._inflater = isal_zlib.decompressobj(wbits=RAW_WBITS)
        self._member_start = self._consumed_bytes
        self._check = 0 if self._gzip else 1
        self._member_bytes = 0
        return True

    def _skip_gzip_header(self) -> None:
        _magic, method, flags = struct.unpack("<HBB", self._take(10)[:4])
        if method != 8 or flags & 0xE0:
            self._fail("bad-gzip-header", f"gzip method {method}, flags {flags:#04x}: unknown")
        if flags & _FEXTRA:
            (extra_bytes,) = struct.unpack("<H", self._take(2))
            self._take(extra_bytes)
        for flag in (_FNAME, _FCOMMENT):
            if flags & flag:
                while (end := self._input.find(0)) < 0:
                    self._take(len(self._input))
                    if not self._peek(1):
                        self._fail("truncated", "compressed file ends inside a header")
                self._take(end + 1)
        if flags & _FHCRC:
            self._take(2)

    def _end_member(self) -> None:
        """Hold the trailer against what was inflated."""
        if self._gzip:
            check, member_bytes = struct.unpack("<II", self._take(8))
            if member_bytes != self._member_bytes & 0xFFFFFFFF:
                self._fail("bad-gzip-size", f"trailer says {member_bytes:,} bytes uncompressed")
        else:
            (check,) = struct.unpack(">I", self._take(4))
        if check != self._check:
            self._fail("bad-checksum", f"checksum is {self._check:08x}, trailer says {check:08x}")
        self._ended_bytes += self._member_bytes
        if self.on_member is not None:
            self.on_member(self._consumed_bytes, self._ended_bytes)

    def _fill(self) -> None:
        self._input += self._file.read(_READ_BYTES)

    def _peek(self, size: int) -> bytes:
        """Return the next bytes; fewer than ``size`` at the end of the file."""
        while len(self._input) < size:
            have = len(self._input)
            self._fill()
            if len(self._input) == have:
                break
        return self._input[:size]

    def _take(self, size: int) -> bytes:
        if len(self._peek(size)) < size:
            self._fail("truncated", "compressed file ends inside a header or trailer")
        taken, self._input = self._input[:size], self._input[size:]
        self._consumed_bytes += size
        return taken

    def _fail(self, kind: str, message: str) -> NoReturn:
        raise CorruptFile(
            f"{message} (byte {self._consumed_bytes:,} of the file)", kind=kind, path=self._path
        )


class _SummedFile:
    """A compressed file whose CRC is taken as it is read, as long as it is read in order."""

    def __init__(self, file: _Input) -> None:
        self._file = file
        self.crc32c: int | None = 0

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        if self.crc32c is not None:
            self.crc32c = extend_crc32c(self.crc32c, data)
        return data

    def seek(self, offset: int, /) -> int:
        self.crc32c = None
        return self._file.seek(offset)

    def seekable(self) -> bool:
        return self._file.seekable()

    def tell(self) -> int:
        return self._file.tell()


class OpenStream:
    """An open TFRecord file: its compression and its uncompressed bytes.

    Args:
        path: The file; named in errors where ``file`` is given.
        file: What is read instead, unbuffered and at its start; it is closed with the stream.
    """

    def __init__(self, path: str | os.PathLike[str], file: _File | None = None) -> None:
        # Unbuffered: the reader asks for large blocks, a second buffer only copies.
        self._file: _File = file or Path(path).open("rb", buffering=0)  # noqa: SIM115 - see exit
        try:
            head = self._file.read(12)
            self._file.seek(0)
        except OSError:
            self._file.close()
            raise
        self.compression = sniff(head)
        self._inflate: InflateStream | None = None
        self._summed: _SummedFile | None = None
        self.read: Callable[[int], bytes] = self._file.read
        if self.compression != "none":
            self._summed = _SummedFile(self._file)
            self._inflate = InflateStream(self._summed, self.compression, os.fspath(path))
            self.read = self._inflate.read

    def tell(self) -> int:
        """Return how many bytes of the file were read."""
        return self._file.tell()

    def reader_at(self) -> Callable[[int, int], bytes]:
        """Return what reads the file itself, by number of bytes and offset, without its stream.

        Fewer bytes come at the end of the file. It may move the stream.
        """
        if isinstance(self._file, io.FileIO):
            return partial(os.pread, self._file.fileno())

        def read_at(num_bytes: int, offset: int) -> bytes:
            self._file.seek(offset)
            return self._file.read(num_bytes)

        return read_at

    @property
    def file_crc32c(self) -> int | None:
        """CRC-32C of a compressed file, as far as it was read; None where it is not known."""
        return self._summed.crc32c if self._summed else None

    def on_members(self, on_member: Callable[[int, int], None]) -> None:
        """Have a compressed file's members told; see :attr:`InflateStream.on_member`."""
        if self._inflate is not None:
            self._inflate.on_member = on_member

    @property
    def num_members(self) -> int:
        """Gzip members begun so far; 0 for a plain file."""
        return self._inflate.num_members if self._inflate else 0

    def __enter__(self) -> OpenStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


def open_stream(path: str | os.PathLike[str]) -> OpenStream:
    """Open a file for reading its uncompressed bytes, whatever it is compressed with."""
    return OpenStream(path)


# How shards are compressed: the type, the library, and where a member ends.
#
# A gzip shard is cut into members and a zlib shard into blocks. Both end with the record that
# brings their uncompressed bytes to ``member_bytes`` or more, so they are a function of the records
# and of the number of shards. Each is compressed in one call, since what isal makes of some bytes
# depends on the pieces in which it is given them.
#
# What it makes of them also depends on where its own state lies in memory. At the beginning of a
# stream its loop for levels 1 and 2 takes a hash that should be that of the third byte from the
# register which still holds the address of the stream (``igzip_icf_body_h1_gr_bt.asm``,
# ``.write_first_byte``), and so notes the third byte in a slot of the table that depends on this
# address. A match at these bytes is then found or not: of small members a few in a thousand came
# out otherwise in another process. So a stream begins with four bytes of ours, that are flushed and
# thrown away: they are too few for that loop, and it starts behind them with hashes that are right.
# They must not occur in what follows, or a match could reach back to them.

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


def compatibility_notes(compression: Compression) -> list[str]:
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
