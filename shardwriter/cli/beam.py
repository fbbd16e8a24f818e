"""``shardwriter beam``: the jobs, and each of them as a command of its own."""

from __future__ import annotations

import json as json_module
import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from copy import copy
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from shardwriter.cli.common import (
    JsonOption,
    VerboseOption,
    hint,
    prepare_streams,
    reported,
    terminable,
)
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
    from argparse import ArgumentParser

    import apache_beam as beam

    from shardwriter.cluster import ShardStats
    from shardwriter.errors import ShardwriterError


# The command line of a Beam job, taken apart: options of ours, and those that Beam knows.
#
# Beam passes over what it does not know without a word; here such an option is refused.

_LOCAL_ONLY: Final = {
    "-j": "the runner has its own: --num_workers and --max_num_workers on Dataflow",
    "--workers": "the runner has its own: --num_workers and --max_num_workers on Dataflow",
    "--engine": "the runner does the work: --runner chooses it",
    "--backend": "leave it off",
    "--item-timeout": "leave it off; a runner has its own timeouts",
    "--retry-errors": "leave it off; `shardwriter write` can retry them",
    "--timings": "leave it off; a runner shows where its time goes",
    "--dry-run": "`shardwriter write --dry-run` says what would be written, and --dry_run=True has "
    "the DataflowRunner make the graph",
}
_HERE: Final = frozenset(
    ["fnapi", "direct", "bundlebaseddirect", "switchingdirect", "testdirect", "prism"]
)
_DATAFLOW: Final = frozenset(["dataflow", "testdataflow"])

Group = list[str]
"""An option with its value as it was typed, or an argument."""


@dataclass(frozen=True)
class JobArguments:
    """What was typed behind the name of a job.

    Attributes:
        mine: Arguments, and options of ours.
        beam: Options of Beam's.
    """

    mine: Sequence[Group]
    beam: Sequence[Group]

    @property
    def beam_args(self) -> list[str]:
        """The options of Beam's, word by word."""
        return [word for group in self.beam for word in group]

    def value_of(self, *names: str) -> str | None:
        """Return the value of the last option of Beam's that has one of these names."""
        for group in reversed(self.beam):
            name, _, value = group[0].partition("=")
            if name in names:
                return value if len(group) == 1 else group[1]
        return None

    @property
    def runner(self) -> str | None:
        """The runner, in short: ``dataflow``; None where none was named."""
        named = self.value_of("--runner")
        if named is None:
            return None
        return named.rpartition(".")[2].lower().removesuffix("runner")

    @property
    def on_dataflow(self) -> bool:
        """Whether the workers are Dataflow's, who see no file of this machine."""
        return self.runner in _DATAFLOW

    @property
    def runs_here(self) -> bool:
        """Whether the workers surely see the files of this machine."""
        if self.runner is None or self.runner in _HERE:
            return True
        if self.runner == "dask":
            return self.value_of("--dask_client_address") is None
        return self.value_of("--environment_type") == "LOOPBACK" and not self.on_dataflow

    @property
    def is_dry_run(self) -> bool:
        """Whether the graph is made, and nothing runs."""
        return self.value_of("--dry_run") is not None

    @property
    def waits(self) -> bool:
        """Whether the command ends when the job does."""
        return self.value_of("--no_wait_until_finish") is None


class BeamCommand(TyperCommand):
    """A command that leaves Beam's options to Beam: ``ctx.obj`` has them as JobArguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the options apart, and read ours."""
        own = {
            name: bool(getattr(param, "is_flag", False))
            for param in self.get_params(ctx)
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        }
        with reported():
            ctx.obj = split(args, own, ctx.command_path)
        mine = [word for group in ctx.obj.mine for word in group]
        return super().parse_args(ctx, mine)


def split(args: Sequence[str], own: Mapping[str, bool], command: str) -> JobArguments:
    """Tell options of ours from Beam's; what neither knows is left to us, to be refused.

    Args:
        args: What was typed.
        own: Our options, and whether each is a flag.
        command: What hints call the command.

    Raises:
        OptionError: An option is for the engines of one machine, or Beam refuses its value.
    """
    from shardwriter.errors import OptionError

    parser = _beam_parser(args)
    known = parser._option_string_actions  # nothing public says which options take a value
    mine: list[Group] = []
    beam: list[Group] = []
    words = list(args)
    while words:
        word = words.pop(0)
        name, has_value, _ = word.partition("=")
        if word == "--":
            mine.append([word, *words])
            break
        local = name if name in _LOCAL_ONLY else word[:2] if word[:2] in _LOCAL_ONLY else None
        if local is not None and name not in own:
            raise OptionError(
                f"{local} is for `shardwriter write`, which works on one machine",
                hint=_LOCAL_ONLY[local],
            )
        is_own = name in own or not name.startswith("--") or name not in known
        group = [word]
        if not has_value and words:
            takes_value = own.get(name) is False
            if not is_own:
                takes_value = known[name].nargs is None or not (
                    known[name].nargs == 0 or words[0].startswith("-")
                )
            if takes_value:
                group.append(words.pop(0))
        (mine if is_own else beam).append(group)
    found = JobArguments(mine, beam)
    parser.parse_args(found.beam_args)
    if found.is_dry_run and not found.on_dataflow:
        raise OptionError(
            "--dry_run is an option of the DataflowRunner, and others run all the same",
            hint=f"add --runner=DataflowRunner: {command} --help",
        )
    return found


