"""ShardLoader, IterableShards and MapShards: batches, order and ranks."""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
from collections import Counter

import numpy as np
import pytest
import torch
from processes import children
from torch.utils.data import DataLoader, default_collate
from torch_sets import N, ids, quiet, shared_memory, write

import shardwriter
from shardwriter.errors import FeatureError, OptionError, UnequalSteps
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.torch import IterableShards, MapShards, ShardLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
quiet()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("torch"))


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair)
    else:
        assert one == other


def test_a_batch_by_columns_equals_default_collate(path):
    data = open_dataset(path)
    batches = list(ShardLoader(data, 10))
    assert [len(b["i"]) for b in batches] == [10] * 10 + [3]
    samples = [data[i] for i in range(10)]
    boxes = [torch.from_numpy(sample.pop("boxes")) for sample in samples]
    same(batches[0].pop("boxes"), boxes)
    same(batches[0], default_collate(samples))
    assert {
        name: value.dtype for name, value in batches[0].items() if name in ("half", "wide")
    } == {
        "half": torch.float16,
        "wide": torch.uint16,
    }
    batches[0]["x"] += 1  # a batch is the caller's own


def test_a_feature_whose_shape_varies_is_a_list_of_tensors_in_every_batch(path):
    for batch_size in (1, 3, 8):
        for batch in ShardLoader(path, batch_size):
            assert [tuple(b.shape) for b in batch["boxes"]] == [
                (i % 3 + 1, 2) for i in batch["i"].tolist()
            ]


