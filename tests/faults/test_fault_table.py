"""The fault table: what goes wrong x where x who does the work, and what comes after.

After every fault the same holds: the error says what and where, no process is left, no final name
is partial, and the same write with ``resume`` ends with the bytes of a run in which nothing failed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from contextlib import contextmanager

import faulty
import injected_faults
import pytest
from injected_faults import LOADS, NUM_ITEMS, SWITCH, switch
from paths import TESTS
from processes import PLENTY_S, is_stopped, marked, published, started, until
from sampling import sampled

import shardwriter as sw
from shardwriter.dataset.naming import parse_output
from shardwriter.errors import (
    CallableError,
    FeatureError,
    ItemTimeout,
    OutputBusy,
    RunChanged,
    RunError,
    SchemaConflict,
    SourceChanged,
    SourceError,
    StorageError,
    TooManyErrors,
    WorkerDied,
)
from shardwriter.sources.find import open_source
from shardwriter.writing.notices import Notices
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.write import write_dataset

NUM_SHARDS = 4
AT = 9  # the item that goes wrong, where nothing else is said
NUM_GAPS = sum(index % 7 == 6 for index in range(NUM_ITEMS))

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")

# way -> the source, and how many workers
WAYS = {
    "serial": (injected_faults.data, 1),
    "streamed": (injected_faults.items, 1),
    "strided": (injected_faults.data, 2),
    "sent": (injected_faults.items, 2),
    "held": (injected_faults.Held, 2),
}


@pytest.fixture(scope="module", autouse=True)
def _shared_memory():
    """Nothing is left in /dev/shm."""

    def found():
        with os.scandir("/dev/shm") as entries:
            names = {entry.name for entry in entries if not entry.is_dir()}
        # These are of other programs: the tests of frameworks run beside.
        others = ("torch_", "psm_", "sem.", "__KMP_")
        return {name for name in names if not name.startswith(others)}

    before = found()
    yield
    until(lambda: found() <= before)


@pytest.fixture
def out(tmp_path, mark, scratch, monkeypatch):
    """A folder to write into; nothing is left elsewhere."""
    monkeypatch.delenv(SWITCH, raising=False)
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def write(out, way, *, source=None, compression=None, notes=None, **run):
    """Write the dataset; a mark follows every item, so that there is something to keep."""
    usual, workers = WAYS[way]
    source = source or (usual() if way == "held" else usual)
    output = parse_output(str(out / f"t@{NUM_SHARDS}"), None, compression)
    options = DatasetOptions(
        map=injected_faults.mapped, label="label", compression=output.compression
    )
    return write_dataset(
        lambda: open_source(source, "auto", {}),
        output,
        options,
        RunOptions(**{"mark_s": 0, "workers": workers, **run}),
        notices=None if notes is None else Notices(notes.append),
        storage=injected_faults.Storage(),
    )


def files(folder):
    """Everything that stands under a final name."""
    return {name: (folder / name).read_bytes() for name in published(folder)}


_references = {}


def reference(tmp_path_factory, way, *, source=None, compression=None, faults=None):
    """The files of a run in which nothing failed, or in which these items did, from one process."""
    kind = "Held" if way == "held" else "items" if way in ("streamed", "sent") else "data"
    key = source or kind, compression, json.dumps(faults)
    if key not in _references:
        folder = tmp_path_factory.mktemp("reference")
        told = os.environ.pop(SWITCH, None)
        options = {}
        if faults:
            os.environ[SWITCH] = json.dumps(faults)
            options = {"on_error": "skip"}
        try:
            write(
                folder, way, source=source, compression=compression, workers=1, mark_s=1, **options
            )
        finally:
            os.environ.pop(SWITCH, None)
            if told is not None:
                os.environ[SWITCH] = told
        _references[key] = files(folder)
    return _references[key]


@pytest.fixture
def whole(tmp_path_factory):
    return lambda way, **how: reference(tmp_path_factory, way, **how)


def forked(function):
    """Run a function in a fork of this process, and return how that ended.

    Whenever it is stopped it gets SIGCONT.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        process = os.fork()
    if not process:
        code = 99
        try:
            signal.alarm(PLENTY_S)
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    num_stops = 0
    while True:
        _, status = os.waitpid(process, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status), num_stops
        num_stops += 1
        os.kill(process, signal.SIGCONT)


