"""One shard file's life: create -> write -> seal, or abandon.

While it grows it lies in the run directory with a second file beside it that holds the u64 offset
behind every frame. Counts, sizes, checksum and index are known when the last record is written;
nothing is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from shardwriter.manifest import SealedShard
from shardwriter.storage import Storage
from shardwriter.tfrecord import FRAME_BYTES

_INDEX_BATCH: Final = 64  # flushes of the shard to one of its index


class RecordWriter(Protocol):
    """What a shard needs of the writer that frames its records."""

    @property
    def num_records(self) -> int:
        """Records so far."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads so far."""

    @property
    def stream_bytes(self) -> int:
        """Bytes of all frames so far."""

    @property
    def crc32c(self) -> int:
        """CRC-32C of all frames that were flushed."""

    def write(self, record: bytes) -> None:
        """Append one record."""

    def flush(self) -> None:
        """Hand the buffered frames on."""

    def close(self) -> None:
        """Flush and close the file."""

    def discard(self) -> None:
        """Close the file; buffered frames may be lost."""


@dataclass(frozen=True)
class Checkpoint:
    """How much of a shard is safe on disk."""

    num_records: int
    stream_bytes: int
    crc32c: int


OnFlush = Callable[[list[int]], None]
"""Told of the payload sizes of the frames that a writer handed on."""


class ShardFile:
    """A shard that is being written.

    Args:
        storage: Where it lies.
        path: The growing file.
        index_path: The file for the u64 offsets.
        open_writer: Opens what frames the records and writes ``path``.

    Attributes:
        write: Appends one record, given as bytes.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        index_path: str,
        open_writer: Callable[[OnFlush], RecordWriter],
    ) -> None:
        self._storage = storage
        self._path = path
        self._index_path = index_path
        self._index = storage.create(index_path)
        self._end = 0
        self._ends: list[bytes] = []
        self._writer = open_writer(self._note_frames)
        # The writer's own method: a call in between would cost as much as framing a short record.
        self.write: Callable[[bytes], None] = self._writer.write
        self._open = True

    def _note_frames(self, payload_sizes: list[int]) -> None:
        ends = np.cumsum(np.array(payload_sizes, np.uint64) + np.uint64(FRAME_BYTES))
        ends += np.uint64(self._end)
        self._end = int(ends[-1])
        self._ends.append(ends.astype("<u8").tobytes())
        if len(self._ends) >= _INDEX_BATCH:
            self._flush_index()

    @property
    def num_records(self) -> int:
        """Records so far."""
        return self._writer.num_records

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._writer.flush()
        self._flush_index()

    def checkpoint(self) -> Checkpoint:
        """Bring everything so far to the disk, and say how much that is."""
        self.flush()
        self._storage.sync(self._path)
        self._storage.sync(self._index_path)
        writer = self._writer
        return Checkpoint(writer.num_records, writer.stream_bytes, writer.crc32c)

    def seal(self) -> SealedShard:
        """Write the last bytes, bring them to the disk, close, and say what the shard is."""
        checkpoint = self.checkpoint()
        self._open = False
        self._writer.close()
        self._index.close()
        return SealedShard(
            checkpoint.num_records,
            self._writer.payload_bytes,
            checkpoint.stream_bytes,
            checkpoint.crc32c,
        )

    def _flush_index(self) -> None:
        if self._ends:
            self._index.write(b"".join(self._ends))
            self._ends.clear()

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Abandon the shard unless it was sealed; what it has stays in the run directory."""
        if self._open:
            self._open = False
            self._writer.discard()
            self._index.close()
