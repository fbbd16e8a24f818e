"""Image files made of pixels: ``sw.jpeg`` and ``sw.png``.

What they return is the bytes of a file, of a class of its own: so the schema knows that the feature
is an image without being told. Pillow makes the files; nothing else here needs it.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardwriter.errors import FeatureError, MissingExtra
from shardwriter.formats.images import image_format

if TYPE_CHECKING:
    from PIL.Image import Image

_JPEG_MODES: Final = ("L", "RGB", "CMYK")
_PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_CHANNELS: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "jpeg": {"uint8": (1, 3)},
    "png": {"uint8": (1, 2, 3, 4), "uint16": (1,), "bool": (1,)},
}
_SUBSAMPLINGS: Final = ("4:4:4", "4:2:2", "4:2:0")


class EncodedImage(bytes):
    """The bytes of an image file. A feature that holds one is an image in the schema."""

    __slots__ = ()

    @property
    def format(self) -> str | None:
        """``jpeg``, ``png``, ... by the first bytes; None where it is no known image."""
        return image_format(self[:12])


def require_pillow() -> None:
    """Make sure that Pillow is there.

    Raises:
        MissingExtra: It is not.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "images are decoded and made by Pillow, which is not installed",
            hint='pip install "shardwriter[images]"',
        ) from error


def jpeg(image: Any, quality: int = 95, *, subsampling: str = "4:2:0") -> EncodedImage:
    """Encode pixels as a JPEG file.

    Args:
        image: uint8[h, w], uint8[h, w, 1] (grey) or uint8[h, w, 3] (RGB); or a PIL image of the
            mode L, RGB or CMYK, whose pixels are taken as they are: it is not turned by its Exif
            tag, and of what else is in it only the colour profile is kept.
        quality: 1 to 100.
        subsampling: Of colour: ``4:4:4`` (none), ``4:2:2`` or ``4:2:0``.

    Returns:
        The file's bytes, for a feature.

    Raises:
        FeatureError: The pixels have another type or shape, or an option is wrong.
        MissingExtra: Pillow is not installed.
    """
    require_pillow()
    if type(quality) is not int or not 1 <= quality <= 100:
        raise FeatureError(f"jpeg: quality is {quality!r}, and it is a number from 1 to 100")
    if subsampling not in _SUBSAMPLINGS:
        raise FeatureError(f"jpeg: subsampling is {subsampling!r}", hint=" or ".join(_SUBSAMPLINGS))
    pixels = _pil_image(image, "jpeg")
    if pixels.mode not in _JPEG_MODES:
        hint = "sw.png keeps all of it; convert('RGB') drops it"
        raise FeatureError(
            f"jpeg: a JPEG file can not hold pixels of the mode {pixels.mode}", hint=hint
        )
    return EncodedImage(_made(pixels, "jpeg", quality=quality, subsampling=subsampling))


def png(image: Any) -> EncodedImage:
    """Encode pixels as a PNG file, which loses nothing.

    Args:
        image: uint8[h, w] or [h, w, c] with c of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA);
            uint16[h, w] or [h, w, 1]; bool[h, w] or [h, w, 1], which gives one bit a pixel; or a
            PIL image of the mode 1, L, LA, P, RGB, RGBA or I;16, whose pixels are taken as they
            are.

    Returns:
        The file's bytes, for a feature.

    Raises:
        FeatureError: The pixels have another type or shape.
        MissingExtra: Pillow is not installed.
    """
    require_pillow()
    pixels = _pil_image(image, "png")
    if pixels.mode not in _PNG_MODES:
        raise FeatureError(
            f"png: a PNG file can not hold pixels of the mode {pixels.mode}",
            hint="convert them: image.convert('RGB')",
        )
    return EncodedImage(_made(pixels, "png"))


def _pil_image(image: Any, function: str) -> Image:
    """Return a PIL image as it is, or make one of an array."""
    from PIL import Image as pil

    if isinstance(image, pil.Image):
        if not image.width or not image.height:
            raise FeatureError(f"{function}: an image without pixels")
        return image
    try:
        array = np.asarray(image)
    except Exception as error:
        raise FeatureError(
            f"{function}: {type(image).__name__} does not turn into an array: {error}"
        ) from error
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    channels = array.shape[2] if array.ndim == 3 else 1
    allowed = _CHANNELS[function].get(array.dtype.name, ())
    if array.ndim not in (2, 3) or channels not in allowed or not array.size:
        raise FeatureError(
            f"{function}: no picture is {array.dtype}{list(array.shape)}",
            hint=_array_hint(array, function),
        )
    return pil.fromarray(np.ascontiguousarray(array))


def _array_hint(array: np.ndarray[Any, Any], function: str) -> str:
    if array.dtype.kind == "f":
        return "give uint8: (255 * array).round().astype('uint8') where values are 0 to 1"
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.dtype == np.uint8:
        return "give height x width x channels: array.transpose(1, 2, 0)"
    if function == "jpeg":
        return "give uint8[height, width] or uint8[height, width, 3]"
    return "give uint8[height, width, 1 to 4 channels], or uint16 or bool of one channel"


def _made(image: Image, format: str, **options: Any) -> bytes:
    try:
        return file_bytes(image, format, **options)
    except Exception as error:  # a side over 65,500, say
        raise FeatureError(f"{format}: Pillow can not make the file: {error}") from error


def file_bytes(
    image: Image,
    format: str,
    *,
    quality: int = 95,
    subsampling: str = "4:2:0",
    lossless: bool = False,
) -> bytes:
    """Return an image as a file; what is in it beside pixels and colour profile is left out.

    Args:
        image: Of a mode that the format has.
        format: ``jpeg``, ``png`` or ``webp``.
        quality: Of JPEG, and of WebP that is not lossless.
        subsampling: Of JPEG.
        lossless: Of WebP.
    """
    options: dict[str, Any] = {}
    if format == "jpeg":
        options = {"quality": quality, "subsampling": subsampling}
    elif format == "webp":
        options = {"quality": 100 if lossless else quality, "lossless": lossless, "exact": lossless}
    profile = image.info.get("icc_profile")
    if profile:
        options["icc_profile"] = profile
    bare = image.copy()
    bare.info = {name: image.info[name] for name in ("transparency",) if name in image.info}
    if format != "png":
        bare.info = {}
    elif bare.mode == "P":
        _fill_palette(bare)
    file = BytesIO()
    bare.save(file, format.upper(), **options)
    return file.getvalue()


def _fill_palette(image: Image) -> None:
    """Give every number among the pixels a colour: Pillow stores as few bits as colours need."""
    if image.palette is None:
        return
    mode = image.palette.mode
    colours = image.getpalette(mode) or []
    highest: Any = image.getextrema()[1]
    if len(mode) * (highest + 1) > len(colours):
        image.putpalette(colours + [0] * (256 * len(mode) - len(colours)), mode)
