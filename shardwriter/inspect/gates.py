"""Gates for CI: what a report has to fulfil, beyond having no defect.

All of them are functions of the report's JSON, so a report that was made on a cluster is judged as
one made here. A gate that can not be judged, since the report lacks what it is about, does not
pass: its detail says which option brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from shardwriter.errors import OptionError
from shardwriter.inspect.baseline import check_baseline, compare, few, has_statistics, sets_of

# What a gate can ask of a report: each check says what is wrong, or that it can not be told.

DEFAULT_MAX_IMBALANCE: Final = 1.1  # of ``--fail-on imbalance``, where no number is given

Report: TypeAlias = "Mapping[str, Any]"
_ADD_LABEL = ": add --label FEATURE"

Problems: TypeAlias = "list[str]"
Check: TypeAlias = "Callable[[Report], Problems]"


class Untold(Exception):
    """A report does not have what a check is about; says which option brings it."""


def uneven_records(report: Report, limit: float) -> Problems:
    """Name sets and policies of training whose largest shard or rank is over the limit."""
    problems = uneven(report, "records_max_over_mean", "records", limit)
    for name, policy in _policies(report):
        samples = policy.get("samples")
        if not samples:
            continue
        # The list may stand for the first ranks only; these are of all.
        mean = policy.get("num_samples", sum(samples)) / policy.get("world", len(samples))
        least = policy.get("samples_min", min(samples))
        most = policy.get("samples_max", max(samples))
        if mean and most / mean > limit:
            problems.append(
                f"{name}under {_title(policy)} a rank gets {most / mean:.2f} times the "
                f"mean ({least:,} to {most:,} samples)"
            )
    return problems


def uneven(report: Report, key: str, what: str, limit: float) -> Problems:
    """Name sets whose ``balance`` has a number over the limit."""
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
    """Return the sets, each with what stands before its problems: its name, where needed."""
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


def _features(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sets of which features were gathered, or that have no record that has some."""
    sets = _sets(report)
    for name, entry in sets:
        kinds = entry.get("kinds")
        without = (
            kinds is not None and not kinds.get("Example") and not kinds.get("SequenceExample")
        )
        empty = entry.get("num_records") == 0 or (without and not entry.get("kinds_sampled"))
        if not has_statistics(entry.get("features") or {}) and not empty:
            raise Untold(f"{name}there are no statistics of features: add --features")
    return sets


def _defects(report: Report) -> Problems:
    count = report["num_defects"]
    return [f"{count:,} defect{'s' * (count != 1)}"] if count else []


def _notes(report: Report) -> Problems:
    return list(report.get("notes") or [])


def _drift(report: Report) -> Problems:
    return [
        f"{name}feature {drift['feature']!r} in {drift['path']}: {drift['detail']}"
        for name, entry in _features(report)
        for drift in entry.get("drift") or []
    ]


def _per_feature(count_of: Callable[[Mapping[str, Any]], int], what: str) -> Check:
    """Make a check that no feature has any of something."""

    def check(report: Report) -> Problems:
        problems = []
        for name, entry in _features(report):
            for feature, told in (entry.get("features") or {}).items():
                if count := count_of(told):
                    problems.append(f"{name}feature {feature!r} {what} {count:,}")
        return problems

    return check


def _number_of(key: str) -> Callable[[Mapping[str, Any]], int]:
    return lambda told: (told.get("numbers") or {}).get(key) or 0


def _kinds(report: Report) -> Problems:
    problems = []
    for name, entry in _sets(report):
        kinds = entry.get("kinds")
        if kinds is None or (not kinds and entry.get("num_records")):
            raise Untold(f"{name}what records are is not in the report: add --features")
        others = {kind: n for kind, n in kinds.items() if n and kind != "Example"}
        if others:
            told = ", ".join(f"{n:,} {kind}" for kind, n in sorted(others.items()))
            looked = " that were looked at" if entry.get("kinds_sampled") else ""
            problems.append(
                f"{name}{sum(others.values()):,} records{looked} are no Examples ({told})"
            )
    return problems


