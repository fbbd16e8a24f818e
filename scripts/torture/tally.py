"""What was done in all cases, and what went wrong."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torture import data
from torture.kill import KILLS, WHEN
from torture.look import STATES


@dataclass
class Tally:
    """What was done, and what went wrong; ``wanted`` is how many kills there are to be."""

    wanted: int
    kills: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    too_late: int = 0
    configurations: int = 0
    resumes: int = 0
    damaged: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "kills": sum(self.kills.values()),
            "kills_by_kind": {kind: self.kills[kind] for kind in KILLS},
            "kills_by_moment": {when: self.moments[when] for when in WHEN},
            "found_after_kill": {state: self.states[state] for state in STATES},
            "came_too_late": self.too_late,
            "configurations": self.configurations,
            "by_source": {kind: self.sources[kind] for kind in data.KINDS},
            "resumes": self.resumes,
            "damaged_in_between": self.damaged,
            "differences": len(self.problems),
        }


def summary(tally: Tally) -> str:
    """Return what was done, for people."""
    lines = []
    for name, value in tally.to_json().items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count}" for key, count in value.items())
        lines.append(f"{name.replace('_', ' '):20}{value}")
    return "\n".join(lines)
