"""Pushing records: published when the block ends well, and no trace of it otherwise."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import contextlib2
import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import (
    AssignmentError,
    FeatureError,
    OptionError,
    OutputBusy,
    OutputExists,
    RecordTooLarge,
    SchemaConflict,
    StorageError,
)
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.schema.feature_types import FeatureType
from shardwriter.storage.local import LocalFile, LocalStorage
from shardwriter.writing import open_shards as growing
from shardwriter.writing.journal import Base
from shardwriter.writing.run_directory import RunDirectory

stacks = pytest.mark.parametrize("stack_class", [contextlib.ExitStack, contextlib2.ExitStack])


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def names(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def records(manifest, folder):
    """Return the records of every shard."""
    return [list(sw.read_records(str(folder / name))) for name in manifest.pattern.shard_files]


def dealt(payloads, num_shards):
    return [payloads[s::num_shards] for s in range(num_shards)]


# -- open_writer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_records", [0, 1, 2, 3, 4, 20])
def test_records_are_dealt_and_published(out, num_records):
    with sw.open_writer(out / "train@3") as writer:
        assert writer.manifest is None
        for i in range(num_records):
            writer.write({"x": i})
            assert writer.num_items == i + 1
        assert not any(name.startswith("train") for name in names(out))
    payloads = [sw.encode_example({"x": i}) for i in range(num_records)]
    assert records(writer.manifest, out) == dealt(payloads, 3)
    assert sw.load_manifest(out / "train.manifest.json") == writer.manifest
    assert sw.verify(str(out)).num_defects == 0
    assert not any(name.startswith(".") for name in names(out))


def test_bytes_are_finished_records(out):
    payloads = [b"", b"one", bytes(1000), sw.encode_example({"x": 1})]
    with sw.open_writer(out / "raw@2") as writer:
        for payload in payloads:
            writer.write(payload)
    assert records(writer.manifest, out) == dealt(payloads, 2)
    assert writer.manifest.features == {}


def test_the_number_of_shards_label_and_schema_are_options(out):
    with sw.open_writer(
        str(out / "train"),
        num_shards=2,
        label="y",
        schema={"x": FeatureType("float", "float32", ())},
    ) as writer:
        for i in range(5):
            writer.write({"x": i, "y": "ab"[i % 2]})
    manifest = writer.manifest
    assert manifest.num_shards == 2
    assert manifest.labels == {
        "counts": {"a": 3, "b": 2},
        "feature": "y",
        "shards": {"a": [3, 0], "b": [0, 2]},
    }
    assert manifest.features["x"].type.kind == "float"


def test_two_pushes_of_the_same_records_are_the_same_files(tmp_path):
    for folder in ("a", "b"):
        with sw.open_writer(tmp_path / folder / "t@2") as writer:
            for i in range(9):
                writer.write({"x": np.full(3, i)})
    assert names(tmp_path / "a") == names(tmp_path / "b")
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("num_records", [0, 1, 50])
def test_an_exception_publishes_nothing_and_leaves_nothing(out, error, num_records):
    writers = []

    def push():
        with sw.open_writer(out / "train@3") as writer:
            writers.append(writer)
            for i in range(num_records):
                writer.write({"x": i})
            raise error

    with pytest.raises(type(error)) as caught:
        push()
    assert caught.value is error
    assert names(out) == []
    assert writers[0].manifest is None
    with sw.open_writer(out / "train@3") as writer:  # the way is free
        writer.write({"x": 1})
    assert writer.manifest.num_records == 1


def test_a_record_that_is_refused_can_be_left_out(out):
    with sw.open_writer(out / "train@2", label="x") as writer:
        writer.write({"x": 1})
        for bad, error in [
            ({"x": object()}, FeatureError),
            ({"new": 1, "x": 0.5}, SchemaConflict),
            ([1], FeatureError),
        ]:
            with pytest.raises(error) as caught:
                writer.write(bad)
            assert caught.value.index == 1
        writer.write({"x": 2})
    manifest = writer.manifest
    assert manifest.num_records == manifest.num_items == 2
    assert manifest.labels["counts"] == {"1": 1, "2": 1}
    assert {name: f.present for name, f in manifest.features.items()} == {"x": 2}


def test_a_record_that_is_too_large_can_be_left_out(out, monkeypatch):
    monkeypatch.setattr("shardwriter.formats.tfrecord.MAX_PAYLOAD_BYTES", 100)
    with sw.open_writer(out / "train@2") as writer:
        writer.write(b"a")
        with pytest.raises(RecordTooLarge) as caught:
            writer.write(bytes(101))
        assert caught.value.index == 1
        writer.write(b"b")
    assert records(writer.manifest, out) == [[b"a"], [b"b"]]


def test_an_error_that_is_not_caught_publishes_nothing(out):
    def push():
        with sw.open_writer(out / "train@2") as writer:
            writer.write({"x": 1})
            writer.write({"x": object()})

    with pytest.raises(FeatureError):
        push()
    assert names(out) == []


def test_n_has_to_be_said(out):
    for name in ("train", "train@auto"):
        with pytest.raises(OptionError, match="N can not be chosen"), sw.open_writer(out / name):
            pass
    with pytest.raises(OptionError), sw.open_writer(out / "train@2", num_shards=3):
        pass
    with pytest.raises(OptionError, match="gzip"):  # noqa: SIM117
        with sw.open_writer(out / "train@2.gz", compression="zlib"):
            pass
    assert names(out) == []


def test_what_is_there_is_kept_without_overwrite(out):
    with sw.open_writer(out / "train@2") as writer:
        writer.write(b"old")
    before = {name: (out / name).read_bytes() for name in names(out)}
    with pytest.raises(OutputExists), sw.open_writer(out / "train@3") as writer:
        pass
    assert {name: (out / name).read_bytes() for name in names(out)} == before


def test_overwrite_replaces_the_old_set_when_the_new_one_is_whole(out):
    with sw.open_writer(out / "train@2") as writer:
        writer.write(b"old")
    before = names(out)

    def push():
        with sw.open_writer(out / "train@3", overwrite=True) as writer:
            writer.write(b"new")
            raise ValueError

    with pytest.raises(ValueError):
        push()
    assert names(out) == before
    with sw.open_writer(out / "train@3", overwrite=True) as writer:
        writer.write(b"new")
        assert set(before) <= set(names(out))
    assert records(writer.manifest, out) == [[b"new"], [], []]
    assert len(names(out)) == 5


def test_an_unfinished_run_is_kept_without_overwrite(out):
    run = RunDirectory.claim(str(out), "train", LocalStorage())
    run.begin({})
    run.write_base(Base(gaps=[[3, 1]]))
    run.release()
    with pytest.raises(OutputExists, match="unfinished"), sw.open_writer(out / "train@2"):
        pass
    assert names(out / ".train.partial") == ["base", "lock", "run.json"]
    with sw.open_writer(out / "train@2", overwrite=True) as writer:
        writer.write(b"x")
    assert writer.manifest.num_records == 1


def test_two_writers_of_one_name_get_in_each_others_way(out):
    with sw.open_writer(out / "train@2") as writer:
        writer.write(b"x")
        with pytest.raises(OutputBusy), sw.open_writer(out / "train@3"):
            pass
        with sw.open_writer(out / "val@3"):
            pass
    assert writer.manifest.num_records == 1


def test_a_run_that_is_pushed_notes_nothing_to_resume_from(out):
    with sw.open_writer(out / "train@2") as writer:
        for i in range(20):
            writer.write(b"%020d" % i * 50_000)
        begun = ["index-00000", "index-00001", "lock", "run.json", "shard-00000", "shard-00001"]
        assert names(out / ".train.partial") == begun
    assert writer.manifest.num_records == 20


def test_a_run_that_was_pushed_by_a_process_that_was_killed_is_replaced(out):
    code = (
        "import os, sys, shardwriter as sw\n"
        "with sw.open_writer(sys.argv[1] + '/train@2') as writer:\n"
        "    writer.write(bytes(1 << 20))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(out)], check=False)
    assert names(out) == [".train.partial"]
    with sw.open_writer(out / "train@2") as writer:
        writer.write(b"x")
    assert records(writer.manifest, out) == [[b"x"], []]
    assert not (out / ".train.partial").exists()


def test_the_bytes_are_the_same_whenever_frames_reach_the_file(tmp_path, monkeypatch):
    for folder, limit in (("a", 1 << 30), ("b", 4096)):
        monkeypatch.setattr(growing, "_MAX_BUFFER_BYTES", limit)
        monkeypatch.setattr(growing, "_ALL_BUFFERS_BYTES", limit)
        with sw.open_writer(tmp_path / folder / "t@3") as writer:
            for i in range(10):
                writer.write({"x": bytes(i * 1000)})
            sizes = [p.stat().st_size for p in (tmp_path / folder / ".t.partial").glob("shard-*")]
            assert any(sizes) is (limit == 4096)
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_exception_after_frames_have_reached_the_file_leaves_nothing_either(out):
    def push():
        with sw.open_writer(out / "t@2") as writer:
            writer.write(bytes(1 << 20))
            assert (out / ".t.partial" / "shard-00000").stat().st_size > 1 << 20
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        push()
    assert names(out) == []


@pytest.fixture
def disk_full_once(monkeypatch):
    """The next write of a shard takes only a part and fails."""
    write = LocalFile.write
    failures = []

    def failing(self, data):
        if not failures and "shard-" in self._path:
            failures.append(self._path)
            write(self, data[: len(data) // 2])
            raise StorageError("no space left on device", path=self._path)
        write(self, data)

    monkeypatch.setattr(LocalFile, "write", failing)
    return failures


def test_a_disk_error_that_is_swallowed_is_not_published(out, disk_full_once):
    def push():
        with sw.open_writer(out / "train@1") as writer:
            for _ in range(40):
                with contextlib.suppress(StorageError):
                    writer.write(bytes(100_000))

    with pytest.raises(StorageError, match="an earlier write failed"):
        push()
    assert disk_full_once
    assert names(out) == []


# -- open_sharded_writers ------------------------------------------------------------------------


@stacks
@pytest.mark.parametrize("num_records", [0, 1, 2, 3, 7])
def test_the_recipe_publishes_when_the_stack_unwinds(out, stack_class, num_records):
    payloads = [b"%d" % i for i in range(num_records)]
    with stack_class() as stack:
        writers = sw.open_sharded_writers(stack, out / "train@3")
        assert len(writers) == 3
        for i, payload in enumerate(payloads):
            writers[i % 3].write(payload)
        assert [writer.num_records for writer in writers] == list(map(len, dealt(payloads, 3)))
    manifest = sw.load_manifest(out / "train.manifest.json")
    assert records(manifest, out) == dealt(payloads, 3)
    assert sw.verify(str(out)).num_defects == 0


@stacks
@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(1)])
def test_the_recipe_leaves_nothing_after_an_exception(out, stack_class, error):
    def push():
        with stack_class() as stack:
            sw.open_sharded_writers(stack, out / "train@2")[0].write(b"x")
            raise error

    with pytest.raises(type(error)) as caught:
        push()
    assert caught.value is error
    assert names(out) == []


@stacks
@pytest.mark.parametrize("counts", [[0, 1], [2, 0], [1, 2], [3, 1]])
def test_records_that_were_dealt_otherwise_are_not_published(out, stack_class, counts):
    def push():
        with stack_class() as stack:
            writers = sw.open_sharded_writers(stack, out / "train@2")
            for writer, count in zip(writers, counts, strict=True):
                for _ in range(count):
                    writer.write(b"x")

    with pytest.raises(AssignmentError, match=r"the assignment of .* items gives it"):
        push()
    assert names(out) == []


@stacks
def test_two_sets_in_one_stack(out, stack_class):
    with stack_class() as stack:
        train = sw.open_sharded_writers(stack, out / "train@2")
        val = sw.open_sharded_writers(stack, out / "val@1")
        train[0].write(b"a")
        val[0].write(b"b")
    assert sw.load_manifest(out / "train.manifest.json").num_records == 1
    assert sw.load_manifest(out / "val.manifest.json").num_records == 1


@stacks
def test_an_exception_that_the_stack_swallows_later_publishes_nothing(out, stack_class):
    with stack_class() as stack:
        stack.enter_context(contextlib.suppress(ValueError))
        sw.open_sharded_writers(stack, out / "train@2")[0].write(b"x")
        raise ValueError
    assert names(out) == []


@stacks
def test_a_stack_that_is_closed_by_hand_publishes(out, stack_class):
    stack = stack_class()
    sw.open_sharded_writers(stack, out / "train@1")[0].write(b"x")
    stack.close()
    assert sw.load_manifest(out / "train.manifest.json").num_records == 1


@stacks
def test_writers_are_of_no_use_after_the_stack(out, stack_class):
    with stack_class() as stack:
        (writer,) = sw.open_sharded_writers(stack, out / "train@1")
        writer.write(b"x")
    before = {name: (out / name).read_bytes() for name in names(out)}
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"xy")
    assert {name: (out / name).read_bytes() for name in names(out)} == before


@stacks
def test_a_record_is_bytes(out, stack_class):
    with pytest.raises(TypeError, match="a record is bytes"), stack_class() as stack:
        sw.open_sharded_writers(stack, out / "train@1")[0].write("text")
    assert names(out) == []


@stacks
def test_flushed_records_are_in_the_growing_files(out, stack_class):
    with stack_class() as stack:
        writers = sw.open_sharded_writers(stack, out / "train@2")
        writers[0].write(b"abc")
        writers[0].flush()
        assert (out / ".train.partial" / "shard-00000").stat().st_size == 3 + 16


@stacks
def test_the_recipe_overwrites_only_on_request(out, stack_class):
    for overwrite in (False, True):
        with stack_class() as stack:
            sw.open_sharded_writers(stack, out / "train@1", overwrite=overwrite)[0].write(b"x")
    with pytest.raises(OutputExists), stack_class() as stack:
        sw.open_sharded_writers(stack, out / "train@1")
    assert sw.load_manifest(out / "train.manifest.json").num_records == 1


@stacks
def test_a_disk_error_that_is_swallowed_is_not_published_by_the_recipe(
    out, stack_class, disk_full_once
):
    def push():
        with stack_class() as stack:
            (writer,) = sw.open_sharded_writers(stack, out / "train@1")
            for _ in range(4):
                with contextlib.suppress(StorageError):
                    writer.write(bytes(300_000))

    with pytest.raises(StorageError):
        push()
    assert disk_full_once
    assert names(out) == []


@stacks
def test_a_failed_opening_that_is_caught_leaves_nothing(out, stack_class, monkeypatch):
    begin = TFRecordWriter.__init__
    opened = []

    def failing(self, *args, **keywords):
        opened.append(1)
        if len(opened) == 2:
            raise StorageError("no space left on device")
        begin(self, *args, **keywords)

    monkeypatch.setattr(TFRecordWriter, "__init__", failing)
    with stack_class() as stack, contextlib.suppress(StorageError):
        sw.open_sharded_writers(stack, out / "train@3")
    assert len(opened) == 2
    assert names(out) == []


def test_the_recipe_writes_what_open_writer_writes(tmp_path):
    with sw.open_writer(tmp_path / "a" / "t@3") as writer:
        for i in range(8):
            writer.write(b"%d" % i)
    with contextlib2.ExitStack() as stack:
        writers = sw.open_sharded_writers(stack, tmp_path / "b" / "t@3")
        for i in range(8):
            writers[i % 3].write(b"%d" % i)
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_no_file_stays_open(out):
    before = set(os.listdir("/proc/self/fd"))
    with sw.open_writer(out / "a@5") as writer:
        writer.write(b"x")
    with pytest.raises(ValueError), sw.open_writer(out / "b@5"):
        raise ValueError
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_relative_name_goes_into_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with sw.open_writer("t@1") as writer:
        writer.write(b"x")
    assert Path("t.manifest.json").exists()
