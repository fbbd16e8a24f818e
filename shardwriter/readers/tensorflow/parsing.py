"""Parsing records in a TensorFlow graph, by the schema that the manifest has.

=====================  =============================================================================
in the schema          in the graph
=====================  =============================================================================
a scalar               a scalar of its dtype; a string stays ``tf.string``
a fixed shape          a dense tensor of it
a dimension varies     one record: a dense tensor of its own size. A batch: a ``tf.RaggedTensor``
                       with that dimension ragged; ``.to_tensor()`` pads it
several vary           the values as a flat list, as their record has no more
an image               its file, for ``tf.io.decode_image``
raw bytes of an array  the array
only ever unset        left out: there is nothing to parse
=====================  =============================================================================

Every dtype is that of the values that were written, so ``bool``, ``uint8``, ``float16`` and
``float64`` come back although an Example has int64 and float32 only.

A feature that some records lack never stops an epoch. It is empty where its length varies; else
it is filled: with 0, False, NaN or ``""``, or with what ``defaults`` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf

from shardwriter.errors import OptionError
from shardwriter.features.feature_types import FeatureType, Shape
from shardwriter.features.schema import FeatureSummary
from shardwriter.readers.dataset import PAD_KEY, Dataset

Parser = Callable[[Any], dict[str, Any]]

_WIRE_DTYPES: Final = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
# What tf.io.decode_raw does not know is read as its equal in size.
_RAW_DTYPES: Final = {"bool": "uint8", "uint32": "int32", "uint64": "int64"}


@dataclass(frozen=True)
class _Field:
    """How one feature is parsed: what TensorFlow is asked for, and what its values become."""

    name: str
    type: FeatureType
    spec: Any

    @property
    def shape(self) -> Shape:
        return self.type.shape or ()


def schema_spec(
    features: Mapping[str, FeatureSummary],
    num_records: int,
    *,
    names: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what ``tf.io.parse_example`` is asked for: a TensorFlow feature by name.

    Args:
        features: The schema.
        num_records: Of the dataset: a feature that was counted less often may be absent.
        names: Features to parse; None for all.
        defaults: What an absent feature of a fixed shape is, by name: a scalar, or a whole value.

    Raises:
        OptionError: There is no schema, or no feature of a name.
    """
    fields = _fields(features, num_records, names, defaults)
    return {field.name: field.spec for field in fields}


