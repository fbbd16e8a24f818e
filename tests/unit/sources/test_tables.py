"""How tables are read: header, missing values, encoding, columns; bad rows that are skipped."""

from __future__ import annotations

import gzip
import json
import os

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import OptionError, SourceError
from shardwriter.formats import UNSET
from shardwriter.formats.media import encode_png
from shardwriter.schema.declared import declare
from shardwriter.sources.find import open_source
from shardwriter.sources.tables import TableOptions, table_options


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def rows_of(path, schema=None, **table):
    source = open_source(path, "auto", declare(schema).types, TableOptions(**table))
    return [source.load(item) for item in source.items()]


def records_of(out):
    with sw.open(str(out)) as dataset:
        return [dict(record) for record in dataset]


# -- the header ------------------------------------------------------------------------------------


def test_a_table_without_a_header_keeps_its_first_row(file):
    path = file("n.csv", "1,2\n3,4\n")
    assert rows_of(path, header=False) == [
        {"column0": 1, "column1": 2},
        {"column0": 3, "column1": 4},
    ]
    assert rows_of(path, header=False, names=("a", "b"))[0] == {"a": 1, "b": 2}


def test_names_must_be_as_many_as_the_cells(file):
    with pytest.raises(SourceError, match="2 cells, but names= has 3 columns"):
        rows_of(file("n.csv", "1,2\n"), header=False, names=("a", "b", "c"))


def test_a_header_of_numbers_gives_a_warning(file):
    (warning,) = open_source(file("n.csv", "1,2.5\n3,4\n")).warnings
    assert (warning.code, warning.line) == ("numeric-header", 1)
    assert "--no-header" in warning.hint
    assert not open_source(file("n.csv", "1,b\n3,4\n")).warnings
    assert not open_source(file("n.csv", "1,2\n3,4\n"), table=TableOptions(header=False)).warnings


def test_a_header_of_many_columns_is_read_in_linear_time(file):
    names = [f"c{n}" for n in range(40_000)]
    source = open_source(file("w.csv", ",".join(names) + "\n" + "1," * 39_999 + "1\n"))
    assert list(source.plan) == names
    with pytest.raises(SourceError, match="'c7' is repeated"):
        open_source(file("w.csv", ",".join([*names, "c7"]) + "\n"))


# -- missing values --------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["NA", "N/A", "n/a", "NULL", "null", "None", ""])
def test_a_missing_value_leaves_a_column_of_numbers_numeric(file, cell):
    path = file("v.csv", f"v,w\n1,0.5\n{cell},{cell}\n3,2\n")
    assert rows_of(path)[1] == {"v": UNSET, "w": UNSET}
    assert rows_of(path)[2] == {"v": 3, "w": 2.0}
    source = open_source(path)
    assert [source.plan[name].kind for name in "vw"] == ["int64", "float"]
    assert not source.warnings


def test_nan_is_a_float_and_not_missing(file):
    rows = rows_of(file("v.csv", "v\n1\nnan\nNaN\n"))
    assert rows[0]["v"] == 1.0
    assert all(row["v"] != row["v"] for row in rows[1:])


def test_missing_values_of_text_are_text(file):
    assert [row["v"] for row in rows_of(file("v.csv", "v\nNA\nDE\n"))] == ["NA", "DE"]
    assert [row["v"] for row in rows_of(file("v.csv", "v\nNA\nNA\n"))] == ["NA", "NA"]


def test_missing_values_may_be_numbers(file):
    path = file("v.csv", "v\n1\n-999\n-999.0\n3\n")
    assert [row["v"] for row in rows_of(path, na=("-999", "-999.0"))] == [1, UNSET, UNSET, 3]
    assert [row["v"] for row in rows_of(file("v.csv", "v\n1\nNA\n"), na=())] == ["1", "NA"]


def test_text_in_few_cells_gives_a_warning(file):
    path = file("v.csv", "i,v\n" + "".join(f"{n},{n if n != 400 else '?'}\n" for n in range(1000)))
    source = open_source(path)
    (warning,) = source.warnings
    assert source.plan["v"].kind == "bytes"
    assert (warning.code, warning.feature, warning.line) == ("text-column", "v", 402)
    assert (warning.path, warning.value) == (path, "?")
    assert "--na '?'" in warning.hint
    assert "--schema v=string" in warning.hint
    assert not open_source(path, schema=declare("v=string").types).warnings
    assert rows_of(path, na=("?",))[400]["v"] is UNSET


def test_text_in_many_cells_gives_no_warning(file):
    cells = [str(n) if n % 50 else "x" for n in range(1000)]
    assert not open_source(file("v.csv", "\n".join(["v", *cells]))).warnings
    cells = ["x" if n < 1001 else str(n) for n in range(200_000)]
    assert not open_source(file("v.csv", "\n".join(["v", *cells]))).warnings


