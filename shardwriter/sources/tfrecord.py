"""``tfrecord``: records of TFRecord files; they are copied byte for byte.

A dataset of ours is read in reading order, which is the order in which its items came: record r of
the copy is record r of the dataset. Other files are read one after the other: sets of shards in the
order of their shards, loose files by name. What the files are compressed with is found by content.

Of plain files a first pass over the frames' headers finds where every record begins, so that any of
them is at hand. A compressed file can only be read through. Every CRC is checked in both cases.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

from shardwriter.codec.example import UNSET, decode_example, payload_kind
from shardwriter.dataset.layout import to_runs
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import parse_shard_file
from shardwriter.dataset.places import LawPlaces
from shardwriter.errors import CorruptFile, SourceError
from shardwriter.features.feature_types import FeatureType
from shardwriter.features.schema import FeatureSummary
from shardwriter.formats.compression import OpenStream
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.shards.locate import find_shard_sets
from shardwriter.shards.shard_sets import ShardSet
from shardwriter.sources.positions import OffsetTable, OpenFiles, file_changed
from shardwriter.sources.record_file import RecordFile, damaged
from shardwriter.storage.file_pool import FilePool, FileState, max_open_files
from shardwriter.storage.inputs import (
    absolute,
    common_folder,
    inputs_for,
    open_stream,
    real,
    relative,
    split,
)

KIND: Final = "tfrecord"

_MAX_OPEN_FILES: Final = 128
_STREAM_BYTES: Final = 64 << 20  # read ahead of all compressed files together
_HINT: Final = "`shard-stats` lists all that is wrong with the file"


class StreamedRecord(NamedTuple):
    """The descriptor of a record of a compressed file: the record itself, with its place."""

    file: int
    place: int
    payload: bytes


class _Throttled:
    """A stream that is read in small pieces, as many are open at once."""

    def __init__(self, stream: OpenStream, most_bytes: int) -> None:
        self._stream = stream
        self._most_bytes = most_bytes

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._most_bytes))


class _PooledFile:
    """A file that is read on where it stood, and may be closed in between."""

    def __init__(self, pool: FilePool, number: int) -> None:
        self._pool = pool
        self._number = number
        self._at = 0

    def read(self, size: int, /) -> bytes:
        data = self._pool.file(self._number).read_at(self._at, size)
        self._at += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Leave it to the pool."""


