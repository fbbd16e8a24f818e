r"""Text from data, made safe to print.

File names, keys, lock files and values come from outside: a control character in one of them could
move the cursor, hide a line or reorder what is read.
"""

from __future__ import annotations


def clean(text: str) -> str:
    r"""Return a text with everything that a terminal would act on spelled out: ``\x1b``, ``\n``."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )
