"""What a WAV file says of itself: rate, channels, bits, and how many frames it holds.

A WAV file is RIFF chunks (Microsoft and IBM, 1991): ``fmt`` says how samples are stored, ``data``
holds them. Samples are integers (PCM), IEEE floats, A-law or mu-law; each takes the same number of
bytes, so that their number follows from that of the bytes. RF64 (EBU Tech 3306) is the same with
sizes of 64 bits.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_CODES: Final = {1: "PCM", 3: "IEEE float", 6: "A-law", 7: "mu-law"}
_EXTENSIBLE: Final = 0xFFFE
# The rest of a subformat's GUID: its first two bytes are a code as above.
_GUID_TAIL: Final = bytes.fromhex("000000001000800000aa00389b71")
_BITS: Final = {1: (8, 16, 24, 32, 64), 3: (32, 64), 6: (8,), 7: (8,)}
_UNKNOWN_SIZE: Final = 0xFFFFFFFF


class WavHeader(NamedTuple):
    """What ``fmt`` says, and how many frames (one sample of each channel) there are."""

    sample_rate: int
    channels: int
    bits_per_sample: int
    num_frames: int


class _Format(NamedTuple):
    sample_rate: int
    channels: int
    bits: int
    frame_bytes: int


def read_wav_header(data: bytes) -> WavHeader:
    """Read the header of a WAV file.

    Args:
        data: The whole file.

    Raises:
        ValueError: It is none, is cut off, contradicts itself, or is coded in an unknown way.
    """
    if not data:
        raise ValueError("the file is empty")
    if data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise ValueError(f"this is no WAV file: it begins with {data[:12]!r}")
    found: _Format | None = None
    large_bytes: int | None = None
    at = 12
    while at + 8 <= len(data):
        name, num_bytes = struct.unpack_from("<4sI", data, at)
        at += 8
        body = data[at : at + min(num_bytes, 40)]
        if name == b"ds64" and data[:4] == b"RF64" and len(body) >= 24:
            (large_bytes,) = struct.unpack_from("<Q", body, 8)
        elif name == b"fmt ":
            found = _format(body)
        elif name == b"data":
            if found is None:
                raise ValueError("the chunk `data` comes before `fmt `")
            if num_bytes == _UNKNOWN_SIZE and large_bytes is not None:
                num_bytes = large_bytes
            riff_end = 8 + int.from_bytes(data[4:8], "little")
            if not num_bytes and riff_end <= at < len(data):
                # Chunks behind empty samples would be counted in the size of the whole.
                raise ValueError(
                    f"the header says that there are no samples, and {len(data) - at:,} bytes "
                    "follow it: whoever wrote the file could not go back and fill it in"
                )
            return _counted(found, num_bytes, len(data) - at)
        at += num_bytes + num_bytes % 2  # a chunk of odd size is followed by a byte of padding
    missing = "`data`" if found else "`fmt ` and `data`"
    raise ValueError(f"the file is cut off or damaged: it has no chunk {missing}")


def _format(body: bytes) -> _Format:
    if len(body) < 16:
        raise ValueError(f"the chunk `fmt ` has {len(body)} bytes, at least 16 are needed")
    code, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if code == _EXTENSIBLE:
        if len(body) < 40 or body[26:40] != _GUID_TAIL:
            raise ValueError("the subformat of the samples is not known")
        (code,) = struct.unpack_from("<H", body, 24)
    if code not in _CODES:
        raise ValueError(
            f"samples are coded in format {code:#06x}; known are {', '.join(_CODES.values())}"
        )
    if not rate or not channels:
        raise ValueError(f"the header says {channels} channels at {rate:,} Hz")
    # Bits may be fewer than those that are stored: 5 bits stand in a byte, 20 in three.
    stored_bits = -(-bits // 8) * 8
    if stored_bits not in _BITS[code] or (code != 1 and bits != stored_bits):
        raise ValueError(f"{_CODES[code]} of {bits} bits is not known")
    if frame_bytes != channels * stored_bits // 8:
        raise ValueError(
            f"the header says {frame_bytes} bytes a frame, and {channels} channel(s) of {bits} bits"
        )
    return _Format(rate, channels, bits, frame_bytes)


def _counted(found: _Format, num_bytes: int, there_bytes: int) -> WavHeader:
    if num_bytes > there_bytes:
        said = "an unknown number of" if num_bytes == _UNKNOWN_SIZE else f"{num_bytes:,}"
        raise ValueError(f"the header says {said} bytes of samples, and {there_bytes:,} are there")
    num_frames, rest = divmod(num_bytes, found.frame_bytes)
    if rest:
        raise ValueError(
            f"{num_bytes:,} bytes of samples are no whole number of frames of "
            f"{found.frame_bytes} bytes"
        )
    return WavHeader(found.sample_rate, found.channels, found.bits, num_frames)
