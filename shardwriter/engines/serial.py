"""The serial engine: the reference that every other engine is held against.

It opens N record writers in a ``contextlib2.ExitStack`` and deals the records round-robin::

    items -> load -> map -> encode -> writers[i mod N]
"""

from __future__ import annotations

from contextlib2 import ExitStack

from shardwriter.engines import Outcome, Progress, Work
from shardwriter.engines.part import Done, PartWriter, gather
from shardwriter.job import Job
from shardwriter.options import Backend
from shardwriter.rundir import RunDirectory
from shardwriter.stages import Stopwatch
from shardwriter.worker import new_slot


def run_serial(
    job: Job,
    run: RunDirectory,
    *,
    backend: Backend = "native",
    progress: Progress | None = None,
) -> Outcome:
    """Write all shards of a job in this process.

    Args:
        job: What to write.
        run: A run directory that has begun.
        backend: Whose record writers to open.
        progress: Told of the work done.
    """
    shards = range(job.num_shards)
    watch = Stopwatch()
    items = job.encoder(job.worker(0, 1, shards, new_slot()), watch)

    def tell(done: Done) -> None:
        if progress is not None:
            progress(
                Work(
                    done.num_items,
                    job.num_items,
                    done.payload_bytes,
                    len(done.gaps),
                    watch.seconds,
                )
            )

    with ExitStack() as stack:
        journal = run.journal(attempt=0, worker=0)
        stack.callback(journal.close)
        part = PartWriter(job, run, journal, items, watch, tell)
        part.write(shards, job.items(), lambda: part.done.num_items, backend)
    outcome = gather(job.learnt(), [part.done], part.done.num_items)
    if progress is not None:
        progress(outcome.work)
    return outcome
