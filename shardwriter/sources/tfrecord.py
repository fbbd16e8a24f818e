"""``tfrecord``: records of TFRecord files, copied byte for byte.

A dataset of shardwriter is read in reading order, which is the order of its items: record r of the
copy is record r of the dataset. Other files are read one after the other: sets of shards in the
order of their shards, loose files by name. The compression of a file is detected from its content.

    RecordFile       one uncompressed file: offsets of its records, and records by position
    FrameReader      many frames of uncompressed files at once, checked, to be copied as they are
    TFRecordFiles    the source

Uncompressed files get a first pass over the frame headers, which gives random access. Compressed
files are only read through. Every CRC is checked in both cases.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    AssignedLocations,
    Index,
    Manifest,
    is_url,
    parse_shard_file,
    to_runs,
)
from shardwriter.errors import CorruptFile, ManifestError, SourceError
from shardwriter.formats import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    UNSET,
    FrameBlock,
    OpenStream,
    SequenceExample,
    decode_example,
    decode_sequence_example,
    extend_crc32c,
    frame_header,
    is_valid_frame,
    masked_crc32c,
    parse_frames,
    payload_kind,
    read_frames,
)
from shardwriter.schema import FeatureSummary, FeatureType, record_stats_from_json
from shardwriter.sources.input_files import braced
from shardwriter.sources.positions import InputFile, OffsetTable, OpenFiles, file_changed
from shardwriter.sources.shard_sets import ShardSet, find_shard_sets
from shardwriter.storage import (
    FilePool,
    FileState,
    absolute,
    common_folder,
    inputs_for,
    max_source_files,
    open_stream,
    real,
    relative,
    split,
)

_WINDOW_BYTES: Final = 1 << 14  # per read when scanning headers
_AHEAD_BYTES: Final = 1 << 16  # per read when reading records in order
_DENSE_BYTES: Final = 1 << 13  # files with smaller frames on average are scanned as a whole
_DENSE_WINDOW_BYTES: Final = 1 << 22
_BATCH: Final = 1 << 16
_HEADER_CACHE_SIZE: Final = 1 << 14
_HINT: Final = "`shard-stats` lists all defects of the file"
_U32: Final = struct.Struct("<I")


class RecordFile(InputFile):
    """An uncompressed TFRecord file, read by position.

    Attributes:
        num_records: The number of records, after a scan.
        file_bytes: Its size.
        crc32c: The CRC-32C of all headers and footers, that is of everything but the payloads.
        is_checked: Whether the whole file has the CRC-32C of its manifest.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self.num_records = 0
        self.file_bytes = 0
        self.crc32c = 0
        self.is_checked = False
        self._next = -1  # the position after the last record read
        self._ahead, self._ahead_start = b"", 0

    def close(self) -> None:
        """Close the file; it can be opened again."""
        super().close()
        self._next = -1
        self._ahead, self._ahead_start = b"", 0

    def scan(self, offsets: OffsetTable) -> None:
        """Read all headers, and add the offset of every record and of the end.

        Raises:
            SourceError: A header is wrong, or the file ends inside a record.
        """
        self.file_bytes = self.num_bytes
        lengths: dict[bytes, int] = {}
        starts: list[int] = []
        proofs: list[bytes] = []  # footer of a record and header of the next one
        window, window_start, at = b"", 0, 0
        while True:
            first = at - FOOTER_BYTES if at else 0
            last = min(at + HEADER_BYTES, self.file_bytes)
            if last - window_start > len(window):
                window, window_start = self.read(first, first + _WINDOW_BYTES), first
            proof = window[first - window_start : last - window_start]
            proofs.append(proof)
            if len(starts) >= _BATCH or at == self.file_bytes:
                offsets.add(np.array(starts, np.int64))
                self.crc32c = extend_crc32c(self.crc32c, b"".join(proofs))
                self.num_records += len(starts)
                starts, proofs = [], []
            if at == self.file_bytes:
                break
            header = proof[at - first :]
            length = lengths.get(header)
            if length is None:
                length = int.from_bytes(header[:8], "little")
                if length > MAX_PAYLOAD_BYTES or frame_header(length) != header:
                    raise self.damage(at, self.num_records + len(starts))
                if len(lengths) < _HEADER_CACHE_SIZE:
                    lengths[header] = length
            if at + FRAME_BYTES + length > self.file_bytes:
                raise self.damage(at, self.num_records + len(starts))
            starts.append(at)
            at += FRAME_BYTES + length
        self.check_unchanged()
        offsets.add(np.array([self.file_bytes], np.int64))

    def scan_along(self, ends: NDArray[np.uint64], file_crc32c: int, offsets: OffsetTable) -> bool:
        """Do the same as :meth:`scan` with an index, many frames at a time.

        This reads the whole file, as its frames are small, and so checks its CRC: a CRC of the file
        costs a tenth of a CRC for each record of 100 bytes.

        Args:
            ends: uint64[n]: the end of each frame in the index.
            file_crc32c: The file's CRC-32C in the manifest.
            offsets: Receives the offset of every record and of the end.

        Returns:
            Whether the index matches all headers; if not, no offset was added.
        """
        stops = ends.astype(np.int64)
        begins = np.concatenate(([0], stops))
        sizes = np.diff(begins)
        if int(begins[-1]) != self.num_bytes or not len(sizes):
            return False
        if int(sizes.min()) < FRAME_BYTES or self.num_bytes > _DENSE_BYTES * len(sizes):
            return False
        crc = content_crc = 0
        windows = np.searchsorted(stops, np.arange(0, self.num_bytes, _DENSE_WINDOW_BYTES))
        cuts = [*np.unique(windows).tolist(), len(sizes)]
        for first, last in pairwise(cuts):
            start, stop = int(begins[first]), int(begins[last])
            data = self.read(start, stop)
            if len(data) != stop - start:
                return False
            proofs = _proofs(data, begins[first:last] - start, sizes[first:last])
            if proofs is None:
                return False
            crc = extend_crc32c(crc, proofs)
            content_crc = extend_crc32c(content_crc, data)
        self.check_unchanged()
        self.is_checked = content_crc == file_crc32c
        self.file_bytes, self.num_records, self.crc32c = self.num_bytes, len(sizes), crc
        offsets.add(begins)
        return True

    def record(self, begin: int, end: int, place: int) -> bytes:
        """Return the record of the frame [begin, end) after checking it."""
        data = self._frame(begin, end, place)
        payload = data[HEADER_BYTES:-FOOTER_BYTES]
        if (
            len(data) != end - begin
            or data[:HEADER_BYTES] != frame_header(len(payload))
            or data[-FOOTER_BYTES:] != _U32.pack(masked_crc32c(payload))
        ):
            raise self.damage(begin, place)
        return payload

    def _frame(self, begin: int, end: int, place: int) -> bytes:
        """Return the bytes of a frame; read ahead if it follows the last one."""
        is_next, self._next = place == self._next, place + 1
        if not is_next:
            self._ahead, self._ahead_start = b"", 0
            return self.read(begin, end)
        if end - self._ahead_start > len(self._ahead):
            self._ahead = self.read(begin, max(end, begin + _AHEAD_BYTES))
            self._ahead_start = begin
        return self._ahead[begin - self._ahead_start : end - self._ahead_start]

    def damage(self, begin: int, place: int) -> SourceError:
        """Return the error for the damaged frame at an offset."""
        try:
            with closing(self._inputs.open_raw(self._absolute)) as file:
                file.seek(begin)
                next(read_frames(file), None)
        except CorruptFile as error:
            return damaged(error, self.path, place, begin)
        return file_changed(self.path)


