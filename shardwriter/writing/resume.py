"""Resume: going on with a run that was stopped, or trying items again that failed."""

from __future__ import annotations

from collections.abc import Callable

from shardwriter.dataset.manifest import Manifest
from shardwriter.errors import StorageError
from shardwriter.writing.finished import take_finished
from shardwriter.writing.job import Job
from shardwriter.writing.options import RunOptions
from shardwriter.writing.publication import check_output, finished
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.run_facts import run_facts
from shardwriter.writing.unfinished import go_on


def take_up(
    job: Job, run: RunDirectory, run_options: RunOptions, notify: Callable[[str], None]
) -> Kept | Manifest | None:
    """Find out where to go on.

    Returns:
        What is kept of an unfinished run; the manifest where all is done; None where nothing is.

    Raises:
        OutputExists: A dataset is there that is not of this job.
        RunChanged: So is an unfinished run.
    """
    if run.is_worth_keeping:
        return go_on(job, run, run_facts(job), run_options, notify)
    manifest = finished(run)
    if manifest is None:
        check_output(run, overwrite=False, pattern=job.pattern)
        return None
    if manifest.job != job.digest() and _may_be_replaced(run, job):
        return None
    return take_finished(job, run, manifest, run_options, notify)


def _may_be_replaced(run: RunDirectory, job: Job) -> bool:
    """Tell whether a run of this job had leave to overwrite, and came to nothing yet."""
    try:
        facts = run.facts()
    except StorageError:
        return False
    if "standing_job" in facts:
        return False  # it keeps the records that are there
    return facts.get("replaces") is not None and facts.get("job") == job.digest()
