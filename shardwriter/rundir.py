"""The run directory: where a dataset grows, and how it becomes final.

::

    .train.partial/          beside the output, named by the dataset and not by N
      run.json               what the run is: written first, fsynced
      lock                   flock of the writer; its text names the process
      shard-00000 ...        growing shards
      index-00000 ...        u64 end of every frame
      journal-<attempt>-<worker>    facts, one a line, with a checksum
      commit.json            the finished manifest: its presence is the commit point

The journal may be ahead of the shards and never behind: a fact about item i is written before any
later frame of that writer. Before commit.json exists nothing outside this folder was touched.
After it exists the publication can only be finished: whoever finds it goes through the same list of
steps, each of which can be repeated, and the manifest comes last. So a final name is never partial.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter import canonical
from shardwriter.crc32c import crc32c, extend_crc32c
from shardwriter.errors import OutputBusy, OutputExists
from shardwriter.index import KINDS, dali_index, index_chunks, index_head
from shardwriter.manifest import IndexEntry, Manifest, SealedShard, parse_manifest
from shardwriter.naming import (
    DALI_INDEX_SUFFIX,
    ShardPattern,
    generations,
    manifest_file,
    partial_dir,
)
from shardwriter.storage import Storage
from shardwriter.storage.local import storage_errors

FORMAT: Final = "shardwriter.run/1"
_DALI_MARK: Final = "dali"  # this run has .idx files to publish


class Journal:
    """Facts of one writer, in the order in which they became true.

    A line is ``crc32c-hex json``. Facts are idempotent: reading one twice changes nothing.

    ==============  =============================================================================
    ``skip``        ``{"skip": i, "reason": "dropped"}``: item i gives no record
    ``schema``      the joined schema has widened to this
    ``items``       the source ended: T
    ``checkpoint``  a shard's records, bytes and crc32c that are safe on disk
    ``sealed``      a shard is whole
    ==============  =============================================================================
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines: list[bytes] = []
        with storage_errors(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)

    def fact(self, **fact: Any) -> None:
        """Note a fact; it is in the file after the next flush."""
        text = canonical.dumps(fact).encode("ascii")
        self._lines.append(b"%08x %s" % (crc32c(text[:-1]), text))

    def flush(self) -> None:
        """Write the noted facts, so that they outlive this process."""
        data = b"".join(self._lines)
        with storage_errors(self._path):
            while data:
                data = data[os.write(self._descriptor, data) :]
                # A disk that is full may take half a line: the next flush goes on behind it.
                self._lines = [data]
        self._lines.clear()

    def sync(self) -> None:
        """Write the noted facts, so that they outlive a power cut."""
        self.flush()
        with storage_errors(self._path):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._descriptor)


