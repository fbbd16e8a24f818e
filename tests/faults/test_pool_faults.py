"""Whatever goes wrong in the pool: the error says what and where, and nothing stays."""

from __future__ import annotations

import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from functools import partial

import faulty
import pytest
from paths import TESTS
from processes import PLENTY_S, children, marked, published, started, until

import shardwriter as sw
from shardwriter.errors import (
    CallableError,
    FeatureError,
    OptionError,
    RunError,
    SourceError,
    StorageError,
    WorkerDied,
)
from shardwriter.writing.messages import RemoteTraceback

NUM_SHARDS = 4
NUM_ITEMS = 7

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture
def out(tmp_path, mark, scratch):
    """A folder to write into; every test fails to write, so nothing may be left in it."""
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder
    assert os.listdir(folder) == []


def write(out, place, way, fault, at):
    data = faulty.Data(place, fault, at)
    source = data if way == "strided" else partial(faulty.items, place, fault, at)
    return sw.write(source, out / f"t@{NUM_SHARDS}", map=data.map, workers=2)


def remote_text(error):
    """The traceback of the other process."""
    while not isinstance(error, RemoteTraceback):
        error = error.__cause__
    return str(error)


# -- the table -------------------------------------------------------------------------------------

# place and way of bringing the items, in a worker
PLACES = [
    ("load", "strided"),
    ("map", "strided"),
    ("map", "sent"),
    ("encode", "strided"),
    ("encode", "sent"),
    ("unpack", "sent"),
]
# fault -> class of the error, of its cause, and what is said
FAULTS = {
    faulty.raise_error: (CallableError, ValueError, "ValueError: boom"),
    faulty.raise_unloadable: (CallableError, RemoteTraceback, "Unloadable: boom twice"),
    faulty.raise_unsendable: (CallableError, RemoteTraceback, "Unsendable: boom"),
    faulty.raise_exiting: (CallableError, RemoteTraceback, "Exiting: boom"),
    faulty.exit_0: (CallableError, SystemExit, "SystemExit: 0"),
    faulty.exit_3: (CallableError, SystemExit, "SystemExit: 3"),
    faulty.end_0: (WorkerDied, None, "code 0"),
    faulty.end_7: (WorkerDied, None, "code 7"),
    faulty.kill: (WorkerDied, None, "SIGKILL"),
    faulty.crash: (WorkerDied, None, "SIGSEGV"),
    faulty.leave_children: (WorkerDied, None, "SIGKILL"),
}
POSITIONS = [0, NUM_ITEMS // 2, NUM_ITEMS - 1]
# In every place and at every item; the others take turns.
EVERYWHERE = {faulty.raise_error: PLACES, faulty.kill: PLACES[:3]}
CASES = [
    (place, way, fault, at)
    for i, (place, way) in enumerate(PLACES)
    for j, fault in enumerate(FAULTS)
    for k, at in enumerate(POSITIONS)
    if (place, way) in EVERYWHERE.get(fault, [])
    or ((i + j) % 2 == 0 and k == (i + j) // 2 % len(POSITIONS))
]


@pytest.mark.parametrize(
    ("place", "way", "fault", "at"),
    CASES,
    ids=[f"{place}-{way}-{fault.__name__}-{at}" for place, way, fault, at in CASES],
)
def test_a_fault_in_a_worker(out, place, way, fault, at):
    kind, cause, words = FAULTS[fault]
    if place == "encode" and fault.__name__.startswith("raise_"):
        # Said as of any value that has no place in a record.
        kind, words = FeatureError, words.partition(": ")[2]
    begun = time.monotonic()
    with pytest.raises(kind) as info:
        write(out, place, way, fault, at)
    assert time.monotonic() - begun < PLENTY_S
    error = info.value
    assert type(error) is kind
    assert error.index == at
    assert error.shard == at % NUM_SHARDS
    assert re.fullmatch(r"worker [01] \(process \d+\)", error.worker)
    assert error.worker in str(error)
    assert words in str(error)
    assert error.hint or place == "encode" or place == "load"
    if cause is None:
        assert error.__cause__ is None
    else:
        assert type(error.__cause__) is cause
        text = remote_text(error)
        assert f"in {fault.__name__}" in text  # the user's own line
        assert "faulty.py" in text


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_ctrl_c_of_the_users_own_making_stops_the_write(out, way):
    with pytest.raises(KeyboardInterrupt) as info:
        write(out, "map", way, faulty.raise_interrupt, 3)
    assert "in raise_interrupt" in remote_text(info.value)
    assert re.search(r"worker [01] \(process \d+\)", remote_text(info.value))


@pytest.mark.parametrize("place", ["load", "map", "encode"])
def test_an_exception_that_can_not_say_what_it_is(out, place):
    with pytest.raises(CallableError, match=r"raised (Silent|RuntimeError: no text)") as info:
        write(out, place, "strided", faulty.raise_silent, 3)
    assert (info.value.index, info.value.shard) == (3, 3)
    assert "in raise_silent" in remote_text(info.value)


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_a_map_that_closes_all_files(out, way):
    with pytest.raises((RunError, CallableError)):
        write(out, "map", way, faulty.close_files, 3)


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_the_template_is_killed(out, way):
    with pytest.raises(WorkerDied, match="SIGKILL") as info:
        write(out, "map", way, faulty.kill_template, 3)
    assert "the template process of the workers has ended" in str(info.value)
    assert info.value.index is None  # no item is to blame


@pytest.mark.parametrize("fault", [faulty.raise_error, faulty.exit_0, faulty.exit_3])
@pytest.mark.parametrize("at", POSITIONS)
def test_a_fault_of_the_iterator_in_the_program(out, fault, at):
    with pytest.raises(CallableError, match="the source raised") as info:
        write(out, "source", "sent", fault, at)
    assert info.value.index == at
    assert isinstance(info.value.__cause__, (ValueError, SystemExit))


def test_ctrl_c_in_the_iterator(out):
    with pytest.raises(KeyboardInterrupt):
        write(out, "source", "sent", faulty.raise_interrupt, 3)


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_a_disk_that_is_full(out, way):
    class Data:
        def __len__(self):
            return 60

        def __getitem__(self, index):
            return bytes(100_000)

    source = Data() if way == "strided" else (Data()[i] for i in range(60))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(StorageError, match="file too large") as info:
            sw.write(source, out / "t@4", workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert re.search(r"\.t\.partial/shard-0000\d", info.value.path)
    assert re.fullmatch(r"worker [01] \(process \d+\)", info.value.worker)
    assert isinstance(info.value.__cause__, OSError)


# -- what can not be sent ------------------------------------------------------------------------


def test_a_map_that_can_not_be_sent(out):
    lock = faulty.Unsendable("x").lock
    with pytest.raises(OptionError, match=r"the map can not be sent.*lock"):
        sw.write([{"a": 1}] * 8, out / "t@4", map=lambda f: (lock, f)[1], workers=2)


def test_a_map_that_holds_too_much_to_be_sent(out):
    big = bytes(65 << 20)
    with pytest.raises(OptionError, match="64 MiB"):
        sw.write([{"a": 1}] * 8, out / "t@4", map=lambda f: big and f, workers=2)


@pytest.mark.parametrize("at", POSITIONS)
def test_an_item_that_can_not_be_sent(out, at):
    items = ([{"a": 1}] * NUM_ITEMS).copy()
    items[at] = {"a": (i for i in ())}
    with pytest.raises(SourceError, match="generator") as info:
        sw.write(items, out / "t@4", workers=2)
    assert info.value.index == at


def test_a_dataset_that_does_not_come_back(out):
    class Data(faulty.Data):
        def __reduce__(self):
            return faulty.call, (faulty.raise_error,)

    with pytest.raises(RunError, match="can not be set up in a worker: ValueError: boom") as info:
        sw.write(Data("", faulty.nothing, 0), out / "t@4", workers=2)
    assert "in raise_error" in remote_text(info.value)


@pytest.mark.parametrize(
    ("fault", "words"), [(faulty.kill, "SIGKILL"), (faulty.end_0, "code 0"), (faulty.exit_3, "3")]
)
def test_a_dataset_that_ends_the_worker_when_it_is_unpacked(out, fault, words):
    class Data(faulty.Data):
        def __reduce__(self):
            return faulty.call, (fault,)

    with pytest.raises(RunError, match=words) as info:
        sw.write(Data("", faulty.nothing, 0), out / "t@4", workers=2)
    assert info.value.index is None


def test_an_error_of_ours_in_a_class_of_the_users(out):
    class Strange(FeatureError):
        def __init__(self, text, lock):
            super().__init__(text, feature="value", hint="look")
            self.lock = lock

    class Data(faulty.Data):
        def __getitem__(self, index):
            raise Strange("boom", faulty.Unsendable("x").lock)

    with pytest.raises(FeatureError, match="Strange: boom") as info:
        sw.write(Data("", faulty.nothing, 0), out / "t@4", workers=2)
    error = info.value
    assert (error.feature, error.hint, error.shard) == ("value", "look", error.index % 4)


# -- processes that can not be started -------------------------------------------------------------


@pytest.mark.parametrize(
    ("executable", "frozen", "words"),
    [
        ("/nowhere/python", False, "can not be started: No such file"),
        ("/bin/false", False, "code 1"),
        ("", False, "no Python executable"),
        (sys.executable, True, "no Python executable"),
    ],
)
def test_there_is_no_python_to_start(out, monkeypatch, executable, frozen, words):
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    with pytest.raises(RunError, match=words) as info:
        write(out, "map", "strided", faulty.nothing, 0)
    assert "--engine serial" in info.value.hint


def test_more_workers_than_there_may_be_open_files(out):
    used = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, limits[1]))
    try:
        with pytest.raises(RunError, match=r"30 worker processes.*Too many open files") as info:
            sw.write([b"x"] * 60, out / "t@30", workers=30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "fewer workers" in info.value.hint


def test_the_program_blocks_and_ignores_signals(out):
    # What it says of signals is inherited, and must not keep the template from seeing ends.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    begun = time.monotonic()
    try:
        with pytest.raises(WorkerDied, match="SIGKILL"):
            write(out, "map", "strided", faulty.kill, 3)
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert time.monotonic() - begun < 4


# -- the program itself dies -----------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, time
from functools import partial
import faulty
import shardwriter as sw

out, way, at = sys.argv[1], sys.argv[2], 3

def asleep():
    print("asleep", file=sys.stderr, flush=True)
    faulty.sleep()
"""
WRITE = """
data = faulty.Data("map", asleep, at)
source = data if way == "strided" else partial(faulty.items, "map", asleep, at)
sw.write(source, out + "/t@4", map=data.map, workers=2)
"""


def start(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return started(command, stderr=subprocess.PIPE, env=environment, start_new_session=True)


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_the_program_is_killed_while_a_map_sleeps(tmp_path, mark, way):
    with start(PROGRAM + WRITE, tmp_path, way) as program:
        assert program.stderr.readline() == b"asleep\n"
        # The program, the template and the worker; the other one may have finished.
        assert len(marked(mark)) in (3, 4)
        program.kill()
        until(lambda: not marked(mark))
        # Nobody holds the pipe open either.
        assert program.stderr.read() == b""
    assert published(tmp_path) == []
    sw.write([{"value": 1}], tmp_path / "t@4", run=sw.RunOptions(overwrite=True))


def test_the_program_is_killed_while_a_fork_of_it_holds_the_sockets(tmp_path, mark):
    fork = """
def items():
    fork = os.fork()
    if not fork:
        print("forked", os.getpid(), file=sys.stderr, flush=True)
        faulty.sleep()
    yield from faulty.items("map", asleep, at)
data = faulty.Data("map", asleep, at)
sw.write(items, out + "/t@4", map=data.map, workers=2)
"""
    with start(PROGRAM + fork, tmp_path, "sent") as program:
        lines = sorted([program.stderr.readline(), program.stderr.readline()])
        assert lines[0] == b"asleep\n"
        forked = int(lines[1].split()[1])
        program.kill()
        until(lambda: marked(mark) == {forked})
        os.kill(forked, signal.SIGKILL)
    assert published(tmp_path) == []


def test_an_error_does_not_wait_for_a_fork_that_holds_the_sockets(out, mark):
    def items():
        fork = os.fork()
        if not fork:
            faulty.sleep()
        forks.append(fork)
        yield from faulty.items("map", faulty.raise_error, 3)

    forks = []
    begun = time.monotonic()
    with pytest.raises(CallableError):
        sw.write(items, out / "t@4", map=faulty.Data("map", faulty.raise_error, 3).map, workers=2)
    assert marked(mark) <= set(forks)
    # Less than the time that is given to a template that does not answer.
    assert time.monotonic() - begun < 4
    os.kill(forks[0], signal.SIGKILL)
    os.waitpid(forks[0], 0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one of the two has to be left")
def test_program_and_template_are_killed_together(tmp_path, mark):
    with start(PROGRAM + WRITE, tmp_path, "strided") as program:
        assert program.stderr.readline() == b"asleep\n"
        (template,) = children(program.pid)
        program.kill()
        os.kill(template, signal.SIGKILL)
        until(lambda: not marked(mark))
        assert program.stderr.read() == b""


@pytest.mark.parametrize("ending", ["faulty.end_0()", "faulty.kill()", "faulty.crash()"])
def test_the_program_ends_in_the_users_iterator(tmp_path, mark, ending):
    code = f"""
def items():
    for i in range(3):
        yield {{"value": i}}
    {ending}
sw.write(items, out + "/t@4", workers=2)
"""
    with start(PROGRAM + code, tmp_path, "sent") as program:
        program.wait(PLENTY_S)
    until(lambda: not marked(mark))
    assert published(tmp_path) == []


def test_leaving_the_program_from_another_thread_ends_the_workers(tmp_path, mark):
    code = (
        """
import threading
def leave():
    time.sleep(1)
    os._exit(5)
threading.Thread(target=leave).start()
"""
        + WRITE
    )
    with start(PROGRAM + code, tmp_path, "strided") as program:
        assert program.wait(PLENTY_S) == 5
        until(lambda: not marked(mark))


# -- Ctrl-C and SIGTERM ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_ctrl_c(out, way, mark):
    with start(PROGRAM + WRITE, out, way) as program:
        assert program.stderr.readline() == b"asleep\n"
        os.killpg(program.pid, signal.SIGINT)
        text = program.stderr.read().decode()
    assert program.returncode == -signal.SIGINT
    last = text.splitlines()[-2:] if sys.version_info >= (3, 11) else text.splitlines()[-1:]
    assert last[0] == "KeyboardInterrupt"
    assert last[1:] in ([], ["nothing of 't' was published"])  # a note, from Python 3.11 on
    assert text.count("Traceback") == 1  # that of the program, and none of the workers'


@pytest.mark.parametrize("gap_s", [0, 0.01, 0.1])
def test_ctrl_c_twice(tmp_path, mark, gap_s):
    with start(PROGRAM + WRITE, tmp_path, "strided") as program:
        assert program.stderr.readline() == b"asleep\n"
        os.killpg(program.pid, signal.SIGINT)
        time.sleep(gap_s)
        os.killpg(program.pid, signal.SIGINT)
        program.stderr.read()
        assert program.wait(PLENTY_S) != 0
    until(lambda: not marked(mark))
    assert published(tmp_path) == []


def cli(out, fault, source="faulty_cli:data", **options):
    """The command's process; its data and its map are in a module of the current folder."""
    folder = out.parent / "cli"
    folder.mkdir()
    (folder / "faulty_cli.py").write_text(
        f"import sys; sys.path.append({str(TESTS)!r})\n"
        "import faulty, sys\n"
        "def asleep():\n"
        "    print('asleep', file=sys.stderr, flush=True)\n"
        "    faulty.sleep()\n"
        f"at = faulty.Data('map', {fault}, 3)\n"
        "data = faulty.Data('', faulty.nothing, 3)\n"
        f"def items(): return faulty.items('source', {fault}, 3)\n"
        "mapped = at.map\n"
    )
    command = [sys.executable, "-m", "shardwriter", "write", source, f"{out}/t@4", "-j", "2"]
    if "items" not in source:
        command += ["--map", "faulty_cli:mapped"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    options = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, **options}
    return started(command, cwd=folder, env=environment, **options)


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("faulty.raise_error", 1, "item 3, shard 3, worker "),
        ("faulty.exit_0", 1, "the map raised SystemExit: 0"),
        ("faulty.end_0", 3, "ended itself with code 0"),
        ("faulty.kill", 3, "use fewer workers (-j)"),
        ("faulty.raise_interrupt", 130, "nothing is left behind"),
    ],
)
def test_the_exit_code_of_the_command(out, fault, code, words):
    with cli(out, fault) as command:
        stdout, stderr = command.communicate(timeout=PLENTY_S)
    assert command.returncode == code
    assert words in " ".join(stderr.decode().split())
    assert b"Traceback" not in stderr
    assert stdout == b""


