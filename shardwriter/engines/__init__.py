"""Who does the work: an engine takes a job and leaves N sealed shards in the run directory.

It publishes nothing; :mod:`shardwriter.write` does that. Whatever the engine, the bytes are the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwriter.manifest import SealedShard

__all__ = ["Outcome", "Progress"]

Progress = Callable[[int, "int | None", int], None]
"""Told now and then of the items done, the items in all (None while that is not known), and the
payload bytes written so far."""


@dataclass(frozen=True)
class Outcome:
    """What an engine has made.

    Attributes:
        shards: The sealed shards, in order.
        num_items: T.
        gaps: Sorted indices of items without a record.
        schema: The manifest's ``schema``.
        labels: The manifest's ``labels``.
        labels_sorted: Whether every label came in one run.
        notes: What a person should know, one line each.
    """

    shards: list[SealedShard]
    num_items: int
    gaps: list[int]
    schema: dict[str, Any]
    labels: dict[str, Any] | None
    labels_sorted: bool
    notes: list[str]
