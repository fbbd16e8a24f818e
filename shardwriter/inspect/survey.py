"""Survey of a damaged dataset: which shards are good, and which records of the others are good.

- `find_damaged` finds the dataset. Manifest or index may be damaged. The manifest has everything
  but the offsets of records. The index has these, and gives the number of items if the counts of
  its shards and its gaps agree with the assignment of records. Without both, the items of records
  behind a loss are unknown.
- `survey_shard` checks one shard. A shard with the manifest's CRC is good. Otherwise `Salvage`
  reads its records, each verified by its own CRCs, and their positions in the shard are found.
- A plain file is salvaged frame by frame. A compressed one is read by gzip members or zlib blocks,
  which can be inflated independently: a damaged one gives the records before its fault, and the
  next one is found by the index, by the size in the header of a member, or by searching. Files of
  other tools have no such blocks; they give the records before the fault.
  :mod:`shardwriter.formats.compressed_writer` describes the layout.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    Index,
    Manifest,
    SealedShard,
    ShardPattern,
    assignment_error,
    columns,
    is_url,
)
from shardwriter.errors import CorruptFile, ManifestError, OptionError, StorageError
from shardwriter.formats import (
    EMPTY_DEFLATE,
    FRAME_BYTES,
    HEADER_BYTES,
    RAW_WBITS,
    ZLIB_HEAD,
    ZLIB_TAIL_BYTES,
    Compression,
    Defect,
    InflateStream,
    OpenStream,
    block_at,
    extend_crc32c,
    frame,
    masked_crc32c,
    read_frames,
    read_records,
    sniff,
)
from shardwriter.inspect.frames import good_records
from shardwriter.sources import (
    MANIFEST_SUFFIX,
    Folder,
    ShardSet,
    find_one,
)
from shardwriter.storage import open_stream, storage_errors
from shardwriter.writing import open_index

_MAX_BYTES: Final = 1 << 62


@dataclass(frozen=True)
class DamagedDataset:
    """A damaged dataset: its files, and what manifest and index say about it.

    Attributes:
        directory: Its folder.
        name: The dataset's name; for a single file the file's name.
        pattern: The pattern of file names; None for a single file.
        files: Path of each existing shard, by index.
        manifest: The manifest; None if it can not be used.
        index: The index; None if it can not be used.
        num_items: Number of items; None if neither manifest nor index gives it.
        gaps: Sorted items without a record.
        notes: Problems with manifest and index, and remarks about the folder.
    """

    directory: str
    name: str
    pattern: ShardPattern | None
    files: dict[int, str]
    manifest: Manifest | None = None
    index: Index | None = None
    num_items: int | None = None
    gaps: Sequence[int] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def items_known(self) -> bool:
        """Whether the item of each record is known."""
        return self.num_items is not None

    @property
    def num_shards(self) -> int:
        """Number of shards; 1 for a single file."""
        return 1 if self.pattern is None else self.pattern.num_shards

    @property
    def shards(self) -> range:
        """The indices of all shards, existing or missing."""
        return range(self.num_shards)

    def path(self, shard: int) -> str:
        """Return the path of a shard, existing or missing."""
        return self.files.get(shard) or os.path.join(self.directory, self.file_name(shard))

    def file_name(self, shard: int) -> str:
        """Return the name of a shard's file."""
        return self.name if self.pattern is None else self.pattern.shard_file(shard)

    def num_records(self, shard: int) -> int | None:
        """Return the number of records that a shard had; None if unknown."""
        if self.manifest is not None:
            return self.manifest.shards[shard].num_records
        return None if self.index is None else self.index.num_records(shard)

    def file_bytes(self, shard: int) -> int | None:
        """Return the size that a shard's file had; None if unknown."""
        if self.manifest is not None:
            return self.manifest.shards[shard].file_bytes
        if self.index is None:
            return None
        ends = self.index.ends(shard)
        if self.index.compression == "zlib":
            return int(ends[-1]) + ZLIB_TAIL_BYTES if len(ends) else None
        return int(ends[-1]) if len(ends) else 0

    def file_crc32c(self, shard: int) -> int | None:
        """Return the CRC-32C that a shard's file had; None if unknown."""
        if self.manifest is None:
            return None
        sealed = self.manifest.shards[shard]
        return sealed.crc32c if sealed.file_crc32c is None else sealed.file_crc32c

    def rows(self, shard: int) -> NDArray[np.uint64] | None:
        """Return the index rows of a shard: uint64[1, n], uint64[2, n] if compressed, or None."""
        return None if self.index is None else rows_of(self.index, shard)

    @property
    def compression(self) -> Compression | None:
        """The compression of the shards; None if neither manifest nor index gives it."""
        if self.manifest is not None:
            found: Compression = self.manifest.compression["type"]
            return found
        return None if self.index is None else self.index.compression

    @property
    def has_dali_index(self) -> bool:
        """Whether any shard has an ``.idx`` file."""
        return any(map(self.has_dali_index_of, self.shards))

    def has_dali_index_of(self, shard: int) -> bool:
        """Return whether a shard has an ``.idx`` file."""
        return os.path.exists(self.path(shard) + DALI_INDEX_SUFFIX)


