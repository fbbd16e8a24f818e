"""Snapshots and bases: read back as they were, or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset.manifest import SealedShard
from shardwriter.formats.tfrecord import NOTHING_WRITTEN, Written
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import FeatureSummary
from shardwriter.storage import LocalStorage
from shardwriter.writing.journal import Base, Snapshot, rows_of, sealed_of, written_of
from shardwriter.writing.run_directory import RunDirectory

numbers = st.integers(0, 2**62)
crcs = st.integers(0, 2**32 - 1)
shards = st.integers(0, 99_999)
written = st.builds(Written, numbers, numbers, crcs, numbers, st.none() | crcs, numbers)
sealed = st.builds(SealedShard, numbers, numbers, numbers, crcs, st.none() | crcs)
labels = numbers | st.text(max_size=5) | st.floats().map(lambda value: {"float": repr(value)})
rows = st.none() | st.lists(numbers) | st.dictionaries(shards.map(str), numbers, max_size=3)
states = st.fixed_dictionaries(
    {
        "features": st.dictionaries(
            st.text(max_size=5),
            st.builds(
                FeatureSummary, st.just(FeatureType("int64", "int64", (2, None))), numbers
            ).map(FeatureSummary.to_state),
        ),
        "labels": st.fixed_dictionaries(
            {
                "feature": st.text(max_size=5),
                "labels": st.lists(
                    st.tuples(labels, st.text(max_size=5), numbers, rows, numbers, numbers).map(
                        list
                    ),
                    max_size=3,
                ),
                "per_shard": st.booleans(),
                "too_many": st.booleans(),
            }
        ),
    }
)
errors = st.fixed_dictionaries({"error": st.text(max_size=5), "message": st.text(max_size=5)})

snapshots = st.builds(
    Snapshot,
    number=numbers,
    is_synced=st.booleans(),
    counted_to=numbers,
    open_shards=st.dictionaries(shards, written, max_size=4),
    sealed=st.dictionaries(shards, sealed, max_size=4),
    stats=states,
    num_items=st.none() | numbers,
    journal_bytes=numbers,
)
bases = st.builds(
    Base,
    attempt=st.integers(0, 10**9 - 2),
    open_shards=st.dictionaries(shards, written, max_size=4),
    sealed=st.dictionaries(shards, sealed, max_size=4),
    in_place=st.booleans(),
    counted_to=st.dictionaries(shards, numbers, max_size=4),
    uncounted=st.frozensets(numbers, max_size=4),
    gaps=st.lists(st.tuples(numbers, st.integers(1, 2**63 - 1)).map(list), max_size=4),
    errors=st.dictionaries(numbers, errors, max_size=3).map(
        lambda errors: {index: {**error, "index": index} for index, error in errors.items()}
    ),
    stats=st.none() | states,
    num_items=st.none() | numbers,
)

SNAPSHOT = Snapshot(
    number=3,
    is_synced=False,
    counted_to=12,
    open_shards={0: Written(2, 40, 7, 40, None, 2), 5: NOTHING_WRITTEN},
    sealed={1: SealedShard(3, 30, 78, 9), 2: SealedShard(3, 30, 50, 9, 8)},
    stats={
        "features": {"é": {"present": 1, "unset": 0}},
        "labels": {
            "feature": "é",
            "labels": [["é", "é", 1, None, 0, 0]],
            "per_shard": False,
            "too_many": False,
        },
    },
    num_items=None,
    journal_bytes=100,
)


@given(snapshots)
def test_a_snapshot_is_read_back(snapshot):
    assert Snapshot.from_line(snapshot.to_line()) == snapshot


@given(bases)
def test_a_base_is_read_back(base):
    found = Base.from_line(base.to_line())
    assert found == base
    assert type(found.uncounted) is frozenset


@given(snapshots | bases)
def test_both_are_one_line_of_json_with_a_checksum_in_front(entry):
    line = entry.to_line()
    assert line.count(b"\n") == 1
    crc, _, text = line.partition(b" ")
    assert len(crc) == 8
    names = {"open_shards": "growing", "stats": "learnt"}  # as earlier versions wrote them
    assert sorted(json.loads(text)) == sorted(names.get(name, name) for name in vars(entry))


@given(st.dictionaries(shards, written), st.dictionaries(shards, sealed))
def test_rows_of_shards_are_read_back(growing, finished):
    assert written_of(json.loads(json.dumps(rows_of(growing)))) == growing
    assert sealed_of(json.loads(json.dumps(rows_of(finished)))) == finished


@pytest.mark.parametrize("entry", [SNAPSHOT, Base(4, gaps=[[1, 2]], uncounted=frozenset({3}))])
def test_a_torn_line_is_none(entry):
    line = entry.to_line()
    read = type(entry).from_line
    for size in range(len(line)):
        assert read(line[:size]) is None
        assert read(line[:size] + bytes(len(line) - size)) is None
    assert read(line) == entry


@given(st.data())
def test_no_flipped_byte_gives_a_wrong_snapshot(data):
    line = bytearray(SNAPSHOT.to_line())
    line[data.draw(st.integers(0, len(line) - 1))] ^= data.draw(st.integers(1, 255))
    assert Snapshot.from_line(bytes(line)) is None


# -- in a run directory ----------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()) as claimed:
        claimed.begin({})
        yield claimed


def test_a_worker_has_a_mark_and_a_checkpoint_and_the_newest_comes_first(run):
    assert run.read_snapshots(0, 0) == []
    for number, is_synced in enumerate([True, False, False, True, False]):
        run.write_snapshot(0, 0, replace(SNAPSHOT, number=number, is_synced=is_synced))
    found = run.read_snapshots(0, 0)
    assert [(snapshot.number, snapshot.is_synced) for snapshot in found] == [(4, False), (3, True)]
    run.write_snapshot(0, 0, replace(SNAPSHOT, number=5, is_synced=True))
    assert [snapshot.number for snapshot in run.read_snapshots(0, 0)] == [5, 4]
    assert run.read_snapshots(0, 1) == run.read_snapshots(1, 0) == []
    assert sorted(os.listdir(run.path)) == ["checkpoint-0-0", "lock", "mark-0-0", "run.json"]


@pytest.mark.parametrize("left", [0, 1, 50])
def test_a_snapshot_that_is_torn_is_passed_over(run, left):
    run.write_snapshot(0, 0, replace(SNAPSHOT, number=1, is_synced=True))
    run.write_snapshot(0, 0, replace(SNAPSHOT, number=2))
    os.truncate(run.file("mark-0-0"), left)
    assert [snapshot.number for snapshot in run.read_snapshots(0, 0)] == [1]
    os.truncate(run.file("checkpoint-0-0"), left)
    assert run.read_snapshots(0, 0) == []


def test_only_a_checkpoint_waits_for_the_disk(tmp_path):
    class Counting(LocalStorage):
        synced = 0

        def sync(self, path):
            Counting.synced += 1
            super().sync(path)

    with RunDirectory.claim(str(tmp_path), "train", Counting()) as run:
        run.begin({})
        before = Counting.synced
        run.write_snapshot(0, 0, SNAPSHOT)
        assert Counting.synced == before
        run.write_snapshot(0, 0, replace(SNAPSHOT, is_synced=True))
        assert Counting.synced == before + 1


def test_a_base_does_away_with_what_other_attempts_have_noted(run):
    assert run.read_base() == Base()
    for attempt in (0, 1, 11):
        journal = run.journal(attempt, 0)
        journal.add_fact(skip=1, reason="dropped")
        journal.close()
        for is_synced in (False, True):
            run.write_snapshot(attempt, 0, replace(SNAPSHOT, is_synced=is_synced))
    with open(run.shard_path(0), "wb") as file:
        file.write(b"frames")
    base = Base(1, open_shards=SNAPSHOT.open_shards, gaps=[[1, 1]])
    run.write_base(base)
    assert run.read_base() == base
    assert sorted(os.listdir(run.path)) == [
        "base", "checkpoint-1-0", "journal-1-0", "lock", "mark-1-0", "run.json", "shard-00000",
    ]  # fmt: skip
    assert [run.workers(attempt) for attempt in (0, 1, 11)] == [[], [0], []]
