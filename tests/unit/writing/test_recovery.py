"""Recovery of a run that was stopped: which shards, gaps and counts a new attempt starts from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardwriter.dataset import SealedShard, ShardPattern
from shardwriter.errors import CorruptFile, ManifestError, RunChanged, StorageError
from shardwriter.formats import Written
from shardwriter.formats.crc32c import crc32c
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.schema import RecordStats
from shardwriter.storage import LocalStorage
from shardwriter.writing import resume
from shardwriter.writing.journal import Base, Snapshot
from shardwriter.writing.resume import (
    check_same_job,
    last_block_range,
    read_error_log,
    read_last_record,
    read_retries,
    recover,
)
from shardwriter.writing.run_directory import RunDirectory

FRAME = 20  # bytes of a frame, or of a member
NUM_SHARDS = 3
NUM_ITEMS = 12  # 4 for each shard
PLAIN = ShardPattern("t.tfrecord", NUM_SHARDS)
ALL = 2**62


@pytest.fixture
def run(tmp_path):
    with RunDirectory.claim(str(tmp_path), "t", LocalStorage()) as run:
        run.begin({"job": "sha256:00"})
        yield run


def data_of(shard, count):
    """Bytes of ``count`` frames: recovery compares them and looks into none."""
    return np.random.default_rng(shard).bytes(FRAME * count)


def put(run, shard, count, *, compression="none", per_member=2):
    """Write a shard of ``count`` frames or members, and its index."""
    ends = np.arange(1, count + 1, dtype="<u8") * FRAME
    rows = ends if compression == "none" else np.stack((ends, per_member * ends // FRAME), 1)
    Path(run.shard_path(shard)).write_bytes(data_of(shard, count))
    Path(run.index_path(shard)).write_bytes(rows.astype("<u8").tobytes())


def grown(shard, count, *, compression="none", per_member=2):
    """What a snapshot says of the first ``count`` frames or members of a shard."""
    data = data_of(shard, count)
    if compression == "none":
        return Written(count, FRAME * count, crc32c(data), FRAME * count, None, count)
    records = per_member * count
    return Written(records, 100 * records, 7, FRAME * count, crc32c(data), count)


def finished(count):
    return SealedShard(count, (FRAME - 16) * count, FRAME * count, 0)


def note(
    run,
    *,
    open_shards: Mapping[int, Written] | None = None,
    sealed: Mapping[int, SealedShard] | None = None,
    number=1,
    synced=False,
    worker=0,
    attempt=0,
    journal_bytes=0,
    counted_to=NUM_ITEMS,
    num_items=None,
):
    """Write a mark, or a checkpoint; the worker's journal is there."""
    path = Path(run.file(f"journal-{attempt}-{worker}"))
    if not path.exists():
        path.touch()
    snapshot = Snapshot(
        number,
        synced,
        counted_to,
        open_shards or {},
        sealed or {},
        RecordStats.of("y", NUM_SHARDS).to_state(),
        num_items,
        journal_bytes,
    )
    run.write_snapshot(attempt, worker, snapshot)


def recovered(run, compression="none", **more: Any):
    return recover(run, PLAIN, compression, label="y", **{"num_items": NUM_ITEMS, **more})


def sizes(run, shard):
    return [os.path.getsize(path) for path in (run.shard_path(shard), run.index_path(shard))]


# -- open shards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize(("compression", "row_bytes"), [("none", 8), ("gzip", 16), ("zlib", 16)])
def test_an_open_shard_goes_on_where_its_snapshot_ends(run, compression, row_bytes, synced):
    put(run, 0, 2, compression=compression)
    entry = grown(0, 1, compression=compression)
    note(run, open_shards={0: entry}, synced=synced)
    state = recovered(run, compression)
    assert state.open_shards == {0: entry}
    assert state.sealed == {}
    assert sizes(run, 0) == [FRAME, row_bytes]  # what is behind it is cut off


