"""Statistics of the features of many records: presence, kinds, lengths, values.

`FeatureStats` has a `FeatureSketch` per feature, with `NumberStats` and `BlobStats` of its values.
All of them merge: the statistics of two parts are those of the whole. Only the last digits of mean
and deviation, and the rarer of the top values, depend on the order and division of the data.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import nsmallest
from itertools import chain, compress
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats import (
    UNSET,
    Kind,
    PlainColumn,
    SingleBlobs,
    Unset,
    Values,
    feature_spelling,
    image_format,
    list_spelling,
    read_header,
)
from shardwriter.inspect.sketches import (
    DistinctValues,
    TopValues,
    ValueHistogram,
    count_integers,
    hash_blobs,
    hash_halves,
    hash_words,
    rank,
)


class Range:
    """Minimum, mean and maximum of integers (lengths, bytes, pixels); it merges exactly.

    Attributes:
        count: Number of integers.
        total: Their sum.
        squares: Sum of their squares.
        min: The smallest; None without any.
        max: The largest; None without any.
    """

    __slots__ = ("count", "max", "min", "squares", "total")

    def __init__(self) -> None:
        self.count = self.total = self.squares = 0
        self.min: int | None = None
        self.max: int | None = None

    def add(self, value: int, count: int = 1) -> None:
        """Add a number ``count`` times."""
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
        """Return a lower bound of the count of other numbers than this one."""
        if self.min is None or self.max is None:
            return 0
        farthest = max(abs(self.min - value), abs(self.max - value))
        away = self.squares - 2 * value * self.total + value * value * self.count
        return -(-away // (farthest * farthest)) if farthest else 0

    def to_json(self) -> dict[str, Any] | None:
        """Return the range as JSON; None without numbers."""
        if not self.count:
            return None
        return {"max": self.max, "mean": self.total / self.count, "min": self.min}


_FIRST_BYTES: Final = frozenset(b"\xff\x89GRBIM")  # of the known image formats
_SMALLEST_BYTES: Final = 26  # the header of the smallest BMP; a GIF of one pixel takes 35


class ImageStats:
    """Formats and sizes of the images among byte strings, from their headers; it merges exactly.

    Attributes:
        formats: Images by format, including broken ones.
        num_broken: Images with a header that ends before the size.
        height: Heights of the other images, in pixels.
        width: Widths of the other images, in pixels.
    """

    def __init__(self) -> None:
        self.formats: Counter[str] = Counter()
        self.num_broken = 0
        self.height = Range()
        self.width = Range()

    def add(self, value: bytes, count: int = 1) -> None:
        """Add a value ``count`` times, if it is an image."""
        if len(value) < _SMALLEST_BYTES or value[0] not in _FIRST_BYTES:
            return
        found = image_format(value[:16])
        if found is None or (found == "bmp" and value[6:10] != b"\0\0\0\0"):
            return  # a text may well begin with BM
        self.formats[found] += count
        try:
            header = read_header(value)
        except ValueError:
            self.num_broken += count
            return
        self.height.add(header.height, count)
        self.width.add(header.width, count)

    def merge(self, other: ImageStats) -> None:
        """Add other images."""
        self.formats.update(other.formats)
        self.num_broken += other.num_broken
        self.height.merge(other.height)
        self.width.merge(other.width)

    def to_json(self) -> dict[str, Any] | None:
        """Return the report's ``images``; None without images."""
        if not self.formats:
            return None
        return {
            "formats": dict(sorted(self.formats.items())),
            "height": self.height.to_json(),
            "num_broken": self.num_broken,
            "width": self.width.to_json(),
        }


MAX_VALUE_BYTES: Final = 256  # longer values are not candidates for the most frequent values
_FLUSH_BLOBS: Final = 1 << 14  # short values are buffered and counted in batches of this size
_TEXT_BYTES: Final = 1024  # of a long value that decide whether it is text


