"""``shardwriter merge``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, reported
from shardwriter.cli.write_options import (
    CompressionOption,
    Deflate,
    DeflateOption,
    IndexOption,
    OverwriteOption,
    ResumeOption,
    SeedOption,
    ShardsOption,
    ShuffleOption,
    dataset_options,
    output_of,
)
from shardwriter.cli.write_run import leftover_note, run_copy


def merge(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH... OUT",
            help="Two datasets or more, each what reshard takes; the last one is OUT, dir/all@16.",
        ),
    ],
    shards: ShardsOption = None,
    shuffle: ShuffleOption = False,
    seed: SeedOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-j", min=1, help="Processes that write; one a core where it is left off."
        ),
    ] = None,
    compression: CompressionOption = None,
    deflate: DeflateOption = Deflate.isal_2,
    index: IndexOption = False,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write the records of several datasets as one: those of the first, then of the second, ...

    Schemas are joined and label counts added. Features of types that do not go together, and
    classes with other numbers, are refused before anything is copied.

    Example: [bold]shardwriter merge out/summer out/winter out/all@16 --shuffle[/bold]
    """
    *parts, out = paths
    with reported(verbose=verbose, left=lambda: leftover_note(output_of(out, shards, compression))):
        from shardwriter.writing import RunOptions, open_merged

        output = output_of(out, shards, compression)
        options = dataset_options(output, shuffle=shuffle, seed=seed, deflate=deflate)
        run_options = RunOptions(
            overwrite=overwrite, resume=resume, workers=workers, dali_index=index
        )
        run_copy(lambda: open_merged(parts), output, options, run_options, json=json)
