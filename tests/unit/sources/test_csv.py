"""CSV tables: what is loaded is what ``csv.reader`` reads, typed over the whole input."""

from __future__ import annotations

import csv
import gc
import gzip
import io
import math
import os
import random
import re
import struct
import subprocess
import sys
import threading
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import SourceError
from shardwriter.formats import UNSET, encode_example
from shardwriter.formats.example_columns import encode_columns
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources import csv as csv_file
from shardwriter.sources import csv as csv_source
from shardwriter.sources.csv import CsvTable

STRING = FeatureType("bytes", "string", ())
FLOAT = FeatureType("float", "float32", ())
INT = FeatureType("int64", "int64", ())


@pytest.fixture
def table(tmp_path):
    """Return a function that writes files and opens them as one table."""

    def open_table(*contents, schema=None, name="t{}.csv"):
        paths = []
        for number, content in enumerate(contents):
            path = tmp_path / name.format(number)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            paths.append(str(path))
        return CsvTable(paths, schema)

    return open_table


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut the input at every few bytes and rows."""
    monkeypatch.setattr(csv_file, "_READ_BYTES", 7)
    monkeypatch.setattr(csv_file, "BLOCK_ROWS", 2)


def rows_of(source):
    return [source.load(item) for item in source.items()]


def kinds_of(source):
    return {name: planned.kind for name, planned in source.plan.items()}


def column(*cells):
    return "x,pad\n" + "".join(f'"{cell}",p\n' for cell in cells)


# -- the cells are csv.reader's ------------------------------------------------------------------

TEXT_CELLS = st.text(st.sampled_from('ab,";\t\n\r é\u2028\u0085\x0b\x0c\x1c😀|1'), max_size=6)
NUMBER_CELLS = st.sampled_from(
    [
        "",
        "",
        "1",
        "-2",
        "+3",
        " 4",
        "5 ",
        "007",
        "1_0",
        "1.5",
        ".5",
        "1e3",
        "7.0",
        "-3.",
        "-0.0",
        "9223372036854775808.0",
        "nan",
        "-inf",
        "x",
        "9223372036854775807",
        "-9223372036854775808",
        "Infinity",
        "1e-50",
        "--1",
        "0x10",
        " ",
    ]
)


@st.composite
def tables(draw):
    """Bytes of a file, and the rows that are in it."""
    width = draw(st.integers(1, 4))
    columns = [draw(st.sampled_from([TEXT_CELLS, NUMBER_CELLS])) for _ in range(width)]
    rows = draw(st.lists(st.tuples(*columns), max_size=12))
    delimiter = "," if width == 1 else draw(st.sampled_from(",;\t|"))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    header = [f"c{number}" for number in range(width)]
    parts = []
    for row in [header, *rows]:
        line = io.StringIO(newline="")
        # What stands between a \r and its quotes is up to the writer: here it is always quoted.
        quote = csv.QUOTE_ALL if any("\r" in cell for cell in row) else quoting
        csv.writer(line, delimiter=delimiter, lineterminator=end, quoting=quote).writerow(row)
        parts.append(line.getvalue())
        if draw(st.integers(0, 5)) == 0:
            parts.append(end)  # a blank line
    text = "".join(parts)
    if draw(st.booleans()):
        text = text.removesuffix(end)
    bom = "\ufeff" if draw(st.booleans()) else ""
    return (bom + text).encode(), [header, *map(list, rows)]


def expected_kind(cells):
    def are(parse):
        try:
            return all("_" not in cell and [parse(cell)] for cell in filled)
        except ValueError:
            return False

    def is_whole(cell):
        return (
            re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)\s*", cell) and -(2**63) <= whole(cell) < 2**63
        )

    filled = [cell for cell in cells if cell]
    if not filled:
        return None
    if are(int) or (are(float) and all(map(is_whole, filled))):
        return "int64"
    return "float" if are(float) else "bytes"


def whole(cell):
    number = Fraction(cell.strip())
    return int(number) if number.denominator == 1 else math.inf


def typed(cell, kind):
    return UNSET if not cell else {"int64": whole, "float": float, "bytes": str}[kind](cell)


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


@given(tables(), st.integers(1, 40), st.integers(1, 5))
def test_loads_the_cells_of_csv_reader(tmp_path_factory, written, read_bytes, block_rows):
    data, (header, *rows) = written
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "_READ_BYTES", read_bytes)
        patch.setattr(csv_file, "BLOCK_ROWS", block_rows)
        source = CsvTable([str(path)])
    kinds = [expected_kind([row[c] for row in rows]) for c in range(len(header))]
    assert source.num_items == len(rows)
    assert list(kinds_of(source).items()) == list(zip(header, kinds, strict=True))
    expected = [
        {n: typed(cell, kind) for n, cell, kind in zip(header, row, kinds, strict=True)}
        for row in rows
    ]
    for found, wanted in zip(rows_of(source), expected, strict=True):
        assert found.keys() == wanted.keys()
        assert all(same(found[name], wanted[name]) for name in wanted), (found, wanted)


@given(tables(), st.data())
def test_columns_of_any_rows_in_any_order_are_these_rows(tmp_path_factory, written, data):
    content, (_, *rows) = written
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_bytes(content)
    source = CsvTable([str(path)])
    indices = data.draw(st.lists(st.integers(0, max(0, len(rows) - 1)), max_size=15))
    if not rows:
        indices = []
    kinds = {name: kind for name, kind in kinds_of(source).items() if kind}
    payloads = encode_columns(source.load_columns(indices), kinds)
    assert payloads == [encode_example(source.load(index), kinds) for index in indices]


def test_rows_over_many_reads_and_blocks_are_found_in_any_order(table):
    rng = random.Random(7)
    rows = [(str(i), "é" * rng.randrange(40) + '"\n' * rng.randrange(3)) for i in range(5000)]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("id", "text"), *rows])
    source = table(text.getvalue())
    for index in rng.sample(range(5000), 300):
        assert source.load(index) == {"id": index, "text": rows[index][1] or UNSET}


def test_a_single_column_keeps_its_quoted_empty_cells(table):
    source = table('a\n1\n""\n\n3\n')
    assert [row["a"] for row in rows_of(source)] == [1, UNSET, 3]


def test_a_header_without_rows_is_a_table_of_none(table):
    for text in ("a,b\n", "a,b", "a,b\n\n\n"):
        source = table(text)
        assert source.num_items == 0
        assert kinds_of(source) == {"a": None, "b": None}
        assert list(source.items()) == []


def test_cells_may_be_larger_than_the_csv_modules_own_limit(table):
    assert table("a,b\n1," + "x" * 300_000 + "\n").load(0)["b"] == "x" * 300_000


# -- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2", ""], "int64"),
        (["1", "2.5"], "float"),
        (["2.5", "1"], "float"),
        (["1", "x"], "bytes"),
        (["1.5", "x"], "bytes"),
        (["x", "1"], "bytes"),
        (["", "x", ""], "bytes"),
        (["", ""], None),
        (["1", "", "nan"], "float"),
        (["inf", "-Infinity"], "float"),
        (["1_000", "2"], "bytes"),
        (["1_0.5"], "bytes"),
        ([" 1", "2 "], "int64"),
        (["+1", "-0", "007"], "int64"),
        (["-9223372036854775808", "9223372036854775807"], "int64"),
        (["9223372036854775808", "0.5"], "float"),
        (["1", "true"], "bytes"),
        (["0x10"], "bytes"),
        (["7.0", "", "8."], "int64"),
        (["7", "8.0"], "int64"),
        (["7.0", "8"], "int64"),
        (["7.0", "8.5"], "float"),
        (["7.0", "1e3"], "float"),
        (["7.0", "nan"], "float"),
        (["7.0", "9223372036854775807"], "int64"),
        (["7.0", "9223372036854775808"], "float"),
        (["9223372036854775808", "7.0"], "float"),
        (["9223372036854775808.0"], "float"),
        (["7.0", "x"], "bytes"),
        (["1,5"], "bytes"),
    ],
)
@pytest.mark.usefixtures("small_blocks")
def test_type_of_a_column(table, cells, kind):
    assert kinds_of(table(column(*cells)))["x"] == kind


@given(st.lists(NUMBER_CELLS, max_size=14), st.integers(1, 6))
def test_types_do_not_depend_on_where_the_table_is_cut(tmp_path_factory, cells, block_rows):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_text(column(*cells))
    whole = CsvTable([str(path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "_READ_BYTES", 5)
        patch.setattr(csv_file, "BLOCK_ROWS", block_rows)
        assert CsvTable([str(path)]).plan == whole.plan


def test_a_late_float_makes_a_column_of_ints_float(table):
    source = table(column(*map(str, range(3000)), "0.5"))
    assert kinds_of(source)["x"] == "float"
    assert source.load(2) == {"x": 2.0, "pad": "p"}
    assert type(source.load(2)["x"]) is float


def test_whole_numbers_written_as_floats_keep_every_digit_and_are_told(table):
    source = table(column("9007199254740993.0", "-7.", ".0"))
    assert [row["x"] for row in rows_of(source)] == [9007199254740993, -7, 0]
    assert "x" in source.notes[0]
    assert "--schema x=float" in source.notes[0]
    fixed = table(column("7.0"), schema={"x": FeatureType("float", "float32")})
    assert rows_of(fixed)[0]["x"] == 7.0
    assert fixed.notes == []


@pytest.mark.parametrize(
    ("cells", "told"),
    [(["1", "007"], True), (["-01"], True), (["0", "10", "-0"], False), (["007", "x"], False)],
)
def test_codes_with_leading_zeros_are_told(table, cells, told):
    assert any("leading zeros" in note for note in table(column(*cells)).notes) == told
    as_text = {"x": FeatureType("bytes", "string")}
    assert table(column(*cells), schema=as_text).notes == []


def test_int64_keeps_every_digit(table):
    source = table(column("9223372036854775807", "9007199254740993"))
    assert [row["x"] for row in rows_of(source)] == [2**63 - 1, 2**53 + 1]


def test_nan_and_infinity_are_floats_as_they_stand(table):
    source = table(column("nan", "-nan", "inf", "-inf"))
    values = [row["x"] for row in rows_of(source)]
    assert math.isnan(values[0])
    assert values[2:] == [math.inf, -math.inf]
    encoded = encode_columns(source.load_columns(range(4)), {"x": "float", "pad": "bytes"})
    assert encoded == [encode_example(row) for row in rows_of(source)]


@pytest.mark.parametrize(
    ("cells", "line", "word"),
    [
        (["1", "9223372036854775808"], 3, "int64"),
        (["-9223372036854775809"], 2, "int64"),
        (["1" * 5000], 2, "float32"),  # more digits than int() reads
        (["0.5", "1", "1e39"], 4, "float32"),
        (["0.5", "-1e400"], 3, "float32"),
        (["nan", "1e39"], 3, "float32"),
        (["1" + "0" * 39, "0.5"], 2, "float32"),
        (["0.5", "1" + "0" * 39], 3, "float32"),
    ],
)
@pytest.mark.parametrize("block_rows", [1, 100])
def test_a_number_that_its_type_can_not_hold_is_named(
    table, monkeypatch, cells, line, word, block_rows
):
    monkeypatch.setattr(csv_file, "BLOCK_ROWS", block_rows)
    with pytest.raises(SourceError, match=word) as caught:
        table(column(*cells))
    assert caught.value.line == line
    assert caught.value.feature == "x"
    assert "x=string" in caught.value.hint


def test_the_largest_numbers_of_float32_pass(table):
    source = table(column("3.4028235e38", "-3.4028235e38", "0.5"))
    assert len(encode_columns(source.load_columns([0, 1, 2]))) == 3


def test_a_column_with_one_word_holds_numbers_of_any_size(table):
    source = table(column("9" * 30, "1e400", "word"))
    assert [row["x"] for row in rows_of(source)] == ["9" * 30, "1e400", "word"]


def test_schema_fixes_types(table):
    text = column("007", "", "8")
    assert [row["x"] for row in rows_of(table(text, schema={"x": STRING}))] == ["007", UNSET, "8"]
    assert [row["x"] for row in rows_of(table(text, schema={"x": FLOAT}))] == [7.0, UNSET, 8.0]
    assert kinds_of(table(column("", ""), schema={"x": INT}))["x"] == "int64"


def test_schema_of_no_kind_leaves_the_type_to_the_cells(table):
    assert table(column("5"), schema={"x": FeatureType()}).load(0)["x"] == 5


def test_schema_that_does_not_fit_is_refused(table):
    with pytest.raises(
        SourceError,
        match=r"t0\.csv, line 3, feature 'x': '2\.5' is not an integer; the schema has int64",
    ):
        table(column("1", "2.5"), schema={"x": INT})
    with pytest.raises(
        SourceError,
        match=r"t0\.csv, line 3, feature 'x': 'word' is not a number; the schema has float",
    ):
        table(column("1", "word"), schema={"x": FLOAT})
    with pytest.raises(SourceError, match="does not exist"):
        table(column("1"), schema={"y": INT})


def test_schema_float_refuses_whole_numbers_beyond_float32(table):
    with pytest.raises(SourceError, match="beyond float32") as caught:
        table(column("1", "1" + "0" * 39), schema={"x": FLOAT})
    assert caught.value.line == 3


def test_schema_string_keeps_numbers_of_any_size(table):
    assert table(column("9" * 30), schema={"x": STRING}).load(0)["x"] == "9" * 30


# -- what is wrong, and in which line ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a,b\n1,2\n3\n", 3, "too few"),
        ("a,b\n1,2\n3,4,5\n", 3, "too many"),
        ('a,b\n"x\ny\nz",2\n3\n', 5, "too few"),
        ("a,b\n\n\n1,2\n\n3,4,5\n", 6, "too many"),
        ('a,b\r\n"x\r\ny",2\r\n3\r\n', 4, "too few"),
        ("a,b\n1,2\n ,\n   \n", 4, "too few"),
        ('a,b\n1,2\n3,"4\n5,6\n', 3, "never closed"),
        ('a,b\n1,2\n3,"4"5\n', 3, "expected after"),
        ("a,b\n1,2\n3,4\r5,6\n", 3, "new-line"),
    ],
)
@pytest.mark.parametrize("sizes", [(1 << 20, 1024), (3, 1)])
def test_a_broken_row_is_named_by_its_line(table, monkeypatch, text, line, words, sizes):
    monkeypatch.setattr(csv_file, "_READ_BYTES", sizes[0])
    monkeypatch.setattr(csv_file, "BLOCK_ROWS", sizes[1])
    with pytest.raises(SourceError, match=words) as caught:
        table(text)
    assert caught.value.line == line
    assert caught.value.path.endswith("t0.csv")


def test_a_broken_row_in_the_second_file_counts_that_files_lines(table):
    with pytest.raises(SourceError, match="too few") as caught:
        table("a,b\n1,2\n3,4\n", 'a,b\n"x\ny",6\n7\n')
    assert caught.value.path.endswith("t1.csv")
    assert caught.value.line == 4


@pytest.mark.parametrize("before", [0, 1, 500])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("read_bytes", [9, 1 << 20])
def test_a_byte_that_is_not_utf8_is_named_by_its_line(table, monkeypatch, before, bom, read_bytes):
    monkeypatch.setattr(csv_file, "_READ_BYTES", read_bytes)
    monkeypatch.setattr(csv_file, "BLOCK_ROWS", 20)
    data = bom + b"a,b\n" + b'"1\nx",2\n' * before + b"M\xfcller,2\n" + b"3,4\n" * 9
    with pytest.raises(SourceError, match="0xfc is not UTF-8") as caught:
        table(data)
    assert caught.value.line == 2 + 2 * before
    assert "--encoding latin-1" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"\n1,2\n", "first line is empty"),
        (b" \n1,2\n", "first line is empty"),
        (b"a,,c\n1,2,3\n", "no name"),
        (b"a,b,\n1,2,3\n", "no name"),
        (b"a,b,a\n1,2,3\n", "'a' is repeated"),
        (b"a\0,b\n1,2\n", "binary"),
        (b"a,\xfc\n1,2\n", "0xfc is not UTF-8"),
        (b"\xff\xfea\0,\0b\0\n\0", "0xff is not UTF-8"),
        (b'a,"b\n1,2\n', "never closed"),
        (b'"a"b,c\n1,2\n', "expected after"),
        (b"a,b\r1,2\r3,4\r", "new-line"),
        (b"\xef\xbb\xbf", "the file is empty"),
    ],
)
def test_a_header_that_is_none_is_refused(table, data, words):
    with pytest.raises(SourceError, match=words) as caught:
        table(data)
    assert caught.value.path.endswith("t0.csv")
    assert caught.value.line in (1, None)


def test_a_header_may_have_quoted_names(table):
    source = table('"a;b;c","d ""e""",f\n1,2,3\n')
    assert source.load(0) == {"a;b;c": 1, 'd "e"': 2, "f": 3}


