"""The warning that a number is stored as another one, as a float type does not hold it."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from shardwriter.errors import DataWarning, FeatureError
from shardwriter.formats.encoded import EncodedImage
from shardwriter.formats.example_columns import Column
from shardwriter.formats.feature_values import Unset
from shardwriter.formats.float32 import BITS, lost_place
from shardwriter.formats.raw_array import RawArray, dtype_named
from shardwriter.schema.feature_types import Steps

CODE: Final = "float-precision"

_NO_NUMBERS: Final = (str, bytes, bytearray, memoryview, RawArray, EncodedImage, Unset, type(None))


def lost_number(value: Any, *, is_planned: bool, dtype: str = "float32") -> float | int | None:
    """Return the first number in a value that is lost; see :mod:`shardwriter.formats.float32`.

    Args:
        value: Of a feature, as it was given.
        is_planned: Whether a plan says that integers are floats here.
        dtype: What it is stored as.
    """
    if isinstance(value, Steps):
        numbers = (lost_number(step, is_planned=False) for step in value.steps)
        return next((number for number in numbers if number is not None), None)
    leaf = value
    while isinstance(leaf, list | tuple) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, _NO_NUMBERS) or (isinstance(leaf, int) and not is_planned):
        return None
    # numpy would make floats of integers that stand beside floats, or beside larger ones.
    array = np.array(value, object) if isinstance(value, list | tuple) else np.asarray(value)
    if array.dtype.kind not in ("fiuO" if is_planned else "fO"):
        return None
    place = lost_place(array, dtype)
    if place is None:
        return None
    number = array.reshape(-1)[place]
    is_whole = isinstance(number, int | np.integer)
    return int(number) if is_whole else float(number)  # float: longdouble too


def lost_in_column(column: Column) -> tuple[int, float | int] | None:
    """Return the first row of a planned column of floats that has a lost number, and that."""
    values, unset = column
    for row, value in enumerate(values):
        if unset is None or not unset[row]:
            number = lost_number(value, is_planned=True)
            if number is not None:
                return row, number
    return None


def precision_warning(
    feature: str,
    index: int,
    number: float | int,
    *,
    dtype: str = "float32",
    can_declare: bool = True,
) -> DataWarning:
    """Return the warning that a number is stored as another one.

    Args:
        feature: Its name.
        index: Of the item.
        number: As it is given.
        dtype: What it is stored as.
        can_declare: Whether a schema can give the feature another type.
    """
    stored = _stored_as(number, dtype)
    return DataWarning(
        CODE,
        f"feature {feature!r}: {number!r} (item {index:,}) is stored as {stored!r}: "
        f"{_limit_of(dtype)}",
        hint=_hint_for(feature, number, can_declare=can_declare),
        feature=feature,
        index=index,
        value=repr(number),
        stored=repr(stored),
    )


def precision_error(
    feature: str, number: float | int, *, dtype: str = "float32", can_declare: bool = True
) -> FeatureError:
    """Return the error that the warning is with ``strict``; where it is, whoever has the item says.

    Args:
        feature: Its name.
        number: As it is given.
        dtype: What it would be stored as.
        can_declare: Whether a schema can give the feature another type.
    """
    return FeatureError(
        f"{number!r} would be stored as {_stored_as(number, dtype)!r}: {_limit_of(dtype)}",
        feature=feature,
        hint=_hint_for(feature, number, can_declare=can_declare),
    )


def _stored_as(number: float | int, dtype: str) -> float:
    with np.errstate(under="ignore"):
        return float(np.float64(number).astype(dtype_named(dtype)))


def _limit_of(dtype: str) -> str:
    return f"{dtype} holds about {round(BITS[dtype] * math.log10(2))} digits"


def _hint_for(feature: str, number: float | int, *, can_declare: bool) -> str:
    if can_declare and float(number) != number:  # a whole number that float64 does not hold
        whole = (
            f"--schema {feature}=int64 keeps whole numbers; " if -(2**63) <= number < 2**63 else ""
        )
        return (
            f"{whole}text keeps all digits (--schema {feature}=string in a table, str() in a map)"
        )
    if can_declare:
        return (
            f"--schema {feature}=float64 keeps every digit (8 bytes a value); int64 suits whole "
            "numbers"
        )
    return "give sw.raw(array) in place of it: its bytes keep every digit; int suits whole numbers"