def test_a_snapshot_of_the_whole_file_keeps_all_of_it(run):
    for shard in range(NUM_SHARDS):
        put(run, shard, 4)
    entries = {shard: grown(shard, 4) for shard in range(NUM_SHARDS)}
    note(run, open_shards=entries)
    assert recovered(run).open_shards == entries
    assert sizes(run, 2) == [4 * FRAME, 4 * 8]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_an_older_snapshot_counts_where_the_file_is_not_what_the_newest_says(run, compression):
    put(run, 1, 2, compression=compression)
    with open(run.shard_path(1), "r+b") as file:
        file.seek(FRAME)
        file.write(bytes(FRAME))  # what a power cut may leave
    old, new = (grown(1, count, compression=compression) for count in (1, 2))
    note(run, open_shards={1: old}, number=1, synced=True)
    note(run, open_shards={1: new}, number=2)
    assert recovered(run, compression).open_shards == {1: old}
    assert sizes(run, 1)[0] == FRAME


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("part", [1, 7, FRAME, 1000])
def test_only_bytes_behind_the_checkpoint_are_read_in_parts_of_any_size(
    run, compression, part, monkeypatch
):
    monkeypatch.setattr(resume, "_READ_BYTES", part)
    put(run, 0, 2, compression=compression)
    old, new = (grown(0, count, compression=compression) for count in (1, 2))
    note(run, open_shards={0: old}, number=1, synced=True)
    note(run, open_shards={0: new}, number=2)
    assert recovered(run, compression).open_shards == {0: new}


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_shard_is_begun_again_where_its_bytes_are_others(run, compression):
    put(run, 0, 2, compression=compression)
    entry = grown(1, 2, compression=compression)  # the CRC of another shard's bytes
    note(run, open_shards={0: entry})
    assert recovered(run, compression).open_shards == {}


def test_what_a_checkpoint_says_is_on_the_disk_and_is_not_read(run):
    put(run, 0, 2)
    entry = grown(1, 2)
    note(run, open_shards={0: entry}, synced=True)
    assert recovered(run).open_shards == {0: entry}


def test_an_older_checkpoint_of_more_bytes_is_no_start_for_the_check(run):
    put(run, 0, 2)
    more, less = grown(0, 3), grown(0, 2)
    note(run, open_shards={0: more}, number=1, synced=True)
    note(run, open_shards={0: less}, number=2)
    assert recovered(run).open_shards == {0: less}


def shorten_shard(run):
    os.truncate(run.shard_path(0), 2 * FRAME - 1)


def delete_shard(run):
    os.unlink(run.shard_path(0))


def shorten_index(run):
    os.truncate(run.index_path(0), os.path.getsize(run.index_path(0)) - 8)


def delete_index(run):
    os.unlink(run.index_path(0))


def link_shard(run):
    os.link(run.shard_path(0), run.file("other"))


def link_index(run):
    os.link(run.index_path(0), run.file("other"))


def change_last_row(run):
    numbers = np.fromfile(run.index_path(0), "<u8")
    numbers[-1] += np.uint64(1)
    numbers.tofile(run.index_path(0))


def change_first_row(run):
    numbers = np.fromfile(run.index_path(0), "<u8")
    numbers[0] = np.uint64(1 << 40)  # so rows do not ascend
    numbers.tofile(run.index_path(0))


def make_first_row_negative(run):
    numbers = np.fromfile(run.index_path(0), "<u8")
    numbers[0] = np.uint64(2**64 - 5)
    numbers.tofile(run.index_path(0))


DAMAGE = [
    shorten_shard,
    delete_shard,
    shorten_index,
    delete_index,
    link_shard,
    link_index,
    change_last_row,
    change_first_row,
    make_first_row_negative,
]


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_an_open_shard_with_damage_is_begun_again(run, damage, compression, synced):
    put(run, 0, 2, compression=compression)
    note(run, open_shards={0: grown(0, 2, compression=compression)}, synced=synced)
    damage(run)
    state = recovered(run, compression)
    assert state.open_shards == {}
    assert state.num_records == 0


