"""Columns of numpy as a batch of tensors, equal to what ``default_collate`` makes of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from shardwriter.errors import FeatureError
from shardwriter.schema.schema import FeatureSummary

IS_PAD: Final = "is_pad"
_NUMBERS: Final = "biufc"


def tensors(
    columns: Mapping[str, NDArray[Any] | Sequence[Any]], features: Mapping[str, FeatureSummary]
) -> dict[str, Any]:
    """Return a batch: a tensor for each feature whose shape is fixed, else a list.

    A feature of text or bytes is a list of them. One whose shape the schema says to vary is a list
    of tensors, in every batch. Where a record has no value, its place in the list has None.

    Args:
        columns: As `Dataset.columns` gives them; the arrays are taken over, not copied.
        features: The dataset's schema; may be empty.

    Raises:
        FeatureError: The shape of a feature differs between records, and no schema says that it
            may; a batch would be a tensor now and a list then.
    """
    return {name: _column(name, value, features.get(name)) for name, value in columns.items()}


def _column(name: str, column: Any, feature: FeatureSummary | None) -> Any:
    if isinstance(column, np.ndarray):
        if not is_number(column):
            return column.tolist()
        batch = _tensor(column)
        return list(batch.unbind()) if feature is not None and varies(feature) else batch
    values = [_tensor(value) if is_number(value) else value for value in column]
    if feature is None:
        shapes = {tuple(v.shape) for v in values if isinstance(v, torch.Tensor)}
        if len(shapes) > 1:
            raise _ragged(name, shapes)
    return values


def varies(feature: FeatureSummary) -> bool:
    """Say whether records have this feature in different shapes."""
    shape = feature.type.shape
    return shape is None or None in shape


def is_number(value: Any) -> bool:
    """Return whether a value is an array, or one value of it, that a tensor can hold."""
    if not isinstance(value, np.ndarray | np.generic):
        return False
    return value.dtype.kind in _NUMBERS or value.dtype.name == "bfloat16"


def _tensor(value: Any) -> torch.Tensor:
    array = np.asarray(value)
    if not array.flags.writeable or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    if array.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _ragged(name: str, shapes: set[tuple[int, ...]]) -> FeatureError:
    told = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
    return FeatureError(
        f"its shape differs between the records of a batch: {told}",
        hint="there is no manifest that says so: pad it in map=, give collate=, or batch_size=1",
        feature=name,
    )
