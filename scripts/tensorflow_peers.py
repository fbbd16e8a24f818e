"""The TensorFlow scripts that shardwriter is measured against, as people write them.

    python scripts/tensorflow_peers.py WORKLOAD SOURCE OUT_PREFIX NUM_SHARDS
        [--part I --parts N] [--gzip]

They do the same work: the same features in the same round-robin shards. With ``--parts`` a process
does one part of the shards and only their records; peer_pool.py starts them all.

Where people write it in several ways the quicker one stands here: image sizes come from the header
and not from decoding, and arrays go through ``tolist()``, which protobuf takes 2 to 5 times faster.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import contextlib2
import imagesize
import numpy as np
import tensorflow as tf
from bench_data import table_rows

Mine = Callable[[int], bool]
"""Whether a record, by its number, belongs to this process."""

SIDE_PIXELS = 256


def bytes_feature(value: bytes) -> Any:
    """Return a Feature of one bytes value."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def int64_feature(value: int | list[int]) -> Any:
    """Return a Feature of one integer or of many."""
    values = value if isinstance(value, list) else [value]
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def float_feature(value: float | list[float]) -> Any:
    """Return a Feature of one float or of many."""
    values = value if isinstance(value, list) else [value]
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def image_examples(folder: Path, mine: Mine) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each image of a folder of class folders."""
    class_folders = sorted(p for p in folder.iterdir() if p.is_dir())
    files = [(label, path) for label, c in enumerate(class_folders) for path in sorted(c.iterdir())]
    for number, (label, path) in enumerate(files):
        if not mine(number):
            continue
        data = path.read_bytes()
        width, height = imagesize.get(BytesIO(data))
        yield (
            number,
            {
                "image/encoded": bytes_feature(data),
                "image/filename": bytes_feature(f"{path.parent.name}/{path.name}".encode()),
                "image/format": bytes_feature(b"png"),
                "image/height": int64_feature(height),
                "image/width": int64_feature(width),
                "image/class/label": int64_feature(label),
                "image/class/text": bytes_feature(path.parent.name.encode()),
            },
        )


def float_examples(folder: Path, mine: Mine) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each vector of a memory map."""
    x = np.load(folder / "x.npy", mmap_mode="r")
    labels = np.load(folder / "label.npy")
    for number in range(len(x)):
        if mine(number):
            features = {"x": float_feature(x[number].tolist())}
            yield number, {**features, "label": int64_feature(int(labels[number]))}


def token_examples(folder: Path, mine: Mine) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each row of token ids of a memory map."""
    tokens = np.load(folder / "tokens.npy", mmap_mode="r")
    for number in range(len(tokens)):
        if mine(number):
            yield number, {"tokens": int64_feature(tokens[number].tolist())}


def table_examples(path: Path, mine: Mine) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each row."""
    for number, row in table_rows(path, mine):
        yield (
            number,
            {
                "id": int64_feature(int(row["id"])),
                "count": int64_feature(int(row["count"])),
                "price": float_feature(float(row["price"])),
                "score": float_feature(float(row["score"])),
                "city": bytes_feature(row["city"].encode()),
                "code": bytes_feature(row["code"].encode()),
            },
        )


def resized_pair(image_path: Any, mask_path: Any) -> tuple[Any, Any]:
    """Decode and resize a pair: the image bilinear, the mask to the nearest pixel."""
    size = (SIDE_PIXELS, SIDE_PIXELS)
    image = tf.io.decode_png(tf.io.read_file(image_path), channels=3)
    image = tf.image.resize(image, size)
    mask = tf.io.decode_png(tf.io.read_file(mask_path), channels=1)
    mask = tf.image.resize(mask, size, method="nearest")
    return tf.cast(tf.round(image), tf.uint8), mask


def pair_features(image: Any, mask: Any) -> dict[str, Any]:
    """Return the features of two arrays."""
    return {"image": bytes_feature(image.tobytes()), "mask": bytes_feature(mask.tobytes())}


def mask_examples(folder: Path, mine: Mine) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each pair, one at a time."""
    for number, name in enumerate(sorted(os.listdir(folder / "images"))):
        if mine(number):
            image, mask = resized_pair(str(folder / "images" / name), str(folder / "masks" / name))
            yield number, pair_features(image.numpy(), mask.numpy())


def mask_data_examples(folder: Path, mine: Mine) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each pair, decoded by the threads of tf.data."""
    names = sorted(os.listdir(folder / "images"))
    numbers = [number for number in range(len(names)) if mine(number)]
    paths = [[str(folder / kind / names[n]) for n in numbers] for kind in ("images", "masks")]
    pairs = tf.data.Dataset.from_tensor_slices(tuple(paths))
    pairs = pairs.map(resized_pair, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    for number, (image, mask) in zip(numbers, pairs.as_numpy_iterator(), strict=True):
        yield number, pair_features(image, mask)


WORKLOADS = {
    "images": image_examples,
    "floats": float_examples,
    "tokens": token_examples,
    "table": table_examples,
    "masks": mask_examples,
    "masks-data": mask_data_examples,
}


def main() -> None:
    """Write the Examples of a source round-robin: all of them, or one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("source", type=Path)
    parser.add_argument("prefix")
    parser.add_argument("num_shards", type=int)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--gzip", action="store_true", help="TensorFlow's own compression")
    options = parser.parse_args()
    ending, packing = (".tfrecord.gz", "GZIP") if options.gzip else (".tfrecord", "")
    num_shards, shards = options.num_shards, range(options.part, options.num_shards, options.parts)
    with contextlib2.ExitStack() as stack:
        writers = {
            shard: stack.enter_context(
                tf.io.TFRecordWriter(
                    f"{options.prefix}-{shard:05d}-of-{num_shards:05d}{ending}", packing
                )
            )
            for shard in shards
        }
        examples = WORKLOADS[options.workload](options.source, lambda i: i % num_shards in writers)
        for number, features in examples:
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writers[number % num_shards].write(example.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
