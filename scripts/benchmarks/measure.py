"""What a work, a contender and a run are, and how processes are run and measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
WATCH_EVERY_S = 0.02


@dataclass
class Run:
    """One run of a contender.

    Attributes:
        wall_s: Seconds that passed.
        cpu_s: Seconds of all processors, of all threads and processes.
        peak_mb: Memory of all its processes together, where that was watched.
        outcome: What must be equal to that of the first contender; None if there is nothing.
        extra: More figures; floats are reported as medians, integers as the least of all runs.
        text: What the command printed.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float | None = None
    outcome: Any = None
    extra: dict[str, float] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Contender:
    """Somebody who does a work: shardwriter, or a peer.

    Attributes:
        name: As ``--against`` has it.
        measure: Does the work once.
        modules: What its Python must have.
        check: Is given the first contender's output folder and this one's; raises SystemExit.
        one_core: Whether its worker process is bound to one core.
        is_ours: Whether it is a form of shardwriter.
    """

    name: str
    measure: Callable[[Turn], Run]
    modules: tuple[str, ...] = ()
    check: Callable[[Turn, Path, Path], None] | None = None
    one_core: bool = False
    is_ours: bool = False


@dataclass
class Case:
    """One case of a work, ready to be measured.

    Attributes:
        name: Of the case.
        folder: For inputs and for what contenders write.
        size: Times the usual amount of data.
        workers: Processes of every pool.
        settings: Of the work.
        stack: What is open until the case ends.
        source: The input.
        count: Items of the input.
        num_bytes: Bytes of the input; 0 if the size does not matter.
        shared: What contenders share: servers that run, and references.
    """

    name: str
    folder: Path
    size: float
    workers: int
    settings: dict[str, int]
    stack: ExitStack
    source: Path = Path()
    count: int = 1
    num_bytes: int = 0
    shared: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, enter: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Enter a context at the first call; return what it gave. It ends with the case."""
        if name not in self.shared:
            self.shared[name] = self.stack.enter_context(enter())
        return self.shared[name]


@dataclass(frozen=True)
class Work:
    """Something that is measured.

    Attributes:
        name: As the command line has it.
        summary: One line for ``--list``.
        cases: Its cases.
        make: Makes the input of a case, and sets ``source``, ``count`` and ``num_bytes``.
        contenders: Returns all contenders of a case; the first is what others are compared with.
        settings: What ``--set`` can change, and the usual values.
        repeats: Timed rounds, if the command line has no number; 0 if only memory is of interest.
        workers: Processes of every pool, if the command line has no number; None for all cores.
        targets: The least ratio of wall times, and the peer it is of, by case.
        same: Compares two outcomes; equality if None.
        notes: Returns figures of a case from all contenders' medians.
        table: Yields rows of text, in place of being measured.
        uses_gpu: Whether processes may see a GPU.
    """

    name: str
    summary: str
    cases: tuple[str, ...]
    make: Callable[[Case], None]
    contenders: Callable[[Case], list[Contender]]
    settings: Mapping[str, int] = field(default_factory=dict)
    repeats: int = 5
    workers: int | None = 2
    targets: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    same: Callable[[Any, Any], bool] | None = None
    notes: Callable[[Case, Results, dict[str, Results]], dict[str, float]] | None = None
    table: Callable[[Case, list[Entry]], Iterator[tuple[str, dict[str, str]]]] | None = None
    uses_gpu: bool = False


Results = dict[str, dict[str, Any]]
"""By contender: ``wall_s``, ``cpu_s`` and what else a row of the table has."""


@dataclass(frozen=True)
class Entry:
    """A contender with the Python and the checkout that it runs with."""

    name: str
    contender: Contender
    python: str
    checkout: Path = ROOT

    def folder(self, case: Case) -> Path:
        """Return where it writes."""
        return case.folder / "out" / self.name

    def environment(self, case: Case, uses_gpu: bool) -> dict[str, str]:
        """Return the environment of its processes."""
        path = [str(SCRIPTS), str(self.checkout), *filter(None, [os.getenv("PYTHONPATH")])]
        hidden = {} if uses_gpu else {"CUDA_VISIBLE_DEVICES": ""}
        return {
            **os.environ,
            **hidden,
            "BENCH_SOURCE": str(case.source),
            "BENCH_COUNT": str(case.count),
            "PYTHONPATH": os.pathsep.join(path),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }


@dataclass
class Turn:
    """An entry's turn in a round.

    Attributes:
        entry: The contender whose turn it is.
        case: What is measured.
        number: Of the round; 0 is the first, which is checked, watched for memory and not timed.
        environment: Of its processes.
        reference: The output folder of the first entry.
    """

    entry: Entry
    case: Case
    number: int
    environment: dict[str, str]
    reference: Path

    @property
    def folder(self) -> Path:
        """Where this entry writes; empty when the turn begins."""
        return self.entry.folder(self.case)

    def program(self, *words: Any) -> list[str]:
        """Return a command of this entry's Python."""
        return [self.entry.python, *map(str, words)]

    def call_words(self, function: str, *arguments: Any, processes: int = 0) -> list[str]:
        """Return a command that calls a function ``module:function`` once."""
        words = ["-m", "benchmarks.worker", "--once", function, to_json(arguments)]
        if processes:
            words += ["--processes", str(processes)]
        return self.program(*words)

    def run(self, command: Sequence[str]) -> Run:
        """Run a command: watched for memory in the first round, else timed."""
        if self.number == 0:
            return run_watched(command, self.environment, self.case.folder)
        return run_timed(command, self.environment, self.case.folder)

    def finish(self, command: Sequence[str]) -> str:
        """Run a command that is not measured; return what it printed."""
        return _run(command, self.environment, self.case.folder, None).text

    def shardwriter(self, *words: Any) -> Run:
        """Run the command ``shardwriter``."""
        return self.run(self.program("-m", "shardwriter", *words))

    def ask(self, function: str, *arguments: Any, step: str) -> Run:
        """Run a step in a process that stays; entries with the same function share it."""
        text = to_json(arguments)
        contender = self.entry.contender
        key = f"{self.entry.python} {self.entry.checkout} {contender.one_core} {function} {text}"
        worker = self.case.once(key, lambda: Worker(self, function, text))
        found = worker.ask(step, check=self.number == 0)
        if self.number == 0:
            first = found if "wall_s" in found else worker.ask(step, check=False)  # warms up
            return Run(first["wall_s"], first["cpu_s"], outcome=found["outcome"])
        return Run(found["wall_s"], found["cpu_s"])


