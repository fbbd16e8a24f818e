"""The bytes of a ``tf.train.Example`` -> its features, with protobuf's rules (FORMATS.md, F10).

::

    Example   1: Features               Feature    1: BytesList    BytesList  1: bytes ...
    Features  1: entry ...                         2: FloatList    FloatList  1: float32 ...
    entry     1: name   2: Feature                 3: Int64List    Int64List  1: int64 ...

A field is a tag, ``number << 3 | wire type``, and its value. Numbers come packed (one field with
all of them) or not (one field each), or both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import WireError
from shardwriter.formats.feature_errors import Kind
from shardwriter.formats.varint import decode_varints, read_varint

Values: TypeAlias = "NDArray[np.int64] | NDArray[np.float32] | list[bytes]"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Tags: field 1 as bytes (a message, a string, packed numbers), 2 and 3 likewise.
TAG_1, TAG_2, TAG_3 = 0x0A, 0x12, 0x1A
TAG_1_VARINT, TAG_1_FIXED32 = 0x08, 0x0D
_UNPACKED_TAGS: Final[dict[Kind, int]] = {"float": TAG_1_FIXED32, "int64": TAG_1_VARINT}
KIND_OF_TAG: Final[dict[int, Kind]] = {TAG_1: "bytes", TAG_2: "float", TAG_3: "int64"}
# protobuf's limits for a tag; for a size they are those of any varint.
_MAX_TAG: Final = (1 << 32) - 1
_MAX_TAG_BYTES: Final = 5
_SHORT_LIST_BYTES: Final = 10


def decode_example(payload: bytes) -> dict[str, Values | None]:
    """Read one ``tf.train.Example`` as protobuf's parser does.

    Unknown fields are skipped, so other protos may come out with no features: `payload_kind`
    tells them apart. Two rules are ours: groups, a long obsolete feature, are refused even in
    unknown fields, where protobuf would skip them; and a map entry with an unknown field counts,
    as in protobuf for C++, while upb (Python) loses such an entry silently.

    Args:
        payload: The payload of one record.

    Returns:
        By name, in the order of the payload: ``int64[n]``, ``float32[n]`` (their own memory),
        or a list of bytes; None for a Feature with no kind.

    Raises:
        WireError: These are not the bytes of an Example; ``offset`` says where in the payload.
    """
    data = bytes(payload)
    features: dict[str, Values | None] = {}
    for tag, start, end in read_fields(data, 0, len(data)):
        if tag == TAG_1:
            features.update(decode_features(data, start, end))
    return features


def decode_only_example(payload: bytes) -> dict[str, Values | None]:
    """Read one ``tf.train.Example``, and refuse a record of another proto.

    Args:
        payload: The payload of one record.

    Returns:
        What `decode_example` gives.

    Raises:
        WireError: These are not the bytes of an Example; also where they parse as one without any
            name or value, because the fields are those of another proto.
    """
    features = decode_example(payload)
    has_feature = any(name or value is not None for name, value in features.items())
    if not has_feature and payload_kind(payload) != "Example":
        raise WireError("no field of the record is a feature")
    return features


def decode_features(data: bytes, start: int, end: int) -> dict[str, Values | None]:
    """Read the Features in ``data[start:end]``, as `decode_example` gives them."""
    features: dict[str, Values | None] = {}
    for entry_tag, entry_start, entry_end in read_fields(data, start, end):
        if entry_tag == TAG_1:
            name, value = _decode_entry(data, entry_start, entry_end)
            features[name] = value
    return features


def decode_feature(data: bytes, start: int, end: int) -> Values | None:
    """Read the Feature in ``data[start:end]``, likewise."""
    feature = _FeatureParts()
    feature.add(data, start, end)
    return feature.values()


def is_feature(data: bytes, start: int, end: int) -> bool:
    """Say whether each byte of ``data[start:end]`` belongs to a known field of a Feature."""
    return _conforms(data, start, end, "Feature")


def payload_kind(payload: bytes) -> Literal["Example", "SequenceExample", "other"]:
    """Say which proto a payload is, as far as bytes can tell.

    Most protos parse as an Example, with no features. So every byte has to belong to a known
    field, and every map entry needs its value and no more than one name. Empty bytes are an
    empty Example, and so is a SequenceExample that has a context and no feature lists.

    Args:
        payload: The payload of one record.
    """
    data = bytes(payload)
    try:
        if _conforms(data, 0, len(data), "Example"):
            return "Example"
        if _conforms(data, 0, len(data), "SequenceExample"):
            return "SequenceExample"
    except WireError:
        pass
    return "other"


def read_fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Walk over the fields of one message in ``data[start:end]``.

    Yields:
        The tag, and where the value starts and ends: the content of bytes, without its size.
    """
    at = start
    while at < end:
        tag_at = at
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(data, tag_at, end)
            if tag > _MAX_TAG or at - tag_at > _MAX_TAG_BYTES:
                raise WireError("a tag has more than 32 bits", offset=tag_at)
        wire_type = tag & 7
        if tag < 8:
            raise WireError("field number 0", offset=tag_at)
        if wire_type == _BYTES:
            if at < end and data[at] < 0x80:
                size = data[at]
                at += 1
            else:
                size, at = read_varint(data, at, end)
            value_end = at + size
        elif wire_type == _VARINT:
            value_end = read_varint(data, at, end)[1]
        elif wire_type == _FIXED32:
            value_end = at + 4
        elif wire_type == _FIXED64:
            value_end = at + 8
        else:
            what = "a group" if wire_type in (3, 4) else f"the unknown wire type {wire_type}"
            raise WireError(f"{what} in a field", offset=tag_at)
        if value_end > end:
            raise WireError("a field reaches over the end of its message", offset=tag_at)
        yield tag, at, value_end
        at = value_end


