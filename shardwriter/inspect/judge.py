"""Judging a shard set by the scans of its files: defects, what they cost, what is worth knowing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardwriter.dataset import Gaps, Manifest, SealedShard, ShardPattern, assignment_error
from shardwriter.formats import (
    BREAKS,
    FRAME_BYTES,
    Check,
    describe_kinds,
    feature_spelling,
    list_spelling,
)
from shardwriter.inspect.document import SetReport
from shardwriter.inspect.drift import find_drift
from shardwriter.inspect.feature_stats import MAX_FEATURES, FeatureStats
from shardwriter.inspect.file_names import beyond_last, generations_together, same_content
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.label_mix import label_mix, label_note, table_of_manifest, table_of_scans
from shardwriter.inspect.label_scan import LabelScan
from shardwriter.inspect.scan import LONG_BYTES, FileScan, ScanOptions, scan_file
from shardwriter.inspect.shuffle import shuffle_by_label, shuffle_by_order, shuffle_note
from shardwriter.inspect.sidecars import Found, folder_notes, hold_set, judge_folders, known_ends
from shardwriter.inspect.split_plan import plan_json
from shardwriter.inspect.split_policies import PlanOptions
from shardwriter.sources import ShardSet

# What a set holds, from the scans of its files: labels, order, features, what training gets.


def describe(report: SetReport, plan: PlanOptions | None) -> None:
    """Fill in the sections of a set's report, and its notes.

    Args:
        report: With the scans.
        plan: Who will read; None for nobody that is known.
    """
    scans = [scan for _, scan in report.scans]
    notes = same_content([(scan.path, scan.crc32c, scan.num_records) for scan in scans])
    notes += describe_kinds(report.kinds, is_sample=report.kinds_sampled)
    num_long = sum(scan.num_long for scan in scans)
    if num_long:
        notes.append(
            f"{num_long:,} record(s) are longer than {LONG_BYTES >> 20} MiB: they were checked in "
            "pieces, and nothing is known of their content"
        )
    _describe_labels(report)
    labels = [scan.payloads.labels for scan in scans if scan.payloads and scan.payloads.labels]
    if report.sizes.count and labels and not any(scan.num_labelled for scan in labels):
        name = labels[0].feature
        notes.append(f"no record has a value of {name!r}; `shardwriter show` lists the features")
    notes += filter(None, [label_note(report.labels), shuffle_note(report.shuffle)])
    notes += _describe_features(report)
    if plan is not None:
        report.plan = _plan(report, plan)
    report.notes += notes


def _describe_labels(report: SetReport) -> None:
    shard_set = report.shard_set
    manifest = shard_set.manifest
    scans: list[LabelScan] = [
        scan.payloads.labels
        for _, scan in report.scans
        if scan.payloads is not None and scan.payloads.labels is not None
    ]
    if scans:
        report.labels = label_mix(table_of_scans(scans), shard_set.shards)
        has_law = manifest is not None
        report.shuffle = shuffle_by_label(scans, report.labels, has_law=has_law)
        return
    if manifest is not None:
        report.labels = label_mix(table_of_manifest(manifest), shard_set.shards)
    order = None if manifest is None else manifest.order
    num_shards = len(shard_set.shards) if manifest is None else manifest.num_shards
    report.shuffle = shuffle_by_order(order, report.labels, num_shards)


def _describe_features(report: SetReport) -> list[str]:
    """Take the manifest's word for types, and the records' for all else; return notes."""
    manifest = report.shard_set.manifest
    schema = {} if manifest is None else manifest.schema
    parts = [(feature_spelling, "features"), (list_spelling, "feature_lists")]
    told: dict[str, dict[str, Any]] = {
        spelling(name): entry
        for spelling, part in parts
        for name, entry in schema.get(part, {}).items()
    }
    per_shard = [
        (shard, scan.path, scan.payloads.features)
        for shard, scan in report.scans
        if scan.payloads is not None and scan.payloads.features is not None
    ]
    if not per_shard:
        report.features = dict(told)
        return []
    if len(per_shard) > 1:
        report.drift = find_drift(per_shard)
    total = FeatureStats()
    for _, _, found in per_shard:
        total.merge(found)
    report.features = total.to_json()
    for name, entry in report.features.items():
        entry.update(
            (key, told[name][key])
            for key in ("dtype", "encoding", "shape", "vocabulary")
            if name in told and key in told[name] and told[name].get("kind") == entry["kind"]
        )
    if total.has_all:
        return []
    return [
        f"records have more than {MAX_FEATURES:,} features: statistics are of those whose names "
        "come first in the alphabet, and nothing is known of the others"
    ]


def _plan(report: SetReport, options: PlanOptions) -> dict[str, Any]:
    sizes = report.sizes
    mean_bytes = None if sizes.mean is None else sizes.mean + FRAME_BYTES
    return plan_json(
        [scan.num_records for _, scan in report.scans], replace(options, record_bytes=mean_bytes)
    )


def judge(
    sets: Sequence[ShardSet],
    scans: Sequence[Sequence[FileScan]],
    check: Check,
    plan: PlanOptions | None = None,
) -> list[SetReport]:
    """Judge shard sets by the scans of their files.

    Args:
        sets: The shard sets.
        scans: Of each set, the scans of its files in their order.
        check: What they have proven.
        plan: Who will read; None for nobody that is known.
    """
    reports = [_judge_set(found, mine, check) for found, mine in zip(sets, scans, strict=True)]
    _judge_together(reports)
    for report in reports:
        describe(report, plan)
    return reports


def _judge_set(shard_set: ShardSet, scans: Sequence[FileScan], check: Check) -> SetReport:
    report = SetReport(shard_set, notes=list(shard_set.notes))
    gaps = _gaps(shard_set)
    for (shard, _), first in zip(shard_set.shards, scans, strict=True):
        scan = _scan_by_table(first, check)
        report.scans.append((shard, scan))
        _take_defects(report, gaps, shard, scan)
        if scan.cut_short_at is not None:
            report.notes.append(
                f"{scan.path}: TensorFlow may stop at byte {scan.cut_short_at:,} of this gzip file "
                "and drop the rest without a word; a copy by `shardwriter write` it reads whole"
            )
    _judge_names(report)
    if shard_set.manifest is not None:
        _hold_against_manifest(report, shard_set.manifest, gaps)
    _hold_against_others(report, gaps)
    if shard_set.manifest is None:
        _hold_against_law(report)
    return report


def _judge_together(reports: Sequence[SetReport]) -> None:
    """Take down what is wrong with sets beside each other: splits and generations."""
    sets = [report.shard_set for report in reports]
    for number, finding in [*judge_folders(sets), *generations_together(sets)]:
        reports[number].note(finding)
    for number, note in folder_notes(sets):
        reports[number].notes.append(note)
    loose = [report for report in reports if report.shard_set.pattern is None]
    if len(loose) > 1:
        loose[0].notes.append(
            f"{len(loose):,} files have no names such as train.tfrecord-00000-of-00016: each is "
            "taken for a dataset of its own, and they are not held against each other"
        )


def _gaps(shard_set: ShardSet) -> Gaps | None:
    """Return what tells a record's item; None where no name tells the number of shards."""
    if shard_set.pattern is None:
        return None
    gaps = [] if shard_set.manifest is None else shard_set.manifest.gaps
    return Gaps(gaps, shard_set.pattern.num_shards)


