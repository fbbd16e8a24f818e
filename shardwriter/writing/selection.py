"""Selection: the items of a source that are written, and their order.

Order of operations: source order -> indices -> filter -> limit -> shuffle, or order by key -> split
by key -> number. All of it sees descriptors only, except for a key that is a feature: it loads the
items. The filter is called once for every item, before items are numbered, so an item that it
leaves out leaves no gap, and all engines number items alike. Splits are divided together, in one
pass over the keys; a stream is read again for each split, and an iterator that can be read once is
stored in temporary files.

An item's *position* is its number in the source, its *index* the number that decides its shard.
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


# Read-ahead of small files, while reading waits for a disk or a network.
#
# From the page cache a file is read in the time that it takes to pass it to another thread, so
# threads are used only while reads wait. The system reports it: a read that waits is a voluntary
# context switch of its thread.

Load = Callable[[Item], Any]

NUM_THREADS: Final = 8
_MAX_FILES: Final = 32  # read and not yet used
_MAX_BYTES: Final = 64 << 20
_PROBE_FILES: Final = 16  # read without threads, to find out whether reads wait
_AHEAD_FILES: Final = 2048  # read with threads before the next probe
# macOS counts for the whole process only.
_WHO: Final = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def read_ahead(
    source: FileSource, load: Load, items: Iterable[tuple[int, Item]]
) -> Iterator[tuple[int, Item, Load]]:
    """Yield (index, descriptor, load function) of items, in order; some are loaded in threads.

    Args:
        source: Reports the size of an item.
        load: Loads an item; called in other threads too.
        items: Index and descriptor of each item.
    """
    iterator = iter(items)
    num_waits = 0

    def counted_load(item: Item) -> Any:
        nonlocal num_waits
        before = resource.getrusage(_WHO).ru_nvcsw
        try:
            return load(item)
        finally:
            num_waits += resource.getrusage(_WHO).ru_nvcsw > before

    while True:
        num_waits = num_files = 0
        for item_index, item in islice(iterator, _PROBE_FILES):
            yield item_index, item, counted_load
            num_files += 1
        if not num_files:
            return
        if 2 * num_waits > num_files:
            yield from _in_threads(source, load, islice(iterator, _AHEAD_FILES))


def _in_threads(
    source: FileSource, load: Load, items: Iterator[tuple[int, Item]]
) -> Iterator[tuple[int, Item, Load]]:
    from concurrent.futures import ThreadPoolExecutor  # imported here: takes 5 ms

    pending: deque[tuple[int, Item, int, Future[Any]]] = deque()
    pending_bytes = 0
    with ThreadPoolExecutor(NUM_THREADS, "shardwriter-read") as threads:
        try:
            while True:
                while len(pending) < _MAX_FILES and pending_bytes < _MAX_BYTES:
                    found = next(items, None)
                    if found is None:
                        break
                    size = source.size_bytes(found[1])
                    pending.append((*found, size, threads.submit(load, found[1])))
                    pending_bytes += size
                if not pending:
                    return
                item_index, item, size, future = pending.popleft()
                yield item_index, item, _result_of(future)
                pending_bytes -= size
        finally:
            threads.shutdown(cancel_futures=True)


def _result_of(future: Future[Any]) -> Load:
    return lambda _: future.result()


# The keys of a source's items, for their order or their split.

_KEY_BLOCK: Final = 1 << 12  # items whose keys are read at once; columns are loaded so

_Positions = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Returns the positions in the source of items, from their numbers after the filter."""


def key_costs(source: Source, options: DatasetOptions) -> list[str]:
    """Return notes on what a key costs, one line each."""
    needs_key = options.order == "key" or (options.split is not None and options.split.is_by_key)
    if not needs_key or options.key is None or not source.random_access:
        return []
    if isinstance(source, ColumnSource):
        return []
    return [f"--key {options.key}: every item is loaded for it before the first one is written"]


def key_notes(source: Source, options: DatasetOptions) -> list[str]:
    """Return notes on an order or a split by key that depends on row numbers, one line each."""
    if options.key is not None or not are_numbered(source):
        return []
    if options.order == "key":
        if not source.random_access:
            return []
        return [
            "rows and records are identified by their numbers, so the order still depends on that "
            "of the input: --key FEATURE orders them by a feature"
        ]
    if options.split is not None and options.split.is_by_key:
        return [
            "rows and records are split by their numbers: add new ones at the end, or --key "
            "FEATURE splits them by a feature"
        ]
    return []


