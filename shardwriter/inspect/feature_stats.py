"""Statistics of the features of many records: presence, kinds, lengths, values.

They are gathered column by column, shard by shard, and merge: statistics of two pieces together
are those of the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.example_bodies import SingleBlobs
from shardwriter.formats.example_columns_wire import PlainColumn
from shardwriter.formats.example_wire import Values
from shardwriter.formats.feature_errors import Kind
from shardwriter.formats.feature_values import UNSET, Unset
from shardwriter.formats.sequence_names import feature_spelling, list_spelling
from shardwriter.inspect.blobs import BlobStats, blob_json
from shardwriter.inspect.numbers import NumberStats
from shardwriter.inspect.ranges import Range

MAX_FEATURES: Final = 4096
NUM_TOP: Final = 10
# Each sketch holds values for a while; of thousands of features that would be too much memory.
_MAX_HELD: Final = 1 << 20

_Cell: TypeAlias = "Values | Unset | None"


class FeatureSketch:
    """Statistics of one feature.

    Attributes:
        present: Records that have it, with a kind or without.
        unset: Records that have it without a kind.
        kinds: Records by the kind of their values; of a feature list a record may have several.
        lengths: Values of a record, where there is a kind; of a feature list, of a step.
        steps: Of a feature list: steps of a record; else None.
        numbers: Statistics of int64 and of float values, by kind.
        blobs: Statistics of bytes values.
    """

    def __init__(self, *, is_list: bool = False) -> None:
        self.present = self.unset = self.num_empty = 0
        self.kinds: dict[Kind, int] = {}
        self.lengths = Range()
        self.steps = Range() if is_list else None
        self.numbers: dict[Kind, NumberStats] = {}
        self.blobs: BlobStats | None = None

    def add(self, column: PlainColumn) -> None:
        """Add the values of the records that have it, as `decode_plain_parts` gives them."""
        if isinstance(column, SingleBlobs):
            self.present += len(column)
            self.lengths.add(1, len(column))
            self._add_kind("bytes", len(column))
            self._add_blobs(column)
            return
        if isinstance(column, np.ndarray):
            num_rows, length = column.shape
            self.present += num_rows
            self.lengths.add(length, num_rows)
            self.num_empty += 0 if length else num_rows
            self._add_kind(_kind_of(column.dtype), num_rows)
            self._add_numbers(column.reshape(-1))
            return
        cells: list[Any] = column
        if set(map(type, column)) != {list}:
            num_cells = len(cells)
            cells = [cell for cell in cells if cell is not UNSET]
            self.present += num_cells - len(cells)
            self.unset += num_cells - len(cells)
            self.num_empty += num_cells - len(cells)
        self.present += len(cells)
        for kind, number in self._add_cells(cells).items():
            self._add_kind(kind, number)

    def add_steps(self, steps: Sequence[Values | None]) -> None:
        """Add the feature list of one record."""
        assert self.steps is not None
        self.present += 1
        self.steps.add(len(steps))
        known: list[_Cell] = [values for values in steps if values is not None]
        kinds = self._add_cells(known)
        if not kinds and steps:
            self.unset += 1
        for kind in kinds:
            self._add_kind(kind, 1)

    def _add_kind(self, kind: Kind, number: int) -> None:
        if number:
            self.kinds[kind] = self.kinds.get(kind, 0) + number

    def _add_cells(self, cells: Sequence[Any]) -> dict[Kind, int]:
        """Add lists of values; return how many there are by kind."""
        if not cells:
            return {}
        lengths = np.fromiter(map(len, cells), np.int64, len(cells))
        self.lengths.add_all(lengths)
        self.num_empty += int(np.count_nonzero(lengths == 0))
        by_kind: dict[Kind, list[Any]] = {}
        types = set(map(type, cells))
        if types == {list}:
            by_kind["bytes"] = list(cells)
        else:
            for cell in cells:
                kind: Kind = "bytes" if isinstance(cell, list) else _kind_of(cell.dtype)
                by_kind.setdefault(kind, []).append(cell)
        for kind, same in by_kind.items():
            if kind == "bytes":
                self._add_blobs(list(chain.from_iterable(same)))
            else:
                self._add_numbers(np.concatenate(same))
        return {kind: len(same) for kind, same in by_kind.items()}

    def _add_blobs(self, values: Sequence[bytes]) -> None:
        if self.blobs is None:
            self.blobs = BlobStats()
        self.blobs.add(values)

    def _add_numbers(self, values: NDArray[Any]) -> None:
        kind = _kind_of(values.dtype)
        stats = self.numbers.get(kind)
        if stats is None:
            stats = self.numbers[kind] = NumberStats(kind == "float")
        if values.size:
            stats.add(values)

    def merge(self, other: FeatureSketch) -> None:
        """Add the statistics of other records."""
        self.present += other.present
        self.unset += other.unset
        self.num_empty += other.num_empty
        self.lengths.merge(other.lengths)
        if self.steps is not None and other.steps is not None:
            self.steps.merge(other.steps)
        for kind, number in other.kinds.items():
            self._add_kind(kind, number)
        for kind, stats in other.numbers.items():
            if kind not in self.numbers:
                self.numbers[kind] = NumberStats(kind == "float")
            self.numbers[kind].merge(stats)
        if other.blobs is not None:
            if self.blobs is None:
                self.blobs = BlobStats()
            self.blobs.merge(other.blobs)

    @property
    def kind(self) -> Kind | None:
        """The kind that most records have; None where all are unset."""
        return min(self.kinds, key=lambda kind: (-self.kinds[kind], kind), default=None)

    @property
    def dtype(self) -> str | None:
        """The type that a manifest would name, as far as records tell."""
        if self.kind == "bytes":
            return "string" if self.blobs is not None and self.blobs.is_text else "bytes"
        return {"int64": "int64", "float": "float32"}.get(self.kind or "")

    @property
    def shape(self) -> list[int | None] | None:
        """The shape that a manifest would name: ``[]``, ``[k]``, or ``[None]`` where it varies."""
        low, high = self.lengths.min, self.lengths.max
        if low is None:
            return None
        if low != high:
            return [None]
        return [] if low == 1 else [low]

    def flush(self) -> None:
        """Count all that is held."""
        for stats in self.numbers.values():
            stats.flush()
        if self.blobs is not None:
            self.blobs.flush()

    def to_json(self, num_records: int) -> dict[str, Any]:
        """Return the report's entry of a feature, of so many records."""
        self.flush()
        kind = self.kind
        values: NumberStats | BlobStats | None = self.blobs
        if kind != "bytes":
            values = self.numbers[kind] if kind is not None else None
        distinct, low, high = (0, 0, 0) if values is None else values.num_distinct()
        if values is not None:
            # An estimate may be beyond what there can be.
            most = values.num_finite if isinstance(values, NumberStats) else values.sizes.count
            distinct, low, high = (min(number, most) for number in (distinct, low, high))
        found, num_missed = ([], 0) if values is None else values.top(NUM_TOP)
        top = [{"count": n, "value": blob_json(v) if isinstance(v, bytes) else v} for v, n in found]
        is_blobs = isinstance(values, BlobStats)
        images = values.images.to_json() if isinstance(values, BlobStats) else None
        formats = sorted(images["formats"]) if images is not None else []
        lengths = Range()
        lengths.merge(self.lengths)
        if self.steps is None:
            lengths.add(0, self.unset)
        entry: dict[str, Any] = {
            "absent": num_records - self.present,
            "distinct": {"estimate": distinct, "exact": low == high, "high": high, "low": low},
            "dtype": self.dtype if not formats else "bytes",
            "empty": self.num_empty,
            "encoding": "image" if formats else "list",
            "images": images,
            "kind": kind,
            "kinds": dict(sorted(self.kinds.items())),
            "lengths": lengths.to_json(),
            "num_records": num_records,
            "numbers": values.to_json() if isinstance(values, NumberStats) else None,
            "present": self.present,
            "shape": self.shape,
            "top": top,
            "top_missed": num_missed,
            "unset": self.unset,
            "value_bytes": values.sizes.to_json() if isinstance(values, BlobStats) else None,
        }
        if formats:
            entry["format"] = formats[0] if len(formats) == 1 else None
        if is_blobs:
            entry["is_text"] = self.dtype == "string"
        if self.steps is not None:
            entry["steps"] = self.steps.to_json()
        return entry


