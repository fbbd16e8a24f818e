"""The pictures in records: encoded ones as they are, raw pixels of a known shape as PNG."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.errors import OptionError
from shardwriter.formats.images import image_format
from shardwriter.formats.plain_png import encode_png
from shardwriter.schema.shape_features import shape_feature
from shardwriter.storage.local import storage_errors

_EXTENSIONS: Final = {"jpeg": "jpg", "tiff": "tif"}
_MAX_NAME: Final = 80
_MAX_CHANNELS: Final = 4


class Picture(NamedTuple):
    """A picture of a record.

    Attributes:
        feature: The feature that has it.
        number: Its place among the values of the feature.
        format: ``jpeg``, ``png``, ... by its content.
        data: An image file's bytes.
    """

    feature: str
    number: int
    format: str
    data: bytes


def pictures_of(
    features: Mapping[str, Any], schema: Mapping[str, Mapping[str, Any]]
) -> Iterator[Picture]:
    """Yield the pictures among a record's features, by name.

    Raw pixels need a shape: the schema's, the one that stands beside them, or the numbers of
    features called ``height``, ``width`` and ``channels`` (or ``depth``), also with the feature's
    own prefix (``image/height``).

    Args:
        features: Decoded features of an Example.
        schema: The manifest's entries by feature; may be empty.
    """
    for name in sorted(features):
        values = features[name]
        if values is None:
            continue
        entry = schema.get(name, {})
        if isinstance(values, np.ndarray):
            shape = _shape_of(name, entry, features, values.size)
            if entry.get("dtype") == "uint8" and shape is not None:
                pixels = values.astype(np.uint8).reshape(shape)
                yield Picture(name, 0, "png", encode_png(pixels))
            continue
        for number, value in enumerate(values):
            found = image_format(value[:16])
            if found is not None:
                yield Picture(name, number, found, value)
                continue
            if entry.get("dtype") not in (None, "uint8"):
                continue
            shape = _shape_of(name, entry, features, len(value))
            if shape is not None:
                pixels = np.frombuffer(value, np.uint8).reshape(shape)
                yield Picture(name, number, "png", encode_png(pixels))


def _shape_of(
    name: str, entry: Mapping[str, Any], features: Mapping[str, Any], num_values: int
) -> tuple[int, ...] | None:
    """Return [h, w, c] of raw pixels; None where nothing tells, or what tells does not fit."""
    shape = entry.get("shape")
    if shape and None in shape:
        beside = features.get(shape_feature(name))
        shape = None if beside is None else [int(size) for size in beside]
    if not shape or None in shape or len(shape) not in (2, 3):
        prefix = name.rpartition("/")[0]
        sides = [_number(features, prefix, word) for word in ("height", "width")]
        if None in sides:
            return None
        channels = _number(features, prefix, "channels") or _number(features, prefix, "depth")
        area = (sides[0] or 0) * (sides[1] or 0)
        shape = [*sides, channels or (num_values // area if area else 0)]
    channels = shape[2] if len(shape) == 3 else 1
    if min(shape) < 1 or channels > _MAX_CHANNELS or np.prod(shape, dtype=object) != num_values:
        return None
    return tuple(shape)


def _number(features: Mapping[str, Any], prefix: str, word: str) -> int | None:
    for name in (f"{prefix}/{word}" if prefix else word, word):
        value = features.get(name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.size == 1:
            return int(value[0])
    return None


def save_pictures(
    index: int,
    features: Mapping[str, Any],
    schema: Mapping[str, Mapping[str, Any]],
    folder: str,
) -> list[str]:
    """Write a record's pictures as files ``folder/INDEX-FEATURE[-NUMBER].EXT``.

    Args:
        index: The record's number.
        features: Decoded features of an Example.
        schema: The manifest's entries by feature; may be empty.
        folder: Made for the first picture where it is not there.

    Returns:
        The paths.

    Raises:
        OptionError: There is a file of that name.
        StorageError: A file can not be written.
    """
    paths: list[str] = []
    for picture in pictures_of(features, schema):
        if not paths:
            with storage_errors(folder):
                os.makedirs(folder, exist_ok=True)
        extension = _EXTENSIONS.get(picture.format, picture.format)
        values = features[picture.feature]
        several = not isinstance(values, np.ndarray) and len(values) > 1
        stem = f"{index}-{_safe(picture.feature)}" + (f"-{picture.number}" if several else "")
        path = os.path.join(folder, f"{stem}.{extension}")
        again = 2
        while path in paths:  # of another feature whose name is written alike
            path = os.path.join(folder, f"{stem}_{again}.{extension}")
            again += 1
        _create(path, picture.data)
        paths.append(path)
    return paths


def _safe(feature: str) -> str:
    """Return a feature's name as a part of a file name, whatever is in it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", feature)[:_MAX_NAME].strip("._") or "feature"


def _create(path: str, data: bytes) -> None:
    is_mine = False
    with storage_errors(path):
        try:
            with open(path, "xb") as file:
                is_mine = True
                file.write(data)
        except FileExistsError:
            raise OptionError(
                "a file of this name is there, and pictures replace none",
                path=path,
                hint="--save-images takes a folder without pictures of these records",
            ) from None
        except BaseException:  # Ctrl-C too: no half of a picture
            if is_mine:
                os.unlink(path)
            raise
