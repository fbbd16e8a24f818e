"""The run directory: one writer at a time, and a publication that is whole or not there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crashes import NEW, NO_SNAPSHOT, OLD, SCHEMA, Crash, CrashingStorage
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.dataset.index import Index, dali_index
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import ShardPattern
from shardwriter.errors import OptionError, OutputBusy, OutputExists, StorageError
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.sources.shard_sets import load_manifest
from shardwriter.storage import LocalStorage
from shardwriter.writing import publication
from shardwriter.writing.journal import Journal, JournaledFile, read_facts
from shardwriter.writing.open_shards import ShardFile
from shardwriter.writing.publication import (
    COMMIT,
    begin_run,
    check_output,
    publish,
    roll_forward,
    write_index,
)
from shardwriter.writing.run_directory import RunDirectory

SOME_WORK = replace(NO_SNAPSHOT, journal_bytes=1)


def fill(run, records, pattern, *, dali=False, job="sha256:00"):
    """Write the shards of a run by the law, and return its manifest."""
    begin_run(run, {"job": job})
    shards = []
    for shard in range(pattern.num_shards):
        path = run.shard_path(shard)
        file = ShardFile(
            run.storage,
            path,
            run.index_path(shard),
            lambda on_flush, path=path: TFRecordWriter(run.storage.create(path), on_flush=on_flush),
        )
        with file:
            for record in records[shard :: pattern.num_shards]:
                file.write(record)
            shards.append(file.seal())
    index = write_index(run, pattern, shards, [], dali=dali)
    order = {"shuffle": None, "split": None}
    source = {"digest": "", "kind": "test"}
    return Manifest(
        pattern, len(records), shards, [], {"type": "none"}, index, job, source, order, SCHEMA
    )


def write_set(directory, records, num_shards=2, *, storage=None, stem="train.tfrecord", dali=False):
    with RunDirectory.claim(str(directory), "train", storage or LocalStorage()) as run:
        check_output(run, overwrite=True)
        manifest = fill(run, records, ShardPattern(stem, num_shards), dali=dali)
        publish(run, manifest)
    return manifest


def snapshot(directory):
    """Names and bytes of all files, those of run directories left out."""
    return {p.name: p.read_bytes() for p in Path(directory).iterdir() if p.is_file()}


def recover(directory):
    """What a later process does first: claim, and finish what was committed."""
    with RunDirectory.claim(str(directory), "train", LocalStorage()) as run:
        check_output(run, overwrite=True)
        run.discard()


# -- publishing ------------------------------------------------------------------------------------


def test_a_published_set_is_all_there_and_nothing_else(tmp_path):
    manifest = write_set(tmp_path, NEW, 3)
    pattern = manifest.pattern
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [*pattern.shard_files, "train.index", "train.manifest.json"]
    )
    assert load_manifest(tmp_path / "train.manifest.json") == manifest
    for shard, file_name in enumerate(pattern.shard_files):
        assert list(read_records(tmp_path / file_name)) == NEW[shard::3]
    index = Index(tmp_path / "train.index")
    assert index.counts.tolist() == [4, 3, 3]
    assert manifest.index.file_bytes == (tmp_path / "train.index").stat().st_size


def test_idx_files_are_published_on_request(tmp_path):
    write_set(tmp_path, NEW, 2, dali=True)
    index = Index(tmp_path / "train.index")
    for shard in range(2):
        text = (tmp_path / f"train.tfrecord-{shard:05d}-of-00002.idx").read_bytes()
        assert text == dali_index(np.asarray(index.ends(shard)))


def test_idx_files_of_an_older_run_do_not_stay(tmp_path):
    write_set(tmp_path, OLD, 2, dali=True)
    write_set(tmp_path, NEW, 2)
    assert not list(tmp_path.glob("*.idx"))


def test_overwriting_removes_other_generations_and_nothing_else(tmp_path):
    write_set(tmp_path, OLD, 3, dali=True)
    bystanders = ["training.tfrecord-00000-of-00003", "notes.txt", "train.csv"]
    for name in bystanders:
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "train-00000-of-00004.tfrecord").write_bytes(b"a stale shard")
    manifest = write_set(tmp_path, NEW, 2)
    assert sorted(snapshot(tmp_path)) == sorted(
        [*manifest.pattern.shard_files, "train.index", "train.manifest.json", *bystanders]
    )


def test_overwriting_with_the_same_job_replaces_shards_that_were_damaged(tmp_path):
    write_set(tmp_path, NEW, 2)
    whole = snapshot(tmp_path)
    (tmp_path / "train.tfrecord-00000-of-00002").write_bytes(b"rotten")
    (tmp_path / "train.tfrecord-00001-of-00002").unlink()
    write_set(tmp_path, NEW, 2)
    assert snapshot(tmp_path) == whole
    write_set(tmp_path, NEW, 2, dali=True)
    assert len(list(tmp_path.glob("*.idx"))) == 2


def test_the_old_manifest_goes_first_and_the_new_one_comes_last(tmp_path):
    write_set(tmp_path, OLD, 2)
    storage = CrashingStorage()
    write_set(tmp_path, NEW, 2, storage=storage)
    calls = storage.calls[storage.calls.index(("publish", "commit.json.new", "commit.json")) :]
    final = [c for c in calls if c[0] in ("publish", "delete") and "train" in c[-1]]
    assert final[0] == ("delete", "train.manifest.json")
    published = [c[-1] for c in final if c[0] == "publish"]
    assert published[-2:] == ["train.index", "train.manifest.json"]
    last = calls.index(("publish", "manifest", "train.manifest.json"))
    # Every other name is on the disk before the manifest's, and that before anything is deleted.
    assert ("sync_directory", tmp_path.name) in calls[calls.index(final[-2]) : last]
    assert calls[last + 1] == ("sync_directory", tmp_path.name)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, {"num_shards": 2}),
        ({"num_shards": 2, "dali": True}, {"num_shards": 2}),
        ({"num_shards": 3, "dali": True}, {"num_shards": 2, "dali": True}),
        ({"num_shards": 2, "stem": "train"}, {"num_shards": 2}),
        ({"num_shards": 2, "records": NEW}, {"num_shards": 2, "dali": True}),
    ],
)
def test_a_crash_at_any_call_leaves_the_old_set_or_ends_in_the_new_one(tmp_path, old, new, late):
    def prepare(name):
        directory = tmp_path / name
        directory.mkdir()
        if old is not None:
            options = dict(old)
            write_set(directory, options.pop("records", OLD), **options)
        return directory

    reference = prepare("reference")
    before = snapshot(reference)
    whole = CrashingStorage()
    write_set(reference, NEW, storage=whole, **new)
    after = snapshot(reference)
    commit = whole.calls.index(("publish", "commit.json.new", "commit.json"))
    assert len(whole.calls) > commit + 10
    for crash_at in range(len(whole.calls)):
        directory = prepare(f"crash-{crash_at}")
        with pytest.raises(Crash):
            write_set(directory, NEW, storage=CrashingStorage(crash_at, late=late), **new)
        committed = crash_at > commit or (late and crash_at == commit)
        if not committed:
            assert snapshot(directory) == before, whole.calls[crash_at]
        else:
            # With a manifest everything that it names is there.
            found = snapshot(directory)
            if (
                found.get("train.manifest.json")
                == after["train.manifest.json"]
                != before.get("train.manifest.json")
            ):
                assert after.items() <= found.items(), whole.calls[crash_at]
        if committed:
            with (
                RunDirectory.claim(str(directory), "train", LocalStorage()) as run,
                pytest.raises(OutputExists, match="exists already"),
            ):
                check_output(run, overwrite=False)
        else:
            recover(directory)
        assert snapshot(directory) == (after if committed else before), whole.calls[crash_at]
        assert not (directory / ".train.partial").exists()
        shutil.rmtree(directory)


def test_roll_forward_can_crash_and_be_repeated(tmp_path):
    """A recovery that is itself cut off at any call changes nothing about the end."""
    reference = tmp_path / "reference"
    reference.mkdir()
    write_set(reference, NEW, 2)
    after = snapshot(reference)
    for crash_at in range(12):
        directory = tmp_path / str(crash_at)
        directory.mkdir()
        write_set(directory, OLD, 3)
        run = RunDirectory.claim(str(directory), "train", LocalStorage())
        manifest = fill(run, NEW, ShardPattern("train.tfrecord", 2))
        run.write_synced(COMMIT, manifest.dumps().encode())
        run.release()
        again = RunDirectory.claim(str(directory), "train", CrashingStorage(crash_at))
        with pytest.raises(Crash):
            roll_forward(again)
        again.release()
        recover(directory)
        assert snapshot(directory) == after


def test_after_finishing_a_crashed_publication_a_new_run_can_begin(tmp_path):
    run = RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    manifest = fill(run, OLD, ShardPattern("train.tfrecord", 2))
    run.write_synced(COMMIT, manifest.dumps().encode())
    run.release()
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        check_output(run, overwrite=True)
        assert (tmp_path / "train.manifest.json").exists()
        publish(run, fill(run, NEW, ShardPattern("train.tfrecord", 3)))
    assert list(read_records(tmp_path / "train.tfrecord-00000-of-00003")) == NEW[::3]
    assert len(snapshot(tmp_path)) == 5


# -- what is there already -------------------------------------------------------------------------


def test_a_finished_set_is_refused_and_left_alone(tmp_path):
    write_set(tmp_path, OLD, 2)
    before = snapshot(tmp_path)
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        with pytest.raises(OutputExists, match="exists already") as caught:
            check_output(run, overwrite=False)
        assert "--overwrite" in caught.value.hint
    assert snapshot(tmp_path) == before
    assert not (tmp_path / ".train.partial").exists()


@pytest.mark.parametrize(
    "name",
    ["train.tfrecord-00000-of-00007", "train-00000-of-00007.tfrecord", "train.manifest.json"],
)
def test_any_generation_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        with pytest.raises(OutputExists):
            check_output(run, overwrite=False)
        check_output(run, overwrite=True)


def test_another_dataset_in_the_folder_is_none_of_our_business(tmp_path):
    write_set(tmp_path, OLD, 2)
    with RunDirectory.claim(str(tmp_path), "val", LocalStorage()) as run:
        check_output(run, overwrite=False)


def test_an_unfinished_run_is_refused_and_stays(tmp_path):
    run = RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    run.begin({"job": "1"})
    run.journal(0, 0).close()
    run.write_snapshot(0, 0, SOME_WORK)
    run.release()
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        assert run.is_resumable
        with pytest.raises(OutputExists, match="unfinished") as caught:
            check_output(run, overwrite=False)
        assert "--resume" in caught.value.hint
        assert "--overwrite" in caught.value.hint
        assert run.is_resumable
        check_output(run, overwrite=True)


def test_a_run_without_a_mark_is_discarded(tmp_path):
    run = RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    run.begin({"job": "1"})
    journal = run.journal(0, 0)
    journal.add_fact(skip=0, reason="dropped")
    journal.close()
    Path(run.shard_path(0)).write_bytes(b"some frames")
    run.release()
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        assert not run.is_resumable
        check_output(run, overwrite=False)


def test_a_publication_that_was_cut_off_is_finished_and_then_refused(tmp_path):
    run = RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    manifest = fill(run, NEW, ShardPattern("train.tfrecord", 2))
    run.write_synced(COMMIT, manifest.dumps().encode())
    run.release()
    with (
        RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run,
        pytest.raises(OutputExists, match="exists already"),
    ):
        check_output(run, overwrite=False)
    assert len(load_manifest(tmp_path / "train.manifest.json").shards) == 2
    assert not (tmp_path / ".train.partial").exists()


def test_beginning_empties_the_directory(tmp_path):
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        run.begin({"job": "1"})
        Path(run.shard_path(0)).write_bytes(b"of an older run")
        begin_run(run, {"job": "2"})
        assert sorted(os.listdir(run.path)) == ["lock", "run.json"]
        text = Path(run.path, "run.json").read_text()
        assert text == '{"format":"shardwriter.run/1","job":"2","replaces":null}\n'


def test_discarding_leaves_nothing_and_can_be_done_twice(tmp_path):
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        begin_run(run, {})
        run.discard()
        assert not os.listdir(tmp_path)
        run.discard()


def test_a_folder_that_can_not_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        RunDirectory.claim(str(tmp_path / "file"), "train", LocalStorage())


# -- the lock --------------------------------------------------------------------------------------

HOLD = """
import sys
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.storage import LocalStorage
run = RunDirectory.claim(sys.argv[1], "train", LocalStorage())
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the dataset."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"claimed\n"
        yield process
        if process.poll() is None:
            process.kill()


