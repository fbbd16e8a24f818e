"""The process engine: a pool of workers that writes the same bytes on all cores.

Each worker writes whole shards, so records need no locks and their order is that of the items.
There are two ways to give items to the workers.

*Strided*, if the source has random access and can be pickled: the program sends shard numbers, and
a free worker takes the next group of shards and lists their items itself::

    program --- a group of shards ----> worker: list -> load -> map -> encode -> write
            <-- sealed shards, types ---

*Streamed*, for all other sources, of unknown length too: the program reads the items once and sends
each to the worker that owns its shard, s mod W == w. Pending items are bounded in bytes, so a slow
worker slows the program down instead of filling memory::

    program: list -- items --> worker (i mod N) mod W: load -> map -> encode -> write
"""

from __future__ import annotations

import json
import pickle
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import numpy as np

from shardwriter.errors import ItemTimeout, OptionError, ShardwriterError, SourceError
from shardwriter.sources import PreloadingSource, WaitingSource
from shardwriter.storage import Scratch
from shardwriter.writing.engine import ErrorBudget, Progress, Work, WriteResult
from shardwriter.writing.event_log import MAIN, EventLog
from shardwriter.writing.job import Job, Listing
from shardwriter.writing.messages import (
    ItemPacker,
    MessageTooLarge,
    pack,
    unpack_failure,
    worker_died,
)
from shardwriter.writing.notices import Notify
from shardwriter.writing.options import RunOptions
from shardwriter.writing.part import REPORT_S, WorkerResult, merge_results
from shardwriter.writing.pool import Pool, WorkerHandle
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.stages import StageTimer
from shardwriter.writing.worker_process import (
    END,
    FAILED,
    FINISH,
    INDEX,
    ITEMS,
    PROGRESS,
    RESULT,
    SKIPPED,
    STREAM,
    TYPES,
    WRITE,
    WRITTEN,
    WorkerSetup,
    map_slots,
)

MAX_SETUP_BYTES: Final = 64 << 20
BATCH_BYTES: Final = 1 << 18  # of items in one message
PENDING_BYTES: Final = 64 << 20  # of items sent but not received, over all workers
_BATCH_AGE_S: Final = 0.05
_GROUPS_PER_WORKER: Final = 4  # of shards, in the strided way
_FAILURES_S: Final = 0.2  # to wait after a failure for those of earlier items


