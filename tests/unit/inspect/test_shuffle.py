"""Shuffle quality: no false alarms, and the right word for what is not mixed."""

from __future__ import annotations

import json
import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_sets import dealt, paths_of, scan_of, scanned, shards, through_buffer

import shardwriter as sw
from shardwriter.inspect.label_mix import label_mix, table_of_manifest, table_of_scans
from shardwriter.inspect.label_scan import MAX_SEQUENCE, LabelScan
from shardwriter.inspect.shuffle import (
    draw_moments,
    find_period,
    interleaved_order,
    runs_moments,
    sequential_order,
    shuffle_by_label,
    shuffle_by_order,
    shuffle_note,
)


def judged(scans, *, round_robin=True):
    mix = label_mix(table_of_scans(scans), shards(len(scans)))
    shuffle = shuffle_by_label(scans, mix, round_robin=round_robin)
    json.dumps(shuffle, allow_nan=False)
    return shuffle


def shuffle_of(labels, num_shards, max_sequence=MAX_SEQUENCE):
    return judged(dealt(np.asarray(labels), num_shards, max_sequence))


def verdicts(shuffle):
    return {entry["order"]: entry["verdict"] for entry in shuffle["orders"]}


def blocks(num_blocks, length, num_labels, seed=0):
    return np.random.default_rng(seed).integers(0, num_labels, num_blocks).repeat(length)


# -- the numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(3, 2, 1), (4, 3), (1, 1, 1, 1), (6,), (2,), (1, 1)])
def test_moments_of_neighbours_are_those_over_all_orders(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    same = [sum(a == b for a, b in pairwise(o)) for o in permutations(labels)]
    mean, std = runs_moments(counts)
    assert mean == pytest.approx(np.mean(same))
    assert std == pytest.approx(np.std(same), abs=1e-6)


def test_moments_of_independent_draws():
    counts = np.array([5, 3, 2])
    rng = np.random.default_rng(0)
    draws = rng.choice(3, (20_000, 21), p=counts / 10)
    same = (draws[:, 1:] == draws[:, :-1]).sum(axis=1)
    mean, std = draw_moments(counts, 20)
    assert same.mean() == pytest.approx(mean, rel=0.02)
    assert same.std() == pytest.approx(std, rel=0.03)
    assert draw_moments(np.zeros(3), 0) == (0.0, 0.0)


@given(st.lists(st.lists(st.integers(-1, 3), max_size=12), min_size=1, max_size=4))
def test_both_orders_are_what_reading_gives(files):
    """-1 is a record without a label."""
    scans = []
    for labels in files:
        scan = LabelScan("y")
        scan.add([[] if y < 0 else np.array([y]) for y in labels], len(labels))
        scans.append(scan)
    in_row = [y for labels in files for y in labels if y >= 0]
    turns = [
        labels[t]
        for t in range(max(map(len, files)))
        for labels in files
        if t < len(labels) and labels[t] >= 0
    ]
    for found, order in [(sequential_order(scans), in_row), (interleaved_order(scans), turns)]:
        same = sum(a == b for a, b in pairwise(order))
        assert (found.num_pairs, found.num_same) == (max(0, len(order) - 1), same)
        assert found.expected == runs_moments(np.bincount(order or [0]).tolist())[0]
        assert found.num_labels == len(set(order))


def test_what_is_not_kept_in_order_is_left_out():
    scans = [scan_of([0] * 100, 20), scan_of([1] * 30, 20), scan_of([2] * 5, 20)]
    assert interleaved_order(scans).num_pairs == 20 + 20 + 5 - 1
    assert sequential_order(scans).num_pairs == 134
    assert sequential_order(scans).num_same == 132


@pytest.mark.parametrize("period", [2, 3, 17, 500])
def test_a_period_is_found(period):
    labels = np.random.default_rng(0).permutation(np.arange(period) % 50)
    assert find_period(np.resize(labels, 4000), np.bincount(np.resize(labels, 4000))) == period


def test_sorted_and_random_labels_have_no_period():
    rng = np.random.default_rng(0)
    for labels in (np.arange(4000) // 400, rng.integers(0, 4, 4000), np.zeros(4000, int)):
        assert find_period(labels, np.bincount(labels)) is None


# -- no false alarms -------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(2, 4000),
    st.integers(2, 500),
    st.integers(1, 40),
    st.sampled_from([0.05, 1, 10]),
    st.sampled_from([64, MAX_SEQUENCE]),
)
def test_random_labels_are_shuffled_or_too_few(seed, num_records, k, n, evenness, limit):
    rng = np.random.default_rng(seed)
    labels = rng.choice(k, num_records, p=rng.dirichlet(np.full(k, evenness)))
    shuffle = shuffle_of(labels, n, limit)
    assert shuffle["verdict"] in ("shuffled", "unknown")
    assert shuffle["remedy"] is None
    assert shuffle_note(shuffle) is None


@pytest.mark.parametrize("num_labels", [2, 10, 100])
def test_enough_random_labels_are_shuffled(num_labels):
    labels = np.random.default_rng(1).integers(0, num_labels, 3000)
    shuffle = shuffle_of(labels, 8)
    assert verdicts(shuffle) == {"shard-after-shard": "shuffled", "interleaved": "shuffled"}
    assert shuffle["ratio"] == pytest.approx(1, abs=0.5)
    assert shuffle["expected_same"] == pytest.approx(1 / num_labels, rel=0.1)
    window = shuffle["orders"][0]["window"]
    assert window["distinct"] == pytest.approx(window["expected"], rel=0.1)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([0, 1] * 5, "too few records"),
        ([0, 0, 0, 1, 1, 1], "too few records"),
        (list(range(1000)), "too few records per label"),
        ([4] * 1000, "all records have one label"),
        ([0] * 3000 + [1], "too few records per label"),
    ],
)
def test_too_little_to_tell(labels, why):
    shuffle = shuffle_of(labels, 2)
    assert shuffle["verdict"] == "unknown"
    assert why in shuffle["detail"]


