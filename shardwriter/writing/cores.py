"""How many processors this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = (
    Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by its cgroup's quota.

    A container often sees all cores of its host, and may use the time of a few.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has none
        cores = os.cpu_count() or 1
    quota = _quota()
    return cores if quota is None else max(1, min(cores, round(quota)))


def _quota() -> float | None:
    """Return the cores that a cgroup's quota amounts to; None where none is known."""
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text().split()
        else:
            quota, period = (path.read_text() for path in _CGROUP_V1)
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ArithmeticError):  # "max", or nothing that is known
        return None