@pytest.mark.parametrize(
    "entry",
    [
        grown(0, 2)._replace(num_records=1),
        grown(0, 2)._replace(stream_bytes=2 * FRAME + 1),
        grown(0, 2)._replace(num_pieces=1),
    ],
)
@pytest.mark.parametrize("synced", [False, True])
def test_numbers_of_a_plain_shard_agree_with_each_other(run, entry, synced):
    put(run, 0, 2)
    note(run, open_shards={0: entry}, synced=synced)
    assert recovered(run).open_shards == {}


def test_more_records_than_the_shard_has_items_are_not_believed(run):
    put(run, 0, 5)
    note(run, open_shards={0: grown(0, 4)}, number=1, synced=True)
    note(run, open_shards={0: grown(0, 5)}, number=2, synced=False)
    assert recovered(run).open_shards == {0: grown(0, 4)}


def test_where_the_source_has_no_length_any_number_of_records_is_believed(run):
    put(run, 0, 5)
    note(run, open_shards={0: grown(0, 5)})
    assert recovered(run, num_items=None).open_shards == {0: grown(0, 5)}


def test_a_snapshot_counts_only_with_its_journal(run):
    put(run, 0, 2)
    note(run, open_shards={0: grown(0, 1)}, number=1, synced=True)
    note(run, open_shards={0: grown(0, 2)}, number=2, journal_bytes=1)
    state = recovered(run)
    assert state.open_shards == {0: grown(0, 1)}


def test_a_snapshot_of_another_number_of_shards_counts_for_nothing(run):
    put(run, 0, 2)
    note(run, open_shards={0: grown(0, 2), NUM_SHARDS: grown(0, 1)})
    assert recovered(run).is_empty


def test_all_workers_of_the_last_attempt_count(run):
    put(run, 0, 1)
    put(run, 2, 2)
    note(run, open_shards={0: grown(0, 1)}, worker=0)
    note(run, worker=1, journal_bytes=99)  # its journal is not there
    note(run, open_shards={2: grown(2, 2)}, worker=2)
    assert recovered(run).open_shards == {0: grown(0, 1), 2: grown(2, 2)}


def test_an_attempt_that_can_not_continue_a_shard_begins_it_again_and_counts_it_once(run):
    put(run, 0, 2)
    put(run, 1, 4)
    note(run, open_shards={0: grown(0, 2)}, sealed={1: finished(4)}, counted_to=4)
    state = recovered(run, can_resume_shards=False)
    assert state.open_shards == {}
    assert list(state.sealed) == [1]
    assert [item for item in range(NUM_ITEMS) if item in state.counted] == [0, 3]


# -- finished shards -------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [False, True])
def test_a_finished_shard_stays(run, synced):
    put(run, 2, 4)
    note(run, sealed={2: finished(4)}, synced=synced)
    state = recovered(run)
    assert state.sealed == {2: finished(4)}
    assert state.open_shards == {}
    assert not state.is_complete


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_finished_compressed_shard_stays_if_its_records_are_those_of_the_index(run, compression):
    put(run, 0, 2, compression=compression)
    entry = SealedShard(4, 400, 2 * FRAME, 7, 8)
    note(run, sealed={0: entry})
    assert recovered(run, compression).sealed == {0: entry}


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_finished_shard_without_records_stays(run, compression):
    put(run, 0, 0)
    entry = SealedShard(0, 0, 0, 0)
    note(run, sealed={0: entry})
    assert recovered(run, compression).sealed == {0: entry}


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("damage", [d for d in DAMAGE if d not in (link_shard, link_index)])
def test_a_finished_shard_with_damage_is_begun_again_and_counted_once(run, damage, compression):
    put(run, 0, 2, compression=compression)
    note(run, sealed={0: SealedShard(2 if compression == "none" else 4, 8, 2 * FRAME, 0)})
    damage(run)
    state = recovered(run, compression)
    assert state.sealed == {}
    assert [item for item in range(NUM_ITEMS) if item in state.counted] == [0, 3, 6, 9]


