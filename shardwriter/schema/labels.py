"""Counting labels while records are written: the class mix, in all and per shard.

Counts that were gathered side by side are merged, and give what one counter would have given.
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

MAX_CELLS: Final = 1_000_000  # shards x labels that are counted per shard
MAX_LABELS: Final = 100_000  # a feature with more values is no label


@dataclass
class _Label:
    """One label: how it is spelled, its count in all and per shard, and its first and last item."""

    spelled: str
    count: int
    shards: list[int] | Counter[int] | None
    first: int
    last: int


class LabelCounts:
    """Counts of a feature's values.

    Args:
        feature: Name of the feature.
        num_shards: N.
    """

    def __init__(self, feature: str, num_shards: int) -> None:
        self.feature = feature
        self._num_shards = num_shards
        self._labels: dict[Any, _Label] = {}
        self._per_shard = True
        self.too_many = False

    def add(self, item_index: int, value: Any) -> None:
        """Count the label, or the labels, of one item; items come in any order."""
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
        """Take a new label up; None where there are too many."""
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
        """Add the counts of other items of the same dataset."""
        if self.too_many or other.too_many:
            self._give_up()
            return
        if not other._per_shard:
            self._drop_shards()
        for key, theirs in other._labels.items():
            # A NaN that came from another process is another object.
            key = math.nan if key != key else key
            mine = self._labels.get(key) or self._admit(key, theirs.spelled, theirs.first)
            if mine is None:
                return
            mine.first = min(mine.first, theirs.first)
            mine.spelled = _spelling(mine.spelled, theirs.spelled)
            mine.last = max(mine.last, theirs.last)
            mine.count += theirs.count
            if mine.shards is not None and theirs.shards is not None:
                mine.shards = _sum(mine.shards, theirs.shards, self._num_shards)

    @property
    def is_sorted(self) -> bool:
        """Whether every label came in one run, and there are several of several items."""
        labels = sorted(self._labels.values(), key=lambda label: label.first)
        if not 1 < len(labels) < sum(label.count for label in labels):
            return False
        return all(a.last < b.first for a, b in pairwise(labels))

    def to_state(self) -> dict[str, Any]:
        """Return all that is known, as JSON; see :meth:`from_state`."""
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
        """Return the counts of which :meth:`to_state` has told."""
        counts = cls(state["feature"], num_shards)
        counts._per_shard, counts.too_many = state["per_shard"], state["too_many"]
        counts._labels = {
            _key(key): _Label(spelled, count, _row(shards), first, last)
            for key, spelled, count, shards, first, last in state["labels"]
        }
        return counts

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], num_shards: int, kind: str | None) -> LabelCounts:
        """Return the counts that a manifest has, of a feature of this kind.

        It does not tell where a label stood first, so labels do not count as sorted.

        Raises:
            ManifestError: A label is no value of such a feature.
        """
        counts = cls(entry["feature"], num_shards)
        shards = entry.get("shards")
        counts._per_shard = shards is not None
        read = {"int64": int, "float": float}.get(kind or "", str)
        for spelled, count in entry["counts"].items():
            try:
                key = math.nan if spelled == "nan" and read is float else read(spelled)
            except ValueError:
                raise ManifestError(
                    f"the manifest counts the label {spelled!r:.80}, which is no {kind}",
                    hint="restore the manifest that came with the dataset, or write it again",
                    feature=counts.feature,
                ) from None
            row = None if shards is None else list(shards[spelled])
            counts._labels[key] = _Label(spelled, count, row, 0, 0)
        return counts

    def to_json(self) -> dict[str, Any] | None:
        """Return the manifest's ``labels``; None where nothing was counted."""
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
    """Return how a number is spelled that came as 1 and as 1.0: whoever came first."""
    return a if a == b else max(a, b, key=lambda text: (not text.removeprefix("-").isdigit(), text))


def _dense(row: list[int] | Counter[int], num_shards: int) -> list[int]:
    return [row[shard] for shard in range(num_shards)] if isinstance(row, Counter) else row


def _sum(
    mine: list[int] | Counter[int], theirs: list[int] | Counter[int], num_shards: int
) -> list[int] | Counter[int]:
    """Add counts by shard; of many shards most counts that come from elsewhere are 0."""
    if isinstance(theirs, Counter):
        for shard, count in theirs.items():
            mine[shard] += count
        return mine
    return list(map(add, _dense(mine, num_shards), theirs))


def _row_json(row: list[int] | Counter[int] | None) -> Any:
    """Return the counts by shard; those of a few of many shards with their numbers."""
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
    """Return the labels that a feature's value is; a label is spelled as its ``str``."""
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
        value = math.nan  # so that all of them are one label
    return (int(value),) if isinstance(value, int) else (value,)