def rows_of(index: Index, shard: int) -> NDArray[np.uint64]:
    """Return the rows of a shard in an index: uint64[1, n], or uint64[2, n] if compressed."""
    rows: NDArray[np.uint64]
    rows = np.frombuffer(index.rows(shard), "<u8").reshape(-1, columns(index.compression)).T
    return rows


def find_damaged(path: str) -> DamagedDataset:
    """Return the only dataset at a path, even if its manifest is damaged.

    Raises:
        OptionError: The path names nothing or several datasets, or is a URL.
        SourceError: There are no shards.
    """
    if is_url(path):
        raise OptionError(
            f"{path!r} is a URL, and repair reads local files",
            hint="copy the dataset to a local folder first",
        )
    notes: list[str] = []
    try:
        found = find_one(path)
    except ManifestError as error:
        found = _without_manifest(error)
        notes.append(f"{error.path}: {error.message}")
    notes += found.notes
    if found.manifest is not None:
        return _with_manifest(found, found.manifest, notes)
    if found.pattern is not None and not found.whole and len(found.shards) == 1:
        notes.append("only one shard of several was named, so only that shard is repaired")
    known = DamagedDataset(
        found.directory, found.name, found.pattern, dict(found.shards), None, None, notes=notes
    )
    if found.pattern is None or not found.whole:
        only = [os.path.basename(file) for _, file in found.shards]
        if len(only) == 1:
            return DamagedDataset(
                found.directory, only[0], None, {0: found.shards[0][1]}, None, None, notes=notes
            )
    return _with_index(known)


def _without_manifest(error: ManifestError) -> ShardSet:
    """Return the shards in the folder of an unusable manifest."""
    directory, file_name = os.path.split(error.path or "")
    name = file_name.removesuffix(MANIFEST_SUFFIX)
    folder = Folder(directory or ".", name)
    patterns = [pattern for pattern in folder.patterns if pattern.name == name]
    if len(patterns) != 1 or name == file_name:
        raise error
    shards = [
        (shard, os.path.join(directory or ".", file))
        for shard, file in folder.patterns[patterns[0]]
    ]
    return ShardSet(directory or ".", patterns[0], shards, whole=True)


def _with_manifest(found: ShardSet, manifest: Manifest, notes: list[str]) -> DamagedDataset:
    files = dict(found.shards)
    if not found.whole:  # one shard was named, but the manifest lists all
        everything = Folder(found.directory, manifest.name).patterns.get(manifest.pattern, [])
        files = {shard: os.path.join(found.directory, name) for shard, name in everything}
    index = None
    try:
        index = open_index(found.directory, manifest)
    except (ManifestError, StorageError) as error:
        notes.append(f"{error.path}: {error.message}")
    return DamagedDataset(
        found.directory,
        manifest.name,
        manifest.pattern,
        files,
        manifest,
        index,
        manifest.num_items,
        manifest.gaps,
        notes,
    )


def _with_index(known: DamagedDataset) -> DamagedDataset:
    """Return the dataset with its index, if it has one that is consistent."""
    assert known.pattern is not None
    path = os.path.join(known.directory, known.pattern.index_file)
    if type(known.pattern) is not ShardPattern or not os.path.isfile(path):
        return known
    try:
        with storage_errors(path):
            index = Index(path)
        if len(index.counts) != known.num_shards:
            raise ManifestError(f"it lists {len(index.counts)} shards", path=path)
        for shard in known.shards:
            # The original size of the file is unknown.
            index.check_order(shard, _MAX_BYTES)
        gaps = index.gaps.astype(np.int64).tolist()
        counts = [index.num_records(shard) for shard in known.shards]
        num_items = sum(counts) + len(gaps)
        in_order = all(a < b for a, b in pairwise([-1, *gaps, num_items]))
        if not in_order or assignment_error(counts, num_items, gaps) is not None:
            raise ManifestError(
                "its counts are not those of records assigned round-robin", path=path
            )
    except (ManifestError, StorageError) as error:
        return DamagedDataset(
            known.directory,
            known.name,
            known.pattern,
            known.files,
            notes=[*known.notes, f"{path}: {error.message}"],
        )
    return DamagedDataset(
        known.directory,
        known.name,
        known.pattern,
        known.files,
        None,
        index,
        num_items,
        gaps,
        [
            *known.notes,
            "without the manifest the index, which gives the items, is not verified",
        ],
    )


