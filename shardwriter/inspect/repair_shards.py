"""The two repairs, on shards that were surveyed: without a source, and with it.

Without a source, good shards are copied and damaged ones are rewritten from their good records. If
the items of records are known, lost items become gaps, so all other records keep their shards and
order; the repaired dataset has a job of its own. If they are unknown, records keep their order in
each file and there is no manifest.

With the source, its job must be that of the manifest. Only damaged and missing shards are written
again, and compared with the manifest before anything is published. The result is byte-identical to
the undamaged dataset.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from contextlib2 import ExitStack

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    GapRuns,
    Gaps,
    Manifest,
    Output,
    SealedShard,
    Split,
    assignment_error,
    dali_index,
    error_log_file,
    lost_items_file,
    tfds_split_of,
    to_runs,
)
from shardwriter.errors import (
    AssignmentError,
    ManifestError,
    OptionError,
    OutputExists,
    RunChanged,
    StorageError,
    WireError,
)
from shardwriter.formats import (
    Defect,
    Packing,
    Values,
    by_key,
    canonical,
    context_part,
    decode_example,
    decode_sequence_example,
    extend_crc32c,
    list_part,
    read_records,
)
from shardwriter.inspect.repair_report import Action, Lost, RepairReport, lost_of, result_of
from shardwriter.inspect.survey import DamagedDataset, Salvage, ShardSurvey
from shardwriter.schema import FeatureType, LabelCounts
from shardwriter.sources import Source
from shardwriter.storage import storage_errors
from shardwriter.writing import (
    DatasetOptions,
    Engine,
    Job,
    Notify,
    OpenShards,
    Progress,
    ResumeState,
    RunDirectory,
    RunOptions,
    Selection,
    begin_run,
    check_names,
    check_resumable,
    check_source,
    find_job_change,
    key_costs,
    key_notes,
    machine_facts,
    publish,
    shard_rows,
    write_index,
)

# -- shards of the run directory -------------------------------------------------------------------

_FICLONE: Final = 0x40049409  # of linux/fs.h: both files share blocks until one is changed
_COPY_BYTES: Final = 1 << 27
_READ_BYTES: Final = 1 << 20


def copy_file(source: str, target: str, num_bytes: int) -> int:
    """Copy the first bytes of a file durably, and return the CRC-32C of the copy.

    Args:
        source: The file.
        target: The new file.
        num_bytes: Number of bytes.

    Raises:
        StorageError: A file can not be read or written, or the source has fewer bytes.
    """
    with (
        storage_errors(source),
        open(source, "rb", buffering=0) as old,
        storage_errors(target),
        open(target, "w+b", buffering=0) as new,
    ):
        _copy(old.fileno(), new.fileno(), num_bytes)
        os.fsync(new.fileno())
        crc = size = 0
        new.seek(0)
        while data := new.read(_READ_BYTES):
            crc = extend_crc32c(crc, data)
            size += len(data)
    if size != num_bytes:
        raise StorageError(f"it has {size:,} bytes, expected {num_bytes:,}", path=source)
    return crc


def _copy(old: int, new: int, num_bytes: int) -> None:
    try:
        fcntl.ioctl(new, _FICLONE, old)
        os.ftruncate(new, num_bytes)
        return
    except OSError:
        pass  # not supported by most file systems, or across them
    done = 0
    try:
        while done < num_bytes:
            count = os.copy_file_range(old, new, min(_COPY_BYTES, num_bytes - done), done, done)
            if not count:
                break
            done += count
    except (OSError, AttributeError):
        pass  # continue with pread and pwrite
    while done < num_bytes:
        data = os.pread(old, min(_READ_BYTES, num_bytes - done), done)
        if not data:
            return
        done += os.pwrite(new, data, done)


def copy_shard(known: DamagedDataset, found: ShardSurvey, run: RunDirectory) -> SealedShard:
    """Copy a good shard and its index rows into the run directory, and return its entry.

    Raises:
        StorageError: The shard has changed since the survey.
    """
    path = known.path(found.shard)
    target = run.shard_path(found.shard)
    crc = copy_file(path, target, found.file_bytes)
    if crc != found.file_crc32c:
        raise StorageError(
            "it was changed while it was copied",
            path=path,
            hint="repair it again when no other program writes it",
        )
    if known.items_known or known.has_dali_index_of(found.shard):
        write_rows(known, found, run, target)
    if known.manifest is not None:
        return known.manifest.shards[found.shard]
    is_plain = found.compression == "none"
    return SealedShard(
        found.num_records,
        found.payload_bytes,
        found.file_bytes,
        found.crc32c,
        None if is_plain else crc,
    )


def write_rows(known: DamagedDataset, found: ShardSurvey, run: RunDirectory, path: str) -> None:
    """Write the index rows of a shard to the run directory: those of the index, or from the file.

    Args:
        known: The dataset.
        found: The survey of the shard.
        run: The run directory.
        path: The shard's file.
    """
    rows = known.rows(found.shard)
    if rows is None:
        rows = shard_rows(path, found.compression)
    index_path = run.index_path(found.shard)
    file = run.storage.create(index_path)
    file.write(np.ascontiguousarray(rows.T).astype("<u8").tobytes())
    run.storage.sync(index_path)
    file.close()


def rewrite_shard(
    known: DamagedDataset,
    found: ShardSurvey,
    run: RunDirectory,
    packing: Packing,
    *,
    trust_no_crc: bool = False,
    keep_unplaced: bool = False,
) -> SealedShard:
    """Write a shard from the good records of a damaged one, and return its entry.

    Args:
        known: The dataset.
        found: The survey of the shard.
        run: The run directory.
        packing: The compression of the new shard.
        trust_no_crc: As in the survey.
        keep_unplaced: Whether records with unknown positions are written, too.

    Raises:
        StorageError: The shard has changed since the survey.
    """
    with ExitStack() as stack:
        open_shards = OpenShards(stack, run, [found.shard], packing)
        write = open_shards.files[found.shard].write
        for position, payload in _good_records(known, found, trust_no_crc=trust_no_crc):
            if position >= 0 or keep_unplaced:
                write(payload)
        sealed = open_shards.seal()
        open_shards.files.clear()
    return sealed[found.shard]


def _good_records(
    known: DamagedDataset, found: ShardSurvey, *, trust_no_crc: bool
) -> Iterable[tuple[int, bytes]]:
    if found.state != "damaged" or found.positions is None:
        return
    path = known.path(found.shard)
    salvage = Salvage(
        path,
        known.compression,
        known.rows(found.shard),
        trust_no_crc=trust_no_crc and not known.items_known,
    )
    count = 0
    for record in salvage.records(_ignore):
        if count == len(found.positions):
            count += 1
            break
        yield int(found.positions[count]), record.payload
        count += 1
    if count != len(found.positions):
        raise StorageError(
            "it was changed while it was read",
            path=path,
            hint="repair it again when no other program writes it",
        )


def _ignore(_defect: Defect) -> None:
    return


# -- schema and labels of the remaining records ----------------------------------------------------

Records = Callable[[int], Iterator[tuple[int, bytes]]]
"""Returns item index and payload of each record of a repaired shard."""


def recount(
    manifest: Manifest, changed: Collection[int], num_records: int, records: Records
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the manifest's ``schema`` and ``labels`` for the remaining records.

    Records are only read if counts depend on them: labels of the changed shards, or all records if
    a feature is absent from some.

    Args:
        manifest: The manifest of the undamaged dataset.
        changed: The shards that have lost records.
        num_records: Number of remaining records.
        records: Reads the records of a shard.
    """
    is_sequences = "feature_lists" in manifest.schema
    entries = dict(manifest.schema.get("features", {}))
    if is_sequences:
        entries = by_key(entries, manifest.schema["feature_lists"])
    features = {name: dict(entry) for name, entry in entries.items()}
    partly = {
        name
        for name, entry in features.items()
        if entry["unset"] or entry["present"] not in (0, manifest.num_records)
    }
    for name, entry in features.items():
        if name in partly:
            entry["present"] = entry["unset"] = 0
        elif entry["present"]:
            entry["present"] = num_records
    labels = _Labels(manifest, changed) if manifest.labels is not None else None
    everything = range(manifest.num_shards)
    for shard in everything if partly or (labels and labels.needs_all) else sorted(changed):
        is_counted = labels is not None and (labels.needs_all or shard in changed)
        if not is_counted and not partly:
            continue
        for item_index, payload in records(shard):
            try:
                if is_sequences:
                    values, lists = decode_sequence_example(payload)
                    found = by_key(values, {n: _first(steps) for n, steps in lists.items()})
                else:
                    found = values = decode_example(payload)
            except WireError:
                continue  # a record of another kind, which is not counted
            for name in partly & found.keys():
                features[name]["present"] += 1
                features[name]["unset"] += found[name] is None
            if labels is not None and is_counted:
                labels.add(item_index, values)
    schema: dict[str, Any] = {**manifest.schema, "features": features}
    if is_sequences:
        schema.update(feature_lists=list_part(features), features=context_part(features))
    return schema, None if labels is None else labels.to_json()


