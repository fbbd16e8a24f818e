"""The pipeline of ``tf.data``, put together.

    train = tf_dataset("out/train@16", batch_size=64, shuffle=True)
    model.fit(train.map(lambda x: (x["image"], x["label"])), epochs=3)

What comes out is a plain ``tf.data.Dataset``: a graph, without Python in it. The shards are proven
to be there and whole (sizes, counts, the index) before it is made, so that training does not find
out.

GPUs are left alone: everything stands on the CPU, and where TensorFlow has not looked at its GPUs
yet it is told to take their memory as it needs it (``TF_FORCE_GPU_ALLOW_GROWTH=true``, unless that
variable is set), and not all of it at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from shardwriter.dataset import Permutation, RankPartition, Uneven, partition_for_rank
from shardwriter.errors import DataError, OptionError
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.record_files import (
    RecordFiles,
    Resampling,
    Target,
    class_mix,
    deals_files,
    files_of,
    opened_dataset,
    reading_all,
)
from shardwriter.reading.tensorflow.parsing import element_parser, schema_spec

# Source order of more shards than may be open, in a TensorFlow graph.
#
# Turn t has item t of every shard. A block is some turns: of each shard its records in them are
# read in one go, a few shards at a time, from the byte where they begin; then they are put in
# order. So a block is in memory at once, and a shard is opened once a block. Only plain shards can
# be entered in the middle.

# AutoGraph would rewrite functions that have nothing to rewrite, and hide where they fail.
as_it_stands: Any = tf.autograph.experimental.do_not_convert

_I64 = NDArray[np.int64]

_BLOCK_BYTES: Final = 64 << 20  # payload bytes of a block
_MAX_TURNS: Final = 1024
_BUFFER_BYTES: Final = (4 << 10, 256 << 10)  # of an open file: least and most


@dataclass(frozen=True)
class Blocks:
    """Where each block begins in each shard.

    Attributes:
        num_turns: Turns of a block.
        lengths: ``int64[N]`` items of each shard, those without a record included.
        gaps: ``int64[g]`` sorted items without a record.
        offsets: ``int64[blocks, N]`` the byte where a block's records begin.
        counts: ``int64[blocks, N]`` how many there are.
    """

    num_turns: int
    lengths: _I64
    gaps: _I64
    offsets: _I64
    counts: _I64


def plan_blocks(
    counts: _I64,
    gaps: _I64,
    starts_of: Callable[[int], _I64],
    mean_bytes: int,
    num_turns: int | None = None,
) -> Blocks:
    """Find out where blocks begin.

    Args:
        counts: ``int64[N]`` records of each shard.
        gaps: ``int64[g]`` sorted items without a record.
        starts_of: Gives the byte where each record of a shard begins: ``int64[n]``.
        mean_bytes: Of a record.
        num_turns: Turns of a block; None for 64 MiB of records.
    """
    num_shards = len(counts)
    if num_turns is None:
        num_turns = int(np.clip(_BLOCK_BYTES // (num_shards * mean_bytes), 1, _MAX_TURNS))
    shard_of, turn_of = gaps % num_shards, gaps // num_shards
    lengths = counts + np.bincount(shard_of, minlength=num_shards)
    edges = np.arange(0, int(lengths.max(initial=0)) + num_turns, num_turns)
    positions = np.minimum(edges[:, None], lengths[None, :])
    by_shard = np.lexsort((turn_of, shard_of))
    limits = np.searchsorted(shard_of[by_shard], np.arange(num_shards + 1))
    for shard in np.unique(shard_of):
        turns = turn_of[by_shard[limits[shard] : limits[shard + 1]]]
        positions[:, shard] -= np.searchsorted(turns, edges)
    held = np.diff(positions, axis=0)
    offsets = np.zeros_like(held)
    for shard in np.flatnonzero(counts):
        starts = starts_of(int(shard))
        offsets[:, shard] = starts[np.minimum(positions[:-1, shard], len(starts) - 1)]
    return Blocks(num_turns, lengths, gaps, offsets, held)


def in_blocks(paths: tuple[str, ...], blocks: Blocks, mean_bytes: int, cycle_length: int) -> Any:
    """Return the records of plain shards in source order: a dataset of strings.

    Args:
        paths: One for each shard, in order.
        blocks: Where to read.
        mean_bytes: Of a record.
        cycle_length: Files that are read at a time.
    """
    names = tf.constant(paths, tf.string)
    offsets, counts = tf.constant(blocks.offsets), tf.constant(blocks.counts)
    lengths, gaps = tf.constant(blocks.lengths), tf.constant(blocks.gaps, tf.int64)
    num_shards, num_turns = len(paths), blocks.num_turns
    buffer_bytes = int(np.clip(num_turns * mean_bytes, *_BUFFER_BYTES))

    def piece(path: Any, offset: Any, count: Any) -> Any:
        """Give one shard's records of a block: ``string[num_turns]``, filled up with ``""``."""
        records = tf.data.experimental.from_variant(
            tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.reshape(path, [1]),
                compression_type="",
                buffer_size=buffer_bytes,
                byte_offsets=tf.reshape(offset, [1]),
            ),
            tf.TensorSpec([], tf.string),
        )
        return records.take(count).batch(num_turns).map(as_it_stands(filled_up))

    def filled_up(payloads: Any) -> Any:
        return tf.pad(payloads, [[0, num_turns - tf.shape(payloads)[0]]], constant_values="")

    def ordered(rows: Any, block: Any, held: Any) -> Any:
        """Put ``string[shards, num_turns]`` in order."""
        flat = tf.boolean_mask(rows, tf.sequence_mask(held, num_turns))
        first = block * num_turns
        turns = first + tf.range(num_turns, dtype=tf.int64)
        has_record = turns[:, None] < lengths[None, :]
        limits = tf.searchsorted(gaps, [first * num_shards, (first + num_turns) * num_shards])
        missing = gaps[limits[0] : limits[1]] - first * num_shards
        has_record = tf.tensor_scatter_nd_update(
            has_record,
            tf.stack([missing // num_shards, missing % num_shards], axis=1),
            tf.zeros_like(missing, tf.bool),
        )
        # Records stand shard by shard: their numbers in that order, read turn by turn.
        by_shard = tf.reshape(tf.transpose(has_record), [-1])
        numbers = tf.cumsum(tf.cast(by_shard, tf.int32)) - 1
        by_turn = tf.transpose(tf.reshape(numbers, [num_shards, num_turns]))
        return tf.gather(flat, tf.boolean_mask(by_turn, has_record))

    def records(block: Any) -> Any:
        held = counts[block]
        chosen = held > 0
        held = tf.boolean_mask(held, chosen)
        where = (tf.boolean_mask(names, chosen), tf.boolean_mask(offsets[block], chosen), held)
        # Each shard gives one row, so an interleave keeps their order.
        rows = tf.data.Dataset.from_tensor_slices(where).interleave(
            as_it_stands(piece),
            cycle_length=cycle_length,
            block_length=1,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        whole = rows.batch(num_shards)
        return whole.map(as_it_stands(lambda rows: ordered(rows, block, held))).unbatch()

    return tf.data.Dataset.range(len(blocks.offsets)).flat_map(as_it_stands(records))


# Streams of serialized records in a TensorFlow graph: who reads which files, and how many at once.
#
# **Source order.** Reading one record of each of N shards in turn gives the source order back, and
# needs all N open. Items that gave no record (gaps) would shift the turns, so there each record's
# shard is looked up. More shards than may be open are read in blocks
# (:mod:`shardwriter.reading.tensorflow.dataset`).
#
# **Ranks.** Where whole files can be dealt (:mod:`shardwriter.reading.record_files`), a rank reads
# its own. Else every rank reads all files and keeps one record of W: in source order every Wth of
# the stream, and in no order every Wth of a file, counted on from file to file, so that no rank
# depends on the order in which another one reads.

# TensorFlow's parallel interleave opens files ahead, two for each that it reads.
FILES_AHEAD: Final = 3

_CYCLE_OF_BLOCKS: Final = 16
_CHOICE_BLOCK: Final = 4096  # records whose shards are looked up at once


def in_source_order(files: RecordFiles, share: RankPartition, max_open_files: int) -> Any:
    """Return a rank's own records in source order, without padding: a dataset of strings.

    Raises:
        OptionError: Too many files would be open.
    """
    if share.world > 1 and deals_files(files, share, in_order=True):
        return in_source_order(
            files.dealt(share.rank, share.world), RankPartition(files.num_records), max_open_files
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
    share: RankPartition,
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


def exactly(
    stream: Any, data: Dataset, files: RecordFiles, share: RankPartition, mark: bool
) -> Any:
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


# Dropping and repeating records in a TensorFlow graph, so that classes have wanted shares.
#
# One copy of the input is read: blocks of records, of which only the label is parsed. A table says
# how often a record of its class comes on average; c copies come as floor(c), and one more with the
# probability that is left.

_RESAMPLED_BLOCK_BYTES: Final = 4 << 20
_MAX_BLOCK: Final = 256  # records
_SPARE_PASSES: Final = 8  # times as often as should be needed, the data is read at most


def resampled_stream(
    stream: Any,
    plan: Resampling,
    kind: str | None,
    *,
    mean_bytes: int,
    seed: int,
    epoch: int | None,
    num_samples: int,
    expected: float,
) -> Any:
    """Return ``num_samples`` serialized records of a stream, in the shares of a plan.

    Args:
        stream: Serialized records; read again when they end before there are enough.
        plan: How often records of each class come.
        kind: Of the label: ``int64`` or ``bytes``.
        mean_bytes: Of a record, which says how large blocks are.
        seed: Chooses which ones.
        epoch: Chooses it, too; None for others in every iteration.
        num_samples: Records that come out.
        expected: Records that a pass gives on average.
    """
    dtype = tf.int64 if kind == "int64" else tf.string
    spelled = list(plan.copies)
    classes = [int(name) for name in spelled] if kind == "int64" else spelled
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.constant(classes, dtype), tf.constant([plan.copies[c] for c in spelled], tf.float32)
        ),
        default_value=0.0,
    )
    spec = {plan.label: tf.io.RaggedFeature(dtype)}

    def pick(payloads: Any, number: Any) -> Any:
        labels = tf.io.parse_example(payloads, spec)[plan.label]
        # Records without the label are of no class: they have no copies.
        rows = tf.where(labels.row_lengths() == 1)[:, 0]
        copies = table.lookup(tf.gather(labels.values, tf.gather(labels.row_starts(), rows)))
        seeds = tf.stack([tf.constant(seed % 2**63, tf.int64), number])
        chance = tf.random.stateless_uniform(tf.shape(copies), seeds)
        num_copies = tf.cast(tf.floor(copies + chance), tf.int32)
        return tf.gather(payloads, tf.repeat(rows, num_copies))

    block = max(1, min(_MAX_BLOCK, _RESAMPLED_BLOCK_BYTES // mean_bytes))
    numbers = tf.data.Dataset.random(
        seed=_first_seed(seed, epoch), rerandomize_each_iteration=epoch is None
    )
    # Read again, other records are picked. Where a rank has none of a class that is wanted alone
    # the end comes all the same, as an error that says how many there were.
    passes = _SPARE_PASSES + math.ceil(_SPARE_PASSES * num_samples / max(1.0, expected))
    blocks = tf.data.Dataset.zip((stream.batch(block).repeat(passes), numbers))
    picked = blocks.map(as_it_stands(pick), tf.data.AUTOTUNE, deterministic=True).unbatch()
    return picked.take(num_samples).apply(tf.data.experimental.assert_cardinality(num_samples))


def _first_seed(seed: int, epoch: int | None) -> int:
    return (seed * 1_000_003 + (0 if epoch is None else epoch + 1)) % 2**62 + 1


_SHUFFLE_BYTES: Final = 128 << 20  # payload bytes that wait in the buffer of a shuffle
_MAX_SHUFFLE_RECORDS: Final = 1 << 16


def tf_dataset(
    data: str | os.PathLike[str] | Dataset,
    *,
    batch_size: int | None = None,
    drop_remainder: bool = False,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int | None = None,
    shuffle_buffer: int | None = None,
    parse: bool | Mapping[str, Any] = True,
    features: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    deterministic: bool = True,
    cycle_length: int = 16,
    max_open_files: int | None = None,
    prefetch: int | None = None,
    input_context: Any = None,
    rank: int | None = None,
    world: int | None = None,
    uneven: Uneven | None = None,
    resample: Target | Resampling | None = None,
    num_samples: int | None = None,
    hide_gpus: bool = False,
    notify: Callable[[str], None] | None = None,
) -> Any:
    """Return a ``tf.data.Dataset`` of a dataset's records.

    With no options it gives every record once, in source order. Where shards are more than
    ``max_open_files`` they are read in blocks of 64 MiB, which only plain shards can be.

    Args:
        data: A path as `shardwriter.open` takes it, or what it returned.
        batch_size: Records in a batch of this rank; None for single records. A batch is parsed at
            once, which is several times faster than parsing records one by one.
        drop_remainder: Leave the last batch out where it is not full.
        shuffle: Read the shards in a random order, ``cycle_length`` at a time, and shuffle what
            they give in a buffer.
        seed: Of the shuffle and of resampling. (``tf.random.set_seed`` counts, too.)
        epoch: The order is a function of seed and epoch, the same in every iteration, so that
            ``.skip(steps)`` goes on with an epoch that was stopped. None: every iteration has an
            order of its own; they repeat from the first when the dataset is made anew.
        shuffle_buffer: Records in the buffer; None for 128 MiB of them, at most 65,536.
        parse: True for a dict of tensors by the schema of the manifest; see
            :mod:`shardwriter.reading.tensorflow.parsing` for shapes, dtypes and absent features. A
            mapping is given to ``tf.io.parse_example`` as it is. False for serialized examples.
        features: Names of the features to parse; None for all.
        defaults: What absent features are, by name; None for 0, NaN, False and ``""``.
        deterministic: False lets whichever file is first be first: faster, and in no order.
        cycle_length: Files that are read at a time where the order is not that of the source.
        max_open_files: How many may be open for source order; None for half of what this process
            may open, at most 128.
        prefetch: Elements made ahead at the end of the pipeline; None lets TensorFlow choose.
        input_context: The ``tf.distribute.InputContext`` that a strategy gives; says rank and
            world. Batches then are those of a replica:
            ``context.get_per_replica_batch_size(global_batch_size)``.
        rank: This process, from 0.
        world: Number of processes. Each reads its own records, all the same number of them: the
            same ones in every epoch, also where they are shuffled. (`Dataset.shuffle` and torch's
            loader deal them anew.)
        uneven: What happens where ``world`` does not divide the records: ``drop``, ``pad`` or
            ``wrap``. With ``pad`` there is one feature more, ``is_pad``; without parsing elements
            are pairs ``(serialized, is_pad)``.
        resample: Drop and repeat records so that classes have these shares: ``"uniform"``,
            ``{class: share}``, or a plan of :func:`class_mix`. It is seeded and reads one copy of
            the input.
        num_samples: Records of a resampled epoch on each rank; None for what a pass gives on
            average. Data is read again where a pass gives less.
        hide_gpus: Take all GPUs from TensorFlow, for programs that train with JAX or PyTorch.
        notify: Told what is worth knowing, in sentences.

    Raises:
        OptionError: Options do not go together, or with what the dataset is.
        UnequalSteps: Ranks would not take the same steps, and ``uneven`` does not say what to do.
        DataError: The dataset is not whole.
    """
    if resample is None and num_samples is not None:
        raise OptionError("num_samples is for resampling", hint="use .take(n)")
    for name, value in (
        ("batch_size", batch_size),
        ("shuffle_buffer", shuffle_buffer),
        ("cycle_length", cycle_length),
        ("max_open_files", max_open_files),
        ("num_samples", num_samples),
    ):
        if value is not None and value < 1:
            raise OptionError(f"{name} is {value}", hint="give a number from 1 on")
    for name, value in (("seed", seed), ("epoch", epoch)):
        if value is not None and not 0 <= value < 1 << 63:
            raise OptionError(f"{name} is {value}", hint="give a number from 0 to 2^63 - 1")
    rank, world = _rank_and_world(input_context, rank, world)
    _spare_gpus(hide_gpus)
    opened = opened_dataset(data, notify)
    if max_open_files is None:
        max_open_files = opened._core.reader.pool.max_open
    plan = class_mix(opened, resample) if isinstance(resample, (str, Mapping)) else resample
    if not isinstance(plan, Resampling | None):
        raise OptionError(
            f"resample is {resample!r}",
            hint='give "uniform", {class: share}, or a plan of class_mix',
        )
    files = files_of(opened)
    share = partition_for_rank(files.num_records, rank, world, _policy(uneven, plan))
    parser = element_parser(
        opened,
        parse,
        features,
        defaults,
        is_batch=batch_size is not None,
        has_pads=uneven == "pad",
    )
    in_order = deterministic and not shuffle
    if notify is not None and world > 1 and not deals_files(files, share, in_order):
        notify(reading_all(files, world))
    # Nothing of it needs a GPU, and an operation that stands on one would take its memory.
    with tf.device("/cpu:0"):
        if in_order:
            stream = in_source_order(files, share, max_open_files)
        else:
            stream = in_any_order(
                files,
                share,
                cycle_length=min(cycle_length, max(1, max_open_files // FILES_AHEAD)),
                seed=seed if shuffle else None,
                epoch=epoch,
                deterministic=deterministic,
            )
        if plan is None:
            stream = exactly(stream, opened, files, share, mark=uneven == "pad")
            length = share.num_samples
        else:
            length = num_samples or max(1, int(plan.expected_records) // world)
            stream = resampled_stream(
                stream,
                plan,
                opened.features[plan.label].type.kind,
                mean_bytes=files.mean_bytes,
                seed=seed,
                epoch=epoch,
                num_samples=length,
                expected=plan.expected_records / world,
            )
        if shuffle and length > 1:
            size = shuffle_buffer or _shuffle_buffer(files)
            stream = stream.shuffle(
                min(size, length),
                seed=_mixed(seed, epoch),
                reshuffle_each_iteration=epoch is None,
            )
        if batch_size is not None:
            stream = stream.batch(batch_size, drop_remainder)
        if parser is not None:
            stream = stream.map(as_it_stands(parser), tf.data.AUTOTUNE, deterministic=deterministic)
        stream = stream.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)
        return stream.with_options(_options(deterministic, is_split=world > 1))


def feature_spec(
    data: str | os.PathLike[str] | Dataset,
    *,
    features: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what ``tf.io.parse_example`` takes to parse a dataset's records.

    Numbers come out as the int64 and float32 that an Example has; `tf_dataset` gives them the dtype
    that was written.

    Args:
        data: A path as `shardwriter.open` takes it, or what it returned.
        features: Names of the features to parse; None for all.
        defaults: What absent features are, by name.

    Raises:
        OptionError: Nothing is known of the records' features, or there is none of a name.
    """
    opened = opened_dataset(data)
    num_records = opened.num_source_records
    return schema_spec(opened.features, num_records, names=features, defaults=defaults)


@contextmanager
def naming_damage(data: str | os.PathLike[str] | Dataset) -> Iterator[None]:
    """Name the file and record where TensorFlow fails on damaged data, which it does not.

    ::

        with naming_damage("out/train"):
            model.fit(train)

    Costs nothing until then; then every shard is read until the damage is found.

    Raises:
        DataError: What is wrong, with path, record and offset; TensorFlow's error is its cause.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.FailedPreconditionError) as error:
        try:
            for _ in opened_dataset(data).raw():
                pass
        except DataError as found:
            raise found from error
        raise


# -- parts of the pipeline -------------------------------------------------------------------------


def _rank_and_world(context: Any, rank: int | None, world: int | None) -> tuple[int, int]:
    if context is not None:
        if rank is not None or world is not None:
            raise OptionError("rank and world are given, and an input_context that says them")
        return context.input_pipeline_id, context.num_input_pipelines
    if (rank is None) != (world is None):
        raise OptionError("of rank and world one is given", hint="give both")
    return rank or 0, 1 if world is None else world


def _policy(uneven: Uneven | None, plan: Resampling | None) -> Uneven | None:
    if plan is None:
        return uneven
    if uneven is not None:
        raise OptionError(
            f"uneven={uneven!r} has no meaning with resampling",
            hint="leave it out: ranks have the same number of samples",
        )
    return "pad"  # no record is left out, and the length of an epoch is chosen


def _options(deterministic: bool, is_split: bool) -> Any:
    options = tf.data.Options()
    options.deterministic = deterministic
    if is_split:
        # A strategy that is given this dataset must not split it again.
        policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = policy
    return options


def _shuffle_buffer(files: RecordFiles) -> int:
    return int(np.clip(_SHUFFLE_BYTES // files.mean_bytes, 256, _MAX_SHUFFLE_RECORDS))


def _mixed(seed: int, epoch: int | None) -> int:
    """Return a seed of its own for every epoch, as TensorFlow takes it."""
    numbers = [seed] if epoch is None else [seed, epoch]
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _spare_gpus(hide: bool) -> None:
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if hide:
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError as error:
            raise OptionError(
                f"hide_gpus comes too late: {error}",
                hint="call tf_dataset before anything else of TensorFlow, or "
                'tf.config.set_visible_devices([], "GPU") as the first thing',
            ) from None
