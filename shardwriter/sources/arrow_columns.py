"""Columns of Arrow tables: how values become features.

Which type a feature has, :mod:`shardwriter.sources.arrow_types` says by the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import SourceError
from shardwriter.formats.example import UNSET, Kind
from shardwriter.formats.example_columns import Column
from shardwriter.schema.feature_types import FeatureType, Shape
from shardwriter.schema.schema_text import type_text
from shardwriter.sources.arrow_types import (
    dtype_of,
    is_list,
    leaf_of,
    leaf_type,
    plain,
    plain_type,
    storable,
    tensor_shape,
    time_casts,
)
from shardwriter.sources.cells import EXACT_WHOLE

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
