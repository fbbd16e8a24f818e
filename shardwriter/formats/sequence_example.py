r"""Encode and decode ``tf.train.SequenceExample``: a context and feature lists.

::

    SequenceExample  1: Features, the context     FeatureLists  1: entry ...
                     2: FeatureLists              entry         1: name   2: FeatureList
                                                  FeatureList   1: Feature ...

The bytes are those of protobuf, as in :mod:`shardwriter.formats.example`: names in its
order. Both fields are always written, also when empty, so such a record is never taken for an
Example.

Context and lists have separate names, so both can have an ``x``. A manifest stores them in two
objects; elsewhere one name has to do:

- A *key* is for a mapping of both, such as a schema in memory. The features of an Example have
  their names as keys; those of a SequenceExample have a prefix that starts with a lone surrogate,
  which no name can contain.
- A *spelling* is for people and reports: the list ``x`` is ``x[]``. A feature named ``x[]`` is
  spelled ``x\[]``, with backslashes before the brackets doubled first.
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
    """Return whether a key belongs to a SequenceExample."""
    return key.startswith((_CONTEXT, _LIST))


def context_part(keyed: Mapping[str, T]) -> dict[str, T]:
    """Return the context features by name, from a mapping by key."""
    return {k.removeprefix(_CONTEXT): v for k, v in keyed.items() if k.startswith(_CONTEXT)}


def list_part(keyed: Mapping[str, T]) -> dict[str, T]:
    """Return the feature lists by name, from a mapping by key."""
    return {k.removeprefix(_LIST): v for k, v in keyed.items() if k.startswith(_LIST)}


def by_key(context: Mapping[str, T], lists: Mapping[str, T]) -> dict[str, T]:
    """Return context features and feature lists in one mapping by key."""
    return {
        **{context_key(name): value for name, value in context.items()},
        **{list_key(name): value for name, value in lists.items()},
    }


def display_name(key: str) -> str:
    """Return the name that messages show for a key."""
    if key.startswith(_LIST):
        return list_spelling(key.removeprefix(_LIST))
    return key.removeprefix(_CONTEXT)


def list_spelling(name: str) -> str:
    """Return the spelling of a feature list: ``x[]``."""
    return _double_backslashes(name) + _LIST_SUFFIX


def feature_spelling(name: str) -> str:
    """Return the spelling of a feature, which differs from that of every list."""
    if not name.endswith(_LIST_SUFFIX):
        return name
    return _double_backslashes(name.removesuffix(_LIST_SUFFIX)) + "\\" + _LIST_SUFFIX


def _double_backslashes(stem: str) -> str:
    """Return a text with the backslashes at its end doubled, so their number is even."""
    return stem + "\\" * (len(stem) - len(stem.rstrip("\\")))


class SequenceExample(NamedTuple):
    """A record of sequences: an item of a source, the result of a map, or a decoded record.

    Attributes:
        context: The features of the whole sequence, by name.
        feature_lists: By name, a value for each step, as a list or as an array ``[steps, ...]``. A
            step may be None: it exists and has no value.
    """

    context: Mapping[str, Any]
    feature_lists: Mapping[str, Sequence[Any] | NDArray[Any]]


class DecodedSequence(NamedTuple):
    """A decoded record, without types from a schema.

    Attributes:
        context: The values by name, as from `decode_example`; None for no kind.
        feature_lists: The values of each step, by name.
    """

    context: dict[str, Values | None]
    feature_lists: dict[str, list[Values | None]]


def encode_sequence_example(example: SequenceExample) -> bytes:
    """Return one encoded ``tf.train.SequenceExample``, byte for byte as protobuf writes it.

    Args:
        example: Values as for `encode_example`; each step of a list is such a value.

    Returns:
        The payload of one record.

    Raises:
        FeatureError: A name or value can not be stored; ``feature`` is its name.
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
            hint="give a list with one value per step, or an array [steps, ...]",
            feature=list_spelling(name),
        )
    parts: list[bytes | memoryview] = []
    number = 0
    try:
        for number, step in enumerate(steps):  # noqa: B007 - for the error
            encoded = UNSET_FEATURE if step is None else encode_value(step)
            # A Feature is field 2 of a map entry, and field 1 of a list; the rest is the same.
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
    """Return one decoded ``tf.train.SequenceExample``, as protobuf's parser does.

    Unknown fields are skipped; if a feature list is repeated, the last one counts.

    Args:
        payload: The payload of one record.

    Raises:
        WireError: The payload is not a SequenceExample; ``offset`` is the position in it.
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
