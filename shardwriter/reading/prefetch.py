"""`prefetch`: compute the next items of an iterable in one thread, through a bounded queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Generic, TypeVar

from shardwriter.errors import OptionError

T = TypeVar("T")


def prefetch(iterable: Iterable[T], num_items: int) -> Generator[T]:
    """Yield the items of an iterable, computed ahead in another thread.

    Order and items are unchanged. An error of the iterable is raised in place of its item, with its
    type and traceback. The thread starts with the first item requested, and ends with the iterator:
    when it is exhausted, closed or garbage-collected.

    Args:
        iterable: Iterated over, and closed, in the thread.
        num_items: The most items to compute ahead; 0 for no thread.

    Raises:
        OptionError: ``num_items`` is negative.
    """
    if num_items < 0:
        raise OptionError(f"prefetch of {num_items} items", hint="give a number >= 0")
    return _plain(iterable) if num_items == 0 else _threaded(iterable, num_items)


def _plain(iterable: Iterable[T]) -> Generator[T]:
    yield from iterable


def _threaded(iterable: Iterable[T], num_items: int) -> Generator[T]:
    # The thread has no reference to this generator, so that it can be garbage-collected.
    queue: _Queue[T] = _Queue(num_items)
    thread = threading.Thread(
        target=_fill, args=(queue, iterable), name="shardwriter-prefetch", daemon=True
    )
    del iterable
    thread.start()
    try:
        while queue.wait():
            yield queue.take()
        thread.join()
        if queue.error is not None:
            raise queue.error
    finally:
        queue.stop()
        if thread is not threading.current_thread():
            thread.join()
        queue.error = None  # its traceback refers to frames that refer to the queue


class _Queue(Generic[T]):
    """A bounded queue that the producer can end and the consumer can stop."""

    def __init__(self, num_items: int) -> None:
        self._num_items = num_items
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._ended = False
        self.error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Add an item when there is room, and return True; False once the queue is stopped."""
        with self._changed:
            while len(self._items) >= self._num_items and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None) -> None:
        """Mark the end of the items, with the error that caused it, if any."""
        with self._changed:
            self.error = error
            self._ended = True
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait for an item, and return True; False at the end of the items."""
        with self._changed:
            while not self._items and not self._ended:
                self._changed.wait()
            return bool(self._items)

    def take(self) -> T:
        """Return the next item; call after `wait` has returned True."""
        with self._changed:
            self._changed.notify_all()
            return self._items.popleft()

    def stop(self) -> None:
        """Discard the items, and make `put` return False."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()


def _fill(queue: _Queue[T], iterable: Iterable[T]) -> None:
    error: BaseException | None = None
    iterator: Iterator[T] | None = None
    try:
        iterator = iter(iterable)
        for item in iterator:
            if not queue.put(item):
                break
    except BaseException as raised:  # noqa: BLE001 - raised in the consumer
        error = raised
    try:
        if isinstance(iterator, Generator):
            iterator.close()
    except BaseException as raised:  # noqa: BLE001
        error = error or raised
    queue.end(error)
