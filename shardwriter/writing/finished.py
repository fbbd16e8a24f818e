"""A finished dataset: whether it is of the same job, and how items that failed are tried again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypedDict

from shardwriter.dataset.assignment import to_runs
from shardwriter.dataset.index import Index
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import DALI_INDEX_SUFFIX, ledger_file
from shardwriter.errors import ManifestError, OutputExists
from shardwriter.formats import json_shape
from shardwriter.formats.json_shape import Count
from shardwriter.schema.data_warnings import DataWarnings, from_manifest
from shardwriter.schema.labels import LabelCounts
from shardwriter.schema.record_stats import Learnt
from shardwriter.schema.schema import learnt_from_json
from shardwriter.sources.source import RecordSource
from shardwriter.writing.budget import ErrorBudget
from shardwriter.writing.job import Job
from shardwriter.writing.options import RunOptions
from shardwriter.writing.publication import begin
from shardwriter.writing.record_checks import check_now, check_stable, some_records
from shardwriter.writing.recovery import kept_of, without_errors
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.run_facts import run_facts
from shardwriter.writing.shapes import Retry
from shardwriter.writing.snapshot import Base
from shardwriter.writing.standing import StandingRecords

_CODE: Final = "an option that decides bytes, or code,"


def take_finished(
    job: Job,
    run: RunDirectory,
    manifest: Manifest,
    run_options: RunOptions,
    notify: Callable[[str], None],
) -> Kept | Manifest:
    """Find out what is still to be done of a finished dataset.

    Returns:
        The manifest where that is nothing; else where to begin.

    Raises:
        OutputExists: It is of another job.
        RunChanged: It has other records than the job gives now.
        TooManyErrors: More of its items gave an error than may.
    """
    check_stable(job)
    errors = read_ledger(run)
    is_changed = _check_job(job, run, manifest, run_options, has_errors=bool(errors))
    _check_files(run, manifest)
    retry = run_options.retry_errors
    if strange := [index for index in errors if index not in manifest.gaps]:
        raise ManifestError(
            f"it lists item {strange[0]:,}, which the manifest does not know to have failed",
            path=_ledger_path(run),
            hint="restore the list that came with the dataset, or delete it",
        )
    retries = retries_of(manifest)
    checks = {}
    if not (is_changed or retries):  # else records stand that other code has made
        num_records = {shard: sealed.num_records for shard, sealed in enumerate(manifest.shards)}
        checks = some_records(job, run, num_records, manifest.gaps, is_finished=True)
        if job.selection.random_access:
            check_now(job, checks)
    if not retry or not errors:
        if is_changed:
            notify("no item of it gave an error, so nothing is made with the changed map")
        ErrorBudget(run_options, Kept(job.num_shards, errors=errors)).check()
        if retry and manifest.gaps and not os.path.exists(_ledger_path(run)):
            notify(f"there is no {ledger_file(run.name)}, so no item is known to have failed")
        if run_options.dali_index and not has_dali(run, manifest):
            notify("`shardwriter index --idx` makes the .idx files of a dataset that is finished")
        return manifest
    if is_changed:
        retries.append({"items": to_runs(sorted(errors)), "job": manifest.job})
    # Before anything is changed: it refuses what the files do not account for.
    standing = StandingRecords(run.directory, manifest, errors)
    told = {"retries": retries} if retries else {}
    begin(run, {**run_facts(job), "standing_job": manifest.job, **told})
    shards = {index % job.num_shards for index in errors}
    notify(
        f"{len(errors):,} items are tried again; {len(shards):,} of {job.num_shards:,} shards are "
        "written again"
    )
    kept = replace(
        _try_again(job, run, manifest, errors),
        standing=standing,
        retries=retries,
    )
    return kept if job.selection.random_access else replace(kept, checks=checks)


def what_differs(job: Job, manifest: Manifest) -> str | None:
    """Name what a job has otherwise than the job of a manifest had; None where it is the same."""
    if manifest.job == job.digest():
        return None
    now = {
        "the number of shards, or the names of the files,": job.pattern.template,
        "the compression": job.packing.to_json(),
        "--order, --key, --split, --shuffle or --seed": job.order_json(),
        "the source": job.source_json(),
    }
    before = [manifest.pattern.template, manifest.compression, manifest.order, manifest.source]
    differs = [what for (what, new), old in zip(now.items(), before, strict=True) if new != old]
    return differs[0] if differs else _CODE


def retries_of(manifest: Manifest) -> list[Retry]:
    """Return what a manifest tells of items that other code has made again."""
    try:
        return list(json_shape.check(manifest.metadata.get("retries", []), list[Retry]))
    except ValueError:
        return []


def _check_job(
    job: Job,
    run: RunDirectory,
    manifest: Manifest,
    run_options: RunOptions,
    *,
    has_errors: bool,
) -> bool:
    """Refuse the dataset of another job; return whether it is accepted that its map was changed."""
    what = what_differs(job, manifest)
    if what is None:
        return False
    accept = "--retry-errors --accept-changed-map"
    can_accept = what == _CODE and job.options.map is not None
    if can_accept and run_options.accept_changed_map:
        if job.num_items in (None, manifest.num_items):
            return True
        raise OutputExists(
            f"a dataset {run.name!r} is there already, of {manifest.num_items:,} items, and there "
            f"are {job.num_items:,} now: more than the map was changed",
            path=os.path.join(run.directory, manifest.pattern.manifest_file),
            hint="give the options that it was written with; or --overwrite replaces it",
        )
    raise OutputExists(
        f"a dataset {run.name!r} is there already, and it is of another job: {what} is not what it "
        "was",
        path=os.path.join(run.directory, manifest.pattern.manifest_file),
        hint="--overwrite replaces it once the new one is whole"
        + ("; a source that was mended is another source" if what == "the source" else "")
        + (
            f"; where only the code of --map was changed, {accept} keeps its records and makes the "
            "items that gave an error"
            if can_accept and has_errors
            else ""
        ),
    )


def has_dali(run: RunDirectory, manifest: Manifest) -> bool:
    """Tell whether a finished dataset has .idx files."""
    path = os.path.join(run.directory, manifest.pattern.shard_file(0))
    return os.path.exists(path + DALI_INDEX_SUFFIX)


def _ledger_path(run: RunDirectory) -> str:
    return os.path.join(run.directory, ledger_file(run.name))


class _LedgerEntry(TypedDict):
    """A line of ``<name>.errors.jsonl``."""

    index: Count


def read_ledger(run: RunDirectory) -> dict[int, dict[str, Any]]:
    """Return the entries of a finished dataset's ledger, by item; none where it has no ledger.

    Raises:
        ManifestError: It is no ledger.
        StorageError: It can not be read.
    """
    path = _ledger_path(run)
    try:
        lines = (run.storage.read(path) or b"").decode("ascii").splitlines()
        entries = [json_shape.read(line, _LedgerEntry) for line in lines]
        return {entry["index"]: dict(entry) for entry in entries}
    except ValueError as error:
        raise ManifestError(
            f"not a list of errors that can be used: {error}",
            path=path,
            hint="restore the list that came with the dataset, or delete it",
        ) from None


def _try_again(
    job: Job, run: RunDirectory, manifest: Manifest, errors: Mapping[int, Mapping[str, Any]]
) -> Kept:
    """Have the items of a finished dataset made again that gave an error.

    Shards without any of them stay where they are.
    """
    num_shards = job.num_shards
    base = Base(
        0,
        sealed=dict(enumerate(manifest.shards)),
        in_place=True,
        dali_index=has_dali(run, manifest),
        gaps=to_runs(manifest.gaps),
        errors=errors,
        learnt=learnt_of(job, manifest).to_state(),
        num_items=manifest.num_items,
    )
    base = replace(without_errors(base, num_shards), attempt=1)
    index = Index(os.path.join(run.directory, manifest.pattern.index_file))
    for shard in base.sealed:
        path = run.index_path(shard)
        file = run.storage.create(path)
        file.write(index.rows(shard))
        run.storage.sync(path)
        file.close()
    run.write_base(base)
    return kept_of(base, num_shards)


def _check_files(run: RunDirectory, manifest: Manifest) -> None:
    """Hold what is there against the manifest: sizes, and the index."""
    files = {manifest.pattern.index_file: manifest.index.file_bytes}
    for shard, sealed in enumerate(manifest.shards):
        files[manifest.pattern.shard_file(shard)] = sealed.file_bytes
    for file_name, file_bytes in files.items():
        path = os.path.join(run.directory, file_name)
        found = run.storage.size(path)
        if found != file_bytes:
            raise ManifestError(
                f"it has {'no' if found is None else f'{found:,}'} bytes, and the manifest says "
                f"{file_bytes:,}",
                path=path,
                hint="--overwrite writes the dataset again",
            )


def learnt_of(job: Job, manifest: Manifest) -> Learnt:
    """Return what a manifest tells of the records that a job has made."""
    labels = job.record_encoder().labels
    warnings = DataWarnings(from_manifest(manifest.metadata))
    if isinstance(job.source, RecordSource) and job.options.map is None:
        return Learnt({}, labels, warnings)  # nothing looked into them
    features = manifest.features
    if manifest.labels is not None:
        name = manifest.labels["feature"]
        kind = features[name].type.kind if name in features else None
        labels = LabelCounts.from_json(manifest.labels, job.num_shards, kind)
    elif labels.feature in features and features[labels.feature].present:
        labels.too_many = True  # or they could not be told apart
    return Learnt(learnt_from_json(manifest.schema), labels, warnings)
