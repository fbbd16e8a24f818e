"""Repair from the source: only the shards that are damaged or missing are made again.

The job has to be that of the manifest. What the engine makes is held against the manifest before
anything is published, and the manifest, the index and the shards that were good are what they were:
the dataset ends byte-identical to the undamaged one.
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
from shardwriter.inspect.survey import Known, Salvage, ShardSurvey
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

# Bringing shards into a run directory: copied as they are, or made of their good records.

_FICLONE: Final = 0x40049409  # of linux/fs.h: both files have the same blocks until one is changed
_COPY_BYTES: Final = 1 << 27
_READ_BYTES: Final = 1 << 20


def copy_file(source: str, target: str, num_bytes: int) -> int:
    """Copy the first bytes of a file, within the file system where it can, and bring them to disk.

    Args:
        source: The file.
        target: The file to make.
        num_bytes: How many bytes.

    Returns:
        CRC-32C of what stands in the new file.

    Raises:
        StorageError: It can not be read or written, or has fewer bytes.
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
        raise StorageError(f"it has {size:,} bytes now, and had {num_bytes:,}", path=source)
    return crc


def _copy(old: int, new: int, num_bytes: int) -> None:
    try:
        fcntl.ioctl(new, _FICLONE, old)
        os.ftruncate(new, num_bytes)
        return
    except OSError:
        pass  # most file systems can not, and none does it from one to another
    done = 0
    try:
        while done < num_bytes:
            count = os.copy_file_range(old, new, min(_COPY_BYTES, num_bytes - done), done, done)
            if not count:
                break
            done += count
    except (OSError, AttributeError):
        pass  # on, by the program itself
    while done < num_bytes:
        data = os.pread(old, min(_READ_BYTES, num_bytes - done), done)
        if not data:
            return
        done += os.pwrite(new, data, done)


def copy_shard(known: Known, found: ShardSurvey, run: RunDirectory) -> SealedShard:
    """Copy a shard that is good, and note its index.

    Raises:
        StorageError: It is not what it was when it was surveyed.
    """
    path = known.path(found.shard)
    target = run.shard_path(found.shard)
    crc = copy_file(path, target, found.file_bytes)
    if crc != found.file_crc32c:
        raise StorageError(
            "it was changed while it was copied",
            path=path,
            hint="repair it again when nobody writes it",
        )
    if known.is_lawful or known.has_dali_index_of(found.shard):
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


def write_rows(known: Known, found: ShardSurvey, run: RunDirectory, path: str) -> None:
    """Note the index of a shard in the run directory: what is known of it, or what it is found.

    Args:
        known: The dataset.
        found: The shard.
        run: The run directory.
        path: Where the shard lies.
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
    known: Known,
    found: ShardSurvey,
    run: RunDirectory,
    packing: Packing,
    *,
    trust_no_crc: bool = False,
    keep_unplaced: bool = False,
    on_record: Callable[[int, bytes], None] | None = None,
) -> SealedShard:
    """Make a shard of the good records of a damaged one.

    Args:
        known: The dataset.
        found: The shard.
        run: Where it grows.
        packing: How it is compressed.
        trust_no_crc: As the shard was surveyed.
        keep_unplaced: Whether records are kept of which nobody knows which they are.
        on_record: Told of the place and the payload of each record.

    Raises:
        StorageError: It is not what it was when it was surveyed.
    """
    with ExitStack() as stack:
        growing = OpenShards(stack, run, [found.shard], packing)
        write = growing.files[found.shard].write
        for place, payload in _good(known, found, trust_no_crc=trust_no_crc):
            if place < 0 and not keep_unplaced:
                continue
            write(payload)
            if on_record is not None:
                on_record(place, payload)
        sealed = growing.seal()
        growing.files.clear()
    return sealed[found.shard]


def _good(known: Known, found: ShardSurvey, *, trust_no_crc: bool) -> Iterable[tuple[int, bytes]]:
    if found.state != "damaged" or found.places is None:
        return
    path = known.path(found.shard)
    salvage = Salvage(
        path,
        known.compression,
        known.rows(found.shard),
        trust_no_crc=trust_no_crc and not known.is_lawful,
    )
    count = 0
    for record in salvage.records(_ignore):
        if count == len(found.places):
            count += 1
            break
        yield int(found.places[count]), record.payload
        count += 1
    if count != len(found.places):
        raise StorageError(
            "it was changed while it was read",
            path=path,
            hint="repair it again when nobody writes it",
        )


def _ignore(_defect: Defect) -> None:
    return


# Counting again what a manifest says of records, once some of them are gone.

Records = Callable[[int], Iterator[tuple[int, bytes]]]
"""Gives item index and payload of the records that a shard has now."""


def recount(
    manifest: Manifest, changed: Collection[int], num_records: int, records: Records
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the manifest's ``schema`` and ``labels`` of the records that are left.

    Records are read only where the counts can not be told without: labels of the shards that have
    changed, or all records, where a feature is in some of them only.

    Args:
        manifest: Of the whole dataset.
        changed: The shards that have lost records.
        num_records: Records that are left in all.
        records: Gives them.
    """
    is_sequences = "feature_lists" in manifest.schema
    told = dict(manifest.schema.get("features", {}))
    if is_sequences:
        told = by_key(told, manifest.schema["feature_lists"])
    features = {name: dict(entry) for name, entry in told.items()}
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
                continue  # a record of another kind, of which nothing was counted
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
    """Return the values of a step that has some; None where none does."""
    return next((values for values in steps if values is not None), None)


