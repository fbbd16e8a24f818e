"""``segmentation`` of a COCO annotation, as lists of numbers: polygons, or runs of a mask.

A mask is runs of pixels, column by column, that lie outside and inside in turn, beginning outside;
COCO writes them as a list, or as text that holds six bits a character.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwriter.sources.annotations import RLE_COUNTS, RLE_NUM_COUNTS
from shardwriter.sources.detection import BadAnnotation, checked_numbers

_PREFIX: Final = "image/object/segmentation"
_X: Final = f"{_PREFIX}/polygon/x"
_Y: Final = f"{_PREFIX}/polygon/y"
_NUM_POINTS: Final = f"{_PREFIX}/polygon/num_points"
_NUM_POLYGONS: Final = f"{_PREFIX}/num_polygons"

POLYGON_COLUMNS: Final = {_X: "f", _Y: "f", _NUM_POINTS: "i", _NUM_POLYGONS: "i"}
"""Points of all polygons, points of each polygon, polygons of each object."""

RLE_COLUMNS: Final = {RLE_COUNTS: "q", RLE_NUM_COUNTS: "i"}
"""Runs of all masks, runs of each object."""


def add_segments(
    columns: dict[str, list[Any]], segments: Any, height: int, width: int, what: str
) -> None:
    """Add what stands under ``segmentation`` of one object.

    Raises:
        BadAnnotation: It is neither polygons nor runs, or not of this image.
    """
    runs: list[int] = []
    polygons: list[list[float]] = []
    if isinstance(segments, dict):
        runs = _runs(segments, height, width, what)
    elif isinstance(segments, list):
        polygons = [checked_numbers(polygon, f"a polygon of {what}") for polygon in segments]
        if any(len(polygon) % 2 for polygon in polygons):
            raise BadAnnotation(f"a polygon of {what} has an x without a y")
    elif segments is not None:
        raise BadAnnotation(f"segmentation of {what} is neither polygons nor run lengths")
    polygons = [polygon for polygon in polygons if polygon]
    for polygon in polygons:
        columns[_X] += [x / width for x in polygon[::2]]
        columns[_Y] += [y / height for y in polygon[1::2]]
        columns[_NUM_POINTS].append(len(polygon) // 2)
    columns[_NUM_POLYGONS].append(len(polygons))
    columns[RLE_COUNTS].extend(runs)
    columns[RLE_NUM_COUNTS].append(len(runs))


def _runs(segments: Mapping[str, Any], height: int, width: int, what: str) -> list[int]:
    if segments.get("size") != [height, width]:
        raise BadAnnotation(
            f"the mask of {what} has the size {segments.get('size')!r:.50}, and the image "
            f"{[height, width]}"
        )
    runs = segments.get("counts")
    if isinstance(runs, str):
        runs = unpacked_runs(runs)
    is_runs = isinstance(runs, list) and all(type(run) is int and run >= 0 for run in runs)
    if runs is None or not is_runs or sum(runs) != height * width:
        raise BadAnnotation(f"the run lengths of {what} are not those of an image of its size")
    return list(runs)


def unpacked_runs(text: str) -> list[int] | None:
    """Return the runs that COCO's compressed text holds; None where it is none.

    A character is 48 more than six bits: five of the number, the lowest first, and one that says
    whether more follow; the last of the five is the sign then. From the fourth number on each is
    the difference to the one two before it.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return None if shift else runs
