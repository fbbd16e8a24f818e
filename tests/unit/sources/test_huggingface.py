"""Folders that ``save_to_disk`` of Hugging Face ``datasets`` made: found, refused, read."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import OptionError, SourceError
from shardwriter.sources.arrow import ArrowFile
from shardwriter.sources.find import open_source
from shardwriter.sources.positions import OpenFiles

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.fixture
def folder(tmp_path):
    """A folder of 50 rows in two streams."""
    path = tmp_path / "saved"
    save(path, [pa.table({"x": range(first, first + 25)}) for first in (0, 25)])
    return path


def save(path, tables, **state):
    path.mkdir()
    names = [f"data-{n:05}-of-{len(tables):05}.arrow" for n in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.ipc.new_stream(path / name, table.schema) as stream:
            stream.write_table(table, max_chunksize=7)
    files = [{"filename": name} for name in names]
    (path / "state.json").write_text(json.dumps({"_data_files": files, **state}))
    (path / "dataset_info.json").write_text("{}")


def test_a_folder_is_found_by_looking_and_by_its_format(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / "cache-1.arrow").write_bytes(b"not of the dataset")
    for more in ([], ["--format", "huggingface"]):
        command = ["write", "saved", "out/d@3", "--overwrite", "--json", *more]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.stderr
        assert [r["x"] for r in sw.open("out/d")] == list(range(50))
    planned = CliRunner().invoke(app, ["write", "saved", "out/e@3", "--dry-run", "--json"])
    assert json.loads(planned.stdout)["format"] == "huggingface"


def test_files_come_in_the_order_that_the_folder_tells(folder):
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    source = open_source(str(folder))
    assert source.load(0)["x"] == 25
    assert source.key(25) == "data-00000-of-00002.arrow row 0"


@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_engines_agree(folder, tmp_path, shuffle_seed):
    seen = []
    for workers in (1, 2):
        sw.write(folder, tmp_path / f"{workers}/d@3", workers=workers, shuffle_seed=shuffle_seed)
        files = sorted((tmp_path / str(workers)).iterdir())
        seen.append([file.read_bytes() for file in files])
    assert seen[0] == seen[1]


def test_a_folder_of_splits_names_them(folder, tmp_path):
    both = tmp_path / "both"
    both.mkdir()
    os.rename(folder, both / "train")
    (both / "dataset_dict.json").write_text('{"splits": ["train", "val"]}')
    with pytest.raises(SourceError, match="several splits: train, val") as caught:
        sw.write(both, tmp_path / "d@1")
    assert "--split source" in caught.value.hint
    assert "both/train" in caught.value.hint
    assert sw.write(both / "train", tmp_path / "d@1").num_records == 50


def test_splits_that_were_saved_are_written_whatever_they_are_called(tmp_path):
    both = tmp_path / "both"
    both.mkdir()
    for count, name in enumerate(("train", "held_out"), 1):
        save(both / name, [pa.table({"x": [name] * count})])
    (both / "cache").mkdir()
    (both / "dataset_dict.json").write_text('{"splits": ["train", "held_out"]}')
    for format in ("auto", "huggingface"):
        found = sw.write_splits(
            both, tmp_path / "d@1", "source", format=format, overwrite=format != "auto"
        )
        assert [(name, m.num_records) for name, m in found.items()] == [
            ("train", 1),
            ("held_out", 2),
        ]
    found = sw.write_splits(both, tmp_path / "e@1", "held_out")
    assert list(found) == ["held_out"]
    with pytest.raises(OptionError, match="no split 'val'") as caught:
        sw.write_splits(both, tmp_path / "e@1", "val")
    assert caught.value.hint == "its splits are train, held_out"


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ('{"splits": ["../train"]}', "leads out of the folder"),
        ('{"splits": ["a/train"]}', "is not a folder name"),
        ('{"splits": 3}', r"Expected `array`, got `int` - at `\$.splits`"),
        ("{}", "missing required field `splits`"),
    ],
)
def test_a_broken_list_of_splits_is_named(folder, tmp_path, told, what):
    (folder / "dataset_dict.json").write_text(told)
    for write in (lambda *to: sw.write_splits(*to, "source"), sw.write):
        with pytest.raises(SourceError, match=what) as caught:
            write(folder, tmp_path / "d@1")
        assert caught.value.path.endswith("dataset_dict.json")


def test_a_format_that_was_saved_is_told_of(tmp_path):
    tables = [pa.table({"x": [1], "y": [2]})]
    for number, state in enumerate([{"_format_type": "torch"}, {"_format_columns": ["x"]}]):
        save(tmp_path / f"{number}", tables, **state)
        assert "format" in open_source(str(tmp_path / f"{number}")).notes[0]
    save(tmp_path / "all", tables, _format_type=None, _format_columns=["y", "x"])
    assert not open_source(str(tmp_path / "all")).notes


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ("{", "not a file of save_to_disk: Expecting property name"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `_data_files`"),
        ('{"_data_files": []}', "length >= 1"),
        ('{"_data_files": [{"filename": 5}]}', "Expected `str`, got `int`"),
        ('{"_data_files": [{"filename": "none.arrow"}]}', "No such file"),
        (
            '{"_data_files": [{"filename": "a"}], "_indices_data_files": [{"filename": "i"}]}',
            "indices file",
        ),
    ],
)
def test_a_broken_folder_says_how(folder, state, what):
    (folder / "state.json").write_text(state)
    with pytest.raises(SourceError, match=what) as caught:
        open_source(str(folder))
    assert caught.value.path is not None


def test_a_damaged_file_is_named(folder):
    path = folder / "data-00001-of-00002.arrow"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SourceError, match="data-00001"):
        open_source(str(folder))


def test_what_was_not_saved_so_is_refused(tmp_path):
    (tmp_path / "t").mkdir()
    with pytest.raises(SourceError, match=r"no state\.json") as caught:
        open_source(str(tmp_path / "t"), "huggingface")
    assert "--format parquet" in caught.value.hint
    with pytest.raises(OptionError, match="no such file or folder"):
        open_source(str(tmp_path / "none"), "huggingface")


# -- Arrow streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "nested", "dictionary"])
def test_a_stream_is_read_from_any_batch_on(tmp_path, kind):
    columns = {
        "plain": {"x": range(100), "y": [str(i) for i in range(100)]},
        "nested": {"x": [[{"a": i}] for i in range(100)]},
        "dictionary": {"x": pa.array([str(i % 3) for i in range(100)]).dictionary_encode()},
    }
    table = pa.table(columns[kind])
    with pa.ipc.new_stream(tmp_path / "t.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=9)
    file = ArrowFile(str(tmp_path / "t.arrow"))
    with OpenFiles() as files:
        files.open(file)
        file.scan()
        assert bool(file._begins) == (kind != "dictionary")
        assert [group.num_rows for group in file.row_groups] == [9] * 11 + [1]
        for number in np.random.default_rng(0).integers(0, 12, 30).tolist():
            assert file.read_group(number).equals(table.slice(9 * number, 9))
            assert file.read_group(number, ["x"]).column_names == ["x"]


def test_rows_name_files_of_the_folder_and_no_others(tmp_path):
    image = b"GIF89a" + struct.pack("<HH", 2, 3) + bytes(20)
    (tmp_path / "secret.gif").write_bytes(image)
    features = {"x": {"_type": "Image"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    names = ["inside.gif", str(tmp_path / "secret.gif"), "../secret.gif", "link.gif"]
    for number, name in enumerate(names):
        column = pa.array([{"bytes": None, "path": name}], kind)
        table = pa.table({"x": column}).replace_schema_metadata(metadata)
        folder = tmp_path / f"saved{number}"
        save(folder, [table])
        (folder / "inside.gif").write_bytes(image)
        (folder / "link.gif").symlink_to(tmp_path / "secret.gif")
        out = tmp_path / f"out{number}@1"
        if name == "inside.gif":
            assert sw.write(folder, out).num_records == 1
            continue
        with pytest.raises(sw.DataError, match="outside the dataset's folder"):
            sw.write(folder, out)
