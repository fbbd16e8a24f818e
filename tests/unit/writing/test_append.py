"""More items for a finished dataset: all ends as if it had been written in one run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_sets import class_folders, files_of, rows
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.dataset.naming import partial_dir
from shardwriter.errors import (
    CallableError,
    ManifestError,
    OptionError,
    OutputExists,
    RunChanged,
    RunError,
    SchemaConflict,
)
from shardwriter.sources.shard_sets import load_manifest
from shardwriter.writing.options import RunOptions

TOLD = ("job", "source", "order")


def same_but_for_the_source(folder, other, name="x"):
    """Hold all files of two folders against each other; the manifests but for what they are of."""
    first, second = files_of(folder), files_of(other)
    manifests = [json.loads(files.pop(f"{name}.manifest.json")) for files in (first, second)]
    assert first == second
    for manifest in manifests:
        for key in TOLD:
            del manifest[key]
    assert manifests[0] == manifests[1]


def without_some(features):
    return sw.SKIP if features["x"] % 7 == 3 else features


@pytest.mark.filterwarnings("ignore:there are no items")
@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 6),
    old=st.integers(0, 40),
    new=st.lists(st.integers(0, 15), min_size=1, max_size=3),
    gaps=st.booleans(),
    compression=st.sampled_from(["none", "gzip", "zlib"]),
    stream=st.booleans(),
)
def test_appending_is_writing_all_in_one_run(
    tmp_path_factory, n, old, new, gaps, compression, stream
):
    folder = tmp_path_factory.mktemp("append")
    function = without_some if gaps else None
    # A dataset whose records have no label does not tell which feature it was to be.
    has_records = any(not gaps or without_some(row) is not sw.SKIP for row in rows(old))
    options = {"map": function, "label": "label" if has_records else None}
    sw.write(rows(old), folder / f"a/x@{n}", compression=compression, **options)
    stop = old
    for count in new:
        some = rows(stop + count, stop)
        sw.append(iter(some) if stream else some, folder / "a/x", map=function)
        stop += count
    sw.write(rows(stop), folder / f"b/x@{n}", compression=compression, **options)
    same_but_for_the_source(folder / "a", folder / "b")
    sw.verify(folder / "a/x")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("source", ["list", "function", "jsonl"])
def test_every_engine_appends_the_same(tmp_path, workers, compression, source):
    sw.write(rows(50), tmp_path / "a/x@4", compression=compression, label="label")
    sw.write(rows(90), tmp_path / "b/x@4", compression=compression, label="label")
    if source == "jsonl":
        new = tmp_path / "new.jsonl"
        new.write_text("".join(json.dumps(row) + "\n" for row in rows(90, 50)))
    else:
        new = rows(90, 50) if source == "list" else (lambda: iter(rows(90, 50)))
    sw.append(new, tmp_path / "a/x", workers=workers)
    same_but_for_the_source(tmp_path / "a", tmp_path / "b")


def test_the_manifest_says_what_was_appended_to_what(tmp_path):
    sw.write(rows(10), tmp_path / "a/x@3")
    made = sw.append(rows(14, 10), tmp_path / "a/x")
    assert made.source["kind"] == "append"
    assert made.source["base"]["num_items"] == 10
    assert made.dumps() == (tmp_path / "a/x.manifest.json").read_text()
    again = sw.append(rows(18, 14), tmp_path / "a/x")
    assert again.source["base"]["digest"] != made.source["base"]["digest"]
    assert again.num_items == 18


def test_index_files_and_ledgers_stay(tmp_path):
    def odd(features):
        if features["x"] % 5 == 2:
            raise ValueError("odd")
        return features

    run = RunOptions(on_error="skip", dali_index=True)
    sw.write(rows(20), tmp_path / "a/x@3", map=odd, run=run)
    sw.append(rows(40, 20), tmp_path / "a/x", map=odd, on_error="skip")
    sw.write(rows(40), tmp_path / "b/x@3", map=odd, run=run)
    same_but_for_the_source(tmp_path / "a", tmp_path / "b")
    assert len(files_of(tmp_path / "a", ".idx")) == 3


def test_filter_limit_and_map_are_for_the_new_items(tmp_path):
    sw.write(rows(10), tmp_path / "a/x@2")
    sw.append(
        rows(40, 10),
        tmp_path / "a",
        filter=lambda row: row["x"] % 2 == 0,
        limit=5,
        map=lambda features: {**features, "x": -features["x"]},
        schema="x=int64",
    )
    dataset = sw.open(tmp_path / "a/x")
    assert [int(example["x"]) for example in dataset] == [*range(10), -10, -12, -14, -16, -18]


# -- records of other datasets -------------------------------------------------------------------


def test_records_are_appended_as_they_are(tmp_path):
    sw.write(rows(11), tmp_path / "a/x@3", label="label")
    sw.write(rows(30, 11), tmp_path / "more/y@5", label="label")
    sw.append(tmp_path / "more/y", tmp_path / "a/x", format="tfrecord")
    sw.write(rows(30), tmp_path / "b/x@3", label="label")
    first, second = (load_manifest(tmp_path / f"{each}/x.manifest.json") for each in "ab")
    assert (first.schema, first.shards) == (second.schema, second.shards)
    assert first.labels["counts"] == second.labels["counts"]
    assert "shards" not in first.labels  # nobody looked into the new records
    with pytest.raises(OptionError, match="can not be skipped"):
        sw.append(tmp_path / "more/y", tmp_path / "a/x", on_error="skip")


def test_records_of_which_nothing_is_known_leave_schema_and_labels_open(tmp_path):
    sw.write(rows(11), tmp_path / "a/x@3", label="label")
    with sw.TFRecordWriter(tmp_path / "foreign.tfrecord") as writer:
        writer.write(sw.encode_example({"z": 1}))
    made = sw.append(tmp_path / "foreign.tfrecord", tmp_path / "a/x")
    assert (made.schema["features"], made.labels, made.num_records) == ({}, None, 12)


# -- what does not go together -------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_another_type_is_refused_with_item_and_feature(tmp_path, workers):
    sw.write(rows(10), tmp_path / "a/x@3")
    before = files_of(tmp_path / "a")
    new = [*rows(14, 10), {"x": "fourteen"}]
    with pytest.raises(SchemaConflict, match=r"bytes here, int64 in item 1[01]") as caught:
        sw.append(new, tmp_path / "a/x", workers=workers)
    assert (caught.value.feature, caught.value.index) == ("x", 14)
    assert files_of(tmp_path / "a") == before
    (tmp_path / "t.csv").write_text("x,y\n1.5,2\n")
    with pytest.raises(SchemaConflict, match="float32 in what is appended, int64 in the dataset"):
        sw.append(tmp_path / "t.csv", tmp_path / "a/x")
    assert files_of(tmp_path / "a") == before


def test_the_schema_that_is_advised_for_float64_is_the_one_that_works(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("x\n1700000001.25\n")
    sw.write(table, tmp_path / "a/x@1", schema="x=float64")
    with pytest.raises(SchemaConflict, match="float32 in what is appended, float64 in") as caught:
        sw.append(table, tmp_path / "a/x")
    assert 'schema="x=float64"' in str(caught.value)
    sw.append(table, tmp_path / "a/x", schema="x=float64")
    with sw.open(tmp_path / "a/x") as dataset:
        assert [record["x"] for record in dataset] == [1700000001.25] * 2


def test_other_classes_are_refused(tmp_path, data_dir):
    sw.write(class_folders(tmp_path / "one", data_dir, ["cat", "dog"]), tmp_path / "a/x@2")
    other = class_folders(tmp_path / "two", data_dir, ["cat", "emu"])
    with pytest.raises(SchemaConflict, match="class 1 is 'dog' in the dataset 'x', and 'emu'"):
        sw.append(other, tmp_path / "a/x")
    same = class_folders(tmp_path / "three", data_dir, ["cat", "dog"])
    made = sw.append(same, tmp_path / "a/x")
    assert made.labels["counts"] == {"0": 2, "1": 2}


def test_what_can_not_be_appended_to(tmp_path):
    with sw.TFRecordWriter(tmp_path / "x.tfrecord-00000-of-00001") as writer:
        writer.write(b"1")
    with pytest.raises(OptionError, match="with a manifest"):
        sw.append(rows(3), tmp_path / "x")
    sw.write(rows(3), tmp_path / "a/x@2")
    with pytest.raises(OptionError, match="appended to itself"):
        sw.append(tmp_path / "a/x", tmp_path / "a/x")
    with pytest.raises(OptionError, match="is a URL"):
        sw.append(rows(3), "gs://bucket/x")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_damaged_dataset_is_left_as_it_is(tmp_path, on_error):
    sw.write([b"%d" % i * 30 for i in range(20)], tmp_path / "a/x@2")
    path = tmp_path / "a/x.tfrecord-00001-of-00002"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    before = files_of(tmp_path / "a")
    with pytest.raises(ManifestError, match="is damaged") as caught:
        sw.append([b"more"], tmp_path / "a/x", on_error=on_error)
    assert caught.value.path == str(path)
    assert caught.value.record_index == 9
    assert files_of(tmp_path / "a") == before


# -- stopped, and finished -----------------------------------------------------------------------


def test_twice_is_twice_and_resume_is_once(tmp_path):
    new = tmp_path / "new.jsonl"
    new.write_text("".join(json.dumps(row) + "\n" for row in rows(15, 10)))
    sw.write(rows(10), tmp_path / "a/x@3")
    notes = []
    assert sw.append(new, tmp_path / "a/x", resume=True).num_items == 15
    assert sw.append(new, tmp_path / "a/x", resume=True, notify=notes.append).num_items == 15
    assert any("nothing to do" in note for note in notes)
    assert sw.append(new, tmp_path / "a/x").num_items == 20
    assert sw.append(new, tmp_path / "a/x", resume=True).num_items == 20
    new.write_text(json.dumps(rows(21, 20)[0]) + "\n")
    assert sw.append(new, tmp_path / "a/x", resume=True).num_items == 21


CODE = """
import sys, time
import shardwriter as sw
from shardwriter import RunOptions
sys.path.insert(0, sys.argv[1])
from slow import rows
sw.append(rows, sys.argv[2], resume=sys.argv[3] == "resume", workers=int(sys.argv[4]),
          run=RunOptions(mark_s=0.001))