def _proofs(data: bytes, at: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytes | None:
    """Return the headers and footers of consecutive frames; None if a header is wrong."""
    lengths, which = np.unique(sizes - FRAME_BYTES, return_inverse=True)
    if int(lengths[-1]) > MAX_PAYLOAD_BYTES:
        return None
    table = np.frombuffer(b"".join(map(frame_header, lengths.tolist())), "V12")
    proofs = np.empty(len(at), [("header", "V12"), ("footer", "V4")])
    proofs["header"] = np.ndarray((len(data) - 11,), "V12", data, strides=(1,))[at]
    proofs["footer"] = np.ndarray((len(data) - 3,), "V4", data, strides=(1,))[
        at + sizes - FOOTER_BYTES
    ]
    if proofs["header"].tobytes() != table[which].tobytes():
        return None
    return proofs.tobytes()


def damaged(error: CorruptFile, path: str, place: int = 0, begin: int = 0) -> SourceError:
    """Return the error for a damaged file; reading began at record ``place``, offset ``begin``."""
    return SourceError(
        error.message,
        path=path,
        record_index=place + (error.record_index or 0),
        offset=begin + (error.offset or 0),
        hint=_HINT,
    )


# Frames that are close to each other are read together, in any order. Large frames are read one by
# one, in three parts: copying a payload to check it costs more than two more reads.

_Int64s = NDArray[np.int64]

_BLOCK_BYTES: Final = 2 << 20  # fits a core's cache, and is reused by the allocator
_LARGE_BYTES: Final = 1 << 15
_HOLE_BYTES: Final = 1 << 12  # a gap that is cheaper to read than to skip by another read

_NO_STARTS: Final = np.zeros(0, np.int64)


class FrameSpans(NamedTuple):
    """The positions of frames.

    Attributes:
        numbers: int64[n]: their files.
        places: int64[n]: their record indices in the file.
        begins: int64[n]: their first bytes.
        ends: int64[n]: their ends.
    """

    numbers: _Int64s
    places: _Int64s
    begins: _Int64s
    ends: _Int64s


class FrameReader:
    """Reads frames of uncompressed files.

    Args:
        files: The files.
        open_files: The pool that opens them.
    """

    def __init__(self, files: Sequence[RecordFile], open_files: OpenFiles) -> None:
        self._files = files
        self._open_files = open_files

    def block(self, spans: FrameSpans) -> FrameBlock:
        """Return the first of the frames, checked: as many as fit into a block, at least one.

        Frames after a damaged one are left for another call.

        Args:
            spans: Their positions; at least one.

        Raises:
            SourceError: The first frame is damaged, or a file cannot be read.
        """
        sizes = spans.ends - spans.begins
        total = np.cumsum(sizes)
        count = max(1, int(np.searchsorted(total, _BLOCK_BYTES, side="right")))
        taken = FrameSpans(*(each[:count] for each in spans))
        if int(total[count - 1]) >= _LARGE_BYTES * count:
            return self._read_large(taken)
        sizes = sizes[:count]
        data, starts = self._read(taken)
        are_checked = all(self._files[number].is_checked for number in set(taken.numbers.tolist()))
        if not are_checked and parse_frames(data, starts, starts + sizes, check=True) is None:
            count = _count_undamaged(data, starts, starts + sizes)
            if not count:
                raise self._damage(taken)
        return FrameBlock([data], starts[:count], sizes[:count])

    def _read_large(self, spans: FrameSpans) -> FrameBlock:
        frames: list[bytes] = []
        numbers, _, begins, ends = (each.tolist() for each in spans)
        for number, begin, end in zip(numbers, begins, ends, strict=True):
            frame = self._opened(number).read_at(begin, end)
            if len(frame) != end - begin or not is_valid_frame(frame):
                if not frames:
                    raise self._damage(spans)
                break
            frames.append(frame)
        for number in set(numbers):  # once per file: a change affects all of its frames
            self._opened(number).check_unchanged()
        return FrameBlock(frames, _NO_STARTS, (spans.ends - spans.begins)[: len(frames)])

    def _read(self, spans: FrameSpans) -> tuple[bytes, _Int64s]:
        """Return bytes with all frames, and int64[n]: where each begins in them."""
        order = np.lexsort((spans.begins, spans.numbers))
        numbers, _, begins, ends = (each[order] for each in spans)
        near = np.maximum(_HOLE_BYTES, ends[:-1] - begins[:-1])
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (numbers[1:] != numbers[:-1]) | (begins[1:] - ends[:-1] > near)
        firsts = np.flatnonzero(is_new)
        lasts = np.append(firsts[1:], len(order)) - 1
        run_begins, run_ends = begins[firsts], ends[lasts]
        runs = zip(numbers[firsts].tolist(), run_begins.tolist(), run_ends.tolist(), strict=True)
        parts = []
        for number, begin, end in runs:
            parts.append(self._opened(number).read(begin, end))
            if len(parts[-1]) != end - begin:  # it would shift the frames that follow
                raise file_changed(self._files[number].path)
        run_bytes = run_ends - run_begins
        shifts = np.cumsum(run_bytes) - run_bytes - run_begins
        starts = np.empty(len(order), np.int64)
        starts[order] = begins + shifts[np.cumsum(is_new) - 1]
        return parts[0] if len(parts) == 1 else b"".join(parts), starts

    def _damage(self, spans: FrameSpans) -> SourceError:
        """Return the error for the first of the frames, which is damaged."""
        file = self._opened(int(spans.numbers[0]))
        return file.damage(int(spans.begins[0]), int(spans.places[0]))

    def _opened(self, number: int) -> RecordFile:
        file = self._files[number]
        self._open_files.open(file)
        return file


def _count_undamaged(data: bytes, starts: _Int64s, ends: _Int64s) -> int:
    """Return the number of frames before the first damaged one."""
    good, bad = 0, len(starts)  # the first `good` are undamaged; one of the first `bad` is damaged
    while bad - good > 1:
        middle = (good + bad) // 2
        if parse_frames(data, starts[good:middle], ends[good:middle], check=True) is None:
            bad = middle
        else:
            good = middle
    return good


class Throttled:
    """A stream that is read in small portions, because many are open at once."""

    def __init__(self, stream: OpenStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, but at most ``max_bytes``."""
        return self._stream.read(min(size, self._max_bytes))


class PooledFile:
    """A file of a pool with a position of its own; the pool may close it between reads."""

    def __init__(self, pool: FilePool, number: int) -> None:
        self._pool = pool
        self._number = number
        self._at = 0

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""
        data = self._pool.file(self._number).read_at(self._at, size)
        self._at += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        """Set the position."""
        self._at = offset
        return offset

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def close(self) -> None:
        """Do nothing: the pool closes the file."""


def open_content(path: str, file: PooledFile | None) -> OpenStream:
    """Return a stream of a file's decompressed content; through the pool if ``file`` is given."""
    return open_stream(path) if file is None else OpenStream(path, file)


def is_plain(path: str) -> bool:
    """Return whether a file is uncompressed.

    Raises:
        SourceError: It cannot be read.
    """
    try:
        with open_stream(path) as stream:
            return stream.compression == "none"
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error


def tail(path: str) -> str:
    """Return the last 8 bytes in hex: of a compressed file, the checksum of its content."""
    with inputs_for(path).open(path) as file:
        return file.read_at(max(0, file.stat().st_size - 8), 8).hex()


KIND: Final = "tfrecord"

_MAX_OPEN_FILES: Final = 128
_STREAM_BYTES: Final = 64 << 20  # read-ahead of all compressed files


class StreamedRecord(NamedTuple):
    """The descriptor of a record of a compressed file: the record, with its position."""

    file: int
    place: int
    payload: bytes


class TFRecordFiles:
    """The records of TFRecord files.

    Args:
        data: A file, a folder, a glob, a list in braces, or the name of a dataset (``dir/train``,
            ``dir/train@16``). Files are read in order of their names.
        open_files: A pool of open files to share; None for a new one.

    Attributes:
        manifest: The manifest, if the files are a complete dataset that has one.
        paths: The files.
        files: The uncompressed files, after the scan.

    Raises:
        SourceError: There are no files, shards are missing, or a file is damaged.
        OptionError: There is no such path or dataset.
    """

    kind = KIND
    resumable = True
    plan: Mapping[str, FeatureType] = {}  # records are copied: no types to plan
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
            record_stats_from_json(manifest.schema) if manifest else {}
        )
        if manifest is not None and manifest.labels is not None:
            self.labels, self.label = manifest.labels, manifest.labels["feature"]
        self.notes: Sequence[str] = _notes(sets, manifest)
        self._order: AssignedLocations | None = None
        if manifest is not None:
            self._order = AssignedLocations(
                manifest.num_shards, manifest.gaps, manifest.num_records
            )
        self.random_access = self.sendable = all(map(is_plain, self.paths))
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
                f"there are {num_records:,} records, but the manifest has {expected:,}",
                path=self.paths[shard],
                hint=_HINT,
            )

    def items(self) -> Iterator[int | StreamedRecord]:
        """Yield record numbers; of compressed files the records, as they are read.

        Raises:
            SourceError: A compressed file is damaged.
        """
        if self.random_access:
            assert self.num_items is not None
            return iter(range(self.num_items))
        return self._stream() if self.manifest is None else self._stream_in_order()

    def _stream(self) -> Iterator[StreamedRecord]:
        for number in range(len(self.paths)):
            yield from self._read(number)

    def _stream_in_order(self) -> Iterator[StreamedRecord]:
        assert self.manifest is not None
        assert self._order is not None
        with ExitStack() as stack:
            states = [FileState.of(stat) for stat in self._inputs.stats(self._absolute)]
            max_open = min(_MAX_OPEN_FILES, max_source_files())
            pool = FilePool(self._absolute, states, max_open)
            stack.callback(pool.close)
            readers = [
                stack.enter_context(closing(self._read(number, pool)))
                for number in range(len(self.paths))
            ]
            for record in range(self.manifest.num_records):
                shard, place = self._order.locate(record)
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
            with open_content(self._absolute[number], file) as stream:
                throttled = Throttled(stream, max(1 << 16, _STREAM_BYTES // num_open))
                for place, payload in enumerate(read_frames(throttled)):
                    yield StreamedRecord(number, place, payload)
        except CorruptFile as error:
            raise damaged(error, path) from None
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=path) from error

    def item(self, item_index: int) -> int:
        """Return a record's number, which is the item."""
        return item_index

    def _place(self, item: int | StreamedRecord) -> tuple[int, int]:
        """Return the file number of a record, and its index in the file."""
        if isinstance(item, StreamedRecord):
            return item.file, item.place
        if self._order is not None:
            return self._order.locate(item)
        number = bisect_right(self._first_records, item) - 1
        return number, item - self._first_records[number]

    def key(self, item: int | StreamedRecord) -> str:
        """Return ``record 7``, with the file if there are several."""
        number, place = self._place(item)
        return (
            f"record {place}" if len(self.paths) == 1 else f"{self._names[number]} record {place}"
        )

    def load(self, item: int | StreamedRecord) -> bytes:
        """Return the record's bytes."""
        if isinstance(item, StreamedRecord):
            return item.payload
        number, place = self._place(item)
        # The offsets of a file have one more entry than records, hence "+ number".
        entry = self._first_records[number] + number + place
        begin, end = self._offsets.span(entry, entry + 1)
        file = self.files[number]
        self._open_files.open(file)
        return file.record(begin, end, place)

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the checked frames of the first of these records, up to the size of a block.

        Raises:
            SourceError: The first record is damaged, or cannot be read.
        """
        return FrameReader(self.files, self._open_files).block(self.spans(items))

    def spans(self, items: NDArray[np.int64]) -> FrameSpans:
        """Return the positions of int64[n] records of uncompressed files."""
        firsts = np.array(self._first_records, np.int64)
        if self._order is not None:
            numbers, places = self._order.locate_many(items)
        else:
            numbers = np.searchsorted(firsts, items, side="right") - 1
            places = items - firsts[numbers]
        entries = firsts[numbers] + numbers + places
        return FrameSpans(numbers, places, self._offsets.at(entries), self._offsets.at(entries + 1))

    def decode(self, record: bytes) -> Any:
        """Return the features of a record as arrays and lists of bytes; UNSET if they have no type.

        Returns:
            A mapping, or a `SequenceExample`.

        Raises:
            SourceError: It is neither a ``tf.train.Example`` nor a ``tf.train.SequenceExample``.
            WireError: It is not a valid protobuf message.
        """
        kind = payload_kind(record)
        if kind == "other":
            raise SourceError(
                "the record is not a tf.train.Example, so it can not be decoded for a map",
                hint="write without a map to copy records as they are",
            )
        if kind == "SequenceExample":
            context, lists = decode_sequence_example(record)
            return SequenceExample(
                _with_unset(context),
                {n: [UNSET if v is None else v for v in steps] for n, steps in lists.items()},
            )
        return _with_unset(decode_example(record))

    def reads(self, directory: str, name: str) -> bool:
        """Return whether the source reads files of this dataset."""
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
        """Return what identifies each file; for a dataset also its gaps, labels and schema.

        An uncompressed file: its size and the CRC of all headers and footers, which include CRCs of
        the payloads. A compressed one: its size and last 8 bytes, with the checksum of its content.
        """
        files = [[file.file_bytes, f"{file.crc32c:08x}"] for file in self.files]
        if not self.random_access:
            files = [
                [size, tail(path)] for size, path in zip(self._sizes, self._absolute, strict=True)
            ]
        if self.manifest is None:
            return {"files": files}
        # These determine the order of the records, and the copy's manifest.
        labels = {} if self.labels is None else {"labels": dict(self.labels)}
        return {
            "files": files,
            "gaps": to_runs(self.manifest.gaps),
            **labels,
            "schema": dict(self.manifest.schema),
        }

    def fingerprint(self) -> dict[str, Any]:
        """Return the digest with the modification times of the files."""
        times = [found.st_mtime_ns for found in self._inputs.stats(self._absolute)]
        return {**self.digest(), "times": times}


def _with_unset(features: Mapping[str, Any]) -> dict[str, Any]:
    return {name: UNSET if value is None else value for name, value in features.items()}


def _sets_of(data: str) -> list[ShardSet]:
    """Return the shard sets that SOURCE refers to.

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
            hint=f"name one of them, such as {os.path.join(data, sets[0].name)}"
            if inputs.is_directory(data)
            else "name one of them by its number of shards, such as train@16",
        )
    for shard_set in sets:
        shard_set.require_whole()
    return sets


def _notes(sets: Sequence[ShardSet], manifest: Manifest | None) -> list[str]:
    notes = [note for shard_set in sets for note in shard_set.notes]
    num_files = sum(len(shard_set.shards) for shard_set in sets)
    if manifest is None and num_files > 1:
        notes.append(
            f"{num_files:,} files without a manifest are read one after the other, each in its own "
            "order"
        )
    return notes


def _index_of(shard: str, manifest: Manifest) -> Index | None:
    """Return the index next to a shard if its counts match; it is not trusted further."""
    path = os.path.join(split(shard)[0], manifest.pattern.index_file)
    counts = [sealed.num_records for sealed in manifest.shards]
    try:
        index = None if is_url(path) else Index(path)
    except (OSError, ManifestError):
        return None
    is_plain = index is not None and index.compression == "none"
    return index if is_plain and index is not None and index.counts.tolist() == counts else None
