"""What is appended to what: whether it goes together, and what is known of both beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwriter.dataset.assignment import to_runs
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import Output
from shardwriter.errors import OptionError, SchemaConflict
from shardwriter.formats.sequence_names import context_key
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.labels import LabelCounts
from shardwriter.schema.record_stats import Learnt
from shardwriter.schema.schema import FeatureSummary
from shardwriter.schema.schema_text import summary_text, type_text
from shardwriter.schema.shape_features import check_same_holders, shape_features, shaped_by_others
from shardwriter.sources.source import RecordSource, Source
from shardwriter.sources.tfrecord import TFRecordFiles
from shardwriter.writing.appended import AppendedItems, BaseFacts
from shardwriter.writing.engine import Outcome
from shardwriter.writing.finished import learnt_of, read_ledger
from shardwriter.writing.job import Job
from shardwriter.writing.merged import check_same_vocabulary
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.publication import begin, finished
from shardwriter.writing.recovery import kept_of
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.run_facts import run_facts
from shardwriter.writing.selection import Selection
from shardwriter.writing.snapshot import Base


@dataclass(frozen=True)
class Known:
    """Of what something is known for all records, old and new.

    Attributes:
        schema: The features.
        labels: How often each label comes.
    """

    schema: bool
    labels: bool

    def of(self, outcome: Outcome) -> Outcome:
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
        manifest = finished(run)
        old = TFRecordFiles(path)
        if manifest is None or old.manifest is None:
            raise OptionError(f"the dataset {output.name!r} is not whole", path=output.directory)
        if not isinstance(source, RecordSource) or options.map is not None:
            # What has its shape beside it there has it beside it in every record.
            before = {name: summary.type for name, summary in old.summaries.items()}
            shaped = {name: before[name] for name in shaped_by_others(before)}
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
            check_same_holders(name, (there, old), ("what is appended", types))
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

    def begin(self, job: Job, known: Known, run: RunDirectory) -> Kept:
        """Begin a run whose first items are known already."""
        errors = read_ledger(run)
        learnt = learnt_of(job, self.manifest) if known.schema else Learnt({}, _no_labels(job))
        if self._copied is not None and known.schema:
            copied = Job(self.new, job.pattern).copied
            if copied.labels.feature != learnt.labels.feature:  # which these do not have
                copied.labels = _no_labels(job)
            learnt.merge(copied)
        if not known.labels:
            learnt = replace(learnt, labels=_no_labels(job))
        begin(run, run_facts(job))
        base = Base(
            in_place=True,  # nothing is lost with it
            gaps=to_runs(self.manifest.gaps),
            errors=errors,
            learnt=learnt.to_state(),
        )
        run.write_base(base)
        return kept_of(base, job.num_shards)


def _no_labels(job: Job) -> LabelCounts:
    return LabelCounts(job.record_encoder().labels.feature, job.num_shards)
