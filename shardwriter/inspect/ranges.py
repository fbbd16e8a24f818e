"""The least, the mean and the most of sizes: lengths of lists, bytes, pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Range:
    """Least, mean and most of integers; it merges exactly.

    Attributes:
        count: Numbers.
        total: Their sum.
        squares: The sum of their squares.
        min: The smallest; None without any.
        max: The largest; None without any.
    """

    __slots__ = ("count", "max", "min", "squares", "total")

    def __init__(self) -> None:
        self.count = self.total = self.squares = 0
        self.min: int | None = None
        self.max: int | None = None

    def add(self, value: int, count: int = 1) -> None:
        """Add a number that comes ``count`` times."""
        if count:
            self._join(count, value * count, value * value * count, value, value)

    def add_all(self, values: NDArray[np.int64]) -> None:
        """Add ``int64[n]``."""
        if values.size:
            squares = int(np.square(values.astype(np.float64)).sum())
            low, high = int(values.min()), int(values.max())
            self._join(values.size, int(values.sum()), squares, low, high)

    def merge(self, other: Range) -> None:
        """Add the numbers of another."""
        if other.min is not None and other.max is not None:
            self._join(other.count, other.total, other.squares, other.min, other.max)

    def _join(self, count: int, total: int, squares: int, low: int, high: int) -> None:
        self.count += count
        self.total += total
        self.squares += squares
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)

    def least_other_than(self, value: int) -> int:
        """Return a lower bound of how many of the numbers are not this one."""
        if self.min is None or self.max is None:
            return 0
        farthest = max(abs(self.min - value), abs(self.max - value))
        away = self.squares - 2 * value * self.total + value * value * self.count
        return -(-away // (farthest * farthest)) if farthest else 0

    def to_json(self) -> dict[str, Any] | None:
        """Return the range; None without numbers."""
        if not self.count:
            return None
        return {"max": self.max, "mean": self.total / self.count, "min": self.min}
