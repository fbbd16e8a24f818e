"""The lock of a run directory: one writer of a dataset at a time, on a local file system.

The lock is flock's, so it ends with the last process that has the file open; the text of the file
names the process that took it.
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

# The files of a run directory: which names are its own, and the refusal of any other folder.
#
# A folder called ``.NAME.partial`` may be anybody's. Only names that a run gives are ever read,
# written or deleted in it, and none of them may be a link: a link would lead the writer elsewhere.

RUN: Final = "run.json"

_ATTEMPT: Final = r"\.[0-9a-f]{16}"  # of a Beam job: each attempt has files of its own
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
    """Return whether a run directory gives a file this name."""
    return _OWN.fullmatch(file_name) is not None


def holds_records(file_name: str) -> bool:
    """Return whether a Beam attempt gives this name to frames of records."""
    return _RECORDS.fullmatch(file_name) is not None


def holds_rows(file_name: str) -> bool:
    """Return whether a Beam attempt gives this name to a shard's rows of the index."""
    return _ROWS.fullmatch(file_name) is not None


def open_own(path: str) -> Descriptor:
    """Open a run directory once it is known to be one.

    Hidden files (``.nfs...``, ``.DS_Store``) are passed over: systems make them anywhere.

    Raises:
        StorageError: The name is that of a link or a file; the folder has a link or a folder in
            place of a file of its own; or it has no run.json and holds files of somebody else.
        OSError: It can not be read.
    """
    try:
        folder = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        what = "a symbolic link" if os.path.islink(path) else "no folder"
        raise StorageError(
            f"it is {what}, and a dataset is made in a folder of this name",
            path=path,
            hint=f"remove it (rm {clean(path)}), or write under another name",
        ) from None
    names = set()
    with os.scandir(folder.fileno()) as entries:
        for entry in entries:
            names.add(entry.name)
            if is_own(entry.name) and not entry.is_file(follow_symlinks=False):
                raise StorageError(
                    "it is "
                    + ("a symbolic link" if entry.is_symlink() else "not a plain file")
                    + ", and a run makes none",
                    path=os.path.join(path, entry.name),
                    hint=f"remove {clean(path)} if nothing in it is yours, or write under another "
                    "name",
                )
    foreign = sorted(name for name in names if not is_own(name) and not name.startswith("."))
    if foreign and RUN not in names:
        raise StorageError(
            f"it holds {foreign[0]!r}, and a folder of this name is made and emptied by a run",
            path=path,
            hint="move what is in it elsewhere, or write under another name",
        )
    return folder


_LOCK: Final = "lock"
_ENDING_S: Final = 5.0  # how long the workers of a process that was killed may hold its lock
_LOOK_S: Final = 0.1  # and how long a reader may, who asks whether somebody does
_HOLDER = re.compile(r"process ([1-9][0-9]{0,9}) on (\S{1,255})")
_MAX_TEXT_BYTES: Final = 4096


def take_lock(path: str, name: str) -> Descriptor:
    """Make a run directory if there is none, and lock it.

    Args:
        path: The run directory.
        name: The dataset, to be named where it is busy.

    Raises:
        OutputBusy: Another process holds it; says which.
        StorageError: The directory can not be made or written, or is somebody else's.
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
            except FileNotFoundError:  # removed since, by the run that finished
                continue
            _check_file(lock, lock_path)
            try:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _text_of(lock)
                lock.close()
                waited_s = time.monotonic() - started
                if waited_s < (_ENDING_S if _has_ended(holder) else _LOOK_S):
                    time.sleep(0.02)  # its workers are about to end too, or a reader has looked
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
    """Return which process holds the lock of a run directory, in words; None where none does.

    Nothing is made or changed there.
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
    # A FIFO of this name must not make the program wait.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o666, dir_fd=folder)


def _check_file(lock: Descriptor, path: str) -> None:
    """Refuse a lock that is the file of somebody else, too: its text is replaced."""
    found = os.fstat(lock.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise StorageError(
            "the lock is not a file of its own",
            path=path,
            hint=f"remove it (rm {clean(path)}) if nobody writes this dataset",
        )


def _text_of(lock: Descriptor) -> str:
    """Return which process took a lock, in words; nothing where the text names none."""
    text = os.pread(lock.fileno(), _MAX_TEXT_BYTES, 0).decode("utf-8", "replace").strip()
    return clean(text) if _HOLDER.fullmatch(text) else ""


def _process_name() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def _has_ended(holder: str) -> bool:
    """Tell whether the process that has named itself in the lock is no more."""
    found = _HOLDER.fullmatch(holder)
    if found is None or found[2] != os.uname().nodename:
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
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
