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
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-j", min=1, help="Processes that write; one a core where it is left off."
        ),
    ] = None,
    on_error: OnErrorOption = OnError.raise_,
    max_errors: MaxErrorsOption = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with an append that was stopped; do nothing where it is finished.",
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Discard what was stopped, and append from the start."),
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
    """Add items to a finished dataset: they go on where its last item stands.

    All ends as if old and new items had been written in one run: shards, index, schema, label
    counts. The dataset is written anew beside the old one, which is whole until the new one is.
    Appending the same items again adds them again, but for --resume.

    Example: [bold]shardwriter append more-photos/ out/train[/bold]
    """

    def left() -> str | None:
        from shardwriter.writing import output_to_append_to

        return leftover_note(output_to_append_to(out))

    with reported(verbose=verbose, left=left):
        import os

        from shardwriter.cli.write_options import dataset_options
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
