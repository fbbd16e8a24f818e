"""Write data as N TFRecord shards, verify the files, and read them back.

    import shardwriter as sw

    manifest = sw.write(dataset, "out/train@16")          # any iterable or sequence of features
    with sw.open_writer("out/val@4") as writer:           # or push records yourself
        writer.write({"image": array, "label": 3})
    print(sw.stats("out/train@16").verdict)
    for example in sw.open("out/train").shuffle(seed=0, epoch=3):  # or [i], split(rank, world)
        ...

Importing this package loads numpy and nothing heavier.
"""

from __future__ import annotations

from typing import Any

from shardwriter.dataset.manifest import Manifest
from shardwriter.errors import (
    DataError,
    DataWarning,
    RunError,
    ShardwriterError,
    ShardwriterWarning,
    UnequalSteps,
    UsageError,
)
from shardwriter.formats.crc32c import masked_crc32c
from shardwriter.formats.example import encode_example
from shardwriter.formats.example_columns import Column, decode_columns, encode_columns
from shardwriter.formats.example_wire import decode_example
from shardwriter.formats.feature_values import UNSET, raw
from shardwriter.formats.media import jpeg, png
from shardwriter.formats.sequence_example import (
    SequenceExample,
    decode_sequence_example,
    encode_sequence_example,
)
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.inspect.repair import repair
from shardwriter.inspect.stats import stats
from shardwriter.inspect.verify import verify
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.known_schema import read_schema
from shardwriter.reading.loader_code import loader_code
from shardwriter.reading.opening import open_dataset
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.queue import END, ItemQueue
from shardwriter.sources.shard_sets import load_manifest
from shardwriter.sources.tables import TableOptions
from shardwriter.writing.append import append
from shardwriter.writing.options import SKIP, ImageOptions, RunOptions
from shardwriter.writing.push import open_sharded_writers, open_writer
from shardwriter.writing.reshard import merge, reshard
from shardwriter.writing.worker import current_worker
from shardwriter.writing.write import write, write_splits

__all__ = [
    "END",
    "SKIP",
    "UNSET",
    "Column",
    "DataError",
    "DataWarning",
    "Dataset",
    "FeatureType",
    "ItemQueue",
    "Manifest",
    "RunError",
    "RunOptions",
    "SequenceExample",
    "ShardwriterError",
    "ShardwriterWarning",
    "TFRecordWriter",
    "UnequalSteps",
    "UsageError",
    "append",
    "current_worker",
    "decode_columns",
    "decode_example",
    "decode_sequence_example",
    "encode_columns",
    "encode_example",
    "encode_sequence_example",
    "load_manifest",
    "loader_code",
    "masked_crc32c",
    "merge",
    "open_dataset",
    "open_sharded_writers",
    "open_writer",
    "raw",
    "read_records",
    "read_schema",
    "repair",
    "reshard",
    "stats",
    "verify",
    "write",
    "write_splits",
    "ImageOptions",
    "TableOptions",
    "jpeg",
    "png",
]

# Not in __all__: `from shardwriter import *` must not replace the builtin.
open = open_dataset


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # takes 25 ms

        return version("shardwriter")
    raise AttributeError(f"module 'shardwriter' has no attribute {name!r}")
