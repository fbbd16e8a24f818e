"""Rows of Arrow tables: types from the schema, values a row at a time or in columns.

A table comes in pieces (row groups, batches), which are decoded as a whole; the last ones are kept.
Where the pieces come from, subclasses say.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import SourceError
from shardwriter.formats import json_shape
from shardwriter.formats.example import UNSET
from shardwriter.formats.example_columns import Column
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.arrow_columns import ColumnReader, ReadFile, no_place
from shardwriter.sources.arrow_file import Piece
from shardwriter.sources.arrow_types import leaf_of, storable
from shardwriter.sources.table_options import TableOptions

KEPT_BYTES: Final = 128 << 20  # of decoded pieces, in each process
_BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20
_AHEAD_ROWS: Final = 256  # for a map, which gets rows one by one
_AHEAD_STEP: Final = 16
_SCALAR: Final = ("int64", ())


class _Ahead(NamedTuple):
    """Rows that follow each other, from ``first`` on."""

    first: int
    table: Any
    columns: dict[str, Column]


class ArrowRows:
    """The rows of a table that comes in pieces.

    Args:
        schema: Of the table, a ``pyarrow.Schema``.
        pieces: What it consists of, in order.
        known: What ``datasets`` says of the columns, by name.
        fixed: Types that the user fixed, by column.
        table: Which columns are read.
        path: Of the file that errors of the schema are about.
        read_file: Reads the files whose names stand in place of their bytes.

    Raises:
        SourceError: A fixed type is of no column, or can not be had.
    """

    random_access = True
    stable = True

    def __init__(
        self,
        schema: Any,
        pieces: Sequence[Piece],
        known: Mapping[str, Any],
        fixed: Mapping[str, FeatureType],
        path: str | None = None,
        read_file: ReadFile | None = None,
        table: TableOptions | None = None,
    ) -> None:
        self._schema = picked_schema(schema, table, path)
        self._piece_bytes = [piece.num_bytes for piece in pieces]
        self._first_of_piece: list[int] = []
        self._num_rows = 0
        for piece in pieces:
            self._first_of_piece.append(self._num_rows)
            self._num_rows += piece.num_rows
        num_bytes = sum(self._piece_bytes)
        self.num_items: int | None = self._num_rows
        self.block_items = max(
            1, min(_BLOCK_ROWS, _BLOCK_BYTES * self._num_rows // (num_bytes or 1))
        )
        self.is_kept = num_bytes <= KEPT_BYTES  # all of it, once it was decoded
        self._start_empty()
        self._untyped: SourceError | None = None
        self._read_schema(dict(fixed), known, path, read_file)

    def _piece(self, number: int, columns: list[str] | None = None) -> Any:
        """Return the rows of one piece as a ``pyarrow.Table``; of some columns, or of all."""
        raise NotImplementedError

    def _start_empty(self) -> None:
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._kept_bytes = 0
        self._ahead: _Ahead | None = None
        self._last_item = -1
        self._lock = threading.Lock()  # some of Beam's runners have several threads in a worker

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_kept", "_kept_bytes", "_ahead", "_last_item", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_empty()

    def _read_schema(
        self,
        fixed: dict[str, FeatureType],
        known: Mapping[str, Any],
        path: str | None,
        read_file: ReadFile | None,
    ) -> None:
        self._readers: dict[str, ColumnReader] = {}
        self._plan: dict[str, FeatureType] = {}
        wrong: list[SourceError] = []
        for field in self._schema:
            name = field.name
            is_image = known.get(name, {}).get("_type") == "Image"
            try:
                reader = ColumnReader(
                    name,
                    field.type,
                    is_image=is_image,
                    fixed=fixed.pop(name, None),
                    read_file=read_file,
                )
                planned = self._shaped(name, reader) if reader.is_deep else reader.type
            except SourceError as error:
                error.path = error.path or path
                wrong.append(error)
                continue
            self._readers[name], self._plan[name] = reader, planned
        self._untyped = self._all_of(wrong, path)
        if fixed:
            raise SourceError(
                f"the schema names {sorted(fixed)[0]!r}, and there is no such column",
                path=path,
                hint=f"the columns are {', '.join(self._schema.names)}",
            )
        words = {
            name: feature["names"]
            for name, feature in known.items()
            if feature.get("_type") == "ClassLabel" and _are_names(feature.get("names"))
        }
        ints = [n for n, planned in self._plan.items() if (planned.kind, planned.shape) == _SCALAR]
        self.vocabularies: Mapping[str, list[str]] = {n: words[n] for n in words if n in ints}
        self.label: str | None = min(self.vocabularies) if len(self.vocabularies) == 1 else None

    def _all_of(self, wrong: Sequence[SourceError], path: str | None) -> SourceError | None:
        """Return one error for all columns that can not be features; None where all can."""
        if len(wrong) < 2:
            return wrong[0] if wrong else None
        told: list[str] = []
        stored: list[str] = []
        left: list[str] = []
        for error in wrong:
            name = error.feature or ""
            arrow_type = self._schema.field(name).type
            why = "" if error.message == no_place(arrow_type) else f": {error.message}"
            told.append(f"{name!r} ({arrow_type}){why}")
            types = storable(leaf_of(arrow_type))
            (stored if types else left).append(f"{name}={types[0]}" if types else name)
        ways = [
            f"--schema {','.join(stored)} stores {'some' if left else 'them'}" if stored else "",
            f"--drop-columns {','.join(left)} leaves {'the others' if stored else 'them'} out"
            if left
            else "",
            "a map can make features of them (--map)",
        ]
        return SourceError(
            f"{len(wrong):,} columns have no place in features: {'; '.join(told)}",
            path=path,
            hint="; ".join(filter(None, ways)),
        )

    def _shaped(self, name: str, reader: ColumnReader) -> FeatureType:
        """Read a column of nested lists through, since only that tells its shape."""
        found: set[tuple[int, ...]] = set()
        for number in range(len(self._first_of_piece)):
            for chunk in self._piece(number, [name]).column(name).chunks:
                found |= reader.dims(chunk)
        return reader.shaped(found)

    @property
    def plan(self) -> Mapping[str, FeatureType]:
        """The type of every feature.

        Raises:
            SourceError: A column has none: then only a map can make records of these rows.
        """
        if self._untyped is not None:
            raise self._untyped
        return self._plan

    def items(self) -> Iterator[int]:
        """Yield the row numbers."""
        assert self.num_items is not None
        return iter(range(self.num_items))

    def item(self, item_index: int) -> int:
        """Return a row number."""
        return item_index

    def key(self, item: int) -> str:
        """Return ``row 7``."""
        return f"row {item}"

    def load(self, item: int) -> dict[str, Any]:
        """Return one row: int, float, str, bytes and arrays; UNSET for a null.

        A column that has no place in a feature is what pyarrow makes of it: a map may want it.
        """
        ahead = self._read_ahead(item)
        if ahead is None:
            table = self._rows([item])
            ahead = _Ahead(item, table, self._columns(table, self._readers))
        row = item - ahead.first
        features: dict[str, Any] = {}
        for name in ahead.table.column_names:
            if name not in self._readers:
                features[name] = ahead.table.column(name)[row].as_py()
                continue
            values, unset = ahead.columns[name]
            if unset is not None and unset[row]:
                features[name] = UNSET
            else:
                features[name] = own_value(values[row])
        return features

    def _read_ahead(self, item: int) -> _Ahead | None:
        """Return rows with this one among them, where the next ones are likely to be asked for."""
        ahead, last, self._last_item = self._ahead, self._last_item, item
        if ahead is not None and 0 <= item - ahead.first < ahead.table.num_rows:
            return ahead
        assert self.num_items is not None
        stop = min(item + min(self.block_items, _AHEAD_ROWS), self.num_items)
        if not 0 < item - last <= _AHEAD_STEP or stop - item < 2:
            return None
        try:
            table = self._rows(range(item, stop))
            ahead = self._ahead = _Ahead(item, table, self._columns(table, self._readers))
        except SourceError:
            return None  # the row that it is about says so when it is its turn
        return ahead

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows in columns; each piece that they lie in is decoded once."""
        return self._columns(self._rows(items), self.plan)

    def _columns(self, table: Any, names: Iterable[str]) -> dict[str, Column]:
        return {name: self._column(table, name) for name in names}

    def _column(self, table: Any, name: str) -> Column:
        import pyarrow as pa

        chunks = table.column(name).combine_chunks()
        if isinstance(chunks, pa.ChunkedArray):
            chunks = chunks.chunk(0) if chunks.num_chunks else pa.array([], chunks.type)
        return self._readers[name].values(chunks, self._plan[name].shape)

    def plain_rows(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows as pyarrow has them in Python: what a digest or a look is made of."""
        rows: list[dict[str, Any]] = self._rows(items).to_pylist()
        return rows

    def _row_numbers(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the rows that these items are."""
        return items

    def _rows(self, items: Sequence[int]) -> Any:
        """Return rows in the order of the items."""
        import pyarrow as pa

        wanted = self._row_numbers(np.array(items, np.int64))
        pieces = np.searchsorted(self._first_of_piece, wanted, "right") - 1
        order = np.argsort(pieces, kind="stable")
        cuts = np.flatnonzero(np.diff(pieces[order])) + 1
        tables = []
        for places in np.split(order, cuts):
            if not len(places):
                return self._schema.empty_table()
            piece = int(pieces[places[0]])
            rows = wanted[places] - self._first_of_piece[piece]
            with self._lock:
                table = self._decoded(piece)
            if rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
                tables.append(table.slice(rows[0], len(rows)))
            else:
                tables.append(table.take(pa.array(rows)))
        if len(tables) == 1:
            return tables[0]
        together = pa.concat_tables(tables)
        if (np.diff(order) == 1).all():
            return together
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return together.take(pa.array(back))

    def _decoded(self, piece: int) -> Any:
        """Return the rows of a piece: one that is kept, or else decoded now."""
        table = self._kept.get(piece)
        if table is not None:
            self._kept.move_to_end(piece)
            return table
        while self._kept and self._kept_bytes + self._piece_bytes[piece] > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.nbytes
        table = self._piece(piece)
        self._kept[piece] = table
        self._kept_bytes += table.nbytes
        return table


def picked_schema(schema: Any, table: TableOptions | None, path: str | None) -> Any:
    """Return a ``pyarrow.Schema`` with the columns that are read.

    Raises:
        OptionError: There is no such column, or none is left.
    """
    if table is None or not table.picks:
        return schema
    import pyarrow as pa

    names = table.pick(schema.names, path)
    return pa.schema([schema.field(name) for name in names], schema.metadata)


def own_value(value: Any) -> Any:
    """Return a value of a column as a map may change it: its own, and plain where that is exact."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.name in _PLAIN:
        return value.item()
    return value


# Of the other numbers, only numpy's own have the type that the plan says.
_PLAIN: Final = {"bool", "int64", "float16", "float32", "float64"}


def known_columns(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """Return what ``datasets`` has noted of the columns: which are images, which are classes."""
    try:
        found = json_shape.read((metadata or {})[b"huggingface"], _Metadata)
    except (KeyError, ValueError):
        return {}
    features = found["info"]["features"]
    return {name: value for name, value in features.items() if isinstance(value, dict)}


class _Info(TypedDict):
    features: dict[str, Any]


class _Metadata(TypedDict):
    info: _Info


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
