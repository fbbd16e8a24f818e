"""Compression of shards: detect it, inflate files, and deflate members and blocks.

The types are those of TensorFlow, in lower case: ``none``, ``gzip`` (RFC 1952, a sequence of
members) and ``zlib`` (RFC 1950, one stream).

Reading: headers and trailers are parsed here and only the deflate data goes to the library. A
library that checks the trailer itself raises instead of returning the last bytes, so the records in
them would be lost to the reader of a damaged file.

Writing: a gzip shard is cut into members and a zlib shard into blocks, each ending with the record
that brings its uncompressed bytes to ``member_bytes`` or more. So they are a function of the
records and of the number of shards. Each is compressed in one call, since the output of isal
depends on how its input is divided into calls.
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
"""The suffix of shard file names (Beam detects gzip files by their names)."""

DEFLATE_ERROR: Final[type[Exception]] = isal_zlib.IsalError  # type: ignore[assignment] # stubs
RAW_WBITS: Final = -15
"""Raw deflate data without header and trailer, with the full window of 32 KiB."""
_READ_BYTES: Final = 1 << 18
_OUTPUT_BYTES: Final = 1 << 20  # inflated at a time, which bounds the memory for a zip bomb
_GZIP_MAGIC: Final = b"\x1f\x8b"
_FHCRC, _FEXTRA, _FNAME, _FCOMMENT = 2, 4, 8, 16


def sniff(head: bytes) -> Compression:
    """Return the compression of a file from its first 12 bytes.

    A correct length CRC takes precedence over a magic number: a plain file whose first record has
    35,615 bytes starts with gzip's magic number. If that CRC is wrong, the zeros of a short length
    still identify a plain file: no gzip or zlib file has six zeros there.
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
    # Deflate, a window of up to 32 KiB, no dictionary; both bytes together are a multiple of 31.
    known = method & 0x0F == 8 and method >> 4 <= 7 and not flags & 0x20
    return known and (method << 8 | flags) % 31 == 0


class _Inflater(Protocol):
    """The interface of decompression objects of zlib and isal."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _ExactInflater:
    """A decompression object that returns every byte before broken data.

    isal drops the output of the call that fails. zlib's objects can be copied, so a failed call is
    repeated with the largest output size that succeeds, found by bisection.
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
            good, bad, found = 0, max_length, b""
            while bad - good > 1:
                middle = (good + bad) // 2
                attempt = before.copy()
                try:
                    found, after, good = attempt.decompress(data, middle), attempt, middle
                except zlib.error:
                    bad = middle
            if not found:
                raise
            self._inflater = after
            return found


class _Input(Protocol):
    """The methods of a compressed file that are used."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, /) -> int: ...
    def seekable(self) -> bool: ...
    def tell(self) -> int: ...


class _File(_Input, Protocol):
    """The methods of a file that is opened and closed here."""

    def close(self) -> None: ...


class InflateStream:
    """A stream of the uncompressed bytes of a gzip or zlib file.

    All bytes before a defect are returned before the defect is raised.

    Args:
        file: The compressed file, at its start.
        compression: ``gzip`` or ``zlib``.
        path: The file, for errors.

    Attributes:
        num_members: Members of a gzip file begun so far.
        on_member: Called at the end of each member with its end offset in the file and in the
            uncompressed stream.
    """

    def __init__(self, file: _Input, compression: Compression, path: str | None = None) -> None:
        self._file = file
        self._gzip = compression == "gzip"
        self._path = path
        self._input = b""
        self._consumed_bytes = 0  # offset of self._input in the file
        self._member_start = 0  # offset of its deflate data
        self._inflater: _Inflater | None = None
        self._check = 0
        self._member_bytes = 0
        self._ended_bytes = 0  # uncompressed bytes of the previous members
        self._pending: CorruptFile | None = None
        self.num_members = 0
        self.on_member: Callable[[int, int], None] | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, b"" at the end.

        Raises:
            CorruptFile: The compressed data is broken.
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
                    self._pending = error  # raised by the next read, after the data
                    if not data:
                        raise
            elif ended and not data:
                self._fail("truncated", "compressed data is cut off")
            if data:
                return data

    def _go_back(self) -> None:
        """Inflate the member again up to the current position, with `_ExactInflater`."""
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
                self._fail("truncated", "compressed data has become shorter while it was read")
            self._input = self._inflater.unconsumed_tail
            skip -= len(data)
        self._consumed_bytes = self._file.tell() - len(self._input)

    def _begin_member(self) -> bool:
        """Parse a member's header; return False at the end of the file."""
        if self.num_members and not self._gzip:
            if self._peek(1):
                self._fail("trailing-data", "bytes follow the end of the zlib stream")
            return False
        if not self._peek(1):
            return False
        if self.num_members and self._peek(2) != _GZIP_MAGIC:
            self._fail("trailing-data", "bytes that are not a gzip member follow a member")
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
            self._fail("bad-gzip-header", f"unknown gzip method {method} or flags {flags:#04x}")
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
        """Check the trailer against the inflated bytes."""
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
    """A compressed file with the CRC of the bytes read; None once it was not read in order."""

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
        path: The file.
        file: An open, unbuffered file at its start to read instead of ``path``, which is then only
            for errors; it is closed with the stream.
    """

    def __init__(self, path: str | os.PathLike[str], file: _File | None = None) -> None:
        # Unbuffered: reads are large, and a second buffer would only add a copy.
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
        """Return the number of bytes of the file that were read."""
        return self._file.tell()

    def reader_at(self) -> Callable[[int, int], bytes]:
        """Return a function that reads the file itself: ``read_at(num_bytes, offset)``.

        It returns fewer bytes at the end of the file, and may change the stream's position.
        """
        if isinstance(self._file, io.FileIO):
            return partial(os.pread, self._file.fileno())

        def read_at(num_bytes: int, offset: int) -> bytes:
            self._file.seek(offset)
            return self._file.read(num_bytes)

        return read_at

    @property
    def file_crc32c(self) -> int | None:
        """CRC-32C of the bytes read of a compressed file; None if not known."""
        return self._summed.crc32c if self._summed else None

    def on_members(self, on_member: Callable[[int, int], None]) -> None:
        """Set the callback for members of a compressed file; see :class:`InflateStream`."""
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
    """Return an open file whose ``read`` gives uncompressed bytes, whatever its compression."""
    return OpenStream(path)


# -- writing ---------------------------------------------------------------------------------------

Deflate = Literal["isal-2", "zlib-6"]
"""A library and its level; recorded in the manifest, and independent of what is installed."""

MEMBER_BYTES: Final = 1 << 20
_MIN_MEMBER_BYTES: Final = 1 << 16
_ALL_MEMBERS_BYTES: Final = 64 << 20  # of the open members of all shards together
_WINDOW_BYTES: Final = (1 << 15) + 4  # the furthest that a deflate match reaches back
_FIRST_CANDIDATE: Final = 0x81E53C9A  # arbitrary


class _Compressor(Protocol):
    """The interface of compression objects of zlib and isal."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self, mode: int = ..., /) -> bytes: ...


