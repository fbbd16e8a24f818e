"""The report's ``drift``: features that differ between the shards of one set.

Shards should be random samples of one dataset. `find_outliers` compares ``counts``,
``float64[s, k]``: counts of k outcomes in s shards. The worst shard is removed before the next one
is searched, so it does not affect the comparison of the others. A deviation must be significant
(bounds that hold for any distribution, with Bonferroni correction) and large.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats import Kind
from shardwriter.inspect.feature_stats import FeatureSketch, FeatureStats, Range
from shardwriter.inspect.sketches import ValueHistogram


@dataclass(frozen=True)
class Comparison:
    """A comparison of distributions.

    Attributes:
        distance: ``"share"``: difference of the first of two shares; ``"total"``: total variation
            distance; ``"order"``: Kolmogorov-Smirnov distance.
        min_distance: Smaller distances are ignored, between 0 and 1.
        log_alpha: Logarithm of the significance level of one test.
        max_outliers: Maximum number of outliers.
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
        distance: Distance from the shards that are not outliers.
        own: ``float64[k]``: its shares.
        others: ``float64[k]``: shares of the other shards.
    """

    row: int
    distance: float
    own: NDArray[np.float64]
    others: NDArray[np.float64]


def find_outliers(
    counts: NDArray[Any], num_records: NDArray[Any], test: Comparison
) -> Iterator[Outlier]:
    """Yield the rows that deviate from the rest, the worst first.

    Args:
        counts: ``[s, k]``: counts of outcomes by shard.
        num_records: ``[s]``: independent observations of each row; values of one record are
            dependent.
        test: The comparison.
    """
    left = np.flatnonzero((num_records > 0) & (counts.sum(axis=1) > 0))
    for _ in range(min(test.max_outliers, left.size // 2)):
        chosen, sizes = counts[left].astype(np.float64), num_records[left].astype(np.float64)
        rest = chosen.sum(axis=0) - chosen
        own = chosen / chosen.sum(axis=1, keepdims=True)
        others = rest / rest.sum(axis=1, keepdims=True)
        distance = _distance(own, others, test)
        log_probability = _log_probability(own, others, sizes, distance, test)
        suspect = (log_probability < test.log_alpha) & (distance >= test.min_distance)
        if not suspect.any():
            return
        # Ties, as between only two shards: the smaller shard, then the later one.
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


def _log_probability(
    own: NDArray[np.float64],
    others: NDArray[np.float64],
    sizes: NDArray[np.float64],
    distance: NDArray[np.float64],
    test: Comparison,
) -> NDArray[np.float64]:
    """Return an upper bound of the log-probability of such a distance between equal shards."""
    rest = sizes.sum() - sizes
    effective = sizes * rest / (sizes + rest)
    if test.distance == "share":
        # Chernoff's bound; the share of the others is smoothed by half a record of each outcome.
        smoothed = (others[:, 0] * rest + 0.5) / (rest + 1)
        return np.asarray(-effective * _divergence(own[:, 0], smoothed) + np.log(2))
    # "order": DKW inequality with Massart's constant; "total": union over 2^k subsets of outcomes.
    log_subsets = np.log(2) * (1 if test.distance == "order" else own.shape[1])
    return np.asarray(log_subsets - 2 * effective * distance**2)


def _divergence(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = np.where(a > 0, a * np.log(a / b), 0.0)
        tails = np.where(a < 1, (1 - a) * np.log((1 - a) / (1 - b)), 0.0)
    return np.asarray(heads + tails)


_ALPHA: Final = 1e-6  # probability of a false alarm in a set
_MIN_SHARE: Final = 0.05
_MIN_VALUES: Final = 0.1
_MIN_SPREADS: Final = 0.5  # difference of means, in standard deviations
_MAX_CATEGORIES: Final = 512
_MAX_PER_FEATURE: Final = 16  # listed shards of each kind of drift


class _Shards(NamedTuple):
    """A feature in each non-empty shard."""

    name: str
    sketches: list[FeatureSketch | None]
    num_records: NDArray[np.int64]
    log_alpha: float


class _Deviation(NamedTuple):
    """An entry of ``drift``, with the shard's row."""

    kind: str
    row: int
    detail: str
    expected: str
    found: str


