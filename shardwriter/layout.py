"""The law: which item goes where.

    Item i belongs to shard i mod N, and a shard holds its records in ascending i.

T items in source order have the indices 0..T-1. G is the sorted list of gaps: items that gave no
record. Without gaps item i is record i div N of its shard, shard lengths differ by at most one, and
reading one record of each shard in turn gives back the source order. With gaps both hold nearly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def shard_index(item_index: int, num_shards: int) -> int:
    """Return the shard that an item belongs to."""
    return item_index % num_shards


def num_shard_items(num_items: int, num_shards: int, shard: int) -> int:
    """Return how many of ``num_items`` items belong to a shard: ceil((T - s) / N)."""
    return max(0, -(-(num_items - shard) // num_shards))


def position(item_index: int, num_shards: int, gaps: Sequence[int] = ()) -> int:
    """Return the place of an item's record inside its shard.

    Args:
        item_index: Index in source order; not a gap itself.
        num_shards: N.
        gaps: Sorted indices of items without a record.
    """
    earlier = gaps[: bisect_left(gaps, item_index)]
    return item_index // num_shards - sum(
        1 for gap in earlier if (item_index - gap) % num_shards == 0
    )


def source_indices(
    records: NDArray[np.int64] | int, gaps: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the item index of records counted in reading order 0..T-|G|-1.

    With H_k = g_k - k, which is how many records lie in front of gap k: i = r + bisect_right(H, r).

    Args:
        records: int64[n] record numbers.
        gaps: int64[g], sorted.

    Returns:
        int64[n] item indices.
    """
    before = np.asarray(gaps, np.int64) - np.arange(len(gaps))
    return np.asarray(records, np.int64) + np.searchsorted(before, records, side="right")


def source_index(record: int, gaps: Sequence[int]) -> int:
    """Return the item index of one record; see :func:`source_indices`."""
    before = [gap - k for k, gap in enumerate(gaps)]
    return record + bisect_right(before, record)


def item_index(shard: int, place: int, num_shards: int, gaps: Sequence[int] = ()) -> int:
    """Return the item whose record stands at a place of a shard: the inverse of `position`."""
    local = [gap // num_shards for gap in gaps if gap % num_shards == shard]
    return shard + num_shards * source_index(place, local)


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
