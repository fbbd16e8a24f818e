"""Rows of Arrow tables: types from the schema, values a row at a time or in columns.

A table comes in pieces (row groups, batches), which are decoded as a whole; the last ones are kept.
Where the pieces come from, subclasses say.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import MissingExtra, SourceError
from shardwriter.formats import UNSET, Column, Kind, extend_crc32c, json_shape
from shardwriter.schema import (
    FeatureType,
    Shape,
    float_dtype,
    type_text,
)
from shardwriter.sources.cells import EXACT_WHOLE
from shardwriter.sources.positions import InputFile
from shardwriter.sources.tables import TableOptions

# Types of Arrow columns, and the types of features that they become by the schema.
#
# ========================  ======================================================================
# bool, integers            int64 half, float, double       float string, binary            bytes
# dictionary                what its values are lists of these            a list; nested lists with
# a shape, if they are rectangular struct<bytes, path>       the bytes: an image or sound as Hugging
# Face ``datasets`` keeps it fixed shape tensor        an array of its shape; one that permutes its
# dimensions is an error null, wherever            a feature without a kind anything else
# an error that names the column, unless a map makes a feature of it
# ========================  ======================================================================
#
# Times and decimals are stored as what ``--schema`` says of them: ``int64:ms`` (or another unit),
# or ``string``, which is what Arrow writes: ``2024-01-02 03:04:05.123456``, ``2024-01-02``,
# ``1.10``. A cast that would lose something is an error.


def tensor_shape(arrow_type: Any) -> tuple[int, ...] | None:
    """Return the shape of a column of tensors of one shape; None of any other column.

    Raises:
        ValueError: Its dimensions do not lie in the order of the shape.
    """
    import pyarrow as pa

    if not isinstance(arrow_type, pa.FixedShapeTensorType):
        return None
    shape = tuple(arrow_type.shape)
    if arrow_type.permutation not in (None, list(range(len(shape)))):
        raise ValueError(f"tensors whose dimensions are permuted: {arrow_type.permutation}")
    return shape


def plain_type(arrow_type: Any) -> Any:
    """Return what a type is stored as, and of a dictionary the type of its values."""
    import pyarrow as pa

    while True:
        if isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        elif pa.types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        else:
            return arrow_type


def is_list(arrow_type: Any) -> bool:
    """Tell whether a plain type is lists."""
    import pyarrow.types as pt

    return any(is_it(arrow_type) for is_it in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))


def leaf_of(arrow_type: Any) -> Any:
    """Return the type of what lies in a column's lists, at any depth; else of its values."""
    leaf = plain_type(arrow_type)
    while is_list(leaf):
        leaf = plain_type(leaf.value_type)
    return leaf


def plain(column: Any) -> Any:
    """Return a column as it is stored, and of a dictionary its values."""
    import pyarrow as pa

    while True:
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        elif pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        else:
            return column


def leaf_type(leaf: Any) -> FeatureType | None:
    """Return the type of a feature of single values; None where there is none."""
    import pyarrow.types as pt

    if pt.is_null(leaf):
        return FeatureType()
    if pt.is_boolean(leaf) or pt.is_integer(leaf):
        return FeatureType("int64", dtype_of(leaf).name)
    if pt.is_floating(leaf):
        return FeatureType("float", float_dtype(dtype_of(leaf).name))
    name = re.sub(r"\[\d+\]|large_|_view", "", str(leaf))
    if name == "string":
        return FeatureType("bytes", "string")
    if name in ("binary", "fixed_size_binary"):
        return FeatureType("bytes", "bytes")
    return None


def storable(arrow_type: Any) -> list[str]:
    """Return the types for ``--schema`` that a column can be stored as that has none by itself."""
    import pyarrow.types as pt

    if pt.is_date(arrow_type):
        return ["int64:days", "string"]
    if pt.is_timestamp(arrow_type) or pt.is_time(arrow_type):
        return [f"int64:{arrow_type.unit}", "string"]
    if pt.is_duration(arrow_type):
        return [f"int64:{arrow_type.unit}"]
    return ["string", "float"] if pt.is_decimal(arrow_type) else []


