"""What all processes have done, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from shardwriter.dataset.manifest import SealedShard
from shardwriter.schema.data_warnings import warnings_of
from shardwriter.writing.engine import Outcome, Work
from shardwriter.writing.job import Job
from shardwriter.writing.part import Done
from shardwriter.writing.record_encoder import RecordEncoder
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.stages import Stopwatch


def gather(
    job: Job,
    kept: Kept,
    parts: Iterable[Done],
    num_items: int,
    seconds: Mapping[str, float] | None = None,
) -> Outcome:
    """Put together what all processes have done, and what was done before.

    Args:
        job: What was written.
        kept: What earlier attempts have left.
        parts: Of every process.
        num_items: T.
        seconds: Time by stage that is in no part.

    Raises:
        SchemaConflict: Two processes have seen a feature with types that do not go together.
    """
    learnt = job.learnt(kept)
    learnt.warnings.merge(warnings_of(job.source))
    watch = Stopwatch()
    watch.add(seconds or {})
    sealed = dict(kept.sealed)
    gaps: list[int] = kept.gaps.tolist()
    errors = [dict(entry) for entry in kept.errors.values()]
    payload_bytes = kept.payload_bytes
    notes: list[str] = []
    for part in parts:
        learnt.merge(part.learnt)
        sealed |= part.sealed
        gaps += part.gaps
        errors += part.errors
        payload_bytes += part.payload_bytes
        watch.add(part.seconds)
        notes += part.notes
    if not gaps:  # of some of the records nothing is known
        learnt.merge(job.copied)
    outcome = outcome_of(learnt, sealed, num_items, gaps, errors, payload_bytes, watch.seconds)
    return replace(outcome, notes=outcome.notes + notes) if notes else outcome


def outcome_of(
    learnt: RecordEncoder,
    sealed: Mapping[int, SealedShard],
    num_items: int,
    gaps: list[int],
    errors: list[dict[str, Any]],
    payload_bytes: int,
    seconds: Mapping[str, float],
) -> Outcome:
    """Return the outcome of a run whose shards are all sealed."""
    labels = learnt.labels
    notes = []
    if labels.too_many:
        notes.append(f"{labels.feature!r} has too many values to count as a label")
    work = Work(num_items, num_items, payload_bytes, len(gaps), len(errors), seconds)
    return Outcome(
        [sealed[number] for number in sorted(sealed)],
        num_items,
        sorted(gaps),
        sorted(errors, key=lambda entry: int(entry["index"])),
        learnt.schema.to_json(),
        labels.to_json(),
        labels.is_sorted,
        notes,
        work,
        list(learnt.warnings),
    )
