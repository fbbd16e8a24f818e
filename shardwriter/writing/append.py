"""Append: more items for a finished dataset, which ends as if all had been written in one run.

::

    dataset found, what was committed finished -> claimed -> items opened, held against the manifest
    -> a run whose first T items are the records that are there -> published over the dataset
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from types import EllipsisType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    Manifest,
    Output,
    dataset_name,
    is_url,
    partial_dir,
    tfds_split_of,
    to_runs,
)
from shardwriter.errors import (
    DataWarning,
    FeatureError,
    ManifestError,
    OptionError,
    OutputExists,
    SchemaConflict,
    SourceChanged,
    SourceError,
)
from shardwriter.formats import SUFFIXES, FrameBlock, canonical, context_key
from shardwriter.schema import (
    FeatureSummary,
    FeatureType,
    LabelCounts,
    RecordStats,
    SchemaLike,
    as_error,
    check_same_shape_features,
    declare,
    from_manifest,
    shape_feature_names,
    shape_features,
    shift_index,
    summary_text,
    type_text,
    warnings_of,
)
from shardwriter.sources import (
    ClosingSource,
    PreloadingSource,
    RecordSource,
    Source,
    TableOptions,
    TFRecordFiles,
    WaitingSource,
    describe_callable,
    find_one,
    open_source,
    stop_queues_on_exit,
)
from shardwriter.storage import LocalStorage
from shardwriter.writing.choose_engine import open_engine
from shardwriter.writing.encode import apply_map
from shardwriter.writing.engine import ErrorBudget, Progress, WriteResult
from shardwriter.writing.event_log import check_log_dir
from shardwriter.writing.job import Job
from shardwriter.writing.journal import Base
from shardwriter.writing.notices import Notices, Notify
from shardwriter.writing.options import DatasetOptions, OnError, RunOptions, changed
from shardwriter.writing.plan import check_source
from shardwriter.writing.progress_bar import writing_progress
from shardwriter.writing.publication import (
    COMMIT,
    begin_run,
    claimed,
    finish_committed,
    finished_manifest,
    publish_result,
)
from shardwriter.writing.reshard import check_same_vocabulary
from shardwriter.writing.resume import (
    go_on,
    has_dali,
    read_ledger,
    resume_finished,
    run_facts,
    state_from_base,
    stats_from_manifest,
)
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.selection import Selection

# A finished dataset and what is to come behind it, as one source.
#
# Items 0 to T - 1 are those of the dataset: their records are taken as they are, and what is known
# of them stands in its manifest. Items from T on are those of another source, with its own map.

KIND: Final = "append"


@dataclass(frozen=True)
class BaseFacts:
    """Which dataset is appended to, as the manifest of the result tells it.

    Attributes:
        digest: Of its job, its items and its shards.
        num_items: T.
    """

    digest: str
    num_items: int

    @classmethod
    def of(cls, manifest: Manifest) -> BaseFacts:
        """Return the facts of a dataset."""
        shards = [[shard.num_records, shard.crc32c] for shard in manifest.shards]
        facts = [manifest.job, manifest.num_items, shards]
        return cls(canonical.digest({"base": facts}), manifest.num_items)


class _OldRecord(NamedTuple):
    item: Any


class _NewItem(NamedTuple):
    item: Any


class AppendedItems:
    """The items of a dataset, and those of a source behind them.

    Args:
        old: The dataset, which has a manifest; it may have got more items since.
        base: What it was when it was appended to.
        new: The items that come behind it.
        function: The map, applied to these only.
    """

    kind = KIND

    def __init__(
        self,
        old: TFRecordFiles,
        base: BaseFacts,
        new: Selection,
        function: Callable[[dict[str, Any]], Any] | None,
    ) -> None:
        assert old.manifest is not None
        self._old = old
        self._base = base
        self._new = new
        self._map = function
        self._num_old = base.num_items
        gaps = np.asarray(old.manifest.gaps, np.int64)
        self._gaps = gaps[gaps < self._num_old]
        source = new.source
        self.resumable = source.resumable
        self.random_access = old.random_access and new.random_access
        self.sendable = self.random_access and source.sendable
        self.num_items: int | None = None
        if new.num_items is not None:
            self.num_items = self._num_old + new.num_items
        self.num_frames = self._num_old if old.random_access else 0
        self.vocabularies: Mapping[str, list[str]] = {} if function else source.vocabularies
        self.label: str | None = old.label or (None if function else source.label)
        self.notes: Sequence[str] = source.notes
        self.warnings = [shift_index(warning, self._num_old) for warning in warnings_of(source)]

    @property
    def plan(self) -> Mapping[str, FeatureType]:
        """The types of new items that are known before the first of them."""
        return {} if self._map is not None else self._new.source.plan

    def preload(self, *, skip_errors: bool) -> None:
        """Load items here; see :class:`shardwriter.sources.source.PreloadingSource`."""
        self.sendable = False
        if isinstance(self._new.source, PreloadingSource):
            self._new.source.preload(skip_errors=skip_errors)

    def while_waiting(self, meanwhile: Callable[[], None]) -> None:
        """Have a function called while an item is waited for: of a queue, say."""
        if isinstance(self._new.source, WaitingSource):
            self._new.source.while_waiting(meanwhile)

    def items(self) -> Iterator[_OldRecord | _NewItem | None]:
        """Yield all items; None for those of the dataset that have no record."""
        records = self._old.items()
        gaps = iter([*self._gaps.tolist(), -1])
        gap = next(gaps)
        for item_index in range(self._num_old):
            if item_index == gap:
                gap = next(gaps)
                yield None
            else:
                yield _OldRecord(next(records))
        yield from map(_NewItem, self._new.items())

    def item(self, item_index: int) -> _OldRecord | _NewItem:
        """Return one item, which is none without a record."""
        if item_index < self._num_old:
            record = int(self._records(np.array([item_index]))[0])
            return _OldRecord(self._old.item(record))
        place = item_index - self._num_old
        if self._new.is_untouched:
            return _NewItem(self._new.source.item(place))
        ((_, item),) = self._new.items_at(np.array([place]))
        return _NewItem(item)

    def _records(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the records, in reading order, of items of the dataset."""
        before: NDArray[np.int64] = items - np.searchsorted(self._gaps, items)
        return before

    def key(self, item: _OldRecord | _NewItem) -> str | None:
        """Return what the dataset calls a record, or the source an item."""
        source = self._old if isinstance(item, _OldRecord) else self._new.source
        return source.key(item.item)

    def load(self, item: _OldRecord | _NewItem) -> Any:
        """Return a record of the dataset, or what the source and the map make of an item.

        Raises:
            ManifestError: The record is damaged: no item that could be skipped, as it counts in
                what the manifest says of all of them.
            ShardwriterError: Of the source's or the map's own.
        """
        if isinstance(item, _OldRecord):
            try:
                return self._old.load(item.item)
            except SourceChanged:
                raise
            except SourceError as error:
                raise ManifestError(
                    f"the dataset that is appended to is damaged: {error.message}",
                    path=error.path,
                    record_index=error.record_index,
                    offset=error.offset,
                    hint="`shardwriter repair` brings back what can be brought back",
                ) from error
        source = self._new.source
        features = source.load(item.item)
        if self._map is None:
            return features
        if isinstance(source, RecordSource):
            features = source.decode(features)
        return apply_map(self._map, features)

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the frames of as many items of the dataset as are read at once, proven.

        Raises:
            SourceError: The first of them is damaged, or can not be read.
        """
        return self._old.frames(self._records(items))

    def _appended(self) -> str:
        """Return what tells what is appended, to whatever dataset."""
        options = self._new.options
        return canonical.digest(
            {
                "filter": None if options.filter is None else describe_callable(options.filter),
                "kind": self._new.source.kind,
                "limit": options.limit,
                "map": None if self._map is None else describe_callable(self._map),
                "source": self._new.source.digest(),
            }
        )

    def manifest_entries(self) -> dict[str, Any]:
        """Return what was appended to what: a finished append is known by it."""
        return {"appended": self._appended(), "base": asdict(self._base)}

    def digest(self) -> dict[str, Any]:
        """Return what identifies the dataset and what comes behind it."""
        return self.manifest_entries()

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with what tells on this machine that something has changed."""
        return {**self.manifest_entries(), "new": self._new.source.fingerprint()}


