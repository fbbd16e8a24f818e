"""``shardwriter.write`` and ``write_splits``: from a source and an OUT to a published dataset.

The life of a write, which :func:`write_all` reads from top to bottom::

    write, write_splits   resolve the options; which datasets are written (Datasets)
    _check_options        refuse what does not need the source
    claim_output          lock every output
    open_engine           start worker processes while the source opens
    select                open the source, select the items of each dataset
    _plan_jobs            refuse what can not work, fix N
    _resume_or_begin      read an earlier run of the job, or begin a run directory
    _write_dataset        the engine fills the run directory; counts are checked, manifest made
    _verify               compare the splits, report warnings
    _publish              give the files their final names, the manifest last

Most writes make one dataset. One with splits makes several, and publishes none of them before all
are sealed.
"""

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
    open_source,
    splits_hint,
    stop_queues_on_exit,
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


@stop_queues_on_exit
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
        num_shards: N, if ``out`` does not have it.
        format: ``image-folder``, ``image-mask``, ``coco``, ``voc``, ``csv``, ``jsonl``,
            ``parquet``, ``numpy``, ``tfrecord``, ``webdataset``, ``audio``,
            ``python``, ``huggingface``, or ``auto``.
        map: Applied to every item's features; returns features, or SKIP.
        filter: Called with every item as the source lists it (an ImageItem, a row's number, what an
            iterator gives); an item for which it returns a false value is not written.
        limit: Write the first ``limit`` items only.
        shuffle_seed: Write in the order of a permutation of this seed.
        order: ``source``, or ``key``: sorted by a hash of the items' keys, so that the order of the
            source does not matter; two items of one key are an error.
        key: For ``order="key"``: the feature of the source's items that is the key; without it the
            source's own name of the item (an image's path).
        order_seed: For ``order="key"``: the salt of the hash; another salt gives another order.
        label: Feature whose values are counted in the manifest.
        schema: Types fixed before the first item; a record that differs is an error:
            ``"id=string,image=uint8[28,28],mask=raw:uint8[null,null]"``; a JSON file (a manifest,
            its ``schema``); or such a type, a FeatureType or an entry of a manifest by feature.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip where ``out`` ends in ``.gz``.
        tfds: NAME:VERSION: write a TFDS dataset, for ``tfds.load`` and timm. ``out`` is then
            ``data_dir/split@16``, or ``data_dir`` alone for the split ``train``.
        deflate: ``isal-2``, or ``zlib-6`` for smaller shards that take many times as long.
        world: Number of ranks that will read, for choosing N.
        loader_workers: Number of loader workers of a rank, for choosing N.
        workers: Processes that load, map, encode and write; 1 for this process only, None for one
            per usable core. Default: ``run.workers``, which is 1.
        overwrite: Replace a dataset of this name once the new one is complete.
        resume: Resume a stopped run of the same job; begin if there is none.
        on_error: ``raise``, or ``skip`` to leave items out that give an error, and list them in
            ``<name>.errors.jsonl``.
        strict: Whether a warning about the data is an error: a number that float32 does not hold,
            for example.
        run: Further options of the run; they change no byte.
        progress: True shows a bar, on a terminal (on stderr) or in a notebook; or a function that
            is called now and then with the work done.
        notify: Called with each note and warning, a line at a time. Without it warnings go
            through :mod:`warnings`, and information to the logger ``shardwriter``.
        images: Resizes images before the map: ``ImageOptions(max_side=512)``. It needs Pillow.
        names: Names of the parts of items that are tuples or lists: ``("image", "label")``, or as
            text ``"image,label"``; or the columns of a CSV file without a header.
        indices: Write these items only, in this order: a list, a range or an array of integers from
            0 up. They apply before the filter, the limit and the shuffle.
        allow_duplicates: Whether ``indices`` may name an item more than once.
        header: Whether the first line of a CSV file names its columns; if not, ``names`` does, or
            they are ``column0``, ``column1``, ...
        na: Cells of a CSV file that are missing values in otherwise numeric columns, beside the
            empty cell: by default NA, N/A, n/a, NULL, null and None.
        encoding: Encoding of CSV and JSON files that are not UTF-8: ``latin-1``, ``utf-16``, ...
        columns: The columns of a table to read, as a list or as text ``"id,price"``.
        drop_columns: The columns of a table not to read.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the output exists.
        DataError: The input is wrong; nothing is published.
        RunError: The run failed; nothing is published.
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
    part_columns = part_names(names)
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
        names=part_columns if header else None,
        indices=None
        if indices is None
        else item_indices(indices, allow_duplicates=allow_duplicates),
        table=table_options(
            header=header,
            names=part_columns,
            na=na,
            encoding=encoding,
            columns=columns,
            drop_columns=drop_columns,
        ),
    )
    skip_errors = run_options.on_error == "skip"
    datasets = single_dataset(source, format, output, options, skip_errors=skip_errors)
    with writing_progress(progress) as report:
        manifests = write_all(
            datasets.targets, datasets.select, run_options, report, Notices(notify)
        )
    return manifests[0]


