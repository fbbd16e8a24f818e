"""The shuffle of a Beam job: from runs of items to chunks, parts and shards.

::

    items      0 ........................................................ T
    run        N * chunk_records consecutive items: encoded by one worker
    chunk      the records of a run for one shard: framed, one value of the shuffle
    block      block_runs runs; the chunks of a block for one shard are a group, written as one part

The key of a group is one int, ``block * N + shard``. A chunk larger than ``max_chunk_bytes`` is
written to a file, and only its name is shuffled. So no group has more than ``MAX_GROUP_BYTES``,
whatever the sizes of the records are; the target is an eighth of that. The memory of a run is
limited too: a chunk is yielded as soon as it is complete, and the largest continue in files once
all together have more than ``MAX_RUN_BYTES``.

The chunks of a group are sorted, checked for holes and duplicates, and written as one part; a chunk
in a file is a part of its own. Parts are plain frames; joining them into a shard compresses.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.cluster.launch import (
    Facts,
    FinishedShard,
    LaunchOutput,
    new_attempt,
    pack_json,
    unpack_json,
)
from shardwriter.dataset import SealedShard, frame_ends
from shardwriter.errors import AssignmentError, StorageError
from shardwriter.formats import (
    FRAME_BYTES,
    Packing,
    TFRecordWriter,
    combine_crc32c,
    extend_crc32c,
    read_frames,
)
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema import RecordStats
from shardwriter.storage import ComposingStorage, OutputFile
from shardwriter.writing import ItemEncoder, ItemResult, ShardFile, open_record_writer

MAX_GROUP_BYTES: Final = 256 << 20
MAX_RUN_BYTES: Final = 64 << 20
MAX_BLOCK_RUNS: Final = 1 << 13
_MAX_CHUNK_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 18  # target
_RUN_BYTES: Final = MAX_RUN_BYTES // 2  # target
_GROUP_BYTES: Final = MAX_GROUP_BYTES // 8  # target
MAX_CHUNK_RECORDS: Final = 1 << 14


@dataclass(frozen=True)
class Partitioning:
    """The sizes of runs, chunks and blocks.

    Attributes:
        num_shards: N.
        chunk_records: Items of a shard in a run.
        block_runs: Runs in a block.
    """

    num_shards: int
    chunk_records: int
    block_runs: int

    @classmethod
    def of(cls, num_shards: int, mean_bytes: float) -> Partitioning:
        """Return the partitioning for records of a mean size in bytes."""
        frame_bytes = max(1.0, mean_bytes)
        chunk_bytes = min(_CHUNK_BYTES, _RUN_BYTES / num_shards)
        records = max(1, min(MAX_CHUNK_RECORDS, int(chunk_bytes / frame_bytes)))
        runs = max(1, min(MAX_BLOCK_RUNS, int(_GROUP_BYTES / (records * frame_bytes))))
        return cls(num_shards, records, runs)

    @property
    def run_items(self) -> int:
        """Items in a run."""
        return self.num_shards * self.chunk_records

    @property
    def max_chunk_bytes(self) -> int:
        """Maximum bytes of a chunk that is shuffled; larger ones are written to files."""
        return min(_MAX_CHUNK_BYTES, MAX_GROUP_BYTES // self.block_runs)

    def num_runs(self, num_items: int) -> int:
        """Return the number of runs of T items."""
        return -(-num_items // self.run_items)

    def key(self, run: int, shard: int) -> int:
        """Return the key of the group of a chunk."""
        return run // self.block_runs * self.num_shards + shard

    def block_and_shard(self, key: int) -> tuple[int, int]:
        """Return the block and the shard of a group's key."""
        return divmod(key, self.num_shards)


SEED: Final = -1
"""The run of a chunk without items, which gives every shard a group, also without records."""

