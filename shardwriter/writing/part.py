"""A part of a dataset: some of its shards, written by one process that keeps one journal.

The serial engine has one part with all N shards; a process pool has one for each worker or more.
Parts know nothing of each other, and together they give what one part would have given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from contextlib2 import ExitStack

from shardwriter.dataset import SealedShard
from shardwriter.errors import DataError, RecordTooLarge, ShardwriterError, StorageError
from shardwriter.formats import FRAME_BYTES
from shardwriter.schema import FeatureSummary, RecordStats, warnings_of
from shardwriter.sources import FrameSource, Item
from shardwriter.writing.encode import ItemEncoder, RecordEncoder
from shardwriter.writing.engine import Work, WriteResult
from shardwriter.writing.job import Job
from shardwriter.writing.journal import Journal, Snapshot
from shardwriter.writing.open_shards import FrameCopy, OpenShards
from shardwriter.writing.options import RunOptions
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.stages import Stopwatch

REPORT_S: Final = 0.1
_FIRST_MARK: Final = 10  # times the pause between marks: what is shorter is soon done again
_MARK_SHARD_S: Final = 0.002  # and by so much for each shard that grows
_FIRST_MOVED: Final = 1 << 12
_MARK_COST: Final = 50  # a mark is followed by so many times of what it took, at least


@dataclass
class WorkerResult:
    """What one process has done, and learnt from its records.

    Attributes:
        stats: Schema and labels of its records.
        sealed: The shards that it finished, by number.
        gaps: Items without a record.
        errors: Those of them that gave an error: an entry of the ledger for each.
        num_items: Items that it went through.
        payload_bytes: Bytes of its records.
        seconds: Time by stage.
        notes: What a person should know in the end, one line each.
    """

    stats: RecordStats
    sealed: dict[int, SealedShard] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    num_items: int = 0
    payload_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def work(self) -> Work:
        """Return how far this process has come by itself."""
        num_gaps, num_errors = len(self.gaps), len(self.errors)
        return Work(self.num_items, None, self.payload_bytes, num_gaps, num_errors, self.seconds)


class Listener(Protocol):
    """Whom a part tells of what happens."""

    def tell(self, done: WorkerResult) -> None:
        """Take note of what was done so far; called now and then."""

    def report_types(self, features: Mapping[str, FeatureSummary]) -> None:
        """Take note of features whose type has widened."""

    def report_error(self, error: ShardwriterError) -> None:
        """Take note of an item that is skipped; raise where that is one too many."""


class PartWriter:
    """Writes parts of a job, one after the other.

    Args:
        job: What to write.
        run: Where.
        kept: What earlier attempts have left.
        options: How often to say how far it is.
        worker: Number of this process.
        journal: Of this process.
        encoder: Makes the records.
        watch: The clock that the encoder has too.
        listener: Told of what happens.

    Attributes:
        done: What was done so far, of all parts together.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        kept: ResumeState,
        options: RunOptions,
        worker: int,
        journal: Journal,
        encoder: ItemEncoder,
        watch: Stopwatch,
        listener: Listener,
    ) -> None:
        self._job = job
        self._num_shards = job.num_shards
        self._packing = job.packing
        self._run = run
        self._kept = kept
        self._options = options
        self._worker = worker
        self._journal = journal
        self._items = encoder
        self._watch = watch
        self._listener = listener
        self._can_resume = job.source.stable
        self._num_snapshots = 0
        self._since_checkpoint = 0
        self._num_items: int | None = None
        now = time.monotonic()
        self._next_report = now + REPORT_S
        self._next_mark = now + _FIRST_MARK * options.mark_s
        encoder.encoder.schema.on_widen = self._on_widen
        self.done = WorkerResult(encoder.encoder.stats, seconds=watch.seconds)

    def close(self) -> None:
        """Let go of the encoder, which knows this object: a source's files are closed at once."""
        self._items.encoder.schema.on_widen = None

    def _on_widen(self, features: Mapping[str, FeatureSummary]) -> None:
        entries = {name: feature.to_state() for name, feature in features.items()}
        self._journal.fact(types=entries)
        self._listener.report_types(features)

    def write(
        self,
        shards: Sequence[int],
        items: Iterable[tuple[int, Item]],
        num_items: Callable[[], int],
    ) -> None:
        """Write all records of some shards, and seal them.

        What the job moves as it is (``num_frame_copies``) is listed here.

        Args:
            shards: Their numbers.
            items: Index and descriptor of their items that are still to be done, in order of index.
            num_items: Tells T, when the items have come to their end.

        Raises:
            ShardwriterError: An item is at fault, or the disk; nothing more is written.
        """
        done = self.done
        self._items.counted_to = 0
        with ExitStack() as stack:
            growing = OpenShards(
                stack,
                self._run,
                shards,
                self._packing,
                self._options.backend,
                self._journal,
                self._kept,
            )
            try:
                if stop := num_frame_copies(self._job, self._options):
                    self._move(growing, shards, stop)
                self._make(growing, items)
            except StorageError:
                raise
            except ShardwriterError:
                # What a run that is short has done is done again as fast as it is looked at.
                if self._num_snapshots:
                    with suppress(StorageError):  # it would hide what has happened
                        self._snapshot(growing)
                raise
            self._items.clear_current_item()
            self._num_items = num_items()
            with self._watch.aside("sync"):
                self._journal.flush()
                done.sealed |= growing.seal()
            growing.files.clear()
            if time.monotonic() >= self._next_mark:
                is_full = self._since_checkpoint >= self._options.checkpoint_bytes
                self._snapshot(growing, synced=is_full)
        self._listener.tell(done)

    def _make(self, growing: OpenShards, items: Iterable[tuple[int, Item]]) -> None:
        """Load, map, encode and write some items."""
        done, num_shards, files = self.done, self._num_shards, growing.files
        most_bytes = self._options.checkpoint_bytes
        next_look = min(self._next_report, self._next_mark)
        item_index: int | None = None
        try:
            for item_index, made in self._items.records(items):
                done.num_items += 1
                if type(made) is bytes:
                    files[item_index % num_shards].write(made)
                    size = len(made)
                    done.payload_bytes += size
                    self._since_checkpoint += size
                    if self._since_checkpoint >= most_bytes:
                        self._snapshot(growing, synced=True)
                elif isinstance(made, ShardwriterError):
                    self._skip(item_index, made)
                else:
                    done.gaps.append(item_index)
                    self._journal.fact(skip=item_index, reason="dropped")
                if (now := time.monotonic()) >= next_look:
                    next_look = self._look(growing, now)
        except RecordTooLarge as error:  # of a block of rows: the shard met it
            raise error.locate(index=item_index) from error.__cause__

    def _move(self, growing: OpenShards, shards: Sequence[int], stop: int) -> None:
        """Move the frames of the items in front of one, block by block.

        A record that is damaged goes the way of any item, which says what is wrong or skips it.
        """
        job, watch = self._job, self._watch
        source, selection = job.source, job.selection
        assert isinstance(source, FrameSource)
        moving = FrameCopy(growing.files, self._num_shards)
        most = _FIRST_MOVED  # about as many as come at once; few where records are damaged
        for indices in job.indices_of(shards, self._kept, 0, stop):
            places = selection.source_positions(indices)
            at = 0
            while at < len(indices):
                watch.start_block()
                self._items.worker.slot[0] = int(indices[at])
                try:
                    block = source.frames(places[at : at + most])
                except DataError:
                    most = 1
                    moving.flush()
                    self._make(growing, selection.items_at(indices[at : at + 1]))
                    at += 1
                    continue
                watch.lap("read")
                some = indices[at : at + len(block)]
                moving.deal(some, block)
                watch.lap("write")
                watch.stop()
                at += len(block)
                most = 2 * len(block)
                num_bytes = int(block.sizes.sum()) - FRAME_BYTES * len(block)
                self.done.num_items += len(block)
                self.done.payload_bytes += num_bytes
                self._since_checkpoint += num_bytes
                self._items.counted_to = int(some[-1]) + 1
                is_full = self._since_checkpoint >= self._options.checkpoint_bytes
                now = time.monotonic()
                if is_full or now >= min(self._next_report, self._next_mark):
                    moving.flush()
                    if is_full:
                        self._snapshot(growing, synced=True)
                    self._look(growing, now)
        moving.flush()

    def _skip(self, item_index: int, error: ShardwriterError) -> None:
        entry = error.to_json()
        self.done.gaps.append(item_index)
        self.done.errors.append(entry)
        self._journal.fact(skip=item_index, reason="error", error=entry)
        self._listener.report_error(error)

    def _look(self, growing: OpenShards, now: float) -> float:
        """Tell how far it is, and mark it, where it is time; return when to look again."""
        if now >= self._next_report:
            self._listener.tell(self.done)
            self._next_report = now + REPORT_S
        if now >= self._next_mark:
            self._snapshot(growing)
        return min(self._next_report, self._next_mark)

    def _snapshot(self, growing: OpenShards, *, synced: bool = False) -> None:
        """Note what has been done, so that it need not be done again."""
        if not self._can_resume:
            self._since_checkpoint = 0
            self._next_mark = math.inf
            return
        started = time.monotonic()
        self._items.clear_current_item()
        with self._watch.aside("sync"):
            if synced:
                written = growing.checkpoint()
                self._journal.sync()
                self._since_checkpoint = 0
            else:
                written = growing.flush()
                self._journal.flush()
            self._num_snapshots += 1
            snapshot = Snapshot(
                self._num_snapshots,
                synced,
                self._items.counted_to,
                written,
                self.done.sealed,
                self.done.stats.to_state(),
                self._num_items,
                self._journal.num_bytes,
            )
            self._run.write_snapshot(self._kept.attempt, self._worker, snapshot)
        now = time.monotonic()
        self._next_mark = now + self._options.mark_s
        if self._options.mark_s and not synced:
            # What is flushed early costs later too, once for every shard.
            pause_s = max(_MARK_COST * (now - started), _MARK_SHARD_S * len(written))
            self._next_mark = max(self._next_mark, now + pause_s)


