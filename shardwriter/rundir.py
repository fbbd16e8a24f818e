"""The run directory: where a dataset grows, and how it becomes final.

::

    .train.partial/          beside the output, named by the dataset and not by N
      run.json               what the run is: written first, fsynced
      lock                   flock of the writer; its text names the process
      shard-00000 ...        growing shards
      index-00000 ...        u64 end of every frame; compressed: u64 end, u64 records of a member
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
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter import canonical
from shardwriter.compression import Compression
from shardwriter.crc32c import extend_crc32c
from shardwriter.errors import ManifestError, OutputBusy, OutputExists, StorageError
from shardwriter.index import KINDS, columns, dali_index, index_chunks, index_head
from shardwriter.journal import Journal, read_journal
from shardwriter.manifest import IndexEntry, Manifest, SealedShard, load_manifest, parse_manifest
from shardwriter.naming import (
    DALI_INDEX_SUFFIX,
    ShardPattern,
    generations,
    manifest_file,
    partial_dir,
    pattern_from_template,
)
from shardwriter.storage import Storage
from shardwriter.storage.descriptor import Descriptor
from shardwriter.storage.local import storage_errors

FORMAT: Final = "shardwriter.run/1"
_DALI_MARK: Final = "dali"  # this run has .idx files to publish


def taken_by(file_names: list[str], name: str, pattern: ShardPattern | None) -> str | None:
    """Tell which files of a folder are a dataset of a name; None where none are."""
    found = list(generations(file_names, name, [pattern]))
    if found:
        return found[0].template.replace("{shard}", "*")
    return "its manifest" if manifest_file(name) in file_names else None


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
                    if holder == _process_name():
                        holder = "this program"
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
                os.pwrite(lock, _process_name().encode(), 0)
                return cls(directory, name, storage, Descriptor(lock))

    # -- what was found ----------------------------------------------------------------------------

    @property
    def is_committed(self) -> bool:
        """Whether a publication was begun that is not finished."""
        return os.path.exists(self._file("commit.json"))

    @property
    def is_unfinished(self) -> bool:
        """Whether an earlier run left work here."""
        return os.path.exists(self._file("run.json"))

    def _finished(self) -> ShardPattern | None:
        """Return the pattern of the finished dataset that is there; None where there is none."""
        try:
            return load_manifest(os.path.join(self.directory, manifest_file(self.name))).pattern
        except (OSError, ManifestError):
            return None

    def check_output(self, *, overwrite: bool, pattern: ShardPattern | None = None) -> None:
        """Finish what was committed, and refuse to destroy what is there.

        Args:
            overwrite: Whether a dataset may be replaced, and an unfinished run discarded.
            pattern: What is to be written, with any N.

        Raises:
            OutputExists: A dataset or an unfinished run of this name is there, without
                ``overwrite``.
        """
        if self.is_committed:
            self.roll_forward()
        if overwrite:
            return
        taken = taken_by(self.storage.list(self.directory), self.name, pattern)
        if taken is not None:
            if not self.is_unfinished:
                self.discard()  # made by claim() a moment ago
            raise OutputExists(
                f"a dataset {self.name!r} is there already ({taken})",
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
        found = self._finished()
        replaces = None if found is None else [found.template, found.num_shards]
        facts = {"format": FORMAT, "replaces": replaces, **run}
        self._write_synced("run.json", canonical.dumps(facts))
        self.storage.sync_directory(self.directory)  # the run directory's own name

    def shard_path(self, shard: int) -> str:
        """Path of a growing shard."""
        return self._file(f"shard-{shard:05d}")

    def index_path(self, shard: int) -> str:
        """Path of a growing shard's index."""
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

    def _index_rows(self, shard: int, compression: Compression) -> int:
        return (self.storage.size(self.index_path(shard)) or 0) // (8 * columns(compression))

    # -- how it becomes final ----------------------------------------------------------------------

    def write_index(
        self,
        pattern: ShardPattern,
        shards: list[SealedShard],
        gaps: list[int],
        *,
        compression: Compression = "none",
        dali: bool,
    ) -> IndexEntry:
        """Join the shards' indexes into the dataset's, and make ``.idx`` files if asked."""
        found = (self.index_columns(shard, compression) for shard in range(len(shards)))
        counts = [self._index_rows(shard, compression) for shard in range(len(shards))]
        head = index_head(counts, KINDS[compression], len(gaps))
        path = self._file("index")
        file = self.storage.create(path)
        crc = size = 0
        for chunk in index_chunks(found, head, gaps):
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
                file.write(dali_index(self.index_columns(shard, "none")[0]))
                self.storage.sync(path)
                file.close()
        return IndexEntry(pattern.index_file, size, crc)

    def publish(self, manifest: Manifest) -> None:
        """Commit to this manifest and give every file its final name.

        Raises:
            StorageError: A final name can not be given; nothing outside this folder was touched.
        """
        self._check_names(manifest.pattern)
        self.storage.sync_directory(self.path)
        self._write_synced("commit.json", manifest.dumps())
        self.roll_forward()
        self.discard()

    def _check_names(self, pattern: ShardPattern) -> None:
        """Refuse before the commit what could not be finished after it."""
        names = [*pattern.shard_files, pattern.index_file, pattern.manifest_file]
        for name in names:
            target = os.path.join(self.directory, name)
            if os.path.isdir(target):
                raise StorageError("a folder of this name is in the way", path=target)

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
            size = manifest.shards[shard].file_bytes
            self._publish(self.shard_path(shard), target, size)
            if with_dali:
                storage.publish(self._file(f"dali-{shard:05d}"), target + DALI_INDEX_SUFFIX)
            else:
                storage.delete(target + DALI_INDEX_SUFFIX)  # of an older run
        target = os.path.join(self.directory, pattern.index_file)
        self._publish(self._file("index"), target, manifest.index.file_bytes)
        storage.sync_directory(self.directory)
        self._write_synced("manifest", text)
        storage.publish(self._file("manifest"), final)
        storage.sync_directory(self.directory)
        self._clean_up(pattern)

    def _publish(self, source: str, target: str, file_bytes: int) -> None:
        """Give a file its final name; one that has left must be there, and not an older one."""
        if self.storage.size(source) is None and self.storage.size(target) != file_bytes:
            raise StorageError(
                "a file of the run that is to be published is gone",
                path=source,
                hint=f"delete {self.path} and write the dataset again",
            )
        self.storage.publish(source, target)

    def _holds(self, path: str, text: str) -> bool:
        try:
            return Path(path).read_text(encoding="ascii") == text
        except (OSError, UnicodeDecodeError):
            return False

    def _clean_up(self, current: ShardPattern) -> None:
        """Delete other generations, then everything in the run directory but the lock."""
        found = generations(self.storage.list(self.directory), self.name, [self._replaced()])
        for pattern, shards in found.items():
            if pattern != current:
                for shard in shards:
                    path = os.path.join(self.directory, pattern.shard_file(shard))
                    # The shard goes last: it is what tells that there is something to delete.
                    self.storage.delete(path + DALI_INDEX_SUFFIX)
                    self.storage.delete(path)
        self._empty()

    def _replaced(self) -> ShardPattern | None:
        """Return the files of the dataset that this run replaces, as run.json has them."""
        try:
            run = canonical.loads(Path(self._file("run.json")).read_bytes())
            template, num_shards = run["replaces"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return pattern_from_template(template, num_shards)

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
        self._lock.close()

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
