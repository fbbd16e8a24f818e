"""Finished datasets: what is found to be done of them, and what is tried again."""

from __future__ import annotations

import os

import pytest

import shardwriter as sw
from shardwriter.errors import (
    CallableError,
    DataError,
    OutputExists,
    RunChanged,
    SourceError,
    TooManyErrors,
)
from shardwriter.writing.options import RunOptions


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Values:
    """Items with values of their own; those in ``bad`` fail as long as a file is there."""

    def __init__(self, values, bad=(), switch=None):
        self.values, self.bad, self.switch = values, bad, switch

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if index in self.bad and os.path.exists(self.switch):
            raise ValueError("boom")
        return {"x": self.values[index]}


@pytest.fixture
def switch(tmp_path):
    path = tmp_path / "switch"
    path.touch()
    return path


def test_other_data_of_the_same_length_is_found(tmp_path):
    sw.write(list(map(bytes, [[1], [2], [3]])), tmp_path / "t@2")
    before = files(tmp_path)
    with pytest.raises(RunChanged, match="a different record now"):
        sw.write(list(map(bytes, [[4], [5], [6]])), tmp_path / "t@2", resume=True)
    assert files(tmp_path) == before


def test_items_are_not_tried_again_of_other_data(tmp_path, switch):
    sw.write(Values(range(20), [3], switch), tmp_path / "out/t@4", on_error="skip")
    before = files(tmp_path / "out")
    switch.unlink()
    other = Values(range(1000, 1020), [3], switch)
    with pytest.raises(RunChanged, match="a different record now"):
        sw.write(other, tmp_path / "out/t@4", run=RunOptions(retry_errors=True))
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("values", [[1.0, *[1] * 7], [1, *[1.0] * 7]])
def test_a_label_is_spelled_as_if_nothing_had_failed(tmp_path, switch, values):
    schema = "x=float"
    data = Values(values, [0], switch)
    sw.write(data, tmp_path / "out/t@2", on_error="skip", label="x", schema=schema)
    switch.unlink()
    run = RunOptions(retry_errors=True)
    sw.write(data, tmp_path / "out/t@2", run=run, label="x", schema=schema)
    whole = sw.write(data, tmp_path / "whole/t@2", label="x", schema=schema)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert whole.labels["counts"] == {"1.0": 8}


def test_a_copy_with_a_damaged_record_is_retried(tmp_path):
    sw.write([{"x": i} for i in range(20)], tmp_path / "a/s@1")
    shard = tmp_path / "a/s.tfrecord-00000-of-00001"
    times, good = os.stat(shard), shard.read_bytes()
    bad = bytearray(good)
    bad[45] ^= 1
    shard.write_bytes(bad)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    source = tmp_path / "a/s"
    manifest = sw.write(source, tmp_path / "out/t@2", on_error="skip")
    assert (manifest.num_records, list(manifest.gaps)) == (19, [1])
    assert manifest.features == {}  # of the records that are left nothing is known
    shard.write_bytes(good)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    sw.write(source, tmp_path / "out/t@2", run=RunOptions(retry_errors=True))
    whole = sw.write(source, tmp_path / "whole/t@2")
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert whole.features["x"].present == 20


def test_idx_files_stay_with_the_shards_that_stay(tmp_path, switch):
    data = Values(range(20), [3], switch)
    run = RunOptions(on_error="skip", dali_index=True)
    sw.write(data, tmp_path / "out/t@4", run=run)
    switch.unlink()
    sw.write(data, tmp_path / "out/t@4", run=RunOptions(retry_errors=True))
    sw.write(data, tmp_path / "whole/t@4", run=RunOptions(dali_index=True))
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_idx_files_of_a_finished_dataset_are_made_by_another_command(tmp_path):
    notes = []
    sw.write([b"x"], tmp_path / "t@1")
    run = RunOptions(resume=True, dali_index=True)
    sw.write([b"x"], tmp_path / "t@1", run=run, notify=notes.append)
    assert any("shardwriter index --idx" in note for note in notes)


