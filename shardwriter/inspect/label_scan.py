"""The labels of one file: counts, and their order.

The order is measured in two ways: the number of neighbours with the same label in the whole file,
and the label sequence of its first records, from which interleaved reading is evaluated. A record
with several labels counts for each of them; in the order only its first label counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats import DecodedColumn, Unset
from shardwriter.schema import MAX_LABELS, labels_of

MAX_SEQUENCE: Final = 65_536  # length of the label sequence of one file
_MIN_SEQUENCE: Final = 64
_SET_SEQUENCE: Final = 1 << 22  # and of all files of a set together
NO_LABEL: Final = -1


def sequence_limit(num_shards: int) -> int:
    """Return the length of a file's label sequence, so that those of a set fit in memory."""
    return max(_MIN_SEQUENCE, min(MAX_SEQUENCE, _SET_SEQUENCE // max(1, num_shards)))


class LabelScan:
    """The labels of one file, or of a part of it; consecutive parts merge.

    Labels are converted to text as in a manifest. A float32 gets the shortest text that identifies
    it among float32 numbers, such as ``0.1``.

    Args:
        feature: Name of the feature.
        max_sequence: Maximum length of the label sequence.

    Attributes:
        num_records: Records added.
        num_unlabelled: Records without a label: the feature is absent, unset or an empty list.
        too_many: There are more than `MAX_LABELS` labels; only the two numbers above are valid.
        names: The labels as text, unordered.
        counts: ``int64[C]``: count of each label.
        num_with: ``int64[C]``: records with each label; smaller if a record repeats a label.
        num_first: ``int64[C]``: records with each label as their first.
        num_same: Labelled records with the same first label as the previous labelled record.
        first: Position in ``names`` of the first labelled record's label; None without one.
        last: Position in ``names`` of the last labelled record's label.
    """

    def __init__(self, feature: str, max_sequence: int = MAX_SEQUENCE) -> None:
        self.feature = feature
        self.max_sequence = max_sequence
        self.num_records = 0
        self.num_unlabelled = 0
        self.too_many = False
        self._clear()

    def _clear(self) -> None:
        self.names: list[str] = []
        self.counts = np.empty(0, np.int64)
        self.num_with = np.empty(0, np.int64)
        self.num_first = np.empty(0, np.int64)
        self.num_same = 0
        self.first: int | None = None
        self.last: int | None = None
        self._codes: dict[str, int] | None = {}
        self._sequence_parts: list[NDArray[np.signedinteger[Any]]] = []
        self._sequence_length = 0

    def _set_too_many(self) -> None:
        self.too_many = True
        self._clear()

    @property
    def num_labelled(self) -> int:
        """Records with a label."""
        return self.num_records - self.num_unlabelled

    @property
    def sequence(self) -> NDArray[np.signedinteger[Any]]:
        """``int[m]``: labels of the first records, as positions in ``names``; -1 for no label."""
        if len(self._sequence_parts) != 1:
            self._sequence_parts = [np.concatenate([np.empty(0, np.int8), *self._sequence_parts])]
        return self._sequence_parts[0]

    def add(self, column: DecodedColumn | None, num_rows: int) -> None:
        """Add the next records of the file.

        Args:
            column: The feature's values by row; None if no record has it.
            num_rows: Number of records.
        """
        self.num_records += num_rows
        if self.too_many:
            self.num_unlabelled += _num_unlabelled(column, num_rows)
            return
        if column is None:
            codes = rows = np.empty(0, np.int64)
        elif isinstance(column, np.ndarray):
            codes, rows = self._array_codes(column)
        else:
            codes, rows = self._row_codes(column)
        if len(self.names) > MAX_LABELS:
            self.num_unlabelled += _num_unlabelled(column, num_rows)
            self._set_too_many()
            return
        self._count(codes, rows, num_rows)

    def _code(self, name: str) -> int:
        if self._codes is None:
            self._codes = {name: code for code, name in enumerate(self.names)}
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(sys.intern(name))  # shared with the other files of the set
        return code

    def _array_codes(self, column: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the codes of the labels in ``[n, k]`` values, and their rows."""
        num_rows, width = column.shape
        distinct, inverse = np.unique(_comparable(column), return_inverse=True)
        if column.dtype.kind == "f":
            distinct = distinct.view(np.float32)
        codes = np.array([self._code(name) for name in _number_names(distinct)], np.int64)
        return codes[inverse.ravel()], np.repeat(np.arange(num_rows), width)

    def _row_codes(self, column: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the codes of the labels in values of any kind, and their rows."""
        codes: list[int] = []
        rows: list[int] = []
        known: dict[bytes, int] = {}
        for row, value in enumerate(column):
            if type(value) is list and len(value) == 1:  # one text: by far the most common
                code = known.get(value[0])
                if code is None:
                    code = known[value[0]] = self._code(*_names(value))
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
        """Count labels: ``int64[m]`` codes and their rows."""
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
        self._extend_sequence(firsts)

    def _join(self, first: int, last: int) -> None:
        self.num_same += self.last == first
        self.first = first if self.first is None else self.first
        self.last = last

    def _extend_sequence(self, firsts: NDArray[np.int32]) -> None:
        part = firsts[: self.max_sequence - self._sequence_length]
        if len(part):
            self._sequence_parts.append(part)
            self._sequence_length += len(part)

    def merge(self, other: LabelScan) -> None:
        """Add the scan of the following part of the same file.

        Raises:
            ValueError: Feature or ``max_sequence`` differ.
        """
        if (self.feature, self.max_sequence) != (other.feature, other.max_sequence):
            raise ValueError(f"scans of {self.feature!r} and {other.feature!r} can not be merged")
        self.num_records += other.num_records
        self.num_unlabelled += other.num_unlabelled
        if self.too_many or other.too_many:
            self._set_too_many()
            return
        codes = np.array([*map(self._code, other.names), NO_LABEL], np.int32)
        if len(self.names) > MAX_LABELS:
            self._set_too_many()
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
        self._extend_sequence(codes[other.sequence])

    def finish(self) -> None:
        """Free memory that only adding needs; more records can be added afterwards."""
        self._codes = None
        self._sequence_parts = [self.sequence.astype(self._sequence_type)]

    @property
    def _sequence_type(self) -> np.dtype[Any]:
        return np.min_scalar_type(-max(len(self.names), 1))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with the sequence in its smallest integer type."""
        sequence = self.sequence.astype(self._sequence_type)
        return self.__dict__ | {"_codes": None, "_sequence_parts": [sequence]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state."""
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
    """Return values that are equal if the labels are: floats as bits, with one zero and one NaN."""
    if column.dtype.kind != "f":
        return column
    values = column.astype(np.float32) + np.float32(0)  # -0 is 0
    values[np.isnan(values)] = np.nan
    bits: NDArray[np.uint32] = values.view(np.uint32)
    return bits


def _number_names(values: NDArray[Any]) -> Iterable[str]:
    if values.dtype.kind == "f":
        return [str(float(str(value))) for value in values]
    return [str(label) for label in labels_of(values)]


def _names(row: Any) -> Iterable[str]:
    """Return the labels of one record as text, in order."""
    if isinstance(row, np.ndarray) and row.dtype.kind == "f":
        return _number_names(_comparable(row).view(np.float32))
    return [str(label) for label in labels_of(row)]
