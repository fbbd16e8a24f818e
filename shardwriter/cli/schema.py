"""``shardwriter schema``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, hint, print_json, reported

if TYPE_CHECKING:
    from shardwriter.reading import KnownSchema


class _Framework(str, Enum):
    tensorflow = "tensorflow"
    torch = "torch"
    dali = "dali"
    grain = "grain"


def schema(
    path: Annotated[str, typer.Argument(help="A dataset, shard file, folder or manifest.")],
    code: Annotated[
        _Framework | None,
        typer.Option(
            metavar="FRAMEWORK",
            help="Print a program that reads this dataset, with tensorflow, torch, dali or grain.",
        ),
    ] = None,
    records: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Without a manifest: infer types from the first N records."
        ),
    ] = 1000,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show the features of a dataset: names, types, shapes and how many records have them.

    Example: [bold]shardwriter schema out/train[/bold]

    Loader code: [bold]shardwriter schema out/train --code tensorflow > read_train.py[/bold]

    --json prints them as the manifest's field "schema".
    """
    with reported(verbose=verbose):
        from shardwriter.errors import OptionError
        from shardwriter.reading import read_schema
        from shardwriter.reading.loader_code import loader_code

        if code is not None and json:
            raise OptionError("--code prints a program, not JSON", hint="drop --json")
        if code is not None:
            text = loader_code(path, code.value, num_records=records, notify=hint)
            typer.echo(text, nl=False)
            return
        known = read_schema(path, num_records=records, notify=hint)
        if json:
            _say_where_from(known)
            print_json(known.to_json())
            return
        from shardwriter.report import print_schema

        print_schema(known)
        _say_where_from(known)


def _say_where_from(known: KnownSchema) -> None:
    """Print a note on which records the types and counts come from, unless it is all of them."""
    if known.from_manifest and known.num_counted != known.num_records:
        hint(f"counts are of all {known.num_counted:,} records of the dataset")
    if not known.from_manifest and known.num_counted:
        few = known.num_counted < known.num_records
        of = f"the first {known.num_counted:,} of " if few else ""
        hint(
            f"no manifest: types are inferred from {of}{known.num_records:,} records; shapes and "
            "class names are not stored in records"
        )
