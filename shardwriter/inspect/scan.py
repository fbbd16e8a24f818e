"""Reading one TFRecord file through and proving it: counts, sizes, checksums, defects."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, get_args

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.naming import is_url
from shardwriter.errors import OptionError
from shardwriter.formats.compressed_writer import HAZARD_BYTES
from shardwriter.formats.compression import Compression, OpenStream
from shardwriter.formats.cursor import READ_BYTES, Cursor
from shardwriter.formats.tfrecord import FRAME_BYTES, HEADER_BYTES
from shardwriter.formats.tfrecord_reader import BREAKS, Check, Defect
from shardwriter.inspect.file_names import misnamed
from shardwriter.inspect.frames import (
    Headers,
    Walk,
    hop_buffered,
    hop_far,
    pass_long,
    prove_buffered,
)
from shardwriter.inspect.index_sums import IndexSummer, IndexSums
from shardwriter.inspect.payload_feed import PayloadFeed
from shardwriter.storage.inputs import inputs_for, open_stream
from shardwriter.storage.local import storage_errors

if TYPE_CHECKING:
    from shardwriter.inspect.payloads import PayloadStats

MAX_DEFECTS: Final = 1000  # kept of one file; all are counted
LONG_BYTES: Final = 256 << 20  # longer payloads are proven in pieces, and not looked into
_BATCH: Final = 1 << 14
_TENSORFLOW_BUFFER_BYTES: Final = 1 << 18
_NOTHING: Final = np.empty(0, np.uint64)


@dataclass(frozen=True)
class ScanOptions:
    """How files are scanned.

    Attributes:
        check: What to prove; ``"none"`` and ``"length"`` leave payloads unproven.
        features: Look at the features of every record.
        label: The feature whose values are counted in every record.
        label_sequence: How many labels of a file are kept in their order.
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
        sizes: The records that were proven.
        crc32c: Of the uncompressed stream, as far as it could be read; None unless all was read.
        file_crc32c: Of a compressed file itself, likewise.
        index_sums: What the index should have of the file; None where that is not known: of a zlib
            file, and of one that is damaged or was not proven.
        cut_short_at: Offset in a gzip file at which TensorFlow may stop, silently; or None.
        defects: The first of them; :attr:`num_defects` counts all.
        num_defects: How many there are.
        num_recoverable: Good records behind breaks, which ordinary readers do not reach; they are
            in none of the other numbers.
        num_long: Records over `LONG_BYTES`, whose content was not looked at.
        kinds: How many of the first records are of which kind; empty where ``payloads`` tells.
        payloads: What was found in the records, where that was asked for.
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
        """Records that can be read and proven."""
        return self.sizes.count

    def note(self, defect: Defect) -> None:
        """Take a defect down."""
        self.num_defects += 1
        if len(self.defects) < MAX_DEFECTS:
            self.defects.append(defect)
        if defect.kind == "unmasked-crc":
            self.num_recoverable += defect.num_recoverable


