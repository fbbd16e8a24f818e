"""The serial engine: the law, the order of the journal, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.dataset.naming import parse_output
from shardwriter.errors import CallableError, RecordTooLarge
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema.record_stats import RecordStats
from shardwriter.sources.python import PythonSource
from shardwriter.storage import LocalStorage
from shardwriter.storage.local import LocalFile
from shardwriter.writing import open_shards as open_shards
from shardwriter.writing import part
from shardwriter.writing.job import Job
from shardwriter.writing.journal import Journal, Snapshot, read_facts
from shardwriter.writing.open_shards import ShardFile
from shardwriter.writing.options import SKIP, DatasetOptions, RunOptions
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.selection import Selection
from shardwriter.writing.serial import run_serial

QUIET = RunOptions(mark_s=1e9)


@pytest.fixture
def engine(tmp_path):
    """Return a function that runs the engine in a run directory, and what it left."""
    runs = []

    def run(data, num_shards=3, progress=None, run_options=QUIET, **options):
        output = parse_output(str(tmp_path / f"t{len(runs)}@{num_shards}"))
        source = PythonSource(data)
        job = Job(Selection(source, DatasetOptions(**options)), output.pattern(num_shards))
        runs.append(RunDirectory.claim(output.directory, output.name, LocalStorage()))
        runs[-1].begin({})
        outcome = run_serial(job, runs[-1], ResumeState(num_shards), run_options, progress=progress)
        shards = [list(sw.read_records(runs[-1].shard_path(s))) for s in range(num_shards)]
        return outcome, shards, read_facts(runs[-1].read("journal-0-0")).facts

    yield run
    for claimed in runs:
        claimed.release()


def payloads(num_records):
    return [b"%d" % i * (i % 7) for i in range(num_records)]


def model(records, num_shards):
    """The law, said another way: record i of a list with None for gaps goes to shard i mod N."""
    return [[r for r in records[s::num_shards] if r is not None] for s in range(num_shards)]


# -- the law -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [*range(1, 51, 7), 2, 3, 5, 16, 50])
@pytest.mark.parametrize("num_records", [0, 1, 7, 101])
def test_a_shard_is_every_nth_record(engine, num_shards, num_records):
    records = payloads(num_records)
    outcome, shards, _ = engine(records, num_shards)
    assert shards == model(records, num_shards)
    assert outcome.num_items == num_records
    assert [shard.num_records for shard in outcome.shards] == [
        len(records[s::num_shards]) for s in range(num_shards)
    ]
    assert outcome.gaps == []


@settings(max_examples=40)
@given(
    st.lists(st.none() | st.binary(max_size=40), max_size=60),
    st.integers(1, 50),
    st.sampled_from([1, 50, 1 << 40]),
    st.sampled_from([0, 1e9]),
    st.booleans(),
)
def test_gaps_keep_their_index(
    tmp_path_factory, records, num_shards, checkpoint_bytes, mark_s, stream
):
    folder = tmp_path_factory.mktemp("gaps")
    data = (lambda: iter(records)) if stream else records
    manifest = sw.write(
        data,
        folder / f"t@{num_shards}",
        map=lambda r: SKIP if r is None else r,
        run=RunOptions(checkpoint_bytes=checkpoint_bytes, mark_s=mark_s),
    )
    names = manifest.pattern.shard_files
    assert [list(sw.read_records(folder / name)) for name in names] == model(records, num_shards)
    assert list(manifest.gaps) == [i for i, record in enumerate(records) if record is None]
    assert manifest.num_items == len(records)


@pytest.mark.parametrize("data", [[], lambda: iter(()), iter(())])
def test_no_records_are_empty_shards(engine, data):
    outcome, shards, _ = engine(data, 5)
    assert shards == [[]] * 5
    assert [shard.file_bytes for shard in outcome.shards] == [0] * 5
    assert outcome.labels is None
    assert not outcome.labels_sorted


def test_all_items_skipped(engine):
    outcome, shards, _ = engine(payloads(4), 3, map=lambda record: SKIP)
    assert (shards, outcome.gaps, outcome.num_items) == ([[]] * 3, [0, 1, 2, 3], 4)


def test_a_shuffled_run_deals_the_permutation(engine):
    records = payloads(10)
    _, shards, _ = engine(records, 3, shuffle_seed=0)
    shuffled = [records[i] for i in (5, 4, 6, 7, 0, 1, 9, 2, 8, 3)]
    assert shards == model(shuffled, 3)


def test_the_map_is_called_once_an_item_in_order(engine):
    seen = []

    def look(record):
        seen.append(record)
        return record

    engine(payloads(20), 4, map=look)
    assert seen == payloads(20)


def test_a_large_record_is_written(engine):
    records = [b"a", bytes(100 << 20), b"b"]
    _, shards, _ = engine(records, 2)
    assert shards == model(records, 2)


# -- journal and snapshots -----------------------------------------------------------------------


@pytest.fixture
def events(monkeypatch):
    """What happens to the disk, in order: facts that are flushed, frames that are handed on."""
    log = []
    fact, flush, note = Journal.add_fact, Journal.flush, ShardFile._note_frames
    pending = []

    def noted(self, **facts):
        pending.append(facts)
        fact(self, **facts)

    def flushed(self):
        flush(self)
        log.extend(("fact", facts) for facts in pending)
        pending.clear()

    def framed(self, sizes):
        note(self, sizes)
        log.append(("frames", len(sizes)))

    monkeypatch.setattr(Journal, "add_fact", noted)
    monkeypatch.setattr(Journal, "flush", flushed)
    monkeypatch.setattr(ShardFile, "_note_frames", framed)
    return log


def test_a_gap_is_on_the_disk_before_any_later_frame(engine, events, monkeypatch):
    monkeypatch.setattr(open_shards, "_MAX_BUFFER_BYTES", 1)
    monkeypatch.setattr(open_shards, "_ALL_BUFFERS_BYTES", 1)
    # Records of over 4,096 bytes go to the disk one by one.
    records = [bytes([i]) * 5000 for i in range(12)]
    skipped = {0, 3, 4, 11}
    engine(records, 2, map=lambda record: SKIP if record[0] in skipped else record)
    seen = [f"skip {e[1]['skip']}" if "skip" in e[1] else "other" for e in events if e[0] == "fact"]
    assert seen[:4] == ["skip 0", "skip 3", "skip 4", "skip 11"]
    order = [e[1]["skip"] if e[0] == "fact" and "skip" in e[1] else e[0] for e in events]
    assert order == [0, "frames", "frames", 3, 4, *["frames"] * 6, 11]


@pytest.fixture
def snapshots(monkeypatch):
    """Every snapshot that is written, read back from the disk, with what was in the run then."""
    found = []
    write_snapshot = RunDirectory.write_snapshot

    def look(self, attempt, worker, snapshot):
        write_snapshot(self, attempt, worker, snapshot)
        kind = "checkpoint" if snapshot.is_synced else "mark"
        folder = Path(self.path)
        again = Snapshot.from_line((folder / f"{kind}-{attempt}-{worker}").read_bytes())
        assert again == snapshot
        found.append((again, {p.name: p.read_bytes() for p in folder.iterdir()}))

    monkeypatch.setattr(RunDirectory, "write_snapshot", look)
    return found


def test_checkpoints_come_after_so_many_bytes(engine, snapshots):
    options = RunOptions(checkpoint_bytes=100, mark_s=1e9)
    engine([b"x" * 30] * 20, 3, run_options=options)
    # Every fourth record brings 120 bytes.
    found = [
        (snapshot.counted_to, shard, written.num_records, written.file_bytes)
        for snapshot, _ in snapshots
        for shard, written in snapshot.open_shards.items()
    ]
    counts = [(done, s, len(range(s, done, 3))) for done in (4, 8, 12, 16, 20) for s in range(3)]
    assert found == [(done, s, count, 46 * count) for done, s, count in counts]
    assert all(snapshot.is_synced for snapshot, _ in snapshots)
    assert [snapshot.number for snapshot, _ in snapshots] == [1, 2, 3, 4, 5]


def test_marks_come_after_every_item_where_no_time_is_between_them(engine, snapshots):
    engine([b"x" * 30] * 20, 3, run_options=RunOptions(mark_s=0))
    reported = [snapshot for snapshot, _ in snapshots]
    assert [snapshot.counted_to for snapshot in reported] == [*range(1, 21), 20]
    assert not any(snapshot.is_synced for snapshot in reported)
    last = reported[-1]
    assert (last.open_shards, sorted(last.sealed), last.num_items) == ({}, [0, 1, 2], 20)
    assert {snapshot.num_items for snapshot in reported[:-1]} == {None}


def test_marks_come_once_in_so_many_seconds(engine, snapshots):
    engine([b"x"] * 20, 3, map=lambda r: time.sleep(0.02) or r, run_options=RunOptions(mark_s=0.02))
    assert 1 <= len(snapshots) <= 20
    snapshots.clear()
    engine([b"x"] * 20, 3)
    assert snapshots == []


@pytest.mark.parametrize(
    "options", [RunOptions(mark_s=0), RunOptions(checkpoint_bytes=1, mark_s=1e9)]
)
def test_a_snapshot_matches_the_files(engine, snapshots, options):
    records = payloads(9)
    skip = {4, 5}
    engine(
        records,
        2,
        map=lambda r: SKIP if r in [records[i] for i in skip] else r,
        run_options=options,
    )
    reported = [(snapshot, files) for snapshot, files in snapshots if snapshot.open_shards]
    assert len(reported) >= 5
    for snapshot, files in reported:
        done = snapshot.counted_to
        expected = model([None if i in skip else r for i, r in enumerate(records[:done])], 2)
        for shard, written in snapshot.open_shards.items():
            data, rows = files[f"shard-{shard:05d}"], files[f"index-{shard:05d}"]
            assert len(data) == written.file_bytes == written.stream_bytes
            assert crc32c(data) == written.crc32c
            assert len(rows) == 8 * written.num_pieces == 8 * written.num_records
            assert written.num_records == len(expected[shard])
        assert snapshot.journal_bytes == len(files["journal-0-0"])
        skipped = [fact["skip"] for fact in read_facts(files["journal-0-0"]).facts]
        assert skipped == sorted(i for i in skip if i < done)


def test_a_snapshot_has_the_stats_of_the_records_up_to_it(engine, snapshots):
    data = [{"x": i, "y": i % 2} for i in range(7)]
    outcome, _, _ = engine(data, 2, label="y", run_options=RunOptions(mark_s=0))
    for snapshot, _ in snapshots:
        stats = RecordStats.from_state(snapshot.stats, 2)
        assert stats.features["x"].present == snapshot.counted_to
        counts = {str(k): len(range(k, snapshot.counted_to, 2)) for k in range(2)}
        assert stats.labels.to_json()["counts"] == {k: n for k, n in counts.items() if n}
    assert stats.labels.to_json() == outcome.labels


def test_the_journal_has_types_and_gaps_and_nothing_else(engine):
    _, _, facts = engine(
        [{"x": i, "y": i % 2} for i in range(7)],
        2,
        map=lambda f: SKIP if f["x"] == 3 else f,
        label="y",
    )
    assert sorted(facts[0]["types"]) == ["x", "y"]
    assert facts[1:] == [{"skip": 3, "reason": "dropped"}]


def test_snapshots_change_no_byte(tmp_path):
    data = [{"x": i, "y": "ab"[i % 2]} for i in range(50)]
    options = {
        "a": QUIET,
        "b": RunOptions(checkpoint_bytes=1, mark_s=1e9),
        "c": RunOptions(checkpoint_bytes=77, mark_s=1e9),
        "d": RunOptions(mark_s=0),
    }
    for folder, run in options.items():
        sw.write(data, tmp_path / folder / "t@4", label="y", run=run)
    for name in os.listdir(tmp_path / "a"):
        contents = {(tmp_path / folder / name).read_bytes() for folder in options}
        assert len(contents) == 1, name


# -- errors and progress -------------------------------------------------------------------------


def test_an_error_leaves_no_file_open(engine, tmp_path):
    def stop(record):
        if record == b"5" * 5:
            raise ValueError
        return record

    with pytest.raises(CallableError) as caught:
        engine(payloads(10), 40, map=stop)
    assert caught.value.index == 5
    opened = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    inside = [path for path in opened if path.startswith(os.path.realpath(tmp_path))]
    assert list(map(os.path.basename, inside)) == ["lock"]


def test_a_record_that_is_too_large_is_named(engine, monkeypatch):
    monkeypatch.setattr("shardwriter.writing.encode.MAX_PAYLOAD_BYTES", 100)
    with pytest.raises(RecordTooLarge, match="101 bytes") as caught:
        engine([b""] * 7 + [bytes(101)], 3)
    assert caught.value.index == 7


def test_progress_is_reported(engine, monkeypatch):
    monkeypatch.setattr(part, "REPORT_S", 0)
    reported = []
    engine([b"abc"] * 5, 2, progress=reported.append)
    assert [work.num_done for work in reported] == [1, 2, 3, 4, 5, 5, 5]
    last = reported[-1]
    assert (last.num_items, last.payload_bytes, last.num_gaps) == (5, 15, 0)


# -- what it costs -------------------------------------------------------------------------------


def python(code, *arguments):
    """Run a program, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_more_shards_than_files_may_be_open(tmp_path):
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
import shardwriter as sw
with sw.open_writer(sys.argv[1] + "/pushed@300") as writer:
    for i in range(1000):
        writer.write(b"%d" % i)
