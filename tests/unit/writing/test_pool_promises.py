"""What the number of workers must not change beside the bytes: notes, errors, files."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import CallableError, OptionError, SchemaConflict, SourceError
from shardwriter.schema.labels import LabelCounts
from shardwriter.writing.messages import ItemPacker


class Rows:
    """Any values at an index."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


def command(*arguments, cwd, stdin=None):
    return subprocess.run(
        [sys.executable, "-m", "shardwriter", *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
    )


def test_labels_may_come_in_any_order():
    values = [5.0, 6.0, -0.0, 6.0, 0.0, 6.0, 7.0, 8.0, 1, 1.0, True]
    expected = LabelCounts("y", 3)
    for index, value in enumerate(values):
        expected.add(index, value)
    for seed in range(20):
        order = random.Random(seed).sample(range(len(values)), len(values))
        cut = seed % len(values)
        parts = [LabelCounts("y", 3), LabelCounts("y", 3)]
        for part, indices in zip(parts, (order[:cut], order[cut:]), strict=True):
            for index in indices:
                part.add(index, values[index])
        parts[0].merge(parts[1])
        assert parts[0].to_json() == expected.to_json()
        assert parts[0].is_sorted == expected.is_sorted


@pytest.mark.parametrize("workers", [1, 2])
def test_unsorted_labels_are_not_called_sorted(tmp_path, workers):
    notes = []
    rows = Rows([{"l": index // 2 % 2} for index in range(64)])
    out = tmp_path / "t@8"
    sw.write(rows, out, label="l", workers=workers, notify=notes.append)
    assert not [note for note in notes if "sorted" in note]


# -- what the user's code can ask ------------------------------------------------------------------


def seeded(features):
    return {**features, "seed": sw.current_worker().item_seed >> 1}


def test_a_map_has_a_worker_when_items_are_only_sampled(tmp_path):
    rows = Rows([{"x": i} for i in range(9)])
    assert sw.write(rows, tmp_path / "auto", map=seeded).num_records == 9


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_that_is_iterated_over_has_no_worker(tmp_path, workers):
    def rows():
        for i in range(4):
            yield {"x": i, "none": sw.current_worker() is None}

    manifest = sw.write(rows, tmp_path / "t@2", label="none", workers=workers)
    assert manifest.labels["counts"] == {"1": 4}


def test_a_write_inside_of_a_map_leaves_the_worker(tmp_path):
    def nested(features):
        sw.write([features], tmp_path / f"inner{features['x']}@1")
        return {"index": sw.current_worker().item_index}

    manifest = sw.write([{"x": 5}, {"x": 6}], tmp_path / "t@1", map=nested, label="index")
    assert manifest.labels["counts"] == {"0": 1, "1": 1}


# -- options ---------------------------------------------------------------------------------------


def own_process(features):
    return {"pid": os.getpid()}


def test_workers_are_taken_from_the_run_options(tmp_path):
    rows = Rows([{}] * 8)
    run = sw.RunOptions(workers=2)
    manifest = sw.write(rows, tmp_path / "t@4", map=own_process, label="pid", run=run)
    assert str(os.getpid()) not in manifest.labels["counts"]
    here = sw.write(
        rows, tmp_path / "t@4", map=own_process, label="pid", run=run, workers=1, overwrite=True
    )
    assert [*here.labels["counts"]] == [str(os.getpid())]


def test_an_item_timeout_needs_a_process_and_has_it_for_one_shard_too(tmp_path):
    with pytest.raises(OptionError, match="item timeout needs"):
        sw.RunOptions(engine="serial", item_timeout_s=1)
    run = sw.RunOptions(item_timeout_s=60)
    rows = Rows([{}] * 3)
    manifest = sw.write(rows, tmp_path / "t@1", map=own_process, label="pid", run=run)
    assert str(os.getpid()) not in manifest.labels["counts"]


def test_a_schema_can_be_text(tmp_path):
    manifest = sw.write([{"x": 1}], tmp_path / "t@1", schema="x=float")
    assert manifest.features["x"].type.kind == "float"


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_of_the_source_waits_for_that_of_an_earlier_item(tmp_path):
    def rows():
        for i in range(100):
            yield {"x": i}
        raise ValueError("of the source")

    def fail(features):
        if features["x"] == 5:
            raise ValueError("of the map")
        return features

    for workers in (1, 2):
        with pytest.raises(CallableError, match="of the map") as caught:
            sw.write(rows, tmp_path / "t@2", map=fail, workers=workers)
        assert caught.value.index == 5


@pytest.mark.parametrize("values", [[1, 0.5], [0.5, 1], ["a", 1], [[1, 2], [[1, 2]]]])
def test_type_conflicts_have_the_same_message(tmp_path, values):
    found = []
    rows = Rows([{"x": np.array(value)} for value in values])
    for workers in (1, 2):
        with pytest.raises(SchemaConflict) as caught:
            sw.write(rows, tmp_path / "t@2", workers=workers)
        found.append((caught.value.message, caught.value.hint, caught.value.index))
    assert found[0] == found[1]


def test_a_spent_generator_is_no_empty_dataset(tmp_path):
    rows = ({"x": i} for i in range(3))
    sw.write(rows, tmp_path / "t@1")
    with pytest.raises(SourceError, match="already read"):
        sw.write(rows, tmp_path / "u@1")


# -- files -----------------------------------------------------------------------------------------


def test_a_mapped_file_that_was_replaced_is_what_is_mapped(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        np.save(tmp_path / f"{name}.npy", np.full((6, 4), value, np.float32))
    rows = Rows(np.load(tmp_path / "a.npy", mmap_mode="r"))
    (tmp_path / "b.npy").replace(tmp_path / "a.npy")
    manifest = sw.write(
        rows, tmp_path / "t@2", map=lambda row: {"x": float(row[0])}, label="x", workers=2
    )
    assert manifest.labels["counts"] == {"1.0": 6}


MAPS = """
import os
rejects = open(os.path.join(os.environ["REJECTS"], f"rejects-{os.getpid()}"), "w")

def reject(features):
    print("rejected", features["a"])
    rejects.write(f"{features['a']}\\n")
    return features

def move(features):
    os.chdir("/")
    return features
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_map_prints_and_writes(tmp_path, workers, monkeypatch):
    monkeypatch.setenv("REJECTS", str(tmp_path))
    (tmp_path / "maps.py").write_text(MAPS)
    (tmp_path / "t.csv").write_text("a\n" + "".join(f"{i}\n" for i in range(50)))
    options = ("--map", "maps:reject", "-j", workers, "--json")
    done = command("write", "t.csv", "out/t@4", *options, cwd=tmp_path)
    assert json.loads(done.stdout)["num_records"] == 50
    assert done.stderr.count(b"rejected") == 50
    lines = [line for path in tmp_path.glob("rejects-*") for line in path.read_text().split()]
    assert sorted(lines, key=int) == [str(i) for i in range(50)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("source", ["tables", "images", "records"])
def test_a_map_may_change_the_folder(tmp_path, workers, source, monkeypatch):
    monkeypatch.setenv("REJECTS", str(tmp_path))
    (tmp_path / "maps.py").write_text(MAPS)
    (tmp_path / source).mkdir()
    for i in range(40):
        if source == "tables":
            (tmp_path / source / f"{i:02}.csv").write_text(f"a\n{i}\n")
        elif source == "images":
            head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0"
            (tmp_path / source / f"{i:02}.png").write_bytes(head)
    if source == "records":
        sw.write([{"a": i} for i in range(40)], tmp_path / source / "r@40.gz")
    options = ("--map", "maps:move", "-j", workers)
    done = command("write", source, "out/t@4", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sw.load_manifest(tmp_path / "out/t.manifest.json").num_records == 40


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_may_be_larger_than_the_csv_modules_own_limit(tmp_path, workers):
    (tmp_path / "t.csv").write_text("a,b\n" + f"1,{'x' * 200_000}\n" * 8)
    done = command("write", "t.csv", "out/t@4", "-j", workers, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_compressed_table_through_a_pipe(tmp_path):
    table = gzip.compress(b"a,b\n1,x\n2,y\n")
    done = command("write", "-", "t@1", "--format", "csv", cwd=tmp_path, stdin=table)
    assert done.returncode == 0, done.stderr
    assert sw.load_manifest(tmp_path / "t.manifest.json").num_records == 2


def test_a_class_of_the_program_is_sent_once(tmp_path):
    program = """
import sys
from shardwriter.writing.messages import ItemPacker
class Item:
    def __init__(self, x):
        self.x = x
packer = ItemPacker()
print(*(len(packer.pack(Item(i))) for i in range(3)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    first, second, third = map(int, done.stdout.split())
    assert first > 2 * second
    assert second == third


def test_items_of_other_classes_are_packed_as_ever():
    assert ItemPacker().pack({"x": Path("a")}) == ItemPacker().pack({"x": Path("a")})
