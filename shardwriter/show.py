"""Looking at records: a few of a dataset, in reading order, decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from shardwriter.errors import CorruptFile, WireError
from shardwriter.example import decode_example, payload_kind
from shardwriter.index import Index
from shardwriter.layout import position, source_index
from shardwriter.locate import ShardSet, find_one
from shardwriter.tfrecord import FRAME_BYTES, read_frames, read_records


@dataclass(frozen=True)
class ShownRecord:
    """One record with its place.

    Attributes:
        index: Its number in reading order.
        path: The shard.
        record_index: Its number in the shard.
        payload_bytes: Its size.
        kind: ``Example``, ``SequenceExample`` or ``other``.
        features: Decoded features of an Example.
    """

    index: int
    path: str
    record_index: int
    payload_bytes: int
    kind: str
    features: dict[str, Any]


def read_some(path: str, start: int = 0, count: int = 1) -> Iterator[ShownRecord]:
    """Yield records ``start`` to ``start + count`` of a dataset or file, decoded.

    A dataset of ours is read through its index; other sets are read from their beginning, one
    record of each shard in turn.

    Raises:
        CorruptFile: A record on the way is damaged.
    """
    shard_set = find_one(path)
    for index, place, shard_path, payload in _select(shard_set, start, count):
        kind = payload_kind(payload)
        features: dict[str, Any] = {}
        if kind == "Example":
            try:
                features = decode_example(payload)
            except WireError:
                kind = "other"
        yield ShownRecord(index, shard_path, place, len(payload), kind, features)


def _select(shard_set: ShardSet, start: int, count: int) -> Iterator[tuple[int, int, str, bytes]]:
    manifest = shard_set.manifest
    paths = dict(shard_set.shards)
    if manifest is not None and not shard_set.missing:
        index_path = os.path.join(shard_set.directory, manifest.index.file)
        if os.path.exists(index_path):
            index = Index(index_path)
            for record in range(start, min(start + count, manifest.num_records)):
                item = source_index(record, manifest.gaps)
                shard = item % manifest.num_shards
                place = position(item, manifest.num_shards, manifest.gaps)
                payload = read_one(paths[shard], *index.frame_span(shard, place))
                yield record, place, paths[shard], payload
            return
    for record, (place, shard_path, payload) in enumerate(_in_turn(shard_set, start + count)):
        if record >= start + count:
            return
        if record >= start:
            yield record, place, shard_path, payload


def read_one(path: str, begin: int, end: int) -> bytes:
    """Read and prove the one frame at [begin, end) of a plain shard.

    Raises:
        CorruptFile: There is no whole record of that length.
    """
    with open(path, "rb") as file:
        file.seek(begin)
        piece = BytesIO(file.read(end - begin))
    payloads = list(read_frames(piece, path=path))
    if len(payloads) != 1 or len(payloads[0]) + FRAME_BYTES != end - begin:
        raise CorruptFile(
            "the index does not fit this shard",
            kind="index",
            path=path,
            offset=begin,
            hint="`shardwriter index` makes it anew",
        )
    return payloads[0]


def _in_turn(shard_set: ShardSet, num_records: int) -> Iterator[tuple[int, str, bytes]]:
    """Yield one record of each shard in turn; opens no more shards than it may need."""
    empty = [path for _, path in shard_set.shards if not os.path.getsize(path)]
    full = [path for _, path in shard_set.shards if path not in empty][:num_records]
    readers = [(path, iter(read_records(path))) for path in full]
    place = 0
    while readers:
        going_on = []
        for path, reader in readers:
            payload = next(reader, None)
            if payload is not None:
                yield place, path, payload
                going_on.append((path, reader))
        readers = going_on
        place += 1
