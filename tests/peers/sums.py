"""Shared by the clients' scripts: sets are read as JSON, and a checksum of each is written.

A set is ``{"dataset", "paths", "compression", "features"}``; features are named with what their
values are (``bytes``, ``int64``, ``float``), one value a record. An answer is
``{set: {way of reading: checksum}}``, and a text that begins with an error's type where one was
raised.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

Row = Mapping[str, Any]
Set = dict[str, Any]
Reader = Callable[[Set], Iterable[Row]]


def checksum(rows: Iterable[Row]) -> str:
    """Return how many rows there are and a digest of them, whatever their order."""
    digests = sorted(_digest(row) for row in rows)
    return f"{len(digests)}-{sha256(b''.join(digests)).hexdigest()}"


def _digest(row: Row) -> bytes:
    total = sha256()
    for name in sorted(row):
        value = _plain(row[name])
        total.update(f"{name} {len(value)} ".encode() + value)
    return total.digest()


def _plain(value: Any) -> bytes:
    """Return one value as bytes: text as UTF-8, integers as int64, floats as float32."""
    if isinstance(value, list):
        (value,) = value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    if array.dtype == np.uint8:  # how loaders hand out bytes
        return array.tobytes()
    if array.size != 1 or array.dtype.kind not in "iuf":
        raise TypeError(f"{array.dtype} of shape {array.shape} is not one number")
    return array.astype("<f4" if array.dtype.kind == "f" else "<i8").tobytes()


def parsed(payload: bytes, features: Mapping[str, str]) -> dict[str, Any]:
    """Return the features of a payload, as protobuf itself parses it."""
    from tfrecord import example_pb2  # the PyPI package's; TensorFlow's takes seconds to import

    found = example_pb2.Example.FromString(payload).features.feature
    return {
        name: list(getattr(found[name], f"{kind}_list").value) for name, kind in features.items()
    }


def ask(reader: Reader, one: Set) -> str:
    """Return the checksum of what a reader gives, or what it raises."""
    try:
        return checksum(reader(one))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def answer(readers: dict[str, Reader]) -> None:
    """Answer every set on stdin with every reader."""
    sets = json.load(sys.stdin)
    answers: dict[str, dict[str, str]] = {name: {} for name in sets}
    for way, reader in readers.items():
        start = time.perf_counter()
        for name, one in sets.items():
            answers[name][way] = ask(reader, one)
        print(f"{way}: {time.perf_counter() - start:.2f} s", file=sys.stderr)
    json.dump(answers, sys.stdout)