def _scan_by_table(scan: FileScan, check: Check) -> FileScan:
    """Read a file again that has a break, with a table of its frames where there is one.

    Then it is known how many records the break has swallowed, and the numbers of those behind it.
    """
    if scan.compression != "none" or not any(defect.kind in BREAKS for defect in scan.defects):
        return scan
    ends = known_ends(scan.path)
    if ends is None:
        return scan
    again = scan_file(scan.path, ScanOptions(check), ends=ends)
    return replace(again, kinds=scan.kinds, payloads=scan.payloads)


def _take_defects(report: SetReport, gaps: Gaps | None, shard: int, scan: FileScan) -> None:
    shard_index = None if gaps is None else shard
    for defect in scan.defects:
        item: int | None = None
        loses = defect.num_records is None or defect.num_records > 0
        if gaps is not None and loses and defect.record_index is not None:
            item = gaps.item_index(shard, defect.record_index)
        report.findings.append(
            Finding(
                defect.kind,
                scan.path,
                defect.detail,
                defect.record_index,
                item,
                defect.offset,
                shard_index,
                defect.num_records,
                defect.resync_offset,
                defect.num_recoverable,
            )
        )
    report.num_defects += scan.num_defects


def _judge_names(report: SetReport) -> None:
    """Find shards that are not there, and shards of other runs that are."""
    shard_set = report.shard_set
    pattern, manifest = shard_set.pattern, shard_set.manifest
    if pattern is None:
        return
    for shard in shard_set.missing:
        path = os.path.join(shard_set.directory, pattern.shard_file(shard))
        lost = None if manifest is None else manifest.shards[shard].num_records
        detail = f"shard {shard} of {pattern.num_shards}"
        if lost is not None:
            detail += f", with {lost:,} records"
        report.note(Finding("missing-shard", path, detail, shard_index=shard, num_lost=lost))
    for other, shards in shard_set.others.items():
        path = os.path.join(shard_set.directory, other.shard_file(shards[0]))
        which = "is the dataset's" if manifest is not None else "lies beside it"
        detail = f"{len(shards)} shard(s) of another run; {files_of(pattern)} {which}"
        report.note(Finding("stale-generation", path, detail, num_lost=0))
    beyond = beyond_last(shard_set)
    if beyond is not None:
        report.note(beyond)


