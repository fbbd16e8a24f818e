"""Arrow tables as sources: types of columns, conversion to features, files, and rows by number.

Types come from the schema:

========================  ======================================================================
bool, integers            int64
half, float, double       float
string, binary            bytes
dictionary                as its values
lists of these            a list; nested lists have a shape, if they are rectangular
struct<bytes, path>       the bytes: an image or sound of Hugging Face ``datasets``
fixed shape tensor        an array of its shape; permuted dimensions are an error
null, wherever            a feature without a kind
anything else             an error with the column, unless a map converts it
========================  ======================================================================

Times and decimals need a type in ``--schema``: ``int64:ms`` (or another unit), or ``string``, as
Arrow writes them: ``2024-01-02 03:04:05.123456``, ``2024-01-02``, ``1.10``. A cast that would lose
digits is an error.

A table is read in row groups (or batches), which are decoded as a whole. The last ones are cached.
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


def tensor_shape(arrow_type: Any) -> tuple[int, ...] | None:
    """Return the shape of a column of fixed shape tensors; None for other columns.

    Raises:
        ValueError: Its dimensions are permuted.
    """
    import pyarrow as pa

    if not isinstance(arrow_type, pa.FixedShapeTensorType):
        return None
    shape = tuple(arrow_type.shape)
    if arrow_type.permutation not in (None, list(range(len(shape)))):
        raise ValueError(f"tensors with permuted dimensions: {arrow_type.permutation}")
    return shape


def plain_type(arrow_type: Any) -> Any:
    """Return the storage type of an extension type, and the value type of a dictionary."""
    import pyarrow as pa

    while True:
        if isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        elif pa.types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        else:
            return arrow_type


def is_list(arrow_type: Any) -> bool:
    """Return whether a storage type is a list."""
    import pyarrow.types as pt

    return any(is_it(arrow_type) for is_it in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))


def leaf_of(arrow_type: Any) -> Any:
    """Return the type of the innermost values of a column's lists, or of its values."""
    leaf = plain_type(arrow_type)
    while is_list(leaf):
        leaf = plain_type(leaf.value_type)
    return leaf


def plain(column: Any) -> Any:
    """Return a column in its storage type, with dictionaries decoded."""
    import pyarrow as pa

    while True:
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        elif pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        else:
            return column


def leaf_type(leaf: Any) -> FeatureType | None:
    """Return the feature type of single values; None if there is none."""
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
    """Return the types for ``--schema`` of a column that has no feature type by itself."""
    import pyarrow.types as pt

    if pt.is_date(arrow_type):
        return ["int64:days", "string"]
    if pt.is_timestamp(arrow_type) or pt.is_time(arrow_type):
        return [f"int64:{arrow_type.unit}", "string"]
    if pt.is_duration(arrow_type):
        return [f"int64:{arrow_type.unit}"]
    return ["string", "float"] if pt.is_decimal(arrow_type) else []


