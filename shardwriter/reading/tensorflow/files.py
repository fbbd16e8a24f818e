"""Streams of serialized records in a TensorFlow graph: who reads which files, and how many at once.

**Source order.** Reading one record of each of N shards in turn gives the source order back, and
needs all N open. Items that gave no record (gaps) would shift the turns, so there each record's
shard is looked up. More shards than may be open are read in blocks
(:mod:`shardwriter.reading.tensorflow.blocks`).

**Ranks.** Where whole files can be dealt (:mod:`shardwriter.reading.record_files`), a rank reads
its own. Else every rank reads all files and keeps one record of W: in source order every Wth of the
stream, and in no order every Wth of a file, counted on from file to file, so that no rank depends
on the order in which another one reads.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import tensorflow as tf

from shardwriter.dataset.permutation import Permutation
from shardwriter.dataset.rank_partition import Share
from shardwriter.errors import OptionError
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.record_files import RecordFiles, deals_files
from shardwriter.reading.tensorflow.blocks import as_it_stands, in_blocks, plan_blocks

# TensorFlow's parallel interleave opens files ahead, two for each that it reads.
FILES_AHEAD: Final = 3

_CYCLE_OF_BLOCKS: Final = 16
_CHOICE_BLOCK: Final = 4096  # records whose shards are looked up at once


def in_source_order(files: RecordFiles, share: Share, max_open_files: int) -> Any:
    """Return a rank's own records in source order, without padding: a dataset of strings.

    Raises:
        OptionError: Too many files would be open.
    """
    if share.world > 1 and deals_files(files, share, in_order=True):
        return in_source_order(
            files.dealt(share.rank, share.world), Share(files.num_records), max_open_files
        )
    num_open = int((files.counts > 0).sum())
    if num_open > max_open_files:
        stream = _in_blocks(files, max_open_files)
    else:
        stream = _by_choice(files) if len(files.gaps) else _in_turn(files, num_open)
    return stream if share.world == 1 else stream.shard(share.world, share.rank)


def _in_blocks(files: RecordFiles, max_open_files: int) -> Any:
    if files.starts is None:
        raise OptionError(
            f"reading {len(files.paths):,} compressed shards in source order takes as many open "
            f"files, and max_open_files is {max_open_files:,}",
            hint="say deterministic=False for any order, or shuffle=True; or raise max_open_files "
            "(and `ulimit -n`)",
        )
    blocks = plan_blocks(files.counts, files.gaps, files.starts, files.mean_bytes)
    cycle_length = max(1, min(max_open_files // FILES_AHEAD, _CYCLE_OF_BLOCKS))
    return in_blocks(files.paths, blocks, files.mean_bytes, cycle_length)


def _in_turn(files: RecordFiles, cycle_length: int) -> Any:
    paths = [path for path, count in zip(files.paths, files.counts, strict=True) if count]
    if not paths:
        return _nothing()
    return _paths(paths).interleave(
        as_it_stands(lambda path: _records(path, files)),
        cycle_length=cycle_length,
        block_length=1,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _by_choice(files: RecordFiles) -> Any:
    """Take each record from the shard in which its item is."""
    num_shards, total = len(files.paths), files.num_records
    numbers = np.asarray(files.gaps, np.int64)
    before = tf.constant(numbers - np.arange(len(numbers)), tf.int64)

    def shards(records: Any) -> Any:
        gaps = tf.searchsorted(before, records, side="right", out_type=tf.int64)
        return (records + gaps) % num_shards

    choice = tf.data.Dataset.range(total).batch(_CHOICE_BLOCK).map(as_it_stands(shards)).unbatch()
    sources = [_records(path, files) for path in files.paths]
    return tf.data.Dataset.choose_from_datasets(sources, choice, stop_on_empty_dataset=False)


def in_any_order(
    files: RecordFiles,
    share: Share,
    *,
    cycle_length: int,
    seed: int | None,
    epoch: int | None,
    deterministic: bool,
) -> Any:
    """Return a rank's own records, several files at a time: a dataset of strings.

    Args:
        files: All files.
        share: Of this rank.
        cycle_length: Files that are read at a time.
        seed: Chooses the order of the files; None for the one they have.
        epoch: Chooses it, too; None for another one in every iteration.
        deterministic: Whether the same order comes out each time, whoever is first.
    """
    world, firsts = share.world, np.zeros(len(files.paths), np.int64)
    if share.world > 1 and deals_files(files, share, in_order=False):
        files, world = files.dealt(share.rank, share.world), 1
        firsts = np.zeros(len(files.paths), np.int64)
    elif share.world > 1:
        # Records are counted on from file to file; the first that is this rank's stands here.
        before = np.cumsum(files.counts) - files.counts
        firsts = (share.rank - before) % world
    own = np.flatnonzero(files.counts > firsts)
    if not len(own):
        return _nothing()
    if seed is not None and epoch is not None:
        own = own[Permutation(len(own), seed, epoch)(np.arange(len(own)))]
    chosen = _paths([files.paths[shard] for shard in own], firsts[own])
    if seed is not None and epoch is None:
        chosen = chosen.shuffle(len(own), seed=seed, reshuffle_each_iteration=True)

    def of_file(path: Any, first: Any) -> Any:
        records = _records(path, files)
        return records if world == 1 else records.shard(world, first)

    cycle_length = min(cycle_length, len(own))
    return chosen.interleave(
        as_it_stands(of_file),
        cycle_length=cycle_length,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=deterministic,
    )


def exactly(stream: Any, data: Dataset, files: RecordFiles, share: Share, mark: bool) -> Any:
    """Cut or fill a rank's own records so that there are as many as in its share.

    Args:
        stream: The rank's own records.
        data: The dataset, which knows where the first records are.
        files: Its files.
        share: Of this rank.
        mark: Give pairs of a record and whether it is padding.
    """
    length = share.num_samples
    num_own = max(0, -(-(share.num_records - share.rank) // share.world))
    if mark:
        stream = _marked(stream, False)
    if length < num_own:
        stream = stream.take(length)
    elif length > num_own:
        # Only the last draw can be a repeated one, and it is of the first records.
        draw = share.draws(length - 1)
        place = data.place(int(share.records(draw, None)[0]))
        last = _records(place.path, files).skip(place.record_index).take(1)
        if mark:
            last = _marked(last, True)
        stream = stream.concatenate(last)
    return stream.apply(tf.data.experimental.assert_cardinality(length))


def _marked(stream: Any, is_pad: bool) -> Any:
    # A function called for every record would take longer than reading it.
    return tf.data.Dataset.zip((stream, tf.data.Dataset.from_tensors(is_pad).repeat()))


def _records(path: Any, files: RecordFiles) -> Any:
    compression = "" if files.compression == "none" else files.compression.upper()
    return tf.data.TFRecordDataset(path, compression_type=compression)


def _paths(paths: list[str], *columns: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((paths, *columns) if columns else paths)


def _nothing() -> Any:
    return tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))
