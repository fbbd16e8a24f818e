"""Queues as sources: items that other threads or processes produce during the write.

A queue ends with an object of its own, so any item is valid: ``b""``, 0, an empty list. A writer
that waits for items uses no CPU and has no time limit.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from shardwriter.errors import OptionError, RunError

P = ParamSpec("P")
T = TypeVar("T")

_TICK_S: Final = 0.1
_SHUT_DOWN: Final[tuple[type[Exception], ...]] = tuple(
    filter(None, [getattr(queue, "ShutDown", None)])  # of Python 3.13
)


class _End:
    """The type of END; END is the same object in every process."""

    def __repr__(self) -> str:
        return "END"

    def __reduce__(self) -> str:
        return "END"


END: Final = _End()
"""Put this into a ``queue.Queue`` or ``multiprocessing.Queue`` after the last item."""


class ItemQueue(Iterator[Any]):
    """A queue between the threads that produce items and the thread that writes them.

    As a context manager it belongs to a single producer: leaving the block closes the queue, and an
    exception in the block ends the write with that exception. Several producers call :meth:`put`,
    and the thread that waits for all of them calls :meth:`close`::

        items = sw.ItemQueue()

        def produce():
            with items:
                for frame in camera:
                    items.put({"image": frame})

        threading.Thread(target=produce).start()
        sw.write(items, "out/frames@16")

    A queue is read once, so its write cannot be resumed.

    Args:
        max_items: The capacity; :meth:`put` blocks while the queue is full.

    Raises:
        OptionError: ``max_items`` is not an integer of 1 or more.
    """

    def __init__(self, max_items: int = 1024) -> None:
        if type(max_items) is not int or max_items < 1:
            raise OptionError(f"max_items is {max_items!r}", hint="give a number of 1 or more")
        self._max_items = max_items
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self.meanwhile: Callable[[], None] | None = None  # called while waiting for an item

    def put(self, item: Any) -> None:
        """Add an item; block while the queue is full.

        Raises:
            OptionError: The queue was closed.
            RunError: The write has ended.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or len(self._items) < self._max_items,
            )
            if self._is_stopped:
                raise RunError(
                    "cannot put an item: the write that reads this queue has ended",
                    hint="shardwriter.write has returned, or raised the reason",
                )
            if self._is_closed:
                raise OptionError(
                    "cannot put an item: the queue is closed", hint="close it after the last item"
                )
            self._items.append(item)
            self._changed.notify_all()

    @property
    def is_stopped(self) -> bool:
        """Whether the write that reads the queue has ended."""
        return self._is_stopped

    @property
    def _is_over(self) -> bool:
        return self._is_closed or self._is_stopped

    def close(self) -> None:
        """Mark the end of the items; closing twice does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Close the queue with an error, which ends the write after the items put so far."""
        with self._changed:
            if not self._is_over:
                self._error = error
                self._is_closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop taking items: waiting producers wake up with an error."""
        with self._changed:
            self._is_stopped = True
            self._items.clear()
            self._changed.notify_all()

    def __enter__(self) -> ItemQueue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.fail(error)

    def __next__(self) -> Any:
        while True:
            with self._changed:
                timeout_s = None if self.meanwhile is None else _TICK_S
                self._changed.wait_for(lambda: self._items or self._is_over, timeout_s)
                if self._items:
                    item = self._items.popleft()
                    self._changed.notify_all()
                    return item
                if self._is_over:
                    error, self._error = self._error, None
                    if error is not None:
                        raise error
                    raise StopIteration
            if self.meanwhile is not None:
                self.meanwhile()


class QueueItems(Iterator[Any]):
    """The items of a queue of another class, up to END or its shutdown.

    Args:
        items: A ``queue.Queue``, ``queue.SimpleQueue``, ``multiprocessing.Queue``, or similar.
    """

    def __init__(self, items: Any) -> None:
        self._items = items
        self._is_over = False
        self.meanwhile: Callable[[], None] | None = None

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            item = self._get()
        except _SHUT_DOWN:
            item = END
        if item is END:
            self._is_over = True
            raise StopIteration
        return item

    def _get(self) -> Any:
        while self.meanwhile is not None and not _is_simple(self._items):
            try:
                return self._items.get(timeout=_TICK_S)
            except queue.Empty:
                self.meanwhile()
        return self._items.get()


def is_queue(data: Any) -> bool:
    """Return whether an object is a queue of Python's, or a manager's proxy of one."""
    if isinstance(data, (queue.Queue, queue.SimpleQueue)):
        return True
    proxy = getattr(sys.modules.get("multiprocessing.managers"), "BaseProxy", None)
    if isinstance(proxy, type) and isinstance(data, proxy):
        return getattr(getattr(data, "_token", None), "typeid", None) in ("Queue", "JoinableQueue")
    names = ("Queue", "SimpleQueue")
    kinds = [getattr(sys.modules.get("multiprocessing.queues"), name, None) for name in names]
    return any(isinstance(kind, type) and isinstance(data, kind) for kind in kinds)


def _is_simple(data: Any) -> bool:
    """Return whether the queue's ``get`` has no timeout."""
    kind = getattr(sys.modules.get("multiprocessing.queues"), "SimpleQueue", None)
    return isinstance(kind, type) and isinstance(data, kind)


def stop_queues_on_exit(write: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it stops its ItemQueues when it returns or raises.

    The first parameter is the source: a queue, or a mapping from splits to queues. The decorator
    also covers errors in the options: otherwise a producer would wait for ever.
    """

    @wraps(write)
    def stopping(*args: P.args, **kwargs: P.kwargs) -> T:
        source = args[0] if args else kwargs.get("source")
        try:
            return write(*args, **kwargs)
        finally:
            for given in source.values() if isinstance(source, Mapping) else [source]:
                if isinstance(given, ItemQueue):
                    given.stop()

    return stopping
