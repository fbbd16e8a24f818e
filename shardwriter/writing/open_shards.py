"""The open shards of a run: files in the run directory that records are appended to.

A :class:`ShardFile` is created, or resumed, then written, then sealed or abandoned. Beside it is a
second file with its index rows: the u64 end of every frame; of a compressed shard ``u64 end, u64
records`` of every member. Counts, sizes, checksums and index are known when the last record is
written, so nothing is read back. :class:`OpenShards` holds the shards of one writer;
:class:`FrameCopy` appends frames that are copied from other shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np
from contextlib2 import ExitStack
from numpy.typing import NDArray

from shardwriter.dataset import SealedShard, frame_ends
from shardwriter.formats import (
    FRAME_BYTES,
    NOTHING_WRITTEN,
    PLAIN,
    CompressedWriter,
    FrameBlock,
    Packing,
    TFRecordWriter,
    Written,
)
from shardwriter.storage import OutputFile, Storage
from shardwriter.writing.journal import Journal, JournaledFile
from shardwriter.writing.options import Backend
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory

_INDEX_BATCH: Final = 64  # flushes of the shard per flush of its index
_MAX_BUFFER_BYTES: Final = 1 << 18  # of one shard
_ALL_BUFFERS_BYTES: Final = 32 << 20


class RecordWriter(Protocol):
    """A writer that frames records, as a shard uses it."""

    @property
    def num_records(self) -> int:
        """Records so far."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads so far."""

    @property
    def written(self) -> Written:
        """What is in the file: complete frames, or complete members."""

    def write(self, record: bytes) -> None:
        """Append one record."""

    def flush(self) -> None:
        """Write buffered frames that can be in the file now."""

    def finish(self) -> None:
        """Write everything that is buffered; no records may follow."""

    def close(self) -> None:
        """Flush and close the file."""

    def discard(self) -> None:
        """Close the file; buffered frames may be lost."""


OnFlush = Callable[[list[int]], None]
"""Called after a write to the file with the payload sizes of its frames; of a compressed shard with
``[end, records]`` of its member."""


class ShardFile:
    """A shard that is being written.

    Args:
        storage: The storage of the run directory.
        path: The file.
        index_path: The file with its index rows.
        open_writer: Opens the writer of ``path``.
        compressed: Whether that writer packs frames into members.
        written: What an earlier attempt has written and this one keeps; the rest is cut off.

    Attributes:
        write: Appends one record, given as bytes.
        index_bytes: Bytes of the index so far, including those not written yet.
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
        # The writer's method itself, as another call costs as much as framing a short record.
        self.write: Callable[[bytes], None] = self._writer.write
        self._open = True

    def write_frames(self, frames: bytes, payload_sizes: NDArray[np.int64]) -> None:
        """Append complete frames, to an uncompressed shard with the native writer.

        Args:
            frames: The frames, in order.
            payload_sizes: int64[n], n > 0: the payload bytes of each.
        """
        assert isinstance(self._writer, TFRecordWriter)
        self._writer.write_frames(frames, len(payload_sizes))
        self._note_frames(payload_sizes)

    def _note_frames(self, payload_sizes: list[int] | NDArray[np.int64]) -> None:
        ends = frame_ends(np.array(payload_sizes, np.uint64), self._end)
        self._end = int(ends[-1])
        self._add_rows(ends.astype("<u8").tobytes())

    def _note_member(self, end_and_records: list[int]) -> None:
        self._add_rows(np.array(end_and_records, "<u8").tobytes())

    def _add_rows(self, rows: bytes) -> None:
        self._rows.append(rows)
        self.index_bytes += len(rows)
        if len(self._rows) >= _INDEX_BATCH:
            self._flush_index()

    @property
    def num_records(self) -> int:
        """Records so far."""
        return self._writer.num_records

    def flush(self) -> Written:
        """Write buffered frames and index rows; return what is in the file."""
        self._writer.flush()
        self._flush_index()
        return self._writer.written

    def checkpoint(self) -> Written:
        """Flush and sync to disk; return what is in the file."""
        written = self.flush()
        self._storage.sync(self._path)
        self._storage.sync(self._index_path)
        return written

    def seal(self) -> SealedShard:
        """Write the last bytes, sync, close, and return the shard's counts and checksums."""
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
        """Abandon the shard unless it was sealed; its files stay in the run directory."""
        if self._open:
            self._open = False
            self._writer.discard()
            self._index.close()


