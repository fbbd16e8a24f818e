"""``shardwriter beam write`` and ``reshard``: datasets written by a Beam runner."""

from __future__ import annotations

import os
import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwriter.cli.beam import (
    DataflowCommandOption,
    JobArguments,
    check_reachable,
    dataflow_command,
    run_job,
    wheel_name,
)
from shardwriter.cli.common import JsonOption, VerboseOption, hint, print_json, reported
from shardwriter.cli.write_options import (
    AllowDuplicatesOption,
    ColumnsOption,
    CompressionOption,
    Deflate,
    DeflateOption,
    DropColumnsOption,
    EncodingOption,
    FilterOption,
    Format,
    FormatOption,
    IndexOption,
    IndicesOption,
    KeyOption,
    LabelOption,
    LimitOption,
    LoaderWorkersOption,
    MapOption,
    MaxErrorsOption,
    MaxSideOption,
    NamesOption,
    NaOption,
    NoHeaderOption,
    OnError,
    OnErrorOption,
    Order,
    OrderOption,
    OutArgument,
    OverwriteOption,
    QualityOption,
    ResizeOption,
    ResumeOption,
    SchemaOption,
    SeedOption,
    ShardsOption,
    ShuffleOption,
    SourceArgument,
    SplitsOption,
    StrictOption,
    WorldOption,
    dataset_options,
    datasets_of,
    output_of,
)
from shardwriter.cli.write_run import (
    TerminalNotices,
    WrittenDataset,
    leftover_note,
    leftover_notes,
    print_all_written,
    written_json,
)

