"""Runs a command and measures it: wall time, and memory of all its processes together."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

WATCH_EVERY_S = 0.02


def run_timed(command: list[str], environment: Mapping[str, str]) -> float:
    """Run a command; return its wall time in seconds."""
    os.sync()  # or one run pays for the dirty pages of the run before
    started = time.perf_counter()
    _run(command, environment, None)
    return time.perf_counter() - started


def run_watched(command: list[str], environment: Mapping[str, str]) -> float:
    """Run a command; return the peak in MB of the memory that all its processes have together.

    On Linux a page that processes share counts once (PSS). Elsewhere it is the largest process's.
    Watching takes time, so this run is not one to be timed.
    """
    watch = _Watch()
    largest_mb = _run(command, environment, watch)
    return watch.peak_mb or largest_mb


def _run(command: list[str], environment: Mapping[str, str], watch: _Watch | None) -> float:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        if watch is not None:
            watch.start(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if watch is not None:
            watch.stop()
        if process.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise SystemExit(f"{' '.join(command)} failed ({process.returncode}):\n{text}")
    return usage.ru_maxrss / (1e3 if sys.platform == "linux" else 1e6)


class _Watch:
    """Samples the memory of a process and of what descends from it."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._ended = threading.Event()

    def start(self, pid: int) -> None:
        self._thread = threading.Thread(target=self._sample, args=(pid,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self, pid: int) -> None:
        while not self._ended.wait(WATCH_EVERY_S):
            self.peak_mb = max(self.peak_mb, sum(_pss_mb(each) for each in _family(pid)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # it ended meanwhile
            continue
        for child in found:
            yield from _family(int(child))


def _pss_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1e3
