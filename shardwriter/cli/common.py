"""Shared by all commands: safe standard streams, lines on stdout and stderr, errors, exit codes.

All text outside of tables goes through `say`, `hint` and `reported`, a line at a time; control
characters in names are escaped.

`prepare_streams` runs before anything opens a file: a file takes the lowest free descriptor, so
with stderr closed the first shard would be descriptor 2, and a library's messages would be written
into it. Closed streams are therefore opened on the null device first.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Annotated, Any, Final

import typer

from shardwriter.errors import OutOfMemory, ShardwriterError, StorageError, UsageError
from shardwriter.formats import clean

_NUMBERS: Final = (0, 1, 2)


def prepare_streams() -> None:
    """Make stdin, stdout and stderr safe to use.

    - A closed stream is opened on the null device.
    - Output to a pipe without a reader (``| head -1``) is dropped: the command finishes its work,
      and its exit code depends on the data only.
    - Characters that the encoding can not represent are escaped.
    """
    for number in _NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            _use_null_device(number)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it stays open
    sys.stdout = _output(sys.stdout, 1)
    sys.stderr = _output(sys.stderr, 2)


def has_reader() -> bool:
    """Return False once the reader of stdout has closed it, so that printing can stop."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, _Output) and raw.is_dropped)


class _Output(io.FileIO):
    """stdout or stderr; output to a broken pipe is dropped.

    Attributes:
        is_dropped: Whether a write has failed; the descriptor is then the null device.
    """

    is_dropped = False

    def write(self, data: Any, /) -> int:
        """Return how many bytes were written or dropped.

        Raises:
            OSError: The write fails, as on a full disk. Raised once: later output is dropped.
        """
        try:
            return super().write(data)
        except OSError as error:
            self.is_dropped = True
            number = self.fileno()
            _use_null_device(number)
            if isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            error.filename = "stdout" if number == 1 else "stderr"
            raise


def _is_of(stream: Any, number: int) -> bool:
    """Return whether a stream writes to this descriptor, and is not one that captures output."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except OSError:
        return False


def _output(stream: Any, number: int) -> Any:
    """Return a replacement for the interpreter's stream; a stream set by a program stays."""
    if stream is not None and not _is_of(stream, number):
        return stream
    file = io.BufferedWriter(_Output(number, "w", closefd=False))
    if stream is None:
        return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)
    is_by_line = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=is_by_line)


def _use_null_device(number: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)  # for worker processes


JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show tracebacks with errors.")
]


_LIBRARIES: Final = ("apache_beam", "azure", "boto3", "botocore", "google", "hdfs", "urllib3")


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM or SIGHUP, as schedulers and closed terminals send."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_number = signal_number


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that cleanup runs."""

    def terminate(signal_number: int, _frame: object) -> None:
        raise Terminated(signal_number)

    # Signals that are ignored, as under nohup, stay ignored.
    numbers = [n for n in (SIGTERM, SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, terminate) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def reported(
    *, verbose: bool = False, left: Callable[[], str | None] | None = None
) -> Iterator[None]:
    """Print an error of the package on stderr (what, where, what to type next) and exit.

    Other exceptions are bugs, of this package or of the user's code: they pass, with a traceback.

    Args:
        verbose: Also print the traceback of the package's errors.
        left: Returns a note about the files a stopped command has left; None if there are none.
    """
    if not verbose:
        _quiet_libraries()
    try:
        yield
    except ShardwriterError as error:
        _report(error, verbose=verbose)
        if left is not None and error.exit_code != UsageError.exit_code:
            note = _leftover(left)
            if note is not None:
                hint(note)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        failure = StorageError(error.strerror or str(error), path=error.filename)
        _report(failure, verbose=verbose, raised=error)
        raise typer.Exit(StorageError.exit_code) from None
    except MemoryError as error:
        failed = OutOfMemory("out of memory", hint="use fewer workers, or give it more memory")
        _report(failed, verbose=verbose, raised=error)
        raise typer.Exit(OutOfMemory.exit_code) from None
    except KeyboardInterrupt as error:
        nothing = "nothing was published, and nothing is left behind"
        what = "" if left is None else f": {_leftover(left) or nothing}"
        typer.echo(clean(f"interrupted{what}"), err=True)
        number = error.signal_number if isinstance(error, Terminated) else SIGINT
        raise typer.Exit(128 + number) from None


def _quiet_libraries() -> None:
    """Silence warnings of the storage and Beam libraries; their errors are still shown."""
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})\b")


def _leftover(left: Callable[[], str | None]) -> str | None:
    """Return the note about leftover files; None if it can not be found out."""
    try:
        return left()
    except ShardwriterError:
        return None  # OUT is invalid: the error itself says so


def _report(error: ShardwriterError, *, verbose: bool, raised: BaseException | None = None) -> None:
    """Print an error and its hint; with ``verbose`` the traceback first."""
    if verbose:
        lines = "".join(traceback.format_exception(raised or error)).splitlines()
        typer.echo("\n".join(f"  {clean(line)}" for line in lines), err=True)
    _labelled("error: ", error.summary, "red", bold=True)
    if error.hint:
        advise(error.hint)


def hint(line: str) -> None:
    """Print a note on stderr."""
    _labelled("note: ", line, "yellow")


def warn(line: str) -> None:
    """Print a warning on stderr."""
    _labelled("warning: ", line, "yellow", bold=True)


def advise(line: str) -> None:
    """Print what to type next, below an error or a warning."""
    _labelled("  do:  ", line, "green")


def _labelled(label: str, line: str, color: str, *, bold: bool = False) -> None:
    # While a progress bar is shown, sys.stderr is rich's stream, which prints whole lines above
    # the bar. err=True would bypass it and write into the bar.
    text = f"{typer.style(label, fg=color, bold=bold)}{clean(line)}"
    typer.echo(text, file=sys.stderr)


def say(line: str, *, color: str | None = None, bold: bool = False) -> None:
    """Print a line on stdout."""
    typer.secho(clean(line), fg=color, bold=bold)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as ASCII JSON with sorted keys, on one line if ``indent`` is None."""
    import json

    text = json.dumps(value, indent=indent, sort_keys=True)
    typer.echo(text.replace("\x7f", "\\u007f"))  # the one control character JSON does not escape
