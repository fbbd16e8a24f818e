"""What a launch of a Beam job is: fixed where the pipeline is made, the same in every worker."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from typing import IO, Annotated, Any, Final, Literal, TypedDict, get_args

import msgspec

from shardwriter.cluster.keyed import KeyedItems
from shardwriter.cluster.parts import MAX_BLOCK_RUNS, MAX_CHUNK_RECORDS, Cut
from shardwriter.cluster.place import Place, place_for
from shardwriter.dataset import MAX_SHARDS, Output
from shardwriter.errors import OptionError, RunChanged, RunError
from shardwriter.formats import Packing, canonical, json_shape
from shardwriter.sources import (
    ColumnSource,
    RecordSource,
    Source,
    WholeSource,
)
from shardwriter.storage import storage_for
from shardwriter.writing import (
    DatasetOptions,
    Job,
    MessageTooLarge,
    RunOptions,
    Selection,
    check_compression,
    check_images,
    check_source,
    choose_num_shards,
    finished_manifest,
    order_json,
    pack,
    resume_finished,
    sample_records,
    unpack,
)

# Sending a job to workers: its source, options and callables, packed once.
#
# Every process unpacks it once.
#
# ::
#
#     u64 number of parts | u64 bytes of each part | pickle | temporary files of the source, ...
#
# Sources keep what they have found (where rows begin, say) in temporary files. A pool sends these
# as open files; here their content goes along. What is small travels inside of the pipeline; the
# rest lies as one file beside the output, named by its content, so that every attempt has the same.
# Unpacking runs code, and others may be able to write there: a worker compares all of the file with
# the SHA-256 that came with the pipeline first, and unpacks its own copy of it.

_U64: Final = struct.Struct("<Q")
_BLOCK_BYTES: Final = 1 << 20
_INLINE_BYTES: Final = 1 << 18  # every step has it, and Dataflow takes graphs of some megabytes
_MAX_PARTS: Final = 1 << 16
_MAX_BYTES: Final = 256 << 20  # of what is pickled: data in memory, or a million paths

_lock = threading.Lock()  # runners have several threads in a worker
_unpacked: dict[str, Any] = {}  # by digest


@dataclass(frozen=True)
class JobPayload:
    """An object for workers.

    Attributes:
        digest: SHA-256 of what was packed.
        inline: All of it, compressed; None where it lies in a file.
        path: That file.
    """

    digest: str
    inline: bytes | None
    path: str | None

    def get(self) -> Any:
        """Return the object; the same one each time that it is asked for in a process.

        Raises:
            RunError: It can not be unpacked here: a module is missing, say; or its file is not
                the one that was packed.
        """
        with _lock:
            if self.digest not in _unpacked:
                _unpacked.clear()  # one job at a time needs one
                _unpacked[self.digest] = self._unpacked()
            return _unpacked[self.digest]

    def _unpacked(self) -> Any:
        if self.inline is not None:
            return _unpack(*_read(BytesIO(zlib.decompress(self.inline)), self.digest))
        assert self.path is not None
        with storage_for(self.path).open(self.path) as file:
            try:
                pickled, descriptors = _read(file, self.digest)
            except ValueError:
                raise RunError(
                    "it is not the file that was packed for workers when the job was launched",
                    path=self.path,
                    hint="nothing in it was run; see who else may write there, and start the job "
                    "again",
                ) from None
        return _unpack(pickled, descriptors)


def load_cargo(obj: Any, path_prefix: str | None = None) -> JobPayload:
    """Pack an object.

    Args:
        obj: What workers need.
        path_prefix: Where its file goes if it is large; the digest is appended. None: there is no
            such place, and all of it travels inside of the pipeline.

    Raises:
        OptionError: It can not be sent.
    """
    try:
        pickled, descriptors = pack(obj, _MAX_BYTES)
    except MessageTooLarge:
        raise OptionError(
            f"the source holds more than {_MAX_BYTES:,} bytes in memory, which would have to be "
            "sent to every worker",
            hint="give module:callable, or an object that reads its items itself",
        ) from None
    except Exception as error:
        raise OptionError(
            f"the source, the map or the filter can not be sent to workers: "
            f"{type(error).__name__}: {error}",
            hint="what they hold must be picklable; give module:callable",
        ) from error
    sizes = [len(pickled), *(os.fstat(number).st_size for number in descriptors)]
    head = b"".join(map(_U64.pack, (len(sizes), *sizes)))
    total_bytes = len(head) + sum(sizes)
    if path_prefix is None or total_bytes <= 64 * _INLINE_BYTES:
        data = b"".join((head, pickled, *_blocks(descriptors)))
        digest = sha256(data).hexdigest()
        packed = zlib.compress(data, 6)
        if path_prefix is None or len(packed) <= _INLINE_BYTES:
            return JobPayload(digest, packed, None)
    digest = _digest(head, pickled, descriptors)
    path = f"{path_prefix}{digest[:16]}"
    storage = storage_for(path)
    storage.make_directory(os.path.dirname(path))
    file = storage.create(path)
    file.write(head)
    file.write(pickled)
    for block in _blocks(descriptors):
        file.write(block)
    storage.sync(path)
    file.close()
    return JobPayload(digest, None, path)


def _digest(head: bytes, pickled: bytes, descriptors: Sequence[int]) -> str:
    digest = sha256(head)
    digest.update(pickled)
    for block in _blocks(descriptors):
        digest.update(block)
    return digest.hexdigest()


def _blocks(descriptors: Sequence[int]) -> Iterator[bytes]:
    """Yield the content of files, one after the other."""
    for number in descriptors:
        begin = 0
        while block := os.pread(number, _BLOCK_BYTES, begin):
            yield block
            begin += len(block)


def _read(file: IO[bytes], digest: str) -> tuple[bytes, list[int]]:
    """Copy what was packed, and prove that it is that.

    Args:
        file: All of it.
        digest: Its SHA-256.

    Returns:
        The pickle, and descriptors of the temporary files, which are open.

    Raises:
        ValueError: It is something else.
    """
    found = sha256()

    def take(num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            block = file.read(min(_BLOCK_BYTES, num_bytes - len(data)))
            if not block:
                raise ValueError
            data += block
        found.update(data)
        return bytes(data)

    count = _U64.unpack(take(_U64.size))[0]
    if not 1 <= count <= _MAX_PARTS:
        raise ValueError
    sizes = [_U64.unpack(take(_U64.size))[0] for _ in range(count)]
    if sizes[0] > _MAX_BYTES:
        raise ValueError
    pickled = take(sizes[0])
    with ExitStack() as copies:
        descriptors = []
        for size in sizes[1:]:
            copy = copies.enter_context(tempfile.TemporaryFile())
            for begin in range(0, size, _BLOCK_BYTES):
                copy.write(take(min(_BLOCK_BYTES, size - begin)))
            copy.flush()
            descriptors.append(copy.fileno())
        if file.read(1) or found.hexdigest() != digest:
            raise ValueError
        return pickled, [os.dup(number) for number in descriptors]


def _unpack(pickled: bytes, descriptors: list[int]) -> Any:
    try:
        return unpack(pickled, descriptors)
    except (Exception, SystemExit) as error:
        raise RunError(
            f"the source and the map can not be set up in a worker: {type(error).__name__}: "
            f"{error}",
            hint="what they use must be importable there: send it with --extra_package or "
            "--setup_file, or put it into the container",
        ) from error


class _Plan(TypedDict):
    """``plan.json``: what a launch takes from it."""

    block_runs: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_RUNS)]
    chunk_records: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_RECORDS)]
    format: Literal["shardwriter.beam.plan/1"]
    job: str
    num_shards: Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)]
    strategy: str


Strategy = Literal["auto", "strided", "chunked"]
"""``strided``: a shard is a job of its own, and its items are read one by one. ``chunked``:
neighbouring items are read together, framed, and shuffled to their shards."""

PLAN_FORMAT: Final = "shardwriter.beam.plan/1"


@dataclass(frozen=True)
class Identity:
    """What the manifest says of where the data comes from.

    Attributes:
        job: Hash of everything that decides the bytes.
        source: Kind and digest.
    """

    job: str
    source: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A launch.

    Attributes:
        place: Where it writes.
        cargo: The :class:`shardwriter.writing.job.Job`, for workers.
        bytes_options: The options that decide bytes, as JSON.
        order: What the manifest says was done to source order.
        identity: What it says of the source; None where only the data tells.
        options: How many errors there may be, and whether ``.idx`` files are made.
        strategy: ``strided``, ``chunked``, or ``keyed`` for what comes out of a pipeline.
        cut: How items are cut for the shuffle.
        num_items: T; None where one worker reads a stream to its end.
        label: The feature whose values are counted.
        packing: How shards are compressed.
        notes: What a person should know of a dataset that is finished, one line each.
    """

    place: Place
    cargo: JobPayload
    bytes_options: Mapping[str, Any]
    order: Mapping[str, Any]
    identity: Identity | None
    options: RunOptions
    strategy: str
    cut: Cut
    num_items: int | None
    label: str
    packing: Packing
    notes: Sequence[str] = ()

    @property
    def job(self) -> Job:
        """The job, as this process has it."""
        job: Job = self.cargo.get()
        return job

    @property
    def skips_errors(self) -> bool:
        """Whether an item that gives an error leaves a gap."""
        return self.options.on_error == "skip"

    def plan_json(self) -> dict[str, Any]:
        """Return what is fixed before the first record, for ``plan.json``."""
        assert self.identity is not None
        return {
            "block_runs": self.cut.block_runs,
            "chunk_records": self.cut.chunk_records,
            "files": self.place.pattern.template,
            "format": PLAN_FORMAT,
            "job": self.identity.job,
            "num_items": self.num_items,
            "num_shards": self.place.num_shards,
            "source": dict(self.identity.source),
            "strategy": self.strategy,
        }


