"""A pool of worker processes, as the program sees it.

Everything that can happen (a message, a socket that takes more, a worker that ends, the template
that ends) is an event of one wait, so a dead worker is known at once, and no worker can hold the
program up. Leaving the pool's block ends all its processes, whatever has happened.
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

_STATUS_S: Final = 5.0  # how long to wait for how a worker ended, once its socket is closed
_SERIAL: Final = "--engine serial needs no other process"
# Only what is built in is imported before the program's own path is there.
_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[2:]
from shardwriter.writing import worker_process
worker_process.main(int(sys.argv[1]))
"""


@dataclass
class WorkerHandle:
    """A worker: how to talk to it, and how it ended."""

    number: int
    mailbox: Mailbox
    process: int = 0
    has_ended: bool = False
    status: int | None = None  # as waitpid gives it; None while it is not known

    @property
    def name(self) -> str:
        """What a person can look for: number and process."""
        return f"worker {self.number} (process {self.process})"


class Pool:
    """Processes that wait for work; see :func:`start_pool`.

    Attributes:
        workers: By number; none before :meth:`fork`.

    Raises:
        RunError: The template process can not be started.
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
            # A program without standard streams would give it the number of one of them.
            theirs = stack.enter_context(avoid_standard_streams(theirs))
            path = _module_path()
            root = str(Path(__file__).parents[2])
            if root not in path:
                path.append(root)
            # What the program's own command line says of Python (-O, -X utf8, -W, -I, ...).
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            command = [sys.executable, *flags, "-c", _PROGRAM, str(theirs.fileno()), *path]
            try:
                # A process of its own group: Ctrl-C reaches the program, which ends the others.
                self._template = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    # Several processes can share a GPU only if none takes all of its memory.
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

    def fork(self, num_workers: int, parcel: bytes, descriptors: Sequence[int]) -> None:
        """Have the workers made, and give each the parcel.

        Raises:
            RunError: They could not be started.
        """
        self._has_forked = True
        channel = Channel(self._control_socket)
        setup = {
            "argv": [str(argument) for argument in sys.argv],
            "environ": dict(os.environ),
            "folder": _folder(),
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
                channel.send(worker_process.PARCEL, parcel)
                started = channel.receive()
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has ended, and said why
            except OSError as error:
                reason = error.strerror or str(error)
        if started is None:
            code = None if reason else self._end_of_template()
            what = reason or f"the process that makes them: {describe_exit(code)[0]}"
            raise RunError(
                f"{num_workers} worker processes can not be started: {what}",
                hint=f"use fewer workers (-j), or raise the system's limits; {_SERIAL}"
                if reason
                else f"the reason stands above; {_SERIAL}",
            )
        self._control = Mailbox(self._control_socket)
        self._selector.register(self._control_socket, selectors.EVENT_READ, None)
        for worker, process in zip(self.workers, json.loads(started[1]), strict=True):
            worker.process = process
            self._selector.register(worker.mailbox.fileno(), selectors.EVENT_READ, worker)

    def events(self, timeout_s: float) -> Iterator[tuple[WorkerHandle, int, bytes]]:
        """Wait for something to happen, and yield the messages that have come.

        Afterwards ``has_ended`` is set for the workers that have ended; all they had to say was
        yielded before.

        Raises:
            WorkerDied: The template ended before they did.
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
                # A process that it has left behind may hold its socket open.
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
                    f"the process that looks after the workers is gone: {how}",
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
        """Return how the template ended, as ``waitpid`` gives it; what it looked after ends too."""
        try:
            code = self._template.wait(_STATUS_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._kill_group()
        return -code if code < 0 else code << 8

    def _kill_group(self) -> None:
        """End the template, the workers, and what they have started."""
        if not self._is_over:
            self._is_over = True  # from now on the number may become that of another process
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._template.pid, signal.SIGKILL)

    def close(self) -> None:
        """End all processes, and return when they have ended."""
        if os.getpid() != self._owner:
            return  # a fork of the program has nothing to end
        try:
            self._selector.close()
            if self._has_forked:
                self._have_it_end()
        finally:
            self._kill_group()
            self._template.wait()
            self._control_socket.close()
            for worker in self.workers:
                worker.mailbox.close()

    def _have_it_end(self) -> None:
        """Have the template end the workers, which it alone can wait for."""
        # Closing would not do: a process that the user's code has forked may hold it open.
        self._control_socket.setblocking(True)
        with contextlib.suppress(OSError):
            self._control_socket.shutdown(socket.SHUT_WR)
        stop = time.monotonic() + _STATUS_S
        while (left := stop - time.monotonic()) > 0:
            self._control_socket.settimeout(left)
            try:
                if not self._control_socket.recv(1 << 12):
                    return
            except OSError:  # it is gone, or it does not answer
                return


def _log_levels() -> dict[str, int]:
    """Return the levels of the loggers that the program has set one for."""
    known = logging.root.manager.loggerDict.items()
    loggers = {name: logger for name, logger in known if isinstance(logger, logging.Logger)}
    return {name: logger.level for name, logger in loggers.items() if logger.level}


def _folder() -> str | None:
    """Return the current folder; None where it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _module_path() -> list[str]:
    """Return ``sys.path`` as it is for a process that may stand in another folder."""
    here = _folder()
    # Python itself passes over what is no text.
    found = [folder or here for folder in sys.path if isinstance(folder, str)]
    return [folder for folder in found if folder is not None]


@contextlib.contextmanager
def start_pool() -> Iterator[Pool]:
    """Start the template process; it gets ready while the program goes on.

    Raises:
        RunError: There is no Python to start it with.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        # A program in one file is its own executable: it would start itself, again and again.
        raise RunError(
            "this program does not say which Python runs it, so none can be started", hint=_SERIAL
        )
    pool = Pool()
    try:
        yield pool
    finally:
        pool.close()
