"""Disks that fail and power that is cut: what a run then says, and what can be gone on with."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import sys
from dataclasses import dataclass

import pytest
from storage_doubles import (
    Crash,
    FailingStorage,
    FewItems,
    Items,
    PowerCutStorage,
    files,
    is_proven,
    stream,
    write,
)

from shardwriter.errors import OutputExists, StorageError
from shardwriter.formats import compression as packing

COMPRESSIONS = ["none", "gzip", "zlib"]


@pytest.fixture(autouse=True)
def small_members(monkeypatch):
    """Have several members in shards of a kilobyte."""
    monkeypatch.setattr(packing, "MEMBER_BYTES", 300)
    monkeypatch.setattr(packing, "_MIN_MEMBER_BYTES", 1)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


class Place:
    """Makes folders that are alike."""

    def __init__(self, tmp_path):
        self._tmp_path = tmp_path
        self._number = 0

    def new(self, like=None):
        self._number += 1
        folder = self._tmp_path / str(self._number)
        if like is None:
            folder.mkdir()
        else:
            shutil.copytree(like, folder)
        return folder


def ended(folder, **options):
    """What a run writes that nothing happens to."""
    storage = FailingStorage()
    write(folder, storage, **options)
    return files(folder), storage.calls


def kill(folder, crash_at, storage=None, **options):
    """End a run in front of a call; return whether it came so far."""
    storage = storage or PowerCutStorage(folder)
    storage.begin(crash_at)
    try:
        write(folder, storage, **options)
    except Crash:
        return True
    finally:
        storage.begin()
    return False


def unfinished(folder, *, overwrite=False, **options):
    """Leave a run that was killed twice, so that not all that it knows is of its last attempt."""
    assert kill(folder, 110, overwrite=overwrite, **options)
    assert kill(folder, 60, resume=True, **options)


def go_on(folder, old, again="resume", **options):
    """Finish a run, or write over the dataset that is there, which must be whole then."""
    try:
        write(folder, **options, **{again: True})
    except OutputExists:
        assert old
        assert files(folder) == old
        assert is_proven(folder)
        write(folder, **options, overwrite=True)


def check_between(folder, old, new):
    """A manifest that is there is whole, and the old set goes only where the new one comes."""
    found = files(folder)
    committed = (folder / ".t.partial" / "commit.json").exists()
    if (folder / "t.manifest.json").exists():
        # Other generations are cleaned away when the new set is there.
        assert is_proven(folder, but={"stale-generation"})
        assert (old and old.items() <= found.items()) or new.items() <= found.items()
    elif old:
        assert committed, "the old set is gone, and the new one is not on its way"
    elif not committed:
        assert not found


# -- a disk that says no ---------------------------------------------------------------------------

MODES = [
    {"code": errno.ENOSPC, "lasting": True},
    {"code": errno.EIO},
    {"code": errno.EDQUOT, "how": "half"},
    {"code": errno.EIO, "how": "after"},
]


def fail_everywhere(place, start, old, new, num_calls, attempts, modes, **options):
    """Fail a run at every call, and go on with it."""
    num_failed = 0
    for fail_at in range(num_calls):
        mode = modes[fail_at % len(modes)]
        folder = place.new(start)
        storage = FailingStorage(fail_at, **mode)
        try:
            write(folder, storage, **options, **attempts)
        except StorageError as error:
            num_failed += 1
            assert storage.has_failed
            assert error.path is not None
            assert os.strerror(mode["code"]).lower() in str(error).lower()
            check_between(folder, old, new)
            go_on(folder, old, **options)
        assert files(folder) == new, (fail_at, mode, storage.calls[-3:])
        assert is_proven(folder)
        assert not (folder / ".t.partial").exists()
        shutil.rmtree(folder)
    assert num_failed > 0.9 * num_calls


@pytest.mark.parametrize(("turn", "compression"), [*enumerate(COMPRESSIONS)])
def test_a_call_that_fails_is_an_error_and_the_run_can_be_gone_on_with(place, compression, turn):
    new, calls = ended(place.new(), compression=compression)
    modes = MODES[turn:] + MODES[:turn]
    fail_everywhere(place, None, {}, new, len(calls), {}, modes, compression=compression)


@pytest.mark.parametrize(("turn", "out"), [(0, "t@2"), (3, "t@3")])
def test_a_call_that_fails_leaves_the_old_set_or_the_new_one(place, turn, out):
    start = place.new()
    write(start, data=FewItems(), out=out)
    old = files(start)
    # Without a mark after every item: what is of interest is the beginning and the end.
    new, calls = ended(place.new(start), overwrite=True, mark_s=60)
    modes = MODES[turn:] + MODES[:turn]
    fail_everywhere(place, start, old, new, len(calls), {"overwrite": True}, modes, mark_s=60)


@pytest.mark.parametrize(("turn", "compression"), [*enumerate(COMPRESSIONS)])
def test_a_resume_can_fail_at_any_call_and_be_resumed(place, compression, turn):
    start = place.new()
    unfinished(start, compression=compression)
    new, calls = ended(place.new(start), compression=compression, resume=True)
    assert new == ended(place.new(), compression=compression)[0]
    modes = MODES[turn:] + MODES[:turn]
    fail_everywhere(
        place, start, {}, new, len(calls), {"resume": True}, modes, compression=compression
    )


def test_discarding_a_run_can_fail_at_any_call(place):
    start = place.new()
    unfinished(start)
    new, _ = ended(place.new(start), overwrite=True)
    fail_everywhere(place, start, {}, new, 60, {"overwrite": True}, MODES)


@pytest.mark.parametrize("fault", ["shard", "index"])
@pytest.mark.parametrize(("method", "how"), [("write", "half"), ("sync", "before")])
def test_a_worker_whose_disk_fails_ends_the_run_and_a_resume_goes_on(place, fault, method, how):
    new, _ = ended(place.new())
    folder = place.new()
    file = f"{fault}-00001"
    storage = FailingStorage(1 if method == "write" else 0, method=method, file=file, how=how)
    with pytest.raises(StorageError, match="no space") as caught:
        write(folder, storage, workers=2)
    assert os.path.basename(caught.value.path) == file
    assert not multiprocessing.active_children()
    assert files(folder) == {}
    write(folder, resume=True, workers=2)
    assert files(folder) == new
    assert is_proven(folder)


def test_a_worker_that_can_not_mark_ends_the_run(place):
    new, _ = ended(place.new())
    for method, file in [("publish", "mark-0-1"), ("create", "journal-0-0")]:
        folder = place.new()
        storage = FailingStorage(0, errno.EIO, method=method, file=file)
        with pytest.raises(StorageError, match="input/output error"):
            write(folder, storage, workers=2)
        write(folder, resume=True)
        assert files(folder) == new


def test_discarding_can_be_cut_off_and_nobody_goes_on_with_what_is_left(place):
    new, _ = ended(place.new())
    start = place.new()
    unfinished(start)
    cuts = [(crash_at, None) for crash_at in range(24)]
    cuts += [(crash_at, seed) for crash_at in range(8, 14) for seed in range(12)]
    for crash_at, seed in cuts:
        half_deleted = place.new(start)
        storage = PowerCutStorage(half_deleted)
        assert kill(half_deleted, crash_at, storage, overwrite=True)
        if seed is not None:
            storage.cut(random.Random(f"{crash_at} {seed}"))
        for second in (20, 50):
            folder = place.new(half_deleted)
            assert kill(folder, second, resume=True)
            go_on(folder, {})
            assert files(folder) == new, (crash_at, seed, second)
            shutil.rmtree(folder)


def test_a_ledger_that_an_attempt_has_left_is_not_published_by_one_without_errors(
    place, monkeypatch
):
    folder = place.new()
    _, calls = ended(place.new())
    assert kill(folder, calls.index(("create", "commit.json.new")))
    assert (folder / ".t.partial" / "with-ledger").exists()
    monkeypatch.setattr(Items, "broken", frozenset())
    new, _ = ended(place.new())
    write(folder, retry_errors=True)
    assert files(folder) == new
    assert "t.errors.jsonl" not in new


@pytest.mark.parametrize("file", ["dali", "dali-00000", "dali-00001", "commit.json.new"])
def test_idx_files_that_an_attempt_has_left_are_not_published_by_one_that_wants_none(place, file):
    folder = place.new()
    new, _ = ended(place.new())
    _, calls = ended(place.new(), dali_index=True)
    place_of = calls.index(("publish" if file == "dali" else "create", file))
    assert kill(folder, place_of + 1, dali_index=True)
    write(folder, resume=True)
    assert files(folder) == new


def test_shards_that_another_backend_begins_again_are_trusted_by_nobody(place, monkeypatch):
    new, _ = ended(place.new())
    folder = place.new()
    unfinished(folder)
    index = folder / ".t.partial" / "index-00000"
    rows = index.read_bytes()

    def end(*_args, **_options):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["shardwriter.writing.write"], "require_tensorflow", lambda: None)
        patch.setattr("shardwriter.storage.TensorFlowRecordWriter", end)
        with pytest.raises(Crash):
            write(folder, resume=True, backend="tensorflow")
    # It writes a file from its first byte on, and syncs it at the end only: before that there may
    # be anything in it, and in the index what was there.
    index.write_bytes(rows)
    with open(folder / ".t.partial" / "shard-00000", "r+b") as file:
        file.write(bytes(40))
    write(folder, resume=True)
    assert files(folder) == new


# -- power that is cut -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """What is written when the power goes.

    Attributes:
        compression: Of the shards.
        data: The source; None for what is indexed.
        old: Where another dataset is that is written over.
        unfinished: Whether a run of the same job is there that was stopped.
        finished: Whether its dataset is.
        mended: Whether no item gives an error any more.
        run: How it is written: resume, overwrite, or retry_errors.
        again: How it is gone on with.
    """

    compression: str = "none"
    data: object = None
    old: str | None = None
    unfinished: bool = False
    finished: bool = False
    mended: bool = False
    run: str | None = None
    again: str = "resume"

    @property
    def options(self):
        return {"compression": self.compression, "data": self.data}

    @property
    def how(self):
        return {self.run: True} if self.run else {}


RETRY = "retry_errors"
CUTS = {
    "plain": Cut(),
    "gzip": Cut("gzip"),
    "zlib": Cut("zlib"),
    "stream": Cut(data=stream),
    "gzip stream": Cut("gzip", stream),
    "zlib stream": Cut("zlib", stream),
    "over others": Cut(old="t@2", run="overwrite"),
    "over gzip": Cut("gzip", old="t@3", run="overwrite"),
    "over its like": Cut(old="t@3", run="overwrite"),
    "over unfinished": Cut(unfinished=True, run="overwrite"),
    "over both": Cut(old="t@2", unfinished=True, run="overwrite"),
    "resume": Cut(unfinished=True, run="resume"),
    "resume gzip": Cut("gzip", unfinished=True, run="resume"),
    "resume zlib stream": Cut("zlib", stream, unfinished=True, run="resume"),
    "mend": Cut(unfinished=True, mended=True, run=RETRY, again=RETRY),
    "mend gzip stream": Cut("gzip", stream, unfinished=True, mended=True, run=RETRY, again=RETRY),
    "mend zlib": Cut("zlib", unfinished=True, mended=True, run=RETRY, again=RETRY),
    "mend what is finished": Cut(finished=True, mended=True, run=RETRY, again=RETRY),
    "mend finished gzip": Cut("gzip", stream, finished=True, mended=True, run=RETRY, again=RETRY),
}
CUTS_EACH = 20


class Story:
    """Folders in which the same is written, and what becomes of it."""

    def __init__(self, place, cut, monkeypatch):
        self._place = place
        self._cut = cut
        self._start = place.new()
        if cut.old:
            write(self._start, data=FewItems(), out=cut.old)
        if cut.finished:
            write(self._start, **cut.options)
        self._old = files(self._start)
        if cut.unfinished:
            unfinished(self._start, **cut.options, overwrite=bool(cut.old))
        if cut.mended:
            monkeypatch.setattr(Items, "broken", frozenset())
        self._new, _ = ended(place.new(), **cut.options)
        whole = place.new(self._start)
        storage = PowerCutStorage(whole)
        write(whole, storage, **cut.options, **cut.how)
        assert files(whole) == self._new
        self.num_calls = len(storage.calls)
        self.calls = [(method, os.path.basename(path)) for method, path in storage.calls]

    def tell(self, seed, crash_at):
        """Cut the power in front of a call, perhaps once more later on, and go on to the end."""
        print(f"seed {seed!r}, in front of call {crash_at}")  # shown where it fails
        rng = random.Random(seed)
        cut, new = self._cut, self._new
        folder = self._place.new(self._start)
        told = cut_once(folder, cut, rng, max(0, crash_at), cut.how, self._old, new)
        while rng.random() < 0.5:
            again = rng.randint(0, self.num_calls // 2)
            told += cut_once(folder, cut, rng, again, {cut.again: True}, self._old, new)
        go_on(folder, self._old, cut.again, **cut.options)
        assert files(folder) == new, told
        assert is_proven(folder)
        assert not (folder / ".t.partial").exists()
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", CUTS)
def test_after_a_power_cut_a_run_is_gone_on_with_and_nothing_is_wrong(place, name, monkeypatch):
    story = Story(place, CUTS[name], monkeypatch)
    for seed in range(CUTS_EACH):
        crash_at = random.Random(f"where {name} {seed}").randint(0, story.num_calls)
        story.tell(f"{name} {seed}", crash_at)


@pytest.mark.parametrize("name", ["plain", "over others", "over its like", "mend"])
def test_the_power_can_be_cut_at_any_call_of_a_publication(place, name, monkeypatch):
    story = Story(place, CUTS[name], monkeypatch)
    for last in range(60):
        for seed in range(2):
            story.tell(f"{name} {last} {seed}", story.num_calls - last)


@pytest.mark.parametrize("name", ["mend", "mend gzip stream"])
def test_what_a_commit_speaks_of_is_on_the_disk_before_it(place, name, monkeypatch):
    story = Story(place, CUTS[name], monkeypatch)
    committed = story.calls.index(("publish", "commit.json.new")) + 1
    assert story.calls[committed] == ("sync_directory", ".t.partial")
    for seed in range(40):
        story.tell(f"{name} {seed}", committed)


def cut_once(folder, cut, rng, crash_at, how, old, new):
    """Write until the power goes; now and then a process dies first, and another goes on."""
    storage = PowerCutStorage(folder)
    runs = [(crash_at, how)]
    if rng.random() < 0.3:
        runs.append((rng.randint(0, max(1, crash_at)), {cut.again: True}))
    story = []
    ended = False
    for crash_at, how in runs:
        try:
            ended = not kill(folder, crash_at, storage, **cut.options, **how)
        except OutputExists:
            assert files(folder) == old
        story.append((crash_at, how, ended))
    storage.cut(rng)
    if ended:  # what was said to be there is there
        assert files(folder) == new, story
    check_between(folder, old, new)
    return story
