"""The progress bar of the commands and of ``progress=True``.

A terminal shows it on stderr, a Jupyter notebook as an output of the cell that is updated in place.
Elsewhere (a pipe, a log file) there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from shardwriter.errors import OptionError
from shardwriter.formats import (
    bytes_text,
    clean,
    rate_text,
    shares_text,
)

if TYPE_CHECKING:
    from shardwriter.writing.engine import Progress, Work

Reading = Callable[[int, int], None]
"""Called with (bytes read, total bytes)."""

_NOTEBOOK_UPDATE_S: Final = 0.1


def writing_progress(
    progress: Progress | bool | None,
) -> AbstractContextManager[Progress | None]:
    """Return a context manager for the ``progress`` argument of a writing function.

    Args:
        progress: True for a bar that stays when it is full; False or None for none; or a function,
            which the context yields.

    Raises:
        OptionError: ``progress`` is something else.
    """
    if _wants_bar(progress):
        return writing_bar(is_transient=False)
    return nullcontext(progress or None)  # type: ignore[arg-type]  # False, None or a function


def reading_progress(
    progress: Reading | bool | None, what: str
) -> AbstractContextManager[Reading | None]:
    """Return a context manager for the ``progress`` argument of a reading function.

    Args:
        progress: As for :func:`writing_progress`.
        what: Label of the bar.
    """
    if _wants_bar(progress):
        return reading_bar(what, is_transient=False)
    return nullcontext(progress or None)  # type: ignore[arg-type]


def repairing_progress(
    progress: Progress | bool | None, reading: Reading | None
) -> AbstractContextManager[tuple[Reading | None, Progress | None]]:
    """Return a context manager for the ``progress`` and ``reading`` arguments of a repair."""
    if _wants_bar(progress):
        return repairing_bars(is_transient=False)
    return nullcontext((reading, progress or None))  # type: ignore[arg-type]


def _wants_bar(progress: object) -> bool:
    if progress is None or isinstance(progress, bool) or callable(progress):
        return progress is True
    raise OptionError(f"progress is {progress!r}", hint="use True for a bar, or a function to call")


@contextmanager
def writing_bar(*, is_transient: bool = True) -> Iterator[Progress | None]:
    """Show a bar with the progress of a write and its time by stage.

    Args:
        is_transient: Whether the bar is cleared at the end.

    Yields:
        A function to report progress; None if there is no place for a bar.
    """
    with _bar("writing", "count", is_transient) as show:
        if show is None:
            yield None
            return

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
def reading_bar(what: str, *, is_transient: bool = True) -> Iterator[Reading | None]:
    """Show a bar with bytes read, rate and time left.

    Args:
        what: Label of the bar.
        is_transient: Whether the bar is cleared at the end.

    Yields:
        A function to report (bytes read, total bytes); None if there is no place for a bar.
    """
    with _bar(what, "bytes", is_transient) as show:
        if show is None:
            yield None
            return

        def update(done: int, total: int) -> None:
            show(done, total, lambda s: f"{bytes_text(done / s)}/s")

        yield update


@contextmanager
def repairing_bars(
    *, is_transient: bool = True
) -> Iterator[tuple[Reading | None, Progress | None]]:
    """Show a bar for the scan of a repair, and then one for its write in the same place.

    Args:
        is_transient: Whether a bar is cleared at its end.

    Yields:
        The functions to report the progress of both.
    """
    with ExitStack() as shown:
        reading = shown.enter_context(reading_bar("verifying", is_transient=is_transient))
        if reading is None:
            yield None, None
            return
        writing: list[Progress | None] = []

        def progress(work: Work) -> None:
            if not writing:
                shown.close()
                writing.append(shown.enter_context(writing_bar(is_transient=is_transient)))
            if writing[0] is not None:
                writing[0](work)

        yield reading, progress


class _Update(Protocol):
    def __call__(
        self, done: int, total: int | None, rate: Callable[[float], str], note: str = ""
    ) -> None: ...


def _bar(what: str, unit: str, is_transient: bool) -> AbstractContextManager[_Update | None]:
    """Return a bar for this notebook or terminal; a context of None for neither."""
    if _in_notebook():
        return _notebook_bar(what, unit)
    if sys.stderr is not None and sys.stderr.isatty():
        return _terminal_bar(what, unit, is_transient)
    return nullcontext()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # imported by a kernel
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _terminal_bar(what: str, unit: str, is_transient: bool) -> Iterator[_Update]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Times(ProgressColumn):
        """``0:12, 0:30 left``; without the second if the total is unknown."""

        def render(self, task: Task) -> Text:
            text = _clock(task.elapsed or 0)
            if task.time_remaining is not None and not task.finished:
                text += f", {_clock(task.time_remaining)} left"
            return Text(text, style="progress.elapsed")

    columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "rate")]
    name = TextColumn("{task.description}", markup=False)
    bar = Progress(name, BarColumn(bar_width=20), *columns, Times())
    note_line = Text(style="dim", no_wrap=True, overflow="ellipsis")
    shown = Group(bar, note_line)
    console = Console(stderr=True)
    with Live(shown, console=console, transient=is_transient, refresh_per_second=10):
        task = bar.add_task(what, total=None, count="", rate="")

        def show(
            done: int, total: int | None, rate: Callable[[float], str], note: str = ""
        ) -> None:
            elapsed_s = bar.tasks[0].elapsed or 0
            text = rate(elapsed_s) if elapsed_s else ""
            count = _count_text(unit, done, total)
            bar.update(task, completed=done, total=total, count=count, rate=text)
            note_line.plain = clean(note)

        yield show


@contextmanager
def _notebook_bar(what: str, unit: str) -> Iterator[_Update]:
    import IPython.display

    display: Any = IPython.display.display
    handle = display({"text/plain": what}, raw=True, display_id=True)
    begin = shown_at = monotonic()
    newest: dict[str, str] = {}

    def show(done: int, total: int | None, rate: Callable[[float], str], note: str = "") -> None:
        nonlocal shown_at, newest
        now = monotonic()
        newest = _notebook_line(what, unit, done, total, now - begin, rate, note)
        if now - shown_at >= _NOTEBOOK_UPDATE_S:
            shown_at = now
            handle.update(newest, raw=True)

    try:
        yield show
    finally:
        if newest:
            handle.update(newest, raw=True)


def _notebook_line(
    what: str,
    unit: str,
    done: int,
    total: int | None,
    elapsed_s: float,
    rate: Callable[[float], str],
    note: str,
) -> dict[str, str]:
    """Return the bar as text and as HTML."""
    from html import escape

    parts = [_count_text(unit, done, total)]
    if elapsed_s > 0:
        parts.append(rate(elapsed_s))
    parts.append(f"{_clock(elapsed_s)} elapsed")
    if total is not None and 0 < done < total:
        parts.append(f"{_clock(elapsed_s * (total - done) / done)} left")
    text = ", ".join(parts)
    tail = f" ({note})" if note else ""
    known = "" if total is None else f' value="{done}" max="{max(total, 1)}"'
    return {
        "text/plain": f"{what} {text}{tail}",
        "text/html": f"{escape(what)} <progress{known}></progress> {escape(text + tail)}",
    }


def _count_text(unit: str, done: int, total: int | None) -> str:
    number = bytes_text if unit == "bytes" else "{:,}".format
    return number(done) if total is None else f"{number(done)}/{number(total)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
