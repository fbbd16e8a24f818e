"""What bench_beam.py writes: sources for ours, and the items that a pipeline of one's own maps to.

A source is given as ``module:callable``: ``BENCH_SOURCE`` names the folder that is read, and
``BENCH_COUNT`` says how many records there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_data import Floats
from other_peers import images

from shardwriter import encode_example

RECORD_BYTES = 1_000
KEY_BYTES = 8
NUM_BLOCKS = 256


class Records:
    """Finished records of 1,000 bytes: Examples of a key and of noise."""

    def __init__(self) -> None:
        noise = np.random.default_rng(4).bytes(NUM_BLOCKS * RECORD_BYTES)
        key = b"#" * KEY_BYTES
        spare = RECORD_BYTES - len(encode_example({"data": noise[:900], "key": key})) + 900
        record = encode_example({"data": noise[:spare], "key": key})
        self.count = int(os.environ["BENCH_COUNT"])
        self.key_at = record.index(key, spare)
        self.records = [
            encode_example({"data": noise[start : start + spare], "key": key})
            for start in range(0, len(noise) - spare, RECORD_BYTES)
        ]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> bytes:
        record = self.records[index % len(self.records)]
        end = self.key_at + KEY_BYTES
        return b"%b%08d%b" % (record[: self.key_at], index, record[end:])

    def key(self, record: bytes) -> bytes:
        """Return a record's key."""
        return record[self.key_at : self.key_at + KEY_BYTES]


class Vectors(Floats):
    """A vector, its label and its number."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, **super().__getitem__(index)}


class Work(NamedTuple):
    """A workload.

    Attributes:
        source: What ours is given; None for the folder itself.
        key: The key of an item, for ours; a feature or what returns it.
        order_key: The feature that is the same key, for the engines of one machine.
        item: Returns an item by its number.
        encoded: Whether items are features, and not finished records.
    """

    source: str | None
    key: Any
    order_key: str
    item: Callable[[int], Any]
    encoded: bool


@cache
def opened(kind: str) -> Any:
    """Return what gives items by number; a worker opens it once."""
    if kind == "images":
        return images(Path(os.environ["BENCH_SOURCE"]))[1]
    return {"records": Records, "floats": Vectors}[kind]().__getitem__


def record(number: int) -> Any:
    """Return a finished record."""
    return opened("records")(number)


def record_key(item: bytes) -> bytes:
    """Return the key of a finished record."""
    return opened("records").__self__.key(item)


def vector(number: int) -> Any:
    """Return a vector's features."""
    return opened("floats")(number)


def image(number: int) -> Any:
    """Return an image's features."""
    return opened("images")(number)


def with_tensorflow(features: dict[str, Any]) -> bytes:
    """Encode as people do; ``tolist()`` is the quickest way that protobuf knows."""
    import tensorflow as tf

    made = {}
    for name, value in features.items():
        if isinstance(value, bytes):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        elif isinstance(value, np.ndarray):
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value.tolist()))
        else:
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value)]))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


WORKS = {
    "records": Work("beam_work:Records", record_key, "key", record, encoded=False),
    "floats": Work("beam_work:Vectors", "id", "id", vector, encoded=True),
    "images": Work(None, "image/filename", "image/filename", image, encoded=True),
}
