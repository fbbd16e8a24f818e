"""Class resampling from label counts: the records that tf.data gives."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from typing import Any

import pytest

import shardwriter as sw
from shardwriter.reading.record_files import class_mix


@pytest.fixture(scope="session")
def leaf(tf: Any) -> Any:
    return importlib.import_module("shardwriter.reading.tensorflow")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """4,000 records of which 2% are "cat", 8% "dog", 85% "fish", and 5% have no label."""

    def item(i: int) -> dict[str, Any]:
        place = i * 7 % 100
        label = "cat" if place < 2 else "dog" if place < 10 else "fish" if place < 95 else None
        return {"i": i, "label": label}

    folder = tmp_path_factory.mktemp("names")
    sw.write([item(i) for i in range(4000)], folder / "t@8", label="label")
    return folder / "t"


def drawn(dataset: Any) -> list[tuple[int, str]]:
    return [(int(e["i"]), e["label"].decode()) for e in dataset.as_numpy_iterator()]


def assert_mix(labels: list[str], target: dict[str, float]) -> None:
    counts = Counter(labels)
    assert set(counts) == set(target)
    for name, share in target.items():
        spread = math.sqrt(len(labels) * share * (1 - share))
        assert abs(counts[name] - share * len(labels)) < 5 * spread + 1, name


@pytest.mark.parametrize("max_repeats", [1, 3.5])
def test_classes_come_in_the_shares_that_are_wanted(leaf, names, max_repeats):
    plan = class_mix(names, "uniform", max_repeats=max_repeats)
    dataset = leaf.tf_dataset(names, resample=plan, shuffle=True, epoch=0)
    got = drawn(dataset)
    assert len(got) == int(dataset.cardinality()) == int(plan.expected_records)
    assert_mix([label for _, label in got], {"cat": 1 / 3, "dog": 1 / 3, "fish": 1 / 3})
    cats = Counter(i for i, label in got if label == "cat")
    if max_repeats > 1:
        assert set(cats.values()) & {3, 4}


def test_classes_that_are_not_named_do_not_come(leaf, names):
    got = drawn(leaf.tf_dataset(names, resample={"cat": 1, "dog": 3}, num_samples=300))
    assert_mix([label for _, label in got], {"cat": 0.25, "dog": 0.75})


def test_resampling_is_a_function_of_seed_and_epoch(leaf, names):
    def one(**options: Any) -> list[tuple[int, str]]:
        return drawn(leaf.tf_dataset(names, resample="uniform", shuffle=True, **options))

    first = one(seed=1, epoch=0)
    assert one(seed=1, epoch=0) == first
    assert set(one(seed=1, epoch=1)) != set(first)
    assert set(one(seed=2, epoch=0)) != set(first)
    fresh = leaf.tf_dataset(names, resample="uniform", seed=1)
    assert set(drawn(fresh)) != set(drawn(fresh))


def test_integer_labels_and_many_more_samples_than_a_pass_gives(leaf, tmp_path):
    sw.write([{"y": -5 if i % 50 else 7} for i in range(400)], tmp_path / "t@4", label="y")
    dataset = leaf.tf_dataset(tmp_path / "t", resample="uniform", num_samples=150, batch_size=50)
    labels = [str(y) for batch in dataset for y in batch["y"].numpy()]
    assert len(labels) == 150
    counts = Counter(labels)
    # All 8 rare records come in every pass, and of the others 8 on average.
    assert 30 < counts["7"] < 120
    assert counts["-5"] + counts["7"] == 150


def test_ranks_take_the_same_number_of_steps_from_records_of_their_own(leaf, names):
    ranks = [
        drawn(leaf.tf_dataset(names, resample="uniform", rank=r, world=3, num_samples=60))
        for r in range(3)
    ]
    assert [len(rank) for rank in ranks] == [60] * 3
    whose = [{i for i, _ in rank} for rank in ranks]
    assert not whose[0] & whose[1] | whose[1] & whose[2] | whose[0] & whose[2]


def test_a_rank_without_any_record_of_the_class_ends(leaf, tf, tmp_path):
    sw.write([{"y": int(i == 0)} for i in range(40)], tmp_path / "t@2", label="y")
    dataset = leaf.tf_dataset(tmp_path / "t", resample={1: 1.0}, rank=1, world=2)
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(dataset)
