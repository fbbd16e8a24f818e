"""Make input for the demo: 400 small PNG images in 4 class folders, and a table of 5,000 rides.

    python scripts/make_demo_data.py FOLDER

The same files come out each time.
"""

from __future__ import annotations

import csv
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

IMAGES_PER_CLASS = 100
NUM_RIDES = 5_000
SIDE_PIXELS = 64


def main(folder: Path) -> None:
    """Write both inputs below ``folder``."""
    rng = np.random.default_rng(7)
    for name, inside in SHAPES.items():
        class_folder = folder / "shapes" / name
        class_folder.mkdir(parents=True)
        for number in range(IMAGES_PER_CLASS):
            (class_folder / f"{number:03d}.png").write_bytes(png(draw(inside, rng)))
    with (folder / "rides.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ride", "city", "distance_km", "fare", "rating"])
        for ride in range(NUM_RIDES):
            distance_km = float(rng.gamma(2.0, 3.0))
            city = ["Basel", "Graz", "Gent", "Porto"][int(rng.integers(4))]
            rating = "" if rng.random() < 0.1 else int(rng.integers(1, 6))
            fare = 3 + 1.8 * distance_km
            table.writerow([ride, city, f"{distance_km:.2f}", f"{fare:.2f}", rating])
    print(f"made {len(SHAPES) * IMAGES_PER_CLASS} images and {NUM_RIDES:,} rows in {folder}")


SHAPES = {
    "disc": lambda x, y: x**2 + y**2 < 1,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.8) < 0.2,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.9,
    "stripe": lambda x, y: np.abs(x + y) < 0.4,
}


def draw(inside, rng: np.random.Generator) -> NDArray[np.uint8]:  # type: ignore[no-untyped-def]
    """Draw a shape at a random place, size and colour; uint8[h, w, 3]."""
    width = int(rng.integers(SIDE_PIXELS // 2, SIDE_PIXELS))
    y, x = np.mgrid[0:SIDE_PIXELS, 0:width]
    centre = rng.uniform(0.3, 0.7, 2) * (width, SIDE_PIXELS)
    radius = rng.uniform(8, 20)
    mask = inside((x - centre[0]) / radius, (y - centre[1]) / radius)
    image = rng.integers(0, 60, (SIDE_PIXELS, width, 3))
    image[mask] += rng.integers(80, 190, 3)
    return image.astype(np.uint8)


def png(image: NDArray[np.uint8]) -> bytes:
    """Encode uint8[h, w, 3] as a PNG file (RFC 2083), without filters."""
    height, width, _ = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
