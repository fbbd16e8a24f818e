"""Parsing records in a TensorFlow graph, by the schema that the manifest has.

=====================  =============================================================================
in the schema          in the graph
=====================  =============================================================================
a scalar               a scalar of its dtype; a string stays ``tf.string``
a fixed shape          a dense tensor of it
a dimension varies     one record: a dense tensor of its own size. A batch: a ``tf.RaggedTensor``
                       with that dimension ragged; ``.to_tensor()`` pads it
several vary           likewise, with all dimensions down to the last one that varies ragged: their
                       shape stands beside them. Where it does not, the values as a flat list
an image               its file, for ``tf.io.decode_image``
raw bytes of an array  the array
only ever unset        left out: there is nothing to parse
=====================  =============================================================================

Every dtype is that of the values that were written, so ``bool``, ``uint8``, ``float16`` and
``float64`` come back although an Example has int64 and float32 only.

SequenceExamples give ``{"context": {...}, "feature_lists": {...}}``; see `sequences`.

A feature that some records lack never stops an epoch. It is empty where its length varies; else
it is filled: with 0, False, NaN or ``""``, or with what ``defaults`` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import tensorflow as tf

from shardwriter.errors import OptionError
from shardwriter.formats import dtype_named
from shardwriter.reading.dataset import PAD_KEY, Dataset
from shardwriter.schema import FeatureSummary, FeatureType, Shape, shape_feature_names

# What parsed values become in a TensorFlow graph: tensors of the schema's shapes and dtypes.

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


Parser = Callable[[Any], dict[str, Any]]

WIRE_DTYPES: Final = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}


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
    return specs_of(fields_of(features, num_records, names, defaults))


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
    fields = fields_of(features, num_records, names, defaults)
    spec = specs_of(fields)
    if is_batch:
        return lambda payloads: with_types(tf.io.parse_example(payloads, spec), fields, of_batch)
    return lambda payload: with_types(tf.io.parse_single_example(payload, spec), fields, of_record)


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
    lists = data.feature_lists if parse is True else None
    if lists is not None and (lists or data.features):
        if names is not None or defaults is not None:
            raise OptionError(
                "features and defaults are for Examples, and these are SequenceExamples",
                hint="leave them off, or give parse=False and parse the records yourself",
            )
        parser = sequence_parser(data.features, lists, is_batch=is_batch)
    elif parse is True:
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


def specs_of(fields: list[Field]) -> dict[str, Any]:
    """Return what TensorFlow is asked for, with the features that hold shapes."""
    specs = {field.name: field.spec for field in fields}
    for field in fields:
        if field.holder is not None:
            rank = len(field.shape)
            specs[field.holder] = tf.io.FixedLenFeature([rank], tf.int64, [0] * rank)
    return specs


def with_types(
    parsed: dict[str, Any], fields: list[Field], restore: Callable[[Any, Field, Any], Any]
) -> dict[str, Any]:
    """Give values shape and dtype; some have their shapes beside them."""
    return {
        field.name: restore(
            parsed[field.name], field, None if field.holder is None else parsed[field.holder]
        )
        for field in fields
    }


# -- what TensorFlow is asked for ------------------------------------------------------------------


def fields_of(
    features: Mapping[str, FeatureSummary],
    num_records: int,
    names: Sequence[str] | None,
    defaults: Mapping[str, Any] | None,
) -> list[Field]:
    """Return how each feature is parsed that ever had a value; see `schema_parser`."""
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
    holders = shape_feature_names({name: summary.type for name, summary in features.items()})
    # What holds shapes is parsed beside its feature, and is none of its own.
    listed = [name for name in sorted(features) if name not in holders.values()]
    for name in listed if names is None else names:
        summary = features[name]
        if summary.type.kind is not None:
            is_always_there = summary.present == num_records and not summary.unset
            default = (
                None if is_always_there else default_of(name, summary.type, defaults.get(name))
            )
            spec = _spec(summary.type, default)
            fields.append(Field(name, summary.type, spec, holders.get(name)))
    return fields


def _spec(feature: FeatureType, default: Any) -> Any:
    assert feature.kind is not None
    dtype = WIRE_DTYPES[feature.kind]
    if feature.encoding == "raw":
        return tf.io.FixedLenFeature([], dtype, default)
    if is_fixed(feature.shape):
        return tf.io.FixedLenFeature(list(feature.shape or ()), dtype, default)
    return tf.io.RaggedFeature(dtype)


def default_of(name: str, feature: FeatureType, chosen: Any) -> Any:
    """Return what stands for an absent feature; None where that is an empty list."""
    if feature.encoding == "raw":
        shape = [size or 0 for size in feature.shape or ()]
        fill = fill_of(feature) if chosen is None else chosen
        return np.full(shape, fill, numpy_dtype(feature).newbyteorder("<")).tobytes()
    if not is_fixed(feature.shape):
        if chosen is not None:
            raise OptionError(
                f"the length of {name!r} varies, so where it is absent it is empty",
                hint="leave it out of defaults",
            )
        return None
    wire = {"int64": np.int64, "float": np.float32}.get(feature.kind or "", object)
    shape = [size or 0 for size in feature.shape or ()]
    fill = np.asarray(fill_of(feature) if chosen is None else chosen, wire)
    try:
        return np.broadcast_to(fill, shape).tolist()
    except ValueError:
        told = f"defaults: {name!r} has the shape {shape}, not {list(fill.shape)}"
        raise OptionError(told) from None


def fill_of(feature: FeatureType) -> Any:
    """Return the number, or the bytes, that stand where there is no value."""
    if feature.encoding == "raw":
        is_float = numpy_dtype(feature).kind in "fc" or feature.dtype == "bfloat16"
        return math.nan if is_float else 0
    return {"int64": 0, "float": math.nan, "bytes": b""}[feature.kind or "bytes"]


# Parsing SequenceExamples in a TensorFlow graph, by the schema that the manifest has.
#
# An element is ``{"context": {...}, "feature_lists": {...}}``. The context is parsed as an Example
# is, and what is absent there is filled likewise. A feature list of one record is a dense tensor
# ``[steps, ...]`` where each step has one shape, and a ``tf.RaggedTensor`` where a step's length
# varies. In a batch the steps are ragged too. A list that a record lacks has no steps. A step
# without a value is filled where all have one shape (0, False, NaN, ``""``), and empty elsewhere.

_MAY_LACK: Final = -1  # more than any feature was counted: all of them may be absent


def sequence_parser(
    context: Mapping[str, FeatureSummary],
    feature_lists: Mapping[str, FeatureSummary],
    *,
    is_batch: bool,
) -> Callable[[Any], dict[str, Any]]:
    """Return a function of serialized SequenceExamples that gives their tensors.

    Args:
        context: The types of the context's features, by name.
        feature_lists: The types of the steps, by feature list.
        is_batch: Whether it is given ``string[n]``, or one ``string``.

    Raises:
        OptionError: Nothing in them ever had a value.
    """
    fields = fields_of(context, _MAY_LACK, None, None) if context else []
    lists = [
        Field(name, summary.type, tf.io.RaggedFeature(WIRE_DTYPES[summary.type.kind]))
        for name, summary in sorted(feature_lists.items())
        if summary.type.kind is not None
    ]
    if not fields and not lists:
        raise OptionError(
            "no feature of these records ever had a value", hint="parse=False gives the records"
        )
    specs = specs_of(fields), {field.name: field.spec for field in lists}

    def parse(payloads: Any) -> dict[str, Any]:
        if is_batch:
            found, steps, _ = tf.io.parse_sequence_example(payloads, *specs)
        else:
            found, steps = tf.io.parse_single_sequence_example(payloads, *specs)
        return {
            "context": with_types(found, fields, of_batch if is_batch else of_record),
            "feature_lists": {
                field.name: _list_of(steps[field.name], field, is_batch=is_batch) for field in lists
            },
        }

    return parse


def _list_of(steps: Any, field: Field, *, is_batch: bool) -> Any:
    """Give steps their shape and dtype: ragged ``[steps, (k)]``, or ``[n, (steps), (k)]``."""
    if is_batch:
        return steps.with_values(_list_of(steps.values, field, is_batch=False))
    # The steps of a record are to it what records are to a batch.
    feature = _of_a_batch(field.type)
    return of_batch(_filled(steps, field.name, feature), replace(field, type=feature))


def _of_a_batch(step: FeatureType) -> FeatureType:
    """Return a type of one dimension for steps of which nothing is known but their kind."""
    return replace(step, shape=(None,)) if step.shape is None else step


def _filled(steps: Any, name: str, feature: FeatureType) -> Any:
    """Return ragged ``[steps, (k)]`` as `of_batch` takes it: dense where each step has as many."""
    if feature.encoding == "raw":
        return tf.reshape(_to_dense(steps, 1, default_of(name, feature, None)), [-1])
    if not is_fixed(feature.shape):
        return steps
    sizes = [size or 0 for size in feature.shape or ()]
    return tf.reshape(_to_dense(steps, math.prod(sizes), fill_of(feature)), [-1, *sizes])


def _to_dense(steps: Any, num_values: int, fill: Any) -> Any:
    """Return ``[steps, num_values]``; steps without a value are filled, others must be whole."""
    lengths = steps.row_lengths()
    is_whole = tf.reduce_all((lengths == 0) | (lengths == num_values))
    tf.debugging.Assert(is_whole, ["a step has another number of values than", num_values])
    default = tf.constant(fill, steps.dtype)
    return steps.to_tensor(default, shape=[None, num_values])
