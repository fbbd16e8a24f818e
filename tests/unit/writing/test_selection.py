"""Which items are written: source order, filter, limit, shuffle, number."""

from __future__ import annotations

import hashlib
import threading
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.dataset.permutation import Permutation
from shardwriter.errors import CallableError, OptionError, SourceError
from shardwriter.sources.find import open_source
from shardwriter.sources.python import PythonSource
from shardwriter.writing import selection as selection_module
from shardwriter.writing.options import DatasetOptions
from shardwriter.writing.selection import Selection


class Rows:
    """An object that can be indexed: its items are listed as numbers."""

    def __init__(self, num_items):
        self.num_items = num_items

    def __len__(self):
        return self.num_items

    def __getitem__(self, index):
        return {"x": index, "text": f"row {index}"}


def rows(num_items):
    return [Rows(num_items)[index] for index in range(num_items)]


def number_of(item):
    """Return the place of an item in its source, whatever lists it."""
    return item["x"] if isinstance(item, dict) else int(item)


def not_every_third(item):
    return number_of(item) % 3 != 1


def nothing(item):
    return False


def model(num_items, keep=None, limit=None, seed=None):
    """The order of operations, said another way."""
    places = [i for i in range(num_items) if keep is None or keep(i)]
    places = places[:limit]
    if seed is not None:
        places = [places[i] for i in Permutation(len(places), seed)(np.arange(len(places)))]
    return places


def listed(selection):
    """Return the places of all items by their index."""
    if selection.random_access:
        indices = np.arange(selection.num_items)
        found = list(selection.items_at(indices))
        assert [index for index, _ in found] == indices.tolist()
        return [number_of(item) for _, item in found]
    return [number_of(item) for item in selection.items()]


keeps = st.none() | st.sets(st.integers(0, 30)).map(
    lambda chosen: lambda item: number_of(item) in chosen
)
limits = st.none() | st.integers(0, 35)
seeds = st.none() | st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("pick_block", [1, 4, 1 << 16])
@pytest.mark.parametrize("make", [Rows, rows])
@given(num_items=st.integers(0, 30), keep=keeps, limit=limits, seed=seeds)
def test_items_at_hand_are_filtered_then_limited_then_shuffled(
    pick_block, make, num_items, keep, limit, seed
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_module, "_PICK_BLOCK", pick_block)
        options = DatasetOptions(filter=keep, limit=limit, shuffle_seed=seed)
        selection = Selection(PythonSource(make(num_items)), options)
        expected = model(num_items, keep, limit, seed)
        assert selection.num_items == len(expected)
        assert listed(selection) == expected
        # And one after the other, before they are shuffled.
        in_order = [number_of(item) for item in selection.items()]
        assert in_order == model(num_items, keep, limit)


@given(num_items=st.integers(0, 30), keep=keeps, limit=limits)
def test_a_stream_is_filtered_then_limited(num_items, keep, limit):
    source = PythonSource(lambda: iter(rows(num_items)))
    selection = Selection(source, DatasetOptions(filter=keep, limit=limit))
    assert selection.num_items is None
    for _ in range(2):
        assert listed(selection) == model(num_items, keep, limit)


def test_items_far_apart_are_found_one_by_one(monkeypatch):
    monkeypatch.setattr(selection_module, "_PICK_BLOCK", 4)
    selection = Selection(PythonSource(Rows(3000)), DatasetOptions(filter=not_every_third))
    places = model(3000, not_every_third)
    indices = np.array([0, 1, 700, 1999])
    assert list(selection.items_at(indices)) == [(i, places[i]) for i in indices.tolist()]
    assert list(selection.items_at(indices[:0])) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"limit": 9}, False),
        ({"limit": 10}, True),
        ({"limit": 11}, True),
        ({"shuffle_seed": 3}, True),
        ({"filter": bool}, False),
    ],
)
def test_a_selection_knows_whether_it_takes_all(options, expected):
    assert Selection(PythonSource(Rows(10)), DatasetOptions(**options)).takes_all is expected


def test_the_filter_is_asked_once_for_every_item(tmp_path):
    asked = []

    def keep(item):
        asked.append(number_of(item))
        return not_every_third(item)

    for data in (Rows(20), rows(20), lambda: iter(rows(20))):
        for workers in (1, 2):
            asked.clear()
            sw.write(data, tmp_path / "t@3", filter=keep, workers=workers, overwrite=True)
            assert asked == list(range(20))
    asked.clear()
    sw.write(Rows(20), tmp_path / "auto", filter=keep)
    assert asked == list(range(20))


@pytest.mark.parametrize("make", [Rows, rows, lambda n: lambda: iter(rows(n))])
def test_the_filter_is_asked_no_further_than_the_limit(tmp_path, make):
    asked = []

    def keep(item):
        asked.append(number_of(item))
        return not_every_third(item)

    manifest = sw.write(make(100), tmp_path / "t@2", filter=keep, limit=5)
    assert manifest.num_items == 5
    assert asked == list(range(7))  # 0 2 3 5 6


