"""Inputs at URLs, read through Beam's ``FileSystems``: gs://, s3://, hdfs:// and others.

Beam is imported when the first URL is asked for. Nothing is ever decompressed by its name.

What tells a change is the time of the last one, as Beam tells it. Beam takes a time in UTC for a
local one, so that machines of two time zones tell times that are hours apart (apache-beam 2.60 to
2.77): only what is left of a time after whole half hours is compared.
"""

from __future__ import annotations

import glob
import io
import os
import re
import stat
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, NamedTuple

from shardwriter.storage.beam_system import answered, file_system, is_missing, told
from shardwriter.storage.inputs import Entry, OpenInput, Stat, Tree, split
from shardwriter.storage.ranged import RangedFile, RangedInput, changed

_HALF_HOUR_US: Final = 1_800_000_000
_FILE_MODE: Final = stat.S_IFREG | 0o444
_MAX_SINGLE: Final = 4  # files of one folder that are asked for one by one


class ObjectStat(NamedTuple):
    """What a store tells of an object."""

    st_size: int
    st_mtime_ns: int
    st_mode: int = _FILE_MODE
    st_ino: int = 0
    st_dev: int = 0


class ObjectEntry(NamedTuple):
    """An object, or a folder as the names of objects make it."""

    name: str
    path: str
    facts: ObjectStat | None  # None: a folder

    def is_dir(self) -> bool:
        """Tell whether it is a folder."""
        return self.facts is None

    def is_file(self) -> bool:
        """Tell whether it is an object."""
        return self.facts is not None

    def stat(self) -> Stat:
        """Return what the listing said."""
        assert self.facts is not None
        return self.facts


class _Names:
    """Names below a root that were listed at once, by the folder that they lie in."""

    def __init__(self, root: str, found: Sequence[Any], limit: int | None = None) -> None:
        self._folders: defaultdict[str, list[ObjectEntry]] = defaultdict(list)
        self._seen: set[str] = set()
        self._root = root
        self.is_whole = limit is None or len(found) < limit
        for metadata in found:
            folder, name = metadata.path.rsplit("/", 1)
            self._add_folder(folder)
            if name:  # else what a console puts there for an empty folder
                self._folders[folder].append(ObjectEntry(name, metadata.path, _facts(metadata)))

    def _add_folder(self, path: str) -> None:
        while len(path) > len(self._root) and path not in self._seen:
            self._seen.add(path)
            above, name = path.rsplit("/", 1)
            self._folders[above].append(ObjectEntry(name, path, None))
            path = above

    def scan(self, directory: str) -> Sequence[Entry]:
        return self._folders.get(directory.rstrip("/"), [])

    def identity(self, directory: str) -> None:
        return None


class _Walk:
    """A tree of a file system that has folders: each is listed when it is asked for."""

    is_whole = True

    def __init__(self, inputs: BeamInputs) -> None:
        self._inputs = inputs

    def scan(self, directory: str) -> Sequence[Entry]:
        return self._inputs.listing(directory)

    def identity(self, directory: str) -> None:
        return None


