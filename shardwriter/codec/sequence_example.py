"""The bytes of a ``tf.train.SequenceExample`` -> its context and feature lists (``example.proto``).

::

    SequenceExample  1: Features, the context     FeatureLists  1: entry ...
                     2: FeatureLists              entry         1: name   2: FeatureList
                                                  FeatureList   1: Feature ...
"""

from __future__ import annotations

from typing import NamedTuple

from shardwriter.codec.example_wire import (
    TAG_1,
    TAG_2,
    Values,
    decode_feature,
    decode_features,
    decode_name,
    read_fields,
)


class SequenceExample(NamedTuple):
    """One record.

    Attributes:
        context: By name: the values, as `decode_example` gives them; None for no kind.
        feature_lists: By name: the values of each step, likewise.
    """

    context: dict[str, Values | None]
    feature_lists: dict[str, list[Values | None]]


def decode_sequence_example(payload: bytes) -> SequenceExample:
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
    record = SequenceExample({}, {})
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
