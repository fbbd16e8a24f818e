"""Selection: which items of a source are written, and in which order.

Order of operations: source order -> indices -> filter -> limit -> shuffle, or order by key -> split
by key -> number. All of it sees descriptors only, but for a key that is a feature: items are loaded
for that. The filter is asked once for every item, before anything is numbered, so what it leaves
out leaves no gap and every engine agrees. Splits are made together, in one pass over the keys; a
stream is read again for each, and an iterator that can be read once is kept in temporary files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import key_order, permutation
from shardwriter.dataset.permutation import Permutation
from shardwriter.dataset.splits import Split
from shardwriter.errors import CallableError, OptionError, ShardwriterError, reason
from shardwriter.sources.positions import OffsetTable
from shardwriter.sources.source import Item, Source, TfdsSource
from shardwriter.writing.keys import ItemKeys, streamed_key
from shardwriter.writing.options import DatasetOptions
from shardwriter.writing.spooled import SpooledItems

_PICK_BLOCK: Final = 1 << 16
_KEY_BLOCK: Final = 1 << 12  # columns are loaded by so many rows


class Selection:
    """The items of a source that are written, by the index that decides their shard.

    Args:
        source: Where they come from.
        options: Indices, filter, limit, order and split.

    Attributes:
        num_items: T; None where only the end of the source tells.
        random_access: Whether any item is at hand.

    Raises:
        OptionError: A source that gives its items one after the other is to be written in another
            order, an index is behind its end, or there is no such key.
        CallableError: The filter raised, or an item that is loaded for its key.
        DataError: An item has no key, or two have the same.
    """

    def __init__(self, source: Source, options: DatasetOptions, *, is_alone: bool = True) -> None:
        if options.tfds is not None and isinstance(source, TfdsSource):
            source.use_tfds_names()
        self.source = source
        self.options = options
        self.random_access = source.random_access
        self._is_filtered = options.filter is not None or options.indices is not None
        self._lists_elsewhere = False
        self._picked: OffsetTable | None = None  # places in the source
        self.num_items = source.num_items
        chosen: NDArray[np.int64] | None = None
        if options.indices is not None:
            options.indices.check(self._length("picked by their indices"))
            chosen = options.indices.numbers
        if chosen is not None and options.filter is None:
            self._picked = OffsetTable()
            self._picked.add(chosen)
            self.num_items = len(chosen)
        elif options.filter is not None:
            self.num_items = None
            if source.random_access:
                self._picked = OffsetTable()
                self.num_items = self._pick(self._picked, self._candidates(chosen))
        if self.num_items is not None and options.limit is not None:
            self.num_items = min(self.num_items, options.limit)
        self._permutation: Permutation | None = None
        self._by_key: OffsetTable | None = None  # which of those that pass the filter
        if options.shuffle_seed is not None:
            self._permutation = Permutation(self._length("shuffled"), options.shuffle_seed)
        elif options.order == "key":
            num_items = self._length("put in the order of its keys")
            self._by_key = OffsetTable()
            keys = ItemKeys(source, options.key, options.order_seed, options.names)
            keys.sort(self._by_key, num_items, self._places)
        self._part: OffsetTable | None = None  # which of these, in their order, are of the split
        self._spooled: SpooledItems | None = None
        if is_alone and options.split is not None and options.split.is_by_key:
            _divide([self])

    @classmethod
    def parts(cls, source: Source, options: Sequence[DatasetOptions]) -> list[Selection]:
        """Divide the items of a source into splits by fractions, in one pass over their keys.

        Args:
            source: Where they come from.
            options: Those of each split, which differ in nothing else.

        Returns:
            The items of each split. Of an iterator that can be read once they are kept.

        Raises:
            SourceError: An item can not be loaded for its key, or can not be kept.
            FeatureError: An item has no key.
            OptionError: There is no such key.
        """
        first = cls(source, options[0], is_alone=False)
        found = [copy(first) for _ in options]
        for part, each in zip(found, options, strict=True):
            part.options = each
        _divide(found)
        return found

    def _take(self, table: OffsetTable) -> None:
        self._part = table
        self.num_items = table.num_bytes // 8

    def _divided(self, splits: Sequence[Split]) -> list[OffsetTable]:
        """Return which of the items are of each split, in the order in which they are written."""
        assert self.num_items is not None
        num_items = self.num_items
        seed = splits[0].seed
        keys = ItemKeys(self.source, self.options.key, seed, self.options.names, numbered=True)
        numbers_of = np.empty(num_items, np.uint8)  # the split of each item that passes the filter
        for start in range(0, num_items, _KEY_BLOCK):
            block = np.arange(start, min(start + _KEY_BLOCK, num_items))
            found = keys.keys(block.tolist(), self._places(block).tolist())
            numbers_of[block] = splits[0].numbers_of(found)
        tables = [OffsetTable() for _ in splits]
        for start in range(0, num_items, _PICK_BLOCK):
            block = np.arange(start, min(start + _PICK_BLOCK, num_items))
            numbers = numbers_of[self.source_indices(block)]
            for split, table in zip(splits, tables, strict=True):
                table.add(block[numbers == split.number])
        return tables

    def _spool(self, splits: Sequence[Split]) -> list[SpooledItems]:
        """Read an iterator once, and keep the items of each split."""
        spools = {split.number: SpooledItems() for split in splits}
        for place, item in self._listed():
            number = self._split_number(splits[0], place, item)
            if number in spools:
                spools[number].add(item, place)
        return [spools[split.number] for split in splits]

    def _split_number(self, split: Split, place: int, item: Item) -> int:
        key = streamed_key(self.source, self.options.key, place, item, self.options.names)
        return int(split.numbers_of([key])[0])

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
        return {**self.__dict__, "options": replace(self.options, filter=None, indices=None)}

    @property
    def takes_all(self) -> bool:
        """Whether every item of the source is written."""
        if self._is_filtered or (self.options.split is not None and self.options.split.is_by_key):
            return False
        return self.options.limit is None or self.num_items == self.source.num_items

    @property
    def is_untouched(self) -> bool:
        """Whether item i is item i of the source."""
        is_all = self.takes_all and self.options.limit is None
        return is_all and not self.reorders

    @property
    def reorders(self) -> bool:
        """Whether items are written in another order than that of the source."""
        return self._permutation is not None or self._by_key is not None

    def order_json(self) -> dict[str, Any]:
        """Return the manifest's ``order``."""
        return order_json(self.options)

    def _candidates(self, chosen: NDArray[np.int64] | None) -> Iterator[tuple[int, Item]]:
        """Yield place and descriptor of the items that the filter is asked of."""
        if chosen is None:
            yield from enumerate(self.source.items())
        else:
            for place in chosen.tolist():
                yield place, self.source.item(place)

    def _pick(self, picked: OffsetTable, items: Iterable[tuple[int, Item]]) -> int:
        """Note the places of the items that pass the filter, as far as the limit lets them."""
        count = 0
        places: list[int] = []
        for place, _ in islice(self._passing(items), self.options.limit):
            places.append(place)
            count += 1
            if len(places) == _PICK_BLOCK:
                picked.add(np.array(places, np.int64))
                places.clear()
        picked.add(np.array(places, np.int64))
        return count

    def _passing(self, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        keep = self.options.filter
        for place, item in items:
            if keep is None or self._asked(keep, place, item):
                yield place, item

    def _asked(self, keep: Callable[[Any], Any], place: int, item: Item) -> bool:
        try:
            return bool(keep(item))
        except ShardwriterError as error:
            raise error.locate(item=self.source.key(item)) from error.__cause__
        except (Exception, SystemExit) as error:
            raise CallableError(
                f"the filter raised {type(error).__name__}: {reason(error)}",
                item=self.source.key(item) or f"item {place} of the source",
                hint="it is given what the source lists, and not what is loaded: "
                f"here a {type(item).__name__}",
            ) from error

    def items(self) -> Iterator[Item]:
        """Yield all items, one after the other, in the order of the source."""
        if self._spooled is not None:
            return iter(self._spooled)
        if self._part is not None or self._picked is not None:
            return self._tabled()
        split = self.options.split
        if split is not None and split.is_by_key:
            return (
                item
                for place, item in self._listed()
                if self._split_number(split, place, item) == split.number
            )
        if self.options.filter is None:
            return islice(self.source.items(), self.options.limit)
        return (item for _, item in self._listed())

    def _tabled(self) -> Iterator[Item]:
        """Yield the items that a table tells the places of; so many places are in memory."""
        assert self.num_items is not None
        places = self._places if self._part is None else self.source_places
        for start in range(0, self.num_items, _PICK_BLOCK):
            block = np.arange(start, min(start + _PICK_BLOCK, self.num_items))
            yield from map(self.source.item, places(block).tolist())

    def _listed(self) -> Iterator[tuple[int, Item]]:
        """Yield the items of a stream that pass the filter, with their places in the source."""
        return islice(self._passing(enumerate(self.source.items())), self.options.limit)

    def items_at(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of the items of int64[n] indices; needs random access."""
        places = self.source_places(indices).tolist()
        return zip(indices.tolist(), map(self.source.item, places), strict=True)

    def source_places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the items' own numbers in the source; needs random access."""
        return self._places(self.source_indices(indices))

    def source_indices(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: which of the items that pass the filter these indices are.

        Of a stream that is split they are numbered within the split.
        """
        if self._part is not None:
            indices = self._part.at(indices)
        if self._permutation is not None:
            return self._permutation(indices)
        return indices if self._by_key is None else self._by_key.at(indices)

    def _places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: where in the source these stand."""
        return indices if self._picked is None else self._picked.at(indices)


def _divide(parts: Sequence[Selection]) -> None:
    """Give each part its items, as far as they can be told before they come."""
    whole = parts[0]
    splits = [part.options.split for part in parts if part.options.split is not None]
    if whole.random_access:
        for part, table in zip(parts, whole._divided(splits), strict=True):
            part._take(table)
    elif len(parts) > 1 and not whole.source.stable:
        for part, spool in zip(parts, whole._spool(splits), strict=True):
            part._spooled = spool


def order_json(options: DatasetOptions) -> dict[str, Any]:
    """Return what a manifest says was done to the order of the source."""
    seed = options.shuffle_seed
    order: dict[str, Any] = {
        "shuffle": None if seed is None else {"algorithm": permutation.ALGORITHM, "seed": seed},
        "split": None if options.split is None else options.split.to_json(),
    }
    by_key = options.split is not None and options.split.is_by_key
    if by_key and options.key is not None:
        order["split"]["feature"] = options.key
    if options.order == "key":  # without it there is no such entry, as there was none before
        order["key"] = {
            "algorithm": key_order.ALGORITHM,
            "feature": options.key,
            "seed": options.order_seed,
        }
    return order
