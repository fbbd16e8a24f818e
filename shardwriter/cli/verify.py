"""``shardwriter verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, print_json, reading_bar, reported


def verify(
    out: Annotated[str, typer.Argument(help="A dataset with a manifest: out/train, its folder.")],
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Prove a finished dataset: every shard, every count and the index against the manifest.

    Ends with 0 when all is proven, with 1 when anything is not, and with 2 when there is nothing of
    that name.

    Example: [bold]shardwriter verify out/train[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.inspect.verify import verify as prove

        with reading_bar("proving") as progress:
            report = prove(out, progress=progress)
        if json:
            print_json(report.to_json())
        else:
            from shardwriter.report import print_verdict

            print_verdict(report.to_json())
        if report.num_defects:
            raise typer.Exit(1)