@contextmanager
def continuing(mark):
    """Tell stopped workers to go on; yields those that were."""
    seen, over = set(), threading.Event()

    def look():
        while not over.wait(0.02):
            for process in marked(mark):
                if is_stopped(process):
                    seen.add(process)
                    os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def resumed_from(notes):
    """Return the numbers of records and of items that a resumed run reports as already done."""
    for note in notes:
        found = re.match(r"resuming: ([\d,]+)(?: of [\d,]+)? items .*\(([\d,]+) records", note)
        if found:
            items, records = (int(number.replace(",", "")) for number in found.groups())
            return records, items
    return 0, 0


def check_resume(out, way, expected, monkeypatch, tmp_path, **options):
    """Resume without the fault: the same files, and items already done are not loaded again."""
    monkeypatch.delenv(SWITCH, raising=False)
    counts = tmp_path / "loads"
    counts.write_bytes(b"")
    monkeypatch.setenv(LOADS, str(counts))
    notes = []
    try:
        write(out, way, resume=True, notes=notes, **options)
    finally:
        monkeypatch.delenv(LOADS)
    assert files(out) == expected
    assert sorted(os.listdir(out)) == published(out)
    loads = [int(line) for line in counts.read_text().split()]
    num_records, num_done = resumed_from(notes)
    if any("nothing to do" in note for note in notes):
        assert len(loads) <= NUM_SHARDS  # all that was left was to give names, and to compare
    elif way in ("serial", "strided"):
        # One record of every shard that has some is made again, to see that it is the same.
        num_checks = len(loads) - (NUM_ITEMS - num_done)
        assert 0 <= num_checks <= min(NUM_SHARDS, num_records)
        assert len(set(loads)) >= NUM_ITEMS - num_done
    return num_done


def check_names(out, expected, *, committed):
    """No final name is partial; before the commit there is none."""
    found = files(out)
    if not committed:
        assert found == {}
    assert found.items() <= expected.items()
    if "t.manifest.json" in found:
        assert found == expected


# -- the table -------------------------------------------------------------------------------------

# place -> the ways in which it is a place of its own
PLACES = {
    "items": ["streamed", "sent"],
    "load": ["serial", "strided", "held"],
    "map": ["serial", "strided", "sent"],
    "encode": ["serial", "strided", "sent"],
    "append": ["serial", "strided", "sent"],
    "seal": ["serial", "strided", "sent"],
    "commit": ["serial"],
    "publish": ["serial"],
    "manifest": ["serial", "strided"],
    "clean": ["serial"],
}
FAULTS = ["raise_error", "exit_3", "raise_unsendable", "end_7", "kill", "stop"]
ITEM_PLACES = ("items", "load", "map", "encode")
PROGRAM_PLACES = ("commit", "publish", "manifest", "clean")
WORDS = {"raise_error": "boom", "exit_3": "3", "raise_unsendable": "boom", "raise_full": "no space"}

# Where it strikes: an item, or a call (append, seal: in one process; the others: in all).
AT_CALL = {"append": 3, "seal": 1, "publish": 2}
CASES = [
    (place, way, fault, AT if place in ITEM_PLACES else AT_CALL.get(place, 0))
    for place, ways in PLACES.items()
    for way in ways
    for fault in FAULTS
]
# What a disk says, where there is a disk; and the first and the last of what is counted.
CASES += [
    (place, way, "raise_full", AT_CALL.get(place, 0))
    for place, ways in PLACES.items()
    for way in ways
    if place not in ITEM_PLACES
]
CASES += [
    ("publish", "serial", fault, at)
    for fault in ("kill", "raise_full")
    for at in (0, NUM_SHARDS - 1)
]
CASES += [
    (place, way, fault, at)
    for place, way, fault in [
        ("load", "serial", "kill"),
        ("map", "strided", "kill"),
        ("map", "sent", "end_7"),
        ("items", "sent", "raise_error"),
        ("items", "streamed", "kill"),
        ("encode", "sent", "raise_error"),
    ]
    for at in (0, NUM_ITEMS - 2)
]


