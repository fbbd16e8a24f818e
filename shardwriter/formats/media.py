"""Images and audio: read headers of image and WAV files, and encode images as JPEG or PNG.

Headers: the image formats are those of ``tf.io.decode_image`` and the common loaders, detected from
content, never from the name. Sizes are of the stored pixels, so an EXIF rotation does not swap them
(decoders do not rotate either). JPEG, WebP and BMP are parsed here: JPEG for speed, the others
because imagesize takes the scaling bits of a WebP frame for its size and knows only one of two BMP
headers. A WAV file consists of RIFF chunks (Microsoft and IBM, 1991): ``fmt`` describes the
samples, ``data`` contains them. RF64 (EBU Tech 3306) is the same with 64-bit sizes.

Encoding: :func:`jpeg` and :func:`png` use Pillow and return an `EncodedImage`, so the schema knows
that the feature is an image. :func:`encode_png` writes unfiltered PNG files without Pillow.
"""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS: Final = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
)

# Start of a frame: C0 to CF except tables (C4, CC) and an extension (C8).
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class ImageHeader(NamedTuple):
    """Format and size in pixels of an image file."""

    format: str
    height: int
    width: int


def image_format(head: bytes) -> str | None:
    """Return the image format from the first 12 bytes of a file; None if it is unknown."""
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith(b"BM"):
        return "bmp"
    if head[:4] in (b"II*\0", b"MM\0*"):
        return "tiff"
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return height and width of a JPEG with adjacent segments, as nearly all have; else None.

    Segments are ``ff <marker> <size, 2 bytes>``; in a frame's segment (ITU T.81, B.2.2) precision,
    height and width follow.
    """
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            return (height, width) if height and width else None
        if not 0xC0 <= marker <= 0xFE or 0xD0 <= marker <= 0xDA:
            return None
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Return height and width of a WebP file (RFC 9649): of its canvas, or its only frame."""
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return _uint(data, 27, 3) + 1, _uint(data, 24, 3) + 1
    if chunk == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        sides = _uint(data, 21, 4)
        return (sides >> 14 & 0x3FFF) + 1, (sides & 0x3FFF) + 1
    if chunk == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        return _uint(data, 28, 2) & 0x3FFF, _uint(data, 26, 2) & 0x3FFF  # the other 2 bits scale
    return None


def _bmp_size(data: bytes) -> tuple[int, int] | None:
    """Return height and width of a BMP file; the stored height is negative for top-down rows."""
    header_bytes = _uint(data, 14, 4)
    if header_bytes == 12 and len(data) >= 22:  # OS/2
        return _uint(data, 20, 2), _uint(data, 18, 2)
    if header_bytes < 16 or len(data) < 26:
        return None
    height = int.from_bytes(data[22:26], "little", signed=True)
    return abs(height), int.from_bytes(data[18:22], "little", signed=True)


def _uint(data: bytes, at: int, num_bytes: int) -> int:
    return int.from_bytes(data[at : at + num_bytes], "little")


_SIZES: Final = {"jpeg": _jpeg_size, "webp": _webp_size, "bmp": _bmp_size}


def read_header(data: bytes) -> ImageHeader:
    """Return the header of an image file.

    Args:
        data: The whole file.

    Raises:
        ValueError: It is empty, not a known image format, or broken before its size.
    """
    if not data:
        raise ValueError("the file is empty")
    found = image_format(data[:16])
    if found is None:
        raise ValueError(f"not a known image format: the file begins with {data[:8]!r}")
    size = _SIZES[found](data) if found in _SIZES else None
    if size is None and found not in ("webp", "bmp"):
        import imagesize  # imports an HTTP client, which takes 40 ms

        size = imagesize.get(BytesIO(data), exif_rotation=False)[::-1]
    if size is None or min(size) <= 0:
        raise ValueError(f"the {found} header is broken or cut off: it has no size")
    return ImageHeader(found, *size)


# -- encoding with Pillow --------------------------------------------------------------------------

_JPEG_MODES: Final = ("L", "RGB", "CMYK")
_PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_CHANNELS: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "jpeg": {"uint8": (1, 3)},
    "png": {"uint8": (1, 2, 3, 4), "uint16": (1,), "bool": (1,)},
}
_SUBSAMPLINGS: Final = ("4:4:4", "4:2:2", "4:2:0")


class EncodedImage(bytes):
    """The bytes of an image file; the schema records a feature with such a value as an image."""

    __slots__ = ()

    @property
    def format(self) -> str | None:
        """``jpeg``, ``png``, ... from the first bytes; None if the format is unknown."""
        return image_format(self[:12])


