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

    On Linux what they share counts once, and what other programs share with them counts in full; a
    mapped input counts as far as it was read. Elsewhere it is the memory of the largest process.
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
    # Where nothing was sampled. Linux counts this program's own size in, from before the exec.
    return usage.ru_maxrss * (1024 if sys.platform == "linux" else 1) / 1e6


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
            self.peak_mb = max(self.peak_mb, _memory_mb(list(_family(pid))))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # it ended meanwhile
            continue
        for child in found:
            yield from _family(int(child))


def _memory_mb(pids: list[int]) -> float:
    """Sum the memory of processes that have one ancestor.

    Of memory without a file, what is shared is shared among them (PSS). The pages of a file may be
    shared with anybody: they count once, as many as the process has that has most of them.
    """
    own_kb = 0
    files_kb: dict[str, int] = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:  # it ended meanwhile
            continue
        mapped_kb: dict[str, int] = {}
        path = ""
        for line in text.splitlines():
            words = line.split(maxsplit=5)
            if not words[0].endswith(":"):  # the head of a mapping
                path = words[5] if len(words) > 5 and words[5].startswith("/") else ""
            elif words[0] == "Pss:" and not path:
                own_kb += int(words[1])
            elif words[0] == "Rss:" and path:
                mapped_kb[path] = mapped_kb.get(path, 0) + int(words[1])
            elif words[0] == "Anonymous:" and path:  # pages that were written to
                mapped_kb[path] -= int(words[1])
                own_kb += int(words[1])
        for path, kb in mapped_kb.items():
            files_kb[path] = max(files_kb.get(path, 0), kb)
    return (own_kb + sum(files_kb.values())) * 1024 / 1e6
