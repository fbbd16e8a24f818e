"""What parsed values become in a TensorFlow graph: tensors of the schema's shapes and dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf

from shardwriter.formats.raw_array import dtype_named
from shardwriter.schema.feature_types import FeatureType, Shape

# What tf.io.decode_raw does not know is read as its equal in size.
_RAW_DTYPES: Final = {"bool": "uint8", "uint32": "int32", "uint64": "int64"}


@dataclass(frozen=True)
class Field:
    """How one feature is parsed: what TensorFlow is asked for, and what its values become.

    ``holder`` is the feature that holds the shapes of this one, where there is one.
    """

    name: str
    type: FeatureType
    spec: Any
    holder: str | None = None

    @property
    def shape(self) -> Shape:
        """The schema's shape; that of a scalar where it has none."""
        return self.type.shape or ()


def is_fixed(shape: Shape | None) -> bool:
    """Say whether all values have one size; TensorFlow takes an empty list for no list."""
    return shape is not None and None not in shape and 0 not in shape


def of_record(value: Any, field: Field, sizes: Any = None) -> Any:
    """Give one record's value its shape and dtype; ``sizes`` is the shape beside it."""
    if field.type.encoding == "raw":
        value = _decode_raw(value, field)
    elif field.type.encoding == "image":
        return value
    if sizes is not None:
        value = tf.ensure_shape(tf.reshape(value, sizes), field.shape)
    # Where several dimensions vary the values have only the product.
    elif field.shape.count(None) <= 1 and field.type.shape is not None:
        unknown = 0 if 0 in field.shape else -1
        value = tf.reshape(value, [unknown if size is None else size for size in field.shape])
    return _cast(value, field.type.dtype)


def of_batch(value: Any, field: Field, sizes: Any = None) -> Any:
    """Give the values of a batch their shape and dtype; a dimension that varies is ragged.

    ``sizes`` is ``int64[n, rank]``, the shapes beside them.
    """
    feature = field.type
    if feature.encoding == "raw":
        if is_fixed(feature.shape):
            values = _decode_raw(value, field)
            return _cast(tf.reshape(values, [-1, *field.shape]), feature.dtype)
        # decode_raw wants strings of one length: one string of them all has one.
        flat = _decode_raw(tf.strings.reduce_join(value), field)
        width = numpy_dtype(feature).itemsize
        lengths = tf.strings.length(value, unit="BYTE") // width
        value = tf.RaggedTensor.from_row_lengths(flat, lengths)
    if not isinstance(value, tf.RaggedTensor):
        return _cast(value, feature.dtype)
    value = value.with_values(_cast(value.values, feature.dtype))
    return _shaped(value, field.shape) if sizes is None else _shaped_each(value, sizes, field.shape)


def _shaped(rows: Any, shape: Shape) -> Any:
    """Give the ragged ``[n, (k)]`` values of n records their shape.

    Values stand in C order. With the dimension that varies at i, a record has as many rows as the
    dimensions before i have places, all of one length.
    """
    if 0 in shape and None not in shape:
        return tf.zeros([rows.nrows(), *shape], rows.dtype)
    if shape.count(None) != 1 or len(shape) == 1 or 0 in shape:
        return rows
    varying = shape.index(None)
    before = [size or 1 for size in shape[:varying]]
    after = [size or 1 for size in shape[varying + 1 :]]
    num_rows = math.prod(before)
    lengths = tf.repeat(rows.row_lengths() // (num_rows * math.prod(after)), num_rows)
    values = tf.reshape(rows.values, [-1, *after])
    shaped = tf.RaggedTensor.from_row_lengths(values, lengths)
    for size in reversed(before):
        shaped = tf.RaggedTensor.from_uniform_row_length(shaped, size)
    return shaped


def _shaped_each(rows: Any, sizes: Any, shape: Shape) -> Any:
    """Give the ragged ``[n, (k)]`` values of n records a shape each: ``sizes`` is ``[n, rank]``."""
    last = max(place for place, size in enumerate(shape) if size is None)
    owners = tf.range(rows.nrows())  # whose record a row of this depth is of
    lengths = []
    for place in range(last + 1):
        lengths.append(tf.gather(sizes[:, place], owners))
        owners = tf.repeat(owners, lengths[-1])
    shaped = rows.values
    inner = [size or 0 for size in shape[last + 1 :]]
    if inner:
        # Not -1 in front, which a size of 0 would leave open.
        shaped = tf.reshape(shaped, tf.concat([[tf.size(owners)], inner], 0))
        shaped = tf.ensure_shape(shaped, [None, *inner])
    for place in range(last, -1, -1):
        size = shape[place]
        if size is None or place == 0:
            shaped = tf.RaggedTensor.from_row_lengths(shaped, lengths[place])
        else:
            num_rows = tf.size(lengths[place], tf.int64)
            shaped = tf.RaggedTensor.from_uniform_row_length(shaped, size, nrows=num_rows)
    return shaped


def numpy_dtype(feature: FeatureType) -> np.dtype[Any]:
    """Return the dtype of an array that is stored as raw bytes."""
    return dtype_named(feature.dtype or "uint8")


def _raw_dtype(feature: FeatureType) -> str:
    return _RAW_DTYPES.get(feature.dtype or "uint8", feature.dtype or "uint8")


def _decode_raw(value: Any, field: Field) -> Any:
    values = tf.io.decode_raw(value, _raw_dtype(field.type), little_endian=True)
    if field.type.dtype in ("uint32", "uint64"):
        return tf.bitcast(values, field.type.dtype)
    return values


def _cast(values: Any, dtype: str | None) -> Any:
    if values.dtype == tf.string or dtype is None:
        return values
    return tf.cast(values, dtype)
