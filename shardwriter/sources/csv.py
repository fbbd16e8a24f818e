"""``csv``: tables with a header line; a row is an item.

A first pass over the whole input finds where every row begins and what type every column has, so
that the type of a cell never depends on where the table was cut:

- ``int64`` where every cell that is not empty is a whole number in 64 bits,
- else ``float`` where every such cell is a number,
- else ``bytes`` (the text in UTF-8).

An empty cell is a feature without a kind, as TFX writes it. Several files of one header are one
table. A gzip file or a pipe is unpacked into a temporary file first, since rows are read by their
position.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sys
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.compression import open_stream
from shardwriter.crc32c import extend_crc32c
from shardwriter.errors import CorruptFile, SourceError
from shardwriter.example import UNSET
from shardwriter.example_columns import Column
from shardwriter.schema import FeatureType

KIND: Final = "csv"

_BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20
_READ_BYTES: Final = 1 << 20
_MAX_CELL_BYTES: Final = 1 << 30
_MAX_HEADER_BYTES: Final = 1 << 20
_MAX_OPEN_FILES: Final = 32
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_FLOAT32_MAX: Final = 2.0**128 - 2.0**103  # a number from here on rounds to infinity
_BOM: Final = b"\xef\xbb\xbf"

_TYPES: Final = {
    "int64": FeatureType("int64", "int64", ()),
    "float": FeatureType("float", "float32", ()),
    "bytes": FeatureType("bytes", "string", ()),
}
_UNSET_TYPE: Final = FeatureType()


class CsvTable:
    """Rows of one or several CSV files.

    Args:
        paths: The files, in order.
        schema: Types that the user fixed, by column.

    Raises:
        SourceError: A file is missing, empty, or no such table; says which line.
    """

    kind = KIND
    random_access = True
    stable = True
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None
    notes: Sequence[str] = ()

    def __init__(
        self, paths: Sequence[str], schema: Mapping[str, FeatureType] | None = None
    ) -> None:
        # A cell may be as large as a record; the module's own limit is 128 KiB.
        csv.field_size_limit(_MAX_CELL_BYTES)
        open_files = ExitStack()
        weakref.finalize(self, open_files.close)
        self._offsets = open_files.enter_context(_OffsetTable())
        spool = open_files.enter_context(_Spool())
        self._files: list[_File] = []
        self._open_files: list[_File] = []  # opened longest ago first
        open_files.callback(_close_all, self._open_files)
        self._first_rows: list[int] = []
        typing: _Typing | None = None
        num_rows = 0
        for path in paths:
            file = _File(path, spool)
            self._open(file)
            file.read_header()
            if typing is None:
                self._header = file.header
                typing = _Typing(file.header, dict(schema or {}), path)
            elif file.header != self._header:
                raise SourceError(
                    f"its header is {file.header}, that of {paths[0]} is {self._header}",
                    path=path,
                    line=1,
                )
            self._first_rows.append(num_rows)
            self._files.append(file)
            num_rows += file.scan(typing, self._offsets)
        assert typing is not None
        self._kinds = typing.finish()
        self.plan: Mapping[str, FeatureType] = {
            name: _TYPES[kind] if kind else _UNSET_TYPE
            for name, kind in zip(self._header, self._kinds, strict=True)
        }
        self.num_items: int | None = num_rows
        total_bytes = sum(file.size_bytes for file in self._files)
        self.block_items = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES * num_rows // (total_bytes or 1)))

    def items(self) -> Iterator[int]:
        """Yield the row numbers."""
        assert self.num_items is not None
        return iter(range(self.num_items))

    def item(self, item_index: int) -> int:
        """Return a row number."""
        return item_index

    def key(self, item: int) -> str:
        """Return ``row 7``, and the file where there are several."""
        if len(self._files) == 1:
            return f"row {item}"
        number = bisect_right(self._first_rows, item) - 1
        return f"{os.path.basename(self._files[number].path)} row {item - self._first_rows[number]}"

    def load(self, item: int) -> dict[str, Any]:
        """Return one row: int, float and str by column; UNSET for an empty cell."""
        features: dict[str, Any] = {}
        for name, column in self.load_columns([item]).items():
            if column.unset is not None and column.unset[0]:
                features[name] = UNSET
            else:
                value = column.values[0]
                features[name] = value.item() if isinstance(value, np.generic) else value
        return features

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows in columns; neighbouring rows are read in one piece."""
        rows: list[list[str]] = []
        for first, stop in _runs(items):
            while first < stop:
                number = bisect_right(self._first_rows, first) - 1
                end = stop
                if number + 1 < len(self._first_rows):
                    end = min(end, self._first_rows[number + 1])
                # A file has one offset more than rows, hence "+ number".
                begin_bytes, end_bytes = self._offsets.span(first + number, end + number)
                file = self._files[number]
                self._open(file)
                rows += file.rows(begin_bytes, end_bytes, end - first)
                first = end
        cells = zip(*rows, strict=True) if rows else [()] * len(self._header)
        columns = {}
        for name, kind, column in zip(self._header, self._kinds, cells, strict=True):
            try:
                columns[name] = _CONVERT[kind](column)
            except (ValueError, OverflowError):
                raise _changed(self._files[0].path) from None
        return columns

    def _open(self, file: _File) -> None:
        """Open a file, and close the one that was opened longest ago where there are many."""
        if file.is_open:
            return
        if len(self._open_files) >= _MAX_OPEN_FILES:
            self._open_files.pop(0).close()
        self._open_files.append(file)
        file.open()

    def digest(self) -> dict[str, Any]:
        """Return sizes and checksums of the files, in order."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}"] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}", f.mtime_ns] for f in self._files]}


class _OffsetTable:
    """Row offsets in a temporary file: 8 bytes a row, none of it in memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the table

    def append(self, offsets: NDArray[np.int64]) -> None:
        self._file.write(offsets.tobytes())

    def span(self, first: int, stop: int) -> tuple[int, int]:
        descriptor = self._file.fileno()
        begin = int.from_bytes(os.pread(descriptor, 8, 8 * first), sys.byteorder)
        end = int.from_bytes(os.pread(descriptor, 8, 8 * stop), sys.byteorder)
        return begin, end

    def __enter__(self) -> _OffsetTable:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


