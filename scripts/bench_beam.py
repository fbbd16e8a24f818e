"""Writing with Beam: our transforms, Beam's own WriteToTFRecord, and a process pool, in turn.

    python scripts/bench_beam.py [records] [floats] [images] [memory] [--rounds 5] [--json]

Every side writes the same records into 16 shards, in a fresh process:

- ``strided``, ``chunked``: ``WriteShards(source=...)`` with this strategy
- ``keyed``: ``Create(range(n)) | Reshuffle | Map(item) | WriteShards(key=...)``
- ``peer``: the same items, ``| WriteToTFRecord(num_shards=16)``; where items are features they are
  encoded before, with tf.train.Example (``peer-tensorflow``) or ``encode_example`` (``peer-ours``)
- ``dask-strided``, ``dask-chunked``: on DaskRunner, with a cluster of 2 processes that is up
- ``pool``: no Beam, ``write(workers=2)``

All others run on FnApiRunner, in one process. ``records`` are finished ones of 1 kB, ``floats``
dicts of 768 floats, ``images`` files of about 80 kB. ``memory`` is ``strided`` for 10,000 to
1,000,000 records of 1 kB.

A first round warms the caches and is not timed; there all sides' records are compared. Timed rounds
begin with another side each time. What every run wrote is held against the serial engine's shards,
and against the same side's run before: at least so many shards were the same. Seconds are medians,
of the pipeline (from making it; imports are done) and of the whole process. The peak is of that one
process, which for FnApiRunner is all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench_check import our_digest
from bench_inputs import NUM_FLOATS, make_floats, make_images
from bench_process import run_timed
from bench_write import HERE

from shardwriter import read_records

NUM_SHARDS = 16
NUM_RECORDS, NUM_VECTORS = 200_000, 100_000
MEMORY_COUNTS = (10_000, 100_000, 1_000_000)
CLUSTER_WORKERS = 2
PEERS = {
    "records": ("peer",),
    "floats": ("peer-tensorflow", "peer-ours"),
    "images": ("peer-tensorflow", "peer-ours"),
}
OURS = ("strided", "chunked", "keyed")
OTHERS = ("pool", "dask-strided", "dask-chunked")
SIDES_SCRIPT = str(HERE / "beam_sides.py")

Digests = dict[str, str]
"""Of each shard, by its name."""


def make_source(work: str, folder: Path) -> int:
    """Make what a workload reads; return how many items there are."""
    if work == "records":
        return NUM_RECORDS
    if work == "images":
        return make_images(folder, 1.0)
    return make_floats(folder, NUM_VECTORS / NUM_FLOATS)


@contextmanager
def cluster(environment: dict[str, str]) -> Iterator[str]:
    """Run a Dask cluster beside; yield its address."""
    command = [sys.executable, SIDES_SCRIPT, "--cluster", str(CLUSTER_WORKERS)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


class Bench:
    """Runs the sides of one workload."""

    def __init__(self, work: str, folder: Path, environment: dict[str, str], address: str) -> None:
        self.work = work
        self.folder = folder
        self.environment = environment
        self.address = address

    def run(self, side: str) -> dict[str, Any]:
        """Write once; return the seconds and the peak."""
        out, report = self.out(side), self.folder / "report.json"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        command = [sys.executable, SIDES_SCRIPT, side, self.work, str(out / "x@16.tfrecord")]
        command += [str(NUM_SHARDS), str(report)]
        if side.startswith("dask"):
            command += ["--address", self.address]
        whole_s = run_timed(command, self.environment)
        return {**json.loads(report.read_text()), "whole_s": whole_s}

    def out(self, side: str) -> Path:
        """Return where a side writes."""
        return self.folder / side

    def shards(self, side: str) -> list[Path]:
        """Return what it has written."""
        found = sorted(self.out(side).glob("x-*.tfrecord"))
        if len(found) != NUM_SHARDS:
            raise SystemExit(f"{side}: {len(found)} shards")
        return found

    def digests(self, side: str) -> Digests:
        """Return what tells one dataset from another."""
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in self.shards(side)}

    def content(self, side: str) -> str:
        """Return a digest of all records, whatever their order.

        TensorFlow serializes features in an order of its own: where it takes part they are decoded.
        """
        if "peer-tensorflow" in PEERS[self.work]:
            return our_digest(self.out(side))
        shards = self.shards(side)
        records = (record for path in shards for record in read_records(path))
        digests = sorted(sha256(record).digest() for record in records)
        return f"{len(digests)}-{sha256(b''.join(digests)).hexdigest()}"

    def drop(self, side: str) -> None:
        """Take away what it has written."""
        shutil.rmtree(self.out(side))


def same(one: Digests, other: Digests) -> int:
    """Return how many shards are the same."""
    return sum(other.get(name) == digest for name, digest in one.items())


def compare(bench: Bench, rounds: int) -> dict[str, Any]:
    """Measure all sides of a workload."""
    sides = [*OURS, *PEERS[bench.work], *OTHERS]
    expected: dict[str, Digests] = {}
    found: dict[str, str] = {}
    for side in ("serial", "serial-key", *sides):
        bench.run(side)
        expected[side] = bench.digests(side)
        found[side] = bench.content(side)
        bench.drop(side)
    for side in sides:
        if found[side] != found["serial"]:
            raise SystemExit(f"{side}: other records than the serial engine")
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    equal: dict[str, list[int]] = {}
    again: dict[str, list[int]] = {}
    last = dict(expected)
    for turn in range(rounds):
        at = turn % len(sides)
        for side in sides[at:] + sides[:at]:
            runs[side].append(bench.run(side))
            made = bench.digests(side)
            serial = expected["serial-key" if side == "keyed" else "serial"]
            equal.setdefault(side, []).append(same(made, serial))
            again.setdefault(side, []).append(same(made, last[side]))
            last[side] = made
            bench.drop(side)
    return {
        side: {
            **{name: statistics.median(run[name] for run in taken) for name in taken[0]},
            "all_pipeline_s": [run["pipeline_s"] for run in taken],
            "equal_serial": equal[side],
            "equal_run_before": again[side],
        }
        for side, taken in runs.items()
    }


def show(work: str, count: int, results: dict[str, Any]) -> None:
    """Print one workload's lines."""
    base = results[PEERS[work][-1]]
    title = f"{work}: {count:,} items"
    print(f"{title:24}{'pipeline':>10}{'min':>8}{'max':>8}{'/ peer':>8}{'items/s':>10}", end="")
    print(f"{'whole':>8}{'/ peer':>8}{'peak MB':>9}{'serial':>8}{'again':>7}")
    for side, result in results.items():
        taken = result["all_pipeline_s"]
        seconds, whole_s = result["pipeline_s"], result["whole_s"]
        line = f"  {side:22}{seconds:10.2f}{min(taken):8.2f}{max(taken):8.2f}"
        line += f"{seconds / base['pipeline_s']:8.2f}{count / seconds:10,.0f}"
        line += f"{whole_s:8.2f}{whole_s / base['whole_s']:8.2f}{result['peak_mb']:9.0f}"
        print(
            line + f"{min(result['equal_serial']):8}{min(result['equal_run_before']):7}", flush=True
        )


