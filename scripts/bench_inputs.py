"""Makes what the benchmarks read; the same files each time.

python scripts/bench_inputs.py FOLDER [WORKLOAD ...] [--scale 1]
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from make_demo_data import png
from numpy.typing import NDArray

NUM_IMAGES, NUM_CLASSES, IMAGE_SIDE_PIXELS = 4_000, 100, 163
NUM_FLOATS, FLOATS_LENGTH, NUM_LABELS = 50_000, 768, 1_000
NUM_TOKENS, TOKENS_LENGTH, VOCABULARY = 20_000, 2_048, 50_257
NUM_ROWS = 300_000
NUM_PAIRS, PAIR_SIDE_PIXELS, NUM_KINDS = 1_200, 512, 21
BLOCK = 1_000  # records made at a time, so that memory stays small


def make_images(folder: Path, scale: float) -> int:
    """Make PNG images of noise: about 80 kB each, in class folders."""
    rng = np.random.default_rng(1)
    count = int(NUM_IMAGES * scale)
    for number in range(count):
        class_folder = folder / f"class{number % NUM_CLASSES:03d}"
        class_folder.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS, 3), np.uint8)
        (class_folder / f"{number:06d}.png").write_bytes(png(noise))
    return count


def make_floats(folder: Path, scale: float) -> int:
    """Make x.npy, float32[n, 768], and label.npy, int64[n]."""
    rng = np.random.default_rng(2)
    count = int(NUM_FLOATS * scale)
    folder.mkdir(parents=True)
    np.save(folder / "label.npy", rng.integers(0, NUM_LABELS, count))
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (count, FLOATS_LENGTH))
    for start in range(0, count, BLOCK):
        x[start : start + BLOCK] = rng.standard_normal(x[start : start + BLOCK].shape, np.float32)
    x.flush()
    return count


def make_tokens(folder: Path, scale: float) -> int:
    """Make tokens.npy, uint16[n, 2048], as frequent as words are: the rank's logarithm is even."""
    rng = np.random.default_rng(3)
    count = int(NUM_TOKENS * scale)
    folder.mkdir(parents=True)
    shape = (count, TOKENS_LENGTH)
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", "w+", np.uint16, shape)
    for start in range(0, count, BLOCK):
        even = rng.random(tokens[start : start + BLOCK].shape)
        tokens[start : start + BLOCK] = np.exp(even * np.log(VOCABULARY)) - 1
    tokens.flush()
    return count


def make_table(path: Path, scale: float) -> int:
    """Make a table of six columns: two of each type."""
    rng = random.Random(1)
    cities = ["Basel", "Graz", "Gent", "Porto", "Turku", "Split", "Lille", "Bergen"]
    rows = int(NUM_ROWS * scale)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "count", "price", "score", "city", "code"])
        for row in range(rows):
            price, score = rng.uniform(1, 1000), rng.gauss(0, 1)
            code = f"{rng.randrange(16**6):06x}"
            count = rng.randrange(5_000)
            table.writerow([row, count, f"{price:.2f}", f"{score:.6f}", rng.choice(cities), code])
    return rows


def make_masks(folder: Path, scale: float) -> int:
    """Make pairs of an image like a photo, about 300 kB as PNG, and a mask of a few blobs."""
    from PIL import Image

    rng = np.random.default_rng(4)
    count = int(NUM_PAIRS * scale)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        name = f"{number:06d}.png"
        Image.fromarray(_photo(rng)).save(folder / "images" / name, compress_level=3)
        Image.fromarray(_blobs(rng)).save(folder / "masks" / name)
    return count


def _photo(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Sum blurred noise of three scales and a little of the sensor's; uint8[512, 512, 3]."""
    from PIL import Image

    size = (PAIR_SIDE_PIXELS, PAIR_SIDE_PIXELS)
    photo = rng.integers(-2, 3, (*size, 3), np.int16)
    for cells, strength in ((4, 0.6), (16, 0.25), (64, 0.12)):
        noise = rng.integers(0, 256, (cells, cells, 3), np.uint8)
        smooth = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
        photo += (np.asarray(smooth) * strength).astype(np.int16)
    return photo.clip(0, 255).astype(np.uint8)


def _blobs(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw ellipses of some kinds on a background of zeros; uint8[512, 512]."""
    y, x = np.ogrid[0:PAIR_SIDE_PIXELS, 0:PAIR_SIDE_PIXELS]
    mask = np.zeros((PAIR_SIDE_PIXELS, PAIR_SIDE_PIXELS), np.uint8)
    for _ in range(int(rng.integers(2, 6))):
        centre_x, centre_y = rng.uniform(0, PAIR_SIDE_PIXELS, 2)
        radius_x, radius_y = rng.uniform(20, 120, 2)
        inside = ((x - centre_x) / radius_x) ** 2 + ((y - centre_y) / radius_y) ** 2 < 1
        mask[inside] = rng.integers(1, NUM_KINDS)
    return mask


MAKERS: dict[str, tuple[str, Callable[[Path, float], int]]] = {
    "images": ("images", make_images),
    "floats": ("floats", make_floats),
    "tokens": ("tokens", make_tokens),
    "table": ("table.csv", make_table),
    "masks": ("masks", make_masks),
}
"""Workload -> the name of its input, and what makes it and returns the number of records."""


def make_input(folder: Path, workload: str, scale: float) -> tuple[Path, int]:
    """Make one input, unless it is there; return its path and the number of records."""
    name, make = MAKERS[workload]
    folder = folder / f"{workload}-x{scale:g}"
    made = folder / "count"  # written last
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        count = make(folder / name, scale)
        made.write_text(f"{count}\n")
    return folder / name, int(made.read_text())


def main() -> None:
    """Make the inputs that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workloads", nargs="*", help=f"{', '.join(MAKERS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of records")
    options = parser.parse_args()
    for workload in options.workloads or MAKERS:
        path, count = make_input(options.folder, workload, options.scale)
        print(f"{workload}: {count:,} records in {path}")


if __name__ == "__main__":
    main()
