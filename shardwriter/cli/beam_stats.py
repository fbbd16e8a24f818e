"""``shardwriter beam stats``: ``shard-stats`` by a Beam runner."""

from __future__ import annotations

import json as json_module
import os
import tempfile
from typing import TYPE_CHECKING, Annotated

import typer

from shardwriter.cli.beam import (
    DataflowCommandOption,
    JobArguments,
    check_reachable,
    dataflow_command,
    run_job,
    wheel_name,
)
from shardwriter.cli.common import JsonOption, VerboseOption, hint, reported
from shardwriter.cli.stats import (
    AllShardsOption,
    BaselineOption,
    BatchSizeOption,
    Check,
    CheckOption,
    DropLastOption,
    ExpectRecordsOption,
    Faces,
    FailOnOption,
    FeaturesOption,
    HtmlOption,
    LabelOption,
    LoaderWorkersOption,
    MaxByteImbalanceOption,
    MaxImbalanceOption,
    PathsArgument,
    PolicyOption,
    WorldOption,
    check_page,
    conclude,
    gate_options,
    plan_options,
)

if TYPE_CHECKING:
    from shardwriter.cluster import ShardStats


def stats(
    ctx: typer.Context,
    paths: PathsArgument,
    check: CheckOption = Check.crc,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Keep the JSON in a file or at a URL; needed where workers are elsewhere.",
        ),
    ] = None,
    dataflow: DataflowCommandOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
    features: FeaturesOption = False,
    label: LabelOption = None,
    world: WorldOption = None,
    loader_workers: LoaderWorkersOption = None,
    batch_size: BatchSizeOption = None,
    drop_last: DropLastOption = False,
    policy: PolicyOption = None,
    expect_records: ExpectRecordsOption = None,
    max_imbalance: MaxImbalanceOption = None,
    max_byte_imbalance: MaxByteImbalanceOption = None,
    fail_on: FailOnOption = None,
    baseline: BaselineOption = None,
    html: HtmlOption = None,
    all_shards: AllShardsOption = False,
) -> None:
    """Say what shard-stats says, from many workers: each proves files of its own.

    Ends with 0 when all is good, with 1 when there is a defect or a gate has
    failed, and with 2 when a path names nothing. Options that are not listed
    here are Beam's: --runner, --project, --region, ...

    Example: [bold]shardwriter beam stats out/train@16[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.errors import OptionError

        gates = gate_options(expect_records, max_imbalance, max_byte_imbalance, fail_on, baseline)
        plan = plan_options(world, loader_workers, batch_size, drop_last, policy)
        check_page(html)
        arguments: JobArguments = ctx.obj
        asked = arguments
        if dataflow:
            asked = JobArguments(arguments.mine, [*arguments.beam, ["--runner=DataflowRunner"]])
        for path in paths:
            check_reachable(asked, PATH=path)
        if out is not None:
            check_reachable(asked, **{"--out": out})
        elif not asked.runs_here:
            raise OptionError(
                "the workers are elsewhere, and what they find must come back",
                hint="--out names a file that they can write and this machine can read: "
                "gs://bucket/stats.json",
            )
        if dataflow:
            typer.echo(dataflow_command(arguments, "stats", wheel_name()))
            return
        from shardwriter.cluster import ShardStats

        job = ShardStats(paths, check=check.value, features=features, label=label, plan=plan)
        with tempfile.TemporaryDirectory(prefix="shardwriter-") as folder:
            told = _run(arguments, job, out or os.path.join(folder, "stats.json"), verbose)
        if told is not None:
            conclude(json_module.loads(told), gates, Faces(json, html, all_shards, bool(policy)))


def _run(arguments: JobArguments, stats_job: ShardStats, out: str, verbose: bool) -> str | None:
    """Return the JSON; None where the job is not waited for."""
    import apache_beam as beam

    from shardwriter.cluster import SaveText
    from shardwriter.errors import RunError
    from shardwriter.storage import storage_for

    keep = beam.ParDo(SaveText(out)).with_output_types(str)
    job = stats_job | "Keep" >> keep
    unfinished = run_job(arguments, job, verbose=verbose)
    if unfinished is not None:
        hint(unfinished)
        return None
    data = storage_for(out).read(out)
    if data is None:
        raise RunError("the job has ended well, and there is no result", path=out)
    return data.decode()
