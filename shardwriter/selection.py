"""Selection: which items of a source are written, and in which order.

Order of operations: source order -> filter -> limit -> shuffle -> number. All of it sees
descriptors only. The filter is asked once for every item, before anything is numbered, so what it
leaves out leaves no gap and every engine agrees.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import CallableError, OptionError, ShardwriterError
from shardwriter.options import DatasetOptions
from shardwriter.permutation import Permutation
from shardwriter.sources import Item, Source
from shardwriter.sources.positions import OffsetTable

_PICK_BLOCK: Final = 1 << 16


class Selection:
    """The items of a source that are written, by the index that decides their shard.

    Args:
        source: Where they come from.
        options: Filter, limit and shuffle.

    Attributes:
        num_items: T; None where only the end of the source tells.
        random_access: Whether any item is at hand.

    Raises:
        OptionError: A source that gives its items one after the other is to be shuffled.
        CallableError: The filter raised.
    """

    def __init__(self, source: Source, options: DatasetOptions) -> None:
        self.source = source
        self.options = options
        self.random_access = source.random_access
        self._picked: OffsetTable | None = None  # places in the source
        self.num_items = source.num_items
        if options.filter is not None:
            self.num_items = None
            if source.random_access:
                self._picked = OffsetTable()
                weakref.finalize(self, self._picked.close)
                self.num_items = self._pick(self._picked)
        if self.num_items is not None and options.limit is not None:
            self.num_items = min(self.num_items, options.limit)
        self._permutation: Permutation | None = None
        if options.shuffle_seed is not None:
            if self.num_items is None or not source.random_access:
                raise OptionError(
                    "a source that gives its items one after the other can not be shuffled",
                    hint="shuffling needs a folder, a table, or an object with __len__ and "
                    "__getitem__",
                )
            self._permutation = Permutation(self.num_items, options.shuffle_seed)

    def __getstate__(self) -> dict[str, Any]:
        # What passes the filter was decided where this was made: it need not be picklable.
        return {**self.__dict__, "options": replace(self.options, filter=None)}

    @property
    def takes_all(self) -> bool:
        """Whether every item of the source is written."""
        return self.options.filter is None and (
            self.options.limit is None or self.num_items == self.source.num_items
        )

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
        return indices if self._permutation is None else self._permutation(indices)

    def _places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: where in the source these stand."""
        if self._picked is None or not len(indices):
            return indices
        first, last = int(indices.min()), int(indices.max())
        if last - first < 4 * len(indices) + _PICK_BLOCK:
            return self._picked.entries(first, last + 1)[indices - first]
        found = [self._picked.entries(i, i + 1)[0] for i in indices.tolist()]
        return np.array(found, np.int64)
