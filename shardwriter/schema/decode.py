"""What was written comes back: decoded features take the types that a manifest tells.

An Example knows three kinds of lists. The schema knows what they were: a bool, a ``uint8[28,28]``,
a text (FORMATS.md, F8 and F9).

Memory: nothing that is handed out keeps a batch alive. Numbers by themselves are numpy scalars,
arrays of single examples are writable and their own. Columns are one array each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, ManifestError, ShardwriterError, WireError
from shardwriter.formats import (
    KIND_OF_TAG,
    UNSET,
    Entry,
    EntryFinder,
    Kind,
    Part,
    PlainColumn,
    SequenceExample,
    SingleBlobs,
    Values,
    add_rows,
    check_packed,
    decode_feature,
    decode_only_example,
    decode_plain_list,
    decode_plain_parts,
    decode_sequence_example,
    dtype_named,
    list_spelling,
    payload_kind,
    to_columns,
    unpack,
)
from shardwriter.schema.feature_types import FeatureType, Shape, reshaped, shape_feature_names
from shardwriter.schema.schema import FeatureSummary

# One feature's way back: from the list that an Example holds to the type that a schema tells.


class _Absent:
    """In a column, where a record has no such feature; None there is an unset one."""


ABSENT: Final = _Absent()


class FeatureDecoder:
    """One feature's way back.

    Args:
        name: Of the feature, for errors.
        feature_type: What it was when it was written; of no kind where that is not known.

    Raises:
        ManifestError: The dtype is none of numpy's.
        MissingExtra: It is ``bfloat16``, and there is no ``ml_dtypes``.
    """

    def __init__(self, name: str, feature_type: FeatureType) -> None:
        self.name = name
        self.kind: Kind | None = feature_type.kind
        self.shape: Shape | None = feature_type.shape
        self.is_text = feature_type.dtype == "string"
        self.is_raw = feature_type.encoding == "raw" and feature_type.dtype not in _BLOBS
        self.dtype: np.dtype[Any] | None = None
        if feature_type.dtype is not None and (self.kind != "bytes" or self.is_raw):
            self.dtype = _dtype(name, feature_type.dtype)
        self._limits = _limits(self.dtype)
        self.num_values = (
            None if self.shape is None or None in self.shape else prod(cast(Any, self.shape))
        )
        self._scalar_tag = 0
        if self.shape == () and not self.is_raw and self.kind is not None:
            self._scalar_tag = next(tag for tag, kind in KIND_OF_TAG.items() if kind == self.kind)
        self._integer = self.dtype.type if self.dtype is not None and self.kind == "int64" else None
        self._is_plain_float = self.kind == "float" and self.dtype == np.float32
        self._is_blob = self.kind == "bytes" and not self.is_text

    def content(self, content: bytes, tag: int, offset: int) -> Any:
        """Return what one record holds, whose list is one field with this content."""
        if tag == self._scalar_tag:
            if self._is_blob:
                return content
            if self.is_text:
                return self._texts((content,))[0]
            if self._integer is not None and content[-1] < 0x80 and len(content) < 3:
                value = content[0] & 0x7F | (content[-1] << 7 if len(content) == 2 else 0)
                # Over two bytes, and what the dtype does not hold, is for the long way.
                if (
                    self._limits[0] <= value <= self._limits[1]
                    and content[0] >> 7 == len(content) - 1
                ):
                    return self._integer(value)
            if self._is_plain_float and len(content) == 4:
                return np.frombuffer(content, "<f4")[0]
        kind = KIND_OF_TAG[tag]
        if kind == "bytes":
            return self._one_of_bytes([content])
        check_packed(content, 0, len(content), kind)
        return self.one(unpack(content, kind, offset))

    def one(self, values: Values) -> Any:
        """Return what one record holds."""
        if isinstance(values, list):
            return self._one_of_bytes(values)
        array = self._cast(values)
        if self.shape is None:
            return array
        if not self.shape:
            self._check_count(array.size)
            return array[0]
        return array.reshape(self._full_shape(array.size))

    def stacked(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a column ``[n, k]`` as ``[n, *shape]``."""
        num_rows, num_values = column.shape
        array = self._cast(column)
        if self.shape is None:
            return array
        return array.reshape(num_rows, *self._full_shape(num_values))

    def stacked_raw(self, column: SingleBlobs) -> NDArray[Any] | None:
        """Return raw bytes as ``[n, *shape]``; None where they are not of one fixed size."""
        if not self.is_raw or not self.num_values or not len(column):
            return None
        dtype = cast("np.dtype[Any]", self.dtype)
        stored = dtype.newbyteorder("<")
        if set(map(len, column)) != {self.num_values * stored.itemsize}:
            return None
        values = np.frombuffer(b"".join(column), stored).astype(dtype)
        return values.reshape(len(column), *cast("tuple[int, ...]", self.shape))

    def listed(self, column: PlainColumn) -> list[Any]:
        """Return a column as a list by rows: `ABSENT` where there is nothing, None for unset."""
        if isinstance(column, np.ndarray):
            stacked = self.stacked(column)
            return list(stacked) if stacked.ndim == 1 else list(map(_copy, stacked))
        if isinstance(column, SingleBlobs):
            stacked_raw = self.stacked_raw(column)
            if stacked_raw is not None:
                return list(stacked_raw) if stacked_raw.ndim == 1 else list(map(_copy, stacked_raw))
            if self.kind == "bytes" and self.shape == () and not self.is_raw:
                return self._texts(column) if self.is_text else list(column)
            column = column.in_lists()
        listed: list[Any] = []
        for values in column:
            if values is None:
                listed.append(ABSENT)
            elif values is UNSET:
                listed.append(None)
            else:
                value = self.one(cast("Values", values))
                # It may be a part of what all rows share.
                own = not isinstance(value, np.ndarray) or value.base is None
                listed.append(value if own else value.copy())
        return listed

    def _one_of_bytes(self, blobs: list[bytes]) -> Any:
        if self.kind is None:
            return blobs
        if self.kind != "bytes":
            raise self._contradiction("bytes")
        if self.is_raw:
            return self._raw(blobs)
        values: list[Any] = self._texts(blobs) if self.is_text else blobs
        if self.shape is None:
            return values
        if not self.shape:
            self._check_count(len(values))
            return values[0]
        shape = self._full_shape(len(values))
        if len(shape) == 1:
            return values
        nested = np.empty(len(values), object)
        nested[:] = values
        return nested.reshape(shape).tolist()

    def _raw(self, blobs: list[bytes]) -> Any:
        if len(blobs) != 1:
            raise self._wrong_count(len(blobs), 1, "blob")
        dtype = cast("np.dtype[Any]", self.dtype)
        stored = dtype.newbyteorder("<")
        num_values, rest = divmod(len(blobs[0]), stored.itemsize)
        if rest:
            raise FeatureError(
                f"{len(blobs[0]):,} raw bytes are no whole number of {dtype}", feature=self.name
            )
        array = np.frombuffer(blobs[0], stored).astype(dtype)
        if self.shape is None:
            return array
        if not self.shape:
            self._check_count(num_values)
            return array[0]
        return array.reshape(self._full_shape(num_values))

    def _texts(self, blobs: Sequence[bytes]) -> list[str]:
        try:
            return [blob.decode() for blob in blobs]
        except UnicodeDecodeError as error:
            wrong = FeatureError(
                f"bytes that are no UTF-8, and the schema says text: {error.reason}",
                feature=self.name,
            )
            raise wrong from None

    def _cast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Give numbers their dtype, if it can hold them."""
        dtype = self.dtype
        if self.kind is None:
            return array
        kind = "float" if array.dtype.kind == "f" else "int64"
        if kind != self.kind:
            raise self._contradiction(kind)
        if dtype is None or array.dtype == dtype:
            return array
        if kind == "int64":
            if array.size:
                low, high = self._limits
                least, most = int(array.min()), int(array.max())
                if least < low or most > high:
                    raise FeatureError(
                        f"{least if least < low else most} is here, and the schema says {dtype}",
                        feature=self.name,
                    )
            return array.astype(dtype)
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            raise FeatureError(
                f"a number here is too large for the {dtype} of the schema", feature=self.name
            ) from None

    def _full_shape(self, num_values: int) -> tuple[int, ...]:
        """Return the shape of a record's array."""
        shape = cast(Shape, self.shape)
        if self.num_values is not None:
            self._check_count(num_values)
            return cast("tuple[int, ...]", shape)
        if shape.count(None) > 1:
            return (num_values,)  # which shape it has stands beside it, if anywhere
        known = prod(n for n in shape if n is not None)
        varies, rest = divmod(num_values, known) if known else (0, num_values)
        if rest:
            raise self._wrong_count(num_values, known, "value", "a multiple of ")
        return tuple(varies if n is None else n for n in shape)

    def _check_count(self, num_values: int) -> None:
        if num_values != self.num_values:
            raise self._wrong_count(num_values, cast(int, self.num_values), "value")

    def _wrong_count(self, found: int, expected: int, noun: str, how: str = "") -> FeatureError:
        shape = [] if self.shape is None else ["null" if n is None else n for n in self.shape]
        told = ", ".join(map(str, shape))
        return FeatureError(
            f"{found:,} {noun}{'' if found == 1 else 's'} here, and the schema's shape [{told}] "
            f"has {how}{expected:,}",
            hint="is the manifest that of these shards? `shardwriter verify` tells",
            feature=self.name,
        )

    def _contradiction(self, found: str) -> FeatureError:
        return FeatureError(
            f"{found} here, and the schema says {self.kind}",
            hint="is the manifest that of these shards? `shardwriter verify` tells",
            feature=self.name,
        )


