"""The resume state, compared with a model that lists every item."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset.manifest import SealedShard
from shardwriter.dataset.naming import parse_output
from shardwriter.dataset.permutation import Permutation
from shardwriter.formats.tfrecord import NOTHING_WRITTEN, Written
from shardwriter.sources.python import PythonSource
from shardwriter.writing import job as job_module
from shardwriter.writing.job import Job, Listing
from shardwriter.writing.options import DatasetOptions
from shardwriter.writing.resume_state import CountedItems, ResumeState
from shardwriter.writing.selection import Selection


class Case(NamedTuple):
    """Some state of a run, and which items are not done."""

    state: ResumeState
    num_items: int
    wanted: list[int]
    num_records: int
    payload_bytes: int


@st.composite
def cases(draw):
    num_shards = draw(st.integers(1, 6))
    num_items = draw(st.integers(0, 40))
    items = range(num_items)
    gaps = draw(st.sets(st.sampled_from(items))) if num_items else set()
    growing, sealed, done, payload_bytes = {}, {}, set(gaps), 0
    for shard in range(num_shards):
        records = [i for i in items[shard::num_shards] if i not in gaps]
        kind = draw(st.sampled_from(["begun", "open", "sealed"]))
        if kind == "sealed":
            sealed[shard] = SealedShard(len(records), 3 * len(records), 0, 0)
            done.update(records)
            payload_bytes += 3 * len(records)
        elif kind == "open" and records:
            count = draw(st.integers(1, len(records)))
            # A shard of which all records are there may not be sealed yet.
            growing[shard] = Written(count, (16 + 5) * count, 0, 0, None, count)
            done.update(records[:count])
            payload_bytes += 5 * count
    state = ResumeState(num_shards, 1, growing, sealed, np.array(sorted(gaps), np.int64))
    wanted = [i for i in items if i not in done]
    return Case(state, num_items, wanted, len(done - gaps), payload_bytes)


@given(cases())
def test_the_items_that_are_wanted_are_those_that_are_not_done(case):
    state, indices = case.state, np.arange(case.num_items)
    assert [i for i in range(case.num_items) if state.is_missing(i)] == case.wanted
    assert state.select_missing(indices).tolist() == case.wanted
    assert state.num_records == case.num_records
    assert state.payload_bytes == case.payload_bytes
    assert state.num_done == case.num_items - len(case.wanted)
    assert state.is_empty == (not state.open_shards and not state.sealed and not len(state.gaps))
    if state.is_empty:
        assert case.wanted == indices.tolist()


@given(cases(), st.data())
def test_any_part_of_the_items_is_picked_the_same_way(case, data):
    some = data.draw(st.sets(st.integers(0, max(0, case.num_items - 1)))) if case.num_items else []
    found = case.state.select_missing(np.array(sorted(some), np.int64))
    assert found.tolist() == [i for i in sorted(some) if i in set(case.wanted)]


@given(cases())
def test_an_item_behind_the_last_that_was_done_is_wanted(case):
    for shard in range(case.state.num_shards):
        item = shard + 1000 * case.state.num_shards
        assert case.state.is_missing(item) is (shard not in case.state.sealed)


@given(cases())
def test_shards_are_finished_or_not(case):
    state = case.state
    shards = range(state.num_shards)
    assert state.unfinished(shards) == [s for s in shards if s not in state.sealed]
    assert not state.is_complete  # nobody has met the end
    known = ResumeState(state.num_shards, sealed=state.sealed, num_items=case.num_items)
    assert known.is_complete is (len(state.sealed) == state.num_shards)
    for shard in shards:
        assert state.written(shard) == state.open_shards.get(shard, NOTHING_WRITTEN)


# -- what a job lists ------------------------------------------------------------------------------


def job_of(data, num_shards, **options):
    pattern = parse_output("out/t").pattern(num_shards)
    return Job(Selection(PythonSource(data), DatasetOptions(**options)), pattern)


@pytest.mark.parametrize("order_block", [1, 7, 1 << 16])
@given(case=cases(), seed=st.none() | st.integers(0, 9))
def test_a_job_lists_what_is_wanted(order_block, case, seed):
    data = [f"item {i}" for i in range(case.num_items)]
    state = case.state
    order = range(case.num_items)
    if seed is not None:
        order = Permutation(case.num_items, seed)(np.arange(case.num_items)).tolist()
    expected = [(i, data[order[i]]) for i in case.wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "_ORDER_BLOCK", order_block)
        job = job_of(data, state.num_shards, shuffle_seed=seed)
        listing = Listing(job, state)
        assert list(listing) == expected
        assert listing.num_items == case.num_items
        for shards in ([0], range(0, state.num_shards, 2)):
            some = state.unfinished(shards)
            mine = [pair for pair in expected if pair[0] % state.num_shards in some]
            assert list(job.items_of(some, state)) == mine


@given(cases())
def test_a_stream_is_read_from_its_first_item_and_what_is_done_is_dropped(case):
    data = [f"item {i}" for i in range(case.num_items)]
    read = []

    def stream():
        for item in data:
            read.append(item)
            yield item

    listing = Listing(job_of(stream, case.state.num_shards), case.state)
    assert list(listing) == [(i, data[i]) for i in case.wanted]
    assert listing.num_items == case.num_items
    assert read == data


# -- what was counted ------------------------------------------------------------------------------


@given(
    st.integers(1, 5),
    st.dictionaries(st.integers(0, 4), st.integers(0, 30) | st.just(2**62), max_size=5),
    st.frozensets(st.integers(0, 40), max_size=6),
)
def test_an_item_is_counted_where_its_shard_came_so_far(num_shards, to, uncounted):
    to = {shard: end for shard, end in to.items() if shard < num_shards}
    counted = CountedItems(num_shards, to, uncounted)
    before = {i for shard, end in to.items() for i in range(shard, min(end, 60), num_shards)}
    assert {i for i in range(60) if i in counted} == before - uncounted
    assert counted.last == max(to.values(), default=0)


def test_nothing_is_counted_at_first():
    assert not any(i in CountedItems() for i in range(10))
    state = ResumeState(4)
    assert state.is_empty
    assert not state.is_complete
    assert (state.num_done, state.num_records, state.payload_bytes) == (0, 0, 0)
    assert state.select_missing(np.arange(9)).tolist() == list(range(9))
