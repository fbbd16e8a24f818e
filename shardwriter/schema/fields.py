"""Items that are no mappings: which name each of their parts has.

Named tuples and dataclasses bring their names along; for tuples and lists the user gives them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from shardwriter.errors import FeatureError, OptionError


def check_names(names: object) -> None:
    """Refuse what is no list of names.

    Raises:
        OptionError: Says why.
    """
    if not isinstance(names, tuple) or not names:
        raise OptionError(f"names is {names!r}: it is the names of an item's parts, in order")
    for name in names:
        if not isinstance(name, str) or not name:
            raise OptionError(f"names has {name!r}, which is no name of a feature")
        if names.count(name) > 1:
            raise OptionError(f"names has {name!r} twice")


def part_names(names: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Return the names that a person gives, as a sequence or as text; None where there are none."""
    if not names:
        return None
    return tuple(names.split(",") if isinstance(names, str) else names)


def named_parts(item: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the parts of a tuple or list by the names that the user gave.

    Anything else is one part.

    Raises:
        FeatureError: There are more names than parts, or fewer; or the item has names of its own.
    """
    if isinstance(item, Mapping) or _is_record(item):
        raise FeatureError(
            f"the item is of type {type(item).__name__}, whose features have names",
            hint="leave the names (--names) off",
        )
    parts = item if isinstance(item, (tuple, list)) else (item,)
    if len(parts) != len(names):
        what = f"{len(parts)} part{'s' if len(parts) != 1 else ''}"
        raise FeatureError(
            f"the item has {what}, and there are {len(names)} names: {', '.join(names)}",
            hint="give a name for each part of every item (--names)",
        )
    return dict(zip(names, parts, strict=True))


def own_fields(item: Any) -> dict[str, Any] | None:
    """Return the parts of a named tuple or a dataclass by their names; None of anything else."""
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return dict(zip(item._fields, item, strict=True))
    if _is_record(item):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return None


def with_fields(item: Any, changed: Mapping[str, Any]) -> Any:
    """Return a named tuple or a dataclass like an item, but for some parts; the item stays."""
    if isinstance(item, tuple):
        return cast(Any, item)._replace(**changed)
    copied = copy.copy(item)  # not made anew: that is the class's own affair
    for name, value in changed.items():
        object.__setattr__(copied, name, value)  # a frozen one too
    return copied


def _is_record(item: Any) -> bool:
    return dataclasses.is_dataclass(item) and not isinstance(item, type)
