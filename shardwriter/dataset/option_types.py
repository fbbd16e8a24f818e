"""Check option values against declared types, so ``overwrite="yes"`` is an error.

Python accepts any value for an argument, and most would have some effect: a text is true, and
``"4"`` fails only at its first comparison. Dataclasses of options declare the type of each field,
and :func:`check_fields` checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shardwriter.errors import OptionError


@dataclass(frozen=True)
class Bounds:
    """The range of a number, for ``Annotated``.

    Attributes:
        start: The minimum.
        stop: The exclusive maximum; None for no limit.
        is_open: Whether ``start`` itself is excluded.
    """

    start: int
    stop: int | None = None
    is_open: bool = False

    def contain(self, value: float) -> bool:
        """Return whether a number is in the range; NaN is not."""
        is_above = value > self.start if self.is_open else value >= self.start
        return is_above and (self.stop is None or value < self.stop)


Count = Annotated[int, Bounds(0)]
"""A number of items, 0 or more."""
Positive = Annotated[int, Bounds(1)]
"""A number of items, 1 or more."""
Seed = Annotated[int, Bounds(0, 2**64)]
"""The seed of a random order."""


def check_fields(options: Any) -> None:
    """Check all fields of a dataclass.

    Args:
        options: The instance; its class declares the types.

    Raises:
        OptionError: A value has another type or is out of range; the message names the field.
    """
    for name, hint in _hints(options.__class__).items():
        check_value(name, getattr(options, name), hint)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Check one value.

    Args:
        name: Name of the option.
        value: The value.
        hint: The declared type.

    Raises:
        OptionError: The value has another type or is out of range.
    """
    if not _fits(value, hint):
        raise OptionError(f"{name} is {value!r:.80}", hint=f"give {_type_text(hint)}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Annotated:
        base, *bounds = get_args(hint)
        return _fits(value, base) and all(each.contain(value) for each in bounds)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    kind = origin or hint
    if kind is int:
        # A bool is an int too, but has another JSON form in the job's hash.
        return type(value) is int
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _type_text(hint: Any) -> str:
    """Return the values of a type as text for messages."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_type_text, get_args(hint)))
    if origin is Annotated:
        base, *bounds = get_args(hint)
        return _type_text(base) + "".join(map(_bounds_text, bounds))
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    kind = origin or hint
    known = {
        bool: "True or False",
        int: "a whole number",
        float: "a number",
        str: "a text",
        NoneType: "None",
        get_origin(Callable[..., Any]): "a function",
    }
    return known.get(kind, f"one of type {kind.__name__}")


def _bounds_text(bounds: Bounds) -> str:
    start = f" above {bounds.start}" if bounds.is_open else f" from {bounds.start}"
    if bounds.stop is None:
        return start if bounds.is_open else f"{start} on"
    return f"{start} to {bounds.stop - 1:,}"
