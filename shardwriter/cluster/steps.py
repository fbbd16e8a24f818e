"""The steps of a Beam job.

A *strided* job writes each shard by itself, without a shuffle: a worker lists the items of a shard
(s, s + N, s + 2N, ...), loads and encodes them, and writes the shard. That needs a source with
random access. A *chunked* or *keyed* job encodes runs of items, shuffles their chunks
(:mod:`shardwriter.cluster.parts`), and joins the parts of each shard. The last step of all checks
the counts of the shards, and publishes the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import wraps
from itertools import chain, islice, pairwise
from typing import Any, Final

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from shardwriter.cluster.keyed import (
    KIND,
    Bucket,
    KeyOf,
    bucket_of,
    keys_digest,
    number_buckets,
    read_bucket,
    write_bucket,
)
from shardwriter.cluster.launch import (
    Facts,
    FinishedShard,
    LaunchOutput,
    facts_of,
    new_attempt,
    pack_json,
    unpack_json,
)
from shardwriter.cluster.parts import (
    SEED,
    Chunk,
    ChunkWriter,
    Partitioning,
    join_blocks,
    write_block,
)
from shardwriter.cluster.task import Identity, Task
from shardwriter.dataset import Gaps, Manifest, SealedShard, columns, num_shard_items
from shardwriter.errors import AssignmentError, FeatureError, ShardwriterError, TooManyErrors
from shardwriter.formats import canonical
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema import RecordStats, as_error
from shardwriter.writing import (
    Job,
    Listing,
    ResumeState,
    RunDirectory,
    RunOptions,
    ShardFile,
    WorkerResult,
    finish_committed,
    finished_manifest,
    last_block_range,
    merge_results,
    new_slot,
    open_record_writer,
    publish_result,
    read_last_record,
)


def write_shard(
    job: Job,
    out: LaunchOutput,
    shard: int,
    *,
    skip_errors: bool,
    max_errors: int | None,
    strict: bool = False,
) -> FinishedShard:
    """Write one shard, unless an earlier attempt finished it.

    Args:
        job: The job.
        out: The output of the launch.
        shard: The number of the shard.
        skip_errors: Whether an item that gives an error leaves a gap.
        strict: Whether a warning about an item is an error.
        max_errors: Maximum number of errors; None for any number.

    Raises:
        ShardwriterError: An item can not be encoded, or the shard not be written.
        RunChanged: An item gives a different record now than when the shard was finished.
    """
    finished = out.load_finished(shard)
    if (
        finished is not None
        and _is_complete(job, finished)
        and (block := _last_block(job, out, finished))
    ):
        if out.is_resumed and finished.sealed.num_records:
            _check_last_record(job, finished, *block)
        return finished
    storage, packing = out.storage, job.packing
    attempt = new_attempt()
    path, index_path = out.shard_path(shard, attempt), out.index_path(shard, attempt)
    state = ResumeState(job.num_shards)
    worker = job.worker(shard, job.num_shards, [shard], new_slot())
    items = job.encoder(state, worker, skip_errors=skip_errors, strict=strict)
    facts = Facts(items.encoder.stats)
    with ShardFile(
        storage,
        path,
        index_path,
        lambda on_flush: open_record_writer(
            storage, path, packing, on_flush, new=out.writes_final_names
        ),
        compressed=not packing.is_plain,
    ) as shard_file:
        write = shard_file.write
        for index, result in items.records(job.items_of([shard], state)):
            if type(result) is bytes:
                write(result)
                continue
            facts.note_gap(index, result, max_errors)
        items.clear_current_item()
        facts.num_items = job.num_items
        sealed = shard_file.seal()
    finished = FinishedShard(shard, sealed, path, index_path, facts)
    out.save_finished(finished)
    return finished


def _is_complete(job: Job, finished: FinishedShard) -> bool:
    """Return whether the records and gaps of a finished shard are those of its items."""
    num_items, num_shards, gaps = job.num_items or 0, job.num_shards, finished.facts.gaps
    shard_items = range(finished.shard, num_items, num_shards)
    in_order = all(a < b for a, b in pairwise(gaps)) and all(gap in shard_items for gap in gaps)
    expected = num_shard_items(num_items, num_shards, finished.shard)
    return in_order and finished.sealed.num_records + len(gaps) == expected


def _last_block(job: Job, out: LaunchOutput, finished: FinishedShard) -> tuple[int, int] | None:
    """Return the byte range of a shard's last block; None if its index rows are invalid."""
    if not finished.sealed.num_records:
        return 0, 0
    compression = job.packing.compression
    rows = np.frombuffer(out.storage.read(finished.index_path) or b"", "<u8")
    begin, end = last_block_range(rows[:: columns(compression)], compression)
    return (begin, end) if begin < end <= finished.sealed.file_bytes else None


