"""Where a Beam job writes: the run directory of its dataset, from its launch to its publication.

Local folders and object stores alike have ``.NAME.partial`` beside the output, with ``run.json``
in it and files whose names are unique to the attempt that made them::

    run.json                  what the run is; "engine": "beam"
    shard-00003.6f1c...       a finished shard, and its rows of the index
    index-00003.6f1c...
    cargo-73ab...             what workers are sent, where it is large
    bucket-00012.4d0e...      items that are put in order by their keys
    part-00003-000017.9ab2... a piece of a shard that is joined later
    done-00003-1f2e...        what is known of a finished shard: it is not made again

What decides anything is decided where the pipeline is made. Workers come and go, in any order and
several times: whoever is first writes run.json, in which all would write the same, and nobody
deletes anything before the dataset is published.

On a place where a file appears only as a whole, and where no dataset of the name is, a shard is
written under its final name at once.
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

# What passes between the steps of a Beam job, beside records: facts, and finished shards.
#
# A worker keeps nothing that another step needs: counts, gaps, errors and types go along as data,
# so only what a runner has committed counts, however often it has tried.

_MAX_NOTE_BYTES: Final = 1 << 30


@dataclass
class Facts:
    """What is known of some items, beside their records; mergeable.

    Attributes:
        stats: Schema and labels of their records.
        gaps: Items without a record.
        errors: Those of them that gave an error: entries of the ledger.
        num_items: T, where the end of the source was met.
        key_sum: Sum of a hash of every key, where items have keys: whatever their order.
    """

    stats: RecordStats
    gaps: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    num_items: int | None = None
    key_sum: int = 0

    def note_gap(self, item_index: int, why: ItemResult, max_errors: int | None) -> None:
        """Take an item down that has no record.

        Args:
            item_index: The item.
            why: What became of it: its error, or None where a map dropped it.
            max_errors: How many errors there may be; None for any number.

        Raises:
            TooManyErrors: There are more already among these items.
        """
        self.gaps.append(item_index)
        if not isinstance(why, DataError):
            return
        self.errors.append(why.to_json())
        if max_errors is not None and len(self.errors) > max_errors:
            raise TooManyErrors(
                f"{len(self.errors):,} items of a part of the input gave an error, and "
                f"{max_errors:,} may; the last: {why.summary}",
                hint="mend the data or the map, or allow more (--max-errors)",
            ) from why

    def merge(self, other: Facts) -> None:
        """Add the facts of other items.

        Raises:
            SchemaConflict: A feature has types that do not go together.
        """
        self.stats.merge(other.stats)
        self.gaps += other.gaps
        self.errors += other.errors
        self.key_sum += other.key_sum
        if other.num_items is not None:
            self.num_items = max(self.num_items or 0, other.num_items)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "errors": self.errors,
            "gaps": to_runs(sorted(self.gaps)),
            "key_sum": self.key_sum,
            "learnt": self.stats.to_state(),
            "num_items": self.num_items,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], num_shards: int) -> Facts:
        """Return what :meth:`to_json` has told."""
        return cls(
            RecordStats.from_state(entry["learnt"], num_shards),
            from_runs(entry["gaps"]),
            list(entry["errors"]),
            entry["num_items"],
            entry["key_sum"],
        )


@dataclass(frozen=True)
class MadeShard:
    """A finished shard that has no final name yet.

    Attributes:
        shard: Its number.
        sealed: Its counts and checksums.
        path: The file.
        index_path: The file with its rows of the index.
        facts: Of its items; of a shuffled job, of others as well.
    """

    shard: int
    sealed: SealedShard
    path: str
    index_path: str
    facts: Facts

    def to_bytes(self) -> bytes:
        """Return all of it."""
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
    def from_bytes(cls, data: bytes, num_shards: int) -> MadeShard:
        """Return what :meth:`to_bytes` has told."""
        entry = unpack_json(data)
        return cls(
            entry["shard"],
            SealedShard(*entry["sealed"]),
            entry["path"],
            entry["index_path"],
            Facts.from_json(entry["facts"], num_shards),
        )

    @classmethod
    def from_note(cls, data: bytes, num_shards: int) -> MadeShard | None:
        """Return what a file beside the output says; None where it can not be true."""
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
    """Return JSON in few bytes."""
    return zlib.compress(canonical.dumps(value).encode("ascii"), 1)


def _inflate(data: bytes) -> bytes:
    """Return the text of a note; what is over 1 GiB is none."""
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, _MAX_NOTE_BYTES)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("it is cut off, or too long")
    return text


def unpack_json(data: bytes) -> Any:
    """Return what :func:`pack_json` was given."""
    return canonical.loads(zlib.decompress(data))


@dataclass(frozen=True)
class Place:
    """The output of one launch of a job; the same in every worker.

    Attributes:
        output: What OUT says.
        num_shards: N.
        job: Hash of everything that decides the bytes.
        launch: Tells this launch from others.
        origin: The launch that began the run: this one, or one that is resumed.
        before: What run.json said of a launch when this one was made; None where there was none.
        manifest: What told the manifest of a dataset from others then; None where there was none.
        writes_final_names: Whether shards are written under their final names.
        replaces: What the manifest says of the files of a dataset that is there.
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
        """Hold the run directory, where the place has locks."""
        with _claimed(self.output, self.storage) as run:
            yield run

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier launch has begun the run."""
        return self.origin != self.launch

    # -- what workers ask --------------------------------------------------------------------------

    def enter(self) -> None:
        """Make sure that the run has begun, and that it is still this launch's.

        Raises:
            RunError: Another job has taken the place, or the dataset is published.
        """
        with _lock:
            if self.launch in _entered:
                return
            run = self.run()
            facts = facts_of(run)
            if facts.get("launch") != self.launch:
                if _launch_of(facts) != self.before or not self.is_as_it_was:
                    raise self.lost()
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
    def is_as_it_was(self) -> bool:
        """Whether no dataset was published here since the launch."""
        return _manifest_token(self.output) == self.manifest

    def lost(self) -> RunError:
        """Return the error for a launch whose place another has taken."""
        return RunError(
            f"the run of {self.output.name!r} is no longer there, or another job has taken its "
            "place",
            path=self.run().path,
            hint="start the job again",
        )

    def shard_path(self, shard: int, attempt: str) -> str:
        """Return where an attempt writes a shard."""
        if self.writes_final_names:
            return os.path.join(self.output.directory, self.pattern.shard_file(shard))
        return self.run().file(f"shard-{shard:05d}.{attempt}")

    def index_path(self, shard: int, attempt: str) -> str:
        """Return where an attempt writes a shard's rows of the index."""
        return self.run().file(f"index-{shard:05d}.{attempt}")

    def part_path(self, shard: int, block: int, attempt: str) -> str:
        """Return where an attempt writes a piece of a shard."""
        return self.run().file(f"part-{shard:05d}-{block:06d}.{attempt}")

    def bucket_path(self, bucket: int, attempt: str) -> str:
        """Return where an attempt writes a bucket of items that are put in order by their keys."""
        return self.run().file(f"bucket-{bucket:05d}.{attempt}")

    @property
    def cargo_prefix(self) -> str:
        """What the file begins with that is packed for workers, if one is needed."""
        return self.run().file("cargo-")

    def note_done(self, made: MadeShard) -> None:
        """Keep what is known of a finished shard, for a launch that resumes this one."""
        self.run().write_synced(self._done_file(made.shard), made.to_bytes())

    def done(self, shard: int) -> MadeShard | None:
        """Return what an earlier attempt, or an earlier launch of this run, has noted so."""
        run = self.run()
        made = MadeShard.from_note(run.read(self._done_file(shard)), self.num_shards)
        if made is None or made.shard != shard:
            return None
        # Of what the note says of paths only names count: it may have been moved, or be forged.
        made = replace(
            made,
            path=self.shard_path(shard, "")
            if self.writes_final_names
            else run.file(os.path.basename(made.path)),
            index_path=run.file(os.path.basename(made.index_path)),
        )
        names = os.path.basename(made.path), os.path.basename(made.index_path)
        if not (holds_rows(names[1]) and (self.writes_final_names or holds_records(names[0]))):
            return None
        if self.storage.size(made.path) != made.sealed.file_bytes:
            return None
        return made if _has_rows(made.sealed, self.storage.size(made.index_path)) else None

    def _done_file(self, shard: int) -> str:
        return f"done-{shard:05d}-{self.origin}"


