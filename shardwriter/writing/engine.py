"""What all engines have in common: their signature, their result, progress, the error budget.

An engine takes a job and leaves N sealed shards in the run directory. It publishes nothing;
:mod:`shardwriter.writing.write` does that. Every engine writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwriter.dataset import SealedShard
from shardwriter.errors import DataWarning, ShardwriterError, TooManyErrors
from shardwriter.writing.job import Job
from shardwriter.writing.notices import Notify
from shardwriter.writing.options import RunOptions
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory


class ErrorBudget:
    """A count of item errors, of this attempt and of earlier ones, with a limit.

    Args:
        options: ``max_errors`` is the limit; None for no limit.
        resume_state: Holds the errors of earlier attempts.
    """

    def __init__(self, options: RunOptions, resume_state: ResumeState) -> None:
        self._max_errors = options.max_errors
        self._count = len(resume_state.errors)

    def check(self) -> None:
        """Raise TooManyErrors if earlier attempts exceeded the limit already."""
        if self._max_errors is not None and self._count > self._max_errors:
            raise TooManyErrors(
                f"{self._count:,} items failed in earlier attempts; the limit is "
                f"{self._max_errors:,}",
                hint="--retry-errors tries them again; or raise --max-errors",
            )

    def spend(self, error: ShardwriterError) -> None:
        """Count an error; raise TooManyErrors if it exceeds the limit."""
        self._count += 1
        if self._max_errors is not None and self._count > self._max_errors:
            raise TooManyErrors(
                f"{self._count:,} items failed; the limit is {self._max_errors:,}. The last: "
                f"{error.summary}",
                hint="fix the data or the map, or raise --max-errors",
            ) from error


@dataclass(frozen=True)
class Work:
    """The progress of a write.

    Attributes:
        num_done: Items written or skipped so far.
        num_items: Items in total; None while unknown.
        payload_bytes: Bytes of the records so far.
        num_gaps: Items without a record so far.
        num_errors: Gaps that are errors.
        seconds: Time by stage (see :mod:`shardwriter.writing.stages`), summed over all workers.
        split: The split this dataset is; None outside of a write of splits.
    """

    num_done: int
    num_items: int | None
    payload_bytes: int
    num_gaps: int = 0
    num_errors: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    split: str | None = None


Progress = Callable[[Work], None]
"""Called about ten times a second with the progress of a write, and once at its end."""


@dataclass(frozen=True)
class WriteResult:
    """The result of an engine: all that the manifest needs.

    Attributes:
        shards: The sealed shards, by number.
        num_items: Number of items, T.
        gaps: Sorted indices of items without a record.
        errors: Entries of the error log, sorted by item.
        schema: The manifest's ``schema``.
        labels: The manifest's ``labels``.
        labels_sorted: Whether the records of each label are contiguous.
        notes: Lines to show to the user.
        work: The final progress.
        warnings: Warnings about the data.
    """

    shards: list[SealedShard]
    num_items: int
    gaps: list[int]
    errors: list[dict[str, Any]]
    schema: dict[str, Any]
    labels: dict[str, Any] | None
    labels_sorted: bool
    notes: list[str]
    work: Work
    warnings: Sequence[DataWarning] = ()


Engine = Callable[[Job, RunDirectory, ResumeState, "Progress | None", Notify], WriteResult]
"""Writes the missing records of a job into a run directory that has begun, and seals the shards."""
