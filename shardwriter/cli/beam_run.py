"""Running a Beam job from a terminal: where it may run, and what it says when it fails."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from copy import copy
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shardwriter.cli.common import hint, terminable

if TYPE_CHECKING:
    import apache_beam as beam

    from shardwriter.cli.beam_args import JobArguments
    from shardwriter.errors import ShardwriterError

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

    from shardwriter.dataset.naming import is_url
    from shardwriter.errors import OptionError
    from shardwriter.sources.callables import is_reference

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
