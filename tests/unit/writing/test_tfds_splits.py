"""All splits of a TFDS dataset in one write."""

from __future__ import annotations

import json
import subprocess

import pytest
from crashes import Crash
from environments import peers_python
from small_images import write_images

import shardwriter as sw
from shardwriter.dataset.naming import split_outputs
from shardwriter.dataset.splits import parse_split_option
from shardwriter.errors import CallableError, SchemaConflict
from shardwriter.storage import LocalStorage
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.write import split_datasets, write_all

SPLIT = "train=0.8@3,val=0.2@1"


def rows(count=50, **more):
    return [{"x": i, "label": i % 3, **more} for i in range(count)]


def info(folder):
    told = json.loads((folder / "demo/1.0.0/dataset_info.json").read_text())
    return {split["name"]: list(map(int, split["shardLengths"])) for split in told["splits"]}


def write(data, folder, split=SPLIT, **more):
    return sw.write_splits(data, folder, split, tfds="demo:1.0.0", **more)


def test_all_splits_are_in_the_metadata(tmp_path):
    found = write(rows(), tmp_path)
    lengths = info(tmp_path)
    assert {name: sum(counts) for name, counts in lengths.items()} == {
        name: manifest.num_records for name, manifest in found.items()
    }
    assert [len(lengths[name]) for name in ("train", "val")] == [3, 1]


def test_all_splits_are_replaced_by_others_that_would_not_go_with_them(tmp_path):
    write(rows(), tmp_path)
    write([{"x": "text", "label": i % 5} for i in range(20)], tmp_path, overwrite=True)
    assert sum(map(sum, info(tmp_path).values())) == 20
    told = json.loads((tmp_path / "demo/1.0.0/features.json").read_text())
    assert "text" in told["featuresDict"]["features"]["x"]


def test_a_replacement_that_is_stopped_between_two_commits_is_gone_on_with(tmp_path):
    write(rows(), tmp_path)
    wanted = parse_split_option(SPLIT)
    data = [{"x": "text", "label": i % 5} for i in range(20)]  # does not go with what is there

    def write_with(storage, **more):
        datasets = split_datasets(
            data,
            "auto",
            wanted,
            lambda names: split_outputs(
                tmp_path, wanted.num_shards, None, None, names, tfds="demo:1.0.0"
            ),
            lambda output, part: DatasetOptions(split=part, tfds=output.tfds),
        )
        options = RunOptions(mark_s=0, **more)
        return write_all(datasets.targets, datasets.select, options, storage=storage)

    class Stopping(LocalStorage):
        def publish(self, source, target):
            super().publish(source, target)
            if target.endswith("commit.json"):
                self.stopped = True

        def create(self, path, *, new=False):
            if getattr(self, "stopped", False):
                raise Crash
            return super().create(path, new=new)

    with pytest.raises(Crash):
        write_with(Stopping(), overwrite=True)
    assert (tmp_path / "demo/1.0.0/.demo-train.partial/commit.json").exists()
    assert not (tmp_path / "demo/1.0.0/.demo-val.partial/commit.json").exists()
    write_with(LocalStorage(), resume=True)
    assert sum(map(sum, info(tmp_path).values())) == 20
    told = json.loads((tmp_path / "demo/1.0.0/features.json").read_text())
    assert "text" in told["featuresDict"]["features"]["x"]


def test_a_write_that_fails_leaves_the_metadata(tmp_path):
    write(rows(), tmp_path)
    before = info(tmp_path)

    def broken(features):
        raise ValueError("boom")

    with pytest.raises(CallableError):
        write(rows(), tmp_path, overwrite=True, map=broken)
    data = {"train": rows(), "val": [{"x": "text", "label": 1}]}
    with pytest.raises(SchemaConflict):
        write(data, tmp_path, "source", overwrite=True, num_shards=2)
    assert info(tmp_path) == before


def test_tfds_reads_the_splits_of_a_folder(tmp_path):
    write_images(tmp_path / "in", ["train/cat/1.gif", "train/dog/2.gif", "test/owl/3.gif"])
    write(tmp_path / "in", tmp_path / "data", "source")
    code = (
        "import json, sys, tensorflow_datasets as tfds\n"
        "b = tfds.builder_from_directory(sys.argv[1])\n"
        "print(json.dumps({s: b.info.splits[s].num_examples for s in b.info.splits}))\n"
        "print(json.dumps(b.info.features['label'].names))\n"
        "found = b.as_dataset('test', decoders={'image': tfds.decode.SkipDecoding()})\n"
        "print([int(x['label']) for x in found])\n"
    )
    done = subprocess.run(
        [peers_python(), "-c", code, str(tmp_path / "data/demo/1.0.0")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [
        '{"test": 1, "train": 2}',
        '["cat", "dog", "owl"]',
        "[2]",
    ]
