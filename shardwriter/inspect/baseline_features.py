"""Features of a set held against those of an earlier one: type, presence, values, images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

from shardwriter.inspect.differences import (
    Difference,
    Severity,
    change_by_chance,
    few,
    number,
    share_moved,
)

_MAX_MEAN_MOVED: Final = 0.25  # standard deviations
_MAX_ERRORS: Final = 5  # standard errors of a mean that are chance
_MAX_LEVEL_MOVED: Final = 0.1  # of a quantile
_MAX_SHARE_FALL: Final = 0.01
_MAX_SIZE_RATIO: Final = 2.0
_FEW_NUMBERS: Final = 100  # whole numbers in a smaller range come again and again


class _Tell(Protocol):
    def __call__(
        self, kind: str, detail: str, severity: Severity, old: Any = None, new: Any = None
    ) -> None: ...


def compare_features(
    set_name: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[Difference]:
    """Say which features of a set are not what they were.

    Args:
        set_name: What the set is called.
        old: The set in the baseline.
        new: The set now.
    """
    differences: list[Difference] = []
    feature: str | None = None

    def tell(kind: str, detail: str, severity: Severity, old: Any = None, new: Any = None) -> None:
        where = set_name if feature is None else f"{set_name}, feature {feature!r}"
        told = Difference(kind, f"{where}: {detail}", severity, old, new, set_name, feature)
        differences.append(told)

    before, now = old.get("features") or {}, new.get("features") or {}
    if before and not now:
        unknown = f"the baseline has {len(before):,} features and this report none"
        tell("features", f"{unknown}: add --features", "fail")
        return differences
    if not before:
        if now:
            tell("features", "the baseline was made without --features", "note")
        return differences
    if has_statistics(before) and not has_statistics(now):
        unknown = "the baseline has statistics of features and this report has none"
        tell("features", f"{unknown}: add --features", "fail")
    if gone := [name for name in before if name not in now]:
        tell("feature-gone", f"feature {few(gone)} is gone", "fail", gone)
    if appeared := [name for name in now if name not in before]:
        tell("feature-new", f"feature {few(appeared)} is new", "note", None, appeared)
    for feature in before:
        if feature in now:
            _compare_types(before[feature], now[feature], tell)
            _compare_presence(before[feature], now[feature], old, new, tell)
            _compare_numbers(before[feature].get("numbers"), now[feature].get("numbers"), tell)
            _compare_sizes(before[feature], now[feature], tell)
            _compare_images(before[feature].get("images"), now[feature].get("images"), tell)
    return differences


def has_statistics(features: Mapping[str, Any]) -> bool:
    """Tell features of which records were read from those that a manifest lists."""
    return any("absent" in entry for entry in features.values())


def _compare_types(old: Mapping[str, Any], new: Mapping[str, Any], tell: _Tell) -> None:
    for key in ("kind", "dtype", "shape", "encoding"):
        if key in old and key in new and old[key] != new[key]:
            tell(
                f"feature-{key}", f"{key} is {new[key]}, was {old[key]}", "fail", old[key], new[key]
            )
            return  # another kind brings another dtype along
    if old.get("lengths") and new.get("lengths") and old.get("shape") == new.get("shape"):
        before, now = old["lengths"], new["lengths"]
        if before["min"] == before["max"] and (now["min"], now["max"]) != (
            before["min"],
            before["max"],
        ):
            detail = f"{now['min']} to {now['max']} values, always were {before['min']}"
            tell("feature-length", detail, "fail", before, now)


def _compare_presence(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    old_set: Mapping[str, Any],
    new_set: Mapping[str, Any],
    tell: _Tell,
) -> None:
    before, now = _share(old, "present", old_set), _share(new, "present", new_set)
    if before is not None and now is not None and before > now:
        noise = (
            3
            * _deviation(before)
            * change_by_chance(_records(old, old_set), _records(new, new_set))
        )
        if before == 1 or before - now > _MAX_SHARE_FALL + noise:
            detail = f"present in {_percent(now)} of the records, was in {_percent(before)}"
            tell("feature-presence", detail, "fail", before, now)
    before, now = _share(old, "unset", old_set), _share(new, "unset", new_set)
    if before is not None and now is not None and (now > 0 if before == 0 else now > 2 * before):
        detail = f"without a value in {_percent(now)} of the records, was in {_percent(before)}"
        tell("feature-unset", detail, "fail", before, now)


def _records(entry: Mapping[str, Any], of_set: Mapping[str, Any]) -> int:
    return int(entry.get("num_records", of_set.get("num_records")) or 0)


def _share(entry: Mapping[str, Any], key: str, of_set: Mapping[str, Any]) -> float | None:
    total = _records(entry, of_set)
    return entry[key] / total if key in entry and total else None


def _deviation(share: float) -> float:
    """Return the standard deviation of one draw that succeeds in this share of the cases."""
    return math.sqrt(max(0.0, share * (1 - share)))


def _percent(share: float) -> str:
    """Spell a share so that a single record among many does not round away."""
    if 0 < share < 0.0005 or 0.9995 < share < 1:
        return f"{share:.4%}"
    return f"{share:.1%}"


# -- values ----------------------------------------------------------------------------------------


def _compare_numbers(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, tell: _Tell
) -> None:
    if not old or not new or not old["count"] or not new["count"]:
        return
    noise = change_by_chance(old["count"], new["count"])
    for key, what in (("num_nan", "NaN"), ("num_inf", "infinite")):
        before, now = (e.get(key, 0) / e["count"] for e in (old, new))
        chance = 3 * _deviation(before) * noise
        if now > 0 if before == 0 else now > before + _MAX_SHARE_FALL + chance:
            detail = f"{_percent(now)} of the values are {what}, were {_percent(before)}"
            tell(f"values-{key.removeprefix('num_')}", detail, "fail", before, now)
    means = number(old.get("mean")), number(new.get("mean"))
    std, now_std = number(old.get("std")), number(new.get("std"))
    spread = None if std is None or now_std is None else (std, now_std)
    if None not in means and spread and _moved_far(means, spread, (old["count"], new["count"])):
        detail = f"mean is {means[1]:.6g}, was {means[0]:.6g} (standard deviation {std:.6g})"
        tell("values-mean", detail, "fail", means[0], means[1])
        return
    before_points, now_points = _levels(old), _levels(new)
    if before_points and now_points:
        gap, value = _largest_gap(before_points, now_points)
        if gap > _MAX_LEVEL_MOVED + 2 * noise:
            detail = f"another distribution: {gap:.0%} of the values have gone over {value:.6g}"
            tell("values", detail, "fail", old["quantiles"], new["quantiles"])
            return
    _compare_ranges(old, new, tell)


def _moved_far(
    means: tuple[float | None, float | None], stds: tuple[float, float], counts: tuple[int, int]
) -> bool:
    """Tell a mean that moved by a part of the old spread, and by more than means of samples do."""
    before, now = means
    assert before is not None
    assert now is not None
    if not all(map(math.isfinite, (before, now, *stds))):
        return False  # NaN and infinite values are told of by themselves
    # The larger spread counts: where values have long tails, a small sample's may be far too small.
    error = max(stds) * change_by_chance(*counts)
    rounding = 1e-6 * max(abs(before), abs(now))
    return abs(now - before) > max(_MAX_MEAN_MOVED * stds[0] + _MAX_ERRORS * error, rounding)


def _levels(numbers: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the quantiles as (value, level), with the ends; empty where they are not known."""
    quantiles = numbers.get("quantiles")
    if not quantiles:
        return []
    points = [(number(numbers.get("min")), 0.0), (number(numbers.get("max")), 1.0)]
    points += [(number(value), float(level)) for level, value in quantiles.items()]
    known = [(value, level) for value, level in points if value is not None]
    if not all(math.isfinite(value) for value, _ in known):
        return []
    return sorted(known, key=lambda point: (point[1], point[0]))


