"""The commands as people run them: what is printed where, and the exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from command_line import run

from shardwriter.report.render import bytes_text

BIN = Path(sys.executable).parent


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("id,name\n" + "".join(f"{i},n{i}\n" for i in range(100)))
    return path


def test_write_then_stats(table: Path, tmp_path: Path) -> None:
    done = run("write", table, tmp_path / "out" / "t@8")
    assert done.returncode == 0
    assert "100 (12-13 per shard)" in done.stdout
    assert done.stderr == ""  # off a terminal there is no bar
    stats = subprocess.run(
        [BIN / "shard-stats", tmp_path / "out" / "t@8"], capture_output=True, text=True, check=False
    )
    assert stats.returncode == 0
    assert stats.stdout.splitlines()[-1].startswith("OK: 100 records in 8 shards")
    assert max(map(len, stats.stdout.splitlines())) <= 100


def test_json_on_stdout_is_json_and_nothing_else(table: Path, tmp_path: Path) -> None:
    for arguments in (
        ("write", table, tmp_path / "t@2", "--dry-run", "--json"),
        ("write", table, tmp_path / "t@2", "--json"),
        ("stats", tmp_path / "t", "--json"),
        ("verify", tmp_path / "t", "--json"),
        ("index", tmp_path / "t", "--json"),
        ("show", tmp_path / "t", "--json"),
    ):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        assert isinstance(json.loads(done.stdout), dict), arguments


def test_a_dry_run_writes_nothing(table: Path, tmp_path: Path) -> None:
    done = run("write", table, tmp_path / "new" / "t@4", "--dry-run")
    assert done.returncode == 0
    assert "nothing was written" in done.stdout
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["write", "missing", "t@2"], 2, ["missing", "no such file", "do:"]),
        (["write", "wide.csv", "t@2"], 1, ["wide.csv, line 3", "too many"]),
        (["write", "table.csv", "t@0"], 2, ["t@0", "NAME@N"]),
        (["write", "table.csv", "t@2", "--shards", "3"], 2, ["2 shards", "3"]),
        (["write", "table.csv", "t@2", "--seed", "1"], 2, ["--shuffle"]),
        (["write", "table.csv", "t@2", "--label", "nope"], 2, ["nope", "id, name"]),
        (["write", "table.csv", "t@2", "--map", "nomodule:f"], 2, ["--map", "nomodule"]),
        (["write", "table.csv", "t@2", "--map", "words"], 2, ["module:callable"]),
        (["write", "table.csv", "t@2", "--schema", "id=number"], 2, ["id=number"]),
        (["write", "table.csv", "t@2", "--format", "image-folder"], 1, ["this is a file"]),
        (["write", "table.csv", "t@2", "--format", "nope"], 2, ["nope"]),
        (["write", "table.csv", "t@2.gz", "--compression", "zlib"], 2, ["t@2.gz", "zlib"]),
        (["write", "table.csv", "t@2.gz", "--index"], 2, ["plain shards only"]),
        (["write", "table.csv", "t@2.gz", "--index", "--dry-run"], 2, ["plain shards only"]),
        (["write", "table.csv", "t@2.gz", "--backend", "tensorflow"], 2, ["--backend native"]),
        (["write", "table.csv", "t@2", "--deflate", "zlib-6"], 2, ["not compressed"]),
        (["write", "table.csv", "table.csv/t@2"], 3, ["table.csv", "not a directory"]),
        (["stats", "missing"], 2, ["missing"]),
        (["verify", "missing"], 2, ["missing"]),
        (["show", "wide.csv"], 1, ["length CRC"]),
        (["index", "missing"], 2, ["missing"]),
        (["nonsense"], 2, ["nonsense"]),
    ],
)
def test_errors_say_what_where_and_what_to_do(
    table: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    (table.parent / "wide.csv").write_text("a,b\n1,2\n3,4,5\n")
    done = run(*arguments, cwd=table.parent)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert sorted(p.name for p in table.parent.iterdir()) == ["table.csv", "wide.csv"]


def test_verbose_shows_the_traceback_of_the_users_code(table: Path) -> None:
    (table.parent / "mine.py").write_text("def broken(features):\n    return features['nope']\n")
    arguments = ["write", "table.csv", "t@2", "--map", "mine:broken"]
    plain = run(*arguments, cwd=table.parent)
    assert plain.returncode == 1
    assert "item 0" in plain.stderr
    assert "KeyError" in plain.stderr
    assert "Traceback" not in plain.stderr
    verbose = run(*arguments, "-v", cwd=table.parent)
    assert "features['nope']" in verbose.stderr


def test_an_output_that_exists(table: Path, tmp_path: Path) -> None:
    assert run("write", table, tmp_path / "t@2").returncode == 0
    again = run("write", table, tmp_path / "t@3")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert run("write", table, tmp_path / "t@3", "--overwrite").returncode == 0


def test_damage_ends_with_1(table: Path, tmp_path: Path) -> None:
    run("write", table, tmp_path / "t@2")
    shard = tmp_path / "t.tfrecord-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    for command in ("stats", "verify"):
        done = run(command, tmp_path / "t")
        assert done.returncode == 1
        assert f"truncated: {shard}, record 49 (item 99)" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("DAMAGED")


def test_map_skip_and_label(table: Path, tmp_path: Path) -> None:
    (table.parent / "mine.py").write_text(
        "import shardwriter as sw\n"
        "def keep(f):\n"
        "    return sw.SKIP if f['id'] < 10 else {**f, 'odd': f['id'] % 2}\n"
    )
    done = run(
        "write",
        "table.csv",
        "t@4",
        "--map",
        "mine:keep",
        "--label",
        "odd",
        "--json",
        cwd=table.parent,
    )
    printed = json.loads(done.stdout)
    assert (printed["num_items"], printed["num_records"], printed["skipped"]) == (100, 90, 10)
    manifest = json.loads((tmp_path / "t.manifest.json").read_text())
    assert manifest["labels"]["counts"] == {"0": 45, "1": 45}
    assert manifest["skipped"]["runs"] == [[0, 10]]


def test_images_bring_the_hint_about_sorted_labels(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "pytorch+data/examples/vision/fakedata/imagefolder"
    done = run("write", folder, tmp_path / "t@2")
    assert done.returncode == 0
    assert "sorted order" in done.stderr
    mixed = run("write", folder, tmp_path / "u@2", "--shuffle", "--seed", "3")
    assert mixed.stderr == ""


def test_the_tensorflow_backend_from_the_command_line(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    assert run("write", table, tmp_path / "a" / "t@3").returncode == 0
    done = run("write", table, tmp_path / "b" / "t@3", "--backend", "tensorflow")
    assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_backend_that_is_not_installed(table: Path, tmp_path: Path) -> None:
    (tmp_path / "none" / "tensorflow").mkdir(parents=True)
    (tmp_path / "none" / "tensorflow" / "__init__.py").write_text("raise ImportError('none here')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "none")}
    command = ["write", str(table), str(tmp_path / "t@2"), "--backend", "tensorflow"]
    done = subprocess.run(
        [sys.executable, "-m", "shardwriter", *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 3
    assert "shardwriter[tensorflow]" in done.stderr
    assert not (tmp_path / ".t.partial").exists()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_write_says_so_and_leaves_nothing(tmp_path: Path, stop: signal.Signals) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "def items():\n"
        "    for i in range(1000):\n"
        "        print(i, flush=True); time.sleep(0.05); yield {'x': i}\n"
    )
    command = [sys.executable, "-m", "shardwriter", "write", "slow:items", "out/t@2"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.readline()  # the first item
        process.send_signal(stop)
        printed = process.stderr.read()
        assert process.stdout.read() == ""
    assert process.returncode == 128 + stop
    assert "nothing was published, and nothing is left behind" in printed
    assert list((tmp_path / "out").iterdir()) == []


def test_a_write_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import sys, time\n"
        "def items():\n"
        "    for i in range(10):\n"
        "        print(i, file=sys.stderr, flush=True); time.sleep(0.05); yield {'x': i}\n"
    )
    # Without a terminal nohup only has the signal ignored.
    command = ["nohup", sys.executable, "-m", "shardwriter", "write", "slow:items", "out/t@2"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "0\n" in iter(process.stderr.readline, "")  # the first item
        process.send_signal(signal.SIGHUP)
        process.stderr.read()
    assert process.returncode == 0
    assert (tmp_path / "out/t.manifest.json").exists()


def test_help_is_there_and_fits_80_columns() -> None:
    for command in ("write", "stats", "show", "verify", "index"):
        done = run(command, "--help")
        assert done.returncode == 0
        assert "Example: shardwriter" in done.stdout or "Example: shard-stats" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_version() -> None:
    from shardwriter import __version__

    assert run("--version").stdout == f"shardwriter {__version__}\n"


def test_a_pipe_that_closes_early_is_no_traceback(table: Path, tmp_path: Path) -> None:
    run("write", table, tmp_path / "t@2")
    command = f"{sys.executable} -m shardwriter show {tmp_path / 't'} --count 100 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def on_a_terminal(*arguments: object, cwd: Path) -> tuple[str, bytes]:
    """Run a command whose stderr is a terminal of 80 columns; return what that and stdout show."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "shardwriter", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=child, env=environment
    ) as process:
        os.close(child)
        shown = b""
        while True:
            try:
                piece = os.read(parent, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        assert process.stdout is not None
        result = process.stdout.read()
    os.close(parent)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()), result


