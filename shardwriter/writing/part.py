"""Write a part of a dataset: some of its shards, by one process with one journal.

The serial engine has one part with all N shards; a worker of a pool writes one part or more.
Parts are independent; :func:`merge_results` merges the results of all processes with those of
earlier attempts.
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
from shardwriter.writing.stages import StageTimer

REPORT_S: Final = 0.1
_FIRST_MARK_PAUSES: Final = 10  # pauses before the first mark: a shorter run is quick to repeat
_MIN_PAUSE_FACTOR: Final = 50  # the pause after a mark is at least this times the mark's own time,
_MARK_SHARD_S: Final = 0.002  # and at least this for each open shard
_FIRST_BLOCK: Final = 1 << 12  # frames


@dataclass
class WorkerResult:
    """The result of one process.

    Attributes:
        stats: Schema and labels of its records.
        sealed: The shards that it sealed, by number.
        gaps: Items without a record.
        errors: Entries of the error log, one for each failed item.
        num_items: Items written or skipped.
        payload_bytes: Bytes of its records.
        seconds: Time by stage.
        notes: Lines to show to the user at the end.
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
        """Return the progress of this process alone."""
        num_gaps, num_errors = len(self.gaps), len(self.errors)
        return Work(self.num_items, None, self.payload_bytes, num_gaps, num_errors, self.seconds)


class Listener(Protocol):
    """Receives the reports of a part."""

    def report_progress(self, done: WorkerResult) -> None:
        """Handle the progress so far; called about ten times a second."""

    def report_types(self, features: Mapping[str, FeatureSummary]) -> None:
        """Handle features whose type has widened."""

    def report_error(self, error: ShardwriterError) -> None:
        """Handle the error of a skipped item; raise if there are too many."""


