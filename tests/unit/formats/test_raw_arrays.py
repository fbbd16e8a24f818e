"""Arrays that are stored as their bytes: every dtype comes back, in every reader of ours."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import FeatureError, MissingExtra, OptionError, SchemaConflict
from shardwriter.formats.feature_values import RAW_DTYPES, dtype_named
from shardwriter.reading.find import WantedValue, find_records
from shardwriter.reading.show import read_some

NUMPY_DTYPES = [dtype for dtype in RAW_DTYPES if dtype != "bfloat16"]


def some(dtype, shape, seed=0):
    bits = np.random.default_rng(seed).integers(0, 2, (*shape, np.dtype(dtype).itemsize), "u1")
    return bits.view(dtype).reshape(shape)


def assert_equal(found, array):
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_every_dtype_comes_back_in_rows_and_in_columns(tmp_path, dtype, shape):
    arrays = [some(dtype, shape, seed) for seed in range(5)]
    manifest = sw.write([{"x": sw.raw(a)} for a in arrays], tmp_path / "t@2")
    told = manifest.schema["features"]["x"]
    assert (told["dtype"], told["encoding"], told["shape"]) == (dtype, "raw", list(shape))
    data = sw.open(tmp_path / "t")
    for found, array in zip(data, arrays, strict=True):
        assert_equal(found["x"], array)
    assert_equal(data.columns(range(5))["x"], np.stack(arrays))


def test_the_record_holds_the_bytes_and_nothing_more():
    array = np.arange(6, dtype=">i2").reshape(2, 3)[:, ::2]
    packed = sw.encode_example({"x": sw.raw(array)})
    assert packed == sw.encode_example({"x": array.astype("<i2").tobytes()})
    large = np.arange(5000, dtype="<f8")
    assert sw.encode_example({"x": sw.raw(large)}) == sw.encode_example({"x": large.tobytes()})


def test_bfloat16_comes_back(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    array = np.array([0.5, -2, 3]).astype(ml_dtypes.bfloat16)
    sw.write([{"x": sw.raw(array)}], tmp_path / "t@1")
    assert_equal(sw.open(tmp_path / "t")[0]["x"], array)
    assert dtype_named("bfloat16") == array.dtype


def test_bfloat16_without_its_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingExtra, match="ml_dtypes"):
        sw.write([{"x": [1.0]}], tmp_path / "t@1", schema="x=raw:bfloat16")


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.array([{}]), "object"),
        (np.array(["a"]), "<U1"),
        (np.array([b"a"]), "S1"),
        (np.zeros(1, "M8[s]"), "datetime64"),
        (np.zeros(1, "i4,f4"), "f0"),
        (np.ma.zeros(2), "masked"),
        (np.zeros(1, np.longdouble), "float128"),
    ],
)
def test_other_dtypes_are_refused_by_name(array, named):
    if array.dtype == np.float64 and named == "float128":
        pytest.skip("long double is double here")
    with pytest.raises(FeatureError, match=named):
        sw.raw(array)


@pytest.mark.parametrize("workers", [1, 2])
def test_two_dtypes_in_one_feature_name_both_items(tmp_path, workers):
    items = [{"x": sw.raw(np.zeros(2, dtype))} for dtype in ("f4", "f4", "f8")]
    with pytest.raises(SchemaConflict, match=r"item 2.*float64.*float32.*in item [01]"):
        sw.write(items, tmp_path / "t@3", workers=workers)


def test_raw_bytes_and_a_list_are_two_types(tmp_path):
    items = [{"x": np.zeros(2)}, {"x": sw.raw(np.zeros(2))}]
    with pytest.raises(SchemaConflict, match="item 1"):
        sw.write(items, tmp_path / "t@1")


def test_a_list_of_raw_arrays_says_what_to_do():
    with pytest.raises(FeatureError, match="list of raw arrays"):
        sw.encode_example({"x": [sw.raw(np.zeros(2)), sw.raw(np.zeros(2))]})


def test_a_length_that_varies_needs_no_declaration_and_absent_stays_absent(tmp_path):
    arrays = [some("u2", (k, 2)) for k in (0, 1, 4)]
    items = [{"x": sw.raw(a)} for a in arrays] + [{"x": None}, {"x": sw.UNSET}]
    manifest = sw.write(items, tmp_path / "t@2", workers=2)
    assert manifest.schema["features"]["x"]["shape"] == [None, 2]
    found = list(sw.open(tmp_path / "t"))
    for row, array in zip(found, arrays, strict=False):
        assert_equal(row["x"], array)
    assert found[3:] == [{}, {"x": None}]


def test_pushed_arrays_and_labels(tmp_path):
    with sw.open_writer(tmp_path / "t@2", label="k") as writer:
        for k in range(4):
            writer.write({"k": sw.raw(np.uint8(k % 2)), "x": sw.raw(np.full(2, k, "i4"))})
    assert writer.manifest.labels["counts"] == {"0": 2, "1": 2}
    assert sw.open(tmp_path / "t")[3]["x"].tolist() == [3, 3]


def test_serial_and_process_give_equal_bytes_and_a_copy_keeps_the_types(tmp_path):
    items = [{"x": sw.raw(some("c8", (i % 3,)))} for i in range(20)]
    one = sw.write(items, tmp_path / "one@3")
    two = sw.write(items, tmp_path / "two@3", workers=2)
    assert one.schema == two.schema
    assert [s.crc32c for s in one.shards] == [s.crc32c for s in two.shards]
    copy = sw.write(str(tmp_path / "one"), tmp_path / "copy@2")
    assert copy.schema == one.schema
    assert_equal(sw.open(tmp_path / "copy")[2]["x"], items[2]["x"].array)


def test_show_gives_the_array_and_find_its_bytes(tmp_path):
    array = np.array([[1, 2], [3, 4]], "i2")
    sw.write([{"x": sw.raw(array)}, {"x": sw.raw(array + 1)}], tmp_path / "t@1")
    path = str(tmp_path / "t")
    shown = [record.features["x"] for record in read_some(path, 0, 2)]
    assert_equal(shown[0], array)
    text = CliRunner().invoke(app, ["show", path]).stdout
    assert "int16[2,2]" in text
    assert "1, 2, 3, 4" in text
    as_json = json.loads(CliRunner().invoke(app, ["show", path, "--json"]).stdout)
    assert as_json["features"]["x"] == [[1, 2], [3, 4]]
    assert [
        r.record_index
        for r in find_records(path, WantedValue("x", array.tobytes().decode(), exact=True))
    ] == [0]
    told = sw.stats(path, features=True).to_json()["sets"][0]["features"]["x"]
    assert (told["dtype"], told["encoding"], told["shape"]) == ("int16", "raw", [2, 2])


def test_bytes_of_another_size_are_an_error(tmp_path):
    sw.write([{"x": sw.raw(np.zeros(2, "f4"))}], tmp_path / "t@1")
    data = sw.open(tmp_path / "t")
    with pytest.raises(FeatureError, match="raw bytes"):
        data._core.decoder.example(sw.encode_example({"x": b"abc"}))


def test_the_plan_of_a_list_takes_no_raw_array():
    with pytest.raises(FeatureError, match="schema says int64"):
        sw.encode_example({"x": sw.raw(np.zeros(2))}, {"x": "int64"})


def test_schema_option_refuses_what_raw_can_not_store():
    with pytest.raises(OptionError, match="string"):
        sw.write([], "x@1", schema="x=raw:string")
