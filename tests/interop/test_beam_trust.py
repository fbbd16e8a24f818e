"""What a Beam job keeps beside the output is data of others until it was compared."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import pytest
from beam_jobs import contents

from shardwriter.errors import RunError
from shardwriter.formats.tfrecord import TFRecordWriter

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
from beam_steps import N, made_by, publish_all, task_for

from shardwriter.cluster.keyed import bucket_of, read_bucket, write_bucket
from shardwriter.cluster.launch import pack_json, unpack_json


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.fixture
def in_file(monkeypatch):
    """Have every job lie in a file, and be unpacked in every process."""
    monkeypatch.setattr("shardwriter.cluster.task._INLINE_BYTES", 0)
    monkeypatch.setattr("shardwriter.cluster.task._unpacked", {})


def forged(folder):
    pickled = pickle.dumps(Touch(folder / "ran"))
    return struct.pack("<QQ", 1, len(pickled)) + pickled


@pytest.mark.parametrize("kind", ["forged", "cut", "longer", "empty", "huge"])
def test_a_job_file_that_was_exchanged_is_not_unpickled(tmp_path, in_file, kind):
    task = task_for(tmp_path, strategy="strided")
    path = Path(task.payload.path)
    data = path.read_bytes()
    path.write_bytes(
        {
            "forged": forged(tmp_path),
            "cut": data[:-1],
            "longer": data + b"x",
            "empty": b"",
            "huge": struct.pack("<QQ", 1, 2**62) + data,
        }[kind]
    )
    with pytest.raises(RunError, match="not the file that the launch") as caught:
        made_by(task, 0)
    assert caught.value.path == str(path)
    assert not (tmp_path / "ran").exists()
    path.write_bytes(data)
    assert made_by(task, 0).sealed.num_records


def test_a_bucket_file_that_was_exchanged_is_not_unpickled(tmp_path):
    task = task_for(tmp_path)
    items = [bucket_of({"n": n}, "n", 0, 1)[1] for n in range(20)]
    bucket = write_bucket(task.out, 0, items)
    assert len(list(read_bucket(task.out, bucket))) == 20
    evil = struct.pack("<QQ", 0, 1) + b"k" + pickle.dumps(Touch(tmp_path / "ran"))
    with TFRecordWriter(bucket.path) as writer:  # its frames are whole
        writer.write(evil)
    with pytest.raises(RunError, match="not the file that the job wrote"):
        next(read_bucket(task.out, bucket))
    assert not (tmp_path / "ran").exists()


def rewritten(data, **fields):
    return pack_json({**unpack_json(data), **fields})


@pytest.mark.parametrize(
    "forge",
    [
        lambda data, victim: rewritten(data, path=str(victim)),
        lambda data, victim: rewritten(data, index_path=str(victim)),
        lambda data, victim: rewritten(data, path=f"../{victim.name}"),
        lambda data, victim: rewritten(data, shard=2**70),
        lambda data, victim: rewritten(data, facts=[]),
        lambda data, victim: rewritten(
            data, facts={**unpack_json(data)["facts"], "gaps": [[0, 10**15]]}
        ),
        lambda data, victim: pack_json(None),
        lambda data, victim: data[:-3],
        lambda data, victim: b"no zlib",
    ],
)
def test_a_note_of_a_shard_that_was_forged_counts_for_nothing(tmp_path, forge):
    victim = tmp_path / "victim"
    task = task_for(tmp_path / "out", strategy="strided")
    made = made_by(task, 0)
    victim.write_bytes(Path(made.path).read_bytes())
    note = next((tmp_path / "out" / ".train.partial").glob("done-00000-*"))
    data = note.read_bytes()
    note.write_bytes(forge(data, victim))
    assert task.out.load_finished(0) is None
    note.write_bytes(data)
    assert task.out.load_finished(0).path == made.path
    before = victim.read_bytes()
    publish_all(task)
    assert victim.read_bytes() == before
    assert len(contents(tmp_path / "out")) == N + 2


def cut(data):
    return data[:-8]


def far(data):
    return data[:-8] + (1 << 50).to_bytes(8, "little")


def negative(data):
    return data[:-8] + (2**64 - 1).to_bytes(8, "little")


def backwards(data):
    return data[:-16] + (2**40).to_bytes(8, "little") + data[-8:]


@pytest.mark.parametrize("change", [bytes, cut, far, negative, backwards])
def test_a_shard_whose_rows_were_changed_is_made_again(tmp_path, change):
    task = task_for(tmp_path / "out", strategy="strided")
    made = made_by(task, 0)
    resumed = task_for(tmp_path / "out", strategy="strided", resume=True)
    assert resumed.out.is_resumed
    rows = Path(made.index_path)
    rows.write_bytes(change(rows.read_bytes()))
    again = made_by(resumed, 0)
    assert again.sealed == made.sealed
    assert (again.path == made.path) is (change is bytes)
    publish_all(resumed)


@pytest.mark.parametrize("gaps", [[[0, 1]], [[2**62, 1]], [[1, 1]]])
def test_a_note_with_gaps_that_break_the_law_is_not_used(tmp_path, gaps):
    task = task_for(tmp_path / "out", strategy="strided")
    made = made_by(task, 0)
    note = next((tmp_path / "out" / ".train.partial").glob("done-00000-*"))
    data = note.read_bytes()
    note.write_bytes(rewritten(data, facts={**unpack_json(data)["facts"], "gaps": gaps}))
    resumed = task_for(tmp_path / "out", strategy="strided", resume=True)
    again = made_by(resumed, 0)
    assert (again.sealed, again.facts.gaps) == (made.sealed, made.facts.gaps)
    assert again.path != made.path


def test_a_worker_refuses_a_run_directory_that_is_a_link(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").write_text("x")
    task = task_for(tmp_path / "out", strategy="strided", entered=False)
    (tmp_path / "out").mkdir(exist_ok=True)
    os.symlink(victim, tmp_path / "out" / ".train.partial")
    with pytest.raises(RunError, match="symbolic link"):
        task.out.enter()
    assert os.listdir(victim) == ["thesis"]
