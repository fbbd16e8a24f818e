"""Counting labels while records are written: the class mix, in all and per shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

_MAX_CELLS: Final = 1_000_000  # shards x labels that are counted per shard
_MAX_LABELS: Final = 100_000  # a feature with more values is no label


class LabelCounts:
    """Counts of a feature's values.

    Args:
        feature: Name of the feature.
        num_shards: N.
    """

    def __init__(self, feature: str, num_shards: int) -> None:
        self.feature = feature
        self._num_shards = num_shards
        self._totals: dict[Any, int] = {}
        self._shards: dict[Any, list[int]] | None = {}
        self._last: Any = self  # equals no label
        self._changes = 0
        self.too_many = False

    def add(self, item_index: int, value: Any) -> None:
        """Count the label, or the labels, of one item."""
        if self.too_many:
            return
        for label in _labels(value):
            if label != self._last:
                self._last = label
                self._changes += 1
            count = self._totals.get(label)
            if count is None:
                if not self._admit(label):
                    return
                count = 0
            self._totals[label] = count + 1
            if self._shards is not None:
                self._shards[label][item_index % self._num_shards] += 1

    def _admit(self, label: Any) -> bool:
        if len(self._totals) >= _MAX_LABELS:
            self.too_many = True
            self._totals, self._shards = {}, None
            return False
        if self._shards is not None:
            if (len(self._shards) + 1) * self._num_shards > _MAX_CELLS:
                self._shards = None
            else:
                self._shards[label] = [0] * self._num_shards
        return True

    @property
    def is_sorted(self) -> bool:
        """Whether every label came in one run, and there are several of several items."""
        num_labels = len(self._totals)
        return 1 < num_labels == self._changes < sum(self._totals.values())

    def to_json(self) -> dict[str, Any] | None:
        """Return the manifest's ``labels``; None where nothing was counted."""
        if not self._totals:
            return None
        counts = {str(label): count for label, count in self._totals.items()}
        if len(counts) != len(self._totals):  # 1 and "1" are two labels of one spelling
            return None
        entry: dict[str, Any] = {"counts": counts, "feature": self.feature}
        if self._shards is not None:
            entry["shards"] = {str(label): row for label, row in self._shards.items()}
        return entry


def _labels(value: Any) -> Iterable[Any]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return (bytes(value).decode("utf-8", "backslashreplace"),)
    if isinstance(value, str):
        return (str.__str__(value),)  # an enum's own str() is its name
    if isinstance(value, (list, tuple)):
        return [label for part in value for label in _labels(part)]
    if isinstance(value, np.generic):
        value = value.item()
    elif hasattr(value, "__array__"):
        return _labels(np.asarray(value).ravel().tolist())
    return (int(value),) if isinstance(value, int) else (value,)
