"""What is killed in a run of the program, and when."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torture.processes import children

CLAIMED: Final = "(claimed)"
SIGNALS: Final = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "HUP": signal.SIGHUP}
KILLS: Final = ("program", "worker", "all", "template", *SIGNALS)
# How a program may end that was killed so. 0: the kill came too late. 1: in the middle of its
# imports, Ctrl-C is not its own yet.
EXITS: Final = {
    "program": (0, -9),
    "all": (0, -9),
    "worker": (0, 3),
    "template": (0, 3),
    "TERM": (0, 143, -15),
    "INT": (0, 130, -2, 1),
    "HUP": (0, 129, -1),
}

WHEN: Final[dict[str, tuple[Callable[[frozenset[str]], bool], float]]] = {
    "start": (lambda _: True, 2),
    "claim": (lambda names: CLAIMED in names, 14),
    "shards grow": (lambda names: CLAIMED in names and "shard-00000" in names, 1),
    "a mark": (
        lambda names: (
            CLAIMED in names and any(n.startswith(("mark-", "checkpoint-")) for n in names)
        ),
        3,
    ),
    "base": (lambda names: CLAIMED in names and bool(names & {"base", "base.new"}), 1),
    "index": (lambda names: "index" in names, 2),
    "commit": (lambda names: "commit.json" in names, 2),
    "names appear": (lambda names: "commit.json" in names and "shard-00000" not in names, 3),
    "manifest": (lambda names: "commit.json" in names and "index" not in names, 1),
}
"""What can be waited for, by the names in the run directory, and how often it is drawn.

A name of ours among them is that of a run directory that this very program has locked.
"""


@dataclass(frozen=True)
class Kill:
    """What is killed, and when: some seconds after something was seen in the run directory."""

    kind: str
    when: str
    after_s: float


def strike(kill: Kill, pid: int, rng: random.Random) -> bool:
    """Kill what is to be killed; False where there is no such process now."""
    template = children(pid)
    workers = [w for p in template for w in children(p)]
    numbers = {
        "program": [pid],
        "all": [pid, *workers, *template],
        "worker": [rng.choice(workers)] if workers else [],
        "template": template,
    }.get(kill.kind)
    if numbers is None:
        os.kill(pid, SIGNALS[kill.kind])
        return True
    for number in numbers:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(numbers)
