"""The files that a person names: one, those of a folder, a glob, or a list in braces.

``shards-{000..012}.tar`` and ``{train,val}.csv`` are WebDataset's notation (and bash's): every file
of the list has to be there, and they are read in the order of the list. A folder and a glob are
read in order of their names.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from shardwriter.errors import OptionError, SourceError
from shardwriter.storage.inputs import Entry, inputs_for

_RANGE: Final = re.compile(r"(\d{1,18})\.\.(\d{1,18})(?:\.\.([1-9]\d{0,17}))?", re.ASCII)
_MAX_FILES: Final = 100_000


def must_exist(path: str) -> None:
    """Look whether there is a file or folder.

    Raises:
        OptionError: There is none.
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
    """Return what is in a folder and has a name that ends so, by name.

    Args:
        directory: The folder.
        endings: Of the names, in lower case.
        others: Endings of names that are not wanted.

    Raises:
        SourceError: The folder can not be listed.
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
    """Return the paths of what a folder holds.

    Raises:
        SourceError: One of them is no file: it may be a folder that holds what is meant, or a pipe
            that nobody writes to.
    """
    for entry in entries:
        if not entry.is_file():
            what = "folder" if entry.is_dir() else "link to no file, or a pipe or device"
            raise SourceError(
                f"this is a {what}, in spite of its name",
                path=entry.path,
                hint="move it out of the folder, or give it as SOURCE",
            )
    return [entry.path for entry in entries]


def files_meant(data: str) -> list[str] | None:
    """Return the files that a person means, in order; None: all of a folder.

    Raises:
        OptionError: There are none, one of a list is missing, or stands in it twice.
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
    """Return the files of a list in braces, in its order; None where there is no such list.

    Raises:
        OptionError: One is missing or stands there twice, or the list is endless.
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
            raise OptionError(f"{name!r} stands twice in this list", path=data)
        seen.add(name)
        if not inputs.is_file(name):
            raise OptionError(
                f"of this list of {len(names):,} files, {name!r} is not there", path=data
            )
    return names


def expand_braces(text: str) -> Iterator[str]:
    """Yield what a name with braces stands for: ``{a,b}``, ``{08..11}``, ``{0..20..5}``.

    Numbers have as many digits as the longer one where one begins with 0. Braces that hold neither
    a list nor a range stay as they are.
    """
    for found in re.finditer(r"\{", text):
        inside = _until_closed(text, found.end())
        choices = None if inside is None else _choices(inside)
        if inside is None or choices is None:
            continue
        rest = text[found.end() + len(inside) + 1 :]
        for choice in choices:
            for behind in expand_braces(rest):
                yield text[: found.start()] + choice + behind
        return
    yield text


def _until_closed(text: str, begin: int) -> str | None:
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
    """Split at the commas that stand in no braces."""
    parts, depth = [""], 0
    for character in inside:
        depth += (character == "{") - (character == "}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
