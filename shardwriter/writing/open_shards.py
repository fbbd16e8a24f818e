"""Shards that grow side by side in a run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from contextlib2 import ExitStack

from shardwriter.dataset.manifest import SealedShard
from shardwriter.formats.compressed_writer import CompressedWriter
from shardwriter.formats.packing import PLAIN, Packing
from shardwriter.formats.tfrecord import NOTHING_WRITTEN, TFRecordWriter, Written
from shardwriter.storage.protocol import GrowingFile, Storage
from shardwriter.writing.journal import Journal, JournaledFile
from shardwriter.writing.options import Backend
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.shard import OnFlush, RecordWriter, ShardFile

_MAX_BUFFER_BYTES: Final = 1 << 18
_ALL_BUFFERS_BYTES: Final = 32 << 20


class GrowingShards:
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
        kept: Kept | None = None,
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
                from shardwriter.storage.tensorflow import TensorFlowRecordWriter

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
    file: GrowingFile
    if written.num_pieces:
        file = storage.append(path, written.file_bytes)
    else:
        file = storage.create(path, new=new)
    if journal is not None:
        file = JournaledFile(file, journal)
    if not packing.is_plain:
        return CompressedWriter(file, packing, on_flush=on_flush, written=written)
    return TFRecordWriter(file, buffer_bytes=buffer_bytes, on_flush=on_flush, written=written)
