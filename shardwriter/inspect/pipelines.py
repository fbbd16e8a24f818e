"""Policies of readers with rules of their own: DALI's iterator and timm's ``ReaderTfds``."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwriter.inspect.options import PlanOptions
from shardwriter.inspect.work import Counts, Work, alone, ceil_div, even, refused, streamed, summed

_TIMM_SHUFFLE: Final = 8192  # records, its TFDS_SHUFFLE_SIZE

# -- DALI ------------------------------------------------------------------------------------------


def _dali_shards(total: int, options: PlanOptions) -> Counts:
    """Return the records of each rank: rank r begins at floor(n * r / W)."""
    world = options.world
    # In Python's integers: n * W may need more than 64 bits.
    starts = [total * rank // world for rank in range(world + 1)]
    return np.array([starts[r + 1] - starts[r] for r in range(world)], np.int64)


def _dali_refuses(total: int, options: PlanOptions) -> Work | None:
    if total >= options.world:
        return None
    return refused(
        options,
        f"The number of input samples: {total}, needs to be at least equal to the requested "
        f"number of shards: {options.world}.",
        "The pipeline of every rank refuses to be built.",
        "use fewer ranks",
    )


def _dali_steps(total: int, options: PlanOptions) -> int:
    """Return the steps that hold the largest share."""
    return ceil_div(ceil_div(total, options.world), options.batch_size)


def dali_fill(records: Counts, options: PlanOptions) -> Work:
    """``LastBatchPolicy.FILL``, DALI's default: full batches for everybody."""
    total = int(records.sum())
    steps = np.full(options.world, _dali_steps(total, options), np.int64)
    work = _dali_refuses(total, options) or Work(
        (steps * options.batch_size)[:, None], steps, total
    )
    if work.error:
        return work
    extra = int(work.samples.sum()) - total
    return work.told(
        "Rank r begins at record floor(n * r / W). The last batch is filled up: with the records "
        "of the next rank, or with the last one again where pad_last_batch is set. Later epochs "
        "differ unless stick_to_shard is set.",
        f"{_samples(extra)} twice: for an evaluation use LastBatchPolicy.PARTIAL"
        if extra
        else None,
    )


def _samples(count: int) -> str:
    return f"{count:,} sample counts" if count == 1 else f"{count:,} samples count"


