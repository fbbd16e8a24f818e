"""Source order of more shards than may be open, in a TensorFlow graph.

Turn t has item t of every shard. A block is some turns: of each shard its records in them are read
in one go, a few shards at a time, from the byte where they begin; then they are put in order. So
a block is in memory at once, and a shard is opened once a block. Only plain shards can be entered
in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

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
