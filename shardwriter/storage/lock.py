"""Run directories on a local file system: their file names, their check, and their lock.

A folder named ``.NAME.partial`` may belong to somebody else. A run reads, writes and deletes only
the file names listed here, and none of them may be a link, which would lead it to another folder.

The lock is an flock, so it ends with the last process that has the file open. The text of the lock
file names the process that took it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from shardwriter.errors import OutputBusy, StorageError
from shardwriter.formats import clean
from shardwriter.storage.local import storage_errors
from shardwriter.storage.open_files import Descriptor

RUN: Final = "run.json"

_ATTEMPT: Final = r"\.[0-9a-f]{16}"  # of a Beam job, where each attempt has its own files
_OWN: Final = re.compile(
    r"(?:lock|run\.json|base|files\.json|commit\.json|manifest|index|index\.remade|dali|idx|tfds"
    r"|errors\.jsonl|with-ledger|lost|lost\.jsonl|with-lost"
    rf"|(?:shard|index)-[0-9]{{5,6}}(?:{_ATTEMPT})?|dali-[0-9]{{5,6}}"
    r"|(?:journal|mark|checkpoint)-[0-9]{1,9}-[0-9]{1,9}"
    rf"|cargo-[0-9a-f]{{16}}|bucket-[0-9]{{5,9}}{_ATTEMPT}|part-[0-9]{{5,6}}-[0-9]{{6,18}}{_ATTEMPT}"
    r"|done-[0-9]{5,6}-[0-9a-f]{32})"
    r"(?:\.new|\.[0-9a-f]{32})?"  # while it is written
)
_RECORDS: Final = re.compile(rf"(?:shard-[0-9]{{5,6}}|part-[0-9]{{5,6}}-[0-9]{{6,18}}){_ATTEMPT}")
_ROWS: Final = re.compile(rf"index-[0-9]{{5,6}}{_ATTEMPT}")


def is_own(file_name: str) -> bool:
    """Return whether this is the name of a file of a run directory."""
    return _OWN.fullmatch(file_name) is not None


def holds_records(file_name: str) -> bool:
    """Return whether this is the name of a Beam attempt's file of records."""
    return _RECORDS.fullmatch(file_name) is not None


def holds_rows(file_name: str) -> bool:
    """Return whether this is the name of a Beam attempt's file of index rows."""
    return _ROWS.fullmatch(file_name) is not None


def open_own(path: str) -> Descriptor:
    """Open a run directory after checking that it is one.

    Hidden files (``.nfs...``, ``.DS_Store``) are ignored: systems create them in any folder.

    Raises:
        StorageError: The path is a link or a file; a file of the run is a link or a folder; or the
            folder has other files and no run.json.
        OSError: The folder cannot be read.
    """
    try:
        folder = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        what = "a symbolic link" if os.path.islink(path) else "not a folder"
        raise StorageError(
            f"the run directory is {what}",
            path=path,
            hint=f"remove it (rm {clean(path)}), or write under another name",
        ) from None
    names = set()
    with os.scandir(folder.fileno()) as entries:
        for entry in entries:
            names.add(entry.name)
            if is_own(entry.name) and not entry.is_file(follow_symlinks=False):
                what = "a symbolic link" if entry.is_symlink() else "not a plain file"
                raise StorageError(
                    f"this file of a run directory is {what}",
                    path=os.path.join(path, entry.name),
                    hint=f"remove {clean(path)} if nothing in it is yours, or write under another "
                    "name",
                )
    foreign = sorted(name for name in names if not is_own(name) and not name.startswith("."))
    if foreign and RUN not in names:
        raise StorageError(
            f"the run directory holds a file of another program, {foreign[0]!r}",
            path=path,
            hint="move its files elsewhere, or write under another name",
        )
    return folder


