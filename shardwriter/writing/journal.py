"""Journals and snapshots: what a stopped run is resumed from.

A *journal* has what the shards of a worker do not show: items without a record, and widened types,
one fact a line. It is never behind the shards: a fact about item i is written before any later
frame of that worker (:class:`JournaledFile`).

A *snapshot* is the progress of a worker in one small file that is replaced as a whole. A *mark* is
written a few times a second and survives the end of the process; a *checkpoint* is synced and
survives a power cut. Record statistics (schema, label counts) can be ahead of the shards, as a
member or a block of rows may be incomplete. So a snapshot has the item up to which records were
counted, and records that are written again are not counted again.

The *base* is the state in which an attempt starts: all that earlier attempts have written.

Snapshots, bases and journal lines are JSON lines with a checksum, ``crc32c-hex json``. A line with
a wrong checksum or shape counts as torn, and what it describes is written again; ``run.json`` and
``files.json`` of a wrong shape are errors. Whether the numbers fit the job is checked where the job
is known (:mod:`shardwriter.writing.resume`).
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

# -- JSON shapes -----------------------------------------------------------------------------------

_U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Nonce = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Identifier = Annotated[str, Meta(pattern="^[a-z0-9_]{1,20}$")]
Attempt = Annotated[int, Meta(ge=0, le=10**9 - 2)]
"""Number of an attempt; it is part of file names."""

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
    """A feature: the state of :class:`shardwriter.schema.schema.FeatureSummary`."""

    dtype: _Identifier | None
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
        # A label, its spelling, its total count and that by shard, its first and its last item.
        tuple[int | str | _Float, str, Count, list[Count] | dict[str, Count] | None, Count, Count]
    ]
    per_shard: bool
    too_many: bool


class _WarningKeys(TypedDict):
    code: str
    message: str


class WarningState(_WarningKeys, total=False):
    """A warning, as of :func:`shardwriter.schema.record_stats.to_json`."""

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
    """The state of :class:`shardwriter.schema.record_stats.RecordStats`."""

    warnings: list[WarningState]


class ErrorEntry(TypedDict):
    """A failed item: a line of the error log."""

    error: str
    index: Count
    message: str


class Fact(TypedDict, total=False):
    """A line of a journal; see :class:`Journal`."""

    error: ErrorEntry
    reason: Literal["dropped", "error"]
    skip: Count
    types: dict[str, FeatureState]


class SnapshotLine(TypedDict):
    """The JSON of :class:`Snapshot`."""

    counted_to: Count
    growing: list[GrowingRow]
    is_synced: bool
    journal_bytes: Count
    learnt: RecordStatsState
    num_items: Count | None
    number: Count
    sealed: list[SealedRow]


class BaseLine(TypedDict):
    """The JSON of :class:`Base`."""

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
    """Items that were retried with other code; an entry of ``metadata.retries`` of a manifest."""

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
"""``files.json``: by shard, its file and the file with its index rows."""

MAX_GAPS: Final = 1 << 27
"""The largest number of gaps of a run; they are in memory."""

_Shape = TypeVar("_Shape")


# -- the journal -----------------------------------------------------------------------------------


class Journal:
    """The journal of one worker: facts, in order.

    Facts are idempotent: reading one twice changes nothing.

    ==========  =================================================================================
    ``skip``    ``{"skip": i, "reason": "dropped"}``: the map dropped item i;
                ``{"skip": i, "reason": "error", "error": {...}}``: item i failed
    ``types``   features whose type has widened, as in the manifest
    ==========  =================================================================================

    Args:
        storage: The storage of the run directory.
        path: The file, which must not exist.

    Attributes:
        num_bytes: Bytes written so far.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._lines: list[bytes] = []
        self._file = storage.create(path)
        self._has_failed = False  # an unknown part of a line was written
        self.num_bytes = 0

    def add_fact(self, **fact: Any) -> None:
        """Add a fact; the next flush writes it."""
        self._lines.append(signed_line(fact))

    def flush(self) -> None:
        """Write the added facts, so that they survive the end of this process."""
        if not self._lines:
            return
        if self._has_failed:
            raise StorageError("an earlier write to the journal failed", path=self._path)
        data = b"".join(self._lines)
        self._has_failed = True
        self._file.write(data)
        self._has_failed = False
        self._lines.clear()
        self.num_bytes += len(data)

    def sync(self) -> None:
        """Write and sync the added facts, so that they survive a power cut."""
        self.flush()
        self._storage.sync(self._path)

    def close(self) -> None:
        """Flush and close the file."""
        try:
            if not self._has_failed:
                self.flush()
        finally:
            self._file.close()


