"""Selection: which items of a source are written, and in which order.

Order of operations: source order -> filter -> limit -> shuffle, or order by key -> number. All of
it sees descriptors only, but for a key that is a feature: items are loaded for that. The filter is
asked once for every item, before anything is numbered, so what it leaves out leaves no gap and
every engine agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import key_order, permutation
from shardwriter.dataset.permutation import Permutation
from shardwriter.errors import CallableError, OptionError, ShardwriterError
from shardwriter.items.keys import ItemKeys
from shardwriter.options import DatasetOptions
from shardwriter.sources import Item, Source, TfdsSource
from shardwriter.sources.positions import OffsetTable

_PICK_BLOCK: Final = 1 << 16


class Selection:
    """The items of a source that are written, by the index that decides their shard.

    Args:
        source: Where they come from.
        options: Filter, limit and order.

    Attributes:
        num_items: T; None where only the end of the source tells.
        random_access: Whether any item is at hand.

    Raises:
        OptionError: A source that gives its items one after the other is to be written in another
            order, or there is no such key.
        CallableError: The filter raised, or an item that is loaded for its key.
        DataError: An item has no key, or two have the same.
    """

    def __init__(self, source: Source, options: DatasetOptions) -> None:
        if options.tfds is not None and isinstance(source, TfdsSource):
            source.use_tfds_names()
        self.source = source
        self.options = options
        self.random_access = source.random_access
        self._is_filtered = options.filter is not None
        self._lists_elsewhere = False
        self._picked: OffsetTable | None = None  # places in the source
        self.num_items = source.num_items
        if options.filter is not None:
            self.num_items = None
            if source.random_access:
                self._picked = OffsetTable()
                self.num_items = self._pick(self._picked)
        if self.num_items is not None and options.limit is not None:
            self.num_items = min(self.num_items, options.limit)
        self._permutation: Permutation | None = None
        self._by_key: OffsetTable | None = None  # which of those that pass the filter
        if options.shuffle_seed is not None:
            self._permutation = Permutation(self._length("shuffled"), options.shuffle_seed)
        elif options.order == "key":
            num_items = self._length("put in the order of its keys")
            self._by_key = OffsetTable()
            keys = ItemKeys(source, options.key, options.order_seed)
            keys.sort(self._by_key, num_items, self._places)

    def _length(self, ordered: str) -> int:
        """Return T where any item is at hand, or say what can not be done."""
        if self.num_items is None or not self.source.random_access:
            raise OptionError(
                f"a source that gives its items one after the other can not be {ordered}",
                hint="this needs a folder, a table, or an object with __len__ and __getitem__",
            )
        return self.num_items

    def list_elsewhere(self) -> None:
        """Have items be listed where this object is sent; a pool lists streams in the program."""
        self._lists_elsewhere = True

    def __getstate__(self) -> dict[str, Any]:
        if self._lists_elsewhere and self._picked is None:
            return self.__dict__
        # What passes the filter was decided where this was made: it need not be picklable.
        return {**self.__dict__, "options": replace(self.options, filter=None)}

    @property
    def takes_all(self) -> bool:
        """Whether every item of the source is written."""
        return not self._is_filtered and (
            self.options.limit is None or self.num_items == self.source.num_items
        )

    @property
    def reorders(self) -> bool:
        """Whether items are written in another order than that of the source."""
        return self._permutation is not None or self._by_key is not None

    def order_json(self) -> dict[str, Any]:
        """Return the manifest's ``order``."""
        return order_json(self.options)

    def _pick(self, picked: OffsetTable) -> int:
        """Note the places of the items that pass the filter, as far as the limit lets them."""
        count = 0
        places: list[int] = []
        for place, _ in islice(self._passing(self.source.items()), self.options.limit):
            places.append(place)
            count += 1
            if len(places) == _PICK_BLOCK:
                picked.add(np.array(places, np.int64))
                places.clear()
        picked.add(np.array(places, np.int64))
        return count

    def _passing(self, items: Iterable[Item]) -> Iterator[tuple[int, Item]]:
        keep = self.options.filter
        for place, item in enumerate(items):
            if keep is None or self._asked(keep, place, item):
                yield place, item

    def _asked(self, keep: Callable[[Any], Any], place: int, item: Item) -> bool:
        try:
            return bool(keep(item))
        except ShardwriterError as error:
            raise error.locate(item=self.source.key(item)) from error.__cause__
        except (Exception, SystemExit) as error:
            raise CallableError(
                f"the filter raised {type(error).__name__}: {error}",
                item=self.source.key(item) or f"item {place} of the source",
                hint="it is given what the source lists, and not what is loaded: "
                f"here a {type(item).__name__}",
            ) from error

    def items(self) -> Iterator[Item]:
        """Yield all items, one after the other, in the order of the source."""
        if self._picked is not None:
            assert self.num_items is not None
            return map(self.source.item, self._places(np.arange(self.num_items)).tolist())
        if self.options.filter is None:
            return islice(self.source.items(), self.options.limit)
        passing = self._passing(self.source.items())
        return islice((item for _, item in passing), self.options.limit)

    def items_at(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of the items of int64[n] indices; needs random access."""
        places = self._places(self.source_indices(indices))
        return zip(indices.tolist(), map(self.source.item, places.tolist()), strict=True)

    def source_indices(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: which of the items that pass the filter these indices are."""
        if self._permutation is not None:
            return self._permutation(indices)
        return indices if self._by_key is None else _entries(self._by_key, indices)

    def _places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: where in the source these stand."""
        return indices if self._picked is None else _entries(self._picked, indices)


def _entries(table: OffsetTable, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: some entries of a table."""
    if not len(indices):
        return indices
    first, last = int(indices.min()), int(indices.max())
    if last - first < 4 * len(indices) + _PICK_BLOCK:
        return table.entries(first, last + 1)[indices - first]
    return np.array([table.entries(i, i + 1)[0] for i in indices.tolist()], np.int64)


def order_json(options: DatasetOptions) -> dict[str, Any]:
    """Return what a manifest says was done to the order of the source."""
    seed = options.shuffle_seed
    order: dict[str, Any] = {
        "shuffle": None if seed is None else {"algorithm": permutation.ALGORITHM, "seed": seed},
        "split": None,
    }
    if options.order == "key":  # without it there is no such entry, as there was none before
        order["key"] = {
            "algorithm": key_order.ALGORITHM,
            "feature": options.key,
            "seed": options.order_seed,
        }
    return order
