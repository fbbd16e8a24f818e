"""Numbers that float32 does not hold: a warning, or an error with ``strict``; never in silence."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.errors import DataWarning, FeatureError, SourceError
from shardwriter.formats.example import encode_example
from shardwriter.formats.feature_values import EXACT, PRECISION, SMALLEST, first_inexact
from shardwriter.reading.find import WantedValue, find_records
from shardwriter.schema.declared import declare
from shardwriter.schema.record_stats import RecordStats
from shardwriter.writing.encode import RecordEncoder

STAMP = 1700000001.25
MESSAGE = f"feature 'ts': {STAMP} (item 1) is stored as 1700000000.0: float32 holds about 7 digits"
HINT = 'schema="ts=float64" keeps every digit (8 bytes a value); int64 suits whole numbers'


def is_lost(value):
    """What the definition says of one number."""
    with np.errstate(all="ignore"):
        narrow = float(np.float32(value))
    if math.isnan(value) or math.isinf(value) or narrow == value:
        return False
    return abs(value) >= EXACT or abs(narrow - value) > abs(value) * 2.0**-24


numbers = (
    st.floats()
    | st.floats(-1e9, 1e9)
    | st.floats(-4 * SMALLEST, 4 * SMALLEST)
    | st.integers(-(2**30), 2**30).map(float)
).filter(lambda v: math.isinf(v) or not abs(v) > 3.4e38)


def has_lost(value):
    PRECISION.has_lost = False
    encode_example({"x": value})
    return PRECISION.has_lost


@given(numbers)
def test_one_number_is_lost_where_the_definition_says_so(value):
    assert has_lost(value) is is_lost(value)
    assert has_lost(np.float64(value)) is is_lost(value)


@given(st.lists(numbers, min_size=1, max_size=40))
def test_the_first_of_many_numbers_is_found(values):
    places = [place for place, value in enumerate(values) if is_lost(value)]
    array = np.array(values)
    assert first_inexact(array) == (places[0] if places else None)
    assert has_lost(array) is bool(places)
    assert has_lost(values) is bool(places)
    assert has_lost(np.stack([array, array])[:, ::-1]) is bool(places)


@pytest.mark.parametrize("value", [2**24 + 1, 2**53 + 1, -(2**62) - 1, 2**63 - 1])
def test_integers_are_compared_as_integers(value):
    assert first_inexact(np.array([0, value])) == 1
    assert first_inexact(np.array([0.5, value], object)) == 1
    assert first_inexact(np.array([0, 2**24, -(2**62)])) is None


@pytest.mark.parametrize(
    "value",
    [
        STAMP,
        np.float64(STAMP),
        [0.5, STAMP],
        [[0.5], [STAMP]],
        np.array([STAMP, 0.5]),
        [np.array([0.5]), np.array([STAMP])],
        np.array([[0.5], [STAMP]]),
        np.array(STAMP, np.longdouble),
    ],
    ids=repr,
)
@pytest.mark.parametrize("workers", [1, 2])
def test_any_shape_of_value_warns_once(tmp_path, value, workers):
    quiet = np.asarray(value) * 0
    items = [{"ts": quiet, "n": 1}, {"ts": value, "n": 2}, {"ts": value, "n": 3}]
    with pytest.warns(DataWarning) as found:
        manifest = sw.write(items, tmp_path / "a@3", workers=workers)
    assert [str(w.message) for w in found] == [f"{MESSAGE}\n  hint: {HINT}"]
    assert found[0].filename == __file__
    (entry,) = manifest.metadata["warnings"]
    assert (entry["index"], entry["value"], entry["stored"]) == (1, str(STAMP), "1700000000.0")
    with pytest.raises(FeatureError, match=f"{STAMP} would be stored") as caught:
        sw.write(items, tmp_path / "b@3", workers=workers, strict=True)
    assert (caught.value.index, caught.value.feature) == (1, "ts")
    manifest = sw.write(items, tmp_path / "b@3", workers=workers, strict=True, on_error="skip")
    assert list(manifest.gaps) == [1, 2]


def test_the_largest_uint64_is_no_float():
    assert first_inexact(np.array([0, 2**64 - 1], np.uint64)) == 1
    assert first_inexact(np.array([0, 2**63], np.uint64)) is None


LARGE = 2**53 + 1  # the first integer that float64 does not hold


@pytest.mark.parametrize(
    ("schema", "value", "number", "stored"),
    [
        ("x=float", LARGE, LARGE, 2.0**53),
        ("x=float", np.uint64(2**64 - 1), 2**64 - 1, 2.0**64),
        ("x=float", [0.5, LARGE], LARGE, 2.0**53),
        ("x=float", [2**64 - 1, -1], 2**64 - 1, 2.0**64),
        ("x=float", np.array([1, LARGE]), LARGE, 2.0**53),
        ("x=float64", LARGE, LARGE, 2.0**53),
        ("x=float64", [0.5, LARGE], LARGE, 2.0**53),
        ("x=float64", np.array([[1], [LARGE]]), LARGE, 2.0**53),
        ("x=float64[null]", np.array([1, 2**64 - 1], np.uint64), 2**64 - 1, 2.0**64),
        ("x=float32[2]", [0.5, STAMP], STAMP, 1.7e9),
        ("x=float32[2]", np.array([STAMP, 0.5]), STAMP, 1.7e9),
        ("x=float32[2]", [1, 2**24 + 1], 2**24 + 1, 2.0**24),
        ("x=float32[]", 2**24 + 1, 2**24 + 1, 2.0**24),
        ("x=raw:float32", np.array([0.5, STAMP]), STAMP, 1.7e9),
        ("x=raw:float32", [1, LARGE], LARGE, 2.0**53),
        ("x=float16", 2049, 2049, 2048.0),
        ("x=float16[2]", [0.5, 1e-40], 1e-40, 0.0),
        ("x=raw:float16", np.array([2049, 1]), 2049, 2048.0),
        ("x=raw:bfloat16", np.array([257, 1]), 257, 256.0),
    ],
    ids=repr,
)
def test_a_declared_type_that_does_not_hold_a_number_warns(tmp_path, schema, value, number, stored):
    pytest.importorskip("ml_dtypes")
    items = [{"x": np.zeros_like(value), "n": 1}, {"x": value, "n": 2}, {"x": value, "n": 3}]
    entries = []
    for workers in (1, 2):
        with pytest.warns(DataWarning) as found:
            manifest = sw.write(items, tmp_path / f"a{workers}@2", schema=schema, workers=workers)
        assert len(found) == 1
        entries += manifest.metadata["warnings"]
    assert entries[0] == entries[1]
    assert (entries[0]["index"], entries[0]["feature"]) == (1, "x")
    assert (entries[0]["value"], entries[0]["stored"]) == (repr(number), repr(stored))
    with pytest.raises(FeatureError, match="would be stored") as caught:
        sw.write(items, tmp_path / "b@2", schema=schema, strict=True)
    assert caught.value.index == 1


def test_what_a_declared_type_rounds_as_usual_says_nothing(tmp_path, recwarn):
    items = [
        {"a": 2**53, "b": [0.1, 1], "c": np.array([0.1, math.nan]), "d": 0.1, "e": [2**63, -1]},
        {"a": 0.1, "b": [-math.inf, 2**24], "c": np.array([2.0**100, 0]), "d": 2048, "e": [0, 1]},
    ]
    schema = "a=float64,b=float32[2],c=raw:float32,d=float16,e=float"
    assert sw.write(items, tmp_path / "a@1", schema=schema, strict=True).metadata == {}
    assert not recwarn.list


def test_an_int_beyond_a_declared_float16_is_refused(tmp_path):
    with pytest.raises(FeatureError, match="out of range"):  # a reader would refuse the set
        sw.write([{"x": 70000}], tmp_path / "a@1", schema="x=float16")


@pytest.mark.parametrize(("number", "schema"), [(LARGE, "int64"), (2**64 - 1, "string")])
def test_the_hint_for_a_large_integer_keeps_it(tmp_path, number, schema):
    path = tmp_path / "ids.parquet"
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"id": pa.array([number], pa.uint64())}), path)
    with pytest.warns(DataWarning) as found:
        sw.write(str(path), tmp_path / "a@1", schema="id=float64")
    assert f"--schema id={schema}" in found[0].message.hint
    sw.write(str(path), tmp_path / "b@1", schema=f"id={schema}", strict=True)
    (record,) = sw.open(tmp_path / "b")
    assert str(record["id"]) == str(number)


TABLES = [
    ("a.csv", f"x,n\n0.5,1\n{LARGE},2\n-{LARGE},3\n", None),
    ("a.csv", f"x,n\n7,1\n{LARGE},2\n", "x=float"),
    ("a.csv", f"x,n\n0.5,1\n{LARGE}.0,2\n", "x=float64"),
    ("a.csv", f"n,x\n1,{2**53}\n2,{LARGE}\n3,0.5\n", None),
    ("a.jsonl", f'{{"x":0.5}}\n\n{{"x":{LARGE}}}\n{{"x":null}}\n', None),
    ("a.jsonl", f'{{"x":7}}\n\n{{"x":{LARGE}}}\n', "x=float64"),
    ("a.jsonl", f'{{"x":[0.5,1]}}\n\n{{"x":[2,{LARGE}]}}\n', "x=float64"),
]


@pytest.mark.parametrize(("name", "text", "schema"), TABLES)
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"map": dict}], ids=str)
def test_an_integer_in_a_column_of_floats_warns(tmp_path, name, text, schema, options):
    path = tmp_path / name
    path.write_text(text)
    with pytest.warns(DataWarning) as found:
        manifest = sw.write(str(path), tmp_path / "a@2", schema=schema, **options)
    assert [w.message.code for w in found] == ["inexact-integer"]
    (entry,) = manifest.metadata["warnings"]
    assert (entry["feature"], entry["file"], entry["line"]) == ("x", name, 3)
    assert (entry["value"], entry["stored"]) == (str(LARGE), repr(2.0**53))
    with pytest.raises(SourceError, match="line 3"):
        sw.write(str(path), tmp_path / "b@2", schema=schema, strict=True, **options)
    if not options:
        sw.write(str(path), tmp_path / "b@2", schema="x=string", strict=True)


def test_a_decimal_that_float64_does_not_hold_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "a.parquet")
    few = [Decimal("0.10"), Decimal("9007199254740992.00"), None]
    pq.write_table(pa.table({"x": pa.array(few, pa.decimal128(20, 2))}), path)
    sw.write(path, tmp_path / "a@1", schema="x=float64", strict=True)
    assert [r["x"] for r in sw.open(tmp_path / "a")] == [0.1, 2.0**53, None]
    many = [*few, Decimal("12345678901234567.89")]
    pq.write_table(pa.table({"x": pa.array(many, pa.decimal128(20, 2))}), path)
    with pytest.raises(
        SourceError, match=r"12345678901234567\.89 is not exact as float64"
    ) as caught:
        sw.write(path, tmp_path / "b@1", schema="x=float64")
    assert caught.value.index == 3
    assert "--schema x=string" in str(caught.value.hint)
    sw.write(path, tmp_path / "b@1", schema="x=string", strict=True)


def test_large_integers_that_stay_integers_say_nothing(tmp_path, recwarn):
    for name, text in (("a.csv", f"x\n1\n{LARGE}\n"), ("a.jsonl", f'{{"x":{LARGE}}}\n')):
        (tmp_path / name).write_text(text)
        sw.write(str(tmp_path / name), tmp_path / f"{name}@1", strict=True)
    assert not recwarn.list


def test_what_is_rounded_as_usual_says_nothing(tmp_path, recwarn):
    values = [0.1, 1e-30, math.pi * 1e6, float("nan"), float("inf"), 2.0**24, 2.0**100, 0.0]
    items = [{"a": v, "b": np.array([v]), "c": np.float32(v), "d": [v, v]} for v in values]
    assert sw.write(items, tmp_path / "a@1", strict=True).metadata == {}
    assert not recwarn.list


def test_the_steps_of_a_sequence_warn(tmp_path):
    steps = [np.array([1.0]), np.array([STAMP])]
    items = [sw.SequenceExample({"id": i}, {"ts": steps if i else steps[:1]}) for i in range(2)]
    with pytest.warns(DataWarning, match=r"feature 'ts\[\]': 1700000001.25 \(item 1\)"):
        sw.write(items, tmp_path / "a@1")


def test_each_feature_warns_for_its_own_first_item():
    encoder = RecordEncoder(1)
    for index in range(4):
        encoder.encode(index, {"a": [STAMP] if index else [1.0], "b": 0.5 if index < 2 else STAMP})
    assert [(w.feature, w.index) for w in encoder.warnings] == [("a", 1), ("b", 2)]


def test_an_earlier_item_that_comes_later_takes_its_place():
    encoder = RecordEncoder(1)
    for index in (5, 2, 7):
        encoder.encode(index, {"ts": STAMP + index})
    assert [(w.index, w.value) for w in encoder.warnings] == [(2, "1700000003.25")]


def test_a_record_that_is_refused_leaves_no_warning():
    encoder = RecordEncoder(1)
    encoder.encode(0, {"ts": 0.5, "b": 1})
    with pytest.raises(sw.DataError):
        encoder.encode(1, {"ts": STAMP, "b": "text"})
    assert not encoder.warnings


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "ev.csv"
    path.write_text("user,ts,x\n" + "a,0.5,1.5\nb,,2.5\n" * 40 + f"c,{STAMP},0.1\n" + "a,,\n")
    return str(path)


@pytest.mark.parametrize("options", [{}, {"map": dict}, {"workers": 2}], ids=str)
def test_a_table_warns_in_blocks_and_row_by_row(csv, tmp_path, options):
    with pytest.warns(DataWarning) as found:
        manifest = sw.write(csv, tmp_path / "a@4", **options)
    assert [(w.message.feature, w.message.index) for w in found] == [("ts", 80)]
    assert [w["index"] for w in manifest.metadata["warnings"]] == [80]
    with pytest.raises(FeatureError, match="would be stored") as caught:
        sw.write(csv, tmp_path / "b@4", strict=True, **options)
    assert caught.value.index == 80


def test_integers_that_a_plan_makes_floats_warn(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id\n1\n16777217\n")
    with pytest.warns(DataWarning, match=r"16777217(\.0)? \(item 1\) is stored as 16777216.0"):
        sw.write(str(path), tmp_path / "a@1", schema="id=float")
    with pytest.warns(DataWarning, match=r"16777217 \(item 0\) is stored as 16777216.0"):
        sw.write([{"id": 16777217}], tmp_path / "b@1", schema="id=float")


def test_other_sources_warn(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    jsonl, parquet, npy = tmp_path / "a.jsonl", tmp_path / "a.parquet", tmp_path / "a.npy"
    jsonl.write_text('{"ts": [0.5, 1]}\n{"ts": [1700000001.25, 2]}\n')
    pq.write_table(pa.table({"ts": pa.array([None, STAMP, 0.5])}), parquet)
    np.save(npy, np.array([[0.5], [STAMP]]))
    for source in (jsonl, parquet, npy):
        with pytest.warns(DataWarning, match=rf"{STAMP} \(item 1\)") as found:
            sw.write(str(source), tmp_path / f"{source.suffix[1:]}@2")
        assert len(found) == 1


def test_a_state_keeps_what_was_found():
    encoder = RecordEncoder(1)
    encoder.encode(3, {"ts": STAMP})
    again = RecordStats.from_state(json.loads(json.dumps(encoder.stats.to_state())), 1)
    other = RecordEncoder(1)
    other.encode(1, {"ts": STAMP})
    other.merge(again)
    assert [w.index for w in other.warnings] == [1]


def test_strict_refuses_what_an_earlier_attempt_has_noted(tmp_path):
    """The items are done; the publication alone is left."""
    fails = {"now": True}

    def items():
        for index in range(3000):
            if index == 2900 and fails["now"]:
                raise RuntimeError("stopped")
            yield {"ts": STAMP if index == 5 else 0.5}

    options = sw.RunOptions(mark_s=0, checkpoint_bytes=1)
    with pytest.raises(sw.DataError):
        sw.write(items, tmp_path / "a@2", run=options)
    fails["now"] = False
    with pytest.raises(FeatureError, match="item 5"):
        sw.write(items, tmp_path / "a@2", run=options, resume=True, strict=True)
    assert not (tmp_path / "a.manifest.json").exists()
    with pytest.warns(DataWarning, match="item 5"):
        manifest = sw.write(items, tmp_path / "a@2", run=options, resume=True)
    assert [w["index"] for w in manifest.metadata["warnings"]] == [5]
    with pytest.raises(FeatureError, match="item 5"):
        sw.write(items, tmp_path / "a@2", run=options, resume=True, strict=True)


def test_appended_items_warn_by_their_own_numbers(tmp_path):
    with pytest.warns(DataWarning, match="item 1"):
        sw.write([{"ts": 0.5}, {"ts": STAMP}], tmp_path / "a@2")
    with pytest.warns(DataWarning, match=r"'b'.*item 3\)"):
        sw.append([{"ts": 0.5}, {"ts": STAMP, "b": STAMP}], tmp_path / "a")
    metadata = sw.load_manifest(tmp_path / "a.manifest.json").metadata
    assert [(w["feature"], w["index"]) for w in metadata["warnings"]] == [("b", 3), ("ts", 1)]
    with pytest.raises(FeatureError, match="would be stored"):
        sw.append([{"ts": 0.5, "b": 2 * STAMP}], tmp_path / "a", strict=True)
    sw.append([{"ts": 0.5}], tmp_path / "a", strict=True)


def test_pushed_records_warn(tmp_path):
    def push():
        with sw.open_writer(tmp_path / "a@2") as writer:
            writer.write({"ts": 0.5})
            writer.write({"ts": STAMP})
        return writer

    with pytest.warns(DataWarning, match="item 1"):
        writer = push()
    assert writer.manifest.metadata["warnings"]


# Declared as float64: every digit is kept.

VALUES = [STAMP, 0.1, -1e300, 5e-324, 2.0**53 + 2, 0.0]


def source_of(kind, folder):
    """Return a source of VALUES as ``ts``, with a row without a value where it can have one."""
    path = folder / f"ts.{kind}"
    if kind == "csv":
        path.write_text("id,ts\n" + "".join(f"7,{value!r}\n" for value in VALUES) + "8,\n")
    elif kind == "jsonl":
        rows = [{"id": 7, "ts": value} for value in VALUES]
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": 8, "ts": None}]))
    elif kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"ts": pa.array([*VALUES, None])}), path)
    elif kind == "npy":
        np.save(path, np.array(VALUES))
        path = folder / "ts.npy"
    else:
        return [*({"ts": value} for value in VALUES), {"ts": None}]
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "npy", "python"])
@pytest.mark.parametrize(
    "schema",
    [
        "ts=float64",
        "ts=float64[]",
        {"ts": {"dtype": "float64"}},
        {"ts": sw.FeatureType("float", "float64")},
    ],
    ids=["text", "shape", "entry", "type"],
)
def test_a_declared_float64_comes_back_exactly(tmp_path, recwarn, kind, schema):
    manifest = sw.write(source_of(kind, tmp_path), tmp_path / "a@2", schema=schema, strict=True)
    found = [record.get("ts") for record in sw.open(tmp_path / "a")]
    assert found[: len(VALUES)] == VALUES
    assert all(isinstance(value, np.float64) for value in found[: len(VALUES)])
    assert found[len(VALUES) :] in ([], [None])
    assert manifest.features["ts"].type == sw.FeatureType("bytes", "float64", (), "raw")
    assert manifest.type_texts()["ts"] == "float64"
    assert not [w for w in recwarn if issubclass(w.category, DataWarning)]


def test_shapes_of_float64_come_back(tmp_path):
    items = [{"x": [STAMP, 1, 2.5], "y": [STAMP] * n, "z": np.full((2, n), STAMP)} for n in (1, 3)]
    schema = "x=float64[3],y=float64[null],z=float64[2,null]"
    sw.write(items, tmp_path / "a@1", schema=schema)
    for item, found in zip(items, sw.open(tmp_path / "a"), strict=True):
        for name, value in item.items():
            assert found[name].dtype == np.float64
            np.testing.assert_array_equal(found[name], value)
    with pytest.raises(FeatureError, match=r"the schema says float64\[3\]"):
        sw.write([{"x": [1.0]}], tmp_path / "b@1", schema=schema)


def test_find_tells_close_numbers_apart(tmp_path):
    values = [STAMP, STAMP + 0.5, float("nan")]
    sw.write([{"ts": v} for v in values], tmp_path / "a@1", schema="ts=float64")

    def rows(text):
        wanted = WantedValue("ts", text)
        return [found.record_index for found in find_records(str(tmp_path / "a"), wanted)]

    assert [rows(str(value)) for value in values] == [[0], [1], [2]]
    assert rows("1700000000") == rows("text") == []


def test_other_readers_give_float64(tmp_path):
    tf = pytest.importorskip("tensorflow")
    sw.write([{"ts": v} for v in VALUES], tmp_path / "a@1", schema="ts=float64")
    program = sw.loader_code(tmp_path / "a", "tensorflow")
    assert "tf.float64" in program
    from shardwriter.reading.tensorflow import tf_dataset

    found = [record["ts"] for record in tf_dataset(str(tmp_path / "a"))]
    assert {value.dtype for value in found} == {tf.float64}
    assert [float(value) for value in found] == VALUES


def test_lists_are_called_what_they_are(tmp_path):
    items = [{"a": np.float64(0.5), "b": np.array([0.5]), "c": np.float16(0.5)}]
    manifest = sw.write(items, tmp_path / "a@1")
    dtypes = {name: found.type.dtype for name, found in manifest.features.items()}
    assert dtypes == {"a": "float32", "b": "float32", "c": "float16"}
    found = sw.open(tmp_path / "a")[0]
    assert (found["a"].dtype, found["b"].dtype) == (np.float32, np.float32)


@pytest.fixture
def old(tmp_path):
    """Return a dataset whose manifest is as it was when lists were called float64."""
    sw.write([{"ts": v} for v in (0.5, 1.5, 2.5, 3.5)], tmp_path / "old@2")
    path = tmp_path / "old.manifest.json"
    text = path.read_text().replace('"float32"', '"float64"')
    assert '"dtype":"float64","encoding":"list"' in text
    path.write_text(text)
    return tmp_path / "old"


def test_old_manifests_go_on_working(old, tmp_path):
    manifest = tmp_path / "old.manifest.json"
    before = manifest.read_bytes()
    assert sw.verify(old).verdict.startswith("OK")
    assert sw.open(old)[0]["ts"].dtype == np.float32
    assert declare(str(manifest)).types["ts"].dtype == "float32"
    shard = tmp_path / "old.tfrecord-00001-of-00002"
    data = shard.read_bytes()
    shard.unlink()
    items = [{"ts": v} for v in (0.5, 1.5, 2.5, 3.5)]
    sw.repair(old, tmp_path, source=items)
    assert (shard.read_bytes(), manifest.read_bytes()) == (data, before)
    merged = sw.merge([old], tmp_path / "merged@1")
    assert merged.features["ts"].type.dtype == "float32"
    sw.append([{"ts": 4.5}], old)
    assert sw.load_manifest(manifest).features["ts"].type.dtype == "float32"


def test_beam_warns_as_one_process_does(tmp_path):
    beam = pytest.importorskip("apache_beam")
    from shardwriter.cluster import WriteShards

    path = tmp_path / "ev.csv"
    path.write_text("ts\n" + "0.5\n" * 30 + f"{STAMP}\n" * 5)
    with pytest.warns(DataWarning):
        manifest = sw.write(str(path), tmp_path / "a@3")
    for strategy in ("strided", "chunked"):
        with beam.Pipeline() as pipeline:
            pipeline | WriteShards(
                str(tmp_path / f"{strategy}/a@3"), source=str(path), strategy=strategy
            )
        found = sw.load_manifest(tmp_path / f"{strategy}/a.manifest.json")
        assert found.metadata == manifest.metadata
        with pytest.raises(Exception, match="would be stored as"), beam.Pipeline() as pipeline:
            pipeline | WriteShards(
                str(tmp_path / f"{strategy}/b@3"),
                source=str(path),
                strategy=strategy,
                run=sw.RunOptions(strict=True),
            )


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "shardwriter", *map(str, arguments)], capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def test_the_command_warns_on_stderr_and_counts(csv, tmp_path):
    code, out, err = command("write", csv, tmp_path / "a@2")
    warning = f"warning: feature 'ts': {STAMP} (item 80) is stored as 1700000000.0: float32 holds"
    assert (code, err.count("warning:")) == (0, 1)
    assert warning in err
    assert "  do:  --schema ts=float64 keeps every digit" in err
    assert "warnings  1" in out
    assert "ts float32, user string, x float32" in out
    code, out, _ = command("write", csv, tmp_path / "b@2", "--json")
    summary = json.loads(out)
    (entry,) = summary["warnings"]
    assert (entry["code"], entry["feature"], entry["index"]) == ("float-precision", "ts", 80)
    assert summary["features"] == {"ts": "float32", "user": "string", "x": "float32"}
    code, out, err = command("write", csv, tmp_path / "c@2", "--strict")
    assert code == 1
    assert "error: item 80, 'row 80', feature 'ts'" in err
    assert f"{STAMP} would be stored" in err
    assert not (tmp_path / "c.manifest.json").exists()
    code, _, err = command("append", csv, tmp_path / "a", "--strict")
    assert (code, "would be stored" in err) == (1, True)
