"""Load samples for training to tensors: from shards, from a folder of files, and from memory.

Everybody gives the same samples in random order through torch's DataLoader, with the same batch
size and number of workers, which stay from epoch to epoch. Where there is a GPU, batches are pinned
and copied to it. Every epoch's samples are counted, and the sum of their pixels and labels is
compared with that of what was made. With ``--workers 0`` the processor time is all that is used;
else that of the loader's workers is not in it.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import NUM_SHARDS, make_once
from benchmarks.measure import Case, Contender, Run, Turn, Work
from benchmarks.worker import Step, package_name

Sample = dict[str, Any]


def decode(data: bytes) -> np.ndarray:
    """Decode a picture; uint8[side, side, 3]."""
    from PIL import Image

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


class Folder:
    """A file for each item, in a folder for each class, as torchvision's ImageFolder has them."""

    def __init__(self, folder: Path) -> None:
        from make_train_images import CLASSES

        self.paths = sorted(str(path) for path in folder.glob("*/*"))
        self.labels = [CLASSES.index(Path(path).parent.name) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        path = self.paths[index]
        if path.endswith(".npy"):
            return {"image": np.load(path), "label": self.labels[index]}
        with Image.open(path) as picture:
            return {"image": np.array(picture), "label": self.labels[index]}


class Memory:
    """All items in memory: JPEG data or arrays."""

    def __init__(self, folder: Path) -> None:
        files = Folder(folder)
        self.labels = files.labels
        self.images: list[Any] = [
            np.load(path) if path.endswith(".npy") else Path(path).read_bytes()
            for path in files.paths
        ]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        image = self.images[index]
        image = decode(image) if isinstance(image, bytes) else image
        return {"image": image, "label": self.labels[index]}


def pictures(name: str, count: int, side_pixels: int) -> Iterator[tuple[int, Any]]:
    """Yield the label and the JPEG data or the pixels of each picture."""
    from make_train_images import CLASSES, draw, jpeg

    for number in range(count):
        image = draw(number, side_pixels)
        yield number % len(CLASSES), jpeg(image) if name == "jpeg" else image


def make(case: Case) -> None:
    """Make the input of a case, as shards and as files."""
    from make_train_images import CLASSES

    import shardwriter as sw

    case.count = max(1, int(2_000 * case.size))
    side = case.settings["side"]
    folder = case.folder / "inputs" / f"train-{case.name}-{case.count}-{side}"
    case.source = folder

    def make_all() -> None:
        for name in CLASSES:
            (folder / "files" / name).mkdir(parents=True)
        total = 0
        items = []
        for number, (label, data) in enumerate(pictures(case.name, case.count, side)):
            stem = folder / "files" / CLASSES[label] / f"{number:06d}"
            if isinstance(data, bytes):
                stem.with_suffix(".jpg").write_bytes(data)
            else:
                np.save(stem, data)
            pixels = decode(data) if isinstance(data, bytes) else data
            total += int(pixels.reshape(-1)[::97].astype(np.int64).sum()) + label
            items.append({"image": data.tobytes() if case.name == "pixels" else data})
            items[-1]["label"] = label
        sw.write(items, folder / f"x@{NUM_SHARDS}", workers=1)
        (folder / "sums.json").write_text(json.dumps([case.count, total]))

    make_once(folder, make_all)


def steps(loader: str, name: str, folder: str, batch_size: int, workers: int) -> dict[str, Step]:
    """Return a step that runs an epoch of a loader."""
    import torch
    from torch.utils.data import DataLoader

    place = Path(folder)
    expected = json.loads((place / "sums.json").read_text())
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": workers,
        "shuffle": True,
        "persistent_workers": workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }
    found: Iterable[Sample]
    if loader == "shardwriter":
        ShardLoader = package_name("ShardLoader")
        found = ShardLoader(place / "x", seed=0, map=MAPS[name], **settings)
    else:
        data: Any = (Folder if loader == "folder" else Memory)(place / "files")
        found = DataLoader(data, **settings)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def epoch() -> list[int]:
        """Return how many samples came, and the sum of every 97th value of a batch's pictures."""
        count, sums = 0, torch.zeros((), dtype=torch.int64, device=device)
        for batch in found:
            image = batch["image"].to(device, non_blocking=True)
            label = batch["label"].to(device, non_blocking=True)
            sums += image.flatten(1)[:, ::97].sum() + label.sum()
            count += len(label)
        total = int(sums)  # waits for a GPU
        if [count, total] != expected:
            raise SystemExit(f"{loader}: count and sum are {[count, total]}, not {expected}")
        return [count, total]

    return {"epoch": Step(epoch)}


def contenders(case: Case) -> list[Contender]:
    """Return our loader, a folder of files and memory."""

    def measure(loader: str, turn: Turn) -> Run:
        words = (loader, case.name, case.source, case.settings["batch_size"])
        return turn.ask("benchmarks.train:steps", *words, case.workers, step="epoch")

    return [
        Contender(
            loader, partial(measure, loader), ("torch", "PIL"), is_ours=loader == "shardwriter"
        )
        for loader in ("shardwriter", "folder", "memory")
    ]


WORKS = [
    Work(
        "train",
        "load pictures (JPEG, bytes of pixels, arrays of integers) for training to tensors",
        tuple(MAPS),
        make,
        contenders,
        settings={"side": 224, "batch_size": 64},
        workers=None,
        uses_gpu=True,
    )
]
