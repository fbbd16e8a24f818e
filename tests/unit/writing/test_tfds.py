"""``--tfds``: names, what TFDS is told of features, and a folder that is right at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from crashes import Crash
from environments import ask_tfds
from hypothesis import given
from hypothesis import strategies as st
from processes import PLENTY_S, started, until
from small_images import GIF, png
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.dataset.naming import TfdsSplit, parse_output, tfds_split_of
from shardwriter.errors import CallableError, ManifestError, OptionError, OutputExists, StorageError
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import FeatureSummary
from shardwriter.sources.find import open_source
from shardwriter.sources.shard_sets import load_manifest
from shardwriter.storage import LocalStorage
from shardwriter.writing import publication
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.tfds import TfdsFeature, tfds_feature
from shardwriter.writing.write import write_dataset

HERE = "demo/1.0.0"


def files(folder):
    """Return all files below a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def info(folder):
    return json.loads((Path(folder) / HERE / "dataset_info.json").read_text())


def lengths(folder):
    return {
        split["name"]: list(map(int, split["shardLengths"])) for split in info(folder)["splits"]
    }


def features(folder):
    told = json.loads((Path(folder) / HERE / "features.json").read_text())
    return told["featuresDict"]["features"]


def rows(count, **more):
    return [{"x": i, "label": i % 3, **more} for i in range(count)]


def write(data, out, tfds="demo:1.0.0", **options):
    return sw.write(data, out, tfds=tfds, **options)


@pytest.fixture
def photos(tmp_path):
    """Return a function that makes a folder of images, and returns its path."""

    def make(name="photos", **classes):
        for label, images in (classes or {"cat": [png()] * 4, "dog": [png(5, 4)] * 3}).items():
            for number, data in enumerate(images):
                path = tmp_path / name / label / f"{number}.img.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return tmp_path / name

    return make


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "directory", "split", "num_shards"),
    [
        ("data", "data/demo/1.0.0", "train", None),
        ("data/", "data/demo/1.0.0", "train", None),
        (".", "./demo/1.0.0", "train", None),
        ("a/data/val@4", "a/data/demo/1.0.0", "val", 4),
        ("val@4", "demo/1.0.0", "val", 4),
        ("data/test_2@auto", "data/demo/1.0.0", "test_2", None),
        ("data/val/", "data/val/demo/1.0.0", "train", None),
    ],
)
def test_out_names_the_data_dir_and_the_split(out, directory, split, num_shards):
    output = parse_output(out, tfds="demo:1.0.0")
    assert os.path.normpath(output.directory) == os.path.normpath(directory)
    assert output.tfds == TfdsSplit("demo", "1.0.0", split)
    assert output.num_shards == num_shards
    assert output.pattern(4).shard_file(3) == f"demo-{split}.tfrecord-00003-of-00004"
    assert output.name == f"demo-{split}"


@pytest.mark.parametrize(
    ("out", "tfds", "options"),
    [
        ("data", "demo", {}),
        ("data", "Demo:1.0.0", {}),
        ("data", "1demo:1.0.0", {}),
        ("data", "de-mo:1.0.0", {}),
        ("data", "demo:1.0", {}),
        ("data", "demo:01.0.0", {}),
        ("data", "demo:1.0.0rc1", {}),
        ("data", "demo:1.0.0\n", {}),
        ("data/all@4", "demo:1.0.0", {}),
        ("data/a-b@4", "demo:1.0.0", {}),
        ("data/@4", "demo:1.0.0", {}),
        ("data/train@0", "demo:1.0.0", {}),
        ("data/train@4.tfrecord", "demo:1.0.0", {}),
        ("data/train@4.gz", "demo:1.0.0", {}),
        ("data/train@4", "demo:1.0.0", {"compression": "gzip"}),
        ("data/train@4", "demo:1.0.0", {"compression": "zlib"}),
        ("data/train@4", "demo:1.0.0", {"num_shards": 5}),
        ("data/train@100000", "demo:1.0.0", {}),
        ("gs://bucket/train@4", "demo:1.0.0", {}),
    ],
)
def test_what_tfds_could_not_find_is_refused(out, tfds, options):
    with pytest.raises(OptionError):
        parse_output(out, tfds=tfds, **options)


def test_a_split_without_a_number_of_shards_is_not_taken_for_a_folder(tmp_path):
    with pytest.raises(OptionError, match="has no @") as caught:
        parse_output(tmp_path / "val", num_shards=4, tfds="demo:1.0.0")
    assert f"{tmp_path}/val@N" in caught.value.hint
    (tmp_path / "val").mkdir()
    output = parse_output(tmp_path / "val", num_shards=4, tfds="demo:1.0.0")
    assert output.directory == str(tmp_path / "val" / HERE)


@pytest.mark.parametrize(
    "metadata", [{}, {"tfds": 1}, {"tfds": {"name": "../x", "version": "1.0.0", "split": "a"}}]
)
def test_a_manifest_of_no_split(metadata):
    assert tfds_split_of(metadata) is None


