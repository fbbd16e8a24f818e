"""Splits that a source has itself: how they are found, and that they go together."""

from __future__ import annotations

import io
import json
import sys
import tarfile

import numpy as np
import pytest
from detection_sets import everything, voc_object, write_coco, write_voc
from small_images import gif, write_images
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import CallableError, OptionError, SchemaConflict, SourceError
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.sources.find import open_source
from shardwriter.sources.splits import find_splits


def records(folder, name):
    """Return the records of a dataset, in order."""
    return [sw.decode_example(payload) for payload in sw.open(folder / name, decode=False)]


def values(folder, name, feature):
    found = []
    for record in records(folder, name):
        value = record.get(feature, [])
        found += value.tolist() if isinstance(value, np.ndarray) else value
    return found


def names_of(data, **more):
    return list(find_splits(data, **more).openers)


def write(data, folder, split="source", **more):
    return sw.write_splits(data, folder / "d@2", split, **more)


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    write_images(folder, ["train/cat/1.gif", "train/dog/2.gif", "train/dog/3.gif"])
    write_images(folder, ["test/dog/4.gif", "test/owl/5.gif", "val/dog/6.gif"])
    return folder


def test_classes_have_the_same_numbers_in_all_splits(tmp_path, photos):
    found = write(str(photos), tmp_path / "out", label="image/class/label")
    assert list(found) == ["train", "val", "test"]
    label, text = "image/class/label", "image/class/text"
    told = {
        name: list(
            zip(
                values(tmp_path / "out", f"d-{name}", label),
                values(tmp_path / "out", f"d-{name}", text),
                strict=True,
            )
        )
        for name in found
    }
    assert told == {
        "train": [(0, b"cat"), (1, b"dog"), (1, b"dog")],
        "val": [(1, b"dog")],
        "test": [(1, b"dog"), (2, b"owl")],
    }
    vocabularies = {tuple(found[name].features[label].vocabulary) for name in found}
    assert vocabularies == {("cat", "dog", "owl")}
    assert found["val"].order["split"] == {"algorithm": "source", "name": "val"}


def test_a_class_more_in_another_split_is_another_job(tmp_path, photos):
    before = write(str(photos), tmp_path / "one")
    write_images(photos, ["test/ant/7.gif"])
    now = write(str(photos), tmp_path / "two")
    assert before["train"].job != now["train"].job
    again = write(str(photos), tmp_path / "two", resume=True)
    assert again["train"].job == now["train"].job


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_no_byte(tmp_path, photos, workers):
    write(str(photos), tmp_path / "one")
    write(str(photos), tmp_path / "out", workers=workers)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_a_damaged_split_is_made_again_from_the_source(tmp_path, photos):
    out = tmp_path / "out"
    write(photos, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "d-val.tfrecord-00000-of-00002").unlink()
    assert sw.repair(out / "d-val", out, photos).is_whole
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_some_of_them_are_chosen_and_have_their_n(tmp_path, photos):
    found = write(photos, tmp_path / "out", "test@1,train@3")
    assert [(name, manifest.num_shards) for name, manifest in found.items()] == [
        ("test", 1),
        ("train", 3),
    ]
    assert names_of(str(photos), names=["val"]) == ["val"]


def test_a_split_that_is_not_there_is_told(photos):
    with pytest.raises(OptionError, match="no split 'dev'") as caught:
        find_splits(str(photos), names=["dev"])
    assert caught.value.hint == "its splits are train, val, test"


def test_other_folders_can_be_asked_for_and_are_told(tmp_path, photos):
    write_images(photos, ["extra/cat/8.gif"])
    found = find_splits(str(photos))
    assert list(found.openers) == ["train", "val", "test"]
    assert found.notes == ["folders that are not splits are left out: extra"]
    assert names_of(str(photos), names=["extra", "val"]) == ["extra", "val"]


