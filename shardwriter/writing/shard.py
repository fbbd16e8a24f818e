"""One shard file's life: create, or go on with it -> write -> seal, or abandon.

While it grows it lies in the run directory with a second file beside it, its index: the u64 offset
behind every frame; of a compressed shard ``u64 end | u64 records`` of every member. Counts, sizes,
checksums and index are known when the last record is written; nothing is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from contextlib2 import ExitStack
from numpy.typing import NDArray

from shardwriter.dataset.index import frame_ends
from shardwriter.dataset.manifest import SealedShard
from shardwriter.formats.tfrecord import NOTHING_WRITTEN, TFRecordWriter, Written
from shardwriter.storage.protocol import Storage

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
    def written(self) -> Written:
        """What stands in the file: whole frames, or whole members."""

    def write(self, record: bytes) -> None:
        """Append one record."""

    def flush(self) -> None:
        """Hand on what is buffered and can stand in the file now."""

    def finish(self) -> None:
        """Write all that is left; no record comes afterwards."""

    def close(self) -> None:
        """Flush and close the file."""

    def discard(self) -> None:
        """Close the file; buffered frames may be lost."""


OnFlush = Callable[[list[int]], None]
"""Told what a writer put into the file: the payload sizes of the frames; of a compressed shard
``[end, records]`` of a member."""


class ShardFile:
    """A shard that is being written.

    Args:
        storage: Where it lies.
        path: The growing file.
        index_path: The file for its index.
        open_writer: Opens what frames the records and writes ``path``.
        compressed: Whether that writer packs frames into members.
        written: What an earlier attempt has left in the file; what follows it there is cut off.

    Attributes:
        write: Appends one record, given as bytes.
        index_bytes: Bytes of the index so far, those not written yet included.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        index_path: str,
        open_writer: Callable[[OnFlush], RecordWriter],
        *,
        compressed: bool = False,
        written: Written = NOTHING_WRITTEN,
    ) -> None:
        self._storage = storage
        self._path = path
        self._index_path = index_path
        self.index_bytes = written.num_pieces * (16 if compressed else 8)
        if written.num_pieces:
            self._index = storage.append(index_path, self.index_bytes)
        else:
            self._index = storage.create(index_path)
        self._end = written.stream_bytes
        self._rows: list[bytes] = []
        with ExitStack() as unless_opened:
            unless_opened.callback(self._index.close)
            self._writer = open_writer(self._note_member if compressed else self._note_frames)
            unless_opened.pop_all()
        # The writer's own method: a call in between would cost as much as framing a short record.
        self.write: Callable[[bytes], None] = self._writer.write
        self._open = True

    def write_frames(self, frames: bytes, payload_sizes: NDArray[np.int64]) -> None:
        """Append whole frames as they are, to a plain shard that has our own writer.

        Args:
            frames: Nothing but frames, in order.
            payload_sizes: int64[n], n > 0: the payload bytes of each.
        """
        assert isinstance(self._writer, TFRecordWriter)
        self._writer.write_frames(frames, len(payload_sizes))
        self._note_frames(payload_sizes)

    def _note_frames(self, payload_sizes: list[int] | NDArray[np.int64]) -> None:
        ends = frame_ends(np.array(payload_sizes, np.uint64), self._end)
        self._end = int(ends[-1])
        self._note(ends.astype("<u8").tobytes())

    def _note_member(self, end_and_records: list[int]) -> None:
        self._note(np.array(end_and_records, "<u8").tobytes())

    def _note(self, rows: bytes) -> None:
        self._rows.append(rows)
        self.index_bytes += len(rows)
        if len(self._rows) >= _INDEX_BATCH:
            self._flush_index()

    @property
    def num_records(self) -> int:
        """Records so far."""
        return self._writer.num_records

    def flush(self) -> Written:
        """Hand what can stand in the file to the operating system, and say how much that is."""
        self._writer.flush()
        self._flush_index()
        return self._writer.written

    def checkpoint(self) -> Written:
        """Bring what can stand in the file to the disk, and say how much that is."""
        written = self.flush()
        self._storage.sync(self._path)
        self._storage.sync(self._index_path)
        return written

    def seal(self) -> SealedShard:
        """Write the last bytes, bring them to the disk, close, and say what the shard is."""
        self._writer.finish()
        written = self.checkpoint()
        self._open = False
        self._writer.close()
        self._index.close()
        return SealedShard(
            written.num_records,
            self._writer.payload_bytes,
            written.file_bytes,
            written.crc32c,
            written.file_crc32c,
        )

    def _flush_index(self) -> None:
        if self._rows:
            self._index.write(b"".join(self._rows))
            self._rows.clear()

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Abandon the shard unless it was sealed; what it has stays in the run directory."""
        if self._open:
            self._open = False
            self._writer.discard()
            self._index.close()
