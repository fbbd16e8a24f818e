"""The pool of worker processes, on the program's side.

Every event (a message, a writable socket, the end of a worker or of the template) wakes one
``select``, so a dead worker is detected at once and no worker blocks the program. Leaving the
pool's block ends all its processes, in every case.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwriter.errors import RunError, WorkerDied
from shardwriter.writing import worker_process
from shardwriter.writing.messages import Channel, Mailbox, avoid_standard_streams, describe_exit

_STATUS_S: Final = 5.0  # to wait for the exit status of a worker whose socket is closed
_SERIAL: Final = "--engine serial starts no processes"
# Sets sys.path before anything but built-in modules is imported.
_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[2:]
from shardwriter.writing import worker_process
worker_process.main(int(sys.argv[1]))
"""


@dataclass
class WorkerHandle:
    """A worker process: its mailbox and its exit status."""

    number: int
    mailbox: Mailbox
    process: int = 0
    has_ended: bool = False
    status: int | None = None  # wait status; None while unknown

    @property
    def name(self) -> str:
        """Number and process id, for messages."""
        return f"worker {self.number} (process {self.process})"


class Pool:
    """A template process and its forks, the workers; use :func:`start_pool`.

    Attributes:
        workers: By number; empty before :meth:`fork`.

    Raises:
        RunError: The template process cannot be started.
    """

    def __init__(self) -> None:
        self.workers: list[WorkerHandle] = []
        self._owner = os.getpid()
        self._has_forked = False
        self._is_over = False
        self._control: Mailbox | None = None
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            # In a program without standard streams it could get the number of one.
            theirs = stack.enter_context(avoid_standard_streams(theirs))
            path = _module_path()
            root = str(Path(__file__).parents[2])
            if root not in path:
                path.append(root)
            # The interpreter options of this process (-O, -X utf8, -W, -I, ...).
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            command = [sys.executable, *flags, "-c", _PROGRAM, str(theirs.fileno()), *path]
            try:
                # In its own process group: Ctrl-C reaches only the program, which ends the rest.
                self._template = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    # Processes can share a GPU only if none takes all of its memory.
                    env={"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ},
                )
            except OSError as error:
                raise RunError(
                    f"worker processes can not be started: {error.strerror or error}", hint=_SERIAL
                ) from error
            theirs.close()
            stack.pop_all()
        self._control_socket = ours
        self._selector = selectors.DefaultSelector()

    def fork(self, num_workers: int, payload: bytes, descriptors: Sequence[int]) -> None:
        """Start the workers, and send each the setup.

        Args:
            num_workers: Number of workers.
            payload: The pickled setup.
            descriptors: Its open files.

        Raises:
            RunError: The workers cannot be started.
        """
        self._has_forked = True
        channel = Channel(self._control_socket)
        setup = {
            "argv": [str(argument) for argument in sys.argv],
            "environ": dict(os.environ),
            "folder": _current_folder(),
            "log_levels": _log_levels(),
            "num_descriptors": len(descriptors),
            "num_workers": num_workers,
            "sys_path": _module_path(),
        }
        started, reason = None, ""
        with contextlib.ExitStack() as theirs:
            ends = []
            try:
                for number in range(num_workers):
                    ours, end = socket.socketpair()
                    ends.append(theirs.enter_context(end).fileno())
                    self.workers.append(WorkerHandle(number, Mailbox(ours)))
                channel.send(worker_process.SETUP, json.dumps(setup).encode())
                channel.send_descriptors([*ends, *descriptors])
                channel.send(worker_process.WORKER_SETUP, payload)
                started = channel.receive()
            except (BrokenPipeError, ConnectionResetError):
                pass  # the template has ended, and printed why
            except OSError as error:
                reason = error.strerror or str(error)
        if started is None:
            code = None if reason else self._end_of_template()
            what = reason or f"their template process failed: {describe_exit(code)[0]}"
            raise RunError(
                f"{num_workers} worker processes can not be started: {what}",
                hint=f"use fewer workers (-j), or raise the system's limits; {_SERIAL}"
                if reason
                else f"see its error above; {_SERIAL}",
            )
        self._control = Mailbox(self._control_socket)
        self._selector.register(self._control_socket, selectors.EVENT_READ, None)
        for worker, process in zip(self.workers, json.loads(started[1]), strict=True):
            worker.process = process
            self._selector.register(worker.mailbox.fileno(), selectors.EVENT_READ, worker)

    def events(self, timeout_s: float) -> Iterator[tuple[WorkerHandle, int, bytes]]:
        """Wait for events, and yield the messages that have arrived: (worker, kind, data).

        Afterwards ``has_ended`` is set for workers that have ended; all their messages were
        yielded before.

        Raises:
            WorkerDied: The template has ended before the workers.
        """
        for worker in self.workers:
            wanted = selectors.EVENT_READ
            if worker.mailbox.pending_bytes:
                wanted |= selectors.EVENT_WRITE
            if not worker.mailbox.closed:
                self._selector.modify(worker.mailbox.fileno(), wanted, worker)
        for key, ready in self._selector.select(timeout_s):
            worker = key.data
            if worker is None:
                self._read_control()
                continue
            if ready & selectors.EVENT_WRITE:
                worker.mailbox.send()
            if ready & selectors.EVENT_READ:
                yield from self._read(worker)
        for worker in self.workers:
            if worker.status is not None and not worker.mailbox.closed:
                # A process that the worker started may still hold its socket open.
                yield from self._read(worker)
                self._drop(worker)
            if worker.mailbox.closed and not worker.has_ended:
                self._wait_for_status(worker)
                worker.has_ended = True

    def _read(self, worker: WorkerHandle) -> Iterator[tuple[WorkerHandle, int, bytes]]:
        number = worker.mailbox.fileno()
        for kind, data in worker.mailbox.messages():
            yield worker, kind, data
        if worker.mailbox.closed and number >= 0:
            self._drop(worker)

    def _drop(self, worker: WorkerHandle) -> None:
        if worker.mailbox.fileno() >= 0:
            self._selector.unregister(worker.mailbox.fileno())
            worker.mailbox.close()

    def _read_control(self) -> None:
        assert self._control is not None
        for _, data in self._control.messages():
            number, status = json.loads(data)
            self.workers[number].status = status
        if self._control.closed:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._control_socket)
            if any(worker.status is None for worker in self.workers):
                how, hint = describe_exit(self._end_of_template())
                raise WorkerDied(
                    f"the template process of the workers has ended: {how}",
                    hint=hint,
                    worker=f"process {self._template.pid}",
                )

    def _wait_for_status(self, worker: WorkerHandle) -> None:
        assert self._control is not None
        stop = time.monotonic() + _STATUS_S
        while worker.status is None and not self._control.closed and time.monotonic() < stop:
            with selectors.DefaultSelector() as selector:
                selector.register(self._control_socket, selectors.EVENT_READ)
                selector.select(max(0, stop - time.monotonic()))
            self._read_control()

    def _end_of_template(self) -> int | None:
        """Wait for the template to end, kill its group, and return its wait status."""
        try:
            code = self._template.wait(_STATUS_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._kill_group()
        return -code if code < 0 else code << 8

    def _kill_group(self) -> None:
        """Kill the template, the workers and what they have started."""
        if not self._is_over:
            self._is_over = True  # later the id may be reused by another process
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._template.pid, signal.SIGKILL)

    def close(self) -> None:
        """End all processes and wait for them."""
        if os.getpid() != self._owner:
            return  # in a fork of the program
        try:
            self._selector.close()
            if self._has_forked:
                self._stop_template()
        finally:
            self._kill_group()
            self._template.wait()
            self._control_socket.close()
            for worker in self.workers:
                worker.mailbox.close()

    def _stop_template(self) -> None:
        """Make the template end the workers, as only their parent can wait for them."""
        # Not close(), as a fork of the user's code may hold the socket open.
        self._control_socket.setblocking(True)
        with contextlib.suppress(OSError):
            self._control_socket.shutdown(socket.SHUT_WR)
        stop = time.monotonic() + _STATUS_S
        while (left := stop - time.monotonic()) > 0:
            self._control_socket.settimeout(left)
            try:
                if not self._control_socket.recv(1 << 12):
                    return
            except OSError:  # it has ended, or does not answer
                return


def _log_levels() -> dict[str, int]:
    """Return the level of every logger that has one set."""
    known = logging.root.manager.loggerDict.items()
    loggers = {name: logger for name, logger in known if isinstance(logger, logging.Logger)}
    return {name: logger.level for name, logger in loggers.items() if logger.level}


def _current_folder() -> str | None:
    """Return the current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _module_path() -> list[str]:
    """Return ``sys.path`` with absolute folders, for a process in another folder."""
    here = _current_folder()
    # Python ignores entries that are not str.
    found = [folder or here for folder in sys.path if isinstance(folder, str)]
    return [folder for folder in found if folder is not None]


@contextlib.contextmanager
def start_pool() -> Iterator[Pool]:
    """Start a pool; its template process gets ready in the background.

    Raises:
        RunError: There is no Python executable to start it with.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        # The executable of a frozen program is the program, which would start itself forever.
        raise RunError(
            "worker processes can not be started: this program has no Python executable",
            hint=_SERIAL,
        )
    pool = Pool()
    try:
        yield pool
    finally:
        pool.close()