def _kind_of(dtype: np.dtype[Any]) -> Kind:
    return "float" if dtype.kind == "f" else "int64"


class FeatureStats:
    """Statistics of all features of some records.

    Of more than `MAX_FEATURES` features those are kept whose names come first.

    Attributes:
        num_records: Examples and SequenceExamples.
        features: By name, as :mod:`shardwriter.formats.sequence_names` spells it: a list ``x`` is
            ``x[]``.
        has_all: Whether none was left out.
    """

    def __init__(self) -> None:
        self.num_records = 0
        self.features: dict[str, FeatureSketch] = {}
        self.has_all = True
        self._num_held = 0  # cells since the sketches were flushed

    def add(self, columns: Mapping[str, PlainColumn], num_records: int) -> None:
        """Add a batch of records.

        Args:
            columns: By feature, the values of the records that have it.
            num_records: How many records there are.
        """
        self.num_records += num_records
        spelled = {feature_spelling(name): column for name, column in columns.items()}
        for name in self._kept(spelled):
            self._sketch(name).add(spelled[name])
            self._num_held += len(spelled[name])
        if self._num_held >= _MAX_HELD:
            self.flush()

    def add_lists(self, records: Iterable[Mapping[str, Sequence[Values | None]]]) -> None:
        """Add the feature lists of SequenceExamples whose contexts are counted by `add`."""
        for lists in records:
            spelled = {list_spelling(name): steps for name, steps in lists.items()}
            for name in self._kept(spelled):
                self._sketch(name, is_list=True).add_steps(spelled[name])

    def _kept(self, names: Collection[str]) -> Collection[str]:
        """Return those of some names that are kept; features behind them are dropped.

        Names are chosen before anything is made for them: a record may have millions.
        """
        known = self.features
        if len(known) + len(names) <= MAX_FEATURES:
            return names
        first = set(nsmallest(MAX_FEATURES, known.keys() | names))
        dropped = [name for name in known if name not in first]
        for name in dropped:
            del known[name]
        kept = [name for name in names if name in first]
        self.has_all = self.has_all and not dropped and len(kept) == len(names)
        return kept

    def _sketch(self, name: str, *, is_list: bool = False) -> FeatureSketch:
        sketch = self.features.get(name)
        if sketch is None:
            sketch = self.features[name] = FeatureSketch(is_list=is_list)
        return sketch

    def merge(self, other: FeatureStats) -> None:
        """Add the statistics of other records, of this file or of another one."""
        self.num_records += other.num_records
        self.has_all = self.has_all and other.has_all
        for name in self._kept(other.features):
            theirs = other.features[name]
            self._sketch(name, is_list=theirs.steps is not None).merge(theirs)

    def flush(self) -> None:
        """Count all that is held; whoever reads the sketches has to call it first."""
        for sketch in self.features.values():
            sketch.flush()
        self._num_held = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report's ``features``."""
        return {
            name: self.features[name].to_json(self.num_records) for name in sorted(self.features)
        }
