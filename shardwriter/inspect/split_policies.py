"""How training frameworks split shards over ranks and loader workers.

`POLICIES` is a table of the policies: framework, unit (whole shards or records) and a function
``(records per shard, options) -> Work`` that computes the samples and steps of every rank. The
functions share three ways to make batches: `batch_per_stream` (each worker batches its own
records), `batch_per_rank` (workers fetch the batches of one list), `batch_single_stream` (a rank is
one stream).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import RankPartition, Uneven
from shardwriter.errors import OptionError, UnequalSteps


@dataclass(frozen=True)
class PlanOptions:
    """The training job that will read the shards.

    Attributes:
        world: Number of ranks: processes that train together, each with its own partition.
        loader_workers: Loader processes per rank; 0 if the rank itself reads.
        batch_size: Records per batch of one rank.
        drop_last: Whether the loader drops incomplete batches.
        record_bytes: Mean bytes of a record with its frame, for shard sizes; None leaves them out.
        policies: Names of the policies to evaluate; empty for all.
    """

    world: int = 1
    loader_workers: int = 1
    batch_size: int = 1
    drop_last: bool = False
    record_bytes: float | None = None
    policies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("world", 1), ("loader_workers", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise OptionError(f"{name} is {value!r}", hint=f"give a number from {least} on")
        size = self.record_bytes
        if size is not None and not (isinstance(size, (int, float)) and 0 < size < 2**63):
            raise OptionError(f"record_bytes is {size!r}", hint="give a number of bytes over 0")

    @property
    def num_lanes(self) -> int:
        """Streams of records that a rank reads in parallel: its workers, or one."""
        return max(1, self.loader_workers)

    @property
    def num_readers(self) -> int:
        """Streams of records of all ranks."""
        return self.world * self.num_lanes


Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """One epoch under one policy.

    Attributes:
        samples: ``int64[world, lanes]``: samples that each worker delivers to the training loop.
        steps: ``int64[world]``: batches of each rank.
        num_distinct: Distinct records that are read; None if it is random or the framework raises.
        num_padded: Samples that the reader adds and marks as padding.
        error: The framework's error message; None if it does not raise.
        detail: The rule in words, and its effect with these numbers.
        remedy: What to do about a bad outcome; None for nothing.
        num_distinct_max: Upper bound of `num_distinct` where it is random, else None.
    """

    samples: Counts
    steps: Counts
    num_distinct: int | None
    num_padded: int = 0
    error: str | None = None
    detail: str = ""
    remedy: str | None = None
    num_distinct_max: int | None = None

    def with_text(self, detail: str, remedy: str | None = None) -> Work:
        """Return a copy with these texts."""
        return replace(self, detail=detail, remedy=remedy)

    @property
    def hangs(self) -> bool:
        """Whether ranks take different numbers of steps."""
        return self.error is None and int(self.steps.min()) != int(self.steps.max())


def refused(options: PlanOptions, error: str, detail: str, remedy: str) -> Work:
    """Return the work of a policy whose framework raises: no samples, no steps."""
    samples = np.zeros((options.world, 1), np.int64)
    return Work(samples, samples[:, 0], None, error=error, detail=detail, remedy=remedy)


def ceil_div(count: int, parts: int) -> int:
    """Return ``count / parts``, rounded up."""
    return -(-count // parts)


def split_evenly(count: int, parts: int) -> Counts:
    """Return ``count`` split into equal parts, the first ones one larger: ``int64[parts]``."""
    each, rest = divmod(count, parts)
    sizes = np.full(parts, each, np.int64)
    sizes[:rest] += 1
    return sizes


def sum_by_owner(records: Counts, owner: Counts, num_owners: int) -> Counts:
    """Return the records of each owner, given the owner of each shard: ``int64[num_owners]``."""
    # Not np.bincount: its weights are floats.
    totals = np.zeros(num_owners, np.int64)
    np.add.at(totals, owner, records)
    return totals


def _batched(amounts: Counts, batch: int, drop: bool) -> tuple[Counts, Counts]:
    """Return samples and batches of streams with these numbers of records."""
    full = amounts // batch
    return (full * batch, full) if drop else (amounts, -(-amounts // batch))


def batch_per_stream(amounts: Counts, options: PlanOptions, *, drop: bool | None = None) -> Work:
    """Return the work if every stream makes its own batches, each with its own incomplete last one.

    A torch ``DataLoader`` over an ``IterableDataset`` does this in each worker.

    Args:
        amounts: ``int64[world, lanes]``: distinct records of each stream.
        options: Gives the batch size.
        drop: Drop incomplete batches; None for ``options.drop_last``.
    """
    drop = options.drop_last if drop is None else drop
    samples, batches = _batched(amounts, options.batch_size, drop)
    return Work(samples, batches.sum(axis=1), int(samples.sum()))


def batch_per_rank(amounts: Counts, options: PlanOptions, *, drop: bool | None = None) -> Work:
    """Return the work if a rank batches its list, and worker k of K fetches the batches k mod K.

    A torch ``DataLoader`` over a map-style dataset does this.

    Args:
        amounts: ``int64[world]``: distinct records of each rank.
        options: Gives the batch size and the number of workers.
        drop: Drop incomplete batches; None for ``options.drop_last``.
    """
    drop = options.drop_last if drop is None else drop
    samples, batches = _batched(amounts, options.batch_size, drop)
    full = samples // options.batch_size
    lanes = options.num_lanes
    lane = np.arange(lanes)
    per_lane = np.maximum(0, -(-(full[:, None] - lane) // lanes)) * options.batch_size
    per_lane += (lane == (full % lanes)[:, None]) * (samples % options.batch_size)[:, None]
    return Work(per_lane, batches, int(samples.sum()))


def batch_single_stream(amounts: Counts, options: PlanOptions, *, drop: bool | None = None) -> Work:
    """Return the work if each rank is one stream, however many threads read it."""
    return batch_per_stream(amounts[:, None], options, drop=drop)


_TIMM_SHUFFLE: Final = 8192  # records, its TFDS_SHUFFLE_SIZE

# -- DALI's iterator: contiguous records per rank --------------------------------------------------


def _dali_partitions(total: int, options: PlanOptions) -> Counts:
    """Return ``int64[world]``: the records of each rank; rank r begins at floor(n * r / W)."""
    world = options.world
    # Python integers: n * W may need more than 64 bits.
    starts = [total * rank // world for rank in range(world + 1)]
    return np.array([starts[r + 1] - starts[r] for r in range(world)], np.int64)


def _dali_refusal(total: int, options: PlanOptions) -> Work | None:
    if total >= options.world:
        return None
    return refused(
        options,
        f"The number of input samples: {total}, needs to be at least equal to the requested "
        f"number of shards: {options.world}.",
        "Building the pipeline fails on every rank.",
        "use fewer ranks",
    )


def _dali_steps(total: int, options: PlanOptions) -> int:
    """Return the number of steps that the largest rank partition needs."""
    return ceil_div(ceil_div(total, options.world), options.batch_size)


def dali_fill(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``LastBatchPolicy.FILL``, DALI's default: full batches on every rank."""
    total = int(records.sum())
    steps = np.full(options.world, _dali_steps(total, options), np.int64)
    work = _dali_refusal(total, options) or Work(
        (steps * options.batch_size)[:, None], steps, total
    )
    if work.error:
        return work
    extra = int(work.samples.sum()) - total
    return work.with_text(
        "Rank r begins at record floor(n * r / W). The last batch is filled with records of the "
        "next rank, or with repeats of the last record if pad_last_batch is set. Later epochs "
        "differ unless stick_to_shard is set.",
        f"{_samples_text(extra)} twice: for an evaluation use LastBatchPolicy.PARTIAL"
        if extra
        else None,
    )


