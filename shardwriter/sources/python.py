"""``python``: what Python can iterate over, or index.

A sequence (``__len__`` and ``__getitem__``: a list, a PyTorch dataset) gives any item cheaply. Any
other iterable is read in order; a function without arguments is called for a fresh iterable each
time one is needed. An iterator can be read once: a second reading is an error and never an empty
dataset. A set is refused: its order is another one in every process.

What other libraries have for streams is read in their way: a ``DataLoader``, an
``IterableDataset`` of ``datasets``, queues (:mod:`shardwriter.sources.python`).

An item is a mapping from feature names to values; a named tuple or a dataclass; a
``SequenceExample``; ``bytes``, which are a finished record; a tuple, where the options name its
parts; or anything at all, when a map turns it into one of these.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

import numpy as np

from shardwriter.errors import (
    CallableError,
    DataError,
    SchemaConflict,
    ShardwriterError,
    SourceChanged,
    SourceError,
    reason,
)
from shardwriter.schema import FeatureType
from shardwriter.sources import huggingface
from shardwriter.sources.callables import describe_callable, describe_module
from shardwriter.sources.queue import ItemQueue, QueueItems, is_queue

# The records of a PyTorch ``DataLoader``: its batches, taken apart.
#
# The loader loads, with its own worker processes and in its own order. What its own collating has
# put together is taken apart in the same way, at any depth. A batch that a user's ``collate_fn``
# has made is a mapping or a tuple of columns, or a list of items.


def is_loader(data: Any) -> bool:
    """Tell whether an object is a ``DataLoader``; where torch is not imported nothing is one."""
    kind = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    return isinstance(kind, type) and isinstance(data, kind)


class LoaderItems:
    """The items of a loader; each reading is one epoch.

    Args:
        loader: A ``torch.utils.data.DataLoader``.

    Attributes:
        stable: Whether another epoch gives the same items in the same order.
        notes: What a person should know of it.
    """

    def __init__(self, loader: Any) -> None:
        from torch.utils.data import default_collate

        self._loader = loader
        self._is_batched = loader.batch_sampler is not None
        self._is_collated = loader.collate_fn is default_collate
        chosen = _chosen_by(loader)
        self.stable = chosen is None
        self.notes: Sequence[str] = []
        if chosen is not None:
            self.notes = [
                f"the loader's order is that of {chosen}, and another one each time: should this "
                "run be stopped, it can not be resumed (shuffle=False, and shuffle_seed here, can)"
            ]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        try:
            for number, batch in enumerate(batches):
                if self._is_batched:
                    yield from self._items_of(batch, number)
                else:
                    yield batch
        finally:
            # Whoever holds an error of a worker holds the workers too, if they are not ended here.
            end: Callable[[], None] | None = getattr(batches, "_shutdown_workers", None)
            if end is not None and not self._loader.persistent_workers:
                end()

    def _items_of(self, batch: Any, number: int) -> Iterator[Any]:
        if self._is_collated:
            yield from (_picked(batch, row) for row in range(_collated_length(batch, number)))
        elif isinstance(batch, list):
            if not all(map(_is_item, batch)):
                raise SourceError(
                    f"batch {number} is a list of {_kinds(batch)}, and that tells no items",
                    hint="have collate_fn return a dict or a tuple of columns, or a list of items "
                    "(dicts, tuples, bytes)",
                )
            yield from batch
        elif isinstance(batch, Mapping):
            for row in range(_length(list(batch.values()), number)):
                yield {name: column[row] for name, column in batch.items()}
        elif isinstance(batch, tuple):
            make = getattr(batch, "_make", tuple)  # a named tuple gives named tuples
            for row in range(_length(batch, number)):
                yield make(column[row] for column in batch)
        else:
            yield from (batch[row] for row in range(_length([batch], number)))


def _chosen_by(loader: Any) -> str | None:
    """Return the name of what decides the order; None where it is that of the dataset."""
    from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

    if not getattr(loader, "in_order", True):
        return "whichever worker is first (in_order=False)"
    if isinstance(loader.dataset, IterableDataset):
        return None
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return type(batches).__name__
    sampler = loader.sampler if batches is None else batches.sampler
    return None if type(sampler) is SequentialSampler else type(sampler).__name__


# -- batches ---------------------------------------------------------------------------------------


def _picked(column: Any, row: int) -> Any:
    """Return what torch's own collating was given at one place of a batch."""
    if isinstance(column, Mapping):
        return {name: _picked(inner, row) for name, inner in column.items()}
    if isinstance(column, (list, tuple)) and not _is_leaf(column):
        parts = (_picked(inner, row) for inner in column)
        make = getattr(column, "_make", None)
        return tuple(parts) if make is None else make(parts)
    return column[row]


