"""``<name>/shape``: where the shape of a value is that its number of values does not tell.

A feature of which two dimensions vary has its shape in each record, as an ``int64[rank]`` beside it
(FORMATS.md, F8). It is written by the declaration of such a shape, and taken away on reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, SchemaConflict
from shardwriter.schema.feature_types import FeatureType, Shape, needs_shape
from shardwriter.schema.schema_text import type_text

_SUFFIX: Final = "/shape"


def shape_feature(name: str) -> str:
    """Return the name of the feature that holds the shapes of another."""
    return name + _SUFFIX


def shape_feature_type(rank: int) -> FeatureType:
    """Return its type."""
    return FeatureType("int64", "int64", (rank,))


def shape_features(types: Mapping[str, FeatureType]) -> dict[str, FeatureType]:
    """Return the features that hold shapes, for all declared types that need one."""
    return {
        shape_feature(name): shape_feature_type(len(found.shape))
        for name, found in types.items()
        if found.shape is not None and needs_shape(found.shape)
    }


def shaped_by_others(types: Mapping[str, FeatureType]) -> dict[str, str]:
    """Return which features have their shapes elsewhere, with the names of those that hold them."""
    return {name: shape_feature(name) for name in types if _is_shaped_by_another(name, types)}


def _is_shaped_by_another(name: str, types: Mapping[str, FeatureType]) -> bool:
    shape, holder = types[name].shape, types.get(shape_feature(name))
    if holder is None or shape is None or not needs_shape(shape):
        return False
    return holder == shape_feature_type(len(shape))


def check_same_holders(
    feature: str,
    first: tuple[str, Mapping[str, FeatureType]],
    second: tuple[str, Mapping[str, FeatureType]],
) -> None:
    """Refuse values that have their shapes beside them among others that have not.

    One schema is for all of them, and the shapes of the one kind could not be told from it.

    Args:
        feature: Of both.
        first: What a person calls some records, and the types of all their features.
        second: The same of others.

    Raises:
        SchemaConflict: Only one of them has shapes beside the values.
    """
    (name, types), (other_name, other_types) = first, second
    is_beside = _is_shaped_by_another(feature, types)
    if is_beside is _is_shaped_by_another(feature, other_types):
        return
    if not is_beside:
        name, types, other_name, other_types = other_name, other_types, name, types
    if other_types[feature].kind is None:
        return  # it has no value, and so none without a shape
    raise SchemaConflict(
        f"each record of {name} has its shape in {shape_feature(feature)!r}, and no record of "
        f"{other_name}",
        hint=f"write {other_name} with --schema '{feature}={type_text(types[feature])}' too",
        feature=feature,
    )


def reshaped(name: str, flat: Any, sizes: Any, declared: Shape) -> Any:
    """Give the values of one record the shape that stands beside them.

    Args:
        name: Of the feature, for errors.
        flat: Its values, in a row; None where it is there without a kind.
        sizes: ``int64[rank]``; None where it is missing.
        declared: The schema's shape.

    Raises:
        FeatureError: The shape is missing, or does not go with the values or with the schema.
    """
    if flat is None:
        return None
    shape = None if sizes is None else tuple(np.asarray(sizes).reshape(-1).tolist())
    # Without values what is there may have dimensions of 0, in any order.
    values: NDArray[Any] = flat if isinstance(flat, np.ndarray) else np.array(flat, object)
    if shape is None or not _goes_with(shape, declared, values.size):
        raise FeatureError(
            f"{values.size:,} values here, and {shape_feature(name)!r} says "
            f"{'nothing' if shape is None else list(shape)}",
            hint="another program has changed one without the other",
            feature=name,
        )
    shaped = values.reshape(shape)
    return shaped if isinstance(flat, np.ndarray) else shaped.tolist()


def _goes_with(shape: Iterable[int], declared: Shape, num_values: int) -> bool:
    sizes = list(shape)
    if len(sizes) != len(declared) or any(size < 0 for size in sizes):
        return False
    fits = all(known in (None, size) for size, known in zip(sizes, declared, strict=True))
    return fits and int(np.prod(sizes, dtype=object)) == num_values
