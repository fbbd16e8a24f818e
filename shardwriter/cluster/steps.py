"""The steps of a Beam job, from the first to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import wraps
from itertools import islice, pairwise
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
from shardwriter.cluster.parts import SEED, Chunk, ChunkMaker, Cut, join_blocks, write_block
from shardwriter.cluster.place import (
    Facts,
    MadeShard,
    Place,
    facts_of,
    new_attempt,
    pack_json,
    unpack_json,
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

# Strategy A: each shard is a job of its own, and nothing is shuffled.
#
# Whoever is given a shard lists its items (s, s + N, s + 2N, ...), loads and encodes them and
# writes the shard. That takes a source that has any item at hand.


def write_shard(
    job: Job,
    place: Place,
    shard: int,
    *,
    skip_errors: bool,
    max_errors: int | None,
    strict: bool = False,
) -> MadeShard:
    """Write one shard.

    Args:
        job: What to write.
        place: Where.
        shard: Its number.
        skip_errors: Whether an item that gives an error leaves a gap.
        strict: Whether a warning about an item is its error.
        max_errors: How many may; None for any number.

    Raises:
        ShardwriterError: An item is at fault, or the file system.
        RunChanged: An item gives another record now than when the shard was finished.
    """
    done = place.done(shard)
    if done is not None and _is_of(job, done) and (end := _last_piece(job, place, done)):
        if place.is_resumed and done.sealed.num_records:
            _check_last_record(job, done, *end)
        return done
    storage, packing = place.storage, job.packing
    attempt = new_attempt()
    path, index_path = place.shard_path(shard, attempt), place.index_path(shard, attempt)
    kept = ResumeState(job.num_shards)
    worker = job.worker(shard, job.num_shards, [shard], new_slot())
    items = job.encoder(kept, worker, skip_errors=skip_errors, strict=strict)
    facts = Facts(items.encoder.stats)
    with ShardFile(
        storage,
        path,
        index_path,
        lambda on_flush: open_record_writer(
            storage, path, packing, on_flush, new=place.writes_final_names
        ),
        compressed=not packing.is_plain,
    ) as shard_file:
        write = shard_file.write
        for index, made in items.records(job.items_of([shard], kept)):
            if type(made) is bytes:
                write(made)
                continue
            facts.note_gap(index, made, max_errors)
        items.clear_current_item()
        facts.num_items = job.num_items
        sealed = shard_file.seal()
    made_shard = MadeShard(shard, sealed, path, index_path, facts)
    place.note_done(made_shard)
    return made_shard


def _is_of(job: Job, done: MadeShard) -> bool:
    """Return whether a note of a finished shard follows the law."""
    num_items, num_shards, gaps = job.num_items or 0, job.num_shards, done.facts.gaps
    mine = range(done.shard, num_items, num_shards)
    in_order = all(a < b for a, b in pairwise(gaps)) and all(gap in mine for gap in gaps)
    expected = num_shard_items(num_items, num_shards, done.shard)
    return in_order and done.sealed.num_records + len(gaps) == expected


def _last_piece(job: Job, place: Place, done: MadeShard) -> tuple[int, int] | None:
    """Return where the last piece of a shard lies; None where its rows can not be true."""
    if not done.sealed.num_records:
        return 0, 0
    compression = job.packing.compression
    rows = np.frombuffer(place.storage.read(done.index_path) or b"", "<u8")
    begin, end = last_block_range(rows[:: columns(compression)], compression)
    return (begin, end) if begin < end <= done.sealed.file_bytes else None


def _check_last_record(job: Job, done: MadeShard, begin: int, end: int) -> None:
    """Make the last record of a shard again: not all that decides bytes is known by its hash."""
    record = read_last_record(done.path, begin, end, job.packing.compression)
    gaps = Gaps(done.facts.gaps, job.num_shards)
    index = gaps.item_index(done.shard, done.sealed.num_records - 1)
    for item_index, item in job.selection.items_at(np.array([index])):
        job.check_record(item_index, item, (len(record), crc32c(record)))


# The last step: what all workers have made is held against the law, and published.


def publish_shards(task: Task, values: Iterable[bytes]) -> Manifest:
    """Publish a dataset.

    Args:
        task: What was to be done.
        values: The finished shards, in any order; empty ones are passed over.

    Raises:
        AssignmentError: Shards are missing, or not what the law gives; nothing is published.
        TooManyErrors: More items were skipped than may be.
        FeatureError: There is a warning about the data, with ``strict``.
    """
    place, num_shards = task.place, task.place.num_shards
    total = Facts(RecordStats.of(task.label, num_shards))
    sealed: dict[int, SealedShard] = {}
    files: dict[int, tuple[str, str]] = {}
    for data in filter(None, values):
        shard = MadeShard.from_bytes(data, num_shards)
        if shard.shard not in sealed:  # a runner may deliver twice what was tried twice
            sealed[shard.shard] = shard.sealed
            files[shard.shard] = shard.path, shard.index_path
            total.merge(shard.facts)
    num_items = (total.num_items or 0) if task.num_items is None else task.num_items
    identity = task.identity or _identity_of_keys(task, total.key_sum, num_items)
    with place.claimed() as run:
        published = _published(run, place, identity)
        if published is not None:
            return published
        missing = [shard for shard in range(num_shards) if shard not in sealed]
        if missing:
            raise AssignmentError(
                f"{len(missing):,} shards were not made, shard {missing[0]} first"
            )
        _check_budget(task.options, total)
        done = WorkerResult(total.stats, sealed, total.gaps, total.errors)
        outcome = merge_results(task.job, ResumeState(num_shards), [done], num_items)
        for warning in outcome.warnings if task.options.strict else ():
            raise as_error(warning, FeatureError)
        run.adopt(files)
        return publish_result(
            run,
            outcome,
            place.output,
            job=identity.job,
            source=identity.source,
            order=task.order,
            packing=task.packing,
            dali=task.options.dali_index,
        )


def _published(run: RunDirectory, place: Place, identity: Identity) -> Manifest | None:
    """Return the manifest where an earlier attempt has published; finish what one has committed.

    Raises:
        RunError: Another job has taken the place.
    """
    finish_committed(run)
    if facts_of(run).get("launch") == place.launch and place.is_as_it_was:
        return None
    manifest = finished_manifest(run)
    if manifest is not None and manifest.job == identity.job:
        run.discard()
        return manifest
    raise place.lost()


def _check_budget(options: RunOptions, facts: Facts) -> None:
    errors = facts.errors
    if options.max_errors is not None and len(errors) > options.max_errors:
        last = max(errors, key=lambda entry: int(entry["index"]))
        raise TooManyErrors(
            f"{len(errors):,} items gave an error, and {options.max_errors:,} may; the last: item "
            f"{last['index']}: {last['message']}",
            hint="mend the data or the map, or allow more (--max-errors)",
        )


def _identity_of_keys(task: Task, key_sum: int, num_items: int) -> Identity:
    """Return what the manifest says of items that came with their keys."""
    source = {"digest": canonical.digest(keys_digest(key_sum, num_items)), "kind": KIND}
    options = {**task.bytes_options, "order": dict(task.order)}
    return Identity(canonical.digest({"options": options, "source": source}), source)


# What is left of an error when Beam has told it: its message.

_Process = Callable[[Any, Any], Iterator[Any]]


def telling(process: _Process) -> _Process:
    """Have an error of a step say in its message where it happened: Beam keeps no more of it."""

    @wraps(process)
    def told(self: Any, element: Any) -> Iterator[Any]:
        try:
            yield from process(self, element)
        except ShardwriterError as error:
            raise type(error)(error.summary, hint=error.hint) from error

    return told


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
    """Writes shards of their own (:mod:`shardwriter.cluster.steps`)."""

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
        listing = Listing(job, ResumeState(job.num_shards))
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
    kept = ResumeState(job.num_shards)
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


# The steps that put the items of a PCollection in order, and number them.


class Bucketed(beam.DoFn):
    """Finds the bucket of each item."""

    def __init__(self, key: KeyOf, seed: int, num_buckets: int) -> None:
        self._key = key
        self._seed = seed
        self._num_buckets = num_buckets

    @telling
    def process(self, item: Any) -> Iterator[Keyed]:
        """Yield the bucket and the item, packed."""
        yield bucket_of(item, self._key, self._seed, self._num_buckets)


class SortBucket(beam.DoFn):
    """Sorts buckets and keeps them in files."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @telling
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Keyed]:
        """Yield what is known of the bucket."""
        bucket, values = element
        self._task.place.enter()
        found = write_bucket(self._task.place, bucket, values)
        yield 0, pack_json(found.to_json())