_LOCK: Final = "lock"
_LEFTOVER_S: Final = 5.0  # how long workers may hold the lock after their writer was killed
_READER_S: Final = 0.1  # how long a reader may hold it, to ask for its owner
_HOLDER = re.compile(r"process ([1-9][0-9]{0,9}) on (\S{1,255})")
_MAX_TEXT_BYTES: Final = 4096


def take_lock(path: str, name: str) -> Descriptor:
    """Create a run directory if it does not exist, and lock it.

    Args:
        path: The run directory.
        name: The name of the dataset, for the error message.

    Raises:
        OutputBusy: Another process has the lock; the message names it.
        StorageError: The directory cannot be created or written, or is not a run directory.
    """
    lock_path = os.path.join(path, _LOCK)
    started = time.monotonic()
    while True:
        with storage_errors(path):
            with suppress(FileExistsError):
                os.makedirs(path)
            try:
                with closing(open_own(path)) as folder:
                    lock = Descriptor(_open_lock(os.O_RDWR | os.O_CREAT, _LOCK, folder.fileno()))
            except FileNotFoundError:  # the run that finished has removed it since
                continue
            _check_file(lock, lock_path)
            try:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _text_of(lock)
                lock.close()
                waited_s = time.monotonic() - started
                if waited_s < (_LEFTOVER_S if _has_exited(holder) else _READER_S):
                    time.sleep(0.02)  # the leftover workers are about to exit, or a reader asked
                    continue
                raise _busy(name, path, holder) from None
            # The lock counts only if it is still the one that the path names.
            with suppress(FileNotFoundError):
                current = os.stat(lock_path, follow_symlinks=False)
                mine = os.fstat(lock.fileno())
                if (current.st_ino, current.st_dev) == (mine.st_ino, mine.st_dev):
                    os.ftruncate(lock.fileno(), 0)
                    os.pwrite(lock.fileno(), _process_name().encode(), 0)
                    return lock
            lock.close()


def lock_owner(path: str) -> str | None:
    """Return the process that has the lock of a run directory, in words; None if it is not locked.

    Creates and changes no file.
    """
    try:
        lock = Descriptor(_open_lock(os.O_RDONLY, os.path.join(path, _LOCK)))
    except OSError:
        return None
    with closing(lock):
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _text_of(lock) or "another process"
        except OSError:
            pass
    return None


def _open_lock(flags: int, path: str, folder: int | None = None) -> int:
    # O_NONBLOCK: opening a FIFO of this name must not block.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o666, dir_fd=folder)


def _check_file(lock: Descriptor, path: str) -> None:
    """Raise if the lock file is a link to another file, whose text would be overwritten."""
    found = os.fstat(lock.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise StorageError(
            "the lock file is a link",
            path=path,
            hint=f"remove it (rm {clean(path)}) if nobody writes this dataset",
        )


def _text_of(lock: Descriptor) -> str:
    """Return the process that took a lock, in words; "" where the text names none."""
    text = os.pread(lock.fileno(), _MAX_TEXT_BYTES, 0).decode("utf-8", "replace").strip()
    return clean(text) if _HOLDER.fullmatch(text) else ""


def _process_name() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def _has_exited(holder: str) -> bool:
    """Return whether the lock's owner has exited."""
    found = _HOLDER.fullmatch(holder)
    if found is None or found[2] != os.uname().nodename:
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return _is_zombie(int(found[1]))


def _is_zombie(process: int) -> bool:
    """Return whether a process has exited and its parent has not waited for it."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:  # not Linux, or the process is gone
        return False
    return stat.rpartition(b")")[2].split()[:1] == [b"Z"]


def _busy(name: str, path: str, holder: str) -> OutputBusy:
    if holder == _process_name():
        holder = "this program"
    elif _has_exited(holder):
        holder = f"leftover workers of {holder}"
    return OutputBusy(
        f"{name!r} is being written by {holder or 'another process'}",
        path=path,
        hint="wait for it to end or stop it, or write under another name",
    )