def to_json(arguments: Sequence[Any]) -> str:
    """Return arguments as JSON; paths become text."""
    return json.dumps(list(arguments), default=str)


class Worker:
    """A process that answers; see worker.py."""

    def __init__(self, turn: Turn, function: str, arguments: str) -> None:
        command = turn.program("-m", "benchmarks.worker", function, arguments)
        if turn.entry.contender.one_core and hasattr(os, "sched_getaffinity"):
            command += ["--core", str(max(os.sched_getaffinity(0)))]
        self.name = turn.entry.name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # TensorFlow prints, others too
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=turn.environment,
            cwd=turn.case.folder,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, step: str, check: bool) -> dict[str, Any]:
        """Run a step and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        try:
            print(json.dumps([step, check]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            self._process.wait()
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")[-3000:]
            raise SystemExit(f"{text}\n{self.name} ended during {step}")
        found: dict[str, Any] = json.loads(line)
        return found


# -- commands --------------------------------------------------------------------------------------


def run_timed(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, sync: bool = True
) -> Run:
    """Run a command; return its times."""
    if sync:  # or one run pays for the data that the run before has not brought to the disk
        os.sync()
    return _run(command, environment, folder, None)


def run_watched(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Run:
    """Run a command; return also the peak of the memory that all its processes have together.

    On Linux what they share counts once, and what other programs share with them counts in full; a
    mapped input counts as far as it was read. Elsewhere it is the memory of the largest process.
    Watching takes time, so this run is not one to be timed.
    """
    return _run(command, environment, folder, _Watch())


def _run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, watch: _Watch | None
) -> Run:
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=folder
        )
        if watch is not None:
            watch.start(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if watch is not None:
            watch.stop()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({process.returncode}):\n{text[-5000:]}")
    run = Run(wall_s, usage.ru_utime + usage.ru_stime, text=text)
    if watch is not None:
        # Linux counts this program's own size in ru_maxrss, from before the exec.
        largest_mb = None if sys.platform == "linux" else usage.ru_maxrss / 1e6
        run.peak_mb = watch.peak_mb or largest_mb
    return run


class _Watch:
    """Samples the memory of a process and of its descendants."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._ended = threading.Event()

    def start(self, pid: int) -> None:
        self._thread = threading.Thread(target=self._sample, args=(pid,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self, pid: int) -> None:
        while not self._ended.wait(WATCH_EVERY_S):
            self.peak_mb = max(self.peak_mb, _memory_mb(list(_family(pid))))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # it ended meanwhile
            continue
        for child in found:
            yield from _family(int(child))


def _memory_mb(pids: list[int]) -> float:
    """Return the sum of the memory of processes that have one ancestor.

    Of memory without a file, what is shared is shared among them (PSS). The pages of a file may be
    shared with anybody: they count once, as many as the process has that has most of them.
    """
    own_kb = 0
    files_kb: dict[str, int] = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:  # it ended meanwhile
            continue
        mapped_kb: dict[str, int] = {}
        path = ""
        for line in text.splitlines():
            words = line.split(maxsplit=5)
            if not words[0].endswith(":"):  # the head of a mapping
                path = words[5] if len(words) > 5 and words[5].startswith("/") else ""
            elif words[0] == "Pss:" and not path:
                own_kb += int(words[1])
            elif words[0] == "Rss:" and path:
                mapped_kb[path] = mapped_kb.get(path, 0) + int(words[1])
            elif words[0] == "Anonymous:" and path:  # pages that were written to
                mapped_kb[path] -= int(words[1])
                own_kb += int(words[1])
        for path, kb in mapped_kb.items():
            files_kb[path] = max(files_kb.get(path, 0), kb)
    return (own_kb + sum(files_kb.values())) * 1024 / 1e6


def empty_folder(folder: Path) -> None:
    """Delete what a folder has, and make it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def size_of(source: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    files = [source] if source.is_file() else source.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
