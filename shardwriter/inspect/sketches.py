"""Sketches of values in bounded memory: histogram, distinct values, most frequent values.

- `ValueHistogram` has as many buckets as its memory allows. Few distinct numbers have a bucket
  each. Otherwise numbers share a bucket if their bits agree except for the last ``shift`` ones; the
  bits of a float are ordered like the floats, so a bucket is a range, and all have the same
  relative width. The shift is the smallest with at most `MAX_BUCKETS` buckets, so it depends on the
  data alone and histograms of parts merge into that of the whole.
- `DistinctValues` counts exactly up to `MAX_HASHES`, and then estimates from the smallest hashes
  (K. Beyer et al., "On Synopses for Distinct-Value Estimation", SIGMOD 2007). These do not depend
  on the order or division of the data, and there is no seed.
- `TopValues` counts exactly while values are few, and then with the algorithm of Misra and Gries
  (1982).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.crc32c import crc32c

MAX_BUCKETS: Final = 1024
_CROWD: Final = 32  # a frequent value makes at least one in this many of a batch
_DENSE: Final = 1 << 16  # a smaller range of keys is counted in an array


class ValueHistogram:
    """Counts of finite numbers by ranges.

    Args:
        is_float: Whether numbers are float32; else int64.

    Attributes:
        shift: Low bits in which the numbers of a bucket may differ; 0 for one number per bucket.
        keys: ``int64[m]``, ascending: the numbers' bits without the last ``shift``; for integers
            with shift 0 the numbers themselves.
        counts: ``int64[m]``: numbers in each bucket.
    """

    def __init__(self, is_float: bool) -> None:
        self._is_float = is_float
        self.shift = 0
        self.keys: NDArray[np.int64] = np.empty(0, np.int64)
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def is_exact(self) -> bool:
        """Whether each number has its own bucket."""
        return self.shift == 0

    @property
    def values(self) -> NDArray[Any]:
        """The numbers of an exact histogram, ascending: ``int64[m]`` or ``float32[m]``."""
        return _float32_of(self.keys) if self._is_float else self.keys

    def add_floats(self, values: NDArray[np.float32]) -> dict[float, int]:
        """Add floats; -0.0 counts as 0.0.

        Returns:
            The frequent values (at least one in `_CROWD`) with their counts.
        """
        keys = _keys_of_floats(values)
        buckets = keys >> self.shift if self.shift else keys
        found, counts = count_integers(buckets)
        self._add(found, counts)
        # Only a bucket with that many numbers can contain a frequent value, and few buckets have.
        crowded = found[counts * _CROWD >= values.size]
        if not crowded.size:
            return {}
        found, counts = count_integers(keys[np.isin(buckets, crowded)])
        frequent = counts * _CROWD >= values.size
        floats = _float32_of(found[frequent]).tolist()
        return dict(zip(floats, counts[frequent].tolist(), strict=True))

    def add_integers(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add distinct integers, ascending, with their counts."""
        if self.shift == 0:
            self._add(values, counts)
        else:
            self._add(*_sum_equal(_keys_of_integers(values) >> self.shift, counts))

    def merge(self, other: ValueHistogram) -> None:
        """Add the counts of another histogram, which may become coarser."""
        if self.shift < other.shift:
            self._coarsen(other.shift)
        elif other.shift < self.shift:
            self._add(*other.at_shift(self.shift))
            return
        self._add(other.keys, other.counts)

    def _add(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        if self.keys.size:
            keys = np.concatenate([self.keys, keys])
            order = np.argsort(keys, kind="stable")
            counts = np.concatenate([self.counts, counts])
            keys, counts = _sum_equal(keys[order], counts[order])
        self.keys, self.counts = keys, counts
        if self.keys.size > MAX_BUCKETS:
            self._coarsen(self._smallest_shift())

    def _smallest_shift(self) -> int:
        shift, keys = self.shift, self.keys
        if shift == 0 and not self._is_float:
            keys = _keys_of_integers(keys)
        more = 0 if shift else 1
        while np.count_nonzero(np.diff(keys >> more)) >= MAX_BUCKETS:
            more += 1
        return shift + more

    def _coarsen(self, shift: int) -> None:
        self.keys, self.counts = self.at_shift(shift)
        self.shift = shift

    def quantiles(
        self,
        shares: Sequence[float],
        low: float,
        high: float,
        repeated: Mapping[float, int] | Mapping[int, int],
    ) -> tuple[list[float], float]:
        """Return quantiles, with linear interpolation as in ``numpy.quantile``.

        If the histogram is not exact, a quantile is within the right bucket. A repeated value that
        fills most of its bucket is found exactly.

        Args:
            shares: Numbers between 0 and 1.
            low: The smallest number.
            high: The largest number.
            repeated: Frequent numbers, with lower bounds of their counts.

        Returns:
            The quantiles; and their largest rank error e as a share of all numbers: the quantile of
            share q is between the true quantiles of q - e and q + e.
        """
        totals = np.cumsum(self.counts)
        lower, upper = self._edges(low, high)
        majorities = self._majorities(repeated)

        def at(index: int) -> tuple[float, int]:
            """Return the number at a rank, and its maximum error in ranks."""
            bucket = int(np.searchsorted(totals, index, side="right"))
            first, behind = float(lower[bucket]), float(upper[bucket])
            if first == behind:
                return first, 0
            count = int(self.counts[bucket])
            inside = index - (int(totals[bucket]) - count)
            value, at_least = majorities.get(bucket, (0, 0))
            # The other numbers of the bucket may be below or above the value.
            if count - at_least <= inside < at_least:
                return float(value), 0
            return first + (behind - first) * ((inside + 0.5) / count), count

        found = []
        most_off = 0
        last = int(totals[-1]) - 1
        for share in shares:
            place = share * last
            index = int(place)
            value, off = at(index)
            most_off = max(most_off, off)
            if place > index:
                behind, off = at(index + 1)
                most_off = max(most_off, off)
                value += (behind - value) * (place - index)
            found.append(value)
        return found, min(1.0, most_off / last) if last else 0.0

    def _majorities(
        self, repeated: Mapping[float, int] | Mapping[int, int]
    ) -> dict[int, tuple[float, int]]:
        """Return by bucket the value that fills more than half of it, and its count."""
        if self.shift == 0 or not repeated:
            return {}
        if self._is_float:
            floats = np.fromiter(repeated, np.float32, len(repeated))
            keys = _keys_of_floats(floats).astype(np.int64)
        else:
            keys = _keys_of_integers(np.fromiter(repeated, np.int64, len(repeated)))
        buckets = np.searchsorted(self.keys, keys >> self.shift).tolist()
        total = int(self.counts.sum())  # rarer values depend on the order of the data
        return {
            bucket: (value, at_least)
            for bucket, (value, at_least) in zip(buckets, repeated.items(), strict=True)
            if 2 * at_least > self.counts[bucket] and at_least * _CROWD >= total
        }

    def at_shift(self, shift: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return keys and counts with a shift that is equal or larger."""
        keys = self.keys
        if shift and self.shift == 0 and not self._is_float:
            keys = _keys_of_integers(keys)
        return _sum_equal(keys >> (shift - self.shift), self.counts)

    def _edges(self, low: float, high: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.shift == 0:
            values = self.values.astype(np.float64)
            return values, values
        lower, upper = self.keys << self.shift, (self.keys + 1) << self.shift
        if self._is_float:
            bounds = _float32_of(lower), _float32_of(upper)
        else:
            first = np.ceil(_float64_of(lower))  # the first and the last integer of each range
            bounds = first, np.maximum(first, np.ceil(_float64_of(upper)) - 1)
        return np.clip(bounds[0], low, high), np.clip(bounds[1], low, high)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with the smallest integer types."""
        first = int(self.keys[0]) if self.keys.size else 0
        state = dict(self.__dict__)
        state["keys"] = (first, _narrow((self.keys - first).view(np.uint64)))
        state["counts"] = _narrow(self.counts.view(np.uint64))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state."""
        first, keys = state["keys"]
        self.__dict__.update(state)
        self.keys = keys.astype(np.uint64).view(np.int64) + first
        self.counts = state["counts"].astype(np.int64)


def count_integers(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct integers, ascending, and their counts: both ``int64[m]``."""
    if not values.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low < max(_DENSE, 2 * values.size):
        dense = np.bincount(values - values.dtype.type(low))
        found = np.flatnonzero(dense)
        return found + low, dense[found]
    ordered = np.sort(values)
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return ordered[starts].astype(np.int64), np.diff(starts, append=ordered.size)


def _sum_equal(
    keys: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct keys with the sums of their counts; equal keys must be adjacent."""
    if not keys.size:
        return keys, counts
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(counts, starts)


def _keys_of_floats(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the bits of floats as integers of the same order."""
    bits = (values + np.float32(0)).view(np.int32)
    keys: NDArray[np.int32] = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return keys


def _keys_of_integers(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bits of integers as float64, as integers of the same order."""
    bits = values.astype(np.float64).view(np.int64)
    keys: NDArray[np.int64] = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    return keys


_LAST_FLOAT32: Final = 0x7F7FFFFF


def _float32_of(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    bits = np.clip(keys, -_LAST_FLOAT32 - 1, _LAST_FLOAT32).astype(np.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(np.float32)


def _float64_of(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    return (keys ^ ((keys >> 63) & 0x7FFFFFFFFFFFFFFF)).view(np.float64)


def _narrow(numbers: NDArray[np.uint64]) -> NDArray[Any]:
    return numbers.astype(np.min_scalar_type(int(numbers.max()))) if numbers.size else numbers


MAX_HASHES: Final = 1024
MAX_EXACT: Final = 512  # values that are counted exactly
MAX_TOP: Final = 128  # values that are counted approximately, if there are more
_SPACE: Final = 2.0**64
_WORD_BYTES: Final = 8
_SHORT_BYTES: Final = 64  # longer values are hashed by their CRC


class DistinctValues:
    """The smallest distinct hashes of values; it merges exactly.

    Attributes:
        hashes: ``uint64[k]``, ascending, distinct; k <= `MAX_HASHES`.
    """

    __slots__ = ("hashes",)

    def __init__(self) -> None:
        self.hashes: NDArray[np.uint64] = np.empty(0, np.uint64)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes of some values, in any order and number."""
        if self.is_full:
            hashes = hashes[hashes < self.hashes[-1]]
        if hashes.size:
            ordered = np.sort(np.concatenate([self.hashes, hashes]))
            is_new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
            self.hashes = ordered[is_new][:MAX_HASHES]

    @property
    def is_full(self) -> bool:
        """Whether there may be more values than hashes."""
        return self.hashes.size >= MAX_HASHES

    def estimate(self) -> tuple[int, int, int]:
        """Return the estimated number of values, with the bounds of its 95% confidence interval."""
        size = self.hashes.size
        if not self.is_full:
            return size, size, size
        # The k-th smallest of n uniform numbers is k / n on average.
        found = (size - 1) / ((float(self.hashes[-1]) + 1) / _SPACE)
        spread = 1.96 / (size - 2) ** 0.5
        low, high = found / (1 + spread), found / (1 - spread)
        return round(found), max(size, round(low)), round(high)


class TopValues:
    """The most frequent values: exact while there are few, then by Misra and Gries (1982).

    Every value that makes more than one in `MAX_TOP` + 1 is included, with a lower bound of its
    count. The bounds hold for any division of the data; which rarer values are included depends on
    it.

    Attributes:
        counts: Lower bounds of the counts by value.
        num_missed: Maximum error of a count; 0 if all are exact.
    """

    __slots__ = ("counts", "num_missed")

    def __init__(self) -> None:
        self.counts: dict[Any, int] = {}
        self.num_missed = 0

    @property
    def is_exact(self) -> bool:
        """Whether all values are included, with exact counts."""
        return self.num_missed == 0

    def add(self, counts: Mapping[Any, int]) -> None:
        """Add values with their counts."""
        if self.counts:
            known = self.counts.get
            self.counts.update({v: known(v, 0) + count for v, count in counts.items()})
        else:
            self.counts = dict(counts)
        if len(self.counts) > (MAX_EXACT if self.is_exact else MAX_TOP):
            self._prune()

    def add_array(self, values: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Add distinct numbers with their counts, nearly all of which may be rare."""
        if values.size > MAX_EXACT:
            # Pruned before they become Python objects.
            cut = int(np.partition(counts, -MAX_TOP - 1)[-MAX_TOP - 1])
            is_frequent = counts > cut
            values, counts = values[is_frequent], counts[is_frequent] - cut
            self.num_missed += cut
        self.add(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: TopValues) -> None:
        """Add other counts."""
        self.num_missed += other.num_missed
        self.add(other.counts)

    def _prune(self) -> None:
        cut = nlargest(MAX_TOP + 1, self.counts.values())[-1]
        self.counts = {value: count - cut for value, count in self.counts.items() if count > cut}
        self.num_missed += cut

    def most_common(self, num_values: int) -> list[tuple[Any, int]]:
        """Return values with counts above the maximum error, the most frequent first."""
        return rank((pair for pair in self.counts.items() if pair[1] > self.num_missed), num_values)


def rank(counts: Iterable[tuple[Any, int]], num_values: int) -> list[tuple[Any, int]]:
    """Return the most frequent values with counts; ties by value."""
    return sorted(counts, key=lambda pair: (-pair[1], pair[0]))[:num_values]


def hash_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a bijective hash of 64-bit words: ``fmix64`` of MurmurHash3 (A. Appleby)."""
    hashed: NDArray[np.uint64] = words ^ (words >> np.uint64(33))
    hashed *= np.uint64(0xFF51AFD7ED558CCD)
    hashed ^= hashed >> np.uint64(33)
    hashed *= np.uint64(0xC4CEB9FE1A85EC53)
    hashed ^= hashed >> np.uint64(33)
    return hashed


def hash_halves(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a bijective hash of 32-bit words: ``fmix32`` of MurmurHash3."""
    hashed: NDArray[np.uint32] = words ^ (words >> np.uint32(16))
    hashed *= np.uint32(0x85EBCA6B)
    hashed ^= hashed >> np.uint32(13)
    hashed *= np.uint32(0xC2B2AE35)
    hashed ^= hashed >> np.uint32(16)
    return hashed


def hash_blobs(values: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return ``uint64[n]``: hashes of byte strings, over 64 bytes by their length and CRC-32C."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    hashes = np.empty(len(values), np.uint64)
    classes = np.where(sizes > _SHORT_BYTES, -1, -(-sizes // _WORD_BYTES))
    for num_words in np.unique(classes).tolist():
        which = np.flatnonzero(classes == num_words)
        chosen = [values[i] for i in which.tolist()] if which.size < len(values) else values
        seeds = hash_words(sizes[which].astype(np.uint64) << np.uint64(32))
        if num_words < 0:
            seeds ^= np.fromiter(map(crc32c, chosen), np.uint64, which.size)
        else:
            width = num_words * _WORD_BYTES
            padded = b"".join([value.ljust(width, b"\0") for value in chosen])
            words = np.frombuffer(padded, "<u8").reshape(which.size, num_words)
            for column in words.T:
                seeds = hash_words(seeds ^ column)
        hashes[which] = hash_words(seeds)
    return hashes
