"""Gates for CI: what a report has to fulfil, beyond having no defect.

All of them are functions of the report's JSON, so a report that was made on a cluster is judged as
one made here. A gate that can not be judged, since the report lacks what it is about, does not
pass: its detail says which option brings it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwriter.errors import OptionError
from shardwriter.inspect.baseline import check_baseline, compare
from shardwriter.inspect.differences import few
from shardwriter.inspect.gate_checks import WORDS, Problems, Report, Untold, uneven, uneven_records


@dataclass(frozen=True)
class GateOptions:
    """What has to hold.

    Attributes:
        expect_records: Records that there are, in all sets together.
        max_imbalance: Largest over mean, of the records of shards, and of the samples of ranks
            under each policy of the plan.
        max_byte_imbalance: The same of the bytes of shards, which differ by nature where sizes of
            records do.
        fail_on: Words of :data:`~shardwriter.inspect.gate_checks.WORDS`.
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
