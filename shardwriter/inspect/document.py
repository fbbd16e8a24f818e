"""The report of ``shard-stats``: what was found in shard sets, as one JSON document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardwriter.formats import Check, clean, html_table, plural
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.scan import FileScan, RecordSizes
from shardwriter.sources import ShardSet

# How evenly the shards of a set are filled, in records and in bytes of files.
#
# A job that gives whole shards to its workers waits for the worker of the largest; so the largest
# over the mean is by how much an epoch is longer than it has to be.


def balance_json(
    paths: Sequence[str], num_records: Sequence[int], num_bytes: Sequence[int]
) -> dict[str, Any]:
    """Return how evenly shards are filled; all three have one entry a shard.

    Where there is nothing (no shards, or only empty ones) largest over mean is 1 and the spread 0.

    Args:
        paths: Names of the shards.
        num_records: Their records.
        num_bytes: The sizes of their files.
    """
    records = _spread(paths, num_records)
    sizes = _spread(paths, num_bytes)
    return {
        "bytes": sizes,
        "bytes_cv": _variation(sizes),
        "bytes_max_over_mean": _max_over_mean(sizes),
        "records": records,
        "records_cv": _variation(records),
        "records_max_over_mean": _max_over_mean(records),
    }


def worst_balance(balances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one balance for several sets: in records and in bytes that of the worst set."""
    worst = balance_json([], [], [])
    for balance in balances:
        for unit in ("records", "bytes"):
            key = f"{unit}_max_over_mean"
            if worst[unit]["largest"] is None or balance[key] > worst[key]:
                for name in (unit, f"{unit}_cv", key):
                    worst[name] = balance[name]
    return worst


def balance_text(balance: Mapping[str, Any]) -> str:
    """Return the balance as the verdict line has it: largest over mean shard."""
    records, sizes = balance["records_max_over_mean"], balance["bytes_max_over_mean"]
    return f"balance {records:.2f} (bytes {sizes:.2f})"