def _decode_entry(data: bytes, start: int, end: int) -> tuple[str, Values | None]:
    plain = _decode_plain_entry(data, start, end)
    if plain is not None:
        return plain
    name = ""
    feature = _FeatureParts()
    for tag, value_start, value_end in read_fields(data, start, end):
        if tag == TAG_1:
            name = decode_name(data, value_start, value_end)
        elif tag == TAG_2:
            feature.add(data, value_start, value_end)
    return name, feature.values()


def _decode_plain_entry(data: bytes, start: int, end: int) -> tuple[str, Values | None] | None:
    """Read an entry as nearly all writers write small ones, several times as fast.

    That is: a name, then a Feature with one list with one packed field or one item, all of them
    under 128 bytes. None for anything else, right or wrong.
    """
    if end - start < 4 or data[start] != TAG_1:
        return None
    at = start + 2 + data[start + 1]  # after the name
    # 12 <size> | tag <size> | 0a <size>, where each size reaches exactly to the end of the entry.
    if at + 6 > end or end - at >= 0x80 or data[start + 1] >= 0x80:
        return None
    if (data[at], data[at + 1], data[at + 3]) != (TAG_2, end - at - 2, end - at - 4):
        return None
    if (data[at + 4], data[at + 5]) != (TAG_1, end - at - 6):
        return None
    kind = KIND_OF_TAG.get(data[at + 2])
    if kind is None:
        return None
    name = decode_name(data, start + 2, at)
    if kind == "bytes":
        return name, [data[at + 6 : end]]
    check_packed(data, at + 6, end, kind)
    return name, unpack(data[at + 6 : end], kind, at + 6)


def unpack(packed: bytes, kind: Kind, offset: int) -> NDArray[np.int64] | NDArray[np.float32]:
    """Read a packed list, which starts at ``offset`` of its payload."""
    if kind == "float":
        return np.frombuffer(packed, "<f4").astype(np.float32)
    if 0 < len(packed) <= _SHORT_LIST_BYTES:
        # A single number, nearly always: numpy's fixed costs would be most of the time.
        values, at = [], 0
        while at < len(packed):
            value, at = read_varint(packed, at, len(packed))
            values.append(value)
        return np.array(values, np.uint64).view(np.int64)
    return decode_varints(np.frombuffer(packed, np.uint8), offset=offset)


