"""``parquet``: tables in Parquet, Arrow and Feather files; a row is an item.

Types come from the schema, and so are known before the first row is read. A row group is decoded as
a whole, and the last ones are kept: a process needs the memory of one, or 128 MiB where they are
small. Several files of the same columns are one table. Out of their order, the rows of a larger
table cost a row group again and again: for a shuffled write small row groups are best.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.codec.example import UNSET
from shardwriter.codec.example_columns import Column
from shardwriter.errors import SourceError
from shardwriter.features.feature_types import FeatureType
from shardwriter.sources.arrow_columns import ColumnReader
from shardwriter.sources.arrow_file import ArrowFile, require_pyarrow
from shardwriter.sources.positions import OpenFiles, row_key

KIND: Final = "parquet"
ENDINGS: Final = (".parquet", ".arrow", ".feather")

_KEPT_BYTES: Final = 128 << 20  # of decoded row groups, in each process
_BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20
_AHEAD_ROWS: Final = 256  # for a map, which gets rows one by one
_AHEAD_STEP: Final = 16
_HIVE_FOLDER: Final = re.compile(r"[^=/]+=[^/]*")


class _Ahead(NamedTuple):
    """Rows that follow each other, from ``first`` on."""

    first: int
    table: Any
    columns: dict[str, Column]


class ParquetTable:
    """Rows of one or several files.

    Args:
        paths: The files, in order.
        schema: Types that the user fixed, by column.

    Raises:
        MissingExtra: pyarrow is not installed.
        SourceError: A file is missing, damaged, or has other columns than the first.
    """

    kind = KIND
    random_access = True
    stable = True

    def __init__(
        self, paths: Sequence[str], schema: Mapping[str, FeatureType] | None = None
    ) -> None:
        require_pyarrow(paths[0])
        self._open_files = OpenFiles()
        self._files: list[ArrowFile] = []
        self._first_rows: list[int] = []  # of each file
        self._pieces: list[tuple[int, int]] = []  # its file, and its number there
        self._first_of_piece: list[int] = []
        num_rows = num_bytes = 0
        for path in paths:
            file = ArrowFile(path)
            self._open_files.open(file)
            file.scan()
            self._check_columns(file)
            self._first_rows.append(num_rows)
            for number, piece in enumerate(file.pieces):
                self._pieces.append((len(self._files), number))
                self._first_of_piece.append(num_rows)
                num_rows += piece.num_rows
                num_bytes += piece.num_bytes
            self._files.append(file)
        self.num_items: int | None = num_rows
        self.block_items = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES * num_rows // (num_bytes or 1)))
        # Where all of it can not be kept, a worker that goes through the table for each of its
        # shards would decode it that often. Items that are dealt pass all shards in one go.
        self.travels = num_bytes <= _KEPT_BYTES
        self.notes: Sequence[str] = _hive_notes(paths)
        self._start_empty()
        self._untyped: SourceError | None = None
        self._read_schema(dict(schema or {}))

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

    def _check_columns(self, file: ArrowFile) -> None:
        names = file.schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or not names:
            what = "there are no columns" if twice is None else f"two columns are called {twice!r}"
            raise SourceError(what, path=file.path)
        mine, first = map(_columns, (file.schema, (self._files or [file])[0].schema))
        if mine != first:
            differs = [c for c in mine if c not in first] or [c for c in first if c not in mine]
            raise SourceError(
                f"its columns are not those of {self._files[0].path}: "
                f"{differs[0] if differs else 'their order'} differs",
                path=file.path,
                hint="make them alike, or write a dataset of each",
            )

    def _read_schema(self, fixed: dict[str, FeatureType]) -> None:
        schema = self._files[0].schema
        known = _hugging_face(schema.metadata)
        self._readers: dict[str, ColumnReader] = {}
        self._plan: dict[str, FeatureType] = {}
        for field in schema:
            name = field.name
            is_image = known.get(name, {}).get("_type") == "Image"
            try:
                reader = ColumnReader(
                    name, field.type, is_image=is_image, fixed=fixed.pop(name, None)
                )
                planned = self._shaped(name, reader) if reader.is_deep else reader.type
            except SourceError as error:
                error.path = error.path or self._files[0].path
                self._untyped = self._untyped or error
                continue
            self._readers[name], self._plan[name] = reader, planned
        if fixed:
            raise SourceError(
                f"the schema names {sorted(fixed)[0]!r}, and there is no such column",
                path=self._files[0].path,
                hint=f"the columns are {', '.join(schema.names)}",
            )
        words = {
            name: feature["names"]
            for name, feature in known.items()
            if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
        }
        ints = [n for n, planned in self._plan.items() if (planned.kind, planned.shape) == _SCALAR]
        self.vocabularies: Mapping[str, list[str]] = {n: words[n] for n in words if n in ints}
        self.label: str | None = min(self.vocabularies) if len(self.vocabularies) == 1 else None

    def _shaped(self, name: str, reader: ColumnReader) -> FeatureType:
        """Read a column of nested lists through, since only that tells its shape."""
        found: set[tuple[int, ...]] = set()
        for number, in_file in self._pieces:
            file = self._files[number]
            self._open_files.open(file)
            for chunk in file.piece(in_file, [name]).column(name).chunks:
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
        """Return ``row 7``, and the file where there are several."""
        return row_key(item, self._first_rows, lambda number: self._files[number].path)

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
        """Return rows in columns; each row group that they lie in is decoded once."""
        return self._columns(self._rows(items), self.plan)

    def _columns(self, table: Any, names: Iterable[str]) -> dict[str, Column]:
        return {name: self._column(table, name) for name in names}

    def _column(self, table: Any, name: str) -> Column:
        import pyarrow as pa

        chunks = table.column(name).combine_chunks()
        if isinstance(chunks, pa.ChunkedArray):
            chunks = chunks.chunk(0) if chunks.num_chunks else pa.array([], chunks.type)
        return self._readers[name].values(chunks, self._plan[name].shape)

    def _rows(self, items: Sequence[int]) -> Any:
        """Return rows in the order of the items."""
        import pyarrow as pa

        wanted = np.array(items, np.int64)
        pieces = np.searchsorted(self._first_of_piece, wanted, "right") - 1
        order = np.argsort(pieces, kind="stable")
        cuts = np.flatnonzero(np.diff(pieces[order])) + 1
        tables = []
        for places in np.split(order, cuts):
            if not len(places):
                return self._files[0].schema.empty_table()
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
        """Return the rows of a row group: one that is kept, or else decoded now."""
        table = self._kept.get(piece)
        if table is not None:
            self._kept.move_to_end(piece)
            return table
        number, in_file = self._pieces[piece]
        file = self._files[number]
        while self._kept and self._kept_bytes + file.pieces[in_file].num_bytes > _KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.nbytes
        self._open_files.open(file)
        table = file.piece(in_file)
        if not table.schema.equals(self._files[0].schema):
            table = table.cast(self._files[0].schema)  # lists of other writers, by their names
        self._kept[piece] = table
        self._kept_bytes += table.nbytes
        return table

    def digest(self) -> dict[str, Any]:
        """Return the files' sizes and the checksums of their ends, where the footers are."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}"] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}", f.mtime_ns] for f in self._files]}


_SCALAR: Final = ("int64", ())


def _columns(schema: Any) -> list[str]:
    """Return names and types, without what writers only call otherwise, or promise."""
    columns = [f"{field.name}: {field.type}" for field in schema]
    return [re.sub(r"\b(element|array|item): |, indices=\w+| not null", "", c) for c in columns]


def own_value(value: Any) -> Any:
    """Return a value of a column as a map may change it: its own, and plain where that is exact."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.name in _PLAIN:
        return value.item()
    return value


# Of the other numbers, only numpy's own have the type that the plan says.
_PLAIN: Final = {"bool", "int64", "float16", "float32", "float64"}


def _hugging_face(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """Return what ``datasets`` has noted of the columns: which are images, which are classes."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {name: value for name, value in features.items() if isinstance(value, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _hive_notes(paths: Sequence[str]) -> list[str]:
    folders = [part for path in paths for part in path.split("/")[:-1]]
    found = next(filter(_HIVE_FOLDER.fullmatch, folders), None)
    if found is None:
        return []
    return [f"folders are called as {found!r}: such keys are no features here"]
