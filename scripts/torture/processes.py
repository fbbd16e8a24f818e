"""The processes of a case, found in /proc."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

ORPHAN_S: Final = 10.0


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:  # it ended meanwhile
            continue
    return found


def marked(case: Path) -> list[int]:
    """Return the processes that live and were started for a case, or for any below a folder."""
    mark = f"TORTURE_CASE={case}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # it ended meanwhile, or is another user's
                continue
    return found


def wait_for_none(case: Path) -> list[int]:
    """Wait until no process of a case is left; return those that stay."""
    stop = time.monotonic() + ORPHAN_S
    while (found := marked(case)) and time.monotonic() < stop:
        time.sleep(0.01)
    return found
