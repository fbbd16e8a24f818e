"""Resized and re-encoded images, and the features that describe them; Pillow does the work.

:func:`reencode_image` decodes one image file, rotates, resizes and encodes it. It preserves the
pixel mode, where it can be interpolated, and the colour profile; Exif tags, comments and
thumbnails are dropped. An image that would lose more is refused: several frames, more than 8 bits a
colour. Images shrink with Lanczos' filter; libjpeg first decodes a far larger JPEG at a half,
quarter or eighth, of at least twice the wanted size. The pixels of masks are class numbers: they
are resized by nearest neighbour.

:class:`ImageEditor` applies it to the images of an item. Height, width, format and hash beside an
image are updated if they described the old file: ``image/height`` beside ``image/encoded``,
``height`` beside ``image``. Annotations are scaled (:mod:`shardwriter.sources.detection`). Boxes
and masks refer to pixels as stored, so in an item that has some, images are not rotated by their
Exif tag; the tag is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shardwriter.errors import FeatureError, OptionError, ShardwriterError, SourceError
from shardwriter.formats import (
    EncodedImage,
    ImageHeader,
    SequenceExample,
    file_bytes,
    read_header,
    require_pillow,
)
from shardwriter.schema import own_fields, with_fields
from shardwriter.sources import OBJECT, RecordSource, Source, scaled_annotations
from shardwriter.writing.options import DEFAULT_QUALITY, DatasetOptions, ImageOptions

if TYPE_CHECKING:
    from PIL.Image import Image


_ORIENTATION: Final = 0x0112  # the Exif tag
_SIDEWAYS: Final = frozenset([5, 6, 7, 8])
_REDUCING_GAP: Final = 2  # a JPEG is decoded at this many times the wanted size, or more
_MAX_SIDE: Final = 65_500
_MAX_PIXELS: Final = 1 << 28
_MODES: Final = frozenset(["L", "LA", "RGB", "RGBA", "CMYK", "I;16"])
_MASK_MODES: Final = frozenset(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])


def output_format(found: str, *, is_mask: bool) -> str:
    """Return the format in which an image is encoded again, from its own format."""
    if is_mask or found not in ("jpeg", "webp"):
        return "png"
    return found


def reencode_image(
    data: bytes,
    header: ImageHeader,
    size_for: Callable[[int, int], tuple[int, int]],
    *,
    quality: int,
    is_mask: bool = False,
    rotate: bool = True,
) -> bytes:
    """Return an image file in another size.

    Args:
        data: The file.
        header: Its format, height and width.
        size_for: Returns (width, height) to write from (width, height) as displayed.
        quality: Quality of a JPEG or lossy WebP.
        is_mask: Whether to resize by nearest neighbour.
        rotate: Whether to rotate pixels by the Exif tag; else they stay as stored.

    Raises:
        SourceError: The image is truncated, broken or too large, or would lose more than its size.
    """
    from PIL import Image as pil

    # Only the plugin of the header's format: some others start programs.
    plugin = header.format.upper()
    try:
        with pil.open(BytesIO(data), formats=[plugin]) as image:
            _check_lossless(image, header.format)
            orientation = _orientation(image)
            if header.format == "tiff":
                image.load()  # Pillow rotates it here
                if orientation != 1 and not rotate:
                    raise SourceError(
                        "this tiff has a rotation tag, and boxes and masks refer to stored pixels",
                        hint="save it again with its pixels rotated, without the tag",
                    )
                orientation = 1
            if not rotate:
                orientation = 1
            return file_bytes(
                _resized(image, size_for, orientation, is_mask=is_mask),
                output_format(header.format, is_mask=is_mask),
                quality=quality,
                lossless=header.format == "webp" and _is_lossless(data),
            )
    except ShardwriterError:
        raise
    except (pil.DecompressionBombError, pil.DecompressionBombWarning):
        raise SourceError(
            f"the image of {header.height} x {header.width} pixels (height x width) is over "
            "Pillow's limit, which protects against files made to fill the memory",
            hint="if the file is good, set PIL.Image.MAX_IMAGE_PIXELS in a module that --map or "
            "--filter names",
        ) from None
    except Exception as error:  # Pillow's plugins raise any type
        raise SourceError(
            f"the {header.format} image can not be decoded: {error}",
            hint="it may be truncated: fetch it again, or --on-error skip leaves it out",
        ) from error


def _check_lossless(image: Image, found: str) -> None:
    """Refuse an image of several frames, or of more bits a colour than Pillow decodes."""
    num_frames = getattr(image, "n_frames", 1)
    if num_frames > 1 and found != "jpeg":  # a JPEG has its own picture first, then previews
        raise SourceError(
            f"the {found} has {num_frames} frames, and only the first would be written",
            hint="save its frames as files, or write it without --resize, --max-side and --quality",
        )
    modes = [str(tile[3][0] if isinstance(tile[3], tuple) else tile[3]) for tile in image.tile]
    if any(";16" in mode for mode in modes) and not image.mode.startswith("I;16"):
        raise SourceError(
            f"the {found} has 16 bits a colour ({modes[0]}), and Pillow decodes 8 of them",
            hint="save it with 8 bits a colour, or write it without --resize and --max-side",
        )


def _orientation(image: Image) -> int:
    """Return the Exif orientation; 1, pixels as stored, if there is none."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a broken tag rotates nothing
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _resized(
    image: Image,
    size_for: Callable[[int, int], tuple[int, int]],
    orientation: int,
    *,
    is_mask: bool,
) -> Image:
    from PIL.Image import Resampling

    is_sideways = orientation in _SIDEWAYS
    shown = image.size[::-1] if is_sideways else image.size
    wanted = size_for(*shown)
    if max(wanted) > _MAX_SIDE or wanted[0] * wanted[1] > _MAX_PIXELS:
        raise SourceError(
            f"the image of {shown[0]} x {shown[1]} pixels would become {wanted[0]} x {wanted[1]}",
            hint="--max-side limits the longer side",
        )
    stored = wanted[::-1] if is_sideways else wanted
    profile = image.info.get("icc_profile")
    box: tuple[float, float, float, float] | None = None
    if is_mask:
        pixels = _of_mode(image, _MASK_MODES)
    else:
        # For other formats than JPEG this does nothing. The box is the part of the reduced image
        # that the full one covers: an eighth of 1,203 pixels is not all of 151.
        drafted = image.draft(None, (_REDUCING_GAP * stored[0], _REDUCING_GAP * stored[1]))
        box = None if drafted is None else drafted[1]
        pixels = _of_mode(_mixable(image), _MODES)
        if pixels.mode == "CMYK" and image.format not in ("JPEG", "MPO"):
            raise SourceError(
                "the image has CMYK pixels, which PNG can not store",
                hint="convert it to RGB, or to JPEG",
            )
    if pixels.size != stored:
        method = Resampling.NEAREST if is_mask else Resampling.LANCZOS
        pixels = pixels.resize(stored, method, box=box)
    pixels = _rotated(pixels, orientation)
    if profile:
        pixels.info["icc_profile"] = profile
    return pixels


