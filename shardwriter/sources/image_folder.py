"""``image-folder``: images in one folder per class.

The bytes are written unchanged; format and size come from the file's header, not its name. Classes
are the folder names in sorted order, with labels from 0. A folder with images and without class
folders gives the same features without the class. For TFDS the features have the names that its
readers (such as timm) expect: ``image``, ``label`` and ``filename``.
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

_INT = FeatureType("int64", "int64", ())
_STRING = FeatureType("bytes", "string", ())
IMAGE_PLAN: Final = {
    "image/encoded": FeatureType("bytes", "bytes", (), "image"),
    "image/filename": _STRING,
    "image/format": _STRING,
    "image/height": _INT,
    "image/width": _INT,
}
"""The types of the features from :func:`image_features`."""


def image_features(key: str, data: bytes, header: ImageHeader) -> dict[str, Any]:
    """Return the features of an image: its bytes, and the facts of its header."""
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
    """Return the bytes and header of an image file.

    Raises:
        SourceError: It cannot be read, or is not an image.
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
_PNG_COLORS: Final = 25  # the offset of a PNG's color type
_GRAY: Final = b"\0"
_PALETTE: Final = b"\3"
_TFDS_NAMES: Final = {"image/encoded": "image", "image/filename": "filename", LABEL: "label"}


class ImageFolder(ClassFolders):
    """Images in class folders.

    Args:
        root: The folder.
        skip_errors: As of :class:`ClassFolders`.

    Raises:
        SourceError: There are no images, or there are some in class folders and beside them.
    """

    kind = KIND

    def __init__(self, root: str, *, skip_errors: bool = False) -> None:
        super().__init__(root, _FILES, IMAGE_PLAN, "image", skip_errors=skip_errors)
        self._tfds = False

    def check_no_masks(self) -> None:
        """Raise for two folders that may be two classes, or images and their masks.

        They may be masks if each file of a folder has a file of the same name in the other folder,
        and all files of one folder are PNG; if all files of both are, if only the first of one
        folder is a PNG in gray or with a palette.

        Raises:
            SourceError: The folders are ambiguous; the hint has a command for either case.
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
            masks = [number for number in masks if self._is_gray_or_palette(keys[number][0])]
        if len(masks) != 1:
            return
        mask, image = self.classes[masks[0]], self.classes[1 - masks[0]]
        spec = shlex.quote(os.path.join(self._root, f"{{{image},{mask}}}"))
        raise SourceError(
            f"the folders {self.classes[0]!r} and {self.classes[1]!r} have files of the same "
            "names: they may be two classes, or images and their masks",
            path=self._root,
            hint=f"choose one: --format image-folder for classes; --format image-mask with SOURCE "
            f"{spec} for images with masks in {mask!r}",
        )

    def _is_gray_or_palette(self, key: str) -> bool:
        try:
            _, data = self._inputs.read(os.path.join(self._folder, key))
        except OSError:
            return False  # raised when the item is loaded
        return data[_PNG_COLORS : _PNG_COLORS + 1] in (_GRAY, _PALETTE)

    def use_tfds_names(self) -> None:
        """Rename the features as in TFDS; renaming again changes nothing."""
        if self._tfds:
            return
        self._tfds = True
        self.plan = _with_tfds_names(self.plan)
        self.vocabularies = _with_tfds_names(self.vocabularies)
        self.label = None if self.label is None else _TFDS_NAMES[LABEL]

    def features_of(self, item: FileItem, data: bytes) -> dict[str, Any]:
        """Return the features of an image.

        Raises:
            ValueError: It is not an image.
        """
        return image_features(item.key, data, read_header(data))

    def load(self, item: FileItem) -> dict[str, Any]:
        """Return the features of an image; see :meth:`ClassFolders.load`."""
        features = super().load(item)
        return _with_tfds_names(features) if self._tfds else features


def _with_tfds_names(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return features, or their types, under their names in TFDS.

    Format and size are left out, as they are in the image; class names are in the metadata.
    """
    return {_TFDS_NAMES[name]: value for name, value in features.items() if name in _TFDS_NAMES}


def has_images(root: str) -> bool:
    """Return whether there is an image in the folder or below it, readable or not."""
    return has_files(root, EXTENSIONS)
