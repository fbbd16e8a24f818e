"""Floats as float32, as a Feature stores them, and the numbers that lose more than usual.

Rounding to the 24 bits of float32 is what people expect of measured values. A number is *lost*
where that is not all: one from 2**24 on that changes (a time stamp, an id), or one so small that
most of its digits go. Encoding stores it all the same, and :data:`NOTED` says so, for whoever wants
to know which number it was. The same rule holds for float types of other sizes, with their bits:
integers from 2**53 on may be lost in float64.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.feature_errors import overflow
from shardwriter.formats.raw_array import dtype_named

EXACT: Final = 2.0**24
"""All whole numbers up to here are float32."""

EXACT_FLOAT64: Final = 2.0**53
"""All whole numbers up to here are float64."""

SMALLEST: Final = 2.0**-126
"""Float32 has fewer bits for what is smaller."""

BITS: Final = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Bits of the significand, by dtype."""

_FLOAT32: Final = np.dtype("<f4")


class _Noted(threading.local):
    """What was encoded in this thread.

    Attributes:
        has_lost: Whether a number was lost since this was last set to False.
    """

    has_lost = False


NOTED: Final = _Noted()


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """Convert floats to little-endian float32: rounding is fine, an overflow is not.

    Args:
        array: ``float*[...]``; float32 keeps all its bits.

    Raises:
        FeatureError: A finite number is too large for float32.
    """
    if array.dtype == _FLOAT32:
        return array
    if array.itemsize <= 4:
        return array.astype(_FLOAT32)
    wide = array if array.itemsize == 8 else _as_float64(array)
    try:
        with np.errstate(over="raise", under="raise", invalid="ignore"):
            narrow = wide.astype(_FLOAT32)
    except FloatingPointError:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = wide.astype(_FLOAT32)
    else:
        # fmax passes NaN over; where all are NaN the comparison is false.
        if not narrow.size or np.fmax.reduce(np.abs(narrow), None) < EXACT:
            return narrow
    infinite = np.isinf(narrow) & np.isfinite(array)
    if infinite.any():
        raise overflow(array[infinite].flat[0])
    if lost_place(wide) is not None:
        NOTED.has_lost = True
    return narrow


def _as_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return longdoubles as Python floats are."""
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(np.float64)


def note_float(value: float) -> None:
    """Note a single number that is stored as float32, where it is lost."""
    if lost_place(np.array([value])) is not None:
        NOTED.has_lost = True


def integers_as_float64(integers: NDArray[Any] | Sequence[Any]) -> NDArray[np.float64]:
    """Return integers, or a list of numbers, as float64, and note those that this loses.

    Raises:
        OverflowError: An integer is too large for float64.
    """
    wide = np.asarray(integers, np.float64)
    if wide.size and not np.abs(wide).max() < EXACT_FLOAT64:
        exact = integers if isinstance(integers, np.ndarray) else np.array(integers, object)
        if lost_place(exact, "float64") is not None:
            NOTED.has_lost = True
    return wide


def lost_place(values: NDArray[Any], dtype: str = "float32") -> int | None:
    """Return the place of the first lost number, in the flat array; None where there is none.

    Args:
        values: Numbers of any dtype and shape; of dtype object where integers and floats are mixed.
        dtype: What they are stored as, one of :data:`BITS`.
    """
    flat = values.reshape(-1)
    bits = BITS[dtype]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wide = flat.astype(np.float64)
        narrow = wide.astype(dtype_named(dtype)).astype(np.float64)
        size = np.abs(wide)
        is_lost = (size >= 2.0**bits) | (np.abs(narrow - wide) > size * 2.0**-bits)
        is_lost &= (narrow != wide) & np.isfinite(wide)
    place = int(is_lost.argmax()) if is_lost.any() else len(flat)
    if flat.dtype.kind in "iuO":  # float64 may have changed integers before
        for row in map(int, np.flatnonzero(size[:place] >= EXACT_FLOAT64)):
            number = flat[row]
            if isinstance(number, int | np.integer) and int(number) != float(narrow[row]):
                return row
    return place if place < len(flat) else None