def test_the_options_and_out_say_the_same(tmp_path):
    plain = parse_output(tmp_path / "t@1")
    options = DatasetOptions(tfds=TfdsSplit("demo", "1.0.0", "train"))
    with pytest.raises(OptionError, match="different TFDS datasets"):
        write_dataset(lambda: open_source([{"x": 1}]), plain, options, RunOptions())


# -- what TFDS is told of a feature ----------------------------------------------------------------


def described(feature_type, *, present=5, unset=0, num_records=5, vocabulary=None, counts=None):
    summary = FeatureSummary(feature_type, present, unset, vocabulary)
    return tfds_feature("f", summary, num_records, counts or {})


@pytest.mark.parametrize(
    ("feature_type", "wanted"),
    [
        (FeatureType("int64", "int64", ()), TfdsFeature("tensor", "int64")),
        (FeatureType("int64", "bool", (3,)), TfdsFeature("tensor", "bool", (3,))),
        (FeatureType("int64", "uint8", (4, None)), TfdsFeature("tensor", "uint8", (4, None))),
        (FeatureType("float", "float16", (2, 3)), TfdsFeature("tensor", "float16", (2, 3))),
        (FeatureType("float", "longdouble", ()), TfdsFeature("tensor", "float32")),
        (FeatureType("int64", "int64", (0,)), TfdsFeature("tensor", "int64", (None,))),
        (FeatureType("int64", "int64", (0, None)), TfdsFeature("tensor", "int64", (None,))),
        (FeatureType("bytes", "string", ()), TfdsFeature("text")),
        (FeatureType("bytes", "bytes", ()), TfdsFeature("tensor")),
        (FeatureType("bytes", "string", (None,)), TfdsFeature("tensor", "string", (None,))),
        (
            FeatureType("bytes", "uint16", (2, None), "raw"),
            TfdsFeature("tensor", "uint16", (2, None), "bytes"),
        ),
        (
            FeatureType("bytes", "bytes", (), "image", "jpeg"),
            TfdsFeature("image", "uint8", (None, None, 3), "jpeg"),
        ),
    ],
)
def test_a_feature_is_described(feature_type, wanted):
    assert described(feature_type) == (wanted, None)


@pytest.mark.parametrize(
    ("feature_type", "wanted", "note"),
    [
        (FeatureType(), (), "no value in any record"),
        (FeatureType("float", "float32", (None, None)), (None,), "without its shape"),
        (FeatureType("bytes", "uint32", (2,), "raw"), (), "gives its bytes"),
        (FeatureType("bytes", "bytes", (), "image", "gif"), (), "decodes no gif"),
        (FeatureType("bytes", "bytes", (), "image", "image"), (None, None, 3), "several formats"),
    ],
)
def test_what_tfds_has_no_type_for_is_said(feature_type, wanted, note):
    feature, told = described(feature_type)
    assert note in told
    assert feature.shape == wanted


@pytest.mark.parametrize("missing", [{"present": 4}, {"unset": 1}])
def test_a_feature_that_records_lack_is_optional_or_empty(missing):
    text = described(FeatureType("bytes", "string", ()), **missing)[0]
    assert text == TfdsFeature("tensor", optional=True)
    varying = described(FeatureType("int64", "int32", (None,)), **missing)[0]
    assert varying == TfdsFeature("tensor", "int32", (None,))
    wide = described(FeatureType("float", "float64", (2,)), **missing)[0]
    assert wide == TfdsFeature("tensor", "float32", (2,), optional=True)
    image, note = described(FeatureType("bytes", "bytes", (), "image", "png"), **missing)
    assert image == TfdsFeature("tensor", optional=True)
    assert "some records have no image" in note
    raw = described(FeatureType("bytes", "int8", (2,), "raw"), **missing)[0]
    assert raw == TfdsFeature("tensor", optional=True)
    label = described(FeatureType("int64", "int64", ()), vocabulary=["a"], **missing)[0]
    assert label == TfdsFeature("tensor", "int64", optional=True)


INT = FeatureType("int64", "int64", ())


@pytest.mark.parametrize(
    ("counts", "num_classes"),
    [
        ({"0": 2, "7": 3}, 8),
        ({"0": 2, "7": 2}, None),  # counted of some records only
        ({"-1": 1, "1": 4}, None),
        ({"1000000000": 5}, None),  # TFDS makes a name of each
        ({"0": 2, "a": 3}, None),
        ({}, None),
    ],
)
def test_an_integer_whose_values_were_counted_is_a_label(counts, num_classes):
    feature, note = described(INT, counts=counts)
    wanted = TfdsFeature("tensor", "int64")
    if num_classes is not None:
        wanted = TfdsFeature("label", num_classes=num_classes)
    assert (feature, note) == (wanted, None)