"""
SLOW = """
import time
class Rows:
    def __len__(self):
        return 400
    def __getitem__(self, i):
        time.sleep(0.003)
        return {"x": 300 + i, "label": i % 3, "data": bytes([i % 251]) * 3000}
rows = Rows()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_any_time_it_goes_on(tmp_path, workers):
    (tmp_path / "slow.py").write_text(SLOW)
    old = [{"x": i, "label": i % 3, "data": b"old" * 1000} for i in range(300)]
    sw.write(old, tmp_path / "a/x@4", label="label")
    before = files_of(tmp_path / "a")
    rng = random.Random(workers)
    begin = time.monotonic()
    for attempt in range(12):
        mode = "resume" if attempt else "begin"
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, tmp_path, tmp_path / "a/x", mode, str(workers)],
            start_new_session=True,
            stderr=subprocess.PIPE,
        )
        try:
            process.communicate(timeout=rng.uniform(0.3, 0.9) if attempt < 8 else 30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if process.returncode == 0:
            break
        if load_manifest(tmp_path / "a/x.manifest.json").num_items == 300:
            assert files_of(tmp_path / "a") == before  # whole, and as it was
    assert process.returncode == 0, time.monotonic() - begin
    new = [{"x": 300 + i, "label": i % 3, "data": bytes([i % 251]) * 3000} for i in range(400)]
    sw.write([*old, *new], tmp_path / "b/x@4", label="label")
    same_but_for_the_source(tmp_path / "a", tmp_path / "b")
    assert not [name for name in os.listdir(tmp_path / "a") if name.startswith(".")]


@pytest.mark.parametrize("folder", [False, True])
def test_killed_while_it_is_published_it_is_not_appended_again(tmp_path, monkeypatch, folder):
    from shardwriter.storage import LocalStorage

    sw.write(rows(10), tmp_path / "a/x@3")
    new = tmp_path / "new.jsonl"
    new.write_text("".join(json.dumps(row) + "\n" for row in rows(15, 10)))
    publish = LocalStorage.publish

    def stopping(self, source, target):
        if "00001-of" in target:
            raise KeyboardInterrupt
        publish(self, source, target)

    monkeypatch.setattr(LocalStorage, "publish", stopping)
    with pytest.raises(KeyboardInterrupt):
        sw.append(new, tmp_path / "a/x")
    monkeypatch.undo()
    made = sw.append(new, tmp_path / "a" if folder else tmp_path / "a/x")  # without resume
    assert made.num_items == 15
    sw.verify(tmp_path / "a/x")
    assert sw.append(new, tmp_path / "a/x").num_items == 20


def test_an_unfinished_append_is_refused_or_discarded(tmp_path):
    sw.write(rows(10), tmp_path / "a/x@3")

    def failing(features):
        if features["x"] == 3000:
            raise KeyboardInterrupt
        return features

    many = rows(4000, 10)
    run = RunOptions(mark_s=0)
    with pytest.raises(KeyboardInterrupt):
        sw.append(many, tmp_path / "a/x", map=failing, run=run)
    with pytest.raises(OutputExists, match="unfinished"):
        sw.append(many, tmp_path / "a/x")
    with pytest.raises(RunChanged):
        sw.append(many, tmp_path / "a/x", resume=True, limit=5)
    assert load_manifest(tmp_path / "a/x.manifest.json").num_items == 10
    assert sw.append(many, tmp_path / "a/x", overwrite=True).num_items == 4000


# -- TFDS, and the command -----------------------------------------------------------------------


def test_a_tfds_split_stays_one(tmp_path, data_dir):
    pictures = class_folders(tmp_path / "one", data_dir, ["cat", "dog"])
    sw.write(pictures, tmp_path / "d/train@2", tfds="demo:1.0.0")
    sw.write(pictures, tmp_path / "d/test@1", tfds="demo:1.0.0")
    where = tmp_path / "d/demo/1.0.0"
    sw.append(class_folders(tmp_path / "two", data_dir, ["cat", "dog"]), where / "demo-train")
    info = json.loads((where / "dataset_info.json").read_text())
    lengths = {split["name"]: split["shardLengths"] for split in info["splits"]}
    assert lengths == {"train": ["2", "2"], "test": ["2"]}
    assert {"image", "label"} <= set(load_manifest(where / "demo-train.manifest.json").features)


def test_append_as_a_command(tmp_path):
    sw.write(rows(10), tmp_path / "a/x@3")
    new = tmp_path / "new.jsonl"
    new.write_text("".join(json.dumps(row) + "\n" for row in rows(15, 10)))

    def run(*args):
        return CliRunner().invoke(app, ["append", *map(str, args)])

    done = run(new, tmp_path / "a/x", "-j", "1", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["num_items"], told["manifest"]) == (15, str(tmp_path / "a/x.manifest.json"))
    assert run(new, tmp_path / "a/x", "-j", "1", "--resume").exit_code == 0
    assert len(sw.open(tmp_path / "a/x")) == 15
    assert run(new, tmp_path / "nowhere/x", "-j", "1").exit_code == 2
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"x": "text"}\n')
    done = run(bad, tmp_path / "a/x", "-j", "1")
    assert done.exit_code == SchemaConflict.exit_code
    assert "'x'" in done.output


