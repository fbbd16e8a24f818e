"""Resuming a loader: with its own state, and with that of torchdata's loader."""

from __future__ import annotations

import json
import random

import pytest
from torch_sets import N, ids, quiet, write

from shardwriter.errors import OptionError, RunChanged
from shardwriter.reading.torch import IterableShards, ShardLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's
]
quiet()
stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
StatefulDataLoader = stateful.StatefulDataLoader


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("torch"))


def taken(loader, num_batches):
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == num_batches:
            break
    return ids(batches)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_the_rest_is_the_same_after_any_batch(path, num_workers):
    options = {"batch_size": 10, "shuffle": True, "seed": 2}
    whole = ids(ShardLoader(path, **options))
    for num_batches in (1, 4, 10, 11):
        loader = ShardLoader(path, **options, num_workers=num_workers)
        before = taken(loader, num_batches)
        state = json.loads(json.dumps(loader.state_dict()))
        again = ShardLoader(path, **options, num_workers=num_workers and 4 - num_workers)
        again.load_state_dict(state)
        assert len(again) == 11
        if num_batches < 11:
            assert before + ids(again) == whole
            assert again.epoch == 1
        else:
            assert (again.epoch, len(list(again)), again.epoch) == (1, 11, 2)


def test_a_state_resumes_with_another_world_batch_size_and_number_of_workers(path):
    draw = random.Random(3)
    for uneven in ("drop", "pad", "wrap"):
        for _ in range(3):
            worlds = [draw.randint(1, 5) for _ in range(3)]
            seen, state, pads, left = [], None, 0, N
            for number, world in enumerate(worlds):
                batch_size = draw.randint(1, 6)
                steps = None if number == 2 else draw.randint(1, 3)
                states = []
                for rank in range(world):
                    loader = ShardLoader(
                        path, batch_size, shuffle=True, uneven=uneven, rank=rank, world=world,
                        num_workers=draw.choice([0, 0, 1]),
                    )  # fmt: skip
                    if state is not None:
                        loader.load_state_dict(state)
                    batches = []
                    for batch in loader:
                        batches.append(batch)
                        if len(batches) == steps:
                            break
                    seen += ids(batches)
                    if uneven == "pad":
                        pads += sum(int(b["is_pad"].sum()) for b in batches)
                    states.append(loader.state_dict())
                assert all(one == states[0] for one in states)
                state = states[0]
                left = N - state["consumed"]
            assert left == N, "the epoch was read to its end"
            distinct = len(set(seen))
            if uneven == "drop":
                assert distinct == len(seen) > N - max(worlds)
            else:
                assert distinct == N
                assert len(seen) - N < max(worlds)
                assert pads == (len(seen) - N if uneven == "pad" else 0)


def test_fetching_ahead_does_not_count(path):
    loader = ShardLoader(path, 4, num_workers=2, prefetch_factor=8)
    iterator = iter(loader)
    for step in range(1, 6):
        next(iterator)
        assert loader.state_dict()["consumed"] == 4 * step


def test_persistent_workers_resume_from_a_state(path):
    loader = ShardLoader(path, 10, shuffle=True, num_workers=2, persistent_workers=True)
    whole = ids(loader)
    state = {**loader.state_dict(), "epoch": 0, "consumed": 30, "steps": 3}
    loader.load_state_dict(state)
    assert ids(loader) == whole[30:]
    assert len(loader) == 11


def test_a_state_of_another_dataset_is_refused(path, tmp_path):
    state = ShardLoader(path, 4).state_dict()
    other = write(tmp_path, num_shards=4)
    with pytest.raises(RunChanged, match="identity"):
        ShardLoader(other, 4).load_state_dict(state)
    with pytest.raises(OptionError, match="reader state is invalid"):
        ShardLoader(path, 4).load_state_dict({"epoch": 1})


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [None, 10])
def test_torchdata_s_loader_resumes(path, num_workers, batch_size):
    def loader():
        shards = IterableShards(path, batch_size, shuffle=True, seed=2, map=slim)
        return StatefulDataLoader(
            shards, batch_size=None if batch_size else 10, num_workers=num_workers
        )

    whole = ids(loader())
    assert sorted(whole) == list(range(N))
    for num_batches in (0, 1, 5, 10):
        first = loader()
        before = taken(first, num_batches) if num_batches else []
        again = loader()
        again.load_state_dict(first.state_dict())
        assert before + ids(again) == whole


def slim(example):
    return {"i": example["i"]}


def test_torchdata_s_loader_in_a_later_epoch(path):
    shards = IterableShards(path, 10, shuffle=True)
    loader = StatefulDataLoader(shards, batch_size=None, num_workers=2, persistent_workers=True)
    ids(loader)
    shards.set_epoch(1)
    before = taken(loader, 3)
    state = loader.state_dict()
    shards = IterableShards(path, 10, shuffle=True)
    again = StatefulDataLoader(shards, batch_size=None, num_workers=2)
    again.load_state_dict(state)
    rest = ids(again)  # the state knows the epoch
    shards.set_epoch(1)
    assert before + rest == ids(again)


def test_a_worker_s_state_fits_the_same_division_only(path):
    state = iter(IterableShards(path, 10)).state_dict()
    for other in ({"batch_size": 9}, {"batch_size": 10, "rank": 0, "world": 2, "uneven": "drop"}):
        with pytest.raises(RunChanged, match="cannot resume this worker"):
            iter(IterableShards(path, **other)).load_state_dict(state)
    with pytest.raises(RunChanged, match="shuffle"):
        iter(IterableShards(path, 10, shuffle=True)).load_state_dict(state)