def _is_leaf(column: Sequence[Any]) -> bool:
    """Tell texts, which collating leaves in a list, from parts that are each a column."""
    return bool(column) and all(isinstance(value, (str, bytes)) for value in column)


def _collated_length(batch: Any, number: int) -> int:
    return _length(list(_columns(batch)), number)


def _columns(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for inner in batch.values():
            yield from _columns(inner)
    elif isinstance(batch, (list, tuple)) and not _is_leaf(batch):
        for inner in batch:
            yield from _columns(inner)
    else:
        yield batch


def _length(columns: Sequence[Any], number: int) -> int:
    """Return how many items a batch has.

    Raises:
        SourceError: Its columns do not agree, or have no length.
    """
    try:
        lengths = {len(column) for column in columns}
    except TypeError as error:
        raise SourceError(
            f"batch {number} can not be taken apart: {error}",
            hint="each part of a batch has a first axis, or is a list, with an entry for each item",
        ) from None
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no"
        raise SourceError(
            f"batch {number} can not be taken apart: its parts have {found} entries",
            hint="have collate_fn return columns of one length",
        )
    return lengths.pop()


def _is_item(value: Any) -> bool:
    is_object = is_dataclass(value) and not isinstance(value, type)
    return isinstance(value, (Mapping, tuple, bytes)) or is_object


def _kinds(values: Sequence[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))


# Objects of other libraries that give items in a way of their own.


def adapted(data: Any) -> Any:
    """Return what gives an object's items: most objects do that themselves.

    Raises:
        SourceError: It is several datasets.
    """
    huggingface.check_no_splits(data)
    if huggingface.is_stream(data):
        return huggingface.UndecodedItems(data)
    if is_loader(data):
        return LoaderItems(data)
    if is_queue(data):
        return QueueItems(data)
    return data


KIND = "python"

_IN_MEMORY: Final = (list, tuple, np.ndarray)


class _NotLoaded:
    """Stands for an item that could not be loaded where the data is."""

    def __init__(self, error: DataError) -> None:
        self.error = error


class PythonSource:
    """Items from a Python object.

    Args:
        data: A sequence, an iterable, or a function without arguments that returns one.
        name: ``module:callable`` where that is how it was found.

    Attributes:
        given: The object itself, or what the function returned.
    """

    kind = KIND
    plan: Mapping[str, FeatureType] = {}
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None
    notes: Sequence[str] = ()

    def __init__(self, data: Any, name: str | None = None) -> None:
        self._name = name
        self._code = _code(data, name)
        self._make: Callable[[], Any] | None = None
        self._reading: Generator[Any] | None = None
        self._meanwhile: Callable[[], None] | None = None
        if callable(data) and not _is_sequence(data) and not isinstance(data, Iterable):
            self._make = data
            data = self._call()
        self.given = data
        data = adapted(data)
        if isinstance(data, (str, bytes, Mapping)) or not (
            _is_sequence(data) or isinstance(data, Iterable)
        ):
            raise SourceError(
                f"the source is of type {type(data).__name__}, which is no series of items",
                hint="give a path, an iterable, or an object with __len__ and __getitem__",
                item=name,
            )
        if isinstance(data, Generator) and inspect.getgeneratorstate(data) == "GEN_CLOSED":
            raise _spent(name)
        if isinstance(data, ItemQueue) and data.is_stopped:
            raise SourceError(
                "a write that was given this queue has ended, so nobody takes items out of it",
                hint="make a new ItemQueue for each write",
                item=name,
            )
        if isinstance(data, (set, frozenset)):
            raise SourceError(
                f"a {type(data).__name__} has no order", hint="give sorted(...) of it", item=name
            )
        self._data = data
        self._spent = False
        self._goes_whole = False
        self._skip_errors = False
        self.random_access = _is_sequence(data)
        # Where the data does not travel, an item is what stands there, and not just its index.
        self.travels = self.random_access and type(data) not in _IN_MEMORY
        self.num_items: int | None = self._count() if self.random_access else None
        self.stable = self.random_access or self._make is not None or not _is_iterator(data)
        if isinstance(data, LoaderItems):
            self.stable, self.notes = data.stable, data.notes

    def hold(self, *, skip_errors: bool) -> None:
        """Load items here: what is sent to another process is what they hold."""
        self.travels = False
        self._skip_errors = skip_errors

    def go_whole(self) -> None:
        """Have the data, or the function that makes it, go along where this object is sent."""
        self._goes_whole = True
        self.travels = self.random_access

    def while_waiting(self, meanwhile: Callable[[], None]) -> None:
        """Have a function called now and then while a queue has no item."""
        self._meanwhile = meanwhile

    def close(self) -> None:
        """Take no items any more: what gives them ends what it has started for that."""
        if self._reading is not None:
            self._reading.close()
        if isinstance(self._data, ItemQueue):
            self._data.stop()

    def __getstate__(self) -> dict[str, Any]:
        here = {"given": None, "_meanwhile": None, "_reading": None}
        state = {**self.__dict__, **here}
        if self._goes_whole and self._make is not None and not self.random_access:
            return {**state, "_data": None, "_spent": True}
        if self.travels or self._goes_whole:
            return {**state, "_make": None}
        return {**state, "_make": None, "_data": None}

    def _call(self) -> Any:
        assert self._make is not None
        try:
            return self._make()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise SourceError(
                    f"it can not be called without arguments: {error}", item=self._name
                ) from None
            raise _raised(error) from error
        except ShardwriterError:
            raise
        except (Exception, SystemExit) as error:
            raise _raised(error) from error

    def _count(self) -> int:
        try:
            return len(self._data)
        except (Exception, SystemExit) as error:
            raise _raised(error) from error

    def items(self) -> Iterator[Any]:
        """Yield every item; of a sequence that travels, the indices.

        Raises:
            SourceError: An iterator that was read once is read again.
        """
        if self.random_access:
            indices = range(len(self._data))
            return iter(indices) if self.travels else map(self.item, indices)
        if self._spent:
            given = self.given if self._make is None else self._call()
            data = self._data if given is self.given else adapted(given)
            if data is self._data and _is_iterator(data):
                raise _spent(self._name)
            self.given, self._data = given, data
        self._spent = True
        if isinstance(self._data, (ItemQueue, QueueItems)):
            self._data.meanwhile = self._meanwhile
        self._reading = _located(self._data)
        return self._reading

    def item(self, item_index: int) -> Any:
        """Return one item of a sequence: its index, or what stands there."""
        if self.travels:
            return item_index
        try:
            return self._loaded(item_index)
        except (SchemaConflict, SourceChanged):
            raise
        except DataError as error:
            if not self._skip_errors:
                raise
            return _NotLoaded(error)

    def _loaded(self, item_index: int) -> Any:
        try:
            return self._data[item_index]
        except ShardwriterError as error:
            raise error.locate(index=item_index) from error.__cause__
        except (Exception, SystemExit) as error:
            # As whoever loads an item would say it: the ledger does not tell where that was.
            raise CallableError(
                f"loading the item raised {type(error).__name__}: {reason(error)}", index=item_index
            ) from error

    def key(self, item: Any) -> str | None:
        """Items of Python objects have no names but their numbers."""
        return None

    def load(self, item: Any) -> Any:
        """Return the item itself, or what stands at its index."""
        if isinstance(item, _NotLoaded):
            raise item.error
        return self._data[item] if self.travels else item

    def digest(self) -> dict[str, Any]:
        """Return the reference, the code that the items come from, and the length, if known."""
        return {"code": self._code, "name": self._name, "num_items": self.num_items}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same, and whether it tells this data from other data at all.

        A list or an iterator that was handed over is known by nothing but its length.
        """
        return {**self.digest(), "identified": self._code is not None}


def _spent(name: str | None) -> SourceError:
    return SourceError(
        "this iterator was read before, and can not be read again",
        hint="give a function that makes a new one each time",
        item=name,
    )


def _located(iterable: Iterable[Any]) -> Generator[Any]:
    """Yield on; an error in the user's own iterator says how far it came."""
    count = 0
    try:
        for item in iterable:
            yield item
            count += 1
    except ShardwriterError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(error, count) from error


def _raised(error: BaseException, index: int | None = None) -> CallableError:
    return CallableError(
        f"the source raised {type(error).__name__}: {reason(error)}",
        index=index,
        hint="the traceback is shown with -v",
    )


def _code(data: Any, name: str | None) -> dict[str, Any] | None:
    """Say which code the items come from; None for an object that is just data."""
    if is_loader(data):
        data = data.dataset
    if name is not None:
        return describe_module(name.partition(":")[0])
    if callable(data) and not _is_sequence(data):
        return describe_callable(data)
    kind = type(data)
    return None if kind.__module__ == "builtins" else describe_callable(kind)


def _is_sequence(data: Any) -> bool:
    kind = type(data)
    if isinstance(data, (Mapping, str, bytes)) or not hasattr(kind, "__len__"):
        return False
    getter, iterator = _owner(kind, "__getitem__"), _owner(kind, "__iter__")
    # A PyTorch IterableDataset has __len__ and its own __iter__, and inherits a __getitem__ that
    # only raises: what the more derived class says counts.
    return getter is not None and (iterator is None or getter <= iterator)


def _owner(kind: type, name: str) -> int | None:
    """Return which class in the order of look-up defines a method; None where none does."""
    return next((place for place, base in enumerate(kind.__mro__) if name in vars(base)), None)


def _is_iterator(data: Any) -> bool:
    return isinstance(data, Iterator)
