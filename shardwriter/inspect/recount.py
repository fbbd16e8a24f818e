"""Counting again what a manifest says of records, once some of them are gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardwriter.dataset.manifest import Manifest
from shardwriter.errors import WireError
from shardwriter.formats.example import decode_example
from shardwriter.formats.example_wire import Values
from shardwriter.formats.sequence_example import decode_sequence_example
from shardwriter.formats.sequence_names import context_part, keyed, list_part
from shardwriter.schema.labels import LabelCounts

Records = Callable[[int], Iterator[tuple[int, bytes]]]
"""Gives item index and payload of the records that a shard has now."""


def recount(
    manifest: Manifest, changed: Collection[int], num_records: int, records: Records
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the manifest's ``schema`` and ``labels`` of the records that are left.

    Records are read only where the counts can not be told without: labels of the shards that have
    changed, or all records, where a feature is in some of them only.

    Args:
        manifest: Of the whole dataset.
        changed: The shards that have lost records.
        num_records: Records that are left in all.
        records: Gives them.
    """
    is_sequences = "feature_lists" in manifest.schema
    told = dict(manifest.schema.get("features", {}))
    if is_sequences:
        told = keyed(told, manifest.schema["feature_lists"])
    features = {name: dict(entry) for name, entry in told.items()}
    partly = {
        name
        for name, entry in features.items()
        if entry["unset"] or entry["present"] not in (0, manifest.num_records)
    }
    for name, entry in features.items():
        if name in partly:
            entry["present"] = entry["unset"] = 0
        elif entry["present"]:
            entry["present"] = num_records
    labels = _Labels(manifest, changed) if manifest.labels is not None else None
    everything = range(manifest.num_shards)
    for shard in everything if partly or (labels and labels.needs_all) else sorted(changed):
        is_counted = labels is not None and (labels.needs_all or shard in changed)
        if not is_counted and not partly:
            continue
        for item_index, payload in records(shard):
            try:
                if is_sequences:
                    values, lists = decode_sequence_example(payload)
                    found = keyed(values, {n: _first(steps) for n, steps in lists.items()})
                else:
                    found = values = decode_example(payload)
            except WireError:
                continue  # a record of another kind, of which nothing was counted
            for name in partly & found.keys():
                features[name]["present"] += 1
                features[name]["unset"] += found[name] is None
            if labels is not None and is_counted:
                labels.add(item_index, values)
    schema: dict[str, Any] = {**manifest.schema, "features": features}
    if is_sequences:
        schema.update(feature_lists=list_part(features), features=context_part(features))
    return schema, None if labels is None else labels.to_json()


def _first(steps: Sequence[Values | None]) -> Values | None:
    """Return the values of a step that has some; None where none does."""
    return next((values for values in steps if values is not None), None)


class _Labels:
    """Label counts of a manifest, those of the changed shards counted anew."""

    def __init__(self, manifest: Manifest, changed: Collection[int]) -> None:
        assert manifest.labels is not None
        told = manifest.labels
        self._feature = told["feature"]
        features = manifest.features
        kind = features[self._feature].type.kind if self._feature in features else None
        self.needs_all = told.get("shards") is None
        kept: Mapping[str, Any] = {"counts": {}, "feature": self._feature}
        if not self.needs_all:
            rows = {
                label: [0 if shard in changed else n for shard, n in enumerate(row)]
                for label, row in told["shards"].items()
            }
            rows = {label: row for label, row in rows.items() if any(row)}
            counts = {label: sum(row) for label, row in rows.items()}
            kept = {"counts": counts, "feature": self._feature, "shards": rows}
        self._counts = (
            LabelCounts(self._feature, manifest.num_shards)
            if self.needs_all
            else LabelCounts.from_json(kept, manifest.num_shards, kind)
        )
        # A float stands in a record with fewer digits than it was counted with.
        self._floats: dict[float, float] = {}
        if kind == "float":
            spelled = [float(label) for label in told["counts"] if label != "nan"]
            self._floats = {float(np.float32(number)): number for number in spelled}

    def add(self, item_index: int, values: Mapping[str, Any]) -> None:
        value = values.get(self._feature)
        if value is None:
            return
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if self._floats:
            value = [n if math.isnan(n) else self._floats.get(n, n) for n in value]
        self._counts.add(item_index, value)

    def to_json(self) -> dict[str, Any] | None:
        return self._counts.to_json()
