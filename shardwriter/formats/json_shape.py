"""Parse untrusted JSON and check it against a declared shape.

A file beside the data may come from another version, another tool or an attacker. Each reader
declares the shape that it relies on (a ``TypedDict``, a tuple, a union) and calls :func:`read` or
:func:`check`. Keys that a shape does not name are allowed and preserved.

    class Lock(TypedDict):
        host: str
        pid: Count
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar, cast

import msgspec

from shardwriter.formats import canonical

Shape = TypeVar("Shape")

MAX_DEPTH: Final = 64
"""Levels of nested objects and arrays that are allowed: more than any format here needs, and few
enough for recursive Python code."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of items, records or bytes that fits an int64."""

Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
"""A CRC as 8 hex digits."""


def read(text: str | bytes, shape: type[Shape]) -> Shape:
    """Return parsed JSON of a declared shape.

    Args:
        text: UTF-8 JSON.
        shape: The declared type.

    Returns:
        The value as plain dicts, lists, strings and numbers.

    Raises:
        ValueError: It is not JSON, repeats a key, nests too deeply, or has another shape. The
            message gives the JSON path: ``Expected `int`, got `str` - at `$.shards.records[3]```.
    """
    return check(canonical.loads(text), shape)


def check(value: Any, shape: type[Shape]) -> Shape:
    """Return a parsed value itself, after checking its shape.

    Raises:
        ValueError: It has another shape, or nests deeper than ``MAX_DEPTH``.
    """
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if exceeds_depth(value, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    return cast(Shape, value)


def exceeds_depth(value: Any, depth: int) -> bool:
    """Return whether objects and arrays of a parsed value nest deeper than ``depth`` levels."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if type(outer) in (dict, list)
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
        if not level:
            return False
    return True
