"""One side of bench_read.py, in a process of its own: it reads when it is told to.

    python scripts/read_sides.py SIDE FOLDER [--core NUMBER]

Each line on its input is a JSON list ``[set, way, check]``. It answers with a line
``{"num_records", "seconds", "cpu_s"}``, and with ``check`` of ``{"num_records", "digest"}``: of all
that it handed out, whatever its order. Datasets are opened before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from glob import glob
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from bench_data import digest
from read_sets import KINDS, tar_example

BATCH = 64
BUFFER = 1000  # records that a reader in sequence shuffles among

Pass = Callable[[], Iterable[Any]]
"""Read everything once; what comes are payloads, examples, or batches as a dict of columns."""


def in_blocks(ask: Callable[[list[int]], Sequence[Any]], order: list[int]) -> Iterator[Any]:
    """Ask for a batch of indices at a time."""
    for start in range(0, len(order), BATCH):
        yield from ask(order[start : start + BATCH])


def one_by_one(source: Any, order: list[int]) -> Iterator[Any]:
    """Ask for one index at a time."""
    return (source[index] for index in order)


def random_order(count: int) -> list[int]:
    """Return the order in which every side with random access is asked."""
    return [int(index) for index in np.random.default_rng(9).permutation(count)]


@cache
def example_parser(name: str) -> Callable[[bytes], dict[str, Any]]:
    """Return what parses a payload into NumPy, with protobuf's own parser."""
    message: Any
    if "tensorflow" in sys.modules:  # where the other package can not be imported
        message = sys.modules["tensorflow"].train.Example
    else:
        from tfrecord.example_pb2 import Example as message

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
    """Ours, by ``shardwriter.open``; without ``check`` no CRC is looked at."""
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
        "random raw": partial(one_by_one, raw, order),
        "random raw, batched": partial(in_blocks, raw.__getitems__, order),
        "random decoded, batched": partial(in_blocks, data.__getitems__, order),
    }


def shardwriter_torch_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Our loader of torch tensors, which has no worker processes here."""
    from shardwriter.reading.torch import ShardLoader

    loader = ShardLoader(folder / name, batch_size=BATCH)
    return {"columns": lambda: loader}


def shardwriter_tensorflow_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Our pipeline of tf.data, which reads in the order of the source."""
    from shardwriter.reading.tensorflow import tf_dataset

    return {"columns": tf_dataset(folder / name, batch_size=BATCH).as_numpy_iterator}