def measure(work: str, folder: Path, rounds: int) -> tuple[int, dict[str, Any]]:
    """Measure a workload; return how many items it has, and what was found."""
    source = folder / "source"
    count = make_source(work, source)
    environment = new_environment(count, source)
    with cluster(environment) as address:
        return count, compare(Bench(work, folder, environment, address), rounds)


def measure_memory(folder: Path) -> dict[int, dict[str, Any]]:
    """Measure one process that writes more and more records."""
    found = {}
    for count in MEMORY_COUNTS:
        bench = Bench("records", folder, new_environment(count, folder), "")
        found[count] = bench.run("strided")
        bench.drop("strided")
    return found


def new_environment(count: int, source: Path) -> dict[str, str]:
    """Return the environment of every process."""
    return {
        **os.environ,
        "BENCH_COUNT": str(count),
        "BENCH_SOURCE": str(source),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.getenv("PYTHONPATH")])),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help=f"{', '.join(PEERS)}, memory; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, help="folder for the output; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.what or [*PEERS, "memory"]
    if unknown := {*wanted} - {*PEERS, "memory"}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    results: dict[str, Any] = {}
    for what in wanted:
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            if what == "memory":
                results[what] = measure_memory(Path(folder))
            else:
                count, results[what] = measure(what, Path(folder), options.rounds)
        if options.json:
            print(f"{what}: done", file=sys.stderr)
            continue
        if what == "memory":
            for count, result in results[what].items():
                line = f"{result['peak_mb']:6.0f} MB{result['pipeline_s']:8.2f} s"
                print(f"memory: {count:9,} records {line}", flush=True)
        else:
            show(what, count, results[what])
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