def is_in_program(place, way):
    """Whether the code of this place runs in the program, and not in a worker."""
    return (
        way in ("serial", "streamed")
        or place in ("items", *PROGRAM_PLACES)
        or (place, way) == ("load", "held")
    )


def error_of(place, way, fault):
    """The class of the error, and that of its cause."""
    here = is_in_program(place, way)
    if fault in ("end_7", "kill"):
        return WorkerDied
    if place in ITEM_PLACES:
        is_value = place == "encode" and fault != "exit_3"
        return FeatureError if is_value else CallableError
    if fault == "raise_unsendable" and not here:
        return RunError
    return {
        "raise_error": ValueError,
        "exit_3": SystemExit,
        "raise_unsendable": faulty.Unsendable,
        "raise_full": StorageError,
    }[fault]


# Every fault at every place, and every place in every way, is drawn; `full` runs the other cases.
@pytest.mark.parametrize(
    ("place", "way", "fault", "at"),
    sampled(
        "test_a_fault",
        CASES,
        lambda place, way, fault, at: (place, fault),
        lambda place, way, fault, at: (place, way),
        lambda place, way, fault, at: (way, fault),
        lambda place, way, fault, at: (place, at),
    ),
    ids=["-".join(map(str, case)) for case in CASES],
)
def test_a_fault(out, mark, tmp_path, monkeypatch, whole, place, way, fault, at):
    expected = whole(way)
    switch(monkeypatch, **{place: (fault, at)})
    in_program = is_in_program(place, way)
    begun = time.monotonic()
    if in_program and fault in ("end_7", "kill", "stop"):
        code, num_stops = forked(lambda: write(out, way))
        assert code == {"end_7": 7, "kill": -signal.SIGKILL, "stop": 0}[fault]
        assert bool(num_stops) == (fault == "stop")
    elif fault == "stop" and place in ("append", "seal"):
        with continuing(mark) as seen:
            write(out, way)
        assert seen
    elif fault == "stop":
        with pytest.raises(ItemTimeout, match=f"item {at}") as info:
            write(out, way, item_timeout_s=0.2)
        assert (info.value.index, info.value.shard) == (at, at % NUM_SHARDS)
        check_worker(info.value)
    else:
        kind = error_of(place, way, fault)
        with pytest.raises(kind) as info:
            write(out, way)
        error = info.value
        assert type(error) is kind
        if place in ITEM_PLACES:
            assert error.index == at
            assert f"item {at}" in str(error)
        if kind is WorkerDied:
            assert ("code 7" if fault == "end_7" else "SIGKILL") in str(error)
            assert place in ITEM_PLACES or "while it wrote shard" in str(error)
        else:
            assert WORDS[fault] in str(error)
        if not in_program and isinstance(error, sw.ShardwriterError):
            check_worker(error)
    assert time.monotonic() - begun < PLENTY_S
    until(lambda: not marked(mark))
    if fault == "stop" and (in_program or place not in ITEM_PLACES):
        assert files(out) == expected  # it went on
        return
    committed = place in ("publish", "manifest", "clean")
    check_names(out, expected, committed=committed)
    num_final = len([name for name in published(out) if name.startswith("t.tfrecord-")])
    if place == "publish":
        assert num_final == at
    elif committed:
        assert num_final == NUM_SHARDS
    # One process is the quickest to go on; that any can is another matter, below.
    num_done = check_resume(out, way, expected, monkeypatch, tmp_path, engine="serial", workers=1)
    if place == "commit":
        assert num_done == NUM_ITEMS
    elif way in ("serial", "streamed") and place in ITEM_PLACES:
        assert num_done == at  # all in front of it was marked
    elif at and not committed and not (in_program and fault in ("end_7", "kill")):
        assert num_done > 0  # a program that ends so early takes items with it that it has not sent


def check_worker(error):
    assert re.fullmatch(r"worker [01] \(process \d+\)", error.worker)
    assert error.worker in str(error)


# -- who goes on -----------------------------------------------------------------------------------

