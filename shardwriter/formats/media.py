"""What an image file says of itself in its first bytes: format and size.

Formats are those that ``tf.io.decode_image`` and the common loaders read. A file is taken by its
content, never by its name. The sizes are of the stored pixels, so an EXIF
rotation does not swap them (decoders do not rotate either).

JPEG, WebP and BMP are read here: the first since it is quick, the others since imagesize takes the
scaling bits of a WebP frame for its size, and knows one of two BMP headers.
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


# Start of a frame: all of C0 to CF but tables (C4, CC) and an extension (C8).
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class ImageHeader(NamedTuple):
    """Format, and size in pixels."""

    format: str
    height: int
    width: int


def image_format(head: bytes) -> str | None:
    """Tell the format from the first 12 bytes; None where it is no known image."""
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
    """Read height and width of a JPEG whose segments follow each other, as nearly all do.

    Segments are ``ff <marker> <size, 2 bytes>``; a frame's (ITU T.81, B.2.2) goes on with its
    precision, height and width. None is for a more patient reader.
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
    """Read height and width of a WebP file (RFC 9649): of its canvas, or its only frame."""
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
    """Read height and width of a BMP file; a negative height says that the top row comes first."""
    header_bytes = _uint(data, 14, 4)
    if header_bytes == 12 and len(data) >= 22:  # of OS/2
        return _uint(data, 20, 2), _uint(data, 18, 2)
    if header_bytes < 16 or len(data) < 26:
        return None
    height = int.from_bytes(data[22:26], "little", signed=True)
    return abs(height), int.from_bytes(data[18:22], "little", signed=True)


def _uint(data: bytes, at: int, num_bytes: int) -> int:
    return int.from_bytes(data[at : at + num_bytes], "little")


_SIZES: Final = {"jpeg": _jpeg_size, "webp": _webp_size, "bmp": _bmp_size}


def read_header(data: bytes) -> ImageHeader:
    """Read the header of an image file.

    Args:
        data: The whole file.

    Raises:
        ValueError: It is empty, no known image, or broken before its size; says which.
    """
    if not data:
        raise ValueError("the file is empty")
    found = image_format(data[:16])
    if found is None:
        raise ValueError(f"no image that is known begins with {data[:8]!r}")
    size = _SIZES[found](data) if found in _SIZES else None
    if size is None and found not in ("webp", "bmp"):
        import imagesize  # brings an HTTP client along: 40 ms that only images should cost

        size = imagesize.get(BytesIO(data), exif_rotation=False)[::-1]
    if size is None or min(size) <= 0:
        raise ValueError(f"the {found} header is broken or cut off: it gives no size")
    return ImageHeader(found, *size)


# Image files made of pixels: ``sw.jpeg`` and ``sw.png``.
#
# What they return is the bytes of a file, of a class of its own: so the schema knows that the
# feature is an image without being told. Pillow makes the files; nothing else here needs it.

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


# Writing PNG: the few lines that pictures of raw pixels need.
#
# The format is that of https://www.w3.org/TR/png-3/: a signature, then chunks of length, type, data
# and CRC-32. Rows are stored unfiltered, so files are larger than an image tool would make them.

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}  # grey, grey with alpha, RGB, RGBA


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels as a PNG file.

    Args:
        pixels: uint8[h, w] or uint8[h, w, c] with c of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4
            (RGBA).

    Raises:
        ValueError: The array has another shape or type, or no pixels.
    """
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES:
        raise ValueError(f"no picture is {pixels.dtype}{list(pixels.shape)}")
    height, width, channels = pixels.shape
    if not height or not width:
        raise ValueError("a picture without pixels")
    # In front of each row stands its filter; 0 is none.
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


# What a WAV file says of itself: rate, channels, bits, and how many frames it holds.
#
# A WAV file is RIFF chunks (Microsoft and IBM, 1991): ``fmt`` says how samples are stored, ``data``
# holds them. Samples are integers (PCM), IEEE floats, A-law or mu-law; each takes the same number
# of bytes, so that their number follows from that of the bytes. RF64 (EBU Tech 3306) is the same
# with sizes of 64 bits.

_CODES: Final = {1: "PCM", 3: "IEEE float", 6: "A-law", 7: "mu-law"}
_EXTENSIBLE: Final = 0xFFFE
# The rest of a subformat's GUID: its first two bytes are a code as above.
_GUID_TAIL: Final = bytes.fromhex("000000001000800000aa00389b71")
_BITS: Final = {1: (8, 16, 24, 32, 64), 3: (32, 64), 6: (8,), 7: (8,)}
_UNKNOWN_SIZE: Final = 0xFFFFFFFF


class WavHeader(NamedTuple):
    """What ``fmt`` says, and how many frames (one sample of each channel) there are."""

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
    """Read the header of a WAV file.

    Args:
        data: The whole file.

    Raises:
        ValueError: It is none, is cut off, contradicts itself, or is coded in an unknown way.
    """
    if not data:
        raise ValueError("the file is empty")
    if data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise ValueError(f"this is no WAV file: it begins with {data[:12]!r}")
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
                # Chunks behind empty samples would be counted in the size of the whole.
                raise ValueError(
                    f"the header says that there are no samples, and {len(data) - at:,} bytes "
                    "follow it: whoever wrote the file could not go back and fill it in"
                )
            return _counted(found, num_bytes, len(data) - at)
        at += num_bytes + num_bytes % 2  # a chunk of odd size is followed by a byte of padding
    missing = "`data`" if found else "`fmt ` and `data`"
    raise ValueError(f"the file is cut off or damaged: it has no chunk {missing}")


def _format(body: bytes) -> _Format:
    if len(body) < 16:
        raise ValueError(f"the chunk `fmt ` has {len(body)} bytes, at least 16 are needed")
    code, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if code == _EXTENSIBLE:
        if len(body) < 40 or body[26:40] != _GUID_TAIL:
            raise ValueError("the subformat of the samples is not known")
        (code,) = struct.unpack_from("<H", body, 24)
    if code not in _CODES:
        raise ValueError(
            f"samples are coded in format {code:#06x}; known are {', '.join(_CODES.values())}"
        )
    if not rate or not channels:
        raise ValueError(f"the header says {channels} channels at {rate:,} Hz")
    # Bits may be fewer than those that are stored: 5 bits stand in a byte, 20 in three.
    stored_bits = -(-bits // 8) * 8
    if stored_bits not in _BITS[code] or (code != 1 and bits != stored_bits):
        raise ValueError(f"{_CODES[code]} of {bits} bits is not known")
    if frame_bytes != channels * stored_bits // 8:
        raise ValueError(
            f"the header says {frame_bytes} bytes a frame, and {channels} channel(s) of {bits} bits"
        )
    return _Format(rate, channels, bits, frame_bytes)


def _counted(found: _Format, num_bytes: int, there_bytes: int) -> WavHeader:
    if num_bytes > there_bytes:
        said = "an unknown number of" if num_bytes == _UNKNOWN_SIZE else f"{num_bytes:,}"
        raise ValueError(f"the header says {said} bytes of samples, and {there_bytes:,} are there")
    num_frames, rest = divmod(num_bytes, found.frame_bytes)
    if rest:
        raise ValueError(
            f"{num_bytes:,} bytes of samples are no whole number of frames of "
            f"{found.frame_bytes} bytes"
        )
    return WavHeader(found.sample_rate, found.channels, found.bits, num_frames)
