"""`read_some`: a few decoded records of a dataset or file, in reading order, also if damaged."""

from __future__ import annotations

import resource
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.dataset import AssignedLocations, Index, Manifest
from shardwriter.errors import CorruptFile, FeatureError, ManifestError, StorageError, WireError
from shardwriter.formats import (
    FRAME_BYTES,
    ByteStream,
    decode_example,
    decode_sequence_example,
    payload_kind,
    read_frames,
)
from shardwriter.schema import FeatureDecoder
from shardwriter.sources import RecordReader, ShardSet, find_one
from shardwriter.storage import FilePool, FileState, inputs_for, open_stream, storage_errors
from shardwriter.writing import open_index

_MAX_OPEN: Final = 512
_READ_BYTES: Final = 1 << 16  # of each open shard


@dataclass(frozen=True)
class ShownRecord:
    """A decoded record and its location.

    Attributes:
        index: Its number in reading order.
        path: The shard.
        record_index: Its number in the shard.
        payload_bytes: Size of the payload.
        kind: ``Example``, ``SequenceExample`` or ``other``.
        features: Decoded features of an Example, or of the context of a SequenceExample. Raw bytes
            are decoded to arrays if the manifest has their dtype.
        feature_lists: Decoded steps of a SequenceExample, by feature list.
    """

    index: int
    path: str
    record_index: int
    payload_bytes: int
    kind: str
    features: dict[str, Any]
    feature_lists: dict[str, list[Any]] = field(default_factory=dict)


class _Raw(NamedTuple):
    number: int
    place: int
    path: str
    payload: bytes


def read_some(
    path: str, start: int = 0, count: int = 1, *, notify: Callable[[str], None] | None = None
) -> Iterator[ShownRecord]:
    """Yield records ``start`` to ``start + count`` of a dataset or file, decoded.

    With a manifest and a usable index file, records are read directly; else shards are read from
    their start, one record of each in turn.

    Args:
        path: The dataset or file; see `shardwriter.open`.
        start: The first record, from 0, in reading order.
        count: The number of records.
        notify: Called with each note, a line of text.

    Raises:
        OptionError: The path matches nothing, or several datasets.
        CorruptFile: A record is damaged, among those that are read.
        StorageError: A shard can not be read.
    """
    shard_set = find_one(path)
    arrays = _raw_features(shard_set.manifest)
    for raw in _select(shard_set, start, count, notify or _ignore):
        kind = payload_kind(raw.payload)
        features: dict[str, Any] = {}
        lists: dict[str, list[Any]] = {}
        try:
            if kind == "Example":
                features = decode_example(raw.payload)
            elif kind == "SequenceExample":
                features, lists = decode_sequence_example(raw.payload)
        except WireError:
            kind = "other"
        for name in arrays.keys() & features.keys():
            if features[name] is not None:
                with suppress(FeatureError):  # else they are shown as bytes
                    features[name] = np.atleast_1d(arrays[name].one(features[name]))
        yield ShownRecord(raw.number, raw.path, raw.place, len(raw.payload), kind, features, lists)


def num_records(path: str) -> int:
    """Return the number of records of a dataset or file: the manifest's, or counted.

    Raises:
        OptionError: The path matches nothing, or several datasets.
        CorruptFile: A record is damaged.
        StorageError: A shard can not be read.
    """
    shard_set = find_one(path)
    if shard_set.manifest is not None and shard_set.is_complete:
        return shard_set.manifest.num_records
    with closing(_Readers()) as readers:
        return sum(_Cursor(shard, readers).skip(sys.maxsize) for _, shard in shard_set.shards)


def _raw_features(manifest: Manifest | None) -> dict[str, FeatureDecoder]:
    found = {} if manifest is None else manifest.features
    return {
        name: FeatureDecoder(name, summary.type)
        for name, summary in found.items()
        if summary.type.encoding == "raw"
    }


def _ignore(_line: str) -> None:
    return


def _select(
    shard_set: ShardSet, start: int, count: int, notify: Callable[[str], None]
) -> Iterator[_Raw]:
    manifest = shard_set.manifest
    if manifest is None or not shard_set.is_complete:
        with closing(_in_turn(shard_set, start)) as raws:
            yield from islice(raws, count)
        return
    index: Index | None = None
    try:
        index = open_index(shard_set.directory, manifest)
    except (ManifestError, StorageError) as error:
        notify(
            f"the index file can not be used ({error.message}), so shards are read from their "
            "start; `shardwriter index` writes it again"
        )
    yield from _assigned(shard_set, manifest, index, range(start, start + count))