if TYPE_CHECKING:
    from shardwriter.dataset import Manifest, Output, Split
    from shardwriter.writing import DatasetOptions, Datasets, RunOptions


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
    strict: StrictOption = False,
    compression: CompressionOption = None,
    deflate: DeflateOption = Deflate.isal_2,
    index: IndexOption = False,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    strategy: _StrategyOption = _Strategy.auto,
    plan: _PlanOption = None,
    split: SplitsOption = None,
    dataflow: DataflowCommandOption = False,
    resize: ResizeOption = None,
    max_side: MaxSideOption = None,
    quality: QualityOption = None,
    json: JsonOption = False,
    names: NamesOption = None,
    indices: IndicesOption = None,
    allow_duplicates: AllowDuplicatesOption = False,
    no_header: NoHeaderOption = False,
    na: NaOption = None,
    encoding: EncodingOption = None,
    columns: ColumnsOption = None,
    drop_columns: DropColumnsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Write data as N TFRecord shards on a Beam runner: the bytes of shardwriter write.

    SOURCE and OUT may be URLs; every worker must see what is named. With
    --split each split is a job of its own, and is published when it is whole.
    Options that are not listed here are Beam's: --runner, --project, ...

    Example: [bold]shardwriter beam write photos/ out/train@16[/bold]
    --dataflow-command prints how to run the same on Dataflow.
    """
    outputs: list[Output] = []
    with reported(verbose=verbose, left=lambda: leftover_notes(outputs)):
        from shardwriter.errors import OptionError
        from shardwriter.sources import is_reference
        from shardwriter.writing import RunOptions

        arguments: JobArguments = ctx.obj

        def options_of(output: Output, part: Split | None) -> DatasetOptions:
            return dataset_options(
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
                split=part,
                resize=resize,
                max_side=max_side,
                quality=quality,
                names=names,
                indices=indices,
                allow_duplicates=allow_duplicates,
                no_header=no_header,
                na=na,
                encoding=encoding,
                columns=columns,
                drop_columns=drop_columns,
            )

        if split is not None and plan is not None:
            raise OptionError("--plan is of one dataset", hint="leave --plan or --split off")
        if not dataflow:
            output = output_of(out, shards, compression, urls=True)
            check_reachable(arguments, SOURCE=source, OUT=output.directory)
        run_options = RunOptions(
            overwrite=overwrite,
            resume=resume,
            on_error=on_error.value,
            max_errors=max_errors,
            dali_index=index,
            strict=strict,
        )
        if dataflow:
            modules = [name for name in (source, map, filter) if name and is_reference(name)]
            output = output_of(out, shards, compression, urls=True)
            _print_dataflow_command(arguments, "write", source, output, modules)
            return
        datasets = datasets_of(
            source,
            out,
            format,
            split,
            shards,
            compression,
            seed,
            options_of,
            urls=True,
            on_error=on_error,
        )
        outputs += [target.output for target in datasets.targets]
        _write_all(
            arguments,
            datasets,
            source,
            format,
            run_options,
            strategy,
            plan,
            json=json,
            verbose=verbose,
        )


def _write_all(
    arguments: JobArguments,
    datasets: Datasets,
    source: str,
    format: Format,
    run_options: RunOptions,
    strategy: _Strategy,
    plan: str | None,
    *,
    json: bool,
    verbose: bool,
) -> None:
    """Run a job for each dataset, one after the other, and print what they have made."""
    from shardwriter.cluster import WriteShards, open_launch
    from shardwriter.schema import from_manifest
    from shardwriter.sources import Opened
    from shardwriter.writing import check_split_schemas

    targets = datasets.targets
    named: list[Any] = [source]
    if targets[0].split is not None:
        if not run_options.resume:
            for target in targets:  # before the first of them takes its time
                open_launch(target.output, 1, "", run_options)
        named = [Opened(found) for found in datasets.open(hint)]
    found: list[WrittenDataset] = []
    strategies = []
    notices = TerminalNotices()
    started = time.monotonic()
    for place, target in enumerate(targets):
        writing = WriteShards(
            target.output.notation,
            source=named[place] if len(named) > 1 else named[0],
            format=format.value,
            options=target.options,
            run=run_options,
            strategy=strategy.value,
            plan=plan,
        )
        manifest = _run(arguments, writing, target.output, verbose=verbose)
        if manifest is not None:
            for warning in from_manifest(manifest.metadata):
                notices.warn(warning, target.split)
            warnings = notices.of_split(target.split)
            directory = target.output.directory
            found.append(WrittenDataset(target.split, directory, manifest, warnings=warnings))
            strategies.append(_strategy_of(writing))
    if len(found) < len(targets):
        return  # they go on elsewhere
    _print_found(found, strategies, time.monotonic() - started, run_options, json=json)
    check_split_schemas({each.split or "": each.manifest for each in found})


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

    Example: [bold]shardwriter beam reshard out/train@16 out/more@64[/bold]
    """
    with reported(
        verbose=verbose, left=lambda: leftover_note(output_of(out, shards, compression, urls=True))
    ):
        from shardwriter.writing import RunOptions

        arguments: JobArguments = ctx.obj
        output = output_of(out, shards, compression, urls=True)
        options = dataset_options(output, shuffle=shuffle, seed=seed, deflate=deflate)
        run_options = RunOptions(overwrite=overwrite, resume=resume, dali_index=index)
        if dataflow:
            _print_dataflow_command(arguments, "reshard", path, output, [])
            return
        check_reachable(arguments, PATH=path, OUT=output.directory)
        from shardwriter.cluster import WriteShards

        writing = WriteShards(
            output.notation,
            source=path,
            format="tfrecord",
            options=options,
            run=run_options,
            strategy=strategy.value,
            plan=plan,
        )
        started = time.monotonic()
        manifest = _run(arguments, writing, output, verbose=verbose)
        if manifest is not None:
            found = [WrittenDataset(None, output.directory, manifest)]
            elapsed_s = time.monotonic() - started
            _print_found(found, [_strategy_of(writing)], elapsed_s, run_options, json=json)


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
    arguments: JobArguments, writing: Any, output: Output, *, verbose: bool
) -> Manifest | None:
    """Run a write, and return its manifest; None where the job goes on elsewhere."""
    from shardwriter.dataset import parse_manifest
    from shardwriter.errors import RunError
    from shardwriter.formats import compatibility_notes
    from shardwriter.storage import storage_for

    for note in compatibility_notes(output.compression):
        hint(note)
    unfinished = run_job(arguments, writing, verbose=verbose)
    if unfinished is not None:
        hint(unfinished)
        return None
    path = os.path.join(output.directory, writing.task.out.pattern.manifest_file)
    data = storage_for(path).read(path)
    if data is None:
        raise RunError("the job has ended well, and there is no manifest", path=path)
    return parse_manifest(data, path)


def _strategy_of(writing: Any) -> str:
    return str(writing.task.strategy)  # there is a task once it was applied


def _print_found(
    found: list[WrittenDataset],
    strategies: list[str],
    elapsed_s: float,
    run_options: RunOptions,
    *,
    json: bool,
) -> None:
    if not json:
        print_all_written(found, None if run_options.resume else elapsed_s)
        return
    printed = written_json(found, elapsed_s)
    for each, strategy in zip(found, strategies, strict=True):
        summary = printed if each.split is None else printed["splits"][each.split]
        summary["strategy"] = strategy
    print_json(printed)
