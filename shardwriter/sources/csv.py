"""``csv``: tables with a header line, or without; a row is an item.

A first pass over the whole input finds where every row begins and what type every column has, so
that the type of a cell never depends on where the table was cut: ``int64`` where every cell is a
whole number, else ``float`` where every cell is a number, else ``bytes`` (the text in UTF-8). An
empty cell is a feature without a kind, as TFX writes it; so is ``NA`` among numbers. Several files
of one header are one table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from shardwriter.errors import DataWarning, SourceError
from shardwriter.formats.example import UNSET
from shardwriter.formats.example_columns import Column
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.cells import CONVERT, TYPES, ColumnTyping, is_number
from shardwriter.sources.csv_file import CsvFile
from shardwriter.sources.positions import MAX_OPEN_FILES, file_changed
from shardwriter.sources.table_options import TableOptions
from shardwriter.sources.tables import RowTable

KIND: Final = "csv"

_MAX_OPEN_FILES: Final = MAX_OPEN_FILES


class CsvTable(RowTable[CsvFile]):
    """Rows of one or several CSV files.

    Args:
        paths: The files, in order.
        schema: Types that the user fixed, by column.
        table: How they are read.
        skip_errors: Whether a bad row is an item, whose loading is an error; else that is raised
            here.

    Raises:
        OptionError: A column is named that is not there.
        SourceError: A file is missing, empty, or no such table; says which line.
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
                    f"its header is {file.header}, that of {paths[0]} is {self._header}",
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
                f"the first line of {os.path.basename(self._files[0].path)} names the columns, and "
                f"every name is a number: {shown}",
                hint="--no-header says that it is data; --names a,b then names the columns",
                path=self._files[0].path,
                line=1,
                value=shown,
            )
        ]

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
        """Return rows in columns; rows that are near each other are read in one piece."""
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
