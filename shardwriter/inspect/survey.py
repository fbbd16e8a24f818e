"""Surveying a damaged dataset: which shards are whole, and which records of the others are good.

A shard whose bytes have the CRC that the manifest says is proven by that alone. Of any other the
records are read, each proven by its own CRCs, and brought to the places that they had.
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

# What is known of a damaged dataset: its files, its manifest, its index, and where records go.
#
# Either the manifest or the index may be what is damaged. The manifest tells all but where records
# begin; the index tells that too, and the number of items by itself, as shards and gaps together
# follow the law. Without both nobody knows which item a record behind a loss is.

_MOST_BYTES: Final = 1 << 62


@dataclass(frozen=True)
class Known:
    """A dataset as it lies there, and what is known of how it was.

    Attributes:
        directory: Where it lies.
        name: The dataset's name; for a file by itself that of the file.
        pattern: What the files' names follow; None for a file by itself.
        files: Path of each shard that is there, by number.
        manifest: The manifest, where it can be used.
        index: The index, where it can be used.
        num_items: T; None where neither of them tells.
        gaps: Sorted items without a record.
        notes: What was found wrong with manifest and index, and what lies beside.
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
    def is_lawful(self) -> bool:
        """Whether it is known which item each record is."""
        return self.num_items is not None

    @property
    def num_shards(self) -> int:
        """N: of a file by itself 1."""
        return 1 if self.pattern is None else self.pattern.num_shards

    @property
    def shards(self) -> range:
        """The numbers of all shards, there or not."""
        return range(self.num_shards)

    def path(self, shard: int) -> str:
        """Return where a shard lies, or should."""
        return self.files.get(shard) or os.path.join(self.directory, self.file_name(shard))

    def file_name(self, shard: int) -> str:
        """Return the name of a shard's file."""
        return self.name if self.pattern is None else self.pattern.shard_file(shard)

    def num_records(self, shard: int) -> int | None:
        """Return how many records a shard had; None where that is not known."""
        if self.manifest is not None:
            return self.manifest.shards[shard].num_records
        return None if self.index is None else self.index.num_records(shard)

    def file_bytes(self, shard: int) -> int | None:
        """Return the size that a shard's file had; None where that is not known."""
        if self.manifest is not None:
            return self.manifest.shards[shard].file_bytes
        if self.index is None:
            return None
        ends = self.index.ends(shard)
        if self.index.compression == "zlib":
            return int(ends[-1]) + ZLIB_TAIL_BYTES if len(ends) else None
        return int(ends[-1]) if len(ends) else 0

    def file_crc32c(self, shard: int) -> int | None:
        """Return the CRC-32C that a shard's file had; None where that is not known."""
        if self.manifest is None:
            return None
        told = self.manifest.shards[shard]
        return told.crc32c if told.file_crc32c is None else told.file_crc32c

    def rows(self, shard: int) -> NDArray[np.uint64] | None:
        """Return what the index has of a shard: uint64[1, n], or uint64[2, n] of a compressed one.

        None where there is no index.
        """
        return None if self.index is None else rows_of(self.index, shard)

    @property
    def compression(self) -> Compression | None:
        """What shards are compressed with; None where only the files tell."""
        if self.manifest is not None:
            found: Compression = self.manifest.compression["type"]
            return found
        return None if self.index is None else self.index.compression

    @property
    def has_dali_index(self) -> bool:
        """Whether ``.idx`` files lie beside shards."""
        return any(map(self.has_dali_index_of, self.shards))

    def has_dali_index_of(self, shard: int) -> bool:
        """Tell whether an ``.idx`` file lies beside a shard."""
        return os.path.exists(self.path(shard) + DALI_INDEX_SUFFIX)


def rows_of(index: Index, shard: int) -> NDArray[np.uint64]:
    """Return what an index has of a shard: uint64[1, n], or uint64[2, n] of a compressed one."""
    rows: NDArray[np.uint64]
    rows = np.frombuffer(index.rows(shard), "<u8").reshape(-1, columns(index.compression)).T
    return rows


