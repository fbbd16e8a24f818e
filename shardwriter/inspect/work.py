"""What each rank and worker gets, and the three ways in which records become batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwriter.inspect.options import PlanOptions

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """An epoch, as one policy deals it out.

    Attributes:
        samples: ``int64[world, lanes]``: samples that reach the training loop from each worker.
        steps: ``int64[world]``: batches of each rank.
        num_distinct: Records that somebody sees; None where chance decides or it is refused.
        num_padded: Samples that the reader adds and marks as padding.
        error: What the framework says where it refuses; None where it reads.
        detail: The rule in words, and what happens with these numbers.
        remedy: What to do about a bad outcome; None for nothing.
        num_distinct_max: The most that chance can give; None where it does not decide.
    """

    samples: Counts
    steps: Counts
    num_distinct: int | None
    num_padded: int = 0
    error: str | None = None
    detail: str = ""
    remedy: str | None = None
    num_distinct_max: int | None = None

    def told(self, detail: str, remedy: str | None = None) -> Work:
        """Return the same with words."""
        return replace(self, detail=detail, remedy=remedy)

    @property
    def hangs(self) -> bool:
        """Whether ranks take different numbers of steps."""
        return self.error is None and int(self.steps.min()) != int(self.steps.max())


def refused(options: PlanOptions, error: str, detail: str, remedy: str) -> Work:
    """Return the work of a policy that raises: none."""
    samples = np.zeros((options.world, 1), np.int64)
    return Work(samples, samples[:, 0], None, error=error, detail=detail, remedy=remedy)


def ceil_div(count: int, parts: int) -> int:
    """Return count / parts, rounded up."""
    return -(-count // parts)


def even(count: int, parts: int) -> Counts:
    """Deal ``count`` out evenly, the first parts get one more: ``int64[parts]``."""
    each, rest = divmod(count, parts)
    dealt = np.full(parts, each, np.int64)
    dealt[:rest] += 1
    return dealt


def summed(records: Counts, owner: Counts, num_owners: int) -> Counts:
    """Return how many records each owner has who owns these shards: ``int64[num_owners]``."""
    # Not bincount's weights: they are floats.
    totals = np.zeros(num_owners, np.int64)
    np.add.at(totals, owner, records)
    return totals


def _kept(amounts: Counts, batch: int, drop: bool) -> tuple[Counts, Counts]:
    """Return the samples and batches that come of streams of so many records."""
    full = amounts // batch
    return (full * batch, full) if drop else (amounts, -(-amounts // batch))


def streamed(amounts: Counts, options: PlanOptions, *, drop: bool | None = None) -> Work:
    """Every stream makes batches of its own, and so a last one that is not full.

    So does each worker of a torch ``DataLoader`` over an ``IterableDataset``.

    Args:
        amounts: ``int64[world, lanes]``: records of each stream, all of them different.
        options: The batch size.
        drop: Leave out batches that are not full; None for what the options say.
    """
    drop = options.drop_last if drop is None else drop
    samples, batches = _kept(amounts, options.batch_size, drop)
    return Work(samples, batches.sum(axis=1), int(samples.sum()))


def loaded(amounts: Counts, options: PlanOptions, *, drop: bool | None = None) -> Work:
    """A rank cuts its list into batches, and worker k of K fetches the batches k mod K.

    So does a torch ``DataLoader`` over a map-style dataset.

    Args:
        amounts: ``int64[world]``: records of each rank, all of them different.
        options: The batch size and workers.
        drop: Leave out batches that are not full; None for what the options say.
    """
    drop = options.drop_last if drop is None else drop
    samples, batches = _kept(amounts, options.batch_size, drop)
    full = samples // options.batch_size
    lanes = options.num_lanes
    lane = np.arange(lanes)
    dealt = np.maximum(0, -(-(full[:, None] - lane) // lanes)) * options.batch_size
    dealt += (lane == (full % lanes)[:, None]) * (samples % options.batch_size)[:, None]
    return Work(dealt, batches, int(samples.sum()))


def alone(amounts: Counts, options: PlanOptions, *, drop: bool | None = None) -> Work:
    """Each rank is one stream, whatever threads work at it."""
    return streamed(amounts[:, None], options, drop=drop)
