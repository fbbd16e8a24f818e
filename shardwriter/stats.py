"""What is on disk: counts, sizes, balance and defects of shard sets, proven by reading them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardwriter.layout import Gaps, law_breach
from shardwriter.locate import find_shard_sets
from shardwriter.manifest import Manifest, SealedShard
from shardwriter.naming import ShardPattern
from shardwriter.scan import FileScan, RecordSizes, scan_file
from shardwriter.shard_sets import ShardSet
from shardwriter.storage.inputs import inputs_for
from shardwriter.storage.local import storage_errors
from shardwriter.tfrecord_reader import Check

SCHEMA: Final = "shardwriter.stats/1"


@dataclass(frozen=True)
class Finding:
    """A defect, with the place where it is.

    Attributes:
        kind: The broken rule.
        path: The file.
        detail: What was found.
        record_index: Index in the file; None where the whole file is concerned.
        global_index: Index of the item in source order, where the file's name or manifest tell.
        offset: Byte offset of the frame in the uncompressed stream.
    """

    kind: str
    path: str
    detail: str
    record_index: int | None = None
    global_index: int | None = None
    offset: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the defect as JSON."""
        return {
            "detail": self.detail,
            "global_index": self.global_index,
            "kind": self.kind,
            "offset": self.offset,
            "path": self.path,
            "record_index": self.record_index,
        }


@dataclass
class SetReport:
    """One shard set and what was found in it."""

    shard_set: ShardSet
    scans: list[tuple[int, FileScan]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    num_defects: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, finding: Finding) -> None:
        """Take a defect down."""
        self.findings.append(finding)
        self.num_defects += 1

    @property
    def balance(self) -> tuple[float, float]:
        """Largest over mean shard, in records and in file bytes; 1 where there is nothing."""
        records = [scan.num_records for _, scan in self.scans]
        sizes = [scan.file_bytes for _, scan in self.scans]
        return _max_over_mean(records), _max_over_mean(sizes)


def _max_over_mean(numbers: Sequence[int]) -> float:
    total = sum(numbers)
    return max(numbers) * len(numbers) / total if total else 1.0


