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