def test_on_a_terminal_there_is_a_bar_on_stderr_and_not_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "class Items:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): time.sleep(0.1); return {'x': i}\n"
        "items = Items()\n"
    )
    shown, result = on_a_terminal("write", "slow:items", "t@2", cwd=tmp_path)
    assert "items/s" in shown
    assert "/8" in shown
    assert re.search(r"\d:\d\d, \d:\d\d left", shown)
    assert b"writing" not in result


def test_the_bar_of_a_source_without_a_length_shows_the_count(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\ndef items():\n    for i in range(8): time.sleep(0.1); yield {'x': i}\n"
    )
    shown, _ = on_a_terminal("write", "slow:items", "t@2", cwd=tmp_path)
    assert "items/s" in shown
    assert "?" not in shown
    assert "left" not in shown


def test_tables_in_a_pipe_are_whole(tmp_path: Path) -> None:
    names = ["image/class/label", "a/very/long/name/" * 8, *(f"f{i}" for i in range(30))]
    label = "a label that is longer than any terminal is wide, " * 4
    (tmp_path / "t.csv").write_text(
        ",".join(names) + "\n" + (",".join([label.replace(",", ""), *["1"] * 31]) + "\n") * 9
    )
    label = label.replace(",", "").strip()
    first = run("write", "t.csv", "t@3", "--label", names[0], cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    for arguments in (
        ("write", "t.csv", "u@3", "--dry-run"),
        ("stats", "t", "--features", "--label", names[0]),
        ("schema", "t"),
        ("show", "t"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert any(names[1] in line for line in lines), arguments
        assert any(line.lstrip().startswith(f"{names[0]} ") for line in lines), arguments
        assert "\u2026" not in done.stdout, arguments
    stats = run("stats", "t", "--features", "--label", names[0], cwd=tmp_path).stdout
    assert sum(label in line for line in stats.splitlines()) >= 2  # its row, and its feature's
    wide = {**os.environ, "COLUMNS": "40"}
    command = [sys.executable, "-m", "shardwriter", "schema", "t"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=wide)
    assert names[1] in again.stdout


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_449, "99.4 kB"),
        (99_999, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (1.5e9, "1.5 GB"),
        (5e15, "5,000 TB"),
        (None, "-"),
    ],
)
def test_sizes_as_people_read_them(size: float | None, text: str) -> None:
    assert bytes_text(size) == text


def test_a_path_that_looks_like_markup_is_printed_as_it_is(table: Path, tmp_path: Path) -> None:
    for folder in ("data[v1]", "x[/red]", "y["):
        done = run("write", table, tmp_path / folder / "t@2")
        assert done.returncode == 0, done.stderr
        assert f"wrote {tmp_path / folder}/t.manifest.json" in done.stdout


def test_the_output_is_checked_before_the_source(table: Path, tmp_path: Path) -> None:
    assert run("write", table, tmp_path / "t@2").returncode == 0
    done = run("write", "no-such-source", tmp_path / "t@2")
    assert done.returncode == 2
    assert "exists already" in done.stderr
    dry = run("write", table, tmp_path / "t@2", "--dry-run")
    assert dry.returncode == 0
    assert "--overwrite replaces it" in dry.stderr


def test_output_to_a_url_is_refused(table: Path) -> None:
    done = run("write", table, "s3://bucket/train@2", cwd=table.parent)
    assert done.returncode == 2
    assert "local" in done.stderr
    assert sorted(p.name for p in table.parent.iterdir()) == ["table.csv"]


def test_numbers_that_are_too_large(table: Path) -> None:
    done = run("write", table, "t@2", "--limit", 10**25, cwd=table.parent)
    assert done.returncode == 2
    assert "limit" in done.stderr


def test_what_libraries_behind_urls_log_is_shown_with_verbose_only(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import logging\n"
        "def items():\n"
        "    logging.getLogger('apache_beam.io').warning('noise of the source')\n"
        "    return [{'x': i} for i in range(4)]\n"
        "def mapped(features):\n"
        "    logging.getLogger('apache_beam.io').warning('noise of a worker')\n"
        "    logging.getLogger('mine').warning('a word of mine')\n"
        "    return features\n"
    )
    arguments = ["write", "mine:items", "t@2", "--map", "mine:mapped", "-j", "2", "--overwrite"]
    quiet = run(*arguments, cwd=tmp_path)
    assert quiet.returncode == 0, quiet.stderr
    assert "noise" not in quiet.stderr
    assert "a word of mine" in quiet.stderr
    verbose = run(*arguments, "-v", cwd=tmp_path)
    assert "noise of the source" in verbose.stderr
    assert "noise of a worker" in verbose.stderr


def test_swapped_arguments_are_recognized(table: Path) -> None:
    (table.parent / "my photos").mkdir()
    for there in ("my photos", "table.csv"):
        done = run("write", "out/train@4", there, cwd=table.parent)
        assert done.returncode == 2
        assert "swapped" in done.stderr
        assert f"shardwriter write {shlex.join([there, 'out/train@4'])}" in done.stderr
    assert not (table.parent / "out").exists()
    # A dataset's name is a source too, as long as OUT is new.
    assert run("write", "table.csv", "out/train@4", cwd=table.parent).returncode == 0
    again = run("write", "out/train@4", "out/more@2", "--format", "tfrecord", cwd=table.parent)
    assert again.returncode == 0


@pytest.mark.parametrize("out", ["out/tra\nin@2", "out/train@2\n", "ou\x1bt/train@2", "out/\x9b@2"])
def test_an_output_with_a_control_character_is_refused(table: Path, out: str) -> None:
    done = run("write", "table.csv", out, cwd=table.parent)
    assert done.returncode == 2
    assert "has a control character" in done.stderr
    assert repr(out)[1:-1] in done.stderr
    assert [path.name for path in table.parent.iterdir()] == ["table.csv"]


def test_a_file_of_something_else_is_no_damaged_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(range(256)) * 8)
    stats = run("stats", "a.jpg", cwd=tmp_path)
    assert stats.returncode == 1
    assert "nothing in this file is a TFRecord" in stats.stdout
    assert "repair" not in stats.stdout
    for more in ((), ("--dry-run",)):
        repair = run("repair", "a.jpg", "fixed", *more, cwd=tmp_path)
        assert repair.returncode == 1
        assert "nothing in this file is a TFRecord" in repair.stderr
        assert "shardwriter write" in repair.stderr
    assert not list(tmp_path.glob("fixed/*"))


def test_a_shard_whose_first_record_is_damaged_is_still_to_be_repaired(
    table: Path, tmp_path: Path
) -> None:
    assert run("write", table, tmp_path / "t@2").returncode == 0
    shard = tmp_path / "t.tfrecord-00000-of-00002"
    alone = tmp_path / "alone.tfrecord"
    alone.write_bytes(b"\xff\xd8" + shard.read_bytes()[2:])
    shard.write_bytes(b"\xff" * 1000)
    for path in (alone, tmp_path / "t"):
        assert "`shardwriter repair PATH OUT` keeps" in run("stats", path).stdout
