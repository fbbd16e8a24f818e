"""Datasets made of datasets: other numbers of shards, and several joined."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_sets import class_folders, files_of, rows
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import DataError, OptionError, SchemaConflict, SourceError
from shardwriter.formats.tfrecord import TFRecordWriter, frame
from shardwriter.sources import tfrecord as frame_reading
from shardwriter.sources.shard_sets import load_manifest
from shardwriter.sources.tfrecord import RecordFile, TFRecordFiles
from shardwriter.writing.options import RunOptions


def records_in(path):
    return [bytes(record) for record in sw.open(path).payloads(np.arange(len(sw.open(path))))]


def binary(records, path, **options):
    return sw.write([bytes(record) for record in records], path, **options)


def one_by_one(monkeypatch):
    """Have every record go the way that any item goes."""
    monkeypatch.setattr(TFRecordFiles, "frames", None)
    monkeypatch.delattr(TFRecordFiles, "frames")


def test_files_of_small_records_are_proven_by_one_crc_each(tmp_path):
    sw.write(rows(400), tmp_path / "a@2")
    assert [file.is_checked for file in TFRecordFiles(str(tmp_path / "a")).files] == [True, True]
    path = tmp_path / "a.tfrecord-00001-of-00002"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    try:
        proven = [file.is_checked for file in TFRecordFiles(str(tmp_path / "a")).files]
    except SourceError:  # it was a header that was hit
        proven = [True, False]
    assert proven == [True, False]
    with pytest.raises(SourceError) as found:
        sw.reshard(tmp_path / "a", tmp_path / "b@3")
    assert found.value.record_index is not None
    (tmp_path / "a.manifest.json").unlink()
    foreign = TFRecordFiles(str(tmp_path / "a.tfrecord-00000-of-00002"))
    assert [file.is_checked for file in foreign.files] == [False]


# -- the same bytes ------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    records=st.lists(st.binary(max_size=60), max_size=60),
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    gaps=st.sets(st.integers(0, 59), max_size=10),
    seed=st.none() | st.integers(0, 5),
    block=st.sampled_from([1, 100, 1 << 20]),
    hole=st.sampled_from([0, 30, 4096]),
    large=st.sampled_from([1, 20, 1 << 15]),
)
def test_frames_that_are_moved_are_those_that_are_copied(
    tmp_path_factory, records, n, m, gaps, seed, block, hole, large
):
    folder = tmp_path_factory.mktemp("sets")
    items = [{"x": record, "i": i} for i, record in enumerate(records)]
    sw.write(items, folder / f"a/x@{n}", map=lambda f: sw.SKIP if f["i"] in gaps else f)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_reading, "_BLOCK_BYTES", block)
        patch.setattr(frame_reading, "_HOLE_BYTES", hole)
        patch.setattr(frame_reading, "_LARGE_BYTES", large)
        made = sw.reshard(folder / "a/x", folder / f"b/x@{m}", shuffle_seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        sw.write(folder / "a/x", folder / f"c/x@{m}", format="tfrecord", shuffle_seed=seed)
    assert files_of(folder / "b") == files_of(folder / "c")
    assert made.num_records == len(records) - len([g for g in gaps if g < len(records)])
    sw.verify(folder / "b/x")
    if seed is None and not gaps:
        sw.reshard(folder / "b/x", folder / f"d/x@{n}")
        assert files_of(folder / "d", "index") == files_of(folder / "a", "index")
        shards = [name for name in files_of(folder / "a") if "-of-" in name]
        assert files_of(folder / "d", *shards) == files_of(folder / "a", *shards)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_there_and_back_gives_the_same_bytes(tmp_path, workers, compression):
    sw.write(rows(500), tmp_path / "a/x@16", label="label")
    run = RunOptions(dali_index=compression == "none")
    sw.reshard(
        tmp_path / "a/x", tmp_path / "b/x@7", compression=compression, workers=workers, run=run
    )
    sw.verify(tmp_path / "b/x")
    if compression == "none":
        assert len(files_of(tmp_path / "b", ".idx")) == 7
    sw.reshard(tmp_path / "b/x", tmp_path / "c/x@16", workers=workers)
    first, last = files_of(tmp_path / "a"), files_of(tmp_path / "c")
    del first["x.manifest.json"], last["x.manifest.json"]
    assert first == last
    was = load_manifest(tmp_path / "a/x.manifest.json")
    is_now = load_manifest(tmp_path / "c/x.manifest.json")
    assert (is_now.schema, is_now.shards) == (was.schema, was.shards)


@pytest.mark.parametrize("engine", ["serial", "process", "one"])
def test_large_and_small_records_come_out_alike(tmp_path, monkeypatch, engine):
    rng = random.Random(3)
    sizes = [0, 1, 100, 2000, 33_000, 90_000, 300_000]
    binary([rng.randbytes(rng.choice(sizes)) for _ in range(120)], tmp_path / "a/x@5")
    if engine == "one":
        one_by_one(monkeypatch)
    sw.reshard(tmp_path / "a/x", tmp_path / "b/x@3", workers=2 if engine == "process" else 1)
    assert records_in(tmp_path / "b/x") == records_in(tmp_path / "a/x")
    sw.verify(tmp_path / "b/x")


def test_a_foreign_set_without_manifest_comes_file_by_file(tmp_path):
    for shard in range(3):
        with TFRecordWriter(tmp_path / f"x.tfrecord-0000{shard}-of-00003") as writer:
            for i in range(4 + shard):
                writer.write(b"%d %d" % (shard, i))
    sw.reshard(tmp_path / "x", tmp_path / "b/x@2")
    expected = [b"%d %d" % (shard, i) for shard in range(3) for i in range(4 + shard)]
    assert records_in(tmp_path / "b/x") == expected


def test_more_shards_than_may_be_open(tmp_path):
    sw.write(rows(600), tmp_path / "a/x@200")
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
import shardwriter as sw
sw.reshard(sys.argv[1] + "/a/x", sys.argv[1] + "/b/x@150")
sw.merge([sys.argv[1] + "/a/x", sys.argv[1] + "/b/x"], sys.argv[1] + "/c/x@120")
sw.append(["1", "2"], sys.argv[1] + "/b/x", map=lambda text: {"x": int(text)})
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert records_in(tmp_path / "b/x")[:-2] == records_in(tmp_path / "a/x")
    assert records_in(tmp_path / "c/x") == 2 * records_in(tmp_path / "a/x")


def test_an_index_that_is_wrong_is_not_believed(tmp_path):
    sw.write(rows(60), tmp_path / "a/x@2")
    right = TFRecordFiles(str(tmp_path / "a/x")).digest()
    path = tmp_path / "a/x.index"
    data = np.frombuffer(path.read_bytes(), "<u8").copy()
    data[10] += 1
    path.write_bytes(data.tobytes())
    assert TFRecordFiles(str(tmp_path / "a/x")).digest() == right
    path.unlink()
    assert TFRecordFiles(str(tmp_path / "a/x")).digest() == right
    sw.reshard(tmp_path / "a/x", tmp_path / "b/x@3")
    assert len(records_in(tmp_path / "b/x")) == 60


# -- killed --------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import shardwriter as sw
from shardwriter import RunOptions
from shardwriter.sources import tfrecord as frame_reading
frame_reading._BLOCK_BYTES = 5000
left = int(sys.argv[3])
block = frame_reading.FrameReader.block
def counted(self, spans):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return block(self, spans)
frame_reading.FrameReader.block = counted
run = RunOptions(mark_s=0, checkpoint_bytes=30_000)
sw.reshard(sys.argv[1], sys.argv[2], shuffle_seed=int(sys.argv[4]) or None, resume=True, run=run,
           notify=lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("seed", [0, 4])
def test_killed_between_any_two_blocks_it_goes_on(tmp_path, seed):
    rng = random.Random(seed)
    binary([rng.randbytes(rng.randrange(2000)) for _ in range(400)], tmp_path / "a/x@5")
    notes = []
    for left in (30, 20, 1, 25, 0):
        args = [tmp_path / "a/x", tmp_path / "b/x@3", str(left), str(seed)]
        done = subprocess.run(
            [sys.executable, "-c", KILLED, *args], capture_output=True, text=True, check=False
        )
        assert done.returncode == (-9 if left else 0), done.stderr
        assert bool(list((tmp_path / "b").glob("x.*"))) == (not left)
        notes.append(done.stdout)
    kept = [int(note.split()[1].replace(",", "")) for note in notes[1:]]
    assert kept == sorted(kept)
    assert kept[-1] > 100
    sw.reshard(tmp_path / "a/x", tmp_path / "c/x@3", shuffle_seed=seed or None)
    assert files_of(tmp_path / "b") == files_of(tmp_path / "c")
    assert not list((tmp_path / "b").glob(".*"))


def test_workers_that_are_killed_are_gone_on_with(tmp_path):
    rng = random.Random(5)
    pool = rng.randbytes(1 << 20)
    starts = [rng.randrange(1 << 19) for _ in range(20_000)]
    binary([pool[at : at + 2000] for at in starts], tmp_path / "a/x@8")
    code = (
        "import sys, shardwriter as sw; from shardwriter import RunOptions; "
        "sw.reshard(sys.argv[1], sys.argv[2], workers=2, resume=True, "
        "run=RunOptions(mark_s=0.001, checkpoint_bytes=1_000_000))"
    )
    for seconds in (0.35, 0.5, 0.7, 60):
        command = [sys.executable, "-c", code, tmp_path / "a/x", tmp_path / "b/x@7"]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0
    sw.reshard(tmp_path / "a/x", tmp_path / "c/x@7")
    assert files_of(tmp_path / "b") == files_of(tmp_path / "c")


# -- damage --------------------------------------------------------------------------------------


def test_many_damaged_records_are_left_out_without_reading_all_for_each(tmp_path, monkeypatch):
    records = [b"%04d" % number * 100 for number in range(2000)]
    binary(records, tmp_path / "x@1")
    path = tmp_path / "x.tfrecord-00000-of-00001"
    data = bytearray(path.read_bytes())
    size = len(frame(records[0]))
    damaged = [*range(500, 700), *range(900, 1300, 2)]
    for number in damaged:
        data[number * size + 100] ^= 1
    path.write_bytes(data)
    num_bytes = []
    read = RecordFile.read

    def counted(self, begin, end):
        num_bytes.append(end - begin)
        return read(self, begin, end)

    monkeypatch.setattr(RecordFile, "read", counted)
    made = sw.write(tmp_path / "x", tmp_path / "y@3", on_error="skip")
    assert made.gaps == damaged
    assert records_in(tmp_path / "y") == [
        record for number, record in enumerate(records) if number not in {*damaged}
    ]
    assert sum(num_bytes) < 20 * len(data)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [50, 50_000])
def test_damage_is_refused_with_file_record_and_offset(tmp_path, size, workers):
    binary([bytes([i]) * size for i in range(40)], tmp_path / "a/x@4")
    path = tmp_path / "a/x.tfrecord-00002-of-00004"
    data = bytearray(path.read_bytes())
    offset = 3 * (size + 16)  # the fourth record: item 3 * 4 + 2
    data[offset + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match="does not match its CRC") as caught:
        sw.reshard(tmp_path / "a/x", tmp_path / "b/x@3", workers=workers)
    error = caught.value
    assert (error.path, error.record_index, error.offset) == (str(path), 3, offset)
    assert error.index == 14
    assert not list((tmp_path / "b").iterdir())
    run = RunOptions(on_error="skip")
    sw.reshard(tmp_path / "a/x", tmp_path / "b/x@3", workers=workers, run=run)
    manifest = load_manifest(tmp_path / "b/x.manifest.json")
    assert list(manifest.gaps) == [14]
    assert records_in(tmp_path / "b/x") == [bytes([i]) * size for i in range(40) if i != 14]
    ledger = json.loads((tmp_path / "b/x.errors.jsonl").read_text())
    assert (ledger["index"], ledger["offset"]) == (14, offset)


# -- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_copy_of_all_records_keeps_how_often_labels_come(tmp_path, workers):
    sw.write(rows(50), tmp_path / "a/x@4", label="label")
    made = sw.reshard(tmp_path / "a/x", tmp_path / "b/x@3", workers=workers)
    assert made.labels == {"counts": {"0": 17, "1": 17, "2": 16}, "feature": "label"}
    some = sw.write(tmp_path / "a/x", tmp_path / "c/x@3", format="tfrecord", limit=10)
    assert some.labels is None


# -- merge ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    sets=st.lists(
        st.tuples(
            st.lists(st.binary(max_size=30), max_size=20),
            st.integers(1, 5),
            st.sampled_from(["none", "gzip", "zlib"]),
        ),
        min_size=1,
        max_size=4,
    ),
    m=st.integers(1, 6),
    seed=st.none() | st.integers(0, 3),
)
def test_a_merge_is_the_records_of_one_after_those_of_the_other(tmp_path_factory, sets, m, seed):
    folder = tmp_path_factory.mktemp("merge")
    paths, expected = [], []
    for number, (records, n, compression) in enumerate(sets):
        binary(records, folder / f"{number}/x@{n}", compression=compression)
        paths.append(folder / f"{number}/x")
        expected += records
    if any(compression != "none" for _, _, compression in sets):
        seed = None
    sw.merge(paths, folder / f"m/x@{m}", shuffle_seed=seed)
    binary(expected, folder / f"e/x@{m}", shuffle_seed=seed)
    names = [name for name in files_of(folder / "e") if "manifest" not in name]
    assert files_of(folder / "m", *names) == files_of(folder / "e", *names)


@pytest.mark.parametrize("workers", [1, 2])
def test_schemas_are_joined_and_labels_added(tmp_path, workers):
    sw.write(rows(30), tmp_path / "a/x@4", label="label")
    more = [{**row, "extra": 1.5} for row in rows(50, 30)]
    sw.write(more, tmp_path / "b/x@3", label="label")
    merged = sw.merge([tmp_path / "a/x", tmp_path / "b/x"], tmp_path / "m/x@5", workers=workers)
    whole = sw.write([*rows(30), *more], tmp_path / "w/x@5", label="label")
    assert merged.schema == whole.schema
    assert merged.shards == whole.shards
    assert merged.labels["counts"] == whole.labels["counts"]
    again = sw.merge([tmp_path / "a/x", tmp_path / "b/x"], tmp_path / "m/x@5", resume=True)
    assert again.dumps() == merged.dumps()


def test_types_that_do_not_go_together_are_refused_before_anything_is_copied(tmp_path):
    sw.write([{"x": 1}], tmp_path / "a/x@1")
    sw.write([{"x": 1.5}], tmp_path / "b/x@1")
    paths = [str(tmp_path / "a/x"), str(tmp_path / "b/x")]
    with pytest.raises(SchemaConflict) as caught:
        sw.merge(paths, tmp_path / "m/x@1")
    assert caught.value.feature == "x"
    assert all(path in str(caught.value) for path in paths)
    assert not list((tmp_path / "m").iterdir())


def test_classes_with_other_numbers_are_refused(tmp_path, data_dir):
    sw.write(class_folders(tmp_path / "one", data_dir, ["cat", "dog"]), tmp_path / "a/x@1")
    sw.write(class_folders(tmp_path / "two", data_dir, ["bird", "cat"]), tmp_path / "b/x@1")
    with pytest.raises(SchemaConflict, match=r"class 0 is 'cat' in .*a/x, and 'bird' in .*b/x"):
        sw.merge([tmp_path / "a/x", tmp_path / "b/x"], tmp_path / "m/x@1")


def test_a_dataset_that_is_named_twice_is_refused(tmp_path):
    sw.write(rows(5), tmp_path / "a/x@2")
    with pytest.raises(OptionError, match="given twice"):
        sw.merge([tmp_path / "a/x", tmp_path / "a/x"], tmp_path / "m/x@1")
    with pytest.raises(OptionError, match="in both"):
        sw.merge([tmp_path / "a/x", tmp_path / "a"], tmp_path / "m/x@1")
    with pytest.raises(OptionError, match="the dataset that is read"):
        sw.merge([tmp_path / "a/x"], tmp_path / "a/x@3", overwrite=True)
    with pytest.raises(OptionError, match="nothing to merge"):
        sw.merge([], tmp_path / "m/x@1")


def test_a_foreign_set_leaves_the_schema_open(tmp_path):
    sw.write(rows(5), tmp_path / "a/x@2", label="label")
    (tmp_path / "f.tfrecord").write_bytes(frame(sw.encode_example({"y": 1})))
    merged = sw.merge([tmp_path / "a/x", tmp_path / "f.tfrecord"], tmp_path / "m/x@2")
    assert (merged.schema["features"], merged.labels) == ({}, None)
    assert merged.num_records == 6


# -- commands ------------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(app, list(map(str, args)))


def test_reshard_and_merge_as_commands(tmp_path):
    sw.write(rows(40), tmp_path / "a/x@4")
    sw.write(rows(60, 40), tmp_path / "b/x@3")
    done = run("reshard", tmp_path / "a/x", tmp_path / "c/x@7", "--index", "-j", "1", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["num_shards"] == 7
    assert len(files_of(tmp_path / "c", ".idx")) == 7
    again = run("reshard", tmp_path / "a/x", tmp_path / "c/x@7", "-j", "1")
    assert again.exit_code == 2
    assert "--overwrite" in again.output
    args = ["--shuffle", "--seed", "3", "--compression", "gzip", "-j", "1"]
    done = run("merge", tmp_path / "a/x", tmp_path / "b/x", tmp_path / "m/x@2", *args)
    assert done.exit_code == 0, done.output
    manifest = load_manifest(tmp_path / "m/x.manifest.json")
    assert (manifest.num_records, manifest.source["kind"]) == (60, "merge")
    assert manifest.order["shuffle"]["seed"] == 3


def test_the_command_makes_what_write_makes(tmp_path):
    sw.write(rows(40), tmp_path / "a/x@4", label="label")
    assert run("reshard", tmp_path / "a/x", tmp_path / "b/x@3", "-j", "1").exit_code == 0
    assert run("write", tmp_path / "a/x", tmp_path / "c/x@3", "-j", "1").exit_code == 0
    assert files_of(tmp_path / "b") == files_of(tmp_path / "c")


def test_errors_are_data_errors(tmp_path):
    sw.write(rows(4), tmp_path / "a/x@1")
    path = tmp_path / "a/x.tfrecord-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-3])
    done = run("reshard", tmp_path / "a/x", tmp_path / "b/x@2", "-j", "1")
    assert done.exit_code == DataError.exit_code
    assert str(path) in done.output.replace("\n", "")