def _first(steps: Sequence[Values | None]) -> Values | None:
    """Return the values of the first step that has any; None if none has."""
    return next((values for values in steps if values is not None), None)


class _Labels:
    """Label counts of a manifest, with those of the changed shards counted again."""

    def __init__(self, manifest: Manifest, changed: Collection[int]) -> None:
        assert manifest.labels is not None
        old = manifest.labels
        self._feature = old["feature"]
        features = manifest.features
        kind = features[self._feature].type.kind if self._feature in features else None
        self.needs_all = old.get("shards") is None
        if self.needs_all:
            self._counts = LabelCounts(self._feature, manifest.num_shards)
        else:
            rows = {
                label: [0 if shard in changed else n for shard, n in enumerate(row)]
                for label, row in old["shards"].items()
            }
            rows = {label: row for label, row in rows.items() if any(row)}
            counts = {label: sum(row) for label, row in rows.items()}
            unchanged = {"counts": counts, "feature": self._feature, "shards": rows}
            self._counts = LabelCounts.from_json(unchanged, manifest.num_shards, kind)
        # The manifest's labels have float64 digits, records have float32.
        self._floats: dict[float, float] = {}
        if kind == "float":
            numbers = [float(label) for label in old["counts"] if label != "nan"]
            self._floats = {float(np.float32(number)): number for number in numbers}

    def add(self, item_index: int, values: Mapping[str, Any]) -> None:
        value = values.get(self._feature)
        if value is None:
            return
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if self._floats:
            value = [n if math.isnan(n) else self._floats.get(n, n) for n in value]
        self._counts.add(item_index, value)

    def to_json(self) -> dict[str, Any] | None:
        return self._counts.to_json()


