"""Journals: what a writer knows and its shards do not show, one fact a line.

The journal may be ahead of the shards and never behind: a fact about item i is written before any
later frame of that writer. :class:`JournaledFile` holds that for every shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple, TypedDict, TypeVar

from msgspec import Meta

from shardwriter.dataset import SealedShard, from_runs
from shardwriter.errors import StorageError
from shardwriter.formats import Count, Written, canonical, json_shape
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema import RecordStats
from shardwriter.storage import OutputFile, Storage

# The declared shapes of all JSON in a run directory.
#
# Signed lines (journal, mark, checkpoint, base) of another shape count as torn, like those with a
# wrong CRC: what they speak of is made again. ``run.json`` and ``files.json`` of another shape are
# refused. A shape says what fields are; what numbers can be true of a job is checked where the job
# is known (:mod:`shardwriter.writing.resume`).

_U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Nonce = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Word = Annotated[str, Meta(pattern="^[a-z0-9_]{1,20}$")]
Attempt = Annotated[int, Meta(ge=0, le=10**9 - 2)]
"""Number of an attempt; it is a part of file names."""

GrowingRow = tuple[Count, Count, Count, _U32, Count, _U32 | None, Count]
"""Number of a shard, and the fields of :class:`shardwriter.formats.tfrecord.Written`."""

SealedFields = tuple[Count, Count, Count, _U32, _U32 | None]
"""The fields of :class:`shardwriter.dataset.manifest.SealedShard`."""

SealedRow = tuple[Count, Count, Count, Count, _U32, _U32 | None]
"""Number of a shard, and those fields."""


class _FeatureCounts(TypedDict):
    present: Count
    unset: Count


class FeatureState(_FeatureCounts, total=False):
    """A feature, as :class:`shardwriter.schema.schema.FeatureSummary` keeps it."""

    dtype: _Word | None
    encoding: Literal["list", "raw", "image"]
    first_item: Count | None
    format: str | None
    kind: Literal["int64", "float", "bytes"] | None
    shape: list[Count | None] | None
    vocabulary: list[str] | None


class _Float(TypedDict):
    float: str


class _LabelsState(TypedDict):
    feature: str
    labels: list[
        # A label, its spelling, its count in all and by shard, its first and its last item.
        tuple[int | str | _Float, str, Count, list[Count] | dict[str, Count] | None, Count, Count]
    ]
    per_shard: bool
    too_many: bool


class _WarningKeys(TypedDict):
    code: str
    message: str


class WarningState(_WarningKeys, total=False):
    """A warning, as :func:`shardwriter.schema.record_stats.to_json` keeps it."""

    feature: str
    hint: str
    index: Count
    line: Count
    path: str
    stored: str
    value: str


class _RecordStatsKeys(TypedDict):
    features: dict[str, FeatureState]
    labels: _LabelsState


class RecordStatsState(_RecordStatsKeys, total=False):
    """What is known of some records: see :class:`shardwriter.schema.record_stats.RecordStats`."""

    warnings: list[WarningState]


class ErrorEntry(TypedDict):
    """An item that gave an error: a line of the ledger."""

    error: str
    index: Count
    message: str


class Fact(TypedDict, total=False):
    """A line of a journal; see :class:`shardwriter.writing.journal.Journal`."""

    error: ErrorEntry
    reason: Literal["dropped", "error"]
    skip: Count
    types: dict[str, FeatureState]


class SnapshotLine(TypedDict):
    """See :class:`shardwriter.writing.journal.Snapshot`."""

    counted_to: Count
    growing: list[GrowingRow]
    is_synced: bool
    journal_bytes: Count
    learnt: RecordStatsState
    num_items: Count | None
    number: Count
    sealed: list[SealedRow]


class BaseLine(TypedDict):
    """See :class:`shardwriter.writing.journal.Base`."""

    attempt: Attempt
    counted_to: list[tuple[Count, Count]]
    dali_index: bool
    errors: list[ErrorEntry]
    gaps: list[tuple[Count, Annotated[int, Meta(ge=1, le=2**63 - 1)]]]
    growing: list[GrowingRow]
    in_place: bool
    learnt: RecordStatsState | None
    num_items: Count | None
    sealed: list[SealedRow]
    uncounted: list[Count]


class Retry(TypedDict):
    """Items that were made again with other code; see ``metadata.retries`` of a manifest."""

    items: list[Annotated[list[Count], Meta(min_length=2, max_length=2)]]
    job: str


class _RunFormat(TypedDict):
    format: str


class RunFacts(_RunFormat, total=False):
    """``run.json``."""

    engine: str
    job: str
    launch: _Nonce
    nonce: _Nonce
    options: dict[str, Any]
    origin: _Nonce
    plan: dict[str, Any]
    replaces: tuple[str, Count] | None
    retries: list[Retry]
    source: dict[str, Any]
    standing_job: str
    writes_final_names: bool


AdoptedFiles = dict[Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,5})$")], tuple[str, str]]
"""``files.json``: by shard, its file and the file with its rows of the index."""

MAX_GAPS: Final = 1 << 27
"""Items without a record that a run may have; they are kept in memory."""

_Shape = TypeVar("_Shape")


class Journal:
    """Facts of one writer, in the order in which they became true.

    A line is ``crc32c-hex json``. Facts are idempotent: reading one twice changes nothing.

    ==========  =================================================================================
    ``skip``    ``{"skip": i, "reason": "dropped"}``: item i gives no record, as a map wanted;
                ``{"skip": i, "reason": "error", "error": {...}}``: as it could not be made one
    ``types``   features whose type has widened, as entries of the manifest
    ==========  =================================================================================

    Args:
        storage: Where it lies.
        path: The file; it must not be there yet.

    Attributes:
        num_bytes: Length of what was handed to the operating system.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._lines: list[bytes] = []
        self._file = storage.create(path)
        self._has_failed = False  # nobody knows how much of a line was written then
        self.num_bytes = 0

    def fact(self, **fact: Any) -> None:
        """Note a fact; it is in the file after the next flush."""
        self._lines.append(signed(fact))

    def flush(self) -> None:
        """Write the noted facts, so that they outlive this process."""
        if not self._lines:
            return
        if self._has_failed:
            raise StorageError("a write to it has failed before", path=self._path)
        data = b"".join(self._lines)
        self._has_failed = True
        self._file.write(data)
        self._has_failed = False
        self._lines.clear()
        self.num_bytes += len(data)

    def sync(self) -> None:
        """Write the noted facts, so that they outlive a power cut."""
        self.flush()
        self._storage.sync(self._path)

    def close(self) -> None:
        """Close the file, with the facts that could not be written before."""
        try:
            if not self._has_failed:
                self.flush()
        finally:
            self._file.close()