@pytest.mark.parametrize("word", ["", " a", "a ", "x\ny", "x\x85y", "b"])
def test_class_names_that_a_file_of_lines_can_not_hold_are_left_off(word):
    feature, note = described(INT, vocabulary=["b", word])
    assert feature == TfdsFeature("label", num_classes=2)
    assert "class names" in note


DIMENSIONS = st.sampled_from([None, 1, 2])
TENSORS = st.builds(
    TfdsFeature,
    st.just("tensor"),
    st.sampled_from(["int64", "string"]),
    st.lists(DIMENSIONS, max_size=2).map(tuple).filter(lambda shape: shape.count(None) < 2),
    optional=st.just(False),
) | st.builds(TfdsFeature, st.just("tensor"), optional=st.booleans())
FEATURES = st.one_of(
    TENSORS,
    st.sampled_from([TfdsFeature("text"), TfdsFeature("unset")]),
    st.builds(
        TfdsFeature,
        st.just("label"),
        num_classes=st.integers(1, 3),
        names=st.sampled_from([None, ("a", "b")]),
    ),
    st.builds(
        TfdsFeature,
        st.just("image"),
        st.just("uint8"),
        st.just((None, None, 3)),
        st.sampled_from(["jpeg", "png", "image"]),
    ),
)


def joined(a, b):
    try:
        return a.join(b)
    except ValueError:
        return None


@given(FEATURES, FEATURES)
def test_a_join_has_no_order_and_covers_both(a, b):
    both = joined(a, b)
    assert joined(b, a) == both
    assert a.join(a) == a
    if both is not None:
        assert joined(both, a) == joined(both, b) == both
        for feature in {a, b} - {TfdsFeature("unset")}:
            assert len(both.shape) == len(feature.shape)
            assert both.dtype == feature.dtype
            assert both.may_be_absent or not feature.may_be_absent


# -- a folder --------------------------------------------------------------------------------------


def test_a_folder_of_images(tmp_path, photos):
    notes = []
    manifest = write(photos(), tmp_path / "data", num_shards=4, notify=notes.append)
    folder = tmp_path / "data" / HERE
    assert sorted(os.listdir(folder)) == [
        "dataset_info.json",
        "demo-train.index",
        "demo-train.manifest.json",
        *[f"demo-train.tfrecord-0000{shard}-of-00004" for shard in range(4)],
        "features.json",
        "label.labels.txt",
    ]
    assert info(tmp_path / "data") == {
        "fileFormat": "tfrecord",
        "name": "demo",
        "splits": [
            {
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "name": "train",
                "numBytes": str(manifest.payload_bytes),
                "shardLengths": ["2", "2", "2", "1"],
            }
        ],
        "version": "1.0.0",
    }
    assert manifest.payload_bytes < manifest.file_bytes
    told = features(tmp_path / "data")
    assert sorted(told) == ["filename", "image", "label"]
    assert told["image"]["image"]["encodingFormat"] == "png"
    assert told["label"]["classLabel"] == {"numClasses": "2"}
    assert (folder / "label.labels.txt").read_text() == "cat\ndog\n"
    first = next(read_records(str(folder / manifest.pattern.shard_file(0))))
    assert sw.decode_example(first) == {
        "filename": [b"cat/0.img.png"],
        "image": [png()],
        "label": np.array([0]),
    }
    assert manifest.labels["feature"] == "label"
    assert manifest.labels["counts"] == {"0": 4, "1": 3}
    assert manifest.metadata["tfds"] == {"name": "demo", "split": "train", "version": "1.0.0"}


def test_a_map_is_given_tfds_names_and_its_image_can_be_said_to_be_one(tmp_path, photos):
    seen = []

    def note(item):
        seen.append(sorted(item))
        return item

    write(photos(), tmp_path / "data/train@1", map=note, schema="image=image")
    assert seen[0] == ["filename", "image", "label"]
    told = features(tmp_path / "data")
    assert told["image"]["image"]["encodingFormat"] == "png"
    assert told["label"]["classLabel"] == {"numClasses": "2"}


def test_splits_join_and_do_not_disturb_each_other(tmp_path):
    data = tmp_path / "data"
    write(rows(7), data / "train@3")
    train = files(data)
    write(rows(4), data / "val@2")
    assert lengths(data) == {"train": [3, 2, 2], "val": [2, 2]}
    both = files(data)
    joined = {name: both[name] for name in train if "info" not in name}
    assert joined == {name: train[name] for name in train if "info" not in name}
    write(rows(5), data / "train@1", overwrite=True)
    assert lengths(data) == {"train": [5], "val": [2, 2]}
    for name in both:
        if "val" in name:
            assert files(data)[name] == both[name]
    assert f"{HERE}/demo-train.tfrecord-00000-of-00003" not in files(data)


