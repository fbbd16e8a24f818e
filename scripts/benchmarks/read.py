"""Read records: with shardwriter, tf.data, PyPI tfrecord, Grain, WebDataset and array_record.

Everybody reads files of a format of its own, from the system's cache, in a process that has opened
them before. The first round compares digests of all records. Readers in the order of the files have
one core, except those named ``all-cores``; of the other works all have all cores.

Ours checks both CRCs of every record, tf.data too, and array_record the hashes of its own. Grain's
reader of TFRecords, PyPI tfrecord and WebDataset check none: ``shardwriter-unchecked`` is what
compares with them.
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import digest, make_once
from benchmarks.measure import Case, Contender, Run, Turn, Work
from benchmarks.worker import Step, package_name

BATCH = 64
BUFFER = 1000  # records that a reader in sequence shuffles among

Pass = Callable[[], Iterable[Any]]
"""Reads everything once; yields payloads, examples, or batches as a dict of columns."""

# -- sets to read ----------------------------------------------------------------------------------

# Sets are written as our shards and in the peers' own formats, as their documentation recommends:
# WebDataset tars with a file for each feature (one JSON file for the row of a table), array_record
# the serialized Examples with one record a group.

NUM_READ_SHARDS = 8
TABLE = ("id", "quantity", "price", "rate", "city", "name")


def images(count: int) -> Iterator[dict[str, Any]]:
    """Yield {"image": bytes, "label": int}."""
    rng = np.random.default_rng(1)
    for number in range(count):
        yield {"image": rng.bytes(int(rng.integers(90_000, 110_000))), "label": number % 1000}


def floats(count: int) -> Iterator[dict[str, Any]]:
    """Yield {"x": float32[768], "label": int}."""
    rng = np.random.default_rng(2)
    for number in range(count):
        yield {"x": rng.standard_normal(768, np.float32), "label": number % 1000}


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield six columns: two integers, two floats, two texts."""
    rng = np.random.default_rng(3)
    for number in range(count):
        quantity, price, rate = (int(value) for value in rng.integers(0, 10_000, 3))
        yield {
            "id": number,
            "quantity": quantity,
            "price": price / 4,  # exact as a float32
            "rate": rate / 1024,
            "city": f"city {quantity % 97}",
            "name": f"customer number {number}",
        }


def tokens(count: int) -> Iterator[dict[str, Any]]:
    """Yield {"tokens": uint16[2048]}, written as int64."""
    rng = np.random.default_rng(4)
    for _ in range(count):
        yield {"tokens": rng.integers(0, 50_000, 2048).astype(np.uint16)}


SETS: dict[str, tuple[Callable[[int], Iterator[dict[str, Any]]], int]] = {
    "images": (images, 200),
    "floats": (floats, 3_000),
    "rows": (rows, 6_000),
    "tokens": (tokens, 1_500),
}
"""Of each set what makes it, and of how many records at scale 1."""

KINDS: dict[str, dict[str, tuple[str, int]]] = {
    "images": {"image": ("bytes", 1), "label": ("int64", 1)},
    "floats": {"x": ("float32", 768), "label": ("int64", 1)},
    "rows": {
        name: ("int64" if k < 2 else "float32" if k < 4 else "bytes", 1)
        for k, name in enumerate(TABLE)
    },
    "tokens": {"tokens": ("int64", 2048)},
}
"""Of each set the dtype and the number of the values of every feature."""


def make_set(name: str, folder: str, count: int, kind: str) -> None:
    """Write one set in a format: ``FOLDER/NAME@8``, ``NAME-*.tar`` or ``NAME-*.array``."""
    import shardwriter as sw

    maker, _ = SETS[name]
    records = list(maker(count))
    place = Path(folder)
    if kind == "tfrecord":
        sw.write(records, place / f"{name}@{NUM_READ_SHARDS}")
    elif kind == "tar":
        _make_tars(name, place, records)
    else:
        _make_arrays(name, place, records)


