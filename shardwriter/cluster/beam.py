"""The transforms ``WriteShards``, ``ReadShards`` and ``ShardStats``.

Every graph is a line: no side inputs, no tagged outputs, nothing at the end of a bundle, as some
runners lose these. The graphs of ``WriteShards``::

    strided    shard numbers -> reshuffle -> write a shard -> group all -> publish
    chunked    run numbers -> reshuffle -> write chunks -> group by block and shard -> write a part
               -> group by shard -> join a shard -> group all -> publish
    keyed      items -> group by bucket -> sort, write a bucket -> group all -> number the buckets
               -> reshuffle -> write chunks -> as above
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import TestOptions
from apache_beam.pvalue import PBegin
from apache_beam.transforms.window import GlobalWindows

from shardwriter.cluster.keyed import NUM_BUCKETS, KeyOf
from shardwriter.cluster.launch import open_launch
from shardwriter.cluster.steps import (
    AssignBucket,
    ChunkBucket,
    JoinShard,
    Keyed,
    NumberItems,
    PublishAll,
    SortBucket,
    WriteChunks,
    WritePart,
    WriteShard,
    first_elements,
    locating,
)
from shardwriter.cluster.task import (
    JobPayload,
    Strategy,
    Task,
    keyed_task,
    pack_payload,
    read_plan,
    task_of,
    write_plan,
)
from shardwriter.dataset import Gaps, parse_output
from shardwriter.errors import OptionError, SourceError
from shardwriter.formats import Check, decode_only_example, read_frames
from shardwriter.inspect import (
    FileScan,
    PlanOptions,
    Report,
    ScanOptions,
    index_scans,
    numbered_together,
    scan_file,
    sequence_limit,
)
from shardwriter.inspect.judge import judge
from shardwriter.schema import as_error, warnings_of
from shardwriter.sources import Opened, ShardSet, find_shard_sets, open_source
from shardwriter.storage import open_stream, storage_errors, storage_for
from shardwriter.writing import DatasetOptions, RunOptions, key_costs, key_notes


class ReadShards(beam.PTransform):
    """Reads the records of TFRecord shards; the compression is detected from the content.

    Args:
        path: A dataset's name (``dir/train``, ``dir/train@512``), a folder, a file, a glob; also at
            a URL.
        decode: Yield feature dicts instead of records: arrays, and lists of bytes.
        numbered: Yield ``(index, record)`` with the index of the item, as a PCollection has no
            order.
        check: ``crc`` checks every byte, ``length`` the framing, ``none`` nothing.

    Returns:
        A PCollection of bytes, or of feature dicts; with ``numbered`` of pairs.

    Raises:
        UsageError: At construction: no dataset or file has the name.
        DataError: Shards are missing; or, while it runs, a file is damaged: has file, record and
            offset.
    """

    def __init__(
        self,
        path: str,
        *,
        decode: bool = False,
        numbered: bool = False,
        check: Check = "crc",
    ) -> None:
        super().__init__()
        self._path = path
        self._decode = decode
        self._numbered = numbered
        self._check: Check = check

    def expand(self, pcoll: Any) -> Any:
        """Return the output of the graph."""
        sets = find_shard_sets([self._path])
        for found in sets:
            found.require_whole()
        if self._numbered and (len(sets) != 1 or sets[0].manifest is None):
            raise OptionError(
                f"{self._path} is not one dataset with a manifest, so its records have no indices",
                hint="name one dataset of shardwriter, as in dir/train@16; or leave numbered off",
            )
        files = [shard for found in sets for shard in found.shards]
        reader = _Read(sets[0], self._check, decode=self._decode, numbered=self._numbered)
        record_type: Any = dict[str, Any] if self._decode else bytes
        return (
            pcoll
            | "Shards" >> beam.Create(files, reshuffle=False).with_output_types(tuple[int, str])
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(reader).with_output_types(
                tuple[int, record_type] if self._numbered else record_type
            )
        )


class _Read(beam.DoFn):
    def __init__(self, first: ShardSet, check: Check, *, decode: bool, numbered: bool) -> None:
        gaps = [] if first.manifest is None else first.manifest.gaps
        self._gaps = np.array(gaps, np.int64)
        self._num_shards = len(first.shards)
        self._check: Check = check
        self._decode = decode
        self._numbered = numbered

    @locating
    def process(self, shard_and_path: tuple[int, str]) -> Iterator[Any]:
        shard, path = shard_and_path
        gaps = Gaps(self._gaps, self._num_shards) if len(self._gaps) else None
        with storage_errors(path), open_stream(path) as stream:
            for position, record in enumerate(read_frames(stream, check=self._check, path=path)):
                value: Any = decode_only_example(record) if self._decode else record
                if not self._numbered:
                    yield value
                elif gaps is None:
                    yield shard + self._num_shards * position, value
                else:
                    yield gaps.item_index(shard, position), value


class ShardStats(beam.PTransform):
    """Scans shards, a file in a worker, and reports as ``shard-stats`` does.

    Args:
        paths: As for :func:`shardwriter.stats`; also at URLs.
        check: ``crc`` checks every byte, ``length`` the framing, ``none`` nothing.
        features: Whether to compute the statistics of all features.
        label: The feature whose values are counted.
        plan: The readers for which to plan splits of the shards.

    Returns:
        A PCollection of one element: the JSON that ``shard-stats --json`` prints, as text.

    Raises:
        UsageError: At construction: a path names nothing.
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
        """Return the output of the graph."""
        sets = numbered_together(find_shard_sets(self._paths))
        known = index_scans(sets, self._options)
        paths = [path for found in sets for _, path in found.shards]
        options = replace(self._options, label_sequence=sequence_limit(len(paths)))
        # The empty element gives a report also when there is nothing to scan.
        files: list[list[str]] = [[], *([path] for path in paths if path not in known)]
        report = _Report(pack_payload((sets, known)), self._options.check, self._plan)
        return (
            pcoll
            | "Shards" >> beam.Create(files, reshuffle=False).with_output_types(list[str])
            | "Spread" >> beam.Reshuffle()
            | "Scan" >> beam.ParDo(_Scan(options)).with_output_types(tuple[int, bytes])
            | "Gather" >> beam.GroupByKey()
            | "Report" >> beam.ParDo(report).with_output_types(str)
        )