def are_numbered(source: Source) -> bool:
    """Return whether a source identifies its items by number only, not by a lasting name."""
    return isinstance(source, (ColumnSource, RecordSource))


def streamed_key(
    source: Source,
    feature: str | None,
    position: int,
    item: Item,
    names: Sequence[str] | None = None,
) -> bytes:
    """Return the key by which an item of a stream is split.

    Args:
        source: The source of the item.
        feature: The feature that is the key; None for the source's own name of the item.
        position: The item's number in the source.
        item: Its descriptor.
        names: Names of the parts of items, if the user gave them.

    Raises:
        SourceError: The item can not be loaded.
        FeatureError: The item has no key.
    """
    if feature is None:
        name = None if are_numbered(source) else source.key(item)
        return position_key(position) if name is None else key_bytes(name)
    try:
        return key_of(_named(source.load(item), names), feature)
    except ShardwriterError as error:
        raise error.locate(index=position, item=source.key(item)) from error.__cause__


def _named(loaded: Any, names: Sequence[str] | None) -> Any:
    return loaded if names is None else named_parts(loaded, names)


class ItemKeys:
    """The keys of a source's items, read in one pass.

    Args:
        source: The source of the items.
        feature: The feature that is the key; None for the source's own names of its items.
        seed: The salt; also the seed that `current_worker` reports while items are loaded.
        numbered: Whether an item without a name has its position as its key.
        names: Names of the parts of items, if the user gave them.

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
        self._own_keys = self._own_key if not numbered else self._own_key_or_position
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

    def sort(self, table: OffsetTable, num_items: int, positions: _Positions) -> None:
        """Append the numbers of the items to a table, in the order by key.

        Sorting takes 16 bytes of memory an item.

        Args:
            table: The table.
            num_items: The number of items.
            positions: Returns the positions in the source of items, from their numbers.

        Raises:
            SourceError: Two items have one key, or one can not be loaded.
            FeatureError: An item has no key.
            OptionError: The source has no names for its items.
        """
        hashes = np.empty(num_items, np.uint64)
        for start in range(0, num_items, _KEY_BLOCK):
            numbers = np.arange(start, min(start + _KEY_BLOCK, num_items))
            keys = self.keys(numbers.tolist(), positions(numbers).tolist())
            hashes[numbers] = key_hashes(keys, self._seed)

        def key_at(number: int) -> bytes:
            return next(self.keys([number], positions(np.array([number])).tolist()))

        def refused(key: bytes, one: int, other: int) -> SourceError:
            first, second = map(self._name, positions(np.array([one, other])).tolist())
            return equal_keys(key, (first, second), self._feature)

        order = positions_by_key(hashes, key_at, refused)
        for start in range(0, num_items, _KEY_BLOCK):
            table.add(order[start : start + _KEY_BLOCK])

    def _name(self, position: int) -> str:
        return self._source.key(self._source.item(position)) or f"item {position}"

    def keys(self, numbers: list[int], positions: list[int]) -> Iterator[bytes]:
        """Yield the keys of items, from their numbers and their positions in the source."""
        if self._feature is None:
            return map(self._own_keys, positions)
        if self._columns is not None:
            return self._in_columns(self._columns, self._feature, positions)
        return self._loaded(self._feature, numbers, positions)

    def _own_key(self, position: int) -> bytes:
        key = self._source.key(self._source.item(position))
        if key is None:
            raise OptionError(
                "the items of this source have no names to order them by",
                index=position,
                hint="name a feature: --key FEATURE",
            )
        return key_bytes(key)

    def _own_key_or_position(self, position: int) -> bytes:
        name = self._source.key(self._source.item(position)) if self._has_names else None
        return position_key(position) if name is None else key_bytes(name)

    def _in_columns(
        self, source: ColumnSource, feature: str, positions: list[int]
    ) -> Iterator[bytes]:
        for start in range(0, len(positions), source.block_items):
            block = positions[start : start + source.block_items]
            values, unset = source.load_columns(list(map(self._source.item, block)))[feature]
            plain = values.tolist() if isinstance(values, np.ndarray) else values
            for row, position in enumerate(block):
                value = None if unset is not None and unset[row] else plain[row]
                try:
                    yield value_key(value, feature)
                except ShardwriterError as error:
                    raise self._located(error, position) from None

    def _loaded(self, feature: str, numbers: list[int], positions: list[int]) -> Iterator[bytes]:
        source = self._source
        items = zip(positions, map(source.item, positions), strict=True)
        ready: Iterator[tuple[int, Item, Load]]
        if isinstance(source, FileSource):
            ready = read_ahead(source, source.load, items)
        else:
            ready = ((position, item, source.load) for position, item in items)
        for number, (position, item, load) in zip(numbers, ready, strict=True):
            self._slot[0] = number
            token = CURRENT.set(self._worker)
            try:
                key = key_of(_named(load(item), self._names), feature)
            except ShardwriterError as error:
                raise self._located(error, position) from error.__cause__
            except (Exception, SystemExit) as error:
                raised = CallableError(f"loading the item raised {type(error).__name__}: {error}")
                raise self._located(raised, position) from error
            finally:
                CURRENT.reset(token)
            yield key

    def _located(self, error: ShardwriterError, position: int) -> ShardwriterError:
        return error.locate(index=position, item=self._source.key(self._source.item(position)))


def _plan_of(source: Source) -> Mapping[str, FeatureType]:
    try:
        return source.plan
    except SourceError:  # rows that need a map to become features
        return {}


_LENGTH_BYTES: Final = 8
_BUFFER_BYTES: Final = 1 << 18


class SpooledItems:
    """Items of an iterator in a temporary file, to read them again; 256 KiB are in memory."""

    def __init__(self) -> None:
        self._file = Scratch()
        self._waiting = bytearray()

    def add(self, item: Item, position: int) -> None:
        """Append an item.

        Args:
            item: The item, which must be picklable.
            position: Its number in the source.

        Raises:
            SourceError: The item can not be pickled.
            StorageError: The file can not be written.
        """
        try:
            data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise SourceError(
                f"an item of type {type(item).__name__} can not be pickled, which a split of an "
                f"iterator needs: {error}",
                index=position,
                hint="give a function that returns a new iterator: it is called for every split",
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


_PICK_BLOCK: Final = 1 << 16  # positions that are in memory at once


class Selection:
    """The items of a source that are written, by the index that decides their shard.

    Args:
        source: The source of the items.
        options: Indices, filter, limit, order and split.

    Attributes:
        num_items: T; None if it is unknown before the end of the source.
        random_access: Whether items can be accessed in any order.

    Raises:
        OptionError: The order or the indices need random access, which the source does not have;
            an index is out of range; or there is no such key.
        CallableError: The filter raised, or loading an item for its key.
        DataError: An item has no key, or two have the same.
    """

    def __init__(self, source: Source, options: DatasetOptions, *, is_alone: bool = True) -> None:
        if options.tfds is not None and isinstance(source, TfdsSource):
            source.use_tfds_names()
        self.source = source
        self.options = options
        self.random_access = source.random_access
        self._is_filtered = options.filter is not None or options.indices is not None
        self._lists_remotely = False
        self._picked: OffsetTable | None = None  # positions of the items that pass the filter
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
        self._by_key: OffsetTable | None = None  # their numbers in the order by key
        if options.shuffle_seed is not None:
            self._permutation = Permutation(self._length("shuffled"), options.shuffle_seed)
        elif options.order == "key":
            num_items = self._length("put in the order of its keys")
            self._by_key = OffsetTable()
            keys = ItemKeys(source, options.key, options.order_seed, options.names)
            keys.sort(self._by_key, num_items, self._positions)
        self._part: OffsetTable | None = None  # numbers, in that order, of the split's items
        self._spooled: SpooledItems | None = None
        if is_alone and options.split is not None and options.split.is_by_key:
            _divide([self])

    @classmethod
    def parts(cls, source: Source, options: Sequence[DatasetOptions]) -> list[Selection]:
        """Divide the items of a source into splits by fractions, in one pass over their keys.

        Args:
            source: The source of the items.
            options: The options of each split, which differ in the split only.

        Returns:
            The items of each split. Those of an iterator are stored in temporary files.

        Raises:
            SourceError: An item can not be loaded for its key, or can not be pickled.
            FeatureError: An item has no key.
            OptionError: There is no such key.
        """
        first = cls(source, options[0], is_alone=False)
        found = [copy(first) for _ in options]
        for part, each in zip(found, options, strict=True):
            part.options = each
        _divide(found)
        return found

    def _set_part(self, table: OffsetTable) -> None:
        self._part = table
        self.num_items = table.num_bytes // 8

    def _divided(self, splits: Sequence[Split]) -> list[OffsetTable]:
        """Return the numbers of each split's items, in the order in which they are written."""
        assert self.num_items is not None
        num_items = self.num_items
        seed = splits[0].seed
        keys = ItemKeys(self.source, self.options.key, seed, self.options.names, numbered=True)
        numbers_of = np.empty(num_items, np.uint8)  # the split of each item that passes the filter
        for start in range(0, num_items, _KEY_BLOCK):
            block = np.arange(start, min(start + _KEY_BLOCK, num_items))
            found = keys.keys(block.tolist(), self._positions(block).tolist())
            numbers_of[block] = splits[0].numbers_of(found)
        tables = [OffsetTable() for _ in splits]
        for start in range(0, num_items, _PICK_BLOCK):
            block = np.arange(start, min(start + _PICK_BLOCK, num_items))
            numbers = numbers_of[self.source_indices(block)]
            for split, table in zip(splits, tables, strict=True):
                table.add(block[numbers == split.number])
        return tables

    def _spool(self, splits: Sequence[Split]) -> list[SpooledItems]:
        """Read an iterator once, and store the items of each split."""
        spools = {split.number: SpooledItems() for split in splits}
        for position, item in self._listed():
            number = self._split_number(splits[0], position, item)
            if number in spools:
                spools[number].add(item, position)
        return [spools[split.number] for split in splits]

    def _split_number(self, split: Split, position: int, item: Item) -> int:
        key = streamed_key(self.source, self.options.key, position, item, self.options.names)
        return int(split.numbers_of([key])[0])

    def _length(self, action: str) -> int:
        """Return T; refuse a source without random access, which can not be ``action``."""
        if self.num_items is None or not self.source.random_access:
            raise OptionError(
                f"a source without random access can not be {action}",
                hint="this needs a folder, a table, or an object with __len__ and __getitem__",
            )
        return self.num_items

    def allow_remote_listing(self) -> None:
        """Pickle the filter, so that another process can list the items of a stream.

        A process pool does not need it: streams are listed in the main process.
        """
        self._lists_remotely = True

    def __getstate__(self) -> dict[str, Any]:
        if self._lists_remotely and self._picked is None:
            return self.__dict__
        # The filter was applied already, or is applied in this process: it need not be picklable.
        return {**self.__dict__, "options": replace(self.options, filter=None, indices=None)}

    @property
    def takes_all(self) -> bool:
        """Whether every item of the source is written."""
        if self._is_filtered or (self.options.split is not None and self.options.split.is_by_key):
            return False
        return self.options.limit is None or self.num_items == self.source.num_items

    @property
    def is_identity(self) -> bool:
        """Whether item i is item i of the source, for all of them."""
        is_all = self.takes_all and self.options.limit is None
        return is_all and not self.reorders

    @property
    def reorders(self) -> bool:
        """Whether items are written in another order than the source's."""
        return self._permutation is not None or self._by_key is not None

    def order_json(self) -> dict[str, Any]:
        """Return the manifest's ``order``."""
        return order_json(self.options)

    def _candidates(self, chosen: NDArray[np.int64] | None) -> Iterator[tuple[int, Item]]:
        """Yield (position, descriptor) of the items that the filter is applied to."""
        if chosen is None:
            yield from enumerate(self.source.items())
        else:
            for position in chosen.tolist():
                yield position, self.source.item(position)

    def _pick(self, picked: OffsetTable, items: Iterable[tuple[int, Item]]) -> int:
        """Append the positions of items that pass the filter, up to the limit; return how many."""
        count = 0
        positions: list[int] = []
        for position, _ in islice(self._passing(items), self.options.limit):
            positions.append(position)
            count += 1
            if len(positions) == _PICK_BLOCK:
                picked.add(np.array(positions, np.int64))
                positions.clear()
        picked.add(np.array(positions, np.int64))
        return count

    def _passing(self, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """Yield (position, descriptor) of the items that pass the filter."""
        accepts = self.options.filter
        for position, item in items:
            if accepts is None or self._apply_filter(accepts, position, item):
                yield position, item

    def _apply_filter(self, accepts: Callable[[Any], Any], position: int, item: Item) -> bool:
        try:
            return bool(accepts(item))
        except ShardwriterError as error:
            raise error.locate(item=self.source.key(item)) from error.__cause__
        except (Exception, SystemExit) as error:
            raise CallableError(
                f"the filter raised {type(error).__name__}: {reason(error)}",
                item=self.source.key(item) or f"item {position} of the source",
                hint="the filter is called with what the source lists, not with loaded features: "
                f"here a {type(item).__name__}",
            ) from error

    def items(self) -> Iterator[Item]:
        """Yield all items in the order of the source, or of the split."""
        if self._spooled is not None:
            return iter(self._spooled)
        if self._part is not None or self._picked is not None:
            return self._tabled()
        split = self.options.split
        if split is not None and split.is_by_key:
            return (
                item
                for position, item in self._listed()
                if self._split_number(split, position, item) == split.number
            )
        if self.options.filter is None:
            return islice(self.source.items(), self.options.limit)
        return (item for _, item in self._listed())

    def _tabled(self) -> Iterator[Item]:
        """Yield the items whose positions are in a table."""
        assert self.num_items is not None
        positions = self._positions if self._part is None else self.source_positions
        for start in range(0, self.num_items, _PICK_BLOCK):
            block = np.arange(start, min(start + _PICK_BLOCK, self.num_items))
            yield from map(self.source.item, positions(block).tolist())

    def _listed(self) -> Iterator[tuple[int, Item]]:
        """Yield (position, descriptor) of the items of a stream that pass the filter."""
        return islice(self._passing(enumerate(self.source.items())), self.options.limit)

    def items_at(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of the items of int64[n] indices; needs random access."""
        positions = self.source_positions(indices).tolist()
        return zip(indices.tolist(), map(self.source.item, positions), strict=True)

    def source_positions(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the items' positions in the source; needs random access."""
        return self._positions(self.source_indices(indices))

    def source_indices(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the items' numbers in source order, after the filter.

        Items of a split of a stream are numbered within the split.
        """
        if self._part is not None:
            indices = self._part.at(indices)
        if self._permutation is not None:
            return self._permutation(indices)
        return indices if self._by_key is None else self._by_key.at(indices)

    def _positions(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: positions in the source, from the numbers after the filter."""
        return numbers if self._picked is None else self._picked.at(numbers)


def _divide(parts: Sequence[Selection]) -> None:
    """Assign items to splits; those of a stream are assigned while it is read."""
    whole = parts[0]
    splits = [part.options.split for part in parts if part.options.split is not None]
    if whole.random_access:
        for part, table in zip(parts, whole._divided(splits), strict=True):
            part._set_part(table)
    elif len(parts) > 1 and not whole.source.resumable:
        for part, spool in zip(parts, whole._spool(splits), strict=True):
            part._spooled = spool


def order_json(options: DatasetOptions) -> dict[str, Any]:
    """Return the manifest's ``order``: how the order of the source was changed."""
    seed = options.shuffle_seed
    order: dict[str, Any] = {
        "shuffle": None if seed is None else {"algorithm": permutation.ALGORITHM, "seed": seed},
        "split": None if options.split is None else options.split.to_json(),
    }
    by_key = options.split is not None and options.split.is_by_key
    if by_key and options.key is not None:
        order["split"]["feature"] = options.key
    if options.order == "key":  # else no entry, as in manifests of older versions
        order["key"] = {
            "algorithm": key_order.ALGORITHM,
            "feature": options.key,
            "seed": options.order_seed,
        }
    return order
