"""Make images to learn from: ten shapes, turned, in noise and behind lines, as JPEG files.

    python scripts/make_train_images.py FOLDER [--train 6000] [--val 1003] [--side 48]

``FOLDER/train`` and ``FOLDER/val`` get a folder for each class. The same pixels come out each time,
and an image depends on its number alone. Needs Pillow.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NUM_LINES = 2

Grid = NDArray[np.float32]
Pixels = NDArray[np.uint8]


def flower(x: Grid, y: Grid) -> NDArray[np.bool_]:
    """Five petals."""
    return np.hypot(x, y) < 0.65 + 0.35 * np.cos(5 * np.arctan2(y, x))


SHAPES = {
    "bar": lambda x, y: (np.abs(x) < 1.1) & (np.abs(y) < 0.3),
    "crescent": lambda x, y: (np.hypot(x, y) < 1) & (np.hypot(x - 0.5, y) > 0.8),
    "disc": lambda x, y: np.hypot(x, y) < 0.9,
    "flower": flower,
    "frame": lambda x, y: np.abs(np.maximum(np.abs(x), np.abs(y)) - 0.7) < 0.2,
    "pair": lambda x, y: np.hypot(np.abs(x) - 0.65, y) < 0.4,
    "plus": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) < 0.3) & (np.hypot(x, y) < 1),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.75) < 0.2,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.75,
    "triangle": lambda x, y: (y > -0.6) & (np.abs(x) * 1.7 + y < 1.0),
}
CLASSES = tuple(SHAPES)


def draw(number: int, side_pixels: int) -> Pixels:
    """Draw image ``number``, of class ``number mod 10``; uint8[side_pixels, side_pixels, 3]."""
    rng = np.random.default_rng([7, number])
    y, x = np.mgrid[0:side_pixels, 0:side_pixels].astype(np.float32) / side_pixels
    image = rng.uniform(60, 190, 3) + rng.uniform(-60, 60, (2, 3))[0] * x[..., None]
    turn, radius = rng.uniform(0, 2 * np.pi), rng.uniform(0.22, 0.36)
    dx, dy = x - rng.uniform(0.35, 0.65), y - rng.uniform(0.35, 0.65)
    u = (dx * np.cos(turn) - dy * np.sin(turn)) / radius
    v = (dx * np.sin(turn) + dy * np.cos(turn)) / radius
    shape = SHAPES[CLASSES[number % len(CLASSES)]](u, v)
    image[shape] += rng.choice([-1, 1]) * rng.uniform(45, 100, 3)
    for _ in range(NUM_LINES):
        angle, offset = rng.uniform(0, np.pi), rng.uniform(0, 1)
        line = np.abs((x - offset) * np.cos(angle) + (y - 0.5) * np.sin(angle)) < 0.02
        image[line] = rng.uniform(0, 255, 3)
    image += rng.normal(0, 12, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def jpeg(image: Pixels) -> bytes:
    """Encode uint8[h, w, 3] as a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=88)
    return file.getvalue()


def make_files(folder: Path, numbers: range, side_pixels: int) -> Iterator[Path]:
    """Write one image after the other below ``folder``, and give their paths."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = folder / CLASSES[number % len(CLASSES)] / f"{number:06d}.jpg"
        path.write_bytes(jpeg(draw(number, side_pixels)))
        yield path


def make_images(folder: Path, num_train: int, num_val: int, side_pixels: int) -> int:
    """Make both sets, which share no image; return how many bytes they have."""
    sets = {"train": range(num_train), "val": range(num_train, num_train + num_val)}
    return sum(
        path.stat().st_size
        for name, numbers in sets.items()
        for path in make_files(folder / name, numbers, side_pixels)
    )


def main() -> None:
    """Make what the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=6_000, help="images to learn from")
    parser.add_argument("--val", type=int, default=1_003, help="images to be judged by")
    parser.add_argument("--side", type=int, default=48, help="pixels")
    options = parser.parse_args()
    size = make_images(options.folder, options.train, options.val, options.side)
    print(f"made {options.train + options.val:,} images, {size / 1e6:.1f} MB, in {options.folder}")


if __name__ == "__main__":
    main()
