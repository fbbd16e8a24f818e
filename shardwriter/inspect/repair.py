"""Repair: a dataset whose good records are all of a damaged one's, or all that it ever had.

::

    files, manifest and index looked at -> every shard proven, or its good records found
    without a source   good shards copied, damaged ones made of their good records,
                       what is lost listed
    with the source    good shards copied, the others made again and held against the manifest
    -> index -> commit -> final names, the manifest last

Nothing stands under a final name before all of it is whole.
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
from shardwriter.inspect.survey import Known, ShardSurvey, look, survey_shard
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
    """Bring back what can be brought back of a damaged dataset.

    Without a source every provably good record is copied, and what is lost is listed in
    ``<name>.lost.jsonl``. With the source that the dataset was written from, only the shards that
    are damaged or missing are made again, and the result is byte-identical to the undamaged one.

    Args:
        path: The dataset: ``out/train``, ``out/train@16``, its manifest, or its folder.
        out: The folder for the repaired one; its files have the same names. With a source it may be
            the dataset's own folder: then only what is damaged is replaced.
        source: What it was written from, as for :func:`shardwriter.write`; None for what is there.
        format: As it was written.
        map: As it was written.
        filter: As it was written.
        limit: As it was written.
        shuffle_seed: As it was written; left off, as the manifest says.
        order: Likewise.
        key: Likewise.
        order_seed: Likewise.
        label: As it was written.
        schema: As it was written.
        workers: Processes that make shards again; None for as many as there are cores.
        overwrite: Replace a dataset of this name in ``out`` once the new one is whole.
        dry_run: Say what would be done, and write nothing.
        trust_no_crc: Keep records whose CRC fields are zero, which nothing proves. Only of files
            without manifest and index: shards of ours have no such records.
        progress: True shows a bar of the reading, and then of the writing; or a function that is
            told now and then how far the writing is.
        reading: Called with (bytes read, bytes of all files), where ``progress`` shows no bar.
        notify: Called with hints.
        images: As it was written.
        table: As it was written.

    Returns:
        What was done, and what is lost.

    Raises:
        UsageError: An option is wrong, ``out`` holds such a dataset, or the source is another.
        DataError: There is nothing to repair with; nothing is published.
        RunError: The work could not be done; nothing is published, but that files of a set without
            a manifest get their names one by one.
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
        out: The folder of the repaired one.
        open_source: Opens what it was written from, or a split of it; None to repair from what is
            there.
        options: What decides the bytes, as it was written.
        run_options: What does not.
        dry_run: Write nothing.
        trust_no_crc: Keep records whose CRC fields are zero.
        progress: Told now and then how far the making is.
        reading: Told of (bytes read, bytes of all files).
        notices: Says what a person should know.
    """
    notices = notices or Notices()
    run_options = repair_shards.run_options_of(run_options)
    known = look(path)
    in_place = _check_out(out, known, has_source=open_source is not None)
    if open_source is None:
        return _from_what_is_there(
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
            "shards that are made again have no records whose CRC fields are zero",
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
            known = look(path)  # it can have been replaced before it was claimed
        job = repair_shards.job_of(known, out, options, open_source, notices.note)
        surveys = _survey(known, reading, deep=False)
        repair_shards.remake(
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


def _from_what_is_there(
    known: Known,
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
            repair_shards.check_free(run, known)
        surveys = _survey(known, reading, trust_no_crc=trust_no_crc)
        _must_hold_records(known, surveys)
        report = repair_shards.report_without_source(known, surveys, out)
        begin_run(run, {"repair": True, **machine_facts()})
        repair_shards.fill(known, surveys, run, report, trust_no_crc=trust_no_crc)
    return report


def _must_hold_records(known: Known, surveys: Sequence[ShardSurvey]) -> None:
    """Refuse a file by itself that does not begin as a TFRecord and holds no record.

    Raises:
        SourceError: It is something else.
    """
    kinds = {defect.kind for survey in surveys for defect in survey.defects}
    if known.pattern is not None or any(s.num_records for s in surveys) or kinds != {"length-crc"}:
        return
    raise SourceError(
        "nothing in this file is a TFRecord, so there is nothing to repair",
        path=known.path(0),
        hint="give a damaged dataset; `shardwriter write` makes shards of other data",
    )


def _check_out(out: str, known: Known, *, has_source: bool) -> bool:
    """Refuse an output that can not be; return whether it is where the damaged dataset lies."""
    if is_url(out):
        raise OptionError(
            f"{out!r} is a URL, and a repair writes to a local folder",
            hint="repair into a local folder, and copy it: the manifest last",
        )
    if "@" in os.path.basename(out) or os.path.isfile(out):
        raise OptionError(
            f"{out!r} is no folder",
            hint="OUT is the folder of the repaired dataset; its files keep their names",
        )
    in_place = os.path.realpath(out) == os.path.realpath(known.directory)
    if in_place and not has_source:
        raise OptionError(
            f"OUT is the folder of the damaged dataset {known.name!r}, which is not replaced by "
            "what is left of it",
            path=out,
            hint="choose another folder; or give --source, which brings all of it back",
        )
    return in_place


@contextmanager
def _claimed(
    known: Known, out: str, run_options: RunOptions, *, in_place: bool
) -> Iterator[RunDirectory]:
    """Hold the run directory in OUT; what is begun and not committed is deleted after an error."""
    with RunDirectory.claim(out, known.name, LocalStorage()) as run:
        if in_place:
            _check_in_place(run, run_options)
        else:
            check_output(run, overwrite=run_options.overwrite, pattern=known.pattern)
        try:
            yield run
        except BaseException:  # Ctrl-C and SIGTERM are tidied up too
            with suppress(StorageError):  # it would hide what has happened
                if not is_committed(run):
                    run.discard()
            raise


def _check_in_place(run: RunDirectory, run_options: RunOptions) -> None:
    """Finish what was committed, and refuse to discard an unfinished run that can be gone on with.

    Raises:
        OutputExists: There is one.
    """
    finish_committed(run, overwrite=run_options.overwrite)
    if run.is_resumable and not run_options.overwrite:
        raise OutputExists(
            f"an unfinished run of {run.name!r} is there",
            path=run.path,
            hint="`shardwriter write --resume` goes on with it; --overwrite discards it",
        )


def _survey(
    known: Known,
    reading: Reading | None,
    *,
    deep: bool = True,
    trust_no_crc: bool = False,
) -> list[ShardSurvey]:
    total_bytes = sum(os.path.getsize(path) for path in known.files.values())
    done_bytes = 0

    def tell(num_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes = min(done_bytes + num_bytes, total_bytes)
        if reading is not None:
            reading(done_bytes, total_bytes)

    return [
        survey_shard(known, shard, deep=deep, trust_no_crc=trust_no_crc, progress=tell)
        for shard in known.shards
    ]


def _ignore(_line: str) -> None:
    return
