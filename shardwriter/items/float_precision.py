"""The warning that a number is stored as another one, as a float feature holds float32."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shardwriter.codec.example_columns import Column
from shardwriter.codec.feature_values import Unset
from shardwriter.codec.float32 import lost_place
from shardwriter.codec.raw_array import RawArray
from shardwriter.errors import DataWarning, FeatureError
from shardwriter.features.feature_types import Steps
from shardwriter.images.encoded import EncodedImage

CODE: Final = "float-precision"

_NO_NUMBERS: Final = (str, bytes, bytearray, memoryview, RawArray, EncodedImage, Unset, type(None))


def lost_number(value: Any, *, is_planned: bool) -> float | int | None:
    """Return the first number in a value that is lost; see :mod:`shardwriter.codec.float32`.

    Args:
        value: Of a feature, as it was encoded.
        is_planned: Whether a plan says that integers are floats here.
    """
    if isinstance(value, Steps):
        numbers = (lost_number(step, is_planned=False) for step in value.steps)
        return next((number for number in numbers if number is not None), None)
    leaf = value
    while isinstance(leaf, list | tuple) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, _NO_NUMBERS) or (isinstance(leaf, int) and not is_planned):
        return None
    array = np.asarray(value)
    if array.dtype == object:  # integers that 64 bits do not hold
        array = array.astype(np.float64)
    if array.dtype.kind == "f":
        array = array.astype(np.float64, copy=False)  # longdouble too
    elif not (is_planned and array.dtype.kind in "iu"):
        return None
    place = lost_place(array)
    return None if place is None else array.reshape(-1)[place : place + 1].tolist()[0]


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
    feature: str, index: int, number: float | int, *, can_declare: bool = True
) -> DataWarning:
    """Return the warning that a number is stored as another one.

    Args:
        feature: Its name.
        index: Of the item.
        number: As it is given.
        can_declare: Whether a schema can give the feature another type.
    """
    stored = _stored_as(number)
    return DataWarning(
        CODE,
        f"feature {feature!r}: {number!r} (item {index:,}) is stored as {stored!r}: float32 holds "
        "about 7 digits",
        hint=_hint_for(feature, can_declare=can_declare),
        feature=feature,
        index=index,
        value=repr(number),
        stored=repr(stored),
    )


def precision_error(feature: str, number: float | int, *, can_declare: bool = True) -> FeatureError:
    """Return the error that the warning is with ``strict``; where it is, whoever has the item says.

    Args:
        feature: Its name.
        number: As it is given.
        can_declare: Whether a schema can give the feature another type.
    """
    return FeatureError(
        f"{number!r} would be stored as {_stored_as(number)!r}: float32 holds about 7 digits",
        feature=feature,
        hint=_hint_for(feature, can_declare=can_declare),
    )


def _stored_as(number: float | int) -> float:
    with np.errstate(under="ignore"):
        return float(np.float32(number))


def _hint_for(feature: str, *, can_declare: bool) -> str:
    if can_declare:
        return (
            f"--schema {feature}=float64 keeps every digit (8 bytes a value); int64 suits whole "
            "numbers"
        )
    return "give sw.raw(array) in place of it: its bytes keep every digit; int suits whole numbers"
