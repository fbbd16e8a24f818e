"""Append: more items for a finished dataset, which ends as if all had been written in one run.

::

    dataset found, what was committed finished -> claimed -> items opened, held against the manifest
    -> a run whose first T items are the records that are there -> published over the dataset
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from types import EllipsisType
from typing import Any

from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.names import tfds_split_of
from shardwriter.dataset.naming import Output, dataset_name, is_url, partial_dir
from shardwriter.errors import DataWarning, FeatureError, OptionError, OutputExists, SchemaConflict
from shardwriter.formats.compression import SUFFIXES
from shardwriter.schema.data_warnings import as_error, from_manifest, warnings_of
from shardwriter.schema.declared import SchemaLike, declare
from shardwriter.sources.find import open_source
from shardwriter.sources.locate import find_one
from shardwriter.sources.queue import stops_queues
from shardwriter.sources.source import ClosingSource, Source
from shardwriter.sources.table_options import TableOptions
from shardwriter.storage.protocol import LocalStorage
from shardwriter.writing.appended import BaseFacts
from shardwriter.writing.appending import Appending
from shardwriter.writing.budget import ErrorBudget
from shardwriter.writing.choose_engine import open_engine
from shardwriter.writing.engine import Progress
from shardwriter.writing.event_log import check_log_dir
from shardwriter.writing.finished import has_dali, take_finished
from shardwriter.writing.making import claimed, finish
from shardwriter.writing.notices import Notices, Notify
from shardwriter.writing.options import DatasetOptions, OnError, RunOptions, changed
from shardwriter.writing.plan import check
from shardwriter.writing.progress_bar import writing_progress
from shardwriter.writing.publication import COMMIT, finish_committed
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.run_facts import run_facts
from shardwriter.writing.unfinished import go_on


@stops_queues
def append(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str = "auto",
    map: Callable[[dict[str, Any]], Any] | None = None,
    filter: Callable[[Any], Any] | None = None,
    limit: int | None = None,
    schema: SchemaLike | None = None,
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    on_error: OnError | EllipsisType = ...,
    strict: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | bool | None = None,
    notify: Notify | None = None,
    table: TableOptions | None = None,
) -> Manifest:
    """Add items to a finished dataset: item k of the source becomes item T + k of the dataset.

    Shards, index, schema and label counts end as if all items had been written in one run. The
    dataset is written anew beside the old one, which stays whole until the new one is; gaps stay.
    Number of shards, compression and label are those that it has.

    Args:
        source: What is added; see :func:`shardwriter.write`.
        out: A dataset with a manifest: its name, its folder, or its manifest.
        format: As for :func:`shardwriter.write`.
        map: Applied to the features of every new item.
        filter: Asked of every new item as the source lists it.
        limit: Only the first so many new items.
        schema: Types fixed before the first new item.
        workers: Processes that load, map, encode and write.
        overwrite: Discard what an append that was stopped has left, and begin again.
        resume: Go on with an append that was stopped. One that is finished already is not done
            again, as long as it is what was appended last; without ``resume`` it is.
        on_error: ``raise``, or ``skip`` to leave new items out that give an error.
        strict: Whether what would be a warning about the new items is an error.
        run: How else to carry it out; changes no byte.
        progress: True shows a bar; or a function that is told now and then how far it has come.
        notify: As for :func:`shardwriter.write`.
        table: How a table is read: ``TableOptions(header=False)``.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the dataset can not be appended to.
        SchemaConflict: A feature has another type than in the dataset, or its numbers stand for
            other classes. Nothing is published.
        DataError: The input is at fault, or a record of the dataset damaged; likewise.
        RunError: The work could not be done; likewise.
    """
    declared = declare(schema)
    options = DatasetOptions(
        map,
        filter,
        limit,
        schema=declared.types,
        vocabularies=declared.vocabularies,
        table=table,
    )
    run_options = changed(
        run,
        workers=workers,
        overwrite=overwrite,
        resume=resume,
        on_error=on_error,
        strict=strict,
    )
    skip_errors = run_options.on_error == "skip"
    with writing_progress(progress) as report:
        return append_dataset(
            lambda: open_source(source, format, options.schema, table, skip_errors=skip_errors),
            os.fspath(out),
            options,
            run_options,
            report,
            Notices(notify),
        )


def append_dataset(
    open_items: Callable[[], Source],
    path: str,
    options: DatasetOptions,
    run_options: RunOptions,
    progress: Progress | None = None,
    notices: Notices | None = None,
) -> Manifest:
    """Add the items of a source to a dataset; see :func:`append`.

    Args:
        open_items: Opens the source.
        path: The dataset.
        options: Map, filter, limit and fixed types.
        run_options: What changes no byte.
        progress: Told now and then how far it has come.
        notices: Says what a person should know.
    """
    notices = notices or Notices()
    was_committed = _finish_publication(path)
    output = output_to_append_to(path)
    run_dir = os.path.join(output.directory, partial_dir(output.name))
    run_options = replace(run_options, log_dir=check_log_dir(run_options.log_dir, [run_dir]))
    # The dataset is replaced, but only by one that has all of its items.
    replacing = replace(run_options, overwrite=True, resume=False, retry_errors=False)
    with (
        ExitStack() as held,
        claimed(output, replacing) as run,
        open_engine(run_options, output.num_shards) as engine,
    ):
        if not (run_options.resume or run_options.overwrite) and run.is_worth_keeping:
            raise OutputExists(
                f"an unfinished run of {run.name!r} is there",
                path=run.path,
                hint="--resume goes on with it; --overwrite discards it and begins again",
            )
        source = open_items()
        if isinstance(source, ClosingSource):
            held.callback(source.close)
        appending = Appending.of(source, path, output, options, run)
        for note in appending.new.source.notes:
            notices.note(note)
        _warn(warnings_of(appending.new.source), appending.manifest, run_options, notices)
        resume = run_options.resume and run.is_worth_keeping
        if (run_options.resume or was_committed) and not resume:
            done = appending.job_before()
            if done is not None:
                take_finished(done, run, appending.manifest, run_options, notices.info)
                notices.info(f"nothing to do: these items are the last of {run.name!r} already")
                run.discard()
                return appending.manifest
        known = appending.check(run_options)
        job = appending.job(BaseFacts.of(appending.manifest))
        check(job.source, job.options, output)
        if resume:
            kept = go_on(job, run, run_facts(job), run_options, notices.info)
        else:
            kept = appending.begin(job, known, run)
        ErrorBudget(run_options, kept).check()
        try:
            outcome = engine(job, run, kept, progress, notices.info)
        except SchemaConflict as error:
            error.message = error.message.replace("in the plan", "in the dataset")
            raise
        _warn(outcome.warnings, appending.manifest, run_options, notices)
        return finish(
            run,
            known.of(outcome),
            output,
            job=job.digest(),
            source=job.source_json(),
            order=job.order_json(),
            packing=job.packing,
            dali=run_options.dali_index or has_dali(run, appending.manifest),
        )


def _warn(
    warnings: Iterable[DataWarning], before: Manifest, run_options: RunOptions, notices: Notices
) -> None:
    """Warn of what the new items have; the dataset's own warnings were given when it was written.

    Raises:
        FeatureError: There is such a warning, with ``strict``.
    """
    known = {warning.message for warning in from_manifest(before.metadata)}
    for warning in warnings:
        if warning.message in known:
            continue
        if run_options.strict:
            raise as_error(warning, FeatureError)
        notices.warn(warning)


def output_to_append_to(path: str) -> Output:
    """Return the dataset that is appended to, as an output.

    Raises:
        OptionError: It has no manifest, or is not on this machine.
    """
    if is_url(path):
        raise OptionError(
            f"{path!r} is a URL, and datasets are written on a local file system",
            hint="append to a local copy, and copy that: the manifest last",
        )
    found = find_one(path)
    manifest = found.manifest
    if manifest is None or not found.is_complete:
        raise OptionError(
            "only a whole dataset with a manifest can be appended to",
            path=path,
            hint="`shardwriter reshard` makes one of any TFRecord files",
        )
    compression = manifest.compression["type"]
    pattern = manifest.pattern
    return Output(
        found.directory,
        pattern.stem,
        pattern.ext.removesuffix(SUFFIXES[compression]),
        pattern.num_shards,
        compression,
        tfds_split_of(manifest.metadata),
    )


def _finish_publication(path: str) -> bool:
    """Finish what was committed of a dataset; tell whether there was something."""
    if is_url(path):
        return False
    directory, base = os.path.split(path)
    names = [dataset_name(base.removesuffix(".manifest.json").partition("@")[0])]
    if os.path.isdir(path):
        directory, names = path, _committed_in(path)
    was_committed = False
    for name in names:
        if os.path.exists(os.path.join(directory, partial_dir(name), COMMIT)):
            with RunDirectory.claim(directory or ".", name, LocalStorage()) as run:
                finish_committed(run)
                run.discard()
            was_committed = True
    return was_committed


def _committed_in(directory: str) -> list[str]:
    """Return the datasets of a folder whose publication was begun."""
    begin, end = partial_dir("\0").split("\0")
    found = [entry for entry in os.listdir(directory) if entry.startswith(begin)]
    names = [entry[len(begin) : len(entry) - len(end)] for entry in found if entry.endswith(end)]
    return [name for name in names if name]
