"""The files of a dataset, which of them a rank reads, and how classes are resampled."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.dataset import RankPartition
from shardwriter.errors import OptionError
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.reading.record_files import (
    RecordFiles,
    as_dataset,
    can_assign_files,
    class_mix,
    plan_resampling,
    reads_all_note,
    record_files,
)
from shardwriter.schema.feature_types import FeatureType

# -- files and ranks -------------------------------------------------------------------------------


def files_with(counts, gaps=()):
    """Files of so many records each."""
    return RecordFiles(
        tuple(f"/t-{shard}" for shard in range(len(counts))),
        np.array(counts, np.int64),
        mean_bytes=10,
        compression="none",
        gaps=np.array(gaps, np.int64),
        starts=lambda shard: np.array([shard], np.int64),
    )


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_the_files_of_a_dataset_are_listed_with_their_records(tmp_path, compression):
    records = [bytes(10 + i % 3) for i in range(22)]
    sw.write(records, tmp_path / "t@4", compression=compression)
    files = record_files(as_dataset(tmp_path / "t"))
    assert [list(map(bytes, read_records(path))) for path in files.paths] == [
        records[shard::4] for shard in range(4)
    ]
    assert files.counts.tolist() == [6, 6, 5, 5]
    assert files.num_records == 22
    assert files.mean_bytes == sum(map(len, records)) // 22
    assert files.gaps.tolist() == []
    assert files.is_regular
    assert (files.starts is None) is (compression != "none")


def test_records_of_a_plain_shard_begin_behind_each_other(tmp_path):
    records = [bytes(i) for i in range(9)]
    sw.write(records, tmp_path / "t@2")
    files = record_files(sw.open(tmp_path / "t"))
    assert files.starts is not None
    for shard in range(2):
        sizes = [16 + len(record) for record in records[shard::2]]
        assert files.starts(shard).tolist() == [0, *itertools.accumulate(sizes)][:-1]


def test_files_without_their_manifest_have_the_mean_of_the_files_bytes(tmp_path):
    sw.write([bytes(20)] * 8, tmp_path / "t@2")
    (tmp_path / "t.manifest.json").unlink()
    files = record_files(sw.open(tmp_path / "t"))
    assert files.counts.tolist() == [4, 4]
    assert files.mean_bytes == 36  # with the frame around each payload


def test_a_dataset_without_records_has_files_of_none(tmp_path):
    sw.write([], tmp_path / "t@2")
    files = record_files(sw.open(tmp_path / "t"))
    assert files.counts.tolist() == [0, 0]
    assert files.mean_bytes == 1
    assert files.is_regular


@pytest.mark.parametrize("has_manifest", [True, False])
def test_gaps_are_known_where_they_change_the_order(tmp_path, has_manifest):
    def drop(*items):
        return lambda item: sw.SKIP if item["i"] in items else item

    data = [{"i": i} for i in range(12)]
    sw.write(data, tmp_path / "t@2", map=drop(3, 4))
    sw.write(data, tmp_path / "u@2", map=drop(10, 11))  # behind the last record
    if not has_manifest:
        (tmp_path / "t.manifest.json").unlink()
        (tmp_path / "u.manifest.json").unlink()
    files = record_files(sw.open(tmp_path / "t"))
    assert files.gaps.tolist() == [3, 4]
    assert not files.is_regular
    files = record_files(sw.open(tmp_path / "u"))
    assert files.gaps.tolist() == []
    assert files.is_regular


def test_a_view_has_no_files_of_its_own(tmp_path):
    sw.write([b"x"] * 8, tmp_path / "t@2")
    dataset = sw.open(tmp_path / "t")
    assert as_dataset(dataset) is dataset
    with pytest.raises(OptionError):
        record_files(dataset[:3])


def test_a_rank_takes_every_world_th_file():
    files = files_with([5, 5, 4, 4, 4, 4])
    mine = files.of_rank(1, 3)
    assert mine.paths == ("/t-1", "/t-4")
    assert mine.counts.tolist() == [5, 4]
    assert mine.starts is not None
    assert [mine.starts(0).tolist(), mine.starts(1).tolist()] == [[1], [4]]


@pytest.mark.parametrize(
    ("counts", "gaps", "world", "in_order", "expected"),
    [
        ([3, 3, 2, 2], [], 2, True, True),
        ([3, 3, 2, 2], [], 4, True, True),
        ([3, 3, 2, 2], [], 3, True, False),  # 3 does not divide 4 files
        ([3, 3, 2, 2], [], 3, False, False),
        ([3, 2, 2, 3], [], 2, True, False),  # not the source order ...
        ([3, 2, 2, 3], [], 2, False, True),  # ... yet 5 records for each rank
        ([3, 3, 2, 2], [4], 2, True, False),
        ([3, 3, 2, 2], [4], 2, False, True),
        ([4, 2, 2, 2], [], 2, False, False),  # 6 and 4
        ([2, 3], [], 2, False, False),  # rank 0 has the odd record
        ([3, 2], [], 2, False, True),
    ],
)
def test_ranks_read_whole_files_where_these_hold_their_records(
    counts, gaps, world, in_order, expected
):
    share = RankPartition(sum(counts), world, 0, "pad")
    assert can_assign_files(files_with(counts, gaps), share, in_order) is expected


def test_a_note_names_numbers_of_shards_that_ranks_can_share():
    note = reads_all_note(files_with([10] * 5), 4)
    assert "4 or 8 shards" in note
    assert "or" not in reads_all_note(files_with([1]), 4).split()  # no number would do
    assert " 4 or " not in reads_all_note(files_with([10] * 4), 4)  # which there are already


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
    with pytest.raises(OptionError, match="'v'"):
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
    with pytest.raises(OptionError, match=r"'y' = '\\\\xff'"):
        class_mix(tmp_path / "t")
    assert class_mix(tmp_path / "t", {"a": 1}).target == {"a": 1}
    sw.write([{"y": i % 2} for i in range(40)], tmp_path / "u@2")
    with pytest.raises(OptionError, match="'x': it is an integer"):
        class_mix(tmp_path / "u", label="y", counts={"x": 3})
