"""The law against a model that deals items one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset import assignment as layout
from shardwriter.errors import ManifestError

CASES = st.integers(0, 60).flatmap(
    lambda t: st.tuples(
        st.just(t), st.integers(1, 9), st.sets(st.integers(0, max(0, t - 1)), max_size=t)
    )
)


def deal(num_items, num_shards, gaps):
    """What each shard holds, item by item."""
    shards = [[] for _ in range(num_shards)]
    for item in range(num_items):
        if item not in gaps:
            shards[item % num_shards].append(item)
    return shards


@given(CASES)
def test_every_item_has_its_place_and_every_place_its_item(case):
    num_items, num_shards, gaps = case
    table = layout.Gaps(sorted(gaps), num_shards)
    for shard, items in enumerate(deal(num_items, num_shards, gaps)):
        for place, item in enumerate(items):
            assert table.position(item) == place
            assert table.item_index(shard, place) == item


@given(st.integers(0, 1000), st.integers(1, 50))
def test_without_gaps_the_law_is_div_and_mod(item, num_shards):
    table = layout.Gaps([], num_shards)
    assert table.source_index(item) == item
    assert table.position(item) == item // num_shards
    assert table.item_index(item % num_shards, item // num_shards) == item


@given(CASES)
def test_records_are_counted_past_the_gaps(case):
    num_items, num_shards, gaps = case
    expected = [item for item in range(num_items) if item not in gaps]
    for ordered in (sorted(gaps), np.array(sorted(gaps), np.int64)):
        table = layout.Gaps(ordered, num_shards)
        assert [table.source_index(r) for r in range(len(expected))] == expected


def test_a_question_costs_no_walk_over_the_gaps():
    gaps = np.arange(0, 10_000_000, 5)
    table = layout.Gaps(gaps, 7)
    gaps[:] = 0  # what is asked for later does not come from the list that was given
    for record in (0, 3, 4, 7_999_999):
        item = table.source_index(record)
        assert item == record // 4 * 5 + 1 + record % 4
        assert table.item_index(item % 7, table.position(item)) == item


@given(st.integers(0, 200), st.integers(1, 20))
def test_items_are_shared_out_evenly(num_items, num_shards):
    counts = [layout.num_shard_items(num_items, num_shards, s) for s in range(num_shards)]
    assert counts == [len(items) for items in deal(num_items, num_shards, ())]
    assert sum(counts) == num_items
    assert max(counts) - min(counts) <= 1


@given(CASES)
def test_shards_that_were_dealt_keep_the_law(case):
    num_items, num_shards, gaps = case
    gaps = {gap for gap in gaps if gap < num_items}
    shards = deal(num_items, num_shards, gaps)
    assert layout.assignment_error([len(s) for s in shards], num_items, sorted(gaps)) is None
    per_shard = layout.gaps_per_shard(gaps, num_shards)
    assert per_shard == [sum(g % num_shards == s for g in gaps) for s in range(num_shards)]


@given(CASES, st.data())
def test_a_shard_that_is_off_is_named(case, data):
    num_items, num_shards, gaps = case
    gaps = {gap for gap in gaps if gap < num_items}
    counts = [len(s) for s in deal(num_items, num_shards, gaps)]
    shard = data.draw(st.integers(0, num_shards - 1))
    wrong = counts.copy()
    wrong[shard] += data.draw(st.sampled_from([-1, 1, 5]))
    found = layout.assignment_error(wrong, num_items, sorted(gaps))
    assert found == (shard, counts[shard], wrong[shard])


def test_the_first_of_several_breaches_is_told():
    assert layout.assignment_error([2, 1, 1], 6) == (1, 2, 1)


@given(st.sets(st.integers(0, 40)))
def test_runs_hold_the_gaps(gaps):
    ordered = sorted(gaps)
    runs = layout.to_runs(ordered)
    assert layout.from_runs(runs) == ordered
    assert all(count > 0 for _, count in runs)
    # Runs never touch, so there is one way to write a set of gaps.
    assert all(a + n < b for (a, n), (b, _) in pairwise(runs))


def test_the_runs_of_the_format():
    assert layout.to_runs([17, 90, 91]) == [[17, 1], [90, 2]]
    assert layout.to_runs([]) == []


# -- gaps as runs ----------------------------------------------------------------------------------


def test_runs_are_a_sequence_of_their_gaps():
    gaps = layout.GapRuns([[3, 2], [5, 1], [9, 3]])
    expected = [3, 4, 5, 9, 10, 11]
    assert len(gaps) == 6
    assert [gaps[k] for k in range(6)] == expected
    assert (gaps[-1], gaps[-6]) == (11, 3)
    assert gaps[1:5] == expected[1:5]
    assert gaps[::-2] == expected[::-2]
    for outside in (6, -7):
        with pytest.raises(IndexError):
            gaps[outside]
    assert [k for k in range(-2, 14) if k in gaps] == expected
    assert np.int64(4) in gaps
    assert "4" not in gaps
    assert gaps.firsts.tolist() == [3, 9]  # runs that touch are one
    assert gaps.counts.tolist() == [3, 3]


def test_runs_are_equal_to_the_same_gaps_in_any_form():
    gaps = layout.GapRuns([[3, 2], [9, 1]])
    assert gaps == [3, 4, 9]
    assert gaps == (3, 4, 9)
    assert gaps == layout.GapRuns([[3, 1], [4, 1], [9, 1]])
    for other in ([3, 4], [3, 4, 8], layout.GapRuns([[3, 2]]), layout.GapRuns([]), "349", None):
        assert gaps != other
    assert layout.GapRuns([]) == []
    assert layout.to_runs(gaps) == [[3, 2], [9, 1]]


def test_blocks_of_any_length_hold_all_gaps(monkeypatch):
    gaps = layout.GapRuns([[3, 5], [9, 2], [100, 1]])
    expected = [3, 4, 5, 6, 7, 9, 10, 100]
    for length in (1, 3, 7, 8, 9):
        monkeypatch.setattr(layout, "_BLOCK_GAPS", length)
        blocks = [block.tolist() for block in gaps.blocks()]
        assert [gap for block in blocks for gap in block] == expected
        assert [len(block) for block in blocks[:-1]] == [length] * (len(blocks) - 1)
    assert list(layout.GapRuns([]).blocks()) == []
    assert np.asarray(gaps).dtype == np.int64
    assert np.asarray(gaps, np.float32).dtype == np.float32


def test_more_gaps_than_the_files_account_for_are_not_expanded(monkeypatch):
    monkeypatch.setattr(layout, "MAX_EXPANDED_GAPS", 10)
    monkeypatch.setattr(layout, "_MAX_BLOCK_TOTAL", 20)
    assert len(list(layout.GapRuns([[0, 10]]))) == 10
    eleven = layout.GapRuns([[0, 11]], path="t.manifest.json")
    for expand in (list, np.asarray):
        with pytest.raises(ManifestError) as caught:
            expand(eleven)
        assert caught.value.path == "t.manifest.json"
    assert len(list(layout.GapRuns([[0, 11]], index_bytes=88))) == 11
    with pytest.raises(ManifestError):
        list(layout.GapRuns([[0, 11]], index_bytes=87))
    assert sum(len(block) for block in layout.GapRuns([[0, 20]]).blocks()) == 20
    with pytest.raises(ManifestError):
        layout.GapRuns([[0, 21]]).blocks()
    assert sum(len(b) for b in layout.GapRuns([[0, 30]], index_bytes=240).blocks()) == 30


def test_a_shard_without_any_item_has_none():
    assert layout.num_shard_items(2, 5, 4) == 0
    assert layout.num_shard_items(0, 5, 0) == 0