# -- repair without the source ---------------------------------------------------------------------


def report_without_source(
    known: DamagedDataset, surveys: Sequence[ShardSurvey], out: str, *, is_dry_run: bool = False
) -> RepairReport:
    """Return the report of a repair without the source."""
    lost: list[Lost] = []
    results = []
    notes = list(known.notes)
    for found in surveys:
        of_shard = lost_of(known, found)
        action: Action = "copied" if found.is_good else "rewritten"
        if found.state == "missing" and not known.items_known:
            action = "left-out"
        results.append(result_of(known, found, action, of_shard))
        lost += of_shard
    unplaced = sum(result.num_unplaced for result in results)
    if unplaced:
        notes.append(
            f"{unplaced:,} good records are left out: they are behind losses that can not be "
            "counted, so their items are unknown. An index or --source would recover them"
        )
    guessed = [
        str(found.shard)
        for found in surveys
        if known.items_known and known.rows(found.shard) is None and _is_short(found)
    ]
    if guessed:
        notes.append(
            f"shards {', '.join(guessed[:5])} have too few records but no defect, and there is no "
            "usable index: the missing records are assumed to be the last ones"
        )
    if not known.items_known and lost:
        notes.append(
            "there is no usable manifest or index, so records keep their order in each file, and "
            "no manifest is written"
        )
    return RepairReport(
        os.path.join(known.directory, known.name),
        out,
        known.name,
        known.num_items,
        results,
        lost,
        known.items_known,
        is_dry_run,
        notes,
    )


def _is_short(found: ShardSurvey) -> bool:
    return not found.defects and 0 < found.num_records < (found.num_expected or 0)


def check_names_free(run: RunDirectory, known: DamagedDataset) -> None:
    """Raise `OutputExists` if a file already has the name of a repaired shard."""
    names = [known.file_name(shard) for shard in known.shards]
    taken = set(run.storage.list(run.directory)).intersection(names)
    if taken:
        raise OutputExists(
            f"{min(taken)!r} already exists",
            path=run.directory,
            hint="--overwrite replaces it after all files are written; or choose another folder",
        )


