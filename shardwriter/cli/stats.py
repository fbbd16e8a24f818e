"""``shardwriter stats``, also installed as ``shard-stats``; the Beam job shares its options."""

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
    reported,
)
from shardwriter.dataset import is_url
from shardwriter.writing import reading_bar

if TYPE_CHECKING:
    from shardwriter.inspect import GateOptions, PlanOptions


class Check(str, Enum):
    """Values of ``--check``."""

    none = "none"
    length = "length"
    crc = "crc"


_CONTENTS = "Contents of the records"
_TRAINING = "Training plan"
_GATES = "Gates for CI: exit with 1 if ..."
_FACES = "Output"

PathsArgument = Annotated[
    list[str],
    typer.Argument(help="Folders, files, dataset names (train@16) or globs.", metavar="PATH..."),
]
CheckOption = Annotated[
    Check,
    typer.Option(
        metavar="CHECK",
        help="What to verify: crc (every byte), length (the framing only), or none.",
    ),
]
FeaturesOption = Annotated[
    bool,
    typer.Option(
        "--features",
        help="Compute statistics of all features, and compare the shards.",
        rich_help_panel=_CONTENTS,
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Count the values of this feature, per shard and in reading order.",
        rich_help_panel=_CONTENTS,
    ),
]
WorldOption = Annotated[
    int | None,
    typer.Option(min=1, help="Ranks that train together.", rich_help_panel=_TRAINING),
]
LoaderWorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="Loader workers per rank.", rich_help_panel=_TRAINING),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(min=1, help="Records per batch, on each rank.", rich_help_panel=_TRAINING),
]
DropLastOption = Annotated[
    bool,
    typer.Option(
        "--drop-last",
        help="The loader drops incomplete batches.",
        rich_help_panel=_TRAINING,
    ),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Policies of loaders to compute, such as webdataset,dali-fill, or all; default: the "
        "likely ones.",
        rich_help_panel=_TRAINING,
    ),
]
ExpectRecordsOption = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="The number of records is not N.", rich_help_panel=_GATES
    ),
]
MaxImbalanceOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        metavar="R",
        help="A shard (with --world: a rank) has more than R times the mean records.",
        rich_help_panel=_GATES,
    ),
]
MaxByteImbalanceOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        metavar="R",
        help="A shard has more than R times the mean bytes.",
        rich_help_panel=_GATES,
    ),
]
FailOnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WORDS",
        help="There is a finding of these kinds, such as drift,unset,nan,hangs; any other word "
        "lists all kinds.",
        rich_help_panel=_GATES,
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The report is worse than this earlier one, saved with --json.",
        rich_help_panel=_GATES,
    ),
]
AllShardsOption = Annotated[
    bool,
    typer.Option(
        "--all-shards", help="List every shard, not only the first ones.", rich_help_panel=_FACES
    ),
]
HtmlOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Also write the report as an HTML page.", rich_help_panel=_FACES
    ),
]


def plan_options(
    world: int | None,
    loader_workers: int | None,
    batch_size: int | None,
    drop_last: bool,
    policies: Sequence[str] | None,
) -> PlanOptions | None:
    """Return the readers to plan for, 1 for each number not given; None without any option."""
    from shardwriter.inspect import PlanOptions

    numbers = (world, loader_workers, batch_size)
    if numbers == (None, None, None) and not drop_last and not policies:
        return None
    ranks, workers, batch = (1 if number is None else number for number in numbers)
    return PlanOptions(ranks, workers, batch, drop_last, policies=policy_names(policies))


def policy_names(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the policies named in comma-separated texts; () means all.

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
    """Return the gates that the report is evaluated against.

    Raises:
        OptionError: ``--fail-on`` has an unknown word, or the baseline is no report.
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
    """Raise if the HTML page can not be written, before any shard is read.

    Raises:
        OptionError: Its folder does not exist or is not writable, or the path is a folder.
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
        why = "its folder is not writable"
    if why is not None:
        hint = "give --html a file in an existing folder"
        raise OptionError(f"the page can not be written: {why}", path=path, hint=hint)


@dataclass(frozen=True)
class Faces:
    """The formats a report is printed in.

    Attributes:
        json: Print the JSON document instead of tables.
        html: File to write an HTML page to; None for no page.
        all_shards: List every shard in the table.
        all_policies: List every policy of the report in the table.
    """

    json: bool = False
    html: str | None = None
    all_shards: bool = False
    all_policies: bool = False


def conclude(report: dict[str, Any], gates: GateOptions, faces: Faces) -> None:
    """Evaluate the gates, print the report, and exit with 1 on a defect or a failed gate.

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
        typer.Option(
            "--workers", "-j", min=1, help="Processes that read; default: one per CPU core."
        ),
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
    """Report what shards hold, what is damaged, and how training will split them.

    Reads TFRecord files from any writer, compressed or not. Exit code 0 if there
    is no defect, 1 if there is one or a gate fails, and 2 if a path matches
    nothing.

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
