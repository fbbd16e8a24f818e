"""The launch of a Beam job: fixed where the pipeline is constructed, the same in every worker.

The job, with its source, options and callables, is packed once and unpacked once in each process::

    u64 number of parts | u64 bytes of each part | pickle | temporary files of the source, ...

Sources store what they have found (offsets of rows, for example) in temporary files; a process pool
sends these as open files, here their contents are included. A small payload travels inside the
pipeline. A large one is a file in the run directory, named by its content, so that every attempt
writes the same. Unpacking runs code, and others may be able to write to the folder: a worker
compares the file with the SHA-256 from the pipeline first, and unpacks its own copy of it.
"""

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
from shardwriter.cluster.launch import LaunchOutput, open_launch
from shardwriter.cluster.parts import MAX_BLOCK_RUNS, MAX_CHUNK_RECORDS, Partitioning
from shardwriter.dataset import MAX_SHARDS, Output
from shardwriter.errors import OptionError, RunChanged, RunError
from shardwriter.formats import Packing, canonical, json_shape
from shardwriter.sources import (
    ColumnSource,
    InMemorySource,
    RecordSource,
    Source,
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

_U64: Final = struct.Struct("<Q")
_BLOCK_BYTES: Final = 1 << 20
_INLINE_BYTES: Final = 1 << 18  # every step has it, and Dataflow takes graphs of some megabytes
_MAX_PARTS: Final = 1 << 16
_MAX_BYTES: Final = 256 << 20  # of the pickle: data in memory, or a million paths

_lock = threading.Lock()  # runners have several threads in a worker
_unpacked: dict[str, Any] = {}  # by digest


@dataclass(frozen=True)
class JobPayload:
    """A packed object for workers.

    Attributes:
        digest: SHA-256 of the packed bytes.
        inline: The packed bytes, compressed; None if they are in a file.
        path: That file.
    """

    digest: str
    inline: bytes | None
    path: str | None

    def get(self) -> Any:
        """Return the object; every call in a process returns the same one.

        Raises:
            RunError: The object can not be unpacked here, as a module is missing, for example; or
                its file has changed.
        """
        with _lock:
            if self.digest not in _unpacked:
                _unpacked.clear()  # a process has one job at a time
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
                    "this is not the file that the launch of the job wrote; nothing in it was run",
                    path=self.path,
                    hint="check who else may write to the folder, and start the job again",
                ) from None
        return _unpack(pickled, descriptors)


def pack_payload(obj: Any, path_prefix: str | None = None) -> JobPayload:
    """Return an object packed for workers.

    Args:
        obj: The object.
        path_prefix: Path of its file if it is large, to which the digest is appended. None: there
            is no such file, and all of it travels inside the pipeline.

    Raises:
        OptionError: The object can not be pickled, or is too large.
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
            hint="they must be picklable; give module:callable",
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
    """Return a copy of a packed object, after comparing its hash.

    Args:
        file: The packed bytes.
        digest: Their SHA-256.

    Returns:
        The pickle, and open descriptors of the temporary files.

    Raises:
        ValueError: The bytes have another hash.
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
    """``plan.json``: the keys that a launch reads."""

    block_runs: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_RUNS)]
    chunk_records: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_RECORDS)]
    format: Literal["shardwriter.beam.plan/1"]
    job: str
    num_shards: Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)]
    strategy: str


Strategy = Literal["auto", "strided", "chunked"]
"""``strided``: a worker writes a whole shard, and reads its items one by one. ``chunked``:
neighbouring items are read together, framed, and shuffled to their shards."""

PLAN_FORMAT: Final = "shardwriter.beam.plan/1"