# -- gzip members and zlib blocks ------------------------------------------------------------------

GZIP_MAGIC: Final = b"\x1f\x8b\x08"
FLUSH: Final = b"\x00\x00\xff\xff"
"""The last bytes of a full flush, and so of a zlib block."""

_MEMBER_HEAD: Final = struct.Struct("<10sH2sHQI")
_HEAD_BEGIN: Final = bytes.fromhex("1f8b08040000000000ff")
_MIN_MEMBER_BYTES: Final = _MEMBER_HEAD.size + len(EMPTY_DEFLATE) + 8


def is_member(data: mmap.mmap, offset: int) -> bool:
    """Return whether a gzip member written by shardwriter begins at an offset."""
    if offset + _MIN_MEMBER_BYTES > len(data):
        return False
    magic, extra, name, field, size, _ = _MEMBER_HEAD.unpack_from(data, offset)
    if magic != _HEAD_BEGIN or name != b"SW" or extra != field + 4 or field < 12:
        return False
    return int(size) >= _MIN_MEMBER_BYTES


def member_head(data: mmap.mmap, offset: int) -> tuple[int, int]:
    """Return the compressed size of a member, and its number of records."""
    *_, size, num_records = _MEMBER_HEAD.unpack_from(data, offset)
    return int(size), int(num_records)


def next_member(data: mmap.mmap, offset: int) -> int | None:
    """Return the offset of the next member written by shardwriter; None if there is none."""
    while (offset := data.find(_HEAD_BEGIN, offset)) >= 0:
        if is_member(data, offset):
            return offset
        offset += 1
    return None


def block_stream(block: bytes, path: str) -> BytesIO | InflateStream:
    """Return the uncompressed bytes of a zlib block, as far as it can be inflated."""
    inflater = zlib.decompressobj(wbits=RAW_WBITS)
    with suppress(zlib.error):
        data = inflater.decompress(block + EMPTY_DEFLATE)
        if inflater.eof and not inflater.unused_data:
            return BytesIO(data)
    return InflateStream(BytesIO(ZLIB_HEAD + block), "zlib", path)


# -- salvage ---------------------------------------------------------------------------------------

OnDefect = Callable[[Defect], None]

_READ_BYTES: Final = 1 << 20


class SalvagedRecord(NamedTuple):
    """A good record of a damaged file.

    Attributes:
        position: Its index in the shard; None if the losses before it can not be counted.
        follows: Whether nothing is lost between it and the previous good record, or the beginning
            of the file.
        payload: Its bytes.
    """

    position: int | None
    follows: bool
    payload: bytes


