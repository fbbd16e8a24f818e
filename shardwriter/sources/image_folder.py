"""``image-folder``: one folder a class, image files below it.

Bytes are passed through untouched; format and size come from the file's header, never its name.
Classes are the folders' names in sorted order, labels count them from 0. A folder with images and
no class folders gives the same features without the class. For TFDS the features are those that its
readers (timm's, say) ask for: ``image``, ``label`` and ``filename``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any, Final

from shardwriter.errors import SourceError
from shardwriter.formats import EXTENSIONS, ImageHeader, read_header
from shardwriter.schema import FeatureType
from shardwriter.sources.class_folders import ClassFolders, FileItem, FileKind, has_files
from shardwriter.sources.input_files import ListedFile, damaged_file, read_file
from shardwriter.storage import Inputs

# What an image is in a record: its bytes as they are, and what its header says.

_INT = FeatureType("int64", "int64", ())
_STRING = FeatureType("bytes", "string", ())
IMAGE_PLAN: Final = {
    "image/encoded": FeatureType("bytes", "bytes", (), "image"),
    "image/filename": _STRING,
    "image/format": _STRING,
    "image/height": _INT,
    "image/width": _INT,
}
"""The types of what :func:`image_features` returns."""


def image_features(key: str, data: bytes, header: ImageHeader) -> dict[str, Any]:
    """Return the features of an image."""
    return {
        "image/encoded": data,
        "image/filename": key,
        "image/format": header.format,
        "image/height": header.height,
        "image/width": header.width,
    }


def read_image(
    inputs: Inputs, folder: str, file: ListedFile, shown: str
) -> tuple[bytes, ImageHeader]:
    """Read an image; see :func:`shardwriter.sources.input_files.read_file`.

    Raises:
        SourceError: It can not be read, or is no image.
        SourceChanged: It has changed since it was listed.
    """
    data = read_file(inputs, folder, file, shown)
    try:
        return data, read_header(data)
    except ValueError as error:
        raise damaged_file(error, os.path.join(shown, file.key)) from None


KIND: Final = "image-folder"
LABEL: Final = "image/class/label"

_FILES: Final = FileKind("image", "images", "image files", EXTENSIONS)
_PNG_COLORS: Final = 25  # where a PNG says what its pixels are
_GRAY: Final = b"\0"
_PALETTE: Final = b"\3"
_TFDS_NAMES: Final = {"image/encoded": "image", "image/filename": "filename", LABEL: "label"}


class ImageFolder(ClassFolders):
    """Images in class folders.

    Args:
        root: The folder.
        skip_errors: As of :class:`ClassFolders`.

    Raises:
        SourceError: There are no images, or images lie both in class folders and beside them.
    """

    kind = KIND

    def __init__(self, root: str, *, skip_errors: bool = False) -> None:
        super().__init__(root, _FILES, IMAGE_PLAN, "image", skip_errors=skip_errors)
        self._tfds = False

    def check_no_masks(self) -> None:
        """Refuse two folders that may be two classes, or images and their masks.

        They may be masks where a file of one folder has a file of its name in the other, and those
        of one folder are all PNG; where those of both are, if only one begins with a PNG without
        colors, or with a palette.

        Raises:
            SourceError: It can not be told; the hint has the command for either.
        """
        if len(self.classes) != 2:
            return
        keys: tuple[list[str], list[str]] = [], []
        for item in self.items():
            keys[item.label].append(item.key)
        stems = [[os.path.splitext(key.partition("/")[2])[0] for key in side] for side in keys]
        if stems[0] != stems[1]:
            return
        masks = [n for n, side in enumerate(keys) if all(k.lower().endswith(".png") for k in side)]
        if len(masks) == 2:
            masks = [number for number in masks if self._is_without_colors(keys[number][0])]
        if len(masks) != 1:
            return
        mask, image = self.classes[masks[0]], self.classes[1 - masks[0]]
        spec = shlex.quote(os.path.join(self._root, f"{{{image},{mask}}}"))
        raise SourceError(
            f"the folders {self.classes[0]!r} and {self.classes[1]!r} hold files of the same "
            "names: they may be two classes, or images and their masks",
            path=self._root,
            hint=f"say which: --format image-folder for classes; --format image-mask with SOURCE "
            f"{spec} for images with masks in {mask!r}",
        )

    def _is_without_colors(self, key: str) -> bool:
        try:
            _, data = self._inputs.read(os.path.join(self._folder, key))
        except OSError:
            return False  # which is said when the item is loaded
        return data[_PNG_COLORS : _PNG_COLORS + 1] in (_GRAY, _PALETTE)

    def use_tfds_names(self) -> None:
        """Give features the names that TFDS has for them; doing it again changes nothing."""
        if self._tfds:
            return
        self._tfds = True
        self.plan = _tfds_named(self.plan)
        self.vocabularies = _tfds_named(self.vocabularies)
        self.label = None if self.label is None else _TFDS_NAMES[LABEL]

    def features_of(self, item: FileItem, data: bytes) -> dict[str, Any]:
        """Return an image's bytes, and what its header says.

        Raises:
            ValueError: It is no image.
        """
        return image_features(item.key, data, read_header(data))

    def load(self, item: FileItem) -> dict[str, Any]:
        """Read one image; see :meth:`ClassFolders.load`."""
        features = super().load(item)
        return _tfds_named(features) if self._tfds else features


def _tfds_named(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of an image, or their types, as TFDS calls them.

    Format and size stand in the image, and the class's name in the metadata: they have no place.
    """
    return {_TFDS_NAMES[name]: value for name, value in features.items() if name in _TFDS_NAMES}


def has_images(root: str) -> bool:
    """Tell whether an image lies in the folder or below it, be it one that can not be read."""
    return has_files(root, EXTENSIONS)
