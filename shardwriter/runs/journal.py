"""Journals: what a writer knows and its shards do not show, one fact a line.

The journal may be ahead of the shards and never behind: a fact about item i is written before any
later frame of that writer. :class:`JournaledFile` holds that for every shard.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from shardwriter.errors import StorageError
from shardwriter.formats import canonical
from shardwriter.formats.crc32c import crc32c
from shardwriter.storage import GrowingFile, Storage


class Journal:
    """Facts of one writer, in the order in which they became true.

    A line is ``crc32c-hex json``. Facts are idempotent: reading one twice changes nothing.

    ==========  =================================================================================
    ``skip``    ``{"skip": i, "reason": "dropped"}``: item i gives no record, as a map wanted;
                ``{"skip": i, "reason": "error", "error": {...}}``: as it could not be made one
    ``types``   features whose type has widened, as entries of the manifest
    ==========  =================================================================================

    Args:
        storage: Where it lies.
        path: The file; it must not be there yet.

    Attributes:
        num_bytes: Length of what was handed to the operating system.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._lines: list[bytes] = []
        self._file = storage.create(path)
        self._has_failed = False  # nobody knows how much of a line was written then
        self.num_bytes = 0

    def fact(self, **fact: Any) -> None:
        """Note a fact; it is in the file after the next flush."""
        self._lines.append(signed(fact))

    def flush(self) -> None:
        """Write the noted facts, so that they outlive this process."""
        if not self._lines:
            return
        if self._has_failed:
            raise StorageError("a write to it has failed before", path=self._path)
        data = b"".join(self._lines)
        self._has_failed = True
        self._file.write(data)
        self._has_failed = False
        self._lines.clear()
        self.num_bytes += len(data)

    def sync(self) -> None:
        """Write the noted facts, so that they outlive a power cut."""
        self.flush()
        self._storage.sync(self._path)

    def close(self) -> None:
        """Close the file, with the facts that could not be written before."""
        try:
            if not self._has_failed:
                self.flush()
        finally:
            self._file.close()


class JournaledFile:
    """A growing shard whose bytes follow the facts that came before them."""

    def __init__(self, file: GrowingFile, journal: Journal) -> None:
        self._file = file
        self._journal = journal

    def write(self, data: bytes, /) -> None:
        """Write the facts that are still noted, then the bytes."""
        self._journal.flush()
        self._file.write(data)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def signed(fact: Any) -> bytes:
    """Return a fact as a line with its checksum."""
    text = canonical.dumps(fact).encode("ascii")
    return b"%08x %s" % (crc32c(text[:-1]), text)


class Facts(NamedTuple):
    """What a journal holds.

    Attributes:
        facts: Up to the first line that is torn.
        num_bytes: Where that line begins.
    """

    facts: list[dict[str, Any]]
    num_bytes: int


def read_facts(data: bytes) -> Facts:
    """Read signed lines up to the first that is torn."""
    facts = []
    num_bytes = 0
    for line in data.splitlines(keepends=True):
        crc, _, text = line.partition(b" ")
        if not text.endswith(b"\n") or crc != b"%08x" % crc32c(text[:-1]):
            break
        facts.append(json.loads(text))
        num_bytes += len(line)
    return Facts(facts, num_bytes)
