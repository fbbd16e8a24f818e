"""Statistics of the numbers of one feature: moments, what is no number, quantiles, values.

All but the last digits of mean and deviation, and the rarer of the top values of integers, is the
same for any order and division of the numbers.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.inspect.sketches import DistinctValues, TopValues, hash_halves, hash_words, rank
from shardwriter.inspect.value_histogram import ValueHistogram, count_integers

QUANTILES: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# Numbers are held until there are so many, so that few at a time cost no more than many.
_FLUSH: Final = 1 << 15
_FIRST: Final = 1 << 11
_LARGE: Final = 1 << 40  # from here on the digits behind may be all that integers differ in
_DIGITS: Final = 12  # of a sum of floats, whatever the order of summation


class NumberStats:
    """Statistics of int64 or float32 numbers; NaN and the infinities are counted and left out.

    Args:
        is_float: Which of the two.

    Attributes:
        count: Numbers, finite or not.
        num_finite: Those that are neither NaN nor infinite.
        num_zero: Those that are 0.
        num_nan: Those that are NaN.
        num_inf: Those that are infinite.
        min: The smallest finite one, an int for integers; None without any.
        max: The largest, likewise.
        histogram: Of the finite ones.
    """

    def __init__(self, is_float: bool) -> None:
        self._is_float = is_float
        self._pending: list[NDArray[Any]] = []
        self._num_pending = 0
        self.count = self.num_finite = self.num_zero = self.num_nan = self.num_inf = 0
        self.min: float | int | None = None
        self.max: float | int | None = None
        self._origin = 0  # what integers are measured from, where floats do not tell them apart
        self._mean = 0.0  # of the finite ones, from the origin
        self._squares = 0.0  # of the distances from the mean
        self.histogram = ValueHistogram(is_float)
        self._distinct = DistinctValues()  # filled when the histogram is no longer exact
        self._top = TopValues()  # likewise; of floats those that repeat most, for the quantiles

    @property
    def mean(self) -> float:
        """Mean of the finite ones; 0 without any."""
        return self._origin + self._mean

    @property
    def std(self) -> float:
        """Their standard deviation, that of a population; 0 without any."""
        return math.sqrt(self._squares / self.num_finite) if self.num_finite else 0.0

    def add(self, values: NDArray[np.int64] | NDArray[np.float32]) -> None:
        """Add ``int64[n]`` or ``float32[n]``, which is held for a while and must not change."""
        self._pending.append(values)
        self._num_pending += values.size
        if self._num_pending >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        """Count what is held; everything but `add` needs that before."""
        pending, self._pending, self._num_pending = self._pending, [], 0
        if not pending:
            return
        values = np.concatenate(pending) if len(pending) > 1 else pending[0]
        at = 0
        while at < values.size:
            # The first ones decide how coarse the histogram is and which hashes matter; twice as
            # many at a time then never have much to sort.
            size = min(_FLUSH, max(_FIRST, self.count))
            self._take(values[at : at + size])
            at += size

    def _take(self, values: NDArray[Any]) -> None:
        num_values = values.size
        low, high = values.min().item(), values.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            self.num_nan += int(np.count_nonzero(np.isnan(values)))
            self.num_inf += int(np.count_nonzero(np.isinf(values)))
            values = values[np.isfinite(values)]
            if values.size:
                low, high = values.min().item(), values.max().item()
        if values.size:
            self.num_zero += values.size - int(np.count_nonzero(values))
            if self._is_float:
                origin, exact = 0, values.astype(np.float64)
            else:
                origin, exact = _from_origin(values, low, high)
            mean = float(exact.mean())
            exact -= mean
            exact *= exact  # no np.dot: it may use threads, and then sums in an order of its own
            self._join(values.size, low, high, origin, mean, float(exact.sum()))
        self.count += num_values
        if not values.size:
            return
        if self._is_float:
            self._take_floats(values)
        else:
            self._take_integers(*count_integers(values))

    def _join(
        self,
        count: int,
        low: float | int,
        high: float | int,
        origin: int,
        mean: float,
        squares: float,
    ) -> None:
        """Add the moments of other finite numbers (T. F. Chan et al., 1979)."""
        mine = self.num_finite
        if not mine:
            self._origin = origin
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        step = (origin - self._origin) + (mean - self._mean)
        self._mean += step * count / (mine + count)
        self._squares += squares + step * step * mine * count / (mine + count)
        self.num_finite += count

    def _take_floats(self, values: NDArray[np.float32]) -> None:
        before = self._kept()
        repeated = self.histogram.add_floats(values)
        if self.histogram.is_exact:
            return
        self._spill(before)
        self._top.add(repeated)
        hashed = hash_halves((values + np.float32(0)).view(np.uint32))
        if self._distinct.is_full:
            hashed = hashed[hashed < np.uint32(int(self._distinct.hashes[-1]) >> 32)]
        self._distinct.add(hashed.astype(np.uint64) << np.uint64(32))

    def _take_integers(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        before = self._kept()
        self.histogram.add_integers(values, counts)
        if not self.histogram.is_exact:
            self._spill(before)
            self._spill((values, counts))

    def _kept(self) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return the values of an exact histogram, with their counts."""
        histogram = self.histogram
        return (histogram.values, histogram.counts) if histogram.is_exact else None

    def _spill(self, kept: tuple[NDArray[Any], NDArray[np.int64]] | None) -> None:
        """Move values over that the histogram no longer tells apart."""
        if kept is None or not kept[0].size:
            return
        values, counts = kept
        if self._is_float:
            self._distinct.add(
                hash_halves(values.view(np.uint32)).astype(np.uint64) << np.uint64(32)
            )
        else:
            self._distinct.add(hash_words(values.view(np.uint64)))
        self._top.add_array(values, counts)

    def merge(self, other: NumberStats) -> None:
        """Add the statistics of other numbers of the same kind."""
        self.flush()
        other.flush()
        if other.min is not None and other.max is not None:
            origin, mean, squares = other._origin, other._mean, other._squares
            self._join(other.num_finite, other.min, other.max, origin, mean, squares)
        self.count += other.count
        self.num_zero += other.num_zero
        self.num_nan += other.num_nan
        self.num_inf += other.num_inf
        mine, theirs = self._kept(), other._kept()
        self.histogram.merge(other.histogram)
        if not self.histogram.is_exact:
            self._spill(mine)
            self._spill(theirs)
            self._distinct.add(other._distinct.hashes)
            self._top.merge(other._top)

    def to_json(self) -> dict[str, Any]:
        """Return the report's ``numbers``."""
        self.flush()
        entry: dict[str, Any] = {
            "count": self.count,
            "max": self.max,
            "mean": None,
            "min": self.min,
            "num_inf": self.num_inf,
            "num_nan": self.num_nan,
            "num_zero": self.num_zero,
            "quantile_rank_error": None,
            "quantiles": None,
            "std": None,
        }
        if self.min is not None and self.max is not None:
            repeated = {**self._top.counts, 0: self.num_zero} if self.num_zero else self._top.counts
            found, error = self.histogram.quantiles(QUANTILES, self.min, self.max, repeated)
            entry["quantile_rank_error"] = _rounded(error)
            entry["mean"], entry["std"] = self._rounded_mean(), _rounded(self.std)
            # Large integers may differ in the digits behind; quantiles have no rest of a sum.
            entry["quantiles"] = {
                str(q): _rounded(v) if abs(v) < 10**_DIGITS else v
                for q, v in zip(QUANTILES, found, strict=True)
            }
        return entry

    def _rounded_mean(self) -> float:
        if self._is_float:
            return _rounded(self.mean)
        # By the spread, which is the same wherever integers were measured from.
        mean = Fraction(self._origin) + Fraction(self._mean)
        digits = _DIGITS - 1 - math.floor(math.log10(self.std)) if self.std else _DIGITS
        return float(round(mean, digits))

    def num_distinct(self) -> tuple[int, int, int]:
        """Return how many different finite numbers there are, and bounds of it."""
        self.flush()
        if self.histogram.is_exact:
            return (self.histogram.keys.size,) * 3
        return self._distinct.estimate()

    def top(self, num_values: int) -> tuple[list[tuple[float | int, int]], int]:
        """Return the most frequent numbers, with counts that may be too small by the last item.

        Of floats there are none when there are many.
        """
        self.flush()
        if self.histogram.is_exact:
            values, counts = self.histogram.values.tolist(), self.histogram.counts.tolist()
            return rank(zip(values, counts, strict=True), num_values), 0
        if self._is_float:
            return [], 0
        return self._top.most_common(num_values), self._top.num_missed

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with nothing held."""
        self.flush()
        return self.__dict__


def _from_origin(values: NDArray[np.int64], low: int, high: int) -> tuple[int, NDArray[np.float64]]:
    """Measure integers from one that is near, where they are large and near each other."""
    if min(abs(low), abs(high)) < _LARGE or high - low >= _LARGE:
        return 0, values.astype(np.float64)
    return low, (values - low).astype(np.float64)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