class _Scan(beam.DoFn):
    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    @locating
    def process(self, paths: list[str]) -> Iterator[tuple[int, bytes]]:
        yield 0, pickle.dumps([scan_file(path, self._options) for path in paths], 5)


class _Report(beam.DoFn):
    def __init__(self, sets: JobPayload, check: Check, plan: PlanOptions | None) -> None:
        self._sets = sets
        self._check: Check = check
        self._plan = plan

    @locating
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[str]:
        sets: list[ShardSet]
        sets, scans = self._sets.get()
        for data in element[1]:
            new_scans: list[FileScan] = pickle.loads(data)
            scans.update((scan.path, scan) for scan in new_scans)
        scanned = [[scans[path] for _, path in found.shards] for found in sets]
        report = Report(judge(sets, scanned, self._check, self._plan), self._check).to_json()
        yield json.dumps(report, indent=2, sort_keys=True)


class SaveText(beam.DoFn):
    """Writes a text and a newline to a path or URL, replacing the file, and yields the text."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, text: str) -> Iterator[str]:
        """Yield the text once it is written."""
        storage = storage_for(self._path)
        file = storage.create(self._path)
        file.write(f"{text}\n".encode())
        storage.sync(self._path)
        file.close()
        yield text


class WriteShards(beam.PTransform):
    """Writes N TFRecord shards, byte for byte those of ``shardwriter write``.

    Applied to a pipeline it writes the items of ``source``, and the manifest is the same too.
    Applied to a PCollection of feature dicts (or of ``bytes``, finished records) it writes these,
    in the order of a salted hash of ``key``. The shards do not depend on the order of the
    PCollection, and equal those of ``shardwriter write --order key``.

    Args:
        out: ``dir/train@512``; ``gs://bucket/dir/train@512`` or any URL that Beam has a file system
            for.
        source: As in :func:`shardwriter.write`; a path or URL that every worker can read, or
            ``module:callable``.
        key: For a PCollection: the feature that is the key of an item, or a function that returns
            the key: text, bytes or an int. Keys must be unique.
        format: As in :func:`shardwriter.write`.
        options: Options that decide the bytes: map, label, schema, compression, ... With ``split``
            this split of the source is written, under the name in ``out``.
        run: Options that change no byte: overwrite, resume, on_error, max_errors.
        strategy: ``strided``, ``chunked``, or ``auto`` to choose by the kind of the source.
        plan: A file for the decisions that precede the first record; written if there is none.
        num_buckets: For a PCollection: the number of buckets. Each is sorted by one worker, in
            64 MB of memory and a temporary file.

    Attributes:
        task: The launch, once the transform is applied.
        notes: Notes about the source, one line each, once the transform is applied.

    Returns:
        A PCollection of one element: the text of the manifest, once the dataset is published.

    Raises:
        UsageError: At construction: an option is wrong, or the output exists.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        source: Any = None,
        key: KeyOf | None = None,
        format: str = "auto",
        options: DatasetOptions | None = None,
        run: RunOptions | None = None,
        strategy: Strategy = "auto",
        plan: str | None = None,
        num_buckets: int = NUM_BUCKETS,
    ) -> None:
        super().__init__()
        options = options or DatasetOptions()
        compression = None if options.compression == "none" else options.compression
        self._output = parse_output(out, None, compression, urls=True)
        self._options = replace(options, compression=self._output.compression)
        self._run = run or RunOptions()
        self._source = source
        self._key = key
        self._format = format
        self._strategy = strategy
        self._plan = plan
        self._num_buckets = num_buckets
        self.task: Task | None = None
        self.notes: list[str] = []

    def expand(self, pcoll: Any) -> Any:
        """Return the output of the graph."""
        if isinstance(pcoll, PBegin):
            return self._from_source(pcoll)
        if not pcoll.is_bounded:
            raise OptionError(
                "a stream has no end, and a dataset is published at its end",
                hint="WriteShards takes bounded PCollections",
            )
        return self._from_items(pcoll)

    def _from_items(self, pcoll: Any) -> Any:
        if self._key is None or self._source is not None:
            raise OptionError(
                "a PCollection has no order, so its items need keys",
                hint='key="id" names the feature; a source is for WriteShards on a pipeline',
            )
        for name, value, default in (
            ("format", self._format, "auto"),
            ("strategy", self._strategy, "auto"),
            ("plan", self._plan, None),
        ):
            if value != default:
                raise OptionError(f"{name} is for sources; leave it off for a PCollection")
        if type(self._num_buckets) is not int or self._num_buckets < 1:
            raise OptionError(f"num_buckets is {self._num_buckets!r}: it must be 1 or more")
        feature = self._key if isinstance(self._key, str) else None
        if self._options.key not in (None, feature):
            raise OptionError(
                f"the options have key={self._options.key!r}, and WriteShards {self._key!r}",
                hint="leave key out of the options",
            )
        options = replace(self._options, order="key", key=feature)
        dry_run = is_dry_run(pcoll.pipeline)
        task = self.task = keyed_task(self._output, options, self._run, dry_run=dry_run)
        seed = options.order_seed
        if not isinstance(pcoll.windowing.windowfn, GlobalWindows):
            pcoll = pcoll | "OneWindow" >> beam.WindowInto(GlobalWindows())
        buckets = (
            pcoll
            | "Bucket"
            >> beam.ParDo(AssignBucket(self._key, seed, self._num_buckets)).with_output_types(Keyed)
            | "GroupBuckets" >> beam.GroupByKey()
            | "SortBucket" >> beam.ParDo(SortBucket(task)).with_output_types(Keyed)
        )
        # The empty bucket writes a dataset also for a PCollection without items.
        empty = pcoll.pipeline | "NoBucket" >> beam.Create(
            [(0, b"")], reshuffle=False
        ).with_output_types(Keyed)
        chunks = (
            (buckets, empty)
            | "AllBuckets" >> beam.Flatten()
            | "GatherBuckets" >> beam.GroupByKey()
            | "Number" >> beam.ParDo(NumberItems(task)).with_output_types(bytes)
            | "Spread" >> beam.Reshuffle()
            | "WriteChunks" >> beam.ParDo(ChunkBucket(task)).with_output_types(Keyed)
        )
        return _published(_joined(chunks, task), task)

    def _from_source(self, pcoll: Any) -> Any:
        if self._source is None or self._key is not None:
            raise OptionError(
                "WriteShards on a pipeline writes the items of a source",
                hint="give source=..., or apply it to a PCollection, with key=...",
            )
        task = self.task = self._task(dry_run=is_dry_run(pcoll.pipeline))
        numbers = (
            pcoll
            | "Numbers" >> beam.Create(first_elements(task), reshuffle=False).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
        )
        if task.strategy == "strided":
            shards = numbers | "WriteShard" >> beam.ParDo(WriteShard(task)).with_output_types(Keyed)
        else:
            chunks = numbers | "WriteChunks" >> beam.ParDo(WriteChunks(task)).with_output_types(
                Keyed
            )
            shards = _joined(chunks, task)
        return _published(shards, task)

    def _task(self, *, dry_run: bool) -> Task:
        options = self._options
        if not dry_run and not self._run.resume:
            # Refuse an existing output before the source is opened, which can take long.
            open_launch(self._output, 1, "", self._run)
        plan = None if self._plan is None else read_plan(self._plan)
        source = open_source(
            self._source,
            self._format,
            options.schema,
            options.table,
            skip_errors=self._run.on_error == "skip",
        )
        for warning in warnings_of(source) if self._run.strict else ():
            raise as_error(warning, SourceError)
        is_reported = isinstance(self._source, Opened)
        notes = [
            *([] if is_reported else source.notes),
            *key_notes(source, options),
            *key_costs(source, options),
        ]
        task = task_of(
            source,
            self._output,
            options,
            self._run,
            strategy=self._strategy,
            plan=plan,
            dry_run=dry_run,
        )
        if self._plan is not None and plan is None:
            write_plan(self._plan, task)
        self.notes = [*notes, *task.notes]
        return task


def is_dry_run(pipeline: beam.Pipeline) -> bool:
    """Return whether only the graph is constructed (``--dry_run`` of the DataflowRunner)."""
    return bool(pipeline.options.view_as(TestOptions).dry_run)


def _joined(chunks: Any, task: Task) -> Any:
    """Return finished shards, from chunks by block and shard."""
    return (
        chunks
        | "GroupChunks" >> beam.GroupByKey()
        | "WritePart" >> beam.ParDo(WritePart(task)).with_output_types(Keyed)
        | "GroupParts" >> beam.GroupByKey()
        | "JoinShard" >> beam.ParDo(JoinShard(task)).with_output_types(Keyed)
    )


def _published(shards: Any, task: Task) -> Any:
    """Return the text of the manifest, from finished shards, all under key 0."""
    return (
        shards
        | "GroupShards" >> beam.GroupByKey()
        | "Manifest" >> beam.ParDo(PublishAll(task)).with_output_types(str)
    )
