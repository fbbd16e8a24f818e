"""The process engine: every core, the same bytes.

Worker w of W writes whole shards, so no record ever waits for a lock and order comes for free.
There are two ways to bring the items to the workers.

*Strided*, where the source gives any item cheaply and can be sent: the items of a few shards are a
job, and a worker that is free takes the next one. Nothing but numbers goes to the workers::

    program --- shards s, s+G, ... ---> worker: list -> load -> map -> encode -> write
            <-- sealed shards, types ---

*Dealt*, for everything else, streams of unknown length too: the program goes through the items once
and sends each to the worker that owns its shard, s mod W == w. What is under way is bounded in
bytes, so a slow worker slows the program down and fills no memory::

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
from shardwriter.writing.engine import ErrorBudget, Notify, Progress, Work, WriteResult
from shardwriter.writing.event_log import MAIN, EventLog
from shardwriter.writing.job import Job, Listing
from shardwriter.writing.messages import ItemPacker, MessageTooLarge, died, pack, unpack_failure
from shardwriter.writing.options import RunOptions
from shardwriter.writing.part import REPORT_S, WorkerResult, merge_results
from shardwriter.writing.pool import Pool, WorkerHandle
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.stages import Stopwatch
from shardwriter.writing.worker_process import (
    END,
    FAILED,
    FINISH,
    INDEX,
    ITEMS,
    RESULT,
    SKIPPED,
    TAKE,
    TELL,
    TYPES,
    WRITE,
    WRITTEN,
    Assignment,
    map_slots,
)

MAX_PARCEL_BYTES: Final = 64 << 20
BATCH_BYTES: Final = 1 << 18  # of items that are sent at once
PENDING_BYTES: Final = 64 << 20  # of items that wait for all workers together
_BATCH_AGE_S: Final = 0.05
_JOBS_PER_WORKER: Final = 4
_FAILURES_S: Final = 0.2  # to wait for others after a failure


def run_process(
    pool: Pool,
    num_workers: int,
    job: Job,
    run: RunDirectory,
    kept: ResumeState,
    options: RunOptions,
    *,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> WriteResult:
    """Write all that is still to be done of a job with worker processes.

    Args:
        pool: Whose template process was started.
        num_workers: How many workers to have.
        job: What to write.
        run: A run directory that has begun.
        kept: What earlier attempts have left.
        options: How.
        progress: Told of the work done.
        notify: Told what a person should know.

    Raises:
        ShardwriterError: An item is at fault, or a worker died; all workers are ended.
    """
    places = Scratch()
    places.append(b"\xff" * 8 * num_workers)
    try:
        parcel, descriptors = _parcel_of(
            Assignment(job, run, kept.for_workers(), options, num_workers, places), notify
        )
        pool.fork(num_workers, parcel, descriptors)
        del parcel
        with (
            map_slots(places, num_workers) as mapped,
            EventLog(options.log_dir, MAIN, start=_work_of(kept)) as log,
        ):
            crew = _Crew(pool, job, kept, mapped, options, _both(progress, log))
            if job.source.random_access and job.source.sendable:
                crew.hand_out()
                num_items = job.num_items or 0
            else:
                num_items = crew.deal()
            done = crew.finish()
            outcome = merge_results(job, kept, done, num_items, crew.seconds)
            log.finish(outcome.work)
        if log.failure is not None:
            outcome.notes.append(log.failure)
    finally:
        places.close()
    if progress is not None:
        progress(outcome.work)
    return outcome


def _both(progress: Progress | None, log: EventLog) -> Progress | None:
    """Have the log told too, if there is one."""
    if not log.is_open:
        return progress

    def tell(work: Work) -> None:
        log.tell(work)
        if progress is not None:
            progress(work)

    return tell


def _work_of(kept: ResumeState) -> Work:
    """Return what earlier attempts have done."""
    return Work(kept.num_done, None, kept.payload_bytes, len(kept.gaps), len(kept.errors))


def _parcel_of(assignment: Assignment, notify: Notify | None) -> tuple[bytes, list[int]]:
    """Pack what workers need; a source that can not be sent keeps its data here.

    Raises:
        OptionError: The map can not be sent.
    """
    source = assignment.job.source
    try:
        return pack(assignment, MAX_PARCEL_BYTES)
    except Exception as error:
        if isinstance(source, PreloadingSource) and source.sendable:
            source.preload(skip_errors=assignment.options.on_error == "skip")
            parcel = _parcel_of(assignment, notify)
            if notify is not None:
                notify(f"items are loaded in one process: the source {_why(error)}")
            return parcel
        if isinstance(error, MessageTooLarge):
            what = f"more than {MAX_PARCEL_BYTES >> 20} MiB belong to the map"
        else:
            what = f"the map can not be sent to another process: {error}"
        raise OptionError(
            what,
            hint="make what it needs when it is first called; or --engine serial",
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, MessageTooLarge):
        return f"takes more than {MAX_PARCEL_BYTES >> 20} MiB, too much to give to each worker"
    return f"can not be sent to others ({error})"


class _Crew:
    """The workers of one job, and what they have told."""

    def __init__(
        self,
        pool: Pool,
        job: Job,
        kept: ResumeState,
        places: memoryview,
        options: RunOptions,
        progress: Progress | None,
    ) -> None:
        self._pool = pool
        self._job = job
        self._kept = kept
        self._places = places
        self._item_timeout_s = options.item_timeout_s
        self._budget = ErrorBudget(options, kept)
        self._progress = progress
        self._seen: dict[int, tuple[int, float]] = {}  # worker -> its item, and since when
        self._told: dict[int, Work] = {}
        self._types = job.encoder(kept).encoder.schema
        self._shards: dict[int, range] = {}
        self._results: dict[int, WorkerResult] = {}
        self._failures: list[BaseException] = []
        self._met_meanwhile: ShardwriterError | None = None
        self._batches: list[bytearray] = []
        self._idle: deque[WorkerHandle] = deque()
        self._watch = Stopwatch("read")
        self._next_report = time.monotonic() + REPORT_S
        self.seconds = self._watch.seconds

    # -- the two ways ------------------------------------------------------------------------------

    def hand_out(self) -> None:
        """Have every shard written by a worker that lists its items itself."""
        num_shards, num_workers = self._job.num_shards, len(self._pool.workers)
        # Frames are moved at one pace, and each job reads what lies between those it moves.
        is_moved = self._job.num_frame_copies and self._job.num_frame_copies == self._job.num_items
        num_jobs = min(num_shards, (1 if is_moved else _JOBS_PER_WORKER) * num_workers)
        self._idle.extend(self._pool.workers)
        for first in range(num_jobs):
            shards = range(first, num_shards, num_jobs)
            if not self._kept.unfinished(shards):
                continue
            while not self._idle:
                self._wait()
            self._order(self._idle.popleft(), WRITE, shards)

    def deal(self) -> int:
        """Send every item to the worker that owns its shard; return T."""
        workers, num_shards = self._pool.workers, self._job.num_shards
        num_workers = len(workers)
        most_bytes = max(BATCH_BYTES, PENDING_BYTES // num_workers)
        for worker in workers:
            self._order(worker, TAKE, range(worker.number, num_shards, num_workers))
        self._batches = [bytearray() for _ in workers]
        packers = [ItemPacker() for _ in workers]
        watch = self._watch
        next_flush = time.monotonic() + _BATCH_AGE_S
        listing = Listing(self._job, self._kept, self._job.num_frame_copies)
        if isinstance(self._job.source, WaitingSource):
            self._job.source.while_waiting(self._meanwhile)
        for index, item in self._listed_items(listing):
            timed = watch.start()
            worker = workers[index % num_shards % num_workers]
            data = self._packed_item(packers[worker.number], index, item)
            batch = self._batches[worker.number]
            if len(data) < BATCH_BYTES:
                batch += INDEX.pack(index)
                batch += data
            if len(batch) + len(data) >= BATCH_BYTES:
                self._flush(worker)
                if len(data) >= BATCH_BYTES:  # not copied once more
                    worker.mailbox.put(ITEMS, INDEX.pack(index), data)
                self._wait(0)
            if (now := time.monotonic()) >= next_flush:
                # A source that is slow does not keep workers waiting.
                for each in workers:
                    self._flush(each)
                self._wait(0)
                next_flush = now + _BATCH_AGE_S
            if timed:
                watch.lap("deal")
                watch.stop()
            while worker.mailbox.pending_bytes > most_bytes:
                with watch.aside("wait"):
                    self._wait()
        for worker in workers:
            self._flush(worker)
            worker.mailbox.put(END, json.dumps(listing.num_items).encode())
        return listing.num_items

    def _listed_items(self, listing: Listing) -> Iterator[tuple[int, Any]]:
        """Yield the items; an error of the source waits for those of earlier items."""
        try:
            yield from listing
        except ShardwriterError as error:
            if error is self._met_meanwhile:
                raise
            for worker in self._pool.workers:
                self._flush(worker)
            self._failures.append(error)
            self._fail()

    def _meanwhile(self) -> None:
        """Take in what happens while the source has no item."""
        try:
            for worker in self._pool.workers:
                self._flush(worker)
            self._wait(0)
        except ShardwriterError as error:
            self._met_meanwhile = error  # by the workers, and not by the source
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
                hint="have the source give what can be pickled, and make the rest in a map; or "
                "--engine serial",
            ) from error

    def _order(self, worker: WorkerHandle, kind: int, shards: range) -> None:
        self._shards[worker.number] = shards
        order = [shards.start, shards.stop, shards.step]
        worker.mailbox.put(kind, json.dumps(order).encode())

    def finish(self) -> list[WorkerResult]:
        """Have the workers finish, and return what each has done."""
        for worker in self._pool.workers:
            worker.mailbox.put(FINISH)
        while len(self._results) < len(self._pool.workers):
            self._wait()
        return [self._results[number] for number in sorted(self._results)]

    # -- what happens meanwhile --------------------------------------------------------------------

    def _wait(self, timeout_s: float = REPORT_S) -> None:
        """Take in what happens."""
        self._take_messages(timeout_s)
        if self._failures:
            self._fail()
        for worker in self._pool.workers:
            if worker.has_ended and worker.number not in self._results:
                shards = _listed(self._shards.get(worker.number, range(0)))
                raise self._located(died(worker.name, worker.status, self._at(worker), shards))
        if self._item_timeout_s is not None:
            self._check_time(self._item_timeout_s)
        if self._progress is not None and (now := time.monotonic()) >= self._next_report:
            self._report(self._progress)
            self._next_report = now + REPORT_S

    def _fail(self) -> NoReturn:
        """Raise a failure; of several that are known the one of the earliest item."""
        # Others may be about to fail at earlier items: those are what a person looks at first.
        stop = time.monotonic() + _FAILURES_S
        while (left := stop - time.monotonic()) > 0 and self._may_fail_earlier():
            self._take_messages(left)
        failures, self._failures = self._failures, []
        raise min(failures, key=_index_of)

    def _may_fail_earlier(self) -> bool:
        first = min(map(_index_of, self._failures))
        return any(
            self._places[worker.number] < first  # -1: it has not begun yet
            for worker in self._pool.workers
            if not worker.has_ended and worker not in self._idle
        )

    def _take_messages(self, timeout_s: float) -> None:
        for worker, kind, data in self._pool.events(timeout_s):
            if kind == FAILED:
                self._failures.append(self._failure(worker, data))
            elif kind == TELL:
                self._told[worker.number] = pickle.loads(data)
            elif kind == TYPES:
                try:
                    self._types.merge(pickle.loads(data))
                except ShardwriterError as error:
                    raise self._located(error) from None
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

    def _at(self, worker: WorkerHandle) -> int | None:
        """Return the item that a worker has at hand."""
        index = self._places[worker.number]
        return index if index >= 0 else None

    def _located(self, error: ShardwriterError) -> ShardwriterError:
        """Say what a person calls the item, where that can be found out here."""
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
            index = self._places[worker.number]
            seen, since = self._seen.get(worker.number, (-1, now))
            if index != seen:
                self._seen[worker.number] = index, now
            elif index >= 0 and now - since > item_timeout_s:
                raise self._located(
                    ItemTimeout(
                        f"the item took more than {item_timeout_s:g} s",
                        index=index,
                        worker=worker.name,
                        hint="look at the item, or allow more time (--item-timeout)",
                    )
                )

    def _report(self, progress: Progress) -> None:
        watch = Stopwatch()
        watch.add(self._watch.seconds)
        num_done, payload_bytes = self._kept.num_done, self._kept.payload_bytes
        num_gaps, num_errors = len(self._kept.gaps), len(self._kept.errors)
        for work in self._told.values():
            num_done += work.num_done
            payload_bytes += work.payload_bytes
            num_gaps += work.num_gaps
            num_errors += work.num_errors
            watch.add(work.seconds)
        num_items = self._job.num_items
        progress(Work(num_done, num_items, payload_bytes, num_gaps, num_errors, watch.seconds))


def _index_of(error: BaseException) -> float:
    """Return the item that an error is about; infinity where it is about none."""
    index = getattr(error, "index", None)
    return float("inf") if index is None else index


def _listed(shards: range) -> str:
    """Name shards: ``shards 0, 4, 8, ...``."""
    if not shards:
        return "nothing yet"
    names = ", ".join(map(str, shards[:4])) + (", ..." if len(shards) > 4 else "")
    return f"shard{'s' if len(shards) > 1 else ''} {names}"
