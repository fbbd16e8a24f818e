"""``shardwriter verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, print_json, reported
from shardwriter.writing import reading_bar


def verify(
    out: Annotated[
        str, typer.Argument(help="A dataset with a manifest: out/train, or its folder.")
    ],
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compare a finished dataset with its manifest: every byte, every count and the index.

    Exit code 0 if all of it matches, 1 if anything differs, and 2 if there is
    no such dataset.

    Example: [bold]shardwriter verify out/train[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.inspect.verify import verify as prove

        with reading_bar("verifying") as progress:
            report = prove(out, progress=progress)
        if json:
            print_json(report.to_json())
        else:
            from shardwriter.report import print_verdict

            print_verdict(report.to_json())
        if report.num_defects:
            raise typer.Exit(1)
