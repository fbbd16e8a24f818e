"""``shardwriter write``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, hint, print_json, reported, say
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
    TfdsOption,
    WorkersOption,
    WorldOption,
    dataset_options,
    datasets_of,
)
from shardwriter.cli.write_run import TerminalNotices, WrittenDataset, leftover_notes, run_write

if TYPE_CHECKING:
    from shardwriter.dataset import Output, Split
    from shardwriter.writing import DatasetOptions, Datasets, Notices, Progress, RunOptions


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
    workers: WorkersOption = None,
    engine: Annotated[
        _Engine,
        typer.Option(
            metavar="ENGINE",
            help="process (a pool of workers), or serial (all in this process, for debugging).",
        ),
    ] = _Engine.process,
    on_error: OnErrorOption = OnError.raise_,
    max_errors: MaxErrorsOption = None,
    item_timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop if one item takes a worker more than S seconds."),
    ] = None,
    backend: Annotated[
        _Backend,
        typer.Option(metavar="NAME", help="Library that writes the records: native or tensorflow."),
    ] = _Backend.native,
    compression: CompressionOption = None,
    deflate: DeflateOption = Deflate.isal_2,
    index: IndexOption = False,
    tfds: TfdsOption = None,
    split: SplitsOption = None,
    resume: ResumeOption = False,
    retry_errors: Annotated[
        bool,
        typer.Option(
            "--retry-errors", help="Like --resume, and retry the items that were skipped on errors."
        ),
    ] = False,
    accept_changed_map: Annotated[
        bool,
        typer.Option(
            "--accept-changed-map",
            help="With --retry-errors: allow a changed --map. Records already written stay; "
            "retried items use the new map.",
        ),
    ] = False,
    overwrite: OverwriteOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written, and write nothing.")
    ] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print the time of each stage at the end.")
    ] = False,
    resize: ResizeOption = None,
    max_side: MaxSideOption = None,
    quality: QualityOption = None,
    log_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write rates and stage times as TensorBoard event files, one for each process; "
            "not with Beam. See them with: tensorboard --logdir DIR",
        ),
    ] = None,
    strict: StrictOption = False,
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
    """Write data as N TFRecord shards: item i goes to shard i mod N.

    The shards appear under their final names only when all of them are
    complete, and the manifest last. A run that was stopped continues with
    --resume and produces the same bytes.

    Example: [bold]shardwriter write photos/ out/train@16 --shuffle --seed 1[/bold]
    """
    outputs: list[Output] = []

    with reported(verbose=verbose, left=lambda: leftover_notes(outputs)):
        from shardwriter.errors import OptionError
        from shardwriter.writing import RunOptions, write_all

        if dry_run and (resume or retry_errors):
            raise OptionError(
                "--dry-run plans a write from the start, so it does not go with --resume or "
                "--retry-errors",
                hint="drop --resume and --retry-errors",
            )

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

        datasets = datasets_of(
            source,
            out,
            format,
            split,
            shards,
            compression,
            seed,
            options_of,
            tfds=tfds,
            on_error=on_error,
        )
        outputs += [target.output for target in datasets.targets]
        run_options = RunOptions(
            overwrite=overwrite,
            resume=resume,
            retry_errors=retry_errors,
            accept_changed_map=accept_changed_map,
            on_error=on_error.value,
            max_errors=max_errors,
            engine=engine.value,
            workers=workers,
            item_timeout_s=item_timeout,
            backend=backend.value,
            dali_index=index,
            log_dir=log_dir,
            strict=strict,
        )
        if dry_run:
            _show_plans(datasets, run_options, json=json)
            return

        def write_datasets(progress: Progress, notices: Notices) -> list[WrittenDataset]:
            manifests = write_all(datasets.targets, datasets.select, run_options, progress, notices)
            return [
                WrittenDataset(target.split, target.output.directory, manifest)
                for target, manifest in zip(datasets.targets, manifests, strict=True)
            ]

        run_write(write_datasets, json=json, timed=not (resume or retry_errors), timings=timings)


def _show_plans(datasets: Datasets, run_options: RunOptions, *, json: bool) -> None:
    from shardwriter.formats import compatibility_notes
    from shardwriter.writing import check_compression, plan_selection, warn_about_sources

    targets = datasets.targets
    outputs = [target.output for target in targets]
    for target in targets:
        check_compression(target.output, target.options, run_options)
    for note in compatibility_notes(outputs[0].compression):
        hint(note)
    notices = TerminalNotices()
    selections = datasets.select(notices)
    warn_about_sources(targets, selections, run_options, notices)
    plans = [
        plan_selection(selection, target.output, run_options, outputs)
        for target, selection in zip(targets, selections, strict=True)
    ]
    names = [target.split for target in targets]
    if json and names != [None]:
        by_split = dict(zip(names, plans, strict=True))
        print_json({"schema": "shardwriter.plan-splits/1", "splits": by_split})
        return
    for target, planned in zip(targets, plans, strict=True):
        if target.split is not None:
            say(f"split {target.split}")
        _show_plan(planned, target.output.directory, json=json)


def _show_plan(planned: dict[str, Any], directory: str, *, json: bool) -> None:
    if json:
        print_json(planned)
        return
    from shardwriter.report import print_write_plan

    if planned["replaces"] is not None:
        hint(f"a dataset of this name exists ({planned['replaces']}): --overwrite replaces it")
    print_write_plan(planned, directory)
