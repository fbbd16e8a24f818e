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
    ShardsOption,
    ShuffleOption,
    ShuffleSeedOption,
    WorkersOption,
    dataset_options,
    output_of,
)
from shardwriter.cli.write_run import leftover_note, run_copy


def merge(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH... OUT",
            help="Two or more datasets (names, folders, files or globs), then the one to write: "
            "dir/all@16.",
        ),
    ],
    shards: ShardsOption = None,
    shuffle: ShuffleOption = False,
    seed: ShuffleSeedOption = None,
    workers: WorkersOption = None,
    compression: CompressionOption = None,
    deflate: DeflateOption = Deflate.isal_2,
    index: IndexOption = False,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Concatenate several datasets into one, in the given order.

    Schemas are merged and label counts added. If a feature's types conflict, or
    a class has different numbers, merge stops before anything is copied.

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
