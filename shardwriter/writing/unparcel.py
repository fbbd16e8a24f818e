"""The other side of :mod:`shardwriter.writing.parcel`: what a worker makes of what it is sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from shardwriter.storage.descriptor import Descriptor

_received: list[int] = []  # descriptors

_classes: dict[int, type] = {}  # of the program, by number


def unpack(data: bytes, descriptors: Sequence[int]) -> Any:
    """Return the object; its open files are those of ``descriptors``."""
    _received[:] = descriptors
    return pickle.loads(data)


def take_descriptor(number: int) -> Descriptor:
    """Return an open file that was sent."""
    return Descriptor(_received[number])


def map_again(
    path: str,
    mode: Literal["r", "c"],
    begin: int,
    num_bytes: int,
    first: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    """Map the file of a memory-mapped array again."""
    mapped = np.memmap(path, np.uint8, mode, begin, (num_bytes,))
    return np.ndarray(shape, dtype, mapped, first, strides)


def class_of(number: int, data: bytes | None = None) -> type:
    """Return a class of the program; the first time with what it is made of."""
    if data is not None:
        _classes[number] = pickle.loads(data)
    return _classes[number]