class BlobStats:
    """Statistics of the byte strings of one feature.

    Attributes:
        sizes: Sizes in bytes.
        images: Statistics of the images among them.
        num_binary: Values that are not UTF-8 or contain NUL; long ones by their beginning.
    """

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self.sizes = Range()
        self.images = ImageStats()
        self.num_binary = 0
        self._top = TopValues()  # of short values
        self._distinct = DistinctValues()  # of long values, and of short ones if they are many

    def add(self, values: Sequence[bytes]) -> None:
        """Add values; short ones may be buffered."""
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        self.sizes.add_all(sizes)
        long = sizes > MAX_VALUE_BYTES
        if long.any():
            self._add_long(list(compress(values, long.tolist())))
            values = list(compress(values, (~long).tolist()))
        self._pending += values
        if len(self._pending) >= _FLUSH_BLOBS:
            self.flush()

    def flush(self) -> None:
        """Count the buffered values; needed before everything but `add`."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        counts = Counter(pending)
        if not _is_text(counts):
            self.num_binary += sum(n for value, n in counts.items() if not _is_text([value]))
        for value, count in counts.items():
            self.images.add(value, count)
        before = list(self._top.counts) if self._top.is_exact else []
        self._top.add(counts)
        if not self._top.is_exact:
            self._distinct.add(hash_blobs([*before, *counts]))

    def _add_long(self, values: list[bytes]) -> None:
        for value in values:
            self.images.add(value)
            self.num_binary += not _begins_as_text(value)
        self._distinct.add(hash_blobs(values))

    def merge(self, other: BlobStats) -> None:
        """Add the statistics of other values."""
        self.flush()
        other.flush()
        self.sizes.merge(other.sizes)
        self.images.merge(other.images)
        self.num_binary += other.num_binary
        exact = [top for top in (self._top, other._top) if top.is_exact]
        values = [value for top in exact for value in top.counts]
        self._top.merge(other._top)
        self._distinct.add(other._distinct.hashes)
        if not self._top.is_exact:
            self._distinct.add(hash_blobs(values))

    @property
    def is_text(self) -> bool:
        """Whether there are values and all are text; `flush` first."""
        return self.num_binary == 0 and self.sizes.count > 0

    def top_counts(self) -> dict[bytes, int] | None:
        """Return all values with their counts; None if they are too many or too long."""
        self.flush()
        is_all = self._top.is_exact and not self._distinct.hashes.size
        return self._top.counts if is_all else None

    def num_distinct(self) -> tuple[int, int, int]:
        """Return the estimated number of distinct values, with a lower and an upper bound."""
        self.flush()
        found, low, high = self._distinct.estimate()
        if not self._top.is_exact:
            return found, low, high
        num_short = len(self._top.counts)
        return found + num_short, low + num_short, high + num_short

    def top(self, num_values: int) -> tuple[list[tuple[bytes, int]], int]:
        """Return the most frequent short values with counts, and the counts' maximum error."""
        self.flush()
        return self._top.most_common(num_values), self._top.num_missed

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with nothing buffered."""
        self.flush()
        return self.__dict__


def blob_json(value: bytes) -> str | dict[str, str]:
    """Return a value for JSON: as text, or as base64 if it is not text."""
    if _is_text([value]):
        return value.decode()
    return {"base64": base64.b64encode(value).decode()}


def _is_text(values: Iterable[bytes]) -> bool:
    # A line feed never completes a UTF-8 sequence, so joining hides no error.
    joined = b"\n".join(values)
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in joined


def _begins_as_text(value: bytes) -> bool:
    head = value[:_TEXT_BYTES]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # The cut may be inside the last character.
        if len(head) == len(value) or error.end < len(head) or error.start < len(head) - 3:
            return False
    return b"\0" not in head


QUANTILES: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_FLUSH: Final = 1 << 15  # numbers are buffered and counted in batches of this size
_FIRST: Final = 1 << 11
_LARGE: Final = 1 << 40  # larger integers may only differ in their last digits
_DIGITS: Final = 12  # of a sum of floats that do not depend on the order of summation


class NumberStats:
    """Statistics of the numbers of one feature: moments, quantiles, frequent values.

    NaN and infinities are only counted.

    Args:
        is_float: Whether numbers are float32; else int64.

    Attributes:
        count: Numbers, finite or not.
        num_finite: Finite numbers.
        num_zero: Zeros.
        num_nan: NaN.
        num_inf: Infinities.
        min: The smallest finite number, an int for integers; None without any.
        max: The largest finite number, an int for integers; None without any.
        histogram: Histogram of the finite numbers.
    """

    def __init__(self, is_float: bool) -> None:
        self._is_float = is_float
        self._pending: list[NDArray[Any]] = []
        self._num_pending = 0
        self.count = self.num_finite = self.num_zero = self.num_nan = self.num_inf = 0
        self.min: float | int | None = None
        self.max: float | int | None = None
        self._origin = 0  # subtracted from large integers, which float64 can not distinguish
        self._mean = 0.0  # of the finite numbers, minus the origin
        self._squares = 0.0  # sum of squared distances from the mean
        self.histogram = ValueHistogram(is_float)
        self._distinct = DistinctValues()  # filled when the histogram is not exact any longer
        self._top = TopValues()  # likewise; of floats only the most repeated, for quantiles

    @property
    def mean(self) -> float:
        """Mean of the finite numbers; 0 without any."""
        return self._origin + self._mean

    @property
    def std(self) -> float:
        """Population standard deviation of the finite numbers; 0 without any."""
        return math.sqrt(self._squares / self.num_finite) if self.num_finite else 0.0

    def add(self, values: NDArray[np.int64] | NDArray[np.float32]) -> None:
        """Add ``int64[n]`` or ``float32[n]``, which is buffered and must not change."""
        self._pending.append(values)
        self._num_pending += values.size
        if self._num_pending >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        """Count the buffered values; needed before everything but `add`."""
        pending, self._pending, self._num_pending = self._pending, [], 0
        if not pending:
            return
        values = np.concatenate(pending) if len(pending) > 1 else pending[0]
        at = 0
        while at < values.size:
            # The first numbers set the histogram's resolution and the hashes' limit; batches of
            # doubling size then have little to sort.
            size = min(_FLUSH, max(_FIRST, self.count))
            self._add_batch(values[at : at + size])
            at += size

    def _add_batch(self, values: NDArray[Any]) -> None:
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
            exact *= exact  # not np.dot: with threads its order of summation varies
            self._join(values.size, low, high, origin, mean, float(exact.sum()))
        self.count += num_values
        if not values.size:
            return
        if self._is_float:
            self._add_floats(values)
        else:
            self._add_integers(*count_integers(values))

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

    def _add_floats(self, values: NDArray[np.float32]) -> None:
        before = self._exact_values()
        repeated = self.histogram.add_floats(values)
        if self.histogram.is_exact:
            return
        self._spill(before)
        self._top.add(repeated)
        hashed = hash_halves((values + np.float32(0)).view(np.uint32))
        if self._distinct.is_full:
            hashed = hashed[hashed < np.uint32(int(self._distinct.hashes[-1]) >> 32)]
        self._distinct.add(hashed.astype(np.uint64) << np.uint64(32))

    def _add_integers(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        before = self._exact_values()
        self.histogram.add_integers(values, counts)
        if not self.histogram.is_exact:
            self._spill(before)
            self._spill((values, counts))

    def _exact_values(self) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return the values of an exact histogram with their counts; None if it is not exact."""
        histogram = self.histogram
        return (histogram.values, histogram.counts) if histogram.is_exact else None

    def _spill(self, counted: tuple[NDArray[Any], NDArray[np.int64]] | None) -> None:
        """Add the values of a formerly exact histogram to the sketches."""
        if counted is None or not counted[0].size:
            return
        values, counts = counted
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
        mine, theirs = self._exact_values(), other._exact_values()
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
            # Quantiles of large integers are not rounded: they are not sums.
            entry["quantiles"] = {
                str(q): _rounded(v) if abs(v) < 10**_DIGITS else v
                for q, v in zip(QUANTILES, found, strict=True)
            }
        return entry

    def _rounded_mean(self) -> float:
        if self._is_float:
            return _rounded(self.mean)
        # Rounded relative to the standard deviation, which does not depend on the origin.
        mean = Fraction(self._origin) + Fraction(self._mean)
        digits = _DIGITS - 1 - math.floor(math.log10(self.std)) if self.std else _DIGITS
        return float(round(mean, digits))

    def num_distinct(self) -> tuple[int, int, int]:
        """Return the estimated number of distinct finite numbers, with bounds."""
        self.flush()
        if self.histogram.is_exact:
            return (self.histogram.keys.size,) * 3
        return self._distinct.estimate()

    def top(self, num_values: int) -> tuple[list[tuple[float | int, int]], int]:
        """Return the most frequent numbers with counts, and the counts' maximum error.

        Many different floats have no frequent numbers.
        """
        self.flush()
        if self.histogram.is_exact:
            values, counts = self.histogram.values.tolist(), self.histogram.counts.tolist()
            return rank(zip(values, counts, strict=True), num_values), 0
        if self._is_float:
            return [], 0
        return self._top.most_common(num_values), self._top.num_missed

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with nothing buffered."""
        self.flush()
        return self.__dict__


def _from_origin(values: NDArray[np.int64], low: int, high: int) -> tuple[int, NDArray[np.float64]]:
    """Return an origin and the integers minus it; it is 0 unless they are large and close."""
    if min(abs(low), abs(high)) < _LARGE or high - low >= _LARGE:
        return 0, values.astype(np.float64)
    return low, (values - low).astype(np.float64)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


MAX_FEATURES: Final = 4096
NUM_TOP: Final = 10
_MAX_BUFFERED: Final = 1 << 20  # values buffered by all sketches together

_Cell: TypeAlias = "Values | Unset | None"


class FeatureSketch:
    """Statistics of one feature.

    Attributes:
        present: Records that have the feature, with or without a kind.
        unset: Records that have the feature without a kind.
        kinds: Records by the kind of their values; a feature list may have several per record.
        lengths: Values per record with a kind; of a feature list, per step.
        steps: Steps per record of a feature list; else None.
        numbers: Statistics of int64 and of float values, by kind.
        blobs: Statistics of bytes values.
    """

    def __init__(self, *, is_list: bool = False) -> None:
        self.present = self.unset = self.num_empty = 0
        self.kinds: dict[Kind, int] = {}
        self.lengths = Range()
        self.steps = Range() if is_list else None
        self.numbers: dict[Kind, NumberStats] = {}
        self.blobs: BlobStats | None = None

    def add(self, column: PlainColumn) -> None:
        """Add the values of the records that have the feature, from `decode_plain_parts`."""
        if isinstance(column, SingleBlobs):
            self.present += len(column)
            self.lengths.add(1, len(column))
            self._add_kind("bytes", len(column))
            self._add_blobs(column)
            return
        if isinstance(column, np.ndarray):
            num_rows, length = column.shape
            self.present += num_rows
            self.lengths.add(length, num_rows)
            self.num_empty += 0 if length else num_rows
            self._add_kind(_kind_of(column.dtype), num_rows)
            self._add_numbers(column.reshape(-1))
            return
        cells: list[Any] = column
        if set(map(type, column)) != {list}:
            num_cells = len(cells)
            cells = [cell for cell in cells if cell is not UNSET]
            self.present += num_cells - len(cells)
            self.unset += num_cells - len(cells)
            self.num_empty += num_cells - len(cells)
        self.present += len(cells)
        for kind, number in self._add_cells(cells).items():
            self._add_kind(kind, number)

    def add_steps(self, steps: Sequence[Values | None]) -> None:
        """Add the feature list of one record."""
        assert self.steps is not None
        self.present += 1
        self.steps.add(len(steps))
        known: list[_Cell] = [values for values in steps if values is not None]
        kinds = self._add_cells(known)
        if not kinds and steps:
            self.unset += 1
        for kind in kinds:
            self._add_kind(kind, 1)

    def _add_kind(self, kind: Kind, number: int) -> None:
        if number:
            self.kinds[kind] = self.kinds.get(kind, 0) + number

    def _add_cells(self, cells: Sequence[Any]) -> dict[Kind, int]:
        """Add lists of values, and return their number by kind."""
        if not cells:
            return {}
        lengths = np.fromiter(map(len, cells), np.int64, len(cells))
        self.lengths.add_all(lengths)
        self.num_empty += int(np.count_nonzero(lengths == 0))
        by_kind: dict[Kind, list[Any]] = {}
        types = set(map(type, cells))
        if types == {list}:
            by_kind["bytes"] = list(cells)
        else:
            for cell in cells:
                kind: Kind = "bytes" if isinstance(cell, list) else _kind_of(cell.dtype)
                by_kind.setdefault(kind, []).append(cell)
        for kind, same in by_kind.items():
            if kind == "bytes":
                self._add_blobs(list(chain.from_iterable(same)))
            else:
                self._add_numbers(np.concatenate(same))
        return {kind: len(same) for kind, same in by_kind.items()}

    def _add_blobs(self, values: Sequence[bytes]) -> None:
        if self.blobs is None:
            self.blobs = BlobStats()
        self.blobs.add(values)

    def _add_numbers(self, values: NDArray[Any]) -> None:
        kind = _kind_of(values.dtype)
        stats = self.numbers.get(kind)
        if stats is None:
            stats = self.numbers[kind] = NumberStats(kind == "float")
        if values.size:
            stats.add(values)

    def merge(self, other: FeatureSketch) -> None:
        """Add the statistics of other records."""
        self.present += other.present
        self.unset += other.unset
        self.num_empty += other.num_empty
        self.lengths.merge(other.lengths)
        if self.steps is not None and other.steps is not None:
            self.steps.merge(other.steps)
        for kind, number in other.kinds.items():
            self._add_kind(kind, number)
        for kind, stats in other.numbers.items():
            if kind not in self.numbers:
                self.numbers[kind] = NumberStats(kind == "float")
            self.numbers[kind].merge(stats)
        if other.blobs is not None:
            if self.blobs is None:
                self.blobs = BlobStats()
            self.blobs.merge(other.blobs)

    @property
    def kind(self) -> Kind | None:
        """The most frequent kind; None if all are unset."""
        return min(self.kinds, key=lambda kind: (-self.kinds[kind], kind), default=None)

    @property
    def dtype(self) -> str | None:
        """The dtype as in a manifest, as far as the records show it."""
        if self.kind == "bytes":
            return "string" if self.blobs is not None and self.blobs.is_text else "bytes"
        return {"int64": "int64", "float": "float32"}.get(self.kind or "")

    @property
    def shape(self) -> list[int | None] | None:
        """The shape as in a manifest: ``[]``, ``[k]``, or ``[None]`` if it varies."""
        low, high = self.lengths.min, self.lengths.max
        if low is None:
            return None
        if low != high:
            return [None]
        return [] if low == 1 else [low]

    def flush(self) -> None:
        """Count all buffered values."""
        for stats in self.numbers.values():
            stats.flush()
        if self.blobs is not None:
            self.blobs.flush()

    def to_json(self, num_records: int) -> dict[str, Any]:
        """Return the report's entry of the feature in ``num_records`` records."""
        self.flush()
        kind = self.kind
        values: NumberStats | BlobStats | None = self.blobs
        if kind != "bytes":
            values = self.numbers[kind] if kind is not None else None
        distinct, low, high = (0, 0, 0) if values is None else values.num_distinct()
        if values is not None:
            # An estimate may exceed the number of values.
            most = values.num_finite if isinstance(values, NumberStats) else values.sizes.count
            distinct, low, high = (min(number, most) for number in (distinct, low, high))
        found, num_missed = ([], 0) if values is None else values.top(NUM_TOP)
        top = [{"count": n, "value": blob_json(v) if isinstance(v, bytes) else v} for v, n in found]
        is_blobs = isinstance(values, BlobStats)
        images = values.images.to_json() if isinstance(values, BlobStats) else None
        formats = sorted(images["formats"]) if images is not None else []
        lengths = Range()
        lengths.merge(self.lengths)
        if self.steps is None:
            lengths.add(0, self.unset)
        entry: dict[str, Any] = {
            "absent": num_records - self.present,
            "distinct": {"estimate": distinct, "exact": low == high, "high": high, "low": low},
            "dtype": self.dtype if not formats else "bytes",
            "empty": self.num_empty,
            "encoding": "image" if formats else "list",
            "images": images,
            "kind": kind,
            "kinds": dict(sorted(self.kinds.items())),
            "lengths": lengths.to_json(),
            "num_records": num_records,
            "numbers": values.to_json() if isinstance(values, NumberStats) else None,
            "present": self.present,
            "shape": self.shape,
            "top": top,
            "top_missed": num_missed,
            "unset": self.unset,
            "value_bytes": values.sizes.to_json() if isinstance(values, BlobStats) else None,
        }
        if formats:
            entry["format"] = formats[0] if len(formats) == 1 else None
        if is_blobs:
            entry["is_text"] = self.dtype == "string"
        if self.steps is not None:
            entry["steps"] = self.steps.to_json()
        return entry


