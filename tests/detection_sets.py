"""Small detection datasets, in COCO's and in Pascal VOC's form."""

from __future__ import annotations

import json

from small_images import gif


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def coco_image(number, **changes):
    return {"id": number, "file_name": f"{number}.gif", "width": 40, "height": 20, **changes}


def coco_object(number, image_id, **changes):
    return {
        "id": number,
        "image_id": image_id,
        "category_id": 3,
        "bbox": [4.0, 5, 8, 10.5],
        "iscrowd": 0,
        "area": 33.5,
        **changes,
    }


CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 90, "name": "Hündin"}]


def coco(images, annotations=None, categories=CATEGORIES, **more):
    document = {"info": {}, "images": images, "categories": categories, **more}
    return document if annotations is None else {**document, "annotations": annotations}


def write_coco(folder, document, name="annotations/instances_val.json", images="val"):
    write(folder / name, json.dumps(document))
    for image in document["images"]:
        size = image.get("width", 40), image.get("height", 20)
        write(folder / images / image["file_name"], gif(*size))
    return str(folder / name)


POINTS = {"id": 1, "name": "person", "keypoints": ["nose", "left ear"]}


def everything():
    """Objects, polygons, run lengths, keypoints and captions in one file."""
    runs = {"size": [20, 40], "counts": [10, 90, 700]}
    polygons = [[0, 0, 4, 0, 4.5, 2], [1, 1, 2, 2, 3, 1]]
    points = {"category_id": 1, "keypoints": [8, 5, 2, 0, 0, 0], "num_keypoints": 1}
    return coco(
        [coco_image(number) for number in (7, 2, 139, 11, 5)],
        [
            coco_object(1, 139, segmentation=polygons),
            coco_object(2, 7, segmentation=runs, iscrowd=1),
            coco_object(3, 139, category_id=90, segmentation=[]),
            coco_object(4, 11, bbox=[0, 0, 40, 20], **points),
            {"id": 5, "image_id": 2, "caption": "é\n"},
            {"id": 6, "image_id": 2, "caption": "second"},
            coco_object(7, 5, category_id=1),
        ],
        [*CATEGORIES, POINTS],
    )


def voc_object(name, box=(4, 5, 12, 15), more="<difficult>1</difficult><pose>Left</pose>"):
    xmin, ymin, xmax, ymax = box
    return (
        f"<object><name>{name}</name>{more}<bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin>"
        f"<xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"
    )


def voc_xml(filename, *objects, width=40, height=20):
    return (
        f"<annotation><folder>VOC</folder><filename>{filename}</filename><size><width>{width}"
        f"</width><height>{height}</height><depth>3</depth></size>{''.join(objects)}</annotation>"
    )


def write_voc(folder, objects, xml="Annotations", images="JPEGImages"):
    """Write images and XML files: ``objects`` has those of each, by stem."""
    for stem, found in objects.items():
        write(folder / xml / f"{stem}.xml", voc_xml(f"{stem}.gif", *found))
        write(folder / images / f"{stem}.gif", gif(40, 20))
    return str(folder)
