"""``shardwriter write``."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import redirect_stdout
from enum import Enum
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
from shardwriter.cli.write_options import (
    CompressionOption,
    Deflate,
    DeflateOption,
    FilterOption,
    Format,
    FormatOption,
    IndexOption,
    KeyOption,
    LabelOption,
    LimitOption,
    LoaderWorkersOption,
    MapOption,
    MaxErrorsOption,
    OnError,
    OnErrorOption,
    Order,
    OrderOption,
    OutArgument,
    OverwriteOption,
    ResumeOption,
    SchemaOption,
    SeedOption,
    ShardsOption,
    ShuffleOption,
    SourceArgument,
    TfdsOption,
    WorldOption,
    dataset_options,
    output_of,
)
from shardwriter.cli.written import summary_json, what_is_left

if TYPE_CHECKING:
    from shardwriter.engines import Work
    from shardwriter.sources import Source


class _Engine(str, Enum):
    process = "process"
    serial = "serial"


class _Backend(str, Enum):
    native = "native"
    tensorflow = "tensorflow"


def write(
    source: SourceArgument,
    out: OutArgument,
    shards: ShardsOption = None,
    format: FormatOption = Format.auto,
    map: MapOption = None,
    filter: FilterOption = None,
    limit: LimitOption = None,
    shuffle: ShuffleOption = False,
    order: OrderOption = Order.source,
    key: KeyOption = None,
    seed: SeedOption = None,
    label: LabelOption = None,
    schema: SchemaOption = None,
    world: WorldOption = 1,
    loader_workers: LoaderWorkersOption = 1,
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
    on_error: OnErrorOption = OnError.raise_,
    max_errors: MaxErrorsOption = None,
    item_timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop when a worker takes more seconds for one item."),
    ] = None,
    backend: Annotated[
        _Backend,
        typer.Option(metavar="NAME", help="Whose record writers: native, or tensorflow's."),
    ] = _Backend.native,
    compression: CompressionOption = None,
    deflate: DeflateOption = Deflate.isal_2,
    index: IndexOption = False,
    tfds: TfdsOption = None,
    resume: ResumeOption = False,
    retry_errors: Annotated[
        bool,
        typer.Option("--retry-errors", help="The same, and try again the items that were skipped."),
    ] = False,
    overwrite: OverwriteOption = False,
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

    def left() -> str | None:
        return what_is_left(output_of(out, shards, compression, tfds=tfds))

    with reported(verbose=verbose, left=left):
        from shardwriter.errors import OptionError
        from shardwriter.formats.packing import lost_readers
        from shardwriter.items.keys import key_notes
        from shardwriter.options import RunOptions
        from shardwriter.plan import plan
        from shardwriter.sources.find import open_source
        from shardwriter.write import write_dataset

        if dry_run and (resume or retry_errors):
            raise OptionError(
                "--dry-run says what a write from the beginning would make",
                hint="leave --resume and --retry-errors off",
            )
        output = output_of(out, shards, compression, tfds=tfds)
        options = dataset_options(
            output,
            map=map,
            filter=filter,
            limit=limit,
            shuffle=shuffle,
            order=order,
            key=key,
            seed=seed,
            label=label,
            schema=schema,
            world=world,
            loader_workers=loader_workers,
            deflate=deflate,
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
            notes = [*lost_readers(output.compression), *found.notes, *key_notes(found, options)]
            for note in notes:
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
        if json:
            stages_s = {} if work is None else work.seconds
            print_json(summary_json(manifest, output.directory, elapsed_s, stages_s))
        else:
            from shardwriter.report.written import print_timings, print_written

            some = work is None or resume or retry_errors
            print_written(manifest, output.directory, None if some else elapsed_s)
            if timings and work is not None:
                print_timings(work.seconds, manifest.num_items)


def _show_plan(planned: dict[str, Any], directory: str, *, json: bool) -> None:
    if json:
        print_json(planned)
        return
    from shardwriter.report.written import print_plan

    if planned["replaces"] is not None:
        hint(f"a dataset of this name is there ({planned['replaces']}): --overwrite replaces it")
    print_plan(planned, directory)
