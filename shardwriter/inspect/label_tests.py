"""Were records dealt to shards without regard to their labels? Tests without scipy.

If they were, then a shard's records are a sample without replacement, and how many of them have a
label follows a hypergeometric distribution, however small the numbers are. Two questions are asked:

- of every cell (a label in a shard): its tail, times the number of all cells (Bonferroni), so that
  of a whole table that was dealt at random one in a thousand raises an alarm;
- of the whole table: Pearson's chi-square with its exact mean and variance for given margins
  (Dawson 1954), which hold for cells far below 1 as well, where the chi-square distribution does
  not; the tail is that of a gamma distribution with these moments, by the cube root of Wilson and
  Hilferty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ALPHA: Final = 1e-3  # how often random data may raise an alarm
_MIN_RATIO: Final = 1.25  # less than that, or its inverse, changes no training
_MAX_CELLS: Final = 10_000  # deviating cells whose tail is computed


@dataclass(frozen=True)
class Cell:
    """A label whose share in a shard deviates.

    Attributes:
        shard: The table's row.
        label: Its column.
        count: Records of the shard that have the label.
        expected: How many would be even.
        p_value: How likely random dealing is so far off in either direction; not corrected for
            the number of cells.
    """

    shard: int
    label: int
    count: int
    expected: float
    p_value: float


def deviating_cells(
    rows: Callable[[], Iterator[NDArray[np.int64]]], num_labelled: NDArray[np.int64]
) -> tuple[list[Cell], dict[str, Any]]:
    """Test a table of records by shard and label.

    Args:
        rows: Gives ``int64[C]`` for each shard: records with each label. Asked for more than
            once, so that a large table needs no room.
        num_labelled: ``int64[N]``: labelled records of each shard.

    Returns:
        The deviating cells, the least likely first; and the test of the whole table as JSON: an
        empty one where records have several labels.
    """
    total = int(num_labelled.sum())
    if total < 2:
        return [], {}
    with_label: NDArray[np.int64] = sum(rows(), start=np.zeros((), np.int64))
    shares = with_label / total
    is_there = with_label > 0
    limit = math.log(_ALPHA / (2 * len(num_labelled) * len(with_label)))
    found: list[tuple[float, int, int]] = []
    chi_square = 0.0
    for shard, row in enumerate(rows()):
        draws = int(num_labelled[shard])
        if not draws:
            continue
        expected = draws * shares
        chi_square += float(((row - expected)[is_there] ** 2 / expected[is_there]).sum())
        off = (row >= _MIN_RATIO * expected) | (row <= expected / _MIN_RATIO)
        bound = _log_tail_bound(row, draws, shares)
        for label in np.flatnonzero(off & (bound < limit)).tolist():
            found.append((float(bound[label]), shard, label))
    found.sort()
    cells = [
        _cell(shard, label, row_count, draws, int(with_label[label]), total)
        for shard, label, row_count, draws in _counts(found[:_MAX_CELLS], rows, num_labelled)
    ]
    cells.sort(key=lambda cell: (cell.p_value, -abs(cell.count - cell.expected), cell.shard))
    if int(with_label.sum()) != total:
        return cells, {}
    return cells, _table_test(chi_square, num_labelled, with_label)


def _counts(
    found: list[tuple[float, int, int]],
    rows: Callable[[], Iterator[NDArray[np.int64]]],
    num_labelled: NDArray[np.int64],
) -> Iterator[tuple[int, int, int, int]]:
    """Yield shard, label, count and labelled records of the shard for the cells that were found."""
    by_shard: dict[int, list[int]] = {}
    for _, shard, label in found:
        by_shard.setdefault(shard, []).append(label)
    for shard, row in enumerate(rows()):
        for label in by_shard.get(shard, ()):
            yield shard, label, int(row[label]), int(num_labelled[shard])


def _cell(shard: int, label: int, count: int, draws: int, with_label: int, total: int) -> Cell:
    p_value = hypergeometric_p_value(count, draws, with_label, total)
    return Cell(shard, label, count, draws * with_label / total, p_value)


def _log_tail_bound(
    counts: NDArray[np.int64], draws: int, shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``float64[C]``: an upper bound of the log of the tail that a count is in.

    Hoeffding (1963): exp(-n KL(count / n || share)), for draws with and without replacement.
    """
    found = counts / draws
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = np.where(counts > 0, found * np.log(found / shares), 0.0)
        rest = np.where(found < 1, (1 - found) * np.log((1 - found) / (1 - shares)), 0.0)
    bound: NDArray[np.float64] = -draws * (hits + rest)
    return np.nan_to_num(bound, nan=0.0, posinf=0.0)


