"""``shardwriter plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, print_json, reported
from shardwriter.cli.stats import PolicyOption, policy_names


def plan(
    records: Annotated[int, typer.Option("--records", metavar="N", help="Records in all.")],
    shards: Annotated[
        int | None,
        typer.Option("--shards", metavar="S", help="Shards; without it, what @auto would make."),
    ] = None,
    record_bytes: Annotated[
        float | None,
        typer.Option(
            "--record-bytes", metavar="BYTES", help="Mean size of a record with its frame."
        ),
    ] = None,
    world: Annotated[
        int, typer.Option("--world", metavar="W", min=1, help="Ranks that train together.")
    ] = 1,
    loader_workers: Annotated[
        int,
        typer.Option("--loader-workers", metavar="K", min=0, help="Loader processes of a rank."),
    ] = 1,
    batch_size: Annotated[
        int,
        typer.Option("--batch-size", metavar="N", min=1, help="Records in a batch of one rank."),
    ] = 1,
    drop_last: Annotated[
        bool, typer.Option("--drop-last", help="The loader drops batches that are not full.")
    ] = False,
    policy: PolicyOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say how training would split shards, from numbers alone: samples and steps of every rank.

    Reads nothing: the shards are those that shardwriter would write, whose lengths differ by at
    most one record. Ends with 0, and with 2 when a number makes no sense.

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
                    "neither the number of shards nor the size of a record is said",
                    hint="--shards 16, or --record-bytes 110000 to have the number chosen",
                )
            shards = auto_num_shards(records, records * record_bytes, options.num_readers)
        result = plan_json(even_records(records, shards), options)
        if json:
            print_json(result)
        else:
            from shardwriter.report import print_plan

            print_plan(result, all_policies=bool(policy))
