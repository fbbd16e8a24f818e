"""Scanning many files with several processes: the same scans, in order, whatever happens."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import MARK, PLENTY_S, children, marked, started, until

import shardwriter as sw
from shardwriter.errors import StorageError, WorkerDied
from shardwriter.inspect import scan_pool
from shardwriter.inspect.scan import FileScan, ScanOptions, scan_file
from shardwriter.inspect.scan_pool import scan_files

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = []
    for number in range(7):
        path = tmp_path / f"{number}.tfrecord"
        with sw.TFRecordWriter(path) as writer:
            for item in range(50 * (number + 1)):
                writer.write(bytes([number]) * (item % 9))
        paths.append(str(path))
    data = bytearray(Path(paths[3]).read_bytes())
    data[8] ^= 1
    Path(paths[3]).write_bytes(data)
    return paths


@needs_proc
def test_processes_say_what_this_one_says(files: list[str], mark: str) -> None:
    alone = scan_files(files, num_workers=1)
    assert [scan.path for scan in alone] == files
    assert alone[3].num_recoverable == 199
    told: list[int] = []
    assert scan_files(files, num_workers=3, progress=told.append) == alone
    assert told == sorted(told)
    assert told[-1] == sum(os.path.getsize(path) for path in files)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_options_arrive(files: list[str], num_workers: int) -> None:
    scans = scan_files(files, ScanOptions("length"), num_workers)
    assert scans[0].crc32c is None


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_is_what_it_was(files: list[str], num_workers: int) -> None:
    gone = files[2] + ".gone"
    with pytest.raises(StorageError) as caught:
        scan_files([*files[:2], gone], num_workers=num_workers)
    assert caught.value.path == gone


def test_an_error_in_a_worker_is_what_it_was(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = files[2] + ".gone"
    monkeypatch.setattr(scan_pool, "_file_bytes", lambda _: 1)
    with pytest.raises(StorageError) as caught:
        scan_files([*files[:2], gone], num_workers=2)
    assert caught.value.path == gone
    assert "worker" in (caught.value.worker or "")


def test_few_bytes_are_read_here(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", never)
    assert len(scan_files(files)) == 7
    assert len(scan_files(files[:1], num_workers=4)) == 1
    assert scan_files([]) == []
    monkeypatch.setattr(scan_pool, "SMALL_BYTES", 0)
    monkeypatch.setattr(scan_pool, "usable_cores", lambda: 2)
    with pytest.raises(AssertionError, match="started"):
        scan_files(files)


@needs_proc
def test_the_death_of_a_worker_names_its_file(tmp_path: Path, mark: str) -> None:
    for name in "ab":
        with sw.TFRecordWriter(tmp_path / name) as writer:
            for _ in range(200_000):
                writer.write(b"abcd")
    paths = [str(tmp_path / name) for name in "ab"]

    def kill(_: int) -> None:
        for process in children(os.getpid()):
            os.kill(process, signal.SIGKILL)

    with pytest.raises(WorkerDied, match="SIGKILL") as caught:
        scan_files(paths, num_workers=2, progress=kill)
    assert caught.value.path in paths


SCRIPT = """
import sys
from shardwriter.inspect.scan_pool import scan_files
print(sum(scan.num_records for scan in scan_files(sys.argv[1:], num_workers=2)))
"""


@pytest.mark.parametrize("by", ["-c", "script", "stdin"])
def test_any_program_can_scan(files: list[str], tmp_path: Path, by: str) -> None:
    script = tmp_path / "no_guard.py"
    script.write_text(SCRIPT)
    first = {"-c": ["-c", SCRIPT], "script": [str(script)], "stdin": ["-"]}[by]
    done = subprocess.run(
        [sys.executable, *first, *files],
        input=SCRIPT if by == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=PLENTY_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"{50 * 28 - 200}\n", "")


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nobody_is_left_when_the_program_ends(tmp_path: Path, mark: str, how: int) -> None:
    paths = []
    for name in "ab":
        path = tmp_path / name
        path.touch()
        os.truncate(path, 1 << 36)  # zeros without end
        paths.append(str(path))
    with started([sys.executable, "-c", SCRIPT, *paths], stderr=subprocess.DEVNULL) as program:
        until(lambda: len(marked(mark)) == 3, PLENTY_S)
        program.send_signal(how)
        program.wait(PLENTY_S)
    until(lambda: not marked(mark), PLENTY_S)
    assert MARK in os.environ


def test_a_scan_can_be_sent(files: list[str]) -> None:
    scan = scan_file(files[3])
    again: FileScan = pickle.loads(pickle.dumps(scan, 5))
    assert again == scan