def test_the_order_of_the_splits_changes_nothing(tmp_path):
    for folder, order in (("a", "train val test"), ("b", "test train val")):
        for split in order.split():
            more = {"y": 1.5} if split == "val" else {"y": None}
            write(rows(4 + len(split), **more) + rows(1, y=2.5), tmp_path / folder / f"{split}@2")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert features(tmp_path / "a")["y"]["tensor"]["optional"] is True


def test_versions_are_apart(tmp_path):
    write(rows(3), tmp_path / "train@1")
    before = files(tmp_path)
    write([{"x": "other"}], tmp_path / "train@1", tfds="demo:1.0.1")
    assert before.items() <= files(tmp_path).items()


def test_a_dataset_written_again_leaves_no_names_of_classes(tmp_path, photos):
    write(photos(), tmp_path / "data/train@2")
    write(rows(3), tmp_path / "data/train@2", overwrite=True)
    assert not (tmp_path / "data" / HERE / "label.labels.txt").exists()
    assert sorted(features(tmp_path / "data")) == ["label", "x"]


@pytest.mark.parametrize(
    ("second", "feature", "what"),
    [
        ([{"x": 1.5, "label": 0}], "x", "int64 and float32"),
        ([{"x": [1, 2], "label": 0}], "x", r"int64 and int64\[2\]"),
        ([{"x": 1}], "label", "only one of them has it"),
        ([{"x": 1, "label": 0, "more": 1}], "more", "only one of them has it"),
    ],
)
def test_splits_that_do_not_go_together(tmp_path, second, feature, what):
    write(rows(3), tmp_path / "train@1")
    before = files(tmp_path)
    with pytest.raises(OptionError, match=what) as caught:
        write(second, tmp_path / "val@1")
    assert caught.value.feature == feature
    assert "'train'" in str(caught.value)
    assert "'val'" in str(caught.value)
    now = files(tmp_path)
    assert {name: now[name] for name in now if ".partial" not in name} == before


def test_an_empty_split_goes_with_all(tmp_path):
    write(rows(3), tmp_path / "train@1")
    write([], tmp_path / "val@2")
    assert lengths(tmp_path) == {"train": [3], "val": [0, 0]}
    assert sorted(features(tmp_path)) == ["label", "x"]


def test_other_classes_are_refused_before_anything_is_read(tmp_path, photos, monkeypatch):
    write(photos(), tmp_path / "data/train@1")
    before = files(tmp_path / "data")
    other = photos("val", cat=[png()], eel=[png()])
    monkeypatch.setattr(
        "shardwriter.sources.image_folder.ImageFolder.load", lambda *_: pytest.fail("it is read")
    )
    with pytest.raises(OptionError, match="the classes differ, 'dog', 'eel'"):
        write(other, tmp_path / "data/val@1")
    assert files(tmp_path / "data") == before


@pytest.mark.parametrize(
    "second",
    [
        '{"x":[4],"y":[[1,2]],"s":"a","e":null,"z":[]}\n',
        '{"x":[1,2],"y":[[1,2],[3,4]],"s":null,"e":2.5,"z":["u"]}\n',
        '{"x":[],"y":[[5,6]],"s":"c","e":1.0,"z":["u","v"]}\n',
    ],
)
def test_what_a_table_plans_is_not_taken_for_another_type(tmp_path, second):
    first = '{"x":[1,2],"y":[[1,2],[3,4]],"s":"a","e":2.5,"z":["u"]}\n'
    for split, text in (("train", first), ("val", second)):
        (tmp_path / f"{split}.jsonl").write_text(text)
        write(tmp_path / f"{split}.jsonl", tmp_path / f"data/{split}@1")
    assert lengths(tmp_path / "data") == {"train": [1], "val": [1]}
    told = features(tmp_path / "data")
    assert sorted(told) == ["e", "s", "x", "y", "z"]
    assert told["z"]["tensor"]["dtype"] == "string"
    (tmp_path / "bad.jsonl").write_text(first.replace("[1,2],", "1.5,", 1))
    with pytest.raises(OptionError, match="have different features"):
        write(tmp_path / "bad.jsonl", tmp_path / "data/bad@1")
    assert not (tmp_path / "data" / HERE / ".demo-bad.partial").exists()


def test_images_that_tfds_does_not_decode_are_given_as_bytes(tmp_path, photos):
    notes = []
    write(photos(a=[GIF]), tmp_path / "data/train@1", notify=notes.append)
    assert any("decodes no gif" in note for note in notes)
    assert features(tmp_path / "data")["image"]["tensor"]["dtype"] == "string"


def test_finished_records_are_refused_as_nothing_is_known_of_them(tmp_path):
    sw.write([sw.encode_example({"x": 1})], tmp_path / "a@1")
    (tmp_path / "a.manifest.json").unlink()
    with pytest.raises(OptionError, match="finished records are copied"):
        write(tmp_path / "a@1", tmp_path / "data/train@1")
    with pytest.raises(ManifestError, match="TFDS needs the features"):
        write([sw.encode_example({"x": 1})], tmp_path / "data/train@1")
    assert "dataset_info.json" not in "".join(files(tmp_path / "data"))
    write(tmp_path / "a@1", tmp_path / "data/train@1", map=dict, overwrite=True)
    assert features(tmp_path / "data")["x"]["tensor"]["dtype"] == "int64"


