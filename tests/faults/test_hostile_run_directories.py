"""Run directories that somebody else has made, or changed: one clear error each, or success.

Nothing outside of the output folder is touched, and nothing in it that no run has made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import CallableError, RunError, SchemaConflict, ShardwriterError
from shardwriter.formats import canonical
from shardwriter.storage import LocalStorage
from shardwriter.writing import publication
from shardwriter.writing.index_files import make_index
from shardwriter.writing.journal import signed_line
from shardwriter.writing.options import SKIP, RunOptions
from shardwriter.writing.run_directory import RunDirectory

ALWAYS = RunOptions(mark_s=0)  # a mark after every item
DEEP = b"[" * 100_000 + b"]" * 100_000
HUGE = 2**70


class Numbers:
    """Items 0 to 39; the one at ``broken`` can not be loaded."""

    def __init__(self, broken=None):
        self.broken = broken

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError("boom")
        return {"x": np.arange(index % 5), "label": index % 3}


def drop(features):
    """Leave some items out, so that there is a journal."""
    return SKIP if len(features["x"]) == 4 else features


def write(folder, broken=None, **more):
    return sw.write(Numbers(broken), folder / "t@4", label="label", map=drop, **more)


def digest(folder):
    """Names, kinds and contents of all that is in a folder."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        mode = path.lstat().st_mode
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (mode, hashlib.sha256(data).hexdigest())
    return found


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# -- what is there before --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """Folders with a dataset in each of its states."""
    base = tmp_path_factory.mktemp("templates")
    (base / "nothing").mkdir()
    write(base / "finished")
    with pytest.raises(CallableError):
        write(base / "unfinished", 25, run=ALWAYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publication, "roll_forward", lambda run: None)
        patch.setattr(RunDirectory, "discard", lambda self: None)
        write(base / "committed")
    return base


