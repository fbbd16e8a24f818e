"""``shardwriter reshard``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, reported
from shardwriter.cli.write_options import (
    CompressionOption,
    Deflate,
    DeflateOption,
    IndexOption,
    OutArgument,
    OverwriteOption,
    ResumeOption,
    SeedOption,
    ShardsOption,
    ShuffleOption,
    dataset_options,
    output_of,
)
from shardwriter.cli.write_run import leftover_note, run_copy


def reshard(
    path: Annotated[
        str, typer.Argument(help="TFRecord files: a dataset's name, a folder, a file or a glob.")
    ],
    out: OutArgument,
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
    """Write the records of a dataset anew, byte for byte, as another number of shards.

    Records keep their reading order, record r becomes item r, and each is proven on its way. It is
    the same as write with --format tfrecord, manifest included.

    Example: [bold]shardwriter reshard out/train out/more@64[/bold]
    """
    with reported(verbose=verbose, left=lambda: leftover_note(output_of(out, shards, compression))):
        from shardwriter.sources import TFRecordFiles
        from shardwriter.writing import RunOptions

        output = output_of(out, shards, compression)
        options = dataset_options(output, shuffle=shuffle, seed=seed, deflate=deflate)
        run_options = RunOptions(
            overwrite=overwrite, resume=resume, workers=workers, dali_index=index
        )
        run_copy(lambda: TFRecordFiles(path), output, options, run_options, json=json)
