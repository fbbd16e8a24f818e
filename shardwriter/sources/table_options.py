"""How tables are read: their header, their missing values, their encoding, which columns."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardwriter.errors import OptionError

NA_VALUES: Final = ("NA", "N/A", "n/a", "NULL", "null", "None")
"""Cells that are missing values in columns of numbers, beside the empty one.

``nan`` and ``NaN`` are none of them: a float holds NaN, and they are read as that.
"""

_TABLES: Final = ("csv", "jsonl", "parquet", "huggingface")
_FORMATS: Final = {
    "header": ("--no-header", ("csv",)),
    "na": ("--na", ("csv",)),
    "encoding": ("--encoding", ("csv", "jsonl")),
    "columns": ("--columns", _TABLES),
    "drop_columns": ("--drop-columns", _TABLES),
}


@dataclass(frozen=True)
class TableOptions:
    """How the files of a table are read, where they do not say it themselves.

    Attributes:
        header: Whether the first line of a CSV file names its columns.
        names: What the columns are called where ``header`` is False; None: ``column0``,
            ``column1``, ...
        na: Cells of a CSV file that are missing values in columns that are numeric without them,
            beside the empty cell; None for :data:`NA_VALUES`.
        encoding: Of the text in CSV and JSON files: a codec of Python; None for UTF-8.
        columns: The columns that are read; None for all.
        drop_columns: Columns that are not read.

    Raises:
        OptionError: A value is none of these, or two contradict each other.
    """

    header: bool = True
    names: tuple[str, ...] | None = None
    na: tuple[str, ...] | None = None
    encoding: str | None = None
    columns: tuple[str, ...] | None = None
    drop_columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.header, bool):
            raise OptionError(f"header is {self.header!r}: it is True or False")
        for option in ("names", "na", "columns", "drop_columns"):
            values = getattr(self, option)
            if values is not None and not (
                isinstance(values, tuple) and all(isinstance(value, str) for value in values)
            ):
                raise OptionError(f"{option} is {values!r}: it is a tuple of texts")
        if self.names is not None and self.header:
            raise OptionError(
                "names are given, and the first line of the table names its columns",
                hint="add --no-header where the first line is data",
            )
        for option in ("names", "columns", "drop_columns"):
            values = getattr(self, option) or ()
            wrong = "" if "" in values else _repeated(values)
            if wrong is not None:
                what = f"{wrong!r} twice" if wrong else "an empty name"
                raise OptionError(f"{option} has {what}", hint="name each column once")
        if self.columns is not None and self.drop_columns is not None:
            raise OptionError(
                "--columns and --drop-columns both say which columns are read",
                hint="leave one of them off",
            )
        if self.columns == ():
            raise OptionError("--columns names no column", hint="leave it off to read all")
        if self.encoding is not None:
            found = _codec(self.encoding)
            object.__setattr__(self, "encoding", None if found == "utf-8" else found)

    @property
    def na_values(self) -> frozenset[str]:
        """The cells, without the empty one, that are missing values in columns of numbers."""
        return frozenset(NA_VALUES if self.na is None else self.na) - {""}

    def check_format(self, format: str) -> None:
        """Refuse an option that a format does not have.

        Raises:
            OptionError: Names the option and the formats that have it.
        """
        for option, value in self.to_json().items():
            flag, formats = _FORMATS.get(option, ("--names", ("csv",)))
            if format not in formats:
                raise OptionError(
                    f"{flag} is for {', '.join(formats)}, and the source is {format}",
                    hint=f"leave {flag} off" if value else f"leave {flag} (header=False) off",
                )

    def pick(self, names: Sequence[str], path: str | None = None) -> list[str]:
        """Return the columns of a table that are read, in the table's order.

        Args:
            names: Of all columns.
            path: Of the table, for the error.

        Raises:
            OptionError: There is no such column, or none is left.
        """
        asked = self.columns or self.drop_columns
        if not asked:
            return list(names)
        there = set(names)
        missing = [name for name in asked if name not in there]
        if missing:
            flag = "--columns" if self.columns else "--drop-columns"
            from difflib import get_close_matches

            close = get_close_matches(missing[0], names, n=3)
            raise OptionError(
                f"{flag} names {missing[0]!r}, and there is no such column",
                path=path,
                hint=f"did you mean {' or '.join(close)}?"
                if close
                else f"the columns are {', '.join(names[:20])}{', ...' * (len(names) > 20)}",
            )
        wanted = set(asked)
        found = [name for name in names if (name in wanted) == (self.columns is not None)]
        if not found:
            raise OptionError("--drop-columns leaves no column", path=path)
        return found

    @property
    def picks(self) -> bool:
        """Whether some columns are not read."""
        return bool(self.columns or self.drop_columns)

    def picked(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with the columns that are read."""
        asked, takes = set(self.columns or self.drop_columns or ()), self.columns is not None
        return [{n: row[n] for n in row if (n in asked) == takes} for row in rows]

    def to_json(self) -> dict[str, Any]:
        """Return what is not the default: it decides bytes, and goes into the job's hash."""
        told: dict[str, Any] = {} if self.header else {"header": False}
        for option in ("names", "na", "columns", "drop_columns"):
            values = getattr(self, option)
            if values is not None:
                told[option] = list(values)
        if self.encoding is not None:
            told["encoding"] = self.encoding
        return told


def table_options(
    *,
    header: bool = True,
    names: tuple[str, ...] | None = None,
    na: Sequence[str] | str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | str | None = None,
    drop_columns: Sequence[str] | str | None = None,
) -> TableOptions | None:
    """Return how a table is read; None where nothing but defaults is given.

    Args:
        header: As of :class:`TableOptions`.
        names: Likewise; they name the columns only where there is no header.
        na: Likewise; a list, or text with commas.
        encoding: Likewise.
        columns: Likewise; a list, or text with commas.
        drop_columns: Likewise.

    Raises:
        OptionError: A value is wrong, or two contradict each other.
    """
    found = TableOptions(
        header,
        None if header else names,
        _texts(na),
        encoding,
        _texts(columns),
        _texts(drop_columns),
    )
    return found if found.to_json() else None


def _texts(values: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if values is None:
        return None
    return tuple(values.split(",") if isinstance(values, str) else values)


def _repeated(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _codec(name: object) -> str:
    """Return Python's own name of a codec of text."""
    try:
        found = codecs.lookup(name) if isinstance(name, str) else None
    except (LookupError, ValueError):  # ValueError: the name holds a NUL
        found = None
    if found is None or not found._is_text_encoding:
        raise OptionError(
            f"--encoding {name!r}: there is no such encoding",
            hint="as in --encoding latin-1, cp1252, utf-16, shift_jis or gb18030",
        )
    return found.name
