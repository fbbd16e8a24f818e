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

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.assignment import to_runs
from shardwriter.dataset.index import Index
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import is_url, parse_shard_file
from shardwriter.dataset.record_locations import LawPlaces
from shardwriter.errors import CorruptFile, ManifestError, SourceError
from shardwriter.formats.example import UNSET, decode_example, payload_kind
from shardwriter.formats.frame_block import FrameBlock
from shardwriter.formats.sequence_example import SequenceExample, decode_sequence_example
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import FeatureSummary, learnt_from_json
from shardwriter.sources.frame_reading import FrameReader, FrameSpans
from shardwriter.sources.input_files import braced
from shardwriter.sources.locate import find_shard_sets
from shardwriter.sources.positions import OffsetTable, OpenFiles, file_changed
from shardwriter.sources.record_file import RecordFile, damaged
from shardwriter.sources.record_streams import PooledFile, Throttled, is_plain, opened, tail
from shardwriter.sources.shard_sets import ShardSet
from shardwriter.storage.file_pool import FilePool, FileState, max_source_files
from shardwriter.storage.inputs import absolute, common_folder, inputs_for, real, relative, split

KIND: Final = "tfrecord"

_MAX_OPEN_FILES: Final = 128
_STREAM_BYTES: Final = 64 << 20  # read ahead of all compressed files together
_HINT: Final = "`shard-stats` lists all that is wrong with the file"


class StreamedRecord(NamedTuple):
    """The descriptor of a record of a compressed file: the record itself, with its place."""

    file: int
    place: int
    payload: bytes


