"""The assignment of items to shards.

    Item i belongs to shard i mod N, and a shard has its records in ascending i.

T items in source order have the indices 0..T-1. G is the sorted list of gaps: items without a
record. Without gaps, item i is record i div N of its shard, shard lengths differ by at most one,
and reading one record of each shard in turn gives source order. With gaps both hold approximately.

Here is the arithmetic that follows from the rule. Writers compute ``i % N`` where they write:
``writing/part.py`` for each record, ``writing/process.py`` to choose the worker of an item, and
``writing/open_shards.py`` for frames that are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import ManifestError

MAX_EXPANDED_GAPS: Final = 1 << 20
"""Gaps that are expanded without an index file that has them: 8 MiB as an array."""

_MAX_BLOCK_TOTAL: Final = 1 << 27  # 1 GiB in an index file
_BLOCK_GAPS: Final = 1 << 16


def num_shard_items(num_items: int, num_shards: int, shard: int) -> int:
    """Return the number of items that belong to a shard: ceil((T - s) / N)."""
    return max(0, -(-(num_items - shard) // num_shards))


class Gaps:
    """Converts between items and positions of records in shards, skipping gaps.

    Each conversion is a binary search.

    Args:
        gaps: Sorted indices of items without a record.
        num_shards: N.
    """

    def __init__(self, gaps: Sequence[int] | NDArray[np.int64], num_shards: int) -> None:
        self._num_shards = num_shards
        numbers = np.asarray(gaps, np.int64)
        # With H_k = g_k - k, the number of records before gap k, record r is item
        # r + bisect_right(H, r); the same holds inside a shard.
        self._before = numbers - np.arange(len(numbers))
        order = np.argsort(numbers % num_shards, kind="stable")
        self._starts = np.searchsorted((numbers % num_shards)[order], np.arange(num_shards + 1))
        self._turns = (numbers // num_shards)[order]
        of_shard = np.diff(self._starts)
        in_shard = np.arange(len(numbers)) - np.repeat(self._starts[:-1], of_shard)
        self._turns_before = self._turns - in_shard

    def source_index(self, record: int) -> int:
        """Return the item index of a record counted in reading order 0..T-|G|-1."""
        return record + int(np.searchsorted(self._before, record, side="right"))

    def position(self, item_index: int) -> int:
        """Return the position of an item's record in its shard; the item must not be a gap."""
        turn, shard = divmod(item_index, self._num_shards)
        gaps = slice(self._starts[shard], self._starts[shard + 1])
        return turn - int(np.searchsorted(self._turns[gaps], turn))

    def item_index(self, shard: int, position: int) -> int:
        """Return the item of the record at a position of a shard: the inverse of `position`."""
        gaps = slice(self._starts[shard], self._starts[shard + 1])
        turn = position + int(np.searchsorted(self._turns_before[gaps], position, side="right"))
        return shard + self._num_shards * turn


