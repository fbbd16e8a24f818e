"""A part of a dataset: some of its shards, written by one process that keeps one journal.

The serial engine has one part with all N shards; a process pool has one for each worker or more.
Parts know nothing of each other, and together they give what one part would have given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from contextlib2 import ExitStack

from shardwriter.compressed_writer import CompressedWriter
from shardwriter.encode import ItemEncoder, RecordEncoder
from shardwriter.engines import Outcome, Work
from shardwriter.errors import RecordTooLarge
from shardwriter.job import Job
from shardwriter.journal import Journal, JournaledFile
from shardwriter.labels import LabelCounts
from shardwriter.manifest import SealedShard
from shardwriter.options import Backend
from shardwriter.packing import PLAIN, Packing
from shardwriter.rundir import RunDirectory
from shardwriter.schema import FeatureSummary
from shardwriter.shard import OnFlush, RecordWriter, ShardFile
from shardwriter.sources import Item
from shardwriter.stages import Stopwatch
from shardwriter.tfrecord import TFRecordWriter

CHECKPOINT_BYTES: Final = 256 << 20
REPORT_S: Final = 0.1
_MAX_BUFFER_BYTES: Final = 1 << 18
_ALL_BUFFERS_BYTES: Final = 32 << 20


class GrowingShards:
    """Open shards of a run, with the journal that is ahead of them.

    Those not sealed are abandoned with the stack.

    Args:
        stack: Closes them.
        run: Where they grow.
        journal: Facts noted in it are written before any later frame.
        shards: Their numbers.
        packing: How they are compressed.
        backend: Whose record writers to open.

    Attributes:
        files: By number.
    """

    def __init__(
        self,
        stack: ExitStack,
        run: RunDirectory,
        journal: Journal,
        shards: Sequence[int],
        packing: Packing = PLAIN,
        backend: Backend = "native",
    ) -> None:
        self.journal = journal
        self.files: dict[int, ShardFile] = {}
        # Buffers are bounded all together, however many shards there are.
        buffer_bytes = max(4096, min(_MAX_BUFFER_BYTES, _ALL_BUFFERS_BYTES // len(shards)))
        for number in shards:
            path = run.shard_path(number)
            if backend == "tensorflow":
                from shardwriter.storage.tensorflow import TensorFlowRecordWriter

                open_writer: Callable[[OnFlush], RecordWriter] = partial(
                    TensorFlowRecordWriter, path
                )
            else:
                open_writer = partial(_open_native, run, journal, path, buffer_bytes, packing)
            shard = ShardFile(
                run.storage,
                path,
                run.index_path(number),
                open_writer,
                compressed=not packing.is_plain,
            )
            self.files[number] = stack.enter_context(shard)

    def checkpoint(self, encoder: RecordEncoder) -> None:
        """Bring all shards to the disk, then note how much is safe."""
        self._note_learnt(encoder)
        for number, shard in self.files.items():
            safe = shard.checkpoint()
            self.journal.fact(
                checkpoint=number,
                records=safe.num_records,
                bytes=safe.file_bytes,
                crc32c=f"{safe.crc32c:08x}",
            )
        self.journal.sync()

    def seal(self, encoder: RecordEncoder, num_items: int) -> dict[int, SealedShard]:
        """Seal every shard; return what each is, by number."""
        self.journal.fact(items=num_items)
        self._note_learnt(encoder)
        self.journal.flush()
        sealed = {}
        for number, shard in self.files.items():
            done = sealed[number] = shard.seal()
            self.journal.fact(
                sealed=number,
                records=done.num_records,
                bytes=done.file_bytes,
                payload_bytes=done.payload_bytes,
                crc32c=f"{done.crc32c:08x}",
            )
        self.journal.sync()
        return sealed

    def _note_learnt(self, encoder: RecordEncoder) -> None:
        self.journal.fact(schema=encoder.schema.to_json()["features"])
        self.journal.fact(labels=encoder.labels.to_json())


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


def note_types(journal: Journal, features: Mapping[str, FeatureSummary]) -> None:
    """Note features whose type has widened."""
    journal.fact(schema={name: feature.to_json() for name, feature in features.items()})


@dataclass
class Done:
    """What one process has done, and learnt from its records.

    Attributes:
        features: The schema of its records.
        labels: The labels of its records.
        sealed: The shards that it finished, by number.
        gaps: Items without a record.
        num_items: Items that it went through.
        payload_bytes: Bytes of its records.
        seconds: Time by stage.
    """

    features: dict[str, FeatureSummary]
    labels: LabelCounts
    sealed: dict[int, SealedShard] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)
    num_items: int = 0
    payload_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class PartWriter:
    """Writes parts of a job, one after the other.

    Args:
        job: What to write.
        run: Where.
        journal: Of this process.
        encoder: Makes the records.
        watch: The clock that the encoder has too.
        tell: Called now and then, and told what was done so far.
        tell_types: Told of the features whose type has widened.

    Attributes:
        done: What was done so far, of all parts together.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        journal: Journal,
        encoder: ItemEncoder,
        watch: Stopwatch,
        tell: Callable[[Done], None],
        tell_types: Callable[[Mapping[str, FeatureSummary]], None] | None = None,
    ) -> None:
        self._num_shards = job.num_shards
        self._packing = job.packing
        self._run = run
        self._journal = journal
        self._items = encoder
        self._watch = watch
        self._tell = tell
        self._next_report = time.monotonic() + REPORT_S
        learnt = encoder.encoder

        def on_widen(features: Mapping[str, FeatureSummary]) -> None:
            note_types(journal, features)
            if tell_types is not None:
                tell_types(features)

        learnt.schema.on_widen = on_widen
        self.done = Done(learnt.schema.features, learnt.labels, seconds=watch.seconds)

    def write(
        self,
        shards: Sequence[int],
        items: Iterable[tuple[int, Item]],
        num_items: Callable[[], int],
        backend: Backend = "native",
    ) -> None:
        """Write all records of some shards, and seal them.

        Args:
            shards: Their numbers.
            items: Index and descriptor of all their items, in order of index.
            num_items: Tells T, when the items have come to their end.
            backend: Whose record writers to open.

        Raises:
            ShardwriterError: An item is at fault, or the disk; nothing more is written.
        """
        done, num_shards, watch = self.done, self._num_shards, self._watch
        learnt, journal = self._items.encoder, self._journal
        since_checkpoint = 0
        with ExitStack() as stack:
            growing = GrowingShards(stack, self._run, journal, shards, self._packing, backend)
            files = growing.files
            try:
                for item_index, record in self._items.records(items):
                    done.num_items += 1
                    if record is None:
                        done.gaps.append(item_index)
                        journal.fact(skip=item_index, reason="dropped")
                    else:
                        files[item_index % num_shards].write(record)
                        size = len(record)
                        done.payload_bytes += size
                        since_checkpoint += size
                        if since_checkpoint >= CHECKPOINT_BYTES:
                            self._items.leave()
                            with watch.aside("sync"):
                                growing.checkpoint(learnt)
                            since_checkpoint = 0
                    if (now := time.monotonic()) >= self._next_report:
                        self._tell(done)
                        self._next_report = now + REPORT_S
            except RecordTooLarge as error:
                raise error.locate(index=item_index) from None
            self._items.leave()
            with watch.aside("sync"):
                done.sealed |= growing.seal(learnt, num_items())
        self._tell(done)


def gather(
    learnt: RecordEncoder,
    parts: Iterable[Done],
    num_items: int,
    seconds: Mapping[str, float] | None = None,
) -> Outcome:
    """Put together what all processes have done.

    Args:
        learnt: What was known before; gets what the parts have learnt.
        parts: Of every process.
        num_items: T.
        seconds: Time by stage that is in no part.

    Raises:
        SchemaConflict: Two processes have seen a feature with types that do not go together.
    """
    sealed: dict[int, SealedShard] = {}
    gaps: list[int] = []
    payload_bytes = 0
    watch = Stopwatch()
    watch.add(seconds or {})
    for part in parts:
        learnt.merge(part.features, part.labels)
        sealed |= part.sealed
        gaps += part.gaps
        payload_bytes += part.payload_bytes
        watch.add(part.seconds)
    labels = learnt.labels
    notes = []
    if labels.too_many:
        notes.append(f"{labels.feature!r} has too many values to count as a label")
    return Outcome(
        [sealed[number] for number in sorted(sealed)],
        num_items,
        sorted(gaps),
        learnt.schema.to_json(),
        labels.to_json(),
        labels.is_sorted,
        notes,
        Work(num_items, num_items, payload_bytes, len(gaps), watch.seconds),
    )
