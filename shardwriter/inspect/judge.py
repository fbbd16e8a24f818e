"""Findings, notes and sections of shard sets, from the scans of their files.

Every check is a function of the shard set and its scans: defects of single files, names, the
manifest, sidecars, splits side by side. Then labels, order, features and the split plan are
described.
"""

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
from shardwriter.inspect.sidecars import (
    ScannedShard,
    check_tfds_folders,
    compare_set,
    folder_notes,
    known_ends,
)
from shardwriter.inspect.split_plan import plan_json
from shardwriter.inspect.split_policies import PlanOptions
from shardwriter.sources import ShardSet


def _describe(report: SetReport, plan: PlanOptions | None) -> None:
    """Fill in a report's labels, shuffle, features, plan and notes from its scans."""
    scans = [scan for _, scan in report.scans]
    notes = same_content([(scan.path, scan.crc32c, scan.num_records) for scan in scans])
    notes += describe_kinds(report.kinds, is_sample=report.kinds_sampled)
    num_long = sum(scan.num_long for scan in scans)
    if num_long:
        notes.append(
            f"{num_long:,} record(s) are longer than {LONG_BYTES >> 20} MiB: their checksums were "
            "checked, but their content was not inspected"
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
        has_manifest = manifest is not None
        report.shuffle = shuffle_by_label(scans, report.labels, round_robin=has_manifest)
        return
    if manifest is not None:
        report.labels = label_mix(table_of_manifest(manifest), shard_set.shards)
    order = None if manifest is None else manifest.order
    num_shards = len(shard_set.shards) if manifest is None else manifest.num_shards
    report.shuffle = shuffle_by_order(order, report.labels, num_shards)


def _describe_features(report: SetReport) -> list[str]:
    """Fill in features: types from the manifest, everything else from the records; return notes."""
    manifest = report.shard_set.manifest
    schema = {} if manifest is None else manifest.schema
    parts = [(feature_spelling, "features"), (list_spelling, "feature_lists")]
    declared: dict[str, dict[str, Any]] = {
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
        report.features = dict(declared)
        return []
    if len(per_shard) > 1:
        report.drift = find_drift(per_shard)
    total = FeatureStats()
    for _, _, found in per_shard:
        total.merge(found)
    report.features = total.to_json()
    for name, entry in report.features.items():
        entry.update(
            (key, declared[name][key])
            for key in ("dtype", "encoding", "shape", "vocabulary")
            if name in declared
            and key in declared[name]
            and declared[name].get("kind") == entry["kind"]
        )
    if total.has_all:
        return []
    return [
        f"records have more than {MAX_FEATURES:,} features: only the first {MAX_FEATURES:,} in "
        "alphabetical order have statistics"
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
    """Return one report per shard set.

    Args:
        sets: The shard sets.
        scans: For each set, the scans of its files in their order.
        check: What the scans have verified.
        plan: The training job that will read the shards; None leaves the plan empty.
    """
    reports = [_judge_set(found, mine, check) for found, mine in zip(sets, scans, strict=True)]
    _add_findings_across_sets(reports)
    for report in reports:
        _describe(report, plan)
    return reports


def _judge_set(shard_set: ShardSet, scans: Sequence[FileScan], check: Check) -> SetReport:
    report = SetReport(shard_set, notes=list(shard_set.notes))
    gaps = _gaps(shard_set)
    for (shard, _), first in zip(shard_set.shards, scans, strict=True):
        scan = _scan_by_table(first, check)
        report.scans.append((shard, scan))
        _add_defects(report, gaps, shard, scan)
        if scan.cut_short_at is not None:
            report.notes.append(
                f"{scan.path}: TensorFlow may stop at byte {scan.cut_short_at:,} of this gzip file "
                "and silently drop the rest; it reads all of a copy by `shardwriter write`"
            )
    _check_names(report)
    if shard_set.manifest is not None:
        _compare_with_manifest(report, shard_set.manifest, gaps)
    _compare_with_sidecars(report, gaps)
    if shard_set.manifest is None:
        _note_assignment_error(report)
    return report


def _add_findings_across_sets(reports: Sequence[SetReport]) -> None:
    """Add findings about sets in relation to each other: TFDS splits and stale generations."""
    sets = [report.shard_set for report in reports]
    for number, finding in [*check_tfds_folders(sets), *generations_together(sets)]:
        reports[number].note(finding)
    for number, note in folder_notes(sets):
        reports[number].notes.append(note)
    loose = [report for report in reports if report.shard_set.pattern is None]
    if len(loose) > 1:
        loose[0].notes.append(
            f"{len(loose):,} files have no names such as train.tfrecord-00000-of-00016: each is "
            "treated as a dataset of its own and is not compared with the others"
        )


def _gaps(shard_set: ShardSet) -> Gaps | None:
    """Return the map from records to items; None if file names do not give the number of shards."""
    if shard_set.pattern is None:
        return None
    gaps = [] if shard_set.manifest is None else shard_set.manifest.gaps
    return Gaps(gaps, shard_set.pattern.num_shards)


def _scan_by_table(scan: FileScan, check: Check) -> FileScan:
    """Return a scan of a broken file that used its table of frames, if there is one.

    With the table it is known how many records the break lost, and the indices of those behind it.
    """
    if scan.compression != "none" or not any(defect.kind in BREAKS for defect in scan.defects):
        return scan
    ends = known_ends(scan.path)
    if ends is None:
        return scan
    again = scan_file(scan.path, ScanOptions(check), ends=ends)
    return replace(again, kinds=scan.kinds, payloads=scan.payloads)


def _add_defects(report: SetReport, gaps: Gaps | None, shard: int, scan: FileScan) -> None:
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


def _check_names(report: SetReport) -> None:
    """Add findings for missing shards, and for shards of other runs."""
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
        which = "is the dataset" if manifest is not None else "is in the same folder"
        detail = f"{len(shards)} shard(s) of another run; {_glob_of(pattern)} {which}"
        report.note(Finding("stale-generation", path, detail, num_lost=0))
    beyond = beyond_last(shard_set)
    if beyond is not None:
        report.note(beyond)


def _glob_of(pattern: ShardPattern) -> str:
    """Return the glob of a pattern's shards."""
    return pattern.template.replace("{shard}", "*")


def _compare_with_manifest(report: SetReport, manifest: Manifest, gaps: Gaps | None) -> None:
    """Add findings that no reader of one file can see: missing or different records."""
    assert gaps is not None
    for shard, scan in report.scans:
        sealed = manifest.shards[shard]
        if _loses_records(scan):
            _count_losses(report, scan, sealed.num_records, gaps)
            continue  # the scan's defects are more exact
        finding = _difference(scan, sealed, manifest.compression["type"])
        if finding is None:
            continue
        item = None
        if finding.num_lost and finding.record_index is not None:
            item = gaps.item_index(shard, finding.record_index)
        report.note(replace(finding, shard_index=shard, global_index=item))


def _count_losses(report: SetReport, scan: FileScan, num_expected: int, gaps: Gaps | None) -> None:
    """Complete the losses of a damaged file from the number of records it should have.

    If the loss of a single break is unknown, it is the difference. Otherwise records that are still
    missing were replaced by zeros at the end, or are missing behind the other damage.
    """
    mine = [k for k, finding in enumerate(report.findings) if finding.path == scan.path]
    if len(mine) != scan.num_defects:
        return
    findings = [report.findings[k] for k in mine]
    unknown = [k for k in mine if report.findings[k].num_lost is None]
    known = sum(finding.num_lost or 0 for finding in findings)
    # Records with unmasked CRCs are already counted as lost.
    behind = sum(f.num_recoverable for f in findings if f.kind != "unmasked-crc")
    rest = num_expected - scan.num_records - behind - known
    if len(unknown) == 1 and rest >= 0:
        counted = replace(report.findings[unknown[0]], num_lost=rest)
        report.findings[unknown[0]] = counted if rest else replace(counted, global_index=None)
    elif not unknown and rest > 0:
        tails = [k for k in mine if report.findings[k].kind == "torn-tail"]
        first = num_expected - rest
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
        verb = "is" if rest == 1 else "are"
        detail = f"besides, {rest:,} of {num_expected:,} records {verb} missing"
        report.note(
            Finding("record-count", scan.path, detail, first, item, None, shard_index, rest)
        )


def _difference(scan: FileScan, sealed: SealedShard, compression: str) -> Finding | None:
    """Return the first difference between a file and its entry in the manifest; None if equal."""
    path = scan.path
    if scan.num_records != sealed.num_records:
        return Finding(
            "record-count",
            path,
            f"{scan.num_records:,} records, the manifest says {sealed.num_records:,}",
            min(scan.num_records, sealed.num_records),
            num_lost=max(0, sealed.num_records - scan.num_records),
        )
    if scan.sizes.total != sealed.payload_bytes or scan.crc32c not in (None, sealed.crc32c):
        found = "unknown" if scan.crc32c is None else f"{scan.crc32c:08x}"
        detail = (
            f"whole records, but not those of the manifest: {scan.sizes.total:,} bytes with CRC "
            f"{found}, should be {sealed.payload_bytes:,} with {sealed.crc32c:08x}"
        )
        return Finding("other-content", path, detail)
    if scan.compression != compression:
        detail = f"the right records, but compression is {scan.compression}, not {compression}"
        return Finding("other-compression", path, detail, num_lost=0)
    if scan.file_bytes != sealed.file_bytes:
        detail = f"a file of {scan.file_bytes:,} bytes, the manifest says {sealed.file_bytes:,}"
        return Finding("other-size", path, detail, num_lost=0)
    if sealed.file_crc32c is not None and scan.file_crc32c not in (None, sealed.file_crc32c):
        detail = (
            f"the right records, but compressed into other bytes: CRC {scan.file_crc32c:08x}, "
            f"should be {sealed.file_crc32c:08x}"
        )
        return Finding("other-bytes", path, detail, num_lost=0)
    return None


def _compare_with_sidecars(report: SetReport, gaps: Gaps | None) -> None:
    """Add findings where shards differ from an index, a table of offsets or TFDS's metadata."""
    with_findings = {finding.path for finding in report.findings}
    scanned = {
        scan.path: ScannedShard(
            scan.num_records,
            scan.compression,
            scan.path in with_findings and (_loses_records(scan) or not scan.num_defects),
        )
        for _, scan in report.scans
    }
    comparison = compare_set(report.shard_set, scanned)
    for finding in comparison.findings:
        item = finding.global_index
        shard, record = finding.shard_index, finding.record_index
        if gaps is not None and shard is not None and record is not None:
            item = gaps.item_index(shard, record)
        report.note(replace(finding, global_index=item))
    if report.shard_set.manifest is not None:
        return
    for number, finding in enumerate(report.findings):
        if finding.kind == "missing-shard":
            lost = comparison.expected.get(finding.path)
            report.findings[number] = replace(finding, num_lost=lost)
    for _, scan in report.scans:
        if _loses_records(scan) and scan.path in comparison.expected:
            _count_losses(report, scan, comparison.expected[scan.path], gaps)


def _loses_records(scan: FileScan) -> bool:
    return any(d.num_records != 0 or d.kind == "torn-tail" for d in scan.defects)


def _note_assignment_error(report: SetReport) -> None:
    """Add a note if the lengths of shards without a manifest are not those of round-robin."""
    pattern = report.shard_set.pattern
    if pattern is None or report.num_defects or len(report.scans) != pattern.num_shards:
        return
    counts = [scan.num_records for _, scan in report.scans]
    error = assignment_error(counts, sum(counts))
    if error is not None:
        shard, expected, count = error
        report.notes.append(
            f"{_glob_of(pattern)} was not assigned round-robin: shard {shard} has {count:,} "
            f"records, not {expected:,}"
        )
