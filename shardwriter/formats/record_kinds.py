"""What a record is: an Example, another proto, text, an image, as far as its bytes can tell.

A TFRecord file says nothing of what its payloads are. Protos carry no name either, and most bytes
parse as some proto, so what is surest is asked for first: a grammar that every byte has to follow
(Example, SequenceExample, ExampleListWithContext, tensors, tensorboard's Event), a magic number
(images, pickles), text, and in the end anything that has the form of a proto.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from shardwriter.formats import example
from shardwriter.formats.images import image_format
from shardwriter.formats.proto_forms import fields_of, is_event, is_example_list, is_tensor

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
"""All that :func:`payload_kind` answers."""

_TEXT: Final = bytes(range(0x20, 0x7F)) + b"\t\n\r\f" + bytes(range(0x80, 0x100))

_BMP_HEADERS: Final = frozenset([12, 40, 52, 56, 64, 108, 124])


def payload_kind(payload: bytes) -> str:
    """Say what a record is, as surely as its bytes can tell.

    Every byte of an Example, a SequenceExample or an ExampleListWithContext was seen to have its
    place. ``0a 00`` is an Example without features; no bytes at all are ``"empty"``.

    Args:
        payload: The payload of one record.

    Returns:
        One of :data:`KINDS`.
    """
    if not payload:
        return "empty"
    first = payload[0]
    if first in (0x0A, 0x12):
        kind = example.payload_kind(payload)
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
    # "BM" alone is two letters of a text.
    return len(payload) >= 26 and int.from_bytes(payload[14:18], "little") in _BMP_HEADERS


def _is_pickle(payload: bytes) -> bool:
    if len(payload) < 4 or payload[0] != 0x80 or payload[-1:] != b".":
        return False
    protocol = payload[1]
    # From protocol 4 on a frame begins behind the head, unless all of it is tiny.
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
    """Tell objects and lists; a bare number or word is text."""
    text = payload.strip()
    if text[:1] + text[-1:] not in (b"{}", b"[]"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# -- in words --------------------------------------------------------------------------------------

_PLURALS: Final = {
    "Example": "Examples",
    "SequenceExample": "SequenceExamples",
    "ExampleListWithContext": "ExampleListWithContexts",
    "Event": "tensorboard events",
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
    "SequenceExample": "tf.io.parse_sequence_example reads such records, tf.io.parse_example no "
    "more than their context",
    "ExampleListWithContext": "TF Ranking's parsers read such records, tf.io.parse_example gets "
    "nothing of use out of them",
    "Event": "a log of tensorboard, no training data",
    "tensor": "tf.io.parse_tensor reads such records, tf.io.parse_example finds no feature in them",
    "image": "tf.io.decode_image reads such records, tf.io.parse_example fails or finds no feature",
    "pickle": "unpickling runs the code of whoever wrote them",
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


def looks_like(payload: bytes) -> str:
    """Return what a record looks like, in words that go behind "looks like"."""
    return _SINGULARS[payload_kind(payload)]


def describe_kinds(kinds: Mapping[str, int], *, is_sample: bool = False) -> list[str]:
    """Say what the kinds of a set's records mean to a trainer, where it is worth saying.

    Args:
        kinds: How many records there are of each kind.
        is_sample: Whether only some records were looked at.

    Returns:
        Notes; none where all records are Examples, or there are no records.
    """
    counts = {kind: count for kind, count in kinds.items() if count}
    total = sum(counts.values())
    others = {kind: count for kind, count in counts.items() if kind != "Example"}
    if not others:
        return []
    looked = " that were looked at" if is_sample else ""
    if len(counts) == 1:
        (kind,) = others
        advice = _ADVICE.get(kind, _FAILS)
        if total == 1:
            looked = " that was looked at" if is_sample else ""
            return [f"the only record{looked} is no Example ({kind}): {advice}"]
        return [f"all {total:,} records{looked} are {_PLURALS[kind]}: {advice}"]
    ordered = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    parts = ", ".join(f"{count:,} {_PLURALS[kind]}" for kind, count in ordered)
    if "Example" not in counts:
        return [f"{total:,} records{looked} are of several kinds ({parts}), and none is an Example"]
    wrong = sum(others.values())
    advice = _ADVICE.get(ordered[0][0], _FAILS) if len(ordered) == 1 else _FAILS
    verb = "is no Example" if wrong == 1 else "are not Examples"
    return [f"{wrong:,} of {total:,} records{looked} {verb} ({parts}): {advice}"]