class PartWriter:
    """Writes parts of a job, one after the other.

    Args:
        job: What to write.
        run: The run directory.
        resume_state: What earlier attempts have written.
        options: Options that do not change bytes.
        worker: Number of this process.
        journal: The journal of this process.
        encoder: Turns items into records.
        timer: The timer that the encoder uses too.
        listener: Receives the reports.

    Attributes:
        done: The result so far, of all parts together.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        resume_state: ResumeState,
        options: RunOptions,
        worker: int,
        journal: Journal,
        encoder: ItemEncoder,
        timer: StageTimer,
        listener: Listener,
    ) -> None:
        self._job = job
        self._num_shards = job.num_shards
        self._packing = job.packing
        self._run = run
        self._resume_state = resume_state
        self._options = options
        self._worker = worker
        self._journal = journal
        self._items = encoder
        self._timer = timer
        self._listener = listener
        self._can_resume = job.source.resumable
        self._num_snapshots = 0
        self._since_checkpoint = 0
        self._num_items: int | None = None
        now = time.monotonic()
        self._next_report = now + REPORT_S
        self._next_mark = now + _FIRST_MARK_PAUSES * options.mark_s
        encoder.encoder.schema.on_widen = self._on_widen
        self.done = WorkerResult(encoder.encoder.stats, seconds=timer.seconds)

    def close(self) -> None:
        """Break the reference cycle with the encoder, so that a source's files are closed now."""
        self._items.encoder.schema.on_widen = None

    def _on_widen(self, features: Mapping[str, FeatureSummary]) -> None:
        entries = {name: feature.to_state() for name, feature in features.items()}
        self._journal.add_fact(types=entries)
        self._listener.report_types(features)

    def write(
        self,
        shards: Sequence[int],
        items: Iterable[tuple[int, Item]],
        num_items: Callable[[], int],
    ) -> None:
        """Write all records of some shards, and seal the shards.

        Args:
            shards: Numbers of the shards.
            items: Missing items as (index, item), in order of index; without those at the front
                whose frames are copied (``num_frame_copies``).
            num_items: Returns the number of items, T; called after the last item.

        Raises:
            ShardwriterError: An item failed, or a file can not be written.
        """
        done = self.done
        self._items.counted_to = 0
        with ExitStack() as stack:
            open_shards = OpenShards(
                stack,
                self._run,
                shards,
                self._packing,
                self._options.backend,
                self._journal,
                self._resume_state,
            )
            try:
                if stop := num_frame_copies(self._job, self._options):
                    self._copy_frames(open_shards, shards, stop)
                self._write_items(open_shards, items)
            except StorageError:
                raise
            except ShardwriterError:
                # A run without a snapshot yet is short: repeating it takes no longer than resuming.
                if self._num_snapshots:
                    with suppress(StorageError):  # it would hide the first error
                        self._snapshot(open_shards)
                raise
            self._items.clear_current_item()
            self._num_items = num_items()
            with self._timer.aside("sync"):
                self._journal.flush()
                done.sealed |= open_shards.seal()
            open_shards.files.clear()
            if time.monotonic() >= self._next_mark:
                is_full = self._since_checkpoint >= self._options.checkpoint_bytes
                self._snapshot(open_shards, synced=is_full)
        self._listener.report_progress(done)

    def _write_items(self, open_shards: OpenShards, items: Iterable[tuple[int, Item]]) -> None:
        """Load, map, encode and write items."""
        done, num_shards, files = self.done, self._num_shards, open_shards.files
        max_bytes = self._options.checkpoint_bytes
        next_check = min(self._next_report, self._next_mark)
        item_index: int | None = None
        try:
            for item_index, record in self._items.records(items):
                done.num_items += 1
                if type(record) is bytes:
                    files[item_index % num_shards].write(record)
                    size = len(record)
                    done.payload_bytes += size
                    self._since_checkpoint += size
                    if self._since_checkpoint >= max_bytes:
                        self._snapshot(open_shards, synced=True)
                elif isinstance(record, ShardwriterError):
                    self._skip(item_index, record)
                else:
                    done.gaps.append(item_index)
                    self._journal.add_fact(skip=item_index, reason="dropped")
                if (now := time.monotonic()) >= next_check:
                    next_check = self._report_or_mark(open_shards, now)
        except RecordTooLarge as error:  # from a block of rows, without its item
            raise error.locate(index=item_index) from error.__cause__

    def _copy_frames(self, open_shards: OpenShards, shards: Sequence[int], stop: int) -> None:
        """Copy the frames of the items before ``stop``, block by block.

        A damaged record is read as a single item, which raises its error or skips it.
        """
        job, timer = self._job, self._timer
        source, selection = job.source, job.selection
        assert isinstance(source, FrameSource)
        frame_copy = FrameCopy(open_shards.files, self._num_shards)
        max_block = _FIRST_BLOCK  # adapts to the source's blocks; 1 at damaged records
        for indices in job.indices_of(shards, self._resume_state, 0, stop):
            positions = selection.source_positions(indices)
            start = 0
            while start < len(indices):
                timer.start_block()
                self._items.worker.slot[0] = int(indices[start])
                try:
                    block = source.frames(positions[start : start + max_block])
                except DataError:
                    max_block = 1
                    frame_copy.flush()
                    self._write_items(open_shards, selection.items_at(indices[start : start + 1]))
                    start += 1
                    continue
                timer.lap("read")
                copied = indices[start : start + len(block)]
                frame_copy.append(copied, block)
                timer.lap("write")
                timer.stop()
                start += len(block)
                max_block = 2 * len(block)
                num_bytes = int(block.sizes.sum()) - FRAME_BYTES * len(block)
                self.done.num_items += len(block)
                self.done.payload_bytes += num_bytes
                self._since_checkpoint += num_bytes
                self._items.counted_to = int(copied[-1]) + 1
                is_full = self._since_checkpoint >= self._options.checkpoint_bytes
                now = time.monotonic()
                if is_full or now >= min(self._next_report, self._next_mark):
                    frame_copy.flush()
                    if is_full:
                        self._snapshot(open_shards, synced=True)
                    self._report_or_mark(open_shards, now)
        frame_copy.flush()

    def _skip(self, item_index: int, error: ShardwriterError) -> None:
        entry = error.to_json()
        self.done.gaps.append(item_index)
        self.done.errors.append(entry)
        self._journal.add_fact(skip=item_index, reason="error", error=entry)
        self._listener.report_error(error)

    def _report_or_mark(self, open_shards: OpenShards, now: float) -> float:
        """Report progress and write a mark if due; return when to call this again."""
        if now >= self._next_report:
            self._listener.report_progress(self.done)
            self._next_report = now + REPORT_S
        if now >= self._next_mark:
            self._snapshot(open_shards)
        return min(self._next_report, self._next_mark)

    def _snapshot(self, open_shards: OpenShards, *, synced: bool = False) -> None:
        """Write a snapshot: a checkpoint if ``synced``, else a mark."""
        if not self._can_resume:
            self._since_checkpoint = 0
            self._next_mark = math.inf
            return
        started = time.monotonic()
        self._items.clear_current_item()
        with self._timer.aside("sync"):
            if synced:
                written = open_shards.checkpoint()
                self._journal.sync()
                self._since_checkpoint = 0
            else:
                written = open_shards.flush()
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
            self._run.write_snapshot(self._resume_state.attempt, self._worker, snapshot)
        now = time.monotonic()
        self._next_mark = now + self._options.mark_s
        if self._options.mark_s and not synced:
            # An early flush also slows down later writes to each shard.
            pause_s = max(_MIN_PAUSE_FACTOR * (now - started), _MARK_SHARD_S * len(written))
            self._next_mark = max(self._next_mark, now + pause_s)


