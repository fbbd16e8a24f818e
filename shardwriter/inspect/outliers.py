"""Which shards have another distribution than the rest: tests that leave random data alone.

All of them work on ``counts``, ``float64[s, k]``: how often each of k outcomes came in each of s
shards. The worst shard is taken out of the comparison before the next one is looked for, so that it
does not speak against those that are like each other. A deviation has to be both sure (bounds that
hold for any distribution, divided by the number of tests) and large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Comparison:
    """How to compare.

    Attributes:
        distance: ``"share"`` of the first of two outcomes; ``"total"`` variation; ``"order"``:
            the largest distance between cumulated shares (Kolmogorov and Smirnov).
        min_distance: What does not matter in practice, between 0 and 1.
        log_alpha: Logarithm of the chance with which one test may err.
        max_outliers: After so many the search ends.
    """

    distance: Literal["share", "total", "order"]
    min_distance: float
    log_alpha: float
    max_outliers: int = 16


@dataclass(frozen=True)
class Outlier:
    """A shard that deviates.

    Attributes:
        row: Its row.
        distance: From the others that are like each other.
        own: ``float64[k]``, its shares.
        others: ``float64[k]``, those of the others.
    """

    row: int
    distance: float
    own: NDArray[np.float64]
    others: NDArray[np.float64]


def find_outliers(
    counts: NDArray[Any], num_records: NDArray[Any], test: Comparison
) -> Iterator[Outlier]:
    """Find the rows that deviate from the rest, the worst first.

    Args:
        counts: ``[s, k]``.
        num_records: ``[s]``: independent observations of each row; those of one record are none.
        test: How to compare.
    """
    left = np.flatnonzero((num_records > 0) & (counts.sum(axis=1) > 0))
    for _ in range(min(test.max_outliers, left.size // 2)):
        chosen, sizes = counts[left].astype(np.float64), num_records[left].astype(np.float64)
        rest = chosen.sum(axis=0) - chosen
        own = chosen / chosen.sum(axis=1, keepdims=True)
        others = rest / rest.sum(axis=1, keepdims=True)
        distance = _distance(own, others, test)
        log_chance = _log_chance(own, others, sizes, distance, test)
        suspect = (log_chance < test.log_alpha) & (distance >= test.min_distance)
        if not suspect.any():
            return
        # Of two that differ from each other alone, the smaller one; then the later one.
        key = np.where(suspect, distance, -1.0)
        tied = np.flatnonzero(np.isclose(key, key.max()))
        worst = int(tied[np.lexsort((-tied, sizes[tied]))[0]])
        yield Outlier(int(left[worst]), float(distance[worst]), own[worst], others[worst])
        left = np.delete(left, worst)


def _distance(
    own: NDArray[np.float64], others: NDArray[np.float64], test: Comparison
) -> NDArray[np.float64]:
    apart = own - others
    if test.distance == "share":
        return np.asarray(np.abs(apart[:, 0]))
    if test.distance == "total":
        return np.asarray(np.abs(apart).sum(axis=1) / 2)
    return np.asarray(np.abs(np.cumsum(apart, axis=1)).max(axis=1))


def _log_chance(
    own: NDArray[np.float64],
    others: NDArray[np.float64],
    sizes: NDArray[np.float64],
    distance: NDArray[np.float64],
    test: Comparison,
) -> NDArray[np.float64]:
    """Bound the logarithm of the chance of such a distance among shards that are alike."""
    rest = sizes.sum() - sizes
    effective = sizes * rest / (sizes + rest)
    if test.distance == "share":
        # Chernoff's bound, with the share of the others as if it were one record less sure.
        told = (others[:, 0] * rest + 0.5) / (rest + 1)
        return np.asarray(-effective * _divergence(own[:, 0], told) + np.log(2))
    # Massart's constant for the order; for k outcomes, the union over their 2^k subsets.
    log_subsets = np.log(2) * (1 if test.distance == "order" else own.shape[1])
    return np.asarray(log_subsets - 2 * effective * distance**2)


def _divergence(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Kullback's and Leibler's divergence of two coins."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = np.where(a > 0, a * np.log(a / b), 0.0)
        tails = np.where(a < 1, (1 - a) * np.log((1 - a) / (1 - b)), 0.0)
    return np.asarray(heads + tails)
