"""Repair of a damaged dataset: copy what is verified, write again what a source can provide.

::

    files, manifest, index -> survey: verify every shard, or find its good records
    without a source   copy good shards, rewrite damaged ones from their good records,
                       list what is lost
    with the source    copy good shards, write the others again, compare them with the manifest
    -> index -> commit -> final names, the manifest last

No file gets its final name before all files are complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from shardwriter.dataset import Split, check_value, is_url
from shardwriter.errors import OptionError, OutputExists, SourceError, StorageError
from shardwriter.inspect import repair_shards
from shardwriter.inspect.repair_report import RepairReport
from shardwriter.inspect.survey import DamagedDataset, ShardSurvey, find_damaged, survey_shard
from shardwriter.schema import SchemaLike, declare
from shardwriter.sources import Source, TableOptions, open_as_split
from shardwriter.storage import LocalStorage
from shardwriter.writing import (
    DatasetOptions,
    ImageOptions,
    Notices,
    Notify,
    Order,
    Progress,
    Reading,
    RunDirectory,
    RunOptions,
    begin_run,
    check_output,
    finish_committed,
    is_committed,
    machine_facts,
    open_engine,
    repairing_progress,
)


def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    source: Any = None,
    *,
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
    workers: int | None = 1,
    overwrite: bool = False,
    dry_run: bool = False,
    trust_no_crc: bool = False,
    progress: Progress | bool | None = None,
    reading: Reading | None = None,
    notify: Notify | None = None,
    images: ImageOptions | None = None,
    table: TableOptions | None = None,
) -> RepairReport:
    """Repair a damaged dataset.

    Without a source every good record is copied, and lost records are listed in
    ``<name>.lost.jsonl``. With the source that the dataset was written from, the damaged and
    missing shards are written again, and the result is byte-identical to the undamaged dataset.

    Args:
        path: The dataset: ``out/train``, ``out/train@16``, its manifest, or its folder.
        out: The folder of the repaired dataset; its files have the same names. With a source it may
            be the dataset's own folder: then only damaged files are replaced.
        source: The source of the dataset, as for :func:`shardwriter.write`; None to repair from the
            shards alone.
        format: As in the original write.
        map: As in the original write.
        filter: As in the original write.
        limit: As in the original write.
        shuffle_seed: As in the original write; by default that of the manifest.
        order: As in the original write; by default that of the manifest.
        key: As in the original write; by default that of the manifest.
        order_seed: As in the original write; by default that of the manifest.
        label: As in the original write.
        schema: As in the original write.
        workers: Processes that write shards; None for one per core.
        overwrite: Replace a dataset of this name in ``out`` after the new one is complete.
        dry_run: Return the report, and write nothing.
        trust_no_crc: Also copy records whose CRC fields are zero, which can not be verified. Only
            without manifest and index: shards written by shardwriter have no such records.
        progress: True shows a bar of reading and then of writing; or a function that is called now
            and then with the progress of writing.
        reading: Called with (bytes read, bytes of all files), unless ``progress`` shows a bar.
        notify: Called with notes for people.
        images: As in the original write.
        table: As in the original write.

    Returns:
        What was done, and what is lost.

    Raises:
        UsageError: An option is wrong, ``out`` holds such a dataset, or the source differs.
        DataError: There is nothing to repair with; nothing is published.
        RunError: The repair failed; nothing is published, except that files of a set without a
            manifest get their final names one by one.
    """
    check_value("dry_run", dry_run, bool)
    check_value("trust_no_crc", trust_no_crc, bool)
    declared = declare(schema)
    options = DatasetOptions(
        map,
        filter,
        limit,
        shuffle_seed,
        label,
        declared.types,
        order=order,
        key=key,
        order_seed=order_seed,
        vocabularies=declared.vocabularies,
        images=images,
        table=table,
    )

    def open_source(split: Split | None) -> Source:
        return open_as_split(source, format, options.schema, split, table)

    with repairing_progress(progress, reading) as (report_reading, report):
        return repair_dataset(
            os.fspath(path),
            os.fspath(out),
            None if source is None else open_source,
            options,
            RunOptions(workers=workers, overwrite=overwrite),
            dry_run=dry_run,
            trust_no_crc=trust_no_crc,
            progress=report,
            reading=report_reading,
            notices=Notices(notify),
        )


def repair_dataset(
    path: str,
    out: str,
    open_source: Callable[[Split | None], Source] | None,
    options: DatasetOptions,
    run_options: RunOptions,
    *,
    dry_run: bool = False,
    trust_no_crc: bool = False,
    progress: Progress | None = None,
    reading: Reading | None = None,
    notices: Notices | None = None,
) -> RepairReport:
    """Repair a dataset; see :func:`repair`.

    Args:
        path: The dataset.
        out: The folder of the repaired dataset.
        open_source: Opens the source, or a split of it; None to repair from the shards alone.
        options: Options that change bytes, as in the original write.
        run_options: Options that do not.
        dry_run: Write nothing.
        trust_no_crc: Also copy records whose CRC fields are zero.
        progress: Called now and then with the progress of writing.
        reading: Called with (bytes read, bytes of all files).
        notices: Reports notes to people.
    """
    notices = notices or Notices()
    run_options = repair_shards.run_options_of(run_options)
    known = find_damaged(path)
    in_place = _check_out(out, known, has_source=open_source is not None)
    if open_source is None:
        return _repair_without_source(
            known,
            out,
            run_options,
            dry_run=dry_run,
            trust_no_crc=trust_no_crc,
            reading=reading,
        )
    repair_shards.required_manifest(known)
    if trust_no_crc:
        raise OptionError(
            "--trust-no-crc is not for a repair with --source: no record is taken from the shards",
            hint="leave --trust-no-crc off",
        )
    if dry_run:
        repair_shards.job_of(known, out, options, open_source, notices.note)
        surveys = _survey(known, reading, deep=False)
        return repair_shards.report_with_source(
            known, surveys, out, in_place=in_place, is_dry_run=True
        )
    with (
        _claimed(known, out, run_options, in_place=in_place) as run,
        open_engine(run_options, known.num_shards) as engine,
    ):
        if in_place:
            known = find_damaged(path)  # it may have been replaced before the claim
        job = repair_shards.job_of(known, out, options, open_source, notices.note)
        surveys = _survey(known, reading, deep=False)
        repair_shards.repair_from_source(
            known,
            surveys,
            run,
            job,
            engine,
            in_place=in_place,
            progress=progress,
            notify=notices.info,
        )
        return repair_shards.report_with_source(known, surveys, out, in_place=in_place)


def _repair_without_source(
    known: DamagedDataset,
    out: str,
    run_options: RunOptions,
    *,
    dry_run: bool,
    trust_no_crc: bool,
    reading: Reading | None,
) -> RepairReport:
    if dry_run:
        surveys = _survey(known, reading, trust_no_crc=trust_no_crc)
        _must_hold_records(known, surveys)
        return repair_shards.report_without_source(known, surveys, out, is_dry_run=True)
    with _claimed(known, out, run_options, in_place=False) as run:
        if not run_options.overwrite:
            repair_shards.check_names_free(run, known)
        surveys = _survey(known, reading, trust_no_crc=trust_no_crc)
        _must_hold_records(known, surveys)
        report = repair_shards.report_without_source(known, surveys, out)
        begin_run(run, {"repair": True, **machine_facts()})
        repair_shards.repair_from_records(known, surveys, run, report, trust_no_crc=trust_no_crc)
    return report


def _must_hold_records(known: DamagedDataset, surveys: Sequence[ShardSurvey]) -> None:
    """Raise `SourceError` for a single file that is not a TFRecord file."""
    kinds = {defect.kind for survey in surveys for defect in survey.defects}
    if known.pattern is not None or any(s.num_records for s in surveys) or kinds != {"length-crc"}:
        return
    raise SourceError(
        "nothing in this file is a TFRecord, so there is nothing to repair",
        path=known.path(0),
        hint="give a damaged dataset; `shardwriter write` makes shards of other data",
    )


def _check_out(out: str, known: DamagedDataset, *, has_source: bool) -> bool:
    """Return whether OUT is the folder of the damaged dataset.

    Raises:
        OptionError: OUT is not a local folder, or it is that folder and there is no source.
    """
    if is_url(out):
        raise OptionError(
            f"{out!r} is a URL, and a repair writes to a local folder",
            hint="repair into a local folder, and copy it: the manifest last",
        )
    if "@" in os.path.basename(out) or os.path.isfile(out):
        raise OptionError(
            f"{out!r} is not a folder",
            hint="OUT is the folder of the repaired dataset; its files keep their names",
        )
    in_place = os.path.realpath(out) == os.path.realpath(known.directory)
    if in_place and not has_source:
        raise OptionError(
            f"OUT is the folder of the damaged dataset {known.name!r}; without --source the "
            "repaired dataset goes to another folder",
            path=out,
            hint="choose another folder; or give --source, which restores all records",
        )
    return in_place


@contextmanager
def _claimed(
    known: DamagedDataset, out: str, run_options: RunOptions, *, in_place: bool
) -> Iterator[RunDirectory]:
    """Claim the run directory in OUT for a block; after an error, delete it unless committed."""
    with RunDirectory.claim(out, known.name, LocalStorage()) as run:
        if in_place:
            _check_in_place(run, run_options)
        else:
            check_output(run, overwrite=run_options.overwrite, pattern=known.pattern)
        try:
            yield run
        except BaseException:  # also Ctrl-C and SIGTERM
            with suppress(StorageError):  # it would hide the first error
                if not is_committed(run):
                    run.discard()
            raise


def _check_in_place(run: RunDirectory, run_options: RunOptions) -> None:
    """Publish a run that was committed.

    Raises:
        OutputExists: There is an unfinished run that can be resumed.
    """
    finish_committed(run, overwrite=run_options.overwrite)
    if run.is_resumable and not run_options.overwrite:
        raise OutputExists(
            f"an unfinished run of {run.name!r} is there",
            path=run.path,
            hint="`shardwriter write --resume` continues it; --overwrite discards it",
        )


def _survey(
    known: DamagedDataset,
    reading: Reading | None,
    *,
    deep: bool = True,
    trust_no_crc: bool = False,
) -> list[ShardSurvey]:
    total_bytes = sum(os.path.getsize(path) for path in known.files.values())
    done_bytes = 0

    def add_progress(num_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes = min(done_bytes + num_bytes, total_bytes)
        if reading is not None:
            reading(done_bytes, total_bytes)

    return [
        survey_shard(known, shard, deep=deep, trust_no_crc=trust_no_crc, progress=add_progress)
        for shard in known.shards
    ]