class _Hazards:
    """Finds the members of a gzip file behind which TensorFlow's reader may take it for ended.

    They are empty, or end in the first bytes behind a multiple of the reader's buffer: all of their
    data came with one buffer, and their trailer is in the next. How many bytes that takes depends
    on the end of the data (8 are sure); here it is as many as our own members keep away from. The
    last member does no harm.
    """

    def __init__(self) -> None:
        self.found: int | None = None
        self._suspect: int | None = None
        self._stream_end = 0

    def __call__(self, file_end: int, stream_end: int) -> None:
        if self.found is None:
            self.found = self._suspect  # it was not the last
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
    """Read a file to its end and take down all that is wrong with it.

    Args:
        path: The file, compressed or not.
        options: What to prove, and what to look for in the records. Where payloads need not be
            proven, those of a plain file are hopped over: its CRC is not known then.
        ends: uint64[n]: where the frames of a plain file end, as an index says; with it it is known
            how many records a break costs.
        progress: Told now and then of the bytes of the file that were read.

    Raises:
        StorageError: The file can not be opened or read.
        OptionError: There is no such check.
    """
    if options.check not in get_args(Check):
        raise OptionError(f"check is {options.check!r}", hint="none, length or crc")
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

            stream.note_members(note_member)
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
        # Reading twice is for local files; at a URL it may be another request.
        self._cursor = Cursor(
            stream,
            read_at=stream.reader_at() if hops or (is_plain and not is_url(scan.path)) else None,
            size=scan.file_bytes if is_plain else None,
            with_crc=not hops,
            on_read=None if progress is None else self._tell,
        )
        self._walk = Walk(self._cursor, options.check, self._note, ends=ends if is_plain else None)
        self._headers = Headers(verify=options.check != "none")
        self._break = 0  # of the last break that was kept: its index in scan.defects, plus one
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
        cursor.start = len(cursor.buffer)  # what is left is no whole frame, and is summed too
        cursor.give_up()
        payloads.finish(0 if self._walk.is_behind_break else cursor.record_index)
        self._scan.payloads, self._scan.kinds = payloads.stats, payloads.kinds
        self._tell()
        return cursor

    def _pass_over(self) -> bool:
        """Pass over frames that are right, in bulk; False where there is none."""
        payloads, cursor = self._payloads, self._cursor
        keep: list[bytes] | None = None
        if payloads.wanted and not self._walk.is_behind_break:
            if payloads.is_sample or self._check != "crc":
                cursor.ensure(HEADER_BYTES)
                return self._pass_long()
            keep = []
        sizes = self._pass_buffered(keep)
        if not len(sizes) and self._check != "crc":
            cursor.ensure(HEADER_BYTES)
            sizes = hop_far(cursor, verify=self._check == "length")
            self._tell()
        if not len(sizes):
            cursor.ensure(READ_BYTES)
            sizes = self._pass_buffered(keep)
        if not len(sizes) and self._pass_long():
            return True
        if not len(sizes) and self._check == "crc":
            # A frame that is longer than what is read at a time.
            frame_bytes = self._headers[cursor.peek(HEADER_BYTES)] + FRAME_BYTES
            if frame_bytes > READ_BYTES and cursor.ensure(frame_bytes):
                sizes = self._pass_buffered(keep)
        if self._walk.is_behind_break:
            self._add_recoverable(len(sizes))
        elif len(sizes):
            self._sizes.frombytes(sizes.tobytes())
            if len(self._sizes) >= _BATCH:
                self._add_sizes()
            if keep is not None:
                payloads.add(cursor.record_index - len(sizes), keep)
        return len(sizes) > 0

    def _pass_long(self) -> bool:
        """Pass over a frame that is too long to be held; False where there is none."""
        cursor, walk = self._cursor, self._walk
        length = self._headers[cursor.peek(HEADER_BYTES)]
        if length <= LONG_BYTES:
            return False
        cursor.give_up()
        offset, crc = cursor.offset, cursor.crc32c
        index = cursor.record_index
        defect = pass_long(cursor, length, verify=self._check == "crc")
        if defect is not None and cursor.read_at is not None:
            # It is judged with what follows, like any other.
            cursor.move_to(offset, b"")
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
            self._payloads.pass_by(cursor.record_index)
        self._tell()
        return True

    def _pass_buffered(self, keep: list[bytes] | None) -> NDArray[np.uint64]:
        if self._check == "crc":
            return prove_buffered(self._cursor, self._headers, keep)
        return hop_buffered(self._cursor, self._headers)

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
            told = self._scan.defects[self._break - 1]
            counted = told._replace(num_recoverable=told.num_recoverable + count)
            self._scan.defects[self._break - 1] = counted

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._cursor.offset if self._is_plain else self._stream.tell())


def _check_name(scan: FileScan, stream: OpenStream) -> None:
    """Who goes by the name of a file reads it as that, whatever it is."""
    detail = misnamed(scan.path, stream.compression, scan.file_bytes)
    if detail is not None:
        scan.note(Defect("misnamed", 0, 0, detail, num_records=0))
