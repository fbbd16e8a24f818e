"""The label mix of a set: counts of each label, and shards in which they deviate.

Counts come from the records or from a manifest. Under random assignment, the number of a shard's
records with a label follows a hypergeometric distribution. Two tests, without scipy:

- Every cell (a label in a shard): its tail probability times the number of cells (Bonferroni), so
  one in a thousand random tables raises an alarm. A deviating cell must also be off by a factor of
  1.25.
- The whole table: Pearson's chi-square with its exact mean and variance for given margins (Dawson
  1954), which also hold for small counts; the tail is that of a gamma distribution with these
  moments (cube root approximation of Wilson and Hilferty).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import Manifest
from shardwriter.inspect.label_scan import LabelScan
from shardwriter.schema import MAX_CELLS, MAX_LABELS

_ALPHA: Final = 1e-3  # share of random tables that raise an alarm
_MIN_RATIO: Final = 1.25  # a smaller ratio, or its inverse, does not affect training
_MAX_CELLS: Final = 10_000  # deviating cells for which the exact tail is computed


@dataclass(frozen=True)
class Cell:
    """A label with a deviating count in a shard.

    Attributes:
        shard: Row of the table.
        label: Column of the table.
        count: Records of the shard that have the label.
        expected: The expected count under random assignment.
        p_value: Two-sided p-value under random assignment, not corrected for the number of cells.
    """

    shard: int
    label: int
    count: int
    expected: float
    p_value: float


def deviating_cells(
    rows: Callable[[], Iterator[NDArray[np.int64]]], num_labelled: NDArray[np.int64]
) -> tuple[list[Cell], dict[str, Any]]:
    """Return the deviating cells of a table of records by shard and label.

    Args:
        rows: Returns an iterator of ``int64[C]`` per shard: records with each label. It is called
            several times, so a large table need not be in memory.
        num_labelled: ``int64[N]``: labelled records of each shard.

    Returns:
        The deviating cells, least likely first; and the test of the whole table as JSON, empty if
        records have several labels.
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
    """Yield shard, label, count and the shard's labelled records for each cell in ``found``."""
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
    """Return ``float64[C]``: an upper bound of the log of each count's tail probability.

    Hoeffding (1963): exp(-n KL(count / n || share)), for draws with and without replacement.
    """
    found = counts / draws
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = np.where(counts > 0, found * np.log(found / shares), 0.0)
        rest = np.where(found < 1, (1 - found) * np.log((1 - found) / (1 - shares)), 0.0)
    bound: NDArray[np.float64] = -draws * (hits + rest)
    return np.nan_to_num(bound, nan=0.0, posinf=0.0)


def hypergeometric_p_value(count: int, draws: int, with_label: int, total: int) -> float:
    """Return the two-sided p-value of a count under a hypergeometric distribution.

    Args:
        count: Drawn records that have the label.
        draws: Drawn records, without replacement.
        with_label: Records that have the label.
        total: All records.
    """
    least, most = max(0, draws + with_label - total), min(draws, with_label)
    step = 1 if count * total >= draws * with_label else -1
    log_first = (
        _log_choose(with_label, count)
        + _log_choose(total - with_label, draws - count)
        - _log_choose(total, draws)
    )
    # Away from the mode the terms decrease, eventually geometrically.
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
    """Return the chi-square test of a table with these margins; empty if there is no variance."""
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

    Both are 0 if there is only one row or column, or fewer than 4 records.
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
    """Return P(X >= x) of a gamma distribution of scale 1, approximated by Wilson and Hilferty."""
    if x <= 0:
        return 1.0
    z = ((x / shape) ** (1 / 3) - (1 - 1 / (9 * shape))) * math.sqrt(9 * shape)
    return 0.5 * math.erfc(z / math.sqrt(2))


_MAX_TESTED: Final = 20_000_000  # shards x labels that are tested
_MAX_LISTED: Final = 100  # deviating cells that are listed


