"""Comparison of a report with a baseline: the report of an earlier, good set.

``shard-stats --json > report.json`` writes a baseline. Counts may grow but not fall; label mixes,
values and shapes must stay the same within sampling error. Every comparison is a measure with a
limit: the total variation distance of mixes, the shift of a mean in standard deviations, the
Kolmogorov-Smirnov distance of quantiles.
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

Severity = Literal["fail", "note"]

MAX_SHARE_MOVED: Final = 0.05  # total variation between two mixes


@dataclass(frozen=True)
class Difference:
    """A difference between a report and its baseline.

    Attributes:
        kind: What has changed: ``records``, ``labels``, ``feature-gone``, ...
        detail: The change in words.
        severity: ``fail`` if it can harm training, else ``note``.
        old: The value in the baseline.
        new: The value in the report.
        set_name: The dataset.
        feature: The feature; None if the difference is not about one.
    """

    kind: str
    detail: str
    severity: Severity
    old: Any = None
    new: Any = None
    set_name: str = ""
    feature: str | None = None


def number(value: Any) -> float | None:
    """Return a number of a report as a float, also "nan" and "inf"; None for null."""
    return None if value is None else float(value)


def standard_error(num_old: int, num_new: int) -> float:
    """Return the standard error of a difference of two means, in standard deviations."""
    return math.sqrt(1 / max(1, num_old) + 1 / max(1, num_new))


def mix_distance(old: Mapping[str, int], new: Mapping[str, int]) -> tuple[float, float]:
    """Return the total variation distance of two mixes, and its limit.

    Args:
        old: Counts by name in the baseline.
        new: Counts by name in the report.

    Returns:
        The distance, between 0 and 1; and the limit: 0.05, or if larger, what two samples of these
        sizes from one mix may differ by.
    """
    num_old, num_new = sum(old.values()), sum(new.values())
    if not num_old or not num_new:
        return 0.0, MAX_SHARE_MOVED
    names = {*old, *new}
    moved = sum(abs(old.get(n, 0) / num_old - new.get(n, 0) / num_new) for n in names) / 2
    # E|X - Y| of two binomial shares is sqrt(2 / pi) of a standard error, and over k labels the
    # roots of p(1 - p) sum to less than sqrt(k). One record changes the distance by at most 1/n, so
    # (McDiarmid) it exceeds its mean by two standard errors in fewer than 4 of 10,000 cases.
    error = standard_error(num_old, num_new)
    noise = (math.sqrt(len(names) / (2 * math.pi)) + 2) * error
    return moved, max(MAX_SHARE_MOVED, noise)


def few(names: Sequence[str], most: int = 5) -> str:
    """Return the first names in quotes, and the number of the remaining ones."""
    shown = ", ".join(repr(name) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


# -- features --------------------------------------------------------------------------------------

_MAX_MEAN_MOVED: Final = 0.25  # standard deviations
_MAX_ERRORS: Final = 5  # standard errors of a mean that count as chance
_MAX_LEVEL_MOVED: Final = 0.1  # of a quantile
_MAX_SHARE_FALL: Final = 0.01
_MAX_SIZE_RATIO: Final = 2.0
_FEW_NUMBERS: Final = 100  # integers in a smaller range repeat often


class _AddDifference(Protocol):
    def __call__(
        self, kind: str, detail: str, severity: Severity, old: Any = None, new: Any = None
    ) -> None: ...


def compare_features(
    set_name: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[Difference]:
    """Return the differences between the features of a set and those of its baseline.

    Args:
        set_name: The set's name, for messages.
        old: The set in the baseline.
        new: The set in the report.
    """
    differences: list[Difference] = []
    feature: str | None = None

    def report(
        kind: str, detail: str, severity: Severity, old: Any = None, new: Any = None
    ) -> None:
        where = set_name if feature is None else f"{set_name}, feature {feature!r}"
        difference = Difference(kind, f"{where}: {detail}", severity, old, new, set_name, feature)
        differences.append(difference)

    before, now = old.get("features") or {}, new.get("features") or {}
    if before and not now:
        unknown = f"the baseline has {len(before):,} features and this report none"
        report("features", f"{unknown}: add --features", "fail")
        return differences
    if not before:
        if now:
            report("features", "the baseline was made without --features", "note")
        return differences
    if has_statistics(before) and not has_statistics(now):
        unknown = "the baseline has statistics of features and this report has none"
        report("features", f"{unknown}: add --features", "fail")
    if gone := [name for name in before if name not in now]:
        report("feature-gone", f"feature {few(gone)} is gone", "fail", gone)
    if appeared := [name for name in now if name not in before]:
        report("feature-new", f"feature {few(appeared)} is new", "note", None, appeared)
    for feature in before:
        if feature in now:
            _compare_types(before[feature], now[feature], report)
            _compare_presence(before[feature], now[feature], old, new, report)
            _compare_numbers(before[feature].get("numbers"), now[feature].get("numbers"), report)
            _compare_sizes(before[feature], now[feature], report)
            _compare_images(before[feature].get("images"), now[feature].get("images"), report)
    return differences


def has_statistics(features: Mapping[str, Any]) -> bool:
    """Return whether features have statistics of records, not only the manifest's types."""
    return any("absent" in entry for entry in features.values())


