"""PyTorch datasets and DataLoaders as sources: run where torch is, by test_peer_sources.py."""

from __future__ import annotations

import os
import pickle
import re
import typing
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from processes import children
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

import shardwriter as sw
from shardwriter.errors import CallableError, FeatureError, OptionError, SourceError
from shardwriter.sources.find import open_source
from shardwriter.writing.messages import ItemPacker

N = 37


def features(i):
    return {
        "image": torch.full((2, 3), i, dtype=torch.uint8),
        "score": i / 2,
        "label": i % 3,
        "name": f"item {i}",
    }


class Map(Dataset):
    def __init__(self, make=features):
        self.make = make

    def __len__(self):
        return N

    def __getitem__(self, index):
        if not 0 <= index < N:
            raise IndexError(index)
        return self.make(index)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return map(features, range(first, N, step))


class Pair(typing.NamedTuple):
    x: torch.Tensor
    y: int


@dataclass
class Record:
    x: torch.Tensor
    y: int


def pair(i):
    return Pair(torch.tensor([i, i + 1]), i)


def record(i):
    return Record(torch.tensor([i, i + 1]), i)


def parts(i):
    return torch.tensor([i, i + 1]), i


def shards(source, folder, **options):
    out = folder / f"{len(os.listdir(folder))}"
    manifest = sw.write(source, out / "d@3", **options)
    return [(out / name).read_bytes() for name in sorted(os.listdir(out)) if "-of-" in name], [
        manifest.num_records,
        manifest.schema,
    ]


def all_ways(source, folder, **options):
    serial = shards(source, folder, **options)
    assert shards(source, folder, workers=2, **options) == serial
    return serial


@pytest.fixture
def expected(tmp_path):
    (tmp_path / "expected").mkdir()
    plain = [{**features(i), "image": features(i)["image"].numpy()} for i in range(N)]
    return shards(plain, tmp_path / "expected")


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert not children(os.getpid())


# -- datasets --------------------------------------------------------------------------------------


def test_datasets_of_tensors_are_what_arrays_are(expected, out):
    assert all_ways(Map(), out) == expected
    assert all_ways(Stream(), out) == expected
    halves = [Subset(Map(), range(20)), Subset(Map(), range(20, N))]
    assert shards(ConcatDataset(halves), out) == expected


def test_a_subset_is_written_in_its_order(out):
    sw.write(Subset(Map(), [5, 1, 30]), out / "d@2")
    assert [r["name"] for r in sw.open(out / "d")] == ["item 5", "item 1", "item 30"]


@pytest.mark.parametrize("make", [pair, record, parts])
def test_parts_have_their_own_names_or_those_that_are_given(out, make):
    names = "x,y" if make is parts else None
    given = shards([{"x": np.array([i, i + 1]), "y": i} for i in range(N)], out)
    assert all_ways(Map(make), out, names=names) == given
    if make is pair:
        renamed = [{"a": np.array([i, i + 1]), "b": i} for i in range(N)]
        assert shards(Map(make), out, names=("a", "b")) == shards(renamed, out)


def test_tensor_datasets_are_tuples(out):
    data = TensorDataset(torch.arange(2 * N).reshape(N, 2), torch.arange(N))
    plain = [{"x": np.array([2 * i, 2 * i + 1]), "y": np.int64(i)} for i in range(N)]
    ours, theirs = all_ways(data, out, names="x,y"), shards(plain, out)
    assert ours[0] == theirs[0]
    with pytest.raises(FeatureError, match="not a mapping of features") as caught:
        sw.write(data, out / "t@1")
    assert "--names" in caught.value.hint


def test_every_item_is_loaded_once(out):
    class Counting(Map):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __getitem__(self, index):
            self.calls.append(index)
            return super().__getitem__(index)

    data = Counting()
    sw.write(data, out / "d@4")
    assert data.calls == list(range(N))
    loader = DataLoader(data, batch_size=5)
    data.calls.clear()
    sw.write(loader, out / "l@4")
    assert data.calls == list(range(N))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (torch.ones(2, requires_grad=True), r"detach\(\)"),
        (torch.ones(2, dtype=torch.bfloat16), r"tensor\.float\(\)"),
        (torch.ones(2, 2).to_sparse(), r"numpy\(\)"),
    ],
)
def test_tensors_that_are_no_arrays_say_what_to_do(out, value, hint):
    with pytest.raises(FeatureError, match="can not be converted to a numpy array") as caught:
        sw.write([{"x": 1.5, "t": torch.ones(2)}, {"x": 1.5, "t": value}], out / "t@1")
    assert (caught.value.index, caught.value.feature) == (1, "t")
    assert re.search(hint, caught.value.hint or "")


def test_a_part_of_a_tensor_is_sent_alone():
    rows = torch.arange(1 << 20).reshape(1 << 10, 1 << 10)
    item = {"row": rows[7], "inside": (rows[8],)}
    data = ItemPacker().pack(item)
    assert len(data) < 40_000
    again = pickle.loads(data)
    assert torch.equal(again["row"], rows[7])
    assert torch.equal(again["inside"][0], rows[8])
    assert len(ItemPacker().pack(rows[:900])) > 7_000_000