@pytest.mark.parametrize(
    "entry", [SealedShard(1, 8, 40, 0), SealedShard(2, 9, 40, 0), SealedShard(2, 8, 41, 0)]
)
def test_numbers_of_a_finished_shard_agree_with_its_files(run, entry):
    put(run, 0, 2)
    note(run, sealed={0: entry})
    assert recovered(run).sealed == {}


def test_a_shard_that_was_not_finished_after_all_goes_on(run):
    """The mark says finished, and the file has no end: its checkpoint counts."""
    put(run, 0, 2)
    note(run, open_shards={0: grown(0, 2)}, number=1, synced=True)
    note(run, sealed={0: finished(4)}, number=2)
    state = recovered(run)
    assert state.sealed == {}
    assert state.open_shards == {0: grown(0, 2)}


@pytest.mark.parametrize("in_place", [False, True])
def test_only_a_base_that_says_so_has_finished_shards_under_their_final_names(run, in_place):
    put(run, 1, 4)
    os.rename(run.shard_path(1), os.path.join(run.directory, PLAIN.shard_file(1)))
    run.write_base(Base(sealed={1: finished(4)}, in_place=in_place, num_items=NUM_ITEMS))
    assert list(recovered(run).sealed) == ([1] if in_place else [])


# -- the base of the next attempt ------------------------------------------------------------------


def test_the_next_attempt_begins_with_all_that_is_there_and_older_notes_go(run):
    put(run, 0, 2)
    put(run, 1, 4)
    note(run, open_shards={0: grown(0, 2)}, sealed={1: finished(4)}, counted_to=8)
    state = recovered(run)
    assert state.attempt == 1
    base = run.read_base()
    assert (base.attempt, base.open_shards, base.sealed) == (1, state.open_shards, state.sealed)
    assert not [name for name in os.listdir(run.path) if name.endswith("-0-0")]
    again = recovered(run)  # an attempt that came to nothing loses nothing
    assert again.attempt == 2
    assert (again.open_shards, again.sealed) == (state.open_shards, state.sealed)
    assert [i for i in range(NUM_ITEMS) if i in again.counted] == [
        i for i in range(NUM_ITEMS) if i in state.counted
    ]


def test_records_are_counted_up_to_the_newest_snapshot_of_each_shard(run):
    put(run, 0, 2)
    put(run, 1, 4)
    note(run, open_shards={0: grown(0, 2)}, worker=0, counted_to=4)
    note(run, open_shards={1: grown(1, 1)}, worker=1, counted_to=2)
    state = recovered(run)
    assert [i for i in range(NUM_ITEMS) if i in state.counted] == [0, 1, 3]
    note(run, open_shards={0: grown(0, 1)}, attempt=1, counted_to=1)
    later = recovered(run)  # what was counted before stays counted
    assert [i for i in range(NUM_ITEMS) if i in later.counted] == [0, 1, 3]


@pytest.mark.parametrize(("of_base", "of_snapshot", "expected"), [(9, 10, 9), (None, 10, 10)])
def test_the_number_of_items_is_the_one_that_was_met_first(run, of_base, of_snapshot, expected):
    run.write_base(Base(num_items=of_base))
    note(run, num_items=of_snapshot)
    assert recovered(run, num_items=None).num_items == expected


def test_items_without_a_record_come_from_all_journals_and_the_base(run):
    run.write_base(Base(gaps=[[1, 2]]))
    with_error = {"error": "SourceError", "index": 7, "message": "no"}
    journal = run.journal(0, 0)
    journal.add_fact(skip=5, reason="dropped")
    journal.add_fact(skip=7, reason="error", error=with_error)
    journal.add_fact(types={"x": {"kind": "int64", "dtype": "int64", "present": 1, "unset": 0}})
    journal.close()
    other = run.journal(0, 1)
    other.add_fact(skip=0, reason="dropped")
    other.add_fact(skip=NUM_ITEMS, reason="dropped")  # there is no such item
    other.close()
    state = recovered(run)
    assert state.gaps.tolist() == [0, 1, 2, 5, 7]
    assert state.errors == {7: with_error}
    assert state.stats is not None
    assert set(state.stats["features"]) == {"x"}
    assert state.num_done == 5


