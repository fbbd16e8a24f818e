"""Shuffle quality: do neighbours that are read have no more in common than any two records?

Two orders of reading are judged: one shard after the other, and a record of each shard in turn,
which for shards that were dealt round-robin is the order in which they were written. Without labels
only the manifest can tell what was done to the order of the source.
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

# How often neighbours have the same label, against records in random order.
#
# Of n records in random order, of which n_i have label i, the number of runs of equal labels has a
# known mean and variance (Mood 1940); neighbours that are the same are n less the runs. That judges
# an order that is known whole. Of reading several files in turn often only the beginning is known;
# then the labels are held against independent draws with the shares of the whole set.
#
# Neighbours alone do not show what comes back after a while: so the labels are compared with those
# a few records on as well (the period), and different labels are counted in windows of a batch's
# size.

WINDOW: Final = 256  # records, a usual batch
_MIN_WINDOW: Final = 16
_MIN_WINDOWS: Final = 4
_MAX_WINDOWED: Final = 1 << 20  # records in windows
_MAX_INTERLEAVED: Final = 1 << 22  # records read in turn
_MAX_PERIOD: Final = 2048
_MAX_COMPARED: Final = 1 << 16  # records looked at for a period
_MAX_MIXED: Final = 1 << 18  # and for how many have to be mixed
_NEARLY: Final = 0.05  # of the way from random to sorted
_SURE_NEIGHBOURS: Final = 8.0  # standard deviations: thousands of periods are tried


@dataclass(frozen=True)
class Windows:
    """Different labels in windows that follow each other.

    Attributes:
        size: Records in a window.
        num_windows: How many were looked at.
        distinct: Mean number of different labels.
        expected: Their number under random order.
        deviation: How far below it they are, in standard deviations or less.
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
        num_records: What it holds.
        is_enough: Whether that mixes the order; if not, it has to hold more.
    """

    num_records: int
    is_enough: bool


@dataclass(frozen=True)
class Neighbours:
    """What an order of reading gives; only records with a label count.

    Attributes:
        num_labels: Different labels of the set.
        num_pairs: Neighbours that were compared.
        num_same: Those of one label.
        expected: How many would be the same under random order.
        std: The standard deviation of that.
        is_sorted: Whether every label comes in one run (in every file, where one comes after the
            other).
        period: After how many records labels come again; None where they do not.
        windows: Different labels in windows; None where there are too few records.
        buffer: Records that a shuffle buffer has to hold to mix this order; None where nothing
            has to be mixed.
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
        """The share of pairs that are the same."""
        return self.num_same / self.num_pairs if self.num_pairs else 0.0

    @property
    def expected_same(self) -> float:
        """The share that would be the same under random order."""
        return self.expected / self.num_pairs if self.num_pairs else 0.0

    @property
    def run_length(self) -> float:
        """Mean length of the runs of one label."""
        return (self.num_pairs + 1) / (self.num_pairs + 1 - self.num_same)


@dataclass(frozen=True)
class _Labels:
    """The labels of a set: ``counts`` is ``int64[C]``, a scan's numbers lead to it by ``codes``."""

    counts: NDArray[np.int64]
    codes: Sequence[NDArray[np.int64]]