class JournaledFile:
    """An open shard file; the journal is flushed before each write."""

    def __init__(self, file: OutputFile, journal: Journal) -> None:
        self._file = file
        self._journal = journal

    def write(self, data: bytes, /) -> None:
        """Flush the journal, then write the bytes."""
        self._journal.flush()
        self._file.write(data)

    def close(self) -> None:
        """Close the file; the journal stays open."""
        self._file.close()


def signed_line(fact: Any) -> bytes:
    """Return a JSON object as a line with its checksum."""
    text = canonical.dumps(fact).encode("ascii")
    return b"%08x %s" % (crc32c(text[:-1]), text)


class Facts(NamedTuple):
    """The content of a journal.

    Attributes:
        facts: The facts before the first torn line.
        num_bytes: Offset of that line.
    """

    facts: list[Fact]
    num_bytes: int


def read_facts(data: bytes, max_items: int = 2**62) -> Facts:
    """Return the facts of a journal before the first torn or invalid line.

    Args:
        data: The lines.
        max_items: Upper bound of the number of items; a fact about a later item is invalid.
    """
    facts = []
    num_bytes = 0
    for line in data.splitlines(keepends=True):
        fact = parse_signed_line(line, Fact)
        if fact is None or not _is_valid(fact, max_items):
            break
        facts.append(fact)
        num_bytes += len(line)
    return Facts(facts, num_bytes)


def parse_signed_line(line: bytes, shape: type[_Shape]) -> _Shape | None:
    """Return the object of a line; None if the checksum or the shape is wrong."""
    crc, _, text = line.partition(b" ")
    if not text.endswith(b"\n") or crc != b"%08x" % crc32c(text[:-1]):
        return None
    try:
        return json_shape.read(text, shape)
    except ValueError:
        return None


def _is_valid(fact: Fact, max_items: int) -> bool:
    if "skip" not in fact:
        return True
    skip, error = fact["skip"], fact.get("error")
    if skip >= max_items or "reason" not in fact:
        return False
    return fact["reason"] == "dropped" or (error is not None and error["index"] == skip)


# -- snapshots -------------------------------------------------------------------------------------

_NUMBER: Final = re.compile("[0-9]{1,6}")