class GapRuns(Sequence[int]):
    """Sorted gaps as runs: a few bytes of a manifest may mean 10^12 gaps.

    Counting and lookup need memory in proportion to the runs. Iteration and conversion to an array
    expand the gaps, and raise if the size of the index file does not account for so many.

    Args:
        runs: ``[first, count]`` of each run, in ascending order.
        index_bytes: Size of the dataset's index file, which has 8 bytes per gap; 0 if it is
            missing.
        path: The manifest, for errors.

    Attributes:
        firsts: int64[r]: first gap of each run.
        counts: int64[r]: length of each run.
    """

    def __init__(
        self, runs: Sequence[Sequence[int]], index_bytes: int = 0, path: str | None = None
    ) -> None:
        firsts, counts = np.array(runs, np.int64).reshape(-1, 2).T
        is_new = np.ones(len(firsts), np.bool_)  # adjacent runs are joined
        is_new[1:] = firsts[1:] != (firsts + counts)[:-1]
        self.firsts = firsts[is_new]
        self.counts = np.add.reduceat(counts, np.flatnonzero(is_new)) if len(counts) else counts
        self._ends = np.cumsum(self.counts)  # gaps up to the end of each run
        self._max_expanded = max(MAX_EXPANDED_GAPS, index_bytes // 8)
        self._path = path

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        index = range(len(self))[index]
        run = int(np.searchsorted(self._ends, index, side="right"))
        return int(self.firsts[run] + index - (self._ends[run] - self.counts[run]))

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, int | np.integer):
            return False
        run = int(np.searchsorted(self.firsts, item, side="right")) - 1
        return run >= 0 and int(item) < int(self.firsts[run]) + int(self.counts[run])

    def __iter__(self) -> Iterator[int]:
        self._check(self._max_expanded)
        return (gap for block in self.blocks() for gap in block.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self._check(self._max_expanded)
        return self._expanded(0, len(self)).astype(dtype or np.int64, copy=False)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GapRuns):
            return to_runs(self) == to_runs(other)
        if isinstance(other, list | tuple):
            return len(self) == len(other) and to_runs(self) == to_runs(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} gaps in {len(self.firsts):,} runs>"

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the gaps as int64 arrays of bounded length.

        Raises:
            ManifestError: There are more than an index file can have.
        """
        self._check(max(self._max_expanded, _MAX_BLOCK_TOTAL))
        return (
            self._expanded(start, min(start + _BLOCK_GAPS, len(self)))
            for start in range(0, len(self), _BLOCK_GAPS)
        )

    def per_shard(self, num_shards: int) -> list[int]:
        """Return the number of gaps of each shard."""
        firsts, stops = self.firsts, self.firsts + self.counts
        in_all = int((stops // num_shards - firsts // num_shards).sum())
        # Shard s has one more number below x than x div N if s < x mod N.
        remainders = np.bincount(stops % num_shards, minlength=num_shards + 1)
        remainders -= np.bincount(firsts % num_shards, minlength=num_shards + 1)
        extra = np.cumsum(remainders[::-1])[::-1][1:]
        return [in_all + int(more) for more in extra]

    def _check(self, limit: int) -> None:
        if len(self) > limit:
            raise ManifestError(
                f"the manifest lists {len(self):,} items without a record, but no index file is "
                "large enough for them",
                path=self._path,
                hint="`shardwriter index` restores a lost index; if it fails, the manifest is "
                "damaged: write the dataset again",
            )

    def _expanded(self, start: int, stop: int) -> NDArray[np.int64]:
        indices = np.arange(start, stop)
        run = np.searchsorted(self._ends, indices, side="right")
        gaps: NDArray[np.int64] = (self.firsts - (self._ends - self.counts))[run] + indices
        return gaps


def gaps_per_shard(gaps: Iterable[int], num_shards: int) -> list[int]:
    """Return the number of gaps of each shard."""
    if isinstance(gaps, GapRuns):
        return gaps.per_shard(num_shards)
    counts = [0] * num_shards
    for gap in gaps:
        counts[gap % num_shards] += 1
    return counts


def assignment_error(
    records: Sequence[int], num_items: int, gaps: Iterable[int] = ()
) -> tuple[int, int, int] | None:
    """Return the first shard that does not have records_s + gaps_s = ceil((T - s) / N).

    Args:
        records: Number of records of each shard.
        num_items: T.
        gaps: Items without a record.

    Returns:
        The shard, with its expected and its actual number of records; None if all are correct.
    """
    num_shards = len(records)
    missing = gaps_per_shard(gaps, num_shards)
    for shard, count in enumerate(records):
        expected = num_shard_items(num_items, num_shards, shard) - missing[shard]
        if count != expected:
            return shard, expected, count
    return None


def to_runs(gaps: Iterable[int]) -> list[list[int]]:
    """Return sorted gaps as ``[first, count]`` runs, as in the manifest."""
    if isinstance(gaps, GapRuns):
        firsts, counts = gaps.firsts.tolist(), gaps.counts.tolist()
        return [[first, count] for first, count in zip(firsts, counts, strict=True)]
    runs: list[list[int]] = []
    for gap in gaps:
        if runs and gap == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([gap, 1])
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> list[int]:
    """Return the sorted gaps of ``[first, count]`` runs."""
    return [gap for first, count in runs for gap in range(first, first + count)]
