"""FFCV's way to choose: ``indices=``, ``--indices``."""

from __future__ import annotations

import gc
import io
import itertools
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.dataset.indices import ItemIndices, item_indices
from shardwriter.errors import CallableError, OptionError, RunChanged
from shardwriter.sources.numpy import read_indices
from shardwriter.writing.options import DatasetOptions, RunOptions

ITEMS = [{"x": i} for i in range(100)]


def xs(path):
    return [record["x"] for record in sw.open(path)]


def written(tmp_path, source, indices, **options):
    path = tmp_path / f"w{len(os.listdir(tmp_path))}"
    manifest = sw.write(source, path / "d@3", indices=indices, **options)
    assert manifest.num_records == len(xs(path / "d"))
    return xs(path / "d")


class Loads:
    def __init__(self):
        self.calls = []

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.calls.append(index)
        return {"x": index}


# -- what is written -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:there are no items")
@pytest.mark.parametrize(
    "indices",
    [
        [5, 3, 99, 0],
        (7,),
        [],
        range(90, 10, -7),
        np.array([4, 2], np.int8),
        np.array([4, 2], np.uint64),
        [np.int64(3), 1],
    ],
)
def test_items_come_in_the_order_of_the_indices(tmp_path, indices):
    data = Loads()
    assert written(tmp_path, data, indices) == [int(i) for i in indices]
    assert data.calls == [int(i) for i in indices]


@pytest.mark.parametrize("kind", ["list", "csv", "jsonl", "numpy", "tfrecord", "images"])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_source_with_random_access_takes_them(tmp_path, kind, workers):
    if kind == "list":
        source = ITEMS
    elif kind == "csv":
        (tmp_path / "t.csv").write_text("x\n" + "\n".join(map(str, range(100))) + "\n")
        source = tmp_path / "t.csv"
    elif kind == "jsonl":
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
        source = tmp_path / "t.jsonl"
    elif kind == "numpy":
        np.savez(tmp_path / "t.npz", x=np.arange(100))
        source = tmp_path / "t.npz"
    elif kind == "tfrecord":
        sw.write(ITEMS, tmp_path / "in" / "d@7")
        source = tmp_path / "in" / "d"
    else:
        gif = b"GIF89a%c\0\1\0\0\0\0;"
        (tmp_path / "images").mkdir()
        for i in range(100):
            (tmp_path / "images" / f"{i:03}.gif").write_bytes(gif % (i + 1))
        sw.write(
            tmp_path / "images", tmp_path / "out" / "d@3", indices=[70, 3, 3], allow_duplicates=True
        )
        found = [r["image/filename"] for r in sw.open(tmp_path / "out" / "d")]
        assert found == ["070.gif", "003.gif", "003.gif"]
        return
    assert written(tmp_path, source, [70, 3, 12, 99], workers=workers) == [70, 3, 12, 99]


def test_engines_agree_and_other_indices_are_another_job(tmp_path):
    chosen = np.random.default_rng(0).permutation(100)[:61]
    seen = {}
    for name, indices, run in [
        ("serial", chosen, RunOptions(engine="serial")),
        ("pool", chosen.tolist(), RunOptions(workers=2)),
        ("other", chosen[::-1], RunOptions()),
        ("none", None, RunOptions()),
    ]:
        manifest = sw.write(ITEMS, tmp_path / name / "d@4", indices=indices, run=run)
        files = sorted((tmp_path / name).iterdir())
        seen[name] = (manifest.job, [file.read_bytes() for file in files])
    assert seen["serial"] == seen["pool"]
    assert len({job for job, _ in seen.values()}) == 3


