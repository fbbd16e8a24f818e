"""Reading many small files ahead, where reading has to wait.

From the page cache a file is read in the time that it takes to hand it to another thread, so that
is not done. From a disk or over a network most of the time is waiting, and several threads wait at
once. Which of the two it is can change on the way, and the system tells: a read that waits gives
the processor up of its own will, and the system counts how often that happens.
"""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from shardwriter.sources.source import FileSource, Item

if TYPE_CHECKING:
    from concurrent.futures import Future

Load = Callable[[Item], Any]

NUM_THREADS: Final = 8
_MAX_FILES: Final = 32  # read and not yet used
_MAX_BYTES: Final = 64 << 20
_PROBE_FILES: Final = 16  # by which it is found out whether reading waits
_AHEAD_FILES: Final = 2048  # until that is found out again
# macOS counts for the whole process only.
_WHO: Final = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def read_ahead(
    source: FileSource, load: Load, items: Iterable[tuple[int, Item]]
) -> Iterator[tuple[int, Item, Load]]:
    """Yield the items, in order, with what loads each; it may have been read already.

    Args:
        source: Says how large an item is.
        load: Loads an item; called in other threads too.
        items: Index and descriptor.
    """
    iterator = iter(items)
    num_waits = 0

    def watched(item: Item) -> Any:
        nonlocal num_waits
        before = resource.getrusage(_WHO).ru_nvcsw
        try:
            return load(item)
        finally:
            num_waits += resource.getrusage(_WHO).ru_nvcsw > before

    while True:
        num_waits = num_files = 0
        for item_index, item in islice(iterator, _PROBE_FILES):
            yield item_index, item, watched
            num_files += 1
        if not num_files:
            return
        if 2 * num_waits > num_files:
            yield from _in_threads(source, load, islice(iterator, _AHEAD_FILES))


def _in_threads(
    source: FileSource, load: Load, items: Iterator[tuple[int, Item]]
) -> Iterator[tuple[int, Item, Load]]:
    from concurrent.futures import ThreadPoolExecutor  # 5 ms that most runs need not spend

    begun: deque[tuple[int, Item, int, Future[Any]]] = deque()
    begun_bytes = 0
    with ThreadPoolExecutor(NUM_THREADS, "shardwriter-read") as threads:
        try:
            while True:
                while len(begun) < _MAX_FILES and begun_bytes < _MAX_BYTES:
                    found = next(items, None)
                    if found is None:
                        break
                    size = source.size_bytes(found[1])
                    begun.append((*found, size, threads.submit(load, found[1])))
                    begun_bytes += size
                if not begun:
                    return
                item_index, item, size, future = begun.popleft()
                yield item_index, item, _result_of(future)
                begun_bytes -= size
        finally:
            threads.shutdown(cancel_futures=True)


def _result_of(future: Future[Any]) -> Load:
    return lambda _: future.result()