def schema_parser(
    features: Mapping[str, FeatureSummary],
    num_records: int,
    *,
    is_batch: bool,
    names: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Parser:
    """Return a function of serialized examples that gives the tensors of their features.

    Args:
        features: The schema.
        num_records: Of the dataset.
        is_batch: Whether it is given ``string[n]``, which is several times faster for each record,
            or one ``string``.
        names: Features to parse; None for all.
        defaults: What an absent feature of a fixed shape is, by name.

    Raises:
        OptionError: There is no schema, or no feature of a name.
    """
    fields = _fields(features, num_records, names, defaults)
    spec = {field.name: field.spec for field in fields}
    if is_batch:
        return lambda payloads: _restored(tf.io.parse_example(payloads, spec), fields, _of_batch)
    return lambda payload: _restored(tf.io.parse_single_example(payload, spec), fields, _of_record)


def element_parser(
    data: Dataset,
    parse: bool | Mapping[str, Any],
    names: Sequence[str] | None,
    defaults: Mapping[str, Any] | None,
    *,
    is_batch: bool,
    has_pads: bool,
) -> Callable[..., Any] | None:
    """Return what is mapped over payloads, or over payloads and marks of padding.

    Args:
        data: The dataset.
        parse: True for its schema; a mapping for TensorFlow; False for no parsing.
        names: Features to parse; None for all.
        defaults: What an absent feature of a fixed shape is, by name.
        is_batch: Whether it is given ``string[n]`` or one ``string``.
        has_pads: Whether marks of padding come, too.

    Returns:
        The function; None for no parsing.

    Raises:
        OptionError: Options do not go together, or with the features that there are.
    """
    if parse is False:
        if names is not None or defaults is not None:
            raise OptionError("features and defaults are for parsing, and parse is False")
        return None
    if has_pads:
        known = data.features if parse is True else parse
        _check_no_pad_key(known if names is None else names)
    if parse is True:
        parser = schema_parser(
            data.features,
            data.num_source_records,
            is_batch=is_batch,
            names=names,
            defaults=defaults,
        )
    else:
        if names is not None or defaults is not None:
            raise OptionError("features and defaults are for the schema, and parse is a mapping")
        spec = dict(parse)
        one = tf.io.parse_example if is_batch else tf.io.parse_single_example

        def parser(payloads: Any) -> dict[str, Any]:
            parsed: dict[str, Any] = one(payloads, spec)
            return parsed

    def parsed(payloads: Any, is_pad: Any = None) -> dict[str, Any]:
        values = parser(payloads)
        if is_pad is None:
            return values
        return {**values, PAD_KEY: is_pad}

    return parsed


def _check_no_pad_key(names: Iterable[str]) -> None:
    if PAD_KEY in names:
        raise OptionError(
            f"records have a feature {PAD_KEY!r}, which is what marks pads",
            hint="say uneven='wrap' or 'drop', or choose others with features=",
        )


def _restored(
    parsed: dict[str, Any], fields: list[_Field], restore: Callable[[Any, _Field], Any]
) -> dict[str, Any]:
    return {field.name: restore(parsed[field.name], field) for field in fields}


# -- what TensorFlow is asked for ------------------------------------------------------------------


def _fields(
    features: Mapping[str, FeatureSummary],
    num_records: int,
    names: Sequence[str] | None,
    defaults: Mapping[str, Any] | None,
) -> list[_Field]:
    if not features:
        raise OptionError(
            "nothing is known of the features of these records",
            hint="give a mapping as parse=, as tf.io.parse_example takes it, or parse=False for "
            "serialized examples",
        )
    if names is not None and (isinstance(names, str) or not names):
        raise OptionError(f"features is {names!r}", hint="give a list of names")
    defaults = defaults or {}
    for name in [*(names or ()), *defaults]:
        if name not in features:
            known = ", ".join(sorted(features)[:8])
            raise OptionError(f"there is no feature {name!r}", hint=f"there are: {known}")
    fields = []
    for name in sorted(features) if names is None else names:
        summary = features[name]
        if summary.type.kind is not None:
            is_always_there = summary.present == num_records and not summary.unset
            default = None if is_always_there else _default(name, summary.type, defaults.get(name))
            fields.append(_Field(name, summary.type, _spec(summary.type, default)))
    return fields


def _spec(feature: FeatureType, default: Any) -> Any:
    assert feature.kind is not None
    dtype = _WIRE_DTYPES[feature.kind]
    if feature.encoding == "raw":
        return tf.io.FixedLenFeature([], dtype, default)
    if _is_fixed(feature.shape):
        return tf.io.FixedLenFeature(list(feature.shape or ()), dtype, default)
    return tf.io.RaggedFeature(dtype)


def _is_fixed(shape: Shape | None) -> bool:
    """Say whether all values have one size; TensorFlow takes an empty list for no list."""
    return shape is not None and None not in shape and 0 not in shape


def _default(name: str, feature: FeatureType, chosen: Any) -> Any:
    """Return what stands for an absent feature; None where that is an empty list."""
    if feature.encoding == "raw":
        shape = [size or 0 for size in feature.shape or ()]
        fill = _fill(feature) if chosen is None else chosen
        return np.full(shape, fill, np.dtype(feature.dtype).newbyteorder("<")).tobytes()
    if not _is_fixed(feature.shape):
        if chosen is not None:
            raise OptionError(
                f"the length of {name!r} varies, so where it is absent it is empty",
                hint="leave it out of defaults",
            )
        return None
    wire = {"int64": np.int64, "float": np.float32}.get(feature.kind or "", object)
    shape = [size or 0 for size in feature.shape or ()]
    fill = np.asarray(_fill(feature) if chosen is None else chosen, wire)
    try:
        return np.broadcast_to(fill, shape).tolist()
    except ValueError:
        told = f"defaults: {name!r} has the shape {shape}, not {list(fill.shape)}"
        raise OptionError(told) from None


def _fill(feature: FeatureType) -> Any:
    if feature.encoding == "raw":
        return math.nan if np.dtype(feature.dtype).kind == "f" else 0
    return {"int64": 0, "float": math.nan, "bytes": b""}[feature.kind or "bytes"]


# -- what becomes of it ----------------------------------------------------------------------------


def _of_record(value: Any, field: _Field) -> Any:
    """Give one record's value its shape and dtype."""
    if field.type.encoding == "raw":
        value = _decode_raw(value, field)
    elif field.type.encoding == "image":
        return value
    # Where several dimensions vary the record has only the product.
    if field.shape.count(None) <= 1 and field.type.shape is not None:
        unknown = 0 if 0 in field.shape else -1
        value = tf.reshape(value, [unknown if size is None else size for size in field.shape])
    return _cast(value, field.type.dtype)


def _of_batch(value: Any, field: _Field) -> Any:
    """Give the values of a batch their shape and dtype; a dimension that varies is ragged."""
    feature = field.type
    if feature.encoding == "raw":
        if _is_fixed(feature.shape):
            values = _decode_raw(value, field)
            return _cast(tf.reshape(values, [-1, *field.shape]), feature.dtype)
        # decode_raw wants strings of one length: one string of them all has one.
        flat = _decode_raw(tf.strings.reduce_join(value), field)
        width = np.dtype(_raw_dtype(feature)).itemsize
        lengths = tf.strings.length(value, unit="BYTE") // width
        value = tf.RaggedTensor.from_row_lengths(flat, lengths)
    if not isinstance(value, tf.RaggedTensor):
        return _cast(value, feature.dtype)
    value = value.with_values(_cast(value.values, feature.dtype))
    return _shaped(value, field.shape)


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


def _raw_dtype(feature: FeatureType) -> str:
    return _RAW_DTYPES.get(feature.dtype or "uint8", feature.dtype or "uint8")


def _decode_raw(value: Any, field: _Field) -> Any:
    values = tf.io.decode_raw(value, _raw_dtype(field.type), little_endian=True)
    if field.type.dtype in ("uint32", "uint64"):
        return tf.bitcast(values, field.type.dtype)
    return values


def _cast(values: Any, dtype: str | None) -> Any:
    if values.dtype == tf.string or dtype is None:
        return values
    return tf.cast(values, dtype)
