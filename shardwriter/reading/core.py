"""What all views of an open dataset share: its records by their numbers, read and decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from time import perf_counter
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.record_locations import Places
from shardwriter.errors import DataError, ShardwriterError, WireError
from shardwriter.formats.example_wire import payload_kind
from shardwriter.schema.decode import Restorer
from shardwriter.schema.restored_sequences import SequenceRestorer
from shardwriter.schema.schema import FeatureSummary
from shardwriter.sources.shard_records import LARGE_BYTES, RecordReader

_BLOCK_RECORDS: Final = 1 << 12  # what is read at once stays in a core's cache
_MOST_RECORDS: Final = 1 << 17
_BLOCK_BYTES: Final = 2 << 20  # likewise
_MOST_BYTES: Final = 16 << 20
_PEEKED_RECORDS: Final = 8  # one with a context alone passes for an Example
_Int64s: TypeAlias = NDArray[np.int64]


class Core:
    """What all views of an open dataset share.

    Attributes:
        path: What the dataset was opened by.
        name: Its name.
        reader: Reads its records.
        places: Where they are.
        manifest: Its manifest, where it has one and is whole.
        notes: What is worth knowing.
        features: The schema; of SequenceExamples that of the context.
        shard_numbers: The number of each file in its set.
        decode_s: Seconds that decoding took so far, where they are kept.
    """

    def __init__(
        self,
        path: str,
        name: str,
        reader: RecordReader,
        places: Places,
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
        self._told_lists = feature_lists
        self.shard_numbers = shard_numbers
        self.decode_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        made = ("restorer", "identity", "mean_bytes")
        kept = {name: value for name, value in self.__dict__.items() if name not in made}
        return {**kept, "decode_s": 0.0}

    @cached_property
    def feature_lists(self) -> Mapping[str, FeatureSummary] | None:
        """The types of the steps of SequenceExamples; None for Examples.

        Where no schema tells, the first records do: read as an Example, a SequenceExample would
        lose its lists without an error. Of their types nothing is known then.
        """
        if self._told_lists is not None or self.features or not self.places.num_records:
            return self._told_lists
        num_records = 1 if self.reads_singly else min(self.places.num_records, _PEEKED_RECORDS)
        try:
            payloads = self.payloads(np.arange(num_records))
        except ShardwriterError:
            return None  # who reads them will be told
        return {} if "SequenceExample" in map(payload_kind, payloads) else None

    @cached_property
    def restorer(self) -> Restorer | SequenceRestorer:
        """What decodes records."""
        if self.feature_lists is not None:
            return SequenceRestorer(self.features, self.feature_lists)
        return Restorer(self.features)

    @cached_property
    def identity(self) -> str:
        """A digest of the manifest's job and of what is in the shards; without one of all lengths.

        The job alone does not say which items a Python source gave.
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
        """The size of a record, on average."""
        if self.manifest is not None:
            num_bytes = self.manifest.payload_bytes
        else:
            num_bytes = sum(state.num_bytes for state in self.reader.pool.states)
        return max(1, num_bytes // max(1, self.places.num_records))

    @property
    def reads_singly(self) -> bool:
        """Whether records are so large that nothing is gained by reading several at once.

        Memory that the last one has given back is then used for the next one.
        """
        return self.mean_bytes >= LARGE_BYTES

    def block_records(self) -> int:
        """Return how many records to read at a time, on average for as many bytes as a block."""
        most = _BLOCK_RECORDS
        if self._opens_again:
            most = min(max(most, 64 * len(self.shard_numbers)), _MOST_RECORDS)
        return max(1, min(most, self._block_bytes // self.mean_bytes))

    @property
    def _opens_again(self) -> bool:
        """Whether each block opens files that were closed, so that it has to be worth it."""
        return len(self.shard_numbers) > self.reader.pool.max_open

    @property
    def _block_bytes(self) -> int:
        return _MOST_BYTES if self._opens_again else _BLOCK_BYTES

    def blocks(self, records: _Int64s) -> Iterator[slice]:
        """Yield slices of records that are not too large to be read at once."""
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
            return index.inflated_bytes(*self.places.places(records))
        begins, ends = index.spans(*self.places.places(records))
        return int((ends - begins).sum())

    def payloads(self, records: _Int64s) -> list[bytes]:
        """Return records; errors say which item it is."""
        try:
            return self.reader.payloads(*self.places.places(records))
        except DataError:
            return [self.payload(record) for record in records.tolist()]

    def payload(self, record: int) -> bytes:
        """Return one record; errors say which item it is."""
        try:
            return self.reader.payload(*self.places.place(record))
        except ShardwriterError as error:
            raise error.locate(index=self.source_index(record)) from None

    def example(self, payload: bytes, record: int) -> Any:
        """Decode a record; errors say which item it is."""
        started = perf_counter()
        try:
            example: Any = self.restorer.example(payload)
        except ShardwriterError as error:
            self.undecodable(error, record, payload)
            raise
        if self.reader.seconds:
            self.decode_s += perf_counter() - started
        return example

    def examples(self, payloads: Sequence[bytes], records: _Int64s) -> list[Any]:
        """Decode records; errors say which item it is."""
        started = perf_counter()
        try:
            examples: Any = self.restorer.examples(payloads)
        except ShardwriterError as error:
            row = error.record_index or 0
            self.undecodable(error, int(records[row]), payloads[row])
            raise
        if self.reader.seconds:
            self.decode_s += perf_counter() - started
        found: list[Any] = examples
        return found

    def columns(self, payloads: Sequence[bytes], records: _Int64s) -> dict[str, Any]:
        """Decode records as columns; errors say which item it is."""
        started = perf_counter()
        try:
            columns: dict[str, Any] = self.restorer.columns(payloads)
        except ShardwriterError as error:
            row = error.record_index or 0
            self.undecodable(error, int(records[row]), payloads[row])
            raise
        if self.reader.seconds:
            self.decode_s += perf_counter() - started
        return columns

    def undecodable(self, error: ShardwriterError, record: int, payload: bytes) -> None:
        """Complete an error: which record it is, and what it looks like if it is no Example."""
        if isinstance(error, WireError):
            from shardwriter.formats.record_kinds import looks_like

            what = looks_like(payload)
            error.message = (
                f"the record is no tf.train.Example, it looks like {what} ({error.message})"
            )
            error.args = (error.message,)
        shard, position = self.places.place(record)
        error.path, error.record_index = self.reader.pool.paths[shard], position
        error.hint = error.hint or "raw(), or sw.open(PATH, decode=False), gives the bytes"
        error.locate(index=self.source_index(record))

    def source_index(self, record: int) -> int:
        """Return the item that gave a record."""
        return int(self.places.source_index(np.array([record], np.int64))[0])
