"""What ``--resize``, ``--max-side`` and ``--quality`` mean, before any pixel is touched."""

from __future__ import annotations

import pytest

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.writing.options import DatasetOptions, image_options


@pytest.mark.parametrize(
    ("options", "size", "wanted"),
    [
        ({"resize": 256}, (640, 480), (341, 256)),
        ({"resize": 256}, (480, 640), (256, 341)),
        ({"resize": 256}, (256, 1000), (256, 1000)),
        ({"resize": 256}, (64, 32), (512, 256)),
        ({"resize": (256, 192)}, (640, 480), (256, 192)),
        ({"resize": (256, 192)}, (10, 10), (256, 192)),
        ({"max_side": 512}, (1024, 683), (512, 342)),
        ({"max_side": 512}, (683, 1024), (342, 512)),
        ({"max_side": 512}, (512, 512), (512, 512)),
        ({"max_side": 512}, (30, 40), (30, 40)),
        ({"max_side": 2}, (10_000, 3), (2, 1)),
        ({"quality": 80}, (10_000, 3), (10_000, 3)),
        ({"max_side": 3}, (6, 5), (3, 3)),  # 2.5: halves go up
    ],
)
def test_sizes(options, size, wanted):
    assert sw.ImageOptions(**options).size_for(*size) == wanted


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"resize": 256, "max_side": 256},
        *(
            {"resize": wrong}
            for wrong in (0, -1, 65_501, 1.5, True, (1,), (1, 0), (1, 2, 3), "256")
        ),
        *({"max_side": wrong} for wrong in (0, 65_501, 2.0, False)),
        *({"quality": wrong} for wrong in (0, 101, 90.0, True)),
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError):
        sw.ImageOptions(**options)


def test_what_a_person_writes():
    assert image_options() is None
    assert image_options("256") == sw.ImageOptions(resize=256)
    assert image_options("256x192") == sw.ImageOptions(resize=(256, 192))
    assert image_options(None, 512, 80) == sw.ImageOptions(max_side=512, quality=80)
    for wrong in ("", "x", "256x", "x192", "1x2x3", "2 56", "-5", "٣", "25.6", "0"):
        with pytest.raises(OptionError):
            image_options(wrong)


def test_the_default_quality_is_said():
    assert sw.ImageOptions(max_side=9).to_json() == {"max_side": 9, "quality": 95, "resize": None}
    assert sw.ImageOptions((3, 4)).to_json()["resize"] == [3, 4]


def test_images_is_no_dictionary():
    with pytest.raises(OptionError, match="ImageOptions"):
        DatasetOptions(images={"max_side": 3})