def time_casts(arrow_type: Any, unit: str) -> list[Any]:
    """Return the types through which a column of times is cast to integers of a unit.

    Raises:
        ValueError: The column cannot be stored in this unit.
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
    """Return numpy's type of a numeric type."""
    # Arrow's own function for this needs pandas.
    name = str(arrow_type)
    return np.dtype(
        {"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name)
    )


ReadFile: TypeAlias = "Callable[[str], bytes]"
"""Returns the content of a file that a table only has the name of."""

_FILE_FIELDS: Final = {"bytes", "path"}


class _Nested(NamedTuple):
    """Flattened nested lists: row i has the leaves [bounds[i], bounds[i + 1])."""

    leaves: Any
    bounds: NDArray[np.int64]
    dims: list[NDArray[np.int64]]  # for each level, the length in each row; -1 if unknown


class ColumnReader:
    """Converts chunks of a column to values of a feature.

    Args:
        name: The column.
        arrow_type: Its type in the schema.
        is_image: Whether the file's metadata declares it as images.
        fixed: The type fixed by the user.
        read_file: Reads a file that the column only has the name of; None to raise for it.

    Attributes:
        type: The feature's type. If ``is_deep``, :meth:`shaped` returns it with its shape.
        is_deep: Whether it has nested lists of unknown lengths.

    Raises:
        SourceError: The column cannot be converted to a feature.
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
                f"these are {error}", feature=name, hint="transpose them with a map (--map)"
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
            # No specific format: the images of a block are not examined one by one.
            "image" if encoding == "image" else found.format,
        )

    def _no_feature(self, arrow_type: Any) -> SourceError:
        return SourceError(
            no_feature_message(arrow_type),
            feature=self._name,
            hint=self._alternatives(),
        )

    def _alternatives(self) -> str:
        types = storable(leaf_of(self._arrow_type))
        stored = " or ".join(f"{self._name}={text}" for text in types)
        return (
            f"--schema {stored} stores it; " if stored else ""
        ) + f"--drop-columns {self._name} leaves it out; a map can convert it (--map)"

    def _bind(self, found: FeatureType | None, leaf: Any, fixed: FeatureType) -> FeatureType:
        """Return the type fixed by the user, and set the casts that it needs."""
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
            f"the schema has {type_text(fixed)}, but {why}",
            feature=self._name,
            hint=self._alternatives(),
        )

    def dims(self, column: Any) -> set[tuple[int, ...]]:
        """Return the shapes of the nested lists of a column; -1 for a length in an empty list.

        Raises:
            SourceError: A row is ragged, or has a null in a list.
        """
        nested = self._nested(plain(column).drop_null())
        return set(map(tuple, np.unique(np.stack(nested.dims, axis=1), axis=0).tolist()))

    def shaped(self, found: set[tuple[int, ...]]) -> FeatureType:
        """Return the type of a feature with values of these shapes.

        Raises:
            SourceError: They have no common shape.
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
                hint="pad or flatten the lists with a map (--map)",
            ) from None
        return self.type if joined.shape is None else joined

    def values(self, column: Any, planned: Shape | None) -> Column:
        """Return the values of a column's rows.

        Args:
            column: A ``pyarrow.Array``.
            planned: The feature's shape.

        Raises:
            SourceError: A value cannot be converted; to find its row, convert rows one by one.
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
            raise self._missing_file(column)
        if self._of_file and unset is not None:
            without = np.array([leaf is UNSET for leaf in leaves], bool)
            if (without & ~unset).any():
                raise self._missing_file(column)
        return Column(leaves, unset)

    def _missing_file(self, column: Any) -> SourceError:
        lone = next(v["path"] for v in column.to_pylist() if v is not None and v["bytes"] is None)
        return SourceError(
            f"the table has only the name of file {lone!r}, not its bytes",
            feature=self._name,
            hint="write the table with the files' bytes in it, or read the files in a map",
        )

    def _leaves(self, column: Any) -> Any:
        """Return numbers as an array (with any value for a null), bytes and text as a list."""
        import pyarrow as pa

        column = plain(column)
        paths = None
        if self._of_file:
            fields = column.flatten()
            paths = fields[column.type.get_field_index("path")]
            column = plain(fields[column.type.get_field_index("bytes")])
        try:
            original = column
            for target in self._casts:
                column = column.cast(target)
            if self.type.dtype == "float64":
                self._check_digits(original, column)
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
                f"not {type_text(self.type)}: {reason}",
                feature=self._name,
                hint=self._alternatives()
                if storable(leaf_of(self._arrow_type))
                else f"choose another type: --schema {self._name}=string",
            ) from error
        except UnicodeDecodeError as error:
            raise SourceError(
                f"byte {error.object[error.start]:#04x} is not UTF-8",
                feature=self._name,
                hint=f"--schema {self._name}=bytes reads the bytes as they are",
            ) from None

    def _check_digits(self, decimals: Any, floats: Any) -> None:
        """Raise for decimals above 2**53 that float64 rounds; smaller ones may be rounded.

        Raises:
            SourceError: There is one.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not pa.types.is_decimal(decimals.type):
            return
        is_large = pc.greater_equal(pc.abs(floats), EXACT_WHOLE)
        large = zip(
            decimals.filter(is_large).to_pylist(), floats.filter(is_large).to_pylist(), strict=True
        )
        for number, stored in large:
            if number is not None and number != stored:
                raise SourceError(
                    f"{number} is not exact as float64, which would be {stored!r}",
                    feature=self._name,
                    hint=f"--schema {self._name}=string keeps every digit",
                )

    def _with_files(self, read: ReadFile, leaves: list[Any], paths: list[str | None]) -> list[Any]:
        """Return the leaves, with the content of files in place of None."""
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
                    "a ragged list: its inner lists have several lengths",
                    feature=self._name,
                    hint="pad or flatten it with a map (--map)",
                )
            dims.append(first)
            bounds = offsets[bounds]
            column = plain(leaves)
        if column.null_count:
            raise self._null_inside()
        return _Nested(column, bounds, dims)

    def _null_inside(self) -> SourceError:
        return SourceError(
            "a list has a null in it",
            feature=self._name,
            hint="features can not hold it: remove it with a map, or replace it by a value",
        )

    def _lists(self, nested: _Nested, planned: Shape) -> Any:
        leaves = self._leaves(nested.leaves)
        if isinstance(leaves, list):
            if any(leaf is None for leaf in leaves):
                raise self._null_inside()  # in a struct
            bounds = nested.bounds.tolist()
            return [leaves[b:e] for b, e in pairwise(bounds)]
        dims = np.stack(nested.dims, axis=1)
        if len(dims) and (dims == dims[0]).all() and dims[0].min() >= 0:
            return leaves.reshape(len(dims), *dims[0].tolist())
        # An empty list does not show its inner lengths: use those of other rows.
        usual = [size or 0 for size in planned]
        return [
            leaves[begin:end].reshape([u if d < 0 else d for d, u in zip(row, usual, strict=True)])
            for begin, end, row in zip(
                nested.bounds[:-1].tolist(), nested.bounds[1:].tolist(), dims.tolist(), strict=True
            )
        ]