@dataclass(frozen=True)
class LabelTable:
    """Counts of C labels in N shards.

    Attributes:
        feature: Name of the feature.
        source: ``records`` or ``manifest``.
        names: The C labels as text, sorted.
        counts: ``int64[C]``: count of each label.
        num_labelled: ``int64[N]``: records of each shard with a label; None if unknown.
        num_unlabelled: Records without a label.
        rows: Per shard, positions in ``names`` and counts of these labels; None if unknown.
        records: The same in records that have the label; None if unknown.
    """

    feature: str
    source: str
    names: Sequence[str]
    counts: NDArray[np.int64]
    num_labelled: NDArray[np.int64] | None
    num_unlabelled: int
    rows: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]] | None
    records: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]] | None

    @property
    def num_shards(self) -> int:
        """N; 0 if counts per shard are unknown."""
        return 0 if self.rows is None else len(self.rows)

    @property
    def num_cells(self) -> int:
        """N x C."""
        return self.num_shards * len(self.names)

    def dense_records(self) -> Iterator[NDArray[np.int64]]:
        """Yield ``int64[C]`` per shard: its records with each label."""
        for codes, counts in self.records or ():
            row = np.zeros(len(self.names), np.int64)
            row[codes] = counts
            yield row


def table_of_scans(scans: Sequence[LabelScan]) -> LabelTable | None:
    """Return the label counts of the scans of a set, one scan per shard, in order.

    Returns:
        None if there are no labels, or more than `MAX_LABELS`.

    Raises:
        ValueError: The scans are of different features.
    """
    features = {scan.feature for scan in scans}
    if len(features) > 1:
        raise ValueError(f"scans of {len(features)} features: {sorted(features)}")
    names = _sorted_labels(set().union(*(scan.names for scan in scans)))
    if not names or len(names) > MAX_LABELS or any(scan.too_many for scan in scans):
        return None
    codes_of = {name: code for code, name in enumerate(names)}
    rows, records = [], []
    totals = np.zeros(len(names), np.int64)
    for scan in scans:
        codes = np.array([codes_of[name] for name in scan.names], np.int64)
        rows.append((codes, scan.counts))
        records.append((codes, scan.num_with))
        totals[codes] += rows[-1][1]
    return LabelTable(
        features.pop(),
        "records",
        names,
        totals,
        np.array([scan.num_labelled for scan in scans], np.int64),
        sum(scan.num_unlabelled for scan in scans),
        rows,
        records,
    )


def table_of_manifest(manifest: Manifest) -> LabelTable | None:
    """Return the label counts of a manifest; None if it has none.

    A manifest counts labels, not records. If records have several labels, the counts of records per
    shard are unknown.
    """
    entry = manifest.labels
    if not entry or not entry["counts"]:
        return None
    names = _sorted_labels(entry["counts"])
    totals = np.array([entry["counts"][name] for name in names], np.int64)
    feature = manifest.schema.get("features", {}).get(entry["feature"])
    present = manifest.num_records
    if feature is not None:
        present = feature["present"] - feature["unset"]
    total = int(totals.sum())
    num_unlabelled = max(0, manifest.num_records - min(present, total))
    shards = entry.get("shards")
    if shards is None:
        return LabelTable(
            entry["feature"], "manifest", names, totals, None, num_unlabelled, None, None
        )
    cells = np.array([shards[name] for name in names], np.int64)
    rows = [(np.flatnonzero(row), row[np.flatnonzero(row)]) for row in cells.T]
    in_shard = cells.sum(axis=0)
    is_single = total <= present and all(
        count <= shard.num_records
        for count, shard in zip(in_shard.tolist(), manifest.shards, strict=True)
    )
    return LabelTable(
        entry["feature"],
        "manifest",
        names,
        totals,
        in_shard if is_single else None,
        num_unlabelled,
        rows,
        rows if is_single else None,
    )


