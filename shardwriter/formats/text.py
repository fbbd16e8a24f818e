"""Format text for people: escape untrusted strings; sizes, rates and tables.

File names, keys, lock files and values are untrusted: a control character in one of them could
move the cursor, hide a line or reorder the text on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final


def bytes_text(num_bytes: float | None) -> str:
    """Return a size with its unit: ``80.3 kB``."""
    if num_bytes is None:
        return "-"
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:,.1f} {unit}"


def rate_text(count: float, elapsed_s: float) -> str:
    """Return a rate: ``1,234 items/s``."""
    rate = count / max(elapsed_s, 1e-9)
    return f"{rate:,.0f} items/s" if rate >= 10 else f"{rate:.1f} items/s"


def shares_text(seconds: Mapping[str, float]) -> str:
    """Return the share of time of each stage over 0.5 %: ``read 60%, encode 40%``."""
    total = sum(seconds.values())
    shares = {stage: value / total for stage, value in seconds.items() if value > 0.005 * total}
    return ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items())


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 record``, ``1,234 records``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def clean(text: str) -> str:
    r"""Return a text with unprintable characters escaped: ``\x1b``, ``\n``."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


_MAX_VALUE: Final = 80  # characters in a repr


def options_repr(options: Any) -> str:
    """Return the repr of a dataclass of options: the fields that differ from their defaults."""
    changed = []
    for name, default in vars(type(options)()).items():
        value = getattr(options, name)
        if value != default:
            text = repr(value)
            changed.append(f"{name}={text if len(text) <= _MAX_VALUE else text[:77] + '...'}")
    return f"{type(options).__name__}({', '.join(changed)})"


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return an HTML table for a notebook, with names and values escaped.

    Args:
        title: The heading.
        rows: Name and value of each row.
    """
    from html import escape

    cells = "".join(
        f'<tr><th style="text-align:left">{escape(clean(name))}</th>'
        f'<td style="text-align:left">{escape(clean(str(value)))}</td></tr>'
        for name, value in rows
    )
    heading = f'<caption style="text-align:left"><b>{escape(clean(title))}</b></caption>'
    return f"<table>{heading}{cells}</table>"
