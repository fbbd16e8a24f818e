"""Detect the kind of a record: an Example, another proto, text, an image.

A TFRecord file does not state the type of its payloads. Protos carry no type name either, and most
bytes parse as some proto, so the strictest tests come first: grammars that every byte has to follow
(Example, SequenceExample, ExampleListWithContext, tensors, TensorBoard's Event), magic numbers
(images, npy, pickles), text, and finally any well-formed proto.

::

    field       <tag varint: number << 3 | wire type> <value>
    Event       1: seconds (double)   2: step (varint)   and one of 3..10, its content
    Tensor      1: type (varint)      2: shape (a message)   4: the values' bytes, 8: a text ...
    ExampleListWithContext            1: Example ...     2: Example, the context
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Final

from shardwriter.errors import WireError
from shardwriter.formats.example_wire import payload_kind
from shardwriter.formats.media import image_format
from shardwriter.formats.varint import read_varint

# Tags of the fields of TensorBoard's Event: its time, its step, and one of several contents.
_EVENT_TIME, _EVENT_STEP, _EVENT_VERSION = 0x09, 0x10, 0x1A
_EVENT_CONTENTS: Final = frozenset([_EVENT_VERSION, 0x22, 0x2A, 0x32, 0x3A, 0x42, 0x4A, 0x52])
_MAX_EVENT_SECONDS: Final = 1e11  # since 1970

# Bytes of a value, by TensorFlow's type number.
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
    """Return tag, start and end of each field of a message; None if it is not well-formed.

    Groups count as malformed: they are obsolete, and common in random bytes.
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
                value_end = read_varint(data, at, end)[1]
            elif wire_type == 2:
                size, at = read_varint(data, at, end)
                value_end = at + size
            elif wire_type in (1, 5):
                value_end = at + (8 if wire_type == 1 else 4)
            else:
                return None
            if value_end > end:
                return None
            found.append((tag, at, value_end))
            at = value_end
    except WireError:
        return None
    return found


def is_example_list(payload: bytes) -> bool:
    """Return whether a record is TF Ranking's ``ExampleListWithContext``.

    It is ``{repeated Example = 1; Example = 2}``; at least one field 1 is required.
    """
    fields = fields_of(payload)
    if not fields or fields[0][0] != 0x0A:
        return False
    tags = [tag for tag, _, _ in fields]
    if not set(tags) <= {0x0A, 0x12} or tags.count(0x12) > 1:
        return False
    return all(
        start == end or payload_kind(payload[start:end]) == "Example" for _, start, end in fields
    )


def is_event(payload: bytes) -> bool:
    """Return whether a record is a TensorBoard Event: a plausible time, and at most one content."""
    fields = fields_of(payload)
    if fields is None:
        return False
    tags = [tag for tag, _, _ in fields]
    if len(set(tags)) != len(tags):
        return False
    contents = [tag for tag in tags if tag in _EVENT_CONTENTS]
    if len(contents) > 1 or set(tags) - _EVENT_CONTENTS - {_EVENT_TIME, _EVENT_STEP}:
        return False
    if tags[0] != _EVENT_TIME:  # a time of 0 is omitted
        _, start, end = fields[0]
        return payload[start:end].startswith(b"brain.Event:")
    (seconds,) = struct.unpack_from("<d", payload, 1)
    return math.isfinite(seconds) and 0 < seconds < _MAX_EVENT_SECONDS


def is_tensor(payload: bytes) -> bool:
    """Return whether a record is a ``tf.io.serialize_tensor``: type, shape, and matching bytes."""
    fields = fields_of(payload)
    tags = [] if fields is None else [tag for tag, _, _ in fields]
    if fields is None or tags[:2] != [0x08, 0x12]:
        return False
    type_number = read_varint(payload, fields[0][1], fields[0][2])[0]
    dims = _tensor_dims(payload, fields[1][1], fields[1][2])
    if dims is None:
        return False
    if type_number == _STRING_TYPE:  # each string is a field of its own
        return len(tags) - 2 == math.prod(dims) and set(tags[2:]) <= {0x42}
    if type_number not in _TYPE_BYTES or tags[2:] not in ([], [0x22]):
        return False
    num_bytes = fields[2][2] - fields[2][1] if len(fields) == 3 else 0
    return num_bytes == math.prod(dims) * _TYPE_BYTES[type_number]


def _tensor_dims(payload: bytes, start: int, end: int) -> list[int] | None:
    """Return the sizes of a TensorShapeProto; None if it is malformed or of unknown shape."""
    dims = []
    fields = fields_of(payload, start, end)
    for tag, dim_start, dim_end in fields if fields is not None else [(0, 0, 0)]:
        inner = fields_of(payload, dim_start, dim_end) if tag == 0x12 else None
        if inner is None or [t for t, _, _ in inner] not in ([], [0x08]):
            return None
        dims.append(read_varint(payload, inner[0][1], inner[0][2])[0] if inner else 0)
    return dims


KINDS: Final = (
    "Example",
    "SequenceExample",
    "ExampleListWithContext",
    "Event",
    "tensor",
    "image",
    "json",
    "text",
    "pickle",
    "npy",
    "empty",
    "other proto",
    "bytes",
)
"""All results of :func:`record_kind`."""

_TEXT: Final = bytes(range(0x20, 0x7F)) + b"\t\n\r\f" + bytes(range(0x80, 0x100))

_BMP_HEADERS: Final = frozenset([12, 40, 52, 56, 64, 108, 124])