GOING_ON = [
    ("serial", "strided", 2),
    ("strided", "strided", 3),
    ("streamed", "sent", 2),
    ("sent", "sent", 3),
    ("held", "held", 2),
]


@pytest.mark.parametrize(("first", "second", "workers"), GOING_ON)
def test_who_goes_on_changes_nothing(out, tmp_path, monkeypatch, whole, first, second, workers):
    switch(monkeypatch, map=("kill", AT))
    if WAYS[first][1] == 1:
        assert forked(lambda: write(out, first)) == (-signal.SIGKILL, 0)
    else:
        with pytest.raises(WorkerDied):
            write(out, first)
    expected = whole(first)
    assert check_resume(out, second, expected, monkeypatch, tmp_path, workers=workers)


def test_several_faults_one_after_the_other(out, mark, tmp_path, monkeypatch, whole):
    stops = [
        *[("map", 2), ("encode", 7), ("append", 0), ("base", 0), ("load", 11), ("forget", 0)],
        *[("cut", 1), ("forget", 1), ("seal", 0), ("base", 0), ("commit", 0), ("manifest", 0)],
    ]
    for place, at in stops:
        switch(monkeypatch, **{place: ("kill", at)})
        code, _ = forked(lambda: write(out, "serial", resume=True))
        assert code == -signal.SIGKILL, (place, at)
        check_names(out, whole("serial"), committed=place == "manifest")
    check_resume(out, "serial", whole("serial"), monkeypatch, tmp_path)


# -- what does not pickle --------------------------------------------------------------------------


def test_an_item_that_does_not_pickle(out, tmp_path, monkeypatch, whole):
    switch(monkeypatch, sending=("nothing", AT))
    with pytest.raises(SourceError, match="can not be sent to another process") as info:
        write(out, "sent")
    assert info.value.index == AT
    check_names(out, whole("sent"), committed=False)
    check_resume(out, "sent", whole("sent"), monkeypatch, tmp_path, workers=1)


def test_an_item_that_does_not_pickle_is_none_of_one_process(out, monkeypatch, whole):
    switch(monkeypatch, sending=("nothing", AT))
    write(out, "streamed")
    assert files(out) == whole("streamed")


# -- processes that are stopped --------------------------------------------------------------------


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_a_worker_that_was_stopped_goes_on_with_sigcont(out, mark, monkeypatch, whole, way):
    switch(monkeypatch, map=("stop", AT))
    with continuing(mark) as seen:
        write(out, way)
    assert len(seen) == 1
    assert files(out) == whole(way)


def test_a_worker_that_is_stopped_for_less_than_the_timeout(out, mark, monkeypatch, whole):
    switch(monkeypatch, map=("stop", AT))
    with continuing(mark) as seen:
        write(out, "strided", item_timeout_s=PLENTY_S)
    assert len(seen) == 1
    assert files(out) == whole("strided")


def test_one_worker_with_a_timeout_is_stopped(out, tmp_path, monkeypatch, whole):
    switch(monkeypatch, map=("stop", AT))
    with pytest.raises(ItemTimeout, match=f"item {AT}"):
        write(out, "strided", workers=1, item_timeout_s=0.2)
    done = check_resume(out, "strided", whole("strided"), monkeypatch, tmp_path, workers=1)
    assert done > 0


# -- items that are skipped ------------------------------------------------------------------------

IN_DATA = {"load": ["raise_error", [2]], "map": ["exit_3", [5, AT]], "encode": ["raise_error", 12]}
IN_MAP = {"map": ["raise_unsendable", [5, AT]], "encode": ["exit_3", [0, 12]]}
SKIPS = [
    ("serial", IN_DATA),
    ("strided", IN_DATA),
    ("held", IN_DATA),
    ("streamed", IN_MAP),
    ("sent", IN_MAP),
]


def indices_of(faults):
    found = []
    for _, where in faults.values():
        found += where if isinstance(where, list) else [where]
    return sorted(found)


