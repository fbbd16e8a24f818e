"""What a set holds, from the scans of its files: labels, order, features, what training gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwriter.formats.record_kinds import describe_kinds
from shardwriter.formats.sequence_names import feature_spelling, list_spelling
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.inspect.document import SetReport
from shardwriter.inspect.drift import find_drift
from shardwriter.inspect.feature_stats import MAX_FEATURES, FeatureStats
from shardwriter.inspect.file_names import same_content
from shardwriter.inspect.label_mix import label_mix, label_note, table_of_manifest, table_of_scans
from shardwriter.inspect.label_scan import LabelScan
from shardwriter.inspect.options import PlanOptions
from shardwriter.inspect.scan import LONG_BYTES
from shardwriter.inspect.shuffle import shuffle_by_label, shuffle_by_order, shuffle_note
from shardwriter.inspect.split_plan import plan_json


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