def test_a_dataset_is_copied_with_its_schema(tmp_path):
    sw.write(rows(5), tmp_path / "a@2")
    write(tmp_path / "a@2", tmp_path / "data/train@3")
    assert sorted(features(tmp_path / "data")) == ["label", "x"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"name": "demo"}',
        '{"name": "demo", "version": "2.0.0", "splits": []}',
        '{"name": "other", "version": "1.0.0", "splits": []}',
        '{"name": "demo", "version": "1.0.0", "splits": [{"name": "val"}]}',
    ],
)
def test_what_another_program_has_written_is_not_replaced(tmp_path, text):
    folder = tmp_path / HERE
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(text)
    (folder / "demo-val.tfrecord-00000-of-00001").touch()
    before = files(tmp_path)
    for options in ({}, {"overwrite": True}):
        with pytest.raises(OutputExists, match="not written by shardwriter"):
            write(rows(3), tmp_path / "train@1", **options)
    (tmp_path.parent / "t.csv").write_text("a\n1\n")
    asked = ("--tfds", "demo:1.0.0", "--dry-run")
    done = run("write", tmp_path.parent / "t.csv", tmp_path / "train@1", *asked)
    assert done.exit_code == 2
    assert files(tmp_path) == before


def test_a_split_whose_files_were_deleted_is_forgotten(tmp_path):
    write(rows(3), tmp_path / "train@1")
    write(rows(3), tmp_path / "val@1")
    for path in (tmp_path / HERE).glob("demo-val*"):
        path.unlink()
    write(rows(3), tmp_path / "test@1")
    assert lengths(tmp_path) == {"test": [3], "train": [3]}


def test_a_folder_in_the_way_is_seen_before_the_commit(tmp_path):
    (tmp_path / HERE / "features.json" / "x").mkdir(parents=True)
    with pytest.raises(StorageError, match="has the name of a file"):
        write(rows(3), tmp_path / "train@1")
    assert not (tmp_path / HERE / "demo-train.manifest.json").exists()
    assert not list(tmp_path.rglob("commit.json"))


def test_two_splits_that_are_published_at_one_time(tmp_path):
    for attempt in range(5):
        data = tmp_path / str(attempt)
        gate = threading.Barrier(3)
        errors = []

        def publish(split, data=data, gate=gate, errors=errors):
            try:
                gate.wait(20)
                write(rows(4), data / f"{split}@2")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=publish, args=[s]) for s in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert lengths(data) == {split: [2, 2] for split in "abc"}


# -- stopped, and gone on with ---------------------------------------------------------------------


class Crashing(LocalStorage):
    """Stops in front of the k-th change, and lets none happen from then on; at -1 it never does."""

    def __init__(self, crash_at):
        super().__init__()
        self.left, self.published, self.moments = crash_at, [], []

    def _count(self):
        if self.left == 0:
            raise Crash
        self.left -= 1

    def create(self, path, *, new=False):
        self._count()
        return super().create(path, new=new)

    def publish(self, source, target):
        self._count()
        self.published.append(os.path.basename(target))
        self.moments.append(-1 - self.left)
        super().publish(source, target)

    def delete(self, path):
        self._count()
        super().delete(path)


def check_metadata(data):
    """What TFDS would read there is whole: every shard has the records that it is said to have."""
    if not (data / HERE / "dataset_info.json").exists():
        return None
    json.loads((data / HERE / "features.json").read_text())
    told = lengths(data)
    for split, counts in told.items():
        for shard, count in enumerate(counts):
            name = f"demo-{split}.tfrecord-{shard:05d}-of-{len(counts):05d}"
            assert len(list(read_records(str(data / HERE / name)))) == count, name
    return sorted(told)


@pytest.mark.parametrize("with_val", [False, True])
def test_the_metadata_is_right_at_every_moment_and_the_same_in_the_end(tmp_path, with_val):
    def begin(data):
        if with_val:
            write(rows(2), data / "val@1")
        write(rows(3), data / "train@2")
        return data

    def replace(data, storage, **run):
        output = parse_output(data / "train@3", tfds="demo:1.0.0")
        options = DatasetOptions(tfds=output.tfds)
        run_options = RunOptions(engine="serial", mark_s=0, **run)
        write_dataset(lambda: open_source(rows(8)), output, options, run_options, storage=storage)

    wanted = begin(tmp_path / "whole")
    counting = Crashing(-1)
    replace(wanted, counting, overwrite=True)
    commit_at = counting.published.index("commit.json")
    seen = set()
    for crash_at in range(counting.moments[commit_at], -1 - counting.left):
        data = begin(tmp_path / str(crash_at))
        with pytest.raises(Crash):
            replace(data, Crashing(crash_at), overwrite=True)
        seen.add(str(check_metadata(data)))
        if with_val and crash_at % 4 == 0:  # another split is written meanwhile
            write(rows(2), data / "val@1", overwrite=True)
            assert "val" in check_metadata(data)
        replace(data, None, resume=True)
        assert files(data) == files(wanted), crash_at
    assert seen == ({"['train', 'val']", "['val']"} if with_val else {"['train']", "None"})


