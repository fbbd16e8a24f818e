"""Scanning many files on all cores.

The processes are started by a command line of their own, so it does not matter what program this
is: a notebook, ``python -c``, or a script without a main guard. Each is sent one file after the
other, the largest first; it ends when this program does.
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

# A process of :mod:`~shardwriter.inspect.scan_pool`: it scans the files it is sent.

FILE: Final = 1  # to it: pickled path, options
SCANNED: Final = 11  # from it: a pickled FileScan
READ: Final = 12  # bytes of the file that were read so far
FAILED: Final = 13

_TELL_S: Final = 0.1


def main(descriptor: int) -> None:
    """Scan files until the program closes the socket, however it does."""
    channel = Channel(socket.socket(fileno=descriptor))
    told_at = 0.0

    def progress(num_bytes: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at > _TELL_S:
            told_at = now
            try:
                channel.send(READ, num_bytes.to_bytes(8, "little"))
            except OSError:
                os._exit(1)  # the program is gone: nobody waits for the rest of this file

    try:
        while (message := channel.receive()) is not None:
            path, options = pickle.loads(message[1])
            try:
                scan = scan_file(path, options, progress=progress)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is for the program
                channel.send(FAILED, pack_failure(error))
            else:
                channel.send(SCANNED, pickle.dumps(scan, 5))
    except OSError:
        return


SMALL_BYTES: Final = 32 << 20  # decoded here before another process is up
_PROVING_SPEED: Final = 8  # of checksums, against decoding
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
    """Scan files, on several cores where that pays.

    Args:
        paths: The files.
        options: What to prove, and what to look for.
        num_workers: Processes; by default as many as there are cores, and none for few bytes.
        progress: Told now and then of the bytes that were read, of all files together.

    Returns:
        The scans, in the order of ``paths``.

    Raises:
        StorageError: A file can not be opened or read.
        WorkerDied: A process ended that should not have; the error names its file.
        RunError: No process can be started.
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
    order = sorted(range(len(paths)), key=lambda place: -sizes[place])
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_started(number)) for number in range(num_workers)]
        return _Scanning(paths, options, progress).run(workers, order)


def _effort(options: ScanOptions, path: str, file_bytes: int) -> float:
    """Return the bytes whose decoding takes as long as the scan of a file."""
    if options.features or options.label is not None or path.endswith(SUFFIXES["gzip"]):
        return file_bytes
    return file_bytes / _PROVING_SPEED if options.check == "crc" else 0.0


def _scan_here(
    paths: Sequence[str],
    options: ScanOptions,
    progress: Callable[[int], None] | None,
) -> list[FileScan]:
    scans: list[FileScan] = []
    done_bytes = 0

    def tell(num_bytes: int) -> None:
        if progress is not None:
            progress(done_bytes + num_bytes)

    for path in paths:
        scans.append(scan_file(path, options, progress=tell))
        done_bytes += scans[-1].file_bytes
    tell(0)
    return scans


def _file_bytes(path: str) -> int:
    with storage_errors(path):
        return inputs_for(path).stat(path).st_size


def _can_start() -> bool:
    # A program in one file is its own executable: it would start itself, again and again.
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class _Worker:
    """A process, and the file that it has at hand."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], mailbox: Mailbox) -> None:
        self.process = process
        self.mailbox = mailbox
        self.place: int | None = None
        self.name = f"worker {number} (process {process.pid})"


@contextlib.contextmanager
def _started(number: int) -> Iterator[_Worker]:
    """A process for the length of a block; it has ended behind it, whatever has happened."""
    ours, theirs = socket.socketpair()
    with ours:
        with contextlib.ExitStack() as stack:
            theirs = stack.enter_context(avoid_standard_streams(theirs))
            folders = [folder or os.curdir for folder in sys.path if isinstance(folder, str)]
            path = [os.path.abspath(folder) for folder in folders]
            path.append(str(Path(__file__).parents[2]))
            # What the program's own command line says of Python (-O, -X utf8, -W, -I, ...).
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            command = [sys.executable, *flags, "-c", _PROGRAM, str(theirs.fileno()), *path]
            try:
                # Of a group of its own: Ctrl-C reaches the program, which ends the others.
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
    """Files on their way to workers, and their scans on the way back."""

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
        """Have the files scanned, in an order, and return the scans in that of the paths."""
        waiting = deque(order)
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                selector.register(worker.mailbox.fileno(), selectors.EVENT_READ, worker)
                self._hand_out(worker, waiting)
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
                        self._take(key.data, waiting)
        return [self._scans[place] for place in range(len(self._paths))]

    def _hand_out(self, worker: _Worker, waiting: deque[int]) -> None:
        worker.place = waiting.popleft() if waiting else None
        if worker.place is not None:
            path = self._paths[worker.place]
            task = (path, self._options)
            worker.mailbox.put(FILE, pickle.dumps(task, 5))

    def _take(self, worker: _Worker, waiting: deque[int]) -> None:
        for kind, data in worker.mailbox.messages():
            assert worker.place is not None
            if kind == FAILED:
                raise unpack_failure(data, worker.name, lambda _: 0)
            if kind == READ:
                self._read_bytes[worker.place] = int.from_bytes(data, "little")
            else:
                scan: FileScan = pickle.loads(data)
                self._scans[worker.place] = scan
                self._read_bytes[worker.place] = scan.file_bytes
                self._hand_out(worker, waiting)
            if self._progress is not None:
                self._progress(sum(self._read_bytes.values()))
        if worker.mailbox.closed:
            self._mourn(worker)

    def _mourn(self, worker: _Worker) -> None:
        code = worker.process.wait()
        how, _ = describe_exit(-code if code < 0 else code << 8)
        path = None if worker.place is None else self._paths[worker.place]
        raise WorkerDied(
            f"{how} while it read this file" if path else f"{how} before it had a file",
            path=path,
            worker=worker.name,
            hint=f"{_HERE}, which shows what happens",
        )