class _Spool:
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

    def __enter__(self) -> _Spool:
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


def _changed(path: str) -> SourceError:
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


class _File:
    """One CSV file, read by position: as it is, or as it was copied into the spool."""

    def __init__(self, path: str, spool: _Spool) -> None:
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
            raise _changed(self.path)

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

    def scan(self, typing: _Typing, offsets: _OffsetTable) -> int:
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
                    if len(rows) >= _BLOCK_ROWS:
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
        typing: _Typing,
        offsets: _OffsetTable,
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
            raise _changed(self.path) from None
        if len(found) != num_rows or any(len(row) != len(self.header) for row in found):
            raise _changed(self.path)
        return found

    def _wrong_width(self, row: list[str], line: int) -> None:
        few = "too few" if len(row) < len(self.header) else "too many"
        raise SourceError(
            f"{len(row)} cells, {few}: the header names {len(self.header)} columns",
            path=self.path,
            line=line,
            hint='a cell with a comma or a line end in it must stand in "quotes"',
        )


def _close_all(files: list[_File]) -> None:
    for file in files:
        file.close()


def _read_line(file: IO[bytes]) -> bytes:
    """Read a line, but no more than a header can have."""
    return file.readline(_MAX_HEADER_BYTES)


def _delimiter(header: bytes) -> str:
    """Take the delimiter that the header has most of outside of quotes; a comma without any."""
    bare = re.sub(rb'"[^"]*("|$)', b"", header)
    return max(",\t;|", key=lambda c: bare.count(c.encode()))


