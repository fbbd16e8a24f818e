"""Torch's own loader workers, watched: one that died or that takes too long is told at once.

The loader process waits for batches and for the ends of its workers together, by their sentinels::

    loader --index_queue(k)--> worker k --result queue--> [pin_memory thread] --> loader
            task (plan, j)        (True, batch, seconds) or (False, failure, None)

Of torch this relies on `_MultiProcessingDataLoaderIter` asking `_try_get_data` until it has
something, on `_workers`, `_task_info`, `_rcvd_idx` and `_worker_pids_set`, and on
`_shutdown_workers`; all of them have been there since torch 1.2.
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

_LOOK_S: Final = 0.25
_JOIN_S: Final = 5.0
_GRACE_S: Final = 0.5

# What may be raised where a worker ends: by torch, or because what it sent has gone with it.
_ENDS: Final = (RuntimeError, OSError, EOFError)


@dataclass(frozen=True)
class Limits:
    """How long a loader waits; None for as long as it takes.

    Attributes:
        start_timeout_s: For the first batch of an iteration, workers' start included.
        item_timeout_s: For every other batch.
    """

    start_timeout_s: float | None = None
    item_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise OptionError(f"{name} is {value!r}", hint="give seconds, or None")


@dataclass(frozen=True)
class AtHand:
    """What a worker is at, for a message.

    Attributes:
        batch: The batch and its records, in words.
        path: The shard of the record that it maps; None where that is not known.
        record_index: Its place there.
        index: Its item.
        shard: The number of the shard.
    """

    batch: str
    path: str | None = None
    record_index: int | None = None
    index: int | None = None
    shard: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an error that say where."""
        return {name: value for name, value in vars(self).items() if name != "batch"}


