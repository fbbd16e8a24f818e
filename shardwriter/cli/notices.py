"""What a write says in a terminal, on stderr."""

from __future__ import annotations

from shardwriter.cli.common import advise, hint, warn
from shardwriter.errors import DataWarning
from shardwriter.writing.notices import Notices


class TerminalNotices(Notices):
    """Says everything once, on stderr."""

    def show_info(self, line: str) -> None:
        """Show information."""
        hint(line)

    def show_note(self, line: str) -> None:
        """Show a hint of a problem."""
        hint(line)

    def show_warning(self, warning: DataWarning, split: str | None) -> None:
        """Show a warning about data, and what to type to keep the values."""
        message = warning.message if split is None else f"{split}: {warning.message}"
        warn(message)
        if warning.hint is not None:
            advise(warning.hint)
