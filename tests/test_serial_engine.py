"""The serial engine: the law, the order of the journal, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.crc32c import crc32c
from shardwriter.engines import part
from shardwriter.engines.serial import run_serial
from shardwriter.errors import CallableError, RecordTooLarge
from shardwriter.job import Job
from shardwriter.journal import Journal, read_journal
from shardwriter.naming import parse_output
from shardwriter.options import SKIP, DatasetOptions
from shardwriter.rundir import RunDirectory
from shardwriter.shard import ShardFile
from shardwriter.sources.python import PythonSource
from shardwriter.storage import LocalStorage
from shardwriter.storage.local import LocalFile


@pytest.fixture
def engine(tmp_path):
    """Return a function that runs the engine in a run directory, and what it left."""
    runs = []

    def run(data, num_shards=3, progress=None, **options):
        output = parse_output(str(tmp_path / f"t{len(runs)}@{num_shards}"))
        source = PythonSource(data)
        job = Job(source, DatasetOptions(**options), output.pattern(num_shards))
        runs.append(RunDirectory.claim(output.directory, output.name, LocalStorage()))
        runs[-1].begin({})
        outcome = run_serial(job, runs[-1], progress=progress)
        shards = [list(sw.read_records(runs[-1].shard_path(s))) for s in range(num_shards)]
        return outcome, shards, list(read_journal(os.path.join(runs[-1].path, "journal-0-0")))

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
    st.booleans(),
)
def test_gaps_keep_their_index(tmp_path_factory, records, num_shards, checkpoint_bytes, stream):
    folder = tmp_path_factory.mktemp("gaps")
    data = (lambda: iter(records)) if stream else records
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "CHECKPOINT_BYTES", checkpoint_bytes)
        manifest = sw.write(
            data, folder / f"t@{num_shards}", map=lambda r: SKIP if r is None else r
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


# -- journal and checkpoints ---------------------------------------------------------------------


@pytest.fixture
def events(monkeypatch):
    """What happens to the disk, in order: facts that are flushed, frames that are handed on."""
    log = []
    fact, flush, note = Journal.fact, Journal.flush, ShardFile._note_frames
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

    monkeypatch.setattr(Journal, "fact", noted)
    monkeypatch.setattr(Journal, "flush", flushed)
    monkeypatch.setattr(ShardFile, "_note_frames", framed)
    return log


def test_a_gap_is_on_the_disk_before_any_later_frame(engine, events, monkeypatch):
    monkeypatch.setattr(part, "_MAX_BUFFER_BYTES", 1)
    monkeypatch.setattr(part, "_ALL_BUFFERS_BYTES", 1)
    # Records of over 4,096 bytes go to the disk one by one.
    records = [bytes([i]) * 5000 for i in range(12)]
    skipped = {0, 3, 4, 11}
    engine(records, 2, map=lambda record: SKIP if record[0] in skipped else record)
    seen = [f"skip {e[1]['skip']}" if "skip" in e[1] else "other" for e in events if e[0] == "fact"]
    assert seen[:4] == ["skip 0", "skip 3", "skip 4", "skip 11"]
    order = [e[1]["skip"] if e[0] == "fact" and "skip" in e[1] else e[0] for e in events]
    assert order[:14] == [0, "frames", "frames", 3, 4, *["frames"] * 6, 11, "fact", "fact"]


def test_the_end_is_on_the_disk_before_the_last_frames(engine, events):
    engine(payloads(10), 2)
    kinds = [sorted(e[1])[0] if e[0] == "fact" else e[0] for e in events]
    assert kinds.index("items") < kinds.index("frames")
    assert events[0] == ("fact", {"items": 10})


def test_checkpoints_come_after_so_many_bytes(engine, monkeypatch):
    monkeypatch.setattr(part, "CHECKPOINT_BYTES", 100)
    _, _, facts = engine([b"x" * 30] * 20, 3)
    points = [fact for fact in facts if "checkpoint" in fact]
    # Every fourth record brings 120 bytes.
    assert [(p["checkpoint"], p["records"]) for p in points] == [
        (shard, len(range(shard, done, 3))) for done in (4, 8, 12, 16, 20) for shard in range(3)
    ]
    assert all(p["bytes"] == 46 * p["records"] for p in points)


def test_a_checkpoint_is_what_lies_on_the_disk(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(part, "CHECKPOINT_BYTES", 1)
    found = []
    sync = Journal.sync

    def look(self):
        sync(self)
        folder = tmp_path / ".t0.partial"
        for fact in list(read_journal(folder / "journal-0-0"))[-2:]:
            if "checkpoint" in fact:
                shard = (folder / f"shard-{fact['checkpoint']:05d}").read_bytes()
                ends = (folder / f"index-{fact['checkpoint']:05d}").stat().st_size
                on_disk = (len(shard), ends // 8, f"{crc32c(shard):08x}")
                found.append(((fact["bytes"], fact["records"], fact["crc32c"]), on_disk))

    monkeypatch.setattr(Journal, "sync", look)
    engine(payloads(9), 2)
    assert len(found) == 2 * 7  # two shards, and two of nine records are empty
    assert all(told == on_disk for told, on_disk in found)


def test_the_journal_tells_the_whole_run(engine):
    outcome, _, facts = engine(
        [{"x": i, "y": i % 2} for i in range(7)],
        2,
        map=lambda f: SKIP if f["x"] == 3 else f,
        label="y",
    )
    assert sorted(facts[0]["schema"]) == ["x", "y"]
    assert facts[1] == {"skip": 3, "reason": "dropped"}
    assert facts[2] == {"items": 7}
    assert facts[3:5] == [{"schema": outcome.schema["features"]}, {"labels": outcome.labels}]
    assert [(f["sealed"], f["records"], f["bytes"]) for f in facts[5:]] == [
        (s, shard.num_records, shard.file_bytes) for s, shard in enumerate(outcome.shards)
    ]


def test_checkpoints_change_no_byte(tmp_path, monkeypatch):
    data = [{"x": i, "y": "ab"[i % 2]} for i in range(50)]
    for folder, limit in (("a", 1 << 40), ("b", 1), ("c", 77)):
        monkeypatch.setattr(part, "CHECKPOINT_BYTES", limit)
        sw.write(data, tmp_path / folder / "t@4", label="y")
    for name in os.listdir(tmp_path / "a"):
        contents = {(tmp_path / folder / name).read_bytes() for folder in "abc"}
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
    monkeypatch.setattr("shardwriter.tfrecord.MAX_PAYLOAD_BYTES", 100)
    with pytest.raises(RecordTooLarge, match="101 bytes") as caught:
        engine([b""] * 7 + [bytes(101)], 3)
    assert caught.value.index == 7


def test_progress_is_told(engine, monkeypatch):
    monkeypatch.setattr(part, "REPORT_S", 0)
    told = []
    engine([b"abc"] * 5, 2, progress=told.append)
    assert [work.num_done for work in told] == [1, 2, 3, 4, 5, 5, 5]
    last = told[-1]
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
from shardwriter.engines import part

part._MAX_BUFFER_BYTES = 4096  # filled many times over by either run

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
        on_disk = [f for p in Path(self._path).parent.glob("journal-*") for f in read_journal(p)]
        if "shard-" in self._path:
            written.append(on_disk == json.loads(json.dumps(known)))
        real_write(self, data)

    real_fact, real_write = Journal.fact, LocalFile.write
    monkeypatch.setattr(Journal, "fact", note)
    monkeypatch.setattr(LocalFile, "write", write)
    monkeypatch.setattr(part, "_MAX_BUFFER_BYTES", 1)
    monkeypatch.setattr(part, "_ALL_BUFFERS_BYTES", 1)
    data = [{"x": np.zeros(i % 5 + 1, np.int16 if i < 600 else np.int32)} for i in range(1000)]
    engine(data, 2, map=lambda f: SKIP if len(f["x"]) == 3 else {**f, f"n{len(f['x'])}": 1})
    assert len(written) > 2
    assert all(written)
    widened = [fact for fact in known if "schema" in fact]
    assert any(fact["schema"].get("x", {}).get("dtype") == "int64" for fact in widened[:-1])