def _mixable(image: Image) -> Image:
    """Return an image in a mode whose values can be interpolated."""
    if image.mode == "1":
        return image.convert("L")
    if image.mode in ("P", "PA"):
        has_alpha = image.mode == "PA" or "transparency" in image.info
        return image.convert("RGBA" if has_alpha else "RGB")
    if image.mode in ("L", "RGB") and "transparency" in image.info:
        return image.convert(f"{image.mode}A")
    return image


def _of_mode(image: Image, modes: frozenset[str]) -> Image:
    if image.mode == "I;16B":
        return image.convert("I").convert("I;16")
    if image.mode not in modes:
        raise SourceError(
            f"images of mode {image.mode} can not be resized",
            hint="convert it to RGB, grey or 16 bit grey",
        )
    return image


def _rotated(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    method = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def _is_lossless(data: bytes) -> bool:
    """Return whether a WebP file is lossless, from its chunks of name, size and data."""
    at = 12
    while at + 8 <= len(data):
        name: Any = data[at : at + 4]
        if name in (b"VP8L", b"VP8 "):
            return bool(name == b"VP8L")
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return False


_MASK_WORDS: Final = frozenset(
    ["mask", "masks", "seg", "segmentation", "annotation", "annotations", "label", "labels", "gt"]
)
_WORDS: Final = re.compile(r"[/._-]")
_ENCODED: Final = "image/encoded"


class _Change(NamedTuple):
    """An image file before and after."""

    old: bytes
    old_header: ImageHeader
    new: bytes
    new_header: ImageHeader


class ImageEditor:
    """Resizes the images of an item, and updates the features that describe them.

    Args:
        options: The wanted size and quality.
        names: Features that are images, beside those whose value is an `EncodedImage`.
    """

    def __init__(self, options: ImageOptions, names: Collection[str]) -> None:
        self._options = options
        self._names = frozenset(names)

    def __call__(self, features: Any) -> Any:
        """Return the features of an item with its images resized; the item itself stays.

        Raises:
            SourceError: An image can not be decoded or resized; has the feature.
            FeatureError: No feature is known to be an image, or the parts of the item have no
                names.
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
                "--resize, --max-side and --quality: no feature is known to be an image",
                hint="--schema NAME=image names one; sw.jpeg(array) and sw.png(array) return one",
            )
        rotate = not any(is_mask(name) for name in images)
        rotate = rotate and not any(str(name).startswith(OBJECT) for name in features)
        for name in images:
            try:
                self._edit(name, features, rotate=rotate)
            except SourceError as error:
                error.feature = error.feature or name
                raise
        return features

    def _edit(self, name: str, features: dict[str, Any], *, rotate: bool) -> None:
        value = features[name]
        if isinstance(value, (list, tuple)):
            changes = [self._change(name, each, rotate=rotate) for each in value]
            if any(changes):
                pairs = zip(changes, value, strict=True)
                features[name] = [old if change is None else change.new for change, old in pairs]
        else:
            changes = [self._change(name, value, rotate=rotate)]
            if changes[0] is not None:
                features[name] = changes[0].new
        if len(changes) != 1 or changes[0] is None:
            return
        change = changes[0]
        _update_siblings(name, features, change)
        old, new = change.old_header, change.new_header
        if name == _ENCODED and old[1:] != new[1:]:
            sizes = (old.width, old.height), (new.width, new.height)
            features.update(scaled_annotations(features, *sizes))

    def _change(self, name: str, value: Any, *, rotate: bool) -> _Change | None:
        """Return the change of an image; None if it is passed through, or is not bytes."""
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
        encoded = reencode_image(
            data,
            header,
            self._options.size_for,
            quality=self._options.quality or DEFAULT_QUALITY,
            is_mask=mask,
            rotate=rotate,
        )
        new = EncodedImage(encoded) if isinstance(value, EncodedImage) else encoded
        return _Change(data, header, new, read_header(encoded))


def _is_image_file(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(each, EncodedImage) for each in values)


def _no_features(item: Any) -> FeatureError:
    """Return the error for an item whose images can not be found."""
    options = "--resize, --max-side and --quality: "
    if isinstance(item, SequenceExample):
        return FeatureError(
            f"{options}the item is a SequenceExample, and only images of Examples are resized",
            hint="resize them in a map, with Pillow and sw.jpeg or sw.png",
        )
    if isinstance(item, bytes):
        return FeatureError(
            f"{options}the item is a finished record, which is not decoded",
            hint="give its features: sw.decode_example(record)",
        )
    return FeatureError(
        f"{options}the item is of type {type(item).__name__}, whose parts have no names, so its "
        "images are unknown",
        hint="name its parts: --names image,label",
    )


def is_mask(name: str) -> bool:
    """Return whether a feature's name says that its pixels are class numbers."""
    return not _MASK_WORDS.isdisjoint(_WORDS.split(name.lower()))


def _update_siblings(name: str, features: dict[str, Any], change: _Change) -> None:
    """Update height, width, format and hash beside an image, if they described the old file."""
    above = name.rpartition("/")[0]
    prefix = f"{above}/" if above else ""
    old, new = change.old_header, change.new_header
    sides = [f"{prefix}height", f"{prefix}width"]
    pairs = zip(sides, old[1:], new[1:], strict=True)
    updated = [_replaced(features.get(side), before, after) for side, before, after in pairs]
    if None not in updated:  # both were those of this file
        features.update(zip(sides, updated, strict=True))
    facts = {f"{prefix}format": (old.format, new.format)}
    key = f"{prefix}key/sha256"
    if key in features:
        facts[key] = sha256(change.old).hexdigest(), sha256(change.new).hexdigest()
    for fact, (before, after) in facts.items():
        replaced = _replaced(features.get(fact), before, after)
        if replaced is not None:
            features[fact] = replaced


def _replaced(value: Any, old: int | str, new: int | str) -> Any:
    """Return ``new`` in the type of a value that equals ``old``; None if it does not equal it."""
    if isinstance(value, np.ndarray):
        is_old = value.size == 1 and value.dtype.kind in "iu" and value.item() == old
        return np.full_like(value, new) if is_old else None
    if isinstance(value, list):
        inner = _replaced(value[0], old, new) if len(value) == 1 else None
        return None if inner is None else [inner]
    if isinstance(value, bytes):
        is_text = isinstance(new, str) and value.decode("utf-8", "replace") == old
        return str(new).encode() if is_text else None
    is_plain = isinstance(value, (int, np.integer, str)) and not isinstance(value, bool)
    return new if is_plain and value == old else None


def image_editor(source: Source, options: DatasetOptions) -> ImageEditor | None:
    """Return the editor of a source's images; None if the options pass images through."""
    if options.images is None:
        return None
    return ImageEditor(options.images, _image_names(source, options))


def _image_names(source: Source, options: DatasetOptions) -> set[str]:
    """Return the features that are known to be images before the first item is loaded."""
    types = dict(options.schema)
    if isinstance(source, RecordSource):
        types |= {name: summary.type for name, summary in source.summaries.items()}
    else:
        with suppress(SourceError):  # no plan: only a map turns these items into features
            types |= source.plan
    return {name for name, found in types.items() if found.encoding == "image"}


def check_images(source: Source, options: DatasetOptions) -> None:
    """Refuse early a source whose images can not be resized.

    Raises:
        OptionError: No feature of the source is an image, or its records are copied undecoded.
        MissingExtra: Pillow is not installed.
    """
    require_pillow()
    if isinstance(source, RecordSource) and options.map is None:
        raise OptionError(
            "--resize, --max-side and --quality: finished records are copied, not decoded",
            hint="add a map, which decodes them; one that returns its argument is enough",
        )
    if not _image_names(source, options) and _is_planned(source):
        raise OptionError(
            f"--resize, --max-side and --quality: this source of kind {source.kind} has no images",
            hint="--schema NAME=image marks a feature as an image",
        )


def _is_planned(source: Source) -> bool:
    try:
        return bool(source.plan)
    except SourceError:
        return False
