"""What earlier attempts of a run have left, and which items are still to be done."""

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

# Records of a finished dataset that are taken as they are while failed items are tried again.


class FinishedRecords:
    """The records of a dataset, by item. It can be sent to another process.

    Args:
        directory: Where the dataset is.
        manifest: Its manifest.
        again: Items that gave an error: they have no record there.
    """

    def __init__(self, directory: str, manifest: Manifest, again: Iterable[int]) -> None:
        paths = [os.path.join(directory, name) for name in manifest.pattern.shard_files]
        states = [FileState.of(stat) for stat in inputs_for(directory).stats(paths)]
        index = Index(os.path.join(directory, manifest.pattern.index_file))
        self._reader = RecordReader(index, FilePool(paths, states))
        self._gaps = Gaps(manifest.gaps, manifest.num_shards)
        self._num_shards = manifest.num_shards
        self._again = frozenset(again)

    def record(self, item_index: int) -> bytes | None:
        """Return the record of an item that is no gap otherwise; None for one to try again.

        Raises:
            CorruptFile: It is damaged.
            SourceChanged: Its file is another one now.
            StorageError: Its file can not be read.
        """
        if item_index in self._again:
            return None
        place = self._gaps.position(item_index)
        return self._reader.payload(item_index % self._num_shards, place)


_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class CountedItems:
    """Tells of which items the records were counted before, and are not to be counted again.

    Attributes:
        to: By shard: records of the items in front of this one were counted.
        uncounted: Items in front of those that were not.
        num_shards: N.
    """

    num_shards: int = 1
    to: Mapping[int, int] = field(default_factory=dict)
    uncounted: frozenset[int] = frozenset()

    @cached_property
    def last(self) -> int:
        """No item from this one on was counted."""
        return max(self.to.values(), default=0)

    def __contains__(self, item_index: object) -> bool:
        assert isinstance(item_index, int)
        if item_index >= self.last:
            return False
        before = item_index < self.to.get(item_index % self.num_shards, 0)
        return before and item_index not in self.uncounted


@dataclass(frozen=True)
class ResumeState:
    """Where an attempt starts from.

    Attributes:
        num_shards: N.
        attempt: Its number, from 0.
        open_shards: What stands in the shards that are gone on with.
        sealed: The shards that are finished.
        gaps: int64[g], sorted: items that are known to give no record.
        errors: What is known of those that are errors, by item.
        counted: Whose records were counted before.
        stats: State of :class:`~shardwriter.schema.record_stats.RecordStats`; None for none.
        num_items: T, where the end of the source was met before.
        dali_index: Whether .idx files stand in place already, and go with the others.
        checks: Size and CRC-32C of records that stand, by item: some of a source that is read from
            its first item on are held against these.
        finished_records: Records of a finished dataset that are taken as they are.
        retries: What the manifest tells of items that other code has made again.
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
        """Whether every item is still to be done."""
        return not self.open_shards and not self.sealed and not len(self.gaps)

    @property
    def is_complete(self) -> bool:
        """Whether no item is left."""
        return self.num_items is not None and len(self.sealed) == self.num_shards

    def unfinished(self, shards: Iterable[int]) -> list[int]:
        """Return which of some shards are still to be written."""
        return [shard for shard in shards if shard not in self.sealed]

    def written(self, shard: int) -> Written:
        """Return what stands in a shard's file."""
        return self.open_shards.get(shard, NOTHING_WRITTEN)

    @cached_property
    def first_missing(self) -> NDArray[np.int64]:
        """int64[N]: the first item that each shard still needs."""
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
        """Tell whether an item is still to be done."""
        first = self.first_missing[item_index % self.num_shards]
        return bool(item_index >= first) and item_index not in self._gap_set

    def select_missing(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of int64[n] ascending indices are still to be done."""
        wanted: NDArray[np.int64] = indices[
            indices >= self.first_missing[indices % self.num_shards]
        ]
        if not len(self.gaps) or not len(wanted):
            return wanted
        place = np.searchsorted(self.gaps, wanted)
        is_gap = self.gaps[np.minimum(place, len(self.gaps) - 1)] == wanted
        no_gaps: NDArray[np.int64] = wanted[~is_gap]
        return no_gaps

    @cached_property
    def min_items(self) -> int:
        """How many items there are at least, as so many were listed before."""
        known = Gaps(self.gaps, self.num_shards)
        last = [
            known.item_index(shard, written.num_records - 1)
            for shard, written in self.open_shards.items()
            if written.num_records
        ]
        if len(self.gaps):
            last.append(int(self.gaps[-1]))
        return self.num_items or max(last, default=-1) + 1

    @property
    def num_records(self) -> int:
        """Records that need not be made again."""
        growing = sum(written.num_records for written in self.open_shards.values())
        return growing + sum(shard.num_records for shard in self.sealed.values())

    @property
    def payload_bytes(self) -> int:
        """Bytes of those records."""
        growing = sum(
            w.stream_bytes - FRAME_BYTES * w.num_records for w in self.open_shards.values()
        )
        return growing + sum(shard.payload_bytes for shard in self.sealed.values())

    def for_workers(self) -> ResumeState:
        """Return what workers need of it: no errors, which may be many."""
        return replace(self, errors={}, checks={})

    @property
    def num_done(self) -> int:
        """Items that need not be done again."""
        return self.num_records + len(self.gaps)