def test_a_name_in_the_header_may_go_over_two_lines(table):
    source = table('"price\n(EUR)",b\n1,2\n3\n'.replace("3\n", "3,4\n"))
    assert rows_of(source) == [{"price\n(EUR)": 1, "b": 2}, {"price\n(EUR)": 3, "b": 4}]
    with pytest.raises(SourceError, match="too few") as caught:
        table('"price\n(EUR)",b\n1,2\n3\n')
    assert caught.value.line == 4


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_that_of_the_header(table, delimiter):
    source = table(f"a{delimiter}b\n1{delimiter}x,y;z\n".replace("x,y;z", '"x,y;z"'))
    assert source.load(0) == {"a": 1, "b": "x,y;z"}


@pytest.mark.usefixtures("small_blocks")
def test_several_files_are_one_table(table):
    source = table("a,b\n1,x\n2,y", "a,b\n", "\ufeffa,b\r\n3,z\r\n", "a,b\n4.5,\n")
    assert source.num_items == 4
    assert [row["a"] for row in rows_of(source)] == [1.0, 2.0, 3.0, 4.5]
    assert source.load_columns([3, 2, 1, 2])["a"].values.tolist() == [4.5, 3.0, 2.0, 3.0]
    assert [source.key(item) for item in source.items()] == [
        "t0.csv row 0",
        "t0.csv row 1",
        "t2.csv row 0",
        "t3.csv row 0",
    ]