def repair_from_records(
    known: DamagedDataset,
    surveys: Sequence[ShardSurvey],
    run: RunDirectory,
    report: RepairReport,
    *,
    trust_no_crc: bool = False,
) -> None:
    """Write the repaired dataset into the run directory from good records, and publish it.

    Args:
        known: The dataset.
        surveys: The survey of each shard.
        run: The claimed run directory, empty.
        report: The report, which lists what is lost.
        trust_no_crc: As in the surveys.
    """
    packing = _packing(known, surveys)
    sealed: dict[int, SealedShard] = {}
    for found in surveys:
        if found.is_good:
            sealed[found.shard] = copy_shard(known, found, run)
        elif known.items_known or found.state != "missing":
            sealed[found.shard] = rewrite_shard(
                known,
                found,
                run,
                packing if known.items_known else _packing(known, [found]),
                trust_no_crc=trust_no_crc,
                keep_unplaced=not known.items_known,
            )
    if known.items_known:
        shards = [sealed[shard] for shard in known.shards]
        _publish(known, shards, run, report, packing)
    else:
        _publish_files(known, sealed, run, report)


def _packing(known: DamagedDataset, surveys: Sequence[ShardSurvey]) -> Packing:
    """Return the compression of the shards: the manifest's, or that of the files."""
    if known.manifest is not None:
        original = known.manifest.compression
        if original["type"] == "none":
            return Packing()
        default = Packing.of(original["type"], original.get("deflate", "isal-2"), known.num_shards)
        member_bytes = original.get("member_bytes", default.member_bytes)
        return Packing(default.compression, default.deflate, member_bytes)
    compression = known.compression or surveys[0].compression
    return Packing.of(compression, "isal-2", known.num_shards)


