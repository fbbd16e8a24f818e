"""Batches of payloads -> columns: read together where they can be, else one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardwriter.codec.example_bodies import SingleBlobs, in_rows
from shardwriter.codec.example_lockstep import Part, read_in_lockstep
from shardwriter.codec.example_plain import decode_plain_example
from shardwriter.codec.example_wire import Values, decode_example
from shardwriter.codec.feature_values import UNSET, Unset
from shardwriter.errors import WireError

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
    found, plain = decode_plain_columns(payloads)
    columns = {
        name: column.in_lists() if isinstance(column, SingleBlobs) else column
        for name, column in found.items()
    }
    odd = np.flatnonzero(~plain).tolist()
    if not odd:
        return columns
    rows = {}
    for row in odd:
        try:
            rows[row] = decode_example(payloads[row])
        except WireError as error:
            error.record_index = row
            raise
    return put_rows(columns, rows, len(payloads))


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
    num_rows = len(payloads)
    if num_rows < 2 or sum(map(len, payloads)) > _MAX_ROW_BYTES * num_rows:
        rows = {}
        for row, payload in enumerate(payloads):
            features = decode_plain_example(payload)
            if features is not None:
                rows[row] = features
        plain = np.zeros(num_rows, np.bool_)
        plain[list(rows)] = True
        return {**put_rows({}, rows, num_rows)}, plain
    parts, plain = read_in_lockstep(payloads)
    columns: dict[str, PlainColumn] = {}
    for name, part in parts.items():
        column = _column(part, plain)
        if column is not None:
            columns[name] = column
    return columns, plain


def put_rows(
    columns: Mapping[str, PlainColumn],
    rows: Mapping[int, Mapping[str, Values | None]],
    num_rows: int,
) -> dict[str, DecodedColumn]:
    """Put records that were read one by one into the columns of their batch.

    Args:
        columns: The columns of all other rows.
        rows: The features of some rows, as `decode_example` gives them.
        num_rows: Rows of the batch.

    Returns:
        The columns of all rows.
    """
    listed: dict[str, list[Values | Unset | None]] = {}
    for name, column in columns.items():
        listed[name] = list(in_rows(column))
    for row, features in rows.items():
        for name, value in features.items():
            if name not in listed:
                listed[name] = [None] * num_rows
            listed[name][row] = UNSET if value is None else value
    return {name: _stack(values) for name, values in listed.items()}


def _column(part: Part, plain: NDArray[np.bool_]) -> PlainColumn | None:
    """Give the cells of a feature their rows; None where no plain row has it."""
    rows, cells = part
    kept = plain[rows]
    if rows.size == plain.size and kept.all():
        return cells
    if not kept.any():
        return None
    column: list[Values | Unset | None] = [None] * plain.size
    for row, cell, keep in zip(rows.tolist(), in_rows(cells), kept.tolist(), strict=True):
        if keep:
            column[row] = cell
    return column


def _stack(values: list[Values | Unset | None]) -> DecodedColumn:
    """Make an array of a column whose rows are arrays of one dtype and one length."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) < len(values) or len({(a.dtype, a.size) for a in arrays}) != 1:
        return values
    stacked: Any = np.stack(arrays)
    return cast("DecodedColumn", stacked)
