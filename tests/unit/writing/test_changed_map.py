"""Failed items are retried with a fixed map; all other records stay."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.errors import CallableError, OptionError, OutputExists, RunChanged
from shardwriter.writing.options import RunOptions

BAD = (3, 17, 30)
OLD = """
def look(item):
    if item["n"] in (3, 17, 30):
        raise ValueError("boom")
    return {**item, "by": "old"}
"""
NEW = """
def look(item):
    return {**item, "by": "new"}
"""
HALF = """
import os
def look(item):
    if item["n"] == 30 and not os.environ.get("MENDED"):
        raise ValueError("still")
    if item["n"] == 17 and os.environ.get("STOP"):
        raise KeyboardInterrupt
    return {**item, "by": "half"}
"""


class Items:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"n": index, "label": index % 3}


def stream():
    return iter(Items()[index] for index in range(40))


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Return a function that gives the module of the map another text, and returns the map."""
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    (tmp_path / "code").mkdir()

    def write(text):
        (tmp_path / "code" / "mended_map.py").write_text(text)
        sys.modules.pop("mended_map", None)
        importlib.invalidate_caches()
        return importlib.import_module("mended_map").look

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop("mended_map", None)


def write(folder, function, source=None, **more):
    names = ("accept_changed_map", "retry_errors", "mark_s")
    run = {name: more.pop(name) for name in names if name in more}
    return sw.write(
        Items() if source is None else source,
        folder / more.pop("out", "t@4"),
        map=function,
        label="label",
        on_error="skip",
        run=RunOptions(on_error="skip", **run),
        **more,
    )


def retry(folder, function, **more):
    return write(folder, function, retry_errors=True, accept_changed_map=True, **more)


def made_by(folder):
    return {int(record["n"]): record["by"] for record in sw.open(folder / "t")}


def expected(**others):
    return dict.fromkeys(range(40), "old") | {int(n[1:]): by for n, by in others.items()}


@pytest.mark.parametrize("source", [None, stream])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("out", ["t@4", "t@4.gz", "t@1", "t@70"])
def test_only_failed_items_are_made_by_the_changed_map(tmp_path, code, out, workers, source):
    before = write(tmp_path / "out", code(OLD), out=out, source=source)
    assert list(before.gaps) == list(BAD)
    made = retry(tmp_path / "out", code(NEW), out=out, workers=workers, source=source)
    assert made_by(tmp_path / "out") == expected(n3="new", n17="new", n30="new")
    assert list(made.gaps) == []
    assert made.metadata["retries"] == [{"items": [[3, 1], [17, 1], [30, 1]], "job": before.job}]
    assert made.job != before.job
    assert made.features["n"].present == 40
    assert sum(made.labels["counts"].values()) == 40
    assert not (tmp_path / "out" / "t.errors.jsonl").exists()
    assert sw.stats(str(tmp_path / "out")).num_defects == 0
    # Now the dataset is of the job with the new map.
    notes = []
    more = {"out": out, "source": source, "notify": notes.append}
    again = write(tmp_path / "out", code(NEW), resume=True, **more)
    assert again == made
    assert notes[-1] == "nothing to do: 't' is finished, and of this job"


def test_without_the_option_it_is_refused_and_named(tmp_path, code):
    write(tmp_path, code(OLD))
    with pytest.raises(OutputExists) as caught:
        write(tmp_path, code(NEW), retry_errors=True)
    assert "--retry-errors --accept-changed-map" in caught.value.hint
    with pytest.raises(OptionError, match=r"accept_changed_map=True.* needs .*retry_errors"):
        RunOptions(accept_changed_map=True)


def test_a_dataset_without_errors_does_not_name_it(tmp_path, code):
    made = write(tmp_path, code(NEW))
    with pytest.raises(OutputExists) as caught:
        write(tmp_path, code(HALF), resume=True)
    assert "accept-changed-map" not in caught.value.hint
    notes = []
    assert retry(tmp_path, code(OLD), notify=notes.append) == made
    assert notes[0] == "no item of the dataset has failed, so the changed map is not used"


