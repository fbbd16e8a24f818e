"""Decode a ``tf.train.Example`` with protobuf's rules.

::

    Example   1: Features               Feature    1: BytesList    BytesList  1: bytes ...
    Features  1: entry ...                         2: FloatList    FloatList  1: float32 ...
    entry     1: name   2: Feature                 3: Int64List    Int64List  1: int64 ...

A field is a tag, ``number << 3 | wire type``, and its value. Numbers are packed (one field with all
of them) or not (one field each), or both.

There are three decoders. `decode_example` accepts everything that protobuf accepts.
`decode_plain_example` accepts only the form that writers produce, in one pass. `EntryFinder`
locates values without decoding them, fast for records like the previous ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import WireError
from shardwriter.formats.feature_values import Kind, blob_head, packed_head
from shardwriter.formats.varint import decode_varints, read_varint

Values: TypeAlias = "NDArray[np.int64] | NDArray[np.float32] | list[bytes]"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Tags of fields 1, 2 and 3 with length-delimited values: messages, strings, packed numbers.
TAG_1, TAG_2, TAG_3 = 0x0A, 0x12, 0x1A
TAG_1_VARINT, TAG_1_FIXED32 = 0x08, 0x0D
_UNPACKED_TAGS: Final[dict[Kind, int]] = {"float": TAG_1_FIXED32, "int64": TAG_1_VARINT}
KIND_OF_TAG: Final[dict[int, Kind]] = {TAG_1: "bytes", TAG_2: "float", TAG_3: "int64"}
# protobuf's limits for a tag; sizes have those of any varint.
_MAX_TAG: Final = (1 << 32) - 1
_MAX_TAG_BYTES: Final = 5
_SHORT_LIST_BYTES: Final = 10


def decode_example(payload: bytes) -> dict[str, Values | None]:
    """Return the features of one ``tf.train.Example``, as protobuf's parser does.

    Unknown fields are skipped, so another proto may decode to no features; `payload_kind`
    distinguishes them. Two rules differ: groups, which are obsolete, are an error even in unknown
    fields, where protobuf would skip them; and a map entry with an unknown field counts, as in
    protobuf for C++, while upb (Python) silently drops such an entry.

    Args:
        payload: The payload of one record.

    Returns:
        By name, in the order of the payload: ``int64[n]`` or ``float32[n]`` in memory of their own,
        or a list of bytes; None for a Feature with no kind.

    Raises:
        WireError: The payload is not an Example; ``offset`` is the position in it.
    """
    data = bytes(payload)
    features: dict[str, Values | None] = {}
    for tag, start, end in read_fields(data, 0, len(data)):
        if tag == TAG_1:
            features.update(decode_features(data, start, end))
    return features


def decode_only_example(payload: bytes) -> dict[str, Values | None]:
    """Return the features of one ``tf.train.Example``; raise for a record of another proto.

    Args:
        payload: The payload of one record.

    Returns:
        The result of `decode_example`.

    Raises:
        WireError: The payload is not an Example, or parses as one without any name or value
            because its fields are those of another proto.
    """
    features = decode_example(payload)
    has_feature = any(name or value is not None for name, value in features.items())
    if not has_feature and payload_kind(payload) != "Example":
        raise WireError("no field of the record is a feature")
    return features


def decode_features(data: bytes, start: int, end: int) -> dict[str, Values | None]:
    """Return the values of the Features in ``data[start:end]``, as `decode_example` does."""
    features: dict[str, Values | None] = {}
    for entry_tag, entry_start, entry_end in read_fields(data, start, end):
        if entry_tag == TAG_1:
            name, value = _decode_entry(data, entry_start, entry_end)
            features[name] = value
    return features


def decode_feature(data: bytes, start: int, end: int) -> Values | None:
    """Return the values of the Feature in ``data[start:end]``; None for no kind."""
    feature = _FeatureParts()
    feature.add(data, start, end)
    return feature.values()


def is_feature(data: bytes, start: int, end: int) -> bool:
    """Return whether each byte of ``data[start:end]`` belongs to a known field of a Feature."""
    return _conforms(data, start, end, "Feature")


def payload_kind(payload: bytes) -> Literal["Example", "SequenceExample", "other"]:
    """Return the proto type of a payload, as far as its bytes determine it.

    Most protos parse as an Example without features. So every byte has to belong to a known field,
    and every map entry needs one value and at most one name. Empty bytes are an empty Example; a
    SequenceExample with a context and no feature lists is an Example.

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
    """Yield the fields of one message in ``data[start:end]``.

    Yields:
        The tag, and the start and end of the value, without the size of a length-delimited one.
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
            what = "a group" if wire_type in (3, 4) else f"unknown wire type {wire_type}"
            raise WireError(f"{what} in a field", offset=tag_at)
        if value_end > end:
            raise WireError("a field extends past the end of its message", offset=tag_at)
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
    """Return name and values of a small entry in the usual form; a fast path.

    The form is: a name, then a Feature with one list with one packed field or one item, each under
    128 bytes. Returns None for any other form, valid or not.
    """
    if end - start < 4 or data[start] != TAG_1:
        return None
    at = start + 2 + data[start + 1]  # after the name
    # 12 <size> | tag <size> | 0a <size>, where each size extends exactly to the end of the entry.
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
    """Return the numbers of a packed list at ``offset`` of its payload."""
    if kind == "float":
        return np.frombuffer(packed, "<f4").astype(np.float32)
    if 0 < len(packed) <= _SHORT_LIST_BYTES:
        # Usually a single number, for which numpy's fixed costs would dominate.
        values, at = [], 0
        while at < len(packed):
            value, at = read_varint(packed, at, len(packed))
            values.append(value)
        return np.array(values, np.uint64).view(np.int64)
    return decode_varints(np.frombuffer(packed, np.uint8), offset=offset)


def decode_name(data: bytes, start: int, end: int) -> str:
    """Return a feature name."""
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise WireError("a feature name is not UTF-8", offset=start) from None


class _FeatureParts:
    """The values of one Feature, whose fields may be split and repeated."""

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._pieces: list[bytes] = []  # bytes values; or parts of the packed numbers
        self._offset = 0

    def add(self, data: bytes, start: int, end: int) -> None:
        """Merge the fields of a Feature: the same kind extends the list, another replaces it."""
        for tag, list_start, list_end in read_fields(data, start, end):
            kind = KIND_OF_TAG.get(tag)
            if kind is None:
                continue
            if kind != self._kind:
                self.values()  # raises if the replaced list is malformed
                self._kind, self._pieces, self._offset = kind, [], list_start
            for item_tag, item_start, item_end in read_fields(data, list_start, list_end):
                if item_tag == TAG_1:
                    if kind != "bytes":
                        check_packed(data, item_start, item_end, kind)
                elif item_tag != _UNPACKED_TAGS.get(kind):
                    continue
                self._pieces.append(data[item_start:item_end])

    def values(self) -> Values | None:
        """Return the values so far, in memory of their own; None for no kind."""
        if self._kind is None:
            return None
        if self._kind == "bytes":
            return self._pieces
        packed = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return unpack(packed, self._kind, self._offset)


def check_packed(data: bytes, start: int, end: int, kind: Kind) -> None:
    """Raise if a packed list does not consist of whole numbers."""
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
    """Return whether each byte of ``data[start:end]`` belongs to a known field of ``message``."""
    known = _GRAMMAR[message]
    tags = []
    for tag, value_start, value_end in read_fields(data, start, end):
        content = known.get(tag)
        if content is None:
            return False
        tags.append(tag)
        if content in _GRAMMAR:
            if not _conforms(data, value_start, value_end, content):
                return False
        elif content == "name":
            decode_name(data, value_start, value_end)
        elif content == "floats":
            check_packed(data, value_start, value_end, "float")
        elif content == "varints":
            check_packed(data, value_start, value_end, "int64")
            unpack(data[value_start:value_end], "int64", value_start)
    return not message.startswith("entry") or sorted(tags) in ([TAG_1, TAG_2], [TAG_2])


# -- the usual form in one pass --------------------------------------------------------------------


def decode_plain_example(payload: bytes) -> dict[str, Values | None] | None:
    """Return the features of an Example in the form that writers produce; a fast path.

    Each byte belongs to a known field and no name repeats, so the payload is certainly an Example.
    This takes one pass, where `payload_kind` and `decode_example` take two.

    Args:
        payload: The payload of one record.

    Returns:
        The result of `decode_example`; None for any other form, valid or not.
    """
    try:
        at, stop = _enter_plain(payload, 0, len(payload), TAG_1)
        if stop != len(payload):
            return None
        features: dict[str, Values | None] = {}
        while at < stop:
            entry, at = _enter_plain(payload, at, stop, TAG_1)
            name_at, name_end = _enter_plain(payload, entry, at, TAG_1)
            feature, feature_end = _enter_plain(payload, name_end, at, TAG_2)
            name = payload[name_at:name_end].decode()
            if feature_end != at or name in features:
                return None
            if feature == feature_end:
                features[name] = None
                continue
            values = decode_plain_list(payload, feature, feature_end)
            if values is None:
                return None
            features[name] = values
    except (WireError, UnicodeDecodeError):
        return None
    return features


def decode_plain_list(data: bytes, start: int, end: int) -> Values | None:
    """Return the values of the Feature in ``data[start:end]`` if it is one list of known fields.

    Returns:
        The values, in memory of their own; None for no kind, and for any other form.
    """
    try:
        tag = data[start] if start < end else 0
        kind = KIND_OF_TAG.get(tag)
        at, stop = _enter_plain(data, start, end, tag)
        if kind is None or stop != end:
            return None
        if kind != "bytes":
            if at == end:
                return np.empty(0, np.float32) if kind == "float" else np.empty(0, np.int64)
            if data[at] == TAG_1:
                at, stop = _enter_plain(data, at, end, TAG_1)
                if stop == end:
                    check_packed(data, at, end, kind)
                    return unpack(data[at:end], kind, at)
            return decode_feature(data, start, end) if is_feature(data, start, end) else None
        items = []
        while at < end:
            item, at = _enter_plain(data, at, end, TAG_1)
            items.append(data[item:at])
    except WireError:
        return None
    return items


def _enter_plain(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Return start and end of the content of a field ``<tag> <size>`` in ``data[at:end]``."""
    if at + 1 >= end or data[at] != tag:
        raise WireError("another field", offset=at)
    size = data[at + 1]
    at += 2
    if size >= 0x80:
        size, at = read_varint(data, at - 1, end)
    if at + size > end:
        raise WireError("a field extends past the end of its message", offset=at)
    return at, at + size