_BLOBS: Final = (None, "bytes", "string")
_copy: Final[Callable[[NDArray[Any]], NDArray[Any]]] = np.ndarray.copy


def _dtype(name: str, dtype: str) -> np.dtype[Any]:
    try:
        return dtype_named(dtype)
    except (TypeError, ValueError):
        raise ManifestError(f"{dtype!r} is no dtype of numpy", feature=name) from None


def _limits(dtype: np.dtype[Any] | None) -> tuple[int, int]:
    """Return the least and the greatest integer that a dtype holds, as far as that matters."""
    if dtype is None or dtype.kind not in "biu":
        return -(1 << 63), (1 << 63) - 1
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


# SequenceExamples come back: contexts and steps take the types that a manifest tells.
#
# ==========================  ===================================================================
# a step in the schema        what a feature list comes back as
# ==========================  ===================================================================
# numbers of a fixed shape    one writable array ``[steps, *shape]``; a list where a step has no
# value numbers, a shape varies     a list of arrays, None for a step without a value bytes, text
# a list of what a step has: one value, or a list of them no step ever had a value    a list of None
# ==========================  ===================================================================


class SequenceDecoder:
    """Gives SequenceExamples the types of a schema.

    Args:
        context: The types of the context's features, by name.
        feature_lists: The types of the steps, by feature list.

    Raises:
        ManifestError: An entry names no dtype of numpy.
    """

    def __init__(
        self,
        context: Mapping[str, FeatureSummary],
        feature_lists: Mapping[str, FeatureSummary],
    ) -> None:
        self._context = {n: FeatureDecoder(n, s.type) for n, s in context.items()}
        self._lists = {
            n: FeatureDecoder(list_spelling(n), s.type) for n, s in feature_lists.items()
        }

    def example(self, payload: bytes) -> SequenceExample:
        """Return one record.

        Raises:
            WireError: The payload is not the bytes of a SequenceExample.
            FeatureError: A value is not what the schema says; says what is there instead.
        """
        context, lists = decode_sequence_example(payload)
        if not context and not lists and payload_kind(payload) == "other":
            raise WireError("no field of the record is a feature or a feature list")
        return SequenceExample(
            {
                name: None if values is None else _known(self._context, name).one(values)
                for name, values in context.items()
            },
            {name: _steps(_known(self._lists, name), steps) for name, steps in lists.items()},
        )

    def examples(self, payloads: Sequence[bytes]) -> list[SequenceExample]:
        """Return many records.

        Raises:
            WireError, FeatureError: Likewise; ``record_index`` is the place in ``payloads``.
        """
        rows = []
        for row, payload in enumerate(payloads):
            try:
                rows.append(self.example(payload))
            except ShardwriterError as error:
                error.record_index = row
                raise
        return rows

    def columns(self, payloads: Sequence[bytes]) -> NoReturn:
        """Refuse: sequences of many lengths are no columns.

        Raises:
            FeatureError: Always.
        """
        raise FeatureError(
            "SequenceExamples have no columns",
            hint="read them one by one, by slices, or as ragged tensors with tf_dataset",
        )


