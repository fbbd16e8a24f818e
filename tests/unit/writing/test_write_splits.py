"""Writes of several datasets: the same bytes however they are made, and all of them or none."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from crashes import Crash, CrashingStorage
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.dataset.naming import split_outputs
from shardwriter.dataset.splits import parse_split_option, position_key
from shardwriter.errors import (
    CallableError,
    DataWarning,
    OptionError,
    OutputBusy,
    OutputExists,
    RunChanged,
    RunError,
    SchemaConflict,
    SourceError,
)
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.storage import LocalStorage
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.write import split_datasets, write_all

SPLIT = "train=0.6@3,val=0.4@2"
COUNT = 60


class Rows:
    def __init__(self, count=COUNT, broken=None):
        self.count, self.broken, self.loaded = count, broken, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError("boom")
        self.loaded.append(index)
        return {"x": index, "data": bytes([index % 256]) * (index % 7), "label": index % 3}


def stream():
    return map(Rows().__getitem__, range(COUNT))


def drop_some(features):
    return sw.SKIP if features["x"] % 10 == 3 else features


def members(name, seed=0):
    """The items of a split, in source order."""
    option = parse_split_option(SPLIT)
    split = next(split for split in option.splits(seed) if split.name == name)
    numbers = split.numbers_of(map(position_key, range(COUNT)))
    return np.flatnonzero(numbers == split.number).tolist()


def files(folder):
    """Return all files of a folder, and none of a run."""
    assert not [p.name for p in Path(folder).iterdir() if p.is_dir()]
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def shards(folder, name):
    return {
        path.name.partition(".tfrecord")[2]: path.read_bytes()
        for path in Path(folder).iterdir()
        if path.name.startswith(f"{name}.tfrecord-")
    }


def whole(tmp_path, data=None, **more):
    sw.write_splits(Rows() if data is None else data, tmp_path / "whole/m", SPLIT, **more)
    return files(tmp_path / "whole")


# -- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "val"])
def test_a_split_is_its_items_written_alone(tmp_path, name):
    mine = set(members(name))
    manifests = sw.write_splits(Rows(), tmp_path / "m", SPLIT, map=drop_some, label="label")
    sw.write(
        Rows(),
        tmp_path / "alone" / f"{name}@{manifests[name].num_shards}",
        filter=lambda item: int(item) in mine,
        map=drop_some,
        label="label",
    )
    assert shards(tmp_path, f"m-{name}") == shards(tmp_path / "alone", name)
    alone = sw.load_manifest(tmp_path / "alone" / f"{name}.manifest.json")
    assert manifests[name].gaps == alone.gaps
    assert manifests[name].labels == alone.labels
    assert (tmp_path / f"m-{name}.index").read_bytes() == (
        tmp_path / "alone" / f"{name}.index"
    ).read_bytes()


@pytest.mark.parametrize(
    "more",
    [{}, {"shuffle_seed": 5, "compression": "gzip"}, {"order": "key", "key": "x"}],
    ids=str,
)
def test_workers_change_no_byte(tmp_path, more):
    for folder, workers in (("one", 1), ("two", 2)):
        sw.write_splits(
            Rows(),
            tmp_path / folder / "m",
            SPLIT,
            workers=workers,
            map=drop_some,
            **more,
        )
    assert files(tmp_path / "one") == files(tmp_path / "two")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("data", [list(stream()), stream, "iterator"], ids=["list", "factory", ""])
def test_however_items_come_the_records_are_the_same(tmp_path, data, workers):
    sw.write_splits(Rows(), tmp_path / "rows/m", SPLIT)
    data = stream() if data == "iterator" else data
    sw.write_splits(data, tmp_path / "other/m", SPLIT, workers=workers)
    for name in ("train", "val"):
        assert shards(tmp_path / "rows", f"m-{name}") == shards(tmp_path / "other", f"m-{name}")


def test_a_map_is_called_once_for_every_item(tmp_path):
    for data in (Rows(), stream(), stream):
        seen = []

        def look(features, seen=seen):
            seen.append(features["x"])
            return features

        sw.write_splits(data, tmp_path / "m", SPLIT, map=look, overwrite=True)
        assert sorted(seen) == list(range(COUNT))


def test_the_manifest_says_what_was_done(tmp_path):
    found = sw.write_splits(Rows(), tmp_path / "m", SPLIT, split_seed=4, key="x")
    assert list(found) == ["train", "val"]
    assert found["val"].order["split"] == {
        "algorithm": "blake2b-split/1",
        "feature": "x",
        "fractions": [["train", "0.6"], ["val", "0.4"]],
        "name": "val",
        "seed": 4,
    }
    assert sum(manifest.num_items for manifest in found.values()) == COUNT
    assert [sw.verify(tmp_path / f"m-{name}").num_defects for name in found] == [0, 0]


def test_a_dataset_without_splits_has_the_hash_that_it_had(tmp_path):
    manifest = sw.write([{"x": 1}], tmp_path / "t@1")
    assert manifest.order == {"shuffle": None, "split": None}


def test_n_is_chosen_for_each_split(tmp_path):
    found = sw.write_splits(Rows(), tmp_path / "m", "a=0.5,b=0.5@4")
    assert [manifest.num_shards for manifest in found.values()] == [1, 4]
    with pytest.raises(OptionError, match="N can not be chosen"):
        sw.write_splits(stream, tmp_path / "n", "a=0.5,b=0.5@4")
    assert not list(tmp_path.glob("*n-*"))


def test_a_split_without_items_is_told(tmp_path):
    notes = []
    found = sw.write_splits(
        Rows(), tmp_path / "m@2", {"a": "0.999999999", "b": "0.000000001"}, notify=notes.append
    )
    assert found["b"].num_records == 0
    assert any(note.startswith("b: there are no items") for note in notes)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "empty", [{"indices": []}, {"filter": lambda item: False}], ids=["indices", "filter"]
)
def test_all_splits_of_nothing_are_empty(tmp_path, empty, workers):
    rows = [{"x": number} for number in range(10)]
    with pytest.warns(DataWarning, match="^(train|val): there are no items"):
        found = sw.write_splits(rows, tmp_path / "m@2", SPLIT, workers=workers, **empty)
    assert {manifest.num_records for manifest in found.values()} == {0}


def test_one_item_leaves_a_split_without_any(tmp_path):
    with pytest.warns(DataWarning, match="^(a|b): there are no items"):
        found = sw.write_splits([{"x": 1}], tmp_path / "m@2", "a=0.5,b=0.5")
    assert sorted(manifest.num_records for manifest in found.values()) == [0, 1]


def test_indices_and_names_are_those_of_a_write(tmp_path):
    pairs = [(number, number % 3) for number in range(60)]
    indices = [*range(0, 60, 2), 2, 4]
    found = sw.write_splits(
        *(pairs, tmp_path / "m@2", "a=0.5,b=0.5"),
        names="x,y",
        indices=indices,
        allow_duplicates=True,
    )
    written = []
    for name, manifest in found.items():
        assert manifest.features.keys() == {"x", "y"}
        with sw.open(tmp_path / f"m-{name}") as dataset:
            written += [int(record["x"]) for record in dataset]
    assert sorted(written) == sorted(indices)
    with pytest.raises(OptionError, match="index 2 is repeated"):
        sw.write_splits(pairs, tmp_path / "n@2", SPLIT, names="x,y", indices=indices)


def test_a_wrong_parameter_is_one(tmp_path):
    with pytest.raises(TypeError, match="'shufle_seed'"):
        sw.write_splits(Rows(), tmp_path / "m", SPLIT, shufle_seed=1)


# -- all or none -----------------------------------------------------------------------------------


def test_an_item_at_fault_publishes_nothing(tmp_path):
    broken = members("val")[-1]  # the last split is at fault, and the others are whole
    with pytest.raises(CallableError):
        sw.write_splits(Rows(broken=broken), tmp_path / "m", SPLIT)
    assert os.listdir(tmp_path) == []


def test_errors_are_listed_by_split(tmp_path):
    broken = members("val")[4]
    found = sw.write_splits(Rows(broken=broken), tmp_path / "m", SPLIT, on_error="skip")
    assert found["train"].gaps == []
    assert found["val"].gaps == [4]
    (line,) = (tmp_path / "m-val.errors.jsonl").read_text().splitlines()
    assert json.loads(line)["index"] == 4
    assert not (tmp_path / "m-train.errors.jsonl").exists()
    sw.write_splits(Rows(), tmp_path / "m", SPLIT, resume=True, run=RunOptions(retry_errors=True))
    assert files(tmp_path) == whole(tmp_path.parent / f"{tmp_path.name}-w")


@pytest.mark.parametrize("name", ["m-train", "m-val"])
def test_an_output_that_is_there_is_refused_before_anything_is_done(tmp_path, name):
    sw.write([{"a": 1}], tmp_path / f"{name}@1")
    before = files(tmp_path)
    data = Rows()
    with pytest.raises(OutputExists, match=name):
        sw.write_splits(data, tmp_path / "m", SPLIT)
    assert data.loaded == []
    assert files(tmp_path) == before
    sw.write_splits(data, tmp_path / "m", SPLIT, overwrite=True)
    assert files(tmp_path) == whole(tmp_path.parent / f"{tmp_path.name}-w")


def test_an_output_that_another_program_writes_is_refused(tmp_path):
    data = Rows()
    with (
        RunDirectory.claim(str(tmp_path), "m-val", LocalStorage()),
        pytest.raises(OutputBusy, match="m-val"),
    ):
        sw.write_splits(data, tmp_path / "m", SPLIT)
    assert data.loaded == []
    assert not (tmp_path / ".m-train.partial").exists()


def test_splits_whose_types_do_not_go_together_are_not_published(tmp_path):
    mine = set(members("val"))

    def changing(features):
        x = features["x"]
        return {"x": float(x) if x in mine else x}

    with pytest.raises(SchemaConflict, match="'train' and 'val'") as caught:
        sw.write_splits(Rows(), tmp_path / "m", SPLIT, map=changing)
    assert caught.value.feature == "x"
    assert not list(tmp_path.glob("m-*"))


# -- stopped and gone on with ----------------------------------------------------------------------


def write_with(folder, storage, **more):
    wanted = parse_split_option(SPLIT)
    datasets = split_datasets(
        Rows(),
        "auto",
        wanted,
        lambda names: split_outputs(folder / "m", wanted.num_shards, None, None, names),
        lambda output, part: DatasetOptions(split=part),
    )
    options = RunOptions(mark_s=0, **more)
    return write_all(datasets.targets, datasets.select, options, storage=storage)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
def test_stopped_anywhere_no_split_stands_alone_and_all_is_gone_on_with(tmp_path, late, replaces):
    expected = whole(tmp_path)
    counting = CrashingStorage()
    more = {"overwrite": True} if replaces else {}

    def prepare(folder):
        if replaces:
            sw.write_splits([{"other": i} for i in range(9)], folder / "m@1", "train=0.5,val=0.5")

    prepare(tmp_path / "count")
    write_with(tmp_path / "count", counting, **more)
    places = range(len(counting.calls))
    rng = random.Random(late)
    for crash_at in sorted(rng.sample(places, 8)):
        folder = tmp_path / f"at-{crash_at}"
        prepare(folder)
        with pytest.raises(Crash):
            write_with(folder, CrashingStorage(crash_at, late=late), **more)
        names = ("train", "val")
        new = {name: is_new(folder, name, expected) for name in names}
        if any(new.values()):  # one is published: the others are, or wait to be
            for name in names:
                assert new[name] or (folder / f".m-{name}.partial/commit.json").exists()
        try:
            write_with(folder, LocalStorage(), resume=True)
        except OutputExists:  # nothing was noted yet of the new ones
            assert replaces
            assert not any(new.values())
            write_with(folder, LocalStorage(), overwrite=True)
        assert files(folder) == expected


def is_new(folder, name, expected):
    path = folder / f"m-{name}.manifest.json"
    return path.exists() and path.read_bytes() == expected[path.name]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_does_again_only_what_was_not_done(tmp_path, workers):
    broken = members("val")[10]
    with pytest.raises(CallableError):
        sw.write_splits(
            Rows(broken=broken), tmp_path / "out/m", SPLIT, run=RunOptions(mark_s=0), map=drop_some
        )
    assert sorted(os.listdir(tmp_path / "out")) == [".m-train.partial", ".m-val.partial"]
    data = Rows()
    sw.write_splits(data, tmp_path / "out/m", SPLIT, map=drop_some, resume=True, workers=workers)
    assert files(tmp_path / "out") == whole(tmp_path, map=drop_some)
    if workers == 1:
        again = set(data.loaded) & set(members("train"))
        assert len(again) <= 3  # the last record of each shard is compared


def test_another_split_is_another_job(tmp_path):
    with pytest.raises(CallableError):
        sw.write_splits(
            Rows(broken=members("val")[-1]), tmp_path / "m", SPLIT, run=RunOptions(mark_s=0)
        )
    for other in ("train=0.7@3,val=0.3@2", "train=0.6@3,val=0.3@2,test=0.1@1"):
        with pytest.raises(RunChanged, match="split= of "):
            sw.write_splits(Rows(), tmp_path / "m", other, resume=True)
    with pytest.raises(RunChanged, match="split= of "):
        sw.write_splits(Rows(), tmp_path / "m", SPLIT, split_seed=1, resume=True)


def test_a_finished_write_is_left_as_it_is(tmp_path):
    sw.write_splits(Rows(), tmp_path / "m", SPLIT)
    before = files(tmp_path)
    notes = []
    sw.write_splits(Rows(), tmp_path / "m", SPLIT, resume=True, notify=notes.append)
    assert files(tmp_path) == before
    assert notes == [
        f"nothing to do: 'm-{name}' is finished, and of this job" for name in ("train", "val")
    ]


SLOW = """
import time
def rows():
    for i in range(1500):
        time.sleep(0.0003)
        yield {"x": i, "text": "t" * (i % 50)}