def test_without_a_schema_a_shape_that_varies_is_named(tmp_path):
    path = write(tmp_path, 6, 2, lambda i: {"even": [1, 2], "ragged": [1] * (i // 3 + 1)})
    (tmp_path / "t.manifest.json").unlink(missing_ok=True)
    for file in tmp_path.glob("*manifest*"):
        file.unlink()
    loader = ShardLoader(path, 3)
    assert next(iter(loader))["ragged"].shape == (3, 1)
    with pytest.raises(FeatureError, match=r"\[1\] and \[2\]") as caught:
        list(ShardLoader(path, 4))
    assert caught.value.feature == "ragged"
    assert "collate" in caught.value.hint


def test_features_that_are_absent_are_none_in_a_list(tmp_path):
    path = write(tmp_path, 4, 2, lambda i: {"i": i} | ({"label": np.int32(i)} if i % 2 else {}))
    (batch,) = ShardLoader(path, 4)
    assert batch["label"][0] is None
    assert batch["label"][1].dtype == torch.int32


def test_raw_records_come_as_lists_of_bytes(path):
    data = open_dataset(path, decode=False)
    batches = list(ShardLoader(data, 50))
    assert [len(b) for b in batches] == [50, 50, 3]
    assert batches[0][7] == data[7]
    with pytest.raises(OptionError, match="is_pad"):
        ShardLoader(data, 2, uneven="pad")


def test_a_map_and_a_collate_see_samples(path):
    def double(example):
        assert isinstance(example["i"], np.int64)
        return example["i"] * 2

    batches = list(ShardLoader(path, 10, map=double))
    assert batches[0].tolist() == list(range(0, 20, 2))
    batches = list(ShardLoader(path, 10, map=double, collate=tuple, num_workers=1))
    assert batches[1] == tuple(range(20, 40, 2))
    assert isinstance(batches[1][0], np.int64)
    batches = list(ShardLoader(path, 100, collate=len))
    assert batches == [100, 3]


def test_what_default_collate_can_not_stack_is_named(path):
    for num_workers in (0, 1):
        with pytest.raises(FeatureError, match="stack expects") as caught:
            list(ShardLoader(path, 3, map=dict, num_workers=num_workers))
        assert caught.value.feature == "boxes"
        assert "collate" in caught.value.hint
    with pytest.raises(RuntimeError, match="stack expects"):
        list(ShardLoader(path, 3, map=lambda example: example["boxes"]))


@pytest.mark.parametrize("value", [0, False, "", b"", (), {}, None, float("nan")])
def test_falsy_samples_are_samples(path, value):
    for num_workers in (0, 1):
        batches = list(
            ShardLoader(path, 20, map=lambda _: value, collate=list, num_workers=num_workers)
        )
        assert sum(map(len, batches)) == N
        assert {repr(one) for batch in batches for one in batch} == {repr(value)}


@pytest.mark.parametrize(
    ("uneven", "num_workers"),
    [("drop", 0), ("pad", 0), ("wrap", 0), ("drop", 1), ("pad", 4), ("wrap", 1)],
)
def test_every_rank_takes_the_same_steps(path, num_workers, uneven):
    world, seen, pads = 4, Counter(), 0
    lengths = set()
    for rank in range(world):
        loader = ShardLoader(
            path, 4, shuffle=True, seed=3, uneven=uneven, rank=rank, world=world,
            num_workers=num_workers,
        )  # fmt: skip
        batches = list(loader)
        lengths.add((len(loader), len(batches), sum(len(b["i"]) for b in batches)))
        seen.update(ids(batches))
        if uneven == "pad":
            assert batches[0]["is_pad"].dtype == torch.bool
            pads += sum(int(b["is_pad"].sum()) for b in batches)
        else:
            assert "is_pad" not in batches[0]
    assert lengths == {(7, 7, 25 if uneven == "drop" else 26)}
    assert sum(seen.values()) == (100 if uneven == "drop" else 104)
    assert len(seen) == (100 if uneven == "drop" else N)
    assert pads == (1 if uneven == "pad" else 0)


def test_one_rank_sees_each_record_once_with_every_policy(path):
    for uneven in (None, "error", "drop", "pad", "wrap"):
        for num_workers in (0, 2) if uneven == "pad" else (0,):
            batches = list(ShardLoader(path, 8, uneven=uneven, num_workers=num_workers))
            assert ids(batches) == list(range(N))
            assert not any(b["is_pad"].any() for b in batches if uneven == "pad")


def test_ranks_that_do_not_divide_are_refused_before_the_epoch(path, tmp_path):
    for rank in range(2):
        loader = ShardLoader(path, 8, rank=rank, world=2)
        with pytest.raises(UnequalSteps, match="103 records for 2 ranks"):
            iter(loader)
        with pytest.raises(UnequalSteps):
            len(loader)
    few = write(tmp_path, 3, 2)
    for rank in range(4):
        with pytest.raises(UnequalSteps, match="3 records for 4 ranks"):
            iter(ShardLoader(few, uneven="drop", rank=rank, world=4))
        assert len(list(ShardLoader(few, uneven="pad", rank=rank, world=4))) == 1


def test_the_order_depends_on_seed_and_epoch_and_on_no_worker(path):
    orders = {}
    for num_workers in (0, 1, 3):
        loader = ShardLoader(path, 9, shuffle=True, seed=5, num_workers=num_workers)
        orders[num_workers] = [ids(loader) for _ in range(3)]
        loader.set_epoch(1)
        assert ids(loader) == orders[num_workers][1]
    assert orders[0] == orders[1] == orders[3]
    assert len({tuple(order) for order in orders[0]}) == 3
    data = open_dataset(path)
    assert orders[0][2] == [example["i"] for example in data.shuffle(5, 2)]


def test_persistent_workers_get_the_epoch(path):
    loader = ShardLoader(path, 9, shuffle=True, num_workers=2, persistent_workers=True)
    first, pids = ids(loader), children(os.getpid())
    second = ids(loader)
    assert first != second
    loader.set_epoch(0)
    assert ids(loader) == first
    for batch in loader:  # broken off
        assert batch["i"].tolist() == second[:9]
        break
    assert ids(loader) == second
    assert children(os.getpid()) == pids
    assert len(pids) == 2
    del loader
    gc.collect()
    assert not children(os.getpid())


def test_nothing_is_left_after_break_or_the_end(path):
    threads, shm = threading.active_count(), shared_memory()
    for num_workers in (1, 2):
        loader = ShardLoader(path, 4, num_workers=num_workers)
        for _ in loader:
            break
        del _
        assert not children(os.getpid())
        list(loader)
        assert not children(os.getpid())
        iterator = iter(loader)
        next(iterator)
        assert len(children(os.getpid())) == num_workers
        del iterator
        gc.collect()
        assert not children(os.getpid())
    del loader
    assert threading.active_count() == threads
    assert shared_memory() <= shm


def test_two_loaders_in_turn_and_interleaved(path):
    one = ShardLoader(path, 4, num_workers=1)
    other = ShardLoader(path, 4, shuffle=True, num_workers=2)
    assert ids(one) == list(range(N))
    assert sorted(ids(other)) == list(range(N))
    pairs = list(zip(one, other, strict=True))
    assert ids(a for a, _ in pairs) == list(range(N))
    assert sorted(ids(b for _, b in pairs)) == list(range(N))


def test_what_a_map_draws_is_the_same_from_any_number_of_workers(path):
    def draw(example):
        worker = shardwriter.current_worker()
        assert worker.item_index == example["i"]
        assert 0 <= worker.index < worker.num_workers
        return {"i": example["i"], "seed": str(worker.item_seed)}

    found = []
    for num_workers in (0, 1, 3):
        loader = ShardLoader(path, 9, shuffle=True, seed=1, map=draw, num_workers=num_workers)
        epochs = []
        for _ in range(2):
            batches = list(loader)
            seeds = [seed for batch in batches for seed in batch["seed"]]
            epochs.append(dict(zip(ids(batches), seeds, strict=True)))
        found.append(epochs)
    assert found[0] == found[1] == found[2]
    first, second = found[0]
    assert len(set(first.values()) | set(second.values())) == 2 * N
    assert shardwriter.current_worker() is None
    shards = MapShards(path, draw, seed=1)
    assert shards[7]["seed"] == first[7]
    shards.set_epoch(1)
    assert shards[-1]["seed"] == second[N - 1]


def small(example):
    return {"i": example["i"], "x": example["x"]}


def test_timings_say_where_the_time_went(path):
    assert ShardLoader(path, 4).timings() is None
    for num_workers in (0, 2):
        loader = ShardLoader(path, 4, map=small, timings=True, num_workers=num_workers)
        list(loader)
        times = loader.timings()
        assert len(times.workers) == max(1, num_workers)
        for worker in times.workers:
            assert worker.keys() == {"read", "check", "decode", "map", "collate"}
            assert min(worker.values()) > 0
        assert times.num_batches == 26
        assert 0 < times.wait_s <= times.elapsed_s
        assert 0 < times.wait_share <= 1
        assert times.stages["map"] == sum(worker["map"] for worker in times.workers)


def test_a_loader_says_what_it_is(path):
    loader = ShardLoader(path, 4, drop_last=True, num_workers=0)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.drop_last, len(loader), len(loader.dataset)) == (
        4, True, 25, N,
    )  # fmt: skip
    assert len(list(loader)) == 25
    again = pickle.loads(pickle.dumps(loader))
    assert len(list(again)) == 25


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sampler": [1]}, "sampler"),
        ({"collate_fn": list}, "collate_fn"),
        ({"timeout": 3}, "timeout"),
        ({"in_order": False, "num_workers": 1}, "in_order"),
        ({"colate": list}, "'colate'"),
        ({"map": 3}, "map"),
        ({"item_timeout_s": 3}, "need worker processes"),
        ({"start_timeout_s": 0, "num_workers": 1}, "start_timeout_s"),
        ({"rank": 1}, "world"),
        ({"uneven": "some"}, "uneven"),
    ],
)
def test_options_that_are_not_to_be_given_are_named(path, options, match):
    with pytest.raises(OptionError, match=match):
        ShardLoader(path, 2, **options)


