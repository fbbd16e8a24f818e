"""What a record is: an Example, another proto, text, an image, as far as its bytes can tell.

A TFRecord file says nothing of what its payloads are. Protos carry no name either, and most bytes
parse as some proto, so what is surest is asked for first: a grammar that every byte has to follow
(Example, SequenceExample, ExampleListWithContext, tensors, tensorboard's Event), a magic number
(images, pickles), text, and in the end anything that has the form of a proto.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from shardwriter import example
from shardwriter.images import image_format
from shardwriter.inspection.proto_forms import fields_of, is_event, is_example_list, is_tensor

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
_FULL_CHECKS: Final = 64  # of the first records, and then of one in as many
_MAX_HEADS: Final = 4096

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


def kinds_of(payloads: Iterable[bytes]) -> Counter[str]:
    """Count the kinds of many records, fast where they are of one kind.

    See :class:`KindCounter` for what is not looked at.

    Args:
        payloads: Records, one after the other.
    """
    counter = KindCounter()
    counter.add(payloads)
    return counter.kinds


class KindCounter:
    """Counts the kinds of records that come batch by batch.

    The first 64 records, and of the later ones every 64th, are looked at whole by
    :func:`payload_kind`. Any other counts as an Example, or a SequenceExample, where the sizes of
    its outer fields fill it to the last byte and the name of its first feature is one that such a
    record had before. So a record with the head of an Example and rubbish behind it is found by
    chance only; nothing else is taken for an Example.

    Attributes:
        kinds: How many records of each kind there were.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self._known: dict[bytes, str] = {}  # kind by head
        self._num_seen = 0

    def add(self, payloads: Iterable[bytes]) -> None:
        """Count records."""
        known, num_seen = self._known, self._num_seen
        found: dict[str, int] = dict.fromkeys(_HEADED, 0)
        for payload in payloads:
            num_seen += 1
            if num_seen > _FULL_CHECKS and num_seen % _FULL_CHECKS:
                head = _head(payload)
                if head in known:
                    found[known[head]] += 1
                    continue
            kind = payload_kind(payload)
            self.kinds[kind] += 1
            if kind in _HEADED and len(known) < _MAX_HEADS:
                head = _head(payload)
                if head:
                    known[head] = kind
        self._num_seen = num_seen
        self.kinds.update({kind: count for kind, count in found.items() if count})


_HEADED: Final = ("Example", "SequenceExample")


def _head(payload: bytes) -> bytes:
    """Return the name of the first feature with its tag and size; a SequenceExample's has a mark.

    Empty where the outer fields do not fill the record, or no name is to be had.
    """
    size = len(payload)
    if size < 6:
        return b""
    first, end = payload[0], payload[1]
    at = 2
    if end >= 0x80:
        end, at = _size_at(payload, 1)
    end += at
    if end == size:
        if first == 0x0A:
            return _first_name(payload, at, end)
        return b"\x12" + _first_name(payload, at, end) if first == 0x12 else b""
    # A context, and behind it feature lists to the end.
    if first != 0x0A or end + 2 > size or payload[end] != 0x12:
        return b""
    num_bytes, behind = _size_at(payload, end + 1)
    if behind + num_bytes != size:
        return b""
    if end > at:
        return b"\x12" + _first_name(payload, at, end)
    return b"\x12" + _first_name(payload, behind, size)


def _first_name(payload: bytes, at: int, end: int) -> bytes:
    """Return the name of the entry that begins a map, with its tag and size; empty for none."""
    if end - at < 4 or payload[at] != 0x0A:
        return b""
    entry_end = payload[at + 1]
    at += 2
    if entry_end >= 0x80:
        entry_end, at = _size_at(payload, at - 1)
    entry_end += at
    # A name of more than 127 bytes takes the long way.
    if entry_end > end or entry_end - at < 4 or payload[at] != 0x0A or payload[at + 1] >= 0x80:
        return b""
    behind = at + 2 + payload[at + 1]
    if behind >= entry_end or payload[behind] != 0x12:
        return b""
    return payload[at:behind]


def _size_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a size; one that is cut off or too long reaches behind everything."""
    value = shift = 0
    for place in range(at, min(at + 5, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    return 1 << 62, at


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
