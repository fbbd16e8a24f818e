"""The progress of a write for TensorBoard: an event file for each process that writes.

::

    DIR/w0/events.out.tfevents.<unix seconds>.<host>.w0     worker 0, or the serial engine
    DIR/w1/...
    DIR/main/...                                            with a pool: totals of all workers

Each process has its own folder, as TensorBoard draws one line per folder. The log is no part of
the dataset: if it cannot be written, it ends and the write continues.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final

from shardwriter.dataset import is_url
from shardwriter.errors import OptionError, StorageError
from shardwriter.formats import TFRecordWriter, scalars_event, version_event
from shardwriter.storage import storage_errors
from shardwriter.writing.engine import Work
from shardwriter.writing.stages import STAGES

MAIN: Final = "main"
EVERY_S: Final = 1.0
NOTHING_DONE: Final = Work(0, None, 0)

_MEGABYTE: Final = 1e6
# Minimum time that the last rates cover: over a few milliseconds they would be noise.
_MIN_RATE_S: Final = 0.25

_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "rate/items_per_s": "Items read per second since the previous point, skipped ones included.",
    "rate/records_per_s": "Records written per second since the previous point.",
    "rate/payload_mb_per_s": "Megabytes (10^6) of records per second since the previous point.",
    "done/items": "Items so far.",
    "done/records": "Records so far.",
    "done/payload_mb": "Megabytes (10^6) of records so far.",
    "done/gaps": "Items without a record so far.",
    "done/errors": "Items that failed so far.",
    "memory/rss_mb": "Memory of this process, in megabytes (10^6).",
    **{f"stage_s/{stage}": f"Seconds spent in `{stage}` so far." for stage in STAGES},
    **{
        f"stage_share/{stage}": f"Share of `{stage}` in the time of all stages since the previous "
        "point."
        for stage in STAGES
    },
}


def check_log_dir(log_dir: str | os.PathLike[str] | None, run_dirs: Sequence[str]) -> str | None:
    """Create the folder of the event files, check that it is writable, and return its full path.

    Args:
        log_dir: The folder; None for no log.
        run_dirs: The run directories, which are deleted when the datasets are published.

    Raises:
        OptionError: ``log_dir`` is a URL, or inside a run directory.
        StorageError: It cannot be created or written.
    """
    if log_dir is None:
        return None
    log_dir = os.fspath(log_dir)
    if is_url(log_dir):
        raise OptionError(
            "event files need a local folder, and this is a URL",
            path=log_dir,
            hint="give --log-dir a path",
        )
    folder = os.path.abspath(log_dir)
    if any(
        os.path.commonpath([folder, inner]) == inner for inner in map(os.path.abspath, run_dirs)
    ):
        raise OptionError(
            "event files cannot be in the run directory, which is deleted at the end",
            path=log_dir,
            hint="give --log-dir another folder",
        )
    with storage_errors(folder):
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


class EventLog:
    """The event file of one process.

    Args:
        log_dir: The folder of all event files; None for no file.
        name: Name of the process: ``w`` and a worker's number, or ``main``.
        first_step: Items of earlier attempts, if the reported work does not include them: the
            steps continue from there.
        start: The work of earlier attempts, if the reported work includes it.

    Attributes:
        failure: Why the log ended early; None otherwise.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None,
        name: str,
        *,
        first_step: int = 0,
        start: Work = NOTHING_DONE,
    ) -> None:
        self.failure: str | None = None
        self._first_step = first_step
        self._writer: TFRecordWriter | None = None
        self._path = ""
        self._started = time.monotonic()
        self._next = self._started + EVERY_S
        # The last two points: rates are those between points.
        self._points = [(self._started, start)]
        self._is_first = True
        if log_dir is not None:
            try:
                self._open(log_dir, name)
            except StorageError as error:
                self._end(error)

    def _open(self, log_dir: str | os.PathLike[str], name: str) -> None:
        folder = os.path.join(log_dir, name)
        now = time.time()
        host = socket.gethostname().replace("/", "_")
        with storage_errors(folder):
            os.makedirs(folder, exist_ok=True)
            second = int(now)
            while True:
                self._path = os.path.join(folder, f"events.out.tfevents.{second}.{host}.{name}")
                try:
                    file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - the writer closes it
                    break
                except FileExistsError:  # from another run that began in this second
                    second += 1
            # Unbuffered, so that TensorBoard sees each point at once.
            self._writer = TFRecordWriter(file, buffer_bytes=1)
            self._writer.write(version_event(now))

    @property
    def is_open(self) -> bool:
        """Whether points are written."""
        return self._writer is not None

    def report(self, work: Work) -> None:
        """Write a point if a second has passed since the previous one."""
        if self._writer is not None and (now := time.monotonic()) >= self._next:
            self._write(now, work)
            self._next = now + EVERY_S

    def finish(self, work: Work) -> None:
        """Write the last point, and close the file."""
        if self._writer is not None:
            self._write(time.monotonic(), work)
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.discard()  # it buffers nothing
            self._writer = None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, now: float, work: Work) -> None:
        assert self._writer is not None
        if len(self._points) > 1 and now - self._points[-1][0] < _MIN_RATE_S:
            self._points.pop()
        then, before = self._points[-1]
        # A copy, as the timer that owns the seconds continues.
        work = replace(work, seconds=dict(work.seconds))
        self._points = [(then, before), (now, work)]
        scalars = _scalars(work, before, max(now - then, 1e-9))
        descriptions = _DESCRIPTIONS if self._is_first else None
        self._is_first = False
        record = scalars_event(time.time(), self._first_step + work.num_done, scalars, descriptions)
        try:
            with storage_errors(self._path):
                self._writer.write(record)
        except StorageError as error:
            self._end(error)

    def _end(self, error: StorageError) -> None:
        """Close the log and remember why: a full disk for logs must not fail the write."""
        self.failure = f"the event log is incomplete (the dataset is complete): {error.summary}"
        self.close()


def _scalars(work: Work, before: Work, elapsed_s: float) -> dict[str, float]:
    num_items = work.num_done - before.num_done
    num_records = num_items - (work.num_gaps - before.num_gaps)
    num_bytes = work.payload_bytes - before.payload_bytes
    scalars: dict[str, float] = {
        "rate/items_per_s": num_items / elapsed_s,
        "rate/records_per_s": num_records / elapsed_s,
        "rate/payload_mb_per_s": num_bytes / elapsed_s / _MEGABYTE,
        "done/items": work.num_done,
        "done/records": work.num_done - work.num_gaps,
        "done/payload_mb": work.payload_bytes / _MEGABYTE,
        "done/gaps": work.num_gaps,
        "done/errors": work.num_errors,
    }
    resident_bytes = _resident_bytes()
    if resident_bytes is not None:
        scalars["memory/rss_mb"] = resident_bytes / _MEGABYTE
    spent = {s: work.seconds.get(s, 0.0) - before.seconds.get(s, 0.0) for s in STAGES}
    total_s = sum(spent.values())
    for stage in STAGES:
        scalars[f"stage_s/{stage}"] = work.seconds.get(stage, 0.0)
        scalars[f"stage_share/{stage}"] = spent[stage] / total_s if total_s > 0 else 0.0
    return scalars


def _resident_bytes() -> int | None:
    """Return this process's memory; None if the system does not provide it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
