"""tf.data over our shards: order, shuffles, ranks, files, and what it is called with."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import CorruptFile, OptionError, SourceError, UnequalSteps
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.record_files import record_files


@pytest.fixture(scope="session")
def leaf(tf: Any) -> Any:
    return importlib.import_module("shardwriter.reading.tensorflow")


def write(folder: Path, num_items: int, notation: str, skip: Any = (), **options: Any) -> str:
    def item(i: int) -> Any:
        return sw.SKIP if i in skip else {"i": i, "name": f"n{i}"}

    sw.write(list(range(num_items)), folder / notation, map=item, **options)
    return str(folder / notation.split("@")[0])


def numbers(dataset: Any) -> list[int]:
    return [int(example["i"]) for example in dataset.as_numpy_iterator()]


def batched(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset.as_numpy_iterator() for i in batch["i"]]


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_items", "num_shards"), [(28, 4), (29, 4), (27, 4), (3, 5), (13, 12)])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zz"])
def test_source_order(leaf, tmp_path, num_items, num_shards, suffix):
    compression = {"": "none", ".gz": "gzip", ".zz": "zlib"}[suffix]
    path = write(tmp_path, num_items, f"t@{num_shards}", compression=compression)
    dataset = leaf.tf_dataset(path)
    assert int(dataset.cardinality()) == num_items
    assert numbers(dataset) == list(range(num_items))
    assert numbers(dataset) == list(range(num_items)), "iterating again gives the data again"
    assert batched(leaf.tf_dataset(path, batch_size=4)) == list(range(num_items))


@pytest.mark.parametrize("max_open_files", [128, 2])
@pytest.mark.parametrize("skip", [{3, 4, 5, 9, 20}, set(range(0, 30, 3)), {0}, {29}])
def test_source_order_with_gaps_whatever_may_be_open(leaf, tmp_path, skip, max_open_files):
    path = write(tmp_path, 30, "t@3", skip)
    expected = [i for i in range(30) if i not in skip]
    dataset = leaf.tf_dataset(path, max_open_files=max_open_files)
    assert numbers(dataset) == expected
    assert numbers(dataset) == [example["i"] for example in open_dataset(path)]


def test_source_order_of_a_set_of_others_is_that_of_the_core(leaf, tmp_path):
    records = iter(range(100))
    for shard, count in enumerate([7, 0, 3, 9]):
        with sw.TFRecordWriter(open(tmp_path / f"x-{shard:05}-of-00004", "wb")) as writer:
            for _ in range(count):
                writer.write(sw.encode_example({"i": next(records)}))
    expected = list(open_dataset(tmp_path, decode=False))
    for options in ({}, {"max_open_files": 2}):
        got = leaf.tf_dataset(tmp_path, parse=False, **options)
        assert list(got.as_numpy_iterator()) == expected


def test_blocks_give_what_open_files_give(leaf, tmp_path):
    from shardwriter.reading.tensorflow.dataset import in_blocks, plan_blocks

    rng = np.random.default_rng(5)
    for trial, num_turns in product(range(2), [1, 3, 50]):
        num_items, num_shards = int(rng.integers(1, 40)), int(rng.integers(1, 9))
        skip = set(rng.integers(0, num_items, trial * 9).tolist())
        folder = tmp_path / f"{trial}-{num_turns}"
        if len(skip) == num_items:
            continue
        data = open_dataset(write(folder, num_items, f"t@{num_shards}", skip))
        files = record_files(data)
        blocks = plan_blocks(files.counts, files.gaps, files.starts, 20, num_turns)
        stream = in_blocks(files.paths, blocks, 20, 2)
        assert list(stream.as_numpy_iterator()) == list(data.raw())


def test_compressed_shards_over_the_limit_have_no_source_order(leaf, tmp_path):
    path = write(tmp_path, 10, "t@5", compression="gzip")
    with pytest.raises(OptionError, match="max_open_files is 2") as caught:
        leaf.tf_dataset(path, max_open_files=2)
    assert "deterministic=False" in caught.value.hint
    in_any = leaf.tf_dataset(path, max_open_files=2, deterministic=False)
    assert sorted(numbers(in_any)) == list(range(10))


def test_a_set_that_is_not_whole_is_refused_at_once(leaf, tmp_path):
    path = write(tmp_path, 10, "t@5")
    shard = tmp_path / "t.tfrecord-00003-of-00005"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(sw.DataError, match="bytes"):
        leaf.tf_dataset(path)
    shard.unlink()
    with pytest.raises(SourceError, match="missing"):
        leaf.tf_dataset(path)


def test_shards_are_in_the_order_of_their_numbers(leaf, tmp_path):
    payloads = [sw.encode_example({"i": i}) for i in range(24)]
    for shard in range(12):
        with sw.TFRecordWriter(open(tmp_path / f"x.tfrecord-{shard}-of-12", "wb")) as writer:
            for payload in payloads[shard::12]:
                writer.write(payload)
    assert list(leaf.tf_dataset(tmp_path, parse=False).as_numpy_iterator()) == payloads


def test_a_dataset_without_records(leaf, tmp_path):
    path = write(tmp_path, 3, "t@2", {0, 1, 2})
    for options in ({}, {"shuffle": True}, {"deterministic": False}):
        dataset = leaf.tf_dataset(path, parse=False, **options)
        assert list(dataset) == []
        assert int(dataset.cardinality()) == 0


# -- shuffles --------------------------------------------------------------------------------------


def test_a_shuffle_is_a_permutation_that_seed_and_epoch_choose(leaf, tmp_path):
    path = write(tmp_path, 200, "t@9")

    def order(**options: Any) -> list[int]:
        return numbers(leaf.tf_dataset(path, shuffle=True, shuffle_buffer=50, **options))

    first = order(seed=1, epoch=0)
    assert sorted(first) == list(range(200))
    assert first != list(range(200))
    assert order(seed=1, epoch=0) == first
    assert order(seed=1, epoch=1) != first
    assert order(seed=2, epoch=0) != first
    assert order(seed=1) == order(seed=1)


def test_an_epoch_that_is_named_stays_and_others_are_reshuffled(leaf, tmp_path):
    path = write(tmp_path, 100, "t@4")
    fixed = leaf.tf_dataset(path, shuffle=True, epoch=3)
    assert numbers(fixed) == numbers(fixed)
    fresh = leaf.tf_dataset(path, shuffle=True, seed=7)
    first, second = numbers(fresh), numbers(fresh)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"max_open_files": 2}])
def test_an_iterator_goes_on_from_a_checkpoint_of_tensorflow(leaf, tf, tmp_path, options):
    path = write(tmp_path, 40, "t@4")
    dataset = leaf.tf_dataset(path, batch_size=4, epoch=0, **options)
    expected = batched(dataset)
    iterator = iter(dataset)
    got = [int(i) for _ in range(3) for i in next(iterator)["i"].numpy()]
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "checkpoint"))
    again = iter(leaf.tf_dataset(path, batch_size=4, epoch=0, **options))
    tf.train.Checkpoint(iterator=again).restore(saved).assert_consumed()
    got += [int(i) for batch in again for i in batch["i"].numpy()]
    assert got == expected
    assert batched(dataset.skip(3)) == expected[12:]


def test_what_is_worth_knowing_of_the_dataset_is_told(leaf, tmp_path):
    path = write(tmp_path, 10, "t@2")
    (tmp_path / "t.index").unlink()
    told: list[str] = []
    leaf.tf_dataset(path, notify=told.append)
    assert len(told) == 1
    assert "index" in told[0]


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("num_items", "num_shards", "world", "skip"),
    [(24, 4, 2, ()), (25, 4, 2, ()), (27, 4, 4, ()), (26, 5, 3, ()), (30, 4, 2, (0, 4, 7, 8))],
)
def test_ranks_have_equal_steps_and_each_record_once(
    leaf, tmp_path, num_items, num_shards, world, skip, shuffle
):
    path = write(tmp_path, num_items, f"t@{num_shards}", skip)
    data = open_dataset(path)
    total = len(data)
    for uneven in ("drop", "pad", "wrap"):
        ranks = []
        for rank in range(world):
            options = {"rank": rank, "world": world, "uneven": uneven, "shuffle": shuffle}
            dataset = leaf.tf_dataset(path, **options)
            got = list(dataset.as_numpy_iterator())
            assert len(got) == int(dataset.cardinality())
            ranks.append(got)
            if not shuffle:
                share = data.split(rank, world, uneven)
                assert [e["i"] for e in got] == [e["i"] for e in share]
                pads = [share.is_pad(t) for t in range(len(share))]
                assert [bool(e.get("is_pad", False)) for e in got] == pads
        assert len(set(map(len, ranks))) == 1
        own = [int(e["i"]) for rank in ranks for e in rank if not e.get("is_pad", False)]
        if uneven == "drop":
            assert len(ranks[0]) == total // world
            assert len(set(own)) == len(own)
        else:
            assert len(ranks[0]) == -(-total // world)
            assert set(own) == {e["i"] for e in data}
        if uneven == "pad":
            assert len(own) == total


@pytest.mark.parametrize(("world", "skip"), [(2, ()), (3, (4,))])
def test_ranks_read_blocks_where_few_files_may_be_open(leaf, tmp_path, world, skip):
    path = write(tmp_path, 25, "t@4", skip)
    dataset = leaf.tf_dataset(path, rank=1, world=world, uneven="wrap", max_open_files=1)
    share = open_dataset(path).split(1, world, "wrap")
    assert numbers(dataset) == [example["i"] for example in share]


def test_more_ranks_than_records(leaf, tmp_path):
    path = write(tmp_path, 3, "t@2")
    ranks = [
        list(leaf.tf_dataset(path, rank=r, world=8, uneven="pad").as_numpy_iterator())
        for r in range(8)
    ]
    assert [len(rank) for rank in ranks] == [1] * 8
    assert [bool(rank[0]["is_pad"]) for rank in ranks] == [False] * 3 + [True] * 5
    assert [int(rank[0]["i"]) for rank in ranks] == [0, 1, 2, 0, 1, 2, 0, 1]
    with pytest.raises(UnequalSteps):
        leaf.tf_dataset(path, rank=0, world=8, uneven="drop")


def test_uneven_has_to_be_chosen_and_ranks_make_sense(leaf, tmp_path):
    path = write(tmp_path, 7, "t@2")
    with pytest.raises(UnequalSteps):
        leaf.tf_dataset(path, rank=0, world=2)
    with pytest.raises(OptionError, match="only one of rank"):
        leaf.tf_dataset(path, rank=0)
    with pytest.raises(OptionError, match="rank 2"):
        leaf.tf_dataset(path, rank=2, world=2)


def test_an_input_context_says_rank_and_world(leaf, tf, tmp_path):
    path = write(tmp_path, 8, "t@4")
    context = tf.distribute.InputContext(2, 1, 4)
    dataset = leaf.tf_dataset(path, input_context=context)
    assert numbers(dataset) == [1, 3, 5, 7]
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    with pytest.raises(OptionError, match="input_context"):
        leaf.tf_dataset(path, input_context=context, rank=0, world=2)


def test_a_rank_is_dealt_files_where_they_divide_and_told_where_not(leaf, tmp_path, monkeypatch):
    told: list[str] = []
    opened: Counter[bytes] = Counter()
    path = write(tmp_path, 48, "t@6")
    files = importlib.import_module("shardwriter.reading.tensorflow.dataset")
    real = files._paths

    def watched(paths: Any, *columns: Any) -> Any:
        opened.update(paths)
        return real(paths, *columns)

    monkeypatch.setattr(files, "_paths", watched)
    for shuffle in (False, True):
        leaf.tf_dataset(path, rank=1, world=3, shuffle=shuffle, notify=told.append)
    assert set(opened.values()) == {2}
    assert {name[-14:-9] for name in opened} == {"00001", "00004"}
    assert told == []
    leaf.tf_dataset(path, rank=1, world=4, notify=told.append)
    assert told == [
        "every rank reads all 6 shards and uses one record in 4; with 4 or 8 shards it would read "
        "only its own"
    ]


MIRRORED = """
import sys
import tensorflow as tf
from shardwriter.reading.tensorflow import tf_dataset
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])

