"""What is annotated in pixels of an image, when the image gets another size.

Boxes, polygons and keypoints are stored by width and height of the image, so they stay. Areas are
in pixels, and run-length masks are of an image of one size: they follow here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import SourceError
from shardwriter.formats.example import UNSET

OBJECT: Final = "image/object/"
"""What the names of all annotations of objects begin with."""

AREA: Final = "image/object/area"
RLE_COUNTS: Final = "image/object/segmentation/rle/counts"
RLE_NUM_COUNTS: Final = "image/object/segmentation/rle/num_counts"

Size = tuple[int, int]
"""Width and height."""


def scaled_annotations(features: Mapping[str, Any], old: Size, new: Size) -> dict[str, Any]:
    """Return those annotations of an image that another size changes.

    Args:
        features: All features of the image.
        old: Its width and height before.
        new: Its width and height now.

    Raises:
        SourceError: Run lengths are not those of an image of the old size.
    """
    changed: dict[str, Any] = {}
    area = features.get(AREA)
    if area is not None and area is not UNSET:
        factor = new[0] * new[1] / (old[0] * old[1])
        changed[AREA] = (np.asarray(area, np.float64) * factor).astype(np.float32)
    counts, lengths = features.get(RLE_COUNTS), features.get(RLE_NUM_COUNTS)
    if any(value is None or value is UNSET for value in (counts, lengths)):
        return changed
    ends = np.cumsum(np.asarray(lengths, np.int64))
    runs = np.split(np.asarray(counts, np.int64), ends)
    if len(runs.pop()):
        raise SourceError("run lengths are left over behind those of the last object")
    scaled = [_scaled_runs(mask, old, new) if len(mask) else mask for mask in runs]
    changed[RLE_COUNTS] = np.concatenate([np.zeros(0, np.int64), *scaled])
    changed[RLE_NUM_COUNTS] = np.array([len(mask) for mask in scaled], np.int64)
    return changed


def _scaled_runs(runs: NDArray[np.int64], old: Size, new: Size) -> NDArray[np.int64]:
    """Scale a mask by nearest neighbour: column by column, runs outside and inside in turn."""
    if runs.min() < 0 or runs.sum() != old[0] * old[1]:
        raise SourceError(f"run lengths are not those of an image of {old[0]} x {old[1]} pixels")
    inside = np.arange(len(runs)) % 2 == 1
    columns = np.repeat(inside, runs).reshape(old)
    pixels = columns[np.ix_(_nearest(old[0], new[0]), _nearest(old[1], new[1]))].ravel()
    begins = np.flatnonzero(np.diff(pixels)) + 1
    edges = np.concatenate([[0], begins, [pixels.size]])
    found = np.diff(edges)
    return np.concatenate([[0], found]) if pixels[0] else found


def _nearest(old: int, new: int) -> NDArray[np.int64]:
    """Return which of the old pixels of a side each new one is: the one under its middle."""
    return (2 * np.arange(new, dtype=np.int64) + 1) * old // (2 * new)
