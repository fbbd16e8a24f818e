"""Warnings about data: one for each code and feature, whoever meets it first; ``strict``."""

from __future__ import annotations

import json
import logging
import warnings

import pytest

import shardwriter as sw
from shardwriter.dataset.naming import parse_output
from shardwriter.errors import DataWarning, ShardwriterWarning, SourceError
from shardwriter.schema.record_stats import DataWarnings, RecordStats, from_manifest, to_manifest
from shardwriter.sources.find import open_source
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.write import write_dataset


def warning(index=None, feature="x", code="float-precision", **more):
    return DataWarning(code, f"{feature} at {index}", feature=feature, index=index, **more)


def test_the_warning_of_the_first_item_stays_in_any_order():
    some = [warning(7), warning(3), warning(5, "y"), warning(9), warning(3, code="text-column")]
    for order in (some, some[::-1]):
        found = list(DataWarnings(order))
        assert [(w.code, w.feature, w.index) for w in found] == [
            ("float-precision", "x", 3),
            ("float-precision", "y", 5),
            ("text-column", "x", 3),
        ]


def test_a_state_without_warnings_is_read_as_before():
    learnt = RecordStats.of("label", 2)
    state = learnt.to_state()
    assert "warnings" not in state
    assert not RecordStats.from_state(state, 2).warnings
    learnt.warnings.add(warning(3, value="1.1", stored="1.0", hint="do this"))
    again = RecordStats.from_state(json.loads(json.dumps(learnt.to_state())), 2)
    assert [vars(w) for w in again.warnings] == [vars(w) for w in learnt.warnings]


def test_a_manifest_names_no_folder():
    metadata = to_manifest([warning(3, path="/data/people/a.csv", line=4)])
    (entry,) = metadata["warnings"]
    assert entry["file"] == "a.csv"
    assert "path" not in entry
    assert from_manifest(metadata)[0].path == "a.csv"
    assert from_manifest({"warnings": "none"}) == []
    assert to_manifest([]) == {}


@pytest.fixture
def source():
    found = open_source([{"a": 1}, {"a": 2}])
    found.warnings = [warning(1, "a", "text-column", path="/data/a.csv", hint="--schema a=string")]
    return found


def write(source, out, notices=None, **options):
    return write_dataset(
        lambda: source,
        parse_output(str(out)),
        DatasetOptions(),
        RunOptions(**options),
        notices=notices,
    )


def test_a_source_warns_through_warnings(source, tmp_path):
    with pytest.warns(DataWarning, match="a at 1") as found:
        manifest = write(source, tmp_path / "a@2")
    assert len(found) == 1
    assert manifest.metadata["warnings"] == [
        {
            "code": "text-column",
            "feature": "a",
            "file": "a.csv",
            "hint": "--schema a=string",
            "index": 1,
            "message": "a at 1",
        }
    ]
    assert sw.load_manifest(tmp_path / "a.manifest.json").metadata == manifest.metadata


def test_strict_makes_a_sources_warning_an_error(source, tmp_path):
    with pytest.raises(SourceError, match="a at 1") as caught:
        write(source, tmp_path / "a@2", strict=True)
    assert caught.value.hint == "--schema a=string"
    assert not list(tmp_path.iterdir())


def test_a_warning_is_of_the_line_that_called(tmp_path):
    with pytest.warns(DataWarning, match="no items") as found:
        sw.write([], tmp_path / "a@2")
    assert found[0].filename == __file__
    with pytest.raises(SourceError, match="no items"):
        sw.write([], tmp_path / "b@2", strict=True)
    with pytest.raises(SourceError, match="no items"):
        sw.write(iter([]), tmp_path / "b@2", strict=True)
    assert not (tmp_path / "b.manifest.json").exists()


def test_notify_gets_lines_in_place_of_warnings(source, tmp_path):
    from shardwriter.writing.notices import Notices

    lines = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(source, tmp_path / "a@2", Notices(lines.append))
    assert "a at 1. --schema a=string" in lines


def test_a_hint_of_a_problem_is_a_warning_and_information_is_logged(tmp_path, caplog):
    items = [{"a": 1}] * 3
    with pytest.warns(ShardwriterWarning, match="no record has the label 'b'"):
        sw.write(items, tmp_path / "a@2", label="b")
    caplog.set_level(logging.INFO, "shardwriter")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sw.write(items, tmp_path / "b@4")
        sw.write(items, tmp_path / "b@4", resume=True)
    assert "nothing to do" in caplog.text
    assert "1 of 4 shards are empty" in caplog.text