def input_of(context):
    size = context.get_per_replica_batch_size(6)
    return tf_dataset(sys.argv[1], batch_size=size, input_context=context)

seen = []
for batch in strategy.distribute_datasets_from_function(input_of):
    parts = strategy.experimental_local_results(batch["i"])
    assert len(parts) == 2
    seen += [i for part in parts for i in part.numpy().tolist()]
assert seen == list(range(24)), seen
whole = strategy.experimental_distribute_dataset(tf_dataset(sys.argv[1], batch_size=6))
seen = [i for batch in whole for part in strategy.experimental_local_results(batch["i"])
        for i in part.numpy().tolist()]
assert seen == list(range(24)), seen
print("same")
"""


def run(code: str, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_mirrored_strategy_feeds_its_replicas(tf, tmp_path):
    assert run(MIRRORED, write(tmp_path, 24, "t@4")) == "same\n"


# -- files and devices -----------------------------------------------------------------------------

OPEN_FILES = """
import os, resource, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from shardwriter.reading.tensorflow import class_mix, tf_dataset
path, peak, done = sys.argv[1], 0, threading.Event()

def watch():
    global peak
    while not done.is_set():
        links = map(target, os.listdir("/proc/self/fd"))
        peak = max(peak, sum("tfrecord" in link for link in links))
        time.sleep(0.001)