def grain_on_ours_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Grain, with ours as its source."""
    import grain

    import shardwriter as sw

    data = sw.open(folder / name)
    raw = grain.MapDataset.source(data.raw())
    return {
        "shuffled": lambda: _grain_threads(grain.MapDataset.source(data).shuffle(seed=1)),
        "random raw": partial(one_by_one, raw, random_order(len(data))),
    }


def _grain_threads(source: Any) -> Any:
    import grain

    return source.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=BATCH))


def tensorflow_ways(every_core: bool, name: str, folder: Path) -> dict[str, Pass]:
    """tf.data as NumPy; with ``every_core`` it chooses how many threads read and parse."""
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
    """The PyPI package tfrecord, in pure Python."""
    from tfrecord.iterator_utils import shuffle_iterator
    from tfrecord.reader import tfrecord_iterator, tfrecord_loader

    warnings.simplefilter("ignore")  # a set with fewer records than its buffer has
    paths = sorted(glob(f"{folder / name}.tfrecord-*-of-*"))

    def raw() -> Iterator[bytes]:
        # It hands out one buffer again and again: who keeps a record has to copy it.
        return (bytes(view) for path in paths for view in tfrecord_iterator(path))

    def decoded() -> Iterator[Any]:
        return (row for path in paths for row in tfrecord_loader(path, None))

    return {
        "raw": raw,
        "decoded": decoded,
        "shuffled": lambda: shuffle_iterator(decoded(), BUFFER),
    }


def grain_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Grain's own source of TFRecords, one file after the other, and protobuf's parser."""
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
    """array_record's own data source and protobuf's parser."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource(sorted(glob(f"{folder / name}-*.array")))
    order, parse = random_order(len(source)), example_parser(name)
    in_sequence = list(range(len(source)))
    return {
        "raw": partial(in_blocks, source.__getitems__, in_sequence),
        "decoded": lambda: map(parse, in_blocks(source.__getitems__, in_sequence)),
        "shuffled": lambda: map(parse, in_blocks(source.__getitems__, order)),
        "random raw": partial(one_by_one, source, order),
        "random raw, batched": partial(in_blocks, source.__getitems__, order),
        "random decoded, batched": lambda: map(parse, in_blocks(source.__getitems__, order)),
    }


def grain_on_array_record_ways(name: str, folder: Path) -> dict[str, Pass]:
    """Grain, with array_record as its source."""
    import grain

    source = grain.sources.ArrayRecordDataSource(sorted(glob(f"{folder / name}-*.array")))
    raw, parse = grain.MapDataset.source(source), example_parser(name)
    return {
        "shuffled": lambda: _grain_threads(raw.shuffle(seed=1).map(parse)),
        "random raw": partial(one_by_one, raw, random_order(len(source))),
    }


def webdataset_ways(name: str, folder: Path) -> dict[str, Pass]:
    """WebDataset on tars; ``raw`` are the bytes of the files."""
    import webdataset

    def dataset() -> Any:
        tars = sorted(glob(f"{folder / name}-*.tar"))
        return webdataset.WebDataset(tars, shardshuffle=False)

    raw, decoded = dataset(), dataset().decode()
    shuffled = dataset().shuffle(BUFFER).decode()
    return {"raw": lambda: raw, "decoded": lambda: decoded, "shuffled": lambda: shuffled}


SIDES: dict[str, Callable[[str, Path], dict[str, Pass]]] = {
    "shardwriter": partial(shardwriter_ways, True),
    "shardwriter, no CRC": partial(shardwriter_ways, False),
    "shardwriter.torch": shardwriter_torch_ways,
    "shardwriter.tensorflow": shardwriter_tensorflow_ways,
    "grain on shardwriter": grain_on_ours_ways,
    "tf.data": partial(tensorflow_ways, False),
    "tf.data, all cores": partial(tensorflow_ways, True),
    "tfrecord": tfrecord_ways,
    "grain": grain_ways,
    "array_record": array_record_ways,
    "grain on array_record": grain_on_array_record_ways,
    "webdataset": webdataset_ways,
}


def _examples_of(one: Any, name: str, way: str) -> Iterator[dict[str, Any]]:
    """Yield the examples in what a pass handed out, so that all sides' compare."""
    if way == "columns":
        names = list(KINDS[name])
        for values in zip(*(one[key] for key in names), strict=True):
            yield dict(zip(names, values, strict=True))
    elif isinstance(one, bytes):
        yield example_parser(name)(one)
    else:
        yield tar_example(one) if "__key__" in one else one


def read(ways: dict[str, Pass], name: str, way: str, check: bool) -> dict[str, Any]:
    """Read everything once and say how long that took; with ``check`` also what came."""
    if check:
        examples = [one for some in ways[way]() for one in _examples_of(some, name, way)]
        return {"num_records": len(examples), "digest": digest(examples)}
    count = 0
    first = next(iter(KINDS[name]))
    start, cpu_start = time.perf_counter(), time.process_time()
    if way == "columns":
        for batch in ways[way]():
            count += len(batch[first])
    else:
        for _ in ways[way]():
            count += 1
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    return {"num_records": count, "seconds": seconds, "cpu_s": cpu_s}


def main() -> None:
    """Answer until the input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--core", type=int, help="the only one that this side has")
    options = parser.parse_args()
    if options.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})
    ways = cache(partial(SIDES[options.side], folder=options.folder))
    for line in sys.stdin:
        name, way, check = json.loads(line)
        print(json.dumps(read(ways(name), name, way, check)), flush=True)


if __name__ == "__main__":
    main()
