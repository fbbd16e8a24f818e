"""Input files: the files that SOURCE refers to, and the files in a folder and below it.

SOURCE is a file, a folder, a glob or a list in braces. ``shards-{000..012}.tar`` and
``{train,val}.csv`` are WebDataset's notation (and bash's): each file of the list must exist, and
they are read in the order of the list. Files of a folder or a glob are read in order of their
names.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from shardwriter.errors import OptionError, SourceChanged, SourceError
from shardwriter.storage import (
    Entry,
    InputChanged,
    Inputs,
    Tree,
    inputs_for,
    printable,
)

LOOK_FILES: Final = 1000
"""How many files to list for format detection, in a store that lists all files below a folder."""


class ListedFile(NamedTuple):
    """A file's path and state when its folder was listed."""

    key: str
    size_bytes: int
    mtime_ns: int


def tree_of(root: str, limit: int | None = None) -> Tree:
    """Return a folder with everything below it; see :meth:`Inputs.tree`.

    Raises:
        SourceError: It cannot be listed.
    """
    try:
        return inputs_for(root).tree(root, limit)
    except OSError as error:
        raise _unlisted(root, error) from error


def scan(tree: Tree, directory: str) -> list[Entry]:
    """Return the entries of a folder that are not hidden, by name.

    Raises:
        SourceError: It cannot be listed.
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
    """Yield the files in and below a folder, sorted by name on every level.

    Args:
        tree: Everything below the root.
        root: The folder that keys are relative to.
        folder: The folder to walk, relative to the root.
        endings: The wanted file name endings, in lower case with the dot.
        skipped: Counts the endings of other files.
        above: The identities of the folders above this one.

    Yields:
        The entry and its key: the path below the root, with ``/``.

    Raises:
        SourceError: A folder cannot be listed, or a link forms a cycle.
    """
    path = os.path.join(root, folder)
    entries = scan(tree, path)
    identity = tree.identity(path)
    inside = above if identity is None else above | {identity}
    if identity in above:
        raise SourceError(
            "this link leads back to a folder above it", path=path, hint="remove the link"
        )
    for entry in entries:
        key = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            yield from walk(tree, root, key, endings, skipped, inside)
        elif is_wanted(entry.name, endings, skipped):
            yield entry, key


def is_wanted(name: str, endings: frozenset[str], skipped: Counter[str]) -> bool:
    """Return whether a file has a wanted ending; if not, count its ending."""
    ending = os.path.splitext(name)[1].lower()
    if ending in endings:
        return True
    skipped[printable(ending) or "without ending"] += 1
    return False


def listed_file(entry: Entry, key: str, *, skip_errors: bool = False) -> ListedFile:
    """Return the key, size and modification time of a file.

    Args:
        entry: The file.
        key: Its path below the root.
        skip_errors: Report a name that is not UTF-8 only when the file is read.

    Raises:
        SourceError: Its name is not UTF-8, or it is not a regular file.
    """
    if not skip_errors:
        _check_name(key, entry.path)
    try:
        found = entry.stat()
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=entry.path) from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError("this is not a regular file, in spite of its name", path=entry.path)
    return ListedFile(key, found.st_size, found.st_mtime_ns)


def _check_name(key: str, path: str) -> None:
    """Raise for a name that a text feature cannot hold.

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
    """Return a note on the files that are not ``many`` ("images"); [] if there are none."""
    endings = ", ".join(f"{count:,} {ending}" for ending, count in skipped.most_common(5))
    return [f"files that are not {many} were left out: {endings}"] if skipped else []


def _unlisted(directory: str, error: OSError) -> SourceError:
    return SourceError(f"can not be listed: {error.strerror}", path=directory)