def test_the_feature_that_marks_pads_is_not_overwritten(tmp_path):
    path = write(tmp_path, 3, 1, lambda i: {"is_pad": i})
    with pytest.raises(OptionError, match="is_pad"):
        ShardLoader(path, uneven="pad")
    assert len(list(ShardLoader(path, uneven="wrap"))) == 3


def test_pads_are_marked_whatever_a_map_makes(path):
    def strip(example):
        return {"i": example["i"]}

    loader = ShardLoader(path, 13, uneven="pad", rank=3, world=4, map=strip, num_workers=1)
    assert loader.num_pads == 1
    batches = list(loader)
    assert [b["is_pad"].tolist() for b in batches] == [[False] * 13, [False] * 12 + [True]]


def test_an_empty_dataset(tmp_path):
    path = write(tmp_path, 0, 2)
    loader = ShardLoader(path, 3, num_workers=1)
    assert len(loader) == 0
    assert list(loader) == []
    assert list(IterableShards(path)) == []


def test_torch_s_own_loader_over_a_dataset_and_over_map_shards(path):
    keep = ["i", "x", "name"]

    def some(samples):
        return default_collate([{name: s[name] for name in keep} for s in samples])

    expected = [{k: batch[k] for k in keep} for batch in ShardLoader(path, 10)]
    for data in (open_dataset(path), MapShards(path)):
        for num_workers in (0, 2):
            loader = DataLoader(data, 10, collate_fn=some, num_workers=num_workers)
            same(list(loader), expected)
    shards = MapShards(path, lambda example: int(example["i"]))
    assert len(shards) == N
    assert [shards[i] for i in (0, 5, -1)] == [0, 5, N - 1]
    with pytest.raises(IndexError):
        shards[N]
    assert sorted(torch.cat(list(DataLoader(shards, 10, shuffle=True))).tolist()) == list(range(N))


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_the_iterable_kind_in_torch_s_own_loader(path, num_workers):
    shards = IterableShards(path, 4, shuffle=True, seed=3)
    loader = DataLoader(shards, batch_size=None, num_workers=num_workers)
    assert len(loader) == len(list(loader)) == 26
    expected = ShardLoader(path, 4, shuffle=True, seed=3)
    assert ids(loader) == ids(expected)
    shards.set_epoch(1)
    assert ids(loader) == ids(expected)
    assert shards.epoch == 1