def _labelled(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    sets = _sets(report)
    for name, entry in sets:
        if not (entry.get("labels") or {}).get("counts") and entry.get("num_records"):
            shuffle = entry.get("shuffle") or {}
            if shuffle.get("by") == "label":
                raise Untold(f"{name}{shuffle['detail']}")
            raise Untold(f"{name}labels were not counted{_ADD_LABEL}")
    return sets


def _labels(report: Report) -> Problems:
    problems = []
    for name, entry in _labelled(report):
        for told in (entry.get("labels") or {}).get("deviating") or []:
            problems.append(
                f"{name}label {told['label']!r} is {told['ratio']:.2f} times as frequent in "
                f"{told['path']} as in the set"
            )
    return problems


def _unlabelled(report: Report) -> Problems:
    counts = [
        (name, (entry.get("labels") or {}).get("num_unlabelled") or 0)
        for name, entry in _labelled(report)
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
            raise Untold(name + why + ("" if shuffle.get("by") == "label" else _ADD_LABEL))
        if verdict != "shuffled":
            detail = shuffle.get("detail") or "records stand in an order"
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
    """Make a check of every way in which the plan says that training will read."""

    def check(report: Report) -> Problems:
        problems = []
        for name, entry in _sets(report):
            plan = entry.get("plan")
            if not plan:
                raise Untold(f"{name}there is no plan of training: add --world W")
            for policy in plan["policies"]:
                if (told := problem(policy)) is not None:
                    remedy = policy.get("remedy")
                    advice = f" ({remedy})" if remedy else ""
                    problems.append(f"{name}{_title(policy)} {told}{advice}")
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
    "absent": _per_feature(lambda told: told.get("absent") or 0, "is absent from records:"),
    "broken-images": _per_feature(
        lambda told: (told.get("images") or {}).get("num_broken") or 0, "has broken images:"
    ),
    "defects": _defects,
    "drift": _drift,
    "dropped": _per_policy(_samples("num_dropped", "drops")),
    "empty-shards": _empty_shards,
    "hangs": _per_policy(lambda policy: "hangs" if policy.get("hangs") else None),
    "idle": _per_policy(_idle),
    "imbalance": lambda report: uneven_records(report, DEFAULT_MAX_IMBALANCE),
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
    "unset": _per_feature(lambda told: told.get("unset") or 0, "has no value in records:"),
    "unshuffled": _unshuffled,
}
"""What ``--fail-on`` can name, and what finds it."""


@dataclass(frozen=True)
class GateOptions:
    """What has to hold.

    Attributes:
        expect_records: Records that there are, in all sets together.
        max_imbalance: Largest over mean, of the records of shards, and of the samples of ranks
            under each policy of the plan.
        max_byte_imbalance: The same of the bytes of shards, which differ by nature where sizes of
            records do.
        fail_on: Words of :data:`~shardwriter.inspect.gates.WORDS`.
        baseline: The report of an earlier set, see :mod:`shardwriter.inspect.baseline`.

    Raises:
        OptionError: A number is out of range, a word is not known, or the baseline is no report.
    """

    expect_records: int | None = None
    max_imbalance: float | None = None
    max_byte_imbalance: float | None = None
    fail_on: tuple[str, ...] = ()
    baseline: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check all of it."""
        if self.expect_records is not None and self.expect_records < 0:
            raise OptionError(f"{self.expect_records} records can not be expected")
        for limit in (self.max_imbalance, self.max_byte_imbalance):
            if limit is not None and not limit >= 1:
                raise OptionError(
                    f"an imbalance of at most {limit} can not be asked for",
                    hint="it is largest over mean, and 1 is perfect",
                )
        if unknown := [word for word in self.fail_on if word not in WORDS]:
            raise OptionError(
                f"nothing fails on {few(unknown)}", hint=f"known are {', '.join(sorted(WORDS))}"
            )
        if self.baseline is not None:
            check_baseline(self.baseline)


def split_words(texts: Iterable[str]) -> tuple[str, ...]:
    """Take lists of words apart: ``["drift,nan", "hangs"]``; each word comes once, in order."""
    words = [word.strip() for text in texts for word in text.split(",")]
    return tuple(dict.fromkeys(word for word in words if word))


def evaluate(report: Report, options: GateOptions) -> list[dict[str, Any]]:
    """Judge a report.

    Args:
        report: As :meth:`Report.to_json` gives it.
        options: What has to hold.

    Returns:
        ``{"gate", "passed", "detail"}`` of each gate that was asked for. Under ``fail-on`` the
        detail begins with the word. Of a baseline there is one for each difference.
    """
    gates = []
    if options.expect_records is not None:
        gates.append(_expect_records(report, options.expect_records))
    if options.max_imbalance is not None:
        problems = uneven_records(report, options.max_imbalance)
        gates.append(_gate("max-imbalance", problems, f"at most {options.max_imbalance:g}"))
    if options.max_byte_imbalance is not None:
        limit = options.max_byte_imbalance
        problems = uneven(report, "bytes_max_over_mean", "bytes", limit)
        gates.append(_gate("max-byte-imbalance", problems, f"at most {limit:g}"))
    for word in options.fail_on:
        try:
            problems = WORDS[word](report)
        except Untold as untold:
            problems = [f"can not be told: {untold}"]
        gates.append(_gate("fail-on", problems, "none", f"{word}: "))
    if options.baseline is not None:
        gates += _against(report, options.baseline)
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
        detail += f", {expected:,} were expected: {abs(found - expected):,} "
        detail += "missing" if found < expected else "too many"
    return {"gate": "expect-records", "passed": found == expected, "detail": detail}


def _against(report: Report, baseline: Mapping[str, Any]) -> list[dict[str, Any]]:
    differences = compare(report, baseline)
    gates = [
        {"gate": "baseline", "passed": d.severity == "note", "detail": d.detail}
        for d in differences
    ]
    return gates or [{"gate": "baseline", "passed": True, "detail": "nothing has changed"}]


def gates_passed(gates: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether all gates of a report have passed."""
    return all(gate["passed"] for gate in gates)