def _publish(
    known: DamagedDataset,
    shards: list[SealedShard],
    run: RunDirectory,
    report: RepairReport,
    packing: Packing,
) -> None:
    assert known.pattern is not None
    assert known.num_items is not None
    lost = [entry.item for entry in report.lost if entry.item is not None]
    gaps = sorted({*known.gaps, *lost})
    error = assignment_error([shard.num_records for shard in shards], known.num_items, gaps)
    if error is not None:
        shard, expected, count = error
        raise AssignmentError(
            f"repaired shard {shard} has {count:,} records, expected {expected:,}",
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
    old = known.manifest
    if old is not None and (shards, gaps, index) == (list(old.shards), list(old.gaps), old.index):
        manifest = old  # nothing is lost: the dataset is byte-identical
    elif old is not None:
        schema, labels = recount(
            old,
            {entry.shard for entry in report.lost},
            sum(shard.num_records for shard in shards),
            partial(_records, run, gaps, known.num_shards),
        )
        manifest = Manifest(
            known.pattern,
            old.num_items,
            shards,
            gaps,
            old.compression,
            index,
            _job(old.job, lost),
            old.source,
            old.order,
            schema,
            labels,
            old.metadata,
            {**old.extra, "repaired": _repaired(old, lost)},
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
    errors = run.storage.read(os.path.join(known.directory, error_log_file(known.name))) or b""
    publish(run, manifest, errors, report.ledger_lines())


def _records(
    run: RunDirectory, gaps: list[int], num_shards: int, shard: int
) -> Iterator[tuple[int, bytes]]:
    items = Gaps(gaps, num_shards)
    for position, payload in enumerate(read_records(run.shard_path(shard))):
        yield items.item_index(shard, position), payload


def _job(job: str, lost: list[int]) -> str:
    """Return the job hash of the repaired dataset, which differs from the original's."""
    return canonical.digest({"repaired": job, "without": to_runs(sorted(lost))})


def _repaired(old: Manifest | None, lost: list[int]) -> dict[str, Any]:
    """Return the manifest's ``repaired``: the original job and the lost items.

    Both include those of earlier repairs.
    """
    before = {} if old is None else old.extra.get("repaired", {})
    # Items lost earlier are gaps now, so the number of gaps bounds theirs.
    earlier = () if old is None else GapRuns(before.get("lost", []), 8 * len(old.gaps))
    job = before.get("job", None if old is None else old.job)
    return {"job": job, "lost": to_runs(sorted({*earlier, *lost}))}


def _publish_files(
    known: DamagedDataset, sealed: dict[int, SealedShard], run: RunDirectory, report: RepairReport
) -> None:
    """Publish repaired files without a manifest, after all of them are written."""
    storage = run.storage
    if known.pattern is not None:
        check_names(run, known.pattern)
    storage.sync_directory(run.path)
    lost = os.path.join(run.directory, lost_items_file(known.name))
    outdated = [lost]
    if known.pattern is not None:  # they describe the files that are replaced
        outdated += [
            os.path.join(run.directory, file_name)
            for file_name in (known.pattern.manifest_file, known.pattern.index_file)
        ]
    for path in outdated:
        storage.delete(path)
    storage.sync_directory(run.directory)
    for shard, entry in sealed.items():
        target = os.path.join(run.directory, known.file_name(shard))
        if storage.is_directory(target):
            raise StorageError("a folder has the name of this shard", path=target)
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


# -- repair from the source ------------------------------------------------------------------------

_NEVER_S: Final = float("inf")
_NEVER_BYTES: Final = 1 << 62


def required_manifest(known: DamagedDataset) -> Manifest:
    """Return the manifest, which a repair from the source needs.

    Raises:
        ManifestError: There is none, or it is that of a dataset with lost records.
    """
    if known.manifest is None:
        raise ManifestError(
            f"{known.name!r} has no usable manifest, so single shards can not be written again",
            path=known.directory,
            hint="write the whole dataset again (`shardwriter write SOURCE OUT`), or leave "
            "--source off to recover the good records",
        )
    if "repaired" in known.manifest.extra:
        raise ManifestError(
            f"{known.name!r} is the result of a repair that lost records; its manifest does not "
            "describe the original dataset",
            path=known.directory,
            hint="repair the original dataset with --source, or write it again",
        )
    return known.manifest


def output_of(known: DamagedDataset, out: str) -> Output:
    """Return the output of a write of the same files to OUT."""
    manifest = required_manifest(known)
    pattern, compression = manifest.pattern, manifest.compression["type"]
    ext = pattern.ext.removesuffix(".gz") if compression == "gzip" else pattern.ext
    return Output(out, pattern.stem, ext, pattern.num_shards, compression)


def options_of(manifest: Manifest, given: DatasetOptions) -> DatasetOptions:
    """Return the options of the original write: those given, completed from the manifest.

    Raises:
        OptionError: An option contradicts the manifest.
    """
    compression = manifest.compression
    options = replace(
        given,
        compression=compression["type"],
        deflate=compression.get("deflate", "isal-2"),
        tfds=tfds_split_of(manifest.metadata),
    )
    written = manifest.features
    schema = {
        name: _as_written(found, written[name].type) if name in written else found
        for name, found in options.schema.items()
    }
    options = replace(options, schema=schema)
    split = manifest.order.get("split")
    if split is not None:
        key = options.key or split.get("feature")
        options = replace(options, split=Split.from_json(split), key=key)
    if options.order != "source" or options.shuffle_seed is not None:
        return options
    shuffle, key = manifest.order.get("shuffle"), manifest.order.get("key")
    if shuffle is not None:
        return replace(options, shuffle_seed=shuffle["seed"])
    if key is not None:
        return replace(options, order="key", key=key["feature"], order_seed=key["seed"])
    return options


def _as_written(declared: FeatureType, found: FeatureType) -> FeatureType:
    """Return a declared float64 as a list, for datasets of versions that stored it as one."""
    if (declared.encoding, declared.dtype) != ("raw", "float64") or found.kind != "float":
        return declared
    return FeatureType("float", "float64", declared.shape)


def job_of(
    known: DamagedDataset,
    out: str,
    options: DatasetOptions,
    open_source: Callable[[Split | None], Source],
    notify: Notify,
) -> Job:
    """Return the job of the source, which must be that of the manifest.

    Raises:
        RunChanged: It is another job; the message says what differs, if known.
        OptionError: The source can be read only once, or the options are inconsistent.
    """
    manifest = required_manifest(known)
    options = options_of(manifest, options)
    source = open_source(options.split)
    for note in [*source.notes, *key_notes(source, options), *key_costs(source, options)]:
        notify(note)
    selection = Selection(source, options)
    check_source(source, options, output_of(known, out))
    job = Job(selection, manifest.pattern)
    check_resumable(job)
    what = find_job_change(job, manifest)
    if what is not None:
        raise RunChanged(
            f"this is not the job that wrote {known.name!r}: {what} differs",
            path=os.path.join(known.directory, manifest.pattern.manifest_file),
            hint="give the source and the options (--map, --filter, --limit, --label, --schema) "
            "that it was written with; or leave --source off to recover the good records",
        )
    return job


def report_with_source(
    known: DamagedDataset,
    surveys: Sequence[ShardSurvey],
    out: str,
    *,
    in_place: bool,
    is_dry_run: bool = False,
) -> RepairReport:
    """Return the report of a repair from the source."""
    good: Action = "kept" if in_place else "copied"
    results = [
        result_of(known, found, good if _is_reused(found, in_place=in_place) else "remade", [])
        for found in surveys
    ]
    return RepairReport(
        os.path.join(known.directory, known.name),
        out,
        known.name,
        known.num_items,
        results,
        [],
        True,
        is_dry_run,
        list(known.notes),
    )


def _is_reused(found: ShardSurvey, *, in_place: bool) -> bool:
    """Return whether a shard need not be written again; one that is too long can only be copied."""
    return found.state == "whole" or (found.state == "too-long" and not in_place)


def repair_from_source(
    known: DamagedDataset,
    surveys: Sequence[ShardSurvey],
    run: RunDirectory,
    job: Job,
    engine: Engine,
    *,
    in_place: bool,
    progress: Progress | None = None,
    notify: Notify,
) -> None:
    """Write the damaged shards again in the run directory, and publish the dataset.

    Args:
        known: The dataset.
        surveys: The survey of each shard.
        run: The claimed run directory.
        job: The job that wrote the dataset.
        engine: The engine, with options of :func:`run_options_of`.
        in_place: Whether good shards stay in their folder.
        progress: Called with the progress of writing.
        notify: Called with notes for people.

    Raises:
        RunChanged: A new shard differs from the manifest; nothing is published.
    """
    manifest = required_manifest(known)
    begin_run(run, {"repair": True, **machine_facts()})
    sealed: dict[int, SealedShard] = {}
    for found in surveys:
        if not _is_reused(found, in_place=in_place):
            continue
        if in_place:
            write_rows(known, found, run, known.path(found.shard))
            sealed[found.shard] = manifest.shards[found.shard]
        else:
            sealed[found.shard] = copy_shard(known, found, run)
    resume_state = ResumeState(
        manifest.num_shards,
        sealed=sealed,
        gaps=np.array(manifest.gaps, np.int64),
        num_items=manifest.num_items,
    )
    if not resume_state.is_complete:
        result = engine(job, run, resume_state, progress, notify)
        _check_written(manifest, result.shards, result.gaps, result.num_items)
    index = write_index(
        run,
        manifest.pattern,
        list(manifest.shards),
        list(manifest.gaps),
        compression=job.packing.compression,
        dali=known.has_dali_index and job.packing.is_plain,
    )
    if index != manifest.index:
        raise ManifestError(
            "the index of these shards is not that of the manifest: the manifest was changed",
            path=os.path.join(known.directory, manifest.pattern.manifest_file),
            hint="write the dataset again",
        )
    errors = run.storage.read(os.path.join(known.directory, error_log_file(known.name))) or b""
    publish(run, manifest, errors)


def run_options_of(given: RunOptions) -> RunOptions:
    """Return the run options of a repair: no snapshots, since it is never resumed.

    Raises:
        OptionError: An option of resuming is set.
    """
    if given.resume or given.retry_errors:
        raise OptionError(
            "a repair can not be resumed: run it again from the start",
            hint="leave --resume and --retry-errors off",
        )
    # An item that had a record and now raises an error means that the source changed.
    return replace(
        given, on_error="raise", max_errors=None, mark_s=_NEVER_S, checkpoint_bytes=_NEVER_BYTES
    )


def _check_written(
    manifest: Manifest, shards: Sequence[SealedShard], gaps: Sequence[int], num_items: int
) -> None:
    """Raise `RunChanged` if the written shards differ from the manifest."""
    hint = (
        "the source, a library, or code that the map calls has changed since; or the map is "
        "random. Leave --source off to recover the good records, or write the dataset again"
    )
    if num_items != manifest.num_items or list(gaps) != list(manifest.gaps):
        new = sorted(set(gaps) - set(manifest.gaps))
        what = f"item {new[0]:,} gives no record now" if new else f"it gives {num_items:,} items"
        raise RunChanged(f"the source has changed: {what}", hint=hint)
    for shard, (written, sealed) in enumerate(zip(shards, manifest.shards, strict=True)):
        if written != sealed:
            raise RunChanged(
                f"the shard that was written again differs from the manifest: "
                f"{written.num_records:,} records with CRC {written.crc32c:08x}, should be "
                f"{sealed.num_records:,} with {sealed.crc32c:08x}",
                hint=hint,
                shard=shard,
            )
