"""Shards that grow side by side in a run directory."""

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

# One shard file's life: create, or go on with it -> write -> seal, or abandon.
#
# While it grows it lies in the run directory with a second file beside it, its index: the u64
# offset behind every frame; of a compressed shard ``u64 end | u64 records`` of every member.
# Counts, sizes, checksums and index are known when the last record is written; nothing is read
# back.

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


# Frames on their way into growing shards, gathered until a write is worth its while.

_MAX_BUFFER_BYTES: Final = 1 << 18
_ALL_BUFFERS_BYTES: Final = 32 << 20


class FrameCopy:
    """Deals frames to shards.

    Args:
        files: The growing shards, by number.
        num_shards: N.
    """

    def __init__(self, files: Mapping[int, ShardFile], num_shards: int) -> None:
        self._files = files
        self._num_shards = num_shards
        self._most_bytes = min(_MAX_BUFFER_BYTES, _ALL_BUFFERS_BYTES // max(1, len(files)))
        self._parts: dict[int, list[bytes]] = {shard: [] for shard in files}
        self._sizes: dict[int, list[NDArray[np.int64]]] = {shard: [] for shard in files}
        self._num_bytes = dict.fromkeys(files, 0)

    def deal(self, indices: NDArray[np.int64], block: FrameBlock) -> None:
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
            if self._num_bytes[shard] >= self._most_bytes:
                self._flush(shard)

    def flush(self) -> None:
        """Hand on all that was gathered."""
        for shard, num_bytes in self._num_bytes.items():
            if num_bytes:
                self._flush(shard)

    def _flush(self, shard: int) -> None:
        parts, sizes = self._parts[shard], np.concatenate(self._sizes[shard])
        frames = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts[shard], self._sizes[shard], self._num_bytes[shard] = [], [], 0
        self._files[shard].write_frames(frames, sizes - FRAME_BYTES)


class OpenShards:
    """Open shards of a run.

    Those not sealed are abandoned with the stack.

    Args:
        stack: Closes them.
        run: Where they grow.
        shards: Their numbers.
        packing: How they are compressed.
        backend: Whose record writers to open.
        journal: Facts noted in it are written before any later frame; None where there are none.
        kept: What earlier attempts have left of them.

    Attributes:
        files: By number.
    """

    def __init__(
        self,
        stack: ExitStack,
        run: RunDirectory,
        shards: Sequence[int],
        packing: Packing = PLAIN,
        backend: Backend = "native",
        journal: Journal | None = None,
        kept: ResumeState | None = None,
    ) -> None:
        self.files: dict[int, ShardFile] = {}
        # A zlib stream, and TensorFlow's writer, can only be gone on with by whoever began.
        self._can_continue = packing.compression != "zlib" and backend == "native"
        # Buffers are bounded all together, however many shards there are.
        buffer_bytes = max(4096, min(_MAX_BUFFER_BYTES, _ALL_BUFFERS_BYTES // max(1, len(shards))))
        for number in shards:
            path = run.shard_path(number)
            written = NOTHING_WRITTEN if kept is None else kept.written(number)
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
        """Have what was written outlive this process; return what others can go on with."""
        return self._told({number: shard.flush() for number, shard in self.files.items()})

    def checkpoint(self) -> dict[int, Written]:
        """Have what was written outlive a power cut; return what others can go on with."""
        return self._told({number: shard.checkpoint() for number, shard in self.files.items()})

    def _told(self, written: dict[int, Written]) -> dict[int, Written]:
        return written if self._can_continue else dict.fromkeys(written, NOTHING_WRITTEN)

    def seal(self) -> dict[int, SealedShard]:
        """Seal every shard; return what each is, by number."""
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
    """Open what writes the records of one shard file.

    Args:
        storage: Where it lies.
        path: The file.
        packing: How it is compressed.
        on_flush: Told what was put into it.
        buffer_bytes: Frames of a plain shard are gathered up to this size.
        journal: Facts noted in it are written before any later frame; None where there are none.
        written: What an earlier attempt has left in the file.
        new: Whether there must be no such file.
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
