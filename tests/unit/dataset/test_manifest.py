"""The manifest: one text for one dataset, and no contradiction passes."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset.assignment import GapRuns, gaps_per_shard, num_shard_items, to_runs
from shardwriter.dataset.manifest import IndexEntry, Manifest, SealedShard, parse_manifest
from shardwriter.dataset.naming import ShardPattern
from shardwriter.errors import ManifestError
from shardwriter.formats import canonical
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import Schema
from shardwriter.sources.shard_sets import load_manifest

CRCS = st.integers(0, 2**32 - 1)


def make(num_items=10, num_shards=3, gaps=(4, 5), compression="none", **changes):
    """A manifest that keeps the law."""
    missing = gaps_per_shard(gaps, num_shards)
    counts = [num_shard_items(num_items, num_shards, s) - missing[s] for s in range(num_shards)]
    shards = [
        SealedShard(n, 10 * n, 26 * n, 7 * s, None if compression == "none" else s)
        for s, n in enumerate(counts)
    ]
    schema = Schema({"a/b": FeatureType("int64", "int64", ())}, {"a/b": ["x", "y"]})
    facts = {
        "pattern": ShardPattern("train.tfrecord", num_shards),
        "num_items": num_items,
        "shards": shards,
        "gaps": list(gaps),
        "compression": {"type": compression},
        "index": IndexEntry("train.index", 88, 0x1234),
        "job": "sha256:0f",
        "source": {"digest": "sha256:00", "kind": "csv"},
        "order": {"shuffle": None, "split": None},
        "schema": schema.to_json(),
        "labels": {"counts": {"x": 3}, "feature": "a/b"},
    }
    return Manifest(**{**facts, **changes})


@st.composite
def manifests(draw):
    num_items = draw(st.integers(0, 40))
    gaps = draw(st.sets(st.integers(0, num_items - 1))) if num_items else set()
    return make(
        num_items,
        draw(st.integers(1, 9)),
        sorted(gaps),
        draw(st.sampled_from(["none", "gzip", "zlib"])),
        index=IndexEntry("train.index", draw(st.integers(0, 2**40)), draw(CRCS)),
        labels=draw(st.none() | st.just({"counts": {}, "feature": "ü"})),
        metadata=draw(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3))),
    )


@given(manifests())
def test_a_manifest_is_read_as_it_was_written(manifest):
    text = manifest.dumps()
    again = parse_manifest(text)
    assert again == manifest
    assert again.dumps() == text
    assert parse_manifest(text.encode()) == manifest


def test_the_text_is_canonical():
    text = make().dumps()
    assert text == canonical.dumps(json.loads(text))


def test_totals_are_sums_over_the_shards():
    manifest = make()
    assert (manifest.num_records, manifest.payload_bytes, manifest.file_bytes) == (8, 80, 208)
    assert (manifest.name, manifest.num_shards) == ("train", 3)
    data = json.loads(manifest.dumps())
    assert data["num_records"] == 8
    assert data["skipped"] == {"count": 2, "runs": [[4, 2]]}
    assert data["shards"]["records"] == [4, 2, 2]
    assert data["shards"]["files"] == "train.tfrecord-{shard}-of-00003"
    assert data["shards"]["crc32c"] == ["00000000", "00000007", "0000000e"]


def test_plain_shards_have_no_second_checksum():
    assert "file_crc32c" not in json.loads(make().dumps())["shards"]
    assert len(json.loads(make(compression="gzip").dumps())["shards"]["file_crc32c"]) == 3


def test_features_are_read_back():
    feature = make().features["a/b"]
    assert feature.type == FeatureType("int64", "int64", ())
    assert feature.vocabulary == ["x", "y"]


def test_unknown_keys_are_kept():
    data = json.loads(make().dumps())
    data["future"] = {"a": [1]}
    data["shards"]["labels"] = [{}, {}, {}]
    data["index"]["kind"] = 9
    data["skipped"]["reasons"] = {"4": "dropped"}
    data["schema"]["version"] = 2
    data["source"]["note"] = "x"
    text = canonical.dumps(data)
    assert parse_manifest(text).dumps() == text


def test_a_file_is_loaded(tmp_path):
    path = tmp_path / "train.manifest.json"
    path.write_text(make().dumps())
    assert load_manifest(path) == make()


def test_a_file_that_is_broken_is_named(tmp_path):
    path = tmp_path / "train.manifest.json"
    path.write_text(make().dumps()[:-20])
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"format":"shardwriter.manifest/2"}', b"\xff\xfe", "[" * 10**5],
)
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(ManifestError):
        parse_manifest(text)


def test_a_key_that_stands_twice_is_refused():
    text = make().dumps().replace('"num_items":10', '"num_items":10,"num_items":10')
    with pytest.raises(ManifestError, match="twice"):
        parse_manifest(text)


@pytest.mark.parametrize("key", sorted({*json.loads(make().dumps())} - {"labels", "metadata"}))
def test_every_key_is_needed(key):
    data = json.loads(make().dumps())
    del data[key]
    with pytest.raises(ManifestError):
        parse_manifest(canonical.dumps(data))
    data[key] = 3.5
    if key != "job":
        with pytest.raises(ManifestError):
            parse_manifest(canonical.dumps(data))


TAMPERINGS = [
    ("num_items", 11), ("num_items", 9), ("num_items", -1), ("num_items", 10.0),
    ("num_items", True), ("num_records", 9), ("num_shards", 4), ("num_shards", 0),
    ("num_shards", 10**9), ("payload_bytes", 81), ("name", "val"), ("name", None),
    ("shards.records", [4, 2, 3]), ("shards.records", [4, 2]), ("shards.records", [3, 3, 2]),
    ("shards.records", [4, 2, -2]), ("shards.records", ["4", "2", "2"]), ("shards.records", "422"),
    ("shards.payload_bytes", [40, 20, 21]), ("shards.payload_bytes", [40, 20]),
    ("shards.file_bytes", [104, 52, 52, 0]), ("shards.file_bytes", [104, 52, -1]),
    ("shards.file_bytes", [104, 52, 1.5]), ("shards.crc32c", ["00000000", "00000007"]),
    ("shards.crc32c", ["00000000", "00000007", "x"]), ("shards.crc32c", [0, 7, 14]),
    ("shards.crc32c", ["00000000", "00000007", "-000000e"]),
    ("shards.crc32c", ["00000000", "00000007", "0x00000e"]),
    ("shards.crc32c", ["00000000", "00000007", "100000000"]),
    ("shards.files", "../train.tfrecord-{shard}-of-00003"),
    ("shards.files", "a/train.tfrecord-{shard}-of-00003"),
    ("shards.files", "train.tfrecord-{shard}-of-00004"),
    ("shards.files", "train.tfrecord-00000-of-00003"),
    ("shards.files", "val.tfrecord-{shard}-of-00003"), ("shards.files", None),
    ("skipped.count", 3), ("skipped.runs", []), ("skipped.runs", [[5, 2]]),
    ("skipped.runs", [[4, 1], [4, 1]]), ("skipped.runs", [[5, 1], [4, 1]]),
    ("skipped.runs", [[4, 2], [7, 0]]), ("skipped.runs", [[4, 10**15]]),
    ("skipped.runs", [[10, 1], [11, 1]]), ("skipped.runs", [[100, 2]]), ("skipped.runs", [[4]]),
    ("skipped.runs", [[-5, 2]]), ("skipped.runs", 7), ("skipped.runs", [[4.0, 2]]),
    ("index.file", "../train.index"), ("index.file", "a/b"), ("index.file", 7), ("index.file", ""),
    ("index.file_bytes", -1), ("index.crc32c", "zz"), ("index.crc32c", None),
    ("compression.type", "brotli"), ("compression.type", "gzip"), ("compression", {}),
    ("compression", "none"), ("schema", []), ("schema.features", {"a": {}}),
    ("schema.features", {"a": 3}), ("source", None), ("order", []), ("format", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), TAMPERINGS, ids=lambda x: str(x)[:40])
def test_a_manifest_that_contradicts_itself_is_refused(key, value):
    data = json.loads(make().dumps())
    place = data
    *path, last = key.split(".")
    for part in path:
        place = place[part]
    assert place.get(last) != value or canonical.dumps(place[last]) != canonical.dumps(value)
    place[last] = value
    with pytest.raises(ManifestError) as caught:
        parse_manifest(canonical.dumps(data), "m.json")
    assert caught.value.path == "m.json"
    assert caught.value.hint


def test_gaps_that_even_out_between_shards_do_not_pass():
    """The same number of records, in shards that the law does not give them to."""
    data = json.loads(make(gaps=()).dumps())
    data["shards"]["records"] = [3, 4, 3]
    with pytest.raises(ManifestError, match="shard 0 has 3 records, the assignment gives 4"):
        parse_manifest(canonical.dumps(data))


def test_parsing_does_not_change_the_input():
    data = json.loads(make().dumps())
    before = copy.deepcopy(data)
    parse_manifest(canonical.dumps(data)).to_json()
    assert data == before


def test_a_repr_is_one_short_line():
    manifest = make(2048, 1024, (), schema={"features": {f"f{i}": {} for i in range(1000)}})
    text = repr(manifest)
    assert text.startswith("<Manifest train: 1,024 shards, 2,048 records, 53,248 bytes, 1,000 f")
    assert len(text) < 200
    odd = make(schema={"features": {"\x1b[2J\n": {"present": 1, "unset": 0}}})
    assert repr(odd).isprintable()


def test_a_table_for_notebooks_is_escaped():
    features = {"<script>": {"present": 1, "unset": 0, "kind": "int64", "dtype": "<b>"}}
    text = make(schema={"features": features})._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "<b>" not in text


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=9), st.integers(1, 7))
def test_gaps_as_runs_are_what_the_list_is(steps, num_shards):
    runs, stop = [], 0
    for hole, count in steps:
        runs.append([stop + hole, count])
        stop += hole + count
    gaps = [gap for first, count in runs for gap in range(first, first + count)]
    found = GapRuns(runs)
    assert list(found) == gaps
    assert np.array_equal(np.asarray(found, np.int64), gaps)
    assert [found[k] for k in range(len(found))] == gaps
    assert found == gaps
    assert to_runs(found) == to_runs(gaps)
    assert [k for k in range(stop + 3) if k in found] == gaps
    assert gaps_per_shard(found, num_shards) == gaps_per_shard(gaps, num_shards)