def test_no_labels_at_all(monkeypatch):
    assert judged([LabelScan("y"), LabelScan("y")])["detail"] == "no record has a label in 'y'"
    assert judged([])["verdict"] == "unknown"
    monkeypatch.setattr("shardwriter.inspect.label_scan.MAX_LABELS", 3)
    assert "too many values" in shuffle_of(range(9), 1)["detail"]


# -- what is not mixed -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 4, 7])
@pytest.mark.parametrize("max_sequence", [64, MAX_SEQUENCE])
def test_sorted(num_shards, max_sequence):
    shuffle = shuffle_of(np.arange(5000) // 500, num_shards, max_sequence)
    assert shuffle["verdict"] == "sorted"
    assert shuffle["same_neighbours"] > 0.9
    assert shuffle["ratio"] > 9
    assert "`shardwriter write --shuffle --seed 0`" in shuffle["remedy"]
    assert shuffle_note(shuffle).startswith("records are sorted by label: ")


@pytest.mark.parametrize("length", [4, 10, 50])
@pytest.mark.parametrize("num_labels", [2, 10, 100])
def test_blocks_and_the_buffer_that_mixes_them(length, num_labels):
    labels = blocks(40_000 // length, length, num_labels)
    shuffle = shuffle_of(labels, 1)
    assert shuffle["verdict"] == "clustered"
    words = shuffle["remedy"].split()
    size = int(words[words.index("records") - 1].replace(",", ""))
    if "at least" in shuffle["remedy"]:
        mixed = through_buffer(labels, size, np.random.default_rng(0))
        assert shuffle_of(mixed, 1)["verdict"] == "shuffled"
        assert shuffle_of(through_buffer(labels, 2, np.random.default_rng(0)), 1)["remedy"]
    else:
        assert size >= len(labels) // 4


def test_a_buffer_too_small_for_sorted_records_is_noticed():
    labels = np.arange(8000) // 800
    rng = np.random.default_rng(0)
    small, large = through_buffer(labels, 200, rng), through_buffer(labels, 6000, rng)
    assert shuffle_of(small, 1)["verdict"] == "clustered"
    assert "more than 2,000 records" in shuffle_of(small, 1)["remedy"]
    assert shuffle_of(large, 1)["verdict"] == "shuffled"


def test_labels_that_alternate_in_long_pieces():
    """Neighbours alone look better than random here; a batch has two labels of twenty."""
    pieces = [np.resize([2 * k, 2 * k + 1], 500) for k in range(10)]
    shuffle = shuffle_of(np.concatenate(pieces), 1)
    assert shuffle["same_neighbours"] < shuffle["expected_same"]
    assert shuffle["verdict"] == "clustered"
    assert "256 consecutive records have 2.0 distinct labels" not in shuffle["detail"]
    assert "256 consecutive records have" in shuffle["detail"]


@pytest.mark.parametrize(
    ("period", "num_shards", "better"), [(8, 8, 9), (16, 8, 9), (4, 8, 9), (9, 8, None)]
)
def test_a_period(period, num_shards, better):
    shuffle = shuffle_of(np.arange(6000) % period, num_shards)
    assert shuffle["verdict"] == "periodic"
    assert shuffle["period"] == period
    if better is None:
        assert (shuffle["remedy"], shuffle_note(shuffle)) == (None, None)
        assert "every shard has the same label mix" in shuffle["detail"]
    else:
        assert f"such as {better}; until then read all 8 shards at once" in shuffle["remedy"]
        mended = shuffle_of(np.arange(6000) % period, better)
        assert mended["remedy"] is None


def test_another_number_of_shards_shares_no_divisor_with_the_period():
    shuffle = shuffle_of(np.arange(9000) % 30, 6)
    assert shuffle["period"] == 30
    assert "such as 7;" in shuffle["remedy"]
    assert math.gcd(7, 30) == 1


def test_a_period_of_the_shards_that_no_label_repeats():
    """The even places have other labels than the odd ones; which of them is random."""
    rng = np.random.default_rng(0)
    labels = 2 * rng.integers(0, 5, 4000) + np.arange(4000) % 2
    shuffle = shuffle_of(labels, 4)
    assert shuffle["verdict"] == "periodic"
    assert "in step with the 4 shards" in shuffle["detail"]
    assert "such as 5;" in shuffle["remedy"]


def test_classes_dealt_in_turn_in_random_order():
    rng = np.random.default_rng(0)
    labels = np.concatenate([rng.permutation(10) for _ in range(500)])
    shuffle = shuffle_of(labels, 8)
    assert (shuffle["verdict"], shuffle["remedy"]) == ("periodic", None)


def test_files_of_one_class_each_are_mended_by_reading_them_in_turn():
    shuffle = judged([scan_of([label] * 500) for label in range(6)], round_robin=False)
    assert shuffle["verdict"] == "sorted"
    assert verdicts(shuffle)["interleaved"] == "periodic"
    assert "reading all 6 shards at once (interleave with cycle_length=6)" in shuffle["remedy"]


def test_files_of_other_mixes_each_in_random_order():
    rng = np.random.default_rng(0)
    scans = [scan_of(rng.choice(2, 2000, p=[p, 1 - p])) for p in (0.3, 0.5, 0.7)]
    shuffle = judged(scans, round_robin=False)
    assert shuffle["verdict"] == "clustered"
    assert shuffle["detail"] == "shards have labels in different shares"
    assert shuffle["remedy"]


# -- without labels, by the manifest ---------------------------------------------------------------


def items(num_records, label):
    return [{"x": i, "y": label(i)} for i in range(num_records)]


def test_the_order_that_a_manifest_tells(tmp_path):
    rows = items(60, lambda i: i % 5)
    plain = sw.write(rows, tmp_path / "a@4")
    mixed = sw.write(rows, tmp_path / "b@4", shuffle_seed=7)
    by_key = sw.write(rows, tmp_path / "c@4", order="key", key="x", order_seed=3)
    found = [shuffle_by_order(m.order, {}, 4) for m in (plain, mixed, by_key)]
    assert [f["verdict"] for f in found] == ["unknown", "shuffled", "shuffled"]
    assert "records are in source order" in found[0]["detail"]
    assert "--label" in found[0]["remedy"]
    assert "seed 7" in found[1]["detail"]
    assert "hashes of their keys, with seed 3" in found[2]["detail"]
    assert [shuffle_note(f) for f in found] == [None] * 3
    assert shuffle_by_order(None, {}, 4)["verdict"] == "unknown"
    remedy = shuffle_by_order(plain.order, {"feature": "label"}, 4)["remedy"]
    assert remedy == "`shard-stats PATH --label label` measures it"
    assert {key for f in found for key in f} == set(shuffle_of([0, 1], 1))


def test_a_period_that_a_manifest_shows(tmp_path):
    manifest = sw.write(items(800, lambda i: i % 4), tmp_path / "t@4", label="y")
    mix = label_mix(table_of_manifest(manifest), paths_of(tmp_path, manifest))
    shuffle = shuffle_by_order(manifest.order, mix, 4)
    assert (shuffle["by"], shuffle["verdict"]) == ("order", "periodic")
    assert "such as 5" in shuffle_note(shuffle)


# -- sets on disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "options", "verdict"),
    [
        (lambda i: f"class {i // 300}", {}, "sorted"),
        (lambda i: i // 300, {"shuffle_seed": 1}, "shuffled"),
        (lambda i: i // 300, {"order": "key", "key": "x"}, "shuffled"),
        (lambda i: i % 8, {}, "periodic"),
        (lambda i: i % 8, {"shuffle_seed": 1}, "shuffled"),
        (lambda i: i // 10 * 7919 % 31 % 5, {}, "clustered"),
        (lambda i: i, {}, "unknown"),
    ],
)
def test_sets_that_were_written(label, options, verdict, tmp_path):
    manifest = sw.write(items(3000, label), tmp_path / "t@8", label="y", **options)
    paths = paths_of(tmp_path, manifest)
    scans = scanned(paths, "y")
    mix = label_mix(table_of_scans(scans), paths)
    shuffle = shuffle_by_label(scans, mix, round_robin=True)
    assert shuffle["verdict"] == verdict
    assert bool(mix["num_deviating"]) is (verdict == "periodic")
    assert (shuffle_note(shuffle) is None) is (verdict in ("shuffled", "unknown"))
