"""Damage to what was never brought to the disk, as a power cut does it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

from shardwriter.dataset.index import columns
from shardwriter.writing.journal import Base, Snapshot
from torture.files import names_in

ALL: Final = 2**62


def vouched(run: Path, compression: str) -> dict[str, int]:
    """Return how many bytes of each file in a run directory were brought to the disk, at least."""
    row_bytes = 8 * columns(compression)  # type: ignore[arg-type]
    found: Counter[str] = Counter()

    def note(name: str, num_bytes: int) -> None:
        found[name] = max(found[name], num_bytes)

    def take(known: Base | Snapshot, *, growing: bool) -> None:
        for shard, written in known.open_shards.items() if growing else ():
            note(f"shard-{shard:05d}", written.file_bytes)
            note(f"index-{shard:05d}", row_bytes * written.num_pieces)
        for shard in known.sealed:
            note(f"shard-{shard:05d}", ALL)
            note(f"index-{shard:05d}", ALL)

    for name in names_in(run):
        kind, _, writer = name.partition("-")
        if kind == "base":
            base = Base.from_line((run / name).read_bytes())
            if base is not None:
                take(base, growing=True)
        elif kind in ("mark", "checkpoint"):
            snapshot = Snapshot.from_line((run / name).read_bytes())
            if snapshot is not None:
                # A mark is not on the disk; but what it calls sealed is.
                take(snapshot, growing=kind == "checkpoint")
                if kind == "checkpoint":
                    note(f"journal-{writer}", snapshot.journal_bytes)
    return found


def damage(run: Path, compression: str, rng: random.Random) -> list[str]:
    """Do to some files what a power cut can do to bytes that were not brought to the disk."""
    safe = vouched(run, compression)
    told = []
    for path in sorted(run.iterdir()):
        kind = path.name.partition("-")[0]
        if path.name.endswith(".new"):
            continue
        if kind == "mark" and rng.random() < 0.25:
            how = rng.choice(["gone", "cut", "zeros"])
            _harm_mark(path, how, rng)
            told.append(f"{path.name} {how}")
        elif kind in ("shard", "index", "journal") and "-" in path.name and rng.random() < 0.6:
            size = path.stat().st_size
            loose = size - safe.get(path.name, 0)
            if loose < 0:
                continue
            how = rng.choice(
                ["garbage", "zeros behind", *(["cut", "zeros", "noise"] * 2 * (loose > 0))]
            )
            count = rng.choice([rng.randint(1, 40), rng.randint(1, 9000)])
            if how in ("cut", "zeros", "noise"):
                count = rng.choice([min(loose, count), rng.randint(1, loose), loose])
            with path.open("r+b") as file:
                file.seek(size if how in ("garbage", "zeros behind") else size - count)
                if how == "cut":
                    file.truncate()
                else:
                    file.write(bytes(count) if "zeros" in how else rng.randbytes(count))
            told.append(f"{path.name} {how} {count} of {size}")
    return told


def _harm_mark(path: Path, how: str, rng: random.Random) -> None:
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: rng.randint(0, len(data) - 1)])
    else:
        path.write_bytes(bytes(len(data)))
