"""`tf_dataset`: a ``tf.data.Dataset`` of a dataset's records.

    train = tf_dataset("out/train@16", batch_size=64, shuffle=True)
    model.fit(train.map(lambda x: (x["image"], x["label"])), epochs=3)

The result is a plain graph, without Python functions. The shards' sizes, counts and index are
compared with the manifest before it is built, so that missing or truncated shards do not surface
during training.

    files --in_source_order / in_any_order--> a rank's records --exactly / resampled_stream-->
          --shuffle, batch, parse, prefetch--> elements

**Source order.** Reading one record of each of N shards in turn gives the source order, and needs N
open files. With gaps (items without a record) each record's shard is looked up instead. More shards
than may be open are read in blocks of consecutive items: of each shard the block's records are read
at once, a few shards at a time, and then put in order. A block is in memory as a whole, and each
shard is opened once per block; compressed shards can not be read this way.

**Ranks.** If each rank can read whole files (:mod:`shardwriter.reading.record_files`), it does.
Else every rank reads all files and uses one record in W: in source order every Wth of the stream,
else every Wth of a file, counted on from file to file, so that no rank depends on the order in
which another one reads.

**Resampling.** One pass over the input in blocks of records, of which only the label is parsed. A
record of a class with c mean copies is repeated floor(c) times, and once more with probability
c - floor(c).

**GPUs.** All operations are on the CPU. If TensorFlow has not initialized its GPUs yet, it is set
to allocate their memory on demand (``TF_FORCE_GPU_ALLOW_GROWTH=true``, unless the variable is set).
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
    as_dataset,
    can_assign_files,
    class_mix,
    reads_all_note,
    record_files,
)
from shardwriter.reading.tensorflow.parsing import element_parser, schema_spec

# AutoGraph has nothing to convert here, and would obscure tracebacks.
no_autograph: Any = tf.autograph.experimental.do_not_convert

_I64 = NDArray[np.int64]

_BLOCK_BYTES: Final = 64 << 20  # payload bytes of a block
_MAX_TURNS: Final = 1024
_BUFFER_BYTES: Final = (4 << 10, 256 << 10)  # of an open file: least and most


@dataclass(frozen=True)
class Blocks:
    """Byte offsets and record counts of each block in each shard.

    A turn is one item of each shard, in order of the shards; a block is a number of turns.

    Attributes:
        num_turns: Turns per block.
        lengths: ``int64[N]`` items of each shard, those without a record included.
        gaps: ``int64[g]`` sorted items without a record.
        offsets: ``int64[blocks, N]`` byte offset of a block's first record in a shard.
        counts: ``int64[blocks, N]`` records of a block in a shard.
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
    """Return the blocks of a set of uncompressed shards.

    Args:
        counts: ``int64[N]`` records of each shard.
        gaps: ``int64[g]`` sorted items without a record.
        starts_of: Returns ``int64[n]`` byte offsets of a shard's records.
        mean_bytes: Mean payload size of a record.
        num_turns: Turns per block; None for 64 MiB of records.
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
    block_counts = np.diff(positions, axis=0)
    offsets = np.zeros_like(block_counts)
    for shard in np.flatnonzero(counts):
        starts = starts_of(int(shard))
        offsets[:, shard] = starts[np.minimum(positions[:-1, shard], len(starts) - 1)]
    return Blocks(num_turns, lengths, gaps, offsets, block_counts)


def in_blocks(paths: tuple[str, ...], blocks: Blocks, mean_bytes: int, cycle_length: int) -> Any:
    """Return the records of uncompressed shards in source order: a dataset of strings.

    Args:
        paths: One per shard, in order.
        blocks: The blocks to read.
        mean_bytes: Mean payload size of a record.
        cycle_length: Files to read at a time.
    """
    names = tf.constant(paths, tf.string)
    offsets, counts = tf.constant(blocks.offsets), tf.constant(blocks.counts)
    lengths, gaps = tf.constant(blocks.lengths), tf.constant(blocks.gaps, tf.int64)
    num_shards, num_turns = len(paths), blocks.num_turns
    buffer_bytes = int(np.clip(num_turns * mean_bytes, *_BUFFER_BYTES))

    def shard_records(path: Any, offset: Any, count: Any) -> Any:
        """Return one shard's records of a block: ``string[num_turns]``, padded with ``""``."""
        records = tf.data.experimental.from_variant(
            tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.reshape(path, [1]),
                compression_type="",
                buffer_size=buffer_bytes,
                byte_offsets=tf.reshape(offset, [1]),
            ),
            tf.TensorSpec([], tf.string),
        )
        return records.take(count).batch(num_turns).map(no_autograph(pad_to_turns))

    def pad_to_turns(payloads: Any) -> Any:
        return tf.pad(payloads, [[0, num_turns - tf.shape(payloads)[0]]], constant_values="")

    def in_item_order(rows: Any, block: Any, row_counts: Any) -> Any:
        """Return the records of ``string[shards, num_turns]`` in order of their items."""
        flat = tf.boolean_mask(rows, tf.sequence_mask(row_counts, num_turns))
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
        # `flat` is shard by shard: number the records in that order, and read them turn by turn.
        by_shard = tf.reshape(tf.transpose(has_record), [-1])
        numbers = tf.cumsum(tf.cast(by_shard, tf.int32)) - 1
        by_turn = tf.transpose(tf.reshape(numbers, [num_shards, num_turns]))
        return tf.gather(flat, tf.boolean_mask(by_turn, has_record))

    def records(block: Any) -> Any:
        has_records = counts[block] > 0
        row_counts = tf.boolean_mask(counts[block], has_records)
        paths_of_block = tf.boolean_mask(names, has_records)
        offsets_of_block = tf.boolean_mask(offsets[block], has_records)
        slices = (paths_of_block, offsets_of_block, row_counts)
        # Each shard yields one row, so the interleave keeps their order.
        rows = tf.data.Dataset.from_tensor_slices(slices).interleave(
            no_autograph(shard_records),
            cycle_length=cycle_length,
            block_length=1,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        whole = rows.batch(num_shards)
        order = no_autograph(lambda rows: in_item_order(rows, block, row_counts))
        return whole.map(order).unbatch()

    return tf.data.Dataset.range(len(blocks.offsets)).flat_map(no_autograph(records))


# TensorFlow's parallel interleave opens two more files for each that it reads.
FILES_AHEAD: Final = 3

_CYCLE_OF_BLOCKS: Final = 16
_CHOICE_BLOCK: Final = 4096  # records whose shards are looked up at once


def in_source_order(files: RecordFiles, share: RankPartition, max_open_files: int) -> Any:
    """Return a rank's records in source order, without padding: a dataset of strings.

    Raises:
        OptionError: There are more compressed shards than may be open.
    """
    if share.world > 1 and can_assign_files(files, share, in_order=True):
        return in_source_order(
            files.of_rank(share.rank, share.world), RankPartition(files.num_records), max_open_files
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
            f"reading {len(files.paths):,} compressed shards in source order needs as many open "
            f"files, and max_open_files is {max_open_files:,}",
            hint="use deterministic=False or shuffle=True, or raise max_open_files (and "
            "`ulimit -n`)",
        )
    blocks = plan_blocks(files.counts, files.gaps, files.starts, files.mean_bytes)
    cycle_length = max(1, min(max_open_files // FILES_AHEAD, _CYCLE_OF_BLOCKS))
    return in_blocks(files.paths, blocks, files.mean_bytes, cycle_length)


def _in_turn(files: RecordFiles, cycle_length: int) -> Any:
    paths = [path for path, count in zip(files.paths, files.counts, strict=True) if count]
    if not paths:
        return _nothing()
    return _paths(paths).interleave(
        no_autograph(lambda path: _records(path, files)),
        cycle_length=cycle_length,
        block_length=1,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _by_choice(files: RecordFiles) -> Any:
    """Return the records, each looked up in the shard of its item."""
    num_shards, total = len(files.paths), files.num_records
    numbers = np.asarray(files.gaps, np.int64)
    before = tf.constant(numbers - np.arange(len(numbers)), tf.int64)

    def shards(records: Any) -> Any:
        gaps = tf.searchsorted(before, records, side="right", out_type=tf.int64)
        return (records + gaps) % num_shards

    choice = tf.data.Dataset.range(total).batch(_CHOICE_BLOCK).map(no_autograph(shards)).unbatch()
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
    """Return a rank's records, several files at a time: a dataset of strings.

    Args:
        files: All files.
        share: The rank's partition.
        cycle_length: Files to read at a time.
        seed: Seed of a random order of the files; None for no shuffle.
        epoch: Part of the seed; None for a new order in every iteration.
        deterministic: Whether the order is the same in every run; False is faster.
    """
    world, firsts = share.world, np.zeros(len(files.paths), np.int64)
    if share.world > 1 and can_assign_files(files, share, in_order=False):
        files, world = files.of_rank(share.rank, share.world), 1
        firsts = np.zeros(len(files.paths), np.int64)
    elif share.world > 1:
        # Records are numbered on from file to file: the first of this rank in each file.
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
        no_autograph(of_file),
        cycle_length=cycle_length,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=deterministic,
    )


def exactly(
    stream: Any, data: Dataset, files: RecordFiles, share: RankPartition, mark: bool
) -> Any:
    """Return a rank's records, cut or padded to the length of its partition.

    Args:
        stream: The rank's records.
        data: The dataset, for the location of the padding record.
        files: Its files.
        share: The rank's partition.
        mark: Yield pairs ``(record, is_pad)``.
    """
    length = share.num_samples
    num_own = max(0, -(-(share.num_records - share.rank) // share.world))
    if mark:
        stream = _marked(stream, False)
    if length < num_own:
        stream = stream.take(length)
    elif length > num_own:
        # Only the last draw can be padding: one of the first records.
        draw = share.draws(length - 1)
        place = data.place(int(share.records(draw, None)[0]))
        last = _records(place.path, files).skip(place.record_index).take(1)
        if mark:
            last = _marked(last, True)
        stream = stream.concatenate(last)
    return stream.apply(tf.data.experimental.assert_cardinality(length))


def _marked(stream: Any, is_pad: bool) -> Any:
    # zip, since a map function per record would take longer than reading the record.
    return tf.data.Dataset.zip((stream, tf.data.Dataset.from_tensors(is_pad).repeat()))


def _records(path: Any, files: RecordFiles) -> Any:
    compression = "" if files.compression == "none" else files.compression.upper()
    return tf.data.TFRecordDataset(path, compression_type=compression)


def _paths(paths: list[str], *columns: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((paths, *columns) if columns else paths)


def _nothing() -> Any:
    return tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))


_RESAMPLED_BLOCK_BYTES: Final = 4 << 20
_MAX_BLOCK: Final = 256  # records
_SPARE_PASSES: Final = 8  # the data is read at most this many times as often as expected


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
    """Return ``num_samples`` serialized records of a stream, dropped and repeated by a plan.

    Args:
        stream: Serialized records; read again if one pass does not yield enough.
        plan: The mean number of copies of each class.
        kind: Kind of the label: ``int64`` or ``bytes``.
        mean_bytes: Mean payload size of a record, for the size of blocks.
        seed: Seed of the choice.
        epoch: Part of the seed; None for another choice in every iteration.
        num_samples: Records to yield.
        expected: Records that a pass yields on average.
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
        # Records without the label have no class, and are dropped.
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
    # Each pass picks other records. The number of passes is bounded: a rank without any record of
    # the only target class ends with an error that gives the number of records.
    passes = _SPARE_PASSES + math.ceil(_SPARE_PASSES * num_samples / max(1.0, expected))
    blocks = tf.data.Dataset.zip((stream.batch(block).repeat(passes), numbers))
    picked = blocks.map(no_autograph(pick), tf.data.AUTOTUNE, deterministic=True).unbatch()
    return picked.take(num_samples).apply(tf.data.experimental.assert_cardinality(num_samples))


def _first_seed(seed: int, epoch: int | None) -> int:
    return (seed * 1_000_003 + (0 if epoch is None else epoch + 1)) % 2**62 + 1


_SHUFFLE_BYTES: Final = 128 << 20  # payload bytes in a shuffle buffer
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

    By default it yields every record once, in source order. More than ``max_open_files`` shards are
    read in blocks of 64 MiB, if they are not compressed.

    Args:
        data: A path or an open dataset; see `shardwriter.open`.
        batch_size: Records per batch, on this rank; None for single records. Parsing a batch at
            once is several times faster than parsing records one by one.
        drop_remainder: Leave out the last batch if it is incomplete.
        shuffle: Read the shards in a random order, ``cycle_length`` at a time, and shuffle their
            records in a buffer.
        seed: Seed of the shuffle and of resampling. (``tf.random.set_seed`` has an effect, too.)
        epoch: The order is a function of seed and epoch, equal in every iteration, so that
            ``.skip(steps)`` resumes an epoch. None: every iteration has a new order; the sequence
            of orders is the same each time the dataset is created.
        shuffle_buffer: Records in the buffer; None for 128 MiB of them, at most 65,536.
        parse: True for a dict of tensors by the manifest's schema; see
            :mod:`shardwriter.reading.tensorflow.parsing` for shapes, dtypes and absent features. A
            mapping is passed to ``tf.io.parse_example``. False for serialized examples.
        features: Names of the features to parse; None for all.
        defaults: Values of absent features, by name; None for 0, NaN, False and ``""``.
        deterministic: False yields records as soon as they are read: faster, in varying order.
        cycle_length: Files to read at a time, if not in source order.
        max_open_files: Files that may be open in source order; None for half of the process's
            limit, at most 128.
        prefetch: Elements computed ahead at the end of the pipeline; None lets TensorFlow choose.
        input_context: The ``tf.distribute.InputContext`` of a strategy, which has rank and world.
            ``batch_size`` is then that of a replica:
            ``context.get_per_replica_batch_size(global_batch_size)``.
        rank: This rank, from 0.
        world: The number of ranks. All ranks read equal numbers of records; each reads the same
            records in every epoch, also with ``shuffle``. (`Dataset.shuffle` and the torch loader
            assign records to ranks again in every epoch.)
        uneven: Policy if ``world`` does not divide the records: ``drop``, ``pad`` or ``wrap``.
            ``pad`` adds a feature ``is_pad``; with ``parse=False`` elements are pairs
            ``(serialized, is_pad)``.
        resample: Drop and repeat records so that classes have these shares: ``"uniform"``,
            ``{class: share}``, or a plan of :func:`class_mix`. It is seeded, and reads the input
            once.
        num_samples: Records of a resampled epoch on each rank; None for the mean of a pass. The
            data is read again if a pass yields fewer.
        hide_gpus: Hide all GPUs from TensorFlow, for programs that train with JAX or PyTorch.
        notify: Called with each note, a line of text.

    Raises:
        OptionError: Options are out of range, or do not fit each other or the dataset.
        UnequalSteps: ``world`` does not divide the records, and ``uneven`` is None.
        DataError: Shards are missing, or differ from the manifest.
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
            raise OptionError(f"{name} is {value}", hint="give a number >= 1")
    for name, value in (("seed", seed), ("epoch", epoch)):
        if value is not None and not 0 <= value < 1 << 63:
            raise OptionError(f"{name} is {value}", hint="give a number from 0 to 2^63 - 1")
    rank, world = _rank_and_world(input_context, rank, world)
    _spare_gpus(hide_gpus)
    opened = as_dataset(data, notify)
    if max_open_files is None:
        max_open_files = opened._core.reader.pool.max_open
    plan = class_mix(opened, resample) if isinstance(resample, (str, Mapping)) else resample
    if not isinstance(plan, Resampling | None):
        raise OptionError(
            f"resample is {resample!r}",
            hint='give "uniform", {class: share}, or a plan of class_mix',
        )
    files = record_files(opened)
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
    if notify is not None and world > 1 and not can_assign_files(files, share, in_order):
        notify(reads_all_note(files, world))
    # No operation needs a GPU, and one that is placed on a GPU would allocate its memory.
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
            stream = stream.map(no_autograph(parser), tf.data.AUTOTUNE, deterministic=deterministic)
        stream = stream.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)
        return stream.with_options(_options(deterministic, is_split=world > 1))


def feature_spec(
    data: str | os.PathLike[str] | Dataset,
    *,
    features: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the features argument of ``tf.io.parse_example`` for a dataset's records.

    Numbers are parsed as the int64 and float32 of an Example; `tf_dataset` casts them to the dtype
    in the schema.

    Args:
        data: A path or an open dataset; see `shardwriter.open`.
        features: Names of the features to parse; None for all.
        defaults: Values of absent features, by name.

    Raises:
        OptionError: The dataset has no schema, or no feature of a name.
    """
    opened = as_dataset(data)
    num_records = opened.num_source_records
    return schema_spec(opened.features, num_records, names=features, defaults=defaults)


@contextmanager
def naming_damage(data: str | os.PathLike[str] | Dataset) -> Iterator[None]:
    """Replace TensorFlow's error on damaged data by one that names the file and the record.

    ::

        with naming_damage("out/train"):
            model.fit(train)

    Costs nothing without an error; on an error, shards are read until the damage is found.

    Raises:
        DataError: The damage, with path, record and offset; its cause is TensorFlow's error.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.FailedPreconditionError) as error:
        try:
            for _ in as_dataset(data).raw():
                pass
        except DataError as found:
            raise found from error
        raise


# -- parts of the pipeline -------------------------------------------------------------------------


def _rank_and_world(context: Any, rank: int | None, world: int | None) -> tuple[int, int]:
    if context is not None:
        if rank is not None or world is not None:
            raise OptionError(
                "rank and world are given, and input_context has them too", hint="drop one of them"
            )
        return context.input_pipeline_id, context.num_input_pipelines
    if (rank is None) != (world is None):
        raise OptionError("only one of rank and world is given", hint="give both, or neither")
    return rank or 0, 1 if world is None else world


def _policy(uneven: Uneven | None, plan: Resampling | None) -> Uneven | None:
    if plan is None:
        return uneven
    if uneven is not None:
        raise OptionError(
            f"uneven={uneven!r} has no effect with resampling",
            hint="drop uneven=: all ranks get equal numbers of samples",
        )
    return "pad"  # leaves out no record; the length of an epoch is num_samples


def _options(deterministic: bool, is_split: bool) -> Any:
    options = tf.data.Options()
    options.deterministic = deterministic
    if is_split:
        # A distribution strategy must not split this dataset again.
        policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = policy
    return options


def _shuffle_buffer(files: RecordFiles) -> int:
    return int(np.clip(_SHUFFLE_BYTES // files.mean_bytes, 256, _MAX_SHUFFLE_RECORDS))


def _mixed(seed: int, epoch: int | None) -> int:
    """Return a seed for an epoch, in TensorFlow's range."""
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
                hint="call tf_dataset, or "
                'tf.config.set_visible_devices([], "GPU"), before any other TensorFlow call',
            ) from None
