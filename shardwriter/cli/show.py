"""``shardwriter show``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import VerboseOption, hint, reported


def show(
    path: Annotated[str, typer.Argument(help="A dataset, shard file, folder or manifest.")],
    start: Annotated[int, typer.Option(min=0, help="First record, counted from 0.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many records.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one record a line.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Show records, decoded, in reading order.

    Example: [bold]shardwriter show out/train --start 100 --count 2[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.render import print_record, record_json
        from shardwriter.show import read_some

        found = False
        for record in read_some(path, start, count, notify=hint):
            found = True
            if json:
                import json as json_module

                typer.echo(json_module.dumps(record_json(record), sort_keys=True))
            else:
                print_record(record)
        if not found:
            from shardwriter.errors import OptionError

            raise OptionError(f"there is no record {start}", path=path)
