"""Torch's loader workers with supervision: a dead or slow worker raises an error at once.

The loader process waits for batches and for exits of its workers together, by their sentinels::

    loader --index_queue(k)--> worker k --result queue--> [pin_memory thread] --> loader
            task (plan, j)        (True, batch, seconds) or (False, failure, None)

It relies on internals of torch: `_MultiProcessingDataLoaderIter` calls `_try_get_data` until it
returns a batch, and has `_workers`, `_task_info`, `_rcvd_idx`, `_worker_pids_set` and
`_shutdown_workers`. All of them exist since torch 1.2.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from shardwriter.errors import ItemTimeout, OptionError, WorkerDied
from shardwriter.reading.torch.batches import NO_RECORD, Sent, unpacked

if TYPE_CHECKING:
    from shardwriter.reading.epochs import Run
    from shardwriter.reading.torch import ShardLoader

_POLL_S: Final = 0.25
_JOIN_S: Final = 5.0
_GRACE_S: Final = 0.5

# Raised if a worker exits: by torch, or because data that it shared is gone.
_EXIT_ERRORS: Final = (RuntimeError, OSError, EOFError)


@dataclass(frozen=True)
class Limits:
    """Timeouts of a loader, in seconds; None for no limit.

    Attributes:
        start_timeout_s: For the first batch of an iteration, including the start of the workers.
        item_timeout_s: For every other batch.
    """

    start_timeout_s: float | None = None
    item_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise OptionError(f"{name} is {value!r}", hint="give seconds, or None")


@dataclass(frozen=True)
class CurrentTask:
    """The batch and record that a worker is processing, for error messages.

    Attributes:
        batch: The batch and its records, in words.
        path: The shard of the record that is being mapped; None if not known.
        record_index: The record's number in the shard.
        index: The record's item.
        shard: The shard's number.
    """

    batch: str
    path: str | None = None
    record_index: int | None = None
    index: int | None = None
    shard: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The location, as keyword arguments of an error."""
        return {name: value for name, value in vars(self).items() if name != "batch"}


