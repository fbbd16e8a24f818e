"""Input files that are read by position, and their offsets.

A pipe, a compressed file and text in other encodings than UTF-8 are first copied into a temporary
file, as UTF-8. The offsets of lines or records are found in one pass and go to a temporary file,
too, so they use no memory.
"""

from __future__ import annotations

import codecs
import mmap
import os
import re
import stat
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import is_url
from shardwriter.errors import CorruptFile, SourceChanged, SourceError
from shardwriter.formats import InflateStream, sniff
from shardwriter.storage import (
    InputChanged,
    OpenInput,
    Scratch,
    absolute,
    inputs_for,
    open_stream,
)

MAX_OPEN_FILES: Final = 32
_NEAR: Final = 1 << 16  # entries that are read at once though few of them are needed
BOM: Final = b"\xef\xbb\xbf"


class OffsetTable(Scratch):
    """Offsets in a temporary file, 8 bytes each."""

    _mapped: NDArray[np.int64] | None = None

    def add(self, offsets: NDArray[np.int64]) -> None:
        """Append int64[n] offsets."""
        self.append(offsets.tobytes())

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Return the entries at ``first`` and ``stop``."""
        if stop == first + 1:
            data = self.read(8 * first, 16)
        else:
            data = self.read(8 * first, 8) + self.read(8 * stop, 8)
        return int.from_bytes(data[:8], sys.byteorder), int.from_bytes(data[8:], sys.byteorder)

    def entries(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return int64[stop - first]: the entries from ``first`` to ``stop`` - 1."""
        return np.frombuffer(self.read(8 * first, 8 * (stop - first)), np.int64)

    def at(self, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[k]: the entries at any positions; only these are read."""
        if not len(entries):
            return np.zeros(0, np.int64)  # an empty file cannot be mapped
        if self._mapped is None or self._mapped.nbytes != self.num_bytes:
            # No other process can truncate this file, so it is safe to map.
            shared = mmap.mmap(self.fileno(), self.num_bytes, prot=mmap.PROT_READ)
            self._mapped = np.frombuffer(shared, np.int64)
        found: NDArray[np.int64] = self._mapped[entries]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}


class Spool(Scratch):
    """Decompressed or piped input: all in one temporary file, one input after the other."""

    _reader: IO[bytes] | None = None

    def reader(self, begin: int) -> IO[bytes]:
        """Return the file at position ``begin`` for reading; closing the spool closes it."""
        if self._reader is None:
            self._reader = os.fdopen(os.dup(self.fileno()), "rb")
            weakref.finalize(self, self._reader.close)
        self._reader.seek(begin)
        return self._reader

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._reader is not None:
            self._reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def copy(self, read: Callable[[int], bytes]) -> int:
        """Append all of an input, and return where it begins."""
        begin = self.num_bytes
        while data := read(1 << 20):
            self.append(data)
        return begin


class InputFile:
    """A file that is read by position: directly, or from its copy in the spool.

    Args:
        path: The file; ``-`` for standard input.
        spool: Receives pipes, gzip files and text that is not UTF-8; None to read the file as it
            is.
        encoding: The encoding of the text; None for UTF-8, which is not checked here.

    Raises:
        SourceError: It cannot be read or decompressed.
    """

    _file: OpenInput | None = None

    def __init__(self, path: str, spool: Spool | None, encoding: str | None = None) -> None:
        self.path = path
        self.encoding = encoding
        self._absolute = absolute(path)  # a map may change the current folder
        self.mtime_ns = 0
        self._inputs = inputs_for(path)
        self._spool: Spool | None = None  # set if a copy is read
        self._begin = 0
        self._state: tuple[int, ...] | None = None
        try:
            if spool is not None and not is_url(path) and (path == "-" or not os.path.isfile(path)):
                with open(0 if path == "-" else path, "rb", closefd=path != "-") as pipe:
                    read: Callable[[int], bytes] = pipe.read
                    if sniff(pipe.peek(12)[:12]) == "gzip":
                        read = InflateStream(pipe, "gzip", path).read
                    self._begin, self._spool = spool.copy(_as_utf8(read, encoding)), spool
                return
            found = self._inputs.stat(path)
            self.mtime_ns = found.st_mtime_ns
            if spool is None and not stat.S_ISREG(found.st_mode):
                # Opening a pipe blocks until it has a writer.
                raise SourceError("this is not a regular file", path=path)
            if spool is not None:
                with ExitStack() as opened, open_stream(path) as stream:
                    # Text is never a zlib stream, but text such as "x^2" begins like one.
                    if stream.compression == "gzip" or encoding is not None:
                        copied = stream.read
                        if stream.compression != "gzip":
                            plain = opened.enter_context(self._inputs.open(path))
                            copied = plain.read
                        self._begin, self._spool = spool.copy(_as_utf8(copied, encoding)), spool
        except CorruptFile as error:
            raise SourceError(f"can not be decompressed: {error.message}", path=path) from None
        except OSError as error:
            raise _unreadable(path, error) from error

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._file is not None or self._spool is not None

    def open(self) -> None:
        """Open the file; raise if it has changed since it was first opened."""
        try:
            self._file = self._inputs.open(self._absolute)
            state = self._stat()
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if self._state is None:
            self._state = state
        self.check_unchanged()

    def close(self) -> None:
        """Close the file; it can be opened again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def num_bytes(self) -> int:
        """The size of the open file."""
        return self._stat()[0]

    def __del__(self) -> None:
        self.close()

    def _stat(self) -> tuple[int, ...]:
        assert self._file is not None
        found = self._file.stat()
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev

    def check_unchanged(self) -> None:
        """Compare the file with its state when it was first opened.

        Raises:
            SourceError: It has changed.
        """
        if self._state is not None and self._stat() != self._state:
            raise file_changed(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}  # another process opens its own file

    def start(self) -> IO[bytes]:
        """Return the open file, at its beginning."""
        if self._spool is not None:
            return self._spool.reader(self._begin)
        assert self._file is not None
        self._file.seek(self._begin)
        return self._file

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end); fewer at the end of the file.

        Raises:
            SourceError: They cannot be read, or the file has changed.
        """
        try:
            if self._spool is not None:
                return self._spool.read(self._begin + begin, end - begin)
            self.check_unchanged()
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return self.read_at(begin, end)

    def read_at(self, begin: int, end: int) -> bytes:
        """Do the same as :meth:`read`, without checking whether the file has changed."""
        try:
            assert self._file is not None
            return self._file.read_at(begin, end - begin)
        except OSError as error:
            raise _unreadable(self.path, error) from error


class OpenFiles(list[InputFile]):
    """The open input files, oldest first; at most ``limit``."""

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        super().__init__()
        self._limit = limit

    def open(self, file: InputFile) -> None:
        """Open a file; close the oldest one if the limit is reached."""
        if file.is_open:
            return
        if len(self) >= self._limit:
            self.pop(0).close()
        self.append(file)
        file.open()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._limit,)  # another process has none of them open

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for file in self:
            file.close()


def whole_lines(file: IO[bytes], block_bytes: int) -> Iterator[bytes]:
    """Yield the rest of a file in blocks that end with a line."""
    while data := file.read(block_bytes):
        if not data.endswith(b"\n"):
            data += file.readline()
        yield data


def file_changed(path: str) -> SourceChanged:
    """Return the error for a file that has changed since it was first read."""
    return SourceChanged(
        "the file has changed since it was read first",
        path=path,
        hint="write the dataset again while nothing changes the source",
    )


def row_key(row: int, first_rows: Sequence[int], path_of: Callable[[int], str]) -> str:
    """Return ``row 7``, with the file if there are several.

    Args:
        row: The row number over all files.
        first_rows: The number of each file's first row.
        path_of: Returns the path of a file by number.
    """
    if len(first_rows) == 1:
        return f"row {row}"
    number = bisect_right(first_rows, row) - 1
    return f"{os.path.basename(path_of(number))} row {row - first_rows[number]}"


_UNDECODED: Final = 0xFF
"""Marks a byte of a copy that is not in the file's encoding; UTF-8 has no such byte."""

