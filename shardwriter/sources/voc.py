"""``voc``: images with objects from XML files in Pascal VOC's format.

SOURCE is a folder with ``Annotations`` and ``JPEGImages``, or with XML files and images side by
side. An item is an XML file, in order of their names, with the image of the same name, or else the
image that it names. SOURCE may also be a list in ``ImageSets``, such as
``VOC2012/ImageSets/Main/train.txt``: then the items are those of the list, in its order. Images
without an XML file are left out.

Names, types and arithmetic are those of the TensorFlow Object Detection API's
``create_pascal_tf_record``: all objects are written, including difficult ones, with boxes relative
to width and height. Classes are numbered from 1: those of Pascal VOC if there are no others, else
all names in the folder in sorted order, for every list.

An XML file with a DOCTYPE is refused, as entities declared there can expand to gigabytes or read
other files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from shardwriter.errors import SourceError
from shardwriter.sources.detection import (
    LABEL,
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
    is_image_name,
)
from shardwriter.storage import (
    Entry,
    Stat,
    inputs_for,
    split,
)

KIND: Final = "voc"

CLASSES: Final = [
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
]
"""The classes of Pascal VOC; the first has the label 1."""

_DIFFICULT: Final = "image/object/difficult"
_TRUNCATED: Final = "image/object/truncated"
_VIEW: Final = "image/object/view"
_COLUMNS: Final = {
    XMIN: "f",
    XMAX: "f",
    YMIN: "f",
    YMAX: "f",
    LABEL: "q",
    TEXT: "s",
    _DIFFICULT: "b",
    _TRUNCATED: "b",
    _VIEW: "s",
}
_NO_VIEW: Final = "Unspecified"  # Pascal VOC's own word
_HEAD_BYTES: Final = 1 << 12


class _Object(NamedTuple):
    """An object; its box is xmin, xmax, ymin, ymax in pixels."""

    name: str
    box: list[float]
    difficult: int
    truncated: int
    view: str


class _Annotation(NamedTuple):
    """The content of an XML file."""

    filename: str
    height: int
    width: int
    objects: Sequence[_Object]


class VocDetection(DetectionSource):
    """The annotated images of a folder in Pascal VOC's format.

    Args:
        path: The folder, or a list in ``ImageSets``.

    Raises:
        SourceError: There are no such files, or the list names one that does not exist.
    """

    kind = KIND

    def __init__(self, path: str) -> None:
        root = _root_of_list(path) or path
        inputs = inputs_for(path)
        below = os.path.join(root, "Annotations")
        folder = below if inputs.is_directory(below) else root
        pictures = os.path.join(root, "JPEGImages")
        super().__init__(folder, pictures if inputs.is_directory(pictures) else folder, _COLUMNS)
        entries = _xml_files(folder)
        if not entries:
            raise SourceError(
                "this folder has no XML files with annotations",
                path=path,
                hint="give the folder with Annotations and JPEGImages, such as VOC2012",
            )
        found = {stem: self._parse(entry) for stem, entry in entries.items()}
        names = {
            each.name
            for _, _, annotation in found.values()
            if isinstance(annotation, _Annotation)
            for each in annotation.objects
        }
        self.classes = sorted(names)
        labels = self._labels = _labels_of(self.classes)
        wanted = list(found)
        if path != root:
            wanted = self._read_list(path, found)
        images = {
            name: entry
            for name, entry in ImageFiles(self._root).of().items()
            if is_image_name(name)
        }
        by_stem = {os.path.splitext(name)[0]: name for name in sorted(images, reverse=True)}
        taken = {by_stem[stem] for stem in found if stem in by_stem}
        self._outside = 0
        for stem in wanted:
            facts, data, annotation = found[stem]
            self._add_annotations(data, facts.st_mtime_ns)
            # The name in an XML file may date from before the images were renamed.
            name = by_stem.get(stem, "")
            if not name:
                name = getattr(annotation, "filename", "")
                name = name if name in images and name not in taken else f"{stem}.jpg"
                taken.add(name)
            annotated: Any = annotation
            if isinstance(annotation, _Annotation):
                columns = self._columns_of(annotation, labels)
                annotated = annotation.height, annotation.width, columns
            else:
                annotated = BadAnnotation(f"{stem}.xml: {annotation}")
            self._add(name, name, images.get(name), annotated)
        self._num_images = len(images)
        self.notes = self._make_notes(len(images), labels)

    def use_classes(self, classes: Sequence[str]) -> None:
        """Renumber the classes, if other splits of the data have more of them."""
        labels = _labels_of(classes)
        if labels == self._labels:
            return
        numbers = {label: labels[name] for name, label in self._labels.items() if name in labels}
        self._columns[LABEL].renumber(numbers)
        self.classes, self._labels = [*classes], labels
        digest = f"{self._annotations_digest}\0" + "\0".join(classes)
        self._annotations_digest = sha256(digest.encode()).hexdigest()
        self.notes = self._make_notes(self._num_images, labels)

    def _parse(self, entry: Entry) -> tuple[Stat, bytes, _Annotation | BadAnnotation]:
        try:
            facts, data = self._inputs.read(entry.path)
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=entry.path) from error
        try:
            return facts, data, _annotation(parse_xml(data))
        except BadAnnotation as error:
            return facts, data, error

    def _read_list(self, path: str, found: Mapping[str, Any]) -> list[str]:
        """Return the names of a list in ``ImageSets``; in lists of a class, numbers follow them."""
        try:
            facts, data = self._inputs.read(path)
            names = [line.split()[0] for line in data.decode().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", "it is not UTF-8")
            raise SourceError(f"can not be read: {reason}", path=path) from error
        for line, name in enumerate(names, 1):
            if name not in found:
                raise SourceError(
                    f"{name!r:.200} is in the list, but {self._annotations} has no "
                    f"{name[:200]}.xml",
                    path=path,
                    line=line,
                )
        if len(set(names)) < len(names):
            [(repeated, _)] = Counter(names).most_common(1)
            raise SourceError(f"{repeated!r} is repeated in this list", path=path)
        self._add_annotations(data, facts.st_mtime_ns)
        return names

    def _columns_of(
        self, annotation: _Annotation, labels: Mapping[str, int]
    ) -> dict[str, list[Any]]:
        """Return the columns of an image."""
        height, width, objects = annotation[1:]
        for each in objects:
            xmin, xmax, ymin, ymax = each.box
            is_inside = 0 <= xmin < xmax <= width and 0 <= ymin < ymax <= height
            self._outside += not is_inside
        return {
            XMIN: [each.box[0] / width for each in objects],
            XMAX: [each.box[1] / width for each in objects],
            YMIN: [each.box[2] / height for each in objects],
            YMAX: [each.box[3] / height for each in objects],
            LABEL: [labels[each.name] for each in objects],
            TEXT: [each.name for each in objects],
            _DIFFICULT: [each.difficult for each in objects],
            _TRUNCATED: [each.truncated for each in objects],
            _VIEW: [each.view for each in objects],
        }

    def _make_notes(self, num_images: int, labels: Mapping[str, int]) -> list[str]:
        notes = []
        if list(labels) != CLASSES and labels:
            shown = ", ".join(f"{label} {name}" for name, label in list(labels.items())[:20])
            more = ", ..." if len(labels) > 20 else ""
            notes.append(f"classes, numbered from 1 in sorted order: {shown}{more}")
        if self._outside:
            notes.append(
                "boxes without area or beyond the edges of their image, written unchanged: "
                f"{self._outside:,}"
            )
        if num_images > len(self._keys):
            notes.append(
                "images left out, as they have no XML file or are not in the list: "
                f"{num_images - len(self._keys):,}"
            )
        return notes


def _labels_of(names: Sequence[str]) -> dict[str, int]:
    """Return the class numbers for the class names in the files."""
    classes = CLASSES if {*names}.issubset(CLASSES) else sorted(names)
    return {name: label for label, name in enumerate(classes, 1)}


def parse_xml(data: bytes) -> Element:
    """Return the root of XML without entity declarations.

    Raises:
        BadAnnotation: It is not well-formed, or has a DOCTYPE.
    """

    def refuse(*_: Any) -> None:
        raise BadAnnotation("it has a DOCTYPE, which annotations do not need: remove it")

    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise BadAnnotation(f"not XML: {error}") from None
    return builder.close()


def is_image_set(path: str) -> bool:
    """Return whether a path is that of a list in ``ImageSets``."""
    return path.endswith(".txt") and bool(_root_of_list(path))


def is_voc_folder(folder: str) -> bool:
    """Return whether a folder is in Pascal VOC's format."""
    try:
        entries = sorted(inputs_for(folder).listing(folder), key=lambda entry: entry.name)
        folders = {entry.name for entry in entries if entry.is_dir()}
        if {"Annotations", "JPEGImages"} <= folders:
            return bool(_xml_files(os.path.join(folder, "Annotations")))
        images = {os.path.splitext(e.name)[0] for e in entries if is_image_name(e.name)}
        for entry in entries:
            stem, ending = os.path.splitext(entry.name)
            if ending.lower() == ".xml" and stem in images:
                with inputs_for(folder).open(entry.path) as file:
                    head = file.read(_HEAD_BYTES)
                return b"<annotation" in head and (b"<size" in head or b"<bndbox" in head)
    except (OSError, SourceError):
        pass  # opening the folder raises the reason
    return False


