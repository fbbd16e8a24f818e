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
      files.json             which shards lie elsewhere: {shard: [file, index file]}
      commit.json            the finished manifest: its presence is the commit point

The journal may be ahead of the shards and never behind: a fact about item i is written before any
later frame of that writer. :mod:`shardwriter.writing.resume` reads all this, and
:mod:`shardwriter.writing.publication` makes it final.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import columns, parse_shard_file, partial_dir
from shardwriter.errors import StorageError
from shardwriter.formats import Compression, canonical, json_shape
from shardwriter.storage import (
    RUN,
    Descriptor,
    Storage,
    each,
    holds_records,
    holds_rows,
    is_own,
    take_lock,
)
from shardwriter.writing.journal import AdoptedFiles, Base, Journal, RunFacts, Snapshot

FORMAT: Final = "shardwriter.run/1"
_BASE: Final = "base"
_FILES: Final = "files.json"
_JOURNAL: Final = re.compile(r"journal-([0-9]{1,9})-([0-9]{1,9})")
_MAX_READ_BYTES: Final = 1 << 30


class RunDirectory:
    """A run directory.

    Use :meth:`claim`: no other process can write this dataset meanwhile. As a context manager it
    gives the lock back. Where a place knows no locks there is :meth:`unlocked`.
    """

    def __init__(
        self, directory: str, name: str, storage: Storage, lock: Descriptor | None
    ) -> None:
        self.directory = directory
        self.name = name
        self.path = os.path.join(directory, partial_dir(name))
        self.storage = storage
        self._lock = lock
        self._is_discarded = False
        self._adopted: dict[int, tuple[str, str]] | None = None  # None: nobody has looked yet

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
        lock = take_lock(os.path.join(directory, partial_dir(name)), name)
        return cls(directory, name, storage, lock)

    @classmethod
    def unlocked(cls, directory: str, name: str, storage: Storage) -> RunDirectory:
        """Go to the run directory without a lock, for a place that has none.

        What refuses another writer is run.json, which is there from the beginning.

        Args:
            directory: The folder of the dataset: a path, or a URL, which is taken as it is.
            name: The dataset.
            storage: The place of that folder.
        """
        return cls(directory, name, storage, None)

    # -- what was found ----------------------------------------------------------------------------

    @property
    def is_resumable(self) -> bool:
        """Whether an attempt has brought anything into this folder that another can go on with.

        Or whether a Beam job is at it, or has failed: it holds no lock, and leaves no marks.
        """
        if self._is_discarded:
            return False
        if RUN not in self._names():
            return False
        base = self._base()
        if base is None:
            return True  # there is something to look into
        return (
            base.is_resumable
            or any(
                snapshot.is_resumable
                for worker in self.workers(base.attempt)
                for snapshot in self.read_snapshots(base.attempt, worker)
            )
            or self.is_beam_run
        )

    @property
    def is_beam_run(self) -> bool:
        """Whether run.json says that a Beam job writes, or has written, into this folder."""
        facts = self._facts()
        return facts is not None and facts.get("engine") == "beam"

    def facts(self) -> RunFacts:
        """Return what run.json says.

        Raises:
            StorageError: It can not be read, or is not what a run writes.
        """
        facts = self._facts()
        if facts is None:
            raise self.broken(RUN)
        return facts

    def _facts(self) -> RunFacts | None:
        """Return what run.json says; None where no run has written it."""
        try:
            facts = json_shape.read(self.read(RUN), RunFacts)
        except ValueError:
            return None
        return facts if facts["format"] == FORMAT else None

    def broken(
        self, file_name: str, what: str = "it is not what this version of shardwriter writes"
    ) -> StorageError:
        """Return the error for a file of this folder that no run can have written."""
        return StorageError(
            what,
            path=self.file(file_name),
            hint="--overwrite discards the run and starts again",
        )

    # -- while the dataset grows -------------------------------------------------------------------

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Empty the directory and write run.json, the first thing in it."""
        if self._lock is None:
            self.storage.make_directory(self.path)
        self.empty()
        self.write_facts(facts)
        self._sync_above()

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Write run.json."""
        self.write_synced(RUN, canonical.dumps({**facts, "format": FORMAT}).encode("ascii"))

    def _sync_above(self) -> None:
        """Bring the run directory's own name to the disk, and those of the folders it lies in."""
        self.storage.sync_directory(self.directory)
        with contextlib.suppress(StorageError):  # a folder of other people's
            self.storage.sync_directory(os.path.dirname(self.directory))

    def adopt(self, files: Mapping[int, tuple[str, str]]) -> None:
        """Have shards lie where they were made, under names of the attempt that made them.

        It is noted in this folder, so that :meth:`shard_path` and :meth:`index_path` answer so
        here and for whoever finishes the publication. Done before the commit, and for good.

        Args:
            files: Shard file and index file of shards, by their whole paths: files of this folder,
                or a shard that has its final name already. Other shards lie where they always do.
        """
        table = {
            str(shard): [self._from_here(path) for path in paths] for shard, paths in files.items()
        }
        self.write_synced(_FILES, canonical.dumps(table).encode("ascii"))
        self._adopted = dict(files)

    def _from_here(self, path: str) -> str:
        """Return a path as seen from the dataset's folder, so that the folder can be moved."""
        return path.removeprefix(os.path.join(self.directory, ""))

    def _files_of(self, shard: int) -> tuple[str, str] | None:
        if self._adopted is None:
            self._adopted = self._read_adopted()
        return self._adopted.get(shard)

    def _read_adopted(self) -> dict[int, tuple[str, str]]:
        try:
            table = json_shape.read(self.read(_FILES) or b"{}", AdoptedFiles)
        except ValueError:
            raise self.broken(_FILES, "it does not say where shards are") from None
        for text, (file, index_file) in table.items():
            folder, _, name = file.rpartition("/")
            final = parse_shard_file(name)
            is_final = (
                not folder
                and final is not None
                and (final.pattern.name, final.shard_index) == (self.name, int(text))
            )
            is_mine = folder == partial_dir(self.name) and holds_records(name)
            folder, _, name = index_file.rpartition("/")
            if not (
                (is_mine or is_final) and folder == partial_dir(self.name) and holds_rows(name)
            ):
                raise self.broken(_FILES, "it does not say where shards are")
        return {
            int(shard): (os.path.join(self.directory, file), os.path.join(self.directory, rows))
            for shard, (file, rows) in table.items()
        }

    @property
    def adopted(self) -> Collection[int]:
        """The shards that lie under names of attempts.

        Raises:
            StorageError: files.json does not say where they are.
        """
        self._files_of(0)
        return (self._adopted or {}).keys()

    def shard_path(self, shard: int) -> str:
        """Path of a growing shard."""
        adopted = self._files_of(shard)
        return self.file(f"shard-{shard:05d}") if adopted is None else adopted[0]

    def index_path(self, shard: int) -> str:
        """Path of a growing shard's index."""
        adopted = self._files_of(shard)
        return self.file(f"index-{shard:05d}") if adopted is None else adopted[1]

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
        for file_name in self._names():
            kind, _, rest = file_name.partition("-")
            attempt = rest.partition("-")[0]
            if kind in ("mark", "checkpoint", "journal") and attempt != str(base.attempt):
                self.storage.delete(self.file(file_name))

    def read_base(self) -> Base:
        """Return where the last attempt began.

        Raises:
            StorageError: It is not what a run writes.
        """
        base = self._base()
        if base is None:
            raise self.broken(_BASE)
        return base

    def _base(self) -> Base | None:
        data = self.read(_BASE)
        return Base.from_line(data) if data else Base()

    def workers(self, attempt: int) -> list[int]:
        """Return the workers that an attempt had."""
        found = (_JOURNAL.fullmatch(name) for name in self._names())
        return sorted(int(name[2]) for name in found if name and int(name[1]) == attempt)

    def index_columns(self, shard: int, compression: Compression) -> NDArray[np.uint64]:
        """Return what the index has of a sealed shard.

        Returns:
            uint64[1, n]: the offset behind each frame. Of a compressed shard uint64[2, n]: the
            offset behind each member, and the records up to there.
        """
        path, width = self.index_path(shard), columns(compression)
        data = self.storage.read(path)
        if data is None or len(data) % (8 * width):
            raise StorageError("the index of a shard is gone, or torn", path=path)
        turned: NDArray[np.uint64] = np.frombuffer(data, dtype="<u8").reshape(-1, width).T
        return turned

    def index_rows(self, shard: int, compression: Compression) -> int:
        """Return how many rows that is."""
        return (self.storage.size(self.index_path(shard)) or 0) // (8 * columns(compression))

    # -- its files ---------------------------------------------------------------------------------

    def file(self, file_name: str) -> str:
        """Return the path of a file in this folder."""
        return os.path.join(self.path, file_name)

    def _names(self) -> list[str]:
        """Return the names of the files of its own that are there."""
        return [name for name in self.storage.list(self.path) if is_own(name)]

    def read(self, file_name: str) -> bytes:
        """Return the bytes of a small file; none where there is no file.

        Raises:
            StorageError: It can not be read, or is larger than any that a run makes.
        """
        path = self.file(file_name)
        if self._lock is not None and (self.storage.size(path) or 0) > _MAX_READ_BYTES:
            raise self.broken(file_name)
        return self.storage.read(path) or b""

    def write_synced(self, file_name: str, data: bytes) -> None:
        """Make a small file appear on the disk, whole or not at all."""
        self._write(file_name, data, synced=True)
        self.storage.sync_directory(self.path)

    def _write(self, file_name: str, data: bytes, *, synced: bool) -> None:
        path = self.file(file_name)
        growing = path
        if not self.storage.appears_whole:
            # Without a lock several may be at it, and all of them write the same.
            growing = f"{path}.new" if self._lock is not None else f"{path}.{uuid4().hex}"
        with contextlib.closing(self.storage.create(growing)) as file:
            file.write(data)
            if synced or self._lock is None:  # other places keep only what was synced
                self.storage.sync(growing)
        self.storage.publish(growing, path)

    def empty(self, last: str | None = None) -> None:
        """Delete all files of its own but the lock.

        run.json goes first, and for good: nobody may go on with what is left of a run that is half
        deleted.

        Args:
            last: A file that goes after all others, which it speaks for.
        """
        self._adopted = {}
        names = [name for name in self._names() if name not in ("lock", last)]
        if RUN in names:
            self.storage.delete(self.file(RUN))
            self.storage.sync_directory(self.path)
            names.remove(RUN)
        each(self.storage, self.storage.delete, map(self.file, names))
        if names:
            self.storage.sync_directory(self.path)
        if last is not None:
            self.storage.delete(self.file(last))

    def discard(self) -> None:
        """Delete the run directory; the lock file goes last. Discarding twice does nothing."""
        if not self._is_discarded:
            self.empty()
            self._is_discarded = True  # should Ctrl-C come now: without the lock it is not ours
            if self._lock is not None:
                self.storage.delete(self.file("lock"))
        # Another process may have made its own lock there a moment ago: then the folder is its.
        self.storage.remove_directory(self.path)

    def release(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
