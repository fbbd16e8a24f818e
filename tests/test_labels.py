"""Counting labels while records are written."""

from __future__ import annotations

import enum

import numpy as np
import pytest

from shardwriter import labels as labels_module
from shardwriter.labels import LabelCounts


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
    monkeypatch.setattr(labels_module, "_MAX_LABELS", 3)
    counts = counted([1, 2, 3, 1])
    assert not counts.too_many
    counts.add(4, [1, 4, 5])
    assert counts.too_many
    counts.add(5, 1)
    assert counts.to_json() is None
    assert not counts.is_sorted


def test_counts_per_shard_stop_where_they_would_be_too_many(monkeypatch):
    monkeypatch.setattr(labels_module, "_MAX_CELLS", 4)
    assert "shards" in counted([1, 2], 2).to_json()
    found = counted([1, 2, 3, 1], 2).to_json()
    assert found == {"counts": {"1": 2, "2": 1, "3": 1}, "feature": "y"}
