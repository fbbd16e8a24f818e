"""Files of a kind in folders: listing them, and reading one as it was when it was listed."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from shardwriter.errors import SourceChanged, SourceError
from shardwriter.storage.inputs import Entry, InputChanged, Inputs, Tree, inputs_for, printable

LOOK_FILES: Final = 1000
"""Of a store that lists all files at once: how many tell whether there are files of a kind."""


class ListedFile(NamedTuple):
    """One file as it was when its folder was listed."""

    key: str
    size_bytes: int
    mtime_ns: int


# -- listing ---------------------------------------------------------------------------------------


def tree_of(root: str, limit: int | None = None) -> Tree:
    """Return a folder with all that lies below it; see :meth:`Inputs.tree`.

    Raises:
        SourceError: It can not be listed.
    """
    try:
        return inputs_for(root).tree(root, limit)
    except OSError as error:
        raise _unlisted(root, error) from error


def scan(tree: Tree, directory: str) -> list[Entry]:
    """Return what is in a folder and not hidden, by name.

    Raises:
        SourceError: It can not be listed.
    """
    try:
        visible = [entry for entry in tree.scan(directory) if not entry.name.startswith(".")]
    except OSError as error:
        raise _unlisted(directory, error) from error
    return sorted(visible, key=lambda entry: entry.name)


def walk(
    tree: Tree,
    root: str,
    folder: str,
    endings: frozenset[str],
    skipped: Counter[str],
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[tuple[Entry, str]]:
    """Yield the files at and below a folder, in order of their names at every level.

    Args:
        tree: What lies below the root.
        root: The folder that keys are relative to.
        folder: Where to look, below the root.
        endings: Of the names of files that are wanted, in lower case with the dot.
        skipped: Counts the endings of other files.
        above: Folders that this one lies in.

    Yields:
        The entry and its key: the path below the root, with ``/``.

    Raises:
        SourceError: A folder can not be listed, or a link leads back to one above it.
    """
    path = os.path.join(root, folder)
    entries = scan(tree, path)
    identity = tree.identity(path)
    inside = above if identity is None else above | {identity}
    if identity in above:
        raise SourceError(
            "this link leads back to a folder that it lies in", path=path, hint="remove the link"
        )
    for entry in entries:
        key = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            yield from walk(tree, root, key, endings, skipped, inside)
        elif is_wanted(entry.name, endings, skipped):
            yield entry, key


def is_wanted(name: str, endings: frozenset[str], skipped: Counter[str]) -> bool:
    """Tell by its name whether a file is wanted; where it is not, count its ending."""
    ending = os.path.splitext(name)[1].lower()
    if ending in endings:
        return True
    skipped[printable(ending) or "without ending"] += 1
    return False


def listed_file(entry: Entry, key: str, *, skip_errors: bool = False) -> ListedFile:
    """Return what is to be known of a file.

    Args:
        entry: The file.
        key: Its path below the root.
        skip_errors: Whether a name that is not UTF-8 is an error only when the file is read.

    Raises:
        SourceError: Its name is not UTF-8, or it is no file that can be read.
    """
    if not skip_errors:
        _check_name(key, entry.path)
    try:
        found = entry.stat()
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=entry.path) from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError("this is no file, in spite of its name", path=entry.path)
    return ListedFile(key, found.st_size, found.st_mtime_ns)


def _check_name(key: str, path: str) -> None:
    """Refuse a name that no text feature holds.

    Raises:
        SourceError: It is not UTF-8.
    """
    if printable(key) != key:
        raise SourceError(
            "the file's name is not UTF-8",
            path=printable(path),
            hint="rename the file, or leave it out with --on-error skip",
        )


def left_out(skipped: Counter[str], many: str) -> list[str]:
    """Return the note on files that are no ``many`` ("images"), where there are any."""
    endings = ", ".join(f"{count:,} {ending}" for ending, count in skipped.most_common(5))
    return [f"files that are no {many} were left out: {endings}"] if skipped else []


def _unlisted(directory: str, error: OSError) -> SourceError:
    return SourceError(f"can not be listed: {error.strerror}", path=directory)


# -- reading ---------------------------------------------------------------------------------------


def read_file(inputs: Inputs, folder: str, file: ListedFile, shown: str) -> bytes:
    """Read a file.

    Args:
        inputs: The place.
        folder: The absolute root.
        file: Which file of it.
        shown: What a person calls the root.

    Raises:
        SourceError: It can not be read, or its name is not UTF-8.
        SourceChanged: It has changed since it was listed.
    """
    path = os.path.join(shown, file.key)
    _check_name(file.key, path)
    try:
        found, data = inputs.read(os.path.join(folder, file.key))
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError | InputChanged)
        kind = SourceChanged if is_gone else SourceError
        raise kind(f"can not be read: {error.strerror}", path=path) from error
    listed = (file.size_bytes, file.mtime_ns)
    if (found.st_size, found.st_mtime_ns) != listed or len(data) != file.size_bytes:
        raise SourceChanged(
            "the file has changed since the folder was listed",
            path=path,
            hint="write the dataset again when nothing writes to the source",
        )
    return data


def damaged_file(error: ValueError, path: str) -> SourceError:
    """Return the error of a file that is not what its name says."""
    return SourceError(str(error), path=path, hint="mend it, or move it out of the folder")


def hash_lines(lines: Iterable[str]) -> str:
    """Return the SHA-256 of lines."""
    digest = sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogateescape"))
    return "sha256:" + digest.hexdigest()
