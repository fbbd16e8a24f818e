"""Views: which records of a dataset one has, as a chain of steps from its rows to record numbers.

A step is a range or int64[n] of rows of what it stands on, a permutation of them, or a rank's
share. All of them are values: a view is nothing but its steps.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.permutation import Permutation
from shardwriter.dataset.rank_partition import Share

Step: TypeAlias = "range | NDArray[np.int64] | Permutation | Share"
Steps: TypeAlias = "tuple[Step, ...]"
_Int64s: TypeAlias = NDArray[np.int64]


def num_rows(steps: Steps, num_records: int) -> int:
    """Return how many rows a view has."""
    if not steps:
        return num_records
    last = steps[-1]
    return last.num_samples if isinstance(last, Share) else len(last)


def to_records(steps: Steps, rows: _Int64s) -> _Int64s:
    """Return int64[k]: the records that rows of a view are."""
    for step in reversed(steps):
        if isinstance(step, range):
            rows = step.start + step.step * rows
        elif isinstance(step, Share):
            rows = step.records(_draws(step, rows), None)
        elif isinstance(step, Permutation):
            rows = step(rows)
        else:
            rows = step[rows]
    return rows


def to_record(steps: Steps, row: int) -> int:
    """Return the record that one row of a view is, without arrays."""
    for step in reversed(steps):
        if isinstance(step, range):
            row = step[row]
        elif isinstance(step, Share):
            row = (step.consumed + step.rank + step.world * row) % step.num_records
        elif isinstance(step, Permutation):
            row = step.item(row)
        else:
            row = int(step[row])
    return row


def are_pads(steps: Steps, rows: _Int64s) -> NDArray[np.bool_]:
    """Return bool[k]: which rows are there for equal numbers only."""
    pads = np.zeros(len(rows), np.bool_)
    for number in range(len(steps), 0, -1):
        step = steps[number - 1]
        if isinstance(step, Share):
            pads |= step.is_pad(_draws(step, rows))
        rows = to_records((step,), rows)
    return pads


def may_have_pads(steps: Steps) -> bool:
    """Tell whether rows of a view are told apart from pads."""
    return any(isinstance(step, Share) and step.uneven == "pad" for step in steps)


def chosen(steps: Steps, rows: range | _Int64s) -> Steps:
    """Return the steps of some rows of a view."""
    last = steps[-1] if steps else None
    if isinstance(last, range):
        if isinstance(rows, range):
            first, step = last.start + last.step * rows.start, last.step * rows.step
            return (*steps[:-1], range(first, first + step * len(rows), step))
        return (*steps[:-1], last.start + last.step * rows)
    if isinstance(last, np.ndarray):
        numbers = np.arange(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
        return (*steps[:-1], last[numbers])
    return (*steps, rows)


def _draws(share: Share, rows: _Int64s) -> _Int64s:
    """Return what ``share.draws`` has at some rows."""
    return share.consumed + share.rank + share.world * rows