def check_errors(folder, manifest, failed):
    """Counts reconcile, and the ledger has exactly these items."""
    ledger = [json.loads(line) for line in (folder / "t.errors.jsonl").read_text().splitlines()]
    assert [entry["index"] for entry in ledger] == failed
    assert all(entry["error"] and entry["message"] for entry in ledger)
    assert not any("worker" in entry for entry in ledger)
    assert manifest.num_items == NUM_ITEMS
    assert manifest.num_records + len(manifest.gaps) == NUM_ITEMS
    dropped = {index for index in range(NUM_ITEMS) if index % 7 == 6}
    assert set(manifest.gaps) == dropped | set(failed)
    assert not sw.verify(str(folder / "t")).findings


@pytest.mark.parametrize(("way", "faults"), SKIPS, ids=[way for way, _ in SKIPS])
def test_items_that_fail_are_skipped(out, monkeypatch, whole, way, faults):
    switch(monkeypatch, **faults)
    manifest = write(out, way, on_error="skip")
    check_errors(out, manifest, indices_of(faults))
    assert files(out) == whole(way, faults=faults)


@pytest.mark.parametrize("way", ["serial", "strided", "sent"])
def test_a_run_that_skips_is_killed_and_goes_on(out, tmp_path, monkeypatch, whole, way):
    faults = {"map": ["raise_error", [0, 5]], "encode": ["raise_error", [12, 17]]}
    switch(monkeypatch, **faults, append=("kill", 5))
    if way == "serial":
        assert forked(lambda: write(out, way, on_error="skip")) == (-signal.SIGKILL, 0)
    else:
        with pytest.raises(WorkerDied):
            write(out, way, on_error="skip")
    check_names(out, {}, committed=False)
    switch(monkeypatch, **faults)
    manifest = write(out, way, on_error="skip", resume=True)
    check_errors(out, manifest, indices_of(faults))
    assert files(out) == whole(way, faults=faults)


@pytest.mark.parametrize("way", ["serial", "strided", "sent"])
def test_too_many_errors(out, monkeypatch, whole, way):
    faults = {"map": ["raise_error", [2, 5, AT, 12]]}
    switch(monkeypatch, **faults)
    with pytest.raises(TooManyErrors, match=r"3 items failed; the limit is 2\.") as info:
        write(out, way, on_error="skip", max_errors=2)
    assert info.value.exit_code == 1
    check_names(out, {}, committed=False)
    with pytest.raises(TooManyErrors):  # those of before count
        write(out, way, on_error="skip", max_errors=3, resume=True)
    notes = []
    manifest = write(out, way, on_error="skip", max_errors=4, resume=True, notes=notes)
    assert resumed_from(notes)[1] > 0
    check_errors(out, manifest, indices_of(faults))
    assert files(out) == whole(way, faults=faults)


@pytest.mark.parametrize(("place", "at"), [("append", 9), ("commit", 0)])
def test_errors_of_before_are_too_many(out, monkeypatch, whole, place, at):
    faults = {"map": ["raise_error", [1, 2, 4]]}
    switch(monkeypatch, **faults, **{place: ("kill", at)})
    code, _ = forked(lambda: write(out, "serial", on_error="skip"))
    assert code == -signal.SIGKILL
    switch(monkeypatch, **faults)
    # No item is left that gives one; a run with that budget would have ended all the same.
    with pytest.raises(TooManyErrors, match="3 items failed in earlier attempts; the limit is 2"):
        write(out, "serial", on_error="skip", max_errors=2, resume=True)
    check_names(out, {}, committed=False)
    write(out, "serial", on_error="skip", max_errors=3, resume=True)
    assert files(out) == whole("serial", faults=faults)


@pytest.mark.parametrize(
    ("place", "fault", "kind"),
    [
        ("load", "raise_changed", SourceChanged),
        ("map", "raise_conflict", SchemaConflict),
        ("type", "nothing", SchemaConflict),
    ],
)
@pytest.mark.parametrize("way", ["serial", "strided", "sent"])
def test_what_is_about_the_whole_is_never_skipped(
    out, tmp_path, monkeypatch, whole, way, place, fault, kind
):
    switch(monkeypatch, **{place: (fault, AT)})
    with pytest.raises(kind):
        write(out, way, on_error="skip")
    check_names(out, {}, committed=False)
    if kind is SourceChanged:  # a widened type stays in the journal, as it should
        check_resume(out, way, whole(way), monkeypatch, tmp_path, on_error="skip", workers=1)