def run_process(
    pool: Pool,
    num_workers: int,
    job: Job,
    run: RunDirectory,
    resume_state: ResumeState,
    options: RunOptions,
    *,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> WriteResult:
    """Write the missing records of a job with worker processes.

    Args:
        pool: A started pool.
        num_workers: Number of workers.
        job: What to write.
        run: A run directory that has begun.
        resume_state: What earlier attempts have written.
        options: Options that do not change bytes.
        progress: Called with the progress.
        notify: Called with each line for the user.

    Raises:
        ShardwriterError: An item failed, or a worker died.
    """
    slots = Scratch()
    slots.append(b"\xff" * 8 * num_workers)
    try:
        payload, descriptors = _pack_setup(
            WorkerSetup(job, run, resume_state.for_workers(), options, num_workers, slots), notify
        )
        pool.fork(num_workers, payload, descriptors)
        del payload
        with (
            map_slots(slots, num_workers) as mapped_slots,
            EventLog(options.log_dir, MAIN, start=_earlier_work(resume_state)) as log,
        ):
            pool_run = _PoolRun(
                pool, job, resume_state, mapped_slots, options, _with_log(progress, log)
            )
            if job.source.random_access and job.source.sendable:
                pool_run.write_strided()
                num_items = job.num_items or 0
            else:
                num_items = pool_run.stream_items()
            done = pool_run.finish()
            result = merge_results(job, resume_state, done, num_items, pool_run.seconds)
            log.finish(result.work)
        if log.failure is not None:
            result.notes.append(log.failure)
    finally:
        slots.close()
    if progress is not None:
        progress(result.work)
    return result


def _with_log(progress: Progress | None, log: EventLog) -> Progress | None:
    """Return a function that reports progress to the caller and the event log."""
    if not log.is_open:
        return progress

    def report(work: Work) -> None:
        log.report(work)
        if progress is not None:
            progress(work)

    return report


def _earlier_work(resume_state: ResumeState) -> Work:
    """Return the work of earlier attempts."""
    return Work(
        resume_state.num_done,
        None,
        resume_state.payload_bytes,
        len(resume_state.gaps),
        len(resume_state.errors),
    )


def _pack_setup(setup: WorkerSetup, notify: Notify | None) -> tuple[bytes, list[int]]:
    """Pickle the setup; a source that cannot be pickled stays in this process.

    Raises:
        OptionError: The map cannot be pickled.
    """
    source = setup.job.source
    try:
        return pack(setup, MAX_SETUP_BYTES)
    except Exception as error:
        if isinstance(source, PreloadingSource) and source.sendable:
            source.preload(skip_errors=setup.options.on_error == "skip")
            payload = _pack_setup(setup, notify)
            if notify is not None:
                notify(f"items are loaded in one process: the source {_reason(error)}")
            return payload
        if isinstance(error, MessageTooLarge):
            what = f"the map has more than {MAX_SETUP_BYTES >> 20} MiB of data"
        else:
            what = f"the map can not be sent to another process: {error}"
        raise OptionError(
            what,
            hint="create what it needs in its first call; or --engine serial",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, MessageTooLarge):
        return f"has more than {MAX_SETUP_BYTES >> 20} MiB, too much to send to each worker"
    return f"can not be sent to a worker ({error})"


class _PoolRun:
    """The run of one job on a pool: assigns work and collects what the workers report."""

    def __init__(
        self,
        pool: Pool,
        job: Job,
        resume_state: ResumeState,
        slots: memoryview,
        options: RunOptions,
        progress: Progress | None,
    ) -> None:
        self._pool = pool
        self._job = job
        self._resume_state = resume_state
        self._slots = slots
        self._item_timeout_s = options.item_timeout_s
        self._budget = ErrorBudget(options, resume_state)
        self._progress = progress
        self._item_since: dict[
            int, tuple[int, float]
        ] = {}  # worker -> its current item, and since when
        self._reported: dict[int, Work] = {}
        self._types = job.encoder(resume_state).encoder.schema
        self._shards: dict[int, range] = {}
        self._results: dict[int, WorkerResult] = {}
        self._failures: list[BaseException] = []
        self._worker_error: ShardwriterError | None = None
        self._batches: list[bytearray] = []
        self._idle: deque[WorkerHandle] = deque()
        self._timer = StageTimer("read")
        self._next_report = time.monotonic() + REPORT_S
        self.seconds = self._timer.seconds

    # -- assign work -------------------------------------------------------------------------------

    def write_strided(self) -> None:
        """Send shard numbers to free workers, which list the items themselves."""
        num_shards, num_workers = self._job.num_shards, len(self._pool.workers)
        # Copying frames takes equally long for each shard, and each group reads all of the input.
        is_copied = self._job.num_frame_copies and self._job.num_frame_copies == self._job.num_items
        num_groups = min(num_shards, (1 if is_copied else _GROUPS_PER_WORKER) * num_workers)
        self._idle.extend(self._pool.workers)
        for first in range(num_groups):
            shards = range(first, num_shards, num_groups)
            if not self._resume_state.unfinished(shards):
                continue
            while not self._idle:
                self._wait()
            self._send_shards(self._idle.popleft(), WRITE, shards)

    def stream_items(self) -> int:
        """Send each item to the worker that owns its shard; return the number of items, T."""
        workers, num_shards = self._pool.workers, self._job.num_shards
        num_workers = len(workers)
        max_pending_bytes = max(BATCH_BYTES, PENDING_BYTES // num_workers)
        for worker in workers:
            self._send_shards(worker, STREAM, range(worker.number, num_shards, num_workers))
        self._batches = [bytearray() for _ in workers]
        packers = [ItemPacker() for _ in workers]
        timer = self._timer
        next_flush = time.monotonic() + _BATCH_AGE_S
        listing = Listing(self._job, self._resume_state, self._job.num_frame_copies)
        if isinstance(self._job.source, WaitingSource):
            self._job.source.while_waiting(self._serve_workers)
        for index, item in self._listed_items(listing):
            timed = timer.start()
            worker = workers[index % num_shards % num_workers]
            data = self._packed_item(packers[worker.number], index, item)
            batch = self._batches[worker.number]
            if len(data) < BATCH_BYTES:
                batch += INDEX.pack(index)
                batch += data
            if len(batch) + len(data) >= BATCH_BYTES:
                self._flush(worker)
                if len(data) >= BATCH_BYTES:  # sent without a copy
                    worker.mailbox.put(ITEMS, INDEX.pack(index), data)
                self._wait(0)
            if (now := time.monotonic()) >= next_flush:
                # Workers of a slow source get their items early.
                for each in workers:
                    self._flush(each)
                self._wait(0)
                next_flush = now + _BATCH_AGE_S
            if timed:
                timer.lap("deal")
                timer.stop()
            while worker.mailbox.pending_bytes > max_pending_bytes:
                with timer.aside("wait"):
                    self._wait()
        for worker in workers:
            self._flush(worker)
            worker.mailbox.put(END, json.dumps(listing.num_items).encode())
        return listing.num_items

    def _listed_items(self, listing: Listing) -> Iterator[tuple[int, Any]]:
        """Yield the items; before an error of the source, wait for errors of earlier items."""
        try:
            yield from listing
        except ShardwriterError as error:
            if error is self._worker_error:
                raise
            for worker in self._pool.workers:
                self._flush(worker)
            self._failures.append(error)
            self._fail()

    def _serve_workers(self) -> None:
        """Send and receive while the source waits for its next item."""
        try:
            for worker in self._pool.workers:
                self._flush(worker)
            self._wait(0)
        except ShardwriterError as error:
            self._worker_error = error  # not an error of the source
            raise

    def _flush(self, worker: WorkerHandle) -> None:
        if self._batches[worker.number]:
            worker.mailbox.put(ITEMS, self._batches[worker.number])
            self._batches[worker.number] = bytearray()

    def _packed_item(self, packer: ItemPacker, index: int, item: Any) -> bytes:
        try:
            return packer.pack(item)
        except (Exception, SystemExit) as error:
            raise SourceError(
                f"the item, of type {type(item).__name__}, can not be sent to another process: "
                f"{error}",
                index=index,
                item=self._job.source.key(item),
                hint="yield items that can be pickled and create the rest in a map; or "
                "--engine serial",
            ) from error

    def _send_shards(self, worker: WorkerHandle, kind: int, shards: range) -> None:
        self._shards[worker.number] = shards
        order = [shards.start, shards.stop, shards.step]
        worker.mailbox.put(kind, json.dumps(order).encode())

    def finish(self) -> list[WorkerResult]:
        """Wait for all workers to finish, and return their results."""
        for worker in self._pool.workers:
            worker.mailbox.put(FINISH)
        while len(self._results) < len(self._pool.workers):
            self._wait()
        return [self._results[number] for number in sorted(self._results)]

    # -- handle events -----------------------------------------------------------------------------

    def _wait(self, timeout_s: float = REPORT_S) -> None:
        """Handle messages and dead workers, check item timeouts, report progress."""
        self._take_messages(timeout_s)
        if self._failures:
            self._fail()
        for worker in self._pool.workers:
            if worker.has_ended and worker.number not in self._results:
                shards = _listed(self._shards.get(worker.number, range(0)))
                raise self._locate(
                    worker_died(worker.name, worker.status, self._current_item(worker), shards)
                )
        if self._item_timeout_s is not None:
            self._check_time(self._item_timeout_s)
        if self._progress is not None and (now := time.monotonic()) >= self._next_report:
            self._report(self._progress)
            self._next_report = now + REPORT_S

    def _fail(self) -> NoReturn:
        """Raise the failure of the earliest item."""
        # Other workers may be about to fail at earlier items.
        stop = time.monotonic() + _FAILURES_S
        while (left := stop - time.monotonic()) > 0 and self._may_fail_earlier():
            self._take_messages(left)
        failures, self._failures = self._failures, []
        raise min(failures, key=_index_of)

    def _may_fail_earlier(self) -> bool:
        first = min(map(_index_of, self._failures))
        return any(
            self._slots[worker.number] < first  # -1: not begun yet
            for worker in self._pool.workers
            if not worker.has_ended and worker not in self._idle
        )

    def _take_messages(self, timeout_s: float) -> None:
        for worker, kind, data in self._pool.events(timeout_s):
            if kind == FAILED:
                self._failures.append(self._failure(worker, data))
            elif kind == PROGRESS:
                self._reported[worker.number] = pickle.loads(data)
            elif kind == TYPES:
                try:
                    self._types.merge(pickle.loads(data))
                except ShardwriterError as error:
                    raise self._locate(error) from None
            elif kind == SKIPPED:
                skipped = self._failure(worker, data)
                assert isinstance(skipped, ShardwriterError)
                self._budget.spend(skipped)
            elif kind == WRITTEN:
                self._idle.append(worker)
            elif kind == RESULT:
                self._results[worker.number] = pickle.loads(data)

    def _failure(self, worker: WorkerHandle, data: bytes) -> BaseException:
        return unpack_failure(data, worker.name, lambda index: index % self._job.num_shards)

    def _current_item(self, worker: WorkerHandle) -> int | None:
        """Return the current item of a worker; None for none."""
        index = self._slots[worker.number]
        return index if index >= 0 else None

    def _locate(self, error: ShardwriterError) -> ShardwriterError:
        """Add the shard, and the name of the item if the source can look it up."""
        job = self._job
        if error.index is not None:
            error.shard = error.index % job.num_shards
            if job.source.random_access and job.source.sendable:
                _, item = next(job.selection.items_at(np.array([error.index])))
                error.item = job.source.key(item)
        return error

    def _check_time(self, item_timeout_s: float) -> None:
        now = time.monotonic()
        for worker in self._pool.workers:
            index = self._slots[worker.number]
            seen, since = self._item_since.get(worker.number, (-1, now))
            if index != seen:
                self._item_since[worker.number] = index, now
            elif index >= 0 and now - since > item_timeout_s:
                raise self._locate(
                    ItemTimeout(
                        f"the item took more than {item_timeout_s:g} s",
                        index=index,
                        worker=worker.name,
                        hint="check the item, or allow more time (--item-timeout)",
                    )
                )

    def _report(self, progress: Progress) -> None:
        timer = StageTimer()
        timer.add(self._timer.seconds)
        num_done, payload_bytes = self._resume_state.num_done, self._resume_state.payload_bytes
        num_gaps, num_errors = len(self._resume_state.gaps), len(self._resume_state.errors)
        for work in self._reported.values():
            num_done += work.num_done
            payload_bytes += work.payload_bytes
            num_gaps += work.num_gaps
            num_errors += work.num_errors
            timer.add(work.seconds)
        num_items = self._job.num_items
        progress(Work(num_done, num_items, payload_bytes, num_gaps, num_errors, timer.seconds))


def _index_of(error: BaseException) -> float:
    """Return the item of an error; infinity if it has none."""
    index = getattr(error, "index", None)
    return float("inf") if index is None else index


def _listed(shards: range) -> str:
    """Return shard numbers as text: ``shards 0, 4, 8, ...``."""
    if not shards:
        return "nothing yet"
    names = ", ".join(map(str, shards[:4])) + (", ..." if len(shards) > 4 else "")
    return f"shard{'s' if len(shards) > 1 else ''} {names}"
