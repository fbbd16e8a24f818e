"""Finding the processes that a test has started, also those that it should not have left."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

MARK = "SHARDWRITER_TEST_MARK"
PLENTY_S = 20  # what takes longer hangs


def marked(mark):
    """The processes of a test: those that inherited its mark."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
            except OSError:
                pass  # it has ended meanwhile
    return found


def open_below(folder):
    """Return how many files below a folder this process holds open.

    Not all that it holds: other tests' libraries close theirs when they like.
    """
    inside = os.path.realpath(folder) + os.sep
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(link).startswith(inside) for link in links)


def _stat(process):
    """State, parent and what follows them; nothing where the process has ended."""
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def children(process):
    """The processes that one has started, those too that have ended and wait for it."""
    entries = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return {entry for entry in entries if _stat(entry)[1:2] == [str(process)]}


def is_stopped(process):
    """Whether SIGSTOP has stopped it."""
    return _stat(process)[:1] == ["T"]


def until(condition, seconds=5.0):
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop, "nothing has happened"
        time.sleep(0.01)


@contextmanager
def started(command, **options):
    """A process that is not waited for when the test fails."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def published(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".partial"))
