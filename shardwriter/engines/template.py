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

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from typing import Any, Final

from shardwriter.engines.channel import Channel

SETUP: Final = 1
PARCEL: Final = 2
STARTED: Final = 3
ENDED: Final = 4


def main(control_descriptor: int) -> None:
    """Fork the workers that the program asks for, and stay until all have ended."""
    control_socket = socket.socket(fileno=control_descriptor)
    control = Channel(control_socket)
    # What the user's code prints is no result of the command.
    os.dup2(2, 1)
    # Imported here, once: what is heavy must not be paid for by every worker.
    import cloudpickle  # noqa: F401

    from shardwriter.engines import tasks

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
    sys.path[:] = setup["sys_path"]
    sys.argv[:] = setup["argv"]
    with contextlib.suppress(OSError):  # the folder may be gone; the program does not need it
        os.chdir(setup["folder"])
    ends, descriptors = sent[:num_workers], sent[num_workers:]
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()  # or the collector of each worker would copy these pages
    running: dict[int, int] = {}  # process id -> worker
    for worker, descriptor in enumerate(ends):
        with warnings.catch_warnings():
            # Python warns of a fork beside threads; those that numerical libraries have for
            # themselves know what a fork is.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if not process:
            _become_worker(tasks, worker, ends, [control_socket, woken, waker], parcel, descriptors)
        running[process] = worker
        os.close(descriptor)
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # then the program is gone, which is noticed below
        control.send(STARTED, json.dumps(list(running)).encode())
    _look_after(control, control_socket, woken, running)


def _become_worker(
    tasks: Any,
    worker: int,
    ends: list[int],
    others: list[socket.socket],
    parcel: tuple[int, bytes],
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
        tasks.work(worker, socket.socket(fileno=ends[worker]), parcel[1], descriptors)
        code = 0
    finally:
        # The clean-up of an interpreter is for the process that was started, and not for a fork.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _look_after(
    control: Channel, control_socket: socket.socket, woken: socket.socket, running: dict[int, int]
) -> None:
    """Tell how each worker ends; end them all when the program closes the control socket."""
    with selectors.DefaultSelector() as selector:
        selector.register(control_socket, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while running:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
                _reap(control, running)
            if control_socket in ready:
                break
    if running:
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
