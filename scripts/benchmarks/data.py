"""Make what the works read, the same each time; and return digests of records.

A command gets its dataset as ``benchmarks.data:NAME``, which has no arguments: ``BENCH_SOURCE``
names the folder that is read, and ``BENCH_COUNT`` the number of items.
"""

from __future__ import annotations

import csv
import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE_PIXELS = 256
VECTOR_LENGTH, NUM_LABELS = 768, 1_000
TOKENS_LENGTH, VOCABULARY = 2_048, 50_257
BLOCK = 1_000  # records made at a time, so that memory stays small
NUM_SHARDS = 16

# -- datasets that commands are given --------------------------------------------------------------


def source_folder() -> Path:
    """Return the folder that this process reads."""
    return Path(os.environ["BENCH_SOURCE"])


def num_items() -> int:
    """Return the number of items of a dataset that is made in memory."""
    return int(os.environ["BENCH_COUNT"])


class Floats:
    """A vector and a label, as in embeddings: {"x": float32[768], "label": int}."""

    def __init__(self) -> None:
        folder = source_folder()
        self.x = np.load(folder / "x.npy", mmap_mode="r")
        self.label = np.load(folder / "label.npy")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "label": self.label[index]}


class Tokens:
    """Token ids of a text: {"tokens": uint16[2048]}; integers of any width are written as int64."""

    def __init__(self) -> None:
        self.tokens = np.load(source_folder() / "tokens.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": self.tokens[index]}


class Masks:
    """An image and its mask, decoded and resized with OpenCV, as bytes of uint8[256, 256, ...]."""

    def __init__(self) -> None:
        self.folder = source_folder()
        self.names = sorted(os.listdir(self.folder / "images"))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return resized_pair(self.folder, self.names[index])


def resized_pair(folder: Path, name: str) -> dict[str, bytes]:
    """Decode and resize a pair: the image bilinear, the mask to the nearest pixel."""
    import cv2

    cv2.setNumThreads(1)  # processes share the work here, and not threads
    size = (SIDE_PIXELS, SIDE_PIXELS)
    image = cv2.imread(str(folder / "images" / name), cv2.IMREAD_COLOR_RGB)
    mask = cv2.imread(str(folder / "masks" / name), cv2.IMREAD_UNCHANGED)
    return {
        "image": cv2.resize(image, size, interpolation=cv2.INTER_LINEAR).tobytes(),
        "mask": cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST_EXACT).tobytes(),
    }


class Small:
    """Small records at an index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": index * 0.5}


def small() -> Small:
    """Return small records."""
    return Small(num_items())


def small_generator(count: int) -> Iterator[dict[str, Any]]:
    """Yield the same small records one after the other."""
    for index in range(count):
        yield {"id": index, "x": index * 0.5}


def numbers() -> Iterator[bytes]:
    """Yield tiny records."""
    for index in range(num_items()):
        yield index.to_bytes(8, "little")


def one_record() -> Iterator[bytes]:
    """Yield one record of ``BENCH_COUNT`` bytes."""
    yield bytes(num_items())


# -- inputs of writing -----------------------------------------------------------------------------

PNG_HEAD = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 8, 8, 8, 0, 0, 0, 0)
NUM_CLASSES, IMAGE_SIDE_PIXELS = 100, 163
PAIR_SIDE_PIXELS, NUM_KINDS = 512, 21


def make_images(folder: Path, count: int) -> None:
    """Make PNG images of noise: about 80 kB each, in class folders."""
    from make_demo_data import png

    rng = np.random.default_rng(1)
    for number in range(count):
        class_folder = folder / f"class{number % NUM_CLASSES:03d}"
        class_folder.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS, 3), np.uint8)
        (class_folder / f"{number:06d}.png").write_bytes(png(noise))


def make_image_heads(folder: Path, count: int, num_classes: int, num_bytes: int) -> None:
    """Make files that have the head of an image and random bytes, in class folders."""
    for number in range(count):
        place = folder / f"class-{number % num_classes:06d}"
        place.mkdir(parents=True, exist_ok=True)
        data = PNG_HEAD + os.urandom(num_bytes - len(PNG_HEAD))
        (place / f"{number:06d}.png").write_bytes(data)


def make_floats(folder: Path, count: int) -> None:
    """Make x.npy, float32[n, 768], and label.npy, int64[n]."""
    rng = np.random.default_rng(2)
    folder.mkdir(parents=True)
    np.save(folder / "label.npy", rng.integers(0, NUM_LABELS, count))
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (count, VECTOR_LENGTH))
    for start in range(0, count, BLOCK):
        x[start : start + BLOCK] = rng.standard_normal(x[start : start + BLOCK].shape, np.float32)
    x.flush()


def make_tokens(folder: Path, count: int) -> None:
    """Make tokens.npy, uint16[n, 2048], as frequent as words are: the rank's logarithm is even."""
    rng = np.random.default_rng(3)
    folder.mkdir(parents=True)
    shape = (count, TOKENS_LENGTH)
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", "w+", np.uint16, shape)
    for start in range(0, count, BLOCK):
        even = rng.random(tokens[start : start + BLOCK].shape)
        tokens[start : start + BLOCK] = np.exp(even * np.log(VOCABULARY)) - 1
    tokens.flush()