def num_frame_copies(job: Job, options: RunOptions) -> int:
    """Return how many items at the front a part moves as they are; the others are given to it."""
    return job.num_frame_copies if options.backend == "native" else 0


# What all processes have done, put together.


def merge_results(
    job: Job,
    kept: ResumeState,
    parts: Iterable[WorkerResult],
    num_items: int,
    seconds: Mapping[str, float] | None = None,
) -> WriteResult:
    """Put together what all processes have done, and what was done before.

    Args:
        job: What was written.
        kept: What earlier attempts have left.
        parts: Of every process.
        num_items: T.
        seconds: Time by stage that is in no part.

    Raises:
        SchemaConflict: Two processes have seen a feature with types that do not go together.
    """
    learnt = job.resumed_encoder(kept)
    learnt.warnings.merge(warnings_of(job.source))
    watch = Stopwatch()
    watch.add(seconds or {})
    sealed = dict(kept.sealed)
    gaps: list[int] = kept.gaps.tolist()
    errors = [dict(entry) for entry in kept.errors.values()]
    payload_bytes = kept.payload_bytes
    notes: list[str] = []
    for part in parts:
        learnt.merge(part.stats)
        sealed |= part.sealed
        gaps += part.gaps
        errors += part.errors
        payload_bytes += part.payload_bytes
        watch.add(part.seconds)
        notes += part.notes
    if not gaps:  # of some of the records nothing is known
        learnt.merge(job.copied_stats)
    outcome = write_result(learnt, sealed, num_items, gaps, errors, payload_bytes, watch.seconds)
    return replace(outcome, notes=outcome.notes + notes) if notes else outcome


def write_result(
    learnt: RecordEncoder,
    sealed: Mapping[int, SealedShard],
    num_items: int,
    gaps: list[int],
    errors: list[dict[str, Any]],
    payload_bytes: int,
    seconds: Mapping[str, float],
) -> WriteResult:
    """Return the outcome of a run whose shards are all sealed."""
    labels = learnt.labels
    notes = []
    if labels.too_many:
        notes.append(f"{labels.feature!r} has too many values to count as a label")
    work = Work(num_items, num_items, payload_bytes, len(gaps), len(errors), seconds)
    return WriteResult(
        [sealed[number] for number in sorted(sealed)],
        num_items,
        sorted(gaps),
        sorted(errors, key=lambda entry: int(entry["index"])),
        learnt.schema.to_json(),
        labels.to_json(),
        labels.is_sorted,
        notes,
        work,
        list(learnt.warnings),
    )
