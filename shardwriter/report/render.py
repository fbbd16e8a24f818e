"""Text formats that all tables share: sizes, numbers, shares, shortened names, the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwriter.formats import bytes_text as bytes_text
from shardwriter.formats import clean
from shardwriter.formats import plural as plural
from shardwriter.formats import rate_text as rate_text
from shardwriter.formats import shares_text as shares_text

_PIPE_CELLS: Final = 1_000_000  # wider than any line


def make_console(*, soft_wrap: bool = True) -> Console:
    """Return a console for stdout, without markup.

    In a pipe or a file lines are not wrapped or cut, so that ``grep`` finds whole names.
    """
    # Highlighting would colour every number; a path may contain text that looks like markup.
    console = Console(highlight=False, soft_wrap=soft_wrap, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_CELLS
    return console


def max_cells(console: Console, on_terminal: int) -> int:
    """Return the width limit of a name in cells; practically none if not on a terminal."""
    return on_terminal if console.is_terminal else _PIPE_CELLS


def number_text(value: Any) -> str:
    """Return a number of a report with 4 digits: ``12``, ``0.1307``, ``3.4e+38``, ``nan``."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clean(str(value))  # "nan" and "inf" are text in JSON
    if isinstance(value, int) and abs(value) < 10_000_000:
        return f"{value:,}"
    return f"{value:.4g}"


def share_text(share: float | None) -> str:
    """Return a share in percent; only exactly 1 is 100% and only exactly 0 is 0%."""
    if share is None:
        return "-"
    percent = 100 * share
    if 0 < percent < 0.1:
        return "<0.1%"
    if 99.9 < percent < 100:
        return ">99.9%"
    return f"{percent:.0f}%" if percent in (0, 100) or 10 <= percent < 99 else f"{percent:.1f}%"


def shorten(text: str, num_cells: int) -> str:
    """Return a cleaned text, shortened in the middle to at most ``num_cells`` cells.

    The ends stay, since similar names differ at the ends.
    """
    text = clean(text)
    if cell_len(text) <= num_cells:
        return text
    if num_cells <= 3:
        return set_cell_size(text, max(num_cells, 0)).rstrip()
    behind = (num_cells - 1) // 2
    head = set_cell_size(text, num_cells - 1 - behind).rstrip()
    tail = text[-behind:]
    while cell_len(tail) > behind:
        tail = tail[1:]
    return f"{head}…{tail}"


def print_pairs(console: Console, rows: Sequence[tuple[str, str | Text]]) -> None:
    """Print pairs of a name and a value in two columns; strings are cleaned."""
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(
            Text(name, style="bold"), Text(clean(value)) if isinstance(value, str) else value
        )
    console.print(grid)
