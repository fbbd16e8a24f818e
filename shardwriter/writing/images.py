"""The images among an item's features, made anew; and what else follows from that.

Height, width, format and hash that stand beside an image follow it, where they said so of the file
before: ``image/height`` beside ``image/encoded``, ``height`` beside ``image``. Annotations follow
as :mod:`shardwriter.sources.detection` says.

Boxes and masks go by the pixels as they are stored. So where an item has some, its image is not
turned as its Exif tag says; the tag is left out, and nobody turns it later.
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


# One image file made anew: decoded, turned, resized, encoded. Pillow does the work.
#
# What is preserved: the pixels' mode, where it can be interpolated, and the colour profile. All
# else is left out: Exif tags and their position in the world, comments, thumbnails. What would lose
# something without a word is refused: several frames, more than 8 bits of a colour.
#
# An image is shrunk by Lanczos' filter. A JPEG that is far larger is decoded at a half, quarter or
# eighth first, of which libjpeg knows how, as long as twice the wanted size is left. A mask's
# pixels are numbers of classes: they are chosen (nearest neighbour) and never mixed.

_ORIENTATION: Final = 0x0112  # the Exif tag
_SIDEWAYS: Final = frozenset([5, 6, 7, 8])
_REDUCING_GAP: Final = 2  # a JPEG is decoded at this many times the wanted size, or more
_MAX_SIDE: Final = 65_500
_MAX_PIXELS: Final = 1 << 28
_MODES: Final = frozenset(["L", "LA", "RGB", "RGBA", "CMYK", "I;16"])
_MASK_MODES: Final = frozenset(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])


def made_format(found: str, *, is_mask: bool) -> str:
    """Return the format that an image of another one gets when it is made anew."""
    if is_mask or found not in ("jpeg", "webp"):
        return "png"
    return found


def make_anew(
    data: bytes,
    header: ImageHeader,
    size_for: Callable[[int, int], tuple[int, int]],
    *,
    quality: int,
    is_mask: bool = False,
    turned: bool = True,
) -> bytes:
    """Decode an image, and encode it in another size.

    Args:
        data: The file.
        header: What is known of it.
        size_for: Gives width and height for width and height of the image as it is shown.
        quality: Of the JPEG or lossy WebP that is made.
        is_mask: Whether its pixels are chosen and not mixed.
        turned: Whether it is turned as its Exif tag says; else pixels stay as they are stored.

    Raises:
        SourceError: It is truncated, broken or too large, or can not be made anew without loss.
    """
    from PIL import Image as pil

    # No other plugin than the one for what the header says: some of them start programs.
    plugin = header.format.upper()
    try:
        with pil.open(BytesIO(data), formats=[plugin]) as image:
            _check_whole(image, header.format)
            orientation = _orientation(image)
            if header.format == "tiff":
                image.load()  # Pillow has turned it now
                if orientation != 1 and not turned:
                    raise SourceError(
                        "this tiff is turned by a tag, and boxes and masks go by stored pixels",
                        hint="make another file of it, whose pixels are stored as they are shown",
                    )
                orientation = 1
            if not turned:
                orientation = 1
            made = _resized(image, size_for, orientation, is_mask=is_mask)
            return file_bytes(
                made,
                made_format(header.format, is_mask=is_mask),
                quality=quality,
                lossless=header.format == "webp" and _is_lossless(data),
            )
    except ShardwriterError:
        raise
    except (pil.DecompressionBombError, pil.DecompressionBombWarning):
        raise SourceError(
            f"the image of {header.height} x {header.width} pixels (height x width) is more than "
            "Pillow decodes "
            "unasked: files made to fill the memory look like this",
            hint="if it is what it should be, a module that --map or --filter names can set "
            "PIL.Image.MAX_IMAGE_PIXELS",
        ) from None
    except Exception as error:  # Pillow's plugins raise what comes along
        raise SourceError(
            f"the {header.format} image can not be decoded: {error}",
            hint="it may be cut off: get it again, or --on-error skip leaves it out",
        ) from error


def _check_whole(image: Image, found: str) -> None:
    """Refuse what would lose something by being decoded."""
    num_frames = getattr(image, "n_frames", 1)
    if num_frames > 1 and found != "jpeg":  # a JPEG has its own picture first, then previews
        raise SourceError(
            f"the {found} has {num_frames} frames, and only one would be left",
            hint="make files of its frames, or write it without --resize, --max-side and --quality",
        )
    modes = [str(tile[3][0] if isinstance(tile[3], tuple) else tile[3]) for tile in image.tile]
    if any(";16" in mode for mode in modes) and not image.mode.startswith("I;16"):
        raise SourceError(
            f"the {found} has 16 bits a colour ({modes[0]}), of which Pillow would keep 8",
            hint="make it 8 bits a colour, or write it without --resize and --max-side",
        )


def _orientation(image: Image) -> int:
    """Return the Exif orientation; 1, pixels as they are stored, where nothing tells."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a broken tag turns nothing
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
            hint="--max-side bounds the longer side",
        )
    stored = wanted[::-1] if is_sideways else wanted
    profile = image.info.get("icc_profile")
    box: tuple[float, float, float, float] | None = None
    if is_mask:
        pixels = _of_mode(image, _MASK_MODES)
    else:
        # Of other files than JPEGs this does nothing. The box is what of the small picture the
        # large one fills: an eighth of 1,203 pixels is not all of 151.
        drafted = image.draft(None, (_REDUCING_GAP * stored[0], _REDUCING_GAP * stored[1]))
        box = None if drafted is None else drafted[1]
        pixels = _of_mode(_mixable(image), _MODES)
        if pixels.mode == "CMYK" and image.format not in ("JPEG", "MPO"):
            raise SourceError(
                "the image has CMYK pixels, which PNG can not hold", hint="make it RGB, or a JPEG"
            )
    if pixels.size != stored:
        method = Resampling.NEAREST if is_mask else Resampling.LANCZOS
        pixels = pixels.resize(stored, method, box=box)
    pixels = _turned(pixels, orientation)
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
            f"the image has pixels of the mode {image.mode}, which can not be resized here",
            hint="make it RGB, grey or 16 bit grey",
        )
    return image


