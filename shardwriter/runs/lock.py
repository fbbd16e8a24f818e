"""The lock of a run directory: one writer of a dataset at a time, on a local file system.

The lock is flock's, so it ends with the last process that has the file open; the text of the file
names the process that took it.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path
from typing import Final

from shardwriter.errors import OutputBusy
from shardwriter.storage.descriptor import Descriptor
from shardwriter.storage.local import storage_errors

_ENDING_S: Final = 5.0  # how long the workers of a process that was killed may hold its lock
_HOLDER = re.compile(r"process (\d+) on (.+)")


def take_lock(path: str, name: str) -> Descriptor:
    """Make a run directory if there is none, and lock it.

    Args:
        path: The run directory.
        name: The dataset, to be named where it is busy.

    Raises:
        OutputBusy: Another process holds it; says which.
        StorageError: The directory can not be made or written.
    """
    lock_path = os.path.join(path, "lock")
    give_up = time.monotonic() + _ENDING_S
    while True:
        with storage_errors(path):
            os.makedirs(path, exist_ok=True)
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:  # removed since, by the run that finished
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 4096, 0).decode("utf-8", "replace").strip()
                os.close(lock)
                if _has_ended(holder) and time.monotonic() < give_up:
                    time.sleep(0.02)  # its workers are about to end too
                    continue
                raise _busy(name, path, holder) from None
            # The lock counts only if it is still the one that the path names.
            try:
                current = os.stat(lock_path)
            except FileNotFoundError:
                current = None
            mine = os.fstat(lock)
            if current is None or (current.st_ino, current.st_dev) != (
                mine.st_ino,
                mine.st_dev,
            ):
                os.close(lock)
                continue
            os.ftruncate(lock, 0)
            os.pwrite(lock, _process_name().encode(), 0)
            return Descriptor(lock)


def _process_name() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def _has_ended(holder: str) -> bool:
    """Tell whether the process that has named itself in the lock is no more."""
    found = _HOLDER.fullmatch(holder)
    if found is None or found[2] != os.uname().nodename:
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _is_waited_for(int(found[1]))


def _is_waited_for(process: int) -> bool:
    """Tell whether a process has ended, and only whoever started it has not asked how."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:  # no Linux, or it is gone now
        return False
    return stat.rpartition(b")")[2].split()[:1] == [b"Z"]


def _busy(name: str, path: str, holder: str) -> OutputBusy:
    if holder == _process_name():
        holder = "this program"
    elif _has_ended(holder):
        holder = f"what {holder} has started, and left behind when it ended"
    return OutputBusy(
        f"{name!r} is being written by {holder or 'another process'}",
        path=path,
        hint="wait for it to end, or write under another name",
    )
