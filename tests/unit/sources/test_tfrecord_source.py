"""TFRecord files as input: every record comes out as it went in, in the order that is promised."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import open_below

import shardwriter as sw
from shardwriter.errors import OptionError, SourceError
from shardwriter.formats import UNSET, decode_example, encode_example
from shardwriter.formats.compression import open_stream
from shardwriter.formats.tfrecord import frame
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources import tfrecord as record_file
from shardwriter.sources import tfrecord as tfrecord_source
from shardwriter.sources.find import open_source
from shardwriter.sources.shard_sets import load_manifest
from shardwriter.sources.tfrecord import TFRecordFiles
from shardwriter.writing.options import RunOptions

PACKS = {"plain": bytes, "gzip": gzip.compress, "zlib": zlib.compress}


def records_of(source):
    return [source.load(item) for item in source.items()]


def rows(stop):
    return [{"x": i, "text": f"row {i}" * (i % 5), "none": sw.UNSET} for i in range(stop)]


def shard_bytes(folder, name="x"):
    return {p.name: p.read_bytes() for p in sorted(Path(folder).glob(f"{name}.tfrecord-*"))}


# -- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 3, 16])
@pytest.mark.parametrize("num_rows", [0, 2, 50])
def test_a_copy_into_as_many_shards_is_a_twin(tmp_path, num_shards, num_rows):
    sw.write(rows(num_rows), tmp_path / f"a/x@{num_shards}", label="x")
    manifest = sw.write(tmp_path / "a/x", tmp_path / f"b/x@{num_shards}", format="tfrecord")
    assert shard_bytes(tmp_path / "a") == shard_bytes(tmp_path / "b")
    assert (tmp_path / "a/x.index").read_bytes() == (tmp_path / "b/x.index").read_bytes()
    first = load_manifest(tmp_path / "a/x.manifest.json")
    assert manifest.schema == first.schema
    assert manifest.shards == first.shards
    sw.verify(tmp_path / "b/x")


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
@pytest.mark.parametrize("with_manifest", [True, False])
def test_any_compression_gives_the_same_plain_bytes(tmp_path, pack, with_manifest):
    sw.write(rows(40), tmp_path / "a/x@3", map=lambda row: sw.SKIP if row["x"] % 7 == 2 else row)
    sw.write(tmp_path / "a", tmp_path / "plain/x@4")
    for path in (tmp_path / "a").glob("x.tfrecord-*"):
        path.write_bytes(pack(path.read_bytes()))
    kept = [row["x"] for row in rows(40) if row["x"] % 7 != 2]
    if not with_manifest:
        (tmp_path / "a/x.manifest.json").unlink()
        kept = [i for s in range(3) for i in range(s, 40, 3) if i % 7 != 2]
    source = TFRecordFiles(str(tmp_path / "a"))
    assert source.random_access is (pack is bytes)
    assert source.num_items == (len(kept) if with_manifest or pack is bytes else None)
    assert [decode_example(record)["x"].tolist() for record in records_of(source)] == [
        [x] for x in kept
    ]
    sw.write(tmp_path / "a", tmp_path / "b/x@4")
    if with_manifest:
        assert shard_bytes(tmp_path / "b") == shard_bytes(tmp_path / "plain")


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(16, 90), st.integers(1, 9))
def test_plain_files_give_any_record(tmp_path_factory, records, window, batch):
    folder = tmp_path_factory.mktemp("records")
    half = len(records) // 2
    (folder / "1.tfrecord").write_bytes(b"".join(map(frame, records[:half])))
    (folder / "2.tfrecord").write_bytes(b"".join(map(frame, records[half:])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_file, "_WINDOW_BYTES", window)
        patch.setattr(record_file, "_BATCH", batch)
        patch.setattr(record_file, "_HEADER_CACHE_SIZE", 2)
        patch.setattr(record_file, "_AHEAD_BYTES", window)
        source = TFRecordFiles(str(folder))
        assert records_of(source) == records
        assert records_of(source)[::-1] == records[::-1]
    whole = TFRecordFiles(str(folder))
    assert source.digest() == whole.digest()
    assert source.num_items == len(records)
    for index in random.Random(0).sample(range(len(records)), len(records)):
        assert source.load(source.item(index)) == records[index]


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_more_shards_than_may_be_open(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(tfrecord_source, "_MAX_OPEN_FILES", 3)
    sw.write(rows(60), tmp_path / "x@20", compression=compression)
    source = TFRecordFiles(str(tmp_path / "x"))
    found = []
    for item in source.items():
        found.append(decode_example(source.load(item))["x"][0])
        assert open_below(tmp_path) <= 4
    assert found == list(range(60))
    del source, item
    assert open_below(tmp_path) == 0


def test_the_schema_of_a_cut_copy_is_not_known(tmp_path):
    sw.write(rows(10), tmp_path / "a/x@2")
    cut = sw.write(tmp_path / "a/x", tmp_path / "b/x@2", limit=9)
    assert (cut.num_records, dict(cut.features)) == (9, {})
    whole = sw.write(tmp_path / "a/x", tmp_path / "c/x@2", limit=10)
    assert whole.features["x"].present == 10
    for path in (tmp_path / "a").glob("x.[im]*"):
        path.unlink()
    assert dict(sw.write(tmp_path / "a/x", tmp_path / "d/x@2").features) == {}


def test_shuffle(tmp_path):
    sw.write(rows(50), tmp_path / "a/x@4")
    sw.write(rows(50), tmp_path / "b/x@3", shuffle_seed=3)
    sw.write(tmp_path / "a/x", tmp_path / "c/x@3", shuffle_seed=3)
    assert shard_bytes(tmp_path / "b") == shard_bytes(tmp_path / "c")
    (tmp_path / "x.gz").write_bytes(gzip.compress(frame(b"")))
    with pytest.raises(OptionError, match="shuffle"):
        sw.write(tmp_path / "x.gz", tmp_path / "d/x@3", shuffle_seed=3)


# -- maps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_a_map_is_given_the_features(tmp_path, pack):
    seen = []

    def double(features):
        seen.append(features)
        return sw.SKIP if features["x"][0] == 1 else {**features, "x": features["x"] * 2}

    payloads = [encode_example(row) for row in rows(3)]
    (tmp_path / "in.tfrecord").write_bytes(pack(b"".join(map(frame, payloads))))
    manifest = sw.write(tmp_path / "in.tfrecord", tmp_path / "x@1", map=double)
    assert (manifest.num_records, list(manifest.gaps)) == (2, [1])
    assert [row["text"] for row in seen] == [[b""], [b"row 1"], [b"row 2" * 2]]
    assert all(row["none"] is UNSET and isinstance(row["x"], np.ndarray) for row in seen)
    found = list(read_records(tmp_path / "x.tfrecord-00000-of-00001"))
    assert found == [encode_example({**rows(3)[i], "x": [2 * i]}) for i in (0, 2)]


def test_records_that_are_no_examples_are_copied_and_not_mapped(tmp_path):
    (tmp_path / "in.tfrecord").write_bytes(frame(b"hello"))
    sw.write(tmp_path / "in.tfrecord", tmp_path / "x@1")
    assert list(read_records(tmp_path / "x.tfrecord-00000-of-00001")) == [b"hello"]
    with pytest.raises(SourceError, match=r"not a tf\.train\.Example") as caught:
        sw.write(tmp_path / "in.tfrecord", tmp_path / "y@1", map=dict)
    assert (caught.value.index, caught.value.item) == (0, "record 0")
    assert "without a map" in caught.value.hint


def test_what_looks_into_records_needs_a_map(tmp_path):
    (tmp_path / "in.tfrecord").write_bytes(frame(encode_example({"x": 1})))
    with pytest.raises(OptionError, match="label: "):
        sw.write(tmp_path / "in.tfrecord", tmp_path / "x@1", label="x")
    with pytest.raises(OptionError, match="schema: "):
        sw.write(tmp_path / "in.tfrecord", tmp_path / "x@1", schema={"x": FeatureType("int64")})
    manifest = sw.write(tmp_path / "in.tfrecord", tmp_path / "x@1", label="x", map=dict)
    assert manifest.labels["counts"] == {"1": 1}


# -- which files ---------------------------------------------------------------------------------


def test_names_of_a_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sw.write(rows(7), "d/x@3")
    texts = ["d", "d/x", "d/x@3", "d/x@*", "d/x.manifest.json", "d/x.tfrecord-*-of-00003", "d/*"]
    expected = records_of(TFRecordFiles("d/x"))
    assert [decode_example(r)["x"][0] for r in expected] == list(range(7))
    for text in texts:
        source = open_source(text)
        assert source.kind == "tfrecord"
        assert records_of(source) == expected
    alone = open_source("d/x.tfrecord-00001-of-00003")
    assert [decode_example(r)["x"][0] for r in records_of(alone)] == [1, 4]
    assert [alone.key(item) for item in alone.items()] == ["record 0", "record 1"]
    assert TFRecordFiles("d/x").key(4) == "x.tfrecord-00001-of-00003 record 1"


def test_sets_without_a_manifest_are_read_shard_by_shard(tmp_path):
    for shard in range(12):
        path = tmp_path / f"t.record-{shard}-of-12"
        path.write_bytes(frame(b"%d a" % shard) + frame(b"%d b" % shard))
    source = TFRecordFiles(str(tmp_path))
    assert records_of(source) == [b"%d %s" % (s, c) for s in range(12) for c in (b"a", b"b")]
    assert "12 files without a manifest" in source.notes[0]
    (tmp_path / "t.record-7-of-12").unlink()
    with pytest.raises(SourceError, match="1 of 12 shards are missing: 7"):
        TFRecordFiles(str(tmp_path))


def test_loose_files_are_read_by_name(tmp_path):
    for name in ("b/1.tfrecord", "a/2.tfrecord", "a/1.tfrecord"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(frame(name.encode()))
    source = TFRecordFiles(str(tmp_path / "*/*.tfrecord"))
    assert records_of(source) == [b"a/1.tfrecord", b"a/2.tfrecord", b"b/1.tfrecord"]
    assert [source.key(item) for item in source.items()] == [
        "a/1.tfrecord record 0",
        "a/2.tfrecord record 0",
        "b/1.tfrecord record 0",
    ]


def test_several_datasets_are_not_mixed(tmp_path):
    sw.write(rows(2), tmp_path / "d/train@2")
    sw.write(rows(3), tmp_path / "d/val@2")
    with pytest.raises(SourceError, match=r"2 datasets \(train, val\)") as caught:
        TFRecordFiles(str(tmp_path / "d"))
    assert "d/train" in caught.value.hint
    assert TFRecordFiles(str(tmp_path / "d/*")).num_items == 5
    with pytest.raises(OptionError, match="no such file"):
        TFRecordFiles(str(tmp_path / "d/test"))


# -- a dataset is not written over itself --------------------------------------------------------


@pytest.mark.parametrize("out", ["x@2", "x@3", "x.record@2", "sub/../x@2", "link/x@5"])
@pytest.mark.parametrize("source", ["x", "x.tfrecord-00001-of-00002", "link/x", "one.tfrecord"])
@pytest.mark.parametrize("map", [None, dict])
def test_a_dataset_is_not_written_over_itself(tmp_path, out, source, map):
    sw.write(rows(9), tmp_path / "x@2")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "one.tfrecord").symlink_to(tmp_path / "x.tfrecord-00000-of-00002")
    before = shard_bytes(tmp_path)
    with pytest.raises(OptionError, match="'x' is the dataset that is read"):
        sw.write(tmp_path / source, tmp_path / out, map=map, run=RunOptions(overwrite=True))
    assert shard_bytes(tmp_path) == before
    assert sw.verify(tmp_path / "x").verdict.startswith("OK")
    assert not list(tmp_path.glob(".*.partial"))
    sw.write(tmp_path / source, tmp_path / "sub/x@2", run=RunOptions(overwrite=True))


# -- damage --------------------------------------------------------------------------------------

FRAMES = [frame(b"a" * size) for size in (5, 70_000, 0, 9)]


def flip(data, offset):
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data, at, end: flip(data, at), "length CRC"),
        (lambda data, at, end: flip(data, at + 9), "length CRC"),
        (lambda data, at, end: flip(data, end - 1), "does not match its CRC"),
        (lambda data, at, end: data[: end - 1], "file ends after"),
        (lambda data, at, end: data[: at + 7], "file ends after 7 bytes"),
        (lambda data, at, end: data[:at] + bytes(64), "never written|zero"),
    ],
)
def test_damage_is_named(tmp_path, pack, before, damage, words):
    path = tmp_path / "x.tfrecord"
    offset = len(b"".join(FRAMES[:before]))
    data = damage(b"".join(FRAMES), offset, offset + len(FRAMES[before]))
    path.write_bytes(pack(data))
    with pytest.raises(SourceError, match=words) as caught:
        records_of(TFRecordFiles(str(path)))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.path, error.record_index, error.offset) == (str(path), before, offset)
    assert "shard-stats" in error.hint


def test_a_compressed_file_that_is_cut_is_named(tmp_path):
    data = random.Random(0).randbytes(3000)
    (tmp_path / "x.gz").write_bytes(gzip.compress(frame(data) + frame(data[::-1]))[:-2000])
    with pytest.raises(SourceError, match="is cut off") as caught:
        sw.write(tmp_path / "x.gz", tmp_path / "x@2", format="tfrecord")
    assert caught.value.record_index == 1
    assert not list(tmp_path.glob("x.tfrecord*"))


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
@pytest.mark.parametrize("more", [frame(b"x"), b""])
def test_shards_that_are_not_those_of_the_manifest_are_refused(tmp_path, pack, more):
    sw.write(rows(10), tmp_path / "x@2")
    path = tmp_path / "x.tfrecord-00001-of-00002"
    path.write_bytes(pack(path.read_bytes() + more if more else frame(b"x")))
    with pytest.raises(SourceError, match=r"record.*the manifest has 5") as caught:
        records_of(TFRecordFiles(str(tmp_path / "x")))
    assert caught.value.path == str(path)


def test_a_file_that_changes_is_refused(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frame(b"a") + frame(b"b"))
    source = TFRecordFiles(str(path))
    path.write_bytes(frame(b"a") + frame(b"b") + frame(b"c"))
    with pytest.raises(SourceError, match="has changed"):
        source.load(0)


def test_a_flipped_byte_after_the_scan_is_told(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frame(b"a") + frame(b"b"))
    source = TFRecordFiles(str(path))
    stat = path.stat()
    with open(path, "r+b") as file:
        file.write(flip(path.read_bytes(), 12))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert source.load(1) == b"b"
    with pytest.raises(SourceError, match="does not match its CRC"):
        source.load(0)


# -- files of others -----------------------------------------------------------------------------


def test_real_files_are_copied_whole(data_dir, tmp_path):
    expected = json.loads((data_dir / "expected.json").read_text())
    for number, (name, facts) in enumerate(expected.items()):
        out = tmp_path / str(number)
        manifest = sw.write(data_dir / name, out / "x@1", format="tfrecord")
        assert manifest.num_records == facts["records"], name
        assert manifest.payload_bytes == facts["payload_total"], name
        with open_stream(data_dir / name) as stream:
            plain = b"".join(iter(lambda: stream.read(1 << 20), b""))
        assert (out / "x.tfrecord-00000-of-00001").read_bytes() == plain, name
        if facts["records"]:
            assert open_source(str(data_dir / name)).kind == "tfrecord"
