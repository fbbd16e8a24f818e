"""Images with labelled objects: the common part of ``coco`` and ``voc``.

Names and types are those of the TensorFlow Object Detection API. All annotations are read and
checked when the source is opened, and stored as they will be written: numbers in arrays, words as
word numbers. So a worker gets a few bytes per object.

An error in an annotation is stored and raised when its image is loaded, so ``--on-error skip``
leaves out only this image.
"""

from __future__ import annotations

import os
import posixpath
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import SourceError
from shardwriter.formats import EXTENSIONS, UNSET, read_header
from shardwriter.schema import FeatureType
from shardwriter.sources.input_files import ListedFile, read_file
from shardwriter.storage import Entry, absolute, inputs_for

OBJECT: Final = "image/object/"
"""The prefix of the names of all object annotations."""

AREA: Final = "image/object/area"
RLE_COUNTS: Final = "image/object/segmentation/rle/counts"
RLE_NUM_COUNTS: Final = "image/object/segmentation/rle/num_counts"

Size = tuple[int, int]
"""Width and height."""


def scaled_annotations(features: Mapping[str, Any], old: Size, new: Size) -> dict[str, Any]:
    """Return the annotations of an image that change when it is resized.

    Boxes, polygons and keypoints are relative to the image size, so they do not change. Areas are
    in pixels, and run-length masks are for one image size.

    Args:
        features: All features of the image.
        old: Its width and height before.
        new: Its width and height now.

    Raises:
        SourceError: Run lengths do not match an image of the old size.
    """
    changed: dict[str, Any] = {}
    area = features.get(AREA)
    if area is not None and area is not UNSET:
        factor = new[0] * new[1] / (old[0] * old[1])
        changed[AREA] = (np.asarray(area, np.float64) * factor).astype(np.float32)
    counts, lengths = features.get(RLE_COUNTS), features.get(RLE_NUM_COUNTS)
    if any(value is None or value is UNSET for value in (counts, lengths)):
        return changed
    ends = np.cumsum(np.asarray(lengths, np.int64))
    runs = np.split(np.asarray(counts, np.int64), ends)
    if len(runs.pop()):
        raise SourceError("there are more run lengths than the objects have")
    scaled = [_scaled_runs(mask, old, new) if len(mask) else mask for mask in runs]
    changed[RLE_COUNTS] = np.concatenate([np.zeros(0, np.int64), *scaled])
    changed[RLE_NUM_COUNTS] = np.array([len(mask) for mask in scaled], np.int64)
    return changed


def _scaled_runs(runs: NDArray[np.int64], old: Size, new: Size) -> NDArray[np.int64]:
    """Resize a mask by nearest neighbour; runs are column by column, first outside, then inside."""
    if runs.min() < 0 or runs.sum() != old[0] * old[1]:
        raise SourceError(f"run lengths do not match an image of {old[0]} x {old[1]} pixels")
    inside = np.arange(len(runs)) % 2 == 1
    columns = np.repeat(inside, runs).reshape(old)
    pixels = columns[np.ix_(_nearest(old[0], new[0]), _nearest(old[1], new[1]))].ravel()
    begins = np.flatnonzero(np.diff(pixels)) + 1
    edges = np.concatenate([[0], begins, [pixels.size]])
    found = np.diff(edges)
    return np.concatenate([[0], found]) if pixels[0] else found


def _nearest(old: int, new: int) -> NDArray[np.int64]:
    """Return the old pixel at the centre of each new pixel of a side."""
    return (2 * np.arange(new, dtype=np.int64) + 1) * old // (2 * new)


XMIN: Final = "image/object/bbox/xmin"
XMAX: Final = "image/object/bbox/xmax"
YMIN: Final = "image/object/bbox/ymin"
YMAX: Final = "image/object/bbox/ymax"
LABEL: Final = "image/object/class/label"
TEXT: Final = "image/object/class/text"

_INT: Final = FeatureType("int64", "int64", ())
_STRING: Final = FeatureType("bytes", "string", ())
_IMAGE_PLAN: Final = {
    "image/encoded": FeatureType("bytes", "bytes", (), "image"),
    "image/filename": _STRING,
    "image/format": _STRING,
    "image/height": _INT,
    "image/key/sha256": _STRING,
    "image/source_id": _STRING,
    "image/width": _INT,
}
_FLOAT32_MAX: Final = 3.4028234e38
_NUMBERS: Final = frozenset([int, float])  # not bool
_MAX_SIZE: Final = 1 << 31  # pixels of a side


class BadAnnotation(Exception):
    """The error in the annotations of an image."""


class DetectionItem(NamedTuple):
    """An annotated image when its folder was listed."""

    key: str
    number: int
    size_bytes: int  # -1 if the file is missing
    mtime_ns: int