_GIVEN: Final = frozenset(
    ["compression", "indices", "names", "schema", "split", "table", "tfds", "vocabularies"]
)
"""Fields of DatasetOptions that :func:`write_splits` sets itself."""


@stop_queues_on_exit
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

    None of them is published before all are complete. Parameters that are not described here are
    those of :func:`shardwriter.write`.

    Args:
        source: As for :func:`shardwriter.write`; or a mapping from split names to such sources.
        out: ``dir/name@16``: N of each split for which ``split`` has none; ``dir/name`` to have
            it chosen. With ``tfds`` the ``data_dir``.
        split: ``train=0.9,val=0.1``, or a mapping from names to fractions: the hash of an item's
            key decides, so that adding data moves no item. The key is the feature ``key``, so that
            items with the same value stay together; without it the source's own name of the item.
            ``source`` takes the splits that the source has, ``train,val`` those two of them. N of a
            split: ``train=0.9@16,val=0.1@2``, ``train@16,val@2``.
        split_seed: The salt of that hash; another salt divides the items differently.
        num_shards: N of each split, if neither ``split`` nor ``out`` has it.
        format: The format of the source, or of each split of it.
        schema: Types fixed before the first item.
        compression: ``none``, ``gzip`` or ``zlib``.
        tfds: NAME:VERSION: write all splits of a TFDS dataset.
        workers: Processes that write.
        overwrite: Replace datasets of these names once all new ones are complete.
        resume: Resume a stopped run of the same job.
        on_error: ``raise`` or ``skip``.
        strict: Whether a warning about the data is an error.
        run: Further options of the run; they change no byte. ``max_errors`` applies to each split.
        progress: True shows a bar; or a function that is called now and then with the work done of
            the current split.
        notify: Called with each note and warning.
        names: Names of the parts of items, or of the columns of a CSV file.
        indices: Write these items only; if the source has splits, these of each of them.
        allow_duplicates: Whether ``indices`` may name an item more than once.
        header: Whether the first line of a CSV file names its columns.
        na: Missing values of a CSV file.
        encoding: Encoding of CSV and JSON files.
        columns: The columns of a table to read.
        drop_columns: The columns of a table not to read.
        **dataset: The other options of :func:`shardwriter.write` that decide bytes: ``map``,
            ``filter``, ``limit``, ``shuffle_seed``, ``key``, ``label``, ...

    Returns:
        The manifests, by split.

    Raises:
        UsageError: An option is wrong, or an output exists.
        DataError: The input is wrong; nothing is published.
        RunError: The run failed; nothing is published, unless publishing itself failed halfway.
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

    part_columns = part_names(names)
    table = table_options(
        header=header,
        names=part_columns,
        na=na,
        encoding=encoding,
        columns=columns,
        drop_columns=drop_columns,
    )
    item_numbers = (
        None if indices is None else item_indices(indices, allow_duplicates=allow_duplicates)
    )

    def options_of(output: Output, part: Split) -> DatasetOptions:
        return DatasetOptions(
            **dataset,
            schema=declared.types,
            vocabularies=declared.vocabularies,
            compression=output.compression,
            tfds=output.tfds,
            split=part,
            names=part_columns if header else None,
            indices=item_numbers,
            table=table,
        )

    outputs_of = partial(split_outputs, out, wanted.num_shards, num_shards, compression, tfds=tfds)
    datasets = split_datasets(
        source,
        format,
        wanted,
        outputs_of,
        options_of,
        split_seed,
        skip_errors=run_options.on_error == "skip",
    )
    with writing_progress(progress) as report:
        manifests = write_all(
            datasets.targets, datasets.select, run_options, report, Notices(notify)
        )
    return {
        target.split or "": manifest
        for target, manifest in zip(datasets.targets, manifests, strict=True)
    }


