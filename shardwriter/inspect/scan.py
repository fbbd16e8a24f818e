"""Scan of one TFRecord file: counts, sizes, checksums, defects and payload statistics.

::

    stream -> frames in bulk (frames.py), damaged ones one by one
           -> sizes, CRCs, index checksums      -> FileScan
           -> PayloadFeed, in batches or as a sample -> PayloadStats: kinds, features, labels

`index_scans` returns scans without reading: from the index of a dataset.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import is_url
from shardwriter.errors import ManifestError, OptionError, StorageError, WireError
from shardwriter.formats import (
    BREAKS,
    FRAME_BYTES,
    HAZARD_BYTES,
    HEADER_BYTES,
    READ_BYTES,
    Check,
    Compression,
    Cursor,
    Defect,
    OpenStream,
    SingleBlobs,
    Values,
    add_rows,
    decode_example,
    decode_plain_parts,
    decode_sequence_example,
    extend_crc32c,
    record_kind,
    to_column,
)
from shardwriter.inspect.feature_stats import FeatureStats
from shardwriter.inspect.file_names import misnamed
from shardwriter.inspect.frames import (
    Headers,
    Walk,
    pass_long,
    skip_buffered,
    skip_far,
    verify_buffered,
)
from shardwriter.inspect.label_scan import MAX_SEQUENCE, LabelScan
from shardwriter.sources import ShardSet
from shardwriter.storage import inputs_for, open_stream, storage_errors
from shardwriter.writing import open_index

SAMPLED_RECORDS: Final = 64  # of each file, to find the kinds of records
SAMPLED_BYTES: Final = 1 << 18
_BATCH_PAYLOADS: Final = 1 << 14
_BATCH_PAYLOAD_BYTES: Final = 8 << 20


class PayloadFeed:
    """Passes a file's payloads to `PayloadStats` in batches, or samples their kinds.

    Args:
        features: Compute statistics of the features of every record.
        label: Feature whose values are counted as labels; None for no labels.
        label_sequence: Length of the label sequence.

    Attributes:
        wanted: Whether more payloads are needed.
        stats: The statistics; None if only a sample is needed.
        kinds: Records of the sample by kind.
    """

    def __init__(self, features: bool, label: str | None, label_sequence: int) -> None:
        self.stats: PayloadStats | None = None
        self.kinds: Counter[str] = Counter()
        self._batch: list[bytes] = []
        self._batch_bytes = self._sampled_bytes = 0
        self._next_index = 0
        self.wanted = True
        if features or label is not None:
            self.stats = PayloadStats(features, label, label_sequence)

    @property
    def is_sample(self) -> bool:
        """Whether only a sample is needed."""
        return self.stats is None

    def add(self, first_index: int, payloads: list[bytes]) -> None:
        """Add the next good records."""
        if self.stats is None:
            self._sample(payloads)
            return
        if first_index > self._next_index:
            self._send_batch()
            self.stats.skip(first_index - self._next_index)
        self._next_index = first_index + len(payloads)
        self._batch += payloads
        self._batch_bytes += sum(map(len, payloads))
        if len(self._batch) >= _BATCH_PAYLOADS or self._batch_bytes >= _BATCH_PAYLOAD_BYTES:
            self._send_batch()

    def skip_long(self, next_index: int) -> None:
        """Skip a record that is too long to be inspected; it ends a sample."""
        if self.stats is None:
            self.wanted = False
        else:
            self.add(next_index, [])

    def _sample(self, payloads: list[bytes]) -> None:
        self.kinds.update(map(record_kind, payloads))
        self._sampled_bytes += sum(map(len, payloads))
        num_sampled = sum(self.kinds.values())
        self.wanted = num_sampled < SAMPLED_RECORDS and self._sampled_bytes < SAMPLED_BYTES

    def _send_batch(self) -> None:
        if self._batch and self.stats is not None:
            self.stats.add(self._batch)
        self._batch, self._batch_bytes = [], 0

    def finish(self, num_passed: int) -> None:
        """Finish a file that has ``num_passed`` records, including bad ones."""
        self._send_batch()
        if self.stats is not None and num_passed > self._next_index:
            self.stats.skip(num_passed - self._next_index)
        if self.stats is not None:
            self.stats.finish()


class PayloadStats:
    """Statistics of the payloads of one or several files, from one decode; picklable.

    Args:
        features: Compute statistics of all features.
        label: The feature whose values are the labels; None for no labels.
        label_sequence: Length of the label sequence.

    Attributes:
        kinds: Records by kind, see :mod:`shardwriter.formats.record_kinds`.
        num_skipped: Records that were not inspected.
        features: Feature statistics; None if not requested.
        labels: Label counts; None without a label.
    """

    def __init__(
        self, features: bool, label: str | None, label_sequence: int = MAX_SEQUENCE
    ) -> None:
        self.kinds: Counter[str] = Counter()
        self.num_skipped = 0
        self.features = FeatureStats() if features else None
        self.labels = None if label is None else LabelScan(label, label_sequence)

    @property
    def num_records(self) -> int:
        """Records that were added or skipped."""
        return self.kinds.total() + self.num_skipped

    def add(self, payloads: Sequence[bytes]) -> None:
        """Add the payloads of consecutive records."""
        if not payloads:
            return
        parts, plain = decode_plain_parts(payloads)
        odd = np.flatnonzero(~plain).tolist()
        num_records = len(payloads) - len(odd)
        if num_records:
            self.kinds["Example"] += num_records
        if odd:
            rows, lists = self._decode_odd(payloads, odd)
            parts = add_rows(parts, rows)
            num_records += len(rows)
            if self.features is not None:
                self.features.add_lists(lists)
        if self.features is not None:
            self.features.add({name: part.cells for name, part in parts.items()}, num_records)
        if self.labels is not None:
            part = parts.get(self.labels.feature)
            column = None if part is None else to_column(part, len(payloads))
            if isinstance(column, SingleBlobs):
                column = column.in_lists()
            self.labels.add(column, len(payloads))

    def _decode_odd(
        self, payloads: Sequence[bytes], odd: Sequence[int]
    ) -> tuple[dict[int, dict[str, Values | None]], list[dict[str, list[Values | None]]]]:
        """Decode records that are not plain Examples.

        Returns:
            Features by row, of records that have any; and the feature lists of SequenceExamples.
        """
        rows: dict[int, dict[str, Values | None]] = {}
        lists = []
        for row in odd:
            kind = record_kind(payloads[row])
            self.kinds[kind] += 1
            try:
                if kind == "Example":
                    rows[row] = decode_example(payloads[row])
                elif kind == "SequenceExample":
                    rows[row], found = decode_sequence_example(payloads[row])
                    lists.append(found)
            except WireError:  # not of this kind after all
                self.kinds[kind] -= 1
                self.kinds["bytes"] += 1
        return rows, lists

    def finish(self) -> None:
        """Free memory that only adding needs."""
        if self.features is not None:
            self.features.flush()
        if self.labels is not None:
            self.labels.finish()

    def skip(self, num_records: int) -> None:
        """Count records that are not inspected."""
        self.num_skipped += num_records

    def merge(self, other: PayloadStats) -> None:
        """Add the statistics of the next part of the same file, or of another file."""
        self.kinds.update(other.kinds)
        self.num_skipped += other.num_skipped
        if self.features is not None and other.features is not None:
            self.features.merge(other.features)
        if self.labels is not None and other.labels is not None:
            self.labels.merge(other.labels)


class IndexSums(NamedTuple):
    """CRC-32C of a shard's entries in an index, as little-endian uint64.

    A scan computes checksums instead of storing 8 bytes per record; only if they differ from those
    of the index are the offsets read one by one.

    Attributes:
        ends: CRC of the offset behind each frame, or behind each gzip member.
        records: CRC of the number of records up to the end of each member; 0 for a plain file.
    """

    ends: int
    records: int


def index_sums(rows: NDArray[np.uint64]) -> IndexSums:
    """Return the checksums of a shard's entries: uint64[1, n], or uint64[2, n] if compressed."""
    crcs = [_extend(0, row) for row in rows]
    return IndexSums(crcs[0], crcs[1] if len(crcs) > 1 else 0)


