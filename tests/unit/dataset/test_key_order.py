"""The order by key: what it is exactly, and that the order of the input is in no byte."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from command_line import run as command
from hypothesis import given
from hypothesis import strategies as st
from sampling import sampled

import shardwriter as sw
from shardwriter.dataset import key_order
from shardwriter.dataset.key_order import key_bytes, key_hash, key_hashes, key_of, positions_by_key
from shardwriter.errors import (
    CallableError,
    FeatureError,
    OptionError,
    OutputExists,
    RunChanged,
    SourceError,
    WireError,
)
from shardwriter.sources.find import open_source
from shardwriter.sources.python import PythonSource
from shardwriter.writing import selection as item_keys
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.selection import Selection

# -- what it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a/ä.png", b"a/\xc3\xa4.png"),
        ("", b""),
        (b"\xff\x00", b"\xff\x00"),
        (7, b"7"),
        (-7, b"-7"),
        (2**70, b"1180591620717411303424"),
        (np.int8(-7), b"-7"),
        (np.uint64(2**64 - 1), b"18446744073709551615"),
        (np.str_("x"), b"x"),
        (np.bytes_(b"x"), b"x"),
        (np.array(7), b"7"),
        (np.array([7], np.int32), b"7"),
        (np.array([["x"]]), b"x"),
        (np.array([b"x"], object), b"x"),
        ([7], b"7"),
        (["7"], b"7"),
        ([b"7"], b"7"),
        ([np.int64(7)], b"7"),
    ],
)
def test_the_bytes_of_a_key(key, expected):
    found = key_bytes(key)
    assert found == expected
    assert type(found) is bytes


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (None, "NoneType"),
        (True, "bool"),
        (np.True_, "bool"),
        ([False], "bool"),
        (np.array([True]), "bool"),
        (7.0, "float"),
        (np.float32(7), "float32"),
        (np.array([7.0]), "float64"),
        (np.array([1, 2]), r"\[2\] of int64"),
        (np.array([], np.int64), r"\[0\] of int64"),
        ([], "list of 0"),
        ([1, 2], "list of 2"),
        ([["a"]], "list of a list"),
        ((1,), "tuple"),
        (bytearray(b"x"), "bytearray"),
        (sw.UNSET, "Unset"),
        ("\ud800", "surrogates"),
        pytest.param(10**5000, "digits", id="digits"),
    ],
)
def test_what_is_no_key_is_refused_by_its_type(key, named):
    with pytest.raises(FeatureError, match=named):
        key_bytes(key)


# Made with hashlib alone, as the docstring of key_order.py says; they must never change.
VECTORS = [
    (b"", 0, 8968760994507524735),
    (b"7", 0, 8746613551411814568),
    (b"7", 1, 11266641609645776028),
    (b"k\xc3\xb6ln/a.png", 2**64 - 1, 17040029095623802213),
]


@pytest.mark.parametrize(("key", "seed", "expected"), VECTORS)
def test_hashes_are_pinned(key, seed, expected):
    assert key_hash(key, seed) == expected
    assert sort_key(key, seed) == (expected, key)
    found = key_hashes([b"other", key], seed)
    assert found.dtype == np.uint64
    assert found[1] == expected
    assert key_hashes([], seed).tolist() == []


def sort_key(key, seed):
    return key_hash(key, seed), key


def test_an_order_is_pinned():
    assert key_order.ALGORITHM == "blake2b-key/1"
    found = sorted(range(10), key=lambda i: sort_key(b"%d" % i, 0))
    assert found == [3, 9, 1, 4, 8, 5, 7, 6, 2, 0]


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@given(
    keys=st.lists(st.binary(max_size=3), unique=True, max_size=30),
    buckets=st.integers(1, 40),
)
def test_keys_of_one_hash_are_ordered_by_their_bytes(block, keys, buckets):
    asked = []

    def key_at(item):
        asked.append(item)
        return keys[item]

    hashes = key_hashes(keys, 1) % np.uint64(buckets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "_BLOCK", block)
        order = positions_by_key(hashes, key_at, AssertionError)
    expected = sorted(range(len(keys)), key=lambda item: (hashes[item], keys[item]))
    assert order.tolist() == expected
    shared = [item for item in range(len(keys)) if hashes.tolist().count(hashes[item]) > 1]
    assert sorted(asked) == shared


@given(st.lists(st.binary(max_size=1), min_size=1, max_size=20), st.integers(1, 4))
def test_equal_keys_are_always_found(keys, buckets):
    keys.append(keys[0])
    hashes = key_hashes(keys, 1) % np.uint64(buckets)

    class Refused(Exception):
        pass

    with pytest.raises(Refused) as caught:
        positions_by_key(hashes, keys.__getitem__, Refused)
    key, one, other = caught.value.args
    assert one < other
    assert keys[one] == keys[other] == key


def test_the_key_of_a_sequence_is_in_its_context(tmp_path):
    items = [sw.SequenceExample({"id": f"k{i}"}, {"id": [i]}) for i in range(30)]
    assert key_of(items[3], "id") == key_of(sw.encode_sequence_example(items[3]), "id") == b"k3"
    sw.write(items, tmp_path / "a@2", order="key", key="id")
    sw.write([{"id": f"k{i}"} for i in range(30)], tmp_path / "b@2", order="key", key="id")
    keys = [row.context["id"] for row in sw.open(tmp_path / "a")]
    assert keys == [row["id"] for row in sw.open(tmp_path / "b")]
    sw.write(items, tmp_path / "set@2")
    for source, name in ((items, "items"), (tmp_path / "set", "records")):
        options = {"split": "train=0.8,val=0.2", "key": "id", "num_shards": 2}
        sw.write_splits(source, tmp_path / name, **options)
    for split in ("train", "val"):
        ours, theirs = (sw.open(tmp_path / f"{name}-{split}") for name in ("items", "records"))
        keys = [row.context["id"][0].decode() for row in theirs]  # copied: no schema tells types
        assert [row.context["id"] for row in ours] == keys


def test_the_key_of_an_item():
    assert key_of({"id": 3}, "id") == b"3"
    assert key_of(sw.encode_example({"id": 3, "x": 0.5}), "id") == b"3"
    assert key_of(sw.encode_example({"id": "three"}), "id") == b"three"
    for item in ({}, {"id": None}, {"id": sw.UNSET}, sw.encode_example({"id": sw.UNSET})):
        with pytest.raises(FeatureError, match="no key") as caught:
            key_of(item, "id")
        assert caught.value.feature == "id"
    with pytest.raises(FeatureError, match="of type tuple, not a mapping"):
        key_of((1, 2), "id")
    with pytest.raises((SourceError, WireError)):
        key_of(b"no record", "id")


# -- what is written -------------------------------------------------------------------------------


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def data_files(folder):
    """Shards and index: the manifest knows a file by its bytes, be its rows in any order."""
    return {name: data for name, data in files(folder).items() if ".manifest" not in name}


def features(folder, name):
    """Return what a feature is in every item; None in a gap."""
    manifest = sw.load_manifest(folder / "t.manifest.json")
    shards = [sw.read_records(folder / file) for file in manifest.pattern.shard_files]
    gaps = set(manifest.gaps)
    found = []
    for index in range(manifest.num_items):
        record = None if index in gaps else next(shards[index % len(shards)])
        found.append(None if record is None else sw.decode_example(record)[name][0])
    return found


def rows(count=40):
    return [{"id": f"item {i}", "n": i, "half": i / 2} for i in range(count)]


def by_key(items, key, seed=0):
    return sorted(items, key=lambda item: sort_key(key_bytes(item[key]), seed))


class Indexed:
    """Loaded by the workers."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def drop_some(item):
    return sw.SKIP if item["n"] % 7 == 3 else item


