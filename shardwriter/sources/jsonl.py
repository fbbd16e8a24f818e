"""``jsonl``: files with one JSON object per line; a row is an item.

A first pass over the whole input finds the offset of every row and the type of every feature:

=================  ==============================================================================
``null``           a feature without a kind
true, 7            int64
7.5, NaN           float; a feature with both integers and floats is float
"text"             bytes: the text in UTF-8
[...], [[...]]     a list of these, rectangular; ``[]`` is an empty list of the feature's kind
{...}, mixtures    an error with the line: only a map can convert them to features
=================  ==============================================================================

A key that a row does not have is absent from its record. Several files are one table, and may have
different keys. Type errors are raised when the plan is read, because a map needs no plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np

from shardwriter.errors import DataWarning, SourceError
from shardwriter.formats import (
    MAX_DEPTH,
    UNSET,
    Column,
    Kind,
    RepeatedKey,
    exceeds_depth,
    extend_crc32c,
    unique_keys,
)
from shardwriter.schema import FeatureType, Shape
from shardwriter.sources.cells import (
    EXACT_WHOLE,
    FLOAT32_MAX,
    INT64_MAX,
    INT64_MIN,
    inexact_integer,
)
from shardwriter.sources.positions import (
    BOM,
    SURROGATES,
    OffsetTable,
    file_changed,
    not_utf8,
    whole_lines,
)
from shardwriter.sources.tables import BLOCK_ROWS, RowFile, RowTable, TableOptions

_MAX_NESTING: Final = 32  # the limit of the record encoder
_TYPES: Final[dict[Kind, FeatureType]] = {
    "int64": FeatureType("int64", "int64"),
    "float": FeatureType("float", "float32"),
    "bytes": FeatureType("bytes", "string"),
}
Convert = Callable[[Any], Any]


class Constant(float):
    """NaN or Infinity in the file, unlike 1e400, which is a number that became infinite."""


_NAMES: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    Constant: "a float",
    str: "a string",
    dict: "an object",
    type(None): "null",
}


class FeatureTyping:
    """The type of one feature, from the values so far.

    Args:
        name: The feature.
        fixed: The type fixed by the user.
    """

    def __init__(self, name: str, fixed: FeatureType | None) -> None:
        self._name = name
        self._fixed = None if fixed is None else fixed.kind
        self._is_wide = fixed is not None and fixed.dtype == "float64"
        self._leaves: dict[type, tuple[str, int]] = {}  # each type, and its first file and line
        self._shape: Shape | None = None
        self._has_empty = False
        self._too_big: dict[Kind, SourceError] = {}
        self._inexact: DataWarning | None = None  # for the first integer that float64 rounds
        self.error: SourceError | None = None

    def observe(self, values: Sequence[Any], lines: Sequence[int], path: str) -> None:
        """Update the type from values; ``lines`` are their line numbers."""
        start, count = 0, 1
        while self.error is None and start < len(values):
            if self._changes_nothing(values[start:]):
                return
            for value, line in zip(
                values[start : start + count], lines[start : start + count], strict=True
            ):
                try:
                    self._observe_one(value, line, path)
                except ValueError as problem:
                    self.error = self._error(str(problem), path, line)
                    return
            start, count = start + count, 4 * count

    def _changes_nothing(self, values: Sequence[Any]) -> bool:
        """Return whether all values are of known types and in range, so none needs a check."""
        types = set(map(type, values))
        if type(None) in types:
            types.discard(type(None))
            values = [value for value in values if value is not None]
        if types == {list}:
            if self._shape is None or len(self._shape) != 1:
                return False
            if self._shape != (None,) and set(map(len, values)) != set(self._shape):
                return False
            values = list(chain.from_iterable(values))
            types = set(map(type, values))
        elif types and self._shape not in ((), (None,)):
            return False
        if not types <= self._leaves.keys():
            return False
        if int in types:
            integers = [v for v in values if type(v) is int] if len(types) > 1 else values
            if max(integers) > INT64_MAX or min(integers) < INT64_MIN:
                return False
            if self._inexact is None and (
                max(integers) > EXACT_WHOLE or min(integers) < -EXACT_WHOLE
            ):
                return False
        if float in types:
            if self._fixed == "int64":
                return False
            floats = [v for v in values if type(v) is float] if len(types) > 1 else values
            return not (np.abs(floats) >= FLOAT32_MAX).any()
        return True

    def _observe_one(self, value: Any, line: int, path: str) -> None:
        if value is None:
            return
        shape, leaves = _measure(value)
        if not leaves:
            self._has_empty = True
            return
        types = set(map(type, leaves))
        for found in sorted(types, key=_NAMES.__getitem__):
            if found is dict or found is type(None):
                inside = " inside a list" if shape else ""
                raise ValueError(f"{_NAMES[found]}{inside} can not be stored in a feature")
            self._check_compatible(found, path)
        if (str in types or self._fixed == "bytes") and len(shape) > 1:
            raise ValueError("a nested list of strings can not be stored in a feature")
        if str in types and len(types) > 1 and self._fixed is None:
            raise ValueError("a list has a string and other values")
        for leaf in leaves:
            self._check_size(leaf, line, path)
        try:
            joined = FeatureType("int64", shape=self._shape).join(FeatureType("int64", shape=shape))
        except ValueError as conflict:
            raise ValueError(f"{conflict} can not be one feature") from None
        self._shape = joined.shape
        for found in types:
            self._leaves.setdefault(found, (path, line))

    def _check_compatible(self, found: type, path: str) -> None:
        """Compare a type with the types so far, and with the fixed one.

        Raises:
            ValueError: It is of another kind.
        """
        if self._fixed == "bytes":
            return
        if self._fixed is not None:
            if found is str:
                raise ValueError(f"the schema has {self._fixed}, but this is a string")
            return
        for known, (known_path, line) in self._leaves.items():
            if (known is str) != (found is str):
                where = f"line {line}" if known_path == path else f"{known_path}, line {line}"
                raise ValueError(f"{_NAMES[found]}, but {_NAMES[known]} in {where}")

    def _check_size(self, leaf: Any, line: int, path: str) -> None:
        """Store an error for the first number beyond the range of a kind; finish() may raise it."""
        is_whole = not isinstance(leaf, float) or (leaf.is_integer() and abs(leaf) < EXACT_WHOLE)
        if self._fixed == "int64" and not is_whole:
            raise ValueError(f"the schema has int64, but {leaf!r} is not an integer")
        if type(leaf) is float:
            fits: dict[Kind, bool] = {"float": abs(leaf) < FLOAT32_MAX}
        elif type(leaf) is int:
            fits = {"int64": INT64_MIN <= leaf <= INT64_MAX, "float": abs(leaf) < FLOAT32_MAX}
            if self._inexact is None and fits["float"] and float(leaf) != leaf:
                self._inexact = inexact_integer(self._name, leaf, path, line)
        else:
            return
        for kind, does in fits.items():
            if not does and kind not in self._too_big:
                number = str(leaf)[:40] if abs(leaf) < math.inf else "the number"
                limit = "int64" if kind == "int64" else "float32"
                self._too_big[kind] = self._error(f"{number} is beyond {limit}", path, line)

    def _error(self, problem: str, path: str, line: int) -> SourceError:
        hint = "convert it with a map (--map)"
        if "beyond" in problem:
            hint = f"--schema {self._name}=string keeps the digits"
        elif "a string" in problem and self._fixed is None:
            hint = f"--schema {self._name}=string reads all values as text; or use a map (--map)"
        return SourceError(problem, path=path, line=line, feature=self._name, hint=hint)

    def finish(self) -> FeatureType:
        """Return the type of the feature.

        Raises:
            SourceError: The values have no common type.
        """
        if self.error is not None:
            raise self.error
        kind = self._fixed or self._found_kind()
        if kind is None:
            return FeatureType()
        if kind in self._too_big and not self._is_wide:
            raise self._too_big[kind]
        found = _TYPES[kind]
        if kind == "int64" and self._leaves.keys() == {bool}:
            found = replace(found, dtype="bool")
        shape = self._shape
        if self._has_empty:
            empty = FeatureType(kind, shape=(0, *(shape or ())[1:]))
            try:
                shape = FeatureType(kind, shape=shape).join(empty).shape
            except ValueError as conflict:
                raise SourceError(f"{conflict} and an empty list", feature=self._name) from None
        return replace(found, shape=shape)

    def _found_kind(self) -> Kind | None:
        if not self._leaves:
            return None
        if str in self._leaves:
            return "bytes"
        return "float" if {float, Constant} & self._leaves.keys() else "int64"

    @property
    def warning(self) -> DataWarning | None:
        """The warning for a float feature with an integer that float64 rounds, if any."""
        is_float = (self._fixed or self._found_kind()) == "float"
        return self._inexact if is_float else None

    @property
    def is_text_of_numbers(self) -> bool:
        """Whether numbers are read as text, with the digits in the file."""
        return self._fixed == "bytes" and bool(self._leaves.keys() - {str})

    def convert(self, planned: FeatureType) -> Convert | None:
        """Return the conversion of values to the planned type; None if they have it already."""
        if planned.kind is None:
            return lambda value: UNSET
        types = self._leaves.keys()
        change: Convert | None = None
        if planned.kind == "float" and not types <= {float, Constant}:
            change = float
        elif planned.kind == "int64" and float in types:
            change = int
        elif self.is_text_of_numbers:
            change = _as_text
        if len(planned.shape or ()) > 1 and self._has_empty:
            # An empty list does not show the length of its rows.
            dtype = np.dtype(planned.dtype)
            return lambda value: _of_rows(value, planned, dtype, change)
        return None if change is None else lambda value: _each(change, value)


def _measure(value: Any) -> tuple[tuple[int, ...], Sequence[Any]]:
    """Return the shape and the leaves of a value.

    Raises:
        ValueError: It is a ragged list.
    """
    if type(value) is not list:
        return (), (value,)
    shape: list[int] = []
    rows: list[Any] = [value]
    while len(shape) < _MAX_NESTING:
        lengths = set(map(len, rows))
        if len(lengths) > 1:
            raise ValueError(f"a ragged list: rows of {min(lengths)} and {max(lengths)} values")
        shape += lengths
        leaves = list(chain.from_iterable(rows))
        types = set(map(type, leaves))
        if list not in types:
            return tuple(shape), leaves
        if types != {list}:
            raise ValueError("a ragged list: it has both lists and single values")
        rows = leaves
    raise ValueError(f"a list is nested more than {_MAX_NESTING} deep")


def _each(change: Convert, value: Any) -> Any:
    if type(value) is list:
        return [_each(change, part) for part in value]
    return change(value)


def _of_rows(value: Any, planned: FeatureType, dtype: Any, change: Convert | None) -> Any:
    if not _measure(value)[1]:
        return np.empty((0, *(planned.shape or ())[1:]), dtype)
    return value if change is None else _each(change, value)


def _as_text(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    return str(value)


class RowTyping:
    """The types of all features, over all rows of all files.

    Args:
        fixed: Types fixed by the user, by feature.
        table: Which keys to read.

    Attributes:
        num_values: The number of values in all rows.
    """

    def __init__(self, fixed: Mapping[str, FeatureType], table: TableOptions) -> None:
        self._table = table
        self._names: dict[str, None] = {}  # all keys, if only some are read
        self._fixed = {name: t for name, t in fixed.items() if t.kind is not None}
        self._features: dict[str, FeatureTyping] = {}
        self._has_rows = False
        self.num_values = 0

    def observe(self, rows: Sequence[Mapping[str, Any]], lines: Sequence[int], path: str) -> None:
        """Update the types from a block of rows; ``lines`` are their line numbers."""
        if not rows:
            return
        self._has_rows = True
        if self._table.picks:
            self._names.update(dict.fromkeys(chain.from_iterable(rows)))
            rows = self._table.pick_rows(rows)
        self.num_values += sum(map(len, rows))
        names = list(map(tuple, rows))
        if names.count(names[0]) == len(names):
            columns = zip(*(row.values() for row in rows), strict=True)
            for name, values in zip(names[0], columns, strict=True):
                self._feature(name).observe(values, lines, path)
            return
        cells: dict[str, tuple[list[Any], list[int]]] = {}
        for row, line in zip(rows, lines, strict=True):
            for name, value in row.items():
                if name not in cells:
                    cells[name] = [], []
                cells[name][0].append(value)
                cells[name][1].append(line)
        for name, (found, places) in cells.items():
            self._feature(name).observe(found, places, path)

    def _feature(self, name: str) -> FeatureTyping:
        feature = self._features.get(name)
        if feature is None:
            feature = self._features[name] = FeatureTyping(name, self._fixed.get(name))
        return feature

    @property
    def num_features(self) -> int:
        """The number of different keys in all rows."""
        return len(self._features)

    @property
    def warnings(self) -> list[DataWarning]:
        """The warnings of all features."""
        found = [feature.warning for feature in self._features.values()]
        return [warning for warning in found if warning is not None]

    def finish(
        self,
    ) -> tuple[dict[str, FeatureType], dict[str, Convert], list[str], SourceError | None]:
        """Return the types.

        Raises:
            OptionError: A key to read, or to leave out, does not exist.

        Returns:
            The type of each feature that has one; the conversions of values, by feature; the
            features of numbers that are read as text; and the first error, if any.
        """
        if self._table.picks and self._has_rows:
            self._table.pick([*self._names])
        plan: dict[str, FeatureType] = {}
        convert: dict[str, Convert] = {}
        as_text: list[str] = []
        wrong: SourceError | None = None
        for name, feature in self._features.items():
            try:
                plan[name] = planned = feature.finish()
            except SourceError as error:
                wrong = wrong or error
                continue
            change = feature.convert(planned)
            if change is not None:
                convert[name] = change
            if feature.is_text_of_numbers:
                as_text.append(name)
        unknown = sorted(self._fixed.keys() - self._features.keys())
        if unknown and self._has_rows and wrong is None:
            wrong = SourceError(
                f"the schema has a feature {unknown[0]!r}, which is in no row",
                hint=f"the features are {', '.join(self._features)}",
            )
        return plan, convert, as_text, wrong


_READ_BYTES: Final = 1 << 20
_BLANK: Final = " \t\r"  # JSON's white space, without the line end
_Parse = Callable[[str, int], "tuple[Any, int]"]


def _parse_int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # more digits than int() accepts
        return float(digits)


class _InvalidRow(Exception):
    """The reason why a line is not a row."""


_CHECKED: Final[_Parse] = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=Constant
).raw_decode
_PLAIN: Final[_Parse] = json.JSONDecoder().raw_decode
# For numbers with more digits than int() accepts; slower.
_CHECKED_LONG: Final[_Parse] = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=Constant, parse_int=_parse_int
).raw_decode
_PLAIN_LONG: Final[_Parse] = json.JSONDecoder(parse_int=_parse_int).raw_decode
_LITERAL: Final[_Parse] = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=str
).raw_decode


def parse_rows(lines: Sequence[str], *, literal: bool = False) -> list[dict[str, Any]]:
    """Parse lines that were valid rows when scanned; blank lines are skipped.

    Args:
        lines: The lines.
        literal: Return numbers as str, as they are written.

    Raises:
        ValueError: They are not valid rows any more.
    """
    parse = _LITERAL if literal else _PLAIN
    rows = []
    for line in lines:
        line = line.strip(_BLANK)
        if line:
            try:
                row, _ = parse(line, 0)
            except json.JSONDecodeError:
                raise
            except ValueError:
                row, _ = _PLAIN_LONG(line, 0)
            rows.append(row)
    return rows


class JsonLinesFile(RowFile):
    """A file with one JSON object per line."""

    _has_bad_bytes = False

    def scan(self, typing: RowTyping, offsets: OffsetTable) -> int:
        """Type every value, add the offset of every row, and return the number of rows."""
        num_rows = num_lines = 0
        for data in whole_lines(self.start(), _READ_BYTES):
            self.crc32c = extend_crc32c(self.crc32c, data)
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + (self.size_bytes + 1)
            starts = np.concatenate((np.array([self.size_bytes]), ends))
            bom = len(BOM) if not self.size_bytes and data.startswith(BOM) else 0
            lines = self._decode(data[bom:], num_lines).split("\n")
            rows, places, bad = self._parse(lines, num_lines)
            typing.observe(rows, places, self.path)
            if bad:
                places = sorted([*places, *bad])
                self.bad_rows.extend((np.searchsorted(places, bad) + num_rows).tolist())
                self.bad_lines.extend(bad)
            offsets.add(starts[np.array(places, np.int64) - (num_lines + 1)])
            num_rows += len(places)
            num_lines += len(ends)
            self.size_bytes += len(data)
        self.check_unchanged()
        offsets.add(np.array([self.size_bytes], np.int64))
        return num_rows

    def _decode(self, data: bytes, before: int) -> str:
        """Return text; if errors are skipped, with surrogates for bytes that are not UTF-8."""
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.skip_errors:
                self._has_bad_bytes = True
                return data.decode("utf-8", "surrogateescape")
            line = before + 1 + data.count(b"\n", 0, error.start)
            raise not_utf8(data[error.start], self, line) from None

    def _parse(
        self, lines: list[str], before: int
    ) -> tuple[list[dict[str, Any]], list[int], list[int]]:
        """Return the rows of lines, their line numbers, and the numbers of invalid lines.

        ``before`` counts the lines before these.
        """
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        bad: list[int] = []
        for number, line in enumerate(lines, before + 1):
            line = line.strip(_BLANK)
            if not line:
                continue
            try:
                row = _scan_row(line)
                if self._has_bad_bytes and SURROGATES.search(line):
                    raise _InvalidRow("not UTF-8")
                rows.append(row)
                places.append(number)
            except _InvalidRow as error:
                if not self.skip_errors:
                    raise self._invalid_row(str(error), line, number) from None
                bad.append(number)
        return rows, places, bad

    def error_of(self, text: bytes, line: int) -> SourceError | None:
        """Return the error for a row that cannot be read; None if it can."""
        text = text.strip()
        try:
            _scan_row(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            return not_utf8(text[error.start], self, line)
        except _InvalidRow as error:
            return self._invalid_row(str(error), text.decode("utf-8"), line)
        return None

    def _invalid_row(self, problem: str, line: str, number: int) -> SourceError:
        hint = "each line must be one JSON object"
        if number == 1 and line.startswith("["):
            hint += "; convert a file that is one array with jq -c '.[]'"
        elif number == 1 and line.startswith("{"):
            hint += "; join objects of several lines with jq -c ."
        return SourceError(problem, path=self.path, line=number, hint=hint)

    def rows(self, text: bytes, num_rows: int, *, literal: bool = False) -> list[Any]:
        """Return the rows of a text."""
        try:
            found = parse_rows(text.decode("utf-8").split("\n"), literal=literal)
        except (ValueError, RecursionError):
            raise file_changed(self.path) from None
        if len(found) != num_rows or any(type(row) is not dict for row in found):
            raise file_changed(self.path)
        return found


def _scan_row(line: str) -> dict[str, Any]:
    """Return the object of a line.

    Raises:
        _InvalidRow: The line is not a JSON object.
    """
    try:
        try:
            row, end = _CHECKED(line, 0)
        except (json.JSONDecodeError, RepeatedKey):
            raise
        except ValueError:
            row, end = _CHECKED_LONG(line, 0)
    except json.JSONDecodeError as error:
        raise _InvalidRow(f"not JSON: {error.msg} (column {error.pos + 1})") from None
    except RepeatedKey as error:
        raise _InvalidRow(str(error)) from None
    except RecursionError:
        raise _InvalidRow(_TOO_DEEP) from None
    if type(row) is not dict:
        raise _InvalidRow(f"{_KINDS.get(type(row), 'a number')}, not an object")
    if end != len(line):
        raise _InvalidRow(f"there is more after the object, from column {end + 1}")
    # Count first, which is quick: few rows have enough brackets to be nested too deep.
    if line.count("[") + line.count("{") > MAX_DEPTH and exceeds_depth(row, MAX_DEPTH):
        raise _InvalidRow(_TOO_DEEP)
    return row


_TOO_DEEP: Final = f"lists or objects are nested more than {MAX_DEPTH} deep"
_KINDS: Final = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}

KIND: Final = "jsonl"

_SPARSE_ROWS: Final = 16
_ABSENT: Final = object()  # the row does not have the key


class JsonLines(RowTable[JsonLinesFile]):
    """Rows of one or several files of JSON lines.

    Args:
        paths: The files, in order.
        schema: Types fixed by the user, by feature.
        table: How the files are read.
        skip_errors: Keep an invalid line as an item, which raises its error when it is loaded;
            otherwise raise it here.

    Raises:
        OptionError: A key to read is in no row.
        SourceError: A file is missing, or a line is not a JSON object.
    """

    kind = KIND
    notes: Sequence[str] = ()

    def __init__(
        self,
        paths: Sequence[str],
        schema: Mapping[str, FeatureType] | None = None,
        table: TableOptions | None = None,
        *,
        skip_errors: bool = False,
    ) -> None:
        super().__init__()
        table = table or TableOptions()
        typing = RowTyping(schema or {}, table)
        for path in paths:
            file = JsonLinesFile(path, self._spool, table.encoding, skip_errors=skip_errors)
            self._open_files.open(file)
            self._add(file, partial(file.scan, typing))
        self._table = table
        # A block of columns has a cell for each row and feature, so sparse rows need small blocks.
        density = typing.num_values / (typing.num_features * (self.num_items or 1) or 1)
        self.block_items = max(1, min(self.block_items, int(BLOCK_ROWS * density) + _SPARSE_ROWS))
        self._plan, self._convert, self._as_text, self._untyped = typing.finish()
        self.warnings = typing.warnings
        self._order = {name: number for number, name in enumerate(self._plan)}

    @property
    def plan(self) -> Mapping[str, FeatureType]:
        """The type of every feature.

        Raises:
            SourceError: A feature has no type, so only a map can make records of these rows.
        """
        if self._untyped is not None:
            raise self._untyped
        return self._plan

    def load(self, item: int) -> dict[str, Any]:
        """Return one row: int, float, str and lists of them; UNSET for null."""
        row: dict[str, Any] = self._rows([item])[0]
        for name, value in row.items():
            if value is None or name in self._convert:
                row[name] = self._value(name, value)
        return row

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows as columns; rows that are close to each other are read together."""
        rows = self._rows(items)
        columns = {}
        plan = self.plan
        names: Iterable[str] = plan
        if rows and min(map(len, rows)) < len(plan):
            present = set().union(*rows)  # of many rare keys, a block has few
            names = sorted(present & plan.keys(), key=self._order.__getitem__) or plan
        for name in names:
            cells = [row.get(name, _ABSENT) for row in rows]
            unset = None
            if name in self._convert or None in cells or _ABSENT in cells:
                cells = [self._value(name, cell) for cell in cells]
                unset = np.array([cell is UNSET for cell in cells], bool)
            columns[name] = Column(cells, unset)
        return columns

    def _rows(self, items: Sequence[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for file, text, num_rows in self._texts(items):
            found = file.rows(text, num_rows)
            if self._as_text:
                literal = file.rows(text, num_rows, literal=True)
                for row, written in zip(found, literal, strict=True):
                    row.update((name, written[name]) for name in self._as_text if name in written)
            rows += self._table.pick_rows(found) if self._table.picks else found
        return rows

    def _value(self, name: str, cell: Any) -> Any:
        """Return the feature's value for a cell; None if it is absent."""
        if cell is _ABSENT:
            return None
        if cell is None:
            return UNSET
        convert = self._convert.get(name)
        try:
            return cell if convert is None else convert(cell)
        except (TypeError, ValueError, OverflowError):
            raise file_changed(self._files[0].path) from None
