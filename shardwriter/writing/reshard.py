"""Copies of records: ``reshard`` writes one dataset as another number of shards, ``merge`` several.

Records are copied byte for byte. :class:`MergedDatasets` is the source of a merge: the records of
the first dataset, then those of the second, and so on.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import EllipsisType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import Manifest, parse_output
from shardwriter.errors import OptionError, SchemaConflict
from shardwriter.formats import Compression, Deflate, FrameBlock
from shardwriter.schema import FeatureSummary, FeatureType, check_same_shape_features
from shardwriter.sources import FrameReader, FrameSpans, OpenFiles, TFRecordFiles
from shardwriter.storage import max_source_files, real
from shardwriter.writing.engine import Progress
from shardwriter.writing.notices import Notices, Notify
from shardwriter.writing.options import DatasetOptions, RunOptions, changed
from shardwriter.writing.progress_bar import writing_progress
from shardwriter.writing.write import write_dataset

KIND: Final = "merge"


class PartItem(NamedTuple):
    """The descriptor of a record: the number of its dataset, and its descriptor there."""

    part: int
    item: Any


class MergedDatasets:
    """The records of several datasets, one dataset after the other.

    Args:
        names: The name of each dataset, for messages.
        parts: The datasets, in order.
        open_files: The open files that all datasets share.

    Raises:
        SchemaConflict: Two datasets have different types or class names for a feature.
        OptionError: A dataset is given twice.
    """

    kind = KIND
    resumable = True
    plan: Mapping[str, FeatureType] = {}  # records are copied: nothing is planned
    vocabularies: Mapping[str, list[str]] = {}

    def __init__(
        self, names: Sequence[str], parts: Sequence[TFRecordFiles], open_files: OpenFiles
    ) -> None:
        _refuse_repeats(names, parts)
        self._names = list(names)
        self._parts = list(parts)
        self.summaries: Mapping[str, FeatureSummary] = _joined_features(names, parts)
        self.labels: Mapping[str, Any] | None = _added_labels(parts)
        self.label: str | None = None if self.labels is None else self.labels["feature"]
        counts = [part.num_items for part in parts]
        known = [count for count in counts if count is not None]
        self.num_items: int | None = sum(known) if len(known) == len(counts) else None
        self.random_access = self.sendable = all(part.random_access for part in parts)
        self.num_frames = (self.num_items or 0) if self.random_access else 0
        self._firsts = [0, *accumulate(count or 0 for count in counts)][:-1]
        # One reader for the files of all datasets limits the number of open files.
        self._files = [file for part in parts for file in part.files]
        self._first_files = [0, *accumulate(len(part.files) for part in parts)][:-1]
        self._open_files = open_files
        self.notes: Sequence[str] = [note for part in parts for note in part.notes]

    def items(self) -> Iterator[PartItem]:
        """Yield the records of each dataset in turn, in its own order."""
        for number, part in enumerate(self._parts):
            for item in part.items():
                yield PartItem(number, item)

    def item(self, item_index: int) -> PartItem:
        """Return the descriptor of one record."""
        number = bisect_right(self._firsts, item_index) - 1
        return PartItem(number, self._parts[number].item(item_index - self._firsts[number]))

    def key(self, item: PartItem) -> str:
        """Return the dataset's name, and its name of the record."""
        return f"{self._names[item.part]}: {self._parts[item.part].key(item.item)}"

    def load(self, item: PartItem) -> bytes:
        """Return the record's bytes."""
        return self._parts[item.part].load(item.item)

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the checked frames of as many records as are read at once.

        Raises:
            SourceError: The first frame is damaged, or can not be read.
        """
        which = np.searchsorted(self._firsts, items, side="right") - 1
        spans = FrameSpans(*(np.empty(len(items), np.int64) for _ in FrameSpans._fields))
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            found = self._parts[number].spans(items[mine] - self._firsts[number])
            for column, values in zip(spans, found, strict=True):
                column[mine] = values
            spans.numbers[mine] += self._first_files[number]
        return FrameReader(self._files, self._open_files).block(spans)

    def decode(self, record: bytes) -> Any:
        """Return the features of a record; see :meth:`TFRecordFiles.decode`."""
        return self._parts[0].decode(record)

    def reads(self, directory: str, name: str) -> bool:
        """Return whether files of this dataset are among the inputs."""
        return any(part.reads(directory, name) for part in self._parts)

    def digest(self) -> dict[str, Any]:
        """Return what identifies each dataset, in order."""
        return {"datasets": [part.digest() for part in self._parts]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the modification times of the files."""
        return {"datasets": [part.fingerprint() for part in self._parts]}