def test_a_write_without_splits_says_that_there_are_some(tmp_path, photos):
    notes = []
    sw.write(str(photos), tmp_path / "out/d@2", notify=notes.append)
    assert (
        "the classes are named test, train, val: --split source writes a dataset for each of them"
        in notes
    )


def test_images_without_classes_have_none(tmp_path, photos):
    write_images(photos, ["testing/9.gif"])
    found = write(photos, tmp_path / "out", "train,testing")
    assert "image/class/label" not in found["testing"].features
    assert found["train"].features["image/class/label"].vocabulary == ["cat", "dog"]


def test_pairs_in_parts(tmp_path):
    for layout in (
        ["{}/1.gif", "{}annot/1.gif"],
        ["{}/images/1.gif", "{}/masks/1.gif"],
        ["images/{}/1.gif", "masks/{}/1.gif"],
    ):
        folder = tmp_path / layout[0].replace("/", "_").format("x")
        for split in ("train", "val"):
            for name in layout:
                path = folder / name.format(split)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gif(3, 2))
        found = write(str(folder), folder / "out")
        assert list(found) == ["train", "val"]
        for split in found:
            (image,) = values(folder / "out", f"d-{split}", "image/filename")
            assert split in image.decode()


# -- annotations -----------------------------------------------------------------------------------


def test_lists_of_voc(tmp_path):
    cat, dog = voc_object("cat"), voc_object("dog")
    write_voc(tmp_path / "voc", {"a": [cat], "b": [dog], "c": [cat, dog]})
    lists = tmp_path / "voc/ImageSets/Main"
    lists.mkdir(parents=True)
    told = {"train": "a\nc\n", "val": "b\n", "trainval": "a\nb\nc\n", "cat_train": "a 1\nc 1\n"}
    for name, text in told.items():
        (lists / f"{name}.txt").write_text(text)
    found = find_splits(str(tmp_path / "voc"))
    assert list(found.openers) == ["train", "val"]
    assert found.notes == ["trainval is the union of train and val, and is left out"]
    written = write(tmp_path / "voc", tmp_path / "out")
    assert {name: manifest.num_records for name, manifest in written.items()} == {
        "train": 2,
        "val": 1,
    }
    assert names_of(str(tmp_path / "voc"), names=["trainval"]) == ["trainval"]
    assert names_of(str(tmp_path / "voc"), names=["cat_train"]) == ["cat_train"]


def test_voc_folders_number_their_classes_together(tmp_path):
    write_voc(tmp_path / "d/train", {"a": [voc_object("robot")]}, "", "")
    write_voc(tmp_path / "d/valid", {"b": [voc_object("anvil"), voc_object("robot")]}, "", "")
    alone = open_source(str(tmp_path / "d/train"))
    write(tmp_path / "d", tmp_path / "out")
    label = "image/object/class/label"
    assert values(tmp_path / "out", "d-train", label) == [2]
    assert values(tmp_path / "out", "d-valid", label) == [1, 2]
    together = find_splits(str(tmp_path / "d")).open({})["train"]
    assert together.digest() != alone.digest()
    assert together.notes == ["classes, numbered from 1 in sorted order: 1 anvil, 2 robot"]


def coco_splits(folder, change=None):
    for name in ("train", "val"):
        write_coco(folder / name, everything())
    found = {}
    for name in ("train", "val"):
        (path,) = (folder / name).rglob("*.json")
        document = json.loads(path.read_text())
        if change is not None and name == "val":
            change(document)
        found[name] = (path, document)
    return found


