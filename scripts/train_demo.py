"""Train a small image classifier from shards that ``shardwriter write`` made.

    scripts/train_demo [--epochs 5] [--images 6000] [--batch-size 64] [--workers K] [--json]

1. Images of ten shapes in noise are made, and become two datasets: train and val.
2. A convolutional network learns from the first. After each epoch every record of the second is
   judged once, by two ranks in turn, whose equal steps need a pad that does not count.
3. In the middle of the second epoch the run stops. Network, optimizer and the loader's token are
   saved; all else is thrown away, and a loader with another number of workers goes on. The names of
   the records that were seen are held against those of a whole epoch.

``waiting`` is the share of an epoch's time in which the training loop waited for its next batch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Threads of the network that wait must not take the cores from the workers that decode.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from make_train_images import CLASSES, make_images
from PIL import Image
from rich.progress import Progress
from torch import nn
from train_report import Epoch, Screen, count, show_epoch, show_stop

import shardwriter as sw
from shardwriter.reading.torch import ShardLoader

STOPPED_EPOCH = 1
EVALUATING_RANKS = 2
SIDE_PIXELS = 48


@dataclass(frozen=True)
class Options:
    """What to train, and how.

    Attributes:
        work: Folder for images, shards and the checkpoint.
        num_train: Images to learn from.
        num_val: Images to be judged by.
        num_epochs: How often every image is seen.
        batch_size: Records of a step.
        workers: Processes that read and decode.
        seed: Of the order and of the network's first weights.
    """

    work: Path
    num_train: int = 6_000
    num_val: int = 1_003
    num_epochs: int = 5
    batch_size: int = 64
    workers: int = 1
    seed: int = 0


class Network(nn.Sequential):
    """Four convolutions and a mean over the picture: 62,000 weights."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for width_in, width_out, stride in [(3, 16, 2), (16, 32, 1), (32, 64, 1), (64, 64, 1)]:
            layers += [
                nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(width_out),
                nn.ReLU(),
            ]
            if stride == 1:
                layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Training:
    """A network on its device, with what makes it learn.

    Args:
        seed: Of the first weights.
        num_steps: Of all epochs together, for the learning rate's course.
    """

    def __init__(self, seed: int, num_steps: int) -> None:
        torch.manual_seed(seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = Network().to(self.device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.01, total_steps=num_steps, pct_start=0.2
        )

    def parts(self) -> dict[str, Any]:
        """Give what a checkpoint has to hold of it."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load(self, parts: dict[str, Any]) -> None:
        """Take over what a checkpoint holds."""
        self.network.load_state_dict(parts["network"])
        self.optimizer.load_state_dict(parts["optimizer"])
        self.schedule.load_state_dict(parts["schedule"])

    def pictures(self, batch: dict[str, Any]) -> torch.Tensor:
        """Bring a batch's pictures to the device; float32[n, 3, side, side], from -1 to 1."""
        return batch["image"].to(self.device, non_blocking=True).float() / 127.5 - 1

    def step(self, batch: dict[str, Any]) -> torch.Tensor:
        """Learn from a batch; give the mean loss, on the device."""
        labels = batch["label"].to(self.device, non_blocking=True)
        loss = nn.functional.cross_entropy(self.network(self.pictures(batch)), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


class Decode:
    """What is done to a record in the loader's workers: the picture, its class and its name."""

    def __call__(self, features: dict[str, Any]) -> dict[str, Any]:
        """Give uint8[3, side, side], the number of the class, and the file's name."""
        pixels = np.asarray(Image.open(io.BytesIO(features["image/encoded"])))
        return {
            "image": np.ascontiguousarray(pixels.transpose(2, 0, 1)),
            "label": int(features["image/class/label"]),
            "name": str(features["image/filename"]),
        }


@dataclass
class Running:
    """What a run has in memory, and loses when it is stopped."""

    training: Training
    loader: ShardLoader


def write_datasets(options: Options, screen: Screen) -> tuple[str, str]:
    """Make images and write them as shards; give the names of both datasets."""
    images = options.work / "images"
    if options.work.exists():
        if any(options.work.iterdir()) and not images.is_dir():
            raise SystemExit(f"--work: {options.work} has files that are not of this demo")
        shutil.rmtree(options.work)
    size = make_images(images, options.num_train, options.num_val, SIDE_PIXELS)
    num_images = options.num_train + options.num_val
    screen.say(f"made {num_images:,} images of {len(CLASSES)} shapes, {size / 1e6:.1f} MB")
    train, val = f"{options.work}/train@8", f"{options.work}/val@4"
    seed = str(options.seed)
    for name, out in (("train", train), ("val", val)):
        screen.command("write", f"{images}/{name}", out, "--shuffle", "--seed", seed)
    return train, val


def train_loader(path: str, options: Options, workers: int) -> ShardLoader:
    """Read the training set in another order each epoch."""
    return ShardLoader(
        path,
        batch_size=options.batch_size,
        shuffle=True,
        seed=options.seed,
        uneven="drop",
        map=Decode(),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


def learn(running: Running, epoch: int, limit: int | None, bar: Progress) -> Epoch:
    """Learn from the batches that are left of an epoch, or from ``limit`` of them."""
    training, batches = running.training, iter(running.loader)
    found, num_steps = Epoch(epoch), 0
    total = torch.zeros((), device=training.device)
    training.network.train()
    started = time.perf_counter()
    while limit is None or num_steps < limit:
        asked = time.perf_counter()
        batch = next(batches, None)
        found.waiting_s += time.perf_counter() - asked
        if batch is None:
            break
        total += training.step(batch) * len(batch["label"])
        found.num_samples += len(batch["label"])
        found.names += batch["name"]
        num_steps += 1
        bar.advance(bar.task_ids[0])
    found.loss = float(total) / max(1, found.num_samples)  # waits for a GPU's work
    found.seconds = time.perf_counter() - started
    return found


@torch.no_grad()
def judge(training: Training, path: str, options: Options) -> tuple[float, int, int]:
    """Ask the network about every validation record once.

    The parts of two ranks are read one after the other, as if two machines did it.

    Returns:
        The share that it told right, how many records it was asked about, and the pads left out.
    """
    training.network.eval()
    num_right = num_asked = num_pads = 0
    for rank in range(EVALUATING_RANKS):
        part = ShardLoader(
            path,
            batch_size=256,
            uneven="pad",
            map=Decode(),
            rank=rank,
            world=EVALUATING_RANKS,
            num_workers=0,
        )
        for batch in part:
            is_real = ~batch["is_pad"]
            guesses = training.network(training.pictures(batch)).argmax(1).cpu()
            num_right += int(((guesses == batch["label"]) & is_real).sum())
            num_asked += int(is_real.sum())
            num_pads += int((~is_real).sum())
    return num_right / num_asked, num_asked, num_pads


def stop_and_go_on(
    running: Running, path: str, options: Options, screen: Screen
) -> tuple[Epoch, dict[str, Any]]:
    """Learn half of an epoch, lose everything but a checkpoint, and learn the other half.

    Returns:
        The epoch, and what is known of the stop.
    """
    checkpoint, num_steps = options.work / "checkpoint.pt", len(running.loader)
    half = num_steps // 2
    with screen.steps(running.loader, "before the stop") as bar:
        found = learn(running, STOPPED_EPOCH, half, bar)
    token = running.loader.state_dict()
    torch.save({**running.training.parts(), "loader": token}, checkpoint)
    del running.training, running.loader

    saved = torch.load(checkpoint, weights_only=True)
    running.training = Training(options.seed, num_steps * options.num_epochs)
    running.training.load(saved)
    running.loader = train_loader(path, options, options.workers + 1)
    running.loader.load_state_dict(saved["loader"])
    with screen.steps(running.loader, "after it", half) as bar:
        rest = learn(running, STOPPED_EPOCH, None, bar)
    num_before = len(found.names)
    found.add(rest)
    whole = names_of_epoch(path, options.seed, STOPPED_EPOCH)
    return found, {
        "after_steps": half,
        "of_steps": num_steps,
        "token": token,
        "workers_before": options.workers,
        "workers_after": options.workers + 1,
        "records_before": num_before,
        "records_after": len(rest.names),
        "same_records": found.names == whole,
        "repeated": len(found.names) - len(set(found.names)),
        "missing": len(set(whole) - set(found.names)),
    }


def names_of_epoch(path: str, seed: int, epoch: int) -> list[str]:
    """List the file names of an epoch in the order in which a run without a stop sees them."""
    with sw.open(path) as data:
        return [str(features["image/filename"]) for features in data.shuffle(seed, epoch)]


def run(options: Options, screen: Screen) -> dict[str, Any]:
    """Do all of it; give what ``--json`` prints."""
    started = time.perf_counter()
    train, val = write_datasets(options, screen)
    loader = train_loader(train, options, options.workers)
    running = Running(Training(options.seed, len(loader) * options.num_epochs), loader)
    del loader
    device = running.training.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    weights = sum(weight.numel() for weight in running.training.network.parameters())
    screen.say(
        f"\ntraining {weights:,} weights on {where}; {count(options.workers, 'loader worker')} "
        f"of {os.cpu_count()} cores, {len(running.loader)} steps of {options.batch_size} an epoch"
    )
    screen.say("[bold]  epoch     loss  val accuracy    samples/s    waiting     time[/]")
    epochs: list[Epoch] = []
    stop: dict[str, Any] = {}
    for epoch in range(options.num_epochs):
        if epoch == STOPPED_EPOCH:
            found, stop = stop_and_go_on(running, train, options, screen)
        else:
            with screen.steps(running.loader, "learning") as bar:
                found = learn(running, epoch, None, bar)
        found.accuracy, asked, pads = judge(running.training, val, options)
        epochs.append(found)
        show_epoch(screen, found, options.num_epochs)
        if epoch == STOPPED_EPOCH:
            show_stop(screen, stop)
    seconds = time.perf_counter() - started
    screen.say(
        f"each accuracy is of {asked:,} records, each seen once by one of {EVALUATING_RANKS} ranks "
        f"({count(pads, 'pad')} left out); {seconds:.0f} s in all"
    )
    return {
        "device": where,
        "num_train": options.num_train,
        "num_val": asked,
        "num_pads": pads,
        "epochs": [found.as_json() for found in epochs],
        "stop": stop,
        "seconds": seconds,
    }


def main() -> None:
    """Read the arguments and run; ends with 1 when records were lost or repeated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="at least 2")
    parser.add_argument("--images", type=int, default=6_000, help="to learn from")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--work", type=Path, default=Path("demo-out/train"), help="is made anew")
    parser.add_argument("--json", action="store_true", help="print the figures and nothing else")
    given = parser.parse_args()
    if given.epochs < 2:
        parser.error("--epochs: the second one shows how a run goes on, so there have to be two")
    options = Options(
        work=given.work,
        num_train=given.images,
        num_epochs=given.epochs,
        batch_size=given.batch_size,
        workers=given.workers,
    )
    document = run(options, Screen(quiet=given.json))
    if given.json:
        print(json.dumps(document, indent=2))
    if not document["stop"]["same_records"]:
        raise SystemExit("the records after the stop are not those of a run without one")


if __name__ == "__main__":
    main()
