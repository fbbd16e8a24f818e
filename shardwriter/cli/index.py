"""``shardwriter index``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, print_json, reported, say


def index(
    path: Annotated[str, typer.Argument(help="A dataset: out/train, out/train@16 or its folder.")],
    idx: Annotated[
        bool,
        typer.Option(
            "--idx", help="Also write <shard>.idx files, for DALI and the PyPI package tfrecord."
        ),
    ] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Rebuild the index file of a dataset from its shards.

    The index file holds the end offset of every record; random access uses it.

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