def test_files_of_coco(tmp_path):
    folder = tmp_path / "coco"
    found = coco_splits(tmp_path / "made")
    (folder / "annotations").mkdir(parents=True)
    for name, (path, document) in found.items():
        images = [p for p in (tmp_path / "made" / name).rglob("*") if p.is_file() and p != path]
        for image in images:
            target = folder / f"{name}2017" / image.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(image.read_bytes())
        for kind in ("instances", "captions"):
            file = folder / f"annotations/{kind}_{name}2017.json"
            file.write_text(json.dumps(document))
    splits = find_splits(str(folder))
    assert list(splits.openers) == ["train2017", "val2017"]
    assert "reading annotations of kind instances; captions left out" in splits.notes[0]
    assert names_of(f"{folder}/annotations/captions_*.json") == ["train2017", "val2017"]
    document = found["val"][1]
    document["categories"][0]["name"] = "something else"
    (folder / "annotations/instances_val2017.json").write_text(json.dumps(document))
    with pytest.raises(SourceError, match="'something else' in split 'val2017'"):
        splits.open({})
    (folder / "annotations/stuff_val2017.json").write_text(json.dumps(document))
    for path in (folder / "annotations").glob("instances_*"):
        path.unlink()
    with pytest.raises(SourceError, match="several kinds: captions, stuff"):
        find_splits(str(folder))


# -- files -----------------------------------------------------------------------------------------


def make_csv(path, first, stop):
    path.write_text("x\n" + "".join(f"{i}\n" for i in range(first, stop)))


def make_jsonl(path, first, stop):
    path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(first, stop)))


def make_parquet(path, first, stop):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    parquet.write_table(pa.table({"x": list(range(first, stop))}), path)


def make_tar(path, first, stop):
    with tarfile.open(path, "w") as tar:
        for i in range(first, stop):
            info = tarfile.TarInfo(f"{i}.x.cls")
            data = str(i).encode()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def make_npz(path, first, stop):
    np.savez(path, x=np.arange(first, stop))


def make_records(path, first, stop):
    with sw.TFRecordWriter(str(path)) as writer:
        for i in range(first, stop):
            writer.write(sw.encode_example({"x": i}))


@pytest.mark.parametrize(
    ("make", "ending", "feature"),
    [
        (make_csv, ".csv", "x"),
        (make_jsonl, ".jsonl", "x"),
        (make_parquet, ".parquet", "x"),
        (make_tar, ".tar", "x.cls"),
        (make_npz, ".npz", "x"),
        (make_records, ".tfrecord", "x"),
    ],
)
def test_files_that_are_called_after_splits(tmp_path, make, ending, feature):
    folder = tmp_path / "data"
    folder.mkdir()
    several = ending not in (".npz", ".tfrecord")
    if several:
        make(folder / f"train-00000-of-00002{ending}", 0, 5)
        make(folder / f"train-00001-of-00002{ending}", 5, 7)
    else:
        make(folder / f"my_train{ending}", 0, 7)
    make(folder / f"validation{ending}", 7, 9)
    make(folder / f"sample{ending}", 9, 10)
    splits = find_splits(str(folder))
    assert splits.notes == [f"files without a split in their names are left out: sample{ending}"]
    found = write(folder, tmp_path / "out")
    assert {name: m.num_records for name, m in found.items()} == {"train": 7, "validation": 2}
    assert sorted(values(tmp_path / "out", "d-validation", feature)) == [7, 8]
    if several:
        assert names_of(f"{folder}/*{ending}") == ["train", "validation"]
        (tmp_path / "repository").mkdir()
        folder.rename(tmp_path / "repository/data")  # as the hub has them
        assert names_of(str(tmp_path / "repository")) == ["train", "validation"]


def test_splits_of_ours_are_split_again(tmp_path):
    sw.write_splits([{"x": i} for i in range(50)], tmp_path / "in/d@4", "train=0.7,val=0.3")
    found = write(tmp_path / "in", tmp_path / "out")
    assert list(found) == ["train", "val"]
    for name in found:
        was = values(tmp_path / "in", f"d-{name}", "x")
        assert values(tmp_path / "out", f"d-{name}", "x") == was


def test_files_are_hinted_at(tmp_path):
    (tmp_path / "in").mkdir()
    make_csv(tmp_path / "in/train.csv", 0, 3)
    make_csv(tmp_path / "in/test.csv", 3, 4)
    notes = []
    sw.write(str(tmp_path / "in"), tmp_path / "out/d@1", notify=notes.append)
    assert "files are named test, train: --split source writes a dataset for each of them" in notes


