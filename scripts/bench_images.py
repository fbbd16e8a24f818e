"""Time ``shardwriter write --max-side`` against a loop of Pillow that makes the same records.

    python scripts/bench_images.py [--images 300] [--width 1600] [--height 1200] [--max-side 256]
        [--workers 2] [--repeat 3] [--json]

The peers open every JPEG, make it RGB, shrink it by Lanczos' filter, encode it with the same
quality and write the records of all into one file, by our own codec and writer: so what is compared
is the work on images. ``loop`` decodes whole images in one process; ``loop-draft`` has Pillow's
``thumbnail`` decode them smaller, as we do; ``pool`` is the first with as many processes as ours,
that send small files to the one that writes. All commands begin with a new interpreter, in turn;
medians are compared, and beside them the time of all processors, which neighbours disturb less.
Then our pictures are held against the loop's (PSNR).
"""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import shardwriter as sw

QUALITY = 95
PEERS = ("loop", "loop-draft", "pool")


def make_photos(folder: Path, count: int, width: int, height: int) -> None:
    """Make JPEG files with detail of all sizes; an image depends on its number alone."""
    folder.mkdir()
    for number in range(count):
        rng = np.random.default_rng([11, number])
        pixels = np.zeros((height, width, 3), np.float32)
        for cells, strength in ((4, 60), (24, 30), (160, 12), (800, 5)):
            coarse = rng.normal(0, strength, (cells * height // width + 1, cells, 3))
            planes = [
                Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC)
                for plane in coarse.astype(np.float32).transpose(2, 0, 1)
            ]
            pixels += np.stack([np.asarray(plane) for plane in planes], axis=2)
        picture = Image.fromarray((pixels + 128).clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{number:05}.jpg", quality=90)


def shrink(path: str, max_side: int, *, draft: bool) -> dict[str, Any]:
    """Return the features of an image that was made smaller."""
    with Image.open(path) as image:
        if draft:
            image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
            small = image.convert("RGB")
        else:
            scale = max_side / max(image.size)
            size = [max(1, math.floor(side * scale + 0.5)) for side in image.size]
            small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return {
        "image/encoded": file.getvalue(),
        "image/filename": os.path.basename(path),
        "image/format": "jpeg",
        "image/height": small.height,
        "image/width": small.width,
    }


def run_peer(peer: str, source: str, out: str, max_side: int, workers: int) -> None:
    """Be a peer: make all records."""
    paths = sorted(str(path) for path in Path(source).iterdir())
    work = partial(shrink, max_side=max_side, draft=peer == "loop-draft")

    def write(rows: Iterable[dict[str, Any]]) -> None:
        with sw.TFRecordWriter(out) as writer:
            for row in rows:
                writer.write(sw.encode_example(row))

    if peer == "pool":
        with multiprocessing.Pool(workers) as pool:
            write(pool.imap(work, paths, chunksize=4))
    else:
        write(map(work, paths))


def psnr_against_loop(out: Path, loop: Path) -> float:
    """Return the least PSNR of our pictures against the loop's, in dB."""
    worst = math.inf
    theirs = sw.read_records(loop)
    for ours, record in zip(sw.open(out), theirs, strict=True):
        peer = sw.decode_example(record)["image/encoded"][0]
        a, b = (
            np.asarray(Image.open(io.BytesIO(data)), float)
            for data in (ours["image/encoded"], peer)
        )
        error = float(((a - b) ** 2).mean())
        worst = min(worst, 10 * math.log10(255**2 / error) if error else math.inf)
    return worst


def children_cpu_s() -> float:
    """Return what processes that have ended, and theirs, have had of all processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--width", type=int, default=1600)
    parser.add_argument("--height", type=int, default=1200)
    parser.add_argument("--max-side", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be", nargs=3, metavar=("PEER", "SOURCE", "OUT"), help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.be:
        run_peer(*told.be, told.max_side, told.workers)
        return
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        make_photos(root / "photos", told.images, told.width, told.height)
        options = ["--max-side", str(told.max_side)]

        def command(name: str) -> list[str]:
            if name in PEERS:
                script = [sys.executable, __file__, *options, "--workers", str(told.workers)]
                return [*script, "--be", name, str(root / "photos"), str(root / name)]
            ours = ["-m", "shardwriter", "write", str(root / "photos"), str(root / "ours/t@16")]
            return [sys.executable, *ours, *options, "-j", str(told.workers), "--overwrite"]

        seconds: dict[str, list[float]] = {name: [] for name in ("shardwriter", *PEERS)}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in seconds}
        for round_number in range(told.repeat + 1):  # the first one warms the caches
            for name, times in seconds.items():
                begun, cpu_begun = time.perf_counter(), children_cpu_s()
                subprocess.run(command(name), check=True, capture_output=True)
                if round_number:
                    times.append(time.perf_counter() - begun)
                    cpu_seconds[name].append(children_cpu_s() - cpu_begun)
        worst = psnr_against_loop(root / "ours/t", root / "loop")
        photo_bytes = sum(path.stat().st_size for path in (root / "photos").iterdir())
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    cpu = {name: statistics.median(times) for name, times in cpu_seconds.items()}
    ratios = {name: medians[name] / medians["shardwriter"] for name in PEERS}
    if told.json:
        result = {
            "seconds": medians,
            "cpu_seconds": cpu,
            "ratios": ratios,
            "worst_psnr_db": round(worst, 1),
        }
        print(json.dumps({**result, "photo_bytes": photo_bytes, "images": told.images}))
        return
    print(f"{told.images} JPEGs of {told.width} x {told.height}, {photo_bytes / 1e6:.0f} MB")
    for name, median in medians.items():
        ratio = f"  ({ratios[name]:.1f}x ours)" if name in ratios else f" (-j {told.workers})"
        rate = f"{told.images / median:7.0f} images/s, {cpu[name]:7.2f} s of processors"
        print(f"{name:12} {median:7.2f} s {rate}{ratio}")
    print(f"worst PSNR against the loop: {worst:.1f} dB")


if __name__ == "__main__":
    main()