sw.write((b"%d" % i for i in range(1000)), sys.argv[1] + "/pulled@300")
"""
    python(code, tmp_path)
    records = [b"%d" % i for i in range(1000)]
    for name in ("pushed", "pulled"):
        manifest = sw.load_manifest(tmp_path / f"{name}.manifest.json")
        found = [list(sw.read_records(tmp_path / file)) for file in manifest.pattern.shard_files]
        assert found == model(records, 300)


def test_memory_does_not_grow_with_the_number_of_records(tmp_path):
    code = """
import sys, tracemalloc
import shardwriter as sw
from shardwriter.writing import open_shards as growing

growing._MAX_BUFFER_BYTES = 4096  # filled many times over by either run

def data(n):
    for i in range(n):
        yield {"x": i, "y": float(i), "label": i % 10, "text": "%01000d" % i}

def write(n):
    sw.write(lambda: data(n), f"{sys.argv[1]}/t{n}@8", label="label")

write(9_000)  # fills what is cached once, up to a bound
tracemalloc.start()
for n in (3_000, 21_000):
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    write(n)
    print(tracemalloc.get_traced_memory()[1] - before)
"""
    small, large = map(int, python(code, tmp_path).split())
    # One more number for each of 18,000 records would be 600 kB, a reference 144 kB.
    assert large - small < 100_000, (small, large)


def test_facts_are_written_before_any_later_frame(engine, monkeypatch):
    """Whenever bytes of a shard are written, the journal holds what was known by then."""
    known = []
    written = []

    def note(self, **fact):
        known.append(fact)
        real_fact(self, **fact)

    def write(self, data):
        on_disk = [
            f
            for p in Path(self._path).parent.glob("journal-*")
            for f in read_facts(p.read_bytes()).facts
        ]
        if "shard-" in self._path:
            written.append(on_disk == json.loads(json.dumps(known)))
        real_write(self, data)

    real_fact, real_write = Journal.add_fact, LocalFile.write
    monkeypatch.setattr(Journal, "add_fact", note)
    monkeypatch.setattr(LocalFile, "write", write)
    monkeypatch.setattr(open_shards, "_MAX_BUFFER_BYTES", 1)
    monkeypatch.setattr(open_shards, "_ALL_BUFFERS_BYTES", 1)
    data = [{"x": np.zeros(i % 5 + 1, np.int16 if i < 600 else np.int32)} for i in range(1000)]
    engine(data, 2, map=lambda f: SKIP if len(f["x"]) == 3 else {**f, f"n{len(f['x'])}": 1})
    assert len(written) > 2
    assert all(written)
    widened = [fact for fact in known if "types" in fact]
    assert any(fact["types"].get("x", {}).get("dtype") == "int64" for fact in widened[:-1])