def dali_partial(records: Counts, options: PlanOptions) -> Work:
    """``LastBatchPolicy.PARTIAL``: every record once, and the same steps for everybody."""
    total = int(records.sum())
    shares = _dali_shards(total, options)
    steps = np.full(options.world, _dali_steps(total, options), np.int64)
    work = _dali_refuses(total, options) or Work(shares[:, None], steps, total)
    if work.error:
        return work
    num_empty = int((-(-shares // options.batch_size) < steps).sum())
    return work.told(
        "Rank r begins at record floor(n * r / W); what fills the last batch is cut off.",
        f"{num_empty:,} {'rank gets' if num_empty == 1 else 'ranks get'} an empty last batch: "
        "expect it in the loop"
        if num_empty
        else None,
    )


def dali_drop(records: Counts, options: PlanOptions) -> Work:
    """``LastBatchPolicy.DROP``: the full batches of the smallest share."""
    total = int(records.sum())
    each = total // options.world // options.batch_size
    refusal = _dali_refuses(total, options)
    if refusal is not None:
        return refusal
    if not each:
        return refused(
            options,
            "It seems that there is no data in the pipeline.",
            "The smallest share is less than a batch.",
            "use smaller batches or LastBatchPolicy.PARTIAL",
        )
    work = alone(np.full(options.world, each * options.batch_size, np.int64), options)
    return work.told("As many full batches as the smallest share has; the rest is left out.")


# -- timm ------------------------------------------------------------------------------------------


def _timm_pipelines(records: Counts, options: PlanOptions) -> Counts:
    """Return the records of each tf.data pipeline that gets whole shards: ``int64[readers]``."""
    records = records[records > 0]
    return summed(records, np.arange(len(records)) % options.num_readers, options.num_readers)


def _timm_context_refuses(records: Counts, options: PlanOptions) -> Work | None:
    num_files = int((records > 0).sum())
    if num_files >= options.num_readers:
        return None
    return refused(
        options,
        "Cannot shard the pipeline with given `input_context`.",
        f"{num_files:,} shards with records can not be dealt to {options.num_readers:,} pipelines.",
        f"use at least {options.num_readers:,} shards, each with records",
    )


def _timm_reads_alike(options: PlanOptions) -> bool:
    """Whether all ranks read the first pipeline: without workers no rank knows which it is."""
    return options.loader_workers == 0 and options.world > 1


_ALIKE: Final = "use a loader worker or more: without one every rank reads the shards of rank 0"


def timm_train(records: Counts, options: PlanOptions) -> Work:
    """``ReaderTfds`` in training: every pipeline repeats until a round number of batches.

    Source: ``timm/data/readers/reader_tfds.py`` of timm 1.0.31.
    """
    total, readers = int(records.sum()), options.num_readers
    by_shards = readers > 1 and (len(records) >= readers or _timm_reads_alike(options))
    refusal = _timm_context_refuses(records, options) if by_shards else None
    if refusal is not None:
        return refusal
    if min(total, _TIMM_SHUFFLE) < readers:
        return refused(
            options,
            "buffer_size must be greater than zero",
            f"Its shuffle buffer of min(n, {_TIMM_SHUFFLE:,}) records is divided by "
            f"{readers:,} pipelines, and nothing is left.",
            "use fewer ranks and workers, or a larger TFDS_SHUFFLE_SIZE",
        )
    target = ceil_div(ceil_div(total, readers), options.batch_size) * options.batch_size
    within = _timm_pipelines(records, options) if by_shards else even(total, readers)
    if _timm_reads_alike(options):
        within = within[:1]
    most = int(np.minimum(within, target).sum())
    samples = np.full((options.world, options.num_lanes), target, np.int64)
    steps = np.full(options.world, target // options.batch_size * options.num_lanes, np.int64)
    how = "of whole shards" if by_shards else "of consecutive records"
    return Work(
        samples,
        steps,
        None,
        detail=f"Each worker has a pipeline {how} that repeats until it has given {target:,} "
        f"samples. It repeats before it shuffles, so chance decides which records an epoch "
        f"holds: at most {most:,} of {total:,}.",
        remedy=_ALIKE if _timm_reads_alike(options) else None,
        num_distinct_max=most,
    )


def timm_eval(records: Counts, options: PlanOptions) -> Work:
    """``ReaderTfds`` in validation: even parts, filled with the last sample where W > 1."""
    total, readers = int(records.sum()), options.num_readers
    if _timm_reads_alike(options):
        refusal = _timm_context_refuses(records, options)
        if refusal is not None:
            return refusal
        first = int(_timm_pipelines(records, options)[0])
        work = streamed(np.full((options.world, 1), first, np.int64), options, drop=False)
        detail = "Without loader workers no rank knows which it is."
        return Work(work.samples, work.steps, first, detail=detail, remedy=_ALIKE)
    if total < readers:
        return refused(
            options,
            "Instruction [] corresponds to no data!",
            f"{total:,} records can not be split for {readers:,} workers.",
            "use fewer ranks and workers",
        )
    parts = even(total, readers)
    if options.world > 1:
        parts = np.full(readers, int(parts.max()), np.int64)
    work = streamed(parts.reshape(options.world, options.num_lanes), options, drop=False)
    extra = int(parts.sum()) - total
    return Work(
        work.samples,
        work.steps,
        total,
        detail="Each worker has a part of consecutive records"
        + (", filled up with its last sample." if options.world > 1 else "."),
        remedy=f"{_samples(extra)} twice in the result, and nothing marks it" if extra else None,
    )
