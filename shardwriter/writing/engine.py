"""Who does the work: an engine takes a job and leaves N sealed shards in the run directory.

It publishes nothing; :mod:`shardwriter.write` does that. Whatever the engine, the bytes are the
same.
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

__all__ = ["Engine", "Notify", "WriteResult", "Progress", "Work"]


# How many items may give an error.


class ErrorBudget:
    """Counts the errors of all workers, and those of earlier attempts.

    Args:
        options: Say how many may be.
        kept: Has those that were.
    """

    def __init__(self, options: RunOptions, kept: ResumeState) -> None:
        self._most = options.max_errors
        self._count = len(kept.errors)

    def check(self) -> None:
        """Refuse to go on where earlier attempts have met too many already.

        Raises:
            TooManyErrors: They have.
        """
        if self._most is not None and self._count > self._most:
            raise TooManyErrors(
                f"{self._count:,} items gave an error before, and {self._most:,} may",
                hint="--retry-errors tries them again; or allow more (--max-errors)",
            )

    def spend(self, error: ShardwriterError) -> None:
        """Count an error.

        Raises:
            TooManyErrors: It is one too many.
        """
        self._count += 1
        if self._most is not None and self._count > self._most:
            raise TooManyErrors(
                f"{self._count:,} items gave an error, and {self._most:,} may; the last: "
                f"{error.summary}",
                hint="mend the data or the map, or allow more (--max-errors)",
            ) from error


@dataclass(frozen=True)
class Work:
    """How far a write has come.

    Attributes:
        num_done: Items that were loaded, and written or skipped.
        num_items: Items in all; None while that is not known.
        payload_bytes: Bytes of the records so far.
        num_gaps: Items that gave no record.
        num_errors: Those of them that gave an error.
        seconds: Time by stage (see :mod:`shardwriter.writing.stages`), of all workers together.
        split: Which of several datasets this is of; None for the only one.
    """

    num_done: int
    num_items: int | None
    payload_bytes: int
    num_gaps: int = 0
    num_errors: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    split: str | None = None


Progress = Callable[[Work], None]
"""Told now and then how far a write has come, and at its end."""


@dataclass(frozen=True)
class WriteResult:
    """What an engine has made.

    Attributes:
        shards: The sealed shards, in order.
        num_items: T.
        gaps: Sorted indices of items without a record.
        errors: Those of them that gave an error: the entries of the ledger, sorted.
        schema: The manifest's ``schema``.
        labels: The manifest's ``labels``.
        labels_sorted: Whether every label came in one run.
        notes: What a person should know, one line each.
        work: What was done.
        warnings: Where data was read or stored in a way that may not be meant.
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
"""Writes what is still to be done of a job into a run directory that has begun, and seals it."""
