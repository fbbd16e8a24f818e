"""``shard-stats``, which is ``shardwriter stats``."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, print_json, reading_bar, reported


class Check(str, Enum):
    """What ``--check`` takes."""

    none = "none"
    length = "length"
    crc = "crc"


PathsArgument = Annotated[
    list[str],
    typer.Argument(help="Folders, files, dataset names, train@16, or globs.", metavar="PATH..."),
]
CheckOption = Annotated[
    Check,
    typer.Option(metavar="CHECK", help="What to prove: crc (every byte), length, or none."),
]
AllShardsOption = Annotated[
    bool, typer.Option("--all-shards", help="Show every shard, however many there are.")
]


def stats(
    paths: PathsArgument,
    check: CheckOption = Check.crc,
    all_shards: AllShardsOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say how many records there are, how they are balanced, and what is damaged.

    Reads any TFRecord files, whoever wrote them, compressed or not. Ends with 0 when all is good,
    with 1 when a defect was found, and with 2 when a path names nothing.

    Example: [bold]shard-stats out/train@16[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.stats import stats as make_report

        with reading_bar("reading") as progress:
            report = make_report(paths, check=check.value, progress=progress)
        if json:
            print_json(report.to_json())
        else:
            from shardwriter.render import print_report

            print_report(report, all_shards=all_shards)
        if report.num_defects:
            raise typer.Exit(1)
