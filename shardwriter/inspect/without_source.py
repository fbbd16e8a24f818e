"""Repair without the source: good shards are copied, damaged ones made of their good records.

Where it is known which item each record is, the result is a dataset like any other: what is lost
are gaps, so every other record stays where it was. Its job is another, since it is another dataset.
Where that is not known records keep their order in each file, and no manifest is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from shardwriter.dataset.assignment import GapRuns, Gaps, law_breach, to_runs
from shardwriter.dataset.index import dali_index
from shardwriter.dataset.manifest import Manifest, SealedShard
from shardwriter.dataset.naming import DALI_INDEX_SUFFIX, ledger_file, lost_file
from shardwriter.errors import LawViolation, OutputExists, StorageError
from shardwriter.formats import canonical
from shardwriter.formats.packing import Packing
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.inspect.copying import copy_shard, rewrite_shard
from shardwriter.inspect.known import Known
from shardwriter.inspect.recount import recount
from shardwriter.inspect.repair_report import Action, Lost, RepairReport, lost_of, result_of
from shardwriter.inspect.survey import ShardSurvey
from shardwriter.writing.publication import check_names, publish, write_index
from shardwriter.writing.run_directory import RunDirectory


def report_of(
    known: Known, surveys: Sequence[ShardSurvey], out: str, *, is_dry_run: bool = False
) -> RepairReport:
    """Say what a repair without the source does."""
    lost: list[Lost] = []
    results = []
    notes = list(known.notes)
    for found in surveys:
        of_shard = lost_of(known, found)
        action: Action = "copied" if found.is_good else "rewritten"
        if found.state == "missing" and not known.is_lawful:
            action = "left-out"
        results.append(result_of(known, found, action, of_shard))
        lost += of_shard
    unplaced = sum(result.num_unplaced for result in results)
    if unplaced:
        notes.append(
            f"good records behind losses that can not be counted: {unplaced:,}. Nobody knows which "
            "items they are, so they are left out. The index would tell; so would --source"
        )
    guessed = [
        str(found.shard)
        for found in surveys
        if known.is_lawful and known.rows(found.shard) is None and _is_short(found)
    ]
    if guessed:
        notes.append(
            f"too few records and no fault in shards {', '.join(guessed[:5])}, and there is no "
            "index that can be used: the last records are taken to be those that are missing"
        )
    if not known.is_lawful and lost:
        notes.append(
            "there is no manifest or index that can be used, so records keep their order in each "
            "file, and none is made"
        )
    return RepairReport(
        os.path.join(known.directory, known.name),
        out,
        known.name,
        known.num_items,
        results,
        lost,
        known.is_lawful,
        is_dry_run,
        notes,
    )


def _is_short(found: ShardSurvey) -> bool:
    return not found.defects and 0 < found.num_records < (found.num_expected or 0)


def check_free(run: RunDirectory, known: Known) -> None:
    """Refuse to replace files of the names that the repaired ones will have.

    Raises:
        OutputExists: One is there.
    """
    names = [known.file_name(shard) for shard in known.shards]
    taken = set(run.storage.list(run.directory)).intersection(names)
    if taken:
        raise OutputExists(
            f"{min(taken)!r} is there already",
            path=run.directory,
            hint="--overwrite replaces it once all is written; or choose another folder",
        )


def fill(
    known: Known,
    surveys: Sequence[ShardSurvey],
    run: RunDirectory,
    report: RepairReport,
    *,
    trust_no_crc: bool = False,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Make the repaired dataset in the run directory, and publish it.

    Args:
        known: The dataset.
        surveys: What was found of each shard.
        run: The claimed run directory, empty.
        report: What is lost.
        trust_no_crc: As the shards were surveyed.
        progress: Told of bytes that were read.
    """
    packing = _packing(known, surveys)
    sealed: dict[int, SealedShard] = {}
    for found in surveys:
        if found.is_good:
            sealed[found.shard] = copy_shard(known, found, run)
        elif known.is_lawful or found.state != "missing":
            sealed[found.shard] = rewrite_shard(
                known,
                found,
                run,
                packing if known.is_lawful else _packing(known, [found]),
                trust_no_crc=trust_no_crc,
                keep_unplaced=not known.is_lawful,
            )
        if progress is not None:
            progress(found.file_bytes)
    if known.is_lawful:
        shards = [sealed[shard] for shard in known.shards]
        _publish(known, shards, run, report, packing)
    else:
        _publish_files(known, sealed, run, report)


def _packing(known: Known, surveys: Sequence[ShardSurvey]) -> Packing:
    """Return how shards were compressed, as far as that is known."""
    if known.manifest is not None:
        told = known.manifest.compression
        if told["type"] == "none":
            return Packing()
        usual = Packing.of(told["type"], told.get("deflate", "isal-2"), known.num_shards)
        member_bytes = told.get("member_bytes", usual.member_bytes)
        return Packing(usual.compression, usual.deflate, member_bytes)
    compression = known.compression or surveys[0].compression
    return Packing.of(compression, "isal-2", known.num_shards)


