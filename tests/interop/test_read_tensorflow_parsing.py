"""What was written comes out of tf.data: values, shapes, dtypes, and features that are absent."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import FeatureSummary


@pytest.fixture(scope="session")
def leaf(tf: Any) -> Any:
    return importlib.import_module("shardwriter.reading.tensorflow")


@pytest.fixture(scope="session")
def parsing(tf: Any) -> Any:
    return importlib.import_module("shardwriter.reading.tensorflow.parsing")


def everything(i: int) -> dict[str, Any]:
    return {
        "int": i,
        "bool": bool(i % 2),
        "uint8s": np.full((2, 3), i, np.uint8),
        "uint64": np.uint64(i),
        "float16": np.float16(i / 2),
        "float64": np.float64(i) / 4,
        "string": f"n{i}",
        "bytes": b"\x00" * i,
        "strings": np.array(["a", f"b{i}"]),
        "varies": np.arange(i % 4),
        "varies_first": np.arange((i % 3) * 3, dtype=np.float32).reshape(-1, 3),
        "varies_between": np.arange((i % 3) * 4, dtype=np.int32).reshape(2, -1, 2),
        "varies_strings": [f"{k}" for k in range(i % 3)],
        "never_any": np.zeros((0,), np.float32),
        "jpeg": b"\xff\xd8\xff" + bytes([i]),
    }


def plain(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "to_tensor"):
        value = value.to_tensor()
    array = np.asarray(value)
    if array.dtype.kind == "U":
        array = np.char.encode(array)
    return array.astype(object) if array.dtype.kind == "S" else array


def assert_same(got: Any, written: Any, name: str) -> None:
    if isinstance(written, (bytes, str)):
        assert got == (written.encode() if isinstance(written, str) else written), name
        return
    found, expected = plain(got), plain(written)
    assert found.shape == expected.shape or expected.size == 0 == found.size, name
    assert found.ravel().tolist() == expected.ravel().tolist(), name
    if isinstance(written, (np.ndarray, np.generic)) and written.dtype.kind in "biuf":
        stored = np.float32 if written.dtype == np.float64 else written.dtype  # as it is stored
        assert found.dtype == stored, name


@pytest.mark.parametrize("batch_size", [None, 1, 8])
def test_values_shapes_and_dtypes_come_back(leaf, tmp_path, batch_size):
    items = [everything(i) for i in range(20)]
    sw.write(items, tmp_path / "t@3")
    seen = 0
    for element in leaf.tf_dataset(tmp_path / "t", batch_size=batch_size):
        assert sorted(element) == sorted(items[0])
        for row in range(len(element["int"]) if batch_size else 1):
            for name, written in items[seen].items():
                got = element[name][row] if batch_size else element[name]
                got = (
                    got.numpy() if hasattr(got, "numpy") and not hasattr(got, "to_tensor") else got
                )
                assert_same(got, written, name)
            seen += 1
    assert seen == 20


def test_shapes_are_known_before_anything_is_read(leaf, tf, tmp_path):
    sw.write([everything(i) for i in range(6)], tmp_path / "t@2")
    spec = leaf.tf_dataset(tmp_path / "t", batch_size=2, drop_remainder=True).element_spec
    assert spec["uint8s"].shape == (2, 2, 3)
    assert spec["uint8s"].dtype == tf.uint8
    assert spec["bool"] == tf.TensorSpec([2], tf.bool)
    assert isinstance(spec["varies"], tf.RaggedTensorSpec)
    assert spec["varies_first"].shape[2] == 3
    single = leaf.tf_dataset(tmp_path / "t").element_spec
    assert single["varies_first"] == tf.TensorSpec([None, 3], tf.float32)
    assert single["varies_between"] == tf.TensorSpec([2, None, 2], tf.int32)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_absent_features_never_stop_an_epoch(leaf, tmp_path, batch_size):
    names = ["f", "i", "s", "b", "fs", "ls"]

    def item(i: int) -> dict[str, Any]:
        values = [1.5, i, "x", True, np.ones((2, 2), np.float32), [1] * (i + 1)]
        there = dict(zip(names, values, strict=True)) if i % 3 == 0 else {}
        return {"id": i, **there, **({"s": sw.UNSET} if i == 1 else {})}

    sw.write([item(i) for i in range(9)], tmp_path / "t@2")
    by_id = {}
    for element in leaf.tf_dataset(tmp_path / "t", batch_size=batch_size):
        ids = element["id"].numpy()
        if batch_size is None:
            by_id[int(ids)] = {name: element[name].numpy() for name in names}
        else:
            for row, number in enumerate(ids):
                by_id[int(number)] = {name: element[name][row].numpy() for name in names}
    assert len(by_id) == 9
    for number, got in by_id.items():
        if number % 3 == 0:
            assert (got["f"], got["i"], got["s"], bool(got["b"])) == (1.5, number, b"x", True)
            assert got["fs"].tolist() == [[1, 1], [1, 1]]
            assert got["ls"].tolist() == [1] * (number + 1)
        else:
            assert math.isnan(got["f"])
            assert (got["i"], got["s"], bool(got["b"])) == (0, b"", False)
            assert np.isnan(got["fs"]).all()
            assert got["ls"].tolist() == []


def test_defaults_are_chosen_by_name(leaf, tmp_path):
    items = [{"id": 0, "i": 5, "m": np.zeros((2, 2), np.int64), "s": "a", "v": [1]}, {"id": 1}]
    items[1]["v"] = [1, 2]
    sw.write(items, tmp_path / "t@1")
    chosen = {"i": -1, "m": [[1, 2], [3, 4]], "s": "none"}
    _, second = leaf.tf_dataset(tmp_path / "t", defaults=chosen).as_numpy_iterator()
    assert second["i"] == -1
    assert second["m"].tolist() == [[1, 2], [3, 4]]
    assert second["s"] == b"none"
    with pytest.raises(OptionError, match="no feature 'x'"):
        leaf.tf_dataset(tmp_path / "t", defaults={"x": 1})
    with pytest.raises(OptionError, match=r"shape \[2, 2\]"):
        leaf.tf_dataset(tmp_path / "t", defaults={"m": [1, 2, 3]})


def test_some_features_only(leaf, tmp_path):
    sw.write([everything(i) for i in range(6)], tmp_path / "t@2")
    element = next(iter(leaf.tf_dataset(tmp_path / "t", features=["string", "int"])))
    assert set(element) == {"int", "string"}


def test_a_spec_for_pipelines_of_ones_own(leaf, tf, tmp_path):
    sw.write([everything(i) for i in range(6)], tmp_path / "t@2")
    spec = leaf.feature_spec(tmp_path / "t")
    files = sorted(str(p) for p in tmp_path.glob("t.tfrecord-*"))
    parsed = tf.data.TFRecordDataset(files).batch(6).map(lambda b: tf.io.parse_example(b, spec))
    (batch,) = parsed
    assert sorted(batch["int"].numpy()) == list(range(6))
    by_hand = {"int": tf.io.FixedLenFeature([], tf.int64)}
    got = leaf.tf_dataset(tmp_path / "t", parse=by_hand, batch_size=6)
    assert [list(b) for b in got] == [["int"]]
    assert [int(e["int"]) for e in leaf.tf_dataset(tmp_path / "t", parse=by_hand)] == list(range(6))
    with pytest.raises(OptionError, match="mapping"):
        leaf.tf_dataset(tmp_path / "t", parse=by_hand, features=["int"])


def test_records_without_a_schema_are_not_parsed(leaf, tmp_path):
    sw.write([b"not an example"] * 3, tmp_path / "t@2")
    with pytest.raises(OptionError, match="has no schema") as caught:
        leaf.tf_dataset(tmp_path / "t")
    assert "parse=False" in caught.value.hint


def test_a_feature_that_was_never_set_is_left_out(leaf, tmp_path):
    sw.write([{"i": 1, "never": sw.UNSET}] * 3, tmp_path / "t@2")
    assert [sorted(e) for e in leaf.tf_dataset(tmp_path / "t", batch_size=2)] == [["i"], ["i"]]


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "float32", "uint32", "uint64"])
@pytest.mark.parametrize("shape", [(), (2, 3), (None, 2), (2, None)])
def test_raw_bytes_become_arrays(parsing, tf, dtype, shape):
    rng = np.random.default_rng(1)
    feature = FeatureSummary(FeatureType("bytes", dtype, shape, "raw"), 4)
    arrays = []
    for row in range(4):
        sizes = [row if size is None else size for size in shape]
        arrays.append(rng.integers(0, 255, sizes).astype(dtype))
    payloads = [sw.encode_example({"x": array.tobytes()}) for array in arrays]
    parse = parsing.schema_parser({"x": feature}, 4, is_batch=False)
    for payload, array in zip(payloads, arrays, strict=True):
        got = parse(tf.constant(payload))["x"].numpy()
        assert got.dtype == array.dtype
        assert np.array_equal(got, array)
    batch = parsing.schema_parser({"x": feature}, 4, is_batch=True)(tf.constant(payloads))["x"]
    for row, array in zip(batch, arrays, strict=True):
        got = plain(row)
        assert got.dtype == array.dtype
        assert got.ravel().tolist() == array.ravel().tolist()


def test_absent_raw_arrays_are_filled(parsing, tf):
    feature = FeatureSummary(FeatureType("bytes", "float32", (2,), "raw"), 1)
    payloads = [sw.encode_example({"x": np.ones(2, "<f4").tobytes()}), sw.encode_example({})]
    batch = parsing.schema_parser({"x": feature}, 2, is_batch=True)(tf.constant(payloads))["x"]
    assert batch.numpy()[0].tolist() == [1, 1]
    assert np.isnan(batch.numpy()[1]).all()


def test_several_dimensions_that_vary_come_flat(parsing, tf):
    feature = FeatureSummary(FeatureType("int64", "uint8", (None, None)), 2)
    payloads = [sw.encode_example({"x": [1, 2, 3, 4]}), sw.encode_example({"x": [5, 6]})]
    batch = parsing.schema_parser({"x": feature}, 2, is_batch=True)(tf.constant(payloads))["x"]
    assert batch.to_list() == [[1, 2, 3, 4], [5, 6]]
    one = parsing.schema_parser({"x": feature}, 2, is_batch=False)(tf.constant(payloads[1]))["x"]
    assert one.numpy().tolist() == [5, 6]
    assert one.dtype == tf.uint8
