"""The worker that the user's code runs in: its number and shards, the current item and its seed."""

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
    """int64[1] that other processes may read: the index of the current item; -1 for none."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def new_slot() -> ItemSlot:
    """Return a slot of this process only."""
    return array("q", [-1])


@dataclass(frozen=True)
class Worker:
    """The worker that loads, maps and encodes the current item.

    Attributes:
        index: Number of the worker, from 0.
        num_workers: Number of workers.
        num_shards: Number of shards, N.
        shards: The shards that the worker writes now.
        slot: Holds the index of the current item.
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
        """Index of the current item, which decides its shard."""
        return self.slot[0]

    @property
    def item_seed(self) -> int:
        """A 64-bit seed for the current item.

        It depends only on the run's seed and the item's position in the source, so a random map
        that uses it gives the same records with any number of workers. It is the 8-byte blake2b of
        both numbers (u64, little-endian), read as u64.
        """
        numbers = self._seed, self._source_index(self.item_index)
        data = b"".join(number.to_bytes(_U64, "little") for number in numbers)
        digest = blake2b(data, digest_size=_U64, person=_PERSON).digest()
        return int.from_bytes(digest, "little")


CURRENT: Final[ContextVar[Worker | None]] = ContextVar("shardwriter.worker", default=None)
"""The worker while it loads, maps or encodes an item."""


def current_worker() -> Worker | None:
    """Return the worker that this code runs in; None outside of a map or a source's ``load``.

    A thread that a map starts has no current worker: pass it what it needs.

    Example:
        >>> def augment(features):  # doctest: +SKIP
        ...     rng = np.random.default_rng(current_worker().item_seed)
    """
    return CURRENT.get()
