"""The report of ``shard-stats``: `Report` and `SetReport`, and their JSON document.

Balance is the imbalance ratio (largest shard over mean shard) and the coefficient of variation, in
records and in bytes. A job that assigns whole shards to workers waits for the largest one, so the
imbalance ratio is how much longer an epoch takes.
"""

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


def balance_json(
    paths: Sequence[str], num_records: Sequence[int], num_bytes: Sequence[int]
) -> dict[str, Any]:
    """Return the report's ``balance``; all arguments have one entry per shard.

    Without shards or records the imbalance ratio is 1 and the variation 0.

    Args:
        paths: Names of the shards.
        num_records: Records of the shards.
        num_bytes: File sizes of the shards.
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
    """Return the worst balance of several sets, separately in records and in bytes."""
    worst = balance_json([], [], [])
    for balance in balances:
        for unit in ("records", "bytes"):
            key = f"{unit}_max_over_mean"
            if worst[unit]["largest"] is None or balance[key] > worst[key]:
                for name in (unit, f"{unit}_cv", key):
                    worst[name] = balance[name]
    return worst


def balance_text(balance: Mapping[str, Any]) -> str:
    """Return the imbalance ratios as in the verdict line."""
    records, sizes = balance["records_max_over_mean"], balance["bytes_max_over_mean"]
    return f"balance {records:.2f} (bytes {sizes:.2f})"


def _spread(paths: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the distribution of a number over shards; ties name the first shard."""
    if len(paths) != len(numbers):
        raise ValueError(f"{len(paths)} shards, but {len(numbers)} numbers")
    if not numbers:
        return {"largest": None, "max": 0, "mean": 0.0, "min": 0, "smallest": None, "std": 0.0}
    count = len(numbers)
    total = sum(numbers)
    # Integers up to the root, so equal shards have a standard deviation of exactly 0.
    squares = sum((number * count - total) ** 2 for number in numbers)
    shards = range(count)
    return {
        "largest": paths[max(shards, key=numbers.__getitem__)],
        "max": max(numbers),
        "mean": total / count,
        "min": min(numbers),
        "smallest": paths[min(shards, key=numbers.__getitem__)],
        "std": math.sqrt(squares / count) / count,
    }


def _max_over_mean(spread: Mapping[str, Any]) -> float:
    return float(spread["max"] / spread["mean"]) if spread["mean"] else 1.0


def _variation(spread: Mapping[str, Any]) -> float:
    return float(spread["std"] / spread["mean"]) if spread["mean"] else 0.0


SCHEMA: Final = "shardwriter.stats/1"
_MAX_SHOWN: Final = 3
_PROOF: Final = {"crc": "every CRC right", "length": "framing right", "none": "nothing verified"}


@dataclass
class SetReport:
    """The report of one shard set.

    Attributes:
        shard_set: The set: its files, pattern and manifest.
        scans: Shard index and scan of each file, in order.
        findings: The listed defects; :attr:`num_defects` counts all.
        num_defects: Number of defects.
        notes: Remarks that are not defects.
        labels: The label mix; empty without a label or a manifest that has counts.
        shuffle: The shuffle score.
        features: By name: the manifest's entries, and with ``features`` their statistics.
        drift: Differences between shards.
        plan: The split plan; empty without a training job.
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
        """Add a defect."""
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
        """The balance of the shards; see :func:`balance_json`."""
        scans = [scan for _, scan in self.scans]
        return balance_json(
            [scan.path for scan in scans],
            [scan.num_records for scan in scans],
            [scan.file_bytes for scan in scans],
        )

    @property
    def kinds(self) -> Counter[str]:
        """Records by kind; see :mod:`shardwriter.formats.record_kinds`."""
        kinds: Counter[str] = Counter()
        for _, scan in self.scans:
            kinds += scan.kinds if scan.payloads is None else scan.payloads.kinds
        return kinds

    @property
    def kinds_sampled(self) -> bool:
        """Whether kinds are of a sample of the records."""
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
    """The report of ``shard-stats``.

    Attributes:
        sets: One report per shard set.
        check: What was verified.
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
        """The listed defects of all sets."""
        return [finding for report in self.sets for finding in report.findings]

    @property
    def num_defects(self) -> int:
        """Number of defects, including those that are not listed."""
        return sum(report.num_defects for report in self.sets)

    @property
    def notes(self) -> list[str]:
        """The notes of all sets."""
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
        """One line that says whether the shards are good."""
        good = f"{plural(self.sizes.count, 'record')} in {plural(len(self.scans), 'shard')}"
        if self.num_defects:
            num_files = len({finding.path for finding in self.findings})
            return (
                f"DAMAGED: {plural(self.num_defects, 'defect')} in {plural(num_files, 'file')}; "
                f"{good} are good"
            )
        line = f"OK: {good}, {_PROOF[self.check]}, {balance_text(self.balance)}"
        policies = [policy for report in self.sets for policy in report.plan.get("policies", [])]
        num_hanging = sum(policy["hangs"] for policy in policies)
        if num_hanging:
            line += f"; {num_hanging} of {len(policies)} ways to split it would hang"
        return line

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, as described by ``stats.schema.json`` in this package.

        Later versions add keys and never rename them. If there is only one set, its features,
        labels and plan are also at the top.
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
    record = "" if finding.record_index is None else f", record {finding.record_index:,}"
    return clean(f"{finding.kind}: {finding.path}{record}: {finding.detail}")


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
