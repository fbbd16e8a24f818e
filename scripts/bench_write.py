"""Whole commands, start-up included: shardwriter and what else writes such data, in turn.

    python scripts/bench_write.py [WORKLOAD ...] [--repeat 3] [--workers 2] [--scale 1] [--json]
        [--only-ours | --peers tensorflow,tensorflow-pool] [--peer-python PATH ...]

Workloads: images, floats, tokens, table, masks (bench_inputs.py makes them), tokens-gzip and
table-gzip, which are the same into gzip shards, and stats, which times ``shard-stats`` on about
300 MB of images from the page cache.

Everybody reads the same input and writes the same records to the same disk. A first round warms the
caches, is watched for memory and checked; it is not timed. The timed rounds begin with another one
each time. Medians are printed, and their ratios to ours. TensorFlow's shards must be ours byte for
byte (for resized images, nearly); other formats must hold the same records. Ours alone bring what
they wrote to the disk (fsync) before they end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from bench_check import check_bytes, check_frames, check_resized, our_digest
from bench_inputs import MAKERS, make_input
from bench_process import run_timed, run_watched

NUM_SHARDS = 16
HERE = Path(__file__).resolve().parent
COMMAND = [sys.executable, "-m", "shardwriter"]
GIVEN = {"floats": "bench_data:Floats", "tokens": "bench_data:Tokens", "masks": "bench_data:Masks"}
"""What our command is given, where that is not the input's path."""


class Peer(NamedTuple):
    """What a peer needs to be imported, and the workloads that it is measured on."""

    modules: tuple[str, ...]
    workloads: tuple[str, ...]


GZIP = "-gzip"
WORKLOADS = (*MAKERS, f"tokens{GZIP}", f"table{GZIP}")
_TENSORFLOW = ("tensorflow", "contextlib2", "imagesize")
PEERS = {
    "tensorflow": Peer(_TENSORFLOW, WORKLOADS),
    "tensorflow-pool": Peer(_TENSORFLOW, WORKLOADS),
    "tensorflow-data": Peer(_TENSORFLOW, ("masks",)),
    "tfrecord": Peer(("tfrecord", "imagesize"), ("images",)),
    "tfrecord-pool": Peer(("tfrecord", "imagesize"), ("images",)),
    "mds": Peer(("streaming",), ("floats", "table")),
    "mds-pool": Peer(("streaming",), ("floats", "table")),
    "webdataset": Peer(("webdataset",), ("tokens",)),
    "webdataset-pool": Peer(("webdataset",), ("tokens",)),
    "litdata": Peer(("litdata", "cv2"), ("masks",)),
}
"""``-pool``: as many processes as ours; LitData brings its own. ``-data``: tf.data's threads."""


class Contender(NamedTuple):
    """What is measured: its command for a folder, and what checks that folder against ours."""

    name: str
    command: Callable[[Path], list[str]]
    check: Callable[[Path, Path], None]


def our_contenders(workload: str, source: Path, workers: int) -> Iterator[Contender]:
    """Yield our command with a pool, where it knows of one, and in one process."""

    def contender(name: str, *options: str) -> Contender:
        def command(folder: Path) -> list[str]:
            ending = ".tfrecord.gz" if workload.endswith(GZIP) else ".tfrecord"
            given = GIVEN.get(workload.removesuffix(GZIP), str(source))
            return [*COMMAND, "write", given, str(folder / f"x@{NUM_SHARDS}{ending}"), *options]

        return Contender(name, command, partial(check_bytes, files="*"))

    if has_workers():
        yield contender(f"shardwriter -j {workers}", "-j", str(workers))
    yield contender("shardwriter serial", "--engine", "serial")


@cache
def has_workers() -> bool:
    """Tell whether our command knows ``-j``."""
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.run(
        [*COMMAND, "write", "--help"], env=environment, capture_output=True, text=True, check=True
    )
    return re.search(r"(?<!\S)-j\b", process.stdout) is not None


def peer_contender(
    peer: str, python: str, workload: str, source: Path, workers: int, environment: dict[str, str]
) -> Contender:
    """Return a peer on a workload, run by a Python that has its modules."""
    family, _, way = peer.partition("-")

    def run_script(script: str, *arguments: Any) -> list[str]:
        return [python, str(HERE / script), *map(str, arguments)]

    def command(folder: Path) -> list[str]:
        if family == "tensorflow":
            told = f"{workload}-data" if way == "data" else workload.removesuffix(GZIP)
            words = ["tensorflow_peers.py", told, source, folder / "x", NUM_SHARDS]
            words += ["--gzip"] * workload.endswith(GZIP)
        else:
            words = ["other_peers.py", family, folder, workload, source, NUM_SHARDS]
        if family == "litdata":
            words += ["--parts", workers]
        if way == "pool":
            words = ["peer_pool.py", workers, *words]
        return run_script(*words)

    def check_digest(ours: Path, theirs: Path) -> None:
        command = run_script("other_peers.py", family, theirs, "--digest")
        read = subprocess.run(command, env=environment, capture_output=True, text=True)
        if read.returncode or read.stdout.split()[-1] != our_digest(ours):
            raise SystemExit(f"{peer}: other records than ours\n{read.stdout}{read.stderr}")

    if family != "tensorflow":
        return Contender(peer, command, check_digest)
    if workload.endswith(GZIP):
        return Contender(peer, command, check_frames)
    return Contender(peer, command, check_resized if workload == "masks" else check_bytes)


