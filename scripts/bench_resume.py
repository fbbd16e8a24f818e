"""What a run that is killed half-way costs: the time to go on, and how much is done again.

    python scripts/bench_resume.py [images] [vectors] [--gigabytes 2] [--workers 2] [--repeat 3]

Writes a folder of images of 100 kB, or vectors of 768 floats, into 16 shards with the command: all
of it, and then once more, killed (SIGKILL) when half of the bytes are in the growing shards, and
gone on with. Whole runs and resumed ones take turns; the files at the end are compared. Done again
is what the files held at the kill, less what the resumed run says it has kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_write import COMMAND, HERE

NUM_SHARDS = 16
NUM_CLASSES = 10
IMAGE_BYTES = 100_000
PNG_HEAD = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 8, 8, 8, 0, 0, 0, 0)
LOOK_S = 0.002


def make_images(folder: Path, total_bytes: int) -> None:
    """Make files that have the head of an image and random bytes."""
    for number in range(total_bytes // IMAGE_BYTES):
        place = folder / f"class-{number % NUM_CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        data = PNG_HEAD + os.urandom(IMAGE_BYTES - len(PNG_HEAD))
        (place / f"{number:06d}.png").write_bytes(data)


def make_vectors(folder: Path, total_bytes: int) -> None:
    """Make the arrays that the dataset ``bench_data:Floats`` reads."""
    count = total_bytes // (4 * 768)
    folder.mkdir()
    np.save(folder / "label.npy", np.arange(count) % 1000)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (count, 768))
    rng = np.random.default_rng(0)
    for first in range(0, count, 10_000):
        x[first : first + 10_000] = rng.random((len(x[first : first + 10_000]), 768), np.float32)


WORKS = {"images": make_images, "vectors": make_vectors}


def run(source: Path, out: Path, workers: int, *more: str) -> tuple[float, str]:
    """Run the command to its end; return the seconds and what it said."""
    os.sync()
    command, environment = write_command(source, out, workers)
    started = time.perf_counter()
    done = subprocess.run(
        [*command, *more], check=True, capture_output=True, text=True, env=environment
    )
    return time.perf_counter() - started, done.stderr


def write_command(source: Path, out: Path, workers: int) -> tuple[list[str], dict[str, str]]:
    """Return the command, and its environment."""
    path = os.pathsep.join(filter(None, [str(HERE), os.getenv("PYTHONPATH")]))
    data = str(source) if source.name == "images" else "bench_data:Floats"
    command = [*COMMAND, "write", data, str(out / f"x@{NUM_SHARDS}"), "-j", str(workers)]
    return command, {**os.environ, "PYTHONPATH": path, "BENCH_SOURCE": str(source)}


def run_killed(source: Path, out: Path, workers: int, stop_bytes: int) -> int:
    """Run the command, kill it, and return the bytes that were in the growing shards."""
    os.sync()
    command, environment = write_command(source, out, workers)
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    while (found := grown_bytes(out)) < stop_bytes:
        if process.poll() is not None:
            raise SystemExit("it ended before it could be killed")
        time.sleep(LOOK_S)
    process.kill()
    process.wait()
    return max(found, grown_bytes(out))


def grown_bytes(out: Path) -> int:
    """Return how many bytes the growing shards have."""
    return sum(path.stat().st_size for path in out.glob(".x.partial/shard-*"))


def files(folder: Path) -> list[tuple[str, int]]:
    """Return names and checksums of what a run has made."""
    from google_crc32c import value

    return sorted((path.name, value(path.read_bytes())) for path in folder.iterdir())


def measure(name: str, work: Path, total_bytes: int, workers: int, repeat: int) -> dict[str, Any]:
    """Let whole runs and resumed ones take turns."""
    whole_s: list[float] = []
    resumed_s: list[float] = []
    again_bytes: list[int] = []
    source, out, reference = (work / folder for folder in (name, "out", "reference"))
    WORKS[name](source, total_bytes)
    for _ in range(repeat):
        shutil.rmtree(reference, ignore_errors=True)
        seconds, _ = run(source, reference, workers)
        whole_s.append(seconds)
        shutil.rmtree(out, ignore_errors=True)
        grown = run_killed(source, out, workers, total_bytes // 2)
        seconds, said = run(source, out, workers, "--resume")
        resumed_s.append(seconds)
        kept = re.search(r"kept ([\d,]+) records \(([\d,]+) bytes\)", said)
        if kept is None:
            raise SystemExit(f"nothing was kept: {said}")
        again_bytes.append(grown - int(kept[2].replace(",", "")))
        if files(out) != files(reference):
            raise SystemExit("the files differ")
        print(f"{whole_s[-1]:.2f} {resumed_s[-1]:.2f} {again_bytes[-1]:,}", file=sys.stderr)
    whole, resumed = statistics.median(whole_s), statistics.median(resumed_s)
    return {
        "work": name,
        "whole_s": whole,
        "resumed_s": resumed,
        "share": resumed / whole,
        "again_bytes_a_worker": max(again_bytes) / workers,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", help=", ".join(WORKS))
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    total_bytes = int(arguments.gigabytes * 1e9)
    found = []
    for name in arguments.works or WORKS:
        with tempfile.TemporaryDirectory() as work:
            found.append(
                measure(name, Path(work), total_bytes, arguments.workers, arguments.repeat)
            )
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for row in found:
        print(
            f"{row['work']}: whole {row['whole_s']:.2f} s, resumed {row['resumed_s']:.2f} s "
            f"({row['share']:.2f} of it), at most {row['again_bytes_a_worker'] / 1e6:,.0f} MB a "
            "worker done again, files identical"
        )


if __name__ == "__main__":
    main()
