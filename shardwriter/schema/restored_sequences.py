"""SequenceExamples come back: contexts and steps take the types that a manifest tells.

==========================  ===================================================================
a step in the schema        what a feature list comes back as
==========================  ===================================================================
numbers of a fixed shape    one writable array ``[steps, *shape]``; a list where a step has no value
numbers, a shape varies     a list of arrays, None for a step without a value
bytes, text                 a list of what a step has: one value, or a list of them
no step ever had a value    a list of None
==========================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from shardwriter.errors import FeatureError, ShardwriterError, WireError
from shardwriter.formats.example_wire import Values, payload_kind
from shardwriter.formats.sequence_example import SequenceExample, decode_sequence_example
from shardwriter.formats.sequence_names import list_spelling
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.restored_feature import RestoredFeature
from shardwriter.schema.schema import FeatureSummary


class SequenceRestorer:
    """Gives SequenceExamples the types of a schema.

    Args:
        context: The types of the context's features, by name.
        feature_lists: The types of the steps, by feature list.

    Raises:
        ManifestError: An entry names no dtype of numpy.
    """

    def __init__(
        self,
        context: Mapping[str, FeatureSummary],
        feature_lists: Mapping[str, FeatureSummary],
    ) -> None:
        self._context = {n: RestoredFeature(n, s.type) for n, s in context.items()}
        self._lists = {
            n: RestoredFeature(list_spelling(n), s.type) for n, s in feature_lists.items()
        }

    def example(self, payload: bytes) -> SequenceExample:
        """Return one record.

        Raises:
            WireError: The payload is not the bytes of a SequenceExample.
            FeatureError: A value is not what the schema says; says what is there instead.
        """
        context, lists = decode_sequence_example(payload)
        if not context and not lists and payload_kind(payload) == "other":
            raise WireError("no field of the record is a feature or a feature list")
        return SequenceExample(
            {
                name: None if values is None else _known(self._context, name).one(values)
                for name, values in context.items()
            },
            {name: _steps(_known(self._lists, name), steps) for name, steps in lists.items()},
        )

    def examples(self, payloads: Sequence[bytes]) -> list[SequenceExample]:
        """Return many records.

        Raises:
            WireError, FeatureError: Likewise; ``record_index`` is the place in ``payloads``.
        """
        rows = []
        for row, payload in enumerate(payloads):
            try:
                rows.append(self.example(payload))
            except ShardwriterError as error:
                error.record_index = row
                raise
        return rows

    def columns(self, payloads: Sequence[bytes]) -> NoReturn:
        """Refuse: sequences of many lengths are no columns.

        Raises:
            FeatureError: Always.
        """
        raise FeatureError(
            "SequenceExamples have no columns",
            hint="read them one by one, by slices, or as ragged tensors with tf_dataset",
        )


def _known(features: Mapping[str, RestoredFeature], name: str) -> RestoredFeature:
    found = features.get(name)
    return RestoredFeature(name, FeatureType()) if found is None else found


def _steps(feature: RestoredFeature, steps: Sequence[Values | None]) -> Any:
    dtype, shape = feature.dtype, feature.shape
    is_fixed = dtype is not None and shape is not None and feature.num_values is not None
    if not is_fixed or any(values is None for values in steps):
        return [None if values is None else feature.one(values) for values in steps]
    if not steps:
        return np.zeros((0, *(size or 0 for size in shape or ())), dtype)
    return np.stack([feature.one(values) for values in steps if values is not None])