def open_merged(paths: Sequence[str]) -> MergedDatasets:
    """Open several datasets as one source.

    Args:
        paths: Paths as :class:`TFRecordFiles` takes them, in order.

    Raises:
        OptionError: There is no dataset, or one is given twice.
        DataError: A dataset can not be read, or two have different types.
    """
    if not paths:
        raise OptionError("there is nothing to merge", hint="give one dataset or more, and OUT")
    open_files = OpenFiles(max_source_files())
    parts = [TFRecordFiles(path, open_files) for path in paths]
    return MergedDatasets(paths, parts, open_files)


def check_same_vocabulary(
    feature: str, first: tuple[str, list[str] | None], second: tuple[str, list[str] | None]
) -> None:
    """Refuse two datasets with different class names for a feature.

    Args:
        feature: The feature with the class numbers.
        first: The name of one dataset, and its class names by number; None if it has none.
        second: The same of the other dataset.

    Raises:
        SchemaConflict: A class number has different names.
    """
    (name, words), (other_name, other_words) = first, second
    if words is None or other_words is None or words == other_words:
        return
    pairs = zip(words, other_words, strict=False)
    shorter = min(len(words), len(other_words))
    number = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
    other = repr(other_words[number]) if number < len(other_words) else "not there"
    word = repr(words[number]) if number < len(words) else "not there"
    raise SchemaConflict(
        f"class {number} is {word} in {name}, and {other} in {other_name}",
        feature=feature,
        hint=f"write {other_name} again with the classes of {name} (convert the numbers with "
        "--map), or give both the same class folders",
    )


def _refuse_repeats(names: Sequence[str], parts: Sequence[TFRecordFiles]) -> None:
    owners: dict[str, str] = {}
    for name, part in zip(names, parts, strict=True):
        for path in {real(path) for path in part.paths}:
            if path in owners:
                first = owners[path]
                raise OptionError(
                    f"{name!r} is given twice"
                    if first == name
                    else f"a file is in both {first!r} and {name!r}",
                    path=path,
                    hint="give it once: its records would be in the dataset twice, also on both "
                    "sides of a split",
                )
            owners[path] = name


def _joined_features(
    names: Sequence[str], parts: Sequence[TFRecordFiles]
) -> dict[str, FeatureSummary]:
    """Return the features of all records; none if those of some records are unknown.

    Raises:
        SchemaConflict: Two datasets have different types or class names for a feature.
    """
    joined: dict[str, FeatureSummary] = {}
    owners: dict[str, str] = {}
    types = {
        name: {feature: summary.type for feature, summary in part.summaries.items()}
        for name, part in zip(names, parts, strict=True)
    }
    for name, part in zip(names, parts, strict=True):
        for feature, theirs in part.summaries.items():
            mine = joined.get(feature)
            if mine is None:
                joined[feature] = FeatureSummary(
                    theirs.type, theirs.present, theirs.unset, theirs.vocabulary
                )
                owners[feature] = name
                continue
            check_same_vocabulary(
                feature, (owners[feature], mine.vocabulary), (name, theirs.vocabulary)
            )
            owner = owners[feature]
            check_same_shape_features(feature, (owner, types[owner]), (name, types[name]))
            try:
                mine.type = mine.type.join(theirs.type)
            except ValueError as error:
                raise SchemaConflict(
                    f"{theirs.type.kind} in {name}, {mine.type.kind} in {owners[feature]} "
                    f"({error})",
                    feature=feature,
                    hint=f"write one of them again with a --map that converts {feature!r} to the "
                    "type of the other",
                ) from None
            mine.present += theirs.present
            mine.unset += theirs.unset
            if mine.vocabulary is None:
                mine.vocabulary, owners[feature] = theirs.vocabulary, name
    is_known = all(part.summaries or part.num_items == 0 for part in parts)
    return joined if is_known else {}


