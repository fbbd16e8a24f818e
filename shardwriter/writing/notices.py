"""Notices of a write to the user: information, notes on possible problems, warnings about data.

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
"""Called with each line for the user."""

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Notices:
    """The notices of one write; each is shown once.

    Args:
        notify: Called with each line; None for `logging` and `warnings`, as in the table above.

    Attributes:
        warnings: The warnings about data so far, as (split, warning).
    """

    def __init__(self, notify: Notify | None = None) -> None:
        self._notify = notify
        self._shown: set[tuple[str | None, str]] = set()
        self.warnings: list[tuple[str | None, DataWarning]] = []

    def info(self, line: str, split: str | None = None) -> None:
        """Show information, such as how much a resumed run has already."""
        if self._is_new(line, split):
            self.show_info(_of_split(line, split))

    def note(self, line: str, split: str | None = None) -> None:
        """Show a note on a possible problem."""
        if self._is_new(line, split):
            self.show_note(_of_split(line, split))

    def warn(self, warning: DataWarning, split: str | None = None) -> None:
        """Show a warning about data."""
        if self._is_new(warning.message, split):
            self.warnings.append((split, warning))
            self.show_warning(warning, split)

    def of_split(self, split: str | None) -> list[DataWarning]:
        """Return the warnings of a split, and those of no particular split."""
        return [warning for name, warning in self.warnings if name in (None, split)]

    def show_info(self, line: str) -> None:
        """Write information to ``notify``, or to the logger."""
        if self._notify is not None:
            self._notify(line)
        else:
            import logging  # takes 5 ms, and no command needs it

            logging.getLogger("shardwriter").info(line)

    def show_note(self, line: str) -> None:
        """Write a note to ``notify``, or issue a ShardwriterWarning."""
        if self._notify is not None:
            self._notify(line)
        else:
            _issue(ShardwriterWarning(python_words(line)))

    def show_warning(self, warning: DataWarning, split: str | None) -> None:
        """Write a warning to ``notify``, or issue it."""
        if self._notify is not None:
            self._notify(_of_split(_with_hint(warning), split))
        else:
            named = copy(warning)
            named.message = _of_split(warning.message, split)
            _issue(named)

    def _is_new(self, line: str, split: str | None) -> bool:
        is_new = not self._shown & {(None, line), (split, line)}
        self._shown.add((split, line))
        return is_new


def _of_split(line: str, split: str | None) -> str:
    return line if split is None else f"{split}: {line}"


def _with_hint(warning: DataWarning) -> str:
    return warning.message if warning.hint is None else f"{warning.message}. {warning.hint}"


def _issue(warning: ShardwriterWarning) -> None:
    """Issue a warning at the caller's line outside this package."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(warning, stacklevel=level)


def _is_internal(file_name: str) -> bool:
    # contextlib and contextlib2 call the code of our context managers.
    is_context = os.path.basename(file_name) in ("contextlib.py", "_contextlib.py")
    return file_name.startswith(_PACKAGE) or is_context or "contextlib2" in file_name
