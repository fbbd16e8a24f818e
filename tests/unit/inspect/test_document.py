"""The JSON schema of the report: real reports follow it, and a slip does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from report_json import FEATURES, full_report, report_json

import shardwriter as sw
from shardwriter.inspect.document import SCHEMA
from shardwriter.inspect.split_policies import PlanOptions

SCHEMA_FILE = files("shardwriter").joinpath("inspect", "stats.schema.json")
SCHEMA_JSON = json.loads(SCHEMA_FILE.read_text("utf-8"))

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA_JSON)


def slips(report: Any) -> list[str]:
    """What is wrong with a report, after a way through JSON."""
    told = json.loads(json.dumps(report, allow_nan=False))
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(told)]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA_JSON)
    assert SCHEMA_JSON["properties"]["schema"]["const"] == SCHEMA


def test_reports_made_by_hand_follow_it() -> None:
    assert slips(report_json()) == []
    assert slips(full_report()) == []


def test_reports_of_real_files_follow_it(data_dir: Path) -> None:
    for entry in json.loads((data_dir / "_derived/fixture/tf_verdicts.json").read_text()):
        assert slips(sw.stats(data_dir / entry["file"]).to_json()) == [], entry["file"]


def test_reports_of_our_sets_follow_it(tmp_path: Path) -> None:
    items = [{"id": i, "label": "ab"[i % 2], "x": [0.5, float(i)]} for i in range(26)]
    sw.write(items, tmp_path / "t@4", label="label")
    assert slips(sw.stats(tmp_path / "t").to_json()) == []
    assert slips(sw.verify(tmp_path / "t").to_json()) == []
    plan = PlanOptions(world=3, loader_workers=2, batch_size=4)
    whole = sw.stats(tmp_path / "t", features=True, label="label", plan=plan)
    assert slips(whole.to_json()) == []
    shard = tmp_path / "t.tfrecord-00001-of-00004"
    shard.write_bytes(shard.read_bytes()[:-3])
    assert slips(sw.stats(tmp_path / "t").to_json()) == []
    sw.write([b""], tmp_path / "u@2")
    assert slips(sw.stats(tmp_path, features=True, label="x", plan=plan).to_json()) == []


def test_reports_of_other_peoples_files_follow_it(data_dir: Path) -> None:
    plan = PlanOptions(world=2, batch_size=2)
    for name in json.loads((data_dir / "expected.json").read_text()):
        report = sw.stats(data_dir / name, features=True, label="label", plan=plan)
        assert slips(report.to_json()) == [], name


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there are objects with keys of their own, and not of the data."""
    if isinstance(value, dict):
        free = path[-1:] in [("kinds",), ("counts",), ("shards",), ("initial_dist",), ("features",)]
        if path[-1:] not in [("expected",), ("found",), ("formats",)] and not free:
            yield path
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


@pytest.mark.parametrize("place", list(places(full_report())), ids=str)
def test_an_unknown_key_is_a_slip_wherever_it_is(place: tuple[Any, ...]) -> None:
    report = copy.deepcopy(full_report())
    inner: Any = report
    for step in place:
        inner = inner[step]
    inner["num_recrods"] = 1
    assert slips(report)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("num_records", None, -1),
        ("check", None, "all"),
        ("schema", None, "shardwriter.stats/2"),
        ("verdict", None, None),
        ("defects", None, [{"kind": "x"}]),
        ("shards", None, {}),
        ("features", "label", {**FEATURES["label"], "kind": "int32"}),
        ("features", "label", {**FEATURES["label"], "present": 1.5}),
        ("record_bytes", "max", "300"),
        ("balance", "records_cv", "NaN"),
    ],
)
def test_a_wrong_value_is_a_slip(section: str, key: str | None, value: Any) -> None:
    report = copy.deepcopy(full_report())
    if key is None:
        report[section] = value
    else:
        report[section][key] = value
    assert slips(report)


def described(schema: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    if isinstance(schema, dict):
        for name, inner in schema.get("properties", {}).items():
            yield f"{path}.{name}", inner
        for key, inner in schema.items():
            yield from described(inner, f"{path}.{key}")
    elif isinstance(schema, list):
        for number, inner in enumerate(schema):
            yield from described(inner, f"{path}[{number}]")


def test_every_key_says_what_it_is() -> None:
    plain = {"min", "mean", "max", "estimate", "low", "high"}
    for path, entry in described(SCHEMA_JSON):
        name = path.rpartition(".")[2]
        target = entry
        if "$ref" in entry and "description" not in entry:
            target = SCHEMA_JSON["$defs"][entry["$ref"].rpartition("/")[2]]
        words = "description" in target or target.get("properties")
        assert words or name in plain or name[0].isdigit(), path