class WatchedWorkers(_MultiProcessingDataLoaderIter):
    """The iterator of a loader with workers.

    Args:
        loader: Whose batches they make.
        limits: How long to wait for one.
        run: The iteration that they work for.
        at_hand: Tells what worker k is at who was given the loader's i-th task.
    """

    def __init__(
        self, loader: ShardLoader, limits: Limits, run: Run, at_hand: Callable[[int, int], AtHand]
    ) -> None:
        self._limits = limits
        self._tell_at_hand = at_hand
        self.run = run
        self._since = monotonic()
        self._shutdown: bool = False
        self._worker_pids_set: bool = False
        super().__init__(loader)
        self._unlisten()

    def work_for(
        self, loader: ShardLoader, run: Run, at_hand: Callable[[int, int], AtHand]
    ) -> None:
        """Let workers that are kept begin another iteration; if one has died, end all of them."""
        self._tell_at_hand, self.run = at_hand, run
        try:
            self._raise_if_dead()
            self._reset(loader)
        except BaseException as error:
            # It may have died with a batch of the last iteration still to be sent.
            if isinstance(error, _ENDS):
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
        # No frame may hold an error that holds the frame: such a ring keeps the loader, and workers
        # that are found with it by the garbage collector can not be told to end.
        try:
            try:
                self._listen()
                self._raise_if_dead()
                delivery = super().__next__()
            finally:
                self._unlisten()
        except StopIteration:
            raise
        except BaseException as error:
            self._unlisten()
            if isinstance(error, _ENDS):
                self._raise_if_died_soon(error)
            self.kill()
            raise
        self._num_given += 1
        return delivery

    def _listen(self) -> None:
        """Let torch's handler of SIGCHLD raise where a worker ends: while we wait for a batch.

        It is what ends a read of half a batch. Elsewhere it would raise in the caller's own code.
        """
        if not self._worker_pids_set and not self._shutdown:
            pids = tuple(process.pid for process in self._workers)
            signal_handling._set_worker_pids(id(self), pids)
            self._worker_pids_set = True

    def _unlisten(self) -> None:
        if self._worker_pids_set:
            self._worker_pids_set = False
            signal_handling._remove_worker_pids(id(self))

    def _try_get_data(self, timeout: float = _LOOK_S) -> tuple[bool, Any]:
        # Torch asks again where there is nothing yet.
        look_s = min(timeout, _LOOK_S)
        reader = None if self._pin_memory else getattr(self._data_queue, "_reader", None)
        if reader is not None:
            sentinels = [worker.sentinel for worker in self._workers]
            if reader not in wait([reader, *sentinels], look_s):
                self._raise_what_is_wrong()
                return False, None
            found: tuple[bool, Any] = super()._try_get_data(_JOIN_S)
        else:
            found = super()._try_get_data(look_s)
            if not found[0]:
                self._raise_what_is_wrong()
        return _loaded(found)

    def _raise_what_is_wrong(self) -> None:
        self._raise_if_dead()
        first = not self._num_given
        limit = self._limits.start_timeout_s if first else self._limits.item_timeout_s
        waited = monotonic() - self._since
        if limit is None or waited < limit:
            return
        task = self._task_info.get(self._rcvd_idx)
        if task is None:  # workers that are kept have not yet taken notice of a new iteration
            return
        worker_index = task[0]
        pid = self._workers[worker_index].pid
        at_hand = self._tell_at_hand(self._rcvd_idx, worker_index)
        option = "start_timeout_s" if first else "item_timeout_s"
        raise ItemTimeout(
            f"no batch for {waited:.1f} s ({option}={limit:g}): it has not made {at_hand.batch}",
            hint=f"is the map or the storage slow? A larger {option} waits longer, None for ever",
            worker=worker_name(worker_index, pid),
            **at_hand.fields,
        )

    def _raise_if_died_soon(self, error: BaseException) -> None:
        """Raise the error of a worker whose end may not have been seen yet, and end the others."""
        ended = wait([process.sentinel for process in self._workers], _LOOK_S)
        for process in self._workers:
            if process.sentinel in ended:
                process.join(_JOIN_S)  # its files are closed a little before
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
        """Return the error of a worker that ended although it has work to do."""
        for worker_index, process in enumerate(self._workers):
            if self._shutdown or process.is_alive():
                continue
            tasks = (idx for idx, info in self._task_info.items() if info[0] == worker_index)
            idx = min((i for i in tasks if len(self._task_info[i]) == 1), default=None)
            at_hand = AtHand("") if idx is None else self._tell_at_hand(idx, worker_index)
            how, hint = _how_ended(process.exitcode)
            doing = f" while it made {at_hand.batch}" if at_hand.batch else ""
            worker = worker_name(worker_index, process.pid)
            return WorkerDied(f"{how}{doing}", hint=hint, worker=worker, **at_hand.fields)
        return None

    def close(self) -> None:
        """End the workers as they like it, and wait for them."""
        self._shutdown_workers()

    def stop(self) -> None:
        """End the workers, and wait no longer than a moment for one that is making a batch."""
        if not self._shutdown:
            self._workers_done_event.set()
            for queue in self._index_queues:
                queue.put(None)
            until = monotonic() + _GRACE_S
            for process in self._workers:
                process.join(max(0.0, until - monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the workers whatever they are doing, and wait for them; then nothing is left.

        One that died may hold the lock of a queue or an event for ever, so nothing is asked of it.
        """
        if self._shutdown:
            return
        self._shutdown = True
        self._unlisten()
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
    """Return what has come with its batch, also if it is then thrown away: it holds open files."""
    if found[0] and isinstance(found[1], tuple) and isinstance(found[1][1], tuple):
        index, (is_made, batch, seconds) = found[1]
        batch = batch.load() if isinstance(batch, Sent) else unpacked(batch)
        return True, (index, (is_made, batch, seconds))
    return found


def record_at_hand(at_hand: Any, worker_index: int) -> int | None:
    """Return the record that a worker maps, from the memory that it shares; None for none."""
    return _shared(at_hand, worker_index, 1)


def batch_at_hand(at_hand: Any, worker_index: int) -> int | None:
    """Return the batch that a worker makes, likewise."""
    return _shared(at_hand, worker_index, 2)


def _shared(at_hand: Any, worker_index: int, column: int) -> int | None:
    number = int(at_hand[worker_index, column])
    return None if number == NO_RECORD else number


def worker_name(worker_index: int, pid: int | None) -> str:
    """Return what errors call a loader worker."""
    return f"loader worker {worker_index} (pid {pid})"


def _how_ended(code: int | None) -> tuple[str, str]:
    alone = "num_workers=0 has it happen where you can see it"
    if code == -signal.SIGKILL:
        return (
            "it was killed (SIGKILL)",
            "the system does this when memory runs out: use fewer workers, a smaller batch_size "
            "or prefetch_factor",
        )
    if code is not None and code < 0:
        name = f"signal {-code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
        return f"it was ended by {name}", f"native code that a map calls does this; {alone}"
    told = "" if code is None else f" with code {code}"
    return f"it ended itself{told}", f"look for os._exit in the map; {alone}"
