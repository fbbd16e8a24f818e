"""The geometry of the page's charts: numbers in, paths and rectangles out.

All are drawn in a box of their own and stretched to their place by the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from shardwriter.report.render import bytes_text, plural

_HEIGHT: Final = 100.0
_MAX_HEAT_ROWS: Final = 12
_MAX_HEAT_COLUMNS: Final = 48
_LEVELS: Final = (2.0, 4.0, 8.0)  # standard deviations at which a cell takes on more colour


def strip_chart(
    values: Sequence[int],
    is_bad: Sequence[bool],
    unit: str,
    *,
    what: str = "shard",
    max_columns: int = 400,
) -> dict[str, Any]:
    """Return bars of all shards; where they are many each stands for a run of them.

    The dark part of a bar is the smallest of its run, the light part the largest.

    Args:
        values: One of each shard.
        is_bad: Whether a shard is damaged.
        unit: ``records`` or ``bytes``.
        what: What a value is of.
        max_columns: How many bars there may be.
    """
    count, most = len(values), max(values, default=0)
    mean = sum(values) / count if count else 0.0
    num_columns = min(count, max_columns)
    gap = 0.0 if num_columns > 120 else 0.2
    paths = {"low": "", "high": "", "bad": ""}
    for column in range(num_columns):
        first = column * count // num_columns
        last = (column + 1) * count // num_columns
        run = values[first:last]
        low, high = _height(min(run), most), _height(max(run), most)
        which = "bad" if any(is_bad[first:last]) else "low"
        paths[which] += _bar(column, 1 - gap, low)
        if high > low:
            paths["high"] += _bar(column, 1 - gap, high)
    text = bytes_text if unit == "bytes" else "{:,.0f}".format
    least = min(values, default=0)
    spread = f"{text(least)} to {text(most)}, mean {text(mean)}"
    even = f"{text(least)} each" if least == most else spread
    return {
        "unit": unit,
        "width": num_columns,
        "paths": paths,
        "mean_y": round(_HEIGHT - _height(mean, most), 2),
        "summary": f"{plural(count, what)}, {even}",
        "num_bad": sum(is_bad),
        "is_merged": count > num_columns,
    }


def _height(value: float, most: float) -> float:
    return _HEIGHT * value / most if most else 0.0


def _bar(column: int, width: float, height: float) -> str:
    return f"M{column} {_HEIGHT:g}v{-height:.2f}h{width:g}v{height:.2f}z"


def rank_bars(values: Sequence[int], max_columns: int) -> dict[str, Any] | None:
    """Return small bars of what each rank gets; None where there is nothing to compare."""
    if len(values) < 2:
        return None
    return strip_chart(
        values, [False] * len(values), "records", what="rank", max_columns=max_columns
    )


def box_chart(quantiles: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Return the marks of a box plot between the 1st and the 99th percentile, each of 0 to 100."""
    if not quantiles:
        return None
    names = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
    values = [quantiles.get(name) for name in names]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        return None
    numbers = [float(value) for value in values if value is not None]
    # Halved, as the span of two finite numbers may be none.
    low, span = numbers[0] / 2, numbers[-1] / 2 - numbers[0] / 2
    if span <= 0:
        return None
    marks = [round(100 * min(1.0, max(0.0, (value / 2 - low) / span)), 2) for value in numbers]
    return dict(zip(("q01", "q05", "q25", "q50", "q75", "q95", "q99"), marks, strict=True))


def heat_chart(labels: Mapping[str, Any], *, num_shards: int) -> dict[str, Any] | None:
    """Return how far each shard's mix is from that of all, for the most frequent labels.

    A cell's level is the distance from the expected count in standard deviations, so that a shard
    with few records does not look worse than it is. Many shards are put together.
    """
    shards, counts = labels.get("shards") or {}, labels.get("counts") or {}
    if num_shards < 2 or len(counts) < 2 or not shards:
        return None
    if any(len(row) != num_shards for row in shards.values()):
        return None
    num_columns = min(num_shards, _MAX_HEAT_COLUMNS)
    edges = [column * num_shards // num_columns for column in range(num_columns + 1)]
    sums = {label: [sum(row[a:b]) for a, b in pairwise(edges)] for label, row in shards.items()}
    in_column = [sum(column) for column in zip(*sums.values(), strict=True)]
    total = sum(in_column)
    if not total:
        return None
    most = sorted(sums, key=lambda label: (-sum(sums[label]), label))[:_MAX_HEAT_ROWS]
    rows = []
    for label in most:
        share = sum(sums[label]) / total
        cells = [
            _level(found, share * here) for found, here in zip(sums[label], in_column, strict=True)
        ]
        rows.append({"label": label, "cells": cells})
    return {
        "rows": rows,
        "width": num_columns,
        "is_merged": num_columns < num_shards,
        "num_far": sum(abs(level) > 1 for row in rows for level in row["cells"]),
    }


def _level(found: int, expected: float) -> int:
    """Return -3 to 3: far fewer than expected to far more."""
    distance = (found - expected) / math.sqrt(max(expected, 1.0))
    level = sum(abs(distance) > limit for limit in _LEVELS)
    return level if distance > 0 else -level
