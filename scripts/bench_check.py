"""Whether a peer wrote what shardwriter wrote; each check stops the benchmark if not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_data import digest
from numpy.typing import NDArray

from shardwriter import decode_example, read_records

MAX_MEAN_DIFFERENCE, MAX_DIFFERENCE = 1, 8  # of 255, between two libraries' resizing


def check_bytes(ours: Path, theirs: Path, files: str = "*.tfrecord") -> None:
    """All shards are the same bytes."""
    pairs = _pairs(ours, theirs, files)
    different = [a.name for a, b in pairs if a.read_bytes() != b.read_bytes()]
    if different:
        raise SystemExit(f"{theirs.name}: other bytes than ours: {different}")


def check_frames(ours: Path, theirs: Path) -> None:
    """Shards hold the same records, whatever they are compressed with."""
    from shardwriter.inspect.scan import scan_file

    for a, b in _pairs(ours, theirs, "*.tfrecord.gz"):
        mine, other = scan_file(str(a)), scan_file(str(b))
        if mine.crc32c is None or mine.crc32c != other.crc32c:
            raise SystemExit(f"{theirs.name}: other records than ours in {b.name}")


def check_resized(ours: Path, theirs: Path) -> None:
    """Masks are the same bytes, and images but for what two libraries' resizing differs in.

    They round in other places.
    """
    for a, b in _pairs(ours, theirs):
        for mine, other in zip(_records(a), _records(b), strict=True):
            if mine.keys() != other.keys() or mine["mask"] != other["mask"]:
                raise SystemExit(f"{theirs.name}: other records than ours in {b.name}")
            difference = np.abs(_pixels(mine["image"]) - _pixels(other["image"]))
            if difference.mean() > MAX_MEAN_DIFFERENCE or difference.max() > MAX_DIFFERENCE:
                raise SystemExit(f"{theirs.name}: other images than ours in {b.name}")


def our_digest(folder: Path) -> str:
    """Return the digest of our records, to be held against that of another format."""
    return digest(record for path in sorted(folder.glob("*.tfrecord")) for record in _records(path))


def _pairs(ours: Path, theirs: Path, files: str = "*.tfrecord") -> list[tuple[Path, Path]]:
    names = {path.name for path in ours.glob(files)}
    others = {path.name for path in theirs.glob(files)}
    if not names or names != others:
        raise SystemExit(f"{theirs.name}: other files than ours: {sorted(names ^ others)}")
    return [(ours / name, theirs / name) for name in sorted(names)]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    return map(decode_example, read_records(path))


def _pixels(value: Any) -> NDArray[np.int16]:
    (pixels,) = value
    return np.frombuffer(pixels, np.uint8).astype(np.int16)