@pytest.mark.parametrize("way", ["serial", "strided", "sent"])
def test_types_that_conflict_do_not_get_into_one_dataset(out, monkeypatch, whole, way):
    switch(monkeypatch, type=("nothing", 1))
    with pytest.raises(SchemaConflict):
        write(out, way, on_error="skip")
    monkeypatch.delenv(SWITCH)
    try:
        # One process has not written the record that it refused.
        write(out, way, resume=True)
    except (SchemaConflict, RunChanged) as error:
        # Of two, each may have written what the other one refuses: nothing can be resumed.
        assert way != "serial"
        assert "--overwrite" in error.hint
        write(out, way, overwrite=True)
    assert files(out) == whole(way)


# -- trying again ----------------------------------------------------------------------------------

FAILING = {"map": ["raise_error", [5, AT]], "encode": ["raise_error", 10]}  # of shards 1 and 2
RETRIES = [
    ("serial", None),
    ("strided", None),
    ("sent", None),
    ("serial", "gzip"),
    ("strided", "gzip"),
    ("serial", "zlib"),
    ("strided", "zlib"),
]


def shard_files(folder):
    return sorted(path for path in folder.iterdir() if path.name.startswith("t.tfrecord-"))


def identities(folder):
    """What changes when a file is written again, by shard."""
    stats = [os.stat(path) for path in shard_files(folder)]
    return [(stat.st_ino, stat.st_mtime_ns) for stat in stats]


@pytest.mark.parametrize(("way", "compression"), RETRIES)
def test_errors_of_a_finished_dataset_are_tried_again(out, monkeypatch, whole, way, compression):
    switch(monkeypatch, **FAILING)
    write(out, way, on_error="skip", compression=compression, workers=1)
    before = identities(out)
    monkeypatch.delenv(SWITCH)
    notes = []
    write(out, way, compression=compression, retry_errors=True, notes=notes)
    assert any("retrying 3 failed items; 2 of 4 shards" in note for note in notes)
    assert files(out) == whole(way, compression=compression)
    assert not (out / "t.errors.jsonl").exists()
    after = identities(out)
    assert [old == new for old, new in zip(before, after, strict=True)] == [1, 0, 0, 1]


@pytest.mark.parametrize(("way", "compression"), RETRIES)
def test_errors_of_an_unfinished_run_are_tried_again(
    out, tmp_path, monkeypatch, whole, way, compression
):
    switch(monkeypatch, **FAILING, load=("raise_changed", 15))
    with pytest.raises((SourceChanged, CallableError)):
        write(out, way, on_error="skip", compression=compression)
    assert published(out) == []
    monkeypatch.delenv(SWITCH)
    notes = []
    write(out, way, compression=compression, retry_errors=True, notes=notes)
    assert resumed_from(notes)[1] > 0 or way == "sent"
    assert files(out) == whole(way, compression=compression)
    assert sorted(os.listdir(out)) == published(out)


def test_errors_that_are_still_there_are_listed_again(out, monkeypatch, whole):
    switch(monkeypatch, **FAILING)
    write(out, "serial", on_error="skip")
    write(out, "strided", on_error="skip", retry_errors=True)
    assert files(out) == whole("strided", faults=FAILING)