def task_of(
    source: Source,
    output: Output,
    options: DatasetOptions,
    run_options: RunOptions,
    *,
    strategy: Strategy = "auto",
    plan: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> Task:
    """Fix everything about a launch.

    Args:
        source: The items.
        output: What OUT says.
        options: What decides the bytes.
        run_options: What does not.
        strategy: Who reads what; ``auto`` has the source decide.
        plan: What an earlier launch has fixed: N and the cut are taken from there.
        dry_run: The place of the output is left alone: nothing is looked at or written there.

    Raises:
        UsageError: It can not work, or the output is taken.
        RunChanged: The plan is of another job.
        DataError: A sampled item can not be encoded.
    """
    check_compression(output, options, run_options)
    _check_engine(run_options)
    if isinstance(source, WholeSource):
        source.go_whole()
    if not source.stable:
        raise OptionError(
            "an iterator can be read once, and a worker may have to read it again",
            hint="give module:callable, or a function that makes a new one each time",
        )
    selection = Selection(source, options)
    check_source(source, options, output)
    selection.allow_remote_listing()
    skip_errors = run_options.on_error == "skip"
    if plan is not None:
        output = _planned(output, plan)
    n = choose_num_shards(selection, output, skip_errors=skip_errors)
    job = Job(selection, output.pattern(n))
    if strategy not in get_args(Strategy):
        raise OptionError(f"strategy is {strategy!r}", hint="auto, strided or chunked")
    if strategy == "auto":
        strategy = _strategy_for(source)
    if strategy == "strided" and not selection.random_access:
        raise OptionError(
            "a source that gives its items one after the other can not be strided",
            hint="leave the strategy off, or say chunked",
        )
    if plan is None:
        cut = Cut.of(n, sample_records(selection, skip_errors=skip_errors).mean_frame_bytes)
    else:
        cut = Cut(n, plan["chunk_records"], plan["block_runs"])
    digest = job.digest()
    if plan is not None and (plan["job"], plan["strategy"]) != (digest, strategy):
        raise RunChanged(
            "the plan is of another job: the source, an option or the code of a map has changed",
            hint="delete the plan to have a new one made",
        )
    identity = Identity(digest, job.source_json())
    place = place_for(output, n, digest, run_options, dry_run=dry_run)
    notes: list[str] = []
    if place.is_finished:
        manifest = finished_manifest(place.run())
        assert manifest is not None
        resume_finished(job, place.run(), manifest, run_options, notes.append)
    cargo = load_cargo(job, None if dry_run else place.cargo_prefix)
    label = job.record_encoder().labels.feature
    num_items = job.num_items if selection.random_access else None
    return Task(
        place,
        cargo,
        job.bytes_options(),
        job.order_json(),
        identity,
        run_options,
        strategy,
        cut,
        num_items,
        label,
        job.packing,
        notes,
    )


def _planned(output: Output, plan: Mapping[str, Any]) -> Output:
    """Take N from a plan."""
    n: int = plan["num_shards"]
    if output.num_shards not in (None, n):
        raise OptionError(
            f"the plan is for {n} shards, and OUT says {output.num_shards}",
            hint=f"say {output.name}@{n}, or delete the plan to have a new one made",
        )
    return replace(output, num_shards=n)


def keyed_task(
    output: Output, options: DatasetOptions, run_options: RunOptions, *, dry_run: bool = False
) -> Task:
    """Fix everything about a launch that writes items by their keys.

    Args:
        output: What OUT says.
        options: What decides the bytes; in the order of keys.
        run_options: What does not.
        dry_run: The place of the output is left alone: nothing is looked at or written there.

    Raises:
        UsageError: It can not work, or the output is taken.
    """
    check_compression(output, options, run_options)
    _check_engine(run_options)
    if options.split is not None:
        raise OptionError(
            "splits are for sources; a pipeline divides its items itself",
            hint="beam.Partition gives each split a PCollection, and each its own WriteShards",
        )
    if options.map or options.filter or options.limit is not None:
        raise OptionError(
            "map, filter and limit are for sources; a pipeline has its own",
            hint="apply beam.Map and beam.Filter in front",
        )
    if run_options.resume:
        raise OptionError(
            "what a pipeline gives can not be compared with what it gave before",
            hint="leave resume off; overwrite discards an unfinished run",
        )
    n = output.num_shards
    if n is None:
        raise OptionError(
            "the number of items is not known before the end, so N can not be chosen",
            hint=f"say it: {output.name}@16",
        )
    # The items come numbered: to the job their order is that of the source.
    as_they_come = replace(options, order="source", key=None, order_seed=0)
    items = KeyedItems()
    if options.images is not None:
        check_images(items, options)
    job = Job(Selection(items, as_they_come), output.pattern(n))
    digest = canonical.digest(job.bytes_options())
    place = place_for(output, n, digest, run_options, dry_run=dry_run)
    cargo = load_cargo(job, None if dry_run else place.cargo_prefix)
    label = job.record_encoder().labels.feature
    cut = Cut(n, 1, 1)  # it is made when the items are there
    return Task(
        place,
        cargo,
        job.bytes_options(),
        order_json(options),
        None,
        run_options,
        "keyed",
        cut,
        None,
        label,
        job.packing,
    )


def _strategy_for(source: Source) -> Strategy:
    """Choose: rows and records are read with their neighbours, files and objects one by one."""
    if not source.random_access or isinstance(source, (ColumnSource, RecordSource)):
        return "chunked"
    return "strided"


def _check_engine(run_options: RunOptions) -> None:
    if run_options.backend != "native":
        raise OptionError(
            f"the {run_options.backend} backend writes in one process, and not with Beam",
            hint="leave the backend off",
        )
    if run_options.retry_errors or run_options.item_timeout_s is not None:
        raise OptionError(
            "retrying errors and item timeouts are for the engines of one machine",
            hint="leave them off; a runner has its own timeouts",
        )
    if run_options.log_dir is not None:
        raise OptionError(
            "event files are written by the engines of one machine",
            hint="leave log_dir off; a runner shows Beam's counters",
        )


def read_plan(path: str) -> dict[str, Any] | None:
    """Return the plan that a file holds, also at a URL; None where there is no file.

    Raises:
        OptionError: It is no plan.
        StorageError: It can not be read.
    """
    data = storage_for(path).read(path)
    if data is None:
        return None
    try:
        plan = json_shape.read(data, _Plan)
    except ValueError as error:
        raise OptionError(
            f"this is no plan of a Beam job: {error}",
            path=path,
            hint="delete the plan to have a new one made",
        ) from None
    return dict(plan)


def write_plan(path: str, task: Task) -> None:
    """Write ``plan.json``."""
    text = json.dumps(task.plan_json(), indent=2, sort_keys=True) + "\n"
    storage = storage_for(path)
    with closing(storage.create(path)) as file:
        file.write(text.encode("ascii"))
        storage.sync(path)
