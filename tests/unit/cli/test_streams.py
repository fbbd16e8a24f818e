"""Commands whose standard streams are closed or broken: they do their work and exit as they should.

Nothing that a library prints may end up in a file that took the number of a closed stream.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwriter.inspect.verify import verify
from shardwriter.writing.write import write

COMMANDS = [
    ["write", "t.csv", "new/t@2"],
    ["stats", "out/t"],
    ["stats", "out/t", "--json"],
    ["verify", "out/t"],
    ["schema", "out/t"],
    ["show", "out/t", "--count", "3000"],
    ["find", "out/t", "even=1"],
    ["plan", "--records", "10", "--shards", "2"],
    ["index", "out/t"],
    ["reshard", "out/t", "new/u@3"],
    ["repair", "out/t", "fixed"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = "".join(f"{i},{i % 2},{'x' * 100}\n" for i in range(3000))
    (tmp_path / "t.csv").write_text("id,even,text\n" + rows)
    for name in ("out", "bad"):
        write(str(tmp_path / "t.csv"), str(tmp_path / name / "t@2"))
    damaged = tmp_path / "bad/t.tfrecord-00001-of-00002"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return tmp_path


def shell(line: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in bash; ``line`` holds ``"$@"`` for it, and ends with its exit code."""
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "shardwriter", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [(COMMANDS[0], closed) for closed in ("2>&-", ">&-", "<&-")]
    + [(arguments, "<&- >&- 2>&-") for arguments in COMMANDS],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_closed_stream_stops_no_command(folder: Path, arguments: list[str], closed: str) -> None:
    done = shell(f'"$@" {closed}', arguments, folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (closed in ("2>&-", "<&-"))
    if arguments[0] == "write":
        assert verify(str(folder / "new/t")).num_defects == 0


def test_what_a_map_prints_to_a_closed_stderr_goes_into_no_shard(folder: Path) -> None:
    (folder / "noisy.py").write_text(
        "import os, sys\n"
        "def loud(features):\n"
        "    print('to stderr', file=sys.stderr); os.system('echo to descriptor 2 >&2')\n"
        "    return features\n"
    )
    arguments = ["write", "t.csv", "new/t@2", "--map", "noisy:loud", "--limit", "20"]
    for engine in ("serial", "process"):
        done = shell('"$@" 2>&-', [*arguments, "--engine", engine, "--overwrite"], folder)
        assert done.returncode == 0
        assert verify(str(folder / "new/t")).num_defects == 0


@pytest.mark.parametrize("reader", ["true", "head -1"])
@pytest.mark.parametrize("json", [(), ("--json",)], ids=["table", "json"])
def test_the_exit_code_is_the_verdict_when_the_reader_has_gone(
    folder: Path, reader: str, json: tuple[str, ...]
) -> None:
    for name, code in (("out/t", 0), ("bad/t", 1)):
        for command in ("stats", "verify") if not json else ("stats",):
            line = f'"$@" | {reader}; exit ${{PIPESTATUS[0]}}'
            done = shell(line, [command, name, *json], folder)
            assert done.returncode == code
            assert done.stderr == ""


@pytest.mark.parametrize("command", [["show", "--count", "3000"], ["find", "even=1"]])
@pytest.mark.parametrize("json", [(), ("--json",)], ids=["table", "json"])
def test_without_a_reader_no_more_records_are_searched(
    folder: Path, command: list[str], json: tuple[str, ...]
) -> None:
    # The last record is damaged: a command that went on would find that, and fail.
    name, *rest = command
    line = '"$@" | head -1; exit ${PIPESTATUS[0]}'
    done = shell(line, [name, "bad/t", *rest, *json], folder)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    whole = shell('"$@" | cat >/dev/null; exit ${PIPESTATUS[0]}', [name, "bad/t", *rest], folder)
    assert whole.returncode == 1


def test_a_write_into_a_broken_pipe_is_published(folder: Path) -> None:
    (folder / "noisy.py").write_text("def loud(f):\n    print('x' * 10_000)\n    return f\n")
    for line in ('"$@" | true; exit ${PIPESTATUS[0]}', '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}'):
        arguments = ["write", "t.csv", "new/t@2", "--map", "noisy:loud", "--overwrite"]
        done = shell(line, [*arguments, "--engine", "serial"], folder)
        assert done.returncode == 0, done.stderr
        assert verify(str(folder / "new/t")).num_defects == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_behind_stdout_is_an_error(folder: Path) -> None:
    done = shell('"$@" >/dev/full', ["stats", "out/t"], folder)
    assert done.returncode == 3
    assert done.stderr.splitlines() == ["error: stdout: No space left on device"]


def test_usage_errors_keep_their_exit_code(folder: Path) -> None:
    for arguments in (["nonsense"], ["stats", "missing"]):
        for closed in ("2>&-", "2>&1 | true; exit ${PIPESTATUS[0]}"):
            assert shell(f'"$@" {closed}', arguments, folder).returncode == 2


def test_json_holds_no_control_character(folder: Path) -> None:
    (folder / "odd.csv").write_text("id,name\n1,\x7f\x1b[31m\x9b\n")
    write(str(folder / "odd.csv"), str(folder / "odd/t@1"))
    done = shell('"$@"', ["show", "odd/t", "--json"], folder)
    assert done.stdout.rstrip("\n").isascii()
    assert done.stdout.rstrip("\n").isprintable()
    assert json.loads(done.stdout)["features"]["name"] == ["\x7f\x1b[31m\x9b"]
