"""Resume a stopped run: what is resumed, what is refused, and the notes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import (
    CallableError,
    ManifestError,
    OptionError,
    OutputExists,
    RunChanged,
    TooManyErrors,
)
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.writing.options import RunOptions

ALWAYS = RunOptions(mark_s=0)  # a mark after every item


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


class Numbers:
    """Items 0 to n - 1; the one at ``broken`` can not be loaded. Keeps what was loaded."""

    def __init__(self, count=40, broken=None):
        self.count, self.broken, self.loaded = count, broken, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError("boom")
        self.loaded.append(index)
        return {"x": np.arange(index % 5), "label": index % 3}


def stop(tmp_path, out="t@4", data=None, broken=25, **more):
    """Write until an item fails; return the folder."""
    data = data or Numbers(broken=broken)
    with pytest.raises(CallableError):
        sw.write(data, tmp_path / "out" / out, label="label", run=ALWAYS, **more)
    return tmp_path / "out"


def whole(tmp_path, out="t@4", data=None, **more):
    """The files of a run that was never stopped."""
    sw.write(data or Numbers(), tmp_path / "whole" / out, label="label", **more)
    return files(tmp_path / "whole")


# -- what is resumed -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("out", ["t@4", "t@4.gz", "t@1", "t@70"])
def test_a_resumed_run_ends_as_one_that_was_never_stopped(tmp_path, out, workers):
    folder = stop(tmp_path, out)
    sw.write(Numbers(), folder / out, label="label", resume=True, workers=workers)
    assert files(folder) == whole(tmp_path, out)
    assert not (folder / ".t.partial").exists()


def test_what_was_done_is_not_done_again(tmp_path):
    folder = stop(tmp_path)
    data = Numbers()
    sw.write(data, folder / "t@4", label="label", resume=True)
    # The last record of each of the four shards is made again to be compared.
    assert sorted(data.loaded) == sorted([*range(21, 25), *range(25, 40)])


def test_a_note_says_how_much_is_resumed(tmp_path):
    folder = stop(tmp_path)
    notes = []
    sw.write(Numbers(), folder / "t@4", label="label", resume=True, notify=notes.append)
    assert notes == [
        "resuming: 25 of 40 items already done (25 records, 765 bytes), 0 of 4 shards complete"
    ]


def test_a_note_says_that_a_stream_is_read_again(tmp_path):
    maps = []

    def stream():
        return iter(range(40))

    def look(item):
        maps.append(item)
        if item == 25 and len(maps) == 26:
            raise ValueError("boom")
        return {"label": item}

    with pytest.raises(CallableError):
        sw.write(stream, tmp_path / "out/t@4", map=look, run=ALWAYS)
    notes = []
    sw.write(stream, tmp_path / "out/t@4", map=look, resume=True, notify=notes.append)
    assert any("are read again and skipped" in note for note in notes)
    assert sorted(maps[26:]) == sorted([*range(21, 25), *range(25, 40)])
    found = [
        sw.decode_example(record)["label"].tolist()
        for shard in range(4)
        for record in read_records(tmp_path / f"out/t.tfrecord-{shard:05d}-of-00004")
    ]
    assert found == [[i] for shard in range(4) for i in range(shard, 40, 4)]


def test_a_run_can_be_stopped_again_and_again(tmp_path):
    folder = stop(tmp_path, broken=3)
    for broken in (9, 10, 20, 39):
        with pytest.raises(CallableError):
            sw.write(Numbers(broken=broken), folder / "t@4", label="label", resume=True, run=ALWAYS)
    sw.write(Numbers(), folder / "t@4", label="label", resume=True)
    assert files(folder) == whole(tmp_path)


def test_a_run_that_is_short_leaves_nothing(tmp_path):
    with pytest.raises(CallableError):
        sw.write(Numbers(broken=3), tmp_path / "t@4")
    assert os.listdir(tmp_path) == []


def test_with_nothing_there_resume_begins(tmp_path):
    sw.write(Numbers(), tmp_path / "out/t@4", label="label", resume=True)
    assert files(tmp_path / "out") == whole(tmp_path)


def test_a_finished_dataset_of_the_same_job_is_left_as_it_is(tmp_path):
    first = sw.write(Numbers(), tmp_path / "t@4")
    data, notes = Numbers(), []
    assert sw.write(data, tmp_path / "t@4", resume=True, notify=notes.append) == first
    assert data.loaded == [36, 37, 38, 39]  # the last record of each shard is made again
    assert notes == ["nothing to do: 't' is finished, and of this job"]
    assert not (tmp_path / ".t.partial").exists()


def test_a_finished_dataset_of_another_job_is_refused(tmp_path):
    sw.write(Numbers(), tmp_path / "t@4")
    before = files(tmp_path)
    with pytest.raises(OutputExists, match="of another job"):
        sw.write(Numbers(41), tmp_path / "t@4", resume=True)
    assert files(tmp_path) == before


def test_a_finished_dataset_that_lost_a_shard_is_not_done(tmp_path):
    sw.write(Numbers(), tmp_path / "t@4")
    (tmp_path / "t.tfrecord-00002-of-00004").unlink()
    with pytest.raises(ManifestError, match="no bytes"):
        sw.write(Numbers(), tmp_path / "t@4", resume=True)


def test_an_overwriting_run_is_resumed_and_the_old_dataset_stays_until_then(tmp_path):
    folder = tmp_path / "out"
    sw.write([b"old"] * 7, folder / "t@3")
    old = files(folder)
    stop(tmp_path, overwrite=True)
    assert files(folder) == old
    sw.write(Numbers(), folder / "t@4", label="label", resume=True)
    assert files(folder) == whole(tmp_path)


def test_a_run_that_may_overwrite_and_came_to_nothing_begins_again(tmp_path):
    sw.write([b"old"] * 7, tmp_path / "out/t@3")

    pid = os.fork()
    if not pid:
        sw.write(dying, tmp_path / "out/t@4", overwrite=True)
    os.waitpid(pid, 0)
    assert (tmp_path / "out/.t.partial/run.json").exists()
    sw.write(dying, tmp_path / "out/t@4", resume=True)
    assert sw.verify(tmp_path / "out/t").num_defects == 0
    assert len(files(tmp_path / "out")) == 6


def dying():
    """Ends the process of the first run, and of no other."""
    if os.getppid() == TESTER:
        os._exit(7)
    yield {"x": 1}


TESTER = os.getpid()


def test_an_unfinished_run_is_refused_without_a_word_on_what_to_do_with_it(tmp_path):
    folder = stop(tmp_path)
    with pytest.raises(OutputExists, match="unfinished run") as caught:
        sw.write(Numbers(), folder / "t@4")
    assert "--resume" in (caught.value.hint or "")
    sw.write(Numbers(), folder / "t@4", label="label", overwrite=True)
    assert files(folder) == whole(tmp_path)


def test_the_tensorflow_backend_begins_its_shards_again(tmp_path, tf):
    folder = stop(tmp_path)
    run = RunOptions(resume=True, backend="tensorflow")
    sw.write(Numbers(), folder / "t@4", label="label", run=run)
    assert files(folder) == whole(tmp_path)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"limit": 39}, "--limit"),
        ({"shuffle_seed": 1}, "--shuffle or --seed"),
        ({"label": "x"}, "--label"),
        ({"schema": "label=float"}, "--schema"),
        ({"filter": bool}, "--filter"),
        ({"map": dict}, "--map"),
    ],
)
def test_another_option_that_decides_bytes_is_refused_by_name(tmp_path, more, field):
    folder = stop(tmp_path)
    with pytest.raises(RunChanged) as caught:
        sw.write(Numbers(), folder / "t@4", resume=True, **{"label": "label", **more})
    assert field in caught.value.message
    assert f"{next(iter(more))}=" in str(caught.value)
    assert caught.value.exit_code == 2
    sw.write(Numbers(), folder / "t@4", label="label", resume=True)  # nothing was lost by it
    assert files(folder) == whole(tmp_path)


@pytest.mark.parametrize("out", ["t@5", "t@4.gz"])
def test_other_shards_are_refused_by_name(tmp_path, out):
    folder = stop(tmp_path)
    with pytest.raises(RunChanged, match=r"number of shards|compression"):
        sw.write(Numbers(), folder / out, label="label", resume=True)


def test_a_longer_source_is_refused(tmp_path):
    folder = stop(tmp_path)
    with pytest.raises(RunChanged, match=r"the source has changed.*num_items"):
        sw.write(Numbers(41), folder / "t@4", label="label", resume=True)


def test_a_table_that_was_written_to_is_refused(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("label,x\n" + "".join(f"{i},{i}\n" for i in range(40)))

    def boom(features):
        if features["label"] == 30:
            raise ValueError("boom")
        return features

    with pytest.raises(CallableError):
        sw.write(table, tmp_path / "t@2", map=boom, run=ALWAYS)
    times = os.stat(table)
    os.utime(table, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    with pytest.raises(RunChanged, match="the source has changed"):
        sw.write(table, tmp_path / "t@2", map=boom, resume=True)


def test_other_code_of_a_map_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = tmp_path / "a_map_of_a_test.py"
    module.write_text("def look(item):\n    1 / (30 - item['label'])\n    return item\n")

    def write(**more):
        sys.modules.pop("a_map_of_a_test", None)
        function = __import__("a_map_of_a_test").look
        sw.write([{"label": i} for i in range(40)], tmp_path / "t@2", map=function, **more)

    with pytest.raises(CallableError):
        write(run=ALWAYS)
    module.write_text("def look(item):\n    return item\n")
    with pytest.raises(RunChanged, match=r"the code of map= has changed.*map\.sha256"):
        write(resume=True)
    sys.modules.pop("a_map_of_a_test", None)


@pytest.mark.parametrize("stream", [False, True])
def test_records_that_come_out_otherwise_are_found(tmp_path, stream):
    library = {"version": 1}

    def look(item):
        if item == 25 and library["version"] == 1:
            raise ValueError("boom")
        return {"x": item * library["version"]}

    data = (lambda: iter(range(40))) if stream else list(range(40))
    with pytest.raises(CallableError):
        sw.write(data, tmp_path / "t@4", map=look, run=ALWAYS)
    library["version"] = 2
    with pytest.raises(RunChanged, match="a different record now") as caught:
        sw.write(data, tmp_path / "t@4", map=look, resume=True)
    assert caught.value.index in range(21, 25)
    assert not (tmp_path / "t.manifest.json").exists()


def test_a_note_says_that_a_run_with_an_iterator_can_not_be_resumed(tmp_path):
    def items():
        yield from ({"x": i} for i in range(10))
        raise ValueError("boom")

    notes = []
    with pytest.raises(CallableError):
        sw.write(items(), tmp_path / "t@4", run=ALWAYS, notify=notes.append)
    assert notes == ["an iterator can be read once: should this run be stopped, it is lost"]
    assert os.listdir(tmp_path) == []  # there is nothing that anybody could go on with
    sw.write(iter([{"x": 1}]), tmp_path / "t@4", resume=True)
    with pytest.raises(OptionError, match="read only once"):
        sw.write(iter([{"x": 1}]), tmp_path / "t@4", resume=True)


def test_resuming_and_overwriting_exclude_each_other(tmp_path):
    with pytest.raises(OptionError, match="exclude each other"):
        sw.write([b"x"], tmp_path / "t@1", resume=True, overwrite=True)


# -- types and counts over attempts ----------------------------------------------------------------


def test_a_type_that_was_met_before_binds_what_comes_after(tmp_path):
    changed = []

    def look(item):
        if item == 20 and not changed:
            changed.append(True)
            raise ValueError("boom")
        return {"x": item if item < 20 else float(item)}

    with pytest.raises(CallableError):
        sw.write(list(range(40)), tmp_path / "t@4", map=look, run=ALWAYS)
    with pytest.raises(sw.ShardwriterError, match=r"float here, int64 in item 0"):
        sw.write(list(range(40)), tmp_path / "t@4", map=look, resume=True)


def test_labels_and_shapes_are_counted_once(tmp_path):
    folder = stop(tmp_path, "t@3", broken=38)
    sw.write(Numbers(), folder / "t@3", label="label", resume=True, workers=2)
    manifest = json.loads((folder / "t.manifest.json").read_text())
    assert manifest["labels"]["counts"] == {"0": 14, "1": 13, "2": 13}
    assert manifest["schema"]["features"]["x"]["present"] == 40


# -- items that give an error ----------------------------------------------------------------------


class Flaky(Numbers):
    """Items of which some fail as long as a file is there."""

    def __init__(self, switch, bad=(3, 17, 30)):
        super().__init__()
        self.switch, self.bad = switch, bad

    def __getitem__(self, index):
        if index in self.bad and os.path.exists(self.switch):
            raise ValueError("boom")
        return super().__getitem__(index)


@pytest.fixture
def switch(tmp_path):
    path = tmp_path / "switch"
    path.touch()
    return path


def ledger(folder):
    text = (folder / "t.errors.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_errors_leave_gaps_and_are_listed(tmp_path, switch):
    manifest = sw.write(Flaky(switch), tmp_path / "out/t@4", on_error="skip")
    assert list(manifest.gaps) == [3, 17, 30]
    assert manifest.num_items == manifest.num_records + len(manifest.gaps)
    assert [entry["index"] for entry in ledger(tmp_path / "out")] == [3, 17, 30]
    assert ledger(tmp_path / "out")[0] == {
        "error": "CallableError",
        "index": 3,
        "message": "loading the item raised ValueError: boom",
    }
    assert sw.verify(tmp_path / "out/t").num_defects == 0


def test_a_ledger_does_not_outlive_its_dataset(tmp_path, switch):
    sw.write(Flaky(switch), tmp_path / "out/t@4", on_error="skip")
    sw.write(Numbers(), tmp_path / "out/t@4", overwrite=True)
    assert not (tmp_path / "out/t.errors.jsonl").exists()


@pytest.mark.parametrize("out", ["t@4", "t@4.gz", "t@2"])
@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_a_finished_dataset_are_tried_again(tmp_path, switch, out, workers):
    folder = tmp_path / "out"
    sw.write(Flaky(switch), folder / out, label="label", on_error="skip")
    inodes = {name: (folder / name).stat().st_ino for name in files(folder)}
    switch.unlink()
    data, notes = Flaky(switch), []
    run = RunOptions(retry_errors=True, workers=workers)
    sw.write(data, folder / out, label="label", run=run, notify=notes.append)
    data_again = Flaky(switch)
    shutil.rmtree(tmp_path / "whole", ignore_errors=True)
    sw.write(data_again, tmp_path / "whole" / out, label="label")
    assert files(folder) == files(tmp_path / "whole")
    if out == "t@4":  # 3 is in shard 3, 17 in shard 1, 30 in shard 2
        assert any("retrying 3 failed items; 3 of 4 shards" in note for note in notes)
        name = "t.tfrecord-00000-of-00004"
        assert (folder / name).stat().st_ino == inodes[name]


def test_errors_that_stay_errors_are_listed_again(tmp_path, switch):
    folder = tmp_path / "out"
    sw.write(Flaky(switch), folder / "t@4", on_error="skip")
    before = files(folder)
    sw.write(Flaky(switch), folder / "t@4", run=RunOptions(retry_errors=True, on_error="skip"))
    assert files(folder) == before
    with pytest.raises(CallableError):
        sw.write(Flaky(switch), folder / "t@4", run=RunOptions(retry_errors=True))
    assert files(folder) == before
    assert not (folder / ".t.partial").exists()


def test_errors_of_an_unfinished_run_are_tried_again(tmp_path, switch):
    folder = tmp_path / "out"
    data = Flaky(switch)
    data.broken = 35
    run = RunOptions(mark_s=0, max_errors=3, on_error="skip")
    with pytest.raises(TooManyErrors):
        sw.write(data, folder / "t@4", label="label", run=run)
    switch.unlink()
    sw.write(Flaky(switch), folder / "t@4", label="label", run=RunOptions(retry_errors=True))
    sw.write(Flaky(switch), tmp_path / "whole/t@4", label="label")
    assert files(folder) == files(tmp_path / "whole")


def test_a_budget_that_is_spent_stops_the_run_and_can_be_raised(tmp_path, switch):
    folder = tmp_path / "out"
    with pytest.raises(
        TooManyErrors, match=r"3 items failed; the limit is 2\. The last: .*item 30"
    ) as caught:
        sw.write(
            Flaky(switch), folder / "t@4", run=RunOptions(mark_s=0, on_error="skip", max_errors=2)
        )
    assert caught.value.exit_code == 1
    run = RunOptions(resume=True, on_error="skip", max_errors=2)
    with pytest.raises(TooManyErrors, match="failed in earlier attempts"):
        sw.write(Flaky(switch), folder / "t@4", run=run)
    sw.write(
        Flaky(switch), folder / "t@4", run=RunOptions(resume=True, on_error="skip", max_errors=3)
    )
    sw.write(Flaky(switch), tmp_path / "whole/t@4", on_error="skip")
    assert files(folder) == files(tmp_path / "whole")


def test_a_skipped_item_is_not_tried_again(tmp_path, switch):
    folder = tmp_path / "out"
    data = Flaky(switch)
    data.broken = 35
    with pytest.raises(TooManyErrors):
        sw.write(data, folder / "t@4", run=RunOptions(mark_s=0, on_error="skip", max_errors=3))
    switch.unlink()
    resumed = Flaky(switch)
    manifest = sw.write(resumed, folder / "t@4", run=RunOptions(resume=True, on_error="skip"))
    assert list(manifest.gaps) == [3, 17, 30, 35]
    assert not {3, 17, 30, 35} & set(resumed.loaded)


def test_types_that_conflict_are_never_skipped(tmp_path):
    data = [{"x": 1}, {"x": 2}, {"x": 0.5}]
    with pytest.raises(sw.ShardwriterError, match="float here, int64 in item 0"):
        sw.write(data, tmp_path / "t@1", on_error="skip")


def test_a_file_that_changes_is_never_skipped(tmp_path):
    folder = tmp_path / "photos/cat"
    folder.mkdir(parents=True)
    head = bytes.fromhex("89504e470d0a1a0a0000000d494844520000000800000008080000000000000000")
    for number in range(5):
        (folder / f"{number}.png").write_bytes(head + bytes(number))

    def meddle(features):
        (folder / "4.png").write_bytes(b"other")
        return features

    with pytest.raises(sw.ShardwriterError, match="has changed since the folder was listed"):
        sw.write(tmp_path / "photos", tmp_path / "t@1", map=meddle, on_error="skip")


def test_a_broken_image_is_skipped_and_named(tmp_path):
    folder = tmp_path / "photos/cat"
    folder.mkdir(parents=True)
    head = bytes.fromhex("89504e470d0a1a0a0000000d494844520000000800000008080000000000000000")
    for number in range(5):
        (folder / f"{number}.png").write_bytes(head if number != 2 else b"no image")
    manifest = sw.write(tmp_path / "photos", tmp_path / "out/t@2", on_error="skip")
    assert (manifest.num_items, manifest.num_records) == (5, 4)
    (entry,) = ledger(tmp_path / "out")
    assert (entry["index"], entry["item"], entry["error"]) == (2, "cat/2.png", "SourceError")


def test_bad_rows_of_a_block_are_skipped_one_by_one(tmp_path):
    class Rows:
        pass

    data = [{"x": i} if i % 10 else {"x": object()} for i in range(100)]
    for workers in (1, 2):
        manifest = sw.write(data, tmp_path / f"{workers}/t@3", on_error="skip", workers=workers)
        assert list(manifest.gaps) == list(range(0, 100, 10))
    assert files(tmp_path / "1") == files(tmp_path / "2")


def test_the_command_prints_what_is_resumed_and_what_was_skipped(tmp_path, monkeypatch, switch):
    from typer.testing import CliRunner

    from shardwriter.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "data_of_a_test.py").write_text(
        textwrap.dedent(
            """
            import os, time

            def items():
                for index in range(30):
                    if index == 25 and os.path.exists("switch"):
                        time.sleep(1.3)
                    yield index

            def look(item):
                if item == 7 or item == 26 and os.path.exists("switch"):
                    raise ValueError("boom")
                return {"x": item}
            """
        )
    )
    command = ["write", "data_of_a_test:items", "out/t@2", "--map", "data_of_a_test:look"]
    command += ["--engine", "serial", "--on-error", "skip", "--max-errors", "1"]
    run = CliRunner()
    result = run.invoke(app, command)
    assert result.exit_code == 1
    assert "--resume continues it" in result.stderr
    result = run.invoke(app, command)
    assert result.exit_code == 2
    assert "an unfinished run" in result.stderr
    switch.unlink()
    result = run.invoke(app, [*command, "--resume", "--max-errors", "2"])
    assert result.exit_code == 0, result.stderr
    assert "resuming" in result.stderr
    assert "2 of 30 items; errors are listed in t.errors.jsonl" in result.stdout
    result = run.invoke(app, [*command, "--resume"])
    assert result.exit_code == 1  # it was more than that, and still is
    result = run.invoke(app, [*command, "--resume", "--json", "--max-errors", "2"])
    summary = json.loads(result.stdout)
    assert (summary["skipped"], summary["errors"]) == (2, 2)
    sys.modules.pop("data_of_a_test", None)