class Salvage:
    """Reads the good records of one file; it can be read several times.

    Args:
        path: The file.
        compression: Its original compression; None if unknown.
        rows: Its rows in the index; None if unknown.
        trust_no_crc: Whether records whose CRC fields are zero count as good.

    Attributes:
        ends_whole: After reading: whether nothing is lost behind the last good record.
    """

    def __init__(
        self,
        path: str,
        compression: Compression | None,
        rows: NDArray[np.uint64] | None,
        *,
        trust_no_crc: bool = False,
    ) -> None:
        self.path = path
        found = _compression(path, compression)
        self.compression: Compression = found
        # In a file with another compression the offsets of the index are invalid.
        self._rows = rows if compression == found else None
        self._trust_no_crc = trust_no_crc
        self._has_original_compression = compression == found
        self.ends_whole = False

    def records(self, on_defect: OnDefect) -> Iterator[SalvagedRecord]:
        """Yield the good records, in order.

        Raises:
            StorageError: The file can not be read.
        """
        self.ends_whole = False
        if self.compression == "none" or not os.path.getsize(self.path):
            yield from self._plain(on_defect)
            return
        with storage_errors(self.path), open(self.path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with data:
                if self._rows is not None:
                    yield from self._by_index(data, self._rows, on_defect)
                    return
                if self.compression == "gzip" and self._has_members(data):
                    yield from self._members(data, on_defect)
                    return
                if self.compression == "zlib" and self._has_blocks(data):
                    yield from self._blocks(data, on_defect)
                    return
        yield from self._plain(on_defect)

    # -- frames ------------------------------------------------------------------------------------

    def _plain(self, on_defect: OnDefect) -> Iterator[SalvagedRecord]:
        rows = self._rows if self.compression == "none" else None
        known = None if rows is None else _Frames(rows[0])
        behind = 0
        stream_is_whole = is_counted = True
        unproven: list[Defect] = []

        def note(defect: Defect) -> None:
            nonlocal stream_is_whole, is_counted
            on_defect(defect)
            if defect.kind == "no-crc" and self._trust_no_crc:
                unproven.append(defect)
            else:
                stream_is_whole = False
                # Zeros look like empty records, whatever they replaced.
                is_counted = is_counted and defect.kind != "no-crc"

        def position(offset: int, size: int, record_index: int | None) -> int | None:
            if known is not None:
                return known.position(offset, size)
            return record_index if is_counted else None

        ends = None if rows is None else rows[0]
        for record in good_records(self.path, ends=ends, on_defect=note):
            # Broken deflate data may repeat earlier data: right frames, but not records.
            if not stream_is_whole and not self._is_readable_behind_defects():
                break
            while unproven and unproven[0].offset < record.offset:
                for offset, index, payload in self._unproven(unproven.pop(0)):
                    yield SalvagedRecord(
                        position(offset, len(payload), index), offset == behind, payload
                    )
                    behind = offset + len(payload) + FRAME_BYTES
            offset, payload = record.offset, record.payload
            found = position(offset, len(payload), record.record_index)
            yield SalvagedRecord(found, offset == behind, payload)
            behind = offset + len(payload) + FRAME_BYTES
        for defect in unproven:
            for offset, index, payload in self._unproven(defect):
                yield SalvagedRecord(
                    position(offset, len(payload), index), offset == behind, payload
                )
                behind = offset + len(payload) + FRAME_BYTES
        if self.compression == "none":
            self.ends_whole = behind == os.path.getsize(self.path)
        else:
            self.ends_whole = stream_is_whole

    @cached_property
    def _is_intact(self) -> bool:
        """Whether a compressed stream has its end and the right checksum."""
        with storage_errors(self.path), open_stream(self.path) as stream:
            try:
                while stream.read(_READ_BYTES):
                    pass
            except CorruptFile:
                return False
        return True

    def _is_readable_behind_defects(self) -> bool:
        """Return whether data behind a defect is reliable."""
        return self.compression == "none" or self._is_intact

    def _unproven(self, defect: Defect) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, index and payload of the records whose CRC fields are zero."""
        with storage_errors(self.path), open_stream(self.path) as stream:
            _skip(stream, defect.offset)
            offset = defect.offset
            for number in range(defect.num_records or 0):
                length = int.from_bytes(_read(stream, HEADER_BYTES)[:8], "little")
                payload = _read(stream, length)
                _skip(stream, FRAME_BYTES - HEADER_BYTES)
                yield offset, (defect.record_index or 0) + number, payload
                offset += length + FRAME_BYTES

    def _has_members(self, data: mmap.mmap) -> bool:
        """Return whether the gzip members were written by shardwriter, so any can be inflated."""
        if is_member(data, 0):
            return True
        is_readable = data[:3] == GZIP_MAGIC
        return (self._has_original_compression or not is_readable) and next_member(
            data, 0
        ) is not None

    def _has_blocks(self, data: mmap.mmap) -> bool:
        """Return whether a zlib stream consists of blocks of whole records."""
        if self._has_original_compression:
            return True
        begin = len(ZLIB_HEAD)
        block = block_at(data, begin)
        defects: list[Defect] = []
        if block is not None:
            for _ in self._inflate(data, begin, block[0], 0, None, defects.append):
                pass
        return block is not None and not defects

    # -- members and blocks ------------------------------------------------------------------------

    def _by_index(
        self, data: mmap.mmap, rows: NDArray[np.uint64], on_defect: OnDefect
    ) -> Iterator[SalvagedRecord]:
        begin = len(ZLIB_HEAD) if self.compression == "zlib" else 0
        before, follows = 0, True
        for end, behind in rows.T.tolist():
            count = 0
            is_expected = self.compression == "zlib" or begin >= len(data) or behind == before
            claimed = end - begin, behind - before
            is_expected = is_expected or (
                is_member(data, begin) and member_head(data, begin) == claimed
            )
            if not is_expected:
                detail = f"byte {begin:,} of the file: no member as the index has it"
                on_defect(Defect("bad-gzip-header", before, begin, detail, 0))
            records = self._inflate(data, begin, end, before, behind, on_defect)
            is_right_member = True
            if not is_expected:  # it may be another member
                faults: list[Defect] = []
                inside = list(self._inflate(data, begin, end, before, None, faults.append))
                is_right_member = not faults and len(inside) == behind - before
                records = iter(inside)
                for fault in faults:
                    on_defect(fault)
            for number, payload in records:
                position = before + number if is_right_member else None
                yield SalvagedRecord(position, follows and number == count, payload)
                follows, count = True, number + 1
            follows = follows and count == behind - before
            begin, before = end, behind
        self.ends_whole = follows

    def _members(self, data: mmap.mmap, on_defect: OnDefect) -> Iterator[SalvagedRecord]:
        """Yield the records of gzip members written by shardwriter."""
        begin = next_member(data, 0)
        before: int | None = 0
        follows = begin == 0
        if not follows:
            on_defect(Defect("bad-gzip-header", 0, 0, "the file does not begin with a member"))
            before = None
        while begin is not None:
            size, num_records = member_head(data, begin)
            end = begin + size
            if not (end == len(data) or is_member(data, end)):
                # This header or the next one is wrong, or the file is truncated.
                end = next_member(data, begin + 1) or len(data)
            size_is_right = end == begin + size
            count = 0
            first = before or 0
            records = self._inflate(data, begin, end, first, first + num_records, on_defect)
            for number, payload in records:
                position = None if before is None else before + number
                yield SalvagedRecord(position, follows and number == count, payload)
                follows, count = True, number + 1
            is_whole = count == num_records
            follows = follows and is_whole and size_is_right
            is_known = before is not None and size_is_right
            before = first + num_records if is_known else None
            begin = end if end < len(data) else None
        self.ends_whole = follows

    def _blocks(self, data: mmap.mmap, on_defect: OnDefect) -> Iterator[SalvagedRecord]:
        """Yield the records of zlib blocks; a damaged one extends to the next flush."""
        begin, before, follows = len(ZLIB_HEAD), 0, True
        is_known, is_broken = True, False

        def note(defect: Defect) -> None:
            nonlocal is_broken
            is_broken = True
            on_defect(defect)

        while begin < len(data):
            tail = data[begin : begin + ZLIB_TAIL_BYTES + 1]
            if len(tail) == ZLIB_TAIL_BYTES and tail.startswith(EMPTY_DEFLATE):
                break
            block = block_at(data, begin)
            end = len(data) if block is None else block[0]
            is_broken = False
            count = 0
            for number, payload in self._inflate(data, begin, end, before, None, note):
                position = before + number if is_known else None
                yield SalvagedRecord(position, follows and number == count, payload)
                follows, count = True, number + 1
            if block is None:
                mark = data.find(FLUSH, begin)
                end = len(data) if mark < 0 else mark + len(FLUSH)
                is_broken = True
            if is_broken:
                is_known = follows = False
            begin, before = end, before + count
        self.ends_whole = follows

    def _inflate(
        self,
        data: mmap.mmap,
        begin: int,
        end: int,
        before: int,
        behind: int | None,
        on_defect: OnDefect,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield number and payload of the good records of one member or block.

        Args:
            data: The file.
            begin: Offset of the member or block.
            end: Offset behind it.
            before: Records before it.
            behind: Records up to its end; None if unknown.
            on_defect: Called with each defect; its record index and offset are those of the file.
        """
        lost = 0
        is_counted = True

        def note(defect: Defect) -> None:
            nonlocal lost, is_counted
            is_counted = is_counted and defect.kind != "no-crc"
            lost += defect.num_records or 0
            position = before + (defect.record_index or 0)
            on_defect(defect._replace(record_index=position, offset=begin))

        if begin >= len(data):
            if behind is None or behind > before:
                note(Defect("truncated", 0, 0, f"the file ends before byte {begin:,}"))
            return
        part = data[begin:end]
        if self.compression == "gzip":
            stream: BytesIO | InflateStream = InflateStream(BytesIO(part), "gzip", self.path)
        else:
            stream = block_stream(part, self.path)
        for number, payload in enumerate(read_frames(stream, on_defect=note)):
            if not is_counted or (behind is not None and before + number + lost >= behind):
                return
            yield number + lost, payload


class _Frames:
    """Finds the position of a frame by its offset and size in the index."""

    def __init__(self, ends: NDArray[np.uint64]) -> None:
        self._ends = ends.astype(np.int64)

    def position(self, offset: int, payload_bytes: int) -> int | None:
        end = offset + payload_bytes + FRAME_BYTES
        found = int(np.searchsorted(self._ends, end))
        if found == len(self._ends) or self._ends[found] != end:
            return None
        begin = int(self._ends[found - 1]) if found else 0
        return found if begin == offset else None


def _compression(path: str, original: Compression | None) -> Compression:
    """Return the compression of a file by content; the original one if its header is damaged."""
    with storage_errors(path), open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    by_content = sniff(head)
    if original is None:
        if by_content == "none" and path.endswith(".gz") and not _is_frame_head(head):
            return "gzip"
        return by_content
    if original != "none" and by_content == "none" and not _is_frame_head(head):
        return original
    return by_content


def _is_frame_head(head: bytes) -> bool:
    if len(head) < HEADER_BYTES:
        return False
    stored: int = struct.unpack("<I", head[8:12])[0]
    return stored == masked_crc32c(head[:8])


def _read(stream: OpenStream, num_bytes: int) -> bytes:
    """Return the next bytes of a stream, fewer at its end."""
    blocks = []
    while num_bytes and (block := stream.read(min(num_bytes, _READ_BYTES))):
        num_bytes -= len(block)
        blocks.append(block)
    return b"".join(blocks)


def _skip(stream: OpenStream, num_bytes: int) -> None:
    while num_bytes and (block := stream.read(min(num_bytes, _READ_BYTES))):
        num_bytes -= len(block)


# -- survey ----------------------------------------------------------------------------------------

State = Literal["whole", "too-long", "damaged", "missing", "other-content"]
"""The state of a shard.

``whole``: unchanged. ``too-long``: unchanged, with bytes behind its end. ``other-content``: without
a defect, but with other records than the manifest's, so none is known to be of this dataset.
"""

_MAX_DEFECTS: Final = 1000


@dataclass
class ShardSurvey:
    """The survey of one shard.

    Attributes:
        shard: Its index.
        state: Its state.
        file_bytes: Size of the good part of a ``whole`` or ``too-long`` file, else of the file.
        file_crc32c: CRC-32C of the good part; None in other states.
        compression: Compression of the file.
        positions: int64[n]: the index in the shard of each good record, in order; -1 if unknown.
            None for a shard that was verified as a whole.
        num_records: Number of good records.
        payload_bytes: Bytes of their payloads.
        crc32c: CRC-32C of their frames.
        num_expected: Records that the shard had; None if unknown.
        has_open_end: Whether an unknown number of records may be lost.
        has_trusted: Whether unverified records count as good (``trust_no_crc``).
        defects: The first defects.
    """

    shard: int
    state: State
    file_bytes: int = 0
    file_crc32c: int | None = None
    compression: Compression = "none"
    positions: NDArray[np.int64] | None = None
    num_records: int = 0
    payload_bytes: int = 0
    crc32c: int = 0
    num_expected: int | None = None
    has_open_end: bool = False
    has_trusted: bool = False
    defects: list[Defect] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the file has all bytes of the shard."""
        return self.state in ("whole", "too-long")

    @property
    def lost_positions(self) -> NDArray[np.int64]:
        """int64[m]: positions of lost records; empty if the number of records is unknown."""
        if self.is_good or self.num_expected is None:
            return np.zeros(0, np.int64)
        is_lost = np.ones(self.num_expected, bool)
        if self.positions is not None:
            is_lost[self.positions[self.positions >= 0]] = False
        return np.flatnonzero(is_lost)

    @property
    def num_unplaced(self) -> int:
        """Number of good records with unknown positions."""
        return 0 if self.positions is None else int((self.positions < 0).sum())


class _Prefix(NamedTuple):
    """The CRC-32C of a file's first bytes, and the size of the file."""

    crc32c: int
    file_bytes: int


def survey_shard(
    known: DamagedDataset,
    shard: int,
    *,
    trust_no_crc: bool = False,
    deep: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ShardSurvey:
    """Return the survey of a shard.

    Args:
        known: The dataset.
        shard: The shard's index.
        trust_no_crc: Whether records whose CRC fields are zero count as good.
        deep: Whether to search for good records if the file's CRC is wrong.
        progress: Called with the number of bytes of each read.

    Raises:
        StorageError: The file can not be read.
    """
    expected = known.num_records(shard)
    path = known.files.get(shard)
    if path is None:
        return ShardSurvey(shard, "missing", num_expected=expected)
    file_bytes, file_crc = known.file_bytes(shard), known.file_crc32c(shard)
    prefix = _prefix(path, file_bytes, progress)
    if (
        known.manifest is not None
        and file_bytes is not None
        and (prefix.crc32c, min(prefix.file_bytes, file_bytes)) == (file_crc, file_bytes)
    ):
        sealed = known.manifest.shards[shard]
        return ShardSurvey(
            shard,
            "whole" if prefix.file_bytes == file_bytes else "too-long",
            file_bytes,
            file_crc,
            known.compression or "none",
            None,
            sealed.num_records,
            sealed.payload_bytes,
            sealed.crc32c,
            expected,
        )
    if not deep:
        return ShardSurvey(shard, "damaged", prefix.file_bytes, num_expected=expected)
    found = _survey_records(known, shard, path, trust_no_crc=trust_no_crc)
    found.file_bytes = prefix.file_bytes
    if progress is not None:
        progress(prefix.file_bytes)
    _set_state(known, found, file_bytes, prefix)
    return found


def _set_state(
    known: DamagedDataset, found: ShardSurvey, file_bytes: int | None, prefix: _Prefix
) -> None:
    """Set the state of a salvaged shard: ``whole``, ``other-content`` or still ``damaged``."""
    assert found.positions is not None
    without_fault = not (found.defects or found.has_open_end or found.has_trusted)
    is_all = found.num_expected in (None, found.num_records) and not found.num_unplaced
    if known.manifest is not None:
        detail = _other_content(known, known.manifest.shards, found, without_fault=without_fault)
        if detail is not None:
            found.defects.insert(0, Defect("other-content", 0, 0, detail, found.num_records))
            found.state = "other-content"
            found.positions = np.full(len(found.positions), -1, np.int64)
    elif (
        without_fault
        and is_all
        and file_bytes in (None, prefix.file_bytes)
        and known.compression in (None, found.compression)
        # Salvage verifies frames, but not the headers and trailers of members and blocks.
        and (
            found.compression == "none"
            or (prefix.file_bytes > 0 and _reads_through(known.path(found.shard)))
        )
    ):
        found.state = "whole"
        found.file_crc32c = prefix.crc32c


def _other_content(
    known: DamagedDataset,
    shards: Sequence[SealedShard],
    found: ShardSurvey,
    *,
    without_fault: bool,
) -> str | None:
    """Return why a shard's records are not those of the manifest; None if they may be."""
    assert found.positions is not None
    sealed = shards[found.shard]
    is_all = not len(found.lost_positions)
    copied = _copied_from(known.path(found.shard), found.shard, shards)
    crc, is_alike = found.crc32c, False
    if is_all or without_fault or copied is not None:
        crc, is_alike = _read_again(known, found)
    if is_all and crc != sealed.crc32c:
        return "whole records, but not those of the manifest"
    if is_all or is_alike:
        return None
    if copied is not None:
        return f"it is a copy of shard {copied}"
    if not without_fault:
        return None
    if found.num_records >= sealed.num_records:
        return f"{found.num_records:,} whole records, the manifest says {sealed.num_records:,}"
    return None


def _copied_from(path: str, shard: int, shards: Sequence[SealedShard]) -> int | None:
    """Return the index of another shard with the same bytes; None if there is none."""
    size = _size(path)
    crc: int | None = None
    for number, other in enumerate(shards):
        if number != shard and other.file_bytes == size and other.num_records:
            crc = _prefix(path, None, None).crc32c if crc is None else crc
            if crc == (other.crc32c if other.file_crc32c is None else other.file_crc32c):
                return number
    return None


def _read_again(known: DamagedDataset, found: ShardSurvey) -> tuple[int, bool]:
    """Return the CRC-32C of the frames with known positions, and whether all records are equal."""
    assert found.positions is not None
    salvage = Salvage(known.path(found.shard), known.compression, known.rows(found.shard))
    crc, first, is_alike = 0, None, True
    with storage_errors(salvage.path):
        for position, record in zip(
            found.positions.tolist(), salvage.records(_ignore), strict=False
        ):
            if position >= 0:
                crc = extend_crc32c(crc, frame(record.payload))
            first = record.payload if first is None else first
            is_alike = is_alike and record.payload == first
    return crc, is_alike and found.num_records > 1


def _ignore(_defect: Defect) -> None:
    return


def _reads_through(path: str) -> bool:
    """Return whether an ordinary reader reads the file without an error."""
    try:
        for _ in read_records(path):
            pass
    except CorruptFile:
        return False
    return True


def _survey_records(
    known: DamagedDataset, shard: int, path: str, *, trust_no_crc: bool
) -> ShardSurvey:
    """Return a survey of all good records of a shard, with their positions."""
    expected = known.num_records(shard)
    rows = known.rows(shard)
    # Shards written by shardwriter have no such records: zeros are lost or unwritten data.
    trust_no_crc = trust_no_crc and not known.items_known
    salvage = Salvage(path, known.compression, rows, trust_no_crc=trust_no_crc)
    defects: list[Defect] = []

    has_trusted = False

    def note(defect: Defect) -> None:
        nonlocal has_trusted
        if trust_no_crc and defect.kind == "no-crc":
            has_trusted = True
            return
        if len(defects) < _MAX_DEFECTS:
            defects.append(defect)

    positions, follows = array("q"), array("b")
    crc = payload_bytes = 0
    with storage_errors(path):
        for record in salvage.records(note):
            positions.append(-1 if record.position is None else record.position)
            follows.append(record.follows)
            payload_bytes += len(record.payload)
            crc = extend_crc32c(crc, frame(record.payload))
    by_index = rows is not None and salvage.compression == known.compression
    number = np.frombuffer(positions, np.int64).copy() if positions else np.zeros(0, np.int64)
    behind = np.frombuffer(follows, np.int8) > 0 if follows else np.zeros(0, bool)
    if known.items_known and not by_index:
        has_its_size = known.file_bytes(shard) == _size(path)
        number = _find_positions(
            number, behind, expected, has_its_size, ends_whole=salvage.ends_whole
        )
    return ShardSurvey(
        shard,
        "damaged",
        compression=salvage.compression,
        positions=number,
        num_records=len(number),
        payload_bytes=payload_bytes,
        crc32c=crc,
        num_expected=expected,
        has_open_end=not salvage.ends_whole or bool((number < 0).any()),
        has_trusted=has_trusted,
        defects=defects,
    )


def _find_positions(
    positions: NDArray[np.int64],
    follows: NDArray[np.bool_],
    expected: int | None,
    has_its_size: bool,
    *,
    ends_whole: bool,
) -> NDArray[np.int64]:
    """Return positions, also of records behind an uncounted loss where they can be derived.

    Args:
        positions: int64[n]: the position of each record, or -1.
        follows: bool[n]: whether a record directly follows the previous one.
        expected: Records that the shard had.
        has_its_size: Whether the file has its original size, so nothing has moved in it.
        ends_whole: Whether nothing is lost behind the last record.
    """
    if expected is None:
        return positions
    positions = np.where(positions < expected, positions, -1)
    unknown = positions < 0
    if not unknown.any() or not has_its_size:
        return positions
    num_holes = int((~follows).sum()) + (not ends_whole)
    if expected - len(positions) == num_holes:  # each hole is one record
        return np.arange(len(positions)) + np.cumsum(~follows)
    if ends_whole:
        last_hole = int(np.flatnonzero(~follows).max(initial=0))
        is_tail = np.arange(len(positions)) >= last_hole
        from_end = expected - len(positions) + np.arange(len(positions))
        positions = np.where(unknown & is_tail, from_end, positions)
    return positions


def _size(path: str) -> int:
    with storage_errors(path), open(path, "rb") as file:
        return file.seek(0, 2)


def _prefix(path: str, num_bytes: int | None, progress: Callable[[int], None] | None) -> _Prefix:
    """Return the CRC-32C of a file's first bytes, by default of all, and the file's size."""
    crc = size = 0
    with storage_errors(path), open(path, "rb", buffering=0) as file:
        file_bytes = file.seek(0, 2)
        file.seek(0)
        stop = file_bytes if num_bytes is None else min(num_bytes, file_bytes)
        while size < stop and (data := file.read(min(_READ_BYTES, stop - size))):
            crc = extend_crc32c(crc, data)
            size += len(data)
            if progress is not None:
                progress(len(data))
    return _Prefix(crc, file_bytes)
