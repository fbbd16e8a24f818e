"""From chunks to shards: groups are written as parts, and the parts of a shard are joined.

A group has what a block of runs gave one shard. Its chunks are put in order, held against each
other for holes and duplicates, and written as one part; a chunk that came as a file is a part of
its own. Parts are plain frames: whoever joins them compresses.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.cluster.place import Facts, MadeShard, Place, new_attempt, pack_json, unpack_json
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

# How a sequence of items is cut for the shuffle.
#
# ::
#
#     items      0 ........................................................ T
#     run        N * chunk_records consecutive items: made by one worker, in memory for a moment
#     chunk      what a run has for one shard: framed, one value of the shuffle
#     block      block_runs runs: what a group has of one shard, written as one part
#
# The key of a group is one int, ``block * N + shard``. A chunk that comes out larger than
# ``max_chunk_bytes`` goes around the shuffle, as a file of which only the name is sent. So no group
# has more than ``MAX_GROUP_BYTES``, whatever the sizes of the records are; an eighth of that is
# aimed at. What a worker has of a run in memory is bounded likewise: a chunk is handed on as soon
# as it is whole, and the largest go on in files where all of them together have more than
# ``MAX_RUN_BYTES``.

MAX_GROUP_BYTES: Final = 256 << 20
MAX_RUN_BYTES: Final = 64 << 20
MAX_BLOCK_RUNS: Final = 1 << 13
_MAX_CHUNK_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 18  # aimed at
_RUN_BYTES: Final = MAX_RUN_BYTES // 2  # aimed at
_GROUP_BYTES: Final = MAX_GROUP_BYTES // 8  # aimed at
MAX_CHUNK_RECORDS: Final = 1 << 14


@dataclass(frozen=True)
class Cut:
    """How items are cut.

    Attributes:
        num_shards: N.
        chunk_records: Items of a shard in a run.
        block_runs: Runs in a block.
    """

    num_shards: int
    chunk_records: int
    block_runs: int

    @classmethod
    def of(cls, num_shards: int, mean_bytes: float) -> Cut:
        """Return the cut for records of a mean size, as a sample has it."""
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
        """The most that a chunk may have to be shuffled."""
        return min(_MAX_CHUNK_BYTES, MAX_GROUP_BYTES // self.block_runs)

    def num_runs(self, num_items: int) -> int:
        """Return how many runs there are of T items."""
        return -(-num_items // self.run_items)

    def key(self, run: int, shard: int) -> int:
        """Return the key of the group that a chunk goes to."""
        return run // self.block_runs * self.num_shards + shard

    def block_and_shard(self, key: int) -> tuple[int, int]:
        """Return what a key stands for."""
        return divmod(key, self.num_shards)


# From items to chunks: what a run of consecutive items has for each shard, framed and counted.

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
            :class:`shardwriter.cluster.place.Facts`.
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
            key_sum: See :class:`shardwriter.cluster.place.Facts`.

        Raises:
            ShardwriterError: An item is at fault, or the file system.
        """
        encoder = self._new_encoder()
        facts = Facts(encoder.encoder.stats)
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
        records: Iterable[tuple[int, ItemResult]],
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

        def open_file() -> tuple[str, OutputFile]:
            path = self._place.part_path(shard, run // self._cut.block_runs, new_attempt())
            return path, storage.create(path)

        return _Growing(first_row, self._cut.max_chunk_bytes, open_file, storage.complete)


_COPY_BYTES: Final = 1 << 20


class Part(NamedTuple):
    """A piece of a shard.

    Attributes:
        path: Its file: frames and nothing else.
        sizes: u32[n] payload bytes of its records.
        crc32c: Of the file.
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
    """What a block of runs gave a shard.

    Attributes:
        block: Its number.
        first_row: Place of its first item among the items of the shard.
        num_items: Items of the shard, those without a record included.
        parts: Their records, in order.
        facts: Of all runs whose facts came with these chunks; None where none did.
    """

    block: int
    first_row: int
    num_items: int
    parts: list[Part]
    facts: bytes | None

    def to_bytes(self) -> bytes:
        """Return all of it."""
        parts = [tuple(part) for part in self.parts]
        return pickle.dumps((self.block, self.first_row, self.num_items, parts, self.facts), 5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Block:
        """Return what :meth:`to_bytes` has told."""
        block, first_row, num_items, parts, facts = pickle.loads(data)
        return cls(block, first_row, num_items, [Part(*part) for part in parts], facts)


def write_block(place: Place, cut: Cut, label: str, key: int, values: Iterable[bytes]) -> Block:
    """Write a group as parts.

    Args:
        place: Where.
        cut: How items were cut.
        label: The feature whose values are counted.
        key: Of the group.
        values: Its chunks, in any order.

    Raises:
        AssignmentError: A run is missing, or two chunks of one run differ.
    """
    number, shard = cut.block_and_shard(key)
    chunks = _in_order(map(Chunk.from_bytes, values), shard)
    facts: Facts | None = None
    parts: list[Part] = []
    for is_file, some in groupby(chunks, key=lambda chunk: chunk.path is not None):
        if is_file:
            parts += [Part(chunk.path or "", chunk.sizes, chunk.crc32c) for chunk in some]
        else:
            parts += _written(place, number, shard, list(some))
    for chunk in chunks:
        if chunk.facts is not None:
            found = Facts.from_json(unpack_json(chunk.facts), cut.num_shards)
            facts = facts or Facts(RecordStats.of(label, cut.num_shards))
            facts.merge(found)
    told = None if facts is None else pack_json(facts.to_json())
    first_row = next((chunk.first_row for chunk in chunks if chunk.num_items), 0)
    num_items = sum(chunk.num_items for chunk in chunks)
    return Block(number, first_row, num_items, parts, told)


def _in_order(chunks: Iterable[Chunk], shard: int) -> list[Chunk]:
    by_run: dict[int, Chunk] = {}
    for chunk in chunks:
        if chunk.run == SEED:
            continue
        there = by_run.setdefault(chunk.run, chunk)
        # A runner may deliver twice what was tried twice; the path is that of either attempt.
        if (there.num_items, there.sizes, there.crc32c) != (
            chunk.num_items,
            chunk.sizes,
            chunk.crc32c,
        ):
            raise AssignmentError(
                f"run {chunk.run} was made twice, with other records the second time",
                shard=shard,
                hint="the source or the map gives other records each time; a random map takes its "
                "seed from current_worker().item_seed",
            )
    in_order = [by_run[run] for run in sorted(by_run)]
    _check_rows(in_order, shard)
    return in_order


def _check_rows(pieces: Sequence[Chunk | Block], shard: int, start: int | None = None) -> None:
    """Refuse pieces of a shard that do not follow each other without a hole."""
    for piece in pieces:
        if not piece.num_items:
            continue
        if start is not None and piece.first_row != start:
            raise AssignmentError(
                f"items are missing on the way: item {start:,} of the shard is followed by item "
                f"{piece.first_row:,}",
                shard=shard,
            )
        start = piece.first_row + piece.num_items


def _written(place: Place, block: int, shard: int, chunks: Sequence[Chunk]) -> Iterator[Part]:
    frames = b"".join([piece for chunk in chunks for piece in chunk.frames])
    if not frames:
        return
    path = place.part_path(shard, block, new_attempt())
    file = place.storage.create(path)
    file.write(frames)
    place.storage.complete(path)
    file.close()
    yield Part(path, b"".join(chunk.sizes for chunk in chunks), crc32c(frames))


def join_blocks(
    place: Place, packing: Packing, label: str, shard: int, values: Iterable[bytes]
) -> MadeShard:
    """Join the parts of a shard.

    Args:
        place: Where.
        packing: How shards are compressed.
        label: The feature whose values are counted.
        shard: Its number.
        values: Its blocks, in any order.

    Raises:
        AssignmentError: A block is missing.
        StorageError: A part is not what was written.
    """
    by_number = {block.block: block for block in map(Block.from_bytes, values)}
    blocks = [by_number[number] for number in sorted(by_number)]
    _check_rows(blocks, shard, 0)
    facts = Facts(RecordStats.of(label, place.num_shards))
    for block in blocks:
        if block.facts is not None:
            facts.merge(Facts.from_json(unpack_json(block.facts), place.num_shards))
    parts = [part for block in blocks for part in block.parts]
    attempt = new_attempt()
    path, index_path = place.shard_path(shard, attempt), place.index_path(shard, attempt)
    if packing.is_plain:
        sealed, path = _joined(place, parts, path)
        _write_index(place, parts, index_path)
    else:
        sealed = _packed(place, packing, parts, path, index_path)
    return MadeShard(shard, sealed, path, index_path, facts)


def _joined(place: Place, parts: Sequence[Part], path: str) -> tuple[SealedShard, str]:
    """Join plain parts into a plain shard; return where it is."""
    storage = place.storage
    num_bytes = sum(part.num_bytes for part in parts)
    num_records = sum(len(part.sizes) // 4 for part in parts)
    crc = 0
    for part in parts:
        crc = combine_crc32c(crc, part.crc32c, part.num_bytes)
    sealed = SealedShard(num_records, num_bytes - FRAME_BYTES * num_records, num_bytes, crc)
    if len(parts) == 1 and not place.writes_final_names:
        storage.sync(parts[0].path)
        return sealed, parts[0].path  # it is the shard
    if isinstance(storage, ComposingStorage) and parts:
        storage.compose(
            [part.path for part in parts],
            path,
            num_bytes=num_bytes,
            crc32c=crc,
            new=place.writes_final_names,
        )
        return sealed, path
    file = storage.create(path, new=place.writes_final_names)
    for part in parts:
        found = 0
        with storage.open(part.path) as source:
            while data := source.read(_COPY_BYTES):
                found = extend_crc32c(found, data)
                file.write(data)
        if found != part.crc32c:
            file.close()
            raise StorageError("it is not what was written here", path=part.path)
    storage.sync(path)
    file.close()
    return sealed, path


def _write_index(place: Place, parts: Sequence[Part], index_path: str) -> None:
    sizes = np.frombuffer(b"".join(part.sizes for part in parts), "<u4")
    file = place.storage.create(index_path)
    file.write(frame_ends(sizes).astype("<u8").tobytes())
    place.storage.sync(index_path)
    file.close()


def _packed(
    place: Place, packing: Packing, parts: Sequence[Part], path: str, index_path: str
) -> SealedShard:
    """Join plain parts into a compressed shard."""
    storage = place.storage
    new = place.writes_final_names
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
