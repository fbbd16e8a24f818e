"""``csv``: tables with a header line; a row is an item.

A first pass over the whole input finds where every row begins and what type every column has, so
that the type of a cell never depends on where the table was cut: ``int64`` where every cell is a
whole number, else ``float`` where every cell is a number, else ``bytes`` (the text in UTF-8). An
empty cell is a feature without a kind, as TFX writes it. Several files of one header are one table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from shardwriter.codec.example import UNSET
from shardwriter.codec.example_columns import Column
from shardwriter.errors import SourceError
from shardwriter.features.feature_types import FeatureType
from shardwriter.sources.csv_cells import CONVERT, TYPES, ColumnTyping
from shardwriter.sources.csv_file import CsvFile
from shardwriter.sources.positions import MAX_OPEN_FILES, file_changed
from shardwriter.sources.row_table import RowTable

KIND: Final = "csv"

_MAX_OPEN_FILES: Final = MAX_OPEN_FILES


class CsvTable(RowTable[CsvFile]):
    """Rows of one or several CSV files.

    Args:
        paths: The files, in order.
        schema: Types that the user fixed, by column.

    Raises:
        SourceError: A file is missing, empty, or no such table; says which line.
    """

    kind = KIND

    def __init__(
        self, paths: Sequence[str], schema: Mapping[str, FeatureType] | None = None
    ) -> None:
        super().__init__(_MAX_OPEN_FILES)
        typing: ColumnTyping | None = None
        for path in paths:
            file = CsvFile(path, self._spool)
            self._open_files.open(file)
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
            self._add(file, partial(file.scan, typing))
        assert typing is not None
        self._kinds = typing.finish()
        self.notes: Sequence[str] = typing.notes
        self.plan: Mapping[str, FeatureType] = {
            name: TYPES[kind] for name, kind in zip(self._header, self._kinds, strict=True)
        }

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
        for name, kind, column in zip(self._header, self._kinds, cells, strict=True):
            try:
                columns[name] = CONVERT[kind](column)
            except (ValueError, OverflowError):
                raise file_changed(self._files[0].path) from None
        return columns
