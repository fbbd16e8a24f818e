"""Decode records by schema: features get back the types that the manifest records.

An Example has only three kinds of lists; the schema says whether one was a bool, a
``uint8[28,28]`` or a text. `ExampleDecoder` decodes Examples,
`SequenceDecoder` SequenceExamples; each has a `FeatureDecoder` per feature.

Memory: no result shares memory with its batch. Single numbers are numpy scalars, arrays of single
examples are writable and own their memory, and columns are one array each.
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


class _Absent:
    """The type of `ABSENT`: in a column, a record without the feature; None is an unset one."""


ABSENT: Final = _Absent()


class FeatureDecoder:
    """Converts the values of one feature from the list of an Example to their type in the schema.

    Args:
        name: Name of the feature, for errors.
        feature_type: The type in the schema; one without a kind if it is not known.

    Raises:
        ManifestError: The dtype is not one of numpy's.
        MissingExtra: It is ``bfloat16``, and ``ml_dtypes`` is not installed.
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
        """Return the value of one record whose list is one field with this content."""
        if tag == self._scalar_tag:
            if self._is_blob:
                return content
            if self.is_text:
                return self._texts((content,))[0]
            if self._integer is not None and content[-1] < 0x80 and len(content) < 3:
                value = content[0] & 0x7F | (content[-1] << 7 if len(content) == 2 else 0)
                # More than two bytes, and numbers out of range, take the slow path below.
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
        """Return the value of one record."""
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
        """Return raw bytes as ``[n, *shape]``; None if they are not of one fixed size."""
        if not self.is_raw or not self.num_values or not len(column):
            return None
        dtype = cast("np.dtype[Any]", self.dtype)
        stored = dtype.newbyteorder("<")
        if set(map(len, column)) != {self.num_values * stored.itemsize}:
            return None
        values = np.frombuffer(b"".join(column), stored).astype(dtype)
        return values.reshape(len(column), *cast("tuple[int, ...]", self.shape))

    def to_list(self, column: PlainColumn) -> list[Any]:
        """Return a column as a list with one item per row; absent is `ABSENT`, unset is None."""
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
        result: list[Any] = []
        for values in column:
            if values is None:
                result.append(ABSENT)
            elif values is UNSET:
                result.append(None)
            else:
                value = self.one(cast("Values", values))
                is_view = isinstance(value, np.ndarray) and value.base is not None
                result.append(value.copy() if is_view else value)
        return result

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
                f"{len(blobs[0]):,} raw bytes are not a whole number of {dtype}", feature=self.name
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
                f"bytes that are not UTF-8 here, but the schema says text: {error.reason}",
                feature=self.name,
            )
            raise wrong from None

    def _cast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return numbers in their dtype; raise if one is out of range."""
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
                first, last = self._limits
                low, high = int(array.min()), int(array.max())
                if low < first or high > last:
                    raise FeatureError(
                        f"{low if low < first else high} here, but the schema says {dtype}",
                        feature=self.name,
                    )
            return array.astype(dtype)
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            raise FeatureError(
                f"a number is too large for the {dtype} of the schema", feature=self.name
            ) from None

    def _full_shape(self, num_values: int) -> tuple[int, ...]:
        """Return the shape of a record's array."""
        shape = cast(Shape, self.shape)
        if self.num_values is not None:
            self._check_count(num_values)
            return cast("tuple[int, ...]", shape)
        if shape.count(None) > 1:
            return (num_values,)  # the shape feature, if any, has the shape
        known = prod(n for n in shape if n is not None)
        varying, rest = divmod(num_values, known) if known else (0, num_values)
        if rest:
            raise self._wrong_count(num_values, known, "value", "a multiple of ")
        return tuple(varying if n is None else n for n in shape)

    def _check_count(self, num_values: int) -> None:
        if num_values != self.num_values:
            raise self._wrong_count(num_values, cast(int, self.num_values), "value")

    def _wrong_count(self, found: int, expected: int, noun: str, how: str = "") -> FeatureError:
        sizes = ", ".join("null" if n is None else str(n) for n in self.shape or ())
        return FeatureError(
            f"{found:,} {noun}{'' if found == 1 else 's'} here, but the schema's shape [{sizes}] "
            f"has {how}{expected:,}",
            hint=_MANIFEST_HINT,
            feature=self.name,
        )

    def _contradiction(self, found: str) -> FeatureError:
        return FeatureError(
            f"{found} here, but the schema says {self.kind}",
            hint=_MANIFEST_HINT,
            feature=self.name,
        )


_BLOBS: Final = (None, "bytes", "string")
_MANIFEST_HINT: Final = "run `shardwriter verify` to check that the manifest is of these shards"
_copy: Final[Callable[[NDArray[Any]], NDArray[Any]]] = np.ndarray.copy


def _dtype(name: str, dtype: str) -> np.dtype[Any]:
    try:
        return dtype_named(dtype)
    except (TypeError, ValueError):
        raise ManifestError(f"{dtype!r} is not a numpy dtype", feature=name) from None


