"""Storage that fails, and a model of what a power cut leaves; importable where workers run."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import shardwriter as sw
from shardwriter.dataset.naming import parse_output
from shardwriter.sources.python import PythonSource
from shardwriter.storage import LocalStorage
from shardwriter.storage.local import storage_errors
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.write import write_dataset

# -- what is written -------------------------------------------------------------------------------

NUM_ITEMS = 14
BROKEN = frozenset({4, 11})


class Items:
    """Items, some of which can not be loaded while ``broken`` names them."""

    broken = BROKEN

    def __len__(self):
        return NUM_ITEMS

    def __getitem__(self, index):
        if index in self.broken:
            raise ValueError(f"item {index} is broken")
        item = {"id": index, "label": f"class {index % 3}", "data": noise(index)}
        if index >= 6:  # a feature that comes late, and widens later still
            item["late"] = [index] * (1 if index < 12 else 2)
        return item


class FewItems(Items):
    """Other items, of the dataset that is written over."""

    def __len__(self):
        return 9


def stream():
    """The same items one after the other; a broken one is for the map to meet."""
    for index in range(NUM_ITEMS):
        yield {"id": index} if index in Items.broken else Items()[index]


def noise(index):
    """Bytes that hardly compress, of different lengths."""
    return b"".join(
        ((index * 1_000_003 + k) * 2_654_435_761 % 2**32).to_bytes(4, "little")
        for k in range(20 + 9 * (index % 4))
    )


def mapped(features):
    """Drop some items; refuse those of the stream that are broken."""
    if "data" not in features:
        raise ValueError("the item is broken")
    return sw.SKIP if features["id"] % 5 == 3 else features


def write(
    folder,
    storage=None,
    *,
    data=None,
    out="t@3",
    compression="none",
    on_error="skip",
    mark_s=0,
    checkpoint_bytes=600,
    **options,
):
    """Write the items, with a mark after each and a checkpoint after a few."""
    run_options = RunOptions(
        on_error=on_error, mark_s=mark_s, checkpoint_bytes=checkpoint_bytes, **options
    )
    return write_dataset(
        lambda: PythonSource(Items() if data is None else data),
        parse_output(Path(folder) / out, None, compression),
        DatasetOptions(mapped, label="label", compression=compression),
        run_options,
        storage=storage or QuickStorage(),
    )


def files(folder):
    """Names and bytes of all files of a folder, those of run directories left out."""
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}


def is_proven(folder, *, but=()):
    """Tell whether a folder has a dataset that passes verify, but for some kinds of findings."""
    if not (Path(folder) / "t.manifest.json").exists():
        return False
    report = sw.verify(str(Path(folder) / "t"))
    return all(finding.kind in but for found in report.sets for finding in found.findings)


# -- doubles ---------------------------------------------------------------------------------------


class QuickStorage(LocalStorage):
    """The local file system without the waiting: no power is cut while a test runs."""

    def __reduce__(self):
        return type(self), ()

    def sync(self, path):
        with storage_errors(path):
            self._descriptor(path)

    def sync_directory(self, directory):
        with storage_errors(directory):
            os.stat(directory)


class Crash(BaseException):
    """What a test raises in place of the end of a process."""


class WatchedStorage(QuickStorage):
    """Has every call go through :meth:`around`, those of its files included."""

    def around(self, act, method, *args):
        """Do what was called, or something else."""
        raise NotImplementedError

    def create(self, path, *, new=False):
        real = super().create
        return self.around(lambda: WatchedFile(self, path, real(path, new=new)), "create", path)

    def append(self, path, num_bytes):
        real = super().append
        return self.around(
            lambda: WatchedFile(self, path, real(path, num_bytes)), "append", path, num_bytes
        )

    def sync(self, path):
        real = super().sync
        return self.around(lambda: real(path), "sync", path)

    def sync_directory(self, directory):
        real = super().sync_directory
        return self.around(lambda: real(directory), "sync_directory", directory)

    def publish(self, source, target):
        real = super().publish
        return self.around(lambda: real(source, target), "publish", source, target)

    def size(self, path):
        real = super().size
        return self.around(lambda: real(path), "size", path)

    def read(self, path):
        real = super().read
        return self.around(lambda: real(path), "read", path)

    def open(self, path):
        real = super().open
        return self.around(lambda: real(path), "open", path)

    def list(self, directory):
        real = super().list
        return self.around(lambda: real(directory), "list", directory)

    def delete(self, path):
        real = super().delete
        return self.around(lambda: real(path), "delete", path)


class WatchedFile:
    """A growing file of it."""

    def __init__(self, storage, path, file):
        self._storage, self._path, self._file = storage, path, file

    def write(self, data, /):
        self._storage.around(lambda: self._file.write(data), "write", self._path, bytes(data))

    def close(self):
        self._storage.around(self._file.close, "close", self._path)


CHANGES = frozenset({"create", "append", "write", "sync", "sync_directory", "publish"})
"""What a full disk says no to: all but looking, closing and deleting."""


class FailingStorage(WatchedStorage):
    """Says no at the n-th call.

    Args:
        fail_at: Which call, from 0; None for none.
        code: What it says.
        method: Only calls of this method are counted.
        file: Only calls for a file of this name are counted.
        how: ``before`` the call does anything; ``after`` it has done all; ``half``, where half of
            the data that is written is in the file.
        lasting: Every later change fails too.

    Attributes:
        calls: What was called, and for which file.
        has_failed: Whether any call has.
    """

    def __init__(
        self,
        fail_at=None,
        code=errno.ENOSPC,
        *,
        method=None,
        file=None,
        how="before",
        lasting=False,
    ):
        super().__init__()
        self.calls = []
        self.has_failed = False
        self._options = fail_at, code, method, file, how, lasting

    def __reduce__(self):
        return _failing, self._options

    def around(self, act, method, *args):
        fail_at, code, only_method, only_file, how, lasting = self._options
        path = args[-1] if method == "publish" else args[0]
        counts = only_method in (None, method) and only_file in (None, os.path.basename(path))
        fails = lasting and self.has_failed and method in CHANGES
        if counts:
            fails = fails or len(self.calls) == fail_at
            self.calls.append((method, os.path.basename(path)))
        if not fails:
            return act()
        self.has_failed = True
        if method == "close" or how == "after":
            act()
        elif method == "write" and how == "half":
            with open(path, "ab") as file:
                file.write(args[1][: len(args[1]) // 2])
        with storage_errors(path):
            raise OSError(code, os.strerror(code), path)


def _failing(fail_at, code, method, file, how, lasting):
    return FailingStorage(fail_at, code, method=method, file=file, how=how, lasting=lasting)


class _Content:
    """What a file holds, in the kernel's memory and on the disk."""

    def __init__(self, data=b""):
        self.data = bytearray(data)
        self.on_disk = bytes(data)
        self.safe = len(self.data)  # so many bytes are the same in both, whatever happens

    def truncate(self, num_bytes):
        del self.data[num_bytes:]
        self.safe = min(self.safe, num_bytes)

    def sync(self):
        self.on_disk = bytes(self.data)
        self.safe = len(self.data)

    def after_a_cut(self, rng, luck):
        """Return what a disk may hold that was not told to keep it."""
        data, safe = bytes(self.data), self.safe
        if (data == self.on_disk and safe == len(data)) or rng.random() < luck:
            return data
        how = rng.choice(["old", "new", "shorter", "zeros", "garbage", "hole", "page"])
        if how == "old":
            return self.on_disk
        if how == "new":
            return data
        begin = rng.randint(safe, len(data))
        if how == "shorter":
            return data[:begin]
        end = rng.randint(begin, len(data))
        fill = rng.randbytes(end - begin) if how in ("garbage", "page") else bytes(end - begin)
        # The pages of a file reach the disk in any order.
        return data[:begin] + fill + (data[end:] if how in ("hole", "page") else b"")