def test_leaving_the_program_from_the_source_is_no_success(out):
    with cli(out, "faulty.exit_0", "faulty_cli:items") as command:
        _, stderr = command.communicate(timeout=PLENTY_S)
    assert command.returncode == 1
    assert b"the source raised SystemExit" in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_command_is_asked_to_end(out, number):
    with cli(out, "asleep") as command:
        assert command.stderr.readline() == b"asleep\n"
        command.send_signal(number)
        assert b"nothing is left behind" in command.stderr.read()
    assert command.returncode == 128 + number


def test_ctrl_c_at_a_terminal(out):
    ours, theirs = pty.openpty()

    def take_the_terminal():
        os.setsid()
        os.close(os.open(os.ttyname(theirs), os.O_RDWR))  # the first one becomes its own

    with cli(
        out, "asleep", stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_the_terminal
    ) as command:
        os.close(theirs)
        text = b""
        while b"asleep" not in text:
            text += os.read(ours, 4096)
        os.write(ours, b"\x03")
        while True:
            try:
                text += os.read(ours, 4096)
            except OSError:  # all of its processes have closed it
                break
        command.wait(PLENTY_S)
    os.close(ours)
    assert command.returncode == 130
    assert b"nothing is left behind" in text
    assert b"Traceback" not in text
