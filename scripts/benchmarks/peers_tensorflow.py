"""Write the same records as ours with TensorFlow, as people write it.

The same features come into the same round-robin shards. With ``part`` and ``parts`` a process
writes one part of the shards and only their records.

Where people write it in several ways this is the quicker one: image sizes come from the header
and not from decoding, and arrays go through ``tolist()``, which protobuf takes 2 to 5 times faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.data import SIDE_PIXELS
from benchmarks.peers import Belongs, items


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


def image_features(record: dict[str, Any]) -> dict[str, Any]:
    """Return the features of an image."""
    return {
        "image/encoded": bytes_feature(record["image/encoded"]),
        "image/filename": bytes_feature(record["image/filename"]),
        "image/format": bytes_feature(record["image/format"]),
        "image/height": int64_feature(record["image/height"]),
        "image/width": int64_feature(record["image/width"]),
        "image/class/label": int64_feature(record["image/class/label"]),
        "image/class/text": bytes_feature(record["image/class/text"]),
    }


def vector_features(record: dict[str, Any]) -> dict[str, Any]:
    """Return the features of a vector and its label."""
    return {"x": float_feature(record["x"].tolist()), "label": int64_feature(record["label"])}


def token_features(record: dict[str, Any]) -> dict[str, Any]:
    """Return the feature of a row of token ids."""
    return {"tokens": int64_feature(record["tokens"].tolist())}


def row_features(record: dict[str, Any]) -> dict[str, Any]:
    """Return the features of a row of the table."""
    return {
        "id": int64_feature(record["id"]),
        "count": int64_feature(record["count"]),
        "price": float_feature(record["price"]),
        "score": float_feature(record["score"]),
        "city": bytes_feature(record["city"].encode()),
        "code": bytes_feature(record["code"].encode()),
    }


def pair_features(image: Any, mask: Any) -> dict[str, Any]:
    """Return the features of two arrays."""
    return {"image": bytes_feature(image.tobytes()), "mask": bytes_feature(mask.tobytes())}


FEATURES = {
    "images": image_features,
    "floats": vector_features,
    "tokens": token_features,
    "table": row_features,
}


def tensorflow_pair(image_path: Any, mask_path: Any) -> tuple[Any, Any]:
    """Decode and resize a pair: the image bilinear, the mask to the nearest pixel."""
    size = (SIDE_PIXELS, SIDE_PIXELS)
    image = tf.io.decode_png(tf.io.read_file(image_path), channels=3)
    image = tf.image.resize(image, size)
    mask = tf.io.decode_png(tf.io.read_file(mask_path), channels=1)
    mask = tf.image.resize(mask, size, method="nearest")
    return tf.cast(tf.round(image), tf.uint8), mask


def mask_examples(folder: Path, belongs: Belongs) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each pair, one at a time."""
    for number, name in enumerate(sorted(os.listdir(folder / "images"))):
        if belongs(number):
            paths = str(folder / "images" / name), str(folder / "masks" / name)
            image, mask = tensorflow_pair(*paths)
            yield number, pair_features(image.numpy(), mask.numpy())


def mask_data_examples(folder: Path, belongs: Belongs) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the features of each pair, decoded by the threads of tf.data."""
    names = sorted(os.listdir(folder / "images"))
    numbers = [number for number in range(len(names)) if belongs(number)]
    paths = [[str(folder / kind / names[n]) for n in numbers] for kind in ("images", "masks")]
    pairs = tf.data.Dataset.from_tensor_slices(tuple(paths))
    pairs = pairs.map(tensorflow_pair, num_parallel_calls=tf.data.AUTOTUNE)
    pairs = pairs.prefetch(tf.data.AUTOTUNE)
    for number, (image, mask) in zip(numbers, pairs.as_numpy_iterator(), strict=True):
        yield number, pair_features(image, mask)


def examples(case: str, source: Path, belongs: Belongs) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the features of this process's items."""
    if case == "masks":
        yield from mask_examples(source, belongs)
    elif case == "masks-data":
        yield from mask_data_examples(source, belongs)
    else:
        features = FEATURES[case]
        for number, record in items(case, source, belongs):
            yield number, features(record)


def write(
    case: str,
    source: str,
    out: str,
    num_shards: int,
    gzip: bool,
    *,
    part: int = 0,
    parts: int = 1,
) -> None:
    """Write the Examples of a source round-robin with TensorFlow: all of them, or one part."""
    ending, packing = (".tfrecord.gz", "GZIP") if gzip else (".tfrecord", "")
    with ExitStack() as stack:
        writers = {
            shard: stack.enter_context(
                tf.io.TFRecordWriter(f"{out}/x-{shard:05d}-of-{num_shards:05d}{ending}", packing)
            )
            for shard in range(part, num_shards, parts)
        }
        found = examples(case, Path(source), lambda number: number % num_shards in writers)
        for number, features in found:
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writers[number % num_shards].write(example.SerializeToString(deterministic=True))
