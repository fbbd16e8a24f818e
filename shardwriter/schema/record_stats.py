"""What is learnt from records while they are written: the schema, and the label counts.

It is gathered in pieces (by worker, by attempt), and the pieces are joined; order and division
change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwriter.schema.data_warnings import DataWarnings, from_json, to_json
from shardwriter.schema.labels import LabelCounts
from shardwriter.schema.schema import FeatureSummary, Schema


@dataclass
class Learnt:
    """A piece of it.

    Attributes:
        features: The schema, by feature.
        labels: The label counts.
        warnings: What was stored in a way that may not be meant.
    """

    features: dict[str, FeatureSummary]
    labels: LabelCounts
    warnings: DataWarnings = field(default_factory=DataWarnings)

    def merge(self, other: Learnt) -> None:
        """Join another piece in.

        Raises:
            SchemaConflict: A feature has types that do not go together.
        """
        schema = Schema()
        schema.features = self.features
        schema.merge(other.features)
        self.labels.merge(other.labels)
        self.warnings.merge(other.warnings)

    def merge_types(self, features: dict[str, FeatureSummary]) -> None:
        """Join types in, of records that are counted elsewhere."""
        self.merge(Learnt(types_of(features), LabelCounts(self.labels.feature, 1)))

    @classmethod
    def of(cls, label: str, num_shards: int) -> Learnt:
        """Return what is learnt from no records."""
        return cls({}, LabelCounts(label, num_shards))

    def to_state(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        features = {name: feature.to_state() for name, feature in self.features.items()}
        state: dict[str, Any] = {"features": features, "labels": self.labels.to_state()}
        if self.warnings:
            state["warnings"] = [to_json(warning) for warning in self.warnings]
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any], num_shards: int) -> Learnt:
        """Return what :meth:`to_state` has told."""
        features = {
            name: FeatureSummary.from_json(entry) for name, entry in state["features"].items()
        }
        warnings = DataWarnings(map(from_json, state.get("warnings", ())))
        return cls(features, LabelCounts.from_state(state["labels"], num_shards), warnings)


def types_of(features: Mapping[str, FeatureSummary]) -> dict[str, FeatureSummary]:
    """Return the types alone, without how often they were seen."""
    return {
        name: FeatureSummary(feature.type, first_item=feature.first_item)
        for name, feature in features.items()
    }
