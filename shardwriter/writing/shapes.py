"""The declared shapes of all JSON in a run directory.

Signed lines (journal, mark, checkpoint, base) of another shape count as torn, like those with a
wrong CRC: what they speak of is made again. ``run.json`` and ``files.json`` of another shape are
refused. A shape says what fields are; what numbers can be true of a job is checked where the job is
known (:mod:`shardwriter.writing.recovery`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypedDict

from msgspec import Meta

from shardwriter.formats.json_shape import Count

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
    """A warning, as :func:`shardwriter.schema.data_warnings.to_json` keeps it."""

    feature: str
    hint: str
    index: Count
    line: Count
    path: str
    stored: str
    value: str


class _LearntKeys(TypedDict):
    features: dict[str, FeatureState]
    labels: _LabelsState


class LearntState(_LearntKeys, total=False):
    """What is known of some records: see :class:`shardwriter.schema.record_stats.Learnt`."""

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
    """See :class:`shardwriter.writing.snapshot.Snapshot`."""

    counted_to: Count
    growing: list[GrowingRow]
    is_synced: bool
    journal_bytes: Count
    learnt: LearntState
    num_items: Count | None
    number: Count
    sealed: list[SealedRow]


class BaseLine(TypedDict):
    """See :class:`shardwriter.writing.snapshot.Base`."""

    attempt: Attempt
    counted_to: list[tuple[Count, Count]]
    dali_index: bool
    errors: list[ErrorEntry]
    gaps: list[tuple[Count, Annotated[int, Meta(ge=1, le=2**63 - 1)]]]
    growing: list[GrowingRow]
    in_place: bool
    learnt: LearntState | None
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
