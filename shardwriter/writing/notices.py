"""What a write says to a person on the way: information, hints of a problem, warnings about data.

=================  =======================  ===================================  ==================
what               commands                 Python                               with ``notify``
=================  =======================  ===================================  ==================
``info``           ``note:`` on stderr      ``logging``, logger ``shardwriter``  a line
``note``           ``note:`` on stderr      ``ShardwriterWarning``               a line
``warn``           ``warning:`` on stderr   ``DataWarning``                      a line
=================  =======================  ===================================  ==================
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from copy import copy
from typing import Final

from shardwriter.errors import DataWarning, ShardwriterWarning, python_words

Notify = Callable[[str], None]
"""Called with what a person should know, one line at a time."""

_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Notices:
    """Says everything once.

    Args:
        notify: Called with each line; None to issue what may be a problem through `warnings`.

    Attributes:
        warnings: The warnings about data so far, each with its split.
    """

    def __init__(self, notify: Notify | None = None) -> None:
        self._notify = notify
        self._said: set[tuple[str | None, str]] = set()
        self.warnings: list[tuple[str | None, DataWarning]] = []

    def info(self, line: str, split: str | None = None) -> None:
        """Say what is no problem: what a resumed run need not do again, say."""
        if self._is_new(line, split):
            self.show_info(_of_split(line, split))

    def note(self, line: str, split: str | None = None) -> None:
        """Say what hints at a problem."""
        if self._is_new(line, split):
            self.show_note(_of_split(line, split))

    def warn(self, warning: DataWarning, split: str | None = None) -> None:
        """Warn about data."""
        if self._is_new(warning.message, split):
            self.warnings.append((split, warning))
            self.show_warning(warning, split)

    def of_split(self, split: str | None) -> list[DataWarning]:
        """Return the warnings that concern a split."""
        return [warning for name, warning in self.warnings if name in (None, split)]

    def show_info(self, line: str) -> None:
        """Show information."""
        if self._notify is not None:
            self._notify(line)
        else:
            import logging  # 5 ms, which no command needs

            logging.getLogger("shardwriter").info(line)

    def show_note(self, line: str) -> None:
        """Show a hint of a problem."""
        if self._notify is not None:
            self._notify(line)
        else:
            _issue(ShardwriterWarning(python_words(line)))

    def show_warning(self, warning: DataWarning, split: str | None) -> None:
        """Show a warning about data."""
        if self._notify is not None:
            self._notify(_of_split(_with_hint(warning), split))
        else:
            named = copy(warning)
            named.message = _of_split(warning.message, split)
            _issue(named)

    def _is_new(self, line: str, split: str | None) -> bool:
        is_new = not self._said & {(None, line), (split, line)}
        self._said.add((split, line))
        return is_new


def _of_split(line: str, split: str | None) -> str:
    return line if split is None else f"{split}: {line}"


def _with_hint(warning: DataWarning) -> str:
    return warning.message if warning.hint is None else f"{warning.message}. {warning.hint}"


def _issue(warning: ShardwriterWarning) -> None:
    """Issue a warning at the line of the program that called this package."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(warning, stacklevel=level)


def _is_ours(file_name: str) -> bool:
    # A context manager's code is called by contextlib, or by contextlib2.
    is_context = os.path.basename(file_name) in ("contextlib.py", "_contextlib.py")
    return file_name.startswith(_OURS) or is_context or "contextlib2" in file_name