def _check_last_record(job: Job, finished: FinishedShard, begin: int, end: int) -> None:
    """Encode the last record of a shard again: code that a map calls is not in the job hash."""
    record = read_last_record(finished.path, begin, end, job.packing.compression)
    gaps = Gaps(finished.facts.gaps, job.num_shards)
    index = gaps.item_index(finished.shard, finished.sealed.num_records - 1)
    for item_index, item in job.selection.items_at(np.array([index])):
        job.check_record(item_index, item, (len(record), crc32c(record)))


def publish_shards(task: Task, values: Iterable[bytes]) -> Manifest:
    """Check the finished shards of all workers, and publish the dataset.

    Args:
        task: The launch.
        values: The finished shards, in any order; empty values are ignored.

    Raises:
        AssignmentError: Shards are missing or have the wrong records; nothing is published.
        TooManyErrors: More items gave an error than ``max_errors``.
        FeatureError: There is a warning about the data, with ``strict``.
    """
    out, num_shards = task.out, task.out.num_shards
    total = Facts(RecordStats.of(task.label, num_shards))
    sealed: dict[int, SealedShard] = {}
    files: dict[int, tuple[str, str]] = {}
    for data in filter(None, values):
        shard = FinishedShard.from_bytes(data, num_shards)
        if shard.shard not in sealed:  # a runner may deliver the results of two attempts
            sealed[shard.shard] = shard.sealed
            files[shard.shard] = shard.path, shard.index_path
            total.merge(shard.facts)
    num_items = (total.num_items or 0) if task.num_items is None else task.num_items
    identity = task.identity or _identity_of_keys(task, total.key_sum, num_items)
    with out.claimed() as run:
        published = _published(run, out, identity)
        if published is not None:
            return published
        missing = [shard for shard in range(num_shards) if shard not in sealed]
        if missing:
            raise AssignmentError(
                f"{len(missing):,} shards were not written, the first of them shard {missing[0]}"
            )
        _check_budget(task.options, total)
        written = WorkerResult(total.stats, sealed, total.gaps, total.errors)
        result = merge_results(task.job, ResumeState(num_shards), [written], num_items)
        for warning in result.warnings if task.options.strict else ():
            raise as_error(warning, FeatureError)
        run.adopt(files)
        return publish_result(
            run,
            result,
            out.output,
            job=identity.job,
            source=identity.source,
            order=task.order,
            packing=task.packing,
            dali=task.options.dali_index,
        )


def _published(run: RunDirectory, out: LaunchOutput, identity: Identity) -> Manifest | None:
    """Return the manifest if an earlier attempt published or committed it; else None.

    Raises:
        RunError: Another job uses the run directory.
    """
    finish_committed(run)
    if facts_of(run).get("launch") == out.launch and out.is_unpublished:
        return None
    manifest = finished_manifest(run)
    if manifest is not None and manifest.job == identity.job:
        run.discard()
        return manifest
    raise out.lost_error()


def _check_budget(options: RunOptions, facts: Facts) -> None:
    errors = facts.errors
    if options.max_errors is not None and len(errors) > options.max_errors:
        last = max(errors, key=lambda entry: int(entry["index"]))
        raise TooManyErrors(
            f"{len(errors):,} items gave an error, and {options.max_errors:,} may; the last: item "
            f"{last['index']}: {last['message']}",
            hint="correct the data or the map, or allow more (--max-errors)",
        )


