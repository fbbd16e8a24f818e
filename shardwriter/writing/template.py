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
import os
import selectors
import signal
import socket
import sys
import warnings
from typing import Any, Final

from shardwriter.writing.messages import Channel

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
    from shardwriter.writing import tasks

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
            _become_worker(tasks, worker, ends, others, parcel[1], descriptors)
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
    tasks: Any,
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
        tasks.work(worker, socket.socket(fileno=ends[worker]), parcel, descriptors)
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
