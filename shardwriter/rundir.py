"""The run directory: where a dataset grows.

::

    .train.partial/          beside the output, named by the dataset and not by N
      run.json               what the run is: written first, fsynced
      lock                   flock of the writer; its text names the process
      shard-00000 ...        growing shards
      index-00000 ...        u64 end of every frame; compressed: u64 end, u64 records of a member
      journal-<attempt>-<worker>    facts, one a line, with a checksum
      mark-<attempt>-<worker>       how far the worker has come: outlives the process
      checkpoint-<attempt>-<worker> the same, brought to the disk: outlives a power cut
      base                   where the attempt began: all that earlier ones have left
      commit.json            the finished manifest: its presence is the commit point

The journal may be ahead of the shards and never behind: a fact about item i is written before any
later frame of that writer. :mod:`shardwriter.recovery` reads all this, and
:mod:`shardwriter.publication` makes it final.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter import canonical
from shardwriter.compression import Compression
from shardwriter.errors import OutputBusy, StorageError
from shardwriter.index import columns
from shardwriter.journal import Journal
from shardwriter.naming import partial_dir
from shardwriter.snapshot import Base, Snapshot
from shardwriter.storage import Storage
from shardwriter.storage.descriptor import Descriptor
from shardwriter.storage.local import storage_errors

FORMAT: Final = "shardwriter.run/1"
_ENDING_S: Final = 5.0  # how long the workers of a process that was killed may hold its lock
_HOLDER = re.compile(r"process (\d+) on (.+)")
_RUN: Final = "run.json"
_BASE: Final = "base"


def _process_name() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


class RunDirectory:
    """A claimed run directory; no other process can write this dataset meanwhile.

    Use :meth:`claim`. As a context manager it gives the lock back.
    """

    def __init__(self, directory: str, name: str, storage: Storage, lock: Descriptor) -> None:
        self.directory = directory
        self.name = name
        self.path = os.path.join(directory, partial_dir(name))
        self.storage = storage
        self._lock = lock
        self._is_discarded = False

    @classmethod
    def claim(cls, directory: str, name: str, storage: Storage) -> RunDirectory:
        """Make the run directory if there is none, and lock it.

        Raises:
            OutputBusy: Another process holds it; says which.
            StorageError: The output folder can not be made or written.
        """
        # Absolute, so that code of the user's that changes the folder does not move the output.
        try:
            directory = os.path.abspath(directory)
        except FileNotFoundError:
            raise StorageError(
                "the current folder is gone", hint="change to a folder that is there"
            ) from None
        path = os.path.join(directory, partial_dir(name))
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
                return cls(directory, name, storage, Descriptor(lock))

    # -- what was found ----------------------------------------------------------------------------

    @property
    def is_worth_keeping(self) -> bool:
        """Whether an attempt has brought anything into this folder that another can go on with."""
        if self._is_discarded:
            return False
        if _RUN not in self.storage.list(self.path):
            return False
        base = self.read_base()
        return base.is_worth_keeping or any(
            snapshot.is_worth_keeping
            for worker in self.workers(base.attempt)
            for snapshot in self.read_snapshots(base.attempt, worker)
        )

    def facts(self) -> dict[str, Any]:
        """Return what run.json says.

        Raises:
            StorageError: It can not be read.
        """
        path = self.file(_RUN)
        with storage_errors(path):
            data = Path(path).read_bytes()
        try:
            facts = canonical.loads(data)
            if not isinstance(facts, dict) or facts.get("format") != FORMAT:
                raise ValueError
        except ValueError:
            raise StorageError(
                "it is not what this version of shardwriter writes",
                path=path,
                hint="--overwrite discards the run and starts again",
            ) from None
        return facts

    # -- while the dataset grows -------------------------------------------------------------------

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Empty the directory and write run.json, the first thing in it."""
        self.empty()
        run = {"format": FORMAT, **facts}
        self.write_synced(_RUN, canonical.dumps(run).encode("ascii"))
        self._sync_above()

    def _sync_above(self) -> None:
        """Bring the run directory's own name to the disk, and those of the folders it lies in."""
        self.storage.sync_directory(self.directory)
        with contextlib.suppress(StorageError):  # a folder of other people's
            self.storage.sync_directory(os.path.dirname(self.directory))

    def shard_path(self, shard: int) -> str:
        """Path of a growing shard."""
        return self.file(f"shard-{shard:05d}")

    def index_path(self, shard: int) -> str:
        """Path of a growing shard's index."""
        return self.file(f"index-{shard:05d}")

    def journal(self, attempt: int, worker: int) -> Journal:
        """Open a journal; each attempt and worker has its own."""
        return Journal(self.storage, self.file(f"journal-{attempt}-{worker}"))

    def write_snapshot(self, attempt: int, worker: int, snapshot: Snapshot) -> None:
        """Replace a worker's mark, or its checkpoint."""
        if snapshot.is_synced:
            self.write_synced(f"checkpoint-{attempt}-{worker}", snapshot.to_line())
        else:
            self._write(f"mark-{attempt}-{worker}", snapshot.to_line(), synced=False)

    def read_snapshots(self, attempt: int, worker: int) -> list[Snapshot]:
        """Return a worker's snapshots that are whole, the newest first."""
        found = [
            Snapshot.from_line(self.read(f"{kind}-{attempt}-{worker}"))
            for kind in ("mark", "checkpoint")
        ]
        whole = [snapshot for snapshot in found if snapshot is not None]
        return sorted(whole, key=lambda snapshot: -snapshot.number)

    def write_base(self, base: Base) -> None:
        """Note where an attempt begins; what earlier ones have noted is done with."""
        self.write_synced(_BASE, base.to_line())
        for file_name in self.storage.list(self.path):
            kind, _, rest = file_name.partition("-")
            attempt = rest.partition("-")[0]
            if kind in ("mark", "checkpoint", "journal") and attempt != str(base.attempt):
                self.storage.delete(self.file(file_name))

    def read_base(self) -> Base:
        """Return where the last attempt began."""
        return Base.from_line(self.read(_BASE)) or Base()

    def workers(self, attempt: int) -> list[int]:
        """Return the workers that an attempt had."""
        names = self.storage.list(self.path)
        begin = f"journal-{attempt}-"
        return sorted(int(name[len(begin) :]) for name in names if name.startswith(begin))

    def index_columns(self, shard: int, compression: Compression) -> NDArray[np.uint64]:
        """Return what the index has of a sealed shard.

        Returns:
            uint64[1, n]: the offset behind each frame. Of a compressed shard uint64[2, n]: the
            offset behind each member, and the records up to there.
        """
        path = self.index_path(shard)
        with storage_errors(path):
            rows = np.fromfile(path, dtype="<u8").reshape(-1, columns(compression))
        turned: NDArray[np.uint64] = rows.T
        return turned

    def index_rows(self, shard: int, compression: Compression) -> int:
        """Return how many rows that is."""
        return (self.storage.size(self.index_path(shard)) or 0) // (8 * columns(compression))

    # -- its files ---------------------------------------------------------------------------------

    def file(self, file_name: str) -> str:
        """Return the path of a file in this folder."""
        return os.path.join(self.path, file_name)

    def read(self, file_name: str) -> bytes:
        """Return the bytes of a small file; none where there is no file."""
        path = self.file(file_name)
        with storage_errors(path):
            try:
                return Path(path).read_bytes()
            except FileNotFoundError:
                return b""

    def write_synced(self, file_name: str, data: bytes) -> None:
        """Make a small file appear on the disk, whole or not at all."""
        self._write(file_name, data, synced=True)
        self.storage.sync_directory(self.path)

    def _write(self, file_name: str, data: bytes, *, synced: bool) -> None:
        path = self.file(file_name)
        growing = path + ".new"
        file = self.storage.create(growing)
        file.write(data)
        if synced:
            self.storage.sync(growing)
        file.close()
        self.storage.publish(growing, path)

    def empty(self, last: str | None = None) -> None:
        """Delete everything but the lock.

        run.json goes first, and for good: nobody may go on with what is left of a run that is half
        deleted.

        Args:
            last: A file that goes after all others, which it speaks for.
        """
        names = [name for name in self.storage.list(self.path) if name not in ("lock", last)]
        if _RUN in names:
            self.storage.delete(self.file(_RUN))
            self.storage.sync_directory(self.path)
            names.remove(_RUN)
        for name in names:
            self.storage.delete(self.file(name))
        if names:
            self.storage.sync_directory(self.path)
        if last is not None:
            self.storage.delete(self.file(last))

    def discard(self) -> None:
        """Delete the run directory; the lock file goes last. Discarding twice does nothing."""
        if not self._is_discarded:
            self.empty()
            self._is_discarded = True  # should Ctrl-C come now: without the lock it is not ours
            self.storage.delete(self.file("lock"))
        # Another process may have made its own lock there a moment ago: then the folder is its.
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def release(self) -> None:
        """Give the lock back."""
        self._lock.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


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
