"""A pool of worker processes, as the program sees it.

Everything that can happen (a message, a socket that takes more, a worker that ends, the template
that ends) is an event of one wait, so a dead worker is known at once, and no worker can hold the
program up. Leaving the pool's block ends all its processes, whatever has happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from shardwriter.engines import template
from shardwriter.engines.channel import Channel, Mailbox
from shardwriter.errors import RunError

_STATUS_S: Final = 5.0  # how long to wait for how a worker ended, once its socket is closed
_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from shardwriter.engines import template
template.main(int(sys.argv[1]))
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
    """

    def __init__(self) -> None:
        self.workers: list[WorkerHandle] = []
        ours, theirs = socket.socketpair()
        self._control_socket = ours
        self._selector = selectors.DefaultSelector()
        self._control: Mailbox | None = None
        path = [folder or os.getcwd() for folder in sys.path]
        flags = ["-O"] * sys.flags.optimize + ["-X", "utf8"] * sys.flags.utf8_mode
        command = [sys.executable, *flags, "-c", _PROGRAM, str(theirs.fileno()), json.dumps(path)]
        # A process of its own group: Ctrl-C reaches the program, which ends the others.
        self._template = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            # Several processes can share a GPU only if none of them takes all of its memory.
            env={"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ},
        )
        theirs.close()

    def fork(self, num_workers: int, parcel: bytes, descriptors: Sequence[int]) -> None:
        """Have the workers made, and give each the parcel.

        Raises:
            RunError: The template process could not start.
        """
        channel = Channel(self._control_socket)
        pairs = [socket.socketpair() for _ in range(num_workers)]
        setup = {
            "argv": sys.argv,
            "folder": os.getcwd(),
            "num_descriptors": len(descriptors),
            "num_workers": num_workers,
            "sys_path": [folder or os.getcwd() for folder in sys.path],
        }
        try:
            channel.send(template.SETUP, json.dumps(setup).encode())
            channel.send_descriptors([theirs.fileno() for _, theirs in pairs] + [*descriptors])
            channel.send(template.PARCEL, parcel)
            started = channel.receive()
        except OSError:
            started = None
        for _, theirs in pairs:
            theirs.close()
        self.workers = [WorkerHandle(n, Mailbox(ours)) for n, (ours, _) in enumerate(pairs)]
        if started is None:
            raise RunError(
                f"worker processes can not be started (exit code {self._template.wait()})",
                hint="the reason stands above; --engine serial needs none",
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
                for kind, data in worker.mailbox.messages():
                    yield worker, kind, data
                if worker.mailbox.closed:
                    self._selector.unregister(worker.mailbox.fileno())
                    worker.mailbox.close()
        for worker in self.workers:
            if worker.status is not None and not worker.mailbox.closed:
                # A process that it has left behind may hold its socket open.
                yield from ((worker, kind, data) for kind, data in worker.mailbox.messages())
                if not worker.mailbox.closed:
                    self._selector.unregister(worker.mailbox.fileno())
                    worker.mailbox.close()
            if worker.mailbox.closed and not worker.has_ended:
                self._wait_for_status(worker)
                worker.has_ended = True

    def _read_control(self) -> None:
        assert self._control is not None
        for _, data in self._control.messages():
            number, status = json.loads(data)
            self.workers[number].status = status
        if self._control.closed:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._control_socket)
            if self._template.poll() != 0:
                self._kill_group()  # somebody killed the template: its workers are nobody's

    def _wait_for_status(self, worker: WorkerHandle) -> None:
        assert self._control is not None
        stop = time.monotonic() + _STATUS_S
        while worker.status is None and not self._control.closed and time.monotonic() < stop:
            with selectors.DefaultSelector() as selector:
                selector.register(self._control_socket, selectors.EVENT_READ)
                selector.select(stop - time.monotonic())
            self._read_control()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._template.pid, signal.SIGKILL)

    def close(self) -> None:
        """End all processes, and return when they have ended."""
        self._selector.close()
        self._control_socket.close()  # what the template waits for, whatever it does
        for worker in self.workers:
            worker.mailbox.close()
        try:
            self._template.wait(_STATUS_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self._template.returncode is None:
                self._kill_group()
                self._template.wait()


@contextlib.contextmanager
def start_pool() -> Iterator[Pool]:
    """Start the template process; it gets ready while the program goes on.

    Raises:
        RunError: There is no Python to start it with.
    """
    if not sys.executable:
        raise RunError(
            "this program does not say which Python runs it, so none can be started",
            hint="--engine serial needs no other process",
        )
    pool = Pool()
    try:
        yield pool
    finally:
        pool.close()
