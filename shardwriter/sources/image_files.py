"""What an image is in a record: its bytes as they are, and what its header says."""

from __future__ import annotations

import os
from typing import Any, Final

from shardwriter.formats.images import ImageHeader, read_header
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.folder_files import ListedFile, damaged_file, read_file
from shardwriter.storage.inputs import Inputs

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
    """Read an image; see :func:`shardwriter.sources.folder_files.read_file`.

    Raises:
        SourceError: It can not be read, or is no image.
        SourceChanged: It has changed since it was listed.
    """
    data = read_file(inputs, folder, file, shown)
    try:
        return data, read_header(data)
    except ValueError as error:
        raise damaged_file(error, os.path.join(shown, file.key)) from None