def _make_tars(name: str, folder: Path, records: list[dict[str, Any]]) -> None:
    from webdataset import TarWriter

    for shard in range(NUM_READ_SHARDS):
        with TarWriter(str(folder / f"{name}-{shard:05}.tar")) as writer:
            for number in range(shard, len(records), NUM_READ_SHARDS):
                writer.write({"__key__": f"{number:08}", **_tar_files(records[number])})


def _tar_files(record: dict[str, Any]) -> dict[str, bytes]:
    if len(record) == len(TABLE):
        return {"json": json.dumps(record).encode()}
    files = {}
    for key, value in record.items():
        if isinstance(value, np.ndarray):
            buffer = io.BytesIO()
            np.save(buffer, value)
            files[f"{key}.npy"] = buffer.getvalue()
        elif isinstance(value, bytes):
            files[f"{key}.jpg"] = value
        else:
            files[f"{key}.cls"] = str(value).encode()
    return files


def tar_example(files: dict[str, Any]) -> dict[str, Any]:
    """Return the example that the files of a tar are, whether WebDataset decoded them or not."""
    example: dict[str, Any] = {}
    for file, value in files.items():
        if file == "json":
            example.update(json.loads(value) if isinstance(value, bytes) else value)
        elif not file.startswith("__"):
            key, _, kind = file.partition(".")
            example[key] = _decoded_file(kind, value) if isinstance(value, bytes) else value
    return example


def _decoded_file(kind: str, data: bytes) -> Any:
    if kind == "npy":
        return np.load(io.BytesIO(data))
    return int(data) if kind == "cls" else data


def _make_arrays(name: str, folder: Path, records: list[dict[str, Any]]) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    import shardwriter as sw

    for shard in range(NUM_READ_SHARDS):
        path = str(folder / f"{name}-{shard:05}.array")
        # Its own default compresses with zstd; ours and the tars are not compressed.
        writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
        for record in records[shard::NUM_READ_SHARDS]:
            writer.write(sw.encode_example(record))
        writer.close()


# -- readers ---------------------------------------------------------------------------------------


def in_blocks(ask: Callable[[list[int]], Sequence[Any]], order: list[int]) -> Iterator[Any]:
    """Yield the records of an order, 64 indices at a time."""
    for start in range(0, len(order), BATCH):
        yield from ask(order[start : start + BATCH])


def one_by_one(source: Any, order: list[int]) -> Iterator[Any]:
    """Return the records of an order, one index at a time."""
    return (source[index] for index in order)


def random_order(count: int) -> list[int]:
    """Return the order in which every reader reads at random."""
    return [int(index) for index in np.random.default_rng(9).permutation(count)]


@cache
def example_parser(name: str) -> Callable[[bytes], dict[str, Any]]:
    """Return what parses a payload into NumPy, with protobuf's own parser."""
    message: Any
    if "tensorflow" in sys.modules:  # where the other package can not be imported
        message = sys.modules["tensorflow"].train.Example
    else:
        try:
            from tfrecord.example_pb2 import Example as message
        except ImportError:
            from tensorflow.core.example.example_pb2 import Example as message

    fields = {"bytes": "bytes_list", "int64": "int64_list", "float32": "float_list"}
    wanted = [(key, fields[kind], kind) for key, (kind, _) in KINDS[name].items()]

    def parse(payload: bytes) -> dict[str, Any]:
        found = message.FromString(payload).features.feature
        row: dict[str, Any] = {}
        for key, field, kind in wanted:
            value = getattr(found[key], field).value
            row[key] = value[0] if kind == "bytes" else np.array(value, kind)
        return row

    return parse