def test_files_with_other_headers_are_refused(table):
    with pytest.raises(SourceError, match=r"the header .* differs from") as caught:
        table("a,b\n1,2\n", "b,a\n1,2\n")
    assert caught.value.path.endswith("t1.csv")


def test_keys_of_one_file_are_row_numbers(table):
    assert [table("a,b\n1,2\n3,4\n").key(item) for item in (0, 1)] == ["row 0", "row 1"]


def test_gzip_is_unpacked(table):
    text = "a,b\n" + "".join(f"{i},x{i}\n" for i in range(4000))
    packed = table(gzip.compress(text.encode()), name="t{}.csv.gz")
    plain = table(text)
    assert rows_of(packed) == rows_of(plain)
    assert packed.digest() == plain.digest()


@pytest.mark.parametrize("name", ["x^2", "X\t", "8O", "HK", "hC"])
def test_a_header_that_begins_like_zlib_is_text(table, name):
    header = name.strip() + ("\t" if "\t" in name else ",") + "b"
    assert table(f"{header}\n1{header[-2]}2\n").num_items == 1


def test_a_named_pipe_is_read_once_and_kept(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("a,b\n" + "1,2\n" * 5000,))
    writer.start()
    source = CsvTable([str(path)])
    writer.join()
    assert source.num_items == 5000
    assert source.load(4999) == source.load(0) == {"a": 1, "b": 2}


