"""Where the frames of a plain shard end, found by going from header to header."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import CorruptFile
from shardwriter.formats.tfrecord import (
    FRAME_BYTES,
    HEADER_BYTES,
    HEADER_CACHE_SIZE,
    MAX_PAYLOAD_BYTES,
    frame_header,
)
from shardwriter.storage.inputs import OpenInput, inputs_for
from shardwriter.storage.local import storage_errors

_LEAST_BYTES: Final = 1 << 12
_MOST_BYTES: Final = 1 << 20
_HINT: Final = "`shard-stats` lists all that is wrong with the file"


def hop_frames(path: str) -> NDArray[np.uint64]:
    """Return uint64[n]: the offset behind each frame of a plain shard.

    Payloads are not read, unless it costs less than not to.

    Raises:
        CorruptFile: A header is wrong, or the file ends inside of a frame.
        StorageError: The file can not be read.
    """
    with storage_errors(path), inputs_for(path).open(path) as file:
        return _hop(file, file.stat().st_size, path)


def _hop(file: OpenInput, file_bytes: int, path: str) -> NDArray[np.uint64]:
    ends = array("Q")
    known: dict[bytes, int] = {}  # header -> bytes of its frame
    at = window_start = 0
    window, window_bytes = b"", _LEAST_BYTES
    while at < file_bytes:
        begin = at - window_start
        if begin + HEADER_BYTES > len(window):
            # Many frames in one window: the next one is larger. None: it was too large.
            is_dense = begin <= 2 * len(window)
            window_bytes = min(4 * window_bytes, _MOST_BYTES) if is_dense else _LEAST_BYTES
            window, window_start, begin = file.read_at(at, window_bytes), at, 0
        header = window[begin : begin + HEADER_BYTES]
        frame_bytes = known.get(header)
        if frame_bytes is None:
            frame_bytes = _frame_bytes(header, path, len(ends), at)
            if len(known) < HEADER_CACHE_SIZE:
                known[header] = frame_bytes
        at += frame_bytes
        ends.append(at)
    if at > file_bytes:
        begin = ends[-2] if len(ends) > 1 else 0
        raise _damaged(
            f"file ends after {file_bytes - begin:,} of a frame's {at - begin:,} bytes",
            "truncated",
            path,
            len(ends) - 1,
            begin,
        )
    return np.frombuffer(ends, np.uint64)


def _frame_bytes(header: bytes, path: str, record_index: int, offset: int) -> int:
    if len(header) < HEADER_BYTES:
        what = f"file ends after {len(header)} bytes of a 12-byte header"
        raise _damaged(what, "truncated", path, record_index, offset)
    length = int.from_bytes(header[:8], "little")
    if frame_header(length) != header:
        what = "length CRC is wrong" + " (is this a TFRecord file?)" * (record_index == 0)
        raise _damaged(what, "length-crc", path, record_index, offset)
    if length > MAX_PAYLOAD_BYTES:
        what = f"length of {length:,} bytes is over the limit of {MAX_PAYLOAD_BYTES:,}"
        raise _damaged(what, "impossible-length", path, record_index, offset)
    return FRAME_BYTES + length


def _damaged(what: str, kind: str, path: str, record_index: int, offset: int) -> CorruptFile:
    return CorruptFile(
        what, kind=kind, path=path, record_index=record_index, offset=offset, hint=_HINT
    )
