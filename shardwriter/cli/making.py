"""What commands that make a dataset share: the bar, what is printed, signals."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from shardwriter.cli.common import print_json, terminable, writing_bar
from shardwriter.cli.notices import TerminalNotices
from shardwriter.cli.written import Written, print_all_written, written_json

if TYPE_CHECKING:
    from shardwriter.dataset.naming import Output
    from shardwriter.sources.source import Source
    from shardwriter.writing.engine import Progress, Work
    from shardwriter.writing.notices import Notices
    from shardwriter.writing.options import DatasetOptions, RunOptions


def make(
    write: Callable[[Progress, Notices], Sequence[Written]],
    *,
    json: bool,
    timed: bool,
    timings: bool = False,
) -> None:
    """Have datasets written, and print what they are.

    Args:
        write: Writes them, and tells how far it is, and what a person should know.
        json: Print JSON.
        timed: Whether all of it is made now, so that a rate means something.
        timings: Say where the time went.
    """
    # Rows and records come and go by the million, without cycles: collect less often.
    gc.set_threshold(100_000, 20, 20)
    started = time.monotonic()
    told: dict[str | None, Work] = {}
    notices = TerminalNotices()

    def progress(work: Work) -> None:
        told[work.split] = work
        if show is not None:
            show(work)

    # What a map prints is no result: the pool's workers print to stderr too.
    with terminable(), writing_bar() as show, redirect_stdout(sys.stderr):
        written = write(progress, notices)
    elapsed_s = time.monotonic() - started
    found = [
        each._replace(work=told.get(each.split), warnings=notices.of_split(each.split))
        for each in written
    ]
    if json:
        print_json(written_json(found, elapsed_s))
        return
    # Without work there was nothing to do.
    is_whole = timed and all(each.work is not None for each in found)
    print_all_written(found, elapsed_s if is_whole else None, timings=timings)


def make_copy(
    open_source: Callable[[], Source],
    output: Output,
    options: DatasetOptions,
    run_options: RunOptions,
    *,
    json: bool,
) -> None:
    """Have the records of other datasets written as one, and print what it is.

    Args:
        open_source: Opens those datasets.
        output: What OUT says.
        options: What decides the bytes.
        run_options: What does not.
        json: Print JSON.
    """
    from shardwriter.writing.writing import write_dataset

    def made(progress: Progress, notices: Notices) -> list[Written]:
        manifest = write_dataset(open_source, output, options, run_options, progress, notices)
        return [Written(None, output.directory, manifest)]

    make(made, json=json, timed=not run_options.resume)