def _samples_text(count: int) -> str:
    return f"{count:,} sample counts" if count == 1 else f"{count:,} samples count"


def dali_partial(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``LastBatchPolicy.PARTIAL``: every record once, equal steps."""
    total = int(records.sum())
    partitions = _dali_partitions(total, options)
    steps = np.full(options.world, _dali_steps(total, options), np.int64)
    work = _dali_refusal(total, options) or Work(partitions[:, None], steps, total)
    if work.error:
        return work
    num_empty = int((-(-partitions // options.batch_size) < steps).sum())
    return work.with_text(
        "Rank r begins at record floor(n * r / W); the padding of the last batch is removed.",
        f"{num_empty:,} {'rank gets' if num_empty == 1 else 'ranks get'} an empty last batch: "
        "expect it in the loop"
        if num_empty
        else None,
    )


def dali_drop(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``LastBatchPolicy.DROP``: the full batches of the smallest partition."""
    total = int(records.sum())
    each = total // options.world // options.batch_size
    refusal = _dali_refusal(total, options)
    if refusal is not None:
        return refusal
    if not each:
        return refused(
            options,
            "It seems that there is no data in the pipeline.",
            "The smallest rank partition has less than one batch.",
            "use smaller batches or LastBatchPolicy.PARTIAL",
        )
    work = batch_single_stream(np.full(options.world, each * options.batch_size, np.int64), options)
    return work.with_text(
        "Every rank reads as many full batches as the smallest rank partition has; the remaining "
        "records are dropped."
    )


# -- timm's ReaderTfds -----------------------------------------------------------------------------


def _timm_pipeline_counts(records: Counts, options: PlanOptions) -> Counts:
    """Return the records of each tf.data pipeline if it reads whole shards: ``int64[readers]``."""
    records = records[records > 0]
    return sum_by_owner(records, np.arange(len(records)) % options.num_readers, options.num_readers)


def _timm_context_refusal(records: Counts, options: PlanOptions) -> Work | None:
    num_files = int((records > 0).sum())
    if num_files >= options.num_readers:
        return None
    return refused(
        options,
        "Cannot shard the pipeline with given `input_context`.",
        f"{num_files:,} non-empty shards are fewer than {options.num_readers:,} pipelines.",
        f"use at least {options.num_readers:,} shards, each with records",
    )


def _timm_ranks_read_same(options: PlanOptions) -> bool:
    """Return whether all ranks read the first pipeline: without workers timm passes no rank."""
    return options.loader_workers == 0 and options.world > 1


_ADD_WORKERS: Final = "use at least one loader worker: without it every rank reads rank 0's shards"


def timm_train(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``ReaderTfds`` in training: pipelines repeat up to whole batches.

    Source: ``timm/data/readers/reader_tfds.py`` of timm 1.0.31.
    """
    total, readers = int(records.sum()), options.num_readers
    by_shards = readers > 1 and (len(records) >= readers or _timm_ranks_read_same(options))
    refusal = _timm_context_refusal(records, options) if by_shards else None
    if refusal is not None:
        return refusal
    if min(total, _TIMM_SHUFFLE) < readers:
        return refused(
            options,
            "buffer_size must be greater than zero",
            f"The shuffle buffer of min(n, {_TIMM_SHUFFLE:,}) records is divided by "
            f"{readers:,} pipelines and becomes empty.",
            "use fewer ranks and workers, or a larger TFDS_SHUFFLE_SIZE",
        )
    target = ceil_div(ceil_div(total, readers), options.batch_size) * options.batch_size
    counts = _timm_pipeline_counts(records, options) if by_shards else split_evenly(total, readers)
    if _timm_ranks_read_same(options):
        counts = counts[:1]
    max_distinct = int(np.minimum(counts, target).sum())
    samples = np.full((options.world, options.num_lanes), target, np.int64)
    steps = np.full(options.world, target // options.batch_size * options.num_lanes, np.int64)
    unit = "whole shards" if by_shards else "consecutive records"
    return Work(
        samples,
        steps,
        None,
        detail=f"Each worker's pipeline reads {unit} and repeats until it has delivered {target:,} "
        f"samples. It repeats before it shuffles, so the records of an epoch are random: at most "
        f"{max_distinct:,} of {total:,}.",
        remedy=_ADD_WORKERS if _timm_ranks_read_same(options) else None,
        num_distinct_max=max_distinct,
    )


def timm_eval(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``ReaderTfds`` in validation: equal parts, padded if W > 1."""
    total, readers = int(records.sum()), options.num_readers
    if _timm_ranks_read_same(options):
        refusal = _timm_context_refusal(records, options)
        if refusal is not None:
            return refusal
        first = int(_timm_pipeline_counts(records, options)[0])
        work = batch_per_stream(np.full((options.world, 1), first, np.int64), options, drop=False)
        detail = "Without loader workers timm does not pass the rank to the reader."
        return Work(work.samples, work.steps, first, detail=detail, remedy=_ADD_WORKERS)
    if total < readers:
        return refused(
            options,
            "Instruction [] corresponds to no data!",
            f"{total:,} records are fewer than {readers:,} workers.",
            "use fewer ranks and workers",
        )
    parts = split_evenly(total, readers)
    if options.world > 1:
        parts = np.full(readers, int(parts.max()), np.int64)
    work = batch_per_stream(parts.reshape(options.world, options.num_lanes), options, drop=False)
    extra = int(parts.sum()) - total
    return Work(
        work.samples,
        work.steps,
        total,
        detail="Each worker reads consecutive records"
        + (", padded by repeating its last sample." if options.world > 1 else "."),
        remedy=f"{_samples_text(extra)} twice in the result, without a mark" if extra else None,
    )


# -- Policies that assign records, in whatever shards they are -------------------------------------


def _equal(count: int, options: PlanOptions) -> Counts:
    return np.full(options.world, count, np.int64)


def _num_distinct(work: Work, total: int, options: PlanOptions) -> int:
    """Return the number of distinct records if rank r reads positions r, r + W, ... mod n."""
    return min(total, int(work.samples.sum(axis=1)[0]) * options.world)


def torch_sampler(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``DistributedSampler(drop_last=False)``: padded to a multiple of W.

    Source: ``torch/utils/data/distributed.py``.
    """
    total = int(records.sum())
    work = batch_per_rank(_equal(ceil_div(total, options.world), options), options)
    extra = -total % options.world
    return Work(
        work.samples,
        work.steps,
        _num_distinct(work, total, options),
        detail="Rank r reads the records r, r + W, ...; the list is padded with its first records "
        "until W divides it. Lightning adds this sampler by itself.",
        remedy=f"{_records_text(extra, 'counts', 'count')} twice in an evaluation, without a mark"
        if extra and not options.drop_last
        else None,
    )


def _records_text(count: int, one: str, many: str) -> str:
    return f"{count:,} record {one}" if count == 1 else f"{count:,} records {many}"


def torch_sampler_drop(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``DistributedSampler(drop_last=True)``: floor(n / W) records per rank."""
    total = int(records.sum())
    work = batch_per_rank(_equal(total // options.world, options), options)
    return work.with_text("Rank r reads the records r, r + W, ...; the last n mod W are dropped.")


def grain_sampler(records: Counts, options: PlanOptions) -> Work:
    """Return the work of Grain's ``DataLoader`` with ``IndexSampler``.

    With ``drop_remainder`` or without, a rank reads floor(n / W) records. Its workers read them
    round-robin, and each makes its own batches.
    """
    total = int(records.sum())
    lanes = options.num_lanes
    amounts = split_evenly(total // options.world, lanes)
    work = batch_per_stream(np.broadcast_to(amounts, (options.world, lanes)), options)
    lost = total % options.world
    return work.with_text(
        "A rank reads floor(n / W) consecutive records, with or without drop_remainder; each "
        "worker makes its own batches.",
        f"{_records_text(lost, 'is', 'are')} never read: use a number of records that "
        f"{options.world:,} divides, or MapDataset[rank::world]"
        if lost
        else None,
    )


def grain_slice(records: Counts, options: PlanOptions) -> Work:
    """Return the work of Grain's ``MapDataset[rank::world].batch(B)`` with ``mp_prefetch``."""
    work = batch_per_rank(split_evenly(int(records.sum()), options.world), options)
    return work.with_text(
        "Rank r reads the records r, r + W, ...; every record is read once.",
        f"use a number of records that {options.world:,} divides, or batch(drop_remainder=True)"
        if work.hangs
        else None,
    )


def tfds_even_splits(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``tfds.even_splits`` and ``tfds.split_for_jax_process``."""
    total = int(records.sum())
    if total < options.world:
        return _no_tfds_data(options)
    work = batch_single_stream(split_evenly(total, options.world), options)
    return work.with_text(
        "Every rank reads consecutive records; the first n mod W ranks read one more.",
        "add drop_remainder=True" if work.hangs else None,
    )


def _no_tfds_data(options: PlanOptions) -> Work:
    return refused(
        options,
        "Instruction [] corresponds to no data!",
        "TFDS raises on a rank without records.",
        "use fewer ranks",
    )


def tfds_even_splits_drop(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``tfds.even_splits`` with ``drop_remainder=True``."""
    total = int(records.sum())
    if total < options.world:
        return _no_tfds_data(options)
    work = batch_single_stream(_equal(total // options.world, options), options)
    return work.with_text(
        "Every rank reads the same number of consecutive records; the last n mod W are dropped."
    )


def hf_map(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``datasets``' ``split_dataset_by_node`` on a map-style ``Dataset``."""
    total = int(records.sum())
    if total < options.world:
        return refused(
            options,
            f"Index {total} out of range for dataset of size {total}.",
            "Ranks without records raise an error; the others read.",
            "use fewer ranks",
        )
    work = batch_per_rank(split_evenly(total, options.world), options)
    return work.with_text(
        "Every rank reads consecutive records; the first n mod W ranks read one more.",
        "give the DataLoader a DistributedSampler instead" if work.hangs else None,
    )


# -- shardwriter's own reader ----------------------------------------------------------------------


def _shardwriter(records: Counts, options: PlanOptions, uneven: Uneven) -> Work:
    """Return the work of shardwriter's reader, by `shardwriter.dataset.RankPartition`.

    Raises:
        UnequalSteps: The policy refuses these numbers.
    """
    total = int(records.sum())
    # All ranks take the same steps, so rank 0 stands for them.
    partition = RankPartition(total, options.world, 0, uneven)
    samples = partition.num_samples * options.world
    num_padded = samples - total if uneven == "pad" else 0
    work = batch_per_rank(_equal(partition.num_samples, options), options, drop=False)
    return Work(work.samples, work.steps, min(total, samples), num_padded=num_padded)


def shardwriter_drop(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``ShardLoader(uneven="drop")``: floor(n / W) records per rank."""
    try:
        work = _shardwriter(records, options, "drop")
    except UnequalSteps:
        return refused(
            options,
            f"{int(records.sum()):,} records are fewer than {options.world:,} ranks",
            "No rank would read anything, so every rank raises before the epoch.",
            "use fewer ranks, or uneven='pad' or 'wrap'",
        )
    return work.with_text("Rank r reads the records r, r + W, ...; the last n mod W are dropped.")


def shardwriter_pad(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``ShardLoader(uneven="pad")``: ceil(n / W) per rank, padding marked."""
    work = _shardwriter(records, options, "pad")
    return work.with_text("Every record is read once; padding samples have is_pad=True.")


def shardwriter_wrap(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``ShardLoader(uneven="wrap")``: ceil(n / W) per rank, first ones twice."""
    work = _shardwriter(records, options, "wrap")
    return work.with_text("Every record is read; the first records repeat until W divides.")


def shardwriter_error(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``ShardLoader(uneven="error")``: an error unless W divides n."""
    try:
        work = _shardwriter(records, options, "error")
    except UnequalSteps:
        return refused(
            options,
            f"{int(records.sum()):,} records do not divide by {options.world:,} ranks",
            "Every rank raises before the epoch.",
            "use uneven='drop', 'pad' or 'wrap'",
        )
    return work.with_text("Every record is read once; rank r reads the records r, r + W, ...")


# -- Policies that assign whole shards -------------------------------------------------------------


def _by_rank(records: Counts, options: PlanOptions) -> Counts:
    return sum_by_owner(records, np.arange(len(records)) % options.world, options.world)


def _by_reader(records: Counts, options: PlanOptions) -> Counts:
    """Return ``int64[world, lanes]``: shard s is of rank s mod W, of its workers round-robin."""
    owner = np.arange(len(records)) % options.num_readers
    amounts = sum_by_owner(records, owner, options.num_readers)
    by_reader: Counts = amounts.reshape(options.num_lanes, options.world).T
    return by_reader


def tf_files(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``Dataset.shard`` over a list of files, as with an ``InputContext``."""
    work = batch_single_stream(_by_rank(records, options), options)
    detail = "Rank r reads the files r, r + W, ...; if the list is shuffled first, use the same "
    return work.with_text(detail + "seed on every rank.", _repeat_remedy(work, options.world))


def _repeat_remedy(work: Work, divisor: int) -> str | None:
    if not work.hangs:
        return None
    return (
        f"use a multiple of {divisor:,} shards with the same number of records, or repeat() and "
        "take() the same number of steps on every rank"
    )


def tf_auto_shard_file(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``tf.data``'s auto-sharding by FILE, which AUTO means for files.

    The batch is the global one; every rank splits it into batches of its own size.
    Source: TensorFlow's ``auto_shard.cc``, and its observed behaviour.
    """
    if len(records) < options.world:
        return refused(
            options,
            "Could not apply FILE based sharding",
            f"{len(records):,} files are not enough for {options.world:,} ranks: ranks with a "
            "file raise an error, the others read nothing. AUTO falls back to DATA only if the "
            "dataset does not come from files.",
            f"use at least {options.world:,} shards, or AutoShardPolicy.DATA",
        )
    amounts = _by_rank(records, options)
    if options.drop_last:
        amounts -= amounts % (options.world * options.batch_size)
    work = batch_single_stream(amounts, options)
    return work.with_text(
        "Rank r reads the files r, r + W, ... Keras and distributed iterators feed empty batches "
        "to ranks that are finished; a custom training loop waits for them.",
        f"use a multiple of {options.world:,} shards with the same number of records, or "
        "AutoShardPolicy.DATA"
        if work.hangs
        else None,
    )


def tf_auto_shard_data(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``tf.data``'s auto-sharding by DATA: a part of every global batch."""
    total, batch = int(records.sum()), options.batch_size
    full, rest = divmod(total, options.world * batch)
    samples = np.full(options.world, full * batch, np.int64)
    steps = np.full(options.world, full, np.int64)
    if rest and not options.drop_last:
        part = ceil_div(rest, options.world)
        samples += np.clip(rest - np.arange(options.world) * part, 0, part)
        steps += 1
    work = Work(samples[:, None], steps, int(samples.sum()))
    return work.with_text(
        "Every rank reads all files and uses its part of each global batch; its part of the last "
        "batch may be empty."
    )


def torch_files(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``files[rank * K + worker :: W * K]`` in an ``IterableDataset``."""
    owner = np.arange(len(records)) % options.num_readers
    amounts = sum_by_owner(records, owner, options.num_readers)
    work = batch_per_stream(amounts.reshape(options.world, options.num_lanes), options)
    return work.with_text(
        "Worker k of rank r reads file r * K + k, then every (W * K)th; each worker makes its own "
        "batches, with its own incomplete last one.",
        _reader_remedy(work, options),
    )


def _reader_remedy(work: Work, options: PlanOptions) -> str | None:
    if not work.hangs:
        return None
    return f"use a multiple of {options.num_readers:,} shards with the same number of records"


def webdataset(records: Counts, options: PlanOptions) -> Work:
    """Return the work of WebDataset's ``split_by_node`` and ``split_by_worker``.

    Its ``empty_check`` raises in a worker that reads no sample.
    """
    amounts = _by_reader(records, options)
    detail = (
        "Rank r reads the shards r, r + W, ... (split_by_node), assigned round-robin to its "
        "workers (split_by_worker); each worker makes its own batches."
    )
    if (amounts == 0).any():
        num_idle = int((amounts == 0).sum())
        return refused(
            options,
            "No samples found in dataset; perhaps you have fewer shards than workers.",
            f"{detail} {num_idle:,} of {options.num_readers:,} workers would read nothing.",
            f"use at least {options.num_readers:,} shards with records, or fewer workers; "
            "empty_check=False lets those workers end at once",
        )
    work = batch_per_stream(amounts, options)
    remedy = _reader_remedy(work, options)
    if remedy:
        remedy += ", or resampled=True with with_epoch()"
    return work.with_text(detail, remedy)


def hf_iterable(records: Counts, options: PlanOptions) -> Work:
    """Return the work of ``datasets``' ``split_dataset_by_node`` on an ``IterableDataset``.

    If N is a multiple of W, ranks read whole shards. Otherwise every rank reads everything and
    uses one record in W, counted by each worker over its own shards.
    """
    if len(records) % options.world == 0:
        work = batch_per_stream(_by_reader(records, options), options)
        return work.with_text(
            "N is a multiple of W, so rank r reads the shards r, r + W, ..., assigned round-robin "
            "to its workers.",
            _reader_remedy(work, options),
        )
    lanes = options.num_lanes
    in_lane = sum_by_owner(records, np.arange(len(records)) % lanes, lanes)
    amounts = -(-(in_lane[None, :] - np.arange(options.world)[:, None]) // options.world)
    work = batch_per_stream(np.maximum(0, amounts), options)
    return work.with_text(
        "N is not a multiple of W, so every rank reads all shards and uses one record in W.",
        f"use a multiple of {options.world:,} shards: each rank then reads {options.world:,} times "
        "less" + (", and ranks take the same steps" if work.hangs else ""),
    )


def tfds_input_context(records: Counts, options: PlanOptions) -> Work:
    """Return the work of TFDS with ``ReadConfig(input_context=...)``: whole shards per rank.

    TFDS skips empty shards.
    """
    records = records[records > 0]
    if options.world > 1 and len(records) < options.world:
        return refused(
            options,
            "Cannot shard the pipeline with given `input_context`.",
            f"{len(records):,} non-empty shards are fewer than {options.world:,} pipelines.",
            f"use at least {options.world:,} shards, or tfds.even_splits",
        )
    work = batch_single_stream(_by_rank(records, options), options)
    return work.with_text(
        "Pipeline r reads the shards r, r + W, ...", _repeat_remedy(work, options.world)
    )


MAX_LISTED: Final = 4096
"""Maximum length of a list in the plan; longer lists are truncated."""

_LOST_SHARE: Final = 0.01  # of the records: losing more is more than rounding

Unit = Literal["shards", "records"]


@dataclass(frozen=True)
class Policy:
    """One way in which a framework assigns data to ranks and workers.

    Attributes:
        name: Stable name, in the JSON document and on the command line.
        framework: The framework.
        title: Name for people.
        unit: Whether it assigns whole ``shards`` or single ``records``.
        work: Returns the work for (records per shard, options).
    """

    name: str
    framework: str
    title: str
    unit: Unit
    work: Callable[[Counts, PlanOptions], Work]


POLICIES: Final = tuple(
    Policy(*row)
    for row in (
        ("tf-files", "tf.data", "files.shard(W, r)", "shards", tf_files),
        ("tf-auto-file", "tf.data", "auto-shard FILE", "shards", tf_auto_shard_file),
        ("tf-auto", "tf.data", "auto-shard AUTO", "shards", tf_auto_shard_file),
        ("tf-auto-data", "tf.data", "auto-shard DATA", "records",
         tf_auto_shard_data),
        ("torch-files", "torch", "files[i::W*K]", "shards", torch_files),
        ("torch-distributed-sampler", "torch", "DistributedSampler", "records",
         torch_sampler),
        ("torch-distributed-sampler-drop", "torch", "sampler, drop_last", "records",
         torch_sampler_drop),
        ("webdataset", "webdataset", "split_by_node", "shards",
         webdataset),
        ("datasets-iterable", "datasets", "by_node, iterable", "shards",
         hf_iterable),
        ("datasets-map", "datasets", "by_node, map-style", "records", hf_map),
        ("tfds-input-context", "tfds", "InputContext", "shards",
         tfds_input_context),
        ("tfds-even-splits", "tfds", "even_splits", "records", tfds_even_splits),
        ("tfds-even-splits-drop", "tfds", "even_splits, drop", "records",
         tfds_even_splits_drop),
        ("timm-train", "timm", "ReaderTfds training", "shards", timm_train),
        ("timm-eval", "timm", "ReaderTfds validation", "records", timm_eval),
        ("dali-fill", "dali", "FILL", "records", dali_fill),
        ("dali-partial", "dali", "PARTIAL", "records", dali_partial),
        ("dali-drop", "dali", "DROP", "records", dali_drop),
        ("grain-index-sampler", "grain", "IndexSampler", "records",
         grain_sampler),
        ("grain-index-sampler-drop", "grain", "IndexSampler, drop", "records",
         grain_sampler),
        ("grain-slice", "grain", "MapDataset[r::W]", "records", grain_slice),
        ("shardwriter-drop", "shardwriter", "drop", "records", shardwriter_drop),
        ("shardwriter-pad", "shardwriter", "pad", "records", shardwriter_pad),
        ("shardwriter-wrap", "shardwriter", "wrap", "records", shardwriter_wrap),
        ("shardwriter-error", "shardwriter", "error", "records", shardwriter_error),
    )
)  # fmt: skip


NAMES: Final = tuple(policy.name for policy in POLICIES)

LIKELY: Final = (
    "tf-auto",  # the default of tf.distribute and Keras
    "webdataset",  # split_by_node, as in its own examples
    "datasets-iterable",  # split_dataset_by_node, which Trainer calls on streams
    "dali-fill",  # DALI's default for the last batch
    "shardwriter-drop",  # ShardLoader(uneven="drop"): equal steps from any number of shards
)
"""The most common policies, one of each family; tables show these first."""


def check_names(names: Iterable[str]) -> None:
    """Raise `OptionError` if a name is not that of a policy; the hint lists all names."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise OptionError(
            f"unknown policy {unknown[0]!r}", hint=f"use all, or one of {', '.join(NAMES)}"
        )


def policy_json(policy: Policy, records: Counts, options: PlanOptions) -> dict[str, Any]:
    """Return an entry of the plan's ``policies``: the work under one policy."""
    work = policy.work(records, options)
    refuses = work.error is not None
    samples = work.samples.sum(axis=1)
    idle = 0 if refuses else int((work.samples == 0).sum())
    distinct = work.num_distinct
    distinct_max = work.num_distinct_max if distinct is None else distinct
    total = int(records.sum())
    num_samples = int(samples.sum())
    lanes = work.samples.shape[1]
    listed = 0 if refuses else min(MAX_LISTED, len(samples))
    return {
        "deals": policy.unit,
        "detail": work.detail,
        "error": work.error,
        "framework": policy.framework,
        "hangs": work.hangs,
        "idle_workers": idle,
        "num_distinct": distinct,
        "num_distinct_max": distinct_max,
        "num_dropped": None if distinct is None else total - distinct,
        "num_padded": work.num_padded,
        "num_repeated": None if distinct is None else num_samples - work.num_padded - distinct,
        "num_samples": num_samples,
        "policy": policy.name,
        "remedy": work.remedy,
        "samples": samples[:listed].tolist(),
        "samples_max": int(samples.max()),
        "samples_min": int(samples.min()),
        "steps": work.steps[:listed].tolist(),
        "steps_max": int(work.steps.max()),
        "steps_min": int(work.steps.min()),
        "title": policy.title,
        "verdict": _verdict(work, samples, idle, total, distinct_max or 0),
        "worker_samples": work.samples[: min(listed, max(1, MAX_LISTED // lanes))].tolist()
        if listed
        else [],
        "worker_samples_max": int(work.samples.max()),
        "worker_samples_min": int(work.samples.min()),
    }


def _verdict(work: Work, samples: Counts, idle: int, num_records: int, num_seen: int) -> str:
    """Return the worst of error, hangs, loses, uneven, ok that applies."""
    if work.error is not None:
        return "error"
    if work.hangs:
        return "hangs"
    if num_records - num_seen > _LOST_SHARE * num_records:
        return "loses"
    if idle or np.ptp(samples):
        return "uneven"
    return "ok"
