"""The serial engine: one process, the reference for the bytes of every other engine.

It writes one part with all N shards, in this process
(:class:`~shardwriter.writing.part.PartWriter` opens them and writes record i to shard i mod N)::

    items -> load -> map -> encode -> files[i mod N]
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
from shardwriter.writing.stages import StageTimer
from shardwriter.writing.worker import new_slot


class _Reporter:
    """Reports a part's progress to the caller and the event log; counts its errors."""

    def __init__(
        self,
        job: Job,
        resume_state: ResumeState,
        budget: ErrorBudget,
        progress: Progress | None,
        log: EventLog,
    ) -> None:
        self._job = job
        self._resume_state = resume_state
        self._budget = budget
        self._progress = progress
        self._log = log

    def report_progress(self, done: WorkerResult) -> None:
        self._log.report(done.work())
        if self._progress is not None:
            earlier = self._resume_state
            self._progress(
                Work(
                    earlier.num_done + done.num_items,
                    self._job.num_items,
                    earlier.payload_bytes + done.payload_bytes,
                    len(earlier.gaps) + len(done.gaps),
                    len(earlier.errors) + len(done.errors),
                    done.seconds,
                )
            )

    def report_types(self, features: Mapping[str, FeatureSummary]) -> None:
        pass  # no other worker whose types could conflict

    def report_error(self, error: ShardwriterError) -> None:
        self._budget.spend(error)


def run_serial(
    job: Job,
    run: RunDirectory,
    resume_state: ResumeState,
    options: RunOptions,
    *,
    progress: Progress | None = None,
) -> WriteResult:
    """Write the missing records of a job in this process.

    Args:
        job: What to write.
        run: A run directory that has begun.
        resume_state: What earlier attempts have written.
        options: Options that do not change bytes.
        progress: Called with the progress.
    """
    shards = resume_state.unfinished(range(job.num_shards))
    timer = StageTimer()
    worker = job.worker(0, 1, shards, new_slot())
    items = job.encoder(
        resume_state, worker, timer, skip_errors=options.on_error == "skip", strict=options.strict
    )
    listing = Listing(job, resume_state, num_frame_copies(job, options))
    with ExitStack() as stack:
        log = stack.enter_context(EventLog(options.log_dir, "w0", first_step=resume_state.num_done))
        reporter = _Reporter(job, resume_state, ErrorBudget(options, resume_state), progress, log)
        journal = run.journal(resume_state.attempt, 0)
        stack.callback(journal.close)
        part = PartWriter(job, run, resume_state, options, 0, journal, items, timer, reporter)
        if isinstance(job.source, WaitingSource):
            job.source.while_waiting(lambda: reporter.report_progress(part.done))
            # Break the reference cycle, so that the source's temporary files are closed at once.
            stack.callback(job.source.while_waiting, _do_nothing)
        stack.callback(part.close)
        part.write(shards, listing, lambda: listing.num_items)
        log.finish(part.done.work())
        if log.failure is not None:
            part.done.notes.append(log.failure)
    result = merge_results(job, resume_state, [part.done], listing.num_items)
    if progress is not None:
        progress(result.work)
    return result


def _do_nothing() -> None:
    return