def test_a_second_writer_learns_which_process_holds_the_lock(tmp_path, holder):
    with pytest.raises(OutputBusy, match=f"process {holder.pid} ") as caught:
        RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    assert caught.value.path == str(tmp_path / ".train.partial")
    RunDirectory.claim(str(tmp_path), "val", LocalStorage()).release()


def test_death_gives_the_lock_back(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with (
        RunDirectory.claim(str(tmp_path), "train", LocalStorage()),
        pytest.raises(OutputBusy, match="by this program"),
    ):
        RunDirectory.claim(str(tmp_path), "train", LocalStorage())


def test_a_lock_is_given_back_once_and_taken_again(tmp_path):
    run = RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    run.release()
    run.release()
    RunDirectory.claim(str(tmp_path), "train", LocalStorage()).release()


def test_a_claim_that_lost_its_folder_to_the_finishing_run_makes_a_new_one(tmp_path, monkeypatch):
    first = RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    real_open, opened = os.open, []

    def open_and_lose(path, *args, **kwargs):
        descriptor = real_open(path, *args, **kwargs)
        if str(path).endswith("lock") and not opened:
            opened.append(path)
            first.discard()  # the other run ends between our open and our flock
            first.release()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        assert opened
        assert os.path.exists(os.path.join(run.path, "lock"))
        with pytest.raises(OutputBusy):
            RunDirectory.claim(str(tmp_path), "train", LocalStorage())


def test_a_run_that_ends_leaves_the_lock_of_its_successor(tmp_path, monkeypatch):
    first = RunDirectory.claim(str(tmp_path), "train", LocalStorage())
    second, real_rmdir = [], os.rmdir

    def claim_and_remove(path, **kwargs):
        second.append(RunDirectory.claim(str(tmp_path), "train", LocalStorage()))
        real_rmdir(path, **kwargs)

    monkeypatch.setattr(os, "rmdir", claim_and_remove)
    first.discard()
    assert os.path.exists(os.path.join(second[0].path, "lock"))
    second[0].release()


# -- journals --------------------------------------------------------------------------------------

FACTS = [
    {"skip": 3, "reason": "dropped"},
    {"types": {"x": {"kind": "int64", "present": 0, "unset": 0}}},
    {"skip": 4, "reason": "error", "error": {"error": "X", "index": 4, "message": "é"}},
]


def facts_in(path):
    return read_facts(path.read_bytes()).facts


def write_journal(path, facts):
    journal = Journal(LocalStorage(), str(path))
    for fact in facts:
        journal.add_fact(**fact)
    journal.close()
    return Path(path).read_bytes()


def test_facts_come_back_in_order(tmp_path):
    write_journal(tmp_path / "j", FACTS)
    assert facts_in(tmp_path / "j") == FACTS


def test_facts_are_in_the_file_after_a_flush(tmp_path):
    journal = Journal(LocalStorage(), str(tmp_path / "j"))
    journal.add_fact(skip=1, reason="dropped")
    assert facts_in(tmp_path / "j") == []
    journal.flush()
    assert facts_in(tmp_path / "j") == [{"skip": 1, "reason": "dropped"}]
    journal.add_fact(skip=2, reason="dropped")
    journal.sync()
    journal.close()
    assert facts_in(tmp_path / "j") == [
        {"skip": 1, "reason": "dropped"},
        {"skip": 2, "reason": "dropped"},
    ]


def test_every_torn_tail_gives_the_facts_in_front_of_it(tmp_path):
    data = write_journal(tmp_path / "j", FACTS)
    for size in range(len(data) + 1):
        (tmp_path / "torn").write_bytes(data[:size])
        assert facts_in(tmp_path / "torn") == FACTS[: data[:size].count(b"\n")]
        (tmp_path / "torn").write_bytes(data[:size] + bytes(len(data) - size))
        assert facts_in(tmp_path / "torn") == FACTS[: data[:size].count(b"\n")]


@given(st.data())
def test_no_flipped_byte_gives_a_wrong_fact(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.unlink(missing_ok=True)
    text = bytearray(write_journal(path, FACTS))
    text[data.draw(st.integers(0, len(text) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(text)
    found = facts_in(path)
    assert found == FACTS[: len(found)]
    assert len(found) < len(FACTS)


def test_a_journal_takes_nothing_more_after_a_write_that_failed(tmp_path, monkeypatch):
    journal = Journal(LocalStorage(), str(tmp_path / "j"))
    for fact in FACTS:
        journal.add_fact(**fact)
    real_write, calls = os.write, []

    def full(descriptor, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(descriptor, data[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="no space"):
            journal.flush()
    assert journal.num_bytes == 0
    half = (tmp_path / "j").read_bytes()
    assert len(half) == 20
    journal.add_fact(skip=4, reason="dropped")
    for refused in (journal.flush, journal.sync):
        with pytest.raises(StorageError, match="earlier write to the journal failed") as caught:
            refused()
        assert caught.value.path == str(tmp_path / "j")
    journal.close()  # half a line is followed by no other
    assert (tmp_path / "j").read_bytes() == half
    assert facts_in(tmp_path / "j") == []


def test_facts_in_front_of_a_write_that_failed_stay(tmp_path, monkeypatch):
    journal = Journal(LocalStorage(), str(tmp_path / "j"))
    journal.add_fact(**FACTS[0])
    journal.flush()
    whole = journal.num_bytes
    assert whole == (tmp_path / "j").stat().st_size
    journal.add_fact(**FACTS[1])
    real_write, calls = os.write, []

    def full(descriptor, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(descriptor, data[:-1])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="no space"):
            journal.flush()
    journal.close()
    found = read_facts((tmp_path / "j").read_bytes())
    assert (found.facts, found.num_bytes, journal.num_bytes) == (FACTS[:1], whole, whole)


def test_a_journal_that_failed_lets_no_later_frame_through(tmp_path, monkeypatch):
    storage = LocalStorage()
    journal = Journal(storage, str(tmp_path / "j"))
    file = JournaledFile(storage.create(str(tmp_path / "shard")), journal)
    file.write(b"one")
    journal.add_fact(**FACTS[0])

    def full(_descriptor, _data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="no space"):
            file.write(b"two")
    with pytest.raises(StorageError, match="earlier write to the journal failed"):
        file.write(b"two")
    file.close()
    journal.close()
    assert (tmp_path / "shard").read_bytes() == b"one"


@pytest.mark.parametrize("synced", [False, True])
def test_a_snapshot_of_any_worker_is_worth_keeping(tmp_path, synced):
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as run:
        run.write_snapshot(0, 1, replace(NO_SNAPSHOT, is_synced=synced))
        assert not run.is_resumable  # nobody knows what of
        run.begin({"job": "1"})
        assert not run.is_resumable
        journals = [run.journal(0, worker) for worker in range(2)]
        journals[0].add_fact(skip=3, reason="dropped")
        journals[0].flush()
        assert not run.is_resumable
        run.write_snapshot(0, 1, replace(NO_SNAPSHOT, is_synced=synced))
        assert not run.is_resumable  # it speaks of nothing
        run.write_snapshot(0, 1, replace(SOME_WORK, is_synced=synced))
        assert run.is_resumable
        assert run.workers(0) == [0, 1]
        assert run.workers(1) == []
        for journal in journals:
            journal.close()


# -- what is not ours ------------------------------------------------------------------------------


def write_dataset(folder, out, *records, overwrite=False):
    with sw.open_writer(str(folder / out), overwrite=overwrite) as writer:
        for record in records:
            writer.write(record)


@pytest.mark.parametrize(
    "name",
    ["train-00000-of-00001.csv", "train-00000-of-00002.parquet", "train-00000-of-00001.index"],
)
def test_files_of_the_pattern_that_are_no_records_are_left_alone(tmp_path, name):
    (tmp_path / name).write_text("a,b\n")
    write_dataset(tmp_path, "train@2", b"x")
    write_dataset(tmp_path, "train@3", b"y", overwrite=True)
    assert (tmp_path / name).read_text() == "a,b\n"
    assert not list(tmp_path.glob("*-of-00002"))


def test_a_dataset_whose_name_looks_like_a_shard_is_left_alone(tmp_path):
    write_dataset(tmp_path, "train-00000-of-00001@1.tfrecord", b"x")
    before = sorted(p.name for p in tmp_path.iterdir())
    write_dataset(tmp_path, "train@3", b"y", overwrite=True)
    assert {*before} - {p.name for p in tmp_path.iterdir()} <= {
        "train-00000-of-00001-00000-of-00001.tfrecord"
    }
    assert (tmp_path / "train-00000-of-00001.manifest.json").exists()


def test_endings_of_our_own_are_replaced_whatever_they_are(tmp_path):
    write_dataset(tmp_path, "train@3.data", b"x")
    with pytest.raises(OutputExists, match="exists already"):
        write_dataset(tmp_path, "train@2", b"y")
    write_dataset(tmp_path, "train@2", b"y", overwrite=True)
    assert not list(tmp_path.glob("*.data"))


# -- before and after the commit -------------------------------------------------------------------


@pytest.mark.parametrize("in_the_way", ["train.index", "train.tfrecord-00001-of-00002"])
def test_a_name_that_can_not_be_given_stops_the_run_before_the_commit(tmp_path, in_the_way):
    write_dataset(tmp_path, "train@1", b"old")
    if in_the_way == "train.index":
        (tmp_path / in_the_way).unlink()
    (tmp_path / in_the_way).mkdir()
    with pytest.raises(StorageError, match="in the way"):
        write_dataset(tmp_path, "train@2", b"new", overwrite=True)
    assert list(sw.read_records(tmp_path / "train.tfrecord-00000-of-00001")) == [b"old"]
    (tmp_path / in_the_way).rmdir()
    write_dataset(tmp_path, "train@2", b"new", overwrite=True)
    assert sw.stats(str(tmp_path / "train")).num_defects == 0


def test_a_name_that_is_too_long_is_refused_at_once(tmp_path):
    with pytest.raises(OptionError, match="too long"):
        write_dataset(tmp_path, "n" * 230 + "@2", b"x")
    write_dataset(tmp_path, "n" * 220 + "@2", b"x")


def test_an_old_shard_never_replaces_a_missing_one(tmp_path, monkeypatch):
    write_dataset(tmp_path, "train@2", b"old" * 10, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(publication, "roll_forward", lambda run: None)
        patch.setattr(RunDirectory, "discard", lambda self: None)
        write_dataset(tmp_path, "train@2", b"new", b"new", overwrite=True)
    (tmp_path / ".train.partial" / "shard-00000").unlink()
    with pytest.raises(StorageError, match="gone") as caught:
        write_dataset(tmp_path, "train@2", b"x")
    assert "--overwrite to start over" in caught.value.hint
    assert sw.stats(str(tmp_path / "train")).num_defects == 0  # the old one is whole
    (tmp_path / "train.manifest.json").unlink()  # as a publication that has begun does
    with pytest.raises(StorageError, match="gone") as caught:
        write_dataset(tmp_path, "train@2", b"x", overwrite=True)
    assert "train.tfrecord-*-of-00002" in caught.value.hint
    assert not (tmp_path / "train.manifest.json").exists()


def test_a_map_that_changes_the_folder_does_not_move_the_output(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def wander(features):
        os.chdir(tmp_path / "elsewhere")
        return features

    sw.write([{"x": 1}] * 3, "out/t@2", map=wander)
    assert sw.stats(str(tmp_path / "out" / "t")).sizes.count == 3