@pytest.fixture
def place(tmp_path, templates):
    """A folder with a victim, and a function that puts a state of a dataset beside it."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").write_text("years of work")
    (victim / "shard-00000").write_text("looks like ours")

    def put(state):
        shutil.copytree(templates / state, tmp_path / "out")
        run = tmp_path / "out" / ".t.partial"
        run.mkdir(exist_ok=True)
        return run

    return put


# -- what is done to it ----------------------------------------------------------------------------


def linked_folder(run, victim):
    shutil.rmtree(run)
    os.symlink(victim, run)


def dangling_folder(run, victim):
    shutil.rmtree(run)
    os.symlink(victim / "none", run)


def a_file(run, _):
    shutil.rmtree(run)
    run.write_text("a file")


def a_fifo(run, _):
    shutil.rmtree(run)
    os.mkfifo(run)


def foreign_folder(run, victim):
    shutil.rmtree(run)
    shutil.copytree(victim, run)


def linked(name, target="thesis"):
    def change(run, victim):
        (run / name).unlink(missing_ok=True)
        os.symlink(victim / target, run / name)

    return change


def hard_linked(name):
    def change(run, victim):
        (run / name).unlink(missing_ok=True)
        os.link(victim / "thesis", run / name)

    return change


def fifo(name):
    def change(run, _):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return change


def unix_socket(name):
    def change(run, _):
        (run / name).unlink(missing_ok=True)
        before = os.getcwd()
        os.chdir(run)  # its path may be too long for a socket
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(name)
        finally:
            os.chdir(before)

    return change


def folder(name):
    def change(run, _):
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()

    return change


def text(name, data):
    return lambda run, _: (run / name).write_bytes(data)


def sparse(name):
    def change(run, _):
        with open(run / name, "wb") as file:
            file.truncate(1 << 40)

    return change


def gone(name):
    return lambda run, _: (run / name).unlink()


def edited(name, *keys, value):
    """Set a field of a JSON file, or of a signed line."""

    def change(run, _):
        line = (run / name).read_bytes()
        is_signed = line[8:9] == b" "
        told = json.loads(line[9:] if is_signed else line)
        inner = told
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value(inner.get(keys[-1])) if callable(value) else value
        data = signed_line(told) if is_signed else canonical.dumps(told).encode()
        (run / name).write_bytes(data)

    return change


def only(name, value):
    return lambda run, _: (run / name).write_bytes(signed_line(value))


def adopted(*paths):
    def change(run, victim):
        (run / "files.json").write_text(
            json.dumps({"0": [path.format(victim=victim) for path in paths]})
        )

    return change


REFUSED, DONE = "refused", "done"
MARK = "mark-0-0"
INDEX = ".t.partial/index-00000." + "0" * 16
SHARD = ".t.partial/shard-00000." + "0" * 16

# State, change, what becomes of write, --resume and --overwrite.
CASES = {
    # The folder itself.
    "link": ("nothing", linked_folder, REFUSED, REFUSED, REFUSED),
    "dangling link": ("nothing", dangling_folder, REFUSED, REFUSED, REFUSED),
    "file": ("nothing", a_file, REFUSED, REFUSED, REFUSED),
    "fifo": ("nothing", a_fifo, REFUSED, REFUSED, REFUSED),
    "foreign folder": ("nothing", foreign_folder, REFUSED, REFUSED, REFUSED),
    "foreign file": ("nothing", text("notes.txt", b"x"), REFUSED, REFUSED, REFUSED),
    "foreign subfolder": ("nothing", folder("notes"), REFUSED, REFUSED, REFUSED),
    "hidden file": ("nothing", text(".DS_Store", b"x"), DONE, DONE, DONE),
    # Names of a run that are something else.
    "lock is a link": ("nothing", linked("lock"), REFUSED, REFUSED, REFUSED),
    "lock has another name": ("nothing", hard_linked("lock"), REFUSED, REFUSED, REFUSED),
    "lock is a fifo": ("nothing", fifo("lock"), REFUSED, REFUSED, REFUSED),
    "lock is a folder": ("nothing", folder("lock"), REFUSED, REFUSED, REFUSED),
    "shard is a link": ("unfinished", linked("shard-00001"), REFUSED, REFUSED, REFUSED),
    "shard has another name": ("unfinished", hard_linked("shard-00001"), REFUSED, DONE, DONE),
    "shard is a folder": ("unfinished", folder("shard-00001"), REFUSED, REFUSED, REFUSED),
    "mark is a fifo": ("unfinished", fifo(MARK), REFUSED, REFUSED, REFUSED),
    "index is a socket": ("unfinished", unix_socket("index-00001"), REFUSED, REFUSED, REFUSED),
    "run.json is a link": ("unfinished", linked("run.json"), REFUSED, REFUSED, REFUSED),
    "working name is a link": ("unfinished", linked("base.new"), REFUSED, REFUSED, REFUSED),
    "odd journal": ("unfinished", text("journal-0-abc", b"x"), REFUSED, DONE, DONE),
    "journal of a far worker": (
        "unfinished", text("journal-0-999999999", b"x"), REFUSED, DONE, DONE,
    ),
    # The lock's text.
    "lock text with escapes": ("nothing", text("lock", b"\x1b]0;x\x07\n" * 9), DONE, DONE, DONE),
    "lock text with a huge process": (
        "nothing", text("lock", b"process 99999999999 on x"), DONE, DONE, DONE,
    ),
    # run.json.
    "run.json is empty": ("unfinished", text("run.json", b""), REFUSED, REFUSED, DONE),
    "run.json is deep": ("unfinished", text("run.json", DEEP), REFUSED, REFUSED, DONE),
    "run.json is a list": ("unfinished", text("run.json", b"[]"), REFUSED, REFUSED, DONE),
    "run.json is no UTF-8": ("unfinished", text("run.json", b"\xff{}"), REFUSED, REFUSED, DONE),
    "run.json has long digits": (
        "unfinished", text("run.json", b"1" * 10_000), REFUSED, REFUSED, DONE,
    ),
    "run.json is sparse": ("unfinished", sparse("run.json"), REFUSED, REFUSED, DONE),
    "run.json says another source": (
        "unfinished", edited("run.json", "source", value={"x": [1]}), REFUSED, REFUSED, DONE,
    ),
    "run.json has odd options": (
        "unfinished", edited("run.json", "options", value=7), REFUSED, REFUSED, DONE,
    ),
    "run.json has odd replaces": (
        "unfinished", edited("run.json", "replaces", value={"a": 1}), REFUSED, REFUSED, DONE,
    ),
    "run.json is Beam's": (
        "unfinished", edited("run.json", "engine", value="beam"), REFUSED, REFUSED, DONE,
    ),
    # base.
    "base is torn": ("unfinished", text("base", b"0123"), REFUSED, REFUSED, DONE),
    "base is deep": (
        "unfinished", lambda run, _: (run / "base").write_bytes(signed_line(7)[:9] + DEEP),
        REFUSED, REFUSED, DONE,
    ),
    "base is a number": ("unfinished", only("base", 7), REFUSED, REFUSED, DONE),
    "base lacks fields": ("unfinished", only("base", {"attempt": 0}), REFUSED, REFUSED, DONE),
    "base is sparse": ("unfinished", sparse("base"), REFUSED, REFUSED, DONE),
    # Marks and journals: signed lines with other content count as torn.
    "mark is gone": ("unfinished", gone(MARK), DONE, DONE, DONE),
    "mark is null": ("unfinished", only(MARK, None), DONE, DONE, DONE),
    "mark is a list": ("unfinished", only(MARK, [[]]), DONE, DONE, DONE),
    "mark has a short row": (
        "unfinished", edited(MARK, "growing", value=[[0, 1]]), DONE, DONE, DONE,
    ),
    "mark has a far shard": (
        "unfinished", edited(MARK, "growing", value=[[99, 1, 1, 1, 1, None, 1]]),
        REFUSED, DONE, DONE,
    ),
    "mark has huge records": (
        "unfinished",
        edited(MARK, "growing", value=lambda rows: [[r[0], 2**60, *r[2:]] for r in rows]),
        REFUSED, DONE, DONE,
    ),
    "mark has a huge number": ("unfinished", edited(MARK, "number", value=HUGE), DONE, DONE, DONE),
    "mark has no labels": (
        "unfinished", edited(MARK, "learnt", "labels", value={}), DONE, DONE, DONE,
    ),
    "mark has odd labels": (
        "unfinished", edited(MARK, "learnt", "labels", "labels", value=[[1]]), DONE, DONE, DONE,
    ),
    "mark has labels of more shards": (
        "unfinished",
        edited(MARK, "learnt", "labels", "labels", value=[[0, "0", 1, [1] * 99, 0, 0]]),
        REFUSED, DONE, DONE,
    ),
    "mark has labels of a far shard": (
        "unfinished",
        edited(MARK, "learnt", "labels", "labels", value=[[0, "0", 1, {"x": 1}, 0, 0]]),
        REFUSED, DONE, DONE,
    ),
    "mark has a label that is no float": (
        "unfinished",
        edited(MARK, "learnt", "labels", "labels", value=[[{"float": "x"}, "x", 1, [0] * 4, 0, 0]]),
        REFUSED, DONE, DONE,
    ),
    "mark has an odd feature": (
        "unfinished", edited(MARK, "learnt", "features", "x", value={"kind": 7}), DONE, DONE, DONE,
    ),
    "mark has other types": (
        "unfinished", edited(MARK, "learnt", "features", "x", "kind", value="bytes"),
        REFUSED, REFUSED, DONE,
    ),
    "mark has warnings that are numbers": (
        "unfinished", edited(MARK, "learnt", "warnings", value=[1]), DONE, DONE, DONE,
    ),
    "mark has a warning without a message": (
        "unfinished", edited(MARK, "learnt", "warnings", value=[{"code": "x"}]), DONE, DONE, DONE,
    ),
    "mark has an odd place of a warning": (
        "unfinished",
        edited(
            MARK, "learnt", "warnings",
            value=[{"code": "x", "message": "y", "index": i} for i in ("1", 2)],
        ),
        DONE, DONE, DONE,
    ),
    "mark has too many items": (
        "unfinished", edited(MARK, "num_items", value=10**9), REFUSED, DONE, DONE,
    ),
    "journal is null": ("unfinished", only("journal-0-0", None), REFUSED, DONE, DONE),
    "journal is deep": (
        "unfinished", only("journal-0-0", {"types": json.loads("[" * 200 + "]" * 200)}),
        REFUSED, DONE, DONE,
    ),
    "journal has a huge item": (
        "unfinished", only("journal-0-0", {"skip": HUGE, "reason": "dropped"}), REFUSED, DONE, DONE,
    ),
    "journal has an item that is none": (
        "unfinished", only("journal-0-0", {"skip": 40, "reason": "dropped"}), REFUSED, DONE, DONE,
    ),
    "journal has an odd error": (
        "unfinished", only("journal-0-0", {"skip": 1, "reason": "error", "error": "x"}),
        REFUSED, DONE, DONE,
    ),
    "files.json is of a run that goes on": (
        "unfinished", adopted("t.tfrecord-00000-of-00004", INDEX), REFUSED, REFUSED, DONE,
    ),
    "shard is gone": ("unfinished", gone("shard-00002"), REFUSED, DONE, DONE),
    "shard is other bytes": ("unfinished", text("shard-00002", b"x" * 5000), REFUSED, DONE, DONE),
    "index is other bytes": ("unfinished", text("index-00002", b"x" * 5000), REFUSED, DONE, DONE),
    # A publication that was begun.
    "committed": ("committed", lambda run, _: None, REFUSED, DONE, DONE),
    "commit.json is empty": ("committed", text("commit.json", b""), REFUSED, REFUSED, DONE),
    "commit.json is deep": ("committed", text("commit.json", DEEP), REFUSED, REFUSED, DONE),
    "commit.json is a list": ("committed", text("commit.json", b"[]"), REFUSED, REFUSED, DONE),
    "commit.json is a link": ("committed", linked("commit.json"), REFUSED, REFUSED, REFUSED),
    "commit.json is of another name": (
        "committed",
        lambda run, _: (run / "commit.json").write_bytes(
            (run / "commit.json").read_bytes().replace(b'"t', b'"u')
        ),
        REFUSED, REFUSED, DONE,
    ),
    "a shard is gone": ("committed", gone("shard-00002"), REFUSED, REFUSED, DONE),
    "a shard is shorter": ("committed", text("shard-00002", b"x"), REFUSED, REFUSED, DONE),
    "the index is shorter": ("committed", text("index", b"x"), REFUSED, REFUSED, DONE),
    "files.json is a list": ("committed", text("files.json", b"[]"), REFUSED, REFUSED, DONE),
    "files.json is deep": ("committed", text("files.json", DEEP), REFUSED, REFUSED, DONE),
    "files.json leads outside": (
        "committed", adopted("../victim/thesis", INDEX), REFUSED, REFUSED, DONE,
    ),
    "files.json has an absolute path": (
        "committed", adopted("{victim}/thesis", INDEX), REFUSED, REFUSED, DONE,
    ),
    "files.json has a URL": ("committed", adopted("gs://b/x", INDEX), REFUSED, REFUSED, DONE),
    "files.json climbs": (
        "committed", adopted(".t.partial/../../victim/thesis", INDEX), REFUSED, REFUSED, DONE,
    ),
    "files.json has another dataset's shard": (
        "committed", adopted("u.tfrecord-00000-of-00004", INDEX), REFUSED, REFUSED, DONE,
    ),
    "files.json has an index outside": (
        "committed", adopted(SHARD, "../victim/thesis"), REFUSED, REFUSED, DONE,
    ),
}  # fmt: skip


def checked(action):
    """Run something; return what became of it, and the error. A traceback fails the test."""
    try:
        action()
    except ShardwriterError as error:
        assert "\n" not in error.summary
        assert error.exit_code in (2, 3) or isinstance(error, SchemaConflict), error
        assert error.hint
        assert "\n" not in error.hint
        return REFUSED, error
    return DONE, None


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["write", "resume", "overwrite"])
def test_one_clear_error_or_success(tmp_path, place, templates, name, mode):
    state, change, *expected = CASES[name]
    run = place(state)
    victim = tmp_path / "victim"
    change(run, victim)
    before = digest(victim)
    more = {} if mode == "write" else {mode: True}
    became, _ = checked(lambda: write(tmp_path / "out", **more))
    assert became == expected[["write", "resume", "overwrite"].index(mode)]
    assert digest(victim) == before
    assert not any(path.is_symlink() for path in (tmp_path / "out").glob("t*"))
    if became == DONE:
        assert files(tmp_path / "out") == files(templates / "finished")


def new_items():
    return [{"x": np.arange(3), "label": 1}]


OTHERS = {
    "append": lambda out: sw.append(new_items(), out / "t"),
    "append and overwrite": lambda out: sw.append(new_items(), out / "t", overwrite=True),
    "index": lambda out: make_index(str(out / "t")),
    "reshard": lambda out: sw.reshard(out / "t", out / "t@2", overwrite=True),
}


@pytest.mark.parametrize("command", OTHERS)
@pytest.mark.parametrize(
    "change", [linked_folder, foreign_folder, a_file, linked("lock"), fifo("lock"), folder("base")]
)
def test_other_commands_touch_nothing_else(tmp_path, place, command, change):
    run = place("finished")
    victim = tmp_path / "victim"
    change(run, victim)
    before = digest(victim), files(tmp_path / "out")
    foreign = digest(run)
    became, _ = checked(lambda: OTHERS[command](tmp_path / "out"))
    assert became == REFUSED
    assert (digest(victim), files(tmp_path / "out")) == before
    assert digest(run) == foreign


# -- what to do then -------------------------------------------------------------------------------


def test_a_foreign_folder_is_said_to_be_one_and_what_to_do(tmp_path, place):
    (place("nothing") / "notes.txt").write_text("x")
    _, error = checked(lambda: write(tmp_path / "out", overwrite=True))
    assert "holds a file of another program, 'notes.txt'" in error.message
    assert error.path == str(tmp_path / "out" / ".t.partial")
    assert "move its files elsewhere" in error.hint
    assert os.listdir(tmp_path / "out" / ".t.partial") == ["notes.txt"]


def test_a_commit_that_can_not_be_read_is_started_again_while_nothing_is_published(tmp_path, place):
    run = place("committed")
    (run / "commit.json").write_bytes(b"{")
    _, error = checked(lambda: write(tmp_path / "out"))
    assert "a publication was begun" in error.message
    assert "nothing was published: use --overwrite to start over" in error.hint
    write(tmp_path / "out", overwrite=True)
    assert not run.exists()


def test_a_set_that_may_be_half_published_is_not_taken_for_whole(tmp_path, place):
    run = place("committed")
    for shard in (0, 1):
        name = f"t.tfrecord-{shard:05d}-of-00004"
        os.replace(run / f"shard-{shard:05d}", tmp_path / "out" / name)
    (run / "commit.json").write_bytes(b"{")
    before = digest(tmp_path / "out")
    for more in ({}, {"resume": True}, {"overwrite": True}):
        became, error = checked(lambda more=more: write(tmp_path / "out", **more))
        assert became == REFUSED
        assert f"remove {run} and {tmp_path}/out/t.tfrecord-*-of-00004" in error.hint
    for _ in range(2):
        (run / "lock").unlink(missing_ok=True)
        before.pop(".t.partial/lock", None)
        assert {k: v for k, v in digest(tmp_path / "out").items() if k in before} == before
    shutil.rmtree(run)
    for path in (tmp_path / "out").glob("t.tfrecord-*-of-00004"):
        path.unlink()
    write(tmp_path / "out")


def test_a_shard_that_was_adopted_is_proven_before_it_is_moved(tmp_path, place):
    run = place("committed")
    name = "shard-00000." + "0" * 16
    data = bytearray((run / "shard-00000").read_bytes())
    data[20] ^= 1
    (run / name).write_bytes(data)
    shutil.copyfile(run / "index-00000", run / ("index-00000." + "0" * 16))
    adopted(SHARD, INDEX)(run, None)
    became, error = checked(lambda: write(tmp_path / "out", resume=True))
    assert became == REFUSED
    assert "is not the committed one" in error.message
    data[20] ^= 1
    (run / name).write_bytes(data)
    write(tmp_path / "out", resume=True)


READERS = {
    "open": lambda out: sw.open(out / "t"),
    "stats": lambda out: sw.stats(str(out / "t")),
    "stats of the folder": lambda out: sw.stats(str(out)),
    "verify": lambda out: sw.verify(out / "t"),
    "open by manifest": lambda out: sw.open(out / "t@4"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("moved", [0, 2, 4])
def test_a_reader_during_a_publication_is_told_to_try_again(tmp_path, place, reader, moved):
    run = place("committed")
    for shard in range(moved):
        name = f"t.tfrecord-{shard:05d}-of-00004"
        os.replace(run / f"shard-{shard:05d}", tmp_path / "out" / name)
    (tmp_path / "out" / "t.tfrecord-00000-of-00002").write_bytes(b"")  # of the dataset before
    with (
        RunDirectory.claim(str(tmp_path / "out"), "t", LocalStorage()),
        pytest.raises(RunError, match="is being replaced right now by process") as caught,
    ):
        READERS[reader](tmp_path / "out")
    assert caught.value.exit_code == 3
    assert caught.value.hint == "try again in a moment"


def test_a_reader_after_a_publication_that_was_killed_is_told_how_to_finish_it(tmp_path, place):
    run = place("committed")
    os.replace(run / "shard-00000", tmp_path / "out" / "t.tfrecord-00000-of-00004")
    (tmp_path / "out" / "t.tfrecord-00000-of-00002").write_bytes(b"")
    with pytest.raises(RunError, match="was interrupted") as caught:
        sw.open(tmp_path / "out" / "t")
    assert "--resume" in caught.value.hint
    write(tmp_path / "out", resume=True)
    assert len(sw.open(tmp_path / "out" / "t")) == 32


def test_a_page_does_not_write_through_a_link(tmp_path, place, monkeypatch):
    place("finished")
    thesis = tmp_path / "victim" / "thesis"
    monkeypatch.setattr(os, "getpid", lambda: 7)
    os.symlink(thesis, tmp_path / ".page.html.7.partial")
    from shardwriter.report.page import write_page

    report = sw.stats(str(tmp_path / "out" / "t")).to_json()
    with pytest.raises(RunError, match="symbolic link"):
        write_page(report, tmp_path / "page.html")
    assert thesis.read_text() == "years of work"