def test_a_split_whose_replacement_was_stopped_is_what_it_is_going_to_be(tmp_path):
    def stopped(crash_at):
        data = tmp_path / str(crash_at)
        write([{"x": 1}] * 3, data / "train@1")
        output = parse_output(data / "train@1", tfds="demo:1.0.0")
        options = DatasetOptions(tfds=output.tfds)
        run_options = RunOptions(engine="serial", mark_s=0, overwrite=True)
        storage = Crashing(crash_at)
        with suppress(Crash):
            source = open_source([{"x": 1.5}] * 3)
            write_dataset(lambda: source, output, options, run_options, storage=storage)
        return data, storage

    storage = stopped(-1)[1]
    committed = storage.moments[storage.published.index("commit.json")]
    data = stopped(committed)[0]
    assert (data / HERE / "demo-train.manifest.json").exists(), "the old one is still there"
    with pytest.raises(OptionError, match=r"'train' and 'val'.*float32 and int64"):
        write([{"x": 2}] * 2, data / "val@1")
    write([{"x": 2.5}] * 2, data / "val@1")
    assert lengths(data) == {"val": [2]}
    write([{"x": 1.5}] * 3, data / "train@1", resume=True)
    assert lengths(data) == {"train": [3], "val": [2]}
    assert features(data)["x"]["tensor"]["dtype"] == "float32"


