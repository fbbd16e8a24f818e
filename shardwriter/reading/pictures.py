"""A few pictures out of shards, for people to look at: the first of records spread over files."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any, Final

import numpy as np

from shardwriter.errors import ShardwriterError
from shardwriter.formats.example import decode_example
from shardwriter.formats.plain_png import encode_png
from shardwriter.formats.quantities import plural
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.reading.loader_code.facts import MASK_WORDS
from shardwriter.reading.saving import Picture, pictures_of
from shardwriter.sources.locate import find_shard_sets
from shardwriter.sources.shard_sets import ShardSet
from shardwriter.storage.inputs import open_stream
from shardwriter.storage.local import storage_errors

_SHOWN_FORMATS: Final = frozenset({"jpeg", "png", "gif", "webp"})  # by every browser
_LABELS: Final = ("image/class/text", "label", "image/class/label", "class", "target", "text")
_MAX_CAPTION: Final = 60
_MAX_MASK_SIDE: Final = 4096  # pixels


@dataclass(frozen=True)
class Sample:
    """A picture of a record.

    Attributes:
        path: The shard.
        record_index: The record in it.
        feature: The feature.
        format: ``jpeg``, ``png``, ``gif`` or ``webp``.
        data: An image file's bytes.
        label: What the record says that it is; None where it says nothing.
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
    """Return pictures out of the first Examples of files that are spread over all.

    A file that is damaged, or can not be read, gives what stands in front of that.

    Args:
        paths: As for :func:`shardwriter.stats`.
        count: At most so many.
        label: The feature whose value is each picture's caption; by default that whose values the
            manifest counts, or one that is called ``label`` or so.

    Raises:
        OptionError: A path names nothing.
        SourceError: There are no shards where a path leads.
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
    """Return a picture of each of the first records that have one; most files have none."""
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
        pass  # the report says what is wrong with the file
    return samples


def _is_mask(picture: Picture) -> bool:
    name = picture.feature.lower()
    return picture.format == "png" and any(word in name for word in MASK_WORDS)


def _visible(path: str, index: int, mask: Picture) -> list[Sample]:
    """Return a mask with its values spread over all greys; nothing where it can not be decoded."""
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
