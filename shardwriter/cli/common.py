"""What all commands share: text on stdout and stderr, errors with an exit code, progress.

All text that a command prints outside of tables goes through :func:`say`, :func:`hint` and
:func:`reported`: each is given one line, and names in it that hold control characters are escaped.
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
from shardwriter.writing import reading_bar as reading_bar
from shardwriter.writing import writing_bar as writing_bar

# Standard streams that stop no command: closed ones, pipes that nobody reads, odd characters.
#
# A file that a program opens takes the lowest free descriptor: with stderr closed, the first shard
# would be descriptor 2, and what a library prints would go into it. So closed streams are opened on
# the null device before anything else is.

_NUMBERS: Final = (0, 1, 2)


def prepare_streams() -> None:
    """Make stdin, stdout and stderr safe to use, whatever the command was started with.

    - A closed one is the null device.
    - What is written after the reader of a pipe has gone (``| head -1``) is dropped, so that a
      command does its work and its exit code says what the data says.
    - Characters that the encoding lacks are escaped.
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
    """Return False once the reader of stdout has gone: a command that only prints can stop."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, _Output) and raw.is_dropped)


class _Output(io.FileIO):
    """stdout or stderr; what is written to a broken pipe is dropped.

    Attributes:
        is_dropped: Whether a write has failed: the descriptor is the null device from then on.
    """

    is_dropped = False

    def write(self, data: Any, /) -> int:
        """Return how many bytes were written or dropped.

        Raises:
            OSError: They can not be written, as on a full disk: once, the rest is dropped too.
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
    """Whether a stream writes to a descriptor itself; one that a program captures with does not."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except OSError:
        return False


def _output(stream: Any, number: int) -> Any:
    """Return a stream in the place of the interpreter's; a program's own stays."""
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
    os.set_inheritable(number, True)  # workers have it too


JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show tracebacks with errors.")
]


_LIBRARIES: Final = ("apache_beam", "azure", "boto3", "botocore", "google", "hdfs", "urllib3")


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
    if not verbose:
        _quiet_libraries()
    try:
        yield
    except ShardwriterError as error:
        _report(error, verbose=verbose)
        if left is not None and error.exit_code != UsageError.exit_code:
            kept = _told_by(left)
            if kept is not None:
                hint(kept)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        failure = StorageError(error.strerror or str(error), path=error.filename)
        _report(failure, verbose=verbose, raised=error)
        raise typer.Exit(StorageError.exit_code) from None
    except MemoryError as error:
        failed = OutOfMemory("there is not enough memory", hint="give the process more memory")
        _report(failed, verbose=verbose, raised=error)
        raise typer.Exit(OutOfMemory.exit_code) from None
    except KeyboardInterrupt as error:
        nothing = "nothing was published, and nothing is left behind"
        what = "" if left is None else f": {_told_by(left) or nothing}"
        typer.echo(clean(f"interrupted{what}"), err=True)
        number = error.signal_number if isinstance(error, Terminated) else SIGINT
        raise typer.Exit(128 + number) from None


def _quiet_libraries() -> None:
    """Have the libraries behind URLs log errors only: what concerns the user is reported by us."""
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})\b")


def _told_by(left: Callable[[], str | None]) -> str | None:
    """Return what a command has left behind; None where that can not be told."""
    try:
        return left()
    except ShardwriterError:
        return None  # there is no such output, and another error has said so


def _report(error: ShardwriterError, *, verbose: bool, raised: BaseException | None = None) -> None:
    """Print what, where and what to do next; with ``verbose`` the traceback first."""
    if verbose:
        lines = "".join(traceback.format_exception(raised or error)).splitlines()
        typer.echo("\n".join(f"  {clean(line)}" for line in lines), err=True)
    _labelled("error: ", error.summary, "red", bold=True)
    if error.hint:
        advise(error.hint)


def hint(line: str) -> None:
    """Print a line worth knowing on stderr."""
    _labelled("note: ", line, "yellow")


def warn(line: str) -> None:
    """Print a warning on stderr."""
    _labelled("warning: ", line, "yellow", bold=True)


def advise(line: str) -> None:
    """Print what to type next, below an error or a warning."""
    _labelled("  do:  ", line, "green")


def _labelled(label: str, line: str, color: str, *, bold: bool = False) -> None:
    # sys.stderr as it is now, and the line as a whole: while a bar is shown it is rich's, which
    # prints lines above the bar. With err=True typer would look behind it and write into the bar.
    text = f"{typer.style(label, fg=color, bold=bold)}{clean(line)}"
    typer.echo(text, file=sys.stderr)


def say(line: str, *, color: str | None = None, bold: bool = False) -> None:
    """Print a line on stdout."""
    typer.secho(clean(line), fg=color, bold=bold)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a result for machines: in ASCII, on one line where ``indent`` is None."""
    import json

    text = json.dumps(value, indent=indent, sort_keys=True)
    typer.echo(text.replace("\x7f", "\\u007f"))  # the one control character that JSON lets pass
