"""Where records stand, by their numbers in reading order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset.assignment import Gaps
from shardwriter.dataset.record_locations import AssignedLocations, InterleavedLocations


def together(places):
    """All places, asked for in three ways that have to agree."""
    numbers = np.arange(places.num_records)
    shards, positions = places.locate_many(numbers)
    found = list(zip(shards.tolist(), positions.tolist(), strict=True))
    assert [places.locate(record) for record in range(places.num_records)] == found
    backwards = places.locate_many(numbers[::-1].copy())
    assert list(zip(*(part.tolist() for part in backwards), strict=True)) == found[::-1]
    return found


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=30))
def test_items_with_gaps_stand_where_the_law_puts_them(num_shards, kept):
    gaps = [i for i, keep in enumerate(kept) if not keep]
    counts = [0] * num_shards
    expected, items = [], []
    for item, keep in enumerate(kept):
        if keep:
            expected.append((item % num_shards, counts[item % num_shards]))
            items.append(item)
            counts[item % num_shards] += 1
    places = AssignedLocations(num_shards, gaps, len(expected))
    assert together(places) == expected
    assert places.source_index(np.arange(len(items))).tolist() == items


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20))
def test_shards_take_turns_until_they_are_at_their_end(counts):
    expected = []
    for turn in range(max(counts)):
        expected += [(shard, turn) for shard, count in enumerate(counts) if count > turn]
    places = InterleavedLocations(counts)
    assert places.num_records == len(expected)
    assert together(places) == expected
    assert places.source_index(np.arange(3)).tolist() == [0, 1, 2]


@given(st.integers(1, 9), st.integers(0, 60))
def test_both_agree_where_lengths_follow_the_law(num_shards, num_items):
    counts = [len(range(shard, num_items, num_shards)) for shard in range(num_shards)]
    assert together(InterleavedLocations(counts)) == together(
        AssignedLocations(num_shards, [], num_items)
    )


def test_many_records_and_many_gaps():
    rng = np.random.default_rng(7)
    num_items, num_shards = 10**12, 100_000
    gaps = np.unique(rng.integers(0, num_items, 200_000))
    places = AssignedLocations(num_shards, gaps, num_items - len(gaps))
    records = np.append(rng.integers(0, places.num_records, 500), [0, places.num_records - 1])
    items = places.source_index(records)
    shards, positions = places.locate_many(records)
    one_by_one = Gaps(gaps, num_shards)
    for i, record in enumerate(records.tolist()):
        assert items[i] == one_by_one.source_index(record)
        place = items[i] % num_shards, one_by_one.position(int(items[i]))
        assert (shards[i], positions[i]) == place == places.locate(record)


def test_many_shards_of_many_lengths():
    rng = np.random.default_rng(8)
    counts = rng.permutation(50_000)
    places = InterleavedLocations(counts)
    last = places.num_records - 1
    assert places.locate(last) == (int(np.argmax(counts)), 49_998)
    shards, positions = places.locate_many(np.sort(rng.integers(0, last + 1, 1000)))
    assert (positions < counts[shards]).all()
    assert (np.diff(positions) >= 0).all()
    for shard, position in zip(shards[:20].tolist(), positions[:20].tolist(), strict=True):
        before = int(np.minimum(counts, position).sum() + (counts[:shard] > position).sum())
        assert places.locate(before) == (shard, position)


@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0]])
def test_nothing(counts):
    places = InterleavedLocations(counts)
    assert places.num_records == 0
    assert [len(part) for part in places.locate_many(np.zeros(0, np.int64))] == [0, 0]
