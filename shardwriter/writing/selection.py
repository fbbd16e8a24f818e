"""Selection: which items of a source are written, and in which order.

Order of operations: source order -> indices -> filter -> limit -> shuffle, or order by key -> split
by key -> number. All of it sees descriptors only, but for a key that is a feature: items are loaded
for that. The filter is asked once for every item, before anything is numbered, so what it leaves
out leaves no gap and every engine agrees. Splits are made together, in one pass over the keys; a
stream is read again for each, and an iterator that can be read once is kept in temporary files.
"""

from __future__ import annotations

import pickle
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    Permutation,
    Split,
    equal_keys,
    key_bytes,
    key_hashes,
    key_of,
    key_order,
    permutation,
    position_key,
    positions_by_key,
    value_key,
)
from shardwriter.errors import CallableError, OptionError, ShardwriterError, SourceError, reason
from shardwriter.schema import FeatureType, named_parts
from shardwriter.sources import (
    ColumnSource,
    FileSource,
    Item,
    OffsetTable,
    RecordSource,
    Source,
    TfdsSource,
)
from shardwriter.storage import Scratch
from shardwriter.writing.options import DatasetOptions
from shardwriter.writing.worker import CURRENT, Worker, new_slot

if TYPE_CHECKING:
    from concurrent.futures import Future


# Reading many small files ahead, where reading has to wait.
#
# From the page cache a file is read in the time that it takes to hand it to another thread, so that
# is not done. From a disk or over a network most of the time is waiting, and several threads wait
# at once. Which of the two it is can change on the way, and the system tells: a read that waits
# gives the processor up of its own will, and the system counts how often that happens.

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


# The keys of a source's items, found in one pass over them: their order, or their split.
#
# Of an order 16 bytes an item are held while they are sorted, and then a temporary file.

_BLOCK: Final = 1 << 12

_Places = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def key_costs(source: Source, options: DatasetOptions) -> list[str]:
    """Return what a key costs, one line each."""
    needs_key = options.order == "key" or (options.split is not None and options.split.is_by_key)
    if not needs_key or options.key is None or not source.random_access:
        return []
    if isinstance(source, ColumnSource):
        return []
    return [f"--key {options.key}: every item is loaded for it before the first one is written"]


def key_notes(source: Source, options: DatasetOptions) -> list[str]:
    """Return what a person should know of an order by key, one line each."""
    is_split = options.split is not None and options.split.is_by_key
    if is_split and options.order != "key":
        return _split_notes(source, options.key)
    if options.order != "key" or not source.random_access:
        return []
    if options.key is None and isinstance(source, (ColumnSource, RecordSource)):
        return [
            "rows and records are called by their numbers, so their order still depends on that of "
            "the input: --key FEATURE makes it depend on what is in them"
        ]
    return []


def _split_notes(source: Source, feature: str | None) -> list[str]:
    if feature is None and are_numbered(source):
        return [
            "rows and records are split by their numbers: add new ones at the end, or --key "
            "FEATURE goes by what is in them"
        ]
    return []


def are_numbered(source: Source) -> bool:
    """Tell whether a source has only numbers for its items, and no names that stay theirs."""
    return isinstance(source, (ColumnSource, RecordSource))


def streamed_key(
    source: Source,
    feature: str | None,
    place: int,
    item: Item,
    names: Sequence[str] | None = None,
) -> bytes:
    """Return the key by which an item is split that came in its turn.

    Args:
        source: Where it comes from.
        feature: The feature that is the key; None for what the source calls the item.
        place: Its number in the source.
        item: What the source lists.
        names: What the parts of an item are called, where the user says that.

    Raises:
        SourceError: It can not be loaded.
        FeatureError: It has no key.
    """
    if feature is None:
        name = None if are_numbered(source) else source.key(item)
        return position_key(place) if name is None else key_bytes(name)
    try:
        return key_of(_named(source.load(item), names), feature)
    except ShardwriterError as error:
        raise error.locate(index=place, item=source.key(item)) from error.__cause__


def _named(loaded: Any, names: Sequence[str] | None) -> Any:
    return loaded if names is None else named_parts(loaded, names)


