"""Finding records by a value, as a function and as people run it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from fnmatch import fnmatchcase

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.reading.find import WantedValue, find_records

NUM_ITEMS = 60


def features(i):
    if i % 10 == 7:
        return sw.SKIP
    return {
        "image/filename": f"n{i:03}.jpg",
        "label": i % 5,
        "score": i / 7,
        "flag": i % 2 == 0,
        "tags": [f"t{i % 3}", "all"],
        "ids": np.array([i, -i, 2**40 + i]),
        "note": "label" if i == 3 else str(i),
    }


@pytest.fixture
def dataset(tmp_path):
    sw.write(range(NUM_ITEMS), tmp_path / "train@4", map=features)
    return tmp_path / "train"


def items(dataset, feature, value):
    return [found.source_index for found in find_records(str(dataset), WantedValue(feature, value))]


def wanted(condition):
    return [i for i in range(NUM_ITEMS) if i % 10 != 7 and condition(i)]


def test_the_location_of_a_key(dataset):
    (found,) = find_records(str(dataset), WantedValue("image/filename", "n038.jpg"))
    assert found.source_index == 38
    assert found.index == 38 - 4  # four items in front of it were skipped
    assert found.shard == 38 % 4
    assert found.path == f"{dataset}.tfrecord-00002-of-00004"
    payloads = list(sw.read_records(found.path))
    example = sw.decode_example(payloads[found.record_index])
    assert example["image/filename"] == [b"n038.jpg"]


@pytest.mark.parametrize(
    ("feature", "value", "condition"),
    [
        ("label", "3", lambda i: i % 5 == 3),
        ("label", "-3", lambda i: False),
        ("label", "99999999999999999999999", lambda i: False),
        ("label", "3.0", lambda i: False),
        ("label", "label", lambda i: False),
        ("score", str(11 / 7), lambda i: i == 11),
        ("score", "0", lambda i: i == 0),
        ("score", "nan", lambda i: False),
        ("flag", "true", lambda i: i % 2 == 0),
        ("flag", "False", lambda i: i % 2),
        ("flag", "1", lambda i: i % 2 == 0),
        ("tags", "t1", lambda i: i % 3 == 1),
        ("tags", "all", lambda i: True),
        ("ids", "-12", lambda i: i == 12),
        ("ids", str(2**40 + 20), lambda i: i == 20),
        ("note", "14", lambda i: i == 14),
        ("note", "label", lambda i: i == 3),
        ("image/filename", "n03", lambda i: False),
    ],
)
def test_values_of_all_kinds(dataset, feature, value, condition):
    assert items(dataset, feature, value) == wanted(condition)


@pytest.mark.parametrize(
    ("pattern", "condition"),
    [
        ("*03*", lambda i: 30 <= i < 40 or i == 3),
        ("n0?3.jpg", lambda i: i % 10 == 3),
        ("n0[12]*", lambda i: 10 <= i < 30),
        ("n0[!0-4]?.jpg", lambda i: i >= 50),
        ("*", lambda i: True),
        ("N0*", lambda i: False),
        ("*.png", lambda i: False),
        ("n0[1", lambda i: False),
    ],
)
def test_texts_match_patterns(dataset, pattern, condition):
    assert items(dataset, "image/filename", pattern) == wanted(condition)
    assert items(dataset, "label", pattern) == []  # numbers do not


def test_a_pattern_matches_one_value_of_several_and_characters_and_not_bytes(tmp_path):
    values = [["b", "naïve"], ["naive"], [b"na\xffve", "x"], [], ["line\nve"]]
    sw.write([{"name": value} for value in values], tmp_path / "t@2")
    assert items(tmp_path / "t", "name", "na?ve") == [0, 1, 2]
    assert items(tmp_path / "t", "name", "*ve") == [0, 1, 2, 4]


@pytest.mark.parametrize("text", ["a[1]*", "what?", "[", "]*[", "[a", "*]x"])
def test_a_value_that_looks_like_a_pattern_is_found(tmp_path, text):
    others = ["a1", "a1b", "whatX", "other", "a", "]x", "x]x"]
    sw.write([{"name": name} for name in [*others, text]], tmp_path / "t@2")
    path = str(tmp_path / "t")
    assert len(others) in items(path, "name", text)
    exact = find_records(path, WantedValue("name", text, exact=True))
    assert [found.source_index for found in exact] == [len(others)]


@given(st.text("ab[]*?!-", max_size=6), st.text("ab[]*?!-", max_size=6))
def test_patterns_are_those_of_fnmatch(pattern, text):
    found = WantedValue("name", pattern).rows([sw.encode_example({"name": text})])
    assert found == [0] * (text == pattern or fnmatchcase(text, pattern))


def test_nan_is_found_as_nan(tmp_path):
    sw.write([{"x": 1.0}, {"x": float("nan")}], tmp_path / "t@1")
    assert items(tmp_path / "t", "x", "nan") == [1]


def test_other_payloads_are_passed_by(tmp_path):
    payloads = [b"\xff\xff label no proto", sw.encode_example({"label": 4}), b"label"]
    with sw.TFRecordWriter(tmp_path / "t-00000-of-00001") as writer:
        for payload in payloads * 3:
            writer.write(payload)
    found = list(find_records(str(tmp_path / "t-00000-of-00001"), WantedValue("label", "4")))
    assert [record.record_index for record in found] == [1, 4, 7]
    assert not list(find_records(str(tmp_path / "t-00000-of-00001"), WantedValue("other", "4")))


def test_over_the_bounds_of_blocks(tmp_path):
    sw.write(({"x": i, "s": f"v{i % 1500}"} for i in range(5_000)), tmp_path / "t@3")
    assert items(tmp_path / "t", "x", "4097") == [4097]
    assert items(tmp_path / "t", "s", "v1023") == [1023, 2523, 4023]


def test_a_name_that_the_manifest_does_not_know(dataset):
    with pytest.raises(OptionError, match="no feature 'image/filenam'") as caught:
        items(dataset, "image/filenam", "x")
    assert "image/filename" in caught.value.hint


def test_iteration_may_stop_early(dataset):
    with closing(find_records(str(dataset), WantedValue("tags", "all"))) as found:
        assert next(found).index == 0


def run(*arguments):
    command = [sys.executable, "-m", "shardwriter", "find", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(dataset):
    done = run(dataset, "image/filename=n038.jpg")
    assert done.returncode == 0
    assert done.stdout == f"record 34  item 38  {dataset}.tfrecord-00002-of-00004 [9]\n"
    assert done.stderr == ""
    lines = run(dataset, "label=3", "--json", "--limit", 2).stdout.splitlines()
    assert [json.loads(line)["source_index"] for line in lines] == [3, 8]
    assert json.loads(lines[0]) == {
        "index": 3,
        "path": f"{dataset}.tfrecord-00003-of-00004",
        "record_index": 0,
        "shard": 3,
        "source_index": 3,
    }
    assert len(run(dataset, "label=3", "--first").stdout.splitlines()) == 1


def test_the_command_where_there_is_nothing(dataset):
    done = run(dataset, "image/filename=nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no record has image/filename=nobody" in done.stderr
    assert "in part" not in done.stderr
    part = run(dataset, "image/filename=n04")
    assert part.returncode == 1
    assert (
        "note: 'n040.jpg' contains it; to match parts: "
        f"shardwriter find {dataset} 'image/filename=*n04*'" in part.stderr.splitlines()
    )
    assert run(dataset, "image/filename=*n04*").returncode == 0
    assert run(dataset, "image/filename==*n04*").returncode == 1
    assert run(dataset, "image/filename==n040.jpg").returncode == 0
    done = run(dataset, "nobody")
    assert done.returncode == 2
    assert "is not FEATURE=VALUE" in done.stderr
    assert run(dataset, "labels=3").returncode == 2


def test_its_help_fits_80_columns():
    done = run("--help")
    assert done.returncode == 0
    assert "Example: shardwriter find" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_value_that_is_no_utf8_is_found_by_its_bytes(tmp_path):
    sw.write([{"name": b"a"}, {"name": b"caf\xe9.jpg"}], tmp_path / "t@2")
    value = b"caf\xe9.jpg".decode(errors="surrogateescape")  # as sys.argv has it
    assert items(tmp_path / "t", "name", value) == [1]
