"""Statistics of written records: the schema, the label counts and the data warnings.

Each worker and each attempt gathers its own, and these are merged; the result does not depend on
order or partition. Of two warnings of the same code and feature, the one of the smaller item index
remains, so neither the engine, the number of workers nor a resume decides which item is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwriter.errors import DataError, DataWarning
from shardwriter.schema.labels import LabelCounts
from shardwriter.schema.schema import FeatureSummary, Schema

_FIELDS: Final = ("code", "message", "hint", "feature", "path", "line", "index", "value", "stored")


class DataWarnings:
    """The first warning of each code and feature, in order of code and feature.

    Args:
        warnings: Initial warnings.
    """

    def __init__(self, warnings: Iterable[DataWarning] = ()) -> None:
        self._first: dict[tuple[str, str], DataWarning] = {}
        self.merge(warnings)

    def add(self, warning: DataWarning) -> None:
        """Add a warning, unless there is one of an earlier item."""
        key = warning.code, warning.feature or ""
        known = self._first.get(key)
        if known is None or _position(warning) < _position(known):
            self._first[key] = warning

    def merge(self, others: Iterable[DataWarning]) -> None:
        """Add several warnings."""
        for warning in others:
            self.add(warning)

    def __iter__(self) -> Iterator[DataWarning]:
        return iter([self._first[key] for key in sorted(self._first)])

    def __len__(self) -> int:
        return len(self._first)

    def has_before(self, code: str, feature: str, index: int) -> bool:
        """Return whether there is a warning of this code and feature at or before an item."""
        known = self._first.get((code, feature))
        return known is not None and known.index is not None and known.index <= index


def _position(warning: DataWarning) -> tuple[int, int]:
    return (-1 if warning.index is None else warning.index, warning.line or 0)


def to_json(warning: DataWarning) -> dict[str, Any]:
    """Return a warning as JSON, without fields that are None."""
    fields = {name: getattr(warning, name) for name in _FIELDS}
    return {name: value for name, value in fields.items() if value is not None}


def from_json(entry: Mapping[str, Any]) -> DataWarning:
    """Return a warning from the result of `to_json` or `to_manifest`.

    Raises:
        KeyError: The entry has no code or no message.
    """
    fields = {name: entry[name] for name in _FIELDS[2:] if name in entry}
    fields.setdefault("path", entry.get("file"))
    return DataWarning(entry["code"], entry["message"], **fields)


def to_manifest(warnings: Iterable[DataWarning]) -> dict[str, Any]:
    """Return the manifest's ``metadata`` for warnings: ``{}``, or ``{"warnings": [...]}``.

    The result is the same on every machine, as only the file name of a path is included.
    """
    entries = []
    for warning in DataWarnings(warnings):
        entry = to_json(warning)
        path = entry.pop("path", None)
        entries.append(entry if path is None else {**entry, "file": os.path.basename(path)})
    return {"warnings": entries} if entries else {}


def from_manifest(metadata: Mapping[str, Any]) -> list[DataWarning]:
    """Return the warnings in a manifest's ``metadata``; none if they are malformed."""
    try:
        return [from_json(entry) for entry in metadata.get("warnings", ())]
    except (AttributeError, KeyError, TypeError):
        return []  # malformed metadata must not make a dataset unreadable


def warnings_of(source: object) -> list[DataWarning]:
    """Return the ``warnings`` of a source; none if it does not have the attribute."""
    return list(getattr(source, "warnings", ()))


def shift_index(warning: DataWarning, num_items: int) -> DataWarning:
    """Return a warning with its item index increased by ``num_items``."""
    index = None if warning.index is None else warning.index + num_items
    return from_json({**to_json(warning), "index": index})


def as_error(warning: DataWarning, kind: type[DataError]) -> DataError:
    """Return the error that ``strict`` raises for a warning."""
    return kind(warning.message, hint=warning.hint, path=warning.path, line=warning.line)


@dataclass
class RecordStats:
    """Statistics of some of a dataset's records.

    Attributes:
        features: Feature types and counts, by key.
        labels: The label counts.
        warnings: Warnings about values stored in a way that may not be intended.
    """

    features: dict[str, FeatureSummary]
    labels: LabelCounts
    warnings: DataWarnings = field(default_factory=DataWarnings)

    def merge(self, other: RecordStats) -> None:
        """Add the statistics of other records.

        Raises:
            SchemaConflict: A feature has conflicting types.
        """
        schema = Schema()
        schema.features = self.features
        schema.merge(other.features)
        self.labels.merge(other.labels)
        self.warnings.merge(other.warnings)

    def merge_types(self, features: dict[str, FeatureSummary]) -> None:
        """Add feature types without the counts of their records."""
        self.merge(RecordStats(types_of(features), LabelCounts(self.labels.feature, 1)))

    @classmethod
    def of(cls, label: str, num_shards: int) -> RecordStats:
        """Return the statistics of no records."""
        return cls({}, LabelCounts(label, num_shards))

    def to_state(self) -> dict[str, Any]:
        """Return the statistics as JSON; see :meth:`from_state`."""
        features = {name: feature.to_state() for name, feature in self.features.items()}
        state: dict[str, Any] = {"features": features, "labels": self.labels.to_state()}
        if self.warnings:
            state["warnings"] = [to_json(warning) for warning in self.warnings]
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any], num_shards: int) -> RecordStats:
        """Return statistics from the result of :meth:`to_state`."""
        features = {
            name: FeatureSummary.from_json(entry) for name, entry in state["features"].items()
        }
        warnings = DataWarnings(map(from_json, state.get("warnings", ())))
        return cls(features, LabelCounts.from_state(state["labels"], num_shards), warnings)


def types_of(features: Mapping[str, FeatureSummary]) -> dict[str, FeatureSummary]:
    """Return summaries with the types only, without counts."""
    return {
        name: FeatureSummary(feature.type, first_item=feature.first_item)
        for name, feature in features.items()
    }