def _compare_types(old: Mapping[str, Any], new: Mapping[str, Any], report: _AddDifference) -> None:
    for key in ("kind", "dtype", "shape", "encoding"):
        if key in old and key in new and old[key] != new[key]:
            report(
                f"feature-{key}", f"{key} is {new[key]}, was {old[key]}", "fail", old[key], new[key]
            )
            return  # the other keys follow from this one
    if old.get("lengths") and new.get("lengths") and old.get("shape") == new.get("shape"):
        before, now = old["lengths"], new["lengths"]
        if before["min"] == before["max"] and (now["min"], now["max"]) != (
            before["min"],
            before["max"],
        ):
            detail = f"{now['min']} to {now['max']} values, always were {before['min']}"
            report("feature-length", detail, "fail", before, now)


def _compare_presence(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    old_set: Mapping[str, Any],
    new_set: Mapping[str, Any],
    report: _AddDifference,
) -> None:
    before, now = _share(old, "present", old_set), _share(new, "present", new_set)
    if before is not None and now is not None and before > now:
        noise = (
            3 * _deviation(before) * standard_error(_records(old, old_set), _records(new, new_set))
        )
        if before == 1 or before - now > _MAX_SHARE_FALL + noise:
            detail = f"present in {_percent(now)} of the records, was in {_percent(before)}"
            report("feature-presence", detail, "fail", before, now)
    before, now = _share(old, "unset", old_set), _share(new, "unset", new_set)
    if before is not None and now is not None and (now > 0 if before == 0 else now > 2 * before):
        detail = f"without a value in {_percent(now)} of the records, was in {_percent(before)}"
        report("feature-unset", detail, "fail", before, now)


def _records(entry: Mapping[str, Any], of_set: Mapping[str, Any]) -> int:
    return int(entry.get("num_records", of_set.get("num_records")) or 0)


def _share(entry: Mapping[str, Any], key: str, of_set: Mapping[str, Any]) -> float | None:
    total = _records(entry, of_set)
    return entry[key] / total if key in entry and total else None


def _deviation(share: float) -> float:
    """Return the standard deviation of a Bernoulli variable with this mean."""
    return math.sqrt(max(0.0, share * (1 - share)))


def _percent(share: float) -> str:
    """Return a share in percent, with digits enough for a single record among many."""
    if 0 < share < 0.0005 or 0.9995 < share < 1:
        return f"{share:.4%}"
    return f"{share:.1%}"


# -- values ----------------------------------------------------------------------------------------


def _compare_numbers(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, report: _AddDifference
) -> None:
    if not old or not new or not old["count"] or not new["count"]:
        return
    noise = standard_error(old["count"], new["count"])
    for key, what in (("num_nan", "NaN"), ("num_inf", "infinite")):
        before, now = (e.get(key, 0) / e["count"] for e in (old, new))
        chance = 3 * _deviation(before) * noise
        if now > 0 if before == 0 else now > before + _MAX_SHARE_FALL + chance:
            detail = f"{_percent(now)} of the values are {what}, were {_percent(before)}"
            report(f"values-{key.removeprefix('num_')}", detail, "fail", before, now)
    means = number(old.get("mean")), number(new.get("mean"))
    std, now_std = number(old.get("std")), number(new.get("std"))
    spread = None if std is None or now_std is None else (std, now_std)
    if None not in means and spread and _moved_far(means, spread, (old["count"], new["count"])):
        detail = f"mean is {means[1]:.6g}, was {means[0]:.6g} (standard deviation {std:.6g})"
        report("values-mean", detail, "fail", means[0], means[1])
        return
    before_points, now_points = _levels(old), _levels(new)
    if before_points and now_points:
        gap, value = _largest_gap(before_points, now_points)
        if gap > _MAX_LEVEL_MOVED + 2 * noise:
            detail = f"the distribution changed: {gap:.0%} of the values crossed {value:.6g}"
            report("values", detail, "fail", old["quantiles"], new["quantiles"])
            return
    _compare_ranges(old, new, report)