def _identity_of_keys(task: Task, key_sum: int, num_items: int) -> Identity:
    """Return the identity of a dataset of items with keys."""
    source = {"digest": canonical.digest(keys_digest(key_sum, num_items)), "kind": KIND}
    options = {**task.bytes_options, "order": dict(task.order)}
    return Identity(canonical.digest({"options": options, "source": source}), source)


_Process = Callable[[Any, Any], Iterator[Any]]


def locating(process: _Process) -> _Process:
    """Decorate ``process`` so that errors have their location in the message, which Beam keeps."""

    @wraps(process)
    def located(self: Any, element: Any) -> Iterator[Any]:
        try:
            yield from process(self, element)
        except ShardwriterError as error:
            raise type(error)(error.summary, hint=error.hint) from error

    return located


Keyed = tuple[int, bytes]
"""An element to group: a key, and a packed value."""

NOTHING: Final = -2
"""Sent instead of a run or a shard if the dataset is finished: there is nothing to do."""

_NAMESPACE: Final = "shardwriter"


def first_elements(task: Task) -> list[int]:
    """Return the first elements of a job: shards, or runs and SEED; or NOTHING."""
    if task.out.is_finished:
        return [NOTHING]
    if task.strategy == "strided":
        return list(range(task.out.num_shards))
    if task.num_items is None:
        return [SEED, 0]  # one worker reads the stream
    return [SEED, *range(task.partitioning.num_runs(task.num_items))]


class WriteShard(beam.DoFn):
    """Writes a shard of a strided job."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._counters = _Counters()

    @locating
    def process(self, shard: int) -> Iterator[Keyed]:
        """Yield the finished shard."""
        if shard == NOTHING:
            yield 0, b""
            return
        task, options = self._task, self._task.options
        task.out.enter()
        finished = write_shard(
            task.job,
            task.out,
            shard,
            skip_errors=task.skips_errors,
            strict=options.strict,
            max_errors=options.max_errors,
        )
        self._counters.count(finished)
        yield 0, finished.to_bytes()


class WriteChunks(beam.DoFn):
    """Encodes runs of a source as chunks."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @locating
    def process(self, run: int) -> Iterator[Keyed]:
        """Yield the chunks of a run, by the key of their group."""
        task = self._task
        if run == NOTHING:
            yield NOTHING, b""
        elif run == SEED:
            yield from seeds(task.out.num_shards)
        else:
            task.out.enter()
            job = task.job
            found = self._stream(job) if task.num_items is None else self._range(job, run)
            for key, chunk in found:
                yield key, chunk.to_bytes()

    def _range(self, job: Job, run: int) -> Iterator[tuple[int, Chunk]]:
        task = self._task
        assert task.num_items is not None
        first = run * task.partitioning.run_items
        indices = np.arange(first, min(first + task.partitioning.run_items, task.num_items))
        return chunk_writer(task, task.partitioning).write(run, job.selection.items_at(indices))

    def _stream(self, job: Job) -> Iterator[tuple[int, Chunk]]:
        task = self._task
        listing = Listing(job, ResumeState(job.num_shards))
        items = iter(listing)
        writer = chunk_writer(task, task.partitioning)
        run = 0
        while True:
            run_items = islice(items, task.partitioning.run_items)
            first = next(run_items, None)
            if first is None:
                break
            yield from writer.write(run, chain([first], run_items))
            run += 1
        yield from writer.write(run, (), lambda: listing.num_items)


def chunk_writer(task: Task, partitioning: Partitioning) -> ChunkWriter:
    """Return a writer of the chunks of runs."""
    job = task.job
    worker = job.worker(0, 1, range(job.num_shards), new_slot())
    state = ResumeState(job.num_shards)
    return ChunkWriter(
        partitioning,
        task.out,
        lambda: job.encoder(
            state, worker, skip_errors=task.skips_errors, strict=task.options.strict
        ),
        task.options.max_errors,
    )


def seeds(num_shards: int) -> Iterator[Keyed]:
    """Yield a chunk without items for every shard, so shards without records are written too."""
    chunk = Chunk(SEED, 0, 0).to_bytes()
    for shard in range(num_shards):
        yield shard, chunk


