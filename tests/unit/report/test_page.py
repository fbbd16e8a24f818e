"""The report as a page: what it shows, that it is whole and safe, and how a browser takes it."""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import TESTS
from report_json import (
    DRIFT,
    FEATURES,
    GATES,
    LABELS,
    PLAN,
    defect_json,
    full_report,
    report_json,
    reports,
    set_json,
    shard_json,
)

import shardwriter as sw
from shardwriter.errors import StorageError
from shardwriter.formats.media import encode_png
from shardwriter.reading.pictures import Sample, sample_pictures
from shardwriter.report.page import box_chart, heat_chart, page_html, strip_chart, write_page
from shardwriter.report.tables import named_labels

PNG = encode_png(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
VOID = {"wbr", "meta", "link", "img", "br", "input", "hr"}


class Outline(HTMLParser):
    """Tags, attributes and texts of a page; every tag must be closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {"path": "/data/a-00000-of-00002", "record_index": 3, "label": "<cat>"}
    return Sample(**{**fields, "feature": "image", "format": "png", "data": PNG, **changes})


def test_all_sections_are_there() -> None:
    outline = Outline(page_html(full_report(), [sample()]))
    for words in (
        "Damaged",
        "DAMAGED: 1 defect",
        "--max-imbalance",
        "an unknown number of records lost",
        "train.tfrecord-*-of-00004",
        "26 Example in a sample",
        "Records per shard",
        "neighbours share their label in 90% of pairs",
        "write with --shuffle --seed 1",
        "<b>owl</b>",
        "Mix of each shard",
        "Shards with another mix",
        "int64 here, float everywhere else",
        "2 NaN",
        "Use 6, 12 or 18 shards, not 4",
        "DistributedSampler",
        "256 B to 512 B",
        "<cat>",
        "was not assigned round-robin",
    ):
        assert words in outline.text, words
    names = [tag for tag, _ in outline.tags]
    assert "script" not in names
    assert "b" in names
    assert [tag for tag, found in outline.tags if "owl" in str(found.get("class"))] == []


def test_sections_that_are_not_there_are_left_out() -> None:
    report = report_json()
    for key in ("sets", "gates", "plan"):
        del report[key]
    text = Outline(page_html(report)).text
    assert "Good" in text
    for words in ("Gates", "Defects\n", "Labels", "Features", "split", "Pictures", "Notes"):
        assert words not in text


@pytest.mark.parametrize(
    ("sections", "status"),
    [
        ({}, "Good"),
        ({"defects": [defect_json()]}, "Damaged"),
        ({"gates": GATES}, "Gate failed"),
        ({"gates": GATES[:1]}, "Good"),
    ],
)
def test_the_title_says_how_it_is(sections: dict[str, Any], status: str) -> None:
    page = page_html(report_json(**sections))
    assert re.findall("<title>(.*?):", page) == [status]


@settings(max_examples=25)
@given(reports(), st.text(max_size=20))
def test_any_report_is_a_well_formed_page_without_scripts(
    report: dict[str, Any], label: str
) -> None:
    page = page_html(report, [sample(label=label)])
    page.encode("utf-8")
    outline = Outline(page)
    assert all(c.isprintable() or c == "\n" for c in page)
    allowed = {"html", "head", "meta", "title", "link", "style", "body", "header", "main", "footer"}
    allowed |= {"section", "div", "p", "h1", "h2", "h3", "h4", "span", "b", "em", "small", "code"}
    allowed |= {
        "details",
        "summary",
        "wbr",
        "dl",
        "dt",
        "dd",
        "ul",
        "li",
        "figure",
        "figcaption",
        "img",
        "svg",
        "rect",
        "path",
    }
    allowed |= {"line", "table", "thead", "tbody", "tr", "th", "td"}
    for tag, attributes in outline.tags:
        assert tag in allowed
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")


def test_nothing_of_the_network_is_allowed() -> None:
    page = page_html(report_json())
    policy = html.unescape(re.findall('Content-Security-Policy" content="(.*?)"', page)[0])
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "url(" not in page
    assert "@import" not in page


def test_many_shards_are_put_together() -> None:
    count = 100_000
    shards = [shard_json(i, count, file_bytes=1000 + i % 7) for i in range(count)]
    report = report_json(shards, defects=[defect_json(path=shards[77_777]["path"])])
    page = page_html(report)
    assert len(page) < 200_000
    assert "41 of 100,000 shards" in page
    assert "77777" in page
    assert "1 damaged" in page


def test_many_sets_are_listed() -> None:
    shards = [shard_json(0, path=f"/d/f{i}.tfrecord", shard_index=None, set=i) for i in range(300)]
    sets = [set_json([shard], files=shard["path"], directory="/d") for shard in shards]
    text = Outline(page_html(report_json(shards, sets))).text
    assert all(shard["path"] in text for shard in shards)
    assert text.count("with a manifest") == 12


def test_a_page_of_many_large_sets_stays_small() -> None:
    count, num_sets = 500, 30
    policy = {**PLAN["policies"][0], "samples": list(range(900, 1412)), "steps": [4] * 512}
    policies = [policy] * 40
    many = {f"feature-{i}": FEATURES["label"] for i in range(300)}
    mix = {f"label-{i}": [3 + (i * s) % 7 for s in range(count)] for i in range(200)}
    labels = {**LABELS, "counts": {k: sum(v) for k, v in mix.items()}, "shards": mix}
    shards, sets = [], []
    for number in range(num_sets):
        mine = [shard_json(i, count, set=number) for i in range(count)]
        plan = {**PLAN, "policies": policies}
        sets.append(set_json(mine, features=many, labels=labels, plan=plan, drift=DRIFT * 500))
        shards += mine
    defects = [defect_json(path=shard["path"]) for shard in shards[:3000]]
    samples = [sample(data=PNG + bytes(150_000))] * 30
    page = page_html(report_json(shards, sets, defects=defects), samples)
    assert len(page) < 2_000_000


def test_many_defects_are_cut() -> None:
    report = report_json(defects=[defect_json(record_index=i) for i in range(1000)])
    report["num_defects"] = 5000
    text = Outline(page_html(report)).text
    assert text.count("the length has another CRC") == 200
    assert "… and 4,800 more defects" in text


def test_pictures_are_limited_in_number_and_bytes(tmp_path: Path) -> None:
    large = sample(data=PNG + bytes(150_000))
    samples = [sample(data=PNG + bytes(300_000)), sample(data=b"none"), *[large] * 40]
    write_page(full_report(), tmp_path / "r.html", samples=samples)
    page = (tmp_path / "r.html").read_text()
    assert page.count("<img ") == 3
    assert "39 more were broken, or too large" in page
    assert len(page) < 2_000_000
    assert page_html(report_json(), [sample()] * 100).count("<img ") == 24


def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.html"
    write_page(report_json(), path)
    before = path.read_bytes()
    write_page(full_report(), path)
    assert path.read_bytes() != before
    assert os.listdir(tmp_path) == ["r.html"]
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shardwriter.storage.local.LocalStorage.sync", fail)
    with pytest.raises(StorageError, match="no space"):
        write_page(report_json(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["r.html"]
    with pytest.raises(StorageError):
        write_page(report_json(), tmp_path / "none" / "r.html")


def test_the_same_report_is_the_same_page() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from report_json import full_report\n"
        "from shardwriter.report.page import page_html\n"
        "print(hash('x'), end='|'); print(page_html(full_report()))"
    )
    pages = [
        subprocess.run(
            [sys.executable, "-c", code, str(TESTS)],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        ).stdout.partition(b"|")
        for seed in ("1", "2")
    ]
    assert pages[0][0] != pages[1][0]
    assert pages[0][2] == pages[1][2]


def test_jinja_is_imported_when_a_page_is_wanted() -> None:
    code = "import sys, shardwriter.cli, shardwriter.report.page; sys.exit('jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- charts ----------------------------------------------------------------------------------------


def test_a_strip_has_a_bar_of_each_shard() -> None:
    chart = strip_chart([10, 5, 0], [False, False, True], "records")
    assert chart["paths"]["low"] == "M0 100v-100.00h0.8v100.00zM1 100v-50.00h0.8v50.00z"
    assert chart["paths"]["bad"] == "M2 100v-0.00h0.8v0.00z"
    assert (chart["mean_y"], chart["num_bad"], chart["is_merged"]) == (50, 1, False)
    assert chart["summary"] == "3 shards, 0 to 10, mean 5"


@given(st.lists(st.integers(0, 10**15), max_size=1500))
def test_a_strip_is_never_long(values: list[int]) -> None:
    chart = strip_chart(values, [False] * len(values), "bytes")
    assert chart["paths"]["low"].count("M") == min(len(values), 400)
    assert chart["paths"]["high"].count("M") <= 400
    heights = [float(v) for v in re.findall(r"h[0-9.]+v([0-9.]+)", str(chart["paths"]))]
    assert all(0 <= height <= 100 for height in heights)


def test_the_heat_map_shows_a_shard_with_another_mix() -> None:
    shards = {"a": [1000] * 4, "b": [1000, 1000, 100, 1900]}
    labels = {"counts": {k: sum(v) for k, v in shards.items()}, "shards": shards}
    heat = heat_chart(labels, num_shards=4)
    assert heat is not None
    levels = {row["label"]: row["cells"] for row in heat["rows"]}
    assert levels["b"][:2] == [0, 0]
    assert levels["a"][3] < -1
    assert levels["b"][2] < -1
    assert levels["b"][3] > 1
    assert heat_chart(labels, num_shards=1) is None
    assert heat_chart({**LABELS, "shards": None}, num_shards=4) is None
    few = {"a": [1, 0, 1, 1], "b": [0, 1, 0, 0]}
    heat = heat_chart({"counts": {"a": 3, "b": 1}, "shards": few}, num_shards=4)
    assert heat is not None
    assert heat["num_far"] == 0, "one record is no proof"


def test_a_box_needs_numbers() -> None:
    names = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
    box = box_chart(dict(zip(names, [0, 5, 25, 50, 75, 95, 100], strict=True)))
    assert box is not None
    assert (box["q05"], box["q50"], box["q95"]) == (5, 50, 95)
    wide = box_chart(dict(zip(names, [-1.7e308, 0, 0, 0, 0, 0, 1.7e308], strict=True)))
    assert wide is not None
    assert wide["q50"] == 50
    assert box_chart(dict.fromkeys(names, 3)) is None
    assert box_chart({**dict.fromkeys(names, 3), "0.99": "inf"}) is None
    assert box_chart(None) is None


# -- pictures --------------------------------------------------------------------------------------


def test_pictures_come_from_all_shards(tmp_path: Path) -> None:
    items = [
        {"image": np.full((2, 2, 3), i, np.uint8), "label": ["cat", "dog"][i % 2]}
        for i in range(40)
    ]
    sw.write(items, tmp_path / "t@4", label="label")
    samples = sample_pictures([str(tmp_path / "t")], 8)
    places = [(s.path[-14:-9], s.record_index) for s in samples]
    assert places == [(f"{s:05d}", r) for s in range(4) for r in range(2)]
    assert {s.label for s in samples[:2]} == {"cat"}
    assert samples[0].data == encode_png(np.zeros((2, 2, 3), np.uint8))
    assert len(sample_pictures([str(tmp_path)], 3)) == 3
    assert sample_pictures([str(tmp_path)], 0) == []


def test_pictures_of_damaged_and_other_files(tmp_path: Path) -> None:
    with sw.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for i in range(3):
            value = {"image/encoded": PNG, "image/class/label": i, "text": b"\xff"}
            writer.write(sw.encode_example(value))
    with sw.TFRecordWriter(tmp_path / "b.tfrecord") as writer:
        writer.write(b"no example")
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[-10] ^= 1
    (tmp_path / "c.tfrecord").write_bytes(data)
    (tmp_path / "d.tfrecord").write_bytes(b"")
    samples = sample_pictures([str(tmp_path)], 20)
    assert [(Path(s.path).name, s.record_index, s.label) for s in samples] == [
        ("a.tfrecord", 0, "0"),
        ("a.tfrecord", 1, "1"),
        ("a.tfrecord", 2, "2"),
        ("c.tfrecord", 0, "0"),
        ("c.tfrecord", 1, "1"),
    ]
    unnamed = sample_pictures([str(tmp_path / "a.tfrecord")], 1, label="text")
    assert unnamed[0].label is None


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab() -> Iterator[chromium.Page]:
    if chromium.COMMAND is None:
        pytest.skip("no chromium or google-chrome is installed")
    with chromium.browser() as page:
        yield page


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it(tab: chromium.Page, tmp_path: Path, width: int, dark: bool) -> None:
    report = full_report()
    report["notes"] = ["x" * 500, "/very/long" * 60]
    report["sets"][0]["files"] = "long-" * 60
    report["verdict"] = "DAMAGED " + "y" * 400
    report["num_records"] = 12_345_678_901_234
    write_page(report, tmp_path / "r.html", samples=[sample(), sample(label="z" * 200)])
    tab.open(tmp_path / "r.html", width=width, dark=dark)
    assert tab.troubles == []
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")
    images = "[...document.images].map(i => i.complete && i.naturalWidth)"
    assert tab.value(images) == [4, 4]
    colour = tab.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour))) < 200) is dark
    assert tab.value("document.querySelectorAll('.strip svg').length") == 2
    height = "document.querySelector('.strip path.low').getBoundingClientRect().height"
    assert tab.value(height) > 40


def test_the_browser_would_tell_of_trouble(tab: chromium.Page, tmp_path: Path) -> None:
    page = page_html(report_json()).replace("<main>", '<main style="color:red"><img src="x.png">')
    (tmp_path / "r.html").write_text(page)
    tab.open(tmp_path / "r.html", width=1280)
    assert len(tab.troubles) >= 2


def test_a_damaged_set_does_not_say_that_all_is_proven():
    good, damaged = report_json(), report_json(defects=[defect_json(kind="payload-crc")])
    assert "all CRCs match" in page_html(good)
    assert "all CRCs match" not in page_html(damaged)


def test_labels_have_their_names_where_these_are_known():
    labels = {
        "feature": "y",
        "counts": {"0": 3, "1": 2, "7": 1},
        "shards": {"0": [3], "1": [2], "7": [1]},
        "deviating": [{"label": "1", "count": 2}],
    }
    found = named_labels({"labels": labels, "features": {"y": {"vocabulary": ["cat", "dog"]}}})
    assert list(found["counts"]) == list(found["shards"]) == ["cat (0)", "dog (1)", "7"]
    assert found["deviating"][0]["label"] == "dog (1)"
    assert named_labels({"labels": labels, "features": {}}) == labels


def test_a_mask_is_shown_beside_its_image_with_greys_that_differ(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    mask = np.zeros((4, 6), np.uint8)
    mask[1:3], mask[3] = 1, 5
    sw.write([{"image": PNG, "image/mask": encode_png(mask)}], tmp_path / "t@1")
    first, second = sample_pictures([str(tmp_path / "t")], 8)
    assert (first.feature, second.feature) == ("image", "image/mask")
    assert second.label == "mask, 3 values: 0 to 5"
    shown = np.array(image.open(io.BytesIO(second.data)))
    assert np.unique(shown).tolist() == [0, 127, 255]
    assert "Sizes are height" in page_html(report_json(), [first, second])


def test_a_long_name_breaks_behind_its_separators_only():
    features = {"image/object/label_text": next(iter(FEATURES.values()))}
    page = page_html(report_json(features=features))
    assert "image/<wbr>object/<wbr>label_<wbr>text" in page
