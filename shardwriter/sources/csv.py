"""``csv``: tables with a header line; a row is an item.

A first pass over the whole input finds where every row begins and what type every column has, so
that the type of a cell never depends on where the table was cut: ``int64`` where every cell is a
whole number, else ``float`` where every cell is a number, else ``bytes`` (the text in UTF-8). An
empty cell is a feature without a kind, as TFX writes it. Several files of one header are one table.
"""

from __future__ import annotations

import csv
import os
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from shardwriter.errors import SourceError
from shardwriter.example import UNSET
from shardwriter.example_columns import Column
from shardwriter.schema import FeatureType
from shardwriter.sources.csv_cells import CONVERT, TYPES, ColumnTyping
from shardwriter.sources.csv_file import (
    BLOCK_ROWS,
    CsvFile,
    OffsetTable,
    Spool,
    close_all,
    file_changed,
)

KIND: Final = "csv"

_BLOCK_BYTES: Final = 4 << 20
_MAX_CELL_BYTES: Final = 1 << 30
_MAX_OPEN_FILES: Final = 32


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

    def __init__(
        self, paths: Sequence[str], schema: Mapping[str, FeatureType] | None = None
    ) -> None:
        # A cell may be as large as a record; the module's own limit is 128 KiB.
        csv.field_size_limit(_MAX_CELL_BYTES)
        open_files = ExitStack()
        weakref.finalize(self, open_files.close)
        self._offsets = open_files.enter_context(OffsetTable())
        spool = open_files.enter_context(Spool())
        self._files: list[CsvFile] = []
        self._open_files: list[CsvFile] = []  # opened longest ago first
        open_files.callback(close_all, self._open_files)
        self._first_rows: list[int] = []
        typing: ColumnTyping | None = None
        num_rows = 0
        for path in paths:
            file = CsvFile(path, spool)
            self._open(file)
            file.read_header()
            if typing is None:
                self._header = file.header
                typing = ColumnTyping(file.header, dict(schema or {}), path)
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
        self.notes: Sequence[str] = typing.notes
        self.plan: Mapping[str, FeatureType] = {
            name: TYPES[kind] for name, kind in zip(self._header, self._kinds, strict=True)
        }
        self.num_items: int | None = num_rows
        total_bytes = sum(file.size_bytes for file in self._files)
        self.block_items = max(1, min(BLOCK_ROWS, _BLOCK_BYTES * num_rows // (total_bytes or 1)))

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
                columns[name] = CONVERT[kind](column)
            except (ValueError, OverflowError):
                raise file_changed(self._files[0].path) from None
        return columns

    def _open(self, file: CsvFile) -> None:
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