class ItemKeys:
    """The keys of a source's items.

    Args:
        source: Where they come from.
        feature: The feature that is the key; None for what the source calls its items.
        seed: The salt; also what a source is told of the run while its items are loaded.
        numbered: Whether an item without a name has its place in the source for a key.
        names: What the parts of its items are called, where the user says that.

    Raises:
        OptionError: The source has no such feature.
    """

    def __init__(
        self,
        source: Source,
        feature: str | None,
        seed: int,
        names: Sequence[str] | None = None,
        *,
        numbered: bool = False,
    ) -> None:
        self._source = source
        self._own_keys = self._own_key if not numbered else self._own_key_or_place
        self._has_names = not are_numbered(source)
        self._feature = feature
        self._names = names
        self._seed = seed
        self._slot = new_slot()
        self._worker = Worker(0, 1, 1, range(1), seed, int, self._slot)
        plan = _plan_of(source)
        if feature is not None and plan and feature not in plan:
            raise OptionError(
                f"--key {feature}: there is no such feature",
                hint=f"the features are {', '.join(sorted(plan))}",
            )
        self._columns = source if plan and isinstance(source, ColumnSource) else None

    def sort(self, table: OffsetTable, num_items: int, places: _Places) -> None:
        """Note which item stands where in the order by key.

        Args:
            table: Takes the numbers of the items, one after the other.
            num_items: How many items there are.
            places: Tells from the numbers of items where in the source they stand.

        Raises:
            SourceError: Two items have one key, or one can not be loaded.
            FeatureError: An item has no key.
            OptionError: The source has no names for its items.
        """
        hashes = np.empty(num_items, np.uint64)
        for start in range(0, num_items, _BLOCK):
            numbers = np.arange(start, min(start + _BLOCK, num_items))
            keys = self.keys(numbers.tolist(), places(numbers).tolist())
            hashes[numbers] = key_hashes(keys, self._seed)

        def key_at(number: int) -> bytes:
            return next(self.keys([number], places(np.array([number])).tolist()))

        def refused(key: bytes, one: int, other: int) -> SourceError:
            first, second = map(self._name, places(np.array([one, other])).tolist())
            return equal_keys(key, (first, second), self._feature)

        order = positions_by_key(hashes, key_at, refused)
        for start in range(0, num_items, _BLOCK):
            table.add(order[start : start + _BLOCK])

    def _name(self, place: int) -> str:
        return self._source.key(self._source.item(place)) or f"item {place}"

    def keys(self, numbers: list[int], places: list[int]) -> Iterator[bytes]:
        """Yield the keys of items, by their numbers and their places in the source."""
        if self._feature is None:
            return map(self._own_keys, places)
        if self._columns is not None:
            return self._in_columns(self._columns, self._feature, places)
        return self._loaded(self._feature, numbers, places)

    def _own_key(self, place: int) -> bytes:
        key = self._source.key(self._source.item(place))
        if key is None:
            raise OptionError(
                "the items of this source have no names that they could be ordered by",
                index=place,
                hint="name a feature of theirs: --key FEATURE",
            )
        return key_bytes(key)

    def _own_key_or_place(self, place: int) -> bytes:
        name = self._source.key(self._source.item(place)) if self._has_names else None
        return position_key(place) if name is None else key_bytes(name)

    def _in_columns(self, source: ColumnSource, feature: str, places: list[int]) -> Iterator[bytes]:
        for start in range(0, len(places), source.block_items):
            block = places[start : start + source.block_items]
            values, unset = source.load_columns(list(map(self._source.item, block)))[feature]
            plain = values.tolist() if isinstance(values, np.ndarray) else values
            for row, place in enumerate(block):
                value = None if unset is not None and unset[row] else plain[row]
                try:
                    yield value_key(value, feature)
                except ShardwriterError as error:
                    raise self._located(error, place) from None

    def _loaded(self, feature: str, numbers: list[int], places: list[int]) -> Iterator[bytes]:
        source = self._source
        items = zip(places, map(source.item, places), strict=True)
        ready: Iterator[tuple[int, Item, Load]]
        if isinstance(source, FileSource):
            ready = read_ahead(source, source.load, items)
        else:
            ready = ((place, item, source.load) for place, item in items)
        for number, (place, item, load) in zip(numbers, ready, strict=True):
            self._slot[0] = number
            token = CURRENT.set(self._worker)
            try:
                key = key_of(_named(load(item), self._names), feature)
            except ShardwriterError as error:
                raise self._located(error, place) from error.__cause__
            except (Exception, SystemExit) as error:
                raised = CallableError(f"loading the item raised {type(error).__name__}: {error}")
                raise self._located(raised, place) from error
            finally:
                CURRENT.reset(token)
            yield key

    def _located(self, error: ShardwriterError, place: int) -> ShardwriterError:
        return error.locate(index=place, item=self._source.key(self._source.item(place)))


def _plan_of(source: Source) -> Mapping[str, FeatureType]:
    try:
        return source.plan
    except SourceError:  # of rows that only a map makes records of
        return {}


# Items of an iterator that can be read once, kept in a temporary file to be read again.

_LENGTH_BYTES: Final = 8
_BUFFER_BYTES: Final = 1 << 18


class SpooledItems:
    """Items, one after the other, in a temporary file; at most 256 KiB of them in memory."""

    def __init__(self) -> None:
        self._file = Scratch()
        self._waiting = bytearray()

    def add(self, item: Item, place: int) -> None:
        """Append an item.

        Args:
            item: The item; it has to pickle.
            place: Its number in the source.

        Raises:
            SourceError: It can not be pickled.
            StorageError: The file can not grow.
        """
        try:
            data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise SourceError(
                f"an item of type {type(item).__name__} can not be kept until its split is "
                f"written: {error}",
                index=place,
                hint="give a function that makes a new iterator each time: it is called for every "
                "split",
            ) from error
        self._waiting += len(data).to_bytes(_LENGTH_BYTES, "little")
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.append(bytes(self._waiting))
        self._waiting.clear()

    def __iter__(self) -> Iterator[Item]:
        self._flush()
        at = 0
        while at < self._file.num_bytes:
            stop = at + _LENGTH_BYTES
            length = int.from_bytes(self._file.read(at, _LENGTH_BYTES), "little")
            yield pickle.loads(self._file.read(stop, length))
            at = stop + length


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
    elif len(parts) > 1 and not whole.source.resumable:
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