def find_drift(per_shard: Sequence[tuple[int, str, FeatureStats]]) -> list[dict[str, Any]]:
    """Return the report's ``drift``, by feature, with at most 16 shards of each kind of drift.

    Args:
        per_shard: Shard index, path and statistics of each shard.
    """
    for _, _, stats in per_shard:
        stats.flush()
    full = [entry for entry in per_shard if entry[2].num_records]
    if len(full) < 2:
        return []
    num_records = np.array([stats.num_records for _, _, stats in full], np.int64)
    names = sorted({name for _, _, stats in full for name in stats.features})
    log_alpha = math.log(_ALPHA / max(1, len(full) * len(names)))
    found = []
    for name in names:
        sketches = [stats.features.get(name) for _, _, stats in full]
        for deviation in _deviations(_Shards(name, sketches, num_records, log_alpha)):
            shard, path, _ = full[deviation.row]
            found.append(
                {
                    "detail": deviation.detail,
                    "expected": deviation.expected,
                    "feature": name,
                    "found": deviation.found,
                    "kind": deviation.kind,
                    "path": path,
                    "shard_index": shard,
                }
            )
    return found


def _deviations(shards: _Shards) -> Iterator[_Deviation]:
    yield from _presence(shards)
    yield from _unset(shards)
    kinds = Counter[Kind]()
    for sketch in shards.sketches:
        if sketch is not None:
            kinds.update(sketch.kinds)
    if not kinds:
        return
    kind = min(kinds, key=lambda kind: (-kinds[kind], kind))
    yield from _kinds(shards, kind)
    lengths = list(_means(shards, "length", "values a record", lambda sketch: sketch.lengths))
    yield from lengths
    known = {deviation.row for deviation in lengths}
    yield from (deviation for deviation in _odd_lengths(shards) if deviation.row not in known)
    if kind == "bytes":
        yield from _texts(shards)
        yield from _formats(shards)
        yield from _means(
            shards, "values", "bytes a value", lambda s: None if s.blobs is None else s.blobs.sizes
        )
        yield from _categories(shards)
    else:
        yield from _no_numbers(shards, kind)
        yield from _numbers(shards, kind)


def _share(shards: _Shards, counts: Sequence[tuple[int, int]]) -> Iterator[Outlier]:
    """Yield outliers of a share; ``counts`` has (with, without) of each shard."""
    table = np.array(counts, np.float64)
    test = Comparison("share", _MIN_SHARE, shards.log_alpha, _MAX_PER_FEATURE)
    return find_outliers(table, table.sum(axis=1), test)


def _presence(shards: _Shards) -> Iterator[_Deviation]:
    present = [0 if sketch is None else sketch.present for sketch in shards.sketches]
    counts = list(zip(present, (shards.num_records - present).tolist(), strict=True))
    for outlier in _share(shards, counts):
        own, others = float(outlier.own[0]), float(outlier.others[0])
        if own == 0:
            detail = f"no record has it, of the other shards' {_percent(others)} have it"
            yield _Deviation("missing", outlier.row, detail, _percent(others), _percent(own))
        else:
            detail = f"{_percent(own)} of the records have it, {_percent(others)} in other shards"
            yield _Deviation("presence", outlier.row, detail, _percent(others), _percent(own))


def _unset(shards: _Shards) -> Iterator[_Deviation]:
    counts = [(0, 0) if s is None else (s.unset, s.present - s.unset) for s in shards.sketches]
    for outlier in _share(shards, counts):
        own, others = _percent(outlier.own[0]), _percent(outlier.others[0])
        detail = f"{own} of its Features have no kind, {others} in other shards"
        yield _Deviation("unset", outlier.row, detail, others, own)


def _kinds(shards: _Shards, kind: Kind) -> Iterator[_Deviation]:
    """Yield shards with records of another kind: a single one breaks a parser."""
    named = 0
    for row, sketch in enumerate(shards.sketches):
        others = {} if sketch is None else {k: n for k, n in sketch.kinds.items() if k != kind}
        if others and named < _MAX_PER_FEATURE:
            named += 1
            found = ", ".join(f"{n:,} {k}" for k, n in sorted(others.items()))
            detail = f"records with {found}, most records of the set have {kind}"
            yield _Deviation("kind", row, detail, kind, " and ".join(sorted(others)))


