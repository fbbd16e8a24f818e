"""The report in a terminal: what it says, that it fits, and that nothing hostile comes through."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_json import (
    defect_json,
    full_report,
    report_json,
    reports,
    shard_json,
    texts,
)
from rich.cells import cell_len
from rich.console import Console

from shardwriter.formats.text import clean
from shardwriter.report.render import number_text, share_text, shorten
from shardwriter.report.terminal import print_report, print_verdict

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def printed(
    report: dict[str, Any], width: int = 80, *, terminal: bool = False, all_shards: bool = False
) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    print_report(report, all_shards=all_shards, console=console)
    return file.getvalue()


@settings(max_examples=60)
@given(reports(), st.sampled_from([80, 81, 120, 200]))
def test_every_line_fits_and_nothing_hostile_comes_through(
    report: dict[str, Any], width: int
) -> None:
    shown = STYLE.sub("", printed(report, width, terminal=True))
    lines = shown.split("\n")
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert "".join(lines[-8:]).replace(" ", "").endswith(clean(report["verdict"]).replace(" ", ""))


@settings(max_examples=30)
@given(reports())
def test_a_pipe_gets_no_colour_and_the_verdict_in_one_line(report: dict[str, Any]) -> None:
    lines = printed(report).split("\n")
    assert lines[-1] == ""
    assert lines[-2].rstrip() == clean(report["verdict"]).rstrip()
    assert all(line.isprintable() for line in lines)


def test_all_sections_are_there() -> None:
    shown = printed(full_report(), 120)
    for words in (
        "/data/train.tfrecord-*-of-00004 (manifest)",
        "records: mean 6.5, std 1.5 (CV 0.08), largest 1.08 x mean",
        "largest train.tfrecord-00000-of-00004: 7 records",
        "smallest train.tfrecord-00003-of-00004: 6 records",
        "bytes: mean 797 B, std 2 B (CV 0.08), largest 1.02 x mean",
        "26 Example (of the first records of each file)",
        "3 values of 'label', counted in the records; 2 records without",
        "sorted: neighbours share their label in 90% of pairs",
        "do: write with --shuffle --seed 1",
        "shards with another mix",
        "int64 here, float everywhere else",
        "length-crc: /data/train.tfrecord-00001-of-00004, record 2 (item 9), offset 232: the",
        "1 record lost; good again at byte 348; 4 good records after it",
        "an unknown number of records lost",
        "(length-crc)",
        "note: train.tfrecord-*-of-00004 was not assigned round-robin",
        "passed: --expect-records: 26 records, as expected",
        "FAILED: --max-imbalance: 1.08 is more than 1.05",
    ):
        assert words in shown, words
    tables = shown[: shown.index("shards that differ")]
    rows = {line.split()[0]: line.split() for line in tables.splitlines() if line.split()}
    assert rows["label"][:4] == ["label", "int64", "1", "92%"]
    assert "0 to 99" in " ".join(rows["label"])
    assert rows["image"][1] == "jpeg/png"
    assert "-inf to 3.4e+38" in " ".join(rows["score"])
    assert rows["cat"][1:3] == ["16", "62%"]
    assert shown.splitlines()[-1] == "DAMAGED: 1 defect"


def test_sections_that_are_not_there_are_left_out() -> None:
    report = report_json()
    for key in ("sets", "gates", "plan"):
        del report[key]
    shown = printed(report)
    assert "balance" not in shown
    assert shown.splitlines()[0].split()[:3] == ["shard", "records", "bytes"]
    assert shown.splitlines()[-1] == "OK: 26 records"


def test_a_damaged_shard_is_marked_and_always_shown() -> None:
    shards = [shard_json(i, 1000, file_bytes=10_000 + i) for i in range(1000)]
    report = report_json(shards, defects=[defect_json(path=shards[500]["path"])])
    shown = printed(report)
    rows = [line for line in shown.splitlines() if re.match(r" *\d+ +\d", line)]
    assert len(rows) == 9
    assert [row.split()[0] for row in rows if "damaged" in row] == ["500"]
    assert "9 of 1,000 shards" in shown
    assert "999" in printed(report, all_shards=True)
    assert len(printed(report, all_shards=True).splitlines()) > 1000


def test_many_defects_are_cut_with_their_number() -> None:
    report = report_json(defects=[defect_json(record_index=i) for i in range(100)])
    report["num_defects"] = 5000
    shown = printed(report)
    assert shown.count("length-crc: /data") == 20
    assert "... and 4,980 more defects; --json lists 100 of 5,000" in shown
    assert shown.count("do: ") == 1


def test_colours_tell_good_from_bad() -> None:
    good = printed(report_json(), terminal=True)
    bad = printed(report_json(defects=[defect_json()]), terminal=True)
    failed = printed(
        report_json(gates=[{"gate": "fail-on", "passed": False, "detail": "d"}]), terminal=True
    )
    green, red = "\x1b[1;32m", "\x1b[1;31m"
    assert green in good.splitlines()[-1]
    assert red in bad.splitlines()[-1]
    assert red in failed.splitlines()[-1]


def test_the_verdict_alone() -> None:
    file = io.StringIO()
    print_verdict(full_report(), console=Console(file=file, width=80))
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("length-crc: ")
    assert lines[-1] == "DAMAGED: 1 defect"


@given(texts, st.integers(0, 90))
def test_names_are_shortened_in_the_middle(text: str, num_cells: int) -> None:
    short = shorten(text, num_cells)
    assert cell_len(short) <= num_cells
    assert short.isprintable()
    if cell_len(clean(text)) <= num_cells:
        assert short == clean(text)


def test_both_ends_of_a_name_stay() -> None:
    assert shorten("train.tfrecord-00003-of-00016", 17) == "train.tf…of-00016"


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [
        (number_text, None, "-"),
        (number_text, 1234567, "1,234,567"),
        (number_text, 2**63 - 1, "9.223e+18"),
        (number_text, 0.13066, "0.1307"),
        (number_text, "nan", "nan"),
        (share_text, 1, "100%"),
        (share_text, 0.9999, ">99.9%"),
        (share_text, 0.99951, ">99.9%"),
        (share_text, 0.5, "50%"),
        (share_text, 0.0001, "<0.1%"),
        (share_text, 0.051, "5.1%"),
        (share_text, None, "-"),
    ],
)
def test_numbers_as_people_read_them(say: Callable[[Any], str], value: object, text: str) -> None:
    assert say(value) == text
