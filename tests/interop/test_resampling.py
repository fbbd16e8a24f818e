"""Class resampling from label counts: the plan, and what tf.data makes of it."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.reading.record_files import class_mix, plan_resampling
from shardwriter.schema.feature_types import FeatureType


@pytest.fixture(scope="session")
def leaf(tf: Any) -> Any:
    return importlib.import_module("shardwriter.reading.tensorflow")


# -- the plan --------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 10**6), min_size=1),
    st.data(),
    st.floats(0.01, 1000),
)
def test_a_plan_hits_its_target_and_keeps_its_bounds(counts, data, max_repeats):
    named = data.draw(st.lists(st.sampled_from(sorted(counts)), min_size=1, unique=True))
    target = {name: data.draw(st.floats(0.01, 10)) for name in named}
    plan = plan_resampling("y", counts, target, max_repeats)
    assert math.isclose(sum(plan.target.values()), 1)
    assert set(plan.copies) == set(named)
    assert max(plan.copies.values()) <= max_repeats * (1 + 1e-9)
    assert plan.expected_records <= sum(counts.values()) * (1 + 1e-9)
    for name, share in plan.target.items():
        assert math.isclose(counts[name] * plan.copies[name], share * plan.expected_records)
    assert plan.reads_per_record >= 1 - 1e-9


def test_what_an_imbalance_of_one_to_a_thousand_costs():
    counts = {"0": 999_000, "1": 1000}
    rejecting = plan_resampling("y", counts)
    assert rejecting.copies == {"0": pytest.approx(1 / 999), "1": 1}
    assert rejecting.expected_records == pytest.approx(2000)
    assert rejecting.reads_per_record == pytest.approx(500)
    repeating = plan_resampling("y", counts, "uniform", 50)
    assert repeating.copies["1"] == pytest.approx(50)
    assert repeating.reads_per_record == pytest.approx(10)
    most = plan_resampling("y", counts, "uniform", 10_000)
    assert most.expected_records == pytest.approx(1_000_000)


def test_a_mix_that_is_there_already_is_not_changed():
    plan = plan_resampling("y", {"a": 30, "b": 70}, {"a": 0.3, "b": 0.7})
    assert plan.copies == {"a": pytest.approx(1), "b": pytest.approx(1)}


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("even", "target is 'even'"),
        ({}, "all shares are 0"),
        ({"a": 0.0}, "all shares are 0"),
        ({"a": -1.0, "b": 2.0}, "share of 'a' is -1.0"),
        ({"a": math.nan}, "share of 'a' is nan"),
        ({"c": 1.0}, "no record has the label 'y' = c"),
    ],
)
def test_targets_that_can_not_be_had(target, match):
    with pytest.raises(OptionError, match=match):
        plan_resampling("y", {"a": 3, "b": 4}, target)


def test_bounds_that_make_no_sense():
    for max_repeats in (0, -1, math.inf, math.nan):
        with pytest.raises(OptionError, match="max_repeats"):
            plan_resampling("y", {"a": 3}, "uniform", max_repeats)
    with pytest.raises(OptionError, match="no record has a label"):
        plan_resampling("y", {})


# -- label counts ----------------------------------------------------------------------------------


def test_counts_come_from_the_manifest(tmp_path):
    sw.write([{"y": i % 4 == 0} for i in range(40)], tmp_path / "t@2", label="y")
    plan = class_mix(tmp_path / "t")
    assert plan.label == "y"
    assert plan.counts == {"0": 30, "1": 10}
    for target in ({0: 0.75, 1: 0.25}, {False: 3, True: 1}, {"0": 6, "1": 2}):
        assert class_mix(tmp_path / "t", target).copies["0"] == pytest.approx(1)


def test_counts_that_are_missing_are_asked_for(tmp_path):
    sw.write([{"y": i % 2, "z": i % 4, "v": [1.5]} for i in range(40)], tmp_path / "t@2")
    with pytest.raises(OptionError, match="no counts of a label") as caught:
        class_mix(tmp_path / "t")
    assert "--label" in caught.value.hint
    sw.write([{"y": i % 2, "z": i % 4} for i in range(40)], tmp_path / "u@2", label="y")
    with pytest.raises(OptionError, match="no counts of 'z'; it has those of 'y'"):
        class_mix(tmp_path / "u", label="z")
    given = class_mix(tmp_path / "u", label="z", counts={0: 10, 1: 10, 2: 10, 3: 10})
    assert given.label == "z"
    with pytest.raises(OptionError, match="no feature 'x'"):
        class_mix(tmp_path / "u", label="x", counts={0: 1})
    with pytest.raises(OptionError, match="no single integer or string"):
        class_mix(tmp_path / "t", label="v", counts={0: 1})


def test_classes_are_called_by_label_or_name(tmp_path):
    plan = plan_resampling("y", {"0": 10, "1": 30}, {"0": 1, "1": 1})
    schema = {"y": FeatureType("int64", "int64", ())}
    sw.write([{"y": i % 4 > 0} for i in range(40)], tmp_path / "t@2", label="y", schema=schema)
    assert class_mix(tmp_path / "t", {np.True_: 1, np.False_: 1}).copies == plan.copies
    sw.write([{"y": b"b" if i % 4 else b"a"} for i in range(40)], tmp_path / "u@2", label="y")
    assert class_mix(tmp_path / "u", {b"a": 1, "b": 1}).copies["a"] == 1
    opened = sw.open(tmp_path / "t")
    opened.features["y"].vocabulary = ["cat", "0"]
    assert class_mix(opened, {"cat": 3, "0": 1}).target == {"0": 0.75, "1": 0.25}
    assert class_mix(opened, {"cat": 1}).target == {"0": 1}


def test_classes_that_would_never_come_are_refused(tmp_path):
    items = [{"y": b"\xff" if i % 4 else b"a"} for i in range(40)]
    sw.write(items, tmp_path / "t@2", label="y")
    with pytest.raises(OptionError, match=r"'\\\\xff' is the spelling of bytes"):
        class_mix(tmp_path / "t")
    assert class_mix(tmp_path / "t", {"a": 1}).target == {"a": 1}
    sw.write([{"y": i % 2} for i in range(40)], tmp_path / "u@2")
    with pytest.raises(OptionError, match="'x': it is an integer"):
        class_mix(tmp_path / "u", label="y", counts={"x": 3})


# -- what comes out --------------------------------------------------------------------------------


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
