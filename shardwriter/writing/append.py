"""Append: add items to a finished dataset; the result is as if all were written in one run.

::

    finish an interrupted publication -> claim the dataset -> open the new items, compare their
    types with the manifest -> a run whose first T items are the old records -> publish over the
    dataset

Items 0 to T - 1 are the old records, copied as they are; their statistics are in the manifest.
Items from T on are those of the new source, with its own map (:class:`AppendedItems`).
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
    claim_output,
    finish_committed,
    finished_manifest,
    publish_result,
)
from shardwriter.writing.reshard import check_same_vocabulary
from shardwriter.writing.resume import (
    has_dali,
    read_error_log,
    resume_finished,
    resume_unfinished,
    run_facts,
    state_from_base,
    stats_from_manifest,
)
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.selection import Selection

KIND: Final = "append"


@dataclass(frozen=True)
class BaseFacts:
    """The identity of the dataset that is appended to, as it is in the manifest of the result.

    Attributes:
        digest: Hash of its job, number of items and shards.
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
    """A source: the records of a dataset, followed by the items of another source.

    Args:
        old: The dataset, which has a manifest; it may have more items now than ``base``.
        base: The dataset as it was when items were appended.
        new: The new items.
        function: The map, applied to the new items only.
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
        """The types of new items that are known before the first one is loaded."""
        return {} if self._map is not None else self._new.source.plan

    def preload(self, *, skip_errors: bool) -> None:
        """Load items in this process; see :class:`shardwriter.sources.source.PreloadingSource`."""
        self.sendable = False
        if isinstance(self._new.source, PreloadingSource):
            self._new.source.preload(skip_errors=skip_errors)

    def while_waiting(self, meanwhile: Callable[[], None]) -> None:
        """Set a function to call while waiting for an item, as of a queue."""
        if isinstance(self._new.source, WaitingSource):
            self._new.source.while_waiting(meanwhile)

    def items(self) -> Iterator[_OldRecord | _NewItem | None]:
        """Yield all items; None for a gap of the dataset."""
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
        """Return one item, which must not be a gap."""
        if item_index < self._num_old:
            record = int(self._records(np.array([item_index]))[0])
            return _OldRecord(self._old.item(record))
        new_index = item_index - self._num_old
        if self._new.is_identity:
            return _NewItem(self._new.source.item(new_index))
        ((_, item),) = self._new.items_at(np.array([new_index]))
        return _NewItem(item)

    def _records(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the records, in reading order, of items of the dataset."""
        records: NDArray[np.int64] = items - np.searchsorted(self._gaps, items)
        return records

    def key(self, item: _OldRecord | _NewItem) -> str | None:
        """Return the dataset's name of a record, or the source's name of an item."""
        source = self._old if isinstance(item, _OldRecord) else self._new.source
        return source.key(item.item)

    def load(self, item: _OldRecord | _NewItem) -> Any:
        """Return a record of the dataset, or the mapped features of a new item.

        Raises:
            ManifestError: The record is damaged. It can not be skipped, as the manifest's
                statistics include it.
            ShardwriterError: An error of the source or the map.
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
                    hint="run `shardwriter repair` on the dataset first",
                ) from error
        source = self._new.source
        features = source.load(item.item)
        if self._map is None:
            return features
        if isinstance(source, RecordSource):
            features = source.decode(features)
        return apply_map(self._map, features)

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the checked frames of as many items of the dataset as are read at once.

        Raises:
            SourceError: The first frame is damaged, or can not be read.
        """
        return self._old.frames(self._records(items))

    def _appended(self) -> str:
        """Return the hash of what is appended, without the dataset."""
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
        """Return the manifest's entries by which a finished append is recognised."""
        return {"appended": self._appended(), "base": asdict(self._base)}

    def digest(self) -> dict[str, Any]:
        """Return what identifies the dataset and the new items."""
        return self.manifest_entries()

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the fingerprint of the new source on this machine."""
        return {**self.manifest_entries(), "new": self._new.source.fingerprint()}


@dataclass(frozen=True)
class KnownStats:
    """Which statistics are known for all records, old and new.

    Attributes:
        schema: Whether the features are known.
        labels: Whether the label counts are known.
    """

    schema: bool
    labels: bool

    def of(self, result: WriteResult) -> WriteResult:
        """Return a result without the statistics that cover some of the records only."""
        return replace(
            result,
            schema=result.schema if self.schema else {"features": {}},
            labels=result.labels if self.labels else None,
        )


@dataclass(frozen=True)
class AppendPlan:
    """A dataset and the items to append to it.

    Attributes:
        manifest: The manifest of the dataset as it is.
        old: The records of the dataset.
        new: The new items.
        options: The user's options: map, filter, limit and types.
        dataset_options: The options that decide the bytes of the whole dataset.
        output: The dataset.
    """

    manifest: Manifest
    old: TFRecordFiles
    new: Selection
    options: DatasetOptions
    dataset_options: DatasetOptions
    output: Output

    @classmethod
    def of(
        cls,
        source: Source,
        path: str,
        output: Output,
        options: DatasetOptions,
        run: RunDirectory,
    ) -> AppendPlan:
        """Open the dataset, and select the new items."""
        if isinstance(source, RecordSource) and source.reads(output.directory, output.name):
            raise OptionError(
                f"{output.name!r} can not be appended to itself",
                hint="append a copy of it, which `shardwriter reshard` writes",
            )
        manifest = finished_manifest(run)
        old = TFRecordFiles(path)
        if manifest is None or old.manifest is None:
            raise OptionError(f"the dataset {output.name!r} is incomplete", path=output.directory)
        if not isinstance(source, RecordSource) or options.map is not None:
            # A feature with shape features in the dataset has them in the new records too.
            before = {name: summary.type for name, summary in old.summaries.items()}
            shaped = {name: before[name] for name in shape_feature_names(before)}
            options = replace(options, schema={**shaped, **options.schema})
        selection_options = DatasetOptions(
            filter=options.filter,
            limit=options.limit,
            schema=options.schema,
            tfds=output.tfds,
            vocabularies=options.vocabularies,
        )
        dataset_options = DatasetOptions(
            schema=options.schema,
            compression=output.compression,
            deflate=manifest.compression.get("deflate", "isal-2"),
            tfds=output.tfds,
            vocabularies=options.vocabularies,
        )
        new = Selection(source, selection_options)
        return cls(manifest, old, new, options, dataset_options, output)

    def job(self, base: BaseFacts) -> Job:
        """Return the job of the items of ``base`` followed by the new ones."""
        source = AppendedItems(self.old, base, self.new, self.options.map)
        return Job(Selection(source, self.dataset_options), self.manifest.pattern)

    def finished_job(self) -> Job | None:
        """Return the dataset's own job if it was the append of these items; else None."""
        try:
            base = BaseFacts(**self.manifest.source["base"])
        except (KeyError, TypeError):
            return None
        job = self.job(base)
        return job if job.digest() == self.manifest.job else None

    @property
    def _copied(self) -> RecordSource | None:
        """The source, if its records are copied undecoded; else None."""
        source = self.new.source
        return source if isinstance(source, RecordSource) and self.options.map is None else None

    def check(self, run_options: RunOptions) -> KnownStats:
        """Refuse items that do not fit the dataset; return which statistics are known.

        Raises:
            OptionError: The dataset can not be appended to, or not with this option.
            SchemaConflict: A feature has different types in the dataset and the source.
        """
        if "repaired" in self.manifest.extra:
            raise OptionError(
                f"{self.output.name!r} was repaired and has lost records",
                hint="`shardwriter reshard` writes the records that are left as a new dataset; "
                "append to that",
            )
        packing = self.job(BaseFacts.of(self.manifest)).packing
        if packing.to_json() != self.manifest.compression:
            raise OptionError(
                f"the shards of {self.output.name!r} have a compression that this version does not "
                "write",
                hint="`shardwriter reshard` writes them again; append to that dataset",
            )
        copied = self._copied
        if copied is not None and run_options.on_error == "skip":
            raise OptionError(
                "--on-error skip: records that are copied can not be skipped, as their contents "
                "are unknown",
                hint="`shardwriter repair` writes a dataset of the good records; append that",
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
                "TFDS needs the features of the records, which are unknown",
                hint="add a map, which decodes records; one that returns its argument is enough",
            )
        return KnownStats(schema, labels)

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
        dataset = f"the dataset {self.output.name!r}"
        old = {name: summary.type for name, summary in before.items()}
        if self._copied is None:
            types = {**types, **self.options.schema, **shape_features(self.options.schema)}
        for name, planned in types.items():
            if name not in before:
                continue
            check_same_shape_features(name, (dataset, old), ("what is appended", types))
            try:
                before[name].type.join(planned)
            except ValueError as error:
                old_type = before[name].type
                mine, theirs = summary_text(planned), summary_text(old_type)
                why = f" ({error})" if mine == theirs else ""
                declared = type_text(old_type).removesuffix("[]")
                raise SchemaConflict(
                    f"{mine} in what is appended, {theirs} in the dataset{why}",
                    feature=name,
                    hint=f"--schema {name}={declared} converts a table's numbers; a --map can "
                    "convert any type",
                ) from None
        for name, vocabulary in words.items():
            if name in before:
                known = before[name].vocabulary
                check_same_vocabulary(name, (dataset, known), ("what is appended", vocabulary))

    def begin(self, job: Job, known: KnownStats, run: RunDirectory) -> ResumeState:
        """Begin a run that starts with the statistics of the old records."""
        errors = read_error_log(run)
        stats = (
            stats_from_manifest(job, self.manifest)
            if known.schema
            else RecordStats({}, _no_labels(job))
        )
        if self._copied is not None and known.schema:
            copied = Job(self.new, job.pattern).copied_stats
            if copied.labels.feature != stats.labels.feature:  # which these do not have
                copied.labels = _no_labels(job)
            stats.merge(copied)
        if not known.labels:
            stats = replace(stats, labels=_no_labels(job))
        begin_run(run, run_facts(job))
        base = Base(
            in_place=True,  # a discarded run loses nothing
            gaps=to_runs(self.manifest.gaps),
            errors=errors,
            stats=stats.to_state(),
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

    Shards, index, schema and label counts are as if all items were written in one run. The new
    dataset is written beside the old one, and replaces it when it is complete; gaps stay. Number of
    shards, compression and label stay the same.

    Args:
        source: The items to add; see :func:`shardwriter.write`.
        out: A dataset with a manifest: its name, its folder, or its manifest.
        format: As for :func:`shardwriter.write`.
        map: Applied to the features of every new item.
        filter: Called with every new item as the source lists it; false leaves it out.
        limit: Add the first ``limit`` items only.
        schema: Types fixed before the first new item.
        workers: Processes that load, map, encode and write.
        overwrite: Discard a stopped append, and begin again.
        resume: Resume a stopped append. If these items were the last ones appended, nothing is
            done; without ``resume`` they are appended again.
        on_error: ``raise``, or ``skip`` to leave new items out that give an error.
        strict: Whether a warning about the new items is an error.
        run: Further options of the run; they change no byte.
        progress: True shows a bar; or a function that is called now and then with the work done.
        notify: As for :func:`shardwriter.write`.
        table: How to read a table: ``TableOptions(header=False)``.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the dataset can not be appended to.
        SchemaConflict: A feature has another type or other class names than in the dataset.
            Nothing is published.
        DataError: The input is wrong, or a record of the dataset is damaged. Nothing is published.
        RunError: The run failed. Nothing is published.
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
        options: Map, filter, limit and declared types.
        run_options: How to run; changes no byte.
        progress: Called now and then with the work done.
        notices: Reports notes and warnings to the user.
    """
    notices = notices or Notices()
    was_committed = _finish_publication(path)
    output = output_to_append_to(path)
    run_dir = os.path.join(output.directory, partial_dir(output.name))
    run_options = replace(run_options, log_dir=check_log_dir(run_options.log_dir, [run_dir]))
    # A resumed append is found below; the dataset is replaced by one that has all of its items.
    replacing = replace(run_options, overwrite=True, resume=False, retry_errors=False)
    with (
        ExitStack() as held,
        claim_output(output, replacing) as run,
        open_engine(run_options, output.num_shards) as engine,
    ):
        if not (run_options.resume or run_options.overwrite) and run.is_resumable:
            raise OutputExists(
                f"{run.name!r} has an unfinished run",
                path=run.path,
                hint="--resume resumes it; --overwrite discards it and begins again",
            )
        source = open_items()
        if isinstance(source, ClosingSource):
            held.callback(source.close)
        plan = AppendPlan.of(source, path, output, options, run)
        for note in plan.new.source.notes:
            notices.note(note)
        _warn(warnings_of(plan.new.source), plan.manifest, run_options, notices)
        resume = run_options.resume and run.is_resumable
        if (run_options.resume or was_committed) and not resume:
            finished_job = plan.finished_job()
            if finished_job is not None:
                resume_finished(finished_job, run, plan.manifest, run_options, notices.info)
                notices.info(f"nothing to do: these items are the last of {run.name!r} already")
                run.discard()
                return plan.manifest
        known = plan.check(run_options)
        job = plan.job(BaseFacts.of(plan.manifest))
        check_source(job.source, job.options, output)
        if resume:
            state = resume_unfinished(job, run, run_facts(job), run_options, notices.info)
        else:
            state = plan.begin(job, known, run)
        ErrorBudget(run_options, state).check()
        try:
            result = engine(job, run, state, progress, notices.info)
        except SchemaConflict as error:
            error.message = error.message.replace("in the plan", "in the dataset")
            raise
        _warn(result.warnings, plan.manifest, run_options, notices)
        return publish_result(
            run,
            known.of(result),
            output,
            job=job.digest(),
            source=job.source_json(),
            order=job.order_json(),
            packing=job.packing,
            dali=run_options.dali_index or has_dali(run, plan.manifest),
        )


def _warn(
    warnings: Iterable[DataWarning], before: Manifest, run_options: RunOptions, notices: Notices
) -> None:
    """Report the warnings of the new items; those of the old ones were reported before.

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
            f"{path!r} is a URL, and append needs a local file system",
            hint="append to a local copy, then upload it, the manifest last",
        )
    found = find_one(path)
    manifest = found.manifest
    if manifest is None or not found.is_complete:
        raise OptionError(
            "only a complete dataset with a manifest can be appended to",
            path=path,
            hint="`shardwriter reshard` writes one from any TFRecord files",
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
    """Finish an interrupted publication of a dataset; return whether there was one."""
    if is_url(path):
        return False
    directory, base = os.path.split(path)
    names = [dataset_name(base.removesuffix(".manifest.json").partition("@")[0])]
    if os.path.isdir(path):
        directory, names = path, _names_of_runs(path)
    was_committed = False
    for name in names:
        if os.path.exists(os.path.join(directory, partial_dir(name), COMMIT)):
            with RunDirectory.claim(directory or ".", name, LocalStorage()) as run:
                finish_committed(run)
                run.discard()
            was_committed = True
    return was_committed


def _names_of_runs(directory: str) -> list[str]:
    """Return the names of datasets of a folder that have a run directory."""
    prefix, suffix = partial_dir("\0").split("\0")
    found = [entry for entry in os.listdir(directory) if entry.startswith(prefix)]
    names = [
        entry[len(prefix) : len(entry) - len(suffix)] for entry in found if entry.endswith(suffix)
    ]
    return [name for name in names if name]