@dataclass
class Report:
    """All that ``shard-stats`` says.

    Attributes:
        sets: One report a shard set.
        check: What was proven.
    """

    sets: list[SetReport]
    check: Check

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
        sizes = RecordSizes()
        for scan in self.scans:
            sizes.merge(scan.sizes)
        return sizes

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return sum(scan.file_bytes for scan in self.scans)

    @property
    def balance(self) -> tuple[float, float]:
        """The worst set's largest over mean shard, in records and in bytes."""
        pairs = [report.balance for report in self.sets]
        return max((r for r, _ in pairs), default=1.0), max((b for _, b in pairs), default=1.0)

    @property
    def verdict(self) -> str:
        """One line that says whether these shards are good; balance is largest over mean shard."""
        sizes, num_files = self.sizes, len(self.scans)
        proof = {"crc": "every CRC right", "length": "framing right", "none": "nothing proven"}
        what = f"{sizes.count:,} record{'s' * (sizes.count != 1)} in {num_files:,} shard"
        what += "s" * (num_files != 1)
        if self.num_defects:
            files = len({finding.path for finding in self.findings})
            return (
                f"DAMAGED: {self.num_defects:,} defect{'s' * (self.num_defects != 1)} in "
                f"{files:,} file{'s' * (files != 1)}; {what} are good"
            )
        records, file_bytes = self.balance
        return f"OK: {what}, {proof[self.check]}, balance {records:.2f} (bytes {file_bytes:.2f})"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON; keys are added in later versions, never renamed."""
        sizes = self.sizes
        records, file_bytes = self.balance
        manifests = [r.shard_set.manifest for r in self.sets if r.shard_set.manifest is not None]
        only = manifests[0] if len(manifests) == 1 else None
        return {
            "balance": {"bytes_max_over_mean": file_bytes, "records_max_over_mean": records},
            "check": self.check,
            "defects": [finding.to_json() for finding in self.findings],
            "features": {} if only is None else only.schema.get("features", {}),
            "file_bytes": self.file_bytes,
            "labels": {} if only is None or only.labels is None else only.labels,
            "notes": self.notes,
            "num_defects": self.num_defects,
            "num_records": sizes.count,
            "num_shards": len(self.scans),
            "payload_bytes": sizes.total,
            "record_bytes": _sizes_json(sizes),
            "schema": SCHEMA,
            "shards": [
                _shard_json(report, shard, scan)
                for report in self.sets
                for shard, scan in report.scans
            ],
            "verdict": self.verdict,
        }


def _sizes_json(sizes: RecordSizes) -> dict[str, Any]:
    bins = [
        {"below": 1 << digits, "count": count, "from": (1 << digits) >> 1}
        for digits, count in enumerate(sizes.histogram)
        if count
    ]
    return {"histogram": bins, "max": sizes.max, "mean": sizes.mean, "min": sizes.min}


def _shard_json(report: SetReport, shard: int, scan: FileScan) -> dict[str, Any]:
    return {
        "compression": scan.compression,
        "crc32c": None if scan.crc32c is None else f"{scan.crc32c:08x}",
        "file_bytes": scan.file_bytes,
        "num_records": scan.num_records,
        "path": scan.path,
        "payload_bytes": scan.sizes.total,
        "record_bytes": _sizes_json(scan.sizes),
        "shard_index": shard if report.shard_set.pattern is not None else None,
    }


def stats(
    paths: str | os.PathLike[str] | Sequence[str],
    *,
    check: Check = "crc",
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Read shards through and say what is there and what is wrong.

    Args:
        paths: A folder, file, manifest, dataset name, ``train@16``, or glob; or several.
        check: ``"crc"`` proves every byte, ``"length"`` the framing, ``"none"`` nothing.
        progress: Called with (bytes of files read, bytes of all files).

    Raises:
        OptionError: A path names nothing.
        SourceError: There are no shards where a path leads.
        StorageError: A file can not be read.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [os.fspath(paths)]
    sets = find_shard_sets(list(paths))
    total_bytes = sum(_file_bytes(found) for found in sets)
    done_bytes = 0

    def tell(file_bytes: int) -> None:
        if progress is not None:
            progress(done_bytes + file_bytes, total_bytes)

    reports = []
    for shard_set in sets:
        scans = []
        for _, path in shard_set.shards:
            scan = scan_file(path, check=check, progress=None if progress is None else tell)
            done_bytes += scan.file_bytes
            scans.append(scan)
        reports.append(report_of(shard_set, scans))
    return Report(reports, check)


def report_of(shard_set: ShardSet, scans: Sequence[FileScan]) -> SetReport:
    """Judge a shard set by the scans of its files, in their order."""
    report = SetReport(shard_set, notes=list(shard_set.notes))
    gaps = _gaps(shard_set)
    for (shard, path), scan in zip(shard_set.shards, scans, strict=True):
        report.scans.append((shard, scan))
        _take_defects(report, gaps, shard, scan)
        if scan.cut_short_at is not None:
            report.notes.append(
                f"{path}: TensorFlow may stop at byte {scan.cut_short_at:,} of this gzip file "
                "and drop the rest without a word; a copy by `shardwriter write` it reads whole"
            )
    _judge_set(report)
    if shard_set.manifest is not None:
        _hold_against_manifest(report, shard_set.manifest)
    else:
        _hold_against_law(report)
    return report


def _file_bytes(shard_set: ShardSet) -> int:
    paths = [path for _, path in shard_set.shards]
    with storage_errors(shard_set.directory):
        found = inputs_for(shard_set.directory).stats(paths)
    return sum(stat.st_size for stat in found)


def _gaps(shard_set: ShardSet) -> Gaps | None:
    """Return what tells a record's item; None where no name tells the number of shards."""
    if shard_set.pattern is None:
        return None
    gaps = [] if shard_set.manifest is None else shard_set.manifest.gaps
    return Gaps(gaps, shard_set.pattern.num_shards)


