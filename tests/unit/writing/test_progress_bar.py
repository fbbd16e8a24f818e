"""``progress=``: a bar on a terminal, nothing elsewhere, or a function; see also test_notebook."""

from __future__ import annotations

import os
import pty
import re
import sys

import pytest

import shardwriter as sw
from shardwriter.writing.engine import Work


def shown_on_a_terminal(code):
    """Run code with a terminal as stdin, stdout and stderr; return what it showed, uncoloured."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", code], {**os.environ, "COLUMNS": "120"})
    output = b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the program has ended
            break
        if not data:
            break
        output += data
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, output.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode())


SOURCE = "import shardwriter as sw\nrows = [{'x': i} for i in range(3000)]\n"


def test_a_terminal_gets_a_bar_that_stays(tmp_path):
    code = f"{SOURCE}sw.write(rows, {str(tmp_path / 't@2')!r}, progress=True)\nprint('behind it')"
    shown = shown_on_a_terminal(code)
    assert re.search(r"writing .*3,000/3,000 ", shown)
    assert shown.rstrip().endswith("behind it")


@pytest.mark.parametrize("progress", ["False", "None"])
def test_a_terminal_gets_none_unless_it_is_asked_for(tmp_path, progress):
    code = f"{SOURCE}sw.write(rows, {str(tmp_path / 't@2')!r}, progress={progress})"
    assert shown_on_a_terminal(code) == ""


def test_every_function_that_takes_long_has_a_bar(tmp_path):
    t, u, v, w, out = (str(tmp_path / name) for name in ("t", "u", "v", "w", "out"))
    code = (
        f"{SOURCE}"
        f"sw.write(rows, {t!r} + '@2')\n"
        f"sw.write_splits(rows, {w!r} + '@1', 'a=0.5,b=0.5', progress=True)\n"
        f"sw.reshard({t!r}, {u!r} + '@3', progress=True)\n"
        f"sw.merge([{t!r}, {u!r}], {v!r} + '@1', progress=True)\n"
        f"sw.append(rows, {t!r}, progress=True)\n"
        f"sw.stats({t!r}, progress=True)\n"
        f"sw.verify({t!r}, progress=True)\n"
        f"sw.repair({t!r}, {out!r}, progress=True)\n"
    )
    shown = shown_on_a_terminal(code)
    counts = re.findall(r"writing .*?([\d,]+)/([\d,]+)", shown)
    ends = {total for done, total in counts if done == total}
    assert {"3,000", "6,000"} <= ends
    assert len(re.findall(r"reading ", shown)) >= 1
    assert len(re.findall(r"verifying ", shown)) >= 2


def test_without_a_terminal_or_a_notebook_nothing_is_shown(tmp_path, capfd):
    sw.write([{"x": 1}], tmp_path / "t@1", progress=True)
    sw.stats(tmp_path / "t", progress=True)
    assert capfd.readouterr() == ("", "")


def test_a_function_is_called_as_before(tmp_path):
    reported = []
    sw.write([{"x": i} for i in range(10)], tmp_path / "t@1", progress=reported.append)
    assert isinstance(reported[-1], Work)
    assert (reported[-1].num_done, reported[-1].num_items) == (10, 10)
    read = []
    sw.stats(tmp_path / "t", progress=lambda *counts: read.append(counts))
    assert read[-1][0] == read[-1][1] > 0


@pytest.mark.parametrize("act", [sw.write, sw.reshard, sw.append])
def test_something_else_is_refused(tmp_path, act):
    with pytest.raises(sw.UsageError, match="progress is 'yes'"):
        act([{"x": 1}] if act is not sw.reshard else "x", tmp_path / "t@1", progress="yes")


def test_notes_and_warnings_are_printed_above_the_bar():
    code = (
        "import time\n"
        "from shardwriter.writing import writing_bar\n"
        "from shardwriter.cli.write_run import TerminalNotices\n"
        "from shardwriter.writing.engine import Work\n"
        "from shardwriter.errors import DataWarning\n"
        "with writing_bar() as show:\n"
        "    show(Work(5, 10, 100, num_gaps=1))\n"
        "    time.sleep(0.5)\n"  # until the bar was drawn, with its second line
        "    TerminalNotices().note('so it is')\n"
        "    TerminalNotices().warn(DataWarning('code', 'it is odd', hint='do that'))\n"
    )
    shown = re.split(r"[\r\n]+", shown_on_a_terminal(code))
    assert {"note: so it is", "warning: it is odd", "  do:  do that"} <= set(shown)
