"""``shardwriter index``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, print_json, reported, say


def index(
    path: Annotated[str, typer.Argument(help="A shard set: out/train, out/train@16, a folder.")],
    idx: Annotated[
        bool, typer.Option("--idx", help="Write <shard>.idx for DALI and the PyPI loader too.")
    ] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Make the index of a shard set from its shards: where every record ends.

    Example: [bold]shardwriter index out/train --idx[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.writing import make_index

        result = make_index(path, dali=idx)
        if json:
            print_json(result)
        else:
            more = f" and {len(result['idx']):,} .idx files" if idx else ""
            say(f"{result['index']}: {result['num_records']:,} records{more}")
