"""``tf.train.SequenceExample``: a context and feature lists, to bytes and back (``example.proto``).

::

    SequenceExample  1: Features, the context     FeatureLists  1: entry ...
                     2: FeatureLists              entry         1: name   2: FeatureList
                                                  FeatureList   1: Feature ...

The bytes are those of protobuf, as in :mod:`shardwriter.formats.example`: names in the pinned
order. Both fields are always written, also when they are empty, so that no such record passes for
an Example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError
from shardwriter.formats.example import EntryHeads, encode_example, sort_names
from shardwriter.formats.example_wire import (
    TAG_1,
    TAG_2,
    Values,
    decode_feature,
    decode_features,
    decode_name,
    read_fields,
)
from shardwriter.formats.feature_values import UNSET_FEATURE, encode_value
from shardwriter.formats.sequence_names import list_spelling
from shardwriter.formats.varint import encode_varint


class SequenceExample(NamedTuple):
    """One record of sequences: an item of a source, what a map returns, what is read.

    Attributes:
        context: The features of the whole, by name.
        feature_lists: By name: a value for each step, as a list or as an array ``[steps, ...]``. A
            step may be None: it is there, and has no value.
    """

    context: Mapping[str, Any]
    feature_lists: Mapping[str, Sequence[Any] | NDArray[Any]]


class DecodedSequence(NamedTuple):
    """One record, as its bytes tell.

    Attributes:
        context: By name: the values, as `decode_example` gives them; None for no kind.
        feature_lists: By name: the values of each step, likewise.
    """

    context: dict[str, Values | None]
    feature_lists: dict[str, list[Values | None]]


def encode_sequence_example(example: SequenceExample) -> bytes:
    """Write one ``tf.train.SequenceExample``, byte for byte as protobuf does.

    Args:
        example: Values as `encode_example` takes them; each step of a list is such a value.

    Returns:
        The payload of one record.

    Raises:
        FeatureError: A value, or a name, has no place there; ``feature`` says which.
    """
    context, lists = example
    for part in (context, lists):
        if not isinstance(part, Mapping):
            raise FeatureError(
                f"a part of a SequenceExample is of type {type(part).__name__}",
                hint="give SequenceExample(context={...}, feature_lists={name: [step, ...]})",
            )
    entries = []
    for name in sort_names(lists):
        if lists[name] is not None:
            body = _encode_steps(name, lists[name])
            entry = b"\x12" + encode_varint(len(body)) + body
            entries += [EntryHeads(name)[len(entry)], entry]
    encoded = b"".join(entries)
    return encode_example(context) + b"\x12" + encode_varint(len(encoded)) + encoded


def _encode_steps(name: str, steps: Any) -> bytes:
    is_series = isinstance(steps, list | tuple) or (isinstance(steps, np.ndarray) and steps.ndim)
    if not is_series:
        raise FeatureError(
            f"a feature list is of type {type(steps).__name__}",
            hint="give a list with a value for each step, or an array [steps, ...]",
            feature=list_spelling(name),
        )
    parts: list[bytes | memoryview] = []
    number = 0
    try:
        for number, step in enumerate(steps):  # noqa: B007 - for the error
            encoded = UNSET_FEATURE if step is None else encode_value(step)
            # A map entry has a Feature as field 2, a list has it as field 1; the rest is the same.
            if isinstance(encoded, bytes):
                parts += (b"\x0a", encoded[1:])
            else:
                parts += (b"\x0a", bytes(encoded[1][0])[1:], *encoded[1][1:])
    except FeatureError as error:
        error.message = f"step {number}: {error.message}"
        error.args = (error.message,)
        error.feature = list_spelling(name)
        raise
    return b"".join(parts)


def decode_sequence_example(payload: bytes) -> DecodedSequence:
    """Read one ``tf.train.SequenceExample`` as protobuf's parser does.

    Unknown fields are skipped; of a feature list that comes twice the last one counts.

    Args:
        payload: The payload of one record.

    Returns:
        Context and feature lists.

    Raises:
        WireError: These are not the bytes of a SequenceExample; ``offset`` says where.
    """
    data = bytes(payload)
    record = DecodedSequence({}, {})
    for tag, start, end in read_fields(data, 0, len(data)):
        if tag == TAG_1:
            record.context.update(decode_features(data, start, end))
        elif tag == TAG_2:
            for entry_tag, entry_start, entry_end in read_fields(data, start, end):
                if entry_tag == TAG_1:
                    name, steps = _decode_list_entry(data, entry_start, entry_end)
                    record.feature_lists[name] = steps
    return record


def _decode_list_entry(data: bytes, start: int, end: int) -> tuple[str, list[Values | None]]:
    name = ""
    steps: list[Values | None] = []
    for tag, value_start, value_end in read_fields(data, start, end):
        if tag == TAG_1:
            name = decode_name(data, value_start, value_end)
        elif tag == TAG_2:
            for step_tag, step_start, step_end in read_fields(data, value_start, value_end):
                if step_tag == TAG_1:
                    steps.append(decode_feature(data, step_start, step_end))
    return name, steps
