"""The Beam jobs as people run them: the bytes, what is printed where, and the exit codes.

Commands are started together where they do not need each other: importing Beam takes seconds.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")

from gcs_emulator import gcs_emulator
from paths import ROOT

import shardwriter
from shardwriter.cli.beam import JobArguments, dataflow_command, main, told
from shardwriter.dataset.naming import parse_output
from shardwriter.errors import RunError, SourceError
from shardwriter.storage.protocol import storage_for

PIPELINES = ROOT / "pipelines"
JOBS = {"write": "write_shards.py", "stats": "shard_stats.py", "reshard": "reshard.py"}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


class Done:
    """A command that has ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.stdout, self.stderr = process.communicate(timeout=60)
        self.code = process.returncode

    def told(self) -> Any:
        assert self.code == 0, self.stderr
        return json.loads(self.stdout)


def run(cwd: Path, *commands: str) -> list[Done]:
    """Run commands at the same time: ``beam ...``, ``script write ...``, ``shardwriter ...``."""
    started = []
    for command in commands:
        kind, *words = shlex.split(command)
        if kind == "script":
            words = [str(PIPELINES / JOBS[words[0]]), *words[1:]]
        else:
            words = ["-m", *{"beam": ["shardwriter", "beam"]}.get(kind, [kind]), *words]
        started.append(
            subprocess.Popen(
                [sys.executable, *words],
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return [Done(process) for process in started]


def run_here(capsys: pytest.CaptureFixture[str], *commands: str) -> list[tuple[int, str, str]]:
    """Run commands ``beam ...`` that run no job, without a process for each."""
    done = []
    for command in commands:
        arguments = ["shardwriter", *shlex.split(command)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", arguments)
            patch.setenv("COLUMNS", "80")
            with pytest.raises(SystemExit) as ended:
                main()
        found = capsys.readouterr()
        done.append((int(ended.value.code or 0), found.out, found.err))
    return done


def said(stdout: str) -> list[str]:
    """The lines of a summary, without the time."""
    lines = [line.rstrip() for line in stdout.splitlines()]
    return [line for line in lines if not line.startswith("time")]


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def assert_good(done: Sequence[Done]) -> None:
    for command in done:
        assert command.code == 0, command.stderr


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input of every kind, and a module."""
    folder = tmp_path_factory.mktemp("inputs")
    for label in ("cat", "dog"):
        (folder / "photos" / label).mkdir(parents=True)
        for i in range(70):
            # What follows the end of the image is part of the item.
            (folder / "photos" / label / f"{i}.png").write_bytes(PNG + bytes([i]) * i)
    rows = [f"{i},n{i}" for i in range(150)]
    (folder / "rows.csv").write_text("\n".join(["id,name", *rows]) + "\n")
    (folder / "rows.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(150)))
    shardwriter.write([b"%d" % i * (i % 7) for i in range(150)], folder / "records@4")
    (folder / "of_the_jobs.py").write_text(
        "class Items:\n"
        "    def __len__(self): return 150\n"
        "    def __getitem__(self, i):\n"
        "        if i in self.bad: raise ValueError('no good')\n"
        "        return {'id': i}\n"
        "    def __init__(self, bad=()): self.bad = bad\n"
        "items = Items()\n"
        "some_bad = Items((120, 136))\n"
        "def generated():\n"
        "    print('printed by the source')\n"
        "    for i in range(150): yield {'id': i}\n"
        "def double(features):\n"
        "    return {**features, 'twice': 2 * features['id']}\n"
        "def broken(features):\n"
        "    if features['id'] == 139: raise ValueError('what is this')\n"
        "    return features\n"
    )
    return folder


def test_every_source_gives_the_bytes_of_shardwriter_write(inputs: Path) -> None:
    jobs = {
        "images": "write photos OUT/t@3 --shuffle --seed 5 --index",
        "csv": "write rows.csv OUT/t --shards 4 --order key --key id --map of_the_jobs:double",
        "jsonl": "write rows.jsonl OUT/t@4.gz --limit 99 --label id",
        "python": "write of_the_jobs:generated OUT/t@3 --compression zlib --deflate zlib-6",
    }
    ways = {"images": "beam", "csv": "script", "jsonl": "beam", "python": "script"}
    by_beam = [f"{ways[name]} {job.replace('OUT', f'a-{name}')}" for name, job in jobs.items()]
    serial = [f"shardwriter {job.replace('OUT', f'b-{name}')}" for name, job in jobs.items()]
    done = run(inputs, *by_beam, *serial)
    assert_good(done)
    for name, mine, other in zip(jobs, done, done[len(jobs) :], strict=False):
        assert files(inputs / f"a-{name}") == files(inputs / f"b-{name}"), name
        assert said(mine.stdout.replace("a-", "b-")) == said(other.stdout)
        assert "FnApiRunner" in mine.stderr
        assert not {p.name for p in (inputs / f"a-{name}").iterdir() if p.is_dir()}
    notes = [line for line in done[6].stderr.splitlines() if line.startswith("note")]
    assert notes
    assert set(notes) <= set(done[2].stderr.splitlines())
    assert "printed by the source" in done[3].stderr


def test_reshard_and_stats_say_what_the_commands_say(inputs: Path) -> None:
    assert_good(run(inputs, "shardwriter write records@4 r-other/t@3 --format tfrecord"))
    (inputs / "r-damaged").mkdir()
    for path in inputs.glob("records-*-of-*"):
        data = path.read_bytes()
        (inputs / "r-damaged" / path.name).write_bytes(
            data[:-1] if "00002-of" in path.name else data
        )
    reshard, strided, by_beam, by_script, mine, table, damaged = run(
        inputs,
        "beam reshard records@4 r-beam/t@3 --json --runner=FnApiRunner",
        "script reshard records r-strided/t@3 --strategy strided --json --runner FnApiRunner",
        "beam stats records@4 --json",
        "script stats records --check length --out r-stats.json",
        "shardwriter stats records@4 --json",
        "shardwriter stats records --check length",
        "beam stats r-damaged --json",
    )
    assert reshard.told()["strategy"] == "chunked"
    assert strided.told()["strategy"] == "strided"
    assert strided.told()["num_records"] == 150
    for way in ("beam", "strided"):
        assert files(inputs / f"r-{way}") == files(inputs / "r-other")
    assert reshard.stderr == ""  # a runner was named
    assert by_beam.stdout == mine.stdout
    assert by_script.stdout == table.stdout
    assert json.loads((inputs / "r-stats.json").read_text())["check"] == "length"
    assert damaged.code == 1
    assert [d["kind"] for d in json.loads(damaged.stdout)["defects"]] == ["truncated"]


def test_errors_in_workers_say_what_where_and_what_to_do(inputs: Path) -> None:
    wrong = {
        "write rows.csv e-map/t@4 --map of_the_jobs:broken": "item 139, 'row 139': the map raised",
        "write of_the_jobs:some_bad e-item/t@4": "item 120: loading the item raised ValueError",
    }
    done = run(inputs, *(f"beam {command}" for command in wrong))
    for words, found in zip(wrong.values(), done, strict=True):
        assert (found.code, found.stdout) == (1, "")
        assert f"error: {words}" in found.stderr
        assert "Traceback" not in found.stderr
    assert "  do:  " in done[0].stderr
    assert "--resume continues it" in done[1].stderr
    assert not list(inputs.glob("e-*/t*"))


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("write rows.csv none/t@4 --frobnicate 3", 2, ["--frobnicate"]),
        ("write rows.csv none/t@4 --num_workers=few", 2, ["--num_workers", "few"]),
        ("write rows.csv none/t@4 --project", 2, ["--project"]),
        ("write rows.csv none/t@4 -j4", 2, ["-j", "--num_workers"]),
        ("write rows.csv none/t@4 --dry-run", 2, ["--dry-run", "shardwriter write"]),
        ("write rows.csv there/t@2 --runner=FnApiRunner", 2, ["exists already", "--overwrite"]),
        ("write rows.csv none/t@4 --runner=DataflowRunner", 2, ["rows.csv", "gs://"]),
        ("write rows.csv none/t@4 --runner=NoRunner", 2, ["NoRunner"]),
        ("write rows.csv none/t@4 --runner=no.such.Runner", 2, ["--runner", "no"]),
        ("write rows.csv none/t@4 --dry_run=True", 2, ["DataflowRunner"]),
        ("stats there --runner=FlinkRunner", 2, ["--out"]),
        ("stats no-such-set", 2, ["no-such-set"]),
        ("reshard rows.csv none/t@4", 1, ["rows.csv"]),
    ],
)
def test_what_can_not_work_is_refused(
    command: str,
    code: int,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rows.csv").write_text("id\n1\n")
    shardwriter.write([{"id": 1}], tmp_path / "there" / "t@2")
    monkeypatch.chdir(tmp_path)
    ((found, stdout, stderr),) = run_here(capsys, f"beam {command}")
    assert (found, stdout) == (code, ""), stderr
    assert [word for word in words if word not in stderr] == [], stderr
    assert not (tmp_path / "none").exists()


def test_bad_items_plans_and_resuming(inputs: Path) -> None:
    skip = "--on-error skip --max-errors 2 --json"
    skipped, serial, too_many, planned, failed = run(
        inputs,
        f"beam write of_the_jobs:some_bad p-a/t@4 {skip}",
        f"shardwriter write of_the_jobs:some_bad p-b/t@4 {skip}",
        "beam write of_the_jobs:some_bad p-c/t@4 --on-error skip --max-errors 1",
        "beam write rows.jsonl p-d/t@auto --plan plan.json",
        "beam write of_the_jobs:items p-e/t@4 --map of_the_jobs:broken",
    )
    mine, others = skipped.told(), serial.told()
    assert mine.pop("strategy") == "strided"
    assert mine["errors"] == 2
    assert mine.keys() == others.keys()
    same = mine.keys() - {"elapsed_s", "stages_s", "manifest"}
    assert {name: mine[name] for name in same} == {name: others[name] for name in same}
    assert files(inputs / "p-a") == files(inputs / "p-b")
    assert too_many.code == 1
    assert "gave an error, and 1 may" in too_many.stderr
    assert planned.code == 0
    assert failed.code == 1
    assert "--resume continues it" in failed.stderr
    plan = (inputs / "plan.json").read_bytes()
    changed = inputs / "changed"
    changed.mkdir()
    (changed / "rows.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(151)))
    again, refused, busy, resumed = run(
        inputs,
        "beam write rows.jsonl p-d/t@auto --plan plan.json --overwrite",
        "beam write changed/rows.jsonl p-f/t@auto --plan plan.json",
        "beam write of_the_jobs:items p-e/t@5",
        "beam write of_the_jobs:some_bad p-a/t@4 --on-error skip --resume",
    )
    assert again.code == 0, again.stderr
    assert (inputs / "plan.json").read_bytes() == plan
    assert refused.code == 2
    assert "the plan is of another job" in refused.stderr
    assert busy.code in (2, 3)
    assert resumed.code == 0, resumed.stderr
    assert files(inputs / "p-a") == files(inputs / "p-b")


def test_a_job_that_is_interrupted_says_so(tmp_path: Path) -> None:
    (tmp_path / "slow_items.py").write_text(
        "import sys, time\n"
        "class Items:\n"
        "    def __len__(self): return 200\n"
        "    def __getitem__(self, i):\n"
        "        print('item', i, file=sys.stderr, flush=True)\n"
        "        time.sleep(0.01 if i % 50 else 0.2)\n"
        "        return {'x': i}\n"
        "items = Items()\n"
    )
    command = [sys.executable, "-m", "shardwriter", "beam", "write", "slow_items:items", "out/t@2"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "item 1\n" not in process.stderr.readline() and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.stdout.read() == ""
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said


def test_the_command_for_dataflow(
    inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(inputs)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done, local, stats = run_here(
        capsys,
        "beam write gs://in/rows.csv gs://out/t@64 --dataflow-command --project mine --label 'a b'"
        " --map of_the_jobs:double --runner=FnApiRunner --shuffle",
        "beam write rows.csv gs://out/t@64 --dataflow-command",
        "beam stats gs://out/t --dataflow-command --out gs://out/s.json --region=here",
    )
    assert done[0] == 0, done
    version = shardwriter.__version__
    assert done[1].split(" \\\n  ") == [
        "shardwriter beam write gs://in/rows.csv gs://out/t@64",
        "--label 'a b'",
        "--map of_the_jobs:double",
        "--shuffle",
        "--runner=DataflowRunner",
        "--project mine",
        "--region=REGION",
        "--temp_location=gs://BUCKET/tmp",
        f"--extra_package=dist/shardwriter-{version}-py3-none-any.whl\n",
    ]
    assert "of_the_jobs:double" in done[2]
    assert local[:2] == (2, "")
    assert "rows.csv" in local[2]
    assert stats[1].startswith("shardwriter beam stats gs://out/t \\\n")
    assert "--region=here" in stats[1]


def test_jobs_on_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("google.cloud.storage", reason="Beam's part for Google Cloud is missing")
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(100)))
    shardwriter.write(tmp_path / "rows.csv", tmp_path / "out" / "t@3")
    monkeypatch.chdir(tmp_path)
    with gcs_emulator() as bucket:
        written, there, stats, table, none = run_here(
            capsys,
            f"beam write rows.csv {bucket}/out/t@3 --json --runner=FnApiRunner",
            f"beam write rows.csv {bucket}/out/t@3",
            f"beam stats {bucket}/out/t --json --out {bucket}/stats.json",
            f"beam stats {bucket}/out/t",
            f"beam reshard {bucket}/out/nothing {bucket}/out/u@2",
        )
        names = storage_for(bucket).list(f"{bucket}/out")
        found = {name: storage_for(bucket).read(f"{bucket}/out/{name}") for name in names}
        kept = storage_for(bucket).read(f"{bucket}/stats.json")
    assert written[0] == 0, written
    assert json.loads(written[1])["manifest"] == f"{bucket}/out/t.manifest.json"
    assert found == files(tmp_path / "out")
    assert there[0] == 2
    assert "exists already" in there[2]
    assert stats[0] == 0, stats
    assert stats[1] == (kept or b"").decode()
    assert json.loads(stats[1])["num_records"] == 100
    assert "OK: 100 records in 3 shards" in table[1]
    assert none[0] == 2
    assert "nothing" in none[2]


def test_what_the_user_says_of_the_container_stays() -> None:
    typed = JobArguments([["a"], ["-"]], [["--sdk_container_image=x"], ["--region", "r"]])
    lines = dataflow_command(typed, "write", "w.whl").split(" \\\n  ")
    assert lines[0] == "shardwriter beam write a -"
    assert lines[2:4] == ["--sdk_container_image=x", "--region r"]
    assert not [line for line in lines if "w.whl" in line]


@pytest.mark.parametrize(
    ("runner", "more", "here"),
    [
        ("FnApiRunner", [], True),
        ("direct", [], True),
        ("apache_beam.runners.dask.dask_runner.DaskRunner", [], True),
        ("DaskRunner", [["--dask_client_address", "tcp://x"]], False),
        ("PortableRunner", [["--environment_type=LOOPBACK"]], True),
        ("PortableRunner", [], False),
        ("DataflowRunner", [], False),
    ],
)
def test_where_the_workers_are(runner: str, more: list[list[str]], here: bool) -> None:
    assert JobArguments([], [[f"--runner={runner}"], *more]).runs_here is here


def test_an_error_that_came_as_text_is_told_as_ours() -> None:
    text = (
        "Pipeline job-1 failed in state FAILED: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "shardwriter.errors.SourceError: item 5, 'cat.jpg': not an image\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "shardwriter.errors.SourceError: not an image [while running 'WriteShards/WriteShard']\n"
    )
    error = told(RuntimeError(text))
    assert (type(error), str(error)) == (SourceError, "item 5, 'cat.jpg': not an image")
    only = told(RuntimeError(text.splitlines()[-1]))
    assert (type(only), str(only)) == (SourceError, "not an image")
    other = told(ValueError("one\ntwo [while running 'A/B']\n"))
    assert (type(other), other.message) == (RunError, "two")
    assert told(KeyError()).message == "KeyError"


def test_an_error_of_this_process_keeps_where_and_what_to_do() -> None:
    first = SourceError("not an image", index=5, hint="look at it")
    again = SourceError("not an image [while running 'A/B']")
    again.__context__ = first
    outer = RuntimeError("failed")
    outer.__cause__ = again
    error = told(outer)
    assert (error.summary, error.hint) == ("item 5: not an image", "look at it")


@pytest.mark.parametrize("out", ["a/t@4", "t", "gs://b/t@7.gz", "x/train@3.record", "t.tfrecord"])
def test_an_output_is_spelled_as_it_is_understood(out: str) -> None:
    output = parse_output(out, urls=True)
    assert parse_output(output.notation, None, output.compression, urls=True) == output


def test_help_has_examples_and_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for job in JOBS:
        ((code, stdout, _),) = run_here(capsys, f"beam {job} --help")
        assert code == 0
        assert f"Example: shardwriter beam {job} " in stdout
        assert max(map(len, stdout.splitlines())) <= 80


def test_the_commands_of_one_machine_import_no_beam() -> None:
    code = (
        "import sys, shardwriter.cli\n"
        "sys.argv = ['shardwriter', '--help']\n"
        "try: shardwriter.cli.main()\n"
        "except SystemExit: pass\n"
        "print('apache_beam' in sys.modules, 'shardwriter.cli.beam' in sys.modules)\n"
    )
    environment = {**os.environ, "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("words", [["write", "a", "b@2"], ["stats", "a"], ["--help"]])
def test_without_beam(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "apache_beam.py").write_text("raise ImportError('no Beam here')")
    done = subprocess.run(
        [sys.executable, "-m", "shardwriter", "beam", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if words == ["--help"]:
        assert done.returncode == 0
        return
    assert done.returncode == 3
    assert "needs Apache Beam: no Beam here" in done.stderr
    assert 'pip install "shardwriter[beam]"' in done.stderr
    assert "Traceback" not in done.stderr
