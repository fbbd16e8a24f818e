"""What every source promises, whatever it reads."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest

import shardwriter
from shardwriter import SKIP
from shardwriter.encode import ItemEncoder
from shardwriter.example import UNSET, encode_example
from shardwriter.feature_types import describe
from shardwriter.options import DatasetOptions
from shardwriter.schema import Schema
from shardwriter.sources import ColumnSource
from shardwriter.sources.csv import CsvTable
from shardwriter.sources.image_folder import ImageFolder
from shardwriter.sources.jsonl import JsonLines
from shardwriter.sources.python import PythonSource
from shardwriter.sources.tfrecord import TFRecordFiles
from shardwriter.tfrecord import frame


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def write_images(folder, names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gif(number + 1, 2 * number + 1))


def write_table(path, first, stop, delimiter=",", pack=bytes):
    lines = [["id", "score", "name", "none"]]
    for i in range(first, stop):
        name = ["", "é\nü", 'say "hi"', "x,y;z"][i % 4]
        lines.append([str(i), "" if i % 5 == 0 else str(i / 8), name, ""])
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(lines)
    path.write_bytes(pack(path.read_bytes()))


class Classes:
    def write(self, folder):
        write_images(folder, ["b/2.gif", "b/1.gif", "a/x/3.gif", "a/10.gif", "c/é.gif"])

    def open(self, folder):
        return ImageFolder(str(folder))


class Loose(Classes):
    def write(self, folder):
        write_images(folder, ["b.gif", "a.gif", "c.gif"])


class Table:
    def write(self, folder):
        write_table(folder / "t.csv", 0, 23)

    def open(self, folder):
        return CsvTable(sorted(str(path) for path in folder.iterdir()))


class Tables(Table):
    def write(self, folder):
        write_table(folder / "1.csv", 0, 9)
        write_table(folder / "2.csv", 9, 9)
        write_table(folder / "3.tsv", 9, 30, delimiter="\t")


class Packed(Table):
    def write(self, folder):
        write_table(folder / "1.csv.gz", 0, 12, pack=gzip.compress)
        write_table(folder / "2.csv.gz", 12, 20, delimiter=";", pack=gzip.compress)


class NoRows(Table):
    def write(self, folder):
        write_table(folder / "t.csv", 0, 0)


ITEMS = [{"x": i, "y": [0.5 * i], "z": f"text {i}"} for i in range(7)]


class Map:
    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, index):
        return dict(ITEMS[index])


class Python:
    def __init__(self, data):
        self.data = data

    def write(self, folder):
        pass

    def open(self, folder):
        return PythonSource(self.data, name="mod:data")


class JsonRows:
    def write(self, folder):
        lines = [json.dumps(row) for row in ROWS]
        (folder / "1.jsonl").write_text("\n".join(lines[:9]) + "\n")
        (folder / "2.jsonl").write_text("")
        (folder / "3.ndjson.gz").write_bytes(gzip.compress("\r\n\n".join(lines[9:]).encode()))

    def open(self, folder):
        return JsonLines(sorted(str(path) for path in folder.iterdir()))


ROWS = [
    {
        "id": i,
        "name": ["", "é\nü", None][i % 3],
        "score": i if i % 4 else i / 8,
        "list": list(range(i % 3)),
        "none": None,
        **({"rare": i % 2 == 0} if i % 5 == 0 else {}),
    }
    for i in range(23)
]


def write_records(path, first, stop, pack=bytes):
    records = [encode_example({"x": i, "y": b"y" * i}) for i in range(first, stop)]
    path.write_bytes(pack(b"".join(map(frame, records))))


class Records:
    def write(self, folder):
        write_records(folder / "1.tfrecord", 0, 9)
        write_records(folder / "2.tfrecord", 9, 9)
        write_records(folder / "3.tfrecord", 9, 20)

    def open(self, folder):
        return TFRecordFiles(str(folder))


class Dataset(Records):
    def write(self, folder):
        rows = ({"x": i} if i % 4 else SKIP for i in range(20))
        shardwriter.write(rows, folder / "d@3", map=lambda row: row)


class PackedRecords(Records):
    def write(self, folder):
        write_records(folder / "1.tfrecord.gz", 0, 9, gzip.compress)
        write_records(folder / "2.tfrecord.gz", 9, 20, gzip.compress)


FILES = {
    "images in classes": Classes(),
    "images alone": Loose(),
    "table": Table(),
    "tables": Tables(),
    "packed tables": Packed(),
    "table without rows": NoRows(),
    "json lines": JsonRows(),
    "records": Records(),
    "packed records": PackedRecords(),
}
ALL = {
    **FILES,
    "dataset": Dataset(),
    "list": Python(ITEMS),
    "map-style": Python(Map()),
    "function": Python(lambda: (dict(item) for item in ITEMS)),
    "iterable": Python(dict(enumerate(ITEMS)).values()),
}
NUM_ITEMS = [5, 3, 23, 30, 20, 0, 23, 20, None, 15, 7, 7, None, None]

every_source = pytest.mark.parametrize("case", ALL.values(), ids=ALL)
file_source = pytest.mark.parametrize("case", FILES.values(), ids=FILES)


@pytest.fixture
def folder(tmp_path, case):
    path = tmp_path / "data"
    path.mkdir()
    case.write(path)
    return path


@pytest.fixture
def source(folder, case):
    return case.open(folder)


def loaded(source, items=None):
    """Return features as bytes, so that nan is equal to nan."""
    records = [source.load(i) for i in (source.items() if items is None else items)]
    return [r if isinstance(r, bytes) else encode_example(r) for r in records]


@every_source
def test_listing_twice_gives_the_same_items(source):
    assert source.stable
    assert list(source.items()) == list(source.items())


@every_source
def test_two_listings_at_once_do_not_disturb_each_other(source):
    first, second = source.items(), source.items()
    taken = [next(first, None), next(second, None), next(first, None)]
    again = list(source.items())[:2]
    assert taken == (again[:1] + again[:1] + again[1:] if again else [None] * 3)


@every_source
def test_another_opening_gives_the_same_items(source, folder, case):
    other = case.open(folder)
    assert list(other.items()) == list(source.items())
    assert loaded(other) == loaded(source)
    assert other.digest() == source.digest()
    assert other.fingerprint() == source.fingerprint()
    assert other.plan == source.plan


@every_source
def test_any_item_is_the_one_of_that_place(source):
    if not source.random_access:
        pytest.skip("gives its items in order only")
    items = list(source.items())
    for place in reversed(range(len(items))):
        assert source.item(place) == items[place]


@pytest.mark.parametrize(
    ("case", "num_items"), [*zip(ALL.values(), NUM_ITEMS, strict=True)], ids=ALL
)
def test_the_number_of_items_is_right_or_unknown(source, num_items):
    assert source.num_items == num_items
    if num_items is None:
        num_items = 7 if source.kind == "python" else 20
    assert len(list(source.items())) == num_items


@every_source
def test_loading_is_pure(source):
    items = list(source.items())
    first = loaded(source, items)
    assert loaded(source, items[::-1]) == first[::-1]
    for item in items:
        features = source.load(item)
        if isinstance(features, dict) and source.kind != "python":  # these are the user's own
            features.clear()
    assert loaded(source, items) == first


@every_source
def test_descriptors_are_picklable(source):
    items = list(source.items())
    travelled = pickle.loads(pickle.dumps(items))
    assert travelled == items
    assert loaded(source, travelled) == loaded(source, items)


@every_source
def test_keys_are_stable_and_of_one_item(source):
    keys = [source.key(item) for item in source.items()]
    assert keys == [source.key(item) for item in source.items()]
    if source.kind != "python":
        assert len(set(keys)) == len(keys)
        assert not any(os.path.isabs(key) for key in keys)


@every_source
def test_the_plan_is_what_loading_returns(source):
    if source.kind in ("python", "tfrecord"):
        assert source.plan == {}
        return
    schema = Schema(source.plan)
    for index, item in enumerate(source.items()):
        features = source.load(item)
        assert set(features) == set(source.plan) - ({"rare"} if index % 5 else set())
        for name, value in features.items():
            if value is not UNSET:
                found, planned = describe(name, value), source.plan[name]
                assert found.kind in (None, planned.kind)
                assert (
                    planned.join(replace(found, encoding=planned.encoding)).shape == planned.shape
                )
        schema.observe(index, features)
    for name, summary in schema.features.items():
        assert (summary.type.kind, summary.type.dtype) == (
            source.plan[name].kind,
            source.plan[name].dtype,
        )


@every_source
def test_vocabularies_and_label_are_of_planned_features(source):
    assert set(source.vocabularies) <= set(source.plan)
    assert source.label is None or source.label in source.plan
    for name, words in source.vocabularies.items():
        values = {source.load(item)[name] for item in source.items()}
        assert values == set(range(len(words)))


@every_source
def test_columns_give_the_records_of_rows(source):
    def written(encoder, records):
        gathered = list(records)
        inner = encoder.encoder
        return gathered, inner.schema.to_json(), inner.labels.to_json()

    options = DatasetOptions(label="name" if "name" in source.plan else None)
    items = list(enumerate(source.items()))
    rows, columns = ItemEncoder(source, options, 3), ItemEncoder(source, options, 3)
    one_by_one = written(rows, [(index, rows.record(index, item)) for index, item in items])
    assert written(columns, columns.records(items)) == one_by_one
    if isinstance(source, ColumnSource) and items:
        order = np.random.default_rng(0).permutation(len(items)).tolist()
        shuffled = ItemEncoder(source, options, 3).records([items[place] for place in order])
        assert list(shuffled) == [one_by_one[0][place] for place in order]


@file_source
def test_the_digest_does_not_know_where_and_when(source, folder, case, tmp_path):
    shutil.copytree(folder, tmp_path / "elsewhere" / "other name")
    other = case.open(tmp_path / "elsewhere" / "other name")
    assert other.digest() == source.digest()
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert case.open(folder).digest() == source.digest()


@file_source
def test_the_fingerprint_changes_with_time(source, folder, case):
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        before = case.open(folder).fingerprint()
        time_ns = path.stat().st_mtime_ns
        os.utime(path, ns=(time_ns, time_ns + 1_000_000_000))
        assert case.open(folder).fingerprint() != before
        os.utime(path, ns=(time_ns, time_ns))
    assert case.open(folder).fingerprint() == source.fingerprint()


@file_source
def test_the_digest_changes_with_the_data(source, folder, case):
    path = min(path for path in folder.rglob("*") if path.is_file())
    if path.suffix == ".jsonl" or "tfrecord" in path.name:
        more = b'{"id": 7}\n' if path.suffix == ".jsonl" else frame(b"")
        packed = path.suffix == ".gz"
        data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        path.write_bytes(gzip.compress(data + more) if packed else data + more)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"99,1,x,\r\n"))
    elif path.suffix == ".csv":
        path.write_bytes(path.read_bytes() + b"99,1,x,\r\n")
    else:
        path.write_bytes(path.read_bytes() + b"\0")
    assert case.open(folder).digest() != source.digest()


def test_the_digest_of_images_changes_with_a_name(tmp_path):
    write_images(tmp_path, ["a/1.gif", "a/2.gif"])
    before = ImageFolder(str(tmp_path)).digest()
    (tmp_path / "a/1.gif").rename(tmp_path / "a/0.gif")
    assert ImageFolder(str(tmp_path)).digest() != before
