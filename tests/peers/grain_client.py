"""Grain over ``shardwriter.open``, and its own TFRecord reader over the same shards.

Its ``IndexSampler`` gives every rank floor(n / world) records and so leaves some out, where the
slice ``[rank::world]`` of a ``MapDataset`` has them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
from grain.experimental import TFRecordIterDataset
from sums import Row, Set, answer, parsed

import shardwriter as sw

WORLD = 2


def chosen(one: Set, rows: Any) -> Iterator[Row]:
    for row in rows:
        yield {name: row[name] for name in one["features"]}


def own_reader(one: Set) -> Iterator[Row]:
    for path in one["paths"]:
        for payload in TFRecordIterDataset(path):
            yield parsed(payload, one["features"])


def by_slices(one: Set, processes: int = 0) -> Iterator[Row]:
    """Every rank's slice; its threads read, and its worker processes where there are some."""
    for rank in range(WORLD):
        with sw.open(one["dataset"]) as data:
            ranks = grain.MapDataset.source(data).shuffle(seed=3)[rank::WORLD]
            if not len(ranks):
                continue
            reading = grain.ReadOptions(num_threads=4, prefetch_buffer_size=16)
            rows = ranks.to_iter_dataset(reading)
            if processes:
                options = grain.multiprocessing.MultiprocessingOptions(num_workers=processes)
                rows = rows.mp_prefetch(options)
            yield from chosen(one, rows)


def loader(one: Set, processes: int = 0) -> Iterator[Row]:
    """One rank's ``DataLoader``."""
    with sw.open(one["dataset"]) as data:
        sampler = grain.samplers.IndexSampler(len(data), shuffle=True, seed=3, num_epochs=1)
        rows = grain.DataLoader(data_source=data, sampler=sampler, worker_count=processes)
        yield from chosen(one, rows)


def sampled(one: Set) -> Iterator[Row]:
    """Two ranks' ``DataLoader``s, which leave out n mod 2 records."""
    for rank in range(WORLD):
        with sw.open(one["dataset"]) as data:
            sampler = grain.samplers.IndexSampler(
                len(data), shard_options=grain.sharding.ShardOptions(rank, WORLD), num_epochs=1
            )
            yield from chosen(one, grain.DataLoader(data_source=data, sampler=sampler))


if __name__ == "__main__":
    answer(
        {
            "MapDataset": by_slices,
            "MapDataset, 2 processes": lambda one: by_slices(one, processes=2),
            "DataLoader": loader,
            "DataLoader, 2 processes": lambda one: loader(one, processes=2),
            "DataLoader, 2 ranks": sampled,
            "TFRecordIterDataset": own_reader,
        }
    )
