"""Python source: names and paths quoted, long lines broken as formatters break them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

WIDTH: Final = 88  # what black and ruff have by default
_INDENT: Final = "    "


def quoted(text: str) -> str:
    """Return a text as a literal on one line, whatever is in it.

    What can not be printed is escaped, so nothing of it ends the literal or the line.
    """
    literal = repr(text)
    if literal[0] == "'" and '"' not in text:
        return f'"{literal[1:-1]}"'
    if '"' in text and text.count('"') <= text.count("'"):
        body = literal[1:-1].replace("\\'", "'").replace('"', '\\"')
        return f'"{body}"'
    return literal


def literal(value: Any) -> str:
    """Return numbers, texts and lists of them as source; a float that is none as ``float("nan")``.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return repr(value) if b'"' in value else f'b"{repr(value)[2:-1]}"'
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        is_finite = value == value and abs(value) != float("inf")
        return repr(value) if is_finite else f'float("{value}")'
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(literal, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise TypeError(f"{type(value).__name__} has no literal")


def call(head: str, parts: Sequence[str], tail: str = ")", indent: int = 0) -> list[str]:
    """Return the lines of a call: in one, else its arguments in one, else one a line.

    Args:
        head: All up to the opening bracket, with it.
        parts: The arguments.
        tail: The closing bracket, and what is behind it.
        indent: Levels of the first line.
    """
    lines = _in_one(head, parts, tail, indent)
    if lines is not None:
        return lines
    inner = _INDENT * (indent + 1) + ", ".join(parts)
    if len(inner) <= WIDTH:
        return [_INDENT * indent + head, inner, _INDENT * indent + tail]
    return _exploded(head, parts, tail, indent)


def collection(head: str, parts: Sequence[str], tail: str, indent: int = 0) -> list[str]:
    """Return the lines of a list, a dict or a tuple: in one, else one item a line."""
    lines = _in_one(head, parts, tail, indent)
    return _exploded(head, parts, tail, indent) if lines is None else lines


def entries(head: str, groups: Sequence[Sequence[str]], tail: str, indent: int = 0) -> list[str]:
    """Return a dict whose entries are lines that stand as they are, one or more each."""
    inner = [_INDENT * (indent + 1) + line for group in groups for line in group]
    return [_INDENT * indent + head, *inner, _INDENT * indent + tail]


def _in_one(head: str, parts: Sequence[str], tail: str, indent: int) -> list[str] | None:
    one = _INDENT * indent + head + ", ".join(parts) + tail
    return [one] if len(one) <= WIDTH else None


def _exploded(head: str, parts: Sequence[str], tail: str, indent: int) -> list[str]:
    inner = [f"{_INDENT * (indent + 1)}{part}," for part in parts]
    return [_INDENT * indent + head, *inner, _INDENT * indent + tail]


def comment(text: str, indent: int = 0) -> list[str]:
    """Return a comment, folded at spaces; its text is one line, and is made printable.

    A name in it stands there as `quoted` has it.
    """
    room = WIDTH - len(_INDENT * indent) - 2
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return [f"{_INDENT * indent}# {line}" for line in lines]
