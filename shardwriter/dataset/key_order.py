"""The order "blake2b-key/1": items sorted by a salted hash of their keys.

An item's key is bytes (:func:`key_bytes`): text in UTF-8, bytes unchanged, an integer as its
decimal text. So 7 and ``"7"`` are one key. Its hash is BLAKE2b of the key with

- ``digest_size`` 8, read as u64, little-endian;
- ``key``: the seed (the salt) as u64, little-endian: 8 bytes, also for seed 0;
- ``person``: ``shardwriter.ordr``.

Items are in ascending order of (hash, key); keys compare as bytes. Two items with the same key are
an error. The position of an item depends only on the set of keys and the seed, not on source order,
so processes that each see some of the items compute the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, SourceError
from shardwriter.formats import (
    UNSET,
    SequenceExample,
    decode_example,
    decode_sequence_example,
    payload_kind,
)
from shardwriter.schema import own_fields

ALGORITHM: Final = "blake2b-key/1"

_PERSON: Final = b"shardwriter.ordr"
_U64: Final = 8
_SHOWN: Final = 80  # characters of a key in a message
_BLOCK: Final = 1 << 16


def key_bytes(key: object) -> bytes:
    """Return a key's bytes.

    Args:
        key: str (stored in UTF-8), bytes, or an integer of Python or numpy but not a bool (stored
            as decimal text). A list or numpy array of one such value counts as that value.

    Raises:
        FeatureError: It is anything else.
    """
    value = key
    if isinstance(key, np.ndarray) and key.size == 1:
        value = key.item()
    elif isinstance(key, list) and len(key) == 1:
        value = key[0]
    if isinstance(value, bytes):
        return bytes(value)
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        if is_integer:
            return str(int(value)).encode("ascii")  # type: ignore[call-overload]
    except ValueError as error:  # a lone surrogate, or a number of thousands of digits
        raise FeatureError(f"the value can not be a key: {error}") from None
    raise FeatureError(
        f"{_describe(key)} can not be a key",
        hint="give one text, bytes or integer as the key",
    )


def _describe(key: object) -> str:
    name = type(key).__name__
    if isinstance(key, np.ndarray):
        return f"an array {list(key.shape)} of {key.dtype}"
    if isinstance(key, list):
        return f"a list of a {type(key[0]).__name__}" if len(key) == 1 else f"a list of {len(key)}"
    return f"a {name}"


def key_of(item: Any, feature: str) -> bytes:
    """Return the key of an item, from one of its features.

    Args:
        item: A mapping of features, a named tuple or a dataclass; a SequenceExample, whose context
            has the keys; or bytes, an encoded record.
        feature: Name of the feature.

    Raises:
        FeatureError: The feature or its value is missing, or the value can not be a key.
        SourceError: The record is not an Example or SequenceExample.
        WireError: The record is malformed.
    """
    features: Mapping[str, Any] | None
    if isinstance(item, bytes):
        features = _record_features(item)
    elif isinstance(item, SequenceExample):
        features = item.context
    elif isinstance(item, Mapping):
        features = item
    else:
        features = own_fields(item)
    if features is None:
        raise FeatureError(
            f"the item is of type {type(item).__name__}, not a mapping of features",
            hint="--key needs items with named features; keys are read before the map runs",
        )
    return value_key(features.get(feature), feature)


def _record_features(record: bytes) -> Mapping[str, Any]:
    kind = payload_kind(record)
    if kind == "SequenceExample":
        return decode_sequence_example(record).context
    if kind != "Example":
        raise SourceError("the record is not a tf.train.Example, so it has no feature for a key")
    return decode_example(record)


def value_key(value: object, feature: str) -> bytes:
    """Return the key from the value of a feature.

    Raises:
        FeatureError: The value is None or UNSET, or can not be a key.
    """
    if value is None or value is UNSET:
        raise FeatureError("the item has no key", feature=feature)
    try:
        return key_bytes(value)
    except FeatureError as error:
        error.feature = feature
        raise


def key_hash(key: bytes, seed: int) -> int:
    """Return the u64 by which a key is ordered.

    Args:
        key: The key.
        seed: The salt, 0 <= seed < 2^64.
    """
    digest = blake2b(
        key, digest_size=_U64, key=seed.to_bytes(_U64, "little"), person=_PERSON
    ).digest()
    return int.from_bytes(digest, "little")


def key_hashes(keys: Iterable[bytes], seed: int) -> NDArray[np.uint64]:
    """Return uint64[n]: the hashes of n keys."""
    salt = seed.to_bytes(_U64, "little")
    empty = blake2b(digest_size=_U64, key=salt, person=_PERSON)
    digests = []
    for key in keys:
        hasher = empty.copy()
        hasher.update(key)
        digests.append(hasher.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def positions_by_key(
    hashes: NDArray[np.uint64],
    key_at: Callable[[int], bytes],
    duplicate_error: Callable[[bytes, int, int], Exception],
) -> NDArray[np.int64]:
    """Return int64[n]: the items in key order.

    Args:
        hashes: uint64[n]: the key hash of each item.
        key_at: Returns an item's key; called only for items with equal hashes.
        duplicate_error: Returns the error for a key and the two items that have it.

    Raises:
        Exception: The ``duplicate_error`` of two items with the same key.
    """
    order = np.argsort(hashes, kind="stable")
    for first, stop in _runs(hashes, order):
        items: dict[bytes, int] = {}
        for item in map(int, order[first:stop]):
            key = key_at(item)
            if key in items:
                raise duplicate_error(key, items[key], item)
            items[key] = item
        order[first:stop] = [items[key] for key in sorted(items)]
    return order


def _runs(hashes: NDArray[np.uint64], order: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield [first, stop) of each run of equal hashes in sorted order."""
    first = stop = 0
    for start in range(0, len(order) - 1, _BLOCK):
        block = hashes[order[start : start + _BLOCK + 1]]
        for position in (np.flatnonzero(block[1:] == block[:-1]) + start).tolist():
            if position + 1 != stop:
                if stop:
                    yield first, stop
                first = position
            stop = position + 2
    if stop:
        yield first, stop


def equal_keys(
    key: bytes, named: tuple[str, str] | None = None, feature: str | None = None
) -> SourceError:
    """Return the error for two items with the same key.

    Args:
        key: The key.
        named: The names of the items, if they have any.
        feature: The feature with the key; None for the source's names of items.
    """
    try:
        shown = repr(key.decode("utf-8"))
    except UnicodeDecodeError:
        shown = repr(key)
    if len(shown) > _SHOWN:
        shown = f"{shown[: _SHOWN - 3]}..."
    names = "" if named is None else f", {named[0]} and {named[1]}"
    return SourceError(
        f"two items have the key {shown}{names}, so their order is undefined",
        feature=feature,
        hint="give a feature that is unique for each item: --key FEATURE",
    )
