"""Today's report held against one of an earlier set that was good.

``shard-stats --json > report.json`` is the baseline. Counts may grow and never fall; mixes, values
and shapes have to stay what they were, within what chance allows for their number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwriter.errors import OptionError
from shardwriter.formats import canonical, json_shape
from shardwriter.inspect.baseline_features import compare_features
from shardwriter.inspect.baseline_shape import Baseline
from shardwriter.inspect.differences import Difference, Severity, few, share_moved
from shardwriter.storage.inputs import inputs_for

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
