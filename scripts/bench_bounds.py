"""How much memory the extremes take: peaks of all processes of a write together.

    python scripts/bench_bounds.py [records] [record] [classes] [shards] [--workers 2] [--json]

``records``: 10 million records of 8 bytes, one after the other from a generator, into 16 shards.
``record``: one record of 1.9 GiB. ``classes``: a folder with 100,000 class folders of one image.
``shards``: a million items at hand, into 100,000 shards. Each in one process and in a pool; every
dataset is held against its manifest afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_data import Small
from bench_process import run_watched
from bench_write import COMMAND, HERE

NUM_RECORDS = 10_000_000
RECORD_BYTES = 1_900 * 1024 * 1024
NUM_CLASSES = 100_000
NUM_SHARDS = 100_000
NUM_ITEMS = 1_000_000

PNG_HEAD = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 8, 8, 8, 0, 0, 0, 0)


def records() -> Iterator[bytes]:
    """Yield many tiny records."""
    for index in range(NUM_RECORDS):
        yield index.to_bytes(8, "little")


def record() -> Iterator[bytes]:
    """Yield one record, about as large as one may be."""
    yield bytes(RECORD_BYTES)


def shards() -> Small:
    """Return items of which any is at hand."""
    return Small(NUM_ITEMS)


def make_classes(folder: Path) -> None:
    """Make a folder for each class, with an image of a few bytes."""
    for number in range(NUM_CLASSES):
        place = folder / f"class-{number:06d}"
        place.mkdir(parents=True)
        (place / "a.png").write_bytes(PNG_HEAD + bytes(32))


CASES: dict[str, tuple[str, str]] = {
    "records": ("bench_bounds:records", "x@16"),
    "record": ("bench_bounds:record", "x@2"),
    "classes": ("classes", "x@16"),
    "shards": ("bench_bounds:shards", f"x@{NUM_SHARDS}"),
}


def measure(case: str, work: Path, workers: int | None) -> dict[str, Any]:
    """Write once, and return the peak; the dataset is proven afterwards."""
    source, name = CASES[case]
    if case == "classes":
        source = str(work / "classes")
        if not os.path.isdir(source):
            make_classes(Path(source))
    path = os.pathsep.join(filter(None, [str(HERE), os.getenv("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    out = str(work / "out" / name)
    engine = ["--engine", "serial"] if workers is None else ["-j", str(workers)]
    peak_mb = run_watched([*COMMAND, "write", source, out, *engine], environment)
    run_watched([*COMMAND, "verify", out], environment)
    shutil.rmtree(work / "out")
    return {"case": case, "engine": "serial" if workers is None else workers, "peak_mb": peak_mb}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as work:
        for case in arguments.cases or CASES:
            for workers in (None, arguments.workers):
                found.append(measure(case, Path(work), workers))
                print(found[-1], file=sys.stderr)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for row in found:
            print(f"{row['case']:8} {row['engine']!s:>7} {row['peak_mb']:8,.0f} MB")


if __name__ == "__main__":
    main()
