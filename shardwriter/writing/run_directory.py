"""The run directory: the files of a dataset that is being written.

::

    .train.partial/          beside the output, named after the dataset, without N
      run.json               the job: written first, synced
      lock                   flock of the writer; its text names the process
      shard-00000 ...        open and sealed shards
      index-00000 ...        u64 end of every frame; compressed: u64 end, u64 records of a member
      journal-<attempt>-<worker>    facts, one a line, with a checksum
      mark-<attempt>-<worker>       snapshot that survives the end of the process
      checkpoint-<attempt>-<worker> synced snapshot, which survives a power cut
      base                   the state in which the attempt started
      files.json             shards under other names: {shard: [file, index file]}
      commit.json            the final manifest; once it exists, publication must be completed

:mod:`shardwriter.writing.journal` describes journals, snapshots and the base,
:mod:`shardwriter.writing.resume` resumes from them, and :mod:`shardwriter.writing.publication`
gives the files their final names.
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
    """A run directory; a context manager that releases its lock.

    :meth:`claim` locks it, so that no other process writes the dataset; :meth:`unlocked` is for
    storage without locks.
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
        self._adopted: dict[int, tuple[str, str]] | None = None  # None: not read yet

    @classmethod
    def claim(cls, directory: str, name: str, storage: Storage) -> RunDirectory:
        """Create the run directory if needed, lock it, and return it.

        Raises:
            OutputBusy: Another process has locked it; says which.
            StorageError: The output folder cannot be created or written.
        """
        # Absolute, as the user's code may change the current folder.
        try:
            directory = os.path.abspath(directory)
        except FileNotFoundError:
            raise StorageError(
                "the current folder was deleted", hint="change to an existing folder"
            ) from None
        lock = take_lock(os.path.join(directory, partial_dir(name)), name)
        return cls(directory, name, storage, lock)

    @classmethod
    def unlocked(cls, directory: str, name: str, storage: Storage) -> RunDirectory:
        """Return a run directory without a lock, on storage that has none.

        The presence of run.json keeps other writers out.

        Args:
            directory: Folder of the dataset: a path or a URL.
            name: Name of the dataset.
            storage: Storage of that folder.
        """
        return cls(directory, name, storage, None)

    # -- state -------------------------------------------------------------------------------------

    @property
    def is_resumable(self) -> bool:
        """Whether another attempt can resume from the files here.

        True for a Beam job too, which has neither a lock nor snapshots.
        """
        if self._is_discarded:
            return False
        if RUN not in self._names():
            return False
        base = self._base()
        if base is None:
            return True  # a damaged base: not to be discarded silently
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
        """Whether a Beam job writes, or has written, into this folder."""
        facts = self._facts()
        return facts is not None and facts.get("engine") == "beam"

    def facts(self) -> RunFacts:
        """Return the content of run.json.

        Raises:
            StorageError: It cannot be read, or is invalid.
        """
        facts = self._facts()
        if facts is None:
            raise self.broken(RUN)
        return facts

    def _facts(self) -> RunFacts | None:
        """Return the content of run.json; None if it is missing or invalid."""
        try:
            facts = json_shape.read(self.read(RUN), RunFacts)
        except ValueError:
            return None
        return facts if facts["format"] == FORMAT else None

    def broken(
        self, file_name: str, what: str = "not a file that this version of shardwriter writes"
    ) -> StorageError:
        """Return the error for an invalid file of this folder."""
        return StorageError(
            what,
            path=self.file(file_name),
            hint="use --overwrite to start over",
        )

    # -- write -------------------------------------------------------------------------------------

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Empty the directory and write run.json."""
        if self._lock is None:
            self.storage.make_directory(self.path)
        self.empty()
        self.write_facts(facts)
        self._sync_parents()

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Write run.json."""
        self.write_synced(RUN, canonical.dumps({**facts, "format": FORMAT}).encode("ascii"))

    def _sync_parents(self) -> None:
        """Sync the folders above, so that the run directory survives a power cut."""
        self.storage.sync_directory(self.directory)
        with contextlib.suppress(StorageError):  # may belong to another user
            self.storage.sync_directory(os.path.dirname(self.directory))

    def adopt(self, files: Mapping[int, tuple[str, str]]) -> None:
        """Record other file names for shards, in files.json.

        :meth:`shard_path` and :meth:`index_path` return them from then on, in any process. Must be
        called before the commit.

        Args:
            files: By shard, the full paths of its file and its index file: files of this folder,
                or a shard file with its final name.
        """
        table = {
            str(shard): [self._relative_path(path) for path in paths]
            for shard, paths in files.items()
        }
        self.write_synced(_FILES, canonical.dumps(table).encode("ascii"))
        self._adopted = dict(files)

    def _relative_path(self, path: str) -> str:
        """Return a path relative to the dataset's folder, so that the folder can be moved."""
        return path.removeprefix(os.path.join(self.directory, ""))

    def _files_of(self, shard: int) -> tuple[str, str] | None:
        if self._adopted is None:
            self._adopted = self._read_adopted()
        return self._adopted.get(shard)

    def _read_adopted(self) -> dict[int, tuple[str, str]]:
        try:
            table = json_shape.read(self.read(_FILES) or b"{}", AdoptedFiles)
        except ValueError:
            raise self.broken(_FILES, "not a valid list of shard files") from None
        for text, (file, index_file) in table.items():
            folder, _, name = file.rpartition("/")
            final = parse_shard_file(name)
            is_final = (
                not folder
                and final is not None
                and (final.pattern.name, final.shard_index) == (self.name, int(text))
            )
            is_in_run = folder == partial_dir(self.name) and holds_records(name)
            folder, _, name = index_file.rpartition("/")
            if not (
                (is_in_run or is_final) and folder == partial_dir(self.name) and holds_rows(name)
            ):
                raise self.broken(_FILES, "not a valid list of shard files")
        return {
            int(shard): (os.path.join(self.directory, file), os.path.join(self.directory, rows))
            for shard, (file, rows) in table.items()
        }

    @property
    def adopted(self) -> Collection[int]:
        """The shards listed in files.json.

        Raises:
            StorageError: files.json is invalid.
        """
        self._files_of(0)
        return (self._adopted or {}).keys()

    def shard_path(self, shard: int) -> str:
        """Return the path of a shard in the run directory."""
        adopted = self._files_of(shard)
        return self.file(f"shard-{shard:05d}") if adopted is None else adopted[0]

    def index_path(self, shard: int) -> str:
        """Return the path of a shard's index rows."""
        adopted = self._files_of(shard)
        return self.file(f"index-{shard:05d}") if adopted is None else adopted[1]

    def journal(self, attempt: int, worker: int) -> Journal:
        """Create the journal of a worker in an attempt."""
        return Journal(self.storage, self.file(f"journal-{attempt}-{worker}"))

    def write_snapshot(self, attempt: int, worker: int, snapshot: Snapshot) -> None:
        """Replace a worker's mark or checkpoint."""
        if snapshot.is_synced:
            self.write_synced(f"checkpoint-{attempt}-{worker}", snapshot.to_line())
        else:
            self._write(f"mark-{attempt}-{worker}", snapshot.to_line(), synced=False)

    def read_snapshots(self, attempt: int, worker: int) -> list[Snapshot]:
        """Return a worker's intact snapshots, the newest first."""
        found = [
            Snapshot.from_line(self.read(f"{kind}-{attempt}-{worker}"))
            for kind in ("mark", "checkpoint")
        ]
        whole = [snapshot for snapshot in found if snapshot is not None]
        return sorted(whole, key=lambda snapshot: -snapshot.number)

    def write_base(self, base: Base) -> None:
        """Write the base of an attempt, and delete snapshots and journals of earlier ones."""
        self.write_synced(_BASE, base.to_line())
        for file_name in self._names():
            kind, _, rest = file_name.partition("-")
            attempt = rest.partition("-")[0]
            if kind in ("mark", "checkpoint", "journal") and attempt != str(base.attempt):
                self.storage.delete(self.file(file_name))

    def read_base(self) -> Base:
        """Return the base of the last attempt.

        Raises:
            StorageError: It is invalid.
        """
        base = self._base()
        if base is None:
            raise self.broken(_BASE)
        return base

    def _base(self) -> Base | None:
        data = self.read(_BASE)
        return Base.from_line(data) if data else Base()

    def workers(self, attempt: int) -> list[int]:
        """Return the numbers of the workers of an attempt."""
        found = (_JOURNAL.fullmatch(name) for name in self._names())
        return sorted(int(name[2]) for name in found if name and int(name[1]) == attempt)

    def index_columns(self, shard: int, compression: Compression) -> NDArray[np.uint64]:
        """Return the index of a sealed shard.

        Returns:
            uint64[1, n]: the end offset of each frame. Of a compressed shard uint64[2, n]: the end
            offset of each member, and the number of records up to there.
        """
        path, width = self.index_path(shard), columns(compression)
        data = self.storage.read(path)
        if data is None or len(data) % (8 * width):
            raise StorageError("the index of a shard is missing or torn", path=path)
        transposed: NDArray[np.uint64] = np.frombuffer(data, dtype="<u8").reshape(-1, width).T
        return transposed

    def index_rows(self, shard: int, compression: Compression) -> int:
        """Return the number of columns of :meth:`index_columns`."""
        return (self.storage.size(self.index_path(shard)) or 0) // (8 * columns(compression))

    # -- files -------------------------------------------------------------------------------------

    def file(self, file_name: str) -> str:
        """Return the path of a file in this folder."""
        return os.path.join(self.path, file_name)

    def _names(self) -> list[str]:
        """Return the names of all files that belong to a run directory."""
        return [name for name in self.storage.list(self.path) if is_own(name)]

    def read(self, file_name: str) -> bytes:
        """Return the bytes of a small file; ``b""`` if it does not exist.

        Raises:
            StorageError: It cannot be read, or is larger than 1 GiB.
        """
        path = self.file(file_name)
        if self._lock is not None and (self.storage.size(path) or 0) > _MAX_READ_BYTES:
            raise self.broken(file_name)
        return self.storage.read(path) or b""

    def write_synced(self, file_name: str, data: bytes) -> None:
        """Write and sync a small file atomically."""
        self._write(file_name, data, synced=True)
        self.storage.sync_directory(self.path)

    def _write(self, file_name: str, data: bytes, *, synced: bool) -> None:
        path = self.file(file_name)
        temporary_path = path
        if not self.storage.appears_whole:
            # Without a lock several processes may write it, all with the same content.
            temporary_path = f"{path}.new" if self._lock is not None else f"{path}.{uuid4().hex}"
        with contextlib.closing(self.storage.create(temporary_path)) as file:
            file.write(data)
            if synced or self._lock is None:  # other storage stores only what was synced
                self.storage.sync(temporary_path)
        self.storage.publish(temporary_path, path)

    def empty(self, last: str | None = None) -> None:
        """Delete all files but the lock.

        run.json is deleted and synced first, so that nothing resumes a half-deleted run.

        Args:
            last: A file to delete after all others.
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
        """Delete the run directory, the lock file last; a second call does nothing."""
        if not self._is_discarded:
            self.empty()
            self._is_discarded = True  # before the lock is deleted, in case of Ctrl-C
            if self._lock is not None:
                self.storage.delete(self.file("lock"))
        # Fails if another process has just created its own lock there, as it should.
        self.storage.remove_directory(self.path)

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
