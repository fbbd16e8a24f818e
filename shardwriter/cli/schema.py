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
            help="Print a program that reads this dataset, to go on from: tensorflow (plain "
            "TensorFlow), torch, dali or grain.",
        ),
    ] = None,
    records: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Where no manifest tells, types are those of N records."
        ),
    ] = 1000,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show the features of a dataset: names, types, shapes, and how often they are there.

    Example: [bold]shardwriter schema out/train[/bold]

    Loader code: [bold]shardwriter schema out/train --code tensorflow > read_train.py[/bold]

    The JSON is what the manifest has as its schema.
    """
    with reported(verbose=verbose):
        from shardwriter.errors import OptionError
        from shardwriter.reading import read_schema
        from shardwriter.reading.loader_code import loader_code

        if code is not None and json:
            raise OptionError("code is printed as it is, not as JSON", hint="leave --json off")
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
    """Say of what records the types are, where that is not all of them."""
    if known.is_told and known.num_counted != known.num_records:
        hint(f"counts are those of all {known.num_counted:,} records of the dataset")
    if not known.is_told and known.num_counted:
        few = known.num_counted < known.num_records
        of = f"the first {known.num_counted:,} of " if few else ""
        hint(
            f"no manifest tells the types: they are those of {of}{known.num_records:,} records, "
            "which keep no shapes and no classes"
        )