def _means(
    shards: _Shards, kind: str, what: str, of: Callable[[FeatureSketch], Range | None]
) -> Iterator[_Deviation]:
    """Yield shards with deviating mean sizes, in standard deviations; constant sizes, exactly."""
    ranges = [None if sketch is None else of(sketch) for sketch in shards.sketches]
    left = [row for row, found in enumerate(ranges) if found is not None and found.count]
    for _ in range(min(_MAX_PER_FEATURE, len(left) // 2)):
        worst: tuple[float, int, float, float] | None = None
        count, total, squares = (
            sum(c) for c in zip(*map(_moments, _at(ranges, left)), strict=True)
        )
        for row in left:
            own = _moments(ranges[row])
            # Values of one record are dependent: at most one observation per record.
            weight = min(1.0, int(shards.num_records[row]) / own[0])
            step = _difference(own, (count - own[0], total - own[1], squares - own[2]), weight)
            if step is None or step[1] >= shards.log_alpha:
                continue
            mean, others = own[1] / own[0], (total - own[1]) / (count - own[0])
            key = (step[0], row, mean, others)
            if worst is None or key[:1] > worst[:1] or (key[0] == worst[0] and row > worst[1]):
                worst = key
        if worst is None:
            return
        _, row, mean, others = worst
        left.remove(row)
        detail = f"{_number(mean)} {what} on average, {_number(others)} in other shards"
        yield _Deviation(kind, row, detail, _number(others), _number(mean))


def _odd_lengths(shards: _Shards) -> Iterator[_Deviation]:
    """Yield shards with varying lengths if most have a fixed length: they break a parser."""
    ranges = {row: s.lengths for row, s in enumerate(shards.sketches) if s and s.lengths.count}
    fixed = Counter[int]()
    for found in ranges.values():
        if found.min is not None and found.min == found.max:
            fixed[found.min] += 1
    if not fixed:
        return
    length = min(fixed, key=lambda length: (-fixed[length], length))
    odd = [row for row, found in ranges.items() if {found.min, found.max} != {length}]
    if not odd or 2 * len(odd) >= len(ranges):
        return
    share = sum(ranges[row].count for row in odd) / sum(f.count for f in ranges.values())
    number = sum(ranges[row].least_other_than(length) for row in odd)
    # The probability that all of them are in so few shards, over all choices of these shards.
    log_probability = number * math.log(share) + math.log(math.comb(len(ranges), len(odd)))
    if log_probability >= shards.log_alpha:
        return
    for row in odd[:_MAX_PER_FEATURE]:
        span = f"{ranges[row].min} to {ranges[row].max}"
        detail = f"{span} values a record, always {length} in most shards"
        yield _Deviation("length", row, detail, f"{length}", span)


def _at(ranges: Sequence[Range | None], rows: Sequence[int]) -> list[Range | None]:
    return [ranges[row] for row in rows]


def _moments(found: Range | None) -> tuple[int, int, int]:
    assert found is not None
    return found.count, found.total, found.squares


def _difference(
    own: tuple[int, int, int], others: tuple[int, int, int], weight: float
) -> tuple[float, float] | None:
    """Return the distance of two means and a bound of its log-probability; None if too small."""
    means = [total / count for count, total, _ in (own, others)]
    spreads = [
        max(0.0, squares / count - (total / count) ** 2) for count, total, squares in (own, others)
    ]
    step = abs(means[0] - means[1])
    # Rounding errors of squares of large numbers: a smaller spread counts as 0.
    noise = 1e-7 * max(map(abs, means))
    spread = math.sqrt(max(spreads))
    if spread <= noise:
        return (math.inf, -math.inf if own[0] * weight >= 3 else 0.0) if step > noise else None
    if step < _MIN_SPREADS * spread or step < 0.1 * abs(means[1]):
        return None
    sizes = own[0] * weight, others[0] * weight
    error = spreads[0] / sizes[0] + spreads[1] / sizes[1]
    # The mean of fewer than 30 observations is not nearly normal.
    if min(sizes) < 30:
        return None
    return step / spread, -step * step / (2 * max(error, noise))


def _texts(shards: _Shards) -> Iterator[_Deviation]:
    counts = [
        (0, 0) if s is None or s.blobs is None else (s.blobs.num_binary, s.blobs.sizes.count)
        for s in shards.sketches
    ]
    for outlier in _share(shards, [(binary, count - binary) for binary, count in counts]):
        own, others = float(outlier.own[0]), float(outlier.others[0])
        detail = f"{_percent(own)} of the values are binary, {_percent(others)} in other shards"
        expected, found = ("text", "bytes") if own > others else ("bytes", "text")
        yield _Deviation("dtype", outlier.row, detail, expected, found)


def _formats(shards: _Shards) -> Iterator[_Deviation]:
    counts: list[Mapping[str, int]] = []
    for sketch in shards.sketches:
        blobs = None if sketch is None else sketch.blobs
        if blobs is None:
            counts.append({})
            continue
        formats = blobs.images.formats
        counts.append({**formats, "no image": blobs.sizes.count - formats.total()})
    if len(set().union(*counts)) < 2:
        return
    for outlier, names in _compared(shards, counts, _MIN_SHARE):
        own, others = _list(outlier.own, names), _list(outlier.others, names)
        detail = f"{own}, in other shards {others}"
        yield _Deviation("image-format", outlier.row, detail, others, own)


def _categories(shards: _Shards) -> Iterator[_Deviation]:
    """Yield shards with deviating shares of repeated texts."""
    counts: list[Mapping[bytes, int]] = []
    for sketch in shards.sketches:
        found = {} if sketch is None or sketch.blobs is None else sketch.blobs.top_counts()
        if found is None:
            return
        counts.append(found)
    if not 2 <= len(set().union(*counts)) <= _MAX_CATEGORIES:
        return
    for outlier, names in _compared(shards, counts, _MIN_VALUES):
        column = int(np.argmax(np.abs(outlier.own - outlier.others)))
        value = names[column][:40].decode("utf-8", "backslashreplace")
        own, others = _percent(outlier.own[column]), _percent(outlier.others[column])
        detail = f"{value!r} makes {own} of the values, {others} in other shards"
        yield _Deviation("values", outlier.row, detail, others, own)


def _compared(
    shards: _Shards, counts: Sequence[Mapping[Any, int]], min_distance: float
) -> Iterator[tuple[Outlier, list[Any]]]:
    names = sorted(set().union(*counts))
    table = np.array([[found.get(name, 0) for name in names] for found in counts], np.float64)
    sizes = np.minimum(shards.num_records, table.sum(axis=1))
    test = Comparison("total", min_distance, shards.log_alpha, _MAX_PER_FEATURE)
    for outlier in find_outliers(table, sizes, test):
        yield outlier, names


def _no_numbers(shards: _Shards, kind: Kind) -> Iterator[_Deviation]:
    """Yield shards with deviating shares of NaN and infinity."""
    rows = []
    for sketch, num_records in zip(shards.sketches, shards.num_records.tolist(), strict=True):
        stats = None if sketch is None else sketch.numbers.get(kind)
        count = 0 if stats is None else stats.count
        odd = 0 if stats is None else count - stats.num_finite
        # Numbers of one record are dependent: scaled to one number per record.
        scale = min(1.0, num_records / count) if count else 0.0
        rows.append((odd * scale, (count - odd) * scale))
    table = np.array(rows, np.float64)
    test = Comparison("share", _MIN_SHARE, shards.log_alpha, _MAX_PER_FEATURE)
    for outlier in find_outliers(table, table.sum(axis=1), test):
        own, others = _percent(outlier.own[0]), _percent(outlier.others[0])
        detail = f"{own} of the numbers are NaN or infinite, {others} in other shards"
        yield _Deviation("values", outlier.row, detail, others, own)


def _numbers(shards: _Shards, kind: Kind) -> Iterator[_Deviation]:
    """Yield shards with deviating distributions of numbers, by Kolmogorov-Smirnov distance."""
    stats = [None if sketch is None else sketch.numbers.get(kind) for sketch in shards.sketches]
    whole = ValueHistogram(kind == "float")  # has the resolution of all shards together
    for found in stats:
        if found is not None:
            whole.merge(found.histogram)
    table = np.zeros((len(stats), whole.keys.size))
    for row, found in enumerate(stats):
        if found is not None:
            keys, counts = found.histogram.at_shift(whole.shift)
            table[row, np.searchsorted(whole.keys, keys)] = counts
    sizes = np.minimum(shards.num_records, table.sum(axis=1))
    test = Comparison("order", _MIN_VALUES, shards.log_alpha, _MAX_PER_FEATURE)
    for outlier in find_outliers(table, sizes, test):
        own = stats[outlier.row]
        assert own is not None
        # The mean of all other shards, including other outliers.
        rest = [s for row, s in enumerate(stats) if s is not None and row != outlier.row]
        count = sum(s.num_finite for s in rest)
        mean = sum(s.mean * s.num_finite for s in rest) / max(1, count)
        detail = (
            f"different distribution (distance {outlier.distance:.2f}): mean {_number(own.mean)}, "
            f"{_number(mean)} in other shards"
        )
        yield _Deviation("values", outlier.row, detail, _number(mean), _number(own.mean))


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _number(value: float) -> str:
    return f"{value:.6g}"


def _list(shares: NDArray[np.float64], names: Sequence[str]) -> str:
    found = [(share, name) for share, name in zip(shares.tolist(), names, strict=True) if share]
    return ", ".join(f"{_percent(share)} {name}" for share, name in sorted(found, reverse=True))
