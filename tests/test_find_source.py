"""Which source a person means: by ``--format``, or by looking."""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from pathlib import Path

import pytest

from shardwriter.errors import OptionError, SourceError
from shardwriter.sources.find import FORMATS, open_source
from shardwriter.tfrecord import TFRecordWriter

GIF = b"GIF89a\x07\0\x05\0\0\0\0;"
TABLE = b"a,b\n1,x\n2,y\n"


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
        ({"t.csv": TABLE}, Path("t.csv"), "csv", 2),
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
        ({"d/x.txt": b"hello"}, "d", "nothing in this folder is known"),
        ({"x.gif": GIF}, "x.gif", "one image"),
        ({"x.csv": GIF}, "x.csv", "one image"),
        ({"x.txt": b"hello\nworld\n"}, "x.txt", "not known by looking"),
        ({"x.json": b'{"a": 1, "b": 2}\n'}, "x.json", "not known by looking"),
        ({"x.html": b"<a href='b'>,</a>"}, "x.html", "not known by looking"),
        ({"x.bin": bytes(100)}, "x.bin", "not known by looking"),
        ({"x.csv": "a,b\n".encode("utf-16")}, "x.csv", "not known by looking"),
        ({"x.gz": gzip.compress(TABLE)[:-9]}, "x.gz", "can not be unpacked"),
    ],
)
def test_what_is_not_there_or_not_known_is_said(tmp_path, monkeypatch, files, data, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name, content in files.items():
        write(name, content)
    with pytest.raises(SourceError, match=words) as caught:
        open_source(data)
    assert caught.value.path == data


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_records_are_told_from_tables(tmp_path, pack):
    path = tmp_path / "x.tfrecord"
    with TFRecordWriter(str(path)) as writer:
        writer.write(b"a,b,c")
    path.write_bytes(pack(path.read_bytes()))
    with pytest.raises(SourceError, match="TFRecord file already"):
        open_source(str(path))


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
        ("d", "image-folder", "no image files"),
        ("d/*", "csv", "no file matches"),
    ],
)
def test_what_is_not_what_format_says(tmp_path, monkeypatch, data, format, words):
    monkeypatch.chdir(tmp_path)
    write("t.csv", TABLE)
    (tmp_path / "d").mkdir()
    with pytest.raises(SourceError, match=words):
        open_source(data, format)


def test_an_unknown_format_is_refused():
    with pytest.raises(OptionError, match="no such format") as caught:
        open_source([], "excel")
    assert all(name in caught.value.hint for name in FORMATS)


def test_a_python_object_has_no_file_format():
    with pytest.raises(OptionError, match="for a path"):
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


def test_a_named_pipe_is_a_table(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(TABLE,))
    writer.start()
    source = open_source(str(path))
    writer.join()
    assert (source.kind, source.num_items) == ("csv", 2)
