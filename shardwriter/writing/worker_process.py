"""The template process, which forks the worker processes, and what a worker does.

The template is a fresh Python process with one thread. It imports what every worker needs, so its
forks are fast and safe, whatever the program has loaded, and no worker imports the program's main
module: a script needs no main guard, and a notebook or ``python -c`` works too. The template
reports how every worker ends. When the program ends, however it dies, all these processes end too::

    program  --control-->  template  --fork-->  worker 0, worker 1, ...
       |                                           |
       `------------- a socket to each ------------'

On the control socket the program sends SETUP (JSON) with descriptors, then WORKER_SETUP (pickled).
The template replies STARTED (JSON: process ids), then ENDED (JSON: worker, wait status) for each
worker.

On a worker's socket:

=============  ================================================================================
to the worker  ``WRITE`` with shards whose items the worker lists itself (strided);
               or ``STREAM`` with shards, then ``ITEMS`` ..., then ``END`` with T (streamed);
               ``FINISH`` at the end
from it        ``PROGRESS`` now and then; ``TYPES`` when a feature's type has widened;
               ``SKIPPED`` when an item failed; ``WRITTEN`` when the shards are sealed;
               ``RESULT`` at the end; or ``FAILED``
=============  ================================================================================
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
from shardwriter.writing.stages import StageTimer
from shardwriter.writing.worker import ItemSlot, Worker

# On the control socket.
SETUP: Final = 1
WORKER_SETUP: Final = 2
STARTED: Final = 3
ENDED: Final = 4

# On a worker's socket.
WRITE: Final = 1
STREAM: Final = 2
ITEMS: Final = 3
END: Final = 4
FINISH: Final = 5
PROGRESS: Final = 11
TYPES: Final = 12
WRITTEN: Final = 13
RESULT: Final = 14
FAILED: Final = 15
SKIPPED: Final = 16

INDEX: Final = struct.Struct("<Q")
"""Precedes every item that is sent: its index."""

_CHECK_S: Final = 1.0  # how often to check whether the program is alive
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class WorkerSetup:
    """The message that every worker of a pool gets first.

    Attributes:
        job: What to write.
        run: The run directory.
        resume_state: What earlier attempts have written.
        options: Options that do not change bytes.
        num_workers: Number of workers.
        slots: int64[num_workers] in shared memory: each worker's current item, -1 for none.
    """

    job: Job
    run: RunDirectory
    resume_state: ResumeState
    options: RunOptions
    num_workers: int
    slots: Scratch


class _ProgramExited(BaseException):
    """The program has closed its socket."""


@contextmanager
def map_slots(slots: Scratch, num_workers: int) -> Iterator[memoryview]:
    """Yield int64[num_workers], shared by all processes that have the file open."""
    with (
        mmap.mmap(slots.fileno(), 8 * num_workers) as shared,
        memoryview(shared) as whole,
        whole.cast("q") as view,
    ):
        yield view


def run_worker(number: int, end: socket.socket, payload: bytes, descriptors: Sequence[int]) -> None:
    """Run one worker until the program sends FINISH."""
    # Millions of rows and records without cycles: collect garbage less often.
    gc.set_threshold(100_000, 20, 20)
    gc.enable()
    channel = Channel(end)
    # If the program has exited there is no one to report to; the template ends this process.
    with suppress(_ProgramExited, OSError):
        try:
            setup = _unpacked(payload, descriptors)
            with (
                map_slots(setup.slots, setup.num_workers) as slots,
                slots[number : number + 1] as slot,
            ):
                _Worker(number, channel, setup, slot).run()
        except _ProgramExited:
            raise
        except BaseException as error:  # noqa: BLE001 - the program raises it
            channel.send(FAILED, pack_failure(error))


def _unpacked(payload: bytes, descriptors: Sequence[int]) -> WorkerSetup:
    try:
        setup = unpack(payload, descriptors)
    except (Exception, SystemExit) as error:
        raise RunError(
            f"the source and the map can not be set up in a worker: {type(error).__name__}: "
            f"{error}",
            hint="what they use must be importable in a worker; or --engine serial",
        ) from error
    assert isinstance(setup, WorkerSetup)
    return setup


class _Worker:
    def __init__(self, number: int, channel: Channel, setup: WorkerSetup, slot: ItemSlot) -> None:
        self._number = number
        self._channel = channel
        self._job = setup.job
        self._run = setup.run
        self._resume_state = setup.resume_state
        self._options = setup.options
        self._num_workers = setup.num_workers
        self._slot = slot
        self._timer = StageTimer()
        self._num_items = 0
        self._log = EventLog(None, "")

    def run(self) -> None:
        """Write all assigned shards and send the result."""
        step, name = self._resume_state.num_done, f"w{self._number}"
        with EventLog(self._options.log_dir, name, first_step=step) as self._log:
            self._write_groups()

    def _write_groups(self) -> None:
        job, resume_state, options = self._job, self._resume_state, self._options
        journal = self._run.journal(resume_state.attempt, self._number)
        items = job.encoder(
            resume_state,
            self._worker_of(range(0)),
            self._timer,
            skip_errors=options.on_error == "skip",
            strict=options.strict,
        )
        part = PartWriter(
            job, self._run, resume_state, options, self._number, journal, items, self._timer, self
        )
        while True:
            kind, data = self._receive()
            if kind == FINISH:
                break
            shards = resume_state.unfinished(range(*json.loads(data)))
            items.worker = self._worker_of(shards)
            if kind == WRITE:
                self._num_items = job.num_items or 0
                listed = job.items_of(shards, resume_state, num_frame_copies(job, options))
            else:
                listed = self._sent_items()
            part.write(shards, listed, lambda: self._num_items)
            self._channel.send(WRITTEN)
        journal.close()
        self._log.finish(part.done.work())
        if self._log.failure is not None:
            part.done.notes.append(self._log.failure)
        self._channel.send(RESULT, pickle.dumps(part.done))

    def _worker_of(self, shards: Sequence[int]) -> Worker:
        return self._job.worker(self._number, self._num_workers, shards, self._slot)

    def _receive(self) -> tuple[int, bytes]:
        with self._timer.aside("wait"):
            message = self._channel.receive()
        if message is None:
            raise _ProgramExited
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

    def report_progress(self, done: WorkerResult) -> None:
        """Send the progress to the program, and write it to the event log."""
        work = done.work()
        self._log.report(work)
        # Never block here: the program may be in the user's iterator for an hour.
        self._channel.offer(PROGRESS, pickle.dumps(work))

    def report_types(self, features: Mapping[str, FeatureSummary]) -> None:
        """Send widened types, so that the program finds conflicts between workers early."""
        self._channel.send(TYPES, pickle.dumps(types_of(features)))

    def report_error(self, error: ShardwriterError) -> None:
        """Send the error of a skipped item, for the program to count."""
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
            hint="its class must be importable in a worker; or --engine serial",
        ) from error


# -- the template ----------------------------------------------------------------------------------


def main(control_descriptor: int) -> None:
    """Fork the workers that the program asks for; return when all have ended."""
    program = os.getppid()
    gc.disable()  # imports are never freed; a worker enables it again
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # not the inherited mask
    _open_standard_streams()
    control_socket = socket.socket(fileno=control_descriptor)
    control = Channel(control_socket)
    message = control.receive()
    if message is None:
        return
    setup = json.loads(message[1])
    num_workers = setup["num_workers"]
    try:
        sent = control.receive_descriptors(num_workers + setup["num_descriptors"])
    except EOFError:
        return
    payload = control.receive()
    if payload is None:
        return
    if b"cloudpickle" in payload[1]:
        import cloudpickle  # noqa: F401
    _copy_program_state(setup)
    ends, descriptors = sent[:num_workers], sent[num_workers:]
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    gc.freeze()  # keeps each worker's collector from touching, and so copying, these pages
    end_with_parent = _parent_death_signal()
    running: dict[int, int] = {}  # process id -> worker
    for worker, descriptor in enumerate(ends):
        process = _fork()
        if not process:
            end_with_parent()
            others = [control_socket, woken, waker]
            _run_worker(worker, ends, others, payload[1], descriptors)
        running[process] = worker
        os.close(descriptor)
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # the program has exited, which _supervise notices
        control.send(STARTED, json.dumps(list(running)).encode())
    _supervise(control, control_socket, woken, running, program)


def _open_standard_streams() -> None:
    """Redirect stdout to stderr, as what the user's code prints is no output of the command.

    Opens missing standard streams, so that other files cannot get their descriptors.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number
    os.dup2(2, 1)
    # Line-buffered: the last line printed helps to find where a worker died.
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _copy_program_state(setup: dict[str, Any]) -> None:
    """Set ``sys.path``, ``sys.argv``, log levels, environment and folder as in the program."""
    sys.path[:] = setup["sys_path"]
    sys.argv[:] = setup["argv"]
    for name, level in setup["log_levels"].items():
        logging.getLogger(name).setLevel(level)
    default = os.environ["TF_FORCE_GPU_ALLOW_GROWTH"]
    os.environ.clear()
    os.environ.update({"TF_FORCE_GPU_ALLOW_GROWTH": default, **setup["environ"]})
    if setup["folder"] is not None:
        with contextlib.suppress(OSError):  # it may have been deleted
            os.chdir(setup["folder"])