"""


def test_a_killed_command_goes_on_and_ends_with_the_same_bytes(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "shardwriter", "write", "slow:rows", "m@4", "-j", "2"]
    command += ["--split", "train=0.8,val=0.2@1"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}

    def run(folder, *more):
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [*command, *more],
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    assert run(tmp_path / "whole").wait() == 0
    for _ in range(2):
        process = run(tmp_path / "killed", "--resume")
        time.sleep(random.uniform(0.6, 1.8))
        process.send_signal(signal.SIGKILL)
        process.wait()
        final = {p.name for p in (tmp_path / "killed").glob("m-*.manifest.json")}
        for name in ("train", "val") if final else ():
            partial = tmp_path / f"killed/.m-{name}.partial/commit.json"
            assert f"m-{name}.manifest.json" in final or partial.exists()
    assert run(tmp_path / "killed", "--resume").wait() == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


# -- the command -----------------------------------------------------------------------------------


def invoke(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,who\n" + "".join(f"{i},p{i // 4}\n" for i in range(100)))
    return path


def test_the_command_says_all_that_it_has_made(tmp_path, table):
    out = tmp_path / "out/m@2"
    done = invoke("write", table, out, "--split", "train=0.8,val=0.2@1", "--json", "-j", 1)
    told = json.loads(done.stdout)
    assert told["schema"] == "shardwriter.write-splits/1"
    assert {name: entry["num_shards"] for name, entry in told["splits"].items()} == {
        "train": 2,
        "val": 1,
    }
    assert sum(entry["num_records"] for entry in told["splits"].values()) == 100
    assert "m-val.manifest.json" in told["splits"]["val"]["manifest"]
    assert "rows and records are split by their numbers" in done.stderr
    done = invoke("write", table, out, "--split", "train=0.8,val=0.2@1", "-j", 1, "--resume")
    assert done.stdout.count("wrote") == 2


def test_the_command_keeps_groups_together(tmp_path, table):
    out = tmp_path / "out/m@1"
    invoke("write", table, out, "--split", "a=0.5,b=0.5", "--key", "who", "--seed", 3, "-j", 1)
    groups = [
        {bytes(sw.decode_example(r)["who"][0]) for r in read_records(path)}
        for path in sorted((tmp_path / "out").glob("m-?.tfrecord*"))
    ]
    assert len(groups) == 2
    assert not groups[0] & groups[1]
    assert sw.load_manifest(tmp_path / "out/m-a.manifest.json").order["split"]["seed"] == 3


def test_a_dry_run_says_what_each_split_would_be(tmp_path, table):
    out = tmp_path / "out/m"
    done = invoke("write", table, out, "--split", "a=0.5,b=0.5@3", "--dry-run", "--json")
    told = json.loads(done.stdout)
    assert [told["splits"][name]["num_shards"] for name in "ab"] == [1, 3]
    assert sum(entry["num_items"] for entry in told["splits"].values()) == 100
    assert "split a" in invoke("write", table, out, "--split", "a=0.5,b=0.5", "--dry-run").stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--split", "a=0.5"], "sum to 0.5"),
        (["--split", "a,b"], "no splits of its own"),
        (["--seed", "1"], "fractions in --split"),
        (["--split", "source"], "no splits of its own"),
        (["--split", "a=0.5,b=0.5", "--key", "nope"], "no such feature"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, table, arguments, says):
    done = invoke("write", table, tmp_path / "m@2", "-j", 1, *arguments, code=2)
    assert says in done.stderr
    assert os.listdir(tmp_path) == ["t.csv"]


def test_a_name_without_a_dataset_says_which_splits_there_are(tmp_path):
    sw.write_splits(Rows(), tmp_path / "m", SPLIT)
    with pytest.raises(OptionError) as caught:
        sw.open(tmp_path / "m")
    assert caught.value.hint == f"there are its splits: {tmp_path}/m-train, {tmp_path}/m-val"


def test_progress_says_which_split_it_is_of(tmp_path):
    told = []
    sw.write_splits(Rows(), tmp_path / "m", SPLIT, progress=told.append)
    last = {work.split: work.num_done for work in told}
    assert last == {name: len(members(name)) for name in ("train", "val")}


def test_an_iterator_that_was_read_is_no_empty_split(tmp_path):
    read = (row for row in [])
    next(read, None)
    with pytest.raises(SourceError, match="already read"):
        sw.write_splits(read, tmp_path / "m", SPLIT)


# -- repair ----------------------------------------------------------------------------------------


def test_a_damaged_split_is_made_again_from_the_source(tmp_path):
    out = tmp_path / "out"
    sw.write_splits(Rows(), out / "m", SPLIT, key="x", split_seed=2)
    before = files(out)
    (out / "m-val.tfrecord-00001-of-00002").unlink()
    report = sw.repair(out / "m-val", out, Rows())
    assert report.is_whole
    assert files(out) == before


def test_whoever_fills_the_queues_of_splits_is_told_that_nothing_is_written(tmp_path):
    items = sw.ItemQueue()
    with pytest.raises(OptionError, match="no split 'val'"):
        sw.write_splits({"train": items}, tmp_path / "m@2", "train,val")
    with pytest.raises(RunError):
        items.put({"x": 1})
