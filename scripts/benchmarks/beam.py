"""Write with Beam: our transforms, Beam's own WriteToTFRecord, and a process pool without Beam.

Everybody writes the same records into 16 shards, in a fresh process:

- ``strided``, ``chunked``: ``WriteShards(source=...)`` with this strategy;
- ``keyed``: ``Create(range(n)) | Reshuffle | Map(item) | WriteShards(key=...)``;
- ``WriteToTFRecord``: the same items, ``| WriteToTFRecord(num_shards=16)``; where items are
  features they are encoded before, with tf.train.Example (``-tensorflow``) or ``encode_example``
  (``-encode_example``);
- ``dask-strided``, ``dask-chunked``: on DaskRunner, with a cluster of processes that is up; their
  processor time is without those processes;
- ``pool``: no Beam, ``write(workers=2)``.

All others run on FnApiRunner, in one process. Wall time is of the pipeline, from making it, when
imports are done; ``whole`` is of the process, and so is the processor time. The peak is of that one
process, which for FnApiRunner is all of it. In the first round all records are compared with those
of the serial engine. ``as serial`` is how many shards are the same bytes as the serial engine's,
``as before`` how many are the same as in the run before.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data import NUM_SHARDS, Floats, make_input, num_items, source_folder
from benchmarks.measure import Case, Contender, Run, Turn, Work, empty_folder, run_timed
from benchmarks.worker import package_name
from benchmarks.write import our_digest

RECORD_BYTES = 1_000
KEY_BYTES = 8
NUM_BLOCKS = 256

# -- items, for processes that write ---------------------------------------------------------------


class Records:
    """Finished records of 1,000 bytes: Examples of a key and of noise."""

    def __init__(self) -> None:
        from shardwriter import encode_example

        noise = np.random.default_rng(4).bytes(NUM_BLOCKS * RECORD_BYTES)
        key = b"#" * KEY_BYTES
        spare = RECORD_BYTES - len(encode_example({"data": noise[:900], "key": key})) + 900
        record = encode_example({"data": noise[:spare], "key": key})
        self.count = num_items()
        self.key_at = record.index(key, spare)
        self.records = [
            encode_example({"data": noise[start : start + spare], "key": key})
            for start in range(0, len(noise) - spare, RECORD_BYTES)
        ]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> bytes:
        record = self.records[index % len(self.records)]
        end = self.key_at + KEY_BYTES
        return b"%b%08d%b" % (record[: self.key_at], index, record[end:])

    def key(self, record: bytes) -> bytes:
        """Return a record's key."""
        return record[self.key_at : self.key_at + KEY_BYTES]


class Vectors(Floats):
    """A vector, its label and its number."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, **super().__getitem__(index)}


class Items(NamedTuple):
    """The items of a case.

    Attributes:
        source: What ours is given; None for the folder itself.
        key: The key of an item, for ours; a feature or what returns it.
        order_key: The feature that is the same key, for the engines of one machine.
        item: Returns an item by its number.
    """

    source: str | None
    key: Any
    order_key: str
    item: Callable[[int], Any]


@cache
def opened(kind: str) -> Any:
    """Return what gives items by number; a worker opens it once."""
    if kind == "images":
        from benchmarks.peers import images

        return images(source_folder())[1]
    return {"records": Records, "floats": Vectors}[kind]().__getitem__


def record(number: int) -> Any:
    """Return a finished record."""
    return opened("records")(number)


def record_key(item: bytes) -> bytes:
    """Return the key of a finished record."""
    return opened("records").__self__.key(item)


def vector(number: int) -> Any:
    """Return a vector's features."""
    return opened("floats")(number)


def image(number: int) -> Any:
    """Return an image's features."""
    return opened("images")(number)


def with_tensorflow(features: dict[str, Any]) -> bytes:
    """Encode as people do; ``tolist()`` is the quickest way that protobuf knows."""
    import tensorflow as tf

    made = {}
    for name, value in features.items():
        if isinstance(value, bytes):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        elif isinstance(value, np.ndarray):
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value.tolist()))
        else:
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value)]))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


ITEMS = {
    "records": Items("benchmarks.beam:Records", record_key, "key", record),
    "floats": Items("benchmarks.beam:Vectors", "id", "id", vector),
    "images": Items(None, "image/filename", "image/filename", image),
}

# -- a run, in a process of its own ----------------------------------------------------------------

Ready = Callable[[], None]
"""To be called once everything is imported."""


