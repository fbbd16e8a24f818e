"""A report held against that of an earlier set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspection_reports import feature, images, numbers, report_json, set_json

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.inspect.baseline import (
    _SCHEMA,
    Difference,
    compare,
    few,
    load_baseline,
    mix_distance,
)
from shardwriter.inspect.document import SCHEMA


def differ(old: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    """Compare two sets, of the names and sections that are given."""
    return compare(report_json(set_json(**new)), report_json(set_json(**old)))


def only(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, str, str]:
    (difference,) = differ(old, new)
    assert difference.detail.startswith("train")
    detail = difference.detail.split(": ", 1)[1]
    return difference.kind, difference.severity, detail


def x(**changes: Any) -> dict[str, Any]:
    return {"features": {"x": feature(**changes)}}


# -- sets ------------------------------------------------------------------------------------------


def test_nothing_has_changed() -> None:
    assert differ({}, {}) == []


def test_counts() -> None:
    assert only({}, {"num_records": 999, "labels": {}} | {"labels": set_json()["labels"]}) == (
        "records",
        "fail",
        "1 fewer records (999, were 1,000)",
    )
    (more,) = differ({}, {"num_records": 1100})
    assert (more.kind, more.severity, more.old, more.new) == ("records", "note", 1000, 1100)
    assert only({}, {"num_shards": 8})[:2] == ("shards", "note")
    assert only({}, {"compressions": ["gzip", "none"]}) == (
        "compression",
        "note",
        "compression gzip and none, was none",
    )


def test_sets_are_told_apart_by_name() -> None:
    old = report_json(set_json(name="train"), set_json(name="test"))
    new = report_json(set_json(name="test"), set_json(900, name="val"))
    assert [(d.kind, d.severity, d.set_name) for d in compare(new, old)] == [
        ("set-gone", "fail", "train"),
        ("set-new", "note", "val"),
    ]
    renamed = compare(report_json(set_json(name="b")), report_json(set_json(name="a")))
    assert renamed == []


def test_sets_of_one_name_in_several_folders() -> None:
    old = report_json(set_json(), set_json(500))
    new = report_json(set_json(), set_json(400))
    assert [d.set_name for d in compare(new, old) if d.kind == "records"] == ["train (2)"]


def test_a_damaged_baseline_is_worth_a_word() -> None:
    (told,) = compare(report_json(), report_json(num_defects=3))
    assert (told.kind, told.severity) == ("baseline", "note")
    assert "3 defects" in told.detail


def test_kinds() -> None:
    assert only({}, {"kinds": {"Example": 999, "empty": 1}}) == (
        "kinds",
        "fail",
        "1 record of kind 'empty'",
    )
    both = {"Example": 900, "text": 100}
    assert only({"kinds": both}, {"kinds": {"Example": 500, "text": 500}})[:2] == ("kinds", "fail")
    assert differ({"kinds": both}, {"kinds": {"Example": 950, "text": 50}}) == []
    assert differ({"kinds": both}, {"kinds": {}}) == []


# -- labels ----------------------------------------------------------------------------------------


def labels(**counts: int) -> dict[str, Any]:
    return {"labels": {"counts": counts, "feature": "label"}}


def test_labels() -> None:
    old = labels(a=500, b=490, c=10)
    assert differ(old, labels(a=510, b=480, c=10)) == []
    assert only(old, labels(a=500, b=500)) == (
        "label-gone",
        "fail",
        "no record has label 'c' now",
    )
    assert only(labels(a=500, b=498, c=2), labels(a=500, b=500))[:2] == ("label-gone", "note")
    assert only(old, labels(a=500, b=489, c=10, d=1)) == (
        "label-new",
        "fail",
        "1 record with new label 'd'",
    )
    assert only(old, labels(a=700, b=290, c=10)) == (
        "labels",
        "fail",
        "the label mix has moved by 20.0%",
    )
    kind, severity, detail = only(old, {"labels": {}})
    assert (kind, severity) == ("labels", "fail")
    assert detail.endswith("add --label label")
    other = {"labels": {"counts": {"a": 1000}, "feature": "kind"}}
    assert only(old, other)[2] == "labels are of feature 'kind', were of 'label'"
    assert differ({"labels": {}}, old) == []


@given(st.integers(0, 1000), st.integers(2, 200), st.integers(50, 5000))
def test_two_draws_of_one_mix_have_not_moved(seed: int, num_labels: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(num_labels))
    old, new = (rng.multinomial(count, shares) for _ in range(2))
    mixes = [{str(k): int(n) for k, n in enumerate(counts)} for counts in (old, new)]
    moved, limit = mix_distance(*mixes)
    assert moved <= limit
    assert mix_distance(mixes[0], mixes[0])[0] == 0


def test_half_of_a_mix_has_moved() -> None:
    assert mix_distance({"a": 1000}, {"a": 500, "b": 500})[0] == pytest.approx(0.5)
    assert mix_distance({}, {"a": 1})[0] == 0


# -- features --------------------------------------------------------------------------------------


def test_features_come_and_go() -> None:
    old, new = {"x": feature(), "y": feature()}, {"x": feature(), "z": feature()}
    assert [(d.kind, d.severity) for d in differ({"features": old}, {"features": new})] == [
        ("feature-gone", "fail"),
        ("feature-new", "note"),
    ]


def test_reports_with_and_without_features() -> None:
    kind, severity, detail = only(x(), {"features": {}})
    assert (kind, severity) == ("features", "fail")
    assert detail.endswith("add --features")
    assert only({"features": {}}, x())[:2] == ("features", "note")
    assert differ({"features": {}}, {"features": {}}) == []
    bare = {"features": {"x": {"kind": "int64", "present": 1000, "unset": 0}}}
    assert only(x(), bare) == (
        "features",
        "fail",
        "the baseline has statistics of features and this report has none: add --features",
    )
    assert differ(bare, x()) == []
    assert differ(bare, bare) == []


@pytest.mark.parametrize(
    ("old", "new", "kind", "detail"),
    [
        ({}, {"kind": "float", "dtype": "float32"}, "feature-kind", "kind is float, was int64"),
        ({}, {"dtype": "int8"}, "feature-dtype", "dtype is int8, was int64"),
        ({"shape": [28]}, {"shape": [None]}, "feature-shape", "shape is [None], was [28]"),
        ({}, {"encoding": "raw"}, "feature-encoding", "encoding is raw, was list"),
        (
            {"shape": [None]},
            {"shape": [None], "lengths": {"min": 1, "mean": 1.5, "max": 2}},
            "feature-length",
            "1 to 2 values, always were 1",
        ),
        (
            {},
            {"present": 999, "absent": 1},
            "feature-presence",
            "present in 99.9% of the records, was in 100.0%",
        ),
        (
            {"present": 900, "absent": 100},
            {"present": 700, "absent": 300},
            "feature-presence",
            "present in 70.0% of the records, was in 90.0%",
        ),
        ({}, {"unset": 1}, "feature-unset", "without a value in 0.1% of the records, was in 0.0%"),
    ],
)
def test_what_training_suffers_from(
    old: dict[str, Any], new: dict[str, Any], kind: str, detail: str
) -> None:
    assert only(x(**old), x(**new)) == (kind, "fail", detail)


def test_small_changes_of_presence_are_chance() -> None:
    assert differ(x(present=900, absent=100), x(present=880, absent=120)) == []
    assert differ(x(present=900, absent=100), x(present=950, absent=50)) == []
    assert differ(x(unset=100), x(unset=110)) == []


# -- values ----------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(5.0, 2.0, 20_000)


def values(array: Any) -> dict[str, Any]:
    return x(numbers=numbers(array))


def test_values_that_moved() -> None:
    assert only(values(NORMAL), values(NORMAL + 1))[:2] == ("values-mean", "fail")
    assert only(values(NORMAL), values(NORMAL / 255))[:2] == ("values-mean", "fail")
    wide = (NORMAL - 5) * 2 + 5
    kind, severity, detail = only(values(NORMAL), values(wide))
    assert (kind, severity) == ("values", "fail")
    assert detail.startswith("the distribution changed: ")
    assert only(values([3.0] * 100), values([4.0] * 100))[0] == "values-mean"
    assert differ(values([3.0] * 100), values([3.0] * 90)) == []
    flipped = [0] * 400 + [1] * 600
    assert only(values([0] * 700 + [1] * 300), values(flipped))[0] == "values-mean"


def test_values_that_stayed() -> None:
    assert differ(values(NORMAL), values(RNG.normal(5.0, 2.0, 20_000))) == []
    assert differ(values(NORMAL), values(RNG.normal(5.0, 2.0, 100))) == []


def test_a_range_that_grew_is_worth_a_word() -> None:
    far = np.concatenate((NORMAL, [90.0]))
    assert only(values(NORMAL), values(far))[:2] == ("values-range", "note")


def test_nan_and_infinity() -> None:
    nan = np.concatenate((NORMAL, [np.nan]))
    kind, severity, detail = only(values(NORMAL), values(nan))
    assert (kind, severity) == ("values-nan", "fail")
    assert detail == "0.0050% of the values are NaN, were 0.0%"
    infinite = x(
        numbers=numbers(np.concatenate((NORMAL, [np.inf]))) | {"max": "inf", "mean": "inf"}
    )
    assert only(values(NORMAL), infinite)[0] == "values-inf"
    assert differ(infinite, infinite) == []
    nothing = numbers([0.0]) | {"count": 0, "mean": None, "min": None, "max": None, "std": None}
    assert differ(values(NORMAL), x(numbers=nothing | {"quantiles": None})) == []


def test_a_few_more_nan_by_chance() -> None:
    nan = np.full(10, np.nan)
    few_nan = values(np.concatenate((NORMAL[:496], nan[:4])))
    assert differ(few_nan, values(np.concatenate((NORMAL[:490], nan)))) == []
    many_nan = values(np.concatenate((NORMAL[:460], np.full(40, np.nan))))
    assert only(few_nan, many_nan)[0] == "values-nan"


@given(
    st.integers(0, 10_000),
    st.sampled_from(["normal", "exponential", "geometric", "integers", "lognormal", "constant"]),
    st.integers(30, 3000),
    st.integers(30, 3000),
)
def test_two_draws_of_one_distribution_are_equal(
    seed: int, name: str, num_old: int, num_new: int
) -> None:
    rng = np.random.default_rng(seed)
    draw = {
        "normal": rng.standard_normal,
        "exponential": rng.standard_exponential,
        "geometric": lambda n: rng.geometric(0.3, n),
        "integers": lambda n: rng.integers(0, 10, n),
        "lognormal": lambda n: rng.lognormal(0, 1, n),
        "constant": lambda n: np.full(n, 7.5),
    }[name]
    told = differ(values(draw(num_old)), values(draw(num_new)))
    assert [d for d in told if d.severity == "fail"] == []


# -- bytes and images ------------------------------------------------------------------------------


def test_sizes() -> None:
    old, new = ({"min": 1, "mean": mean, "max": 900} for mean in (100.0, 300.0))
    assert only(x(value_bytes=old), x(value_bytes=new)) == (
        "feature-value-bytes",
        "note",
        "300.0 bytes a value in the mean, were 100.0",
    )


def test_images() -> None:
    old = x(images=images({"jpeg": 1000}))
    assert differ(old, old) == []
    assert only(old, x(images=images({"jpeg": 999, "png": 1}))) == (
        "image-format",
        "fail",
        "images of format 'png', was only 'jpeg'",
    )
    assert only(old, x(images=None))[:2] == ("image-format", "fail")
    both = x(images=images({"jpeg": 500, "png": 500}))
    assert only(both, x(images=images({"jpeg": 900, "png": 100})))[:2] == ("image-format", "fail")
    assert only(old, x(images=images({"jpeg": 1000}, num_broken=2)))[:2] == (
        "images-broken",
        "fail",
    )
    fixed = {"min": 32, "mean": 32.0, "max": 32}
    resized = x(images=images({"jpeg": 1000}, width={"min": 16, "mean": 30.0, "max": 32}))
    assert only(x(images=images({"jpeg": 1000}, width=fixed)), resized) == (
        "image-size",
        "fail",
        "width 16 to 32, was 32 to 32",
    )
    other = {"min": 100, "mean": 450.0, "max": 700}
    assert only(old, x(images=images({"jpeg": 1000}, width=other)))[:2] == ("image-size", "note")


# -- files -----------------------------------------------------------------------------------------


def test_a_baseline_of_a_real_set(dataset: Path, tmp_path: Path) -> None:
    assert _SCHEMA == SCHEMA
    report = sw.stats(str(dataset)).to_json()
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert compare(report, load_baseline(path)) == []
    (dataset / "t.tfrecord-00003-of-00004").write_bytes(b"")
    after = sw.stats(str(dataset)).to_json()
    assert [d.kind for d in compare(after, load_baseline(path))] == ["records"]


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("num_records",), "7"),
        (("kinds",), {"Example": -1}),
        (("labels",), {"counts": [3]}),
        (("features", "x"), "int64"),
        (("features", "x", "numbers"), {"mean": 1.5}),
        (("features", "x", "numbers", "quantiles"), {"half": 1.0}),
        (("features", "x", "numbers", "mean"), "much"),
        (("features", "x", "lengths"), {"min": 1}),
        (("features", "x", "images"), {"width": 3}),
        (("compressions",), [["none"]]),
    ],
)
def test_a_baseline_of_another_shape_is_refused(where: tuple[str, ...], value: Any) -> None:
    report = report_json(set_json(features={"x": feature(numbers=numbers(np.arange(9.0)))}))
    baseline = json.loads(json.dumps(report))
    inner = baseline["sets"][0]
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(OptionError, match="not a report of shard-stats") as caught:
        compare(report, baseline)
    assert "$.sets[0]" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is not JSON"),
        ("[]", "not a report of shard-stats"),
        ('{"a": 1}', "not a report of shard-stats"),
        ('{"schema": "shardwriter.stats/2"}', "version 'shardwriter.stats/2'"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_baseline(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=message) as caught:
        load_baseline(path)
    assert caught.value.path == str(path)
    assert caught.value.hint
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is not JSON"):
        load_baseline(path)
    path.unlink()
    with pytest.raises(OptionError, match="can not be read: No such file"):
        load_baseline(path)


def test_names_are_cut() -> None:
    assert few(["a", "b"]) == "'a', 'b'"
    assert few([str(i) for i in range(7)]).endswith("'4' and 2 more")
