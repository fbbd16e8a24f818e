"""One plain TFRecord file, read by position: where its records begin, and any of them, proven."""

from __future__ import annotations

import struct
from contextlib import closing
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import CorruptFile, SourceError
from shardwriter.formats.crc32c import extend_crc32c, masked_crc32c
from shardwriter.formats.tfrecord import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    frame_header,
)
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.sources.positions import InputFile, OffsetTable, file_changed

_WINDOW_BYTES: Final = 1 << 14  # read at a time to find headers
_AHEAD_BYTES: Final = 1 << 16  # of records that are read in order
_DENSE_BYTES: Final = 1 << 13  # frames that are smaller are read with what they hold
_DENSE_WINDOW_BYTES: Final = 1 << 22
_BATCH: Final = 1 << 16
_HEADER_CACHE_SIZE: Final = 1 << 14
_HINT: Final = "`shard-stats` lists all that is wrong with the file"
_U32: Final = struct.Struct("<I")


class RecordFile(InputFile):
    """One plain TFRecord file, read by position.

    Attributes:
        num_records: Its records, once it was scanned.
        file_bytes: Its size.
        crc32c: Of everything but the payloads: of all lengths and all CRCs.
        is_proven: Whether all of its bytes were held against the CRC that a manifest has of it.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self.num_records = 0
        self.file_bytes = 0
        self.crc32c = 0
        self.is_proven = False
        self._next = -1  # the place behind the record that was read last
        self._ahead, self._ahead_start = b"", 0

    def close(self) -> None:
        """Close the file; it can be opened again."""
        super().close()
        self._next = -1
        self._ahead, self._ahead_start = b"", 0

    def scan(self, offsets: OffsetTable) -> None:
        """Go from header to header, and note where every record begins and the last one ends.

        Raises:
            SourceError: A header is wrong, or the file ends inside a record.
        """
        self.file_bytes = self.num_bytes
        lengths: dict[bytes, int] = {}
        starts: list[int] = []
        proofs: list[bytes] = []  # the CRC of a payload and the header that follows it
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
        """Do what :meth:`scan` does, many frames at a time, where an index is right.

        As all is read where frames are small, the file is proven by the way: one CRC of all of it
        costs a tenth of one for each record of 100 bytes.

        Args:
            ends: uint64[n]: where the index has each frame end.
            file_crc32c: What the manifest says of the whole file.
            offsets: Told where records begin, and where the last one ends.

        Returns:
            Whether every header is where and what it has to be; else nothing was noted.
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
        self.is_proven = content_crc == file_crc32c
        self.file_bytes, self.num_records, self.crc32c = self.num_bytes, len(sizes), crc
        offsets.add(begins)
        return True

    def record(self, begin: int, end: int, place: int) -> bytes:
        """Read and prove the record whose frame is [begin, end)."""
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
        """Read a frame; where it is the one behind the last, with some that follow it."""
        is_next, self._next = place == self._next, place + 1
        if not is_next:
            self._ahead, self._ahead_start = b"", 0
            return self.read(begin, end)
        if end - self._ahead_start > len(self._ahead):
            self._ahead = self.read(begin, max(end, begin + _AHEAD_BYTES))
            self._ahead_start = begin
        return self._ahead[begin - self._ahead_start : end - self._ahead_start]

    def damage(self, begin: int, place: int) -> SourceError:
        """Return what is wrong with the frame that begins at an offset."""
        try:
            with closing(self._inputs.open_raw(self._absolute)) as file:
                file.seek(begin)
                next(read_frames(file), None)
        except CorruptFile as error:
            return damaged(error, self.path, place, begin)
        return file_changed(self.path)


def _proofs(data: bytes, at: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytes | None:
    """Return header and footer of frames that follow each other; None where a header is wrong."""
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
    """Return the error for a damaged file; ``place`` and ``begin`` are where reading began."""
    return SourceError(
        error.message,
        path=path,
        record_index=place + (error.record_index or 0),
        offset=begin + (error.offset or 0),
        hint=_HINT,
    )
