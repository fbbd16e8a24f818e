"""Count labels while records are written: per dataset and per shard.

Merging the counts of several workers gives the counts of a single one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import add
from typing import Any, Final

import numpy as np

from shardwriter.errors import ManifestError
from shardwriter.formats import RawArray

MAX_CELLS: Final = 1_000_000  # shards x labels; beyond it, counts are per dataset only
MAX_LABELS: Final = 100_000  # a feature with more distinct values is not counted


@dataclass
class _Label:
    """One label: its spelling, its count, its counts by shard, and its first and last item."""

    spelled: str
    count: int
    shards: list[int] | Counter[int] | None
    first: int
    last: int


class LabelCounts:
    """Counts of a feature's values.

    Args:
        feature: Name of the feature.
        num_shards: Number of shards.

    Attributes:
        too_many: Whether there were more than MAX_LABELS labels; then nothing is counted.
    """

    def __init__(self, feature: str, num_shards: int) -> None:
        self.feature = feature
        self._num_shards = num_shards
        self._labels: dict[Any, _Label] = {}
        self._per_shard = True
        self.too_many = False

    def add(self, item_index: int, value: Any) -> None:
        """Count the label or labels of one item; items may come in any order."""
        if self.too_many:
            return
        for key in labels_of(value):
            label = self._labels.get(key)
            if label is None:
                label = self._admit(key, str(key), item_index)
                if label is None:
                    return
            label.count += 1
            if item_index > label.last:
                label.last = item_index
            elif item_index < label.first:
                label.first = item_index
            if type(key) is float:
                label.spelled = _spelling(label.spelled, str(key))
            if label.shards is not None:
                label.shards[item_index % self._num_shards] += 1

    def _admit(self, key: Any, spelled: str, item_index: int) -> _Label | None:
        """Add a new label and return it; None if there are too many."""
        if len(self._labels) >= MAX_LABELS:
            self._give_up()
            return None
        if (len(self._labels) + 1) * self._num_shards > MAX_CELLS:
            self._drop_shards()
        row = [0] * self._num_shards if self._per_shard else None
        label = self._labels[key] = _Label(spelled, 0, row, item_index, item_index)
        return label

    def _give_up(self) -> None:
        self.too_many = True
        self._labels = {}

    def _drop_shards(self) -> None:
        if self._per_shard:
            self._per_shard = False
            for label in self._labels.values():
                label.shards = None

    def merge(self, other: LabelCounts) -> None:
        """Add the counts of other items of the dataset."""
        if self.too_many or other.too_many:
            self._give_up()
            return
        if not other._per_shard:
            self._drop_shards()
        for key, added in other._labels.items():
            # A NaN from another process is another object, and would be another key.
            key = math.nan if key != key else key
            own = self._labels.get(key) or self._admit(key, added.spelled, added.first)
            if own is None:
                return
            own.first = min(own.first, added.first)
            own.spelled = _spelling(own.spelled, added.spelled)
            own.last = max(own.last, added.last)
            own.count += added.count
            if own.shards is not None and added.shards is not None:
                own.shards = _sum(own.shards, added.shards, self._num_shards)

    @property
    def is_sorted(self) -> bool:
        """Whether the items are sorted by label: several labels, each in one run of items."""
        labels = sorted(self._labels.values(), key=lambda label: label.first)
        if not 1 < len(labels) < sum(label.count for label in labels):
            return False
        return all(a.last < b.first for a, b in pairwise(labels))

    def to_state(self) -> dict[str, Any]:
        """Return the counts as JSON; see :meth:`from_state`."""
        return {
            "feature": self.feature,
            "labels": [
                [
                    _key_json(key),
                    label.spelled,
                    label.count,
                    _row_json(label.shards),
                    label.first,
                    label.last,
                ]
                for key, label in self._labels.items()
            ],
            "per_shard": self._per_shard,
            "too_many": self.too_many,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], num_shards: int) -> LabelCounts:
        """Return counts from the result of :meth:`to_state`."""
        counts = cls(state["feature"], num_shards)
        counts._per_shard, counts.too_many = state["per_shard"], state["too_many"]
        counts._labels = {
            _key(key): _Label(spelled, count, _row(shards), first, last)
            for key, spelled, count, shards, first, last in state["labels"]
        }
        return counts

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], num_shards: int, kind: str | None) -> LabelCounts:
        """Return the counts in a manifest, of a feature of this kind.

        A manifest does not have the first items of labels, so `is_sorted` is False.

        Raises:
            ManifestError: A label is not a value of this kind.
        """
        counts = cls(entry["feature"], num_shards)
        shards = entry.get("shards")
        counts._per_shard = shards is not None
        parse = {"int64": int, "float": float}.get(kind or "", str)
        for spelled, count in entry["counts"].items():
            try:
                key = math.nan if spelled == "nan" and parse is float else parse(spelled)
            except ValueError:
                raise ManifestError(
                    f"the manifest counts the label {spelled!r:.80}, which is not of kind {kind}",
                    hint="restore the dataset's original manifest, or write the dataset again",
                    feature=counts.feature,
                ) from None
            row = None if shards is None else list(shards[spelled])
            counts._labels[key] = _Label(spelled, count, row, 0, 0)
        return counts

    def to_json(self) -> dict[str, Any] | None:
        """Return the manifest's ``labels``; None if nothing was counted."""
        labels = self._labels.values()
        counts = {label.spelled: label.count for label in labels}
        if not counts or len(counts) != len(labels):  # 1 and "1" are two labels of one spelling
            return None
        entry: dict[str, Any] = {"counts": counts, "feature": self.feature}
        if self._per_shard:
            entry["shards"] = {
                label.spelled: _dense(label.shards or [], self._num_shards) for label in labels
            }
        return entry