class FrameCopy:
    """Appends copied frames to the shards of their items, with a buffer for each shard.

    Args:
        files: The open shards, by number.
        num_shards: Number of shards, N.
    """

    def __init__(self, files: Mapping[int, ShardFile], num_shards: int) -> None:
        self._files = files
        self._num_shards = num_shards
        self._max_bytes = min(_MAX_BUFFER_BYTES, _ALL_BUFFERS_BYTES // max(1, len(files)))
        self._parts: dict[int, list[bytes]] = {shard: [] for shard in files}
        self._sizes: dict[int, list[NDArray[np.int64]]] = {shard: [] for shard in files}
        self._num_bytes = dict.fromkeys(files, 0)

    def append(self, indices: NDArray[np.int64], block: FrameBlock) -> None:
        """Append the frames of some items to their shards.

        Args:
            indices: int64[k], ascending: the items.
            block: Their frames.
        """
        shards = indices % self._num_shards
        order = np.argsort(shards, kind="stable")
        cuts = np.flatnonzero(np.diff(shards[order])) + 1
        for rows in np.split(order, cuts):
            shard = int(shards[rows[0]])
            sizes = block.sizes[rows]
            self._parts[shard] += block.take(rows)
            self._sizes[shard].append(sizes)
            self._num_bytes[shard] += int(sizes.sum())
            if self._num_bytes[shard] >= self._max_bytes:
                self._flush(shard)

    def flush(self) -> None:
        """Write all buffered frames."""
        for shard, num_bytes in self._num_bytes.items():
            if num_bytes:
                self._flush(shard)

    def _flush(self, shard: int) -> None:
        parts, sizes = self._parts[shard], np.concatenate(self._sizes[shard])
        frames = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts[shard], self._sizes[shard], self._num_bytes[shard] = [], [], 0
        self._files[shard].write_frames(frames, sizes - FRAME_BYTES)


class OpenShards:
    """The open shards of one writer.

    Args:
        stack: Closes the shards; those not sealed are abandoned.
        run: The run directory.
        shards: Numbers of the shards.
        packing: Their compression.
        backend: The record writer to use.
        journal: Its facts are written before any later frame; None for no journal.
        resume_state: What earlier attempts have written of the shards.

    Attributes:
        files: The shards, by number.
    """

    def __init__(
        self,
        stack: ExitStack,
        run: RunDirectory,
        shards: Sequence[int],
        packing: Packing = PLAIN,
        backend: Backend = "native",
        journal: Journal | None = None,
        resume_state: ResumeState | None = None,
    ) -> None:
        self.files: dict[int, ShardFile] = {}
        # Another process cannot continue a zlib stream or TensorFlow's writer.
        self._can_resume = packing.compression != "zlib" and backend == "native"
        # The total of all buffers is bounded, for any number of shards.
        buffer_bytes = max(4096, min(_MAX_BUFFER_BYTES, _ALL_BUFFERS_BYTES // max(1, len(shards))))
        for number in shards:
            path = run.shard_path(number)
            written = NOTHING_WRITTEN if resume_state is None else resume_state.written(number)
            if backend == "tensorflow":
                from shardwriter.storage import TensorFlowRecordWriter

                open_writer: Callable[[OnFlush], RecordWriter] = partial(
                    TensorFlowRecordWriter, path
                )
            else:
                open_writer = partial(
                    open_record_writer,
                    run.storage,
                    path,
                    packing,
                    buffer_bytes=buffer_bytes,
                    journal=journal,
                    written=written,
                )
            shard = ShardFile(
                run.storage,
                path,
                run.index_path(number),
                open_writer,
                compressed=not packing.is_plain,
                written=written,
            )
            self.files[number] = stack.enter_context(shard)

    def flush(self) -> dict[int, Written]:
        """Flush all shards; return what a later attempt can resume from, by shard."""
        return self._resumable({number: shard.flush() for number, shard in self.files.items()})

    def checkpoint(self) -> dict[int, Written]:
        """Flush and sync all shards; return what a later attempt can resume from, by shard."""
        return self._resumable({number: shard.checkpoint() for number, shard in self.files.items()})

    def _resumable(self, written: dict[int, Written]) -> dict[int, Written]:
        return written if self._can_resume else dict.fromkeys(written, NOTHING_WRITTEN)

    def seal(self) -> dict[int, SealedShard]:
        """Seal all shards; return their counts and checksums, by number."""
        return {number: shard.seal() for number, shard in self.files.items()}


def open_record_writer(
    storage: Storage,
    path: str,
    packing: Packing,
    on_flush: OnFlush,
    *,
    buffer_bytes: int = _MAX_BUFFER_BYTES,
    journal: Journal | None = None,
    written: Written = NOTHING_WRITTEN,
    new: bool = False,
) -> RecordWriter:
    """Return an open writer of one shard file.

    Args:
        storage: The storage of the file.
        path: The file.
        packing: Its compression.
        on_flush: Called after each write to the file.
        buffer_bytes: Size of the buffer of an uncompressed shard.
        journal: Its facts are written before any later frame; None for no journal.
        written: What an earlier attempt has written.
        new: Raise if the file exists.
    """
    file: OutputFile
    if written.num_pieces:
        file = storage.append(path, written.file_bytes)
    else:
        file = storage.create(path, new=new)
    if journal is not None:
        file = JournaledFile(file, journal)
    if not packing.is_plain:
        return CompressedWriter(file, packing, on_flush=on_flush, written=written)
    return TFRecordWriter(file, buffer_bytes=buffer_bytes, on_flush=on_flush, written=written)
