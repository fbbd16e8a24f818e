"""Items that are no mappings: names for their parts."""

from __future__ import annotations

import collections
import enum
import json
from dataclasses import dataclass

import numpy as np
import pytest
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import FeatureError, OptionError
from shardwriter.writing.options import DatasetOptions, RunOptions

Point = collections.namedtuple("Point", ["x", "y"])
PAIRS = [(i, f"item {i}") for i in range(20)]
PLAIN = [{"x": i, "y": f"item {i}"} for i in range(20)]


@dataclass
class Row:
    x: int
    y: str


class Pairs:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return PAIRS[index]


def shards(path, source, **options):
    manifest = sw.write(source, path / "d@3", **options)
    return manifest, [(path / f"d.tfrecord-0000{s}-of-00003").read_bytes() for s in range(3)]


@pytest.mark.parametrize(
    "source",
    [
        PAIRS,
        [list(pair) for pair in PAIRS],
        Pairs(),
        lambda: iter(PAIRS),
        [Point(*pair) for pair in PAIRS],
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_parts_are_called_as_the_names_say(tmp_path, source, workers):
    expected = shards(tmp_path / "plain", PLAIN)[1]
    for names in (("x", "y"), ["x", "y"], "x,y"):
        found = shards(tmp_path / str(names), source, names=names, workers=workers)[1]
        assert found == expected


@pytest.mark.parametrize("make", [Point, Row])
def test_named_tuples_and_dataclasses_need_none(tmp_path, make):
    expected = shards(tmp_path / "plain", PLAIN)[1]
    assert shards(tmp_path / "own", [make(*pair) for pair in PAIRS])[1] == expected
    by_map = shards(tmp_path / "map", PAIRS, map=lambda pair: make(*pair))[1]
    assert by_map == expected


def test_a_lone_value_is_one_part(tmp_path):
    sw.write(np.arange(6).reshape(3, 2), tmp_path / "d@1", names=("row",))
    assert [r["row"].tolist() for r in sw.open(tmp_path / "d")] == [[0, 1], [2, 3], [4, 5]]


def test_a_map_gets_the_named_parts(tmp_path):
    sw.write(PAIRS, tmp_path / "d@1", names="x,y", map=lambda item: {"z": 2 * item["x"]})
    assert [r["z"] for r in sw.open(tmp_path / "d")] == [2 * i for i in range(20)]


def test_a_key_may_be_one_of_them(tmp_path):
    first = shards(tmp_path / "a", PAIRS, names="x,y", order="key", key="x")[1]
    assert shards(tmp_path / "b", PAIRS[::-1], names="x,y", order="key", key="x")[1] == first
    rows = [Row(*pair) for pair in PAIRS]
    assert shards(tmp_path / "c", rows, order="key", key="x")[1] == first


@pytest.mark.parametrize(
    ("items", "what"),
    [
        ([(1, 2), (1, 2, 3)], "3 parts, but there are 2 names: x, y"),
        ([(1, 2), [1]], "1 part, but there are 2 names"),
        ([(1, 2), 5], "1 part, but"),
        ([(1, 2), {"x": 1, "y": 2}], "of type dict, whose features have names"),
        ([(1, 2), Row(1, "2")], "of type Row, whose features have names"),
    ],
)
def test_another_number_of_parts_is_the_items_own_fault(tmp_path, items, what):
    with pytest.raises(FeatureError, match=what) as caught:
        sw.write(items, tmp_path / "d@2", names="x,y")
    assert caught.value.index == 1
    manifest = sw.write(items, tmp_path / "d@2", names="x,y", on_error="skip")
    assert list(manifest.gaps) == [1]


def test_a_tuple_without_names_says_how_to_give_them(tmp_path):
    with pytest.raises(FeatureError, match="of type tuple, not a mapping") as caught:
        sw.write(PAIRS, tmp_path / "d@2")
    assert 'names="image,label"' in str(caught.value)
    with pytest.raises(FeatureError, match="of type Color, not a mapping"):
        sw.write([enum.Enum("Color", "RED").RED], tmp_path / "d@2")


@pytest.mark.parametrize("names", [(), ("x", "x"), ("x", ""), ("x", 5), ["x"]])
def test_what_are_no_names(names):
    with pytest.raises(OptionError, match="names"):
        DatasetOptions(names=names)


def test_names_are_a_part_of_the_job(tmp_path):
    jobs = [
        shards(tmp_path / str(n), PAIRS, names=names)[0].job
        for n, names in enumerate(["x,y", "x,y", "y,x"])
    ]
    assert jobs[0] == jobs[1] != jobs[2]


def test_a_source_with_names_of_its_own(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(OptionError, match="kind csv have names already"):
        sw.write(tmp_path / "t.csv", tmp_path / "d@1", names="x,y")


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "swt_pairs.py").write_text("def train():\n    return [(1, b'a'), (2, b'b')]\n")
    command = ["write", "swt_pairs:train", "out/d@2", "--names", "id,blob", "-j", "1"]
    planned = CliRunner().invoke(app, [*command, "--dry-run", "--json"])
    assert set(json.loads(planned.stdout)["features"]) == {"id", "blob"}
    assert CliRunner().invoke(app, command).exit_code == 0
    assert [r["id"] for r in sw.open("out/d")] == [1, 2]


def test_a_run_with_other_names_is_not_gone_on_with(tmp_path):
    def bad(item):
        raise ValueError("never")

    run = RunOptions(mark_s=0)
    with pytest.raises(sw.DataError):
        sw.write(Pairs(), tmp_path / "d@2", names="x,y", map=bad, run=run)
    out = sw.write(Pairs(), tmp_path / "d@2", names="x,y", resume=True)
    assert out.num_records == 20
