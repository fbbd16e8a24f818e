"""What a write says in a terminal, on stderr."""

from __future__ import annotations

import typer

from shardwriter.cli.common import hint
from shardwriter.errors import DataWarning
from shardwriter.formats.text import clean
from shardwriter.notices import Notices


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
        typer.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
        typer.echo(clean(message), err=True)
        if warning.hint is not None:
            typer.secho("  do:  ", fg="green", nl=False, err=True)
            typer.echo(clean(warning.hint), err=True)
