"""TFDS's splits and pipelines, and timm's ``ReaderTfds`` on them.

timm's reader is loaded from the installed package without the rest of it, which needs torchvision.
Its ranks and workers are given: nothing here starts a process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import types
from functools import cache, partial
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
import tensorflow_datasets as tfds
from answers import Batches, answer, of_every_rank, of_every_worker
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import worker as worker_module

PIXEL = tf.io.encode_jpeg(tf.zeros((1, 1, 3), tf.uint8)).numpy()


def timm_reader() -> Any:
    """Import the one module of timm."""
    folder = os.path.dirname(importlib.util.find_spec("timm").origin)
    for name in ("timm", "timm.data", "timm.data.readers"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(folder, *name.split(".")[1:])]
        sys.modules[name] = package
    return importlib.import_module("timm.data.readers.reader_tfds")


TIMM = timm_reader()


@cache
def dataset(counts: tuple[int, ...]) -> str:
    """Write a TFDS dataset ``demo`` whose labels are the ids, and return its root."""
    root = tempfile.mkdtemp()
    folder = os.path.join(root, "demo", "1.0.0")
    os.makedirs(folder)
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(1, 1, 3)),
            "label": tfds.features.ClassLabel(num_classes=max(1, sum(counts))),
        }
    )
    number = 0
    for shard, count in enumerate(counts):
        name = f"demo-train.tfrecord-{shard:05}-of-{len(counts):05}"
        with tf.io.TFRecordWriter(os.path.join(folder, name)) as writer:
            for _ in range(count):
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[PIXEL])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
                number += 1
    template = tfds.core.ShardedFileTemplate(
        dataset_name="demo", data_dir=folder, split="train", filetype_suffix="tfrecord"
    )
    split = tfds.core.SplitInfo("train", list(counts), sum(counts), template)
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=[split], check_data=False
    )
    return root


@cache
def builder(counts: tuple[int, ...]) -> Any:
    return tfds.builder("demo", data_dir=dataset(counts))


def batches(case: dict[str, Any], split: Any, config: Any = None) -> Batches:
    whole = builder(tuple(case["counts"])).as_dataset(
        split=split, shuffle_files=False, read_config=config or tfds.ReadConfig()
    )
    whole = whole.map(lambda row: row["label"])
    whole = whole.batch(case["batch"], drop_remainder=case["drop_last"])
    return [batch.tolist() for batch in whole.as_numpy_iterator()]


def even_splits(drop_remainder: bool, case: dict[str, Any], rank: int) -> Batches:
    splits = tfds.even_splits("train", case["world"], drop_remainder=drop_remainder)
    jax = tfds.split_for_jax_process(
        "train", process_index=rank, process_count=case["world"], drop_remainder=drop_remainder
    )
    assert splits[rank] == jax
    return batches(case, splits[rank])


def input_context(case: dict[str, Any], rank: int) -> Batches:
    context = tf.distribute.InputContext(case["world"], rank, case["world"])
    return batches(case, "train", tfds.ReadConfig(input_context=context))


class Labels(IterableDataset):
    """What timm's ``IterableImageDataset`` makes of a reader, less the images."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __iter__(self):
        for _, label in self.reader:
            yield int(label)


def timm(is_training: bool, case: dict[str, Any], rank: int, worker: int) -> Batches:
    world, workers = case["world"], case["workers"]
    TIMM.dist = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: world,
        get_rank=lambda: rank,
    )
    reader = TIMM.ReaderTfds(
        "demo",
        root=dataset(tuple(case["counts"])),
        is_training=is_training,
        batch_size=case["batch"],
    )
    reader.set_loader_cfg(num_workers=workers)
    labels = Labels(reader)
    if workers:
        worker_module._worker_info = worker_module.WorkerInfo(
            id=worker, num_workers=workers, seed=rank * 100 + worker, dataset=labels
        )
    try:
        # As create_loader has it: the last batch is left out in training.
        loader = DataLoader(
            labels, batch_size=case["batch"], drop_last=is_training, collate_fn=list
        )
        return list(loader)
    finally:
        worker_module._worker_info = None


if __name__ == "__main__":
    answer(
        {
            "tfds-even-splits": partial(of_every_rank, partial(even_splits, False)),
            "tfds-even-splits-drop": partial(of_every_rank, partial(even_splits, True)),
            "tfds-input-context": partial(of_every_rank, input_context),
            "timm-train": partial(of_every_worker, partial(timm, True)),
            "timm-eval": partial(of_every_worker, partial(timm, False)),
        }
    )
