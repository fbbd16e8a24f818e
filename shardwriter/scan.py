"""Reading one TFRecord file through and proving it: counts, sizes, checksums, defects."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shardwriter.compressed_writer import HAZARD_BYTES
from shardwriter.compression import Compression, OpenStream
from shardwriter.crc32c import extend_crc32c
from shardwriter.storage.inputs import inputs_for, open_stream
from shardwriter.storage.local import storage_errors
from shardwriter.tfrecord_reader import ByteStream, Check, Defect, read_frames

MAX_DEFECTS: Final = 1000  # kept of one file; all are counted
_BATCH: Final = 1 << 14
_TENSORFLOW_BUFFER_BYTES: Final = 1 << 18


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

    def add(self, sizes: array[int]) -> None:
        """Add a batch of sizes in bytes."""
        if not sizes:
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
        cut_short_at: Offset in a gzip file at which TensorFlow may stop, silently; or None.
        defects: The first of them; :attr:`num_defects` counts all.
    """

    path: str
    file_bytes: int = 0
    compression: Compression = "none"
    sizes: RecordSizes = field(default_factory=RecordSizes)
    crc32c: int | None = None
    file_crc32c: int | None = None
    cut_short_at: int | None = None
    defects: list[Defect] = field(default_factory=list)
    num_defects: int = 0

    @property
    def num_records(self) -> int:
        """Records that can be read and proven."""
        return self.sizes.count

    def note(self, defect: Defect) -> None:
        """Take a defect down."""
        self.num_defects += 1
        if len(self.defects) < MAX_DEFECTS:
            self.defects.append(defect)


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


class _ProvenStream:
    """A stream that keeps the running CRC of what goes through it, and tells how far it is."""

    def __init__(self, stream: OpenStream, progress: Callable[[int], None] | None) -> None:
        self._stream = stream
        self._progress = progress
        self.crc32c = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self.crc32c = extend_crc32c(self.crc32c, data)
        if self._progress is not None:
            self._progress(self._stream.tell())
        return data


def scan_file(
    path: str, *, check: Check = "crc", progress: Callable[[int], None] | None = None
) -> FileScan:
    """Read a file to its end and take down all that is wrong with it.

    Args:
        path: The file, compressed or not.
        check: What to prove; ``"none"`` and ``"length"`` leave payloads unproven.
        progress: Told now and then of the bytes of the file that were read.

    Raises:
        StorageError: The file can not be opened or read.
    """
    scan = FileScan(path)
    with storage_errors(path), open_stream(path) as stream:
        scan.file_bytes = inputs_for(path).stat(path).st_size
        scan.compression = stream.compression
        proven = _ProvenStream(stream, progress)
        hazards = _Hazards()
        if stream.compression == "gzip":
            stream.note_members(hazards)
        for batch in _batches(proven, check, scan):
            scan.sizes.add(batch)
        if not any(defect.kind in _STOPS for defect in scan.defects):
            scan.crc32c = proven.crc32c
            scan.file_crc32c = stream.file_crc32c
        scan.cut_short_at = hazards.found
        _check_name(scan, stream)
    return scan


_STOPS: Final = frozenset(
    [
        "length-crc",
        "impossible-length",
        "bad-deflate",
        "bad-gzip-header",
        "bad-gzip-size",
        "bad-checksum",
        "trailing-data",
    ]
)


def _batches(stream: ByteStream, check: Check, scan: FileScan) -> Iterator[array[int]]:
    sizes = array("Q")
    for payload in read_frames(stream, check=check, on_defect=scan.note):
        sizes.append(len(payload))
        if len(sizes) == _BATCH:
            yield sizes
            sizes = array("Q")
    yield sizes


def _check_name(scan: FileScan, stream: OpenStream) -> None:
    """A gzip file that is not called one is read as plain by all who go by the name."""
    if stream.compression == "gzip" and not scan.path.endswith(".gz"):
        detail = "gzip, and the name does not end in .gz: readers take it for plain"
        scan.note(Defect("misnamed", 0, 0, detail, num_records=0))