def test_indices_come_before_filter_limit_and_shuffle(tmp_path):
    chosen = list(range(99, -1, -3))
    odd = [i for i in chosen if i % 2]

    def is_odd(index):
        return index % 2 == 1

    data = Loads()
    assert written(tmp_path, data, chosen, filter=is_odd) == odd
    assert written(tmp_path, data, chosen, filter=is_odd, limit=4) == odd[:4]
    assert written(tmp_path, data, chosen, limit=4) == chosen[:4]
    shuffled = written(tmp_path, data, chosen, filter=is_odd, limit=9, shuffle_seed=1)
    assert sorted(shuffled) == sorted(odd[:9])
    assert shuffled != odd[:9]
    by_key = written(tmp_path, ITEMS, chosen, order="key", key="x")
    assert sorted(by_key) == sorted(chosen)
    assert by_key == written(tmp_path, ITEMS, chosen[::-1], order="key", key="x")


def test_duplicates_are_records_of_their_own_where_they_are_allowed(tmp_path):
    assert written(tmp_path, ITEMS, [3, 1, 3], allow_duplicates=True) == [3, 1, 3]


def test_ten_million_indices_are_held_in_compact_arrays(tmp_path):
    class Many:
        def __len__(self):
            return 10_000_000

        def __getitem__(self, index):
            return {"x": index}

    indices = np.arange(9_999_999, -1, -1)
    tracemalloc.start()
    try:
        manifest = sw.write(Many(), tmp_path / "d@2", indices=indices, limit=5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert manifest.num_records == 5
    assert xs(tmp_path / "d") == [9_999_999 - i for i in range(5)]
    assert peak < 400e6


def stop(item):
    if item["x"] == 31 and not os.path.exists(os.environ["SWT_MENDED"]):
        raise ValueError("not yet")
    return item


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_stopped_goes_on_with_the_same_indices_only(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("SWT_MENDED", str(tmp_path / "mended"))
    run = RunOptions(workers=workers, mark_s=0)
    chosen = list(range(99, 0, -2))
    out = tmp_path / "out" / "d@2"
    with pytest.raises(CallableError, match="not yet"):
        sw.write(Loads(), out, indices=chosen, map=stop, run=run)
    with pytest.raises(RunChanged, match="indices= has changed"):
        sw.write(Loads(), out, indices=chosen[:-1], map=stop, run=run, resume=True)
    (tmp_path / "mended").touch()
    sw.write(Loads(), out, indices=chosen, map=stop, run=run, resume=True)
    assert xs(tmp_path / "out" / "d") == chosen


# -- what is refused, before anything is loaded ----------------------------------------------------


@pytest.mark.parametrize(
    ("indices", "what"),
    [
        ([1, -1], r"index -1 \(entry 1"),
        (np.array([0, 4, -7]), r"index -7 \(entry 2"),
        ([5, 100], r"index 100 \(entry 1 .* 100 items"),
        ([5, 1 << 70], "out of range"),
        (np.array([5, 2**64 - 1], np.uint64), "out of range"),
        ([1, 2, 1], "index 1 is repeated: entries 0 and 2"),
        (np.array([7, 7]), "index 7 is repeated: entries 0 and 1"),
        ([1, 2.0], "entry 1 of the indices is 2.0"),
        ([True, 2], "entry 0 of the indices is True"),
        (["1"], "entry 0 of the indices is '1'"),
        (np.array([1.0]), "float64"),
        (np.array([[1]]), r"int64\[1, 1\]"),
        (np.array([True]), "bool"),
        ({1, 2}, "of type set"),
        (7, "of type int"),
    ],
)
def test_what_is_no_choice_of_items(tmp_path, indices, what):
    data = Loads()
    with pytest.raises(OptionError, match=what):
        sw.write(data, tmp_path / "d@2", indices=indices)
    assert data.calls == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("source", [iter(ITEMS), lambda: iter(ITEMS)])
def test_a_stream_has_no_places(tmp_path, source):
    with pytest.raises(OptionError, match="can not be picked by their indices"):
        sw.write(source, tmp_path / "d@2", indices=[1])


def test_options_take_indices_that_were_checked():
    with pytest.raises(OptionError, match=r"indices is \[1, 2\]"):
        DatasetOptions(indices=[1, 2])
    assert item_indices([1, 2]) == item_indices(range(1, 3)) != item_indices([2, 1])
    assert len({item_indices([1, 2]), item_indices(np.array([1, 2]))}) == 1
    given = np.array([1, 2])
    kept = item_indices(given)
    given[0] = 9
    assert kept == ItemIndices(np.array([1, 2]))


# -- --indices -------------------------------------------------------------------------------------


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "content", [b"5\n1\n7\n", b" 5\r\n1\n\n7", npy(np.array([5, 1, 7], np.uint16))]
)
def test_a_file_of_indices(tmp_path, content):
    (tmp_path / "i").write_bytes(content)
    assert read_indices(str(tmp_path / "i")) == item_indices([5, 1, 7])


@pytest.mark.parametrize(
    ("content", "what", "line"),
    [
        (b"5\nsix\n", "'six' is not an integer", 2),
        (b"5\n1.5\n", "'1.5' is not an integer", 2),
        (b"5\n5\n", "is repeated: entries 0 and 1", None),
        (b"-5\n", "negative", None),
        (npy(np.array([1.5])), "float64", None),
        (npy(np.array([{}], object)), "not an array of integers", None),
        (npy(np.arange(3)).replace(b"}", b" "), "not an array of integers", None),
        (npy(np.arange(3)).replace(b"(3,), }  ", b"(3%s,), }" % (b"0" * 14)), "not an array", None),
    ],
)
def test_a_file_of_anything_else(tmp_path, content, what, line):
    path = str(tmp_path / "i")
    (tmp_path / "i").write_bytes(content)
    with pytest.raises(OptionError, match=what) as caught:
        read_indices(path)
    assert (caught.value.path, caught.value.line) == (path, line)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(OptionError, match="indices: can not be read: No such file"):
        read_indices(str(tmp_path / "none"))


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x\n" + "\n".join(map(str, range(100))) + "\n")
    (tmp_path / "i.txt").write_text("7\n3\n7\n")

    def run(*more):
        command = ["write", "t.csv", "out/d@2", "--indices", "i.txt", "-j", "1", *more]
        return CliRunner().invoke(app, command)

    refused = run()
    assert refused.exit_code == 2
    assert "--allow-duplicates" in refused.stderr
    planned = run("--allow-duplicates", "--dry-run", "--json")
    assert json.loads(planned.stdout)["num_items"] == 3
    assert run("--allow-duplicates").exit_code == 0
    assert xs("out/d") == [7, 3, 7]
    (tmp_path / "out" / "d.tfrecord-00001-of-00002").unlink()
    command = ["repair", "out/d", "out", "--source", "t.csv", "--indices", "i.txt"]
    repaired = CliRunner().invoke(app, [*command, "--allow-duplicates"])
    assert repaired.exit_code == 0, repaired.stderr
    assert xs("out/d") == [7, 3, 7]
    lone = CliRunner().invoke(app, ["write", "t.csv", "out/e@2", "--allow-duplicates"])
    assert lone.exit_code == 2


def test_random_choices_are_those_of_a_list(tmp_path):
    rng = np.random.default_rng(5)
    for size, workers in itertools.product([1, 17, 100], [1, 2]):
        chosen = rng.integers(0, 100, size)
        found = written(tmp_path, ITEMS, chosen, allow_duplicates=True, workers=workers)
        assert found == chosen.tolist()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
def test_a_write_leaves_no_temporary_file_open(tmp_path):
    def num_open():
        return len(list(Path("/proc/self/fd").iterdir()))

    rows = [{"x": number} for number in range(10)]
    sw.write(rows, tmp_path / "first@2", indices=[1, 2])
    gc.collect()
    gc.disable()
    try:
        before = num_open()
        for number in range(3):
            sw.write(rows, tmp_path / f"{number}@2", indices=[1, 2])
        assert num_open() == before
    finally:
        gc.enable()