def _added_labels(parts: Sequence[TFRecordFiles]) -> dict[str, Any] | None:
    """Return the sum of the label counts; None if some are unknown, or of different features."""
    filled = [part for part in parts if part.num_items != 0]
    known = [part.labels for part in filled if part.labels is not None]
    features = {labels["feature"] for labels in known}
    if len(known) != len(filled) or len(features) != 1:
        return None
    counts: Counter[str] = Counter()
    for labels in known:
        counts.update(labels["counts"])
    return {"counts": dict(counts), "feature": features.pop()}


def reshard(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    shuffle_seed: int | None = None,
    compression: Compression | None = None,
    deflate: Deflate = "isal-2",
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | bool | None = None,
    notify: Notify | None = None,
) -> Manifest:
    """Write the records of a dataset again, byte for byte, as another number of shards.

    Record r in reading order becomes item r, so the new dataset has no gaps. The result equals that
    of ``write(path, out, format="tfrecord")``, manifest included.

    Args:
        path: TFRecord files: a dataset's name, a folder, a file or a glob. Files without a manifest
            are read one after the other.
        out: ``dir/name@7``, or ``dir/name`` to have a number of shards chosen.
        num_shards: The number of shards, if ``out`` does not have it.
        shuffle_seed: Write in the order of a permutation of this seed; not of compressed files.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip if ``out`` ends in ``.gz``.
        deflate: ``isal-2``, or ``zlib-6`` for smaller shards that take many times as long.
        workers: Processes that read and write; see :func:`shardwriter.write`.
        overwrite: Replace a dataset of this name once the new one is complete.
        resume: Resume a stopped run; begin if there is none.
        run: Further options of the run; they change no byte.
        progress: True shows a bar; or a function that is called now and then with the work done.
        notify: As for :func:`shardwriter.write`.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the output exists.
        DataError: A file is damaged: has the record and its offset. Nothing is published.
        RunError: The run failed; nothing is published.
    """
    output = parse_output(out, num_shards, compression)
    options = DatasetOptions(
        shuffle_seed=shuffle_seed, compression=output.compression, deflate=deflate
    )
    run_options = changed(run, workers=workers, overwrite=overwrite, resume=resume)
    with writing_progress(progress) as report:
        return write_dataset(
            lambda: TFRecordFiles(os.fspath(path)),
            output,
            options,
            run_options,
            report,
            Notices(notify),
        )


def merge(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    shuffle_seed: int | None = None,
    compression: Compression | None = None,
    deflate: Deflate = "isal-2",
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | bool | None = None,
    notify: Notify | None = None,
) -> Manifest:
    """Write the records of several datasets as one: those of the first, then of the second, ...

    Each dataset is read in its reading order. Schemas are joined and label counts added if all of
    them are known. Datasets with different types are refused before anything is copied.

    Args:
        paths: Paths as :func:`reshard` takes them. None may be given twice.
        out: ``dir/name@16``, or ``dir/name`` to have a number of shards chosen.
        num_shards: The number of shards, if ``out`` does not have it.
        shuffle_seed: Write all records in the order of a permutation of this seed.
        compression: Of the output; inputs may have any.
        deflate: As for :func:`reshard`.
        workers: As for :func:`reshard`.
        overwrite: As for :func:`reshard`.
        resume: As for :func:`reshard`.
        run: As for :func:`reshard`.
        progress: As for :func:`reshard`.
        notify: As for :func:`reshard`.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, a dataset is given twice, or the output exists.
        SchemaConflict: A feature has different types or class names in two datasets.
        DataError: A file is damaged; nothing is published.
        RunError: The run failed; nothing is published.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    output = parse_output(out, num_shards, compression)
    options = DatasetOptions(
        shuffle_seed=shuffle_seed, compression=output.compression, deflate=deflate
    )
    run_options = changed(run, workers=workers, overwrite=overwrite, resume=resume)
    with writing_progress(progress) as report:
        return write_dataset(
            lambda: open_merged([os.fspath(path) for path in paths]),
            output,
            options,
            run_options,
            report,
            Notices(notify),
        )