class _Labels:
    """Label counts of a manifest, those of the changed shards counted anew."""

    def __init__(self, manifest: Manifest, changed: Collection[int]) -> None:
        assert manifest.labels is not None
        told = manifest.labels
        self._feature = told["feature"]
        features = manifest.features
        kind = features[self._feature].type.kind if self._feature in features else None
        self.needs_all = told.get("shards") is None
        kept: Mapping[str, Any] = {"counts": {}, "feature": self._feature}
        if not self.needs_all:
            rows = {
                label: [0 if shard in changed else n for shard, n in enumerate(row)]
                for label, row in told["shards"].items()
            }
            rows = {label: row for label, row in rows.items() if any(row)}
            counts = {label: sum(row) for label, row in rows.items()}
            kept = {"counts": counts, "feature": self._feature, "shards": rows}
        self._counts = (
            LabelCounts(self._feature, manifest.num_shards)
            if self.needs_all
            else LabelCounts.from_json(kept, manifest.num_shards, kind)
        )
        # A float stands in a record with fewer digits than it was counted with.
        self._floats: dict[float, float] = {}
        if kind == "float":
            spelled = [float(label) for label in told["counts"] if label != "nan"]
            self._floats = {float(np.float32(number)): number for number in spelled}

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


# Repair without the source: good shards are copied, damaged ones made of their good records.
#
# Where it is known which item each record is, the result is a dataset like any other: what is lost
# are gaps, so every other record stays where it was. Its job is another, since it is another
# dataset. Where that is not known records keep their order in each file, and no manifest is made.