class Column:
    """Lists of numbers or words, one list per image.

    Args:
        typecode: For numbers the typecode of ``array``; ``"s"`` for words, which repeat.
    """

    def __init__(self, typecode: str) -> None:
        self._values: array[Any] = array("i" if typecode == "s" else typecode)
        self._ends = array("q", [0])
        self._words: dict[str, int] | None = {} if typecode == "s" else None
        self._spelled: list[str] = []
        dtype = np.float32 if typecode == "f" else np.int64
        self._dtype = np.dtype(dtype)
        if typecode == "s":
            self.type = FeatureType("bytes", "string", (None,))
        elif typecode == "f":
            self.type = FeatureType("float", "float32", (None,))
        else:
            self.type = FeatureType("int64", "int64", (None,))

    def append(self, values: Iterable[Any]) -> None:
        """Add the list of the next image."""
        if self._words is None:
            self._values.extend(values)
        else:
            for word in values:
                number = self._words.setdefault(word, len(self._spelled))
                if number == len(self._spelled):
                    self._spelled.append(word)
                self._values.append(number)
        self._ends.append(len(self._values))

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Replace each number by another."""
        self._values = array(self._values.typecode, [numbers[number] for number in self._values])

    def __getitem__(self, index: int) -> Any:
        values = self._values[self._ends[index] : self._ends[index + 1]]
        if self._words is None:
            return np.array(values, self._dtype)
        return [self._spelled[number] for number in values]


class DetectionSource:
    """Images with annotations; subclasses read the annotations.

    Args:
        annotations: The file or folder of annotations, as the user gave it.
        folder: The folder of the images.
        typecodes: The columns of annotations, by feature.
    """

    kind: str
    random_access = True
    sendable = True
    resumable = True
    vocabularies: Mapping[str, list[str]] = {}  # class numbers do not begin with 0

    def __init__(self, annotations: str, folder: str, typecodes: Mapping[str, str]) -> None:
        self.notes: Sequence[str] = ()
        self.label: str | None = TEXT if TEXT in typecodes else None
        self._annotations = annotations
        self._root = folder
        self._folder = absolute(folder)  # a map may change the current folder
        self._inputs = inputs_for(folder)
        self._keys: list[str] = []
        self._source_ids: list[str] = []
        self._facts = array("q")  # of each image: size in bytes, time, height and width
        self._columns = {name: Column(typecode) for name, typecode in typecodes.items()}
        self._bad: dict[int, str] = {}
        self.num_items: int | None = 0
        self._annotations_digest = ""
        self._annotations_times = ""
        self.plan: Mapping[str, FeatureType] = {
            **_IMAGE_PLAN,
            **{name: column.type for name, column in self._columns.items()},
        }

    def items(self) -> Iterator[DetectionItem]:
        """Yield every image, in the order of the annotations."""
        return map(self.item, range(len(self._keys)))

    def item(self, item_index: int) -> DetectionItem:
        """Return one image."""
        size_bytes, mtime_ns = self._facts[4 * item_index : 4 * item_index + 2]
        return DetectionItem(self._keys[item_index], item_index, size_bytes, mtime_ns)

    def key(self, item: DetectionItem) -> str:
        """Return the image's path in the folder of images."""
        return item.key

    def size_bytes(self, item: DetectionItem) -> int:
        """Return the size of the image file."""
        return max(item.size_bytes, 0)

    def load(self, item: DetectionItem) -> dict[str, Any]:
        """Return the features of an image and its annotations.

        Raises:
            SourceError: Its annotations are invalid; or the file cannot be read, is not an image,
                or has another size than in the annotations.
            SourceChanged: It has changed since it was listed.
        """
        bad = self._bad.get(item.number)
        if bad is not None:
            raise SourceError(
                bad, path=self._annotations, item=item.key, hint="correct it, or skip the image"
            )
        path = os.path.join(self._root, item.key)
        data = self._read(item, path)
        try:
            header = read_header(data)
        except ValueError as error:
            raise SourceError(
                str(error), path=path, hint="repair it, or remove it from the annotations"
            ) from None
        height, width = self._facts[4 * item.number + 2 : 4 * item.number + 4]
        if (header.height, header.width) != (height, width):
            raise SourceError(
                f"the image has {header.width} x {header.height} pixels, but its annotations are "
                f"for {width} x {height}",
                path=path,
                hint="some programs rotate images by an EXIF tag, which does not rotate the stored "
                "pixels: rotate these, or annotate them as stored",
            )
        features: dict[str, Any] = {
            "image/encoded": data,
            "image/filename": item.key,
            "image/format": header.format,
            "image/height": height,
            "image/key/sha256": sha256(data).hexdigest(),
            "image/source_id": self._source_ids[item.number],
            "image/width": width,
        }
        features.update((name, column[item.number]) for name, column in self._columns.items())
        return features

    def digest(self) -> dict[str, Any]:
        """Return a hash of the annotations, and of the images' names and sizes."""
        return self._hash(self._annotations_digest, with_times=False)

    def fingerprint(self) -> dict[str, Any]:
        """Return the digest with the modification times of all files."""
        return self._hash(self._annotations_digest + self._annotations_times, with_times=True)

    def _hash(self, before: str, *, with_times: bool) -> dict[str, Any]:
        digest = sha256(before.encode())
        for item in self.items():
            time = f"\0{item.mtime_ns}" if with_times else ""
            digest.update(f"{item.key}\0{item.size_bytes}{time}\n".encode())
        return {"files": "sha256:" + digest.hexdigest(), "num_items": self.num_items}

    def _read(self, item: DetectionItem, path: str) -> bytes:
        if item.size_bytes < 0:
            raise SourceError(
                f"the image does not exist, but {self._annotations} has annotations for it",
                path=path,
                hint="add the image, or skip it",
            )
        listed = ListedFile(item.key, item.size_bytes, item.mtime_ns)
        return read_file(self._inputs, self._folder, listed, self._root)

    def _add(
        self,
        name: str,
        source_id: str,
        entry: Entry | None,
        annotated: tuple[int, int, Mapping[str, Iterable[Any]]] | BadAnnotation,
    ) -> None:
        """Add an image: its file, and its height, width and columns, or the error in them."""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SourceError(
                "the file's name is not UTF-8",
                path=repr(os.path.join(self._root, name)),
                hint="rename it, and its annotations",
            ) from None
        height, width = 0, 0
        columns: Mapping[str, Iterable[Any]] = {}
        if isinstance(annotated, BadAnnotation):
            self._bad[len(self._keys)] = str(annotated)
        else:
            height, width, columns = annotated
        found = None if entry is None else entry.stat()
        size_bytes, mtime_ns = (-1, 0) if found is None else (found.st_size, found.st_mtime_ns)
        self._keys.append(name)
        self._source_ids.append(source_id)
        self._facts.extend((size_bytes, mtime_ns, height, width))
        for feature, column in self._columns.items():
            column.append(columns.get(feature, ()))
        self.num_items = len(self._keys)

    def _add_annotations(self, data: bytes, mtime_ns: int) -> None:
        """Add a file of annotations to the digests."""
        digest = sha256(data).hexdigest()
        self._annotations_digest = sha256((self._annotations_digest + digest).encode()).hexdigest()
        times = f"{self._annotations_times}{mtime_ns}\n"
        self._annotations_times = sha256(times.encode()).hexdigest()


