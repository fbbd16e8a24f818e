"""Encode TensorBoard events, the records of an event file, without TensorBoard.

The fields used (tensorboard ``compat/proto/event.proto`` and ``summary.proto``)::

    Event            1 wall_time: double, 2 step: int64, 3 file_version: string, 5 summary: Summary
    Summary          1 value: repeated Value
    Value            1 tag: string, 2 simple_value: float, 9 metadata: SummaryMetadata
    SummaryMetadata  3 summary_description: string

The first record of a file has the file version ``brain.Event:2``; the others here hold scalars.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from shardwriter.formats.varint import encode_varint

FILE_VERSION: Final = "brain.Event:2"

_DOUBLE: Final = struct.Struct("<d")
_FLOAT: Final = struct.Struct("<f")
_MAX_FLOAT: Final = 3.4028234663852886e38


def version_event(wall_time_s: float) -> bytes:
    """Return the first record of an event file.

    Args:
        wall_time_s: Seconds since 1970.
    """
    return _wall_time(wall_time_s) + _delimited(3, FILE_VERSION.encode())


def scalars_event(
    wall_time_s: float,
    step: int,
    scalars: Mapping[str, float],
    descriptions: Mapping[str, str] | None = None,
) -> bytes:
    """Return a record of scalars at one step.

    Args:
        wall_time_s: Seconds since 1970.
        step: Position on the horizontal axis, from 0.
        scalars: Values by tag, stored as float32.
        descriptions: Description shown by TensorBoard, by tag; needed once per file.
    """
    texts = descriptions or {}
    summary = b"".join(
        _delimited(1, _value(tag, scalar, texts.get(tag))) for tag, scalar in scalars.items()
    )
    # protobuf omits a step of 0, the default.
    at = b"\x10" + encode_varint(step) if step else b""
    return _wall_time(wall_time_s) + at + _delimited(5, summary)


def _value(tag: str, scalar: float, description: str | None) -> bytes:
    # A number too large for float32 becomes infinite, as in a cast; struct would raise.
    finite = scalar if scalar != scalar or abs(scalar) <= _MAX_FLOAT else scalar * float("inf")
    value = _delimited(1, tag.encode()) + b"\x15" + _FLOAT.pack(finite)
    if description is not None:
        value += _delimited(9, _delimited(3, description.encode()))
    return value


def _wall_time(seconds: float) -> bytes:
    return b"\x09" + _DOUBLE.pack(seconds)


def _delimited(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content
