"""A job: one source, the options that decide bytes, and N. Every engine takes a job.

The items and their indices depend on descriptors alone (:mod:`shardwriter.writing.selection`);
loading, mapping and encoding come later, in the process that the engine chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import Output, ShardPattern
from shardwriter.errors import OptionError, RunChanged, ShardwriterError
from shardwriter.formats import Packing, canonical
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema import FeatureType, LabelCounts, RecordStats
from shardwriter.sources import (
    DescribedSource,
    FrameSource,
    Item,
    RecordSource,
    Source,
    describe_callable,
)
from shardwriter.writing.encode import ItemEncoder, RecordEncoder
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.selection import Selection
from shardwriter.writing.stages import StageTimer
from shardwriter.writing.worker import ItemSlot, Worker, new_slot

_ORDER_BLOCK: Final = 1 << 16


@dataclass(frozen=True)
class Job:
    """The items to write, and the shards to write them to.

    Attributes:
        selection: The items and the options.
        pattern: The names of the shards, and with them N.
    """

    selection: Selection
    pattern: ShardPattern

    @property
    def source(self) -> Source:
        """The source of the items."""
        return self.selection.source

    @property
    def options(self) -> DatasetOptions:
        """The options that decide the bytes."""
        return self.selection.options

    @property
    def num_shards(self) -> int:
        """N."""
        return self.pattern.num_shards

    @property
    def num_items(self) -> int | None:
        """T; None if it is unknown before the end of the source."""
        return self.selection.num_items

    @property
    def packing(self) -> Packing:
        """How shards are compressed."""
        return Packing.of(self.options.compression, self.options.deflate, self.num_shards)

    def encoder(
        self,
        state: ResumeState,
        worker: Worker | None = None,
        timer: StageTimer | None = None,
        *,
        skip_errors: bool = False,
        strict: bool = False,
    ) -> ItemEncoder:
        """Return a new encoder for the items that are not written yet."""
        items = ItemEncoder(
            self.source,
            self.options,
            self.num_shards,
            worker,
            timer,
            skip_errors=skip_errors,
            strict=strict,
        )
        if state.finished_records is not None:
            items.finished_record = state.finished_records.record
        if state.stats is not None:
            stats = RecordStats.from_state(state.stats, self.num_shards)
            items.encoder.resume(stats, state.counted)
        return items

    def record_encoder(self) -> RecordEncoder:
        """Return a record encoder with the job's options and empty statistics."""
        return ItemEncoder(self.source, self.options, self.num_shards).encoder

    def resumed_encoder(self, state: ResumeState) -> RecordEncoder:
        """Return a record encoder with the statistics of earlier attempts, to merge others into."""
        encoder = self.record_encoder()
        if state.stats is not None:
            encoder.merge(RecordStats.from_state(state.stats, self.num_shards))
        return encoder

    @property
    def copied_stats(self) -> RecordStats:
        """The source's own statistics, if all of its records are copied; else empty ones.

        Label counts per shard are unknown, as copied records are not decoded.
        """
        stats = self.record_encoder().stats
        source = self.source
        if (
            not isinstance(source, RecordSource)
            or self.options.map is not None
            or not self.selection.takes_all
        ):
            return stats
        stats.features = dict(source.summaries)
        if source.labels is not None:
            totals = {name: source.labels[name] for name in ("counts", "feature")}
            known = source.summaries.get(totals["feature"])
            kind = None if known is None else known.type.kind
            stats.labels = LabelCounts.from_json(totals, self.num_shards, kind)
        return stats

    @property
    def num_frame_copies(self) -> int:
        """The number of items, from item 0, whose frames are copied in blocks."""
        source, options = self.source, self.options
        if not isinstance(source, FrameSource) or options.map or not self.packing.is_plain:
            return 0
        if source.num_frames == source.num_items:
            return self.num_items or 0
        return source.num_frames if self.selection.is_identity else 0

    def items_of(
        self, shards: Sequence[int], state: ResumeState, first: int = 0
    ) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of the items of some shards, in order of index.

        Items before ``first`` and items that are written already are left out. The source must have
        random access.
        """
        assert self.num_items is not None
        for indices in self.indices_of(shards, state, first, self.num_items):
            yield from self.selection.items_at(indices)

    def indices_of(
        self, shards: Sequence[int], state: ResumeState, first: int, stop: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield int64[n]: the items of some shards from ``first`` up to ``stop``, ascending.

        Items that are written already are left out.
        """
        row = np.array(sorted(shards), np.int64)
        if not len(row):
            return
        rows_at_once = max(1, _ORDER_BLOCK // len(row))
        step = rows_at_once * self.num_shards
        begin = first
        if not state.is_empty:
            begin = max(first, int(state.first_missing[row].min()))
        for start in range(begin // self.num_shards * self.num_shards, stop, step):
            starts = np.arange(start, min(start + step, stop), self.num_shards)
            indices = (starts[:, None] + row).ravel()
            indices = indices[(indices >= first) & (indices < stop)]
            yield indices if state.is_empty else state.select_missing(indices)

    def check_record(self, item_index: int, item: Item, expected: tuple[int, int]) -> None:
        """Encode an item again, and compare it with the record of an earlier attempt.

        Args:
            item_index: The item's index.
            item: Its descriptor.
            expected: Size and CRC-32C of the record that was written.

        Raises:
            RunChanged: The record is different.
        """
        worker = self.worker(0, 1, range(self.num_shards), new_slot())
        items = ItemEncoder(self.source, self.options, self.num_shards, worker)
        try:
            record = items.record(item_index, item)
        except ShardwriterError as error:
            error.hint = (
                "the item is written already, and is encoded again to check that nothing has "
                "changed: correct this, then --resume again"
            )
            raise
        if record is None or (len(record), crc32c(record)) != expected:
            raise RunChanged(
                "this item gives a different record now than when it was written",
                index=item_index,
                item=self.source.key(item),
                hint="the source, a library, or code that the map calls has changed; or the map "
                "is random (current_worker().item_seed makes it give the same each time). "
                "--overwrite starts again",
            )

    def worker(self, index: int, num_workers: int, shards: Sequence[int], slot: ItemSlot) -> Worker:
        """Return the worker that the user's code can ask for (``current_worker``)."""

        def source_index(item_index: int) -> int:
            return int(self.selection.source_indices(np.array([item_index]))[0])

        seed = self.options.shuffle_seed or self.options.order_seed
        return Worker(index, num_workers, self.num_shards, shards, seed, source_index, slot)

    def order_json(self) -> dict[str, Any]:
        """Return the manifest's ``order``."""
        return self.selection.order_json()

    @cached_property
    def _source_digest(self) -> str:
        return canonical.digest(self.source.digest())  # of a million files it takes a while

    def source_json(self) -> dict[str, Any]:
        """Return the manifest's ``source``."""
        source = self.source
        entries = source.manifest_entries() if isinstance(source, DescribedSource) else {}
        return {**entries, "digest": self._source_digest, "kind": source.kind}

    def bytes_options(self) -> dict[str, Any]:
        """Return the options that decide the bytes of shards and manifest, as JSON."""
        options = self.options
        # An option that is not given adds no key, so hashes of older versions stay the same.
        filtered = {} if options.filter is None else {"filter": describe_callable(options.filter)}
        tfds = {} if options.tfds is None else {"tfds": options.tfds.to_json()}
        named = {name: list(words) for name, words in options.vocabularies.items()}
        words = {"vocabularies": named} if named else {}
        images = {} if options.images is None else {"images": options.images.to_json()}
        names = {} if options.names is None else {"names": list(options.names)}
        chosen = {} if options.indices is None else {"indices": options.indices.to_json()}
        table = {} if options.table is None else options.table.to_json()
        return {
            "compression": self.packing.to_json(),
            "files": self.pattern.template,
            **filtered,
            **images,
            "label": options.label,
            "limit": options.limit,
            "map": None if options.map is None else describe_callable(options.map),
            "num_shards": self.num_shards,
            "order": self.order_json(),
            "schema": {name: _type_json(t) for name, t in options.schema.items()},
            **tfds,
            **words,
            **names,
            **chosen,
            **({"table": table} if table else {}),
        }

    def digest(self) -> str:
        """Return the job hash: of the options that decide bytes, and of the source."""
        return canonical.digest({"options": self.bytes_options(), "source": self.source_json()})


def _type_json(fixed: FeatureType) -> list[Any]:
    """Return a declared type as JSON; a plain type as older versions did, to keep their hashes."""
    has_shape = fixed.shape is not None and fixed.encoding != "image"
    return [
        fixed.kind,
        fixed.dtype,
        *([] if fixed.encoding == "list" else [fixed.encoding]),
        *([list(fixed.shape or ())] if has_shape else []),
        *([] if fixed.format is None else [fixed.format]),
    ]


class Listing:
    """The items of a job that are not written yet, in order of index.

    A source without random access is read from its first item; items that are written already are
    dropped, and some of them compared with their records.

    Args:
        job: The job.
        state: The items that are written already.
        first: Items before this one are left out.

    Attributes:
        num_items: T, once all items were listed.
    """

    def __init__(self, job: Job, state: ResumeState, first: int = 0) -> None:
        self._job = job
        self._state = state
        self._first = first
        self.num_items = job.num_items or 0

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        job, state, first = self._job, self._state, self._first
        is_all = state.is_empty and not first
        if job.selection.reorders or (job.selection.random_access and not is_all):
            yield from job.items_of(state.unfinished(range(job.num_shards)), state, first)
        elif is_all:
            numbers = count()
            yield from zip(numbers, job.selection.items(), strict=False)
            self.num_items = next(numbers) - 1  # zip took one number more than there are items
            self._check_length()
        else:
            index = -1
            for index, item in enumerate(job.selection.items()):
                if index < first:
                    continue
                if state.is_missing(index):
                    yield index, item
                elif index in state.checks:
                    job.check_record(index, item, state.checks[index])
            self.num_items = index + 1
            self._check_length()

    def _check_length(self) -> None:
        """Refuse a source that ended earlier or later than in an earlier attempt."""
        found, state = self.num_items, self._state
        if found < state.min_items or state.num_items not in (None, found):
            raise RunChanged(
                f"the source gave {found:,} items now, and {state.min_items:,} or more before",
                hint="restore the source, then --resume; --overwrite starts again",
            )


def check_compression(output: Output, options: DatasetOptions, run_options: RunOptions) -> None:
    """Refuse options that do not fit the output, or that need plain shards.

    Raises:
        OptionError: The output and the options have different compressions or TFDS datasets, or
            an option does not work with compressed shards.
    """
    if output.compression != options.compression:
        raise OptionError(
            f"OUT is for {output.compression} shards, and the options have compression "
            f"{options.compression}"
        )
    if output.tfds != options.tfds:
        raise OptionError(
            "OUT and the options are of different TFDS datasets",
            hint="--tfds sets both",
        )
    if options.compression == "none":
        return
    if run_options.dali_index:
        raise OptionError(
            f"--index makes .idx files of plain shards only, not of {options.compression} ones",
            hint="leave --index or --compression off; the dataset's own index is always written",
        )
    if run_options.backend == "tensorflow":
        raise OptionError(
            "--backend tensorflow writes plain shards only: TensorFlow's own compressed files do "
            "not allow random access",
            hint=f"--backend native writes {options.compression} shards that TensorFlow reads",
        )
