"""What the user's own code may ask for: which worker it runs in, and which item it is given."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

_PERSON: Final = b"shardwriter.item"
_U64: Final = 8


class Place(Protocol):
    """int64[1]: the index of the item at hand, where others can see it; -1 for none."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def new_place() -> Place:
    """Return a place that is seen in this process only."""
    return array("q", [-1])


@dataclass(frozen=True)
class Worker:
    """A process that loads, maps, encodes and writes items.

    Attributes:
        index: Its number, from 0.
        num_workers: How many there are.
        num_shards: N.
        shards: The shards that it writes just now.
    """

    index: int
    num_workers: int
    num_shards: int
    shards: range
    _seed: int = 0
    _source_index: Callable[[int], int] = int
    _place: Place = field(default_factory=new_place, repr=False)

    @property
    def item_index(self) -> int:
        """The item at hand: the index that decides its shard."""
        return self._place[0]

    @property
    def item_seed(self) -> int:
        """A 64-bit seed of the item at hand.

        It depends on the run's seed and on where the item stands in the source, and on nothing
        else: with it a random map gives the same records from any number of workers. It is blake2b
        over both numbers as u64, little-endian, 8 bytes long, read as u64.
        """
        numbers = self._seed, self._source_index(self.item_index)
        data = b"".join(number.to_bytes(_U64, "little") for number in numbers)
        digest = blake2b(data, digest_size=_U64, person=_PERSON).digest()
        return int.from_bytes(digest, "little")


_current: ContextVar[Worker | None] = ContextVar("shardwriter.worker", default=None)


def current_worker() -> Worker | None:
    """Return the worker that this code runs in; None outside of a map or a source's ``load``.

    Example:
        >>> def augment(features):  # doctest: +SKIP
        ...     rng = np.random.default_rng(current_worker().item_seed)
    """
    return _current.get()


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    """Make ``worker`` the current one."""
    token = _current.set(worker)
    try:
        yield worker
    finally:
        _current.reset(token)
