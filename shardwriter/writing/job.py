"""A job: one source, the options that decide bytes, and N. What every engine is given.

Which items there are, and their numbers, is fixed by descriptors alone
(:mod:`shardwriter.writing.selection`); loading, mapping and encoding come after, wherever the
engine does them.
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
    """What is to be written.

    Attributes:
        selection: The items.
        pattern: The files' names, and with them N.
    """

    selection: Selection
    pattern: ShardPattern

    @property
    def source(self) -> Source:
        """Where the items come from."""
        return self.selection.source

    @property
    def options(self) -> DatasetOptions:
        """What decides the bytes."""
        return self.selection.options

    @property
    def num_shards(self) -> int:
        """N."""
        return self.pattern.num_shards

    @property
    def num_items(self) -> int | None:
        """T; None where only the end of the source tells."""
        return self.selection.num_items

    @property
    def packing(self) -> Packing:
        """How shards are compressed."""
        return Packing.of(self.options.compression, self.options.deflate, self.num_shards)

    def encoder(
        self,
        kept: ResumeState,
        worker: Worker | None = None,
        watch: StageTimer | None = None,
        *,
        skip_errors: bool = False,
        strict: bool = False,
    ) -> ItemEncoder:
        """Return a fresh encoder for the items that are still to be done."""
        items = ItemEncoder(
            self.source,
            self.options,
            self.num_shards,
            worker,
            watch,
            skip_errors=skip_errors,
            strict=strict,
        )
        if kept.finished_records is not None:
            items.finished_record = kept.finished_records.record
        if kept.stats is not None:
            items.encoder.expect(RecordStats.from_state(kept.stats, self.num_shards), kept.counted)
        return items

    def record_encoder(self) -> RecordEncoder:
        """Return what gathers the schema and the labels of the job's records; it has none yet."""
        return ItemEncoder(self.source, self.options, self.num_shards).encoder

    def resumed_encoder(self, kept: ResumeState) -> RecordEncoder:
        """Return an encoder that others can be merged into: what was learnt before."""
        encoder = self.record_encoder()
        if kept.stats is not None:
            encoder.merge(RecordStats.from_state(kept.stats, self.num_shards))
        return encoder

    @property
    def copied_stats(self) -> RecordStats:
        """What is known of finished records that are copied, where all of them are.

        In which shard a label stands is not: nobody looks into the records.
        """
        learnt = self.record_encoder().stats
        source = self.source
        if (
            not isinstance(source, RecordSource)
            or self.options.map is not None
            or not self.selection.takes_all
        ):
            return learnt
        learnt.features = dict(source.summaries)
        if source.labels is not None:
            totals = {name: source.labels[name] for name in ("counts", "feature")}
            known = source.summaries.get(totals["feature"])
            kind = None if known is None else known.type.kind
            learnt.labels = LabelCounts.from_json(totals, self.num_shards, kind)
        return learnt

    @property
    def num_frame_copies(self) -> int:
        """How many items at the front are frames that are moved as they are, many at a time."""
        source, options = self.source, self.options
        if not isinstance(source, FrameSource) or options.map or not self.packing.is_plain:
            return 0
        if source.num_frames == source.num_items:
            return self.num_items or 0
        return source.num_frames if self.selection.is_untouched else 0

    def items_of(
        self, shards: Sequence[int], kept: ResumeState, first: int = 0
    ) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of the items of some shards, in order of index.

        Those that are done are left out, and those in front of ``first``. Only for a source with
        random access.
        """
        assert self.num_items is not None
        for indices in self.indices_of(shards, kept, first, self.num_items):
            yield from self.selection.items_at(indices)

    def indices_of(
        self, shards: Sequence[int], kept: ResumeState, first: int, stop: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield int64[n]: the items of some shards from ``first`` up to ``stop``, ascending.

        Those that are done are left out.
        """
        row = np.array(sorted(shards), np.int64)
        if not len(row):
            return
        rows_at_once = max(1, _ORDER_BLOCK // len(row))
        step = rows_at_once * self.num_shards
        begin = first
        if not kept.is_empty:
            begin = max(first, int(kept.first_missing[row].min()))
        for start in range(begin // self.num_shards * self.num_shards, stop, step):
            starts = np.arange(start, min(start + step, stop), self.num_shards)
            indices = (starts[:, None] + row).ravel()
            indices = indices[(indices >= first) & (indices < stop)]
            yield indices if kept.is_empty else kept.select_missing(indices)

    def check_record(self, item_index: int, item: Item, expected: tuple[int, int]) -> None:
        """Make an item's record again, and hold it against what an earlier attempt has written.

        Args:
            item_index: The item's index.
            item: Its descriptor.
            expected: Size and CRC-32C of the record.

        Raises:
            RunChanged: It is another.
        """
        maker = self.worker(0, 1, range(self.num_shards), new_slot())
        items = ItemEncoder(self.source, self.options, self.num_shards, maker)
        try:
            record = items.record(item_index, item)
        except ShardwriterError as error:
            error.hint = (
                "its record stands, and is made again to find out whether anything has changed: "
                "--resume again when that can be done"
            )
            raise
        if record is None or (len(record), crc32c(record)) != expected:
            raise RunChanged(
                "this item gives another record now than the one that was written",
                index=item_index,
                item=self.source.key(item),
                hint="the source, a library, or code that the map calls has changed; or the map "
                "is random (current_worker().item_seed makes it give the same each time). "
                "--overwrite starts again",
            )

    def worker(self, index: int, num_workers: int, shards: Sequence[int], slot: ItemSlot) -> Worker:
        """Return what the user's code is told of the worker that it runs in."""

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
        told = self.source.manifest_entries() if isinstance(self.source, DescribedSource) else {}
        return {**told, "digest": self._source_digest, "kind": self.source.kind}

    def bytes_options(self) -> dict[str, Any]:
        """Return the options that decide bytes, those of the manifest included, as JSON."""
        options = self.options
        # A job without a filter has the hash that it had before there were filters.
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
        """Return the hash of everything that decides the bytes."""
        return canonical.digest({"options": self.bytes_options(), "source": self.source_json()})


def _type_json(fixed: FeatureType) -> list[Any]:
    """Return a fixed type; one of which no more was fixed as it was when no more could be."""
    has_shape = fixed.shape is not None and fixed.encoding != "image"
    return [
        fixed.kind,
        fixed.dtype,
        *([] if fixed.encoding == "list" else [fixed.encoding]),
        *([list(fixed.shape or ())] if has_shape else []),
        *([] if fixed.format is None else [fixed.format]),
    ]


class Listing:
    """The items of a job that are still to be done, in order of index.

    A source that gives its items one after the other is read from its first item on; those that are
    done are dropped, and some of them held against their records.

    Args:
        job: The job.
        kept: What is done.
        first: Items in front of this one are somebody else's.

    Attributes:
        num_items: T, once all items were listed.
    """

    def __init__(self, job: Job, kept: ResumeState, first: int = 0) -> None:
        self._job = job
        self._kept = kept
        self._first = first
        self.num_items = job.num_items or 0

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        job, kept, first = self._job, self._kept, self._first
        is_all = kept.is_empty and not first
        if job.selection.reorders or (job.selection.random_access and not is_all):
            yield from job.items_of(kept.unfinished(range(job.num_shards)), kept, first)
        elif is_all:
            numbers = count()
            yield from zip(numbers, job.selection.items(), strict=False)
            self.num_items = next(numbers) - 1  # one was taken for the item that did not come
            self._check_length()
        else:
            index = -1
            for index, item in enumerate(job.selection.items()):
                if index < first:
                    continue
                if kept.is_missing(index):
                    yield index, item
                elif index in kept.checks:
                    job.check_record(index, item, kept.checks[index])
            self.num_items = index + 1
            self._check_length()

    def _check_length(self) -> None:
        """Refuse a source that came to another end than it did before, or to an earlier one."""
        found, kept = self.num_items, self._kept
        if found < kept.min_items or kept.num_items not in (None, found):
            raise RunChanged(
                f"the source gave {found:,} items now, and {kept.min_items:,} or more before",
                hint="--resume again when it gives what it gave; --overwrite starts again",
            )


def check_compression(output: Output, options: DatasetOptions, run_options: RunOptions) -> None:
    """Refuse what can not be had of compressed shards, or of an output of another kind.

    Raises:
        OptionError: The output's name is for another compression than the options say, or
            something is asked for that only plain shards have.
    """
    if output.compression != options.compression:
        raise OptionError(
            f"OUT is for {output.compression} shards, and the options say {options.compression}"
        )
    if output.tfds != options.tfds:
        raise OptionError(
            "OUT and the options do not say the same TFDS dataset",
            hint="--tfds tells both",
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
            "--backend tensorflow writes plain shards only: TensorFlow's own compressed files have "
            "no members to enter them at",
            hint=f"--backend native writes {options.compression} shards that TensorFlow reads",
        )