def record_kind(payload: bytes) -> str:
    """Return the kind of a record, as far as its bytes determine it.

    Every byte of an Example, a SequenceExample or an ExampleListWithContext belongs to a known
    field. ``0a 00`` is an Example without features; a payload of no bytes is ``"empty"``.

    Args:
        payload: The payload of one record.

    Returns:
        One of :data:`KINDS`.
    """
    if not payload:
        return "empty"
    first = payload[0]
    if first in (0x0A, 0x12):
        kind = payload_kind(payload)
        if kind != "other":
            return kind
        if is_example_list(payload):
            return "ExampleListWithContext"
    elif first in (0x09, 0x1A) and is_event(payload):
        return "Event"
    elif first == 0x08 and is_tensor(payload):
        return "tensor"
    if _is_image(payload):
        return "image"
    if payload.startswith(b"\x93NUMPY"):
        return "npy"
    if _is_pickle(payload):
        return "pickle"
    if _is_text(payload):
        return "json" if _is_json(payload) else "text"
    return "bytes" if fields_of(payload) is None else "other proto"


def _is_image(payload: bytes) -> bool:
    found = image_format(payload[:16])
    if found != "bmp":
        return found is not None
    # "BM" alone may be text.
    return len(payload) >= 26 and int.from_bytes(payload[14:18], "little") in _BMP_HEADERS


def _is_pickle(payload: bytes) -> bool:
    if len(payload) < 4 or payload[0] != 0x80 or payload[-1:] != b".":
        return False
    protocol = payload[1]
    # From protocol 4 on, a frame follows the header unless the pickle is tiny.
    return protocol in (2, 3) or (
        protocol in (4, 5) and payload[2:3] in (b"\x95", b"]", b"}", b"N")
    )


def _is_text(payload: bytes) -> bool:
    if payload.translate(None, _TEXT):
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_json(payload: bytes) -> bool:
    """Return whether a text is a JSON object or list; a bare number or word is text."""
    text = payload.strip()
    if text[:1] + text[-1:] not in (b"{}", b"[]"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_PLURALS: Final = {
    "Example": "Examples",
    "SequenceExample": "SequenceExamples",
    "ExampleListWithContext": "ExampleListWithContexts",
    "Event": "TensorBoard events",
    "tensor": "serialized tensors",
    "image": "bare images",
    "json": "JSON",
    "text": "text",
    "pickle": "pickles",
    "npy": "npy arrays",
    "empty": "empty",
    "other proto": "other protos",
    "bytes": "bytes of no known form",
}
_ADVICE: Final = {
    "SequenceExample": "tf.io.parse_sequence_example reads such records, tf.io.parse_example only "
    "their context",
    "ExampleListWithContext": "TF Ranking's parsers read such records, tf.io.parse_example finds "
    "no feature in them",
    "Event": "a TensorBoard log, not training data",
    "tensor": "tf.io.parse_tensor reads such records, tf.io.parse_example finds no feature in them",
    "image": "tf.io.decode_image reads such records, tf.io.parse_example fails or finds no feature",
    "pickle": "unpickling runs code from the file; do it only if you trust its author",
    "empty": "tf.io.parse_example finds no feature in such records",
}
_FAILS: Final = "tf.io.parse_example fails on such records, or finds no feature in them"


_SINGULARS: Final = {
    "Example": "a tf.train.Example",
    "SequenceExample": "a tf.train.SequenceExample",
    "ExampleListWithContext": "an ExampleListWithContext of TF Ranking",
    "Event": "an event of a TensorBoard log",
    "tensor": "a serialized tensor",
    "image": "an image file",
    "json": "JSON",
    "text": "text",
    "pickle": "a pickle",
    "npy": "an npy array",
    "empty": "empty",
    "other proto": "a message of another protobuf type",
    "bytes": "bytes of no known form",
}


def describe_record(payload: bytes) -> str:
    """Return a phrase for a record that completes "looks like ..."."""
    return _SINGULARS[record_kind(payload)]


def describe_kinds(kinds: Mapping[str, int], *, is_sample: bool = False) -> list[str]:
    """Return notes for a trainer about records that are not Examples.

    Args:
        kinds: Number of records of each kind.
        is_sample: Whether only some records were examined.

    Returns:
        Notes; none if all records are Examples, or there are no records.
    """
    counts = {kind: count for kind, count in kinds.items() if count}
    total = sum(counts.values())
    others = {kind: count for kind, count in counts.items() if kind != "Example"}
    if not others:
        return []
    examined = " examined" if is_sample else ""
    if len(counts) == 1:
        (kind,) = others
        advice = _ADVICE.get(kind, _FAILS)
        if total == 1:
            return [f"the only record{examined} is not an Example ({kind}): {advice}"]
        return [f"all {total:,} records{examined} are {_PLURALS[kind]}: {advice}"]
    ordered = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    parts = ", ".join(f"{count:,} {_PLURALS[kind]}" for kind, count in ordered)
    if "Example" not in counts:
        return [
            f"{total:,} records{examined} are of several kinds ({parts}), and none is an Example"
        ]
    wrong = sum(others.values())
    advice = _ADVICE.get(ordered[0][0], _FAILS) if len(ordered) == 1 else _FAILS
    verb = "is not an Example" if wrong == 1 else "are not Examples"
    return [f"{wrong:,} of {total:,} records{examined} {verb} ({parts}): {advice}"]