def _turned(image: Image, orientation: int) -> Image:
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
    """Tell whether a WebP file holds its pixels without loss: chunks are name, size, data."""
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


# Which features of a source's items are images, for those that are to be made anew.


def image_editor(source: Source, options: DatasetOptions) -> ImageEditor | None:
    """Return what makes the images of a source's items anew; None where they are passed through."""
    if options.images is None:
        return None
    return ImageEditor(options.images, _image_names(source, options))


def _image_names(source: Source, options: DatasetOptions) -> set[str]:
    types = dict(options.schema)
    if isinstance(source, RecordSource):
        types |= {name: summary.type for name, summary in source.summaries.items()}
    else:
        with suppress(SourceError):  # then only a map makes records of these items
            types |= source.plan
    return {name for name, found in types.items() if found.encoding == "image"}


def check_images(source: Source, options: DatasetOptions) -> None:
    """Refuse early what can not be made anew.

    Raises:
        OptionError: No feature of the source is an image, or its records are only copied.
        MissingExtra: Pillow is not installed.
    """
    require_pillow()
    if isinstance(source, RecordSource) and options.map is None:
        raise OptionError(
            "--resize, --max-side and --quality: finished records are copied, and nothing looks "
            "into them",
            hint="a map has them decoded; one that returns what it is given is enough",
        )
    if not _image_names(source, options) and _is_planned(source):
        raise OptionError(
            f"--resize, --max-side and --quality: a source of kind {source.kind} gives no images "
            "here",
            hint="--schema NAME=image says which feature is one",
        )


def _is_planned(source: Source) -> bool:
    try:
        return bool(source.plan)
    except SourceError:
        return False
