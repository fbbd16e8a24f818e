"""``shardwriter.write``: one dataset from whatever the source is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any, Final, NamedTuple

from shardwriter.dataset import (
    Manifest,
    Output,
    Seed,
    Split,
    SplitOption,
    check_value,
    item_indices,
    parse_output,
    parse_split_option,
    partial_dir,
    split_outputs,
)
from shardwriter.errors import DataWarning, FeatureError, SchemaConflict, SourceError
from shardwriter.formats import Compression, Deflate, compatibility_notes
from shardwriter.schema import (
    FeatureType,
    SchemaLike,
    as_error,
    declare,
    from_manifest,
    part_names,
    warnings_of,
)
from shardwriter.sources import (
    ClosingSource,
    Source,
    find_splits,
    hint_of_splits,
    open_source,
    stops_queues,
    table_options,
)
from shardwriter.storage import Storage, require_tensorflow
from shardwriter.writing.choose_engine import open_engine
from shardwriter.writing.engine import Engine, ErrorBudget, Progress, Work, WriteResult
from shardwriter.writing.event_log import check_log_dir
from shardwriter.writing.job import Job, check_compression
from shardwriter.writing.notices import Notices, Notify
from shardwriter.writing.options import (
    DatasetOptions,
    ImageOptions,
    OnError,
    Order,
    RunOptions,
    changed,
)
from shardwriter.writing.part import merge_results
from shardwriter.writing.plan import check_source, choose_num_shards
from shardwriter.writing.progress_bar import writing_progress
from shardwriter.writing.publication import (
    begin_run,
    check_names,
    claim_output,
    commit,
    complete,
    error_log_lines,
    prepare_manifest,
)
from shardwriter.writing.resume import find_resume_state, run_facts
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.selection import Selection, key_costs, key_notes
from shardwriter.writing.tfds import tfds_features

# Splits have to go together: types and names of classes are the same in all of them.


def check_split_sources(sources: Mapping[str, Source], *, is_mapped: bool) -> None:
    """Hold what is known of splits before their first items are loaded against each other.

    Args:
        sources: By the names of the splits.
        is_mapped: Whether a map comes between: then the types are those of what it makes.

    Raises:
        SchemaConflict: A feature has types that do not go together.
        SourceError: Two splits give the numbers of a class other names.
    """
    if not is_mapped:
        _check({name: source.plan for name, source in sources.items()})
    known: dict[str, tuple[str, list[str]]] = {}
    for name, source in sources.items():
        for feature, words in source.vocabularies.items():
            first, before = known.setdefault(feature, (name, words))
            if words != before:
                raise SourceError(
                    f"the classes are not the same in splits {first!r} and {name!r}: "
                    f"{before[:5]} and {words[:5]}",
                    feature=feature,
                    hint="give both the same names of classes, in one order",
                )


def check_split_schemas(manifests: Mapping[str, Manifest]) -> None:
    """Hold the types of splits that were made against each other.

    Raises:
        SchemaConflict: A feature has types that do not go together.
    """
    if len(manifests) > 1:
        _check(
            {
                name: {feature: summary.type for feature, summary in manifest.features.items()}
                for name, manifest in manifests.items()
            }
        )


def _check(types: Mapping[str, Mapping[str, FeatureType]]) -> None:
    known: dict[str, tuple[str, FeatureType]] = {}
    for split, features in types.items():
        for name, found in features.items():
            first, before = known.setdefault(name, (split, found))
            try:
                known[name] = first, before.join(found)
            except ValueError as error:
                kinds = {found.kind, before.kind}
                remedy = f"--schema {name}=float" if kinds == {"int64", "float"} else "a map"
                raise SchemaConflict(
                    f"splits {first!r} and {split!r} do not go together: {error}",
                    feature=name,
                    hint=f"{remedy} gives it one type in all splits",
                ) from None


# Life of a write: look at the outputs, fix the plans, let an engine work, publish.
#
# ::
#
#     options checked -> outputs looked at and locked -> plans fixed, or those that are there found
#     to be the same -> engine fills the run directories, one after the other -> counts held against
#     the law -> commit -> final names, the manifest last
#
# Most writes make one dataset. One with splits makes several, and publishes none of them before all
# are sealed.


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
    for note in compatibility_notes(outputs[0].compression):
        notices.note(note)
    with ExitStack() as held, ExitStack() as started:
        runs = [
            held.enter_context(claim_output(output, run_options, storage)) for output in outputs
        ]
        # A pool gets ready while the source is opened.
        engine = started.enter_context(
            open_engine(_of_target(targets[0], run_options), outputs[0].num_shards)
        )
        selections = select(notices)
        for selection in selections:
            if isinstance(selection.source, ClosingSource):
                held.callback(selection.source.close)
        warn_about_sources(targets, selections, run_options, notices)
        for target, selection in zip(targets, selections, strict=True):
            check_source(selection.source, target.options, target.output, outputs)
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
        check_split_schemas({each.task.target.split or "": each.manifest for each in made})
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
    kept: ResumeState | Manifest


class _Made(NamedTuple):
    """A dataset that can be published; one without an outcome is there already."""

    task: _Task
    manifest: Manifest
    outcome: WriteResult | None


def _taken_up(
    target: Target, run: RunDirectory, job: Job, run_options: RunOptions, notices: Notices
) -> _Task:
    """Go on with what is there of a dataset, or begin."""
    kept = None
    if run_options.resume or run_options.retry_errors:
        kept = find_resume_state(job, run, run_options, partial(notices.info, split=target.split))
    if isinstance(kept, Manifest):
        notices.info(f"nothing to do: {target.output.name!r} is finished, and of this job")
        run.discard()
        return _Task(target, run, job, kept)
    if kept is None:
        begin_run(run, run_facts(job))
        kept = ResumeState(job.num_shards)
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
    if kept.is_complete:
        outcome = merge_results(job, kept, [], kept.num_items or 0)
    else:
        told = _of_split(target, progress)
        outcome = engine(job, run, kept, told, partial(notices.info, split=target.split))
    manifest = prepare_manifest(
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
            commit(run, manifest, error_log_lines(outcome), beside=beside)
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


def warn_about_sources(
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
    outcome: WriteResult,
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


# What one write makes of a source and an OUT: one dataset, or one for each split.

Fractions = str | Mapping[str, Any]
"""What ``split`` may be: see :func:`shardwriter.dataset.splits.parse_split_option`."""

OptionsOf = Callable[[Output, Split], DatasetOptions]
"""Returns what decides the bytes of a split."""

_GIVEN: Final = {
    *("compression", "indices", "names", "schema", "split", "table", "tfds", "vocabularies"),
}


@dataclass(frozen=True)
class Datasets:
    """What one write makes.

    Attributes:
        targets: A dataset for each split; or the only one.
        open: Opens the source: one for all of them, or one for each, and tells its notes.
    """

    targets: list[Target]
    open: Callable[[Notify], list[Source]]

    def select(self, notices: Notices) -> list[Selection]:
        """Open the source, and return the items of each dataset."""
        sources = self.open(notices.note)
        options = [target.options for target in self.targets]
        for note in key_notes(sources[0], options[0]):
            notices.note(note)
        for cost in key_costs(sources[0], options[0]):
            notices.info(cost)
        if len(sources) < len(options):
            return Selection.parts(sources[0], options)
        return [Selection(*both) for both in zip(sources, options, strict=True)]


def single_dataset(
    data: Any, format: str, output: Output, options: DatasetOptions, *, skip_errors: bool = False
) -> Datasets:
    """Return what a write without splits makes; ``skip_errors``: as of `open_source`."""

    def open_only(tell: Notify) -> list[Source]:
        source = open_source(data, format, options.schema, options.table, skip_errors=skip_errors)
        hint = hint_of_splits(data, source)
        for note in [*source.notes, *([] if hint is None else [hint])]:
            tell(note)
        return [source]

    return Datasets([Target(output, options)], open_only)


def split_datasets(
    data: Any,
    format: str,
    wanted: SplitOption,
    outputs_of: Callable[[list[str]], list[Output]],
    options_of: OptionsOf,
    seed: int = 0,
    *,
    skip_errors: bool = False,
) -> Datasets:
    """Find out what a write with splits makes.

    Args:
        data: What a person named as the source; or a mapping from names to such.
        format: What it is, or ``auto``.
        wanted: What ``--split`` says.
        outputs_of: Returns the outputs of splits, by their names.
        options_of: Returns what decides the bytes of a split.
        seed: The salt of the keys' hash.
        skip_errors: As of :func:`shardwriter.sources.find.open_source`.

    Raises:
        OptionError: The source has no such splits, or an option is wrong.
        SourceError: What is there can not be listed.
    """
    if wanted.is_by_key:
        splits = wanted.splits(seed)
        targets = _targets(splits, outputs_of, options_of)
        first = targets[0].options

        def open_one(tell: Notify) -> list[Source]:
            source = open_source(data, format, first.schema, first.table, skip_errors=skip_errors)
            for note in source.notes:
                tell(note)
            return [source]

        return Datasets(targets, open_one)
    found = find_splits(data, format, wanted.names)
    splits = wanted.splits(0, found.openers)
    targets = _targets(splits, outputs_of, options_of)
    options = targets[0].options

    def open_each(tell: Notify) -> list[Source]:
        for note in found.notes:
            tell(note)
        sources = found.open(options.schema, options.table, skip_errors=skip_errors)
        for name, source in sources.items():
            for note in source.notes:
                tell(f"{name}: {note}")
        check_split_sources(sources, is_mapped=options.map is not None)
        return list(sources.values())

    return Datasets(targets, open_each)


def _targets(
    splits: list[Split],
    outputs_of: Callable[[list[str]], list[Output]],
    options_of: OptionsOf,
) -> list[Target]:
    outputs = outputs_of([split.name for split in splits])
    return [
        Target(output, options_of(output, split))
        for output, split in zip(outputs, splits, strict=True)
    ]


@stops_queues
def write_splits(
    source: Any,
    out: str | os.PathLike[str],
    split: Fractions,
    *,
    split_seed: int = 0,
    num_shards: int | None = None,
    format: str = "auto",
    schema: SchemaLike | None = None,
    compression: Compression | None = None,
    tfds: str | None = None,
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    on_error: OnError | EllipsisType = ...,
    strict: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | bool | None = None,
    notify: Notify | None = None,
    names: Sequence[str] | str | None = None,
    indices: Any = None,
    allow_duplicates: bool = False,
    header: bool = True,
    na: Sequence[str] | str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | str | None = None,
    drop_columns: Sequence[str] | str | None = None,
    **dataset: Any,
) -> dict[str, Manifest]:
    """Write one dataset for each split: ``out/mnist@16`` is ``mnist-train``, ``mnist-val``, ...

    None of them is published before all are whole.

    Args:
        source: As of :func:`shardwriter.write`; for splits that are there already also a mapping
            from their names to such.
        out: ``dir/name@16``: N of each split for which ``split`` says none; ``dir/name`` to have
            it chosen. With ``tfds`` the ``data_dir``.
        split: ``train=0.9,val=0.1``, or a mapping from names to fractions: the hash of an item's
            key decides, so that further data moves no item. The key is the feature ``key``, so that
            items with the same value stay together; without it what the source calls an item.
            ``source`` takes the splits that the source has, ``train,val`` those two of them. N of a
            split: ``train=0.9@16,val=0.1@2``, ``train@16,val@2``.
        split_seed: Salts that hash: another one divides the items otherwise.
        num_shards: As of :func:`shardwriter.write`, and so are those that follow.
        format: What the source is, or each split of it.
        schema: Types fixed before the first item.
        compression: ``none``, ``gzip`` or ``zlib``.
        tfds: NAME:VERSION: write all splits of a TFDS dataset.
        workers: Processes that write.
        overwrite: Replace datasets of these names once all new ones are whole.
        resume: Go on with a run of the same job that was stopped.
        on_error: ``raise`` or ``skip``.
        strict: As of :func:`shardwriter.write`.
        run: How else to carry it out; changes no byte. ``max_errors`` are those of one split.
        progress: True shows a bar; or a function that is told now and then how far the split has
            come that is being written.
        notify: As for :func:`shardwriter.write`.
        names: As of :func:`shardwriter.write`.
        indices: As of :func:`shardwriter.write`; where the source has splits, of each of them.
        allow_duplicates: As of :func:`shardwriter.write`.
        header: As of :func:`shardwriter.write`, and so are those that follow.
        na: Missing values of a CSV file.
        encoding: Of CSV and JSON files.
        columns: Of a table: those that are read.
        drop_columns: Of a table: those that are not.
        **dataset: The other options of :func:`shardwriter.write` that decide bytes: ``map``,
            ``filter``, ``limit``, ``shuffle_seed``, ``key``, ``label``, ...

    Returns:
        The manifests, by split.

    Raises:
        UsageError: An option is wrong, or an output exists.
        DataError: The input is at fault; nothing is published.
        RunError: The work could not be done; nothing is published, unless it is what the
            publication of all splits has stopped at.
    """
    wrong = dataset.keys() - (DatasetOptions.__dataclass_fields__.keys() - _GIVEN)
    if wrong:
        raise TypeError(f"write_splits() has no parameter {min(wrong)!r}")
    check_value("split_seed", split_seed, Seed)
    wanted = parse_split_option(split)
    declared = declare(schema)
    run_options = changed(
        run,
        workers=workers,
        overwrite=overwrite,
        resume=resume,
        on_error=on_error,
        strict=strict,
    )

    told = part_names(names)
    table = table_options(
        header=header,
        names=told,
        na=na,
        encoding=encoding,
        columns=columns,
        drop_columns=drop_columns,
    )
    chosen = None if indices is None else item_indices(indices, allow_duplicates=allow_duplicates)

    def options_of(output: Output, part: Split) -> DatasetOptions:
        return DatasetOptions(
            **dataset,
            schema=declared.types,
            vocabularies=declared.vocabularies,
            compression=output.compression,
            tfds=output.tfds,
            split=part,
            names=told if header else None,
            indices=chosen,
            table=table,
        )

    outputs_of = partial(split_outputs, out, wanted.num_shards, num_shards, compression, tfds=tfds)
    found = split_datasets(
        source,
        format,
        wanted,
        outputs_of,
        options_of,
        split_seed,
        skip_errors=run_options.on_error == "skip",
    )
    with writing_progress(progress) as report:
        manifests = write_all(found.targets, found.select, run_options, report, Notices(notify))
    return {
        target.split or "": manifest
        for target, manifest in zip(found.targets, manifests, strict=True)
    }


@stops_queues
def write(
    source: Any,
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    format: str = "auto",
    map: Callable[[dict[str, Any]], Any] | None = None,
    filter: Callable[[Any], Any] | None = None,
    limit: int | None = None,
    shuffle_seed: int | None = None,
    order: Order = "source",
    key: str | None = None,
    order_seed: int = 0,
    label: str | None = None,
    schema: SchemaLike | None = None,
    compression: Compression | None = None,
    tfds: str | None = None,
    deflate: Deflate = "isal-2",
    world: int = 1,
    loader_workers: int = 1,
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    on_error: OnError | EllipsisType = ...,
    strict: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | bool | None = None,
    notify: Notify | None = None,
    images: ImageOptions | None = None,
    names: Sequence[str] | str | None = None,
    indices: Any = None,
    allow_duplicates: bool = False,
    header: bool = True,
    na: Sequence[str] | str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | str | None = None,
    drop_columns: Sequence[str] | str | None = None,
) -> Manifest:
    """Write a dataset as N TFRecord shards.

    Args:
        source: A path, a glob, ``module:callable``, an iterable, an object with ``__len__`` and
            ``__getitem__``, a PyTorch ``DataLoader``, a dataset of Hugging Face ``datasets``, a
            queue, or a function that returns one. An item is a mapping from feature names to
            values, a SequenceExample, or the bytes of a finished record.
        out: ``dir/name@16``, or ``dir/name`` to have N chosen.
        num_shards: N, where ``out`` does not say it.
        format: ``image-folder``, ``image-mask``, ``coco``, ``voc``, ``csv``, ``jsonl``,
            ``parquet``, ``numpy``, ``tfrecord``, ``webdataset``, ``audio``,
            ``python``, ``huggingface``, or ``auto``.
        map: Applied to every item's features; returns features, or SKIP.
        filter: Asked of every item as the source lists it (an ImageItem, a row's number, what an
            iterator gives) whether it is to be written at all.
        limit: Only the first so many items.
        shuffle_seed: Write in the order of a permutation of this seed.
        order: ``source``, or ``key``: by a hash of the items' keys, so that the order in which they
            come decides nothing; two items of one key are refused.
        key: For ``key``: the feature of the source's items that is the key; without it what the
            source calls an item (an image's path).
        order_seed: For ``key``: the salt, which chooses another order.
        label: Feature whose values are counted in the manifest.
        schema: Types fixed before the first item, to which every record is held:
            ``"id=string,image=uint8[28,28],mask=raw:uint8[null,null]"``; a JSON file (a manifest,
            its ``schema``); or such a type, a FeatureType or an entry of a manifest by feature.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip where ``out`` ends in ``.gz``.
        tfds: NAME:VERSION: write a TFDS dataset, for ``tfds.load`` and timm. ``out`` is then
            ``data_dir/split@16``, or ``data_dir`` alone for the split ``train``.
        deflate: ``isal-2``, or ``zlib-6`` for smaller shards that take many times as long.
        world: For a chosen N: how many ranks will read.
        loader_workers: For a chosen N: how many loader workers a rank has.
        workers: Processes that load, map, encode and write; 1 for none but this one, None for as
            many as there are cores that may be used. Left off: as ``run`` says, which says 1.
        overwrite: Replace a dataset of this name once the new one is whole.
        resume: Go on with a run of the same job that was stopped; begin where there is none.
        on_error: ``raise``, or ``skip`` to leave items out that give an error, and list them in
            ``<name>.errors.jsonl``.
        strict: Whether what would be a warning about the data is an error: a number that float32
            does not hold, say.
        run: How else to carry it out; changes no byte.
        progress: True shows a bar, on a terminal (on stderr) or in a notebook; or a function that
            is told now and then how far the write has come.
        notify: Called with what a person should know, a line at a time. Without it warnings go
            through :mod:`warnings`, and information to the logger ``shardwriter``.
        images: Makes images anew in another size, before the map: ``ImageOptions(max_side=512)``.
            It needs Pillow.
        names: What the parts of an item are called that is a tuple or a list: ``("image",
            "label")``, or as text ``"image,label"``; or the columns of a CSV file without a header.
        indices: Only these items, in this order: a list, a range or an array of integers from 0
            up. They come before the filter, the limit and the shuffle.
        allow_duplicates: Whether ``indices`` may name an item more than once.
        header: Whether the first line of a CSV file names its columns; where it does not, ``names``
            may, and else they are ``column0``, ``column1``, ...
        na: Cells of a CSV file that are missing values in columns that are numeric without them,
            beside the empty cell: by default NA, N/A, n/a, NULL, null and None.
        encoding: Of CSV and JSON files that are not UTF-8: ``latin-1``, ``utf-16``, ...
        columns: Of a table: the columns that are read, as a list or as text ``"id,price"``.
        drop_columns: Of a table: the columns that are not read.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the output exists.
        DataError: The input is at fault; nothing is published.
        RunError: The work could not be done; nothing is published.
    """
    output = parse_output(out, num_shards, compression, tfds=tfds)
    run_options = changed(
        run,
        workers=workers,
        overwrite=overwrite,
        resume=resume,
        on_error=on_error,
        strict=strict,
    )
    declared = declare(schema)
    told = part_names(names)
    options = DatasetOptions(
        map,
        filter,
        limit,
        shuffle_seed,
        label,
        declared.types,
        world=world,
        loader_workers=loader_workers,
        compression=output.compression,
        deflate=deflate,
        order=order,
        key=key,
        order_seed=order_seed,
        tfds=output.tfds,
        vocabularies=declared.vocabularies,
        images=images,
        names=told if header else None,
        indices=None
        if indices is None
        else item_indices(indices, allow_duplicates=allow_duplicates),
        table=table_options(
            header=header,
            names=told,
            na=na,
            encoding=encoding,
            columns=columns,
            drop_columns=drop_columns,
        ),
    )
    skip_errors = run_options.on_error == "skip"
    only = single_dataset(source, format, output, options, skip_errors=skip_errors)
    with writing_progress(progress) as report:
        return write_all(only.targets, only.select, run_options, report, Notices(notify))[0]
