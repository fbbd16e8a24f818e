"""Time the statistics of all features against a tf.data loop with numpy that finds the same.

Both sides read the same file, one process each, and run in turn; medians are compared, so that a
noisy machine disturbs both alike. The processor's time is given beside: ours is of one thread.
The peer parses batches of 1,024 (and, of the table, records one at a time, as many do) with all
threads it wants, holds all values, and sorts each feature once: that gives quantiles and distinct
values together. Bytes are counted with a Counter; images are measured and hashed by TensorFlow's
own operations. First it is checked that both sides found the same.

    python scripts/bench_features.py [--rounds N] [--rows N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwriter.formats.example import encode_example
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.inspect.scan import PayloadStats

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

BATCH_ROWS = 1024
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
TARGET = 5.0


class Case(NamedTuple):
    """One comparison: the file, and the peer that finds {feature: (count, distinct values)}."""

    name: str
    path: Path
    num_rows: int
    peer: Callable[[], dict[str, tuple[int, int]]]
    batch_rows: int = BATCH_ROWS


def ours(path: Path, batch_rows: int) -> dict[str, Any]:
    """Gather the statistics of a file and make the report of it."""
    stats = PayloadStats(features=True, label=None)
    records = read_records(path)
    while batch := list(islice(records, batch_rows)):
        stats.add(batch)
    assert stats.features is not None
    return stats.features.to_json()


def number_stats(values: np.ndarray) -> tuple[int, int]:
    """Find what `NumberStats` finds, with one sort."""
    flat = values.reshape(-1)
    ordered = np.sort(flat)
    places = (np.array(QUANTILES) * (ordered.size - 1)).astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(starts, append=ordered.size)
    top = np.argsort(-counts, kind="stable")[:10]
    found = (ordered[0], ordered[-1], flat.mean(dtype=np.float64), flat.std(dtype=np.float64))
    extra = (np.count_nonzero(flat == 0), np.count_nonzero(~np.isfinite(flat)))
    _ = (ordered[places], ordered[starts[top]], found, extra)
    return flat.size, starts.size


def blob_stats(values: list[bytes]) -> tuple[int, int]:
    """Find what `BlobStats` finds of short values."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    counts = Counter(values)
    _ = (sizes.min(), sizes.max(), sizes.mean(), counts.most_common(10))
    return len(values), len(counts)


def parse_batches(
    path: Path, spec: dict[str, Any], *, single: bool = False
) -> dict[str, tuple[int, int]]:
    """Run the peer over records of numbers and short strings; ``single`` parses one at a time."""
    data = tf.data.TFRecordDataset(str(path))
    if single:
        data = data.map(lambda row: tf.io.parse_single_example(row, spec), tf.data.AUTOTUNE)
        data = data.batch(BATCH_ROWS)
    else:
        data = data.batch(BATCH_ROWS)
        data = data.map(lambda batch: tf.io.parse_example(batch, spec), tf.data.AUTOTUNE)
    held: dict[str, list[np.ndarray]] = {name: [] for name in spec}
    for batch in data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        for name, values in batch.items():
            held[name].append(values)
    joined = {name: np.concatenate(values) for name, values in held.items()}
    return {
        name: blob_stats(values.reshape(-1).tolist())
        if values.dtype == object
        else number_stats(values)
        for name, values in joined.items()
    }


def parse_images(path: Path) -> dict[str, tuple[int, int]]:
    """Run the peer over images: sizes, hashes and shapes by TensorFlow, without decoding."""
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": INT}

    def measure(payload: Any) -> Any:
        row = tf.io.parse_single_example(payload, spec)
        image = row["image"]
        hashed = tf.strings.to_hash_bucket_fast(image, 1 << 62)
        shape = tf.io.extract_jpeg_shape(image)
        return tf.strings.length(image), hashed, shape, tf.strings.substr(image, 0, 3), row["label"]

    data = tf.data.TFRecordDataset(str(path)).map(measure, tf.data.AUTOTUNE).batch(BATCH_ROWS)
    columns = list(zip(*data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator(), strict=True))
    sizes, hashes, shapes, heads, labels = map(np.concatenate, columns)
    _ = (sizes.min(), sizes.max(), sizes.mean(), shapes.min(0), shapes.max(0), shapes.mean(0))
    _ = Counter(heads.tolist())
    return {"image": (sizes.size, np.unique(hashes).size), "label": number_stats(labels)}


