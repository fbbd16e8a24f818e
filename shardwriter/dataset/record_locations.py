"""Record numbers in reading order, and where these records stand: whole arrays at once.

Sets that shardwriter wrote follow its assignment (:mod:`shardwriter.dataset.assignment`). Foreign
sets are read one record of each shard in turn, and a shard that is at its end drops out, which is
what an interleave of their files gives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_Int64s = NDArray[np.int64]


class RecordLocations(Protocol):
    """Where records stand, by their numbers in reading order, which have to be in range.

    Attributes:
        num_records: How many there are.
    """

    num_records: int

    def place(self, record: int) -> tuple[int, int]:
        """Return the shard of a record, and its position there."""

    def places(self, records: _Int64s) -> tuple[_Int64s, _Int64s]:
        """Return the same of int64[k] records: int64[k] shards and int64[k] positions."""

    def source_index(self, records: _Int64s) -> _Int64s:
        """Return int64[k]: the items that gave the records, counted in source order."""


class AssignedLocations:
    """Item i is in shard i mod N at position i div N, less the gaps in front of it there.

    Args:
        num_shards: N.
        gaps: Sorted items without a record.
        num_records: How many records there are.
    """

    def __init__(
        self, num_shards: int, gaps: Sequence[int] | NDArray[np.integer], num_records: int
    ) -> None:
        self.num_records = num_records
        self._num_shards = num_shards
        numbers = np.asarray(gaps, np.int64)
        self._num_gaps = len(numbers)
        # H_k = g_k - k is how many records lie in front of gap k: record r is item
        # r + bisect_right(H, r).
        self._before = numbers - np.arange(len(numbers))
        shards, turns = numbers % num_shards, numbers // num_shards
        # One sorted array for all shards: a gap is found by its shard and turn as one number.
        self._span = int(turns[-1]) + 2 if len(numbers) else 1
        self._keys = np.sort(shards * self._span + turns)
        self._of_shards = np.searchsorted(self._keys, np.arange(num_shards) * self._span)

    def place(self, record: int) -> tuple[int, int]:
        """Return the shard of a record, and its position there."""
        if not self._num_gaps:
            position, shard = divmod(record, self._num_shards)
            return shard, position
        item = record + bisect_right(self._before.data, record)
        turn, shard = divmod(item, self._num_shards)
        key = shard * self._span + min(turn, self._span - 1)
        return shard, turn - bisect_left(self._keys.data, key) + int(self._of_shards[shard])

    def places(self, records: _Int64s) -> tuple[_Int64s, _Int64s]:
        """Return int64[k] shards and int64[k] positions of int64[k] records."""
        items = self.source_index(records)
        turns = items // self._num_shards
        shards = items - turns * self._num_shards
        if not self._num_gaps:
            return shards, turns
        keys = shards * self._span + np.minimum(turns, self._span - 1)
        missing = np.searchsorted(self._keys, keys) - self._of_shards[shards]
        return shards, turns - missing

    def source_index(self, records: _Int64s) -> _Int64s:
        """Return int64[k]: the items that gave the records, counted in source order."""
        if not self._num_gaps:
            return records
        return records + np.searchsorted(self._before, records, side="right")


class InterleavedLocations:
    """One record of each shard in turn; shards that are at their end drop out.

    Where lengths follow the law this is the law without gaps. Between two lengths that shards have
    the same shards take part in every round, so a record's round is found by division. Which of
    them has the j-th turn is asked of a wavelet matrix: the j-th smallest of the numbers in front
    of a place, with one array for each binary digit.

    Args:
        counts: Records of each shard.
    """

    def __init__(self, counts: Sequence[int] | NDArray[np.integer]) -> None:
        lengths = np.asarray(counts, np.int64)
        self.num_records = int(lengths.sum())
        order = np.argsort(-lengths, kind="stable")  # the shards of any round are its beginning
        levels = np.unique(lengths[lengths > 0])
        self._begins = np.concatenate(([0], levels[:-1])) if len(levels) else levels
        self._live = len(lengths) - np.searchsorted(np.sort(lengths), levels)
        ends = np.cumsum((levels - self._begins) * self._live)
        self._records = np.concatenate(([0], ends[:-1])) if len(levels) else ends
        self._num_shards = len(lengths)
        self._digits: list[tuple[int, _Int64s]] = []  # with how many zeros up to each place
        for digit in range(max(0, len(lengths) - 1).bit_length() - 1, -1, -1):
            is_zero = (order >> digit & 1) == 0
            self._digits.append((digit, np.concatenate(([0], np.cumsum(is_zero)))))
            order = np.concatenate((order[is_zero], order[~is_zero]))

    def place(self, record: int) -> tuple[int, int]:
        """Return the shard of a record, and its position there."""
        shards, positions = self.places(np.array([record], np.int64))
        return int(shards[0]), int(positions[0])

    def places(self, records: _Int64s) -> tuple[_Int64s, _Int64s]:
        """Return int64[k] shards and int64[k] positions of int64[k] records."""
        level = np.searchsorted(self._records, records, side="right") - 1
        live = self._live[level]
        rounds, turns = np.divmod(records - self._records[level], live)
        shards = turns.copy()
        some = np.flatnonzero(live < self._num_shards)
        if len(some):
            shards[some] = self._in_turn(turns[some], live[some])
        return shards, self._begins[level] + rounds

    def _in_turn(self, turns: _Int64s, stops: _Int64s) -> _Int64s:
        """Return the turns[i]-th smallest of the first stops[i] shards by length."""
        starts = np.zeros_like(stops)
        shards = np.zeros_like(stops)
        for digit, zeros in self._digits:
            first, last = zeros[starts], zeros[stops]
            is_zero = turns < last - first
            shards += np.where(is_zero, 0, 1 << digit)
            turns = np.where(is_zero, turns, turns - (last - first))
            starts = np.where(is_zero, first, zeros[-1] + starts - first)
            stops = np.where(is_zero, last, zeros[-1] + stops - last)
        return shards

    def source_index(self, records: _Int64s) -> _Int64s:
        """Return the records' own numbers: nothing is known of items."""
        return records
