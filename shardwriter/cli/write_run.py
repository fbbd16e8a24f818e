"""What commands that make a dataset share: the bar, what is printed, signals."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple

from shardwriter.cli.common import advise, hint, print_json, terminable, warn, writing_bar
from shardwriter.errors import DataWarning
from shardwriter.writing import Notices

if TYPE_CHECKING:
    from shardwriter.dataset import Manifest, Output
    from shardwriter.sources import Source
    from shardwriter.writing import DatasetOptions, Progress, RunOptions, Work


# What a write says in a terminal, on stderr.


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


# What is said of a write when it has ended, well or not, wherever its output lies.


class WrittenDataset(NamedTuple):
    """A dataset that was written.

    Attributes:
        split: Which split it is; None for the only dataset.
        directory: Where it lies.
        manifest: What it is.
        work: What was done for it; None where there was nothing to do.
        warnings: About its data.
    """

    split: str | None
    directory: str
    manifest: Manifest
    work: Work | None = None
    warnings: Sequence[DataWarning] = ()


def written_json(found: Sequence[WrittenDataset], elapsed_s: float) -> dict[str, Any]:
    """Return what ``--json`` prints: of one dataset its summary, of splits one of each."""
    summaries = {
        each.split: summary_json(
            each.manifest,
            each.directory,
            elapsed_s,
            {} if each.work is None else each.work.seconds,
            each.warnings,
        )
        for each in found
    }
    if None in summaries:
        return summaries[None]
    for summary in summaries.values():
        del summary["elapsed_s"]  # they were written one after the other
    return {
        "elapsed_s": elapsed_s,
        "schema": "shardwriter.write-splits/1",
        "splits": summaries,
    }


def print_all_written(
    found: Sequence[WrittenDataset], elapsed_s: float | None, *, timings: bool = False
) -> None:
    """Print what a write has written; None: not all of it in this time."""
    from shardwriter.report import print_timings, print_total, print_written

    is_one = len(found) == 1
    for each in found:
        warnings = len(each.warnings)
        print_written(each.manifest, each.directory, elapsed_s if is_one else None, warnings)
        if timings and each.work is not None:
            print_timings(each.work.seconds, each.manifest.num_items)
    if not is_one and elapsed_s is not None:
        print_total([each.manifest for each in found], elapsed_s)


def summary_json(
    manifest: Manifest,
    directory: str,
    elapsed_s: float,
    stages_s: Mapping[str, float],
    warnings: Sequence[DataWarning] = (),
) -> dict[str, Any]:
    """Return what ``--json`` prints of a dataset that was written."""
    from shardwriter.schema import to_json

    return {
        "elapsed_s": elapsed_s,
        "errors": _num_errors(manifest, directory),
        "features": manifest.type_texts(),
        "file_bytes": manifest.file_bytes,
        "manifest": os.path.join(directory, manifest.pattern.manifest_file),
        "num_items": manifest.num_items,
        "num_records": manifest.num_records,
        "num_shards": manifest.num_shards,
        "payload_bytes": manifest.payload_bytes,
        "schema": "shardwriter.write/1",
        "skipped": len(manifest.gaps),
        "stages_s": dict(stages_s),
        "warnings": [to_json(warning) for warning in warnings],
    }


def _num_errors(manifest: Manifest, directory: str) -> int:
    from shardwriter.dataset import error_log_file
    from shardwriter.storage import storage_for

    ledger = os.path.join(directory, error_log_file(manifest.name))
    return (storage_for(ledger).read(ledger) or b"").count(b"\n")


def leftover_notes(outputs: Sequence[Output]) -> str | None:
    """Say the same of all datasets of a write as :func:`leftover_note` of one."""
    told = [leftover_note(output) for output in outputs]
    return "; ".join(line for line in told if line is not None) or None


def leftover_note(output: Output) -> str | None:
    """Say what a write that was stopped has left; None where that is nothing, or not known."""
    from shardwriter.dataset import manifest_file, parse_manifest, partial_dir
    from shardwriter.errors import ShardwriterError
    from shardwriter.storage import storage_for

    run = os.path.join(output.directory, partial_dir(output.name))
    manifest = os.path.join(output.directory, manifest_file(output.name))
    try:
        storage = storage_for(output.directory)
        names = storage.list(run)
        is_there = storage.size(manifest) is not None
    except ShardwriterError:
        return None  # the place itself is what failed
    if os.path.islink(run):
        return None  # it is no run's
    if "commit.json" in names:
        try:
            parse_manifest(storage.read(os.path.join(run, "commit.json")) or b"")
        except ShardwriterError:
            return None  # which the error has said
        return f"all is written, and --resume finishes the publication of {output.name!r}"
    if "run.json" in names:
        return f"nothing was published, and what was done is kept in {run}: --resume goes on"
    if is_there:
        return f"nothing is left of a run, and the dataset of {manifest} is whole"
    return None


def run_write(
    write: Callable[[Progress, Notices], Sequence[WrittenDataset]],
    *,
    json: bool,
    timed: bool,
    timings: bool = False,
) -> None:
    """Have datasets written, and print what they are.

    Args:
        write: Writes them, and tells how far it is, and what a person should know.
        json: Print JSON.
        timed: Whether all of it is written now, so that a rate means something.
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


def run_copy(
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
    from shardwriter.writing import write_dataset

    def write_datasets(progress: Progress, notices: Notices) -> list[WrittenDataset]:
        manifest = write_dataset(open_source, output, options, run_options, progress, notices)
        return [WrittenDataset(None, output.directory, manifest)]

    run_write(write_datasets, json=json, timed=not run_options.resume)