@pytest.mark.parametrize("way", ["serial", "strided"])
@pytest.mark.parametrize(("place", "at"), [("map", AT), ("append", 1), ("publish", 1)])
@pytest.mark.parametrize("again", ["resume", "retry_errors"])
def test_a_fault_while_errors_are_tried_again(
    out, tmp_path, monkeypatch, whole, way, place, at, again
):
    switch(monkeypatch, **FAILING)
    write(out, "serial", on_error="skip")
    old = files(out)
    switch(monkeypatch, **{place: ("kill", at)})
    if way == "serial" or place == "publish":
        code, _ = forked(lambda: write(out, way, retry_errors=True))
        assert code == -signal.SIGKILL
    else:
        with pytest.raises(WorkerDied):
            write(out, way, retry_errors=True)
    if place != "publish":
        assert files(out) == old  # it can be read until the new one is whole
    monkeypatch.delenv(SWITCH)
    write(out, "serial", **{again: True})
    assert files(out) == whole(way)
    assert sorted(os.listdir(out)) == published(out)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_several_faults_while_errors_are_tried_again(out, monkeypatch, whole, compression):
    switch(monkeypatch, **FAILING)
    write(out, "serial", on_error="skip", compression=compression)
    old = files(out)
    stops = [("base", 0), ("encode", AT), ("cut", 0), ("seal", 1), ("commit", 0)]
    if compression:
        stops.remove(("cut", 0))  # so few records are not a member yet that could be gone on with
    for place, at in stops:
        switch(monkeypatch, **{place: ("kill", at)})
        ended = forked(lambda: write(out, "serial", retry_errors=True, compression=compression))
        assert ended == (-signal.SIGKILL, 0)
        assert files(out) == old
    monkeypatch.delenv(SWITCH)
    write(out, "serial", retry_errors=True, compression=compression)
    assert files(out) == whole("serial", compression=compression)
    assert sorted(os.listdir(out)) == published(out)


# -- the program is ended --------------------------------------------------------------------------

SIGNALS = {
    signal.SIGKILL: -signal.SIGKILL,
    signal.SIGINT: 130,
    signal.SIGTERM: 128 + signal.SIGTERM,
    signal.SIGHUP: 128 + signal.SIGHUP,
}
GOES_ON = "nothing was published; the work so far is in"
FINISHES = "all items are written; --resume publishes 't'"
# The moments take turns, so that each is met by every signal, with one worker or with two.
ENDINGS = [
    (number, place, at, workers)
    for i, number in enumerate(SIGNALS)
    for j, (place, at) in enumerate([("map", AT), ("seal", 1), ("publish", 2)])
    for workers in (1, 2)
    if place == "map" or workers == 1 + (i + j) % 2
]


@contextmanager
def command(out, workers, *options, source="injected_faults:data", program=None):
    """The command's process, as a shell starts it."""
    command = [
        sys.executable,
        *(program or ("-c", "import injected_faults; injected_faults.command()")),
    ]
    command += ["write", source, f"{out}/t@{NUM_SHARDS}", "--map", "injected_faults:mapped"]
    command += ["--label", "label", "-j", str(workers), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    with started(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, cwd=out.parent
    ) as process:
        yield process


def until_asleep(process):
    """Wait until the fault has struck."""
    for line in process.stderr:
        if line == b"asleep\n":
            return
    pytest.fail("it has ended before")


def end(process, number):
    """Send a signal, and return what the command says then."""
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PLENTY_S)
    return stderr.decode()


