"""The output of a launch of a Beam job: the run directory, and what steps pass to each other.

Local folders and object stores both have ``.NAME.partial`` beside the output, with ``run.json``
and files whose names are unique to the attempt that wrote them::

    run.json                  what the run is; "engine": "beam"
    shard-00003.6f1c...       a finished shard, and its rows of the index
    index-00003.6f1c...
    cargo-73ab...             the payload of workers, if it is large
    bucket-00012.4d0e...      items sorted by their keys
    part-00003-000017.9ab2... a part of a shard, joined later
    done-00003-1f2e...        a note of a finished shard, which is not written again

All decisions are made where the pipeline is constructed. Workers start in any order and may be
repeated: the first writes run.json, which is the same from each, and none deletes anything before
the dataset is published.

If files of a storage appear only when they are complete, as objects do, and there is no dataset of
the name, shards are written under their final names.

Facts about items (counts, gaps, errors, types) travel through the pipeline as data, beside the
records, so only what a runner has committed counts, however often it retried.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypedDict
from uuid import uuid4

from shardwriter.dataset import (
    Output,
    SealedShard,
    ShardPattern,
    columns,
    from_runs,
    is_url,
    manifest_file,
    to_runs,
)
from shardwriter.errors import DataError, RunChanged, RunError, StorageError, TooManyErrors
from shardwriter.formats import Count, canonical, json_shape
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema import RecordStats
from shardwriter.storage import (
    RUN,
    Storage,
    absolute,
    holds_records,
    holds_rows,
    inputs_for,
    open_own,
    storage_errors,
    storage_for,
)
from shardwriter.writing import (
    FORMAT,
    MAX_GAPS,
    ErrorEntry,
    ItemResult,
    RecordStatsState,
    RunDirectory,
    RunFacts,
    RunOptions,
    SealedFields,
    check_names,
    check_output,
    existing_files,
    finish_committed,
    finished_manifest,
    replaced_files,
    stats_fit_job,
)

_MAX_NOTE_BYTES: Final = 1 << 30


@dataclass
class Facts:
    """Facts about some items, beside their records; mergeable.

    Attributes:
        stats: Schema and labels of their records.
        gaps: Items without a record.
        errors: Entries of the error log, for the gaps that gave an error.
        num_items: T, if the end of the source was reached.
        key_sum: Sum of a hash of every key, if items have keys; it does not depend on the order.
    """

    stats: RecordStats
    gaps: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    num_items: int | None = None
    key_sum: int = 0

    def note_gap(self, item_index: int, why: ItemResult, max_errors: int | None) -> None:
        """Add an item without a record.

        Args:
            item_index: The index of the item.
            why: Its error, or None if a map returned SKIP.
            max_errors: Maximum number of errors; None for any number.

        Raises:
            TooManyErrors: More of these items gave an error.
        """
        self.gaps.append(item_index)
        if not isinstance(why, DataError):
            return
        self.errors.append(why.to_json())
        if max_errors is not None and len(self.errors) > max_errors:
            raise TooManyErrors(
                f"{len(self.errors):,} items of a part of the input gave an error, and "
                f"{max_errors:,} may; the last: {why.summary}",
                hint="correct the data or the map, or allow more (--max-errors)",
            ) from why

    def merge(self, other: Facts) -> None:
        """Add the facts of other items.

        Raises:
            SchemaConflict: A feature has types that do not join.
        """
        self.stats.merge(other.stats)
        self.gaps += other.gaps
        self.errors += other.errors
        self.key_sum += other.key_sum
        if other.num_items is not None:
            self.num_items = max(self.num_items or 0, other.num_items)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        return {
            "errors": self.errors,
            "gaps": to_runs(sorted(self.gaps)),
            "key_sum": self.key_sum,
            "learnt": self.stats.to_state(),
            "num_items": self.num_items,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], num_shards: int) -> Facts:
        """Return the facts from the JSON of :meth:`to_json`."""
        return cls(
            RecordStats.from_state(entry["learnt"], num_shards),
            from_runs(entry["gaps"]),
            list(entry["errors"]),
            entry["num_items"],
            entry["key_sum"],
        )


@dataclass(frozen=True)
class FinishedShard:
    """A finished shard before its publication.

    Attributes:
        shard: Its number.
        sealed: Its counts and checksums.
        path: The file.
        index_path: The file with its rows of the index.
        facts: Facts about its items; in a shuffled job also about items of other shards.
    """

    shard: int
    sealed: SealedShard
    path: str
    index_path: str
    facts: Facts

    def to_bytes(self) -> bytes:
        """Return the finished shard, packed."""
        sealed = self.sealed
        return pack_json(
            {
                "facts": self.facts.to_json(),
                "index_path": self.index_path,
                "path": self.path,
                "sealed": [
                    sealed.num_records,
                    sealed.payload_bytes,
                    sealed.file_bytes,
                    sealed.crc32c,
                    sealed.file_crc32c,
                ],
                "shard": self.shard,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, num_shards: int) -> FinishedShard:
        """Return the finished shard from the bytes of :meth:`to_bytes`."""
        entry = unpack_json(data)
        return cls(
            entry["shard"],
            SealedShard(*entry["sealed"]),
            entry["path"],
            entry["index_path"],
            Facts.from_json(entry["facts"], num_shards),
        )

    @classmethod
    def from_note(cls, data: bytes, num_shards: int) -> FinishedShard | None:
        """Return the finished shard from a note in the run directory; None if it is invalid."""
        try:
            entry = json_shape.read(_inflate(data), _Note)
        except (ValueError, zlib.error):
            return None
        facts = entry["facts"]
        num_gaps = sum(count for _, count in facts["gaps"])
        if num_gaps > MAX_GAPS or not stats_fit_job(facts["learnt"], num_shards):
            return None
        return cls.from_bytes(data, num_shards)


class _FactsNote(TypedDict):
    errors: list[ErrorEntry]
    gaps: list[tuple[Count, Count]]
    key_sum: int
    learnt: RecordStatsState
    num_items: Count | None


class _Note(TypedDict):
    facts: _FactsNote
    index_path: str
    path: str
    sealed: SealedFields
    shard: Count


def pack_json(value: Any) -> bytes:
    """Return a value as compressed JSON."""
    return zlib.compress(canonical.dumps(value).encode("ascii"), 1)


def _inflate(data: bytes) -> bytes:
    """Return the text of a note of at most 1 GiB."""
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, _MAX_NOTE_BYTES)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("it is truncated, or too long")
    return text


def unpack_json(data: bytes) -> Any:
    """Return the value from the bytes of :func:`pack_json`."""
    return canonical.loads(zlib.decompress(data))


@dataclass(frozen=True)
class LaunchOutput:
    """The output of one launch of a job; the same in every worker.

    Attributes:
        output: The dataset's name, folder and compression.
        num_shards: N.
        job: The job hash.
        launch: The unique id of this launch.
        origin: The launch that began the run: this one, or the one that is resumed.
        before: The launch in run.json when this one was created; None if there was none.
        manifest: The identity of the manifest at that time; None if there was none.
        writes_final_names: Whether shards are written under their final names.
        replaces: Template and number of shards of the dataset that is replaced.
        is_finished: Whether there is nothing to do.
    """

    output: Output
    num_shards: int
    job: str
    launch: str
    origin: str
    before: str | None = None
    manifest: str | None = None
    writes_final_names: bool = False
    replaces: tuple[str, int] | None = None
    is_finished: bool = False

    @cached_property
    def storage(self) -> Storage:
        """The file system."""
        return storage_for(self.output.directory)

    @property
    def pattern(self) -> ShardPattern:
        """The names of the files."""
        return self.output.pattern(self.num_shards)

    def run(self) -> RunDirectory:
        """Return the run directory, unlocked: every file in it is one attempt's own."""
        return RunDirectory.unlocked(self.output.directory, self.output.name, self.storage)

    @contextmanager
    def claimed(self) -> Iterator[RunDirectory]:
        """Lock the run directory, if the storage has locks."""
        with _claimed(self.output, self.storage) as run:
            yield run

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier launch has begun the run."""
        return self.origin != self.launch

    def enter(self) -> None:
        """Begin the run if no worker has; check that it still belongs to this launch.

        Raises:
            RunError: Another job uses the run directory, or the dataset is published.
        """
        with _lock:
            if self.launch in _entered:
                return
            run = self.run()
            facts = facts_of(run)
            if facts.get("launch") != self.launch:
                if _launch_of(facts) != self.before or not self.is_unpublished:
                    raise self.lost_error()
                self.storage.make_directory(run.path)
                if not is_url(run.path):
                    with storage_errors(run.path):
                        open_own(run.path).close()
                run.write_facts(
                    {
                        "engine": "beam",
                        "job": self.job,
                        "launch": self.launch,
                        "num_shards": self.num_shards,
                        "origin": self.origin,
                        "replaces": None if self.replaces is None else list(self.replaces),
                        "writes_final_names": self.writes_final_names,
                    }
                )
            _entered.add(self.launch)

    @property
    def is_unpublished(self) -> bool:
        """Whether no dataset of this name was published since the launch."""
        return _manifest_token(self.output) == self.manifest

    def lost_error(self) -> RunError:
        """Return the error for a launch whose run directory is gone, or used by another job."""
        return RunError(
            f"the run of {self.output.name!r} was deleted, or another job uses its run directory",
            path=self.run().path,
            hint="start the job again",
        )

    def shard_path(self, shard: int, attempt: str) -> str:
        """Return the path to which an attempt writes a shard."""
        if self.writes_final_names:
            return os.path.join(self.output.directory, self.pattern.shard_file(shard))
        return self.run().file(f"shard-{shard:05d}.{attempt}")

    def index_path(self, shard: int, attempt: str) -> str:
        """Return the path to which an attempt writes a shard's rows of the index."""
        return self.run().file(f"index-{shard:05d}.{attempt}")

    def part_path(self, shard: int, block: int, attempt: str) -> str:
        """Return the path to which an attempt writes a part of a shard."""
        return self.run().file(f"part-{shard:05d}-{block:06d}.{attempt}")

    def bucket_path(self, bucket: int, attempt: str) -> str:
        """Return the path to which an attempt writes a bucket of items sorted by their keys."""
        return self.run().file(f"bucket-{bucket:05d}.{attempt}")

    @property
    def payload_prefix(self) -> str:
        """The path prefix of the payload file, which a large payload needs."""
        return self.run().file("cargo-")

    def save_finished(self, finished: FinishedShard) -> None:
        """Write the note of a finished shard, for a launch that resumes this one."""
        self.run().write_synced(self._done_file(finished.shard), finished.to_bytes())

    def load_finished(self, shard: int) -> FinishedShard | None:
        """Return a shard that an earlier attempt or launch of this run finished; else None."""
        run = self.run()
        finished = FinishedShard.from_note(run.read(self._done_file(shard)), self.num_shards)
        if finished is None or finished.shard != shard:
            return None
        # Use only the names of the paths in the note: it may have been moved, or be forged.
        finished = replace(
            finished,
            path=self.shard_path(shard, "")
            if self.writes_final_names
            else run.file(os.path.basename(finished.path)),
            index_path=run.file(os.path.basename(finished.index_path)),
        )
        names = os.path.basename(finished.path), os.path.basename(finished.index_path)
        if not (holds_rows(names[1]) and (self.writes_final_names or holds_records(names[0]))):
            return None
        if self.storage.size(finished.path) != finished.sealed.file_bytes:
            return None
        index_bytes = self.storage.size(finished.index_path)
        return finished if _has_rows(finished.sealed, index_bytes) else None

    def _done_file(self, shard: int) -> str:
        return f"done-{shard:05d}-{self.origin}"