class IndexSummer:
    """Computes the `IndexSums` of a shard while it is read, from record sizes and gzip members."""

    def __init__(self, *, is_plain: bool) -> None:
        self._is_plain = is_plain
        self._ends_crc = self._records_crc = 0
        self._num_records = 0
        self._end = 0  # of the last record in the uncompressed stream
        self._members: deque[tuple[int, int]] = deque()  # members that end behind it

    def add_member(self, file_end: int, stream_end: int) -> None:
        """Note where a gzip member ends, in the file and in the uncompressed stream."""
        self._members.append((file_end, stream_end))

    def add_records(self, sizes: NDArray[np.uint64]) -> None:
        """Note uint64[n]: bytes of the next records' payloads."""
        ends = np.cumsum(sizes + np.uint64(FRAME_BYTES), dtype=np.uint64) + np.uint64(self._end)
        if self._is_plain:
            self._ends_crc = _extend(self._ends_crc, ends)
        elif len(ends):
            self._add_members(ends)
        self._num_records += len(ends)
        self._end = int(ends[-1]) if len(ends) else self._end

    def sums(self) -> IndexSums:
        """Return the checksums, after everything was read."""
        self._add_members(np.zeros(0, np.uint64))
        return IndexSums(self._ends_crc, self._records_crc)

    def _add_members(self, ends: NDArray[np.uint64]) -> None:
        """Add the members that end with one of these records, or before them."""
        last = int(ends[-1]) if len(ends) else self._end
        found = []
        while self._members and self._members[0][1] <= last:
            found.append(self._members.popleft())
        if found:
            file_ends, stream_ends = np.array(found, np.uint64).T
            records = np.searchsorted(ends, stream_ends, side="right") + self._num_records
            self._ends_crc = _extend(self._ends_crc, file_ends)
            self._records_crc = _extend(self._records_crc, records)