def _parent_death_signal() -> Any:
    """Return a function for a fork, which makes the kernel kill it when the template ends.

    If the template is killed together with the program, nothing else would end the workers.
    """
    parent = os.getpid()
    try:
        prctl = ctypes.CDLL(None).prctl  # Linux only
    except (AttributeError, OSError):
        return lambda: None

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return end_with_parent


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of forks in processes with threads; numerical libraries handle a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_worker(
    worker: int,
    ends: list[int],
    others: list[socket.socket],
    payload: bytes,
    descriptors: list[int],
) -> None:
    """Run a worker in this fork, and exit."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            other.close()
        for later in ends[worker + 1 :]:
            os.close(later)
        run_worker(worker, socket.socket(fileno=ends[worker]), payload, descriptors)
        code = 0
        # Exit functions that the user's code registered.
        atexit._run_exitfuncs()
    finally:
        # A fork must skip the interpreter's own clean-up, but not lose what a map has written to
        # its files.
        with contextlib.suppress(Exception):
            _flush_files()
        os._exit(code)


def _flush_files() -> None:
    """Flush all open files, standard streams first."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()  # closes unreferenced files
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase) and not found.closed:
            with contextlib.suppress(Exception):
                found.flush()


def _supervise(
    control: Channel,
    control_socket: socket.socket,
    woken: socket.socket,
    running: dict[int, int],
    program: int,
) -> None:
    """Report how each worker ends; kill all when the program closes the control socket or exits."""
    with selectors.DefaultSelector() as selector:
        selector.register(control_socket, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while running:
            ready = {key.fileobj for key, _ in selector.select(_CHECK_S)}
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
                _reap(control, running)
            # The parent is checked too, as a fork of the program may hold the socket open.
            if control_socket in ready or os.getppid() != program:
                break
    for process in running:
        os.kill(process, signal.SIGKILL)
    for process in running:
        os.waitpid(process, 0)
    # Kills this process too, and all that the workers have started: they share its group.
    os.killpg(0, signal.SIGKILL)


def _reap(control: Channel, running: dict[int, int]) -> None:
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        worker = running.pop(process)
        with contextlib.suppress(OSError):
            control.send(ENDED, json.dumps([worker, status]).encode())