def make_table(path: Path, count: int) -> None:
    """Make a table of six columns: two of each type."""
    rng = random.Random(1)
    cities = ["Basel", "Graz", "Gent", "Porto", "Turku", "Split", "Lille", "Bergen"]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "count", "price", "score", "city", "code"])
        for row in range(count):
            price, score = rng.uniform(1, 1000), rng.gauss(0, 1)
            code = f"{rng.randrange(16**6):06x}"
            amount = rng.randrange(5_000)
            table.writerow([row, amount, f"{price:.2f}", f"{score:.6f}", rng.choice(cities), code])


def make_masks(folder: Path, count: int) -> None:
    """Make pairs of an image like a photo, about 300 kB as PNG, and a mask of a few blobs."""
    from PIL import Image

    rng = np.random.default_rng(4)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        name = f"{number:06d}.png"
        Image.fromarray(_noise_photo(rng)).save(folder / "images" / name, compress_level=3)
        Image.fromarray(_blobs(rng)).save(folder / "masks" / name)


def _noise_photo(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return blurred noise of three scales and a little of the sensor's; uint8[512, 512, 3]."""
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


def make_photos(folder: Path, count: int, width: int, height: int) -> None:
    """Make JPEG files with detail of all sizes; an image depends on its number alone."""
    from PIL import Image

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


INPUTS: dict[str, tuple[str, Callable[[Path, int], None], int]] = {
    "images": ("images", make_images, 4_000),
    "floats": ("floats", make_floats, 50_000),
    "tokens": ("tokens", make_tokens, 20_000),
    "table": ("table.csv", make_table, 300_000),
    "masks": ("masks", make_masks, 1_200),
}
"""By input: the name of its file or folder, what makes it, and the usual number of records."""


def make_once(folder: Path, make: Callable[[], None]) -> None:
    """Make an input inside a folder, unless it was made there before."""
    made = folder / "made"  # written last
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make()
        made.touch()


def make_input(folder: Path, name: str, count: int) -> Path:
    """Make one of the inputs, unless it is there; return its path."""
    file_name, make, _ = INPUTS[name]
    folder = folder / f"{name}-{count}"
    make_once(folder, partial(make, folder / file_name, count))
    return folder / file_name


def table_rows(path: Path, mine: Callable[[int], bool]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number and the cells of rows; lines that are not mine are read and not parsed."""
    with path.open(newline="") as file:
        names = next(csv.reader(file))
        numbers: list[int] = []  # of the line that was yielded last

        def lines() -> Iterator[str]:
            for number, line in enumerate(file):
                if mine(number):
                    numbers[:] = [number]
                    yield line

        for row in csv.DictReader(lines(), names):
            yield numbers[0], row


# -- digests ---------------------------------------------------------------------------------------


def digest(records: Iterable[Mapping[str, Any]]) -> str:
    """Return one digest of many records, whatever their order and their format."""
    digests = sorted(_digest(record) for record in records)
    return f"{len(digests)}-{sha256(b''.join(digests)).hexdigest()}"


def _digest(record: Mapping[str, Any]) -> bytes:
    total = sha256()
    for name in sorted(record):
        value = _plain(record[name])
        total.update(f"{name} {len(value)} ".encode() + value)
    return total.digest()


def _plain(value: Any) -> bytes:
    """Return a value as bytes: text as UTF-8, integers as int64, floats as float32."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    if array.dtype == np.uint8:  # the PyPI tfrecord reader gives bytes so
        return array.tobytes()
    if array.dtype.kind in "iu":
        return array.astype("<i8").tobytes()
    if array.dtype.kind == "f":
        return array.astype("<f4").tobytes()
    raise TypeError(f"no plain form for {array.dtype}")
