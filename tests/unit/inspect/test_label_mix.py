"""The label mix of a set, and the tests that say which shards have too much of one."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_sets import dealt, paths_of, scan_of, scanned, shards

import shardwriter as sw
from shardwriter.inspect import label_mix as label_mix_module
from shardwriter.inspect.label_mix import (
    chi_square_moments,
    deviating_cells,
    gamma_tail,
    hypergeometric_p_value,
    initial_dist_text,
    label_mix,
    label_note,
    table_of_manifest,
    table_of_scans,
)
from shardwriter.inspect.label_scan import LabelScan
from shardwriter.inspect.shuffle import shards_differ


def mix_of(labels, num_shards):
    return label_mix(table_of_scans(dealt(np.asarray(labels), num_shards)), shards(num_shards))


# -- the tests -------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.data())
def test_tails_are_exact(total, data):
    with_label, draws = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    least, most = max(0, draws + with_label - total), min(draws, with_label)
    count = data.draw(st.integers(least, most))

    def term(k):
        ways = math.comb(with_label, k) * math.comb(total - with_label, draws - k)
        return Fraction(ways, math.comb(total, draws))

    below, above = (
        sum(map(term, range(least, count + 1))),
        sum(map(term, range(count, most + 1))),
    )
    tail = above if count * total >= draws * with_label else below
    found = hypergeometric_p_value(count, draws, with_label, total)
    assert found == pytest.approx(float(min(1, 2 * tail)), rel=1e-9)


def test_moments_of_chi_square_are_those_over_all_permutations():
    rows, columns = np.array([3, 3, 1]), np.array([4, 2, 1])
    expected = np.outer(rows, columns) / 7
    values = []
    for labels in permutations(np.repeat(np.arange(3), columns)):
        table = np.zeros((3, 3))
        np.add.at(table, (np.repeat(np.arange(3), rows), np.array(labels)), 1)
        values.append(((table - expected) ** 2 / expected).sum())
    mean, variance = chi_square_moments(rows, columns)
    assert mean == pytest.approx(np.mean(values))
    assert variance == pytest.approx(np.var(values))


@pytest.mark.parametrize("shape", [1, 2, 5, 50, 500])
@pytest.mark.parametrize("deviations", [-2, 0, 1, 3, 5])
def test_the_tail_of_a_gamma_distribution(shape, deviations):
    """For whole shapes it is that of Poisson's."""
    x = shape + deviations * math.sqrt(shape)
    if x <= 0:
        assert gamma_tail(x, shape) == 1
        return
    exact = sum(math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(shape))
    assert gamma_tail(x, shape) == pytest.approx(exact, rel=0.15, abs=0.003)


@pytest.mark.parametrize(("num_shards", "num_labels", "num_records"), [(64, 1000, 20_000)])
def test_random_tables_raise_no_alarm(num_shards, num_labels, num_records):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mix = mix_of(rng.integers(0, num_labels, num_records), num_shards)
        assert mix["deviating"] == []
        assert mix["evenness"]["p_value"] > 1e-4


@settings(max_examples=60)
@given(
    st.integers(0, 2**32), st.integers(2, 40), st.integers(2, 300), st.sampled_from([0.1, 1, 10])
)
def test_no_alarm_however_skewed_the_classes_are(seed, num_shards, num_labels, evenness):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(num_labels, evenness))
    mix = mix_of(rng.choice(num_labels, int(rng.integers(2, 4000)), p=shares), num_shards)
    assert not shards_differ(mix)


def test_a_million_cells_are_tested():
    rng = np.random.default_rng(0)
    table = rng.poisson(2, (1000, 1000)).astype(np.int64)
    table[17, 3] = 40
    cells, evenness = deviating_cells(lambda: iter(table), table.sum(axis=1))
    assert [(cell.shard, cell.label, cell.count) for cell in cells] == [(17, 3, 40)]
    assert cells[0].expected == pytest.approx(2, rel=0.1)
    assert evenness["p_value"] > 1e-6


