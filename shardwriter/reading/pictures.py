"""The images in records: encoded ones as they are, raw pixels of a known shape as PNG.

`save_pictures` writes those of a record as files, `sample_pictures` returns a few of a dataset for
the HTML report.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.errors import OptionError, ShardwriterError
from shardwriter.formats import decode_example, encode_png, image_format, plural, read_frames
from shardwriter.reading.loader_code.facts import MASK_WORDS
from shardwriter.schema import shape_feature
from shardwriter.sources import ShardSet, find_shard_sets
from shardwriter.storage import open_stream, storage_errors

_EXTENSIONS: Final = {"jpeg": "jpg", "tiff": "tif"}
_MAX_NAME: Final = 80
_MAX_CHANNELS: Final = 4


class Picture(NamedTuple):
    """An image of a record.

    Attributes:
        feature: The feature that has it.
        number: Its index among the values of the feature.
        format: ``jpeg``, ``png``, ..., detected from the content.
        data: The bytes of an image file.
    """

    feature: str
    number: int
    format: str
    data: bytes


def pictures_of(
    features: Mapping[str, Any], schema: Mapping[str, Mapping[str, Any]]
) -> Iterator[Picture]:
    """Yield the images among a record's features, in order of the feature names.

    Raw pixels need a shape: from the schema, from the feature's shape feature, or from integer
    features ``height``, ``width`` and ``channels`` (or ``depth``), also with the feature's own
    prefix (``image/height``).

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
    """Return [h, w] or [h, w, c] of raw pixels; None if unknown, or not of that many values."""
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
    """Write a record's images as files ``folder/INDEX-FEATURE[-NUMBER].EXT``, and return the paths.

    Args:
        index: The record's number.
        features: Decoded features of an Example.
        schema: The manifest's entries by feature; may be empty.
        folder: Created if there is an image to write.

    Raises:
        OptionError: A file of that name exists.
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
        while path in paths:  # two feature names can give the same file name
            path = os.path.join(folder, f"{stem}_{again}.{extension}")
            again += 1
        _create(path, picture.data)
        paths.append(path)
    return paths


def _safe(feature: str) -> str:
    """Return a feature's name as a valid part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", feature)[:_MAX_NAME].strip("._") or "feature"


def _create(path: str, data: bytes) -> None:
    is_created = False
    with storage_errors(path):
        try:
            with open(path, "xb") as file:
                is_created = True
                file.write(data)
        except FileExistsError:
            raise OptionError(
                "the file already exists, and is not overwritten",
                path=path,
                hint="give --save-images another folder",
            ) from None
        except BaseException:  # also on Ctrl-C: leave no truncated file
            if is_created:
                os.unlink(path)
            raise


_SHOWN_FORMATS: Final = frozenset({"jpeg", "png", "gif", "webp"})  # every browser shows them
_LABELS: Final = ("image/class/text", "label", "image/class/label", "class", "target", "text")
_MAX_CAPTION: Final = 60
_MAX_MASK_SIDE: Final = 4096  # pixels


@dataclass(frozen=True)
class Sample:
    """An image of a record, with its caption.

    Attributes:
        path: The shard.
        record_index: The record's number in the shard.
        feature: The feature.
        format: ``jpeg``, ``png``, ``gif`` or ``webp``.
        data: The bytes of an image file.
        label: The record's label; None if it has none.
    """

    path: str
    record_index: int
    feature: str
    format: str
    data: bytes
    label: str | None = None


def sample_pictures(
    paths: Sequence[str], count: int = 24, *, label: str | None = None
) -> list[Sample]:
    """Return images from the first Examples of up to ``count`` files, evenly spread over all.

    Of a damaged or unreadable file, only records before the damage are used.

    Args:
        paths: As for :func:`shardwriter.stats`.
        count: The most images to return.
        label: The feature whose value is the caption; default: the label in the manifest, or a
            feature with a usual name, such as ``label``.

    Raises:
        OptionError: A path matches nothing.
        SourceError: There are no shards at a path.
    """
    sets = find_shard_sets(list(paths))
    files = [(found, path) for found in sets for _, path in found.shards]
    if not files or count < 1:
        return []
    num_files = min(count, len(files))
    chosen = [files[k * len(files) // num_files] for k in range(num_files)]
    samples: list[Sample] = []
    for number, (shard_set, path) in enumerate(chosen):
        each = -(-(count - len(samples)) // (num_files - number))
        samples += _of_file(shard_set, path, each, label)
    return samples


def _of_file(shard_set: ShardSet, path: str, count: int, label: str | None) -> list[Sample]:
    """Return images of the first records of a file."""
    manifest = shard_set.manifest
    schema: Mapping[str, Mapping[str, Any]] = {}
    if manifest is not None:
        schema = manifest.schema.get("features", {})
        if label is None and manifest.labels is not None:
            label = manifest.labels["feature"]
    samples: list[Sample] = []
    try:
        with closing(_examples(path)) as examples:
            for index, features in islice(examples, 2 * count + 16):
                found = [p for p in pictures_of(features, schema) if p.format in _SHOWN_FORMATS]
                masks = [p for p in found if _is_mask(p)]
                picture = next((p for p in found if p not in masks), None)
                if picture is not None:
                    caption = _caption(features, schema, label)
                    samples.append(
                        Sample(path, index, picture.feature, picture.format, picture.data, caption)
                    )
                if masks and len(samples) < count:
                    samples += _visible(path, index, masks[0])
                if len(samples) == count:
                    break
    except ShardwriterError:
        pass  # the report lists the defects of the file
    return samples


def _is_mask(picture: Picture) -> bool:
    name = picture.feature.lower()
    return picture.format == "png" and any(word in name for word in MASK_WORDS)


def _visible(path: str, index: int, mask: Picture) -> list[Sample]:
    """Return a mask with its values spread over all greys; [] if it can not be decoded."""
    try:
        from PIL import Image

        with Image.open(BytesIO(mask.data)) as picture:
            if max(picture.size) > _MAX_MASK_SIDE:
                return []
            pixels = np.array(picture if picture.mode == "P" else picture.convert("I"))
    except (ImportError, OSError, ValueError, SyntaxError):
        return []
    values, places = np.unique(pixels, return_inverse=True)
    greys = np.linspace(0, 255, max(2, values.size)).astype(np.uint8)
    data = encode_png(greys[places.reshape(pixels.shape)])
    caption = f"mask, {plural(values.size, 'value')}: {values[0]} to {values[-1]}"
    return [Sample(path, index, mask.feature, "png", data, caption)]


def _examples(path: str) -> Generator[tuple[int, dict[str, Any]], None, None]:
    with storage_errors(path), open_stream(path) as stream:
        for index, payload in enumerate(read_frames(stream, path=path)):
            yield index, decode_example(payload)


def _caption(
    features: Mapping[str, Any], schema: Mapping[str, Mapping[str, Any]], label: str | None
) -> str | None:
    names = _LABELS if label is None else (label,)
    for name in names:
        values = features.get(name)
        if values is None or len(values) == 0:
            continue
        value = values[0]
        if isinstance(values, np.ndarray):
            words = schema.get(name, {}).get("vocabulary") or []
            if values.dtype.kind == "i" and 0 <= value < len(words):
                return str(words[int(value)])[:_MAX_CAPTION]
            return f"{value:g}" if values.dtype.kind == "f" else str(value)
        try:
            return str(value.decode("utf-8"))[:_MAX_CAPTION]
        except UnicodeDecodeError:
            continue
    return None