# Which datasets one write makes: the only one, or one for each split.


@dataclass(frozen=True)
class Target:
    """One of the datasets that a write makes.

    Attributes:
        output: Its name, folder, number of shards and compression.
        options: The options that decide its bytes.
    """

    output: Output
    options: DatasetOptions

    @property
    def split(self) -> str | None:
        """The name of the split; None for the only dataset."""
        return None if self.options.split is None else self.options.split.name


@dataclass(frozen=True)
class Datasets:
    """The datasets that one write makes.

    Attributes:
        targets: One dataset for each split; or the only one.
        open: Opens the source and reports its notes; returns one source for all targets, or one
            for each.
    """

    targets: list[Target]
    open: Callable[[Notify], list[Source]]

    def select(self, notices: Notices) -> list[Selection]:
        """Open the source, and return the items of each dataset."""
        sources = self.open(notices.note)
        options = [target.options for target in self.targets]
        _note_keys(sources[0], options[0], notices)
        if len(sources) < len(options):
            return Selection.parts(sources[0], options)
        return [Selection(*both) for both in zip(sources, options, strict=True)]


Fractions = str | Mapping[str, Any]
"""What ``split`` may be: see :func:`shardwriter.dataset.splits.parse_split_option`."""

OptionsOf = Callable[[Output, Split], DatasetOptions]
"""Returns the options that decide the bytes of a split."""

Select = Callable[[Notices], Sequence[Selection]]
"""Opens the source, reports its notes, and returns the items of each target."""


def single_dataset(
    data: Any, format: str, output: Output, options: DatasetOptions, *, skip_errors: bool = False
) -> Datasets:
    """Return the dataset of a write without splits; ``skip_errors``: as of `open_source`."""

    def open_only(note: Notify) -> list[Source]:
        source = open_source(data, format, options.schema, options.table, skip_errors=skip_errors)
        hint = splits_hint(data, source)
        for line in [*source.notes, *([] if hint is None else [hint])]:
            note(line)
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
    """Return the datasets of a write with splits.

    Args:
        data: The source as the user named it; or a mapping from split names to sources.
        format: The format of the source, or ``auto``.
        wanted: The value of ``--split``.
        outputs_of: Returns the outputs of splits, by their names.
        options_of: Returns the options that decide the bytes of a split.
        seed: The salt of the keys' hash.
        skip_errors: As of :func:`shardwriter.sources.find.open_source`.

    Raises:
        OptionError: The source has no such splits, or an option is wrong.
        SourceError: The source can not be listed.
    """
    if wanted.is_by_key:
        targets = _targets(wanted.splits(seed), outputs_of, options_of)
        first = targets[0].options

        def open_one(note: Notify) -> list[Source]:
            source = open_source(data, format, first.schema, first.table, skip_errors=skip_errors)
            for line in source.notes:
                note(line)
            return [source]

        return Datasets(targets, open_one)
    found = find_splits(data, format, wanted.names)
    targets = _targets(wanted.splits(0, found.openers), outputs_of, options_of)
    options = targets[0].options

    def open_each(note: Notify) -> list[Source]:
        for line in found.notes:
            note(line)
        sources = found.open(options.schema, options.table, skip_errors=skip_errors)
        for name, source in sources.items():
            for line in source.notes:
                note(f"{name}: {line}")
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


