"""tf.data's own ways of splitting, with one replica a rank, as its strategies use them."""

from __future__ import annotations

import os
import tempfile
from functools import cache, partial
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from answers import Batches, answer, of_every_rank
from tensorflow.python.data.experimental.ops import distribute


@cache
def files(counts: tuple[int, ...]) -> list[str]:
    folder = tempfile.mkdtemp()
    paths = []
    number = 0
    for shard, count in enumerate(counts):
        paths.append(os.path.join(folder, f"{shard:05}"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for _ in range(count):
                writer.write(str(number).encode())
                number += 1
    return paths


def ids(batches: Any) -> Batches:
    return [[int(record) for record in batch] for batch in batches.as_numpy_iterator()]


def by_files(case: dict[str, Any], rank: int) -> Batches:
    paths = tf.data.Dataset.from_tensor_slices(files(tuple(case["counts"])))
    records = paths.shard(case["world"], rank).interleave(tf.data.TFRecordDataset)
    return ids(records.batch(case["batch"], drop_remainder=case["drop_last"]))


def auto(policy: Any, case: dict[str, Any], rank: int) -> Batches:
    world = case["world"]
    paths = tf.data.Dataset.from_tensor_slices(files(tuple(case["counts"])))
    records = paths.interleave(tf.data.TFRecordDataset)
    whole = records.batch(case["batch"] * world, drop_remainder=case["drop_last"])
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    whole = whole.with_options(options)
    if world > 1:  # What a strategy does to a dataset before it is read.
        sizes = distribute.batch_sizes_for_worker(case["batch"] * world, world, 1, rank)
        whole = whole.rebatch(sizes).prefetch(1)
    return ids(distribute._AutoShardDataset(whole, world, rank, world))


if __name__ == "__main__":
    policies = tf.data.experimental.AutoShardPolicy
    answer(
        {
            "tf-files": partial(of_every_rank, by_files),
            "tf-auto-file": partial(of_every_rank, partial(auto, policies.FILE)),
            "tf-auto": partial(of_every_rank, partial(auto, policies.AUTO)),
            "tf-auto-data": partial(of_every_rank, partial(auto, policies.DATA)),
        }
    )