def shardwriter_ways(check: bool, name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of ``shardwriter.open``; without ``check`` no CRC is proven."""
    import shardwriter as sw

    data = sw.open(folder / name, check=check)
    raw, count = data.raw(), len(data)
    order, batches = random_order(count), np.arange(count)

    def columns() -> Iterator[dict[str, Any]]:
        for start in range(0, count, BATCH):
            yield data.columns(batches[start : start + BATCH])

    return {
        "raw": lambda: raw,
        "decoded": lambda: data,
        "columns": columns,
        "shuffled": lambda: data.shuffle(1),
        "random": partial(one_by_one, raw, order),
        "random-batched": partial(in_blocks, raw.__getitems__, order),
        "random-decoded-batched": partial(in_blocks, data.__getitems__, order),
    }


def shardwriter_torch_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the way of our loader of torch tensors, which has no worker processes here."""
    ShardLoader = package_name("ShardLoader")
    loader = ShardLoader(folder / name, batch_size=BATCH)
    return {"columns": lambda: loader}


def shardwriter_tensorflow_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the way of our pipeline of tf.data, which reads in the order of the source."""
    tf_dataset = package_name("tf_dataset")
    return {"columns": tf_dataset(folder / name, batch_size=BATCH).as_numpy_iterator}


def grain_on_ours_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of Grain with our dataset as its source."""
    import grain

    import shardwriter as sw

    data = sw.open(folder / name)
    raw = grain.MapDataset.source(data.raw())
    return {
        "shuffled": lambda: _grain_threads(grain.MapDataset.source(data).shuffle(seed=1)),
        "random": partial(one_by_one, raw, random_order(len(data))),
    }


def _grain_threads(source: Any) -> Any:
    import grain

    return source.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=BATCH))


