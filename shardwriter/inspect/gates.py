"""Gates: conditions on a report for CI.

Every gate is a function of the report's JSON, so reports from a cluster or an earlier run can be
evaluated too. A gate about something that the report does not contain fails, and its detail names
the option that adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from shardwriter.errors import OptionError
from shardwriter.inspect.baseline import check_baseline, compare, few, has_statistics, sets_of

DEFAULT_MAX_IMBALANCE: Final = 1.1  # of ``--fail-on imbalance``

Report: TypeAlias = "Mapping[str, Any]"
_ADD_LABEL = ": add --label FEATURE"

Problems: TypeAlias = "list[str]"
Check: TypeAlias = "Callable[[Report], Problems]"


class NotInReport(Exception):
    """The report does not contain what a check needs; the message names the option that adds it."""


def record_imbalance(report: Report, limit: float) -> Problems:
    """Return the sets and split policies whose largest shard or rank is over the limit."""
    problems = balance_over(report, "records_max_over_mean", "records", limit)
    for name, policy in _policies(report):
        samples = policy.get("samples")
        if not samples:
            continue
        # The list may be truncated; these numbers cover all ranks.
        mean = policy.get("num_samples", sum(samples)) / policy.get("world", len(samples))
        least = policy.get("samples_min", min(samples))
        most = policy.get("samples_max", max(samples))
        if mean and most / mean > limit:
            problems.append(
                f"{name}under {_title(policy)} a rank gets {most / mean:.2f} times the "
                f"mean ({least:,} to {most:,} samples)"
            )
    return problems


def balance_over(report: Report, key: str, what: str, limit: float) -> Problems:
    """Return the sets in which a number of ``balance`` is over the limit."""
    problems = []
    for name, entry in _sets(report):
        found = entry["balance"][key]
        if found > limit:
            problems.append(
                f"{name}the largest shard has {found:.2f} times the mean in {what}, "
                f"{limit:g} is allowed"
            )
    return problems


def _sets(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each set with the prefix of its problems: its name, if there are several sets."""
    sets = sets_of(report)
    if len(sets) == 1:
        return [("", sets[0])]
    return [(f"{entry.get('name', number)}: ", entry) for number, entry in enumerate(sets)]


def _policies(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (name, {**policy, **_world_of(entry)})
        for name, entry in _sets(report)
        for policy in (entry.get("plan") or {}).get("policies", [])
    ]


def _world_of(entry: Mapping[str, Any]) -> dict[str, int]:
    return {key: entry["plan"][key] for key in ("world",) if key in entry["plan"]}


def _title(policy: Mapping[str, Any]) -> str:
    title = f"{policy.get('title') or policy.get('policy')}"
    framework = policy.get("framework")
    return title if not framework or title.startswith(framework) else f"{framework} {title}"


