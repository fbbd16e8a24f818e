"""Datasets for the tests of the readers for torch."""

from __future__ import annotations

import os
import re
import warnings

import numpy as np

import shardwriter

N = 103


def item(number):
    """One example with every kind of feature."""
    return {
        "i": np.int64(number),
        "flag": np.bool_(number % 3 == 0),
        "half": np.float16(number / 4),
        "small": np.uint8(number % 251),
        "x": np.arange(3, dtype=np.float32) + number,
        "wide": np.full((2, 2), number, np.uint16),
        "name": f"n{number}",
        "blob": bytes([number % 256]) * (number % 5),
        "boxes": np.arange(2 * (number % 3 + 1), dtype=np.float32).reshape(-1, 2),
    }


def write(folder, num_records=N, num_shards=5, make=item, **options):
    shardwriter.write([make(i) for i in range(num_records)], folder / f"t@{num_shards}", **options)
    return folder / "t"


def shared_memory():
    """What lies there of this process or of one that has ended."""
    found = set()
    for name in os.listdir("/dev/shm"):
        match = re.match(r"torch_(\d+)_", name)
        if match and (int(match[1]) == os.getpid() or not os.path.exists(f"/proc/{match[1]}")):
            found.add(name)
    return found


def ids(batches):
    """The records of batches, in order."""
    return [number for batch in batches for number in batch["i"].tolist()]


def quiet():
    """Torch warns where there are more workers than processors."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