@dataclass(frozen=True)
class Identity:
    """The identity of the data in the manifest.

    Attributes:
        job: The job hash.
        source: Kind and digest of the source.
    """

    job: str
    source: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A launch.

    Attributes:
        out: The output.
        payload: The :class:`shardwriter.writing.job.Job`, for workers.
        bytes_options: The options that decide bytes, as JSON.
        order: The manifest's ``order``.
        identity: Job hash and source; None if they depend on the data of a pipeline.
        options: The options of the run: number of errors, ``.idx`` files.
        strategy: ``strided``, ``chunked``, or ``keyed`` for the items of a PCollection.
        partitioning: The partitioning of items for the shuffle.
        num_items: T; None if one worker reads a stream to its end.
        label: The feature whose values are counted.
        packing: The compression of the shards.
        notes: Notes about a dataset that is finished already, one line each.
    """

    out: LaunchOutput
    payload: JobPayload
    bytes_options: Mapping[str, Any]
    order: Mapping[str, Any]
    identity: Identity | None
    options: RunOptions
    strategy: str
    partitioning: Partitioning
    num_items: int | None
    label: str
    packing: Packing
    notes: Sequence[str] = ()

    @property
    def job(self) -> Job:
        """The job, unpacked in this process."""
        job: Job = self.payload.get()
        return job

    @property
    def skips_errors(self) -> bool:
        """Whether an item that gives an error leaves a gap."""
        return self.options.on_error == "skip"

    def plan_json(self) -> dict[str, Any]:
        """Return the decisions that precede the first record, for ``plan.json``."""
        assert self.identity is not None
        return {
            "block_runs": self.partitioning.block_runs,
            "chunk_records": self.partitioning.chunk_records,
            "files": self.out.pattern.template,
            "format": PLAN_FORMAT,
            "job": self.identity.job,
            "num_items": self.num_items,
            "num_shards": self.out.num_shards,
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
    """Return the launch that writes the items of a source.

    Args:
        source: The items.
        output: The dataset's name, folder, number of shards and compression.
        options: The options that decide the bytes.
        run_options: How to run; changes no byte.
        strategy: ``auto`` chooses by the kind of the source.
        plan: The plan of an earlier launch, with N and the partitioning.
        dry_run: Whether nothing will run; then the output is neither checked nor written.

    Raises:
        UsageError: An option is wrong, or the output exists.
        RunChanged: The plan is of another job.
        DataError: A sampled item can not be encoded.
    """
    check_compression(output, options, run_options)
    _check_engine(run_options)
    if isinstance(source, InMemorySource):
        source.include_data()
    if not source.resumable:
        raise OptionError(
            "an iterator can be read once, and a worker may have to read it again",
            hint="give module:callable, or a function that returns a new one",
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
            "the strided strategy needs a source with random access",
            hint="leave the strategy off, or choose chunked",
        )
    if plan is None:
        partitioning = Partitioning.of(
            n, sample_records(selection, skip_errors=skip_errors).mean_frame_bytes
        )
    else:
        partitioning = Partitioning(n, plan["chunk_records"], plan["block_runs"])
    digest = job.digest()
    if plan is not None and (plan["job"], plan["strategy"]) != (digest, strategy):
        raise RunChanged(
            "the plan is of another job: the source, an option or the code of a map has changed",
            hint="delete the plan to write a new one",
        )
    identity = Identity(digest, job.source_json())
    out = open_launch(output, n, digest, run_options, dry_run=dry_run)
    notes: list[str] = []
    if out.is_finished:
        manifest = finished_manifest(out.run())
        assert manifest is not None
        resume_finished(job, out.run(), manifest, run_options, notes.append)
    payload = pack_payload(job, None if dry_run else out.payload_prefix)
    label = job.record_encoder().labels.feature
    num_items = job.num_items if selection.random_access else None
    return Task(
        out,
        payload,
        job.bytes_options(),
        job.order_json(),
        identity,
        run_options,
        strategy,
        partitioning,
        num_items,
        label,
        job.packing,
        notes,
    )


def _planned(output: Output, plan: Mapping[str, Any]) -> Output:
    """Return the output with the N of a plan."""
    n: int = plan["num_shards"]
    if output.num_shards not in (None, n):
        raise OptionError(
            f"the plan is for {n} shards, and OUT has {output.num_shards}",
            hint=f"give {output.name}@{n}, or delete the plan to write a new one",
        )
    return replace(output, num_shards=n)


def keyed_task(
    output: Output, options: DatasetOptions, run_options: RunOptions, *, dry_run: bool = False
) -> Task:
    """Return the launch that writes the items of a PCollection, in the order of their keys.

    Args:
        output: The dataset's name, folder, number of shards and compression.
        options: The options that decide the bytes, with the order by key.
        run_options: How to run; changes no byte.
        dry_run: Whether nothing will run; then the output is neither checked nor written.

    Raises:
        UsageError: An option is wrong, or the output exists.
    """
    check_compression(output, options, run_options)
    _check_engine(run_options)
    if options.split is not None:
        raise OptionError(
            "splits are for sources; a pipeline divides its items itself",
            hint="use beam.Partition, and one WriteShards for each split",
        )
    if options.map or options.filter or options.limit is not None:
        raise OptionError(
            "map, filter and limit are for sources; a pipeline has its own",
            hint="apply beam.Map and beam.Filter before WriteShards",
        )
    if run_options.resume:
        raise OptionError(
            "resume is for sources: the items of a pipeline can not be compared with earlier ones",
            hint="leave resume off; overwrite discards an unfinished run",
        )
    n = output.num_shards
    if n is None:
        raise OptionError(
            "the number of items is not known before the end, so N can not be chosen",
            hint=f"give it: {output.name}@16",
        )
    # The job gets numbered items, so it writes them in source order.
    numbered_options = replace(options, order="source", key=None, order_seed=0)
    items = KeyedItems()
    if options.images is not None:
        check_images(items, options)
    job = Job(Selection(items, numbered_options), output.pattern(n))
    digest = canonical.digest(job.bytes_options())
    out = open_launch(output, n, digest, run_options, dry_run=dry_run)
    payload = pack_payload(job, None if dry_run else out.payload_prefix)
    label = job.record_encoder().labels.feature
    partitioning = Partitioning(n, 1, 1)  # replaced once the items are counted
    return Task(
        out,
        payload,
        job.bytes_options(),
        order_json(options),
        None,
        run_options,
        "keyed",
        partitioning,
        None,
        label,
        job.packing,
    )


def _strategy_for(source: Source) -> Strategy:
    """Return the strategy: rows and records are read in chunks, files and objects one by one."""
    if not source.random_access or isinstance(source, (ColumnSource, RecordSource)):
        return "chunked"
    return "strided"


def _check_engine(run_options: RunOptions) -> None:
    if run_options.backend != "native":
        raise OptionError(
            f"the {run_options.backend} backend does not work with Beam",
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
    """Return the plan in a file, also at a URL; None if there is no file.

    Raises:
        OptionError: The file is not a plan.
        StorageError: The file can not be read.
    """
    data = storage_for(path).read(path)
    if data is None:
        return None
    try:
        plan = json_shape.read(data, _Plan)
    except ValueError as error:
        raise OptionError(
            f"this is not a plan of a Beam job: {error}",
            path=path,
            hint="delete the plan to write a new one",
        ) from None
    return dict(plan)


def write_plan(path: str, task: Task) -> None:
    """Write ``plan.json``."""
    text = json.dumps(task.plan_json(), indent=2, sort_keys=True) + "\n"
    storage = storage_for(path)
    with closing(storage.create(path)) as file:
        file.write(text.encode("ascii"))
        storage.sync(path)
