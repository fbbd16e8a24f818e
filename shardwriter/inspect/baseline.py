"""Today's report held against one of an earlier set that was good.

``shard-stats --json > report.json`` is the baseline. Counts may grow and never fall; mixes, values
and shapes have to stay what they were, within what chance allows for their number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Protocol, TypedDict, Union

import msgspec

from shardwriter.errors import OptionError
from shardwriter.formats import Count, canonical, json_shape
from shardwriter.storage import inputs_for

# One thing in which a report differs from an earlier one, and how much of a change is chance.

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


# Features of a set held against those of an earlier one: type, presence, values, images.

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


# The shape of a baseline: the part of ``stats.schema.json`` that a comparison relies on.
#
# Every key may be absent but those that older versions have always written; one that is there has
# its type.

_Number = Union[float, Literal["nan", "inf", "-inf"], None]  # noqa: UP007 - evaluated by Python 3.10
_Level = Annotated[str, msgspec.Meta(pattern=r"^(0|1|0?\.[0-9]{1,20})$")]


class _Ends(TypedDict):
    min: _Number
    max: _Number


class _Span(_Ends, total=False):
    mean: _Number


class _Counted(TypedDict):
    count: Count


class _Numbers(_Counted, total=False):
    num_nan: Count
    num_inf: Count
    min: _Number
    max: _Number
    mean: _Number
    std: _Number
    quantiles: dict[_Level, _Number] | None


class _Formats(TypedDict):
    formats: dict[str, Count]


class _Images(_Formats, total=False):
    num_broken: Count
    width: _Span | None
    height: _Span | None


class _Feature(TypedDict, total=False):
    kind: str | None
    dtype: str | None
    encoding: str | None
    shape: list[Count | None] | None
    num_records: Count | None
    present: Count
    unset: Count
    lengths: _Span | None
    value_bytes: _Span | None
    numbers: _Numbers | None
    images: _Images | None


class _Labels(TypedDict, total=False):
    feature: str | None
    counts: dict[str, Count] | None


class _Set(TypedDict, total=False):
    name: str | None
    num_records: Count
    num_shards: Count
    compressions: list[str]
    kinds: dict[str, Count] | None
    labels: _Labels | None
    features: dict[str, _Feature] | None


class Baseline(_Set, total=False):
    """A report of ``shard-stats --json``; one without ``sets`` is about its only dataset."""

    schema: str
    num_defects: Count
    sets: list[_Set] | None


_SCHEMA: Final = "shardwriter.stats/1"
_FEW_RECORDS: Final = 5  # a label of which fewer are to be expected may be absent by chance
_HINT: Final = "a baseline is what `shard-stats --json` has printed of an earlier set"


def load_baseline(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the report of an earlier set.

    Args:
        path: A file with what ``shard-stats --json`` printed; also at a URL.

    Raises:
        OptionError: It can not be read, is no JSON, or is no report of this version.
    """
    path = os.fspath(path)
    try:
        _, text = inputs_for(path).read(path)
        baseline = canonical.loads(text)
    except OSError as error:
        why = f"the baseline can not be read: {error.strerror or error}"
        raise OptionError(why, path=path, hint=_HINT) from None
    except ValueError as error:
        raise OptionError(f"the baseline is no JSON: {error}", path=path, hint=_HINT) from None
    check_baseline(baseline, path)
    assert isinstance(baseline, dict)
    return baseline


def check_baseline(baseline: object, path: str | None = None) -> None:
    """Refuse what is no report, one of another version, or one of another shape.

    Raises:
        OptionError: Says what it is instead.
    """
    schema = baseline.get("schema") if isinstance(baseline, Mapping) else None
    if schema == _SCHEMA:
        try:
            json_shape.check(baseline, Baseline)
        except ValueError as error:
            wrong = f"the baseline is no report of shard-stats: {error}"
            raise OptionError(wrong, path=path, hint=_HINT) from None
        return
    if isinstance(schema, str) and schema.startswith("shardwriter.stats/"):
        what = f"the baseline is a report of version {schema!r}, and this program has {_SCHEMA!r}"
        raise OptionError(what, path=path, hint="make the baseline anew with `shard-stats --json`")
    raise OptionError("the baseline is no report of shard-stats", path=path, hint=_HINT)


