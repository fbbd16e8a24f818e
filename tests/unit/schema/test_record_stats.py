"""What is learnt from records, in pieces that are put away and joined."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import SchemaConflict
from shardwriter.schema.record_stats import RecordStats, types_of
from shardwriter.writing.encode import RecordEncoder
from shardwriter.writing.resume_state import CountedItems

features = st.fixed_dictionaries(
    {},
    optional={
        "x": st.integers(-5, 5) | st.lists(st.integers(-5, 5), max_size=3),
        "y": st.sampled_from(["a", "b"]),
        "z": st.floats(width=32) | st.just(None),
        "w": st.integers(0, 3).map(lambda n: np.zeros(n, np.uint8)),
    },
)


def learn(items, num_shards=3):
    encoder = RecordEncoder(num_shards, None, None, "y")
    for index, item in items:
        encoder.encode(index, item)
    return encoder.stats


def again(learnt, num_shards=3):
    """Return it as it comes back from a file."""
    return RecordStats.from_state(json.loads(json.dumps(learnt.to_state())), num_shards)


def told(learnt):
    """Return all of it, in an order of its own."""
    state = learnt.to_state()
    state["labels"]["labels"].sort()
    return state


@given(st.lists(features, max_size=10))
def test_what_was_learnt_is_read_back(items):
    learnt = learn(enumerate(items))
    assert again(learnt).to_state() == learnt.to_state()
    firsts = {name: feature.first_item for name, feature in learnt.features.items()}
    assert {name: f.first_item for name, f in again(learnt).features.items()} == firsts


@given(st.lists(features, max_size=10), st.data())
def test_pieces_make_the_whole_in_any_order(items, data):
    pieces = [[], [], []]
    for index, item in enumerate(items):
        pieces[data.draw(st.integers(0, 2))].append((index, item))
    joined = RecordStats.of("y", 3)
    for piece in data.draw(st.permutations(pieces)):
        joined.merge(again(learn(piece)))
    assert told(joined) == told(learn(enumerate(items)))


@given(st.lists(features, max_size=12), st.integers(0, 12))
def test_records_that_were_counted_are_not_counted_again(items, done):
    """Records of the items up to ``done`` are made again, and give the same counts."""
    before = learn(list(enumerate(items))[:done])
    after = RecordEncoder(3, None, None, "y")
    after.resume(again(before), CountedItems(3, dict.fromkeys(range(3), done)))
    for index, item in enumerate(items):
        after.encode(index, item)
    joined = again(before)
    joined.merge(after.stats)
    whole = learn(enumerate(items))
    assert told(joined)["labels"] == told(whole)["labels"]
    assert joined.features == whole.features


def test_types_bind_records_that_come_later():
    before = learn([(0, {"x": 1})])
    after = RecordEncoder(3)
    after.resume(again(before), CountedItems())
    with pytest.raises(SchemaConflict, match="item 0") as caught:
        after.encode(5, {"x": 0.5})
    assert caught.value.feature == "x"
    assert after.stats.features["x"].present == 0
    after.encode(5, {"x": 2})
    assert after.stats.features["x"].present == 1


def test_types_alone_are_joined_without_counts():
    learnt = learn([(3, {"x": 1, "y": "a"})])
    types = types_of(learnt.features)
    assert {name: f.type for name, f in types.items()} == {
        name: f.type for name, f in learnt.features.items()
    }
    assert [feature.present for feature in types.values()] == [0, 0]
    other = RecordStats.of("y", 3)
    other.merge_types(learnt.features)
    assert other.features == types
    assert other.labels.to_json() is None
