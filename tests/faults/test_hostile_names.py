"""Names that a terminal would act on: nothing of them reaches stdout or stderr as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardwriter.cli import app
from shardwriter.writing.write import write

# A colour, a title, a forged line, a carriage return, a text that runs backwards, no UTF-8, DEL,
# the C1 form of CSI, a line separator.
HOSTILE = b"a\x1b[31m\x1b]0;x\x07\nerror: forged\r\xe2\x80\xae\xff\x7f\xc2\x9b\xe2\x80\xa8z"


def check(arguments: object, *streams: bytes) -> None:
    for stream in streams:
        for line in stream.decode("utf-8").split("\n"):
            assert line.isprintable(), (arguments, line)
            assert not line.startswith("error: forged"), arguments


def run(*arguments: bytes | str) -> tuple[int, bytes, bytes]:
    result = CliRunner().invoke(app, list(map(os.fsdecode, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    check(arguments, result.stdout_bytes, result.stderr_bytes)
    return result.exit_code, result.stdout_bytes, result.stderr_bytes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A folder with a hostile name, and in it a table, a dataset and a damaged one."""
    path = os.path.join(os.fsencode(tmp_path), HOSTILE)
    os.mkdir(path)
    with open(os.path.join(path, b"t.csv"), "w") as file:
        file.write("id,name\n" + "".join(f"{i},n{i}\n" for i in range(50)))
    for name in ("out", "bad"):
        write(os.fsdecode(path) + "/t.csv", os.fsdecode(path) + f"/{name}/t@2")
    os.truncate(os.path.join(path, b"bad/t.tfrecord-00001-of-00002"), 500)
    shutil.copyfile(
        os.path.join(path, b"out/t.tfrecord-00000-of-00002"),
        os.path.join(path, HOSTILE + b".tfrecord"),
    )
    monkeypatch.chdir(path)
    return path


def test_commands_on_hostile_paths(folder: bytes) -> None:
    out, bad, lone = folder + b"/out/t", folder + b"/bad/t", folder + b"/" + HOSTILE + b".tfrecord"
    assert run("write", folder + b"/t.csv", folder + b"/new/t@2")[0] == 0
    assert run("write", folder + b"/t.csv", folder + b"/new/t@2")[0] == 2
    assert run("write", folder + b"/t.csv", folder + b"/dry/t@2", "--dry-run")[0] == 0
    assert run("write", folder + b"/none.csv", folder + b"/none/t@2")[0] == 2
    for command in ("stats", "verify", "show", "schema", "index"):
        assert run(command, out)[0] == 0, command
    for command in ("stats", "verify"):
        assert run(command, bad)[0] == 1, command
    assert run("show", bad, "--count", "50")[0] == 1
    assert run("stats", lone)[0] == 0
    assert run("show", lone)[0] == 0
    assert run("find", lone, "id=4")[0] == 0
    assert run("find", out, "id=3")[0] == 0
    assert run("find", out, b"name=" + HOSTILE)[0] == 1
    assert run("find", out, HOSTILE + b"=1")[0] == 2
    assert run("repair", bad, folder + b"/fixed")[0] == 1
    assert run("reshard", out, folder + b"/more/t@3")[0] == 0
    assert run("merge", out, lone, folder + b"/all/t@3")[0] == 0
    assert run("stats", folder + b"/missing")[0] == 2
    assert run("stats", out, "--html", folder + b"/page.html")[0] == 0
    assert run("stats", folder + b"/t.csv")[0] == 1
    assert run("stats", bad, "-v")[0] == 1
    assert run("show", bad, "--count", "50", "-v")[0] == 1


def test_json_of_hostile_paths_is_json(folder: bytes) -> None:
    for command in ("stats", "verify", "show"):
        code, stdout, _ = run(command, folder + b"/out/t", "--json")
        assert code == 0
        assert isinstance(json.loads(stdout), dict)
        assert stdout.isascii()


def test_names_of_features_values_and_classes(folder: bytes) -> None:
    text = HOSTILE.decode("utf-8", "replace")
    items = [{"label": text, text: i, "image": b"x"} for i in range(20)]
    write(items, os.fsdecode(folder) + "/odd/t@2", label="label")
    for arguments in (
        ["stats", "odd/t", "--features", "--label", "label", "--world", "2"],
        ["schema", "odd/t"],
        ["show", "odd/t"],
        ["find", "odd/t", b"label=" + text.encode()],
    ):
        assert run(*arguments)[0] == 0


def test_the_text_of_a_lock(folder: bytes) -> None:
    os.mkdir(folder + b"/.t.partial")
    lock = folder + b"/.t.partial/lock"
    with open(lock, "wb") as file:
        file.write(b"process 1 on \x1b]0;x\x07\nerror: forged")
    holder = subprocess.Popen(["flock", lock, "sleep", "30"])
    try:
        while subprocess.run(["flock", "-n", lock, "true"], check=False).returncode == 0:
            time.sleep(0.01)
        assert run("write", "t.csv", "t@2")[0] == 2
    finally:
        holder.kill()
        holder.wait()


def test_errors_of_the_users_code(folder: bytes) -> None:
    with open(folder + b"/mine.py", "w") as file:
        file.write(f"def broken(f):\n    raise ValueError({HOSTILE.decode('latin-1')!r})\n")
    command = [sys.executable, "-m", "shardwriter", "write", "t.csv", "t@2", "--map", "mine:broken"]
    for more in ((), ("-v",), ("--overwrite", "--on-error", "skip", "--max-errors", "3")):
        done = subprocess.run([*command, *more], capture_output=True, check=False)
        assert done.returncode == 1
        assert rb"\x1b[31m" in done.stderr
        check(more, done.stdout, done.stderr)