@pytest.mark.parametrize("make", [Rows, rows, lambda n: lambda: iter(rows(n))])
def test_a_filter_that_raises_is_told_with_its_item(tmp_path, make):
    def keep(item):
        if number_of(item) == 3:
            raise KeyError("size")
        return True

    with pytest.raises(CallableError, match="the filter raised KeyError: 'size'") as caught:
        sw.write(make(10), tmp_path / "t@2", filter=keep)
    assert "3" in caught.value.item
    assert isinstance(caught.value.__cause__, KeyError)
    assert "what the source lists" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_filter_may_raise_an_error_of_ours(tmp_path):
    def keep(item):
        raise SourceError("no such thing")

    with pytest.raises(SourceError, match="no such thing"):
        sw.write(Rows(3), tmp_path / "t@2", filter=keep)


def test_a_filter_that_can_not_say_yes_or_no_is_told(tmp_path):
    with pytest.raises(CallableError, match="the filter raised ValueError"):
        sw.write(Rows(3), tmp_path / "t@2", filter=lambda item: np.arange(2))


def test_a_filtered_stream_can_not_be_shuffled():
    source = PythonSource(lambda: iter(rows(3)))
    with pytest.raises(OptionError, match="can not be shuffled"):
        Selection(source, DatasetOptions(filter=bool, shuffle_seed=0))


# -- written ---------------------------------------------------------------------------------------


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    lines = ["x,text", *(f"{row['x']},{row['text']}" for row in rows(50))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


OPTIONS = [
    {"filter": not_every_third},
    {"filter": not_every_third, "limit": 20},
    {"filter": not_every_third, "limit": 20, "shuffle_seed": 5},
    {"filter": nothing},
]
CASES = [
    (kind, options)
    for kind in ("indexed", "list", "stream", "table")
    for options in OPTIONS
    if kind != "stream" or "shuffle_seed" not in options
]


def data_of(kind, table):
    return {
        "indexed": Rows(50),
        "list": rows(50),
        "stream": lambda: iter(rows(50)),
        "table": table,
    }[kind]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_both_engines_write_the_same_bytes(tmp_path, table, kind, options):
    data = data_of(kind, table)
    sw.write(data, tmp_path / "serial" / "t@3", **options)
    for workers in (2, 5):
        sw.write(data, tmp_path / str(workers) / "t@3", workers=workers, **options)
        assert digests(tmp_path / str(workers)) == digests(tmp_path / "serial")


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_items_that_are_left_out_are_as_if_they_were_not_there(tmp_path, table, kind, options):
    found = sw.write(data_of(kind, table), tmp_path / "found" / "t@3", **options)
    keep = options["filter"]
    places = model(50, keep, options.get("limit"), options.get("shuffle_seed"))
    expected = sw.write([Rows(50)[i] for i in places], tmp_path / "expected" / "t@3")
    assert found.num_items == expected.num_items == len(places)
    assert found.gaps == expected.gaps == []
    assert found.shards == expected.shards
    assert sw.verify(str(tmp_path / "found")).num_defects == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_records_that_are_copied_can_be_filtered(tmp_path, workers):
    sw.write(Rows(50), tmp_path / "a" / "t@4", label="x")
    seen = []

    def every_other(item):
        seen.append(item)
        return len(seen) % 2

    manifest = sw.write(
        str(tmp_path / "a" / "t"), tmp_path / "b" / "t@3", filter=every_other, workers=workers
    )
    assert len(seen) == 50
    assert manifest.num_records == 25
    found = [
        sw.decode_example(record)["x"][0]
        for place in range(3)
        for record in sw.read_records(tmp_path / "b" / manifest.pattern.shard_files[place])
    ]
    assert sorted(found) == list(range(0, 50, 2))
    # Nobody has looked into the records, so nothing is said of how many have a feature.
    assert manifest.features == {}


def test_a_filter_that_can_not_be_sent_to_a_worker_stays_here(tmp_path):
    lock = threading.Lock()

    def keep(item):
        with lock:
            return not_every_third(item)

    for name, data in {"indexed": Rows(50), "stream": lambda: iter(rows(50))}.items():
        for workers in (1, 2):
            out = tmp_path / f"{name}{workers}" / "t@3"
            sw.write(data, out, filter=keep, workers=workers)
        assert digests(tmp_path / f"{name}1") == digests(tmp_path / f"{name}2")


def test_a_filter_is_part_of_the_job(tmp_path):
    jobs = {
        sw.write(rows(5), tmp_path / f"{number}" / "t@2", filter=keep).job
        for number, keep in enumerate([None, nothing, not_every_third, bool])
    }
    assert len(jobs) == 4


def test_a_listing_that_is_stopped_reads_no_further():
    read = []

    def stream():
        for row in rows(100):
            read.append(row["x"])
            yield row

    selection = Selection(open_source(stream), DatasetOptions(filter=not_every_third))
    assert [row["x"] for row in islice(selection.items(), 3)] == [0, 2, 3]
    assert read == [0, 1, 2, 3]
