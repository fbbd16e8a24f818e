"""The serial engine: the reference that every other engine is held against.

It opens N record writers in a ``contextlib2.ExitStack`` and deals the records round-robin::

    items -> load -> map -> encode -> writers[i mod N]
"""

from __future__ import annotations

from collections.abc import Mapping

from contextlib2 import ExitStack

from shardwriter.errors import ShardwriterError
from shardwriter.schema import FeatureSummary
from shardwriter.sources import WaitingSource
from shardwriter.writing.engine import ErrorBudget, Progress, Work, WriteResult
from shardwriter.writing.event_log import EventLog
from shardwriter.writing.job import Job, Listing
from shardwriter.writing.options import RunOptions
from shardwriter.writing.part import PartWriter, WorkerResult, merge_results, num_frame_copies
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.stages import Stopwatch
from shardwriter.writing.worker import new_slot


class _Told:
    """Tells the program of what happens."""

    def __init__(
        self,
        job: Job,
        kept: ResumeState,
        budget: ErrorBudget,
        progress: Progress | None,
        log: EventLog,
    ) -> None:
        self._job = job
        self._kept = kept
        self._budget = budget
        self._progress = progress
        self._log = log

    def tell(self, done: WorkerResult) -> None:
        self._log.tell(done.work())
        if self._progress is not None:
            kept = self._kept
            self._progress(
                Work(
                    kept.num_done + done.num_items,
                    self._job.num_items,
                    kept.payload_bytes + done.payload_bytes,
                    len(kept.gaps) + len(done.gaps),
                    len(kept.errors) + len(done.errors),
                    done.seconds,
                )
            )

    def report_types(self, features: Mapping[str, FeatureSummary]) -> None:
        pass  # there is nobody to disagree with

    def report_error(self, error: ShardwriterError) -> None:
        self._budget.spend(error)


def run_serial(
    job: Job,
    run: RunDirectory,
    kept: ResumeState,
    options: RunOptions,
    *,
    progress: Progress | None = None,
) -> WriteResult:
    """Write all that is still to be done of a job in this process.

    Args:
        job: What to write.
        run: A run directory that has begun.
        kept: What earlier attempts have left.
        options: How.
        progress: Told of the work done.
    """
    shards = kept.unfinished(range(job.num_shards))
    watch = Stopwatch()
    worker = job.worker(0, 1, shards, new_slot())
    items = job.encoder(
        kept, worker, watch, skip_errors=options.on_error == "skip", strict=options.strict
    )
    listing = Listing(job, kept, num_frame_copies(job, options))
    with ExitStack() as stack:
        log = stack.enter_context(EventLog(options.log_dir, "w0", first_step=kept.num_done))
        told = _Told(job, kept, ErrorBudget(options, kept), progress, log)
        journal = run.journal(kept.attempt, 0)
        stack.callback(journal.close)
        part = PartWriter(job, run, kept, options, 0, journal, items, watch, told)
        if isinstance(job.source, WaitingSource):
            job.source.while_waiting(lambda: told.tell(part.done))
            # It would know the part, which knows it: its temporary files are closed at once.
            stack.callback(job.source.while_waiting, _do_nothing)
        stack.callback(part.close)
        part.write(shards, listing, lambda: listing.num_items)
        log.finish(part.done.work())
        if log.failure is not None:
            part.done.notes.append(log.failure)
    outcome = merge_results(job, kept, [part.done], listing.num_items)
    if progress is not None:
        progress(outcome.work)
    return outcome


def _do_nothing() -> None:
    return
