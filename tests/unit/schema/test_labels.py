"""Counting labels while records are written."""

from __future__ import annotations

import enum
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.schema import labels as labels_module
from shardwriter.schema.labels import LabelCounts


def counted(values, num_shards=2):
    counts = LabelCounts("y", num_shards)
    for index, value in enumerate(values):
        counts.add(index, value)
    return counts


class Color(enum.IntEnum):
    RED = 3


class Name(str, enum.Enum):
    CAT = "cat"


class Tensor:
    """What other libraries' arrays are to us."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (3, "3"),
        (True, "1"),
        (np.int64(3), "3"),
        (np.uint8(3), "3"),
        (np.bool_(True), "1"),
        (np.array(3), "3"),
        (np.array([3]), "3"),
        ([3], "3"),
        ((3,), "3"),
        (Color.RED, "3"),
        (Tensor(3), "3"),
        (Tensor([3]), "3"),
        ("cat", "cat"),
        (b"cat", "cat"),
        (bytearray(b"cat"), "cat"),
        (memoryview(b"cat"), "cat"),
        (np.str_("cat"), "cat"),
        (np.array(["cat"]), "cat"),
        (np.array([b"cat"]), "cat"),
        (Name.CAT, "cat"),
        (1.5, "1.5"),
        (np.float32(1.5), "1.5"),
        (b"\xff", "\\xff"),
        ("", ""),
    ],
)
def test_a_value_is_counted_by_what_it_is(value, label):
    assert counted([value, value]).to_json() == {
        "counts": {label: 2},
        "feature": "y",
        "shards": {label: [1, 1]},
    }


def test_text_and_its_bytes_are_one_label():
    assert counted(["é", "é".encode(), np.str_("é")]).to_json()["counts"] == {"é": 3}


def test_every_label_of_an_item_is_counted():
    found = counted([[1, 2], np.array([[2], [3]]), [], ["a", "b"]], 3).to_json()
    assert found["counts"] == {"1": 1, "2": 2, "3": 1, "a": 1, "b": 1}
    assert found["shards"]["2"] == [1, 1, 0]
    assert found["shards"]["a"] == [1, 0, 0]


def test_shards_are_those_of_the_law():
    counts = LabelCounts("y", 3)
    for index in (0, 1, 4, 5, 7):  # 2, 3 and 6 are gaps
        counts.add(index, index % 2)
    assert counts.to_json()["shards"] == {"0": [1, 1, 0], "1": [0, 2, 1]}


def test_nothing_counted_is_nothing_said():
    assert counted([]).to_json() is None
    assert counted([[], ()]).to_json() is None


def test_labels_of_one_spelling_are_not_mixed_up():
    assert counted([1, "1"]).to_json() is None


@pytest.mark.parametrize(
    ("values", "is_sorted"),
    [
        ([0, 0, 1, 1], True),
        ([1, 1, 0], True),
        ([0, 1, 0, 1], False),
        ([0, 0, 0], False),
        ([0, 1, 2], False),
        ([], False),
        (["a", b"a", "b"], True),
    ],
)
def test_runs_of_labels_are_noticed(values, is_sorted):
    assert counted(values).is_sorted is is_sorted


def test_too_many_values_are_no_labels(monkeypatch):
    monkeypatch.setattr(labels_module, "MAX_LABELS", 3)
    counts = counted([1, 2, 3, 1])
    assert not counts.too_many
    counts.add(4, [1, 4, 5])
    assert counts.too_many
    counts.add(5, 1)
    assert counts.to_json() is None
    assert not counts.is_sorted


def test_counts_per_shard_stop_where_they_would_be_too_many(monkeypatch):
    monkeypatch.setattr(labels_module, "MAX_CELLS", 4)
    assert "shards" in counted([1, 2], 2).to_json()
    found = counted([1, 2, 3, 1], 2).to_json()
    assert found == {"counts": {"1": 2, "2": 1, "3": 1}, "feature": "y"}


# -- kept and read back ----------------------------------------------------------------------------

values = (
    st.integers(-3, 3)
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0.0, -0.0, 1.0, 0.5, math.nan, math.inf, -math.inf, 1e300])
    | st.floats(width=32)
    | st.sampled_from(["a", "b", "1", "nan", "é"])
    | st.lists(st.integers(0, 2), max_size=2)
)


def again(counts, num_shards):
    """Return the counts as they come back from a file."""
    return LabelCounts.from_state(json.loads(json.dumps(counts.to_state())), num_shards)


@given(st.lists(values, max_size=20), st.integers(1, 4))
def test_a_state_is_read_back(some, num_shards):
    counts = counted(some, num_shards)
    found = again(counts, num_shards)
    assert found.to_state() == counts.to_state()
    assert found.to_json() == counts.to_json()
    assert found.is_sorted is counts.is_sorted


@given(st.data(), st.lists(values, max_size=20), st.integers(1, 4))
def test_pieces_that_were_kept_make_the_whole(data, some, num_shards):
    """Whoever counted an item, in whatever order, and however often it was put away."""
    whole = counted(some, num_shards)
    pieces = [LabelCounts("y", num_shards) for _ in range(3)]
    for index, value in data.draw(st.permutations(list(enumerate(some)))):
        which = data.draw(st.integers(0, 2))
        if data.draw(st.booleans()):
            pieces[which] = again(pieces[which], num_shards)
        pieces[which].add(index, value)
    joined = LabelCounts("y", num_shards)
    for piece in pieces:
        joined.merge(again(piece, num_shards))
    assert joined.to_json() == whole.to_json()
    assert joined.is_sorted is whole.is_sorted


def test_too_many_values_stay_too_many(monkeypatch):
    monkeypatch.setattr(labels_module, "MAX_LABELS", 3)
    found = again(counted([1, 2, 3, 4]), 2)
    assert found.too_many
    found.add(5, 1)
    assert found.to_json() is None
    other = counted([1])
    other.merge(found)
    assert other.too_many


def test_counts_that_are_not_per_shard_stay_so(monkeypatch):
    monkeypatch.setattr(labels_module, "MAX_CELLS", 4)
    found = again(counted([1, 2, 3], 2), 2)
    found.add(3, 1)
    assert found.to_json() == {"counts": {"1": 2, "2": 1, "3": 1}, "feature": "y"}


@pytest.mark.parametrize(
    ("some", "kind"),
    [
        ([3, -1, 3, 2**62], "int64"),
        ([0.5, 1.0, math.nan, math.inf, 0.5], "float"),
        (["a", "b", "a", "1", "nan", "1.0", ""], "bytes"),
        (["a"], None),
    ],
)
@pytest.mark.parametrize("max_cells", [1, 1 << 20])
def test_counts_of_a_manifest_are_gone_on_with(some, kind, max_cells, monkeypatch):
    monkeypatch.setattr(labels_module, "MAX_CELLS", max_cells)
    counts = counted(some, 3)
    entry = json.loads(json.dumps(counts.to_json()))
    found = LabelCounts.from_json(entry, 3, kind)
    assert found.to_json() == counts.to_json()
    assert not found.is_sorted
    more = LabelCounts("y", 3)
    for index, value in enumerate([*some, *some[:2]], start=len(some)):
        counts.add(index, value)
        more.add(index, value)
    found.merge(more)
    assert found.to_json() == counts.to_json()
