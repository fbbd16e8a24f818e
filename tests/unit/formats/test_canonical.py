"""Canonical JSON: one value, one text."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.formats.canonical import digest, dumps, loads

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_written_is_read(value):
    text = dumps(value)
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert dumps(loads(text)) == text


@given(VALUES)
def test_the_text_is_one_line_of_ascii(value):
    text = dumps(value)
    assert text.isascii()
    assert text.endswith("\n")
    assert "\n" not in text[:-1]


def test_keys_are_sorted_and_nothing_is_spaced():
    assert dumps({"b": [1, 2.5], "a": {"d": None, "c": "ü"}}) == (
        '{"a":{"c":"\\u00fc","d":null},"b":[1,2.5]}\n'
    )


@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=6))
def test_the_order_of_keys_changes_nothing(value):
    assert dumps(dict(reversed(value.items()))) == dumps(value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_not_written(number):
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps({"a": [number]})


@pytest.mark.parametrize("text", ['{"a":NaN}', "[Infinity]", "-Infinity"])
def test_numbers_that_are_none_are_not_read(text):
    with pytest.raises(ValueError, match="not a JSON number"):
        loads(text)


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":1}', '{"b":{"a":1,"c":2,"a":3}}', '[{"a":1,"\\u0061":2}]']
)
def test_a_key_that_stands_twice_is_refused_by_name(text):
    with pytest.raises(ValueError, match="'a' appears twice"):
        loads(text)


@pytest.mark.parametrize("text", ["", "{", b"\xff", "{'a':1}", "[" * 100_000])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        loads(text)


def test_the_digest_is_that_of_the_text():
    value = {"b": 1, "a": [True]}
    expected = hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    )
    assert digest(value) == "sha256:" + expected.hexdigest()
