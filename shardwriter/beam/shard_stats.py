"""``ShardStats``: what ``shard-stats`` says, from many workers: each proves files of its own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from shardwriter.beam.cargo import Cargo, load_cargo
from shardwriter.beam.telling import telling
from shardwriter.locate import find_shard_sets
from shardwriter.scan import FileScan, scan_file
from shardwriter.stats import Report, report_of
from shardwriter.tfrecord_reader import Check


class ShardStats(beam.PTransform):
    """Reads shards through and says what is there and what is wrong.

    Args:
        paths: As for :func:`shardwriter.stats`; also at URLs.
        check: ``crc`` proves every byte, ``length`` the framing, ``none`` nothing.

    Returns:
        A PCollection of one element: the JSON that ``shard-stats --json`` prints, as text.

    Raises:
        UsageError: When the pipeline is made: a path names nothing.
    """

    def __init__(self, paths: str | Sequence[str], *, check: Check = "crc") -> None:
        super().__init__()
        self._paths = [paths] if isinstance(paths, str) else list(paths)
        self._check: Check = check

    def expand(self, pcoll: Any) -> Any:
        """Make the graph."""
        sets = find_shard_sets(self._paths)
        files = [
            (number, place, path)
            for number, found in enumerate(sets)
            for place, (_, path) in enumerate(found.shards)
        ]
        return (
            pcoll
            | "Shards"
            >> beam.Create(files, reshuffle=False).with_output_types(tuple[int, int, str])
            | "Spread" >> beam.Reshuffle()
            | "Scan" >> beam.ParDo(_Scan(self._check)).with_output_types(tuple[int, bytes])
            | "Gather" >> beam.GroupByKey()
            | "Report" >> beam.ParDo(_Report(load_cargo(sets), self._check)).with_output_types(str)
        )


class _Scan(beam.DoFn):
    def __init__(self, check: Check) -> None:
        self._check: Check = check

    @telling
    def process(self, file: tuple[int, int, str]) -> Iterator[tuple[int, bytes]]:
        number, place, path = file
        scan = scan_file(path, check=self._check)
        yield 0, pickle.dumps((number, place, scan), 5)


class _Report(beam.DoFn):
    def __init__(self, sets: Cargo, check: Check) -> None:
        self._sets = sets
        self._check: Check = check

    @telling
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[str]:
        scans: dict[tuple[int, int], FileScan] = {}
        for data in element[1]:
            number, place, scan = pickle.loads(data)
            scans[number, place] = scan
        reports = []
        for number, found in enumerate(self._sets.get()):
            mine = [scans[number, place] for place in range(len(found.shards))]
            reports.append(report_of(found, mine))
        report = Report(reports, self._check).to_json()
        yield json.dumps(report, indent=2, sort_keys=True)