@dataclass(frozen=True)
class Snapshot:
    """The progress of one worker in one attempt.

    Attributes:
        number: Counts the snapshots of a worker.
        is_synced: True for a checkpoint, False for a mark.
        counted_to: In the open shards, records of the items before this one were counted.
        open_shards: What is in the file of each open shard.
        sealed: The shards that the worker sealed in this attempt.
        stats: State of :class:`~shardwriter.schema.record_stats.RecordStats` of this worker, in
            this attempt.
        num_items: Number of items, T, if the end of the source was reached.
        journal_bytes: Length of the journal at the time of the snapshot, which is void without it.
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
        """Return a line with a checksum, in JSON."""
        return signed_line(
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
        """Return whether the numbers are possible for N shards and at most ``max_items`` items."""
        shards = [*self.open_shards, *self.sealed]
        return _fit_job(shards, self.stats, self.num_items, num_shards, max_items)

    @property
    def is_resumable(self) -> bool:
        """Whether a later attempt can resume from it."""
        grown = any(written.num_pieces for written in self.open_shards.values())
        return grown or bool(self.sealed) or self.journal_bytes > 0

    @classmethod
    def from_line(cls, data: bytes) -> Snapshot | None:
        """Parse a line of :meth:`to_line`; return None if it is torn."""
        fact = parse_signed_line(data, SnapshotLine)
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
    """The state in which an attempt starts: all that earlier attempts have written and synced.

    Attributes:
        attempt: Number of the attempt; journals of other attempts are ignored.
        open_shards: What is in the file of each unfinished shard.
        sealed: The finished shards.
        in_place: Whether finished shards may have their final names already.
        dali_index: Whether the published dataset has .idx files.
        counted_to: By shard: records of the items before this one were counted.
        uncounted: Earlier items that were not counted, as they failed and are retried.
        gaps: Items without a record, as ``[first, count]`` in order.
        errors: Entries of the error log, by item.
        stats: State of :class:`~shardwriter.schema.record_stats.RecordStats`; None for none.
        num_items: Number of items, T, if the end of the source was reached.
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
        """Return a line with a checksum, in JSON."""
        return signed_line(
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
        """Sorted indices of the items without a record."""
        return from_runs(self.gaps)

    def fits_job(self, num_shards: int, max_items: int) -> bool:
        """Return whether the numbers are possible for N shards and at most ``max_items`` items."""
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
            and _fit_job(shards, self.stats, self.num_items, num_shards, max_items)
        )

    @property
    def is_resumable(self) -> bool:
        """Whether earlier attempts have written anything, except a finished dataset in place."""
        return bool(self.open_shards or (not self.in_place and (self.sealed or self.gaps)))

    @classmethod
    def from_line(cls, data: bytes) -> Base | None:
        """Parse a line of :meth:`to_line`; return None if it is torn."""
        fact = parse_signed_line(data, BaseLine)
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


def stats_fit_job(stats: Mapping[str, Any], num_shards: int) -> bool:
    """Return whether a state of record statistics is valid for N shards."""
    labels = stats["labels"]
    rows = [row for _, _, _, row, _, _ in labels["labels"]]
    if not all(_is_row(row, num_shards) for row in rows if row is not None):
        return False
    if any((row is not None) is not labels["per_shard"] for row in rows):
        return False
    try:
        RecordStats.from_state(stats, num_shards)
    except ValueError:  # a float label that is no number
        return False
    return True


def _fit_job(
    shards: Iterable[int],
    stats: Mapping[str, Any] | None,
    num_items: int | None,
    num_shards: int,
    max_items: int,
) -> bool:
    """Return whether shards, label counts and T are possible for a job."""
    if max(shards, default=0) >= num_shards or (num_items or 0) > max_items:
        return False
    return stats is None or stats_fit_job(stats, num_shards)


def _is_row(row: list[int] | dict[str, int], num_shards: int) -> bool:
    if isinstance(row, list):
        return len(row) == num_shards
    return all(_NUMBER.fullmatch(shard) and int(shard) < num_shards for shard in row)


def rows_of(shards: Mapping[int, Written] | Mapping[int, SealedShard]) -> list[list[Any]]:
    """Return a JSON row for each shard: its number, then its fields."""
    rows = []
    for shard, known in shards.items():
        facts = known if isinstance(known, Written) else vars(known).values()
        rows.append([shard, *facts])
    return rows


def written_of(rows: Iterable[Sequence[Any]]) -> dict[int, Written]:
    """Return the open shards of JSON rows."""
    return {shard: Written(*facts) for shard, *facts in rows}


def sealed_of(rows: Iterable[Sequence[Any]]) -> dict[int, SealedShard]:
    """Return the sealed shards of JSON rows."""
    return {shard: SealedShard(*facts) for shard, *facts in rows}
