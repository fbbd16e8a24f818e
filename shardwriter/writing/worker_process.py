"""The process that workers are made from, and that looks after them.

It is started fresh, by a command line of its own, imports what every worker needs, and has one
thread; so its forks are quick and safe, whatever the program that uses shardwriter has loaded, and
no worker imports that program. Who starts it can be a script without a main guard, a notebook, or
``python -c``.

It tells how every worker has ended. When the program goes away, however it dies, so do they::

    program  --control-->  template  --fork-->  worker 0, worker 1, ...
       |                                           |
       `------------- a socket to each ------------'

On the control socket the program sends SETUP (JSON) with descriptors and then PARCEL; the template
answers STARTED (JSON: the process ids) and ENDED (JSON: worker, wait status) for each.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import json
import logging
import mmap
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from shardwriter.errors import CallableError, RunError, ShardwriterError
from shardwriter.schema import FeatureSummary, types_of
from shardwriter.sources import Item
from shardwriter.storage import Scratch
from shardwriter.writing.event_log import EventLog
from shardwriter.writing.job import Job
from shardwriter.writing.messages import Channel, pack_failure, unpack
from shardwriter.writing.options import RunOptions
from shardwriter.writing.part import PartWriter, WorkerResult, num_frame_copies
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.stages import Stopwatch
from shardwriter.writing.worker import ItemSlot, Worker

# What a worker does: it is sent a job, then what to write, and tells what it has done.
#
# ==========  ========================================================================
# to it       ``WRITE`` shards (strided: their items are listed here), or ``TAKE``
#             shards and then ``ITEMS``, ... and ``END`` with T (dealt: they are sent);
#             ``FINISH``
# from it     ``TELL`` now and then, ``TYPES`` when a feature's type has widened,
#             ``SKIPPED`` when an item gave an error, ``WRITTEN`` when shards are sealed,
#             ``RESULT`` at the end; or ``FAILED``
# ==========  ========================================================================

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
    kept: ResumeState
    options: RunOptions
    num_workers: int
    places: Scratch


class _ProgramGone(BaseException):
    """The program has closed its socket: there is nobody to write for."""


@contextmanager
def map_slots(places: Scratch, num_workers: int) -> Iterator[memoryview]:
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
                map_slots(assignment.places, assignment.num_workers) as places,
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
                listed = job.items_of(shards, kept, num_frame_copies(job, options))
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

    def tell(self, done: WorkerResult) -> None:
        """Say how far it is."""
        told = done.work()
        self._log.tell(told)
        # A program that is in the user's own iterator may not read for an hour.
        self._channel.offer(TELL, pickle.dumps(told))

    def report_types(self, features: Mapping[str, FeatureSummary]) -> None:
        """Say which types have widened, so that workers can not disagree for long."""
        self._channel.send(TYPES, pickle.dumps(types_of(features)))

    def report_error(self, error: ShardwriterError) -> None:
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


SETUP: Final = 1
PARCEL: Final = 2
STARTED: Final = 3
ENDED: Final = 4

_LOOK_S: Final = 1.0  # how often to look whether the program lives
_PR_SET_PDEATHSIG: Final = 1


def main(control_descriptor: int) -> None:
    """Fork the workers that the program asks for, and stay until all have ended."""
    program = os.getppid()
    gc.disable()  # what is imported here stays; a worker turns it on again
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the program's own was inherited
    _open_standard_streams()
    control_socket = socket.socket(fileno=control_descriptor)
    control = Channel(control_socket)
    # Imported here, once: what is heavy must not be paid for by every worker.

    message = control.receive()
    if message is None:
        return
    setup = json.loads(message[1])
    num_workers = setup["num_workers"]
    try:
        sent = control.receive_descriptors(num_workers + setup["num_descriptors"])
    except EOFError:
        return
    parcel = control.receive()
    if parcel is None:
        return
    if b"cloudpickle" in parcel[1]:
        import cloudpickle  # noqa: F401
    _be_like_the_program(setup)
    ends, descriptors = sent[:num_workers], sent[num_workers:]
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    gc.freeze()  # or the collector of each worker would copy these pages
    end_with_parent = _find_end_with_parent()
    running: dict[int, int] = {}  # process id -> worker
    for worker, descriptor in enumerate(ends):
        process = _fork()
        if not process:
            end_with_parent()
            others = [control_socket, woken, waker]
            _become_worker(worker, ends, others, parcel[1], descriptors)
        running[process] = worker
        os.close(descriptor)
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # then the program is gone, which is noticed below
        control.send(STARTED, json.dumps(list(running)).encode())
    _look_after(control, control_socket, woken, running, program)


def _open_standard_streams() -> None:
    """Have what the user's code prints go to stderr: it is no result of the command.

    A program may run without some of these streams; then their numbers must not become those of
    other files.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number
    os.dup2(2, 1)
    # Whole lines, at once: what was printed last tells where a worker died.
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _be_like_the_program(setup: dict[str, Any]) -> None:
    sys.path[:] = setup["sys_path"]
    sys.argv[:] = setup["argv"]
    for name, level in setup["log_levels"].items():
        logging.getLogger(name).setLevel(level)
    default = os.environ["TF_FORCE_GPU_ALLOW_GROWTH"]
    os.environ.clear()
    os.environ.update({"TF_FORCE_GPU_ALLOW_GROWTH": default, **setup["environ"]})
    if setup["folder"] is not None:
        with contextlib.suppress(OSError):  # it may be gone; the program does not need it
            os.chdir(setup["folder"])