def _beam_parser(args: Sequence[str]) -> ArgumentParser:
    """Return the parser of all options that Beam knows.

    Raises:
        OptionError: The module of a runner can not be imported.
    """
    from importlib import import_module

    from shardwriter.errors import MissingExtra, OptionError

    try:
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise MissingExtra(
            f"a Beam job needs Apache Beam: {error}", hint='pip install "shardwriter[beam]"'
        ) from error

    for word, following in zip(args, [*args[1:], ""], strict=True):
        name, has_value, value = word.partition("=")
        module = (value if has_value else following).rpartition(".")[0]
        if name == "--runner" and module:
            try:
                import_module(module)  # it brings options of its own
            except ImportError as error:
                raise OptionError(f"--runner: {error}") from error
    parsers: list[ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    parser = parsers[0]

    def refuse(message: str) -> None:
        raise OptionError(message)

    parser.error = refuse  # type: ignore[method-assign,assignment]
    return parser


def dataflow_command(arguments: JobArguments, job: str, wheel: str) -> str:
    """Return the command, for a shell, that runs a job on Dataflow.

    Args:
        arguments: What was typed; options that are there stay as they are.
        job: The name of the job.
        wheel: The package that workers install where nothing else brings it to them.
    """
    mine = [group for group in arguments.mine if group != ["--dataflow-command"]]
    positional = [group for group in mine if not group[0].startswith("-") or group == ["-"]]
    lines = [["shardwriter", "beam", job, *(group[0] for group in positional)]]
    lines += [group for group in mine if group not in positional]
    lines.append(["--runner=DataflowRunner"])
    lines += [group for group in arguments.beam if group[0].partition("=")[0] != "--runner"]
    wanted = {
        ("--project",): "PROJECT",
        ("--region",): "REGION",
        ("--temp_location",): "gs://BUCKET/tmp",
        ("--extra_package", "--extra_packages", "--setup_file", "--sdk_container_image"): wheel,
    }
    for names, value in wanted.items():
        if arguments.value_of(*names) is None:
            lines.append([f"{names[0]}={value}"])
    return " \\\n  ".join(map(shlex.join, lines))


# Running a Beam job from a terminal: where it may run, and what it says when it fails.

DataflowCommandOption = Annotated[
    bool,
    typer.Option(
        "--dataflow-command", help="Print the command that runs this on Dataflow, and stop."
    ),
]

_OURS: Final = re.compile(r"shardwriter\.errors\.(\w+): (.*)")
_IN_MEMORY: Final = (
    "no --runner: the FnApiRunner does it in this process, for tests and small jobs (what is "
    "shuffled is in memory about four times); `shardwriter` itself serves one machine"
)
_STEP: Final = re.compile(r" \[while running '[^']*'\]$")


def wheel_name() -> str:
    """Return where ``scripts/build_wheel`` puts the wheel of this version."""
    return f"dist/shardwriter-{version('shardwriter')}-py3-none-any.whl"


def quiet_beam(*, verbose: bool) -> None:
    """Have Beam say no more than its errors; those of items are told once, by us."""
    logging.getLogger("apache_beam").setLevel(logging.WARNING if verbose else logging.ERROR)
    if not verbose:
        for name in ("common", "worker", "portability", "direct"):
            logging.getLogger(f"apache_beam.runners.{name}").setLevel(logging.CRITICAL)


def check_reachable(arguments: JobArguments, **places: str) -> None:
    """Refuse what the workers can not see.

    Args:
        arguments: They say where the workers are.
        places: What is read or written, by what the help calls it.

    Raises:
        OptionError: It lies on this machine, and the workers do not.
    """
    import os

    from shardwriter.dataset import is_url
    from shardwriter.errors import OptionError
    from shardwriter.sources import is_reference

    for name, place in places.items():
        if is_url(place) or (
            name == "SOURCE" and is_reference(place) and not os.path.exists(place)
        ):
            continue
        if arguments.on_dataflow:
            raise OptionError(
                f"{name} lies on this machine, and Dataflow's workers can not see it",
                path=place,
                hint="name a place that they can: gs://bucket/...",
            )
        if not arguments.runs_here:
            hint(f"{name} must be where all workers see it: {place}")


def run_job(arguments: JobArguments, transform: beam.PTransform, *, verbose: bool) -> str | None:
    """Make a pipeline of a transform, run it, and wait for its end unless told otherwise.

    Returns:
        None when the job has ended well; else why there is no result, in a line.

    Raises:
        UsageError: The job can not be launched so.
        DataError: The data is at fault.
        RunError: The job failed.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions

    from shardwriter.errors import RunError

    options = PipelineOptions(arguments.beam_args)
    # Workers import what they run, and get nothing of this process.
    options.view_as(SetupOptions).save_main_session = False
    if arguments.runner is None:
        options.view_as(StandardOptions).runner = "FnApiRunner"
    quiet_beam(verbose=verbose)
    # What a map prints is no result.
    with terminable(), redirect_stdout(sys.stderr):
        pipeline = _pipeline(options)
        pipeline | transform
        for note in getattr(transform, "notes", ()):
            hint(note)
        if arguments.runner is None:
            hint(_IN_MEMORY)
        result = _asked(pipeline.run)
        if arguments.is_dry_run:
            return "the graph was made, and nothing was run (--dry_run)"
        started = "the job was started"
        if arguments.on_dataflow:
            started += f" as {result.job_id()}"
        if not arguments.waits:
            return f"{started}, and is not waited for"
        if arguments.on_dataflow:
            hint(started)
        state = _asked(result.wait_until_finish) or result.state
    if state != "DONE":
        raise RunError(f"the job has ended as {state}")
    return None


def _pipeline(options: Any) -> beam.Pipeline:
    import apache_beam as beam

    from shardwriter.errors import MissingExtra, OptionError

    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise OptionError(" ".join(str(error).split())) from error
    except ImportError as error:
        raise MissingExtra(str(error), hint="pip install 'shardwriter[gcp]'") from error


def _asked(step: Any) -> Any:
    """Have a runner do something, and tell its failure as ours.

    Ctrl-C meets a step that runs in this process, and Beam takes it for the step's failure.
    """
    try:
        return step()
    except Exception as error:  # what runners raise has nothing in common
        for found in _chain(error):
            if isinstance(found, KeyboardInterrupt):
                raise found from error
        raise told(error) from error


def told(error: BaseException) -> ShardwriterError:
    """Return what a runner's failure is about.

    Runners that work in this process raise what the step raised, made anew by Beam from its
    message; the error itself, with where and what to do, is what that followed. Others tell the
    worker's traceback as text.
    """
    from shardwriter import errors
    from shardwriter.errors import RunError, ShardwriterError

    for found in _chain(error):
        if isinstance(found, ShardwriterError) and not _STEP.search(found.message):
            return copy(found)  # raised again it would lose its own cause
    text = str(error)
    ours = [(name, message) for name, message in _OURS.findall(text) if hasattr(errors, name)]
    whole = [pair for pair in ours if not _STEP.search(pair[1])] or ours
    if whole:
        name, message = whole[-1]
        kind: type[ShardwriterError] = getattr(errors, name)
        return kind(_STEP.sub("", message))
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return RunError(_STEP.sub("", lines[-1].strip()), hint="-v shows all that the runner said")


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__


_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


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


def _app(*commands: Callable[..., Any], **settings: Any) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings=_SETTINGS,
        **settings,
    )
    for command in commands:
        app.command(cls=BeamCommand, context_settings=_SETTINGS)(command)
    return app


def main() -> None:
    """Run ``shardwriter beam JOB ...``."""
    from shardwriter.cli.beam_write import reshard, write

    app = _app(write, stats, reshard, no_args_is_help=True)

    @app.callback()
    def _help() -> None:
        """Write and prove TFRecord shards on any runner of Apache Beam.

        Options that a job does not list are Beam's: --runner, --project, --region, ...
        """

    prepare_streams()
    app(sys.argv[2:], prog_name="shardwriter beam")


def write_shards() -> None:
    """Run ``write``."""
    from shardwriter.cli.beam_write import write

    prepare_streams()
    _app(write)()


def shard_stats() -> None:
    """Run ``stats``."""
    prepare_streams()
    _app(stats)()


def reshard_shards() -> None:
    """Run ``reshard``."""
    from shardwriter.cli.beam_write import reshard

    prepare_streams()
    _app(reshard)()