def _has_rows(sealed: SealedShard, index_bytes: int | None) -> bool:
    """Return whether a shard's rows of the index can have so many bytes."""
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


def place_for(
    output: Output, num_shards: int, job: str, run_options: RunOptions, *, dry_run: bool = False
) -> Place:
    """Look at the output, and return where a new launch writes.

    Args:
        output: What OUT says.
        num_shards: N.
        job: Hash of everything that decides the bytes.
        run_options: Whether a dataset may be replaced, or a run gone on with.
        dry_run: Nothing is looked at: nothing will run.

    Raises:
        OutputExists: A dataset is there, or an unfinished run.
        OutputBusy: A program of this machine is writing there.
        RunChanged: The run that is to be resumed is of another job.
        StorageError: A folder has the final name of a file.
    """
    output = replace(output, directory=absolute(output.directory))
    storage = storage_for(output.directory)
    launch = uuid4().hex
    place = Place(output, num_shards, job, launch, launch, writes_final_names=storage.appears_whole)
    is_missing = not is_url(output.directory) and not storage.is_directory(output.directory)
    if dry_run or is_missing:
        return place
    with _claimed(output, storage) as run:
        finish_committed(run, overwrite=run_options.overwrite)
        facts = facts_of(run)
        place = replace(place, before=_launch_of(facts), manifest=_manifest_token(output))
        if run_options.resume and facts.get("engine") == "beam":
            return _resumed(place, run, facts)
        manifest = finished_manifest(run)
        if run_options.resume and manifest is not None and manifest.job == job:
            run.discard()
            return replace(place, is_finished=True)
        check_output(run, overwrite=run_options.overwrite, pattern=output.pattern(1))
        check_names(run, output.pattern(num_shards))
        taken = existing_files(storage.list(output.directory), output.name, output.pattern(1))
        if not run.is_resumable:
            run.discard()
            place = replace(place, before=None)
        is_free = storage.appears_whole and taken is None
        return replace(place, writes_final_names=is_free, replaces=replaced_files(run))


def _resumed(place: Place, run: RunDirectory, facts: RunFacts) -> Place:
    if facts.get("job") != place.job:
        raise RunChanged(
            f"the unfinished run of {place.output.name!r} is of another job",
            path=run.path,
            hint="start it with what it was started with, or --overwrite begins again",
        )
    if not {"origin", "replaces", "writes_final_names"} <= facts.keys():
        raise run.broken(RUN)
    replaces = facts["replaces"]
    return replace(
        place,
        origin=facts["origin"],
        writes_final_names=facts["writes_final_names"] and place.storage.appears_whole,
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
    """Return what tells the manifest that is there from others, equal ones too."""
    path = os.path.join(output.directory, manifest_file(output.name))
    try:
        stat, data = inputs_for(path).read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"can not be read: {error.strerror}", path=path) from error
    return f"{stat.st_mtime_ns}-{stat.st_ino}-{crc32c(data):08x}"


def facts_of(run: RunDirectory) -> RunFacts:
    """Return what run.json says; nothing where there is none."""
    try:
        return run.facts()
    except StorageError:
        return {"format": FORMAT}


def _launch_of(facts: RunFacts) -> str | None:
    return facts.get("launch", facts.get("nonce"))