# The path of a write.


class _Task(NamedTuple):
    """A dataset to write, and its state: its manifest if it is finished already."""

    target: Target
    run: RunDirectory
    job: Job
    state: ResumeState | Manifest


class _Sealed(NamedTuple):
    """A dataset that can be published; ``outcome`` is None if it is published already."""

    task: _Task
    manifest: Manifest
    outcome: WriteResult | None


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

    The output is checked and locked before the source is opened, which can take a while: a table
    is read once for its types.

    Args:
        open_source: Opens the source.
        output: The dataset's name, folder, number of shards and compression.
        options: The options that decide the bytes.
        run_options: How to run; changes no byte.
        progress: Called now and then with the work done.
        notices: Reports notes and warnings to the user.
        storage: Where the dataset goes; None for the local file system.
    """

    def select(notices: Notices) -> list[Selection]:
        source = open_source()
        for note in source.notes:
            notices.note(note)
        _note_keys(source, options, notices)
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
        targets: The datasets.
        select: Opens the source; called once all outputs are locked.
        run_options: How to run; changes no byte.
        progress: Called now and then with the work done of the current dataset.
        notices: Reports notes and warnings to the user.
        storage: Where the datasets go; None for the local file system.

    Returns:
        The manifest of each.

    Raises:
        SchemaConflict: Two splits have different types; nothing is published.
        DataError: There is a warning about the data, with ``strict``; nothing is published.
    """
    notices = notices or Notices()
    run_options = _check_options(targets, run_options)
    for note in compatibility_notes(targets[0].output.compression):
        notices.note(note)
    with ExitStack() as held, ExitStack() as engines:
        runs = [
            held.enter_context(claim_output(each.output, run_options, storage)) for each in targets
        ]

        # A pool starts its processes while the source is opened.
        engine = engines.enter_context(
            open_engine(_options_of(targets[0], run_options), targets[0].output.num_shards)
        )
        selections = select(notices)
        for selection in selections:
            if isinstance(selection.source, ClosingSource):
                held.callback(selection.source.close)
        warn_about_sources(targets, selections, run_options, notices)

        jobs = _plan_jobs(targets, selections, run_options)
        tasks = [
            _resume_or_begin(target, run, job, run_options, notices)
            for target, run, job in zip(targets, runs, jobs, strict=True)
        ]

        sealed: list[_Sealed] = []
        for task in tasks:
            if sealed and not isinstance(task.state, Manifest):
                engines.close()  # a pool is for one job
                options = _options_of(task.target, run_options)
                engine = engines.enter_context(open_engine(options, task.job.num_shards))
            sealed.append(_write_dataset(task, engine, run_options, progress, notices))

        _verify(sealed, run_options, notices)
        _publish(sealed)
    for each in sealed:
        if each.outcome is not None:
            _note_results(each.manifest, each.outcome, each.task.target, run_options, notices)
    return [each.manifest for each in sealed]


def _check_options(targets: Sequence[Target], run_options: RunOptions) -> RunOptions:
    """Return the run's options with a checked log folder; refuse what does not need the source."""
    for target in targets:
        check_compression(target.output, target.options, run_options)
    if run_options.backend == "tensorflow":
        require_tensorflow()
    outputs = [target.output for target in targets]
    run_dirs = [os.path.join(output.directory, partial_dir(output.name)) for output in outputs]
    return replace(run_options, log_dir=check_log_dir(run_options.log_dir, run_dirs))