def test_readers_see_one_dataset(tmp_path):
    sw.write(rows(23), tmp_path / "a/x@4")
    sw.append(rows(50, 23), tmp_path / "a/x")
    dataset = sw.open(tmp_path / "a/x")
    assert [int(example["x"]) for example in dataset] == list(range(50))
    assert np.array_equal(dataset[30]["x"], 30)


def arrays(*shapes):
    return [{"x": np.arange(h * w, dtype=np.uint8).reshape(h, w)} for h, w in shapes]


def test_values_whose_shape_stands_beside_them_have_it_in_what_is_appended_too(tmp_path):
    out = tmp_path / "x"
    sw.write(arrays((2, 3), (3, 4)), out, num_shards=2, schema="x=uint8[null,null]")
    sw.append(arrays((4, 4), (1, 9)), out)  # one shape of theirs would do without
    assert [row["x"].shape for row in sw.open(out)] == [(2, 3), (3, 4), (4, 4), (1, 9)]
    whole = tmp_path / "whole" / "x"
    every = arrays((2, 3), (3, 4), (4, 4), (1, 9))
    sw.write(every, whole, num_shards=2, schema="x=uint8[null,null]")
    same_but_for_the_source(tmp_path, whole.parent)


def test_shapes_beside_values_do_not_mix_with_none(tmp_path):
    fixed, varies = tmp_path / "fixed", tmp_path / "varies"
    sw.write(arrays((5, 5), (5, 5)), fixed, num_shards=2)
    sw.write(arrays((5, 5), (2, 3)), varies, num_shards=2, schema="x=uint8[null,null]")
    before = files_of(tmp_path)
    with pytest.raises(SchemaConflict, match="but those of the dataset 'fixed' do not"):
        sw.append(arrays((4, 4)), fixed, schema="x=uint8[null,null]")
    for source, out in ((varies, fixed), (fixed, varies)):
        with pytest.raises(SchemaConflict, match="have their shapes in 'x/shape'"):
            sw.append(source, out)
        with pytest.raises(SchemaConflict, match="have their shapes in 'x/shape'") as caught:
            sw.merge([source, out], tmp_path / "merged", num_shards=2)
        assert f"write {fixed} with --schema 'x=uint8[null,null]'" in caught.value.hint
    assert files_of(tmp_path) == before
    more = tmp_path / "more"
    sw.write(arrays((7, 1)), more, num_shards=1, schema="x=uint8[null,null]")
    sw.merge([varies, more], tmp_path / "merged", num_shards=2)
    assert [row["x"].shape for row in sw.open(tmp_path / "merged")] == [(5, 5), (2, 3), (7, 1)]