def _assigned(
    shard_set: ShardSet, manifest: Manifest, index: Index | None, wanted: range
) -> Iterator[_Raw]:
    """Yield records by their assigned shard and position."""
    places = AssignedLocations(manifest.num_shards, manifest.gaps, manifest.num_records)
    paths = [path for _, path in shard_set.shards]
    with closing(_Readers()) as readers:
        read: Callable[[int, int], bytes]
        if index is not None:
            with storage_errors(shard_set.directory):
                stats = inputs_for(paths[0]).stats(paths)
            reader = RecordReader(index, FilePool(paths, [FileState.of(s) for s in stats]))
            read = reader.payload
        else:
            cursors = [_Cursor(path, readers) for path in paths]

            def read(shard: int, place: int) -> bytes:
                return cursors[shard].at(place)

        for record in wanted[: max(0, manifest.num_records - wanted.start)]:
            shard, place = places.locate(record)
            yield _Raw(record, place, paths[shard], read(shard, place))


def _in_turn(shard_set: ShardSet, start: int) -> Generator[_Raw, None, None]:
    """Yield one record of each shard in turn, from record ``start``; shards may be uneven."""
    with closing(_Readers()) as readers:
        live = [_Cursor(path, readers) for _, path in shard_set.shards]
        passed = 0
        # Whole rounds before `start` are skipped shard by shard, so that each is opened once.
        while live and (rounds := (start - passed) // len(live)):
            taken = [(cursor, cursor.skip(rounds)) for cursor in live]
            passed += sum(records for _, records in taken)
            live = [cursor for cursor, records in taken if records == rounds]
        while live:
            still_live = []
            for cursor in live:
                place = cursor.place
                payload = cursor.next()
                if payload is None:
                    continue
                still_live.append(cursor)
                if passed >= start:
                    yield _Raw(passed, place, cursor.path, payload)
                passed += 1
            live = still_live


class _Readers:
    """Open shards, as many as the process may open; the least recently used is closed."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_open = _MAX_OPEN
        if soft != resource.RLIM_INFINITY:
            self._max_open = max(1, min(_MAX_OPEN, soft // 2))
        self._open: OrderedDict[str, Generator[bytes, None, None]] = OrderedDict()

    def of(self, cursor: _Cursor) -> Generator[bytes, None, None]:
        """Return the open reader of a shard, reopened if it was closed."""
        reader = self._open.get(cursor.path)
        if reader is not None:
            self._open.move_to_end(cursor.path)
            return reader
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)[1].close()
        reader = self._open[cursor.path] = cursor.records()
        return reader

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._open.popitem()[1].close()


class _Cursor:
    """A position in a shard that is read from its start; the file may be closed in between.

    Attributes:
        path: The shard.
        place: Number of records before the next one.
    """

    def __init__(self, path: str, readers: _Readers) -> None:
        self.path = path
        self.place = 0
        self._offset = 0  # of the next frame
        self._plain = False  # not known before the file is opened
        self._readers = readers

    def next(self) -> bytes | None:
        """Return the next record; None at the end."""
        with storage_errors(self.path):
            payload = next(self._readers.of(self), None)
        if payload is not None:
            self.place += 1
            self._offset += len(payload) + FRAME_BYTES
        return payload

    def skip(self, count: int) -> int:
        """Skip up to ``count`` records, and return how many there were."""
        before = self.place
        while self.place - before < count and self.next() is not None:
            pass
        return self.place - before

    def at(self, place: int) -> bytes:
        """Return the record at a position not yet passed."""
        self.skip(place - self.place)
        payload = self.next()
        if payload is None:
            raise CorruptFile(
                f"it has {self.place:,} records, and the manifest says more",
                kind="record-count",
                path=self.path,
                hint="`shardwriter verify` shows what is wrong with the shard",
            )
        return payload

    def records(self) -> Generator[bytes, None, None]:
        """Yield the records from this position; compressed shards are read from their start."""
        if not self._plain:
            with open_stream(self.path) as stream:
                self._plain = stream.compression == "none"
                frames = read_frames(_Sips(stream), path=self.path)
                yield from islice(frames, self.place, None)
            return
        place, offset = self.place, self._offset
        with closing(inputs_for(self.path).open_raw(self.path)) as file:
            file.seek(offset)
            try:
                yield from read_frames(_Sips(file), path=self.path)
            except CorruptFile as error:
                error.record_index = place + (error.record_index or 0)
                error.offset = offset + (error.offset or 0)
                raise


class _Sips:
    """A stream with small reads, since many shards are open and few records are needed."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, _READ_BYTES))