class WritePart(beam.DoFn):
    """Writes groups as parts (:mod:`shardwriter.cluster.parts`)."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._group_bytes = Metrics.distribution(_NAMESPACE, "group_bytes")

    @locating
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Keyed]:
        """Yield the block of the group, by its shard."""
        key, values = element
        if key == NOTHING:
            yield NOTHING, b""
            return
        task = self._task
        task.out.enter()
        block = write_block(task.out, task.partitioning, task.label, key, values)
        self._group_bytes.update(sum(part.num_bytes for part in block.parts))
        yield task.partitioning.block_and_shard(key)[1], block.to_bytes()


class JoinShard(beam.DoFn):
    """Joins the parts of a shard."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._counters = _Counters()

    @locating
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Keyed]:
        """Yield the finished shard."""
        shard, values = element
        if shard == NOTHING:
            yield 0, b""
            return
        task = self._task
        task.out.enter()
        finished = join_blocks(task.out, task.packing, task.label, shard, values)
        self._counters.count(finished)
        yield 0, finished.to_bytes()


class PublishAll(beam.DoFn):
    """Publishes the shards of all workers."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @locating
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[str]:
        """Yield the text of the manifest."""
        yield publish_shards(self._task, element[1]).dumps()


class _Counters:
    """The counters that a runner shows while a job runs."""

    def __init__(self) -> None:
        self._records = Metrics.counter(_NAMESPACE, "records")
        self._payload_bytes = Metrics.counter(_NAMESPACE, "payload_bytes")
        self._shards = Metrics.counter(_NAMESPACE, "shards")
        self._gaps = Metrics.counter(_NAMESPACE, "gaps")
        self._errors = Metrics.counter(_NAMESPACE, "errors")

    def count(self, finished: FinishedShard) -> None:
        """Count a finished shard."""
        self._shards.inc()
        self._records.inc(finished.sealed.num_records)
        self._payload_bytes.inc(finished.sealed.payload_bytes)
        self._gaps.inc(len(finished.facts.gaps))
        self._errors.inc(len(finished.facts.errors))


# The steps that sort the items of a PCollection, and number them.


class AssignBucket(beam.DoFn):
    """Assigns each item to a bucket."""

    def __init__(self, key: KeyOf, seed: int, num_buckets: int) -> None:
        self._key = key
        self._seed = seed
        self._num_buckets = num_buckets

    @locating
    def process(self, item: Any) -> Iterator[Keyed]:
        """Yield the bucket and the item, packed."""
        yield bucket_of(item, self._key, self._seed, self._num_buckets)


class SortBucket(beam.DoFn):
    """Sorts buckets and writes them to files."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @locating
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Keyed]:
        """Yield the facts about the bucket."""
        bucket, values = element
        self._task.out.enter()
        found = write_bucket(self._task.out, bucket, values)
        yield 0, pack_json(found.to_json())


class NumberItems(beam.DoFn):
    """Numbers the items, once all buckets are sorted."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @locating
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[bytes]:
        """Yield the buckets, and an empty element for shards without records."""
        task = self._task
        found = [Bucket(**unpack_json(data)) for data in element[1] if data]
        buckets, partitioning = number_buckets(found, task.out.num_shards)
        yield b""
        num_items = sum(bucket.num_items for bucket in buckets)
        for bucket in buckets:
            yield pack_json([bucket.to_json(), num_items, asdict(partitioning)])


class ChunkBucket(beam.DoFn):
    """Encodes sorted buckets as chunks."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @locating
    def process(self, element: bytes) -> Iterator[Keyed]:
        """Yield the chunks of a bucket, by the key of their group."""
        task, job = self._task, self._task.job
        if not element:
            yield from seeds(job.num_shards)
            return
        bucket_json, num_items, cut_json = unpack_json(element)
        bucket, partitioning = Bucket(**bucket_json), Partitioning(**cut_json)
        writer = chunk_writer(task, partitioning)
        items = read_bucket(task.out, bucket)
        key_sum = bucket.key_sum
        for run in range(
            bucket.first_run, bucket.first_run + partitioning.num_runs(bucket.num_items)
        ):
            run_items = islice(items, partitioning.run_items)
            for key, chunk in writer.write(run, run_items, lambda: num_items, key_sum):
                yield key, chunk.to_bytes()
            key_sum = 0
