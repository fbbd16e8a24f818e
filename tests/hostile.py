"""Commands on files that somebody made to hurt, run in this process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sampling import draw
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import _stats_app, app

MOST_SECONDS = 60  # what loops or expands takes hours; a machine under load takes a few seconds
MOST_BYTES = 300 << 20

MEASURED = """
import sys, json, time
sys.path.insert(0, {tests!r})
from hostile import attempt
results = [attempt(command) for command in {commands!r}]
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0]) << 10
print(json.dumps([peak, results]))
"""


def skip_some(item):
    """Give a record for all items but 4, 5, 6 and 13."""
    return sw.SKIP if item["a"] in (4, 5, 6, 13) else item


def make_dataset(folder: Path, *options: str) -> Path:
    """Write ``in/t``, with 3 shards, 16 records and 4 gaps, and what it is written from."""
    rows = "".join(f"{i},{'cat' if i % 3 else 'dog'},{'x' * i}\n" for i in range(20))
    (folder / "t.csv").write_text("a,label,t\n" + rows)
    code, stderr = attempt([*write_command(folder), *options])
    assert code == 0, stderr
    sw.write([{"a": 1}, {"a": 2}], folder / "other" / "o@2", workers=1)
    return folder


def write_command(folder: Path) -> list[str]:
    """Return the command that writes the dataset."""
    source = ["write", str(folder / "t.csv"), f"{folder / 'in' / 't'}@3", "-j", "1"]
    return [*source, "--map", "hostile:skip_some", "--label", "label"]


def commands_on(folder: Path) -> list[list[str]]:
    """Return a command line for each command that reads a dataset; some write into ``out``."""
    name, out = str(folder / "in" / "t"), folder / "out"
    return [
        ["verify", name],
        ["shard-stats", name],
        ["shard-stats", name, "--features", "--label", "label", "--json"],
        ["show", name, "--count", "3"],
        ["find", name, "a=7"],
        ["schema", name],
        ["repair", name, str(out / "repaired")],
        ["reshard", name, str(out / "r@2")],
        ["merge", name, str(folder / "other" / "o"), str(out / "m@2")],
        ["append", str(folder / "t.csv"), name],
        [*write_command(folder), "--resume"],
        ["write", name, str(out / "w@2"), "--format", "tfrecord"],
        ["index", name],
        ["open", name],
    ]


def attempt(command: Sequence[str]) -> tuple[int, str]:
    """Run a command line in this process, or ``open``: read every record in Python.

    Returns:
        The exit code and what stands on stderr.

    Raises:
        Exception: It ended with an error that is not ours.
    """
    if command[0] == "open":
        return open_all(command[1])
    is_stats = command[0] == "shard-stats"
    found = CliRunner().invoke(
        _stats_app if is_stats else app, command[1:] if is_stats else command
    )
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stderr


def open_all(path: str) -> tuple[int, str]:
    """Read a dataset by index, from both ends and in one slice."""
    try:
        with sw.open(path) as data:
            data[0], data[-1], list(data[:])
            len(data.raw())
    except sw.ShardwriterError as error:
        return error.exit_code, f"error: {error}\n"
    return 0, ""


def check_answer(command: Sequence[str], code: int, stderr: str) -> None:
    """Demand an exit code of ours, and one error in one line where it is not 0."""
    assert code in (0, 1, 2, 3), (command, code, stderr)
    lines = [line for line in stderr.splitlines() if line.startswith("error:")]
    is_report = command[0] in ("verify", "shard-stats", "repair")  # what is wrong is its answer
    assert len(lines) == 1 or ((is_report or not code) and not lines), (command, code, stderr)
    assert "Traceback" not in stderr
    assert all(line.isprintable() for line in stderr.splitlines()), stderr


def content(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# A test that runs many cases through every command: NUM_DRAWN commands of each case by the seed of
# the run, and every command of each case with the marker `full`.
each_command = pytest.mark.parametrize(
    "is_full", [False, pytest.param(True, marks=pytest.mark.full)], ids=["drawn", "full"]
)
NUM_DRAWN = 3


def drawn_commands(folder: Path, case: str) -> list[list[str]]:
    """Return ``verify``, ``open`` and a few other commands; most that write have one worker."""
    always = [command for command in commands_on(folder) if command[0] in ("verify", "open")]
    others = [command for command in commands_on(folder) if command not in always]
    drawn = draw(case, others, NUM_DRAWN)
    if draw(f"workers {case}", [True, False, False, False], 1) == [False]:
        for command in drawn:
            if command[0] in ("reshard", "merge", "append", "write") and "-j" not in command:
                command += ["-j", "1"]
    return [*always, *drawn]


def check_all(
    folder: Path, *, codes: Sequence[int] = (0, 1, 2, 3), drawn_by: str | None = None
) -> dict[str, tuple[int, str]]:
    """Run commands on a dataset, and check what they say and what they change.

    Args:
        folder: What ``make_dataset`` has made.
        codes: The exit codes that are right.
        drawn_by: The name of the case, to run a few commands only, drawn by the seed of this run.

    Returns:
        Exit code and stderr, by the command's name.
    """
    answers = {}
    before = content(folder)
    for command in commands_on(folder) if drawn_by is None else drawn_commands(folder, drawn_by):
        started = time.monotonic()
        code, stderr = attempt(command)
        check_answer(command, code, stderr)
        assert code in codes or command[0] == "repair", (command, code, stderr)
        assert time.monotonic() - started < MOST_SECONDS, command
        answers.setdefault(command[0], (code, stderr))
        shutil.rmtree(folder / "out", ignore_errors=True)
        after = content(folder)
        if command[0] in ("append", "write", "index") and code == 0:
            for name in {*after} - {*before}:
                (folder / name).unlink()
            for name in before:
                if after.get(name) != before[name]:
                    (folder / name).write_bytes(before[name])
        else:
            assert after == before, (command, {*after} ^ {*before})
    return answers


def check_memory(folder: Path) -> list[tuple[int, str]]:
    """Run all commands in a process of their own and check how much memory it had at most."""
    tests = str(Path(__file__).parent)
    program = MEASURED.format(tests=tests, commands=commands_on(folder))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert not done.returncode, done.stderr[-2000:]
    import json

    peak, results = json.loads(done.stdout.splitlines()[-1])
    assert peak < MOST_BYTES, (peak, results)
    for command, (code, stderr) in zip(commands_on(folder), results, strict=True):
        check_answer(command, code, stderr)
    return results
