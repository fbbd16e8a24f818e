"""Samples a second from what is on disk to tensors: shards, a folder of files, and memory.

    python scripts/bench_train.py [jpeg] [pixels] [integers] [--images 2000] [--side 224]
                                  [--workers K] [--batch-size 64] [--repeat 5]
                                  [--work FOLDER] [--json]

``jpeg``: pictures as JPEG files, decoded by Pillow on every side.
``pixels``: their pixels, as the bytes of uint8[side, side, 3], in ``.npy`` files in the folder.
``integers``: the same, but arrays are given to ``write`` as they are. Examples know no other
integers than int64 lists, of which each value has to be taken apart.

Three sides give the same samples in random order through torch's DataLoader, with the same batch
size and number of workers (all cores by default), which stay from epoch to epoch:

- ``shards``: ``ShardLoader`` over a dataset that shardwriter wrote;
- ``folder``: a torch Dataset that opens a file for each item, as torchvision's ImageFolder does;
- ``memory``: a torch Dataset that has all files (or arrays) in memory.

Where there is a GPU, batches are pinned and copied to it. An epoch of each side is run in turn,
after one that warms up (page cache, workers); medians count. Every epoch's samples are counted, and
the sum of their pixels and labels is held against that of what was made. With ``--workers 0`` the
seconds are the processor's, which other work on the machine changes little. Needs torch and Pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_train_images import CLASSES, draw, jpeg
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import shardwriter as sw
from shardwriter.reading.torch import ShardLoader

Sample = dict[str, Any]


def decode(data: bytes) -> np.ndarray:
    """Decode a picture; uint8[side, side, 3]."""
    return np.array(Image.open(io.BytesIO(data)))


def decode_features(features: Sample) -> Sample:
    """Decode a record of JPEG data."""
    return {"image": decode(features["image"]), "label": features["label"]}


def shape_features(features: Sample) -> Sample:
    """Give the bytes of pixels their shape; writable, as torch wants it."""
    side = math.isqrt(len(features["image"]) // 3)
    image = np.frombuffer(features["image"], np.uint8).reshape(side, side, 3).copy()
    return {"image": image, "label": features["label"]}


MAPS = {"jpeg": decode_features, "pixels": shape_features, "integers": None}


class Folder(Dataset):  # type: ignore[type-arg]
    """A file for each item, in a folder for each class."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.glob("*/*"))
        self.labels = [CLASSES.index(Path(path).parent.name) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        path = self.paths[index]
        if path.endswith(".npy"):
            return {"image": np.load(path), "label": self.labels[index]}
        with Image.open(path) as picture:
            return {"image": np.array(picture), "label": self.labels[index]}


class Memory(Dataset):  # type: ignore[type-arg]
    """All items in memory: JPEG data or arrays."""

    def __init__(self, images: list[Any], labels: list[int]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        image = self.images[index]
        image = decode(image) if isinstance(image, bytes) else image
        return {"image": image, "label": self.labels[index]}


def make(work: Path, case: str, count: int, side_pixels: int) -> tuple[str, Path, Memory]:
    """Make the input of a case three times: as shards, as files and in memory."""
    folder, images = work / case, []
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for number in range(count):
        image = draw(number, side_pixels)
        data = jpeg(image) if case == "jpeg" else image
        images.append(data)
        stem = folder / CLASSES[number % len(CLASSES)] / f"{number:06d}"
        if isinstance(data, bytes):
            stem.with_suffix(".jpg").write_bytes(data)
        else:
            np.save(stem, data)
    memory = Memory(images, [number % len(CLASSES) for number in range(count)])
    stored = [image.tobytes() for image in images] if case == "pixels" else images
    items = [{"image": i, "label": k} for i, k in zip(stored, memory.labels, strict=True)]
    path = str(work / f"{case}-shards@16")
    sw.write(items, path, workers=1)
    return path, folder, memory


def loaders(
    case: str, made: tuple[str, Path, Memory], batch_size: int, workers: int
) -> dict[str, Iterable[Sample]]:
    """Give the three sides' loaders, all with the same settings."""
    path, folder, memory = made
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": workers,
        "shuffle": True,
        "persistent_workers": workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }
    return {
        "shards": ShardLoader(path, seed=0, map=MAPS[case], **settings),
        "folder": DataLoader(Folder(folder), **settings),
        "memory": DataLoader(memory, **settings),
    }


def epoch(loader: Iterable[Sample], clock: Callable[[], float]) -> tuple[float, tuple[int, int]]:
    """Run an epoch; give its seconds by a clock, and how many samples came and what is in them.

    The sum is taken of every 97th value of a batch's pictures, so that it costs next to nothing.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count, sums = 0, torch.zeros((), dtype=torch.int64, device=device)
    started = clock()
    for batch in loader:
        image = batch["image"].to(device, non_blocking=True)
        label = batch["label"].to(device, non_blocking=True)
        sums += image.flatten(1)[:, ::97].sum() + label.sum()
        count += len(label)
    total = int(sums)  # waits for a GPU
    return clock() - started, (count, total)


def wanted_sums(memory: Memory) -> tuple[int, int]:
    """Say what :func:`epoch` has to find."""
    samples = (memory[index] for index in range(len(memory)))
    total = sum(
        int(sample["image"].reshape(-1)[::97].astype(np.int64).sum()) + sample["label"]
        for sample in samples
    )
    return len(memory), total


def time_in_turn(
    sides: dict[str, Callable[[], tuple[float, tuple[int, int]]]], wanted: Any, repeat: int
) -> dict[str, float]:
    """Return the median seconds of each side; they take turns, after a round that warms up."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(repeat + 1):
        for name, side in sides.items():
            seconds, found = side()
            if found != wanted:
                raise SystemExit(f"{name}: count and sum are {found}, not {wanted}")
            if round_number:
                taken[name].append(seconds)
    return {name: statistics.median(times) for name, times in taken.items()}


def compare(case: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run one case."""
    made = make(work, case, options.images, options.side)
    found = loaders(case, made, options.batch_size, options.workers)
    clock = time.perf_counter if options.workers else time.process_time
    sides = {name: lambda loader=loader: epoch(loader, clock) for name, loader in found.items()}
    seconds = time_in_turn(sides, wanted_sums(made[2]), options.repeat)
    return {
        "case": case,
        "samples": options.images,
        "seconds": seconds,
        "samples_per_s": {name: options.images / taken for name, taken in seconds.items()},
        "of_folder": seconds["folder"] / seconds["shards"],
        "of_memory": seconds["memory"] / seconds["shards"],
    }


def show(results: list[dict[str, Any]], where: str) -> None:
    """Print a table."""
    print(f"samples/s, medians, to tensors on {where}")
    print(f"{'case':10}{'shards':>10}{'folder':>10}{'memory':>10}{'/ folder':>11}{'/ memory':>11}")
    for result in results:
        rates = "".join(f"{rate:10,.0f}" for rate in result["samples_per_s"].values())
        ratios = f"{result['of_folder']:11.2f}{result['of_memory']:11.2f}"
        print(f"{result['case']:10}{rates}{ratios}")


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help="jpeg, pixels, integers; all by default")
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--side", type=int, default=224, help="pixels")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--work", type=Path, help="folder for the inputs; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        cases = options.what or list(MAPS)
        results = [compare(case, options, Path(folder)) for case in cases]
    if options.json:
        print(json.dumps({"device": where, "cases": results}, indent=2))
    else:
        show(results, where)


if __name__ == "__main__":
    main()