def find_pythons(peers: list[str], candidates: list[str]) -> dict[str, str]:
    """Return for each peer the first Python that has its modules; say which have none."""
    found = {}
    for peer in peers:
        test = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
        for python in candidates:
            command = [python, "-c", test, *PEERS[peer].modules]
            if subprocess.run(command, capture_output=True).returncode == 0:
                found[peer] = python
                break
        else:
            missing = ", ".join(PEERS[peer].modules)
            print(f"left out: {peer} (no Python here has {missing})", file=sys.stderr)
    return found


def compare(
    contenders: list[Contender], work: Path, repeat: int, environment: dict[str, str]
) -> dict[str, Any]:
    """Measure all in turn; the first is what the others are compared with."""
    folders = {each.name: work / each.name.replace(" ", "-") for each in contenders}
    first = folders[contenders[0].name]

    def fresh(contender: Contender) -> list[str]:
        folder = folders[contender.name]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return contender.command(folder)

    def check() -> None:
        for contender in contenders[1:]:
            contender.check(first, folders[contender.name])

    memory = {each.name: run_watched(fresh(each), environment) for each in contenders}
    check()
    times: dict[str, list[float]] = {each.name: [] for each in contenders}
    for turn in range(repeat):
        at = turn % len(contenders)
        for contender in contenders[at:] + contenders[:at]:
            times[contender.name].append(run_timed(fresh(contender), environment))
    check()
    base = statistics.median(times[contenders[0].name])
    return {
        name: {
            "median_s": statistics.median(taken),
            "all_s": taken,
            "peak_mb": memory[name],
            "ratio": statistics.median(taken) / base,
        }
        for name, taken in times.items()
    }


def time_stats(images: Path, work: Path, repeat: int) -> dict[str, Any]:
    """Time shard-stats on image shards in the page cache."""
    from shardwriter.inspect.stats import stats

    out = work / "stats"
    command = [*COMMAND, "write", str(images), str(out / f"x@{NUM_SHARDS}")]
    subprocess.run(command, check=True, capture_output=True)
    stats(str(out))
    whole, scans = [], []
    for _ in range(repeat):
        whole.append(run_timed([*COMMAND, "stats", str(out)], dict(os.environ)))
        started = time.perf_counter()
        report = stats(str(out))
        scans.append(time.perf_counter() - started)
    gigabytes = report.file_bytes / 1e9
    return {
        "gigabytes": gigabytes,
        "command_gb_per_s": gigabytes / statistics.median(whole),
        "scan_gb_per_s": gigabytes / statistics.median(scans),
    }


def show(workload: str, count: int, megabytes: float, results: dict[str, Any]) -> None:
    """Print one workload's lines."""
    title = f"{workload}: {count:,} records, {megabytes:,.0f} MB read"
    print(f"{title:44}{'median s':>10}{'min':>8}{'max':>8}{'peak MB':>10}{'ratio':>8}")
    for name, result in results.items():
        seconds = (
            f"{result['median_s']:10.2f}{min(result['all_s']):8.2f}{max(result['all_s']):8.2f}"
        )
        print(f"  {name:42}{seconds}{result['peak_mb']:10.0f}{result['ratio']:8.2f}", flush=True)


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help=f"{', '.join(WORKLOADS)}, stats; all by default")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes of every pool")
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of records")
    parser.add_argument("--only-ours", action="store_true", help="no peers")
    parser.add_argument("--peers", default=",".join(PEERS), help="some of: %(default)s")
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="PATH",
        help="another Python to look for peers' packages in; can be given again",
    )
    parser.add_argument("--inputs", type=Path, help="keep the inputs here for the next time")
    parser.add_argument("--work", type=Path, help="folder for the output; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.what or [*WORKLOADS, "stats"]
    peers = [] if options.only_ours else options.peers.split(",")
    if unknown := {*wanted} - {*WORKLOADS, "stats"} or {*peers} - {*PEERS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    peers = [peer for peer in peers if {*PEERS[peer].workloads} & {*wanted}]
    pythons = find_pythons(peers, [sys.executable, *options.peer_python])
    if not has_workers():
        print("left out: shardwriter -j (this version has none)", file=sys.stderr)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        inputs = options.inputs or work / "inputs"
        for workload in wanted:
            made = "images" if workload == "stats" else workload.removesuffix(GZIP)
            source, count = make_input(inputs, made, options.scale)
            if workload == "stats":
                results[workload] = time_stats(source, work, options.repeat)
                if not options.json:
                    print(
                        "stats: " + ", ".join(f"{k} {v:.2f}" for k, v in results["stats"].items())
                    )
                continue
            environment = {
                **os.environ,
                "BENCH_SOURCE": str(source),
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.getenv("PYTHONPATH")])),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            contenders = [*our_contenders(workload, source, options.workers)]
            for peer, python in pythons.items():
                if workload in PEERS[peer].workloads:
                    arguments = (workload, source, options.workers, environment)
                    contenders.append(peer_contender(peer, python, *arguments))
            results[workload] = compare(contenders, work, options.repeat, environment)
            if not options.json:
                files = [source] if source.is_file() else source.rglob("*")
                megabytes = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
                show(workload, count, megabytes, results[workload])
            for contender in contenders:
                shutil.rmtree(work / contender.name.replace(" ", "-"))
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
