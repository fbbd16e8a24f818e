"""The law: which item goes where.

    Item i belongs to shard i mod N, and a shard holds its records in ascending i.

T items in source order have the indices 0..T-1. G is the sorted list of gaps: items that gave no
record. Without gaps item i is record i div N of its shard, shard lengths differ by at most one, and
reading one record of each shard in turn gives back the source order. With gaps both hold nearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def num_shard_items(num_items: int, num_shards: int, shard: int) -> int:
    """Return how many of ``num_items`` items belong to a shard: ceil((T - s) / N)."""
    return max(0, -(-(num_items - shard) // num_shards))


class Gaps:
    """Counting past the gaps: where an item's record is, and whose record a place holds.

    Made once for a dataset: the gaps are sorted by shard, and each question is a binary search.

    Args:
        gaps: Sorted indices of items without a record.
        num_shards: N.
    """

    def __init__(self, gaps: Sequence[int] | NDArray[np.int64], num_shards: int) -> None:
        self._num_shards = num_shards
        numbers = np.asarray(gaps, np.int64)
        # With H_k = g_k - k, which is how many records lie in front of gap k, record r is item
        # r + bisect_right(H, r); and the same inside of a shard.
        self._before = numbers - np.arange(len(numbers))
        order = np.argsort(numbers % num_shards, kind="stable")
        self._starts = np.searchsorted((numbers % num_shards)[order], np.arange(num_shards + 1))
        self._turns = (numbers // num_shards)[order]
        of_shard = np.diff(self._starts)
        in_shard = np.arange(len(numbers)) - np.repeat(self._starts[:-1], of_shard)
        self._turns_before = self._turns - in_shard

    def source_index(self, record: int) -> int:
        """Return the item index of a record counted in reading order 0..T-|G|-1."""
        return record + int(np.searchsorted(self._before, record, side="right"))

    def position(self, item_index: int) -> int:
        """Return the place of an item's record inside its shard; the item is not a gap itself."""
        turn, shard = divmod(item_index, self._num_shards)
        mine = slice(self._starts[shard], self._starts[shard + 1])
        return turn - int(np.searchsorted(self._turns[mine], turn))

    def item_index(self, shard: int, place: int) -> int:
        """Return the item whose record stands at a place of a shard: the inverse of `position`."""
        mine = slice(self._starts[shard], self._starts[shard + 1])
        turn = place + int(np.searchsorted(self._turns_before[mine], place, side="right"))
        return shard + self._num_shards * turn


def gaps_per_shard(gaps: Iterable[int], num_shards: int) -> list[int]:
    """Return how many gaps fall on each shard."""
    counts = [0] * num_shards
    for gap in gaps:
        counts[gap % num_shards] += 1
    return counts


def law_breach(
    records: Sequence[int], num_items: int, gaps: Iterable[int] = ()
) -> tuple[int, int, int] | None:
    """Check records_s + gaps_s = ceil((T - s) / N) for every shard.

    Args:
        records: Records of each shard.
        num_items: T.
        gaps: Items without a record.

    Returns:
        The first shard that breaks the law, with the records it should and does have; or None.
    """
    num_shards = len(records)
    missing = gaps_per_shard(gaps, num_shards)
    for shard, count in enumerate(records):
        expected = num_shard_items(num_items, num_shards, shard) - missing[shard]
        if count != expected:
            return shard, expected, count
    return None


def to_runs(gaps: Iterable[int]) -> list[list[int]]:
    """Write sorted gaps as ``[first, count]`` runs, as the manifest keeps them."""
    runs: list[list[int]] = []
    for gap in gaps:
        if runs and gap == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([gap, 1])
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> list[int]:
    """Turn ``[first, count]`` runs back into sorted gaps."""
    return [gap for first, count in runs for gap in range(first, first + count)]
