"""Scan of many files in worker processes.

::

    program  -- FILE: path, options ------------------------>  worker (`main`)
             <-- READ: bytes so far | SCANNED | FAILED -------

Workers are started with a command line of their own, so any program can use them: a notebook,
``python -c``, or a script without a main guard. Each gets one file at a time, the largest first,
and ends when the program closes the socket.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from shardwriter.errors import RunError, WorkerDied
from shardwriter.formats import SUFFIXES
from shardwriter.inspect.scan import DEFAULT_SCAN, FileScan, ScanOptions, scan_file
from shardwriter.storage import inputs_for, storage_errors
from shardwriter.writing import (
    Channel,
    Mailbox,
    avoid_standard_streams,
    describe_exit,
    pack_failure,
    unpack_failure,
    usable_cores,
)

FILE: Final = 1  # to it: pickled path, options
SCANNED: Final = 11  # from it: a pickled FileScan
READ: Final = 12  # bytes of the file that were read so far
FAILED: Final = 13

_PROGRESS_S: Final = 0.1


def main(descriptor: int) -> None:
    """Run a worker: scan files until the program closes the socket or exits."""
    channel = Channel(socket.socket(fileno=descriptor))
    sent_at = 0.0

    def progress(num_bytes: int) -> None:
        nonlocal sent_at
        now = time.monotonic()
        if now - sent_at > _PROGRESS_S:
            sent_at = now
            try:
                channel.send(READ, num_bytes.to_bytes(8, "little"))
            except OSError:
                os._exit(1)  # the program has exited

    try:
        while (message := channel.receive()) is not None:
            path, options = pickle.loads(message[1])
            try:
                scan = scan_file(path, options, progress=progress)
            except Exception as error:  # noqa: BLE001 - the program raises it
                channel.send(FAILED, pack_failure(error))
            else:
                channel.send(SCANNED, pickle.dumps(scan, 5))
    except OSError:
        return


SMALL_BYTES: Final = 32 << 20  # decoded in this process before another one has started
_CHECKSUM_SPEED: Final = 8  # relative to decoding
_HERE: Final = "-j 1 reads all files in this process"
_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[2:]
from shardwriter.inspect import scan_pool
scan_pool.main(int(sys.argv[1]))
"""


def scan_files(
    paths: Sequence[str],
    options: ScanOptions = DEFAULT_SCAN,
    num_workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[FileScan]:
    """Return the scans of files, from worker processes if there is enough work.

    Args:
        paths: The files.
        options: What to verify and which statistics to compute.
        num_workers: Processes; by default one per core, and none for few bytes.
        progress: Called now and then with the bytes read so far of all files together.

    Returns:
        The scans, in the order of ``paths``.

    Raises:
        StorageError: A file can not be opened or read.
        WorkerDied: A worker process has ended; the error names its file.
        RunError: Workers can not be started.
    """
    if num_workers == 1 or len(paths) < 2:
        return _scan_here(paths, options, progress)
    sizes = [_file_bytes(path) for path in paths]
    if num_workers is None:
        work = sum(map(partial(_effort, options), paths, sizes))
        num_workers = usable_cores() if _can_start() and work > SMALL_BYTES else 1
    num_workers = min(num_workers, len(paths))
    if num_workers == 1:
        return _scan_here(paths, options, progress)
    order = sorted(range(len(paths)), key=lambda number: -sizes[number])
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_started(number)) for number in range(num_workers)]
        return _Scanning(paths, options, progress).run(workers, order)


def _effort(options: ScanOptions, path: str, file_bytes: int) -> float:
    """Return the effort of a scan, in bytes of decoding that take as long."""
    if options.features or options.label is not None or path.endswith(SUFFIXES["gzip"]):
        return file_bytes
    return file_bytes / _CHECKSUM_SPEED if options.check == "crc" else 0.0


def _scan_here(
    paths: Sequence[str],
    options: ScanOptions,
    progress: Callable[[int], None] | None,
) -> list[FileScan]:
    scans: list[FileScan] = []
    done_bytes = 0

    def report(num_bytes: int) -> None:
        if progress is not None:
            progress(done_bytes + num_bytes)

    for path in paths:
        scans.append(scan_file(path, options, progress=report))
        done_bytes += scans[-1].file_bytes
    report(0)
    return scans


