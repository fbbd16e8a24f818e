"""``shardwriter find``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import VerboseOption, hint, print_json, reported, say
from shardwriter.cli.streams import has_reader


def find(
    path: Annotated[str, typer.Argument(help="A dataset, shard file, folder or manifest.")],
    wanted: Annotated[
        str, typer.Argument(metavar="FEATURE=VALUE", help="What the record has to hold.")
    ],
    first: Annotated[bool, typer.Option("--first", help="Stop at the first one.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop when so many are found.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one record a line.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Find records by a value, such as a file's name: which record, which shard, which position.

    The exit code is 1 where no record holds it.

    Example: [bold]shardwriter find out/train image/filename=n01440764_10026.JPEG[/bold]
    """
    with reported(verbose=verbose):
        from contextlib import closing
        from itertools import islice

        from shardwriter.errors import OptionError
        from shardwriter.finding import find_records

        feature, equals, value = wanted.partition("=")
        if not equals or not feature:
            raise OptionError(f"{wanted!r} is not FEATURE=VALUE", hint="as in label=3")
        num_found = 0
        with closing(find_records(path, feature, value, notify=hint)) as records:
            for found in islice(records, 1 if first else limit):
                num_found += 1
                if json:
                    print_json(vars(found), indent=None)
                else:
                    say(
                        f"record {found.index:,}  item {found.source_index:,}  "
                        f"{found.path} [{found.record_index:,}]"
                    )
                if not has_reader():
                    break
        if not num_found:
            hint(f"no record holds {wanted}")
            raise typer.Exit(1)