class ImageFiles:
    """The files in a folder and below it; each folder is listed once, on demand."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._listed: dict[str, dict[str, Entry]] = {}

    def of(self, below: str = "") -> dict[str, Entry]:
        """Return the files of a subfolder, by name; none if it does not exist."""
        if below not in self._listed:
            path = os.path.join(self._folder, below) if below else self._folder
            try:
                entries = inputs_for(path).listing(path)
                self._listed[below] = {entry.name: entry for entry in entries if entry.is_file()}
            except OSError:
                self._listed[below] = {}
        return self._listed[below]

    def find(self, name: str) -> Entry | None:
        """Return the file of a relative path; None if there is none."""
        below, last = posixpath.split(name)
        return self.of(below).get(last)


def is_image_name(name: str) -> bool:
    """Return whether a file name is that of an image which is not hidden."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS and not name.startswith(".")


def checked_size(height: Any, width: Any) -> tuple[int, int]:
    """Return height and width after checking them.

    Raises:
        BadAnnotation: They are missing or invalid.
    """
    if not all(type(side) is int and 0 < side < _MAX_SIZE for side in (height, width)):
        raise BadAnnotation(
            f"the annotations have no valid size: width {width!r}, height {height!r}"
        )
    return height, width


def checked_numbers(values: Any, what: str, count: int | None = None) -> list[float]:
    """Return finite numbers after checking them.

    Raises:
        BadAnnotation: They are not numbers, not finite, or not ``count`` many.
    """
    is_list = isinstance(values, list) and count in (None, len(values))
    if not is_list or not _NUMBERS.issuperset(map(type, values)):
        raise BadAnnotation(f"{what} is not {'' if count is None else f'{count} '}numbers")
    try:
        is_finite = sum(map(abs, values)) <= _FLOAT32_MAX  # NaN and infinity spread to the sum
    except OverflowError:  # a float and an integer of hundreds of digits
        is_finite = False
    if not is_finite:
        raise BadAnnotation(f"{what} is not finite")
    return list(values)


def checked_text(value: Any, what: str) -> str:
    """Return text after checking that UTF-8 can encode it.

    Raises:
        BadAnnotation: It is not such text.
    """
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise BadAnnotation(f"{what} is not text: {value!r:.100}") from None
    return str(value)
