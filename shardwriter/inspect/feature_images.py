"""Images among the byte strings of a feature: formats and sizes in pixels, from their headers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from shardwriter.formats.images import image_format, read_header
from shardwriter.inspect.ranges import Range

_FIRST_BYTES: Final = frozenset(b"\xff\x89GRBIM")  # of the formats that `images` knows
_SMALLEST_BYTES: Final = 26  # the header of the smallest BMP; a GIF of one pixel takes 35


class ImageStats:
    """Formats and sizes of images; it merges exactly.

    Attributes:
        formats: Images by format, those that are broken among them.
        num_broken: Images whose header breaks off before it tells a size.
        height: In pixels, of the others.
        width: In pixels, of the others.
    """

    def __init__(self) -> None:
        self.formats: Counter[str] = Counter()
        self.num_broken = 0
        self.height = Range()
        self.width = Range()

    def add(self, value: bytes, count: int = 1) -> None:
        """Count a value that comes ``count`` times, if it is an image."""
        if len(value) < _SMALLEST_BYTES or value[0] not in _FIRST_BYTES:
            return
        found = image_format(value[:16])
        if found is None or (found == "bmp" and value[6:10] != b"\0\0\0\0"):
            return  # a text may well begin with BM
        self.formats[found] += count
        try:
            header = read_header(value)
        except ValueError:
            self.num_broken += count
            return
        self.height.add(header.height, count)
        self.width.add(header.width, count)

    def merge(self, other: ImageStats) -> None:
        """Add other images."""
        self.formats.update(other.formats)
        self.num_broken += other.num_broken
        self.height.merge(other.height)
        self.width.merge(other.width)

    def to_json(self) -> dict[str, Any] | None:
        """Return the report's ``images``; None where there are none."""
        if not self.formats:
            return None
        return {
            "formats": dict(sorted(self.formats.items())),
            "height": self.height.to_json(),
            "num_broken": self.num_broken,
            "width": self.width.to_json(),
        }
