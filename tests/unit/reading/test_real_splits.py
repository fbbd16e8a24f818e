"""Splits of real datasets: what the ranks read together, paused and gone on with by others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.dataset.permutation import Permutation
from shardwriter.dataset.rank_partition import RankPartition, worker_batches
from shardwriter.errors import UnequalSteps
from shardwriter.reading.opening import open_dataset

NUM_RECORDS = 200


def item(i):
    return sw.SKIP if i % 29 == 11 else {"x": i}


@pytest.fixture(scope="module", params=["law", "others"])
def dataset(request, tmp_path_factory):
    """200 records: of items with gaps, as shardwriter writes them; or in uneven shards."""
    folder = tmp_path_factory.mktemp("shares")
    if request.param == "law":
        sw.write(range(NUM_RECORDS + 7), folder / "train@5", map=item)
        path = folder / "train"
    else:
        sizes = [90, 0, 60, 50]
        numbers = iter(range(NUM_RECORDS))
        for shard, size in enumerate(sizes):
            with sw.TFRecordWriter(folder / f"train-{shard:05}-of-{len(sizes):05}") as writer:
                for _ in range(size):
                    writer.write(sw.encode_example({"x": next(numbers)}))
        path = folder / "train"
    with open_dataset(str(path)) as dataset:
        assert len(dataset) == NUM_RECORDS
        yield dataset


@pytest.fixture(scope="module")
def values(dataset):
    """The value of each record, in reading order."""
    found = [int(np.ravel(example["x"])[0]) for example in dataset]
    assert len(set(found)) == NUM_RECORDS
    return found


jobs = st.tuples(st.integers(1, 8), st.integers(0, 4), st.integers(1, 9))


def read(views, share, num_workers, batch_size, steps):
    """What all ranks read in so many steps: (value, is_pad), with what workers read in turn."""
    found = []
    num_batches = min(steps, share.num_batches(batch_size))
    for view in views:
        for worker in range(max(1, num_workers)):
            for j in worker_batches(worker, num_workers, num_batches):
                for example in view.__getitems__(list(share.batch(j, batch_size))):
                    value = int(np.ravel(example["x"])[0])
                    found.append((value, bool(example.get("is_pad", False))))
    return found


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_split_read_in_two_parts_is_the_whole(dataset, values, data):
    n = data.draw(st.integers(0, NUM_RECORDS))
    uneven = data.draw(st.sampled_from(["drop", "pad", "wrap", "error"]))
    before, after = data.draw(jobs), data.draw(jobs)
    view, order = dataset[:n], list(range(n))
    if data.draw(st.booleans()):
        seed, epoch = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 3))
        view = view.shuffle(seed, epoch)
        order = Permutation(n, seed, epoch)(np.arange(n)).tolist()
    ordered = [values[record] for record in order]
    world, workers, batch_size = before
    try:
        share = RankPartition(n, world, 0, uneven)
    except UnequalSteps:
        for rank in range(world):
            with pytest.raises(UnequalSteps):
                view.split(rank, world, uneven)
        return
    views = [view.split(rank, world, uneven) for rank in range(world)]
    assert {len(one) for one in views} == {share.num_samples}
    steps = data.draw(st.integers(0, share.num_batches(batch_size)))
    consumed = share.consumed_after(steps, batch_size)
    done = read(views, share, workers, batch_size, steps)

    world, workers, batch_size = after
    try:
        rest = RankPartition(n, world, 0, uneven, consumed)
    except UnequalSteps:
        return
    views = [view.split(rank, world, uneven, consumed) for rank in range(world)]
    assert {len(one) for one in views} == {rest.num_samples}
    done_after = read(views, rest, workers, batch_size, n + 1)

    if uneven == "wrap":
        assert {value for value, _ in done + done_after} == set(ordered)
        if len(done) == consumed:  # it had not begun again yet
            assert sorted(value for value, _ in done) == sorted(ordered[:consumed])
    else:
        once = [value for value, is_pad in done + done_after if not is_pad]
        num_lost = (n - consumed) % world if uneven == "drop" else 0
        assert sorted(once) == sorted(ordered[: n - num_lost])
    pads = [value for value, is_pad in done_after if is_pad]
    num_pads = -(n - consumed) % world if uneven == "pad" else 0
    again = [ordered[i % n] for i in range(num_pads)] if n else []
    assert sorted(pads) == sorted(again)
    assert len(done_after) == rest.num_samples * world


@pytest.mark.parametrize("world", range(1, 9))
def test_ranks_take_turns_at_the_order(dataset, values, world):
    views = [dataset.split(rank, world, "pad") for rank in range(world)]
    for t in range(len(views[0])):
        for rank, view in enumerate(views):
            q = t * world + rank
            assert int(np.ravel(view[t]["x"])[0]) == values[q % NUM_RECORDS]
            assert view[t]["is_pad"] is (q >= NUM_RECORDS)
            assert view.is_pad(t) is (q >= NUM_RECORDS)
