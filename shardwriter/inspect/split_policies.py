"""The policies that there are, and what each makes of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import RankPartition, Uneven
from shardwriter.errors import OptionError, UnequalSteps

# What a training job looks like, as far as it decides who reads what.


@dataclass(frozen=True)
class PlanOptions:
    """Who will read.

    Attributes:
        world: Ranks: processes that train together, each with its own share of the records.
        loader_workers: Loader processes of a rank; 0 for none, the rank reads by itself.
        batch_size: Records in a batch of one rank.
        drop_last: The loader drops batches that are not full.
        record_bytes: Mean bytes of a record with its frame, for sizes of shards; None where sizes
            do not matter.
        policies: Names of those that are of interest; all where there are none.
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
        """Streams of records that a rank reads side by side: its workers, or itself."""
        return max(1, self.loader_workers)

    @property
    def num_readers(self) -> int:
        """Streams of records in all."""
        return self.world * self.num_lanes


# What each rank and worker gets, and the three ways in which records become batches.

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


# Policies of readers with rules of their own: DALI's iterator and timm's ``ReaderTfds``.

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


# Policies that deal out records, whatever shards they lie in.


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
    share = RankPartition(total, options.world, 0, uneven)
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


# Policies that give whole shards to ranks and workers.


def _by_rank(records: Counts, options: PlanOptions) -> Counts:
    return summed(records, np.arange(len(records)) % options.world, options.world)


def _by_reader(records: Counts, options: PlanOptions) -> Counts:
    """Give shard s to rank s mod W, and there to the workers in turn: ``int64[world, lanes]``."""
    owner = np.arange(len(records)) % options.num_readers
    amounts = summed(records, owner, options.num_readers)
    by_reader: Counts = amounts.reshape(options.num_lanes, options.world).T
    return by_reader


def tf_files(records: Counts, options: PlanOptions) -> Work:
    """``Dataset.shard`` over a list of files, as ``tf.distribute.InputContext`` is used."""
    work = alone(_by_rank(records, options), options)
    detail = "Rank r reads the files r, r + W, ...; a list that is shuffled first must have the "
    return work.told(detail + "same seed on every rank.", _repeat_remedy(work, options.world))


def _repeat_remedy(work: Work, divisor: int) -> str | None:
    if not work.hangs:
        return None
    return (
        f"use a multiple of {divisor:,} shards with the same number of records, or repeat() and "
        "take() the same number of steps on every rank"
    )


def tf_auto_shard_file(records: Counts, options: PlanOptions) -> Work:
    """``tf.data``'s automatic sharding by FILE, which AUTO means for every dataset of files.

    The batch is the global one, which every rank cuts into pieces of its own size.
    Source: TensorFlow's ``auto_shard.cc``, and what it does.
    """
    if len(records) < options.world:
        return refused(
            options,
            "Could not apply FILE based sharding",
            f"{len(records):,} files are not enough for {options.world:,} ranks: those that have a "
            "file raise, and the others read nothing. AUTO falls back to DATA only where a dataset "
            "does not come from files.",
            f"use at least {options.world:,} shards, or AutoShardPolicy.DATA",
        )
    amounts = _by_rank(records, options)
    if options.drop_last:
        amounts -= amounts % (options.world * options.batch_size)
    work = alone(amounts, options)
    return work.told(
        "Rank r reads the files r, r + W, ... Keras and distributed iterators feed empty batches "
        "to ranks that have ended; a loop of your own waits for them.",
        f"use a multiple of {options.world:,} shards with the same number of records, or "
        "AutoShardPolicy.DATA"
        if work.hangs
        else None,
    )


def tf_auto_shard_data(records: Counts, options: PlanOptions) -> Work:
    """``tf.data``'s automatic sharding by DATA: pieces of every global batch."""
    total, batch = int(records.sum()), options.batch_size
    full, rest = divmod(total, options.world * batch)
    samples = np.full(options.world, full * batch, np.int64)
    steps = np.full(options.world, full, np.int64)
    if rest and not options.drop_last:
        piece = ceil_div(rest, options.world)
        samples += np.clip(rest - np.arange(options.world) * piece, 0, piece)
        steps += 1
    work = Work(samples[:, None], steps, int(samples.sum()))
    return work.told(
        "Every rank reads all files and keeps its piece of each global batch; of the last batch "
        "a rank may get an empty piece."
    )


def torch_files(records: Counts, options: PlanOptions) -> Work:
    """``files[rank * K + worker :: W * K]`` in an ``IterableDataset``, as loaders of one's own."""
    owner = np.arange(len(records)) % options.num_readers
    amounts = summed(records, owner, options.num_readers)
    work = streamed(amounts.reshape(options.world, options.num_lanes), options)
    return work.told(
        "Worker k of rank r reads the files r * K + k, then every (W * K)th; each worker makes "
        "batches of its own, and its own last one.",
        _reader_remedy(work, options),
    )