def read_journal(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the facts of a journal up to the first line that is torn."""
    for line in Path(path).read_bytes().splitlines(keepends=True):
        crc, _, text = line.partition(b" ")
        if not text.endswith(b"\n") or crc != b"%08x" % crc32c(text[:-1]):
            return
        yield json.loads(text)


class RunDirectory:
    """A claimed run directory; no other process can write this dataset meanwhile.

    Use :meth:`claim`. As a context manager it gives the lock back.
    """

    def __init__(self, directory: str, name: str, storage: Storage, lock: int) -> None:
        self.directory = directory
        self.name = name
        self.path = os.path.join(directory, partial_dir(name))
        self.storage = storage
        self._lock = lock

    @classmethod
    def claim(cls, directory: str, name: str, storage: Storage) -> RunDirectory:
        """Make the run directory if there is none, and lock it.

        Raises:
            OutputBusy: Another process holds it; says which.
            StorageError: The output folder can not be made or written.
        """
        path = os.path.join(directory, partial_dir(name))
        lock_path = os.path.join(path, "lock")
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
                    raise OutputBusy(
                        f"{name!r} is being written by {holder or 'another process'}",
                        path=path,
                        hint="wait for it to end, or write under another name",
                    ) from None
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
                os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
                return cls(directory, name, storage, lock)

    # -- what was found ----------------------------------------------------------------------------

    @property
    def is_committed(self) -> bool:
        """Whether a publication was begun that is not finished."""
        return os.path.exists(self._file("commit.json"))

    @property
    def is_unfinished(self) -> bool:
        """Whether an earlier run left work here."""
        return os.path.exists(self._file("run.json"))

    def check_output(self, *, overwrite: bool) -> None:
        """Finish what was committed, and refuse to destroy what is there.

        Raises:
            OutputExists: A dataset or an unfinished run of this name is there, without
                ``overwrite``.
        """
        if self.is_committed:
            self.roll_forward()
        if overwrite:
            return
        files = self.storage.list(self.directory)
        found = list(generations(files, self.name))
        if found or manifest_file(self.name) in files:
            if not self.is_unfinished:
                self.discard()  # made by claim() a moment ago
            what = f"{found[0].template}".replace("{shard}", "*") if found else "its manifest"
            raise OutputExists(
                f"a dataset {self.name!r} is there already ({what})",
                path=self.directory,
                hint="--overwrite replaces it once the new one is whole; or choose another name",
            )
        if self.is_unfinished:
            raise OutputExists(
                f"an unfinished run of {self.name!r} is there",
                path=self.path,
                hint="--overwrite discards it and starts again",
            )

    # -- while the dataset grows -------------------------------------------------------------------

    def begin(self, run: dict[str, Any]) -> None:
        """Empty the directory and write run.json, the first thing in it."""
        self._empty()
        self._write_synced("run.json", canonical.dumps({"format": FORMAT, **run}))
        self.storage.sync_directory(self.directory)  # the run directory's own name

    def shard_path(self, shard: int) -> str:
        """Path of a growing shard."""
        return self._file(f"shard-{shard:05d}")

    def index_path(self, shard: int) -> str:
        """Path of a growing shard's u64 ends."""
        return self._file(f"index-{shard:05d}")

    @property
    def has_checkpoint(self) -> bool:
        """Whether this run has brought anything to the disk that is worth keeping."""
        return any(
            "checkpoint" in fact
            for file_name in self.storage.list(self.path)
            if file_name.startswith("journal-")
            for fact in read_journal(self._file(file_name))
        )

    def journal(self, attempt: int, worker: int) -> Journal:
        """Open a journal; each attempt and worker has its own."""
        return Journal(self._file(f"journal-{attempt}-{worker}"))

    def ends(self, shard: int) -> NDArray[np.uint64]:
        """Return uint64[n]: the offset behind each frame of a sealed shard."""
        path = self.index_path(shard)
        with storage_errors(path):
            return np.fromfile(path, dtype="<u8")

    # -- how it becomes final ----------------------------------------------------------------------

    def write_index(
        self, pattern: ShardPattern, shards: list[SealedShard], gaps: list[int], *, dali: bool
    ) -> IndexEntry:
        """Join the shards' ends into the dataset's index, and make ``.idx`` files if asked."""
        head = index_head([shard.num_records for shard in shards], KINDS["none"], len(gaps))
        path = self._file("index")
        file = self.storage.create(path)
        crc = size = 0
        for chunk in index_chunks(map(self.ends, range(len(shards))), head, gaps):
            file.write(chunk)
            crc = extend_crc32c(crc, chunk)
            size += len(chunk)
        self.storage.sync(path)
        file.close()
        if dali:
            self._write_synced(_DALI_MARK, "")
            for shard in range(len(shards)):
                path = self._file(f"dali-{shard:05d}")
                file = self.storage.create(path)
                file.write(dali_index(self.ends(shard)))
                self.storage.sync(path)
                file.close()
        return IndexEntry(pattern.index_file, size, crc)

    def publish(self, manifest: Manifest) -> None:
        """Commit to this manifest and give every file its final name."""
        self._write_synced("commit.json", manifest.dumps())
        self.roll_forward()
        self.discard()

    def roll_forward(self) -> None:
        """Go through the steps of a publication; those already done change nothing.

        Afterwards the run directory is empty, and still claimed.
        """
        text = Path(self._file("commit.json")).read_text(encoding="ascii")
        manifest = parse_manifest(text, self._file("commit.json"))
        pattern, storage = manifest.pattern, self.storage
        final = os.path.join(self.directory, pattern.manifest_file)
        # The manifest there may have the same text and be of an older run of the same job: only
        # where the index has left, which is the last to go, was everything done but the cleaning.
        if storage.size(self._file("index")) is None and self._holds(final, text):
            self._clean_up(pattern)
            return
        with_dali = storage.size(self._file(_DALI_MARK)) is not None
        storage.delete(final)
        storage.sync_directory(self.directory)
        for shard, file_name in enumerate(pattern.shard_files):
            target = os.path.join(self.directory, file_name)
            storage.publish(self.shard_path(shard), target)
            if with_dali:
                storage.publish(self._file(f"dali-{shard:05d}"), target + DALI_INDEX_SUFFIX)
            else:
                storage.delete(target + DALI_INDEX_SUFFIX)  # of an older run
        storage.publish(self._file("index"), os.path.join(self.directory, pattern.index_file))
        storage.sync_directory(self.directory)
        self._write_synced("manifest", text)
        storage.publish(self._file("manifest"), final)
        storage.sync_directory(self.directory)
        self._clean_up(pattern)

    def _holds(self, path: str, text: str) -> bool:
        try:
            return Path(path).read_text(encoding="ascii") == text
        except (OSError, UnicodeDecodeError):
            return False

    def _clean_up(self, current: ShardPattern) -> None:
        """Delete other generations, then everything in the run directory but the lock."""
        for pattern, shards in generations(self.storage.list(self.directory), self.name).items():
            if pattern != current:
                for shard in shards:
                    path = os.path.join(self.directory, pattern.shard_file(shard))
                    # The shard goes last: it is what tells that there is something to delete.
                    self.storage.delete(path + DALI_INDEX_SUFFIX)
                    self.storage.delete(path)
        self._empty()

    def _empty(self) -> None:
        """Delete everything but the lock; commit.json last, so that cleaning can be finished."""
        files = self.storage.list(self.path)
        for file_name in sorted(files, key=lambda name: name == "commit.json"):
            if file_name != "lock":
                self.storage.delete(self._file(file_name))

    def discard(self) -> None:
        """Delete the run directory; the lock file goes last."""
        self._empty()
        self.storage.delete(self._file("lock"))
        # Another process may have made its own lock there a moment ago: then the folder is its.
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def release(self) -> None:
        """Give the lock back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _file(self, file_name: str) -> str:
        return os.path.join(self.path, file_name)

    def _write_synced(self, file_name: str, text: str) -> None:
        """Make a small file appear whole or not at all."""
        path = self._file(file_name)
        growing = path + ".new"
        file = self.storage.create(growing)
        file.write(text.encode("ascii"))
        self.storage.sync(growing)
        file.close()
        self.storage.publish(growing, path)
        self.storage.sync_directory(self.path)
