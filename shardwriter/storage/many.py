"""Doing something to many files: one after the other, or at a place far away several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from shardwriter.storage.protocol import Storage

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    storage: Storage, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> list[_Result]:
    """Call a function for every item, and return what it returns, in order.

    Raises:
        Exception: What the function raised; some items may not have had their turn then.
    """
    return list(each_in_turn(storage, function, items))


def each_in_turn(
    storage: Storage, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Do the same, and have no more results at hand than calls are made at once."""
    if storage.num_at_once == 1:
        yield from map(function, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    rest = iter(items)
    with ThreadPoolExecutor(storage.num_at_once) as pool:
        while some := list(islice(rest, storage.num_at_once)):
            yield from pool.map(function, some)