INT = tf.io.FixedLenFeature([], tf.int64)
FLOAT = tf.io.FixedLenFeature([], tf.float32)
TEXT = tf.io.FixedLenFeature([], tf.string)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows as one shard."""
    with TFRecordWriter(path) as writer:
        for row in rows:
            writer.write(encode_example(row))


def table_cases(folder: Path, num_rows: int) -> list[Case]:
    """20 features: 8 floats, 7 integers, 5 texts, as tables have them."""
    rng = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {}
    for i in range(8):
        columns[f"float_{i}"] = (rng.normal(size=num_rows) * 10**i).astype(np.float32).tolist()
    for i, limit in enumerate((2, 10, 90, 1000, 50_000, 10**6, 10**12)):
        columns[f"int_{i}"] = rng.integers(0, limit, num_rows).tolist()
    for i, limit in enumerate((2, 10, 500, 5_000, 10**6)):
        columns[f"text_{i}"] = [f"value {n}" for n in rng.integers(0, limit, num_rows)]
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    path = folder / "table.tfrecord"
    write(path, rows)
    kinds = {"float": FLOAT, "int": INT, "text": TEXT}
    spec = {name: kinds[name.partition("_")[0]] for name in columns}
    return [
        Case("table, parse_example", path, num_rows, lambda: parse_batches(path, spec)),
        Case(
            "table, parse_single",
            path,
            num_rows,
            lambda: parse_batches(path, spec, single=True),
        ),
    ]


def embedding_case(folder: Path, num_rows: int) -> Case:
    """768 floats and a label."""
    rng = np.random.default_rng(1)
    path = folder / "embedding.tfrecord"
    with TFRecordWriter(path) as writer:
        for _ in range(num_rows):
            row = {"x": rng.normal(size=768).astype(np.float32), "label": int(rng.integers(1000))}
            writer.write(encode_example(row))
    spec = {"x": tf.io.FixedLenFeature([768], tf.float32), "label": INT}
    return Case("768 floats, label", path, num_rows, lambda: parse_batches(path, spec))


def image_case(folder: Path, num_rows: int) -> Case:
    """JPEGs of about 110 kB and a label."""
    rng = np.random.default_rng(2)
    path = folder / "image.tfrecord"
    images = [
        tf.io.encode_jpeg(rng.integers(0, 256, (316, 316, 3)).astype(np.uint8), quality=94).numpy()
        for _ in range(50)
    ]
    with TFRecordWriter(path) as writer:
        for i in range(num_rows):
            image = images[i % 50] + b"%08d" % i
            writer.write(encode_example({"image": image, "label": int(rng.integers(1000))}))
    size = statistics.mean(map(len, images))
    return Case(f"{size / 1e3:.0f} kB JPEG, label", path, num_rows, lambda: parse_images(path), 16)


def check(case: Case) -> None:
    """Hold both sides' counts and distinct values against each other."""
    found = ours(case.path, case.batch_rows)
    for name, (count, distinct) in case.peer().items():
        entry = found[name]
        mine = entry["numbers"]["count"] if entry["numbers"] else entry["present"]
        low, high = entry["distinct"]["low"], entry["distinct"]["high"]
        # 95 of 100 are inside the bounds; twice as far is as good as certain.
        if mine != count or not 2 * low - high <= distinct <= 2 * high - low:
            raise SystemExit(
                f"{case.name}: {name}: {mine}, {entry['distinct']}: {count}, {distinct}"
            )


def time_s(function: Callable[[], object]) -> tuple[float, float]:
    """Time one call: elapsed, and the processor's, of all threads."""
    start, start_cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - start_cpu


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Check both sides, then time them in turn; medians, per record."""
    check(case)
    sides = (lambda: ours(case.path, case.batch_rows), case.peer)
    times: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds):
        for side, taken in zip(sides, times, strict=True):
            taken.append(time_s(side))
    mine, peer, mine_cpu, peer_cpu = (
        statistics.median(found[which] for found in taken) / case.num_rows
        for which in (0, 1)
        for taken in times
    )
    return {
        "case": case.name,
        "ours_us": round(mine * 1e6, 2),
        "tensorflow_us": round(peer * 1e6, 2),
        "speedup": round(peer / mine, 1),
        "ours_cpu_us": round(mine_cpu * 1e6, 2),
        "tensorflow_cpu_us": round(peer_cpu * 1e6, 2),
        "speedup_cpu": round(peer_cpu / mine_cpu, 1),
        "target": TARGET,
        "met": peer / mine >= TARGET,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the table")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [
            *table_cases(folder, options.rows),
            embedding_case(folder, options.rows // 4),
            image_case(folder, options.rows // 20),
        ]
        results = [measure(case, options.rounds) for case in cases]
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        head = f"{'us per record':24}{'ours':>9}{'tf.data':>11}{'speedup':>11}{'target':>8}"
        print(f"{head}{'cpu: ours':>12}{'tf.data':>11}{'speedup':>10}")
        for r in results:
            print(
                f"{r['case']:24}{r['ours_us']:>9}{r['tensorflow_us']:>11}{r['speedup']:>10}x"
                f"{r['target']:>7}x{r['ours_cpu_us']:>12}{r['tensorflow_cpu_us']:>11}"
                f"{r['speedup_cpu']:>9}x{'' if r['met'] else '  MISSED'}"
            )
    return 0 if all(r["met"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
