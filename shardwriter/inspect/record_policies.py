"""Policies that deal out records, whatever shards they lie in."""

from __future__ import annotations

import numpy as np

from shardwriter.dataset.rank_partition import Share, Uneven
from shardwriter.errors import UnequalSteps
from shardwriter.inspect.options import PlanOptions
from shardwriter.inspect.work import Counts, Work, alone, ceil_div, even, loaded, refused, streamed


def _same(count: int, options: PlanOptions) -> Counts:
    return np.full(options.world, count, np.int64)


def _seen(work: Work, total: int, options: PlanOptions) -> int:
    """Return how many records are seen where rank r has the draws r, r + W, ... mod n."""
    return min(total, int(work.samples.sum(axis=1)[0]) * options.world)


def torch_sampler(records: Counts, options: PlanOptions) -> Work:
    """``DistributedSampler(drop_last=False)``: the list begins again until it divides by W.

    Source: ``torch/utils/data/distributed.py``.
    """
    total = int(records.sum())
    work = loaded(_same(ceil_div(total, options.world), options), options)
    extra = -total % options.world
    return Work(
        work.samples,
        work.steps,
        _seen(work, total, options),
        detail="Ranks take turns at the records, and the list begins again until all have the "
        "same number. Lightning adds this sampler by itself.",
        remedy=f"{_records(extra, 'counts', 'count')} twice in an evaluation, and nothing marks it"
        if extra and not options.drop_last
        else None,
    )


def _records(count: int, one: str, many: str) -> str:
    return f"{count:,} record {one}" if count == 1 else f"{count:,} records {many}"


def torch_sampler_drop(records: Counts, options: PlanOptions) -> Work:
    """``DistributedSampler(drop_last=True)``: what does not divide by W is left out."""
    total = int(records.sum())
    work = loaded(_same(total // options.world, options), options)
    return work.told("Ranks take turns at the records; the rest of the division is left out.")


def grain_sampler(records: Counts, options: PlanOptions) -> Work:
    """Grain's ``DataLoader`` with ``IndexSampler`` and ``drop_remainder=False``, or True.

    Both read floor(n / W) records a rank. Workers take turns at a rank's records and make batches
    of their own.
    """
    total = int(records.sum())
    lanes = options.num_lanes
    amounts = even(total // options.world, lanes)
    work = streamed(np.broadcast_to(amounts, (options.world, lanes)), options)
    lost = total % options.world
    return work.told(
        "A rank has floor(n / W) consecutive records, whether drop_remainder is set or not; each "
        "worker makes batches of its own.",
        f"{_records(lost, 'is', 'are')} never seen: use a number of records that {options.world:,} "
        "divides, or MapDataset[rank::world]"
        if lost
        else None,
    )


def grain_slice(records: Counts, options: PlanOptions) -> Work:
    """Grain's ``MapDataset[rank::world].batch(B)``, with ``mp_prefetch`` for the workers."""
    work = loaded(even(int(records.sum()), options.world), options)
    return work.told(
        "Rank r has the records r, r + W, ...; every record is seen once.",
        f"use a number of records that {options.world:,} divides, or batch(drop_remainder=True)"
        if work.hangs
        else None,
    )


def tfds_even_splits(records: Counts, options: PlanOptions) -> Work:
    """``tfds.even_splits`` and ``tfds.split_for_jax_process``: consecutive records."""
    total = int(records.sum())
    if total < options.world:
        return _no_tfds_data(options)
    work = alone(even(total, options.world), options)
    return work.told(
        "Consecutive records; the first ranks have one more where n does not divide by W.",
        "add drop_remainder=True" if work.hangs else None,
    )


def _no_tfds_data(options: PlanOptions) -> Work:
    return refused(
        options,
        "Instruction [] corresponds to no data!",
        "A rank without records is refused.",
        "use fewer ranks",
    )


def tfds_even_splits_drop(records: Counts, options: PlanOptions) -> Work:
    """The same with ``drop_remainder=True``."""
    total = int(records.sum())
    if total < options.world:
        return _no_tfds_data(options)
    work = alone(_same(total // options.world, options), options)
    return work.told("Consecutive records, as many for every rank; the rest is left out.")


def hf_map(records: Counts, options: PlanOptions) -> Work:
    """``datasets.distributed.split_dataset_by_node`` of a map-style ``Dataset``."""
    total = int(records.sum())
    if total < options.world:
        return refused(
            options,
            f"Index {total} out of range for dataset of size {total}.",
            "Ranks without records raise, those with one read it.",
            "use fewer ranks",
        )
    work = loaded(even(total, options.world), options)
    return work.told(
        "Consecutive records; the first ranks have one more where n does not divide by W.",
        "give the DataLoader a DistributedSampler instead" if work.hangs else None,
    )


# -- ours ------------------------------------------------------------------------------------------


def _ours(records: Counts, options: PlanOptions, uneven: Uneven) -> Work:
    """Return what shardwriter's reader gives: `shardwriter.dataset.rank_partition` with a policy.

    Raises:
        UnequalSteps: It refuses.
    """
    total = int(records.sum())
    # Rank 0 is as good as any: all of them take the same steps.
    share = Share(total, options.world, 0, uneven)
    samples = share.num_samples * options.world
    num_padded = samples - total if uneven == "pad" else 0
    work = loaded(_same(share.num_samples, options), options, drop=False)
    return Work(work.samples, work.steps, min(total, samples), num_padded=num_padded)


def ours_drop(records: Counts, options: PlanOptions) -> Work:
    """Shardwriter's reader, ``drop``: floor(n / W) a rank."""
    try:
        work = _ours(records, options, "drop")
    except UnequalSteps:
        return refused(
            options,
            f"{int(records.sum()):,} records are fewer than {options.world:,} ranks",
            "Every rank would read nothing, so all of them refuse before the epoch.",
            "use fewer ranks, or have the reader pad or wrap",
        )
    return work.told("Ranks take turns at the records; the rest of the division is left out.")


def ours_pad(records: Counts, options: PlanOptions) -> Work:
    """Shardwriter's reader, ``pad``: ceil(n / W) a rank, and what is added is marked."""
    work = _ours(records, options, "pad")
    return work.told("Every record is seen once; what is added carries is_pad=True.")


def ours_wrap(records: Counts, options: PlanOptions) -> Work:
    """Shardwriter's reader, ``wrap``: ceil(n / W) a rank, the order begins again."""
    work = _ours(records, options, "wrap")
    return work.told("Every record is seen; the last places go to the first records again.")


def ours_error(records: Counts, options: PlanOptions) -> Work:
    """Shardwriter's reader, ``error``: W divides n, or it refuses."""
    try:
        work = _ours(records, options, "error")
    except UnequalSteps:
        return refused(
            options,
            f"{int(records.sum()):,} records do not divide by {options.world:,} ranks",
            "All ranks refuse before the epoch.",
            "have the reader drop, pad or wrap",
        )
    return work.told("Every record is seen once, by ranks in turn.")