class TFRecordFiles:
    """Records of TFRecord files.

    Args:
        data: A file, a folder, a glob, or the name of a dataset (``dir/train``, ``dir/train@16``).

    Raises:
        SourceError: There are none, shards are missing, or a file is damaged.
        OptionError: There is nothing of that name.
    """

    kind = KIND
    stable = True
    plan: Mapping[str, FeatureType] = {}  # records are copied: nothing is planned
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None

    def __init__(self, data: str) -> None:
        sets = _sets_of(data)
        self._paths = [path for shard_set in sets for _, path in shard_set.shards]
        self._absolute = [absolute(path) for path in self._paths]  # a map may chdir
        top = common_folder(self._absolute)
        self._names = [relative(path, top) for path in self._paths]
        manifest = sets[0].manifest if len(sets) == 1 and sets[0].is_complete else None
        self._manifest: Manifest | None = manifest
        self.summaries: Mapping[str, FeatureSummary] = manifest.features if manifest else {}
        self.notes: Sequence[str] = _notes(sets, manifest)
        self._order: LawPlaces | None = None
        if manifest is not None:
            self._order = LawPlaces(manifest.num_shards, manifest.gaps, manifest.num_records)
        self.random_access = self.travels = all(map(_is_plain, self._paths))
        self.num_items: int | None = manifest.num_records if manifest else None
        self._offsets = OffsetTable()
        self._open_files = OpenFiles(min(_MAX_OPEN_FILES, max_open_files(None)))
        self._files: list[RecordFile] = []
        self._first_records: list[int] = []
        if self.random_access:
            self._scan()
        self._inputs = inputs_for(data)
        self._sizes = [found.st_size for found in self._inputs.stats(self._paths)]

    def _scan(self) -> None:
        num_records = 0
        for number, path in enumerate(self._paths):
            file = RecordFile(path)
            self._open_files.open(file)
            file.scan(self._offsets)
            self._check_count(number, file.num_records)
            self._files.append(file)
            self._first_records.append(num_records)
            num_records += file.num_records
        self.num_items = num_records

    def _check_count(self, shard: int, num_records: int) -> None:
        if self._manifest is None:
            return
        expected = self._manifest.shards[shard].num_records
        if num_records != expected:
            raise SourceError(
                f"there are {num_records:,} records, and the manifest says {expected:,}",
                path=self._paths[shard],
                hint=_HINT,
            )

    def items(self) -> Iterator[int | StreamedRecord]:
        """Yield the numbers of the records; of compressed files the records, as they are read.

        Raises:
            SourceError: A compressed file is damaged.
        """
        if self.random_access:
            assert self.num_items is not None
            return iter(range(self.num_items))
        return self._streamed() if self._manifest is None else self._streamed_in_turn()

    def _streamed(self) -> Iterator[StreamedRecord]:
        for number in range(len(self._paths)):
            yield from self._read(number)

    def _streamed_in_turn(self) -> Iterator[StreamedRecord]:
        assert self._manifest is not None
        assert self._order is not None
        with ExitStack() as stack:
            states = [FileState.of(stat) for stat in self._inputs.stats(self._absolute)]
            most = min(_MAX_OPEN_FILES, max_open_files(None))
            pool = FilePool(self._absolute, states, most)
            stack.callback(pool.close)
            readers = [
                stack.enter_context(closing(self._read(number, pool)))
                for number in range(len(self._paths))
            ]
            for record in range(self._manifest.num_records):
                shard, place = self._order.place(record)
                found = next(readers[shard], None)
                if found is None:
                    self._check_count(shard, place)
                    raise file_changed(self._paths[shard])
                yield found
            for shard, reader in enumerate(readers):
                expected = self._manifest.shards[shard].num_records
                self._check_count(shard, expected + sum(1 for _ in reader))

    def _read(
        self, number: int, pool: FilePool | None = None
    ) -> Generator[StreamedRecord, None, None]:
        path = self._paths[number]
        file = None if pool is None else _PooledFile(pool, number)
        num_open = 1 if pool is None else len(self._paths)
        try:
            with _opened(self._absolute[number], file) as stream:
                throttled = _Throttled(stream, max(1 << 16, _STREAM_BYTES // num_open))
                for place, payload in enumerate(read_frames(throttled)):
                    yield StreamedRecord(number, place, payload)
        except CorruptFile as error:
            raise damaged(error, path) from None
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=path) from error

    def item(self, item_index: int) -> int:
        """Return a record's number."""
        return item_index

    def _place(self, item: int | StreamedRecord) -> tuple[int, int]:
        """Return the file of a record, and its place there."""
        if isinstance(item, StreamedRecord):
            return item.file, item.place
        if self._order is not None:
            return self._order.place(item)
        number = bisect_right(self._first_records, item) - 1
        return number, item - self._first_records[number]

    def key(self, item: int | StreamedRecord) -> str:
        """Return ``record 7``, and the file where there are several."""
        number, place = self._place(item)
        return (
            f"record {place}" if len(self._paths) == 1 else f"{self._names[number]} record {place}"
        )

    def load(self, item: int | StreamedRecord) -> bytes:
        """Return the record's bytes."""
        if isinstance(item, StreamedRecord):
            return item.payload
        number, place = self._place(item)
        # A file has one offset more than records, hence "+ number".
        entry = self._first_records[number] + number + place
        begin, end = self._offsets.span(entry, entry + 1)
        file = self._files[number]
        self._open_files.open(file)
        return file.record(begin, end, place)

    def decode(self, record: bytes) -> dict[str, Any]:
        """Return the features of a record: arrays and lists of bytes; UNSET without a kind.

        Raises:
            SourceError: It is no ``tf.train.Example``.
            WireError: It is none of any kind.
        """
        kind = payload_kind(record)
        if kind != "Example":
            what = "no tf.train.Example" if kind == "other" else f"a tf.train.{kind}"
            raise SourceError(
                f"the record is {what}, so a map can not be given its features",
                hint="without a map records are copied as they are",
            )
        features = decode_example(record)
        return {name: UNSET if value is None else value for name, value in features.items()}

    def reads(self, directory: str, name: str) -> bool:
        """Tell whether files of this dataset are read."""
        place = real(directory)
        for path in self._paths:
            for known in (absolute(path), real(path)):
                folder, file_name = split(known)
                shard = parse_shard_file(file_name)
                is_named = shard is not None and shard.pattern.name == name
                if is_named and real(folder) == place:
                    return True
        return False

    def digest(self) -> dict[str, Any]:
        """Return what identifies each file, and of a dataset its gaps and its schema.

        Of a plain file: its size and the CRC of all lengths and CRCs in it, which stand for the
        records. Of a compressed one: its size and last 8 bytes, with the checksum of its content.
        """
        files = [[file.file_bytes, f"{file.crc32c:08x}"] for file in self._files]
        if not self.random_access:
            files = [
                [size, _tail(path)] for size, path in zip(self._sizes, self._absolute, strict=True)
            ]
        if self._manifest is None:
            return {"files": files}
        # These decide the order of the records, and what the copy's manifest says of them.
        return {
            "files": files,
            "gaps": to_runs(self._manifest.gaps),
            "schema": dict(self._manifest.schema),
        }

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        times = [found.st_mtime_ns for found in self._inputs.stats(self._absolute)]
        return {**self.digest(), "times": times}


def _sets_of(data: str) -> list[ShardSet]:
    """Find the files that a person means.

    Raises:
        SourceError: There are several datasets, or shards are missing.
    """
    sets = find_shard_sets([data])
    inputs = inputs_for(data)
    is_glob = not inputs.exists(data) and "@" not in os.path.basename(data)
    if len(sets) > 1 and not is_glob and any(s.pattern is not None for s in sets):
        names = ", ".join(sorted({s.name for s in sets})[:5])
        raise SourceError(
            f"there are {len(sets)} datasets ({names})",
            path=data,
            hint=f"name one of them, as in {os.path.join(data, sets[0].name)}"
            if inputs.is_directory(data)
            else "name one of them by its number of shards, as in train@16",
        )
    for shard_set in sets:
        shard_set.require_whole()
    return sets


def _notes(sets: Sequence[ShardSet], manifest: Manifest | None) -> list[str]:
    notes = [note for shard_set in sets for note in shard_set.notes]
    num_files = sum(len(shard_set.shards) for shard_set in sets)
    if manifest is None and num_files > 1:
        notes.append(
            f"{num_files:,} files without a manifest are read one after the other: records keep "
            "the order that they have there"
        )
    return notes


def _opened(path: str, file: _PooledFile | None) -> OpenStream:
    return open_stream(path) if file is None else OpenStream(path, file)


def _is_plain(path: str) -> bool:
    try:
        with open_stream(path) as stream:
            return stream.compression == "none"
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error


def _tail(path: str) -> str:
    with inputs_for(path).open(path) as file:
        return file.read_at(max(0, file.stat().st_size - 8), 8).hex()