@pytest.mark.parametrize(
    ("number", "place", "at", "workers"),
    ENDINGS,
    ids=[f"{number.name}-{place}-{workers}" for number, place, _, workers in ENDINGS],
)
def test_the_command_is_ended(out, mark, tmp_path, monkeypatch, whole, number, place, at, workers):
    source = "injected_faults:data" if at % 2 else "injected_faults:items"
    way = "serial" if at % 2 else "streamed"
    expected = whole(way, source=source)
    switch(monkeypatch, **{place: ("asleep", at)})
    with command(out, workers, source=source) as process:
        until_asleep(process)
        stderr = end(process, number)
    assert process.returncode == SIGNALS[number]
    until(lambda: not marked(mark))
    check_names(out, expected, committed=place == "publish")
    if number is not signal.SIGKILL:
        said = FINISHES if place == "publish" else GOES_ON
        assert said in stderr
        assert "--resume" in stderr
        assert "Traceback" not in stderr
    check_resume(out, way, expected, monkeypatch, tmp_path, source=source, workers=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_itself_goes_on(out, mark, tmp_path, monkeypatch, whole, workers):
    expected = whole("serial", source="injected_faults:data")
    switch(monkeypatch, map=("asleep", AT))
    with command(out, workers) as process:
        until_asleep(process)
        end(process, signal.SIGTERM)
    monkeypatch.delenv(SWITCH)
    with command(out, workers, "--resume", program=("-m", "shardwriter")) as process:
        _, stderr = process.communicate(timeout=PLENTY_S)
    assert process.returncode == 0
    assert b"resuming" in stderr
    assert files(out) == expected


def test_the_command_without_a_mark_leaves_nothing(out, mark, monkeypatch):
    switch(monkeypatch, map=("asleep", 0))
    with command(out, 2, program=("-m", "shardwriter")) as process:
        until_asleep(process)
        stderr = end(process, signal.SIGINT)
    assert process.returncode == 130
    assert "nothing is left behind" in stderr
    assert os.listdir(out) == []


@pytest.mark.parametrize(
    ("place", "fault", "code", "words"),
    [
        ("map", "raise_error", 1, "the map raised ValueError: boom"),
        ("encode", "kill", 3, "was killed (SIGKILL) at this item"),
        ("append", "raise_full", 3, "no space left on device"),
        ("seal", "end_7", 3, "ended itself with code 7 while it wrote shard"),
    ],
)
def test_the_exit_code_says_whose_fault_it_was(
    out, tmp_path, monkeypatch, whole, place, fault, code, words
):
    switch(monkeypatch, **{place: (fault, AT_CALL.get(place, AT))})
    with command(out, 2) as process:
        _, stderr = process.communicate(timeout=PLENTY_S)
    assert process.returncode == code
    text = " ".join(stderr.decode().split())
    assert words in text
    assert "worker " in text
    assert GOES_ON in text
    expected = whole("serial", source="injected_faults:data")
    assert check_resume(
        out, "serial", expected, monkeypatch, tmp_path, source="injected_faults:data"
    )


def test_too_many_errors_of_the_command(out, tmp_path, monkeypatch, whole):
    faults = {"map": ["raise_error", [2, 5, AT]]}
    switch(monkeypatch, **faults)
    with command(out, 1, "--on-error", "skip", "--max-errors", "2") as process:
        _, stderr = process.communicate(timeout=PLENTY_S)
    assert process.returncode == 1
    assert b"--max-errors" in stderr
    assert b"--resume" in stderr
    options = ["--on-error", "skip", "--max-errors", "3", "--resume"]
    with command(out, 2, *options) as process:
        process.communicate(timeout=PLENTY_S)
    assert process.returncode == 0
    assert files(out) == whole("serial", source="injected_faults:data", faults=faults)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_worker_ends_with_the_program(out, mark, tmp_path, monkeypatch, whole, number):
    switch(monkeypatch, map=("stop", AT))
    with command(out, 2) as process:
        until(lambda: any(map(is_stopped, marked(mark))), PLENTY_S)
        end(process, number)
    assert process.returncode == SIGNALS[number]
    until(lambda: not marked(mark))
    expected = whole("serial", source="injected_faults:data")
    check_resume(out, "serial", expected, monkeypatch, tmp_path, source="injected_faults:data")


def test_a_program_that_is_stopped_and_killed_leaves_no_worker(out, mark, monkeypatch):
    switch(monkeypatch, map=("asleep", AT))
    with command(out, 2) as process:
        until_asleep(process)
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid))
        end(process, signal.SIGKILL)
    until(lambda: not marked(mark))


# -- the lock --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_write_is_refused_while_another_lives_and_goes_on_when_it_was_killed(
    out, mark, tmp_path, monkeypatch, whole, workers
):
    expected = whole("serial", source="injected_faults:data")
    switch(monkeypatch, map=("asleep", AT))
    with command(out, workers) as process:
        until_asleep(process)
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(OutputBusy, match=f"process {process.pid} on "):
                write(out, "serial", source="injected_faults:data", **options)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
        # At once: what the workers still hold is waited for.
        check_resume(out, "serial", expected, monkeypatch, tmp_path, source="injected_faults:data")


# -- how large it is -------------------------------------------------------------------------------


def test_the_size_of_the_table_is_known():
    assert len(set(CASES)) == len(CASES)
    sizes = {
        "faults": len(CASES),
        "who goes on": len(GOING_ON),
        "skipped": len(SKIPS),
        "tried again": len(RETRIES),
        "ended": len(ENDINGS),
    }
    assert sizes == {
        "faults": 159,
        "who goes on": 5,
        "skipped": 5,
        "tried again": 7,
        "ended": 16,
    }
