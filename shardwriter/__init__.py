"""Write people's data as N TFRecord shards, prove what is on disk, say how it will split.

    import shardwriter as sw

    manifest = sw.write(dataset, "out/train@16")          # any iterable or sequence of features
    with sw.open_writer("out/val@4") as writer:           # or push records yourself
        writer.write({"image": array, "label": 3})
    print(sw.stats("out/train@16").verdict)

Importing this package imports nothing heavy: names are bound to their modules when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    __version__: str
    from shardwriter.crc32c import masked_crc32c as masked_crc32c
    from shardwriter.errors import DataError as DataError
    from shardwriter.errors import RunError as RunError
    from shardwriter.errors import ShardwriterError as ShardwriterError
    from shardwriter.errors import UsageError as UsageError
    from shardwriter.example import UNSET as UNSET
    from shardwriter.example import decode_example as decode_example
    from shardwriter.example import encode_example as encode_example
    from shardwriter.example_columns import Column as Column
    from shardwriter.example_columns import decode_columns as decode_columns
    from shardwriter.example_columns import encode_columns as encode_columns
    from shardwriter.manifest import Manifest as Manifest
    from shardwriter.manifest import load_manifest as load_manifest
    from shardwriter.options import SKIP as SKIP
    from shardwriter.options import RunOptions as RunOptions
    from shardwriter.push import open_sharded_writers as open_sharded_writers
    from shardwriter.push import open_writer as open_writer
    from shardwriter.stats import stats as stats
    from shardwriter.tfrecord import TFRecordWriter as TFRecordWriter
    from shardwriter.tfrecord import read_records as read_records
    from shardwriter.verify import verify as verify
    from shardwriter.write import write as write

_HOME: Final = {
    "Column": "example_columns",
    "DataError": "errors",
    "Manifest": "manifest",
    "RunError": "errors",
    "RunOptions": "options",
    "SKIP": "options",
    "ShardwriterError": "errors",
    "TFRecordWriter": "tfrecord",
    "UNSET": "example",
    "UsageError": "errors",
    "decode_columns": "example_columns",
    "decode_example": "example",
    "encode_columns": "example_columns",
    "encode_example": "example",
    "load_manifest": "manifest",
    "masked_crc32c": "crc32c",
    "open_sharded_writers": "push",
    "open_writer": "push",
    "read_records": "tfrecord",
    "stats": "stats",
    "verify": "verify",
    "write": "write",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Bind a public name on first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version  # 25 ms that most programs need not spend

        return version("shardwriter")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'shardwriter' has no attribute {name!r}")
    value = getattr(import_module(f"shardwriter.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