def test_tables_whose_types_differ_are_refused_before_they_are_written(tmp_path):
    (tmp_path / "in").mkdir()
    make_csv(tmp_path / "in/train.csv", 0, 3)
    (tmp_path / "in/val.csv").write_text("x\n1.5\n")
    with pytest.raises(SchemaConflict, match="'train' and 'val'") as caught:
        write(tmp_path / "in", tmp_path / "out")
    assert caught.value.hint == "--schema x=float gives it one type in all splits"
    found = write(tmp_path / "in", tmp_path / "out", schema="x=float")
    assert {m.features["x"].type.kind for m in found.values()} == {"float"}


def test_a_split_of_two_formats_is_refused(tmp_path):
    make_csv(tmp_path / "train.csv", 0, 3)
    make_jsonl(tmp_path / "train.jsonl", 0, 3)
    with pytest.raises(SourceError, match="several formats: csv, jsonl"):
        find_splits(str(tmp_path))
    assert names_of(str(tmp_path), format="csv") == ["train"]


# -- Python ----------------------------------------------------------------------------------------


def test_a_mapping_has_splits(tmp_path):
    make_csv(tmp_path / "t.csv", 0, 4)
    data = {"train": [{"x": 1}], "b": lambda: iter([{"x": 2}]), "c": str(tmp_path / "t.csv")}
    found = write(data, tmp_path / "out")
    assert [values(tmp_path / "out", f"d-{n}", "x") for n in found] == [[1], [2], [0, 1, 2, 3]]


def test_what_can_not_be_a_split_is_told(tmp_path):
    with pytest.raises(OptionError, match="a list has no splits of its own"):
        write([{"x": 1}], tmp_path)
    with pytest.raises(OptionError, match="name of a split is 1"):
        write({1: []}, tmp_path)
    with pytest.raises(OptionError, match="can not be the name of a split"):
        write({"a b": []}, tmp_path)
    with pytest.raises(OptionError, match="no such file"):
        write(str(tmp_path / "nothing"), tmp_path)


def test_a_module_gives_splits(tmp_path, monkeypatch):
    (tmp_path / "with_splits.py").write_text(
        "def parts():\n    return {'train': rows, 'val': [{'x': 9}]}\n"
        "def rows():\n    return ({'x': i} for i in range(5))\n"
        "def broken():\n    raise ValueError('boom')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "with_splits", raising=False)
    done = CliRunner().invoke(
        app,
        ["write", "with_splits:parts", f"{tmp_path}/out/d@2", "--split", "source", "-j", "2"],
    )
    assert done.exit_code == 0, done.output
    assert values(tmp_path / "out", "d-train", "x") == list(range(5))
    assert values(tmp_path / "out", "d-val", "x") == [9]
    manifest = sw.load_manifest(tmp_path / "out/d-val.manifest.json")
    assert manifest.source["kind"] == "python"
    with pytest.raises(CallableError, match="ValueError: boom"):
        find_splits("with_splits:broken")
    with pytest.raises(OptionError, match="no splits of its own"):
        find_splits("with_splits:rows")


# -- real files ------------------------------------------------------------------------------------


def test_real_pairs_and_annotations(tmp_path, data_dir):
    assets = data_dir / "cvat-ai+datumaro/tests/assets"
    found = write(assets / "camvid_dataset", tmp_path / "camvid")
    assert {name: m.num_records for name, m in found.items()} == {"train": 1, "val": 1, "test": 2}
    found = write(assets / "coco_dataset/coco_instances", tmp_path / "coco")
    assert list(found) == ["train", "val"]
    for name in found:
        assert (
            sum(
                1
                for shard in sorted((tmp_path / "coco").glob(f"d-{name}.tfrecord*"))
                for _ in read_records(shard)
            )
            == found[name].num_records
        )