# -- locating values -------------------------------------------------------------------------------

_MAX_CACHED_ENTRIES: Final = 256  # per record
_MAX_SMALL: Final = 0x80

#: One feature of a record: name; tag of its list if that is one field (packed numbers, or one bytes
#: value), else 0; start and end of the content of that field, or of the Feature if the tag is 0. A
#: plain tuple, since one is created for every value.
Entry: TypeAlias = "tuple[str, int, int, int]"


class EntryFinder:
    """Locates the features of records, with a cache of what precedes each value.

    Records of a dataset have the same names in the same order, and most sizes repeat. So the bytes
    before a value, from the map entry's tag to the value's size, are cached by the entry's number
    and size, and compared as a whole. Other entries are parsed.
    """

    def __init__(self) -> None:
        # By the entry's number, then by size: the bytes before the content, name and tag.
        self._heads: list[dict[int, tuple[bytes, str, int]]] = []

    def find(self, payload: bytes) -> list[Entry] | None:
        """Return the entries of a record in their order.

        Args:
            payload: The payload of one record.

        Returns:
            None if it is not an Example in the form that writers produce. The content of a Feature
            with tag 0 is not checked, nor whether packed numbers are complete.
        """
        try:
            at, end = _enter(payload, 0, len(payload), TAG_1) if payload else (0, 0)
            if end != len(payload):
                return None
            entries: list[Entry] = []
            heads = self._heads
            number = 0
            while at < end:
                known = heads[number].get(payload[at + 1]) if number < len(heads) else None
                if known is not None and payload.startswith(known[0], at):
                    head, name, tag = known
                    start, at = at + len(head), at + 2 + payload[at + 1]
                    entries.append((name, tag, start, at))
                else:
                    entry = self._read(payload, at, end, number)
                    if entry is None:
                        return None
                    entries.append(entry)
                    at = entry[3]
                number += 1
            if at != end:
                return None
        except (WireError, UnicodeDecodeError, IndexError):
            return None
        return entries

    def _read(self, payload: bytes, at: int, limit: int, number: int) -> Entry | None:
        entry, end = _enter(payload, at, limit, TAG_1)
        name_at, name_end = _enter(payload, entry, end, TAG_1)
        name = payload[name_at:name_end].decode()
        feature, feature_end = _enter(payload, name_end, end, TAG_2)
        if feature_end != end:
            return None
        tag = payload[feature] if feature < end else 0
        head = _head_of(tag, end - name_end) if tag in KIND_OF_TAG else None
        if head is None or not payload.startswith(head, name_end):
            return name, 0, feature, end
        start = name_end + len(head)
        if end - entry < _MAX_SMALL and number < _MAX_CACHED_ENTRIES and entry == at + 2:
            while number >= len(self._heads):
                self._heads.append({})
            self._heads[number][end - entry] = payload[at:start], name, tag
        return name, tag, start, end


@lru_cache(maxsize=1024)
def _head_of(tag: int, num_bytes: int) -> bytes | None:
    """Return the bytes of a Feature entry of ``num_bytes`` up to the size of its content."""
    kind = KIND_OF_TAG[tag]
    for head_bytes in (6, 7, 8, 9, *range(10, 19)):  # three sizes of 1 to 5 bytes
        size = num_bytes - head_bytes
        if size < (0 if kind == "bytes" else 1):
            return None
        head = blob_head(size) if kind == "bytes" else packed_head(kind, size)
        if len(head) == head_bytes:
            return head
    return None


def _enter(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Return the same as `_enter_plain`; raises IndexError at the end of ``data``."""
    if data[at] != tag:
        raise WireError("another field", offset=at)
    size = data[at + 1]
    at += 2
    if size >= _MAX_SMALL:
        size, at = read_varint(data, at - 1, end)
    if at + size > end:
        raise WireError("a field extends past the end of its message", offset=at)
    return at, at + size
