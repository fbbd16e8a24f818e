"""Shuffle score: the share of neighbouring records with the same label, and its expected value.

Two reading orders are scored: shard after shard, and one record of each shard in turn (interleaved,
which for round-robin shards is the order of writing). Without labels only the manifest's ``order``
is known.

- For n records in random order, of which n_i have label i, mean and variance of the number of runs
  of equal labels are known (Mood 1940); equal neighbours are n minus the runs. If only a part of an
  order is known, labels are compared with independent draws with the shares of the whole set.
- Labels are also compared at larger distances (the period), and distinct labels are counted in
  windows of a batch's size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.inspect.label_scan import NO_LABEL, LabelScan

WINDOW: Final = 256  # records, a typical batch
_MIN_WINDOW: Final = 16
_MIN_WINDOWS: Final = 4
_MAX_WINDOWED: Final = 1 << 20  # records in windows
_MAX_INTERLEAVED: Final = 1 << 22  # records of the interleaved order
_MAX_PERIOD: Final = 2048
_MAX_COMPARED: Final = 1 << 16  # records searched for a period
_MAX_MIXED: Final = 1 << 18  # records from which the shuffle buffer is computed
_MIXED_EXCESS: Final = 0.05  # of the way from random to sorted
_PERIOD_DEVIATIONS: Final = 8.0  # standard deviations: thousands of periods are tried


@dataclass(frozen=True)
class Windows:
    """Distinct labels in consecutive windows.

    Attributes:
        size: Records in a window.
        num_windows: Number of windows.
        distinct: Mean number of distinct labels.
        expected: Expected number under random order.
        deviation: Lower bound of how far ``distinct`` is below ``expected``, in standard
            deviations.
    """

    size: int
    num_windows: int
    distinct: float
    expected: float
    deviation: float


@dataclass(frozen=True)
class Buffer:
    """A shuffle buffer.

    Attributes:
        num_records: Its size.
        is_enough: Whether this size mixes the order; otherwise it must be larger.
    """

    num_records: int
    is_enough: bool


@dataclass(frozen=True)
class Neighbours:
    """Measures of a reading order, of records with a label.

    Attributes:
        num_labels: Distinct labels of the set.
        num_pairs: Pairs of neighbours.
        num_same: Pairs with the same label.
        expected: Expected number of such pairs under random order.
        std: Its standard deviation.
        is_sorted: Whether every label is one run (in every file, for shard after shard).
        period: Distance at which labels repeat; None if they do not.
        windows: Distinct labels in windows; None if there are too few records.
        buffer: The shuffle buffer that mixes this order; None if it is mixed already.
    """

    num_labels: int
    num_pairs: int
    num_same: int
    expected: float
    std: float
    is_sorted: bool
    period: int | None
    windows: Windows | None
    buffer: Buffer | None

    @property
    def same(self) -> float:
        """The share of pairs with the same label."""
        return self.num_same / self.num_pairs if self.num_pairs else 0.0

    @property
    def expected_same(self) -> float:
        """The expected share under random order."""
        return self.expected / self.num_pairs if self.num_pairs else 0.0

    @property
    def run_length(self) -> float:
        """Mean length of runs of one label."""
        return (self.num_pairs + 1) / (self.num_pairs + 1 - self.num_same)


@dataclass(frozen=True)
class _Labels:
    """The labels of a set.

    Attributes:
        counts: ``int64[C]``: records with each label as their first.
        codes: Per scan, the position in ``counts`` of each of its labels.
    """

    counts: NDArray[np.int64]
    codes: Sequence[NDArray[np.int64]]


def sequential_order(scans: Sequence[LabelScan]) -> Neighbours:
    """Return the measures of reading one file after the other.

    Args:
        scans: One per file, none with ``too_many`` labels.
    """
    labels = _labels_of(scans)
    num_records = sum(scan.num_labelled for scan in scans)
    num_same = sum(scan.num_same for scan in scans)
    ends = [
        (codes[scan.first], codes[scan.last])
        for scan, codes in zip(scans, labels.codes, strict=True)
        if scan.first is not None and scan.last is not None
    ]
    num_same += sum(int(a[1] == b[0]) for a, b in pairwise(ends))
    num_changes = sum(scan.num_labelled - 1 - scan.num_same for scan in scans if scan.num_labelled)
    fewest = sum(int((scan.num_first > 0).sum()) - 1 for scan in scans if scan.num_labelled)
    parts = [_sequence(scan, codes) for scan, codes in zip(scans, labels.codes, strict=True)]
    sequence = _without_unlabelled(np.concatenate([np.empty(0, np.int64), *parts]))
    mean, std = runs_moments(labels.counts.tolist())
    # Within a file: equal files are not a period.
    period = find_period(_without_unlabelled(max(parts, key=len, default=sequence)), labels.counts)
    return Neighbours(
        int(np.count_nonzero(labels.counts)),
        max(0, num_records - 1),
        num_same,
        mean,
        std,
        num_changes == fewest,
        period,
        _windows(sequence, labels.counts),
        shuffle_buffer(sequence, labels.counts) if num_same > mean + std else None,
    )


def interleaved_order(scans: Sequence[LabelScan]) -> Neighbours:
    """Return the measures of reading one record of each file in turn, as far as labels are known.

    Files that have ended are skipped, as in tf.data's ``interleave``.

    Args:
        scans: One per file, none with ``too_many`` labels.
    """
    labels = _labels_of(scans)
    sequences = [_sequence(scan, codes) for scan, codes in zip(scans, labels.codes, strict=True)]
    known = [len(s) for s, scan in zip(sequences, scans, strict=True) if len(s) < scan.num_records]
    depth = min(known, default=max(map(len, sequences), default=0))
    depth = min(depth, max(1, _MAX_INTERLEAVED // max(1, len(scans))))
    table = np.full((depth, len(scans)), NO_LABEL, np.int64)
    for column, sequence in enumerate(sequences):
        table[: len(sequence), column] = sequence[:depth]
    sequence = _without_unlabelled(table.ravel())
    num_same = int(np.count_nonzero(sequence[1:] == sequence[:-1]))
    if len(sequence) == int(labels.counts.sum()):
        mean, std = runs_moments(labels.counts.tolist())
    else:
        mean, std = draw_moments(labels.counts, max(0, len(sequence) - 1))
    num_changes = max(0, len(sequence) - 1) - num_same
    is_sorted = num_changes == len(np.unique(sequence)) - 1
    return Neighbours(
        int(np.count_nonzero(labels.counts)),
        max(0, len(sequence) - 1),
        num_same,
        mean,
        std,
        is_sorted,
        find_period(sequence, labels.counts),
        _windows(sequence, labels.counts),
        shuffle_buffer(sequence, labels.counts) if num_same > mean + std else None,
    )


def _labels_of(scans: Sequence[LabelScan]) -> _Labels:
    code_of: dict[str, int] = {}
    codes = [
        np.array([code_of.setdefault(name, len(code_of)) for name in scan.names], np.int64)
        for scan in scans
    ]
    counts = np.zeros(len(code_of), np.int64)
    for scan, numbers in zip(scans, codes, strict=True):
        counts[numbers] += scan.num_first
    return _Labels(counts, codes)


def _sequence(scan: LabelScan, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = np.append(codes, NO_LABEL)[scan.sequence]
    return numbers


def _without_unlabelled(sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    labelled: NDArray[np.int64] = sequence[sequence != NO_LABEL]
    return labelled


def runs_moments(counts: Sequence[int]) -> tuple[float, float]:
    """Return mean and standard deviation of the number of equal neighbours in random order.

    Args:
        counts: Records with each label.
    """
    n = sum(counts)
    if n < 2:
        return 0.0, 0.0
    squares, cubes = sum(c * c for c in counts), sum(c * c * c for c in counts)
    variance = squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3
    return (squares - n) / n, math.sqrt(max(0, variance) / (n * n * (n - 1)))


def draw_moments(counts: NDArray[np.int64], num_pairs: int) -> tuple[float, float]:
    """Return mean and standard deviation of the number of equal pairs among independent draws."""
    total = int(counts.sum())
    if not total:
        return 0.0, 0.0
    shares = counts / total
    squares, cubes = float((shares**2).sum()), float((shares**3).sum())
    variance = num_pairs * (squares - squares**2 + 2 * (cubes - squares**2))
    return num_pairs * squares, math.sqrt(max(0.0, variance))


def find_period(sequence: NDArray[np.int64], counts: NDArray[np.int64]) -> int | None:
    """Return the smallest distance at which labels repeat; None if there is none.

    At this distance labels are equal far more often than at distance 1, so sorted records have no
    period.
    """
    if len(sequence) < 2 or np.count_nonzero(counts) < 2:
        return None
    labels = sequence[:_MAX_COMPARED].astype(np.int32)
    next_to = float((labels[1:] == labels[:-1]).mean())
    for distance in range(2, min(_MAX_PERIOD, len(labels) // 4) + 1):
        num_pairs = len(labels) - distance
        num_same = int(np.count_nonzero(labels[distance:] == labels[:-distance]))
        mean, std = draw_moments(counts, num_pairs)
        usual = max(next_to, mean / num_pairs)
        if 2 * num_same > (1 + usual) * num_pairs and num_same >= mean + _PERIOD_DEVIATIONS * (
            std + 1
        ):
            return distance
    return None


def _windows(sequence: NDArray[np.int64], counts: NDArray[np.int64]) -> Windows | None:
    size = min(WINDOW, len(sequence) // _MIN_WINDOWS)
    if size < _MIN_WINDOW:
        return None
    num_windows = min(len(sequence), _MAX_WINDOWED) // size
    rows = np.sort(sequence[: num_windows * size].reshape(num_windows, size), axis=1)
    distinct = 1 + int(np.count_nonzero(rows[:, 1:] != rows[:, :-1])) / num_windows
    missing = (1 - counts / counts.sum()) ** size
    expected = float((1 - missing).sum())
    # An upper bound: occurrences of labels are independent or negatively correlated.
    std = math.sqrt(float((missing * (1 - missing)).sum()) / num_windows)
    below = expected - distinct
    return Windows(size, num_windows, distinct, expected, below / std if std else 0.0)


def shuffle_buffer(sequence: NDArray[np.int64], counts: NDArray[np.int64]) -> Buffer:
    """Return the shuffle buffer that makes this order nearly random.

    A buffer of n records yields pairs from n consecutive records. So the share of equal pairs among
    n consecutive records is computed, with n doubling up to a quarter of the records.
    """
    sequence = sequence[:_MAX_MIXED]
    shares = counts / counts.sum()
    random = float((shares**2).sum())
    limit = random + min(_MIXED_EXCESS, random / 2) * (1 - random)
    size = _MIN_WINDOW
    while size <= len(sequence) // _MIN_WINDOWS:
        num_windows = len(sequence) // size
        rows = np.sort(sequence[: num_windows * size].reshape(num_windows, size), axis=1)
        is_first = np.ones(rows.shape, bool)
        is_first[:, 1:] = rows[:, 1:] != rows[:, :-1]
        runs = np.diff(np.flatnonzero(is_first.ravel()), append=rows.size)
        if float((runs * (runs - 1)).sum()) <= limit * num_windows * size * (size - 1):
            return Buffer(size, is_enough=True)
        size *= 2
    return Buffer(len(sequence) // _MIN_WINDOWS, is_enough=False)


SEQUENTIAL: Final = "shard-after-shard"
INTERLEAVED: Final = "interleaved"

_UNKNOWN: Final = ("unknown", SEQUENTIAL)
_MIN_DEVIATIONS: Final = 6.0  # standard deviations
_MIN_EXCESS: Final = 0.1  # (same - expected) / (1 - expected): 0 is random, 1 is sorted
_MIN_RATIO_RARE: Final = 2.0  # same / expected, for many labels, where the excess is small
_MIN_EXCESS_RARE: Final = 0.005  # and then the excess is at least this
_MAX_RATIO_BELOW: Final = 0.8  # of the expected value
_MIN_CRAMERS_V: Final = 0.1  # of the table of shards and labels
_MAX_P_VALUE: Final = 1e-6  # of the same table
_WRITE_SHUFFLED: Final = "`shardwriter write --shuffle --seed 0`"


def shuffle_by_label(
    scans: Sequence[LabelScan], mix: Mapping[str, Any], *, round_robin: bool
) -> dict[str, Any]:
    """Return the report's ``shuffle`` from the labels of the records.

    Args:
        scans: One per existing shard, in order.
        mix: The label mix from :func:`~shardwriter.inspect.label_mix.label_mix`.
        round_robin: Whether the shards are known to be assigned round-robin.
    """
    feature = scans[0].feature if scans else ""
    if any(scan.too_many for scan in scans):
        return _unknown_shuffle("label", f"{feature!r} has too many values for a label")
    if not any(scan.num_labelled for scan in scans):
        return _unknown_shuffle("label", f"no record has a label in {feature!r}")
    orders = {SEQUENTIAL: sequential_order(scans)}
    if len(scans) > 1:
        orders[INTERLEAVED] = interleaved_order(scans)
    entries = [_order_json(name, order) for name, order in orders.items()]
    verdicts = {entry["order"]: entry["verdict"] for entry in entries}
    is_uneven = shards_differ(mix)
    verdict, judged = _overall(verdicts, orders, is_uneven, round_robin)
    chosen = next(entry for entry in entries if entry["order"] == judged)
    period = next((o.period for o in reversed(orders.values()) if o.period is not None), None)
    if verdict == "periodic":
        detail, remedy = _periodic_text(len(scans), period, is_uneven)
    else:
        detail, remedy = chosen["detail"], None
        if verdict != verdicts[judged]:
            detail = "shards have labels in different shares"
            remedy = f"{_WRITE_SHUFFLED} writes them mixed"
        elif verdict in ("sorted", "clustered"):
            remedy = _remedy(orders[judged], verdicts, judged, len(scans))
    numbers = ("num_pairs", "same_neighbours", "expected_same", "ratio")
    return {
        "by": "label",
        "detail": detail,
        "feature": feature,
        "order": judged,
        "orders": entries,
        "period": period,
        "remedy": remedy,
        "verdict": verdict,
        **{key: chosen[key] for key in numbers},
    }


def shuffle_by_order(
    order: Mapping[str, Any] | None, mix: Mapping[str, Any], num_shards: int
) -> dict[str, Any]:
    """Return the report's ``shuffle`` from the manifest, without reading records.

    Args:
        order: The manifest's ``order``; None for a set without a manifest.
        mix: The label mix of the manifest, or ``{}``.
        num_shards: N.
    """
    if shards_differ(mix):
        # Round-robin assignment spreads slow changes over all shards, so this must be a period.
        detail, remedy = _periodic_text(num_shards, None, is_uneven=True)
        return {**_unknown_shuffle("order", detail), "remedy": remedy, "verdict": "periodic"}
    measure = f"`shard-stats PATH --label {mix.get('feature') or 'FEATURE'}` measures it"
    if order is None:
        detail = "the order of records is unknown without a manifest"
        return {**_unknown_shuffle("order", detail), "remedy": measure}
    for key, text in (("shuffle", "shuffled"), ("key", "ordered by hashes of their keys")):
        if order.get(key):
            detail = f"records are {text}, with seed {order[key].get('seed')}"
            return {**_unknown_shuffle("order", detail), "verdict": "shuffled"}
    detail = "records are in source order; how well that is mixed was not measured"
    return {**_unknown_shuffle("order", detail), "remedy": measure}


def shards_differ(mix: Mapping[str, Any]) -> bool:
    """Return whether the shards of a label mix have labels in different shares."""
    evenness = mix.get("evenness") or {"cramers_v": 0.0, "p_value": 1.0}
    is_uneven = evenness["p_value"] < _MAX_P_VALUE and evenness["cramers_v"] >= _MIN_CRAMERS_V
    return bool(mix.get("num_deviating")) or is_uneven


def shuffle_note(shuffle: Mapping[str, Any]) -> str | None:
    """Return one line about a bad order and what to do; None if the order is fine or unknown."""
    if shuffle.get("verdict") not in ("sorted", "clustered", "periodic") or not shuffle["remedy"]:
        return None
    return f"{shuffle['detail']}; {shuffle['remedy']}"


def _unknown_shuffle(by: str, detail: str) -> dict[str, Any]:
    return {
        "by": by,
        "detail": detail,
        "expected_same": None,
        "feature": None,
        "num_pairs": 0,
        "order": None,
        "orders": [],
        "period": None,
        "ratio": None,
        "remedy": None,
        "same_neighbours": None,
        "verdict": "unknown",
    }


def _order_json(name: str, order: Neighbours) -> dict[str, Any]:
    verdict, detail = _judge(order)
    windows = order.windows
    return {
        "detail": detail,
        "expected_same": order.expected_same,
        "num_pairs": order.num_pairs,
        "order": name,
        "period": order.period,
        "ratio": order.same / order.expected_same if order.expected_same else None,
        "run_length": order.run_length,
        "same_neighbours": order.same,
        "verdict": verdict,
        "window": None
        if windows is None
        else {
            "distinct": windows.distinct,
            "expected": windows.expected,
            "num_windows": windows.num_windows,
            "size": windows.size,
        },
    }


def _judge(order: Neighbours) -> tuple[str, str]:
    """Return the verdict on one reading order, and its reason."""
    same, expected = order.same, order.expected_same
    noise = _MIN_DEVIATIONS * (order.std + 1)
    score = f"{same:.1%} of neighbours have the same label, {expected:.1%} expected at random"
    if order.num_labels < 2:
        return "unknown", "all records have one label"
    excess = (same - expected) / (1 - expected)
    is_rare = excess >= _MIN_EXCESS_RARE and same >= _MIN_RATIO_RARE * expected
    if order.num_same >= order.expected + noise and (excess >= _MIN_EXCESS or is_rare):
        if order.is_sorted:
            return "sorted", f"records are sorted by label: {score}"
        return "clustered", f"records are clustered by label: {score}"
    windows = order.windows
    if (
        windows is not None
        and windows.deviation >= _MIN_DEVIATIONS
        and windows.distinct < _MAX_RATIO_BELOW * windows.expected
    ):
        return "clustered", (
            f"{windows.size:,} consecutive records have {windows.distinct:,.1f} distinct labels, "
            f"{windows.expected:,.1f} expected at random"
        )
    if order.period is not None:
        return "periodic", f"labels repeat every {order.period:,} records"
    if order.num_pairs + 1 - order.num_labels < order.expected + noise:
        return "unknown", f"too few records per label ({order.num_pairs + 1:,} records)"
    if order.num_same <= order.expected - noise and same < _MAX_RATIO_BELOW * expected:
        return "periodic", f"labels alternate: {score}"
    return "shuffled", score


def _overall(
    verdicts: Mapping[str, str],
    orders: Mapping[str, Neighbours],
    is_uneven: bool,
    round_robin: bool,
) -> tuple[str, str]:
    """Return the verdict on the set, and the reading order that it is about."""
    if is_uneven and round_robin:
        return "periodic", SEQUENTIAL
    for verdict in ("sorted", "clustered", "periodic"):
        found = [name for name, of_order in verdicts.items() if of_order == verdict]
        if found:
            return verdict, max(found, key=lambda name: orders[name].same)
    if is_uneven:
        return "clustered", SEQUENTIAL
    return next(((v, name) for name, v in verdicts.items() if v == "shuffled"), _UNKNOWN)


def _remedy(order: Neighbours, verdicts: Mapping[str, str], judged: str, num_shards: int) -> str:
    remedy = f"{_WRITE_SHUFFLED} writes them mixed"
    if judged == SEQUENTIAL and verdicts.get(INTERLEAVED) in ("shuffled", "periodic"):
        return (
            f"{remedy}; so does reading all {num_shards:,} shards at once "
            f"(interleave with cycle_length={num_shards})"
        )
    if order.buffer is None:
        return remedy
    reading = "one shard after the other" if judged == SEQUENTIAL else "all shards in turn"
    least = "at least" if order.buffer.is_enough else "more than"
    return (
        f"{remedy}; otherwise use a shuffle buffer of {least} {order.buffer.num_records:,} records "
        f"when reading {reading}"
    )


def _periodic_text(num_shards: int, period: int | None, is_uneven: bool) -> tuple[str, str | None]:
    repeat = "" if period is None else f" every {period:,} records"
    if not is_uneven:
        return f"labels repeat{repeat}; every shard has the same label mix", None
    factor = period if period is not None and math.gcd(period, num_shards) > 1 else num_shards
    better = next(n for n in count(num_shards + 1) if math.gcd(n, factor) == 1)
    return (
        f"labels repeat{repeat} in step with the {num_shards:,} shards, so each shard has only "
        "some of them",
        f"{_WRITE_SHUFFLED} mixes them; or choose a number of shards that shares no divisor with "
        f"the period, such as {better:,}; until then read all {num_shards:,} shards at once "
        f"(interleave with cycle_length={num_shards})",
    )