SURROGATES: Final = re.compile("[\udc80-\udcff]")
"""The characters that ``surrogateescape`` uses for bytes that are not UTF-8."""


def _mark_undecoded(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace a byte that cannot be decoded by a mark, which the reader of the copy finds."""
    assert isinstance(error, UnicodeDecodeError)
    return chr(0xDC00 + _UNDECODED), error.end


codecs.register_error("shardwriter.mark-undecoded", _mark_undecoded)


def _as_utf8(read: Callable[[int], bytes], encoding: str | None) -> Callable[[int], bytes]:
    """Return a function that reads text of an encoding as UTF-8; it returns b"" only at the end."""
    if encoding is None:
        return read
    decoder = codecs.getincrementaldecoder(encoding)("shardwriter.mark-undecoded")

    def recode(size: int) -> bytes:
        while True:
            data = read(size)
            text = decoder.decode(data, not data)
            if text or not data:
                return text.encode("utf-8", "surrogateescape")

    return recode


def not_utf8(byte: int, file: InputFile, line: int) -> SourceError:
    """Return the error for text that is not in its encoding."""
    if file.encoding is not None:
        return SourceError(
            f"a byte of this line is not {file.encoding}",
            path=file.path,
            line=line,
            hint="give the encoding of the file, such as --encoding cp1252",
        )
    is_utf16 = line == 1 and byte in (0xFE, 0xFF)  # its byte order mark
    name = "utf-16" if is_utf16 else "latin-1"
    return SourceError(
        f"byte {byte:#04x} is not UTF-8",
        path=file.path,
        line=line,
        hint=f"give the encoding of the file, such as --encoding {name}",
    )


def _unreadable(path: str, error: OSError) -> SourceError:
    if isinstance(error, InputChanged):
        return file_changed(path)
    return SourceError(f"can not be read: {error.strerror}", path=path)