class PowerCutStorage(WatchedStorage):
    """Knows what was brought to the disk, and can make a folder look as after a power cut.

    What is in the folder at first counts as on the disk. Bytes that were not synced may be there,
    or old, or gone, or rubbish. Of the changes of a folder's names that were not synced any subset
    may be there; a rename is whole or not there, and between two folders the new name is on the
    disk once either of them was synced.

    Args:
        folder: The output folder.
        crash_at: The process ends in front of this call; None for never.

    Attributes:
        calls: What was called since the process began.
    """

    def __init__(self, folder, crash_at=None):
        super().__init__()
        self._folder = os.fspath(folder)
        self._names = {}  # by folder: what the disk has, by name
        self._now = {}  # by folder: what the kernel has
        self._made = set()  # folders whose own name is not on the disk
        self._gone = set()  # folders that are about to be removed
        self._pending = []  # changes of names: (folders, apply)
        for directory in [self._folder, *_folders_in(self._folder)]:
            contents = {n: _Content(data) for n, data in files(directory).items() if n != "lock"}
            self._names[directory] = dict(contents)
            self._now[directory] = contents
        self.begin(crash_at)

    def begin(self, crash_at=None):
        """Be there for another process, after the end of one that left the power on."""
        self.calls = []
        self._crash_at = crash_at
        self._has_crashed = False
        for path in list(self._open):
            self._release(path)

    def around(self, act, method, *args):
        if self._has_crashed or len(self.calls) == self._crash_at:
            self._has_crashed = True
            raise Crash
        self.calls.append((method, *map(str, args[:1])))
        result = act()
        if method not in ("size", "read", "open", "list", "close"):
            getattr(self, f"_note_{method}")(*args)
        return result

    # -- what the kernel has, and what the disk ----------------------------------------------------

    def _directory(self, path):
        directory = os.path.dirname(path)
        if directory not in self._now or directory in self._gone:
            self._gone.discard(directory)
            self._pending = [(of, apply) for of, apply in self._pending if directory not in of]
            self._now[directory], self._names[directory] = {}, {}
            self._made.add(directory)
        return directory, os.path.basename(path)

    def _note_create(self, path):
        directory, name = self._directory(path)
        content = self._now[directory].get(name)
        if content is not None:
            content.truncate(0)
            return
        content = self._now[directory][name] = _Content()
        self._change([directory], lambda: self._names[directory].update({name: content}))

    def _note_append(self, path, num_bytes):
        directory, name = self._directory(path)
        self._now[directory][name].truncate(num_bytes)

    def _note_write(self, path, data):
        directory, name = self._directory(path)
        self._now[directory][name].data += data

    def _note_sync(self, path):
        directory, name = self._directory(path)
        self._now[directory][name].sync()

    def _note_sync_directory(self, directory):
        left = []
        for of, apply in self._pending:
            if directory in of:
                apply()
            else:
                left.append((of, apply))
        self._pending = left
        self._made -= {made for made in self._made if os.path.dirname(made) == directory}

    def _note_publish(self, source, target):
        directory, name = self._directory(source)
        content = self._now[directory].pop(name, None)
        if content is None:  # done before
            return
        new_directory, new_name = self._directory(target)
        self._now[new_directory][new_name] = content

        def apply():
            self._names[new_directory][new_name] = content
            if self._names[directory].get(name) is content:
                del self._names[directory][name]

        self._change([directory, new_directory], apply)

    def _note_delete(self, path):
        if os.path.basename(path) == "lock":  # it is made by other means
            self._gone.add(os.path.dirname(path))
            return
        directory, name = self._directory(path)
        if self._now[directory].pop(name, None) is not None:
            self._change([directory], lambda: self._names[directory].pop(name, None))

    def _change(self, directories, apply):
        self._pending.append((frozenset(directories), apply))

    # -- the cut -----------------------------------------------------------------------------------

    def cut(self, rng):
        """Leave in the folder what a disk may have; this object is of no use afterwards."""
        for path in list(self._open):
            self._release(path)
        how = rng.choice(["none", "all", "first", "some", "some", "most"])
        first = rng.randint(0, len(self._pending))
        share = {"none": 0, "all": 1, "some": 0.5, "most": 0.9}.get(how, 0)
        for place, (_, apply) in enumerate(self._pending):
            if place < first if how == "first" else rng.random() < share:
                apply()
        # With luck most files are whole, so that what is told of the others is there to be doubted.
        luck = rng.choice([0, 0.5, 0.8])
        for directory, names in self._names.items():
            is_lost = directory in self._made and rng.random() < 0.5
            if directory in self._gone and not os.path.exists(directory):
                is_lost = rng.random() < 0.5
            if is_lost:
                shutil.rmtree(directory, ignore_errors=True)
                continue
            os.makedirs(directory, exist_ok=True)
            for name in files(directory):
                if name not in names and name != "lock":
                    os.unlink(os.path.join(directory, name))
            for name, content in names.items():
                Path(directory, name).write_bytes(content.after_a_cut(rng, luck))


def _folders_in(folder):
    return [entry.path for entry in os.scandir(folder) if entry.is_dir()]
