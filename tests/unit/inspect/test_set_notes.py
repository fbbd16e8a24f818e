"""What the notes of a report say of a set as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.formats.example import encode_example
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.inspect import feature_stats


def test_files_that_differ_in_a_number_are_one_set(tmp_path: Path) -> None:
    for number in (2, 10, 1):
        with TFRecordWriter(tmp_path / f"train_{number}.tfrecord") as writer:
            for _ in range(number):
                writer.write(encode_example({"x": number}))
    for paths in (str(tmp_path), str(tmp_path / "train_*")):
        told = sw.stats(paths, features=True).to_json()
        assert [shard["num_records"] for shard in told["shards"]] == [1, 2, 10]
        assert len(told["sets"]) == 1
        assert told["balance"]["records_max_over_mean"] == pytest.approx(10 / (13 / 3))
        assert told["features"]["x"]["present"] == 13
    assert sw.stats(str(tmp_path / "train_1.tfrecord")).to_json()["num_records"] == 1


def test_a_label_that_no_record_has_is_told_of(tmp_path: Path) -> None:
    sw.write([{"x": i} for i in range(9)], tmp_path / "t@2")
    told = sw.stats(tmp_path / "t", label="y").to_json()
    assert any("no record has a value of 'y'" in note for note in told["notes"])


def test_files_that_follow_no_pattern_are_not_held_against_each_other(tmp_path: Path) -> None:
    for name in "abc":
        with TFRecordWriter(tmp_path / f"train_{name}.tfrecord") as writer:
            writer.write(encode_example({"x": 1}))
    report = sw.stats(str(tmp_path))
    assert len(report.sets) == 3
    assert [note[:26] for note in report.notes] == ["3 files have no names such"]
    assert sw.stats(str(tmp_path / "train_a.tfrecord")).notes == []


def test_features_without_statistics_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_stats, "MAX_FEATURES", 3)
    with TFRecordWriter(tmp_path / "t.tfrecord") as writer:
        writer.write(encode_example(dict.fromkeys("vwxyz", 1)))
    report = sw.stats(str(tmp_path), features=True)
    assert sorted(report.to_json()["features"]) == ["v", "w", "x"]
    assert ["in alphabetical order" in note for note in report.notes] == [True]