def test_a_cell_that_breaks_a_declared_type_is_named(file):
    path = file("v.csv", "i,v\n1,0.5\n2,x y\n")
    with pytest.raises(SourceError, match="'x y' is not a number; the schema has float") as caught:
        open_source(path, schema=declare("v=float").types)
    error = caught.value
    assert (error.path, error.line, error.feature) == (path, 3, "v")
    assert "--na 'x y'" in error.hint


# -- the encoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "utf-7"]
)
@pytest.mark.parametrize("packed", [False, True])
def test_text_of_any_encoding(file, encoding, packed):
    for name, text in {
        "e.csv": "name,n\nJürgen,1\nÉva,2\n",
        "e.jsonl": '{"name":"Jürgen","n":1}\n{"name":"Éva","n":2}\n',
    }.items():
        data = text.encode(encoding)
        path = file(name + ".gz", gzip.compress(data)) if packed else file(name, data)
        rows = rows_of(path, encoding=encoding)
        assert rows == [{"name": "Jürgen", "n": 1}, {"name": "Éva", "n": 2}]


@pytest.mark.parametrize(("encoding", "data"), [("cp1252", b"\x81"), ("shift_jis", b"\x81\x00")])
def test_a_byte_that_is_not_of_the_encoding_is_named_by_its_line(file, encoding, data):
    path = file("e.csv", b"name\na\n" + data + b"\nb\n")
    with pytest.raises(SourceError, match=f"not {encoding}") as caught:
        rows_of(path, encoding=encoding)
    assert caught.value.line == 3


@pytest.mark.parametrize("encoding", ["martian", "rot13", "base64", "\0", 7])
def test_what_is_no_encoding_is_refused(encoding):
    with pytest.raises(OptionError, match="unknown encoding"):
        TableOptions(encoding=encoding)


def test_names_of_one_encoding_are_one_job():
    assert TableOptions(encoding="latin1") == TableOptions(encoding="ISO-8859-1")
    assert table_options(encoding="UTF8") is None


# -- the columns -----------------------------------------------------------------------------------


def tables(folder):
    (folder / "t.csv").write_text("a,b,c\n1,x,0.5\n2,y,1.5\n")
    (folder / "t.jsonl").write_text('{"a":1,"b":"x","c":0.5}\n{"a":2,"b":"y","c":1.5}\n')
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.5]})
    pq.write_table(table, folder / "t.parquet")
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as arrow:
        arrow.write_table(table)
    return [str(folder / name) for name in ("t.csv", "t.jsonl", "t.parquet", "t.arrow")]


def test_some_columns_are_read(tmp_path):
    for path in tables(tmp_path):
        for picked in ({"columns": ("c", "a")}, {"drop_columns": ("b",)}):
            source = open_source(path, table=TableOptions(**picked))
            assert list(source.plan) == ["a", "c"], path
            assert [source.load(n) for n in (0, 1)] == [{"a": 1, "c": 0.5}, {"a": 2, "c": 1.5}]
            assert list(source.load_columns([1, 0])) == ["a", "c"]


def test_a_column_that_is_not_there_is_refused(tmp_path):
    for path in tables(tmp_path):
        for option in ("columns", "drop_columns"):
            with pytest.raises(OptionError, match="there is no column 'z'"):
                open_source(path, table=TableOptions(**{option: ("a", "z")}))
        with pytest.raises(OptionError, match="leaves no column"):
            open_source(path, table=TableOptions(drop_columns=("a", "b", "c")))


def test_columns_of_several_types_matter_only_where_they_are_read(file):
    path = file("m.jsonl", '{"a":1,"b":1}\n{"a":2,"b":"x"}\n')
    assert rows_of(path, drop_columns=("b",)) == [{"a": 1}, {"a": 2}]


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"header": 1}, "header is 1"),
        ({"names": ("a",)}, "--no-header|column names are given"),
        ({"header": False, "names": ("a", "a")}, "'a' twice"),
        ({"columns": ("a", "")}, "an empty name"),
        ({"columns": ("a",), "drop_columns": ("b",)}, "can not be combined"),
        ({"columns": ()}, "is empty"),
        ({"na": "NA"}, "a tuple of str"),
    ],
)
def test_wrong_options_are_refused(wrong, message):
    with pytest.raises(OptionError, match=message):
        TableOptions(**wrong)


def test_an_option_of_another_format_is_refused(file, tmp_path):
    jsonl = file("t.jsonl", '{"a":1}\n')
    for option in ({"header": False}, {"na": ("x",)}):
        with pytest.raises(OptionError, match="is for csv, but the source is jsonl"):
            open_source(jsonl, table=TableOptions(**option))
    with pytest.raises(OptionError, match="columns= is for csv, jsonl, parquet, huggingface"):
        sw.write([{"a": 1}], tmp_path / "o@1", columns="a")