def require_pillow() -> None:
    """Raise if Pillow is not installed.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "decoding and encoding images needs Pillow, which is not installed",
            hint='pip install "shardwriter[images]"',
        ) from error


def jpeg(image: Any, quality: int = 95, *, subsampling: str = "4:2:0") -> EncodedImage:
    """Return pixels as a JPEG file.

    Args:
        image: uint8[h, w], uint8[h, w, 1] (grey) or uint8[h, w, 3] (RGB); or a PIL image of the
            mode L, RGB or CMYK. Its pixels are stored unchanged, without rotation by its Exif tag;
            of its metadata only the colour profile is stored.
        quality: 1 to 100.
        subsampling: Chroma subsampling: ``4:4:4`` (none), ``4:2:2`` or ``4:2:0``.

    Returns:
        The file's bytes, a value for a feature.

    Raises:
        FeatureError: The pixels have another type or shape, or an option is invalid.
        MissingExtra: Pillow is not installed.
    """
    require_pillow()
    if type(quality) is not int or not 1 <= quality <= 100:
        raise FeatureError(f"jpeg: quality is {quality!r}, expected a whole number from 1 to 100")
    if subsampling not in _SUBSAMPLINGS:
        raise FeatureError(f"jpeg: subsampling is {subsampling!r}", hint=" or ".join(_SUBSAMPLINGS))
    pixels = _pil_image(image, "jpeg")
    if pixels.mode not in _JPEG_MODES:
        raise FeatureError(
            f"jpeg: a JPEG file can not store pixels of mode {pixels.mode}",
            hint="use sw.png(image), or image.convert('RGB')",
        )
    return EncodedImage(_encode(pixels, "jpeg", quality=quality, subsampling=subsampling))


def png(image: Any) -> EncodedImage:
    """Return pixels as a PNG file, losslessly.

    Args:
        image: uint8[h, w] or [h, w, c] with c of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA);
            uint16[h, w] or [h, w, 1]; bool[h, w] or [h, w, 1], stored with one bit per pixel; or a
            PIL image of the mode 1, L, LA, P, RGB, RGBA or I;16, whose pixels are stored unchanged.

    Returns:
        The file's bytes, a value for a feature.

    Raises:
        FeatureError: The pixels have another type or shape.
        MissingExtra: Pillow is not installed.
    """
    require_pillow()
    pixels = _pil_image(image, "png")
    if pixels.mode not in _PNG_MODES:
        raise FeatureError(
            f"png: a PNG file can not store pixels of mode {pixels.mode}",
            hint="use image.convert('RGB')",
        )
    return EncodedImage(_encode(pixels, "png"))


def _pil_image(image: Any, function: str) -> Image:
    """Return a PIL image unchanged, or one made from an array."""
    from PIL import Image as pil

    if isinstance(image, pil.Image):
        if not image.width or not image.height:
            raise FeatureError(f"{function}: the image has no pixels")
        return image
    try:
        array = np.asarray(image)
    except Exception as error:
        raise FeatureError(
            f"{function}: {type(image).__name__} can not be converted to an array: {error}"
        ) from error
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    channels = array.shape[2] if array.ndim == 3 else 1
    allowed = _CHANNELS[function].get(array.dtype.name, ())
    if array.ndim not in (2, 3) or channels not in allowed or not array.size:
        raise FeatureError(
            f"{function}: an array of {array.dtype}{list(array.shape)} is not an image",
            hint=_array_hint(array, function),
        )
    return pil.fromarray(np.ascontiguousarray(array))


def _array_hint(array: np.ndarray[Any, Any], function: str) -> str:
    if array.dtype.kind == "f":
        return "give uint8; for values from 0 to 1: (255 * array).round().astype('uint8')"
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.dtype == np.uint8:
        return "give height x width x channels: array.transpose(1, 2, 0)"
    if function == "jpeg":
        return "give uint8[height, width] or uint8[height, width, 3]"
    return "give uint8[height, width, 1 to 4 channels], or uint16 or bool of one channel"


def _encode(image: Image, format: str, **options: Any) -> bytes:
    try:
        return file_bytes(image, format, **options)
    except Exception as error:  # such as a side over 65,500
        raise FeatureError(f"{format}: Pillow can not encode the image: {error}") from error


def file_bytes(
    image: Image,
    format: str,
    *,
    quality: int = 95,
    subsampling: str = "4:2:0",
    lossless: bool = False,
) -> bytes:
    """Return an image as a file, without metadata except for the colour profile.

    Args:
        image: A PIL image of a mode that the format supports.
        format: ``jpeg``, ``png`` or ``webp``.
        quality: For JPEG and lossy WebP.
        subsampling: For JPEG.
        lossless: For WebP.
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
    """Extend the palette to all pixel values: Pillow drops bits beyond the palette's size."""
    if image.palette is None:
        return
    mode = image.palette.mode
    colours = image.getpalette(mode) or []
    highest: Any = image.getextrema()[1]
    if len(mode) * (highest + 1) > len(colours):
        image.putpalette(colours + [0] * (256 * len(mode) - len(colours)), mode)


