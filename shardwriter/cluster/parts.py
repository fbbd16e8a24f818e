"""From chunks to shards: groups are written as parts, and the parts of a shard are joined.

A group has what a block of runs gave one shard. Its chunks are put in order, held against each
other for holes and duplicates, and written as one part; a chunk that came as a file is a part of
its own. Parts are plain frames: whoever joins them compresses.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from shardwriter.cluster.chunks import SEED, Chunk
from shardwriter.cluster.cut import Cut
from shardwriter.cluster.place import Place, new_attempt
from shardwriter.cluster.results import Facts, MadeShard, pack_json, unpack_json
from shardwriter.dataset.index import frame_ends
from shardwriter.dataset.manifest import SealedShard
from shardwriter.errors import LawViolation, StorageError
from shardwriter.formats.crc32c import combine_crc32c, crc32c, extend_crc32c
from shardwriter.formats.packing import Packing
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.schema.record_stats import Learnt
from shardwriter.storage.protocol import ComposingStorage
from shardwriter.writing.open_shards import open_record_writer
from shardwriter.writing.shard import ShardFile

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
        LawViolation: A run is missing, or two chunks of one run differ.
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
            facts = facts or Facts(Learnt.of(label, cut.num_shards))
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
            raise LawViolation(
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
            raise LawViolation(
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
        LawViolation: A block is missing.
        StorageError: A part is not what was written.
    """
    by_number = {block.block: block for block in map(Block.from_bytes, values)}
    blocks = [by_number[number] for number in sorted(by_number)]
    _check_rows(blocks, shard, 0)
    facts = Facts(Learnt.of(label, place.num_shards))
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