def _new_compressor(data: bytes, deflate: Deflate) -> _Compressor:
    """Return a compression object for ``data`` whose output depends on ``data`` alone.

    The output of isal also depends on the address of its state. At the start of a stream its loop
    for levels 1 and 2 takes the hash of the third byte from a register that still holds the address
    of the stream (``igzip_icf_body_h1_gr_bt.asm``, ``.write_first_byte``), so a match at these
    bytes is found or not: a few in a thousand small members differed between processes. So each
    stream starts with four bytes whose output is discarded. They are too few for that loop, which
    starts after them with correct hashes. They must not occur in the data, or a match could refer
    to them.
    """
    if deflate == "zlib-6":
        return zlib.compressobj(6, zlib.DEFLATED, RAW_WBITS)
    compressor: _Compressor = isal_zlib.compressobj(2, isal_zlib.DEFLATED, RAW_WBITS)
    compressor.compress(_absent_from(data[:_WINDOW_BYTES]))
    compressor.flush(zlib.Z_SYNC_FLUSH)  # ends at a byte boundary and retains the window
    return compressor


def _absent_from(data: bytes) -> bytes:
    """Return four bytes that do not occur in ``data``, chosen deterministically."""
    candidates = (number.to_bytes(4, "little") for number in count(_FIRST_CANDIDATE))
    return next(candidate for candidate in candidates if candidate not in data)


def deflate_member(data: bytes, deflate: Deflate) -> bytes:
    """Return the deflate data of a gzip member."""
    compressor = _new_compressor(data, deflate)
    return compressor.compress(data) + compressor.flush()


def deflate_block(data: bytes, deflate: Deflate) -> bytes:
    """Return one block of a zlib stream that ends at a byte and can be inflated on its own."""
    compressor = _new_compressor(data, deflate)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


@dataclass(frozen=True)
class Packing:
    """How the frames of shards are compressed.

    Attributes:
        compression: The type.
        deflate: The library and its level.
        member_bytes: Uncompressed bytes at which a gzip member or a zlib block ends.
    """

    compression: Compression = "none"
    deflate: Deflate = "isal-2"
    member_bytes: int = MEMBER_BYTES

    @classmethod
    def of(cls, compression: Compression, deflate: Deflate, num_shards: int) -> Packing:
        """Return the packing of N shards; with many shards members are smaller, to bound memory."""
        shared = _ALL_MEMBERS_BYTES // num_shards
        return cls(compression, deflate, max(_MIN_MEMBER_BYTES, min(MEMBER_BYTES, shared)))

    @property
    def is_plain(self) -> bool:
        """Whether shards are not compressed."""
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
    """Check the options ``--compression`` and ``--deflate``.

    Raises:
        OptionError: A value is unknown, or a library is chosen without compression.
    """
    if compression not in get_args(Compression):
        raise OptionError(
            f"compression is {compression!r}", hint="give --compression none, gzip or zlib"
        )
    if deflate not in get_args(Deflate):
        raise OptionError(f"deflate is {deflate!r}", hint="give --deflate isal-2 or zlib-6")
    if compression == "none" and deflate != "isal-2":
        raise OptionError(
            f"deflate is {deflate!r}, but shards are not compressed",
            hint="add --compression gzip, or leave --deflate off",
        )


def compatibility_notes(compression: Compression) -> list[str]:
    """Return notes for a user who compresses shards: readers that can not read them."""
    if compression == "none":
        return []
    lines = [
        f"DALI, grain's own reader and readers that need .idx files can not read {compression} "
        f"shards; shardwriter.open reads them, TensorFlow needs compression_type="
        f"{compression.upper()!r}"
    ]
    if compression == "zlib":
        lines.append(
            "a zlib shard is one stream, so a resumed run writes it from its start; gzip shards "
            "continue"
        )
    return lines
