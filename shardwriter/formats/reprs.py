"""How objects show themselves in a console and in a notebook: a few lines, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from shardwriter.formats.text import clean

_MAX_VALUE: Final = 80  # characters


def options_repr(options: Any) -> str:
    """Return the repr of a dataclass of options, all of which have defaults: what is another."""
    given = []
    for name, default in vars(type(options)()).items():
        value = getattr(options, name)
        if value != default:
            text = repr(value)
            given.append(f"{name}={text if len(text) <= _MAX_VALUE else text[:77] + '...'}")
    return f"{type(options).__name__}({', '.join(given)})"


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table for a notebook: names and values, escaped.

    Args:
        title: Its heading.
        rows: Name and value of each.
    """
    from html import escape

    cells = "".join(
        f'<tr><th style="text-align:left">{escape(clean(name))}</th>'
        f'<td style="text-align:left">{escape(clean(str(value)))}</td></tr>'
        for name, value in rows
    )
    heading = f'<caption style="text-align:left"><b>{escape(clean(title))}</b></caption>'
    return f"<table>{heading}{cells}</table>"