def test_a_difference_that_does_not_matter_is_none():
    """A million records tell 50 from 51 percent apart; no training does."""
    table = np.array([[510_000, 490_000], [490_000, 510_000]])
    cells, evenness = deviating_cells(lambda: iter(table), table.sum(axis=1))
    assert cells == []
    assert evenness["p_value"] < 1e-20
    assert evenness["cramers_v"] == pytest.approx(0.02, rel=0.01)


def test_small_shards_that_no_cell_gives_away():
    """300 shards of 3 records: none of them is strange, all of them together are."""
    mix = mix_of(np.tile(np.repeat(np.arange(10), 30), 3), 300)
    assert mix["deviating"] == []
    assert mix["evenness"]["p_value"] < 1e-20
    assert shards_differ(mix)


# -- the mix ---------------------------------------------------------------------------------------


def test_counts_shares_and_shards():
    scans = [scan_of([2, 10, 2]), scan_of([10]), scan_of([])]
    scans[1].add(None, 2)
    mix = label_mix(table_of_scans(scans), shards(3))
    assert list(mix["counts"].items()) == [("2", 2), ("10", 2)]  # by size
    assert mix["shards"] == {"2": [2, 0, 0], "10": [1, 1, 0]}
    assert mix["initial_dist"] == {"2": 0.5, "10": 0.5}
    assert (mix["num_unlabelled"], mix["source"], mix["feature"]) == (2, "records", "y")
    assert (mix["deviating"], label_note(mix)) == ([], None)
    json.dumps(mix, allow_nan=False)


def test_a_shard_with_too_much_of_a_label_is_named():
    rng = np.random.default_rng(3)
    scans = dealt(rng.integers(0, 10, 8000), 8)
    scans[5].merge(scan_of([7] * 300))
    mix = label_mix(table_of_scans(scans), [(s, f"dir/s{s}") for s in range(8)])
    worst = mix["deviating"][0]
    assert (worst["path"], worst["shard_index"], worst["label"]) == ("dir/s5", 5, "7")
    assert worst["ratio"] == worst["count"] / worst["expected"] > 2
    assert worst["p_value"] < 1e-10
    assert {cell["path"] for cell in mix["deviating"]} == {"dir/s5"}
    assert label_note(mix).startswith(
        "labels are not spread evenly: dir/s5 has label '7' of 'y' in"
    )


def test_a_label_that_comes_many_times_in_a_record_is_one_record():
    """Twenty people in one picture do not make a shard special; the picture is dealt as one."""
    rng = np.random.default_rng(4)
    scans = []
    for _ in range(8):
        scan = LabelScan("y")
        scan.add([[b"person"] * int(n) or [b"none"] for n in rng.geometric(0.05, 100) - 10], 100)
        scans.append(scan)
    mix = label_mix(table_of_scans(scans), shards(8))
    assert sum(mix["counts"].values()) > 1500
    assert not shards_differ(mix)


def test_the_period_is_n():
    """Sorted by i mod N, a shard gets one class."""
    mix = mix_of(np.arange(4000) % 8, 8)
    assert mix["num_deviating"] == 64
    assert mix["deviating"][0]["ratio"] == pytest.approx(8)
    assert {(cell["shard_index"], cell["label"]) for cell in mix["deviating"] if cell["count"]} == {
        (s, str(s)) for s in range(8)
    }
    assert "and 63 more deviations" in label_note(mix)


def test_many_cells_are_counted_and_some_are_told():
    mix = mix_of(np.arange(40_000) % 40, 40)
    assert (mix["num_deviating"], len(mix["deviating"])) == (1600, 100)


def test_shards_that_would_be_too_many_are_left_out(monkeypatch):
    monkeypatch.setattr(label_mix_module, "MAX_CELLS", 8)
    mix = mix_of([0, 1, 2] * 100, 3)
    assert "shards" not in mix
    assert mix["num_deviating"] == 9
    assert "shards" in mix_of([0, 1] * 100, 4)


