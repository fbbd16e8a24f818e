"""Snapshots: how far a writer has come, in one small file that is replaced as a whole.

A *mark* is made a few times a second and outlives the process: what it speaks of was handed to the
operating system. A *checkpoint* outlives a power cut: first all of it was brought to the disk. Both
are one signed line, as in a journal, and name the length that the journal had by then: without
those facts they count for nothing.

What was learnt from records (schema, label counts) can run ahead of the shards: a member that is
not full yet, a block of rows. So a snapshot says up to which item records were counted, and those
of them that have to be made again are not counted again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardwriter.dataset.assignment import from_runs
from shardwriter.dataset.manifest import SealedShard
from shardwriter.formats.tfrecord import Written
from shardwriter.schema.record_stats import Learnt
from shardwriter.writing.journal import read_signed, signed
from shardwriter.writing.shapes import MAX_GAPS, BaseLine, SnapshotLine

_NUMBER: Final = re.compile("[0-9]{1,6}")


@dataclass(frozen=True)
class Snapshot:
    """How far one worker of one attempt has come.

    Attributes:
        number: Counts the snapshots of a worker, so that the newest is known.
        is_synced: Whether it is a checkpoint.
        counted_to: Of the shards that grow, records of the items in front of this one were counted.
        growing: What stands in each shard that grows.
        sealed: The shards that it has finished in this attempt.
        learnt: State of :class:`shardwriter.schema.record_stats.Learnt`: of this worker, in this
            attempt.
        num_items: T, once the end of the source was met.
        journal_bytes: Length of the journal that belongs to it.
    """

    number: int
    is_synced: bool
    counted_to: int
    growing: Mapping[int, Written]
    sealed: Mapping[int, SealedShard]
    learnt: Mapping[str, Any]
    num_items: int | None
    journal_bytes: int

    def to_line(self) -> bytes:
        """Return it as a signed line."""
        return signed(
            {
                "counted_to": self.counted_to,
                "growing": rows_of(self.growing),
                "is_synced": self.is_synced,
                "journal_bytes": self.journal_bytes,
                "learnt": dict(self.learnt),
                "num_items": self.num_items,
                "number": self.number,
                "sealed": rows_of(self.sealed),
            }
        )

    def is_of(self, num_shards: int, max_items: int) -> bool:
        """Return whether this can be said of a job of N shards and at most so many items."""
        shards = [*self.growing, *self.sealed]
        return _are_of(shards, self.learnt, self.num_items, num_shards, max_items)

    @property
    def is_worth_keeping(self) -> bool:
        """Whether it speaks of anything that need not be done again."""
        grown = any(written.num_pieces for written in self.growing.values())
        return grown or bool(self.sealed) or self.journal_bytes > 0

    @classmethod
    def from_line(cls, data: bytes) -> Snapshot | None:
        """Read a signed line; None where it is torn."""
        fact = read_signed(data, SnapshotLine)
        if fact is None:
            return None
        return cls(
            fact["number"],
            fact["is_synced"],
            fact["counted_to"],
            written_of(fact["growing"]),
            sealed_of(fact["sealed"]),
            fact["learnt"],
            fact["num_items"],
            fact["journal_bytes"],
        )


@dataclass(frozen=True)
class Base:
    """What an attempt began with: all that earlier ones have left, brought to the disk.

    Attributes:
        attempt: The number of that attempt; journals of others are done with.
        growing: What stands in each shard that is not finished.
        sealed: The finished shards.
        in_place: Whether finished shards can stand under their final names already.
        dali_index: Whether the dataset that stands in place has .idx files.
        counted_to: By shard: records of the items in front of this one were counted.
        uncounted: Items in front of those that were not: they gave an error then, and are tried
            again.
        gaps: Items that give no record, as ``[first, count]`` in order.
        errors: What is known of those that are errors, by item.
        learnt: State of :class:`~shardwriter.schema.record_stats.Learnt`; None for none.
        num_items: T, where the end of the source was met.
    """

    attempt: int = 0
    growing: Mapping[int, Written] = field(default_factory=dict)
    sealed: Mapping[int, SealedShard] = field(default_factory=dict)
    in_place: bool = False
    dali_index: bool = False
    counted_to: Mapping[int, int] = field(default_factory=dict)
    uncounted: frozenset[int] = frozenset()
    gaps: Sequence[Sequence[int]] = ()
    errors: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    learnt: Mapping[str, Any] | None = None
    num_items: int | None = None

    def to_line(self) -> bytes:
        """Return it as a signed line."""
        return signed(
            {
                "attempt": self.attempt,
                "dali_index": self.dali_index,
                "counted_to": [list(pair) for pair in self.counted_to.items()],
                "errors": [dict(error) for _, error in sorted(self.errors.items())],
                "gaps": [list(run) for run in self.gaps],
                "growing": rows_of(self.growing),
                "in_place": self.in_place,
                "learnt": None if self.learnt is None else dict(self.learnt),
                "num_items": self.num_items,
                "sealed": rows_of(self.sealed),
                "uncounted": sorted(self.uncounted),
            }
        )

    @property
    def gap_items(self) -> list[int]:
        """Sorted items that give no record."""
        return from_runs(self.gaps)

    def is_of(self, num_shards: int, max_items: int) -> bool:
        """Return whether this can be said of a job of N shards and at most so many items."""
        stop = 0
        for first, count in self.gaps:
            if first < stop:
                return False
            stop = first + count
        num_gaps = sum(count for _, count in self.gaps)
        shards = [*self.growing, *self.sealed, *self.counted_to]
        return (
            stop <= max_items
            and num_gaps <= MAX_GAPS
            and _are_of(shards, self.learnt, self.num_items, num_shards, max_items)
        )

    @property
    def is_worth_keeping(self) -> bool:
        """Whether it has any work of earlier attempts.

        What stands in place is a finished dataset.
        """
        return bool(self.growing or (not self.in_place and (self.sealed or self.gaps)))

    @classmethod
    def from_line(cls, data: bytes) -> Base | None:
        """Read a signed line; None where it is torn."""
        fact = read_signed(data, BaseLine)
        if fact is None:
            return None
        return cls(
            fact["attempt"],
            written_of(fact["growing"]),
            sealed_of(fact["sealed"]),
            fact["in_place"],
            fact["dali_index"],
            dict(fact["counted_to"]),
            frozenset(fact["uncounted"]),
            fact["gaps"],
            {error["index"]: dict(error) for error in fact["errors"]},
            fact["learnt"],
            fact["num_items"],
        )


def is_of_job(learnt: Mapping[str, Any], num_shards: int) -> bool:
    """Return whether a state of record statistics can be of N shards."""
    labels = learnt["labels"]
    rows = [row for _, _, _, row, _, _ in labels["labels"]]
    if not all(_is_row(row, num_shards) for row in rows if row is not None):
        return False
    if any((row is not None) is not labels["per_shard"] for row in rows):
        return False
    try:
        Learnt.from_state(learnt, num_shards)
    except ValueError:  # a label that is no number
        return False
    return True


def _are_of(
    shards: Iterable[int],
    learnt: Mapping[str, Any] | None,
    num_items: int | None,
    num_shards: int,
    max_items: int,
) -> bool:
    """Return whether shards, label counts and T are those of a job."""
    if max(shards, default=0) >= num_shards or (num_items or 0) > max_items:
        return False
    return learnt is None or is_of_job(learnt, num_shards)


def _is_row(row: list[int] | dict[str, int], num_shards: int) -> bool:
    if isinstance(row, list):
        return len(row) == num_shards
    return all(_NUMBER.fullmatch(shard) and int(shard) < num_shards for shard in row)


def rows_of(shards: Mapping[int, Written] | Mapping[int, SealedShard]) -> list[list[Any]]:
    """Return a row for each shard: its number, and what is known of it."""
    rows = []
    for shard, known in shards.items():
        facts = known if isinstance(known, Written) else vars(known).values()
        rows.append([shard, *facts])
    return rows


def written_of(rows: Iterable[Sequence[Any]]) -> dict[int, Written]:
    """Read rows of growing shards."""
    return {shard: Written(*facts) for shard, *facts in rows}


def sealed_of(rows: Iterable[Sequence[Any]]) -> dict[int, SealedShard]:
    """Read rows of finished shards."""
    return {shard: SealedShard(*facts) for shard, *facts in rows}
