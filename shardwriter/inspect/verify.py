"""`verify`: compare every shard, every count and the index of a dataset with its manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import GapRuns, Index, Manifest, is_url
from shardwriter.errors import CorruptFile, ManifestError, StorageError
from shardwriter.inspect.document import Report, SetReport
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.scan import FileScan, index_sums
from shardwriter.inspect.stats import stats
from shardwriter.sources import find_one, required_manifest
from shardwriter.writing import Reading, open_index, read_rows, reading_progress


def verify(path: str | os.PathLike[str], *, progress: Reading | bool | None = None) -> Report:
    """Return a report of a dataset with a manifest, with every byte and the index verified.

    Args:
        path: The dataset: ``out/train``, ``out/train@16``, its manifest, or its folder.
        progress: True shows a bar; or a function called with (bytes of files read, bytes of all
            files).

    Raises:
        OptionError: The path names nothing, or several datasets.
        ManifestError: There is no usable manifest.
    """
    shard_set = find_one(os.fspath(path))
    manifest = required_manifest(shard_set)
    path = os.path.join(shard_set.directory, manifest.pattern.manifest_file)
    with reading_progress(progress, "verifying") as on_read:
        report = stats(path, progress=on_read)
    set_report = report.sets[0]
    for finding in _index_findings(set_report, manifest):
        set_report.note(finding)
    return report


def _index_findings(report: SetReport, manifest: Manifest) -> Iterator[Finding]:
    """Yield where the index differs from the manifest, or an entry of it from the shards."""
    directory = report.shard_set.directory
    try:
        index = open_index(directory, manifest)
    except (ManifestError, StorageError) as error:
        path = error.path or os.path.join(directory, manifest.index.file)
        yield Finding("index", path, error.message, error.record_index, shard_index=error.shard)
        return
    path = os.path.join(directory, manifest.index.file)
    if not _has_gaps(index, manifest):
        yield Finding("index", path, "its gaps differ from those of the manifest", num_lost=0)
    broken = {finding.path for finding in report.findings}
    if is_url(directory) and manifest.compression["type"] == "zlib":
        report.notes.append(
            "the entries of the index were not compared: blocks of zlib shards can only be found "
            "in local files"
        )
        return
    for shard, scan in report.scans:
        rows = index.entries(shard)
        if scan.path in broken or scan.index_sums == index_sums(rows):
            continue  # equal, or the shard has findings of its own
        finding = _first_difference(path, shard, scan, rows)
        if finding is not None:
            yield finding


def _has_gaps(index: Index, manifest: Manifest) -> bool:
    if len(index.gaps) != len(manifest.gaps):
        return False
    blocks = manifest.gaps.blocks() if isinstance(manifest.gaps, GapRuns) else [manifest.gaps]
    start = 0
    for block in blocks:
        if not np.array_equal(index.gaps[start : start + len(block)], block):
            return False
        start += len(block)
    return True


def _first_difference(
    path: str, shard: int, scan: FileScan, claimed: NDArray[np.uint64]
) -> Finding | None:
    """Return a finding for the first index entry that differs from the file; None if all agree."""
    try:
        found = read_rows(scan.path, scan.compression)[0]
    except (CorruptFile, ManifestError, StorageError) as error:
        return Finding("index", path, f"{scan.path}: {error.message}", shard_index=shard)
    common = min(found.shape[1], claimed.shape[1])
    wrong = np.flatnonzero((found[:, :common] != claimed[:, :common]).any(axis=0))
    if not len(wrong) and found.shape == claimed.shape:
        return None
    at = int(wrong[0]) if len(wrong) else common
    is_plain = scan.compression == "none"
    what = f"{'record' if is_plain else 'member'} {at:,} of shard {shard}"
    if not len(wrong):
        detail = f"it has {claimed.shape[1]:,} entries of shard {shard}, not {found.shape[1]:,}"
    elif found[0, at] != claimed[0, at]:
        detail = f"{what} ends at offset {int(found[0, at]):,}, not {int(claimed[0, at]):,}"
    else:
        detail = f"{what} ends with record {int(found[1, at]):,}, not {int(claimed[1, at]):,}"
    record = at if is_plain else None
    return Finding("index", path, detail, record, shard_index=shard, num_lost=0)