def test_a_budget_holds_for_a_finished_dataset(tmp_path, switch):
    data = Values(range(20), [3], switch)
    sw.write(data, tmp_path / "t@4", on_error="skip")
    run = RunOptions(resume=True, on_error="skip", max_errors=0)
    with pytest.raises(TooManyErrors):
        sw.write(data, tmp_path / "t@4", run=run)


def test_a_ledger_that_is_gone_is_missed(tmp_path, switch):
    data = Values(range(20), [3], switch)
    sw.write(data, tmp_path / "t@4", on_error="skip")
    (tmp_path / "t.errors.jsonl").unlink()
    notes = []
    run = RunOptions(retry_errors=True)
    sw.write(data, tmp_path / "t@4", run=run, notify=notes.append)
    assert any("there is no t.errors.jsonl" in note for note in notes)


@pytest.mark.parametrize(
    ("out", "more", "what"),
    [
        ("t@3", {}, "number of shards"),
        ("t@2.gz", {}, "the file names has changed"),
        ("t@2", {"shuffle_seed": 1}, "shuffle_seed="),
        ("t@2", {"limit": 3}, "an option or the code of the map"),
    ],
)
def test_a_dataset_of_another_job_is_refused_with_the_difference(tmp_path, out, more, what):
    sw.write([b"x"] * 5, tmp_path / "t@2")
    with pytest.raises(OutputExists, match=what):
        sw.write([b"x"] * 5, tmp_path / out, resume=True, **more)


# -- sources that come to another end --------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_is_shorter_now_costs_nothing(tmp_path, workers):
    def look(item):
        if item == 40 and os.path.exists(tmp_path / "switch"):
            raise ValueError("boom")
        return {"x": item}

    length = [60]

    def items():
        return iter(range(length[0]))

    (tmp_path / "switch").touch()
    with pytest.raises(CallableError):
        sw.write(items, tmp_path / "out/t@4", map=look, run=RunOptions(mark_s=0))
    (tmp_path / "switch").unlink()
    length[0] = 10
    run = RunOptions(mark_s=0, resume=True, workers=workers)
    with pytest.raises(RunChanged, match="10 items now, and 40 or more before"):
        sw.write(items, tmp_path / "out/t@4", map=look, run=run)
    length[0] = 60
    sw.write(items, tmp_path / "out/t@4", map=look, run=run)
    sw.write(items, tmp_path / "whole/t@4", map=look)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


# -- what is passed on -----------------------------------------------------------------------------


def test_many_errors_do_not_go_to_the_workers(tmp_path, monkeypatch, switch):
    from shardwriter.writing import process

    class Wordy(Values):
        def __getitem__(self, index):
            if index % 2 and os.path.exists(self.switch):
                raise SourceError("x" * 4000)
            if index == 90 and os.path.exists(self.switch):
                raise sw.DataError("the last one")
            return {"x": index}

    data = Wordy(range(100), (), switch)
    run = RunOptions(mark_s=0, on_error="skip", max_errors=45)
    with pytest.raises(TooManyErrors):
        sw.write(data, tmp_path / "out/t@4", run=run)
    monkeypatch.setattr(process, "MAX_SETUP_BYTES", 100_000)
    run = RunOptions(resume=True, on_error="skip", workers=2)
    manifest = sw.write(data, tmp_path / "out/t@4", run=run)
    assert len(manifest.gaps) == 51


def test_a_record_that_can_not_be_made_again_just_now_is_said_to_be_a_check(tmp_path, switch):
    with pytest.raises(CallableError):
        sw.write(Values(range(9), [8], switch), tmp_path / "t@1", run=RunOptions(mark_s=0))
    with pytest.raises(DataError, match="item 7") as caught:
        sw.write(Values(range(9), [7], switch), tmp_path / "t@1", resume=True)
    assert "--resume again" in (caught.value.hint or "")


def test_a_ledger_does_not_say_how_the_source_was_spelled(tmp_path, monkeypatch):
    (tmp_path / "photos/cat").mkdir(parents=True)
    (tmp_path / "photos/cat/a.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    sw.write("photos", tmp_path / "1/t@1", on_error="skip")
    sw.write(tmp_path / "photos", tmp_path / "2/t@1", on_error="skip")
    assert files(tmp_path / "1") == files(tmp_path / "2")