def test_the_iterable_kind_without_workers_and_sample_by_sample(path):
    shards = IterableShards(path, rank=1, world=2, uneven="wrap")
    assert [int(sample["i"]) for sample in shards] == [*range(1, N, 2), 0]
    assert len(shards) == 52
    assert [int(sample["i"]) for sample in shards] == [*range(1, N, 2), 0]
    mapped = IterableShards(path, map=lambda example: int(example["i"]))
    loader = DataLoader(mapped, batch_size=10, num_workers=2)
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(N))
    with pytest.raises(OptionError, match="need batches"):
        IterableShards(path, drop_last=True)


def test_persistent_workers_of_a_dataloader_get_the_epoch(path):
    shards = IterableShards(path, 9, shuffle=True)
    loader = DataLoader(shards, batch_size=None, num_workers=2, persistent_workers=True)
    first = ids(loader)
    assert ids(loader) == first
    shards.set_epoch(1)
    second = ids(loader)
    assert sorted(second) == sorted(first)
    assert second != first


def test_the_rank_is_detected_on_reading_and_logged_once(path, monkeypatch, caplog):
    monkeypatch.delenv("RANK", raising=False)
    loader = ShardLoader(path, 4, uneven="wrap")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with caplog.at_level("INFO", "shardwriter.reading"):
        for _ in range(2):
            assert ids(loader) == [*range(1, N, 2), 0]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "rank 1 of 2 (from the environment" in record.message


def test_a_state_is_plain_json(path):
    loader = ShardLoader(path, 4)
    next(iter(loader))
    state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert state["consumed"] == 4
    assert state["job"] == open_dataset(path).identity


def test_pads_of_a_view_stay_pads(path):
    view = open_dataset(path).split(1, 2, "pad")  # 52 rows, and the last is padding
    for map in (None, lambda e: {"i": e["i"], "is_pad": e["is_pad"]}):
        marks = [
            mark
            for batch in ShardLoader(view, 10, uneven="pad", map=map)
            for mark in batch["is_pad"]
        ]
        assert [bool(mark) for mark in marks] == [False] * 51 + [True]


def test_a_feature_that_only_some_samples_have_is_named(path):
    def sometimes(example):
        return {"i": 1} if example["i"] % 2 else {"i": 0, "odd": 1}

    with pytest.raises(FeatureError, match="only some samples") as caught:
        next(iter(ShardLoader(path, 4, map=sometimes)))
    assert caught.value.feature == "odd"