# What is appended to what: whether it goes together, and what is known of both beforehand.


@dataclass(frozen=True)
class Known:
    """Of what something is known for all records, old and new.

    Attributes:
        schema: The features.
        labels: How often each label comes.
    """

    schema: bool
    labels: bool

    def of(self, outcome: WriteResult) -> WriteResult:
        """Return an outcome that says nothing of some of the records alone."""
        return replace(
            outcome,
            schema=outcome.schema if self.schema else {"features": {}},
            labels=outcome.labels if self.labels else None,
        )


@dataclass(frozen=True)
class Appending:
    """What is appended to what.

    Attributes:
        manifest: Of the dataset as it is.
        old: Its records.
        new: The items that come behind them.
        options: What was asked for; without what the dataset decides.
        whole: What decides the bytes of all of it.
        output: The dataset.
    """

    manifest: Manifest
    old: TFRecordFiles
    new: Selection
    options: DatasetOptions
    whole: DatasetOptions
    output: Output

    @classmethod
    def of(
        cls,
        source: Source,
        path: str,
        output: Output,
        options: DatasetOptions,
        run: RunDirectory,
    ) -> Appending:
        """Open the dataset, and select the items."""
        if isinstance(source, RecordSource) and source.reads(output.directory, output.name):
            raise OptionError(
                f"{output.name!r} is to be appended to itself",
                hint="its records would be there twice; `shardwriter reshard` makes a copy",
            )
        manifest = finished_manifest(run)
        old = TFRecordFiles(path)
        if manifest is None or old.manifest is None:
            raise OptionError(f"the dataset {output.name!r} is not whole", path=output.directory)
        if not isinstance(source, RecordSource) or options.map is not None:
            # What has its shape beside it there has it beside it in every record.
            before = {name: summary.type for name, summary in old.summaries.items()}
            shaped = {name: before[name] for name in shape_feature_names(before)}
            options = replace(options, schema={**shaped, **options.schema})
        inner = DatasetOptions(
            filter=options.filter,
            limit=options.limit,
            schema=options.schema,
            tfds=output.tfds,
            vocabularies=options.vocabularies,
        )
        whole = DatasetOptions(
            schema=options.schema,
            compression=output.compression,
            deflate=manifest.compression.get("deflate", "isal-2"),
            tfds=output.tfds,
            vocabularies=options.vocabularies,
        )
        return cls(manifest, old, Selection(source, inner), options, whole, output)

    def job(self, base: BaseFacts) -> Job:
        """Return the job of a dataset of so many items with the new ones behind them."""
        source = AppendedItems(self.old, base, self.new, self.options.map)
        return Job(Selection(source, self.whole), self.manifest.pattern)

    def job_before(self) -> Job | None:
        """Return the job that the dataset is of, where that has appended these very items."""
        try:
            base = BaseFacts(**self.manifest.source["base"])
        except (KeyError, TypeError):
            return None
        job = self.job(base)
        return job if job.digest() == self.manifest.job else None

    @property
    def _copied(self) -> RecordSource | None:
        """The source, where its records are taken as they are."""
        source = self.new.source
        return source if isinstance(source, RecordSource) and self.options.map is None else None

    def check(self, run_options: RunOptions) -> Known:
        """Refuse what does not go together; say of what something is known.

        Raises:
            OptionError: The dataset, or an option, is not one that this can be done with.
            SchemaConflict: A feature is another one in the dataset than in the source.
        """
        if "repaired" in self.manifest.extra:
            raise OptionError(
                f"{self.output.name!r} has lost records, and its manifest says which",
                hint="`shardwriter reshard` makes a dataset of those that are left",
            )
        packing = self.job(BaseFacts.of(self.manifest)).packing
        if packing.to_json() != self.manifest.compression:
            raise OptionError(
                "its shards are compressed as this version compresses none",
                hint="`shardwriter reshard` writes them anew",
            )
        copied = self._copied
        if copied is not None and run_options.on_error == "skip":
            raise OptionError(
                "records that are taken as they are can not be skipped: nothing tells what was in "
                "them",
                hint="`shardwriter repair` makes a dataset of those that are good; append that",
            )
        before = self.old.summaries
        self._check_types(before)
        is_empty = not self.manifest.num_records
        schema = bool(before) or is_empty
        labels = schema and (self.manifest.labels is not None or not self._has_label(before))
        if copied is not None and self.new.num_items != 0:
            is_all = self.new.takes_all
            schema = schema and is_all and bool(copied.summaries)
            labels = labels and schema
            if self._has_label(copied.summaries):
                counted = None if copied.labels is None else copied.labels["feature"]
                labels = labels and counted == self._label
        if self.output.tfds is not None and not schema:
            raise OptionError(
                "TFDS has to be told what features the records have, and nothing tells",
                hint="a map has records decoded; one that returns what it is given is enough",
            )
        return Known(schema, labels)

    @property
    def _label(self) -> str:
        return self.job(BaseFacts.of(self.manifest)).record_encoder().labels.feature

    def _has_label(self, features: Mapping[str, FeatureSummary]) -> bool:
        keys = self._label, context_key(self._label)
        return any(key in features and features[key].present for key in keys)

    def _check_types(self, before: Mapping[str, FeatureSummary]) -> None:
        source = self.new.source
        types: dict[str, FeatureType] = {}
        words: dict[str, list[str] | None] = {}
        if self._copied is not None:
            types = {name: known.type for name, known in self._copied.summaries.items()}
            words = {name: known.vocabulary for name, known in self._copied.summaries.items()}
        elif self.options.map is None:
            types, words = dict(source.plan), dict(source.vocabularies)
        there = f"the dataset {self.output.name!r}"
        old = {name: summary.type for name, summary in before.items()}
        if self._copied is None:
            types = {**types, **self.options.schema, **shape_features(self.options.schema)}
        for name, planned in types.items():
            if name not in before:
                continue
            check_same_shape_features(name, (there, old), ("what is appended", types))
            try:
                before[name].type.join(planned)
            except ValueError as error:
                there_type = before[name].type
                mine, theirs = summary_text(planned), summary_text(there_type)
                why = f" ({error})" if mine == theirs else ""
                declared = type_text(there_type).removesuffix("[]")
                raise SchemaConflict(
                    f"{mine} in what is appended, {theirs} in the dataset{why}",
                    feature=name,
                    hint=f"--schema {name}={declared}, or a --map, makes a table's numbers what "
                    "they are there; a --map can change any type",
                ) from None
        for name, vocabulary in words.items():
            if name in before:
                known = before[name].vocabulary
                check_same_vocabulary(name, (there, known), ("what is appended", vocabulary))

    def begin(self, job: Job, known: Known, run: RunDirectory) -> ResumeState:
        """Begin a run whose first items are known already."""
        errors = read_ledger(run)
        learnt = (
            stats_from_manifest(job, self.manifest)
            if known.schema
            else RecordStats({}, _no_labels(job))
        )
        if self._copied is not None and known.schema:
            copied = Job(self.new, job.pattern).copied_stats
            if copied.labels.feature != learnt.labels.feature:  # which these do not have
                copied.labels = _no_labels(job)
            learnt.merge(copied)
        if not known.labels:
            learnt = replace(learnt, labels=_no_labels(job))
        begin_run(run, run_facts(job))
        base = Base(
            in_place=True,  # nothing is lost with it
            gaps=to_runs(self.manifest.gaps),
            errors=errors,
            stats=learnt.to_state(),
        )
        run.write_base(base)
        return state_from_base(base, job.num_shards)


def _no_labels(job: Job) -> LabelCounts:
    return LabelCounts(job.record_encoder().labels.feature, job.num_shards)


@stop_queues_on_exit
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
        if not (run_options.resume or run_options.overwrite) and run.is_resumable:
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
        resume = run_options.resume and run.is_resumable
        if (run_options.resume or was_committed) and not resume:
            done = appending.job_before()
            if done is not None:
                resume_finished(done, run, appending.manifest, run_options, notices.info)
                notices.info(f"nothing to do: these items are the last of {run.name!r} already")
                run.discard()
                return appending.manifest
        known = appending.check(run_options)
        job = appending.job(BaseFacts.of(appending.manifest))
        check_source(job.source, job.options, output)
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
        return publish_result(
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