def even(item):
    return item["n"] % 2 == 0


@given(
    data=st.data(),
    count=st.integers(0, 12),
    key=st.sampled_from(["id", "n"]),
    seed=st.sampled_from([0, 1, 2**64 - 1]),
)
def test_the_order_of_the_input_is_in_no_byte(tmp_path_factory, data, count, key, seed):
    items = rows(count)
    folder = tmp_path_factory.mktemp("any")
    for name, given_items in (("a", items), ("b", data.draw(st.permutations(items)))):
        sw.write(
            given_items, folder / name / "t@3", order="key", key=key, order_seed=seed, map=drop_some
        )
    # The manifests too, as a list is known by nothing but its length.
    assert files(folder / "a") == files(folder / "b")
    expected = [None if drop_some(i) is sw.SKIP else i["n"] for i in by_key(items, key, seed)]
    assert features(folder / "a", "n") == expected


CASES = [
    {},
    {"map": drop_some},
    {"filter": even},
    {"filter": even, "map": drop_some, "limit": 15, "order_seed": 3},
    {"limit": 7, "compression": "gzip"},
    {"limit": 0},
]
KEYS = ["id", "n"]


# Every option is drawn with each kind of source; `full` runs all with both keys.
@pytest.mark.parametrize(
    ("make", "options", "key"),
    sampled(
        "test_both_engines_write_the_same_bytes",
        [(make, options, key) for make in (list, Indexed) for options in CASES for key in KEYS],
        lambda make, options, key: (make.__name__, CASES.index(options)),
        lambda make, options, key: (make.__name__, key),
    ),
)
def test_both_engines_write_the_same_bytes(tmp_path, make, options, key):
    out = "t@3.gz" if "compression" in options else "t@3"
    options = {"order": "key", "key": key, **options}
    if make is Indexed and "filter" in options:
        options["filter"] = lambda index: index % 2 == 0  # what such a source lists
    for workers in (1, 2):
        sw.write(make(rows()), tmp_path / str(workers) / out, workers=workers, **options)
    assert files(tmp_path / "1") == files(tmp_path / "2")
    kept = [row for row in rows() if "filter" not in options or even(row)]
    expected = by_key(kept[: options.get("limit")], key, options.get("order_seed", 0))
    assert [n for n in features(tmp_path / "1", "n") if n is not None] == [
        row["n"] for row in expected if "map" not in options or drop_some(row) is row
    ]
    assert sw.verify(str(tmp_path / "1")).num_defects == 0