def test_names_of_classes_of_a_split_that_is_being_replaced_are_not_kept(
    tmp_path, photos, monkeypatch
):
    source = photos()
    write(source, tmp_path / "train@1")
    assert (tmp_path / HERE / "label.labels.txt").exists()
    counted = [{"image": b"", "filename": "x", "label": i} for i in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(publication, "roll_forward", crash)
        with pytest.raises(Crash):
            write(counted, tmp_path / "train@1", overwrite=True, label="label")
    write(counted, tmp_path / "val@1", label="label")
    assert not (tmp_path / HERE / "label.labels.txt").exists()
    write(counted, tmp_path / "train@1", label="label", resume=True)
    assert lengths(tmp_path) == {"train": [3], "val": [3]}
    assert not (tmp_path / HERE / "label.labels.txt").exists()


def crash(run):
    raise Crash


def test_engines_write_the_same(tmp_path, photos):
    source = photos()
    runs = {
        "serial": RunOptions(engine="serial"),
        "one": RunOptions(workers=1),
        "pool": RunOptions(workers=2),
    }
    for name, run in runs.items():
        write(source, tmp_path / name / "train@3", shuffle_seed=1, run=run)
    assert files(tmp_path / "serial") == files(tmp_path / "one") == files(tmp_path / "pool")


def test_a_stopped_run_goes_on(tmp_path):
    def items(broken):
        class Data:
            def __len__(self):
                return 20

            def __getitem__(self, index):
                if broken and index == 13:
                    raise ValueError("boom")
                return {"x": index, "label": index % 2}

        return Data()

    run = RunOptions(mark_s=0)
    write(items(False), tmp_path / "whole/train@4", run=run)
    with pytest.raises(CallableError):
        write(items(True), tmp_path / "data/train@4", run=run)
    assert not (tmp_path / "data" / HERE / "dataset_info.json").exists()
    write(items(False), tmp_path / "data/train@4", run=run, resume=True)
    assert files(tmp_path / "data") == files(tmp_path / "whole")
    notes = []
    write(items(False), tmp_path / "data/train@4", run=run, resume=True, notify=notes.append)
    assert any("nothing to do" in note for note in notes)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("when", ["journal-*", "commit.json"])
def test_a_killed_command_goes_on_to_the_same_bytes(tmp_path, photos, mark, when):
    source = photos(cat=[png(i + 1, 2) for i in range(40)], dog=[png()] * 40)
    (tmp_path / "slow.py").write_text(
        "import time\ndef slow(item):\n    time.sleep(0.01)\n    return item\n"
    )
    data, whole = tmp_path / "data", tmp_path / "whole"
    how = ["--tfds", "demo:1.0.0", "--map", "slow:slow", "--schema", "image=image", "-j", "2"]
    command = [sys.executable, "-m", "shardwriter", "write", source, data / "train@40", *how]
    place = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(sw.__file__).parents[1]}"}
    options = {"env": place, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with started(command, start_new_session=True, **options) as process:
        growing = data / HERE / ".demo-train.partial"
        until(lambda: any(growing.glob(when)) or process.poll() is not None, PLENTY_S)
        with suppress(ProcessLookupError):  # it was quicker
            os.killpg(process.pid, signal.SIGKILL)
    check_metadata(data)
    if when == "journal-*":
        assert not (data / HERE / "dataset_info.json").exists()
    subprocess.run([*command, "--resume"], check=True, timeout=60, **options)
    command[5] = whole / "train@40"
    subprocess.run(command, check=True, timeout=60, **options)
    assert files(data) == files(whole)


def test_a_repair_keeps_it_a_split(tmp_path, photos):
    source = photos()
    write(source, tmp_path / "data/train@2")
    before = files(tmp_path / "data")
    shard = tmp_path / "data" / HERE / "demo-train.tfrecord-00000-of-00002"
    shard.write_bytes(shard.read_bytes()[:-3])
    sw.repair(tmp_path / "data" / HERE, tmp_path / "data" / HERE, source=source)
    assert files(tmp_path / "data") == before
    shard.write_bytes(shard.read_bytes()[:-3])
    out = tmp_path / "saved" / HERE
    sw.repair(tmp_path / "data" / HERE, out)
    manifest = load_manifest(out / "demo-train.manifest.json")
    assert lengths(tmp_path / "saved") == {"train": [s.num_records for s in manifest.shards]}
    assert sum(lengths(tmp_path / "saved")["train"]) == 6


# -- the command -----------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_command_writes_and_stats_finds_it_good(tmp_path, photos):
    data = tmp_path / "data"
    done = run("write", photos(), data, "--tfds", "demo:1.0.0", "--shards", 4, "--index", "-j", 1)
    assert done.exit_code == 0, done.output
    assert f"{data}/{HERE}/demo-train.manifest.json" in done.output.replace("\n", "")
    done = run("write", photos(), data / "val@2", "--tfds", "demo:1.0.0", "-j", 1)
    assert done.exit_code == 0, done.output
    assert (data / HERE / "demo-train.tfrecord-00003-of-00004.idx").exists()
    done = run("stats", data / HERE, "--json")
    assert done.exit_code == 0, done.output
    assert "OK: 14 records in 6 shards" in run("stats", data / HERE).output


def test_a_dry_run_says_the_folder(tmp_path, photos, monkeypatch):
    photos()
    monkeypatch.chdir(tmp_path)
    asked = ("write", "photos", "data/val@4", "--tfds", "demo:1.0.0", "--dry-run")
    told = json.loads(run(*asked, "--json").stdout)
    assert told["tfds"] == {
        "directory": f"data/{HERE}",
        "name": "demo",
        "split": "val",
        "version": "1.0.0",
    }
    assert told["files"] == "demo-val.tfrecord-{shard}-of-00004"
    assert sorted(told["features"]) == ["filename", "image", "label"]
    assert f"{HERE}/demo-val.tfrecord-*-of-00004" in run(*asked).output
    assert not (tmp_path / "data").exists()


def test_the_job_is_another_than_without(tmp_path, photos):
    source = photos()
    plain = sw.write(source, tmp_path / "plain@1")
    jobs = {
        plain.job,
        write(source, tmp_path / "a/train@1").job,
        write(source, tmp_path / "b/train@1", tfds="demo:1.0.1").job,
        write(source, tmp_path / "a/val@1").job,
    }
    assert len(jobs) == 4


# -- TFDS and timm themselves ----------------------------------------------------------------------


def many_types(count=7):
    """Items with all that TFDS has a type for; every second one has the optional features."""
    for i in range(count):
        item = {
            "a": i,
            "a/b": i + 1,
            "bool": i % 2 == 0,
            "bytes": bytes([i, 255]),
            "double": np.float64(i / 8),  # stored as float32, and read as that
            "empty": np.zeros(0, np.int64),
            "float": i / 3,
            "half": np.float16(i / 2),
            "int": i * 10**12 - 5,
            "label": i % 3,
            "mask": np.arange(4) % 2 == i % 2,
            "matrix": np.arange(6, dtype=np.float32).reshape(2, 3) + i,
            "points": np.full((i, 2), i, np.int16),
            "text": f"ä{i}",
            "tokens": np.arange(i),
            "u32": np.uint32(2**32 - 1 - i),
            "u64": np.uint64(2**62 + i),
            "wide": np.full((2, i + 1), i / 8),
            "words": ["é", "b"] * i,
        }
        if i % 2:
            item |= {
                "o_bool": True,
                "o_bytes": b"\xff",
                "o_double": np.float64(i / 8),  # read as float32, as its value for none has to be
                "o_int": i,
                "o_list": [i] * i,
                "o_mask": np.array([True, False]),
                "o_matrix": np.ones((2, 2), np.float32),
                "o_text": f"s{i}",
                "o_u8": np.uint8(i),
            }
        yield item


LEAST = {
    "o_bool": np.bool_(False),
    "o_bytes": b"",
    "o_double": np.finfo(np.float32).min,
    "o_int": np.int64(-(2**63)),
    "o_list": np.zeros(0, np.int64),
    "o_mask": np.zeros(2, bool),
    "o_matrix": np.full((2, 2), np.finfo(np.float32).min),
    "o_text": b"",
    "o_u8": np.uint8(0),
}


def told(value):
    """Return a value as the peers' script has it."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list) and (not value or isinstance(value[0], str)):
        return [told(part) for part in value]
    array = np.asarray(value, np.float32 if type(value) is float else None)
    return [array.dtype.name, list(array.shape), array.ravel().astype(object).tolist()]


def in_shards(items, num_shards):
    """Return items in the order in which shards are read one after the other."""
    return [item for shard in range(num_shards) for item in items[shard::num_shards]]


def test_tfds_and_timm_read_what_was_written(tmp_path, photos):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4, 5, 3), dtype=np.uint8)
    pictures = list(map(sw_png, pixels))
    images = photos(cat=pictures[:4], dog=pictures[4:])
    data = tmp_path / "data"
    write(images, data / "train@4", shuffle_seed=3, run=RunOptions(dali_index=True))
    write(photos("few", cat=pictures[:1], dog=pictures[1:3]), data / "val@5")
    items = list(many_types())
    write(items, data / "train@3", tfds="types:2.0.1")
    (tmp_path / "t.csv").write_text("id,price,zip\n1,2.5,\n2,,x\n3,1,y\n")
    write(tmp_path / "t.csv", data / "train@2", tfds="table:0.1.0")

    pictures_read, types, table, loaded, tfds_info, tfds_types, is_same, timm, timm_val = ask_tfds(
        [
            ["read", str(data / HERE)],
            ["read", str(data / "types/2.0.1")],
            ["read", str(data / "table/0.1.0")],
            ["load", str(data), "demo", "val"],
            ["written_by_tfds", str(data / HERE)],
            ["written_by_tfds", str(data / "types/2.0.1")],
            ["image_features", str(data / HERE), ["cat", "dog"], "png"],
            ["timm", str(data), "demo", "train"],
            ["timm", str(data), "demo", "val"],
        ]
    )

    # TFDS writes the same metadata for these shards and features, to the byte.
    for folder, written in ((HERE, tfds_info), ("types/2.0.1", tfds_types)):
        mine = {p.name: p.read_text() for p in (data / folder).iterdir() if p.name in written}
        assert mine == written
    assert set(tfds_info) == {"dataset_info.json", "features.json", "label.labels.txt"}
    assert is_same

    assert pictures_read["name"] == "demo/1.0.0"
    assert pictures_read["names"] == {"label": ["cat", "dog"]}
    splits = pictures_read["splits"]
    assert [splits[name]["lengths"] for name in ("train", "val")] == [[3, 2, 2, 2], [1, 1, 1, 0, 0]]
    manifest = load_manifest(data / HERE / "demo-train.manifest.json")
    assert splits["train"]["num_bytes"] == manifest.payload_bytes
    assert loaded == splits["val"]["num_examples"] == 3
    wanted = [(f"{'cat' if i < 4 else 'dog'}/{i if i < 4 else i - 4}.img.png", i) for i in range(9)]
    seen = {row["filename"]: (row["image"], row["label"]) for row in splits["train"]["rows"]}
    assert seen == {
        name: (
            ["pixels", [4, 5, 3], zlib.crc32(pixels[i].tobytes())],
            ["int64", [], [int(i >= 4)]],
        )
        for name, i in wanted
    }

    for row, item in zip(types["splits"]["train"]["rows"], in_shards(items, 3), strict=True):
        floats = {"double", "o_double"} & item.keys()
        item |= {name: np.float32(item[name]) for name in floats}
        item["wide"] = item["wide"].astype(np.float32)
        assert row == {name: told(value) for name, value in {**LEAST, **item}.items()}
    assert types["names"] == {"label": ["0", "1", "2"]}
    least = told(LEAST["o_double"])
    assert table["splits"]["train"]["rows"] == [
        {"id": told(1), "price": told(2.5), "zip": ""},
        {"id": told(3), "price": told(1.0), "zip": "y"},
        {"id": told(2), "price": least, "zip": "x"},
    ]

    assert timm["len"] == 9
    assert timm["classes"] == {"cat": 0, "dog": 1}
    assert sorted(timm["filenames"]) == sorted(seen)
    assert all(size == [5, 4] and mode == "RGB" for size, mode, _ in timm["rows"])
    assert sorted(label for *_, label in timm["rows"]) == [0] * 4 + [1] * 5
    assert sorted(label for *_, label in timm_val["rows"]) == [0, 1, 1]


def sw_png(pixels):
    from shardwriter.formats.media import encode_png

    return encode_png(pixels)
