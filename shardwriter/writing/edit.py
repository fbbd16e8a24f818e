"""One image file made anew: decoded, turned, resized, encoded. Pillow does the work.

Kept are the pixels' mode, where it can be interpolated, and the colour profile. All else is left
out: Exif tags and their position in the world, comments, thumbnails. What would lose something
without a word is refused: several frames, more than 8 bits of a colour.

An image is shrunk by Lanczos' filter. A JPEG that is far larger is decoded at a half, quarter or
eighth first, of which libjpeg knows how, as long as twice the wanted size is left. A mask's
pixels are numbers of classes: they are chosen (nearest neighbour) and never mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from shardwriter.errors import ShardwriterError, SourceError
from shardwriter.formats.encoded import file_bytes
from shardwriter.formats.images import ImageHeader

if TYPE_CHECKING:
    from PIL.Image import Image

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