def test_options_are_of_the_job_only_where_they_are_given(file, tmp_path):
    path = file("t.csv", "a,b\n1,2\n")
    hashes = [
        sw.write(path, tmp_path / f"{number}" / "o@1", **options).job
        for number, options in enumerate(
            [{}, {"na": None}, {"na": "x"}, {"columns": "a"}, {"header": False}]
        )
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4


# -- bad rows --------------------------------------------------------------------------------------

BAD_ROWS = {
    "t.csv": (
        b'a,b\n1,x\n2\n3,y\n4,y,z\n5,"x"y\n6,\xff\n\n7,z\n',
        [(1, 3), (3, 5), (4, 6), (5, 7)],
    ),
    "t.jsonl": (
        b'{"a":1}\n{"a":\n{"a":3}\n[]\n{"a":5}{}\n{"a":6,"b":"\xff"}\n\n{"a":7,"b":"z"}\n',
        [(1, 2), (3, 4), (4, 5), (5, 6)],
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_rows_are_skipped_and_keep_their_index(file, tmp_path, name, workers):
    content, bad = BAD_ROWS[name]
    path = file(name, content)
    with pytest.raises(SourceError):
        sw.write(path, tmp_path / "o@2")
    manifest = sw.write(path, tmp_path / "o@2", on_error="skip", workers=workers)
    lines = (tmp_path / "o.errors.jsonl").read_text().splitlines()
    assert [(e["index"], e["line"]) for e in map(json.loads, lines)] == bad
    assert sorted(record["a"] for record in records_of(tmp_path / "o")) == [1, 3, 7]
    assert manifest.num_items == 7


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_skipped_with_a_map(file, tmp_path, name):
    content, bad = BAD_ROWS[name]
    path = file(name, content)
    sw.write(path, tmp_path / "o@2", on_error="skip", map=lambda row: {"a": row["a"]}, workers=1)
    assert len((tmp_path / "o.errors.jsonl").read_text().splitlines()) == len(bad)


def test_a_quote_over_several_lines_can_not_be_skipped(file, tmp_path):
    path = file("q.csv", 'a,b\n1,x\n2,"y\n3,z\n4,w\n')
    with pytest.raises(SourceError, match="never closed") as caught:
        sw.write(path, tmp_path / "o@1", on_error="skip")
    assert caught.value.line == 3
    assert "--on-error skip can not skip it" in caught.value.hint


def test_files_whose_names_are_not_utf8_are_skipped(tmp_path, image_folder):
    root = image_folder
    with pytest.raises(SourceError, match="name is not UTF-8"):
        sw.write(root, tmp_path / "o@1")
    sw.write(root, tmp_path / "o@1", on_error="skip")
    (line,) = (tmp_path / "o.errors.jsonl").read_text().splitlines()
    assert json.loads(line)["item"] == "a/caf\\udce9.png"


@pytest.fixture
def image_folder(tmp_path):
    """Return a folder with a class, and in it an image whose name is not UTF-8."""
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    data = encode_png(np.zeros((2, 2, 3), np.uint8))
    (folder / "1.png").write_bytes(data)
    with open(os.path.join(os.fsencode(folder), b"caf\xe9.png"), "wb") as bad:
        bad.write(data)
    return str(folder.parent)


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_resumed_write_skips_the_same_rows(file, tmp_path, name):
    content, _ = BAD_ROWS[name]
    path = file(name, content)
    stops = {7}

    def stop(row):
        if row["a"] in stops:
            raise RuntimeError("stopped")
        return row

    run = {"on_error": "skip", "workers": 1, "map": stop}
    with pytest.raises(sw.DataError):
        sw.write(
            path, tmp_path / "b/o@2", run=sw.RunOptions(max_errors=4, on_error="skip"), map=stop
        )
    stops.clear()
    sw.write(path, tmp_path / "a/o@2", **run)
    sw.write(path, tmp_path / "b/o@2", resume=True, **run)
    resumed, whole = files_of(tmp_path / "b"), files_of(tmp_path / "a")
    assert resumed == whole


@pytest.mark.parametrize("name", BAD_ROWS)
def test_beam_skips_the_same_rows(file, tmp_path, name):
    beam = pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    from shardwriter.cluster import WriteShards

    content, _ = BAD_ROWS[name]
    path = file(name, content)
    sw.write(path, tmp_path / "a/o@2", on_error="skip")
    with beam.Pipeline() as pipeline:
        run = sw.RunOptions(on_error="skip")
        pipeline | WriteShards(str(tmp_path / "b/o@2"), source=path, run=run)
    assert files_of(tmp_path / "b") == files_of(tmp_path / "a")