def _moved_far(
    means: tuple[float | None, float | None], stds: tuple[float, float], counts: tuple[int, int]
) -> bool:
    """Return whether a mean moved by more than a part of the old spread and sampling error."""
    before, now = means
    assert before is not None
    assert now is not None
    if not all(map(math.isfinite, (before, now, *stds))):
        return False  # NaN and infinite values are reported separately
    # The larger spread: with long tails, the standard deviation of a small sample is too small.
    error = max(stds) * standard_error(*counts)
    rounding = 1e-6 * max(abs(before), abs(now))
    return abs(now - before) > max(_MAX_MEAN_MOVED * stds[0] + _MAX_ERRORS * error, rounding)


def _levels(numbers: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the quantiles with minimum and maximum as (value, level); empty if unknown."""
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
    """Return the Kolmogorov-Smirnov distance of two lists of quantiles, and its value.

    Between quantiles levels are interpolated; if many values are equal, a lower bound is used.
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
    """Return lower and upper bound of the share of values up to this one."""
    low_value, low = max((p for p in points if p[0] <= value), default=(value, 0.0))
    high_value, high = min((p for p in points if p[0] > value), default=(value, 1.0))
    if has_steps or low_value == high_value:
        return low, high
    level = low + (high - low) * (value - low_value) / (high_value - low_value)
    return level, level


def _has_steps(values: list[float]) -> bool:
    """Return whether many values are equal: some quantiles are, or all are small integers."""
    if len(set(values)) < len(values):
        return True
    return max(values) - min(values) < _FEW_NUMBERS and all(v == int(v) for v in values)


def _compare_ranges(old: Mapping[str, Any], new: Mapping[str, Any], report: _AddDifference) -> None:
    low, high = number(old.get("min")), number(old.get("max"))
    now_low, now_high = number(new.get("min")), number(new.get("max"))
    if low is None or high is None or now_low is None or now_high is None:
        return
    if not all(map(math.isfinite, (low, high, now_low, now_high))) or low >= high:
        return
    if now_low < low - (high - low) or now_high > high + (high - low):
        detail = f"from {now_low:.6g} to {now_high:.6g}, was from {low:.6g} to {high:.6g}"
        report("values-range", detail, "note", [low, high], [now_low, now_high])


# -- bytes and images ------------------------------------------------------------------------------


def _compare_sizes(old: Mapping[str, Any], new: Mapping[str, Any], report: _AddDifference) -> None:
    for key, what in (("lengths", "values a record"), ("value_bytes", "bytes a value")):
        before, now = (number((entry.get(key) or {}).get("mean")) for entry in (old, new))
        if before and now and not 1 / _MAX_SIZE_RATIO <= now / before <= _MAX_SIZE_RATIO:
            detail = f"{now:,.1f} {what} in the mean, were {before:,.1f}"
            report(f"feature-{key.replace('_', '-')}", detail, "note", before, now)


def _compare_images(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, report: _AddDifference
) -> None:
    if not old:
        return
    before = {name: count for name, count in old["formats"].items() if count}
    now = {name: count for name, count in (new or {}).get("formats", {}).items() if count}
    if before and not now:
        report("image-format", "the values are not images now", "fail", before, now)
        return
    if new is None:
        return
    if appeared := sorted(set(now) - set(before)):
        detail = f"images of format {few(appeared)}, was only {few(sorted(before))}"
        report("image-format", detail, "fail", before, now)
    else:
        moved, limit = mix_distance(before, now)
        if moved > limit:
            report("image-format", f"{moved:.1%} of the images changed format", "fail", before, now)
    if new.get("num_broken", 0) and not old.get("num_broken", 0):
        detail = f"{new['num_broken']:,} values are broken images, none was"
        report("images-broken", detail, "fail", 0, new["num_broken"])
    for side in ("width", "height"):
        was, is_now = old.get(side) or {}, new.get(side) or {}
        if was and is_now and (was["min"], was["max"]) != (is_now["min"], is_now["max"]):
            detail = f"{side} {is_now['min']} to {is_now['max']}, was {was['min']} to {was['max']}"
            always = was["min"] == was["max"]
            report("image-size", detail, "fail" if always else "note", was, is_now)


# -- the shape of a baseline: the part of stats.schema.json that the comparison uses ---------------

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
    """A report of ``shard-stats --json``; without ``sets`` it describes a single dataset."""

    schema: str
    num_defects: Count
    sets: list[_Set] | None


_SCHEMA: Final = "shardwriter.stats/1"
_FEW_RECORDS: Final = 5  # a label with fewer expected records may be absent by chance
_HINT: Final = "a baseline is the output of `shard-stats --json` for an earlier set"


def load_baseline(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the report in a file.

    Args:
        path: A file or URL with the output of ``shard-stats --json``.

    Raises:
        OptionError: It can not be read, is not JSON, or is not a report of this version.
    """
    path = os.fspath(path)
    try:
        _, text = inputs_for(path).read(path)
        baseline = canonical.loads(text)
    except OSError as error:
        why = f"the baseline can not be read: {error.strerror or error}"
        raise OptionError(why, path=path, hint=_HINT) from None
    except ValueError as error:
        raise OptionError(f"the baseline is not JSON: {error}", path=path, hint=_HINT) from None
    check_baseline(baseline, path)
    assert isinstance(baseline, dict)
    return baseline


def check_baseline(baseline: object, path: str | None = None) -> None:
    """Raise `OptionError` if an object is not a report of this version."""
    schema = baseline.get("schema") if isinstance(baseline, Mapping) else None
    if schema == _SCHEMA:
        try:
            json_shape.check(baseline, Baseline)
        except ValueError as error:
            wrong = f"the baseline is not a report of shard-stats: {error}"
            raise OptionError(wrong, path=path, hint=_HINT) from None
        return
    if isinstance(schema, str) and schema.startswith("shardwriter.stats/"):
        what = f"the baseline has version {schema!r}, this program writes {_SCHEMA!r}"
        raise OptionError(what, path=path, hint="write a new baseline with `shard-stats --json`")
    raise OptionError("the baseline is not a report of shard-stats", path=path, hint=_HINT)


def compare(report: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Difference]:
    """Return the differences between a report and a baseline, set by set.

    Args:
        report: A report as :meth:`Report.to_json` returns it.
        baseline: The earlier report.

    Raises:
        OptionError: The baseline is not a report of this version.
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
    """Return the sets of a report; a report without ``sets`` is its only set."""
    sets = report.get("sets")
    return sets if sets else [report]


def _named(sets: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return sets by name; further sets of the same name get a number."""
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
    differences: list[Difference] = []

    def report(
        kind: str, detail: str, severity: Severity, old: Any = None, new: Any = None
    ) -> None:
        differences.append(Difference(kind, f"{name}: {detail}", severity, old, new, name))

    before, now = old.get("num_records", 0), new.get("num_records", 0)
    if now < before:
        lost = f"{before - now:,} fewer records ({now:,}, were {before:,})"
        report("records", lost, "fail", before, now)
    elif now > before:
        report("records", f"{now - before:,} more records ({now:,})", "note", before, now)
    for key, what in (("num_shards", "shards"), ("compressions", "compression")):
        if key in old and key in new and old[key] != new[key]:
            changed = f"{what} {_value_text(new[key])}, was {_value_text(old[key])}"
            report(what, changed, "note", old[key], new[key])
    _compare_kinds(old, new, report)
    _compare_labels(old.get("labels") or {}, new.get("labels") or {}, report)
    return differences + compare_features(name, old, new)


def _value_text(value: Any) -> str:
    return " and ".join(value) if isinstance(value, list) else f"{value:,}"


def _compare_kinds(old: Mapping[str, Any], new: Mapping[str, Any], report: _AddDifference) -> None:
    before, now = old.get("kinds") or {}, new.get("kinds") or {}
    if not before or not now:
        return
    if appeared := sorted(set(now) - set(before)):
        count = sum(now[kind] for kind in appeared)
        report("kinds", f"{_plural(count, 'record')} of kind {few(appeared)}", "fail", before, now)
        return
    moved, limit = mix_distance(before, now)
    if moved > limit:
        report("kinds", f"{moved:.1%} of the records changed their kind", "fail", before, now)


def _compare_labels(old: Mapping[str, Any], new: Mapping[str, Any], report: _AddDifference) -> None:
    before, now = old.get("counts") or {}, new.get("counts") or {}
    if not before:
        return
    feature = old.get("feature")
    if not now:
        unknown = f"the baseline counts the labels of {feature!r} and this report does not"
        report("labels", f"{unknown}: add --label {feature}", "fail", before, None)
        return
    if new.get("feature") != feature:
        other = f"labels are of feature {new.get('feature')!r}, were of {feature!r}"
        report("labels", other, "fail", feature, new.get("feature"))
        return
    total = sum(now.values())
    share = total / sum(before.values()) if sum(before.values()) else 0.0
    gone = sorted(label for label in before if before[label] and not now.get(label))
    significant = [label for label in gone if before[label] * share >= _FEW_RECORDS]
    if gone:
        severity: Severity = "fail" if significant else "note"
        names = few(significant or gone)
        report("label-gone", f"no record has label {names} now", severity, gone, None)
    if appeared := sorted(label for label in now if now[label] and not before.get(label)):
        count = sum(now[label] for label in appeared)
        records = _plural(count, "record")
        report("label-new", f"{records} with new label {few(appeared)}", "fail", None, appeared)
    moved, limit = mix_distance(before, now)
    if moved > limit:
        report("labels", f"the label mix has moved by {moved:.1%}", "fail", before, now)