# -- loaders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 1, 5])
@pytest.mark.parametrize("data", [Map(), Stream()], ids=["map", "stream"])
def test_batches_are_taken_apart_in_the_loaders_order(expected, out, data, batch_size, num_workers):
    if isinstance(data, Stream) and num_workers:
        # Batches of the two workers in turn: their own order.
        names = {r["name"] for r in read(DataLoader(data, batch_size, num_workers=2), out)}
        assert names == {f"item {i}" for i in range(N)}
        return
    loader = DataLoader(data, batch_size, num_workers=num_workers)
    found = (all_ways if batch_size == 5 else shards)(loader, out)
    # A float of Python comes out of a batch as one of 64 bits, as it went in.
    assert found[0] == expected[0]


def read(loader, out, **options):
    path = out / f"r{len(os.listdir(out))}"
    sw.write(loader, path / "d@3", **options)
    return list(sw.open(path / "d"))


def test_parts_of_batches_have_names(out):
    plain = shards([{"x": np.array([i, i + 1]), "y": i} for i in range(N)], out)
    for make, names in ((parts, "x,y"), (pair, None)):
        found = shards(DataLoader(Map(make), batch_size=4), out, names=names)
        assert found[0] == plain[0]


def test_what_collating_has_put_together_at_any_depth(out):
    def nested(i):
        return {"box": [i, i + 1, 2, 3], "words": ("a", str(i)), "empty": [], "x": np.float32(i)}

    found = read(DataLoader(Map(nested), batch_size=5), out)
    assert [f["box"].tolist() for f in found] == [[i, i + 1, 2, 3] for i in range(N)]
    assert [list(f["words"]) for f in found] == [["a", str(i)] for i in range(N)]


@pytest.mark.parametrize(
    "collate",
    [
        list,
        lambda items: tuple(zip(*((i["image"], i["label"]) for i in items), strict=True)),
        lambda items: {
            "image": [i["image"] for i in items],
            "label": torch.tensor([i["label"] for i in items]),
        },
        lambda items: Pair([i["image"] for i in items], [i["label"] for i in items]),
    ],
)
def test_a_collate_fn_of_the_users_own(out, collate):
    is_tuple = type(collate([features(0)])) is tuple
    loader = DataLoader(Map(), batch_size=5, collate_fn=collate)
    found = read(loader, out, names="image,label" if is_tuple else None)
    images = [f.get("image", f.get("x")).tolist() for f in found]
    assert images == [[[i] * 3] * 2 for i in range(N)]


@pytest.mark.parametrize(
    ("collate", "what"),
    [
        (lambda items: [torch.ones(4), torch.ones(4)], "a list of Tensor"),
        (lambda items: {"x": torch.ones(4), "y": torch.ones(3)}, "3, 4 entries"),
        (lambda items: {"x": torch.tensor(4)}, "0-d tensor"),
        (lambda items: {}, "no entries"),
    ],
)
def test_a_batch_that_can_not_be_taken_apart(out, collate, what):
    with pytest.raises(SourceError, match="batch 0") as caught:
        sw.write(DataLoader(Map(), 5, collate_fn=collate), out / "t@1")
    assert what in str(caught.value)


def test_a_shuffling_loader_is_noted_once_and_can_not_be_resumed(out):
    for loader in (
        DataLoader(Map(), 5, shuffle=True),
        DataLoader(Map(), batch_sampler=BatchSampler(RandomSampler(Map()), 5, False)),
    ):
        notes = []
        path = out / f"t{len(os.listdir(out))}"
        sw.write(loader, path / "t@2", notify=notes.append)
        assert sum("RandomSampler" in note for note in notes) == 1
        assert not any("iterator" in note for note in notes)
        assert {r["name"] for r in sw.open(path / "t")} == {f"item {i}" for i in range(N)}
        with pytest.raises(OptionError, match="another order each time"):
            sw.write(loader, path / "t@2", resume=True)
    straight = BatchSampler(SequentialSampler(Map()), 5, drop_last=True)
    assert open_source(DataLoader(Map(), batch_sampler=straight)).resumable


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_keeps_its_class_and_traceback(out, num_workers, workers):
    def broken(i):
        if i == 23:
            raise ZeroDivisionError("no item today")
        return features(i)

    loader = DataLoader(Map(broken), 5, num_workers=num_workers)
    with pytest.raises(CallableError, match="no item today") as caught:
        sw.write(loader, out / "t@2", workers=workers)
    assert type(caught.value.__cause__) is ZeroDivisionError
    assert caught.value.index == 20
    if num_workers:
        assert "in broken" in str(caught.value.__cause__)
    assert os.listdir(out) == []
    assert not children(os.getpid())  # though the error is held


def test_a_loader_is_made_again_by_a_function(expected, out):
    source = open_source(lambda: DataLoader(Map(), 5))
    for _ in range(2):
        assert len(list(source.items())) == N