def files_of(pattern: ShardPattern) -> str:
    """Return the glob of a pattern's shards."""
    return pattern.template.replace("{shard}", "*")


def _hold_against_manifest(report: SetReport, manifest: Manifest, gaps: Gaps | None) -> None:
    """Catch what no reader of one file can: whole records that are gone, or not the right ones."""
    assert gaps is not None
    for shard, scan in report.scans:
        told = manifest.shards[shard]
        if _loses_records(scan):
            _count_losses(report, scan, told.num_records, gaps)
            continue  # what is wrong is said already, and more exactly
        finding = _difference(scan, told, manifest.compression["type"])
        if finding is None:
            continue
        item = None
        if finding.num_lost and finding.record_index is not None:
            item = gaps.item_index(shard, finding.record_index)
        report.note(replace(finding, shard_index=shard, global_index=item))


def _count_losses(report: SetReport, scan: FileScan, num_told: int, gaps: Gaps | None) -> None:
    """Hold what a file's defects cost against how many records it should have.

    Where one break has swallowed nobody knows how many records, the sum tells. Zeros at the end may
    stand where records were, and whole records may be gone behind a file's other damages.
    """
    mine = [k for k, finding in enumerate(report.findings) if finding.path == scan.path]
    if len(mine) != scan.num_defects:
        return
    findings = [report.findings[k] for k in mine]
    unknown = [k for k in mine if report.findings[k].num_lost is None]
    known = sum(finding.num_lost or 0 for finding in findings)
    # Records without the mask are counted among those that are lost.
    behind = sum(f.num_recoverable for f in findings if f.kind != "unmasked-crc")
    rest = num_told - scan.num_records - behind - known
    if len(unknown) == 1 and rest >= 0:
        told = replace(report.findings[unknown[0]], num_lost=rest)
        report.findings[unknown[0]] = told if rest else replace(told, global_index=None)
    elif not unknown and rest > 0:
        tails = [k for k in mine if report.findings[k].kind == "torn-tail"]
        first = num_told - rest
        shard_index = findings[0].shard_index
        item = None
        if gaps is not None and shard_index is not None:
            item = gaps.item_index(shard_index, first)
        if tails:
            tail = report.findings[tails[-1]]
            report.findings[tails[-1]] = replace(
                tail, record_index=first, global_index=item, num_lost=rest
            )
            return
        detail = f"besides, {rest:,} of {num_told:,} records {'is' if rest == 1 else 'are'} missing"
        report.note(
            Finding("record-count", scan.path, detail, first, item, None, shard_index, rest)
        )


