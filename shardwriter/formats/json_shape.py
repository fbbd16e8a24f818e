"""JSON from outside, checked against a declared shape before anything in it is used.

A file beside the data may come from anywhere: another version, another tool, a hostile hand. Each
reader declares the shape that it relies on (a ``TypedDict``, a tuple, a union) and calls
:func:`read` or :func:`check`. Keys that a shape does not name are allowed, and kept.

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
"""How deep objects and arrays may nest: far more than any format here needs, and less than what
makes Python's own recursion fail later."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of things: items, records, bytes. It fits an int64."""

Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
"""A CRC, as 8 hex digits."""


def read(text: str | bytes, shape: type[Shape]) -> Shape:
    """Parse JSON and check its shape.

    Args:
        text: UTF-8 JSON.
        shape: The declared type.

    Returns:
        The value, as plain dicts, lists, strings and numbers.

    Raises:
        ValueError: It is no JSON, says a key twice, nests too deep, or has another shape. The
            message names the place: ``Expected `int`, got `str` - at `$.shards.records[3]```.
    """
    return check(canonical.loads(text), shape)


def check(value: Any, shape: type[Shape]) -> Shape:
    """Check the shape of a parsed value, and return the value itself.

    Raises:
        ValueError: It has another shape, or nests deeper than ``MAX_DEPTH``.
    """
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if exceeds_depth(value, MAX_DEPTH):
        raise ValueError(f"it nests more than {MAX_DEPTH} deep")
    return cast(Shape, value)


def exceeds_depth(value: Any, depth: int) -> bool:
    """Tell whether objects and arrays of a parsed value nest deeper than so many."""
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
