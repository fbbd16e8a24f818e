"""The resume state: what earlier attempts of a run have written, and which items are missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import Gaps, Index, Manifest, SealedShard
from shardwriter.formats import FRAME_BYTES, NOTHING_WRITTEN, Written
from shardwriter.sources import RecordReader
from shardwriter.storage import FilePool, FileState, inputs_for
from shardwriter.writing.journal import Retry


class FinishedRecords:
    """The records of a finished dataset, which are reused while its failed items are retried.

    Can be pickled.

    Args:
        directory: Folder of the dataset.
        manifest: Its manifest.
        retried: The failed items.
    """

    def __init__(self, directory: str, manifest: Manifest, retried: Iterable[int]) -> None:
        paths = [os.path.join(directory, name) for name in manifest.pattern.shard_files]
        states = [FileState.of(stat) for stat in inputs_for(directory).stats(paths)]
        index = Index(os.path.join(directory, manifest.pattern.index_file))
        self._reader = RecordReader(index, FilePool(paths, states))
        self._gaps = Gaps(manifest.gaps, manifest.num_shards)
        self._num_shards = manifest.num_shards
        self._retried = frozenset(retried)

    def record(self, item_index: int) -> bytes | None:
        """Return the record of an item; None for a retried one. Other gaps are not allowed.

        Raises:
            CorruptFile: The record is damaged.
            SourceChanged: Its file was replaced.
            StorageError: Its file can not be read.
        """
        if item_index in self._retried:
            return None
        place = self._gaps.position(item_index)
        return self._reader.payload(item_index % self._num_shards, place)


_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class CountedItems:
    """The set of items whose records earlier attempts have counted in the statistics.

    Attributes:
        num_shards: Number of shards, N.
        to: By shard: records of the items before this one were counted.
        uncounted: Exceptions: earlier items that were not counted.
    """

    num_shards: int = 1
    to: Mapping[int, int] = field(default_factory=dict)
    uncounted: frozenset[int] = frozenset()

    @cached_property
    def last(self) -> int:
        """No item from this one on was counted; an upper bound for quick checks."""
        return max(self.to.values(), default=0)

    def __contains__(self, item_index: object) -> bool:
        assert isinstance(item_index, int)
        if item_index >= self.last:
            return False
        before = item_index < self.to.get(item_index % self.num_shards, 0)
        return before and item_index not in self.uncounted


@dataclass(frozen=True)
class ResumeState:
    """The state in which an attempt starts.

    Attributes:
        num_shards: Number of shards, N.
        attempt: Number of the attempt, from 0.
        open_shards: What is in the file of each shard that is resumed.
        sealed: The finished shards.
        gaps: int64[g], sorted: items known to have no record.
        errors: Entries of the error log, by item.
        counted: Items whose records are in ``stats`` already.
        stats: State of :class:`~shardwriter.schema.record_stats.RecordStats`; None for none.
        num_items: Number of items, T, if an earlier attempt reached the end of the source.
        dali_index: Whether the published dataset has .idx files, to be replaced with the shards.
        checks: Size and CRC-32C of some written records, by item. A source that is read from its
            start is checked against these.
        finished_records: Records of a finished dataset that are reused.
        retries: The manifest's entries of items that were retried with other code.
    """

    num_shards: int
    attempt: int = 0
    open_shards: Mapping[int, Written] = field(default_factory=dict)
    sealed: Mapping[int, SealedShard] = field(default_factory=dict)
    gaps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    errors: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    counted: CountedItems = field(default_factory=CountedItems)
    stats: Mapping[str, Any] | None = None
    num_items: int | None = None
    dali_index: bool = False
    checks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    finished_records: FinishedRecords | None = None
    retries: Sequence[Retry] = ()

    @cached_property
    def is_empty(self) -> bool:
        """Whether all items are missing."""
        return not self.open_shards and not self.sealed and not len(self.gaps)

    @property
    def is_complete(self) -> bool:
        """Whether no item is missing."""
        return self.num_items is not None and len(self.sealed) == self.num_shards

    def unfinished(self, shards: Iterable[int]) -> list[int]:
        """Return the given shards without the sealed ones."""
        return [shard for shard in shards if shard not in self.sealed]

    def written(self, shard: int) -> Written:
        """Return what is in the file of a shard."""
        return self.open_shards.get(shard, NOTHING_WRITTEN)

    @cached_property
    def first_missing(self) -> NDArray[np.int64]:
        """int64[N]: the first missing item of each shard; the largest int64 if it is sealed."""
        gaps = Gaps(self.gaps, self.num_shards)
        found = np.empty(self.num_shards, np.int64)
        for shard in range(self.num_shards):
            if shard in self.sealed:
                found[shard] = _NEVER
            else:
                found[shard] = gaps.item_index(shard, self.written(shard).num_records)
        return found

    @cached_property
    def _gap_set(self) -> frozenset[int]:
        return frozenset(self.gaps.tolist())

    def is_missing(self, item_index: int) -> bool:
        """Return whether an item is missing."""
        first = self.first_missing[item_index % self.num_shards]
        return bool(item_index >= first) and item_index not in self._gap_set

    def select_missing(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the missing ones of int64[n] ascending indices."""
        missing: NDArray[np.int64] = indices[
            indices >= self.first_missing[indices % self.num_shards]
        ]
        if not len(self.gaps) or not len(missing):
            return missing
        place = np.searchsorted(self.gaps, missing)
        is_gap = self.gaps[np.minimum(place, len(self.gaps) - 1)] == missing
        no_gaps: NDArray[np.int64] = missing[~is_gap]
        return no_gaps

    @cached_property
    def min_items(self) -> int:
        """Lower bound of the number of items: how many earlier attempts have listed."""
        known = Gaps(self.gaps, self.num_shards)
        last_items = [
            known.item_index(shard, written.num_records - 1)
            for shard, written in self.open_shards.items()
            if written.num_records
        ]
        if len(self.gaps):
            last_items.append(int(self.gaps[-1]))
        return self.num_items or max(last_items, default=-1) + 1

    @property
    def num_records(self) -> int:
        """Number of records that are written."""
        in_open_shards = sum(written.num_records for written in self.open_shards.values())
        return in_open_shards + sum(shard.num_records for shard in self.sealed.values())

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of those records."""
        in_open_shards = sum(
            w.stream_bytes - FRAME_BYTES * w.num_records for w in self.open_shards.values()
        )
        return in_open_shards + sum(shard.payload_bytes for shard in self.sealed.values())

    def for_workers(self) -> ResumeState:
        """Return what workers need: all but the errors and checks, which may be large."""
        return replace(self, errors={}, checks={})

    @property
    def num_done(self) -> int:
        """Number of items that are not missing."""
        return self.num_records + len(self.gaps)