class TFRecordFiles:
    """Records of TFRecord files.

    Args:
        data: A file, a folder, a glob, a list in braces, or the name of a dataset (``dir/train``,
            ``dir/train@16``). Files are read in order of their names.
        open_files: The files that are open, where others share the limit; None for its own.

    Attributes:
        manifest: Of the dataset, where all of it is one that has a manifest.
        paths: The files.
        files: Those that are plain, once they were looked through.

    Raises:
        SourceError: There are none, shards are missing, or a file is damaged.
        OptionError: There is nothing of that name.
    """

    kind = KIND
    stable = True
    plan: Mapping[str, FeatureType] = {}  # records are copied: nothing is planned
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None
    labels: Mapping[str, Any] | None = None

    def __init__(self, data: str, open_files: OpenFiles | None = None) -> None:
        sets = _sets_of(data)
        self.paths = [path for shard_set in sets for _, path in shard_set.shards]
        self._absolute = [absolute(path) for path in self.paths]  # a map may chdir
        top = common_folder(self._absolute)
        self._names = [relative(path, top) for path in self.paths]
        manifest = sets[0].manifest if len(sets) == 1 and sets[0].is_complete else None
        self.manifest: Manifest | None = manifest
        self.summaries: Mapping[str, FeatureSummary] = (
            learnt_from_json(manifest.schema) if manifest else {}
        )
        if manifest is not None and manifest.labels is not None:
            self.labels, self.label = manifest.labels, manifest.labels["feature"]
        self.notes: Sequence[str] = _notes(sets, manifest)
        self._order: LawPlaces | None = None
        if manifest is not None:
            self._order = LawPlaces(manifest.num_shards, manifest.gaps, manifest.num_records)
        self.random_access = self.travels = all(map(is_plain, self.paths))
        self.num_items: int | None = manifest.num_records if manifest else None
        self._offsets = OffsetTable()
        if open_files is None:
            open_files = OpenFiles(min(_MAX_OPEN_FILES, max_source_files()))
        self._open_files = open_files
        self.files: list[RecordFile] = []
        self._first_records: list[int] = []
        if self.random_access:
            self._scan()
        self.num_frames = (self.num_items or 0) if self.random_access else 0
        self._inputs = inputs_for(data)
        self._sizes = [found.st_size for found in self._inputs.stats(self.paths)]

    def _scan(self) -> None:
        num_records = 0
        index = None if self.manifest is None else _index_of(self.paths[0], self.manifest)
        for number, path in enumerate(self.paths):
            file = RecordFile(path)
            self._open_files.open(file)
            if index is None or not self._scan_along(index, number, file):
                file.scan(self._offsets)
            self._check_count(number, file.num_records)
            self.files.append(file)
            self._first_records.append(num_records)
            num_records += file.num_records
        self.num_items = num_records

    def _scan_along(self, index: Index, number: int, file: RecordFile) -> bool:
        assert self.manifest is not None
        file_crc32c = self.manifest.shards[number].crc32c
        return file.scan_along(index.ends(number), file_crc32c, self._offsets)

    def _check_count(self, shard: int, num_records: int) -> None:
        if self.manifest is None:
            return
        expected = self.manifest.shards[shard].num_records
        if num_records != expected:
            raise SourceError(
                f"there are {num_records:,} records, and the manifest says {expected:,}",
                path=self.paths[shard],
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
        return self._streamed() if self.manifest is None else self._streamed_in_turn()

    def _streamed(self) -> Iterator[StreamedRecord]:
        for number in range(len(self.paths)):
            yield from self._read(number)

    def _streamed_in_turn(self) -> Iterator[StreamedRecord]:
        assert self.manifest is not None
        assert self._order is not None
        with ExitStack() as stack:
            states = [FileState.of(stat) for stat in self._inputs.stats(self._absolute)]
            most = min(_MAX_OPEN_FILES, max_source_files())
            pool = FilePool(self._absolute, states, most)
            stack.callback(pool.close)
            readers = [
                stack.enter_context(closing(self._read(number, pool)))
                for number in range(len(self.paths))
            ]
            for record in range(self.manifest.num_records):
                shard, place = self._order.place(record)
                found = next(readers[shard], None)
                if found is None:
                    self._check_count(shard, place)
                    raise file_changed(self.paths[shard])
                yield found
            for shard, reader in enumerate(readers):
                expected = self.manifest.shards[shard].num_records
                self._check_count(shard, expected + sum(1 for _ in reader))

    def _read(
        self, number: int, pool: FilePool | None = None
    ) -> Generator[StreamedRecord, None, None]:
        path = self.paths[number]
        file = None if pool is None else PooledFile(pool, number)
        num_open = 1 if pool is None else len(self.paths)
        try:
            with opened(self._absolute[number], file) as stream:
                throttled = Throttled(stream, max(1 << 16, _STREAM_BYTES // num_open))
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
            f"record {place}" if len(self.paths) == 1 else f"{self._names[number]} record {place}"
        )

    def load(self, item: int | StreamedRecord) -> bytes:
        """Return the record's bytes."""
        if isinstance(item, StreamedRecord):
            return item.payload
        number, place = self._place(item)
        # A file has one offset more than records, hence "+ number".
        entry = self._first_records[number] + number + place
        begin, end = self._offsets.span(entry, entry + 1)
        file = self.files[number]
        self._open_files.open(file)
        return file.record(begin, end, place)

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the frames of as many records as are read at once, proven.

        Raises:
            SourceError: The first of them is damaged, or can not be read.
        """
        return FrameReader(self.files, self._open_files).block(self.spans(items))

    def spans(self, items: NDArray[np.int64]) -> FrameSpans:
        """Return where the frames of int64[n] records of plain files are."""
        firsts = np.array(self._first_records, np.int64)
        if self._order is not None:
            numbers, places = self._order.places(items)
        else:
            numbers = np.searchsorted(firsts, items, side="right") - 1
            places = items - firsts[numbers]
        entries = firsts[numbers] + numbers + places
        return FrameSpans(numbers, places, self._offsets.at(entries), self._offsets.at(entries + 1))

    def decode(self, record: bytes) -> Any:
        """Return the features of a record: arrays and lists of bytes; UNSET without a kind.

        Returns:
            A mapping, or a `SequenceExample`.

        Raises:
            SourceError: It is neither a ``tf.train.Example`` nor a ``tf.train.SequenceExample``.
            WireError: It is none of any kind.
        """
        kind = payload_kind(record)
        if kind == "other":
            raise SourceError(
                "the record is no tf.train.Example, so a map can not be given its features",
                hint="without a map records are copied as they are",
            )
        if kind == "SequenceExample":
            context, lists = decode_sequence_example(record)
            return SequenceExample(
                _with_unset(context),
                {n: [UNSET if v is None else v for v in steps] for n, steps in lists.items()},
            )
        return _with_unset(decode_example(record))

    def reads(self, directory: str, name: str) -> bool:
        """Tell whether files of this dataset are read."""
        place = real(directory)
        for path in self.paths:
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
        files = [[file.file_bytes, f"{file.crc32c:08x}"] for file in self.files]
        if not self.random_access:
            files = [
                [size, tail(path)] for size, path in zip(self._sizes, self._absolute, strict=True)
            ]
        if self.manifest is None:
            return {"files": files}
        # These decide the order of the records, and what the copy's manifest says of them.
        labels = {} if self.labels is None else {"labels": dict(self.labels)}
        return {
            "files": files,
            "gaps": to_runs(self.manifest.gaps),
            **labels,
            "schema": dict(self.manifest.schema),
        }

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        times = [found.st_mtime_ns for found in self._inputs.stats(self._absolute)]
        return {**self.digest(), "times": times}


def _with_unset(features: Mapping[str, Any]) -> dict[str, Any]:
    return {name: UNSET if value is None else value for name, value in features.items()}


def _sets_of(data: str) -> list[ShardSet]:
    """Find the files that a person means.

    Raises:
        SourceError: There are several datasets, or shards are missing.
    """
    inputs = inputs_for(data)
    listed = None if inputs.exists(data) else braced(data)
    sets = find_shard_sets(listed or [data])
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


def _index_of(shard: str, manifest: Manifest) -> Index | None:
    """Return the index beside a shard, where there is one that fits; nothing is believed of it."""
    path = os.path.join(split(shard)[0], manifest.pattern.index_file)
    counts = [sealed.num_records for sealed in manifest.shards]
    try:
        index = None if is_url(path) else Index(path)
    except (OSError, ManifestError):
        return None
    is_plain = index is not None and index.compression == "none"
    return index if is_plain and index is not None and index.counts.tolist() == counts else None
