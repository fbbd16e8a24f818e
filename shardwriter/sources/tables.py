"""Tables of text (csv, jsonl): the options for reading them, and rows by number.

A first pass over the whole input finds the offset of every row. If errors are skipped, a row that
cannot be read stays an item, which raises its error when it is loaded.
"""

from __future__ import annotations

import codecs
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import numpy as np

from shardwriter.errors import DataWarning, OptionError, SourceError
from shardwriter.sources.positions import (
    BOM,
    MAX_OPEN_FILES,
    InputFile,
    OffsetTable,
    OpenFiles,
    Spool,
    file_changed,
    row_key,
)

NA_VALUES: Final = ("NA", "N/A", "n/a", "NULL", "null", "None")
"""Cells that are missing values in columns of numbers, beside the empty cell.

``nan`` and ``NaN`` are not among them: they are read as the float NaN.
"""

_TABLES: Final = ("csv", "jsonl", "parquet", "huggingface")
_OPTION_FORMATS: Final = {
    "header": ("--no-header", ("csv",)),
    "na": ("--na", ("csv",)),
    "encoding": ("--encoding", ("csv", "jsonl")),
    "columns": ("--columns", _TABLES),
    "drop_columns": ("--drop-columns", _TABLES),
}
"""The command-line option and the formats of each option of a table."""


@dataclass(frozen=True)
class TableOptions:
    """Options for reading the files of a table.

    Attributes:
        header: Whether the first line of a CSV file has the column names.
        names: The column names if ``header`` is False; None for ``column0``, ``column1``, ...
        na: Cells of a CSV file that are missing values in columns of numbers, beside the empty
            cell; None for :data:`NA_VALUES`.
        encoding: The encoding of CSV and JSON files: a codec of Python; None for UTF-8.
        columns: The columns to read; None for all.
        drop_columns: Columns to leave out.

    Raises:
        OptionError: A value is invalid, or two options contradict each other.
    """

    header: bool = True
    names: tuple[str, ...] | None = None
    na: tuple[str, ...] | None = None
    encoding: str | None = None
    columns: tuple[str, ...] | None = None
    drop_columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.header, bool):
            raise OptionError(f"header is {self.header!r}; expected True or False")
        for option in ("names", "na", "columns", "drop_columns"):
            values = getattr(self, option)
            if values is not None and not (
                isinstance(values, tuple) and all(isinstance(value, str) for value in values)
            ):
                raise OptionError(f"{option} is {values!r}; expected a tuple of str")
        if self.names is not None and self.header:
            raise OptionError(
                "column names are given, but the first line of the table has names, too",
                hint="add --no-header if the first line is data",
            )
        for option in ("names", "columns", "drop_columns"):
            values = getattr(self, option) or ()
            wrong = "" if "" in values else _repeated(values)
            if wrong is not None:
                what = f"{wrong!r} twice" if wrong else "an empty name"
                raise OptionError(f"{option} has {what}", hint="name each column once")
        if self.columns is not None and self.drop_columns is not None:
            raise OptionError(
                "--columns and --drop-columns can not be combined",
                hint="remove one of them",
            )
        if self.columns == ():
            raise OptionError("--columns is empty", hint="omit it to read all columns")
        if self.encoding is not None:
            found = _codec(self.encoding)
            object.__setattr__(self, "encoding", None if found == "utf-8" else found)

    @property
    def na_values(self) -> frozenset[str]:
        """The cells that are missing values in columns of numbers, beside the empty cell."""
        return frozenset(NA_VALUES if self.na is None else self.na) - {""}

    def check_format(self, format: str) -> None:
        """Raise for an option that a format does not have.

        Raises:
            OptionError: An option is for other formats.
        """
        for option, value in self.to_json().items():
            flag, formats = _OPTION_FORMATS.get(option, ("--names", ("csv",)))
            if format not in formats:
                raise OptionError(
                    f"{flag} is for {', '.join(formats)}, but the source is {format}",
                    hint=f"remove {flag}" if value else f"remove {flag} (header=False)",
                )

    def pick(self, names: Sequence[str], path: str | None = None) -> list[str]:
        """Return the columns to read, in the table's order.

        Args:
            names: All columns.
            path: The table, for error messages.

        Raises:
            OptionError: A column does not exist, or none is left.
        """
        requested = self.columns or self.drop_columns
        if not requested:
            return list(names)
        existing = set(names)
        missing = [name for name in requested if name not in existing]
        if missing:
            flag = "--columns" if self.columns else "--drop-columns"
            from difflib import get_close_matches

            close = get_close_matches(missing[0], names, n=3)
            raise OptionError(
                f"{flag}: there is no column {missing[0]!r}",
                path=path,
                hint=f"did you mean {' or '.join(close)}?"
                if close
                else f"the columns are {', '.join(names[:20])}{', ...' * (len(names) > 20)}",
            )
        wanted = set(requested)
        found = [name for name in names if (name in wanted) == (self.columns is not None)]
        if not found:
            raise OptionError("--drop-columns leaves no column", path=path)
        return found

    @property
    def picks(self) -> bool:
        """Whether some columns are left out."""
        return bool(self.columns or self.drop_columns)

    def pick_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with only the columns to read."""
        requested, keeps = set(self.columns or self.drop_columns or ()), self.columns is not None
        return [{n: row[n] for n in row if (n in requested) == keeps} for row in rows]

    def to_json(self) -> dict[str, Any]:
        """Return the options that are not defaults. They affect records and are in the job hash."""
        values_by_option: dict[str, Any] = {} if self.header else {"header": False}
        for option in ("names", "na", "columns", "drop_columns"):
            values = getattr(self, option)
            if values is not None:
                values_by_option[option] = list(values)
        if self.encoding is not None:
            values_by_option["encoding"] = self.encoding
        return values_by_option


def table_options(
    *,
    header: bool = True,
    names: tuple[str, ...] | None = None,
    na: Sequence[str] | str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | str | None = None,
    drop_columns: Sequence[str] | str | None = None,
) -> TableOptions | None:
    """Return the options of a table; None if all are defaults.

    Args:
        header: As of :class:`TableOptions`.
        names: Likewise; ignored if there is a header.
        na: Likewise; a list, or text with commas.
        encoding: Likewise.
        columns: Likewise; a list, or text with commas.
        drop_columns: Likewise.

    Raises:
        OptionError: A value is invalid, or two options contradict each other.
    """
    found = TableOptions(
        header,
        None if header else names,
        _texts(na),
        encoding,
        _texts(columns),
        _texts(drop_columns),
    )
    return found if found.to_json() else None


def _texts(values: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if values is None:
        return None
    return tuple(values.split(",") if isinstance(values, str) else values)


def _repeated(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _codec(name: object) -> str:
    """Return Python's name of a text encoding."""
    try:
        found = codecs.lookup(name) if isinstance(name, str) else None
    except (LookupError, ValueError):  # ValueError: the name has a NUL
        found = None
    if found is None or not found._is_text_encoding:
        raise OptionError(
            f"--encoding {name!r}: unknown encoding",
            hint="such as --encoding latin-1, cp1252, utf-16, shift_jis or gb18030",
        )
    return found.name


BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20
_DENSE_BYTES: Final = 1 << 14  # of the file, for each row to read
_MAX_STEP_ROWS: Final = 256


class RowFile(InputFile):
    """One file of a table.

    Args:
        path: The file.
        spool: Receives a copy of the file, if it cannot be read by position.
        encoding: The encoding of its text; None for UTF-8.
        skip_errors: Note invalid rows; otherwise the first one ends the scan.

    Attributes:
        size_bytes: The size of its text, after the scan.
        crc32c: The CRC-32C of its text.
        bad_rows: Numbers of the invalid rows, ascending.
        bad_lines: The lines in which these begin, from 1.
    """

    def __init__(
        self, path: str, spool: Spool, encoding: str | None = None, *, skip_errors: bool = False
    ) -> None:
        super().__init__(path, spool, encoding)
        self.skip_errors = skip_errors
        self.size_bytes = 0
        self.crc32c = 0
        self.bad_rows = array("q")
        self.bad_lines = array("q")

    def error_of(self, text: bytes, line: int) -> SourceError | None:
        """Return the error for a row that cannot be read; None if it can.

        Args:
            text: The text of the row.
            line: The line in which it begins.
        """
        raise NotImplementedError


F = TypeVar("F", bound=RowFile)


class RowTable(Generic[F]):
    """Rows of one or several files, by number.

    Args:
        max_open_files: The limit of open files.
    """

    random_access = True
    sendable = True
    resumable = True
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None
    warnings: Sequence[DataWarning] = ()

    def __init__(self, max_open_files: int = MAX_OPEN_FILES) -> None:
        self._offsets = OffsetTable()
        self._spool = Spool()
        self._open_files = OpenFiles(max_open_files)
        self._files: list[F] = []
        self._first_rows: list[int] = []
        self.num_items: int | None = 0
        self.block_items = BLOCK_ROWS

    def _add(self, file: F, scan: Callable[[OffsetTable], int]) -> None:
        """Add the rows of an open file, found by ``scan``."""
        assert self.num_items is not None
        self._first_rows.append(self.num_items)
        self._files.append(file)
        self.num_items += scan(self._offsets)
        total_bytes = sum(f.size_bytes for f in self._files)
        max_rows = _BLOCK_BYTES * self.num_items // (total_bytes or 1)
        self.block_items = max(1, min(BLOCK_ROWS, max_rows))

    def _texts(self, items: Sequence[int]) -> Iterator[tuple[F, bytes, int]]:
        """Yield the text of rows, in order, as (file, text, number of rows).

        Raises:
            SourceError: A row cannot be read.
        """
        if any(file.bad_rows for file in self._files):
            self._check_rows(items)
        for first, stop in _ranges(items):
            rows = items[first:stop]
            begin = 0
            while begin < len(rows):
                number = bisect_right(self._first_rows, rows[begin]) - 1
                end = len(rows)
                if number + 1 < len(self._first_rows):
                    end = bisect_left(rows, self._first_rows[number + 1], begin)
                file = self._files[number]
                self._open_files.open(file)
                # The offsets of a file have one more entry than rows, hence "+ number".
                yield file, self._text(file, number, rows[begin:end]), end - begin
                begin = end

    def _check_rows(self, items: Sequence[int]) -> None:
        """Raise the error of the first invalid row."""
        for item in items:
            number = bisect_right(self._first_rows, item) - 1
            file = self._files[number]
            row = item - self._first_rows[number]
            place = bisect_left(file.bad_rows, row)
            if place < len(file.bad_rows) and file.bad_rows[place] == row:
                self._open_files.open(file)
                text = self._text(file, number, [item])
                raise file.error_of(text, file.bad_lines[place]) or file_changed(file.path)

    def _text(self, file: F, number: int, rows: Sequence[int]) -> bytes:
        """Return the text of rows of one file, in ascending order."""
        first, last = rows[0] + number, rows[-1] + number
        if last - first == len(rows) - 1:
            return _read_text(file, *self._offsets.span(first, last + 1))
        offsets = self._offsets.entries(first, last + 2)
        places = np.array(rows) + (number - first)
        begins, ends = offsets[places].tolist(), offsets[places + 1].tolist()
        if ends[-1] - begins[0] > _DENSE_BYTES * len(rows):
            return b"".join(map(partial(_read_text, file), begins, ends))
        # One read of the whole range costs less than a read for each row.
        start = begins[0]
        text = file.read(start, ends[-1])
        text = b"".join([text[b - start : e - start] for b, e in zip(begins, ends, strict=True)])
        return text.removeprefix(BOM) if start == 0 else text

    def items(self) -> Iterator[int]:
        """Yield the row numbers."""
        assert self.num_items is not None
        return iter(range(self.num_items))

    def item(self, item_index: int) -> int:
        """Return a row number."""
        return item_index

    def key(self, item: int) -> str:
        """Return ``row 7``, with the file if there are several."""
        return row_key(item, self._first_rows, lambda number: self._files[number].path)

    def digest(self) -> dict[str, Any]:
        """Return the sizes and checksums of the files, in order."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}"] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the digest with the modification times of the files."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}", f.mtime_ns] for f in self._files]}


def _read_text(file: InputFile, begin: int, end: int) -> bytes:
    """Return the bytes [begin, end) of a file, without its byte order mark."""
    text = file.read(begin, end)
    return text.removeprefix(BOM) if begin == 0 else text


def _ranges(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of ascending row numbers that are close enough to be read together."""
    steps = np.diff(np.array(rows, np.int64))
    cuts = np.flatnonzero((steps <= 0) | (steps > _MAX_STEP_ROWS)) + 1
    start = 0
    for stop in [*cuts.tolist(), len(rows)] if len(rows) else []:
        yield start, stop
        start = stop
