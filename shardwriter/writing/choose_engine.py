"""Which engine does the work, and how many workers it has.

What a pool needs is imported when there is one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shardwriter.writing.engine import Engine, Notify, Progress, WriteResult
from shardwriter.writing.job import Job
from shardwriter.writing.options import RunOptions
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.serial import run_serial

# How many processors this process may use.

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = (
    Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by its cgroup's quota.

    A container often sees all cores of its host, and may use the time of a few.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has none
        cores = os.cpu_count() or 1
    quota = _quota()
    return cores if quota is None else max(1, min(cores, round(quota)))


def _quota() -> float | None:
    """Return the cores that a cgroup's quota amounts to; None where none is known."""
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text().split()
        else:
            quota, period = (path.read_text() for path in _CGROUP_V1)
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ArithmeticError):  # "max", or nothing that is known
        return None


_LONG_S: Final = 5.0  # a write that takes longer is worth a word on how to make it faster


@contextmanager
def open_engine(options: RunOptions, num_shards: int | None = None) -> Iterator[Engine]:
    """Start what the engine needs, early: a pool gets ready while the source is opened.

    Args:
        options: Who does the work.
        num_shards: N, where it is known already; more workers would have no work.
    """

    def serial(
        job: Job, run: RunDirectory, kept: ResumeState, progress: Progress | None, _: Notify
    ) -> WriteResult:
        return run_serial(job, run, kept, options, progress=progress)

    if options.engine == "serial" or options.backend != "native":
        yield serial
        return
    most = usable_cores() if options.workers is None else options.workers
    with_timeout = options.item_timeout_s is not None
    if min(most, num_shards or most) == 1 and not with_timeout:
        yield _telling_of_idle(serial, options, most)
        return
    from shardwriter.writing.pool import start_pool
    from shardwriter.writing.process import run_process

    with start_pool() as pool:

        def process(
            job: Job,
            run: RunDirectory,
            kept: ResumeState,
            progress: Progress | None,
            notify: Notify,
        ) -> WriteResult:
            num_workers = max(1, min(most, len(kept.unfinished(range(job.num_shards)))))
            if job.num_items is not None:
                num_workers = max(1, min(num_workers, job.num_items))
            if num_workers == 1 and not with_timeout:
                return serial(job, run, kept, progress, notify)
            return run_process(
                pool,
                num_workers,
                job,
                run,
                kept,
                options,
                progress=progress,
                notify=notify,
            )

        yield _telling_of_idle(process, options, most)


def _telling_of_idle(engine: Engine, options: RunOptions, most: int) -> Engine:
    """Have people told of workers without work: at once if they asked for them, else if it cost."""

    def telling(
        job: Job, run: RunDirectory, kept: ResumeState, progress: Progress | None, notify: Notify
    ) -> WriteResult:
        idle = (
            f"a shard is written by one process, so {job.num_shards} of {most} workers have work: "
            f"{most} shards or more would use all"
        )
        is_idle = job.num_shards < most
        if is_idle and options.workers is not None:
            notify(idle)
        started = time.monotonic()
        outcome = engine(job, run, kept, progress, notify)
        if is_idle and options.workers is None and time.monotonic() - started > _LONG_S:
            notify(idle)
        return outcome

    return telling
