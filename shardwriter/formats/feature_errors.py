"""Why a value has no place in a Feature, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from shardwriter.errors import FeatureError

Kind: TypeAlias = Literal["bytes", "float", "int64"]


def leaf_kind(leaf_type: type) -> Kind | None:
    """Say which kind single values of a type have (F9); None for no kind."""
    if issubclass(leaf_type, str | bytes | bytearray | memoryview):
        return "bytes"
    if issubclass(leaf_type, int | np.bool_) or issubclass(leaf_type, np.integer):
        return None if issubclass(leaf_type, np.timedelta64) else "int64"
    return "float" if issubclass(leaf_type, float | np.floating) else None


def no_place(value: Any, kind: Kind | None, *, inside: bool = False) -> FeatureError:
    """Refuse a value because of its type, or because the plan says another kind."""
    where = "a list holds " if inside else ""
    if kind is not None and leaf_kind(type(value)) is not None:
        return FeatureError(f"{where}{type_name(value)}, and the plan says {kind}")
    if any(each.__module__.startswith("PIL.") for each in type(value).__mro__):
        return FeatureError(
            f"{where}{type_name(value)}, and a Feature holds bytes, not a picture",
            hint="sw.png(image) and sw.jpeg(image) make files of it; np.asarray(image) its pixels",
        )
    hints = {
        "set": "sort it into a list",
        "dict": "make each of its values a feature of its own",
        "NoneType": "leave it out of the list, or fill it with a value",
    }
    hint = hints.get(
        type(value).__name__,
        "give a bool, int, float, str, bytes, a flat list of one of these, or a numpy array",
    )
    if type(value).__module__.partition(".")[0] == "PIL":
        hint = (
            "a map makes a file of it (sw.png(image), sw.jpeg(image)) or an array "
            "(numpy.asarray(image))"
        )
    return FeatureError(f"{where}{type_name(value)}, which has no place in a Feature", hint=hint)


def no_place_for_dtype(dtype: np.dtype[Any], kind: Kind | None) -> FeatureError:
    """Refuse an array because of its dtype."""
    if kind is not None and dtype.kind in "fiubUS":
        hint = "give array.tobytes()" if kind == "bytes" else None
        return FeatureError(f"numpy {dtype.name} values, and the plan says {kind}", hint=hint)
    hints = {
        "S": "numpy drops trailing NULs from these: give a list of bytes, or plan it as bytes",
        "O": "give a list of str or bytes, or an array of numbers",
        "M": "give .astype('int64') of a stated unit, or a str",
        "m": "give .astype('int64') of a stated unit",
        "c": "give the real and the imaginary part as two features",
    }
    return FeatureError(
        f"numpy {dtype.name} values, which have no place in a Feature",
        hint=hints.get(dtype.kind, "convert it, for example .astype('float32')"),
    )


def mixed_numbers(kind: Kind | None) -> FeatureError:
    """Refuse int and float in one list."""
    if kind == "int64":
        return FeatureError("a list holds a float, and the plan says int64")
    return FeatureError(
        "a list mixes int and float",
        hint="make all of them float, or plan the feature as float",
    )


def overflow(value: Any) -> FeatureError:
    """Refuse a finite number that float32 would turn into infinity."""
    return FeatureError(
        f"a finite number is too large for float32 (over 3.4e38): {_short(value)}",
        hint="clip or scale it, or store it as bytes",
    )


def out_of_int64(value: int) -> FeatureError:
    """Refuse an integer that int64 can not hold."""
    return FeatureError(
        f"an integer is outside int64: {_short(value)}",
        hint="store it as a str or bytes, or take it modulo 2**64 as a signed number",
    )


def ragged(what: str) -> FeatureError:
    """Refuse nested lists that are not rectangular."""
    return FeatureError(
        f"a nested list is not rectangular: {what}",
        hint="pad the rows, or store the flat values and the row lengths as two features",
    )


def type_name(value: Any) -> str:
    """Name the type of a value, with its module."""
    module, name = type(value).__module__, type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def _short(value: Any) -> str:
    # A huge int has no decimal text by default (sys.set_int_max_str_digits).
    if isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length()} bits"
    return str(value)


def list_up(things: Sequence[Any]) -> str:
    """List things up, the first few of them."""
    texts = [str(thing) for thing in things[:4]]
    return " and ".join(texts) if len(things) <= 4 else ", ".join(texts) + ", ..."
