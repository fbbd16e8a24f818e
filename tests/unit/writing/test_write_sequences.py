"""SequenceExamples as a dataset: written by every engine, refused beside Examples, read, shown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import FeatureError, ManifestError, OptionError, SchemaConflict, WireError
from shardwriter.formats import payload_kind
from shardwriter.formats.sequence_example import (
    by_key,
    context_part,
    display_name,
    feature_spelling,
    is_sequence_key,
    list_part,
    list_spelling,
)
from shardwriter.inspect.repair_shards import recount
from shardwriter.sources.shard_sets import load_manifest

NAMES = st.text(st.sampled_from("ab[]\\"), max_size=5)


def item(i):
    return sw.SequenceExample(
        {"label": i % 3, "x": 0.5, "x[]": f"n{i}"},
        {
            "x": np.full((i % 4, 2), i, "f4"),
            "words": ["a", "b", "c"][: i % 4],
            "ids": [[7] * (j % 3) for j in range(i % 4)],
            "pixels": [sw.raw(np.full((2, 2), j, "u1")) for j in range(i % 3)],
            "gaps": [True, None, False],
        },
    )


ITEMS = [item(i) for i in range(20)]


def assert_read(found, i):
    assert isinstance(found, sw.SequenceExample)
    assert found.context == {"label": i % 3, "x": 0.5, "x[]": f"n{i}"}
    lists = found.feature_lists
    for name, dtype in (("x", "float32"), ("pixels", "uint8")):
        steps = [s.array if name == "pixels" else s for s in ITEMS[i].feature_lists[name]]
        assert lists[name].dtype == dtype
        assert lists[name].tolist() == [step.tolist() for step in steps]
    assert lists["x"].shape == (i % 4, 2)
    assert lists["pixels"].shape == (i % 3, 2, 2)
    assert lists["words"] == ["a", "b", "c"][: i % 4]
    assert [None if ids is None else ids.tolist() for ids in lists["ids"]] == [
        [7] * (j % 3) or None for j in range(i % 4)
    ]
    assert [None if v is None else bool(v) for v in lists["gaps"]] == [True, None, False]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    sw.write(ITEMS, folder / "t@3", label="label")
    return folder


def test_they_come_back_with_types_and_shapes(folder):
    data = sw.open(folder / "t")
    assert data.feature_lists["x"].type.shape == (2,)
    for i, found in enumerate(data):
        assert_read(found, i)
    assert_read(data[7], 7)
    for i, found in enumerate(data[4:9].shuffle(seed=1)):
        assert_read(found, data[4:9].shuffle(seed=1).source_index(i))
    with pytest.raises(FeatureError, match="not be read as columns"):
        data.columns([0, 1])
    with pytest.raises(OptionError, match="SequenceExample"):
        data.split(0, 3, "pad")
    assert len(data.split(0, 3, "wrap")) == 7


def test_two_workers_give_the_same_bytes_schema_and_labels(folder, tmp_path):
    one = load_manifest(folder / "t.manifest.json")
    two = sw.write(ITEMS, tmp_path / "t@3", label="label", workers=2)
    assert [s.crc32c for s in two.shards] == [s.crc32c for s in one.shards]
    assert two.schema == one.schema
    assert two.labels == one.labels
    assert one.labels["counts"] == {"0": 7, "1": 7, "2": 6}
    assert set(one.schema) == {"features", "feature_lists"}
    assert set(one.features) == {"label", "x", "x[]"}
    assert one.schema["feature_lists"]["pixels"] == {
        "dtype": "uint8", "encoding": "raw", "kind": "bytes", "present": 20,
        "shape": [2, 2], "unset": 7,
    }  # fmt: skip


class Stopped:
    def __init__(self, at=None):
        self.at = at

    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, i):
        if i == self.at:
            raise KeyboardInterrupt
        return ITEMS[i]


def test_a_resumed_run_gives_the_same(folder, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sw.write(Stopped(13), tmp_path / "t@3", label="label", run=sw.RunOptions(mark_s=0))
    found = sw.write(Stopped(), tmp_path / "t@3", label="label", resume=True)
    one = load_manifest(folder / "t.manifest.json")
    assert (found.schema, found.labels) == (one.schema, one.labels)
    assert [s.crc32c for s in found.shards] == [s.crc32c for s in one.shards]
    notes = []
    again = sw.write(Stopped(), tmp_path / "t@3", label="label", resume=True, notify=notes.append)
    assert again.schema == one.schema
    assert any("nothing to do" in note for note in notes)


def test_pushed_and_copied_and_mapped(folder, tmp_path):
    one = load_manifest(folder / "t.manifest.json")
    with sw.open_writer(tmp_path / "pushed@3", label="label") as writer:
        for example in ITEMS:
            writer.write(example)
    assert writer.manifest.schema == one.schema
    copy = sw.write(str(folder / "t"), tmp_path / "copy@2")
    assert copy.schema == one.schema
    assert_read(sw.open(tmp_path / "copy")[5], 5)

    def swap(example):
        assert isinstance(example, sw.SequenceExample)
        return example._replace(feature_lists={"ids": example.feature_lists["ids"]})

    sw.write(str(folder / "t"), tmp_path / "mapped@2", map=swap)
    assert set(sw.open(tmp_path / "mapped")[3].feature_lists) == {"ids"}


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("sequence_first", [True, False])
def test_records_of_two_kinds_name_both_items(tmp_path, workers, sequence_first):
    items = [ITEMS[0], {"a": 1}] if sequence_first else [{"a": 1}, ITEMS[0]]
    kinds = ("an Example", "a SequenceExample")
    here, there = kinds if sequence_first else kinds[::-1]
    with pytest.raises(SchemaConflict, match=f"item 1.*{here} here, {there} in item 0"):
        sw.write(items, tmp_path / "t@2", workers=workers)


@pytest.mark.parametrize(
    ("context", "lists", "why"),
    [
        ({}, {"a": [1, 2.5]}, r"'a\[\]'.*int64 and float"),
        ({}, {"a": [[1, 2], 3.0]}, "steps of one feature list"),
        ({}, {"a": 3}, "a feature list is of type int"),
        ({}, {"a": "text"}, "a feature list is of type str"),
        ({}, {"a": [1, {}]}, r"'a\[\]'.*step 1: dict"),
        ({"a": {}}, {}, "'a'.*dict"),
        ({}, [1], "of type list"),
        ({}, {"a": [np.zeros((1, 2)), np.zeros((2, 1))]}, "two dimensions vary"),
        ({}, {1: [1]}, "not a str"),
    ],
)
def test_values_without_a_place_are_named_and_can_be_skipped(tmp_path, context, lists, why):
    items = [ITEMS[0], sw.SequenceExample(context, lists), ITEMS[2]]
    with pytest.raises(FeatureError, match=f"item 1.*{why}"):
        sw.write(items, tmp_path / "t@1")
    manifest = sw.write(items, tmp_path / "t@1", on_error="skip")
    assert list(manifest.gaps) == [1]
    alone = sw.write([ITEMS[0], ITEMS[2]], tmp_path / "u@1")
    assert manifest.schema == alone.schema


def test_steps_of_two_types_in_two_items(tmp_path):
    items = [sw.SequenceExample({}, {"a": [x]}) for x in (1, 1.5)]
    with pytest.raises(SchemaConflict, match=r"item 1, feature 'a\[\]'.*in item 0"):
        sw.write(items, tmp_path / "t@1")


def test_a_schema_and_tfds_are_for_examples(folder, tmp_path):
    with pytest.raises(FeatureError, match="schema is of Examples"):
        sw.write(ITEMS, tmp_path / "t@1", schema="label=int64")
    with pytest.raises(ManifestError, match="SequenceExamples"):
        sw.write(ITEMS, tmp_path / "d", tfds="demo:1.0.0", num_shards=1)
    with pytest.raises(OptionError, match="only features of Examples"):
        sw.write([], tmp_path / "u@1", schema=folder / "t.manifest.json")


# -- looked at -------------------------------------------------------------------------------------


def test_show(folder):
    path = str(folder / "t")
    text = CliRunner().invoke(app, ["show", path, "--start", "7"]).stdout
    assert "SequenceExample" in text
    for row in (r"x\[]", "x[] step 2", "ids[] step 0", "words[] step 1"):
        assert row in text
    shown = json.loads(CliRunner().invoke(app, ["show", path, "--start", "7", "--json"]).stdout)
    assert shown["features"]["label"] == [1]
    assert shown["feature_lists"]["words"] == [["a"], ["b"], ["c"]]
    assert shown["feature_lists"]["gaps"] == [[1], None, [0]]


def test_shard_stats_tell_a_list_from_a_feature_of_that_spelling(folder):
    report = sw.stats(folder / "t", features=True, label="label").to_json()
    assert report["verdict"].startswith("OK")
    told = report["sets"][0]["features"]
    assert told["x"]["dtype"] == "float32"
    assert told["x\\[]"]["dtype"] == "string"
    assert told["x[]"]["shape"] == [2]
    assert told["x[]"]["steps"]["max"] == 3
    assert told["pixels[]"]["encoding"] == "raw"


def test_counting_again_after_a_loss(folder):
    manifest = load_manifest(folder / "t.manifest.json")
    data = sw.open(folder / "t", decode=False)

    def records(shard):
        return [(i, data[i]) for i in range(shard, 20, 3) if i >= 2]

    schema, _ = recount(manifest, [0, 1], 18, records)
    wanted = sw.write(ITEMS[2:], folder / "rest@3", label="label").schema
    assert schema == wanted


# -- bytes and names -------------------------------------------------------------------------------


def test_no_record_passes_for_an_example():
    payload = sw.encode_sequence_example(sw.SequenceExample({}, {}))
    assert payload == b"\x0a\x00\x12\x00"
    assert payload_kind(payload) == "SequenceExample"
    assert sw.decode_sequence_example(payload) == ({}, {})


def test_large_steps_and_absent_lists():
    large = np.arange(5000, dtype=np.int64)
    payload = sw.encode_sequence_example(
        sw.SequenceExample({"c": None}, {"a": [large, large[:1]], "b": None, "c": []})
    )
    context, lists = sw.decode_sequence_example(payload)
    assert context == {}
    assert set(lists) == {"a", "c"}
    assert lists["a"][0].tolist() == large.tolist()
    with pytest.raises(WireError):
        sw.decode_sequence_example(payload[:-1])


@given(st.sets(NAMES), st.sets(NAMES))
def test_no_two_features_are_spelled_alike(names, lists):
    spelled = [feature_spelling(n) for n in names] + [list_spelling(n) for n in lists]
    assert len(set(spelled)) == len(spelled)
    keys = by_key(dict.fromkeys(names, 1), dict.fromkeys(lists, 2))
    assert len(keys) == len(names) + len(lists)
    assert context_part(keys) == dict.fromkeys(names, 1)
    assert list_part(keys) == dict.fromkeys(lists, 2)
    assert all(map(is_sequence_key, keys))
    assert not any(map(is_sequence_key, names))
    assert {display_name(k) for k in keys} == names | {list_spelling(n) for n in lists}
    assert json.loads(json.dumps(keys)) == keys


def test_sequences_of_others_keep_their_lists(tmp_path):
    items = [sw.SequenceExample({"id": i}, {"x": [[i, i]] * i, "w": [b"a"]}) for i in range(20)]
    records = [sw.encode_sequence_example(item) for item in items]
    sw.write(records, tmp_path / "t@2")  # finished records: no schema tells what they are
    (tmp_path / "t.manifest.json").unlink()
    sw.write(tmp_path / "t", tmp_path / "copied@2")
    for name in ("t", "copied"):
        data = sw.open(tmp_path / name)
        assert data.feature_lists == {}
        for found in (list(data), [data[i] for i in range(20)], list(data[3:].shuffle(seed=1))):
            assert {type(row) for row in found} == {sw.SequenceExample}
        lengths = {int(row.context["id"][0]): len(row.feature_lists["x"]) for row in data}
        assert lengths == {i: i for i in range(20)}
        assert all(row.feature_lists["w"] == [[b"a"]] for row in data)
        with pytest.raises(FeatureError, match="not be read as columns"):
            data.columns(range(2))


def test_examples_of_others_are_no_sequences(tmp_path):
    sw.write([sw.encode_example({"x": 1})] * 3, tmp_path / "t@1")
    data = sw.open(tmp_path / "t")
    assert data.feature_lists is None
    assert data[0]["x"].tolist() == [1]
