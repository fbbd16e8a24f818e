"""Journals: what a writer knows and its shards do not show, one fact a line.

The journal may be ahead of the shards and never behind: a fact about item i is written before any
later frame of that writer. :class:`JournaledFile` holds that for every shard.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from shardwriter.errors import StorageError
from shardwriter.formats import canonical, json_shape
from shardwriter.formats.crc32c import crc32c
from shardwriter.storage.protocol import GrowingFile, Storage
from shardwriter.writing.shapes import Fact

_Shape = TypeVar("_Shape")


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

    facts: list[Fact]
    num_bytes: int


def read_facts(data: bytes, max_items: int = 2**62) -> Facts:
    """Read a journal up to the first line that is torn, or is no fact.

    Args:
        data: The lines.
        max_items: How many items there can be; a fact about another is none.
    """
    facts = []
    num_bytes = 0
    for line in data.splitlines(keepends=True):
        fact = read_signed(line, Fact)
        if fact is None or not _is_sound(fact, max_items):
            break
        facts.append(fact)
        num_bytes += len(line)
    return Facts(facts, num_bytes)


def read_signed(line: bytes, shape: type[_Shape]) -> _Shape | None:
    """Return what a signed line says; None where it is torn or has another shape."""
    crc, _, text = line.partition(b" ")
    if not text.endswith(b"\n") or crc != b"%08x" % crc32c(text[:-1]):
        return None
    try:
        return json_shape.read(text, shape)
    except ValueError:
        return None


def _is_sound(fact: Fact, max_items: int) -> bool:
    if "skip" not in fact:
        return True
    skip, error = fact["skip"], fact.get("error")
    if skip >= max_items or "reason" not in fact:
        return False
    return fact["reason"] == "dropped" or (error is not None and error["index"] == skip)