def decode_name(data: bytes, start: int, end: int) -> str:
    """Read a name."""
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise WireError("a feature name is not UTF-8", offset=start) from None


class _FeatureParts:
    """The values of one Feature while its fields come in: they may be in several pieces."""

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._pieces: list[bytes] = []  # items of bytes; or packed numbers, in any portions
        self._offset = 0

    def add(self, data: bytes, start: int, end: int) -> None:
        """Merge the fields of a Feature: the same list goes on, another kind starts anew."""
        for tag, list_start, list_end in read_fields(data, start, end):
            kind = KIND_OF_TAG.get(tag)
            if kind is None:
                continue
            if kind != self._kind:
                self.values()  # what is dropped must be well-formed too
                self._kind, self._pieces, self._offset = kind, [], list_start
            for item_tag, item_start, item_end in read_fields(data, list_start, list_end):
                if item_tag == TAG_1:
                    if kind != "bytes":
                        check_packed(data, item_start, item_end, kind)
                elif item_tag != _UNPACKED_TAGS.get(kind):
                    continue
                self._pieces.append(data[item_start:item_end])

    def values(self) -> Values | None:
        """The values so far, in memory of their own; None for no kind."""
        if self._kind is None:
            return None
        if self._kind == "bytes":
            return self._pieces
        packed = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return unpack(packed, self._kind, self._offset)


def check_packed(data: bytes, start: int, end: int, kind: Kind) -> None:
    """Hold a packed list against the size of its numbers."""
    if kind == "float" and (end - start) % 4:
        raise WireError("packed floats are not a multiple of 4 bytes", offset=start)
    if kind == "int64" and end > start and data[end - 1] >= 0x80:
        raise WireError("a varint is cut off", offset=end - 1)


# What `payload_kind` accepts: by message, the message that each tag holds, or a scalar.
_GRAMMAR: Final[dict[str, dict[int, str]]] = {
    "Example": {TAG_1: "Features"},
    "SequenceExample": {TAG_1: "Features", TAG_2: "FeatureLists"},
    "Features": {TAG_1: "entry of Feature"},
    "entry of Feature": {TAG_1: "name", TAG_2: "Feature"},
    "Feature": {TAG_1: "BytesList", TAG_2: "FloatList", TAG_3: "Int64List"},
    "BytesList": {TAG_1: "bytes"},
    "FloatList": {TAG_1: "floats", TAG_1_FIXED32: "bytes"},
    "Int64List": {TAG_1: "varints", TAG_1_VARINT: "bytes"},
    "FeatureLists": {TAG_1: "entry of FeatureList"},
    "entry of FeatureList": {TAG_1: "name", TAG_2: "FeatureList"},
    "FeatureList": {TAG_1: "Feature"},
}


def _conforms(data: bytes, start: int, end: int, message: str) -> bool:
    """Say whether each byte of ``data[start:end]`` belongs to a known field of ``message``."""
    known = _GRAMMAR[message]
    tags = []
    for tag, value_start, value_end in read_fields(data, start, end):
        held = known.get(tag)
        if held is None:
            return False
        tags.append(tag)
        if held in _GRAMMAR:
            if not _conforms(data, value_start, value_end, held):
                return False
        elif held == "name":
            decode_name(data, value_start, value_end)
        elif held == "floats":
            check_packed(data, value_start, value_end, "float")
        elif held == "varints":
            check_packed(data, value_start, value_end, "int64")
            unpack(data[value_start:value_end], "int64", value_start)
    return not message.startswith("entry") or sorted(tags) in ([TAG_1, TAG_2], [TAG_2])
