"""The datasets that our command is given as ``module:callable``, and a digest of records.

A command has no arguments for its dataset: ``BENCH_SOURCE`` names the folder that is read.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

SIDE_PIXELS = 256


class Floats:
    """A vector and a label, as in embeddings: {"x": float32[768], "label": int}."""

    def __init__(self) -> None:
        folder = Path(os.environ["BENCH_SOURCE"])
        self.x = np.load(folder / "x.npy", mmap_mode="r")
        self.label = np.load(folder / "label.npy")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "label": self.label[index]}


class Tokens:
    """Token ids of a text: {"tokens": uint16[2048]}; integers of any width are written as int64."""

    def __init__(self) -> None:
        self.tokens = np.load(Path(os.environ["BENCH_SOURCE"]) / "tokens.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": self.tokens[index]}


class Masks:
    """An image and its mask, decoded and resized with OpenCV, as bytes of uint8[256, 256, ...]."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["BENCH_SOURCE"])
        self.names = sorted(os.listdir(self.folder / "images"))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return resized_pair(self.folder, self.names[index])


def resized_pair(folder: Path, name: str) -> dict[str, bytes]:
    """Decode and resize a pair: the image bilinear, the mask to the nearest pixel."""
    import cv2

    cv2.setNumThreads(1)  # processes share the work here, and not threads
    size = (SIDE_PIXELS, SIDE_PIXELS)
    image = cv2.imread(str(folder / "images" / name), cv2.IMREAD_COLOR_RGB)
    mask = cv2.imread(str(folder / "masks" / name), cv2.IMREAD_UNCHANGED)
    return {
        "image": cv2.resize(image, size, interpolation=cv2.INTER_LINEAR).tobytes(),
        "mask": cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST_EXACT).tobytes(),
    }


def table_rows(path: Path, mine: Callable[[int], bool]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number and the cells of rows; lines that are not mine are read and not parsed."""
    with path.open(newline="") as file:
        names = next(csv.reader(file))
        numbers: list[int] = []  # of the line that was handed on last

        def lines() -> Iterator[str]:
            for number, line in enumerate(file):
                if mine(number):
                    numbers[:] = [number]
                    yield line

        for row in csv.DictReader(lines(), names):
            yield numbers[0], row


def tiny() -> Small:
    """Eight small records."""
    return Small(8)


class Small:
    """Small records at an index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": index * 0.5}


def small(count: int) -> Iterator[dict[str, Any]]:
    """Yield the same small records one after the other."""
    for index in range(count):
        yield {"id": index, "x": index * 0.5}


def digest(records: Iterable[Mapping[str, Any]]) -> str:
    """Return one digest of many records, whatever their order and whatever kept them."""
    digests = sorted(_digest(record) for record in records)
    return f"{len(digests)}-{sha256(b''.join(digests)).hexdigest()}"


def _digest(record: Mapping[str, Any]) -> bytes:
    total = sha256()
    for name in sorted(record):
        value = _plain(record[name])
        total.update(f"{name} {len(value)} ".encode() + value)
    return total.digest()


def _plain(value: Any) -> bytes:
    """Return a value as bytes: text as UTF-8, integers as int64, floats as float32."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    if array.dtype == np.uint8:  # the PyPI tfrecord reader gives bytes so
        return array.tobytes()
    if array.dtype.kind in "iu":
        return array.astype("<i8").tobytes()
    if array.dtype.kind == "f":
        return array.astype("<f4").tobytes()
    raise TypeError(f"no plain form for {array.dtype}")
