"""What all commands share: errors on stderr with an exit code, and progress on a terminal."""

from __future__ import annotations

import io
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Annotated, Any

import typer

from shardwriter.errors import ShardwriterError, StorageError, UsageError
from shardwriter.progress_bar import reading_bar as reading_bar
from shardwriter.progress_bar import writing_bar as writing_bar

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show tracebacks with errors.")
]


class Terminated(KeyboardInterrupt):
    """The process was asked to end: SIGTERM or SIGHUP, as schedulers and closed terminals send."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_number = signal_number


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the work as Ctrl-C does, so that it is tidied up."""

    def terminate(signal_number: int, _frame: object) -> None:
        raise Terminated(signal_number)

    # What nohup has the program ignore stays ignored.
    heeded = [n for n in (SIGTERM, SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, terminate) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def reported(
    *, verbose: bool = False, left: Callable[[], str | None] | None = None
) -> Iterator[None]:
    """Turn an error into what, where and what to do on stderr, and its exit code.

    An exception that is not ours is a bug of ours or of the user's own code: it passes, with its
    traceback.

    Args:
        verbose: Show the traceback of our own errors too.
        left: Says what a command that was stopped has left behind; None where that is nothing.
    """
    try:
        yield
    except ShardwriterError as error:
        if verbose:
            traceback.print_exception(error)
        _say(error)
        if left is not None and error.exit_code != UsageError.exit_code:
            kept = _told_by(left)
            if kept is not None:
                hint(kept)
        raise typer.Exit(error.exit_code) from None
    except BrokenPipeError:
        raise  # typer ends quietly when the reader of stdout has gone
    except OSError as error:
        if verbose:
            traceback.print_exception(error)
        _say(StorageError(error.strerror or str(error), path=error.filename))
        raise typer.Exit(StorageError.exit_code) from None
    except KeyboardInterrupt as error:
        nothing = "nothing was published, and nothing is left behind"
        what = "" if left is None else f": {_told_by(left) or nothing}"
        typer.echo(f"interrupted{what}", err=True)
        number = error.signal_number if isinstance(error, Terminated) else SIGINT
        raise typer.Exit(128 + number) from None


def _told_by(left: Callable[[], str | None]) -> str | None:
    """Return what a command has left behind; None where that can not be told."""
    try:
        return left()
    except ShardwriterError:
        return None  # there is no such output, and another error has said so


def _say(error: ShardwriterError) -> None:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(error.summary, err=True)
    if error.hint:
        typer.secho("  do:  ", fg="green", nl=False, err=True)
        typer.echo(error.hint, err=True)


def hint(line: str) -> None:
    """Say something worth knowing on stderr."""
    typer.secho("note: ", fg="yellow", nl=False, err=True)
    typer.echo(line, err=True)


def print_anything() -> None:
    """Have names that the terminal can not show printed escaped, and not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(value: Any) -> None:
    """Print a result for machines."""
    import json

    typer.echo(json.dumps(value, indent=2, sort_keys=True))
