"""The steps of a Beam job, from the first to the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from shardwriter.cluster.chunks import SEED, Chunk, ChunkMaker
from shardwriter.cluster.cut import Cut
from shardwriter.cluster.parts import join_blocks, write_block
from shardwriter.cluster.publishing import publish_shards
from shardwriter.cluster.strided import write_shard
from shardwriter.cluster.task import Task
from shardwriter.cluster.telling import telling
from shardwriter.writing.job import Job, Listing
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.worker import new_slot

Keyed = tuple[int, bytes]
"""What is grouped: a key, and a value that one of our modules has packed."""

NOTHING: Final = -2
"""Sent in place of a run or a shard where the dataset is finished: there is nothing to do."""

_NAMESPACE: Final = "shardwriter"


def numbers_of(task: Task) -> list[int]:
    """Return what a job begins with: shards or runs, and SEED; or NOTHING."""
    if task.place.is_finished:
        return [NOTHING]
    if task.strategy == "strided":
        return list(range(task.place.num_shards))
    if task.num_items is None:
        return [SEED, 0]  # one worker reads the stream
    return [SEED, *range(task.cut.num_runs(task.num_items))]


class WriteShard(beam.DoFn):
    """Writes shards of their own (:mod:`shardwriter.cluster.strided`)."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._counters = _Counters()

    @telling
    def process(self, shard: int) -> Iterator[Keyed]:
        """Yield the finished shard."""
        if shard == NOTHING:
            yield 0, b""
            return
        task, options = self._task, self._task.options
        task.place.enter()
        made = write_shard(
            task.job,
            task.place,
            shard,
            skip_errors=task.skips_errors,
            strict=options.strict,
            max_errors=options.max_errors,
        )
        self._counters.count_shard(made.sealed.num_records, made.sealed.payload_bytes)
        self._counters.count_gaps(len(made.facts.gaps), len(made.facts.errors))
        yield 0, made.to_bytes()


class MakeChunks(beam.DoFn):
    """Makes chunks of runs of a source."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @telling
    def process(self, run: int) -> Iterator[Keyed]:
        """Yield what a run has for each shard."""
        task = self._task
        if run == NOTHING:
            yield NOTHING, b""
        elif run == SEED:
            yield from seeds(task.place.num_shards)
        else:
            task.place.enter()
            job = task.job
            found = self._stream(job) if task.num_items is None else self._range(job, run)
            for key, chunk in found:
                yield key, chunk.to_bytes()

    def _range(self, job: Job, run: int) -> Iterator[tuple[int, Chunk]]:
        task = self._task
        assert task.num_items is not None
        first = run * task.cut.run_items
        indices = np.arange(first, min(first + task.cut.run_items, task.num_items))
        return chunk_maker(task, task.cut).make(run, job.selection.items_at(indices))

    def _stream(self, job: Job) -> Iterator[tuple[int, Chunk]]:
        task = self._task
        listing = Listing(job, Kept(job.num_shards))
        items = iter(listing)
        maker = chunk_maker(task, task.cut)
        run = 0
        while True:
            some = islice(items, task.cut.run_items)
            first = next(some, None)
            if first is None:
                break
            yield from maker.make(run, _and_then(first, some))
            run += 1
        yield from maker.make(run, (), lambda: listing.num_items)


def chunk_maker(task: Task, cut: Cut) -> ChunkMaker:
    """Return what makes the chunks of runs."""
    job = task.job
    worker = job.worker(0, 1, range(job.num_shards), new_slot())
    kept = Kept(job.num_shards)
    return ChunkMaker(
        cut,
        task.place,
        lambda: job.encoder(
            kept, worker, skip_errors=task.skips_errors, strict=task.options.strict
        ),
        task.options.max_errors,
    )


def seeds(num_shards: int) -> Iterator[Keyed]:
    """Yield a chunk without items for every shard: also one without records is made."""
    chunk = Chunk(SEED, 0, 0).to_bytes()
    for shard in range(num_shards):
        yield shard, chunk


def _and_then(first: Any, rest: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from rest


class WritePart(beam.DoFn):
    """Writes groups as parts (:mod:`shardwriter.cluster.parts`)."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._group_bytes = Metrics.distribution(_NAMESPACE, "group_bytes")

    @telling
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Keyed]:
        """Yield what the shard has of this group."""
        key, values = element
        if key == NOTHING:
            yield NOTHING, b""
            return
        task = self._task
        task.place.enter()
        block = write_block(task.place, task.cut, task.label, key, values)
        self._group_bytes.update(sum(part.num_bytes for part in block.parts))
        yield task.cut.block_and_shard(key)[1], block.to_bytes()


class JoinShard(beam.DoFn):
    """Joins the parts of a shard."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._counters = _Counters()

    @telling
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Keyed]:
        """Yield the finished shard."""
        shard, values = element
        if shard == NOTHING:
            yield 0, b""
            return
        task = self._task
        task.place.enter()
        made = join_blocks(task.place, task.packing, task.label, shard, values)
        self._counters.count_shard(made.sealed.num_records, made.sealed.payload_bytes)
        self._counters.count_gaps(len(made.facts.gaps), len(made.facts.errors))
        yield 0, made.to_bytes()


class PublishAll(beam.DoFn):
    """Publishes what all others have made."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @telling
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[str]:
        """Yield the text of the manifest."""
        yield publish_shards(self._task, element[1]).dumps()


class _Counters:
    """What a runner shows while a job runs."""

    def __init__(self) -> None:
        self._records = Metrics.counter(_NAMESPACE, "records")
        self._payload_bytes = Metrics.counter(_NAMESPACE, "payload_bytes")
        self._shards = Metrics.counter(_NAMESPACE, "shards")
        self._gaps = Metrics.counter(_NAMESPACE, "gaps")
        self._errors = Metrics.counter(_NAMESPACE, "errors")

    def count_shard(self, num_records: int, payload_bytes: int) -> None:
        """Count a finished shard."""
        self._shards.inc()
        self._records.inc(num_records)
        self._payload_bytes.inc(payload_bytes)

    def count_gaps(self, num_gaps: int, num_errors: int) -> None:
        """Count items without a record, and those of them that gave an error."""
        self._gaps.inc(num_gaps)
        self._errors.inc(num_errors)
