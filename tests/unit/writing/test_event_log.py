"""``--log-dir``: event files that TensorBoard reads, and a write that does not depend on them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import OptionError, StorageError
from shardwriter.formats.events import scalars_event, version_event
from shardwriter.writing import event_log
from shardwriter.writing.engine import Work
from shardwriter.writing.event_log import EventLog
from shardwriter.writing.stages import STAGES

event_pb2 = pytest.importorskip(
    "tensorboard.compat.proto.event_pb2", reason="TensorBoard is not installed"
)


class Slow:
    """Items that take a while, which any process can load."""

    def __init__(self, count: int, item_s: float = 0.0) -> None:
        self.count, self.item_s = count, item_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, int]:
        time.sleep(self.item_s)
        if index == 7:
            raise ValueError("seven")
        return {"x": index}


def events(path: Path) -> list[Any]:
    return [event_pb2.Event.FromString(record) for record in sw.read_records(path)]


def scalars(path: Path) -> list[tuple[int, dict[str, float]]]:
    first, *points = events(path)
    assert first.file_version == "brain.Event:2"
    return [(p.step, {v.tag: v.simple_value for v in p.summary.value}) for p in points]


def files(log_dir: Path) -> dict[str, Path]:
    found = {}
    for folder in log_dir.iterdir():
        (path,) = folder.iterdir()
        assert re.fullmatch(rf"events\.out\.tfevents\.\d{{10}}\..+\.{folder.name}", path.name)
        found[folder.name] = path
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_an_event_is_what_protobuf_encodes() -> None:
    assert event_pb2.Event.FromString(version_event(12.5)) == event_pb2.Event(
        wall_time=12.5, file_version="brain.Event:2"
    )
    values = {"a": 0.1, "ü/b": -3.0, "huge": 1e300, "nan": float("nan")}
    for step in (0, 1, 127, 128, 2**40):
        mine = scalars_event(99.25, step, values, {"a": "what a is"})
        theirs = event_pb2.Event(wall_time=99.25, step=step)
        for tag, number in values.items():
            value = theirs.summary.value.add(tag=tag, simple_value=number)
            if tag == "a":
                value.metadata.summary_description = "what a is"
        # The order of fields is protobuf's too, so the bytes are the same.
        assert mine == theirs.SerializeToString(deterministic=True)


def test_two_workers_are_read_by_tensorboards_event_accumulator(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_dir = tmp_path / "log"
    run = sw.RunOptions(log_dir=log_dir, on_error="skip")
    sw.write(Slow(2400, 0.001), tmp_path / "t@4", workers=2, run=run)
    found = files(log_dir)
    assert sorted(found) == ["main", "w0", "w1"]
    items = {}
    for name in found:
        accumulator = EventAccumulator(str(log_dir / name))
        accumulator.Reload()
        tags = accumulator.Tags()["scalars"]
        assert {f"stage_s/{stage}" for stage in STAGES} < set(tags)
        rates = accumulator.Scalars("rate/items_per_s")
        assert len(rates) >= 2, "a point a second, and one at the end"
        assert all(a.step <= b.step for a, b in pairwise(rates))
        assert 0 < rates[0].value < 2500
        items[name] = accumulator.Scalars("done/items")[-1].value
        shares = sum(accumulator.Scalars(f"stage_share/{stage}")[0].value for stage in STAGES)
        assert shares == pytest.approx(1, abs=1e-5)
        summary = accumulator.SummaryMetadata("rate/items_per_s")
        assert "second" in summary.summary_description
    assert items["w0"] + items["w1"] == items["main"] == 2400
    last = {name: scalars(path)[-1] for name, path in found.items()}
    assert sum(last[name][1]["done/errors"] for name in ("w0", "w1")) == 1
    assert last["main"][0] == 2400
    assert last["main"][1]["done/records"] == 2399


def test_tensorflow_reads_an_event_file(tmp_path: Path, tf: Any) -> None:
    sw.write(Slow(5), tmp_path / "t@2", run=sw.RunOptions(log_dir=tmp_path / "log"))
    (path,) = files(tmp_path / "log").values()
    read = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
    assert [e.SerializeToString() for e in read] == [e.SerializeToString() for e in events(path)]
    assert read[0].file_version == "brain.Event:2"
    assert len(read) == 2, "a short write has one point"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_dataset_is_the_same_with_a_log(tmp_path: Path, workers: int) -> None:
    for name, log_dir in (("plain", None), ("logged", tmp_path / "logged" / "log")):
        run = sw.RunOptions(log_dir=log_dir)
        sw.write(Slow(6), tmp_path / name / "t@3", workers=workers, run=run)
    assert contents(tmp_path / "plain") == contents(tmp_path / "logged")
    assert sw.stats(tmp_path / "logged").verdict.startswith("OK: 6 records")
    expected = ["w0"] if workers == 1 else ["main", "w0", "w1"]
    assert sorted(files(tmp_path / "logged" / "log")) == expected


def test_the_steps_of_a_resumed_run_go_on(tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    command = [sys.executable, "-m", "shardwriter", "write", "slow:items", tmp_path / "t@4"]
    command += ["--workers", "2", "--log-dir", log_dir]
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        "class Items:\n"
        "    def __len__(self): return 4000\n"
        "    def __getitem__(self, i):\n"
        "        time.sleep(float(os.environ['ITEM_S']))\n"
        "        return {'x': i}\n"
        "items = Items()\n"
    )
    environment = os.environ | {"ITEM_S": "0.002"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as run:
        while not any(len(p.read_bytes()) > 60 for p in log_dir.glob("w1/*")):
            time.sleep(0.02)
            assert run.poll() is None
        time.sleep(0.6)
        run.send_signal(signal.SIGKILL)
    before = {name: scalars(path) for name, path in files(log_dir).items()}
    assert before["w1"], "what was written before the kill is whole"
    done = subprocess.run(
        [*command, "--resume", "--json"],
        cwd=tmp_path,
        env=os.environ | {"ITEM_S": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_records"] == 4000
    for name in ("main", "w0", "w1"):
        old, new = sorted((log_dir / name).iterdir())
        assert scalars(old) == before[name], "an earlier file is left alone"
        steps = [step for path in (old, new) for step, _ in scalars(path)]
        assert steps == sorted(steps), name
    assert scalars(new)[-1][1]["done/items"] < 4000, "a worker counts what it has done itself"


def test_a_file_of_the_same_second_is_not_written_over(tmp_path: Path) -> None:
    for _ in range(3):
        with EventLog(tmp_path, "w0") as log:
            log.finish(Work(3, None, 10))
    assert [len(events(path)) for path in (tmp_path / "w0").iterdir()] == [2, 2, 2]


def test_rates_are_those_of_the_time_between_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 50.0
    monkeypatch.setattr(event_log.time, "monotonic", lambda: now)
    seconds = {"read": 0.0, "write": 0.0}
    with EventLog(tmp_path, "w0", first_step=1000) as log:
        now += 0.5
        log.report(Work(10, None, 1_000_000))  # too early
        now += 0.5
        seconds["read"] = 0.75
        log.report(Work(100, None, 2_000_000, 20, 5, seconds))
        now += 2.0
        seconds["read"], seconds["write"] = 1.0, 0.75
        log.report(Work(500, None, 8_000_000, 20, 5, seconds))
        now += 0.125  # so little time that it goes with what was before
        log.finish(Work(525, None, 8_500_000, 20, 5, seconds))
    (path,) = (tmp_path / "w0").iterdir()
    first, second, last = scalars(path)
    assert [step for step, _ in (first, second, last)] == [1100, 1500, 1525]
    rates = ("rate/items_per_s", "rate/records_per_s", "rate/payload_mb_per_s")
    assert [first[1][name] for name in rates] == [100, 80, 2]
    assert [second[1][name] for name in rates] == [200, 200, 3]
    assert [last[1][name] for name in rates] == [200, 200, pytest.approx(6.5 / 2.125)]
    assert (first[1]["stage_share/read"], second[1]["stage_share/read"]) == (1, 0.25)
    assert (last[1]["stage_s/read"], last[1]["stage_s/write"]) == (1, 0.75)
    assert first[1]["done/records"] == 80


def test_a_folder_that_can_not_be_written_is_an_error_before_work_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def never() -> Any:
        raise AssertionError("the source was opened")

    with pytest.raises(StorageError, match="file"):
        sw.write(never, tmp_path / "o/t@2", run=sw.RunOptions(log_dir=tmp_path / "file" / "log"))
    with pytest.raises(OptionError, match="deleted at the end"):
        sw.write(
            never, tmp_path / "o/t@2", run=sw.RunOptions(log_dir=tmp_path / "o/.t.partial/log")
        )
    with pytest.raises(OptionError, match="local folder"):
        sw.write(never, tmp_path / "o/t@2", run=sw.RunOptions(log_dir="gs://bucket/log"))
    with pytest.raises(OptionError, match="log_dir is ''"):
        sw.RunOptions(log_dir="")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_log_that_breaks_off_costs_nothing_but_the_log(tmp_path: Path, workers: int) -> None:
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    (log_dir / "w0").write_text("a file where the folder would be")
    notes: list[str] = []
    manifest = sw.write(
        Slow(6),
        tmp_path / "t@2",
        workers=workers,
        run=sw.RunOptions(log_dir=log_dir),
        notify=notes.append,
    )
    assert manifest.num_records == 6
    (note,) = (note for note in notes if "log" in note)
    assert "the dataset is" in note
    assert "w0" in note
    if workers == 2:
        assert scalars(next((log_dir / "w1").iterdir()))


def test_a_disk_that_is_full_in_mid_run_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog(tmp_path, "w0") as log:
        monkeypatch.setattr(event_log, "EVERY_S", 0.0)
        log._next = 0.0
        log.report(Work(1, None, 1))
        assert log._writer is not None
        full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - the writer closes it
        log._writer._sink.close()
        log._writer._sink = full
        log.report(Work(2, None, 1))
        assert log.failure is not None
        assert "no space left" in log.failure
        log.report(Work(3, None, 1))
        log.finish(Work(4, None, 1))
    (path,) = (tmp_path / "w0").iterdir()
    assert [step for step, _ in scalars(path)] == [1]


def test_the_command_has_it_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    arguments = ["write", str(tmp_path / "t.csv"), str(tmp_path / "o/t@2")]
    arguments += ["--log-dir", str(tmp_path / "log"), "-j", "1"]
    dry = CliRunner().invoke(app, [*arguments, "--dry-run"])
    assert dry.exit_code == 0
    assert not (tmp_path / "log").exists()
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert scalars(files(tmp_path / "log")["w0"])[-1][0] == 2
    again = CliRunner().invoke(app, [*arguments, "--resume"])  # there is nothing to do
    assert again.exit_code == 0
    assert list(files(tmp_path / "log")) == ["w0"]


def test_beam_writes_no_log_and_says_so(tmp_path: Path) -> None:
    beam = pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    from shardwriter.cluster import WriteShards

    run = sw.RunOptions(log_dir=tmp_path / "log")
    pipeline = beam.Pipeline()
    with pytest.raises(OptionError, match="engines of one machine"):
        _ = pipeline | WriteShards(tmp_path / "t@2", source=[{"x": 1}], run=run)
    assert not (tmp_path / "log").exists()
    help_text = CliRunner().invoke(app, ["write", "--help"], env={"COLUMNS": "200"}).output
    assert "not with Beam" in help_text
