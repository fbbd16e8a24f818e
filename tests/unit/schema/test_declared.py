"""An explicit schema: how it is written, and what it does to values, in every source and engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import FeatureError, OptionError, SourceError
from shardwriter.formats.media import encode_png, image_format
from shardwriter.schema.declared import declare
from shardwriter.schema.feature_types import (
    LIST_DTYPES,
    FeatureType,
    parse_schema_option,
    parse_type,
    type_text,
)

# -- the short form --------------------------------------------------------------------------------


def test_shapes_encodings_and_dtypes_are_read():
    text = "image=uint8[28,28], tokens = int64[null],emb=float32[768],mask=raw:uint8[null, null]"
    assert parse_schema_option(text + ",one=bool[],any=float16,a=b=raw:complex64") == {
        "image": FeatureType("int64", "uint8", (28, 28)),
        "tokens": FeatureType("int64", "int64", (None,)),
        "emb": FeatureType("float", "float32", (768,)),
        "mask": FeatureType("bytes", "uint8", (None, None), "raw"),
        "one": FeatureType("int64", "bool", ()),
        "any": FeatureType("float", "float16"),
        "a=b": FeatureType("bytes", "complex64", None, "raw"),
    }


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("x=uint9", 3, "not a dtype"),
        ("a=int64,x=int8[3", 9, "NAME=TYPE"),
        ("a=int64,x=int8[-1]", 11, "not a size"),
        ("a=int64,x=int8[,]", 11, "not a size"),
        ("x=image[3]", 3, "image"),
        ("x=raw:image", 3, "raw bytes"),
        ("x=complex64[3]", 3, "raw:complex64"),
        ("a=int64, a=float", 9, "twice"),
        ("x=int8[²]", 3, "not a size"),
    ],
)
def test_errors_say_where_and_why(text, at, why):
    with pytest.raises(OptionError, match=rf"character {at}:.*{why}"):
        parse_schema_option(text)


@given(
    st.sampled_from(sorted(LIST_DTYPES)),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=4)),
    st.booleans(),
)
def test_a_type_is_read_as_it_is_written(dtype, sizes, is_raw):
    shape = None if sizes is None else tuple(sizes)
    if is_raw and dtype not in ("bytes", "string", "float"):
        wanted = FeatureType("bytes", dtype, shape, "raw")
    else:
        wanted = FeatureType(*LIST_DTYPES[dtype], shape)
    assert parse_type(type_text(wanted)) == wanted


# -- files and mappings ----------------------------------------------------------------------------


def test_forms_of_one_schema(tmp_path):
    entry = {"dtype": "uint8", "shape": [None, 2], "encoding": "raw"}
    names = {"dtype": "int64", "shape": [], "vocabulary": ["cat", "dog"]}
    forms = [
        {"x": entry, "y": names},
        {"x": "raw:uint8[null,2]", "y": names},
        {"features": {"x": {"kind": "bytes", **entry}, "y": names}},
        {"x": FeatureType("bytes", "uint8", (None, 2), "raw"), "y": names},
    ]
    path = tmp_path / "s.json"
    path.write_text(json.dumps(forms[2]))
    found = [declare(form) for form in [*forms, path, str(path)]]
    assert all(form == found[0] for form in found)
    assert found[0].vocabularies == {"y": ["cat", "dog"]}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"x": {"dtype": "uint8", "shapes": [3]}}, "'shapes' is unknown"),
        ({"x": {"shape": [3]}}, "no dtype"),
        ({"x": {"dtype": "uint8", "shape": 3}}, "not a list"),
        ({"x": {"dtype": "uint8", "shape": [-3]}}, "not a size"),
        ({"x": {"dtype": "uint8", "kind": "float"}}, "not float"),
        ({"x": {"dtype": "uint8", "encoding": "zip"}}, "zip"),
        ({"x": {"dtype": "string", "vocabulary": ["a"]}}, "is for integers"),
        ({"x": {"dtype": "int64", "vocabulary": "ab"}}, "not a list of names"),
        ({"x": 3}, "not a type"),
        ({"x": "uint9"}, "not a dtype"),
        ({"x": "uint8[null,null]", "x/shape": "float[2]"}, "x/shape"),
        ({"format": "shardwriter.manifest/1", "schema": []}, "not a JSON object"),
        ({"features": {}, "feature_lists": {"x": {}}}, "SequenceExamples"),
        (3, "of type int"),
        ("no/such.json", "can not be read"),
    ],
)
def test_what_is_no_schema_is_refused(schema, why):
    with pytest.raises(OptionError, match=why):
        declare(schema)


def test_a_file_that_is_no_json(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"x": 1, "x": 2}')
    with pytest.raises(OptionError, match="twice"):
        declare(path)


# -- what comes back -------------------------------------------------------------------------------

LISTED = ["bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "float32"]
RAW = [*LISTED, "uint64", "float64", "complex64"]


@st.composite
def typed_arrays(draw):
    """A declared type, and arrays of it."""
    is_raw = draw(st.booleans())
    dtype = draw(st.sampled_from(RAW if is_raw else LISTED))
    shape = tuple(draw(st.lists(st.sampled_from([None, 0, 1, 2, 3]), max_size=4)))
    arrays = []
    for _ in range(draw(st.integers(1, 6))):
        sizes = tuple(draw(st.integers(0, 3)) if size is None else size for size in shape)
        elements = {"allow_nan": False} if dtype.startswith("float") else None
        arrays.append(draw(hnp.arrays(dtype, sizes, elements=elements)))
    kind = "bytes" if is_raw else "float" if dtype.startswith("float") else "int64"
    return FeatureType(kind, dtype, shape, "raw" if is_raw else "list"), arrays


@settings(max_examples=40)
@given(typed_arrays(), st.booleans())
def test_any_declared_shape_comes_back(tmp_path_factory, typed, some_missing):
    feature, arrays = typed
    items = [{"x": array} for array in arrays]
    if some_missing:
        items += [{}, {"x": sw.UNSET}, {"x": None}]
    folder = tmp_path_factory.mktemp("t")
    sw.write(items, folder / "t@2", schema={"x": feature})
    data = sw.open(folder / "t")
    columns = data.columns(range(len(items))).get("x", [])
    for rows in (list(data), [data[i] for i in range(len(items))], [{"x": x} for x in columns]):
        for row, array in zip(rows, arrays, strict=False):
            assert set(row) == {"x"}
            assert (row["x"].dtype, row["x"].shape) == (array.dtype, array.shape)
            assert np.asarray(row["x"]).tobytes() == array.tobytes()
    assert all(row.get("x") is None for row in list(data)[len(arrays) :])


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ("x=bool[1,null,0]", [np.zeros((1, k, 0), bool) for k in (0, 2)]),
        ("x=string[null,null]", [np.array([["a", "b"]]), np.array([["c"], ["d"]])]),
        ("x=bytes[null,0]", [np.zeros((k, 0), "U1") for k in (1, 2)]),
    ],
)
def test_shapes_of_nothing_and_of_texts_come_back(tmp_path, schema, values):
    sw.write([{"x": value} for value in values], tmp_path / "t@1", schema=schema)
    for found, value in zip(sw.open(tmp_path / "t"), values, strict=True):
        assert np.shape(found["x"]) == value.shape
        assert np.asarray(found["x"]).tolist() == value.tolist()


def test_the_shape_stands_beside_and_its_dataset_holds_another(tmp_path):
    schema = "image=uint8[null,null,3],mask=raw:uint8[null,null]"
    items = [
        {"image": np.full((i + 1, 4 - i, 3), i, "u1"), "mask": np.ones((i, 2 * i), "u1")}
        for i in range(4)
    ]
    first = sw.write(items, tmp_path / "first@2", schema=schema)
    assert first.features["image/shape"].type == FeatureType("int64", "int64", (3,))
    payload = sw.open(tmp_path / "first", decode=False)[1]
    assert sw.decode_example(payload)["image/shape"].tolist() == [2, 3, 3]
    again = sw.write(items, tmp_path / "again@2", schema=tmp_path / "first.manifest.json")
    assert [s.crc32c for s in again.shards] == [s.crc32c for s in first.shards]
    assert again.schema == first.schema
    with pytest.raises(FeatureError, match=r"item 0.*'image'.*\[2, 2\].*uint8\[null,null,3\]"):
        sw.write([{"image": np.zeros((2, 2), "u1")}], tmp_path / "b@1", schema=first.schema)


def test_without_a_declaration_two_dimensions_that_vary_say_what_to_declare(tmp_path):
    items = [{"x": np.zeros((1, 2), "u1")}, {"x": np.zeros((2, 1), "u1")}]
    with pytest.raises(sw.DataError) as caught:
        sw.write(items, tmp_path / "t@1")
    assert "--schema 'x=uint8[null,null]'" in caught.value.hint
    sw.write(items, tmp_path / "t@1", schema="x=uint8[null,null]")
    with pytest.raises(sw.DataError, match=r"item 1.*shape \[2\].*in item 0"):
        sw.write([{"x": [[1]]}, {"x": [1, 2]}], tmp_path / "u@1")


def test_a_shape_feature_that_was_changed_is_an_error(tmp_path):
    sw.write([{"x": np.zeros((2, 3), "u1")}], tmp_path / "t@1", schema="x=uint8[null,null]")
    restorer = sw.open(tmp_path / "t")._core.decoder
    for shape in ([3, 3], [6], [-2, -3]):
        with pytest.raises(FeatureError, match="x/shape"):
            restorer.example(sw.encode_example({"x": [0] * 6, "x/shape": shape}))
    with pytest.raises(FeatureError, match="is missing"):
        restorer.example(sw.encode_example({"x": [0] * 6}))


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ("x=uint8", 300, "300 .*uint8"),
        ("x=uint8", [1, -1], "-1 .*uint8"),
        ("x=int8[2]", [1, 2, 3], r"\[3\].*int8\[2\]"),
        ("x=int64[]", [5], r"\[1\].*int64\[\]"),
        ("x=bool", 2, "2 .*bool"),
        ("x=int16", 1.0, "float32 values"),
        ("x=int64[1]", "a", "string values"),
        ("x=float16", 1e6, "1e\\+06"),
        ("x=string[2]", ["a"], r"\[1\]"),
        ("x=int64[null,null]", [[1], [2, 3]], "ragged"),
        ("x=raw:float32", 1e300, "1e\\+300"),
        ("x=raw:uint8[2]", b"abc", "3 bytes"),
        ("x=raw:uint16[null,2]", b"abcde", "5 bytes"),
        ("x=raw:uint8", b"abc", "the shape of 3 bytes is not known"),
        ("x=raw:int8", "abc", "a str"),
        ("x=raw:int8", np.zeros(2, complex), "complex128"),
        ("x=int8", sw.raw(np.zeros(2, "i1")), "a raw array"),
        ("x=uint8[null,null]", np.zeros((1, 1), "u1"), "x/shape"),
        ({"x": {"dtype": "int64", "vocabulary": ["a", "b"]}}, 2, "names for 0 to 1"),
        ({"x": {"dtype": "int64", "vocabulary": ["a", "b"]}}, [0, -1], "names for 0 to 1"),
    ],
)
def test_values_that_do_not_fit_name_item_feature_and_both_types(tmp_path, schema, value, why):
    bad = {"x": value, **({"x/shape": 1} if why == "x/shape" else {})}
    good = {"y": 1}
    with pytest.raises(FeatureError, match=rf"item 1, feature.*{why}"):
        sw.write([good, bad], tmp_path / "t@1", schema=schema)
    skipped = sw.write([good, bad], tmp_path / "t@1", schema=schema, on_error="skip")
    assert list(skipped.gaps) == [1]


@pytest.mark.parametrize(
    ("schema", "value", "wanted"),
    [
        ("x=float16[2]", [1, 2.5], np.array([1, 2.5], "f2")),
        ("x=float32", 3, np.float32(3)),
        ("x=raw:float32[2]", [1, 2], np.array([1, 2], "f4")),
        ("x=raw:uint8[2,2]", b"abcd", np.array([[97, 98], [99, 100]], "u1")),
        ("x=raw:int16[null]", bytearray(b"a\0b\0"), np.array([97, 98], "i2")),
        ("x=raw:int8[null,2]", [], np.zeros((0, 2), "i1")),
        ("x=raw:float32[]", 1.5, np.float32(1.5)),
        ("x=raw:float32[2]", sw.raw(np.ones(2)), np.ones(2, "f4")),
        ("x=uint8[null,3]", [], np.zeros((0, 3), "u1")),
        ("x=int64[3]", [], None),
        ("x=raw:int8[3]", [], None),
        ("x=string[null]", [], []),
        ("x=bool[2]", [0, 1], np.array([False, True])),
        ("x=uint64", 2**63 - 1, np.uint64(2**63 - 1)),
        ("x=bytes", "é", "é".encode()),
        ("x=uint64[2]", [np.uint64(2**62 + 1), 2], np.array([2**62 + 1, 2], "u8")),
        ("x=raw:uint64[2]", [np.uint64(2**63 + 1), 2], np.array([2**63 + 1, 2], "u8")),
    ],
)
def test_values_become_what_was_declared(tmp_path, schema, value, wanted):
    sw.write([{"x": value}], tmp_path / "t@1", schema=schema)
    found = sw.open(tmp_path / "t")[0]["x"]
    if isinstance(wanted, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()
    else:
        assert found == wanted


def test_features_that_are_not_declared_go_their_own_way(tmp_path):
    manifest = sw.write([{"x": 1, "y": "a"}], tmp_path / "t@1", schema="x=uint8[]")
    assert manifest.features["y"].type.dtype == "string"


# -- engines, resume, the job ----------------------------------------------------------------------


class Arrays:
    """Arrays of two dimensions that vary; item 7 is broken where that is asked for."""

    def __init__(self, broken=False):
        self.broken = broken

    def __len__(self):
        return 30

    def __getitem__(self, i):
        if self.broken and i == 17:
            raise KeyboardInterrupt
        return {"x": np.full((i % 4, i % 3), i, "u1"), "k": i % 2}


SCHEMA = {
    "x": "raw:uint8[null,null]",
    "k": {"dtype": "int8", "shape": [], "vocabulary": ["a", "b"]},
}


def test_two_workers_and_a_resumed_run_give_the_same(tmp_path):
    one = sw.write(Arrays(), tmp_path / "one@3", schema=SCHEMA)
    two = sw.write(Arrays(), tmp_path / "two@3", schema=SCHEMA, workers=2)
    run = sw.RunOptions(mark_s=0)
    with pytest.raises(KeyboardInterrupt):
        sw.write(Arrays(broken=True), tmp_path / "three@3", schema=SCHEMA, run=run)
    three = sw.write(Arrays(), tmp_path / "three@3", schema=SCHEMA, resume=True)
    for other in (two, three):
        assert other.schema == one.schema
        assert [s.crc32c for s in other.shards] == [s.crc32c for s in one.shards]


def test_a_declaration_is_a_part_of_the_job(tmp_path):
    def job(name, schema):
        items = [{"x": np.zeros((2, 2), "u1"), "k": 1}]
        return sw.write(items, tmp_path / name, schema=schema, overwrite=True).job

    assert job("t@3", SCHEMA) == job("t@3", SCHEMA)
    other = {**SCHEMA, "k": {"dtype": "int8", "shape": [], "vocabulary": ["a", "c"]}}
    jobs = [SCHEMA, other, "x=raw:uint8[null,null]", "x=uint8[null,null]", "x=uint8", None]
    assert len({job("t@3", schema) for schema in jobs}) == len(jobs)


# -- sources ---------------------------------------------------------------------------------------


def test_tables_are_held_to_it(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1,2.5,x\n2,,y\n")
    schema = {"a": "uint8[]", "b": "float16[]", "c": "string[]"}
    manifest = sw.write(path, tmp_path / "t@2", schema=schema)
    assert [manifest.features[n].type.dtype for n in "abc"] == ["uint8", "float16", "string"]
    assert list(sw.open(tmp_path / "t")) == [
        {"a": 1, "b": np.float16(2.5), "c": "x"},
        {"a": 2, "b": None, "c": "y"},
    ]
    path.write_text("a,b,c\n1,2.5,x\n300,,y\n")
    with pytest.raises(FeatureError, match=r"row 1.*300"):
        sw.write(path, tmp_path / "u@2", schema=schema)
    with pytest.raises(SourceError, match="does not exist"):
        sw.write(path, tmp_path / "u@2", schema="z=uint8")


def test_json_lines_are_held_to_it(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"x": [[1, 2], [3, 4]], "y": [1]}\n{"x": [[5, 6]], "y": []}\n')
    sw.write(path, tmp_path / "t@1", schema="x=raw:uint8[null,2],y=float16[null]")
    found = list(sw.open(tmp_path / "t"))
    assert [row["x"].tolist() for row in found] == [[[1, 2], [3, 4]], [[5, 6]]]
    assert [(row["y"].dtype.name, row["y"].tolist()) for row in found] == [
        ("float16", [1.0]),
        ("float16", []),
    ]
    with pytest.raises(FeatureError, match=r"\[2, 2\]"):
        sw.write(path, tmp_path / "u@1", schema="x=int64[null]")


def test_numpy_and_parquet_are_held_to_it(tmp_path):
    array = np.arange(24, dtype="i4").reshape(4, 3, 2)
    np.savez(tmp_path / "t.npz", x=array)
    for schema, dtype in (("x=raw:int32[3,2]", "int32"), ("x=uint8[3,2]", "uint8")):
        sw.write(tmp_path / "t.npz", tmp_path / "t@2", schema=schema, overwrite=True)
        found = sw.open(tmp_path / "t")[3]["x"]
        assert found.dtype == dtype
        assert (found == array[3]).all()
    with pytest.raises(FeatureError, match=r"row 0.*\[3, 2\].*uint8\[2,3\]"):
        sw.write(tmp_path / "t.npz", tmp_path / "u@2", schema="x=uint8[2,3]")
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    table = pa.table({"x": [[1.5], [2.5, 3.5]], "b": [b"\x01\x02", b"\x03\x04"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    sw.write(tmp_path / "t.parquet", tmp_path / "p@1", schema="x=float16[null],b=raw:uint16[]")
    found = sw.open(tmp_path / "p")[1]
    assert (found["x"].dtype, found["x"].tolist()) == (np.float16, [2.5, 3.5])
    assert found["b"] == np.uint16(0x0403)


def test_a_table_of_the_declared_types_is_still_encoded_in_blocks(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1,2.5,x\n2,,y\n")
    first = sw.write(path, tmp_path / "t@2")

    def refuse(*_):
        raise AssertionError("row by row")

    monkeypatch.setattr("shardwriter.writing.encode.RecordEncoder.encode", refuse)
    again = sw.write(path, tmp_path / "u@2", schema=tmp_path / "t.manifest.json")
    assert again.schema == first.schema


def test_classes_of_folders_are_held_against_the_vocabulary(tmp_path):
    png = encode_png(np.zeros((2, 2, 3), np.uint8))
    assert image_format(png) == "png"
    for folder, classes in (("train", ["ant", "bee", "cat"]), ("val", ["ant", "cat"])):
        for name in classes:
            (tmp_path / folder / name).mkdir(parents=True)
            (tmp_path / folder / name / "0.png").write_bytes(png)
    train = sw.write(tmp_path / "train", tmp_path / "train@1")
    schema = tmp_path / "train.manifest.json"
    with pytest.raises(OptionError, match=r"classes.*ant, bee, cat.*ant, cat"):
        sw.write(tmp_path / "val", tmp_path / "val@1", schema=schema)
    again = sw.write(tmp_path / "train", tmp_path / "again@1", schema=schema)
    assert again.schema == train.schema


def test_pictures_of_their_own_sizes_are_saved(tmp_path):
    items = [
        {"x": np.full((2 + i, 3, 3), i, "u1"), "m": np.full((4, 2 + i), i, "u1")} for i in (0, 1)
    ]
    schema = "x=uint8[null,null,3],m=raw:uint8[null,null]"
    sw.write(items, tmp_path / "t@1", schema=schema)
    command = ["show", str(tmp_path / "t"), "--count", "2", "--save-images", str(tmp_path / "look")]
    assert CliRunner().invoke(app, command).exit_code == 0
    for i, item in enumerate(items):
        for name, pixels in item.items():
            assert (tmp_path / "look" / f"{i}-{name}.png").read_bytes() == encode_png(
                pixels.reshape(*pixels.shape[:2], -1)
            )


def test_a_dry_run_tells_types_of_features_and_of_lists(tmp_path):
    from shardwriter.dataset.naming import parse_output
    from shardwriter.sources.find import open_source
    from shardwriter.writing.options import DatasetOptions
    from shardwriter.writing.plan import plan

    declared = declare("x=raw:uint8[null,null]")
    options = DatasetOptions(schema=declared.types)
    source = open_source([{"x": np.zeros((2, 3), "u1")}], "auto", declared.types)
    found = plan(source, parse_output(tmp_path / "t@1"), options)["features"]
    assert found["x"]["shape"] == [None, None]
    assert found["x/shape"]["shape"] == [2]
    sequences = open_source([sw.SequenceExample({"a[]": 1}, {"a": [1.0]})])
    found = plan(sequences, parse_output(tmp_path / "t@1"), DatasetOptions())["features"]
    assert {name: entry["kind"] for name, entry in found.items()} == {
        "a[]": "float",
        "a\\[]": "int64",
    }


def test_the_command_takes_a_text_or_a_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2.5\n2,3\n")
    (tmp_path / "s.json").write_text('{"a": {"dtype": "uint8", "shape": []}, "b": "float16[]"}')
    out = tmp_path / "t@1"
    for schema in ("a=uint8[],b=float16[]", str(tmp_path / "s.json")):
        command = ["write", str(path), str(out), "--schema", schema, "--overwrite"]
        assert CliRunner().invoke(app, command).exit_code == 0
        types = {n: s.type.dtype for n, s in sw.open(tmp_path / "t").features.items()}
        assert types == {"a": "uint8", "b": "float16"}
    done = CliRunner().invoke(app, ["write", str(path), str(out), "--schema", "a=uint8[],b=flo[2]"])
    assert done.exit_code == 2
    assert "character 13" in done.stderr


def test_names_are_text():
    with pytest.raises(OptionError, match="1, which is not a feature name"):
        declare({1: "int64"})
