"""``shardwriter append``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, reported
from shardwriter.cli.write_options import (
    ColumnsOption,
    DropColumnsOption,
    EncodingOption,
    FilterOption,
    Format,
    FormatOption,
    LimitOption,
    MapOption,
    MaxErrorsOption,
    NamesOption,
    NaOption,
    NoHeaderOption,
    OnError,
    OnErrorOption,
    SchemaOption,
    SourceArgument,
    StrictOption,
    WorkersOption,
    dataset_options,
)
from shardwriter.cli.write_run import WrittenDataset, leftover_note, run_write

if TYPE_CHECKING:
    from shardwriter.sources import Source
    from shardwriter.writing import Notices, Progress


def append(
    source: SourceArgument,
    out: Annotated[
        str, typer.Argument(help="A dataset with a manifest: out/train, or its folder.")
    ],
    format: FormatOption = Format.auto,
    map: MapOption = None,
    filter: FilterOption = None,
    limit: LimitOption = None,
    schema: SchemaOption = None,
    workers: WorkersOption = None,
    on_error: OnErrorOption = OnError.raise_,
    max_errors: MaxErrorsOption = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue an append that was stopped; do nothing if it has finished.",
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Discard a stopped append, and start over."),
    ] = False,
    strict: StrictOption = False,
    json: JsonOption = False,
    names: NamesOption = None,
    no_header: NoHeaderOption = False,
    na: NaOption = None,
    encoding: EncodingOption = None,
    columns: ColumnsOption = None,
    drop_columns: DropColumnsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Add items to a finished dataset, after its last item.

    The result is as if old and new items had been written in one run: shards,
    index, schema and label counts. A new copy of the dataset is written, and
    replaces the old one when it is complete. Appending the same items twice
    adds them twice, except with --resume.

    Example: [bold]shardwriter append more-photos/ out/train[/bold]
    """

    def left() -> str | None:
        from shardwriter.writing import output_to_append_to

        return leftover_note(output_to_append_to(out))

    with reported(verbose=verbose, left=left):
        import os

        from shardwriter.dataset import Output
        from shardwriter.sources import open_source
        from shardwriter.writing import RunOptions, append_dataset

        options = dataset_options(
            Output("", "", "", None),
            map=map,
            filter=filter,
            limit=limit,
            schema=schema,
            names=names,
            no_header=no_header,
            na=na,
            encoding=encoding,
            columns=columns,
            drop_columns=drop_columns,
        )
        run_options = RunOptions(
            overwrite=overwrite,
            resume=resume,
            on_error=on_error.value,
            max_errors=max_errors,
            workers=workers,
            strict=strict,
        )

        def opened() -> Source:
            return open_source(
                source,
                format.value,
                options.schema,
                options.table,
                skip_errors=on_error is OnError.skip,
            )

        def write_datasets(progress: Progress, notices: Notices) -> list[WrittenDataset]:
            manifest = append_dataset(opened, out, options, run_options, progress, notices)
            directory = out if os.path.isdir(out) else os.path.dirname(out)
            return [WrittenDataset(None, directory, manifest)]

        run_write(write_datasets, json=json, timed=False)
