"""``numpy``: arrays in ``.npy`` and ``.npz`` files; a row of the first axis is an item.

A ``.npz`` file has a feature for each array, a folder of ``.npy`` files one for each file, and an
array of records one for each field; all arrays have the same number of rows. Types come from the
arrays, and so are known before the first row is read. Rows are read where they lie, never the whole
array; compressed arrays, and those in Fortran's order, are copied into a temporary file first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import SourceError
from shardwriter.formats.example_columns import Column
from shardwriter.schema.feature_types import FeatureType, float_dtype
from shardwriter.sources.arrow import own_value
from shardwriter.sources.numpy_file import NumpyFile, Rows
from shardwriter.sources.positions import OpenFiles
from shardwriter.storage.descriptor import Scratch

KIND: Final = "numpy"
ENDINGS: Final = (".npy", ".npz")

_BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20


class _Feature(NamedTuple):
    """Where the values of a feature are: in an array, and there in a field of fields."""

    array: int
    fields: tuple[str, ...]


class NumpyRows:
    """Rows of the arrays of one or several files.

    Args:
        paths: One ``.npz`` file, or ``.npy`` files.
        schema: Types that the user fixed, by feature: integers may become floats.

    Raises:
        SourceError: A file is missing or damaged, or an array can not be features.
    """

    kind = KIND
    random_access = True
    travels = True
    stable = True
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None

    def __init__(
        self, paths: Sequence[str], schema: Mapping[str, FeatureType] | None = None
    ) -> None:
        self._open_files = OpenFiles()
        self._files: list[NumpyFile] = []
        self._arrays: list[tuple[int, Rows]] = []  # its file, and where it is there
        copy = Scratch()
        for path in paths:
            file = NumpyFile(path)
            self._open_files.open(file)
            stem, ending = os.path.splitext(os.path.basename(path))
            name = stem if ending.lower() == ".npy" else stem + ending
            self._arrays += [(len(self._files), a) for a in file.scan(name, copy)]
            self._files.append(file)
        first = self._arrays[0][1]
        self.num_items: int | None = first.shape[0]
        for number, array in self._arrays:
            if array.shape[0] != self.num_items:
                raise SourceError(
                    f"{array.name!r} has {array.shape[0]:,} rows, and {first.name!r} has "
                    f"{self.num_items:,}",
                    path=self._files[number].path,
                    hint="every array is a feature, with a row for each item",
                )
        row_bytes = sum(array.row_bytes for _, array in self._arrays)
        if not row_bytes and self.num_items > sum(file.size_bytes for file in self._files):
            raise SourceError(
                f"there are {self.num_items:,} rows without a value",
                path=paths[0],
                hint="a row of an array has a value at least: the shape in the file is wrong",
            )
        self._features: dict[str, _Feature] = {}
        self.plan: Mapping[str, FeatureType] = self._planned(dict(schema or {}), len(paths) > 1)
        self.notes: Sequence[str] = self._copied()
        self.block_items = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (row_bytes or 1)))

    def _planned(self, fixed: dict[str, FeatureType], is_folder: bool) -> dict[str, FeatureType]:
        plan: dict[str, FeatureType] = {}
        for index, (number, array) in enumerate(self._arrays):
            path = self._files[number].path
            is_alone = len(self._arrays) == 1 and not is_folder and not path.endswith(".npz")
            leaves = list(_leaves(array.dtype, array.shape[1:]))
            if not leaves:
                raise SourceError(
                    f"{array.name!r} has records without fields",
                    path=path,
                    hint="save it with a field at least, or leave it out",
                )
            for fields, dtype, shape in leaves:
                name = "/".join(fields if fields and is_alone else (array.name, *fields))
                if name in plan:
                    raise SourceError(f"two arrays are called {name!r}", path=path)
                found = _type_of(name, dtype, shape, path)
                plan[name] = _bound(name, found, fixed.pop(name, None), path)
                self._features[name] = _Feature(index, fields)
        if fixed:
            raise SourceError(
                f"the schema names {min(fixed)!r}, and there is no such array",
                path=self._files[0].path,
                hint=f"the arrays are {', '.join(plan)}",
            )
        return plan

    def _copied(self) -> list[str]:
        names = [array.name for _, array in self._arrays if array.copy is not None]
        if not names:
            return []
        return [
            f"copied into a temporary file, as they are compressed or in Fortran's order: "
            f"{', '.join(names[:5])}{', ...' * (len(names) > 5)}"
        ]

    def items(self) -> Iterator[int]:
        """Yield the row numbers."""
        assert self.num_items is not None
        return iter(range(self.num_items))

    def item(self, item_index: int) -> int:
        """Return a row number."""
        return item_index

    def key(self, item: int) -> str:
        """Return ``row 7``."""
        return f"row {item}"

    def load(self, item: int) -> dict[str, Any]:
        """Return one row: int, float, str, bytes and arrays."""
        return {name: own_value(c.values[0]) for name, c in self.load_columns([item]).items()}

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows in columns; rows that are near each other are read in one piece."""
        found: list[NDArray[Any]] = []
        for number, array in self._arrays:
            self._open_files.open(self._files[number])
            found.append(self._files[number].rows(array, items))
        columns = {}
        for name, (index, fields) in self._features.items():
            values = found[index]
            for field in fields:
                values = values[field]
            if not values.dtype.isnative:
                values = values.astype(values.dtype.newbyteorder("="))
            if values.dtype.kind in "SU":
                columns[name] = Column(self._texts(name, values, index))
            else:
                columns[name] = Column(np.ascontiguousarray(values))
        return columns

    def _texts(self, name: str, values: NDArray[Any], index: int) -> list[Any]:
        try:
            texts: list[Any] = values.tolist()
        except (SystemError, ValueError) as error:
            raise SourceError(
                "what should be text has numbers that are no characters",
                path=self._files[self._arrays[index][0]].path,
                feature=name,
                hint="write the file again",
            ) from error
        return texts

    def digest(self) -> dict[str, Any]:
        """Return the names of the arrays, and sizes and checksums of the files' ends."""
        return {"arrays": self._names(), "files": [[f.size_bytes, _crc(f)] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        files = [[f.size_bytes, _crc(f), f.mtime_ns] for f in self._files]
        return {"arrays": self._names(), "files": files}

    def _names(self) -> list[str]:
        return [array.name for _, array in self._arrays]


def _crc(file: NumpyFile) -> str:
    return f"{file.crc32c:08x}"


def _leaves(
    dtype: np.dtype[Any], shape: tuple[int, ...], fields: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], np.dtype[Any], tuple[int, ...]]]:
    """Yield the plain arrays that records consist of: the way there, the dtype, a row's shape."""
    if dtype.subdtype is not None:
        base, inner = dtype.subdtype
        yield from _leaves(base, (*shape, *inner), fields)
    elif dtype.names is not None:
        for name in dtype.names:
            yield from _leaves(dtype[name], shape, (*fields, name))
    else:
        yield fields, dtype, shape


