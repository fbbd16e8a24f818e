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
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from shardwriter.features.feature_types import FeatureType, float_dtype


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


def dtype_of(arrow_type: Any) -> np.dtype[Any]:
    """Return numpy's type of a type of numbers."""
    # Arrow's own function for this wants pandas.
    name = str(arrow_type)
    return np.dtype(
        {"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name)
    )