class _Typing:
    """The types of the columns so far, over all rows of all files."""

    def __init__(self, header: list[str], fixed: Mapping[str, FeatureType], path: str) -> None:
        unknown = sorted(set(fixed) - set(header))
        if unknown:
            raise SourceError(
                f"the schema names {unknown[0]!r}, and there is no such column",
                path=path,
                hint=f"the columns are {', '.join(header)}",
            )
        self._header = header
        self._fixed = {name: t.kind for name, t in fixed.items() if t.kind is not None}
        self._kinds: list[str] = [""] * len(header)  # "" while every cell was empty
        self._too_big: dict[tuple[int, str], SourceError] = {}  # (column, kind) -> the first

    def observe(self, rows: list[list[str]], before: list[int], path: str) -> None:
        for number, cells in enumerate(zip(*rows, strict=True)):
            kind = self._kinds[number]
            if kind != "bytes":
                self._kinds[number] = self._join(number, kind, cells, before, path)

    def _join(
        self, number: int, kind: str, cells: tuple[str, ...], before: list[int], path: str
    ) -> str:
        values = [cell for cell in cells if cell] if "" in cells else cells
        if not values:
            return kind
        if kind != "float":
            numbers = _parse_all(int, values)
            if numbers is not None:
                if max(numbers) > _INT64_MAX or min(numbers) < _INT64_MIN:
                    self._note(number, "int64", cells, before, path)
                    self._note(number, "float", cells, before, path)  # if it comes to that
                return "int64"
        numbers = _parse_all(float, values)
        if numbers is None:
            return "bytes"
        if (np.abs(numbers) >= _FLOAT32_MAX).any():  # max() would stop at a nan
            self._note(number, "float", cells, before, path)
        return "float"

    def _note(
        self, number: int, kind: str, cells: tuple[str, ...], before: list[int], path: str
    ) -> None:
        """Remember the first cell that its kind can not hold; an error if the column stays so."""
        name = self._header[number]
        for cell, line in zip(cells, before, strict=True):
            if cell and (number, kind) not in self._too_big and _is_too_big(cell, kind):
                self._too_big[number, kind] = SourceError(
                    f"{cell[:40]} is beyond {'int64' if kind == 'int64' else 'float32'}",
                    path=path,
                    line=line + 1,
                    feature=name,
                    hint=f"--schema {name}=string keeps the digits",
                )

    def finish(self) -> list[str]:
        """Return the kind of every column.

        Raises:
            SourceError: A column of whole numbers has one that 64 bits do not hold; or a type that
                the user fixed does not fit the cells.
        """
        for number, name in enumerate(self._header):
            found = self._kinds[number]
            if name not in self._fixed:
                self._refuse_too_big(number, found)
                continue
            wanted = self._fixed[name]
            fits = {"int64": ("", "int64"), "float": ("", "int64", "float")}
            if found not in fits.get(wanted, (found,)):
                raise SourceError(
                    f"the schema says {wanted}, and the cells of this column are {found}",
                    feature=name,
                )
            self._refuse_too_big(number, wanted)
            self._kinds[number] = wanted
        return self._kinds

    def _refuse_too_big(self, number: int, kind: str) -> None:
        if (number, kind) in self._too_big:
            raise self._too_big[number, kind]


def _is_too_big(cell: str, kind: str) -> bool:
    if kind == "int64":
        return not _INT64_MIN <= int(cell) <= _INT64_MAX
    # "inf" is a number as it stands; 1e400 is one that became infinite.
    return abs(float(cell)) >= _FLOAT32_MAX and any(c.isdigit() for c in cell)


def _parse_all(parse: Callable[[str], Any], cells: Sequence[str]) -> list[Any] | None:
    try:
        numbers = list(map(parse, cells))
    except ValueError:
        return None
    # Python reads 1_000 as a number; nobody else does.
    return None if "_" in "".join(cells) else numbers


def _convert_numbers(parse: Callable[[str], Any], dtype: Any) -> Callable[[Sequence[str]], Column]:
    def convert(cells: Sequence[str]) -> Column:
        if "" not in cells:
            return Column(np.fromiter(map(parse, cells), dtype, len(cells)))
        unset = _empty(cells)
        return Column(np.array([parse(cell or "0") for cell in cells], dtype), unset)

    return convert


def _convert_text(cells: Sequence[str]) -> Column:
    return Column(cells, _empty(cells) if "" in cells else None)


def _convert_empty(cells: Sequence[str]) -> Column:
    return Column(cells, np.ones(len(cells), bool))


def _empty(cells: Sequence[str]) -> NDArray[np.bool_]:
    return np.fromiter((not cell for cell in cells), bool, len(cells))


_CONVERT: Final[dict[str, Callable[[Sequence[str]], Column]]] = {
    "int64": _convert_numbers(int, np.int64),
    "float": _convert_numbers(float, np.float64),
    "bytes": _convert_text,
    "": _convert_empty,
}


def _runs(items: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut row numbers into runs of neighbours."""
    if not items:
        return
    if tuple(items) == tuple(range(items[0], items[0] + len(items))):
        yield items[0], items[0] + len(items)
        return
    start = 0
    for stop in range(1, len(items) + 1):
        if stop == len(items) or items[stop] != items[stop - 1] + 1:
            yield items[start], items[stop - 1] + 1
            start = stop