def tensorflow_ways(every_core: bool, name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of tf.data; with ``every_core`` it chooses how many threads it has."""
    import tensorflow as tf

    paths = sorted(glob(f"{folder / name}.tfrecord-*-of-*"))
    parallel = tf.data.AUTOTUNE if every_core else None
    options = tf.data.Options()
    if not every_core:
        options.threading.private_threadpool_size = 1
        options.autotune.enabled = False
    specs = {
        key: tf.io.FixedLenFeature([] if size == 1 else [size], _tensorflow_type(tf, kind))
        for key, (kind, size) in KINDS[name].items()
    }
    raw = tf.data.TFRecordDataset(paths, num_parallel_reads=parallel, buffer_size=1 << 20)

    def one(payload: Any) -> Any:
        return tf.io.parse_single_example(payload, specs)

    def many(payloads: Any) -> Any:
        return tf.io.parse_example(payloads, specs)

    found = {
        "raw": raw,
        "decoded": raw.map(one, num_parallel_calls=parallel),
        "columns": raw.batch(BATCH).map(many, num_parallel_calls=parallel),
        "shuffled": raw.shuffle(BUFFER).map(one, num_parallel_calls=parallel),
    }
    if every_core:
        found = {way: dataset.prefetch(tf.data.AUTOTUNE) for way, dataset in found.items()}
    return {way: dataset.with_options(options).as_numpy_iterator for way, dataset in found.items()}


def _tensorflow_type(tf: Any, kind: str) -> Any:
    return tf.string if kind == "bytes" else tf.as_dtype(kind)


def tfrecord_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of the PyPI package tfrecord, in pure Python."""
    from tfrecord.iterator_utils import shuffle_iterator
    from tfrecord.reader import tfrecord_iterator, tfrecord_loader

    warnings.simplefilter("ignore")  # a set with fewer records than its buffer has
    paths = sorted(glob(f"{folder / name}.tfrecord-*-of-*"))

    def raw() -> Iterator[bytes]:
        # It yields one buffer again and again, so a record has to be copied.
        return (bytes(view) for path in paths for view in tfrecord_iterator(path))

    def decoded() -> Iterator[Any]:
        return (row for path in paths for row in tfrecord_loader(path, None))

    return {
        "raw": raw,
        "decoded": decoded,
        "shuffled": lambda: shuffle_iterator(decoded(), BUFFER),
    }


def grain_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of Grain's own source of TFRecords, and protobuf's parser."""
    import grain
    from grain.experimental import TFRecordIterDataset

    paths = sorted(glob(f"{folder / name}.tfrecord-*-of-*"))
    parse = example_parser(name)

    def shuffled() -> Iterator[Any]:
        for path in paths:
            records = TFRecordIterDataset(path).map(parse)
            yield from grain.experimental.WindowShuffleIterDataset(
                records, window_size=BUFFER, seed=1
            )

    return {
        "raw": lambda: (record for path in paths for record in TFRecordIterDataset(path)),
        "decoded": lambda: (
            record for path in paths for record in TFRecordIterDataset(path).map(parse)
        ),
        "shuffled": shuffled,
    }


def array_record_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of array_record's own data source, and protobuf's parser."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource(sorted(glob(f"{folder / name}-*.array")))
    order, parse = random_order(len(source)), example_parser(name)
    in_sequence = list(range(len(source)))
    return {
        "raw": partial(in_blocks, source.__getitems__, in_sequence),
        "decoded": lambda: map(parse, in_blocks(source.__getitems__, in_sequence)),
        "shuffled": lambda: map(parse, in_blocks(source.__getitems__, order)),
        "random": partial(one_by_one, source, order),
        "random-batched": partial(in_blocks, source.__getitems__, order),
        "random-decoded-batched": lambda: map(parse, in_blocks(source.__getitems__, order)),
    }


def grain_on_array_record_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of Grain with array_record as its source."""
    import grain

    source = grain.sources.ArrayRecordDataSource(sorted(glob(f"{folder / name}-*.array")))
    raw, parse = grain.MapDataset.source(source), example_parser(name)
    return {
        "shuffled": lambda: _grain_threads(raw.shuffle(seed=1).map(parse)),
        "random": partial(one_by_one, raw, random_order(len(source))),
    }


def webdataset_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Return the ways of WebDataset on tars; ``raw`` are the bytes of the files."""
    import webdataset

    def dataset() -> Any:
        tars = sorted(glob(f"{folder / name}-*.tar"))
        return webdataset.WebDataset(tars, shardshuffle=False)

    raw, decoded = dataset(), dataset().decode()
    shuffled = dataset().shuffle(BUFFER).decode()
    return {"raw": lambda: raw, "decoded": lambda: decoded, "shuffled": lambda: shuffled}


def _examples_of(one: Any, name: str, way: str) -> Iterator[dict[str, Any]]:
    """Yield the examples of what a pass yielded, so that all readers' can be compared."""
    if way == "columns":
        names = list(KINDS[name])
        for values in zip(*(one[key] for key in names), strict=True):
            yield dict(zip(names, values, strict=True))
    elif isinstance(one, bytes):
        yield example_parser(name)(one)
    else:
        yield tar_example(one) if "__key__" in one else one


def steps(reader: str, name: str, folder: str) -> dict[str, Step]:
    """Return the ways in which a reader reads a set."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    passes = READERS[reader](name, Path(folder))
    return {way: as_step(each, name, way) for way, each in passes.items()}


def as_step(read: Pass, name: str, way: str) -> Step:
    """Return what reads everything once and counts, and what digests all records."""

    def count() -> int:
        if way == "columns":
            first = next(iter(KINDS[name]))
            return sum(len(batch[first]) for batch in read())
        found = 0
        for _ in read():
            found += 1
        return found

    def check() -> str:
        return digest(one for some in read() for one in _examples_of(some, name, way))

    return Step(count, check)


READERS: dict[str, Callable[[str, Path], dict[str, Pass]]] = {
    "shardwriter": partial(shardwriter_ways, True),
    "shardwriter-unchecked": partial(shardwriter_ways, False),
    "shardwriter-torch": shardwriter_torch_ways,
    "shardwriter-tensorflow": shardwriter_tensorflow_ways,
    "grain-on-shardwriter": grain_on_ours_ways,
    "tensorflow": partial(tensorflow_ways, False),
    "tensorflow-all-cores": partial(tensorflow_ways, True),
    "tfrecord": tfrecord_ways,
    "grain": grain_ways,
    "array_record": array_record_ways,
    "grain-on-array_record": grain_on_array_record_ways,
    "webdataset": webdataset_ways,
}

# -- works -----------------------------------------------------------------------------------------

IN_SEQUENCE = ("raw", "decoded", "columns")
AT_RANDOM = ("shuffled", "random", "random-batched", "random-decoded-batched")
EVERYWHERE = ("raw", "decoded", "shuffled")
TARS, ARRAYS = "tar", "array"


class Reader:
    """What a reader can do, and what it needs.

    Args:
        ways: The works that it can do.
        modules: What its Python must have.
        reads: The format of its files.
    """

    def __init__(
        self, ways: Sequence[str], modules: tuple[str, ...] = (), reads: str = "tfrecord"
    ) -> None:
        self.ways, self.modules, self.reads = ways, modules, reads


ABILITIES = {
    "shardwriter": Reader(IN_SEQUENCE + AT_RANDOM),
    "shardwriter-unchecked": Reader(("raw", "decoded", "shuffled", "random")),
    "shardwriter-torch": Reader(("columns",), ("torch",)),
    "shardwriter-tensorflow": Reader(("columns",), ("tensorflow",)),
    "grain-on-shardwriter": Reader(("shuffled", "random"), ("grain", "tfrecord")),
    "tensorflow": Reader(IN_SEQUENCE, ("tensorflow",)),
    "tensorflow-all-cores": Reader((*IN_SEQUENCE, "shuffled"), ("tensorflow",)),
    "tfrecord": Reader(EVERYWHERE, ("tfrecord",)),
    "grain": Reader(EVERYWHERE, ("grain", "tfrecord")),
    "array_record": Reader(("raw", "decoded", *AT_RANDOM), ("array_record", "tfrecord"), ARRAYS),
    "grain-on-array_record": Reader(
        ("shuffled", "random"), ("grain", "array_record", "tfrecord"), ARRAYS
    ),
    "webdataset": Reader(EVERYWHERE, ("webdataset", "tfrecord"), TARS),
}


def make(case: Case) -> None:
    """Set the folder of the set; files are made when somebody reads them."""
    _, usual = SETS[case.name]
    case.count = max(NUM_READ_SHARDS, int(usual * case.size))
    case.source = case.folder / "inputs" / f"read-{case.name}-{case.count}"


def contenders(way: str, case: Case) -> list[Contender]:
    """Return everybody who can read in a way."""

    def contender(name: str, reader: Reader) -> Contender:
        def measure(turn: Turn) -> Run:
            folder = case.source / reader.reads
            words = turn.call_words(
                "benchmarks.read:make_set", case.name, folder, case.count, reader.reads
            )
            make_once(folder, lambda: turn.finish(words))
            return turn.ask("benchmarks.read:steps", name, case.name, folder, step=way)

        return Contender(
            name,
            measure,
            modules=reader.modules,
            one_core=way in IN_SEQUENCE and "all-cores" not in name,
            is_ours=name.startswith("shardwriter"),
        )

    return [contender(name, reader) for name, reader in ABILITIES.items() if way in reader.ways]


SUMMARIES = {
    "raw": "read all records in the order of the files, as bytes",
    "decoded": "read all records in the order of the files, decoded to NumPy",
    "columns": "read batches of 64 records, an array for each feature",
    "shuffled": "read decoded records in random order; peers without an index shuffle 1,000",
    "random": "read every record by its index in random order, one at a time, as bytes",
    "random-batched": "read every record by its index in random order, 64 at once, as bytes",
    "random-decoded-batched": "read every record by its index in random order, 64 at once, decoded",
}

WORKS = [
    Work(f"read-{way}", summary, tuple(SETS), make, partial(contenders, way))
    for way, summary in SUMMARIES.items()
]
