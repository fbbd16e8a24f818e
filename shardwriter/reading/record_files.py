"""The files of an open dataset, for readers that open them by themselves.

n records go to W ranks as :mod:`shardwriter.dataset.rank_partition` has it. Where W divides N,
rank r may read the files r, r + W, ... and nothing else, if these hold as many records as its
share.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.assignment import num_shard_items
from shardwriter.dataset.index import Index
from shardwriter.dataset.rank_partition import Share, good_num_shards
from shardwriter.errors import OptionError
from shardwriter.formats.compression import Compression
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.opening import open_dataset
from shardwriter.storage.inputs import absolute


@dataclass(frozen=True)
class RecordFiles:
    """The files of a dataset.

    Attributes:
        paths: One for each shard, in order.
        counts: ``int64[N]`` records of each.
        mean_bytes: Of a record's payload.
        compression: Of all of them.
        gaps: ``int64[g]`` sorted items without a record.
        starts: Gives the byte where each record of a shard begins; None where they are compressed.
    """

    paths: tuple[str, ...]
    counts: NDArray[np.int64]
    mean_bytes: int
    compression: Compression
    gaps: NDArray[np.int64]
    starts: Callable[[int], NDArray[np.int64]] | None

    @property
    def num_records(self) -> int:
        """The records of all shards."""
        return int(self.counts.sum())

    @property
    def is_regular(self) -> bool:
        """Whether the shards in turn are the source order, shard by shard of the right length."""
        total, num_shards = self.num_records, len(self.paths)
        law = [num_shard_items(total, num_shards, shard) for shard in range(num_shards)]
        return not len(self.gaps) and self.counts.tolist() == law

    def dealt(self, rank: int, world: int) -> RecordFiles:
        """Return the files r, r + W, ...; only where there are no gaps."""
        starts = self.starts
        return replace(
            self,
            paths=self.paths[rank::world],
            counts=self.counts[rank::world],
            starts=None if starts is None else lambda shard: starts(rank + shard * world),
        )


def deals_files(files: RecordFiles, share: Share, in_order: bool) -> bool:
    """Say whether whole files can be dealt to ranks, so that each has its share of the records."""
    world = share.world
    if len(files.paths) % world:
        return False
    if in_order:
        return files.is_regular
    held = files.counts.reshape(-1, world).sum(axis=0)
    shares = [num_shard_items(files.num_records, world, rank) for rank in range(world)]
    return bool((held == shares).all())


def reading_all(files: RecordFiles, world: int) -> str:
    """Say that ranks read more than their own records, and which N would be better."""
    num_shards = len(files.paths)
    good = [n for n in good_num_shards(files.num_records, num_shards, world) if n != num_shards][:2]
    told = f"every rank reads all {num_shards:,} shards and keeps one record of {world:,}"
    if not good:
        return told
    return f"{told}; of {' or '.join(f'{n:,}' for n in good)} shards it would read only its own"


def opened_dataset(
    data: str | os.PathLike[str] | Dataset, notify: Callable[[str], None] | None = None
) -> Dataset:
    """Return a dataset that is open already, or open the one at a path."""
    return data if isinstance(data, Dataset) else open_dataset(data, notify=notify)


def files_of(data: Dataset) -> RecordFiles:
    """Return the files of a dataset.

    Raises:
        OptionError: It is a view of some of the records, or of another order.
    """
    if data._steps:
        raise OptionError(
            "whole files are to be read, and this is a view of some records or in another order",
            hint="give the dataset as it was opened; shuffle=, rank= and world= are options here",
        )
    core = data._core
    index = core.reader.index
    counts = [index.num_records(shard) for shard in range(data.num_shards)]
    if data.manifest is not None:
        total = data.manifest.payload_bytes
    else:
        total = sum(state.num_bytes for state in core.reader.pool.states)
    return RecordFiles(
        tuple(map(absolute, core.reader.pool.paths)),
        np.array(counts, np.int64),
        mean_bytes=max(1, total // max(1, data.num_source_records)),
        compression=index.compression,
        gaps=_gaps(data, index),
        starts=_starts(index) if index.compression == "none" else None,
    )


def _gaps(data: Dataset, index: Index) -> NDArray[np.int64]:
    """Return the items without a record; those behind the last record change no order."""
    last = data.num_source_records - 1
    if last < 0 or data.source_index(last) == last:
        return np.zeros(0, np.int64)
    gaps = index.gaps if data.manifest is None else data.manifest.gaps
    return np.asarray(gaps, np.int64)


def _starts(index: Index) -> Callable[[int], NDArray[np.int64]]:
    """Return a function that says where each record of a plain shard begins."""

    def starts(shard: int) -> NDArray[np.int64]:
        ends = index.ends(shard).astype(np.int64)
        return np.concatenate((np.zeros(1, np.int64), ends[:-1]))

    return starts