def _reader_remedy(work: Work, options: PlanOptions) -> str | None:
    if not work.hangs:
        return None
    return f"use a multiple of {options.num_readers:,} shards with the same number of records"


def webdataset(records: Counts, options: PlanOptions) -> Work:
    """WebDataset's ``split_by_node`` and ``split_by_worker``.

    Its ``empty_check`` raises in a worker that has read no sample.
    """
    amounts = _by_reader(records, options)
    detail = (
        "Rank r takes the shards r, r + W, ... (split_by_node), and its workers take turns at "
        "them (split_by_worker); each worker makes batches of its own."
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
    work = streamed(amounts, options)
    remedy = _reader_remedy(work, options)
    if remedy:
        remedy += ", or with_epoch() behind resampled=True"
    return work.told(detail, remedy)


def hf_iterable(records: Counts, options: PlanOptions) -> Work:
    """``datasets.distributed.split_dataset_by_node`` of an ``IterableDataset``.

    Whole shards where N is a multiple of W; else every rank reads everything and keeps one record
    of W, counted by each worker in its own shards.
    """
    if len(records) % options.world == 0:
        work = streamed(_by_reader(records, options), options)
        return work.told(
            "N is a multiple of W, so rank r takes the shards r, r + W, ... and its workers take "
            "turns at them.",
            _reader_remedy(work, options),
        )
    lanes = options.num_lanes
    in_lane = summed(records, np.arange(len(records)) % lanes, lanes)
    amounts = -(-(in_lane[None, :] - np.arange(options.world)[:, None]) // options.world)
    work = streamed(np.maximum(0, amounts), options)
    return work.told(
        "N is not a multiple of W, so every rank reads all shards and keeps one record of W.",
        f"use a multiple of {options.world:,} shards: it reads {options.world:,} times less"
        + (", and ranks take the same steps" if work.hangs else ""),
    )


def tfds_input_context(records: Counts, options: PlanOptions) -> Work:
    """TFDS with ``ReadConfig(input_context=...)``: a pipeline a rank, of whole shards.

    Shards without records are no files to it.
    """
    records = records[records > 0]
    if options.world > 1 and len(records) < options.world:
        return refused(
            options,
            "Cannot shard the pipeline with given `input_context`.",
            f"{len(records):,} shards with records can not be dealt to {options.world:,} "
            "pipelines.",
            f"use at least {options.world:,} shards, or tfds.even_splits",
        )
    work = alone(_by_rank(records, options), options)
    return work.told(
        "Pipeline r reads the shards r, r + W, ...", _repeat_remedy(work, options.world)
    )


MAX_LISTED: Final = 4096
"""Numbers in a list of the plan; of longer ones the first so many stand there."""

_LOST_SHARE: Final = 0.01  # of the records, from which on it is more than a rounding

Unit = Literal["shards", "records"]


@dataclass(frozen=True)
class Policy:
    """One way in which a framework deals data to ranks and workers.

    Attributes:
        policy: Its name, which stays.
        framework: Whose it is.
        title: What a person calls it.
        deals: Whether it deals whole ``shards`` or ``records``.
        work: What it makes of (records per shard, options).
    """

    policy: str
    framework: str
    title: str
    deals: Unit
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
        ("shardwriter-drop", "shardwriter", "drop", "records", ours_drop),
        ("shardwriter-pad", "shardwriter", "pad", "records", ours_pad),
        ("shardwriter-wrap", "shardwriter", "wrap", "records", ours_wrap),
        ("shardwriter-error", "shardwriter", "error", "records", ours_error),
    )
)  # fmt: skip


NAMES: Final = tuple(policy.policy for policy in POLICIES)

LIKELY: Final = (
    "tf-auto",  # what tf.distribute and Keras do where nobody chooses
    "webdataset",  # split_by_node is in its own examples
    "datasets-iterable",  # split_dataset_by_node, which Trainer calls on streams
    "dali-fill",  # DALI's default for the last batch
    "shardwriter-drop",  # ShardLoader(uneven="drop"): equal steps from any number of shards
)
"""The policies that most training uses, one of each family; tables show these first."""


def check_names(names: Iterable[str]) -> None:
    """Refuse names of no policy.

    Raises:
        OptionError: There is one; lists those that there are.
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise OptionError(
            f"there is no policy {unknown[0]!r}", hint=f"all, or one of {', '.join(NAMES)}"
        )


def policy_json(policy: Policy, records: Counts, options: PlanOptions) -> dict[str, Any]:
    """Return what one policy makes of a job: an entry of the plan's ``policies``."""
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
        "deals": policy.deals,
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
        "policy": policy.policy,
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
    """Return the worst that can be said of a policy: error, hangs, loses, uneven, else ok."""
    if work.error is not None:
        return "error"
    if work.hangs:
        return "hangs"
    if num_records - num_seen > _LOST_SHARE * num_records:
        return "loses"
    if idle or np.ptp(samples):
        return "uneven"
    return "ok"