def _difference(scan: FileScan, told: SealedShard, compression: str) -> Finding | None:
    """Name the first thing in which a file is not what the manifest says."""
    path = scan.path
    if scan.num_records != told.num_records:
        return Finding(
            "record-count",
            path,
            f"{scan.num_records:,} records, the manifest says {told.num_records:,}",
            min(scan.num_records, told.num_records),
            num_lost=max(0, told.num_records - scan.num_records),
        )
    if scan.sizes.total != told.payload_bytes or scan.crc32c not in (None, told.crc32c):
        found = "unknown" if scan.crc32c is None else f"{scan.crc32c:08x}"
        detail = (
            f"whole records, but not those of the manifest: {scan.sizes.total:,} bytes with CRC "
            f"{found}, should be {told.payload_bytes:,} with {told.crc32c:08x}"
        )
        return Finding("other-content", path, detail)
    if scan.compression != compression:
        detail = f"the right records, but compression is {scan.compression}, not {compression}"
        return Finding("other-compression", path, detail, num_lost=0)
    if scan.file_bytes != told.file_bytes:
        detail = f"a file of {scan.file_bytes:,} bytes, the manifest says {told.file_bytes:,}"
        return Finding("other-size", path, detail, num_lost=0)
    if told.file_crc32c is not None and scan.file_crc32c not in (None, told.file_crc32c):
        detail = (
            f"the right records, but compressed into other bytes: CRC {scan.file_crc32c:08x}, "
            f"should be {told.file_crc32c:08x}"
        )
        return Finding("other-bytes", path, detail, num_lost=0)
    return None


def _hold_against_others(report: SetReport, gaps: Gaps | None) -> None:
    """Hold the files against what an index, a table of offsets or TFDS's metadata say of them."""
    blamed = {finding.path for finding in report.findings}
    found = {
        scan.path: Found(
            scan.num_records,
            scan.compression,
            scan.path in blamed and (_loses_records(scan) or not scan.num_defects),
        )
        for _, scan in report.scans
    }
    held = hold_set(report.shard_set, found)
    for finding in held.findings:
        item = finding.global_index
        shard, place = finding.shard_index, finding.record_index
        if gaps is not None and shard is not None and place is not None:
            item = gaps.item_index(shard, place)
        report.note(replace(finding, global_index=item))
    if report.shard_set.manifest is not None:
        return
    for number, finding in enumerate(report.findings):
        if finding.kind == "missing-shard":
            lost = held.expected.get(finding.path)
            report.findings[number] = replace(finding, num_lost=lost)
    for _, scan in report.scans:
        if _loses_records(scan) and scan.path in held.expected:
            _count_losses(report, scan, held.expected[scan.path], gaps)


def _loses_records(scan: FileScan) -> bool:
    return any(d.num_records != 0 or d.kind == "torn-tail" for d in scan.defects)


def _hold_against_law(report: SetReport) -> None:
    """Without a manifest lengths that do not follow the law are worth a word, and no defect."""
    pattern = report.shard_set.pattern
    if pattern is None or report.num_defects or len(report.scans) != pattern.num_shards:
        return
    counts = [scan.num_records for _, scan in report.scans]
    breach = assignment_error(counts, sum(counts))
    if breach is not None:
        shard, expected, count = breach
        report.notes.append(
            f"{files_of(pattern)} was not dealt round-robin: shard {shard} has {count:,} records, "
            f"{expected:,} would be even"
        )
