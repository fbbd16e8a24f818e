"""Shared by the peers' scripts: cases are read as JSON, and each reader's answers written as JSON.

A case is ``{"counts", "world", "workers", "batch", "drop_last"}``. A peer answers with the record
ids of every batch that each worker of each rank returned: ``{"policy": [[[ids, ...], ...], ...]}``,
or with the text of an error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Batches = list[list[int]]
Reader = Callable[..., Batches]


def of_every_worker(read: Reader, case: dict[str, Any]) -> Any:
    """Ask each worker of each rank: ``read(case, rank, worker)`` gives batches of ids."""
    workers = max(1, case["workers"])
    try:
        return [[read(case, rank, k) for k in range(workers)] for rank in range(case["world"])]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def of_every_rank(read: Reader, case: dict[str, Any]) -> Any:
    """Ask each rank, which has no workers: ``read(case, rank)`` gives batches of ids."""
    try:
        return [[read(case, rank)] for rank in range(case["world"])]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def answer(policies: dict[str, Callable[[dict[str, Any]], Any]]) -> None:
    """Answer every case on stdin with every policy."""
    cases = json.load(sys.stdin)
    seconds = dict.fromkeys(policies, 0.0)
    answers = []
    for case in cases:
        answers.append({})
        for name, ask in policies.items():
            if name in case.get("skip", []):
                continue
            start = time.perf_counter()
            answers[-1][name] = ask(case)
            seconds[name] += time.perf_counter() - start
    print({name: round(s, 2) for name, s in seconds.items()}, file=sys.stderr)
    json.dump(answers, sys.stdout)
