"""Parsing records in a TensorFlow graph, by the manifest's schema.

=====================  =============================================================================
in the schema          in the graph
=====================  =============================================================================
a scalar               a scalar of its dtype; a string is a ``tf.string``
a fixed shape          a dense tensor of that shape
a dimension varies     one record: a dense tensor of its own size. A batch: a ``tf.RaggedTensor``
                       with that dimension ragged; ``.to_tensor()`` pads it
several vary           likewise, with all dimensions up to the last varying one ragged, if the
                       feature has a shape feature; else the values as a flat list
an image               the bytes of its file, for ``tf.io.decode_image``
raw bytes of an array  the array
never set              left out
=====================  =============================================================================

Dtypes are those of the values that were written: ``bool``, ``uint8``, ``float16`` and ``float64``
are cast back from the int64 and float32 of an Example.

A feature that some records lack is no error. It is empty if its length varies; else it is filled
with 0, False, NaN or ``""``, or with its value in ``defaults``.

A SequenceExample is ``{"context": {...}, "feature_lists": {...}}``. The context is parsed like an
Example. A feature list of one record is a dense tensor ``[steps, ...]`` if all steps have one
shape, else a ``tf.RaggedTensor``; in a batch the steps are ragged, too. A list that a record lacks
has no steps. A step without a value is filled (0, False, NaN, ``""``) if all steps have one shape,
else empty.
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

# Dtypes that tf.io.decode_raw does not know are read as one of equal size.
_RAW_DTYPES: Final = {"bool": "uint8", "uint32": "int32", "uint64": "int64"}


@dataclass(frozen=True)
class Field:
    """A feature to parse: its type, and its specification for ``tf.io.parse_example``.

    ``holder`` is its shape feature, if it has one.
    """

    name: str
    type: FeatureType
    spec: Any
    holder: str | None = None

    @property
    def shape(self) -> Shape:
        """The schema's shape; that of a scalar if it has none."""
        return self.type.shape or ()


def is_fixed(shape: Shape | None) -> bool:
    """Return whether all values have one size, which is not 0 (an empty list counts as absent)."""
    return shape is not None and None not in shape and 0 not in shape


def of_record(value: Any, field: Field, sizes: Any = None) -> Any:
    """Return one record's value with its shape and dtype; ``sizes`` is its shape feature."""
    if field.type.encoding == "raw":
        value = _decode_raw(value, field)
    elif field.type.encoding == "image":
        return value
    if sizes is not None:
        value = tf.ensure_shape(tf.reshape(value, sizes), field.shape)
    # If several dimensions vary, only the product of their sizes is known.
    elif field.shape.count(None) <= 1 and field.type.shape is not None:
        unknown = 0 if 0 in field.shape else -1
        value = tf.reshape(value, [unknown if size is None else size for size in field.shape])
    return _cast(value, field.type.dtype)


def of_batch(value: Any, field: Field, sizes: Any = None) -> Any:
    """Return the values of a batch with their shape and dtype; varying dimensions are ragged.

    ``sizes`` is the shape feature: ``int64[n, rank]``.
    """
    feature = field.type
    if feature.encoding == "raw":
        if is_fixed(feature.shape):
            values = _decode_raw(value, field)
            return _cast(tf.reshape(values, [-1, *field.shape]), feature.dtype)
        # decode_raw needs strings of one length, so all are joined into one string.
        flat = _decode_raw(tf.strings.reduce_join(value), field)
        width = numpy_dtype(feature).itemsize
        lengths = tf.strings.length(value, unit="BYTE") // width
        value = tf.RaggedTensor.from_row_lengths(flat, lengths)
    if not isinstance(value, tf.RaggedTensor):
        return _cast(value, feature.dtype)
    value = value.with_values(_cast(value.values, feature.dtype))
    return _shaped(value, field.shape) if sizes is None else _shaped_each(value, sizes, field.shape)


