"""What is known of a dataset's features: the manifest's schema, or what its records tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from shardwriter.errors import OptionError, ShardwriterError, SourceError
from shardwriter.formats import UNSET, Values, decode_example, image_format, payload_kind
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.opening import open_dataset
from shardwriter.schema import FeatureSummary, Schema
from shardwriter.sources import find_one

LOOKED_AT: Final = 1000  # records of a set without a schema


@dataclass(frozen=True)
class KnownSchema:
    """The features of a dataset.

    Attributes:
        features: By name.
        num_records: Of the dataset.
        num_counted: Records that the counts of the features are of: where a manifest tells, all of
            its dataset, also when this is one shard of it; else those that were looked at.
        is_told: Whether a manifest tells; else the types are those of the records looked at.
        feature_lists: The types of the steps of SequenceExamples, whose ``features`` are those of
            the context; None for Examples.
    """

    features: Mapping[str, FeatureSummary]
    num_records: int
    num_counted: int
    is_told: bool
    feature_lists: Mapping[str, FeatureSummary] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest has as its ``schema``."""
        told = {"features": _to_json(self.features)}
        if self.feature_lists is None:
            return told
        return {"feature_lists": _to_json(self.feature_lists), **told}


def read_schema(
    path: str | os.PathLike[str],
    *,
    num_records: int = LOOKED_AT,
    notify: Callable[[str], None] | None = None,
) -> KnownSchema:
    """Return the schema of a dataset, whoever wrote it.

    Where no manifest tells it, the first records in reading order are looked at. An Example keeps
    no shapes, so there a feature that has one value in each of them counts as a scalar, and one
    whose number of values differs varies in its first dimension.

    Args:
        path: The dataset; see `shardwriter.open`.
        num_records: How many records to look at where there is no manifest.
        notify: Told of what is worth knowing, a line at a time.

    Raises:
        OptionError: The path names nothing, or several datasets.
        DataError: The dataset is not whole, a record is damaged or is no Example.
        StorageError: A file can not be read.
    """
    return schema_of(open_dataset(path, decode=False, notify=notify), num_records)


def schema_of(data: Dataset, num_records: int = LOOKED_AT) -> KnownSchema:
    """Return the schema of an open dataset; see `read_schema`."""
    if num_records < 1:
        raise OptionError(f"num_records is {num_records}: it is a number from 1 on")
    if data.features or data.feature_lists:
        # Of one shard by itself the manifest is that of all of them, and so are its counts.
        manifest = data.manifest or find_one(data.path).manifest
        num_counted = len(data) if manifest is None else manifest.num_records
        return KnownSchema(
            data.features, len(data), num_counted, is_told=True, feature_lists=data.feature_lists
        )
    looked_at = data.raw()[:num_records]
    if not len(looked_at):
        return KnownSchema({}, 0, 0, is_told=data.manifest is not None)
    schema = Schema()
    formats: dict[str, set[str | None]] = {}
    for row, payload in enumerate(looked_at):
        try:
            values = _values_of(payload)
            schema.observe(row, values)
        except ShardwriterError as error:
            place = data.place(row)
            error.path, error.record_index, error.index = place.path, place.record_index, None
            raise
        for name, value in values.items():
            if isinstance(value, bytes):
                formats.setdefault(name, set()).add(image_format(value[:16]))
    features = {
        name: _as_told(summary, formats.get(name)) for name, summary in schema.features.items()
    }
    return KnownSchema(features, len(data), len(looked_at), is_told=False)


def _to_json(features: Mapping[str, FeatureSummary]) -> dict[str, Any]:
    return {name: features[name].to_json() for name in sorted(features)}


def check_example(payload: bytes) -> None:
    """Refuse a record that is no Example.

    Raises:
        SourceError: Says what it is.
    """
    kind = payload_kind(payload)
    if kind != "Example":
        what = "a SequenceExample" if kind == "SequenceExample" else "no tf.train.Example"
        raise SourceError(
            f"the record is {what}, so it has no features to tell the types of",
            hint="`shardwriter show` prints what it holds; `sw.open(PATH, decode=False)` gives its "
            "bytes",
        )


def _values_of(payload: bytes) -> dict[str, Any]:
    check_example(payload)
    return {name: _value_of(values) for name, values in decode_example(payload).items()}


def _value_of(values: Values | None) -> Any:
    """Return a value as somebody would have written it: one by itself is a scalar."""
    if values is None:
        return UNSET
    if len(values) != 1:
        return values
    return values[0] if isinstance(values, list) else values.reshape(())


def _as_told(summary: FeatureSummary, formats: set[str | None] | None) -> FeatureSummary:
    """Return a feature's entry as a manifest would have it: what are images by content are so."""
    found = summary.type
    if formats and None not in formats and found.kind == "bytes" and found.shape == ():
        one = formats.pop() if len(formats) == 1 else "image"
        found = replace(found, encoding="image", format=one)
    return FeatureSummary(found, summary.present, summary.unset, summary.vocabulary)