def _find_end_with_parent() -> Any:
    """Return a function that has a fork end with the process it came from.

    Should that one be killed together with the program, there is nobody else to end the workers.
    """
    parent = os.getpid()
    try:
        prctl = ctypes.CDLL(None).prctl  # Linux has it
    except (AttributeError, OSError):
        return lambda: None

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return end_with_parent


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of a fork beside threads; those that numerical libraries have for themselves
        # know what a fork is.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_worker(
    worker: int,
    ends: list[int],
    others: list[socket.socket],
    parcel: bytes,
    descriptors: list[int],
) -> None:
    """Be a worker; never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            other.close()
        for later in ends[worker + 1 :]:
            os.close(later)
        work(worker, socket.socket(fileno=ends[worker]), parcel, descriptors)
        code = 0
        # The user's own exit functions, as at the end of any program.
        atexit._run_exitfuncs()
    finally:
        # The rest of an interpreter's clean-up is for the process that was started, and not for a
        # fork of it. What a map has written to files of its own must not be lost, though.
        with contextlib.suppress(Exception):
            _flush_files()
        os._exit(code)


def _flush_files() -> None:
    """Flush every file that is open; first of all what goes to the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()  # what nobody refers to is closed
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase) and not found.closed:
            with contextlib.suppress(Exception):
                found.flush()


def _look_after(
    control: Channel,
    control_socket: socket.socket,
    woken: socket.socket,
    running: dict[int, int],
    program: int,
) -> None:
    """Tell how each worker ends; end them all when the program closes the control socket."""
    with selectors.DefaultSelector() as selector:
        selector.register(control_socket, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while running:
            ready = {key.fileobj for key, _ in selector.select(_LOOK_S)}
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
                _reap(control, running)
            # A process that the program has forked may hold its end of the socket open.
            if control_socket in ready or os.getppid() != program:
                break
    for process in running:
        os.kill(process, signal.SIGKILL)
    for process in running:
        os.waitpid(process, 0)
    # And what they have started: all of it is in the group that this process leads.
    os.killpg(0, signal.SIGKILL)


def _reap(control: Channel, running: dict[int, int]) -> None:
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        worker = running.pop(process)
        with contextlib.suppress(OSError):
            control.send(ENDED, json.dumps([worker, status]).encode())
