"""``shardwriter write``."""

from __future__ import annotations

import gc
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwriter.cli.common import hint, print_json, reported, writing_bar

if TYPE_CHECKING:
    from shardwriter.naming import Output
    from shardwriter.options import DatasetOptions
    from shardwriter.sources import Source


class _Format(str, Enum):
    auto = "auto"
    image_folder = "image-folder"
    csv = "csv"
    python = "python"


class _Engine(str, Enum):
    serial = "serial"


class _Backend(str, Enum):
    native = "native"
    tensorflow = "tensorflow"


def write(
    source: Annotated[
        str, typer.Argument(help="A folder, a file, a glob of tables, '-', or module:callable.")
    ],
    out: Annotated[str, typer.Argument(help="dir/train@16; without @16 a good N is chosen.")],
    shards: Annotated[
        int | None,
        typer.Option("--shards", help="N, where OUT does not say it.", show_default=False),
    ] = None,
    format: Annotated[
        _Format,
        typer.Option(metavar="FORMAT", help="auto (by looking), image-folder, csv or python."),
    ] = _Format.auto,
    map: Annotated[
        str | None,
        typer.Option(help="module:callable, applied to every item's features; may return SKIP."),
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
    engine: Annotated[
        _Engine, typer.Option(metavar="ENGINE", help="Who does the work: serial.")
    ] = _Engine.serial,
    backend: Annotated[
        _Backend,
        typer.Option(metavar="NAME", help="Whose record writers: native, or tensorflow's."),
    ] = _Backend.native,
    index: Annotated[
        bool, typer.Option("--index", help="Write <shard>.idx files for DALI and the PyPI loader.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace a dataset of this name once the new is whole."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show tracebacks with errors.")
    ] = False,
) -> None:
    """Write data as N TFRecord shards: item i goes to shard i mod N.

    Nothing stands under a final name before all of it is whole; the manifest comes last.

    Example: [bold]shardwriter write photos/ out/train@16 --shuffle --seed 1[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.errors import OptionError
        from shardwriter.job import count_items
        from shardwriter.naming import parse_output
        from shardwriter.options import DatasetOptions, RunOptions
        from shardwriter.schema import parse_schema_option
        from shardwriter.sources.find import open_source
        from shardwriter.sources.python import import_reference
        from shardwriter.write import write_source

        if seed is not None and not shuffle:
            raise OptionError("--seed without --shuffle", hint="add --shuffle, or leave --seed off")
        options = DatasetOptions(
            map=None if map is None else import_reference(map, "--map"),
            limit=limit,
            shuffle_seed=(seed or 0) if shuffle else None,
            label=label,
            schema={} if schema is None else parse_schema_option(schema),
        )
        run_options = RunOptions(
            overwrite=overwrite, engine=engine.value, backend=backend.value, dali_index=index
        )
        output = parse_output(out, shards)
        # Rows and records come and go by the million, without cycles: collect less often.
        gc.set_threshold(100_000, 20, 20)
        started = time.monotonic()
        opened = open_source(source, format.value, options.schema)
        if dry_run:
            _dry_run(opened, options, output, json, world, loader_workers)
            return
        with writing_bar(count_items(opened, options)) as progress:
            manifest = write_source(
                opened,
                output,
                options,
                run_options,
                progress,
                hint,
                world=world,
                loader_workers=loader_workers,
            )
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
                "skipped": len(manifest.gaps),
            }
            print_json(summary)
        else:
            from shardwriter.render import print_written

            print_written(manifest, output.directory, elapsed_s)


def _dry_run(
    opened: Source,
    options: DatasetOptions,
    output: Output,
    json: bool,
    world: int,
    loader_workers: int,
) -> None:
    """Say what would be written, from a sample of the items."""
    from shardwriter.job import Job, choose_num_shards, count_items, sample
    from shardwriter.write import check

    check(opened, output, options)
    for note in opened.notes:
        hint(note)
    num_items = count_items(opened, options)
    n = choose_num_shards(opened, options, output, world=world, loader_workers=loader_workers)
    seen = sample(opened, options)
    job = Job(opened, options, output.pattern(n))
    total = None if num_items is None else round(seen.mean_frame_bytes * num_items)
    plan = {
        "estimated_bytes": total,
        "features": seen.features,
        "files": job.pattern.template,
        "format": opened.kind,
        "num_items": num_items,
        "num_shards": n,
        "sampled_items": seen.num_records,
        "schema": "shardwriter.plan/1",
    }
    if json:
        print_json(plan)
    else:
        from shardwriter.render import print_plan

        print_plan(plan, output.directory)
