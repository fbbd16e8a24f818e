"""One CSV file: where its rows begin, and the rows at any place.

Rows are read by their position in the file, so what can not be read by position (a pipe, a
compressed file) is copied into a temporary file first.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.compression import open_stream
from shardwriter.crc32c import extend_crc32c
from shardwriter.errors import CorruptFile, SourceError
from shardwriter.sources.csv_cells import ColumnTyping

BLOCK_ROWS: Final = 1024
_READ_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 1 << 20
_BOM: Final = b"\xef\xbb\xbf"


class OffsetTable:
    """Row offsets in a temporary file: 8 bytes a row, none of it in memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the table

    def append(self, offsets: NDArray[np.int64]) -> None:
        """Append int64[n] offsets."""
        self._file.write(offsets.tobytes())

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Return the entries ``first`` and ``stop``."""
        descriptor = self._file.fileno()
        begin = int.from_bytes(os.pread(descriptor, 8, 8 * first), sys.byteorder)
        end = int.from_bytes(os.pread(descriptor, 8, 8 * stop), sys.byteorder)
        return begin, end

    def __enter__(self) -> OffsetTable:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


class Spool:
    """What was unpacked or came through a pipe: all in one temporary file, one after the other."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the table

    def copy(self, read: Callable[[int], bytes]) -> int:
        """Append everything that can be read, and return where it begins."""
        begin = self.file.seek(0, os.SEEK_END)
        while data := read(1 << 20):
            rest = memoryview(data)
            while rest:
                rest = rest[self.file.write(rest) :]
        return begin

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.file.close()


class _Lines:
    """The lines of a file, in blocks of about a megabyte, and where each begins.

    Iterating gives lists of lines. A reader takes one block at a time, so the offsets that are kept
    are those of the last block and of what its rows still reach back to.
    """

    def __init__(self, file: IO[bytes], begin: int, path: str) -> None:
        self._file = file
        self._begin = begin
        self._path = path
        self._begins = np.zeros(1, np.int64)  # of the lines from _first_line on
        self._first_line = 0
        self.num_bytes = 0
        self.crc32c = 0

    def __iter__(self) -> Iterator[list[str]]:
        self._file.seek(self._begin)
        while data := self._file.read(_READ_BYTES):
            if not data.endswith(b"\n"):
                data += self._file.readline()
            self.crc32c = extend_crc32c(self.crc32c, data)
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + (self.num_bytes + 1)
            self._begins = np.concatenate((self._begins, ends))
            text = self._decode(data.removeprefix(_BOM) if not self.num_bytes else data)
            self.num_bytes += len(data)
            yield io.StringIO(text, newline="\n").readlines()

    def starts(self, lines: list[int]) -> NDArray[np.int64]:
        """Return the offsets of lines (0-based, ascending), and forget what lies before them."""
        places = np.array(lines, np.int64) - self._first_line
        starts = self._begins[places]
        self._begins = self._begins[places[-1] :]
        self._first_line = lines[-1]
        return starts

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self._first_line + len(self._begins) - data.count(b"\n", error.start)
            raise _not_utf8(data[error.start], self._path, line) from None


def _not_utf8(byte: int, path: str, line: int) -> SourceError:
    return SourceError(
        f"byte {byte:#04x} is not UTF-8",
        path=path,
        line=line,
        hint="convert the file first: iconv -f latin1 -t utf-8",
    )


def file_changed(path: str) -> SourceError:
    """Return the error for a file that is not what it was when its rows were counted."""
    return SourceError(
        "the file has changed since its rows were counted",
        path=path,
        hint="write the dataset again when nothing writes to the source",
    )


def _malformed(error: csv.Error, path: str, line: int) -> SourceError:
    problem, hint = str(error), None
    if "end of data" in problem:
        problem = "a quote that is opened in this row is never closed"
        hint = 'a " inside a quoted cell is written twice'
    return SourceError(problem, path=path, line=line, hint=hint)