def look(path: str) -> Known:
    """Find the one dataset that a path means, be its manifest damaged or not.

    Raises:
        OptionError: The path names nothing, several datasets, or what is at a URL.
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
        notes.append("one shard of several was named, and it is repaired by itself")
    known = Known(
        found.directory, found.name, found.pattern, dict(found.shards), None, None, notes=notes
    )
    if found.pattern is None or not found.whole:
        only = [os.path.basename(file) for _, file in found.shards]
        if len(only) == 1:
            return Known(
                found.directory, only[0], None, {0: found.shards[0][1]}, None, None, notes=notes
            )
    return _with_index(known)


def _without_manifest(error: ManifestError) -> ShardSet:
    """Return the shards beside a manifest that can not be used."""
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


def _with_manifest(found: ShardSet, manifest: Manifest, notes: list[str]) -> Known:
    files = dict(found.shards)
    if not found.whole:  # one shard was named, and the manifest tells of all
        everything = Folder(found.directory, manifest.name).patterns.get(manifest.pattern, [])
        files = {shard: os.path.join(found.directory, name) for shard, name in everything}
    index = None
    try:
        index = open_index(found.directory, manifest)
    except (ManifestError, StorageError) as error:
        notes.append(f"{error.path}: {error.message}")
    return Known(
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


def _with_index(known: Known) -> Known:
    """Add what an index tells of a set without a manifest; nothing where it contradicts itself."""
    assert known.pattern is not None
    path = os.path.join(known.directory, known.pattern.index_file)
    if type(known.pattern) is not ShardPattern or not os.path.isfile(path):
        return known
    try:
        with storage_errors(path):
            index = Index(path)
        if len(index.counts) != known.num_shards:
            raise ManifestError(f"it is of {len(index.counts)} shards", path=path)
        for shard in known.shards:
            # The file may be damaged: what it had is not known.
            index.check_order(shard, _MOST_BYTES)
        gaps = index.gaps.astype(np.int64).tolist()
        counts = [index.num_records(shard) for shard in known.shards]
        num_items = sum(counts) + len(gaps)
        in_order = all(a < b for a, b in pairwise([-1, *gaps, num_items]))
        if not in_order or assignment_error(counts, num_items, gaps) is not None:
            raise ManifestError("its counts do not follow the law", path=path)
    except (ManifestError, StorageError) as error:
        return Known(
            known.directory,
            known.name,
            known.pattern,
            known.files,
            notes=[*known.notes, f"{path}: {error.message}"],
        )
    return Known(
        known.directory,
        known.name,
        known.pattern,
        known.files,
        None,
        index,
        num_items,
        gaps,
        [*known.notes, "without the manifest nothing proves the index, which tells the items"],
    )


# Gzip members and zlib blocks of ours: told by their looks, and inflated by themselves.
#
# :mod:`shardwriter.formats.compressed_writer` has their layout.

GZIP_MAGIC: Final = b"\x1f\x8b\x08"
FLUSH: Final = b"\x00\x00\xff\xff"
"""What a full flush ends in, and so a zlib block."""

_MEMBER_HEAD: Final = struct.Struct("<10sH2sHQI")
_HEAD_BEGIN: Final = bytes.fromhex("1f8b08040000000000ff")
_MIN_MEMBER_BYTES: Final = _MEMBER_HEAD.size + len(EMPTY_DEFLATE) + 8


def is_member(data: mmap.mmap, offset: int) -> bool:
    """Tell whether a gzip member of ours begins at an offset."""
    if offset + _MIN_MEMBER_BYTES > len(data):
        return False
    magic, extra, name, field, size, _ = _MEMBER_HEAD.unpack_from(data, offset)
    if magic != _HEAD_BEGIN or name != b"SW" or extra != field + 4 or field < 12:
        return False
    return int(size) >= _MIN_MEMBER_BYTES


def member_head(data: mmap.mmap, offset: int) -> tuple[int, int]:
    """Return the size of a member in the file, and its records."""
    *_, size, num_records = _MEMBER_HEAD.unpack_from(data, offset)
    return int(size), int(num_records)


def next_member(data: mmap.mmap, offset: int) -> int | None:
    """Return where the next member of ours begins, from an offset on."""
    while (offset := data.find(_HEAD_BEGIN, offset)) >= 0:
        if is_member(data, offset):
            return offset
        offset += 1
    return None


def block_stream(piece: bytes, path: str) -> BytesIO | InflateStream:
    """Return the uncompressed bytes of a zlib block, as far as it can be inflated."""
    inflater = zlib.decompressobj(wbits=RAW_WBITS)
    with suppress(zlib.error):
        data = inflater.decompress(piece + EMPTY_DEFLATE)
        if inflater.eof and not inflater.unused_data:
            return BytesIO(data)
    return InflateStream(BytesIO(ZLIB_HEAD + piece), "zlib", path)


# Salvage: every record of a damaged file that is proven good, and what is known of its place.
#
# A plain file is read by frames, which are found again behind a break. A compressed one is read by
# gzip members or zlib blocks, as each can be inflated by itself: a damaged one gives the records in
# front of its fault, and the next one is found by the index, by the size in the header of our own
# members, or by looking for its beginning. Files of others have no such pieces: of them counts what
# inflates before the fault.

OnDefect = Callable[[Defect], None]

_SALVAGE_READ_BYTES = 1 << 20


class Found(NamedTuple):
    """A record that is proven good.

    Attributes:
        place: Which record of the shard it is; None where losses in front of it are not counted.
        follows: Whether nothing is lost between it and the record that was found before it, or
            the beginning of the file.
        payload: Its bytes.
    """

    place: int | None
    follows: bool
    payload: bytes


class Salvage:
    """Goes through one file; each pass over it gives the same.

    Args:
        path: The file.
        compression: What it is, or was, compressed with; None where only the file tells.
        rows: What the index has of it; None where that is not known.
        trust_no_crc: Whether records whose CRC fields are zero count as good.

    Attributes:
        ends_whole: After a pass: whether nothing is lost behind the last record that was found.
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
        # What is not compressed as it was has other offsets.
        self._rows = rows if compression == found else None
        self._trust = trust_no_crc
        self._is_ours = compression == found
        self.ends_whole = False

    def records(self, on_defect: OnDefect) -> Iterator[Found]:
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

    def _plain(self, on_defect: OnDefect) -> Iterator[Found]:
        rows = self._rows if self.compression == "none" else None
        known = None if rows is None else _Frames(rows[0])
        behind = 0
        stream_is_whole = is_counted = True
        unproven: list[Defect] = []

        def note(defect: Defect) -> None:
            nonlocal stream_is_whole, is_counted
            on_defect(defect)
            if defect.kind == "no-crc" and self._trust:
                unproven.append(defect)
            else:
                stream_is_whole = False
                # Zeros look like so many empty records, whatever they have taken the place of.
                is_counted = is_counted and defect.kind != "no-crc"

        def place(offset: int, size: int, record_index: int | None) -> int | None:
            if known is not None:
                return known.place(offset, size)
            return record_index if is_counted else None

        ends = None if rows is None else rows[0]
        for record in good_records(self.path, ends=ends, on_defect=note):
            # Broken deflate data repeats what stood before: frames that are right, and no records.
            if not stream_is_whole and not self._can_go_on():
                break
            while unproven and unproven[0].offset < record.offset:
                for offset, index, payload in self._unproven(unproven.pop(0)):
                    yield Found(place(offset, len(payload), index), offset == behind, payload)
                    behind = offset + len(payload) + FRAME_BYTES
            offset, payload = record.offset, record.payload
            found = place(offset, len(payload), record.record_index)
            yield Found(found, offset == behind, payload)
            behind = offset + len(payload) + FRAME_BYTES
        for defect in unproven:
            for offset, index, payload in self._unproven(defect):
                yield Found(place(offset, len(payload), index), offset == behind, payload)
                behind = offset + len(payload) + FRAME_BYTES
        if self.compression == "none":
            self.ends_whole = behind == os.path.getsize(self.path)
        else:
            self.ends_whole = stream_is_whole

    @cached_property
    def _is_intact(self) -> bool:
        """Whether a compressed stream comes to its end, with the checksum that it should have."""
        with storage_errors(self.path), open_stream(self.path) as stream:
            try:
                while stream.read(_SALVAGE_READ_BYTES):
                    pass
            except CorruptFile:
                return False
        return True

    def _can_go_on(self) -> bool:
        """Whether what is behind a defect can be believed."""
        return self.compression == "none" or self._is_intact

    def _unproven(self, defect: Defect) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, index and payload of the records whose CRC fields are zero."""
        with storage_errors(self.path), open_stream(self.path) as stream:
            _take(stream, defect.offset, keep=False)
            offset = defect.offset
            for number in range(defect.num_records or 0):
                length = int.from_bytes(_take(stream, HEADER_BYTES)[:8], "little")
                payload = _take(stream, length)
                _take(stream, FRAME_BYTES - HEADER_BYTES)
                yield offset, (defect.record_index or 0) + number, payload
                offset += length + FRAME_BYTES

    def _has_members(self, data: mmap.mmap) -> bool:
        """Whether gzip members are ours; other people's can not be entered in the middle."""
        if is_member(data, 0):
            return True
        is_readable = data[:3] == GZIP_MAGIC
        return (self._is_ours or not is_readable) and next_member(data, 0) is not None

    def _has_blocks(self, data: mmap.mmap) -> bool:
        """Whether a zlib stream is cut into blocks of whole records, as ours are."""
        if self._is_ours:
            return True
        begin = len(ZLIB_HEAD)
        block = block_at(data, begin)
        defects: list[Defect] = []
        if block is not None:
            for _ in self._piece(data, begin, block[0], 0, None, defects.append):
                pass
        return block is not None and not defects

    # -- members and blocks ------------------------------------------------------------------------

    def _by_index(
        self, data: mmap.mmap, rows: NDArray[np.uint64], on_defect: OnDefect
    ) -> Iterator[Found]:
        begin = len(ZLIB_HEAD) if self.compression == "zlib" else 0
        before, follows = 0, True
        for end, behind in rows.T.tolist():
            count = 0
            is_expected = self.compression == "zlib" or begin >= len(data) or behind == before
            told = end - begin, behind - before
            is_expected = is_expected or (
                is_member(data, begin) and member_head(data, begin) == told
            )
            if not is_expected:
                detail = f"byte {begin:,} of the file: no member as the index has it"
                on_defect(Defect("bad-gzip-header", before, begin, detail, 0))
            pieces = self._piece(data, begin, end, before, behind, on_defect)
            is_its = True
            if not is_expected:  # another member may stand there
                faults: list[Defect] = []
                inside = list(self._piece(data, begin, end, before, None, faults.append))
                is_its = not faults and len(inside) == behind - before
                pieces = iter(inside)
                for fault in faults:
                    on_defect(fault)
            for number, payload in pieces:
                place = before + number if is_its else None
                yield Found(place, follows and number == count, payload)
                follows, count = True, number + 1
            follows = follows and count == behind - before
            begin, before = end, behind
        self.ends_whole = follows

    def _members(self, data: mmap.mmap, on_defect: OnDefect) -> Iterator[Found]:
        """Hop through gzip members of ours."""
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
                # Its header is wrong, or the next one's, or the file is cut.
                end = next_member(data, begin + 1) or len(data)
            size_is_right = end == begin + size
            count = 0
            first = before or 0
            pieces = self._piece(data, begin, end, first, first + num_records, on_defect)
            for number, payload in pieces:
                place = None if before is None else before + number
                yield Found(place, follows and number == count, payload)
                follows, count = True, number + 1
            is_whole = count == num_records
            follows = follows and is_whole and size_is_right
            is_known = before is not None and size_is_right
            before = first + num_records if is_known else None
            begin = end if end < len(data) else None
        self.ends_whole = follows

    def _blocks(self, data: mmap.mmap, on_defect: OnDefect) -> Iterator[Found]:
        """Go through the blocks of a zlib file of ours; one that is damaged ends at the next."""
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
            for number, payload in self._piece(data, begin, end, before, None, note):
                place = before + number if is_known else None
                yield Found(place, follows and number == count, payload)
                follows, count = True, number + 1
            if block is None:
                mark = data.find(FLUSH, begin)
                end = len(data) if mark < 0 else mark + len(FLUSH)
                is_broken = True
            if is_broken:
                is_known = follows = False
            begin, before = end, before + count
        self.ends_whole = follows

    def _piece(
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
            begin: Where the piece begins.
            end: Where it ends.
            before: Records in front of it.
            behind: Records up to its end; None where that is not known.
            on_defect: Told of what is wrong with it, by records of the file and bytes of the file.
        """
        lost = 0
        is_counted = True

        def note(defect: Defect) -> None:
            nonlocal lost, is_counted
            is_counted = is_counted and defect.kind != "no-crc"
            lost += defect.num_records or 0
            place = before + (defect.record_index or 0)
            on_defect(defect._replace(record_index=place, offset=begin))

        if begin >= len(data):
            if behind is None or behind > before:
                note(Defect("truncated", 0, 0, f"the file ends before byte {begin:,}"))
            return
        piece = data[begin:end]
        if self.compression == "gzip":
            stream: BytesIO | InflateStream = InflateStream(BytesIO(piece), "gzip", self.path)
        else:
            stream = block_stream(piece, self.path)
        for number, payload in enumerate(read_frames(stream, on_defect=note)):
            if not is_counted or (behind is not None and before + number + lost >= behind):
                return
            yield number + lost, payload


class _Frames:
    """Tells which record begins at an offset, if the index has one of this size there."""

    def __init__(self, ends: NDArray[np.uint64]) -> None:
        self._ends = ends.astype(np.int64)

    def place(self, offset: int, payload_bytes: int) -> int | None:
        end = offset + payload_bytes + FRAME_BYTES
        found = int(np.searchsorted(self._ends, end))
        if found == len(self._ends) or self._ends[found] != end:
            return None
        begin = int(self._ends[found - 1]) if found else 0
        return found if begin == offset else None


def _compression(path: str, told: Compression | None) -> Compression:
    """Return what to read a file as: what it was, unless its bytes are surely something else."""
    with storage_errors(path), open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    by_content = sniff(head)
    if told is None:
        if by_content == "none" and path.endswith(".gz") and not _is_frame_head(head):
            return "gzip"
        return by_content
    if told != "none" and by_content == "none" and not _is_frame_head(head):
        return told
    return by_content


def _is_frame_head(head: bytes) -> bool:
    if len(head) < HEADER_BYTES:
        return False
    stored: int = struct.unpack("<I", head[8:12])[0]
    return stored == masked_crc32c(head[:8])


def _take(stream: OpenStream, num_bytes: int, *, keep: bool = True) -> bytes:
    """Read so many bytes; fewer at the end."""
    pieces = []
    while num_bytes and (piece := stream.read(min(num_bytes, 1 << 20))):
        num_bytes -= len(piece)
        if keep:
            pieces.append(piece)
    return b"".join(pieces)


State = Literal["whole", "too-long", "damaged", "missing", "other-content"]
"""What a shard is.

``whole``: as it was. ``too-long``: as it was, with bytes behind it. ``other-content``: without a
fault, but other records than the manifest's, so none of them is proven to be of this dataset.
"""

_READ_BYTES: Final = 1 << 20
_MAX_DEFECTS: Final = 1000


@dataclass
class ShardSurvey:
    """What was found of one shard.

    Attributes:
        shard: Its number.
        state: What it is.
        file_bytes: Of the part of the file that is good as it is, for a shard that is ``whole`` or
            ``too-long``; else of the file.
        file_crc32c: CRC-32C of that part; None for others.
        compression: What the file is compressed with.
        places: int64[n]: of each record that was found good, in order, which of the shard's
            records it is; -1 where that is not known. None of a shard that is proven as a whole.
        num_records: Records that are good.
        payload_bytes: Their bytes.
        crc32c: CRC-32C of their frames.
        num_expected: Records that the shard had; None where that is not known.
        has_open_end: Whether records may be lost that nobody can count.
        has_trusted: Whether records are taken for good that nothing proves.
        defects: What is wrong, the first of it.
    """

    shard: int
    state: State
    file_bytes: int = 0
    file_crc32c: int | None = None
    compression: Compression = "none"
    places: NDArray[np.int64] | None = None
    num_records: int = 0
    payload_bytes: int = 0
    crc32c: int = 0
    num_expected: int | None = None
    has_open_end: bool = False
    has_trusted: bool = False
    defects: list[Defect] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the bytes of the shard are there, all of them."""
        return self.state in ("whole", "too-long")

    @property
    def lost_places(self) -> NDArray[np.int64]:
        """int64[m]: which of the shard's records are lost, where it is known how many it had."""
        if self.is_good or self.num_expected is None:
            return np.zeros(0, np.int64)
        is_lost = np.ones(self.num_expected, bool)
        if self.places is not None:
            is_lost[self.places[self.places >= 0]] = False
        return np.flatnonzero(is_lost)

    @property
    def num_unplaced(self) -> int:
        """Records that are good, and nobody knows which of the shard's they are."""
        return 0 if self.places is None else int((self.places < 0).sum())


class _Prefix(NamedTuple):
    """The CRC-32C of a file's first bytes, and the size of all of it."""

    crc32c: int
    file_bytes: int


def survey_shard(
    known: Known,
    shard: int,
    *,
    trust_no_crc: bool = False,
    deep: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ShardSurvey:
    """Find out what of a shard is good.

    Args:
        known: The dataset.
        shard: The shard.
        trust_no_crc: Whether records whose CRC fields are zero count as good.
        deep: Whether to look for records in a shard that is not proven by its CRC.
        progress: Told of bytes that were read.

    Raises:
        StorageError: The file can not be read.
    """
    expected = known.num_records(shard)
    path = known.files.get(shard)
    if path is None:
        return ShardSurvey(shard, "missing", num_expected=expected)
    told_bytes, told_crc = known.file_bytes(shard), known.file_crc32c(shard)
    prefix = _prefix(path, told_bytes, progress)
    if (
        known.manifest is not None
        and told_bytes is not None
        and (prefix.crc32c, min(prefix.file_bytes, told_bytes)) == (told_crc, told_bytes)
    ):
        told = known.manifest.shards[shard]
        return ShardSurvey(
            shard,
            "whole" if prefix.file_bytes == told_bytes else "too-long",
            told_bytes,
            told_crc,
            known.compression or "none",
            None,
            told.num_records,
            told.payload_bytes,
            told.crc32c,
            expected,
        )
    if not deep:
        return ShardSurvey(shard, "damaged", prefix.file_bytes, num_expected=expected)
    found = _salvaged(known, shard, path, trust_no_crc=trust_no_crc)
    found.file_bytes = prefix.file_bytes
    if progress is not None:
        progress(prefix.file_bytes)
    _judge(known, found, told_bytes, prefix)
    return found


def _judge(known: Known, found: ShardSurvey, told_bytes: int | None, prefix: _Prefix) -> None:
    """Tell a shard without a fault from one that only seems so."""
    assert found.places is not None
    without_fault = not (found.defects or found.has_open_end or found.has_trusted)
    is_all = found.num_expected in (None, found.num_records) and not found.num_unplaced
    if known.manifest is not None:
        detail = _how_other(known, known.manifest.shards, found, without_fault=without_fault)
        if detail is not None:
            found.defects.insert(0, Defect("other-content", 0, 0, detail, found.num_records))
            found.state = "other-content"
            found.places = np.full(len(found.places), -1, np.int64)
    elif (
        without_fault
        and is_all
        and told_bytes in (None, prefix.file_bytes)
        and known.compression in (None, found.compression)
        # Of members and blocks the frames are proven, and not what holds them together.
        and (
            found.compression == "none"
            or (prefix.file_bytes > 0 and _reads_through(known.path(found.shard)))
        )
    ):
        found.state = "whole"
        found.file_crc32c = prefix.crc32c


def _how_other(
    known: Known,
    shards: Sequence[SealedShard],
    found: ShardSurvey,
    *,
    without_fault: bool,
) -> str | None:
    """Say why a shard's records are not those of the manifest; None where they may be."""
    assert found.places is not None
    told = shards[found.shard]
    is_all = not len(found.lost_places)
    copied = _copied_from(known.path(found.shard), found.shard, shards)
    crc, is_alike = found.crc32c, False
    if is_all or without_fault or copied is not None:
        crc, is_alike = _read_again(known, found)
    if is_all and crc != told.crc32c:
        return "whole records, but not those of the manifest"
    if is_all or is_alike:
        return None
    if copied is not None:
        return f"it is a copy of shard {copied}"
    if not without_fault:
        return None
    if found.num_records >= told.num_records:
        return f"{found.num_records:,} whole records, the manifest says {told.num_records:,}"
    return None


def _copied_from(path: str, shard: int, shards: Sequence[SealedShard]) -> int | None:
    """Return the number of the other shard that a file is, byte for byte."""
    size = _size(path)
    crc: int | None = None
    for number, other in enumerate(shards):
        if number != shard and other.file_bytes == size and other.num_records:
            crc = _prefix(path, None, None).crc32c if crc is None else crc
            if crc == (other.crc32c if other.file_crc32c is None else other.file_crc32c):
                return number
    return None


def _read_again(known: Known, found: ShardSurvey) -> tuple[int, bool]:
    """Return the CRC-32C of the frames that have a place, and whether all records are the same."""
    assert found.places is not None
    salvage = Salvage(known.path(found.shard), known.compression, known.rows(found.shard))
    crc, first, is_alike = 0, None, True
    with storage_errors(salvage.path):
        for place, record in zip(found.places.tolist(), salvage.records(_ignore), strict=False):
            if place >= 0:
                crc = extend_crc32c(crc, frame(record.payload))
            first = record.payload if first is None else first
            is_alike = is_alike and record.payload == first
    return crc, is_alike and found.num_records > 1


def _ignore(_defect: Defect) -> None:
    return


def _reads_through(path: str) -> bool:
    """Tell whether a reader that knows nothing of the file takes all of it for right."""
    try:
        for _ in read_records(path):
            pass
    except CorruptFile:
        return False
    return True


def _salvaged(known: Known, shard: int, path: str, *, trust_no_crc: bool) -> ShardSurvey:
    """Read all good records of a shard, and find their places."""
    expected = known.num_records(shard)
    rows = known.rows(shard)
    # Shards of ours have no such records: zeros are what was never written, or is gone.
    trust_no_crc = trust_no_crc and not known.is_lawful
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

    places, follows = array("q"), array("b")
    crc = payload_bytes = 0
    with storage_errors(path):
        for record in salvage.records(note):
            places.append(-1 if record.place is None else record.place)
            follows.append(record.follows)
            payload_bytes += len(record.payload)
            crc = extend_crc32c(crc, frame(record.payload))
    by_index = rows is not None and salvage.compression == known.compression
    number = np.frombuffer(places, np.int64).copy() if places else np.zeros(0, np.int64)
    behind = np.frombuffer(follows, np.int8) > 0 if follows else np.zeros(0, bool)
    if known.is_lawful and not by_index:
        has_its_size = known.file_bytes(shard) == _size(path)
        number = _placed(number, behind, expected, has_its_size, ends_whole=salvage.ends_whole)
    return ShardSurvey(
        shard,
        "damaged",
        compression=salvage.compression,
        places=number,
        num_records=len(number),
        payload_bytes=payload_bytes,
        crc32c=crc,
        num_expected=expected,
        has_open_end=not salvage.ends_whole or bool((number < 0).any()),
        has_trusted=has_trusted,
        defects=defects,
    )


def _placed(
    places: NDArray[np.int64],
    follows: NDArray[np.bool_],
    expected: int | None,
    has_its_size: bool,
    *,
    ends_whole: bool,
) -> NDArray[np.int64]:
    """Find the places of records behind a loss that could not be counted, where that can be done.

    Args:
        places: int64[n]: the place of each record, or -1.
        follows: bool[n]: whether it directly follows the one before it.
        expected: Records that the shard had.
        has_its_size: Whether the file has the size that it had, so that nothing has moved in it.
        ends_whole: Whether nothing is lost behind the last record.
    """
    if expected is None:
        return places
    places = np.where(places < expected, places, -1)
    unknown = places < 0
    if not unknown.any() or not has_its_size:
        return places
    num_holes = int((~follows).sum()) + (not ends_whole)
    if expected - len(places) == num_holes:  # each of them is one record
        return np.arange(len(places)) + np.cumsum(~follows)
    if ends_whole:
        last_hole = int(np.flatnonzero(~follows).max(initial=0))
        is_tail = np.arange(len(places)) >= last_hole
        from_end = expected - len(places) + np.arange(len(places))
        places = np.where(unknown & is_tail, from_end, places)
    return places


def _size(path: str) -> int:
    with storage_errors(path), open(path, "rb") as file:
        return file.seek(0, 2)


def _prefix(path: str, num_bytes: int | None, progress: Callable[[int], None] | None) -> _Prefix:
    """Return the CRC-32C of a file's first bytes, all of them where it is not said how many."""
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
