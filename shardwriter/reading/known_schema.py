"""`read_schema`: the features of a dataset, from its manifest or inferred from its records."""

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

SAMPLED_RECORDS: Final = 1000  # records to infer types from, without a manifest


@dataclass(frozen=True)
class KnownSchema:
    """The features of a dataset.

    Attributes:
        features: Features by name; of SequenceExamples those of the context.
        num_records: Records of the dataset.
        num_counted: Records behind the counts of the features: with a manifest, all of its dataset,
            even if this is one shard of it; else the sampled records.
        from_manifest: Whether the schema is the manifest's; else it is inferred from the sampled
            records.
        feature_lists: The types of the steps of SequenceExamples; None for Examples.
    """

    features: Mapping[str, FeatureSummary]
    num_records: int
    num_counted: int
    from_manifest: bool
    feature_lists: Mapping[str, FeatureSummary] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the schema as a manifest's ``schema``."""
        schema = {"features": _to_json(self.features)}
        if self.feature_lists is None:
            return schema
        return {"feature_lists": _to_json(self.feature_lists), **schema}


def read_schema(
    path: str | os.PathLike[str],
    *,
    num_records: int = SAMPLED_RECORDS,
    notify: Callable[[str], None] | None = None,
) -> KnownSchema:
    """Return the schema of a dataset of any writer.

    Without a manifest it is inferred from the first records in reading order. An Example stores no
    shapes: a feature with one value in each sampled record counts as a scalar, and one whose number
    of values differs varies in its first dimension.

    Args:
        path: The dataset; see `shardwriter.open`.
        num_records: Number of records to infer types from, without a manifest.
        notify: Called with each note, a line of text.

    Raises:
        OptionError: The path matches nothing, or several datasets.
        DataError: Shards are missing, or a record is damaged or is no Example.
        StorageError: A file can not be read.
    """
    return schema_of(open_dataset(path, decode=False, notify=notify), num_records)


def schema_of(data: Dataset, num_records: int = SAMPLED_RECORDS) -> KnownSchema:
    """Return the schema of an open dataset; see `read_schema`."""
    if num_records < 1:
        raise OptionError(f"num_records is {num_records}; it must be 1 or more")
    if data.features or data.feature_lists:
        # A single shard has the manifest of its dataset, so the counts are of all its records.
        manifest = data.manifest or find_one(data.path).manifest
        num_counted = len(data) if manifest is None else manifest.num_records
        return KnownSchema(
            data.features,
            len(data),
            num_counted,
            from_manifest=True,
            feature_lists=data.feature_lists,
        )
    sample = data.raw()[:num_records]
    if not len(sample):
        return KnownSchema({}, 0, 0, from_manifest=data.manifest is not None)
    schema = Schema()
    formats: dict[str, set[str | None]] = {}
    for row, payload in enumerate(sample):
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
        name: _as_in_manifest(summary, formats.get(name))
        for name, summary in schema.features.items()
    }
    return KnownSchema(features, len(data), len(sample), from_manifest=False)


def _to_json(features: Mapping[str, FeatureSummary]) -> dict[str, Any]:
    return {name: features[name].to_json() for name in sorted(features)}


def check_example(payload: bytes) -> None:
    """Raise if a record is no Example.

    Raises:
        SourceError: The record is a SequenceExample or something else.
    """
    kind = payload_kind(payload)
    if kind != "Example":
        what = "a SequenceExample" if kind == "SequenceExample" else "no tf.train.Example"
        raise SourceError(
            f"the record is {what}, so its features have no known types",
            hint="`shardwriter show` prints it; `sw.open(PATH, decode=False)` returns its bytes",
        )


def _values_of(payload: bytes) -> dict[str, Any]:
    check_example(payload)
    return {name: _value_of(values) for name, values in decode_example(payload).items()}


def _value_of(values: Values | None) -> Any:
    """Return the value as it was probably written: a single value is a scalar."""
    if values is None:
        return UNSET
    if len(values) != 1:
        return values
    return values[0] if isinstance(values, list) else values.reshape(())


def _as_in_manifest(summary: FeatureSummary, formats: set[str | None] | None) -> FeatureSummary:
    """Return a feature's entry as in a manifest: bytes that are all image files are images."""
    found = summary.type
    if formats and None not in formats and found.kind == "bytes" and found.shape == ():
        one = formats.pop() if len(formats) == 1 else "image"
        found = replace(found, encoding="image", format=one)
    return FeatureSummary(found, summary.present, summary.unset, summary.vocabulary)