def test_sequences_without_a_context_are_known_as_sequences(tmp_path):
    out = tmp_path / "x"
    items = [sw.SequenceExample({}, {"tokens": list(range(n))}) for n in range(4)]
    sw.write(items, out, num_shards=2)
    manifest = sw.append(items, out)
    assert manifest.feature_lists is not None
    assert manifest.feature_lists["tokens"].present == 8
    with pytest.raises(SchemaConflict, match="an Example here, a SequenceExample"):
        sw.append([{"tokens": 1}], out)
    assert [len(row.feature_lists["tokens"]) for row in sw.open(out)] == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_map_that_fails_ends_the_append_of_a_queue_that_is_not_over(tmp_path, workers):
    sw.write(rows(5), tmp_path / "x@3")
    items = sw.ItemQueue(max_items=1)
    items.put({"id": "a"})
    ended = threading.Timer(20, items.close)  # the queue is over only when the test has failed
    ended.start()
    with pytest.raises(CallableError, match="KeyError"):
        sw.append(items, tmp_path / "x", workers=workers, map=_no_such_feature)
    assert ended.is_alive()
    ended.cancel()
    with pytest.raises(RunError):  # whoever fills it is told
        items.put({"id": "b"})


def _no_such_feature(features):
    return features["no such"]


def test_progress_of_an_append_comes_while_its_queue_is_empty(tmp_path):
    sw.write(rows(5), tmp_path / "x@3")
    items = sw.ItemQueue()
    told = []

    def progress(work):
        told.append(work)
        if len(told) == 3:
            items.close()

    ended = threading.Timer(20, items.close)
    ended.start()
    sw.append(items, tmp_path / "x", progress=progress)
    assert ended.is_alive()
    ended.cancel()


def test_event_files_are_not_put_where_an_append_works(tmp_path):
    sw.write(rows(5), tmp_path / "x@3")
    inside = tmp_path / partial_dir("x") / "logs"
    with pytest.raises(OptionError):
        sw.append(rows(2), tmp_path / "x", run=RunOptions(log_dir=inside))


def test_the_command_says_that_there_is_no_dataset(tmp_path):
    (tmp_path / "photos").mkdir()
    sw.write(rows(2), tmp_path / "x@2")
    found = CliRunner().invoke(app, ["append", str(tmp_path / "x"), str(tmp_path / "photos")])
    assert found.exit_code == 1
    assert isinstance(found.exception, SystemExit)
    assert "no TFRecord shards in this folder" in found.stderr
