"""Which source a person means: by ``--format``, or by looking."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import threading
import zlib
from pathlib import Path

import pytest

from shardwriter.cli.write_options import Format
from shardwriter.errors import _VALUE, OptionError, SourceError, python_words
from shardwriter.formats.tfrecord import frame
from shardwriter.sources.find import FORMATS, open_source
from shardwriter.sources.input_files import expand_braces
from shardwriter.sources.tables import _OPTION_FORMATS

GIF = b"GIF89a\x07\0\x05\0\0\0\0;"
TABLE = b"a,b\n1,x\n2,y\n"
ROWS = b'{"a": 1, "b": "x, y"}\n{"a": 2, "b": "z"}\n'
RECORDS = frame(b"x") + frame(b"") + frame(b"yy" * 5000)


WAV = b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\4\0\0\0abcd"


def tar_of(*names):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return file.getvalue()


TAR = tar_of("1.jpg", "1.txt", "2.jpg")


def write(path, data):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("files", "data", "kind", "num_items"),
    [
        ({"t.csv": TABLE}, "t.csv", "csv", 2),
        ({"t.tsv": b"a\tb\n1\t2\n"}, "t.tsv", "csv", 1),
        ({"t.csv.gz": gzip.compress(TABLE)}, "t.csv.gz", "csv", 2),
        ({"T.CSV": TABLE}, "T.CSV", "csv", 2),
        ({"table.txt": TABLE}, "table.txt", "csv", 2),
        ({"one.csv": b"a\n1\n"}, "one.csv", "csv", 1),
        ({"t.csv": b"\xef\xbb\xbfa;b\n1;2\n"}, "t.csv", "csv", 1),
        ({"bmi.csv": b"BMI,age\n20,30\n"}, "bmi.csv", "csv", 1),
        ({"bmi.txt": b"BM,II*\n20,30\n"}, "bmi.txt", "csv", 1),
        ({"x.csv": b"x^2,y\n4,1\n"}, "x.csv", "csv", 1),
        ({"d/1.csv": TABLE, "d/2.csv": TABLE, "d/readme.txt": b"x"}, "d", "csv", 4),
        ({"d/1.CSV": TABLE, "d/.2.csv": TABLE}, "d", "csv", 2),
        ({"d/1.csv": TABLE, "d/2.csv": TABLE, "d/x.txt": b""}, "d/*.csv", "csv", 4),
        ({"d/1.csv": TABLE}, "d/?.csv", "csv", 2),
        ({"[a].csv": TABLE}, "[a].csv", "csv", 2),
        ({"cat/1.gif": GIF, "dog/1.gif": GIF}, ".", "image-folder", 2),
        ({"p/1.gif": GIF}, "p", "image-folder", 1),
        ({"p/c/deep/er/1.gif": GIF}, "p", "image-folder", 1),
        ({"p/images/1.gif": GIF, "p/masks/1.gif": GIF}, "p", "image-mask", 1),
        ({"p/images/1.gif": GIF, "p/masks/1_L.gif": GIF}, "p/", "image-mask", 1),
        ({"p/train/1.gif": GIF, "p/trainannot/1.gif": GIF}, "p", "image-mask", 1),
        ({"p/val/img/1.gif": GIF, "p/val/label/1.gif": GIF}, "p", "image-mask", 1),
        ({"p/a/1.gif": GIF, "p/b/1.gif": GIF}, "p/{a,b}", "image-mask", 1),
        ({"p/a/1.gif": GIF, "p/b/1_x.gif": GIF}, "p/{a/*,b/*_x}", "image-mask", 1),
        ({"p/images/1.gif": GIF, "p/masks/2.gif": GIF}, "p", "image-folder", 2),
        ({"p/images/1.gif": GIF, "p/labels/1.txt": b"0"}, "p", "image-folder", 1),
        ({"p/a/1.gif": GIF, "p/a_mask/1.gif": GIF, "p/b/1.gif": GIF}, "p", "image-folder", 3),
        ({"p/{a,b}/c/1.gif": GIF}, "p/{a,b}", "image-folder", 1),
        ({"t.csv": TABLE}, Path("t.csv"), "csv", 2),
        ({"s-08.tar": TAR, "s-09.tar": TAR, "s-10.tar": TAR}, "s-{08..10}.tar", "webdataset", 6),
        ({"d/a/1.tar": TAR, "d/b/1.tar": TAR}, "d/{a,b}/{1..1}.tar", "webdataset", 4),
        ({"{a,b}.csv": TABLE}, "{a,b}.csv", "csv", 2),
        ({"d/a.csv": TABLE, "d/b.csv": TABLE}, "d/{b.csv,a.csv}", "csv", 4),
        ({"a.txt": TABLE, "b.txt": TABLE}, "{b,a}.txt", "csv", 4),
        ({"1.jsonl": ROWS, "3.jsonl": ROWS}, "{1..3..2}.jsonl", "jsonl", 4),
        ({"1.tfrecord": RECORDS, "2.tfrecord": RECORDS}, "{2..1}.tfrecord", "tfrecord", 6),
        ({"x.jsonl": ROWS}, "x.jsonl", "jsonl", 2),
        ({"x.NDJSON": b"\xef\xbb\xbf" + ROWS}, "x.NDJSON", "jsonl", 2),
        ({"x.jsonl.gz": gzip.compress(ROWS)}, "x.jsonl.gz", "jsonl", 2),
        ({"x.json": ROWS}, "x.json", "jsonl", 2),
        ({"rows": b"\n" + ROWS}, "rows", "jsonl", 2),
        ({"x.txt": b'{"a": "%s"}\n' % (b"x" * 70_000)}, "x.txt", "jsonl", 1),
        ({"d/1.jsonl": ROWS, "d/2.ndjson": ROWS, "d/meta.json": b"[]"}, "d", "jsonl", 4),
        ({"d/1.json": ROWS, "d/2.json.gz": gzip.compress(ROWS)}, "d", "jsonl", 4),
        ({"d/1.csv": TABLE, "d/meta.json": b"{}"}, "d", "csv", 2),
        ({"d/1.jsonl": ROWS, "d/2.jsonl": ROWS}, "d/*.jsonl", "jsonl", 4),
        ({"d/1.json": ROWS, "d/2.json": ROWS}, "d/*.json", "jsonl", 4),
        ({"x.tfrecord": RECORDS}, "x.tfrecord", "tfrecord", 3),
        ({"x.tfrecord": b""}, "x.tfrecord", "tfrecord", 0),
        ({"x.gz": gzip.compress(RECORDS)}, "x.gz", "tfrecord", None),
        ({"d/x.tfrecord": RECORDS, "d/y.tfrecord": RECORDS}, "d", "tfrecord", 6),
        ({f"d/t-0000{i}-of-00002": RECORDS for i in range(2)}, "d/t-*", "tfrecord", 6),
        ({f"d/t.record-0000{i}-of-00002": RECORDS for i in range(2)}, "d", "tfrecord", 6),
        ({f"d/t.record-0000{i}-of-00002": RECORDS for i in range(2)}, "d/t", "tfrecord", 6),
        ({f"d/t.record-0000{i}-of-00002": RECORDS for i in range(2)}, "d/t@2", "tfrecord", 6),
        ({f"d/t.record-0000{i}-of-00002": RECORDS for i in range(2)}, "d/t@*", "tfrecord", 6),
        ({"x.tar": TAR}, "x.tar", "webdataset", 2),
        ({"x.bin": TAR}, "x.bin", "webdataset", 2),
        ({"x.TGZ": gzip.compress(TAR)}, "x.TGZ", "webdataset", None),
        ({"x.tar.gz": gzip.compress(TAR)}, "x.tar.gz", "webdataset", None),
        ({"d/1.tar": TAR, "d/2.tar": TAR, "d/sizes.json": b"{}"}, "d", "webdataset", 4),
        ({"d/1.tar": TAR, "d/2.tar": TAR}, "d/*.tar", "webdataset", 4),
        ({"cat/1.wav": WAV, "dog/1.WAV": WAV}, ".", "audio", 2),
        ({"p/1.wav": WAV, "p/2.mp3": b"x"}, "p", "audio", 1),
        ({"p/1.wav": WAV, "p/1.gif": GIF}, "p", "image-folder", 1),
    ],
)
def test_the_format_is_found_by_looking(tmp_path, monkeypatch, files, data, kind, num_items):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        write(name, content)
    source = open_source(data)
    assert (source.kind, source.num_items) == (kind, num_items)
    assert open_source(data, kind).digest() == source.digest()


@pytest.mark.parametrize(
    ("files", "data", "words"),
    [
        ({}, "none.csv", "no such file or folder"),
        ({}, "none/", "no such file or folder"),
        ({}, "d/*.csv", "no file matches"),
        ({}, "d/*.jpg", "no such file or folder"),
        ({"e": b""}, "e", "the file is empty"),
        ({"e.csv.gz": gzip.compress(b"")}, "e.csv.gz", "the file is empty"),
        ({"d/x.txt": b"hello"}, "d", "no files of a known format"),
        ({"x.gif": GIF}, "x.gif", "a single image"),
        ({"x.csv": GIF}, "x.csv", "a single image"),
        ({"x.txt": b"hello\nworld\n"}, "x.txt", "format of this file is unknown"),
        ({"x.json": b'{\n "a": 1}\n'}, "x.json", "not one object per line"),
        ({"x.json": b'[{"a": 1}]\n'}, "x.json", "not one object per line"),
        ({"x.json": b"[" + b" " * 70_000}, "x.json", "not one object per line"),
        ({"x.txt": b"{a, b}\n"}, "x.txt", "format of this file is unknown"),
        ({"d/x.json": b"[1]"}, "d", "not one object per line"),
        ({"d/x.csv": TABLE, "d/x.jsonl": ROWS}, "d", "several formats: csv, jsonl"),
        ({"d/x.csv": TABLE, "d/x.tfrecord": RECORDS}, "d", "several formats: csv, tfrecord"),
        ({"train.tfrecord-00000-of-00001": RECORDS}, "train@2", "1 shards, not 2"),
        ({"x.html": b"<a href='b'>,</a>"}, "x.html", "format of this file is unknown"),
        ({"x.bin": bytes(100)}, "x.bin", "format of this file is unknown"),
        ({"x.csv": "a,b\n".encode("utf-16")}, "x.csv", "text is UTF-16"),
        ({"x.gz": gzip.compress(TABLE)[:-9]}, "x.gz", "can not be decompressed"),
        ({"d/x.tar": TAR, "d/x.csv": TABLE}, "d", "several formats: csv, webdataset"),
        ({"x.tar": b"BZh9" + bytes(600)}, "x.tar", "compressed with bzip2"),
        ({"x.tar": tar_of()}, "x.tar", "no samples"),
    ],
)
def test_what_is_not_there_or_not_known_is_said(tmp_path, monkeypatch, files, data, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name, content in files.items():
        write(name, content)
    with pytest.raises((SourceError, OptionError), match=words) as caught:
        open_source(data)
    assert Path(caught.value.path) in (Path(data), *map(Path, files), Path("."))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
@pytest.mark.parametrize("name", ["x.tfrecord", "x.bin", "x.csv"])
def test_records_are_told_from_tables_by_content(tmp_path, pack, name):
    path = tmp_path / name
    path.write_bytes(pack(frame(b"a,b,c")))
    source = open_source(str(path))
    assert source.kind == "tfrecord"
    assert [source.load(item) for item in source.items()] == [b"a,b,c"]


def test_a_damaged_record_file_is_told_by_its_name(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"\2" + frame(b"a")[1:])
    with pytest.raises(SourceError, match="length CRC") as caught:
        open_source(str(path))
    assert (caught.value.record_index, caught.value.offset) == (0, 0)


def test_a_badly_named_image_is_told_and_not_the_folder(tmp_path):
    write(
        os.path.join(os.fsencode(tmp_path), b"cat", b"\xff.gif").decode("utf-8", "surrogateescape"),
        GIF,
    )
    with pytest.raises(SourceError, match="not UTF-8"):
        open_source(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "format", "words"),
    [
        ("t.csv", "image-folder", "this is a file"),
        ("none", "image-folder", "no such file"),
        ("none", "csv", "no such file"),
        ("d", "csv", "no .csv or .tsv file"),
        ("none", "jsonl", "no such file"),
        ("d", "jsonl", "no .jsonl, .ndjson or .json file"),
        ("d/*", "jsonl", "no file matches"),
        ("t.csv", "jsonl", "not JSON"),
        ("d", "tfrecord", "no TFRecord shards"),
        ("t.csv", "tfrecord", "is this a TFRecord file"),
        ("-", "tfrecord", "can not be read from standard input"),
        ("d", "image-folder", "no image files"),
        ("d", "image-mask", "no folders of images and masks"),
        ("none", "image-mask", "no such folder"),
        ("t.csv", "image-mask", "no such folder"),
        ("{d,none}", "image-mask", "no such folder"),
        ("{d/*,d/*}", "image-mask", "are the same files"),
        ("{d/*,d/e/*}", "image-mask", "one of the two folders is in"),
        ("{d,d/e}", "image-mask", "one of the two folders is in the other"),
        ("{d,../x}", "image-mask", "is not a relative folder"),
        ("{.,d}", "image-mask", "is not a relative folder"),
        ("{d/*/x,e}", "image-mask", "is not a relative folder"),
        ("d/*", "csv", "no file matches"),
        ("t.csv", "webdataset", "not a tar file"),
        ("d", "webdataset", "no .tar, .tar.gz or .tgz file"),
        ("-", "webdataset", "can not be read from standard input"),
        ("t.csv", "audio", "this is a file; audio is a folder"),
        ("d", "audio", "no WAV files"),
        ("t.csv", "voc", "this is a file; voc is a folder"),
    ],
)
def test_what_is_not_what_format_says(tmp_path, monkeypatch, data, format, words):
    monkeypatch.chdir(tmp_path)
    write("t.csv", TABLE)
    (tmp_path / "d").mkdir()
    with pytest.raises((SourceError, OptionError), match=words):
        open_source(data, format)


def test_an_unknown_format_is_refused():
    with pytest.raises(OptionError, match="unknown format") as caught:
        open_source([], "excel")
    assert all(name in caught.value.hint for name in FORMATS)


def test_a_python_object_has_no_file_format():
    with pytest.raises(OptionError, match="reads a path"):
        open_source(["a.csv", "b.csv"], "csv")
    assert open_source([{}], "python").num_items == 1
    assert open_source(iter([{}])).num_items is None


def test_a_reference_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write("swt_found.py", b"def train():\n    return [{'x': 1}]\n")
    for format in ("auto", "python"):
        source = open_source("swt_found:train", format)
        assert (source.kind, source.num_items) == ("python", 1)
    with pytest.raises(OptionError, match="no module 'swt_lost'"):
        open_source("swt_lost:train")
    with pytest.raises(OptionError, match="not module:callable"):
        open_source("swt_found", "python")


def test_a_file_comes_before_a_reference(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("json:loads", TABLE)
    assert open_source("json:loads").kind == "csv"


def test_json_through_a_pipe_is_no_table(tmp_path):
    path = tmp_path / "pipe"
    for format, kind in (("auto", None), ("jsonl", "jsonl")):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(ROWS,))
        writer.start()
        try:
            assert open_source(str(path), format).kind == kind
        except SourceError as error:
            assert kind is None
            assert "--format jsonl" in error.hint
        writer.join()


def test_a_named_pipe_is_a_table(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(TABLE,))
    writer.start()
    source = open_source(str(path))
    writer.join()
    assert (source.kind, source.num_items) == ("csv", 2)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{1..010..4}", ["001", "005", "009"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("x{{0..1},{7,8}}", ["x0", "x1", "x7", "x8"]),
        ("{a,}b", ["ab", "b"]),
        ("{a}{}", ["{a}{}"]),
        ("{a", ["{a"]),
        ("{0..1}{x}", ["0{x}", "1{x}"]),
    ],
)
def test_braces(text, names):
    assert list(expand_braces(text)) == names


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("x-{0..2}.csv", "'x-2.csv' does not exist"),
        ("x-{0,1,0}.csv", "'x-0.csv' is repeated"),
        ("x-{0..999999999999}.csv", "more than 100,000 files"),
        ("{0..999}/{0..999}/{0..999}.csv", "more than 100,000 files"),
    ],
)
def test_a_list_in_braces_that_can_not_be_read(tmp_path, monkeypatch, data, words):
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        write(f"x-{number}.csv", TABLE)
    for format in ("auto", "csv"):
        with pytest.raises(OptionError, match=words):
            open_source(data, format)


def test_a_list_is_read_in_its_own_order(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.csv", f"x\n{number}\n".encode())
    source = open_source(f"{tmp_path}/{{2..0}}.csv")
    assert [source.load(item)["x"] for item in source.items()] == [2, 1, 0]


def test_the_command_offers_all_formats():
    assert sorted(each.value for each in Format) == sorted(["auto", *FORMATS])


def test_options_of_tables_are_for_known_formats():
    for _, formats in _OPTION_FORMATS.values():
        assert set(formats) <= set(FORMATS)


def test_python_messages_know_all_formats_and_no_others():
    for name in FORMATS:
        assert python_words(f"add --format {name} to it") == f'add format="{name}" to it'
    (words,) = re.findall(r"\(\?:none\|[\w|-]+\|source\|([\w|-]+)\)", _VALUE)
    assert sorted(words.split("|")) == sorted(FORMATS)