def _options_of(target: Target, run_options: RunOptions) -> RunOptions:
    """Return the run's options with a log folder of the split's own."""
    if run_options.log_dir is None or target.split is None:
        return run_options
    return replace(run_options, log_dir=os.path.join(run_options.log_dir, target.split))


def _plan_jobs(
    targets: Sequence[Target], selections: Sequence[Selection], run_options: RunOptions
) -> list[Job]:
    """Refuse what can not work, then fix the number of shards of each dataset."""
    outputs = [target.output for target in targets]
    for target, selection in zip(targets, selections, strict=True):
        check_source(selection.source, target.options, target.output, outputs)
    skip_errors = run_options.on_error == "skip"
    jobs = []
    for output, selection in zip(outputs, selections, strict=True):
        num_shards = choose_num_shards(selection, output, skip_errors=skip_errors)
        jobs.append(Job(selection, output.pattern(num_shards)))
    return jobs


def _resume_or_begin(
    target: Target, run: RunDirectory, job: Job, run_options: RunOptions, notices: Notices
) -> _Task:
    """Return the state of an earlier run of the job, or begin a new run."""
    state = None
    if run_options.resume or run_options.retry_errors:
        state = find_resume_state(job, run, run_options, partial(notices.info, split=target.split))
    if isinstance(state, Manifest):
        notices.info(f"nothing to do: {target.output.name!r} is finished, and of this job")
        run.discard()
        return _Task(target, run, job, state)
    if state is None:
        begin_run(run, run_facts(job))
        state = ResumeState(job.num_shards)
        if not (job.source.resumable or job.source.notes):
            notices.info("an iterator can be read once: should this run be stopped, it is lost")
    ErrorBudget(run_options, state).check()
    return _Task(target, run, job, state)


def _write_dataset(
    task: _Task,
    engine: Engine,
    run_options: RunOptions,
    progress: Progress | None,
    notices: Notices,
) -> _Sealed:
    """Write the items that are left of a dataset, check the counts, and make its manifest."""
    target, run, job, state = task
    if isinstance(state, Manifest):
        return _Sealed(task, state, None)
    if state.is_complete:
        outcome = merge_results(job, state, [], state.num_items or 0)
    else:
        report = _progress_of(target, progress)
        outcome = engine(job, run, state, report, partial(notices.info, split=target.split))
    manifest = prepare_manifest(
        run,
        outcome,
        target.output,
        job=job.digest(),
        source=job.source_json(),
        order=job.order_json(),
        packing=job.packing,
        dali=run_options.dali_index or state.dali_index,
        retries=state.retries,
    )
    return _Sealed(task, manifest, outcome)


def _progress_of(target: Target, progress: Progress | None) -> Progress | None:
    """Return a progress callback that names the target's split."""
    if progress is None or target.split is None:
        return progress

    def report(work: Work) -> None:
        progress(replace(work, split=target.split))

    return report


def _verify(sealed: Sequence[_Sealed], run_options: RunOptions, notices: Notices) -> None:
    """Compare the types of the splits, and report the warnings of all datasets."""
    check_split_schemas({each.task.target.split or "": each.manifest for each in sealed})
    for each in sealed:
        _warn_about_items(each, run_options, notices)


def _publish(sealed: Sequence[_Sealed]) -> None:
    """Publish the datasets that are not published yet, once all of them can be."""
    new = [
        (each.task.run, each.manifest, each.outcome) for each in sealed if each.outcome is not None
    ]
    for run, manifest, _ in new:
        check_names(run, manifest.pattern)
    for run, manifest, outcome in new:
        beside = [each.manifest for each in sealed if each.manifest is not manifest]
        commit(run, manifest, error_log_lines(outcome), beside=beside)
    for run, _, _ in new:
        complete(run)


# Notes and warnings about a source, its items, and the datasets written.


def _note_keys(source: Source, options: DatasetOptions, notices: Notices) -> None:
    """Report what the user should know about keys, and what they cost."""
    for note in key_notes(source, options):
        notices.note(note)
    for cost in key_costs(source, options):
        notices.info(cost)