def target(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""

watcher = threading.Thread(target=watch)
watcher.start()
try:
    ordered = [int(i) for b in tf_dataset(path, batch_size=500) for i in b["i"].numpy()]
    assert ordered == list(range(4000)), "source order"
    print("source order", peak); peak = 0
    any_order = [int(i) for b in tf_dataset(path, batch_size=500, shuffle=True, cycle_length=64)
                 for i in b["i"].numpy()]
    assert sorted(any_order) == ordered
    print("shuffled", peak); peak = 0
    plan = class_mix(path, "uniform", max_repeats=4)
    drawn = tf_dataset(path, batch_size=500, shuffle=True, resample=plan, seed=3)
    labels = [int(k) for b in drawn for k in b["label"].numpy()]
    print("resampled", peak)
finally:
    done.set()
    watcher.join()
num, rare = len(labels), sum(labels)
print("labels", num, rare, plan.expected_records)
"""


def test_a_thousand_shards_under_a_limit_of_256_files(tf, tmp_path):
    items = ({"i": i, "label": int(i % 100 == 0)} for i in range(4000))
    sw.write(items, tmp_path / "t@1000", label="label")
    lines = [line.split() for line in run(OPEN_FILES, str(tmp_path / "t")).splitlines()]
    assert [line[0] for line in lines] == ["source", "shuffled", "resampled", "labels"]
    for line in lines[:3]:
        assert 0 < int(line[-1]) <= 128
    num, rare, expected = int(lines[3][1]), int(lines[3][2]), float(lines[3][3])
    assert num == int(expected) == 320  # 40 of 4,000 are rare: 4 copies of each, and as many others
    assert abs(rare - num / 2) < 5 * (num / 4) ** 0.5


def test_gpus_are_left_alone(leaf, tf, dataset, monkeypatch):
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    made = leaf.tf_dataset(dataset, parse=False)
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert made._variant_tensor.device.endswith("CPU:0")
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    hidden = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *args: hidden.append(args))
    leaf.tf_dataset(dataset, parse=False)
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"
    assert hidden == []
    leaf.tf_dataset(dataset, parse=False, hide_gpus=True)
    assert hidden == [([], "GPU")]


def test_hiding_gpus_too_late_is_said(leaf, tf, dataset, monkeypatch):
    def refuse(*_: Any) -> None:
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    with pytest.raises(OptionError, match="too late") as caught:
        leaf.tf_dataset(dataset, parse=False, hide_gpus=True)
    assert "before any other TensorFlow call" in caught.value.hint


# -- damage, and what it is called with ------------------------------------------------------------


def test_damage_is_named(leaf, tf, tmp_path):
    path = write(tmp_path, 40, "t@4")
    shard = tmp_path / "t.tfrecord-00002-of-00004"
    content = bytearray(shard.read_bytes())
    dataset = leaf.tf_dataset(path)
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError):
        numbers(dataset)
    with pytest.raises(CorruptFile) as caught, leaf.naming_damage(path):
        numbers(dataset)
    assert caught.value.path == str(shard)
    assert caught.value.record_index is not None
    assert isinstance(caught.value.__cause__, tf.errors.DataLossError)


def test_a_shard_cut_while_training_is_an_error_and_no_shorter_epoch(leaf, tf, tmp_path):
    path = write(tmp_path, 40, "t@4")
    dataset = leaf.tf_dataset(path)
    (tmp_path / "t.tfrecord-00002-of-00004").write_bytes(b"")
    with pytest.raises(tf.errors.FailedPreconditionError):
        numbers(dataset)
    with pytest.raises(sw.DataError), leaf.naming_damage(path):
        numbers(dataset)


def test_views_are_refused_and_open_datasets_taken(leaf, tmp_path):
    data = open_dataset(write(tmp_path, 10, "t@2"))
    assert numbers(leaf.tf_dataset(data)) == list(range(10))
    with pytest.raises(OptionError, match="view"):
        leaf.tf_dataset(data.shuffle())


def test_batches(leaf, tmp_path):
    path = write(tmp_path, 10, "t@2")
    sizes = [len(batch["i"]) for batch in leaf.tf_dataset(path, batch_size=4)]
    assert sizes == [4, 4, 2]
    full = leaf.tf_dataset(path, batch_size=4, drop_remainder=True)
    assert [len(batch["i"]) for batch in full] == [4, 4]
    assert full.element_spec["i"].shape == (4,)
    assert int(full.cardinality()) == 2


def test_serialized_examples_with_marks_of_padding(leaf, tmp_path):
    path = write(tmp_path, 3, "t@2")
    plain = list(leaf.tf_dataset(path, parse=False).as_numpy_iterator())
    assert [sw.decode_example(payload)["i"][0] for payload in plain] == [0, 1, 2]
    marked = leaf.tf_dataset(path, parse=False, rank=1, world=2, uneven="pad")
    assert [(payload, bool(pad)) for payload, pad in marked.as_numpy_iterator()] == [
        (plain[1], False),
        (plain[0], True),
    ]


def test_a_feature_named_is_pad_is_not_hidden(leaf, tmp_path):
    sw.write([{"is_pad": 1}] * 4, tmp_path / "t@2")
    with pytest.raises(OptionError, match="is_pad"):
        leaf.tf_dataset(tmp_path / "t", rank=0, world=2, uneven="pad")


@pytest.mark.parametrize(
    "options",
    [
        {"parse": False, "features": ["i"]},
        {"num_samples": 4},
        {"features": ["nothing"]},
        {"features": "i"},
        {"features": []},
        {"resample": 2},
        {"resample": "uniform", "uneven": "drop"},
        {"shuffle_buffer": 0, "shuffle": True},
        {"batch_size": 0},
        {"cycle_length": 0, "shuffle": True},
        {"max_open_files": 0},
        {"seed": -1},
        {"epoch": 1 << 63},
    ],
)
def test_options_that_make_no_sense(leaf, tmp_path, options):
    sw.write([{"i": i} for i in range(6)], tmp_path / "t@2", label="i")
    with pytest.raises(OptionError):
        leaf.tf_dataset(tmp_path / "t", **options)


def shards_open(folder) -> int:
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(link.startswith(f"{folder}/t.tfrecord") for link in links)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc")
def test_an_epoch_that_is_left_closes_its_files(leaf, tmp_path):
    sw.write([bytes(10_000)] * 2000, tmp_path / "t@4")  # more than is read ahead
    iterator = iter(leaf.tf_dataset(tmp_path / "t", parse=False, prefetch=1))
    next(iterator)
    assert 0 < shards_open(tmp_path) <= 4
    del iterator
    until = time.monotonic() + 10
    while shards_open(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert shards_open(tmp_path) == 0


def test_without_tensorflow_it_is_said_what_to_install(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise ImportError('none here')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "try:\n    import shardwriter.reading.tensorflow\n"
        "except ImportError as error:\n    print(type(error).__name__, error.hint)\n"
    )
    assert run(code, str(tmp_path)) == 'MissingExtra pip install "shardwriter[tensorflow]"\n'
