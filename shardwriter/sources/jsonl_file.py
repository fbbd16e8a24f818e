"""One file of JSON objects, one a line: where its rows begin, and the rows at any place."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shardwriter.errors import SourceError
from shardwriter.formats.canonical import RepeatedKey, unique_keys
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.formats.json_shape import MAX_DEPTH, nests_deeper
from shardwriter.sources.jsonl_values import Constant, RowTyping
from shardwriter.sources.positions import (
    BOM,
    SURROGATES,
    OffsetTable,
    file_changed,
    not_utf8,
    whole_lines,
)
from shardwriter.sources.tables import RowFile

_READ_BYTES: Final = 1 << 20
_BLANK: Final = " \t\r"  # what JSON takes as space, but for the line end
_Parse = Callable[[str, int], "tuple[Any, int]"]


def _parse_int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # more digits than int() reads
        return float(digits)


class _NoRow(Exception):
    """Why a line is no row."""


_CHECKED: Final[_Parse] = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=Constant
).raw_decode
_PLAIN: Final[_Parse] = json.JSONDecoder().raw_decode
# For numbers that int() does not read; slower.
_CHECKED_LONG: Final[_Parse] = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=Constant, parse_int=_parse_int
).raw_decode
_PLAIN_LONG: Final[_Parse] = json.JSONDecoder(parse_int=_parse_int).raw_decode
_LITERAL: Final[_Parse] = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=str
).raw_decode


def parse_rows(lines: Sequence[str], *, literal: bool = False) -> list[dict[str, Any]]:
    """Parse lines that were rows when they were counted; blank ones are left out.

    Args:
        lines: The lines.
        literal: Give numbers as they are written, as str.

    Raises:
        ValueError: They are rows no more.
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
    """One file with a JSON object a line."""

    _has_bad_bytes = False

    def scan(self, typing: RowTyping, offsets: OffsetTable) -> int:
        """Type every value, note where every row begins, and return the number of rows."""
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
        """Return text; where errors are skipped, with surrogates for bytes that are not UTF-8."""
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
        """Return the rows of lines, their line numbers, and those of lines that are no rows.

        ``before`` lines came earlier.
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
                    raise _NoRow("not UTF-8")
                rows.append(row)
                places.append(number)
            except _NoRow as error:
                if not self.skip_errors:
                    raise self._no_row(str(error), line, number) from None
                bad.append(number)
        return rows, places, bad

    def error_of(self, text: bytes, line: int) -> SourceError | None:
        """Return why a row can not be read; None where it can."""
        text = text.strip()
        try:
            _scan_row(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            return not_utf8(text[error.start], self, line)
        except _NoRow as error:
            return self._no_row(str(error), text.decode("utf-8"), line)
        return None

    def _no_row(self, problem: str, line: str, number: int) -> SourceError:
        hint = "every line is one JSON object"
        if number == 1 and line.startswith("["):
            hint += "; for a file that is one array: jq -c '.[]' makes such lines"
        elif number == 1 and line.startswith("{"):
            hint += "; for an object over several lines: jq -c . makes it one"
        return SourceError(problem, path=self.path, line=number, hint=hint)

    def rows(self, text: bytes, num_rows: int, *, literal: bool = False) -> list[Any]:
        """Parse the text of rows."""
        try:
            found = parse_rows(text.decode("utf-8").split("\n"), literal=literal)
        except (ValueError, RecursionError):
            raise file_changed(self.path) from None
        if len(found) != num_rows or any(type(row) is not dict for row in found):
            raise file_changed(self.path)
        return found


def _scan_row(line: str) -> dict[str, Any]:
    """Return the object that a line is.

    Raises:
        _NoRow: It is none; says why.
    """
    try:
        try:
            row, end = _CHECKED(line, 0)
        except (json.JSONDecodeError, RepeatedKey):
            raise
        except ValueError:
            row, end = _CHECKED_LONG(line, 0)
    except json.JSONDecodeError as error:
        raise _NoRow(f"not JSON: {error.msg} (column {error.pos + 1})") from None
    except RepeatedKey as error:
        raise _NoRow(str(error)) from None
    except RecursionError:
        raise _NoRow(_TOO_DEEP) from None
    if type(row) is not dict:
        raise _NoRow(f"{_KINDS.get(type(row), 'a number')} and no object")
    if end != len(line):
        raise _NoRow(f"more stands behind the object, from column {end + 1} on")
    # Counting is quick, and few rows have so many lists and objects that they may be too deep.
    if line.count("[") + line.count("{") > MAX_DEPTH and nests_deeper(row, MAX_DEPTH):
        raise _NoRow(_TOO_DEEP)
    return row


_TOO_DEEP: Final = f"lists or objects are nested too deep, over {MAX_DEPTH}"
_KINDS: Final = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