def label_mix(table: LabelTable | None, shards: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """Return the report's ``labels`` of a set; ``{}`` without a table.

    Args:
        table: From :func:`table_of_scans`, one row per entry of ``shards``; or from
            :func:`table_of_manifest`, one row per shard index.
        shards: Index and path of the existing files, as in a ShardSet.
    """
    if table is None:
        return {}
    total = int(table.counts.sum())
    mix: dict[str, Any] = {
        "counts": dict(zip(table.names, table.counts.tolist(), strict=True)),
        "deviating": [],
        "feature": table.feature,
        "initial_dist": {
            name: count / total
            for name, count in zip(table.names, table.counts.tolist(), strict=True)
        },
        "num_deviating": 0,
        "num_unlabelled": table.num_unlabelled,
        "source": table.source,
    }
    if table.rows is not None and table.num_cells <= MAX_CELLS:
        cells = np.zeros((len(table.names), table.num_shards), np.int64)
        for shard, (codes, counts) in enumerate(table.rows):
            cells[codes, shard] = counts
        mix["shards"] = dict(zip(table.names, cells.tolist(), strict=True))
    files = dict(shards) if table.source == "manifest" else dict(enumerate(p for _, p in shards))
    found = _deviating(table)
    if found is not None:
        cells_found, mix["evenness"] = found
        here = [cell for cell in cells_found if cell.shard in files]
        mix["num_deviating"] = len(here)
        mix["deviating"] = [
            {
                "count": cell.count,
                "expected": cell.expected,
                "label": table.names[cell.label],
                "p_value": cell.p_value,
                "path": files[cell.shard],
                "ratio": cell.count / cell.expected,
                "shard_index": cell.shard if table.source == "manifest" else shards[cell.shard][0],
            }
            for cell in here[:_MAX_LISTED]
        ]
    return mix


def _deviating(table: LabelTable) -> tuple[list[Cell], dict[str, Any]] | None:
    """Return the deviating cells and the test of the table; None if it can not be tested."""
    if table.records is None or table.num_labelled is None or table.num_shards < 2:
        return None
    if len(table.names) < 2 or table.num_cells > _MAX_TESTED:
        return None
    return deviating_cells(table.dense_records, table.num_labelled)


def initial_dist_text(mix: Mapping[str, Any], max_labels: int = 1000) -> str:
    """Return the label mix as a line of Python for tf.data's ``rejection_resample``.

    Class numbers are positions in the list, with 0 for classes without records; other labels are
    named in a comment.
    """
    dist: Mapping[str, float] = mix["initial_dist"]
    by_class = {_class_number(name): share for name, share in dist.items()}
    classes = [number for number in by_class if number is not None]
    if None not in by_class and max(classes) < 2 * len(dist) + 10:
        shares = [by_class.get(number, 0.0) for number in range(max(classes) + 1)]
        comment = f"labels 0 to {len(shares) - 1}"
    else:
        shares = list(dist.values())
        comment = "of " + ", ".join(map(repr, dist))
    if len(shares) > max_labels:
        return f"# initial_dist has {len(shares):,} labels: take it from --json"
    return f"initial_dist = [{', '.join(f'{share:.6g}' for share in shares)}]  # {comment}"


def label_note(mix: Mapping[str, Any]) -> str | None:
    """Return one line about the worst deviation of the label mix; None if there is none."""
    if not mix.get("num_deviating"):
        return None
    worst = mix["deviating"][0]
    num_more = mix["num_deviating"] - 1
    rest = f" (and {num_more:,} more deviation{'s' * (num_more > 1)})" if num_more else ""
    return (
        f"labels are not spread evenly: {worst['path']} has label {worst['label']!r} of "
        f"{mix['feature']!r} in {worst['count']:,} records, expected {worst['expected']:,.1f}"
        f"{rest}; `shardwriter write --shuffle --seed 0` writes every shard with the same mix"
    )


def _sorted_labels(names: Any) -> list[str]:
    """Return labels sorted: numbers by value, then the others as text."""

    def key(name: str) -> tuple[bool, float, str]:
        try:
            number = float(name)
        except ValueError:
            return True, 0.0, name
        return (False, number, name) if number == number else (True, 0.0, name)

    return sorted(names, key=key)


def _class_number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None