class WatchedWorkers(_MultiProcessingDataLoaderIter):
    """The iterator of a loader with workers.

    Args:
        loader: The loader.
        limits: Its timeouts.
        run: The current iteration.
        describe_task: Returns, for task i and worker k, the batch and record in work.
    """

    def __init__(
        self,
        loader: ShardLoader,
        limits: Limits,
        run: Run,
        describe_task: Callable[[int, int], CurrentTask],
    ) -> None:
        self._limits = limits
        self._describe_task = describe_task
        self.run = run
        self._since = monotonic()
        self._shutdown: bool = False
        self._worker_pids_set: bool = False
        super().__init__(loader)
        self._ignore_sigchld()

    def restart(
        self, loader: ShardLoader, run: Run, describe_task: Callable[[int, int], CurrentTask]
    ) -> None:
        """Begin another iteration with persistent workers; if one has died, kill all of them."""
        self._describe_task, self.run = describe_task, run
        try:
            self._raise_if_dead()
            self._reset(loader)
        except BaseException as error:
            # A worker may have died while sending a batch of the last iteration.
            if isinstance(error, _EXIT_ERRORS):
                self._raise_if_died_soon(error)
            self.kill()
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._since = monotonic()
        self._num_given = 0
        super()._reset(loader, first_iter)

    def __next__(self) -> Any:
        if self._num_given:
            self._since = monotonic()
        # Avoid a reference cycle of a frame and its error: it would keep the loader alive, and
        # workers can not be shut down from the garbage collector.
        try:
            try:
                self._handle_sigchld()
                self._raise_if_dead()
                delivery = super().__next__()
            finally:
                self._ignore_sigchld()
        except StopIteration:
            raise
        except BaseException as error:
            self._ignore_sigchld()
            if isinstance(error, _EXIT_ERRORS):
                self._raise_if_died_soon(error)
            self.kill()
            raise
        self._num_given += 1
        return delivery

    def _handle_sigchld(self) -> None:
        """Enable torch's SIGCHLD handler, which raises if a worker exits during a wait for a batch.

        It interrupts the read of a half-sent batch. At other times it would raise in the caller's
        code.
        """
        if not self._worker_pids_set and not self._shutdown:
            pids = tuple(process.pid for process in self._workers)
            signal_handling._set_worker_pids(id(self), pids)
            self._worker_pids_set = True

    def _ignore_sigchld(self) -> None:
        if self._worker_pids_set:
            self._worker_pids_set = False
            signal_handling._remove_worker_pids(id(self))

    def _try_get_data(self, timeout: float = _POLL_S) -> tuple[bool, Any]:
        # Torch calls this again if there is no batch yet.
        poll_s = min(timeout, _POLL_S)
        reader = None if self._pin_memory else getattr(self._data_queue, "_reader", None)
        if reader is not None:
            sentinels = [worker.sentinel for worker in self._workers]
            if reader not in wait([reader, *sentinels], poll_s):
                self._raise_if_dead_or_late()
                return False, None
            found: tuple[bool, Any] = super()._try_get_data(_JOIN_S)
        else:
            found = super()._try_get_data(poll_s)
            if not found[0]:
                self._raise_if_dead_or_late()
        return _loaded(found)

    def _raise_if_dead_or_late(self) -> None:
        self._raise_if_dead()
        first = not self._num_given
        limit = self._limits.start_timeout_s if first else self._limits.item_timeout_s
        waited = monotonic() - self._since
        if limit is None or waited < limit:
            return
        task = self._task_info.get(self._rcvd_idx)
        if task is None:  # persistent workers have not yet begun the new iteration
            return
        worker_index = task[0]
        pid = self._workers[worker_index].pid
        current = self._describe_task(self._rcvd_idx, worker_index)
        option = "start_timeout_s" if first else "item_timeout_s"
        raise ItemTimeout(
            f"no batch for {waited:.1f} s ({option}={limit:g}): waiting for {current.batch}",
            hint=f"check for a slow map or storage; raise {option}, or set it to None to wait "
            "without a limit",
            worker=worker_name(worker_index, pid),
            **current.fields,
        )

    def _raise_if_died_soon(self, error: BaseException) -> None:
        """Raise the error of a worker that has just exited, if one has, and kill the others."""
        ended = wait([process.sentinel for process in self._workers], _POLL_S)
        for process in self._workers:
            if process.sentinel in ended:
                process.join(_JOIN_S)  # its pipes close shortly before it exits
        dead = self._dead()
        if dead is not None:
            self.kill()
            try:
                raise dead from error
            finally:
                del dead, error

    def _raise_if_dead(self) -> None:
        dead = self._dead()
        if dead is not None:
            try:
                raise dead
            finally:
                del dead

    def _dead(self) -> WorkerDied | None:
        """Return the error of a worker that exited with work to do; None if there is none."""
        for worker_index, process in enumerate(self._workers):
            if self._shutdown or process.is_alive():
                continue
            tasks = (idx for idx, info in self._task_info.items() if info[0] == worker_index)
            idx = min((i for i in tasks if len(self._task_info[i]) == 1), default=None)
            current = CurrentTask("") if idx is None else self._describe_task(idx, worker_index)
            how, hint = _how_ended(process.exitcode)
            doing = f" while computing {current.batch}" if current.batch else ""
            worker = worker_name(worker_index, process.pid)
            return WorkerDied(f"{how}{doing}", hint=hint, worker=worker, **current.fields)
        return None

    def close(self) -> None:
        """Shut down the workers, and wait for them."""
        self._shutdown_workers()

    def stop(self) -> None:
        """Shut down the workers; kill those that do not exit within a moment."""
        if not self._shutdown:
            self._workers_done_event.set()
            for queue in self._index_queues:
                queue.put(None)
            until = monotonic() + _GRACE_S
            for process in self._workers:
                process.join(max(0.0, until - monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill the workers, and wait for them.

        A dead worker may hold the lock of a queue or an event forever, so no lock is taken.
        """
        if self._shutdown:
            return
        self._shutdown = True
        self._ignore_sigchld()
        if self._pin_memory:
            self._pin_memory_thread_done_event.set()
            self._worker_result_queue.put((None, None))
        for process in self._workers:
            process.kill()
        for process in self._workers:
            process.join(_JOIN_S)
        if self._pin_memory:
            self._pin_memory_thread.join(_JOIN_S)
        for queue in (*self._index_queues, self._worker_result_queue):
            queue.cancel_join_thread()
            queue.close()


def _loaded(found: tuple[bool, Any]) -> tuple[bool, Any]:
    """Return a delivery with its batch unpickled, even if torch discards it: it has open files."""
    if found[0] and isinstance(found[1], tuple) and isinstance(found[1][1], tuple):
        index, (is_made, batch, seconds) = found[1]
        batch = batch.load() if isinstance(batch, Sent) else unpacked(batch)
        return True, (index, (is_made, batch, seconds))
    return found


def current_record(current: Any, worker_index: int) -> int | None:
    """Return the record that a worker is mapping, from shared memory; None if it maps none."""
    return _shared(current, worker_index, 1)


def current_batch(current: Any, worker_index: int) -> int | None:
    """Return the batch that a worker is computing, from shared memory; None if there is none."""
    return _shared(current, worker_index, 2)


def _shared(current: Any, worker_index: int, column: int) -> int | None:
    number = int(current[worker_index, column])
    return None if number == NO_RECORD else number


def worker_name(worker_index: int, pid: int | None) -> str:
    """Return the name of a loader worker in error messages."""
    return f"loader worker {worker_index} (pid {pid})"


def _how_ended(code: int | None) -> tuple[str, str]:
    alone = "run with num_workers=0 to debug it in this process"
    if code == -signal.SIGKILL:
        return (
            "it was killed (SIGKILL)",
            "the system kills processes when memory runs out: use fewer workers, a smaller "
            "batch_size or prefetch_factor",
        )
    if code is not None and code < 0:
        name = f"signal {-code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
        return f"it was killed by {name}", f"native code called by the map may crash; {alone}"
    with_code = "" if code is None else f" with code {code}"
    return f"it exited{with_code}", f"look for os._exit in the map; {alone}"