class JournaledFile:
    """A growing shard whose bytes follow the facts that came before them."""

    def __init__(self, file: OutputFile, journal: Journal) -> None:
        self._file = file
        self._journal = journal

    def write(self, data: bytes, /) -> None:
        """Write the facts that are still noted, then the bytes."""
        self._journal.flush()
        self._file.write(data)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def signed(fact: Any) -> bytes:
    """Return a fact as a line with its checksum."""
    text = canonical.dumps(fact).encode("ascii")
    return b"%08x %s" % (crc32c(text[:-1]), text)


class Facts(NamedTuple):
    """What a journal holds.

    Attributes:
        facts: Up to the first line that is torn.
        num_bytes: Where that line begins.
    """

    facts: list[Fact]
    num_bytes: int


def read_facts(data: bytes, max_items: int = 2**62) -> Facts:
    """Read a journal up to the first line that is torn, or is no fact.

    Args:
        data: The lines.
        max_items: How many items there can be; a fact about another is none.
    """
    facts = []
    num_bytes = 0
    for line in data.splitlines(keepends=True):
        fact = read_signed(line, Fact)
        if fact is None or not _is_sound(fact, max_items):
            break
        facts.append(fact)
        num_bytes += len(line)
    return Facts(facts, num_bytes)


def read_signed(line: bytes, shape: type[_Shape]) -> _Shape | None:
    """Return what a signed line says; None where it is torn or has another shape."""
    crc, _, text = line.partition(b" ")
    if not text.endswith(b"\n") or crc != b"%08x" % crc32c(text[:-1]):
        return None
    try:
        return json_shape.read(text, shape)
    except ValueError:
        return None


def _is_sound(fact: Fact, max_items: int) -> bool:
    if "skip" not in fact:
        return True
    skip, error = fact["skip"], fact.get("error")
    if skip >= max_items or "reason" not in fact:
        return False
    return fact["reason"] == "dropped" or (error is not None and error["index"] == skip)


# Snapshots: how far a writer has come, in one small file that is replaced as a whole.
#
# A *mark* is made a few times a second and outlives the process: what it speaks of was handed to
# the operating system. A *checkpoint* outlives a power cut: first all of it was brought to the
# disk. Both are one signed line, as in a journal, and name the length that the journal had by then:
# without those facts they count for nothing.
#
# What was learnt from records (schema, label counts) can run ahead of the shards: a member that is
# not full yet, a block of rows. So a snapshot says up to which item records were counted, and those
# of them that have to be made again are not counted again.

_NUMBER: Final = re.compile("[0-9]{1,6}")