def write_once(
    name: str, case: str, out: str, workers: int, report: str, address: str | None
) -> None:
    """Write once, and report the seconds and the peak."""
    started: list[float] = []
    write = writer(name, ITEMS[case], out, workers, address)
    write(lambda: started.append(time.perf_counter()))
    seconds = time.perf_counter() - started[0]
    Path(report).write_text(json.dumps({"pipeline_s": seconds, "peak_mb": peak_mb()}))


def writer(
    name: str, items: Items, out: str, workers: int, address: str | None
) -> Callable[[Ready], None]:
    """Return what writes; it is called with what starts the clock."""
    import shardwriter as sw

    if name == "pool":
        return partial(write_here, items, out, workers, {})
    if name.startswith("serial"):
        more = {"order": "key", "key": items.order_key} if name == "serial-key" else {}
        return partial(write_here, items, out, None, more)
    what = name.removeprefix("dask-")
    if what.startswith(PEER):
        encode: Callable[[Any], bytes] | None = None
        if what.endswith("tensorflow"):
            import tensorflow  # noqa: F401  # before the clock starts

            encode = with_tensorflow
        elif what.endswith("encode_example"):
            encode = sw.encode_example
        add = partial(add_peer, items, out, encode)
    elif what == "keyed":
        add = partial(add_keyed, items, out)
    else:
        add = partial(add_source, items, out, what)
    return partial(write_beam, address if what != name else None, add)


def write_here(
    items: Items,
    out: str,
    workers: int | None,
    more: dict[str, Any],
    ready: Ready,
) -> None:
    """Write without Beam, in one process or in a pool."""
    import shardwriter as sw

    ready()
    engine: Any = "serial" if workers is None else "process"
    run = sw.RunOptions(engine=engine, workers=workers)
    sw.write(items.source or source_folder(), out, run=run, **more)


def write_beam(address: str | None, add: Callable[[Any], Any], ready: Ready) -> None:
    """Run a pipeline with the runner that is part of Beam, or on a cluster."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    package_name("WriteShards")  # imported before the clock starts

    arguments: list[str] = []
    if address is None:
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner as Runner
    else:
        from apache_beam.runners.dask.dask_runner import DaskRunner as Runner

        arguments = ["--dask_client_address", address]
    ready()
    with beam.Pipeline(runner=Runner(), options=PipelineOptions(arguments)) as pipeline:
        add(pipeline)


def add_source(items: Items, out: str, strategy: Any, pipeline: Any) -> Any:
    """End a pipeline with our transform, which reads the source itself."""
    WriteShards = package_name("WriteShards")
    source = items.source or str(source_folder())
    return pipeline | WriteShards(out, source=source, strategy=strategy)


def add_items(items: Items, pipeline: Any) -> Any:
    """Return the items as a pipeline has them; Create's own reshuffle is left off."""
    import apache_beam as beam

    numbers = beam.Create(range(num_items()), reshuffle=False)
    return pipeline | numbers | beam.Reshuffle() | "Item" >> beam.Map(items.item)


def add_keyed(items: Items, out: str, pipeline: Any) -> Any:
    """End a pipeline with our transform, which is given the items."""
    WriteShards = package_name("WriteShards")
    return add_items(items, pipeline) | WriteShards(out, key=items.key)


def add_peer(items: Items, out: str, encode: Callable[[Any], bytes] | None, pipeline: Any) -> Any:
    """End a pipeline with Beam's own writer."""
    import apache_beam as beam

    found = add_items(items, pipeline)
    if encode is not None:
        found = found | "Encode" >> beam.Map(encode)
    writer = beam.io.WriteToTFRecord(
        out.split("@")[0], file_name_suffix=".tfrecord", num_shards=NUM_SHARDS
    )
    return found | writer


def peak_mb() -> float:
    """Return the peak of this process; Linux counts what started it into ``ru_maxrss``."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def run_cluster(workers: int) -> None:
    """Run a Dask cluster until the input ends; its address is the first line of the output."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


# -- the works -------------------------------------------------------------------------------------

PEER = "WriteToTFRecord"
COUNTS = {"records": 200_000, "floats": 100_000, "images": 4_000}
MEMORY_COUNTS = (10_000, 100_000, 1_000_000)


def make(case: Case) -> None:
    """Make what is read; records are made in memory."""
    case.count = max(NUM_SHARDS, int(COUNTS[case.name] * case.size))
    if case.name != "records":
        case.source = make_input(case.folder / "inputs", case.name, case.count)


