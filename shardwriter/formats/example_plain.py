"""Examples in the form that writers write, read one by one, in one pass.

A record is plain when each of its bytes belongs to a known field and no name comes twice: then it
is surely an Example. `example_wire` reads all others.
"""

from __future__ import annotations

import numpy as np

from shardwriter.errors import WireError
from shardwriter.formats.example_wire import (
    KIND_OF_TAG,
    TAG_1,
    TAG_2,
    Values,
    check_packed,
    decode_feature,
    is_feature,
    unpack,
)
from shardwriter.formats.varint import read_varint


def decode_plain_example(payload: bytes) -> dict[str, Values | None] | None:
    """Read an Example each byte of which belongs to a known field, and whose names differ.

    That is what writers write, and surely an Example; it takes one pass, where `payload_kind` and
    `decode_example` take two. Fields in unusual pieces are left to those.

    Args:
        payload: The payload of one record.

    Returns:
        What `decode_example` gives; None for anything else, right or wrong.
    """
    try:
        at, stop = _enter(payload, 0, len(payload), TAG_1)
        if stop != len(payload):
            return None
        features: dict[str, Values | None] = {}
        while at < stop:
            entry, at = _enter(payload, at, stop, TAG_1)
            name_at, name_end = _enter(payload, entry, at, TAG_1)
            feature, feature_end = _enter(payload, name_end, at, TAG_2)
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
    """Read the Feature in ``data[start:end]`` if it is one list of nothing but known fields.

    Returns:
        The values, in memory of their own; None for no kind, and for anything else.
    """
    try:
        tag = data[start] if start < end else 0
        kind = KIND_OF_TAG.get(tag)
        at, stop = _enter(data, start, end, tag)
        if kind is None or stop != end:
            return None
        if kind != "bytes":
            if at == end:
                return np.empty(0, np.float32) if kind == "float" else np.empty(0, np.int64)
            if data[at] == TAG_1:
                at, stop = _enter(data, at, end, TAG_1)
                if stop == end:
                    check_packed(data, at, end, kind)
                    return unpack(data[at:end], kind, at)
            return decode_feature(data, start, end) if is_feature(data, start, end) else None
        items = []
        while at < end:
            item, at = _enter(data, at, end, TAG_1)
            items.append(data[item:at])
    except WireError:
        return None
    return items


def _enter(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Read ``<tag> <size>`` in ``data[at:end]``: where the content starts and ends."""
    if at + 1 >= end or data[at] != tag:
        raise WireError("another field", offset=at)
    size = data[at + 1]
    at += 2
    if size >= 0x80:
        size, at = read_varint(data, at - 1, end)
    if at + size > end:
        raise WireError("a field reaches over the end of its message", offset=at)
    return at, at + size
