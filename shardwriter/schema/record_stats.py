"""What is learnt from records while they are written: the schema, and the label counts.

It is gathered in pieces (by worker, by attempt), and the pieces are joined; order and division
change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwriter.errors import DataError, DataWarning
from shardwriter.schema.labels import LabelCounts
from shardwriter.schema.schema import FeatureSummary, Schema

# Warnings about data, gathered: the first of each code and feature, whoever meets it first.
#
# They are gathered in pieces, as types are (by worker, by attempt), and joined: of two with the
# same code and feature the one of the smaller item index stays. So neither the engine, nor the
# number of workers, nor a resume decides which item is named.

_FIELDS: Final = ("code", "message", "hint", "feature", "path", "line", "index", "value", "stored")


class DataWarnings:
    """At most one warning for each code and feature.

    Args:
        warnings: Those that it begins with.
    """

    def __init__(self, warnings: Iterable[DataWarning] = ()) -> None:
        self._first: dict[tuple[str, str], DataWarning] = {}
        self.merge(warnings)

    def add(self, warning: DataWarning) -> None:
        """Add a warning, unless there is one of an earlier item."""
        key = warning.code, warning.feature or ""
        known = self._first.get(key)
        if known is None or _place(warning) < _place(known):
            self._first[key] = warning

    def merge(self, others: Iterable[DataWarning]) -> None:
        """Add several."""
        for warning in others:
            self.add(warning)

    def __iter__(self) -> Iterator[DataWarning]:
        return iter([self._first[key] for key in sorted(self._first)])

    def __len__(self) -> int:
        return len(self._first)

    def has_before(self, code: str, feature: str, index: int) -> bool:
        """Return whether there is one of this code about a feature, of no later item."""
        known = self._first.get((code, feature))
        return known is not None and known.index is not None and known.index <= index


def _place(warning: DataWarning) -> tuple[int, int]:
    return (-1 if warning.index is None else warning.index, warning.line or 0)


def to_json(warning: DataWarning) -> dict[str, Any]:
    """Return a warning as JSON, without what is None."""
    fields = {name: getattr(warning, name) for name in _FIELDS}
    return {name: value for name, value in fields.items() if value is not None}


def from_json(entry: Mapping[str, Any]) -> DataWarning:
    """Return a warning that `to_json` or `to_manifest` has written.

    Raises:
        KeyError: The entry has no code or no message.
    """
    fields = {name: entry[name] for name in _FIELDS[2:] if name in entry}
    fields.setdefault("path", entry.get("file"))
    return DataWarning(entry["code"], entry["message"], **fields)


def to_manifest(warnings: Iterable[DataWarning]) -> dict[str, Any]:
    """Return the manifest's ``metadata`` for warnings: ``{}``, or ``{"warnings": [...]}``.

    It says the same on every machine: of a path only the file's name.
    """
    entries = []
    for warning in DataWarnings(warnings):
        entry = to_json(warning)
        path = entry.pop("path", None)
        entries.append(entry if path is None else {**entry, "file": os.path.basename(path)})
    return {"warnings": entries} if entries else {}


def from_manifest(metadata: Mapping[str, Any]) -> list[DataWarning]:
    """Return the warnings in a manifest's ``metadata``; none where they are malformed."""
    try:
        return [from_json(entry) for entry in metadata.get("warnings", ())]
    except (AttributeError, KeyError, TypeError):
        return []  # a manifest is used for its data, whatever others have put beside it


def warnings_of(source: object) -> list[DataWarning]:
    """Return what a source warns of: its ``warnings``, where it has some."""
    return list(getattr(source, "warnings", ()))


def shift_index(warning: DataWarning, num_items: int) -> DataWarning:
    """Return a warning about an item that comes behind so many others."""
    index = None if warning.index is None else warning.index + num_items
    return from_json({**to_json(warning), "index": index})


def as_error(warning: DataWarning, kind: type[DataError]) -> DataError:
    """Return a warning as the error that it is with ``strict``."""
    return kind(warning.message, hint=warning.hint, path=warning.path, line=warning.line)


@dataclass
class RecordStats:
    """A piece of it.

    Attributes:
        features: The schema, by feature.
        labels: The label counts.
        warnings: What was stored in a way that may not be meant.
    """

    features: dict[str, FeatureSummary]
    labels: LabelCounts
    warnings: DataWarnings = field(default_factory=DataWarnings)

    def merge(self, other: RecordStats) -> None:
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
        self.merge(RecordStats(types_of(features), LabelCounts(self.labels.feature, 1)))

    @classmethod
    def of(cls, label: str, num_shards: int) -> RecordStats:
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
    def from_state(cls, state: Mapping[str, Any], num_shards: int) -> RecordStats:
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
