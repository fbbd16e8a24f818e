"""What a worker does: it is sent a job, then what to write, and tells what it has done.

==========  ========================================================================
to it       ``WRITE`` shards (strided: their items are listed here), or ``TAKE``
            shards and then ``ITEMS``, ... and ``END`` with T (dealt: they are sent);
            ``FINISH``
from it     ``TELL`` now and then, ``TYPES`` when a feature's type has widened,
            ``SKIPPED`` when an item gave an error, ``WRITTEN`` when shards are sealed,
            ``RESULT`` at the end; or ``FAILED``
==========  ========================================================================
"""

from __future__ import annotations

import gc
import json
import mmap
import pickle
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from shardwriter.errors import CallableError, RunError, ShardwriterError
from shardwriter.schema.record_stats import types_of
from shardwriter.schema.schema import FeatureSummary
from shardwriter.sources.source import Item
from shardwriter.storage.descriptor import Scratch
from shardwriter.writing.event_log import EventLog
from shardwriter.writing.failures import pack_failure
from shardwriter.writing.job import Job
from shardwriter.writing.messages import Channel
from shardwriter.writing.options import RunOptions
from shardwriter.writing.part import Done, PartWriter, num_moved
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.stages import Stopwatch
from shardwriter.writing.unparcel import unpack
from shardwriter.writing.worker import ItemSlot, Worker

WRITE: Final = 1
TAKE: Final = 2
ITEMS: Final = 3
END: Final = 4
FINISH: Final = 5
TELL: Final = 11
TYPES: Final = 12
WRITTEN: Final = 13
RESULT: Final = 14
FAILED: Final = 15
SKIPPED: Final = 16

INDEX: Final = struct.Struct("<Q")
"""In front of every item that is sent."""


@dataclass(frozen=True)
class Assignment:
    """What every worker of a pool is sent.

    Attributes:
        job: What to write.
        run: Where.
        kept: What earlier attempts have left.
        options: How.
        num_workers: How many they are.
        places: int64[num_workers] in shared memory: the item that each has at hand, -1 for none.
    """

    job: Job
    run: RunDirectory
    kept: Kept
    options: RunOptions
    num_workers: int
    places: Scratch


class _ProgramGone(BaseException):
    """The program has closed its socket: there is nobody to write for."""


@contextmanager
def mapped_places(places: Scratch, num_workers: int) -> Iterator[memoryview]:
    """Yield int64[num_workers], shared by all processes that have the file."""
    with (
        mmap.mmap(places.fileno(), 8 * num_workers) as shared,
        memoryview(shared) as whole,
        whole.cast("q") as view,
    ):
        yield view


def work(number: int, end: socket.socket, parcel: bytes, descriptors: Sequence[int]) -> None:
    """Do what the program asks for, until it says that all is done."""
    # Rows and records come and go by the million, without cycles: collect less often.
    gc.set_threshold(100_000, 20, 20)
    gc.enable()
    channel = Channel(end)
    # A program that is gone needs no answer; whoever looks after the workers ends this one.
    with suppress(_ProgramGone, OSError):
        try:
            assignment = _unpacked(parcel, descriptors)
            with (
                mapped_places(assignment.places, assignment.num_workers) as places,
                places[number : number + 1] as slot,
            ):
                _Worker(number, channel, assignment, slot).run()
        except _ProgramGone:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the program
            channel.send(FAILED, pack_failure(error))


def _unpacked(parcel: bytes, descriptors: Sequence[int]) -> Assignment:
    try:
        assignment = unpack(parcel, descriptors)
    except (Exception, SystemExit) as error:
        raise RunError(
            f"the source and the map can not be set up in a worker: {type(error).__name__}: "
            f"{error}",
            hint="what they use must be importable there; --engine serial runs them here",
        ) from error
    assert isinstance(assignment, Assignment)
    return assignment


class _Worker:
    def __init__(
        self, number: int, channel: Channel, assignment: Assignment, slot: ItemSlot
    ) -> None:
        self._number = number
        self._channel = channel
        self._job = assignment.job
        self._run = assignment.run
        self._kept = assignment.kept
        self._options = assignment.options
        self._num_workers = assignment.num_workers
        self._slot = slot
        self._watch = Stopwatch()
        self._num_items = 0
        self._log = EventLog(None, "")

    def run(self) -> None:
        """Take orders until the last one."""
        kept, options = self._kept, self._options
        with EventLog(options.log_dir, f"w{self._number}", first_step=kept.num_done) as self._log:
            self._take_orders()

    def _take_orders(self) -> None:
        job, kept, options = self._job, self._kept, self._options
        journal = self._run.journal(kept.attempt, self._number)
        items = job.encoder(
            kept,
            self._told_of(range(0)),
            self._watch,
            skip_errors=options.on_error == "skip",
            strict=options.strict,
        )
        part = PartWriter(
            job, self._run, kept, options, self._number, journal, items, self._watch, self
        )
        while True:
            kind, data = self._receive()
            if kind == FINISH:
                break
            shards = kept.unfinished(range(*json.loads(data)))
            items.worker = self._told_of(shards)
            if kind == WRITE:
                self._num_items = job.num_items or 0
                listed = job.items_of(shards, kept, num_moved(job, options))
            else:
                listed = self._sent_items()
            part.write(shards, listed, lambda: self._num_items)
            self._channel.send(WRITTEN)
        journal.close()
        self._log.finish(part.done.work())
        if self._log.failure is not None:
            part.done.notes.append(self._log.failure)
        self._channel.send(RESULT, pickle.dumps(part.done))

    def _told_of(self, shards: Sequence[int]) -> Worker:
        return self._job.worker(self._number, self._num_workers, shards, self._slot)

    def _receive(self) -> tuple[int, bytes]:
        with self._watch.aside("wait"):
            message = self._channel.receive()
        if message is None:
            raise _ProgramGone
        return message

    def _sent_items(self) -> Iterator[tuple[int, Item]]:
        while True:
            self._slot[0] = -1
            kind, data = self._receive()
            if kind == END:
                self._num_items = json.loads(data)
                return
            file = BytesIO(data)
            while head := file.read(INDEX.size):
                (index,) = INDEX.unpack(head)
                self._slot[0] = index
                yield index, _load(file, index)

    def tell(self, done: Done) -> None:
        """Say how far it is."""
        told = done.work()
        self._log.tell(told)
        # A program that is in the user's own iterator may not read for an hour.
        self._channel.offer(TELL, pickle.dumps(told))

    def tell_types(self, features: Mapping[str, FeatureSummary]) -> None:
        """Say which types have widened, so that workers can not disagree for long."""
        self._channel.send(TYPES, pickle.dumps(types_of(features)))

    def tell_error(self, error: ShardwriterError) -> None:
        """Say that an item gave an error, for the program to count."""
        self._channel.send(SKIPPED, pack_failure(error))


def _load(file: BytesIO, index: int) -> Any:
    try:
        return pickle.load(file)
    except ShardwriterError as error:
        raise error.locate(index=index) from error.__cause__
    except (Exception, SystemExit) as error:
        raise CallableError(
            f"the item can not be unpacked in a worker: {type(error).__name__}: {error}",
            index=index,
            hint="its class must be importable there; --engine serial sends nothing",
        ) from error