def _largest_gap(
    old: list[tuple[float, float]], new: list[tuple[float, float]]
) -> tuple[float, float]:
    """Return how far two distributions are apart as far as quantiles tell, and at which value.

    That is the Kolmogorov-Smirnov distance of the lines through both. Where many values are equal
    these go up in steps, and only what the quantiles prove counts: never too much.
    """
    worst = 0.0, 0.0
    has_steps = _has_steps([value for value, _ in old]) or _has_steps([value for value, _ in new])
    for value in {value for value, _ in old + new}:
        low, high = _level_of(old, value, has_steps)
        other_low, other_high = _level_of(new, value, has_steps)
        gap = max(0.0, low - other_high, other_low - high)
        worst = max(worst, (gap, value))
    return worst


def _level_of(
    points: list[tuple[float, float]], value: float, has_steps: bool
) -> tuple[float, float]:
    """Return between which bounds the share of values up to this one is."""
    low_value, low = max((p for p in points if p[0] <= value), default=(value, 0.0))
    high_value, high = min((p for p in points if p[0] > value), default=(value, 1.0))
    if has_steps or low_value == high_value:
        return low, high
    level = low + (high - low) * (value - low_value) / (high_value - low_value)
    return level, level


def _has_steps(values: list[float]) -> bool:
    """Tell values of which many are equal: some quantiles are, or all are small whole numbers."""
    if len(set(values)) < len(values):
        return True
    return max(values) - min(values) < _FEW_NUMBERS and all(v == int(v) for v in values)