# -- PNG without Pillow ----------------------------------------------------------------------------

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}  # grey, grey with alpha, RGB, RGBA


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels as a PNG file (https://www.w3.org/TR/png-3/) with unfiltered rows.

    Args:
        pixels: uint8[h, w] or uint8[h, w, c] with c of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4
            (RGBA).

    Raises:
        ValueError: The array has another shape or type, or no pixels.
    """
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES:
        raise ValueError(f"an array of {pixels.dtype}{list(pixels.shape)} is not an image")
    height, width, channels = pixels.shape
    if not height or not width:
        raise ValueError("the image has no pixels")
    # Each row starts with its filter; 0 is none.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(rows.tobytes())),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


# -- WAV -------------------------------------------------------------------------------------------

_CODES: Final = {1: "PCM", 3: "IEEE float", 6: "A-law", 7: "mu-law"}
_EXTENSIBLE: Final = 0xFFFE
# A subformat's GUID: a code as above in its first two bytes, then these bytes.
_GUID_TAIL: Final = bytes.fromhex("000000001000800000aa00389b71")
_BITS: Final = {1: (8, 16, 24, 32, 64), 3: (32, 64), 6: (8,), 7: (8,)}
_UNKNOWN_SIZE: Final = 0xFFFFFFFF


class WavHeader(NamedTuple):
    """The format of the samples, and the number of frames (one sample of each channel)."""

    sample_rate: int
    channels: int
    bits_per_sample: int
    num_frames: int


class _Format(NamedTuple):
    sample_rate: int
    channels: int
    bits: int
    frame_bytes: int


def read_wav_header(data: bytes) -> WavHeader:
    """Return the header of a WAV file.

    Args:
        data: The whole file.

    Raises:
        ValueError: It is not a WAV file, is cut off, contradicts itself, or has an unknown coding.
    """
    if not data:
        raise ValueError("the file is empty")
    if data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise ValueError(f"not a WAV file: it begins with {data[:12]!r}")
    found: _Format | None = None
    large_bytes: int | None = None
    at = 12
    while at + 8 <= len(data):
        name, num_bytes = struct.unpack_from("<4sI", data, at)
        at += 8
        body = data[at : at + min(num_bytes, 40)]
        if name == b"ds64" and data[:4] == b"RF64" and len(body) >= 24:
            (large_bytes,) = struct.unpack_from("<Q", body, 8)
        elif name == b"fmt ":
            found = _format(body)
        elif name == b"data":
            if found is None:
                raise ValueError("the chunk `data` comes before `fmt `")
            if num_bytes == _UNKNOWN_SIZE and large_bytes is not None:
                num_bytes = large_bytes
            riff_end = 8 + int.from_bytes(data[4:8], "little")
            if not num_bytes and riff_end <= at < len(data):
                # Chunks after empty samples would be included in the RIFF size.
                raise ValueError(
                    f"the header says 0 bytes of samples, but {len(data) - at:,} bytes follow it: "
                    "the file was probably written as a stream, without filling in its size"
                )
            return _wav_header(found, num_bytes, len(data) - at)
        at += num_bytes + num_bytes % 2  # a chunk of odd size is followed by a byte of padding
    missing = "`data`" if found else "`fmt ` and `data`"
    raise ValueError(f"the file is cut off or damaged: chunk {missing} is missing")


def _format(body: bytes) -> _Format:
    if len(body) < 16:
        raise ValueError(f"the chunk `fmt ` has {len(body)} bytes, expected at least 16")
    code, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if code == _EXTENSIBLE:
        if len(body) < 40 or body[26:40] != _GUID_TAIL:
            raise ValueError("the subformat of the samples is unknown")
        (code,) = struct.unpack_from("<H", body, 24)
    if code not in _CODES:
        raise ValueError(
            f"samples have the unknown format {code:#06x}; known are {', '.join(_CODES.values())}"
        )
    if not rate or not channels:
        raise ValueError(f"the header says {channels} channels at {rate:,} Hz")
    # Samples may have fewer bits than are stored: 5 bits take a byte, 20 bits three.
    stored_bits = -(-bits // 8) * 8
    if stored_bits not in _BITS[code] or (code != 1 and bits != stored_bits):
        raise ValueError(f"{_CODES[code]} of {bits} bits is unknown")
    if frame_bytes != channels * stored_bits // 8:
        raise ValueError(
            f"the header says {frame_bytes} bytes per frame, but {channels} channel(s) "
            f"of {bits} bits"
        )
    return _Format(rate, channels, bits, frame_bytes)


def _wav_header(found: _Format, num_bytes: int, present_bytes: int) -> WavHeader:
    if num_bytes > present_bytes:
        claimed = "an unknown number of" if num_bytes == _UNKNOWN_SIZE else f"{num_bytes:,}"
        raise ValueError(
            f"the header says {claimed} bytes of samples, but the file has {present_bytes:,}"
        )
    num_frames, rest = divmod(num_bytes, found.frame_bytes)
    if rest:
        raise ValueError(
            f"{num_bytes:,} bytes of samples are not a whole number of frames of "
            f"{found.frame_bytes} bytes"
        )
    return WavHeader(found.sample_rate, found.channels, found.bits, num_frames)