def num_frame_copies(job: Job, options: RunOptions) -> int:
    """Return the number of items at the front whose frames a part copies."""
    return job.num_frame_copies if options.backend == "native" else 0


def merge_results(
    job: Job,
    resume_state: ResumeState,
    parts: Iterable[WorkerResult],
    num_items: int,
    seconds: Mapping[str, float] | None = None,
) -> WriteResult:
    """Merge the results of all processes and of earlier attempts.

    Args:
        job: The job.
        resume_state: What earlier attempts have written.
        parts: Results of the processes.
        num_items: Number of items, T.
        seconds: Time by stage of the program itself.

    Raises:
        SchemaConflict: The types of a feature in two processes cannot be merged.
    """
    stats = job.resumed_encoder(resume_state)
    stats.warnings.merge(warnings_of(job.source))
    timer = StageTimer()
    timer.add(seconds or {})
    sealed = dict(resume_state.sealed)
    gaps: list[int] = resume_state.gaps.tolist()
    errors = [dict(entry) for entry in resume_state.errors.values()]
    payload_bytes = resume_state.payload_bytes
    notes: list[str] = []
    for part in parts:
        stats.merge(part.stats)
        sealed |= part.sealed
        gaps += part.gaps
        errors += part.errors
        payload_bytes += part.payload_bytes
        timer.add(part.seconds)
        notes += part.notes
    if not gaps:  # else it is unknown which of the copied records these totals include
        stats.merge(job.copied_stats)
    result = write_result(stats, sealed, num_items, gaps, errors, payload_bytes, timer.seconds)
    return replace(result, notes=result.notes + notes) if notes else result


def write_result(
    stats: RecordEncoder,
    sealed: Mapping[int, SealedShard],
    num_items: int,
    gaps: list[int],
    errors: list[dict[str, Any]],
    payload_bytes: int,
    seconds: Mapping[str, float],
) -> WriteResult:
    """Return the result of a run whose shards are all sealed."""
    labels = stats.labels
    notes = []
    if labels.too_many:
        notes.append(f"{labels.feature!r} has too many distinct values to count as a label")
    work = Work(num_items, num_items, payload_bytes, len(gaps), len(errors), seconds)
    return WriteResult(
        [sealed[number] for number in sorted(sealed)],
        num_items,
        sorted(gaps),
        sorted(errors, key=lambda entry: int(entry["index"])),
        stats.schema.to_json(),
        labels.to_json(),
        labels.is_sorted,
        notes,
        work,
        list(stats.warnings),
    )
