"""How often neighbours have the same label, against records in random order.

Of n records in random order, of which n_i have label i, the number of runs of equal labels has a
known mean and variance (Mood 1940); neighbours that are the same are n less the runs. That judges
an order that is known whole. Of reading several files in turn often only the beginning is known;
then the labels are held against independent draws with the shares of the whole set.

Neighbours alone do not show what comes back after a while: so the labels are compared with those a
few records on as well (the period), and different labels are counted in windows of a batch's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.inspect.label_scan import NO_LABEL, LabelScan

WINDOW: Final = 256  # records, a usual batch
_MIN_WINDOW: Final = 16
_MIN_WINDOWS: Final = 4
_MAX_WINDOWED: Final = 1 << 20  # records in windows
_MAX_INTERLEAVED: Final = 1 << 22  # records read in turn
_MAX_PERIOD: Final = 2048
_MAX_COMPARED: Final = 1 << 16  # records looked at for a period
_MAX_MIXED: Final = 1 << 18  # and for how many have to be mixed
_NEARLY: Final = 0.05  # of the way from random to sorted
_SURE: Final = 8.0  # standard deviations: thousands of periods are tried


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
        if 2 * num_same > (1 + usual) * num_pairs and num_same >= mean + _SURE * (std + 1):
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