def no_feature_message(arrow_type: Any) -> str:
    """Return the message for a column without a feature type."""
    return f"{arrow_type} can not be stored in a feature (int64, float32 or bytes)"


def _numbers(column: Any) -> NDArray[Any]:
    """Return a numeric column as an array without a copy, with any value for a null."""
    import pyarrow as pa

    is_bool = pa.types.is_boolean(column.type)
    if is_bool:
        column = column.cast(pa.uint8())
    dtype = dtype_of(column.type)
    if not len(column):
        return np.empty(0, bool if is_bool else dtype)
    values = np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]
    return values.astype(bool) if is_bool else values


PARQUET: Final = b"PAR1"
ARROW_FILE: Final = b"ARROW1\0\0"
ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_OLD_FEATHER: Final = b"FEA1"
_TAIL_BYTES: Final = 1 << 16  # includes the footer, which has the sizes of all columns


class RowGroup(NamedTuple):
    """A row group or batch: rows that are decoded together."""

    num_rows: int
    num_bytes: int  # as known without decoding


def require_pyarrow(path: str) -> None:
    """Raise if pyarrow is not installed.

    Raises:
        MissingExtra: It is not installed.
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
    """A Parquet file, an Arrow file (such as Feather 2), or an Arrow stream.

    Args:
        path: The file. Its first bytes determine the format.

    Attributes:
        schema: The columns and their types, after the scan.
        row_groups: Its row groups or batches, in order.
        size_bytes: Its size.
        crc32c: The CRC-32C of its end, with the footer.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self._format = ""
        self._reader: Any = None
        self._at = 0  # the next batch of the stream
        self._begins: list[int] = []  # offsets of a stream's batches, if these can be read alone
        self.schema: Any = None
        self.row_groups: list[RowGroup] = []
        self.size_bytes = 0
        self.crc32c = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_reader": None}

    def close(self) -> None:
        """Close the file; it can be opened again."""
        self._reader = None
        super().close()

    def scan(self) -> None:
        """Read the schema and the row groups of the open file.

        Raises:
            SourceError: The file is damaged, or of another format.
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
                "this is a file of Feather 1"
                if is_old
                else "this is not a Parquet or Arrow file" + ("" if head else ": it is empty"),
                path=self.path,
                hint="convert it with pyarrow.feather.read_table and write_feather"
                if is_old
                else None,
            )
        try:
            self.schema, self.row_groups = self._scan()
        except self._errors() as error:
            raise self._damaged("can not be read", error) from error
        self._reader = None

    def _scan(self) -> tuple[Any, list[RowGroup]]:
        if self._format == "Parquet file":
            metadata = self._open_reader().metadata
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            row_groups = [RowGroup(group.num_rows, group.total_byte_size) for group in groups]
            return self._reader.schema_arrow, row_groups
        schema = self._open_reader().schema
        # Reading one column gives the number of rows, which no footer has.
        reader = self._open_reader([0] if len(schema) else None)
        if self._format == "Arrow stream":
            rows = self._scan_stream(schema)
        else:
            rows = [reader.get_batch(n).num_rows for n in range(reader.num_record_batches)]
        row_bytes = self.size_bytes / max(1, sum(rows))
        return schema, [RowGroup(num_rows, int(num_rows * row_bytes)) for num_rows in rows]

    def _scan_stream(self, schema: Any) -> list[int]:
        """Return the lengths of the batches, and store their offsets."""
        import pyarrow as pa

        if any(pa.types.is_dictionary(field.type) for field in _leaves_of(schema)):
            # Dictionaries are messages between the batches: such a stream is read in order.
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

    def read_group(self, number: int, columns: list[str] | None = None) -> Any:
        """Return the rows of a row group or batch as a ``pyarrow.Table``.

        Args:
            number: Its number.
            columns: The columns to read; None for all.

        Raises:
            SourceError: It is damaged, or the file has changed.
        """
        self.check_unchanged()
        try:
            table = self._read_group(number, columns)
        except self._errors() as error:
            self._reader = None
            self.check_unchanged()
            what = "row group" if self._format == "Parquet file" else "batch"
            raise self._damaged(f"{what} {number} can not be read", error) from error
        self.check_unchanged()
        return table

    def _read_group(self, number: int, columns: list[str] | None) -> Any:
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
            # One thread: there is a worker for each core.
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

        # Both libraries raise OSError for malformed data, too, and MemoryError if a damaged header
        # has an impossible size.
        return pa.ArrowException, OSError, StopIteration, EOFError, MemoryError

    def _damaged(self, what: str, error: Exception) -> SourceError:
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        return SourceError(
            f"{what}: {reason}", path=self.path, hint="download or write the file again"
        )


def _selected(table: Any, columns: list[str] | None) -> Any:
    return table if columns is None else table.select(columns)


def _leaves_of(fields: Any) -> Iterator[Any]:
    """Yield the fields of a schema or type, and those nested in them."""
    for field in fields:
        yield field
        if field.type.num_fields:
            yield from _leaves_of(field.type.field(n) for n in range(field.type.num_fields))


CACHE_BYTES: Final = 128 << 20  # of decoded row groups, in each process
_BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20
_AHEAD_ROWS: Final = 256  # for a map, which reads rows one by one
_AHEAD_STEP: Final = 16
_SCALAR: Final = ("int64", ())


class _Ahead(NamedTuple):
    """Consecutive decoded rows, starting with ``first``."""

    first: int
    table: Any
    columns: dict[str, Column]


class ArrowRows:
    """The rows of a table that is read in row groups; subclasses read these.

    Args:
        schema: The table's ``pyarrow.Schema``.
        row_groups: Its row groups, in order.
        known: The metadata of ``datasets`` on the columns, by name.
        fixed: Types fixed by the user, by column.
        table: Which columns to read.
        path: The file that errors of the schema name.
        read_file: Reads a file that the table only has the name of.

    Raises:
        SourceError: A fixed type is for no column, or a column cannot be cast to it.
    """

    random_access = True
    resumable = True

    def __init__(
        self,
        schema: Any,
        row_groups: Sequence[RowGroup],
        known: Mapping[str, Any],
        fixed: Mapping[str, FeatureType],
        path: str | None = None,
        read_file: ReadFile | None = None,
        table: TableOptions | None = None,
    ) -> None:
        self._schema = select_schema(schema, table, path)
        self._group_bytes = [group.num_bytes for group in row_groups]
        self._first_of_group: list[int] = []
        self._num_rows = 0
        for group in row_groups:
            self._first_of_group.append(self._num_rows)
            self._num_rows += group.num_rows
        num_bytes = sum(self._group_bytes)
        self.num_items: int | None = self._num_rows
        self.block_items = max(
            1, min(_BLOCK_ROWS, _BLOCK_BYTES * self._num_rows // (num_bytes or 1))
        )
        self.fits_cache = num_bytes <= CACHE_BYTES  # whether all of it fits, decoded
        self._start_empty()
        self._untyped: SourceError | None = None
        self._read_schema(dict(fixed), known, path, read_file)

    def _read_group(self, number: int, columns: list[str] | None = None) -> Any:
        """Return the rows of a row group as a ``pyarrow.Table``; ``columns`` None for all."""
        raise NotImplementedError

    def _start_empty(self) -> None:
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._cached_bytes = 0
        self._ahead: _Ahead | None = None
        self._last_item = -1
        self._lock = threading.Lock()  # some of Beam's runners have several threads in a worker

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_cache", "_cached_bytes", "_ahead", "_last_item", "_lock")
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
                f"the schema has a column {sorted(fixed)[0]!r}, which does not exist",
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
        """Return one error for all columns that cannot be features; None if all can."""
        if len(wrong) < 2:
            return wrong[0] if wrong else None
        columns: list[str] = []
        storable_columns: list[str] = []
        others: list[str] = []
        for error in wrong:
            name = error.feature or ""
            arrow_type = self._schema.field(name).type
            why = "" if error.message == no_feature_message(arrow_type) else f": {error.message}"
            columns.append(f"{name!r} ({arrow_type}){why}")
            types = storable(leaf_of(arrow_type))
            if types:
                storable_columns.append(f"{name}={types[0]}")
            else:
                others.append(name)
        hints = ["a map can convert them (--map)"]
        if others:
            which = "the others" if storable_columns else "them"
            hints.insert(0, f"--drop-columns {','.join(others)} leaves {which} out")
        if storable_columns:
            which = "some" if others else "them"
            hints.insert(0, f"--schema {','.join(storable_columns)} stores {which}")
        return SourceError(
            f"{len(wrong):,} columns can not be stored in features: {'; '.join(columns)}",
            path=path,
            hint="; ".join(hints),
        )

    def _shaped(self, name: str, reader: ColumnReader) -> FeatureType:
        """Return the type of a column of nested lists, after reading all of it for its shape."""
        found: set[tuple[int, ...]] = set()
        for number in range(len(self._first_of_group)):
            for chunk in self._read_group(number, [name]).column(name).chunks:
                found |= reader.dims(chunk)
        return reader.shaped(found)

    @property
    def plan(self) -> Mapping[str, FeatureType]:
        """The type of every feature.

        Raises:
            SourceError: A column has no type, so only a map can make records of these rows.
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
        """Return one row as int, float, str, bytes and arrays; UNSET for a null.

        A column that cannot be a feature has pyarrow's Python value, which a map may convert.
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
                features[name] = python_value(values[row])
        return features

    def _read_ahead(self, item: int) -> _Ahead | None:
        """Return the rows from an item on, if items are read in order; else None."""
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
            return None  # raised again when its row is loaded
        return ahead

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows as columns; each row group is decoded once."""
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
        """Return rows as pyarrow's Python values, for digests and format detection."""
        rows: list[dict[str, Any]] = self._rows(items).to_pylist()
        return rows

    def _row_numbers(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the row numbers of items."""
        return items

    def _rows(self, items: Sequence[int]) -> Any:
        """Return rows in the order of the items."""
        import pyarrow as pa

        wanted = self._row_numbers(np.array(items, np.int64))
        row_groups = np.searchsorted(self._first_of_group, wanted, "right") - 1
        order = np.argsort(row_groups, kind="stable")
        cuts = np.flatnonzero(np.diff(row_groups[order])) + 1
        tables = []
        for places in np.split(order, cuts):
            if not len(places):
                return self._schema.empty_table()
            group = int(row_groups[places[0]])
            rows = wanted[places] - self._first_of_group[group]
            with self._lock:
                table = self._decoded(group)
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

    def _decoded(self, group: int) -> Any:
        """Return the rows of a row group, cached or decoded now."""
        table = self._cache.get(group)
        if table is not None:
            self._cache.move_to_end(group)
            return table
        while self._cache and self._cached_bytes + self._group_bytes[group] > CACHE_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.nbytes
        table = self._read_group(group)
        self._cache[group] = table
        self._cached_bytes += table.nbytes
        return table


def select_schema(schema: Any, table: TableOptions | None, path: str | None) -> Any:
    """Return a ``pyarrow.Schema`` with only the columns to read.

    Raises:
        OptionError: A column does not exist, or none is left.
    """
    if table is None or not table.picks:
        return schema
    import pyarrow as pa

    names = table.pick(schema.names, path)
    return pa.schema([schema.field(name) for name in names], schema.metadata)


def python_value(value: Any) -> Any:
    """Return a value that a map may modify: arrays as copies, numbers of Python if exact."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.name in _PLAIN:
        return value.item()
    return value


# Other number types stay numpy's, so that they have the planned type.
_PLAIN: Final = {"bool", "int64", "float16", "float32", "float64"}


def known_columns(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """Return the metadata of ``datasets`` on the columns: which are images or classes."""
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
