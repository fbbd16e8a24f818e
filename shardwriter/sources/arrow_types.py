"""Types of Arrow columns, and the types of features that they become by the schema.

========================  ======================================================================
bool, integers            int64
half, float, double       float
string, binary            bytes
dictionary                what its values are
lists of these            a list; nested lists with a shape, if they are rectangular
struct<bytes, path>       the bytes: an image or sound as Hugging Face ``datasets`` keeps it
fixed shape tensor        an array of its shape; one that permutes its dimensions is an error
null, wherever            a feature without a kind
anything else             an error that names the column, unless a map makes a feature of it
========================  ======================================================================

Times and decimals are stored as what ``--schema`` says of them: ``int64:ms`` (or another unit), or
``string``, which is what Arrow writes: ``2024-01-02 03:04:05.123456``, ``2024-01-02``, ``1.10``. A
cast that would lose something is an error.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from shardwriter.schema.feature_types import FeatureType, float_dtype


def tensor_shape(arrow_type: Any) -> tuple[int, ...] | None:
    """Return the shape of a column of tensors of one shape; None of any other column.

    Raises:
        ValueError: Its dimensions do not lie in the order of the shape.
    """
    import pyarrow as pa

    if not isinstance(arrow_type, pa.FixedShapeTensorType):
        return None
    shape = tuple(arrow_type.shape)
    if arrow_type.permutation not in (None, list(range(len(shape)))):
        raise ValueError(f"tensors whose dimensions are permuted: {arrow_type.permutation}")
    return shape


def plain_type(arrow_type: Any) -> Any:
    """Return what a type is stored as, and of a dictionary the type of its values."""
    import pyarrow as pa

    while True:
        if isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        elif pa.types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        else:
            return arrow_type


def is_list(arrow_type: Any) -> bool:
    """Tell whether a plain type is lists."""
    import pyarrow.types as pt

    return any(is_it(arrow_type) for is_it in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))


def leaf_of(arrow_type: Any) -> Any:
    """Return the type of what lies in a column's lists, at any depth; else of its values."""
    leaf = plain_type(arrow_type)
    while is_list(leaf):
        leaf = plain_type(leaf.value_type)
    return leaf


def plain(column: Any) -> Any:
    """Return a column as it is stored, and of a dictionary its values."""
    import pyarrow as pa

    while True:
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        elif pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        else:
            return column


def leaf_type(leaf: Any) -> FeatureType | None:
    """Return the type of a feature of single values; None where there is none."""
    import pyarrow.types as pt

    if pt.is_null(leaf):
        return FeatureType()
    if pt.is_boolean(leaf) or pt.is_integer(leaf):
        return FeatureType("int64", dtype_of(leaf).name)
    if pt.is_floating(leaf):
        return FeatureType("float", float_dtype(dtype_of(leaf).name))
    name = re.sub(r"\[\d+\]|large_|_view", "", str(leaf))
    if name == "string":
        return FeatureType("bytes", "string")
    if name in ("binary", "fixed_size_binary"):
        return FeatureType("bytes", "bytes")
    return None


def storable(arrow_type: Any) -> list[str]:
    """Return the types for ``--schema`` that a column can be stored as that has none by itself."""
    import pyarrow.types as pt

    if pt.is_date(arrow_type):
        return ["int64:days", "string"]
    if pt.is_timestamp(arrow_type) or pt.is_time(arrow_type):
        return [f"int64:{arrow_type.unit}", "string"]
    if pt.is_duration(arrow_type):
        return [f"int64:{arrow_type.unit}"]
    return ["string", "float"] if pt.is_decimal(arrow_type) else []


def time_casts(arrow_type: Any, unit: str) -> list[Any]:
    """Return the types that a column of times goes through to become integers of a unit.

    Raises:
        ValueError: It is no column of times that have such a unit.
    """
    import pyarrow as pa

    pt = pa.types
    casts: list[Any] = []
    if pt.is_date(arrow_type) and unit == "days":
        casts = [pa.date32(), pa.int32()]
    elif unit == "days":
        pass
    elif pt.is_timestamp(arrow_type) or pt.is_date(arrow_type):
        casts = [pa.timestamp(unit, getattr(arrow_type, "tz", None))]
    elif pt.is_duration(arrow_type):
        casts = [pa.duration(unit)]
    elif pt.is_time(arrow_type):
        short = unit in ("s", "ms")
        casts = [pa.time32(unit), pa.int32()] if short else [pa.time64(unit)]
    if not casts:
        raise ValueError(f"a column of {arrow_type} can not be stored in {unit}")
    return [*casts, pa.int64()]


def dtype_of(arrow_type: Any) -> np.dtype[Any]:
    """Return numpy's type of a type of numbers."""
    # Arrow's own function for this wants pandas.
    name = str(arrow_type)
    return np.dtype(
        {"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name)
    )