def _spread(paths: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the distribution of a number over shards; of equal shards the first is named."""
    if len(paths) != len(numbers):
        raise ValueError(f"{len(paths)} shards, and numbers of {len(numbers)}")
    if not numbers:
        return {"largest": None, "max": 0, "mean": 0.0, "min": 0, "smallest": None, "std": 0.0}
    count = len(numbers)
    total = sum(numbers)
    # In whole numbers up to the root, so that equal shards have no spread at all.
    squares = sum((number * count - total) ** 2 for number in numbers)
    places = range(count)
    return {
        "largest": paths[max(places, key=numbers.__getitem__)],
        "max": max(numbers),
        "mean": total / count,
        "min": min(numbers),
        "smallest": paths[min(places, key=numbers.__getitem__)],
        "std": math.sqrt(squares / count) / count,
    }


def _max_over_mean(spread: Mapping[str, Any]) -> float:
    return float(spread["max"] / spread["mean"]) if spread["mean"] else 1.0


def _variation(spread: Mapping[str, Any]) -> float:
    return float(spread["std"] / spread["mean"]) if spread["mean"] else 0.0


SCHEMA: Final = "shardwriter.stats/1"
_MAX_SHOWN: Final = 3
_PROOF: Final = {"crc": "every CRC right", "length": "framing right", "none": "nothing proven"}


@dataclass
class SetReport:
    """One shard set and what was found in it.

    Attributes:
        shard_set: Which files, and what is said of them.
        scans: Shard index and scan of each file, in order.
        findings: The defects; :attr:`num_defects` counts those too that were not kept.
        notes: What is worth knowing and no defect.
        labels: The label mix; empty where nobody asked and no manifest tells.
        shuffle: How far neighbours are from random.
        features: By name: the manifest's entries, and with ``features`` their statistics.
        drift: In what shards differ from each other.
        plan: How training will split; empty without a world.
    """

    shard_set: ShardSet
    scans: list[tuple[int, FileScan]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    num_defects: int = 0
    notes: list[str] = field(default_factory=list)
    labels: dict[str, Any] = field(default_factory=dict)
    shuffle: dict[str, Any] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)
    drift: list[dict[str, Any]] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)

    def note(self, finding: Finding) -> None:
        """Take a defect down."""
        self.findings.append(finding)
        self.num_defects += 1

    def __repr__(self) -> str:
        name = clean(repr(self.shard_set.name))
        return (
            f"<SetReport {name}: {plural(self.sizes.count, 'record')} in "
            f"{plural(len(self.scans), 'file')}, {plural(self.num_defects, 'defect')}, "
            f"{plural(len(self.notes), 'note')}>"
        )

    def _repr_html_(self) -> str:
        rows = [("records", f"{self.sizes.count:,}"), ("files", f"{len(self.scans):,}")]
        rows += [("defect", _finding_text(finding)) for finding in self.findings[:_MAX_SHOWN]]
        rows += [("note", note) for note in self.notes[:_MAX_SHOWN]]
        rows += [("features", ", ".join(sorted(self.features)))] if self.features else []
        return html_table(self.shard_set.name, rows)

    @property
    def sizes(self) -> RecordSizes:
        """The distribution of record sizes."""
        return _merged(scan for _, scan in self.scans)

    @property
    def balance(self) -> dict[str, Any]:
        """How even shards are; see :func:`shardwriter.inspect.document.balance_json`."""
        scans = [scan for _, scan in self.scans]
        return balance_json(
            [scan.path for scan in scans],
            [scan.num_records for scan in scans],
            [scan.file_bytes for scan in scans],
        )

    @property
    def kinds(self) -> Counter[str]:
        """What payloads are; see :mod:`shardwriter.formats.record_kinds`."""
        kinds: Counter[str] = Counter()
        for _, scan in self.scans:
            kinds += scan.kinds if scan.payloads is None else scan.payloads.kinds
        return kinds

    @property
    def kinds_sampled(self) -> bool:
        """Whether only some records of each file were looked at."""
        return self.kinds.total() < self.sizes.count

    def to_json(self) -> dict[str, Any]:
        """Return the set's part of the report."""
        shard_set, sizes = self.shard_set, self.sizes
        pattern = shard_set.pattern
        files = shard_set.shards[0][1] if shard_set.shards else ""
        if len(shard_set.shards) > 1:
            files = f"{files} and {len(shard_set.shards) - 1:,} more"
        if pattern is not None:
            files = pattern.template.replace("{shard}", "*")
        return {
            "balance": self.balance,
            "compressions": sorted({scan.compression for _, scan in self.scans}),
            "directory": shard_set.directory,
            "drift": self.drift,
            "features": self.features,
            "file_bytes": sum(scan.file_bytes for _, scan in self.scans),
            "files": files,
            "has_manifest": shard_set.manifest is not None,
            "kinds": dict(self.kinds),
            "kinds_sampled": self.kinds_sampled,
            "labels": self.labels,
            "name": shard_set.name,
            "num_records": sizes.count,
            "num_shards": len(self.scans),
            "payload_bytes": sizes.total,
            "plan": self.plan,
            "shuffle": self.shuffle,
        }


@dataclass
class Report:
    """All that ``shard-stats`` says.

    Attributes:
        sets: One report a shard set.
        check: What was proven.
    """

    sets: list[SetReport]
    check: Check

    def __repr__(self) -> str:
        shown = [_finding_text(finding) for finding in self.findings[:_MAX_SHOWN]]
        return f"<Report {clean(self.verdict)}" + "".join(f"\n  {line}" for line in shown) + ">"

    def _repr_html_(self) -> str:
        rows = [("bytes", f"{self.file_bytes:,}")]
        rows += [("set", repr(each)) for each in self.sets[:_MAX_SHOWN]]
        rows += [("defect", _finding_text(finding)) for finding in self.findings[:_MAX_SHOWN]]
        rows += [("note", note) for note in self.notes[:_MAX_SHOWN]]
        return html_table(self.verdict, rows)

    @property
    def scans(self) -> list[FileScan]:
        """The scans of all files."""
        return [scan for report in self.sets for _, scan in report.scans]

    @property
    def findings(self) -> list[Finding]:
        """The defects that were kept."""
        return [finding for report in self.sets for finding in report.findings]

    @property
    def num_defects(self) -> int:
        """How many defects there are, those that were not kept included."""
        return sum(report.num_defects for report in self.sets)

    @property
    def notes(self) -> list[str]:
        """What is worth knowing and no defect."""
        return [note for report in self.sets for note in report.notes]

    @property
    def sizes(self) -> RecordSizes:
        """The distribution of record sizes over all files."""
        return _merged(self.scans)

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return sum(scan.file_bytes for scan in self.scans)

    @property
    def balance(self) -> dict[str, Any]:
        """The worst set's balance, in records and in bytes."""
        return worst_balance([report.balance for report in self.sets])

    @property
    def verdict(self) -> str:
        """One line that says whether these shards are good; balance is largest over mean shard."""
        num_records, num_files = self.sizes.count, len(self.scans)
        what = f"{num_records:,} record{'s' * (num_records != 1)} in {num_files:,} shard"
        what += "s" * (num_files != 1)
        if self.num_defects:
            files = len({finding.path for finding in self.findings})
            return (
                f"DAMAGED: {self.num_defects:,} defect{'s' * (self.num_defects != 1)} in "
                f"{files:,} file{'s' * (files != 1)}; {what} are good"
            )
        line = f"OK: {what}, {_PROOF[self.check]}, {balance_text(self.balance)}"
        policies = [policy for report in self.sets for policy in report.plan.get("policies", [])]
        num_hanging = sum(policy["hangs"] for policy in policies)
        if num_hanging:
            line += f"; {num_hanging} of {len(policies)} ways to split it would hang"
        return line

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON; keys are added in later versions, never renamed.

        ``stats.schema.json`` in this package describes it. What belongs to a set stands in
        ``sets``; where there is only one, its features, labels and plan stand at the top too.
        """
        sizes = self.sizes
        sets = [report.to_json() for report in self.sets]
        only = sets[0] if len(sets) == 1 else {}
        return {
            "balance": self.balance,
            "check": self.check,
            "defects": [finding.to_json() for finding in self.findings],
            "features": only.get("features", {}),
            "file_bytes": self.file_bytes,
            "gates": [],
            "labels": only.get("labels", {}),
            "notes": self.notes,
            "num_defects": self.num_defects,
            "num_records": sizes.count,
            "num_shards": len(self.scans),
            "payload_bytes": sizes.total,
            "plan": only.get("plan", {}),
            "record_bytes": _sizes_json(sizes),
            "schema": SCHEMA,
            "sets": sets,
            "shards": [
                _shard_json(number, report, shard, scan)
                for number, report in enumerate(self.sets)
                for shard, scan in report.scans
            ],
            "verdict": self.verdict,
        }


def _finding_text(finding: Finding) -> str:
    place = "" if finding.record_index is None else f", record {finding.record_index:,}"
    return clean(f"{finding.kind}: {finding.path}{place}: {finding.detail}")


def _merged(scans: Iterable[FileScan]) -> RecordSizes:
    sizes = RecordSizes()
    for scan in scans:
        sizes.merge(scan.sizes)
    return sizes


def _sizes_json(sizes: RecordSizes) -> dict[str, Any]:
    bins = [
        {"below": 1 << digits, "count": count, "from": (1 << digits) >> 1}
        for digits, count in enumerate(sizes.histogram)
        if count
    ]
    return {"histogram": bins, "max": sizes.max, "mean": sizes.mean, "min": sizes.min}


def _shard_json(number: int, report: SetReport, shard: int, scan: FileScan) -> dict[str, Any]:
    return {
        "compression": scan.compression,
        "crc32c": None if scan.crc32c is None else f"{scan.crc32c:08x}",
        "file_bytes": scan.file_bytes,
        "num_records": scan.num_records,
        "path": scan.path,
        "payload_bytes": scan.sizes.total,
        "record_bytes": _sizes_json(scan.sizes),
        "set": number,
        "shard_index": shard if report.shard_set.pattern is not None else None,
    }
