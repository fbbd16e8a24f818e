"""How evenly the shards of a set are filled, in records and in bytes of files.

A job that gives whole shards to its workers waits for the worker of the largest; so the largest
over the mean is by how much an epoch is longer than it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def balance_json(
    paths: Sequence[str], num_records: Sequence[int], num_bytes: Sequence[int]
) -> dict[str, Any]:
    """Return how evenly shards are filled; all three have one entry a shard.

    Where there is nothing (no shards, or only empty ones) largest over mean is 1 and the spread 0.

    Args:
        paths: Names of the shards.
        num_records: Their records.
        num_bytes: The sizes of their files.
    """
    records = _spread(paths, num_records)
    sizes = _spread(paths, num_bytes)
    return {
        "bytes": sizes,
        "bytes_cv": _variation(sizes),
        "bytes_max_over_mean": _max_over_mean(sizes),
        "records": records,
        "records_cv": _variation(records),
        "records_max_over_mean": _max_over_mean(records),
    }


def worst_balance(balances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one balance for several sets: in records and in bytes that of the worst set."""
    worst = balance_json([], [], [])
    for balance in balances:
        for unit in ("records", "bytes"):
            key = f"{unit}_max_over_mean"
            if worst[unit]["largest"] is None or balance[key] > worst[key]:
                for name in (unit, f"{unit}_cv", key):
                    worst[name] = balance[name]
    return worst


def balance_text(balance: Mapping[str, Any]) -> str:
    """Return the balance as the verdict line has it: largest over mean shard."""
    records, sizes = balance["records_max_over_mean"], balance["bytes_max_over_mean"]
    return f"balance {records:.2f} (bytes {sizes:.2f})"


def _spread(paths: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the distribution of a number over shards; of equal shards the first is named."""
    if len(paths) != len(numbers):
        raise ValueError(f"{len(paths)} shards, and numbers of {len(numbers)}")
    if not numbers:
        return {"largest": None, "max": 0, "mean": 0.0, "min": 0, "smallest": None, "std": 0.0}
    count = len(numbers)
    total = sum(numbers)
    # In whole numbers up to the root, so that equal shards have no spread at all.
    squares = sum((number * count - total) ** 2 for number in numbers)
    places = range(count)
    return {
        "largest": paths[max(places, key=numbers.__getitem__)],
        "max": max(numbers),
        "mean": total / count,
        "min": min(numbers),
        "smallest": paths[min(places, key=numbers.__getitem__)],
        "std": math.sqrt(squares / count) / count,
    }


def _max_over_mean(spread: Mapping[str, Any]) -> float:
    return float(spread["max"] / spread["mean"]) if spread["mean"] else 1.0


def _variation(spread: Mapping[str, Any]) -> float:
    return float(spread["std"] / spread["mean"]) if spread["mean"] else 0.0