def _limits(dtype: np.dtype[Any] | None) -> tuple[int, int]:
    """Return the smallest and largest integer of a dtype; those of int64 for other dtypes."""
    if dtype is None or dtype.kind not in "biu":
        return -(1 << 63), (1 << 63) - 1
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


class SequenceDecoder:
    """Decodes SequenceExamples by schema.

    ==========================  ==================================================================
    a step in the schema        the decoded feature list
    ==========================  ==================================================================
    numbers of a fixed shape    one writable array ``[steps, *shape]``; a list if a step has no
                                value
    numbers of varying shape    a list of arrays, with None for a step without a value
    bytes or text               a list with the value of each step, or a list of values for each
    no step has a value         a list of None
    ==========================  ==================================================================

    Args:
        context: The types of the context's features, by name.
        feature_lists: The types of the steps, by feature list.

    Raises:
        ManifestError: A dtype is not one of numpy's.
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
            WireError: The payload is not a SequenceExample.
            FeatureError: A value contradicts the schema; the message has both.
        """
        context, lists = decode_sequence_example(payload)
        if not context and not lists and payload_kind(payload) == "other":
            raise WireError("no field of the record is a feature or a feature list")
        return SequenceExample(
            {
                name: None if values is None else _decoder_of(self._context, name).one(values)
                for name, values in context.items()
            },
            {
                name: _decode_steps(_decoder_of(self._lists, name), steps)
                for name, steps in lists.items()
            },
        )

    def examples(self, payloads: Sequence[bytes]) -> list[SequenceExample]:
        """Return many records.

        Raises:
            WireError, FeatureError: As `example`; ``record_index`` is the index in ``payloads``.
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
        """Raise: sequences of different lengths can not be columns.

        Raises:
            FeatureError: Always.
        """
        raise FeatureError(
            "SequenceExamples can not be read as columns",
            hint="read single records or slices, or ragged tensors with tf_dataset",
        )


def _decoder_of(features: Mapping[str, FeatureDecoder], name: str) -> FeatureDecoder:
    found = features.get(name)
    return FeatureDecoder(name, FeatureType()) if found is None else found


def _decode_steps(feature: FeatureDecoder, steps: Sequence[Values | None]) -> Any:
    dtype, shape = feature.dtype, feature.shape
    is_fixed = dtype is not None and shape is not None and feature.num_values is not None
    if not is_fixed or any(values is None for values in steps):
        return [None if values is None else feature.one(values) for values in steps]
    if not steps:
        return np.zeros((0, *(size or 0 for size in shape or ())), dtype)
    return np.stack([feature.one(values) for values in steps if values is not None])


# Larger records are decoded one by one: joining them would copy them again.
_MAX_ROW_BYTES: Final = 1 << 14
# Fewer records are decoded one by one: batch decoding has a fixed cost of half a millisecond.
_MIN_ROWS: Final = 40
# Larger blocks gain nothing, and their columns do not fit the L2 cache.
_MAX_BLOCK_ROWS: Final = 1024
_MAX_BLOCK_BYTES: Final = 1 << 20


class ExampleDecoder:
    """Decodes Examples by schema, one by one, in batches, or as columns.

    ===========================  ==================================================================
    in the schema                decoded value
    ===========================  ==================================================================
    shape ``[]``                 a numpy scalar of the dtype; ``bytes`` or ``str``
    another shape, numbers       a writable array of the dtype and shape, with its size for null
    another shape, bytes         a list of ``bytes`` or ``str``, nested by the shape
    encoding ``raw``             the array whose bytes were stored
    no shape, or no entry        ``int64[k]``, ``float32[k]`` or a list, as from `decode_example`
    ===========================  ==================================================================

    A feature that is absent from a record has no key; one without a kind is None. Values with a
    shape feature (`shape_features`) get its shape, and the shape feature is removed.

    Args:
        schema: The features' types by name, as in a manifest; may be empty.

    Raises:
        ManifestError: A dtype is not one of numpy's.
    """

    def __init__(self, schema: Mapping[str, FeatureSummary]) -> None:
        self._finder = EntryFinder()
        self._features = {name: FeatureDecoder(name, entry.type) for name, entry in schema.items()}
        self._shape_features = shape_feature_names({name: e.type for name, e in schema.items()})

    def example(self, payload: bytes) -> dict[str, Any]:
        """Return one record's features.

        Raises:
            WireError: The payload is not an Example.
            FeatureError: A feature contradicts the schema; the message has both.
        """
        row = self._flat_example(payload)
        return self._reshape(row) if self._shape_features else row

    def _reshape(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with the shapes of its shape features applied and these removed."""
        for name, shape_name in self._shape_features.items():
            sizes = row.pop(shape_name, None)
            if name in row:
                row[name] = reshaped(name, row[name], sizes, self._features[name].shape or ())
        return row

    def _flat_example(self, payload: bytes) -> dict[str, Any]:
        payload = bytes(payload)
        entries = self._finder.find(payload)
        if entries is not None:
            features = self._from_entries(payload, entries)
            if len(features) == len(entries):  # else a name is repeated
                return features
        return self._from_values(decode_only_example(payload))

    def examples(self, payloads: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return the features of many records, equal to `example` of each.

        Raises:
            WireError, FeatureError: As `example`; ``record_index`` is the index in ``payloads``.
        """
        if not _use_batches(payloads):
            return [self._example_at(row, payload) for row, payload in enumerate(payloads)]
        rows: list[dict[str, Any]] = []
        mean_bytes = sum(map(len, payloads)) // len(payloads)
        num_rows = min(_MAX_BLOCK_ROWS, max(16, _MAX_BLOCK_BYTES // max(1, mean_bytes)))
        try:
            for begin in range(0, len(payloads), num_rows):
                rows += self._block(payloads[begin : begin + num_rows])
        except ShardwriterError:
            # Decoding one by one finds the record and raises with its index.
            return [self._example_at(row, payload) for row, payload in enumerate(payloads)]
        return rows

    def columns(self, payloads: Sequence[bytes]) -> dict[str, NDArray[Any] | list[Any]]:
        """Return the features of many records by name.

        A column is an array ``[n, ...]`` of the dtype if every record has numbers of the same
        shape; else a list of n values, with None for an absent or unset feature.

        Raises:
            WireError, FeatureError: As `example`; ``record_index`` is the index in ``payloads``.
        """
        if payloads and not _use_batches(payloads):
            return _columns_of(self.examples(payloads))
        try:
            return self._columns(payloads)
        except ShardwriterError:
            for row, payload in enumerate(payloads):
                self._example_at(row, payload)
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
            values = [None if v is ABSENT else v for v in feature.to_list(column)]
            columns[name] = _stack(values)
        for name, shape_name in self._shape_features.items():
            shapes = columns.pop(shape_name, [None] * len(payloads))
            if name in columns:
                shape = self._features[name].shape or ()
                pairs = zip(columns[name], shapes, strict=True)
                columns[name] = _stack([reshaped(name, v, sizes, shape) for v, sizes in pairs])
        return columns

    def _feature(self, name: str) -> FeatureDecoder:
        feature = self._features.get(name)
        return FeatureDecoder(name, FeatureType()) if feature is None else feature

    def _from_entries(self, payload: bytes, entries: list[Entry]) -> dict[str, Any]:
        features = self._features
        decoded: dict[str, Any] = {}
        for name, tag, start, end in entries:
            feature = features.get(name)
            if feature is None:
                feature = FeatureDecoder(name, FeatureType())
            if tag:
                decoded[name] = feature.content(payload[start:end], tag, start)
            elif start == end:
                decoded[name] = None
            else:
                values = decode_plain_list(payload, start, end)
                if values is None:
                    values = decode_feature(payload, start, end)
                decoded[name] = None if values is None else feature.one(values)
        return decoded

    def _from_values(self, found: Mapping[str, Values | None]) -> dict[str, Any]:
        return {
            name: None if values is None else self._feature(name).one(values)
            for name, values in found.items()
        }

    def _example_at(self, row: int, payload: bytes) -> dict[str, Any]:
        try:
            return self.example(payload)
        except ShardwriterError as error:
            error.record_index = row
            raise

    def _block(self, payloads: Sequence[bytes]) -> list[dict[str, Any]]:
        parts = _decoded_parts(payloads)
        values = {name: self._feature(name).to_list(part.cells) for name, part in parts.items()}
        if parts and all(len(column) == len(payloads) for column in values.values()):
            names = list(values)
            rows = [
                dict(zip(names, row, strict=True)) for row in zip(*values.values(), strict=True)
            ]
        else:
            rows = [{} for _ in payloads]
            for name, part in parts.items():
                for number, value in zip(part.rows.tolist(), values[name], strict=True):
                    rows[number][name] = value
        return list(map(self._reshape, rows)) if self._shape_features else rows


def _use_batches(payloads: Sequence[bytes]) -> bool:
    if len(payloads) < _MIN_ROWS:
        return False
    return sum(map(len, payloads)) <= _MAX_ROW_BYTES * len(payloads)


def _decoded_parts(payloads: Sequence[bytes]) -> dict[str, Part]:
    """Return the features of all rows, decoded as a batch if possible, else one by one."""
    parts, plain = decode_plain_parts(payloads)
    odd = np.flatnonzero(~plain).tolist()
    return add_rows(parts, {row: decode_only_example(payloads[row]) for row in odd})


def _columns_of(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any] | list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _stack([row.get(name) for row in rows]) for name in names}


def _stack(values: list[Any]) -> NDArray[Any] | list[Any]:
    """Return values as an array if they are numbers or arrays of one dtype and shape."""
    first = values[0] if values else None
    if not isinstance(first, np.generic | np.ndarray):
        return values
    form = first.dtype, first.shape
    if any(
        not isinstance(v, np.generic | np.ndarray) or (v.dtype, v.shape) != form for v in values
    ):
        return values
    return np.array(values, first.dtype) if isinstance(first, np.generic) else np.stack(values)