def _root_of_list(path: str) -> str | None:
    """Return the root folder of a list in ``ImageSets/Main``; None for another path."""
    above, name = split(path)
    above, sets = split(above)
    if not name.endswith(".txt") or split(above)[1] != "ImageSets" or not sets:
        return None
    return split(above)[0] or "."


def _xml_files(folder: str) -> dict[str, Entry]:
    """Return the XML files of a folder, sorted, by name without ending."""
    try:
        entries = inputs_for(folder).listing(folder)
    except OSError as error:
        raise SourceError(f"can not be listed: {error.strerror}", path=folder) from error
    stems = {}
    for entry in sorted(entries, key=lambda entry: entry.name):
        stem, ending = os.path.splitext(entry.name)
        if ending.lower() == ".xml" and not stem.startswith(".") and entry.is_file():
            stems[stem] = entry
    return stems


def _annotation(root: Element) -> _Annotation:
    if root.tag != "annotation":
        raise BadAnnotation(f"its root is <{root.tag:.50}>, not <annotation>")
    height, width = checked_size(
        *(_value(root, f"size/{side}", _whole, "the image") for side in ("height", "width"))
    )
    objects = []
    for place, element in enumerate(root.findall("object")):
        what = f"object {place}"
        name = (element.findtext("name") or "").strip()
        if not name:
            raise BadAnnotation(f"{what} has no name")
        for tag in ("name", "bndbox"):
            if len(element.findall(tag)) > 1:
                raise BadAnnotation(f"{what} has more than one <{tag}>")
        box = [
            _value(element, f"bndbox/{side}", float, what)
            for side in ("xmin", "xmax", "ymin", "ymax")
        ]
        difficult = _value(element, "difficult", _flag, what, 0)
        truncated = _value(element, "truncated", _flag, what, 0)
        view = (element.findtext("pose") or "").strip() or _NO_VIEW
        box = checked_numbers(box, f"bndbox of {what}")
        objects.append(_Object(name, box, difficult, truncated, view))
    return _Annotation((root.findtext("filename") or "").strip(), height, width, objects)


def _value(
    element: Element, path: str, convert: Callable[[str], Any], what: str, default: Any = None
) -> Any:
    text = element.findtext(path)
    if text is None or not text.strip():
        if default is not None:
            return default
        raise BadAnnotation(f"{what} has no <{path.replace('/', '><')}>")
    try:
        return convert(text)
    except (ValueError, OverflowError):
        raise BadAnnotation(f"<{path.replace('/', '><')}> of {what} is {text!r:.50}") from None


def _whole(text: str) -> int:
    number = float(text)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _flag(text: str) -> int:
    number = _whole(text)
    if number not in (0, 1):
        raise ValueError
    return number