_BUFFER_BYTES: Final = 1 << 20
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class Chunk:
    """The records of a run for one shard.

    Attributes:
        run: The number of the run.
        first_row: Position of its first item among the items of the shard: i div N.
        num_items: Number of items, those without a record included.
        sizes: u32[n] payload bytes of each record.
        crc32c: CRC of the frames.
        frames: The frames, in buffers; none if they are in a file.
        path: That file.
        facts: Facts about all items of the run, in one of its chunks only; see
            :class:`shardwriter.cluster.launch.Facts`.
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
        """Return the chunk, packed: u64 size of a header, pickled header, frames."""
        header = pickle.dumps(replace(self, frames=()), 5)
        return b"".join((_U64.pack(len(header)), header, *self.frames))

    @classmethod
    def from_bytes(cls, data: bytes) -> Chunk:
        """Return the chunk from the bytes of :meth:`to_bytes`; the frames are not copied."""
        end = _U64.size + _U64.unpack_from(data)[0]
        chunk: Chunk = pickle.loads(data[_U64.size : end])
        return replace(chunk, frames=(memoryview(data)[end:],))


class _ChunkBuffer:
    """The frames of an unfinished chunk: in memory, or in a file if they are many."""

    def __init__(
        self,
        first_row: int,
        max_bytes: int,
        open_file: Callable[[], tuple[str, OutputFile]],
        complete: Callable[[str], None],
    ) -> None:
        self._first_row = first_row
        self._max_bytes = max_bytes
        self._open_file = open_file
        self._complete = complete
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._file: OutputFile | None = None
        self.is_in_memory = True
        self.memory_bytes = 0  # of records in memory, counted by ChunkWriter
        self._path: str | None = None
        self._sizes: list[int] = []
        self.num_items = 0
        buffer_bytes = min(_BUFFER_BYTES, max_bytes)
        self.writer = TFRecordWriter(self, buffer_bytes=buffer_bytes, on_flush=self._sizes.extend)

    def write(self, data: bytes, /) -> None:
        """Append frames; called by the record writer."""
        self._num_bytes += len(data)
        if self._file is None:
            self._parts.append(data)
            if self._num_bytes > self._max_bytes:
                self._move_to_file()
        else:
            self._file.write(data)

    def spill(self) -> None:
        """Move the frames to a file."""
        self.writer.flush()
        if self._file is None:
            self._move_to_file()

    def _move_to_file(self) -> None:
        self.is_in_memory = False
        self._path, self._file = self._open_file()
        self._file.write(b"".join(self._parts))
        self._parts.clear()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def chunk(self, run: int) -> Chunk:
        """Return the chunk; no record may be written afterwards."""
        self.writer.flush()
        if self._path is not None:
            self._complete(self._path)
        crc32c = self.writer.crc32c
        self.writer.close()
        sizes = np.array(self._sizes, "<u4").tobytes()
        return Chunk(run, self._first_row, self.num_items, sizes, crc32c, self._parts, self._path)


class ChunkWriter:
    """Encodes runs as chunks, one run after the other.

    Args:
        partitioning: The sizes of runs and chunks.
        out: The output of the launch, for large chunks.
        new_encoder: Returns a new encoder, whose statistics are of one run.
        max_errors: Maximum number of errors in a run; None for any number.
    """

    def __init__(
        self,
        partitioning: Partitioning,
        out: LaunchOutput,
        new_encoder: Callable[[], ItemEncoder],
        max_errors: int | None = None,
    ) -> None:
        self._partitioning = partitioning
        self._out = out
        self._new_encoder = new_encoder
        self._max_errors = max_errors

    def write(
        self,
        run: int,
        items: Iterable[tuple[int, Any]],
        num_items: Callable[[], int | None] = lambda: None,
        key_sum: int = 0,
    ) -> Iterator[tuple[int, Chunk]]:
        """Yield the key and the chunk of each shard that has items in a run.

        Args:
            run: The number of the run.
            items: Index and descriptor of its items, in order of index.
            num_items: Returns T after the last item, if these are the last of the source.
            key_sum: See :class:`shardwriter.cluster.launch.Facts`.

        Raises:
            ShardwriterError: An item can not be encoded, or a file not be written.
        """
        encoder = self._new_encoder()
        facts = Facts(encoder.encoder.stats)
        buffers: dict[int, _ChunkBuffer] = {}
        last: tuple[int, Chunk] | None = None  # the last chunk has the facts of all items
        try:
            for key, chunk in self._chunks(run, encoder.records(items), buffers, facts):
                if last is not None:
                    yield last
                last = key, chunk
        finally:
            for buffer in buffers.values():  # there are some only after an error
                buffer.writer.discard()
        facts.num_items = num_items()
        facts.key_sum = key_sum
        key, chunk = last or (self._partitioning.key(run, 0), Chunk(run, 0, 0))
        yield key, replace(chunk, facts=pack_json(facts.to_json()))

    def _chunks(
        self,
        run: int,
        records: Iterable[tuple[int, ItemResult]],
        buffers: dict[int, _ChunkBuffer],
        facts: Facts,
    ) -> Iterator[tuple[int, Chunk]]:
        """Assign records to chunks, and yield chunks as soon as they have all of their items."""
        num_shards, chunk_records = self._partitioning.num_shards, self._partitioning.chunk_records
        memory_bytes = 0
        for index, result in records:
            shard = index % num_shards
            buffer = buffers.get(shard)
            if buffer is None:
                buffer = buffers[shard] = self._new_buffer(run, shard, index // num_shards)
            buffer.num_items += 1
            if type(result) is bytes:
                buffer.writer.write(result)
                if buffer.is_in_memory:
                    buffer.memory_bytes += len(result)
                    memory_bytes += len(result)
                else:
                    memory_bytes -= buffer.memory_bytes
                    buffer.memory_bytes = 0
            else:
                facts.note_gap(index, result, self._max_errors)
            if buffer.num_items == chunk_records:
                memory_bytes -= buffer.memory_bytes
                yield self._partitioning.key(run, shard), buffer.chunk(run)
                del buffers[shard]
            elif memory_bytes > MAX_RUN_BYTES:
                largest = max(buffers.values(), key=lambda each: each.memory_bytes)
                memory_bytes -= largest.memory_bytes
                largest.memory_bytes = 0
                largest.spill()
        for shard in sorted(buffers):
            yield self._partitioning.key(run, shard), buffers[shard].chunk(run)
            del buffers[shard]

    def _new_buffer(self, run: int, shard: int, first_row: int) -> _ChunkBuffer:
        storage = self._out.storage

        def open_file() -> tuple[str, OutputFile]:
            path = self._out.part_path(shard, run // self._partitioning.block_runs, new_attempt())
            return path, storage.create(path)

        return _ChunkBuffer(
            first_row, self._partitioning.max_chunk_bytes, open_file, storage.complete
        )


_COPY_BYTES: Final = 1 << 20


class Part(NamedTuple):
    """A part of a shard.

    Attributes:
        path: Its file, of frames only.
        sizes: u32[n] payload bytes of its records.
        crc32c: CRC of the file.
    """

    path: str
    sizes: bytes
    crc32c: int

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        sizes = np.frombuffer(self.sizes, "<u4")
        return int(sizes.sum(dtype=np.int64)) + FRAME_BYTES * len(sizes)


@dataclass(frozen=True)
class Block:
    """The parts of a shard from one block of runs.

    Attributes:
        block: The number of the block.
        first_row: Position of its first item among the items of the shard.
        num_items: Items of the shard, those without a record included.
        parts: Their records, in order.
        facts: The facts that came with these chunks; None if none did.
    """

    block: int
    first_row: int
    num_items: int
    parts: list[Part]
    facts: bytes | None

    def to_bytes(self) -> bytes:
        """Return the block, packed."""
        parts = [tuple(part) for part in self.parts]
        return pickle.dumps((self.block, self.first_row, self.num_items, parts, self.facts), 5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Block:
        """Return the block from the bytes of :meth:`to_bytes`."""
        block, first_row, num_items, parts, facts = pickle.loads(data)
        return cls(block, first_row, num_items, [Part(*part) for part in parts], facts)


def write_block(
    out: LaunchOutput, partitioning: Partitioning, label: str, key: int, values: Iterable[bytes]
) -> Block:
    """Write a group as parts.

    Args:
        out: The output of the launch.
        partitioning: The partitioning of the items.
        label: The feature whose values are counted.
        key: The key of the group.
        values: Its chunks, in any order.

    Raises:
        AssignmentError: A run is missing, or two chunks of one run differ.
    """
    number, shard = partitioning.block_and_shard(key)
    chunks = _in_order(map(Chunk.from_bytes, values), shard)
    facts: Facts | None = None
    parts: list[Part] = []
    for is_file, run_chunks in groupby(chunks, key=lambda chunk: chunk.path is not None):
        if is_file:
            parts += [Part(chunk.path or "", chunk.sizes, chunk.crc32c) for chunk in run_chunks]
        else:
            parts += _write_part(out, number, shard, list(run_chunks))
    for chunk in chunks:
        if chunk.facts is not None:
            found = Facts.from_json(unpack_json(chunk.facts), partitioning.num_shards)
            facts = facts or Facts(RecordStats.of(label, partitioning.num_shards))
            facts.merge(found)
    packed_facts = None if facts is None else pack_json(facts.to_json())
    first_row = next((chunk.first_row for chunk in chunks if chunk.num_items), 0)
    num_items = sum(chunk.num_items for chunk in chunks)
    return Block(number, first_row, num_items, parts, packed_facts)


def _in_order(chunks: Iterable[Chunk], shard: int) -> list[Chunk]:
    by_run: dict[int, Chunk] = {}
    for chunk in chunks:
        if chunk.run == SEED:
            continue
        first = by_run.setdefault(chunk.run, chunk)
        # A runner may deliver the chunks of two attempts, which differ in the path only.
        if (first.num_items, first.sizes, first.crc32c) != (
            chunk.num_items,
            chunk.sizes,
            chunk.crc32c,
        ):
            raise AssignmentError(
                f"run {chunk.run} was written twice, with different records",
                shard=shard,
                hint="the source or the map gives different records each time; seed a random map "
                "with current_worker().item_seed",
            )
    in_order = [by_run[run] for run in sorted(by_run)]
    _check_rows(in_order, shard)
    return in_order


def _check_rows(pieces: Sequence[Chunk | Block], shard: int, start: int | None = None) -> None:
    """Refuse chunks or blocks of a shard with missing items between them."""
    for piece in pieces:
        if not piece.num_items:
            continue
        if start is not None and piece.first_row != start:
            raise AssignmentError(
                f"items are missing: item {start:,} of the shard is followed by item "
                f"{piece.first_row:,}",
                shard=shard,
            )
        start = piece.first_row + piece.num_items


def _write_part(
    out: LaunchOutput, block: int, shard: int, chunks: Sequence[Chunk]
) -> Iterator[Part]:
    frames = b"".join([piece for chunk in chunks for piece in chunk.frames])
    if not frames:
        return
    path = out.part_path(shard, block, new_attempt())
    file = out.storage.create(path)
    file.write(frames)
    out.storage.complete(path)
    file.close()
    yield Part(path, b"".join(chunk.sizes for chunk in chunks), crc32c(frames))


def join_blocks(
    out: LaunchOutput, packing: Packing, label: str, shard: int, values: Iterable[bytes]
) -> FinishedShard:
    """Join the parts of a shard.

    Args:
        out: The output of the launch.
        packing: The compression of the shards.
        label: The feature whose values are counted.
        shard: The number of the shard.
        values: Its blocks, in any order.

    Raises:
        AssignmentError: A block is missing.
        StorageError: A part has changed since it was written.
    """
    by_number = {block.block: block for block in map(Block.from_bytes, values)}
    blocks = [by_number[number] for number in sorted(by_number)]
    _check_rows(blocks, shard, 0)
    facts = Facts(RecordStats.of(label, out.num_shards))
    for block in blocks:
        if block.facts is not None:
            facts.merge(Facts.from_json(unpack_json(block.facts), out.num_shards))
    parts = [part for block in blocks for part in block.parts]
    attempt = new_attempt()
    path, index_path = out.shard_path(shard, attempt), out.index_path(shard, attempt)
    if packing.is_plain:
        sealed, path = _joined(out, parts, path)
        _write_index(out, parts, index_path)
    else:
        sealed = _packed(out, packing, parts, path, index_path)
    return FinishedShard(shard, sealed, path, index_path, facts)


def _joined(out: LaunchOutput, parts: Sequence[Part], path: str) -> tuple[SealedShard, str]:
    """Join plain parts into a plain shard; return it and its path."""
    storage = out.storage
    num_bytes = sum(part.num_bytes for part in parts)
    num_records = sum(len(part.sizes) // 4 for part in parts)
    crc = 0
    for part in parts:
        crc = combine_crc32c(crc, part.crc32c, part.num_bytes)
    sealed = SealedShard(num_records, num_bytes - FRAME_BYTES * num_records, num_bytes, crc)
    if len(parts) == 1 and not out.writes_final_names:
        storage.sync(parts[0].path)
        return sealed, parts[0].path  # the part is the shard
    if isinstance(storage, ComposingStorage) and parts:
        storage.compose(
            [part.path for part in parts],
            path,
            num_bytes=num_bytes,
            crc32c=crc,
            new=out.writes_final_names,
        )
        return sealed, path
    file = storage.create(path, new=out.writes_final_names)
    for part in parts:
        found = 0
        with storage.open(part.path) as source:
            while data := source.read(_COPY_BYTES):
                found = extend_crc32c(found, data)
                file.write(data)
        if found != part.crc32c:
            file.close()
            raise StorageError("the file has changed since it was written", path=part.path)
    storage.sync(path)
    file.close()
    return sealed, path


def _write_index(out: LaunchOutput, parts: Sequence[Part], index_path: str) -> None:
    sizes = np.frombuffer(b"".join(part.sizes for part in parts), "<u4")
    file = out.storage.create(index_path)
    file.write(frame_ends(sizes).astype("<u8").tobytes())
    out.storage.sync(index_path)
    file.close()


def _packed(
    out: LaunchOutput, packing: Packing, parts: Sequence[Part], path: str, index_path: str
) -> SealedShard:
    """Join plain parts into a compressed shard."""
    storage = out.storage
    new = out.writes_final_names
    with ShardFile(
        storage,
        path,
        index_path,
        lambda on_flush: open_record_writer(storage, path, packing, on_flush, new=new),
        compressed=True,
    ) as shard_file:
        for part in parts:
            with storage.open(part.path) as source:
                for record in read_frames(source):
                    shard_file.write(record)
        return shard_file.seal()