def _extend(crc: int, numbers: NDArray[np.integer]) -> int:
    return extend_crc32c(crc, np.ascontiguousarray(numbers, "<u8").view(np.uint8))


MAX_DEFECTS: Final = 1000  # listed per file; all are counted
LONG_BYTES: Final = 256 << 20  # longer payloads are checked in blocks, and not inspected
_BATCH: Final = 1 << 14
_TENSORFLOW_BUFFER_BYTES: Final = 1 << 18
_NOTHING: Final = np.empty(0, np.uint64)


@dataclass(frozen=True)
class ScanOptions:
    """How files are scanned.

    Attributes:
        check: ``"crc"`` verifies all CRCs, ``"length"`` those of headers, ``"none"`` none.
        features: Compute statistics of the features of every record.
        label: Feature whose values are counted as labels; None for no labels.
        label_sequence: Length of a file's label sequence.
    """

    check: Check = "crc"
    features: bool = False
    label: str | None = None
    label_sequence: int = 1 << 16


DEFAULT_SCAN: Final = ScanOptions()


@dataclass
class RecordSizes:
    """The distribution of record sizes, mergeable.

    Attributes:
        count: Records.
        total: Their bytes.
        min: The smallest; None without records.
        max: The largest; None without records.
        histogram: ``histogram[k]`` records have a size of k binary digits: 2^(k-1) <= size < 2^k.
    """

    count: int = 0
    total: int = 0
    min: int | None = None
    max: int | None = None
    histogram: list[int] = field(default_factory=list)

    def add(self, sizes: array[int] | NDArray[np.uint64]) -> None:
        """Add a batch of sizes in bytes: uint64[n]."""
        if not len(sizes):
            return
        values = np.frombuffer(sizes, np.uint64).astype(np.int64)
        # frexp gives the number of binary digits, exactly so for sizes below 2^53.
        digits = np.frexp(values.astype(np.float64))[1]
        self.merge(
            RecordSizes(
                len(values),
                int(values.sum()),
                int(values.min()),
                int(values.max()),
                np.bincount(digits).tolist(),
            )
        )

    def merge(self, other: RecordSizes) -> None:
        """Add another distribution."""
        if not other.count:
            return
        self.count += other.count
        self.total += other.total
        self.min = other.min if self.min is None else min(self.min, other.min or 0)
        self.max = other.max if self.max is None else max(self.max, other.max or 0)
        longer, shorter = sorted((self.histogram, other.histogram), key=len, reverse=True)
        self.histogram = [n + (shorter[k] if k < len(shorter) else 0) for k, n in enumerate(longer)]

    @property
    def mean(self) -> float | None:
        """Mean size in bytes; None without records."""
        return self.total / self.count if self.count else None


