"""What was written comes back: decoded features take the types that a manifest tells.

An Example knows three kinds of lists. The schema knows what they were: a bool, a ``uint8[28,28]``,
a text (FORMATS.md, F8 and F9).

Memory: nothing that is handed out keeps a batch alive. Numbers by themselves are numpy scalars,
arrays of single examples are writable and their own. Columns are one array each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import ShardwriterError
from shardwriter.formats.example_bodies import SingleBlobs
from shardwriter.formats.example_columns_wire import decode_plain_parts, put_rows, to_columns
from shardwriter.formats.example_entries import Entry, EntryFinder
from shardwriter.formats.example_lockstep import Part
from shardwriter.formats.example_plain import decode_plain_list
from shardwriter.formats.example_wire import Values, decode_feature, decode_only_example
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.restored_feature import ABSENT, RestoredFeature
from shardwriter.schema.schema import FeatureSummary
from shardwriter.schema.shape_features import reshaped, shaped_by_others

# Records over this are read one by one: their bytes are copied once, and not joined before.
_MAX_ROW_BYTES: Final = 1 << 14
# So are fewer records than this: reading together begins with work of half a millisecond.
_MIN_ROWS: Final = 40
# Records that are read together: more gain nothing, and their columns leave the L2 cache.
_MAX_BLOCK_ROWS: Final = 1024
_MAX_BLOCK_BYTES: Final = 1 << 20


class Restorer:
    """Gives examples and columns the types of a schema.

    ===========================  ==================================================================
    in the schema                what comes back
    ===========================  ==================================================================
    shape ``[]``                 a numpy scalar of the dtype; ``bytes`` or ``str``
    another shape, numbers       a writable array of the dtype and shape; null is what it was
    another shape, bytes         a list of ``bytes`` or ``str``, nested as the shape says
    encoding ``raw``             the array whose bytes were written
    no shape, or no entry        ``int64[k]``, ``float32[k]`` or a list, as `decode_example` has it
    ===========================  ==================================================================

    A feature that is absent from a record has no key, one without a kind is None. Of values whose
    shape stands beside them (`shape_features`) it is theirs, and the feature that held it is gone.

    Args:
        schema: The features' types by name, as a manifest has them; may be empty.

    Raises:
        ManifestError: An entry names no dtype of numpy.
    """

    def __init__(self, schema: Mapping[str, FeatureSummary]) -> None:
        self._finder = EntryFinder()
        self._features = {name: RestoredFeature(name, entry.type) for name, entry in schema.items()}
        self._shape_beside = shaped_by_others({name: e.type for name, e in schema.items()})

    def example(self, payload: bytes) -> dict[str, Any]:
        """Return one record's features.

        Raises:
            WireError: The payload is not the bytes of an Example.
            FeatureError: A feature is not what the schema says; says what is there instead.
        """
        row = self._flat_example(payload)
        return self._shaped(row) if self._shape_beside else row

    def _shaped(self, row: dict[str, Any]) -> dict[str, Any]:
        """Give values the shapes that stand beside them."""
        for name, holder in self._shape_beside.items():
            sizes = row.pop(holder, None)
            if name in row:
                row[name] = reshaped(name, row[name], sizes, self._features[name].shape or ())
        return row

    def _flat_example(self, payload: bytes) -> dict[str, Any]:
        payload = bytes(payload)
        entries = self._finder.find(payload)
        if entries is not None:
            restored = self._from_entries(payload, entries)
            if len(restored) == len(entries):  # else a name comes twice
                return restored
        return self._from_values(decode_only_example(payload))

    def examples(self, payloads: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return the features of many records, equal to `example` of each.

        Raises:
            WireError, FeatureError: Likewise; ``record_index`` is the place in ``payloads``.
        """
        if not _read_together(payloads):
            return [self._numbered(row, payload) for row, payload in enumerate(payloads)]
        rows: list[dict[str, Any]] = []
        mean_bytes = sum(map(len, payloads)) // len(payloads)
        num_rows = min(_MAX_BLOCK_ROWS, max(16, _MAX_BLOCK_BYTES // max(1, mean_bytes)))
        try:
            for begin in range(0, len(payloads), num_rows):
                rows += self._block(payloads[begin : begin + num_rows])
        except ShardwriterError:
            # Which record it was, and what it holds, is found by going through them one by one.
            return [self._numbered(row, payload) for row, payload in enumerate(payloads)]
        return rows

    def columns(self, payloads: Sequence[bytes]) -> dict[str, NDArray[Any] | list[Any]]:
        """Return the features of many records by name.

        A column is an array ``[n, ...]`` of the dtype where every record has numbers of the same
        shape; else a list of n values, with None where a record has no such feature, or an unset
        one.

        Raises:
            WireError, FeatureError: Likewise; ``record_index`` is the place in ``payloads``.
        """
        if payloads and not _read_together(payloads):
            return _columns_of(self.examples(payloads))
        try:
            return self._columns(payloads)
        except ShardwriterError:
            for row, payload in enumerate(payloads):
                self._numbered(row, payload)
            raise

    def _columns(self, payloads: Sequence[bytes]) -> dict[str, NDArray[Any] | list[Any]]:
        columns: dict[str, NDArray[Any] | list[Any]] = {}
        for name, column in to_columns(_decoded_parts(payloads), len(payloads)).items():
            feature = self._feature(name)
            if isinstance(column, np.ndarray):
                columns[name] = feature.stacked(column)
                continue
            stacked = feature.stacked_raw(column) if isinstance(column, SingleBlobs) else None
            if stacked is not None:
                columns[name] = stacked
                continue
            values = [None if v is ABSENT else v for v in feature.listed(column)]
            columns[name] = _stack(values)
        for name, holder in self._shape_beside.items():
            every = columns.pop(holder, [None] * len(payloads))
            if name in columns:
                shape = self._features[name].shape or ()
                pairs = zip(columns[name], every, strict=True)
                columns[name] = _stack([reshaped(name, v, sizes, shape) for v, sizes in pairs])
        return columns

    def _feature(self, name: str) -> RestoredFeature:
        feature = self._features.get(name)
        return RestoredFeature(name, FeatureType()) if feature is None else feature

    def _from_entries(self, payload: bytes, entries: list[Entry]) -> dict[str, Any]:
        features = self._features
        restored: dict[str, Any] = {}
        for name, tag, start, end in entries:
            feature = features.get(name)
            if feature is None:
                feature = RestoredFeature(name, FeatureType())
            if tag:
                restored[name] = feature.content(payload[start:end], tag, start)
            elif start == end:
                restored[name] = None
            else:
                values = decode_plain_list(payload, start, end)
                if values is None:
                    values = decode_feature(payload, start, end)
                restored[name] = None if values is None else feature.one(values)
        return restored

    def _from_values(self, found: Mapping[str, Values | None]) -> dict[str, Any]:
        return {
            name: None if values is None else self._feature(name).one(values)
            for name, values in found.items()
        }

    def _numbered(self, row: int, payload: bytes) -> dict[str, Any]:
        try:
            return self.example(payload)
        except ShardwriterError as error:
            error.record_index = row
            raise

    def _block(self, payloads: Sequence[bytes]) -> list[dict[str, Any]]:
        parts = _decoded_parts(payloads)
        values = {name: self._feature(name).listed(part.cells) for name, part in parts.items()}
        if parts and all(len(listed) == len(payloads) for listed in values.values()):
            names = list(values)
            rows = [
                dict(zip(names, row, strict=True)) for row in zip(*values.values(), strict=True)
            ]
        else:
            rows = [{} for _ in payloads]
            for name, part in parts.items():
                for number, value in zip(part.rows.tolist(), values[name], strict=True):
                    rows[number][name] = value
        return list(map(self._shaped, rows)) if self._shape_beside else rows


def _read_together(payloads: Sequence[bytes]) -> bool:
    if len(payloads) < _MIN_ROWS:
        return False
    return sum(map(len, payloads)) <= _MAX_ROW_BYTES * len(payloads)


def _decoded_parts(payloads: Sequence[bytes]) -> dict[str, Part]:
    """Read all rows: together where that can be, the others one by one."""
    parts, plain = decode_plain_parts(payloads)
    odd = np.flatnonzero(~plain).tolist()
    return put_rows(parts, {row: decode_only_example(payloads[row]) for row in odd})


def _columns_of(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any] | list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _stack([row.get(name) for row in rows]) for name in names}


def _stack(values: list[Any]) -> NDArray[Any] | list[Any]:
    """Make an array of numbers or arrays that are alike."""
    first = values[0] if values else None
    if not isinstance(first, np.generic | np.ndarray):
        return values
    look = first.dtype, first.shape
    if any(
        not isinstance(v, np.generic | np.ndarray) or (v.dtype, v.shape) != look for v in values
    ):
        return values
    return np.array(values, first.dtype) if isinstance(first, np.generic) else np.stack(values)