def _type_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], path: str) -> FeatureType:
    if dtype.kind in "biu":
        return FeatureType("int64", dtype.name, shape)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return FeatureType("float", float_dtype(dtype.name), shape)
    if dtype.kind in "SU" and len(shape) < 2:
        return FeatureType("bytes", "string" if dtype.kind == "U" else "bytes", shape)
    hints = {
        "M": "save .astype('int64'), or text",
        "m": "save .astype('int64')",
        "c": "save .real and .imag",
        "f": "save .astype('float64')",
    }
    raise SourceError(
        f"an array of {dtype}{list(shape) if dtype.kind in 'SU' else ''} has no place in a feature",
        path=path,
        feature=name,
        hint=hints.get(dtype.kind, "save it as numbers or text"),
    )


def _bound(name: str, found: FeatureType, fixed: FeatureType | None, path: str) -> FeatureType:
    if fixed is None or (fixed.kind in (None, found.kind) and fixed.encoding == found.encoding):
        return found
    if (found.kind, fixed.kind) == ("int64", "float"):
        return replace(found, kind=fixed.kind, dtype=fixed.dtype)
    raise SourceError(
        f"the schema says {fixed.dtype}, and the array is {found.dtype}",
        path=path,
        feature=name,
        hint="save the array as what it is to be",
    )