@dataclass
class FileScan:
    """What was found in one file.

    Attributes:
        path: The file.
        file_bytes: Its size.
        compression: What it is, by content.
        sizes: Sizes of the verified records.
        crc32c: CRC-32C of the uncompressed stream; None unless all of it was read.
        file_crc32c: CRC-32C of a compressed file itself; None unless all of it was read.
        index_sums: Checksums of the file's index entries; None for a zlib file, and for one that
            is damaged or was not fully verified.
        cut_short_at: Offset in a gzip file at which TensorFlow may silently stop; or None.
        defects: The first defects; :attr:`num_defects` counts all.
        num_defects: Number of defects.
        num_recoverable: Good records behind breaks, which ordinary readers do not reach; not
            included in the other numbers.
        num_long: Records over `LONG_BYTES`, which were not inspected.
        kinds: The first records by kind; empty if ``payloads`` has them.
        payloads: Statistics of the payloads, if requested.
    """

    path: str
    file_bytes: int = 0
    compression: Compression = "none"
    sizes: RecordSizes = field(default_factory=RecordSizes)
    crc32c: int | None = None
    file_crc32c: int | None = None
    index_sums: IndexSums | None = None
    cut_short_at: int | None = None
    defects: list[Defect] = field(default_factory=list)
    num_defects: int = 0
    num_recoverable: int = 0
    num_long: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    payloads: PayloadStats | None = None

    @property
    def num_records(self) -> int:
        """Number of verified records."""
        return self.sizes.count

    def note(self, defect: Defect) -> None:
        """Add a defect."""
        self.num_defects += 1
        if len(self.defects) < MAX_DEFECTS:
            self.defects.append(defect)
        if defect.kind == "unmasked-crc":
            self.num_recoverable += defect.num_recoverable


class _Hazards:
    """Finds the first gzip member after which TensorFlow's reader may stop.

    Such a member is empty, or ends within the first bytes of a reader's buffer: its data came with
    one buffer, its trailer with the next. How many bytes depends on the end of the data (8 always
    suffice); here it is the distance that shardwriter's own members avoid. The last member is
    harmless.
    """

    def __init__(self) -> None:
        self.found: int | None = None
        self._suspect: int | None = None
        self._stream_end = 0

    def __call__(self, file_end: int, stream_end: int) -> None:
        if self.found is None:
            self.found = self._suspect  # not the last member
        is_empty = stream_end == self._stream_end
        buffers, behind = divmod(file_end, _TENSORFLOW_BUFFER_BYTES)
        is_split = buffers > 0 and 1 <= behind < HAZARD_BYTES
        self._suspect = file_end if is_empty or is_split else None
        self._stream_end = stream_end


def scan_file(
    path: str,
    options: ScanOptions = DEFAULT_SCAN,
    *,
    ends: NDArray[np.uint64] | None = None,
    progress: Callable[[int], None] | None = None,
) -> FileScan:
    """Return what is in a file, including all of its defects.

    Args:
        path: The file, compressed or not.
        options: What to verify and which statistics to compute. Without verification of payloads,
            those of a plain file are skipped, and its CRC is unknown.
        ends: uint64[n]: where the frames of a plain file end, according to an index; with it, the
            records that a break loses are counted.
        progress: Called now and then with the bytes of the file read so far.

    Raises:
        StorageError: The file can not be opened or read.
        OptionError: The check is unknown.
    """
    if options.check not in get_args(Check):
        raise OptionError(f"check is {options.check!r}", hint="use none, length or crc")
    scan = FileScan(path)
    with storage_errors(path), open_stream(path) as stream:
        scan.file_bytes = inputs_for(path).stat(path).st_size
        scan.compression = stream.compression
        hazards = _Hazards()
        summer = IndexSummer(is_plain=stream.compression == "none")
        if stream.compression == "gzip":

            def note_member(file_end: int, stream_end: int) -> None:
                hazards(file_end, stream_end)
                summer.add_member(file_end, stream_end)

            stream.on_members(note_member)
        cursor = _Scanning(scan, stream, options, ends, progress, summer).run()
        if cursor.broken is None:
            scan.crc32c = cursor.crc32c
            scan.file_crc32c = stream.file_crc32c
        is_proven = options.check == "crc" and not scan.num_defects
        if is_proven and stream.compression != "zlib":
            scan.index_sums = summer.sums()
        scan.cut_short_at = hazards.found
        _check_name(scan, stream)
    return scan


