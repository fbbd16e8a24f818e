"""The cells of a table: what type a column has, and how its text becomes values.

The types form a chain, and a column has the highest that one of its cells needs:

=========  ====================================================================================
``""``     every cell is empty
``int64``  whole numbers: 7, -12
``whole``  whole numbers, some of them written as floats: 7.0 (tables that went through pandas
           have these where an integer column has empty cells); they become int64
``float``  numbers
``bytes``  anything: the text in UTF-8
=========  ====================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.codec.example_columns import Column
from shardwriter.errors import SourceError
from shardwriter.features.feature_types import FeatureType

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
FLOAT32_MAX: Final = 2.0**128 - 2.0**103  # a number from here on rounds to infinity

TYPES: Final = {
    "": FeatureType(),
    "int64": FeatureType("int64", "int64", ()),
    "whole": FeatureType("int64", "int64", ()),
    "float": FeatureType("float", "float32", ()),
    "bytes": FeatureType("bytes", "string", ()),
}
"""The feature type of each kind of column."""


_LEADING_ZERO: Final = re.compile(r"\n[+-]?0\d")


class ColumnTyping:
    """The kinds of the columns so far, over all rows of all files.

    Args:
        header: The columns' names.
        fixed: Types that the user fixed, by column.
        path: The first file; named in errors.

    Raises:
        SourceError: A type is fixed for a column that is not there.
    """

    def __init__(self, header: list[str], fixed: Mapping[str, FeatureType], path: str) -> None:
        unknown = sorted(set(fixed) - set(header))
        if unknown:
            raise SourceError(
                f"the schema names {unknown[0]!r}, and there is no such column",
                path=path,
                hint=f"the columns are {', '.join(header)}",
            )
        self._header = header
        self._fixed = {name: t.kind for name, t in fixed.items() if t.kind is not None}
        self._wide = {name for name, found in fixed.items() if found.dtype == "float64"}
        self._coded: list[int] = []  # columns with a 007 among their whole numbers
        self._whole: list[str] = []  # columns that became int64 although floats stand in them
        self._kinds: list[str] = [""] * len(header)  # "" while every cell was empty
        self._too_big: dict[tuple[int, str], SourceError] = {}  # (column, kind) -> the first

    def observe(self, rows: list[list[str]], before: list[int], path: str) -> None:
        """Type a block of rows; ``before`` counts the lines in front of each."""
        for number, cells in enumerate(zip(*rows, strict=True)):
            kind = self._kinds[number]
            if kind != "bytes":
                self._kinds[number] = self._join(number, kind, cells, before, path)

    def _join(
        self, number: int, kind: str, cells: tuple[str, ...], before: list[int], path: str
    ) -> str:
        values = [cell for cell in cells if cell] if "" in cells else cells
        if not values:
            return kind
        if kind in ("", "int64", "whole"):
            integers = _parse_all(int, values)
            if integers is not None:
                if max(integers) > INT64_MAX or min(integers) < INT64_MIN:
                    self._note(number, "int64", cells, before, path)
                    self._note(number, "float", cells, before, path)  # if it comes to that
                if number not in self._coded and _LEADING_ZERO.search("\n".join(("", *values))):
                    self._coded.append(number)
                return kind or "int64"
        numbers = _parse_all(float, values)
        if numbers is None:
            return "bytes"
        if kind != "float" and _are_whole(numbers, values):
            return "whole"
        if (np.abs(numbers) >= FLOAT32_MAX).any():  # max() would stop at a nan
            self._note(number, "float", cells, before, path)
        return "float"

    def _note(
        self, number: int, kind: str, cells: tuple[str, ...], before: list[int], path: str
    ) -> None:
        """Remember the first cell that its kind can not hold; an error if the column stays so."""
        name = self._header[number]
        for cell, line in zip(cells, before, strict=True):
            if cell and (number, kind) not in self._too_big and _is_too_big(cell, kind):
                self._too_big[number, kind] = SourceError(
                    f"{cell[:40]} is beyond {'int64' if kind == 'int64' else 'float32'}",
                    path=path,
                    line=line + 1,
                    feature=name,
                    hint=f"--schema {name}=string keeps the digits",
                )

    def finish(self) -> list[str]:
        """Return the kind of every column.

        Raises:
            SourceError: A column of whole numbers has one that 64 bits do not hold; or a type that
                the user fixed does not fit the cells.
        """
        return [self._final(number, name) for number, name in enumerate(self._header)]

    def _final(self, number: int, name: str) -> str:
        found = self._kinds[number]
        if found == "whole" and (number, "int64") in self._too_big:
            found = "float"  # what it is when the large one and a 7.0 stand in one block
        wanted = self._fixed.get(name, found)
        if wanted == "int64" and found == "whole":
            wanted = found
        fits = {"int64": ("", "int64"), "float": ("", "int64", "whole", "float")}
        if found not in fits.get(wanted, (found,)):
            raise SourceError(
                f"the schema says {wanted}, and the cells of this column are {found}", feature=name
            )
        too_big = self._too_big.get((number, "int64" if wanted == "whole" else wanted))
        if too_big is not None and name not in self._wide:
            raise too_big
        if wanted == "whole" and name not in self._fixed:
            self._whole.append(name)
        return wanted

    @property
    def notes(self) -> list[str]:
        """What a person should know of the types that :meth:`finish` returned."""
        notes = []
        if self._whole:
            notes.append(
                f"whole numbers written as 7.0 are taken as int64: {', '.join(self._whole)} "
                f"(--schema {self._whole[0]}=float makes them floats)"
            )
        coded = [
            self._header[number]
            for number in self._coded
            if self._kinds[number] != "bytes" and self._header[number] not in self._fixed
        ]
        if coded:
            notes.append(
                f"numbers with leading zeros lose them: {', '.join(coded)} "
                f"(--schema {coded[0]}=string keeps codes such as 007 as they are)"
            )
        return notes


def _is_too_big(cell: str, kind: str) -> bool:
    if kind == "int64":
        return not INT64_MIN <= int(cell) <= INT64_MAX
    # "inf" is a number as it stands; 1e400 is one that became infinite.
    return abs(float(cell)) >= FLOAT32_MAX and any(c.isdigit() for c in cell)


def _are_whole(numbers: Sequence[float], cells: Sequence[str]) -> bool:
    """Tell whether all are whole numbers that int64 holds, written with digits alone."""
    values = np.array(numbers)
    if not np.isfinite(values).all() or (values != np.floor(values)).any():
        return False
    if {"e", "E"}.intersection("".join(cells)):
        return False
    exact = list(map(_parse_whole, cells))
    return min(exact) >= INT64_MIN and max(exact) <= INT64_MAX


def _parse_whole(cell: str) -> int:
    """Read ``7.0`` exactly, where a float would round beyond 2^53."""
    digits = cell.partition(".")[0].strip()
    return int(digits) if digits not in ("", "-", "+") else 0


def _parse_all(parse: Callable[[str], Any], cells: Sequence[str]) -> list[Any] | None:
    try:
        numbers = list(map(parse, cells))
    except ValueError:
        return None
    # Python reads 1_000 as a number; nobody else does.
    return None if "_" in "".join(cells) else numbers


def _convert_numbers(parse: Callable[[str], Any], dtype: Any) -> Callable[[Sequence[str]], Column]:
    def convert(cells: Sequence[str]) -> Column:
        if "" not in cells:
            return Column(np.fromiter(map(parse, cells), dtype, len(cells)))
        unset = _empty(cells)
        return Column(np.array([parse(cell or "0") for cell in cells], dtype), unset)

    return convert


def _convert_text(cells: Sequence[str]) -> Column:
    return Column(cells, _empty(cells) if "" in cells else None)


def _convert_empty(cells: Sequence[str]) -> Column:
    return Column(cells, np.ones(len(cells), bool))


def _empty(cells: Sequence[str]) -> NDArray[np.bool_]:
    return np.fromiter((not cell for cell in cells), bool, len(cells))


CONVERT: Final[dict[str, Callable[[Sequence[str]], Column]]] = {
    "int64": _convert_numbers(int, np.int64),
    "whole": _convert_numbers(_parse_whole, np.int64),
    "float": _convert_numbers(float, np.float64),
    "bytes": _convert_text,
    "": _convert_empty,
}
"""Turns the text of a column into its values, by kind."""
