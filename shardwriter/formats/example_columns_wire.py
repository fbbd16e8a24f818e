"""Batches of payloads -> columns: read together where they can be, else one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import WireError
from shardwriter.formats.example_bodies import SingleBlobs, in_rows
from shardwriter.formats.example_lockstep import Part, read_in_lockstep
from shardwriter.formats.example_plain import decode_plain_example
from shardwriter.formats.example_wire import Values, decode_example
from shardwriter.formats.feature_values import UNSET, Unset

DecodedColumn: TypeAlias = "NDArray[np.int64] | NDArray[np.float32] | list[Values | Unset | None]"
PlainColumn: TypeAlias = "DecodedColumn | SingleBlobs"

# Rows over this gain nothing from being read together, and would have to be copied for it.
_MAX_ROW_BYTES: Final = 1 << 14


def decode_columns(payloads: Sequence[bytes]) -> dict[str, DecodedColumn]:
    """Read a batch of Examples into columns.

    A column is an array if every row has its feature, with a number kind, the same one, and the
    same count of values k in all rows; bytes and everything else come as a list by rows.

    - ``int64[n, k]`` or ``float32[n, k]``, also with k = 0;
    - or a list of n items: ``int64[m]``, ``float32[m]`` or a list of bytes; **None where the
      feature is absent**; **`UNSET` where it is there with no kind**. (`decode_example` has no
      key for the one and None for the other.)

    So ``encode_columns(decode_columns(payloads))`` gives the payloads again if they are in the
    pinned form, except that an empty list of bytes has to be planned as ``"bytes"``.

    Args:
        payloads: The payloads of n records.

    Returns:
        The columns by name; in the order of the first record, if the others have the same.

    Raises:
        WireError: A payload is not the bytes of an Example; ``record_index`` is its place in
            ``payloads``.
    """
    found, plain = decode_plain_parts(payloads)
    rows = {}
    for row in np.flatnonzero(~plain).tolist():
        try:
            rows[row] = decode_example(payloads[row])
        except WireError as error:
            error.record_index = row
            raise
    return {
        name: column.in_lists() if isinstance(column, SingleBlobs) else column
        for name, column in to_columns(put_rows(found, rows), len(payloads)).items()
    }


def decode_plain_columns(
    payloads: Sequence[bytes],
) -> tuple[dict[str, PlainColumn], NDArray[np.bool_]]:
    """Read those of a batch that are sure to be Examples and in the form that writers write.

    Args:
        payloads: The payloads of n records, of any protos or none.

    Returns:
        The columns of `decode_columns`, but that those with one bytes value in each row may come
        as `SingleBlobs`; and ``bool[n]``: the rows that were read. Each byte of
        them belongs to a known field. The other rows have no features here; whether they are
        Examples has to be found out.
    """
    parts, plain = decode_plain_parts(payloads)
    return to_columns(parts, len(payloads)), plain


def decode_plain_parts(
    payloads: Sequence[bytes],
) -> tuple[dict[str, Part], NDArray[np.bool_]]:
    """Read the same rows as `decode_plain_columns`, in memory for the values that there are.

    A column has a place for each row, so columns of many features that few rows have take memory
    for rows times features.

    Args:
        payloads: The payloads of n records, of any protos or none.

    Returns:
        By name the rows that have a feature, and its values; and ``bool[n]``: the rows that were
        read.
    """
    num_rows = len(payloads)
    if num_rows < 2 or sum(map(len, payloads)) > _MAX_ROW_BYTES * num_rows:
        parts: dict[str, Part] = {}
        plain = np.zeros(num_rows, np.bool_)
    else:
        parts, plain = read_in_lockstep(payloads)
    rows = {}
    for row in np.flatnonzero(~plain).tolist():
        features = decode_plain_example(payloads[row])
        if features is not None:
            rows[row] = features
    if not plain.all():
        found = {name: _kept(part, plain) for name, part in parts.items()}
        parts = {name: part for name, part in found.items() if part.rows.size}
    plain[list(rows)] = True
    return put_rows(parts, rows), plain


def put_rows(
    parts: dict[str, Part], rows: Mapping[int, Mapping[str, Values | None]]
) -> dict[str, Part]:
    """Add records that were read one by one to those of their batch.

    Args:
        parts: The features of other rows.
        rows: The features of some rows, as `decode_example` gives them.

    Returns:
        The features of all of them.
    """
    if not rows:
        return parts
    more: dict[str, tuple[list[int], list[Values | Unset | None]]] = {}
    for row, features in rows.items():
        for name, value in features.items():
            numbers, values = more.setdefault(name, ([], []))
            numbers.append(row)
            values.append(UNSET if value is None else value)
    joined = dict(parts)
    for name, (numbers, values) in more.items():
        part = joined.get(name)
        if part is None:
            joined[name] = Part(np.array(numbers, np.int64), _stack(values))
            continue
        every = np.concatenate([part.rows, np.array(numbers, np.int64)])
        cells = [*in_rows(part.cells), *values]
        order = np.argsort(every, kind="stable")
        joined[name] = Part(every[order], _stack([cells[i] for i in order.tolist()]))
    return joined


def to_columns(parts: Mapping[str, Part], num_rows: int) -> dict[str, PlainColumn]:
    """Return columns with a place for each row: None where it does not have the feature."""
    return {name: to_column(part, num_rows) for name, part in parts.items()}


def to_column(part: Part, num_rows: int) -> PlainColumn:
    """Return the column of one feature, likewise."""
    rows, cells = part
    if rows.size == num_rows:
        return cells
    column: list[Values | Unset | None] = [None] * num_rows
    for row, cell in zip(rows.tolist(), in_rows(cells), strict=True):
        column[row] = cell
    return column


def _kept(part: Part, plain: NDArray[np.bool_]) -> Part:
    """Leave out the cells of rows that were not read, which mean nothing."""
    rows, cells = part
    kept = plain[rows]
    if kept.all():
        return part
    if isinstance(cells, np.ndarray):
        return Part(rows[kept], cells[kept])
    if isinstance(cells, SingleBlobs):
        return Part(rows[kept], SingleBlobs(compress(cells, kept.tolist())))
    return Part(rows[kept], list(compress(cells, kept.tolist())))


def _stack(values: list[Values | Unset | None]) -> DecodedColumn:
    """Make an array of a column whose rows are arrays of one dtype and one length."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) < len(values) or len({(a.dtype, a.size) for a in arrays}) != 1:
        return values
    stacked: Any = arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
    return cast("DecodedColumn", stacked)
