"""The keys of a source's items, found in one pass over them: their order, or their split.

Of an order 16 bytes an item are held while they are sorted, and then a temporary file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.key_order import (
    equal_keys,
    key_bytes,
    key_hashes,
    key_of,
    places_by_key,
    value_key,
)
from shardwriter.dataset.splits import place_key
from shardwriter.errors import CallableError, OptionError, ShardwriterError, SourceError
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.fields import named_parts
from shardwriter.sources.positions import OffsetTable
from shardwriter.sources.source import ColumnSource, FileSource, Item, RecordSource, Source
from shardwriter.writing.options import DatasetOptions
from shardwriter.writing.read_ahead import Load, read_ahead
from shardwriter.writing.worker import CURRENT, Worker, new_slot

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
        return place_key(place) if name is None else key_bytes(name)
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

        order = places_by_key(hashes, key_at, refused)
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
        return place_key(place) if name is None else key_bytes(name)

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