def _spelling(a: str, b: str) -> str:
    """Return one of two spellings of a number (1 and 1.0), whatever their order."""
    return a if a == b else max(a, b, key=lambda text: (not text.removeprefix("-").isdigit(), text))


def _dense(row: list[int] | Counter[int], num_shards: int) -> list[int]:
    return [row[shard] for shard in range(num_shards)] if isinstance(row, Counter) else row


def _sum(
    own: list[int] | Counter[int], added: list[int] | Counter[int], num_shards: int
) -> list[int] | Counter[int]:
    """Return the sum of counts by shard; counts from a state may be sparse."""
    if isinstance(added, Counter):
        for shard, count in added.items():
            own[shard] += count
        return own
    return list(map(add, _dense(own, num_shards), added))


def _row_json(row: list[int] | Counter[int] | None) -> Any:
    """Return the counts by shard as JSON: a list, or an object by shard if most are 0."""
    if row is None:
        return None
    numbered = row.items() if isinstance(row, Counter) else enumerate(row)
    found = {str(shard): count for shard, count in numbered if count}
    is_sparse = isinstance(row, Counter) or 4 * len(found) < len(row)
    return found if is_sparse else row


def _row(entry: Any) -> list[int] | Counter[int] | None:
    if isinstance(entry, dict):
        return Counter({int(shard): count for shard, count in entry.items()})
    row: list[int] | None = entry
    return row


def _key_json(key: Any) -> Any:
    return {"float": repr(float(key))} if not isinstance(key, (int, str)) else key


def _key(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    number = float(entry["float"])
    return math.nan if number != number else number


def labels_of(value: Any) -> Iterable[Any]:
    """Return the labels in a feature's value: numbers, or ``str`` for texts and bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return (bytes(value).decode("utf-8", "backslashreplace"),)
    if isinstance(value, str):
        return (str.__str__(value),)  # an enum's own str() is its name
    if isinstance(value, (list, tuple)):
        return [label for part in value for label in labels_of(part)]
    if isinstance(value, RawArray):
        value = value.array
    if isinstance(value, np.generic):
        value = value.item()
    elif hasattr(value, "__array__"):
        return labels_of(np.asarray(value).ravel().tolist())
    if isinstance(value, float) and value != value:
        value = math.nan  # one object, so all NaN are one label
    return (int(value),) if isinstance(value, int) else (value,)