class _Scanning:
    """The scan of one open file."""

    def __init__(
        self,
        scan: FileScan,
        stream: OpenStream,
        options: ScanOptions,
        ends: NDArray[np.uint64] | None,
        progress: Callable[[int], None] | None,
        summer: IndexSummer,
    ) -> None:
        is_plain = stream.compression == "none"
        hops = is_plain and options.check != "crc"
        self._scan = scan
        self._stream = stream
        self._progress = progress
        self._is_plain = is_plain
        self._check = options.check
        # Only local files are read twice; at a URL that may be another request.
        self._cursor = Cursor(
            stream,
            read_at=stream.reader_at() if hops or (is_plain and not is_url(scan.path)) else None,
            size=scan.file_bytes if is_plain else None,
            with_crc=not hops,
            on_read=None if progress is None else self._report_progress,
        )
        self._walk = Walk(self._cursor, options.check, self._note, ends=ends if is_plain else None)
        self._headers = Headers(verify=options.check != "none")
        self._break = 0  # index in scan.defects of the last listed break, plus one
        self._sizes = array("Q")
        self._summer = summer
        self._payloads = PayloadFeed(options.features, options.label, options.label_sequence)

    def run(self) -> Cursor:
        """Read the file to its end."""
        cursor, payloads = self._cursor, self._payloads
        while True:
            if self._pass_over():
                continue
            payload = self._walk.next()
            if payload is None:
                break
            if self._walk.is_behind_break:
                self._add_recoverable(1)
                continue
            self._sizes.append(len(payload))
            if payloads.wanted:
                payloads.add(cursor.record_index - 1, [payload])
            if len(self._sizes) >= _BATCH:
                self._add_sizes()
        self._add_sizes()
        cursor.start = len(cursor.buffer)  # an incomplete frame, part of the CRC too
        cursor.drop_consumed()
        payloads.finish(0 if self._walk.is_behind_break else cursor.record_index)
        self._scan.payloads, self._scan.kinds = payloads.stats, payloads.kinds
        self._report_progress()
        return cursor

    def _pass_over(self) -> bool:
        """Pass over good frames in bulk; return False if the next one is not good."""
        payloads, cursor = self._payloads, self._cursor
        collected: list[bytes] | None = None
        if payloads.wanted and not self._walk.is_behind_break:
            if payloads.is_sample or self._check != "crc":
                cursor.ensure(HEADER_BYTES)
                return self._pass_long()
            collected = []
        sizes = self._pass_buffered(collected)
        if not len(sizes) and self._check != "crc":
            cursor.ensure(HEADER_BYTES)
            sizes = skip_far(cursor, verify=self._check == "length")
            self._report_progress()
        if not len(sizes):
            cursor.ensure(READ_BYTES)
            sizes = self._pass_buffered(collected)
        if not len(sizes) and self._pass_long():
            return True
        if not len(sizes) and self._check == "crc":
            # A frame longer than one read.
            frame_bytes = self._headers[cursor.peek(HEADER_BYTES)] + FRAME_BYTES
            if frame_bytes > READ_BYTES and cursor.ensure(frame_bytes):
                sizes = self._pass_buffered(collected)
        if self._walk.is_behind_break:
            self._add_recoverable(len(sizes))
        elif len(sizes):
            self._sizes.frombytes(sizes.tobytes())
            if len(self._sizes) >= _BATCH:
                self._add_sizes()
            if collected is not None:
                payloads.add(cursor.record_index - len(sizes), collected)
        return len(sizes) > 0

    def _pass_long(self) -> bool:
        """Pass over a frame that is too long for memory; return False if the next one is not."""
        cursor, walk = self._cursor, self._walk
        length = self._headers[cursor.peek(HEADER_BYTES)]
        if length <= LONG_BYTES:
            return False
        cursor.drop_consumed()
        offset, crc = cursor.offset, cursor.crc32c
        index = cursor.record_index
        defect = pass_long(cursor, length, verify=self._check == "crc")
        if defect is not None and cursor.read_at is not None:
            # Left to the frame-by-frame walk, which also looks at what follows.
            cursor.seek(offset, b"")
            cursor.crc32c, cursor.record_index = crc, index
            return False
        if defect is not None and cursor.broken is not None:
            return False  # the end of the stream is reported with its reason
        if defect is not None:
            self._note(defect if walk.is_index_known else defect._replace(record_index=None))
        elif walk.is_behind_break:
            self._add_recoverable(1)
        else:
            self._sizes.append(length)
            self._scan.num_long += 1
            self._payloads.skip_long(cursor.record_index)
        self._report_progress()
        return True

    def _pass_buffered(self, collected: list[bytes] | None) -> NDArray[np.uint64]:
        if self._check == "crc":
            return verify_buffered(self._cursor, self._headers, collected)
        return skip_buffered(self._cursor, self._headers)

    def _add_sizes(self) -> None:
        sizes = np.frombuffer(self._sizes, np.uint64) if self._sizes else _NOTHING
        self._scan.sizes.add(sizes)
        self._summer.add_records(sizes)
        self._sizes = array("Q")

    def _note(self, defect: Defect) -> None:
        scan = self._scan
        scan.note(defect)
        if defect.kind in BREAKS or defect.resync_offset is not None:
            self._break = len(scan.defects) if scan.num_defects <= MAX_DEFECTS else 0

    def _add_recoverable(self, count: int) -> None:
        self._scan.num_recoverable += count
        if self._break:
            defect = self._scan.defects[self._break - 1]
            num_recoverable = defect.num_recoverable + count
            self._scan.defects[self._break - 1] = defect._replace(num_recoverable=num_recoverable)

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._cursor.offset if self._is_plain else self._stream.tell())


