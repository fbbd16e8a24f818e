"""The files of a run directory: which names are its own, and the refusal of any other folder.

A folder called ``.NAME.partial`` may be anybody's. Only names that a run gives are ever read,
written or deleted in it, and none of them may be a link: a link would lead the writer elsewhere.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from shardwriter.errors import StorageError
from shardwriter.formats.text import clean
from shardwriter.storage.descriptor import Descriptor

RUN: Final = "run.json"

_ATTEMPT: Final = r"\.[0-9a-f]{16}"  # of a Beam job: each attempt has files of its own
_OWN: Final = re.compile(
    r"(?:lock|run\.json|base|files\.json|commit\.json|manifest|index|index\.remade|dali|idx|tfds"
    r"|errors\.jsonl|with-ledger|lost|lost\.jsonl|with-lost"
    rf"|(?:shard|index)-[0-9]{{5,6}}(?:{_ATTEMPT})?|dali-[0-9]{{5,6}}"
    r"|(?:journal|mark|checkpoint)-[0-9]{1,9}-[0-9]{1,9}"
    rf"|cargo-[0-9a-f]{{16}}|bucket-[0-9]{{5,9}}{_ATTEMPT}|part-[0-9]{{5,6}}-[0-9]{{6,18}}{_ATTEMPT}"
    r"|done-[0-9]{5,6}-[0-9a-f]{32})"
    r"(?:\.new|\.[0-9a-f]{32})?"  # while it is written
)
_RECORDS: Final = re.compile(rf"(?:shard-[0-9]{{5,6}}|part-[0-9]{{5,6}}-[0-9]{{6,18}}){_ATTEMPT}")
_ROWS: Final = re.compile(rf"index-[0-9]{{5,6}}{_ATTEMPT}")


def is_own(file_name: str) -> bool:
    """Return whether a run directory gives a file this name."""
    return _OWN.fullmatch(file_name) is not None


def holds_records(file_name: str) -> bool:
    """Return whether a Beam attempt gives this name to frames of records."""
    return _RECORDS.fullmatch(file_name) is not None


def holds_rows(file_name: str) -> bool:
    """Return whether a Beam attempt gives this name to a shard's rows of the index."""
    return _ROWS.fullmatch(file_name) is not None


def open_own(path: str) -> Descriptor:
    """Open a run directory once it is known to be one.

    Hidden files (``.nfs...``, ``.DS_Store``) are passed over: systems make them anywhere.

    Raises:
        StorageError: The name is that of a link or a file; the folder has a link or a folder in
            place of a file of its own; or it has no run.json and holds files of somebody else.
        OSError: It can not be read.
    """
    try:
        folder = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        what = "a symbolic link" if os.path.islink(path) else "no folder"
        raise StorageError(
            f"it is {what}, and a dataset is made in a folder of this name",
            path=path,
            hint=f"remove it (rm {clean(path)}), or write under another name",
        ) from None
    names = set()
    with os.scandir(folder.fileno()) as entries:
        for entry in entries:
            names.add(entry.name)
            if is_own(entry.name) and not entry.is_file(follow_symlinks=False):
                raise StorageError(
                    "it is "
                    + ("a symbolic link" if entry.is_symlink() else "not a plain file")
                    + ", and a run makes none",
                    path=os.path.join(path, entry.name),
                    hint=f"remove {clean(path)} if nothing in it is yours, or write under another "
                    "name",
                )
    foreign = sorted(name for name in names if not is_own(name) and not name.startswith("."))
    if foreign and RUN not in names:
        raise StorageError(
            f"it holds {foreign[0]!r}, and a folder of this name is made and emptied by a run",
            path=path,
            hint="move what is in it elsewhere, or write under another name",
        )
    return folder
