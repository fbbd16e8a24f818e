"""From items to chunks: what a run of consecutive items has for each shard, framed and counted."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from shardwriter.cluster.cut import MAX_RUN_BYTES, Cut
from shardwriter.cluster.place import Place, new_attempt
from shardwriter.cluster.results import Facts, pack_json
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.storage.protocol import GrowingFile
from shardwriter.writing.encode import ItemEncoder, Made

SEED: Final = -1
"""The run of a chunk without items: with it every shard has a group, those without records too."""

_BUFFER_BYTES: Final = 1 << 20
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class Chunk:
    """What a run has for a shard.

    Attributes:
        run: Its number.
        first_row: Place of its first item among the items of the shard: i div N.
        num_items: Items, those without a record included.
        sizes: u32[n] payload bytes of each record.
        crc32c: Of the frames.
        frames: The frames, in pieces; none where they lie in a file.
        path: That file.
        facts: Of all items of the run, with one of its chunks; see
            :class:`shardwriter.cluster.results.Facts`.
    """

    run: int
    first_row: int
    num_items: int
    sizes: bytes = b""
    crc32c: int = 0
    frames: Sequence[bytes | memoryview] = ()
    path: str | None = None
    facts: bytes | None = None

    def to_bytes(self) -> bytes:
        """Return all of it: the frames as they are, for they are most of it, behind the rest."""
        rest = pickle.dumps(replace(self, frames=()), 5)
        return b"".join((_U64.pack(len(rest)), rest, *self.frames))

    @classmethod
    def from_bytes(cls, data: bytes) -> Chunk:
        """Return what :meth:`to_bytes` has told; the frames are not copied."""
        end = _U64.size + _U64.unpack_from(data)[0]
        chunk: Chunk = pickle.loads(data[_U64.size : end])
        return replace(chunk, frames=(memoryview(data)[end:],))


class _Growing:
    """The frames of a chunk: in memory, and in a file once they are many."""

    def __init__(
        self,
        first_row: int,
        max_bytes: int,
        open_file: Callable[[], tuple[str, GrowingFile]],
        complete: Callable[[str], None],
    ) -> None:
        self._first_row = first_row
        self._max_bytes = max_bytes
        self._open_file = open_file
        self._complete = complete
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._file: GrowingFile | None = None
        self.is_in_memory = True
        self.memory_bytes = 0  # of records, as whoever writes them counts them
        self._path: str | None = None
        self._sizes: list[int] = []
        self.num_items = 0
        buffer_bytes = min(_BUFFER_BYTES, max_bytes)
        self.writer = TFRecordWriter(self, buffer_bytes=buffer_bytes, on_flush=self._sizes.extend)

    def write(self, data: bytes, /) -> None:
        """Take frames from the writer."""
        self._num_bytes += len(data)
        if self._file is None:
            self._parts.append(data)
            if self._num_bytes > self._max_bytes:
                self._move()
        else:
            self._file.write(data)

    def spill(self) -> None:
        """Go on in a file, though the frames are not many."""
        self.writer.flush()
        if self._file is None:
            self._move()

    def _move(self) -> None:
        self.is_in_memory = False
        self._path, self._file = self._open_file()
        self._file.write(b"".join(self._parts))
        self._parts.clear()

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()

    def chunk(self, run: int) -> Chunk:
        """Return the chunk; no record comes afterwards."""
        self.writer.flush()
        if self._path is not None:
            self._complete(self._path)
        crc32c = self.writer.crc32c
        self.writer.close()
        sizes = np.array(self._sizes, "<u4").tobytes()
        return Chunk(run, self._first_row, self.num_items, sizes, crc32c, self._parts, self._path)


class ChunkMaker:
    """Makes the chunks of runs, one run after the other.

    Args:
        cut: How items are cut.
        place: Where large chunks go.
        new_encoder: Returns a fresh encoder: what it learns belongs to one run.
        max_errors: How many items of a run may give an error; None for any number.
    """

    def __init__(
        self,
        cut: Cut,
        place: Place,
        new_encoder: Callable[[], ItemEncoder],
        max_errors: int | None = None,
    ) -> None:
        self._cut = cut
        self._place = place
        self._new_encoder = new_encoder
        self._max_errors = max_errors

    def make(
        self,
        run: int,
        items: Iterable[tuple[int, Any]],
        num_items: Callable[[], int | None] = lambda: None,
        key_sum: int = 0,
    ) -> Iterator[tuple[int, Chunk]]:
        """Yield the key and the chunk of each shard that has items in a run.

        Args:
            run: Its number.
            items: Index and descriptor of its items, in order of index.
            num_items: Tells T, where the items have come to the source's end.
            key_sum: See :class:`shardwriter.cluster.results.Facts`.

        Raises:
            ShardwriterError: An item is at fault, or the file system.
        """
        encoder = self._new_encoder()
        facts = Facts(encoder.encoder.learnt)
        growing: dict[int, _Growing] = {}
        last: tuple[int, Chunk] | None = None  # the facts, when all are known, go with the last one
        try:
            for key, chunk in self._chunks(run, encoder.records(items), growing, facts):
                if last is not None:
                    yield last
                last = key, chunk
        finally:
            for mine in growing.values():  # there are some only where it was stopped
                mine.writer.discard()
        facts.num_items = num_items()
        facts.key_sum = key_sum
        key, chunk = last or (self._cut.key(run, 0), Chunk(run, 0, 0))
        yield key, replace(chunk, facts=pack_json(facts.to_json()))

    def _chunks(
        self,
        run: int,
        records: Iterable[tuple[int, Made]],
        growing: dict[int, _Growing],
        facts: Facts,
    ) -> Iterator[tuple[int, Chunk]]:
        """Deal records, and yield chunks as soon as they have all of their items."""
        num_shards, chunk_records = self._cut.num_shards, self._cut.chunk_records
        memory_bytes = 0
        for index, made in records:
            shard = index % num_shards
            mine = growing.get(shard)
            if mine is None:
                mine = growing[shard] = self._growing(run, shard, index // num_shards)
            mine.num_items += 1
            if type(made) is bytes:
                mine.writer.write(made)
                if mine.is_in_memory:
                    mine.memory_bytes += len(made)
                    memory_bytes += len(made)
                else:
                    memory_bytes -= mine.memory_bytes
                    mine.memory_bytes = 0
            else:
                facts.note_gap(index, made, self._max_errors)
            if mine.num_items == chunk_records:
                memory_bytes -= mine.memory_bytes
                yield self._cut.key(run, shard), mine.chunk(run)
                del growing[shard]
            elif memory_bytes > MAX_RUN_BYTES:
                largest = max(growing.values(), key=lambda one: one.memory_bytes)
                memory_bytes -= largest.memory_bytes
                largest.memory_bytes = 0
                largest.spill()
        for shard in sorted(growing):
            yield self._cut.key(run, shard), growing[shard].chunk(run)
            del growing[shard]

    def _growing(self, run: int, shard: int, first_row: int) -> _Growing:
        storage = self._place.storage

        def open_file() -> tuple[str, GrowingFile]:
            path = self._place.part_path(shard, run // self._cut.block_runs, new_attempt())
            return path, storage.create(path)

        return _Growing(first_row, self._cut.max_chunk_bytes, open_file, storage.complete)
