"""``csv``: tables with a header line, or without; a row is an item.

A first pass over the whole input finds the offset of every row and the type of every column, so the
type does not depend on how the table is divided: ``int64`` if every cell is an integer, ``float``
if every cell is a number, else ``bytes`` (the text in UTF-8). An empty cell is a feature without a
kind, as in TFX; so is ``NA`` among numbers. Several files of one header are one table.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import DataWarning, SourceError
from shardwriter.formats import UNSET, Column, extend_crc32c, plural
from shardwriter.schema import FeatureType
from shardwriter.sources.cells import CONVERT, TYPES, ColumnTyping, is_number
from shardwriter.sources.positions import (
    BOM,
    MAX_OPEN_FILES,
    SURROGATES,
    OffsetTable,
    Spool,
    file_changed,
    not_utf8,
    whole_lines,
)
from shardwriter.sources.tables import BLOCK_ROWS, RowFile, RowTable, TableOptions

if TYPE_CHECKING:
    from _csv import Reader


_READ_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 1 << 20
_MAX_CELL_BYTES: Final = 1 << 30


class _Lines:
    """The lines of a file, in blocks of about a megabyte, and their offsets.

    Iterating gives lists of lines. Only the offsets of the current block are stored, and those of
    earlier lines with rows that continue in it.

    Attributes:
        has_bad_bytes: Whether a line so far is not UTF-8; its bytes are surrogates then.
    """

    def __init__(self, file: CsvFile) -> None:
        self._file = file
        self.has_bad_bytes = False
        self._begins = np.zeros(1, np.int64)  # of the lines since _first_line
        self._first_line = 0
        self.num_bytes = 0
        self.crc32c = 0

    def __iter__(self) -> Iterator[list[str]]:
        for data in whole_lines(self._file.start(), _READ_BYTES):
            self.crc32c = extend_crc32c(self.crc32c, data)
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + (self.num_bytes + 1)
            self._begins = np.concatenate((self._begins, ends))
            text = self._decode(data.removeprefix(BOM) if not self.num_bytes else data)
            self.num_bytes += len(data)
            yield io.StringIO(text, newline="\n").readlines()

    def starts(self, lines: list[int]) -> NDArray[np.int64]:
        """Return the offsets of lines (from 0, ascending), and drop those before the last."""
        places = np.array(lines, np.int64) - self._first_line
        starts = self._begins[places]
        self._begins = self._begins[places[-1] :]
        self._first_line = lines[-1]
        return starts

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            if self._file.skip_errors:
                self.has_bad_bytes = True
                return data.decode("utf-8", "surrogateescape")
            line = self._first_line + len(self._begins) - data.count(b"\n", error.start)
            raise not_utf8(data[error.start], self._file, line) from None


def _malformed(error: csv.Error, path: str, line: int) -> SourceError:
    problem, hint = str(error), None
    if "end of data" in problem:
        problem = "a quoted cell that begins in this row is never closed"
        hint = 'write a " inside a quoted cell as ""'
    return SourceError(problem, path=path, line=line, hint=hint)


class CsvFile(RowFile):
    """One CSV file.

    Args:
        path: The file.
        spool: Receives a copy of the file, if it cannot be read by position.
        table: How it is read.
        skip_errors: Note invalid rows; otherwise the first one ends the scan.

    Attributes:
        header: The column names.
    """

    def __init__(
        self, path: str, spool: Spool, table: TableOptions, *, skip_errors: bool = False
    ) -> None:
        super().__init__(path, spool, table.encoding, skip_errors=skip_errors)
        self._table = table
        self.header: list[str] = []
        self._delimiter = ","

    def read_header(self) -> None:
        """Set the column names, from the first row or from the options.

        A row with quoted cells may have several lines.
        """
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
            raise not_utf8(data[error.start], self, line_number) from None
        if "\0" in text:
            raise SourceError("this is a binary file, not CSV", path=self.path, line=1)
        lines = io.StringIO(text, newline="\n")
        try:
            row = next(self._parse(lines), [])
        except csv.Error as error:
            raise _malformed(error, self.path, 1) from None
        self._check_first(first.removeprefix(BOM))
        if self._table.header:
            self._check_header(row)
        elif self._table.names is not None and len(self._table.names) != len(row):
            raise SourceError(
                f"the first row has {len(row):,} cells, but --names has "
                f"{plural(len(self._table.names), 'column')}",
                path=self.path,
                line=1,
                hint="name each column once",
            )
        self.header = row
        if not self._table.header:
            self.header = list(self._table.names or (f"column{n}" for n in range(len(row))))

    def _check_first(self, first: bytes) -> None:
        if not first.strip():
            raise SourceError(
                "the first line is empty" if first else "the file is empty",
                path=self.path,
                hint="the first line of a table must have its column names",
            )
        if _is_json_object(first.removeprefix(BOM)):
            raise SourceError(
                "these are JSON objects, not a table",
                path=self.path,
                hint="add --format jsonl",
            )

    def _check_header(self, names: list[str]) -> None:
        seen: set[str] = set()
        for name in names:
            if name and name not in seen:
                seen.add(name)
                continue
            raise SourceError(
                f"the column name {name!r} is repeated" if name else "a column has no name",
                path=self.path,
                line=1,
                hint="the first line needs one name for each column, separated by comma, tab, "
                "semicolon or bar; if it is data, add --no-header",
            )

    def scan(self, typing: ColumnTyping, offsets: OffsetTable) -> int:
        """Type every cell, add the offset of every row, and return the number of rows."""
        lines = _Lines(self)
        reader = self._parse(chain.from_iterable(lines))
        rows: list[list[str]] = []
        before: list[int] = []  # the number of lines before each row
        num_rows = line = 0
        if self._table.header:
            next(reader, None)
            line = reader.line_num
        is_read = False
        while not is_read:
            try:
                for row in reader:
                    if row:  # else a blank line
                        rows.append(row)
                        before.append(line)
                        if len(rows) >= BLOCK_ROWS:
                            num_rows += self._add_rows(
                                rows, before, lines, typing, offsets, num_rows
                            )
                            rows, before = [], []
                    line = reader.line_num
                is_read = True
            except csv.Error as error:
                rows.append([])  # marks an invalid row: no valid one is empty
                before.append(line)
                self._note_malformed(error, line + 1, reader.line_num - line)
                line = reader.line_num
        self.check_unchanged()
        if rows:
            num_rows += self._add_rows(rows, before, lines, typing, offsets, num_rows)
        self.crc32c, self.size_bytes = lines.crc32c, lines.num_bytes
        offsets.add(np.array([self.size_bytes], np.int64))
        return num_rows

    def _note_malformed(self, error: csv.Error, line: int, num_lines: int) -> None:
        """Raise for a malformed row, unless errors are skipped and it is a single line."""
        found = _malformed(error, self.path, line)
        if not self.skip_errors:
            raise found from None
        if num_lines > 1:
            found.hint = (
                f"--on-error skip can not skip it: its quotes span {num_lines:,} lines, so the "
                "beginning of the next row is unknown. Correct the quotes in this line"
            )
            raise found from None

    def _add_rows(
        self,
        rows: list[list[str]],
        before: list[int],
        lines: _Lines,
        typing: ColumnTyping,
        offsets: OffsetTable,
        first_row: int,
    ) -> int:
        """Check and type a block of rows, and add their offsets; return their number."""
        offsets.add(lines.starts(before))
        num_rows, width = len(rows), len(self.header)
        if set(map(len, rows)) != {width} or lines.has_bad_bytes:
            good = []
            for number, row in enumerate(rows):
                if len(row) == width and not SURROGATES.search("".join(row)):
                    good.append(number)
                    continue
                if not self.skip_errors:
                    raise self._wrong_width(row, before[number] + 1)
                self.bad_rows.append(first_row + number)
                self.bad_lines.append(before[number] + 1)
            rows, before = [rows[n] for n in good], [before[n] for n in good]
        if rows:
            typing.observe(rows, before, self.path)
        return num_rows

    def error_of(self, text: bytes, line: int) -> SourceError | None:
        """Return the error for a row that cannot be read; None if it can."""
        try:
            rows = [row for row in self._parse(io.StringIO(text.decode("utf-8"), "\n")) if row]
        except UnicodeDecodeError as error:
            line += text.count(b"\n", 0, error.start)
            return not_utf8(text[error.start], self, line)
        except csv.Error as error:
            return _malformed(error, self.path, line)
        is_row = len(rows) == 1 and len(rows[0]) == len(self.header)
        return None if is_row else self._wrong_width(rows[0] if rows else [], line)

    def rows(self, text: bytes, num_rows: int) -> list[list[str]]:
        """Return the rows of a text."""
        try:
            lines = io.StringIO(text.decode("utf-8"), newline="\n")
            found = [row for row in self._parse(lines) if row]
        except (UnicodeDecodeError, csv.Error):
            raise file_changed(self.path) from None
        if len(found) != num_rows or not {len(self.header)}.issuperset(map(len, found)):
            raise file_changed(self.path)
        return found

    def _parse(self, lines: Iterable[str]) -> Reader:
        # A cell may be as large as a record; the module's limit is 128 KiB. It is set on each call,
        # as each worker is another process.
        csv.field_size_limit(_MAX_CELL_BYTES)
        return csv.reader(lines, delimiter=self._delimiter, strict=True)

    def _wrong_width(self, row: list[str], line: int) -> SourceError:
        few = "too few" if len(row) < len(self.header) else "too many"
        known = "the header has" if self._table.header else "the first row has"
        return SourceError(
            f"{len(row)} cells, {few}: {known} {len(self.header)} columns",
            path=self.path,
            line=line,
            hint='put a cell with a comma or a line end in "quotes"',
        )


def _read_line(file: IO[bytes]) -> bytes:
    """Return a line, or as much of it as a header may have."""
    return file.readline(_MAX_HEADER_BYTES)


def _is_json_object(line: bytes) -> bool:
    try:
        return line.lstrip().startswith(b"{") and type(json.loads(line)) is dict
    except (ValueError, RecursionError):
        return False


def _delimiter(header: bytes) -> str:
    """Return the most frequent delimiter of a header outside quotes; a comma if it has none."""
    bare = re.sub(rb'"[^"]*("|$)', b"", header)
    return max(",\t;|", key=lambda c: bare.count(c.encode()))


KIND: Final = "csv"

_MAX_OPEN_FILES: Final = MAX_OPEN_FILES


class CsvTable(RowTable[CsvFile]):
    """Rows of one or several CSV files.

    Args:
        paths: The files, in order.
        schema: Types fixed by the user, by column.
        table: How the files are read.
        skip_errors: Keep an invalid row as an item, which raises its error when it is loaded;
            otherwise raise it here.

    Raises:
        OptionError: A column of the options does not exist.
        SourceError: A file is missing, empty, or not a table with this header.
    """

    kind = KIND

    def __init__(
        self,
        paths: Sequence[str],
        schema: Mapping[str, FeatureType] | None = None,
        table: TableOptions | None = None,
        *,
        skip_errors: bool = False,
    ) -> None:
        super().__init__(_MAX_OPEN_FILES)
        table = table or TableOptions()
        typing: ColumnTyping | None = None
        for path in paths:
            file = CsvFile(path, self._spool, table, skip_errors=skip_errors)
            self._open_files.open(file)
            file.read_header()
            if typing is None:
                self._header = file.header
                wanted = set(table.pick(file.header, path))
                self._names = [name if name in wanted else None for name in file.header]
                typing = ColumnTyping(self._names, dict(schema or {}), path, table.na_values)
            elif file.header != self._header:
                raise SourceError(
                    f"the header {file.header} differs from {self._header} of {paths[0]}",
                    path=path,
                    line=1,
                )
            self._add(file, partial(file.scan, typing))
        assert typing is not None
        self._kinds = typing.finish()
        self._missing = {n: m for n, m in typing.missing.items() if self._kinds[n] != "bytes"}
        self.notes: Sequence[str] = typing.notes
        self.warnings = [*self._header_warnings(table), *typing.warnings]
        self.plan: Mapping[str, FeatureType] = {
            name: TYPES[kind] for name, kind in self._kinds.items()
        }

    def _header_warnings(self, table: TableOptions) -> list[DataWarning]:
        if not table.header or not all(map(is_number, self._header)):
            return []
        shown = ", ".join(self._header[:5]) + ", ..." * (len(self._header) > 5)
        return [
            DataWarning(
                "numeric-header",
                f"the first line of {os.path.basename(self._files[0].path)} is the header, but "
                f"every name is a number: {shown}",
                hint="if it is data, add --no-header, and --names a,b for the column names",
                path=self._files[0].path,
                line=1,
                value=shown,
            )
        ]

    def load(self, item: int) -> dict[str, Any]:
        """Return one row as int, float and str by column; UNSET for an empty cell."""
        features: dict[str, Any] = {}
        for name, column in self.load_columns([item]).items():
            if column.unset is not None and column.unset[0]:
                features[name] = UNSET
            else:
                value = column.values[0]
                features[name] = value.item() if isinstance(value, np.generic) else value
        return features

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows as columns; rows that are close to each other are read together."""
        rows: list[list[str]] = []
        for file, text, num_rows in self._texts(items):
            rows += file.rows(text, num_rows)
        cells = zip(*rows, strict=True) if rows else [()] * len(self._header)
        columns = {}
        for name, found in zip(self._names, cells, strict=True):
            if name is None:
                continue
            column: Sequence[str] = found
            if name in self._missing:
                missing = self._missing[name]
                column = ["" if cell in missing else cell for cell in column]
            try:
                columns[name] = CONVERT[self._kinds[name]](column)
            except (ValueError, OverflowError):
                raise file_changed(self._files[0].path) from None
        return columns
