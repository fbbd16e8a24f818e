"""The records that bench_read.py reads, kept as our shards and in the peers' own formats.

``images``: JPEGs of about 100 kB (their bytes: nobody decodes pixels here) and a label.
``floats``: 768 float32 and a label, as embeddings are kept.
``rows``: six columns of a table.
``tokens``: 2,048 token ids.

The peers get what their documents recommend: WebDataset tars with a file a feature (one JSON file
for the row of a table), array_record the serialised Examples with one record a group.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shardwriter as sw

NUM_SHARDS = 8
TABLE = ("id", "quantity", "price", "rate", "city", "name")


def images(count: int) -> Iterator[dict[str, Any]]:
    """Yield {"image": bytes, "label": int}."""
    rng = np.random.default_rng(1)
    for number in range(count):
        yield {"image": rng.bytes(int(rng.integers(90_000, 110_000))), "label": number % 1000}


def floats(count: int) -> Iterator[dict[str, Any]]:
    """Yield {"x": float32[768], "label": int}."""
    rng = np.random.default_rng(2)
    for number in range(count):
        yield {"x": rng.standard_normal(768, np.float32), "label": number % 1000}


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield six columns: two integers, two floats, two texts."""
    rng = np.random.default_rng(3)
    for number in range(count):
        quantity, price, rate = (int(value) for value in rng.integers(0, 10_000, 3))
        yield {
            "id": number,
            "quantity": quantity,
            "price": price / 4,  # a float32 as it stands
            "rate": rate / 1024,
            "city": f"city {quantity % 97}",
            "name": f"customer number {number}",
        }


def tokens(count: int) -> Iterator[dict[str, Any]]:
    """Yield {"tokens": uint16[2048]}, written as int64."""
    rng = np.random.default_rng(4)
    for _ in range(count):
        yield {"tokens": rng.integers(0, 50_000, 2048).astype(np.uint16)}


SETS: dict[str, tuple[Callable[[int], Iterator[dict[str, Any]]], int]] = {
    "images": (images, 200),
    "floats": (floats, 3_000),
    "rows": (rows, 6_000),
    "tokens": (tokens, 1_500),
}
"""Of each set what makes it, and of how many records at scale 1."""

KINDS: dict[str, dict[str, tuple[str, int]]] = {
    "images": {"image": ("bytes", 1), "label": ("int64", 1)},
    "floats": {"x": ("float32", 768), "label": ("int64", 1)},
    "rows": {
        name: ("int64" if k < 2 else "float32" if k < 4 else "bytes", 1)
        for k, name in enumerate(TABLE)
    },
    "tokens": {"tokens": ("int64", 2048)},
}
"""Of each set the dtype and the number of the values of every feature."""


def make(name: str, folder: Path, scale: float) -> None:
    """Write one set in every format: ``folder/NAME@8``, ``NAME-*.tar`` and ``NAME-*.array``."""
    maker, count = SETS[name]
    records = list(maker(max(NUM_SHARDS, int(count * scale))))
    sw.write(records, folder / f"{name}@{NUM_SHARDS}")
    _make_tars(name, folder, records)
    _make_arrays(name, folder, records)


def _make_tars(name: str, folder: Path, records: list[dict[str, Any]]) -> None:
    from webdataset import TarWriter

    for shard in range(NUM_SHARDS):
        with TarWriter(str(folder / f"{name}-{shard:05}.tar")) as writer:
            for number in range(shard, len(records), NUM_SHARDS):
                writer.write({"__key__": f"{number:08}", **_tar_files(records[number])})


def _tar_files(record: dict[str, Any]) -> dict[str, bytes]:
    if len(record) == len(TABLE):
        return {"json": json.dumps(record).encode()}
    files = {}
    for key, value in record.items():
        if isinstance(value, np.ndarray):
            buffer = io.BytesIO()
            np.save(buffer, value)
            files[f"{key}.npy"] = buffer.getvalue()
        elif isinstance(value, bytes):
            files[f"{key}.jpg"] = value
        else:
            files[f"{key}.cls"] = str(value).encode()
    return files


def tar_example(files: dict[str, Any]) -> dict[str, Any]:
    """Return the example that the files of a tar are, whether WebDataset decoded them or not."""
    example: dict[str, Any] = {}
    for file, value in files.items():
        if file == "json":
            example.update(json.loads(value) if isinstance(value, bytes) else value)
        elif not file.startswith("__"):
            key, _, kind = file.partition(".")
            example[key] = _decoded_file(kind, value) if isinstance(value, bytes) else value
    return example


def _decoded_file(kind: str, data: bytes) -> Any:
    if kind == "npy":
        return np.load(io.BytesIO(data))
    return int(data) if kind == "cls" else data


def _make_arrays(name: str, folder: Path, records: list[dict[str, Any]]) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for shard in range(NUM_SHARDS):
        path = str(folder / f"{name}-{shard:05}.array")
        # Its own default compresses with zstd; ours and the tars are not compressed.
        writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
        for record in records[shard::NUM_SHARDS]:
            writer.write(sw.encode_example(record))
        writer.close()