def time_casts(arrow_type: Any, unit: str) -> list[Any]:
    """Return the types that a column of times goes through to become integers of a unit.

    Raises:
        ValueError: It is no column of times that have such a unit.
    """
    import pyarrow as pa

    pt = pa.types
    casts: list[Any] = []
    if pt.is_date(arrow_type) and unit == "days":
        casts = [pa.date32(), pa.int32()]
    elif unit == "days":
        pass
    elif pt.is_timestamp(arrow_type) or pt.is_date(arrow_type):
        casts = [pa.timestamp(unit, getattr(arrow_type, "tz", None))]
    elif pt.is_duration(arrow_type):
        casts = [pa.duration(unit)]
    elif pt.is_time(arrow_type):
        short = unit in ("s", "ms")
        casts = [pa.time32(unit), pa.int32()] if short else [pa.time64(unit)]
    if not casts:
        raise ValueError(f"a column of {arrow_type} can not be stored in {unit}")
    return [*casts, pa.int64()]


def dtype_of(arrow_type: Any) -> np.dtype[Any]:
    """Return numpy's type of a type of numbers."""
    # Arrow's own function for this wants pandas.
    name = str(arrow_type)
    return np.dtype(
        {"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name)
    )


# Columns of Arrow tables: how values become features.
#
# Which type a feature has, :mod:`shardwriter.sources.arrow` says by the schema.

ReadFile: TypeAlias = "Callable[[str], bytes]"
"""Returns the content of a file whose name stands in place of its bytes."""

_FILE_FIELDS: Final = {"bytes", "path"}


class _Nested(NamedTuple):
    """Lists in lists, flat: row i has the leaves [bounds[i], bounds[i + 1])."""

    leaves: Any
    bounds: NDArray[np.int64]
    dims: list[NDArray[np.int64]]  # by nesting, of each row; -1: there is nothing to tell it by


class ColumnReader:
    """What makes values of one feature of the chunks of one column.

    Args:
        name: Of the column.
        arrow_type: Its type in the schema.
        is_image: Whether the file's metadata calls it images.
        fixed: The type that the user fixed.
        read_file: Reads files of which only the name is there; None: such a file is an error.

    Attributes:
        type: The feature's type. Where ``is_deep``, the shape is still to be found: :meth:`shaped`.
        is_deep: Whether lists of any lengths are nested.

    Raises:
        SourceError: There is no feature of such a type.
    """

    def __init__(
        self,
        name: str,
        arrow_type: Any,
        *,
        is_image: bool,
        fixed: FeatureType | None,
        read_file: ReadFile | None = None,
    ) -> None:
        import pyarrow.types as pt

        self._name = name
        self._arrow_type = arrow_type
        self._read_file = read_file
        shape: list[int | None] = []
        leaf = plain_type(arrow_type)
        while is_list(leaf):
            shape.append(leaf.list_size if pt.is_fixed_size_list(leaf) else None)
            leaf = plain_type(leaf.value_type)
        self._of_file = pt.is_struct(leaf) and {field.name for field in leaf} == _FILE_FIELDS
        if self._of_file:
            leaf = plain_type(leaf.field("bytes").type)
        self._is_null = pt.is_null(leaf)
        self._levels = len(shape)
        self._casts: list[Any] = []
        found = leaf_type(leaf)
        if fixed is not None and fixed.kind is not None:
            found = self._bind(found, leaf, fixed)
        if found is None:
            raise self._no_feature(arrow_type)
        if found.kind == "bytes" and len(shape) > 1:
            raise self._no_feature(arrow_type)
        try:
            self._tensor = tensor_shape(arrow_type)
        except ValueError as error:
            raise SourceError(
                f"these are {error}", feature=name, hint="a map can transpose them (--map)"
            ) from None
        if self._tensor is not None:
            shape = [*self._tensor]
        is_file = found.kind == "bytes" and not shape and is_image
        encoding = "image" if is_file else found.encoding
        dtype = "bytes" if encoding == "image" else found.dtype
        self.is_deep = shape.count(None) > 1 or (None in shape and len(shape) > 1)
        self.type = FeatureType(
            found.kind,
            dtype,
            None if found.kind is None else tuple(shape),
            encoding,
            # Of any format: blocks of rows are not looked at one by one.
            "image" if encoding == "image" else found.format,
        )

    def _no_feature(self, arrow_type: Any) -> SourceError:
        return SourceError(
            no_place(arrow_type),
            feature=self._name,
            hint=self._ways_out(),
        )

    def _ways_out(self) -> str:
        types = storable(leaf_of(self._arrow_type))
        stored = " or ".join(f"{self._name}={text}" for text in types)
        return (
            f"--schema {stored} stores it; " if stored else ""
        ) + f"--drop-columns {self._name} leaves it out; a map can make features of it (--map)"

    def _bind(self, found: FeatureType | None, leaf: Any, fixed: FeatureType) -> FeatureType:
        """Return the type that the user fixed, and remember what has to be cast for it."""
        import pyarrow as pa

        kind = fixed.kind
        assert kind is not None
        bound = FeatureType(kind, fixed.dtype, None, fixed.encoding, fixed.format)
        if found is None and fixed.format is not None:
            try:
                self._casts = time_casts(leaf, fixed.format)
            except ValueError as error:
                raise self._not_bound(fixed, str(error)) from None
            return bound
        if found is not None and found.kind is None:
            return bound
        if found is not None and (found.kind, fixed.dtype) == (kind, found.dtype):
            return bound
        if found is not None and (found.kind, kind) in (("int64", "float"), ("float", "float")):
            return bound if found.kind != "float" else found
        if found is not None and found.kind == kind == "int64":
            return found
        targets: dict[Kind, list[Any]] = {
            "int64": [pa.int64(), pa.int32()],
            "float": [pa.float64()],
            "bytes": [pa.string() if fixed.dtype == "string" else pa.binary()],
        }
        for target in targets[kind]:
            try:
                pa.array([], leaf).cast(target)
            except pa.ArrowException:
                continue
            self._casts = [target]
            return bound
        raise self._not_bound(fixed, f"the column is {self._arrow_type}")

    def _not_bound(self, fixed: FeatureType, why: str) -> SourceError:
        return SourceError(
            f"the schema says {type_text(fixed)}, and {why}",
            feature=self._name,
            hint=self._ways_out(),
        )

    def dims(self, column: Any) -> set[tuple[int, ...]]:
        """Return the shapes of the nested lists of a column; -1 is what an empty one hides.

        Raises:
            SourceError: A row is ragged, or has a null inside.
        """
        nested = self._nested(plain(column).drop_null())
        return set(map(tuple, np.unique(np.stack(nested.dims, axis=1), axis=0).tolist()))

    def shaped(self, found: set[tuple[int, ...]]) -> FeatureType:
        """Return the type of a feature whose values have these shapes.

        Raises:
            SourceError: They do not go together.
        """
        joined = replace(self.type, shape=None)
        try:
            for dims in sorted(found, key=lambda dims: (-1 in dims, dims)):
                known = joined.shape or (0,) * len(dims)
                filled = tuple((k or 0) if d < 0 else d for d, k in zip(dims, known, strict=True))
                joined = joined.join(replace(self.type, shape=filled))
        except ValueError as conflict:
            raise SourceError(
                f"{conflict} can not be one feature",
                feature=self._name,
                hint="a map can pad or flatten the lists (--map)",
            ) from None
        return self.type if joined.shape is None else joined

    def values(self, column: Any, planned: Shape | None) -> Column:
        """Return what the rows of a column are.

        Args:
            column: A ``pyarrow.Array``.
            planned: The feature's shape.

        Raises:
            SourceError: A value can not be had. Which row it is, shows when they come one by one.
        """
        column = plain(column)
        if self._is_null:
            if self._levels and len(column.flatten()):
                raise self._null_inside()
            return Column([UNSET] * len(column), np.ones(len(column), bool))
        unset = None
        if column.null_count:
            unset = column.is_null().to_numpy(zero_copy_only=False)
        if not self._levels:
            return self._scalars(column, unset)
        nested = self._nested(column.drop_null() if column.null_count else column)
        lists = self._lists(nested, planned or ())
        if self._tensor is not None:
            lists = np.reshape(lists, (len(nested.bounds) - 1, *self._tensor))
        if unset is None:
            return Column(lists, None)
        rows: list[Any] = [UNSET] * len(unset)
        for place, value in zip(np.flatnonzero(~unset).tolist(), lists, strict=True):
            rows[place] = value
        return Column(rows, unset)

    def _scalars(self, column: Any, unset: NDArray[np.bool_] | None) -> Column:
        leaves = self._leaves(column)
        if isinstance(leaves, list) and unset is not None:
            leaves = [UNSET if leaf is None else leaf for leaf in leaves]
        if self._of_file and unset is None and None in leaves:
            raise self._lone_path(column)
        if self._of_file and unset is not None:
            without = np.array([leaf is UNSET for leaf in leaves], bool)
            if (without & ~unset).any():
                raise self._lone_path(column)
        return Column(leaves, unset)

    def _lone_path(self, column: Any) -> SourceError:
        lone = next(v["path"] for v in column.to_pylist() if v is not None and v["bytes"] is None)
        return SourceError(
            f"there are no bytes of the file {lone!r}, only its name",
            feature=self._name,
            hint="write the table again with the files in it, or read them in a map",
        )

    def _leaves(self, column: Any) -> Any:
        """Return numbers as an array (anything where a null is), blobs as a list."""
        import pyarrow as pa

        column = plain(column)
        paths = None
        if self._of_file:
            fields = column.flatten()
            paths = fields[column.type.get_field_index("path")]
            column = plain(fields[column.type.get_field_index("bytes")])
        try:
            given = column
            for target in self._casts:
                column = column.cast(target)
            if self.type.dtype == "float64":
                self._check_digits(given, column)
            if self.type.kind != "bytes":
                return _numbers(column)
            if self.type.encoding == "image" and pa.types.is_string(column.type):
                column = column.cast(pa.binary())
            leaves: list[Any] = column.to_pylist()
            if paths is not None and self._read_file is not None and column.null_count:
                leaves = self._with_files(self._read_file, leaves, paths.to_pylist())
            return leaves
        except pa.ArrowException as error:
            reason = str(error).partition("\n")[0]
            raise SourceError(
                f"is not {type_text(self.type)}: {reason}",
                feature=self._name,
                hint=self._ways_out()
                if storable(leaf_of(self._arrow_type))
                else f"fix another type: --schema {self._name}=string",
            ) from error
        except UnicodeDecodeError as error:
            raise SourceError(
                f"byte {error.object[error.start]:#04x} is not UTF-8",
                feature=self._name,
                hint=f"--schema {self._name}=bytes takes the bytes as they are",
            ) from None

    def _check_digits(self, given: Any, floats: Any) -> None:
        """Refuse decimals from 2**53 on that float64 does not hold; smaller ones are rounded.

        Raises:
            SourceError: There is one.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not pa.types.is_decimal(given.type):
            return
        is_large = pc.greater_equal(pc.abs(floats), EXACT_WHOLE)
        large = zip(
            given.filter(is_large).to_pylist(), floats.filter(is_large).to_pylist(), strict=True
        )
        for number, stored in large:
            if number is not None and number != stored:
                raise SourceError(
                    f"{number} is not float64: that would be {stored!r}",
                    feature=self._name,
                    hint=f"--schema {self._name}=string keeps every digit",
                )

    def _with_files(self, read: ReadFile, leaves: list[Any], paths: list[str | None]) -> list[Any]:
        """Return the leaves with the content of the files that were only named."""
        try:
            return [
                read(path) if leaf is None and path is not None else leaf
                for leaf, path in zip(leaves, paths, strict=True)
            ]
        except SourceError as error:
            error.feature = self._name
            raise

    def _nested(self, column: Any) -> _Nested:
        import pyarrow.types as pt

        num_rows = len(column)
        bounds = np.arange(num_rows + 1)
        dims: list[NDArray[np.int64]] = []
        for _ in range(self._levels):
            if dims and column.null_count:
                raise self._null_inside()
            if pt.is_fixed_size_list(column.type):
                size = column.type.list_size
                offsets = np.arange(len(column) + 1) * size
                leaves = column.values.slice(column.offset * size, len(column) * size)
            else:
                offsets = column.offsets.to_numpy().astype(np.int64)
                leaves = column.values.slice(offsets[0], offsets[-1] - offsets[0])
                offsets = offsets - offsets[0]
            lengths = np.diff(offsets)
            counts = np.diff(bounds)
            first = np.full(num_rows, -1)
            first[counts > 0] = lengths[bounds[:-1][counts > 0]]
            if (lengths != np.repeat(first, counts)).any():
                raise SourceError(
                    "a ragged list: lists inside of it are of several lengths",
                    feature=self._name,
                    hint="a map can pad or flatten it (--map)",
                )
            dims.append(first)
            bounds = offsets[bounds]
            column = plain(leaves)
        if column.null_count:
            raise self._null_inside()
        return _Nested(column, bounds, dims)

    def _null_inside(self) -> SourceError:
        return SourceError(
            "a null stands inside of a list",
            feature=self._name,
            hint="a feature has no place for it: a map can leave it out, or put a value there",
        )

    def _lists(self, nested: _Nested, planned: Shape) -> Any:
        leaves = self._leaves(nested.leaves)
        if isinstance(leaves, list):
            if any(leaf is None for leaf in leaves):
                raise self._null_inside()  # of a struct
            bounds = nested.bounds.tolist()
            return [leaves[b:e] for b, e in pairwise(bounds)]
        dims = np.stack(nested.dims, axis=1)
        if len(dims) and (dims == dims[0]).all() and dims[0].min() >= 0:
            return leaves.reshape(len(dims), *dims[0].tolist())
        # What an empty list would hold does not show: it is what other rows hold.
        usual = [size or 0 for size in planned]
        return [
            leaves[begin:end].reshape([u if d < 0 else d for d, u in zip(row, usual, strict=True)])
            for begin, end, row in zip(
                nested.bounds[:-1].tolist(), nested.bounds[1:].tolist(), dims.tolist(), strict=True
            )
        ]


def no_place(arrow_type: Any) -> str:
    """Return the message for a column that has no type by itself."""
    return f"a column of {arrow_type} has no place in a feature"


def _numbers(column: Any) -> NDArray[Any]:
    """Return an array as it lies in memory; where a null is, there is any number."""
    import pyarrow as pa

    is_bool = pa.types.is_boolean(column.type)
    if is_bool:
        column = column.cast(pa.uint8())
    dtype = dtype_of(column.type)
    if not len(column):
        return np.empty(0, bool if is_bool else dtype)
    values = np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]
    return values.astype(bool) if is_bool else values


# Files of Arrow tables, read a piece at a time: row groups of Parquet, batches of Arrow files.
#
# What kind a file is, its first bytes say: Parquet, an Arrow file (Feather's second version is
# one), or an Arrow stream, which is what the cache of Hugging Face ``datasets`` consists of.

PARQUET: Final = b"PAR1"
ARROW_FILE: Final = b"ARROW1\0\0"
ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_OLD_FEATHER: Final = b"FEA1"
_TAIL_BYTES: Final = 1 << 16  # enough for the footer, which tells of every column's sizes


class Piece(NamedTuple):
    """Rows that are decoded together."""

    num_rows: int
    num_bytes: int  # as far as the file tells without being decoded


def require_pyarrow(path: str) -> None:
    """Look whether pyarrow is there.

    Raises:
        MissingExtra: It is not.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"Parquet and Arrow files are read with pyarrow: {error}",
            hint='pip install "shardwriter[parquet]"',
            path=path,
        ) from error


