"""Protos told by their form: fields, and what TensorFlow's own protos have to look like.

::

    field       <tag varint: number << 3 | wire type> <value>
    Event       1: seconds (double)   2: step (varint)   and one of 3..10, what it is of
    Tensor      1: type (varint)      2: shape (a message)   4: the values' bytes, 8: a text ...
    ExampleListWithContext            1: Example ...     2: Example, the context
"""

from __future__ import annotations

import math
import struct
from typing import Final

from shardwriter.errors import WireError
from shardwriter.formats import example
from shardwriter.formats.varint import read_varint

# Fields of tensorboard's Event: its time, its step, and what it is of (one of them).
_EVENT_TIME, _EVENT_STEP, _EVENT_VERSION = 0x09, 0x10, 0x1A
_EVENT_WHAT: Final = frozenset([_EVENT_VERSION, 0x22, 0x2A, 0x32, 0x3A, 0x42, 0x4A, 0x52])
_MAX_EVENT_SECONDS: Final = 1e11  # since 1970, as tensorboard counts

# TensorFlow's numbers of types with values of one size, by the bytes of a value.
_TYPE_BYTES: Final[dict[int, int]] = {
    **dict.fromkeys([4, 6, 10, 11, 12, 21], 1),  # (u)int8, bool, quantised ones
    **dict.fromkeys([5, 14, 15, 16, 17, 19], 2),  # (u)int16, half, bfloat16
    **dict.fromkeys([1, 3, 13, 22], 4),  # float, (u)int32
    **dict.fromkeys([2, 8, 9, 23], 8),  # double, int64, complex64
    18: 16,  # complex128
}
_STRING_TYPE: Final = 7


def fields_of(
    data: bytes, start: int = 0, end: int | None = None
) -> list[tuple[int, int, int]] | None:
    """Return tag, start and end of each field of a message; None where it has not the form of one.

    Groups, which nobody writes any more, count as no proto: random bytes have them.
    """
    end = len(data) if end is None else end
    found = []
    at = start
    try:
        while at < end:
            tag, at = read_varint(data, at, end)
            if not 8 <= tag < 1 << 32:
                return None
            wire_type = tag & 7
            if wire_type == 0:
                behind = read_varint(data, at, end)[1]
            elif wire_type == 2:
                size, at = read_varint(data, at, end)
                behind = at + size
            elif wire_type in (1, 5):
                behind = at + (8 if wire_type == 1 else 4)
            else:
                return None
            if behind > end:
                return None
            found.append((tag, at, behind))
            at = behind
    except WireError:
        return None
    return found


def is_example_list(payload: bytes) -> bool:
    """Tell TF Ranking's ``ExampleListWithContext {repeated Example = 1; Example = 2}``.

    Without any list it would be no more than an Example under another number.
    """
    fields = fields_of(payload)
    if not fields or fields[0][0] != 0x0A:
        return False
    tags = [tag for tag, _, _ in fields]
    if not set(tags) <= {0x0A, 0x12} or tags.count(0x12) > 1:
        return False
    return all(
        start == end or example.payload_kind(payload[start:end]) == "Example"
        for _, start, end in fields
    )


def is_event(payload: bytes) -> bool:
    """Tell an Event of tensorboard: a time of our age, and of one thing at most."""
    fields = fields_of(payload)
    if fields is None:
        return False
    tags = [tag for tag, _, _ in fields]
    if len(set(tags)) != len(tags):
        return False
    what = [tag for tag in tags if tag in _EVENT_WHAT]
    if len(what) > 1 or set(tags) - _EVENT_WHAT - {_EVENT_TIME, _EVENT_STEP}:
        return False
    if tags[0] != _EVENT_TIME:  # a time of 0 is not written
        _, start, end = fields[0]
        return payload[start:end].startswith(b"brain.Event:")
    (seconds,) = struct.unpack_from("<d", payload, 1)
    return math.isfinite(seconds) and 0 < seconds < _MAX_EVENT_SECONDS


def is_tensor(payload: bytes) -> bool:
    """Tell what ``tf.io.serialize_tensor`` gives: type, shape, and as many bytes as they say."""
    fields = fields_of(payload)
    tags = [] if fields is None else [tag for tag, _, _ in fields]
    if fields is None or tags[:2] != [0x08, 0x12]:
        return False
    type_number = read_varint(payload, fields[0][1], fields[0][2])[0]
    dims = _tensor_dims(payload, fields[1][1], fields[1][2])
    if dims is None:
        return False
    if type_number == _STRING_TYPE:  # each text is a field of its own
        return len(tags) - 2 == math.prod(dims) and set(tags[2:]) <= {0x42}
    if type_number not in _TYPE_BYTES or tags[2:] not in ([], [0x22]):
        return False
    num_bytes = fields[2][2] - fields[2][1] if len(fields) == 3 else 0
    return num_bytes == math.prod(dims) * _TYPE_BYTES[type_number]


def _tensor_dims(payload: bytes, start: int, end: int) -> list[int] | None:
    """Return the sizes of a TensorShapeProto; None where it is none, or they are not known."""
    dims = []
    fields = fields_of(payload, start, end)
    for tag, dim_start, dim_end in fields if fields is not None else [(0, 0, 0)]:
        inner = fields_of(payload, dim_start, dim_end) if tag == 0x12 else None
        if inner is None or [t for t, _, _ in inner] not in ([], [0x08]):
            return None
        dims.append(read_varint(payload, inner[0][1], inner[0][2])[0] if inner else 0)
    return dims
