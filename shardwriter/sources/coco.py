"""``coco``: images with objects, keypoints and captions from a JSON file in COCO's format.

An item is an image, in the order of ``images``; its objects are in the order of ``annotations``.
Names, types and arithmetic are those of the TensorFlow Object Detection API's
``create_coco_tf_record``: boxes relative to width and height of the image; class numbers as in the
file (with gaps, and 0 for the background, so they are not a vocabulary; the names are in another
feature); an object is left out if its box has no area or extends over the right or lower edge.
Different from it, an image without objects has empty lists instead of no features, and segments are
written as polygons and run lengths, not as masks.

In a file with keypoints, an object without them has those of its class (else of the first class
that has any) as zeros that are not visible.

The features depend on the whole file: those of objects if it has boxes (or categories and no
captions), those of segments and keypoints if any object has some, and captions.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shardwriter.dataset import is_url, path_below
from shardwriter.errors import SourceError
from shardwriter.sources.detection import (
    AREA,
    LABEL,
    RLE_COUNTS,
    RLE_NUM_COUNTS,
    TEXT,
    XMAX,
    XMIN,
    YMAX,
    YMIN,
    BadAnnotation,
    DetectionSource,
    ImageFiles,
    checked_numbers,
    checked_size,
    checked_text,
)
from shardwriter.storage import inputs_for, split

_HEAD_BYTES: Final = 1 << 16
_MAX_FILES: Final = 200  # folders with more JSON files are not examined: one per image, not COCO
_FOLDER_NAMES: Final = ("annotations", "annotation")
_BEGIN: Final = re.compile(rb'\s*\{\s*"(info|licenses|images|annotations|categories)"\s*:\s*[\[{]')
_IMAGES: Final = re.compile(rb'"images"\s*:\s*\[')
_NAMES_IMAGES: Final = re.compile(rb'"annotations"\s*:\s*\[.*"image_id"\s*:', re.DOTALL)


def looks_like_coco(head: bytes) -> bool:
    """Return whether a file is JSON in COCO's format, by its first bytes."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    line, _, rest = head.partition(b"\n")
    is_lines = line.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{")
    if is_lines or not _BEGIN.match(head):
        return False
    return bool(_IMAGES.search(head) or _NAMES_IMAGES.search(head))


def coco_files(folder: str) -> list[str]:
    """Return the files in COCO's format in a folder, and in ``annotations`` in it."""
    found: list[str] = []
    folders = [folder]
    for place in folders:
        try:
            entries = sorted(inputs_for(place).listing(place), key=lambda entry: entry.name)
        except OSError:
            continue
        if place == folder:
            folders += [
                entry.path
                for entry in entries
                if entry.name.lower() in _FOLDER_NAMES and entry.is_dir()
            ]
        paths = [
            entry.path
            for entry in entries
            if entry.name.lower().endswith(".json") and not entry.name.startswith(".")
        ]
        if len(paths) <= _MAX_FILES:
            found += filter(is_coco_file, paths)
    return found


def is_coco_file(path: str) -> bool:
    """Return whether a file is in COCO's format, by its content."""
    try:
        with inputs_for(path).open(path) as file:
            return looks_like_coco(file.read(_HEAD_BYTES))
    except OSError:
        return False


def annotations_file(path: str) -> str:
    """Return the annotations file of SOURCE: the only one in a folder, or the path itself.

    Raises:
        SourceError: The folder has none, or several.
    """
    if not inputs_for(path).is_directory(path):
        return path
    found = coco_files(path)
    if not found:
        raise SourceError(
            "this folder has no JSON file in COCO's format, nor in annotations in it", path=path
        )
    if len(found) > 1:
        names = ", ".join(name[len(path) :].lstrip("/") for name in found)
        raise SourceError(
            f"this folder has {len(found)} annotation files: {names}",
            path=path,
            hint="give one of them as SOURCE; or add --format image-folder for images in class "
            "folders",
        )
    return found[0]


def image_folder(path: str, names: Sequence[str]) -> str:
    """Return the folder of a file's images.

    Raises:
        SourceError: They are in none of the usual folders.
    """
    tried = list(dict.fromkeys(_candidates(path)))
    inputs = inputs_for(path)
    for folder in tried:
        if not names or any(inputs.is_file(os.path.join(folder, name)) for name in names[:5]):
            return folder
    raise SourceError(
        f"images not found: {names[0]!r:.200} is in none of {', '.join(tried)}",
        path=path,
        hint="move this file next to the folder of its images, or into annotations next to it",
    )


def _candidates(path: str) -> Iterator[str]:
    """Yield possible folders of a file's images: for ``instances_val2017``, ``val2017``."""
    beside, name = split(path)
    root = beside or "."
    if is_url(path):
        above, last = split(root)
    else:
        above = os.path.normpath(os.path.join(root, os.pardir))
        last = os.path.basename(os.path.abspath(root))
    if last.lower() in _FOLDER_NAMES:
        root = above
    parts = os.path.splitext(name)[0].split("_")
    for begin in range(len(parts)):
        subset = "_".join(parts[begin:])
        for folder in (subset, subset.replace("-dev", "")):
            if folder:
                yield os.path.join(root, "images", folder)
                yield os.path.join(root, folder)
    yield os.path.join(root, "images")
    yield root
    yield beside or "."


# Segments: an object's ``segmentation`` is polygons, or a mask as run lengths. Runs go column by
# column, alternately outside and inside, first outside. COCO stores them as a list or compressed.

_PREFIX: Final = "image/object/segmentation"
_X: Final = f"{_PREFIX}/polygon/x"
_Y: Final = f"{_PREFIX}/polygon/y"
_NUM_POINTS: Final = f"{_PREFIX}/polygon/num_points"
_NUM_POLYGONS: Final = f"{_PREFIX}/num_polygons"

POLYGON_COLUMNS: Final = {_X: "f", _Y: "f", _NUM_POINTS: "i", _NUM_POLYGONS: "i"}
"""The points of all polygons, the number of points per polygon, of polygons per object."""

RLE_COLUMNS: Final = {RLE_COUNTS: "q", RLE_NUM_COUNTS: "i"}
"""The runs of all masks, and the number of runs per object."""


def add_segments(
    columns: dict[str, list[Any]], segments: Any, height: int, width: int, what: str
) -> None:
    """Add the ``segmentation`` of an object to the columns.

    Raises:
        BadAnnotation: It is neither polygons nor runs, or for another image size.
    """
    runs: list[int] = []
    polygons: list[list[float]] = []
    if isinstance(segments, dict):
        runs = _runs(segments, height, width, what)
    elif isinstance(segments, list):
        polygons = [checked_numbers(polygon, f"a polygon of {what}") for polygon in segments]
        if any(len(polygon) % 2 for polygon in polygons):
            raise BadAnnotation(f"a polygon of {what} has an x without a y")
    elif segments is not None:
        raise BadAnnotation(f"segmentation of {what} is neither polygons nor run lengths")
    polygons = [polygon for polygon in polygons if polygon]
    for polygon in polygons:
        columns[_X] += [x / width for x in polygon[::2]]
        columns[_Y] += [y / height for y in polygon[1::2]]
        columns[_NUM_POINTS].append(len(polygon) // 2)
    columns[_NUM_POLYGONS].append(len(polygons))
    columns[RLE_COUNTS].extend(runs)
    columns[RLE_NUM_COUNTS].append(len(runs))


def _runs(segments: Mapping[str, Any], height: int, width: int, what: str) -> list[int]:
    if segments.get("size") != [height, width]:
        raise BadAnnotation(
            f"the mask of {what} has the size {segments.get('size')!r:.50}, but the image "
            f"{[height, width]}"
        )
    runs = segments.get("counts")
    if isinstance(runs, str):
        runs = decode_runs(runs)
    is_runs = isinstance(runs, list) and all(type(run) is int and run >= 0 for run in runs)
    if runs is None or not is_runs or sum(runs) != height * width:
        raise BadAnnotation(f"the run lengths of {what} do not match the size of its image")
    return list(runs)


def decode_runs(text: str) -> list[int] | None:
    """Return the runs in COCO's compressed text; None if it is invalid.

    A character is 48 plus six bits: five of the number, lowest first, and one that is set if more
    follow; the highest of the last five is the sign. From the fourth number on, each is the
    difference to the number two before.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return None if shift else runs


KIND: Final = "coco"

_IS_CROWD: Final = "image/object/is_crowd"
_CAPTION: Final = "image/caption"
_KEYPOINT: Final = "image/object/keypoint"
_OBJECT_COLUMNS: Final = {
    XMIN: "f",
    XMAX: "f",
    YMIN: "f",
    YMAX: "f",
    LABEL: "q",
    TEXT: "s",
    _IS_CROWD: "b",
    AREA: "f",
}
_KEYPOINT_COLUMNS: Final = {
    f"{_KEYPOINT}/x": "f",
    f"{_KEYPOINT}/y": "f",
    f"{_KEYPOINT}/visibility": "b",
    f"{_KEYPOINT}/num": "i",
    f"{_KEYPOINT}/text": "s",
}


class CocoDetection(DetectionSource):
    """The annotated images of one JSON file.

    Args:
        path: The file, or a folder with only one such file.

    Attributes:
        class_names: Class names by the numbers of the file.

    Raises:
        SourceError: There is no such file, or several; it is not in COCO's format; or its images
            are not found.
    """

    kind = KIND

    def __init__(self, path: str) -> None:
        path = annotations_file(path)
        found, data = _read(path)
        document = _parse(data, path)
        images = _images(document, path)
        annotations = _records(document, "annotations", path)
        self._classes = _Classes(_records(document, "categories", path), annotations, path)
        self.class_names: Mapping[int, str] = self._classes.names
        names = [name for name, _ in images.values()]
        typecodes = _typecodes(document, annotations, path)
        orphans = [a for a in annotations if not _has_image(a, images)]
        if orphans and len(orphans) == len(annotations):
            raise SourceError(
                f"none of the {len(orphans):,} annotations is for a listed image: the first has "
                f"image_id {orphans[0].get('image_id')!r:.50}, but images have ids such as "
                f"{next(iter(images), None)!r:.50}",
                path=path,
                hint='compare their types: the number 7 differs from the text "7"',
            )
        super().__init__(path, image_folder(path, names), typecodes)
        self._add_annotations(data, found.st_mtime_ns)
        by_image: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
        for annotation in annotations:
            if _has_image(annotation, images):
                by_image[annotation["image_id"]].append(annotation)
        self._left_out = 0
        files = ImageFiles(self._root)
        for image_id, (name, image) in images.items():
            annotated: Any
            try:
                height, width = checked_size(image.get("height"), image.get("width"))
                columns = self._objects(by_image.get(image_id, ()), height, width)
                annotated = height, width, columns
            except BadAnnotation as error:
                annotated = error
            self._add(name, str(image_id), files.find(name), annotated)
        num_repeated = len(names) - len(set(names))
        self.notes = _notes(self._left_out, orphans, num_repeated)

    def _objects(
        self, annotations: Sequence[Mapping[str, Any]], height: int, width: int
    ) -> dict[str, list[Any]]:
        """Return the columns of an image."""
        columns: defaultdict[str, list[Any]] = defaultdict(list)
        left_out = 0
        for annotation in annotations:
            what = f"annotation {annotation.get('id')!r}"
            if _CAPTION in self._columns and "caption" in annotation:
                caption = checked_text(annotation["caption"], f"the caption of {what}")
                columns[_CAPTION].append(caption)
            if LABEL not in self._columns or ("caption" in annotation and "bbox" not in annotation):
                continue
            box = checked_numbers(annotation.get("bbox"), f"bbox of {what}", 4)
            x, y, box_width, box_height = box
            is_empty = box_width <= 0 or box_height <= 0
            if is_empty or x + box_width > width or y + box_height > height:
                left_out += 1
                continue
            columns[XMIN].append(x / width)
            columns[XMAX].append((x + box_width) / width)
            columns[YMIN].append(y / height)
            columns[YMAX].append((y + box_height) / height)
            label, text = self._classes.of(annotation, what)
            columns[LABEL].append(label)
            columns[TEXT].append(text)
            crowd = annotation.get("iscrowd", 0)
            if crowd not in (0, 1):
                raise BadAnnotation(f"iscrowd of {what} is neither 0 nor 1")
            columns[_IS_CROWD].append(int(crowd))
            area = annotation.get("area", box_width * box_height)
            columns[AREA] += checked_numbers([area], f"area of {what}")
            add_segments(columns, annotation.get("segmentation"), height, width, what)
            if f"{_KEYPOINT}/x" in self._columns:
                self._add_keypoints(columns, annotation, height, width, what)
        self._left_out += left_out
        return columns

    def _add_keypoints(
        self,
        columns: Mapping[str, list[Any]],
        annotation: Mapping[str, Any],
        height: int,
        width: int,
        what: str,
    ) -> None:
        names = self._classes.keypoints(annotation["category_id"])
        points = annotation.get("keypoints") or [0] * 3 * len(names)
        points = checked_numbers(points, f"keypoints of {what}")
        if len(points) != 3 * len(names):
            raise BadAnnotation(f"keypoints of {what} are not 3 numbers for each of {len(names)}")
        visible = points[2::3]
        if not {0, 1, 2}.issuperset(visible):
            raise BadAnnotation(f"keypoints of {what} have another visibility than 0, 1 and 2")
        num_visible = annotation.get("num_keypoints", sum(map(bool, visible)))
        if type(num_visible) is not int or not 0 <= num_visible <= len(names):
            raise BadAnnotation(f"num_keypoints of {what} is {num_visible!r:.50}")
        columns[f"{_KEYPOINT}/x"].extend(x / width for x in points[::3])
        columns[f"{_KEYPOINT}/y"].extend(y / height for y in points[1::3])
        columns[f"{_KEYPOINT}/visibility"].extend(map(int, visible))
        columns[f"{_KEYPOINT}/num"].append(num_visible)
        columns[f"{_KEYPOINT}/text"].extend(names)


class _Classes:
    """The ``categories``: names of classes, and of their keypoints."""

    def __init__(
        self, records: Sequence[Mapping[str, Any]], annotations: Sequence[Any], path: str
    ) -> None:
        self.names: dict[int, str] = {}
        self._keypoints: dict[int, list[str]] = {}
        for record in records:
            number = record.get("id")
            if type(number) is not int or number in self.names or not 0 <= number < 1 << 63:
                raise SourceError(
                    f"a category has the id {number!r:.50}, which is repeated or not a number",
                    path=path,
                )
            what = f"category {number}"
            try:
                self.names[number] = checked_text(record.get("name"), f"the name of {what}")
                points = record.get("keypoints") or []
                if not isinstance(points, list):
                    raise BadAnnotation(f"keypoints of {what} is not a list")
                self._keypoints[number] = [
                    checked_text(point, f"a keypoint of {what}") for point in points
                ]
            except BadAnnotation as error:
                raise SourceError(str(error), path=path) from None
        nameless = {number for number, points in self._keypoints.items() if not points}
        for annotation in annotations:
            # Without names in the file, a class has as many keypoints as its objects.
            points, number = annotation.get("keypoints"), annotation.get("category_id")
            if isinstance(points, list) and type(number) is int and number in nameless:
                count = max(len(self._keypoints[number]), len(points) // 3)
                self._keypoints[number] = [""] * count
        # Readers need the same number of points for all objects: those of other classes get the
        # same points, none of them visible.
        usual = next(filter(None, self._keypoints.values()), [])
        for number, points in self._keypoints.items():
            self._keypoints[number] = points or usual

    def of(self, annotation: Mapping[str, Any], what: str) -> tuple[int, str]:
        """Return the number and name of an object's class."""
        number = annotation.get("category_id")
        if type(number) is not int or number not in self.names:
            raise BadAnnotation(f"{what} has the category_id {number!r:.50}, which does not exist")
        return number, self.names[number]

    def keypoints(self, number: int) -> list[str]:
        """Return the names of the keypoints of a class."""
        return self._keypoints[number]


def _read(path: str) -> Any:
    try:
        return inputs_for(path).read(path)
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error


def _parse(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"this is not JSON: {error}", path=path, line=getattr(error, "lineno", None)
        ) from None
    if not isinstance(document, dict) or "images" not in document:
        raise SourceError(
            "this is not in COCO's format: it has no list of images",
            path=path,
            hint="the file must be an object with images, annotations and categories",
        )
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raise for repeated keys, of which json would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object repeats the key {max(keys, key=keys.count)!r:.50}")
    return found


def _records(document: Mapping[str, Any], name: str, path: str) -> list[dict[str, Any]]:
    records = document.get(name, [])
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise SourceError(f"{name} is not a list of objects", path=path)
    return records


def _images(document: Mapping[str, Any], path: str) -> dict[Any, tuple[str, dict[str, Any]]]:
    """Return the file name and entry of every image, by id."""
    images: dict[Any, tuple[str, dict[str, Any]]] = {}
    for place, image in enumerate(_records(document, "images", path)):
        image_id, name = image.get("id"), image.get("file_name")
        if type(image_id) not in (int, str) or image_id in images:
            raise SourceError(
                f"image {place} has the id {image_id!r:.50}, which is repeated or invalid",
                path=path,
            )
        try:
            name = checked_text(name, "its file_name")
            checked_text(str(image_id), "its id")
        except BadAnnotation as error:
            raise SourceError(f"image {image_id!r:.50}: {error}", path=path) from None
        try:
            images[image_id] = path_below(name), image
        except ValueError as error:
            raise SourceError(
                f"image {image_id!r:.50}: its file_name {error}",
                path=path,
                hint="file_name must be a path relative to the folder of images",
            ) from None
    return images


def _typecodes(
    document: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], path: str
) -> dict[str, str]:
    """Return the columns for a file's annotations.

    Raises:
        SourceError: They have neither boxes nor captions.
    """
    keys = set().union(*annotations)
    if annotations and keys.isdisjoint(("bbox", "caption")):
        is_panoptic = "segments_info" in keys
        raise SourceError(
            "these are panoptic segments" if is_panoptic else "no annotation has a box or caption",
            path=path,
            hint="supported are instances, keypoints and captions",
        )
    typecodes: dict[str, str] = {}
    has_classes = "annotations" in document and document.get("categories")
    if "bbox" in keys or (has_classes and "caption" not in keys):
        typecodes |= _OBJECT_COLUMNS
        segments = [annotation.get("segmentation") for annotation in annotations]
        if any(isinstance(segment, list) and any(segment) for segment in segments):
            typecodes |= POLYGON_COLUMNS
        if any(isinstance(segment, dict) for segment in segments):
            typecodes |= RLE_COLUMNS
        if "keypoints" in keys:
            typecodes |= _KEYPOINT_COLUMNS
    if "caption" in keys:
        typecodes[_CAPTION] = "s"
    return typecodes


def _has_image(annotation: Mapping[str, Any], images: Mapping[Any, Any]) -> bool:
    image_id = annotation.get("image_id")
    return isinstance(image_id, int | str) and image_id in images


def _notes(left_out: int, orphans: Sequence[Mapping[str, Any]], num_repeated: int) -> list[str]:
    notes = []
    if left_out:
        notes.append(
            "objects left out, as their boxes have no area or extend over the right or lower edge: "
            f"{left_out:,}"
        )
    if orphans:
        notes.append(
            f"annotations left out, as their images are not listed: {len(orphans):,}, such as of "
            f"image_id {orphans[0].get('image_id')!r:.50}"
        )
    if num_repeated:
        notes.append(f"images that repeat a file name, written again: {num_repeated:,}")
    return notes