def test_more_than_a_changed_map_is_refused(tmp_path, code):
    write(tmp_path, code(OLD))
    with pytest.raises(OutputExists, match="not only the map"):
        retry(tmp_path, code(NEW), limit=20)
    with pytest.raises(OutputExists, match="shuffle_seed="):
        retry(tmp_path, code(NEW), shuffle_seed=1)


def test_an_item_that_fails_again_can_be_tried_again(tmp_path, code, monkeypatch):
    first = write(tmp_path, code(OLD))
    second = retry(tmp_path, code(HALF))
    assert list(second.gaps) == [30]
    half = expected(n3="half", n17="half")
    del half[30]
    assert made_by(tmp_path) == half
    monkeypatch.setenv("MENDED", "1")
    third = write(tmp_path, code(HALF), retry_errors=True)  # the same map: records stay too
    assert made_by(tmp_path) == {**half, 30: "half"}
    assert third.metadata == second.metadata
    assert [retried["job"] for retried in third.metadata["retries"]] == [first.job]


def test_several_changes_are_all_noted(tmp_path, code):
    first = write(tmp_path, code(OLD))
    second = retry(tmp_path, code(HALF))
    third = retry(tmp_path, code(NEW))
    assert made_by(tmp_path) == expected(n3="half", n17="half", n30="new")
    assert third.metadata["retries"] == [
        {"items": [[3, 1], [17, 1], [30, 1]], "job": first.job},
        {"items": [[30, 1]], "job": second.job},
    ]


def test_a_stopped_retry_is_resumed_and_keeps_the_records(tmp_path, code, monkeypatch):
    write(tmp_path / "out", code(OLD), out="t@1")
    monkeypatch.setenv("MENDED", "1")
    monkeypatch.setenv("STOP", "1")
    with pytest.raises(KeyboardInterrupt):
        retry(tmp_path / "out", code(HALF), out="t@1", mark_s=0)
    monkeypatch.delenv("STOP")
    if (tmp_path / "out" / ".t.partial").exists():
        with pytest.raises(RunChanged, match="the code of map=") as caught:
            retry(tmp_path / "out", code(NEW), out="t@1")
        assert "restore the map and finish the run" in caught.value.hint
        assert max(map(len, caught.value.message.split())) < 70  # no whole hash
        write(tmp_path / "out", code(HALF), out="t@1", resume=True)
    assert made_by(tmp_path / "out") == expected(n3="half", n17="half", n30="half")


def test_a_retry_that_left_no_mark_is_not_begun_as_a_new_dataset(tmp_path, code):
    folder = tmp_path / "out"
    write(folder, code(OLD))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    pid = os.fork()
    if not pid:  # killed before anything was noted
        os.environ["STOP"] = "1"
        text = HALF.replace("raise KeyboardInterrupt", "os._exit(9)")
        retry(folder, code(text))
        os._exit(0)
    os.waitpid(pid, 0)
    text = HALF.replace("raise KeyboardInterrupt", "os._exit(9)")
    with pytest.raises(OutputExists) as caught:
        write(folder, code(text), resume=True)
    assert "--accept-changed-map" in caught.value.hint
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_an_unfinished_run_says_how_to_come_there(tmp_path, code):
    text = OLD.replace("(3, 17, 30)", "(3, 17, 30, 35)").replace(
        "raise ValueError", "raise KeyboardInterrupt if item['n'] == 35 else ValueError"
    )
    with pytest.raises((CallableError, KeyboardInterrupt)):
        sw.write(
            Items(), tmp_path / "t@4", map=code(text), label="label", on_error="skip",
            run=RunOptions(on_error="skip", mark_s=0),
        )  # fmt: skip
    assert Path(tmp_path / ".t.partial").exists()
    with pytest.raises(RunChanged, match=r"it was \"[0-9a-f]{12}\.\.\.\", now") as caught:
        retry(tmp_path, code(NEW))
    assert "then --retry-errors --accept-changed-map" in caught.value.hint
