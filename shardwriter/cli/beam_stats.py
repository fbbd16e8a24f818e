"""``python -m shardwriter.beam stats``: ``shard-stats`` by a Beam runner."""

from __future__ import annotations

import json as json_module
import os
import tempfile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwriter.cli.beam_args import JobArguments, dataflow_command
from shardwriter.cli.beam_run import DataflowCommandOption, check_reachable, run_job, wheel_name
from shardwriter.cli.common import JsonOption, VerboseOption, hint, reported
from shardwriter.cli.stats import AllShardsOption, Check, CheckOption, PathsArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardwriter.stats import Report


def stats(
    ctx: typer.Context,
    paths: PathsArgument,
    check: CheckOption = Check.crc,
    all_shards: AllShardsOption = False,
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
) -> None:
    """Say what shard-stats says, from many workers: each proves files of its own.

    Ends with 0 when all is good, with 1 when a defect was found, and with 2
    when a path names nothing. Options that are not listed here are Beam's:
    --runner, --project, --region, ...

    Example: [bold]python -m shardwriter.beam stats out/train@16[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.errors import OptionError

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
        with tempfile.TemporaryDirectory(prefix="shardwriter-") as folder:
            told = _run(arguments, paths, check, out or os.path.join(folder, "stats.json"), verbose)
        if told is None:
            return
        if json:
            typer.echo(told, nl=False)
        found = json_module.loads(told)
        if not json:
            from shardwriter.render import print_report

            print_report(_report(found, paths), all_shards=all_shards)
        if found["num_defects"]:
            raise typer.Exit(1)


def _run(
    arguments: JobArguments, paths: list[str], check: Check, out: str, verbose: bool
) -> str | None:
    """Return the JSON; None where the job is not waited for."""
    import apache_beam as beam

    from shardwriter.beam import ShardStats
    from shardwriter.beam.text_file import KeepText
    from shardwriter.errors import RunError
    from shardwriter.storage.choose import storage_for

    keep = beam.ParDo(KeepText(out)).with_output_types(str)
    job = ShardStats(paths, check=check.value) | "Keep" >> keep
    unfinished = run_job(arguments, job, verbose=verbose)
    if unfinished is not None:
        hint(unfinished)
        return None
    data = storage_for(out).read(out)
    if data is None:
        raise RunError("the job has ended well, and there is no result", path=out)
    return data.decode()


def _report(found: Mapping[str, Any], paths: list[str]) -> Report:
    """Return the report that JSON was made of, as far as the table shows it."""
    from shardwriter.locate import find_shard_sets
    from shardwriter.scan import FileScan, RecordSizes
    from shardwriter.stats import Finding, Report, SetReport

    defects = [Finding(**entry) for entry in found["defects"]]
    scans = {}
    for entry in found["shards"]:
        told = entry["record_bytes"]
        histogram = [0] * (
            1 + max((bin["below"].bit_length() - 1 for bin in told["histogram"]), default=-1)
        )
        for bin in told["histogram"]:
            histogram[bin["below"].bit_length() - 1] = bin["count"]
        path = entry["path"]
        sizes = RecordSizes(
            entry["num_records"], entry["payload_bytes"], told["min"], told["max"], histogram
        )
        scans[path] = FileScan(
            path,
            entry["file_bytes"],
            entry["compression"],
            sizes,
            num_defects=sum(defect.path == path for defect in defects),
        )
    reports = [
        SetReport(shard_set, [(shard, scans[path]) for shard, path in shard_set.shards])
        for shard_set in find_shard_sets(paths)
    ]
    if reports:
        reports[0].findings, reports[0].notes = defects, found["notes"]
        reports[0].num_defects = found["num_defects"]
    return Report(reports, found["check"])
