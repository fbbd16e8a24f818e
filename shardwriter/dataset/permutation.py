"""The permutation "feistel8/1": a shuffle of any size in constant memory.

It is a function of (n, seed, epoch), so a shuffled write can be repeated, resumed and divided among
workers without storing an order, and inverted to locate an item.

Small n are sorted by hashed keys, since a Feistel network is far from uniform there. For larger n,
8 rounds permute a grid of a x b >= n cells with a = ceil(sqrt n); a result beyond n is permuted
again ("cycle walking"). All arithmetic is mod 2^64.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import isqrt
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALGORITHM: Final = "feistel8/1"
SORTED_UP_TO: Final = 1 << 16

_U64 = NDArray[np.uint64]
_GOLDEN_INT: Final = 0x9E3779B97F4A7C15
_MIX_INT: Final = 0xD6E8FEB86659FD93
_MASK_64: Final = (1 << 64) - 1
_GOLDEN = np.uint64(_GOLDEN_INT)
_MIX = np.uint64(_MIX_INT)
_SHIFT = np.uint64(32)


class Permutation:
    """A fixed permutation of 0..n-1.

    Args:
        size: n.
        seed: Selects the permutation; 0 <= seed < 2^64.
        epoch: Selects another one for the same seed.
    """

    def __init__(self, size: int, seed: int, epoch: int = 0) -> None:
        self.size = size
        self._key = size, seed, epoch
        data = b"".join(v.to_bytes(8, "little") for v in (size, seed, epoch))
        digest = blake2b(data, digest_size=64, person=b"shardwriter.perm").digest()
        self._keys: _U64 = np.frombuffer(digest, "<u8").astype(np.uint64)
        self._order: NDArray[np.int64] | None = None
        if size <= SORTED_UP_TO:
            steps = np.arange(1, size + 1, dtype=np.uint64)
            self._order = np.argsort(_mix64(self._keys[0] + steps * _GOLDEN), kind="stable")
        else:
            rows = isqrt(size - 1) + 1
            self._rows = np.uint64(rows)
            self._columns = np.uint64(-(-size // rows))

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return "Permutation({}, seed={}, epoch={})".format(*self._key)

    def __reduce__(self) -> tuple[type[Permutation], tuple[int, int, int]]:
        return Permutation, self._key

    def __call__(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the int64[k] items at int64[k] positions.

        Raises:
            IndexError: A position is outside of 0..n-1.
        """
        positions = self._check_range(indices)
        if self._order is not None:
            return np.asarray(self._order[positions])
        return self._walk(positions, self._permute)

    def item(self, position: int) -> int:
        """Return the item at one position, ten times as fast as with an array.

        Raises:
            IndexError: The position is outside of 0..n-1.
        """
        if not 0 <= position < self.size:
            raise IndexError(f"an index is outside of 0..{self.size - 1}")
        if self._order is not None:
            return int(self._order[position])
        sides = int(self._rows), int(self._columns)
        keys = self._keys.tolist()
        while True:
            cell = list(divmod(position, sides[1]))
            for number, key in enumerate(keys):
                side = number % 2
                z = (cell[1 - side] ^ key) * _GOLDEN_INT & _MASK_64
                z = (z ^ z >> 32) * _MIX_INT & _MASK_64
                cell[side] = (cell[side] + ((z >> 32) * sides[side] >> 32)) % sides[side]
            position = cell[0] * sides[1] + cell[1]
            if position < self.size:
                return position

    def inverse(self, items: ArrayLike) -> NDArray[np.int64]:
        """Return the int64[k] positions of int64[k] items.

        Raises:
            IndexError: An item is outside of 0..n-1.
        """
        numbers = self._check_range(items)
        if self._order is not None:
            return np.asarray(np.argsort(self._order, kind="stable")[numbers])
        return self._walk(numbers, self._permute_back)

    def _check_range(self, values: ArrayLike) -> NDArray[np.int64]:
        numbers = np.asarray(values, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.size):
            raise IndexError(f"an index is outside of 0..{self.size - 1}")
        return numbers

    def _walk(self, values: NDArray[np.int64], step: Callable[[_U64], _U64]) -> NDArray[np.int64]:
        cells = np.atleast_1d(values).astype(np.uint64)
        cells = step(cells)
        outside = np.flatnonzero(cells >= self.size)
        while outside.size:
            moved = step(cells[outside])
            cells[outside] = moved
            outside = outside[moved >= self.size]
        return cells.astype(np.int64).reshape(np.shape(values))

    def _split(self, cells: _U64) -> tuple[_U64, _U64]:
        left: _U64 = cells // self._columns
        return left, cells - left * self._columns

    def _permute(self, cells: _U64) -> _U64:
        left, right = self._split(cells)
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                left = (left + _noise(right, key, self._rows)) % self._rows
            else:
                right = (right + _noise(left, key, self._columns)) % self._columns
        joined: _U64 = left * self._columns + right
        return joined

    def _permute_back(self, cells: _U64) -> _U64:
        left, right = self._split(cells)
        for number in range(7, -1, -1):
            key = self._keys[number]
            if number % 2 == 0:
                left = (left + self._rows - _noise(right, key, self._rows)) % self._rows
            else:
                right = (right + self._columns - _noise(left, key, self._columns)) % self._columns
        joined: _U64 = left * self._columns + right
        return joined


def _noise(values: _U64, key: np.uint64, modulus: np.uint64) -> _U64:
    z: _U64 = (values ^ key) * _GOLDEN
    z ^= z >> _SHIFT
    z *= _MIX
    scaled: _U64 = (z >> _SHIFT) * modulus >> _SHIFT
    return scaled


def _mix64(z: _U64) -> _U64:
    """Return the finalizer of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _U64 = z ^ (z >> np.uint64(31))
    return mixed