@contextmanager
def cluster(turn: Turn) -> Iterator[str]:
    """Run a Dask cluster; yield its address."""
    process = subprocess.Popen(
        turn.call_words("benchmarks.beam:run_cluster", turn.case.workers),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=turn.environment,
        cwd=turn.case.folder,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


def contenders(case: Case) -> list[Contender]:
    """Return our transforms, Beam's own writer, a pool and a cluster."""
    encodings = ("",) if case.name == "records" else ("-tensorflow", "-encode_example")
    peers = [f"{PEER}{encoding}" for encoding in encodings]
    names = ["strided", "chunked", "keyed", *peers, "pool", "dask-strided", "dask-chunked"]
    return [contender(name) for name in names]


def contender(name: str) -> Contender:
    """Return one of them."""
    modules = ["apache_beam"] if name != "pool" else []
    if name.startswith("dask"):
        modules.append("distributed")
    if name.endswith("tensorflow"):
        modules.append("tensorflow")
    return Contender(
        name, partial(measure, name, True), tuple(modules), is_ours=not name.startswith(PEER)
    )


def measure(name: str, compare: bool, turn: Turn) -> Run:
    """Write once, and compare with the serial engine and with the run before."""
    case = turn.case
    address = None
    if name.startswith("dask"):
        key = f"cluster of {turn.entry.checkout}"
        address = case.once(key, lambda: cluster(turn))
    run, digests, content = write(name, turn, turn.folder, address)
    if compare:
        reference = "serial-key" if name == "keyed" else "serial"
        expected, same_content = serial(reference, turn)
        if turn.number == 0:
            if content() != same_content:
                raise SystemExit(f"{turn.entry.name}: other records than the serial engine")
            run.outcome = same_content
        before = case.shared.get(f"last of {turn.entry.name}", digests)
        case.shared[f"last of {turn.entry.name}"] = digests
        run.extra["as serial"] = num_same(digests, expected)
        run.extra["as before"] = num_same(digests, before)
    empty_folder(turn.folder)
    return run


Digests = dict[str, str]
"""Of each shard, by its name."""


def write(
    name: str, turn: Turn, out: Path, address: str | None
) -> tuple[Run, Digests, Callable[[], str]]:
    """Write once; return the run, digests of the shards, and what digests all records."""
    case, report = turn.case, turn.case.folder / "report.json"
    kind = case.name if case.name in ITEMS else "records"
    words = (name, kind, out / "x@16.tfrecord", case.workers, report, address)
    command = turn.call_words("benchmarks.beam:write_once", *words)
    whole = run_timed(command, turn.environment, case.folder)
    found = json.loads(report.read_text())
    shards = sorted(out.glob("x-*.tfrecord"))
    if len(shards) != NUM_SHARDS:
        raise SystemExit(f"{name}: {len(shards)} shards")
    run = Run(found["pipeline_s"], whole.cpu_s, found["peak_mb"], extra={"whole, s": whole.wall_s})
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in shards}
    return run, digests, partial(content_of, kind, out)


def content_of(kind: str, out: Path) -> str:
    """Return a digest of all records, whatever their order.

    TensorFlow serializes features in an order of its own: where it takes part they are decoded.
    """
    import shardwriter as sw

    if kind != "records":
        return our_digest(out)
    shards = sorted(out.glob("x-*.tfrecord"))
    digests = sorted(sha256(bytes(r)).digest() for path in shards for r in sw.read_records(path))
    return f"{len(digests)}-{sha256(b''.join(digests)).hexdigest()}"


def serial(name: str, turn: Turn) -> tuple[Digests, str]:
    """Return digests of what the serial engine writes; it does so once."""
    if name not in turn.case.shared:
        out = turn.case.folder / "out" / name
        empty_folder(out)
        _, digests, content = write(name, turn, out, None)
        turn.case.shared[name] = (digests, content())
        empty_folder(out)
    found: tuple[Digests, str] = turn.case.shared[name]
    return found


def num_same(one: Digests, other: Digests) -> int:
    """Return how many shards are the same."""
    return sum(other.get(name) == digest for name, digest in one.items())


def make_memory(case: Case) -> None:
    """Set the number of records."""
    case.count = max(NUM_SHARDS, int(int(case.name) * case.size))


WORKS = [
    Work(
        "beam",
        "write with Beam into 16 shards; records are compared with the serial engine's",
        tuple(COUNTS),
        make,
        contenders,
    ),
    Work(
        "beam-memory",
        "write 10,000 to 1,000,000 records of 1 kB with a strided job of Beam: the memory",
        tuple(map(str, MEMORY_COUNTS)),
        make_memory,
        lambda _: [
            Contender("strided", partial(measure, "strided", False), ("apache_beam",), is_ours=True)
        ],
        repeats=0,
    ),
]
