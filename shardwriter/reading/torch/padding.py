"""``pad=``: lists of different lengths as one array, padded to the longest of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, OptionError
from shardwriter.reading.torch.columns import is_number, varies

if TYPE_CHECKING:
    from shardwriter.reading.dataset import Dataset

Pad = float | Mapping[str, float]
"""A number for all features whose length varies; or one for each feature that is named."""

LENGTH: Final = "/length"
_TEXTS: Final = (None, "bytes", "string")


class Padding:
    """Pads the columns of a batch.

    Args:
        pad: What the caller says.
        data: Whose records they are.
        images: Features that were decoded to pixels.
        is_mapped: Whether a map makes other features of them: then ``pad`` names those.

    Raises:
        OptionError: It says no number, or names no feature of numbers.
    """

    def __init__(self, pad: Pad, data: Dataset, images: Sequence[str], *, is_mapped: bool) -> None:
        if not data.is_decoded or data.feature_lists is not None:
            raise OptionError("pad= is for decoded Examples", hint="pad in collate=")
        features = data.features
        self._images = frozenset(images)
        self._everywhere: float | None = None
        self.values: dict[str, float] = {}
        if isinstance(pad, Mapping):
            self.values = {name: _checked(f"pad of {name!r}", v) for name, v in pad.items()}
            if features and not is_mapped:
                _check_names(self.values, features)
        elif is_mapped:
            raise OptionError(
                f"pad is {pad!r}, and only the map knows which features vary",
                hint=f"name them: pad={{'tokens': {pad!r}}}",
            )
        elif features:
            value = _checked("pad", pad)
            numbers = [n for n, f in features.items() if f.type.dtype not in _TEXTS]
            names = {*images, *(n for n in numbers if varies(features[n]))}
            self.values = dict.fromkeys(sorted(names), value)
        else:
            self._everywhere = _checked("pad", pad)
        for name in self.values:
            if name + LENGTH in features:
                raise OptionError(
                    f"the dataset has a feature {name + LENGTH!r}, where the lengths would go",
                    hint=f"leave {name!r} out of pad=, or pad in map=",
                )

    def pad(self, columns: dict[str, Any]) -> set[str]:
        """Pad columns, and add ``NAME/length`` for each; return the names of both.

        Args:
            columns: Arrays, or lists of arrays and None, by feature; changed in place.
        """
        values = self.values
        if self._everywhere is not None:  # no schema says which features vary
            values = {n: self._everywhere for n, column in columns.items() if _has_lists(column)}
        added = set()
        for name, value in values.items():
            if name in columns:
                columns[name], columns[name + LENGTH] = _padded(
                    name, columns[name], value, is_image=name in self._images
                )
                added |= {name, name + LENGTH}
        return added


def _checked(what: str, value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise OptionError(
            f"{what} is {value!r}", hint="give a number, or a mapping from features to numbers"
        )
    return value


def _check_names(names: Mapping[str, float], features: Mapping[str, Any]) -> None:
    for name in names:
        if name not in features:
            near = get_close_matches(name, features, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(features)}"
            raise OptionError(f"pad names {name!r}, and there is no such feature", hint=hint)
        if features[name].type.dtype in _TEXTS and features[name].type.encoding != "image":
            raise OptionError(
                f"pad names {name!r}, which is {features[name].type.dtype}",
                hint="only numbers are padded; leave it out",
            )


def _has_lists(column: Any) -> bool:
    if isinstance(column, np.ndarray):
        return column.ndim > 1 and is_number(column)
    there = [value for value in column if value is not None]
    return bool(there) and all(is_number(value) for value in there)


def _padded(
    name: str, column: Any, value: float, *, is_image: bool
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return ``[b, longest, ...]``, and the lengths: ``int64[b]``, or ``int64[b, d]`` of d axes."""
    rows = [None if row is None else np.asarray(row) for row in column]
    there = [row for row in rows if row is not None]
    if not all(is_number(row) for row in there):
        raise FeatureError("only numbers are padded", feature=name, hint="leave it out of pad=")
    num_axes = max((row.ndim for row in there), default=1) or 1
    rows = [row.reshape(1) if row is not None and row.ndim == 0 else row for row in rows]
    shapes = [(0,) * num_axes if row is None else row.shape for row in rows]
    if any(len(shape) != num_axes for shape in shapes):
        raise FeatureError(
            "records have it with different numbers of axes", feature=name, hint="pad it in map="
        )
    if is_image and len({shape[2] for shape in shapes if shape[2]}) > 1:
        raise FeatureError(
            "records have it with different numbers of channels, which are not padded",
            feature=name,
            hint="give all images the same in map=",
        )
    dtype = np.result_type(*{row.dtype for row in there}) if there else np.dtype(np.int64)
    if not _holds(dtype, value):
        raise OptionError(f"pad of {name!r} is {value!r}, which {dtype} does not hold")
    lengths = np.array(shapes, np.int64).reshape(len(rows), num_axes)
    longest = lengths.max(axis=0, initial=0)
    batch = np.full((len(rows), *longest), value, dtype)
    for place, row in enumerate(rows):
        if row is not None:
            corner: Any = (place, *map(slice, row.shape))
            batch[corner] = row
    return batch, lengths[:, 0] if num_axes == 1 else lengths


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind not in "biu":
        return True
    try:
        return bool(np.array(value).astype(np.int64) == value) and bool(dtype.type(value) == value)
    except (OverflowError, ValueError):
        return False