def warn_about_sources(
    targets: Sequence[Target],
    selections: Sequence[Selection],
    run_options: RunOptions,
    notices: Notices,
) -> None:
    """Report the warnings that sources gave when they were opened.

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
        hint="check the source, and --filter, --limit and --indices",
    )


def _warn_about_items(sealed: _Sealed, run_options: RunOptions, notices: Notices) -> None:
    """Report the warnings about items, also those of earlier attempts.

    Raises:
        FeatureError: There is such a warning, with ``strict``.
        SourceError: There were no items, with ``strict``.
    """
    manifest, outcome = sealed.manifest, sealed.outcome
    split = sealed.task.target.split
    warnings = from_manifest(manifest.metadata) if outcome is None else outcome.warnings
    for warning in warnings:
        if run_options.strict:
            raise as_error(warning, FeatureError)
        notices.warn(warning, split)
    if not manifest.num_items:
        if run_options.strict:
            raise as_error(_no_items(), SourceError)
        notices.warn(_no_items(), split)


def _note_results(
    manifest: Manifest,
    outcome: WriteResult,
    target: Target,
    run_options: RunOptions,
    notices: Notices,
) -> None:
    """Report what the user should know about a dataset that was published."""
    options = target.options
    note = partial(notices.note, split=target.split)
    for line in outcome.notes:
        note(line)
    if options.tfds is not None:
        for line in tfds_features(manifest)[1]:
            note(line)
    if outcome.labels_sorted and options.shuffle_seed is None and options.order == "source":
        note(
            "labels came in sorted order, so neighbouring records are of one class: "
            "--shuffle --seed 0 writes them mixed"
        )
    if options.label and outcome.labels is None and manifest.num_records:
        note(f"no record has the label {options.label!r}")
    empty = sum(shard.num_records == 0 for shard in outcome.shards)
    if manifest.num_items and not manifest.num_records:
        note(f"the source gave no records: all {manifest.num_shards:,} shards are empty")
    elif manifest.num_records and empty:
        notices.info(
            f"{empty:,} of {manifest.num_shards:,} shards are empty: there are fewer records",
            target.split,
        )
    if run_options.dali_index and any(shard.num_records < 2 for shard in outcome.shards):
        note("the PyPI tfrecord loader fails on the .idx of a shard with fewer than 2 records")


# Splits are read together: each feature has the same type and class names in all of them.


def check_split_sources(sources: Mapping[str, Source], *, is_mapped: bool) -> None:
    """Compare what is known of splits before their first items are loaded.

    Args:
        sources: The sources, by split name.
        is_mapped: Whether a map is applied; then the sources do not decide the types.

    Raises:
        SchemaConflict: A feature has types that do not join.
        SourceError: Two splits have different class names for a feature.
    """
    if not is_mapped:
        _check_types({name: source.plan for name, source in sources.items()})
    known: dict[str, tuple[str, list[str]]] = {}
    for name, source in sources.items():
        for feature, words in source.vocabularies.items():
            first, before = known.setdefault(feature, (name, words))
            if words != before:
                raise SourceError(
                    f"the classes are not the same in splits {first!r} and {name!r}: "
                    f"{before[:5]} and {words[:5]}",
                    feature=feature,
                    hint="give both the same class names, in one order",
                )


def check_split_schemas(manifests: Mapping[str, Manifest]) -> None:
    """Compare the types of the splits that were written, by split name.

    Raises:
        SchemaConflict: A feature has types that do not join.
    """
    if len(manifests) > 1:
        _check_types(
            {
                name: {feature: summary.type for feature, summary in manifest.features.items()}
                for name, manifest in manifests.items()
            }
        )


def _check_types(types: Mapping[str, Mapping[str, FeatureType]]) -> None:
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
                    f"splits {first!r} and {split!r} have different types: {error}",
                    feature=name,
                    hint=f"{remedy} gives it one type in all splits",
                ) from None
