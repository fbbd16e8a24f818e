"""Shared by commands that write a dataset: progress bar, notices, signals and the result.

`run_write` runs a write and prints its result; `leftover_note` describes what a stopped write has
left on disk.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple

from shardwriter.cli.common import advise, hint, print_json, terminable, warn
from shardwriter.errors import DataWarning
from shardwriter.writing import Notices, writing_bar

if TYPE_CHECKING:
    from shardwriter.dataset import Manifest, Output
    from shardwriter.sources import Source
    from shardwriter.writing import DatasetOptions, Progress, RunOptions, Work


class TerminalNotices(Notices):
    """Notices of a write, printed on stderr."""

    def show_info(self, line: str) -> None:
        """Print an information."""
        hint(line)

    def show_note(self, line: str) -> None:
        """Print a note about a possible problem."""
        hint(line)

    def show_warning(self, warning: DataWarning, split: str | None) -> None:
        """Print a warning about data, and the hint that goes with it."""
        message = warning.message if split is None else f"{split}: {warning.message}"
        warn(message)
        if warning.hint is not None:
            advise(warning.hint)


class WrittenDataset(NamedTuple):
    """A dataset that was written.

    Attributes:
        split: Name of the split; None for a dataset without splits.
        directory: Folder or URL of the dataset.
        manifest: Its manifest.
        work: Final progress of the write; None if there was nothing to do.
        warnings: Warnings about its data.
    """

    split: str | None
    directory: str
    manifest: Manifest
    work: Work | None = None
    warnings: Sequence[DataWarning] = ()


def written_json(found: Sequence[WrittenDataset], elapsed_s: float) -> dict[str, Any]:
    """Return the JSON that ``--json`` prints: one summary, or one per split."""
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
        del summary["elapsed_s"]  # the time is that of all splits
    return {
        "elapsed_s": elapsed_s,
        "schema": "shardwriter.write-splits/1",
        "splits": summaries,
    }


def print_all_written(
    found: Sequence[WrittenDataset], elapsed_s: float | None, *, timings: bool = False
) -> None:
    """Print the result of a write; without ``elapsed_s``, no rates are printed."""
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
    """Return the JSON summary of a written dataset."""
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
    """Return the notes of `leftover_note` for several datasets, joined; None if there are none."""
    notes = [leftover_note(output) for output in outputs]
    return "; ".join(note for note in notes if note is not None) or None


def leftover_note(output: Output) -> str | None:
    """Return a note about what a stopped write has left; None if nothing, or not known."""
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
        return None  # the storage itself has failed
    if os.path.islink(run):
        return None  # not a run directory
    if "commit.json" in names:
        try:
            parse_manifest(storage.read(os.path.join(run, "commit.json")) or b"")
        except ShardwriterError:
            return None  # the error itself says so
        return f"all items are written; --resume publishes {output.name!r}"
    if "run.json" in names:
        return f"nothing was published; the work so far is in {run}, and --resume continues it"
    if is_there:
        return f"no work is left to resume, and the dataset of {manifest} is complete"
    return None


def run_write(
    write: Callable[[Progress, Notices], Sequence[WrittenDataset]],
    *,
    json: bool,
    timed: bool,
    timings: bool = False,
) -> None:
    """Run a write, with a progress bar, and print its result.

    Args:
        write: Writes the datasets; is called with a progress callback and the notices.
        json: Print the result as JSON.
        timed: Whether the run writes all items, so that rates are meaningful.
        timings: Print the time of each stage.
    """
    # Millions of short-lived rows and records form no cycles: run the collector less often.
    gc.set_threshold(100_000, 20, 20)
    started = time.monotonic()
    last_work: dict[str | None, Work] = {}
    notices = TerminalNotices()

    def progress(work: Work) -> None:
        last_work[work.split] = work
        if show is not None:
            show(work)

    # stdout is for the result; what a map prints goes to stderr, as in worker processes.
    with terminable(), writing_bar() as show, redirect_stdout(sys.stderr):
        written = write(progress, notices)
    elapsed_s = time.monotonic() - started
    found = [
        each._replace(work=last_work.get(each.split), warnings=notices.of_split(each.split))
        for each in written
    ]
    if json:
        print_json(written_json(found, elapsed_s))
        return

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
    """Copy the records of other datasets into one, and print the result.

    Args:
        open_source: Opens the datasets to copy.
        output: The dataset to write.
        options: The options that decide the bytes.
        run_options: The options that do not.
        json: Print the result as JSON.
    """
    from shardwriter.writing import write_dataset

    def write_datasets(progress: Progress, notices: Notices) -> list[WrittenDataset]:
        manifest = write_dataset(open_source, output, options, run_options, progress, notices)
        return [WrittenDataset(None, output.directory, manifest)]

    run_write(write_datasets, json=json, timed=not run_options.resume)
