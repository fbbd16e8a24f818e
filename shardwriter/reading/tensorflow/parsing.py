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
from typing import Any, Final

import numpy as np
import tensorflow as tf

from shardwriter.errors import OptionError
from shardwriter.reading.dataset import PAD_KEY, Dataset
from shardwriter.reading.tensorflow.values import Field, is_fixed, numpy_dtype, of_batch, of_record
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import FeatureSummary
from shardwriter.schema.shape_features import shaped_by_others

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
        from shardwriter.reading.tensorflow.sequences import sequence_parser

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
    holders = shaped_by_others({name: summary.type for name, summary in features.items()})
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
