"""``shard-stats``, which is ``shardwriter stats``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwriter.cli.common import (
    JsonOption,
    VerboseOption,
    hint,
    print_json,
    reading_bar,
    reported,
)
from shardwriter.dataset import is_url

if TYPE_CHECKING:
    from shardwriter.inspect import GateOptions, PlanOptions


# What ``shard-stats`` and its Beam job are asked, and what becomes of the report.


class Check(str, Enum):
    """What ``--check`` takes."""

    none = "none"
    length = "length"
    crc = "crc"


_CONTENTS = "What records hold"
_TRAINING = "How training will split"
_GATES = "When to end with 1, for CI"
_FACES = "How to show it"

PathsArgument = Annotated[
    list[str],
    typer.Argument(help="Folders, files, dataset names, train@16, or globs.", metavar="PATH..."),
]
CheckOption = Annotated[
    Check,
    typer.Option(metavar="CHECK", help="What to prove: crc (every byte), length, or none."),
]
FeaturesOption = Annotated[
    bool,
    typer.Option(
        "--features",
        help="Statistics of all features, and in what shards differ.",
        rich_help_panel=_CONTENTS,
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Count this feature's values, per shard and in reading order.",
        rich_help_panel=_CONTENTS,
    ),
]
WorldOption = Annotated[
    int | None,
    typer.Option(min=1, help="Ranks that train together.", rich_help_panel=_TRAINING),
]
LoaderWorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="Loader processes of a rank.", rich_help_panel=_TRAINING),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(min=1, help="Records in a batch of one rank.", rich_help_panel=_TRAINING),
]
DropLastOption = Annotated[
    bool,
    typer.Option(
        "--drop-last",
        help="The loader drops batches that are not full.",
        rich_help_panel=_TRAINING,
    ),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="These policies instead of the likely ones, such as webdataset,dali-fill; or all.",
        rich_help_panel=_TRAINING,
    ),
]
ExpectRecordsOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Unless there are N records.", rich_help_panel=_GATES),
]
MaxImbalanceOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        metavar="R",
        help="If a shard, or with --world a rank, has over R times the mean.",
        rich_help_panel=_GATES,
    ),
]
MaxByteImbalanceOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        metavar="R",
        help="If a shard has over R times the mean bytes.",
        rich_help_panel=_GATES,
    ),
]
FailOnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WORDS",
        help="For any of these, such as drift,unset,nan,hangs; a wrong word lists all.",
        rich_help_panel=_GATES,
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="If the report is worse than this earlier --json.",
        rich_help_panel=_GATES,
    ),
]
AllShardsOption = Annotated[
    bool,
    typer.Option(
        "--all-shards", help="Show every shard, however many there are.", rich_help_panel=_FACES
    ),
]
HtmlOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Also write it as a page.", rich_help_panel=_FACES),
]


def plan_options(
    world: int | None,
    loader_workers: int | None,
    batch_size: int | None,
    drop_last: bool,
    policies: Sequence[str] | None,
) -> PlanOptions | None:
    """Return who will read, by default one at a time; None where nothing says so."""
    from shardwriter.inspect import PlanOptions

    numbers = (world, loader_workers, batch_size)
    if numbers == (None, None, None) and not drop_last and not policies:
        return None
    ranks, workers, batch = (1 if number is None else number for number in numbers)
    return PlanOptions(ranks, workers, batch, drop_last, policies=policy_names(policies))


def policy_names(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of policies in texts that are lists with commas; none stand for all.

    Raises:
        OptionError: There is no such policy.
    """
    from shardwriter.inspect import check_names

    names = tuple(name.strip() for text in texts or () for name in text.split(",") if name.strip())
    if "all" in names:
        return ()
    check_names(names)
    return names


def gate_options(
    expect_records: int | None,
    max_imbalance: float | None,
    max_byte_imbalance: float | None,
    fail_on: Sequence[str] | None,
    baseline: str | None,
) -> GateOptions:
    """Return what the report has to come up to.

    Raises:
        OptionError: A word means nothing, or the baseline is none.
    """
    from shardwriter.inspect import GateOptions, load_baseline, split_words

    return GateOptions(
        expect_records=expect_records,
        max_imbalance=max_imbalance,
        max_byte_imbalance=max_byte_imbalance,
        fail_on=split_words(fail_on or []),
        baseline=None if baseline is None else load_baseline(baseline),
    )


def check_page(path: str | None) -> None:
    """Refuse a page that can not be written, before anything is read.

    Raises:
        OptionError: There is no folder for it, or it is one.
    """
    from shardwriter.errors import OptionError

    if path is None or is_url(path):
        return
    folder = os.path.dirname(path) or "."
    why = None
    if os.path.isdir(path):
        why = "it is a folder"
    elif not os.path.isdir(folder):
        why = "there is no such folder"
    elif not os.access(folder, os.W_OK):
        why = "nothing can be written in its folder"
    if why is not None:
        hint = "--html names a file in a folder that is there"
        raise OptionError(f"the page can not be written: {why}", path=path, hint=hint)


@dataclass(frozen=True)
class Faces:
    """How a report is shown.

    Attributes:
        json: As the JSON document.
        html: Also as a page, in this file.
        all_shards: Every shard in the table.
        all_policies: Every policy of the report in the table.
    """

    json: bool = False
    html: str | None = None
    all_shards: bool = False
    all_policies: bool = False


def conclude(report: dict[str, Any], gates: GateOptions, faces: Faces) -> None:
    """Hold a report against the gates, show it, and end with 1 unless all is good.

    Raises:
        typer.Exit: There are defects, or a gate has failed.
    """
    from shardwriter.inspect import evaluate, gates_passed

    report["gates"] = evaluate(report, gates)
    num_failed = sum(not gate["passed"] for gate in report["gates"])
    if num_failed and not report["num_defects"]:
        what = report["verdict"].removeprefix("OK: ")
        report["verdict"] = f"FAILED: {num_failed} of {len(report['gates'])} gates; {what}"
    if faces.json:
        print_json(report)
    else:
        from shardwriter.report import print_report

        print_report(report, all_shards=faces.all_shards, all_policies=faces.all_policies)
    if faces.html is not None:
        from shardwriter.reading import sample_pictures
        from shardwriter.report import write_page

        paths = [shard["path"] for shard in report["shards"]]
        label = report["labels"].get("feature")
        write_page(report, faces.html, samples=sample_pictures(paths, label=label))
        hint(f"the page is {faces.html}")
    if report["num_defects"] or not gates_passed(report["gates"]):
        raise typer.Exit(1)


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
