"""Name the parts of items that are not mappings.

Named tuples and dataclasses have names; for tuples and lists the user gives them (``--names``).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from shardwriter.errors import FeatureError, OptionError


def check_names(names: object) -> None:
    """Check the option ``names``.

    Raises:
        OptionError: It is not a tuple of distinct, non-empty strings.
    """
    if not isinstance(names, tuple) or not names:
        raise OptionError(
            f"names is {names!r}", hint="give the names of an item's parts in order: image,label"
        )
    for name in names:
        if not isinstance(name, str) or not name:
            raise OptionError(f"names has {name!r}, which is not a feature name")
        if names.count(name) > 1:
            raise OptionError(f"names has {name!r} twice")


def part_names(names: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Return the names of ``--names``, a sequence or comma-separated text; None for none."""
    if not names:
        return None
    return tuple(names.split(",") if isinstance(names, str) else names)


def named_parts(item: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the parts of a tuple or list by the names from the user.

    Any other item is one part.

    Raises:
        FeatureError: The number of names is not that of the parts, or the item has field names.
    """
    if isinstance(item, Mapping) or _is_record(item):
        raise FeatureError(
            f"the item is of type {type(item).__name__}, whose features have names already",
            hint="omit --names",
        )
    parts = item if isinstance(item, (tuple, list)) else (item,)
    if len(parts) != len(names):
        what = f"{len(parts)} part{'s' if len(parts) != 1 else ''}"
        raise FeatureError(
            f"the item has {what}, but there are {len(names)} names: {', '.join(names)}",
            hint="give one name per part with --names",
        )
    return dict(zip(names, parts, strict=True))


def own_fields(item: Any) -> dict[str, Any] | None:
    """Return the fields of a named tuple or a dataclass by name; None for any other item."""
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return dict(zip(item._fields, item, strict=True))
    if _is_record(item):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return None


def with_fields(item: Any, changed: Mapping[str, Any]) -> Any:
    """Return a copy of a named tuple or a dataclass with some fields replaced."""
    if isinstance(item, tuple):
        return cast(Any, item)._replace(**changed)
    copied = copy.copy(item)  # does not call __init__, which may have side effects
    for name, value in changed.items():
        object.__setattr__(copied, name, value)  # also works for frozen dataclasses
    return copied


def _is_record(item: Any) -> bool:
    return dataclasses.is_dataclass(item) and not isinstance(item, type)
