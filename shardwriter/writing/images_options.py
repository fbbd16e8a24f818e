"""What is done to images before they are written: a size, and the quality of JPEGs.

Nothing of it touches pixels; see :mod:`shardwriter.writing.edit`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from shardwriter.errors import OptionError

MAX_SIDE: Final = 65_500  # pixels; the most that a JPEG can have
DEFAULT_QUALITY: Final = 95

_EXACT: Final = re.compile(r"(\d+)x(\d+)", re.ASCII)


@dataclass(frozen=True)
class ImageOptions:
    """How images are made smaller, or larger.

    An image whose stored size is what it should be is passed through, byte for byte. Others are
    decoded, turned as their Exif tag says, resized and encoded again: JPEG, PNG and WebP files
    stay what they are (lossless ones lossless), other formats become PNG. ``quality`` alone makes
    every JPEG anew.

    Attributes:
        resize: Pixels of the shorter side, the other in proportion; or (width, height), whatever
            the proportion. Enlarges too.
        max_side: Pixels that the longer side may have; larger images shrink in proportion.
        quality: Of JPEG and lossy WebP files that are made, 1 to 100; None for 95.

    Raises:
        OptionError: A value is none of these, two sizes are given, or nothing is.
    """

    resize: int | tuple[int, int] | None = None
    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.resize is None and self.max_side is None and self.quality is None:
            raise OptionError("nothing says what is to be done to images")
        if self.resize is not None and self.max_side is not None:
            raise OptionError(
                "resize and max_side are two sizes", hint="leave one of --resize and --max-side off"
            )
        sides = self.resize if isinstance(self.resize, tuple) else (self.resize,)
        is_size = self.resize is None or (len(sides) in (1, 2) and all(map(_is_side, sides)))
        if not is_size or (len(sides) == 1 and isinstance(self.resize, tuple)):
            raise OptionError(
                f"resize is {self.resize!r}",
                hint=f"it is pixels of the shorter side, or WIDTHxHEIGHT, each 1 to {MAX_SIDE:,}",
            )
        if self.max_side is not None and not _is_side(self.max_side):
            raise OptionError(f"max_side is {self.max_side!r}: it is a number, 1 to {MAX_SIDE:,}")
        if self.quality is not None and not (_is_side(self.quality) and self.quality <= 100):
            raise OptionError(f"quality is {self.quality!r}: it is a number from 1 to 100")

    @property
    def is_sized(self) -> bool:
        """Whether images get another size; else JPEGs are only encoded anew."""
        return self.resize is not None or self.max_side is not None

    def size_for(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) of what becomes of an image."""
        if isinstance(self.resize, tuple):
            return self.resize
        if self.resize is not None:
            return _scaled(width, height, self.resize, min(width, height))
        longer = max(width, height)
        if self.max_side is None or longer <= self.max_side:
            return width, height
        return _scaled(width, height, self.max_side, longer)

    def to_json(self) -> dict[str, Any]:
        """Return what decides the bytes."""
        size = list(self.resize) if isinstance(self.resize, tuple) else self.resize
        return {
            "max_side": self.max_side,
            "quality": self.quality or DEFAULT_QUALITY,
            "resize": size,
        }


def _is_side(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIDE


def _scaled(width: int, height: int, wanted: int, of: int) -> tuple[int, int]:
    """Scale by wanted / of, rounded half up; no side vanishes."""
    return (
        max(1, (2 * width * wanted + of) // (2 * of)),
        max(1, (2 * height * wanted + of) // (2 * of)),
    )


def image_options(
    resize: str | None = None, max_side: int | None = None, quality: int | None = None
) -> ImageOptions | None:
    """Return what ``--resize``, ``--max-side`` and ``--quality`` say; None where none is given.

    Raises:
        OptionError: ``--resize`` is neither a number nor two, or as :class:`ImageOptions` says.
    """
    if resize is None and max_side is None and quality is None:
        return None
    size: int | tuple[int, int] | None = None
    if resize is not None:
        exact = _EXACT.fullmatch(resize)
        if exact is not None:
            size = int(exact[1]), int(exact[2])
        elif resize.isascii() and resize.isdigit():
            size = int(resize)
        else:
            raise OptionError(
                f"--resize: {resize!r} is no size",
                hint="256 is the shorter side, 256x192 is width and height",
            )
    return ImageOptions(size, max_side, quality)