def test_items_with_an_error_are_tried_again_and_their_shards_begun_again(run):
    error = {"error": "SourceError", "index": 4, "message": "no"}
    for shard in range(NUM_SHARDS):
        put(run, shard, 2)
    base = Base(
        open_shards={0: grown(0, 2)},
        sealed={1: finished(2), 2: finished(2)},
        gaps=[[1, 2], [4, 1]],
        errors={4: error},  # of shard 1
        num_items=NUM_ITEMS,
    )
    run.write_base(base)
    state = recovered(run, retry_errors=True)
    assert state.open_shards == {0: grown(0, 2)}
    assert list(state.sealed) == [2]
    assert state.errors == {}
    assert state.gaps.tolist() == [1, 2]
    # Other records of shard 1 were counted before; that of the item itself was not.
    assert [i for i in range(1, NUM_ITEMS, 3) if i in state.counted] == [1, 7, 10]


def test_an_item_that_was_tried_again_is_counted_once(run):
    """Its shard came past it in the attempt that was stopped, so its record was counted there."""
    for counted_to, expected in ((4, False), (5, True)):
        run.write_base(Base(counted_to={1: ALL}, uncounted=frozenset({4})))
        put(run, 1, 1)
        note(run, open_shards={1: grown(1, 1)}, counted_to=counted_to)
        state = recovered(run)
        assert (4 in state.counted) is expected
        run.begin({"job": "sha256:00"})
    run.write_base(Base(uncounted=frozenset({4}), counted_to={1: ALL}))
    put(run, 0, 1)
    note(run, open_shards={0: grown(0, 1)}, counted_to=NUM_ITEMS)  # of another shard
    assert 4 not in recovered(run).counted


@pytest.mark.parametrize(
    "base",
    [
        Base(open_shards={NUM_SHARDS: grown(0, 1)}),
        Base(sealed={NUM_SHARDS: finished(1)}),
        Base(counted_to={NUM_SHARDS: 1}),
        Base(gaps=[[3, 2], [4, 1]]),
        Base(gaps=[[NUM_ITEMS, 1]]),
        Base(num_items=NUM_ITEMS + 1),
    ],
)
def test_a_base_that_can_not_be_of_this_job_is_refused(run, base):
    run.write_base(base)
    with pytest.raises(StorageError) as caught:
        recovered(run)
    assert str(caught.value.path).endswith("base")


def test_a_base_up_to_the_last_item_and_shard_is_of_this_job(run):
    run.write_base(
        Base(gaps=[[0, 2], [2, 1], [11, 1]], num_items=NUM_ITEMS, counted_to={NUM_SHARDS - 1: 1})
    )
    assert recovered(run).gaps.tolist() == [0, 1, 2, 11]


def test_a_list_of_adopted_files_is_refused_before_all_shards_are_finished(run):
    put(run, 0, 1)
    os.rename(run.shard_path(0), os.path.join(run.directory, PLAIN.shard_file(0)))
    run.adopt({0: (os.path.join(run.directory, PLAIN.shard_file(0)), run.file("index-00000"))})
    with pytest.raises(StorageError) as caught:
        recovered(run)
    assert str(caught.value.path).endswith("files.json")


# -- the last record of a shard --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "compression", "expected"),
    [
        ([20], "none", (0, 20)),
        ([20, 45], "none", (20, 45)),
        ([20, 45, 50], "gzip", (45, 50)),
        ([30], "gzip", (0, 30)),
        ([30], "zlib", (2, 30)),
        ([30, 31], "zlib", (30, 31)),
    ],
)
def test_the_last_block_of_a_shard(ends, compression, expected):
    assert last_block_range(np.array(ends, np.uint64), compression) == expected


