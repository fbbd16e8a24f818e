"""Checking what a caller gives against the declared type: ``overwrite="yes"`` is no bool.

Python takes any value for any argument, and most of them would do something: a text is true, and
``"4"`` fails only where it is first compared. The dataclasses of options declare what each may be,
and :func:`check_fields` holds them to it.
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
    """What numbers may be, inside of ``Annotated``.

    Attributes:
        start: The least.
        stop: More than the largest; None for no limit.
        is_open: Whether ``start`` itself is too small.
    """

    start: int
    stop: int | None = None
    is_open: bool = False

    def hold(self, value: float) -> bool:
        """Whether a number is between them; NaN is not."""
        is_above = value > self.start if self.is_open else value >= self.start
        return is_above and (self.stop is None or value < self.stop)


Count = Annotated[int, Bounds(0)]
"""A number of things."""
Positive = Annotated[int, Bounds(1)]
"""A number of things of which there is one."""
Seed = Annotated[int, Bounds(0, 2**64)]
"""What a random order is made of."""


def check_fields(options: Any) -> None:
    """Check all fields of a dataclass.

    Args:
        options: The instance; its class declares the types.

    Raises:
        OptionError: A value is of another type, or out of its bounds: names the field.
    """
    for name, hint in _hints(options.__class__).items():
        check_value(name, getattr(options, name), hint)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Check one value.

    Args:
        name: Of the option.
        value: What was given.
        hint: The declared type.

    Raises:
        OptionError: It is of another type, or out of its bounds.
    """
    if not _fits(value, hint):
        raise OptionError(f"{name} is {value!r:.80}", hint=f"give {_said(hint)}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Annotated:
        base, *bounds = get_args(hint)
        return _fits(value, base) and all(each.hold(value) for each in bounds)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    kind = origin or hint
    if kind is int:
        return type(value) is int  # a bool is an int too, and goes into the job's hash as another
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _said(hint: Any) -> str:
    """Return what a type takes, for a person."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_said, get_args(hint)))
    if origin is Annotated:
        base, *bounds = get_args(hint)
        return _said(base) + "".join(map(_bounds_said, bounds))
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


def _bounds_said(bounds: Bounds) -> str:
    least = f" above {bounds.start}" if bounds.is_open else f" from {bounds.start}"
    if bounds.stop is None:
        return least if bounds.is_open else f"{least} on"
    return f"{least} to {bounds.stop - 1:,}"
