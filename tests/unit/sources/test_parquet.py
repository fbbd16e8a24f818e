"""Parquet and Arrow files: what is loaded is what pyarrow reads, by the types of the schema."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import subprocess
import sys

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import DataError, FeatureError, OptionError, SourceChanged, SourceError
from shardwriter.formats import UNSET, decode_example, encode_example
from shardwriter.schema.declared import declare
from shardwriter.schema.feature_types import FeatureType, parse_schema_option
from shardwriter.sources import arrow as arrow_rows
from shardwriter.sources.arrow import ArrowFile
from shardwriter.sources.find import open_source
from shardwriter.sources.parquet import ParquetTable
from shardwriter.sources.tables import TableOptions
from shardwriter.writing.encode import ItemEncoder
from shardwriter.writing.options import DatasetOptions

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
feather = pytest.importorskip("pyarrow.feather")
pq = pytest.importorskip("pyarrow.parquet")

LIST = pa.list_(pa.int64())
HF_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture
def table(tmp_path):
    """Return a function that writes columns and opens the file."""

    def open_table(columns, schema=None, metadata=None, **options):
        made = pa.table(columns).replace_schema_metadata(metadata)
        path = tmp_path / "t.parquet"
        pq.write_table(made, path, **options)
        return ParquetTable([str(path)], parse_schema_option(schema) if schema else None)

    return open_table


def rows_of(source):
    return [source.load(item) for item in source.items()]


def records_of(source):
    encoder = ItemEncoder(source, DatasetOptions(), 1)
    return [record for _, record in encoder.records(enumerate(source.items()))]


def taxi(data_dir):
    folder = data_dir / "tensorflow+tfx/tfx/components/testdata/external"
    if not folder.is_dir():
        pytest.skip("the taxi data are not there")
    return folder


# -- what is read ----------------------------------------------------------------------------------


def test_the_taxi_table_equals_its_csv(data_dir):
    folder = taxi(data_dir)
    # Columns that are whole numbers in all cells of the CSV file are doubles in the other.
    rows, cells = open_source(folder / "parquet"), open_source(folder / "csv/data.csv")
    floats = [n for n, t in rows.plan.items() if t.kind != cells.plan[n].kind]
    fixed = {name: FeatureType("float", "float32") for name in floats}
    cells = open_source(folder / "csv/data.csv", schema=fixed)
    assert rows.num_items == cells.num_items == 10_000
    assert {n: t.kind for n, t in rows.plan.items()} == {n: t.kind for n, t in cells.plan.items()}
    # Whoever made the table wrote pandas' nan as text where the CSV file has an empty cell.
    kinds = {name: planned.kind for name, planned in cells.plan.items()}
    expected = rows_of(cells)
    for row in expected:
        row["company"] = "nan" if row["company"] is UNSET else row["company"]
    assert records_of(rows) == [encode_example(row, kinds) for row in expected]
    assert any(value is UNSET for row in expected for value in row.values())


def test_tables_of_old_writers(data_dir):
    folder = data_dir / "pypi+pyarrow/parquet"
    if not folder.is_dir():
        pytest.skip("the files of pyarrow are not there")
    for path in sorted(folder.iterdir()):
        source = open_source(path)
        expected = pq.read_table(path).to_pylist()
        assert [
            {n: None if v is UNSET else v for n, v in row.items()} for row in rows_of(source)
        ] == (expected)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("row_group_size", [1, 7, 1000])
def test_any_order_gives_the_rows_of_pyarrow(table, compression, row_group_size):
    columns = {"x": range(50), "y": [None if i % 3 else str(i) for i in range(50)]}
    source = table(columns, compression=compression, row_group_size=row_group_size)
    places = random.Random(0).choices(range(50), k=200)
    found = source.load_columns(places)
    assert found["x"].values.tolist() == places
    assert found["y"].values == [UNSET if i % 3 else str(i) for i in places]
    assert [source.load(i)["x"] for i in places] == places


@pytest.mark.parametrize("way", ["file", "stream", "feather", "lz4", "zstd"])
def test_arrow_files_are_the_same_table(tmp_path, table, way):
    columns = {"x": range(20), "y": [[i] * (i % 3) for i in range(20)]}
    expected = table(columns)
    made, path = pa.table(columns), tmp_path / "other"
    if way in ("file", "stream"):
        new = pa.ipc.new_file if way == "file" else pa.ipc.new_stream
        with new(path, made.schema) as writer:
            writer.write_table(made, max_chunksize=6)
    else:
        packed = way if way != "feather" else "uncompressed"
        feather.write_feather(made, path, compression=packed, chunksize=6)
    source = open_source(path)  # found by its content
    assert source.kind == "parquet"
    assert source.plan == expected.plan
    assert records_of(source) == records_of(expected)
    assert [source.load(i)["x"] for i in (19, 3, 12, 0)] == [19, 3, 12, 0]


def test_lists_of_nothing_that_would_not_come_back_are_refused(table):
    # Neither has a value, so no reader could tell [] from [[]].
    with pytest.raises(SourceError, match=r"shapes \[1, 0\] and \[0, 0\]"):
        _ = table({"x": pa.array([[], [[]]], pa.list_(LIST))}).plan


@pytest.mark.parametrize(
    ("values", "arrow_type", "plan"),
    [
        ([True, None], pa.bool_(), ("int64", "bool", ())),
        ([-1, None], pa.int8(), ("int64", "int8", ())),
        ([2**63 - 1], pa.uint64(), ("int64", "uint64", ())),
        ([0.5, None], pa.float32(), ("float", "float32", ())),
        (["a", None], pa.large_string(), ("bytes", "string", ())),
        ([b"ab"], pa.binary(2), ("bytes", "bytes", ())),
        (["a", "b", None], pa.dictionary(pa.int8(), pa.string()), ("bytes", "string", ())),
        ([[1], [], None], LIST, ("int64", "int64", (None,))),
        ([["a"], []], pa.large_list(pa.string()), ("bytes", "string", (None,))),
        ([[1, 2], [3, 4]], pa.list_(pa.int16(), 2), ("int64", "int16", (2,))),
        ([[[1, 2], [3, 4]]], pa.list_(LIST), ("int64", "int64", (2, 2))),
        ([[[1, 2]], [[3, 4]] * 2, [], None], pa.list_(LIST), ("int64", "int64", (None, 2))),
        ([[[1, 2]] * 2], pa.list_(pa.list_(pa.int64(), 2), 2), ("int64", "int64", (2, 2))),
        ([{"bytes": b"x", "path": None}, None], HF_IMAGE, ("bytes", "bytes", ())),
        ([None], pa.null(), (None, None, None)),
    ],
)
def test_types(table, values, arrow_type, plan):
    source = table({"x": pa.array(values, arrow_type)}, row_group_size=2)
    found = source.plan["x"]
    assert (found.kind, found.dtype, found.shape) == plan
    loaded = [row["x"] for row in rows_of(source)]
    for value, expected in zip(loaded, values, strict=True):
        if expected is None:
            assert value is UNSET
        elif isinstance(expected, dict):
            assert value == b"x"
        else:
            assert np.asarray(value).tolist() == (
                expected if not isinstance(value, np.ndarray) else np.array(expected).tolist()
            )
    kinds = {"x": found.kind} if found.kind else None
    assert records_of(source) == [encode_example({"x": value}, kinds) for value in loaded]


def test_a_slice_of_every_type_is_that_slice(table):
    values = [[[i, 1]] * (i % 3) if i % 4 else None for i in range(30)]
    source = table({"x": pa.array(values, pa.list_(LIST)), "f": [i % 3 == 0 for i in range(30)]})
    whole = records_of(source)
    for first, stop in ((0, 30), (7, 19), (29, 30), (4, 4)):
        encoder = ItemEncoder(source, DatasetOptions(), 1)
        some = encoder.records([(i, i) for i in range(first, stop)])
        assert [record for _, record in some] == whole[first:stop]


def test_what_a_map_gets_is_its_own(table):
    source = table({"x": [[1, 2]], "n": [1], "t": ["a"]})
    row = source.load(0)
    assert (type(row["n"]), type(row["t"])) == (int, str)
    row["x"] += 1
    assert source.load(0)["x"].tolist() == [1, 2]


def test_columns_of_hugging_face_datasets(table):
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
        "sound": {"_type": "Audio"},
    }
    gif = b"GIF89a\x07\0\x05\0\0\0\0;"
    source = table(
        {
            "image": pa.array([{"bytes": gif, "path": "a.gif"}] * 2, HF_IMAGE),
            "label": [1, 0],
            "sound": pa.array([{"bytes": b"RIFF", "path": None}] * 2, HF_IMAGE),
        },
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    assert source.plan["image"] == FeatureType("bytes", "bytes", (), "image", "image")
    assert source.plan["sound"] == FeatureType("bytes", "bytes", ())
    assert (source.label, source.vocabularies) == ("label", {"label": ["cat", "dog"]})
    assert source.load(0) == {"image": gif, "label": 1, "sound": b"RIFF"}
    rows, columns = (ItemEncoder(source, DatasetOptions(), 1) for _ in range(2))
    one_by_one = [(i, rows.record(i, i)) for i in range(2)]
    assert list(columns.records([(0, 0), (1, 1)])) == one_by_one
    assert rows.encoder.schema.to_json() == columns.encoder.schema.to_json()


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "arrow_type"),
    [
        ([datetime.datetime(2020, 1, 2)], pa.timestamp("us")),
        ([datetime.date(2020, 1, 2)], pa.date32()),
        ([decimal.Decimal("1.50")], pa.decimal128(5, 2)),
        ([{"a": 1}], pa.struct([("a", pa.int64())])),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        ([[["a"]]], pa.list_(pa.list_(pa.string()))),
    ],
)
def test_a_type_without_a_place_is_told_and_a_map_gets_it(table, values, arrow_type):
    source = table({"id": [1], "x": pa.array(values, arrow_type)})
    with pytest.raises(SourceError, match="can not be stored in a feature") as caught:
        _ = source.plan
    assert (caught.value.feature, "--map" in caught.value.hint) == ("x", True)
    assert caught.value.path.endswith("t.parquet")
    assert source.load(0) == {"id": 1, "x": values[0]}


@pytest.mark.parametrize(
    ("values", "arrow_type", "fixed", "expected"),
    [
        ([datetime.datetime(1970, 1, 2)], pa.timestamp("ms"), "int64", 86_400_000),
        ([datetime.datetime(1970, 1, 2)], pa.timestamp("ms"), "string", "1970-01-02 00:00:00.000"),
        ([datetime.date(1970, 1, 2)], pa.date32(), "int64", 1),
        ([decimal.Decimal("1.50")], pa.decimal128(5, 2), "float", 1.5),
        ([decimal.Decimal("1.50")], pa.decimal128(5, 2), "string", "1.50"),
        ([7], pa.int8(), "float", 7),
        ([7], pa.int8(), "string", "7"),
        ([7.0], pa.float64(), "int64", 7),
        (["7"], pa.string(), "int64", 7),
        (["ab"], pa.string(), "bytes", b"ab"),
        ([b"ab"], pa.binary(), "string", "ab"),
        ([b"ab"], pa.binary(), "image", b"ab"),
        ([None], pa.null(), "float", UNSET),
    ],
)
def test_fixed_types(table, values, arrow_type, fixed, expected):
    source = table({"x": pa.array(values, arrow_type)}, f"x={fixed}")
    assert source.load(0) == {"x": expected}
    kind = "bytes" if fixed in ("string", "image") else fixed
    assert source.plan["x"].kind == kind
    assert records_of(source) == [encode_example({"x": expected}, {"x": kind})]


def test_fixed_types_that_can_not_be(table):
    source = table({"x": pa.array([{"a": 1}]), "y": [1]}, "x=int64")
    with pytest.raises(SourceError, match="the schema has int64") as caught:
        _ = source.plan
    assert caught.value.feature == "x"
    with pytest.raises(SourceError, match="does not exist") as caught:
        table({"x": [1]}, "z=int64")
    assert "the columns are x" in caught.value.hint


@pytest.mark.parametrize(
    ("values", "arrow_type", "schema", "words"),
    [
        ([1, 2**63, 3], pa.uint64(), None, "int64"),
        ([1.0, 1e300, 2.0], pa.float64(), None, "float32"),
        ([[1], [None], [3]], LIST, None, "has a null in it"),
        ([[1.0], [1e300], [2.0]], pa.list_(pa.float64()), None, "float32"),
        (["1", "x", "3"], pa.string(), "x=int64", "not int64"),
        ([b"a", b"\xff", b"c"], pa.binary(), "x=string", "not string"),
        (
            [{"bytes": b, "path": "p"} for b in (b"a", None, b"c")],
            HF_IMAGE,
            None,
            "only the name",
        ),
    ],
)
def test_one_bad_row_is_told_and_can_be_skipped(tmp_path, table, values, arrow_type, schema, words):
    table({"x": pa.array(values, arrow_type)})
    with pytest.raises(DataError, match=words) as caught:
        sw.write(tmp_path / "t.parquet", tmp_path / "a/t@1", schema=schema)
    assert (caught.value.index, caught.value.item, caught.value.feature) == (1, "row 1", "x")
    assert isinstance(caught.value, (SourceError, FeatureError))
    out = tmp_path / "b/t@1"
    manifest = sw.write(tmp_path / "t.parquet", out, schema=schema, on_error="skip")
    assert (manifest.num_records, manifest.num_items) == (2, 3)


def test_ragged_lists_are_refused_by_name(table):
    source = table({"x": pa.array([[[1], [2]], [[1], [2, 3]]], pa.list_(LIST))})
    with pytest.raises(SourceError, match="ragged") as caught:
        _ = source.plan
    assert (caught.value.feature, "--map" in caught.value.hint) == ("x", True)
    source = table({"x": pa.array([[[1], [2]], [[1, 2, 3]]], pa.list_(LIST))})
    with pytest.raises(SourceError, match="two dimensions vary"):
        _ = source.plan
    assert source.load(1)["x"] == [[1, 2, 3]]


def test_text_that_is_not_utf8(tmp_path):
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
    )
    pq.write_table(pa.table({"x": broken}), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="0xff is not UTF-8") as caught:
        source.load(0)
    assert "x=bytes" in caught.value.hint
    fixed = open_source(tmp_path / "t.parquet", schema=parse_schema_option("x=bytes"))
    assert fixed.load(0) == {"x": b"\xff"}


def test_files_have_to_have_the_same_columns(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "2.parquet")
    with pytest.raises(SourceError, match="x: double differs") as caught:
        open_source(tmp_path)
    assert caught.value.path.endswith("2.parquet")
    # What the inside of a list is called is the writer's affair.
    lists = [pa.field("item", pa.int64()), pa.field("element", pa.int64(), nullable=False)]
    for number, field in enumerate(lists, 1):
        made = pa.table({"x": pa.array([[number]], pa.list_(field))})
        feather.write_feather(made, tmp_path / f"{number}.parquet")
    assert [row["x"].tolist() for row in rows_of(open_source(tmp_path))] == [[1], [2]]
    assert open_source(tmp_path).load_columns([1, 0])["x"].values.tolist() == [[2], [1]]


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"PAR1" + bytes(100), "can not be read"), (b"", "empty"), (b"FEA1" + bytes(9), "Feather")],
)
def test_files_that_are_none(tmp_path, data, words):
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(SourceError, match=words) as caught:
        open_source(tmp_path / "t.parquet", "parquet")
    assert caught.value.path.endswith("t.parquet")


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_any_cut_of_a_file_is_told(tmp_path, kind):
    path = tmp_path / "t"
    made = pa.table({"x": range(100)})
    if kind == "parquet":
        pq.write_table(made, path)
    else:
        with {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind](path, made.schema) as w:
            w.write_table(made, max_chunksize=30)
    data = path.read_bytes()
    whole = records_of(open_source(path))
    for size in range(1, len(data), 37):
        path.write_bytes(data[:size])
        try:
            assert records_of(open_source(path, "parquet")) == whole[: len(whole)]
        except SourceError as error:
            assert error.path == str(path)
        except AssertionError:
            # A stream may end behind any batch: nothing says how many there are.
            assert kind == "stream"


def test_a_length_that_takes_all_memory_is_told(tmp_path, monkeypatch):
    def open_reader(self, columns=None):
        raise MemoryError

    monkeypatch.setattr(ArrowFile, "_open_reader", open_reader)
    (tmp_path / "t.arrow").write_bytes(b"\xff\xff\xff\xff\0\0\0\x61" + bytes(20))
    with pytest.raises(SourceError, match="can not be read: MemoryError"):
        open_source(tmp_path / "t.arrow")


def test_a_damaged_row_group_is_told_where_it_is_met(tmp_path, table):
    table({"x": range(1000)}, row_group_size=500, compression="none", use_dictionary=False)
    path = tmp_path / "t.parquet"
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    source = open_source(path)
    assert source.load(700) == {"x": 700}
    with pytest.raises(SourceError, match="row group 0 can not be read"):
        source.load(3)


def test_a_change_is_noticed(tmp_path, table):
    source = table({"x": range(10)})
    table({"x": range(11)})
    with pytest.raises(SourceChanged, match="has changed"):
        source.load(3)


def test_keys_of_hive_folders_are_noted(tmp_path):
    for year in (1, 2):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        pq.write_table(pa.table({"x": [year]}), folder / "t.parquet")
    source = open_source(str(tmp_path / "*/*.parquet"))
    assert source.num_items == 2
    assert any("year=1" in note for note in source.notes)


# -- how much is decoded ---------------------------------------------------------------------------


def test_each_row_group_is_decoded_once_in_order(table, monkeypatch):
    source = table({"x": range(1000), "y": ["y" * 100] * 1000}, row_group_size=100)
    decoded = []
    file = source._files[0]
    read = file.read_group
    monkeypatch.setattr(
        file, "read_group", lambda n, columns: decoded.append(n) or read(n, columns)
    )
    monkeypatch.setattr(arrow_rows, "CACHE_BYTES", 1)
    for first in range(0, 1000, 70):
        source.load_columns(range(first, min(1000, first + 70)))
    assert len(source._cache) == 1
    assert decoded == list(range(10))


def test_a_map_gets_its_rows_from_what_was_read_ahead(table, monkeypatch):
    columns = {"x": [[i] for i in range(2000)], "when": pa.array(range(2000), pa.timestamp("ms"))}
    source = table(columns, row_group_size=300)
    reads = []
    rows = source._rows
    monkeypatch.setattr(source, "_rows", lambda items: reads.append(len(items)) or rows(items))
    for step in (1, 5, 100):
        for item in range(0, 2000, step):
            row = source.load(item)
            assert row["x"].tolist() == [item]
            assert row["when"] == datetime.datetime(1970, 1, 1) + datetime.timedelta(
                milliseconds=item
            )
    assert sum(reads) < 7000
    assert [source.load(i)["x"].tolist() for i in (1999, 0, 7, 1999)] == [[1999], [0], [7], [1999]]


@pytest.mark.parametrize("cache_bytes", [1, 128 << 20])
def test_all_engines_give_the_same_bytes(tmp_path, table, monkeypatch, cache_bytes):
    monkeypatch.setattr(arrow_rows, "CACHE_BYTES", cache_bytes)
    columns = {"x": range(500), "y": [None if i % 7 == 0 else [i] * (i % 3) for i in range(500)]}
    assert table(columns, row_group_size=60).sendable == (cache_bytes > 1)
    for shuffle_seed in (None, 3):
        digests = []
        for workers in (1, 2):
            out = tmp_path / f"{workers}-{shuffle_seed}"
            sw.write(
                tmp_path / "t.parquet", out / "t@3", workers=workers, shuffle_seed=shuffle_seed
            )
            digests.append([path.read_bytes() for path in sorted(out.glob("t*"))])
        assert digests[0] == digests[1]


def test_what_is_written_decodes_to_the_rows(table):
    source = table({"x": [1, None], "s": ["é", "b"]})
    assert [decode_example(record) for record in records_of(source)] == [
        {"x": np.array([1]), "s": ["é".encode()]},
        {"x": None, "s": [b"b"]},
    ]


def test_pyarrow_is_asked_for_by_name(tmp_path, table):
    table({"x": [1]})
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from shardwriter.errors import MissingExtra\n"
        "from shardwriter.sources.find import open_source\n"
        "try: open_source(sys.argv[1])\n"
        "except MissingExtra as error: print(error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t.parquet")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == 'pip install "shardwriter[parquet]"'


# -- times and decimals, and columns that can not be stored ----------------------------------------


def odd_columns(tmp_path):
    """Write a table with columns that have no type by themselves, and return its path."""
    when = datetime.datetime(2024, 1, 2, 3, 4, 5, 123456)
    day = datetime.date(1960, 1, 2)
    table = pa.table(
        {
            "id": [1, 2],
            "ts": pa.array([when, None], pa.timestamp("us")),
            "tz": pa.array([1704164645123, None], pa.timestamp("ms", "Europe/Berlin")),
            "day": pa.array([day, None], pa.date32()),
            "dec": pa.array([decimal.Decimal("1.10"), None], pa.decimal128(10, 2)),
            "clock": pa.array([datetime.time(1, 2, 3), None], pa.time64("us")),
            "took": pa.array([1500, None], pa.duration("ms")),
            "list": pa.array([[when], None], pa.list_(pa.timestamp("us"))),
            "st": [{"a": 1}, None],
        }
    )
    path = tmp_path / "odd.parquet"
    pq.write_table(table, path)
    return str(path)


def test_all_columns_that_can_not_be_stored_are_named_at_once(tmp_path):
    path = odd_columns(tmp_path)
    with pytest.raises(SourceError, match="8 columns can not be stored in features") as caught:
        _ = open_source(path).plan
    for column in ("'ts' (timestamp[us])", "'day' (date32[day])", "'st' (struct<a: int64>)"):
        assert column in caught.value.message
    schema = "ts=int64:us,tz=int64:ms,day=int64:days,dec=string,clock=int64:us,took=int64:ms"
    assert f"--schema {schema},list=int64:us stores some" in caught.value.hint
    assert "--drop-columns st leaves the others out" in caught.value.hint
    types = parse_schema_option(f"{schema},list=int64:us")
    source = open_source(path, schema=types, table=TableOptions(drop_columns=("st",)))
    assert {name: source.plan[name].kind for name in ("ts", "dec")} == {
        "ts": "int64",
        "dec": "bytes",
    }


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("ts=int64:us", 1704164645123456),
        ("ts=int64:ns", 1704164645123456000),
        ("ts=string", "2024-01-02 03:04:05.123456"),
        ("tz=int64:ms", 1704164645123),
        ("tz=int64:us", 1704164645123000),
        ("day=int64:days", -3652),
        ("day=int64:s", -3652 * 86400),
        ("day=string", "1960-01-02"),
        ("dec=string", "1.10"),
        ("dec=float", 1.1),
        ("clock=int64:us", 3723 * 10**6),
        ("took=int64:us", 1500 * 1000),
    ],
)
def test_times_and_decimals_are_stored_as_declared(tmp_path, declared, value):
    name = declared.partition("=")[0]
    types = parse_schema_option(declared)
    source = open_source(odd_columns(tmp_path), schema=types, table=TableOptions(columns=(name,)))
    assert source.plan[name].format == types[name].format
    assert source.load(0)[name] == value
    assert source.load(1)[name] is UNSET


def test_the_unit_of_times_is_in_the_manifest_and_in_the_job(tmp_path):
    path = odd_columns(tmp_path)
    more = {"columns": "ts"}
    first = sw.write(path, tmp_path / "a/o@1", schema="ts=int64:us", **more)
    other = sw.write(path, tmp_path / "b/o@1", schema="ts=int64:ns", **more)
    assert first.schema["features"]["ts"]["format"] == "us"
    assert first.job != other.job
    assert declare(first.schema).types["ts"].format == "us"


@pytest.mark.parametrize(
    ("declared", "message", "advice"),
    [
        ("ts=int64:ms", "would lose data", "ts=int64:us or ts=string"),
        ("ts=int64:days", "can not be stored in days", "ts=int64:us or ts=string"),
        ("dec=int64:s", "can not be stored in s", "dec=string or dec=float"),
        ("st=string", "the schema has string", "--drop-columns st"),
    ],
)
def test_a_type_that_does_not_fit_says_which_does(tmp_path, declared, message, advice):
    name = declared.partition("=")[0]
    path = odd_columns(tmp_path)
    with pytest.raises(SourceError, match=message) as caught:
        sw.write(path, tmp_path / "o@1", schema=declared, columns=("id", name))
    assert advice in caught.value.hint
    assert "=string stores" not in caught.value.hint or name != "st"


def test_units_are_of_int64_alone():
    for text in ("ts=float:ms", "ts=raw:int64:ms", "ts=int64:hours"):
        with pytest.raises(OptionError, match="unit"):
            parse_schema_option(text)
