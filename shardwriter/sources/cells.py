"""The cells of text tables: infer the type of a column, and convert its text to values.

The kinds form a chain. A column has the highest kind that one of its cells needs:

=========  ====================================================================================
``""``     every cell is empty
``int64``  integers: 7, -12
``whole``  integers, some of them written as floats: 7.0 (as pandas writes an integer column
           with empty cells); they become int64
``float``  numbers
``bytes``  anything: the text in UTF-8
=========  ====================================================================================

Cells such as ``NA`` are missing values in a column of numbers, and text in a column of text. A
column that is text because of a few cells gets a warning.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import DataWarning, SourceError
from shardwriter.formats import Column
from shardwriter.schema import FeatureType
from shardwriter.sources.tables import NA_VALUES

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
EXACT_WHOLE: Final = 2.0**53  # above, float64 does not hold every integer
FLOAT32_MAX: Final = 2.0**128 - 2.0**103  # from here on, numbers round to infinity

TYPES: Final = {
    "": FeatureType(),
    "int64": FeatureType("int64", "int64", ()),
    "whole": FeatureType("int64", "int64", ()),
    "float": FeatureType("float", "float32", ()),
    "bytes": FeatureType("bytes", "string", ()),
}
"""The feature type of each kind of column."""

FEW_CELLS: Final = 1000
"""A column with more cells that are not numbers than this is text by intent, without a warning, and
is not examined further; without a warning also if they are more than one in FEW_OF."""
FEW_OF: Final = 100
_SHOWN: Final = 40  # characters of a cell in messages

_LEADING_ZERO: Final = re.compile(r"\n[+-]?0\d")

Convert = Callable[[Sequence[str]], Column]


class _Cell(NamedTuple):
    """A cell and its position."""

    cell: str
    path: str
    line: int

    @property
    def shown(self) -> str:
        return repr(self.cell[:_SHOWN])


class _ColumnTyping:
    """The kind of one column, from the cells so far.

    Args:
        name: The column.
        fixed: The type fixed by the user.
        missing: Cells that are missing values in a column of numbers.

    Attributes:
        kind: The kind of the cells that are numbers; "" if there are none so far.
    """

    def __init__(self, name: str, fixed: FeatureType, missing: frozenset[str]) -> None:
        self.name = name
        self.fixed = fixed.kind
        self._is_wide = fixed.dtype == "float64"
        self.kind = ""
        self._missing = missing
        # Removed before the other cells are parsed as numbers.
        self._missing_numbers = frozenset(filter(is_number, missing))
        self._has_missing = False
        self._num_cells = 0
        self._num_texts = 0  # cells that are neither numbers nor missing
        # The first cell of kind "float" and of kind "bytes", and the first "inexact" integer.
        self._first: dict[str, _Cell] = {}
        self._too_big: dict[str, SourceError] = {}  # the first of each kind
        self.has_codes = False  # whether an integer such as 007 has leading zeros

    @property
    def is_text(self) -> bool:
        """Whether the column is text whatever follows."""
        return self.fixed == "bytes" or self._num_texts > FEW_CELLS

    def observe(self, cells: Sequence[str], before: list[int], path: str) -> None:
        """Update the kind from a block of cells; ``before`` counts the lines before each."""
        values = [cell for cell in cells if cell] if "" in cells else cells
        self._num_cells += len(values)
        if self._missing_numbers:
            values = self._without(self._missing_numbers, values)
        if values and not self._join(values, cells, before, path):
            self._note_texts(cells, before, path)
            numbers = [cell for cell in self._without(self._missing, values) if is_number(cell)]
            if numbers:
                self._join(numbers, cells, before, path)

    def _without(self, missing: frozenset[str], values: Sequence[str]) -> list[str]:
        left = [cell for cell in values if cell not in missing]
        self._has_missing |= len(left) < len(values)
        return left

    def _join(
        self, values: Sequence[str], cells: Sequence[str], before: list[int], path: str
    ) -> bool:
        """Update the kind from values; return False if they are not all numbers."""
        if self.kind != "float":
            integers = _parse_all(int, values)
            if integers is not None:
                if max(integers) > INT64_MAX or min(integers) < INT64_MIN:
                    self._note_too_big("int64", cells, before, path)
                    self._note_too_big("float", cells, before, path)  # if it becomes a float column
                if max(integers) > EXACT_WHOLE or min(integers) < -EXACT_WHOLE:
                    self._note_first("inexact", _is_inexact, cells, before, path)
                if not self.has_codes and _LEADING_ZERO.search("\n".join(("", *values))):
                    self.has_codes = True
                self.kind = self.kind or "int64"
                return True
        numbers = _parse_all(float, values)
        if numbers is None:
            return False
        if (np.abs(numbers) >= EXACT_WHOLE).any():
            self._note_first("inexact", _is_inexact, cells, before, path)
        if self.kind != "float" and _are_whole(numbers, values):
            self.kind = "whole"
            return True
        if (np.abs(numbers) >= FLOAT32_MAX).any():  # max() would stop at a nan
            self._note_too_big("float", cells, before, path)
        if self.kind != "float":
            self.kind = "float"
            self._note_first("float", _needs_float, cells, before, path)
        return True

    def _note_texts(self, cells: Sequence[str], before: list[int], path: str) -> None:
        texts = [cell for cell in cells if self._is_text(cell)]
        self._num_texts += len(texts)
        if texts:
            self._note_first("bytes", self._is_text, cells, before, path)

    def _is_text(self, cell: str) -> bool:
        return bool(cell) and cell not in self._missing and not is_number(cell)

    def _note_first(
        self,
        kind: str,
        needs: Callable[[str], bool],
        cells: Sequence[str],
        before: list[int],
        path: str,
    ) -> None:
        if kind in self._first:
            return
        for cell, line in zip(cells, before, strict=True):
            if needs(cell):
                self._first[kind] = _Cell(cell, path, line + 1)
                return

    def _note_too_big(self, kind: str, cells: Sequence[str], before: list[int], path: str) -> None:
        """Store an error for the first cell beyond the range of the kind; finish() may raise it."""
        if kind in self._too_big:
            return
        for cell, line in zip(cells, before, strict=True):
            if cell not in self._missing and _is_too_big(cell, kind):
                self._too_big[kind] = SourceError(
                    f"{cell[:_SHOWN]} is beyond {'int64' if kind == 'int64' else 'float32'}",
                    path=path,
                    line=line + 1,
                    feature=self.name,
                    hint=f"--schema {self.name}=string keeps the digits",
                )
                return

    def finish(self) -> str:
        """Return the kind of the column.

        Raises:
            SourceError: An integer column has one beyond 64 bits, or a cell is not of the type
                fixed by the user.
        """
        found = self.found
        wanted = found if self.fixed is None else self.fixed
        if wanted == "int64" and found == "whole":
            wanted = found
        if wanted in ("int64", "whole", "float"):
            for kind in ("float", "bytes") if wanted != "float" else ("bytes",):
                if kind in self._first and (kind == "bytes" or found == "float"):
                    raise self._not_of(wanted, self._first[kind])
        too_big = self._too_big.get("int64" if wanted == "whole" else wanted)
        if too_big is not None and not self._is_wide:
            raise too_big
        return wanted

    @property
    def found(self) -> str:
        """The kind that the cells need, without the user's type."""
        if self._num_texts or (self._has_missing and not self.kind and self.fixed is None):
            return "bytes"
        if self.kind == "whole" and "int64" in self._too_big:
            return "float"  # as if the large integer and a 7.0 were in one block
        return self.kind

    def _not_of(self, wanted: str, first: _Cell) -> SourceError:
        is_text = not is_number(first.cell)
        what = "a number" if is_text else "an integer"
        hint = f"--schema {self.name}={'string' if is_text else 'float'} changes the column's type"
        if is_text:
            hint = f"--na {shlex.quote(first.cell[:_SHOWN])} makes such cells missing; {hint}"
        return SourceError(
            f"{first.shown} is not {what}; the schema has {wanted}",
            path=first.path,
            line=first.line,
            feature=self.name,
            hint=hint,
        )

    @property
    def warning(self) -> DataWarning | None:
        """The warning for the column, if any.

        Either it is text because of a few cells, or float with an integer that float64 rounds.
        """
        if (self.fixed or self.found) == "float" and "inexact" in self._first:
            cell, path, line = self._first["inexact"]
            return inexact_integer(self.name, _parse_whole(cell), path, line)
        few = min(FEW_CELLS, self._num_cells // FEW_OF)
        if self.fixed is not None or not self.kind or not 0 < self._num_texts <= few:
            return None
        first = self._first["bytes"]
        return DataWarning(
            "text-column",
            f"column {self.name!r} is text, but all except {self._num_texts:,} of its "
            f"{self._num_cells:,} cells are numbers: {os.path.basename(first.path)}, line "
            f"{first.line}, has {first.shown}",
            hint=f"--na {shlex.quote(first.cell[:_SHOWN])} makes such cells missing values; "
            f"--schema {self.name}=string accepts text",
            feature=self.name,
            path=first.path,
            line=first.line,
            value=first.cell[:_SHOWN],
        )

    @property
    def missing(self) -> frozenset[str]:
        """The cells that are missing values, beside empty cells; none if the column has none."""
        return self._missing if self._has_missing else frozenset()


class ColumnTyping:
    """The kinds of all columns, from the rows so far of all files.

    Args:
        names: The columns, in the order of a row's cells; None for a column that is not read.
        fixed: Types fixed by the user, by column.
        path: The first file, for error messages.
        missing: Cells that are missing values in columns of numbers.

    Raises:
        SourceError: A type is fixed for a column that does not exist.
    """

    def __init__(
        self,
        names: Sequence[str | None],
        fixed: Mapping[str, FeatureType],
        path: str,
        missing: frozenset[str] = frozenset(NA_VALUES),
    ) -> None:
        known = [name for name in names if name is not None]
        unknown = sorted(set(fixed) - set(known))
        if unknown:
            raise SourceError(
                f"the schema has a column {unknown[0]!r}, which does not exist",
                path=path,
                hint=f"the columns are {', '.join(known)}",
            )
        self._columns = [
            None if name is None else _ColumnTyping(name, fixed.get(name, FeatureType()), missing)
            for name in names
        ]

    @property
    def _known(self) -> list[_ColumnTyping]:
        return [column for column in self._columns if column is not None]

    def observe(self, rows: list[list[str]], before: list[int], path: str) -> None:
        """Update the kinds from a block of rows; ``before`` counts the lines before each."""
        for column, cells in zip(self._columns, zip(*rows, strict=True), strict=True):
            if column is not None and not column.is_text:
                column.observe(cells, before, path)

    def finish(self) -> dict[str, str]:
        """Return the kind of every column, by name.

        Raises:
            SourceError: An integer column has one beyond 64 bits, or a cell is not of the type
                fixed by the user.
        """
        return {column.name: column.finish() for column in self._known}

    @property
    def missing(self) -> dict[str, frozenset[str]]:
        """The cells that are missing values, for each column that has any."""
        return {column.name: column.missing for column in self._known if column.missing}

    @property
    def notes(self) -> list[str]:
        """Remarks for the user on the types from :meth:`finish`."""
        notes = []
        found = [c for c in self._known if c.fixed is None]
        whole = [c.name for c in found if c.found == "whole"]
        if whole:
            notes.append(
                f"integers written as 7.0 become int64: {', '.join(whole)} "
                f"(--schema {whole[0]}=float makes them floats)"
            )
        coded = [c.name for c in found if c.has_codes and c.found != "bytes"]
        if coded:
            notes.append(
                f"numbers lose their leading zeros: {', '.join(coded)} "
                f"(--schema {coded[0]}=string keeps codes such as 007 as text)"
            )
        return notes

    @property
    def warnings(self) -> list[DataWarning]:
        """The warnings of all columns."""
        return [column.warning for column in self._known if column.warning is not None]


def inexact_integer(name: str, number: int, path: str, line: int) -> DataWarning:
    """Return the warning for an integer in a column of floats that float64 rounds.

    Args:
        name: The column or feature.
        number: The integer.
        path: The file.
        line: Its line, from 1.
    """
    return DataWarning(
        "inexact-integer",
        f"column {name!r} is float, and {number} ({os.path.basename(path)}, line {line}) is "
        f"rounded to {float(number)!r}: float64 holds about 16 digits",
        hint=f"--schema {name}=string keeps every digit; so does --schema {name}=int64, if all "
        "numbers are integers",
        feature=name,
        path=path,
        line=line,
        value=str(number),
        stored=repr(float(number)),
    )


def is_number(cell: str) -> bool:
    """Return whether a cell can be parsed as a float."""
    return _parse_all(float, (cell,)) is not None


def _needs_float(cell: str) -> bool:
    """Return whether a cell is a number but not an integer."""
    return (
        is_number(cell)
        and _parse_all(int, (cell,)) is None
        and not _are_whole([float(cell)], [cell])
    )


def _is_inexact(cell: str) -> bool:
    """Return whether a cell is an integer, 7 or 7.0, that float64 rounds."""
    digits, _, rest = cell.strip().partition(".")
    if rest.strip("0") or not is_number(cell):
        return False
    integers = _parse_all(int, [digits])
    return integers is not None and abs(integers[0]) < FLOAT32_MAX and float(cell) != integers[0]


def _is_too_big(cell: str, kind: str) -> bool:
    found = _parse_all(int if kind == "int64" else float, (cell,))
    if found is None:
        return False
    if kind == "int64":
        return not INT64_MIN <= found[0] <= INT64_MAX
    # "inf" is infinite by intent; 1e400 became infinite.
    return abs(found[0]) >= FLOAT32_MAX and any(c.isdigit() for c in cell)


def _are_whole(numbers: Sequence[float], cells: Sequence[str]) -> bool:
    """Return whether all are integers of 64 bits, written without an exponent."""
    values = np.array(numbers)
    if not np.isfinite(values).all() or (values != np.floor(values)).any():
        return False
    if {"e", "E"}.intersection("".join(cells)):
        return False
    exact = list(map(_parse_whole, cells))
    return min(exact) >= INT64_MIN and max(exact) <= INT64_MAX


def _parse_whole(cell: str) -> int:
    """Return the integer ``7.0`` exactly; a float would round it beyond 2^53."""
    digits = cell.partition(".")[0].strip()
    return int(digits) if digits not in ("", "-", "+") else 0


def _parse_all(parse: Callable[[str], Any], cells: Sequence[str]) -> list[Any] | None:
    try:
        numbers = list(map(parse, cells))
    except ValueError:
        return None
    # Python accepts 1_000 as a number; other programs do not.
    return None if "_" in "".join(cells) else numbers


def _convert_numbers(parse: Callable[[str], Any], dtype: Any) -> Convert:
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


CONVERT: Final[dict[str, Convert]] = {
    "int64": _convert_numbers(int, np.int64),
    "whole": _convert_numbers(_parse_whole, np.int64),
    "float": _convert_numbers(float, np.float64),
    "bytes": _convert_text,
    "": _convert_empty,
}
"""Converts the text of a column to values, by kind."""
