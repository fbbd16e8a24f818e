"""Indices that choose the items of a source to write, and their order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.option_types import check_value
from shardwriter.errors import OptionError

_INT64_END = 1 << 63


@dataclass(frozen=True, eq=False)
class ItemIndices:
    """Chosen items of a source, in output order.

    Attributes:
        numbers: int64[n] positions in the source.
    """

    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemIndices) and np.array_equal(self.numbers, other.numbers)

    def __hash__(self) -> int:
        return hash(self._sha256)

    @cached_property
    def _sha256(self) -> str:
        return sha256(self.numbers.astype("<i8", copy=False).tobytes()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return number and digest of the indices, for the job hash."""
        return {"count": len(self), "sha256": self._sha256}

    def check(self, num_items: int) -> None:
        """Check the indices against the number of items of the source.

        Raises:
            OptionError: One is out of range.
        """
        entry = _first(self.numbers >= num_items)
        if entry is not None:
            raise OptionError(
                f"index {self.numbers[entry]} (entry {entry} of the indices) is out of range: the "
                f"source has {num_items:,} items",
                hint="items count from 0",
            )


def item_indices(values: Any, *, allow_duplicates: bool = False) -> ItemIndices:
    """Return checked indices; `ItemIndices.check` compares them with a source.

    Args:
        values: A list, a range, or an array of integers.
        allow_duplicates: Whether an item may be written more than once.

    Raises:
        OptionError: An entry is not an index or is repeated; the message names it.
    """
    check_value("allow_duplicates", allow_duplicates, bool)
    numbers = _integers(values)
    entry = _first(numbers < 0)
    if entry is not None:
        raise OptionError(
            f"index {numbers[entry]} (entry {entry} of the indices) is negative",
            hint="items count from 0",
        )
    if not allow_duplicates:
        _check_unique(numbers)
    return ItemIndices(numbers)


def _integers(values: Any) -> NDArray[np.int64]:
    """Return indices as int64[n], in memory of their own."""
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step, dtype=np.int64)
    if isinstance(values, (list, tuple)):
        entry = next((k for k, v in enumerate(values) if not _is_integer(v)), None)
        if entry is not None:
            raise OptionError(f"entry {entry} of the indices is {values[entry]!r}, not an integer")
        try:
            return np.array(values, np.int64)
        except OverflowError:
            entry = next(k for k, v in enumerate(values) if not -_INT64_END <= v < _INT64_END)
            raise OptionError(
                f"index {values[entry]} (entry {entry} of the indices) is out of range",
                hint="items count from 0",
            ) from None
    if not hasattr(values, "__array__"):
        raise OptionError(
            f"the indices are of type {type(values).__name__}",
            hint="give a list, a range, or an array of integers",
        )
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise OptionError(
            f"the indices are {array.dtype.name}{list(array.shape)}",
            hint="give a one-dimensional array of integers",
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) >= _INT64_END:
        raise OptionError(f"index {array.max()} is out of range", hint="items count from 0")
    return array.astype(np.int64)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_unique(numbers: NDArray[np.int64]) -> None:
    in_order = np.sort(numbers)
    repeat = _first(in_order[1:] == in_order[:-1])
    if repeat is not None:
        twice = in_order[repeat]
        entries = np.flatnonzero(numbers == twice)
        raise OptionError(
            f"index {twice} is repeated: entries {entries[0]} and {entries[1]} of the indices",
            hint="use --allow-duplicates to write items more than once",
        )


def _first(found: NDArray[np.bool_]) -> int | None:
    """Return the index of the first true value; None if there is none."""
    index = int(found.argmax()) if len(found) else 0
    return index if len(found) and found[index] else None