def test_standard_input_is_a_table():
    code = (
        "from shardwriter.sources.csv import CsvTable\n"
        "source = CsvTable(['-'])\n"
        "print(source.num_items, source.load(1), source.load(0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="a\n1\n2\n", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "2 {'a': 2} {'a': 1}"


def test_a_missing_file_and_a_folder_are_source_errors(tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        CsvTable([str(tmp_path / "none.csv")])
    with pytest.raises(SourceError, match="directory"):
        CsvTable([str(tmp_path)])


# -- changes while it is read --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "later_ns"),
    [
        ("a,b\n1,2\n3,4\n5,6\n", 0),  # appended
        ("a,b\n1,2\n", 0),  # cut
        ("a,b\n1,2\n9,9\n", 5_000_000),
        ("a,b\n1,2\nx,y\n", 5_000_000),
        ('a,b\n1,2\n3,"\n', 5_000_000),
    ],
)
@pytest.mark.parametrize("reopened", [False, True])
def test_a_file_that_changes_after_the_scan_is_refused(table, tmp_path, after, later_ns, reopened):
    source = table("a,b\n1,2\n3,4\n")
    if reopened:
        source._open_files.pop().close()
    path = tmp_path / "t0.csv"
    mtime_ns = path.stat().st_mtime_ns
    path.write_text(after)
    os.utime(path, ns=(mtime_ns + later_ns, mtime_ns + later_ns))
    for load in (lambda: source.load(1), lambda: source.load_columns([0, 1])):
        with pytest.raises(SourceError, match="has changed"):
            load()


@pytest.mark.parametrize("after", ["a,b\n1,2\nx,y\n", 'a,b\n1,2\n3,"\n', "a,b\n1,2\n\n\n\n\n"])
def test_rows_that_are_no_longer_what_they_were_are_refused_even_when_time_stands(
    table, tmp_path, after
):
    source = table("a,b\n1,2\n3,4\n")
    path = tmp_path / "t0.csv"
    stat = path.stat()
    path.write_text(after)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(SourceError, match="has changed"):
        source.load(1)


def test_more_files_than_may_be_open_are_one_table(table, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_source, "_MAX_OPEN_FILES", 3)
    gc.collect()  # what tests before have left behind
    before = len(os.listdir("/proc/self/fd"))
    contents = [f"a,b\n{i},x\n{i},y\n" for i in range(30)]
    contents[5] = gzip.compress(contents[5].encode())
    contents[7] = gzip.compress(contents[7].encode())
    source = table(*contents)
    order = random.Random(1).sample(range(60), 60)
    assert source.load_columns(order)["a"].values.tolist() == [index // 2 for index in order]
    # Three, the offsets, and what was unpacked.
    assert len(os.listdir("/proc/self/fd")) <= before + 6
    del source
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_fingerprint_of_a_compressed_file_is_that_of_the_file(table, tmp_path):
    packed = gzip.compress(b"a,b\n1,2\n")
    first = table(packed).fingerprint()
    assert CsvTable([str(tmp_path / "t0.csv")]).fingerprint() == first
    os.utime(tmp_path / "t0.csv", (1, 1))
    assert CsvTable([str(tmp_path / "t0.csv")]).fingerprint() != first


def test_the_digest_is_of_the_content(table):
    assert table("a,b\n1,2\n").digest() != table("a,b\n1,3\n").digest()
    assert table("a,b\n1,2\n").digest() == table("a,b\n1,2\n").digest()


def test_a_gzip_file_that_is_cut_is_a_source_error(table):
    with pytest.raises(SourceError, match="can not be decompressed"):
        table(gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:-12])