def _publish(
    known: Known,
    shards: list[SealedShard],
    run: RunDirectory,
    report: RepairReport,
    packing: Packing,
) -> None:
    assert known.pattern is not None
    assert known.num_items is not None
    lost = [entry.item for entry in report.lost if entry.item is not None]
    gaps = sorted({*known.gaps, *lost})
    breach = law_breach([shard.num_records for shard in shards], known.num_items, gaps)
    if breach is not None:
        shard, expected, count = breach
        raise LawViolation(
            f"shard {shard} got {count:,} records, and {expected:,} were found in it",
            path=known.directory,
        )
    index = write_index(
        run,
        known.pattern,
        shards,
        gaps,
        compression=packing.compression,
        dali=known.has_dali_index and packing.is_plain,
    )
    told = known.manifest
    if told is not None and (shards, gaps, index) == (
        list(told.shards),
        list(told.gaps),
        told.index,
    ):
        manifest = told  # nothing is lost, byte for byte
    elif told is not None:
        schema, labels = recount(
            told,
            {entry.shard for entry in report.lost},
            sum(shard.num_records for shard in shards),
            partial(_records, run, gaps, known.num_shards),
        )
        manifest = Manifest(
            known.pattern,
            told.num_items,
            shards,
            gaps,
            told.compression,
            index,
            _job(told.job, lost),
            told.source,
            told.order,
            schema,
            labels,
            told.metadata,
            {**told.extra, "repaired": _repaired(told, lost)},
        )
    else:
        content = canonical.digest([shard.crc32c for shard in shards])
        manifest = Manifest(
            known.pattern,
            known.num_items,
            shards,
            gaps,
            {"type": packing.compression},
            index,
            _job(content, lost),
            {"digest": content, "kind": "repair"},
            {},
            {"features": {}},
            extra={"repaired": _repaired(None, lost)},
        )
    errors = run.storage.read(os.path.join(known.directory, ledger_file(known.name))) or b""
    publish(run, manifest, errors, report.ledger_lines())


def _records(
    run: RunDirectory, gaps: list[int], num_shards: int, shard: int
) -> Iterator[tuple[int, bytes]]:
    known = Gaps(gaps, num_shards)
    for place, payload in enumerate(read_records(run.shard_path(shard))):
        yield known.item_index(shard, place), payload


def _job(job: str, lost: list[int]) -> str:
    """Return the job of what is left: never that of the whole dataset."""
    return canonical.digest({"repaired": job, "without": to_runs(sorted(lost))})


def _repaired(told: Manifest | None, lost: list[int]) -> dict[str, Any]:
    """Return what the manifest says of the repair: of which job it was, and which items are lost.

    A dataset that is repaired twice is still what is left of the first one.
    """
    before = {} if told is None else told.extra.get("repaired", {})
    # What is lost was a gap then, so there are no more of them.
    earlier = () if told is None else GapRuns(before.get("lost", []), 8 * len(told.gaps))
    job = before.get("job", None if told is None else told.job)
    return {"job": job, "lost": to_runs(sorted({*earlier, *lost}))}


def _publish_files(
    known: Known, sealed: dict[int, SealedShard], run: RunDirectory, report: RepairReport
) -> None:
    """Give files that no manifest speaks of their final names, once all of them are written."""
    storage = run.storage
    if known.pattern is not None:
        check_names(run, known.pattern)
    storage.sync_directory(run.path)
    lost = os.path.join(run.directory, lost_file(known.name))
    of_older = [lost]
    if known.pattern is not None:  # what spoke of the files that are replaced
        of_older += [
            os.path.join(run.directory, file_name)
            for file_name in (known.pattern.manifest_file, known.pattern.index_file)
        ]
    for path in of_older:
        storage.delete(path)
    storage.sync_directory(run.directory)
    for shard, entry in sealed.items():
        target = os.path.join(run.directory, known.file_name(shard))
        if storage.is_directory(target):
            raise StorageError("a folder of this name is in the way", path=target)
        storage.delete(target + DALI_INDEX_SUFFIX)
        if entry.file_crc32c is None and known.has_dali_index_of(shard):
            run.write_synced("idx", dali_index(run.index_columns(shard, "none")[0]))
            storage.publish(run.file("idx"), target + DALI_INDEX_SUFFIX)
        storage.publish(run.shard_path(shard), target)
    if report.lost:
        run.write_synced("lost", report.ledger_lines())
        storage.publish(run.file("lost"), lost)
    storage.sync_directory(run.directory)
    run.discard()