class BeamInputs:
    """Files at URLs."""

    def exists(self, path: str) -> bool:
        """Tell whether there is an object of this name, or any below it."""
        return self.is_file(path) or self.is_directory(path)

    def is_directory(self, path: str) -> bool:
        """Tell whether it is a folder, or objects lie below it."""
        with answered(path):
            try:
                return bool(_found(path, limit=1)) or _has_folder(path)
            except NotADirectoryError:
                return False

    def is_file(self, path: str) -> bool:
        """Tell whether there is an object of this name."""
        if not split(path)[1]:
            return False
        with answered(path), told(path):
            system = file_system(path)
            if not system.exists(path):
                return False
        return not system.has_dirs() or not self.is_directory(path)

    def stat(self, path: str) -> Stat:
        """Return what the store tells of an object."""
        with told(path):
            return _facts(file_system(path).metadata(path))

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return the same of many objects; those of one folder are listed."""
        folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in paths:
            folders[split(path)[0]].append(path)
        known: dict[str, Stat] = {}
        for folder, inside in folders.items():
            if len(inside) > _MAX_SINGLE:
                prefix = os.path.commonprefix([split(path)[1] for path in inside])  # noqa: RUF071 - of names
                listed = self.listing(folder, prefix)
                known.update((entry.path, entry.stat()) for entry in listed if entry.is_file())
        return [known.get(path) or self.stat(path) for path in paths]

    def listing(self, directory: str, prefix: str = "") -> Sequence[Entry]:
        """Return what lies in a folder and begins with ``prefix``."""
        directory = directory.rstrip("/")
        if not _has_dirs(directory):
            return _Names(directory, _found(directory, prefix)).scan(directory)
        entries = []
        for found in _found(directory):
            # Folders are listed as files without bytes.
            facts = None if _is_folder(found) else _facts(found)
            path = found.path.rstrip("/")
            entries.append(ObjectEntry(path.rsplit("/", 1)[1], path, facts))
        return entries

    def tree(self, root: str, limit: int | None = None) -> Tree:
        """Return a folder with all that lies below it; an object store lists it at once."""
        root = root.rstrip("/")
        if _has_dirs(root):
            return _Walk(self)
        return _Names(root, _found(root, limit=limit), limit)

    def glob(self, pattern: str) -> list[str]:
        """Return the objects and folders that match, sorted, as :func:`glob.glob` would."""
        plain, *parts = _at_first_magic(pattern)
        if not parts:
            return [pattern] if self.exists(pattern) else []
        with answered(pattern):
            prefix = re.split(r"[*?[]", parts[0], maxsplit=1)[0]
            tree = _Walk(self) if _has_dirs(plain) else _Names(plain, _found(plain, prefix))
            found: list[Entry] = [ObjectEntry("", plain, None)]
            for part in parts:
                found = [
                    entry
                    for folder in found
                    if folder.is_dir()
                    for entry in tree.scan(folder.path)
                    if fnmatchcase(entry.name, part)
                    and (part.startswith(".") or not entry.name.startswith("."))
                ]
        return sorted(entry.path for entry in found)

    def open(self, path: str) -> OpenInput:
        """Open an object."""
        found = _Object(path)
        return RangedInput(found.ranged(), found.stat)

    def open_raw(self, path: str) -> RangedFile:
        """Open an object without a buffer."""
        return _Object(path).ranged()

    def read(self, path: str) -> tuple[Stat, bytes]:
        """Return what an object is, and all of its bytes."""
        found = _Object(path)
        try:
            return found.facts, found.fetch(0, found.facts.st_size)
        finally:
            found.close()


class _Object:
    """An object that is open.

    Google's store goes on giving the object that was opened, or nothing, once there is another of
    its name; of other stores it is asked anew whether it is still the same.
    """

    def __init__(self, path: str) -> None:
        from apache_beam.io.filesystem import CompressionTypes

        self.path = path
        with told(path):
            self._system = file_system(path)
            file = self._system.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
            blob = getattr(file, "_blob", None)
            self._is_pinned = getattr(blob, "generation", None) is not None
            if self._is_pinned:
                seconds = blob.updated.timestamp()  # type: ignore[union-attr]
                self.facts = ObjectStat(blob.size, _token(seconds))  # type: ignore[union-attr]
            else:
                self.facts = _facts(self._system.metadata(path))
        self._owner = file
        # Beam's buffers have 16 MiB, which is much where a row is wanted.
        self._file = file.raw if isinstance(file, io.BufferedReader) else file
        if isinstance(getattr(file, "_chunk_size", None), int):
            file._chunk_size = 1
        self._is_asked = True

    def ranged(self) -> RangedFile:
        return RangedFile(self.path, self.facts.st_size, self.fetch, self.close)

    def fetch(self, begin: int, num_bytes: int) -> bytes:
        self._is_asked = False
        pieces = []
        try:
            with told(self.path):
                self._file.seek(begin)
                while num_bytes and (data := self._file.read(num_bytes)):
                    pieces.append(data)
                    num_bytes -= len(data)
        except FileNotFoundError:
            raise changed(self.path) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stat(self) -> Stat:
        if not self._is_pinned and not self._is_asked:
            with told(self.path):
                self.facts = _facts(self._system.metadata(self.path))
            self._is_asked = True
        return self.facts

    def close(self) -> None:
        self._owner.close()


# -- what Beam tells -------------------------------------------------------------------------------


def _has_dirs(path: str) -> bool:
    with told(path):
        return bool(file_system(path).has_dirs())


def _found(directory: str, prefix: str = "", limit: int | None = None) -> list[Any]:
    """Return what Beam tells of a folder's files; none where it is not there.

    An object store lists all that lie below and begin with ``prefix``, a file system with folders
    the folder itself.
    """
    directory = directory.rstrip("/")
    with told(directory):
        system = file_system(directory)
        try:
            if system.has_dirs():  # its match() does not know a folder with brackets in its name
                return list(islice(system._list(directory), limit))
            [result] = system.match([f"{glob.escape(f'{directory}/{prefix}')}**"], [limit])
        except OSError as error:
            if is_missing(error):
                return []
            raise
    return list(result.metadata_list)


def _has_folder(path: str) -> bool:
    """Tell whether a folder without files is there; an object store has none."""
    if not _has_dirs(path):
        return False
    with told(path):
        return bool(file_system(path).exists(path))


def _is_folder(metadata: Any) -> bool:
    if metadata.size_in_bytes:
        return False
    try:
        _found(metadata.path, limit=1)
    except NotADirectoryError:
        return False
    return True


def _facts(metadata: Any) -> ObjectStat:
    return ObjectStat(metadata.size_in_bytes, _token(metadata.last_updated_in_seconds))


def _token(seconds: float) -> int:
    """Return what a time is compared by, on any machine."""
    return round(seconds * 1_000_000) % _HALF_HOUR_US * 1000


def _at_first_magic(pattern: str) -> list[str]:
    """Cut a pattern into the folder in front of its first wildcard, and the names from there on."""
    scheme, _, rest = pattern.partition("://")
    names = rest.split("/")
    plain = next((n for n, name in enumerate(names) if glob.has_magic(name)), len(names))
    return [f"{scheme}://{'/'.join(names[:plain])}", *names[plain:]]