def _sets_with_features(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sets.

    Raises:
        NotInReport: A set that has records with features has no statistics of them.
    """
    sets = _sets(report)
    for name, entry in sets:
        kinds = entry.get("kinds")
        without = (
            kinds is not None and not kinds.get("Example") and not kinds.get("SequenceExample")
        )
        empty = entry.get("num_records") == 0 or (without and not entry.get("kinds_sampled"))
        if not has_statistics(entry.get("features") or {}) and not empty:
            raise NotInReport(f"{name}the report has no feature statistics: add --features")
    return sets


def _defects(report: Report) -> Problems:
    count = report["num_defects"]
    return [f"{count:,} defect{'s' * (count != 1)}"] if count else []


def _notes(report: Report) -> Problems:
    return list(report.get("notes") or [])


def _drift(report: Report) -> Problems:
    return [
        f"{name}feature {drift['feature']!r} in {drift['path']}: {drift['detail']}"
        for name, entry in _sets_with_features(report)
        for drift in entry.get("drift") or []
    ]


def _per_feature(count_of: Callable[[Mapping[str, Any]], int], what: str) -> Check:
    """Return a check that a count is 0 for every feature."""

    def check(report: Report) -> Problems:
        problems = []
        for name, entry in _sets_with_features(report):
            for feature, stats in (entry.get("features") or {}).items():
                if count := count_of(stats):
                    problems.append(f"{name}feature {feature!r} {what} {count:,}")
        return problems

    return check


def _number_of(key: str) -> Callable[[Mapping[str, Any]], int]:
    return lambda stats: (stats.get("numbers") or {}).get(key) or 0


def _kinds(report: Report) -> Problems:
    problems = []
    for name, entry in _sets(report):
        kinds = entry.get("kinds")
        if kinds is None or (not kinds and entry.get("num_records")):
            raise NotInReport(f"{name}the report has no record kinds: add --features")
        others = {kind: n for kind, n in kinds.items() if n and kind != "Example"}
        if others:
            counts = ", ".join(f"{n:,} {kind}" for kind, n in sorted(others.items()))
            sampled = "sampled " if entry.get("kinds_sampled") else ""
            problems.append(
                f"{name}{sum(others.values()):,} {sampled}records are not Examples ({counts})"
            )
    return problems


def _sets_with_labels(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    sets = _sets(report)
    for name, entry in sets:
        if not (entry.get("labels") or {}).get("counts") and entry.get("num_records"):
            shuffle = entry.get("shuffle") or {}
            if shuffle.get("by") == "label":
                raise NotInReport(f"{name}{shuffle['detail']}")
            raise NotInReport(f"{name}labels were not counted{_ADD_LABEL}")
    return sets


def _labels(report: Report) -> Problems:
    problems = []
    for name, entry in _sets_with_labels(report):
        for deviation in (entry.get("labels") or {}).get("deviating") or []:
            problems.append(
                f"{name}label {deviation['label']!r} is {deviation['ratio']:.2f} times as frequent "
                f"in {deviation['path']} as in the set"
            )
    return problems


def _unlabelled(report: Report) -> Problems:
    counts = [
        (name, (entry.get("labels") or {}).get("num_unlabelled") or 0)
        for name, entry in _sets_with_labels(report)
    ]
    return [f"{name}{count:,} records have no label" for name, count in counts if count]


def _unshuffled(report: Report) -> Problems:
    problems = []
    for name, entry in _sets(report):
        shuffle = entry.get("shuffle") or {}
        verdict = shuffle.get("verdict")
        if not entry.get("num_records"):
            continue
        if verdict in (None, "unknown"):
            why = shuffle.get("detail") or "neighbours were not compared"
            raise NotInReport(name + why + ("" if shuffle.get("by") == "label" else _ADD_LABEL))
        if verdict != "shuffled":
            detail = shuffle.get("detail") or "records are in order"
            problems.append(f"{name}{verdict}: {detail}")
    return problems


def _no_manifest(report: Report) -> Problems:
    return [
        f"{entry.get('name') or 'the set'} has no manifest"
        for _, entry in _sets(report)
        if not entry.get("has_manifest")
    ]


def _empty_shards(report: Report) -> Problems:
    empty = [shard["path"] for shard in report["shards"] if not shard["num_records"]]
    return [f"{len(empty):,} shard{'s' * (len(empty) != 1)} without records: {few(empty)}"] * bool(
        empty
    )


def _per_policy(problem: Callable[[Mapping[str, Any]], str | None]) -> Check:
    """Return a check of every policy of the split plan."""

    def check(report: Report) -> Problems:
        problems = []
        for name, entry in _sets(report):
            plan = entry.get("plan")
            if not plan:
                raise NotInReport(f"{name}the report has no split plan: add --world W")
            for policy in plan["policies"]:
                if (text := problem(policy)) is not None:
                    remedy = policy.get("remedy")
                    advice = f" ({remedy})" if remedy else ""
                    problems.append(f"{name}{_title(policy)} {text}{advice}")
        return problems

    return check


def _samples(key: str, verb: str) -> Callable[[Mapping[str, Any]], str | None]:
    def problem(policy: Mapping[str, Any]) -> str | None:
        count = policy.get(key)
        return f"{verb} {count:,} sample{'s' * (count != 1)}" if count else None

    return problem


def _idle(policy: Mapping[str, Any]) -> str | None:
    idle = policy.get("idle_workers")
    return f"leaves {idle:,} loader worker{'s' * (idle != 1)} idle" if idle else None


WORDS: Final[dict[str, Check]] = {
    "absent": _per_feature(lambda stats: stats.get("absent") or 0, "is absent from records:"),
    "broken-images": _per_feature(
        lambda stats: (stats.get("images") or {}).get("num_broken") or 0, "has broken images:"
    ),
    "defects": _defects,
    "drift": _drift,
    "dropped": _per_policy(_samples("num_dropped", "drops")),
    "empty-shards": _empty_shards,
    "hangs": _per_policy(lambda policy: "hangs" if policy.get("hangs") else None),
    "idle": _per_policy(_idle),
    "imbalance": lambda report: record_imbalance(report, DEFAULT_MAX_IMBALANCE),
    "inf": _per_feature(_number_of("num_inf"), "has infinite values:"),
    "kinds": _kinds,
    "labels": _labels,
    "nan": _per_feature(_number_of("num_nan"), "has NaN values:"),
    "no-manifest": _no_manifest,
    "notes": _notes,
    "padded": _per_policy(_samples("num_padded", "pads")),
    "refused": _per_policy(
        lambda policy: f"refuses: {policy['error']}" if policy.get("error") else None
    ),
    "repeated": _per_policy(_samples("num_repeated", "repeats")),
    "unlabelled": _unlabelled,
    "unset": _per_feature(lambda stats: stats.get("unset") or 0, "has no value in records:"),
    "unshuffled": _unshuffled,
}
"""The words of ``--fail-on``, and the check of each."""


@dataclass(frozen=True)
class GateOptions:
    """The gates to evaluate.

    Attributes:
        expect_records: Required number of records of all sets together.
        max_imbalance: Maximum imbalance (largest over mean) of records per shard, and of samples
            per rank under each policy of the plan.
        max_byte_imbalance: Maximum imbalance of bytes per shard; record sizes add to it.
        fail_on: Words of :data:`~shardwriter.inspect.gates.WORDS`.
        baseline: The report of an earlier set, see :mod:`shardwriter.inspect.baseline`.

    Raises:
        OptionError: A number is out of range, a word is unknown, or the baseline is not a report.
    """

    expect_records: int | None = None
    max_imbalance: float | None = None
    max_byte_imbalance: float | None = None
    fail_on: tuple[str, ...] = ()
    baseline: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check all options."""
        if self.expect_records is not None and self.expect_records < 0:
            raise OptionError(f"expect_records is {self.expect_records}; it must be 0 or more")
        for limit in (self.max_imbalance, self.max_byte_imbalance):
            if limit is not None and not limit >= 1:
                raise OptionError(
                    f"the maximum imbalance is {limit}; it must be 1 or more",
                    hint="imbalance is largest over mean; 1 means equal shards",
                )
        if unknown := [word for word in self.fail_on if word not in WORDS]:
            raise OptionError(
                f"unknown --fail-on word {few(unknown)}",
                hint=f"use one of {', '.join(sorted(WORDS))}",
            )
        if self.baseline is not None:
            check_baseline(self.baseline)


def split_words(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct words of comma-separated lists such as ``["drift,nan", "hangs"]``."""
    words = [word.strip() for text in texts for word in text.split(",")]
    return tuple(dict.fromkeys(word for word in words if word))


def evaluate(report: Report, options: GateOptions) -> list[dict[str, Any]]:
    """Return the result of every gate in the options.

    Args:
        report: A report as :meth:`Report.to_json` returns it.
        options: The gates.

    Returns:
        ``{"gate", "passed", "detail"}`` per gate. The detail of ``fail-on`` begins with its word;
        a baseline has one entry per difference.
    """
    gates = []
    if options.expect_records is not None:
        gates.append(_expect_records(report, options.expect_records))
    if options.max_imbalance is not None:
        problems = record_imbalance(report, options.max_imbalance)
        gates.append(_gate("max-imbalance", problems, f"at most {options.max_imbalance:g}"))
    if options.max_byte_imbalance is not None:
        limit = options.max_byte_imbalance
        problems = balance_over(report, "bytes_max_over_mean", "bytes", limit)
        gates.append(_gate("max-byte-imbalance", problems, f"at most {limit:g}"))
    for word in options.fail_on:
        try:
            problems = WORDS[word](report)
        except NotInReport as missing:
            problems = [f"not in the report: {missing}"]
        gates.append(_gate("fail-on", problems, "none", f"{word}: "))
    if options.baseline is not None:
        gates += _baseline_gates(report, options.baseline)
    return gates


def _gate(gate: str, problems: Problems, good: str, word: str = "") -> dict[str, Any]:
    shown = "; ".join(problems[:5])
    if len(problems) > 5:
        shown += f"; and {len(problems) - 5:,} more"
    return {"gate": gate, "passed": not problems, "detail": word + (shown or good)}


def _expect_records(report: Report, expected: int) -> dict[str, Any]:
    found = report["num_records"]
    detail = f"{found:,} records"
    if found != expected:
        detail += f", expected {expected:,}: {abs(found - expected):,} "
        detail += "missing" if found < expected else "too many"
    return {"gate": "expect-records", "passed": found == expected, "detail": detail}


def _baseline_gates(report: Report, baseline: Mapping[str, Any]) -> list[dict[str, Any]]:
    differences = compare(report, baseline)
    gates = [
        {"gate": "baseline", "passed": d.severity == "note", "detail": d.detail}
        for d in differences
    ]
    return gates or [{"gate": "baseline", "passed": True, "detail": "nothing has changed"}]


def gates_passed(gates: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all gates of a report have passed."""
    return all(gate["passed"] for gate in gates)