def _compare_ranges(old: Mapping[str, Any], new: Mapping[str, Any], tell: _Tell) -> None:
    low, high = number(old.get("min")), number(old.get("max"))
    now_low, now_high = number(new.get("min")), number(new.get("max"))
    if low is None or high is None or now_low is None or now_high is None:
        return
    if not all(map(math.isfinite, (low, high, now_low, now_high))) or low >= high:
        return
    if now_low < low - (high - low) or now_high > high + (high - low):
        detail = f"from {now_low:.6g} to {now_high:.6g}, was from {low:.6g} to {high:.6g}"
        tell("values-range", detail, "note", [low, high], [now_low, now_high])


# -- bytes and images ------------------------------------------------------------------------------


def _compare_sizes(old: Mapping[str, Any], new: Mapping[str, Any], tell: _Tell) -> None:
    for key, what in (("lengths", "values a record"), ("value_bytes", "bytes a value")):
        before, now = (number((entry.get(key) or {}).get("mean")) for entry in (old, new))
        if before and now and not 1 / _MAX_SIZE_RATIO <= now / before <= _MAX_SIZE_RATIO:
            detail = f"{now:,.1f} {what} in the mean, were {before:,.1f}"
            tell(f"feature-{key.replace('_', '-')}", detail, "note", before, now)


def _compare_images(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, tell: _Tell
) -> None:
    if not old:
        return
    before = {name: count for name, count in old["formats"].items() if count}
    now = {name: count for name, count in (new or {}).get("formats", {}).items() if count}
    if before and not now:
        tell("image-format", "the values are no images any more", "fail", before, now)
        return
    if new is None:
        return
    if appeared := sorted(set(now) - set(before)):
        detail = f"images of format {few(appeared)}, were {few(sorted(before))} only"
        tell("image-format", detail, "fail", before, now)
    else:
        moved, limit = share_moved(before, now)
        if moved > limit:
            tell("image-format", f"{moved:.1%} of the images changed format", "fail", before, now)
    if new.get("num_broken", 0) and not old.get("num_broken", 0):
        detail = f"{new['num_broken']:,} values are broken images, none was"
        tell("images-broken", detail, "fail", 0, new["num_broken"])
    for side in ("width", "height"):
        was, is_now = old.get(side) or {}, new.get(side) or {}
        if was and is_now and (was["min"], was["max"]) != (is_now["min"], is_now["max"]):
            detail = f"{side} {is_now['min']} to {is_now['max']}, was {was['min']} to {was['max']}"
            always = was["min"] == was["max"]
            tell("image-size", detail, "fail" if always else "note", was, is_now)
