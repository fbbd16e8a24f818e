"""``image-folder``: one folder a class, image files below it.

Bytes are passed through untouched; format and size come from the file's header, never its name.
Classes are the folders' names in sorted order, labels count them from 0. A folder with images and
no class folders gives the same features without the class. For TFDS the features are those that its
readers (timm's, say) ask for: ``image``, ``label`` and ``filename``.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from shardwriter.errors import SourceChanged, SourceError
from shardwriter.feature_types import FeatureType
from shardwriter.images import EXTENSIONS, read_header
from shardwriter.storage.inputs import Entry, InputChanged, Tree, absolute, inputs_for

KIND = "image-folder"
LABEL = "image/class/label"

_LOOK_FILES = 1000  # of a store that lists all files at once, to find out whether there are images

_INT = FeatureType("int64", "int64", ())
_STRING = FeatureType("bytes", "string", ())
_IMAGE_PLAN = {
    "image/encoded": FeatureType("bytes", "bytes", (), "image"),
    "image/filename": _STRING,
    "image/format": _STRING,
    "image/height": _INT,
    "image/width": _INT,
}
_CLASS_PLAN = {LABEL: _INT, "image/class/text": _STRING}
_TFDS_NAMES = {"image/encoded": "image", "image/filename": "filename", LABEL: "label"}


class ImageItem(NamedTuple):
    """One image file as it was when the folder was listed."""

    key: str
    label: int  # -1: no class
    size_bytes: int
    mtime_ns: int


class _ImageItems:
    """Images in columns: a fifth of the memory of a million tuples, and quick to send."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._facts = array("q")  # label, size and time of each

    def extend(self, items: Iterable[ImageItem]) -> None:
        for key, *facts in items:
            self._keys.append(key)
            self._facts.extend(facts)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> ImageItem:
        # A negative index would have two meanings here.
        return ImageItem(self._keys[index], *self._facts[3 * index : 3 * index + 3])

    def __iter__(self) -> Iterator[ImageItem]:
        return map(self.__getitem__, range(len(self._keys)))


class ImageFolder:
    """Images in class folders.

    Args:
        root: The folder.

    Raises:
        SourceError: There are no images, or images lie both in class folders and beside them.
    """

    kind = KIND
    random_access = True
    travels = True
    stable = True

    def __init__(self, root: str) -> None:
        self._root = root
        self._tfds = False
        self._folder = absolute(root)  # a map may change the current folder
        self._inputs = inputs_for(root)
        skipped: Counter[str] = Counter()
        tree = _tree(root)
        folders, loose = _list_root(tree, root, skipped)
        self._items = _ImageItems()
        self.classes: list[str] = []
        empty: list[str] = []
        for folder in folders:
            before = len(self._items)
            self._items.extend(_walk(tree, root, folder, len(self.classes), skipped))
            if len(self._items) > before:
                self.classes.append(folder)
            else:
                empty.append(folder)
        if len(self._items) and loose:
            raise SourceError(
                f"{len(loose)} image(s) lie beside the class folders, as {loose[0].key!r}",
                path=root,
                hint="move them into a class folder, or out of the way",
            )
        if loose:
            self._items.extend(loose)
        if not len(self._items):
            raise SourceError(
                "no image files are in this folder",
                path=root,
                hint=f"images are files that end in {', '.join(sorted(EXTENSIONS))}, "
                "one folder for each class",
            )
        self.num_items: int | None = len(self._items)
        self.plan: Mapping[str, FeatureType] = dict(_IMAGE_PLAN)
        self.vocabularies: Mapping[str, list[str]] = {}
        self.label: str | None = None
        if self.classes:
            self.plan = {**_IMAGE_PLAN, **_CLASS_PLAN}
            self.vocabularies = {LABEL: self.classes}
            self.label = LABEL
        notes = []
        if skipped:
            endings = ", ".join(f"{count:,} {ending}" for ending, count in skipped.most_common(5))
            notes.append(f"files that are no images were left out: {endings}")
        if empty and self.classes:
            more = ", ..." if len(empty) > 5 else ""
            names = ", ".join(map(_printable, empty[:5]))
            notes.append(f"folders without images are no classes: {names}{more}")
        self.notes: Sequence[str] = notes

    def use_tfds_names(self) -> None:
        """Give features the names that TFDS has for them; doing it again changes nothing."""
        if self._tfds:
            return
        self._tfds = True
        self.plan = _tfds_named(self.plan)
        self.vocabularies = _tfds_named(self.vocabularies)
        self.label = None if self.label is None else _TFDS_NAMES[LABEL]

    def items(self) -> Iterator[ImageItem]:
        """Yield every image: classes in sorted order, and the files of a class in sorted order."""
        return iter(self._items)

    def item(self, item_index: int) -> ImageItem:
        """Return one image."""
        return self._items[item_index]

    def key(self, item: ImageItem) -> str:
        """Return the path below the root, with ``/``."""
        return item.key

    def size_bytes(self, item: ImageItem) -> int:
        """Return the size of the file."""
        return item.size_bytes

    def load(self, item: ImageItem) -> dict[str, Any]:
        """Read one image.

        Raises:
            SourceError: It can not be read, or is no image.
            SourceChanged: It has changed since it was listed.
        """
        path = os.path.join(self._root, item.key)
        try:
            found, data = self._inputs.read(os.path.join(self._folder, item.key))
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError | InputChanged)
            kind = SourceChanged if is_gone else SourceError
            raise kind(f"can not be read: {error.strerror}", path=path) from error
        listed = (item.size_bytes, item.mtime_ns)
        if (found.st_size, found.st_mtime_ns) != listed or len(data) != item.size_bytes:
            raise SourceChanged(
                "the file has changed since the folder was listed",
                path=path,
                hint="write the dataset again when nothing writes to the source",
            )
        try:
            header = read_header(data)
        except ValueError as error:
            raise SourceError(
                str(error), path=path, hint="mend it, or move it out of the folder"
            ) from None
        features: dict[str, Any] = {
            "image/encoded": data,
            "image/filename": item.key,
            "image/format": header.format,
            "image/height": header.height,
            "image/width": header.width,
        }
        if item.label >= 0:
            features[LABEL] = item.label
            features["image/class/text"] = self.classes[item.label]
        return _tfds_named(features) if self._tfds else features

    def digest(self) -> dict[str, Any]:
        """Hash the files' relative paths and sizes."""
        return self._hash(lambda item: f"{item.key}\0{item.size_bytes}\n")

    def fingerprint(self) -> dict[str, Any]:
        """Hash paths, sizes and modification times."""
        return self._hash(lambda item: f"{item.key}\0{item.size_bytes}\0{item.mtime_ns}\n")

    def _hash(self, line: Any) -> dict[str, Any]:
        digest = sha256()
        for item in self._items:
            digest.update(line(item).encode("utf-8", "surrogateescape"))
        return {"files": "sha256:" + digest.hexdigest(), "num_items": self.num_items}


def _tfds_named(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of an image, or their types, as TFDS calls them.

    Format and size stand in the image, and the class's name in the metadata: they have no place.
    """
    return {_TFDS_NAMES[name]: value for name, value in features.items() if name in _TFDS_NAMES}


def has_images(root: str) -> bool:
    """Tell whether an image lies in the folder or below it, be it one that can not be read."""
    try:
        tree = _tree(root, _LOOK_FILES)
        return _holds_images(tree, root) or (not tree.is_whole and _holds_images(_tree(root), root))
    except SourceError:
        return True  # the reason is told when the folder is opened


def _holds_images(tree: Tree, root: str) -> bool:
    folders, loose = _list_root(tree, root, Counter())
    return bool(loose) or any(
        next(_walk(tree, root, folder, 0, Counter()), None) is not None for folder in folders
    )


def _tree(root: str, limit: int | None = None) -> Tree:
    try:
        return inputs_for(root).tree(root, limit)
    except OSError as error:
        raise _unlisted(root, error) from error


def _unlisted(directory: str, error: OSError) -> SourceError:
    return SourceError(f"can not be listed: {error.strerror}", path=directory)


def _list_root(tree: Tree, root: str, skipped: Counter[str]) -> tuple[list[str], list[ImageItem]]:
    folders: list[str] = []
    loose: list[ImageItem] = []
    for entry in _scan(tree, root):
        if entry.is_dir():
            folders.append(entry.name)
        elif _is_image(entry.name, skipped):
            loose.append(_item(entry, entry.name, -1))
    return folders, loose


def _walk(
    tree: Tree,
    root: str,
    folder: str,
    label: int,
    skipped: Counter[str],
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[ImageItem]:
    """Yield the images at and below a folder, in order of their names at every level."""
    path = os.path.join(root, folder)
    entries = _scan(tree, path)
    identity = tree.identity(path)
    inside = above if identity is None else above | {identity}
    if identity in above:
        raise SourceError(
            "this link leads back to a folder that it lies in", path=path, hint="remove the link"
        )
    for entry in entries:
        key = f"{folder}/{entry.name}"
        if entry.is_dir():
            yield from _walk(tree, root, key, label, skipped, inside)
        elif _is_image(entry.name, skipped):
            yield _item(entry, key, label)


def _scan(tree: Tree, directory: str) -> list[Entry]:
    try:
        visible = [entry for entry in tree.scan(directory) if not entry.name.startswith(".")]
    except OSError as error:
        raise _unlisted(directory, error) from error
    return sorted(visible, key=lambda entry: entry.name)


def _is_image(name: str, skipped: Counter[str]) -> bool:
    ending = os.path.splitext(name)[1].lower()
    if ending in EXTENSIONS:
        return True
    skipped[_printable(ending) or "without ending"] += 1
    return False


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _item(entry: Entry, key: str, label: int) -> ImageItem:
    try:
        key.encode("utf-8")
        found = entry.stat()
    except UnicodeEncodeError:
        raise SourceError(
            "the file's name is not UTF-8", path=repr(entry.path), hint="rename the file"
        ) from None
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=entry.path) from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError("this is no file, in spite of its name", path=entry.path)
    return ImageItem(key, label, found.st_size, found.st_mtime_ns)
