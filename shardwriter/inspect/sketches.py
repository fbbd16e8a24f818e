"""How many different values there are, and which are the most frequent, in bounded memory.

Counts of different values are exact up to `MAX_HASHES`, and beyond that an estimate from the
smallest hashes (K. Beyer et al., "On Synopses for Distinct-Value Estimation", SIGMOD 2007). The set
of the smallest hashes does not depend on the order or the division of the data, and no seed is
drawn: the same values give the same estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.crc32c import crc32c

MAX_HASHES: Final = 1024
MAX_EXACT: Final = 512  # values that are counted exactly
MAX_TOP: Final = 128  # values that are counted of a feature that has more
_SPACE: Final = 2.0**64
_WORD_BYTES: Final = 8
_SHORT_BYTES: Final = 64  # longer values are hashed by their CRC


class DistinctValues:
    """The smallest hashes of the values seen; it merges exactly.

    Attributes:
        hashes: ``uint64[k]``, ascending, different from each other; k <= `MAX_HASHES`.
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
        """Whether there may be more values than are kept."""
        return self.hashes.size >= MAX_HASHES

    def estimate(self) -> tuple[int, int, int]:
        """Return how many values there are, and bounds that hold in 95 of 100 cases."""
        size = self.hashes.size
        if not self.is_full:
            return size, size, size
        # The k-th smallest of n uniform numbers is k / n on the average.
        found = (size - 1) / ((float(self.hashes[-1]) + 1) / _SPACE)
        spread = 1.96 / (size - 2) ** 0.5
        low, high = found / (1 + spread), found / (1 - spread)
        return round(found), max(size, round(low)), round(high)


class TopValues:
    """The most frequent values: exact while there are few, then Misra's and Gries' (1982).

    Then every value that makes more than one in `MAX_TOP` + 1 of all is kept, with a lower bound
    of its count. Bounds hold however the values were divided; which of the rarer ones are kept
    depends on it.

    Attributes:
        counts: By value, how often it came, at least.
        num_missed: By how much a count may be too small; 0 while all of them are exact.
    """

    __slots__ = ("counts", "num_missed")

    def __init__(self) -> None:
        self.counts: dict[Any, int] = {}
        self.num_missed = 0

    @property
    def is_exact(self) -> bool:
        """Whether all values are here, with their counts."""
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
        """Add different numbers with their counts, of which nearly all may be rare."""
        if values.size > MAX_EXACT:
            # Pruned before they become objects; what is taken off here is missed.
            cut = int(np.partition(counts, -MAX_TOP - 1)[-MAX_TOP - 1])
            kept = counts > cut
            values, counts = values[kept], counts[kept] - cut
            self.num_missed += cut
        self.add(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: TopValues) -> None:
        """Add what was counted elsewhere."""
        self.num_missed += other.num_missed
        self.add(other.counts)

    def _prune(self) -> None:
        cut = nlargest(MAX_TOP + 1, self.counts.values())[-1]
        self.counts = {value: count - cut for value, count in self.counts.items() if count > cut}
        self.num_missed += cut

    def most_common(self, num_values: int) -> list[tuple[Any, int]]:
        """Return the values whose counts are sure, the most frequent first."""
        return rank((pair for pair in self.counts.items() if pair[1] > self.num_missed), num_values)


def rank(counts: Iterable[tuple[Any, int]], num_values: int) -> list[tuple[Any, int]]:
    """Return the most frequent values; of equally frequent ones the smallest first."""
    return sorted(counts, key=lambda pair: (-pair[1], pair[0]))[:num_values]


def hash_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit words one to one; the last steps of MurmurHash3, ``fmix64`` (A. Appleby)."""
    hashed: NDArray[np.uint64] = words ^ (words >> np.uint64(33))
    hashed *= np.uint64(0xFF51AFD7ED558CCD)
    hashed ^= hashed >> np.uint64(33)
    hashed *= np.uint64(0xC4CEB9FE1A85EC53)
    hashed ^= hashed >> np.uint64(33)
    return hashed


def hash_halves(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Hash 32-bit words one to one; ``fmix32`` of MurmurHash3."""
    hashed: NDArray[np.uint32] = words ^ (words >> np.uint32(16))
    hashed *= np.uint32(0x85EBCA6B)
    hashed ^= hashed >> np.uint32(13)
    hashed *= np.uint32(0xC2B2AE35)
    hashed ^= hashed >> np.uint32(16)
    return hashed


def hash_blobs(values: Sequence[bytes]) -> NDArray[np.uint64]:
    """Hash byte strings; those over 64 bytes by their length and CRC-32C.

    Returns:
        ``uint64[n]``.
    """
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
