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
    ShardsOption,
    ShuffleOption,
    ShuffleSeedOption,
    WorkersOption,
    dataset_options,
    output_of,
)
from shardwriter.cli.write_run import leftover_note, run_copy


def reshard(
    path: Annotated[
        str, typer.Argument(help="TFRecord files: a dataset name, a folder, a file or a glob.")
    ],
    out: OutArgument,
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
    """Copy the records of a dataset, byte for byte, to another number of shards.

    Records keep their reading order: record r becomes item r. The CRCs of each
    record are verified. Same as write with --format tfrecord.

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
