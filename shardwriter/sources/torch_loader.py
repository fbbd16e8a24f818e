"""The records of a PyTorch ``DataLoader``: its batches, taken apart.

The loader loads, with its own worker processes and in its own order. What its own collating has
put together is taken apart in the same way, at any depth. A batch that a user's ``collate_fn`` has
made is a mapping or a tuple of columns, or a list of items.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from shardwriter.errors import SourceError


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