def test_what_is_no_label_has_no_mix(monkeypatch):
    assert label_mix(table_of_scans([]), []) == {}
    assert label_mix(table_of_scans([LabelScan("y")]), shards(1)) == {}
    monkeypatch.setattr(label_mix_module, "MAX_LABELS", 3)
    assert table_of_scans([scan_of([1, 2]), scan_of([3, 4])]) is None
    assert table_of_scans([scan_of([1, 2]), scan_of([2, 3])]) is not None
    with pytest.raises(ValueError, match="2 features"):
        table_of_scans([LabelScan("a"), LabelScan("b")])


# -- the same from a manifest ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "label",
    [
        pytest.param(lambda i: i * i % 7, id="int"),
        pytest.param(lambda i: f"c{i * i % 5}", id="text"),
        pytest.param(lambda i: [0.1, 2.0, -3.5][i % 3], id="float"),
        pytest.param(lambda i: None if i % 4 == 1 else i % 6, id="gaps"),
        pytest.param(lambda i: [i % 3, i % 5], id="several"),
    ],
)
def test_records_and_manifest_tell_the_same(label, tmp_path):
    items = [{"x": i, "y": label(i)} for i in range(1000)]
    manifest = sw.write(items, tmp_path / "t@6", label="y")
    paths = paths_of(tmp_path, manifest)
    read = label_mix(table_of_scans(scanned(paths, "y")), paths)
    known = label_mix(table_of_manifest(manifest), paths)
    assert (read.pop("source"), known.pop("source")) == ("records", "manifest")
    assert manifest.labels is not None
    assert read["counts"] == manifest.labels["counts"]
    assert read["shards"] == manifest.labels["shards"]
    if isinstance(label(0), list):  # a manifest does not count records
        assert not known["deviating"]
        assert read["deviating"]
        for key in ("deviating", "num_deviating", "evenness"):
            read.pop(key), known.pop(key, None)
    assert read == known


def test_a_manifest_with_shards_that_are_not_there(tmp_path):
    manifest = sw.write([{"y": i % 4} for i in range(400)], tmp_path / "t@4", label="y")
    paths = paths_of(tmp_path, manifest)[2:]
    mix = label_mix(table_of_manifest(manifest), paths)
    assert {cell["path"] for cell in mix["deviating"]} == {path for _, path in paths}
    assert {cell["shard_index"] for cell in mix["deviating"]} == {2, 3}
    assert sum(mix["counts"].values()) == 400


def test_a_manifest_without_labels_or_without_shards_of_them(tmp_path, monkeypatch):
    assert table_of_manifest(sw.write([{"x": 1}], tmp_path / "a@1")) is None
    monkeypatch.setattr("shardwriter.schema.labels.MAX_CELLS", 3)
    manifest = sw.write([{"y": i % 2} for i in range(8)], tmp_path / "b@2", label="y")
    mix = label_mix(table_of_manifest(manifest), paths_of(tmp_path, manifest))
    assert mix["initial_dist"] == {"0": 0.5, "1": 0.5}
    assert (mix["deviating"], "shards" in mix, "evenness" in mix) == ([], False, False)


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([0, 1, 1, 3], "initial_dist = [0.25, 0.5, 0, 0.25]  # labels 0 to 3"),
        ([-1, 1], "initial_dist = [0.5, 0.5]  # of '-1', '1'"),
        ([7, 1_000_000], "initial_dist = [0.5, 0.5]  # of '7', '1000000'"),
    ],
)
def test_a_line_to_paste(labels, text):
    mix = mix_of(labels, 1)
    assert initial_dist_text(mix) == text
    namespace = {}
    exec(initial_dist_text(mix), namespace)
    assert sum(namespace["initial_dist"]) == pytest.approx(1)


def test_too_many_labels_are_not_pasted():
    assert initial_dist_text(mix_of(np.arange(1001), 1)).startswith("# initial_dist has 1,001")