def _shaped(rows: Any, shape: Shape) -> Any:
    """Return the ragged ``[n, (k)]`` values of n records with their shape.

    Values are in C order. If dimension i varies, a record has prod(shape[:i]) rows of one length.
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
    """Return the ragged ``[n, (k)]`` values of n records, each with its shape in ``[n, rank]``."""
    last = max(place for place, size in enumerate(shape) if size is None)
    owners = tf.range(rows.nrows())  # the record of each row at this depth
    lengths = []
    for place in range(last + 1):
        lengths.append(tf.gather(sizes[:, place], owners))
        owners = tf.repeat(owners, lengths[-1])
    shaped = rows.values
    inner = [size or 0 for size in shape[last + 1 :]]
    if inner:
        # An explicit size: -1 would be ambiguous if a size is 0.
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
    """Return the features argument of ``tf.io.parse_example``: a TensorFlow feature by name.

    Args:
        features: The schema.
        num_records: Records of the dataset; a feature with fewer occurrences may be absent.
        names: Features to parse; None for all.
        defaults: Values of absent features of a fixed shape, by name: a scalar or a whole value.

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
    """Return a function from serialized examples to the tensors of their features.

    Args:
        features: The schema.
        num_records: Records of the dataset.
        is_batch: Whether its argument is ``string[n]``, which is several times faster per record,
            or one ``string``.
        names: Features to parse; None for all.
        defaults: Values of absent features of a fixed shape, by name.

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
    """Return the function to map over payloads, or over pairs ``(payload, is_pad)``.

    Args:
        data: The dataset.
        parse: True to parse by schema; a mapping for ``tf.io.parse_example``; False for None.
        names: Features to parse; None for all.
        defaults: Values of absent features of a fixed shape, by name.
        is_batch: Whether payloads are ``string[n]`` or one ``string``.
        has_pads: Whether ``is_pad`` is passed, too.

    Raises:
        OptionError: Options do not fit each other, or the features of the dataset.
    """
    if parse is False:
        if names is not None or defaults is not None:
            raise OptionError(
                "features= and defaults= have no effect with parse=False", hint="drop them"
            )
        return None
    if has_pads:
        known = data.features if parse is True else parse
        _check_no_pad_key(known if names is None else names)
    lists = data.feature_lists if parse is True else None
    if lists is not None and (lists or data.features):
        if names is not None or defaults is not None:
            raise OptionError(
                "features= and defaults= need Examples, and the records are SequenceExamples",
                hint="drop them, or give parse=False and parse the records yourself",
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
            raise OptionError(
                "features= and defaults= have no effect with a mapping as parse=", hint="drop them"
            )
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
            f"uneven='pad' adds {PAD_KEY!r}, and records have a feature of that name",
            hint="use uneven='wrap' or 'drop', or leave it out with features=",
        )


def specs_of(fields: list[Field]) -> dict[str, Any]:
    """Return the features argument of ``tf.io.parse_example``, including shape features."""
    specs = {field.name: field.spec for field in fields}
    for field in fields:
        if field.holder is not None:
            rank = len(field.shape)
            specs[field.holder] = tf.io.FixedLenFeature([rank], tf.int64, [0] * rank)
    return specs


def with_types(
    parsed: dict[str, Any], fields: list[Field], restore: Callable[[Any, Field, Any], Any]
) -> dict[str, Any]:
    """Return parsed values with shape and dtype, by schema and shape features."""
    return {
        field.name: restore(
            parsed[field.name], field, None if field.holder is None else parsed[field.holder]
        )
        for field in fields
    }


# -- feature specifications ----------------------------------------------------------------------


def fields_of(
    features: Mapping[str, FeatureSummary],
    num_records: int,
    names: Sequence[str] | None,
    defaults: Mapping[str, Any] | None,
) -> list[Field]:
    """Return the fields to parse, without features that are never set; see `schema_parser`."""
    if not features:
        raise OptionError(
            "the dataset has no schema",
            hint="give parse= a mapping for tf.io.parse_example, or parse=False for serialized "
            "examples",
        )
    if names is not None and (isinstance(names, str) or not names):
        raise OptionError(f"features is {names!r}", hint="give a list of names")
    defaults = defaults or {}
    for name in [*(names or ()), *defaults]:
        if name not in features:
            known = ", ".join(sorted(features)[:8])
            raise OptionError(f"there is no feature {name!r}", hint=f"features: {known}")
    fields = []
    holders = shape_feature_names({name: summary.type for name, summary in features.items()})
    # A shape feature is parsed with its feature, and not returned.
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
    """Return the value of an absent feature; None for an empty list."""
    if feature.encoding == "raw":
        shape = [size or 0 for size in feature.shape or ()]
        fill = fill_of(feature) if chosen is None else chosen
        return np.full(shape, fill, numpy_dtype(feature).newbyteorder("<")).tobytes()
    if not is_fixed(feature.shape):
        if chosen is not None:
            raise OptionError(
                f"the length of {name!r} varies, so it is empty if absent and has no default",
                hint="leave it out of defaults=",
            )
        return None
    wire = {"int64": np.int64, "float": np.float32}.get(feature.kind or "", object)
    shape = [size or 0 for size in feature.shape or ()]
    fill = np.asarray(fill_of(feature) if chosen is None else chosen, wire)
    try:
        return np.broadcast_to(fill, shape).tolist()
    except ValueError:
        raise OptionError(
            f"defaults: {name!r} has the shape {shape}, not {list(fill.shape)}"
        ) from None


def fill_of(feature: FeatureType) -> Any:
    """Return the number, or the bytes, that fill a missing value."""
    if feature.encoding == "raw":
        is_float = numpy_dtype(feature).kind in "fc" or feature.dtype == "bfloat16"
        return math.nan if is_float else 0
    return {"int64": 0, "float": math.nan, "bytes": b""}[feature.kind or "bytes"]


# -- SequenceExamples ----------------------------------------------------------------------------

_ALL_OPTIONAL: Final = -1  # as num_records: no feature occurs so often, so any may be absent


def sequence_parser(
    context: Mapping[str, FeatureSummary],
    feature_lists: Mapping[str, FeatureSummary],
    *,
    is_batch: bool,
) -> Callable[[Any], dict[str, Any]]:
    """Return a function from serialized SequenceExamples to their tensors.

    Args:
        context: The types of the context's features, by name.
        feature_lists: The types of the steps, by feature list.
        is_batch: Whether its argument is ``string[n]`` or one ``string``.

    Raises:
        OptionError: No feature ever has a value.
    """
    fields = fields_of(context, _ALL_OPTIONAL, None, None) if context else []
    lists = [
        Field(name, summary.type, tf.io.RaggedFeature(WIRE_DTYPES[summary.type.kind]))
        for name, summary in sorted(feature_lists.items())
        if summary.type.kind is not None
    ]
    if not fields and not lists:
        raise OptionError(
            "no feature of these records ever has a value",
            hint="give parse=False for serialized records",
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
    """Return steps with their shape and dtype: ``[steps, (k)]``, or ``[n, (steps), (k)]``."""
    if is_batch:
        return steps.with_values(_list_of(steps.values, field, is_batch=False))
    # Steps of a record are shaped like records of a batch.
    feature = _of_a_batch(field.type)
    return of_batch(_filled(steps, field.name, feature), replace(field, type=feature))


def _of_a_batch(step: FeatureType) -> FeatureType:
    """Return the type of a step; one of unknown shape has one varying dimension."""
    return replace(step, shape=(None,)) if step.shape is None else step


def _filled(steps: Any, name: str, feature: FeatureType) -> Any:
    """Return ragged ``[steps, (k)]`` for `of_batch`: dense if all steps have one shape."""
    if feature.encoding == "raw":
        return tf.reshape(_to_dense(steps, 1, default_of(name, feature, None)), [-1])
    if not is_fixed(feature.shape):
        return steps
    sizes = [size or 0 for size in feature.shape or ()]
    return tf.reshape(_to_dense(steps, math.prod(sizes), fill_of(feature)), [-1, *sizes])


def _to_dense(steps: Any, num_values: int, fill: Any) -> Any:
    """Return ``[steps, num_values]``; empty steps are filled, others must have ``num_values``."""
    lengths = steps.row_lengths()
    is_whole = tf.reduce_all((lengths == 0) | (lengths == num_values))
    tf.debugging.Assert(is_whole, ["a step has another number of values than", num_values])
    default = tf.constant(fill, steps.dtype)
    return steps.to_tensor(default, shape=[None, num_values])
