"""Batches of payloads -> columns: all payloads of a batch are walked through in lockstep.

At every step the same field of all n rows is read, with numpy: ``at`` and ``ends`` are ``int64[n]``
positions in the joined payloads. Where the rows differ in layout they are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import WireError
from shardwriter.example_wire import KIND_OF_TAG, TAG_1, TAG_2, Values, decode_example
from shardwriter.feature_values import UNSET, Unset
from shardwriter.varint import decode_varints

DecodedColumn: TypeAlias = "NDArray[np.int64] | NDArray[np.float32] | list[Values | Unset | None]"


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
        The columns by name, in the order of first appearance.

    Raises:
        WireError: A payload is not the bytes of an Example; ``record_index`` is its place in
            ``payloads``.
    """
    if len(payloads) > 1:
        try:
            return _decode_lockstep(payloads)
        except (_UnevenError, WireError, UnicodeDecodeError):
            pass  # one by one
    return _decode_rows(payloads)


def _decode_rows(payloads: Sequence[bytes]) -> dict[str, DecodedColumn]:
    columns: dict[str, list[Values | Unset | None]] = {}
    for row, payload in enumerate(payloads):
        try:
            features = decode_example(payload)
        except WireError as error:
            error.record_index = row
            raise
        for name, value in features.items():
            if name not in columns:
                columns[name] = [None] * len(payloads)
            columns[name][row] = UNSET if value is None else value
    return {name: _stack(values) for name, values in columns.items()}


def _stack(values: list[Values | Unset | None]) -> DecodedColumn:
    """Make an array of a column whose rows are arrays of one dtype and one length."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) < len(values) or len({(a.dtype, a.size) for a in arrays}) != 1:
        return values
    stacked: Any = np.stack(arrays)
    return cast("DecodedColumn", stacked)


# Zeros after the last payload: a size that is cut off there is looked for up to 4 bytes on.
_PADDING: Final = 8


class _UnevenError(Exception):
    """The payloads differ in layout, or are not plain: they have to be read one by one."""


def _decode_lockstep(payloads: Sequence[bytes]) -> dict[str, DecodedColumn]:
    """Read payloads that have the same names in the same order, and one kind for each.

    Everything that is not in the form that nearly all writers write leads to `_UnevenError`, and
    so does every defect: reading one by one then says which payload has it.
    """
    blob = b"".join(payloads)
    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    ends = np.cumsum(sizes)
    data = np.frombuffer(blob + bytes(_PADDING), np.uint8)
    cursor, features_end = _enter(data, ends - sizes, TAG_1)
    _require(features_end == ends)
    columns: dict[str, DecodedColumn] = {}
    while (cursor < ends).any():
        entry, entry_end = _enter(data, cursor, TAG_1)
        _require(entry_end <= ends)
        name_at, name_end = _enter(data, entry, TAG_1)
        _require(name_end < entry_end)
        name = blob[name_at[0] : name_end[0]]
        for start, end in zip(name_at.tolist(), name_end.tolist(), strict=True):
            if blob[start:end] != name:
                raise _UnevenError
        feature, feature_end = _enter(data, name_end, TAG_2)
        _require(feature_end == entry_end)
        key = name.decode()
        if key in columns:
            raise _UnevenError
        columns[key] = _decode_features(blob, data, feature, entry_end)
        cursor = entry_end
    return columns


def _decode_features(
    blob: bytes, data: NDArray[np.uint8], at: NDArray[np.int64], ends: NDArray[np.int64]
) -> DecodedColumn:
    """Read a column: the Feature of row i is in ``blob[at[i]:ends[i]]``."""
    present = np.flatnonzero(at < ends)
    if present.size < at.size:
        rows: list[Values | Unset | None] = [UNSET] * at.size
        if present.size:
            known = _decode_features(blob, data, at[present], ends[present])
            for row, value in zip(present.tolist(), known, strict=True):
                rows[row] = value
        return rows
    tag = int(data[at[0]])
    kind = KIND_OF_TAG.get(tag)
    items, items_end = _enter(data, at, tag)
    _require(items_end == ends)
    _require(items < ends)  # an empty list is rare: one by one
    body, body_end = _enter(data, items, TAG_1)
    _require(body_end == ends)  # one packed field, or one item
    bodies = [blob[a:b] for a, b in zip(body.tolist(), ends.tolist(), strict=True)]
    if kind == "bytes":
        return [[item] for item in bodies]
    packed = np.frombuffer(b"".join(bodies), np.uint8)
    bounds = np.cumsum(ends - body)
    flat: NDArray[np.int64] | NDArray[np.float32]
    if kind == "float":
        _require((ends - body) % 4 == 0)
        flat, counts = packed.view("<f4").astype(np.float32), (ends - body) // 4
    elif kind == "int64":
        _require((body < ends) & (data[ends - 1] < 0x80))  # each row ends with its own varint
        flat = decode_varints(packed)
        counts = np.diff(np.cumsum(packed < 0x80)[bounds - 1], prepend=0)
    else:
        raise _UnevenError
    if (counts == counts[0]).all():
        return flat.reshape(at.size, -1)
    splits = [0, *np.cumsum(counts).tolist()]
    return [flat[a:b] for a, b in pairwise(splits)]


def _require(condition: NDArray[np.bool_]) -> None:
    if not condition.all():
        raise _UnevenError


def _enter(
    data: NDArray[np.uint8], at: NDArray[np.int64], tag: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read ``<tag> <size>`` at every position: where the contents start and end."""
    _require(at < data.size - _PADDING)
    _require(data[at] == tag)
    at = at + 1
    size = np.zeros(at.size, np.int64)
    more = np.ones(at.size, np.bool_)
    for shift in (0, 7, 14, 21):
        byte = data[at]
        size |= np.where(more, byte & 0x7F, 0).astype(np.int64) << shift
        at += more
        more &= byte >= 0x80
        if not more.any():
            _require(at + size <= data.size - _PADDING)
            return at, at + size
    raise _UnevenError
