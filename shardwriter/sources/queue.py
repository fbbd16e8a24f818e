"""Items that other threads or processes make while they are written: queues.

What ends a queue is an object of its own, so that any item is an item: ``b""``, 0, an empty list.
A writer that waits takes no time, and has no time limit.
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
    """The type of END: one object in every process."""

    def __repr__(self) -> str:
        return "END"

    def __reduce__(self) -> str:
        return "END"


END: Final = _End()
"""Put into a ``queue.Queue`` or ``multiprocessing.Queue`` behind the last item."""


class ItemQueue(Iterator[Any]):
    """A queue between threads that make items and the one that writes them.

    As a context manager it belongs to the one producer: leaving the block closes the queue, and an
    error in it ends the write with that error. Several producers call :meth:`put`, and whoever
    waits for all of them calls :meth:`close`::

        items = sw.ItemQueue()

        def produce():
            with items:
                for frame in camera:
                    items.put({"image": frame})

        threading.Thread(target=produce).start()
        sw.write(items, "out/frames@16")

    It can be read once, so a write of it can not be resumed.

    Args:
        max_items: How many items may wait; :meth:`put` blocks while there are as many.

    Raises:
        OptionError: ``max_items`` is no number from 1 on.
    """

    def __init__(self, max_items: int = 1024) -> None:
        if type(max_items) is not int or max_items < 1:
            raise OptionError(f"max_items is {max_items!r}: it is a number from 1 on")
        self._max_items = max_items
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self.meanwhile: Callable[[], None] | None = None  # called now and then by who waits

    def put(self, item: Any) -> None:
        """Add an item; waits while the queue is full.

        Raises:
            OptionError: The queue was closed.
            RunError: The write has ended, and nobody takes items any more.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or len(self._items) < self._max_items,
            )
            if self._is_stopped:
                raise RunError(
                    "nobody takes items out of this queue any more: the write has ended",
                    hint="the reason is what shardwriter.write has raised",
                )
            if self._is_closed:
                raise OptionError("an item comes after the queue was closed", hint="close it last")
            self._items.append(item)
            self._changed.notify_all()

    @property
    def is_stopped(self) -> bool:
        """Whether a write has ended that took items out of it."""
        return self._is_stopped

    @property
    def _is_over(self) -> bool:
        return self._is_closed or self._is_stopped

    def close(self) -> None:
        """Say that no item comes any more; closing twice does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Close the queue with an error: it ends the write behind the items that are there."""
        with self._changed:
            if not self._is_over:
                self._error = error
                self._is_closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Take no items any more: producers that wait are woken, and get an error."""
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
    """The items of somebody else's queue, up to END or to its shutdown.

    Args:
        items: A ``queue.Queue``, ``queue.SimpleQueue``, ``multiprocessing.Queue``, or the like.
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
    """Tell whether an object is a queue of Python's own; those of a manager are known by name."""
    if isinstance(data, (queue.Queue, queue.SimpleQueue)):
        return True
    proxy = getattr(sys.modules.get("multiprocessing.managers"), "BaseProxy", None)
    if isinstance(proxy, type) and isinstance(data, proxy):
        return getattr(getattr(data, "_token", None), "typeid", None) in ("Queue", "JoinableQueue")
    names = ("Queue", "SimpleQueue")
    kinds = [getattr(sys.modules.get("multiprocessing.queues"), name, None) for name in names]
    return any(isinstance(kind, type) and isinstance(data, kind) for kind in kinds)


def _is_simple(data: Any) -> bool:
    """Tell whether a queue has no time limit to wait with."""
    kind = getattr(sys.modules.get("multiprocessing.queues"), "SimpleQueue", None)
    return isinstance(kind, type) and isinstance(data, kind)


def stops_queues(write: Callable[P, T]) -> Callable[P, T]:
    """Have a function take nothing out of its queues any more once it ends, however it does.

    Its first parameter is the source: a queue, or a mapping from splits to such. An option that is
    wrong ends it too, so this is around all of it: else a producer would wait for ever.
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
