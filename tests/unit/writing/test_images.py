"""Datasets whose images are resized: features, masks, annotations, engines, runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import pytest
from detection_sets import CATEGORIES, POINTS, coco, coco_image, coco_object, write
from image_files import file_of, frames, opened, photo, picture, pil, pixels
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import FeatureError, OptionError, RunChanged, SourceError
from shardwriter.writing.options import RunOptions


@pytest.fixture
def folder(tmp_path):
    """A folder of two classes: files of many formats, large and small ones, turned ones."""
    files = {
        "a/0.jpg": photo(90, 120),
        "a/1.jpg": photo(30, 40),
        "a/2.png": file_of(picture(50, 100), "PNG"),
        "a/3.jpg": photo(90, 120, orientation=6),
        "b/4.gif": file_of(picture(70, 70), "GIF"),
        "b/5.webp": file_of(picture(100, 50), "WEBP"),
        "b/6.jpg": photo(30, 40, orientation=6),
        "b/7.jpg": photo(300, 400, progressive=True),
        "b/8.bmp": file_of(picture(64, 64), "BMP"),
    }
    for name, data in files.items():
        write(tmp_path / "photos" / name, data)
    return tmp_path / "photos"


def by_name(folder, tmp_path, **options):
    sw.write(str(folder), tmp_path / "t@3", overwrite=True, **options)
    return {example["image/filename"]: example for example in sw.open(tmp_path / "t")}


def all_bytes(folder, *, without=()):
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name not in without
    }


# -- features --------------------------------------------------------------------------------------


def test_features_say_what_the_images_are_now(folder, tmp_path):
    found = by_name(folder, tmp_path, images=sw.ImageOptions(max_side=64))
    told = {
        name: (e["image/format"], e["image/width"], e["image/height"]) for name, e in found.items()
    }
    assert told == {
        "a/0.jpg": ("jpeg", 64, 48),
        "a/1.jpg": ("jpeg", 40, 30),
        "a/2.png": ("png", 64, 32),
        "a/3.jpg": ("jpeg", 48, 64),
        "b/4.gif": ("png", 64, 64),
        "b/5.webp": ("webp", 32, 64),
        "b/6.jpg": ("jpeg", 40, 30),
        "b/7.jpg": ("jpeg", 64, 48),
        "b/8.bmp": ("bmp", 64, 64),
    }
    for name, example in found.items():
        image = opened(example["image/encoded"])
        assert (image.format.lower(), *image.size) == told[name]
    for name in ("a/1.jpg", "b/6.jpg", "b/8.bmp"):
        assert found[name]["image/encoded"] == (folder / name).read_bytes()
    sw.verify(tmp_path / "t")


def test_an_exact_size_and_a_shorter_side(folder, tmp_path):
    exact = by_name(folder, tmp_path, images=sw.ImageOptions(resize=(32, 24)))
    assert {opened(e["image/encoded"]).size for e in exact.values()} == {(32, 24)}
    shorter = by_name(folder, tmp_path, images=sw.ImageOptions(resize=40))
    assert {min(opened(e["image/encoded"]).size) for e in shorter.values()} == {40}
    assert opened(shorter["a/2.png"]["image/encoded"]).size == (80, 40)


def test_quality_alone_encodes_every_jpeg_again_and_nothing_else(folder, tmp_path):
    found = by_name(folder, tmp_path, images=sw.ImageOptions(quality=40))
    for name, example in found.items():
        data = (folder / name).read_bytes()
        if name.endswith(".jpg"):
            assert len(example["image/encoded"]) < len(data)
        else:
            assert example["image/encoded"] == data
    turned = found["a/3.jpg"]
    assert (turned["image/width"], turned["image/height"]) == (90, 120)
    small = by_name(folder, tmp_path, images=sw.ImageOptions(max_side=64, quality=40))
    large = by_name(folder, tmp_path, images=sw.ImageOptions(max_side=64))
    assert len(small["b/7.jpg"]["image/encoded"]) < len(large["b/7.jpg"]["image/encoded"])


def test_the_map_is_given_the_small_images(folder, tmp_path):
    def sizes(features):
        size = opened(features["image/encoded"]).size
        assert size == (features["image/width"], features["image/height"])
        return {"size": list(size)}

    sw.write(folder, tmp_path / "t@1", map=sizes, images=sw.ImageOptions(max_side=64))
    assert max(example["size"].max() for example in sw.open(tmp_path / "t")) == 64


def test_items_themselves_stay_as_they_are(tmp_path):
    rows = [{"x": sw.png(pixels()), "n": 3}]
    before = rows[0]["x"]
    sw.write(rows, tmp_path / "t@1", images=sw.ImageOptions(max_side=8))
    assert rows == [{"x": before, "n": 3}]
    entry = json.loads((tmp_path / "t.manifest.json").read_text())["schema"]["features"]["x"]
    assert (entry["encoding"], entry["format"]) == ("image", "png")


def test_the_schema_marks_images_of_python_items(tmp_path):
    rows = [
        {"photo": photo(), "photo/height": 30, "height": 30, "width": 40, "format": "jpeg"},
        {"photo": None, "photo/height": 30, "height": 30, "width": 40, "format": "jpeg"},
    ]
    options = {"images": sw.ImageOptions(max_side=20), "schema": "photo=image"}
    sw.write(rows, tmp_path / "t@1", **options)
    first, second = sw.open(tmp_path / "t")
    assert (first["height"], first["width"], first["photo/height"]) == (15, 20, 30)
    assert (second["height"], second["width"]) == (30, 40)
    del rows[0]["photo"]
    with pytest.raises(FeatureError, match="known to be an image") as caught:
        sw.write([{"photo": photo()}], tmp_path / "u@1", images=sw.ImageOptions(max_side=20))
    assert "--schema NAME=image" in caught.value.hint


@dataclass(frozen=True)
class Labelled:
    image: bytes
    height: int
    width: int
    label: int = field(init=False, default=7)


class Sized(NamedTuple):
    image: bytes
    height: int
    width: int


def kind_and_fields(item):
    kind = type(item).__name__
    return {"kind": kind, "image": item.image, "height": item.height, "width": item.width}


@pytest.mark.parametrize("kind", [Labelled, Sized])
def test_images_of_items_that_have_fields(tmp_path, kind):
    items = [kind(sw.png(np.zeros((60, 80), np.uint8)), 60, 80)]
    for function in (None, kind_and_fields):
        out = tmp_path / f"{kind.__name__}-{function}"
        sw.write(items, out, num_shards=1, map=function, images=sw.ImageOptions(max_side=20))
        row = sw.open(out)[0]
        assert opened(row["image"]).size == (20, 15)
        assert (row["width"], row["height"]) == (20, 15)
        assert row.get("kind", kind.__name__) == kind.__name__  # the map has its own kind of item
    assert items[0].height == 60


def test_lists_of_images_are_known_by_their_values(tmp_path):
    pair = [sw.png(np.zeros((60, 80), np.uint8)), sw.jpeg(np.zeros((60, 80), np.uint8))]
    sw.write([{"x": pair}], tmp_path / "x@1", images=sw.ImageOptions(max_side=20))
    assert [opened(data).size for data in sw.open(tmp_path / "x")[0]["x"]] == [(20, 15)] * 2


def test_items_in_which_no_image_can_be_found_are_refused(tmp_path):
    image = sw.png(np.zeros((60, 80), np.uint8))
    items = {
        "a SequenceExample": sw.SequenceExample({"image": image}, {"frames": [image]}),
        "a finished record": sw.encode_example({"image": image}),
        "of type tuple": (image, 1),
    }
    for what, item in items.items():
        for function in (None, _same):
            with pytest.raises(FeatureError, match=f"resize=.*the item is {what}") as caught:
                sw.write(
                    [item], tmp_path / "x@1", map=function, images=sw.ImageOptions(max_side=20)
                )
            assert caught.value.index == 0


def test_a_height_that_is_not_the_images_is_left_alone(tmp_path):
    rows = [{"x": photo(), "height": 180.0, "width": 40}, {"x": photo(), "height": 31, "width": 40}]
    rows[0]["height"] = 180
    sw.write(rows, tmp_path / "t@1", schema="x=image", images=sw.ImageOptions(max_side=20))
    assert [(e["height"], e["width"]) for e in sw.open(tmp_path / "t")] == [(180, 40), (31, 40)]


def test_lists_of_images(tmp_path):
    rows = [{"x": [photo(), photo(8, 8)], "height": 30, "width": 40}]
    sw.write(rows, tmp_path / "t@1", schema="x=image", images=sw.ImageOptions(max_side=20))
    (record,) = sw.read_records(next(tmp_path.glob("t.tfrecord*")))
    made = sw.decode_example(record)["x"]
    assert [opened(data).size for data in made] == [(20, 15), (8, 8)]
    assert made[1] == photo(8, 8)


# -- masks and annotations -------------------------------------------------------------------------


def test_masks_get_the_size_of_their_images_and_keep_their_numbers(tmp_path):
    classes = np.kron(np.arange(12, dtype=np.uint8).reshape(3, 4), np.ones((30, 30), np.uint8))
    palette = pil.frombytes("P", (120, 90), classes.tobytes())
    palette.putpalette(bytes(range(36)))
    write(tmp_path / "data/images/1.jpg", photo(90, 120, orientation=3))
    write(tmp_path / "data/masks/1.png", file_of(palette, "PNG"))
    write(tmp_path / "data/images/2.png", file_of(picture(90, 120), "PNG"))
    write(tmp_path / "data/masks/2.jpg", photo(90, 120))
    for options in ({"max_side": 77}, {"resize": (33, 44)}):
        found = by_name(tmp_path / "data", tmp_path, images=sw.ImageOptions(**options))
        for example in found.values():
            image = opened(example["image/encoded"])
            mask = opened(example["image/segmentation/class/encoded"])
            assert image.size == mask.size == (example["image/width"], example["image/height"])
            assert example["image/segmentation/class/format"] == mask.format.lower() == "png"
        mask = opened(found["images/1.jpg"]["image/segmentation/class/encoded"])
        assert mask.mode == "P"
        assert set(np.unique(np.asarray(mask))) == set(range(12))
        # The mask is of the stored pixels, so they stay as they are; the tag is gone.
        image = opened(found["images/1.jpg"]["image/encoded"])
        assert not image.getexif()
        assert np.asarray(image)[0, 0, 0] < 20 < np.asarray(image)[-1, 0, 0]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("mask", True),
        ("seg.png", True),
        ("train/Labels", True),
        ("image", False),
        ("label2", False),
    ],
)
def test_masks_are_known_by_name(tmp_path, name, chosen):
    two = sw.png(np.kron(np.array([[0, 200]], np.uint8), np.ones((9, 9), np.uint8)))
    sw.write([{name: two}], tmp_path / "t@1", images=sw.ImageOptions(resize=5))
    made = np.asarray(opened(next(iter(sw.open(tmp_path / "t")))[name]))
    assert (set(np.unique(made)) == {0, 200}) is chosen


def _annotated(tmp_path):
    width, height = 40, 20
    drawn = np.zeros((height, width), bool)
    drawn[5:15, 10:30] = True
    flat = np.concatenate([[False], drawn.T.ravel()])
    edges = np.flatnonzero(np.diff(flat))
    runs = np.diff(np.concatenate([[0], edges, [drawn.size]])).tolist()
    points = {"category_id": 1, "keypoints": [8, 5, 2, 0, 0, 0]}
    whole = {"size": [height, width], "counts": [0, height * width]}
    document = coco(
        [coco_image(1, file_name="1.jpg"), coco_image(2, file_name="2.jpg")],
        [
            coco_object(1, 1, segmentation={"size": [height, width], "counts": runs}, iscrowd=1),
            coco_object(2, 1, segmentation=[[0, 0, 4, 0, 4.5, 2]], **points),
            coco_object(3, 1, segmentation=whole, area=800, iscrowd=1),
        ],
        [*CATEGORIES, POINTS],
    )
    write(tmp_path / "data/annotations/instances_val.json", json.dumps(document))
    for number in (1, 2):
        write(tmp_path / f"data/val/{number}.jpg", photo(height, width, orientation=8))
    return tmp_path / "data"


def _masks(example, width, height):
    counts = example["image/object/segmentation/rle/counts"]
    ends = np.cumsum(example["image/object/segmentation/rle/num_counts"])
    assert ends[-1] == len(counts)
    for runs in np.split(counts, ends[:-1]):
        inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
        yield inside.reshape(width, height).T if len(runs) else None


def test_annotations_follow_the_image(tmp_path):
    data = _annotated(tmp_path)
    plain = by_name(data, tmp_path)
    small = by_name(data, tmp_path, images=sw.ImageOptions(resize=(20, 15)))
    before, after = plain["1.jpg"], small["1.jpg"]
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {
        *("image/encoded", "image/height", "image/width", "image/key/sha256"),
        *("image/object/area", "image/object/segmentation/rle/counts"),
        "image/object/segmentation/rle/num_counts",
    }
    assert after["image/key/sha256"] == sha256(after["image/encoded"]).hexdigest()
    assert (after["image/width"], after["image/height"]) == (20, 15)
    assert not opened(after["image/encoded"]).getexif()
    assert after["image/object/area"].tolist() == pytest.approx([12.5625, 12.5625, 300])
    crowd, polygon, whole = _masks(after, 20, 15)
    expected = np.zeros((15, 20), bool)
    expected[4:11, 5:15] = True
    assert np.array_equal(crowd, expected)
    assert polygon is None
    assert whole.all()
    assert small["2.jpg"]["image/object/area"].tolist() == []
    unchanged = by_name(data, tmp_path, images=sw.ImageOptions(max_side=40))
    assert all(np.array_equal(before[name], unchanged["1.jpg"][name]) for name in before)


def test_of_a_mask_of_runs_the_nearest_pixels_are_taken():
    from shardwriter.sources.detection import scaled_annotations

    rng = np.random.default_rng(0)
    for _ in range(50):
        (w, h), new = rng.integers(1, 30, 2).tolist(), tuple(rng.integers(1, 40, 2).tolist())
        drawn = rng.random((h, w)) < rng.random()
        flat = np.concatenate([[False], drawn.T.ravel()])
        runs = np.diff(np.concatenate([[0], np.flatnonzero(np.diff(flat)), [drawn.size]]))
        features = {
            "image/object/segmentation/rle/counts": runs,
            "image/object/segmentation/rle/num_counts": [0, len(runs), 0],
        }
        found = scaled_annotations(features, (w, h), new)
        assert found["image/object/segmentation/rle/num_counts"][[0, 2]].tolist() == [0, 0]
        assert (found["image/object/segmentation/rle/counts"][1:] > 0).all()
        columns, rows = (
            [int(Fraction(2 * i + 1, 2) * old / size) for i in range(size)]
            for old, size in zip((w, h), new, strict=True)
        )
        assert np.array_equal(list(_masks(found, *new))[1], drawn[rows][:, columns])
    for counts, lengths in (([3], [1]), ([4, -2, 4], [3]), ([6, 1], [1])):
        with pytest.raises(SourceError, match="run lengths"):
            scaled_annotations(dict(zip(features, (counts, lengths), strict=True)), (2, 3), (1, 1))


# -- sources ---------------------------------------------------------------------------------------


def test_sources_without_images_are_refused_at_once(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(OptionError, match="no images"):
        sw.write(tmp_path / "t.csv", tmp_path / "t@1", images=sw.ImageOptions(max_side=9))


def test_tables_of_images(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    known = {"info": {"features": {"image": {"_type": "Image"}, "x": {"_type": "Value"}}}}
    values = [{"bytes": photo(), "path": "1.jpg"}, None, {"bytes": photo(8, 8), "path": None}]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(values, kind), "width": pa.array([40, 40, 8])})
    table = table.append_column("height", pa.array([30, 30, 8]))
    table = table.replace_schema_metadata({"huggingface": json.dumps(known)})
    parquet.write_table(table, tmp_path / "t.parquet")
    sw.write(tmp_path / "t.parquet", tmp_path / "t@1", images=sw.ImageOptions(max_side=20))
    found = list(sw.open(tmp_path / "t"))
    assert opened(found[0]["image"]).size == (found[0]["width"], found[0]["height"]) == (20, 15)
    assert (found[1]["width"], found[2]["image"]) == (40, photo(8, 8))


def test_tars_of_images(tmp_path):
    import io
    import tarfile

    mask = sw.png(np.kron(np.array([[3, 9]], np.uint8), np.ones((30, 20), np.uint8)))
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for name, data in (("1.jpg", photo()), ("1.seg.png", mask), ("1.cls", b"4")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    sw.write(tmp_path / "t.tar", tmp_path / "t@1", images=sw.ImageOptions(resize=(7, 5)))
    (found,) = sw.open(tmp_path / "t")
    assert opened(found["jpg"]).size == opened(found["seg.png"]).size == (7, 5)
    assert set(np.unique(np.asarray(opened(found["seg.png"])))) == {3, 9}


def test_records_are_decoded_for_a_map_and_copied_without(folder, tmp_path):
    sw.write(folder, tmp_path / "first@2")
    small = sw.ImageOptions(max_side=64)
    with pytest.raises(OptionError, match="copied"):
        sw.write(tmp_path / "first", tmp_path / "t@1", images=small)
    again = tmp_path / "again"
    sw.write(tmp_path / "first", again / "t@3", images=small, map=_same)
    found = {e["image/filename"][0].decode(): e for e in sw.open(again / "t")}
    for name, example in by_name(folder, tmp_path, images=small).items():
        same = found[name]
        assert same["image/encoded"] == [example["image/encoded"]]
        assert same["image/format"] == [example["image/format"].encode()]
        for side in ("image/height", "image/width"):
            assert same[side].tolist() == [example[side]]


def _same(features):
    return features


def test_a_dataset_of_tfds(folder, tmp_path):
    sw.write(
        folder, tmp_path / "d", num_shards=2, tfds="d:1.0.0", images=sw.ImageOptions(resize=16)
    )
    name = next((tmp_path / "d").glob("**/*.manifest.json"))
    (some, *_rest) = sw.open(str(name).removesuffix(".manifest.json"))
    assert min(opened(some["image"]).size) == 16


# -- engines and runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_engine_decides_no_byte(folder, tmp_path, compression):
    options = {"images": sw.ImageOptions(max_side=64, quality=80), "compression": compression}
    for name, workers in (("serial", 1), ("two", 2)):
        sw.write(folder, tmp_path / name / "t@4", workers=workers, **options)
    assert all_bytes(tmp_path / "serial") == all_bytes(tmp_path / "two")


def test_options_are_in_the_jobs_hash_and_only_where_they_are_given(folder, tmp_path):
    def job(**options):
        return sw.write(folder, tmp_path / "t@1", overwrite=True, **options).job

    jobs = [
        job(images=options and sw.ImageOptions(**options))
        for options in (None, {"max_side": 64}, {"max_side": 65}, {"resize": 64}, {"quality": 64})
    ]
    assert len(set(jobs)) == 5
    assert job(images=sw.ImageOptions(max_side=64, quality=95)) == jobs[1]
    assert job() == jobs[0]


def test_a_run_is_resumed_with_the_same_options_only(folder, tmp_path):
    calls = []

    def stop(features):
        calls.append(features)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return features

    small = sw.ImageOptions(max_side=64)
    often = RunOptions(mark_s=0, checkpoint_bytes=1)
    with pytest.raises(KeyboardInterrupt):
        sw.write(folder, tmp_path / "t@2", map=stop, images=small, run=often)
    again = {"map": stop, "run": often, "resume": True}
    with pytest.raises(RunChanged, match="images"):
        sw.write(folder, tmp_path / "t@2", images=sw.ImageOptions(max_side=63), **again)
    sw.write(folder, tmp_path / "t@2", images=small, **again)
    assert len(calls) < 15  # some were not made again
    sw.write(folder, tmp_path / "whole" / "t@2", map=stop, images=small)
    ours = all_bytes(tmp_path, without=["photos", "whole"])
    assert ours == all_bytes(tmp_path / "whole")


def test_a_repair_makes_the_same_images(folder, tmp_path):
    small = sw.ImageOptions(max_side=64)
    sw.write(folder, tmp_path / "t" / "t@2", images=small)
    before = all_bytes(tmp_path / "t")
    next((tmp_path / "t").glob("*-00001-of-*")).unlink()
    with pytest.raises(RunChanged):
        sw.repair(tmp_path / "t" / "t", tmp_path / "t", source=folder)
    sw.repair(tmp_path / "t" / "t", tmp_path / "t", source=folder, images=small)
    assert all_bytes(tmp_path / "t") == before


def test_broken_images_are_told_and_skipped(folder, tmp_path):
    write(folder / "a/9.jpg", photo(90, 120)[:-300])
    write(folder / "b/9.gif", frames("GIF"))
    small = sw.ImageOptions(max_side=20)
    with pytest.raises(SourceError, match="can not be decoded") as caught:
        sw.write(folder, tmp_path / "t@2", images=small)
    error = caught.value
    assert (error.item, error.index, error.feature) == ("a/9.jpg", 4, "image/encoded")
    assert not list(tmp_path.glob("t.*"))
    manifest = sw.write(folder, tmp_path / "t@2", images=small, on_error="skip")
    assert (manifest.num_records, manifest.num_items) == (9, 11)
    lines = (tmp_path / "t.errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["item"] for line in lines] == ["a/9.jpg", "b/9.gif"]


def test_the_command(folder, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["write", str(folder), *map(str, arguments)])

    exact = ["--resize", "24x24", "--quality", 90, "--json"]
    planned = run(tmp_path / "out/t@2", *exact, "--dry-run")
    assert not (tmp_path / "out").exists()
    done = run(tmp_path / "out/t@2", *exact, "-j", 1)
    assert done.exit_code == 0, done.output
    assert {opened(e["image/encoded"]).size for e in sw.open(tmp_path / "out/t")} == {(24, 24)}
    files = json.loads(done.stdout)
    assert json.loads(planned.stdout)["estimated_bytes"] == files["file_bytes"]
    images = sw.ImageOptions(resize=(24, 24), quality=90)
    job = sw.write(folder, tmp_path / "t@2", images=images).job
    assert json.loads((tmp_path / "out/t.manifest.json").read_text())["job"] == job
    for wrong in (["--resize", "x"], ["--resize", 8, "--max-side", 8], ["--quality", 101]):
        assert run(tmp_path / "out/u@2", *wrong).exit_code == 2
    (tmp_path / "out/t.tfrecord-00001-of-00002").unlink()
    damaged = [str(tmp_path / "out/t"), str(tmp_path / "out"), "--source", str(folder)]
    repaired = CliRunner().invoke(app, ["repair", *damaged, *map(str, exact[:-1])])
    assert repaired.exit_code == 0, repaired.output
