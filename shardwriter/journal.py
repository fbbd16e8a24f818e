"""Journals: what a writer knows and its shards do not show, one fact a line.

The journal may be ahead of the shards and never behind: a fact about item i is written before any
later frame of that writer. :class:`JournaledFile` holds that for every shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwriter import canonical
from shardwriter.crc32c import crc32c
from shardwriter.storage import GrowingFile
from shardwriter.storage.local import fdatasync, storage_errors


class Journal:
    """Facts of one writer, in the order in which they became true.

    A line is ``crc32c-hex json``. Facts are idempotent: reading one twice changes nothing.

    ==============  =============================================================================
    ``skip``        ``{"skip": i, "reason": "dropped"}``: item i gives no record
    ``schema``      features whose type has widened, as entries of the manifest; all of them, with
                    their counts, at a checkpoint and at the end
    ``labels``      the label counts, at a checkpoint and at the end
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
        if not self._lines:
            return
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
            fdatasync(self._descriptor)

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._descriptor)


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


def read_journal(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the facts of a journal up to the first line that is torn."""
    for line in Path(path).read_bytes().splitlines(keepends=True):
        crc, _, text = line.partition(b" ")
        if not text.endswith(b"\n") or crc != b"%08x" % crc32c(text[:-1]):
            return
        yield json.loads(text)
