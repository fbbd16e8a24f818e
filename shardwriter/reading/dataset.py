"""`Dataset`: an open dataset as a sequence, with random access, slices, shuffles and splits.

    Dataset (rows)  --steps-->  record numbers  --RecordLocations-->  shard, position
                                                --RecordReader-->     payload  --decoder-->  example

A view is its dataset's shared `Core` and a chain of steps. A step maps rows to rows of the step
before: a range, ``int64[n]`` rows, a `Permutation`, or a rank's `RankPartition`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from operator import index as as_index
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwriter.dataset import (
    Manifest,
    Permutation,
    RankPartition,
    RecordLocations,
    Uneven,
    partition_for_rank,
)
from shardwriter.errors import DataError, OptionError, ShardwriterError, WireError
from shardwriter.formats import html_table, payload_kind
from shardwriter.schema import ExampleDecoder, FeatureSummary, SequenceDecoder, type_text
from shardwriter.sources import LARGE_BYTES, RecordReader

_BLOCK_RECORDS: Final = 1 << 12  # so that a block stays in the CPU cache
_MAX_BLOCK_RECORDS: Final = 1 << 17
_BLOCK_BYTES: Final = 2 << 20  # likewise
_MAX_BLOCK_BYTES: Final = 16 << 20
_PEEKED_RECORDS: Final = 8  # a SequenceExample without lists looks like an Example
_Int64s: TypeAlias = NDArray[np.int64]


class Core:
    """The state shared by all views of an open dataset: records by number, read and decoded.

    Errors name the item and the record.

    Attributes:
        path: The path the dataset was opened with.
        name: Its name.
        reader: Reads payloads by shard and position.
        places: Shard and position of every record.
        manifest: Its manifest; None without one, or if shards are missing.
        notes: Notes of opening, lines of text.
        features: The schema; of SequenceExamples that of the context.
        shard_numbers: The number of each file in its set.
        decode_s: Seconds of decoding so far, if timings are measured.
    """

    def __init__(
        self,
        path: str,
        name: str,
        reader: RecordReader,
        places: RecordLocations,
        manifest: Manifest | None,
        notes: tuple[str, ...],
        *,
        features: Mapping[str, FeatureSummary],
        shard_numbers: Sequence[int],
        feature_lists: Mapping[str, FeatureSummary] | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self.reader = reader
        self.places = places
        self.manifest = manifest
        self.notes = notes
        self.features = features
        self._feature_lists = feature_lists
        self.shard_numbers = shard_numbers
        self.decode_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        cached = ("decoder", "identity", "mean_bytes")
        state = {name: value for name, value in self.__dict__.items() if name not in cached}
        return {**state, "decode_s": 0.0}

    @cached_property
    def feature_lists(self) -> Mapping[str, FeatureSummary] | None:
        """The types of the steps of SequenceExamples; None for Examples.

        Without a schema the first records decide, since a SequenceExample that is decoded as an
        Example would silently lose its lists. The types of the lists are then unknown ({}).
        """
        if self._feature_lists is not None or self.features or not self.places.num_records:
            return self._feature_lists
        num_records = 1 if self.reads_singly else min(self.places.num_records, _PEEKED_RECORDS)
        try:
            payloads = self.payloads(np.arange(num_records))
        except ShardwriterError:
            return None  # reading the record raises the error
        return {} if "SequenceExample" in map(payload_kind, payloads) else None

    @cached_property
    def decoder(self) -> ExampleDecoder | SequenceDecoder:
        """The decoder of records, by schema."""
        if self.feature_lists is not None:
            return SequenceDecoder(self.features, self.feature_lists)
        return ExampleDecoder(self.features)

    @cached_property
    def identity(self) -> str:
        """A digest of the manifest's job and the shards' CRCs; without a manifest, of the index.

        The job alone does not identify the items of a Python source.
        """
        if self.manifest is not None:
            crcs = [shard.crc32c for shard in self.manifest.shards]
            digest = blake2b(self.manifest.job.encode(), digest_size=16)
            digest.update(np.array(crcs, "<u4").tobytes())
            return f"manifest:{digest.hexdigest()}"
        index = self.reader.index
        digest = blake2b(index.compression.encode(), digest_size=16)
        digest.update(index.counts.tobytes())
        for shard in range(len(index.counts)):
            digest.update(index.ends(shard).tobytes())
        return f"index:{digest.hexdigest()}"

    @cached_property
    def mean_bytes(self) -> int:
        """The mean size of a record."""
        if self.manifest is not None:
            num_bytes = self.manifest.payload_bytes
        else:
            num_bytes = sum(state.num_bytes for state in self.reader.pool.states)
        return max(1, num_bytes // max(1, self.places.num_records))

    @property
    def reads_singly(self) -> bool:
        """Whether records are so large that they are read one by one, to reuse memory."""
        return self.mean_bytes >= LARGE_BYTES

    def block_records(self) -> int:
        """Return the number of records per block: a block's bytes at the mean record size."""
        max_records = _BLOCK_RECORDS
        if self._reopens_files:
            max_records = min(max(max_records, 64 * len(self.shard_numbers)), _MAX_BLOCK_RECORDS)
        return max(1, min(max_records, self._block_bytes // self.mean_bytes))

    @property
    def _reopens_files(self) -> bool:
        """Whether each block reopens closed files, so that larger blocks are faster."""
        return len(self.shard_numbers) > self.reader.pool.max_open

    @property
    def _block_bytes(self) -> int:
        return _MAX_BLOCK_BYTES if self._reopens_files else _BLOCK_BYTES

    def blocks(self, records: _Int64s) -> Iterator[slice]:
        """Yield slices of records, each of about a block's bytes at most."""
        todo = [(0, len(records))]
        while todo:
            first, stop = todo.pop()
            if stop - first > 1 and self._num_bytes(records[first:stop]) > 2 * self._block_bytes:
                middle = (first + stop) // 2
                todo += [(middle, stop), (first, middle)]
            elif first < stop:
                yield slice(first, stop)

    def _num_bytes(self, records: _Int64s) -> int:
        index = self.reader.index
        if index.compression != "none":
            return index.inflated_bytes(*self.places.locate_many(records))
        begins, ends = index.spans(*self.places.locate_many(records))
        return int((ends - begins).sum())

    def payloads(self, records: _Int64s) -> list[bytes]:
        """Return the payloads of records."""
        try:
            return self.reader.payloads(*self.places.locate_many(records))
        except DataError:
            return [self.payload(record) for record in records.tolist()]

    def payload(self, record: int) -> bytes:
        """Return the payload of one record."""
        try:
            return self.reader.payload(*self.places.locate(record))
        except ShardwriterError as error:
            raise error.locate(index=self.source_index(record)) from None

    def example(self, payload: bytes, record: int) -> Any:
        """Return a payload decoded."""
        started = perf_counter()
        try:
            example: Any = self.decoder.example(payload)
        except ShardwriterError as error:
            self._complete_error(error, record, payload)
            raise
        if self.reader.seconds:
            self.decode_s += perf_counter() - started
        return example

    def examples(self, payloads: Sequence[bytes], records: _Int64s) -> list[Any]:
        """Return payloads decoded, as a list of examples."""
        started = perf_counter()
        try:
            examples: Any = self.decoder.examples(payloads)
        except ShardwriterError as error:
            row = error.record_index or 0
            self._complete_error(error, int(records[row]), payloads[row])
            raise
        if self.reader.seconds:
            self.decode_s += perf_counter() - started
        found: list[Any] = examples
        return found

    def columns(self, payloads: Sequence[bytes], records: _Int64s) -> dict[str, Any]:
        """Return payloads decoded, as columns by feature."""
        started = perf_counter()
        try:
            columns: dict[str, Any] = self.decoder.columns(payloads)
        except ShardwriterError as error:
            row = error.record_index or 0
            self._complete_error(error, int(records[row]), payloads[row])
            raise
        if self.reader.seconds:
            self.decode_s += perf_counter() - started
        return columns

    def _complete_error(self, error: ShardwriterError, record: int, payload: bytes) -> None:
        """Add to a decoding error the record, the item, and what kind of record it looks like."""
        if isinstance(error, WireError):
            from shardwriter.formats import describe_record

            what = describe_record(payload)
            error.message = (
                f"the record is no tf.train.Example; it looks like {what} ({error.message})"
            )
            error.args = (error.message,)
        shard, position = self.places.locate(record)
        error.path, error.record_index = self.reader.pool.paths[shard], position
        error.hint = error.hint or "to read its bytes, use raw() or sw.open(PATH, decode=False)"
        error.locate(index=self.source_index(record))

    def source_index(self, record: int) -> int:
        """Return the item of a record, in source order."""
        return int(self.places.source_index(np.array([record], np.int64))[0])


Step: TypeAlias = "range | NDArray[np.int64] | Permutation | RankPartition"
Steps: TypeAlias = "tuple[Step, ...]"


def num_rows(steps: Steps, num_records: int) -> int:
    """Return the number of rows of a view."""
    if not steps:
        return num_records
    last = steps[-1]
    return last.num_samples if isinstance(last, RankPartition) else len(last)


def to_records(steps: Steps, rows: _Int64s) -> _Int64s:
    """Return ``int64[k]``: the record numbers of rows of a view."""
    for step in reversed(steps):
        if isinstance(step, range):
            rows = step.start + step.step * rows
        elif isinstance(step, RankPartition):
            rows = step.records(_draws(step, rows), None)
        elif isinstance(step, Permutation):
            rows = step(rows)
        else:
            rows = step[rows]
    return rows


def to_record(steps: Steps, row: int) -> int:
    """Return the record number of one row of a view; faster than `to_records` for one."""
    for step in reversed(steps):
        if isinstance(step, range):
            row = step[row]
        elif isinstance(step, RankPartition):
            row = (step.consumed + step.rank + step.world * row) % step.num_records
        elif isinstance(step, Permutation):
            row = step.item(row)
        else:
            row = int(step[row])
    return row


def are_pads(steps: Steps, rows: _Int64s) -> NDArray[np.bool_]:
    """Return ``bool[k]``: which rows are padding, repeated so that ranks have equal numbers."""
    pads = np.zeros(len(rows), np.bool_)
    for number in range(len(steps), 0, -1):
        step = steps[number - 1]
        if isinstance(step, RankPartition):
            pads |= step.is_pad(_draws(step, rows))
        rows = to_records((step,), rows)
    return pads


def may_have_pads(steps: Steps) -> bool:
    """Return whether rows of a view can be padding, so that examples get ``is_pad``."""
    return any(isinstance(step, RankPartition) and step.uneven == "pad" for step in steps)


def select_rows(steps: Steps, rows: range | _Int64s) -> Steps:
    """Return the steps of a view of some rows of a view."""
    last = steps[-1] if steps else None
    if isinstance(last, range):
        if isinstance(rows, range):
            first, step = last.start + last.step * rows.start, last.step * rows.step
            return (*steps[:-1], range(first, first + step * len(rows), step))
        return (*steps[:-1], last.start + last.step * rows)
    if isinstance(last, np.ndarray):
        numbers = np.arange(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
        return (*steps[:-1], last[numbers])
    return (*steps, rows)


def _draws(share: RankPartition, rows: _Int64s) -> _Int64s:
    """Return ``share.draws`` at some rows."""
    return share.consumed + share.rank + share.world * rows


_MAX_FEATURES_SHOWN: Final = 30
PAD_KEY: Final = "is_pad"

_WINDOW: Final = 1 << 10  # rows of a view that are mapped to records at once


class RecordPlace(NamedTuple):
    """The location of a record.

    Attributes:
        path: The shard.
        shard_index: The shard's number.
        record_index: The record's number in the shard.
    """

    path: str
    shard_index: int
    record_index: int


class Dataset:
    """An open dataset, or a view of some of its records in some order: an immutable sequence.

    Views share open files and cost no memory. A dataset can be pickled, read from several threads,
    and used after a fork. It is a random-access source for grain and a map-style dataset for torch.

    Returned by :func:`shardwriter.open`.
    """

    def __init__(self, core: Core, *, decode: bool = True, steps: Steps = ()) -> None:
        self._core = core
        self._decode = decode
        self._steps = steps
        self._num_rows = num_rows(steps, core.places.num_records)
        self._has_pads = may_have_pads(steps)
        # For rows read one after the other: the first row, and the records from there.
        self._window: tuple[int, list[int]] = (-1, [])
        self._last = -2  # the last row read outside of the window

    # -- properties --------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._core.path

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._core.name

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return len(self._core.reader.pool.paths)

    @property
    def manifest(self) -> Manifest | None:
        """The dataset's manifest; None without one, or if shards are missing."""
        return self._core.manifest

    @property
    def features(self) -> Mapping[str, FeatureSummary]:
        """The manifest's schema by feature; empty without a manifest.

        Of SequenceExamples it has the features of the context.
        """
        return self._core.features

    @property
    def feature_lists(self) -> Mapping[str, FeatureSummary] | None:
        """The types of the steps of SequenceExamples, by feature list; None for Examples.

        Without a schema it is {} if one of the first records is a SequenceExample.
        """
        return self._core.feature_lists

    @property
    def identity(self) -> str:
        """A digest of the records and their order, as text; checkpoints are compared by it."""
        steps = "".join(map(_step_repr, self._steps))
        if not steps:
            return self._core.identity
        return f"{self._core.identity}/{blake2b(steps.encode(), digest_size=8).hexdigest()}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of opening, such as an index file that can not be used; lines of text."""
        return self._core.notes

    @property
    def is_decoded(self) -> bool:
        """Whether records are returned as examples; else as payloads."""
        return self._decode

    @property
    def num_source_records(self) -> int:
        """The number of records in the whole dataset, also for a view."""
        return self._core.places.num_records

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by stage (``read``, ``check``, ``decode``); {} if they are not measured."""
        seconds = self._core.reader.seconds
        return {**seconds, "decode": self._core.decode_s} if seconds else {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_window": (-1, []), "_last": -2}

    def __len__(self) -> int:
        return self._num_rows

    def __repr__(self) -> str:
        # Grain compares a checkpoint with it, so it must be equal in every process.
        what = "examples" if self._decode else "payloads"
        steps = "".join(f", {_step_repr(step)}" for step in self._steps)
        return f"<Dataset {self.name!r}: {len(self):,} {what}{steps}>"

    def _repr_html_(self) -> str:
        types = {name: summary.type for name, summary in self.features.items()}
        shown = list(types.items())[:_MAX_FEATURES_SHOWN]
        rows: list[tuple[str, object]] = [("path", self.path), ("shards", f"{self.num_shards:,}")]
        rows += [(name, type_text(of_type)) for name, of_type in shown]
        if len(types) > len(shown):
            rows.append(("...", f"{len(types) - len(shown):,} more features"))
        return html_table(repr(self), rows)

    def source_index(self, row: int) -> int:
        """Return the item of a record, in source order.

        Without a manifest and an index file, it is the record's number.
        """
        return self._core.source_index(self._record(row))

    def place(self, row: int) -> RecordPlace:
        """Return the location of a record: shard and position."""
        core = self._core
        shard, position = core.places.locate(self._record(row))
        return RecordPlace(core.reader.pool.paths[shard], core.shard_numbers[shard], position)

    def is_pad(self, row: int) -> bool:
        """Return whether a row is padding, which gives all ranks the same number of records."""
        rows = np.array([self._row(row)], np.int64)
        return bool(are_pads(self._steps, rows)[0])

    # -- views -------------------------------------------------------------------------------------

    def _view(self, steps: Steps) -> Dataset:
        return Dataset(self._core, decode=self._decode, steps=steps)

    def raw(self) -> Dataset:
        """Return a view whose records are payloads."""
        return Dataset(self._core, decode=False, steps=self._steps)

    def decoded(self) -> Dataset:
        """Return a view whose records are examples.

        Raises:
            OptionError: The dataset has a feature ``is_pad``, and the view has padding.
        """
        if self._has_pads:
            self._check_pads()
        return Dataset(self._core, decode=True, steps=self._steps)

    def shuffle(self, seed: int = 0, epoch: int = 0) -> Dataset:
        """Return a view of the same records in a random order, without memory for the order.

        Args:
            seed: Seed of the order, from 0 to 2^64 - 1.
            epoch: Each epoch has another order for the same seed.

        Raises:
            OptionError: One of them is out of range.
        """
        for name, value in (("seed", seed), ("epoch", epoch)):
            if not 0 <= as_index(value) < 1 << 64:
                raise OptionError(f"{name} is {value}", hint="give a number from 0 to 2^64 - 1")
        return self._view((*self._steps, Permutation(len(self), as_index(seed), as_index(epoch))))

    def split(
        self, rank: int, world: int, uneven: Uneven | None = None, consumed: int = 0
    ) -> Dataset:
        """Return a rank's partition: records ``rank``, ``rank + world``, ... of this view.

        Args:
            rank: This rank, from 0.
            world: The number of ranks.
            uneven: Policy if ``world`` does not divide the records: ``drop`` the rest; ``wrap``
                around to the first records, so that all ranks have equal numbers; ``pad``, the same
                with these records marked by ``is_pad``; ``error``.
            consumed: Records of this view that all ranks together have read before.

        Raises:
            UnequalSteps: ``world`` does not divide the records, and there is no policy.
            OptionError: A number is out of range, or there is a feature ``is_pad``.
        """
        if uneven == "pad" and self._decode:
            self._check_pads()
        return self._view(
            (*self._steps, partition_for_rank(len(self), rank, world, uneven, consumed))
        )

    def _check_pads(self) -> None:
        if self.feature_lists is not None:
            raise OptionError(
                f"padding is marked by a feature {PAD_KEY!r}, which SequenceExamples can not have",
                hint="use .raw(), or another policy",
            )
        if PAD_KEY in self.features:
            raise OptionError(
                f"padding is marked by {PAD_KEY!r}, and the dataset has a feature of that name",
                hint="use .raw(), or another policy",
            )

    # -- records -----------------------------------------------------------------------------------

    @overload
    def __getitem__(self, rows: slice | Sequence[int] | NDArray[Any]) -> Dataset: ...
    @overload
    def __getitem__(self, rows: int) -> Any: ...

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> Any:
        """Return a record by number, or a view of a slice or of an array of numbers.

        Raises:
            IndexError: There is no such record.
            CorruptFile: The record is damaged.
        """
        if type(rows) is int:  # first, since the fast path takes only 1-2 microseconds
            row = rows + self._num_rows if rows < 0 else rows
            if not self._steps and 0 <= row < self._num_rows:
                return self._one(row, row)
        if isinstance(rows, slice):
            return self._view(select_rows(self._steps, range(*rows.indices(len(self)))))
        if isinstance(rows, list | tuple | range | np.ndarray) and np.ndim(rows):
            return self._view(select_rows(self._steps, self._rows(rows)))
        row = self._row(rows)  # type: ignore[arg-type]
        return self._one(row, self._record(row))

    def _one(self, row: int, record: int) -> Any:
        payload = self._core.payload(record)
        if not self._decode:
            return payload
        example = self._core.example(payload, record)
        if self._has_pads:
            example[PAD_KEY] = self.is_pad(row)
        return example

    def _row(self, row: int) -> int:
        number = as_index(row)
        if number < 0:
            number += self._num_rows
        if not 0 <= number < self._num_rows:
            raise IndexError(f"record {row} of {self._num_rows:,}")
        return number

    def _rows(self, rows: ArrayLike) -> _Int64s:
        numbers = np.asarray(rows)
        if numbers.dtype == np.bool_ and numbers.shape == (len(self),):
            return np.flatnonzero(numbers)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise IndexError(f"rows must be int64[n], not {numbers.dtype}{list(numbers.shape)}")
        if numbers.dtype == np.uint64:  # its upper half would become negative
            numbers = np.minimum(numbers, np.uint64(np.iinfo(np.int64).max))
        numbers = numbers.astype(np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= len(self)))
        if len(wrong):
            raise IndexError(f"record {np.asarray(rows)[wrong[0]]} of {len(self):,}")
        return numbers

    def _record(self, row: int) -> int:
        row = self._row(row)
        if not self._steps:
            return row
        first, records = self._window
        if first <= row < first + len(records):
            return records[row - first]
        last, self._last = self._last, row
        if row != last + 1 and row != first + len(records):
            return to_record(self._steps, row)
        rows = np.arange(row, min(row + _WINDOW, len(self)), dtype=np.int64)
        records = to_records(self._steps, rows).tolist()
        self._window = row, records  # another thread may replace it at any time
        return int(records[0])

    def __getitems__(self, rows: ArrayLike) -> list[Any]:
        """Return many records at once, read in file order."""
        numbers = self._rows(rows)
        return self._read(numbers, to_records(self._steps, numbers))

    def payloads(self, rows: ArrayLike) -> list[bytes]:
        """Return the payloads of many records."""
        return self._core.payloads(to_records(self._steps, self._rows(rows)))

    def columns(self, rows: ArrayLike) -> dict[str, Any]:
        """Return many records as columns: an array or list by feature, with a row per record.

        With padding, ``is_pad`` is a column of bools. Not for SequenceExamples.
        """
        numbers = self._rows(rows)
        records = to_records(self._steps, numbers)
        columns = self._core.columns(self._core.payloads(records), records)
        if self._has_pads:
            columns[PAD_KEY] = are_pads(self._steps, numbers)
        return columns

    def __iter__(self) -> Iterator[Any]:
        """Yield the records in order, from the first; they are read in blocks."""
        core = self._core
        num_records = _WINDOW if core.reads_singly else core.block_records()
        for first in range(0, len(self), num_records):
            rows = np.arange(first, min(first + num_records, len(self)), dtype=np.int64)
            records = to_records(self._steps, rows)
            if core.reads_singly:
                yield from map(self._one, rows.tolist(), records.tolist())
                continue
            for block in core.blocks(records):
                try:
                    examples = self._read(rows[block], records[block])
                except DataError:
                    # Yield the records before a damaged one.
                    yield from map(self._one, rows[block].tolist(), records[block].tolist())
                else:
                    yield from examples
                    del examples

    def _read(self, rows: _Int64s, records: _Int64s) -> list[Any]:
        payloads = self._core.payloads(records)
        if not self._decode:
            return payloads
        examples = self._core.examples(payloads, records)
        if self._has_pads:
            for example, is_pad in zip(examples, are_pads(self._steps, rows).tolist(), strict=True):
                example[PAD_KEY] = is_pad
        return examples

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all files, also for other views; reading then raises ValueError."""
        self._core.reader.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _step_repr(step: Any) -> str:
    if isinstance(step, np.ndarray):
        return f"rows {blake2b(step.tobytes(), digest_size=4).hexdigest()}"
    return repr(step)
