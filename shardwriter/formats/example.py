"""Encode a ``tf.train.Example`` from numpy and Python values, without TensorFlow.

The bytes are those of protobuf (upb) with ``SerializeToString(deterministic=True)``. An Example
is::

    0a <size>                                   the Features: a map from names to Features
       0a <size> 0a <size> <name> 12 <size> <Feature>        in the order of :func:`sort_names`
       ...

`feature_values` encodes the values, `example_wire` decodes Examples, and `example_columns` does
both for batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from shardwriter.errors import FeatureError
from shardwriter.formats.feature_values import ENCODERS, PRECISION, Kind, encode_any
from shardwriter.formats.varint import encode_varint


def encode_example(
    features: Mapping[str, Any],
    kinds: Mapping[str, Kind] | None = None,
    lost: list[str] | None = None,
) -> bytes:
    """Return one ``tf.train.Example``, byte for byte as protobuf writes it.

    bool and int become int64; float becomes float32; str (as UTF-8), bytes, bytearray and
    memoryview become bytes. Lists and tuples have values of one of these kinds; rectangular
    nested lists of numbers are flattened. The dtype of an array decides its kind; arrays are
    written in C order. None omits the feature; `UNSET` and an empty list write a Feature with no
    kind.

    Args:
        features: The values by name.
        kinds: Declared kinds by name; for other features the value decides. A declared float also
            accepts ints; a declared int64 accepts no float; an empty list is written as an empty
            list of the declared kind.
        lost: A list to which the names of features are added whose numbers are inexact in float32.

    Returns:
        The payload of one record.

    Raises:
        FeatureError: A name or value can not be stored in an Example; ``feature`` is its name.
    """
    parts: list[bytes | memoryview] = [b""]
    append = parts.append
    size = 0
    key: str | None = None
    try:
        for key, heads in _schema(features):
            value = features[key]
            if value is None:
                continue
            kind = kinds.get(key) if kinds else None
            encode = ENCODERS[kind].get(type(value))
            encoded = encode(value) if encode is not None else encode_any(value, kind)
            if lost is not None and PRECISION.has_lost:
                PRECISION.has_lost = False
                lost.append(key)
            if isinstance(encoded, bytes):
                head = heads[len(encoded)]
                append(head)
                append(encoded)
                size += len(head) + len(encoded)
            else:
                num_bytes, buffers = encoded
                head = heads[num_bytes]
                append(head)
                parts += buffers
                size += len(head) + num_bytes
    except FeatureError as error:
        error.feature = key if error.feature is None else error.feature
        raise
    parts[0] = b"\x0a" + encode_varint(size)
    return b"".join(parts)


class EntryHeads(dict[int, bytes]):
    """A cache of the bytes before the value of a map entry: ``0a <size> <key>``, by value size."""

    # Sizes of scalars, short strings and arrays of one shape repeat; those of images do not, and
    # must not fill memory.
    _MAX_CACHED: Final = 256

    def __init__(self, name: str) -> None:
        super().__init__()
        self._key = b"\x0a" + encode_varint(len(name.encode())) + name.encode()

    def __missing__(self, size: int) -> bytes:
        head = b"\x0a" + encode_varint(len(self._key) + size) + self._key
        if len(self) < self._MAX_CACHED:
            self[size] = head
        return head


Schema: TypeAlias = "tuple[tuple[str, EntryHeads], ...]"

# Records of one dataset have the same names, so what depends on names alone is cached. Both caches
# are small and are cleared when full, for data whose names never repeat.
_MAX_SCHEMAS: Final = 64
_MAX_NAMES: Final = 1024
_schemas: Final[dict[tuple[Any, ...], Schema]] = {}
_entry_heads: Final[dict[str, EntryHeads]] = {}


def sort_names(names: Mapping[str, Any]) -> list[str]:
    """Return feature names in the order of a record, after checking them.

    Raises:
        FeatureError: A name is not a str, or not valid Unicode.
    """
    try:
        # upb's order: a name that starts with another one precedes it. No UTF-8 byte is 0xff.
        return sorted(names, key=lambda name: name.encode() + b"\xff")
    except UnicodeEncodeError as error:
        raise FeatureError(
            f"a feature name has a lone surrogate: {error.object!r}",
            hint="rename the feature: names are UTF-8",
        ) from None
    except (AttributeError, TypeError):
        pass
    wrong = [name for name in names if not isinstance(name, str)]
    raise FeatureError(f"a feature name is not a str: {wrong[:1]}", hint="use str(name)")


def _schema(features: Mapping[str, Any]) -> Schema:
    names = tuple(features)
    schema = _schemas.get(names)
    if schema is None:
        schema = tuple((name, _heads_of(name)) for name in sort_names(features))
        if len(names) <= _MAX_NAMES:
            if len(_schemas) >= _MAX_SCHEMAS:
                _schemas.clear()
            _schemas[names] = schema
    return schema


def _heads_of(name: str) -> EntryHeads:
    heads = _entry_heads.get(name)
    if heads is None:
        if len(_entry_heads) >= _MAX_NAMES:
            _entry_heads.clear()
        heads = _entry_heads[name] = EntryHeads(name)
    return heads