def test_the_last_record_is_read_from_its_block(tmp_path):
    path = str(tmp_path / "shard")
    with TFRecordWriter(path) as writer:
        writer.write(b"first")
        writer.write(b"last one")
    assert read_last_record(path, 21, 45, "none") == b"last one"
    assert read_last_record(path, 0, 21, "none") == b"first"
    for begin, end in ((21, 46), (45, 45), (45, 44), (-1, 21), (0, 0)):
        with pytest.raises(CorruptFile):
            read_last_record(path, begin, end, "none")


# -- whether the run is of this job ----------------------------------------------------------------


def run_json(**more: Any) -> dict[str, Any]:
    return {
        "options": {"limit": None, "map": {"name": "m:look", "sha256": "0" * 64}},
        "source": {"kind": "csv", "digest": "1"},
        "plan": {"num_shards": 4, "schema": {"features": {"x": {"kind": "float"}}}},
        "job": "sha256:00",
        "nonce": "a" * 32,
        **more,
    }


def test_the_same_job_may_go_on_whatever_else_run_json_says():
    check_same_job(run_json(), run_json(nonce="b" * 32, retries=[]))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"options": {"limit": 3, "map": run_json()["options"]["map"]}}, "options.limit"),
        ({"options": {"limit": None, "map": None}}, "options.map"),
        ({"source": {"kind": "csv", "digest": "2"}}, "source.digest"),
        ({"source": {"kind": "jsonl", "digest": "2"}}, "source.kind"),
        ({"plan": {"num_shards": 5, "schema": {}}}, "plan.num_shards"),
        ({"job": "sha256:01"}, "job"),
    ],
)
def test_another_job_is_refused_with_the_field_that_differs(change, field):
    for before, now in ((run_json(), run_json(**change)), (run_json(**change), run_json())):
        with pytest.raises(RunChanged) as caught:
            check_same_job(before, now)
        assert f"({field}" in caught.value.message
        assert caught.value.hint


def test_only_other_code_of_a_map_can_be_accepted_later():
    other = {"limit": None, "map": {"name": "m:look", "sha256": "1" * 64}}
    with pytest.raises(RunChanged) as caught:
        check_same_job(run_json(), run_json(options=other))
    assert "--accept-changed-map" in (caught.value.hint or "")
    with pytest.raises(RunChanged) as caught:
        check_same_job(run_json(), run_json(job="sha256:01"))
    assert "--accept-changed-map" not in (caught.value.hint or "")


def test_a_list_of_float32_of_an_older_run_is_the_same_type_now():
    def with_type(**entry: str) -> dict[str, Any]:
        return run_json(plan={"schema": {"features": {"x": entry}}})

    today = with_type(kind="float", dtype="float32")
    check_same_job(with_type(kind="float", dtype="float64"), today)
    with pytest.raises(RunChanged):
        check_same_job(with_type(kind="float", dtype="float16"), today)
    with pytest.raises(RunChanged):
        check_same_job(with_type(kind="bytes", dtype="float64"), today)


# -- what a finished dataset says ------------------------------------------------------------------


def test_retries_of_a_manifest_are_read_if_they_have_their_shape():
    good = [{"items": [[3, 2]], "job": "sha256:00"}]
    for metadata, expected in (({}, []), ({"retries": good}, good), ({"retries": [{}]}, [])):
        assert read_retries(SimpleNamespace(metadata=metadata)) == expected  # type: ignore[arg-type]


def test_the_error_log_is_read_by_item(run):
    path = Path(run.directory, "t.errors.jsonl")
    assert read_error_log(run) == {}
    path.write_text('{"index": 3, "error": "E"}\n{"index": 5}\n')
    assert read_error_log(run) == {3: {"index": 3, "error": "E"}, 5: {"index": 5}}
    for text in ("no json\n", '{"error": "E"}\n', '{"index": -1}\n', '{"index": "é"}\n'):
        path.write_text(text)
        with pytest.raises(ManifestError):
            read_error_log(run)
