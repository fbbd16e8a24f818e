"""The inputs: files that are made, and what runs of the program import by ``module:name``.

A run has no arguments for its dataset: ``TORTURE_DATA`` is JSON with ``seed``, ``num_items``,
``item_bytes`` and ``sleep_s``. All but the last decide what a record is.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

import shardwriter as sw

KINDS: Final = (
    "images",
    "csv",
    "csv.gz",
    "jsonl",
    "jsonl.gz",
    "dataset",
    "stream",
    "tfrecord",
    "tfrecord.gz",
)
NUM_CLASSES: Final = 5


@cache
def settings() -> Mapping[str, Any]:
    """Return what TORTURE_DATA says."""
    found: Mapping[str, Any] = json.loads(os.environ["TORTURE_DATA"])
    return found


def record(seed: int, index: int, item_bytes: int) -> dict[str, Any]:
    """Return an item; its bytes do not compress."""
    rng = np.random.default_rng([seed, index])
    return {
        "id": index,
        "label": index % NUM_CLASSES,
        "name": f"item {index}",
        "x": rng.random(3, np.float32),
        "data": rng.bytes(item_bytes),
    }


# -- sources that are code -----------------------------------------------------------------------


class Dataset:
    """Items at an index."""

    def __len__(self) -> int:
        return int(settings()["num_items"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return _slow_record(index)


def stream() -> Iterator[dict[str, Any]]:
    """Yield the same items one after the other."""
    for index in range(settings()["num_items"]):
        yield _slow_record(index)


def _slow_record(index: int) -> dict[str, Any]:
    _take_time(index)
    return record(settings()["seed"], index, settings()["item_bytes"])


def _take_time(number: int) -> None:
    time.sleep(settings()["sleep_s"] * (number % 3))


# -- sources that are files ------------------------------------------------------------------------


def make_files(folder: Path, kind: str, seed: int, num_items: int, item_bytes: int) -> str:
    """Make the files of a source in an empty folder; return SOURCE."""
    items = (record(seed, index, item_bytes) for index in range(num_items))
    if kind == "images":
        for number in range(NUM_CLASSES):
            (folder / "images" / f"class-{number}").mkdir(parents=True)
        for item in items:
            path = folder / "images" / f"class-{item['label']}" / f"{item['id']:05d}.bmp"
            path.write_bytes(_bitmap(item["data"]))
        return str(folder / "images")
    path = folder / f"table.{kind}"
    if kind.startswith("tfrecord"):
        out = folder / ("records@3.gz" if kind.endswith("gz") else "records@3")
        sw.write(list(items), out)
        return str(folder / "records")
    with (
        gzip.open(path, "wt", newline="")
        if kind.endswith("gz")
        else path.open("w", newline="") as file
    ):
        if kind.startswith("csv"):
            table = csv.writer(file)
            table.writerow(["id", "label", "name", "price", "data"])
            for item in items:
                price = "" if item["id"] % 9 == 0 else f"{item['x'][0]:.4f}"
                data = item["data"].hex()
                table.writerow([item["id"], item["label"], item["name"], price, data])
        else:
            for item in items:
                line = {**item, "data": item["data"].hex(), "x": item["x"].tolist()}
                if item["id"] % 9 == 0:
                    del line["x"]
                print(json.dumps(line), file=file)
    return str(path)


def _bitmap(data: bytes) -> bytes:
    """Return a BMP image of one row of pixels."""
    width = max(1, len(data) // 4)
    rows = data[: 4 * width].ljust(4 * width, b"\0")
    head = struct.pack("<IiiHHIIiiII", 40, width, 1, 1, 32, 0, len(rows), 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54) + head + rows


# -- a filter and maps -----------------------------------------------------------------------------


def keep(item: Any) -> bool:
    """Leave about one item of six out, whatever a source lists."""
    key = getattr(item, "key", None)
    if isinstance(item, Mapping):
        key = item["id"]
    return zlib.crc32(repr(item if key is None else key).encode()) % 6 != 0


def same(features: dict[str, Any]) -> dict[str, Any]:
    """Return what is given, later."""
    _take_time(_number(features))
    return features


def drop(features: dict[str, Any]) -> Any:
    """Give no record of some items."""
    number = _number(features)
    _take_time(number)
    return sw.SKIP if number % 5 == 1 else features


def widen(features: dict[str, Any]) -> dict[str, Any]:
    """Add features whose types differ from item to item."""
    number = _number(features)
    _take_time(number)
    dtype = [np.int8, np.int16, np.int32][number % 7 % 3]
    features["wide"] = np.full(1 + number % 4, number % 100, dtype)
    features["list"] = [] if number % 3 == 0 else [0.5] * (number % 5)
    if number % 23 == 5:
        features[f"late/{number % 4}"] = "seen"
    return features


def fail(features: dict[str, Any]) -> dict[str, Any]:
    """Raise on some items."""
    number = _number(features)
    _take_time(number)
    if number % 7 == 2:
        raise ValueError(f"no use for {number}")
    return features


def mixed(features: dict[str, Any]) -> Any:
    """Do all of it."""
    number = _number(features)
    if number % 13 == 0:
        return sw.SKIP
    return fail(widen(features))


MAPS: Final = (None, "same", "drop", "widen", "fail", "mixed")


def _number(features: Mapping[str, Any]) -> int:
    """Return a number that an item has, whatever the source."""
    value = features.get("id", features.get("image/filename"))
    text = str(np.asarray(value).reshape(-1)[0])
    return zlib.crc32(text.encode())
