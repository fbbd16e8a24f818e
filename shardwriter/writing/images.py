"""The images among an item's features, made anew; and what else follows from that.

Height, width, format and hash that stand beside an image follow it, where they said so of the file
before: ``image/height`` beside ``image/encoded``, ``height`` beside ``image``. Annotations follow
as :mod:`shardwriter.sources.annotations` says.

Boxes and masks go by the pixels as they are stored. So where an item has some, its image is not
turned as its Exif tag says; the tag is left out, and nobody turns it later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.errors import FeatureError, SourceError
from shardwriter.formats.encoded import EncodedImage
from shardwriter.formats.images import ImageHeader, read_header
from shardwriter.formats.sequence_example import SequenceExample
from shardwriter.schema.fields import own_fields, with_fields
from shardwriter.sources.annotations import OBJECT, scaled_annotations
from shardwriter.writing.edit import make_anew
from shardwriter.writing.images_options import DEFAULT_QUALITY, ImageOptions

_MASK_WORDS: Final = frozenset(
    ["mask", "masks", "seg", "segmentation", "annotation", "annotations", "label", "labels", "gt"]
)
_WORDS: Final = re.compile(r"[/._-]")
_ENCODED: Final = "image/encoded"


class _Change(NamedTuple):
    """An image before and after."""

    old: bytes
    old_header: ImageHeader
    new: bytes
    new_header: ImageHeader


class ImageEditor:
    """Makes the images of an item anew.

    Args:
        options: How.
        names: Features that are images; beside them those are whose value says so.
    """

    def __init__(self, options: ImageOptions, names: Collection[str]) -> None:
        self._options = options
        self._names = frozenset(names)

    def __call__(self, features: Any) -> Any:
        """Return the features of an item with its images made anew; the item itself stays.

        Raises:
            SourceError: An image can not be decoded, or not be made anew; says which feature.
            FeatureError: The item has none, and nothing says that it could; or its parts have no
                names, so nothing can say it.
        """
        if isinstance(features, Mapping):
            return self._edited(features)
        fields = None if isinstance(features, SequenceExample) else own_fields(features)
        if fields is None:
            raise _no_features(features)
        edited = self._edited(fields)
        changed = {name: value for name, value in edited.items() if value is not fields[name]}
        return with_fields(features, changed)

    def _edited(self, given: Mapping[str, Any]) -> dict[str, Any]:
        features = dict(given)
        images = [
            name for name, value in features.items() if name in self._names or _is_image_file(value)
        ]
        if not images and not self._names:
            raise FeatureError(
                "no feature is known as an image, and images are to be made anew",
                hint="--schema NAME=image says which one is; sw.jpeg and sw.png make some that are",
            )
        turned = not any(is_mask(name) for name in images)
        turned = turned and not any(str(name).startswith(OBJECT) for name in features)
        for name in images:
            try:
                self._edit(name, features, turned=turned)
            except SourceError as error:
                error.feature = error.feature or name
                raise
        return features

    def _edit(self, name: str, features: dict[str, Any], *, turned: bool) -> None:
        value = features[name]
        if isinstance(value, (list, tuple)):
            changes = [self._change(name, each, turned=turned) for each in value]
            if any(changes):
                pairs = zip(changes, value, strict=True)
                features[name] = [old if made is None else made.new for made, old in pairs]
        else:
            changes = [self._change(name, value, turned=turned)]
            if changes[0] is not None:
                features[name] = changes[0].new
        if len(changes) != 1 or changes[0] is None:
            return
        change = changes[0]
        _tell_siblings(name, features, change)
        old, new = change.old_header, change.new_header
        if name == _ENCODED and old[1:] != new[1:]:
            sizes = (old.width, old.height), (new.width, new.height)
            features.update(scaled_annotations(features, *sizes))

    def _change(self, name: str, value: Any, *, turned: bool) -> _Change | None:
        """Return what becomes of an image; None where it is passed through, or is no file."""
        if not isinstance(value, (bytes, bytearray, memoryview)):
            return None
        data = value if isinstance(value, bytes) else bytes(value)
        try:
            header = read_header(data)
        except ValueError as error:
            raise SourceError(str(error), hint="--on-error skip leaves the item out") from None
        mask = is_mask(name)
        if self._options.is_sized:
            size = header.width, header.height
            if self._options.size_for(*size) == size:
                return None
        elif header.format != "jpeg" or mask:
            return None
        made = make_anew(
            data,
            header,
            self._options.size_for,
            quality=self._options.quality or DEFAULT_QUALITY,
            is_mask=mask,
            turned=turned,
        )
        new = EncodedImage(made) if isinstance(value, EncodedImage) else made
        return _Change(data, header, new, read_header(made))


def _is_image_file(value: Any) -> bool:
    several = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(each, EncodedImage) for each in several)


def _no_features(item: Any) -> FeatureError:
    """Return the error for an item whose images can not be found."""
    what = "--resize, --max-side and --quality: "
    if isinstance(item, SequenceExample):
        return FeatureError(
            f"{what}the item is a SequenceExample, and images are made anew in Examples only",
            hint="have a map make them, with Pillow and sw.jpeg or sw.png",
        )
    if isinstance(item, bytes):
        return FeatureError(
            f"{what}the item is a finished record, and nothing looks into it",
            hint="give its features: sw.decode_example(record)",
        )
    return FeatureError(
        f"{what}the item is of type {type(item).__name__}, whose parts have no names, so that "
        "nothing tells which is an image",
        hint="name its parts: --names image,label",
    )


def is_mask(name: str) -> bool:
    """Tell by its name whether an image's pixels are numbers of classes."""
    return not _MASK_WORDS.isdisjoint(_WORDS.split(name.lower()))


def _tell_siblings(name: str, features: dict[str, Any], change: _Change) -> None:
    """Have those features follow that said of the old file what is another thing of the new."""
    above = name.rpartition("/")[0]
    prefix = f"{above}/" if above else ""
    old, new = change.old_header, change.new_header
    sides = [f"{prefix}height", f"{prefix}width"]
    pairs = zip(sides, old[1:], new[1:], strict=True)
    told = [_following(features.get(side), before, after) for side, before, after in pairs]
    if None not in told:  # both were those of this file
        features.update(zip(sides, told, strict=True))
    facts = {f"{prefix}format": (old.format, new.format)}
    key = f"{prefix}key/sha256"
    if key in features:
        facts[key] = sha256(change.old).hexdigest(), sha256(change.new).hexdigest()
    for fact, (before, after) in facts.items():
        follows = _following(features.get(fact), before, after)
        if follows is not None:
            features[fact] = follows


def _following(value: Any, old: int | str, new: int | str) -> Any:
    """Return a value that said ``old`` as one of its kind that says ``new``; None if it did not."""
    if isinstance(value, np.ndarray):
        is_old = value.size == 1 and value.dtype.kind in "iu" and value.item() == old
        return np.full_like(value, new) if is_old else None
    if isinstance(value, list):
        inner = _following(value[0], old, new) if len(value) == 1 else None
        return None if inner is None else [inner]
    if isinstance(value, bytes):
        is_text = isinstance(new, str) and value.decode("utf-8", "replace") == old
        return str(new).encode() if is_text else None
    is_plain = isinstance(value, (int, np.integer, str)) and not isinstance(value, bool)
    return new if is_plain and value == old else None