@dataclass(frozen=True)
class Snapshot:
    """How far one worker of one attempt has come.

    Attributes:
        number: Counts the snapshots of a worker, so that the newest is known.
        is_synced: Whether it is a checkpoint.
        counted_to: Of the shards that grow, records of the items in front of this one were counted.
        open_shards: What stands in each shard that grows.
        sealed: The shards that it has finished in this attempt.
        stats: State of :class:`~shardwriter.schema.record_stats.RecordStats` of this worker, in
            this attempt.
        num_items: T, once the end of the source was met.
        journal_bytes: Length of the journal that belongs to it.
    """

    number: int
    is_synced: bool
    counted_to: int
    open_shards: Mapping[int, Written]
    sealed: Mapping[int, SealedShard]
    stats: Mapping[str, Any]
    num_items: int | None
    journal_bytes: int

    def to_line(self) -> bytes:
        """Return it as a signed line."""
        return signed(
            {
                "counted_to": self.counted_to,
                "growing": rows_of(self.open_shards),
                "is_synced": self.is_synced,
                "journal_bytes": self.journal_bytes,
                "learnt": dict(self.stats),
                "num_items": self.num_items,
                "number": self.number,
                "sealed": rows_of(self.sealed),
            }
        )

    def fits_job(self, num_shards: int, max_items: int) -> bool:
        """Return whether this can be said of a job of N shards and at most so many items."""
        shards = [*self.open_shards, *self.sealed]
        return _are_of(shards, self.stats, self.num_items, num_shards, max_items)

    @property
    def is_resumable(self) -> bool:
        """Whether it speaks of anything that need not be done again."""
        grown = any(written.num_pieces for written in self.open_shards.values())
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
        open_shards: What stands in each shard that is not finished.
        sealed: The finished shards.
        in_place: Whether finished shards can stand under their final names already.
        dali_index: Whether the dataset that stands in place has .idx files.
        counted_to: By shard: records of the items in front of this one were counted.
        uncounted: Items in front of those that were not: they gave an error then, and are tried
            again.
        gaps: Items that give no record, as ``[first, count]`` in order.
        errors: What is known of those that are errors, by item.
        stats: State of :class:`~shardwriter.schema.record_stats.RecordStats`; None for none.
        num_items: T, where the end of the source was met.
    """

    attempt: int = 0
    open_shards: Mapping[int, Written] = field(default_factory=dict)
    sealed: Mapping[int, SealedShard] = field(default_factory=dict)
    in_place: bool = False
    dali_index: bool = False
    counted_to: Mapping[int, int] = field(default_factory=dict)
    uncounted: frozenset[int] = frozenset()
    gaps: Sequence[Sequence[int]] = ()
    errors: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    stats: Mapping[str, Any] | None = None
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
                "growing": rows_of(self.open_shards),
                "in_place": self.in_place,
                "learnt": None if self.stats is None else dict(self.stats),
                "num_items": self.num_items,
                "sealed": rows_of(self.sealed),
                "uncounted": sorted(self.uncounted),
            }
        )

    @property
    def gap_items(self) -> list[int]:
        """Sorted items that give no record."""
        return from_runs(self.gaps)

    def fits_job(self, num_shards: int, max_items: int) -> bool:
        """Return whether this can be said of a job of N shards and at most so many items."""
        stop = 0
        for first, count in self.gaps:
            if first < stop:
                return False
            stop = first + count
        num_gaps = sum(count for _, count in self.gaps)
        shards = [*self.open_shards, *self.sealed, *self.counted_to]
        return (
            stop <= max_items
            and num_gaps <= MAX_GAPS
            and _are_of(shards, self.stats, self.num_items, num_shards, max_items)
        )

    @property
    def is_resumable(self) -> bool:
        """Whether it has any work of earlier attempts.

        What stands in place is a finished dataset.
        """
        return bool(self.open_shards or (not self.in_place and (self.sealed or self.gaps)))

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


def stats_fit_job(learnt: Mapping[str, Any], num_shards: int) -> bool:
    """Return whether a state of record statistics can be of N shards."""
    labels = learnt["labels"]
    rows = [row for _, _, _, row, _, _ in labels["labels"]]
    if not all(_is_row(row, num_shards) for row in rows if row is not None):
        return False
    if any((row is not None) is not labels["per_shard"] for row in rows):
        return False
    try:
        RecordStats.from_state(learnt, num_shards)
    except ValueError:  # a label that is no number
        return False
    return True


def _are_of(
    shards: Iterable[int],
    stats: Mapping[str, Any] | None,
    num_items: int | None,
    num_shards: int,
    max_items: int,
) -> bool:
    """Return whether shards, label counts and T are those of a job."""
    if max(shards, default=0) >= num_shards or (num_items or 0) > max_items:
        return False
    return stats is None or stats_fit_job(stats, num_shards)


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
