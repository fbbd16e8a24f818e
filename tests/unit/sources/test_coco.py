"""``coco``: what a record has, which objects count, where images lie, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import random
from hashlib import sha256

import numpy as np
import pytest
from detection_sets import (
    CATEGORIES,
    POINTS,
    coco,
    coco_image,
    coco_object,
    everything,
    gif,
    write,
    write_coco,
)

import shardwriter
from shardwriter.errors import SourceChanged, SourceError
from shardwriter.formats.example import encode_example
from shardwriter.sources.coco import CocoDetection, decode_runs, looks_like_coco
from shardwriter.sources.find import open_source

OBJECT = "image/object"


def load_all(path):
    source = CocoDetection(str(path))
    return [source.load(item) for item in source.items()]


def plain(features):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in features.items()
    }


def near(values):
    return np.array(values, np.float32).tolist()


# -- records ---------------------------------------------------------------------------------------


def test_a_record_of_a_real_file(data_dir):
    root = data_dir / "cvat-ai+datumaro/tests/assets/coco_dataset/coco_instances"
    if not root.is_dir():
        pytest.skip("this COCO dataset is not among the test data")
    source = open_source(str(root / "annotations/instances_val.json"))
    [features] = [source.load(item) for item in source.items()]
    image = (root / "images/val/b.jpg").read_bytes()
    assert source.kind == "coco"
    assert plain(features) == {
        "image/encoded": image,
        "image/filename": "b.jpg",
        "image/format": "jpeg",
        "image/height": 10,
        "image/width": 5,
        "image/source_id": "40",
        "image/key/sha256": sha256(image).hexdigest(),
        f"{OBJECT}/bbox/xmin": [0.0, 0.0],
        f"{OBJECT}/bbox/xmax": near([0.2, 0.2]),
        f"{OBJECT}/bbox/ymin": [0.0, 0.0],
        f"{OBJECT}/bbox/ymax": near([0.2, 0.9]),
        f"{OBJECT}/class/label": [1, 2],
        f"{OBJECT}/class/text": ["a", "b"],
        f"{OBJECT}/is_crowd": [0, 1],
        f"{OBJECT}/area": [2.0, 20.0],
        f"{OBJECT}/segmentation/polygon/x": near([0, 0.2, 0.2, 0]),
        f"{OBJECT}/segmentation/polygon/y": near([0, 0, 0.2, 0.2]),
        f"{OBJECT}/segmentation/polygon/num_points": [4],
        f"{OBJECT}/segmentation/num_polygons": [1, 0],
        f"{OBJECT}/segmentation/rle/counts": [0, 20, 30],
        f"{OBJECT}/segmentation/rle/num_counts": [0, 3],
    }


def test_real_files_of_every_kind(data_dir):
    root = data_dir / "cvat-ai+datumaro/tests/assets/coco_dataset/coco"
    if not root.is_dir():
        pytest.skip("this COCO dataset is not among the test data")
    found = {}
    for path in sorted((root / "annotations").glob("*.json")):
        try:
            found[path.stem] = load_all(path)[0]
        except SourceError as error:
            found[path.stem] = str(error)
    assert found["captions_val"]["image/caption"] == ["world", "text"]
    assert f"{OBJECT}/bbox/xmin" not in found["captions_val"]
    assert len(found["image_info_val"]) == 7
    points = plain(found["person_keypoints_train"])
    assert points[f"{OBJECT}/keypoint/x"] == near([0, 0, 0.4])
    assert points[f"{OBJECT}/keypoint/y"] == near([0, 0.4, 0.2])
    assert points[f"{OBJECT}/keypoint/visibility"] == [0, 1, 2]
    assert points[f"{OBJECT}/keypoint/num"] == [2]
    assert found["stuff_train"][f"{OBJECT}/segmentation/rle/counts"].tolist() == [10, 10, 5, 10, 15]
    assert "panoptic" in found["panoptic_val"]
    assert "no annotation has a box or caption" in found["labels_val"]


def reference(image, annotations, names):
    """The lists of objects as create_coco_tf_record computes them, value by value."""
    lists = {f"bbox/{side}": [] for side in ("xmin", "xmax", "ymin", "ymax")}
    lists |= {name: [] for name in ("class/label", "class/text", "is_crowd", "area")}
    for annotation in annotations:
        if annotation["image_id"] != image["id"]:
            continue
        x, y, width, height = annotation["bbox"]
        if width <= 0 or height <= 0:
            continue
        if x + width > image["width"] or y + height > image["height"]:
            continue
        lists["bbox/xmin"].append(float(x) / image["width"])
        lists["bbox/xmax"].append(float(x + width) / image["width"])
        lists["bbox/ymin"].append(float(y) / image["height"])
        lists["bbox/ymax"].append(float(y + height) / image["height"])
        lists["class/label"].append(annotation["category_id"])
        lists["class/text"].append(names[annotation["category_id"]])
        lists["is_crowd"].append(annotation["iscrowd"])
        lists["area"].append(annotation["area"])
    return {f"{OBJECT}/{name}": values for name, values in lists.items()}


KINDS = {
    f"{OBJECT}/bbox/xmin": "float",
    f"{OBJECT}/bbox/xmax": "float",
    f"{OBJECT}/bbox/ymin": "float",
    f"{OBJECT}/bbox/ymax": "float",
    f"{OBJECT}/area": "float",
    f"{OBJECT}/is_crowd": "int64",
    f"{OBJECT}/class/label": "int64",
    f"{OBJECT}/class/text": "bytes",
}


def test_records_are_those_of_the_reference(tmp_path):
    random.seed(5)
    images = [
        coco_image(number, width=random.randint(1, 640), height=random.randint(1, 480))
        for number in random.sample(range(10**12), 40)
    ]
    annotations = []
    for number in range(400):
        image = random.choice(images[5:])
        width, height = image["width"], image["height"]
        box = [random.uniform(0, width), random.uniform(-9, height), width // 3, height * 0.3]
        box[2] *= random.choice([0, -1, 1, 1, 1])
        if number % 3 == 0:
            box = [round(value, 2) for value in box]
        annotations.append(
            coco_object(
                number,
                image["id"],
                bbox=box,
                category_id=random.choice([3, 90]),
                iscrowd=number % 2,
                area=random.uniform(0, 9999),
            )
        )
    path = write_coco(tmp_path, coco(images, annotations))
    names = {category["id"]: category["name"] for category in CATEGORIES}
    found = load_all(path)
    assert len(found) == len(images)
    for image, features in zip(images, found, strict=True):
        assert (features["image/source_id"], features["image/filename"]) == (
            str(image["id"]),
            image["file_name"],
        )
        objects = {name: value for name, value in features.items() if name.startswith(OBJECT)}
        expected = encode_example(reference(image, annotations, names), KINDS)
        assert encode_example(objects, KINDS) == expected
    num_written = sum(len(features[f"{OBJECT}/area"]) for features in found)
    [note] = CocoDetection(path).notes
    assert note.startswith("objects left out")
    assert note.endswith(f": {400 - num_written}")


def test_segments_keypoints_and_captions(tmp_path):
    found = [plain(features) for features in load_all(write_coco(tmp_path, everything()))]
    masked, captioned, both, pointed, pointless = found
    assert [features["image/source_id"] for features in found] == ["7", "2", "139", "11", "5"]
    assert both[f"{OBJECT}/segmentation/polygon/x"] == near(np.array([0, 4, 4.5, 1, 2, 3]) / 40)
    assert both[f"{OBJECT}/segmentation/polygon/y"] == near(np.array([0, 0, 2, 1, 2, 1]) / 20)
    assert both[f"{OBJECT}/segmentation/polygon/num_points"] == [3, 3]
    assert both[f"{OBJECT}/segmentation/num_polygons"] == [2, 0]
    assert both[f"{OBJECT}/segmentation/rle/num_counts"] == [0, 0]
    assert masked[f"{OBJECT}/segmentation/rle/counts"] == [10, 90, 700]
    assert masked[f"{OBJECT}/is_crowd"] == [1]
    assert captioned["image/caption"] == ["é\n", "second"]
    assert captioned[f"{OBJECT}/class/label"] == []
    assert pointed[f"{OBJECT}/keypoint/x"] == near([0.2, 0])
    assert pointed[f"{OBJECT}/keypoint/y"] == [0.25, 0]
    assert pointed[f"{OBJECT}/keypoint/text"] == ["nose", "left ear"]
    assert pointed[f"{OBJECT}/keypoint/visibility"] == [2, 0]
    assert pointed[f"{OBJECT}/keypoint/num"] == [1]
    assert pointless[f"{OBJECT}/keypoint/x"] == [0, 0]
    assert both[f"{OBJECT}/keypoint/text"] == ["nose", "left ear"] * 2
    assert both[f"{OBJECT}/keypoint/visibility"] == [0] * 4
    assert pointless[f"{OBJECT}/keypoint/num"] == [0]


def packed_runs(runs):
    """What pycocotools writes: differences from the fourth on, five bits a character."""
    text = ""
    for place, run in enumerate(runs):
        value = run - (runs[place - 2] if place > 2 else 0)
        more = True
        while more:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            text += chr(48 + bits + 32 * more)
    return text


def test_compressed_run_lengths(tmp_path):
    random.seed(1)
    for _ in range(200):
        runs = random.choices([0, 1, 15, 16, 31, 32, 5000, 10**9], k=random.randint(0, 9))
        assert decode_runs(packed_runs(runs)) == runs
    assert decode_runs("0d0n0") == [0, 20, 30]
    for broken in ("\x00", "é", "P", "o" * 20):
        assert decode_runs(broken) is None
    packed = {"size": [20, 40], "counts": packed_runs([10, 90, 5, 3, 692])}
    document = coco([coco_image(1)], [coco_object(1, 1, segmentation=packed)])
    [features] = load_all(write_coco(tmp_path, document))
    assert features[f"{OBJECT}/segmentation/rle/counts"].tolist() == [10, 90, 5, 3, 692]


def test_features_are_those_that_the_file_has(tmp_path):
    images = [coco_image(1)]
    for number, (document, extra) in enumerate(
        [
            (coco(images), set()),
            (coco(images, [], []), set()),
            (coco(images, []), set(KINDS)),
            (coco(images, [{"id": 1, "image_id": 1, "caption": "x"}]), {"image/caption"}),
            (coco(images, [coco_object(1, 1, segmentation=[])]), set(KINDS)),
        ]
    ):
        [features] = load_all(write_coco(tmp_path / str(number), document))
        assert {n for n in features if n.count("/") > 1 or n == "image/caption"} == {
            "image/key/sha256",
            *extra,
        }


def test_crowd_and_area_may_be_missing(tmp_path):
    annotation = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
    [features] = load_all(write_coco(tmp_path, coco([coco_image(1)], [annotation])))
    assert features[f"{OBJECT}/is_crowd"].tolist() == [0]
    assert features[f"{OBJECT}/area"].tolist() == [12]


def test_annotations_of_no_image_are_told(tmp_path):
    document = coco([coco_image(1)], [coco_object(1, 1), coco_object(2, 4), coco_object(3, None)])
    source = CocoDetection(write_coco(tmp_path, document))
    assert list(source.notes) == [
        "annotations left out, as their images are not listed: 2, such as of image_id 4"
    ]


def test_names_of_images_may_have_folders_and_ids_may_be_text(tmp_path):
    images = [coco_image("ü", file_name="a/b/1.gif"), coco_image(2, file_name="./c.gif")]
    first, second = load_all(write_coco(tmp_path, coco(images, [])))
    assert (first["image/filename"], first["image/source_id"]) == ("a/b/1.gif", "ü")
    assert second["image/filename"] == "c.gif"


def test_engines_agree(tmp_path):
    write_coco(tmp_path, everything())
    written = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        run = shardwriter.RunOptions(workers=workers)
        manifest = shardwriter.write(str(tmp_path), out / "t@3", format="coco", run=run)
        files = sorted(path for path in out.iterdir() if "-of-" in path.name)
        written.append([path.read_bytes() for path in files])
        assert manifest.num_items == 5
    assert written[0] == written[1]


# -- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("annotations/person_keypoints_val.json", "images/val"),
        ("annotations/image_info_test-dev2017.json", "test2017"),
        ("annotations/instances_default.json", "images"),
        ("annotations/all.json", "."),
        ("Annotations/all.json", "Annotations"),
        ("annotations.json", "images"),
        ("instances_val.json", "val"),
        ("train/_annotations.coco.json", "train"),
        ("x.json", "."),
    ],
)
def test_images_are_found_in_the_usual_places(tmp_path, monkeypatch, name, images):
    path = write_coco(tmp_path, everything(), name, images)
    expected = [encode_example(features) for features in load_all(path)]
    assert len(expected) == 5
    monkeypatch.chdir(os.path.dirname(path))
    assert [encode_example(f) for f in load_all(os.path.basename(path))] == expected
    monkeypatch.chdir(tmp_path)
    assert [encode_example(features) for features in load_all(name)] == expected
    folder = os.path.dirname(path) if name.startswith("train/") else str(tmp_path)
    assert open_source(folder).kind == open_source(path).kind == "coco"


def test_several_files_are_listed(tmp_path):
    write_coco(tmp_path, everything())
    write_coco(tmp_path, everything(), "annotations/captions_val.json")
    write(tmp_path / "annotations/other.json", '{"x": 1}')
    with pytest.raises(SourceError, match="2 annotation files") as caught:
        open_source(str(tmp_path))
    assert "annotations/captions_val.json, annotations/instances_val.json" in str(caught.value)


def test_images_that_are_nowhere(tmp_path):
    path = write_coco(tmp_path, everything(), images="elsewhere")
    with pytest.raises(SourceError, match=r"'7\.gif' is in none of") as caught:
        CocoDetection(path)
    assert str(tmp_path / "val") in str(caught.value)


@pytest.mark.parametrize(
    ("head", "is_coco"),
    [
        (b'{"images": [{"id": 1', True),
        (b'\xef\xbb\xbf {\n "info": {},\n "images" : [\n{', True),
        (b'{"annotations": [{"image_id": 3, ', True),
        (b'{"images": [1, 2]}\n{"images": [3]}\n', False),
        (b'{"info": {"x": 1}}', False),
        (b'{"a": 1, "images": [', False),
        (b"[", False),
        (b"", False),
    ],
)
def test_what_looks_like_coco(head, is_coco):
    assert looks_like_coco(head) == is_coco


# -- refusals --------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        ({"bbox": [NAN, 0, 1, 1]}, "bbox of annotation 8 is not finite"),
        ({"bbox": [0, 0, INF, 1]}, "bbox of annotation 8 is not finite"),
        ({"bbox": [0, 0, 1, 10**400]}, "bbox of annotation 8 is not finite"),
        ({"bbox": [0, 0, 1]}, "bbox of annotation 8 is not 4 numbers"),
        ({"bbox": ["0", 0, 1, 1]}, "not 4 numbers"),
        ({"bbox": [True, 0, 1, 1]}, "not 4 numbers"),
        ({"bbox": None}, "not 4 numbers"),
        ({"category_id": 4}, "category_id 4, which does not exist"),
        ({"category_id": "3"}, "category_id '3'"),
        ({"category_id": None}, "category_id None"),
        ({"iscrowd": 2}, "iscrowd of annotation 8"),
        ({"area": NAN}, "area of annotation 8 is not finite"),
        ({"area": None}, "area of annotation 8 is not numbers"),
        ({"segmentation": [[1, 2, 3]]}, "an x without a y"),
        ({"segmentation": [[1, NAN]]}, "a polygon of annotation 8 is not finite"),
        ({"segmentation": [1, 2]}, "a polygon of annotation 8 is not numbers"),
        ({"segmentation": "x"}, "neither polygons nor run lengths"),
        ({"segmentation": {"size": [40, 20], "counts": [800]}}, r"the size \[40, 20\]"),
        ({"segmentation": {"size": [20, 40], "counts": [799]}}, "the run lengths of annotation 8"),
        ({"segmentation": {"size": [20, 40], "counts": [-1, 801]}}, "the run lengths"),
        ({"segmentation": {"size": [20, 40], "counts": "\n"}}, "the run lengths"),
        ({"segmentation": {"size": [20, 40]}}, "the run lengths"),
        ({"category_id": 1, "keypoints": [1, 1, 2]}, "not 3 numbers for each of 2"),
        ({"category_id": 1, "keypoints": [1, 1, 3, 0, 0, 0]}, "another visibility"),
        ({"category_id": 1, "keypoints": [1, INF, 1, 0, 0, 0]}, "not finite"),
        ({"category_id": 1, "num_keypoints": 3}, "num_keypoints of annotation 8"),
        ({"caption": 3}, "the caption of annotation 8 is not text"),
        ({"caption": "\ud800"}, "the caption of annotation 8 is not text"),
    ],
)
def test_wrong_annotations_are_the_fault_of_their_image(tmp_path, annotation, words):
    more = {"keypoints": [1, 1, 2, 1, 1, 2]} if annotation.get("category_id") == 1 else {}
    broken = coco_object(8, 2, **{**more, **annotation})
    document = coco(
        [coco_image(1), coco_image(2)], [coco_object(1, 1), broken], [*CATEGORIES, POINTS]
    )
    path = write_coco(tmp_path, document)
    source = CocoDetection(path)
    good, bad = source.items()
    assert source.load(good)[f"{OBJECT}/class/text"] == ["cat"]
    with pytest.raises(SourceError, match=words) as caught:
        source.load(bad)
    assert not isinstance(caught.value, SourceChanged)
    assert (caught.value.path, caught.value.item) == (path, "2.gif")
    run = shardwriter.RunOptions(on_error="skip")
    manifest = shardwriter.write(path, tmp_path / "out" / "t@1", run=run)
    assert manifest.num_records == 1


@pytest.mark.parametrize("size", [{"width": 0}, {"height": None}, {"width": 4.5}, {"height": -1}])
def test_a_size_that_is_none(tmp_path, size):
    path = write_coco(tmp_path, coco([coco_image(1)], []))
    write(tmp_path / "annotations/instances_val.json", json.dumps(coco([coco_image(1, **size)])))
    source = CocoDetection(path)
    with pytest.raises(SourceError, match="no valid size"):
        source.load(source.item(0))


def test_images_that_can_not_be_used(tmp_path):
    path = write_coco(tmp_path, coco([coco_image(i) for i in range(5)], []))
    write(tmp_path / "val/1.gif", gif(20, 40))
    write(tmp_path / "val/2.gif", b"no image at all")
    (tmp_path / "val/3.gif").unlink()
    source = CocoDetection(path)
    write(tmp_path / "val/4.gif", gif(40, 20) + b"x")
    assert source.load(source.item(0))["image/width"] == 40
    for number, words in enumerate(["20 x 40 pixels", "no image", "does not exist"], 1):
        with pytest.raises(SourceError, match=words) as caught:
            source.load(source.item(number))
        assert not isinstance(caught.value, SourceChanged)
        assert caught.value.path.endswith(f"{number}.gif")
    with pytest.raises(SourceChanged, match="has changed"):
        source.load(source.item(4))
    (tmp_path / "val/0.gif").unlink()
    with pytest.raises(SourceChanged, match="can not be read"):
        source.load(source.item(0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "this is not JSON"),
        ('{"images": [}', "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ("[]", "no list of images"),
        ('{"annotations": []}', "no list of images"),
        ('{"images": {}}', "images is not a list"),
        ('{"images": [3]}', "images is not a list"),
        ('{"images": [{"file_name": "a.jpg"}]}', "image 0 has the id None"),
        (
            '{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}',
            "repeated or invalid",
        ),
        ('{"images": [{"id": 1}]}', "image 1: its file_name is not text: None"),
        ('{"images": [{"id": 1, "file_name": "\\ud800"}]}', "is not text"),
        ('{"images": [{"id": 1, "file_name": "/etc/x.jpg"}]}', "leads out of the folder"),
        ('{"images": [{"id": 1, "file_name": "a/../../x.jpg"}]}', "leads out of the folder"),
        ('{"images": [], "categories": [{"id": "1", "name": "x"}]}', "a category has the id '1'"),
        ('{"images": [], "categories": [{"id": 1}]}', "the name of category 1 is not text"),
        ('{"images": [], "annotations": [{"id": 1}]}', "no annotation has a box or caption"),
    ],
)
def test_files_that_are_not_cocos(tmp_path, text, words):
    write(tmp_path / "x.json", text)
    with pytest.raises(SourceError, match=words) as caught:
        CocoDetection(str(tmp_path / "x.json"))
    assert caught.value.path == str(tmp_path / "x.json")


def test_a_folder_without_annotations(tmp_path):
    write(tmp_path / "a.gif", gif(1, 1))
    with pytest.raises(SourceError, match="no JSON file in COCO's form"):
        open_source(str(tmp_path), "coco")
    assert open_source(str(tmp_path)).kind == "image-folder"


def test_what_travels_is_small(tmp_path):
    images = [coco_image(number) for number in range(500)]
    annotations = [coco_object(number, number % 500) for number in range(20_000)]
    write(tmp_path / "x.json", json.dumps(coco(images, annotations)))
    write(tmp_path / "0.gif", gif(40, 20))
    source = CocoDetection(str(tmp_path / "x.json"))
    assert len(pickle.dumps(source)) < 40 * 20_000
    assert all(len(pickle.dumps(item)) < 200 for item in source.items())
