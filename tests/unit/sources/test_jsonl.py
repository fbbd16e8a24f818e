"""JSON lines: what is loaded is what json reads, typed over the whole input."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import random
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.errors import SourceError
from shardwriter.formats import UNSET, decode_example
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources import jsonl as jsonl_file
from shardwriter.sources.find import open_source
from shardwriter.sources.jsonl import JsonLines
from shardwriter.writing.encode import ItemEncoder
from shardwriter.writing.options import DatasetOptions

STRING = FeatureType("bytes", "string")
FLOAT = FeatureType("float", "float32")
INT = FeatureType("int64", "int64")


@pytest.fixture
def lines(tmp_path):
    """Return a function that writes files and opens them as one table."""

    def open_lines(*contents, schema=None, name="t{}.jsonl"):
        paths = []
        for number, content in enumerate(contents):
            path = tmp_path / name.format(number)
            if isinstance(content, list):
                content = "".join(json.dumps(row) + "\n" for row in content)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            paths.append(str(path))
        return JsonLines(paths, schema)

    return open_lines


def column(*values):
    return [{"x": value} for value in values]


def rows_of(source):
    return [source.load(item) for item in source.items()]


def written(source):
    """Return the records in columns, held against those row by row."""
    label = next(iter(source.plan), None)
    rows, columns = (ItemEncoder(source, DatasetOptions(label=label), 1) for _ in range(2))
    one_by_one = [rows.record(index, item) for index, item in enumerate(source.items())]
    assert [r for _, r in columns.records(enumerate(source.items()))] == one_by_one
    assert columns.encoder.schema.to_json() == rows.encoder.schema.to_json()
    labels = rows.encoder.labels.to_json()
    assert json.dumps(columns.encoder.labels.to_json()) == json.dumps(labels)
    planned = {name: (t.kind, t.dtype, t.shape) for name, t in source.plan.items()}
    found = {name: s.type for name, s in columns.encoder.schema.features.items()}
    assert {name: (t.kind, t.dtype, t.shape) for name, t in found.items()} == planned
    return one_by_one


# -- records hold the values ---------------------------------------------------------------------

INTS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1))
NUMBERS = st.one_of(INTS, st.floats(width=32))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = ["a", "b", "ab", "é\u2028", ""]


@st.composite
def features(draw):
    """Values of one feature over a few rows; None is null, ... is a row without it."""
    leaf = draw(st.sampled_from([INTS, NUMBERS, TEXTS]))
    some = st.one_of(leaf, st.lists(leaf, max_size=4))
    if leaf is not TEXTS and draw(st.booleans()):
        width = draw(st.integers(1, 3))
        some = st.lists(st.lists(leaf, min_size=width, max_size=width), max_size=3)
    return draw(st.lists(st.one_of(some, some, st.none(), st.just(...)), min_size=7, max_size=7))


def flat(value):
    return [leaf for part in value for leaf in flat(part)] if type(value) is list else [value]


def same_numbers(found, wanted):
    return struct.pack(f"{len(found)}f", *found) == struct.pack(f"{len(wanted)}f", *wanted) or (
        np.array_equal(np.float32(found), np.float32(wanted), equal_nan=True)
    )


@given(
    st.lists(features(), min_size=len(NAMES), max_size=len(NAMES)),
    st.integers(1, 60),
    st.sampled_from(["\n", "\r\n", "\n \n", "\n\n"]),
    st.booleans(),
    st.booleans(),
)
def test_records_decode_to_the_values(tmp_path_factory, columns, read_bytes, end, bom, ascii):
    rows = [
        {n: v for n, v in zip(NAMES, values, strict=True) if v is not ...}
        for values in zip(*columns, strict=True)
    ]
    text = ("\ufeff" if bom else "") + end.join(json.dumps(r, ensure_ascii=ascii) for r in rows)
    path = tmp_path_factory.mktemp("rows") / "t.jsonl"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl_file, "_READ_BYTES", read_bytes)
        source = JsonLines([str(path)])
    assert source.num_items == len(rows)
    leaves = {n: [leaf for r in rows if r.get(n) is not None for leaf in flat(r[n])] for n in NAMES}
    for row, record in zip(rows, written(source), strict=True):
        found = decode_example(record)
        assert found.keys() == row.keys()
        for name, value in row.items():
            kinds = set(map(type, leaves[name]))
            if value is None or not kinds:
                assert found[name] is None
            elif str in kinds:
                assert found[name] == [text.encode() for text in flat(value)]
            elif float in kinds:
                assert found[name].dtype == np.float32
                assert same_numbers(found[name].tolist(), flat(value))
            else:
                assert found[name].dtype == np.int64
                assert found[name].tolist() == flat(value)


def test_a_csv_and_a_jsonl_of_one_table_give_equal_shards(tmp_path):
    rng = random.Random(5)
    rows = [
        {
            "id": i,
            "score": None if i % 7 == 0 else rng.random(),
            "name": None if i % 5 == 0 else f'é "{i}"',
            "none": None,
        }
        for i in range(3000)
    ]
    with open(tmp_path / "t.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in ("csv", "jsonl"):
        sw.write(tmp_path / f"t.{kind}", tmp_path / kind / "x@3", label="name")
    for shard in range(3):
        name = f"x.tfrecord-0000{shard}-of-00003"
        assert (tmp_path / "csv" / name).read_bytes() == (tmp_path / "jsonl" / name).read_bytes()
    first, second = (sw.verify(tmp_path / kind / "x") for kind in ("csv", "jsonl"))
    assert first.verdict == second.verdict


# -- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "shape"),
    [
        ([True, None], "int64", "bool", ()),
        ([True, 2], "int64", "int64", ()),
        ([1, 2.5], "float", "float32", ()),
        ([1, math.nan], "float", "float32", ()),
        ([2**70, 0.5], "float", "float32", ()),
        (["a", None], "bytes", "string", ()),
        ([None, None], None, None, None),
        ([[], None], None, None, None),
        ([[1, 2], [3, 4]], "int64", "int64", (2,)),
        ([[1, 2], [3]], "int64", "int64", (None,)),
        ([[1, 2], []], "int64", "int64", (None,)),
        ([1, []], "int64", "int64", (None,)),
        ([1, [2, 3]], "int64", "int64", (None,)),
        ([[1, 2], [0.5]], "float", "float32", (None,)),
        ([["a"], ["b", "c"]], "bytes", "string", (None,)),
        ([[[1, 2]], [[3, 4], [5, 6]], []], "int64", "int64", (None, 2)),
        ([[[1, 2]], [[3, 4]]], "int64", "int64", (1, 2)),
    ],
)
@pytest.mark.parametrize("read_bytes", [1, 1 << 20])
def test_type_of_a_feature(lines, monkeypatch, values, kind, dtype, shape, read_bytes):
    monkeypatch.setattr(jsonl_file, "_READ_BYTES", read_bytes)
    for order in (values, values[::-1]):
        source = lines(column(*order))
        assert source.plan["x"] == FeatureType(kind, dtype, shape)
        written(source)


def test_null_missing_and_empty_are_three_things(lines):
    source = lines([{"x": None}, {}, {"x": []}, {"x": [1]}])
    assert rows_of(source) == [{"x": UNSET}, {}, {"x": []}, {"x": [1]}]
    records = written(source)
    assert [decode_example(r).get("x", "absent") is None for r in records] == [True, *[False] * 3]
    assert records[1] == b"\x0a\x00"
    assert b"\x12\x02\x1a\x00" in records[2]


def test_infinity_as_it_stands_is_a_float(lines):
    source = lines('{"x": Infinity}\n{"x": -Infinity}\n{"x": NaN}\n')
    values = [row["x"] for row in rows_of(source)]
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])


@pytest.mark.parametrize(
    ("rows", "line", "words", "hint"),
    [
        (column(1, "a"), 2, "a string, but an integer in line 1", "--schema x=string"),
        (column(*range(3000), "a"), 3001, "a string, but an integer in line 1", "--map"),
        (column("a", None, 0.5), 3, "a float, but a string in line 1", "--schema x=string"),
        (column([1, "a"]), 1, "a list has a string and other values", "--map"),
        (column(1, {"y": 1}), 2, "an object can not be stored", "--map"),
        (column([{"y": 1}]), 1, "an object inside a list", "--map"),
        (column([1, None]), 1, "null inside a list", "--map"),
        (column([[1, 2], [3]]), 1, "ragged list: rows of 1 and 2", "--map"),
        (column([1, [2]]), 1, "both lists and single values", "--map"),
        (column([["a"]]), 1, "nested list of strings", "--map"),
        (column([[1, 2]], [[1], [2]]), 2, "two dimensions vary", "--map"),
        (column([[1, 2]], [1]), 2, "can not be one feature", "--map"),
        (column(1, 2**63), 2, "9223372036854775808 is beyond int64", "x=string"),
        (column(0.5, 1e39), 2, "beyond float32", "x=string"),
        ('{"x": 0.5}\n{"x": 1e400}\n', 2, "beyond float32", "x=string"),
        (column([0.5, 10**39]), 1, "beyond float32", "x=string"),
        ('{"x": 1' + "0" * 5000 + "}\n", 1, "beyond float32", "x=string"),
    ],
)
@pytest.mark.parametrize("read_bytes", [1, 1 << 20])
def test_what_has_no_type_is_named(lines, monkeypatch, rows, line, words, hint, read_bytes):
    monkeypatch.setattr(jsonl_file, "_READ_BYTES", read_bytes)
    source = lines(rows)
    with pytest.raises(SourceError, match=words) as caught:
        _ = source.plan
    error = caught.value
    assert (error.line, error.feature) == (line, "x")
    assert error.path.endswith("t0.jsonl")
    assert hint in error.hint


def test_a_map_takes_what_has_no_type(lines, tmp_path):
    lines([{"box": {"w": i, "h": 2}, "tags": [1, "a"], "none": None} for i in range(5)])
    with pytest.raises(SourceError, match="an object can not be stored"):
        sw.write(tmp_path / "t0.jsonl", tmp_path / "x@2")
    assert not list(tmp_path.glob("*x*.tfrecord*"))
    assert not (tmp_path / ".x.partial").exists()

    def area(row):
        assert row["none"] is UNSET
        return {"area": row["box"]["w"] * row["box"]["h"]}

    manifest = sw.write(tmp_path / "t0.jsonl", tmp_path / "x@2", map=area)
    assert manifest.num_records == 5
    assert list(manifest.features) == ["area"]


def test_schema_fixes_types(lines):
    def values(rows, planned):
        source = lines(rows, schema={"x": planned})
        written(source)
        return [row["x"] for row in rows_of(source)]

    text = '{"x": 1.50}\n{"x": "a"}\n{"x": [12345678901234567890, true]}\n{"x": null}\n{"x": NaN}\n'
    assert values(text, STRING) == ["1.50", "a", ["12345678901234567890", "true"], UNSET, "NaN"]
    assert values('{"x": 1' + "0" * 5000 + "}\n", STRING) == ["1" + "0" * 5000]
    assert values(column(1, True, [2, 0.5]), FLOAT) == [1.0, 1.0, [2.0, 0.5]]
    assert values(column(7.0, 3, [1.0]), INT) == [7, 3, [1]]
    assert values(column(None, []), INT) == [UNSET, []]


@pytest.mark.parametrize(
    ("values", "planned", "words"),
    [
        ([1, 0.5], INT, "has int64, but 0.5 is not an integer"),
        ([1, math.nan], INT, "has int64, but nan is not an integer"),
        ([float(2**60)], INT, "not an integer"),
        ([1, "a"], INT, "has int64, but this is a string"),
        ([1, "a"], FLOAT, "has float, but this is a string"),
        ([10**39], FLOAT, "beyond float32"),
        ([[[1]]], STRING, "nested list of strings"),
    ],
)
def test_schema_that_does_not_fit_is_refused(lines, values, planned, words):
    with pytest.raises(SourceError, match=words):
        _ = lines(column(*values), schema={"x": planned}).plan
    with pytest.raises(SourceError, match="in no row"):
        _ = lines(column(1), schema={"y": planned}).plan


# -- what is wrong, and in which line ------------------------------------------------------------

ROW = b'{"a": 1}\n'


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (ROW + b'{"a": 1\n', 2, r"not JSON: .* \(column"),
        (ROW + b"\n \r\n" + b"{'a': 1}\n", 4, "not JSON"),
        (ROW + b"[1]\n", 2, "an array, not an object"),
        (ROW + b"7\n", 2, "a number, not an object"),
        (ROW + b'"a"', 2, "a string, not an object"),
        (ROW + b"null\n", 2, "null, not an object"),
        (ROW + b'{"a": 1} {"a": 2}\n', 2, "there is more after the object, from column 9"),
        (ROW + b'{"a": 1},\n', 2, "there is more after"),
        (ROW + b'{"a": 1, "b": 2, "a": 3}\n', 2, "the key 'a' appears twice"),
        (ROW + b'{"x": {"a": 1, "a": 3}}\n', 2, "the key 'a' appears twice"),
        (ROW + b'{"a": "\t"}\n', 2, "not JSON: Invalid control character"),
        (ROW + b'{"a": "\xfc"}\n', 2, "0xfc is not UTF-8"),
        (b"\xef\xbb\xbf" + ROW * 50 + b'{"a": "\xfc"}\n' + ROW, 51, "0xfc is not UTF-8"),
        (ROW + b'{"a": ' + b"[" * 100_000 + b"\n", 2, "nested more than|not JSON"),
        ("{}\n".encode("utf-16"), 1, "0xff is not UTF-8"),
        (b"\0\0", 1, "not JSON"),
        (b'[\n{"a": 1}\n]\n', 1, "not JSON"),
        (b'{\n"a": 1\n}\n', 1, "not JSON"),
        (b'{"a": 1}\r{"a": 2}\r', 1, "there is more after"),
    ],
)
@pytest.mark.parametrize("read_bytes", [3, 1 << 20])
def test_a_broken_line_is_named(lines, monkeypatch, data, line, words, read_bytes):
    monkeypatch.setattr(jsonl_file, "_READ_BYTES", read_bytes)
    with pytest.raises(SourceError, match=words) as caught:
        lines(data)
    assert caught.value.line == line
    assert caught.value.path.endswith("t0.jsonl")
    if line == 1 and data[:1] in b"[{" and b"\r" not in data:
        assert "jq -c" in caught.value.hint


def test_line_separators_inside_strings_end_no_line(lines):
    text = "\u2028\u2029\u0085\x7f"
    assert rows_of(lines(json.dumps({"x": text}, ensure_ascii=False))) == [{"x": text}]


def test_a_line_of_many_megabytes(lines):
    rows = [{"x": "a"}, {"x": "é" * 8_000_000}, {"x": "b"}]
    assert rows_of(lines("\n".join(json.dumps(r, ensure_ascii=False) for r in rows))) == rows


def test_no_rows(lines):
    for data in (b"", b"\n \n", b"\xef\xbb\xbf"):
        source = lines(data, schema={"x": INT})
        assert (source.num_items, dict(source.plan), list(source.items())) == (0, {}, [])


def test_rows_without_any_key_are_empty_records(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(b"{}\n{}\n")
    sw.write(tmp_path / "t.jsonl", tmp_path / "t@1")
    assert list(sw.open(tmp_path / "t")) == [{}, {}]


# -- files ---------------------------------------------------------------------------------------


def test_several_files_are_one_table(lines):
    source = lines("\ufeff" + '{"a": 1}\n{"b": "x"}', b"", [{"a": 2.5}], gzip.compress(ROW))
    assert rows_of(source) == [{"a": 1.0}, {"b": "x"}, {"a": 2.5}, {"a": 1.0}]
    assert [source.key(i) for i in source.items()] == [
        "t0.jsonl row 0",
        "t0.jsonl row 1",
        "t2.jsonl row 0",
        "t3.jsonl row 0",
    ]
    columns = source.load_columns([3, 1, 0])
    assert list(columns["a"].values) == [1.0, None, 1.0]
    written(source)


def test_gzip_is_unpacked(lines):
    text = "".join(json.dumps({"a": i, "b": f"x{i}"}) + "\n" for i in range(4000))
    packed = lines(gzip.compress(text.encode()))
    plain = lines(text, name="p{}.jsonl")
    assert rows_of(packed) == rows_of(plain)
    assert packed.digest() == plain.digest()
    assert packed.digest() != lines(text.replace("x7", "x8")).digest()
    with pytest.raises(SourceError, match="can not be decompressed"):
        lines(gzip.compress(text.encode())[:-12])


def test_a_named_pipe_is_read_once_and_kept(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(ROW * 5000,))
    writer.start()
    source = open_source(str(path), "jsonl")
    writer.join()
    assert source.num_items == 5000
    assert source.load(4999) == source.load(0) == {"a": 1}


def test_standard_input_is_a_table(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "shardwriter", "write", "-", "x@2", "--format", "jsonl"],
        input=ROW * 7,
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "7 records" in sw.stats(tmp_path / "x").verdict


@pytest.mark.parametrize("after", ['{"a": 1}\n{"a": 2}\n', '{"a": "x"}\n{"a": 2}\n', "[]\n" * 3])
@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_that_changes_after_the_scan_is_refused(lines, tmp_path, after, keep_time):
    source = lines('{"a": 0.5}\n{"a": 3}\n')
    path = tmp_path / "t0.jsonl"
    stat = path.stat()
    path.write_text(after)
    if keep_time:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if not keep_time or path.stat().st_size != stat.st_size:
        for load in (lambda: source.load(1), lambda: source.load_columns([0, 1])):
            with pytest.raises(SourceError, match="has changed"):
                load()


# -- files of others -----------------------------------------------------------------------------


def test_real_files(data_dir, tmp_path):
    folder = data_dir / "tensorflow+io" / "tests" / "test_json"
    for name in ("feature", "label"):
        source = open_source(str(folder / f"{name}.ndjson"))
        rows = json.loads((folder / f"{name}.json").read_text())
        assert source.kind == "jsonl"
        assert rows_of(source) == rows
        assert sorted(t.kind for t in source.plan.values()) == ["float", "int64"]
        sw.write(folder / f"{name}.ndjson", tmp_path / f"{name}@1")
    for name in ("feature", "label", "iris", "species"):
        with pytest.raises(SourceError, match="not one object per line") as caught:
            open_source(str(folder / f"{name}.json"))
        assert "jq -c '.[]'" in caught.value.hint
    with pytest.raises(SourceError, match="an object inside a list") as caught:
        sw.write(data_dir / "pytorch+data" / "test" / "_fakedata" / "json", tmp_path / "fake@1")
    assert (caught.value.line, caught.value.feature) == (1, "0_0")


def test_rows_that_share_few_keys_come_in_small_blocks(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"id": n, f"k{n}": n}) + "\n" for n in range(3000)))
    source = open_source(str(path))
    assert source.block_items < 32  # a block has a cell for each of its rows and keys
    assert list(source.load_columns([5, 6])) == ["id", "k5", "k6"]
    assert source.load_columns([5, 6])["k6"].values[1] == 6
    sw.write(path, tmp_path / "o@1")
    with sw.open(tmp_path / "o") as dataset:
        assert dict(dataset[2999]) == {"id": 2999, "k2999": 2999}


def test_a_key_that_stands_twice_among_many_is_found_in_linear_time(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({f"k{n}": n for n in range(40_000)})[:-1] + ',"k39999":1}\n')
    with pytest.raises(SourceError, match="the key 'k39999' appears twice"):
        open_source(str(path))
