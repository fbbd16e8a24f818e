"""Dropping and repeating records in a TensorFlow graph, so that classes have wanted shares.

One copy of the input is read: blocks of records, of which only the label is parsed. A table says
how often a record of its class comes on average; c copies come as floor(c), and one more with the
probability that is left.
"""

from __future__ import annotations

import math
from typing import Any, Final

import tensorflow as tf

from shardwriter.reading.resampling import Resampling
from shardwriter.reading.tensorflow.blocks import as_it_stands

_BLOCK_BYTES: Final = 4 << 20
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

    block = max(1, min(_MAX_BLOCK, _BLOCK_BYTES // mean_bytes))
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
