"""The serial TensorFlow scripts that shardwriter is measured against, as people write them.

    python scripts/tensorflow_peers.py images FOLDER OUT_PREFIX NUM_SHARDS
    python scripts/tensorflow_peers.py table FILE.csv OUT_PREFIX NUM_SHARDS
    python scripts/tensorflow_peers.py tokens FILE.npy OUT_PREFIX NUM_SHARDS GZIP

They do the same work: the same features in the same round-robin shards. Image sizes come from the
header, which is kinder than the decoding that many such scripts do.
"""

from __future__ import annotations

import csv
import sys
from io import BytesIO
from pathlib import Path

import contextlib2
import imagesize
import numpy as np
import tensorflow as tf


def bytes_feature(value: bytes) -> tf.train.Feature:
    """Return a Feature of one bytes value."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def int64_feature(value: int) -> tf.train.Feature:
    """Return a Feature of one integer."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def float_feature(value: float) -> tf.train.Feature:
    """Return a Feature of one float."""
    return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))


def image_examples(folder: Path):  # type: ignore[no-untyped-def]
    """Yield an Example for each image of a folder of class folders."""
    for label, class_folder in enumerate(sorted(p for p in folder.iterdir() if p.is_dir())):
        for path in sorted(class_folder.iterdir()):
            data = path.read_bytes()
            width, height = imagesize.get(BytesIO(data))
            feature = {
                "image/encoded": bytes_feature(data),
                "image/filename": bytes_feature(f"{class_folder.name}/{path.name}".encode()),
                "image/format": bytes_feature(b"png"),
                "image/height": int64_feature(height),
                "image/width": int64_feature(width),
                "image/class/label": int64_feature(label),
                "image/class/text": bytes_feature(class_folder.name.encode()),
            }
            yield tf.train.Example(features=tf.train.Features(feature=feature))


def table_examples(path: Path):  # type: ignore[no-untyped-def]
    """Yield an Example for each row of the benchmark's table."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            feature = {
                "id": int64_feature(int(row["id"])),
                "count": int64_feature(int(row["count"])),
                "price": float_feature(float(row["price"])),
                "score": float_feature(float(row["score"])),
                "city": bytes_feature(row["city"].encode()),
                "code": bytes_feature(row["code"].encode()),
            }
            yield tf.train.Example(features=tf.train.Features(feature=feature))


def token_examples(path: Path):  # type: ignore[no-untyped-def]
    """Yield an Example for each row of an array of token ids."""
    for ids in np.load(path, mmap_mode="r"):
        feature = {"ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids))}
        yield tf.train.Example(features=tf.train.Features(feature=feature))


SOURCES = {"images": image_examples, "table": table_examples, "tokens": token_examples}


def main(what: str, source: str, prefix: str, num_shards: int, compression: str = "") -> None:
    """Write the Examples of a source round-robin."""
    examples = SOURCES[what](Path(source))
    suffix = ".tfrecord.gz" if compression == "GZIP" else ".tfrecord"
    with contextlib2.ExitStack() as stack:
        writers = [
            stack.enter_context(
                tf.io.TFRecordWriter(
                    f"{prefix}-{shard:05d}-of-{num_shards:05d}{suffix}", compression
                )
            )
            for shard in range(num_shards)
        ]
        for number, example in enumerate(examples):
            writers[number % num_shards].write(example.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