def _has_rows(sealed: SealedShard, index_bytes: int | None) -> bool:
    """Return whether a shard's rows of the index can have ``index_bytes`` bytes."""
    if index_bytes is None:
        return False
    if sealed.file_crc32c is None:
        return index_bytes == 8 * columns("none") * sealed.num_records
    return index_bytes % (8 * columns("gzip")) == 0 and bool(index_bytes or not sealed.num_records)


_lock = threading.Lock()  # runners have several threads in a worker
_entered: set[str] = set()  # launches that this process knows to have begun


def new_attempt() -> str:
    """Return a name that no other attempt has."""
    return uuid4().hex[:16]


def open_launch(
    output: Output, num_shards: int, job: str, run_options: RunOptions, *, dry_run: bool = False
) -> LaunchOutput:
    """Check the output, and return it for a new launch.

    Args:
        output: The dataset's name, folder and compression.
        num_shards: N.
        job: The job hash.
        run_options: Whether to overwrite a dataset, or to resume a run.
        dry_run: Whether nothing will run; then the output is not checked.

    Raises:
        OutputExists: The dataset exists, or an unfinished run.
        OutputBusy: A program of this machine is writing the dataset.
        RunChanged: The run to resume is of another job.
        StorageError: A folder has the final name of a file.
    """
    output = replace(output, directory=absolute(output.directory))
    storage = storage_for(output.directory)
    launch = uuid4().hex
    out = LaunchOutput(
        output, num_shards, job, launch, launch, writes_final_names=storage.appears_whole
    )
    is_missing = not is_url(output.directory) and not storage.is_directory(output.directory)
    if dry_run or is_missing:
        return out
    with _claimed(output, storage) as run:
        finish_committed(run, overwrite=run_options.overwrite)
        facts = facts_of(run)
        out = replace(out, before=_launch_of(facts), manifest=_manifest_token(output))
        if run_options.resume and facts.get("engine") == "beam":
            return _resumed(out, run, facts)
        manifest = finished_manifest(run)
        if run_options.resume and manifest is not None and manifest.job == job:
            run.discard()
            return replace(out, is_finished=True)
        check_output(run, overwrite=run_options.overwrite, pattern=output.pattern(1))
        check_names(run, output.pattern(num_shards))
        taken = existing_files(storage.list(output.directory), output.name, output.pattern(1))
        if not run.is_resumable:
            run.discard()
            out = replace(out, before=None)
        is_free = storage.appears_whole and taken is None
        return replace(out, writes_final_names=is_free, replaces=replaced_files(run))


