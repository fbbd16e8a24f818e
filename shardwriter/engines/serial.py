"""The serial engine: the reference that every other engine is held against.

It opens N record writers in a ``contextlib2.ExitStack`` and deals the records round-robin::

    items -> load -> map -> encode -> writers[i mod N]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from contextlib2 import ExitStack

from shardwriter.compressed_writer import CompressedWriter
from shardwriter.encode import RecordEncoder
from shardwriter.engines import Outcome, Progress
from shardwriter.errors import RecordTooLarge
from shardwriter.job import Job
from shardwriter.journal import Journal, JournaledFile
from shardwriter.options import Backend
from shardwriter.packing import PLAIN, Packing
from shardwriter.rundir import RunDirectory
from shardwriter.shard import OnFlush, RecordWriter, ShardFile
from shardwriter.tfrecord import TFRecordWriter

CHECKPOINT_BYTES: Final = 256 << 20
_PROGRESS_S: Final = 0.1
_MAX_BUFFER_BYTES: Final = 1 << 18
_ALL_BUFFERS_BYTES: Final = 32 << 20


def open_shards(
    stack: ExitStack,
    run: RunDirectory,
    journal: Journal,
    num_shards: int,
    backend: Backend = "native",
    packing: Packing = PLAIN,
) -> list[ShardFile]:
    """Open N growing shards in the run directory; those not sealed are abandoned with the stack.

    Facts that were noted in the journal are written before any later frame.
    """
    # Buffers are bounded all together, however many shards there are.
    buffer_bytes = max(4096, min(_MAX_BUFFER_BYTES, _ALL_BUFFERS_BYTES // num_shards))
    shards = []
    for number in range(num_shards):
        path = run.shard_path(number)
        if backend == "tensorflow":
            from shardwriter.storage.tensorflow import TensorFlowRecordWriter

            open_writer: Callable[[OnFlush], RecordWriter] = partial(TensorFlowRecordWriter, path)
        else:
            open_writer = partial(_open_native, run, journal, path, buffer_bytes, packing)
        index_path, compressed = run.index_path(number), not packing.is_plain
        shard = ShardFile(run.storage, path, index_path, open_writer, compressed=compressed)
        shards.append(stack.enter_context(shard))
    return shards


def _open_native(
    run: RunDirectory,
    journal: Journal,
    path: str,
    buffer_bytes: int,
    packing: Packing,
    on_flush: OnFlush,
) -> RecordWriter:
    file = JournaledFile(run.storage.create(path), journal)
    if not packing.is_plain:
        return CompressedWriter(file, packing, on_flush=on_flush)
    return TFRecordWriter(file, buffer_bytes=buffer_bytes, on_flush=on_flush)


def run_serial(
    job: Job,
    run: RunDirectory,
    *,
    backend: Backend = "native",
    progress: Progress | None = None,
) -> Outcome:
    """Write all shards of a job in this process.

    Args:
        job: What to write.
        run: A run directory that has begun.
        backend: Whose record writers to open.
        progress: Told of the work done.
    """
    num_shards = job.num_shards
    items = job.encoder()
    gaps: list[int] = []
    item_index = -1
    total_bytes = since_checkpoint = 0
    next_report = time.monotonic() + _PROGRESS_S
    with ExitStack() as stack:
        journal = run.journal(attempt=0, worker=0)
        stack.callback(journal.close)
        items.encoder.schema.on_widen = lambda features: journal.fact(schema=features)
        shards = open_shards(stack, run, journal, num_shards, backend, job.packing)
        try:
            for item_index, record in items.records(job.items()):
                if record is None:
                    gaps.append(item_index)
                    journal.fact(skip=item_index, reason="dropped")
                    continue
                shards[item_index % num_shards].write(record)
                total_bytes += len(record)
                since_checkpoint += len(record)
                if since_checkpoint >= CHECKPOINT_BYTES:
                    checkpoint(shards, journal, items.encoder)
                    since_checkpoint = 0
                if progress is not None and (now := time.monotonic()) >= next_report:
                    progress(item_index + 1, job.num_items, total_bytes)
                    next_report = now + _PROGRESS_S
        except RecordTooLarge as error:
            raise error.locate(index=item_index) from None
        num_items = item_index + 1
        outcome = seal_all(shards, journal, items.encoder, num_items, gaps)
    if progress is not None:
        progress(num_items, num_items, total_bytes)
    return outcome


def checkpoint(shards: list[ShardFile], journal: Journal, encoder: RecordEncoder) -> None:
    """Bring all shards to the disk, then note how much is safe."""
    journal.fact(schema=encoder.schema.to_json()["features"])
    journal.fact(labels=encoder.labels.to_json())
    for number, shard in enumerate(shards):
        safe = shard.checkpoint()
        journal.fact(
            checkpoint=number,
            records=safe.num_records,
            bytes=safe.file_bytes,
            crc32c=f"{safe.crc32c:08x}",
        )
    journal.sync()


def seal_all(
    shards: list[ShardFile],
    journal: Journal,
    encoder: RecordEncoder,
    num_items: int,
    gaps: list[int],
) -> Outcome:
    """Seal every shard and say what was made."""
    schema, labels = encoder.schema.to_json(), encoder.labels.to_json()
    journal.fact(items=num_items)
    journal.fact(schema=schema["features"])
    journal.fact(labels=labels)
    journal.flush()
    sealed = []
    for number, shard in enumerate(shards):
        done = shard.seal()
        sealed.append(done)
        journal.fact(
            sealed=number,
            records=done.num_records,
            bytes=done.file_bytes,
            payload_bytes=done.payload_bytes,
            crc32c=f"{done.crc32c:08x}",
        )
    journal.sync()
    notes = []
    if encoder.labels.too_many:
        notes.append(f"{encoder.labels.feature!r} has too many values to count as a label")
    return Outcome(sealed, num_items, gaps, schema, labels, encoder.labels.is_sorted, notes)
