"""Copies of records: one dataset as another number of shards, or several as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import EllipsisType

from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import parse_output
from shardwriter.formats.compression import Compression
from shardwriter.formats.packing import Deflate
from shardwriter.sources.tfrecord import TFRecordFiles
from shardwriter.writing.engine import Progress
from shardwriter.writing.merged import open_merged
from shardwriter.writing.notices import Notices, Notify
from shardwriter.writing.options import DatasetOptions, RunOptions, changed
from shardwriter.writing.progress_bar import writing_progress
from shardwriter.writing.writing import write_dataset


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
    """Write the records of a dataset anew, byte for byte, as another number of shards.

    Record r in reading order becomes item r, so gaps are left behind. It is what
    ``write(path, out, format="tfrecord")`` makes, manifest included.

    Args:
        path: TFRecord files: a dataset's name, a folder, a file or a glob. Files without a manifest
            come one after the other.
        out: ``dir/name@7``, or ``dir/name`` to have a number of shards chosen.
        num_shards: That number, where ``out`` does not say it.
        shuffle_seed: Write in the order of a permutation of this seed; not of compressed files.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip where ``out`` ends in ``.gz``.
        deflate: ``isal-2``, or ``zlib-6`` for smaller shards that take many times as long.
        workers: Processes that read and write; see :func:`shardwriter.write`.
        overwrite: Replace a dataset of this name once the new one is whole.
        resume: Go on with a run that was stopped; begin where there is none.
        run: How else to carry it out; changes no byte.
        progress: True shows a bar; or a function that is told now and then how far it has come.
        notify: As for :func:`shardwriter.write`.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the output exists.
        DataError: A file is damaged: says which record, at which offset. Nothing is published.
        RunError: The work could not be done; nothing is published.
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

    Each comes in its reading order. Schemas are joined and label counts added where all of them are
    known. What can not go together is refused before anything is copied.

    Args:
        paths: Each one what :func:`reshard` takes. None may be there twice.
        out: ``dir/name@16``, or ``dir/name`` to have a number of shards chosen.
        num_shards: That number, where ``out`` does not say it.
        shuffle_seed: Mix all of them: the order of a permutation of this seed.
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
        UsageError: An option is wrong, a dataset is there twice, or the output exists.
        SchemaConflict: A feature has other types in one dataset than in another, or numbers that
            stand for other classes.
        DataError: A file is damaged; nothing is published.
        RunError: The work could not be done; nothing is published.
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
