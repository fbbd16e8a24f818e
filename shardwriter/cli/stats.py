"""``shard-stats``, which is ``shardwriter stats``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import JsonOption, VerboseOption, reading_bar, reported
from shardwriter.cli.stats_options import (
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


def stats(
    paths: PathsArgument,
    check: CheckOption = Check.crc,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-j", min=1, help="Processes that read; one a core."),
    ] = None,
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
    """Say what is in shards, what is damaged, and how training will split them.

    Reads any TFRecord files, whoever wrote them, compressed or not. Ends with 0
    when all is good, with 1 when there is a defect or a gate has failed, and
    with 2 when a path names nothing.

    Example: [bold]shard-stats out/train@16 --features --world 8 --batch-size 64[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.inspect.stats import stats as make_report

        gates = gate_options(expect_records, max_imbalance, max_byte_imbalance, fail_on, baseline)
        plan = plan_options(world, loader_workers, batch_size, drop_last, policy)
        check_page(html)
        with reading_bar("reading") as progress:
            report = make_report(
                paths,
                check=check.value,
                features=features,
                label=label,
                plan=plan,
                workers=workers,
                progress=progress,
            )
        conclude(report.to_json(), gates, Faces(json, html, all_shards, bool(policy)))
