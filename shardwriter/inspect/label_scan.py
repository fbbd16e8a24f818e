"""What one file tells about its labels: how often each is there, and in what order they come.

Counts alone do not tell sorted records from mixed ones. Two things more are kept: how many
neighbours have the same label, over the whole file; and the labels of its first records in their
order, from which reading several files in turn can be judged.

A record with several labels counts for each of them; in the order it stands with its first one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats import DecodedColumn, Unset
from shardwriter.schema import MAX_LABELS, labels_of

MAX_SEQUENCE: Final = 65_536  # labels kept in their order of one file
_MIN_SEQUENCE: Final = 64
_SET_SEQUENCE: Final = 1 << 22  # and of all files of a set together
NO_LABEL: Final = -1


def sequence_limit(num_shards: int) -> int:
    """Return how many labels of each file to keep in order, so that all of a set fit in memory."""
    return max(_MIN_SEQUENCE, min(MAX_SEQUENCE, _SET_SEQUENCE // max(1, num_shards)))


class LabelScan:
    """The labels of one file, or of a piece of it; consecutive pieces merge.

    Labels are spelled as in a manifest. A float32 is spelled with the digits that it takes to tell
    it from other float32: 0.1 of a table is ``0.1`` again.

    Args:
        feature: Name of the feature.
        max_sequence: How many labels are kept in their order.

    Attributes:
        num_records: Records seen.
        num_unlabelled: Those without a label: the feature is absent, unset or an empty list.
        too_many: There are more labels than a label has; nothing but these numbers is known.
        names: How the labels are spelled, in no order.
        counts: ``int64[C]``: how often each label is there.
        num_with: ``int64[C]``: records that have it; less where a record has one several times.
        num_first: ``int64[C]``: records that have it as their first.
        num_same: Labelled records whose first label is that of the labelled record before.
        first: Number of the first labelled record's label in ``names``; None where there is none.
        last: And of the last one's.
    """

    def __init__(self, feature: str, max_sequence: int = MAX_SEQUENCE) -> None:
        self.feature = feature
        self.max_sequence = max_sequence
        self.num_records = 0
        self.num_unlabelled = 0
        self.too_many = False
        self._forget()

    def _forget(self) -> None:
        self.names: list[str] = []
        self.counts = np.empty(0, np.int64)
        self.num_with = np.empty(0, np.int64)
        self.num_first = np.empty(0, np.int64)
        self.num_same = 0
        self.first: int | None = None
        self.last: int | None = None
        self._codes: dict[str, int] | None = {}
        self._pieces: list[NDArray[np.signedinteger[Any]]] = []
        self._num_kept = 0

    def _give_up(self) -> None:
        self.too_many = True
        self._forget()

    @property
    def num_labelled(self) -> int:
        """Records with a label."""
        return self.num_records - self.num_unlabelled

    @property
    def sequence(self) -> NDArray[np.signedinteger[Any]]:
        """``int[m]``: labels of the first records as numbers in ``names``; -1 for no label."""
        if len(self._pieces) != 1:
            self._pieces = [np.concatenate([np.empty(0, np.int8), *self._pieces])]
        return self._pieces[0]

    def add(self, column: DecodedColumn | None, num_rows: int) -> None:
        """Take the next records of the file.

        Args:
            column: The feature's values by rows; None where no record has it.
            num_rows: How many records they are.
        """
        self.num_records += num_rows
        if self.too_many:
            self.num_unlabelled += _num_unlabelled(column, num_rows)
            return
        if column is None:
            codes = rows = np.empty(0, np.int64)
        elif isinstance(column, np.ndarray):
            codes, rows = self._take_array(column)
        else:
            codes, rows = self._take_rows(column)
        if len(self.names) > MAX_LABELS:
            self.num_unlabelled += _num_unlabelled(column, num_rows)
            self._give_up()
            return
        self._count(codes, rows, num_rows)

    def _code(self, name: str) -> int:
        if self._codes is None:
            self._codes = {name: code for code, name in enumerate(self.names)}
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(sys.intern(name))  # the other files of the set have it as well
        return code

    def _take_array(self, column: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the labels of ``[n, k]`` values as numbers, and their rows."""
        num_rows, width = column.shape
        distinct, inverse = np.unique(_comparable(column), return_inverse=True)
        if column.dtype.kind == "f":
            distinct = distinct.view(np.float32)
        codes = np.array([self._code(name) for name in _spelled(distinct)], np.int64)
        return codes[inverse.ravel()], np.repeat(np.arange(num_rows), width)

    def _take_rows(self, column: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the same of values of any kind, row by row."""
        codes: list[int] = []
        rows: list[int] = []
        spelled: dict[bytes, int] = {}
        for row, value in enumerate(column):
            if type(value) is list and len(value) == 1:  # one text: by far the most common
                code = spelled.get(value[0])
                if code is None:
                    code = spelled[value[0]] = self._code(*_names(value))
                codes.append(code)
                rows.append(row)
            elif value is not None and not isinstance(value, Unset):
                found = [self._code(name) for name in _names(value)]
                codes += found
                rows += [row] * len(found)
            if len(self.names) > MAX_LABELS:
                break
        return np.array(codes, np.int64), np.array(rows, np.int64)

    def _count(self, codes: NDArray[np.int64], rows: NDArray[np.int64], num_rows: int) -> None:
        """Take labels down: ``int64[m]`` numbers of labels, and the rows that they are of."""
        is_first = np.ones(len(rows), bool)
        is_first[1:] = rows[1:] != rows[:-1]
        labelled = codes[is_first]
        size = len(self.names)
        self.num_unlabelled += num_rows - len(labelled)
        self.counts = _grown(self.counts, size) + np.bincount(codes, minlength=size)
        self.num_first = _grown(self.num_first, size) + np.bincount(labelled, minlength=size)
        if len(labelled) < len(codes):
            codes = np.unique(rows * size + codes) % size
        self.num_with = _grown(self.num_with, size) + np.bincount(codes, minlength=size)
        if len(labelled):
            self.num_same += int(np.count_nonzero(labelled[1:] == labelled[:-1]))
            self._join(int(labelled[0]), int(labelled[-1]))
        firsts = np.full(num_rows, NO_LABEL, np.int32)
        firsts[rows[is_first]] = labelled
        self._keep(firsts)

    def _join(self, first: int, last: int) -> None:
        self.num_same += self.last == first
        self.first = first if self.first is None else self.first
        self.last = last

    def _keep(self, firsts: NDArray[np.int32]) -> None:
        kept = firsts[: self.max_sequence - self._num_kept]
        if len(kept):
            self._pieces.append(kept)
            self._num_kept += len(kept)

    def merge(self, other: LabelScan) -> None:
        """Add the labels of the piece of the same file that follows.

        Raises:
            ValueError: They are the labels of another feature, or not as many are kept in order.
        """
        if (self.feature, self.max_sequence) != (other.feature, other.max_sequence):
            raise ValueError(f"scans of {self.feature!r} and {other.feature!r} do not go together")
        self.num_records += other.num_records
        self.num_unlabelled += other.num_unlabelled
        if self.too_many or other.too_many:
            self._give_up()
            return
        codes = np.array([*map(self._code, other.names), NO_LABEL], np.int32)
        if len(self.names) > MAX_LABELS:
            self._give_up()
            return
        size = len(self.names)
        self.counts = _grown(self.counts, size)
        self.num_with = _grown(self.num_with, size)
        self.num_first = _grown(self.num_first, size)
        self.counts[codes[:-1]] += other.counts
        self.num_with[codes[:-1]] += other.num_with
        self.num_first[codes[:-1]] += other.num_first
        self.num_same += other.num_same
        if other.first is not None and other.last is not None:
            self._join(int(codes[other.first]), int(codes[other.last]))
        self._keep(codes[other.sequence])

    def finish(self) -> None:
        """Let go of what only adding needs; call it at the end of a file, of which there are many.

        More can be added all the same, after a pause.
        """
        self._codes = None
        self._pieces = [self.sequence.astype(self._sequence_type)]

    @property
    def _sequence_type(self) -> np.dtype[Any]:
        return np.min_scalar_type(-max(len(self.names), 1))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the sequence in as few bytes as its numbers take."""
        sequence = self.sequence.astype(self._sequence_type)
        return self.__dict__ | {"_codes": None, "_pieces": [sequence]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state up."""
        self.__dict__.update(state)
        self.names = [sys.intern(name) for name in self.names]


def _grown(numbers: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.concatenate([numbers, np.zeros(size - len(numbers), np.int64)])


def _num_unlabelled(column: DecodedColumn | None, num_rows: int) -> int:
    if column is None:
        return num_rows
    if isinstance(column, np.ndarray):
        return 0 if column.shape[1] else num_rows
    return sum(row is None or isinstance(row, Unset) or len(row) == 0 for row in column)


def _comparable(column: NDArray[Any]) -> NDArray[Any]:
    """Return the values so that labels are equal where their numbers are: floats by their bits."""
    if column.dtype.kind != "f":
        return column
    values = column.astype(np.float32) + np.float32(0)  # -0 is 0
    values[np.isnan(values)] = np.nan
    bits: NDArray[np.uint32] = values.view(np.uint32)
    return bits


def _spelled(values: NDArray[Any]) -> Iterable[str]:
    if values.dtype.kind == "f":
        return [str(float(str(value))) for value in values]
    return [str(label) for label in labels_of(values)]


def _names(row: Any) -> Iterable[str]:
    """Return how the labels of one record are spelled, in their order."""
    if isinstance(row, np.ndarray) and row.dtype.kind == "f":
        return _spelled(_comparable(row).view(np.float32))
    return [str(label) for label in labels_of(row)]
