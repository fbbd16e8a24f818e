"""Life of a write: look at the outputs, fix the plans, let an engine work, publish.

::

    options checked -> outputs looked at and locked -> plans fixed, or those that are there found
    to be the same -> engine fills the run directories, one after the other -> counts held against
    the law -> commit -> final names, the manifest last

Most writes make one dataset. One with splits makes several, and publishes none of them before all
are sealed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import Output, partial_dir
from shardwriter.errors import DataWarning, FeatureError, SourceError
from shardwriter.formats.packing import lost_readers
from shardwriter.schema.data_warnings import as_error, from_manifest, warnings_of
from shardwriter.sources.source import ClosingSource, Source
from shardwriter.storage.protocol import Storage
from shardwriter.storage.tensorflow import require_tensorflow
from shardwriter.writing.budget import ErrorBudget
from shardwriter.writing.choose_engine import open_engine
from shardwriter.writing.engine import Engine, Outcome, Progress, Work
from shardwriter.writing.event_log import check_log_dir
from shardwriter.writing.features import tfds_features
from shardwriter.writing.gather import gather
from shardwriter.writing.job import Job, check_compression
from shardwriter.writing.keys import key_costs, key_notes
from shardwriter.writing.making import claimed, ledger_of, prepared
from shardwriter.writing.notices import Notices
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.plan import check
from shardwriter.writing.publication import begin, check_names, commit, complete
from shardwriter.writing.resume import take_up
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.run_facts import run_facts
from shardwriter.writing.sampling import choose_num_shards
from shardwriter.writing.selection import Selection
from shardwriter.writing.split_types import check_manifests


@dataclass(frozen=True)
class Target:
    """One of the datasets that a write makes.

    Attributes:
        output: What OUT says of it.
        options: What decides its bytes.
    """

    output: Output
    options: DatasetOptions

    @property
    def split(self) -> str | None:
        """Which split it is; None for the only dataset."""
        return None if self.options.split is None else self.options.split.name


Select = Callable[[Notices], Sequence[Selection]]
"""Opens the source, tells its notes, and returns the items of each target."""


def write_dataset(
    open_source: Callable[[], Source],
    output: Output,
    options: DatasetOptions,
    run_options: RunOptions,
    progress: Progress | None = None,
    notices: Notices | None = None,
    storage: Storage | None = None,
) -> Manifest:
    """Write the items of a source; see :func:`shardwriter.write`.

    The output is looked at and locked before the source is opened, which can take a while: a table
    is read once for its types.

    Args:
        open_source: Opens the source.
        output: What OUT says.
        options: What decides the bytes.
        run_options: What does not.
        progress: Told now and then how far the write has come.
        notices: Says what a person should know.
        storage: Where the dataset goes; None for the local file system.
    """

    def select(notices: Notices) -> list[Selection]:
        source = open_source()
        for note in [*source.notes, *key_notes(source, options)]:
            notices.note(note)
        for cost in key_costs(source, options):
            notices.info(cost)
        return [Selection(source, options)]

    targets = [Target(output, options)]
    return write_all(targets, select, run_options, progress, notices, storage)[0]


def write_all(
    targets: Sequence[Target],
    select: Select,
    run_options: RunOptions,
    progress: Progress | None = None,
    notices: Notices | None = None,
    storage: Storage | None = None,
) -> list[Manifest]:
    """Write one or several datasets; nothing is published before all of them are sealed.

    Args:
        targets: What is to be made.
        select: Opens the source; called once all outputs are locked.
        run_options: How.
        progress: Told now and then how far the dataset has come that is being made.
        notices: Says what a person should know.
        storage: Where the datasets go; None for the local file system.

    Returns:
        The manifest of each.

    Raises:
        SchemaConflict: The types of two splits do not go together; nothing is published.
        DataError: There is a warning about the data, with ``strict``; likewise.
    """
    outputs = [target.output for target in targets]
    for target in targets:
        check_compression(target.output, target.options, run_options)
    if run_options.backend == "tensorflow":
        require_tensorflow()
    run_dirs = [os.path.join(output.directory, partial_dir(output.name)) for output in outputs]
    run_options = replace(run_options, log_dir=check_log_dir(run_options.log_dir, run_dirs))
    notices = notices or Notices()
    for note in lost_readers(outputs[0].compression):
        notices.note(note)
    with ExitStack() as held, ExitStack() as started:
        runs = [held.enter_context(claimed(output, run_options, storage)) for output in outputs]
        # A pool gets ready while the source is opened.
        engine = started.enter_context(
            open_engine(_of_target(targets[0], run_options), outputs[0].num_shards)
        )
        selections = select(notices)
        for selection in selections:
            if isinstance(selection.source, ClosingSource):
                held.callback(selection.source.close)
        warn_of_sources(targets, selections, run_options, notices)
        for target, selection in zip(targets, selections, strict=True):
            check(selection.source, target.options, target.output, outputs)
        skip_errors = run_options.on_error == "skip"
        numbers = [
            choose_num_shards(selection, output, skip_errors=skip_errors)
            for selection, output in zip(selections, outputs, strict=True)
        ]
        tasks = [
            _taken_up(target, run, Job(selection, target.output.pattern(n)), run_options, notices)
            for target, run, selection, n in zip(targets, runs, selections, numbers, strict=True)
        ]
        made: list[_Made] = []
        for task in tasks:
            if made and not isinstance(task.kept, Manifest):
                started.close()  # a pool is for one job
                options = _of_target(task.target, run_options)
                engine = started.enter_context(open_engine(options, task.job.num_shards))
            made.append(_make(task, engine, run_options, progress, notices))
        check_manifests({each.task.target.split or "": each.manifest for each in made})
        for each in made:
            _warn(each, run_options, notices)
        _publish(made)
    for each in made:
        if each.outcome is not None:
            _hints(each.manifest, each.outcome, each.task.target, run_options, notices)
    return [each.manifest for each in made]


class _Task(NamedTuple):
    """A dataset that is being written, and what is there of it; its manifest, if that is all."""

    target: Target
    run: RunDirectory
    job: Job
    kept: Kept | Manifest


class _Made(NamedTuple):
    """A dataset that can be published; one without an outcome is there already."""

    task: _Task
    manifest: Manifest
    outcome: Outcome | None


def _taken_up(
    target: Target, run: RunDirectory, job: Job, run_options: RunOptions, notices: Notices
) -> _Task:
    """Go on with what is there of a dataset, or begin."""
    kept = None
    if run_options.resume or run_options.retry_errors:
        kept = take_up(job, run, run_options, partial(notices.info, split=target.split))
    if isinstance(kept, Manifest):
        notices.info(f"nothing to do: {target.output.name!r} is finished, and of this job")
        run.discard()
        return _Task(target, run, job, kept)
    if kept is None:
        begin(run, run_facts(job))
        kept = Kept(job.num_shards)
        if not (job.source.stable or job.source.notes):
            notices.info("an iterator can be read once: should this run be stopped, it is lost")
    ErrorBudget(run_options, kept).check()
    return _Task(target, run, job, kept)


def _make(
    task: _Task,
    engine: Engine,
    run_options: RunOptions,
    progress: Progress | None,
    notices: Notices,
) -> _Made:
    """Have an engine do what is left of a dataset, up to its publication."""
    target, run, job, kept = task
    if isinstance(kept, Manifest):
        return _Made(task, kept, None)
    if kept.is_everything:
        outcome = gather(job, kept, [], kept.num_items or 0)
    else:
        told = _of_split(target, progress)
        outcome = engine(job, run, kept, told, partial(notices.info, split=target.split))
    manifest = prepared(
        run,
        outcome,
        target.output,
        job=job.digest(),
        source=job.source_json(),
        order=job.order_json(),
        packing=job.packing,
        dali=run_options.dali_index or kept.dali_index,
        retries=kept.retries,
    )
    return _Made(task, manifest, outcome)


def _publish(made: Sequence[_Made]) -> None:
    """Publish what is not there yet, once all of it can be."""
    new = [(each.task.run, each.manifest, each.outcome) for each in made]
    for run, manifest, outcome in new:
        if outcome is not None:
            check_names(run, manifest.pattern)
    for run, manifest, outcome in new:
        if outcome is not None:
            beside = [other for _, other, _ in new if other is not manifest]
            commit(run, manifest, ledger_of(outcome), beside=beside)
    for run, _, outcome in new:
        if outcome is not None:
            complete(run)


def _of_target(target: Target, run_options: RunOptions) -> RunOptions:
    """Have the event files of a split lie in a folder of its own."""
    if run_options.log_dir is None or target.split is None:
        return run_options
    return replace(run_options, log_dir=os.path.join(run_options.log_dir, target.split))


def _of_split(target: Target, progress: Progress | None) -> Progress | None:
    """Have progress say which split it is of."""
    if progress is None or target.split is None:
        return progress

    def told(work: Work) -> None:
        progress(replace(work, split=target.split))

    return told


def warn_of_sources(
    targets: Sequence[Target],
    selections: Sequence[Selection],
    run_options: RunOptions,
    notices: Notices,
) -> None:
    """Warn of what sources have found when they were opened.

    Raises:
        SourceError: There is such a warning, with ``strict``.
    """
    is_shared = len({id(selection.source) for selection in selections}) == 1
    for target, selection in zip(targets, selections, strict=True):
        found = [(w, None if is_shared else target.split) for w in warnings_of(selection.source)]
        if selection.num_items == 0:
            found.append((_no_items(), target.split))
        for warning, split in found:
            if run_options.strict:
                raise as_error(warning, SourceError)
            notices.warn(warning, split)


def _no_items() -> DataWarning:
    return DataWarning(
        "empty",
        "there are no items: no records were written, and all shards are empty",
        hint="look at the source, and at --filter, --limit and --indices",
    )


def _warn(made: _Made, run_options: RunOptions, notices: Notices) -> None:
    """Warn of what the items had, those of earlier attempts too.

    Raises:
        FeatureError: There is such a warning, with ``strict``.
        SourceError: There were no items, likewise.
    """
    manifest, outcome = made.manifest, made.outcome
    warnings = from_manifest(manifest.metadata) if outcome is None else outcome.warnings
    for warning in warnings:
        if run_options.strict:
            raise as_error(warning, FeatureError)
        notices.warn(warning, made.task.target.split)
    if not manifest.num_items:
        if run_options.strict:
            raise as_error(_no_items(), SourceError)
        notices.warn(_no_items(), made.task.target.split)


def _hints(
    manifest: Manifest,
    outcome: Outcome,
    target: Target,
    run_options: RunOptions,
    notices: Notices,
) -> None:
    options = target.options
    notify = partial(notices.note, split=target.split)
    for note in outcome.notes:
        notify(note)
    if options.tfds is not None:
        for note in tfds_features(manifest)[1]:
            notify(note)
    if outcome.labels_sorted and options.shuffle_seed is None and options.order == "source":
        notify(
            "labels came in sorted order, so neighbouring records are of one class: "
            "--shuffle --seed 0 writes them mixed"
        )
    if options.label and outcome.labels is None and manifest.num_records:
        notify(f"no record has the label {options.label!r}")
    empty = sum(shard.num_records == 0 for shard in outcome.shards)
    if manifest.num_items and not manifest.num_records:
        notify(f"the source gave no records: all {manifest.num_shards:,} shards are empty")
    elif manifest.num_records and empty:
        notices.info(
            f"{empty:,} of {manifest.num_shards:,} shards are empty: there are fewer records",
            target.split,
        )
    if run_options.dali_index and any(shard.num_records < 2 for shard in outcome.shards):
        notify("the PyPI tfrecord loader fails on the .idx of a shard with fewer than 2 records")