def _resumed(out: LaunchOutput, run: RunDirectory, facts: RunFacts) -> LaunchOutput:
    if facts.get("job") != out.job:
        raise RunChanged(
            f"the unfinished run of {out.output.name!r} is of another job",
            path=run.path,
            hint="start it with the same source and options, or begin again with --overwrite",
        )
    if not {"origin", "replaces", "writes_final_names"} <= facts.keys():
        raise run.broken(RUN)
    replaces = facts["replaces"]
    return replace(
        out,
        origin=facts["origin"],
        writes_final_names=facts["writes_final_names"] and out.storage.appears_whole,
        replaces=None if replaces is None else (replaces[0], replaces[1]),
    )


@contextmanager
def _claimed(output: Output, storage: Storage) -> Iterator[RunDirectory]:
    if is_url(output.directory):
        yield RunDirectory.unlocked(output.directory, output.name, storage)
    else:
        with RunDirectory.claim(output.directory, output.name, storage) as run:
            yield run


def _manifest_token(output: Output) -> str | None:
    """Return the identity of the manifest file, which differs even for equal manifests."""
    path = os.path.join(output.directory, manifest_file(output.name))
    try:
        stat, data = inputs_for(path).read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"can not be read: {error.strerror}", path=path) from error
    return f"{stat.st_mtime_ns}-{stat.st_ino}-{crc32c(data):08x}"


def facts_of(run: RunDirectory) -> RunFacts:
    """Return the content of run.json; only the format if there is none."""
    try:
        return run.facts()
    except StorageError:
        return {"format": FORMAT}


def _launch_of(facts: RunFacts) -> str | None:
    return facts.get("launch", facts.get("nonce"))
