"""Many frames at once, cut and proven: where they lie in a buffer is known from an index.

A header is a function of the length, so it is compared as bytes with what it has to be.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.crc32c import MASK_DELTA, crc32c
from shardwriter.formats.tfrecord import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    HEADER_CACHE_SIZE,
    frame_header,
)

_U32: Final = struct.Struct("<I")
_SIZES: Final = 64  # as many different ones are gathered size by size
_FEW: Final = 32  # frames, for which arrays cost more than they save


class _Headers(dict[int, bytes]):
    """The header of a frame, by the length of the payload."""

    def __missing__(self, payload_bytes: int) -> bytes:
        header = frame_header(payload_bytes)
        if len(self) >= HEADER_CACHE_SIZE:
            self.clear()
        self[payload_bytes] = header
        return header


_headers: Final = _Headers()


def is_frame(header: bytes, payload: bytes, footer: bytes, *, check: bool) -> bool:
    """Tell whether the parts of a frame fit together; ``check`` proves the payload too."""
    if header != _headers[len(payload)]:
        return False
    if not check:
        return len(footer) == FOOTER_BYTES
    crc = crc32c(payload)
    return footer == _U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)


def is_proven_frame(frame: bytes) -> bool:
    """Tell whether bytes are a frame of their length, header and payload proven."""
    payload_bytes = len(frame) - FRAME_BYTES
    if payload_bytes < 0 or not frame.startswith(_headers[payload_bytes]):
        return False
    # A part of an array is no copy, which counts where frames are large.
    crc = crc32c(np.frombuffer(frame, np.uint8, payload_bytes, HEADER_BYTES))
    return frame.endswith(_U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF))


def cut_frame(frame: bytes, *, check: bool) -> bytes | None:
    """Return the payload of a frame; None where the bytes are no frame of their length."""
    payload = frame[HEADER_BYTES:-FOOTER_BYTES]
    if not frame.startswith(_headers[len(payload)]):
        return None
    if check:
        crc = crc32c(payload)
        if not frame.endswith(_U32.pack(((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)):
            return None
    return payload


def cut_frames(
    data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], *, check: bool
) -> list[bytes] | None:
    """Return the payloads of frames; None where one of them is no frame.

    Args:
        data: What they lie in, in any order.
        begins: int64[k]: where they begin in it.
        ends: int64[k]: where they end.
        check: Prove the payloads, not only the headers.
    """
    if not len(begins):
        return []
    if int(begins.min()) < 0 or int(ends.max()) > len(data):
        return None
    if int((ends - begins).min()) < FRAME_BYTES:
        return None
    if len(begins) < _FEW:
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        cut = [cut_frame(data[begin:end], check=check) for begin, end in spans]
        payloads = [payload for payload in cut if payload is not None]
        return payloads if len(payloads) == len(cut) else None
    payload_ends = ends - FOOTER_BYTES
    spans = zip((begins + HEADER_BYTES).tolist(), payload_ends.tolist(), strict=True)
    payloads = [data[begin:end] for begin, end in spans]
    expected = b"".join([_headers[len(payload)] for payload in payloads])
    # An array of all that could begin at any byte: what is taken out of it is copied.
    headers = np.ndarray((len(data) - HEADER_BYTES + 1,), "V12", data, strides=(1,))
    if headers[begins].tobytes() != expected:
        return None
    if check:
        crcs = np.fromiter(map(crc32c, payloads), np.uint32, len(payloads))
        masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(MASK_DELTA)
        footers = np.ndarray((len(data) - FOOTER_BYTES + 1,), "<u4", data, strides=(1,))
        if not np.array_equal(footers[payload_ends], masked):
            return None
    return payloads


class FrameBlock:
    """Frames that are to be moved as they are.

    Args:
        pieces: The bytes that hold them: one with all of them, or one for each in order.
        begins: int64[k]: where each begins in the one piece; empty where they are pieces.
        sizes: int64[k]: bytes of each frame.
    """

    def __init__(
        self, pieces: list[bytes], begins: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        self._pieces = pieces
        self._begins = begins
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return some frames, one after the other.

        Args:
            rows: int64[n] numbers of frames, in the order that is wanted.

        Returns:
            Parts which joined are the frames.
        """
        if not len(self._begins):
            return [self._pieces[row] for row in rows.tolist()]
        data, begins, sizes = self._pieces[0], self._begins[rows], self.sizes[rows]
        if len(rows) >= _FEW:
            different = np.unique(sizes)
            if len(different) == 1:
                return [_gathered(data, begins, int(different[0])).tobytes()]
            if len(different) <= min(_SIZES, len(rows) // _FEW):
                return [_gathered_by_size(data, begins, sizes, different)]
        spans = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return [data[begin:end] for begin, end in spans]


def _gathered(data: bytes, begins: NDArray[np.int64], size: int) -> NDArray[np.void]:
    """Return frames of one size: an array of all that could begin at any byte, and some of it."""
    at_any_byte = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    taken: NDArray[np.void] = at_any_byte[begins]
    return taken


def _gathered_by_size(
    data: bytes,
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    different: NDArray[np.int64],
) -> bytes:
    """Return frames of a few sizes, in order."""
    ends = np.cumsum(sizes)
    taken = bytearray(int(ends[-1]))
    for size in different.tolist():
        some = np.flatnonzero(sizes == size)
        places = np.ndarray((len(taken) - size + 1,), f"V{size}", taken, strides=(1,))
        places[ends[some] - size] = _gathered(data, begins[some], size)
    return bytes(taken)
