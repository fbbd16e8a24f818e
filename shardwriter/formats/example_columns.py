"""Batches of ``tf.train.Example`` as columns: the same bytes as one by one, several times as fast.

Encoding makes, for each column, lists of byte strings with one item a row, and joins them row by
row. The way back is in `example_columns_wire`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError
from shardwriter.formats.example import EntryHeads, sort_names
from shardwriter.formats.example_columns_wire import DecodedColumn, decode_columns
from shardwriter.formats.feature_errors import Kind
from shardwriter.formats.feature_values import (
    UNSET_FEATURE,
    Unset,
    as_blob,
    as_integers,
    blob_head,
    encode_value,
    packed_head,
)
from shardwriter.formats.float32 import NOTED, as_float32, integers_as_float64
from shardwriter.formats.varint import encode_varint, encode_varints, varint_sizes

__all__ = ["Column", "DecodedColumn", "decode_columns", "encode_columns"]

# Rows over this gain nothing from being handled together, and would need memory for all at once.
_MAX_ROW_BYTES: Final = 1 << 16
_NO_VALUE: Final = frozenset({type(None), Unset})

# The bytes of a batch: lists of one item a row, to be joined row by row.
_Pieces: TypeAlias = "list[Sequence[bytes]]"


class Column(NamedTuple):
    """The values of one feature in a batch of n rows.

    Attributes:
        values: An array ``[n, ...]``, or a sequence with a value for each row.
        unset: ``bool[n]``: the rows whose Feature has no kind; what ``values`` holds there does
            not matter. None: no such rows, but for those whose value is `UNSET`.
    """

    values: NDArray[Any] | Sequence[Any]
    unset: NDArray[np.bool_] | None = None


def encode_columns(
    columns: Mapping[str, Column | NDArray[Any] | Sequence[Any]],
    kinds: Mapping[str, Kind] | None = None,
    lost: list[str] | None = None,
) -> list[bytes]:
    """Write a batch of Examples.

    Row ``i`` is byte for byte ``encode_example({name: column[i], ...}, kinds)``: None leaves the
    feature out of a row, `UNSET` writes a Feature with no kind.

    Args:
        columns: The values by name, all with the same number of rows.
        kinds: The kinds that a plan gives, by name.
        lost: Gets the names of columns with numbers that float32 does not hold.

    Returns:
        The payloads, in the order of the rows; no columns give no rows.

    Raises:
        FeatureError: A value or a name has no place in an Example (``feature`` and the message
            say where), or the columns are not of one length.
    """
    pieces: _Pieces = []
    num_rows: int | None = None
    for name in sort_names(columns):
        kind = kinds.get(name) if kinds else None
        try:
            column = _as_column(columns[name])
            if num_rows is not None and len(column.values) != num_rows:
                raise FeatureError(f"{len(column.values)} rows, and {num_rows} in other columns")
            num_rows = len(column.values)
            pieces += _encode_column(EntryHeads(name), column, kind)
            if lost is not None and NOTED.has_lost:
                NOTED.has_lost = False
                lost.append(name)
        except FeatureError as error:
            error.feature = name
            raise
    sizes = _SizePrefixes()
    return [sizes[len(body)] + body for body in map(b"".join, zip(*pieces, strict=True))]


class _SizePrefixes(dict[int, bytes]):
    """``0a <size>``, what comes before the entries of a record; lives for one batch."""

    def __missing__(self, size: int) -> bytes:
        prefix = self[size] = b"\x0a" + encode_varint(size)
        return prefix


def _as_column(column: Column | NDArray[Any] | Sequence[Any]) -> Column:
    if not isinstance(column, Column):
        column = Column(column)
    values, unset = column
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise FeatureError(
            f"a column is of type {type(values).__name__}", hint="give an array or a list, by rows"
        )
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise FeatureError("a column is a 0-d array", hint="its first axis has to be the rows")
    if unset is not None and (unset.shape != (len(values),) or unset.dtype != np.bool_):
        raise FeatureError(f"unset is {unset.dtype}{unset.shape}, not bool[{len(values)}]")
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        values = values.tolist()  # as pandas has them: the items are what they are
    return Column(values, unset)


def _encode_column(heads: EntryHeads, column: Column, kind: Kind | None) -> _Pieces:
    values, unset = column
    if unset is not None and unset.any():
        present = ~unset
        if isinstance(values, np.ndarray):
            rest: NDArray[Any] | Sequence[Any] = values[present]
        else:
            rest = [v for v, keep in zip(values, present.tolist(), strict=True) if keep]
        unset_entry = heads[len(UNSET_FEATURE)] + UNSET_FEATURE
        pieces = _encode_column(heads, Column(rest), kind)
        return _spread(pieces, present.tolist(), [unset_entry] * len(values))
    if isinstance(values, np.ndarray):
        return _encode_array_column(heads, values, kind)
    types = set(map(type, values))
    if types & _NO_VALUE and not types <= _NO_VALUE:
        present_rows = [type(value) not in _NO_VALUE for value in values]
        missing = _encode_rows(heads, [v if type(v) in _NO_VALUE else None for v in values], kind)
        known = [value for value in values if type(value) not in _NO_VALUE]
        return _spread(_encode_column(heads, Column(known), kind), present_rows, missing[0])
    if types <= {str, bytes} and kind in (None, "bytes"):
        return _encode_blob_column(heads, values)
    if types == {float} and kind in (None, "float"):
        return _encode_array_column(heads, np.array(values, np.float64), kind)
    if types and types <= {int, bool}:
        try:
            return _encode_array_column(heads, np.array(values, np.int64), kind)
        except OverflowError:
            pass  # the rows, one by one, know which
    return _encode_rows(heads, values, kind)


def _encode_rows(heads: EntryHeads, values: Sequence[Any], kind: Kind | None) -> _Pieces:
    """Write a column of any values, one by one."""
    entries = []
    for row, value in enumerate(values):
        if value is None:
            entries.append(b"")
            continue
        try:
            encoded = encode_value(value, kind)
        except FeatureError as error:
            error.args = (f"{error.message} (row {row} of the batch)",)
            error.message = error.args[0]
            raise
        if isinstance(encoded, tuple):
            encoded = b"".join(encoded[1])
        entries.append(heads[len(encoded)] + encoded)
    return [entries]


def _encode_blob_column(heads: EntryHeads, values: Sequence[str | bytes]) -> _Pieces:
    try:
        blobs = [value.encode() if type(value) is str else as_blob(value) for value in values]
    except UnicodeEncodeError:
        return _encode_rows(heads, values, None)
    sizes = list(map(len, blobs))
    entry_heads = {}
    for size in set(sizes):
        head = blob_head(size)
        entry_heads[size] = heads[len(head) + size] + head
    return [[entry_heads[size] for size in sizes], blobs]


def _encode_array_column(heads: EntryHeads, values: NDArray[Any], kind: Kind | None) -> _Pieces:
    code = values.dtype.kind
    if kind == "float" and code in "iub":
        values, code = integers_as_float64(values), "f"
    num_rows = len(values)
    row_bytes = values[:1].size * 8
    plain = type(values) is np.ndarray and num_rows > 0 and row_bytes <= _MAX_ROW_BYTES
    try:
        if plain and code == "f" and kind in (None, "float"):
            floats = np.ascontiguousarray(as_float32(values)).reshape(num_rows, -1)
            return _fixed_size("float", heads, floats.view(np.uint8))
        if plain and code in "iub" and kind in (None, "int64"):
            return _encode_int_rows(heads, as_integers(values).reshape(num_rows, -1))
    except FeatureError:
        pass  # again, one by one, to say which row it was
    if code == "U" and values.ndim == 1 and kind in (None, "bytes"):
        return _encode_blob_column(heads, values.tolist())
    return _encode_rows(heads, list(values), kind)


def _encode_int_rows(heads: EntryHeads, values: NDArray[Any]) -> _Pieces:
    varints = encode_varints(values.reshape(-1))
    if varints.size == values.size:
        return _fixed_size("int64", heads, varints.reshape(values.shape))
    sizes = varint_sizes(values).sum(axis=1)
    entry_heads = {
        size: heads[len(packed_head("int64", size)) + size] + packed_head("int64", size)
        for size in set(sizes.tolist())
    }
    packed = varints.tobytes()
    bounds = [0, *np.cumsum(sizes).tolist()]
    bodies = [packed[start:end] for start, end in pairwise(bounds)]
    return [[entry_heads[size] for size in sizes.tolist()], bodies]


def _fixed_size(kind: Kind, heads: EntryHeads, packed: NDArray[np.uint8]) -> _Pieces:
    """Write rows that all take the same number of bytes: ``packed`` is ``uint8[n, bytes]``."""
    size = packed.shape[1]
    head = packed_head(kind, size)
    head = heads[len(head) + size] + head
    entries = np.empty((len(packed), len(head) + size), np.uint8)
    entries[:, : len(head)] = np.frombuffer(head, np.uint8)
    entries[:, len(head) :] = packed
    # Rows seen as numpy's void scalars: the fastest way to many bytes objects of one length.
    return [entries.view(f"V{entries.shape[1]}").reshape(-1).tolist()]


def _spread(pieces: _Pieces, present: Sequence[bool], others: Sequence[bytes]) -> _Pieces:
    """Give the pieces of the present rows their places in the batch; the rest is ``others``."""
    spread: _Pieces = []
    for piece in pieces:
        items = iter(piece)
        spread.append([next(items) if keep else b"" for keep in present])
    spread.append([b"" if keep else o for keep, o in zip(present, others, strict=True)])
    return spread
