"""Policies that give whole shards to ranks and workers."""

from __future__ import annotations

import numpy as np

from shardwriter.inspect.options import PlanOptions
from shardwriter.inspect.work import Counts, Work, alone, ceil_div, refused, streamed, summed


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
