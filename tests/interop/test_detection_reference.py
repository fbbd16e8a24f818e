"""COCO and VOC records against what the TensorFlow Object Detection API would write.

The references are written from the rules of its ``create_coco_tf_record`` and
``create_pascal_tf_record``, make ``tf.train.Example`` with TensorFlow, and read files with
libraries that shardwriter does not use. What is known to differ stands in ``DIFFERS``.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import xml.dom.minidom

import pytest
from detection_sets import coco, coco_image, voc_object, voc_xml, write, write_coco

import shardwriter as sw

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

KEYPOINTS = "image/object/keypoint"
DIFFERS = {
    "image/format",  # theirs is always jpeg, ours what the file is
    "image/object/segmentation/polygon/x",  # theirs are drawn as masks, where asked for
    "image/object/segmentation/polygon/y",
    "image/object/segmentation/polygon/num_points",
    "image/object/segmentation/num_polygons",
    "image/object/segmentation/rle/counts",
    "image/object/segmentation/rle/num_counts",
}


def ints(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def texts(values):
    data = [value if isinstance(value, bytes) else value.encode() for value in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=data))


def of_image(path, name, source_id, height, width):
    data = path.read_bytes()
    return {
        "image/height": ints([height]),
        "image/width": ints([width]),
        "image/filename": texts([name]),
        "image/source_id": texts([source_id]),
        "image/key/sha256": texts([hashlib.sha256(data).hexdigest()]),
        "image/encoded": texts([data]),
    }


def coco_reference(document, folder):
    """Yield the features of each image."""
    categories = {each["id"]: each for each in document["categories"]}
    points_of = names_of_points(categories, document["annotations"])
    for image in document["images"]:
        height, width = image["height"], image["width"]
        name = image["file_name"]
        features = of_image(folder / name, name, str(image["id"]), height, width)
        mine = [a for a in document["annotations"] if a["image_id"] == image["id"]]
        captions = [a["caption"] for a in mine if "caption" in a]
        if any("caption" in a for a in document["annotations"]):
            features["image/caption"] = texts(captions)
        if any("bbox" in a for a in document["annotations"]):
            features |= coco_objects([a for a in mine if "bbox" in a], categories, height, width)
            if any("keypoints" in a for a in document["annotations"]):
                features |= coco_points(features.pop("kept"), points_of, height, width)
            features.pop("kept", None)
        yield features


def coco_objects(annotations, categories, height, width):
    kept = []
    for annotation in annotations:
        x, y, w, h = annotation["bbox"]
        has_area = w > 0 and h > 0
        if has_area and not (x + w > width or y + h > height):
            kept.append(annotation)
    boxes = [annotation["bbox"] for annotation in kept]
    labels = [int(annotation["category_id"]) for annotation in kept]
    return {
        "kept": kept,
        "image/object/bbox/xmin": floats([float(x) / width for x, _, _, _ in boxes]),
        "image/object/bbox/xmax": floats([float(x + w) / width for x, _, w, _ in boxes]),
        "image/object/bbox/ymin": floats([float(y) / height for _, y, _, _ in boxes]),
        "image/object/bbox/ymax": floats([float(y + h) / height for _, y, _, h in boxes]),
        "image/object/class/label": ints(labels),
        "image/object/class/text": texts([categories[label]["name"] for label in labels]),
        "image/object/is_crowd": ints([annotation["iscrowd"] for annotation in kept]),
        "image/object/area": floats([annotation["area"] for annotation in kept]),
    }


def names_of_points(categories, annotations):
    """Return names by class. The API knows those of a person alone, and gives them to all classes.

    Here a class has its own; where these are not told, as many empty ones as its objects have
    points, and where these have none those of the first class that has any.
    """
    names = {number: category.get("keypoints", []) for number, category in categories.items()}
    for annotation in annotations:
        number = annotation["category_id"]
        if "keypoints" in annotation and not any(names[number]):
            names[number] = [""] * max(len(names[number]), len(annotation["keypoints"]) // 3)
    first = next((points for points in names.values() if points), [])
    return {number: points or first for number, points in names.items()}


def coco_points(kept, names, height, width):
    """The later versions' keypoints: an object without any has zeros."""
    all_names = [names[a["category_id"]] for a in kept]
    all_points = [
        a.get("keypoints") or [0] * 3 * len(mine) for a, mine in zip(kept, all_names, strict=True)
    ]
    return {
        f"{KEYPOINTS}/x": floats([x / width for points in all_points for x in points[::3]]),
        f"{KEYPOINTS}/y": floats([y / height for points in all_points for y in points[1::3]]),
        f"{KEYPOINTS}/visibility": ints([v for points in all_points for v in points[2::3]]),
        f"{KEYPOINTS}/num": ints([a.get("num_keypoints", 0) for a in kept]),
        f"{KEYPOINTS}/text": texts([name for mine in all_names for name in mine]),
    }


