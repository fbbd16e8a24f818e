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
from typing import Any, Final, NamedTuple, TypeVar

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
from shardwriter.formats.varint import encode_varint

# Telling context features and feature lists of SequenceExamples apart, where one name has to do.
#
# Context and lists have names of their own, so both can have an ``x``. A manifest keeps them in two
# objects. Elsewhere there are two spellings, in which no two of them are the same:
#
# - *Keys* are for the one mapping that a schema is gathered in. The features of an Example have
#   their names. Those of a SequenceExample have a mark in front: a lone surrogate, which no name
# can   have, as names are UTF-8.
# - *Spellings* are for people, and for reports: the list ``x`` is ``x[]``. A feature that is called
#   ``x[]`` is not taken for it: that one is ``x\[]``. Backslashes that stand there already are
#   doubled.

_CONTEXT: Final = "\udc00context "
_LIST: Final = "\udc00list "
_LIST_SUFFIX: Final = "[]"

T = TypeVar("T")


def context_key(name: str) -> str:
    """Return the key of a context feature."""
    return _CONTEXT + name


def list_key(name: str) -> str:
    """Return the key of a feature list."""
    return _LIST + name


def is_sequence_key(key: str) -> bool:
    """Say whether a key is of a SequenceExample."""
    return key.startswith((_CONTEXT, _LIST))


def context_part(keyed: Mapping[str, T]) -> dict[str, T]:
    """Return the context features, by name."""
    return {k.removeprefix(_CONTEXT): v for k, v in keyed.items() if k.startswith(_CONTEXT)}


def list_part(keyed: Mapping[str, T]) -> dict[str, T]:
    """Return the feature lists, by name."""
    return {k.removeprefix(_LIST): v for k, v in keyed.items() if k.startswith(_LIST)}


def by_key(context: Mapping[str, T], lists: Mapping[str, T]) -> dict[str, T]:
    """Return both by their keys."""
    return {
        **{context_key(name): value for name, value in context.items()},
        **{list_key(name): value for name, value in lists.items()},
    }


def display_name(key: str) -> str:
    """Return what a person is told of a key."""
    if key.startswith(_LIST):
        return list_spelling(key.removeprefix(_LIST))
    return key.removeprefix(_CONTEXT)


def list_spelling(name: str) -> str:
    """Return ``x[]`` for the feature list ``x``."""
    return _doubled(name) + _LIST_SUFFIX


def feature_spelling(name: str) -> str:
    """Return a feature's name, which is another than that of any list."""
    if not name.endswith(_LIST_SUFFIX):
        return name
    return _doubled(name.removesuffix(_LIST_SUFFIX)) + "\\" + _LIST_SUFFIX


def _doubled(stem: str) -> str:
    """Double the backslashes at the end: those of lists are even in number, others odd."""
    return stem + "\\" * (len(stem) - len(stem.rstrip("\\")))


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
