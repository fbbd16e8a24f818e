"""``python``: objects that Python can iterate over or index.

A sequence (``__len__`` and ``__getitem__``: a list, a PyTorch dataset) has random access. Any other
iterable is read in order; a function without arguments is called for a new iterable whenever one is
needed. An iterator can be read once: reading it again is an error, not an empty dataset. Sets are
refused, because their order differs between processes.

``DataLoader``, ``IterableDataset`` of ``datasets``, and queues have readers of their own.

An item is a mapping from feature names to values; a named tuple or a dataclass; a
``SequenceExample``; ``bytes``, a complete record; a tuple, with names given in the options; or any
object that a map turns into one of these.
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

# -- DataLoader ------------------------------------------------------------------------------------


def is_loader(data: Any) -> bool:
    """Return whether an object is a ``DataLoader``; False if torch is not imported."""
    kind = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    return isinstance(kind, type) and isinstance(data, kind)


class LoaderItems:
    """The items of a ``DataLoader``: its batches, split into items. Each iteration is one epoch.

    The loader loads with its own workers, in its own order. Batches of ``default_collate`` are
    split at any depth. A batch of a custom ``collate_fn`` is a mapping or a tuple of columns, or a
    list of items.

    Args:
        loader: A ``torch.utils.data.DataLoader``.

    Attributes:
        resumable: Whether another epoch gives the same items in the same order.
        notes: Remarks for the user.
    """

    def __init__(self, loader: Any) -> None:
        from torch.utils.data import default_collate

        self._loader = loader
        self._is_batched = loader.batch_sampler is not None
        self._is_collated = loader.collate_fn is default_collate
        order = _random_order(loader)
        self.resumable = order is None
        self.notes: Sequence[str] = []
        if order is not None:
            self.notes = [
                f"the loader's order is that of {order} and changes each time, so an interrupted "
                "write can not be resumed (with shuffle=False, and shuffle_seed here, it can)"
            ]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        try:
            for number, batch in enumerate(batches):
                if self._is_batched:
                    yield from self._split_batch(batch, number)
                else:
                    yield batch
        finally:
            # A caller that stores an exception of a worker would also keep the workers running.
            end: Callable[[], None] | None = getattr(batches, "_shutdown_workers", None)
            if end is not None and not self._loader.persistent_workers:
                end()

    def _split_batch(self, batch: Any, number: int) -> Iterator[Any]:
        if self._is_collated:
            yield from (_take_row(batch, row) for row in range(_collated_length(batch, number)))
        elif isinstance(batch, list):
            if not all(map(_is_item, batch)):
                raise SourceError(
                    f"batch {number} is a list of {_kinds(batch)}, which are not items",
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


def _random_order(loader: Any) -> str | None:
    """Return the name of what determines a random order; None if it is the dataset's order."""
    from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

    if not getattr(loader, "in_order", True):
        return "the fastest worker (in_order=False)"
    if isinstance(loader.dataset, IterableDataset):
        return None
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return type(batches).__name__
    sampler = loader.sampler if batches is None else batches.sampler
    return None if type(sampler) is SequentialSampler else type(sampler).__name__


def _take_row(column: Any, row: int) -> Any:
    """Return one item of a collated batch, in the structure it had before collating."""
    if isinstance(column, Mapping):
        return {name: _take_row(inner, row) for name, inner in column.items()}
    if isinstance(column, (list, tuple)) and not _is_leaf(column):
        parts = (_take_row(inner, row) for inner in column)
        make = getattr(column, "_make", None)
        return tuple(parts) if make is None else make(parts)
    return column[row]


def _is_leaf(column: Sequence[Any]) -> bool:
    """Return whether a list is a column of texts, not a tuple of columns."""
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
    """Return the number of items of a batch.

    Raises:
        SourceError: Its columns have several lengths, or none.
    """
    try:
        lengths = {len(column) for column in columns}
    except TypeError as error:
        raise SourceError(
            f"batch {number} can not be split into items: {error}",
            hint="each part of a batch needs a first axis, or a list, with an entry for each item",
        ) from None
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no"
        raise SourceError(
            f"batch {number} can not be split into items: its parts have {found} entries",
            hint="have collate_fn return columns of equal length",
        )
    return lengths.pop()


def _is_item(value: Any) -> bool:
    is_object = is_dataclass(value) and not isinstance(value, type)
    return isinstance(value, (Mapping, tuple, bytes)) or is_object


def _kinds(values: Sequence[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))


# -- the source ------------------------------------------------------------------------------------