def test_the_seed_chooses_another_order(tmp_path):
    for seed in (0, 1):
        sw.write(rows(), tmp_path / f"{seed}/t@1", order="key", key="id", order_seed=seed)
    assert features(tmp_path / "0", "n") != features(tmp_path / "1", "n")
    assert sorted(features(tmp_path / "1", "n")) == list(range(40))


def test_the_manifest_says_how_and_no_other_manifest_does(tmp_path):
    sw.write(rows(), tmp_path / "a/t@2", order="key", key="id", order_seed=7)
    order = {"algorithm": "blake2b-key/1", "feature": "id", "seed": 7}
    assert sw.load_manifest(tmp_path / "a/t.manifest.json").order == {
        "key": order,
        "shuffle": None,
        "split": None,
    }
    assert "key" not in sw.write(rows(), tmp_path / "b/t@2").order


def test_the_order_is_part_of_the_job(tmp_path):
    ways = [
        {},
        {"shuffle_seed": 0},
        {"order": "key", "key": "id"},
        {"order": "key", "key": "n"},
        {"order": "key", "key": "id", "order_seed": 1},
    ]
    jobs = {sw.write(rows(), tmp_path / f"{i}/t@2", **way).job for i, way in enumerate(ways)}
    assert len(jobs) == len(ways)


def test_int_and_text_are_one_key(tmp_path):
    for name, keys in (
        ("int", [3, 1, 2]),
        ("text", ["1", "2", "3"]),
        ("bytes", [b"2", b"1", b"3"]),
    ):
        items = [{"id": key, "n": int(key)} for key in keys]
        sw.write(items, tmp_path / name / "t@1", order="key", key="id")
    found = {name: features(tmp_path / name, "n") for name in ("int", "text", "bytes")}
    assert found["int"] == found["text"] == found["bytes"]


def test_a_seed_of_an_item_is_that_of_its_place_in_the_source(tmp_path):
    def told(item):
        return {**item, "seed": sw.current_worker().item_seed % 2**32}

    def seeds(folder, **options):
        sw.write(rows(), folder / "t@3", map=told, limit=30, **options)
        return dict(zip(features(folder, "n"), features(folder, "seed"), strict=True))

    plain = seeds(tmp_path / "a")
    ordered = {"order": "key", "key": "id"}
    assert seeds(tmp_path / "b", **ordered) == plain
    assert seeds(tmp_path / "c", workers=2, **ordered) == plain
    assert seeds(tmp_path / "d", shuffle_seed=5) == seeds(tmp_path / "e", order_seed=5, **ordered)


