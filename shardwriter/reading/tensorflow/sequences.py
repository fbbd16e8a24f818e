"""Parsing SequenceExamples in a TensorFlow graph, by the schema that the manifest has.

An element is ``{"context": {...}, "feature_lists": {...}}``. The context is parsed as an Example
is, and what is absent there is filled likewise. A feature list of one record is a dense tensor
``[steps, ...]`` where each step has one shape, and a ``tf.RaggedTensor`` where a step's length
varies. In a batch the steps are ragged too. A list that a record lacks has no steps. A step without
a value is filled where all have one shape (0, False, NaN, ``""``), and empty elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import tensorflow as tf

from shardwriter.errors import OptionError
from shardwriter.reading.tensorflow.parsing import (
    WIRE_DTYPES,
    default_of,
    fields_of,
    fill_of,
    specs_of,
    with_types,
)
from shardwriter.reading.tensorflow.values import Field, is_fixed, of_batch, of_record
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import FeatureSummary

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