class CsvFile:
    """One CSV file, read by position: as it is, or as it was copied into the spool."""

    def __init__(self, path: str, spool: Spool) -> None:
        self.path = path
        self.crc32c = 0
        self.size_bytes = 0
        self.mtime_ns = 0
        self.header: list[str] = []
        self._delimiter = ","
        self._file: IO[bytes] | None = None
        self._begin = 0
        self._state: tuple[int, ...] | None = None
        try:
            if path == "-" or not os.path.isfile(path):
                with open(0 if path == "-" else path, "rb", closefd=path != "-") as pipe:
                    self._begin, self._file = spool.copy(pipe.read), spool.file
                return
            self.mtime_ns = os.stat(path).st_mtime_ns
            with open_stream(path) as stream:
                # No table is a zlib stream, and text such as "x^2" begins like one.
                if stream.compression == "gzip":
                    self._begin, self._file = spool.copy(stream.read), spool.file
        except CorruptFile as error:
            raise SourceError(f"can not be unpacked: {error.message}", path=path) from None
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=path) from error

    @property
    def is_open(self) -> bool:
        """Whether rows can be read."""
        return self._file is not None

    def open(self) -> None:
        """Open the file; it has to be as it was the first time."""
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 - until close()
            state = self._stat()
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=self.path) from error
        if self._state is None:
            self._state = state
        self._check_unchanged()

    def close(self) -> None:
        """Close the file; it can be opened again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _stat(self) -> tuple[int, ...]:
        assert self._file is not None
        stat = os.fstat(self._file.fileno())
        return stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev

    def _check_unchanged(self) -> None:
        if self._state is not None and self._stat() != self._state:
            raise file_changed(self.path)

    def read_header(self) -> None:
        """Read the names of the columns, which may go over several lines when quoted."""
        assert self._file is not None
        self._file.seek(self._begin)
        data = first = _read_line(self._file)
        while data.count(b'"') % 2 and len(data) < _MAX_HEADER_BYTES:
            line = _read_line(self._file)
            if not line:
                break
            data += line
        self._delimiter = _delimiter(data)
        try:
            text = data.removeprefix(_BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            data = data.removeprefix(_BOM)
            line_number = 1 + data.count(b"\n", 0, error.start)
            raise _not_utf8(data[error.start], self.path, line_number) from None
        if "\0" in text:
            raise SourceError("this is a binary file and no CSV", path=self.path, line=1)
        lines = io.StringIO(text, newline="\n")
        try:
            self.header = next(csv.reader(lines, delimiter=self._delimiter, strict=True), [])
        except csv.Error as error:
            raise _malformed(error, self.path, 1) from None
        self._check_header(first.removeprefix(_BOM))

    def _check_header(self, first: bytes) -> None:
        if not first.strip():
            raise SourceError(
                "the first line is empty" if first else "the file is empty",
                path=self.path,
                hint="the first line of a table names its columns",
            )
        for name in self.header:
            if not name:
                problem = "a column has no name"
            elif self.header.count(name) > 1:
                problem = f"the column name {name!r} stands twice"
            else:
                continue
            raise SourceError(
                problem,
                path=self.path,
                line=1,
                hint="the first line names the columns, each once, with a comma, tab, semicolon "
                "or bar between",
            )

    def scan(self, typing: ColumnTyping, offsets: OffsetTable) -> int:
        """Type every cell, note where every row begins, and return the number of rows."""
        assert self._file is not None
        lines = _Lines(self._file, self._begin, self.path)
        reader = csv.reader(chain.from_iterable(lines), delimiter=self._delimiter, strict=True)
        rows: list[list[str]] = []
        before: list[int] = []  # lines in front of each row
        num_rows = line = 0
        try:
            next(reader, None)
            line = reader.line_num
            for row in reader:
                if row:  # else a blank line
                    rows.append(row)
                    before.append(line)
                    if len(rows) >= BLOCK_ROWS:
                        self._take(rows, before, lines, typing, offsets)
                        num_rows += len(rows)
                        rows, before = [], []
                line = reader.line_num
        except csv.Error as error:
            raise _malformed(error, self.path, line + 1) from None
        self._check_unchanged()
        if rows:
            self._take(rows, before, lines, typing, offsets)
        self.crc32c, self.size_bytes = lines.crc32c, lines.num_bytes
        offsets.append(np.array([self.size_bytes], np.int64))
        return num_rows + len(rows)

    def _take(
        self,
        rows: list[list[str]],
        before: list[int],
        lines: _Lines,
        typing: ColumnTyping,
        offsets: OffsetTable,
    ) -> None:
        """Check, type and locate a block of rows."""
        width = len(self.header)
        if set(map(len, rows)) != {width}:
            wrong = next(r for r, row in enumerate(rows) if len(row) != width)
            self._wrong_width(rows[wrong], before[wrong] + 1)
        typing.observe(rows, before, self.path)
        offsets.append(lines.starts(before))

    def rows(self, begin: int, end: int, num_rows: int) -> list[list[str]]:
        """Parse the rows in a range of bytes."""
        assert self._file is not None
        self._check_unchanged()
        try:
            data = os.pread(self._file.fileno(), end - begin, self._begin + begin)
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=self.path) from error
        try:
            text = io.StringIO(data.decode("utf-8"), newline="\n")
            found = [row for row in csv.reader(text, delimiter=self._delimiter, strict=True) if row]
        except (UnicodeDecodeError, csv.Error):
            raise file_changed(self.path) from None
        if len(found) != num_rows or any(len(row) != len(self.header) for row in found):
            raise file_changed(self.path)
        return found

    def _wrong_width(self, row: list[str], line: int) -> None:
        few = "too few" if len(row) < len(self.header) else "too many"
        raise SourceError(
            f"{len(row)} cells, {few}: the header names {len(self.header)} columns",
            path=self.path,
            line=line,
            hint='a cell with a comma or a line end in it must stand in "quotes"',
        )


def close_all(files: list[CsvFile]) -> None:
    """Close the files of a table that goes away."""
    for file in files:
        file.close()


def _read_line(file: IO[bytes]) -> bytes:
    """Read a line, but no more than a header can have."""
    return file.readline(_MAX_HEADER_BYTES)


def _delimiter(header: bytes) -> str:
    """Take the delimiter that the header has most of outside of quotes; a comma without any."""
    bare = re.sub(rb'"[^"]*("|$)', b"", header)
    return max(",\t;|", key=lambda c: bare.count(c.encode()))
