"""Salvage: every record of a damaged file that is proven good, and what is known of its place.

A plain file is read by frames, which are found again behind a break. A compressed one is read by
gzip members or zlib blocks, as each can be inflated by itself: a damaged one gives the records in
front of its fault, and the next one is found by the index, by the size in the header of our own
members, or by looking for its beginning. Files of others have no such pieces: of them counts what
inflates before the fault.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from io import BytesIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import CorruptFile
from shardwriter.formats.compressed_writer import EMPTY_DEFLATE, ZLIB_HEAD, ZLIB_TAIL_BYTES
from shardwriter.formats.compression import Compression, InflateStream, OpenStream, sniff
from shardwriter.formats.crc32c import masked_crc32c
from shardwriter.formats.tfrecord import FRAME_BYTES, HEADER_BYTES
from shardwriter.formats.tfrecord_reader import Defect, read_frames
from shardwriter.formats.zlib_blocks import block_at
from shardwriter.inspect.frames import good_records
from shardwriter.inspect.members import (
    FLUSH,
    GZIP_MAGIC,
    block_stream,
    is_member,
    member_head,
    next_member,
)
from shardwriter.storage.inputs import open_stream
from shardwriter.storage.local import storage_errors

OnDefect = Callable[[Defect], None]

_READ_BYTES = 1 << 20


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
                while stream.read(_READ_BYTES):
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
