"""One CSV file: where its rows begin, and the rows at any place."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import SourceError
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.sources.csv_cells import ColumnTyping
from shardwriter.sources.positions import (
    BOM,
    OffsetTable,
    Spool,
    file_changed,
    not_utf8,
    whole_lines,
)
from shardwriter.sources.row_table import BLOCK_ROWS, RowFile

if TYPE_CHECKING:
    from _csv import Reader

_READ_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 1 << 20
_MAX_CELL_BYTES: Final = 1 << 30


class _Lines:
    """The lines of a file, in blocks of about a megabyte, and where each begins.

    Iterating gives lists of lines. A reader takes one block at a time, so the offsets that are kept
    are those of the last block and of what its rows still reach back to.
    """

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self._path = path
        self._begins = np.zeros(1, np.int64)  # of the lines from _first_line on
        self._first_line = 0
        self.num_bytes = 0
        self.crc32c = 0

    def __iter__(self) -> Iterator[list[str]]:
        for data in whole_lines(self._file, _READ_BYTES):
            self.crc32c = extend_crc32c(self.crc32c, data)
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + (self.num_bytes + 1)
            self._begins = np.concatenate((self._begins, ends))
            text = self._decode(data.removeprefix(BOM) if not self.num_bytes else data)
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
            raise not_utf8(data[error.start], self._path, line) from None


def _malformed(error: csv.Error, path: str, line: int) -> SourceError:
    problem, hint = str(error), None
    if "end of data" in problem:
        problem = "a quote that is opened in this row is never closed"
        hint = 'a " inside a quoted cell is written twice'
    return SourceError(problem, path=path, line=line, hint=hint)


class CsvFile(RowFile):
    """One CSV file."""

    def __init__(self, path: str, spool: Spool) -> None:
        super().__init__(path, spool)
        self.header: list[str] = []
        self._delimiter = ","

    def read_header(self) -> None:
        """Read the names of the columns, which may go over several lines when quoted."""
        file = self.start()
        data = first = _read_line(file)
        while data.count(b'"') % 2 and len(data) < _MAX_HEADER_BYTES:
            line = _read_line(file)
            if not line:
                break
            data += line
        self._delimiter = _delimiter(data)
        try:
            text = data.removeprefix(BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            data = data.removeprefix(BOM)
            line_number = 1 + data.count(b"\n", 0, error.start)
            raise not_utf8(data[error.start], self.path, line_number) from None
        if "\0" in text:
            raise SourceError("this is a binary file and no CSV", path=self.path, line=1)
        lines = io.StringIO(text, newline="\n")
        try:
            self.header = next(self._parsed(lines), [])
        except csv.Error as error:
            raise _malformed(error, self.path, 1) from None
        self._check_header(first.removeprefix(BOM))

    def _check_header(self, first: bytes) -> None:
        if not first.strip():
            raise SourceError(
                "the first line is empty" if first else "the file is empty",
                path=self.path,
                hint="the first line of a table names its columns",
            )
        if _is_json_object(first.removeprefix(BOM)):
            raise SourceError(
                "these are JSON objects, and no table",
                path=self.path,
                hint="say it: --format jsonl",
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
        lines = _Lines(self.start(), self.path)
        reader = self._parsed(chain.from_iterable(lines))
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
        self.check_unchanged()
        if rows:
            self._take(rows, before, lines, typing, offsets)
        self.crc32c, self.size_bytes = lines.crc32c, lines.num_bytes
        offsets.add(np.array([self.size_bytes], np.int64))
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
        offsets.add(lines.starts(before))

    def rows(self, text: bytes, num_rows: int) -> list[list[str]]:
        """Parse the text of rows."""
        try:
            lines = io.StringIO(text.decode("utf-8"), newline="\n")
            found = [row for row in self._parsed(lines) if row]
        except (UnicodeDecodeError, csv.Error):
            raise file_changed(self.path) from None
        if len(found) != num_rows or not {len(self.header)}.issuperset(map(len, found)):
            raise file_changed(self.path)
        return found

    def _parsed(self, lines: Iterable[str]) -> Reader:
        # A cell may be as large as a record; the module's own limit is 128 KiB. It is one of the
        # process, and a worker is another process than the one that has made the first pass.
        csv.field_size_limit(_MAX_CELL_BYTES)
        return csv.reader(lines, delimiter=self._delimiter, strict=True)

    def _wrong_width(self, row: list[str], line: int) -> None:
        few = "too few" if len(row) < len(self.header) else "too many"
        raise SourceError(
            f"{len(row)} cells, {few}: the header names {len(self.header)} columns",
            path=self.path,
            line=line,
            hint='a cell with a comma or a line end in it must stand in "quotes"',
        )


def _read_line(file: IO[bytes]) -> bytes:
    """Read a line, but no more than a header can have."""
    return file.readline(_MAX_HEADER_BYTES)


def _is_json_object(line: bytes) -> bool:
    try:
        return line.lstrip().startswith(b"{") and type(json.loads(line)) is dict
    except (ValueError, RecursionError):
        return False


def _delimiter(header: bytes) -> str:
    """Take the delimiter that the header has most of outside of quotes; a comma without any."""
    bare = re.sub(rb'"[^"]*("|$)', b"", header)
    return max(",\t;|", key=lambda c: bare.count(c.encode()))
