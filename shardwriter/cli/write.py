"""``shardwriter write``."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import redirect_stdout
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwriter.cli.common import (
    JsonOption,
    VerboseOption,
    hint,
    print_json,
    reported,
    terminable,
    writing_bar,
)

if TYPE_CHECKING:
    from shardwriter.engines import Work
    from shardwriter.manifest import Manifest
    from shardwriter.sources import Source


class _Format(str, Enum):
    auto = "auto"
    image_folder = "image-folder"
    csv = "csv"
    jsonl = "jsonl"
    tfrecord = "tfrecord"
    python = "python"


class _Engine(str, Enum):
    process = "process"
    serial = "serial"


class _Backend(str, Enum):
    native = "native"
    tensorflow = "tensorflow"


class _OnError(str, Enum):
    raise_ = "raise"
    skip = "skip"


class _Compression(str, Enum):
    none = "none"
    gzip = "gzip"
    zlib = "zlib"


class _Deflate(str, Enum):
    isal_2 = "isal-2"
    zlib_6 = "zlib-6"


def write(
    source: Annotated[
        str,
        typer.Argument(help="A folder, a file, a glob, a dataset's name, '-', or module:callable."),
    ],
    out: Annotated[str, typer.Argument(help="dir/train@16; without @16 a good N is chosen.")],
    shards: Annotated[
        int | None,
        typer.Option("--shards", help="N, where OUT does not say it.", show_default=False),
    ] = None,
    format: Annotated[
        _Format,
        typer.Option(
            metavar="FORMAT",
            help="auto (by looking), image-folder, csv, jsonl, tfrecord or python.",
        ),
    ] = _Format.auto,
    map: Annotated[
        str | None,
        typer.Option(help="module:callable, applied to every item's features; may return SKIP."),
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(help="module:callable, asked of every item before it is loaded or numbered."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many items.")] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Write the items in a random order.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Chooses the random order; 0 where it is left off.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Feature whose values are counted (images: image/class/label)."),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Fix types: id=string,price=float (int64, float, bytes).")
    ] = None,
    world: Annotated[
        int, typer.Option(min=1, help="For a chosen N: how many ranks will read.")
    ] = 1,
    loader_workers: Annotated[
        int, typer.Option(min=1, help="For a chosen N: how many loader workers a rank has.")
    ] = 1,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-j", min=1, help="Processes that write; one a core where it is left off."
        ),
    ] = None,
    engine: Annotated[
        _Engine,
        typer.Option(metavar="ENGINE", help="Who does the work: process (a pool), or serial."),
    ] = _Engine.process,
    on_error: Annotated[
        _OnError,
        typer.Option(
            metavar="WHAT", help="An item gives an error: raise (stop), or skip it and list it."
        ),
    ] = _OnError.raise_,
    max_errors: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Stop when more items than that were skipped so."),
    ] = None,
    item_timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop when a worker takes more seconds for one item."),
    ] = None,
    backend: Annotated[
        _Backend,
        typer.Option(metavar="NAME", help="Whose record writers: native, or tensorflow's."),
    ] = _Backend.native,
    compression: Annotated[
        _Compression | None,
        typer.Option(
            metavar="TYPE",
            show_default=False,
            help="none, gzip or zlib; gzip where OUT ends in .gz, else none.",
        ),
    ] = None,
    deflate: Annotated[
        _Deflate,
        typer.Option(metavar="NAME", help="Who compresses: isal-2 (fast) or zlib-6 (smaller)."),
    ] = _Deflate.isal_2,
    index: Annotated[
        bool, typer.Option("--index", help="Write <shard>.idx files for DALI and the PyPI loader.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with a run that was stopped; begin where there is none."
        ),
    ] = False,
    retry_errors: Annotated[
        bool,
        typer.Option("--retry-errors", help="The same, and try again the items that were skipped."),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace a dataset of this name once the new is whole."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")
    ] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Say at the end where the time went.")
    ] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write data as N TFRecord shards: item i goes to shard i mod N.

    Nothing stands under a final name before all of it is whole; the manifest comes last. A run that
    was stopped, however, goes on with --resume and ends with the same bytes.

    Example: [bold]shardwriter write photos/ out/train@16 --shuffle --seed 1[/bold]
    """
    with reported(verbose=verbose, left=lambda: _what_is_left(out, shards)):
        from shardwriter.callables import import_reference
        from shardwriter.errors import OptionError
        from shardwriter.feature_types import parse_schema_option
        from shardwriter.naming import parse_output
        from shardwriter.options import DatasetOptions, RunOptions
        from shardwriter.packing import lost_readers
        from shardwriter.plan import plan
        from shardwriter.sources.find import open_source
        from shardwriter.write import write_dataset

        if dry_run and (resume or retry_errors):
            raise OptionError(
                "--dry-run says what a write from the beginning would make",
                hint="leave --resume and --retry-errors off",
            )
        if seed is not None and not shuffle:
            raise OptionError("--seed without --shuffle", hint="add --shuffle, or leave --seed off")
        output = parse_output(out, shards, None if compression is None else compression.value)
        options = DatasetOptions(
            map=None if map is None else import_reference(map, "--map"),
            filter=None if filter is None else import_reference(filter, "--filter"),
            limit=limit,
            shuffle_seed=(seed or 0) if shuffle else None,
            label=label,
            schema={} if schema is None else parse_schema_option(schema),
            world=world,
            loader_workers=loader_workers,
            compression=output.compression,
            deflate=deflate.value,
        )
        run_options = RunOptions(
            overwrite=overwrite,
            resume=resume,
            retry_errors=retry_errors,
            on_error=on_error.value,
            max_errors=max_errors,
            engine=engine.value,
            workers=workers,
            item_timeout_s=item_timeout,
            backend=backend.value,
            dali_index=index,
        )

        def opened() -> Source:
            return open_source(source, format.value, options.schema)

        if dry_run:
            found = opened()
            for note in [*lost_readers(output.compression), *found.notes]:
                hint(note)
            _show_plan(plan(found, output, options, run_options), output.directory, json=json)
            return
        # Rows and records come and go by the million, without cycles: collect less often.
        gc.set_threshold(100_000, 20, 20)
        started = time.monotonic()
        told: list[Work] = []

        def progress(work: Work) -> None:
            told[:] = [work]
            if show is not None:
                show(work)

        # What a map prints is no result: the pool's workers print to stderr too.
        with terminable(), writing_bar() as show, redirect_stdout(sys.stderr):
            manifest = write_dataset(opened, output, options, run_options, progress, hint)
        work = told[-1] if told else None  # none where there was nothing to do
        elapsed_s = time.monotonic() - started
        manifest_path = str(Path(output.directory) / manifest.pattern.manifest_file)
        if json:
            summary = {
                "elapsed_s": elapsed_s,
                "file_bytes": manifest.file_bytes,
                "manifest": manifest_path,
                "num_items": manifest.num_items,
                "num_records": manifest.num_records,
                "num_shards": manifest.num_shards,
                "payload_bytes": manifest.payload_bytes,
                "schema": "shardwriter.write/1",
                "errors": _num_errors(manifest, output.directory),
                "skipped": len(manifest.gaps),
                "stages_s": {} if work is None else dict(work.seconds),
            }
            print_json(summary)
        else:
            from shardwriter.render import print_timings, print_written

            some = work is None or resume or retry_errors
            print_written(manifest, output.directory, None if some else elapsed_s)
            if timings and work is not None:
                print_timings(work.seconds, manifest.num_items)


def _show_plan(planned: dict[str, Any], directory: str, *, json: bool) -> None:
    if json:
        print_json(planned)
        return
    from shardwriter.render import print_plan

    if planned["replaces"] is not None:
        hint(f"a dataset of this name is there ({planned['replaces']}): --overwrite replaces it")
    print_plan(planned, directory)


def _num_errors(manifest: Manifest, directory: str) -> int:
    from shardwriter.naming import ledger_file

    ledger = Path(directory) / ledger_file(manifest.name)
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def _what_is_left(out: str, shards: int | None) -> str | None:
    """Say what a write that was stopped has left; None where that is nothing."""
    from shardwriter.naming import manifest_file, parse_output, partial_dir

    output = parse_output(out, shards)
    run = Path(output.directory) / partial_dir(output.name)
    if (run / "commit.json").exists():
        return f"all is written, and --resume finishes the publication of {output.name!r}"
    if run.exists():
        return f"nothing was published, and what was done is kept in {run}: --resume goes on"
    manifest = Path(output.directory) / manifest_file(output.name)
    if manifest.exists():
        return f"nothing is left of a run, and the dataset of {manifest} is whole"
    return None
