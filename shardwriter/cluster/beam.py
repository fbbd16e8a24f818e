"""``WriteShards``: a dataset of N shards as the end of a Beam pipeline.

Every graph is a line: no side inputs, no tagged outputs, nothing at the end of a bundle. Some
runners lose these, and all run a line::

    strided    shard numbers -> reshuffle -> write a shard -> group all -> publish
    chunked    run numbers -> reshuffle -> make chunks -> group by block and shard -> write a part
               -> group by shard -> join a shard -> group all -> publish
    keyed      items -> group by bucket -> sort, write a bucket -> group all -> number the buckets
               -> reshuffle -> make chunks -> as above
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import TestOptions
from apache_beam.pvalue import PBegin
from apache_beam.transforms.window import GlobalWindows

from shardwriter.cluster.keyed import NUM_BUCKETS, KeyOf
from shardwriter.cluster.keyed_steps import Bucketed, ChunkBucket, Number, SortBucket
from shardwriter.cluster.place import place_for
from shardwriter.cluster.steps import (
    JoinShard,
    Keyed,
    MakeChunks,
    PublishAll,
    WritePart,
    WriteShard,
    numbers_of,
)
from shardwriter.cluster.task import Strategy, Task, keyed_task, read_plan, task_of, write_plan
from shardwriter.dataset.naming import parse_output
from shardwriter.errors import OptionError, SourceError
from shardwriter.schema.data_warnings import as_error, warnings_of
from shardwriter.sources.find import Opened, open_source
from shardwriter.writing.keys import key_costs, key_notes
from shardwriter.writing.options import DatasetOptions, RunOptions


class WriteShards(beam.PTransform):
    """Writes N TFRecord shards, byte for byte those of ``shardwriter write``.

    Applied to a pipeline it writes the items of ``source``, and the manifest is the same too.
    Applied to a PCollection of feature dicts (or of ``bytes``, finished records) it writes these,
    in the order of a salted hash of ``key``: whatever order they come in, the shards are the same,
    and ``shardwriter write --order key`` writes them too.

    Args:
        out: ``dir/train@512``; ``gs://bucket/dir/train@512`` or any URL that Beam has a file system
            for.
        source: As in :func:`shardwriter.write`; a path or URL that every worker can read, or
            ``module:callable``.
        key: Of a PCollection: the feature that is every item's key, or a function that returns it:
            text, bytes or an int. No two items may have the same.
        format: As in :func:`shardwriter.write`.
        options: What decides the bytes: map, label, schema, compression, ... With ``split`` it is
            this split of the source that is written, under the name that ``out`` has.
        run: What does not: overwrite, resume, on_error, max_errors.
        strategy: ``strided``, ``chunked``, or ``auto`` to have the source decide.
        plan: A file that keeps what is fixed before the first record; made where there is none.
        num_buckets: Of a PCollection: into how many parts it is sorted. Each is sorted by one
            worker, in 64 MB of memory and a temporary file.

    Attributes:
        task: What is launched, once the transform was applied.
        notes: What a person should know of the source, one line each; then, too.

    Returns:
        A PCollection of one element: the text of the manifest, once the dataset is published.

    Raises:
        UsageError: When the pipeline is made: an option is wrong, or the output exists.
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
        """Make the graph."""
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
                raise OptionError(f"{name} is for sources, and a PCollection is none")
        if type(self._num_buckets) is not int or self._num_buckets < 1:
            raise OptionError(f"num_buckets is {self._num_buckets!r}: it is a number from 1 on")
        feature = self._key if isinstance(self._key, str) else None
        if self._options.key not in (None, feature):
            raise OptionError(
                f"the options say the key {self._options.key!r}, and WriteShards {self._key!r}",
                hint="leave it out of the options",
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
            >> beam.ParDo(Bucketed(self._key, seed, self._num_buckets)).with_output_types(Keyed)
            | "GroupBuckets" >> beam.GroupByKey()
            | "SortBucket" >> beam.ParDo(SortBucket(task)).with_output_types(Keyed)
        )
        # With it a PCollection without items is written too.
        none = pcoll.pipeline | "NoBucket" >> beam.Create(
            [(0, b"")], reshuffle=False
        ).with_output_types(Keyed)
        chunks = (
            (buckets, none)
            | "AllBuckets" >> beam.Flatten()
            | "GatherBuckets" >> beam.GroupByKey()
            | "Number" >> beam.ParDo(Number(task)).with_output_types(bytes)
            | "Spread" >> beam.Reshuffle()
            | "MakeChunks" >> beam.ParDo(ChunkBucket(task)).with_output_types(Keyed)
        )
        return _published(_joined(chunks, task), task)

    def _from_source(self, pcoll: Any) -> Any:
        if self._source is None or self._key is not None:
            raise OptionError(
                "WriteShards on a pipeline writes the items of a source",
                hint="name it (source=...), or apply it to a PCollection, with a key",
            )
        task = self.task = self._task(dry_run=is_dry_run(pcoll.pipeline))
        numbers = (
            pcoll
            | "Numbers" >> beam.Create(numbers_of(task), reshuffle=False).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
        )
        if task.strategy == "strided":
            made = numbers | "WriteShard" >> beam.ParDo(WriteShard(task)).with_output_types(Keyed)
        else:
            chunks = numbers | "MakeChunks" >> beam.ParDo(MakeChunks(task)).with_output_types(Keyed)
            made = _joined(chunks, task)
        return _published(made, task)

    def _task(self, *, dry_run: bool) -> Task:
        options = self._options
        if not dry_run and not self._run.resume:
            # A source can take long to open, and an output that is taken is told at once.
            place_for(self._output, 1, "", self._run)
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
        is_told = isinstance(self._source, Opened)
        notes = [
            *([] if is_told else source.notes),
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
    """Tell whether the graph is made and nothing is run (``--dry_run`` of the DataflowRunner)."""
    return bool(pipeline.options.view_as(TestOptions).dry_run)


def _joined(chunks: Any, task: Task) -> Any:
    """Go from chunks, by block and shard, to finished shards."""
    return (
        chunks
        | "GroupChunks" >> beam.GroupByKey()
        | "WritePart" >> beam.ParDo(WritePart(task)).with_output_types(Keyed)
        | "GroupParts" >> beam.GroupByKey()
        | "JoinShard" >> beam.ParDo(JoinShard(task)).with_output_types(Keyed)
    )


def _published(made: Any, task: Task) -> Any:
    """Go from finished shards, all under key 0, to the text of the manifest."""
    return (
        made
        | "GroupShards" >> beam.GroupByKey()
        | "Manifest" >> beam.ParDo(PublishAll(task)).with_output_types(str)
    )