def _file_bytes(path: str) -> int:
    with storage_errors(path):
        return inputs_for(path).stat(path).st_size


def _can_start() -> bool:
    # The executable of a frozen program is the program itself, not Python.
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class _Worker:
    """A worker process, and the number of the file that it scans."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], mailbox: Mailbox) -> None:
        self.process = process
        self.mailbox = mailbox
        self.file: int | None = None
        self.name = f"worker {number} (process {process.pid})"


@contextlib.contextmanager
def _started(number: int) -> Iterator[_Worker]:
    """Start a worker, and kill it at the end of the block."""
    ours, theirs = socket.socketpair()
    with ours:
        with contextlib.ExitStack() as stack:
            theirs = stack.enter_context(avoid_standard_streams(theirs))
            folders = [folder or os.curdir for folder in sys.path if isinstance(folder, str)]
            path = [os.path.abspath(folder) for folder in folders]
            path.append(str(Path(__file__).parents[2]))
            # The interpreter options of this program (-O, -X utf8, -W, -I, ...).
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            command = [sys.executable, *flags, "-c", _PROGRAM, str(theirs.fileno()), *path]
            try:
                # In a session of its own: Ctrl-C reaches only the program, which ends its workers.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                raise RunError(
                    f"worker processes can not be started: {error.strerror or error}", hint=_HERE
                ) from error
        try:
            yield _Worker(number, process, Mailbox(ours))
        finally:
            process.kill()
            process.wait()


class _Scanning:
    """Sends files to workers and collects their scans."""

    def __init__(
        self,
        paths: Sequence[str],
        options: ScanOptions,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._paths = paths
        self._options = options
        self._progress = progress
        self._scans: dict[int, FileScan] = {}
        self._read_bytes: dict[int, int] = {}

    def run(self, workers: Sequence[_Worker], order: Sequence[int]) -> list[FileScan]:
        """Return the scans in the order of the paths; files are sent in ``order``."""
        waiting = deque(order)
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                selector.register(worker.mailbox.fileno(), selectors.EVENT_READ, worker)
                self._send_next(worker, waiting)
            while len(self._scans) < len(self._paths):
                for worker in workers:
                    wanted = selectors.EVENT_READ
                    if worker.mailbox.pending_bytes:
                        wanted |= selectors.EVENT_WRITE
                    selector.modify(worker.mailbox.fileno(), wanted, worker)
                for key, ready in selector.select():
                    if ready & selectors.EVENT_WRITE:
                        key.data.mailbox.send()
                    if ready & selectors.EVENT_READ:
                        self._receive(key.data, waiting)
        return [self._scans[number] for number in range(len(self._paths))]

    def _send_next(self, worker: _Worker, waiting: deque[int]) -> None:
        worker.file = waiting.popleft() if waiting else None
        if worker.file is not None:
            path = self._paths[worker.file]
            task = (path, self._options)
            worker.mailbox.put(FILE, pickle.dumps(task, 5))

    def _receive(self, worker: _Worker, waiting: deque[int]) -> None:
        for kind, data in worker.mailbox.messages():
            assert worker.file is not None
            if kind == FAILED:
                raise unpack_failure(data, worker.name, lambda _: 0)
            if kind == READ:
                self._read_bytes[worker.file] = int.from_bytes(data, "little")
            else:
                scan: FileScan = pickle.loads(data)
                self._scans[worker.file] = scan
                self._read_bytes[worker.file] = scan.file_bytes
                self._send_next(worker, waiting)
            if self._progress is not None:
                self._progress(sum(self._read_bytes.values()))
        if worker.mailbox.closed:
            self._raise_died(worker)

    def _raise_died(self, worker: _Worker) -> None:
        code = worker.process.wait()
        how, _ = describe_exit(-code if code < 0 else code << 8)
        path = None if worker.file is None else self._paths[worker.file]
        raise WorkerDied(
            f"{how} while it read this file" if path else f"{how} before it got a file",
            path=path,
            worker=worker.name,
            hint=f"{_HERE} and shows the cause",
        )
