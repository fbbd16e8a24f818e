"""``ShardStats``: what ``shard-stats`` says, from many workers: each proves files of its own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam

from shardwriter.cluster.cargo import Cargo, load_cargo
from shardwriter.cluster.telling import telling
from shardwriter.formats.tfrecord_reader import Check
from shardwriter.inspect.document import Report
from shardwriter.inspect.file_names import numbered_together
from shardwriter.inspect.index_scan import counted
from shardwriter.inspect.judge import judge
from shardwriter.inspect.label_scan import sequence_limit
from shardwriter.inspect.options import PlanOptions
from shardwriter.inspect.scan import FileScan, ScanOptions, scan_file
from shardwriter.sources.locate import find_shard_sets
from shardwriter.sources.shard_sets import ShardSet


class ShardStats(beam.PTransform):
    """Reads shards through and says what is there and what is wrong.

    Args:
        paths: As for :func:`shardwriter.stats`; also at URLs.
        check: ``crc`` proves every byte, ``length`` the framing, ``none`` nothing.
        features: Gather the statistics of all features.
        label: The feature whose values are counted.
        plan: Who will read.

    Returns:
        A PCollection of one element: the JSON that ``shard-stats --json`` prints, as text.

    Raises:
        UsageError: When the pipeline is made: a path names nothing.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        check: Check = "crc",
        features: bool = False,
        label: str | None = None,
        plan: PlanOptions | None = None,
    ) -> None:
        super().__init__()
        self._paths = [paths] if isinstance(paths, str) else list(paths)
        self._options = ScanOptions(check, features, label)
        self._plan = plan

    def expand(self, pcoll: Any) -> Any:
        """Make the graph."""
        sets = numbered_together(find_shard_sets(self._paths))
        known = counted(sets, self._options)
        paths = [path for found in sets for _, path in found.shards]
        options = replace(self._options, label_sequence=sequence_limit(len(paths)))
        # Nothing to read is an element too, or there would be no report.
        files: list[list[str]] = [[], *([path] for path in paths if path not in known)]
        judging = _Report(load_cargo((sets, known)), self._options.check, self._plan)
        return (
            pcoll
            | "Shards" >> beam.Create(files, reshuffle=False).with_output_types(list[str])
            | "Spread" >> beam.Reshuffle()
            | "Scan" >> beam.ParDo(_Scan(options)).with_output_types(tuple[int, bytes])
            | "Gather" >> beam.GroupByKey()
            | "Report" >> beam.ParDo(judging).with_output_types(str)
        )


class _Scan(beam.DoFn):
    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    @telling
    def process(self, paths: list[str]) -> Iterator[tuple[int, bytes]]:
        yield 0, pickle.dumps([scan_file(path, self._options) for path in paths], 5)


class _Report(beam.DoFn):
    def __init__(self, sets: Cargo, check: Check, plan: PlanOptions | None) -> None:
        self._sets = sets
        self._check: Check = check
        self._plan = plan

    @telling
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[str]:
        sets: list[ShardSet]
        sets, scans = self._sets.get()
        for data in element[1]:
            found_now: list[FileScan] = pickle.loads(data)
            scans.update((scan.path, scan) for scan in found_now)
        scanned = [[scans[path] for _, path in found.shards] for found in sets]
        report = Report(judge(sets, scanned, self._check, self._plan), self._check).to_json()
        yield json.dumps(report, indent=2, sort_keys=True)