def compare(report: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Difference]:
    """Say in what a report differs from an earlier one.

    Args:
        report: Today's, as :meth:`Report.to_json` gives it.
        baseline: The earlier one.

    Returns:
        The differences, set by set. Those of severity ``fail`` are what a gate should stop at.

    Raises:
        OptionError: The baseline is no report, or one of another version.
    """
    check_baseline(baseline)
    differences: list[Difference] = []
    if baseline.get("num_defects"):
        found = f"the baseline itself has {_plural(baseline['num_defects'], 'defect')}"
        differences.append(Difference("baseline", found, "note", baseline["num_defects"], None))
    old_sets, new_sets = _named(sets_of(baseline)), _named(sets_of(report))
    if len(old_sets) == len(new_sets) == 1:  # a dataset may be renamed
        old_sets = dict(zip(new_sets, old_sets.values(), strict=True))
    for name, old in old_sets.items():
        new = new_sets.get(name)
        if new is None:
            records = _plural(old.get("num_records", 0), "record")
            gone = f"dataset {name!r} with {records} is gone"
            differences.append(
                Difference("set-gone", gone, "fail", old.get("num_records"), None, name)
            )
        else:
            differences += _compare_sets(name, old, new)
    for name in new_sets:
        if name not in old_sets:
            new_one = f"dataset {name!r} is new"
            differences.append(Difference("set-new", new_one, "note", set_name=name))
    return differences


def sets_of(report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the sets of a report; of one that does not tell sets apart, all of it as one."""
    sets = report.get("sets")
    return sets if sets else [report]


def _named(sets: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Name sets; a second one of a name, in another folder, gets a number."""
    named: dict[str, Mapping[str, Any]] = {}
    for entry in sets:
        name = base = entry.get("name") or "dataset"
        count = 2
        while name in named:
            name, count = f"{base} ({count})", count + 1
        named[name] = entry
    return named


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _compare_sets(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    told: list[Difference] = []

    def tell(kind: str, detail: str, severity: Severity, before: Any, now: Any) -> None:
        told.append(Difference(kind, f"{name}: {detail}", severity, before, now, name))

    before, now = old.get("num_records", 0), new.get("num_records", 0)
    if now < before:
        lost = f"{before - now:,} fewer records ({now:,}, were {before:,})"
        tell("records", lost, "fail", before, now)
    elif now > before:
        tell("records", f"{now - before:,} more records ({now:,})", "note", before, now)
    for key, what in (("num_shards", "shards"), ("compressions", "compression")):
        if key in old and key in new and old[key] != new[key]:
            changed = f"{what} {_spelled(new[key])}, was {_spelled(old[key])}"
            tell(what, changed, "note", old[key], new[key])
    _compare_kinds(old, new, tell)
    _compare_labels(old.get("labels") or {}, new.get("labels") or {}, tell)
    return told + compare_features(name, old, new)


def _spelled(value: Any) -> str:
    return " and ".join(value) if isinstance(value, list) else f"{value:,}"


def _compare_kinds(old: Mapping[str, Any], new: Mapping[str, Any], tell: Any) -> None:
    before, now = old.get("kinds") or {}, new.get("kinds") or {}
    if not before or not now:
        return
    if appeared := sorted(set(now) - set(before)):
        count = sum(now[kind] for kind in appeared)
        tell("kinds", f"{_plural(count, 'record')} of kind {few(appeared)}", "fail", before, now)
        return
    moved, limit = share_moved(before, now)
    if moved > limit:
        tell("kinds", f"{moved:.1%} of the records changed their kind", "fail", before, now)


def _compare_labels(old: Mapping[str, Any], new: Mapping[str, Any], tell: Any) -> None:
    before, now = old.get("counts") or {}, new.get("counts") or {}
    if not before:
        return
    feature = old.get("feature")
    if not now:
        unknown = f"the baseline counts the labels of {feature!r} and this report does not"
        tell("labels", f"{unknown}: add --label {feature}", "fail", before, None)
        return
    if new.get("feature") != feature:
        other = f"labels are of feature {new.get('feature')!r}, were of {feature!r}"
        tell("labels", other, "fail", feature, new.get("feature"))
        return
    total = sum(now.values())
    share = total / sum(before.values()) if sum(before.values()) else 0.0
    gone = sorted(label for label in before if before[label] and not now.get(label))
    sure = [label for label in gone if before[label] * share >= _FEW_RECORDS]
    if gone:
        severity: Severity = "fail" if sure else "note"
        names = few(sure or gone)
        tell("label-gone", f"no record has label {names} any more", severity, gone, None)
    if appeared := sorted(label for label in now if now[label] and not before.get(label)):
        count = sum(now[label] for label in appeared)
        records = _plural(count, "record")
        tell("label-new", f"{records} with new label {few(appeared)}", "fail", None, appeared)
    moved, limit = share_moved(before, now)
    if moved > limit:
        tell("labels", f"the label mix has moved by {moved:.1%}", "fail", before, now)
