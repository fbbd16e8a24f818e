"""Locations of records by their numbers in reading order, for whole arrays at once.

Datasets written by shardwriter follow its assignment (:mod:`shardwriter.dataset.assignment`). Other
shard sets are read one record of each shard in turn, without shards that have ended, like an
interleave of their files.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_Int64s = NDArray[np.int64]


class RecordLocations(Protocol):
    """Maps record numbers in reading order, which must be in range, to shards and positions.

    Attributes:
        num_records: Number of records.
    """

    num_records: int

    def locate(self, record: int) -> tuple[int, int]:
        """Return the shard of a record, and its position there."""

    def locate_many(self, records: _Int64s) -> tuple[_Int64s, _Int64s]:
        """Return int64[k] shards and int64[k] positions of int64[k] records."""

    def source_index(self, records: _Int64s) -> _Int64s:
        """Return int64[k]: the items that gave the records, counted in source order."""


class AssignedLocations:
    """Locations by assignment: item i is in shard i mod N, at i div N minus the gaps before it.

    Args:
        num_shards: N.
        gaps: Sorted items without a record.
        num_records: Number of records.
    """

    def __init__(
        self, num_shards: int, gaps: Sequence[int] | NDArray[np.integer], num_records: int
    ) -> None:
        self.num_records = num_records
        self._num_shards = num_shards
        numbers = np.asarray(gaps, np.int64)
        self._num_gaps = len(numbers)
        # H_k = g_k - k is the number of records before gap k: record r is item
        # r + bisect_right(H, r).
        self._before = numbers - np.arange(len(numbers))
        shards, turns = numbers % num_shards, numbers // num_shards
        # One sorted array for all shards, with shard and turn of a gap combined in one number.
        self._span = int(turns[-1]) + 2 if len(numbers) else 1
        self._keys = np.sort(shards * self._span + turns)
        self._of_shards = np.searchsorted(self._keys, np.arange(num_shards) * self._span)

    def locate(self, record: int) -> tuple[int, int]:
        """Return the shard of a record, and its position there."""
        if not self._num_gaps:
            position, shard = divmod(record, self._num_shards)
            return shard, position
        item = record + bisect_right(self._before.data, record)
        turn, shard = divmod(item, self._num_shards)
        key = shard * self._span + min(turn, self._span - 1)
        return shard, turn - bisect_left(self._keys.data, key) + int(self._of_shards[shard])

    def locate_many(self, records: _Int64s) -> tuple[_Int64s, _Int64s]:
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
    """Locations for reading one record of each shard in turn, without shards that have ended.

    For lengths that follow the assignment this equals the assignment without gaps. Between two
    consecutive shard lengths the same shards take part in each round, so division gives a record's
    round. A wavelet matrix gives the shard of the j-th turn: the j-th smallest of the first shards
    by length, with one array per binary digit.

    Args:
        counts: Number of records of each shard.
    """

    def __init__(self, counts: Sequence[int] | NDArray[np.integer]) -> None:
        lengths = np.asarray(counts, np.int64)
        self.num_records = int(lengths.sum())
        order = np.argsort(-lengths, kind="stable")  # the shards of each round are a prefix
        levels = np.unique(lengths[lengths > 0])
        self._begins = np.concatenate(([0], levels[:-1])) if len(levels) else levels
        self._live = len(lengths) - np.searchsorted(np.sort(lengths), levels)
        ends = np.cumsum((levels - self._begins) * self._live)
        self._records = np.concatenate(([0], ends[:-1])) if len(levels) else ends
        self._num_shards = len(lengths)
        # Binary digits, from the highest, with the number of zeros before each position.
        self._digits: list[tuple[int, _Int64s]] = []
        for digit in range(max(0, len(lengths) - 1).bit_length() - 1, -1, -1):
            is_zero = (order >> digit & 1) == 0
            self._digits.append((digit, np.concatenate(([0], np.cumsum(is_zero)))))
            order = np.concatenate((order[is_zero], order[~is_zero]))

    def locate(self, record: int) -> tuple[int, int]:
        """Return the shard of a record, and its position there."""
        shards, positions = self.locate_many(np.array([record], np.int64))
        return int(shards[0]), int(positions[0])

    def locate_many(self, records: _Int64s) -> tuple[_Int64s, _Int64s]:
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
        """Return the turns[i]-th smallest number of the first stops[i] shards by length."""
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
        """Return the records' own numbers, since the items are not known."""
        return records
