"""``python -m shardwriter.beam write`` and ``reshard``: datasets written by a Beam runner."""

from __future__ import annotations

import os
import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwriter.cli.beam_args import JobArguments, dataflow_command
from shardwriter.cli.beam_run import DataflowCommandOption, check_reachable, run_job, wheel_name
from shardwriter.cli.common import JsonOption, VerboseOption, hint, print_json, reported
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
    WorldOption,
    dataset_options,
    output_of,
)
from shardwriter.cli.written import summary_json, what_is_left

if TYPE_CHECKING:
    from shardwriter.dataset.naming import Output


class _Strategy(str, Enum):
    auto = "auto"
    strided = "strided"
    chunked = "chunked"


_StrategyOption = Annotated[
    _Strategy,
    typer.Option(
        metavar="STRATEGY",
        help="auto; strided: a shard is a task, its items read one by one; chunked: neighbours are "
        "read together, and shuffled to their shards.",
    ),
]
_PlanOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Keeps what is fixed before the first record; made where there is none, and refused "
        "where it is of another job.",
    ),
]


def write(
    ctx: typer.Context,
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
    on_error: OnErrorOption = OnError.raise_,
    max_errors: MaxErrorsOption = None,
    compression: CompressionOption = None,
    deflate: DeflateOption = Deflate.isal_2,
    index: IndexOption = False,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    strategy: _StrategyOption = _Strategy.auto,
    plan: _PlanOption = None,
    dataflow: DataflowCommandOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write data as N TFRecord shards on a Beam runner: the bytes of shardwriter write.

    SOURCE and OUT may be URLs; every worker must see what is named. Options
    that are not listed here are Beam's: --runner, --project, --region, ...

    Example: [bold]python -m shardwriter.beam write photos/ out/train@16[/bold]
    --dataflow-command prints how to run the same on Dataflow.
    """
    with reported(
        verbose=verbose, left=lambda: what_is_left(output_of(out, shards, compression, urls=True))
    ):
        from shardwriter.callables import is_reference
        from shardwriter.options import RunOptions

        arguments: JobArguments = ctx.obj
        output = output_of(out, shards, compression, urls=True)
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
            on_error=on_error.value,
            max_errors=max_errors,
            dali_index=index,
        )
        if dataflow:
            modules = [name for name in (source, map, filter) if name and is_reference(name)]
            _print_dataflow_command(arguments, "write", source, output, modules)
            return
        check_reachable(arguments, SOURCE=source, OUT=output.directory)
        from shardwriter.beam import WriteShards

        writing = WriteShards(
            output.notation,
            source=source,
            format=format.value,
            options=options,
            run=run_options,
            strategy=strategy.value,
            plan=plan,
        )
        _run(arguments, writing, output, json=json, verbose=verbose, timed=not resume)


def reshard(
    ctx: typer.Context,
    path: Annotated[
        str, typer.Argument(help="TFRecord files: a dataset's name, a folder, a file or a glob.")
    ],
    out: OutArgument,
    shards: ShardsOption = None,
    shuffle: ShuffleOption = False,
    seed: SeedOption = None,
    compression: CompressionOption = None,
    deflate: DeflateOption = Deflate.isal_2,
    index: IndexOption = False,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    strategy: _StrategyOption = _Strategy.auto,
    plan: _PlanOption = None,
    dataflow: DataflowCommandOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write the records of TFRecord files anew, byte for byte, as another number of shards.

    The same as write with --format tfrecord: a dataset of shardwriter comes in
    reading order, and other files come one after the other. Options that are
    not listed here are Beam's: --runner, --project, --region, ...

    Example: [bold]python -m shardwriter.beam reshard out/train@16 out/more@64[/bold]
    """
    with reported(
        verbose=verbose, left=lambda: what_is_left(output_of(out, shards, compression, urls=True))
    ):
        from shardwriter.options import RunOptions

        arguments: JobArguments = ctx.obj
        output = output_of(out, shards, compression, urls=True)
        options = dataset_options(output, shuffle=shuffle, seed=seed, deflate=deflate)
        run_options = RunOptions(overwrite=overwrite, resume=resume, dali_index=index)
        if dataflow:
            _print_dataflow_command(arguments, "reshard", path, output, [])
            return
        check_reachable(arguments, PATH=path, OUT=output.directory)
        from shardwriter.beam import WriteShards

        writing = WriteShards(
            output.notation,
            source=path,
            format="tfrecord",
            options=options,
            run=run_options,
            strategy=strategy.value,
            plan=plan,
        )
        _run(arguments, writing, output, json=json, verbose=verbose, timed=not resume)


def _print_dataflow_command(
    arguments: JobArguments, job: str, source: str, output: Output, modules: list[str]
) -> None:
    on_dataflow = JobArguments(arguments.mine, [*arguments.beam, ["--runner=DataflowRunner"]])
    name = "SOURCE" if job == "write" else "PATH"
    check_reachable(on_dataflow, **{name: source, "OUT": output.directory})
    if modules:
        hint(
            f"workers import {', '.join(modules)}: another --extra_package, or --setup_file, "
            "brings the module to them"
        )
    typer.echo(dataflow_command(arguments, job, wheel_name()))


def _run(
    arguments: JobArguments,
    writing: Any,
    output: Output,
    *,
    json: bool,
    verbose: bool,
    timed: bool,
) -> None:
    """Run a write, and print what it has made."""
    from shardwriter.dataset.manifest import parse_manifest
    from shardwriter.errors import RunError
    from shardwriter.formats.packing import lost_readers
    from shardwriter.storage.choose import storage_for

    for note in lost_readers(output.compression):
        hint(note)
    started = time.monotonic()
    unfinished = run_job(arguments, writing, verbose=verbose)
    if unfinished is not None:
        hint(unfinished)
        return
    elapsed_s = time.monotonic() - started
    path = os.path.join(output.directory, writing.task.place.pattern.manifest_file)
    data = storage_for(path).read(path)
    if data is None:
        raise RunError("the job has ended well, and there is no manifest", path=path)
    manifest = parse_manifest(data, path)
    if json:
        summary = summary_json(manifest, output.directory, elapsed_s, {})
        print_json({**summary, "strategy": writing.task.strategy})
        return
    from shardwriter.report.written import print_written

    print_written(manifest, output.directory, elapsed_s if timed else None)
