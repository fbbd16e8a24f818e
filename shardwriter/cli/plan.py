"""``shardwriter plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, print_json, reported
from shardwriter.cli.stats import PolicyOption, policy_names


def plan(
    records: Annotated[int, typer.Option("--records", metavar="N", help="Number of records.")],
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            metavar="S",
            help="Number of shards; default: as write chooses it, from --record-bytes.",
        ),
    ] = None,
    record_bytes: Annotated[
        float | None,
        typer.Option(
            "--record-bytes",
            metavar="BYTES",
            help="Mean bytes of a record in its file, 16 bytes of framing included.",
        ),
    ] = None,
    world: Annotated[
        int, typer.Option("--world", metavar="W", min=1, help="Ranks that train together.")
    ] = 1,
    loader_workers: Annotated[
        int,
        typer.Option("--loader-workers", metavar="K", min=0, help="Loader workers per rank."),
    ] = 1,
    batch_size: Annotated[
        int,
        typer.Option("--batch-size", metavar="N", min=1, help="Records per batch, on each rank."),
    ] = 1,
    drop_last: Annotated[
        bool, typer.Option("--drop-last", help="The loader drops incomplete batches.")
    ] = False,
    policy: PolicyOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compute how training would split shards: samples and steps of every rank.

    Reads no files: it assumes shards as shardwriter writes them, whose numbers
    of records differ by at most one. Exit code 2 if a number is out of range.

    Example: [bold]shardwriter plan --records 50000 --shards 16 --world 8[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.dataset import auto_num_shards
        from shardwriter.errors import OptionError
        from shardwriter.inspect import PlanOptions, even_records, plan_json

        options = PlanOptions(
            world, loader_workers, batch_size, drop_last, record_bytes, policy_names(policy)
        )
        if shards is None:
            if record_bytes is None:
                raise OptionError(
                    "the number of shards is missing",
                    hint="add --shards 16, or --record-bytes 110000 to have the number chosen",
                )
            shards = auto_num_shards(records, records * record_bytes, options.num_readers)
        result = plan_json(even_records(records, shards), options)
        if json:
            print_json(result)
        else:
            from shardwriter.report import print_plan

            print_plan(result, all_policies=bool(policy))