def read_file(inputs: Inputs, folder: str, file: ListedFile, shown: str) -> bytes:
    """Return the bytes of a listed file.

    Args:
        inputs: The storage.
        folder: The absolute root.
        file: The file.
        shown: The root as the user gave it.

    Raises:
        SourceError: It cannot be read, or its name is not UTF-8.
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
            hint="write the dataset again while nothing changes the source",
        )
    return data


def damaged_file(error: ValueError, path: str) -> SourceError:
    """Return the error for a file whose content does not match its name."""
    return SourceError(str(error), path=path, hint="repair it, or move it out of the folder")


def hash_lines(lines: Iterable[str]) -> str:
    """Return the SHA-256 of texts."""
    digest = sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogateescape"))
    return "sha256:" + digest.hexdigest()


_RANGE: Final = re.compile(r"(\d{1,18})\.\.(\d{1,18})(?:\.\.([1-9]\d{0,17}))?", re.ASCII)
_MAX_FILES: Final = 100_000


def must_exist(path: str) -> None:
    """Raise if there is no such file or folder.

    Raises:
        OptionError: It does not exist.
    """
    if not inputs_for(path).exists(path):
        raise not_there(path)


def not_there(path: str) -> OptionError:
    """Return the error for a SOURCE that does not exist."""
    return OptionError(
        "there is no such file or folder",
        path=path,
        hint="SOURCE is a path, a glob of files, a dataset's name, or module:callable",
    )


def named_in(directory: str, endings: Sequence[str], others: Sequence[str] = ()) -> list[Entry]:
    """Return the entries of a folder with one of some endings, sorted by name.

    Args:
        directory: The folder.
        endings: Endings of the wanted names, in lower case.
        others: Endings of names to leave out.

    Raises:
        SourceError: The folder cannot be listed.
    """
    try:
        entries = inputs_for(directory).listing(directory)
    except OSError as error:
        raise SourceError(f"can not be listed: {error.strerror}", path=directory) from error
    found = (
        entry
        for entry in entries
        if entry.name.lower().endswith(tuple(endings))
        and not entry.name.startswith(".")
        and not entry.name.endswith(tuple(others))
    )
    return sorted(found, key=lambda entry: entry.name)


def all_files(entries: Sequence[Entry]) -> list[str]:
    """Return the paths of a folder's entries, which must be files.

    Raises:
        SourceError: An entry is a folder or a pipe: a pipe could block for ever.
    """
    for entry in entries:
        if not entry.is_file():
            what = "a folder" if entry.is_dir() else "a broken link, or a pipe or device"
            raise SourceError(
                f"this is {what}, in spite of its name",
                path=entry.path,
                hint="move it out of the folder, or give it as SOURCE",
            )
    return [entry.path for entry in entries]


def files_meant(data: str) -> list[str] | None:
    """Return the files that SOURCE refers to, in order; None for all files of a folder.

    Raises:
        OptionError: There are none, or a listed file is missing or repeated.
    """
    if inputs_for(data).exists(data):
        return None if inputs_for(data).is_directory(data) else [data]
    listed = braced(data)
    if listed is not None:
        return listed
    if glob.has_magic(data):
        found = inputs_for(data).glob(data)
        if not found:
            raise OptionError("no file matches this pattern", path=data)
        return found
    raise not_there(data)


def braced(data: str) -> list[str] | None:
    """Return the files of a list in braces, in order; None if the text has no such list.

    Raises:
        OptionError: A file is missing or repeated, or the list is too long.
    """
    names = list(itertools.islice(expand_braces(data), _MAX_FILES + 1))
    if names == [data]:
        return None
    if len(names) > _MAX_FILES:
        raise OptionError(f"this list has more than {_MAX_FILES:,} files", path=data)
    inputs = inputs_for(data)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise OptionError(f"{name!r} is repeated in this list", path=data)
        seen.add(name)
        if not inputs.is_file(name):
            raise OptionError(
                f"{name!r} does not exist (one of {len(names):,} listed files)", path=data
            )
    return names


def expand_braces(text: str) -> Iterator[str]:
    """Yield the expansions of ``{a,b}``, ``{08..11}`` and ``{0..20..5}`` in a name.

    Numbers are padded to the longer one if one of them begins with 0. Braces without a list or a
    range are left as they are.
    """
    for found in re.finditer(r"\{", text):
        inside = _until_brace_closes(text, found.end())
        choices = None if inside is None else _choices(inside)
        if inside is None or choices is None:
            continue
        rest = text[found.end() + len(inside) + 1 :]
        for choice in choices:
            for behind in expand_braces(rest):
                yield text[: found.start()] + choice + behind
        return
    yield text


def _until_brace_closes(text: str, begin: int) -> str | None:
    depth = 1
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return text[begin:at]
    return None


def _choices(inside: str) -> Iterator[str] | None:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        parts = _split(inside)
        return (name for part in parts for name in expand_braces(part)) if len(parts) > 1 else None
    first, last = int(numbers[1]), int(numbers[2])
    is_padded = any(text[0] == "0" and len(text) > 1 for text in numbers.groups()[:2])
    width = max(map(len, numbers.groups()[:2])) if is_padded else 0
    step = int(numbers[3] or 1)
    steps = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return (f"{number:0{width}}" for number in steps)


def _split(inside: str) -> list[str]:
    """Split a text at the commas that are not inside braces."""
    parts, depth = [""], 0
    for character in inside:
        depth += (character == "{") - (character == "}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