def _known(features: Mapping[str, FeatureDecoder], name: str) -> FeatureDecoder:
    found = features.get(name)
    return FeatureDecoder(name, FeatureType()) if found is None else found


def _steps(feature: FeatureDecoder, steps: Sequence[Values | None]) -> Any:
    dtype, shape = feature.dtype, feature.shape
    is_fixed = dtype is not None and shape is not None and feature.num_values is not None
    if not is_fixed or any(values is None for values in steps):
        return [None if values is None else feature.one(values) for values in steps]
    if not steps:
        return np.zeros((0, *(size or 0 for size in shape or ())), dtype)
    return np.stack([feature.one(values) for values in steps if values is not None])


# Records over this are read one by one: their bytes are copied once, and not joined before.
_MAX_ROW_BYTES: Final = 1 << 14
# So are fewer records than this: reading together begins with work of half a millisecond.
_MIN_ROWS: Final = 40
# Records that are read together: more gain nothing, and their columns leave the L2 cache.
_MAX_BLOCK_ROWS: Final = 1024
_MAX_BLOCK_BYTES: Final = 1 << 20


class ExampleDecoder:
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
        self._features = {name: FeatureDecoder(name, entry.type) for name, entry in schema.items()}
        self._shape_beside = shape_feature_names({name: e.type for name, e in schema.items()})

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

    def _feature(self, name: str) -> FeatureDecoder:
        feature = self._features.get(name)
        return FeatureDecoder(name, FeatureType()) if feature is None else feature

    def _from_entries(self, payload: bytes, entries: list[Entry]) -> dict[str, Any]:
        features = self._features
        restored: dict[str, Any] = {}
        for name, tag, start, end in entries:
            feature = features.get(name)
            if feature is None:
                feature = FeatureDecoder(name, FeatureType())
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
    return add_rows(parts, {row: decode_only_example(payloads[row]) for row in odd})


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
