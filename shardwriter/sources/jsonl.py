"""``jsonl``: files with one JSON object a line; a row is an item.

A first pass over the whole input finds where every row begins and what type every feature has, as
with ``csv``. A key that a row does not have is absent from its record; ``null`` is a feature
without a kind. Several files are one table; they need not have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from shardwriter.formats.example import UNSET
from shardwriter.formats.example_columns import Column
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.jsonl_file import JsonLinesFile
from shardwriter.sources.jsonl_values import RowTyping
from shardwriter.sources.positions import file_changed
from shardwriter.sources.table_options import TableOptions
from shardwriter.sources.tables import BLOCK_ROWS, RowTable

KIND: Final = "jsonl"

_SPARSE_ROWS: Final = 16
_ABSENT: Final = object()  # the row does not have the key


class JsonLines(RowTable[JsonLinesFile]):
    """Rows of one or several files of JSON lines.

    Args:
        paths: The files, in order.
        schema: Types that the user fixed, by feature.
        table: How they are read.
        skip_errors: Whether a bad line is an item, whose loading is an error; else that is raised
            here.

    Raises:
        OptionError: A key is named that no row has.
        SourceError: A file is missing, or a line is no JSON object; says which.
    """

    kind = KIND
    notes: Sequence[str] = ()

    def __init__(
        self,
        paths: Sequence[str],
        schema: Mapping[str, FeatureType] | None = None,
        table: TableOptions | None = None,
        *,
        skip_errors: bool = False,
    ) -> None:
        super().__init__()
        table = table or TableOptions()
        typing = RowTyping(schema or {}, table)
        for path in paths:
            file = JsonLinesFile(path, self._spool, table.encoding, skip_errors=skip_errors)
            self._open_files.open(file)
            self._add(file, partial(file.scan, typing))
        self._table = table
        # A block's columns have a cell for every row: of rows that share few keys it has few.
        density = typing.num_values / (typing.num_features * (self.num_items or 1) or 1)
        self.block_items = max(1, min(self.block_items, int(BLOCK_ROWS * density) + _SPARSE_ROWS))
        self._plan, self._convert, self._as_text, self._untyped = typing.finish()
        self.warnings = typing.warnings
        self._order = {name: number for number, name in enumerate(self._plan)}

    @property
    def plan(self) -> Mapping[str, FeatureType]:
        """The type of every feature.

        Raises:
            SourceError: A feature has none: then only a map can make records of these rows.
        """
        if self._untyped is not None:
            raise self._untyped
        return self._plan

    def load(self, item: int) -> dict[str, Any]:
        """Return one row: int, float, str and lists of them; UNSET for null."""
        row: dict[str, Any] = self._rows([item])[0]
        for name, value in row.items():
            if value is None or name in self._convert:
                row[name] = self._value(name, value)
        return row

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows in columns; rows that are near each other are read in one piece."""
        rows = self._rows(items)
        columns = {}
        plan = self.plan
        names: Iterable[str] = plan
        if rows and min(map(len, rows)) < len(plan):
            there = set().union(*rows)  # of many keys that are rare, a block has few
            names = sorted(there & plan.keys(), key=self._order.__getitem__) or plan
        for name in names:
            cells = [row.get(name, _ABSENT) for row in rows]
            unset = None
            if name in self._convert or None in cells or _ABSENT in cells:
                cells = [self._value(name, cell) for cell in cells]
                unset = np.array([cell is UNSET for cell in cells], bool)
            columns[name] = Column(cells, unset)
        return columns

    def _rows(self, items: Sequence[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for file, text, num_rows in self._texts(items):
            found = file.rows(text, num_rows)
            if self._as_text:
                literal = file.rows(text, num_rows, literal=True)
                for row, written in zip(found, literal, strict=True):
                    row.update((name, written[name]) for name in self._as_text if name in written)
            rows += self._table.picked(found) if self._table.picks else found
        return rows

    def _value(self, name: str, cell: Any) -> Any:
        """Turn what stands in a row into the feature's value; None where it has none."""
        if cell is _ABSENT:
            return None
        if cell is None:
            return UNSET
        convert = self._convert.get(name)
        try:
            return cell if convert is None else convert(cell)
        except (TypeError, ValueError, OverflowError):
            raise file_changed(self._files[0].path) from None