class ArrowFile(InputFile):
    """One file.

    Args:
        path: The file.

    Attributes:
        schema: The columns and their types, once the file was scanned.
        pieces: What it consists of, in order.
        size_bytes: Of the file.
        crc32c: Of the end of it, where the footer is.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self._format = ""
        self._reader: Any = None
        self._at = 0  # the next batch of a stream
        self._begins: list[int] = []  # of the batches of a stream that can be entered anywhere
        self.schema: Any = None
        self.pieces: list[Piece] = []
        self.size_bytes = 0
        self.crc32c = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_reader": None}

    def close(self) -> None:
        """Close the file; it can be opened again."""
        self._reader = None
        super().close()

    def scan(self) -> None:
        """Find out what the open file consists of.

        Raises:
            SourceError: It is no such file, or a damaged one.
        """
        self.size_bytes = self.num_bytes
        tail_bytes = min(_TAIL_BYTES, self.size_bytes)
        self.crc32c = extend_crc32c(0, self.read(self.size_bytes - tail_bytes, self.size_bytes))
        head = self.read(0, 8)
        if head.startswith(PARQUET):
            self._format = "Parquet file"
        elif head == ARROW_FILE:
            self._format = "Arrow file"
        elif head.startswith(ARROW_STREAM):
            self._format = "Arrow stream"
        else:
            is_old = head.startswith(_OLD_FEATHER)
            raise SourceError(
                "this is the first version of Feather"
                if is_old
                else "this is no Parquet or Arrow file" + ("" if head else ": it is empty"),
                path=self.path,
                hint="pyarrow.feather.read_table reads it, and write_feather makes the second one"
                if is_old
                else None,
            )
        try:
            self.schema, self.pieces = self._scan()
        except self._errors() as error:
            raise self._damaged("can not be read", error) from error
        self._reader = None

    def _scan(self) -> tuple[Any, list[Piece]]:
        if self._format == "Parquet file":
            metadata = self._open_reader().metadata
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            pieces = [Piece(group.num_rows, group.total_byte_size) for group in groups]
            return self._reader.schema_arrow, pieces
        schema = self._open_reader().schema
        # One column tells the number of rows, which no footer does.
        reader = self._open_reader([0] if len(schema) else None)
        if self._format == "Arrow stream":
            rows = self._scan_stream(schema)
        else:
            rows = [reader.get_batch(n).num_rows for n in range(reader.num_record_batches)]
        row_bytes = self.size_bytes / max(1, sum(rows))
        return schema, [Piece(num_rows, int(num_rows * row_bytes)) for num_rows in rows]

    def _scan_stream(self, schema: Any) -> list[int]:
        """Return the lengths of the batches, and note where each begins."""
        import pyarrow as pa

        if any(pa.types.is_dictionary(field.type) for field in _leaves_of(schema)):
            # Their words come in messages between the batches: such a stream is read in order.
            reader = self._open_reader([0])
            return [batch.num_rows for batch in reader]
        file = self.start()
        messages, rows = pa.ipc.MessageReader.open_stream(file), []
        begin = file.tell()
        for message in messages:
            if message.type == "record batch":
                self._begins.append(begin)
                rows.append(pa.ipc.read_record_batch(message, schema).num_rows)
            begin = file.tell()
        return rows

    def piece(self, number: int, columns: list[str] | None = None) -> Any:
        """Return the rows of one piece, as a ``pyarrow.Table``.

        Args:
            number: Of the piece.
            columns: Those that are wanted; None: all.

        Raises:
            SourceError: It is damaged, or the file has changed.
        """
        self.check_unchanged()
        try:
            table = self._piece(number, columns)
        except self._errors() as error:
            self._reader = None
            self.check_unchanged()
            what = "row group" if self._format == "Parquet file" else "batch"
            raise self._damaged(f"{what} {number} can not be read", error) from error
        self.check_unchanged()
        return table

    def _piece(self, number: int, columns: list[str] | None) -> Any:
        import pyarrow as pa

        is_stream = self._format == "Arrow stream"
        if self._begins:
            file = self.start()
            file.seek(self._begins[number])
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), self.schema)
            return _selected(pa.Table.from_batches([batch]), columns)
        if self._reader is None or (is_stream and self._at > number):
            self._open_reader()
        if self._format == "Parquet file":
            # One thread: workers, of which there is one for each core, do this side by side.
            rows = self._reader.read_row_group(number, columns=columns, use_threads=False)
            return _selected(rows, columns)
        if is_stream:
            while self._at < number:
                self._reader.read_next_batch()
                self._at += 1
            self._at += 1
            batch = self._reader.read_next_batch()
        else:
            batch = self._reader.get_batch(number)
        return _selected(pa.Table.from_batches([batch]), columns)

    def _open_reader(self, fields: list[int] | None = None) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.start()
        if self._format == "Parquet file":
            self._reader = pq.ParquetFile(file)
            return self._reader
        opened = pa.ipc.open_stream if self._format == "Arrow stream" else pa.ipc.open_file
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields or [])
        self._reader, self._at = opened(file, options=options), 0
        return self._reader

    def _errors(self) -> tuple[type[Exception], ...]:
        import pyarrow as pa

        # Both libraries raise OSError for what they can not make sense of, too, and MemoryError
        # where a damaged header claims more bytes than there can be.
        return pa.ArrowException, OSError, StopIteration, EOFError, MemoryError

    def _damaged(self, what: str, error: Exception) -> SourceError:
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        return SourceError(
            f"{what}: {reason}", path=self.path, hint="fetch or write the file again"
        )


def _selected(table: Any, columns: list[str] | None) -> Any:
    return table if columns is None else table.select(columns)


def _leaves_of(fields: Any) -> Iterator[Any]:
    """Yield the fields of a schema or type, and those inside of them."""
    for field in fields:
        yield field
        if field.type.num_fields:
            yield from _leaves_of(field.type.field(n) for n in range(field.type.num_fields))


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
