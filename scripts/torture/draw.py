"""What is drawn: configurations, attempts and kills."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import Final

from torture import data
from torture.kill import WHEN, Kill
from torture.look import STATES

START_S: Final = 0.4  # what a run takes before it locks the run directory, about


@dataclass(frozen=True)
class Old:
    """A dataset that is there before, and is to be replaced."""

    num_shards: int
    compression: str
    index: bool
    errors: bool


@dataclass(frozen=True)
class Config:
    """What is written; ``old``, ``via`` and what comes after it decide no byte."""

    source: str
    seed: int
    num_items: int
    item_bytes: int
    num_shards: int
    compression: str
    map: str | None
    filter: bool
    limit: int | None
    label: str | None
    shuffle: int | None
    index: bool
    old: Old | None
    via: str
    mark_s: float
    checkpoint_bytes: int
    sleep_s: float

    def reference_key(self) -> str:
        """Return what tells it from configurations with other bytes."""
        decides = {**asdict(self)}
        for name in ("old", "via", "mark_s", "checkpoint_bytes", "sleep_s"):
            del decides[name]
        return json.dumps(decides, sort_keys=True)


@dataclass(frozen=True)
class Attempt:
    """One run of the program."""

    via: str
    engine: str
    workers: int
    mode: str  # begin, resume, overwrite


def draw_config(rng: random.Random, *, short: bool = False) -> Config:
    """Draw a configuration.

    Args:
        rng: Decides.
        short: Whether a run is to take less than a second, for a test.
    """
    source = rng.choice(data.KINDS)
    compression = rng.choice(["none", "none", "gzip", "zlib"])
    sizes = ["many", "big", "few"]
    size = rng.choices(sizes, [2, 6, 1] if compression != "none" else [5, 2, 1])[0]
    if size == "many":
        num_items, item_bytes = rng.randint(200, 1500), rng.randint(1, 500)
        num_shards = rng.choice([1, 2, rng.randint(2, 9), rng.randint(3, 70), rng.randint(65, 70)])
    elif size == "big":  # members of 1 MiB fill
        num_items = rng.randint(30, 120)
        item_bytes = rng.randint(20_000, (4 if short else 12) * 1_000_000 // num_items)
        num_shards = rng.choice([1, 2, rng.randint(2, 5), rng.randint(2, 5), rng.randint(5, 70)])
    else:
        num_items, item_bytes = rng.randint(1, 30), rng.randint(1, 500)
        num_shards = rng.randint(1, 70)
    is_copy = source.startswith("tfrecord")
    mapped = rng.choice(data.MAPS)
    with_label = rng.random() < 0.5 and source != "images" and not (is_copy and mapped is None)
    can_shuffle = source in ("images", "csv", "jsonl", "dataset", "tfrecord")
    old = None
    if rng.random() < 0.35:
        old_compression = rng.choice(["none", compression, "gzip"])
        old = Old(
            rng.choice([num_shards, rng.randint(1, 20)]),
            old_compression,
            old_compression == "none" and rng.random() < 0.4,
            rng.random() < 0.5,
        )
    via = rng.choice(["api", "api", "api", "cli", "both"])
    # The command marks once a second: a run has to take longer for something to be kept.
    work_s = rng.uniform(0.8, 2.2) if via != "api" else rng.choice([0, rng.uniform(0.1, 1.2)])
    if short:
        work_s /= 4
    return Config(
        source,
        rng.randint(0, 10**6),
        num_items,
        item_bytes,
        num_shards,
        compression,
        mapped,
        rng.random() < 0.25,
        rng.randint(num_items // 3, num_items * 5 // 4) if rng.random() < 0.3 else None,
        "label" if with_label else None,
        rng.randint(0, 99) if can_shuffle and rng.random() < 0.5 else None,
        compression == "none" and rng.random() < 0.4,
        old,
        via,
        rng.choice([0, 0.01, 0.01, 0.05, 0.3]),
        # Some checkpoints: each waits for the disk, twice a shard.
        rng.choice([256 << 20, num_items * item_bytes // rng.randint(1, 300 // num_shards) + 1]),
        min(0.003 if size == "many" else 0.05, work_s / num_items),
    )


def draw_attempt(rng: random.Random, config: Config, state: str | None) -> Attempt:
    """Draw how the next run goes about it.

    Args:
        rng: Decides.
        config: What is written.
        state: In which the last run left the folder; None before the first.
    """
    via = rng.choice(["api", "cli"]) if config.via == "both" else config.via
    workers = rng.choice([1, 2, 2, 3, 4])
    engine = "process" if workers > 1 else rng.choice(["serial", "process"])
    if state is None:
        mode = "overwrite" if config.old else rng.choice(["begin", "resume"])
    elif config.old and state in STATES[:2]:
        mode = "overwrite"  # the old dataset is in the way of a resume that has nothing to resume
    else:
        mode = "overwrite" if rng.random() < 0.04 else "resume"
    return Attempt(via, engine, workers, mode)


def draw_kill(rng: random.Random, config: Config, attempt: Attempt) -> Kill:
    """Draw a kill."""
    kinds = {"program": 5, "all": 4, "TERM": 3, "INT": 2, "HUP": 2}
    if attempt.engine == "process" and attempt.workers > 1 and config.num_shards > 1:
        kinds |= {"worker": 3, "template": 2}
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    when = rng.choices(list(WHEN), [WHEN[name][1] for name in WHEN])[0]
    if when == "start":
        return Kill(kind, when, rng.uniform(0, START_S))
    if when == "claim":
        work_s = config.sleep_s * config.num_items
        if config.source != "stream":
            work_s /= min(2, attempt.workers)
        return Kill(kind, when, rng.uniform(0, work_s + 0.1))
    return Kill(kind, when, rng.choice([0, rng.uniform(0, 0.003), rng.uniform(0, 0.03)]))