def voc_reference(path, folder, labels, name):
    """Return the features of one XML file."""
    root = xml.dom.minidom.parse(str(path)).documentElement

    def child(element, tag):
        found = [e for e in element.childNodes if getattr(e, "tagName", None) == tag]
        return found[0] if found else None

    def text(element, tag, missing=None):
        found = child(element, tag)
        return missing if found is None else found.firstChild.data

    size = child(root, "size")
    height, width = int(text(size, "height")), int(text(size, "width"))
    objects = [e for e in root.childNodes if getattr(e, "tagName", None) == "object"]
    boxes = [child(each, "bndbox") for each in objects]
    names = [text(each, "name") for each in objects]
    return {
        **of_image(folder / name, name, name, height, width),
        "image/object/bbox/xmin": floats([float(text(box, "xmin")) / width for box in boxes]),
        "image/object/bbox/xmax": floats([float(text(box, "xmax")) / width for box in boxes]),
        "image/object/bbox/ymin": floats([float(text(box, "ymin")) / height for box in boxes]),
        "image/object/bbox/ymax": floats([float(text(box, "ymax")) / height for box in boxes]),
        "image/object/class/text": texts(names),
        "image/object/class/label": ints([labels[each] for each in names]),
        "image/object/difficult": ints([int(text(e, "difficult", "0")) for e in objects]),
        "image/object/truncated": ints([int(text(e, "truncated", "0")) for e in objects]),
        "image/object/view": texts([text(e, "pose", "Unspecified") for e in objects]),
    }


def written(source, out, format="auto"):
    """Write a source, and return its records in order as TensorFlow parses them."""
    sw.write(str(source), out / "d@3", format=format)
    paths = sorted(str(path) for path in out.glob("d.tfrecord-*"))
    shards = [[r.numpy() for r in tf.data.TFRecordDataset(path)] for path in paths]
    count = sum(map(len, shards))
    return [tf.train.Example.FromString(shards[i % 3][i // 3]) for i in range(count)]


def compare(examples, references):
    assert len(examples) == len(references)
    for example, features in zip(examples, references, strict=True):
        found = dict(example.features.feature)
        for name in DIFFERS:
            found.pop(name, None)
        assert sorted(found) == sorted(features)
        for name, feature in features.items():
            assert found[name] == feature, name


def real_folder(data_dir, name):
    path = data_dir / "cvat-ai+datumaro/tests/assets" / name
    if not path.is_dir():
        pytest.skip(f"{name} is not among the test data")
    return path


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("kind", ["instances", "person_keypoints", "captions", "stuff"])
def test_real_coco_files(data_dir, tmp_path, kind, split):
    root = real_folder(data_dir, f"coco_dataset/coco_{kind}")
    path = root / f"annotations/{kind}_{split}.json"
    references = list(coco_reference(json.loads(path.read_text()), root / "images" / split))
    assert references
    compare(written(path, tmp_path), references)


def numbers(rng, top):
    """A box's begin and length: inside, on the edge, over it, empty, before 0, whole or not."""
    begin = rng.choice([0, 0.0, rng.randrange(top), rng.uniform(0, top), -3, -0.5, 1e-30])
    rest = top - begin
    length = rng.choice(
        [rest, rest + 1e-9, rest * (1 + 2**-52), rest / 3, rng.uniform(0, 1), 0, -1, 1, 1e-30]
    )
    return begin, length


def test_made_coco_files_with_odd_boxes(tmp_path):
    rng = random.Random(7)
    sizes = [(3, 7), (49, 50), (1, 1), (333, 500), (1080, 1920)]
    categories = [
        {"id": 3, "name": "cat"},
        {"id": 90, "name": "Hündin", "keypoints": ["nose", "left ear"]},
    ]
    images, annotations = [], []
    for number in range(60):
        height, width = rng.choice(sizes)
        images.append(coco_image(1000 - number, height=height, width=width))
        for _ in range(rng.randrange(8)):
            (x, w), (y, h) = numbers(rng, width), numbers(rng, height)
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": 1000 - number,
                    "category_id": rng.choice([3, 90]),
                    "bbox": [x, y, w, h],
                    "iscrowd": rng.choice([0, 1]),
                    "area": rng.choice([0, 17, rng.uniform(0, 1e7), 1 / 3, 16777217]),
                }
            )
            if rng.random() < 0.5:
                points = [rng.randrange(width), rng.uniform(0, height), rng.randrange(3)]
                annotations[-1] |= {"keypoints": points * 2, "num_keypoints": 2}
    rng.shuffle(annotations)
    document = coco(images, annotations, categories)
    path = write_coco(tmp_path / "data", document)
    references = list(coco_reference(document, tmp_path / "data/val"))
    num_kept = sum(len(f["image/object/area"].float_list.value) for f in references)
    assert 0 < num_kept < len(annotations)
    compare(written(path, tmp_path), references)


VOC_NAMES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
)
VOC_LABELS = {name: label for label, name in enumerate(VOC_NAMES.split(), 1)}


def test_made_voc_files_with_odd_boxes(tmp_path):
    rng = random.Random(8)
    more = ["", "<difficult>1</difficult>", "<truncated>1</truncated><pose>Left</pose>"]
    more.append("<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part><pose>Frontal</pose>")
    for number in range(30):
        width, height = rng.choice([(7, 3), (500, 333), (1, 1)])
        objects = [
            voc_object(
                rng.choice(["cat", "tvmonitor", "aeroplane"]),
                tuple(rng.choice([rng.uniform(-2, 600), rng.randrange(600)]) for _ in range(4)),
                rng.choice(more),
            )
            for _ in range(rng.randrange(6))
        ]
        text = voc_xml(f"{number:03}.gif", *objects, width=width, height=height)
        write(tmp_path / f"data/Annotations/{number:03}.xml", text)
        image = b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"
        write(tmp_path / f"data/JPEGImages/{number:03}.gif", image)
    paths = sorted((tmp_path / "data/Annotations").glob("*.xml"))
    folder = tmp_path / "data/JPEGImages"
    references = [voc_reference(p, folder, VOC_LABELS, f"{p.stem}.gif") for p in paths]
    compare(written(tmp_path / "data", tmp_path), references)
