"""What it costs to prove shards, against the best that tf.data does.

    python scripts/bench_stats.py [index] [count] [prove] [small] [--repeat 5] [--scale 1] [--json]

``index``: how many records there are in 300 MB of images of about 110 kB, by the dataset's index.
``count``: the same images by the headers of their records, as files of others have to be counted.
``prove``: the same images with both checksums of every record.
``small``: 1,000,000 records of 100 bytes with both checksums.

Both sides have one core: the process is bound to it before TensorFlow starts, so that TensorFlow
sees no other, and tf.data's own pool has one thread. Each of tf.data's forms has a turn in every
round, and so has ours; what counts is the form whose median is best. tf.data proves what it counts,
and can not do otherwise. Files are in the system's cache; our figure is the scan of ``shard-stats``
with the CRC of the whole file, where payloads are read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shardwriter as sw
from shardwriter.inspect.scan import ScanOptions, scan_file

IMAGES_BYTES, IMAGE_BYTES = 300_000_000, (90_000, 130_000)
NUM_SMALL, SMALL_BYTES = 1_000_000, 100

Count = Callable[[], int]


def make_images(path: Path, scale: float) -> int:
    """Write records of the sizes of photographs, as a dataset of one shard; return how many."""
    rng = np.random.default_rng(1)

    def records() -> Iterator[bytes]:
        left = int(IMAGES_BYTES * scale)
        while left > 0:
            size = int(rng.integers(*IMAGE_BYTES))
            yield rng.bytes(size)
            left -= size

    manifest = sw.write(records, path.parent / "images@1")
    path.symlink_to(manifest.pattern.shard_file(0))
    return manifest.num_records


def make_small(path: Path, scale: float) -> int:
    """Write short records of one size; return how many."""
    rng = np.random.default_rng(2)
    count = int(NUM_SMALL * scale)
    data = rng.bytes(count * SMALL_BYTES)
    with sw.TFRecordWriter(path) as writer:
        for start in range(0, len(data), SMALL_BYTES):
            writer.write(data[start : start + SMALL_BYTES])
    return writer.num_records


def tensorflow_forms(path: Path) -> dict[str, Count]:
    """Return ways to count records with tf.data, all of which prove them."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False

    def dataset(batch: int, **reading: Any) -> Any:
        found = tf.data.TFRecordDataset([str(path)], **reading)
        return (found.batch(batch) if batch else found).with_options(options)

    def by_reduce(batch: int, **reading: Any) -> int:
        def add(total: Any, some: Any) -> Any:
            return total + (tf.size(some, out_type=tf.int64) if batch else np.int64(1))

        return int(dataset(batch, **reading).reduce(np.int64(0), add).numpy())

    def by_loop(batch: int, **reading: Any) -> int:
        return sum(int(some.shape[0]) for some in dataset(batch, **reading))

    large = {"buffer_size": 8 << 20}
    return {
        "reduce": partial(by_reduce, 0),
        "batch(64), loop": partial(by_loop, 64),
        "batch(64), reduce": partial(by_reduce, 64, buffer_size=1 << 20),
        "batch(1024), loop": partial(by_loop, 1024),
        "batch(1024), reduce": partial(by_reduce, 1024, **large),
        "batch(1024), reduce, parallel reads": partial(
            by_reduce, 1024, num_parallel_reads=2, **large
        ),
    }


def our_count(path: Path, options: ScanOptions) -> int:
    """Count records with a scan; damage stops the benchmark."""
    scan = scan_file(str(path), options)
    if scan.num_defects:
        raise SystemExit(f"{path}: {scan.defects[0]}")
    return scan.num_records


def count_by_index(path: Path) -> int:
    """Count the records of the dataset that a shard is of, as ``shard-stats --check none`` does."""
    report = sw.stats(path.parent / "images", check="none")
    if report.num_defects:
        raise SystemExit(report.verdict)
    return report.sizes.count


def time_in_turn(forms: dict[str, Count], wanted: int, repeat: int) -> dict[str, float]:
    """Return the median seconds of each form; they take turns, after a round that warms up."""
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for round_number in range(repeat + 1):
        for name, count in forms.items():
            started = time.perf_counter()
            found = count()
            seconds = time.perf_counter() - started
            if found != wanted:
                raise SystemExit(f"{name}: {found} records, not {wanted}")
            if round_number:
                taken[name].append(seconds)
    return {name: statistics.median(times) for name, times in taken.items()}


MAKERS = {"images": make_images, "small": make_small}
CASES = {
    "index": ("images", ScanOptions("none")),
    "count": ("images", ScanOptions("length")),
    "prove": ("images", ScanOptions("crc")),
    "small": ("small", ScanOptions("crc")),
}


def compare(case: str, work: Path, repeat: int, scale: float) -> dict[str, Any]:
    """Run one case; return medians and the ratio of the best tf.data form to ours."""
    kind, options = CASES[case]
    path = work / f"{kind}.tfrecord"
    count_path = work / f"{kind}.count"
    if not count_path.exists():
        count_path.write_text(str(MAKERS[kind](path, scale)))
    wanted = int(count_path.read_text())
    ours_is: Count = partial(our_count, path, options)
    if case == "index":
        ours_is = partial(count_by_index, path)
    forms = {"shardwriter": ours_is, **tensorflow_forms(path)}
    seconds = time_in_turn(forms, wanted, repeat)
    ours = seconds.pop("shardwriter")
    best = min(seconds, key=lambda name: seconds[name])
    return {
        "case": case,
        "records": wanted,
        "bytes": path.stat().st_size,
        "ours_s": ours,
        "tensorflow_s": seconds,
        "best_form": best,
        "ratio": seconds[best] / ours,
    }


def show(results: list[dict[str, Any]]) -> None:
    """Print a table."""
    titles = ("case", "records/s", "GB/s", "ours s", "tf.data s", "ratio")
    print(f"{titles[0]:8}{titles[1]:>14}{titles[2]:>8}{titles[3]:>10}{titles[4]:>11}{titles[5]:>8}")
    for r in results:
        rate, speed = r["records"] / r["ours_s"], r["bytes"] / r["ours_s"] / 1e9
        theirs = r["tensorflow_s"][r["best_form"]]
        print(
            f"{r['case']:8}{rate:14,.0f}{speed:8.2f}{r['ours_s']:10.4f}{theirs:11.4f}"
            f"{r['ratio']:8.1f}  ({r['best_form']})"
        )


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help="index, count, prove, small; all by default")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the inputs")
    parser.add_argument("--work", type=Path, help="folder for the inputs; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        results = [
            compare(case, Path(folder), options.repeat, options.scale)
            for case in options.what or CASES
        ]
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        show(results)


if __name__ == "__main__":
    main()