def hypergeometric_p_value(count: int, draws: int, with_label: int, total: int) -> float:
    """Return how likely a count is so far off or farther, in either direction.

    Args:
        count: Records drawn that have the label.
        draws: Records drawn, without replacement.
        with_label: Records that have the label, of all.
        total: All records.
    """
    least, most = max(0, draws + with_label - total), min(draws, with_label)
    step = 1 if count * total >= draws * with_label else -1
    log_first = (
        _log_choose(with_label, count)
        + _log_choose(total - with_label, draws - count)
        - _log_choose(total, draws)
    )
    # Away from the mode every term is smaller than the one before, in the end geometrically.
    tail, term, k = 1.0, 1.0, count
    while least <= k + step <= most and term > tail * 1e-17:
        if step > 0:
            term *= (with_label - k) * (draws - k)
            term /= (k + 1) * (total - with_label - draws + k + 1)
        else:
            term *= k * (total - with_label - draws + k)
            term /= (with_label - k + 1) * (draws - k + 1)
        tail += term
        k += step
    return min(1.0, 2 * math.exp(min(0.0, log_first + math.log(tail))))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _table_test(
    chi_square: float, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> dict[str, Any]:
    """Return the test of a whole table by its margins; empty where there is nothing to test."""
    rows, columns = rows[rows > 0], columns[columns > 0]
    mean, variance = chi_square_moments(rows, columns)
    if variance <= 0:
        return {}
    shape, scale = mean * mean / variance, variance / mean
    smaller = min(len(rows), len(columns)) - 1
    effect = max(0.0, chi_square - mean) / (int(rows.sum()) * smaller)
    return {
        "chi_square": chi_square,
        "cramers_v": math.sqrt(min(1.0, effect)),
        "expected": mean,
        "p_value": gamma_tail(chi_square / scale, shape),
    }


def chi_square_moments(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[float, float]:
    """Return mean and variance of Pearson's chi-square over all tables with these margins.

    Both are 0 where there is one row or one column, or too few records.
    """
    n, r, c = int(rows.sum()), len(rows), len(columns)
    if n < 4 or r < 2 or c < 2:
        return 0.0, 0.0
    v_rows = (r - 1) * (n - r) / (n - 1)
    v_columns = (c - 1) * (n - c) / (n - 1)
    w_rows = (float((n / rows).sum()) - r * r) / (n - 2)
    w_columns = (float((n / columns).sum()) - c * c) / (n - 2)
    mean = n * (r - 1) * (c - 1) / (n - 1)
    variance = 2 * n / (n - 3) * (v_rows - w_rows) * (v_columns - w_columns)
    variance += n * n / (n - 1) * w_rows * w_columns
    return mean, variance


def gamma_tail(x: float, shape: float) -> float:
    """Return P(X >= x) of a gamma distribution of scale 1, as Wilson and Hilferty have it."""
    if x <= 0:
        return 1.0
    z = ((x / shape) ** (1 / 3) - (1 - 1 / (9 * shape))) * math.sqrt(9 * shape)
    return 0.5 * math.erfc(z / math.sqrt(2))