def _kind_of(dtype: np.dtype[Any]) -> Kind:
    return "float" if dtype.kind == "f" else "int64"


class FeatureStats:
    """Statistics of all features of some records.

    Of more than `MAX_FEATURES` features only the first in alphabetical order are included.

    Attributes:
        num_records: Examples and SequenceExamples.
        features: By name, as in :mod:`shardwriter.formats.sequence_example`: a feature list ``x``
            is ``x[]``.
        has_all: Whether all features are included.
    """

    def __init__(self) -> None:
        self.num_records = 0
        self.features: dict[str, FeatureSketch] = {}
        self.has_all = True
        self._num_buffered = 0  # cells since the sketches were flushed

    def add(self, columns: Mapping[str, PlainColumn], num_records: int) -> None:
        """Add a batch of records.

        Args:
            columns: By feature, the values of the records that have it.
            num_records: Number of records.
        """
        self.num_records += num_records
        spelled = {feature_spelling(name): column for name, column in columns.items()}
        for name in self._select(spelled):
            self._sketch(name).add(spelled[name])
            self._num_buffered += len(spelled[name])
        if self._num_buffered >= _MAX_BUFFERED:
            self.flush()

    def add_lists(self, records: Iterable[Mapping[str, Sequence[Values | None]]]) -> None:
        """Add the feature lists of SequenceExamples whose contexts are counted by `add`."""
        for lists in records:
            spelled = {list_spelling(name): steps for name, steps in lists.items()}
            for name in self._select(spelled):
                self._sketch(name, is_list=True).add_steps(spelled[name])

    def _select(self, names: Collection[str]) -> Collection[str]:
        """Return the names that are included, and drop features that are not any longer.

        Names are selected before sketches are created: a record may have millions of features.
        """
        known = self.features
        if len(known) + len(names) <= MAX_FEATURES:
            return names
        first = set(nsmallest(MAX_FEATURES, known.keys() | names))
        dropped = [name for name in known if name not in first]
        for name in dropped:
            del known[name]
        selected = [name for name in names if name in first]
        self.has_all = self.has_all and not dropped and len(selected) == len(names)
        return selected

    def _sketch(self, name: str, *, is_list: bool = False) -> FeatureSketch:
        sketch = self.features.get(name)
        if sketch is None:
            sketch = self.features[name] = FeatureSketch(is_list=is_list)
        return sketch

    def merge(self, other: FeatureStats) -> None:
        """Add the statistics of other records, of this file or of another one."""
        self.num_records += other.num_records
        self.has_all = self.has_all and other.has_all
        for name in self._select(other.features):
            theirs = other.features[name]
            self._sketch(name, is_list=theirs.steps is not None).merge(theirs)

    def flush(self) -> None:
        """Count all buffered values; needed before the sketches are read."""
        for sketch in self.features.values():
            sketch.flush()
        self._num_buffered = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report's ``features``."""
        return {
            name: self.features[name].to_json(self.num_records) for name in sorted(self.features)
        }
