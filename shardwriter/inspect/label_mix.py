"""The label mix of a set: how often each label is there, and whether every shard has its share.

It comes from the records, or from a manifest alone. A shard deviates in a label where dealing the
records out at random would hardly ever give it so many or so few (:mod:`.label_tests`), and the
difference is large enough to matter.
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

# Were records dealt to shards without regard to their labels? Tests without scipy.
#
# If they were, then a shard's records are a sample without replacement, and how many of them have a
# label follows a hypergeometric distribution, however small the numbers are. Two questions are
# asked:
#
# - of every cell (a label in a shard): its tail, times the number of all cells (Bonferroni), so
#   that of a whole table that was dealt at random one in a thousand raises an alarm;
# - of the whole table: Pearson's chi-square with its exact mean and variance for given margins
#   (Dawson 1954), which hold for cells far below 1 as well, where the chi-square distribution does
#   not; the tail is that of a gamma distribution with these moments, by the cube root of Wilson and
#   Hilferty.

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


_MAX_TESTED: Final = 20_000_000  # shards x labels that are tested
_MAX_TOLD: Final = 100  # deviating cells that are told of


@dataclass(frozen=True)
class LabelTable:
    """Counts of C labels in N shards.

    Attributes:
        feature: Name of the feature.
        source: ``records`` or ``manifest``.
        names: The C labels as they are spelled, in order.
        counts: ``int64[C]``: how often each is there.
        num_labelled: ``int64[N]``: records of each shard with a label; None where unknown.
        num_unlabelled: Records without one.
        rows: N columns of labels' numbers and how often the shard has each; None where unknown.
        records: The same in records that have the label; None where unknown.
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
        """N; 0 where nothing is known of shards."""
        return 0 if self.rows is None else len(self.rows)

    @property
    def num_cells(self) -> int:
        """N x C."""
        return self.num_shards * len(self.names)

    def dense_records(self) -> Iterator[NDArray[np.int64]]:
        """Yield ``int64[C]`` for each shard: its records with each label."""
        for codes, counts in self.records or ():
            row = np.zeros(len(self.names), np.int64)
            row[codes] = counts
            yield row


def table_of_scans(scans: Sequence[LabelScan]) -> LabelTable | None:
    """Return the counts that scans of the files of a set give, one a shard in their order.

    Returns:
        None where there are no labels, or too many for a label.

    Raises:
        ValueError: The scans are of different features.
    """
    features = {scan.feature for scan in scans}
    if len(features) > 1:
        raise ValueError(f"scans of {len(features)} features: {sorted(features)}")
    names = _in_order(set().union(*(scan.names for scan in scans)))
    if not names or len(names) > MAX_LABELS or any(scan.too_many for scan in scans):
        return None
    places = {name: place for place, name in enumerate(names)}
    rows, records = [], []
    totals = np.zeros(len(names), np.int64)
    for scan in scans:
        codes = np.array([places[name] for name in scan.names], np.int64)
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
    """Return the counts that a manifest has; None where it has none.

    It counts labels and not records, so where some records have several labels nothing can be said
    of how the records with a label were dealt out.
    """
    entry = manifest.labels
    if not entry or not entry["counts"]:
        return None
    names = _in_order(entry["counts"])
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
    """Return the report's ``labels`` of a set; ``{}`` where there is no table.

    Args:
        table: Of :func:`table_of_scans`, with one row for each of ``shards``; or of
            :func:`table_of_manifest`, with one row for each shard index.
        shards: Index and path of the files that are there, as a ShardSet has them.
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
            for cell in here[:_MAX_TOLD]
        ]
    return mix


def _deviating(table: LabelTable) -> tuple[list[Cell], dict[str, Any]] | None:
    """Return the cells that deviate, the worst first; None where that can not be told."""
    if table.records is None or table.num_labelled is None or table.num_shards < 2:
        return None
    if len(table.names) < 2 or table.num_cells > _MAX_TESTED:
        return None
    return deviating_cells(table.dense_records, table.num_labelled)


def initial_dist_text(mix: Mapping[str, Any], max_labels: int = 1000) -> str:
    """Return the label mix as a line of Python, as tf.data's ``rejection_resample`` takes it.

    Labels that are the numbers of classes stand at their places, with 0 for those that no record
    has; others are listed, and a comment names them.
    """
    dist: Mapping[str, float] = mix["initial_dist"]
    places = {_class_number(name): share for name, share in dist.items()}
    if None not in places and max(n for n in places if n is not None) < 2 * len(dist) + 10:
        shares = [places.get(n, 0.0) for n in range(max(n for n in places if n is not None) + 1)]
        comment = f"labels 0 to {len(shares) - 1}"
    else:
        shares = list(dist.values())
        comment = "of " + ", ".join(map(repr, dist))
    if len(shares) > max_labels:
        return f"# initial_dist has {len(shares):,} labels: take it from --json"
    return f"initial_dist = [{', '.join(f'{share:.6g}' for share in shares)}]  # {comment}"


def label_note(mix: Mapping[str, Any]) -> str | None:
    """Return one line that says in which shards the mix is off; None where it is not."""
    if not mix.get("num_deviating"):
        return None
    worst = mix["deviating"][0]
    places = mix["num_deviating"]
    rest = "" if places == 1 else f", and {places - 1:,} more such place{'s' * (places > 2)}"
    return (
        f"labels are not dealt evenly: {worst['path']} has label {worst['label']!r} of "
        f"{mix['feature']!r} in {worst['count']:,} records, {worst['expected']:,.1f} would be its "
        f"share{rest}; `shardwriter write --shuffle --seed 0` writes every shard with the same mix"
    )


def _in_order(names: Any) -> list[str]:
    """Sort labels: numbers by size, then the others as text."""

    def key(name: str) -> tuple[bool, float, str]:
        try:
            number = float(name)
        except ValueError:
            return True, 0.0, name
        return (False, number, name) if number == number else (True, 0.0, name)

    return sorted(names, key=key)


def _class_number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None