def one_after_the_other(scans: Sequence[LabelScan]) -> Neighbours:
    """Judge the order in which one file is read after the other.

    Args:
        scans: One a file; none has too many labels.
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
    sequence = _labelled(np.concatenate([np.empty(0, np.int64), *parts]))
    mean, std = runs_moments(labels.counts.tolist())
    # Inside of a file: that all files are alike makes no period.
    period = find_period(_labelled(max(parts, key=len, default=sequence)), labels.counts)
    return Neighbours(
        int(np.count_nonzero(labels.counts)),
        max(0, num_records - 1),
        num_same,
        mean,
        std,
        num_changes == fewest,
        period,
        _windows(sequence, labels.counts),
        buffer_for(sequence, labels.counts) if num_same > mean + std else None,
    )


def in_turn(scans: Sequence[LabelScan]) -> Neighbours:
    """Judge the order in which one record of each file is read in turn, as far as it is known.

    A file that has come to its end is left out, as tf.data's ``interleave`` does it.

    Args:
        scans: One a file; none has too many labels.
    """
    labels = _labels_of(scans)
    sequences = [_sequence(scan, codes) for scan, codes in zip(scans, labels.codes, strict=True)]
    known = [len(s) for s, scan in zip(sequences, scans, strict=True) if len(s) < scan.num_records]
    depth = min(known, default=max(map(len, sequences), default=0))
    depth = min(depth, max(1, _MAX_INTERLEAVED // max(1, len(scans))))
    table = np.full((depth, len(scans)), NO_LABEL, np.int64)
    for place, sequence in enumerate(sequences):
        table[: len(sequence), place] = sequence[:depth]
    sequence = _labelled(table.ravel())
    num_same = int(np.count_nonzero(sequence[1:] == sequence[:-1]))
    if len(sequence) == int(labels.counts.sum()):
        mean, std = runs_moments(labels.counts.tolist())
    else:
        mean, std = draws_moments(labels.counts, max(0, len(sequence) - 1))
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
        buffer_for(sequence, labels.counts) if num_same > mean + std else None,
    )


def _labels_of(scans: Sequence[LabelScan]) -> _Labels:
    places: dict[str, int] = {}
    codes = [
        np.array([places.setdefault(name, len(places)) for name in scan.names], np.int64)
        for scan in scans
    ]
    counts = np.zeros(len(places), np.int64)
    for scan, numbers in zip(scans, codes, strict=True):
        counts[numbers] += scan.num_first
    return _Labels(counts, codes)


def _sequence(scan: LabelScan, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = np.append(codes, NO_LABEL)[scan.sequence]
    return numbers


def _labelled(sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    labelled: NDArray[np.int64] = sequence[sequence != NO_LABEL]
    return labelled


def runs_moments(counts: Sequence[int]) -> tuple[float, float]:
    """Return mean and standard deviation of the same neighbours, over all orders of these records.

    Args:
        counts: Records with each label.
    """
    n = sum(counts)
    if n < 2:
        return 0.0, 0.0
    squares, cubes = sum(c * c for c in counts), sum(c * c * c for c in counts)
    variance = squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3
    return (squares - n) / n, math.sqrt(max(0, variance) / (n * n * (n - 1)))


def draws_moments(counts: NDArray[np.int64], num_pairs: int) -> tuple[float, float]:
    """Return the same for independent draws with the shares of these counts."""
    total = int(counts.sum())
    if not total:
        return 0.0, 0.0
    shares = counts / total
    squares, cubes = float((shares**2).sum()), float((shares**3).sum())
    variance = num_pairs * (squares - squares**2 + 2 * (cubes - squares**2))
    return num_pairs * squares, math.sqrt(max(0.0, variance))


def find_period(sequence: NDArray[np.int64], counts: NDArray[np.int64]) -> int | None:
    """Return the smallest distance at which labels come again; None where there is none.

    There they are the same far more often than next to each other, so sorted records have none.
    """
    if len(sequence) < 2 or np.count_nonzero(counts) < 2:
        return None
    labels = sequence[:_MAX_COMPARED].astype(np.int32)
    next_to = float((labels[1:] == labels[:-1]).mean())
    for distance in range(2, min(_MAX_PERIOD, len(labels) // 4) + 1):
        num_pairs = len(labels) - distance
        num_same = int(np.count_nonzero(labels[distance:] == labels[:-distance]))
        mean, std = draws_moments(counts, num_pairs)
        usual = max(next_to, mean / num_pairs)
        if 2 * num_same > (1 + usual) * num_pairs and num_same >= mean + _SURE_NEIGHBOURS * (
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
    # Whether one label is there says little of another, and rather that it is not.
    std = math.sqrt(float((missing * (1 - missing)).sum()) / num_windows)
    below = expected - distinct
    return Windows(size, num_windows, distinct, expected, below / std if std else 0.0)


def buffer_for(sequence: NDArray[np.int64], counts: NDArray[np.int64]) -> Buffer:
    """Return what shuffle buffer makes this order nearly random.

    What comes out of a buffer of n records are pairs of n that stood together; so it is asked how
    often two of n in a row have the same label, for n that doubles, up to a quarter of the records.
    """
    sequence = sequence[:_MAX_MIXED]
    shares = counts / counts.sum()
    random = float((shares**2).sum())
    limit = random + min(_NEARLY, random / 2) * (1 - random)
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

_UNTOLD: Final = ("unknown", SEQUENTIAL)
_SURE: Final = 6.0  # standard deviations
_CLEAR: Final = 0.1  # of the way from random to sorted
_MANY_TIMES: Final = 2.0  # as often as under random order, which shows where labels are many
_LEAST: Final = 0.005
_FEWER: Final = 0.8  # of what random order gives
_UNEVEN: Final = 0.1  # Cramer's V of shards and labels
_UNLIKELY: Final = 1e-6
_WRITE: Final = "`shardwriter write --shuffle --seed 0`"


def shuffle_by_label(
    scans: Sequence[LabelScan], mix: Mapping[str, Any], *, has_law: bool
) -> dict[str, Any]:
    """Judge by the labels of the records; returns the report's ``shuffle``.

    Args:
        scans: One a shard that is there, in their order.
        mix: What :func:`~shardwriter.inspect.label_mix.label_mix` made of them.
        has_law: Whether the shards are known to have been dealt round-robin.
    """
    feature = scans[0].feature if scans else ""
    if any(scan.too_many for scan in scans):
        return _untold("label", f"{feature!r} has too many values for a label")
    if not any(scan.num_labelled for scan in scans):
        return _untold("label", f"no record has a label in {feature!r}")
    orders = {SEQUENTIAL: one_after_the_other(scans)}
    if len(scans) > 1:
        orders[INTERLEAVED] = in_turn(scans)
    entries = [_order_json(name, order) for name, order in orders.items()]
    verdicts = {entry["order"]: entry["verdict"] for entry in entries}
    is_uneven = shards_differ(mix)
    verdict, judged = _overall(verdicts, orders, is_uneven, has_law)
    chosen = next(entry for entry in entries if entry["order"] == judged)
    period = next((o.period for o in reversed(orders.values()) if o.period is not None), None)
    if verdict == "periodic":
        detail, remedy = _periodic_words(len(scans), period, is_uneven)
    else:
        detail, remedy = chosen["detail"], None
        if verdict != verdicts[judged]:
            detail, remedy = "shards have labels in different shares", f"{_WRITE} writes them mixed"
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
    """Judge by what a manifest tells, and no record; returns the report's ``shuffle``.

    Args:
        order: The manifest's ``order``; None for a set without a manifest.
        mix: The label mix that it tells, or ``{}``.
        num_shards: N.
    """
    if shards_differ(mix):
        # Dealing round-robin spreads whatever changes slowly: what is left is a period.
        detail, remedy = _periodic_words(num_shards, None, is_uneven=True)
        return {**_untold("order", detail), "remedy": remedy, "verdict": "periodic"}
    measure = f"`shard-stats PATH --label {mix.get('feature') or 'FEATURE'}` measures it"
    if order is None:
        detail = "no manifest tells in what order records stand"
        return {**_untold("order", detail), "remedy": measure}
    for key, words in (("shuffle", "shuffled"), ("key", "in the order of hashes of their keys")):
        if order.get(key):
            detail = f"records are {words}, with seed {order[key].get('seed')}"
            return {**_untold("order", detail), "verdict": "shuffled"}
    detail = "records stand in source order; how well that is mixed was not measured"
    return {**_untold("order", detail), "remedy": measure}


def shards_differ(mix: Mapping[str, Any]) -> bool:
    """Return whether the shards of a label mix have labels in different shares."""
    evenness = mix.get("evenness") or {"cramers_v": 0.0, "p_value": 1.0}
    is_uneven = evenness["p_value"] < _UNLIKELY and evenness["cramers_v"] >= _UNEVEN
    return bool(mix.get("num_deviating")) or is_uneven


def shuffle_note(shuffle: Mapping[str, Any]) -> str | None:
    """Return one line that says what is wrong with the order and what to do; None if nothing is."""
    if shuffle.get("verdict") not in ("sorted", "clustered", "periodic") or not shuffle["remedy"]:
        return None
    return f"{shuffle['detail']}; {shuffle['remedy']}"


def _untold(by: str, detail: str) -> dict[str, Any]:
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
    """Return the verdict on one order of reading, and why."""
    same, expected = order.same, order.expected_same
    noise = _SURE * (order.std + 1)
    words = f"{same:.1%} of neighbours have the same label, {expected:.1%} would be random"
    if order.num_labels < 2:
        return "unknown", "all records have one label"
    way = (same - expected) / (1 - expected)
    is_clear = way >= _CLEAR or (way >= _LEAST and same >= _MANY_TIMES * expected)
    if order.num_same >= order.expected + noise and is_clear:
        if order.is_sorted:
            return "sorted", f"records are sorted by label: {words}"
        return "clustered", f"records of one label stand together: {words}"
    windows = order.windows
    if (
        windows is not None
        and windows.deviation >= _SURE
        and windows.distinct < _FEWER * windows.expected
    ):
        return "clustered", (
            f"{windows.size:,} records in a row have {windows.distinct:,.1f} different labels, "
            f"{windows.expected:,.1f} would be random"
        )
    if order.period is not None:
        return "periodic", f"labels come again every {order.period:,} records"
    if order.num_pairs + 1 - order.num_labels < order.expected + noise:
        return "unknown", f"too few records of each label to tell ({order.num_pairs + 1:,} records)"
    if order.num_same <= order.expected - noise and same < _FEWER * expected:
        return "periodic", f"labels are dealt in turn: {words}"
    return "shuffled", words


def _overall(
    verdicts: Mapping[str, str], orders: Mapping[str, Neighbours], is_uneven: bool, has_law: bool
) -> tuple[str, str]:
    """Return the verdict on the set, and the order that shows it."""
    if is_uneven and has_law:
        return "periodic", SEQUENTIAL
    for verdict in ("sorted", "clustered", "periodic"):
        found = [name for name, of_order in verdicts.items() if of_order == verdict]
        if found:
            return verdict, max(found, key=lambda name: orders[name].same)
    if is_uneven:
        return "clustered", SEQUENTIAL
    return next(((v, name) for name, v in verdicts.items() if v == "shuffled"), _UNTOLD)


def _remedy(order: Neighbours, verdicts: Mapping[str, str], judged: str, num_shards: int) -> str:
    remedy = f"{_WRITE} writes them mixed"
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
        f"{remedy}; else, read {reading}, they take a shuffle buffer of {least} "
        f"{order.buffer.num_records:,} records"
    )


def _periodic_words(num_shards: int, period: int | None, is_uneven: bool) -> tuple[str, str | None]:
    again = "" if period is None else f", again every {period:,} records"
    if not is_uneven:
        return f"labels come in turn{again}; every shard has its share of each", None
    factor = period if period is not None and math.gcd(period, num_shards) > 1 else num_shards
    better = next(n for n in count(num_shards + 1) if math.gcd(n, factor) == 1)
    return (
        f"labels come in step with the {num_shards:,} shards{again}, so that which labels a shard "
        "has depends on its number",
        f"{_WRITE} mixes them; else choose a number of shards that shares no divisor with the "
        f"period, such as {better:,}; until then read all {num_shards:,} shards at once "
        f"(interleave with cycle_length={num_shards})",
    )
