"""What all commands share: errors on stderr with an exit code, and progress on a terminal."""

from __future__ import annotations

import io
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from shardwriter.errors import OutOfMemory, ShardwriterError, StorageError, UsageError

if TYPE_CHECKING:
    from shardwriter.engines import Progress, Work

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
    except MemoryError as error:
        if verbose:
            traceback.print_exception(error)
        _say(OutOfMemory("there is not enough memory", hint="give the process more memory"))
        raise typer.Exit(OutOfMemory.exit_code) from None
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
    typer.echo(str(error), err=True)
    if error.hint:
        typer.secho("  do:  ", fg="green", nl=False, err=True)
        typer.echo(error.hint, err=True)


def hint(line: str) -> None:
    """Say something worth knowing on stderr."""
    typer.secho("note: ", fg="yellow", nl=False, err=True)
    typer.echo(line, err=True)


@contextmanager
def writing_bar() -> Iterator[Progress | None]:
    """Show on stderr, where that is a terminal, how far a write is and where its time goes.

    Yields:
        A function to tell how far the write has come; None off a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import MofNCompleteColumn

    from shardwriter.render import bytes_text, rate_text, shares_text

    with _bar("writing", MofNCompleteColumn()) as show:

        def update(work: Work) -> None:
            size = bytes_text(work.payload_bytes)
            notes = [work.split or "", shares_text(work.seconds)]
            if work.num_gaps:
                notes.append(f"{work.num_gaps:,} skipped")
            show(
                work.num_done,
                work.num_items,
                lambda s: f"{rate_text(work.num_done, s)}, {size}",
                "; ".join(filter(None, notes)),
            )

        yield update


@contextmanager
def reading_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show bytes read, rate and time left on stderr, where that is a terminal.

    Yields:
        A function to tell of (bytes read, bytes in all); None off a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import DownloadColumn

    from shardwriter.render import bytes_text

    with _bar(what, DownloadColumn()) as show:

        def update(done: int, total: int) -> None:
            show(done, total, lambda s: f"{bytes_text(done / s)}/s")

        yield update


class _Show(Protocol):
    def __call__(
        self, done: int, total: int | None, rate: Callable[[float], str], note: str = ""
    ) -> None: ...


@contextmanager
def _bar(what: str, count: Any) -> Iterator[_Show]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    rate_column = TextColumn("{task.fields[rate]}")
    name = TextColumn("{task.description}")
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    bar = Progress(name, BarColumn(bar_width=20), count, rate_column, *times)
    note_line = Text(style="dim", no_wrap=True, overflow="ellipsis")
    shown = Group(bar, note_line)
    with Live(shown, console=Console(stderr=True), transient=True, refresh_per_second=10):
        task = bar.add_task(what, total=None, rate="")

        def show(
            done: int, total: int | None, rate: Callable[[float], str], note: str = ""
        ) -> None:
            elapsed_s = bar.tasks[0].elapsed or 0
            text = rate(elapsed_s) if elapsed_s else ""
            bar.update(task, completed=done, total=total, rate=text)
            note_line.plain = note

        yield show


def print_anything() -> None:
    """Have names that the terminal can not show printed escaped, and not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(value: Any) -> None:
    """Print a result for machines."""
    import json

    typer.echo(json.dumps(value, indent=2, sort_keys=True))
