"""Splits: what ``--split`` says, and which items each of them has."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset.naming import split_outputs
from shardwriter.dataset.permutation import Permutation
from shardwriter.dataset.splits import Split, parse_split_option, position_key, split_hashes
from shardwriter.errors import CallableError, FeatureError, OptionError, SourceError
from shardwriter.sources.csv import CsvTable
from shardwriter.sources.python import PythonSource
from shardwriter.writing.options import DatasetOptions
from shardwriter.writing.selection import Selection

HALVES = (("a", "0.5"), ("b", "0.5"))
NAMES = ["train", "val", "test"]


# -- the rule --------------------------------------------------------------------------------------


def test_hashes_are_those_of_the_format():
    assert split_hashes([b"cat/0001.jpg", position_key(0)], 0).tolist() == [
        0xC136380B22C16C22,
        0xF4DAD6AE52326193,
    ]


def model(key, fractions, seed):
    """The rule, said another way: exact, and one key at a time."""
    digest = blake2b(
        key, digest_size=8, key=seed.to_bytes(8, "little"), person=b"shardwriter.splt"
    ).digest()
    number = int.from_bytes(digest, "little")
    total = Fraction(0)
    for place, (_, fraction) in enumerate(fractions):
        low = int(total * 2**64)
        total += Fraction(fraction)
        if low <= number < int(total * 2**64):
            return place
    raise AssertionError


@st.composite
def divisions(draw):
    """Fractions that sum to 1, as decimals of up to four digits."""
    cuts = draw(st.lists(st.integers(1, 9999), unique=True, max_size=5))
    bounds = [0, *sorted(cuts), 10_000]
    parts = [high - low for low, high in pairwise(bounds)]
    return tuple((f"s{i}", str(Decimal(part) / 10_000)) for i, part in enumerate(parts))


@given(divisions(), st.integers(0, 2**64 - 1), st.lists(st.binary(max_size=20), max_size=50))
def test_every_key_is_in_exactly_the_split_of_the_rule(fractions, seed, keys):
    split = Split(fractions[0][0], fractions, seed)
    found = split.numbers_of(keys).tolist()
    assert found == [model(key, fractions, seed) for key in keys]


def test_a_bound_belongs_to_the_split_behind_it(monkeypatch):
    split = Split("a", HALVES)
    hashes = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    monkeypatch.setattr("shardwriter.dataset.splits.split_hashes", lambda keys, seed: hashes)
    assert split.numbers_of([]).tolist() == [0, 0, 1, 1]


def test_fractions_are_nearly_those_that_were_asked_for():
    split = Split("a", (("a", "0.7"), ("b", "0.2"), ("c", "0.1")))
    found = split.numbers_of(map(position_key, range(20_000)))
    shares = np.bincount(found) / 20_000
    assert np.abs(shares - [0.7, 0.2, 0.1]).max() < 0.01


def test_another_seed_divides_otherwise():
    keys = [position_key(i) for i in range(100)]
    one, other = (Split("a", HALVES, seed).numbers_of(keys).tolist() for seed in (0, 1))
    assert one != other


@pytest.mark.parametrize(
    "split", [Split("x"), Split("b", HALVES, 7), Split("b", (("a", "0.1"), ("b", "0.9")))]
)
def test_what_a_manifest_says_of_a_split_says_all(split):
    assert Split.from_json(split.to_json()) == split


# -- what a person says ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names", "fractions", "num_shards"),
    [
        ("source", [], [], {}),
        ("train=0.9,val=0.1", ["train", "val"], ["0.9", "0.1"], {}),
        (" train = 0.90 , val=.1 ", ["train", "val"], ["0.9", "0.1"], {}),
        ("a=0.7,b=0.2,c=0.1", ["a", "b", "c"], ["0.7", "0.2", "0.1"], {}),
        ("all=1", ["all"], ["1"], {}),
        ("train=0.9@16,val=0.1@auto", ["train", "val"], ["0.9", "0.1"], {"train": 16, "val": None}),
        ("train,val@2", ["train", "val"], [], {"val": 2}),
        ({"train": 0.9, "val": 0.1}, ["train", "val"], ["0.9", "0.1"], {}),
        ({"a": Decimal("0.999999"), "b": 1e-6}, ["a", "b"], ["0.999999", "0.000001"], {}),
        ({"a": np.float64(0.25), "b": "0.75"}, ["a", "b"], ["0.25", "0.75"], {}),
    ],
)
def test_what_is_said_is_understood(text, names, fractions, num_shards):
    found = parse_split_option(text)
    assert list(found.names) == names
    assert [fraction for _, fraction in found.fractions] == fractions
    assert found.num_shards == num_shards


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train=0.9,val=0.2", "sum to 1.1"),
        ({"a": 1 / 3, "b": 2 / 3}, "sum to 0.9999999999999999, not"),
        ("train=0.9", "sum to 0.9"),
        ("train=0.9,val", "'val' has no fraction"),
        ("train=1.5,val=-0.5", "a decimal above 0"),
        ("train=1,val=0", "a decimal above 0"),
        ("train=nan,val=0.1", "a decimal above 0"),
        ("train=1e0", "a decimal above 0"),
        ("train=0.5,train=0.5", "is given twice"),
        ("train=0.9@0,val=0.1", "N is a number"),
        ("train@16@2", "has no split name"),
        ("train=0.9=0.1", "has no split name"),
        ("", "has no split name"),
        ("train,,val", "has no split name"),
        ("a/b=1", "can not be the name of a split"),
        ("..=1", "can not be the name of a split"),
        ("source=1", "can not be the name of a split"),
        ("source,val", "can not be the name of a split"),
        ({}, "has no split name"),
        (7, "split is of type int"),
        (",".join(f"s{i}" for i in range(300)), "the limit is 255"),
    ],
)
def test_what_can_not_be_understood_is_refused(text, says):
    with pytest.raises(OptionError, match=says):
        parse_split_option(text)


def test_what_is_left_over_is_told():
    with pytest.raises(OptionError) as caught:
        parse_split_option("train=0.8,val=0.1")
    assert "rest=0.1" in caught.value.hint


@pytest.mark.parametrize(
    ("out", "more", "notations"),
    [
        ("d/m@16", {}, ["d/m-a.tfrecord@16", "d/m-b.tfrecord@2"]),
        ("d/m", {}, ["d/m-a.tfrecord@auto", "d/m-b.tfrecord@2"]),
        ("d/m", {"num_shards": 3}, ["d/m-a.tfrecord@3", "d/m-b.tfrecord@2"]),
        ("d/m.record@4", {}, ["d/m-a.record@4", "d/m-b.record@2"]),
        ("d/m@4.tfrecord.gz", {}, ["d/m-a@4.tfrecord", "d/m-b@2.tfrecord"]),
        (
            "d",
            {"tfds": "demo:1.0.0", "num_shards": 5},
            [f"d/demo/1.0.0/demo-{n}" for n in ("a.tfrecord@5", "b.tfrecord@2")],
        ),
    ],
)
def test_the_outputs_of_splits(out, more, notations):
    given = {"num_shards": None, "tfds": None, **more}
    found = split_outputs(out, {"b": 2}, given["num_shards"], None, ["a", "b"], tfds=given["tfds"])
    assert [output.notation for output in found] == notations
    assert {output.compression for output in found} == {"gzip" if ".gz" in out else "none"}


def test_a_tfds_folder_of_splits_has_no_n():
    with pytest.raises(OptionError, match="a folder for datasets"):
        split_outputs("d/train@4", {}, None, None, ["a"], tfds="demo:1.0.0")


# -- which items -----------------------------------------------------------------------------------


class Rows:
    """Items by number, of which some have one patient."""

    def __init__(self, count, loaded=None):
        self.count, self.loaded = count, loaded

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.loaded is not None:
            self.loaded.append(index)
        return {"x": index, "patient": f"p{index // 3}"}


class Named(PythonSource):
    """Items that have names of their own."""

    def __init__(self, names):
        super().__init__(names)

    def key(self, item):
        return item


def options(name, fractions, seed=0, **more):
    return DatasetOptions(split=Split(name, fractions, seed), **more)


def all_of(fractions, seed=0, **more):
    return [options(name, fractions, seed, **more) for name, _ in fractions]


def indices_of(selection):
    """Return which of the items that pass the filter are written, in order."""
    return selection.source_indices(np.arange(selection.num_items)).tolist()


@given(
    st.integers(0, 60),
    divisions(),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.integers(0, 40)),
)
def test_splits_are_a_partition(count, fractions, seed, shuffle_seed, limit):
    given_options = {"filter": lambda i: i % 3 != 1, "limit": limit, "shuffle_seed": shuffle_seed}
    passing = [i for i in range(count) if i % 3 != 1][:limit]
    order = list(range(len(passing)))
    if shuffle_seed is not None:
        order = Permutation(len(passing), shuffle_seed)(np.arange(len(passing))).tolist()
    parts = Selection.parts(PythonSource(Rows(count)), all_of(fractions, seed, **given_options))
    for place, part in enumerate(parts):
        # The key is the place in the source, whatever is filtered out in front of it.
        wanted = [i for i in order if model(position_key(passing[i]), fractions, seed) == place]
        assert indices_of(part) == wanted
        items = [item for _, item in part.items_at(np.arange(part.num_items))]
        assert items == [passing[i] for i in wanted]
        alone = Selection(PythonSource(Rows(count)), part.options)
        assert indices_of(alone) == wanted


@given(st.lists(st.text(max_size=3), unique=True, max_size=30), st.data())
def test_further_data_moves_no_item(names, data):
    fewer = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    found = []
    for each in (names, fewer):
        parts = Selection.parts(Named(each), all_of(HALVES))
        found.append({name: i for i, part in enumerate(parts) for name in part.items()})
    assert found[1].items() <= found[0].items()


def test_a_feature_keeps_items_together_and_is_loaded_once():
    loaded = []
    source = PythonSource(Rows(90, loaded))
    parts = Selection.parts(source, all_of(HALVES, key="patient"))
    assert sorted(loaded) == list(range(90))
    patients = [{Rows(90)[i]["patient"] for i in indices_of(part)} for part in parts]
    assert not patients[0] & patients[1]
    assert min(map(len, patients)) > 5
    assert [part.num_items for part in parts] == [3 * len(found) for found in patients]


def test_the_filter_is_asked_once_for_all_splits():
    asked = []
    Selection.parts(
        PythonSource(Rows(30)), all_of(HALVES, filter=lambda i: asked.append(i) or True)
    )
    assert asked == list(range(30))


def test_splits_of_an_order_by_key_have_that_order():
    source = PythonSource(Rows(40))
    whole = Selection(source, DatasetOptions(order="key", key="x", order_seed=3))
    order = whole.source_indices(np.arange(40)).tolist()
    parts = Selection.parts(source, all_of(HALVES, order="key", key="x", order_seed=3))
    for part in parts:
        mine = set(indices_of(part))
        assert indices_of(part) == [i for i in order if i in mine]
    assert sorted(i for part in parts for i in indices_of(part)) == list(range(40))


def test_rows_are_split_by_their_numbers_and_further_files_move_none(tmp_path):
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{i}\n" for i in range(30)))
    (tmp_path / "b.csv").write_text("x\n" + "".join(f"{i}\n" for i in range(30, 50)))
    one, both = (
        Selection.parts(CsvTable([str(tmp_path / name) for name in names]), all_of(HALVES))
        for names in (["a.csv"], ["a.csv", "b.csv"])
    )
    for before, now in zip(one, both, strict=True):
        assert indices_of(before) == [i for i in indices_of(now) if i < 30]


def test_a_stream_has_the_splits_of_a_sequence():
    rows = [Rows(50)[i] for i in range(50)]
    for key in (None, "patient"):
        given_options = all_of(HALVES, key=key)
        wanted = [list(part.items()) for part in Selection.parts(PythonSource(rows), given_options)]
        for data in (lambda: iter(rows), iter(rows)):
            parts = Selection.parts(PythonSource(data), given_options)
            assert [list(part.items()) for part in parts] == wanted


def test_an_iterator_is_read_once_and_its_parts_again_and_again():
    read = []
    rows = (read.append(i) or {"x": i} for i in range(50))
    parts = Selection.parts(PythonSource(rows), all_of(HALVES, limit=40))
    assert read == list(range(40))
    for part in parts:
        assert list(part.items()) == list(part.items())
    assert sorted(item["x"] for part in parts for item in part.items()) == list(range(40))


def test_an_item_that_can_not_be_kept_is_named():
    with pytest.raises(SourceError, match="can not be pickled") as caught:
        Selection.parts(PythonSource(iter([{"x": 1}, {"x": lambda: 1}])), all_of(HALVES))
    assert caught.value.index == 1
    assert "function" in caught.value.hint


@pytest.mark.parametrize("data", [[{"x": 1}, {"y": 2}], lambda: iter([{"x": 1}, {"y": 2}])])
def test_an_item_without_the_key_is_named(data):
    def read():
        for part in Selection.parts(PythonSource(data), all_of(HALVES, key="x")):
            list(part.items())

    with pytest.raises(FeatureError, match="no key") as caught:
        read()
    assert caught.value.index == 1


def test_an_item_that_can_not_be_loaded_for_its_key_stops_the_run():
    class Broken(Rows):
        def __getitem__(self, index):
            raise ValueError("boom")

    with pytest.raises(CallableError, match="boom"):
        Selection.parts(PythonSource(Broken(3)), all_of(HALVES, key="x"))


def test_a_seed_is_a_number_and_a_key_needs_something_to_decide():
    with pytest.raises(OptionError, match="split_seed"):
        Split("a", HALVES, -1)
    with pytest.raises(OptionError, match="has no effect"):
        DatasetOptions(key="x", split=Split("a"))
