"""What is on disk: counts, sizes, balance, contents and defects of shard sets, from reading them.

The parts are in :mod:`shardwriter.inspect`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from shardwriter.dataset import Positive, check_value
from shardwriter.formats import Check
from shardwriter.inspect.document import SCHEMA, Report, SetReport
from shardwriter.inspect.file_names import numbered_together
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.scan import ScanOptions
from shardwriter.inspect.scan_pool import scan_files
from shardwriter.inspect.split_policies import PlanOptions
from shardwriter.sources import ShardSet, find_shard_sets
from shardwriter.storage import inputs_for, storage_errors
from shardwriter.writing import Reading, reading_progress

__all__ = ["SCHEMA", "Finding", "Report", "SetReport", "stats"]


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
    """Read shards through and say what is there, what is wrong, and how training will split it.

    Args:
        paths: A folder, file, manifest, dataset name, ``train@16``, or glob; or several.
        check: ``"crc"`` proves every byte, ``"length"`` the framing, ``"none"`` nothing: a dataset
            with an index is then counted by it.
        features: Gather the statistics of all features, and hold shards against each other.
        label: The feature whose values are counted, per shard and in reading order.
        plan: Who will read; without it nothing is said of training.
        workers: Processes that read; by default one a core, where that pays.
        progress: True shows a bar; or a function called with (bytes of files read, bytes of all
            files).

    Raises:
        OptionError: A path names nothing.
        SourceError: There are no shards where a path leads.
        StorageError: A file can not be read.
        WorkerDied: A process that reads has ended.
    """
    check_value("check", check, Check)
    check_value("features", features, bool)
    check_value("label", label, str | None)
    check_value("workers", workers, Positive | None)
    # A third of the time that `import shardwriter` would take, and only this needs it.
    from shardwriter.inspect.judge import judge
    from shardwriter.inspect.label_scan import sequence_limit
    from shardwriter.inspect.scan import counted

    if isinstance(paths, (str, os.PathLike)):
        paths = [os.fspath(paths)]
    sets = numbered_together(find_shard_sets(list(paths)))
    files = [path for found in sets for _, path in found.shards]
    options = ScanOptions(check, features, label, label_sequence=sequence_limit(len(files)))
    scans = counted(sets, options)
    left = [path for path in files if path not in scans]
    with reading_progress(progress, "reading") as report:
        tell = None if report is None else _of_all(report, sum(map(_file_bytes, sets)))
        scans.update(zip(left, scan_files(left, options, workers, tell), strict=True))
    scanned = [[scans[path] for _, path in found.shards] for found in sets]
    return Report(judge(sets, scanned, check, plan), check)


def _of_all(report: Reading, total_bytes: int) -> Callable[[int], None]:
    return lambda num_bytes: report(num_bytes, total_bytes)


def _file_bytes(shard_set: ShardSet) -> int:
    paths = [path for _, path in shard_set.shards]
    with storage_errors(shard_set.directory):
        found = inputs_for(shard_set.directory).stats(paths)
    return sum(stat.st_size for stat in found)