def adapt(data: Any) -> Any:
    """Return an iterable of an object's items: a reader for some libraries, or the object itself.

    Raises:
        SourceError: The object is several datasets.
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


class _LoadError:
    """An item that could not be loaded in the process that has the data."""

    def __init__(self, error: DataError) -> None:
        self.error = error


class PythonSource:
    """Items from a Python object.

    Args:
        data: A sequence, an iterable, or a function without arguments that returns one.
        name: ``module:callable``, if the object was given that way.

    Attributes:
        given: The object, or what the function returned.
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
        data = adapt(data)
        if isinstance(data, (str, bytes, Mapping)) or not (
            _is_sequence(data) or isinstance(data, Iterable)
        ):
            raise SourceError(
                f"SOURCE is a {type(data).__name__}; expected a path, an iterable or a dataset",
                hint="give a path, an iterable, or an object with __len__ and __getitem__",
                item=name,
            )
        if isinstance(data, Generator) and inspect.getgeneratorstate(data) == "GEN_CLOSED":
            raise _exhausted(name)
        if isinstance(data, ItemQueue) and data.is_stopped:
            raise SourceError(
                "the write that was reading this ItemQueue has ended",
                hint="use a new ItemQueue for each write",
                item=name,
            )
        if isinstance(data, (set, frozenset)):
            raise SourceError(
                f"a {type(data).__name__} has no order", hint="give sorted(...) of it", item=name
            )
        self._data = data
        self._is_spent = False
        self._includes_data = False
        self._skip_errors = False
        self.random_access = _is_sequence(data)
        # Without random access in another process, items are the values, not their indices.
        self.sendable = self.random_access and type(data) not in _IN_MEMORY
        self.num_items: int | None = self._count() if self.random_access else None
        self.resumable = self.random_access or self._make is not None or not _is_iterator(data)
        if isinstance(data, LoaderItems):
            self.resumable, self.notes = data.resumable, data.notes

    def preload(self, *, skip_errors: bool) -> None:
        """Load items in this process, and send their contents to other processes."""
        self.sendable = False
        self._skip_errors = skip_errors

    def include_data(self) -> None:
        """Pickle the data, or the function that makes it, with this object."""
        self._includes_data = True
        self.sendable = self.random_access

    def while_waiting(self, meanwhile: Callable[[], None]) -> None:
        """Set a function to call several times a second while a queue is empty."""
        self._meanwhile = meanwhile

    def close(self) -> None:
        """Stop taking items; the iterable is closed, and a queue is stopped."""
        if self._reading is not None:
            self._reading.close()
        if isinstance(self._data, ItemQueue):
            self._data.stop()

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "given": None, "_meanwhile": None, "_reading": None}
        if self._includes_data and self._make is not None and not self.random_access:
            return {**state, "_data": None, "_is_spent": True}
        if self.sendable or self._includes_data:
            return {**state, "_make": None}
        return {**state, "_make": None, "_data": None}

    def _call(self) -> Any:
        assert self._make is not None
        try:
            return self._make()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise SourceError(
                    f"the source can not be called without arguments: {error}", item=self._name
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
        """Yield every item; of a sequence that can be sent, the indices.

        Raises:
            SourceError: An iterator is read a second time.
        """
        if self.random_access:
            indices = range(len(self._data))
            return iter(indices) if self.sendable else map(self.item, indices)
        if self._is_spent:
            given = self.given if self._make is None else self._call()
            data = self._data if given is self.given else adapt(given)
            if data is self._data and _is_iterator(data):
                raise _exhausted(self._name)
            self.given, self._data = given, data
        self._is_spent = True
        if isinstance(self._data, (ItemQueue, QueueItems)):
            self._data.meanwhile = self._meanwhile
        self._reading = _iterate(self._data)
        return self._reading

    def item(self, item_index: int) -> Any:
        """Return one item of a sequence: its index, or its value."""
        if self.sendable:
            return item_index
        try:
            return self._load(item_index)
        except (SchemaConflict, SourceChanged):
            raise
        except DataError as error:
            if not self._skip_errors:
                raise
            return _LoadError(error)

    def _load(self, item_index: int) -> Any:
        try:
            return self._data[item_index]
        except ShardwriterError as error:
            raise error.locate(index=item_index) from error.__cause__
        except (Exception, SystemExit) as error:
            # Worded as in a worker: the error log does not depend on where the item was loaded.
            raise CallableError(
                f"loading the item raised {type(error).__name__}: {reason(error)}", index=item_index
            ) from error

    def key(self, item: Any) -> str | None:
        """Return None: items of Python objects have no names."""
        return None

    def load(self, item: Any) -> Any:
        """Return the item itself, or the item of an index."""
        if isinstance(item, _LoadError):
            raise item.error
        return self._data[item] if self.sendable else item

    def digest(self) -> dict[str, Any]:
        """Return the reference, the code of the source, and the length, if known."""
        return {"code": self._code, "name": self._name, "num_items": self.num_items}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same, and whether it identifies the data.

        A list or an iterator is identified by nothing but its length.
        """
        return {**self.digest(), "identified": self._code is not None}


def _exhausted(name: str | None) -> SourceError:
    return SourceError(
        "this iterator was already read, and can not be read again",
        hint="give a function that returns a new one each time",
        item=name,
    )


def _iterate(iterable: Iterable[Any]) -> Generator[Any]:
    """Yield the items; an error of the user's iterator gets the number of items before it."""
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
    """Return what identifies the code of the items; None for an object that is only data."""
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
    # only raises: the method of the more derived class counts.
    return getter is not None and (iterator is None or getter <= iterator)


def _owner(kind: type, name: str) -> int | None:
    """Return the position in the method resolution order of the class that defines a method."""
    return next((place for place, base in enumerate(kind.__mro__) if name in vars(base)), None)


def _is_iterator(data: Any) -> bool:
    return isinstance(data, Iterator)
