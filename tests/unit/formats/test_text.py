"""What a console and a notebook show of an object: a few lines, escaped."""

from __future__ import annotations

import html
from html.parser import HTMLParser

import pytest

import shardwriter as sw
from shardwriter.formats.text import bytes_text, plural, rate_text, shares_text
from shardwriter.writing.options import DatasetOptions, RunOptions

NUM_SHARDS = 128
EVIL = "<img src=x onerror=alert(1)>\x1b[31m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    sw.write([{EVIL: i, "x": [0.5] * 100} for i in range(300)], folder / f"t@{NUM_SHARDS}")
    return folder


def objects(folder):
    path = folder / "t"
    report = sw.stats(path, features=True)
    return {
        "stats": report,
        "set": report.sets[0],
        "verify": sw.verify(path),
        "repair": sw.repair(path, folder / "out", dry_run=True),
        "dataset": sw.open(path),
        "view": sw.open(path).shuffle(3)[:7],
    }


def test_a_repr_is_short_and_so_is_the_html(folder):
    for name, value in objects(folder).items():
        assert len(repr(value)) < 400, name
        assert len(value._repr_html_()) < 4000, name
        assert "300" in repr(value) or name == "view"


def test_one_of_a_thing_is_no_plural(tmp_path):
    manifest = sw.write([{"x": 1}], tmp_path / "t@1")
    assert repr(manifest).startswith("<Manifest t: 1 shard, 1 record, ")
    assert repr(manifest).endswith(" bytes, 1 feature: x>")
    with pytest.warns(sw.DataWarning, match="there are no items"):
        assert repr(sw.write([], tmp_path / "e@2")).endswith(" 0 records, 0 bytes, 0 features>")
    report = repr(sw.stats(tmp_path / "t").sets[0])
    assert report == "<SetReport 't': 1 record in 1 file, 0 defects, 0 notes>"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)


def test_names_from_the_data_are_escaped(folder):
    for name, value in objects(folder).items():
        parser = Tags()
        parser.feed(value._repr_html_())
        assert parser.found == {"table", "caption", "b", "tr", "th", "td"}, name
        assert "\x1b" not in value._repr_html_() + repr(value)
    assert html.escape("<img src=x") in sw.open(folder / "t")._repr_html_()


def test_damage_is_shown(folder, tmp_path):
    sw.write([{"x": i} for i in range(50)], tmp_path / "d@2")
    shard = tmp_path / "d.tfrecord-00001-of-00002"
    data = bytearray(shard.read_bytes())
    data[30] ^= 1
    shard.write_bytes(data)
    for report in (sw.stats(tmp_path / "d"), sw.verify(tmp_path / "d")):
        assert "DAMAGED" in repr(report)
        assert str(shard) in repr(report)
        assert str(shard) in report._repr_html_()
        assert "1 defect," in repr(report.sets[0])


def test_options_show_what_is_not_the_default():
    assert repr(RunOptions()) == "RunOptions()"
    assert repr(RunOptions(workers=4, resume=True)) == "RunOptions(resume=True, workers=4)"
    assert repr(DatasetOptions(limit=3)) == "DatasetOptions(limit=3)"
    schema = {f"feature{i}": sw.FeatureType("int64", "int64") for i in range(100)}
    assert len(repr(DatasetOptions(schema=schema))) < 150


def test_a_writer_says_how_far_it_is(tmp_path):
    with sw.open_writer(tmp_path / "t@2") as writer:
        writer.write({"x": 1})
        assert repr(writer) == "<DatasetWriter: 1 items, being written>"
    assert repr(writer) == "<DatasetWriter: 1 items, published>"


# -- numbers as text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (80_300, "80.3 kB"),
        (99_400, "99.4 kB"),
        (99_600, "100 kB"),
        (999_600, "1.0 MB"),
        (1.5e9, "1.5 GB"),
        (2e12, "2.0 TB"),
        (5e15, "5,000 TB"),
    ],
)
def test_a_size_has_three_digits_and_its_unit(num_bytes, text):
    assert bytes_text(num_bytes) == text


def test_rates_have_a_digit_behind_the_point_below_ten():
    assert rate_text(10, 1) == "10 items/s"
    assert rate_text(9.9, 1) == "9.9 items/s"
    assert rate_text(5000, 2) == "2,500 items/s"
    assert rate_text(0, 0) == "0.0 items/s"


def test_stages_of_more_than_half_a_percent_are_listed():
    assert shares_text({"read": 600.0, "encode": 395.0, "write": 5.0}) == "read 60%, encode 40%"
    assert shares_text({}) == ""


def test_a_count_has_its_noun():
    assert [plural(n, "record") for n in (0, 1, 1234)] == ["0 records", "1 record", "1,234 records"]
    assert plural(2, "index", "indices") == "2 indices"
