"""Whole commands, start-up included: shardwriter and the serial TensorFlow script, in turn.

    python scripts/bench_write.py [images] [table] [stats] [--repeat 3] [--scale 1] [--json]

Prints medians, the ratio of medians and the peak memory of each process. Both sides write the same
records (checked), to the same disk. ``stats`` times ``shard-stats`` on about 300 MB of images from
the page cache, as a whole command and its scan alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from make_demo_data import png

NUM_SHARDS = 16
NUM_IMAGES, NUM_CLASSES, IMAGE_SIDE_PIXELS = 4_000, 100, 163
NUM_ROWS = 300_000
HERE = Path(__file__).parent
COMMAND = [sys.executable, "-m", "shardwriter"]


def make_images(folder: Path, scale: float) -> Path:
    """Make PNG images of noise: about 80 kB each, in class folders."""
    rng = np.random.default_rng(1)
    for number in range(int(NUM_IMAGES * scale)):
        class_folder = folder / f"class{number % NUM_CLASSES:03d}"
        class_folder.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS, 3), np.uint8)
        (class_folder / f"{number:06d}.png").write_bytes(png(noise))
    return folder


def make_table(path: Path, scale: float) -> Path:
    """Make a table of six columns: two of each type."""
    rng = random.Random(1)
    cities = ["Basel", "Graz", "Gent", "Porto", "Turku", "Split", "Lille", "Bergen"]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "count", "price", "score", "city", "code"])
        for row in range(int(NUM_ROWS * scale)):
            price, score = rng.uniform(1, 1000), rng.gauss(0, 1)
            code = f"{rng.randrange(16**6):06x}"
            count = rng.randrange(5_000)
            table.writerow([row, count, f"{price:.2f}", f"{score:.6f}", rng.choice(cities), code])
    return path


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command; return its wall time in seconds and its peak memory in MB."""
    os.sync()  # or one run pays for the dirty pages of the run before
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        elapsed_s = time.perf_counter() - started
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{command} failed:\n{output.read().decode()}")
    return elapsed_s, usage.ru_maxrss / 1000


def compare(what: str, source: Path, work: Path, repeat: int) -> dict[str, Any]:
    """Time both sides in turn on the same input."""
    ours, theirs = work / "ours", work / "theirs"
    peer = [sys.executable, str(HERE / "tensorflow_peers.py"), what, str(source)]
    runs: dict[str, list[tuple[float, float]]] = {"shardwriter": [], "tensorflow": []}
    for _ in range(repeat):
        for folder in (ours, theirs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        command = [*COMMAND, "write", str(source), str(ours / f"x@{NUM_SHARDS}.tfrecord")]
        runs["shardwriter"].append(timed(command))
        runs["tensorflow"].append(timed([*peer, str(theirs / "x"), str(NUM_SHARDS)]))
    check_same(ours, theirs)
    result = {f"{name}_s": statistics.median(t for t, _ in r) for name, r in runs.items()}
    result |= {f"{name}_peak_mb": max(m for _, m in r) for name, r in runs.items()}
    result["ratio"] = result["tensorflow_s"] / result["shardwriter_s"]
    return result


def check_same(ours: Path, theirs: Path) -> None:
    """Stop unless all shards are the same bytes."""
    names = sorted(path.name for path in theirs.iterdir())
    different = [n for n in names if (ours / n).read_bytes() != (theirs / n).read_bytes()]
    if not names or different:
        raise SystemExit(f"the shards differ: {different or 'none were written'}")


def time_stats(images: Path, work: Path, repeat: int) -> dict[str, Any]:
    """Time shard-stats on image shards in the page cache."""
    from shardwriter.stats import stats

    out = work / "stats"
    subprocess.run(
        [*COMMAND, "write", str(images), str(out / f"x@{NUM_SHARDS}")],
        check=True,
        capture_output=True,
    )
    stats(str(out))
    whole, scans = [], []
    for _ in range(repeat):
        whole.append(timed([*COMMAND, "stats", str(out)])[0])
        started = time.perf_counter()
        report = stats(str(out))
        scans.append(time.perf_counter() - started)
    gigabytes = report.file_bytes / 1e9
    return {
        "gigabytes": gigabytes,
        "command_gb_per_s": gigabytes / statistics.median(whole),
        "scan_gb_per_s": gigabytes / statistics.median(scans),
    }


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="images, table, stats; all by default")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of items")
    parser.add_argument("--work", type=Path, help="folder for the files; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.what or ["images", "table", "stats"]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        if "images" in wanted or "stats" in wanted:
            images = make_images(work / "images", options.scale)
        if "images" in wanted:
            results["images"] = compare("images", images, work, options.repeat)
        if "table" in wanted:
            table = make_table(work / "table.csv", options.scale)
            results["table"] = compare("table", table, work, options.repeat)
        if "stats" in wanted:
            results["stats"] = time_stats(images, work, options.repeat)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for what, figures in results.items():
        print(what + ": " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
