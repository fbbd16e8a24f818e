"""Resharding against ``cp``: 16 -> 7 -> 16 shards, and a copy of the same files, in turn.

    python scripts/bench_reshard.py [images|rows|small ...] [--mb 800] [--repeat 3] [--workers 2]
        [--folder DIR] [--json]

Records of 100 kB (images), of 1 to 3 kB (rows) and of 100 bytes (small), of random bytes. All
sides read from the page cache and write to one disk; what they wrote is brought to the disk and
deleted before the next begins. A round has ``cp`` of the 16 files, ``cp`` with ``sync`` of what it
wrote, and ``shardwriter reshard`` as a whole command (start-up, proof of every CRC and fsync
included) there and back; the last shards must be the first byte for byte. The first round is not
counted. ``inside`` is the time without start-up. Medians of seconds, and of cp's to ours.
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
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import shardwriter as sw

NAMES = ("images", "rows", "small")


def records(name: str, total_bytes: int) -> Iterator[bytes]:
    """Yield records of random bytes; what they hold makes no difference to anybody."""
    rng = np.random.default_rng(0)
    pool = rng.bytes(8 << 20)
    done = 0
    while done < total_bytes:
        size = {"images": 100_000, "rows": int(rng.integers(1000, 3000)), "small": 100}[name]
        begin = int(rng.integers(len(pool) - size))
        yield pool[begin : begin + size]
        done += size


def shards(folder: Path) -> list[Path]:
    """Return the shards of a folder, in order."""
    return sorted(folder.glob("x.tfrecord-*"))


def copied(source: Path, target: Path, then: str | None = None) -> float:
    """Return the seconds that ``cp`` takes, and a command behind it with the files that it made."""
    target.mkdir()
    commands = [["cp", *map(str, shards(source)), str(target)]]
    if then is not None:
        commands.append([then, *(str(target / path.name) for path in shards(source))])
    os.sync()
    begin = time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True)
    seconds = time.perf_counter() - begin
    shutil.rmtree(target)
    return seconds


def reshard(source: Path, out: Path, workers: int) -> tuple[float, float]:
    """Return the seconds of the whole command, and those that it says that it took."""
    command = [sys.executable, "-m", "shardwriter", "reshard", str(source), str(out)]
    options = ["-j", str(workers), "--json"]
    os.sync()
    begin = time.perf_counter()
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, json.loads(done.stdout)["elapsed_s"]


def measure(
    name: str, total_bytes: int, repeat: int, workers: int, folder: Path
) -> dict[str, float]:
    """Return medians of seconds, by side."""
    first, copy, there, back = (folder / each for each in ("first", "copy", "there", "back"))
    sw.write(records(name, total_bytes), first / "x@16")
    found: dict[str, list[float]] = {}
    for turn in range(repeat + 1):
        seconds = {"cp": copied(first, copy), "cp and sync": copied(first, copy, "sync")}
        seconds["16 to 7"], one = reshard(first / "x", there / "x@7", workers)
        seconds["7 to 16"], other = reshard(there / "x", back / "x@16", workers)
        seconds["inside"] = (one + other) / 2
        for old, new in zip(shards(first), shards(back), strict=True):
            assert subprocess.run(["cmp", old, new], check=False).returncode == 0, new
        shutil.rmtree(there)
        shutil.rmtree(back)
        if turn:
            for side, value in seconds.items():
                found.setdefault(side, []).append(value)
    shutil.rmtree(first)
    return {side: statistics.median(values) for side, values in found.items()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=[], metavar="|".join(NAMES))
    parser.add_argument("--mb", type=int, default=800)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    told = {}
    for name in options.names or NAMES:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = measure(
                name, options.mb * 1_000_000, options.repeat, options.workers, Path(folder)
            )
        told[name] = found
        if not options.json:
            cells = ", ".join(f"{side} {value:.2f}" for side, value in found.items())
            ours = (found["16 to 7"] + found["7 to 16"]) / 2
            print(
                f"{name}: {cells}; of the speed of cp {found['cp'] / ours:.2f}, "
                f"of cp and sync {found['cp and sync'] / ours:.2f}, "
                f"inside {found['cp and sync'] / found['inside']:.2f}"
            )
    if options.json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
