"""What is on the disk: names, contents, how two folders differ, and what is left over."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAME: Final = "train"
RUN: Final = f".{NAME}.partial"
MANIFEST: Final = f"{NAME}.manifest.json"


def names_in(folder: Path) -> frozenset[str]:
    """Return the names in a folder; none where there is no folder."""
    try:
        return frozenset(os.listdir(folder))
    except FileNotFoundError:
        return frozenset()


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder; of a folder in it only the name, with a slash."""
    found = {}
    for path in folder.iterdir():
        if path.is_dir():
            found[path.name + "/"] = b""
        else:
            found[path.name] = path.read_bytes()
    return found


def difference(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> str | None:
    """Say how two folders differ; None where they do not."""
    if found.keys() != wanted.keys():
        more, less = sorted(found.keys() - wanted.keys()), sorted(wanted.keys() - found.keys())
        return f"files too many: {more}, too few: {less}"
    for name in sorted(wanted):
        a, b = found[name], wanted[name]
        if a != b:
            place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            return f"{name} differs: {len(a)} bytes, not {len(b)}; from byte {place}"
    return None


def left_in(folder: Path) -> list[str]:
    """Return the names in a folder for temporary files.

    Python's tempfile finds out whether it can write there with a file of its own, and removes it. A
    kill that comes in between leaves that, and nobody else can help it.
    """
    return [
        path.name
        for path in folder.iterdir()
        if path.is_dir() or path.name.startswith("tmp") or path.read_bytes() not in (b"", b"blat")
    ]


def shared_memory() -> set[str]:
    """Return the names of shared memory; a folder there is none, but some program's TMPDIR."""
    folder = Path("/dev/shm")
    return (
        {path.name for path in folder.iterdir() if not path.is_dir()} if folder.exists() else set()
    )
