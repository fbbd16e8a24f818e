"""What the user's own code may ask for: which worker it runs in, and which item it is given."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

_PERSON: Final = b"shardwriter.item"
_U64: Final = 8


class ItemSlot(Protocol):
    """int64[1]: the index of the item at hand, where others can see it; -1 for none."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def new_slot() -> ItemSlot:
    """Return a place that is seen in this process only."""
    return array("q", [-1])


@dataclass(frozen=True)
class Worker:
    """Who loads, maps and encodes the item at hand.

    Attributes:
        index: Its number, from 0.
        num_workers: How many there are.
        num_shards: N.
        shards: The shards that it writes just now.
        slot: Where the item at hand is kept.
    """

    index: int
    num_workers: int
    num_shards: int
    shards: Sequence[int]
    _seed: int = field(default=0, repr=False)
    _source_index: Callable[[int], int] = field(default=int, repr=False)
    slot: ItemSlot = field(default_factory=new_slot, repr=False)

    @property
    def item_index(self) -> int:
        """The item at hand: the index that decides its shard."""
        return self.slot[0]

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


CURRENT: Final[ContextVar[Worker | None]] = ContextVar("shardwriter.worker", default=None)
"""The worker while it loads, maps or encodes an item."""


def current_worker() -> Worker | None:
    """Return the worker that this code runs in; None outside of a map or a source's ``load``.

    A thread that a map starts has none: hand it what it needs.

    Example:
        >>> def augment(features):  # doctest: +SKIP
        ...     rng = np.random.default_rng(current_worker().item_seed)
    """
    return CURRENT.get()