def _take_defects(report: SetReport, gaps: Gaps | None, shard: int, scan: FileScan) -> None:
    for defect in scan.defects:
        place: int | None = None
        if gaps is not None and defect.num_records:
            place = gaps.item_index(shard, defect.record_index)
        report.findings.append(
            Finding(
                defect.kind, scan.path, defect.detail, defect.record_index, place, defect.offset
            )
        )
    report.num_defects += scan.num_defects


def _judge_set(report: SetReport) -> None:
    shard_set = report.shard_set
    pattern = shard_set.pattern
    if pattern is None:
        return
    for shard in shard_set.missing:
        path = os.path.join(shard_set.directory, pattern.shard_file(shard))
        report.note(Finding("missing-shard", path, f"shard {shard} of {pattern.num_shards}"))
    for other, shards in shard_set.others.items():
        path = os.path.join(shard_set.directory, other.shard_file(shards[0]))
        which = "is the dataset's" if shard_set.manifest is not None else "lies beside it"
        report.note(
            Finding(
                "stale-generation",
                path,
                f"{len(shards)} shard(s) of another run; {_glob(pattern)} {which}",
            )
        )


def _glob(pattern: ShardPattern) -> str:
    return pattern.template.replace("{shard}", "*")


def _hold_against_manifest(report: SetReport, manifest: Manifest) -> None:
    """Catch what no reader of one file can: whole records that are gone, or not the right ones."""
    for shard, scan in report.scans:
        told = manifest.shards[shard]
        damaged = any(defect.num_records or defect.kind == "torn-tail" for defect in scan.defects)
        if damaged:
            continue  # said already, and more exactly
        finding = _difference(scan, told, manifest.compression["type"])
        if finding is not None:
            report.note(finding)


def _difference(scan: FileScan, told: SealedShard, compression: str) -> Finding | None:
    """Name the first thing in which a file is not what the manifest says."""
    if scan.num_records != told.num_records:
        return Finding(
            "record-count",
            scan.path,
            f"{scan.num_records:,} records, the manifest says {told.num_records:,}",
            min(scan.num_records, told.num_records),
        )
    if scan.sizes.total != told.payload_bytes or scan.crc32c not in (None, told.crc32c):
        found = "unknown" if scan.crc32c is None else f"{scan.crc32c:08x}"
        detail = (
            f"whole records, but not those of the manifest: {scan.sizes.total:,} bytes with CRC "
            f"{found}, should be {told.payload_bytes:,} with {told.crc32c:08x}"
        )
        return Finding("other-content", scan.path, detail)
    if scan.compression != compression:
        detail = f"the right records, but compression is {scan.compression}, not {compression}"
        return Finding("other-compression", scan.path, detail)
    if scan.file_bytes != told.file_bytes:
        detail = f"a file of {scan.file_bytes:,} bytes, the manifest says {told.file_bytes:,}"
        return Finding("other-size", scan.path, detail)
    if told.file_crc32c is not None and scan.file_crc32c not in (None, told.file_crc32c):
        detail = (
            f"the right records, but compressed into other bytes: CRC {scan.file_crc32c:08x}, "
            f"should be {told.file_crc32c:08x}"
        )
        return Finding("other-bytes", scan.path, detail)
    return None


def _hold_against_law(report: SetReport) -> None:
    """Without a manifest lengths that do not follow the law are worth a word, and no defect."""
    pattern = report.shard_set.pattern
    if pattern is None or report.num_defects or len(report.scans) != pattern.num_shards:
        return
    counts = [scan.num_records for _, scan in report.scans]
    breach = law_breach(counts, sum(counts))
    if breach is not None:
        shard, expected, count = breach
        report.notes.append(
            f"{_glob(pattern)} was not dealt round-robin: shard {shard} has {count:,} records, "
            f"{expected:,} would be even"
        )
