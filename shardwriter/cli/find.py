"""``shardwriter find``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import VerboseOption, has_reader, hint, print_json, reported, say


def find(
    path: Annotated[str, typer.Argument(help="A dataset, shard file, folder or manifest.")],
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="FEATURE=VALUE",
            help="Feature and value to find. In text, VALUE may be a pattern with *, ? and [...]; "
            "FEATURE==VALUE matches these characters literally.",
        ),
    ],
    first: Annotated[bool, typer.Option("--first", help="Stop at the first match.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after N matches.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one record per line.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Find records by the value of a feature: record number, item, shard and position.

    Exit code 1 if no record matches.

    Example: [bold]shardwriter find out/train image/filename=n01440764_10026.JPEG[/bold]

    Pattern: [bold]shardwriter find out/train 'image/filename=*_10026.*'[/bold]
    """
    with reported(verbose=verbose):
        import glob
        import shlex
        from contextlib import closing
        from itertools import islice

        from shardwriter.errors import OptionError
        from shardwriter.reading import WantedValue, find_records

        feature, equals, text = wanted.partition("=")
        exact = text.startswith("=")
        value = WantedValue(feature, text.removeprefix("="), exact=exact)
        if not equals or not feature:
            raise OptionError(f"{wanted!r} is not FEATURE=VALUE", hint="for example: label=3")
        num_found = 0
        with closing(find_records(path, value, notify=hint)) as records:
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
            hint(f"no record has {wanted}")
            if value.part_of is not None:
                pattern = shlex.quote(f"{feature}=*{glob.escape(value.text)}*")
                hint(
                    f"{value.part_of.decode(errors='replace')!r} contains it; to match parts: "
                    f"shardwriter find {shlex.quote(path)} {pattern}"
                )
            raise typer.Exit(1)