def test_an_item_is_told_of_its_worker_while_it_is_loaded_for_its_key(tmp_path):
    class Random:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return {"id": sw.current_worker().item_seed % 2**32, "n": index}

    sw.write(Random(), tmp_path / "t@1", order="key", key="id", order_seed=1)
    found = features(tmp_path, "id")
    assert found == sorted(found, key=lambda key: sort_key(key_bytes(key), 1))


# -- sources ---------------------------------------------------------------------------------------


def table(path, numbers):
    path.write_text("id,n,half\n" + "".join(f"item {i},{i},{i / 2}\n" for i in numbers))
    return path


MIXED = random.Random(1).sample(range(3000), 3000)


@pytest.mark.parametrize("key", ["id", "n"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_table_by_a_column(tmp_path, key, workers):
    loaded = []
    for name, numbers in (("a", range(3000)), ("b", MIXED)):
        source = table(tmp_path / f"{name}.csv", numbers)
        options = {"order": "key", "key": key, "workers": workers}
        sw.write(source, tmp_path / name / "t@3", **options, notify=loaded.append)
    assert data_files(tmp_path / "a") == data_files(tmp_path / "b")
    assert features(tmp_path / "a", "n") == [row["n"] for row in by_key(rows(3000), key)]
    assert loaded == []


def test_a_table_is_read_in_columns(tmp_path, monkeypatch):
    source = open_source(table(tmp_path / "a.csv", MIXED))
    monkeypatch.setattr(type(source), "load", None)
    options = DatasetOptions(filter=lambda row: row % 2, order="key", key="n")
    selection = Selection(source, options)
    kept = [i for place, i in enumerate(MIXED) if place % 2]
    expected = sorted(kept, key=lambda i: sort_key(b"%d" % i, 0))
    found = [MIXED[place] for _, place in selection.items_at(np.arange(1500))]
    assert found == expected


def test_json_lines_by_a_feature_that_only_a_map_makes_records_of(tmp_path):
    for name, numbers in (("a", range(20)), ("b", MIXED[:20])):
        lines = [json.dumps({"id": sorted(numbers).index(i), "deep": {"n": i}}) for i in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    sw.write(
        tmp_path / "a.jsonl",
        tmp_path / "a/t@2",
        map=lambda row: {"id": row["id"]},
        order="key",
        key="id",
    )
    found = features(tmp_path / "a", "id")
    assert found == sorted(range(20), key=lambda i: sort_key(b"%d" % i, 0))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_finished_records_by_a_feature(tmp_path, compression):
    out = "t@3.gz" if compression == "gzip" else "t@3"
    sw.write(rows(), tmp_path / "in" / out, compression=compression)
    source = tmp_path / "in/t"
    if compression == "gzip":
        with pytest.raises(OptionError, match="can not be put in the order of its keys"):
            sw.write(source, tmp_path / "out/t@2", order="key", key="id")
        return
    said = []
    sw.write(source, tmp_path / "out/t@2", order="key", key="id", notify=said.append)
    assert features(tmp_path / "out", "n") == [row["n"] for row in by_key(rows(), "id")]
    assert any("every item is loaded" in line for line in said)
    records = [sw.encode_example(row) for row in rows()]
    sw.write(records[::-1], tmp_path / "list/t@2", order="key", key="id")
    assert data_files(tmp_path / "list") == data_files(tmp_path / "out")


def images(folder, names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (number + 1).to_bytes(4, "big") * 2
        path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + b"\x08\x02\0\0\0")
    return folder


@pytest.mark.parametrize("key", [None, "image/filename"])
def test_an_image_folder_by_path(tmp_path, key):
    names = [f"c{i % 3}/{i}.png" for i in range(30)]
    said = []
    for workers in (1, 2):
        sw.write(
            images(tmp_path / "images", names),
            tmp_path / f"{workers}/t@2",
            order="key",
            key=key,
            workers=workers,
            notify=said.append,
        )
    assert files(tmp_path / "1") == files(tmp_path / "2")
    expected = sorted((name.encode() for name in names), key=lambda name: sort_key(name, 0))
    assert features(tmp_path / "1", "image/filename") == expected
    assert len(said) == (0 if key is None else 2)


def test_rows_are_called_by_their_numbers(tmp_path):
    said = []
    source = table(tmp_path / "a.csv", range(30))
    sw.write(source, tmp_path / "t@2", order="key", notify=said.append)
    expected = sorted(range(30), key=lambda i: sort_key(b"row %d" % i, 0))
    assert features(tmp_path, "n") == expected
    assert "--key FEATURE" in said[0]


# -- what is refused -------------------------------------------------------------------------------


def test_equal_keys_are_refused_with_both_items(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,n\n" + "".join(f"{i % 20},{i}\n" for i in range(21)))
    with pytest.raises(SourceError, match="the key '0', row 0 and row 20") as caught:
        sw.write(path, tmp_path / "out/t@2", order="key", key="id")
    assert caught.value.feature == "id"
    assert "--key" in caught.value.hint
    items = [{"id": "7"}, {"id": 8}, {"id": 7}]
    with pytest.raises(SourceError, match="the key '7', item 0 and item 2"):
        sw.write(items, tmp_path / "out/t@2", order="key", key="id")
    with pytest.raises(SourceError, match="the key 'same'"):
        sw.write([{"id": "same"}] * 100_000, tmp_path / "out/t@2", order="key", key="id")
    with pytest.raises(SourceError, match=r"b'\\xff'"):
        sw.write([{"id": b"\xff"}] * 2, tmp_path / "out/t@2", order="key", key="id")
    with pytest.raises(SourceError, match=r"x\.\.\., item 0 and item 1"):
        sw.write([{"id": "x" * 1000}] * 2, tmp_path / "out/t@2", order="key", key="id")
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


def test_an_item_that_is_left_out_may_have_the_key_of_another(tmp_path):
    items = [{"id": 1}, {"id": 2}, {"id": 1}]
    assert sw.write(items, tmp_path / "t@1", order="key", key="id", limit=2).num_items == 2


@pytest.mark.parametrize("bits", [0, 1, 2])
def test_hashes_that_collide_change_nothing_but_the_order(tmp_path, monkeypatch, bits):
    def weak(keys, seed):
        return key_hashes(keys, seed) & np.uint64((1 << bits) - 1)

    monkeypatch.setattr(item_keys, "key_hashes", weak)
    for name, items in (("a", rows()), ("b", rows()[::-1])):
        sw.write(items, tmp_path / name / "t@3", order="key", key="id", filter=even)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    if not bits:
        expected = sorted(row["id"].encode() for row in rows() if even(row))
        assert features(tmp_path / "a", "id") == expected
    with pytest.raises(SourceError, match="'item 3', item 3 and item 40"):
        sw.write([*rows(), rows()[3]], tmp_path / "c/t@3", order="key", key="id")


@pytest.mark.parametrize(
    ("bad", "kind", "match"),
    [
        ({"n": 2}, FeatureError, "no key"),
        ({"id": None}, FeatureError, "no key"),
        ({"id": sw.UNSET}, FeatureError, "no key"),
        ({"id": 0.5}, FeatureError, "a float can not be a key"),
        ((1, 2), FeatureError, "of type tuple, not a mapping"),
        (b"no record", (SourceError, WireError), "."),
    ],
)
def test_an_item_without_a_key_is_named(tmp_path, bad, kind, match):
    items = [{"id": 1}, {"id": 2}, bad]
    with pytest.raises(kind, match=match) as caught:
        sw.write(items, tmp_path / "t@2", order="key", key="id", run=RunOptions(on_error="skip"))
    assert caught.value.index == 2
    assert list(tmp_path.iterdir()) == []


def test_a_cell_without_a_key_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("id,n\n1,1\n,2\n3,3\n")
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"n": 2}\n{"id": null}\n')
    (tmp_path / "b.csv").write_text("id,n\nx,1\ny,0.5\n")
    for name, key in (("a.csv", "id"), ("a.jsonl", "id"), ("b.csv", "n")):
        with pytest.raises(FeatureError, match=r"no key|a float") as caught:
            sw.write(tmp_path / name, tmp_path / "t@2", order="key", key=key)
        assert caught.value.item == ("row 0" if key == "n" else "row 1")
        assert caught.value.feature == key


def test_what_an_item_raises_is_told_with_the_item(tmp_path):
    class Broken(Indexed):
        def __getitem__(self, index):
            if index == 3:
                raise KeyError("boom")
            return super().__getitem__(index)

    with pytest.raises(CallableError, match="raised KeyError: 'boom'") as caught:
        sw.write(Broken(rows()), tmp_path / "t@2", order="key", key="id")
    assert caught.value.index == 3
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"order": "hash"}, "order is 'hash'"),
        ({"order": None}, "order is None"),
        ({"key": "id"}, "a key has no effect"),
        ({"order_seed": 1}, "order_seed needs"),
        ({"order": "key", "key": ""}, "key is ''"),
        ({"order": "key", "key": 3}, "key is 3"),
        ({"order": "key", "order_seed": -1}, "order_seed is -1"),
        ({"order": "key", "order_seed": 2**64}, "order_seed is"),
        ({"order": "key", "order_seed": True}, "order_seed is True"),
        ({"order": "key", "shuffle_seed": 0}, "exclude each other"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, match):
    with pytest.raises(OptionError, match=match):
        DatasetOptions(**options)


def test_sources_that_have_no_such_order_are_refused(tmp_path):
    stream = PythonSource(lambda: iter(rows()))
    for options in ({}, {"filter": even}, {"limit": 3}):
        with pytest.raises(OptionError, match="can not be put in the order of its keys"):
            Selection(stream, DatasetOptions(order="key", key="id", **options))
    with pytest.raises(OptionError, match="have no names") as caught:
        sw.write(rows(), tmp_path / "t@2", order="key")
    assert "--key" in caught.value.hint
    with pytest.raises(OptionError, match='key="x": there is no such feature') as caught:
        sw.write(table(tmp_path / "a.csv", range(3)), tmp_path / "t@2", order="key", key="x")
    assert "half, id, n" in caught.value.hint


# -- resumed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_stopped_goes_on(tmp_path, workers):
    def stops(item):
        if item["n"] == 33:
            raise ValueError("boom")
        return drop_some(item)

    def goes(item):
        return drop_some(item)

    for function in (stops, goes):
        function.__qualname__ = "the_map"
    order = {"order": "key", "key": "id", "order_seed": 4}
    out = tmp_path / "out/t@3"
    with pytest.raises(CallableError):
        sw.write(rows(), out, map=stops, run=RunOptions(mark_s=0, workers=workers), **order)
    for other in ({}, {"order": "key", "key": "n"}, {"order": "key", "key": "id"}):
        with pytest.raises(RunChanged, match="order=, key="):
            sw.write(rows(), out, map=goes, resume=True, **other)
    said = []
    # The order of the input has changed: a list is known by its length, and the keys are the same.
    sw.write(rows()[::-1], out, map=goes, resume=True, workers=workers, notify=said.append, **order)
    assert any(line.startswith("resuming") for line in said)
    sw.write(rows(), tmp_path / "whole/t@3", map=goes, **order)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    sw.write(rows(), out, map=goes, resume=True, notify=said.append, **order)
    assert "nothing to do" in said[-1]
    with pytest.raises(OutputExists, match="order=, key="):
        sw.write(rows(), out, map=goes, resume=True, order="key", key="n")


# -- the command -----------------------------------------------------------------------------------


def test_the_command(tmp_path):
    source = table(tmp_path / "a.csv", range(30))
    order = ("--order", "key", "--key", "id", "--seed", 3)
    done = command("write", source, tmp_path / "a/t@2", *order)
    assert done.returncode == 0, done.stderr
    sw.write(source, tmp_path / "b/t@2", order="key", key="id", order_seed=3)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    done = command("write", source, tmp_path / "c/t@2", "--order", "key", "--dry-run")
    assert done.returncode == 0
    assert "--key FEATURE" in done.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--order", "key", "--shuffle"], "--shuffle"),
        (["--order", "key", "--shuffle", "--seed", "1"], "alone chooses"),
        (["--key", "id"], "--order key"),
        (["--seed", "1"], "--order key"),
        (["--order", "key", "--key", "nope"], "half, id, n"),
        (["--order", "random"], "random"),
    ],
)
def test_the_command_refuses(tmp_path, arguments, words):
    source = table(tmp_path / "a.csv", range(3))
    done = command("write", source, tmp_path / "t@2", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
