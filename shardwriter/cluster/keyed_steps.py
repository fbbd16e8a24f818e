"""The steps that put the items of a PCollection in order, and number them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import apache_beam as beam

from shardwriter.cluster.cut import Cut
from shardwriter.cluster.keyed import (
    Bucket,
    KeyOf,
    bucket_of,
    number_buckets,
    read_bucket,
    write_bucket,
)
from shardwriter.cluster.results import pack_json, unpack_json
from shardwriter.cluster.steps import Keyed, chunk_maker, seeds
from shardwriter.cluster.task import Task
from shardwriter.cluster.telling import telling


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