class Number(beam.DoFn):
    """Numbers the items, when all buckets are there."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @telling
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[bytes]:
        """Yield the buckets, and one without items."""
        task = self._task
        found = [Bucket(**unpack_json(data)) for data in element[1] if data]
        buckets, cut = number_buckets(found, task.place.num_shards)
        yield b""
        num_items = sum(bucket.num_items for bucket in buckets)
        for bucket in buckets:
            yield pack_json([bucket.to_json(), num_items, asdict(cut)])


class ChunkBucket(beam.DoFn):
    """Makes chunks of sorted buckets."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @telling
    def process(self, element: bytes) -> Iterator[Keyed]:
        """Yield what a bucket has for each shard."""
        task, job = self._task, self._task.job
        if not element:
            yield from seeds(job.num_shards)
            return
        bucket_json, num_items, cut_json = unpack_json(element)
        bucket, cut = Bucket(**bucket_json), Cut(**cut_json)
        maker = chunk_maker(task, cut)
        items = read_bucket(task.place, bucket)
        key_sum = bucket.key_sum
        for run in range(bucket.first_run, bucket.first_run + cut.num_runs(bucket.num_items)):
            some = islice(items, cut.run_items)
            for key, chunk in maker.make(run, some, lambda: num_items, key_sum):
                yield key, chunk.to_bytes()
            key_sum = 0
