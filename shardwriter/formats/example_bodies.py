"""The contents of lists, of many rows at once: numbers without a step of Python for each.

``data`` are the joined payloads, with 16 bytes behind the last one; ``body`` and ``ends`` are
``int64[n]``: the content of row i is in ``data[body[i]:ends[i]]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.example_wire import Values
from shardwriter.formats.feature_values import Unset
from shardwriter.formats.varint import decode_varints

Rows: TypeAlias = "NDArray[np.int64]"
# A column as far as it is known: an array, or a list by rows, of the rows that have it.
Cells: TypeAlias = (
    "NDArray[np.int64] | NDArray[np.float32] | SingleBlobs | list[Values | Unset | None]"
)

_WORD_BYTES: Final = 8
# Lists over this gain nothing from being read together, and fall out of the processor's cache.
_LONG_LIST_BYTES: Final = 1 << 14
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)


class SingleBlobs(list[bytes]):
    """The bytes of rows that have one value each, without a list around each of them."""

    def in_lists(self) -> list[Values | Unset | None]:
        """Return the values by rows, as lists of one."""
        return [[blob] for blob in self]


def in_rows(cells: Cells) -> Iterable[Values | Unset | None]:
    """Return cells as something with an item for each row."""
    return cells.in_lists() if isinstance(cells, SingleBlobs) else cells


def is_body(data: NDArray[np.uint8], kind: str, body: Rows, ends: Rows) -> NDArray[np.bool_]:
    """Say which of the contents can be that of a list's only field."""
    if kind == "float":
        return np.asarray((ends - body) % 4 == 0)
    if kind == "int64":
        # Each row ends with a varint of its own.
        return np.asarray((body < ends) & (data[ends - 1] < 0x80))
    return np.ones(body.size, np.bool_)


def read_bodies(blob: bytes, data: NDArray[np.uint8], kind: str, body: Rows, ends: Rows) -> Cells:
    """Read lists whose only field is in ``blob[body[i]:ends[i]]``."""
    sizes = ends - body
    if kind == "int64" and sizes.max(initial=0) <= _WORD_BYTES:
        numbers = _read_single_varints(data, body, sizes)
        if numbers is not None:
            return numbers
    if kind == "float" and (sizes == 4).all():
        floats: NDArray[np.float32] = windows(data, 4)[body].view("<f4")
        return floats.astype(np.float32, copy=False)
    if kind == "int64" and sizes.sum() >= _LONG_LIST_BYTES * sizes.size:
        bounds = zip(body.tolist(), ends.tolist(), strict=True)
        lists = [decode_varints(data[a:b]) for a, b in bounds]
        alike = len({values.size for values in lists}) == 1
        return np.stack(lists) if alike else [*lists]
    bodies = [blob[a:b] for a, b in zip(body.tolist(), ends.tolist(), strict=True)]
    if kind == "bytes":
        return SingleBlobs(bodies)
    packed = np.frombuffer(b"".join(bodies), np.uint8)
    flat: NDArray[np.int64] | NDArray[np.float32]
    if kind == "float":
        flat, counts = packed.view("<f4").astype(np.float32), sizes // 4
    else:
        flat = decode_varints(packed)
        # No row is empty, see `is_body`.
        counts = np.add.reduceat(packed < 0x80, np.cumsum(sizes) - sizes, dtype=np.int64)
    if (counts == counts[0]).all():
        return flat.reshape(body.size, -1)
    splits = [0, *np.cumsum(counts).tolist()]
    return [flat[a:b] for a, b in pairwise(splits)]


def _read_single_varints(
    data: NDArray[np.uint8], body: Rows, sizes: Rows
) -> NDArray[np.int64] | None:
    """Read one varint of up to 8 bytes at each position, ``int64[n, 1]``; None if some has more."""
    words = windows(data, _WORD_BYTES)[body].view("<u8").reshape(-1).astype(np.uint64, copy=False)
    unused = (8 * (_WORD_BYTES - sizes)).astype(np.uint64)
    more = (~np.uint64(0) >> unused) >> np.uint64(8)  # the bytes before the last one
    if ((words & _HIGH_BITS & more) != (_HIGH_BITS & more)).any():
        return None
    # The groups of 7 bits move together: 8 of them, then pairs, then fours.
    low = words & (~np.uint64(0) >> unused) & ~_HIGH_BITS
    low = (low & np.uint64(0x007F007F007F007F)) | ((low & np.uint64(0x7F007F007F007F00)) >> _ONE)
    low = (low & np.uint64(0x00003FFF00003FFF)) | (
        (low & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    )
    low = (low & np.uint64(0x000000000FFFFFFF)) | (
        (low & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
    )
    return np.asarray(low).view(np.int64).reshape(-1, 1)


def windows(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """See ``data`` as ``uint8[positions, size]``: what follows each position."""
    shape = (data.size - size + 1, size)
    windows: NDArray[np.uint8] = np.ndarray(shape, np.uint8, data, strides=(1, 1))
    return windows
