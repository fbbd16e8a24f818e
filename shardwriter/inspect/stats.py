"""`stats`: scan shard sets and return a report of counts, sizes, balance, contents and defects."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from shardwriter.dataset import Positive, check_value
from shardwriter.formats import Check
from shardwriter.inspect.document import Report
from shardwriter.inspect.file_names import numbered_together
from shardwriter.inspect.scan import ScanOptions
from shardwriter.inspect.scan_pool import scan_files
from shardwriter.inspect.split_policies import PlanOptions
from shardwriter.sources import ShardSet, find_shard_sets
from shardwriter.storage import inputs_for, storage_errors
from shardwriter.writing import Reading, reading_progress


def stats(
    paths: str | os.PathLike[str] | Sequence[str],
    *,
    check: Check = "crc",
    features: bool = False,
    label: str | None = None,
    plan: PlanOptions | None = None,
    workers: int | None = None,
    progress: Reading | bool | None = None,
) -> Report:
    """Return a report of shard sets: their contents, their defects, and how training splits them.

    Args:
        paths: A folder, file, manifest, dataset name, ``train@16``, or glob; or several.
        check: ``"crc"`` verifies every byte, ``"length"`` the framing, ``"none"`` nothing (sizes of
            a dataset with an index then come from the index).
        features: Compute statistics of all features, and compare them between shards.
        label: Feature whose values are counted as labels, per shard and in reading order.
        plan: The training job that will read the shards; None for no split plan.
        workers: Processes that read; by default one per core, if there is enough work.
        progress: True shows a bar; or a function called with (bytes of files read, bytes of all
            files).

    Raises:
        OptionError: A path names nothing.
        SourceError: A path leads to no shards.
        StorageError: A file can not be read.
        WorkerDied: A worker process has ended.
    """
    check_value("check", check, Check)
    check_value("features", features, bool)
    check_value("label", label, str | None)
    check_value("workers", workers, Positive | None)
    # Imported here, as they take a third of the time of `import shardwriter`.
    from shardwriter.inspect.judge import judge
    from shardwriter.inspect.label_scan import sequence_limit
    from shardwriter.inspect.scan import index_scans

    if isinstance(paths, (str, os.PathLike)):
        paths = [os.fspath(paths)]
    sets = numbered_together(find_shard_sets(list(paths)))
    files = [path for found in sets for _, path in found.shards]
    options = ScanOptions(check, features, label, label_sequence=sequence_limit(len(files)))
    scans = index_scans(sets, options)
    unread = [path for path in files if path not in scans]
    with reading_progress(progress, "reading") as report:
        on_read = None if report is None else _with_total(report, sum(map(_file_bytes, sets)))
        scans.update(zip(unread, scan_files(unread, options, workers, on_read), strict=True))
    scanned = [[scans[path] for _, path in found.shards] for found in sets]
    return Report(judge(sets, scanned, check, plan), check)


def _with_total(report: Reading, total_bytes: int) -> Callable[[int], None]:
    return lambda num_bytes: report(num_bytes, total_bytes)


def _file_bytes(shard_set: ShardSet) -> int:
    paths = [path for _, path in shard_set.shards]
    with storage_errors(shard_set.directory):
        found = inputs_for(shard_set.directory).stats(paths)
    return sum(stat.st_size for stat in found)