def _check_name(scan: FileScan, stream: OpenStream) -> None:
    """Add a defect if the file's name contradicts its compression."""
    detail = misnamed(scan.path, stream.compression, scan.file_bytes)
    if detail is not None:
        scan.note(Defect("misnamed", 0, 0, detail, num_records=0))


def index_scans(sets: Sequence[ShardSet], options: ScanOptions) -> dict[str, FileScan]:
    """Return scans made from indexes instead of reading files, by path.

    Only if nothing is verified and no record inspected, for plain shards whose index matches the
    manifest and whose files have the size in the index.

    Args:
        sets: The shard sets.
        options: The scan options.
    """
    if options.check != "none" or options.features or options.label is not None:
        return {}
    return {scan.path: scan for shard_set in sets for scan in _index_scans(shard_set)}


def _index_scans(shard_set: ShardSet) -> list[FileScan]:
    manifest = shard_set.manifest
    if manifest is None or manifest.compression["type"] != "none":
        return []
    try:
        index = open_index(shard_set.directory, manifest)
    except (ManifestError, StorageError):
        return []
    with storage_errors(shard_set.directory):
        found = inputs_for(shard_set.directory).stats([path for _, path in shard_set.shards])
    scans = []
    for (shard, path), stat in zip(shard_set.shards, found, strict=True):
        ends = index.ends(shard).astype(np.uint64)
        if stat.st_size != (ends[-1] if len(ends) else 0):
            continue  # a scan finds out why
        scan = FileScan(path, stat.st_size)
        scan.sizes.add(np.diff(ends, prepend=np.uint64(0)) - np.uint64(FRAME_BYTES))
        scans.append(scan)
    return scans
