"""What travels between the steps of a Beam job, beside records: facts, and finished shards.

A worker keeps nothing that another step needs: counts, gaps, errors and types go along as data, so
only what a runner has committed counts, however often it has tried.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from shardwriter.dataset.assignment import from_runs, to_runs
from shardwriter.dataset.manifest import SealedShard
from shardwriter.errors import DataError, TooManyErrors
from shardwriter.formats import canonical, json_shape
from shardwriter.formats.json_shape import Count
from shardwriter.schema.record_stats import Learnt
from shardwriter.writing.encode import Made
from shardwriter.writing.shapes import MAX_GAPS, ErrorEntry, LearntState, SealedFields
from shardwriter.writing.snapshot import is_of_job

_MAX_NOTE_BYTES: Final = 1 << 30


@dataclass
class Facts:
    """What is known of some items, beside their records; mergeable.

    Attributes:
        learnt: Schema and labels of their records.
        gaps: Items without a record.
        errors: Those of them that gave an error: entries of the ledger.
        num_items: T, where the end of the source was met.
        key_sum: Sum of a hash of every key, where items have keys: whatever their order.
    """

    learnt: Learnt
    gaps: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    num_items: int | None = None
    key_sum: int = 0

    def note_gap(self, item_index: int, why: Made, max_errors: int | None) -> None:
        """Take an item down that has no record.

        Args:
            item_index: The item.
            why: What became of it: its error, or None where a map dropped it.
            max_errors: How many errors there may be; None for any number.

        Raises:
            TooManyErrors: There are more already among these items.
        """
        self.gaps.append(item_index)
        if not isinstance(why, DataError):
            return
        self.errors.append(why.to_json())
        if max_errors is not None and len(self.errors) > max_errors:
            raise TooManyErrors(
                f"{len(self.errors):,} items of a part of the input gave an error, and "
                f"{max_errors:,} may; the last: {why.summary}",
                hint="mend the data or the map, or allow more (--max-errors)",
            ) from why

    def merge(self, other: Facts) -> None:
        """Add the facts of other items.

        Raises:
            SchemaConflict: A feature has types that do not go together.
        """
        self.learnt.merge(other.learnt)
        self.gaps += other.gaps
        self.errors += other.errors
        self.key_sum += other.key_sum
        if other.num_items is not None:
            self.num_items = max(self.num_items or 0, other.num_items)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "errors": self.errors,
            "gaps": to_runs(sorted(self.gaps)),
            "key_sum": self.key_sum,
            "learnt": self.learnt.to_state(),
            "num_items": self.num_items,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], num_shards: int) -> Facts:
        """Return what :meth:`to_json` has told."""
        return cls(
            Learnt.from_state(entry["learnt"], num_shards),
            from_runs(entry["gaps"]),
            list(entry["errors"]),
            entry["num_items"],
            entry["key_sum"],
        )


@dataclass(frozen=True)
class MadeShard:
    """A finished shard that has no final name yet.

    Attributes:
        shard: Its number.
        sealed: Its counts and checksums.
        path: The file.
        index_path: The file with its rows of the index.
        facts: Of its items; of a shuffled job, of others as well.
    """

    shard: int
    sealed: SealedShard
    path: str
    index_path: str
    facts: Facts

    def to_bytes(self) -> bytes:
        """Return all of it."""
        sealed = self.sealed
        return pack_json(
            {
                "facts": self.facts.to_json(),
                "index_path": self.index_path,
                "path": self.path,
                "sealed": [
                    sealed.num_records,
                    sealed.payload_bytes,
                    sealed.file_bytes,
                    sealed.crc32c,
                    sealed.file_crc32c,
                ],
                "shard": self.shard,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, num_shards: int) -> MadeShard:
        """Return what :meth:`to_bytes` has told."""
        entry = unpack_json(data)
        return cls(
            entry["shard"],
            SealedShard(*entry["sealed"]),
            entry["path"],
            entry["index_path"],
            Facts.from_json(entry["facts"], num_shards),
        )

    @classmethod
    def from_note(cls, data: bytes, num_shards: int) -> MadeShard | None:
        """Return what a file beside the output says; None where it can not be true."""
        try:
            entry = json_shape.read(_inflate(data), _Note)
        except (ValueError, zlib.error):
            return None
        facts = entry["facts"]
        num_gaps = sum(count for _, count in facts["gaps"])
        if num_gaps > MAX_GAPS or not is_of_job(facts["learnt"], num_shards):
            return None
        return cls.from_bytes(data, num_shards)


class _FactsNote(TypedDict):
    errors: list[ErrorEntry]
    gaps: list[tuple[Count, Count]]
    key_sum: int
    learnt: LearntState
    num_items: Count | None


class _Note(TypedDict):
    facts: _FactsNote
    index_path: str
    path: str
    sealed: SealedFields
    shard: Count


def pack_json(value: Any) -> bytes:
    """Return JSON in few bytes."""
    return zlib.compress(canonical.dumps(value).encode("ascii"), 1)


def _inflate(data: bytes) -> bytes:
    """Return the text of a note; what is over 1 GiB is none."""
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, _MAX_NOTE_BYTES)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("it is cut off, or too long")
    return text


def unpack_json(data: bytes) -> Any:
    """Return what :func:`pack_json` was given."""
    return canonical.loads(zlib.decompress(data))