def report_without_source(
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
    breach = assignment_error([shard.num_records for shard in shards], known.num_items, gaps)
    if breach is not None:
        shard, expected, count = breach
        raise AssignmentError(
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
    errors = run.storage.read(os.path.join(known.directory, error_log_file(known.name))) or b""
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
    lost = os.path.join(run.directory, lost_items_file(known.name))
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


_NEVER_S: Final = float("inf")
_NEVER_BYTES: Final = 1 << 62


def required_manifest(known: Known) -> Manifest:
    """Return the manifest.

    Raises:
        ManifestError: There is none that can be used, so nobody knows what is to be made.
    """
    if known.manifest is None:
        raise ManifestError(
            f"{known.name!r} has no manifest that can be used, so single shards can not be made "
            "again: nothing says what they were",
            path=known.directory,
            hint="write the whole dataset again (`shardwriter write SOURCE OUT`), or leave "
            "--source off to bring back what is good",
        )
    if "repaired" in known.manifest.extra:
        raise ManifestError(
            f"{known.name!r} is what a repair has left of a dataset, and its manifest does not "
            "tell what that was",
            path=known.directory,
            hint="repair the dataset that it was made of, or write it again",
        )
    return known.manifest


def output_of(known: Known, out: str) -> Output:
    """Return what OUT would be to a write of the same files."""
    manifest = required_manifest(known)
    pattern, compression = manifest.pattern, manifest.compression["type"]
    ext = pattern.ext.removesuffix(".gz") if compression == "gzip" else pattern.ext
    return Output(out, pattern.stem, ext, pattern.num_shards, compression)


def options_of(manifest: Manifest, given: DatasetOptions) -> DatasetOptions:
    """Return the write's options: those given, and what the manifest says of the others.

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
    """Return a declared float64 as a list, where the dataset is of when it was stored as one."""
    if (declared.encoding, declared.dtype) != ("raw", "float64") or found.kind != "float":
        return declared
    return FeatureType("float", "float64", declared.shape)


def job_of(
    known: Known,
    out: str,
    options: DatasetOptions,
    open_source: Callable[[Split | None], Source],
    notify: Notify,
) -> Job:
    """Return the job of the source, once it is known to be that of the manifest.

    Raises:
        RunChanged: It is another; says what differs, as far as that is known.
        OptionError: The source can be read once, or the options do not go together.
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
            f"this is not the job that wrote {known.name!r}: {what} is not what it was",
            path=os.path.join(known.directory, manifest.pattern.manifest_file),
            hint="give the source and the options (--map, --filter, --limit, --label, --schema) "
            "that it was written with; or leave --source off to bring back what is good",
        )
    return job


def report_with_source(
    known: Known,
    surveys: Sequence[ShardSurvey],
    out: str,
    *,
    in_place: bool,
    is_dry_run: bool = False,
) -> RepairReport:
    """Say what a repair from the source does."""
    good: Action = "kept" if in_place else "copied"
    results = [
        result_of(known, found, good if _stays(found, in_place=in_place) else "remade", [])
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


def _stays(found: ShardSurvey, *, in_place: bool) -> bool:
    """Whether a shard need not be made again. One that is to be cut can not be cut in its place."""
    return found.state == "whole" or (found.state == "too-long" and not in_place)


def remake(
    known: Known,
    surveys: Sequence[ShardSurvey],
    run: RunDirectory,
    job: Job,
    engine: Engine,
    *,
    in_place: bool,
    progress: Progress | None = None,
    notify: Notify,
) -> None:
    """Make the damaged shards again in the run directory, and publish the dataset.

    Args:
        known: The dataset.
        surveys: What was found of each shard.
        run: The claimed run directory.
        job: What made it, and makes it.
        engine: Who does the work; its options are :func:`run_options_of`.
        in_place: Whether good shards stay where they are.
        progress: Told of the work.
        notify: Called with hints.

    Raises:
        RunChanged: What was made is not what the manifest says; nothing is published.
    """
    manifest = required_manifest(known)
    begin_run(run, {"repair": True, **machine_facts()})
    sealed: dict[int, SealedShard] = {}
    for found in surveys:
        if not _stays(found, in_place=in_place):
            continue
        if in_place:
            write_rows(known, found, run, known.path(found.shard))
            sealed[found.shard] = manifest.shards[found.shard]
        else:
            sealed[found.shard] = copy_shard(known, found, run)
    kept = ResumeState(
        manifest.num_shards,
        sealed=sealed,
        gaps=np.array(manifest.gaps, np.int64),
        num_items=manifest.num_items,
    )
    if not kept.is_complete:
        outcome = engine(job, run, kept, progress, notify)
        _check_made(manifest, outcome.shards, outcome.gaps, outcome.num_items)
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
            "the index of these shards is not the one that the manifest speaks of",
            path=os.path.join(known.directory, manifest.pattern.manifest_file),
            hint="the manifest was changed: write the dataset again",
        )
    errors = run.storage.read(os.path.join(known.directory, error_log_file(known.name))) or b""
    publish(run, manifest, errors)


def run_options_of(given: RunOptions) -> RunOptions:
    """Return how the remake is carried out: without marks, as a repair begins again.

    Raises:
        OptionError: What is asked for would not give the same bytes.
    """
    if given.resume or given.retry_errors:
        raise OptionError(
            "a repair is not resumed: it begins again, and leaves nothing half done",
            hint="leave --resume and --retry-errors off",
        )
    # An item that had a record and gives an error now is a change, and no gap.
    return replace(
        given, on_error="raise", max_errors=None, mark_s=_NEVER_S, checkpoint_bytes=_NEVER_BYTES
    )


def _check_made(
    manifest: Manifest, shards: Sequence[SealedShard], gaps: Sequence[int], num_items: int
) -> None:
    """Hold what was made against the manifest.

    Raises:
        RunChanged: It is something else.
    """
    hint = (
        "the source, a library, or code that the map calls has changed since; or the map is "
        "random. Leave --source off to bring back what is good, or write the dataset again"
    )
    if num_items != manifest.num_items or list(gaps) != list(manifest.gaps):
        new = sorted(set(gaps) - set(manifest.gaps))
        what = f"item {new[0]:,} gives no record now" if new else f"it gives {num_items:,} items"
        raise RunChanged(f"the source is not what it was: {what}", hint=hint)
    for shard, (made, told) in enumerate(zip(shards, manifest.shards, strict=True)):
        if made != told:
            raise RunChanged(
                f"what was made is not what the manifest says: {made.num_records:,} records with "
                f"CRC {made.crc32c:08x}, should be {told.num_records:,} with {told.crc32c:08x}",
                hint=hint,
                shard=shard,
            )
