"""Choose the engine of a write, and its number of workers.

The pool's modules are imported only if a pool is started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shardwriter.writing.engine import Engine, Progress, WriteResult
from shardwriter.writing.job import Job
from shardwriter.writing.notices import Notify
from shardwriter.writing.options import RunOptions
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.serial import run_serial

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = (
    Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
_LONG_S: Final = 5.0  # of a longer write the user wants to know how to speed it up


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its cgroup's quota.

    A container often sees all cores of its host but has CPU time for only a few.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    quota = _cgroup_quota()
    return cores if quota is None else max(1, min(cores, round(quota)))


def _cgroup_quota() -> float | None:
    """Return the CPU quota of the cgroup in cores; None without one."""
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text().split()
        else:
            quota, period = (path.read_text() for path in _CGROUP_V1)
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ArithmeticError):  # "max", or an unknown format
        return None


@contextmanager
def open_engine(options: RunOptions, num_shards: int | None = None) -> Iterator[Engine]:
    """Start an engine early, so that a pool gets ready while the source is opened.

    Args:
        options: ``engine``, ``backend``, ``workers`` and ``item_timeout_s`` decide.
        num_shards: Number of shards, N, if known already; more workers would be idle.
    """

    def serial(
        job: Job, run: RunDirectory, resume_state: ResumeState, progress: Progress | None, _: Notify
    ) -> WriteResult:
        return run_serial(job, run, resume_state, options, progress=progress)

    if options.engine == "serial" or options.backend != "native":
        yield serial
        return
    max_workers = usable_cores() if options.workers is None else options.workers
    with_timeout = options.item_timeout_s is not None
    if min(max_workers, num_shards or max_workers) == 1 and not with_timeout:
        yield _noting_idle_workers(serial, options, max_workers)
        return
    from shardwriter.writing.pool import start_pool
    from shardwriter.writing.process import run_process

    with start_pool() as pool:

        def process(
            job: Job,
            run: RunDirectory,
            resume_state: ResumeState,
            progress: Progress | None,
            notify: Notify,
        ) -> WriteResult:
            num_unfinished = len(resume_state.unfinished(range(job.num_shards)))
            num_workers = max(1, min(max_workers, num_unfinished))
            if job.num_items is not None:
                num_workers = max(1, min(num_workers, job.num_items))
            if num_workers == 1 and not with_timeout:
                return serial(job, run, resume_state, progress, notify)
            return run_process(
                pool,
                num_workers,
                job,
                run,
                resume_state,
                options,
                progress=progress,
                notify=notify,
            )

        yield _noting_idle_workers(process, options, max_workers)


def _noting_idle_workers(engine: Engine, options: RunOptions, max_workers: int) -> Engine:
    """Return the engine with a note about idle workers.

    The note comes at once if the user set the number of workers, else after a long write.
    """

    def run(
        job: Job,
        run: RunDirectory,
        resume_state: ResumeState,
        progress: Progress | None,
        notify: Notify,
    ) -> WriteResult:
        note = (
            f"only {job.num_shards} of {max_workers} workers have work, as each shard is written "
            f"by one: use {max_workers} shards or more"
        )
        has_idle = job.num_shards < max_workers
        if has_idle and options.workers is not None:
            notify(note)
        started = time.monotonic()
        result = engine(job, run, resume_state, progress, notify)
        if has_idle and options.workers is None and time.monotonic() - started > _LONG_S:
            notify(note)
        return result

    return run
