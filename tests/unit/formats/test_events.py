"""Events of TensorBoard, byte by byte."""

from __future__ import annotations

import math
import struct

import pytest

from shardwriter.formats.events import scalars_event, version_event

TIME = b"\x09" + struct.pack("<d", 1.5)


def test_the_first_record_has_the_version_of_the_file():
    assert version_event(1.5) == TIME + b"\x1a\x0dbrain.Event:2"


def test_scalars_have_a_tag_and_a_float():
    value = b"\x0a\x04loss\x15" + struct.pack("<f", 0.25)
    summary = b"\x0a" + bytes([len(value)]) + value
    event = scalars_event(1.5, 300, {"loss": 0.25})
    assert event == TIME + b"\x10\xac\x02" + b"\x2a" + bytes([len(summary)]) + summary
    both = scalars_event(1.5, 300, {"loss": 0.25, "rate": 0.25})
    assert both.count(b"\x15" + struct.pack("<f", 0.25)) == 2


def test_a_step_of_0_is_the_default_and_is_left_out():
    event = scalars_event(1.5, 0, {})
    assert event == TIME + b"\x2a\x00"
    assert scalars_event(1.5, 1, {}) == TIME + b"\x10\x01" + b"\x2a\x00"


def test_a_description_belongs_to_its_tag():
    text = b"\x4a\x05\x1a\x03why"
    with_text = scalars_event(1.5, 1, {"a": 1.0, "b": 2.0}, {"b": "why"})
    assert with_text.count(text) == 1
    assert with_text.endswith(struct.pack("<f", 2.0) + text)


@pytest.mark.parametrize(
    ("scalar", "stored"),
    [(1e39, math.inf), (-1e39, -math.inf), (math.inf, math.inf), (3.4028234663852886e38,) * 2],
)
def test_a_number_that_is_too_large_is_infinite(scalar, stored):
    assert scalars_event(0, 0, {"a": scalar})[-4:] == struct.pack("<f", stored)


def test_not_a_number_stays_so():
    (stored,) = struct.unpack("<f", scalars_event(0, 0, {"a": math.nan})[-4:])
    assert math.isnan(stored)
