"""One thing in which a report differs from an earlier one, and how much of a change is chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Severity = Literal["fail", "note"]

MAX_SHARE_MOVED: Final = 0.05  # total variation between two mixes


@dataclass(frozen=True)
class Difference:
    """One thing that is not what it was.

    Attributes:
        kind: What has changed: ``records``, ``labels``, ``feature-gone``, ...
        detail: The change in words.
        severity: ``fail`` for what training suffers from, ``note`` for what is worth knowing.
        old: The value in the baseline.
        new: The value now.
        set_name: The dataset.
        feature: The feature, where one is concerned.
    """

    kind: str
    detail: str
    severity: Severity
    old: Any = None
    new: Any = None
    set_name: str = ""
    feature: str | None = None


def number(value: Any) -> float | None:
    """Return a number of a report, where NaN and infinities are texts; None where it has none."""
    return None if value is None else float(value)


def change_by_chance(num_old: int, num_new: int) -> float:
    """Return the standard error of a difference of two means, in standard deviations."""
    return math.sqrt(1 / max(1, num_old) + 1 / max(1, num_new))


def share_moved(old: Mapping[str, int], new: Mapping[str, int]) -> tuple[float, float]:
    """Return how far the shares of a mix have moved, and how far is too far.

    Args:
        old: Counts by name.
        new: The same later.

    Returns:
        The total variation distance: which part of the records would have to change sides. And its
        limit: 0.05, or what two draws of this size from one mix may differ in by chance.
    """
    num_old, num_new = sum(old.values()), sum(new.values())
    if not num_old or not num_new:
        return 0.0, MAX_SHARE_MOVED
    names = {*old, *new}
    moved = sum(abs(old.get(n, 0) / num_old - new.get(n, 0) / num_new) for n in names) / 2
    # E|X - Y| of two binomial shares is sqrt(2 / pi) of a standard error, and over k labels the
    # roots of p(1 - p) sum to less than sqrt(k). Each record moves the distance by 1/n at most, so
    # (McDiarmid) it is over its mean by two of these errors in fewer than 4 of 10,000 cases.
    error = change_by_chance(num_old, num_new)
    noise = (math.sqrt(len(names) / (2 * math.pi)) + 2) * error
    return moved, max(MAX_SHARE_MOVED, noise)


def few(names: Sequence[str], most: int = 5) -> str:
    """Return some names in quotes, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown
